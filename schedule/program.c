#include "schedule/program.h"

#include <string.h>

_Static_assert(sizeof(weft_task) == 48, "padding would make equal programs differ");
_Static_assert(WEFT_TASK_MAX_WAITS >= WEFT_NUM_LANES - 1, "a task may wait for every other lane");

/* What is known to be done when a task is done: for each lane, 1 + the index of its latest such
 * task (0: none). Lanes are FIFOs, so everything before that task on its lane is done too. */
typedef struct knowledge {
    uint32_t upto[WEFT_NUM_LANES];
} knowledge;

/* Who used a slot last: 1 + index of the last writer, and of the last reader since then on each
 * lane (0: none). */
typedef struct slot_use {
    uint32_t writer, readers[WEFT_NUM_LANES];
} slot_use;

struct weft_program_builder {
    weft_arena *arena;
    weft_task *tasks;
    knowledge *knowledge; /* one a task */
    uint32_t *waits;
    slot_use *slots;
    uint32_t num_tasks, max_tasks, max_knowledge, num_waits, max_waits, max_slots;
    uint32_t last[WEFT_NUM_LANES]; /* 1 + index of the lane's last task */
};

static const struct {
    const char *text, *letter;
    int lane;
} kinds[WEFT_NUM_TASK_KINDS] = {
#define ROW(name, text, letter, lane, reads, writes, peer) {text, letter, WEFT_LANE_##lane},
    WEFT_TASK_LIST(ROW)
#undef ROW
};

static const char *const lane_texts[WEFT_NUM_LANES] = {
#define ROW(name, text) text,
    WEFT_LANE_LIST(ROW)
#undef ROW
};

static const char *const flow_texts[WEFT_NUM_FLOWS] = {
#define ROW(name, text) text,
    WEFT_FLOW_LIST(ROW)
#undef ROW
};

weft_task weft_task_of(weft_task_kind kind, int micro_batch)
{
    return (weft_task){
        .kind = (uint16_t)kind,
        .lane = (uint16_t)weft_task_kind_lane((int)kind),
        .micro_batch = micro_batch,
        .stage = -1,
        .peer = -1,
        .reads = {-1, -1, -1},
        .writes = {-1, -1},
    };
}

const char *weft_task_kind_text(int kind)
{
    return kind >= 0 && kind < WEFT_NUM_TASK_KINDS ? kinds[kind].text : "?";
}

const char *weft_task_kind_letter(int kind)
{
    return kind >= 0 && kind < WEFT_NUM_TASK_KINDS ? kinds[kind].letter : "?";
}

int weft_task_kind_lane(int kind)
{
    return kind >= 0 && kind < WEFT_NUM_TASK_KINDS ? kinds[kind].lane : -1;
}

const char *weft_lane_kind_text(int lane)
{
    return lane >= 0 && lane < WEFT_NUM_LANES ? lane_texts[lane] : "?";
}

const char *const *weft_lane_kind_texts(void)
{
    return lane_texts;
}

const char *weft_flow_text(int flow)
{
    return flow >= 0 && flow < WEFT_NUM_FLOWS ? flow_texts[flow] : "?";
}

/* Makes room for `needed` elements; *array is moved, what was used is copied, the rest is zero. */
static weft_status reserve(weft_program_builder *builder, const void *array, uint32_t needed,
                           size_t size, uint32_t *room, void **out)
{
    *out = NULL;
    if (needed <= *room)
        return WEFT_OK;
    const size_t wanted = needed < 32 ? 64 : 2 * (size_t)needed;
    WEFT_TRY(weft_arena_alloc_array(builder->arena, wanted, size, out));
    if (*room)
        memcpy(*out, array, *room * size);
    *room = (uint32_t)wanted;
    return WEFT_OK;
}

static weft_status reserve_for(weft_program_builder *builder, uint32_t num_waits,
                               uint32_t num_slots)
{
    void *moved;
    WEFT_TRY(reserve(builder, builder->tasks, builder->num_tasks + 1, sizeof(weft_task),
                     &builder->max_tasks, &moved));
    builder->tasks = moved ? moved : builder->tasks;
    WEFT_TRY(reserve(builder, builder->knowledge, builder->num_tasks + 1, sizeof(knowledge),
                     &builder->max_knowledge, &moved));
    builder->knowledge = moved ? moved : builder->knowledge;
    WEFT_TRY(reserve(builder, builder->waits, builder->num_waits + num_waits, sizeof(uint32_t),
                     &builder->max_waits, &moved));
    builder->waits = moved ? moved : builder->waits;
    WEFT_TRY(
        reserve(builder, builder->slots, num_slots, sizeof(slot_use), &builder->max_slots, &moved));
    builder->slots = moved ? moved : builder->slots;
    return WEFT_OK;
}

weft_status weft_program_builder_create(weft_arena *arena, weft_program_builder **out)
{
    void *builder;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_program_builder), &builder));
    ((weft_program_builder *)builder)->arena = arena;
    WEFT_TRY(reserve_for(builder, 1, 1)); /* so that an empty program has arrays too */
    *out = builder;
    return WEFT_OK;
}

enum { NUM_OPERANDS = WEFT_TASK_MAX_READS + WEFT_TASK_MAX_WRITES };

static void get_operands(const weft_task *task, int32_t out[NUM_OPERANDS])
{
    memcpy(out, task->reads, sizeof(task->reads));
    memcpy(out + WEFT_TASK_MAX_READS, task->writes, sizeof(task->writes));
}

static weft_status check_ranges(const weft_program_builder *builder, const weft_task *task,
                                const uint32_t *waits, uint32_t num_waits)
{
    int32_t operands[NUM_OPERANDS];
    get_operands(task, operands);
    if (task->kind >= WEFT_NUM_TASK_KINDS || task->lane >= WEFT_NUM_LANES ||
        task->flow >= WEFT_NUM_FLOWS)
        return WEFT_ERROR(WEFT_CONFIG, "a task has kind %d, lane %d, flow %u", task->kind,
                          task->lane, task->flow);
    if (task->micro_batch < -1 || task->stage < -1 || task->peer < -1)
        return WEFT_ERROR(WEFT_CONFIG, "a task has micro-batch %d, stage %d, peer %d",
                          task->micro_batch, task->stage, task->peer);
    for (int i = 0; i < NUM_OPERANDS; i++)
        if (operands[i] < -1 || operands[i] >= WEFT_PROGRAM_MAX_SLOTS)
            return WEFT_ERROR(WEFT_CONFIG, "a task uses slot %d", operands[i]);
    if (num_waits > WEFT_TASK_MAX_WAITS)
        return WEFT_ERROR(WEFT_CONFIG, "a task waits for %u others, at most %d can be needed",
                          num_waits, WEFT_TASK_MAX_WAITS);
    for (uint32_t w = 0; w < num_waits; w++)
        if (waits[w] >= builder->num_tasks)
            return WEFT_ERROR(WEFT_CONFIG, "task %u waits for task %u, which is not an earlier one",
                              builder->num_tasks, waits[w]);
    return WEFT_OK;
}

static void learn(knowledge *known, const knowledge *more)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (known->upto[lane] < more->upto[lane])
            known->upto[lane] = more->upto[lane];
}

/* What a task appended to this lane knows before it waits for anything. */
static knowledge known_on_lane(const weft_program_builder *builder, int lane)
{
    const knowledge nothing = {{0}};
    return builder->last[lane] ? builder->knowledge[builder->last[lane] - 1] : nothing;
}

weft_status weft_program_add(weft_program_builder *builder, const weft_task *task,
                             const uint32_t *waits, uint32_t num_waits, uint32_t *out_index)
{
    WEFT_TRY(check_ranges(builder, task, waits, num_waits));
    uint32_t num_slots = 0;
    int32_t operands[NUM_OPERANDS];
    get_operands(task, operands);
    for (int i = 0; i < NUM_OPERANDS; i++)
        if ((uint32_t)(operands[i] + 1) > num_slots)
            num_slots = (uint32_t)(operands[i] + 1);
    WEFT_TRY(reserve_for(builder, num_waits, num_slots));

    const uint32_t index = builder->num_tasks++;
    knowledge known = known_on_lane(builder, task->lane);
    builder->tasks[index] = *task;
    builder->tasks[index].first_wait = builder->num_waits;
    builder->tasks[index].num_waits = num_waits;
    for (uint32_t w = 0; w < num_waits; w++) {
        builder->waits[builder->num_waits++] = waits[w];
        learn(&known, &builder->knowledge[waits[w]]);
    }
    known.upto[task->lane] = index + 1;
    builder->knowledge[index] = known;
    builder->last[task->lane] = index + 1;

    for (int i = 0; i < WEFT_TASK_MAX_READS; i++)
        if (task->reads[i] >= 0)
            builder->slots[task->reads[i]].readers[task->lane] = index + 1;
    for (int i = 0; i < WEFT_TASK_MAX_WRITES; i++)
        if (task->writes[i] >= 0)
            builder->slots[task->writes[i]] = (slot_use){.writer = index + 1};
    if (out_index)
        *out_index = index;
    return WEFT_OK;
}

/* The tasks that must be done before a new one, latest first: those it is told of, the writers of
 * what it reads, the writers and readers of what it overwrites. */
typedef struct predecessors {
    uint32_t tasks[WEFT_TASK_MAX_WAITS + WEFT_TASK_MAX_READS +
                   WEFT_TASK_MAX_WRITES * (1 + WEFT_NUM_LANES)];
    uint32_t count;
} predecessors;

static void must_follow(predecessors *before, uint32_t one_past)
{
    if (!one_past)
        return;
    uint32_t at = before->count++;
    for (; at > 0 && before->tasks[at - 1] < one_past - 1; at--)
        before->tasks[at] = before->tasks[at - 1];
    before->tasks[at] = one_past - 1;
}

weft_status weft_program_append(weft_program_builder *builder, const weft_task *task,
                                const uint32_t *after, uint32_t num_after, uint32_t *out_index)
{
    WEFT_TRY(check_ranges(builder, task, after, num_after));
    predecessors before = {.count = 0};
    for (uint32_t i = 0; i < num_after; i++)
        must_follow(&before, after[i] + 1);
    for (int i = 0; i < WEFT_TASK_MAX_READS; i++) {
        const int32_t read = task->reads[i];
        if (read >= 0 && (uint32_t)read < builder->max_slots)
            must_follow(&before, builder->slots[read].writer);
    }
    for (int i = 0; i < WEFT_TASK_MAX_WRITES; i++) {
        const int32_t written = task->writes[i];
        if (written >= 0 && (uint32_t)written < builder->max_slots) {
            must_follow(&before, builder->slots[written].writer);
            for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
                must_follow(&before, builder->slots[written].readers[lane]);
        }
    }

    /* Latest first: an earlier task never implies a later one, so each wait kept is needed. */
    knowledge known = known_on_lane(builder, task->lane);
    uint32_t waits[WEFT_TASK_MAX_WAITS], num_waits = 0;
    for (uint32_t i = 0; i < before.count; i++) {
        const uint32_t earlier = before.tasks[i];
        if (known.upto[builder->tasks[earlier].lane] > earlier)
            continue;
        learn(&known, &builder->knowledge[earlier]);
        waits[num_waits++] = earlier;
    }
    for (uint32_t i = 0; i < num_waits / 2; i++) {
        const uint32_t swapped = waits[i];
        waits[i] = waits[num_waits - 1 - i];
        waits[num_waits - 1 - i] = swapped;
    }
    WEFT_TRY(weft_program_add(builder, task, waits, num_waits, out_index));
    return WEFT_OK;
}

weft_status weft_program_finish(weft_program_builder *builder, int32_t num_slots,
                                int32_t max_in_flight, weft_program *out)
{
    *out = (weft_program){
        .tasks = builder->tasks,
        .num_tasks = builder->num_tasks,
        .waits = builder->waits,
        .num_waits = builder->num_waits,
        .num_slots = num_slots,
        .max_in_flight = max_in_flight,
    };
    return WEFT_OK;
}
