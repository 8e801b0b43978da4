#include "core/grow.h"
#include "core/sized.h"
#include "layers/pass/pass.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/rng.h"
#include "layers/context/context.h"
#include "layers/pass/graphs.h"
#include "layers/pass/note.h"
#include "layers/tensor/tensor.h"

weft_lane *weft_pass_lane(const weft_pass *pass)
{
    return pass->lane;
}

bool weft_pass_training(const weft_pass *pass)
{
    return pass->micro_batch.training;
}

bool weft_pass_overwrite(const weft_pass *pass)
{
    return pass->backward && !pass->repeats ? pass->micro_batch.backward_overwrites
                                            : pass->micro_batch.overwrite;
}

const weft_shape *weft_pass_shape(const weft_pass *pass)
{
    return &pass->model->shape;
}

size_t weft_pass_rows(const weft_pass *pass)
{
    return weft_shape_boundary_rows(&pass->model->shape);
}

uint64_t weft_pass_seed(const weft_pass *pass)
{
    return pass->model->setup.seed;
}

uint64_t weft_pass_stream(const weft_pass *pass, const weft_layer *layer, int use)
{
    uint64_t stream = weft_rng_stream_of(layer->place->name);
    stream = weft_rng_stream_mix(stream, (uint64_t)pass->micro_batch.step);
    stream = weft_rng_stream_mix(stream, pass->micro_batch.first_sample);
    return weft_rng_stream_mix(stream, (uint64_t)use);
}

float weft_pass_loss_scale(const weft_pass *pass)
{
    return pass->micro_batch.loss_scale;
}

const int32_t *weft_pass_tokens(const weft_pass *pass)
{
    return pass->micro_batch.tokens;
}

const int32_t *weft_pass_labels(const weft_pass *pass)
{
    return pass->micro_batch.labels;
}

struct weft_context_runtime *weft_pass_context(const weft_pass *pass)
{
    return pass->model->context;
}

const weft_sequence_cut *weft_pass_cut(const weft_pass *pass)
{
    return pass->micro_batch.cut;
}

size_t weft_pass_first_token(const weft_pass *pass)
{
    return pass->micro_batch.first_token;
}

const int32_t *weft_pass_index(const weft_pass *pass)
{
    return pass->micro_batch.index;
}

const int32_t *weft_pass_positions(const weft_pass *pass)
{
    return pass->micro_batch.positions;
}

const int32_t *weft_pass_first_seen(const weft_pass *pass)
{
    return pass->micro_batch.first_seen;
}

const float *weft_pass_label_weights(const weft_pass *pass)
{
    return pass->micro_batch.label_weights;
}

float *weft_pass_losses(const weft_pass *pass)
{
    return pass->micro_batch.losses;
}

weft_metrics *weft_pass_metrics(weft_pass *pass)
{
    return pass->model->sums.metrics + pass->repeats;
}

const weft_groups *weft_pass_groups(const weft_pass *pass)
{
    return pass->model->setup.groups;
}

const weft_place *weft_pass_coords(const weft_pass *pass)
{
    return &pass->model->place;
}

static bool is_dtype(weft_dtype dtype)
{
    return (unsigned)dtype <= WEFT_U8;
}

weft_status weft_pass_all_reduce(weft_pass *pass, weft_axis axis, void *values, size_t count,
                                 weft_dtype dtype)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    if (axis <= WEFT_AXIS_NONE || axis >= WEFT_NUM_AXES || axis == WEFT_AXIS_PP)
        return WEFT_ERROR(WEFT_INTERNAL, "a layer cannot sum over %s",
                          axis == WEFT_AXIS_PP ? "pp: the stages run other layers" : "no axis");
    if (!is_dtype(dtype))
        return WEFT_ERROR(WEFT_INTERNAL, "a layer cannot sum values of dtype %d", (int)dtype);
    if (count > 0)
        WEFT_TRY(WEFT_GIVEN(values));
    weft_comm *group = weft_pass_groups(pass)->by_axis[axis];
    size_t note;
    if (weft_comm_size(group) == 1 || count == 0)
        return WEFT_OK;
    if (axis != WEFT_AXIS_TP)
        return weft_all_reduce(group, pass->lane, values, count, dtype, WEFT_REDUCE_SUM);
    WEFT_TRY(weft_note_begin(pass, pass->lane, WEFT_NOTE_TENSOR, &note));
    WEFT_TRY(weft_all_reduce(group, pass->lane, values, count, dtype, WEFT_REDUCE_SUM));
    return weft_note_end(pass, pass->lane, note);
}

void *weft_pass_state(weft_pass *pass, const weft_layer *layer)
{
    return pass->states + pass->model->tree.members[layer->place->index].state_offset;
}

static weft_status take(weft_stack *stack, weft_dtype dtype, size_t d0, size_t d1, weft_tensor *out)
{
    void *data;
    if (!is_dtype(dtype))
        return WEFT_ERROR(WEFT_INTERNAL, "%s: %d is no dtype", stack->purpose, (int)dtype);
    size_t most = SIZE_MAX / 2 / weft_dtype_bytes(dtype);
    if (d1 > 0 && d0 > most / d1)
        return WEFT_ERROR(WEFT_MEMORY, "%s: a tensor of %zu times %zu is too large", stack->purpose,
                          d0, d1);
    WEFT_TRY(weft_stack_alloc(stack, d0 * d1 * weft_dtype_bytes(dtype), &data));
    *out = weft_tensor_2d(data, dtype, d0, d1);
    return WEFT_OK;
}

weft_status weft_pass_stash(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                            weft_tensor *out)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(out));
    weft_stack *stack = &pass->stash;
    if (pass->out && pass->goes_out)
        stack = pass->out;
    if (pass->shares_stash || pass->leaves_out)
        stack = pass->defers ? &pass->deferred->stack : &weft_pass_recomputed(pass)->stack;
    return take(stack, dtype, d0, d1, out);
}

weft_status weft_pass_scratch(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                              weft_tensor *out)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(out));
    return take(weft_pass_scratch_stack(pass), dtype, d0, d1, out);
}

weft_stack *weft_pass_scratch_stack(const weft_pass *pass)
{
    weft_model *model = pass->model;
    return pass->backward && model->setup.pairs ? &model->memory.backward_scratch
                                                : &model->memory.scratch;
}

const weft_tensor *weft_pass_normed(const weft_pass *pass)
{
    return &pass->normed;
}

weft_status weft_pass_host(weft_pass *pass, size_t bytes, void **out)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(out));
    return weft_stack_alloc(&pass->host, bytes, out);
}

size_t weft_pass_mark(const weft_pass *pass)
{
    return weft_stack_mark(weft_pass_scratch_stack(pass));
}

void weft_pass_release(weft_pass *pass, size_t mark)
{
    weft_stack_rewind(weft_pass_scratch_stack(pass), mark);
}

weft_status weft_pass_gather(weft_pass *pass, const weft_tensor *x, const weft_tensor *gathered)
{
    size_t note;
    WEFT_TRY(weft_note_begin(pass, pass->lane, WEFT_NOTE_TENSOR, &note));
    WEFT_TRY_AS(pass->lane, "enter",
                weft_all_gather(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], pass->lane, x->data,
                                gathered->data, weft_tensor_count(x), x->dtype));
    return weft_note_end(pass, pass->lane, note);
}

weft_status weft_pass_enter(weft_pass *pass, const weft_tensor *x, weft_tensor *full)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(x));
    WEFT_TRY(WEFT_GIVEN(full));
    const weft_shape *shape = &pass->model->shape;
    if (!shape->sequence_parallel) {
        *full = *x;
        return WEFT_OK;
    }
    weft_tensor gathered;
    WEFT_TRY(
        weft_pass_scratch(pass, x->dtype, x->dims[0] * (size_t)shape->tp, x->dims[1], &gathered));
    WEFT_TRY(weft_pass_gather(pass, x, &gathered));
    *full = gathered;
    return WEFT_OK;
}

weft_status weft_pass_partial(weft_pass *pass, const weft_tensor *y, weft_tensor *partial)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(y));
    WEFT_TRY(WEFT_GIVEN(partial));
    const weft_shape *shape = &pass->model->shape;
    if (!shape->sequence_parallel) {
        *partial = *y;
        return WEFT_OK;
    }
    return weft_pass_scratch(pass, y->dtype, y->dims[0] * (size_t)shape->tp, y->dims[1], partial);
}

weft_status weft_pass_exit(weft_pass *pass, const weft_tensor *partial, weft_tensor *y)
{
    WEFT_TRY(WEFT_GIVEN(pass));
    WEFT_TRY(WEFT_GIVEN(partial));
    WEFT_TRY(WEFT_GIVEN(y));
    weft_comm *tp = weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP];
    size_t note;
    if (pass->model->shape.tp == 1)
        return WEFT_OK;
    WEFT_TRY(weft_note_begin(pass, pass->lane, WEFT_NOTE_TENSOR, &note));
    if (pass->model->shape.sequence_parallel)
        WEFT_TRY_AS(pass->lane, "exit",
                    weft_reduce_scatter(tp, pass->lane, partial->data, y->data,
                                        weft_tensor_count(y), y->dtype, WEFT_REDUCE_SUM));
    else
        WEFT_TRY_AS(pass->lane, "exit",
                    weft_all_reduce(tp, pass->lane, y->data, weft_tensor_count(y), y->dtype,
                                    WEFT_REDUCE_SUM));
    return weft_note_end(pass, pass->lane, note);
}

/* --- a backward in two halves ----------------------------------------------------------------- */

bool weft_pass_defers(const weft_pass *pass)
{
    return pass->defers;
}

weft_status weft_pass_defer(weft_pass *pass, weft_layer *layer, weft_deferred_function run)
{
    weft_deferred *d = pass->deferred;
    /* In the first step alone. */
    WEFT_TRY(WEFT_GROW(d->works, d->capacity, d->num_works + 1, "parts of a second half"));
    d->works[d->num_works++] = (struct weft_deferred_work){run, layer, pass->listed};
    return WEFT_OK;
}

void weft_pass_defer_soon(weft_pass *pass)
{
    pass->deferred->soon = pass->deferred->num_works;
}

weft_status weft_pass_run_left(weft_pass *pass, size_t end)
{
    weft_deferred *d = pass->deferred;
    for (; d->next < end; d->next++) {
        const struct weft_deferred_work *work = &d->works[d->next];
        WEFT_TRY(weft_layer_failed(work->layer, "backward", work->run(work->layer, pass)));
    }
    return WEFT_OK;
}

weft_status weft_pass_run_deferred(weft_pass *pass, int listed)
{
    const weft_deferred *d = pass->deferred;
    size_t end = d->next;
    while (end < d->num_works && d->works[end].listed == listed)
        end++;
    return weft_pass_run_left(pass, end);
}

void weft_deferred_empty(weft_deferred *deferred)
{
    weft_stack_rewind(&deferred->stack, 0);
    deferred->num_works = deferred->next = deferred->soon = 0;
    deferred->rows = (weft_rows){0};
}

void weft_deferred_note(weft_deferred *deferred)
{
    if (deferred->stack.used_bytes <= deferred->fullest_bytes)
        return;
    deferred->fullest_bytes = deferred->stack.used_bytes;
    deferred->fullest = deferred->rows;
}

void weft_deferred_release(weft_deferred *deferred)
{
    weft_stack_release(&deferred->stack);
    free(deferred->works);
}

weft_status weft_pass_deferred(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                               weft_tensor *out)
{
    return take(&pass->deferred->stack, dtype, d0, d1, out);
}

weft_status weft_pass_enter_deferred(weft_pass *pass, const weft_tensor *x, weft_tensor *full)
{
    const weft_shape *shape = &pass->model->shape;
    const size_t ranks = shape->sequence_parallel ? (size_t)shape->tp : 1;
    WEFT_TRY(weft_pass_deferred(pass, x->dtype, x->dims[0] * ranks, x->dims[1], full));
    return ranks > 1 ? weft_pass_gather(pass, x, full)
                     : weft_lane_copy(pass->lane, full->data, x->data, weft_tensor_bytes(x));
}

/* --- stashes: recomputed, offloaded ----------------------------------------------------------- */

weft_recomputed *weft_pass_recomputed(const weft_pass *pass)
{
    return &pass->model->memory.recomputed[pass->backward && pass->model->setup.pairs];
}

void weft_pass_note_recomputed(const weft_pass *pass)
{
    weft_recomputed *again = weft_pass_recomputed(pass);
    if (again->stack.peak_bytes > again->noted_bytes)
        again->fullest = again->rows;
    again->noted_bytes = again->stack.peak_bytes;
}

void weft_pass_empty_recomputed(const weft_pass *pass)
{
    weft_recomputed *again = weft_pass_recomputed(pass);
    weft_pass_note_recomputed(pass);
    weft_stack_rewind(&again->stack, 0);
    again->rows = (weft_rows){0};
}

void weft_pass_send_out(weft_pass *pass, unsigned modules)
{
    pass->goes_out = pass->model->shape.offload & (modules | WEFT_OFFLOAD_BLOCK);
}

void weft_pass_leave_out(weft_pass *pass, unsigned modules)
{
    if (pass->model->shape.recompute & modules)
        weft_pass_empty_recomputed(pass);
    weft_pass_leave_out_beside(pass, modules);
}

void weft_pass_leave_out_beside(weft_pass *pass, unsigned modules)
{
    weft_pass_send_out(pass, modules);
    pass->leaves_out = pass->model->shape.recompute & modules;
}

void weft_pass_keep(weft_pass *pass)
{
    pass->leaves_out = false;
    weft_pass_send_out(pass, 0);
}

size_t weft_pass_host_mark(const weft_pass *pass)
{
    return weft_stack_mark(&pass->host);
}

/* Other passes may still use the memory above. */
void weft_pass_begin_repeat(weft_pass *pass, size_t host_mark)
{
    pass->host_before = pass->host;
    weft_stack_rewind(&pass->host, host_mark);
    pass->repeats = true;
}

void weft_pass_end_repeat(weft_pass *pass)
{
    weft_stack_restore(&pass->host_before, &pass->host);
    pass->repeats = false;
}

bool weft_pass_repeats(const weft_pass *pass)
{
    return pass->repeats;
}

/* --- bodies ------------------------------------------------------------------------------- */

void weft_pass_prepare(const weft_pass *pass, weft_executor *executor)
{
    /* Layers note their own tasks, but for copies. */
    static const int tracks[WEFT_NUM_LANES] = {
        [WEFT_LANE_SEND] = WEFT_NO_TRACK,         [WEFT_LANE_RECEIVE] = WEFT_NO_TRACK,
        [WEFT_LANE_COMPUTE] = WEFT_NO_TRACK,      [WEFT_LANE_EXPERT] = WEFT_NO_TRACK,
        [WEFT_LANE_INSIDE] = WEFT_NO_TRACK,       [WEFT_LANE_PLACE] = WEFT_NO_TRACK,
        [WEFT_LANE_TO_DEVICE] = WEFT_NO_TRACK,    [WEFT_LANE_TO_HOST] = WEFT_NO_TRACK,
        [WEFT_LANE_HOST] = WEFT_NO_TRACK,         [WEFT_LANE_FILE] = WEFT_NO_TRACK,
        [WEFT_LANE_TENSOR] = WEFT_NO_TRACK,       [WEFT_LANE_REDUCE] = WEFT_LANE_REDUCE,
        [WEFT_LANE_GATHER] = WEFT_LANE_GATHER,    [WEFT_LANE_OFFLOAD] = WEFT_LANE_OFFLOAD,
        [WEFT_LANE_PREFETCH] = WEFT_LANE_PREFETCH};
    const weft_model *model = pass->model;
    memset(executor->lanes, 0, sizeof executor->lanes);
    executor->lanes[WEFT_LANE_COMPUTE] = pass->lane;
    executor->lanes[WEFT_LANE_REDUCE] = model->memory.rings.reduce;
    executor->lanes[WEFT_LANE_GATHER] = model->memory.rings.gather;
    executor->lanes[WEFT_LANE_OFFLOAD] = model->memory.offload.out;
    executor->lanes[WEFT_LANE_PREFETCH] = model->memory.offload.back;
    if (model->moe)
        weft_moe_runtime_lanes(model->moe, pass->lane, executor->lanes);
    if (model->tier)
        weft_tier_lanes(model->tier, executor->lanes);
    if (model->context)
        weft_context_runtime_lanes(model->context, executor->lanes);
    if (model->tensor)
        executor->lanes[WEFT_LANE_TENSOR] = weft_tensor_runtime_lane(model->tensor);
    weft_note_tasks(pass, tracks, executor);
}
