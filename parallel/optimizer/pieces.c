/* The optimizer's state, parameter by parameter, as checkpoints see it; of experts in a file, one
 * record after the other. */
#include <weft/kernels.h>

#include "parallel/optimizer/internal.h"

int weft_optimizer_num_pieces(const weft_optimizer *o)
{
    return o->num_pieces;
}

weft_state_piece weft_optimizer_piece(const weft_optimizer *o, int index)
{
    const weft_owned_piece *piece = &o->pieces[index];
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    weft_state_piece out = {.placed = piece->placed,
                            .first = piece->first,
                            .count = piece->count,
                            .writer = piece->counted};
    for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
        out.data[kind] = weft_optimizer_state(o, owned, kind, piece->state);
        if (!out.data[kind] && weft_optimizer_splits(o))
            out.data[kind] = weft_parameters_grad(o->parameters, piece->placed->section,
                                                  piece->bucket, piece->at);
        else if (!out.data[kind])
            out.data[kind] = weft_parameters_weight(o->parameters, piece->placed->section,
                                                    piece->bucket, piece->at);
    }
    return out;
}

/* --- in a file ------------------------------------------------------------------------------- */

enum { ALL = WEFT_RECORD_W | WEFT_RECORD_G | WEFT_RECORD_S };

static void *weights_of(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_weight(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

static float *values_of(const weft_optimizer *o, const weft_owned_piece *piece)
{
    return weft_parameters_grad(o->parameters, piece->placed->section, piece->bucket, piece->at);
}

weft_status weft_optimizer_open(const weft_optimizer *o, int index, bool fills, weft_lane *lane,
                                weft_state_piece *out)
{
    const weft_owned_piece *piece = &o->pieces[index];
    weft_records *records = weft_parameters_records(o->parameters, piece->placed->section);
    if (records) {
        const weft_owned *owned = weft_optimizer_owner(o, piece);
        WEFT_TRY(weft_records_take(records, piece->bucket, ALL,
                                   fills ? ALL : (unsigned)WEFT_RECORD_G, lane));
        if (!fills && weft_optimizer_splits(o))
            WEFT_TRY(
                weft_join_master(lane, &WEFT_ARGS(weft_join_master_args, .count = piece->count,
                                                  .weight = weights_of(o, piece),
                                                  .low = weft_optimizer_low(o, owned, piece->state),
                                                  .master = values_of(o, piece))));
    }
    *out = weft_optimizer_piece(o, index);
    return WEFT_OK;
}

weft_status weft_optimizer_close(const weft_optimizer *o, int index, bool fills, weft_lane *lane)
{
    const weft_owned_piece *piece = &o->pieces[index];
    const weft_owned *owned = weft_optimizer_owner(o, piece);
    const weft_dtype dtype = weft_parameters_dtype(o->parameters);
    weft_records *records = weft_parameters_records(o->parameters, piece->placed->section);
    if (!records)
        return WEFT_OK;
    if (fills && weft_optimizer_splits(o))
        WEFT_TRY(weft_optimizer_take_masters(o, piece, lane));
    else if (fills && dtype != WEFT_F32)
        WEFT_TRY(weft_optimizer_round(
            lane, piece->count, weft_optimizer_state(o, owned, WEFT_STATE_MASTER, piece->state),
            dtype, weights_of(o, piece)));
    WEFT_TRY(weft_records_give(records, piece->bucket, lane));
    weft_records_drop(records, piece->bucket, WEFT_RECORD_G);
    return WEFT_OK;
}
