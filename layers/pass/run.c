/* Running a pass: its chunk's program, a task a layer. */
#include <stdlib.h>
#include <string.h>

#include "layers/outline/outline.h"
#include "layers/pass/forward.h"
#include "layers/pass/graphs.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"
#include "schedule/operands.h"

static weft_status backward(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    weft_event *const *points = w->call->points;
    weft_layer *layer = pass->model->layers[task->layer];
    weft_tensor dy = weft_pass_operand(w, task, WEFT_OPERAND_DY),
                dx = weft_pass_operand(w, task, WEFT_OPERAND_DX);
    WEFT_TRY(weft_layer_backward(layer, pass, &dy, &dx));
    WEFT_TRY(weft_offload_end(&pass->model->offload, w->program, task, pass->lane));
    if (points && points[task->layer])
        WEFT_TRY(weft_lane_record(pass->lane, points[task->layer]));
    return points && pass->model->passed
               ? pass->model->passed(pass->model->passed_context, task->layer)
               : WEFT_OK;
}

static weft_status run_layer(void *context, const weft_task *task, weft_lane *lane)
{
    weft_pass_work *w = context;
    weft_rings *rings = &w->call->pass->model->rings;
    if (weft_pass_training(w->call->pass))
        WEFT_TRY(weft_rings_begin(rings, w->program, task, lane));
    WEFT_TRY(task->flow == WEFT_FLOW_GRADIENT ? backward(w, task) : weft_pass_run_forward(w, task));
    return weft_rings_end(rings, w->program, task, lane);
}

static weft_status run_again(void *context, const weft_task *task, weft_lane *lane)
{
    weft_pass_work *w = context;
    WEFT_TRY(weft_pass_run_again(w, task, lane));
    return weft_rings_end(&w->call->pass->model->rings, w->program, task, lane);
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    return weft_rings_gather(&w->call->pass->model->rings, w->program, task, lane);
}

/* An evaluation's forward makes no gradients. */
static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    const weft_pass *pass = w->call->pass;
    return weft_pass_training(pass) ? weft_rings_reduce(&pass->model->rings, w->program, task,
                                                        weft_pass_overwrite(pass), lane)
                                    : WEFT_OK;
}

static weft_status run_offload(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    weft_pass *pass = w->call->pass;
    return weft_offload_out(&pass->model->offload, w->program, task, weft_pass_training(pass),
                            &pass->host, &pass->offloaded[task->layer - pass->first], lane);
}

static weft_status run_prefetch(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    weft_pass *pass = w->call->pass;
    return weft_offload_back(&pass->model->offload, w->program, task, pass,
                             &pass->offloaded[task->layer - pass->first], lane);
}

/* Sets slots whose memory exists before the program runs. */
static void fill_slots(const weft_pass_call *call, const weft_program *program, weft_tensor *slots)
{
    const weft_model *model = call->pass->model;
    const weft_pass_kept *kept = weft_pass_kept_of(call->pass);
    int num_gradients = 0, num_kept = 1, num_inputs = 0;
    memset(slots, 0, (size_t)program->num_slots * sizeof *slots);
    for (int i = 0; i < program->num_slots; i++) {
        switch (program->slots[i].holds) {
        case WEFT_SLOT_ACTIVATION:
            slots[i] = call->kind == WEFT_PASS_FORWARD ? *call->from : kept[0].x;
            break;
        case WEFT_SLOT_LAYER:
            if (call->kind != WEFT_PASS_FORWARD)
                slots[i] = kept[num_kept++].x;
            break;
        case WEFT_SLOT_GRADIENT:
            if (call->from)
                slots[i] = *call->from;
            break;
        case WEFT_SLOT_OUTPUT:
        case WEFT_SLOT_INPUT_GRADIENT:
            if (call->to)
                slots[i] = *call->to;
            break;
        case WEFT_SLOT_LAYER_GRADIENT:
            slots[i] = model->gradients[num_gradients++];
            break;
        case WEFT_SLOT_OFFLOADED_LAYER:
            slots[i] = *weft_offload_input(&model->offload, num_inputs++);
            break;
        default:
            break;
        }
    }
}

static const weft_program *program_of(const weft_pass_call *call)
{
    return &call->pass->model->programs[WEFT_NUM_PASS_KINDS * call->pass->chunk + call->kind];
}

static weft_status enqueue(const weft_pass_call *call)
{
    static const int tracks[WEFT_NUM_LANES] = {[WEFT_LANE_COMPUTE] = WEFT_TRACK_LAYERS,
                                               [WEFT_LANE_REDUCE] = WEFT_LANE_REDUCE,
                                               [WEFT_LANE_GATHER] = WEFT_LANE_GATHER,
                                               [WEFT_LANE_OFFLOAD] = WEFT_LANE_OFFLOAD,
                                               [WEFT_LANE_PREFETCH] = WEFT_LANE_PREFETCH};
    weft_pass *pass = call->pass;
    weft_model *model = pass->model;
    const weft_program *program = program_of(call);
    weft_executor *executor = &model->executor;
    weft_pass_work w = {.call = call, .program = program, .slots = model->slots};
    size_t mark = weft_pass_mark(pass);
    if (call->kind == WEFT_PASS_FORWARD) {
        weft_stack_rewind(&pass->stash, 0);
        weft_stack_rewind(&pass->host, 0);
        pass->rows = pass->kept_rows = (weft_rows){0};
        memset(pass->states, 0, model->states_bytes);
    }
    if (program->num_tasks == 0) /* an empty stage */
        return call->kind == WEFT_PASS_RECOMPUTE
                   ? WEFT_OK
                   : weft_lane_copy(pass->lane, call->to->data, call->from->data,
                                    weft_shape_boundary_bytes(&model->shape));
    fill_slots(call, program, w.slots);
    executor->lanes[WEFT_LANE_COMPUTE] = pass->lane;
    executor->lanes[WEFT_LANE_REDUCE] = model->rings.reduce;
    executor->lanes[WEFT_LANE_GATHER] = model->rings.gather;
    executor->lanes[WEFT_LANE_OFFLOAD] = model->offload.out;
    executor->lanes[WEFT_LANE_PREFETCH] = model->offload.back;
    executor->context = &w;
    weft_note_tasks(pass, tracks, executor);
    WEFT_TRY(weft_program_enqueue(program, executor));
    weft_rings_advance(&model->rings, program);
    weft_pass_release(pass, mark);
    size_t held = pass->stash.used_bytes + pass->host.used_bytes;
    if (!pass->backward && held > pass->held_bytes) {
        pass->held_bytes = held;
        pass->fullest = pass->rows;
        pass->fullest_kept = pass->kept_rows;
    }
    return WEFT_OK;
}

static bool is_on_one_lane(const weft_program *program)
{
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].lane != WEFT_LANE_COMPUTE)
            return false;
    return true;
}

/* A graph can hold neither a timeline's functions on the lane, nor events for points, nor rotating
 * rings. */
static weft_status run(const weft_pass_call *call)
{
    const weft_model *model = call->pass->model;
    return model->graphs && !model->trace && !call->points && is_on_one_lane(program_of(call))
               ? weft_graphs_run(call, enqueue)
               : enqueue(call);
}

weft_status weft_model_forward(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                               weft_lane *lane, const weft_tensor *x, weft_tensor *y)
{
    weft_pass *pass = &model->passes[slot];
    pass->lane = lane;
    pass->backward = false;
    pass->micro_batch = *micro_batch;
    if (model->graphs)
        WEFT_TRY(weft_graphs_take_tokens(pass));
    return run(&(weft_pass_call){.pass = pass, .kind = WEFT_PASS_FORWARD, .from = x, .to = y});
}

weft_status weft_model_recompute(weft_model *model, int slot, weft_lane *lane)
{
    weft_pass *pass = &model->passes[slot];
    pass->lane = lane;
    pass->backward = true;
    return run(&(weft_pass_call){.pass = pass, .kind = WEFT_PASS_RECOMPUTE});
}

weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, weft_event *const *points)
{
    weft_pass *pass = &model->passes[slot];
    pass->lane = lane;
    pass->backward = true;
    return run(&(weft_pass_call){
        .pass = pass, .kind = WEFT_PASS_BACKWARD, .from = dy, .to = dx, .points = points});
}

/* --- programs ------------------------------------------------------------------------------ */

weft_status weft_outline_pass(const weft_outline *outline, int rank, int chunk, weft_arena *arena,
                              weft_chunk_shape *out)
{
    const weft_layout *layout = &outline->layout;
    const weft_held_elements *held = &outline->held[rank];
    const weft_offload_sizes sizes = weft_outline_offload_sizes(outline, rank);
    int first, end;
    void *layers;
    weft_layout_range(layout, rank, chunk, &first, &end);
    WEFT_TRY(
        weft_arena_alloc_array(arena, (size_t)(end - first) + 1, sizeof(weft_pass_layer), &layers));
    *out = (weft_chunk_shape){
        .layers = layers,
        .first = first,
        .num_layers = end - first,
        .receives = rank > 0 || chunk > 0,
        .passes_on = rank < layout->num_ranks - 1 || chunk < layout->num_chunks - 1,
        .row_bytes = weft_shape_boundary_bytes(&outline->shape),
        .weight_slots = held->weight_slots,
        .gradient_slots = held->gradient_slots,
        .weight_bytes = held->slot * weft_dtype_bytes(outline->shape.dtype),
        .gradient_bytes = held->slot * sizeof(float),
        .offload_slots = sizes.num_slots,
        .input_slots = sizes.num_inputs,
        .recomputes_early = weft_outline_recomputes_early(outline, rank, chunk)};
    for (int k = 0; k < sizes.num_slots; k++)
        out->offload_bytes[k] = sizes.slot_bytes[k];
    for (int l = first; l < end; l++) {
        const weft_outline_layer *layer = &outline->layers[l];
        ((weft_pass_layer *)layers)[l - first] = (weft_pass_layer){
            .stash_bytes = layer->description.cost.activation_bytes - layer->offloaded_bytes,
            .offloads = layer->offloads,
            .offloads_input = layer->offloads_input,
            .offloaded_bytes = layer->offloaded_bytes,
            .in_place = layer->in_place,
            .host_waits = layer->host_waits,
            .gathers = held->weight_slots > 0 && weft_outline_shares(layer),
            .reduces = weft_outline_shares(layer),
            .is_loss = l == outline->num_layers - 1,
            .group = layer->recompute_group};
    }
    return WEFT_OK;
}

static weft_status make_program(weft_model *model, const weft_chunk_shape *shape,
                                weft_pass_kind kind, weft_program *out)
{
    WEFT_TRY(weft_program_pass(shape, kind, &model->arena, out));
    return weft_program_pass_check(shape, kind, out);
}

weft_status weft_model_make_programs(weft_model *model, const weft_outline *outline)
{
    int num_chunks = model->layout.num_chunks, most_slots = 1;
    uint32_t most_tasks = 1;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&model->arena, WEFT_NUM_PASS_KINDS * (size_t)num_chunks,
                                    sizeof(weft_program), &memory));
    model->programs = memory;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        weft_chunk_shape shape;
        WEFT_TRY(weft_outline_pass(outline, model->rank, chunk, &model->arena, &shape));
        if (!model->setup.training || model->setup.evaluates)
            shape.gradient_slots = 0;
        for (int kind = 0; kind < (model->setup.training ? WEFT_NUM_PASS_KINDS : 1); kind++) {
            weft_program *program = &model->programs[WEFT_NUM_PASS_KINDS * chunk + kind];
            WEFT_TRY(make_program(model, &shape, (weft_pass_kind)kind, program));
            most_slots = most_slots < program->num_slots ? program->num_slots : most_slots;
            most_tasks = most_tasks < program->num_tasks ? program->num_tasks : most_tasks;
        }
    }
    WEFT_TRY(
        weft_arena_alloc_array(&model->arena, (size_t)most_slots, sizeof(weft_tensor), &memory));
    model->slots = memory;
    model->executor.run[WEFT_TASK_LAYER] = run_layer;
    model->executor.run[WEFT_TASK_RECOMPUTE] = run_again;
    model->executor.run[WEFT_TASK_GATHER] = run_gather;
    model->executor.run[WEFT_TASK_REDUCE] = run_reduce;
    model->executor.run[WEFT_TASK_OFFLOAD] = run_offload;
    model->executor.run[WEFT_TASK_PREFETCH] = run_prefetch;
    return weft_executor_prepare(&model->executor, model->setup.device, most_tasks);
}
