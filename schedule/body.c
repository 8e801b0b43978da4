#include "schedule/body.h"

#include "schedule/build.h"

/* A body while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    weft_body_parts parts;
    const void *context;
    struct {
        const weft_task *tasks; /* whose program it is */
        int32_t first;          /* its first slot */
    } inside[WEFT_BODY_MAX_PROGRAMS];
    int num_inside;
} writer;

bool weft_body_beside(const weft_task *task)
{
    return (task->kind == WEFT_TASK_GATHER && task->flow == WEFT_FLOW_WEIGHT) ||
           (task->kind == WEFT_TASK_REDUCE && task->flow == WEFT_FLOW_NONE) ||
           ((task->kind == WEFT_TASK_OFFLOAD || task->kind == WEFT_TASK_PREFETCH) &&
            task->flow == WEFT_FLOW_STASH);
}

bool weft_body_travels(int lane)
{
    return lane == WEFT_LANE_EXPERT || lane == WEFT_LANE_INSIDE || lane == WEFT_LANE_PLACE ||
           lane == WEFT_LANE_OFFLOAD || lane == WEFT_LANE_PREFETCH;
}

static weft_status add_slots(writer *w, const weft_program *program, int32_t *out_first)
{
    int32_t unused;
    for (int32_t i = 0; i < program->num_slots; i++)
        WEFT_TRY(weft_program_add_slots(w->builder, &program->slots[i], 1,
                                        i == 0 ? out_first : &unused));
    return WEFT_OK;
}

static weft_status first_slot_of(writer *w, const weft_program *program, int32_t *out)
{
    for (int i = 0; i < w->num_inside; i++)
        if (w->inside[i].tasks == program->tasks) {
            *out = w->inside[i].first;
            return WEFT_OK;
        }
    if (w->num_inside == WEFT_BODY_MAX_PROGRAMS)
        return WEFT_ERROR(WEFT_INTERNAL, "a body's layers have more than %d programs",
                          WEFT_BODY_MAX_PROGRAMS);
    *out = 0;
    WEFT_TRY(add_slots(w, program, out));
    w->inside[w->num_inside].tasks = program->tasks;
    w->inside[w->num_inside++].first = *out;
    return WEFT_OK;
}

/* The last task of each lane since an own part. */
typedef struct lasts {
    weft_wait waits[WEFT_NUM_LANES];
    int32_t by_lane[WEFT_NUM_LANES]; /* index among waits; -1: none */
    uint32_t count;
} lasts;

static void note_last(lasts *l, int lane, uint32_t task)
{
    if (l->by_lane[lane] < 0)
        l->by_lane[lane] = (int32_t)l->count++;
    l->waits[l->by_lane[lane]] = (weft_wait){task, -1};
}

/* Behind the own part come all tasks of one program. */
static weft_status append_task(writer *w, const weft_task *layer, const weft_body_part *part,
                               uint32_t own, lasts *last)
{
    const weft_program *program = part->program;
    weft_task task = program->tasks[part->task];
    weft_wait waits[WEFT_TASK_MAX_WAITS + 1];
    uint32_t num_waits = 0, index;
    int32_t first;
    waits[num_waits++] = (weft_wait){own, -1};
    for (uint32_t i = 0; i < task.num_waits; i++) {
        const weft_wait *wait = &program->waits[task.first_wait + i];
        waits[num_waits++] = (weft_wait){own + 1 + wait->task, wait->point};
    }
    WEFT_TRY(first_slot_of(w, program, &first));
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if (task.operands[i] >= 0)
            task.operands[i] = (int16_t)(task.operands[i] + first);
    task.layer = layer->layer;
    task.lane = (uint8_t)part->lane;
    WEFT_TRY(weft_program_append(w->builder, &task, waits, num_waits, &index));
    note_last(last, task.lane, index);
    return WEFT_OK;
}

/* Where a layer has a program inside, the program's tasks say where the host waits. */
static weft_status append_layer(writer *w, const weft_task *layer)
{
    lasts last = {.count = 0};
    weft_task mine = *layer;
    weft_body_part part;
    uint32_t own = 0;
    if (w->parts(w->context, layer, 1, &part))
        mine.flags &= (uint8_t)~WEFT_TASK_HOST_WAITS;
    for (int i = 0; w->parts(w->context, layer, i, &part); i++) {
        if (part.program) {
            WEFT_TRY(append_task(w, layer, &part, own, &last));
            continue;
        }
        WEFT_TRY(weft_program_append(w->builder, &mine, last.waits, last.count, &own));
        last.count = 0;
        for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
            last.by_lane[lane] = -1;
    }
    return WEFT_OK;
}

weft_status weft_program_body(const weft_program *pass, weft_body_parts parts, const void *context,
                              weft_arena *arena, weft_program *out)
{
    writer w = {.parts = parts, .context = context};
    int32_t first;
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w, pass, &first));
    for (uint32_t i = 0; i < pass->num_tasks; i++)
        WEFT_TRY(weft_body_beside(&pass->tasks[i])
                     ? weft_program_append(w.builder, &pass->tasks[i], NULL, 0, NULL)
                     : append_layer(&w, &pass->tasks[i]));
    return weft_program_finish(w.builder, pass->max_in_flight, out);
}
