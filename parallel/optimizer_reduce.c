#include "parallel/optimizer_internal.h"

static weft_status start_bucket(weft_optimizer *o, weft_section_kind kind, int bucket,
                                weft_lane *reduce)
{
    weft_section *section = weft_parameters_section(o->parameters, kind);
    const weft_bucket *b = &section->buckets[bucket];
    size_t first, count;

    if (weft_comm_size(section->group) == 1)
        return WEFT_OK;
    if (!o->options.distributed)
        return weft_all_reduce(section->group, reduce, section->grads + b->offset, b->count,
                               WEFT_F32, WEFT_REDUCE_SUM);
    weft_optimizer_share(o, kind, bucket, &first, &count);
    return weft_reduce_scatter(section->group, reduce, section->grads + b->offset,
                               section->grads + first, count, WEFT_F32, WEFT_REDUCE_SUM);
}

/* Starts a section's buckets in order, up to the first that still waits for a layer before
 * `layer`. */
static weft_status start_section(weft_optimizer *o, weft_section_kind kind, int layer,
                                 weft_lane *reduce)
{
    const weft_section *section = weft_parameters_section(o->parameters, kind);
    int *next = &o->next_bucket[kind];
    while (*next < section->num_buckets && section->buckets[*next].first_layer >= layer)
        WEFT_TRY(start_bucket(o, kind, (*next)++, reduce));
    return WEFT_OK;
}

static bool is_ready(const weft_optimizer *o, weft_section_kind kind, int layer)
{
    const weft_section *section = weft_parameters_section(o->parameters, kind);
    int next = o->next_bucket[kind];
    return next < section->num_buckets && section->buckets[next].first_layer >= layer;
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

static bool is_summed(const weft_optimizer *o, weft_section_kind kind)
{
    const weft_section *section = weft_parameters_section(o->parameters, kind);
    return section->num_buckets > 0 && weft_comm_size(section->group) > 1;
}

bool weft_optimizer_overlaps(const weft_optimizer *o)
{
    return o->options.overlap &&
           (is_summed(o, WEFT_SECTION_DENSE) || is_summed(o, WEFT_SECTION_EXPERT));
}

/* The sections that are summed over another group first wait for the end: a sum between the first
 * and the last stage would hold up the buckets behind it. */
weft_status weft_optimizer_layer_done(weft_optimizer *o, int layer, weft_lane *compute,
                                      weft_lane *reduce)
{
    if (!o->options.overlap)
        return WEFT_OK;
    if (!is_ready(o, WEFT_SECTION_DENSE, layer) && !is_ready(o, WEFT_SECTION_EXPERT, layer))
        return WEFT_OK;
    WEFT_TRY(after_compute(o, compute, reduce));
    WEFT_TRY(start_section(o, WEFT_SECTION_DENSE, layer, reduce));
    return start_section(o, WEFT_SECTION_EXPERT, layer, reduce);
}

static weft_status sum_section(weft_optimizer *o, weft_section_kind kind, weft_comm *group,
                               weft_lane *reduce)
{
    weft_section *section = weft_parameters_section(o->parameters, kind);
    if (section->count == 0 || !group || weft_comm_size(group) == 1)
        return WEFT_OK;
    return weft_all_reduce(group, reduce, section->grads, section->count, WEFT_F32,
                           WEFT_REDUCE_SUM);
}

weft_status weft_optimizer_reduce_finish(weft_optimizer *o, weft_lane *compute, weft_lane *reduce)
{
    const weft_groups *groups = weft_parameters_groups(o->parameters);
    const int all_layers = -1;

    WEFT_TRY(after_compute(o, compute, reduce));
    WEFT_TRY(start_section(o, WEFT_SECTION_DENSE, all_layers, reduce));
    WEFT_TRY(start_section(o, WEFT_SECTION_EXPERT, all_layers, reduce));
    WEFT_TRY(sum_section(o, WEFT_SECTION_DENSE_SUM, groups->by_axis[WEFT_AXIS_TP], reduce));
    WEFT_TRY(start_section(o, WEFT_SECTION_DENSE_SUM, all_layers, reduce));
    WEFT_TRY(sum_section(o, WEFT_SECTION_EMBEDDING, groups->embedding, reduce));
    WEFT_TRY(start_section(o, WEFT_SECTION_EMBEDDING, all_layers, reduce));
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        o->next_bucket[kind] = 0;
    return WEFT_OK;
}
