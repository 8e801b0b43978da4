#include "tests/schedule/machine.h"

#include <stdlib.h>
#include <string.h>

enum { MACHINE_SLOTS = 128, MACHINE_MICRO_BATCHES = 64, MACHINE_CHUNKS = 4 };

/* What a value is, for all that matters: who made it, for which micro-batch. 0 is garbage. */
static uint32_t value_of(const char *what, int stage, int micro_batch)
{
    uint32_t hash = 2166136261u;
    for (; *what; what++)
        hash = (hash ^ (uint32_t)*what) * 16777619u;
    hash = (hash ^ (uint32_t)(stage + 1)) * 16777619u;
    hash = (hash ^ (uint32_t)(micro_batch + 1)) * 16777619u;
    return hash | 1;
}

typedef struct machine_slot {
    uint32_t value;
    int num_readers, num_writers;
} machine_slot;

typedef struct machine_stage {
    uint32_t head[WEFT_NUM_LANES];
    bool running[WEFT_NUM_LANES];
    bool done[MAX_EDIT_TASKS];
    machine_slot slots[MACHINE_SLOTS];
    int in_flight, num_backwards, num_reduces, num_norms, num_steps;
    bool forwarded[MACHINE_CHUNKS][MACHINE_MICRO_BATCHES],
        backwarded[MACHINE_CHUNKS][MACHINE_MICRO_BATCHES];
} machine_stage;

typedef struct machine {
    const program_set *set;
    machine_stage stages[MAX_STAGES];
    const char *fault;
} machine;

static void fault(machine *m, const char *what)
{
    if (!m->fault)
        m->fault = what;
}

static int num_chunks(const machine *m)
{
    return m->set->shape.num_chunks ? m->set->shape.num_chunks : 1;
}

/* The slots that a task reads and writes, in the order of golden files; -1: none. */
static int32_t read_by(const weft_task *task, int k)
{
    if (task->kind == WEFT_TASK_BACKWARD)
        return task->operands[k];
    return k == 0 && task->kind != WEFT_TASK_RECEIVE ? task->operands[0] : -1;
}

static int32_t written_by(const weft_task *task, int k)
{
    if (task->kind == WEFT_TASK_FORWARD)
        return task->operands[1 + k];
    return k == 1 ? -1 : task->operands[task->kind == WEFT_TASK_BACKWARD ? 2 : 0];
}

static uint32_t next_on(const weft_program *program, int lane, uint32_t from)
{
    while (from < program->num_tasks && program->tasks[from].lane != lane)
        from++;
    return from;
}

static void hold_for_reading(machine *m, int stage, int32_t slot, uint32_t expected)
{
    if (slot < 0 || slot >= MACHINE_SLOTS) {
        fault(m, "nothing to read");
        return;
    }
    machine_slot *held = &m->stages[stage].slots[slot];
    if (held->num_writers)
        fault(m, "read while it was written");
    if (held->value != expected)
        fault(m, "read a wrong value");
    held->num_readers++;
}

static void hold_for_writing(machine *m, int stage, const weft_task *task, int32_t slot)
{
    if (slot < 0 || slot >= MACHINE_SLOTS || slot >= m->set->programs[stage].num_slots) {
        fault(m, "nowhere to write");
        return;
    }
    machine_slot *held = &m->stages[stage].slots[slot];
    const int own = (read_by(task, 0) == slot) + (read_by(task, 1) == slot);
    if (held->num_readers > own || held->num_writers)
        fault(m, "written while in use");
    held->num_writers++;
    held->value = 0;
}

static void leave(machine *m, int stage, int32_t slot, uint32_t value)
{
    if (slot < 0 || slot >= MACHINE_SLOTS)
        return;
    m->stages[stage].slots[slot].num_writers--;
    m->stages[stage].slots[slot].value = value;
}

static void start_task(machine *m, int stage, uint32_t index)
{
    const weft_task *task = &m->set->programs[stage].tasks[index];
    machine_stage *here = &m->stages[stage];
    const int mb = task->micro_batch, p = m->set->shape.num_stages;
    const int number = task->chunk * p + stage, last = p * num_chunks(m) - 1;
    const int num_micro_batches = m->set->shape.num_micro_batches;
    const bool known = mb >= 0 && mb < num_micro_batches && task->chunk >= 0 && number <= last;
    here->running[task->lane] = true;
    switch (task->kind) {
    case WEFT_TASK_FORWARD:
        if (!known || here->forwarded[task->chunk][mb])
            fault(m, "forwarded a wrong micro-batch");
        else
            here->forwarded[task->chunk][mb] = true;
        if (number > 0)
            hold_for_reading(m, stage, read_by(task, 0), value_of("activation", number, mb));
        hold_for_writing(m, stage, task, written_by(task, 0));
        if (number < last)
            hold_for_writing(m, stage, task, written_by(task, 1));
        if (++here->in_flight > m->set->programs[stage].max_in_flight &&
            !m->set->shape.forward_only)
            fault(m, "too many in flight");
        break;
    case WEFT_TASK_BACKWARD:
        if (!known || here->backwarded[task->chunk][mb])
            fault(m, "backwarded a wrong micro-batch");
        else
            here->backwarded[task->chunk][mb] = true;
        if (here->num_reduces)
            fault(m, "a backward after the reduction");
        hold_for_reading(m, stage, read_by(task, 0), value_of("stash", number, mb));
        if (number < last)
            hold_for_reading(m, stage, read_by(task, 1), value_of("gradient", number, mb));
        if (number > 0)
            hold_for_writing(m, stage, task, written_by(task, 0));
        break;
    case WEFT_TASK_SEND:
        hold_for_reading(m, stage, read_by(task, 0),
                         task->flow == WEFT_FLOW_ACTIVATION ? value_of("activation", number + 1, mb)
                                                            : value_of("gradient", number - 1, mb));
        break;
    case WEFT_TASK_RECEIVE:
        hold_for_writing(m, stage, task, written_by(task, 0));
        break;
    case WEFT_TASK_REDUCE:
        if (here->num_reduces++ || here->num_backwards != num_micro_batches * num_chunks(m))
            fault(m, "reduced too early or twice");
        break;
    case WEFT_TASK_NORM:
        if (here->num_norms++ || here->num_reduces != 2)
            fault(m, "norm taken too early or twice");
        break;
    default:
        if (here->num_steps++ || here->num_norms != 2)
            fault(m, "stepped too early or twice");
    }
}

static void finish_task(machine *m, int stage, uint32_t index, uint32_t received)
{
    const weft_program *program = &m->set->programs[stage];
    const weft_task *task = &program->tasks[index];
    machine_stage *here = &m->stages[stage];
    const int mb = task->micro_batch, p = m->set->shape.num_stages;
    const int number = task->chunk * p + stage, last = p * num_chunks(m) - 1;
    for (int k = 0; k < 2; k++)
        if (read_by(task, k) >= 0 && read_by(task, k) < MACHINE_SLOTS &&
            here->slots[read_by(task, k)].num_readers > 0)
            here->slots[read_by(task, k)].num_readers--;
    switch (task->kind) {
    case WEFT_TASK_FORWARD:
        leave(m, stage, written_by(task, 0), value_of("stash", number, mb));
        if (number < last)
            leave(m, stage, written_by(task, 1), value_of("activation", number + 1, mb));
        break;
    case WEFT_TASK_BACKWARD:
        here->in_flight--;
        here->num_backwards++;
        if (number > 0)
            leave(m, stage, written_by(task, 0), value_of("gradient", number - 1, mb));
        break;
    case WEFT_TASK_RECEIVE:
        leave(m, stage, written_by(task, 0), received);
        break;
    case WEFT_TASK_REDUCE:
        here->num_reduces++; /* 2: done */
        break;
    case WEFT_TASK_NORM:
        here->num_norms++;
        break;
    default:
        break;
    }
    here->done[index] = true;
    here->running[task->lane] = false;
    here->head[task->lane] = next_on(program, task->lane, index + 1);
}

static bool can_start(const machine *m, int stage, int lane)
{
    const weft_program *program = &m->set->programs[stage];
    const machine_stage *here = &m->stages[stage];
    const uint32_t index = here->head[lane];
    if (index >= program->num_tasks || here->running[lane])
        return false;
    for (uint32_t i = 0; i < index; i++) /* the host does not get behind it */
        if ((program->tasks[i].flags & WEFT_TASK_HOST_WAITS) && !here->done[i])
            return false;
    for (uint32_t w = 0; w < program->tasks[index].num_waits; w++) {
        const uint32_t wait = program->waits[program->tasks[index].first_wait + w].task;
        if (wait >= program->num_tasks || !here->done[wait])
            return false;
    }
    return true;
}

/* All ranks meet in the norm. */
static bool all_at_norm(const machine *m)
{
    for (int stage = 0; stage < m->set->shape.num_stages; stage++) {
        const weft_program *program = &m->set->programs[stage];
        const machine_stage *here = &m->stages[stage];
        uint32_t norm = 0;
        while (norm < program->num_tasks && program->tasks[norm].kind != WEFT_TASK_NORM)
            norm++;
        if (norm == program->num_tasks || here->done[norm])
            continue;
        const int lane = program->tasks[norm].lane;
        if (here->head[lane] != norm || (!here->running[lane] && !can_start(m, stage, lane)))
            return false;
    }
    return true;
}

/* The lane of the peer whose head is the other end of this message, or -1. Messages have no
 * labels: whatever comes next from the sender is what the receiver gets. */
static int other_end(const machine *m, int stage, const weft_task *task)
{
    const int wanted = task->kind == WEFT_TASK_SEND ? WEFT_TASK_RECEIVE : WEFT_TASK_SEND;
    if (task->peer < 0 || task->peer >= m->set->shape.num_stages)
        return -1;
    const weft_program *peer = &m->set->programs[task->peer];
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++) {
        const uint32_t head = m->stages[task->peer].head[lane];
        if (head < peer->num_tasks && peer->tasks[head].kind == wanted &&
            peer->tasks[head].peer == stage)
            return lane;
    }
    return -1;
}

/* Starts or ends the head of a lane; false if neither can be done now. */
static bool advance(machine *m, int stage, int lane)
{
    machine_stage *here = &m->stages[stage];
    const uint32_t index = here->head[lane];
    if (!here->running[lane] && !can_start(m, stage, lane))
        return false;
    const weft_task *task = &m->set->programs[stage].tasks[index];
    if (task->kind == WEFT_TASK_NORM && !here->running[lane] && !all_at_norm(m))
        return false;
    if (task->kind != WEFT_TASK_SEND && task->kind != WEFT_TASK_RECEIVE) {
        if (here->running[lane])
            finish_task(m, stage, index, 0);
        else
            start_task(m, stage, index);
        return true;
    }
    /* Messages are moved by their sender, both ends at once. */
    const int other = task->kind == WEFT_TASK_SEND ? other_end(m, stage, task) : -1;
    if (other < 0)
        return false;
    machine_stage *there = &m->stages[task->peer];
    const uint32_t receive = there->head[other];
    if (here->running[lane]) {
        const uint32_t value = read_by(task, 0) >= 0 && read_by(task, 0) < MACHINE_SLOTS
                                   ? here->slots[read_by(task, 0)].value
                                   : 0;
        const int peer = task->peer;
        finish_task(m, stage, index, 0);
        finish_task(m, peer, receive, value);
    } else {
        if (!can_start(m, task->peer, other))
            return false;
        start_task(m, stage, index);
        start_task(m, task->peer, receive);
    }
    return true;
}

static void check_end(machine *m)
{
    const weft_pipeline_shape *shape = &m->set->shape;
    for (int stage = 0; stage < shape->num_stages; stage++) {
        const machine_stage *here = &m->stages[stage];
        for (uint32_t i = 0; i < m->set->programs[stage].num_tasks; i++)
            if (!here->done[i])
                fault(m, "deadlock");
        for (int chunk = 0; chunk < num_chunks(m); chunk++)
            for (int mb = 0; mb < shape->num_micro_batches; mb++)
                if (!here->forwarded[chunk][mb] ||
                    here->backwarded[chunk][mb] == shape->forward_only)
                    fault(m, "a micro-batch was left out");
        if (here->num_steps == shape->forward_only)
            fault(m, "no step, or one too many");
    }
}

const char *run_machine(const program_set *set, uint64_t seed)
{
    machine *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    m->set = set;
    const int num_lanes = set->shape.num_stages * WEFT_NUM_LANES;
    for (int i = 0; i < num_lanes; i++)
        m->stages[i / WEFT_NUM_LANES].head[i % WEFT_NUM_LANES] =
            next_on(&set->programs[i / WEFT_NUM_LANES], i % WEFT_NUM_LANES, 0);
    /* A lane in eight runs is slow: it moves only when nothing else can. */
    const uint32_t slow = next_random(&seed, 8 * (uint32_t)num_lanes);
    for (bool moved = true; moved && !m->fault;) {
        moved = false;
        const uint32_t first = next_random(&seed, (uint32_t)num_lanes);
        for (uint32_t i = 0; i < (uint32_t)num_lanes && !moved; i++) {
            const uint32_t at = (first + i) % (uint32_t)num_lanes;
            if (at != slow)
                moved = advance(m, (int)(at / WEFT_NUM_LANES), (int)(at % WEFT_NUM_LANES));
        }
        if (!moved && slow < (uint32_t)num_lanes)
            moved = advance(m, (int)(slow / WEFT_NUM_LANES), (int)(slow % WEFT_NUM_LANES));
    }
    if (!m->fault)
        check_end(m);
    const char *what = m->fault;
    free(m);
    return what;
}
