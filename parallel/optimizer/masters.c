/* fp32 masters of 16-bit weights, beside them or split: first values, saving, loading. */
#include <weft/kernels.h>

#include "parallel/optimizer/internal.h"

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
    const weft_placed *placed = weft_parameters_at(o->parameters, index);
    for (int at = o->part.piece_of[index]; at >= 0 && !placed->parameter.grad;
         at = o->part.pieces[at].next) {
        const weft_owned_piece *piece = &o->part.pieces[at];
        WEFT_TRY(weft_lane_copy(
            lane, weft_parameters_grad(o->parameters, placed->section, piece->bucket, piece->at),
            values + weft_parameter_place(&placed->parameter, piece->first),
            piece->count * sizeof(float)));
    }
    return WEFT_OK;
}

/* What this rank keeps of a parameter's weights, from its values. */
static weft_status keep_weights(const weft_optimizer *o, const weft_placed *placed,
                                const float *values, weft_lane *lane)
{
    const bool rounds = placed->parameter.weight.dtype != WEFT_F32;
    for (size_t part = 0; part < weft_placed_parts(placed); part++) {
        size_t first, count;
        weft_parameters_kept(o->parameters, placed, part, &first, &count);
        if (count == 0)
            continue;
        const float *from = values + weft_parameter_place(&placed->parameter, first);
        void *to = weft_parameters_weight_at(o->parameters, placed, first);
        WEFT_TRY(rounds
                     ? weft_optimizer_round(lane, count, from, placed->parameter.weight.dtype, to)
                     : weft_lane_copy(lane, to, from, count * sizeof(float)));
    }
    return WEFT_OK;
}

/* --- in a file: one record after the other --------------------------------------------------- */

enum { ALL = WEFT_RECORD_W | WEFT_RECORD_G | WEFT_RECORD_S };

static void *piece_weights(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_weight(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

static float *piece_values(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_grad(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

/* A piece's masters, in a record, from its values, which stand where its gradient is; split: and
 * its weights. */
static weft_status take_piece_masters(const weft_optimizer *o, const weft_owned_piece *piece,
                                      weft_lane *lane)
{
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    if (weft_optimizer_splits(o))
        return weft_split_master(
            lane, &WEFT_ARGS(weft_split_master_args, .count = piece->count,
                             .master = piece_values(o, piece), .weight = piece_weights(o, piece),
                             .low = weft_optimizer_low(o, owned, piece->state)));
    return weft_lane_copy(lane, weft_optimizer_state(o, owned, WEFT_STATE_MASTER, piece->state),
                          piece_values(o, piece), piece->count * sizeof(float));
}

/* A local expert's: all of its weights, and the masters that this rank updates. */
static weft_status initialize_expert(weft_optimizer *o, int index, size_t expert, weft_lane *lane,
                                     uint64_t seed)
{
    const weft_placed *placed = weft_parameters_at(o->parameters, index);
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    const int bucket = placed->bucket + (int)expert;
    const size_t at = placed->offset + expert * placed->parameter.expert_stride;
    void *weights = weft_parameters_weight(o->parameters, placed->section, bucket, at);
    float *values = weft_parameters_grad(o->parameters, placed->section, bucket, at);
    if (dtype == WEFT_F32)
        return weft_parameters_fill_part(placed, expert, lane, seed, dtype, weights);
    WEFT_TRY(weft_parameters_fill_part(placed, expert, lane, seed, WEFT_F32, values));
    WEFT_TRY(weft_optimizer_round(lane, weft_placed_part(placed), values, dtype, weights));
    for (int k = o->part.piece_of[index]; k >= 0; k = o->part.pieces[k].next)
        if (o->part.pieces[k].bucket == bucket)
            WEFT_TRY(take_piece_masters(o, &o->part.pieces[k], lane));
    return WEFT_OK;
}

static weft_status initialize_records(weft_optimizer *o, int index, weft_lane *lane, uint64_t seed)
{
    const weft_placed *placed = weft_parameters_at(o->parameters, index);
    weft_records *records = weft_parameters_records(o->parameters, placed->section);
    for (size_t expert = 0; expert < weft_placed_parts(placed); expert++) {
        const int bucket = placed->bucket + (int)expert;
        WEFT_TRY(weft_records_take(records, bucket, ALL, ALL, lane));
        WEFT_TRY(initialize_expert(o, index, expert, lane, seed));
        WEFT_TRY(weft_records_give(records, bucket, lane));
        weft_records_drop(records, bucket, WEFT_RECORD_G);
    }
    return WEFT_OK;
}

/* Whether what a range holds is in a file, and handled record by record. */
static bool in_file(const weft_optimizer *o, weft_section_kind section)
{
    return weft_parameters_records(o->parameters, section) != NULL;
}

weft_status weft_optimizer_initialize_masters(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < weft_parameters_count(o->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(o->parameters, i);
        if (in_file(o, placed->section)) {
            WEFT_TRY(initialize_records(o, i, lane, seed));
            continue;
        }
        float *values = values_of(o, placed);
        WEFT_TRY(weft_parameters_fill(placed, lane, seed, WEFT_F32, values));
        WEFT_TRY(keep_weights(o, placed, values, lane));
        WEFT_TRY(keep_values(o, i, values, lane));
    }
    for (int i = 0; i < o->part.num_owned; i++) {
        const weft_owned *owned = &o->part.owned[i];
        if (in_file(o, owned->section))
            continue;
        if (weft_optimizer_splits(o))
            WEFT_TRY(weft_split_master(
                lane, &WEFT_ARGS(weft_split_master_args, .count = owned->count,
                                 .master = gradients_at(o, owned),
                                 .low = weft_optimizer_low(o, owned, owned->state))));
        else
            WEFT_TRY(weft_lane_copy(lane,
                                    weft_optimizer_state(o, owned, WEFT_STATE_MASTER, owned->state),
                                    gradients_at(o, owned), owned->count * sizeof(float)));
    }
    return weft_parameters_clear_gradients(o->parameters, lane);
}

/* Where they are whole, their values are made in place. */
weft_status weft_optimizer_initialize_weights(weft_optimizer *o, weft_lane *lane, uint64_t seed)
{
    for (int i = 0; i < weft_parameters_count(o->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(o->parameters, i);
        if (in_file(o, placed->section)) {
            WEFT_TRY(initialize_records(o, i, lane, seed));
            continue;
        }
        float *weights = placed->parameter.weight.data;
        float *values = weights ? weights : values_of(o, placed);
        WEFT_TRY(weft_parameters_fill(placed, lane, seed, WEFT_F32, values));
        if (!weights)
            WEFT_TRY(keep_weights(o, placed, values, lane));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_join(const weft_optimizer *o, weft_lane *lane)
{
    for (int i = 0; weft_optimizer_splits(o) && i < o->part.num_owned; i++) {
        const weft_owned *owned = &o->part.owned[i];
        if (!in_file(o, owned->section))
            WEFT_TRY(
                weft_join_master(lane, &WEFT_ARGS(weft_join_master_args, .count = owned->count,
                                                  .weight = weights_at(o, owned),
                                                  .low = weft_optimizer_low(o, owned, owned->state),
                                                  .master = gradients_at(o, owned))));
    }
    return WEFT_OK;
}

weft_status weft_optimizer_leave(const weft_optimizer *o, weft_lane *lane)
{
    return weft_optimizer_splits(o) ? weft_parameters_clear_gradients(o->parameters, lane)
                                    : WEFT_OK;
}

static weft_status take_masters(const weft_optimizer *o, weft_lane *lane, const weft_owned *owned)
{
    if (weft_optimizer_splits(o))
        return weft_split_master(
            lane, &WEFT_ARGS(weft_split_master_args, .count = owned->count,
                             .master = gradients_at(o, owned), .weight = weights_at(o, owned),
                             .low = weft_optimizer_low(o, owned, owned->state)));
    return weft_optimizer_round(lane, owned->count,
                                weft_optimizer_state(o, owned, WEFT_STATE_MASTER, owned->state),
                                weft_parameters_dtype(o->parameters), weights_at(o, owned));
}

weft_status weft_optimizer_reload(weft_optimizer *o, weft_lane *lane)
{
    bool has_masters = weft_parameters_dtype(o->parameters) != WEFT_F32;
    weft_state_check_forget(o);
    o->judged.overflowed = false; /* no step is under way that could be skipped */
    o->judged.fault = (weft_fault){0};
    for (int i = 0; has_masters && i < o->part.num_owned; i++)
        if (!in_file(o, o->part.owned[i].section))
            WEFT_TRY(take_masters(o, lane, &o->part.owned[i]));
    WEFT_TRY(weft_optimizer_leave(o, lane));
    for (int b = 0; b < o->buckets.count; b++)
        WEFT_TRY(weft_optimizer_gather(o, b, lane));
    return weft_optimizer_stage_weights(o, lane);
}

/* The optimizer's state, parameter by parameter, as checkpoints see it; of experts in a file, one
 * record after the other. */

int weft_optimizer_num_pieces(const weft_optimizer *o)
{
    return o->part.num_pieces;
}

weft_state_piece weft_optimizer_piece(const weft_optimizer *o, int index)
{
    const weft_owned_piece *piece = &o->part.pieces[index];
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    weft_state_piece out = {.placed = piece->placed,
                            .first = piece->first,
                            .count = piece->count,
                            .writer = piece->counted};
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        out.data[kind] = weft_optimizer_state(o, owned, kind, piece->state);
        if (kind == WEFT_STATE_EXP_AVG_SQ &&
            weft_parameters_by_muon(o->parameters, piece->placed)) {
            out.data[kind] = NULL;
            continue;
        }
        if (!out.data[kind] && weft_optimizer_splits(o))
            out.data[kind] = weft_parameters_grad(o->parameters, piece->placed->section,
                                                  piece->bucket, piece->at);
        else if (!out.data[kind])
            out.data[kind] = weft_parameters_weight(o->parameters, piece->placed->section,
                                                    piece->bucket, piece->at);
    }
    return out;
}

/* --- pieces in a file ------------------------------------------------------------------------- */

weft_status weft_optimizer_open(const weft_optimizer *o, int index, bool fills, weft_lane *lane,
                                weft_state_piece *out)
{
    const weft_owned_piece *piece = &o->part.pieces[index];
    weft_records *records = weft_parameters_records(o->parameters, piece->placed->section);
    if (records) {
        const weft_owned *owned = weft_optimizer_owner(o, piece);
        WEFT_TRY(weft_records_take(records, piece->bucket, ALL,
                                   fills ? ALL : (unsigned)WEFT_RECORD_G, lane));
        if (!fills && weft_optimizer_splits(o))
            WEFT_TRY(
                weft_join_master(lane, &WEFT_ARGS(weft_join_master_args, .count = piece->count,
                                                  .weight = piece_weights(o, piece),
                                                  .low = weft_optimizer_low(o, owned, piece->state),
                                                  .master = piece_values(o, piece))));
    }
    *out = weft_optimizer_piece(o, index);
    return WEFT_OK;
}

weft_status weft_optimizer_close(const weft_optimizer *o, int index, bool fills, weft_lane *lane)
{
    const weft_owned_piece *piece = &o->part.pieces[index];
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    weft_records *records = weft_parameters_records(o->parameters, piece->placed->section);
    if (!records)
        return WEFT_OK;
    if (fills && weft_optimizer_splits(o))
        WEFT_TRY(take_piece_masters(o, piece, lane));
    else if (fills && dtype != WEFT_F32)
        WEFT_TRY(weft_optimizer_round(
            lane, piece->count, weft_optimizer_state(o, owned, WEFT_STATE_MASTER, piece->state),
            dtype, piece_weights(o, piece)));
    WEFT_TRY(weft_records_give(records, piece->bucket, lane));
    weft_records_drop(records, piece->bucket, WEFT_RECORD_G);
    return WEFT_OK;
}
