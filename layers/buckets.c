#include "layers/outline.h"

/* A section's buckets while they are cut, from the last parameter to the first. */
typedef struct section {
    weft_bucket_cut cut;
    weft_bucket *buckets;
} section;

static void add_parameter(section *s, int layer, size_t elements)
{
    bool begins = weft_bucket_cut_next(&s->cut, elements);
    weft_bucket *bucket = &s->buckets[s->cut.num_buckets - 1];
    if (begins)
        *bucket = (weft_bucket){.offset = s->cut.start, .first_layer = layer};
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

static void cut_sections(const weft_outline *outline, int rank, section *sections)
{
    int first, end;
    for (int chunk = outline->layout.num_chunks - 1; chunk >= 0; chunk--) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = end - 1; l >= first; l--) {
            const weft_outline_layer *layer = &outline->layers[l];
            for (int i = layer->num_parameters - 1; i >= 0; i--)
                add_parameter(&sections[layer->parameters[i].group], l, layer->parameters[i].local);
        }
    }
}

weft_status weft_outline_buckets(const weft_outline *outline, const weft_mesh *mesh,
                                 const weft_parallel_options *options, int rank, weft_arena *arena,
                                 weft_buckets *out)
{
    section sections[WEFT_NUM_SECTIONS];
    weft_cut_sections cut;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        int group_size = kind == WEFT_SECTION_EXPERT ? mesh->edp : mesh->dp * mesh->cp;
        void *buckets;
        WEFT_TRY(weft_arena_alloc_array(arena, count_parameters(outline, rank) + 1,
                                        sizeof(weft_bucket), &buckets));
        sections[kind] =
            (section){weft_bucket_cut_begin((size_t)options->ddp_bucket_size, group_size), buckets};
    }
    cut_sections(outline, rank, sections);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        cut.buckets[kind] = sections[kind].buckets;
        cut.num_buckets[kind] = sections[kind].cut.num_buckets;
    }
    WEFT_TRY(weft_buckets_order(&cut, mesh, options->overlap_grad_reduce,
                                options->use_distributed_optimizer, arena, out));
    for (int b = 0; b < out->count; b++) {
        weft_bucket_shape *shape = (weft_bucket_shape *)&out->shapes[b];
        shape->chunk = chunk_of(&outline->layout, rank, shape->layer);
    }
    return WEFT_OK;
}
