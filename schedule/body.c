#include "schedule/body.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "schedule/build.h"
#include "schedule/past.h"
#include "schedule/text.h"
#include "schedule/values.h"

/* A body while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    weft_body_parts parts;
    const void *context;
    struct inside {
        const weft_program *program;
        int32_t first; /* its first slot */
        uint32_t *at;  /* by its task: where that stands in the body, latest */
    } inside[WEFT_BODY_MAX_PROGRAMS];
    int num_inside;
    int layer; /* whose tasks are written */
    weft_arena scratch;
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

bool weft_body_runs_on(int lane)
{
    return lane == WEFT_LANE_TO_DEVICE || lane == WEFT_LANE_TO_HOST || lane == WEFT_LANE_HOST ||
           lane == WEFT_LANE_FILE;
}

static bool is_layers_own(const weft_slot *slot)
{
    return slot->holds == WEFT_SLOT_HOST_WEIGHTS || slot->holds == WEFT_SLOT_HOST_GRADIENTS;
}

static weft_status add_slots(writer *w, const weft_program *program, int32_t *out_first)
{
    int32_t unused;
    for (int32_t i = 0; i < program->num_slots; i++)
        WEFT_TRY(weft_program_add_slots(w->builder, &program->slots[i], 1,
                                        i == 0 ? out_first : &unused));
    return WEFT_OK;
}

static weft_status find_inside(writer *w, const weft_program *program, struct inside **out)
{
    struct inside *of = w->inside;
    while (of < w->inside + w->num_inside && of->program->tasks != program->tasks)
        of++;
    *out = of;
    if (of < w->inside + w->num_inside)
        return WEFT_OK;
    if (w->num_inside == WEFT_BODY_MAX_PROGRAMS)
        return WEFT_ERROR(WEFT_INTERNAL, "a body's layers have more than %d programs",
                          WEFT_BODY_MAX_PROGRAMS);
    *of = (struct inside){.program = program};
    WEFT_TRY(WEFT_ARRAY(&w->scratch, (size_t)program->num_tasks, &of->at));
    w->num_inside++;
    return add_slots(w, program, &of->first);
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

static weft_status append_task(writer *w, const weft_task *layer, const weft_body_part *part,
                               uint32_t own, lasts *last)
{
    const weft_program *program = part->program;
    weft_task task = program->tasks[part->task];
    weft_wait waits[WEFT_TASK_MAX_WAITS + 1];
    uint32_t num_waits = 0;
    struct inside *of;
    WEFT_TRY(find_inside(w, program, &of));
    if (!weft_body_runs_on((int)part->lane))
        waits[num_waits++] = (weft_wait){own, -1};
    for (uint32_t i = 0; i < task.num_waits; i++) {
        waits[num_waits] = program->waits[task.first_wait + i];
        if (waits[num_waits].task != WEFT_STEP_BEFORE)
            waits[num_waits].task = of->at[waits[num_waits].task];
        num_waits++;
    }
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if (task.operands[i] >= 0)
            task.operands[i] = (int16_t)(task.operands[i] + of->first);
    task.layer = layer->layer;
    task.lane = (uint8_t)part->lane;
    WEFT_TRY(weft_program_append(w->builder, &task, waits, num_waits, &of->at[part->task]));
    if (!weft_body_runs_on((int)part->lane))
        note_last(last, task.lane, of->at[part->task]);
    return WEFT_OK;
}

static void begin_layer(writer *w, int layer)
{
    for (int k = 0; k < w->num_inside && layer != w->layer; k++)
        for (int32_t i = 0; i < w->inside[k].program->num_slots; i++)
            if (is_layers_own(&w->inside[k].program->slots[i]))
                weft_program_forget(w->builder, w->inside[k].first + i);
    w->layer = layer;
}

/* Where a layer has a program inside, the program's tasks say where the host waits. */
static weft_status append_layer(writer *w, const weft_task *layer)
{
    lasts last = {.count = 0};
    weft_task mine = *layer;
    weft_body_part part;
    uint32_t own = 0;
    begin_layer(w, layer->layer);
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

static weft_status append_all(writer *w, const weft_program *pass)
{
    int32_t first;
    WEFT_TRY(add_slots(w, pass, &first));
    for (uint32_t i = 0; i < pass->num_tasks; i++)
        WEFT_TRY(weft_body_beside(&pass->tasks[i])
                     ? weft_program_append(w->builder, &pass->tasks[i], NULL, 0, NULL)
                     : append_layer(w, &pass->tasks[i]));
    return WEFT_OK;
}

weft_status weft_program_body(const weft_program *pass, weft_body_parts parts, const void *context,
                              weft_arena *arena, weft_program *out)
{
    writer w = {.parts = parts, .context = context};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    const weft_status status = append_all(&w, pass);
    weft_arena_release(&w.scratch);
    WEFT_TRY(status);
    return weft_program_finish(w.builder, pass->max_in_flight, out);
}

/* --- the checker --------------------------------------------------------------------------- */

/* The tasks of a slot: 1 + the last that wrote it, and by lane 1 + the last that read since. */
typedef struct use {
    uint32_t writer, readers[WEFT_NUM_LANES];
} use;

typedef struct checker {
    const weft_program *pass, *body;
    weft_body_parts parts;
    const void *context;
    weft_arena *scratch;
    weft_pasts pasts;
    weft_past past; /* what is over before the task at hand */
    uint32_t at;    /* the task at hand */
    uint32_t *ends; /* by the pass's tasks: the last part's task */
    use *uses;      /* by slot */
    struct inside inside[WEFT_BODY_MAX_PROGRAMS];
    int num_inside, layer;
    int32_t num_slots; /* of the pass, and of the programs so far */
} checker;

static weft_status fail(const checker *c, const char *format, ...) WEFT_PRINTF(2, 3) WEFT_CHECKED;

static weft_status fail(const checker *c, const char *format, ...)
{
    char what[WEFT_ERROR_TEXT_BYTES / 2], text[WEFT_TASK_TEXT_BYTES] = "its end";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (c->at < c->body->num_tasks)
        (void)weft_task_format(c->body, c->at, text, sizeof text);
    return WEFT_ERROR(WEFT_INTERNAL, "a body, task %u (%s) %s", c->at, text, what);
}

static weft_status must_be_over(const checker *c, uint32_t other)
{
    return weft_past_has(&c->past, c->body->tasks, (weft_wait){other, -1})
               ? WEFT_OK
               : fail(c, "may start before task %u is over", other);
}

/* What waits and lanes alone say is over. */
static weft_status find_past(checker *c)
{
    if (c->at >= c->body->num_tasks)
        return fail(c, "comes before all parts have");
    const weft_task *task = &c->body->tasks[c->at];
    weft_pasts_begin(&c->pasts, task->lane, &c->past);
    for (uint32_t i = 0; i < task->num_waits; i++) {
        const weft_wait *wait = &c->body->waits[task->first_wait + i];
        if (wait->task >= c->at && wait->task != WEFT_STEP_BEFORE)
            return fail(c, "waits for task %u, which is no earlier one", wait->task);
        weft_pasts_add_wait(&c->pasts, c->body->tasks, *wait, &c->past);
    }
    return weft_pasts_add(&c->pasts, task->lane, c->at, &c->past);
}

static weft_status check_slot(checker *c, int32_t slot, bool writes)
{
    use *of = &c->uses[slot];
    const int lane = c->body->tasks[c->at].lane;
    if (of->writer > 0 && of->writer != c->at + 1)
        WEFT_TRY(must_be_over(c, of->writer - 1));
    for (int other = 0; other < WEFT_NUM_LANES && writes; other++)
        if (of->readers[other] > 0 && of->readers[other] != c->at + 1)
            WEFT_TRY(must_be_over(c, of->readers[other] - 1));
    if (writes)
        *of = (use){.writer = c->at + 1};
    else
        of->readers[lane] = c->at + 1;
    return WEFT_OK;
}

/* No slot is read before it is written, or overwritten while it is read. */
static weft_status check_uses(checker *c)
{
    const weft_task *task = &c->body->tasks[c->at];
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int writes = 0; writes < 2; writes++)
        for (int i = 0; operands && i < operands->count; i++)
            if (task->operands[i] >= 0 && operands->rows[i].writes == (bool)writes)
                WEFT_TRY(check_slot(c, task->operands[i], writes));
    return WEFT_OK;
}

/* The task at hand is this one of a program, whose slots begin at `first`; the next one is at hand.
 */
static weft_status check_task(checker *c, const weft_program *of, const weft_task *task,
                              int32_t first)
{
    weft_task wanted = *task;
    const weft_task *is = &c->body->tasks[c->at];
    const bool follows = weft_task_awaits_step(task, of->waits);
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++) {
        wanted.operands[i] = (int16_t)(wanted.operands[i] + (wanted.operands[i] >= 0 ? first : 0));
        if (wanted.kind == is->kind && wanted.operands[i] != is->operands[i])
            return fail(c, "has slot %d in the place of slot %d", is->operands[i],
                        wanted.operands[i]);
    }
    wanted.first_wait = is->first_wait;
    wanted.num_waits = is->num_waits;
    if (memcmp(&wanted, is, sizeof wanted) != 0)
        return fail(c, "stands where another part does");
    if (weft_task_awaits_step(is, c->body->waits) != follows)
        return fail(c, follows ? "may start before the update of the step before is over"
                               : "waits for the step before, but must not");
    WEFT_TRY(check_uses(c));
    c->at++;
    return WEFT_OK;
}

static weft_status check_slots(const checker *c, const weft_program *of, int32_t first)
{
    for (int32_t i = 0; i < of->num_slots; i++)
        if (first + i >= c->body->num_slots ||
            memcmp(&of->slots[i], &c->body->slots[first + i], sizeof *of->slots) != 0)
            return fail(c, "needs slot %d, which is another's", first + i);
    return WEFT_OK;
}

static weft_status checked_inside(checker *c, const weft_program *program, struct inside **out)
{
    struct inside *of = c->inside;
    while (of < c->inside + c->num_inside && of->program->tasks != program->tasks)
        of++;
    *out = of;
    if (of < c->inside + c->num_inside)
        return WEFT_OK;
    if (c->num_inside++ == WEFT_BODY_MAX_PROGRAMS)
        return fail(c, "is of one program too many");
    *of = (struct inside){.program = program, .first = c->num_slots};
    c->num_slots += program->num_slots;
    WEFT_TRY(WEFT_ARRAY(c->scratch, (size_t)program->num_tasks, &of->at));
    return check_slots(c, program, of->first);
}

/* A task of a program inside. own: the layer's part before. */
static weft_status check_inside(checker *c, const weft_task *layer, const weft_body_part *part,
                                uint32_t own)
{
    const weft_program *program = part->program;
    weft_task task = program->tasks[part->task];
    struct inside *of;
    WEFT_TRY(checked_inside(c, program, &of));
    if (!weft_body_runs_on((int)part->lane))
        WEFT_TRY(must_be_over(c, own));
    for (uint32_t i = 0; i < task.num_waits; i++) {
        const uint32_t other = program->waits[task.first_wait + i].task;
        if (other != WEFT_STEP_BEFORE)
            WEFT_TRY(must_be_over(c, of->at[other]));
    }
    of->at[part->task] = c->at;
    task.layer = layer->layer;
    task.lane = (uint8_t)part->lane;
    return check_task(c, program, &task, of->first);
}

static void forget_others(checker *c, int layer)
{
    for (int32_t i = 0; i < c->body->num_slots && layer != c->layer; i++)
        if (is_layers_own(&c->body->slots[i]))
            c->uses[i] = (use){.writer = 0};
    c->layer = layer;
}

/* Behind an own part comes what is inside, which is over when the next one starts. */
static weft_status check_layer(checker *c, uint32_t index)
{
    const weft_task *layer = &c->pass->tasks[index];
    weft_body_part part;
    weft_task mine = *layer;
    uint32_t own = c->at;
    forget_others(c, layer->layer);
    if (c->parts(c->context, layer, 1, &part))
        mine.flags &= (uint8_t)~WEFT_TASK_HOST_WAITS;
    for (int i = 0; c->parts(c->context, layer, i, &part); i++) {
        WEFT_TRY(find_past(c));
        for (uint32_t w = 0; w < layer->num_waits && i == 0; w++)
            WEFT_TRY(must_be_over(c, c->ends[c->pass->waits[layer->first_wait + w].task]));
        if (part.program) {
            WEFT_TRY(check_inside(c, layer, &part, own));
            continue;
        }
        for (uint32_t t = own; t < c->at; t++)
            if (!weft_body_runs_on(c->body->tasks[t].lane))
                WEFT_TRY(must_be_over(c, t));
        own = c->at;
        WEFT_TRY(check_task(c, c->pass, &mine, 0));
    }
    c->ends[index] = own;
    return WEFT_OK;
}

static weft_status check_beside(checker *c, uint32_t index)
{
    const weft_task *task = &c->pass->tasks[index];
    WEFT_TRY(find_past(c));
    for (uint32_t w = 0; w < task->num_waits; w++)
        WEFT_TRY(must_be_over(c, c->ends[c->pass->waits[task->first_wait + w].task]));
    c->ends[index] = c->at;
    return check_task(c, c->pass, task, 0);
}

static weft_status check_all(checker *c)
{
    WEFT_TRY(WEFT_ARRAY(c->scratch, (size_t)c->pass->num_tasks + 1, &c->ends));
    WEFT_TRY(WEFT_ARRAY(c->scratch, (size_t)c->body->num_slots + 1, &c->uses));
    WEFT_TRY(check_slots(c, c->pass, 0));
    for (uint32_t i = 0; i < c->pass->num_tasks; i++)
        WEFT_TRY(weft_body_beside(&c->pass->tasks[i]) ? check_beside(c, i) : check_layer(c, i));
    return c->at == c->body->num_tasks && c->num_slots == c->body->num_slots
               ? WEFT_OK
               : fail(c, "is one too many");
}

weft_status weft_program_body_check(const weft_program *pass, weft_body_parts parts,
                                    const void *context, const weft_program *body)
{
    weft_arena scratch = {0};
    checker c = {.pass = pass,
                 .body = body,
                 .parts = parts,
                 .context = context,
                 .scratch = &scratch,
                 .pasts.arena = &scratch,
                 .num_slots = pass->num_slots};
    const weft_status status = check_all(&c);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
