#include "layers/tensor/tensor.h"

#include <stdlib.h>

#include "core/device/device.h"
#include "kernels/kernels.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"

/* --- rows ------------------------------------------------------------------------------------ */

weft_chunks weft_chunks_of(const weft_shape *shape, int wanted)
{
    const bool shares = shape->sequence_parallel;
    const size_t own = weft_shape_boundary_rows(shape);
    size_t count = wanted > 1 && shape->tp > 1 && shape->cached_tokens == 0 ? (size_t)wanted : 1;
    while (own % count != 0)
        count--;
    return (weft_chunks){
        .count = (int)count, .pieces = shares ? shape->tp : 1, .rows = own / count, .apart = own};
}

weft_chunks weft_chunks_whole(const weft_chunks *c)
{
    return (weft_chunks){.count = 1, .pieces = c->pieces, .rows = c->apart, .apart = c->apart};
}

static weft_tensor rows_from(const weft_tensor *t, size_t first, size_t rows)
{
    weft_tensor out = *t;
    out.data = (char *)t->data + first * t->dims[1] * weft_dtype_bytes(t->dtype);
    out.dims[0] = rows;
    return out;
}

weft_tensor weft_chunk_of(const weft_tensor *all, const weft_chunks *c, int chunk)
{
    const size_t rows = c->rows * (size_t)c->pieces;
    return rows_from(all, (size_t)chunk * rows, rows);
}

weft_tensor weft_chunk_own(const weft_tensor *own, const weft_chunks *c, int chunk)
{
    return rows_from(own, (size_t)chunk * c->rows, c->rows);
}

static weft_status move_chunk(weft_pass *pass, const weft_chunks *c, const weft_tensor *from,
                              const weft_tensor *to, bool places)
{
    const size_t each = c->rows * from->dims[1], apart = each * (size_t)c->count;
    return weft_cast(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_cast_args, .count = each, .from_dtype = to->dtype,
                                .to_dtype = to->dtype, .from = from->data, .to = to->data,
                                .rows = (size_t)c->pieces, .from_stride = places ? each : apart,
                                .to_stride = places ? apart : each));
}

weft_status weft_chunk_place(weft_pass *pass, const weft_chunks *c, int chunk,
                             const weft_tensor *gathered, const weft_tensor *placed)
{
    const weft_tensor from = weft_chunk_of(gathered, c, chunk),
                      to = weft_chunk_own(placed, c, chunk);
    return move_chunk(pass, c, &from, &to, true);
}

weft_status weft_chunk_take(weft_pass *pass, const weft_chunks *c, int chunk,
                            const weft_tensor *placed, const weft_tensor *gathered)
{
    const weft_tensor from = weft_chunk_own(placed, c, chunk),
                      to = weft_chunk_of(gathered, c, chunk);
    return move_chunk(pass, c, &from, &to, false);
}

/* --- the runtime ----------------------------------------------------------------------------- */

enum { MAX_PLANS = 64 };

struct weft_tensor_runtime {
    weft_comm *tp;
    weft_arena arena;
    weft_tensor_plan plans[MAX_PLANS]; /* made when they are first needed */
    weft_program programs[MAX_PLANS];
    int num_plans;
    weft_device *device;
    weft_lane *beside; /* what travels */
    weft_event *begun, *ended;
    weft_executor executor;
};

/* The running program's: the context of its tasks' functions. */
typedef struct tensor_work {
    weft_tensor_runtime *runtime;
    weft_pass *pass;
    const weft_tensor_call *call;
} tensor_work;

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    const tensor_work *w = context;
    const weft_tensor_call *c = w->call;
    const weft_tensor from = weft_chunk_own(&c->from, &c->chunks, task->part);
    WEFT_TRY_AS(lane, c->module,
                weft_all_gather(w->runtime->tp, lane, from.data,
                                weft_chunk_of(&c->gathered, &c->chunks, task->part).data,
                                weft_tensor_count(&from), from.dtype));
    return WEFT_OK;
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const tensor_work *w = context;
    const weft_tensor_call *c = w->call;
    const weft_tensor to = weft_chunk_own(&c->to, &c->chunks, task->part);
    const size_t count = weft_tensor_count(&to);
    if (weft_pass_shape(w->pass)->sequence_parallel)
        WEFT_TRY_AS(lane, c->module,
                    weft_reduce_scatter(w->runtime->tp, lane,
                                        weft_chunk_of(&c->partial, &c->chunks, task->part).data,
                                        to.data, count, to.dtype, WEFT_REDUCE_SUM));
    else
        WEFT_TRY_AS(
            lane, c->module,
            weft_all_reduce(w->runtime->tp, lane, to.data, count, to.dtype, WEFT_REDUCE_SUM));
    return WEFT_OK;
}

static weft_status run_product(void *context, const weft_task *task, weft_lane *lane)
{
    const tensor_work *w = context;
    const weft_tensor_call *c = w->call;
    WEFT_TRY_AS(lane, c->module,
                task->flow == WEFT_FLOW_WEIGHT ? c->make_weights(c->context, w->pass)
                                               : c->multiply(c->context, w->pass, task->part));
    return WEFT_OK;
}

static weft_status run_noted(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_note_scope scope = weft_note_task(lane, WEFT_INNER_TENSOR, task->kind, task->flow);
    const weft_status status = task->kind == WEFT_TASK_GATHER   ? run_gather(context, task, lane)
                               : task->kind == WEFT_TASK_REDUCE ? run_reduce(context, task, lane)
                                                                : run_product(context, task, lane);
    weft_note_leave(lane, scope);
    return status;
}

static weft_status find_program(weft_tensor_runtime *r, const weft_tensor_plan *plan,
                                const weft_program **out)
{
    int i = 0;
    while (i < r->num_plans && !weft_tensor_plan_is(&r->plans[i], plan))
        i++;
    *out = &r->programs[i];
    if (i < r->num_plans)
        return WEFT_OK;
    if (i == MAX_PLANS)
        return WEFT_ERROR(WEFT_INTERNAL, "more than %d plans of tensor-parallel products",
                          MAX_PLANS);
    WEFT_TRY(weft_program_tensor(plan, &r->arena, &r->programs[i]));
    if (!weft_device_is_note(r->device))
        WEFT_TRY(weft_program_tensor_check(plan, &r->programs[i]));
    r->plans[r->num_plans++] = *plan;
    return WEFT_OK;
}

weft_status weft_tensor_run(weft_pass *pass, const weft_tensor_call *call)
{
    static const int tracks[WEFT_NUM_LANES] = {
        [WEFT_LANE_COMPUTE] = WEFT_TRACK_PARTS, [WEFT_LANE_REDUCE] = WEFT_TRACK_TENSOR};
    weft_tensor_runtime *r = pass->model->tensor;
    tensor_work w = {r, pass, call};
    weft_tensor_plan plan = call->plan;
    const weft_program *program;
    plan.chunks = call->chunks.count;
    WEFT_TRY(find_program(r, &plan, &program));
    weft_lane *compute = weft_pass_lane(pass);
    r->executor.context = &w;
    r->executor.lanes[WEFT_LANE_COMPUTE] = compute;
    weft_note_tasks(pass, tracks, &r->executor);
    WEFT_TRY(weft_lane_record(compute, r->begun));
    WEFT_TRY(weft_lane_wait(r->beside, r->begun));
    WEFT_TRY(weft_program_enqueue(program, &r->executor));
    WEFT_TRY(weft_lane_record(r->beside, r->ended));
    return weft_lane_wait(compute, r->ended);
}

static weft_status init(weft_tensor_runtime *r)
{
    static const weft_task_kind kinds[] = {WEFT_TASK_GATHER, WEFT_TASK_REDUCE, WEFT_TASK_PRODUCT};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        r->executor.run[kinds[i]] = run_noted;
    WEFT_TRY(weft_executor_prepare(&r->executor, r->device, 3 * WEFT_TENSOR_MAX_CHUNKS + 1));
    WEFT_TRY(weft_event_create(r->device, &r->begun));
    WEFT_TRY(weft_event_create(r->device, &r->ended));
    WEFT_TRY(weft_lane_create(r->device, WEFT_PURPOSE_TENSOR, "tensor-parallel", &r->beside));
    r->executor.lanes[WEFT_LANE_REDUCE] = r->beside;
    return WEFT_OK;
}

weft_status weft_tensor_runtime_create(weft_device *device, weft_comm *tp,
                                       weft_tensor_runtime **out)
{
    weft_tensor_runtime *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for tensor-parallel products");
    r->device = device;
    r->tp = tp;
    const weft_status status = init(r);
    if (status != WEFT_OK) {
        weft_tensor_runtime_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_tensor_runtime_destroy(weft_tensor_runtime *r)
{
    if (!r)
        return;
    weft_lane_destroy(r->beside);
    weft_event_destroy(r->begun);
    weft_event_destroy(r->ended);
    weft_executor_release(&r->executor);
    weft_arena_release(&r->arena);
    free(r);
}

weft_status weft_tensor_runtime_reserve(weft_tensor_runtime *r, weft_lane *compute, size_t bytes)
{
    WEFT_TRY(weft_comm_reserve(r->tp, compute, bytes));
    return weft_comm_reserve(r->tp, r->beside, bytes);
}

const weft_executor *weft_tensor_executor(const weft_tensor_runtime *r)
{
    return &r->executor;
}
