#include "launcher/training/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "launcher/process/stop.h"
#include "launcher/training/setup.h"
#include "launcher/training/timeline.h"
#include "parallel/checkpoint.h"
#include "schedule/operands.h"

/* --- tasks --------------------------------------------------------------------------------- */

/* What an operand travels in between stages; NULL: the task has no such operand. */
static weft_tensor *boundary(const weft_trainer *t, const weft_task *task, weft_operand_name name,
                             weft_tensor *out)
{
    const weft_shape *shape = weft_model_get_shape(t->model);
    int slot = weft_task_slot(task, name);
    if (slot < 0)
        return NULL;
    *out = weft_tensor_2d(t->slot_memory[slot], shape->dtype, weft_shape_boundary_rows(shape),
                          shape->hidden);
    return out;
}

static int stage_of(const weft_trainer *t)
{
    return t->groups.coords.at[WEFT_AXIS_PP];
}

/* The model's pass whose stash a slot is. */
static int pass_of(const weft_trainer *t, const weft_task *task)
{
    return t->slot_pass[weft_task_slot(task, WEFT_OPERAND_STASH)];
}

/* Rank-local micro-batch m is number m * dp + dp_rank of the global batch. */
static uint64_t global_micro_batch(const weft_trainer *t, int m)
{
    return (uint64_t)m * (uint64_t)t->groups.mesh.dp + (uint64_t)t->groups.coords.at[WEFT_AXIS_DP];
}

static weft_status run_forward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int m = task->micro_batch;
    size_t at = (size_t)m * t->batch_tokens;
    weft_micro_batch micro_batch = {
        .tokens = t->tokens + at,
        .labels = t->labels + at,
        .step = t->running_step,
        .first_sample = global_micro_batch(t, m) * (uint64_t)t->config.train.micro_batch_size,
        .overwrite = m == t->first_batch[0][task->chunk],
        .backward_overwrites = m == t->first_batch[1][task->chunk],
        .loss_scale = (float)(weft_loss_scale_factor(&t->running_scale) / t->running_batches),
        .training = !t->running_eval};
    weft_tensor x, y;
    return weft_model_forward(t->model, pass_of(t, task), &micro_batch, lane,
                              boundary(t, task, WEFT_OPERAND_X, &x),
                              boundary(t, task, WEFT_OPERAND_Y, &y));
}

static weft_event *point_of(void *context, const weft_task *task, int point)
{
    (void)task;
    const weft_trainer *t = context;
    return t->points[point];
}

static weft_status run_backward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    bool has_points = t->has_points[task - t->program.tasks];
    weft_tensor dy, dx;
    return weft_model_backward(
        t->model, pass_of(t, task), lane, boundary(t, task, WEFT_OPERAND_DY, &dy),
        boundary(t, task, WEFT_OPERAND_DX, &dx), has_points ? t->points : NULL);
}

static weft_status run_send(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_send(t->groups.by_axis[WEFT_AXIS_PP], lane, task->peer, (int)task->flow,
                     t->slot_memory[weft_task_slot(task, WEFT_OPERAND_FROM)],
                     weft_model_boundary_bytes(t->model));
}

static weft_status run_receive(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_recv(t->groups.by_axis[WEFT_AXIS_PP], lane, task->peer, (int)task->flow,
                     t->slot_memory[weft_task_slot(task, WEFT_OPERAND_TO)],
                     weft_model_boundary_bytes(t->model));
}

static weft_status run_sum(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_optimizer_sum(
        t->optimizer, task->flow == WEFT_FLOW_TIED ? WEFT_BUCKET_SUM_TIED : WEFT_BUCKET_SUM_TENSOR,
        lane);
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_optimizer_reduce(t->optimizer, task->bucket, lane);
}

static weft_status run_norm(void *context, const weft_task *task, weft_lane *lane)
{
    (void)task;
    weft_trainer *t = context;
    return weft_optimizer_norm(t->optimizer, lane, &weft_model_metrics(t->model)->loss_sum);
}

/* The number that AdamW and the learning rate know a step by: skipped ones do not count. */
static int64_t update_number(const weft_trainer *t, int64_t step)
{
    return step - weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
}

static weft_status run_step(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int64_t update = update_number(t, t->running_step);
    return weft_optimizer_update(t->optimizer, task->bucket, lane, update,
                                 weft_lr_at(&t->lr, update));
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_optimizer_gather(t->optimizer, task->bucket, lane);
}

void weft_trainer_bind_tasks(weft_trainer *t)
{
    weft_executor *ex = &t->executor;
    memcpy(ex->lanes, t->lanes, sizeof ex->lanes);
    ex->run[WEFT_TASK_FORWARD] = run_forward;
    ex->run[WEFT_TASK_BACKWARD] = run_backward;
    ex->run[WEFT_TASK_SEND] = run_send;
    ex->run[WEFT_TASK_RECEIVE] = run_receive;
    ex->run[WEFT_TASK_SUM] = run_sum;
    ex->run[WEFT_TASK_REDUCE] = run_reduce;
    ex->run[WEFT_TASK_NORM] = run_norm;
    ex->run[WEFT_TASK_STEP] = run_step;
    ex->run[WEFT_TASK_GATHER] = run_gather;
    ex->point = point_of;
    ex->context = t;
}

/* --- steps --------------------------------------------------------------------------------- */

/* Reads this rank's micro-batches of the global batch that starts at `first_sample`. Every rank
 * finds its samples from the number alone. Token t = s * B + b. */
static weft_status read_batch(weft_trainer *t, const weft_split *split, bool shuffle,
                              uint64_t first_sample)
{
    size_t seq = (size_t)t->config.model.seq_length;
    size_t batch = (size_t)t->config.train.micro_batch_size;
    int stage = stage_of(t);
    if (stage > 0 && stage < t->groups.mesh.pp - 1)
        return WEFT_OK;
    int32_t *row = t->tokens + (size_t)t->num_batches * t->batch_tokens; /* 2 * seq of scratch */
    for (int m = 0; m < t->num_batches; m++)
        for (size_t b = 0; b < batch; b++) {
            uint64_t number = first_sample + global_micro_batch(t, m) * batch + b;
            WEFT_TRY(weft_split_read(t->dataset, split, (uint64_t)t->config.train.seed, shuffle,
                                     number, row, row + seq));
            size_t at = (size_t)m * t->batch_tokens + b;
            for (size_t s = 0; s < seq; s++) {
                t->tokens[at + s * batch] = row[s];
                t->labels[at + s * batch] = row[seq + s];
            }
        }
    return WEFT_OK;
}

static int batches_of(const weft_trainer *t)
{
    return (int)(t->config.train.global_batch_size / t->config.train.micro_batch_size);
}

/* Runs the training or the evaluation program once. */
static weft_status run(weft_trainer *t, bool eval, int64_t step)
{
    t->running_eval = eval;
    t->running_step = step;
    t->running_batches = batches_of(t);
    if (!t->evaluates)
        t->running_scale = *weft_optimizer_loss_scale(t->optimizer);
    weft_model_clear_metrics(t->model);
    return weft_program_run(eval ? &t->eval_program : &t->program, &t->executor);
}

/* Sums and maxima over the world, in fixed order of fields. */
static weft_status reduce_result(weft_trainer *t, double step_ms, weft_step_result *out)
{
    const weft_metrics *m = weft_model_metrics(t->model);
    weft_device_stats stats;
    weft_device_get_stats(t->device, &stats);
    const weft_metric_list *list = weft_model_metric_list(t->model);
    const weft_metric *own = weft_model_own_metrics(t->model);
    double sums[5 + 2 * WEFT_MAX_METRICS] = {m->loss_sum, m->aux_loss, m->load_sum, m->load_count,
                                             m->dropped};
    bool counts = own && t->groups.coords.at[WEFT_AXIS_TP] == 0;
    for (int i = 0; i < list->count && counts; i++) {
        sums[5 + 2 * i] = own[i].sum;
        sums[6 + 2 * i] = own[i].count;
    }
    double most[3] = {step_ms, (double)stats.bytes_peak, weft_stop_asked()};
    WEFT_TRY(weft_comm_all_reduce_host(t->world, sums, 5 + 2 * (size_t)list->count, WEFT_F64,
                                       WEFT_REDUCE_SUM));
    WEFT_TRY(weft_comm_all_reduce_host(t->world, most, 3, WEFT_F64, WEFT_REDUCE_MAX));
    const weft_train_options *train = &t->config.train;
    out->tokens = (double)(train->global_batch_size * t->config.model.seq_length);
    out->loss = sums[0] / out->tokens;
    out->aux_loss = sums[1] / batches_of(t);
    out->expert_load = sums[3] > 0 ? sums[2] / sums[3] : 0;
    out->dropped_tokens = sums[4];
    out->own = list;
    for (int i = 0; i < list->count; i++)
        out->own_values[i] = list->rows[i].kind == WEFT_METRIC_SUM
                                 ? sums[5 + 2 * i]
                                 : sums[5 + 2 * i] / sums[6 + 2 * i];
    out->step_ms = most[0];
    out->tokens_per_s = out->tokens / (out->step_ms / 1e3);
    out->device_bytes_peak = most[1];
    out->stop = most[2] != 0;
    return WEFT_OK;
}

static void note_peak(weft_trainer *t, weft_step_result *out)
{
    double flops = t->flops_per_sample * (double)t->config.train.global_batch_size;
    out->mfu = weft_peak_share(&t->peak, flops / (out->step_ms / 1e3 * t->groups.mesh.world));
    out->peak_flops = t->peak.flops;
    out->flops_per_token = flops / out->tokens;
    if (t->told_peak != t->peak.flops)
        out->peak_from = weft_peak_source_text(t->peak.source);
    t->told_peak = t->peak.flops;
}

/* An emulated accelerator that computes more slowly than its pace is none. Said once. */
static void note_late(weft_trainer *t, double step_ms)
{
    const double told_share = 0.02;
    double late_ms = 1e3 * weft_device_take_late(t->device);
    if (t->num_steps++ == 0 || t->told_late || late_ms <= told_share * step_ms)
        return;
    weft_log(WEFT_LOG_WARN,
             "step %lld: computing took %.3g of %.3g ms longer than device.pace %g allows: the "
             "times are this machine's; lower the pace",
             (long long)t->step, late_ms, step_ms, t->config.device.pace);
    t->told_late = true;
}

static void note_moe(weft_trainer *t, weft_step_result *out)
{
    if (!t->moe.travels)
        return;
    out->moe = t->moe.options;
    out->moe.pipeline = weft_model_moe_pipeline(t->model);
    if (!t->moe.told && t->moe.reason[0])
        out->moe_choice = t->moe.reason;
    weft_moe_selection_tell(&t->moe);
}

static void set_trace(weft_trainer *t, weft_trace *trace)
{
    t->executor.trace = trace;
    weft_model_set_trace(t->model, trace, weft_comm_rank(t->world));
}

weft_status weft_trainer_step(weft_trainer *t, weft_step_result *out)
{
    int64_t step = t->step + 1;
    *out = (weft_step_result){.step = step, .lr = weft_lr_at(&t->lr, update_number(t, step))};
    double start = weft_now_us();
    WEFT_TRY(read_batch(t, &t->splits[0], true, (uint64_t)t->consumed_samples));
    WEFT_TRY(weft_moe_selection_before(&t->moe, t->model));
    note_moe(t, out);
    bool traced = step == t->config.log.trace_step;
    if (traced) {
        WEFT_TRY(weft_comm_barrier(t->world));
        weft_trace_set_origin(t->trace, weft_now_us());
        if (weft_timeline_has(&t->config.log.trace_ranks, weft_comm_rank(t->world)))
            set_trace(t, t->trace);
    }
    weft_status status = run(t, false, step);
    set_trace(t, NULL);
    if (status != WEFT_OK)
        return weft_error_context(status, "step %lld", (long long)step);
    out->grad_norm = weft_optimizer_grad_norm(t->optimizer);
    out->loss_scale = t->running_scale.scale;
    out->skipped_steps = weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
    out->skipped = out->skipped_steps > t->running_scale.skipped_steps;
    t->step = step;
    t->consumed_samples += t->config.train.global_batch_size;
    WEFT_TRY(reduce_result(t, (weft_now_us() - start) / 1e3, out));
    note_peak(t, out);
    note_late(t, out->step_ms);
    weft_moe_selection_after(&t->moe, out->step_ms);
    return weft_peak_look(&t->peak, out->step_ms);
}

weft_status weft_trainer_evaluate(weft_trainer *t, weft_split_kind split, weft_evaluation *out)
{
    static const char *const names[] = {"training", "validation", "test"};
    double loss = 0;
    weft_step_result result;
    int64_t batch = t->config.train.global_batch_size;
    for (int64_t i = 0; i < t->config.train.eval_iters; i++) {
        WEFT_TRY(read_batch(t, &t->splits[split], false, (uint64_t)(i * batch)));
        WEFT_TRY(run(t, true, t->step));
        WEFT_TRY(reduce_result(t, 1, &result));
        loss += result.loss;
    }
    loss /= (double)t->config.train.eval_iters;
    if (!isfinite(loss))
        return WEFT_ERROR(WEFT_DIVERGED, "step %lld: %s loss is %g", (long long)t->step,
                          names[split], loss);
    *out = (weft_evaluation){loss, result.tokens * (double)t->config.train.eval_iters};
    return WEFT_OK;
}

/* --- state --------------------------------------------------------------------------------- */

weft_status weft_trainer_start(weft_trainer *t, const char *checkpoint)
{
    weft_lane *lane = t->lanes[WEFT_LANE_COMPUTE];
    if (!checkpoint) {
        WEFT_TRY(weft_optimizer_initialize(t->optimizer, lane, (uint64_t)t->config.train.seed));
        return weft_lane_sync(lane);
    }
    weft_checkpoint_info info;
    weft_status status = weft_checkpoint_read_info(checkpoint, &info);
    WEFT_TRY(weft_comm_agree(t->world, status));
    t->step = info.step;
    if (t->evaluates)
        return weft_checkpoint_load_weights(checkpoint, weft_model_parameters(t->model), lane);
    WEFT_TRY(weft_checkpoint_load(checkpoint, weft_model_parameters(t->model), t->optimizer, lane));
    t->consumed_samples = info.consumed_samples;
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
    weft_status status = weft_config_text(&chosen, &arena, &config);
    if (status == WEFT_OK)
        status = weft_setup_tokenizer_text(&t->config, &arena, &tokenizer);
    status = weft_comm_agree(t->world, status);
    if (status == WEFT_OK)
        status = weft_checkpoint_save(
            dir,
            &(weft_checkpoint_info){.step = t->step,
                                    .consumed_samples = t->consumed_samples,
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
