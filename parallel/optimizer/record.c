/* The optimizer's state of experts in a file: where it lies in a record, and work on one. */
#include <weft/kernels.h>

#include "parallel/optimizer/internal.h"

weft_status weft_optimizer_take(const weft_optimizer *o, int bucket, unsigned reads,
                                unsigned changes, weft_lane *lane)
{
    const weft_bucket_shape *shape = &o->buckets.shapes[bucket];
    return weft_parameters_take(o->parameters, (weft_section_kind)shape->section, shape->index,
                                reads, changes, lane);
}

weft_status weft_optimizer_give(const weft_optimizer *o, int bucket, weft_lane *lane)
{
    const weft_bucket_shape *shape = &o->buckets.shapes[bucket];
    return weft_parameters_give(o->parameters, (weft_section_kind)shape->section, shape->index,
                                lane);
}

static size_t master_bytes(const weft_optimizer *o)
{
    if (weft_parameters_dtype(o->parameters) == WEFT_F32)
        return 0;
    return weft_optimizer_splits(o) ? sizeof(uint16_t) : sizeof(float);
}

char *weft_optimizer_in_record(const weft_optimizer *o, const weft_owned *owned, int kind,
                               size_t at)
{
    char *state = weft_records_at(weft_parameters_records(o->parameters, owned->section),
                                  owned->bucket, WEFT_RECORD_STATE);
    const size_t first = at - owned->state, masters = owned->count * master_bytes(o);
    const bool is_low = kind == WEFT_NUM_STATES;
    if (!state)
        return NULL;
    if (is_low || kind == WEFT_STATE_MASTER)
        return masters > 0 && is_low == weft_optimizer_splits(o) ? state + first * master_bytes(o)
                                                                 : NULL;
    state += masters + first * sizeof(float);
    return kind == WEFT_STATE_EXP_AVG ? state : state + owned->count * sizeof(float);
}

weft_status weft_optimizer_end_update(const weft_optimizer *o, int bucket, weft_lane *lane,
                                      bool taken)
{
    const weft_bucket_shape *shape = &o->buckets.shapes[bucket];
    weft_records *records =
        weft_parameters_records(o->parameters, (weft_section_kind)shape->section);
    if (!records)
        return WEFT_OK;
    if (taken)
        WEFT_TRY(weft_records_give(records, shape->index, lane));
    weft_records_drop(records, shape->index, WEFT_RECORD_G);
    return WEFT_OK;
}

const weft_owned *weft_optimizer_owner(const weft_optimizer *o, const weft_owned_piece *piece)
{
    const weft_owned *owned = &o->owned[o->first_owned[piece->placed->section][piece->bucket]];
    while (piece->state >= owned->state + owned->count)
        owned++;
    return owned;
}

static void *weights_of(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_weight(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

static float *values_of(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_grad(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

weft_status weft_optimizer_take_masters(const weft_optimizer *o, const weft_owned_piece *piece,
                                        weft_lane *lane)
{
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    if (weft_optimizer_splits(o))
        return weft_split_master(
            lane, &WEFT_ARGS(weft_split_master_args, .count = piece->count,
                             .master = values_of(o, piece), .weight = weights_of(o, piece),
                             .low = weft_optimizer_low(o, owned, piece->state)));
    return weft_lane_copy(lane, weft_optimizer_state(o, owned, WEFT_STATE_MASTER, piece->state),
                          values_of(o, piece), piece->count * sizeof(float));
}
