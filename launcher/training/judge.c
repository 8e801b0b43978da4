#include "launcher/training/judge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "launcher/planning/ramp.h"
#include "parallel/optimizer/optimizer.h"

enum { TEXT_BYTES = 160, MORE_BYTES = WEFT_STATE_LOOK_BYTES + 160 };

/* By rank, for one run: how certain it is that the rank itself went wrong. */
typedef struct sight {
    weft_fault_kind kind;
    unsigned char *own; /* [world]; the most certain ranks */
} sight;

/* Only the most certain ranks count: the others' faults follow from theirs. */
static weft_status look_around(const weft_trainer *t, sight *out)
{
    const weft_fault *fault = weft_optimizer_fault(t->optimizer);
    const unsigned char own = fault->kind != WEFT_FAULT_NONE ? (unsigned char)fault->own : 0;
    const int size = weft_comm_size(t->world);
    unsigned char most = 0;
    out->kind = fault->kind;
    WEFT_TRY(weft_comm_all_gather_host(t->world, &own, out->own, sizeof own));
    for (int i = 0; i < size; i++)
        most = out->own[i] > most ? out->own[i] : most;
    for (int i = 0; i < size; i++)
        out->own[i] = most > 0 && out->own[i] == most;
    return WEFT_OK;
}

/* The rank that has this rank's data while data_shift is 1: its counterpart in the previous
 * replica. */
static int neighbour(const weft_trainer *t, int rank)
{
    const weft_mesh *mesh = &t->groups.mesh;
    const weft_coords coords = weft_mesh_coords(mesh, rank);
    const int *at = coords.at;
    return weft_mesh_rank(mesh, at[WEFT_AXIS_TP], at[WEFT_AXIS_CP],
                          (at[WEFT_AXIS_DP] + mesh->dp - 1) % mesh->dp, at[WEFT_AXIS_PP]);
}

static weft_status run_again(weft_trainer *t, int64_t step, bool holds, sight *out)
{
    weft_optimizer_hold(t->optimizer, holds);
    weft_status status = weft_trainer_run(t, false, step);
    weft_optimizer_hold(t->optimizer, false);
    WEFT_TRY(status);
    return look_around(t, out);
}

/* Runs the step with each replica's data on the previous one. */
static weft_status run_elsewhere(weft_trainer *t, int64_t step, sight *out)
{
    const uint64_t first = (uint64_t)t->consumed_tokens;
    t->faults.data_shift = 1;
    weft_status status = weft_batches_read(t, &t->input.data.splits[0], WEFT_BATCHES_TRAIN, first);
    if (status == WEFT_OK)
        status = run_again(t, step, true, out);
    t->faults.data_shift = 0;
    return status;
}

/* A neighbour that is well with the same data clears the data, whatever this rank computes with
 * others. */
static weft_verdict compare(const weft_trainer *t, int rank, const sight *elsewhere)
{
    if (!elsewhere->own[neighbour(t, rank)])
        return WEFT_VERDICT_RANK;
    return elsewhere->own[rank] ? WEFT_VERDICT_CODE : WEFT_VERDICT_DATA;
}

/* --- the verdict ------------------------------------------------------------------------------ */

/* The samples of the bad micro-batch, by the run's order; if unknown, all of the rank's samples.
 * The rank that went wrong sends them to the others. */
static weft_status find_samples(const weft_trainer *t, int rank, int64_t out[2])
{
    const int64_t each = t->config.train.micro_batch_size;
    const uint64_t first = (uint64_t)t->consumed_tokens;
    const int bad = t->faults.looks.bad >= 0 ? t->faults.looks.bad : t->faults.looks.last;
    const bool known = t->runs.train.shape.num_chunks <= 1;
    out[0] = (int64_t)weft_batches_first_sample(&t->config, first,
                                                weft_trainer_micro_batch(t, known ? bad : 0));
    out[1] = (int64_t)weft_batches_first_sample(
                 &t->config, first,
                 weft_trainer_micro_batch(t, known ? bad : t->input.batches.num - 1)) +
             each - 1;
    return weft_comm_broadcast_host(t->world, out, 2 * sizeof *out, rank);
}

/* Runs the step again, also on other ranks. A good second run updates, if bad steps do not end the
 * run. */
static weft_status find_verdict(weft_trainer *t, int64_t step, const weft_fault *fault, sight *seen,
                                weft_verdict *out)
{
    const bool stops = t->config.reliability.on_bad_step == WEFT_BAD_STEP_STOP;
    t->faults.looks = (weft_batch_looks){.on = true, .bad = -1};
    weft_status status = run_again(t, step, stops, seen);
    t->faults.looks.on = false;
    WEFT_TRY(status);
    if (seen->kind == WEFT_FAULT_NONE) {
        *out = WEFT_VERDICT_TRANSIENT;
        return WEFT_OK;
    }
    *out = WEFT_VERDICT_OPEN;
    if (t->groups.mesh.dp == 1)
        return WEFT_OK;
    WEFT_TRY(run_elsewhere(t, step, seen));
    *out = compare(t, fault->rank, seen);
    return WEFT_OK;
}

static void verdict_text(const weft_trainer *t, weft_verdict verdict, int rank,
                         const int64_t samples[2], char out[TEXT_BYTES])
{
    const int other = neighbour(t, rank);
    switch (verdict) {
    case WEFT_VERDICT_TRANSIENT:
        snprintf(out, TEXT_BYTES, "run again it is well: transient on rank %d", rank);
        break;
    case WEFT_VERDICT_RANK:
        snprintf(out, TEXT_BYTES,
                 "so again there, and rank %d is well with the same data: rank %d computes wrongly",
                 other, rank);
        break;
    case WEFT_VERDICT_DATA:
        snprintf(out, TEXT_BYTES,
                 "so again there, and on rank %d with the same data: the data, samples %" PRId64
                 " to %" PRId64,
                 other, samples[0], samples[1]);
        break;
    case WEFT_VERDICT_CODE:
        snprintf(out, TEXT_BYTES, "so again there, on rank %d too, and with other data", other);
        break;
    default:
        snprintf(out, TEXT_BYTES,
                 "so again with samples %" PRId64 " to %" PRId64 ", and no replica to ask",
                 samples[0], samples[1]);
        break;
    }
}

/* What is known beside a verdict that finds no samples at fault: of a step that is bad with any
 * data the learning rate and the norms before it may be the cause; a number of the state that is
 * none always is. */
static weft_status know_more(weft_trainer *t, int64_t step, weft_verdict verdict,
                             char out[MORE_BYTES])
{
    char bad[WEFT_STATE_LOOK_BYTES];
    int used = 0;
    out[0] = '\0';
    if (verdict == WEFT_VERDICT_TRANSIENT || verdict == WEFT_VERDICT_DATA)
        return WEFT_OK;
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model));
    WEFT_TRY(weft_state_find_bad(t->optimizer, t->lanes[WEFT_LANE_COMPUTE], bad));
    if (verdict != WEFT_VERDICT_RANK) {
        used =
            snprintf(out, MORE_BYTES, "; lr %.4g",
                     weft_ramp_lr(&t->config.train, &t->lr, weft_trainer_update_number(t, step)));
        const char *before = ", gradient norms of the steps before ";
        for (size_t i = 0; i < sizeof t->faults.norms / sizeof *t->faults.norms; i++)
            if (t->faults.norms[i] > 0) {
                used += snprintf(out + used, MORE_BYTES - (size_t)used, "%s%.4g", before,
                                 t->faults.norms[i]);
                before = ", ";
            }
    }
    if (bad[0])
        snprintf(out + used, MORE_BYTES - (size_t)used, "; %s", bad);
    else if (verdict != WEFT_VERDICT_RANK)
        snprintf(out + used, MORE_BYTES - (size_t)used, "; weights and moments are finite");
    return WEFT_OK;
}

static weft_status decide(weft_trainer *t, int64_t step, weft_verdict verdict, const char *text,
                          weft_outcome *out)
{
    static const char *const does[] = {"", "the batch is skipped",
                                       "back to the last checkpoint, and on behind the batch"};
    const weft_reliability_options *o = &t->config.reliability;
    const bool well = verdict == WEFT_VERDICT_TRANSIENT;
    const weft_status fails = verdict == WEFT_VERDICT_RANK ? WEFT_FAULTY : WEFT_DIVERGED;
    if (o->on_bad_step == WEFT_BAD_STEP_STOP)
        return WEFT_ERROR(fails, "%s", text);
    if (++t->faults.bad_steps > o->max_bad_steps)
        return WEFT_ERROR(fails, "%s; reliability.max_bad_steps is %" PRId64, text,
                          o->max_bad_steps);
    if (weft_comm_rank(t->world) == 0)
        weft_log(WEFT_LOG_WARN,
                 "step %" PRId64 ": %s; %s (bad step %" PRId64 " of at most %" PRId64 ")", step,
                 text, well ? "the second run counts" : does[o->on_bad_step], t->faults.bad_steps,
                 o->max_bad_steps);
    *out = well                                   ? WEFT_STEP_GOOD
           : o->on_bad_step == WEFT_BAD_STEP_SKIP ? WEFT_STEP_SKIPPED
                                                  : WEFT_STEP_REWINDS;
    return WEFT_OK;
}

weft_status weft_trainer_judge(weft_trainer *t, int64_t step, weft_outcome *out)
{
    const weft_fault fault = *weft_optimizer_fault(t->optimizer);
    char text[WEFT_FAULT_TEXT_BYTES + TEXT_BYTES + MORE_BYTES + 2], verdict_of[TEXT_BYTES];
    char more[MORE_BYTES];
    weft_verdict verdict;
    int64_t samples[2] = {0, 0};
    *out = WEFT_STEP_GOOD;
    if (fault.kind == WEFT_FAULT_NONE)
        return WEFT_OK;
    sight seen = {.own = NULL};
    weft_arena scratch = {0};
    weft_status status = weft_comm_agree(
        t->world, WEFT_ARRAY(&scratch, (size_t)weft_comm_size(t->world), &seen.own));
    if (status == WEFT_OK)
        status = find_verdict(t, step, &fault, &seen, &verdict);
    if (status == WEFT_OK)
        status = find_samples(t, fault.rank, samples);
    if (status == WEFT_OK)
        status = know_more(t, step, verdict, more);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    verdict_text(t, verdict, fault.rank, samples, verdict_of);
    snprintf(text, sizeof text, "%s; %s%s", fault.text, verdict_of, more);
    return decide(t, step, verdict, text, out);
}

/* --- replicas --------------------------------------------------------------------------------- */

weft_status weft_trainer_compare_replicas(weft_trainer *t, bool stops)
{
    const bool mends = t->config.reliability.on_replica_difference == WEFT_REPLICA_MAJORITY;
    char text[TEXT_BYTES + WEFT_MAX_NAME_BYTES], more[48] = "";
    weft_replica_report r;
    const int64_t interval = t->config.reliability.replica_check_interval;
    if (interval == 0 ||
        (t->step % interval != 0 && !weft_config_saves_at(&t->config, t->step, stops)))
        return WEFT_OK;
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model));
    WEFT_TRY(weft_replicas_compare(t->optimizer, mends, t->lanes[WEFT_LANE_COMPUTE], &r));
    if (r.num_differ == 0)
        return WEFT_OK;
    if (r.num_differ > 1)
        snprintf(more, sizeof more, ", the first of %d,", r.num_differ);
    snprintf(text, sizeof text, "%s%s differs between the %d replicas of group %s: rank %d %s",
             r.name, more, r.num_replicas, r.group, r.rank,
             r.has_majority ? "stands alone" : "and others, no majority");
    if (!r.is_mended)
        return WEFT_ERROR(WEFT_FAULTY, "step %" PRId64 ": %s", t->step, text);
    if (weft_comm_rank(t->world) == 0)
        weft_log(WEFT_LOG_WARN, "step %" PRId64 ": %s; it takes the bits of rank %d", t->step, text,
                 r.other);
    return WEFT_OK;
}

/* --- what each rank updates ---------------------------------------------------------------------
 */

static bool leaves_hashes(const weft_config *config, int64_t step)
{
    const weft_checkpoint_options *c = &config->checkpoint;
    const int64_t interval = config->reliability.state_check_interval;
    return interval > 0 && (step % interval == 0 || weft_config_saves_at(config, step, false) ||
                            (c->peer_copies > 0 && step % c->peer_interval == 0));
}

void weft_trainer_leave_state(weft_trainer *t, int64_t step)
{
    weft_state_check_leave(t->optimizer, leaves_hashes(&t->config, step));
}

static weft_status take(weft_trainer *t, bool looks)
{
    weft_state_change change;
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model));
    WEFT_TRY(weft_state_check_take(t->optimizer, looks, t->lanes[WEFT_LANE_COMPUTE], &change));
    return change.rank < 0
               ? WEFT_OK
               : WEFT_ERROR(WEFT_FAULTY,
                            "step %" PRId64 ": %s of %s on rank %d changed after step "
                            "%" PRId64 " had left it",
                            t->step, change.array, change.name, change.rank, t->faults.hashed_step);
}

weft_status weft_trainer_check_state(weft_trainer *t, bool updated)
{
    if (!updated)
        return WEFT_OK;
    if (t->faults.hashed_step > 0)
        WEFT_TRY(take(t, false));
    t->faults.hashed_step = leaves_hashes(&t->config, t->step) ? t->step : 0;
    return WEFT_OK;
}

weft_status weft_trainer_verify_state(weft_trainer *t)
{
    return t->faults.hashed_step > 0 ? take(t, true) : WEFT_OK;
}

void weft_trainer_note_norm(weft_trainer *t, const weft_step_result *result)
{
    enum { LAST = sizeof t->faults.norms / sizeof *t->faults.norms - 1 };
    if (result->bad.skips_batch)
        return;
    memmove(t->faults.norms, t->faults.norms + 1, LAST * sizeof *t->faults.norms);
    t->faults.norms[LAST] = result->grad_norm;
}
