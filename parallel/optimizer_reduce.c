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
    if (bucket < 0)
        return WEFT_OK;
    const weft_owned *owned = weft_optimizer_owned(o, bucket);
    weft_section *section = weft_parameters_section(o->parameters, owned->section);
    const weft_bucket *b = &section->buckets[owned->bucket];
    float *grads = section->grads + b->grads;

    if (!o->buckets.shapes[bucket].reduces)
        return WEFT_OK;
    if (o->options.sharding == WEFT_NO_SHARD)
        return weft_all_reduce(section->group, lane, grads, b->count, WEFT_F32, WEFT_REDUCE_SUM);
    return weft_reduce_scatter(section->group, lane, grads, grads + (owned->first - b->offset),
                               owned->count, WEFT_F32, WEFT_REDUCE_SUM);
}

weft_status weft_optimizer_reserve(const weft_optimizer *o, weft_lane *reduce)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    const weft_section *shared = weft_parameters_section(o->parameters, WEFT_SECTION_EMBEDDING);
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
    }
    return WEFT_OK;
}
