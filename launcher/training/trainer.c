#include "launcher/training/trainer.h"

#include <math.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "launcher/planning/ramp.h"
#include "launcher/training/judge.h"
#include "launcher/training/result.h"
#include "launcher/training/setup.h"
#include "parallel/checkpoint/checkpoint.h"

static void set_trace(weft_trainer *t, weft_trace *trace)
{
    t->executor.trace = trace;
    weft_model_set_trace(t->model, trace, weft_comm_rank(t->world));
}

/* That of the batch behind what is consumed. */
static void choose_program(weft_trainer *t)
{
    const weft_train_options *train = &t->config.train;
    const int64_t batch = weft_ramp_batch(train, t->consumed_tokens / t->config.model.seq_length);
    t->runs.of_step = &t->runs.train;
    for (int i = 0; i < weft_ramp_num_sizes(train); i++)
        if (weft_ramp_size(train, i) == batch)
            t->runs.of_step = &t->runs.ramp[i];
}

weft_status weft_trainer_step(weft_trainer *t, weft_step_result *out)
{
    int64_t step = t->step + 1;
    weft_watch_enter(t->num_steps == 0 ? WEFT_WATCH_FIRST_STEP : WEFT_WATCH_STEP, step);
    *out = (weft_step_result){
        .step = step,
        .lr = weft_ramp_lr(&t->config.train, &t->lr, weft_trainer_update_number(t, step))};
    double start = weft_now_us();
    choose_program(t);
    WEFT_TRY(weft_batches_read(t, &t->input.data.splits[0], WEFT_BATCHES_TRAIN,
                               (uint64_t)t->consumed_tokens));
    WEFT_TRY(weft_moe_selection_before(&t->moe, t->model));
    weft_trainer_note_choice(t, out);
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
    const int64_t tokens = weft_trainer_tokens(t);
    out->bad.steps = t->faults.bad_steps;
    out->bad.rewinds = outcome == WEFT_STEP_REWINDS;
    if (out->bad.rewinds) {
        t->consumed_tokens += tokens;
        return WEFT_OK;
    }
    out->bad.skips_batch = outcome == WEFT_STEP_SKIPPED;
    t->faults.skipped_batches += out->bad.skips_batch;
    out->grad_norm = out->bad.skips_batch ? NAN : weft_optimizer_grad_norm(t->optimizer);
    weft_trainer_note_norm(t, out);
    out->scale.value = t->running.scale.scale;
    out->scale.skipped_steps = weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
    out->scale.skipped = out->scale.skipped_steps > t->running.scale.skipped_steps;
    t->step = step;
    t->consumed_tokens += tokens;
    WEFT_TRY(weft_trainer_result(t, (weft_now_us() - start) / 1e3, out));
    weft_moe_selection_after(&t->moe, out->step_ms * (double)t->config.train.global_batch_size /
                                          (double)weft_trainer_samples(t));
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_trainer_check_state(t, !out->scale.skipped && !out->bad.skips_batch));
    WEFT_TRY(weft_trainer_compare_replicas(t, out->stop));
    weft_doing_pass(WEFT_DOING_BEHIND);
    return weft_peak_look(&t->measured.peak, out->step_ms);
}

static weft_status fill(weft_trainer *t, const char *checkpoint, weft_lane *lane)
{
    if (!checkpoint)
        return weft_optimizer_initialize(t->optimizer, lane, (uint64_t)t->config.train.seed);
    return t->evaluates
               ? weft_checkpoint_load_weights(checkpoint, weft_model_parameters(t->model), lane)
               : weft_checkpoint_load(checkpoint, weft_model_parameters(t->model), t->optimizer,
                                      lane);
}

weft_status weft_trainer_start(weft_trainer *t, const char *checkpoint)
{
    weft_lane *lane = t->lanes[WEFT_LANE_COMPUTE];
    weft_checkpoint_info info = {0};
    weft_status status = WEFT_OK;
    weft_watch_enter(WEFT_WATCH_LOAD, 0);
    if (checkpoint && weft_comm_rank(t->world) == 0)
        status = weft_checkpoint_read_info(checkpoint, &info);
    WEFT_TRY(weft_comm_agree(t->world, status));
    WEFT_TRY(weft_comm_broadcast_host(t->world, &info, sizeof info, 0));
    t->faults.hashed_step = 0;
    WEFT_TRY(fill(t, checkpoint, lane));
    WEFT_TRY(weft_lane_sync(lane));
    WEFT_TRY(weft_model_reset_tier(t->model));
    t->step = info.step;
    if (t->evaluates || !checkpoint)
        return WEFT_OK;
    t->consumed_tokens = info.consumed_tokens;
    t->faults.skipped_batches = info.skipped_batches;
    t->faults.bad_steps = info.bad_steps;
    *weft_optimizer_loss_mean(t->optimizer) = info.loss_mean;
    weft_loss_scale *scale = weft_optimizer_loss_scale(t->optimizer);
    if (weft_loss_scale_is_on(scale) && weft_loss_scale_is_on(&info.loss_scale))
        *scale = info.loss_scale;
    return WEFT_OK;
}

weft_status weft_trainer_rewind(weft_trainer *t, const char *checkpoint)
{
    const int64_t behind = t->consumed_tokens, bad_steps = t->faults.bad_steps;
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model));
    WEFT_TRY(weft_trainer_start(t, checkpoint));
    t->consumed_tokens = behind;
    t->faults.bad_steps = bad_steps;
    return WEFT_OK;
}

/* keep NULL: saves; else begins an asynchronous save. dir NULL: into nodes' memory, the texts into
 * rank 0's. */
static weft_status save(weft_trainer *t, const char *dir, const weft_checkpoint_keep *keep)
{
    const char *config = NULL, *tokenizer = NULL;
    weft_arena arena = {0};
    weft_config chosen = t->config;
    weft_parameters *parameters = weft_model_parameters(t->model);
    const weft_checkpoint_info info = {.step = t->step,
                                       .consumed_tokens = t->consumed_tokens,
                                       .seed = (uint64_t)t->config.train.seed,
                                       .bad_steps = t->faults.bad_steps,
                                       .skipped_batches = t->faults.skipped_batches,
                                       .loss_mean = *weft_optimizer_loss_mean(t->optimizer),
                                       .loss_scale = *weft_optimizer_loss_scale(t->optimizer)};
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model)); /* lanes are idle by now; a file may not be */
    weft_moe_selection_keep(&t->moe, &chosen.schedule);
    weft_mesh_keep(&t->mesh_choice, &t->groups.mesh, &chosen.parallel);
    const bool has_texts = dir || weft_comm_rank(t->world) == 0;
    weft_status status = has_texts ? weft_config_text(&chosen, &arena, &config) : WEFT_OK;
    if (status == WEFT_OK && has_texts)
        status = weft_setup_tokenizer_text(&t->config, &arena, &tokenizer);
    status = weft_comm_agree(t->world, status);
    if (status == WEFT_OK && !dir)
        status = weft_copies_begin(t->writer, &info, parameters, t->optimizer, config, tokenizer);
    else if (status == WEFT_OK && keep)
        status = weft_checkpoint_begin(t->writer, dir, &info, keep, parameters, t->optimizer,
                                       config, tokenizer);
    else if (status == WEFT_OK)
        status = weft_checkpoint_save(dir, &info, parameters, t->optimizer, config, tokenizer);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_trainer_save(weft_trainer *t, const char *dir)
{
    return save(t, dir, NULL);
}

weft_status weft_trainer_begin_save(weft_trainer *t, const char *dir,
                                    const weft_checkpoint_keep *keep)
{
    return save(t, dir, keep);
}
