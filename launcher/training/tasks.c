#include <string.h>

#include "launcher/training/batch_looks.h"
#include "schedule/operands.h"

/* The boundary tensor of an operand; NULL: the task has no such operand. */
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

/* The pass of the model whose stash is in a slot. */
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

/* The event of a bucket's own point; where updates are reordered, of the bucket that is next. */
static weft_event *point_of(void *context, const weft_task *task, int point)
{
    (void)task;
    const weft_trainer *t = context;
    if (point < WEFT_POINT_OWN)
        return t->points[point];
    const int index = point - WEFT_POINT_OWN;
    return weft_model_landed(t->model, t->executor.waiting->kind == WEFT_TASK_NORM
                                           ? weft_model_turn(t->model, index, WEFT_TIER_TURN_LANDED)
                                           : index);
}

static weft_status run_backward(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = context;
    if (task->kind == WEFT_TASK_RECOMPUTE)
        return weft_model_recompute(t->model, pass_of(t, task), lane);
    bool has_points = t->has_points[task - t->program.tasks];
    weft_tensor dy, dx;
    WEFT_TRY(weft_model_backward(
        t->model, pass_of(t, task), lane, boundary(t, task, WEFT_OPERAND_DY, &dy),
        boundary(t, task, WEFT_OPERAND_DX, &dx), has_points ? t->points : NULL));
    return t->looks.on ? weft_trainer_look_at_batch(t, task->micro_batch, lane) : WEFT_OK;
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

weft_status weft_trainer_bind_tasks(weft_trainer *t)
{
    weft_executor *ex = &t->executor;
    memcpy(ex->lanes, t->lanes, sizeof ex->lanes);
    ex->run[WEFT_TASK_FORWARD] = run_forward;
    ex->run[WEFT_TASK_BACKWARD] = ex->run[WEFT_TASK_RECOMPUTE] = run_backward;
    ex->run[WEFT_TASK_SEND] = run_send;
    ex->run[WEFT_TASK_RECEIVE] = run_receive;
    ex->point = point_of;
    ex->context = t;
    return weft_trainer_bind_update_tasks(t);
}
