#include "parallel/optimizer_internal.h"

weft_status weft_optimizer_sum(weft_optimizer *o, weft_bucket_sum sum, weft_lane *lane)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    bool is_tied = sum == WEFT_BUCKET_SUM_TIED;
    weft_comm *group = is_tied ? groups->embedding : groups->by_axis[WEFT_AXIS_TP];
    weft_section *section = weft_parameters_section(
        o->parameters, is_tied ? WEFT_SECTION_EMBEDDING : WEFT_SECTION_DENSE_SUM);
    return weft_all_reduce(group, lane, section->grads, section->count, WEFT_F32, WEFT_REDUCE_SUM);
}

weft_status weft_optimizer_reduce(weft_optimizer *o, int bucket, weft_lane *lane)
{
    const weft_owned *owned = &o->owned[o->order[bucket]];
    weft_section *section = weft_parameters_section(o->parameters, owned->section);
    const weft_bucket *b = &section->buckets[owned->bucket];

    if (!o->shapes[bucket].reduces)
        return WEFT_OK;
    if (!o->options.distributed)
        return weft_all_reduce(section->group, lane, section->grads + b->offset, b->count, WEFT_F32,
                               WEFT_REDUCE_SUM);
    return weft_reduce_scatter(section->group, lane, section->grads + b->offset,
                               section->grads + owned->first, owned->count, WEFT_F32,
                               WEFT_REDUCE_SUM);
}

static weft_status after_compute(weft_optimizer *o, weft_lane *compute, weft_lane *reduce)
{
    WEFT_TRY(weft_lane_record(compute, o->compute_done));
    return weft_lane_wait(reduce, o->compute_done);
}

weft_status weft_optimizer_reserve(const weft_optimizer *o, weft_lane *compute, weft_lane *reduce)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    const weft_section *shared = weft_parameters_section(o->parameters, WEFT_SECTION_EMBEDDING);
    size_t element_bytes = weft_dtype_bytes(weft_parameters_dtype(o->parameters));
    if (groups->embedding && shared->count > 0)
        WEFT_TRY(weft_comm_reserve(groups->embedding, reduce, shared->count * sizeof(float)));
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *section = weft_parameters_section(o->parameters, kind);
        size_t most = 0;
        for (int b = 0; b < section->num_buckets; b++)
            most = most < section->buckets[b].count ? section->buckets[b].count : most;
        if (most == 0)
            continue;
        WEFT_TRY(weft_comm_reserve(section->group, reduce, 2 * most * sizeof(float)));
        if (o->options.distributed)
            WEFT_TRY(weft_comm_reserve(section->group, compute, 2 * most * element_bytes));
    }
    return WEFT_OK;
}

bool weft_optimizer_overlaps(const weft_optimizer *o)
{
    bool overlaps = false;
    for (int b = 0; b < o->num_owned; b++)
        overlaps = overlaps || (o->shapes[b].layer >= 0 && o->shapes[b].reduces);
    return overlaps;
}

/* Starts buckets in order, up to the first that still waits for a layer before `layer`. */
static weft_status start_buckets(weft_optimizer *o, int layer, weft_lane *reduce)
{
    for (; o->next_bucket < o->num_owned; o->next_bucket++) {
        const weft_bucket_shape *shape = &o->shapes[o->next_bucket];
        bool is_first = o->next_bucket == 0 || shape[-1].sum != shape->sum;
        if (shape->layer < layer)
            break;
        if (shape->sum != WEFT_BUCKET_SUM_NONE && is_first)
            WEFT_TRY(weft_optimizer_sum(o, shape->sum, reduce));
        WEFT_TRY(weft_optimizer_reduce(o, o->next_bucket, reduce));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_layer_done(weft_optimizer *o, int layer, weft_lane *compute,
                                      weft_lane *reduce)
{
    if (o->next_bucket == o->num_owned || o->shapes[o->next_bucket].layer < layer)
        return WEFT_OK;
    WEFT_TRY(after_compute(o, compute, reduce));
    return start_buckets(o, layer, reduce);
}

weft_status weft_optimizer_reduce_finish(weft_optimizer *o, weft_lane *compute, weft_lane *reduce)
{
    const int all_layers = -1;
    WEFT_TRY(after_compute(o, compute, reduce));
    WEFT_TRY(start_buckets(o, all_layers, reduce));
    o->next_bucket = 0;
    return WEFT_OK;
}
