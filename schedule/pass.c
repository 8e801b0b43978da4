#include "schedule/pass.h"

#include <stdio.h>

#include "schedule/build.h"
#include "schedule/check.h"

/* A pass's program while it is written. */
typedef struct writer {
    const weft_chunk_shape *shape;
    weft_program_builder *builder;
    int32_t from, to;                  /* slots of the chunk's input and output; -1: none */
    int32_t input;                     /* backward: the slot of the chunk's received input */
    int32_t stash, outputs;            /* first slots of the layers' stashes and outputs */
    int32_t gradients;                 /* the first of two slots */
    int32_t again, between;            /* first slots of recomputed stashes and outputs */
    int32_t weights, weight_gradients; /* first slots of the rings */
    int32_t offloaded, inputs, host;   /* first slots of the rings; of stashes on the host */
    int32_t deferred;                  /* the first slot */
    weft_pass_kind kind;
    weft_task *tasks; /* the layers' tasks, which `emit` appends */
    int num_tasks;
    weft_arena *scratch;
} writer;

static weft_status add_slots(writer *w, weft_slot_kind holds, int count, uint64_t bytes,
                             int32_t *out)
{
    const weft_slot slot = {.holds = holds, .chunk = -1, .bytes = bytes};
    return weft_program_add_slots(w->builder, &slot, count, out);
}

bool weft_pass_gathers(const weft_chunk_shape *s, int i, weft_flow flow)
{
    return s->weight_slots > 0 && s->layers[i].gathers && flow != WEFT_FLOW_WEIGHT &&
           (flow == WEFT_FLOW_ACTIVATION || !s->layers[i].is_loss);
}

bool weft_pass_reduces(const weft_chunk_shape *s, int i, weft_flow flow)
{
    return s->gradient_slots > 0 && s->layers[i].reduces && flow != WEFT_FLOW_INPUT &&
           (flow != WEFT_FLOW_WEIGHT || s->layers[i].splits) &&
           (flow == WEFT_FLOW_ACTIVATION) == s->layers[i].is_loss;
}

/* The index of a LAYER's operand for weight gradients, in a flow that has one. */
static int gradients_of(weft_flow flow)
{
    return flow == WEFT_FLOW_WEIGHT ? 2 : flow == WEFT_FLOW_GRADIENT ? 4 : 5;
}

static bool is_backward(weft_pass_kind kind)
{
    return kind == WEFT_PASS_BACKWARD || kind == WEFT_PASS_INPUT;
}

/* The flow of a layer's task. */
static weft_flow flow_of(const weft_chunk_shape *s, weft_pass_kind kind, int i)
{
    return kind == WEFT_PASS_WEIGHTS                        ? WEFT_FLOW_WEIGHT
           : kind == WEFT_PASS_INPUT && s->layers[i].splits ? WEFT_FLOW_INPUT
           : is_backward(kind)                              ? WEFT_FLOW_GRADIENT
                                                            : WEFT_FLOW_ACTIVATION;
}

/* Whether a pass fills slots of weights' gradients. */
static bool fills_gradients(const weft_chunk_shape *s, bool backward)
{
    bool fills = backward;
    for (int i = 0; i < s->num_layers; i++)
        fills |= weft_pass_reduces(s, i, WEFT_FLOW_ACTIVATION);
    return fills;
}

/* How many layers of its group precede the layer. */
static int place_in_group(const weft_chunk_shape *s, int i)
{
    int first = i;
    while (first > 0 && s->layers[first - 1].group == s->layers[i].group)
        first--;
    return i - first;
}

static bool ends_group(const weft_chunk_shape *s, int i)
{
    return i == s->num_layers - 1 || s->layers[i + 1].group != s->layers[i].group;
}

/* The first layer of the group that is recomputed early; num_layers: none is. */
static int early_group(const weft_chunk_shape *s)
{
    const int last = s->num_layers - 1;
    return s->recomputes_early && last >= 0 ? last - place_in_group(s, last) : s->num_layers;
}

/* Adds slots: the k-th fits the stash of any group's k-th layer. */
static weft_status add_recomputed(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    int longest = 1;
    for (int k = 0; k < longest; k++) {
        uint64_t most = 0;
        for (int i = 0, place = 0; i < s->num_layers; i++) {
            place = i > 0 && s->layers[i - 1].group == s->layers[i].group ? place + 1 : 0;
            if (s->layers[i].group == 0)
                continue;
            longest = place < longest ? longest : place + 1;
            if (place == k && s->layers[i].stash_bytes > most)
                most = s->layers[i].stash_bytes;
        }
        WEFT_TRY(add_slots(w, WEFT_SLOT_RECOMPUTED, 1, most, k == 0 ? &w->again : NULL));
    }
    return add_slots(w, WEFT_SLOT_RECOMPUTED_LAYER, longest - 1, s->row_bytes, &w->between);
}

static bool recomputes(const weft_chunk_shape *s)
{
    for (int i = 0; i < s->num_layers; i++)
        if (s->layers[i].group > 0)
            return true;
    return false;
}

/* How many layers before it offload (inputs: offload their inputs). */
static int number_in_ring(const weft_chunk_shape *s, int layer, bool inputs)
{
    int number = 0;
    for (int i = 0; i < layer; i++)
        number += inputs ? s->layers[i].offloads_input : s->layers[i].offloads;
    return number;
}

static bool offloads(const weft_chunk_shape *s)
{
    return number_in_ring(s, s->num_layers, false) > 0;
}

/* The slots of a layer's offloaded stash and, below, input; -1: not offloaded. */
static int32_t offloaded_of(const writer *w, int i)
{
    const weft_chunk_shape *s = w->shape;
    return s->layers[i].offloads ? w->offloaded + number_in_ring(s, i, false) % s->offload_slots
                                 : -1;
}

static int32_t input_of(const writer *w, int i)
{
    const weft_chunk_shape *s = w->shape;
    return s->layers[i].offloads_input ? w->inputs + number_in_ring(s, i, true) % s->input_slots
                                       : -1;
}

static weft_status add_offloaded(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    if (!offloads(s))
        return WEFT_OK;
    for (int k = 0; k < s->offload_slots; k++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_OFFLOADED, 1, s->offload_bytes[k],
                           k == 0 ? &w->offloaded : NULL));
    WEFT_TRY(add_slots(w, WEFT_SLOT_OFFLOADED_LAYER, s->input_slots, s->row_bytes, &w->inputs));
    for (int i = 0; i < s->num_layers; i++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_HOST_STASH, 1,
                           (s->layers[i].offloads ? s->layers[i].offloaded_bytes : 0) +
                               (s->layers[i].offloads_input ? s->row_bytes : 0),
                           i == 0 ? &w->host : NULL));
    return WEFT_OK;
}

static weft_status add_stashes(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    for (int i = 0; i < s->num_layers; i++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER_STASH, 1,
                           s->layers[i].group > 0 ? 0 : s->layers[i].stash_bytes,
                           i == 0 ? &w->stash : NULL));
    return WEFT_OK;
}

static weft_status add_deferred(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    for (int i = 0; i < s->num_layers; i++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_DEFERRED, 1, s->layers[i].deferred_bytes,
                           i == 0 ? &w->deferred : NULL));
    return WEFT_OK;
}

static weft_status add_weights_memory(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    WEFT_TRY(add_stashes(w));
    WEFT_TRY(add_slots(w, WEFT_SLOT_WEIGHT_GRADIENTS, s->gradient_slots, s->gradient_bytes,
                       &w->weight_gradients));
    return add_deferred(w);
}

static weft_status add_memory(writer *w, bool backward)
{
    const weft_chunk_shape *s = w->shape;
    const bool again = recomputes(s);
    const int between = s->num_layers > 0 ? s->num_layers - 1 : 0;
    w->input = -1;
    WEFT_TRY(add_slots(w, backward ? WEFT_SLOT_GRADIENT : WEFT_SLOT_ACTIVATION,
                       backward ? s->passes_on : s->receives, s->row_bytes, &w->from));
    WEFT_TRY(add_slots(w, backward ? WEFT_SLOT_INPUT_GRADIENT : WEFT_SLOT_OUTPUT,
                       backward ? s->receives : s->passes_on, s->row_bytes, &w->to));
    WEFT_TRY(add_stashes(w));
    WEFT_TRY(add_slots(w, WEFT_SLOT_WEIGHTS, s->weight_slots, s->weight_bytes, &w->weights));
    if (fills_gradients(s, backward))
        WEFT_TRY(add_slots(w, WEFT_SLOT_WEIGHT_GRADIENTS, s->gradient_slots, s->gradient_bytes,
                           &w->weight_gradients));
    if (backward)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER_GRADIENT, 2, s->row_bytes, &w->gradients));
    if (backward && again)
        WEFT_TRY(add_slots(w, WEFT_SLOT_ACTIVATION, s->receives, s->row_bytes, &w->input));
    if (!backward || again)
        for (int i = 0; i < between; i++)
            WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER, 1,
                               s->layers[i + 1].offloads_input ? 0 : s->row_bytes,
                               i == 0 ? &w->outputs : NULL));
    WEFT_TRY(add_offloaded(w));
    if (w->kind == WEFT_PASS_INPUT)
        WEFT_TRY(add_deferred(w));
    return again ? add_recomputed(w) : WEFT_OK;
}

static weft_task task_of(const weft_chunk_shape *shape, weft_task_kind kind, weft_flow flow, int i)
{
    weft_task task = weft_task_of(kind, flow);
    task.layer = shape->first + i;
    task.flags =
        kind == WEFT_TASK_LAYER && flow == WEFT_FLOW_ACTIVATION && shape->layers[i].host_waits
            ? WEFT_TASK_HOST_WAITS
            : 0;
    return task;
}

static void append(writer *w, weft_task task, int32_t a, int32_t b, int32_t c)
{
    task.operands[0] = a;
    task.operands[1] = b;
    task.operands[2] = c;
    w->tasks[w->num_tasks++] = task;
}

static int32_t stash_of(const writer *w, int i)
{
    const weft_chunk_shape *s = w->shape;
    return s->layers[i].group > 0 ? w->again + place_in_group(s, i) : w->stash + i;
}

/* Where a layer's output lies for the next one. */
static int32_t output_of(const writer *w, int i)
{
    const weft_chunk_shape *s = w->shape;
    if (s->layers[i + 1].offloads_input)
        return input_of(w, i + 1);
    return s->layers[i].group > 0 && !ends_group(s, i) ? w->between + place_in_group(s, i)
                                                       : w->outputs + i;
}

/* Appends forwards; operands x, stash, y. */
static void append_forwards(writer *w)
{
    int32_t x = w->from;
    for (int i = 0; i < w->shape->num_layers; i++) {
        const int32_t y = i == w->shape->num_layers - 1 ? w->to : output_of(w, i);
        append(w, task_of(w->shape, WEFT_TASK_LAYER, WEFT_FLOW_ACTIVATION, i), x, stash_of(w, i),
               y);
        w->tasks[w->num_tasks - 1].operands[4] = offloaded_of(w, i);
        x = y;
    }
}

/* Appends the recomputation of the group that layer `last` ends. unused: a free gradient slot. */
static void append_group(writer *w, int last, int32_t unused)
{
    for (int i = last - place_in_group(w->shape, last); i <= last; i++)
        append(w, task_of(w->shape, WEFT_TASK_RECOMPUTE, WEFT_FLOW_ACTIVATION, i),
               i == 0 ? w->input : output_of(w, i - 1), stash_of(w, i),
               i == last ? unused : output_of(w, i));
}

/* Appends backwards; operands stash, dy, dx. dx: the other of two gradient slots, or dy's own if
 * the layer works in place. */
static void append_backwards(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    int32_t dy = w->from;
    for (int i = s->num_layers - 1; i >= 0; i--) {
        const bool is_own = dy >= w->gradients && dy < w->gradients + 2;
        const int32_t other = is_own ? 2 * w->gradients + 1 - dy : w->gradients;
        if (s->layers[i].group > 0 && ends_group(s, i) && i < early_group(s))
            append_group(w, i, other);
        int32_t dx = is_own && s->layers[i].in_place ? dy : other;
        if (i == 0 && w->to >= 0)
            dx = w->to;
        const weft_flow flow = flow_of(s, w->kind, i);
        append(w, task_of(s, WEFT_TASK_LAYER, flow, i), stash_of(w, i), dy, dx);
        weft_task *task = &w->tasks[w->num_tasks - 1];
        if (flow == WEFT_FLOW_INPUT) {
            task->operands[4] = w->deferred + i;
        } else {
            task->operands[5] = offloaded_of(w, i);
            task->operands[6] = input_of(w, i);
        }
        dy = dx;
    }
}

/* Appends the second halves of backwards; operands stash, deferred. */
static void append_weights(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    for (int i = s->num_layers - 1; i >= 0; i--)
        append(w, task_of(s, WEFT_TASK_LAYER, WEFT_FLOW_WEIGHT, i),
               s->layers[i].splits ? stash_of(w, i) : -1,
               s->layers[i].splits ? w->deferred + i : -1, -1);
}

/* --- what layers share out ----------------------------------------------------------------- */

static weft_task gather_task(int layer, int before)
{
    weft_task task = weft_task_of(WEFT_TASK_GATHER, WEFT_FLOW_WEIGHT);
    task.lane = WEFT_LANE_GATHER;
    task.layer = layer;
    task.part = before > 0 ? before : -1;
    return task;
}

static weft_task reduce_task(int layer)
{
    weft_task task = weft_task_of(WEFT_TASK_REDUCE, WEFT_FLOW_NONE);
    task.layer = layer;
    return task;
}

/* A gather or a prefetch, and the layer's task behind which its slot is free; -1: free at once. */
typedef struct ahead {
    weft_task task;
    int behind;
} ahead;

/* Sets the weight slots of layers' tasks. Weights that lie in no slot are gathered into the next
 * one, which is free when all users of its content are done. */
static int find_gathers(writer *w, ahead *out)
{
    const weft_chunk_shape *s = w->shape;
    int count = 0, latest = -1;
    struct {
        int layer, last_use;
    } slots[2] = {{-1, -1}, {-1, -1}};
    for (int t = 0; t < w->num_tasks; t++) {
        weft_task *task = &w->tasks[t];
        if (!weft_pass_gathers(s, task->layer - s->first, task->flow))
            continue;
        int slot = 0, before = 0;
        while (slot < s->weight_slots && slots[slot].layer != task->layer)
            slot++;
        if (slot == s->weight_slots) {
            slot = count % s->weight_slots;
            latest = slots[slot].last_use > latest ? slots[slot].last_use : latest;
            for (int g = 0; g < count; g++)
                before += out[g].task.layer == task->layer;
            out[count] = (ahead){gather_task(task->layer, before), latest};
            out[count++].task.operands[0] = w->weights + slot;
            slots[slot].layer = task->layer;
        }
        slots[slot].last_use = t;
        task->operands[3] = w->weights + slot;
    }
    return count;
}

/* --- what layers offload ------------------------------------------------------------------- */

static weft_task copy_task(const weft_chunk_shape *s, weft_task_kind kind, int i)
{
    weft_task task = weft_task_of(kind, WEFT_FLOW_STASH);
    task.layer = s->first + i;
    return task;
}

static weft_task offload_task(const writer *w, const weft_task *forward)
{
    const int i = forward->layer - w->shape->first;
    weft_task task = copy_task(w->shape, WEFT_TASK_OFFLOAD, i);
    task.operands[0] = forward->operands[4];
    task.operands[1] = input_of(w, i);
    task.operands[2] = w->host + i;
    return task;
}

/* Lists prefetches: each follows the backward that last used its slots. */
static int find_prefetches(const writer *w, ahead *out)
{
    const weft_chunk_shape *s = w->shape;
    int count = 0, latest = -1;
    for (int t = 0; t < w->num_tasks; t++) {
        const weft_task *task = &w->tasks[t];
        const int i = task->layer - s->first;
        if (task->kind != WEFT_TASK_LAYER || !s->layers[i].offloads)
            continue;
        for (int k = latest + 1; k < t; k++)
            if (w->tasks[k].kind == WEFT_TASK_LAYER &&
                (w->tasks[k].operands[5] == task->operands[5] ||
                 (task->operands[6] >= 0 && w->tasks[k].operands[6] == task->operands[6])))
                latest = k;
        out[count] = (ahead){copy_task(s, WEFT_TASK_PREFETCH, i), latest};
        out[count].task.operands[0] = w->host + i;
        out[count].task.operands[1] = task->operands[5];
        out[count++].task.operands[2] = task->operands[6];
    }
    return count;
}

/* --- all tasks ----------------------------------------------------------------------------- */

/* Gathers or prefetches, in order. */
typedef struct queue {
    ahead *items;
    int count, next;
} queue;

static weft_status emit_ahead(writer *w, queue *q, int behind)
{
    for (; q->next < q->count && q->items[q->next].behind <= behind; q->next++)
        WEFT_TRY(weft_program_append(w->builder, &q->items[q->next].task, NULL, 0, NULL));
    return WEFT_OK;
}

static weft_status make_queue(const writer *w, queue *out)
{
    void *items;
    WEFT_TRY(weft_arena_alloc_array(w->scratch, (size_t)w->num_tasks + 1, sizeof(ahead), &items));
    *out = (queue){.items = items};
    return WEFT_OK;
}

/* Appends the layers' tasks, with gathers and prefetches as early as possible, and reductions and
 * offloads behind their layer. */
static weft_status emit(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    int num_reduces = 0;
    queue gathers, prefetches;
    WEFT_TRY(make_queue(w, &gathers));
    WEFT_TRY(make_queue(w, &prefetches));
    gathers.count = find_gathers(w, gathers.items);
    if (is_backward(w->kind))
        prefetches.count = find_prefetches(w, prefetches.items);
    WEFT_TRY(emit_ahead(w, &gathers, -1));
    WEFT_TRY(emit_ahead(w, &prefetches, -1));
    for (int t = 0; t < w->num_tasks; t++) {
        weft_task *task = &w->tasks[t], reduce = reduce_task(task->layer);
        const int i = task->layer - s->first;
        const bool forward = task->kind == WEFT_TASK_LAYER && task->flow == WEFT_FLOW_ACTIVATION;
        const bool reduces = task->kind == WEFT_TASK_LAYER && weft_pass_reduces(s, i, task->flow);
        if (reduces)
            task->operands[gradients_of(task->flow)] = reduce.operands[0] =
                w->weight_gradients + num_reduces++ % s->gradient_slots;
        WEFT_TRY(weft_program_append(w->builder, task, NULL, 0, NULL));
        WEFT_TRY(emit_ahead(w, &gathers, t));
        WEFT_TRY(emit_ahead(w, &prefetches, t));
        if (reduces)
            WEFT_TRY(weft_program_append(w->builder, &reduce, NULL, 0, NULL));
        if (forward && s->layers[i].offloads) {
            const weft_task offload = offload_task(w, task);
            WEFT_TRY(weft_program_append(w->builder, &offload, NULL, 0, NULL));
        }
    }
    return WEFT_OK;
}

static weft_status write(writer *w, weft_pass_kind kind)
{
    const weft_chunk_shape *s = w->shape;
    WEFT_TRY(WEFT_ARRAY(w->scratch, 2 * (size_t)s->num_layers + 1, &w->tasks));
    w->kind = kind;
    WEFT_TRY(kind == WEFT_PASS_WEIGHTS ? add_weights_memory(w)
                                       : add_memory(w, kind != WEFT_PASS_FORWARD));
    if (kind == WEFT_PASS_FORWARD)
        append_forwards(w);
    else if (is_backward(kind))
        append_backwards(w);
    else if (kind == WEFT_PASS_WEIGHTS)
        append_weights(w);
    else if (early_group(s) < s->num_layers)
        append_group(w, s->num_layers - 1, w->gradients);
    return emit(w);
}

weft_status weft_program_pass(const weft_chunk_shape *shape, weft_pass_kind kind, weft_arena *arena,
                              weft_program *out)
{
    weft_arena scratch = {0};
    writer w = {.shape = shape, .scratch = &scratch};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    const weft_status status = write(&w, kind);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return weft_program_finish(w.builder, 0, out);
}

const char *weft_pass_kind_text(weft_pass_kind kind)
{
    static const char *const texts[WEFT_NUM_PASS_KINDS] = {"forward", "backward", "recompute",
                                                           "input gradients", "weight gradients"};
    return texts[kind];
}

/* --- the checker --------------------------------------------------------------------------- */

static void expect_weights(const weft_chunk_shape *s, int i, weft_task *task)
{
    *task = task_of(s, WEFT_TASK_LAYER, WEFT_FLOW_WEIGHT, i);
    task->operands[0] = task->operands[1] = s->layers[i].splits ? 0 : -1;
    task->operands[2] = weft_pass_reduces(s, i, WEFT_FLOW_WEIGHT) ? 0 : -1;
}

static void expect_layer(const weft_chunk_shape *s, weft_pass_kind kind, int i, weft_task *task)
{
    const bool backward = is_backward(kind), is_last = i == s->num_layers - 1;
    const weft_flow flow = flow_of(s, kind, i);
    *task = task_of(s, WEFT_TASK_LAYER, flow, i);
    task->operands[0] = backward || i > 0 || s->receives ? 0 : -1;
    task->operands[1] = !backward || !is_last || s->passes_on ? 0 : -1;
    task->operands[2] = backward || !is_last || s->passes_on ? 0 : -1;
    task->operands[3] = weft_pass_gathers(s, i, flow) ? 0 : -1;
    if (flow == WEFT_FLOW_INPUT) {
        task->operands[4] = 0;
        return;
    }
    task->operands[gradients_of(flow)] = weft_pass_reduces(s, i, flow) ? 0 : -1;
    if (backward) {
        task->operands[5] = s->layers[i].offloads ? 0 : -1;
        task->operands[6] = s->layers[i].offloads_input ? 0 : -1;
    } else {
        task->operands[4] = s->layers[i].offloads ? 0 : -1;
    }
}

/* Lists sharded layers' tasks: a reduction behind each layer that makes gradients, and as many
 * gathers as the program has. Values prove that each gather is a layer's, and that layers read
 * their own weights. */
static uint32_t list_shared(const weft_chunk_shape *s, weft_pass_kind kind,
                            const weft_program *program, weft_task *out)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_task *task = &program->tasks[t];
        const int i = task->layer - s->first;
        if (task->kind != WEFT_TASK_GATHER || i < 0 || i >= s->num_layers || !s->layers[i].gathers)
            continue;
        out[count] = gather_task(task->layer, task->part);
        out[count++].operands[0] = 0;
    }
    for (int i = s->num_layers - 1; i >= 0 && kind != WEFT_PASS_RECOMPUTE; i--)
        if (weft_pass_reduces(s, i, flow_of(s, kind, i))) {
            out[count] = reduce_task(s->first + i);
            out[count++].operands[0] = 0;
        }
    return count;
}

/* Lists offloads (forward) or prefetches (backward). */
static uint32_t list_copies(const weft_chunk_shape *s, weft_pass_kind kind, weft_task *out)
{
    const bool backward = is_backward(kind), copies = backward || kind == WEFT_PASS_FORWARD;
    uint32_t count = 0;
    for (int k = 0; k < s->num_layers && copies; k++) {
        const int i = backward ? s->num_layers - 1 - k : k;
        if (!s->layers[i].offloads)
            continue;
        out[count] = copy_task(s, backward ? WEFT_TASK_PREFETCH : WEFT_TASK_OFFLOAD, i);
        out[count].operands[0] = out[count].operands[backward ? 1 : 2] = 0;
        out[count++].operands[backward ? 2 : 1] = s->layers[i].offloads_input ? 0 : -1;
    }
    return count;
}

/* Lists recomputations: groups in backward's order, their layers in forward's. */
static uint32_t list_recomputes(const weft_chunk_shape *s, int from, int end, weft_task *out)
{
    uint32_t count = 0;
    for (int last = end - 1; last >= from; last--) {
        if (s->layers[last].group == 0 || !ends_group(s, last))
            continue;
        for (int i = last - place_in_group(s, last); i <= last; i++) {
            out[count] = task_of(s, WEFT_TASK_RECOMPUTE, WEFT_FLOW_ACTIVATION, i);
            out[count].operands[0] = i > 0 || s->receives ? 0 : -1;
            out[count].operands[1] = out[count].operands[2] = 0;
            out[count].operands[3] = weft_pass_gathers(s, i, WEFT_FLOW_ACTIVATION) ? 0 : -1;
            count++;
        }
    }
    return count;
}

/* Proves that backward finds nothing kept of recomputed layers but each group's first input. */
static weft_status check_kept(const weft_chunk_shape *s, const weft_program *program,
                              const char *where)
{
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_task *task = &program->tasks[t];
        const int i = task->layer - s->first;
        if (task->kind != WEFT_TASK_LAYER && task->kind != WEFT_TASK_RECOMPUTE)
            continue;
        const int32_t x = weft_task_slot(task, WEFT_OPERAND_X);
        const int32_t stash = weft_task_slot(task, WEFT_OPERAND_STASH);
        if (stash < 0)
            continue;
        const bool again = s->layers[i].group > 0;
        const bool inside = again && place_in_group(s, i) > 0;
        if ((program->slots[stash].holds == WEFT_SLOT_RECOMPUTED) != again)
            return WEFT_ERROR(WEFT_INTERNAL, "%s, task %u: the stash of layer %d is %s", where, t,
                              task->layer, again ? "recomputed" : "kept");
        if (x >= 0 && (program->slots[x].holds == WEFT_SLOT_RECOMPUTED_LAYER) != inside)
            return WEFT_ERROR(WEFT_INTERNAL, "%s, task %u: the input of layer %d is %s", where, t,
                              task->layer, inside ? "recomputed" : "kept");
    }
    return WEFT_OK;
}

/* The slot's index within kind `holds`; -1: another kind. */
static int number_of(const weft_program *program, int32_t slot, weft_slot_kind holds)
{
    int number = -1;
    if (slot >= 0 && program->slots[slot].holds == holds)
        for (int32_t i = 0; i <= slot; i++)
            number += program->slots[i].holds == holds;
    return number;
}

/* Proves that a layer uses its own slots of the rings, so forward and backward use the same. */
static weft_status check_rings(const weft_chunk_shape *s, const weft_program *program,
                               const char *where)
{
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_task *task = &program->tasks[t];
        const int i = task->layer - s->first;
        const int32_t x = weft_task_slot(task, WEFT_OPERAND_X);
        const int32_t part = weft_task_slot(task, WEFT_OPERAND_OFFLOADED);
        if (task->kind == WEFT_TASK_GATHER || task->kind == WEFT_TASK_REDUCE)
            continue;
        const int mine = part >= 0 ? number_in_ring(s, i, false) % s->offload_slots : -1;
        if (number_of(program, part, WEFT_SLOT_OFFLOADED) != mine)
            return WEFT_ERROR(WEFT_INTERNAL,
                              "%s, task %u: what layer %d offloads is not in its slot of the ring",
                              where, t, task->layer);
        const int input = x >= 0 && s->layers[i].offloads_input
                              ? number_in_ring(s, i, true) % s->input_slots
                              : -1;
        if (number_of(program, x, WEFT_SLOT_OFFLOADED_LAYER) != input)
            return WEFT_ERROR(WEFT_INTERNAL,
                              "%s, task %u: the input of layer %d is not in its slot of the ring",
                              where, t, task->layer);
    }
    return WEFT_OK;
}

static weft_status check_with(const weft_chunk_shape *shape, weft_pass_kind kind,
                              const weft_program *program, weft_arena *scratch)
{
    const int num = shape->num_layers, early = early_group(shape);
    weft_task *tasks;
    WEFT_TRY(WEFT_ARRAY(scratch, 4 * (size_t)num + program->num_tasks + 1, &tasks));
    uint32_t count = 0;
    if (kind == WEFT_PASS_RECOMPUTE)
        count = list_recomputes(shape, early, num, tasks);
    if (is_backward(kind))
        count = list_recomputes(shape, 0, early, tasks);
    for (int k = 0; k < num && kind != WEFT_PASS_RECOMPUTE && kind != WEFT_PASS_WEIGHTS; k++)
        expect_layer(shape, kind, is_backward(kind) ? num - 1 - k : k, &tasks[count++]);
    for (int k = 0; k < num && kind == WEFT_PASS_WEIGHTS; k++)
        expect_weights(shape, num - 1 - k, &tasks[count++]);
    count += list_shared(shape, kind, program, tasks + count);
    count += list_copies(shape, kind, tasks + count);
    weft_expectation expected = {
        .tasks = tasks,
        .num_tasks = count,
        .ordered = 1u << WEFT_TASK_LAYER | 1u << WEFT_TASK_RECOMPUTE | 1u << WEFT_TASK_REDUCE |
                   1u << WEFT_TASK_OFFLOAD | 1u << WEFT_TASK_PREFETCH,
        .holds = {{WEFT_SLOT_ACTIVATION, WEFT_VALUE_LAYER, WEFT_BY_LAYER, shape->first, 0},
                  {WEFT_SLOT_LAYER, WEFT_VALUE_LAYER, WEFT_BY_LAYER, shape->first + 1, 0},
                  {WEFT_SLOT_GRADIENT, WEFT_VALUE_LAYER_GRADIENT, WEFT_BY_LAYER,
                   shape->first + num - 1, 0},
                  {WEFT_SLOT_LAYER_STASH, WEFT_VALUE_LAYER_STASH, WEFT_BY_LAYER, shape->first, 0},
                  {WEFT_SLOT_HOST_STASH, WEFT_VALUE_HOST_STASH, WEFT_BY_LAYER, shape->first, 0},
                  {WEFT_SLOT_RECOMPUTED, WEFT_VALUE_LAYER_STASH, WEFT_BY_LAYER,
                   shape->first + early, 0}},
        .num_holds = 6};
    if (kind == WEFT_PASS_FORWARD)
        expected.num_holds = 1;
    else if (kind == WEFT_PASS_RECOMPUTE || early == num)
        expected.num_holds = 5;
    if (kind == WEFT_PASS_WEIGHTS)
        expected.holds[0] =
            (weft_holding){WEFT_SLOT_DEFERRED, WEFT_VALUE_DEFERRED, WEFT_BY_LAYER, shape->first, 0};
    snprintf(expected.where, sizeof(expected.where), "%s", weft_pass_kind_text(kind));
    WEFT_TRY(weft_program_check(program, &expected, 1));
    WEFT_TRY(check_kept(shape, program, weft_pass_kind_text(kind)));
    return check_rings(shape, program, weft_pass_kind_text(kind));
}

weft_status weft_program_pass_check(const weft_chunk_shape *shape, weft_pass_kind kind,
                                    const weft_program *program)
{
    weft_arena scratch = {0};
    const weft_status status = check_with(shape, kind, program, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
