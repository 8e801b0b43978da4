#include "parallel/optimizer/internal.h"

weft_status weft_optimizer_look_at(const weft_optimizer *o, weft_section_kind kind, int index,
                                   weft_lane *lane)
{
    const weft_bucket *bucket = &weft_parameters_section(o->parameters, kind)->buckets[index];
    return weft_look_at(&o->norm.look, kind, index,
                        weft_parameters_grad(o->parameters, kind, index, bucket->offset),
                        bucket->count, lane);
}

static weft_status sum_section(weft_optimizer *o, weft_section_kind kind, weft_comm *group,
                               weft_lane *lane)
{
    weft_section *section = weft_parameters_section(o->parameters, kind);
    if (section->count == 0)
        return WEFT_OK;
    for (int b = 0; b < section->num_buckets; b++)
        WEFT_TRY(weft_optimizer_look_at(o, kind, b, lane));
    return weft_all_reduce(group, lane, section->grads, section->count, WEFT_F32, WEFT_REDUCE_SUM);
}

weft_status weft_optimizer_sum(weft_optimizer *o, weft_bucket_sum sum, weft_lane *lane)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    if (sum == WEFT_BUCKET_SUM_TIED)
        return sum_section(o, WEFT_SECTION_EMBEDDING, groups->embedding, lane);
    WEFT_TRY(sum_section(o, WEFT_SECTION_DENSE_SUM, groups->by_axis[WEFT_AXIS_TP], lane));
    return sum_section(o, WEFT_SECTION_DENSE_SHARED, weft_parameters_sharers(o->parameters), lane);
}

static weft_status reduce_owned(weft_optimizer *o, const weft_owned *owned, weft_lane *lane)
{
    weft_section *section = weft_parameters_section(o->parameters, owned->section);
    float *grads = weft_parameters_grad(o->parameters, owned->section, owned->bucket, owned->start);
    if (o->options.sharding == WEFT_NO_SHARD)
        return weft_all_reduce(section->group, lane, grads, owned->count, WEFT_F32,
                               WEFT_REDUCE_SUM);
    return weft_reduce_scatter(section->group, lane, grads, grads + (owned->first - owned->start),
                               owned->count, WEFT_F32, WEFT_REDUCE_SUM);
}

weft_status weft_optimizer_reduce(weft_optimizer *o, int bucket, weft_lane *lane)
{
    if (bucket < 0)
        return WEFT_OK;
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    if (!weft_bucket_reduces(&o->buckets.shapes[bucket]))
        return WEFT_OK;
    WEFT_TRY(weft_optimizer_take(o, bucket, WEFT_RECORD_G, WEFT_RECORD_G, lane));
    if (o->buckets.shapes[bucket].sum == WEFT_BUCKET_SUM_NONE) /* else it was looked at by then */
        WEFT_TRY(weft_optimizer_look_at(o, owned->section, owned->bucket, lane));
    for (int i = 0; i < num_owned; i++)
        WEFT_TRY(reduce_owned(o, &owned[i], lane));
    return weft_optimizer_give(o, bucket, lane);
}

static weft_status reserve_reductions(const weft_optimizer *o, weft_lane *reduce)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    const weft_section *shared = weft_parameters_section(o->parameters, WEFT_SECTION_EMBEDDING);
    if (groups->embedding && shared->count > 0)
        WEFT_TRY(weft_comm_reserve(groups->embedding, reduce, shared->count * sizeof(float)));
    weft_comm *sharers = weft_parameters_sharers(o->parameters);
    if (sharers)
        WEFT_TRY(weft_comm_reserve(
            sharers, reduce,
            weft_parameters_section(o->parameters, WEFT_SECTION_DENSE_SHARED)->count *
                sizeof(float)));
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *section = weft_parameters_section(o->parameters, kind);
        size_t most = 0;
        for (int b = 0; b < section->num_buckets; b++)
            if (most < weft_bucket_part(&section->buckets[b]))
                most = weft_bucket_part(&section->buckets[b]);
        if (most == 0)
            continue;
        WEFT_TRY(weft_comm_reserve(section->group, reduce, 2 * most * sizeof(float)));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_reserve(const weft_optimizer *o, weft_lane *reduce, weft_lane *compute)
{
    if (reduce)
        WEFT_TRY(reserve_reductions(o, reduce));
    return compute ? weft_muon_reserve(o, compute) : WEFT_OK;
}
