/* What all ranks say of a step whose numbers are wrong. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "parallel/optimizer/internal.h"

/* The record of the lowest rank of those that know best, and that rank. Every rank takes part, on
 * the host: what follows on the world waits for the lane. */
static weft_status find_record(const weft_optimizer *o, weft_norm_knowledge knows,
                               weft_norm_record *out, int *out_rank)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    int64_t rank = (int64_t)knows * weft_comm_size(world) + weft_comm_rank(world);
    WEFT_TRY(weft_comm_all_reduce_host(world, &rank, 1, WEFT_I64, WEFT_REDUCE_MIN));
    *out = o->norm.own_record;
    *out_rank = (int)(rank % weft_comm_size(world));
    return weft_comm_broadcast_host(world, out, sizeof *out, *out_rank);
}

/* That of the rank that brought most of the loss. */
static weft_status find_largest(const weft_optimizer *o, int *out_rank)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    weft_norm_record record;
    double most = o->norm.own_record.loss;
    WEFT_TRY(weft_comm_all_reduce_host(world, &most, 1, WEFT_F64, WEFT_REDUCE_MAX));
    return find_record(o, o->norm.own_record.loss == most ? WEFT_KNOWS_ORIGIN : WEFT_KNOWS_NOTHING,
                       &record, out_rank);
}

/* Whether this rank's own part of the loss is a spike: above its share of the limit. */
static weft_status spikes_itself(const weft_optimizer *o, bool *out)
{
    weft_comm *world = weft_parameters_groups(o->parameters)->world;
    const double own = o->norm.own_record.loss,
                 limit = o->options.loss_spike_factor * o->judged.loss_mean.mean;
    double sums[] = {own, own > 0}; /* and how many ranks have a part */
    WEFT_TRY(weft_comm_all_reduce_host(world, sums, 2, WEFT_F64, WEFT_REDUCE_SUM));
    *out = own * sums[1] * o->norm.totals[WEFT_NORM_LOSS] > limit * sums[0];
    return WEFT_OK;
}

/* "NAME on rank 2 (layer 3), the last of 5 in NAME". */
enum { WHERE_BYTES = 2 * WEFT_MAX_NAME_BYTES + 96 };
static const char *where_text(const weft_norm_record *r, int rank, char out[WHERE_BYTES])
{
    const int most = WEFT_MAX_NAME_BYTES - 1;
    char expert[32] = "", rest[WEFT_MAX_NAME_BYTES + 32] = "";
    if (r->expert >= 0)
        snprintf(expert, sizeof expert, ", expert %d", r->expert);
    if (r->num_before > 1)
        snprintf(rest, sizeof rest, ", the last of %d in %.*s", r->num_before, most, r->last);
    snprintf(out, WHERE_BYTES, "%.*s on rank %d (layer %d%s)%s", most, r->name, rank, r->layer,
             expert, rest);
    return out;
}

/* Fills in the fault, which is the same on every rank but for `own`. */
static weft_status describe(weft_optimizer *o, weft_fault_kind kind)
{
    weft_fault *f = &o->judged.fault;
    weft_norm_record *own = &o->norm.own_record, record;
    char where[WHERE_BYTES];
    f->kind = kind;
    if (kind == WEFT_FAULT_SPIKE) {
        bool is_own = false;
        WEFT_TRY(find_largest(o, &f->rank));
        WEFT_TRY(spikes_itself(o, &is_own));
        f->own = is_own;
        snprintf(f->text, sizeof f->text, "loss is %.5g times its running mean, most on rank %d",
                 o->norm.totals[WEFT_NORM_LOSS] / o->judged.loss_mean.mean, f->rank);
        return WEFT_OK;
    }
    if (kind == WEFT_FAULT_LOSS)
        own->knows = isfinite(own->loss) ? WEFT_KNOWS_NOTHING : WEFT_KNOWS_ORIGIN;
    f->own = WEFT_KNOWS_NOTHING - (int)own->knows;
    WEFT_TRY(find_record(o, own->knows, &record, &f->rank));
    if (kind == WEFT_FAULT_LOSS)
        snprintf(f->text, sizeof f->text, "loss is %g on rank %d", fabs(record.loss), f->rank);
    else
        snprintf(f->text, sizeof f->text, "gradient norm is not finite; first in %s",
                 where_text(&record, f->rank, where));
    return WEFT_OK;
}

weft_status weft_optimizer_note_fault(weft_optimizer *o, weft_fault_kind kind)
{
    WEFT_TRY(describe(o, kind));
    return o->options.skips_faults ? WEFT_OK
                                   : WEFT_ERROR(WEFT_DIVERGED, "%s", o->judged.fault.text);
}

weft_status weft_optimizer_refuse_scale(weft_optimizer *o)
{
    weft_norm_record record;
    char where[WHERE_BYTES];
    int rank;
    WEFT_TRY(find_record(o, o->norm.own_record.knows, &record, &rank));
    return WEFT_ERROR(WEFT_DIVERGED, "gradients overflow at the lowest loss scale, %g; first in %s",
                      o->judged.loss_scale.scale, where_text(&record, rank, where));
}

const weft_fault *weft_optimizer_fault(const weft_optimizer *o)
{
    return &o->judged.fault;
}

void weft_optimizer_hold(weft_optimizer *o, bool holds)
{
    o->judged.held = holds;
}

/* Shares alone are kept of units, whose whole gradients were looked at before; and records of a
 * file stay where they are. */
static bool is_whole(const weft_optimizer *o, weft_section_kind kind, int index)
{
    const weft_bucket *bucket = &weft_parameters_section(o->parameters, kind)->buckets[index];
    return !weft_parameters_on_host(o->parameters, kind) &&
           !weft_parameters_shares(o->parameters, bucket, false);
}

weft_status weft_optimizer_look(weft_optimizer *o, weft_lane *lane, bool *out_bad)
{
    const size_t bytes = (size_t)o->norm.look.num_parts * sizeof(int32_t);
    *out_bad = false;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        for (int b = 0;
             b < weft_parameters_section(o->parameters, (weft_section_kind)kind)->num_buckets; b++)
            if (is_whole(o, (weft_section_kind)kind, b))
                WEFT_TRY(weft_optimizer_look_at(o, (weft_section_kind)kind, b, lane));
    if (bytes > 0)
        WEFT_TRY(weft_lane_copy(lane, o->norm.host.found, o->norm.look.found, bytes));
    WEFT_TRY(weft_lane_sync(lane));
    for (int i = 0; i < o->norm.look.num_parts; i++) {
        const weft_placed *placed =
            weft_parameters_at(o->parameters, o->norm.look.parts[i].parameter);
        *out_bad = *out_bad || (o->norm.host.found[i] && !placed->parameter.frozen);
    }
    return WEFT_OK;
}

weft_loss_mean *weft_optimizer_loss_mean(weft_optimizer *o)
{
    return &o->judged.loss_mean;
}

/* --- the running mean of the loss ------------------------------------------------------------- */

enum { MEAN_FROM = 4, MEAN_STEPS = 32 };

bool weft_loss_mean_spikes(const weft_loss_mean *m, double loss, double factor)
{
    return factor > 0 && m->count >= MEAN_FROM && m->mean > 0 && loss > factor * m->mean;
}

void weft_loss_mean_add(weft_loss_mean *m, double loss)
{
    const int64_t steps = m->count < MEAN_STEPS ? m->count + 1 : MEAN_STEPS;
    m->mean += (loss - m->mean) / (double)steps;
    m->count += m->count < MEAN_STEPS;
}
