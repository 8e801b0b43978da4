#include "schedule/body.h"

#include <string.h>

#include "schedule/build.h"
#include "schedule/text.h"

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

/* --- the checker --------------------------------------------------------------------------------
 */

/* What is over before a task starts: the last such task of each lane. */
typedef struct passed {
    int32_t last[WEFT_NUM_LANES]; /* -1: none */
} passed;

typedef struct checker {
    const weft_program *pass, *body;
    weft_body_parts parts;
    const void *context;
    passed *before; /* [num_tasks] of the body */
    uint32_t *ends; /* [num_tasks] of the pass: the body's task that ends it */
    uint32_t at;    /* the body's next one */
    struct {
        const weft_program *program;
        int32_t first; /* its first slot; -1: no task has had a slot yet */
    } inside[WEFT_BODY_MAX_PROGRAMS];
    int num_inside;
} checker;

static weft_status wrong(const checker *c, uint32_t at, const char *what)
{
    char text[WEFT_TASK_TEXT_BYTES];
    return at < c->body->num_tasks
               ? WEFT_ERROR(WEFT_INTERNAL, "body: task %u, %s: %s", at,
                            weft_task_format(c->body, at, text, sizeof text), what)
               : WEFT_ERROR(WEFT_INTERNAL, "body: %u tasks: %s", at, what);
}

static void merge(passed *sum, const passed *other)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (other->last[lane] > sum->last[lane])
            sum->last[lane] = other->last[lane];
}

/* Lanes are FIFOs; a wait for a point says what is over before that task. */
static weft_status find_passed(checker *c)
{
    const weft_program *body = c->body;
    passed lanes;
    memset(&lanes, -1, sizeof lanes);
    for (uint32_t i = 0; i < body->num_tasks; i++) {
        const weft_task *task = &body->tasks[i];
        passed *before = &c->before[i];
        memset(before, -1, sizeof *before);
        if (task->lane >= WEFT_NUM_LANES || task->first_wait > body->num_waits ||
            task->num_waits > body->num_waits - task->first_wait)
            return wrong(c, i, "is not well formed");
        if (lanes.last[task->lane] >= 0)
            *before = c->before[lanes.last[task->lane]];
        before->last[task->lane] = lanes.last[task->lane];
        for (uint32_t w = 0; w < task->num_waits; w++) {
            const weft_wait *wait = &body->waits[task->first_wait + w];
            if (wait->task >= i)
                return wrong(c, i, "waits for what comes behind it");
            merge(before, &c->before[wait->task]);
            int32_t *last = &before->last[body->tasks[wait->task].lane];
            if (wait->point < 0 && *last < (int32_t)wait->task)
                *last = (int32_t)wait->task;
        }
        lanes.last[task->lane] = (int32_t)i;
    }
    return WEFT_OK;
}

static weft_status follows(const checker *c, uint32_t task, uint32_t earlier)
{
    return c->before[task].last[c->body->tasks[earlier].lane] >= (int32_t)earlier
               ? WEFT_OK
               : wrong(c, task, "does not wait for all that is before it");
}

/* But for its waits. */
static bool is_task(const weft_task *a, const weft_task *b)
{
    weft_task x = *a, y = *b;
    x.first_wait = y.first_wait = 0;
    x.num_waits = y.num_waits = 0;
    return memcmp(&x, &y, sizeof x) == 0;
}

/* Takes the body's next task, which must be this one. */
static weft_status take(checker *c, const weft_task *expected, uint32_t *out)
{
    if (c->at >= c->body->num_tasks)
        return wrong(c, c->at, "parts are missing behind them");
    if (!is_task(&c->body->tasks[c->at], expected))
        return wrong(c, c->at, "another part comes here");
    *out = c->at++;
    return WEFT_OK;
}

/* What waits in the pass. */
static weft_status check_pass_waits(const checker *c, const weft_task *task, uint32_t at)
{
    for (uint32_t w = 0; w < task->num_waits; w++)
        WEFT_TRY(follows(c, at, c->ends[c->pass->waits[task->first_wait + w].task]));
    return WEFT_OK;
}

/* The program's slots are the pass's neighbours: as many rows, which hold the same, and which no
 * other program has. */
static weft_status check_slots(const checker *c, const weft_program *program, int32_t first)
{
    const weft_program *body = c->body;
    if (first < c->pass->num_slots || program->num_slots > body->num_slots - first)
        return wrong(c, c->at, "has slots that are none of its program's");
    if (memcmp(&body->slots[first], program->slots,
               (size_t)program->num_slots * sizeof *program->slots) != 0)
        return wrong(c, c->at, "has slots that hold something else");
    for (int i = 0; i < c->num_inside; i++)
        if (c->inside[i].first >= 0 &&
            first < c->inside[i].first + c->inside[i].program->num_slots &&
            c->inside[i].first < first + program->num_slots)
            return wrong(c, c->at, "has slots of another program");
    return WEFT_OK;
}

/* Where the program's slots begin, by its first task that has one. */
static weft_status find_first(checker *c, const weft_program *program, const weft_task *task,
                              int32_t *out)
{
    int i = 0, operand = 0;
    while (operand < WEFT_TASK_MAX_OPERANDS && task->operands[operand] < 0)
        operand++;
    *out = 0;
    if (operand == WEFT_TASK_MAX_OPERANDS || c->at >= c->body->num_tasks)
        return WEFT_OK;
    while (i < c->num_inside && c->inside[i].program->tasks != program->tasks)
        i++;
    if (i == WEFT_BODY_MAX_PROGRAMS)
        return wrong(c, c->at, "is of one program too many");
    if (i == c->num_inside) {
        const int32_t first = c->body->tasks[c->at].operands[operand] - task->operands[operand];
        WEFT_TRY(check_slots(c, program, first));
        c->inside[c->num_inside].program = program;
        c->inside[c->num_inside++].first = first;
    }
    *out = c->inside[i].first;
    return WEFT_OK;
}

static weft_status check_inside(checker *c, const weft_task *layer, const weft_body_part *part,
                                uint32_t own)
{
    const weft_program *program = part->program;
    weft_task expected = program->tasks[part->task];
    uint32_t at;
    int32_t first;
    WEFT_TRY(find_first(c, program, &expected, &first));
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if (expected.operands[i] >= 0)
            expected.operands[i] = (int16_t)(expected.operands[i] + first);
    expected.layer = layer->layer;
    expected.lane = (uint8_t)part->lane;
    WEFT_TRY(take(c, &expected, &at));
    WEFT_TRY(follows(c, at, own));
    for (uint32_t w = 0; w < program->tasks[part->task].num_waits; w++)
        WEFT_TRY(follows(c, at,
                         own + 1 + program->waits[program->tasks[part->task].first_wait + w].task));
    return WEFT_OK;
}

static weft_status check_layer(checker *c, const weft_task *layer)
{
    weft_task mine = *layer;
    weft_body_part part;
    uint32_t own = c->at, behind;
    if (c->parts(c->context, layer, 1, &part))
        mine.flags &= (uint8_t)~WEFT_TASK_HOST_WAITS;
    for (int i = 0; c->parts(c->context, layer, i, &part); i++) {
        if (part.program) {
            WEFT_TRY(check_inside(c, layer, &part, own));
            continue;
        }
        WEFT_TRY(take(c, &mine, &behind));
        if (i == 0)
            WEFT_TRY(check_pass_waits(c, layer, behind));
        for (uint32_t t = own; t < behind; t++)
            WEFT_TRY(follows(c, behind, t));
        own = behind;
    }
    return WEFT_OK;
}

static weft_status check_all(checker *c)
{
    WEFT_TRY(find_passed(c));
    if (c->body->num_slots < c->pass->num_slots ||
        memcmp(c->body->slots, c->pass->slots,
               (size_t)c->pass->num_slots * sizeof *c->pass->slots) != 0)
        return WEFT_ERROR(WEFT_INTERNAL, "body: its slots are not those of the pass");
    for (uint32_t i = 0; i < c->pass->num_tasks; i++) {
        const weft_task *task = &c->pass->tasks[i];
        uint32_t at;
        if (weft_body_beside(task)) {
            WEFT_TRY(take(c, task, &at));
            WEFT_TRY(check_pass_waits(c, task, at));
        } else {
            WEFT_TRY(check_layer(c, task));
        }
        c->ends[i] = c->at - 1;
    }
    return c->at == c->body->num_tasks ? WEFT_OK : wrong(c, c->at, "is no part of the pass");
}

weft_status weft_program_body_check(const weft_program *pass, weft_body_parts parts,
                                    const void *context, const weft_program *body)
{
    checker c = {.pass = pass, .body = body, .parts = parts, .context = context};
    weft_arena arena = {0};
    weft_status status = WEFT_ARRAY(&arena, (size_t)body->num_tasks + 1, &c.before);
    if (status == WEFT_OK)
        status = WEFT_ARRAY(&arena, (size_t)pass->num_tasks + 1, &c.ends);
    if (status == WEFT_OK)
        status = check_all(&c);
    weft_arena_release(&arena);
    return status;
}
