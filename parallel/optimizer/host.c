/* Buckets that are not on the device: where the state of experts in a file lies in a record, and
 * what the host does to buckets in its memory. */
#include <math.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "core/device/device.h"
#include "kernels/host.h"
#include "kernels/note/note.h"
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
    const weft_owned *owned =
        &o->part.owned[o->part.first_owned[piece->placed->section][piece->bucket]];
    while (piece->state >= owned->state + owned->count)
        owned++;
    return owned;
}

/* --- in host memory: CPU kernels on a lane's own thread --------------------------------------- */

bool weft_optimizer_on_host(const weft_optimizer *o, int bucket)
{
    return weft_parameters_on_host(o->parameters,
                                   (weft_section_kind)o->buckets.shapes[bucket].section);
}

double weft_optimizer_take_host_us(weft_optimizer *o)
{
    return o ? (double)atomic_exchange(&o->host_ns, 0) * 1e-3 : 0;
}

static void count_time(atomic_uint_least64_t *ns, double since_us)
{
    atomic_fetch_add(ns, (uint_least64_t)((weft_now_us() - since_us) * 1e3));
}

/* Where a kernel reads and writes, is known when it is enqueued. */
typedef struct squares {
    weft_optimizer *optimizer;
    const weft_owned *owned;
    const float *grad; /* of its first element */
} squares;

/* Those of one run. */
static weft_sum_squares_args args_of(const squares *s, int i)
{
    const weft_optimizer *o = s->optimizer;
    const weft_norm_run *run = &o->part.norm_runs[i];
    const size_t at = o->part.pieces[run->first_piece].at - s->owned->first;
    return WEFT_ARGS(weft_sum_squares_args, .count = run->count, .x = s->grad + at,
                     .sum = &o->norm.host_sums[i]);
}

static weft_status sum_squares(const void *raw)
{
    const squares *s = raw;
    weft_optimizer *o = s->optimizer;
    const double start = weft_now_us();
    for (int i = s->owned->first_norm; i < s->owned->end_norm; i++) {
        const weft_sum_squares_args args = args_of(s, i);
        *args.sum = 0;
        WEFT_TRY(weft_host_sum_squares(&args, o->options.host_threads));
    }
    count_time(&o->host_ns, start);
    return WEFT_OK;
}

typedef struct clearing {
    void *memory;
    size_t bytes;
    int num_threads;
} clearing;

static weft_status zero(const void *raw)
{
    const clearing *c = raw;
    return weft_host_zero(c->memory, c->bytes, c->num_threads);
}

weft_status weft_optimizer_clear(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    const weft_bucket *b =
        &weft_parameters_section(o->parameters, owned->section)->buckets[owned->bucket];
    WEFT_TRY(weft_optimizer_take(o, bucket, 0, WEFT_RECORD_G, lane));
    const clearing c = {
        weft_parameters_grad(o->parameters, owned->section, owned->bucket, b->offset),
        b->count * sizeof(float), o->options.host_threads};
    const weft_range range = {
        .name = "gradient", .base = c.memory, .bytes = c.bytes, .writes = true};
    WEFT_TRY(weft_note_ranges(lane, "an expert's gradient", &range, 1));
    WEFT_TRY(weft_lane_submit(lane, "an expert's gradient", zero, &c, sizeof c));
    return weft_optimizer_give(o, bucket, lane);
}

weft_status weft_optimizer_square(weft_optimizer *o, int bucket, weft_lane *lane)
{
    int num_owned;
    const weft_owned *owned = weft_optimizer_owned(o, bucket, &num_owned);
    WEFT_TRY(weft_optimizer_take(o, bucket, WEFT_RECORD_G, 0, lane));
    for (int i = 0; i < num_owned; i++) {
        const squares s = {
            o, &owned[i],
            weft_parameters_grad(o->parameters, owned[i].section, owned[i].bucket, owned[i].first)};
        for (int run = owned[i].first_norm; run < owned[i].end_norm; run++) {
            const weft_sum_squares_args args = args_of(&s, run);
            WEFT_TRY(weft_note_host_sum_squares(lane, &args));
        }
        WEFT_TRY(
            weft_lane_submit(lane, "squares of an expert's gradient", sum_squares, &s, sizeof s));
    }
    return weft_optimizer_give(o, bucket, lane);
}

/* Of one AdamW call; it must fit what a lane copies. */
typedef struct step {
    weft_adamw_args args;
    int num_threads, num_sums;
    const double *sums; /* of the gradient: without a norm before, the only look at it */
    atomic_uint_least64_t *ns;
} step;
_Static_assert(sizeof(step) <= WEFT_LANE_MAX_ARGS_BYTES, "a lane copies it");

/* A gradient that is not finite steps nothing: the norm that follows ends the run. */
static weft_status adamw(const void *raw)
{
    const step *s = raw;
    for (int i = 0; i < s->num_sums; i++)
        if (!isfinite(s->sums[i]))
            return WEFT_OK;
    const double start = weft_now_us();
    WEFT_TRY(weft_host_adamw(&s->args, s->num_threads));
    count_time(s->ns, start);
    return WEFT_OK;
}

weft_status weft_optimizer_host_adamw(weft_optimizer *o, const weft_owned *owned,
                                      const weft_adamw_args *args, weft_lane *lane)
{
    const bool at_once =
        o->options.steps_at_once && weft_parameters_on_host(o->parameters, owned->section);
    step s = {.args = *args,
              .num_threads = o->options.host_threads,
              .num_sums = at_once ? owned->end_norm - owned->first_norm : 0,
              .sums = o->norm.host_sums + owned->first_norm,
              .ns = &o->host_ns};
    const bool owed = args->grad_scale == &o->debts.scale;
    if (owed)
        s.num_sums = 0;
    if (!owed || at_once)
        s.args.grad_scale = at_once ? NULL : o->norm.host.grad_scale;
    const weft_range sums = {
        .name = "sums", .base = s.sums, .bytes = (size_t)s.num_sums * sizeof *s.sums};
    WEFT_TRY(weft_note_ranges(lane, "AdamW on the host", &sums, 1));
    WEFT_TRY(weft_note_host_adamw(lane, &s.args));
    return weft_lane_submit(lane, "AdamW on the host", adamw, &s, sizeof s);
}
