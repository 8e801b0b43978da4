#include "schedule/pass.h"

#include <stdio.h>

#include "schedule/build.h"
#include "schedule/check.h"

/* A pass's program while it is written. */
typedef struct writer {
    const weft_chunk_shape *shape;
    weft_program_builder *builder;
    int32_t from, to;       /* of the chunk; -1: none */
    int32_t input;          /* backward: what the chunk received */
    int32_t stash, outputs; /* first of the layers' */
    int32_t gradients;      /* first of the two */
    int32_t again, between; /* first of the stashes that passes share; of the outputs beside them */
} writer;

static weft_status add_slots(writer *w, weft_slot_kind holds, int count, uint64_t bytes,
                             int32_t *out)
{
    const weft_slot slot = {.holds = holds, .chunk = -1, .bytes = bytes};
    return weft_program_add_slots(w->builder, &slot, count, out);
}

/* How many layers of its group stand before the layer. */
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

/* The k-th of the stashes has room for those of the k-th layers of all groups. */
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
    for (int i = 0; i < s->num_layers; i++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER_STASH, 1,
                           s->layers[i].group > 0 ? 0 : s->layers[i].stash_bytes,
                           i == 0 ? &w->stash : NULL));
    if (backward)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER_GRADIENT, 2, s->row_bytes, &w->gradients));
    if (backward && again)
        WEFT_TRY(add_slots(w, WEFT_SLOT_ACTIVATION, s->receives, s->row_bytes, &w->input));
    if (!backward || again)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER, between, s->row_bytes, &w->outputs));
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

static weft_status append(writer *w, weft_task task, int32_t a, int32_t b, int32_t c)
{
    task.operands[0] = a;
    task.operands[1] = b;
    task.operands[2] = c;
    return weft_program_append(w->builder, &task, NULL, 0, NULL);
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
    return s->layers[i].group > 0 && !ends_group(s, i) ? w->between + place_in_group(s, i)
                                                       : w->outputs + i;
}

/* x, stash, y */
static weft_status append_forwards(writer *w)
{
    int32_t x = w->from;
    for (int i = 0; i < w->shape->num_layers; i++) {
        const int32_t y = i == w->shape->num_layers - 1 ? w->to : output_of(w, i);
        WEFT_TRY(append(w, task_of(w->shape, WEFT_TASK_LAYER, WEFT_FLOW_ACTIVATION, i), x,
                        stash_of(w, i), y));
        x = y;
    }
    return WEFT_OK;
}

/* The forward of the group that layer `last` ends, once more. unused: a gradient's place. */
static weft_status append_group(writer *w, int last, int32_t unused)
{
    for (int i = last - place_in_group(w->shape, last); i <= last; i++)
        WEFT_TRY(append(w, task_of(w->shape, WEFT_TASK_RECOMPUTE, WEFT_FLOW_ACTIVATION, i),
                        i == 0 ? w->input : output_of(w, i - 1), stash_of(w, i),
                        i == last ? unused : output_of(w, i)));
    return WEFT_OK;
}

/* stash, dy, dx: of the two gradients the one that dy is not, or dy's own where the layer can. */
static weft_status append_backwards(writer *w)
{
    const weft_chunk_shape *s = w->shape;
    int32_t dy = w->from;
    for (int i = s->num_layers - 1; i >= 0; i--) {
        const bool is_own = dy >= w->gradients && dy < w->gradients + 2;
        const int32_t other = is_own ? 2 * w->gradients + 1 - dy : w->gradients;
        if (s->layers[i].group > 0 && ends_group(s, i) && i < early_group(s))
            WEFT_TRY(append_group(w, i, other));
        int32_t dx = is_own && s->layers[i].in_place ? dy : other;
        if (i == 0 && w->to >= 0)
            dx = w->to;
        WEFT_TRY(
            append(w, task_of(s, WEFT_TASK_LAYER, WEFT_FLOW_GRADIENT, i), stash_of(w, i), dy, dx));
        dy = dx;
    }
    return WEFT_OK;
}

weft_status weft_program_pass(const weft_chunk_shape *shape, weft_pass_kind kind, weft_arena *arena,
                              weft_program *out)
{
    writer w = {.shape = shape};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_memory(&w, kind != WEFT_PASS_FORWARD));
    if (kind == WEFT_PASS_FORWARD)
        WEFT_TRY(append_forwards(&w));
    else if (kind == WEFT_PASS_BACKWARD)
        WEFT_TRY(append_backwards(&w));
    else if (early_group(shape) < shape->num_layers)
        WEFT_TRY(append_group(&w, shape->num_layers - 1, w.gradients));
    return weft_program_finish(w.builder, 0, out);
}

/* --- the checker --------------------------------------------------------------------------- */

static void expect_layer(const weft_chunk_shape *s, weft_pass_kind kind, int i, weft_task *task)
{
    const bool backward = kind == WEFT_PASS_BACKWARD, is_last = i == s->num_layers - 1;
    *task = task_of(s, WEFT_TASK_LAYER, backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION, i);
    task->operands[0] = backward || i > 0 || s->receives ? 0 : -1;
    task->operands[1] = !backward || !is_last || s->passes_on ? 0 : -1;
    task->operands[2] = backward || !is_last || s->passes_on ? 0 : -1;
}

/* Groups are recomputed as backward comes to them, their layers in the forward's order. */
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
            count++;
        }
    }
    return count;
}

/* That of a recomputed layer nothing is taken for kept but its group's first input. */
static weft_status check_kept(const weft_chunk_shape *s, const weft_program *program,
                              const char *where)
{
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_task *task = &program->tasks[t];
        const int i = task->layer - s->first;
        const int32_t x = weft_task_slot(task, WEFT_OPERAND_X);
        const int32_t stash = weft_task_slot(task, WEFT_OPERAND_STASH);
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

static weft_status check_with(const weft_chunk_shape *shape, weft_pass_kind kind,
                              const weft_program *program, weft_arena *scratch)
{
    const int num = shape->num_layers, early = early_group(shape);
    const char *const names[WEFT_NUM_PASS_KINDS] = {"forward", "backward", "recompute"};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * (size_t)num + 1, sizeof(weft_task), &memory));
    weft_task *tasks = memory;
    uint32_t count = 0;
    if (kind == WEFT_PASS_RECOMPUTE)
        count = list_recomputes(shape, early, num, tasks);
    if (kind == WEFT_PASS_BACKWARD)
        count = list_recomputes(shape, 0, early, tasks);
    for (int k = 0; k < num && kind != WEFT_PASS_RECOMPUTE; k++)
        expect_layer(shape, kind, kind == WEFT_PASS_BACKWARD ? num - 1 - k : k, &tasks[count++]);
    weft_expectation expected = {
        .tasks = tasks,
        .num_tasks = count,
        .ordered = 1u << WEFT_TASK_LAYER | 1u << WEFT_TASK_RECOMPUTE,
        .holds = {{WEFT_SLOT_ACTIVATION, WEFT_VALUE_LAYER, true, shape->first},
                  {WEFT_SLOT_LAYER, WEFT_VALUE_LAYER, true, shape->first + 1},
                  {WEFT_SLOT_GRADIENT, WEFT_VALUE_LAYER_GRADIENT, true, shape->first + num - 1},
                  {WEFT_SLOT_LAYER_STASH, WEFT_VALUE_LAYER_STASH, true, shape->first},
                  {WEFT_SLOT_RECOMPUTED, WEFT_VALUE_LAYER_STASH, true, shape->first + early}},
        .num_holds = 5};
    if (kind == WEFT_PASS_FORWARD)
        expected.num_holds = 1;
    else if (kind == WEFT_PASS_RECOMPUTE || early == num)
        expected.num_holds = 4;
    snprintf(expected.where, sizeof(expected.where), "%s", names[kind]);
    WEFT_TRY(weft_program_check(program, &expected, 1));
    return check_kept(shape, program, names[kind]);
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
