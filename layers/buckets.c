#include "layers/outline.h"

#include <stdlib.h>

/* A section's buckets while they are cut, from the last parameter to the first. */
typedef struct section {
    weft_bucket_cut cut;
    weft_bucket *buckets;
} section;

static void add_parameter(section *s, int layer, size_t elements, int unit)
{
    bool begins = weft_bucket_cut_next(&s->cut, elements, unit);
    weft_bucket *bucket = &s->buckets[s->cut.num_buckets - 1];
    if (begins)
        *bucket = (weft_bucket){.offset = s->cut.start, .first_layer = layer, .unit = unit};
    if (layer < bucket->first_layer)
        bucket->first_layer = layer;
    bucket->count = weft_bucket_cut_end(&s->cut) - bucket->offset;
}

/* The chunk whose layer a bucket waits for. */
static int chunk_of(const weft_layout *layout, int rank, int layer)
{
    int first, end;
    for (int c = layout->num_chunks - 1; c > 0; c--) {
        weft_layout_range(layout, rank, c, &first, &end);
        if (layer >= first && layer < end)
            return c;
    }
    return 0;
}

static size_t count_parameters(const weft_outline *outline, int rank)
{
    size_t count = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            count += (size_t)outline->layers[l].num_parameters;
    }
    return count;
}

static weft_residency_parameter as_counted(const weft_held *held, const int *group_size, int layer)
{
    return (weft_residency_parameter){.section = (weft_section_kind)held->group,
                                      .group_size = group_size[held->group],
                                      .shared = held->shared,
                                      .used_forward = held->used_forward,
                                      .layer = layer,
                                      .elements = held->local};
}

static weft_residency count_units(const weft_outline *outline, int rank, const int *group_size)
{
    weft_residency residency = outline->residency;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            for (int i = 0; i < outline->layers[l].num_parameters; i++) {
                const weft_residency_parameter counted =
                    as_counted(&outline->layers[l].parameters[i], group_size, l);
                weft_residency_count(&residency, &counted);
            }
    }
    return residency;
}

static void cut_sections(const weft_outline *outline, int rank, const weft_residency *residency,
                         const int *group_size, section *sections)
{
    int first, end;
    for (int chunk = outline->layout.num_chunks - 1; chunk >= 0; chunk--) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = end - 1; l >= first; l--) {
            const weft_outline_layer *layer = &outline->layers[l];
            for (int i = layer->num_parameters - 1; i >= 0; i--) {
                const weft_held *held = &layer->parameters[i];
                const weft_residency_parameter counted = as_counted(held, group_size, l);
                const int unit = weft_residency_unit(residency, &counted);
                add_parameter(&sections[held->group], l, held->local, unit);
            }
        }
    }
}

static weft_status cut(const weft_outline *outline, const weft_mesh *mesh, int rank,
                       weft_arena *arena, weft_cut_sections *out, weft_held_elements *out_held)
{
    section sections[WEFT_NUM_SECTIONS];
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        out->group_size[kind] = kind == WEFT_SECTION_EXPERT ? mesh->edp : mesh->dp * mesh->cp;
        void *buckets;
        WEFT_TRY(weft_arena_alloc_array(arena, count_parameters(outline, rank) + 1,
                                        sizeof(weft_bucket), &buckets));
        sections[kind] = (section){
            weft_bucket_cut_begin(outline->residency.bucket_elements, out->group_size[kind]),
            buckets};
    }
    const weft_residency residency = count_units(outline, rank, out->group_size);
    cut_sections(outline, rank, &residency, out->group_size, sections);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        out->buckets[kind] = sections[kind].buckets;
        out->num_buckets[kind] = sections[kind].cut.num_buckets;
    }
    weft_residency_lay(&outline->residency, out, out_held);
    return WEFT_OK;
}

bool weft_outline_shares(const weft_outline_layer *layer)
{
    int num_buckets = 0;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        num_buckets += layer->units[kind].num_buckets;
    return num_buckets > 0;
}

weft_status weft_outline_hold(weft_outline *outline, const weft_mesh *mesh)
{
    weft_arena arena = {0};
    weft_cut_sections sections;
    weft_status status = WEFT_OK;
    outline->held = calloc((size_t)mesh->pp, sizeof *outline->held);
    if (!outline->held)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model's outline");
    for (int rank = 0; rank < mesh->pp && status == WEFT_OK; rank++) {
        status = cut(outline, mesh, rank, &arena, &sections, &outline->held[rank]);
        for (int kind = 0; kind < WEFT_NUM_SECTIONS && status == WEFT_OK; kind++)
            for (int b = 0; b < sections.num_buckets[kind]; b++) {
                const weft_bucket *bucket = &sections.buckets[kind][b];
                if (bucket->unit < 0)
                    continue;
                weft_unit_shape *unit = &outline->layers[bucket->unit].units[kind];
                unit->elements += bucket->count;
                unit->num_buckets++;
            }
        weft_arena_release(&arena);
    }
    return status;
}

weft_status weft_outline_buckets(const weft_outline *outline, const weft_mesh *mesh, int rank,
                                 weft_arena *arena, weft_buckets *out)
{
    weft_cut_sections sections;
    weft_held_elements held;
    WEFT_TRY(cut(outline, mesh, rank, arena, &sections, &held));
    WEFT_TRY(weft_buckets_order(&sections, mesh, outline->residency.overlap,
                                outline->residency.sharding, arena, out));
    for (int b = 0; b < out->count; b++) {
        weft_bucket_shape *shape = (weft_bucket_shape *)&out->shapes[b];
        shape->chunk = chunk_of(&outline->layout, rank, shape->layer);
    }
    return WEFT_OK;
}
