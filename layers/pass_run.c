/* Running a pass: its chunk's program, a task a layer. */
#include <stdlib.h>
#include <string.h>

#include "layers/graphs.h"
#include "layers/note.h"
#include "layers/outline.h"
#include "layers/pass.h"
#include "schedule/operands.h"

/* What the running program works on. */
typedef struct work {
    const weft_pass_call *call;
    weft_tensor *slots; /* by slot of the program */
} work;

static weft_tensor operand(const work *w, const weft_task *task, weft_operand_name name)
{
    int slot = weft_task_slot(task, name);
    return slot < 0 ? (weft_tensor){0} : w->slots[slot];
}

static weft_status forward(work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    const weft_shape *shape = &pass->model->shape;
    weft_layer *layer = pass->model->layers[task->layer];
    weft_tensor x = operand(w, task, WEFT_OPERAND_X), y;
    int slot = weft_task_slot(task, WEFT_OPERAND_Y);
    if (slot >= 0 && !w->slots[slot].data)
        WEFT_TRY(weft_pass_stash(pass, shape->dtype, weft_pass_rows(pass), shape->hidden,
                                 &w->slots[slot]));
    y = operand(w, task, WEFT_OPERAND_Y);
    weft_status status = layer->ops->forward(layer, pass, &x, slot < 0 ? NULL : &y);
    return status == WEFT_OK ? status
                             : weft_error_context(status, "%s forward", weft_layer_name(layer));
}

static weft_status backward(work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    weft_event *const *points = w->call->points;
    weft_layer *layer = pass->model->layers[task->layer];
    weft_tensor dy = operand(w, task, WEFT_OPERAND_DY), dx = operand(w, task, WEFT_OPERAND_DX);
    weft_status status = layer->ops->backward(layer, pass, &dy, &dx);
    if (status != WEFT_OK)
        return weft_error_context(status, "%s backward", weft_layer_name(layer));
    return points && points[task->layer] ? weft_lane_record(pass->lane, points[task->layer])
                                         : WEFT_OK;
}

static weft_status run_layer(void *context, const weft_task *task, weft_lane *lane)
{
    (void)lane;
    return task->flow == WEFT_FLOW_GRADIENT ? backward(context, task) : forward(context, task);
}

/* The memory that is there before the program runs. */
static void fill_slots(const weft_pass_call *call, const weft_program *program, weft_tensor *slots)
{
    const weft_model *model = call->pass->model;
    int num_gradients = 0;
    memset(slots, 0, (size_t)program->num_slots * sizeof *slots);
    for (int i = 0; i < program->num_slots; i++) {
        switch (program->slots[i].holds) {
        case WEFT_SLOT_ACTIVATION:
        case WEFT_SLOT_GRADIENT:
            slots[i] = *call->from;
            break;
        case WEFT_SLOT_OUTPUT:
        case WEFT_SLOT_INPUT_GRADIENT:
            slots[i] = *call->to;
            break;
        case WEFT_SLOT_LAYER_GRADIENT:
            slots[i] = model->gradients[num_gradients++];
            break;
        default:
            break;
        }
    }
}

static weft_status enqueue(const weft_pass_call *call)
{
    static const int tracks[WEFT_NUM_LANES] = {[WEFT_LANE_COMPUTE] = WEFT_TRACK_LAYERS};
    weft_pass *pass = call->pass;
    weft_model *model = pass->model;
    const weft_program *program = &model->programs[2 * pass->chunk + pass->backward];
    weft_executor *executor = &model->executor;
    work w = {.call = call, .slots = model->slots};
    size_t mark = weft_pass_mark(pass);
    if (!pass->backward) {
        weft_stack_rewind(&pass->stash, 0);
        weft_stack_rewind(&pass->host, 0);
        memset(pass->states, 0, model->states_bytes);
    }
    if (program->num_tasks == 0) /* an empty stage */
        return weft_lane_copy(pass->lane, call->to->data, call->from->data,
                              weft_shape_boundary_bytes(&model->shape));
    fill_slots(call, program, w.slots);
    executor->lanes[WEFT_LANE_COMPUTE] = pass->lane;
    executor->context = &w;
    weft_note_tasks(pass, tracks, executor);
    WEFT_TRY(weft_program_enqueue(program, executor));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* Timelines take functions on the lane, and points events that others wait for: neither is kept as
 * a graph. */
static weft_status run(const weft_pass_call *call)
{
    const weft_model *model = call->pass->model;
    return model->graphs && !model->trace && !call->points ? weft_graphs_run(call, enqueue)
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
    return run(&(weft_pass_call){.pass = pass, .from = x, .to = y});
}

weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, weft_event *const *points)
{
    weft_pass *pass = &model->passes[slot];
    pass->lane = lane;
    pass->backward = true;
    return run(&(weft_pass_call){.pass = pass, .from = dy, .to = dx, .points = points});
}

/* --- programs ------------------------------------------------------------------------------ */

weft_status weft_outline_pass(const weft_outline *outline, int rank, int chunk, weft_arena *arena,
                              weft_chunk_shape *out)
{
    const weft_layout *layout = &outline->layout;
    int first, end;
    void *layers;
    weft_layout_range(layout, rank, chunk, &first, &end);
    WEFT_TRY(
        weft_arena_alloc_array(arena, (size_t)(end - first) + 1, sizeof(weft_pass_layer), &layers));
    *out = (weft_chunk_shape){.layers = layers,
                              .first = first,
                              .num_layers = end - first,
                              .receives = rank > 0 || chunk > 0,
                              .passes_on =
                                  rank < layout->num_ranks - 1 || chunk < layout->num_chunks - 1,
                              .row_bytes = weft_shape_boundary_bytes(&outline->shape)};
    for (int l = first; l < end; l++)
        ((weft_pass_layer *)layers)[l - first] =
            (weft_pass_layer){outline->layers[l].description.cost.activation_bytes,
                              outline->layers[l].in_place, outline->layers[l].host_waits};
    return WEFT_OK;
}

static weft_status make_program(weft_model *model, const weft_chunk_shape *shape, bool backward,
                                weft_program *out)
{
    WEFT_TRY(weft_program_pass(shape, backward, &model->arena, out));
    return weft_program_pass_check(shape, backward, out);
}

weft_status weft_model_make_programs(weft_model *model, const weft_outline *outline)
{
    int num_chunks = model->layout.num_chunks, most_slots = 1;
    uint32_t most_tasks = 1;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&model->arena, 2 * (size_t)num_chunks, sizeof(weft_program),
                                    &memory));
    model->programs = memory;
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        weft_chunk_shape shape;
        WEFT_TRY(weft_outline_pass(outline, model->rank, chunk, &model->arena, &shape));
        for (int backward = 0; backward < 1 + model->setup.training; backward++) {
            weft_program *program = &model->programs[2 * chunk + backward];
            WEFT_TRY(make_program(model, &shape, backward, program));
            most_slots = most_slots < program->num_slots ? program->num_slots : most_slots;
            most_tasks = most_tasks < program->num_tasks ? program->num_tasks : most_tasks;
        }
    }
    WEFT_TRY(
        weft_arena_alloc_array(&model->arena, (size_t)most_slots, sizeof(weft_tensor), &memory));
    model->slots = memory;
    model->executor.run[WEFT_TASK_LAYER] = run_layer;
    return weft_executor_prepare(&model->executor, model->setup.device, most_tasks);
}
