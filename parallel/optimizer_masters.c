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
    return weft_parameters_weight(o->parameters, owned->section, owned->bucket, owned->first);
}

static float *gradients_at(const weft_optimizer *o, const weft_owned *owned)
{
    return weft_parameters_grad(o->parameters, owned->section, owned->bucket, owned->first);
}

/* Where a parameter's fp32 values are made: its gradients, which are free before the first step, so
 * that starting needs no memory of its own. Of a unit, a slot of the ring. */
static float *values_of(const weft_optimizer *o, const weft_placed *placed)
{
    return placed->parameter.grad ? placed->parameter.grad
                                  : weft_parameters_in_ring(o->parameters, placed, 0);
}

/* Of a unit, what this rank updates goes to the gradients that it keeps. */
static weft_status keep_values(const weft_optimizer *o, int index, const float *values,
                               weft_lane *lane)
{
    const int at = o->piece_of[index];
    if (at < 0 || weft_parameters_at(o->parameters, index)->parameter.grad)
        return WEFT_OK;
    const weft_owned_piece *piece = &o->pieces[at];
    return weft_lane_copy(lane,
                          weft_parameters_grad(o->parameters, piece->placed->section,
                                               piece->placed->bucket, piece->at),
                          values + piece->first, piece->count * sizeof(float));
}

weft_status weft_optimizer_initialize_masters(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < weft_parameters_count(o->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(o->parameters, i);
        float *values = values_of(o, placed);
        size_t first, count;
        WEFT_TRY(weft_parameters_fill(placed, lane, seed, WEFT_F32, values));
        weft_parameters_kept(o->parameters, placed, &first, &count);
        if (count > 0)
            WEFT_TRY(weft_optimizer_round(
                lane, count, values + first, placed->parameter.weight.dtype,
                weft_parameters_weight(o->parameters, placed->section, placed->bucket,
                                       placed->offset + first)));
        WEFT_TRY(keep_values(o, i, values, lane));
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
    return weft_parameters_clear_gradients(o->parameters, lane);
}

/* Where they are whole, their values are made in place. */
weft_status weft_optimizer_initialize_weights(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < weft_parameters_count(o->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(o->parameters, i);
        float *weights = placed->parameter.weight.data;
        float *values = weights ? weights : values_of(o, placed);
        size_t first, count;
        WEFT_TRY(weft_parameters_fill(placed, lane, seed, WEFT_F32, values));
        weft_parameters_kept(o->parameters, placed, &first, &count);
        if (!weights && count > 0)
            WEFT_TRY(weft_lane_copy(lane,
                                    weft_parameters_weight(o->parameters, placed->section,
                                                           placed->bucket, placed->offset + first),
                                    values + first, count * sizeof(float)));
    }
    return WEFT_OK;
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
    return o->low ? weft_parameters_clear_gradients(o->parameters, lane) : WEFT_OK;
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
