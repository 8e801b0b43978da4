#include "schedule/check.h"

#include <stdarg.h>
#include <string.h>

#include "core/stage.h"
#include "schedule/past.h"
#include "schedule/text.h"
#include "schedule/walk.h"

/* What a slot holds. stage: of all virtual stages. */
typedef struct content {
    int value, micro_batch, stage, layer, part, expert;
} content;

/* A slot during the replay: 1 + the index of its last writer (0: it was filled before the program)
 * and of the last reader since then on each lane. */
typedef struct slot_state {
    content holds;
    uint32_t writer, readers[WEFT_NUM_LANES];
} slot_state;

/* One rank of the set being checked. */
typedef struct rank_check {
    const weft_program *program;
    const weft_expectation *expected;                          /* while it is checked alone */
    char (*wheres)[sizeof(((weft_expectation *)NULL)->where)]; /* [num_ranks] */
    int rank, num_ranks;
    uint32_t *expected_of; /* of each task: its index in expected->tasks */
    uint32_t *seen; /* by expected task: 1 + its index in the program, its last one's; 0: missing */
    bool *seen_of;  /* of those that stand for each micro-batch's: [task][micro-batch] */
    weft_pasts *pasts;
    weft_arena *scratch;
} rank_check;

static weft_status fail(const rank_check *check, uint32_t index, const char *format, ...)
    WEFT_PRINTF(3, 4) WEFT_CHECKED;

static weft_status fail(const rank_check *check, uint32_t index, const char *format, ...)
{
    char what[WEFT_ERROR_TEXT_BYTES / 2], task[WEFT_TASK_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return WEFT_ERROR(WEFT_INTERNAL, "%s, task %u (%s) %s", check->wheres[check->rank], index,
                      weft_task_format(check->program, index, task, sizeof(task)), what);
}

static int stage_of(const rank_check *check, int chunk)
{
    return weft_stage_of(check->program->is_v, check->num_ranks, check->rank, chunk);
}

static content content_of(const rank_check *check, const weft_task *task,
                          const weft_operand *operand)
{
    content c = {.value = (int)operand->value,
                 .micro_batch = task->micro_batch,
                 .stage = task->chunk < 0 ? -1 : stage_of(check, task->chunk),
                 .layer = task->layer,
                 .part = operand->value == WEFT_VALUE_WEIGHTS ? -1 : task->part,
                 .expert = task->expert};
    const bool by_layer = task->kind == WEFT_TASK_LAYER || task->kind == WEFT_TASK_RECOMPUTE;
    *(by_layer ? &c.layer : task->chunk < 0 ? &c.part : &c.stage) += operand->next;
    if (operand->whole)
        c.part = -1;
    return c;
}

static bool same_content(const content *a, const content *b)
{
    return a->value == b->value && a->micro_batch == b->micro_batch && a->stage == b->stage &&
           a->layer == b->layer && a->part == b->part && a->expert == b->expert;
}

/* Such as "T_DI of part 2". */
static const char *content_text(const content *c, char text[128])
{
    const struct {
        const char *name;
        int number;
    } fields[] = {{"micro-batch", c->micro_batch},
                  {"stage", c->stage},
                  {"layer", c->layer},
                  {"part", c->part},
                  {"expert", c->expert}};
    size_t used = (size_t)snprintf(text, 128, "%s", weft_value_text(c->value));
    const char *joint = " of";
    for (int i = 0; i < 5 && used < 128; i++)
        if (fields[i].number >= 0) {
            used += (size_t)snprintf(text + used, 128 - used, "%s %s %d", joint, fields[i].name,
                                     fields[i].number);
            joint = ",";
        }
    return text;
}

/* --- proof 1 ------------------------------------------------------------------------------- */

/* Whether a task that says so is one of a forward and a backward, whole or its input's half, back
 * to back. */
static bool makes_pair(const weft_program *program, uint32_t index)
{
    const uint32_t first = index - !weft_task_opens_pair(&program->tasks[index]);
    const weft_task *forward = &program->tasks[first], *backward = forward + 1;
    return first < program->num_tasks - 1 && weft_task_opens_pair(forward) &&
           backward->kind == WEFT_TASK_BACKWARD && backward->flow != WEFT_FLOW_WEIGHT &&
           backward->flags & WEFT_TASK_PAIRED &&
           (forward->micro_batch != backward->micro_batch || forward->chunk != backward->chunk);
}

static weft_status check_readable(const rank_check *check)
{
    const weft_program *program = check->program;
    const char *where = check->expected->where;
    if (program->num_slots < 0 || program->num_slots > WEFT_PROGRAM_MAX_SLOTS)
        return WEFT_ERROR(WEFT_INTERNAL, "%s has %d slots", where, program->num_slots);
    for (int32_t i = 0; i < program->num_slots; i++)
        if (program->slots[i].holds >= WEFT_NUM_SLOT_KINDS)
            return WEFT_ERROR(WEFT_INTERNAL, "%s, slot %d is of kind %u", where, i,
                              program->slots[i].holds);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (!weft_operands_of(task->kind, task->flow) || task->lane >= WEFT_NUM_LANES ||
            task->first_wait > program->num_waits ||
            task->num_waits > program->num_waits - task->first_wait ||
            task->num_waits > WEFT_TASK_MAX_WAITS)
            return WEFT_ERROR(WEFT_INTERNAL,
                              "%s, task %u is malformed: kind %d, flow %d, %u waits, lane %d",
                              where, i, task->kind, task->flow, task->num_waits, task->lane);
        if (task->flags & WEFT_TASK_PAIRED && !makes_pair(program, i))
            return fail(check, i, "has not the other one of its pair beside it");
        for (uint32_t w = 0; w < task->num_waits; w++) {
            const weft_wait wait = program->waits[task->first_wait + w];
            if (wait.task >= i && wait.task != WEFT_STEP_BEFORE)
                return fail(check, i, "waits for task %u, which is not an earlier one", wait.task);
            if (!weft_wait_is_served(task, wait))
                return fail(check, i, "waits for a step or a landing of what it does not serve");
            if (wait.point != -1 && program->tasks[wait.task].flags & WEFT_TASK_PAIRED)
                return fail(check, i, "waits for a point of a pair");
        }
    }
    return WEFT_OK;
}

/* The number of a slot among those of its kind. */
static int number_in_kind(const weft_program *program, int32_t slot)
{
    int number = 0;
    for (int32_t i = 0; i < slot; i++)
        number += program->slots[i].holds == program->slots[slot].holds;
    return number;
}

/* A slot made for a chunk serves all chunks of the rank whose values have no more bytes. */
static bool has_room(const rank_check *check, const weft_slot *slot, int stage)
{
    const uint64_t *bytes = slot->holds == WEFT_SLOT_ACTIVATION ? check->expected->stash_bytes
                            : slot->holds == WEFT_SLOT_DEFERRED ? check->expected->deferred_bytes
                                                                : NULL;
    if (slot->chunk < 0)
        return true;
    const int made_for = stage_of(check, slot->chunk), num_ranks = check->num_ranks;
    return weft_rank_of_stage(check->program->is_v, num_ranks, stage) == check->rank &&
           (!bytes || (made_for < check->expected->num_stages && bytes[stage] <= bytes[made_for]));
}

static weft_status check_operand(const rank_check *check, uint32_t index, int i)
{
    const weft_program *program = check->program;
    const weft_task *task = &program->tasks[index];
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    const weft_task *wanted = &check->expected->tasks[check->expected_of[index]];
    const int32_t slot = task->operands[i];
    if (i >= operands->count || wanted->operands[i] < 0) {
        if (slot != -1)
            return fail(check, index, "must use nothing as its operand %d, but names slot %d", i,
                        slot);
        return WEFT_OK;
    }
    const weft_operand *row = &operands->rows[i];
    const content c = content_of(check, task, row);
    if (slot < 0)
        return fail(check, index, "must %s %s, but names slot %d", row->writes ? "write" : "read",
                    weft_value_text(c.value), slot);
    if (slot >= program->num_slots)
        return fail(check, index, "names slot %d, but there are %d", slot, program->num_slots);
    const weft_slot *memory = &program->slots[slot];
    if (!(weft_value_slots(c.value) >> memory->holds & 1))
        return fail(check, index, "has %s in slot %d, which is memory for %s",
                    weft_value_text(c.value), slot, weft_slot_kind_text((int)memory->holds));
    if (!has_room(check, memory, c.stage))
        return fail(check, index, "has %s in slot %d, which is made for chunk %d",
                    weft_value_text(c.value), slot, memory->chunk);
    const int x = weft_task_slot(task, WEFT_OPERAND_X);
    if (row->in_place && x >= 0 && x != slot)
        return fail(check, index, "has %s in slot %d, but must leave it in slot %d",
                    weft_value_text(c.value), slot, x);
    if (check->expected->num_parts > 1 &&
        weft_program_count_slots(program, memory->holds, -1) == check->expected->num_parts &&
        number_in_kind(program, slot) != task->part)
        return fail(check, index, "has %s in slot %d, which is another part's",
                    weft_value_text(c.value), slot);
    for (int k = 0; k < i; k++)
        if (row->writes && operands->rows[k].writes && task->operands[k] == slot)
            return fail(check, index, "writes two values to one slot");
    return WEFT_OK;
}

/* --- proofs 2 and 6 ------------------------------------------------------------------------ */

static uint32_t hash_of(const weft_task *task)
{
    const int32_t fields[] = {task->kind,  task->flow, task->micro_batch, task->chunk,
                              task->layer, task->part, task->expert,      task->bucket};
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        hash = (hash ^ (uint32_t)fields[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static bool same_work(const weft_task *a, const weft_task *b)
{
    return a->kind == b->kind && a->flow == b->flow && a->micro_batch == b->micro_batch &&
           a->chunk == b->chunk && a->layer == b->layer && a->part == b->part &&
           a->expert == b->expert && a->bucket == b->bucket;
}

/* Whether the expected task stands for those of all micro-batches. */
static bool repeats(const weft_expectation *expected, uint32_t task)
{
    return expected->num_micro_batches > 0 && expected->tasks[task].micro_batch == 0;
}

static bool *seen_of(const rank_check *check, uint32_t task, int micro_batch)
{
    return &check->seen_of[(size_t)task * (size_t)check->expected->num_micro_batches +
                           (size_t)micro_batch];
}

static uint32_t num_repeated(const weft_expectation *expected)
{
    uint32_t num = 0;
    while (num < expected->num_tasks && repeats(expected, num))
        num++;
    return num;
}

/* The task is there: once. */
static weft_status note_seen(rank_check *check, uint32_t index)
{
    const weft_expectation *expected = check->expected;
    const weft_task *task = &check->program->tasks[index];
    const uint32_t wanted = check->expected_of[index];
    bool again = check->seen[wanted] > 0;
    uint32_t first = 0;
    if (repeats(expected, wanted)) {
        bool *is_seen = seen_of(check, wanted, task->micro_batch);
        if (!expected->has(expected->context, task, task->micro_batch))
            return fail(check, index, "has no place in this program");
        again = *is_seen;
        *is_seen = true;
    }
    while (again && !same_work(&check->program->tasks[first], task))
        first++;
    if (again)
        return fail(check, index, "does again what task %u did", first);
    check->seen[wanted] = index + 1;
    return WEFT_OK;
}

/* Sets expected_of and seen. */
static weft_status find_expected(rank_check *check)
{
    const weft_expectation *expected = check->expected;
    uint32_t room = 16;
    while (room < 2 * expected->num_tasks)
        room *= 2;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, room, sizeof(uint32_t), &memory));
    uint32_t *table = memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, check->program->num_tasks, sizeof(uint32_t),
                                    &memory));
    check->expected_of = memory;
    WEFT_TRY(
        weft_arena_alloc_array(check->scratch, expected->num_tasks, sizeof(uint32_t), &memory));
    check->seen = memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, num_repeated(expected),
                                    (size_t)expected->num_micro_batches, &memory));
    check->seen_of = memory;
    for (uint32_t i = 0; i < expected->num_tasks; i++) {
        uint32_t at = hash_of(&expected->tasks[i]);
        while (table[at % room])
            at++;
        table[at % room] = i + 1;
    }
    for (uint32_t i = 0; i < check->program->num_tasks; i++) {
        weft_task task = check->program->tasks[i];
        if (task.micro_batch > 0 && task.micro_batch < expected->num_micro_batches)
            task.micro_batch = 0;
        uint32_t at = hash_of(&task);
        while (table[at % room] && !same_work(&expected->tasks[table[at % room] - 1], &task))
            at++;
        if (!table[at % room])
            return fail(check, i, "has no place in this program");
        check->expected_of[i] = table[at % room] - 1;
        WEFT_TRY(note_seen(check, i));
    }
    return WEFT_OK;
}

/* The text of an expected task, without operands. */
static const char *expected_text(const weft_task *task, char text[WEFT_TASK_TEXT_BYTES])
{
    weft_task bare = *task;
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        bare.operands[i] = -1;
    bare.num_waits = 0;
    const weft_wait none = {0, -1};
    return weft_task_format(&(weft_program){.tasks = &bare, .waits = &none}, 0, text,
                            WEFT_TASK_TEXT_BYTES);
}

/* Of an expected task, or of those that it stands for. */
static weft_status check_there(const rank_check *check, uint32_t i)
{
    const weft_expectation *expected = check->expected;
    char text[WEFT_TASK_TEXT_BYTES];
    weft_task task = expected->tasks[i];
    const int num = repeats(expected, i) ? expected->num_micro_batches : 0;
    bool lacks = num == 0 && !check->seen[i];
    for (int m = 0; m < num && !lacks; m++) {
        lacks = !*seen_of(check, i, m) && expected->has(expected->context, &task, m);
        task.micro_batch = lacks ? m : 0;
    }
    return lacks ? WEFT_ERROR(WEFT_INTERNAL, "%s has no %s", expected->where,
                              expected_text(&task, text))
                 : WEFT_OK;
}

static weft_status check_order(const rank_check *check)
{
    const weft_expectation *expected = check->expected;
    uint32_t latest[WEFT_NUM_TASK_KINDS][WEFT_NUM_FLOWS] = {{0}}; /* 1 + index */
    for (uint32_t i = 0; i < expected->num_tasks; i++) {
        const weft_task *task = &expected->tasks[i];
        uint32_t *before = &latest[task->kind][task->flow];
        WEFT_TRY(check_there(check, i));
        if (expected->ordered >> task->kind & 1 && check->seen[i] < *before)
            return fail(check, check->seen[i] - 1, "comes before task %u", *before - 1);
        *before = check->seen[i];
    }
    return WEFT_OK;
}

static weft_status check_tasks(const rank_check *check)
{
    const weft_program *program = check->program;
    const weft_expectation *expected = check->expected;
    int in_flight = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const weft_task *wanted = &expected->tasks[check->expected_of[i]];
        if (task->lane != wanted->lane)
            return fail(check, i, "is not on the %s lane", weft_lane_kind_text(wanted->lane));
        if (task->peer != wanted->peer)
            return fail(check, i, "has peer %d instead of %d", task->peer, wanted->peer);
        if ((task->flags ^ wanted->flags) & WEFT_TASK_HOST_WAITS)
            return fail(check, i, "%s that the host waits", task->flags ? "says" : "hides");
        if ((task->flags ^ wanted->flags) & ~(expected->may_pair ? WEFT_TASK_PAIRED : 0))
            return fail(check, i, "says that it is one of a pair");
        const bool follows = weft_task_awaits_step(wanted, expected->waits);
        if (weft_task_awaits_step(task, program->waits) != follows)
            return fail(check, i,
                        follows ? "may start before the update of the step before is over"
                                : "waits for the step before, but must not");
        for (int k = 0; k < WEFT_TASK_MAX_OPERANDS; k++)
            WEFT_TRY(check_operand(check, i, k));
        if (expected->begins == expected->ends ||
            (task->flow != expected->flow && task->flow != WEFT_FLOW_WEIGHT))
            continue;
        if (task->kind == expected->begins && ++in_flight > program->max_in_flight)
            return fail(check, i, "puts %d in flight, at most %d may be", in_flight,
                        program->max_in_flight);
        in_flight -= task->kind == expected->ends;
    }
    return WEFT_OK;
}

static bool is_done(const rank_check *check, const weft_past *past, weft_wait wait)
{
    return weft_past_has(past, check->program->tasks, wait);
}

static weft_past past_of(const rank_check *check, uint32_t index)
{
    weft_past past;
    weft_pasts_of(check->pasts, check->program->tasks[index].lane, index, &past);
    return past;
}

/* A landing is over for tasks of the bucket that wait for it, and for those behind their end. */
static bool is_over(const rank_check *check, uint32_t index, weft_wait wait)
{
    const weft_program *program = check->program;
    const weft_past past = past_of(check, index);
    if (wait.point != WEFT_POINT_LANDED)
        return is_done(check, &past, wait);
    for (uint32_t i = index; i > wait.task; i--) {
        const weft_task *task = &program->tasks[i];
        for (uint32_t w = 0; w < task->num_waits; w++) {
            const weft_wait *other = &program->waits[task->first_wait + w];
            if (other->task == wait.task && other->point == wait.point &&
                task->bucket == program->tasks[index].bucket &&
                (i == index || is_done(check, &past, (weft_wait){i, -1})))
                return true;
        }
    }
    return false;
}

static weft_status check_waits(const rank_check *check)
{
    const weft_expectation *expected = check->expected;
    for (uint32_t i = 0; i < expected->num_tasks; i++)
        for (uint32_t w = 0; w < expected->tasks[i].num_waits; w++) {
            const weft_wait *wanted = &expected->waits[expected->tasks[i].first_wait + w];
            if (wanted->task == WEFT_STEP_BEFORE) /* check_tasks has looked */
                continue;
            const weft_wait wait = {check->seen[wanted->task] - 1, wanted->point};
            const uint32_t index = check->seen[i] - 1;
            if (!is_over(check, index, wait))
                return fail(check, index, "may start before the %s in task %u is over",
                            weft_task_kind_text(expected->tasks[wanted->task].kind), wait.task);
        }
    return WEFT_OK;
}

/* --- proof 3 ------------------------------------------------------------------------------- */

static weft_status check_read(const rank_check *check, uint32_t index, const weft_past *past,
                              int32_t slot, const content *needed, const slot_state *state)
{
    char needs[128], holds[128];
    if (!state->holds.value)
        return fail(check, index, "reads slot %d before anything is written to it", slot);
    if (!same_content(&state->holds, needed))
        return fail(check, index, "needs %s from slot %d, which holds %s",
                    content_text(needed, needs), slot, content_text(&state->holds, holds));
    if (state->writer && !is_done(check, past, (weft_wait){state->writer - 1, -1}))
        return fail(check, index,
                    "may read slot %d before task %u has written it: no wait says otherwise", slot,
                    state->writer - 1);
    return WEFT_OK;
}

static weft_status check_write(const rank_check *check, uint32_t index, const weft_past *past,
                               int32_t slot, const slot_state *state)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (past->lanes[lane].upto < state->readers[lane])
            return fail(check, index,
                        "may overwrite slot %d while task %u still reads it: no wait says "
                        "otherwise",
                        slot, state->readers[lane] - 1);
    if (state->writer && !is_done(check, past, (weft_wait){state->writer - 1, -1}))
        return fail(check, index,
                    "may overwrite slot %d before task %u has written it: no wait says otherwise",
                    slot, state->writer - 1);
    return WEFT_OK;
}

/* Reads, then writes. */
static weft_status replay(const rank_check *check, uint32_t index, const weft_past *past,
                          slot_state *slots)
{
    const weft_task *task = &check->program->tasks[index];
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < operands->count; i++) {
            const int32_t slot = task->operands[i];
            if (slot < 0 || operands->rows[i].writes != (step % 2))
                continue;
            const content c = content_of(check, task, &operands->rows[i]);
            if (step == 0)
                WEFT_TRY(check_read(check, index, past, slot, &c, &slots[slot]));
            else if (step == 1)
                WEFT_TRY(check_write(check, index, past, slot, &slots[slot]));
            else if (step == 2)
                slots[slot].readers[task->lane] = index + 1;
            else
                slots[slot] = (slot_state){.holds = c, .writer = index + 1};
        }
    return WEFT_OK;
}

/* Finds what is done before a task, and keeps it in `pasts`. */
static weft_status find_past(rank_check *check, uint32_t index, weft_past *out)
{
    const weft_program *program = check->program;
    const weft_task *task = &program->tasks[index];
    weft_pasts_begin(check->pasts, task->lane, out);
    for (uint32_t w = 0; w < task->num_waits; w++)
        weft_pasts_add_wait(check->pasts, program->tasks, program->waits[task->first_wait + w],
                            out);
    return weft_pasts_add(check->pasts, task->lane, index, out);
}

/* Replays the slots in program order. Every two tasks that touch a slot, one of them writing, must
 * be ordered by lanes and waits: then any execution sees what the replay saw. */
static weft_status check_slots(rank_check *check)
{
    const weft_program *program = check->program;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, (size_t)program->num_slots, sizeof(slot_state),
                                    &memory));
    slot_state *slots = memory;
    WEFT_TRY(weft_arena_alloc(check->scratch, sizeof(weft_pasts), &memory));
    check->pasts = memory;
    check->pasts->arena = check->scratch;
    for (int h = 0; h < check->expected->num_holds; h++) {
        const weft_holding *held = &check->expected->holds[h];
        int k = 0;
        for (int32_t i = 0; i < program->num_slots; i++)
            if (program->slots[i].holds == held->slots && (held->count == 0 || k < held->count)) {
                slots[i].holds = (content){(int)held->value, -1, -1, -1, -1, -1};
                *(held->by == WEFT_BY_LAYER    ? &slots[i].holds.layer
                  : held->by == WEFT_BY_EXPERT ? &slots[i].holds.expert
                                               : &slots[i].holds.part) = held->first + k++;
            }
    }
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        weft_past past;
        WEFT_TRY(find_past(check, i, &past));
        WEFT_TRY(replay(check, i, &past, slots));
    }
    return WEFT_OK;
}

/* --- proofs 4 and 5 ------------------------------------------------------------------------ */

/* The next RECEIVE from this peer, from `from` on; num_tasks: none. */
static uint32_t next_receive(const weft_program *program, int peer, uint32_t from)
{
    while (from < program->num_tasks &&
           !(program->tasks[from].kind == WEFT_TASK_RECEIVE && program->tasks[from].peer == peer))
        from++;
    return from;
}

/* Proves that a rank's sends match its peers' receives. next: each peer's next RECEIVE. */
static weft_status check_messages(const rank_check *check, const weft_program *programs,
                                  uint32_t *next)
{
    const weft_program *program = check->program;
    for (int peer = 0; peer < check->num_ranks; peer++)
        next[peer] = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *send = &program->tasks[i];
        if (send->kind != WEFT_TASK_SEND)
            continue;
        if (send->peer < 0 || send->peer >= check->num_ranks || send->peer == check->rank)
            return fail(check, i, "sends to no other rank of %d", check->num_ranks);
        const weft_program *peer = &programs[send->peer];
        const uint32_t receive = next_receive(peer, check->rank, next[send->peer]);
        if (receive == peer->num_tasks)
            return fail(check, i, "has no receive left on stage %d", send->peer);
        char text[WEFT_TASK_TEXT_BYTES];
        if (!weft_is_message(send, check->rank, &peer->tasks[receive], send->peer, check->num_ranks,
                             peer->is_v))
            return fail(check, i, "meets stage %d, task %u (%s)", send->peer, receive,
                        weft_task_format(peer, receive, text, sizeof(text)));
        next[send->peer] = receive + 1;
    }
    for (int peer = 0; peer < check->num_ranks; peer++) {
        const uint32_t receive = next_receive(&programs[peer], check->rank, next[peer]);
        if (receive < programs[peer].num_tasks)
            return WEFT_ERROR(WEFT_INTERNAL, "stage %d, task %u: stage %d has no send left for it",
                              peer, receive, check->rank);
    }
    return WEFT_OK;
}

static weft_status check_rank(rank_check *check)
{
    WEFT_TRY(check_readable(check));
    WEFT_TRY(find_expected(check));
    WEFT_TRY(check_order(check));
    WEFT_TRY(check_tasks(check));
    WEFT_TRY(check_slots(check));
    WEFT_TRY(check_waits(check));
    return WEFT_OK;
}

static weft_status check_alone(rank_check *check, weft_expect_function expect, const void *context)
{
    weft_expectation expected = {.where = ""};
    WEFT_TRY(expect(context, check->rank, check->scratch, &expected));
    memcpy(check->wheres[check->rank], expected.where, sizeof expected.where);
    check->expected = &expected;
    weft_status status = check_rank(check);
    check->expected = NULL;
    return status;
}

static weft_status check_together(rank_check *check, const weft_program *programs)
{
    void *next;
    WEFT_TRY(
        weft_arena_alloc_array(check->scratch, (size_t)check->num_ranks, sizeof(uint32_t), &next));
    for (check->rank = 0; check->rank < check->num_ranks; check->rank++) {
        check->program = &programs[check->rank];
        WEFT_TRY(check_messages(check, programs, next));
    }
    weft_walk walk;
    weft_walk_step step;
    WEFT_TRY(weft_walk_start(&walk, programs, check->num_ranks, check->scratch));
    while (weft_walk_next(&walk, &step))
        ;
    WEFT_TRY(weft_walk_finish(&walk));
    return WEFT_OK;
}

static weft_status check_all(rank_check *check, const weft_program *programs,
                             weft_expect_function expect, const void *context, weft_arena *names)
{
    WEFT_TRY(WEFT_ARRAY(names, (size_t)check->num_ranks, &check->wheres));
    for (check->rank = 0; check->rank < check->num_ranks; check->rank++) {
        check->program = &programs[check->rank];
        WEFT_TRY(check_alone(check, expect, context));
        weft_arena_release(check->scratch);
    }
    return check_together(check, programs);
}

weft_status weft_program_check_by(const weft_program *programs, weft_expect_function expect,
                                  const void *context, int num_ranks)
{
    weft_arena scratch = {0}, names = {0};
    rank_check check = {.num_ranks = num_ranks, .scratch = &scratch};
    const weft_status status = check_all(&check, programs, expect, context, &names);
    weft_arena_release(&scratch);
    weft_arena_release(&names);
    WEFT_TRY(status);
    return WEFT_OK;
}

static weft_status at_hand(const void *context, int rank, weft_arena *scratch,
                           weft_expectation *out)
{
    (void)scratch;
    *out = ((const weft_expectation *)context)[rank];
    return WEFT_OK;
}

weft_status weft_program_check(const weft_program *programs, const weft_expectation *expected,
                               int num_ranks)
{
    return weft_program_check_by(programs, at_hand, expected, num_ranks);
}
