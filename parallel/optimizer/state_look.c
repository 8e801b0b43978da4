#include "parallel/optimizer/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/optimizer/internal.h"

enum { STAGING_BYTES = 1 << 20 };

/* In the order in which a bad one makes the next bad. */
typedef enum bad_kind { MOMENT, SQUARE, MASTER, WEIGHT, NUM_KINDS } bad_kind;

typedef struct search {
    weft_lane *lane;
    char *staging; /* [STAGING_BYTES] */
    int64_t found; /* kind; NUM_KINDS: none */
    double value;
    const weft_placed *placed;
} search;

static float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Finite or not as the element is; fp16's own value is of no use. */
static float element(const char *data, weft_dtype dtype, size_t i)
{
    uint16_t low;
    float value;
    if (dtype == WEFT_F32) {
        memcpy(&value, data + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&low, data + i * sizeof low, sizeof low);
    if (dtype == WEFT_BF16)
        return bits_to_float((uint32_t)low << 16);
    const bool is_infinite = (low & 0x3ff) == 0;
    return (low & 0x7c00) != 0x7c00 ? 0.0f : is_infinite ? INFINITY : NAN;
}

static void look_at(search *s, bad_kind kind, const weft_placed *placed, const char *data,
                    weft_dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float value = element(data, dtype, i);
        if (isfinite(value) && !(kind == SQUARE && value < 0))
            continue;
        s->found = kind;
        s->value = (double)value;
        s->placed = placed;
        return;
    }
}

/* Those of a kind that is no better known already. */
static weft_status look(search *s, bad_kind kind, const weft_placed *placed, const void *data,
                        weft_dtype dtype, size_t count)
{
    const size_t each = weft_dtype_bytes(dtype), most = STAGING_BYTES / each;
    for (size_t at = 0; data && at < count && s->found > (int64_t)kind; at += most) {
        const size_t piece = count - at < most ? count - at : most;
        WEFT_TRY(weft_lane_copy(s->lane, s->staging, (const char *)data + at * each, piece * each));
        WEFT_TRY(weft_lane_sync(s->lane));
        look_at(s, kind, placed, s->staging, dtype, piece);
    }
    return WEFT_OK;
}

static weft_status look_at_states(weft_optimizer *o, search *s)
{
    static const struct {
        bad_kind kind;
        weft_state_kind state;
    } rows[] = {
        {MOMENT, WEFT_STATE_EXP_AVG}, {SQUARE, WEFT_STATE_EXP_AVG_SQ}, {MASTER, WEFT_STATE_MASTER}};
    for (int i = 0; i < o->part.num_pieces; i++) {
        const weft_owned_piece *piece = &o->part.pieces[i];
        const weft_owned *owned = weft_optimizer_owner(o, piece);
        if (weft_parameters_records(o->parameters, owned->section))
            continue;
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            WEFT_TRY(look(s, rows[k].kind, piece->placed,
                          weft_optimizer_state(o, owned, (int)rows[k].state, piece->state),
                          WEFT_F32, piece->count));
    }
    return WEFT_OK;
}

static weft_status look_at_weights(weft_optimizer *o, search *s)
{
    const weft_parameters *p = o->parameters;
    for (int i = 0; i < weft_parameters_count(p); i++) {
        const weft_placed *placed = weft_parameters_at(p, i);
        const weft_bucket *bucket =
            &weft_parameters_section(p, placed->section)->buckets[placed->bucket];
        const size_t part = weft_placed_part(placed);
        if (weft_parameters_records(p, placed->section) || weft_parameters_shares(p, bucket, true))
            continue;
        for (size_t e = 0; e < weft_placed_parts(placed); e++)
            WEFT_TRY(look(s, WEIGHT, placed, weft_parameters_weight_at(p, placed, e * part),
                          weft_parameters_dtype(p), part));
    }
    return WEFT_OK;
}

weft_status weft_state_find_bad(weft_optimizer *o, weft_lane *lane, char out[WEFT_STATE_LOOK_BYTES])
{
    static const char *const kinds[NUM_KINDS] = {"exp_avg", "exp_avg_sq", "the master weight",
                                                 "the weight"};
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    const int size = weft_comm_size(world), rank = weft_comm_rank(world);
    search s = {.lane = lane, .staging = malloc(STAGING_BYTES), .found = NUM_KINDS};
    weft_status status =
        s.staging ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "no memory to look at weights");
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = look_at_states(o, &s);
    if (status == WEFT_OK)
        status = look_at_weights(o, &s);
    free(s.staging);
    WEFT_TRY(weft_comm_agree(world, status));
    int64_t best = s.found * size + rank;
    out[0] = '\0';
    WEFT_TRY(weft_comm_all_reduce_host(world, &best, 1, WEFT_I64, WEFT_REDUCE_MIN));
    if (best >= (int64_t)NUM_KINDS * size)
        return WEFT_OK;
    if (best % size == rank)
        snprintf(out, WEFT_STATE_LOOK_BYTES, "%s of %s on rank %d (layer %d) is %g", kinds[s.found],
                 s.placed->parameter.name, rank, s.placed->layer, s.value);
    return weft_comm_broadcast_host(world, out, WEFT_STATE_LOOK_BYTES, (int)(best % size));
}
