#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "comm/watch/watch.h"
#include "core/device/device.h"
#include "core/log.h"
#include "launcher/training/result.h"
#include "launcher/training/trainer.h"

static const char *const names[] = {"training", "validation", "test"};

static void tell_repeats(const weft_train_options *o, const char *what, uint64_t held)
{
    const double wanted = (double)o->eval_iters * (double)o->global_batch_size;
    if (wanted > (double)held)
        weft_log(WEFT_LOG_WARN,
                 "train.eval_iters %" PRId64 " x global_batch_size %" PRId64
                 ": %.0f samples, and the %s holds %" PRIu64 ": they count several times",
                 o->eval_iters, o->global_batch_size, wanted, what, held);
}

/* Whether this evaluates the sets of data.validation. */
static bool has_sets(const weft_trainer *t, weft_split_kind split)
{
    return split == WEFT_SPLIT_VALIDATION && t->input.data.num_validation > 0;
}

void weft_trainer_tell_repeats(const weft_trainer *t, weft_split_kind split)
{
    char what[300];
    snprintf(what, sizeof what, "%s part", names[split]);
    if (!has_sets(t, split))
        tell_repeats(&t->config.train, what, t->input.data.splits[split].num_samples);
    for (size_t i = 0; has_sets(t, split) && i < t->input.data.num_validation; i++) {
        const weft_data_set *set = &t->input.data.validation[i];
        snprintf(what, sizeof what, "validation set %.200s", set->name);
        tell_repeats(&t->config.train, what, set->splits[split].num_samples);
    }
}

/* what: in messages. */
static weft_status evaluate(weft_trainer *t, const weft_split *split, const char *what,
                            weft_evaluation *out)
{
    weft_evaluation e = {0};
    weft_step_result result;
    int64_t batch = t->config.train.global_batch_size * t->config.model.seq_length;
    for (int64_t i = 0; i < t->config.train.eval_iters && !e.stopped; i++) {
        weft_watch_enter(t->num_evaluated++ == 0 ? WEFT_WATCH_FIRST_STEP : WEFT_WATCH_STEP,
                         t->step);
        WEFT_TRY(weft_batches_read(t, split, WEFT_BATCHES_EVALUATE, (uint64_t)(i * batch)));
        WEFT_TRY(weft_trainer_run(t, true, t->step));
        WEFT_TRY(weft_trainer_sums(t, 1, &result));
        e.loss += result.loss * result.loss_tokens; /* where none bears one, 0 * 0 */
        e.tokens += result.loss_tokens;
        e.stopped = result.stop;
    }
    weft_lane_take_busy(t->lanes[WEFT_LANE_COMPUTE]); /* no step's */
    if (!e.stopped && !(e.tokens > 0))
        return WEFT_KEY_ERROR(
            t->config.data.eod_mask_loss ? "data.eod_mask_loss" : "data.label_mask",
            "no label of the %s's first %lld samples bears a loss", what,
            (long long)(t->config.train.eval_iters * t->config.train.global_batch_size));
    e.loss /= e.tokens > 0 ? e.tokens : 1;
    if (!isfinite(e.loss))
        return WEFT_ERROR(WEFT_DIVERGED, "step %lld: the %s's loss is %g", (long long)t->step, what,
                          e.loss);
    *out = e;
    return WEFT_OK;
}

/* Each set, and the mean over all their labels. */
static weft_status evaluate_sets(weft_trainer *t, weft_evaluation *out)
{
    weft_evaluation all = {.sets = t->input.evaluated, .num_sets = t->input.data.num_validation};
    for (size_t i = 0; i < t->input.data.num_validation && !all.stopped; i++) {
        const weft_data_set *set = &t->input.data.validation[i];
        weft_evaluation e;
        char what[300];
        snprintf(what, sizeof what, "validation set %.200s", set->name);
        WEFT_TRY(evaluate(t, &set->splits[WEFT_SPLIT_VALIDATION], what, &e));
        t->input.evaluated[i] = (weft_evaluated_set){set->name, e.loss, e.tokens};
        all.loss += e.loss * e.tokens;
        all.tokens += e.tokens;
        all.stopped = e.stopped;
    }
    all.loss /= all.tokens > 0 ? all.tokens : 1;
    *out = all;
    return WEFT_OK;
}

weft_status weft_trainer_evaluate(weft_trainer *t, weft_split_kind split, weft_evaluation *out)
{
    char what[32];
    snprintf(what, sizeof what, "%s part", names[split]);
    return has_sets(t, split) ? evaluate_sets(t, out)
                              : evaluate(t, &t->input.data.splits[split], what, out);
}
