#include "schedule/pass.h"

#include <stdio.h>

#include "schedule/build.h"
#include "schedule/check.h"

/* A pass's program while it is written. */
typedef struct writer {
    const weft_chunk_shape *shape;
    weft_program_builder *builder;
    int32_t from, to;       /* of the chunk; -1: none */
    int32_t stash, outputs; /* first of the layers' */
    int32_t gradients;      /* first of the two */
} writer;

static weft_status add_slots(writer *w, weft_slot_kind holds, int count, uint64_t bytes,
                             int32_t *out)
{
    const weft_slot slot = {.holds = holds, .chunk = -1, .bytes = bytes};
    return weft_program_add_slots(w->builder, &slot, count, out);
}

static weft_status add_memory(writer *w, bool backward)
{
    const weft_chunk_shape *s = w->shape;
    WEFT_TRY(add_slots(w, backward ? WEFT_SLOT_GRADIENT : WEFT_SLOT_ACTIVATION,
                       backward ? s->passes_on : s->receives, s->row_bytes, &w->from));
    WEFT_TRY(add_slots(w, backward ? WEFT_SLOT_INPUT_GRADIENT : WEFT_SLOT_OUTPUT,
                       backward ? s->receives : s->passes_on, s->row_bytes, &w->to));
    for (int i = 0; i < s->num_layers; i++)
        WEFT_TRY(add_slots(w, WEFT_SLOT_LAYER_STASH, 1, s->layers[i].stash_bytes,
                           i == 0 ? &w->stash : NULL));
    if (backward)
        return add_slots(w, WEFT_SLOT_LAYER_GRADIENT, 2, s->row_bytes, &w->gradients);
    return add_slots(w, WEFT_SLOT_LAYER, s->num_layers > 0 ? s->num_layers - 1 : 0, s->row_bytes,
                     &w->outputs);
}

static weft_task layer_task(const weft_chunk_shape *shape, int i, bool backward)
{
    weft_task task =
        weft_task_of(WEFT_TASK_LAYER, backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION);
    task.layer = shape->first + i;
    task.flags = !backward && shape->layers[i].host_waits ? WEFT_TASK_HOST_WAITS : 0;
    return task;
}

static weft_status append(writer *w, weft_task *task, int32_t a, int32_t b, int32_t c)
{
    task->operands[0] = a;
    task->operands[1] = b;
    task->operands[2] = c;
    return weft_program_append(w->builder, task, NULL, 0, NULL);
}

/* x, stash, y */
static weft_status append_forwards(writer *w)
{
    int32_t x = w->from;
    for (int i = 0; i < w->shape->num_layers; i++) {
        weft_task task = layer_task(w->shape, i, false);
        const int32_t y = i == w->shape->num_layers - 1 ? w->to : w->outputs + i;
        WEFT_TRY(append(w, &task, x, w->stash + i, y));
        x = y;
    }
    return WEFT_OK;
}

/* stash, dy, dx: of the two gradients the one that dy is not, or dy's own where the layer can. */
static weft_status append_backwards(writer *w)
{
    int32_t dy = w->from;
    for (int i = w->shape->num_layers - 1; i >= 0; i--) {
        weft_task task = layer_task(w->shape, i, true);
        const bool is_own = dy >= w->gradients;
        int32_t dx = w->gradients;
        if (i == 0 && w->to >= 0)
            dx = w->to;
        else if (is_own)
            dx = w->shape->layers[i].in_place ? dy : 2 * w->gradients + 1 - dy;
        WEFT_TRY(append(w, &task, w->stash + i, dy, dx));
        dy = dx;
    }
    return WEFT_OK;
}

weft_status weft_program_pass(const weft_chunk_shape *shape, bool backward, weft_arena *arena,
                              weft_program *out)
{
    writer w = {.shape = shape};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_memory(&w, backward));
    WEFT_TRY(backward ? append_backwards(&w) : append_forwards(&w));
    return weft_program_finish(w.builder, 0, out);
}

static weft_status check_with(const weft_chunk_shape *shape, bool backward,
                              const weft_program *program, weft_arena *scratch)
{
    const int last = shape->num_layers - 1;
    void *memory;
    WEFT_TRY(
        weft_arena_alloc_array(scratch, (size_t)shape->num_layers + 1, sizeof(weft_task), &memory));
    weft_task *tasks = memory;
    for (int k = 0; k <= last; k++) {
        const int i = backward ? last - k : k;
        tasks[k] = layer_task(shape, i, backward);
        tasks[k].operands[0] = backward || i > 0 || shape->receives ? 0 : -1;
        tasks[k].operands[1] = !backward || i < last || shape->passes_on ? 0 : -1;
        tasks[k].operands[2] = backward || i < last || shape->passes_on ? 0 : -1;
    }
    weft_expectation expected = {.tasks = tasks,
                                 .num_tasks = (uint32_t)shape->num_layers,
                                 .ordered = 1u << WEFT_TASK_LAYER,
                                 .num_holds = 2,
                                 .holds = {{.slots = WEFT_SLOT_ACTIVATION,
                                            .value = WEFT_VALUE_LAYER,
                                            .by_layer = true,
                                            .first = shape->first}}};
    if (backward) {
        expected.holds[0] = (weft_holding){.slots = WEFT_SLOT_GRADIENT,
                                           .value = WEFT_VALUE_LAYER_GRADIENT,
                                           .by_layer = true,
                                           .first = shape->first + last};
        expected.holds[1] = (weft_holding){.slots = WEFT_SLOT_LAYER_STASH,
                                           .value = WEFT_VALUE_LAYER_STASH,
                                           .by_layer = true,
                                           .first = shape->first};
    } else {
        expected.num_holds = 1;
    }
    snprintf(expected.where, sizeof(expected.where), "%s", backward ? "backward" : "forward");
    return weft_program_check(program, &expected, 1);
}

weft_status weft_program_pass_check(const weft_chunk_shape *shape, bool backward,
                                    const weft_program *program)
{
    weft_arena scratch = {0};
    const weft_status status = check_with(shape, backward, program, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
