#include "launcher/training/trainer.h"

#include "launcher/training/setup.h"
#include "launcher/training/timeline.h"
#include "parallel/checkpoint.h"

weft_status weft_trainer_start(weft_trainer *t, const char *checkpoint)
{
    weft_lane *lane = t->lanes[WEFT_LANE_COMPUTE];
    if (!checkpoint) {
        WEFT_TRY(weft_optimizer_initialize(t->optimizer, lane, (uint64_t)t->config.train.seed));
        return weft_lane_sync(lane);
    }
    weft_checkpoint_info info = {0};
    weft_status status = WEFT_OK;
    if (weft_comm_rank(t->world) == 0)
        status = weft_checkpoint_read_info(checkpoint, &info);
    WEFT_TRY(weft_comm_agree(t->world, status));
    WEFT_TRY(weft_comm_broadcast_host(t->world, &info, sizeof info, 0));
    t->step = info.step;
    if (t->evaluates)
        return weft_checkpoint_load_weights(checkpoint, weft_model_parameters(t->model), lane);
    WEFT_TRY(weft_checkpoint_load(checkpoint, weft_model_parameters(t->model), t->optimizer, lane));
    t->consumed_tokens = info.consumed_tokens;
    weft_loss_scale *scale = weft_optimizer_loss_scale(t->optimizer);
    if (weft_loss_scale_is_on(scale) && weft_loss_scale_is_on(&info.loss_scale))
        *scale = info.loss_scale;
    return weft_lane_sync(lane);
}

weft_status weft_trainer_save(weft_trainer *t, const char *dir)
{
    const char *config, *tokenizer = NULL;
    weft_arena arena = {0};
    weft_config chosen = t->config;
    weft_moe_selection_keep(&t->moe, &chosen.schedule);
    weft_context_keep(&t->context, &t->groups.mesh, &chosen.parallel);
    weft_status status = weft_config_text(&chosen, &arena, &config);
    if (status == WEFT_OK)
        status = weft_setup_tokenizer_text(&t->config, &arena, &tokenizer);
    status = weft_comm_agree(t->world, status);
    if (status == WEFT_OK)
        status = weft_checkpoint_save(
            dir,
            &(weft_checkpoint_info){.step = t->step,
                                    .consumed_tokens = t->consumed_tokens,
                                    .seed = (uint64_t)t->config.train.seed,
                                    .loss_scale = *weft_optimizer_loss_scale(t->optimizer)},
            weft_model_parameters(t->model), t->optimizer, config, tokenizer);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_trainer_write_trace(weft_trainer *t, const char *dir)
{
    const weft_int_list *ranks = &t->config.log.trace_ranks;
    weft_status status = weft_timeline_collect(t->trace, t->world, ranks);
    if (status == WEFT_OK && weft_comm_rank(t->world) == 0)
        status = weft_timeline_write(t->trace, &t->groups.mesh, ranks, t->step, dir);
    return weft_comm_agree(t->world, status);
}
