/* The other tasks: packing, sending and rounding rows. */
#include "core/device/device.h"
#include "layers/context/work.h"

void *weft_context_slot(const weft_context_work *w, const weft_task *task, weft_operand_name name)
{
    const int slot = weft_task_slot(task, name);
    return slot < 0 ? NULL : w->memory[slot];
}

void *weft_context_at(const void *data, size_t elements, weft_dtype dtype)
{
    return (char *)data + elements * weft_dtype_bytes(dtype);
}

/* --- packing ------------------------------------------------------------------------------- */

/* Copies strided rows of `count` elements. */
static weft_status move_rows(weft_lane *lane, size_t rows, size_t count, weft_dtype from_dtype,
                             const void *from, size_t from_stride, weft_dtype to_dtype, void *to,
                             size_t to_stride)
{
    if (rows > 1 && from_stride == count && to_stride == count) {
        count *= rows;
        rows = 0;
    }
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = from_dtype,
                                      .to_dtype = to_dtype, .from = from, .to = to, .rows = rows,
                                      .from_stride = from_stride, .to_stride = to_stride));
}

/* Copies keys and values out of packed rows, where they follow a group's queries, or back. */
static weft_status move_keys(const weft_context_work *w, weft_lane *lane, size_t rows,
                             weft_dtype from_dtype, const void *from, bool from_packed,
                             weft_dtype to_dtype, void *to)
{
    const weft_context_sizes *z = &w->sizes;
    const size_t queries = z->in_group * z->head_dim, pair = 2 * z->head_dim;
    const size_t apart = queries + pair;
    return move_rows(lane, rows * z->groups, pair, from_dtype,
                     from_packed ? from : weft_context_at(from, queries, from_dtype),
                     from_packed ? pair : apart, to_dtype,
                     from_packed ? weft_context_at(to, queries, to_dtype) : to,
                     from_packed ? apart : pair);
}

/* Turns rows [rows, width] into `inner` blocks of rows [rows, width / inner], or back. */
static weft_status deal_heads(const weft_context_work *w, weft_lane *lane, size_t width,
                              const void *from, void *to, bool back)
{
    const size_t rows = w->call->shape.rows, inner = (size_t)w->runtime->plan.inner;
    const size_t part = width / inner;
    const weft_dtype dtype = w->call->shape.dtype;
    for (size_t i = 0; i < inner; i++)
        WEFT_TRY(move_rows(lane, rows, part, dtype,
                           weft_context_at(from, back ? i * rows * part : i * part, dtype),
                           back ? part : width, dtype,
                           weft_context_at(to, back ? i * part : i * rows * part, dtype),
                           back ? width : part));
    return WEFT_OK;
}

/* The buffer that a rank sends to its neighbours, with all_gather to all ranks. */
static weft_status run_permute(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_call *c = w->call;
    void *to = weft_context_slot(w, task, WEFT_OPERAND_TO);
    if (task->flow == WEFT_FLOW_KEYS) {
        const void *heads = weft_context_slot(w, task, WEFT_OPERAND_FROM);
        return move_keys(w, lane, w->sizes.rows, c->shape.dtype, heads ? heads : c->qkv, false,
                         c->shape.dtype, to);
    }
    if (!weft_context_exchanges(&w->runtime->plan))
        return move_keys(w, lane, w->sizes.rows, c->shape.dtype, c->qkv, false, c->shape.dtype, to);
    return w->backward ? deal_heads(w, lane, w->sizes.width_out, c->dout, to, false)
                       : deal_heads(w, lane, w->sizes.width_qkv, c->qkv, to, false);
}

/* --- travel -------------------------------------------------------------------------------- */

/* An all-to-all among the `inner` neighbours; other ranks of the group get 0 bytes. */
static weft_status exchange(const weft_context_work *w, weft_lane *lane, size_t width,
                            const void *from, void *to)
{
    weft_context_runtime *r = w->runtime;
    const int inner = r->plan.inner, first = weft_comm_rank(r->cp) / inner * inner;
    const size_t part = width / (size_t)inner;
    for (int i = 0; i < inner; i++)
        r->send_bytes[first + i] =
            w->call->shape.rows * part * weft_dtype_bytes(w->call->shape.dtype);
    return weft_all_to_all(r->cp, lane, from, r->send_bytes, to, r->send_bytes);
}

static weft_status run_dispatch(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return exchange(w, lane, w->backward ? w->sizes.width_out : w->sizes.width_qkv,
                    weft_context_slot(w, task, WEFT_OPERAND_FROM),
                    weft_context_slot(w, task, WEFT_OPERAND_TO));
}

static weft_status run_combine(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return exchange(w, lane, w->backward ? w->sizes.width_qkv : w->sizes.width_out,
                    weft_context_slot(w, task, WEFT_OPERAND_FROM),
                    weft_context_slot(w, task, WEFT_OPERAND_TO));
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return weft_all_gather(w->runtime->cp, lane, weft_context_slot(w, task, WEFT_OPERAND_FROM),
                           weft_context_slot(w, task, WEFT_OPERAND_TO), w->sizes.block_keys,
                           w->call->shape.dtype);
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return weft_reduce_scatter(w->runtime->cp, lane, weft_context_slot(w, task, WEFT_OPERAND_FROM),
                               weft_context_slot(w, task, WEFT_OPERAND_TO), w->sizes.block_keys,
                               WEFT_F32, WEFT_REDUCE_SUM);
}

/* Sends to the next group of neighbours, receives from the previous one. */
static weft_status run_shift(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    weft_context_runtime *r = w->runtime;
    const bool gradient = task->flow == WEFT_FLOW_GRADIENT;
    const int cp = r->plan.cp, rank = weft_comm_rank(r->cp);
    const size_t bytes =
        w->sizes.block_keys * weft_dtype_bytes(gradient ? WEFT_F32 : w->call->shape.dtype);
    return weft_send_recv(r->cp, lane, (rank + r->plan.inner) % cp,
                          weft_context_slot(w, task, WEFT_OPERAND_FROM), bytes,
                          (rank + cp - r->plan.inner) % cp,
                          weft_context_slot(w, task, WEFT_OPERAND_TO), bytes, gradient);
}

/* --- sums and rounding --------------------------------------------------------------------- */

static weft_status add_arrived(const weft_context_work *w, weft_lane *lane, const float *arrived,
                               float *share)
{
    return weft_add(lane, &WEFT_ARGS(weft_add_args, .count = w->sizes.block_keys, .dtype = WEFT_F32,
                                     .a = arrived, .b = share, .y = share));
}

/* Adds this rank's share to what arrived; the first rank's is the sum. */
static weft_status run_sum(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    float *share = weft_context_slot(w, task, WEFT_OPERAND_X);
    const float *arrived = weft_context_slot(w, task, WEFT_OPERAND_FROM);
    return arrived ? add_arrived(w, lane, arrived, share) : WEFT_OK;
}

/* Makes the keys' gradient from the one that came home and this rank's share, or one of these. */
static weft_status place_gradients(const weft_context_work *w, const weft_task *task,
                                   weft_lane *lane)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_dtype dtype = w->call->shape.dtype;
    const size_t queries = z->in_group * z->head_dim;
    const float *arrived = weft_context_slot(w, task, WEFT_OPERAND_FROM);
    float *share = weft_context_slot(w, task, WEFT_OPERAND_KEYS);
    void *heads = weft_context_slot(w, task, WEFT_OPERAND_TO), *to = heads ? heads : w->call->dqkv;
    WEFT_TRY(move_rows(lane, z->rows * z->groups, queries, WEFT_F32,
                       weft_context_slot(w, task, WEFT_OPERAND_Y), queries, dtype, to,
                       queries + 2 * z->head_dim));
    if (arrived && share)
        WEFT_TRY(add_arrived(w, lane, arrived, share));
    return move_keys(w, lane, z->rows, WEFT_F32, share ? share : arrived, true, dtype, to);
}

static weft_status run_place(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_call *c = w->call;
    const void *from = weft_context_slot(w, task, WEFT_OPERAND_FROM);
    if (task->flow == WEFT_FLOW_GRADIENT)
        return place_gradients(w, task, lane);
    if (task->flow == WEFT_FLOW_HEADS)
        return w->backward ? deal_heads(w, lane, w->sizes.width_qkv, from, c->dqkv, true)
                           : deal_heads(w, lane, w->sizes.width_out, from, c->out, true);
    void *heads = weft_context_slot(w, task, WEFT_OPERAND_TO), *to = heads ? heads : c->out;
    return to == from ? WEFT_OK
                      : move_rows(lane, 0, w->sizes.rows * w->sizes.result, WEFT_F32, from, 0,
                                  c->shape.dtype, to, 0);
}

/* --- all ------------------------------------------------------------------------------------- */

typedef weft_status (*run_function)(void *context, const weft_task *task, weft_lane *lane);
static const run_function runs[WEFT_NUM_TASK_KINDS] = {
    [WEFT_TASK_PERMUTE] = run_permute, [WEFT_TASK_DISPATCH] = run_dispatch,
    [WEFT_TASK_COMBINE] = run_combine, [WEFT_TASK_GATHER] = run_gather,
    [WEFT_TASK_REDUCE] = run_reduce,   [WEFT_TASK_SHIFT] = run_shift,
    [WEFT_TASK_SUM] = run_sum,         [WEFT_TASK_PLACE] = run_place,
};

/* The module of a task's operations (launcher/planning/context_price.c). */
static const char *module_of(const weft_task *task)
{
    switch (task->kind) {
    case WEFT_TASK_PERMUTE:
        return task->flow == WEFT_FLOW_KEYS ? "context.keys" : "context.permute";
    case WEFT_TASK_DISPATCH:
        return "context.dispatch";
    case WEFT_TASK_COMBINE:
        return "context.combine";
    case WEFT_TASK_GATHER:
        return "context.gather";
    case WEFT_TASK_REDUCE:
        return "context.reduce";
    case WEFT_TASK_SHIFT:
        return task->flow == WEFT_FLOW_GRADIENT ? "context.hand_on" : "context.shift";
    case WEFT_TASK_SUM:
        return "context.sum";
    default:
        return task->flow == WEFT_FLOW_HEADS ? "context.home" : "context.place";
    }
}

static weft_status run_named(void *context, const weft_task *task, weft_lane *lane)
{
    WEFT_TRY_AS(lane, module_of(task), runs[task->kind](context, task, lane));
    return WEFT_OK;
}

void weft_context_bind_tasks(weft_executor *executor)
{
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        if (runs[kind])
            executor->run[kind] = run_named;
}
