#include "schedule/check.h"

#include <stdarg.h>
#include <string.h>

#include "schedule/walk.h"

/* What a slot holds: the value that a task leaves there for another one. */
#define VALUE_LIST(X)                                                                              \
    X(NOTHING, "nothing")                                                                          \
    X(ACTIVATION, "the activation received")                                                       \
    X(STASH, "the stash of the forward")                                                           \
    X(OUTPUT, "the output")                                                                        \
    X(GRADIENT, "the gradient received")                                                           \
    X(INPUT_GRADIENT, "the input gradient")

typedef enum value {
#define ROW(name, text) VALUE_##name,
    VALUE_LIST(ROW)
#undef ROW
} value;

static const char *const value_texts[] = {
#define ROW(name, text) text,
    VALUE_LIST(ROW)
#undef ROW
};

/* One stage of the set being checked. */
typedef struct stage_check {
    const weft_program *program;
    int stage, num_stages, num_micro_batches;
    bool forward_only;
    weft_arena *scratch;
} stage_check;

static weft_status wrong(const stage_check *check, uint32_t index, const char *format, ...)
    WEFT_PRINTF(3, 4);

static weft_status wrong(const stage_check *check, uint32_t index, const char *format, ...)
{
    char what[WEFT_ERROR_TEXT_BYTES / 2], task[WEFT_TASK_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return WEFT_ERROR(WEFT_INTERNAL, "stage %d, task %u (%s) %s", check->stage, index,
                      weft_task_format(check->program, index, task, sizeof(task)), what);
}

/* The value that operand i of a task must be. */
static value value_read(const stage_check *check, const weft_task *task, int i)
{
    const bool first = check->stage == 0, last = check->stage == check->num_stages - 1;
    if (task->kind == WEFT_TASK_FORWARD && i == 0 && !first)
        return VALUE_ACTIVATION;
    if (task->kind == WEFT_TASK_BACKWARD && i == 0)
        return VALUE_STASH;
    if (task->kind == WEFT_TASK_BACKWARD && i == 1 && !last)
        return VALUE_GRADIENT;
    if (task->kind == WEFT_TASK_SEND && i == 0)
        return task->flow == WEFT_FLOW_ACTIVATION ? VALUE_OUTPUT : VALUE_INPUT_GRADIENT;
    return VALUE_NOTHING;
}

static value value_written(const stage_check *check, const weft_task *task, int i)
{
    const bool first = check->stage == 0, last = check->stage == check->num_stages - 1;
    if (task->kind == WEFT_TASK_FORWARD && i == 0)
        return VALUE_STASH;
    if (task->kind == WEFT_TASK_FORWARD && i == 1 && !last)
        return VALUE_OUTPUT;
    if (task->kind == WEFT_TASK_BACKWARD && i == 0 && !first)
        return VALUE_INPUT_GRADIENT;
    if (task->kind == WEFT_TASK_RECEIVE && i == 0)
        return task->flow == WEFT_FLOW_ACTIVATION ? VALUE_ACTIVATION : VALUE_GRADIENT;
    return VALUE_NOTHING;
}

/* The neighbour that a SEND or RECEIVE of this flow talks to; -1 for other tasks. */
static int peer_of(const stage_check *check, const weft_task *task)
{
    if (task->kind != WEFT_TASK_SEND && task->kind != WEFT_TASK_RECEIVE)
        return -1;
    const bool downwards = (task->kind == WEFT_TASK_SEND) == (task->flow == WEFT_FLOW_ACTIVATION);
    const int peer = check->stage + (downwards ? 1 : -1);
    return peer < check->num_stages ? peer : -1;
}

static weft_status check_slot(const stage_check *check, uint32_t index, const char *verb,
                              int32_t slot, value needed)
{
    if ((slot >= 0) != (needed != VALUE_NOTHING))
        return wrong(check, index, "must %s %s, but names slot %d", verb, value_texts[needed],
                     slot);
    if (slot < -1 || slot >= check->program->num_slots)
        return wrong(check, index, "names slot %d, but there are %d", slot,
                     check->program->num_slots);
    return WEFT_OK;
}

/* Proof 1. */
static weft_status check_form(const stage_check *check)
{
    const weft_program *program = check->program;
    if (program->num_slots < 0 || program->num_slots > WEFT_PROGRAM_MAX_SLOTS)
        return WEFT_ERROR(WEFT_INTERNAL, "stage %d has %d slots", check->stage, program->num_slots);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind >= WEFT_NUM_TASK_KINDS || task->first_wait > program->num_waits ||
            task->num_waits > program->num_waits - task->first_wait ||
            task->num_waits > WEFT_TASK_MAX_WAITS)
            return WEFT_ERROR(WEFT_INTERNAL, "stage %d, task %u is malformed: kind %d, %u waits",
                              check->stage, i, task->kind, task->num_waits);
        for (uint32_t w = 0; w < task->num_waits; w++)
            if (program->waits[task->first_wait + w] >= i)
                return wrong(check, i, "waits for task %u, which is not an earlier one",
                             program->waits[task->first_wait + w]);
        if (task->lane != weft_task_kind_lane(task->kind))
            return wrong(check, i, "is not on the %s lane",
                         weft_lane_kind_text(weft_task_kind_lane(task->kind)));
        if (task->stage != check->stage)
            return wrong(check, i, "serves another stage");
        const bool message = task->kind == WEFT_TASK_SEND || task->kind == WEFT_TASK_RECEIVE;
        const bool update = task->kind == WEFT_TASK_REDUCE || task->kind == WEFT_TASK_STEP;
        if (message ? task->flow != WEFT_FLOW_ACTIVATION && task->flow != WEFT_FLOW_GRADIENT
                    : task->flow != WEFT_FLOW_NONE)
            return wrong(check, i, message ? "carries nothing" : "is no message");
        if (task->peer != peer_of(check, task) || (message && task->peer < 0))
            return wrong(check, i, "has no such neighbour: stage %d of %d", check->stage,
                         check->num_stages);
        if (update ? task->micro_batch != -1
                   : task->micro_batch < 0 || task->micro_batch >= check->num_micro_batches)
            return wrong(check, i, "serves a micro-batch that is not one of %d",
                         check->num_micro_batches);
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            WEFT_TRY(check_slot(check, i, "read", task->reads[k], value_read(check, task, k)));
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            WEFT_TRY(check_slot(check, i, "write", task->writes[k], value_written(check, task, k)));
        if (task->writes[0] >= 0 && task->writes[0] == task->writes[1])
            return wrong(check, i, "writes two values to one slot");
    }
    return WEFT_OK;
}

/* Whether the step needs this kind of task (for each micro-batch, or once) on this stage. */
static bool is_needed(const stage_check *check, weft_task_kind kind, weft_flow flow)
{
    const weft_task task = {.kind = (uint16_t)kind, .flow = flow};
    if (kind == WEFT_TASK_SEND || kind == WEFT_TASK_RECEIVE)
        return peer_of(check, &task) >= 0 && (flow == WEFT_FLOW_ACTIVATION ||
                                              (flow == WEFT_FLOW_GRADIENT && !check->forward_only));
    if (kind == WEFT_TASK_BACKWARD || kind == WEFT_TASK_REDUCE || kind == WEFT_TASK_STEP)
        return flow == WEFT_FLOW_NONE && !check->forward_only;
    return flow == WEFT_FLOW_NONE && kind == WEFT_TASK_FORWARD;
}

/* Where the tasks of a kind, flow and micro-batch were seen: 1 + index, 0 not yet. */
static uint32_t *seen_at(uint32_t *seen, const stage_check *check, int kind, int flow,
                         int micro_batch)
{
    const size_t row = (size_t)kind * WEFT_NUM_FLOWS + (size_t)flow;
    return &seen[row * (size_t)check->num_micro_batches +
                 (size_t)(micro_batch < 0 ? 0 : micro_batch)];
}

static weft_status check_missing(const stage_check *check, uint32_t *seen)
{
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        for (int flow = 0; flow < WEFT_NUM_FLOWS; flow++) {
            const bool update = kind == WEFT_TASK_REDUCE || kind == WEFT_TASK_STEP;
            const char *text = weft_task_kind_text(kind), *carried = weft_flow_text(flow);
            for (int m = 0; m < (update ? 1 : check->num_micro_batches); m++) {
                if (!is_needed(check, kind, flow) || *seen_at(seen, check, kind, flow, m))
                    continue;
                if (update)
                    return WEFT_ERROR(WEFT_INTERNAL, "stage %d has no %s", check->stage, text);
                return WEFT_ERROR(WEFT_INTERNAL, "stage %d has no %s%s%s of micro-batch %d",
                                  check->stage, text, flow ? " " : "", carried, m);
            }
        }
    return WEFT_OK;
}

/* Proofs 2 and 6. The compute lane runs in program order. */
static weft_status check_counts(const stage_check *check)
{
    const weft_program *program = check->program;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch,
                                    (size_t)WEFT_NUM_TASK_KINDS * WEFT_NUM_FLOWS *
                                        (size_t)check->num_micro_batches,
                                    sizeof(uint32_t), &memory));
    uint32_t *seen = memory;
    int in_flight = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        uint32_t *mine = seen_at(seen, check, task->kind, (int)task->flow, task->micro_batch);
        if (!is_needed(check, task->kind, task->flow))
            return wrong(check, i, "has no place in this step");
        if (*mine)
            return wrong(check, i, "does again what task %u did", *mine - 1);
        *mine = i + 1;
        if (check->forward_only)
            continue;
        if (task->kind == WEFT_TASK_FORWARD && ++in_flight > program->max_in_flight)
            return wrong(check, i, "puts %d micro-batches in flight, at most %d may be", in_flight,
                         program->max_in_flight);
        if (task->kind == WEFT_TASK_BACKWARD) {
            in_flight--;
            if (!*seen_at(seen, check, WEFT_TASK_FORWARD, WEFT_FLOW_NONE, task->micro_batch))
                return wrong(check, i, "comes before its forward");
        }
    }
    WEFT_TRY(check_missing(check, seen));
    return WEFT_OK;
}

/* What is done before a task starts, by the order of lanes and waits alone: for each lane,
 * 1 + the index of its latest such task (0: none). */
typedef struct past {
    uint32_t upto[WEFT_NUM_LANES];
} past;

static void include_task(past *before, const past *pasts, const weft_task *tasks, uint32_t index)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (before->upto[lane] < pasts[index].upto[lane])
            before->upto[lane] = pasts[index].upto[lane];
    if (before->upto[tasks[index].lane] < index + 1)
        before->upto[tasks[index].lane] = index + 1;
}

/* The past of every task. */
static weft_status find_pasts(const stage_check *check, past **out)
{
    const weft_program *program = check->program;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, program->num_tasks, sizeof(past), &memory));
    past *pasts = memory;
    uint32_t last[WEFT_NUM_LANES] = {0};
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (last[task->lane])
            include_task(&pasts[i], pasts, program->tasks, last[task->lane] - 1);
        for (uint32_t w = 0; w < task->num_waits; w++)
            include_task(&pasts[i], pasts, program->tasks, program->waits[task->first_wait + w]);
        last[task->lane] = i + 1;
    }
    *out = pasts;
    return WEFT_OK;
}

/* A slot in program order: what it holds, and 1 + index of who wrote it and of the last reader on
 * each lane since then. */
typedef struct slot_state {
    value held;
    int32_t micro_batch;
    uint32_t writer, readers[WEFT_NUM_LANES];
} slot_state;

static weft_status check_read(const stage_check *check, const past *before, uint32_t index,
                              int32_t slot, value needed, const slot_state *state)
{
    const weft_task *task = &check->program->tasks[index];
    if (state->held == VALUE_NOTHING)
        return wrong(check, index, "reads slot %d before anything is written to it", slot);
    if (state->held != needed || state->micro_batch != task->micro_batch)
        return wrong(check, index,
                     "needs %s of micro-batch %d from slot %d, which holds %s of micro-batch %d",
                     value_texts[needed], task->micro_batch, slot, value_texts[state->held],
                     state->micro_batch);
    const uint32_t writer = state->writer - 1;
    if (before->upto[check->program->tasks[writer].lane] <= writer)
        return wrong(check, index,
                     "may read slot %d before task %u has written it: no wait says "
                     "otherwise",
                     slot, writer);
    return WEFT_OK;
}

static weft_status check_write(const stage_check *check, const past *before, uint32_t index,
                               int32_t slot, const slot_state *state)
{
    const weft_task *tasks = check->program->tasks;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (before->upto[lane] < state->readers[lane])
            return wrong(check, index,
                         "may overwrite slot %d while task %u still reads it: no "
                         "wait says otherwise",
                         slot, state->readers[lane] - 1);
    if (state->writer && before->upto[tasks[state->writer - 1].lane] < state->writer)
        return wrong(check, index,
                     "may overwrite slot %d before task %u has written it: no wait "
                     "says otherwise",
                     slot, state->writer - 1);
    return WEFT_OK;
}

/* Proof 3: replays the slots in program order, and every two tasks that touch a slot, one of them
 * writing, must be ordered by lanes and waits. Then any execution sees what the replay saw. */
static weft_status check_slots(const stage_check *check, const past *pasts)
{
    const weft_program *program = check->program;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, (size_t)program->num_slots, sizeof(slot_state),
                                    &memory));
    slot_state *slots = memory;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            if (task->reads[k] >= 0)
                WEFT_TRY(check_read(check, &pasts[i], i, task->reads[k], value_read(check, task, k),
                                    &slots[task->reads[k]]));
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            if (task->writes[k] >= 0)
                WEFT_TRY(
                    check_write(check, &pasts[i], i, task->writes[k], &slots[task->writes[k]]));
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            if (task->reads[k] >= 0)
                slots[task->reads[k]].readers[task->lane] = i + 1;
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            if (task->writes[k] >= 0)
                slots[task->writes[k]] = (slot_state){.held = value_written(check, task, k),
                                                      .micro_batch = task->micro_batch,
                                                      .writer = i + 1};
    }
    return WEFT_OK;
}

/* The update's part of proof 2: REDUCE after every BACKWARD, STEP after REDUCE. */
static weft_status check_update(const stage_check *check, const past *pasts)
{
    const weft_program *program = check->program;
    uint32_t last_backward = 0, reduce = 0; /* 1 + index */
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].kind == WEFT_TASK_BACKWARD)
            last_backward = i + 1;
        else if (program->tasks[i].kind == WEFT_TASK_REDUCE)
            reduce = i + 1;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const int kind = program->tasks[i].kind;
        if (kind == WEFT_TASK_REDUCE && pasts[i].upto[WEFT_LANE_COMPUTE] < last_backward)
            return wrong(check, i, "may start before the backward in task %u is done",
                         last_backward - 1);
        if (kind == WEFT_TASK_STEP && pasts[i].upto[WEFT_LANE_REDUCE] < reduce)
            return wrong(check, i, "may start before the reduce in task %u is done", reduce - 1);
    }
    return WEFT_OK;
}

/* The next task of this kind with this peer, from `from` on; num_tasks: none. */
static uint32_t next_message(const weft_program *program, weft_task_kind kind, int peer,
                             uint32_t from)
{
    while (from < program->num_tasks &&
           !(program->tasks[from].kind == kind && program->tasks[from].peer == peer))
        from++;
    return from;
}

/* Proof 4, for what this stage sends to one neighbour. */
static weft_status check_messages(const stage_check *check, const weft_program *peer_program,
                                  int peer)
{
    const weft_program *program = check->program;
    uint32_t send = next_message(program, WEFT_TASK_SEND, peer, 0);
    uint32_t receive = next_message(peer_program, WEFT_TASK_RECEIVE, check->stage, 0);
    while (send < program->num_tasks && receive < peer_program->num_tasks) {
        const weft_task *sent = &program->tasks[send], *received = &peer_program->tasks[receive];
        char text[WEFT_TASK_TEXT_BYTES];
        if (sent->flow != received->flow || sent->micro_batch != received->micro_batch)
            return wrong(check, send, "meets stage %d, task %u (%s)", peer, receive,
                         weft_task_format(peer_program, receive, text, sizeof(text)));
        send = next_message(program, WEFT_TASK_SEND, peer, send + 1);
        receive = next_message(peer_program, WEFT_TASK_RECEIVE, check->stage, receive + 1);
    }
    if (send < program->num_tasks)
        return wrong(check, send, "has no receive left on stage %d", peer);
    if (receive < peer_program->num_tasks)
        return WEFT_ERROR(WEFT_INTERNAL, "stage %d, task %u: stage %d has no send left for it",
                          peer, receive, check->stage);
    return WEFT_OK;
}

static weft_status check_stage(const stage_check *check)
{
    past *pasts = NULL;
    WEFT_TRY(check_form(check));
    WEFT_TRY(check_counts(check));
    WEFT_TRY(find_pasts(check, &pasts));
    WEFT_TRY(check_slots(check, pasts));
    WEFT_TRY(check_update(check, pasts));
    return WEFT_OK;
}

static weft_status check_all(const weft_program *programs, stage_check *check)
{
    for (check->stage = 0; check->stage < check->num_stages; check->stage++) {
        check->program = &programs[check->stage];
        WEFT_TRY(check_stage(check));
    }
    for (check->stage = 0; check->stage < check->num_stages; check->stage++) {
        check->program = &programs[check->stage];
        for (int peer = check->stage - 1; peer <= check->stage + 1; peer += 2)
            if (peer >= 0 && peer < check->num_stages)
                WEFT_TRY(check_messages(check, &programs[peer], peer));
    }
    /* Proof 5. */
    weft_walk walk;
    weft_walk_step step;
    WEFT_TRY(weft_walk_start(&walk, programs, check->num_stages, check->scratch));
    while (weft_walk_next(&walk, &step))
        ;
    WEFT_TRY(weft_walk_finish(&walk));
    return WEFT_OK;
}

weft_status weft_program_check(const weft_program *programs, int num_stages, int num_micro_batches,
                               bool forward_only)
{
    if (num_stages < 1 || num_micro_batches < 1)
        return WEFT_ERROR(WEFT_INTERNAL, "no programs to check: %d stages, %d micro-batches",
                          num_stages, num_micro_batches);
    weft_arena scratch = {0};
    stage_check check = {.num_stages = num_stages,
                         .num_micro_batches = num_micro_batches,
                         .forward_only = forward_only,
                         .scratch = &scratch};
    const weft_status status = check_all(programs, &check);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
