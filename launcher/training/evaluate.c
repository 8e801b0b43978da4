#include <inttypes.h>
#include <math.h>

#include "comm/watch/watch.h"
#include "core/device/device.h"
#include "core/log.h"
#include "launcher/training/trainer.h"

static const char *const names[] = {"training", "validation", "test"};

void weft_trainer_tell_repeats(const weft_trainer *t, weft_split_kind split)
{
    const weft_train_options *o = &t->config.train;
    const uint64_t held = t->splits[split].num_samples;
    const double wanted = (double)o->eval_iters * (double)o->global_batch_size;
    if (wanted > (double)held)
        weft_log(WEFT_LOG_WARN,
                 "train.eval_iters %" PRId64 " x global_batch_size %" PRId64
                 ": %.0f samples, and the %s part holds %" PRIu64 ": they count several times",
                 o->eval_iters, o->global_batch_size, wanted, names[split], held);
}

weft_status weft_trainer_evaluate(weft_trainer *t, weft_split_kind split, weft_evaluation *out)
{
    weft_evaluation e = {0};
    weft_step_result result;
    int64_t batch = t->config.train.global_batch_size * t->config.model.seq_length;
    for (int64_t i = 0; i < t->config.train.eval_iters && !e.stopped; i++) {
        weft_watch_enter(t->num_evaluated++ == 0 ? WEFT_WATCH_FIRST_STEP : WEFT_WATCH_STEP,
                         t->step);
        WEFT_TRY(
            weft_batches_read(t, &t->splits[split], WEFT_BATCHES_EVALUATE, (uint64_t)(i * batch)));
        WEFT_TRY(weft_trainer_run(t, true, t->step));
        WEFT_TRY(weft_trainer_result(t, 1, &result));
        e.loss += result.loss * result.loss_tokens; /* where none bears one, 0 * 0 */
        e.tokens += result.loss_tokens;
        e.stopped = result.stop;
    }
    weft_lane_take_busy(t->lanes[WEFT_LANE_COMPUTE]); /* no step's */
    if (!e.stopped && !(e.tokens > 0))
        return WEFT_KEY_ERROR(
            "data.eod_mask_loss", "no label of the %s part's first %lld samples bears a loss",
            names[split],
            (long long)(t->config.train.eval_iters * t->config.train.global_batch_size));
    e.loss /= e.tokens > 0 ? e.tokens : 1;
    if (!isfinite(e.loss))
        return WEFT_ERROR(WEFT_DIVERGED, "step %lld: %s loss is %g", (long long)t->step,
                          names[split], e.loss);
    *out = e;
    return WEFT_OK;
}
