#include <stdlib.h>
#include <string.h>

#include "launcher/planning/ramp.h"
#include "launcher/planning/step.h"
#include "launcher/training/state.h"
#include "schedule/operands.h"

/* What the host does for offloaded buckets while a backward is enqueued. */
enum { AHEAD = 1 << WEFT_LANE_HOST | 1 << WEFT_LANE_TO_DEVICE | 1 << WEFT_LANE_FILE };

static weft_status run_sum(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_optimizer_sum(
        t->optimizer, task->flow == WEFT_FLOW_TIED ? WEFT_BUCKET_SUM_TIED : WEFT_BUCKET_SUM_TENSOR,
        lane);
}

static const weft_bucket_shape *shapes_of(const weft_trainer *t)
{
    return t->runs.train.shape.buckets[t->groups.coords.at[WEFT_AXIS_PP]].shapes;
}

static bool is_offloaded(const weft_trainer *t, int bucket)
{
    return bucket >= 0 && weft_bucket_is_offloaded(&shapes_of(t)[bucket]);
}

static int index_of(const weft_trainer *t, int bucket)
{
    return shapes_of(t)[bucket].index;
}

/* An expert that no micro-batch of the step chose has a gradient of zero. */
static weft_status clear_absent(const weft_trainer *t, int bucket, weft_lane *lane)
{
    return weft_model_has_gradient(t->model, index_of(t, bucket))
               ? WEFT_OK
               : weft_optimizer_clear(t->optimizer, bucket, lane);
}

/* The bucket whose norm or update a task does. Experts of one owner take turns: as their gradients
 * land, or, once the norm is known, in the order in which the next forward wants them. Several
 * owners all go by the list, as they reduce and gather. */
static int taken_by(const weft_trainer *t, weft_task_kind kind, int bucket)
{
    const weft_buckets *buckets = &t->runs.train.shape.buckets[t->groups.coords.at[WEFT_AXIS_PP]];
    if (!is_offloaded(t, bucket))
        return bucket;
    const weft_bucket_shape *shape = &buckets->shapes[bucket];
    const bool by_landing = kind == WEFT_TASK_NORM || shape->at_once;
    if (by_landing ? weft_bucket_reduces(shape) : weft_bucket_gathers(shape))
        return bucket;
    const int index = weft_model_turn(t->model, shape->index,
                                      by_landing ? WEFT_TIER_TURN_LANDED : WEFT_TIER_TURN_WANTED);
    const int away = abs(index - buckets->shapes[bucket].index);
    const int above = bucket + away; /* a layer's lie together, in rising or falling order */
    return above < buckets->count && is_offloaded(t, above) && index_of(t, above) == index
               ? above
               : bucket - away;
}

/* Whether the update of an expert without a gradient is put off until its record is read: it is in
 * a file, and nobody else reduces its gradient. */
static bool owes(const weft_trainer *t, int bucket)
{
    return is_offloaded(t, bucket) && !weft_model_has_gradient(t->model, index_of(t, bucket)) &&
           weft_optimizer_may_owe(t->optimizer, bucket, t->running.step);
}

/* What a task waits for at a point, or of the step before; where updates are reordered, of the
 * bucket whose turn it is. A reduction clears the gradient of an expert without rows, which the
 * step before may still read. A step writes weights that a refresh may still read: one of an expert
 * that has had no rows since, so that nobody computes with what comes of it; the wait keeps lanes
 * off each other's memory. */
static weft_event *event_of(void *context, const weft_task *waiting, weft_wait wait)
{
    const weft_trainer *t = context;
    if (wait.point >= 0)
        return t->runs.points[wait.point];
    const int bucket = waiting->kind == WEFT_TASK_NORM || waiting->kind == WEFT_TASK_STEP
                           ? taken_by(t, waiting->kind, waiting->bucket)
                           : waiting->bucket;
    if (wait.point == WEFT_POINT_LANDED)
        return weft_model_landed(t->model, index_of(t, bucket));
    return waiting->kind == WEFT_TASK_READ && owes(t, bucket)
               ? NULL
               : weft_model_stepped(t->model, index_of(t, bucket));
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    if (is_offloaded(t, task->bucket))
        WEFT_TRY(clear_absent(t, task->bucket, lane));
    return weft_optimizer_reduce(t->optimizer, task->bucket, lane);
}

static weft_status run_norm(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    if (task->bucket < 0)
        return weft_optimizer_norm(t->optimizer, lane, &weft_model_metrics(t->model)->loss_sum);
    const int bucket = taken_by(t, task->kind, task->bucket);
    if (owes(t, bucket))
        return weft_optimizer_square_zero(t->optimizer, bucket, lane);
    if (!weft_bucket_reduces(&shapes_of(t)[bucket]))
        WEFT_TRY(clear_absent(t, bucket, lane));
    weft_model_update_expert(t->model, index_of(t, bucket), false);
    return weft_optimizer_square(t->optimizer, bucket, lane);
}

int64_t weft_trainer_update_number(const weft_trainer *t, int64_t step)
{
    return step - weft_optimizer_loss_scale(t->optimizer)->skipped_steps -
           t->faults.skipped_batches;
}

/* What an offloaded bucket's update still has to do on this rank, behind this task: its weights
 * change with the last of step and gather; what the next step waits for is the last of all. */
static weft_status end_update(weft_trainer *t, const weft_task *task, int bucket, weft_lane *lane)
{
    if (!is_offloaded(t, bucket))
        return WEFT_OK;
    const weft_bucket_shape *shape = &shapes_of(t)[bucket];
    const bool gathers = weft_bucket_gathers(shape) && task->kind == WEFT_TASK_STEP,
               refreshes = shape->refreshes && task->kind != WEFT_TASK_UPLOAD;
    if (!gathers && task->kind != WEFT_TASK_UPLOAD)
        weft_model_change(t->model, shape->index);
    return gathers || refreshes ? WEFT_OK : weft_model_end_update(t->model, shape->index, lane);
}

static weft_status run_step(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int64_t update = weft_trainer_update_number(t, t->running.step);
    const double lr = weft_ramp_lr(&t->config.train, &t->lr, update);
    const int bucket = taken_by(t, task->kind, task->bucket);
    if (owes(t, bucket)) {
        weft_optimizer_owe(t->optimizer, bucket, update, lr);
        return end_update(t, task, bucket, lane);
    }
    if (is_offloaded(t, bucket))
        weft_model_update_expert(t->model, index_of(t, bucket), true);
    WEFT_TRY(weft_optimizer_update(t->optimizer, bucket, lane, update, lr));
    return end_update(t, task, bucket, lane);
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    WEFT_TRY(weft_optimizer_gather(t->optimizer, task->bucket, lane));
    return end_update(t, task, task->bucket, lane);
}

static weft_status run_download(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_optimizer_download(t->optimizer, task->bucket, lane);
}

static weft_status run_upload(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    if (task->bucket < 0) /* its waits are all */
        return WEFT_OK;
    if (!is_offloaded(t, task->bucket))
        return weft_optimizer_upload(t->optimizer, task->bucket, lane);
    const int bucket = taken_by(t, task->kind, task->bucket);
    WEFT_TRY(weft_model_refresh(t->model, index_of(t, bucket), lane));
    return end_update(t, task, bucket, lane);
}

static weft_status run_write(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    (void)lane; /* the model's own */
    if (owes(t, task->bucket))
        return WEFT_OK;
    return weft_model_make_room(t->model, index_of(t, task->bucket));
}

static weft_status run_read(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    (void)lane; /* likewise */
    if (owes(t, task->bucket))
        return WEFT_OK;
    return weft_model_read_expert(t->model, index_of(t, task->bucket),
                                  task->flow == WEFT_FLOW_WEIGHT);
}

static int layer_of(void *context, const weft_task *waiting)
{
    const weft_trainer *t = context;
    return shapes_of(t)[waiting->bucket].layer;
}

static void trainer_bind_update_tasks(weft_trainer *t)
{
    weft_executor *ex = &t->executor;
    ex->run[WEFT_TASK_SUM] = run_sum;
    ex->run[WEFT_TASK_REDUCE] = run_reduce;
    ex->run[WEFT_TASK_NORM] = run_norm;
    ex->run[WEFT_TASK_STEP] = run_step;
    ex->run[WEFT_TASK_GATHER] = run_gather;
    ex->run[WEFT_TASK_DOWNLOAD] = run_download;
    ex->run[WEFT_TASK_UPLOAD] = run_upload;
    ex->run[WEFT_TASK_WRITE] = run_write;
    ex->run[WEFT_TASK_READ] = run_read;
    ex->lanes[WEFT_LANE_FILE] = weft_model_file_lane(t->model);
    t->measured.clock.runs = t->config.device.kind == WEFT_DEVICE_KIND_CPU;
    if (!weft_step_drains(&t->config))
        ex->runs_on = WEFT_STEP_RUNS_ON;
    ex->ahead = weft_model_goes_ahead(t->model) ? AHEAD : 0;
    ex->layer_of = layer_of;
}

/* Behind micro-batch m of a step that is run again: on this rank, whose backwards stand on `lane`.
 */
static weft_status look_at_batch(weft_trainer *t, int m, weft_lane *lane)
{
    bool is_bad;
    t->faults.looks.last = m;
    if (t->runs.train.shape.num_chunks > 1 || t->faults.looks.bad >= 0 ||
        ++t->faults.looks.count == t->input.batches.num)
        return WEFT_OK; /* the last one is bad where no other is; its buckets may be summed by now
                         */
    WEFT_TRY(weft_lane_sync(lane));
    if (t->lanes[WEFT_LANE_REDUCE])
        WEFT_TRY(weft_lane_sync(t->lanes[WEFT_LANE_REDUCE]));
    WEFT_TRY(weft_optimizer_look(t->optimizer, lane, &is_bad));
    if (is_bad)
        t->faults.looks.bad = m;
    return WEFT_OK;
}

/* Of the trainer's slots; -1: the task has no such operand. */
static int slot_of(const weft_trainer *t, const weft_task *task, weft_operand_name name)
{
    const int slot = weft_task_slot(task, name), *slots = t->running.program->slots;
    return slots && slot >= 0 ? slots[slot] : slot;
}

/* The boundary tensor of an operand; NULL: the task has no such operand. */
static weft_tensor *boundary(const weft_trainer *t, const weft_task *task, weft_operand_name name,
                             weft_tensor *out)
{
    const weft_shape *shape = weft_model_get_shape(t->model);
    const int slot = slot_of(t, task, name);
    if (slot < 0)
        return NULL;
    *out = weft_tensor_2d(t->runs.slots.memory[slot], shape->dtype, weft_shape_boundary_rows(shape),
                          shape->hidden);
    return out;
}

/* The pass of the model whose stash is in a slot. */
static int pass_of(const weft_trainer *t, const weft_task *task)
{
    return t->runs.slots.pass[slot_of(t, task, WEFT_OPERAND_STASH)];
}

int64_t weft_trainer_samples(const weft_trainer *t)
{
    return t->running.batches * t->config.train.micro_batch_size;
}

int64_t weft_trainer_tokens(const weft_trainer *t)
{
    return weft_trainer_samples(t) * t->config.model.seq_length;
}

static weft_micro_batch micro_batch_of(const weft_trainer *t, const weft_task *task)
{
    int m = task->micro_batch;
    weft_micro_batch micro_batch = {
        .step = t->running.step,
        .chunk = task->chunk,
        .first_sample = weft_trainer_micro_batch(t, m) * (uint64_t)t->config.train.micro_batch_size,
        .overwrite = m == t->runs.of_step->first_batch[0][task->chunk],
        .backward_overwrites = m == t->runs.of_step->first_batch[1][task->chunk],
        .loss_scale = (float)(weft_loss_scale_factor(&t->running.scale) / t->running.batches),
        .training = !t->running.eval};
    weft_batches_take(&t->input.batches, m, &micro_batch);
    return micro_batch;
}

/* The forward, and with it the backward right behind it. */
static weft_status run_pair(const weft_trainer *t, const weft_task *forward, weft_lane *lane)
{
    const weft_task *backward = forward + 1;
    const int deferred = slot_of(t, backward, WEFT_OPERAND_DEFERRED);
    weft_tensor x, y, dy, dx;
    const weft_pair_call call = {.deferred = deferred < 0 ? -1 : t->runs.slots.pass[deferred],
                                 .forward_slot = pass_of(t, forward),
                                 .backward_slot = pass_of(t, backward),
                                 .micro_batch = micro_batch_of(t, forward),
                                 .x = boundary(t, forward, WEFT_OPERAND_X, &x),
                                 .y = boundary(t, forward, WEFT_OPERAND_Y, &y),
                                 .dy = boundary(t, backward, WEFT_OPERAND_DY, &dy),
                                 .dx = boundary(t, backward, WEFT_OPERAND_DX, &dx)};
    return weft_model_pair(t->model, lane, &call);
}

static weft_status run_forward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int layer;
    if (weft_model_goes_on(t->model))
        return weft_model_next(t->model, &layer);
    if (task->flags & WEFT_TASK_PAIRED)
        return run_pair(t, task, lane);
    const weft_micro_batch micro_batch = micro_batch_of(t, task);
    weft_tensor x, y;
    return weft_model_forward(t->model, pass_of(t, task), &micro_batch, lane,
                              boundary(t, task, WEFT_OPERAND_X, &x),
                              boundary(t, task, WEFT_OPERAND_Y, &y));
}

static weft_status open_backward(const weft_trainer *t, const weft_task *task, bool has_points,
                                 weft_lane *lane)
{
    const int pass = pass_of(t, task), slot = slot_of(t, task, WEFT_OPERAND_DEFERRED);
    const int deferred = slot < 0 ? -1 : t->runs.slots.pass[slot];
    weft_tensor dy_memory, dx_memory;
    const weft_tensor *dy = boundary(t, task, WEFT_OPERAND_DY, &dy_memory);
    weft_tensor *dx = boundary(t, task, WEFT_OPERAND_DX, &dx_memory);
    if (task->kind == WEFT_TASK_RECOMPUTE)
        return weft_model_recompute(t->model, pass, lane);
    if (task->flow == WEFT_FLOW_WEIGHT)
        return weft_model_backward_weights(t->model, pass, deferred, lane, has_points);
    if (task->flags & WEFT_TASK_PAIRED) /* enqueued with its pair's forward */
        return WEFT_OK;
    return task->flow == WEFT_FLOW_INPUT
               ? weft_model_backward_input(t->model, pass, deferred, lane, dy, dx)
               : weft_model_backward(t->model, pass, lane, dy, dx, has_points);
}

/* The next part, and the point that it passes. */
static weft_status go_on(weft_trainer *t, bool has_points)
{
    int layer;
    WEFT_TRY(weft_model_next(t->model, &layer));
    t->executor.passed = has_points ? layer : -1;
    return WEFT_OK;
}

static weft_status run_backward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    const weft_trainer_program *program = t->running.program;
    const bool has_points = program->of_task[task - program->program.tasks];
    WEFT_TRY(weft_model_goes_on(t->model) ? go_on(t, has_points)
                                          : open_backward(t, task, has_points, lane));
    const bool ends = task->kind == WEFT_TASK_BACKWARD && task->flow != WEFT_FLOW_INPUT &&
                      !weft_model_goes_on(t->model);
    return ends && t->faults.looks.on ? look_at_batch(t, task->micro_batch, lane) : WEFT_OK;
}

static bool goes_on(void *context, const weft_task *task)
{
    const weft_trainer *t = context;
    const bool is_body = task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD ||
                         task->kind == WEFT_TASK_RECOMPUTE;
    return is_body && weft_model_goes_on(t->model);
}

static weft_status run_send(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_send(t->groups.by_axis[WEFT_AXIS_PP], lane, task->peer, (int)task->flow,
                     t->runs.slots.memory[slot_of(t, task, WEFT_OPERAND_FROM)],
                     weft_model_boundary_bytes(t->model));
}

static weft_status run_receive(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    return weft_recv(t->groups.by_axis[WEFT_AXIS_PP], lane, task->peer, (int)task->flow,
                     t->runs.slots.memory[slot_of(t, task, WEFT_OPERAND_TO)],
                     weft_model_boundary_bytes(t->model));
}

void weft_trainer_bind_tasks(weft_trainer *t)
{
    weft_executor *ex = &t->executor;
    memcpy(ex->lanes, t->lanes, sizeof ex->lanes);
    ex->run[WEFT_TASK_FORWARD] = run_forward;
    ex->run[WEFT_TASK_BACKWARD] = ex->run[WEFT_TASK_RECOMPUTE] = run_backward;
    ex->run[WEFT_TASK_SEND] = run_send;
    ex->run[WEFT_TASK_RECEIVE] = run_receive;
    ex->goes_on = goes_on;
    ex->event = event_of;
    ex->context = t;
    trainer_bind_update_tasks(t);
}

weft_status weft_trainer_run(weft_trainer *t, bool eval, int64_t step)
{
    t->running.eval = eval;
    t->running.step = step;
    t->running.program = eval ? &t->runs.eval : t->runs.of_step;
    t->running.batches = t->running.program->shape.num_micro_batches * t->groups.mesh.dp;
    if (!t->evaluates)
        t->running.scale = *weft_optimizer_loss_scale(t->optimizer);
    weft_model_settle(t->model);
    weft_model_clear_metrics(t->model);
    weft_model_begin_tier(t->model, !eval);
    return weft_step_clock_run(&t->measured.clock, &t->running.program->program, &t->executor);
}
