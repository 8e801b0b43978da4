#include <math.h>

#include "core/busy.h"
#include "comm/watch.h"
#include "launcher/training/trainer.h"

weft_status weft_trainer_evaluate(weft_trainer *t, weft_split_kind split, weft_evaluation *out)
{
    static const char *const names[] = {"training", "validation", "test"};
    double loss = 0, tokens = 0;
    weft_step_result result;
    int64_t batch = t->config.train.global_batch_size * t->config.model.seq_length;
    for (int64_t i = 0; i < t->config.train.eval_iters; i++) {
        weft_watch_enter(t->num_evaluated++ == 0 ? WEFT_WATCH_FIRST_STEP : WEFT_WATCH_STEP,
                         t->step);
        WEFT_TRY(weft_batches_read(t, &t->splits[split], false, (uint64_t)(i * batch)));
        WEFT_TRY(weft_trainer_run(t, true, t->step));
        WEFT_TRY(weft_trainer_result(t, 1, &result));
        loss += result.loss;
        tokens += result.loss_tokens;
    }
    weft_lane_take_busy(t->lanes[WEFT_LANE_COMPUTE]); /* no step's */
    loss /= (double)t->config.train.eval_iters;
    if (!isfinite(loss))
        return WEFT_ERROR(WEFT_DIVERGED, "step %lld: %s loss is %g", (long long)t->step,
                          names[split], loss);
    *out = (weft_evaluation){loss, tokens};
    return WEFT_OK;
}
