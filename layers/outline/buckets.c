#include "layers/outline/outline.h"

#include <stdlib.h>

/* The chunk of the layer that a bucket waits for. */
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

size_t weft_outline_parts(const weft_outline_layer *layer)
{
    size_t parts = 0;
    for (int i = 0; i < layer->num_parameters; i++)
        parts += layer->parameters[i].experts > 0 ? layer->parameters[i].experts : 1;
    return parts;
}

static size_t count_parts(const weft_outline *outline, int rank)
{
    size_t count = 0;
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            count += weft_outline_parts(&outline->layers[l]);
    }
    return count;
}

static weft_residency_parameter as_counted(const weft_held *held, const int *group_size, int layer,
                                           bool muon)
{
    return (weft_residency_parameter){.section = (weft_section_kind)held->group,
                                      .group_size = group_size[held->group],
                                      .shared = held->shared,
                                      .used_forward = held->used_forward,
                                      .layer = layer,
                                      .elements = held->local,
                                      .experts = held->experts,
                                      .matrices = muon ? held->matrices : (weft_matrices){0}};
}

/* A stage's parameters while they are counted, in order. */
typedef struct counted {
    weft_residency residency;
    weft_residency_parameter *parameters;
} counted;

static weft_status count_units(const weft_outline *outline, int rank, const int *group_size,
                               weft_arena *arena, counted *out)
{
    int first, end;
    size_t count = 0;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, count_parts(outline, rank) + 1, sizeof *out->parameters,
                                    &memory));
    *out = (counted){outline->residency, memory};
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            for (int i = 0; i < outline->layers[l].num_parameters; i++) {
                out->parameters[count] = as_counted(&outline->layers[l].parameters[i], group_size,
                                                    l, outline->residency.muon);
                weft_residency_count(&out->residency, &out->parameters[count++]);
            }
    }
    return WEFT_OK;
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

/* Of all parameters the matrices, or the others. */
static void cut_sections(const weft_outline *outline, int rank, const counted *all, bool matrices,
                         weft_bucket_cut *cuts)
{
    int first, end;
    size_t at = count_parameters(outline, rank), start;
    for (int chunk = outline->layout.num_chunks - 1; chunk >= 0; chunk--) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = end - 1; l >= first; l--) {
            const int count = outline->layers[l].num_parameters;
            at -= (size_t)count;
            for (int i = count - 1; i >= 0; i--) {
                const weft_residency_parameter *p = &all->parameters[at + (size_t)i];
                if (weft_residency_is_matrix(p) == matrices)
                    weft_bucket_cut_add(&cuts[p->section], &all->residency, all->parameters + at,
                                        count, i, &start);
            }
        }
    }
}

static weft_status cut(const weft_outline *outline, const weft_mesh *mesh, int rank,
                       weft_arena *arena, weft_cut_sections *out, weft_held_elements *out_held)
{
    weft_bucket_cut cuts[WEFT_NUM_SECTIONS];
    counted all;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        out->group_size[kind] = kind == WEFT_SECTION_EXPERT ? mesh->edp : mesh->dp * mesh->cp;
        void *buckets;
        WEFT_TRY(weft_arena_alloc_array(arena, count_parts(outline, rank) + 1, sizeof(weft_bucket),
                                        &buckets));
        cuts[kind] = weft_bucket_cut_begin(outline->residency.bucket_elements,
                                           out->group_size[kind], buckets);
    }
    WEFT_TRY(count_units(outline, rank, out->group_size, arena, &all));
    cut_sections(outline, rank, &all, true, cuts);
    cut_sections(outline, rank, &all, false, cuts);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        out->buckets[kind] = cuts[kind].buckets;
        out->num_buckets[kind] = cuts[kind].num_buckets;
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
                if (bucket->num_experts > 0)
                    outline->layers[bucket->first_layer].expert_elements = weft_bucket_part(bucket);
                if (bucket->unit < 0)
                    continue;
                weft_unit_shape *unit = &outline->layers[bucket->unit].units[kind];
                unit->elements += bucket->count;
                unit->num_buckets += weft_bucket_parts(bucket);
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
    WEFT_TRY(weft_buckets_order(&sections, mesh, &outline->residency, arena, out));
    for (int b = 0; b < out->count; b++) {
        weft_bucket_shape *shape = (weft_bucket_shape *)&out->shapes[b];
        shape->chunk = chunk_of(&outline->layout, rank, shape->layer);
        if (!weft_bucket_is_offloaded(shape))
            continue;
        shape->at_once = outline->steps_at_once;
        if (outline->tier.experts == WEFT_TIER_FILE)
            shape->residency =
                (weft_bucket_residency){WEFT_LIES_IN_FILE, WEFT_LIES_IN_FILE, WEFT_LIES_IN_FILE};
        shape->refreshes =
            weft_tier_num_kept(&outline->tier, (int)outline->layers[shape->layer].num_experts) > 0;
    }
    return WEFT_OK;
}
