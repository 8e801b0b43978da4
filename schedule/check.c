#include "schedule/check.h"

#include "schedule/proof.h"
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
    weft_proof proof;
    const weft_program *program;
    int stage, num_stages, num_micro_batches;
    bool forward_only;
    weft_arena *scratch;
} stage_check;

/* The value that operand i of a task must be. */
static int value_read(const void *context, const weft_task *task, int i)
{
    const stage_check *check = context;
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

static int value_written(const void *context, const weft_task *task, int i)
{
    const stage_check *check = context;
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

/* Proof 1. */
static weft_status check_form(const stage_check *check)
{
    const weft_program *program = check->program;
    const weft_proof *proof = &check->proof;
    WEFT_TRY(weft_proof_num_slots(proof));
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        WEFT_TRY(weft_proof_waits(proof, i));
        if (task->lane != weft_task_kind_lane(task->kind))
            return weft_proof_fail(&check->proof, i, "is not on the %s lane",
                                   weft_lane_kind_text(weft_task_kind_lane(task->kind)));
        if (task->stage != check->stage)
            return weft_proof_fail(&check->proof, i, "serves another stage");
        const bool message = task->kind == WEFT_TASK_SEND || task->kind == WEFT_TASK_RECEIVE;
        const bool update = task->kind == WEFT_TASK_REDUCE || task->kind == WEFT_TASK_STEP;
        if (message ? task->flow != WEFT_FLOW_ACTIVATION && task->flow != WEFT_FLOW_GRADIENT
                    : task->flow != WEFT_FLOW_NONE)
            return weft_proof_fail(&check->proof, i, message ? "carries nothing" : "is no message");
        if (task->peer != peer_of(check, task) || (message && task->peer < 0))
            return weft_proof_fail(&check->proof, i, "has no such neighbour: stage %d of %d",
                                   check->stage, check->num_stages);
        if (update ? task->micro_batch != -1
                   : task->micro_batch < 0 || task->micro_batch >= check->num_micro_batches)
            return weft_proof_fail(&check->proof, i, "serves a micro-batch that is not one of %d",
                                   check->num_micro_batches);
        WEFT_TRY(weft_proof_operands(proof, i));
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
            return weft_proof_fail(&check->proof, i, "has no place in this step");
        if (*mine)
            return weft_proof_fail(&check->proof, i, "does again what task %u did", *mine - 1);
        *mine = i + 1;
        if (check->forward_only)
            continue;
        if (task->kind == WEFT_TASK_FORWARD && ++in_flight > program->max_in_flight)
            return weft_proof_fail(&check->proof, i,
                                   "puts %d micro-batches in flight, at most %d may be", in_flight,
                                   program->max_in_flight);
        if (task->kind == WEFT_TASK_BACKWARD) {
            in_flight--;
            if (!*seen_at(seen, check, WEFT_TASK_FORWARD, WEFT_FLOW_NONE, task->micro_batch))
                return weft_proof_fail(&check->proof, i, "comes before its forward");
        }
    }
    WEFT_TRY(check_missing(check, seen));
    return WEFT_OK;
}

/* Proof 3. */
static weft_status check_slots(const stage_check *check)
{
    void *slots;
    WEFT_TRY(weft_arena_alloc_array(check->scratch, (size_t)check->program->num_slots,
                                    sizeof(weft_slot_state), &slots));
    WEFT_TRY(weft_proof_slots(&check->proof, slots));
    return WEFT_OK;
}

/* The update's part of proof 2: REDUCE after every BACKWARD, STEP after REDUCE. */
static weft_status check_update(const stage_check *check)
{
    const weft_program *program = check->program;
    const weft_past *pasts = check->proof.pasts;
    uint32_t last_backward = 0, reduce = 0; /* 1 + index */
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].kind == WEFT_TASK_BACKWARD)
            last_backward = i + 1;
        else if (program->tasks[i].kind == WEFT_TASK_REDUCE)
            reduce = i + 1;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const int kind = program->tasks[i].kind;
        if (kind == WEFT_TASK_REDUCE && pasts[i].upto[WEFT_LANE_COMPUTE] < last_backward)
            return weft_proof_fail(&check->proof, i,
                                   "may start before the backward in task %u is done",
                                   last_backward - 1);
        if (kind == WEFT_TASK_STEP && pasts[i].upto[WEFT_LANE_REDUCE] < reduce)
            return weft_proof_fail(&check->proof, i,
                                   "may start before the reduce in task %u is done", reduce - 1);
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
            return weft_proof_fail(&check->proof, send, "meets stage %d, task %u (%s)", peer,
                                   receive,
                                   weft_task_format(peer_program, receive, text, sizeof(text)));
        send = next_message(program, WEFT_TASK_SEND, peer, send + 1);
        receive = next_message(peer_program, WEFT_TASK_RECEIVE, check->stage, receive + 1);
    }
    if (send < program->num_tasks)
        return weft_proof_fail(&check->proof, send, "has no receive left on stage %d", peer);
    if (receive < peer_program->num_tasks)
        return WEFT_ERROR(WEFT_INTERNAL, "stage %d, task %u: stage %d has no send left for it",
                          peer, receive, check->stage);
    return WEFT_OK;
}

static void select_stage(stage_check *check, const weft_program *programs, int stage)
{
    check->stage = stage;
    check->program = check->proof.program = &programs[stage];
    snprintf(check->proof.where, sizeof(check->proof.where), "stage %d", stage);
}

static weft_status check_stage(stage_check *check)
{
    WEFT_TRY(check_form(check));
    WEFT_TRY(check_counts(check));
    WEFT_TRY(weft_proof_pasts(&check->proof));
    WEFT_TRY(check_slots(check));
    WEFT_TRY(check_update(check));
    return WEFT_OK;
}

static weft_status check_all(const weft_program *programs, stage_check *check)
{
    for (int stage = 0; stage < check->num_stages; stage++) {
        select_stage(check, programs, stage);
        WEFT_TRY(check_stage(check));
    }
    for (int stage = 0; stage < check->num_stages; stage++) {
        select_stage(check, programs, stage);
        for (int peer = stage - 1; peer <= stage + 1; peer += 2)
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
    check.proof = (weft_proof){.read = value_read,
                               .written = value_written,
                               .context = &check,
                               .value_texts = value_texts,
                               .scratch = &scratch};
    const weft_status status = check_all(programs, &check);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
