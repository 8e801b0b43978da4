#include "tests/schedule/moe_machine.h"

#include <string.h>

enum { MACHINE_SLOTS = 512 };

moe_pair make_pair(weft_reuse reuse, int num_partitions)
{
    return make_pair_of((weft_moe_pipeline){.num_partitions = num_partitions, .reuse = reuse});
}

moe_pair make_pair_of(weft_moe_pipeline pipeline)
{
    moe_pair pair = {.pipeline = pipeline};
    for (int i = 0; i < 2; i++)
        OK(weft_program_moe(&pair.pipeline, i, &pair.set.arena, &pair.set.programs[i]));
    return pair;
}

typedef struct held {
    const char *what; /* NULL: garbage */
    int partition, num_readers, num_writers;
} held;

typedef struct machine {
    const weft_program *program;
    held slots[MACHINE_SLOTS];
    bool counted; /* the host knows the sizes; forward's are backward's */
    uint32_t head[WEFT_NUM_LANES];
    bool running[WEFT_NUM_LANES], done[MAX_EDIT_TASKS];
    const char *fault;
} machine;

/* What a task reads and leaves, NULL: nothing more. */
static const struct meaning {
    weft_task_kind kind;
    weft_flow flow;
    const char *reads[3], *writes[2];
} meanings[] = {
    {WEFT_TASK_COUNTS, WEFT_FLOW_NONE, {NULL}, {NULL}},
    {WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, {NULL}, {"rows"}},
    {WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION, {"rows"}, {"DI"}},
    {WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, {"DI"}, {"M", "DO"}},
    {WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, {"DO"}, {"result"}},
    {WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT, {"DI"}, {"host DI"}},
    {WEFT_TASK_OFFLOAD, WEFT_FLOW_MIDDLE, {"M"}, {"host M"}},
    {WEFT_TASK_PREFETCH, WEFT_FLOW_INPUT, {"host DI"}, {"DI"}},
    {WEFT_TASK_PREFETCH, WEFT_FLOW_MIDDLE, {"host M"}, {"M"}},
    {WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE, {"DI"}, {"M"}},
    {WEFT_TASK_DISPATCH, WEFT_FLOW_GRADIENT, {"dy"}, {"dDO"}},
    {WEFT_TASK_EXPERT, WEFT_FLOW_GRADIENT, {"DI", "M", "dDO"}, {"dM", "dDI"}},
    {WEFT_TASK_COMBINE, WEFT_FLOW_GRADIENT, {"dDI"}, {"dx"}},
};

static const struct meaning *meaning_of(const weft_task *task)
{
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
        if (meanings[i].kind == task->kind && meanings[i].flow == task->flow)
            return &meanings[i];
    return NULL;
}

/* Operands that are read stand before those that are written. */
static int num_reads(const struct meaning *means)
{
    int count = 0;
    while (count < 3 && means->reads[count])
        count++;
    return count;
}

static int32_t operand_at(const struct meaning *means, const weft_task *task, bool writes, int i)
{
    return task->operands[writes ? num_reads(means) + i : i];
}

static void start(machine *m, const weft_task *task)
{
    const struct meaning *means = meaning_of(task);
    if (!means) {
        m->fault = "no task of a layer";
        return;
    }
    if (task->kind != WEFT_TASK_COUNTS && !m->counted)
        m->fault = "has no sizes yet";
    const int num_writes = !means->writes[0] ? 0 : means->writes[1] ? 2 : 1;
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if ((i < num_reads(means) + num_writes) != (task->operands[i] >= 0)) {
            m->fault = "uses too much or too little";
            return;
        }
    for (int i = 0; i < num_reads(means); i++) {
        held *slot = &m->slots[operand_at(means, task, false, i)];
        if (!slot->what || strcmp(slot->what, means->reads[i]) != 0 ||
            slot->partition != task->part || slot->num_writers)
            m->fault = "read a wrong value";
        slot->num_readers++;
    }
    for (int i = 0; i < 2 && means->writes[i]; i++) {
        held *slot = &m->slots[operand_at(means, task, true, i)];
        if (slot->num_readers || slot->num_writers)
            m->fault = "written while in use";
        slot->num_writers++;
        slot->what = NULL;
    }
}

static void finish(machine *m, const weft_task *task)
{
    const struct meaning *means = meaning_of(task);
    m->counted |= task->kind == WEFT_TASK_COUNTS;
    for (int i = 0; i < num_reads(means); i++)
        m->slots[operand_at(means, task, false, i)].num_readers--;
    for (int i = 0; i < 2 && means->writes[i]; i++) {
        held *slot = &m->slots[operand_at(means, task, true, i)];
        slot->num_writers--;
        slot->what = means->writes[i];
        slot->partition = task->part;
    }
}

/* Nothing behind a task inside which the host waits is enqueued before it is done. */
static bool waits_over(const machine *m, const weft_task *task)
{
    for (const weft_task *t = m->program->tasks; t < task; t++)
        if (t->flags & WEFT_TASK_HOST_WAITS && !m->done[t - m->program->tasks])
            return false;
    for (uint32_t w = 0; w < task->num_waits; w++)
        if (!m->done[m->program->waits[task->first_wait + w].task])
            return false;
    return true;
}

static void next_on_lane(machine *m, int lane, uint32_t from)
{
    while (from < m->program->num_tasks && m->program->tasks[from].lane != lane)
        from++;
    m->head[lane] = from;
}

static void run_program(machine *m, const weft_program *program, uint64_t *random)
{
    m->program = program;
    memset(m->done, 0, sizeof(m->done));
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        next_on_lane(m, lane, 0);
    uint32_t left = program->num_tasks;
    for (int idle = 0; left > 0 && !m->fault;) {
        const int lane = (int)next_random(random, WEFT_NUM_LANES);
        const uint32_t index = m->head[lane];
        const weft_task *task = &program->tasks[index];
        if (++idle > 10000)
            m->fault = "stands still";
        if (index == program->num_tasks || (!m->running[lane] && !waits_over(m, task)))
            continue;
        if (!m->running[lane]) {
            start(m, task);
            m->running[lane] = true;
        } else {
            finish(m, task);
            m->running[lane] = false;
            m->done[index] = true;
            next_on_lane(m, lane, index + 1);
            left--;
        }
        idle = 0;
    }
}

/* The k-th slot of the kind holds this of partition k. */
static void must_hold(machine *m, const weft_program *program, weft_slot_kind kind,
                      const char *what)
{
    for (int i = 0, p = 0; i < program->num_slots; i++) {
        const held *slot = &m->slots[i];
        if (program->slots[i].holds != kind)
            continue;
        if (!slot->what || strcmp(slot->what, what) != 0 || slot->partition != p++)
            m->fault = "a result is missing";
    }
}

/* Between the directions others use what a layer does not keep. Slots of these kinds have the same
 * numbers in both. */
static void forget(machine *m, const weft_program *forward, bool keeps)
{
    for (int i = 0; i < forward->num_slots; i++) {
        const uint32_t kind = forward->slots[i].holds;
        const bool kept = kind == WEFT_SLOT_HOST_T_DI || kind == WEFT_SLOT_HOST_T_M ||
                          (keeps && (kind == WEFT_SLOT_T_DI || kind == WEFT_SLOT_T_M));
        if (!kept)
            m->slots[i] = (held){NULL, 0, 0, 0};
    }
}

const char *run_moe_machine(const moe_pair *pair, uint64_t seed)
{
    static machine m;
    const weft_program *forward = &pair->set.programs[0], *backward = &pair->set.programs[1];
    const int first = first_slot(backward, WEFT_SLOT_RESULT_GRADIENT);
    m = (machine){.fault = NULL};
    run_program(&m, forward, &seed);
    if (!m.fault)
        must_hold(&m, forward, WEFT_SLOT_RESULT, "result");
    if (m.fault)
        return m.fault;
    forget(&m, forward, pair->pipeline.reuse == WEFT_REUSE_NONE);
    for (int p = 0; p < pair->pipeline.num_partitions; p++)
        m.slots[first + p] = (held){"dy", p, 0, 0};
    run_program(&m, backward, &seed);
    if (!m.fault)
        must_hold(&m, backward, WEFT_SLOT_RESULT_GRADIENT, "dx");
    return m.fault;
}
