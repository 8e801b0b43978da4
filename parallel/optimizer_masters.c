/* fp32 masters of 16-bit weights, beside them or split: first values, saving, loading. */
#include <weft/kernels.h>

#include "parallel/optimizer_internal.h"

weft_status weft_optimizer_round(weft_lane *lane, size_t count, const float *master,
                                 weft_dtype dtype, void *weight)
{
    if (dtype == WEFT_BF16)
        return weft_split_master(lane, &WEFT_ARGS(weft_split_master_args, .count = count,
                                                  .master = master, .weight = weight));
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = WEFT_F32,
                                      .to_dtype = dtype, .from = master, .to = weight));
}

static void *weights_at(const weft_optimizer *o, const weft_owned *owned)
{
    const weft_section *section = weft_parameters_section(o->parameters, owned->section);
    size_t element_bytes = weft_dtype_bytes(weft_parameters_dtype(o->parameters));
    return (char *)section->weights + owned->first * element_bytes;
}

static float *gradients_at(const weft_optimizer *o, const weft_owned *owned)
{
    return weft_parameters_section(o->parameters, owned->section)->grads + owned->first;
}

static weft_status clear_gradients(const weft_optimizer *o, weft_lane *lane)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        weft_section *s = weft_parameters_section(o->parameters, (weft_section_kind)kind);
        if (s->count)
            WEFT_TRY(weft_lane_zero(lane, s->grads, s->count * sizeof(float)));
    }
    return WEFT_OK;
}

/* The fp32 values are made in the gradients, which are free before the first step, so that starting
 * needs no memory of its own. */
weft_status weft_optimizer_initialize_masters(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < weft_parameters_count(o->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(o->parameters, i);
        const weft_parameter *parameter = &placed->parameter;
        WEFT_TRY(weft_parameters_fill(placed, lane, seed, WEFT_F32, parameter->grad));
        WEFT_TRY(weft_optimizer_round(lane, placed->count, parameter->grad, parameter->weight.dtype,
                                      parameter->weight.data));
    }
    for (int i = 0; i < o->num_owned; i++) {
        const weft_owned *owned = &o->owned[i];
        if (o->low)
            WEFT_TRY(weft_split_master(
                lane, &WEFT_ARGS(weft_split_master_args, .count = owned->count,
                                 .master = gradients_at(o, owned), .low = o->low + owned->state)));
        else
            WEFT_TRY(weft_lane_copy(lane, o->state[WEFT_STATE_MASTER] + owned->state,
                                    gradients_at(o, owned), owned->count * sizeof(float)));
    }
    return clear_gradients(o, lane);
}

weft_status weft_optimizer_join(const weft_optimizer *o, weft_lane *lane)
{
    for (int i = 0; o->low && i < o->num_owned; i++) {
        const weft_owned *owned = &o->owned[i];
        WEFT_TRY(weft_join_master(lane, &WEFT_ARGS(weft_join_master_args, .count = owned->count,
                                                   .weight = weights_at(o, owned),
                                                   .low = o->low + owned->state,
                                                   .master = gradients_at(o, owned))));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_leave(const weft_optimizer *o, weft_lane *lane)
{
    return o->low ? clear_gradients(o, lane) : WEFT_OK;
}

static weft_status take_masters(const weft_optimizer *o, weft_lane *lane, const weft_owned *owned)
{
    if (o->low)
        return weft_split_master(lane, &WEFT_ARGS(weft_split_master_args, .count = owned->count,
                                                  .master = gradients_at(o, owned),
                                                  .weight = weights_at(o, owned),
                                                  .low = o->low + owned->state));
    return weft_optimizer_round(lane, owned->count, o->state[WEFT_STATE_MASTER] + owned->state,
                                weft_parameters_dtype(o->parameters), weights_at(o, owned));
}

weft_status weft_optimizer_reload(weft_optimizer *o, weft_lane *lane)
{
    bool has_masters = weft_parameters_dtype(o->parameters) != WEFT_F32;
    o->overflowed = false; /* no step is under way that could be skipped */
    for (int i = 0; has_masters && i < o->num_owned; i++)
        WEFT_TRY(take_masters(o, lane, &o->owned[i]));
    WEFT_TRY(weft_optimizer_leave(o, lane));
    for (int i = 0; i < o->num_owned; i++)
        WEFT_TRY(weft_optimizer_gather(o, i, lane));
    return WEFT_OK;
}
