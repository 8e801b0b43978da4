/* Running a pass: its chunk's program, a task a layer. */
#include <stdlib.h>
#include <string.h>

#include "core/doing.h"
#include "layers/outline/outline.h"
#include "layers/pass/graphs.h"
#include "layers/pass/note.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"
#include "schedule/ahead.h"
#include "schedule/operands.h"

/* The running program's data. */
typedef struct weft_pass_work {
    const weft_pass_call *call;
    const weft_program *program;
    weft_tensor *slots; /* by slot of the program */
    size_t mark;        /* where its scratch begins */
} weft_pass_work;

static weft_pass_kept *kept_of(const weft_pass *pass)
{
    return (weft_pass_kept *)(void *)(pass->states + pass->model->memory.kept_offset);
}

/* The memory of an operand; empty: the task has none. */
static weft_tensor operand(const weft_pass_work *w, const weft_task *task, weft_operand_name name)
{
    int slot = weft_task_slot(task, name);
    return slot < 0 ? (weft_tensor){0} : w->slots[slot];
}

/* --- rings of sharded layers --------------------------------------------------------------- */

weft_status weft_rings_create(weft_device *device, weft_parameters *parameters, weft_rings *out)
{
    out->parameters = parameters;
    for (int weights = 0; weights < 2; weights++)
        for (int i = 0; i < weft_parameters_ring(parameters, weights)->num_slots; i++)
            WEFT_TRY(weft_event_create(device, &out->used[weights][i]));
    return weft_parameters_ring(parameters, true)->num_slots > 0
               ? weft_lane_create(device, WEFT_PURPOSE_DATA, "gather", &out->gather)
               : WEFT_OK;
}

void weft_rings_release(weft_rings *rings)
{
    weft_lane_destroy(rings->gather);
    for (int i = 0; i < 2 * WEFT_RING_SLOTS; i++)
        weft_event_destroy(rings->used[i / WEFT_RING_SLOTS][i % WEFT_RING_SLOTS]);
}

/* The slots of a ring that the pass uses. */
typedef struct weft_ring_part {
    int first, count;
    int *turn;
} weft_ring_part;

static weft_ring_part part_of_ring(const weft_pass *pass, bool weights)
{
    weft_rings *rings = &pass->model->memory.rings;
    const weft_ring *ring = weft_parameters_ring(rings->parameters, weights);
    const int whole = ring->num_slots - ring->beside;
    const bool beside = pass->model->setup.pairs && !pass->backward;
    return (weft_ring_part){.first = beside ? whole : 0,
                            .count = beside ? ring->beside : whole,
                            .turn = &rings->turn[weights][beside]};
}

/* The operand's slot of the ring; -1: the task has no such operand. */
static int ring_slot_of(const weft_pass_work *w, const weft_task *task, bool weights)
{
    const weft_program *program = w->program;
    const weft_ring_part part = part_of_ring(w->call->pass, weights);
    const int slot =
        weft_task_slot(task, weights ? WEFT_OPERAND_WEIGHTS : WEFT_OPERAND_WEIGHT_GRADIENTS);
    int first = slot;
    while (first > 0 && program->slots[first - 1].holds == program->slots[slot].holds)
        first--;
    return slot < 0 ? -1 : part.first + (slot - first + *part.turn) % part.count;
}

static weft_rings *rings_of(const weft_pass_work *w)
{
    return &w->call->pass->model->memory.rings;
}

static weft_status gather_weights(const weft_pass_work *w, const weft_task *task, weft_lane *lane)
{
    const weft_rings *rings = rings_of(w);
    const int slot = ring_slot_of(w, task, true);
    WEFT_TRY(weft_lane_wait(lane, rings->used[true][slot]));
    return weft_parameters_gather(rings->parameters, task->layer, slot, lane);
}

/* An evaluation's forward makes no gradients. */
static weft_status begin_gradients(const weft_pass_work *w, const weft_task *task, weft_lane *lane)
{
    const weft_rings *rings = rings_of(w);
    const int slot = weft_pass_training(w->call->pass) ? ring_slot_of(w, task, false) : -1;
    if (slot < 0)
        return WEFT_OK;
    WEFT_TRY(weft_lane_wait(lane, rings->used[false][slot]));
    return weft_parameters_use_gradients(rings->parameters, task->layer, slot, lane);
}

static weft_status end_weights(const weft_pass_work *w, const weft_task *task, weft_lane *lane)
{
    const int slot = ring_slot_of(w, task, true);
    return slot < 0 ? WEFT_OK : weft_lane_record(lane, rings_of(w)->used[true][slot]);
}

static weft_status reduce_gradients(const weft_pass_work *w, const weft_task *task, bool overwrite,
                                    weft_lane *lane)
{
    const weft_rings *rings = rings_of(w);
    const int slot = ring_slot_of(w, task, false);
    WEFT_TRY(weft_parameters_reduce(rings->parameters, task->layer, slot, overwrite, lane));
    return weft_lane_record(lane, rings->used[false][slot]);
}

static void advance_rings(const weft_pass_work *w)
{
    for (uint32_t i = 0; i < w->program->num_tasks; i++) {
        const int kind = w->program->tasks[i].kind;
        if (kind == WEFT_TASK_GATHER || kind == WEFT_TASK_REDUCE) {
            const weft_ring_part part = part_of_ring(w->call->pass, kind == WEFT_TASK_GATHER);
            *part.turn = (*part.turn + 1) % part.count;
        }
    }
}

/* Sets where the layer's stash goes, and notes its kept data. */
static weft_status begin_layer(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    const int x = weft_task_slot(task, WEFT_OPERAND_X);
    const int stash = weft_task_slot(task, WEFT_OPERAND_STASH);
    const bool inside = x >= 0 && w->program->slots[x].holds == WEFT_SLOT_RECOMPUTED_LAYER;
    pass->shares_stash = w->program->slots[stash].holds == WEFT_SLOT_RECOMPUTED;
    if (pass->shares_stash && !inside)
        weft_pass_empty_recomputed(pass);
    if (!pass->repeats)
        kept_of(pass)[task->layer - pass->first] = (weft_pass_kept){
            .x = x < 0 ? (weft_tensor){0} : w->slots[x], .host_mark = weft_pass_host_mark(pass)};
    return WEFT_OK;
}

/* Allocates a task's output, unless the model or a message slot has its memory. */
static weft_status take_output(weft_pass_work *w, int slot)
{
    weft_pass *pass = w->call->pass;
    const weft_shape *shape = &pass->model->shape;
    const bool is_kept = w->program->slots[slot].holds != WEFT_SLOT_RECOMPUTED_LAYER;
    if (is_kept && w->slots[slot].data)
        return WEFT_OK;
    const bool shares = pass->shares_stash;
    pass->shares_stash = !is_kept;
    weft_status status =
        weft_pass_stash(pass, shape->dtype, weft_pass_rows(pass), shape->hidden, &w->slots[slot]);
    pass->shares_stash = shares;
    return status;
}

static weft_status begin_forward(weft_pass_work *w, const weft_task *task)
{
    const int slot = weft_task_slot(task, WEFT_OPERAND_Y);
    w->call->pass->layer_rows = (weft_rows){0};
    WEFT_TRY(begin_layer(w, task));
    if (slot >= 0)
        WEFT_TRY(take_output(w, slot));
    weft_pass_keep(w->call->pass);
    return WEFT_OK;
}

static void end_forward(weft_pass *pass)
{
    pass->shares_stash = false;
    pass->out = NULL;
    weft_pass_note_recomputed(pass);
}

static weft_status run_forward(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    weft_layer *layer = pass->model->tree.layers[task->layer];
    const int slot = weft_task_slot(task, WEFT_OPERAND_Y);
    size_t most_out[WEFT_OFFLOAD_SLOTS];
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        most_out[i] = pass->model->memory.offload.slots[i].stack.peak_bytes;
    WEFT_TRY(begin_forward(w, task));
    weft_tensor x = operand(w, task, WEFT_OPERAND_X), y = operand(w, task, WEFT_OPERAND_Y);
    WEFT_TRY(weft_offload_begin(&pass->model->memory.offload, w->program, task, pass, pass->lane,
                                &pass->out));
    weft_status status = weft_layer_forward(layer, pass, &x, slot < 0 ? NULL : &y);
    end_forward(pass);
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        if (pass->model->memory.offload.slots[i].stack.peak_bytes > most_out[i])
            pass->model->memory.offload.slots[i].fullest = pass->layer_rows;
    return status;
}

/* The state structs of a layer and its children. */
static void clear_states(weft_pass *pass, const weft_layer *layer)
{
    const weft_model *model = pass->model;
    int end = layer->place->index + 1;
    while (end < model->tree.num_members && model->tree.members[end].parent >= 0)
        end++;
    const size_t first = model->tree.members[layer->place->index].state_offset;
    const size_t after = end < model->tree.num_members ? model->tree.members[end].state_offset
                                                       : model->memory.kept_offset;
    memset(pass->states + first, 0, after - first);
}

/* Layers add to their own metrics on the lane, so these are restored on the lane. */
static weft_status copy_metrics(const weft_pass *pass, weft_metric *to, const weft_metric *from)
{
    return pass->model->sums.own
               ? weft_lane_copy(pass->lane, to, from, WEFT_MAX_METRICS * sizeof *to)
               : WEFT_OK;
}

/* A forward that runs again has the same stash and host memory; metrics do not count it again. */
static void begin_repeat(const weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    clear_states(pass, pass->model->tree.layers[task->layer]);
    weft_pass_begin_repeat(pass, kept_of(pass)[task->layer - pass->first].host_mark);
}

static weft_status repeat_forward(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    const weft_model *model = pass->model;
    WEFT_TRY(copy_metrics(pass, model->sums.saved, model->sums.own));
    begin_repeat(w, task);
    weft_status status = run_forward(w, task);
    weft_pass_end_repeat(pass);
    WEFT_TRY(status);
    return copy_metrics(pass, model->sums.own, model->sums.saved);
}

static weft_status pass_point(const weft_pass_work *w, int layer)
{
    const weft_pass *pass = w->call->pass;
    weft_event *const *points = w->call->points;
    if (points && points[layer])
        WEFT_TRY(weft_lane_record(pass->lane, points[layer]));
    return points && pass->model->run.passed
               ? pass->model->run.passed(pass->model->run.passed_context, layer)
               : WEFT_OK;
}

/* What is enqueued of a backward's first half leaves work for the second. */
static void begin_half(weft_pass *pass, const weft_task *task)
{
    pass->defers = task->flow == WEFT_FLOW_INPUT;
    pass->listed = task->layer;
}

static weft_status backward(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    weft_layer *layer = pass->model->tree.layers[task->layer];
    weft_tensor dy = operand(w, task, WEFT_OPERAND_DY), dx = operand(w, task, WEFT_OPERAND_DX);
    begin_half(pass, task);
    const weft_status status = weft_layer_backward(layer, pass, &dy, &dx);
    pass->defers = false;
    WEFT_TRY(status);
    WEFT_TRY(weft_offload_end(&pass->model->memory.offload, w->program, task, pass->lane));
    return w->call->kind == WEFT_PASS_INPUT ? WEFT_OK : pass_point(w, task->layer);
}

/* Of a layer that does not split the first half has left nothing. */
static weft_status weights(weft_pass_work *w, const weft_task *task)
{
    WEFT_TRY(weft_pass_run_deferred(w->call->pass, task->layer));
    return pass_point(w, task->layer);
}

static weft_status run_layer(void *context, const weft_task *task, weft_lane *lane)
{
    weft_pass_work *w = context;
    WEFT_TRY(begin_gradients(w, task, lane));
    WEFT_TRY((task->flow == WEFT_FLOW_ACTIVATION ? run_forward
              : task->flow == WEFT_FLOW_WEIGHT   ? weights
                                                 : backward)(w, task));
    return end_weights(w, task, lane);
}

static weft_status run_again(void *context, const weft_task *task, weft_lane *lane)
{
    weft_pass_work *w = context;
    WEFT_TRY(repeat_forward(w, task));
    return end_weights(w, task, lane);
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    return gather_weights(context, task, lane);
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    const weft_pass *pass = w->call->pass;
    return weft_pass_training(pass) ? reduce_gradients(w, task, weft_pass_overwrite(pass), lane)
                                    : WEFT_OK;
}

static weft_status run_offload(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    weft_pass *pass = w->call->pass;
    return weft_offload_out(&pass->model->memory.offload, w->program, task,
                            weft_pass_training(pass), &pass->host,
                            &pass->offloaded[task->layer - pass->first], lane);
}

static weft_status run_prefetch(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_work *w = context;
    weft_pass *pass = w->call->pass;
    return weft_offload_back(&pass->model->memory.offload, w->program, task, pass,
                             &pass->offloaded[task->layer - pass->first], lane);
}

/* Sets slots whose memory exists before the program runs. */
static void fill_slots(const weft_pass_call *call, const weft_program *program, weft_tensor *slots)
{
    const weft_model *model = call->pass->model;
    const weft_pass_kept *kept = kept_of(call->pass);
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
            slots[i] = model->memory.gradients[num_gradients++];
            break;
        case WEFT_SLOT_OFFLOADED_LAYER:
            slots[i] = *weft_offload_input(&model->memory.offload, num_inputs++);
            break;
        default:
            break;
        }
    }
}

static const weft_program *program_of(const weft_pass_call *call)
{
    return &call->pass->model->run.programs[WEFT_NUM_PASS_KINDS * call->pass->chunk + call->kind];
}

/* What comes before the program's tasks. An empty stage hands its input on. */
static weft_status begin(weft_pass_work *w, const weft_pass_call *call, weft_tensor *slots)
{
    weft_pass *pass = call->pass;
    const weft_model *model = pass->model;
    *w = (weft_pass_work){
        .call = call, .program = program_of(call), .slots = slots, .mark = weft_pass_mark(pass)};
    if (call->kind == WEFT_PASS_FORWARD) {
        weft_stack_rewind(&pass->stash, 0);
        weft_stack_rewind(&pass->host, 0);
        pass->rows = pass->kept_rows = (weft_rows){0};
        memset(pass->states, 0, model->tree.states_bytes);
        if (model->setup.pairs)
            WEFT_TRY(weft_pass_stash(pass, model->shape.dtype, weft_pass_rows(pass),
                                     model->shape.hidden, &pass->normed));
    }
    if (call->kind == WEFT_PASS_INPUT)
        weft_deferred_empty(pass->deferred);
    if (call->kind == WEFT_PASS_WEIGHTS)
        pass->deferred->next = 0;
    fill_slots(call, w->program, slots);
    return w->program->num_tasks > 0 || call->kind == WEFT_PASS_RECOMPUTE ||
                   call->kind == WEFT_PASS_WEIGHTS
               ? WEFT_OK
               : weft_lane_copy(pass->lane, call->to->data, call->from->data,
                                weft_shape_boundary_bytes(&model->shape));
}

static void end(const weft_pass_work *w)
{
    weft_pass *pass = w->call->pass;
    const weft_pass_kind kind = w->call->kind;
    advance_rings(w);
    weft_pass_release(pass, w->mark);
    size_t held = pass->stash.used_bytes + pass->host.used_bytes;
    if (!pass->backward && held > pass->held_bytes) {
        pass->held_bytes = held;
        pass->fullest = pass->rows;
        pass->fullest_kept = pass->kept_rows;
    }
    if (kind == WEFT_PASS_INPUT)
        weft_deferred_note(pass->deferred);
}

/* For the work's program. */
static void prepare(weft_pass_work *w, weft_executor *executor)
{
    static const int tracks[WEFT_NUM_LANES] = {[WEFT_LANE_COMPUTE] = WEFT_TRACK_LAYERS,
                                               [WEFT_LANE_REDUCE] = WEFT_LANE_REDUCE,
                                               [WEFT_LANE_GATHER] = WEFT_LANE_GATHER,
                                               [WEFT_LANE_OFFLOAD] = WEFT_LANE_OFFLOAD,
                                               [WEFT_LANE_PREFETCH] = WEFT_LANE_PREFETCH};
    const weft_pass *pass = w->call->pass;
    const weft_model *model = pass->model;
    executor->lanes[WEFT_LANE_COMPUTE] = pass->lane;
    executor->lanes[WEFT_LANE_REDUCE] = model->memory.rings.reduce;
    executor->lanes[WEFT_LANE_GATHER] = model->memory.rings.gather;
    executor->lanes[WEFT_LANE_OFFLOAD] = model->memory.offload.out;
    executor->lanes[WEFT_LANE_PREFETCH] = model->memory.offload.back;
    executor->context = w;
    weft_note_tasks(pass, tracks, executor);
}

static weft_status enqueue(const weft_pass_call *call)
{
    weft_pass_work w;
    weft_executor *executor = &call->pass->model->run.executors[0];
    WEFT_TRY(begin(&w, call, call->pass->model->run.slots[0]));
    prepare(&w, executor);
    WEFT_TRY(weft_program_enqueue(w.program, executor));
    end(&w);
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
    return model->run.graphs && !model->run.trace && !call->points &&
                   is_on_one_lane(program_of(call))
               ? weft_graphs_run(call, enqueue)
               : enqueue(call);
}

void weft_pass_serve(weft_pass *pass, int chunk)
{
    pass->chunk = chunk;
    weft_layout_range(&pass->model->layout, pass->model->place.pp.at, chunk, &pass->first,
                      &pass->end);
}

weft_status weft_model_forward(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                               weft_lane *lane, const weft_tensor *x, weft_tensor *y)
{
    weft_pass *pass = &model->memory.passes[slot];
    pass->lane = lane;
    pass->backward = false;
    pass->deferred = NULL;
    pass->micro_batch = *micro_batch;
    weft_pass_serve(pass, micro_batch->chunk);
    if (model->run.graphs)
        WEFT_TRY(weft_graphs_take_tokens(pass));
    WEFT_TRY(run(&(weft_pass_call){.pass = pass, .kind = WEFT_PASS_FORWARD, .from = x, .to = y}));
    return model->run.graphs ? weft_graphs_give_losses(pass) : WEFT_OK;
}

weft_status weft_model_recompute(weft_model *model, int slot, weft_lane *lane)
{
    weft_pass *pass = &model->memory.passes[slot];
    pass->lane = lane;
    pass->backward = true;
    return run(&(weft_pass_call){.pass = pass, .kind = WEFT_PASS_RECOMPUTE});
}

static weft_pass_call whole_of(weft_model *model, int slot, weft_lane *lane)
{
    weft_pass *pass = &model->memory.passes[slot];
    pass->lane = lane;
    pass->backward = true;
    return (weft_pass_call){.pass = pass, .kind = WEFT_PASS_BACKWARD};
}

weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, weft_event *const *points)
{
    weft_pass_call call = whole_of(model, slot, lane);
    call.from = dy;
    call.to = dx;
    call.points = points;
    return run(&call);
}

static weft_pass_call half_of(weft_model *model, weft_pass_kind kind, int slot, int deferred,
                              weft_lane *lane)
{
    weft_pass *pass = &model->memory.passes[slot];
    pass->lane = lane;
    pass->backward = true;
    pass->deferred = &model->memory.deferred[deferred];
    return (weft_pass_call){.pass = pass, .kind = kind, .deferred = pass->deferred};
}

weft_status weft_model_backward_input(weft_model *model, int slot, int deferred, weft_lane *lane,
                                      const weft_tensor *dy, weft_tensor *dx)
{
    weft_pass_call call = half_of(model, WEFT_PASS_INPUT, slot, deferred, lane);
    call.from = dy;
    call.to = dx;
    return run(&call);
}

weft_status weft_model_backward_weights(weft_model *model, int slot, int deferred, weft_lane *lane,
                                        weft_event *const *points)
{
    weft_pass_call call = half_of(model, WEFT_PASS_WEIGHTS, slot, deferred, lane);
    call.points = points;
    return run(&call);
}

/* --- pairs --------------------------------------------------------------------------------- */

/* A pass of a pair. */
typedef struct weft_pass_strand {
    weft_pass_call call;
    weft_pass_work work;
    weft_executor *executor;
    bool is_ordered;
    uint32_t task; /* its next part's */
    int part;
    weft_deferred *leaves; /* of a whole backward: where its layers leave weights' gradients, two */
    int at;                /* the one that its latest layer used */
    uint32_t reduces[WEFT_PAIR_LEAVERS]; /* the layers' reductions, which what they left precedes;
                                            0: none waits */
} weft_pass_strand;

static bool has_parts(const weft_task *task)
{
    return task->kind == WEFT_TASK_LAYER || task->kind == WEFT_TASK_RECOMPUTE;
}

static weft_part_kind next_part(const weft_pass_strand *s)
{
    weft_pass *pass = s->call.pass;
    if (s->task == s->work.program->num_tasks)
        return WEFT_PART_NONE;
    const weft_task *task = &s->work.program->tasks[s->task];
    return weft_part_kind_of(pass->model->tree.layers[task->layer], pass,
                             task->flow != WEFT_FLOW_ACTIVATION, s->part);
}

/* --- what a whole backward leaves for later: its memory outlives the layer's own part of the turn,
 * so two layers have memory in turn ------------------------------------------------------------ */

static bool leaves(const weft_pass_strand *s, const weft_task *task)
{
    return s->leaves && task->flow == WEFT_FLOW_GRADIENT &&
           s->call.pass->model->run.leaves[task->layer];
}

static weft_pair_left left_by(const weft_pass_strand *s)
{
    weft_pair_left left = WEFT_LEFT_NONE;
    for (int i = 0; s->leaves && i < WEFT_PAIR_LEAVERS; i++) {
        const weft_deferred *d = &s->leaves[i];
        if (d->next < d->soon)
            return WEFT_LEFT_SOON;
        left = d->next < d->num_works ? WEFT_LEFT_LATE : left;
    }
    return left;
}

static bool has_left(const weft_pass_strand *s, int at)
{
    return s->leaves[at].next < s->leaves[at].num_works;
}

/* Behind what a layer left comes its reduction, which waits for the layer's task. */
static weft_status reduce_left(weft_pass_strand *s, int at)
{
    const weft_program *program = s->work.program;
    const uint32_t reduce = s->reduces[at];
    uint32_t layer = reduce;
    if (reduce == 0 || has_left(s, at))
        return WEFT_OK;
    while (!has_parts(&program->tasks[layer]))
        layer--;
    s->reduces[at] = 0;
    WEFT_TRY(weft_program_end_task(program, s->executor, layer, s->is_ordered));
    return weft_program_enqueue_task(program, s->executor, reduce, s->is_ordered);
}

static weft_status run_left(weft_pass *pass, size_t end)
{
    const weft_stack *scratch = weft_pass_scratch_stack(pass);
    const size_t before = scratch->peak_bytes;
    WEFT_TRY(weft_pass_run_left(pass, end));
    if (scratch->peak_bytes > before)
        pass->model->memory.left_peak_bytes = scratch->peak_bytes;
    return WEFT_OK;
}

/* Enqueues it, the earlier layer's first; soon: of the latest layer what comes soon. */
static weft_status take_left(weft_pass_strand *s, bool soon)
{
    const weft_doing outer = *weft_doing_now();
    weft_pass *pass = s->call.pass;
    weft_doing_pass(WEFT_DOING_PASSES);
    weft_doing_begin(weft_task_kind_text(WEFT_TASK_LAYER), -1, pass->chunk, -1, -1);
    pass->leaves = true;
    for (int i = 1; i <= WEFT_PAIR_LEAVERS; i++) {
        const int at = (s->at + i) % WEFT_PAIR_LEAVERS;
        pass->deferred = &s->leaves[at];
        WEFT_TRY(
            run_left(pass, soon && at == s->at ? pass->deferred->soon : pass->deferred->num_works));
        WEFT_TRY(reduce_left(s, at));
    }
    pass->leaves = false;
    *weft_doing_now() = outer;
    return WEFT_OK;
}

/* A layer that leaves nothing writes its norms' outputs where what is left reads others. */
static weft_status begin_leaving(weft_pass_strand *s, const weft_task *task)
{
    if (!s->leaves)
        return WEFT_OK;
    if (!leaves(s, task))
        return take_left(s, false);
    const int at = (s->at + 1) % WEFT_PAIR_LEAVERS;
    if (has_left(s, at)) /* layers without turns between them */
        WEFT_TRY(take_left(s, false));
    weft_deferred_empty(&s->leaves[at]);
    s->at = at;
    return WEFT_OK;
}

/* --- parts in turn -----------------------------------------------------------------------------
 */

/* See weft_outline_loss_waits. */
static bool waits_for(const weft_pass_strand *forward, const weft_pass_strand *backward)
{
    const weft_program *program = forward->work.program;
    const weft_model *model = forward->call.pass->model;
    return model->run.loss_waits && forward->task < program->num_tasks &&
           program->tasks[forward->task].layer == model->tree.num_layers - 1 &&
           (next_part(backward) != WEFT_PART_NONE || left_by(backward));
}

/* The reduction of a layer that has left something. */
static bool waits_for_left(const weft_pass_strand *s, const weft_task *task)
{
    return s->leaves && task->kind == WEFT_TASK_REDUCE &&
           s->call.pass->model->run.leaves[task->layer] && has_left(s, s->at);
}

/* Enqueues what stands beside layers in front of the next one. */
static weft_status go_on(weft_pass_strand *s)
{
    const weft_program *program = s->work.program;
    for (; s->task < program->num_tasks && !has_parts(&program->tasks[s->task]); s->task++)
        if (waits_for_left(s, &program->tasks[s->task]))
            s->reduces[s->at] = s->task;
        else
            WEFT_TRY(weft_program_enqueue_task(program, s->executor, s->task, s->is_ordered));
    return WEFT_OK;
}

static weft_status begin_task(weft_pass_strand *s, const weft_task *task)
{
    weft_pass_work *w = &s->work;
    WEFT_TRY(begin_leaving(s, task));
    WEFT_TRY(weft_program_begin_task(w->program, s->executor, s->task, s->is_ordered));
    WEFT_TRY(begin_gradients(w, task, s->call.pass->lane));
    if (task->kind == WEFT_TASK_RECOMPUTE)
        begin_repeat(w, task);
    return task->flow == WEFT_FLOW_ACTIVATION ? begin_forward(w, task) : WEFT_OK;
}

static weft_status end_task(weft_pass_strand *s, const weft_task *task)
{
    weft_pass *pass = s->call.pass;
    if (task->flow == WEFT_FLOW_ACTIVATION)
        end_forward(pass);
    if (task->kind == WEFT_TASK_RECOMPUTE)
        weft_pass_end_repeat(pass);
    if (leaves(s, task))
        weft_deferred_note(&s->leaves[s->at]);
    WEFT_TRY(end_weights(&s->work, task, pass->lane));
    WEFT_TRY(weft_program_end_task(s->work.program, s->executor, s->task, s->is_ordered));
    s->task++;
    s->part = 0;
    return WEFT_OK;
}

/* The other strand may have the layer's parameters in slots of its own. */
static void point_parameters(const weft_pass_work *w, const weft_task *task)
{
    for (int weights = 0; weights < 2; weights++) {
        const int slot = ring_slot_of(w, task, weights);
        if (slot >= 0)
            weft_parameters_point(rings_of(w)->parameters, task->layer, slot, weights);
    }
}

static weft_status run_part(weft_pass_strand *s, const weft_task *task)
{
    weft_pass_work *w = &s->work;
    weft_pass *pass = s->call.pass;
    weft_layer *layer = pass->model->tree.layers[task->layer];
    if (s->part == 0)
        WEFT_TRY(begin_task(s, task));
    point_parameters(w, task);
    if (task->flow != WEFT_FLOW_ACTIVATION) {
        weft_tensor dy = operand(w, task, WEFT_OPERAND_DY), dx = operand(w, task, WEFT_OPERAND_DX);
        begin_half(pass, task);
        if (leaves(s, task)) {
            pass->deferred = &s->leaves[s->at];
            pass->defers = pass->leaves = true;
        }
        const weft_status status = weft_part_backward(layer, pass, s->part, &dy, &dx);
        pass->defers = pass->leaves = false;
        return status;
    }
    const bool has_output = weft_task_slot(task, WEFT_OPERAND_Y) >= 0;
    weft_tensor x = operand(w, task, WEFT_OPERAND_X), y = operand(w, task, WEFT_OPERAND_Y);
    return weft_part_forward(layer, pass, s->part, &x, has_output ? &y : NULL);
}

static weft_status take_part(weft_pass_strand *s)
{
    const weft_doing outer = *weft_doing_now();
    weft_pass *pass = s->call.pass;
    const weft_model *model = pass->model;
    const weft_task *task = &s->work.program->tasks[s->task];
    const bool again = task->kind == WEFT_TASK_RECOMPUTE;
    weft_doing_pass(WEFT_DOING_PASSES);
    weft_doing_begin(weft_task_kind_text(task->kind), task->micro_batch, task->chunk, task->layer,
                     s->part);
    if (again) /* the other strand's parts, which count, come between */
        WEFT_TRY(copy_metrics(pass, model->sums.saved, model->sums.own));
    WEFT_TRY(run_part(s, task));
    if (again)
        WEFT_TRY(copy_metrics(pass, model->sums.own, model->sums.saved));
    *weft_doing_now() = outer;
    s->part++;
    if (next_part(s) == WEFT_PART_NONE)
        WEFT_TRY(end_task(s, task));
    return go_on(s);
}

static weft_status begin_strand(weft_pass_strand *s, weft_model *model, int index)
{
    s->executor = &model->run.executors[index];
    WEFT_TRY(begin(&s->work, &s->call, model->run.slots[index]));
    prepare(&s->work, s->executor);
    WEFT_TRY(weft_program_open(s->work.program, s->executor, &s->is_ordered));
    return go_on(s);
}

weft_status weft_model_pair(weft_model *model, weft_lane *lane, const weft_pair_call *call)
{
    weft_pass *forward = &model->memory.passes[call->forward_slot];
    const bool splits = call->deferred >= 0;
    weft_pass_call gradients =
        splits ? half_of(model, WEFT_PASS_INPUT, call->backward_slot, call->deferred, lane)
               : whole_of(model, call->backward_slot, lane);
    gradients.from = call->dy;
    gradients.to = call->dx;
    forward->lane = lane;
    forward->micro_batch = call->micro_batch;
    weft_pass_serve(forward, call->micro_batch.chunk);
    forward->deferred = NULL;
    forward->backward = false;
    weft_pass_strand strands[WEFT_PAIR_STRANDS] = {
        [WEFT_PAIR_FORWARD].call = {.pass = forward,
                                    .kind = WEFT_PASS_FORWARD,
                                    .from = call->x,
                                    .to = call->y},
        [WEFT_PAIR_BACKWARD] = {.call = gradients,
                                .leaves = model->setup.leaves_weights && !splits
                                              ? &model->memory.deferred[model->setup.num_deferred]
                                              : NULL}};
    weft_turns turns = {.whose = WEFT_PAIR_BACKWARD};
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        WEFT_TRY(begin_strand(&strands[i], model, i));
    weft_pass_strand *f = &strands[WEFT_PAIR_FORWARD], *b = &strands[WEFT_PAIR_BACKWARD];
    for (;;) {
        const weft_part_kind next[WEFT_PAIR_STRANDS] = {
            waits_for(f, b) ? WEFT_PART_NONE : next_part(f), next_part(b)};
        const int whose = weft_turns_next(&turns, next, left_by(b));
        if (whose < 0)
            break;
        WEFT_TRY(whose == WEFT_PAIR_LEFT ? take_left(b, turns.soon) : take_part(&strands[whose]));
    }
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        end(&strands[i].work);
    return WEFT_OK;
}

/* --- programs ------------------------------------------------------------------------------ */

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
    WEFT_TRY(
        WEFT_ARRAY(&model->arena, WEFT_NUM_PASS_KINDS * (size_t)num_chunks, &model->run.programs));
    WEFT_TRY(WEFT_ARRAY(&model->arena, (size_t)outline->num_layers, &model->run.leaves));
    for (int l = 0; l < outline->num_layers; l++)
        model->run.leaves[l] = outline->leaves_weights && weft_outline_splits(outline, l);
    model->run.loss_waits = weft_outline_loss_waits(outline);
    for (int chunk = 0; chunk < num_chunks; chunk++) {
        weft_chunk_shape shape;
        WEFT_TRY(weft_outline_pass(outline, model->place.pp.at, chunk, &model->arena, &shape));
        if (!model->setup.training || model->setup.evaluates)
            shape.gradient_slots = 0;
        const int num_kinds = model->setup.num_deferred > 0 ? WEFT_NUM_PASS_KINDS
                              : model->setup.training       ? WEFT_NUM_WHOLE_PASS_KINDS
                                                            : 1;
        for (int kind = 0; kind < num_kinds; kind++) {
            weft_program *program = &model->run.programs[WEFT_NUM_PASS_KINDS * chunk + kind];
            WEFT_TRY(make_program(model, &shape, (weft_pass_kind)kind, program));
            most_slots = most_slots < program->num_slots ? program->num_slots : most_slots;
            most_tasks = most_tasks < program->num_tasks ? program->num_tasks : most_tasks;
        }
    }
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++) {
        WEFT_TRY(WEFT_ARRAY(&model->arena, (size_t)most_slots, &model->run.slots[i]));
    }
    static const weft_task_function functions[WEFT_NUM_TASK_KINDS] = {
        [WEFT_TASK_LAYER] = run_layer,     [WEFT_TASK_RECOMPUTE] = run_again,
        [WEFT_TASK_GATHER] = run_gather,   [WEFT_TASK_REDUCE] = run_reduce,
        [WEFT_TASK_OFFLOAD] = run_offload, [WEFT_TASK_PREFETCH] = run_prefetch};
    for (int i = 0; i <= model->setup.pairs; i++) {
        memcpy(model->run.executors[i].run, functions, sizeof functions);
        WEFT_TRY(weft_executor_prepare(&model->run.executors[i], model->setup.device, most_tasks));
    }
    return WEFT_OK;
}
