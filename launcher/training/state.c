#include "launcher/training/trainer.h"

#include "comm/watch/watch.h"
#include "launcher/training/judge.h"
#include "launcher/training/setup.h"
#include "launcher/training/timeline.h"
#include "parallel/checkpoint/checkpoint.h"

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
    t->hashed_step = 0;
    WEFT_TRY(fill(t, checkpoint, lane));
    WEFT_TRY(weft_lane_sync(lane));
    WEFT_TRY(weft_model_reset_tier(t->model));
    t->step = info.step;
    if (t->evaluates || !checkpoint)
        return WEFT_OK;
    t->consumed_tokens = info.consumed_tokens;
    t->skipped_batches = info.skipped_batches;
    t->bad_steps = info.bad_steps;
    *weft_optimizer_loss_mean(t->optimizer) = info.loss_mean;
    weft_loss_scale *scale = weft_optimizer_loss_scale(t->optimizer);
    if (weft_loss_scale_is_on(scale) && weft_loss_scale_is_on(&info.loss_scale))
        *scale = info.loss_scale;
    return WEFT_OK;
}

weft_status weft_trainer_rewind(weft_trainer *t, const char *checkpoint)
{
    const int64_t behind = t->consumed_tokens, bad_steps = t->bad_steps;
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model));
    WEFT_TRY(weft_trainer_start(t, checkpoint));
    t->consumed_tokens = behind;
    t->bad_steps = bad_steps;
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
                                       .bad_steps = t->bad_steps,
                                       .skipped_batches = t->skipped_batches,
                                       .loss_mean = *weft_optimizer_loss_mean(t->optimizer),
                                       .loss_scale = *weft_optimizer_loss_scale(t->optimizer)};
    WEFT_TRY(weft_executor_drain(&t->executor));
    WEFT_TRY(weft_model_drain_tier(t->model)); /* lanes are idle by now; a file may not be */
    weft_moe_selection_keep(&t->moe, &chosen.schedule);
    weft_context_keep(&t->context, &t->groups.mesh, &chosen.parallel);
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

weft_status weft_trainer_collect_trace(weft_trainer *t)
{
    WEFT_TRY(weft_executor_drain(&t->executor)); /* lanes that run on stamp their slices, too */
    WEFT_TRY(weft_model_drain_tier(t->model));
    return weft_comm_agree(t->world,
                           weft_timeline_collect(t->trace, t->world, &t->config.log.trace_ranks));
}

weft_status weft_trainer_write_trace(const weft_trainer *t, const char *dir)
{
    const weft_log_options *log = &t->config.log;
    return weft_timeline_write(t->trace, &t->groups.mesh, &log->trace_ranks, log->trace_step, dir);
}
