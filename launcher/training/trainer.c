#include "launcher/training/trainer.h"

#include "launcher/training/timeline.h"

weft_status weft_trainer_run(weft_trainer *t, bool eval, int64_t step)
{
    t->running_eval = eval;
    t->running_step = step;
    t->running_batches = weft_trainer_num_batches(t);
    if (!t->evaluates)
        t->running_scale = *weft_optimizer_loss_scale(t->optimizer);
    weft_model_clear_metrics(t->model);
    return weft_program_run(eval ? &t->eval_program : &t->program, &t->executor);
}

static void set_trace(weft_trainer *t, weft_trace *trace)
{
    t->executor.trace = trace;
    weft_model_set_trace(t->model, trace, weft_comm_rank(t->world));
}

weft_status weft_trainer_step(weft_trainer *t, weft_step_result *out)
{
    int64_t step = t->step + 1;
    *out = (weft_step_result){.step = step,
                              .lr = weft_lr_at(&t->lr, weft_trainer_update_number(t, step))};
    double start = weft_now_us();
    WEFT_TRY(weft_batches_read(t, &t->splits[0], true, (uint64_t)t->consumed_tokens));
    WEFT_TRY(weft_moe_selection_before(&t->moe, t->model));
    weft_trainer_note_moe(t, out);
    bool traced = step == t->config.log.trace_step;
    if (traced) {
        WEFT_TRY(weft_comm_barrier(t->world));
        weft_trace_set_origin(t->trace, weft_now_us());
        if (weft_timeline_has(&t->config.log.trace_ranks, weft_comm_rank(t->world)))
            set_trace(t, t->trace);
    }
    weft_status status = weft_trainer_run(t, false, step);
    set_trace(t, NULL);
    if (status != WEFT_OK)
        return weft_error_context(status, "step %lld", (long long)step);
    out->grad_norm = weft_optimizer_grad_norm(t->optimizer);
    out->loss_scale = t->running_scale.scale;
    out->skipped_steps = weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
    out->skipped = out->skipped_steps > t->running_scale.skipped_steps;
    t->step = step;
    t->consumed_tokens += t->config.train.global_batch_size * t->config.model.seq_length;
    WEFT_TRY(weft_trainer_result(t, (weft_now_us() - start) / 1e3, out));
    weft_trainer_note(t, out);
    weft_moe_selection_after(&t->moe, out->step_ms);
    return weft_peak_look(&t->peak, out->step_ms);
}
