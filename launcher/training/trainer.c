#include "launcher/training/trainer.h"

#include "comm/watch/watch.h"
#include "launcher/training/judge.h"
#include "launcher/training/timeline.h"

static void set_trace(weft_trainer *t, weft_trace *trace)
{
    t->executor.trace = trace;
    weft_model_set_trace(t->model, trace, weft_comm_rank(t->world));
}

weft_status weft_trainer_step(weft_trainer *t, weft_step_result *out)
{
    int64_t step = t->step + 1;
    weft_watch_enter(t->num_steps == 0 ? WEFT_WATCH_FIRST_STEP : WEFT_WATCH_STEP, step);
    *out = (weft_step_result){.step = step,
                              .lr = weft_lr_at(&t->lr, weft_trainer_update_number(t, step))};
    double start = weft_now_us();
    WEFT_TRY(weft_batches_read(t, &t->splits[0], WEFT_BATCHES_TRAIN, (uint64_t)t->consumed_tokens));
    WEFT_TRY(weft_moe_selection_before(&t->moe, t->model));
    weft_trainer_note_moe(t, out);
    if (t->num_steps == 0)
        weft_trainer_forget_counts(t);
    bool traced = step == t->config.log.trace_step;
    if (traced) {
        WEFT_TRY(weft_comm_barrier(t->world));
        weft_trace_set_origin(t->trace, weft_now_us());
        if (weft_timeline_has(&t->config.log.trace_ranks, weft_comm_rank(t->world)))
            set_trace(t, t->trace);
    }
    weft_trainer_leave_state(t, step);
    weft_status status = weft_trainer_run(t, false, step);
    if (traced && status == WEFT_OK) /* what runs on stamps its slices later */
        status = weft_executor_drain(&t->executor);
    if (traced && status == WEFT_OK)
        status = weft_model_drain_tier(t->model);
    set_trace(t, NULL);
    weft_outcome outcome = WEFT_STEP_GOOD;
    if (status == WEFT_OK)
        status = weft_trainer_judge(t, step, &outcome);
    if (status != WEFT_OK)
        return weft_error_context(status, "step %lld", (long long)step);
    const int64_t tokens = t->config.train.global_batch_size * t->config.model.seq_length;
    out->bad_steps = t->bad_steps;
    out->rewinds = outcome == WEFT_STEP_REWINDS;
    if (out->rewinds) {
        t->consumed_tokens += tokens;
        return WEFT_OK;
    }
    out->skips_batch = outcome == WEFT_STEP_SKIPPED;
    t->skipped_batches += out->skips_batch;
    out->grad_norm = weft_optimizer_grad_norm(t->optimizer);
    weft_trainer_note_norm(t, out);
    out->loss_scale = t->running_scale.scale;
    out->skipped_steps = weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
    out->skipped = out->skipped_steps > t->running_scale.skipped_steps;
    t->step = step;
    t->consumed_tokens += tokens;
    WEFT_TRY(weft_trainer_result(t, (weft_now_us() - start) / 1e3, out));
    WEFT_TRY(weft_trainer_note(t, out));
    weft_moe_selection_after(&t->moe, out->step_ms);
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_trainer_check_state(t, !out->skipped && !out->skips_batch));
    WEFT_TRY(weft_trainer_compare_replicas(t, out->stop));
    weft_doing_pass(WEFT_DOING_BEHIND);
    return weft_peak_look(&t->peak, out->step_ms);
}
