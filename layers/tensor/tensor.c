#include "layers/tensor/tensor.h"

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

/* --- tasks ----------------------------------------------------------------------------------- */

static weft_comm *tp_of(const weft_pass *pass)
{
    return weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP];
}

static weft_status gather(const weft_pass *pass, const weft_chunks *c, int chunk,
                          const weft_tensor *own, const weft_tensor *gathered, weft_lane *lane)
{
    const weft_tensor from = weft_chunk_own(own, c, chunk);
    return weft_all_gather(tp_of(pass), lane, from.data, weft_chunk_of(gathered, c, chunk).data,
                           weft_tensor_count(&from), from.dtype);
}

weft_status weft_chunks_gather(weft_pass *pass, const weft_chunks *c, const weft_tensor *own,
                               const weft_tensor *gathered)
{
    for (int i = 0; i < c->count; i++)
        WEFT_TRY(gather(pass, c, i, own, gathered, weft_pass_lane(pass)));
    return WEFT_OK;
}

static weft_status reduce(const weft_pass *pass, const weft_tensor_call *c, int chunk,
                          weft_lane *lane)
{
    const weft_tensor to = weft_chunk_own(&c->to, &c->chunks, chunk);
    const size_t count = weft_tensor_count(&to);
    if (weft_pass_shape(pass)->sequence_parallel)
        return weft_reduce_scatter(tp_of(pass), lane,
                                   weft_chunk_of(&c->partial, &c->chunks, chunk).data, to.data,
                                   count, to.dtype, WEFT_REDUCE_SUM);
    return weft_all_reduce(tp_of(pass), lane, to.data, count, to.dtype, WEFT_REDUCE_SUM);
}

static weft_status run_task(weft_pass *pass, const weft_tensor_call *c, const weft_task *task,
                            weft_lane *lane)
{
    if (task->kind == WEFT_TASK_GATHER)
        return gather(pass, &c->chunks, task->part, &c->from, &c->gathered, lane);
    if (task->kind == WEFT_TASK_REDUCE)
        return reduce(pass, c, task->part, lane);
    return task->flow == WEFT_FLOW_WEIGHT ? c->make_weights(c->context, pass)
                                          : c->multiply(c->context, pass, task->part);
}

static weft_status run_named(weft_pass *pass, const weft_tensor_call *c, const weft_task *task,
                             weft_lane *lane)
{
    WEFT_TRY_AS(lane, c->module, run_task(pass, c, task, lane));
    return WEFT_OK;
}

weft_status weft_tensor_run_part(weft_pass *pass, const weft_tensor_call *call,
                                 const weft_body_part *at, weft_lane *lane)
{
    const weft_task *task = &at->program->tasks[at->task];
    const int track = task->lane == WEFT_LANE_COMPUTE ? WEFT_TRACK_PARTS : WEFT_TRACK_TENSOR;
    size_t note;
    WEFT_TRY(weft_note_task_begin(pass, lane, task, track, &note));
    const weft_note_scope scope = weft_note_task(lane, WEFT_INNER_TENSOR, task->kind, task->flow);
    const weft_status status = run_named(pass, call, task, lane);
    weft_note_leave(lane, scope);
    WEFT_TRY(status);
    return weft_note_task_end(pass, lane, track, note);
}
