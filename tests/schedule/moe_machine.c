#include "tests/schedule/moe_machine.h"

#include <string.h>

enum { MACHINE_SLOTS = 512 };

moe_pair make_pair(weft_reuse reuse, int num_partitions)
{
    moe_pair pair = {.pipeline = {num_partitions, reuse}};
    for (int i = 0; i < 2; i++)
        ASSERT_OK(weft_program_moe(&pair.pipeline, i, &pair.set.arena, &pair.set.programs[i]));
    return pair;
}

typedef struct held {
    const char *what; /* NULL: garbage */
    int partition, num_readers, num_writers;
} held;

typedef struct machine {
    const weft_program *program;
    held slots[MACHINE_SLOTS];
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

static void start(machine *m, const weft_task *task)
{
    const struct meaning *means = meaning_of(task);
    if (!means) {
        m->fault = "no task of a layer";
        return;
    }
    for (int i = 0; i < 3; i++) {
        if ((means->reads[i] != NULL) != (task->reads[i] >= 0)) {
            m->fault = "reads too much or too little";
            return;
        }
        if (task->reads[i] < 0)
            continue;
        held *slot = &m->slots[task->reads[i]];
        if (!slot->what || strcmp(slot->what, means->reads[i]) != 0 ||
            slot->partition != task->micro_batch || slot->num_writers)
            m->fault = "read a wrong value";
        slot->num_readers++;
    }
    for (int i = 0; i < 2; i++) {
        if ((means->writes[i] != NULL) != (task->writes[i] >= 0)) {
            m->fault = "writes too much or too little";
            return;
        }
        if (task->writes[i] < 0)
            continue;
        held *slot = &m->slots[task->writes[i]];
        if (slot->num_readers || slot->num_writers)
            m->fault = "written while in use";
        slot->num_writers++;
        slot->what = NULL;
    }
}

static void finish(machine *m, const weft_task *task)
{
    const struct meaning *means = meaning_of(task);
    for (int i = 0; i < 3; i++)
        if (task->reads[i] >= 0)
            m->slots[task->reads[i]].num_readers--;
    for (int i = 0; i < 2; i++)
        if (task->writes[i] >= 0) {
            m->slots[task->writes[i]].num_writers--;
            m->slots[task->writes[i]].what = means->writes[i];
            m->slots[task->writes[i]].partition = task->micro_batch;
        }
}

static bool waits_over(const machine *m, const weft_task *task)
{
    for (uint32_t w = 0; w < task->num_waits; w++)
        if (!m->done[m->program->waits[task->first_wait + w]])
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

static void must_hold(machine *m, weft_slot_ring ring, const char *what, int num_partitions)
{
    for (int p = 0; p < num_partitions; p++) {
        const held *slot = &m->slots[ring.first + p];
        if (!slot->what || strcmp(slot->what, what) != 0 || slot->partition != p)
            m->fault = "a result is missing";
    }
}

/* Between the directions others use what a layer does not keep. */
static void forget(machine *m, const weft_moe_slots *slots, bool keeps)
{
    held kept[MACHINE_SLOTS] = {{NULL, 0, 0, 0}};
    const weft_slot_ring rings[] = {slots->host_input, slots->host_middle, slots->dispatched,
                                    slots->middle};
    for (int r = 0; r < (keeps ? 4 : 2); r++)
        for (int i = 0; i < rings[r].length; i++)
            kept[rings[r].first + i] = m->slots[rings[r].first + i];
    memcpy(m->slots, kept, sizeof(kept));
}

const char *run_moe_machine(const moe_pair *pair, uint64_t seed)
{
    static machine m;
    const int n = pair->pipeline.num_partitions;
    const weft_moe_slots forward = weft_moe_slots_of(&pair->pipeline, false),
                         backward = weft_moe_slots_of(&pair->pipeline, true);
    m = (machine){.fault = NULL};
    run_program(&m, &pair->set.programs[0], &seed);
    if (!m.fault)
        must_hold(&m, forward.result, "result", n);
    if (m.fault)
        return m.fault;
    forget(&m, &forward, pair->pipeline.reuse == WEFT_REUSE_NONE);
    for (int p = 0; p < n; p++)
        m.slots[backward.dresult.first + p] = (held){"dy", p, 0, 0};
    run_program(&m, &pair->set.programs[1], &seed);
    if (!m.fault)
        must_hold(&m, backward.dresult, "dx", n);
    return m.fault;
}
