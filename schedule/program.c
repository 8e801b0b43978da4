#include "schedule/program.h"

#include <string.h>

#include "core/doing.h"
#include "schedule/build.h"
#include "schedule/values.h"
#include "schedule/past.h"

_Static_assert(sizeof(weft_task) == 48 && sizeof(weft_wait) == 8 && sizeof(weft_slot) == 16,
               "padding would make equal programs differ");
_Static_assert(WEFT_TASK_MAX_WAITS > WEFT_NUM_LANES - 1,
               "a task may wait for every other lane, and for the step before");
_Static_assert(WEFT_NUM_SLOT_KINDS <= 64, "a value's slots are bits");

/* Who used a slot last: 1 + index of the last writer, and of the last reader since then on each
 * lane (0: none). */
typedef struct slot_use {
    uint32_t writer, readers[WEFT_NUM_LANES];
} slot_use;

struct weft_program_builder {
    weft_arena *arena;
    weft_task *tasks;
    weft_pasts pasts;
    weft_wait *waits;
    weft_slot *slots;
    slot_use *uses; /* one a slot */
    uint32_t num_tasks, max_tasks, num_waits, max_waits;
    uint32_t num_slots, max_slots, max_uses;
};

static const struct {
    const char *text, *letter;
    int stretch;
} kinds[WEFT_NUM_TASK_KINDS] = {
#define ROW(name, text, letter, stretch) {text, letter, stretch},
    WEFT_TASK_LIST(ROW)
#undef ROW
};

static const char *const lane_texts[WEFT_NUM_LANES] = {
#define ROW(name, text) text,
    WEFT_LANE_LIST(ROW)
#undef ROW
};

static const char *const flow_texts[WEFT_NUM_FLOWS] = {
#define ROW(name, text, letters) text,
    WEFT_FLOW_LIST(ROW)
#undef ROW
};

static const char *const slot_texts[WEFT_NUM_SLOT_KINDS] = {
#define ROW(name, text) text,
    WEFT_SLOT_LIST(ROW)
#undef ROW
};

weft_task weft_task_of(weft_task_kind kind, weft_flow flow)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    return (weft_task){
        .kind = (uint8_t)kind,
        .lane = (uint8_t)(operands ? operands->lane : WEFT_LANE_COMPUTE),
        .flow = (uint8_t)flow,
        .micro_batch = -1,
        .chunk = -1,
        .layer = -1,
        .part = -1,
        .bucket = -1,
        .expert = -1,
        .peer = -1,
        .operands = {-1, -1, -1, -1, -1, -1, -1},
    };
}

const char *weft_task_kind_text(int kind)
{
    return kind >= 0 && kind < WEFT_NUM_TASK_KINDS ? kinds[kind].text : "?";
}

int weft_task_kind_stretch(int kind)
{
    return kinds[kind].stretch;
}

const char *weft_task_kind_letter(int kind)
{
    return kind >= 0 && kind < WEFT_NUM_TASK_KINDS ? kinds[kind].letter : "?";
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

const char *weft_slot_kind_text(int holds)
{
    return holds >= 0 && holds < WEFT_NUM_SLOT_KINDS ? slot_texts[holds] : "?";
}

int weft_program_count_slots(const weft_program *program, weft_slot_kind holds, int chunk)
{
    int count = 0;
    for (int32_t i = 0; i < program->num_slots; i++)
        count +=
            program->slots[i].holds == holds && (chunk < 0 || program->slots[i].chunk == chunk);
    return count;
}

bool weft_task_awaits_step(const weft_task *task, const weft_wait *waits)
{
    for (uint32_t w = 0; w < task->num_waits; w++)
        if (waits[task->first_wait + w].task == WEFT_STEP_BEFORE)
            return true;
    return false;
}

bool weft_program_host_waits(const weft_program *program)
{
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].flags & WEFT_TASK_HOST_WAITS)
            return true;
    return false;
}

/* Makes room for `needed` elements in a new *array: used elements are copied, others zero. */
static weft_status reserve(weft_program_builder *builder, void **array, uint32_t needed,
                           size_t size, uint32_t *room)
{
    if (needed <= *room)
        return WEFT_OK;
    const size_t wanted = needed < 32 ? 64 : 2 * (size_t)needed;
    void *moved;
    WEFT_TRY(weft_arena_alloc_array(builder->arena, wanted, size, &moved));
    if (*room)
        memcpy(moved, *array, *room * size);
    *array = moved;
    *room = (uint32_t)wanted;
    return WEFT_OK;
}

static weft_status reserve_for(weft_program_builder *b, uint32_t num_tasks, uint32_t num_waits,
                               uint32_t num_slots)
{
    void *tasks = b->tasks, *waits = b->waits, *slots = b->slots, *uses = b->uses;
    WEFT_TRY(reserve(b, &tasks, b->num_tasks + num_tasks, sizeof(weft_task), &b->max_tasks));
    b->tasks = tasks;
    WEFT_TRY(reserve(b, &waits, b->num_waits + num_waits, sizeof(weft_wait), &b->max_waits));
    b->waits = waits;
    WEFT_TRY(reserve(b, &slots, b->num_slots + num_slots, sizeof(weft_slot), &b->max_slots));
    b->slots = slots;
    WEFT_TRY(reserve(b, &uses, b->num_slots + num_slots, sizeof(slot_use), &b->max_uses));
    b->uses = uses;
    return WEFT_OK;
}

weft_status weft_program_builder_create(weft_arena *arena, weft_program_builder **out)
{
    void *builder;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_program_builder), &builder));
    ((weft_program_builder *)builder)->arena = arena;
    ((weft_program_builder *)builder)->pasts.arena = arena;
    WEFT_TRY(reserve_for(builder, 1, 1, 1)); /* so that an empty program has arrays too */
    *out = builder;
    return WEFT_OK;
}

weft_status weft_program_expect(weft_program_builder *b, uint32_t num_tasks, uint32_t num_waits,
                                weft_arena *scratch)
{
    void *tasks, *waits;
    WEFT_TRY(weft_arena_alloc_array(b->arena, num_tasks, sizeof(weft_task), &tasks));
    WEFT_TRY(weft_arena_alloc_array(b->arena, num_waits, sizeof(weft_wait), &waits));
    b->tasks = tasks;
    b->waits = waits;
    b->pasts.arena = scratch;
    b->max_tasks = num_tasks;
    b->max_waits = num_waits;
    return WEFT_OK;
}

weft_status weft_program_add_slots(weft_program_builder *builder, const weft_slot *slot, int count,
                                   int32_t *out_first)
{
    const int64_t num_slots = (int64_t)builder->num_slots + count;
    if (count < 0 || num_slots > WEFT_PROGRAM_MAX_SLOTS || slot->holds >= WEFT_NUM_SLOT_KINDS ||
        slot->chunk < -1 || slot->chunk >= WEFT_PROGRAM_MAX_CHUNKS)
        return WEFT_ERROR(WEFT_CONFIG, "%d slots of kind %u and chunk %d behind %u others", count,
                          slot->holds, slot->chunk, builder->num_slots);
    WEFT_TRY(reserve_for(builder, 0, 0, (uint32_t)count));
    if (out_first)
        *out_first = count > 0 ? (int32_t)builder->num_slots : -1;
    while (count-- > 0)
        builder->slots[builder->num_slots++] = *slot;
    return WEFT_OK;
}

static weft_status check_operands(const weft_program_builder *builder, const weft_task *task)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    if (!operands)
        return WEFT_ERROR(WEFT_CONFIG, "no task has kind %d and flow %d", task->kind, task->flow);
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++) {
        const int32_t slot = task->operands[i];
        if (slot < -1 || slot >= (int32_t)builder->num_slots)
            return WEFT_ERROR(WEFT_CONFIG, "a task uses slot %d of %u", slot, builder->num_slots);
        if (slot >= 0 && i >= operands->count)
            return WEFT_ERROR(WEFT_CONFIG, "a task of kind %s has an operand %d",
                              weft_task_kind_text(task->kind), i);
    }
    return WEFT_OK;
}

static weft_status check_ranges(const weft_program_builder *builder, const weft_task *task,
                                const weft_wait *waits, uint32_t num_waits)
{
    WEFT_TRY(check_operands(builder, task));
    if (task->lane >= WEFT_NUM_LANES || (task->flags & ~WEFT_TASK_ALL_FLAGS))
        return WEFT_ERROR(WEFT_CONFIG, "a task has lane %d, flags %d", task->lane, task->flags);
    if (task->micro_batch < -1 || task->chunk < -1 || task->layer < -1 || task->part < -1 ||
        task->expert < -1 || task->bucket < -1 || task->peer < -1)
        return WEFT_ERROR(WEFT_CONFIG,
                          "a task has micro-batch %d, chunk %d, layer %d, part %d, expert %d, "
                          "bucket %d, peer %d",
                          task->micro_batch, task->chunk, task->layer, task->part, task->expert,
                          task->bucket, task->peer);
    if (num_waits > WEFT_TASK_MAX_WAITS)
        return WEFT_ERROR(WEFT_CONFIG, "a task waits for %u others, at most %d can be needed",
                          num_waits, WEFT_TASK_MAX_WAITS);
    for (uint32_t w = 0; w < num_waits; w++)
        if ((waits[w].task >= builder->num_tasks && waits[w].task != WEFT_STEP_BEFORE) ||
            !weft_wait_is_served(task, waits[w]))
            return WEFT_ERROR(WEFT_CONFIG,
                              "task %u waits for task %u (point %d), which is not an earlier one, "
                              "or for what it does not serve",
                              builder->num_tasks, waits[w].task, waits[w].point);
    return WEFT_OK;
}

/* past: what the lane's order and the waits say. */
static weft_status add_with(weft_program_builder *builder, const weft_task *task,
                            const weft_wait *waits, uint32_t num_waits, const weft_past *past,
                            uint32_t *out_index)
{
    WEFT_TRY(reserve_for(builder, 1, num_waits, 0));
    const uint32_t index = builder->num_tasks++;
    builder->tasks[index] = *task;
    builder->tasks[index].first_wait = builder->num_waits;
    builder->tasks[index].num_waits = (uint16_t)num_waits;
    for (uint32_t w = 0; w < num_waits; w++)
        builder->waits[builder->num_waits++] = waits[w];
    WEFT_TRY(weft_pasts_add(&builder->pasts, task->lane, index, past));

    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int writes = 0; writes < 2; writes++)
        for (int i = 0; i < operands->count; i++) {
            const int32_t slot = task->operands[i];
            if (slot < 0 || operands->rows[i].writes != (bool)writes)
                continue;
            if (writes)
                builder->uses[slot] = (slot_use){.writer = index + 1};
            else
                builder->uses[slot].readers[task->lane] = index + 1;
        }
    if (out_index)
        *out_index = index;
    return WEFT_OK;
}

weft_status weft_program_add(weft_program_builder *builder, const weft_task *task,
                             const weft_wait *waits, uint32_t num_waits, uint32_t *out_index)
{
    weft_past past;
    WEFT_TRY(check_ranges(builder, task, waits, num_waits));
    weft_pasts_begin(&builder->pasts, task->lane, &past);
    for (uint32_t w = 0; w < num_waits; w++)
        weft_pasts_add_wait(&builder->pasts, builder->tasks, waits[w], &past);
    return add_with(builder, task, waits, num_waits, &past, out_index);
}

/* What must be over before a new task, latest first: its explicit waits, the writers of what it
 * reads, the writers and readers of what it overwrites. */
typedef struct predecessors {
    weft_wait waits[WEFT_TASK_MAX_WAITS + WEFT_TASK_MAX_OPERANDS * (1 + WEFT_NUM_LANES)];
    uint32_t count;
} predecessors;

static void must_follow(predecessors *before, weft_wait wait)
{
    uint32_t at = before->count++;
    for (; at > 0 && (before->waits[at - 1].task < wait.task ||
                      (before->waits[at - 1].task == wait.task && wait.point == -1));
         at--)
        before->waits[at] = before->waits[at - 1];
    before->waits[at] = wait;
}

static void must_follow_task(predecessors *before, uint32_t one_past)
{
    if (one_past)
        must_follow(before, (weft_wait){one_past - 1, -1});
}

weft_status weft_program_append(weft_program_builder *builder, const weft_task *task,
                                const weft_wait *after, uint32_t num_after, uint32_t *out_index)
{
    WEFT_TRY(check_ranges(builder, task, after, num_after));
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    predecessors before;
    before.count = 0;
    for (uint32_t i = 0; i < num_after; i++)
        must_follow(&before, after[i]);
    for (int i = 0; i < operands->count; i++) {
        if (task->operands[i] < 0)
            continue;
        const slot_use *use = &builder->uses[task->operands[i]];
        must_follow_task(&before, use->writer);
        for (int lane = 0; lane < builder->pasts.num_lanes && operands->rows[i].writes; lane++)
            must_follow_task(&before, use->readers[builder->pasts.lanes[lane]]);
    }

    /* Latest first: an earlier task never implies a later one, so each wait kept is needed. */
    weft_past known;
    weft_pasts_begin(&builder->pasts, task->lane, &known);
    weft_wait waits[WEFT_TASK_MAX_WAITS];
    uint32_t num_waits = 0;
    for (uint32_t i = 0; i < before.count; i++) {
        if (weft_past_has(&known, builder->tasks, before.waits[i]))
            continue;
        if (num_waits == WEFT_TASK_MAX_WAITS)
            return WEFT_ERROR(WEFT_CONFIG, "a task needs more than %d waits", WEFT_TASK_MAX_WAITS);
        weft_pasts_add_wait(&builder->pasts, builder->tasks, before.waits[i], &known);
        waits[num_waits++] = before.waits[i];
    }
    for (uint32_t i = 0; i < num_waits / 2; i++) {
        const weft_wait swapped = waits[i];
        waits[i] = waits[num_waits - 1 - i];
        waits[num_waits - 1 - i] = swapped;
    }
    return add_with(builder, task, waits, num_waits, &known, out_index);
}

void weft_program_forget(weft_program_builder *builder, int32_t slot)
{
    builder->uses[slot] = (slot_use){.writer = 0};
}

weft_status weft_program_finish(weft_program_builder *builder, int32_t max_in_flight,
                                weft_program *out)
{
    *out = (weft_program){
        .tasks = builder->tasks,
        .waits = builder->waits,
        .slots = builder->slots,
        .num_tasks = builder->num_tasks,
        .num_waits = builder->num_waits,
        .num_slots = (int32_t)builder->num_slots,
        .max_in_flight = max_in_flight,
    };
    return WEFT_OK;
}
