/* Running bodies: a pass or a pair of two, by their chunk's programs, a task a layer, in parts. */
#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/doing.h"
#include "layers/outline/outline.h"
#include "layers/pass/graphs.h"
#include "layers/pass/note.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"
#include "schedule/operands.h"

/* A pass whose program is being enqueued. */
typedef struct weft_pass_strand {
    weft_pass_call call; /* pass NULL: there is none; its tensors are valid while the body opens */
    const weft_program *program;
    const weft_task *layer; /* whose parts are enqueued */
    size_t slice;           /* the layer's */
    weft_tensor *slots;     /* by slot of the program */
    size_t mark;            /* where its scratch begins */
    weft_executor *executor;
    weft_cursor cursor;
    bool is_alone;         /* no other pass has parts between its own */
    int part;              /* the layer's next one */
    int passed;            /* the layer that its latest part ended the backward of; -1: none */
    weft_deferred *leaves; /* of a whole backward: where its layers leave weights' gradients, two */
    int at;                /* the one that its latest layer used */
    /* The layers' reductions, which what they left precedes; program NULL: none waits. */
    weft_cursor reduces[WEFT_PAIR_LEAVERS];
    size_t most_out[WEFT_OFFLOAD_SLOTS]; /* before the layer at hand */
} weft_pass_strand;

/* One pass is strand 0. */
struct weft_open_body {
    weft_pass_strand strands[WEFT_PAIR_STRANDS];
    weft_turns turns;
    bool is_open, gives_losses;
};

static weft_pass_kept *kept_of(const weft_pass *pass)
{
    return (weft_pass_kept *)(void *)(pass->states + pass->model->memory.kept_offset);
}

/* The memory of an operand; empty: the task has none. */
static weft_tensor operand(const weft_pass_strand *s, const weft_task *task, weft_operand_name name)
{
    int slot = weft_task_slot(task, name);
    return slot < 0 ? (weft_tensor){0} : s->slots[slot];
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
static int ring_slot_of(const weft_pass_strand *s, const weft_task *task, bool weights)
{
    const weft_program *program = s->program;
    const weft_ring_part part = part_of_ring(s->call.pass, weights);
    const int slot =
        weft_task_slot(task, weights ? WEFT_OPERAND_WEIGHTS : WEFT_OPERAND_WEIGHT_GRADIENTS);
    int first = slot;
    while (first > 0 && program->slots[first - 1].holds == program->slots[slot].holds)
        first--;
    return slot < 0 ? -1 : part.first + (slot - first + *part.turn) % part.count;
}

static weft_rings *rings_of(const weft_pass_strand *s)
{
    return &s->call.pass->model->memory.rings;
}

static weft_status gather_weights(const weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    const weft_rings *rings = rings_of(s);
    const int slot = ring_slot_of(s, task, true);
    WEFT_TRY(weft_lane_wait(lane, rings->used[true][slot]));
    return weft_parameters_gather(rings->parameters, task->layer, slot, lane);
}

/* An evaluation's forward makes no gradients. */
static weft_status begin_gradients(const weft_pass_strand *s, const weft_task *task,
                                   weft_lane *lane)
{
    const weft_rings *rings = rings_of(s);
    const int slot = weft_pass_training(s->call.pass) ? ring_slot_of(s, task, false) : -1;
    if (slot < 0)
        return WEFT_OK;
    WEFT_TRY(weft_lane_wait(lane, rings->used[false][slot]));
    return weft_parameters_use_gradients(rings->parameters, task->layer, slot, lane);
}

static weft_status end_weights(const weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    const int slot = ring_slot_of(s, task, true);
    return slot < 0 ? WEFT_OK : weft_lane_record(lane, rings_of(s)->used[true][slot]);
}

static weft_status reduce_gradients(const weft_pass_strand *s, const weft_task *task,
                                    bool overwrite, weft_lane *lane)
{
    const weft_rings *rings = rings_of(s);
    const int slot = ring_slot_of(s, task, false);
    WEFT_TRY(weft_parameters_reduce(rings->parameters, task->layer, slot, overwrite, lane));
    return weft_lane_record(lane, rings->used[false][slot]);
}

static void advance_rings(const weft_pass_strand *s)
{
    for (uint32_t i = 0; i < s->program->num_tasks; i++) {
        const weft_task *task = &s->program->tasks[i];
        const int kind = task->kind;
        if (weft_body_beside(task) && (kind == WEFT_TASK_GATHER || kind == WEFT_TASK_REDUCE)) {
            const weft_ring_part part = part_of_ring(s->call.pass, kind == WEFT_TASK_GATHER);
            *part.turn = (*part.turn + 1) % part.count;
        }
    }
}

/* Sets where the layer's stash goes, and notes its kept data. */
static weft_status begin_layer(weft_pass_strand *s, const weft_task *task)
{
    weft_pass *pass = s->call.pass;
    const int x = weft_task_slot(task, WEFT_OPERAND_X);
    const int stash = weft_task_slot(task, WEFT_OPERAND_STASH);
    const bool inside = x >= 0 && s->program->slots[x].holds == WEFT_SLOT_RECOMPUTED_LAYER;
    pass->listed = task->layer;
    pass->shares_stash = s->program->slots[stash].holds == WEFT_SLOT_RECOMPUTED;
    if (pass->shares_stash && !inside)
        weft_pass_empty_recomputed(pass);
    if (!pass->repeats)
        kept_of(pass)[task->layer - pass->first] = (weft_pass_kept){
            .x = x < 0 ? (weft_tensor){0} : s->slots[x], .host_mark = weft_pass_host_mark(pass)};
    return WEFT_OK;
}

/* Allocates a task's output, unless the model or a message slot has its memory. */
static weft_status take_output(weft_pass_strand *s, int slot)
{
    weft_pass *pass = s->call.pass;
    const weft_shape *shape = &pass->model->shape;
    const bool is_kept = s->program->slots[slot].holds != WEFT_SLOT_RECOMPUTED_LAYER;
    if (is_kept && s->slots[slot].data)
        return WEFT_OK;
    const bool shares = pass->shares_stash;
    pass->shares_stash = !is_kept;
    weft_status status =
        weft_pass_stash(pass, shape->dtype, weft_pass_rows(pass), shape->hidden, &s->slots[slot]);
    pass->shares_stash = shares;
    return status;
}

static weft_status begin_forward(weft_pass_strand *s, const weft_task *task)
{
    const int slot = weft_task_slot(task, WEFT_OPERAND_Y);
    weft_pass *pass = s->call.pass;
    weft_offload_rings *rings = &pass->model->memory.offload;
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        s->most_out[i] = rings->slots[i].stack.peak_bytes;
    pass->layer_rows = (weft_rows){0};
    WEFT_TRY(begin_layer(s, task));
    if (slot >= 0)
        WEFT_TRY(take_output(s, slot));
    weft_pass_keep(pass);
    return weft_offload_begin(rings, s->program, task, pass, pass->lane, &pass->out);
}

static void end_forward(const weft_pass_strand *s)
{
    weft_pass *pass = s->call.pass;
    weft_offload_rings *rings = &pass->model->memory.offload;
    pass->shares_stash = false;
    pass->out = NULL;
    weft_pass_note_recomputed(pass);
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        if (rings->slots[i].stack.peak_bytes > s->most_out[i])
            rings->slots[i].fullest = pass->layer_rows;
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
static void begin_repeat(const weft_pass_strand *s, const weft_task *task)
{
    weft_pass *pass = s->call.pass;
    clear_states(pass, pass->model->tree.layers[task->layer]);
    weft_pass_begin_repeat(pass, kept_of(pass)[task->layer - pass->first].host_mark);
}

/* --- layers, part by part ------------------------------------------------------------------ */

/* The kind of the next. */
static weft_part_kind next_part(const weft_pass_strand *s)
{
    const weft_program *program = s->program;
    if (!s->call.pass || s->cursor.at == program->num_tasks)
        return WEFT_PART_NONE;
    const int lane = program->tasks[s->cursor.at].lane;
    return weft_body_travels(lane) && s->executor->lanes[lane] != s->call.pass->lane
               ? WEFT_PART_TRAVELS
               : WEFT_PART_COMPUTES;
}

/* leaving: of a whole backward whose layers leave weights' gradients. */
static weft_way way_of(const weft_model *model, const weft_task *task, bool leaving)
{
    if (task->flow == WEFT_FLOW_ACTIVATION)
        return WEFT_WAY_FORWARD;
    return task->flow == WEFT_FLOW_INPUT || (leaving && model->run.leaves[task->layer])
               ? WEFT_WAY_INPUT
               : WEFT_WAY_BACKWARD;
}

/* Whether the layer has another part. */
static bool goes_on(const weft_pass_strand *s)
{
    const weft_model *model = s->call.pass->model;
    weft_body_part next;
    return s->layer->flow != WEFT_FLOW_WEIGHT &&
           weft_part_at(model->tree.layers[s->layer->layer], model, s->call.pass,
                        way_of(model, s->layer, s->leaves), s->part, &next);
}

/* Whether the layer's backward, in a pair, leaves its weights' gradients. */
static bool leaves(const weft_pass_strand *s, const weft_task *task)
{
    return s->leaves && task->flow == WEFT_FLOW_GRADIENT &&
           s->call.pass->model->run.leaves[task->layer];
}

static weft_status begin_task(weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    WEFT_TRY(begin_gradients(s, task, lane));
    if (task->kind == WEFT_TASK_RECOMPUTE)
        begin_repeat(s, task);
    return task->flow == WEFT_FLOW_ACTIVATION ? begin_forward(s, task) : WEFT_OK;
}

static weft_status end_task(weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    weft_pass *pass = s->call.pass;
    if (task->flow == WEFT_FLOW_ACTIVATION)
        end_forward(s);
    else if (task->flow != WEFT_FLOW_WEIGHT)
        WEFT_TRY(weft_offload_end(&pass->model->memory.offload, s->program, task, lane));
    if (task->kind == WEFT_TASK_RECOMPUTE)
        weft_pass_end_repeat(pass);
    if (leaves(s, task))
        weft_deferred_note(&s->leaves[s->at]);
    if (task->flow != WEFT_FLOW_ACTIVATION && s->call.kind != WEFT_PASS_INPUT && !s->leaves)
        s->passed = task->layer;
    s->part = 0;
    return end_weights(s, task, lane);
}

/* The other pass may have the layer's parameters in slots of its own. */
static void point_parameters(const weft_pass_strand *s, const weft_task *task)
{
    for (int weights = 0; weights < 2; weights++) {
        const int slot = s->is_alone ? -1 : ring_slot_of(s, task, weights);
        if (slot >= 0)
            weft_parameters_point(rings_of(s)->parameters, task->layer, slot, weights);
    }
}

/* What is enqueued of a backward's first half leaves work for the second. */
static weft_status backward_part(const weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    weft_pass *pass = s->call.pass;
    weft_layer *layer = pass->model->tree.layers[task->layer];
    weft_tensor dy = operand(s, task, WEFT_OPERAND_DY), dx = operand(s, task, WEFT_OPERAND_DX);
    pass->leaves = leaves(s, task);
    pass->defers = pass->leaves || task->flow == WEFT_FLOW_INPUT;
    pass->listed = task->layer;
    if (pass->leaves)
        pass->deferred = &s->leaves[s->at];
    const weft_status status = weft_part_backward(layer, pass, s->part, lane, &dy, &dx);
    pass->defers = pass->leaves = false;
    return status;
}

/* Of a layer that does not split the first half has left nothing. */
static weft_status run_part(const weft_pass_strand *s, const weft_task *task, weft_lane *lane)
{
    weft_pass *pass = s->call.pass;
    point_parameters(s, task);
    if (task->flow == WEFT_FLOW_WEIGHT)
        return weft_pass_run_deferred(pass, task->layer);
    if (task->flow != WEFT_FLOW_ACTIVATION)
        return backward_part(s, task, lane);
    const bool has_output = weft_task_slot(task, WEFT_OPERAND_Y) >= 0;
    weft_tensor x = operand(s, task, WEFT_OPERAND_X), y = operand(s, task, WEFT_OPERAND_Y);
    return weft_part_forward(pass->model->tree.layers[task->layer], pass, s->part, lane, &x,
                             has_output ? &y : NULL);
}

/* Of a pair's layers, whose parts take turns, a timeline has no slices. */
static int track_of(const weft_pass_strand *s)
{
    return s->is_alone ? (int)WEFT_TRACK_LAYERS : (int)WEFT_NO_TRACK;
}

/* The metrics that a repeated forward changes come back before another pass's parts, which count.
 */
static weft_status run_layer(void *context, const weft_task *part, weft_lane *lane)
{
    weft_pass_strand *s = context;
    weft_pass *pass = s->call.pass;
    const weft_model_sums *sums = &pass->model->sums;
    const weft_task *task = s->layer = s->part == 0 ? part : s->layer;
    const bool again = task->kind == WEFT_TASK_RECOMPUTE;
    if (s->part == 0)
        WEFT_TRY(weft_note_task_begin(pass, lane, task, track_of(s), &s->slice));
    if (again && (s->part == 0 || !s->is_alone))
        WEFT_TRY(copy_metrics(pass, sums->saved, sums->own));
    if (s->part == 0)
        WEFT_TRY(begin_task(s, task, lane));
    WEFT_TRY(run_part(s, task, lane));
    s->part++;
    const bool is_last = !goes_on(s);
    if (again && (is_last || !s->is_alone))
        WEFT_TRY(copy_metrics(pass, sums->own, sums->saved));
    if (!is_last)
        return WEFT_OK;
    WEFT_TRY(end_task(s, task, lane));
    return weft_note_task_end(pass, lane, track_of(s), s->slice);
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    return gather_weights(context, task, lane);
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_strand *s = context;
    const weft_pass *pass = s->call.pass;
    return weft_pass_training(pass) ? reduce_gradients(s, task, weft_pass_overwrite(pass), lane)
                                    : WEFT_OK;
}

static weft_status run_offload(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_strand *s = context;
    weft_pass *pass = s->call.pass;
    return weft_offload_out(&pass->model->memory.offload, s->program, task,
                            weft_pass_training(pass), &pass->copies,
                            &pass->offloaded[task->layer - pass->first], lane);
}

static weft_status run_prefetch(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_pass_strand *s = context;
    weft_pass *pass = s->call.pass;
    return weft_offload_back(&pass->model->memory.offload, s->program, task, pass,
                             &pass->offloaded[task->layer - pass->first], lane);
}

static weft_status run_task(void *context, const weft_task *task, weft_lane *lane)
{
    static const weft_task_function beside[WEFT_NUM_TASK_KINDS] = {
        [WEFT_TASK_GATHER] = run_gather,
        [WEFT_TASK_REDUCE] = run_reduce,
        [WEFT_TASK_OFFLOAD] = run_offload,
        [WEFT_TASK_PREFETCH] = run_prefetch};
    return (weft_body_beside(task) ? beside[task->kind] : run_layer)(context, task, lane);
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

static const weft_program *program_of(const weft_pass_call *call, bool leaving)
{
    const weft_bodies *b = call->pass->bodies;
    return leaving ? &b->leaving[call->pass->chunk]
                   : &b->programs[WEFT_NUM_PASS_KINDS * call->pass->chunk + call->kind];
}

/* What comes before the program's tasks. An empty stage hands its input on. */
static weft_status begin(weft_pass_strand *s)
{
    const weft_pass_call *call = &s->call;
    weft_pass *pass = call->pass;
    const weft_model *model = pass->model;
    s->program = program_of(call, s->leaves);
    s->mark = weft_pass_mark(pass);
    if (call->kind == WEFT_PASS_FORWARD) {
        weft_stack_rewind(&pass->stash, 0);
        weft_stack_rewind(&pass->host, 0);
        weft_stack_rewind(&pass->copies, 0);
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
    fill_slots(call, s->program, s->slots);
    return s->program->num_tasks > 0 || call->kind == WEFT_PASS_RECOMPUTE ||
                   call->kind == WEFT_PASS_WEIGHTS
               ? WEFT_OK
               : weft_lane_copy(pass->lane, call->to->data, call->from->data,
                                weft_shape_boundary_bytes(&model->shape));
}

static void end(const weft_pass_strand *s)
{
    weft_pass *pass = s->call.pass;
    const weft_pass_kind kind = s->call.kind;
    advance_rings(s);
    weft_pass_release(pass, s->mark);
    size_t held = pass->stash.used_bytes + pass->host.used_bytes + pass->copies.used_bytes;
    if (!pass->backward && held > pass->held_bytes) {
        pass->held_bytes = held;
        pass->fullest = pass->rows;
        pass->fullest_kept = pass->kept_rows;
    }
    if (kind == WEFT_PASS_INPUT)
        weft_deferred_note(pass->deferred);
}

/* --- what a whole backward leaves for later: its memory outlives the layer's own part of the turn,
 * so two layers have memory in turn ------------------------------------------------------------ */

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

/* The reduction of a layer that has left something. */
static bool waits_for_left(const weft_pass_strand *s, const weft_task *task)
{
    return s->leaves && task->kind == WEFT_TASK_REDUCE &&
           s->call.pass->model->run.leaves[task->layer] && has_left(s, s->at);
}

/* Enqueues what stands beside layers in front of the next one. */
static weft_status go_on(weft_pass_strand *s)
{
    const weft_program *program = s->program;
    while (s->cursor.at < program->num_tasks && weft_body_beside(&program->tasks[s->cursor.at]))
        if (waits_for_left(s, &program->tasks[s->cursor.at])) {
            s->reduces[s->at] = s->cursor;
            s->cursor.at++;
        } else {
            WEFT_TRY(weft_program_next(&s->cursor));
        }
    return WEFT_OK;
}

/* Behind what a layer left comes its reduction, which waits for the layer's task. */
static weft_status reduce_left(weft_pass_strand *s, int at)
{
    weft_cursor reduce = s->reduces[at];
    uint32_t layer = reduce.at;
    if (!reduce.program || has_left(s, at))
        return WEFT_OK;
    while (weft_body_beside(&s->program->tasks[layer]))
        layer--;
    s->reduces[at] = (weft_cursor){0};
    WEFT_TRY(weft_program_end_again(&s->cursor, layer));
    return weft_program_next(&reduce);
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

/* See weft_outline_loss_waits. */
static bool waits_for(const weft_pass_strand *forward, const weft_pass_strand *backward)
{
    const weft_program *program = forward->program;
    const weft_model *model = forward->call.pass->model;
    return model->run.loss_waits && forward->cursor.at < program->num_tasks &&
           program->tasks[forward->cursor.at].layer == model->tree.num_layers - 1 &&
           (next_part(backward) != WEFT_PART_NONE || left_by(backward));
}

static weft_status take_part(weft_pass_strand *s)
{
    s->passed = -1;
    if (s->part == 0)
        WEFT_TRY(begin_leaving(s, &s->program->tasks[s->cursor.at]));
    WEFT_TRY(weft_program_next(&s->cursor));
    return go_on(s);
}

/* --- bodies made ---------------------------------------------------------------------------- */

/* How many kinds of passes the model has. */
static int num_kinds(const weft_model *model)
{
    return model->setup.num_deferred > 0 ? WEFT_NUM_PASS_KINDS
           : model->setup.training       ? WEFT_NUM_WHOLE_PASS_KINDS
                                         : 1;
}

/* Whose bodies are made. */
typedef struct body_maker {
    const weft_model *model;
    bool leaving;
} body_maker;

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const body_maker *m = context;
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    return task->flow == WEFT_FLOW_WEIGHT
               ? part == 0
               : weft_part_at(m->model->tree.layers[task->layer], m->model, NULL,
                              way_of(m->model, task, m->leaving), part, out);
}

/* Room for the programs that run. */
static weft_status make_room(weft_model *model, int num_slots, uint32_t num_tasks)
{
    for (int i = 0; i <= model->setup.pairs; i++)
        if (num_tasks > model->run.executors[i].num_done)
            WEFT_TRY(
                weft_executor_prepare(&model->run.executors[i], model->setup.device, num_tasks));
    if (num_slots <= model->run.num_slots)
        return WEFT_OK;
    model->run.num_slots = num_slots;
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++) {
        WEFT_TRY(WEFT_ARRAY(&model->arena, (size_t)num_slots, &model->run.slots[i]));
    }
    return WEFT_OK;
}

static weft_status make_body(weft_model *model, size_t of, bool leaving, weft_program *out)
{
    const body_maker maker = {model, leaving};
    const weft_program *pass = &model->run.programs[of];
    WEFT_TRY(weft_program_body(pass, part_of, &maker, &model->arena, out));
    if (!weft_device_is_note(model->setup.device))
        WEFT_TRY(weft_program_body_check(pass, part_of, &maker, out));
    return make_room(model, out->num_slots, out->num_tasks);
}

static weft_status make_bodies(weft_model *model, const weft_task *const inside[2])
{
    const size_t num_chunks = (size_t)model->layout.num_chunks,
                 count = WEFT_NUM_PASS_KINDS * num_chunks;
    weft_bodies *b;
    WEFT_TRY(WEFT_ARRAY(&model->arena, 1, &b));
    WEFT_TRY(WEFT_ARRAY(&model->arena, count, &b->programs));
    for (size_t i = 0; i < count; i++)
        if ((int)(i % WEFT_NUM_PASS_KINDS) < num_kinds(model))
            WEFT_TRY(make_body(model, i, false, &b->programs[i]));
    if (model->setup.leaves_weights)
        WEFT_TRY(WEFT_ARRAY(&model->arena, num_chunks, &b->leaving));
    for (size_t c = 0; b->leaving && c < num_chunks; c++)
        WEFT_TRY(
            make_body(model, WEFT_NUM_PASS_KINDS * c + WEFT_PASS_BACKWARD, true, &b->leaving[c]));
    memcpy(b->inside, inside, sizeof b->inside);
    b->earlier = model->run.bodies;
    model->run.bodies = b;
    return WEFT_OK;
}

/* Those with the programs that MoE layers have now. */
static weft_status find_bodies(weft_model *model, const weft_bodies **out)
{
    const weft_moe_plan *plan = model->moe ? model->moe->current : NULL;
    const weft_moe_whole *whole = plan ? &plan->wholes[0] : NULL; /* the others go with it */
    const weft_task *const inside[2] = {whole ? whole->programs[0].tasks : NULL,
                                        whole ? whole->programs[1].tasks : NULL};
    const weft_bodies *b = model->run.bodies;
    while (b && memcmp(b->inside, inside, sizeof inside) != 0)
        b = b->earlier;
    if (!b) {
        WEFT_TRY(make_bodies(model, inside));
        b = model->run.bodies;
    }
    *out = b;
    return WEFT_OK;
}

/* --- bodies -------------------------------------------------------------------------------- */

static weft_status open_strand(weft_model *model, int index, const weft_pass_call *call,
                               bool is_alone, weft_deferred *left)
{
    weft_pass_strand *s = &model->run.body->strands[index];
    *s = (weft_pass_strand){.call = *call,
                            .slots = model->run.slots[index],
                            .executor = &model->run.executors[index],
                            .is_alone = is_alone,
                            .leaves = left};
    WEFT_TRY(begin(s));
    s->executor->context = s;
    weft_pass_prepare(call->pass, s->executor);
    WEFT_TRY(weft_program_open(s->program, s->executor, &s->cursor));
    return go_on(s);
}

static bool has_more(const struct weft_open_body *body)
{
    const weft_pass_strand *backward = &body->strands[WEFT_PAIR_BACKWARD];
    return next_part(&body->strands[WEFT_PAIR_FORWARD]) != WEFT_PART_NONE ||
           next_part(backward) != WEFT_PART_NONE || left_by(backward) != WEFT_LEFT_NONE;
}

static weft_status end_body(struct weft_open_body *body)
{
    weft_pass *first = body->strands[0].call.pass;
    body->is_open = false;
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        if (body->strands[i].call.pass)
            end(&body->strands[i]);
    return body->gives_losses ? weft_graphs_give_losses(first) : WEFT_OK;
}

/* Of its strands, which are open. */
static weft_status open_body(struct weft_open_body *body)
{
    body->turns = (weft_turns){.whose = WEFT_PAIR_BACKWARD};
    body->gives_losses = false;
    body->is_open = has_more(body);
    return body->is_open ? WEFT_OK : end_body(body);
}

static weft_status open_pass(const weft_pass_call *call)
{
    weft_model *model = call->pass->model;
    model->run.body->strands[1] = (weft_pass_strand){0};
    WEFT_TRY(open_strand(model, 0, call, true, NULL));
    return open_body(model->run.body);
}

bool weft_model_goes_on(const weft_model *model)
{
    return model->run.body->is_open;
}

weft_status weft_model_next(weft_model *model, int *out_layer)
{
    struct weft_open_body *body = model->run.body;
    weft_pass_strand *f = &body->strands[WEFT_PAIR_FORWARD],
                     *b = &body->strands[WEFT_PAIR_BACKWARD];
    const weft_part_kind next[WEFT_PAIR_STRANDS] = {waits_for(f, b) ? WEFT_PART_NONE : next_part(f),
                                                    next_part(b)};
    const int whose = weft_turns_next(&body->turns, next, left_by(b));
    *out_layer = -1;
    if (whose == WEFT_PAIR_LEFT) {
        WEFT_TRY(take_left(b, body->turns.soon));
    } else {
        WEFT_TRY(take_part(&body->strands[whose]));
        *out_layer = body->strands[whose].passed;
    }
    return has_more(body) ? WEFT_OK : end_body(body);
}

weft_status weft_model_enqueue(weft_model *model)
{
    int layer;
    while (weft_model_goes_on(model))
        WEFT_TRY(weft_model_next(model, &layer));
    return WEFT_OK;
}

static weft_status enqueue(const weft_pass_call *call)
{
    WEFT_TRY(open_pass(call));
    return weft_model_enqueue(call->pass->model);
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
    return model->run.graphs && !model->run.trace && !call->has_points &&
                   is_on_one_lane(program_of(call, false))
               ? weft_graphs_run(call, enqueue)
               : open_pass(call);
}

void weft_pass_serve(weft_pass *pass, int chunk)
{
    pass->chunk = chunk;
    weft_layout_range(&pass->model->layout, pass->model->place.pp.at, chunk, &pass->first,
                      &pass->end);
}

/* Readies the pass for a micro-batch's forward. */
static weft_status ready(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                         weft_lane *lane, weft_pass **out)
{
    weft_pass *pass = *out = &model->memory.passes[slot];
    WEFT_TRY(find_bodies(model, &pass->bodies));
    pass->lane = lane;
    pass->backward = false;
    pass->deferred = NULL;
    pass->micro_batch = *micro_batch;
    weft_pass_serve(pass, micro_batch->chunk);
    return WEFT_OK;
}

weft_status weft_model_forward(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                               weft_lane *lane, const weft_tensor *x, weft_tensor *y)
{
    struct weft_open_body *body = model->run.body;
    weft_pass *pass;
    WEFT_TRY(ready(model, slot, micro_batch, lane, &pass));
    if (model->run.graphs)
        WEFT_TRY(weft_graphs_take_tokens(pass));
    WEFT_TRY(run(&(weft_pass_call){.pass = pass, .kind = WEFT_PASS_FORWARD, .from = x, .to = y}));
    body->gives_losses = model->run.graphs && body->is_open;
    return model->run.graphs && !body->is_open ? weft_graphs_give_losses(pass) : WEFT_OK;
}

/* deferred: the slot of a backward in two halves, else -1. */
static weft_pass_call backward_of(weft_model *model, weft_pass_kind kind, int slot, int deferred,
                                  weft_lane *lane, const weft_tensor *dy, weft_tensor *dx)
{
    weft_pass *pass = &model->memory.passes[slot];
    weft_pass_call call = {.pass = pass, .kind = kind, .from = dy, .to = dx};
    pass->lane = lane;
    pass->backward = true;
    if (deferred >= 0)
        call.deferred = pass->deferred = &model->memory.deferred[deferred];
    return call;
}

weft_status weft_model_recompute(weft_model *model, int slot, weft_lane *lane)
{
    const weft_pass_call call = backward_of(model, WEFT_PASS_RECOMPUTE, slot, -1, lane, NULL, NULL);
    return run(&call);
}

weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, bool has_points)
{
    weft_pass_call call = backward_of(model, WEFT_PASS_BACKWARD, slot, -1, lane, dy, dx);
    call.has_points = has_points;
    return run(&call);
}

weft_status weft_model_backward_input(weft_model *model, int slot, int deferred, weft_lane *lane,
                                      const weft_tensor *dy, weft_tensor *dx)
{
    const weft_pass_call call = backward_of(model, WEFT_PASS_INPUT, slot, deferred, lane, dy, dx);
    return run(&call);
}

weft_status weft_model_backward_weights(weft_model *model, int slot, int deferred, weft_lane *lane,
                                        bool has_points)
{
    weft_pass_call call = backward_of(model, WEFT_PASS_WEIGHTS, slot, deferred, lane, NULL, NULL);
    call.has_points = has_points;
    return run(&call);
}

weft_status weft_model_pair(weft_model *model, weft_lane *lane, const weft_pair_call *call)
{
    const bool splits = call->deferred >= 0;
    const weft_pass_call gradients =
        backward_of(model, splits ? WEFT_PASS_INPUT : WEFT_PASS_BACKWARD, call->backward_slot,
                    call->deferred, lane, call->dy, call->dx);
    weft_pass_call activations = {.kind = WEFT_PASS_FORWARD, .from = call->x, .to = call->y};
    weft_deferred *left = model->setup.leaves_weights && !splits
                              ? &model->memory.deferred[model->setup.num_deferred]
                              : NULL;
    WEFT_TRY(ready(model, call->forward_slot, &call->micro_batch, lane, &activations.pass));
    WEFT_TRY(open_strand(model, WEFT_PAIR_FORWARD, &activations, false, NULL));
    WEFT_TRY(open_strand(model, WEFT_PAIR_BACKWARD, &gradients, false, left));
    return open_body(model->run.body);
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
    const weft_bodies *bodies;
    const int num_chunks = model->layout.num_chunks;
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
        for (int kind = 0; kind < num_kinds(model); kind++)
            WEFT_TRY(make_program(model, &shape, (weft_pass_kind)kind,
                                  &model->run.programs[WEFT_NUM_PASS_KINDS * chunk + kind]));
    }
    WEFT_TRY(WEFT_ARRAY(&model->arena, 1, &model->run.body));
    for (int i = 0; i <= model->setup.pairs; i++)
        for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
            model->run.executors[i].run[kind] = run_task;
    return find_bodies(model, &bodies);
}
