#include "launcher/training/state.h"

#include <string.h>

#include "schedule/operands.h"

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

/* The model's pass whose stash a slot is. */
static int pass_of(const weft_trainer *t, const weft_task *task)
{
    return t->slot_pass[weft_task_slot(task, WEFT_OPERAND_STASH)];
}

int weft_trainer_num_batches(const weft_trainer *t)
{
    return (int)(t->config.train.global_batch_size / t->config.train.micro_batch_size);
}

static weft_status run_forward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int m = task->micro_batch;
    weft_micro_batch micro_batch = {
        .step = t->running_step,
        .first_sample = weft_trainer_micro_batch(t, m) * (uint64_t)t->config.train.micro_batch_size,
        .overwrite = m == t->first_batch[0][task->chunk],
        .backward_overwrites = m == t->first_batch[1][task->chunk],
        .loss_scale = (float)(weft_loss_scale_factor(&t->running_scale) / t->running_batches),
        .training = !t->running_eval};
    weft_batches_take(&t->batches, m, &micro_batch);
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
    if (task->kind == WEFT_TASK_RECOMPUTE)
        return weft_model_recompute(t->model, pass_of(t, task), lane);
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

int64_t weft_trainer_update_number(const weft_trainer *t, int64_t step)
{
    return step - weft_optimizer_loss_scale(t->optimizer)->skipped_steps;
}

static weft_status run_step(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    int64_t update = weft_trainer_update_number(t, t->running_step);
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
    ex->run[WEFT_TASK_BACKWARD] = ex->run[WEFT_TASK_RECOMPUTE] = run_backward;
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
