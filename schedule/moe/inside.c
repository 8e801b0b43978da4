#include "schedule/moe/inside.h"

#include "schedule/body.h"
#include "schedule/experts/experts.h"
#include "schedule/moe/layer.h"

/* Partitions by peers are messages. */
static bool is_exchange(const weft_task *task)
{
    return task->peer < 0 && task->flow != WEFT_FLOW_NONE &&
           (task->kind == WEFT_TASK_DISPATCH || task->kind == WEFT_TASK_COMBINE);
}

/* What is inside, and by direction and partition the slice [first, end) of the experts' program. */
typedef struct slices {
    const weft_moe_inside *inside;
    struct slice {
        uint32_t first, end;
    } of[2][WEFT_MOE_MAX_PARTITIONS];
} slices;

static slices slices_of(const weft_moe_inside *inside)
{
    slices s = {.inside = inside};
    for (int i = 0; i < 2 * inside->num_partitions && inside->experts; i++) {
        struct slice *slice = &s.of[i % 2][i / 2];
        int begins, ends;
        weft_moe_run_of(inside->num_positions, inside->num_partitions, i / 2, &begins, &ends);
        weft_experts_slice(&inside->experts[i % 2], i % 2, begins, ends, &slice->first,
                           &slice->end);
    }
    return s;
}

/* The tasks *out of the program that is inside the task; NULL: there is none. */
static const weft_program *inside_of(const slices *s, const weft_task *task, struct slice *out)
{
    const weft_program *program = NULL;
    const bool backward = task->flow == WEFT_FLOW_GRADIENT;
    *out = (struct slice){0, 0};
    if (is_exchange(task) && s->inside->exchange) {
        program = s->inside->exchange;
        out->end = program->num_tasks;
    } else if (task->kind == WEFT_TASK_EXPERT && s->inside->experts) {
        program = &s->inside->experts[backward];
        *out = s->of[backward][task->part];
    }
    return out->first < out->end ? program : NULL;
}

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    struct slice slice;
    const weft_program *program = inside_of(context, task, &slice);
    const uint32_t count = slice.end - slice.first;
    *out = (weft_body_part){.lane = (weft_lane_kind)task->lane};
    if (part == 0 || !program || (uint32_t)part > count)
        return part == 0 || (program && (uint32_t)part == count + 1);
    out->program = program;
    out->task = slice.first + (uint32_t)part - 1;
    out->lane = (weft_lane_kind)program->tasks[out->task].lane;
    if (out->lane == WEFT_LANE_GATHER) /* a pass gathers parameters */
        out->lane = WEFT_LANE_INSIDE;
    return true;
}

weft_status weft_program_moe_inside(const weft_program *layer, const weft_moe_inside *inside,
                                    weft_arena *arena, weft_program *out)
{
    const slices s = slices_of(inside);
    return weft_program_body(layer, part_of, &s, arena, out);
}

weft_status weft_program_moe_inside_check(const weft_program *layer, const weft_moe_inside *inside,
                                          const weft_program *program)
{
    const slices s = slices_of(inside);
    return weft_program_body_check(layer, part_of, &s, program);
}
