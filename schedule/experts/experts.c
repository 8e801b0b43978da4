#include <stdio.h>

#include "schedule/build.h"
#include "schedule/check.h"
#include "schedule/experts/experts.h"

static const char *const order_texts[WEFT_NUM_EXPERT_ORDERS] = {
#define ROW(name, text) text,
    WEFT_EXPERT_ORDER_LIST(ROW)
#undef ROW
};

const char *weft_expert_order_text(int order)
{
    return order >= 0 && order < WEFT_NUM_EXPERT_ORDERS ? order_texts[order] : "?";
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* The ring's length: no longer than it has experts. */
static int num_ring(const weft_experts_shape *s)
{
    return least(s->num_slots, s->num_positions - s->num_kept);
}

static weft_status check_shape(const weft_experts_shape *s)
{
    if ((int)s->order < 0 || s->order >= WEFT_NUM_EXPERT_ORDERS)
        return WEFT_ERROR(WEFT_CONFIG, "no order %d of experts", (int)s->order);
    if (s->num_positions < 1 || s->num_positions > WEFT_EXPERTS_MAX_POSITIONS)
        return WEFT_ERROR(WEFT_CONFIG, "a layer of %d experts on a rank: 1 to %d are possible",
                          s->num_positions, WEFT_EXPERTS_MAX_POSITIONS);
    if (s->num_places < 0)
        return WEFT_ERROR(WEFT_CONFIG, "host memory cannot have %d places for experts",
                          s->num_places);
    if (s->num_kept < 0 || s->num_kept > s->num_positions)
        return WEFT_ERROR(WEFT_CONFIG, "%d of %d experts cannot be kept", s->num_kept,
                          s->num_positions);
    const int others = s->num_positions - s->num_kept;
    const int needed = s->order == WEFT_EXPERT_ORDER_LAYER ? others : least(others, 1);
    if (s->num_slots < needed || s->num_gradient_slots < 1)
        return WEFT_ERROR(WEFT_CONFIG,
                          "order %s of %d experts, %d kept, needs %d slots and one of gradients, "
                          "but there are %d and %d",
                          weft_expert_order_text((int)s->order), s->num_positions, s->num_kept,
                          needed, s->num_slots, s->num_gradient_slots);
    return WEFT_OK;
}

/* The index of the position's slot within a kind (experts.h). */
static int place_of(const weft_experts_shape *s, weft_slot_kind holds, int position)
{
    switch (holds) {
    case WEFT_SLOT_EXPERT_WEIGHTS:
        return position < s->num_kept ? position
                                      : s->num_kept + (position - s->num_kept) % num_ring(s);
    case WEFT_SLOT_EXPERT_GRADIENTS:
        return position % s->num_gradient_slots;
    case WEFT_SLOT_HOST_STAGING:
        return position % WEFT_EXPERTS_STAGING;
    case WEFT_SLOT_HOST_WEIGHTS:
    case WEFT_SLOT_HOST_GRADIENTS:
        return s->num_places > 0 ? position % s->num_places : position;
    default:
        return position;
    }
}

/* A program while it is written, or the list of its tasks that the checker expects. */
typedef struct writer {
    const weft_experts_shape *shape;
    bool backward;
    weft_program_builder *builder; /* NULL: tasks are listed */
    int first[WEFT_NUM_SLOT_KINDS];
    uint32_t last_expert, last_upload; /* indices; UINT32_MAX: none */
    weft_task *tasks;                  /* listed: operands 0 where the task has them */
    weft_wait *waits;
    uint32_t num_tasks, num_waits;
} writer;

static weft_status add_slots(writer *w)
{
    const weft_experts_shape *s = w->shape;
    const int n = s->num_positions, on_host = s->num_places > 0 ? least(n, s->num_places) : n;
    const struct {
        weft_slot_kind holds;
        int count;
    } rows[] = {
        {WEFT_SLOT_EXPERT_WEIGHTS, s->num_kept + num_ring(s)},
        {WEFT_SLOT_HOST_WEIGHTS, on_host},
        {WEFT_SLOT_EXPERT_GRADIENTS, w->backward ? least(n, s->num_gradient_slots) : 0},
        {WEFT_SLOT_HOST_GRADIENTS, w->backward ? on_host : 0},
        {WEFT_SLOT_HOST_STAGING,
         w->backward && s->accumulates ? least(n, WEFT_EXPERTS_STAGING) : 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const weft_slot slot = {.holds = rows[i].holds, .chunk = -1};
        WEFT_TRY(
            weft_program_add_slots(w->builder, &slot, rows[i].count, &w->first[rows[i].holds]));
    }
    return WEFT_OK;
}

/* Skips rows, which the layer's program owns. A gradient to be added goes to staging. */
static bool has_operand(const writer *w, const weft_task *task, weft_value value)
{
    switch (value) {
    case WEFT_VALUE_EXPERT_WEIGHTS:
    case WEFT_VALUE_HOST_WEIGHTS:
    case WEFT_VALUE_EXPERT_GRADIENT:
        return true;
    case WEFT_VALUE_STAGED_GRADIENT:
        return w->shape->accumulates;
    case WEFT_VALUE_HOST_GRADIENT:
        return task->kind != WEFT_TASK_DOWNLOAD || !w->shape->accumulates;
    default:
        return false;
    }
}

/* after: one more task that must be over; UINT32_MAX: none */
static weft_status append(writer *w, weft_task_kind kind, weft_flow flow, int position,
                          uint32_t after, uint32_t *out_index)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    const bool kept = position < w->shape->num_kept;
    const bool first_use = kind == (w->shape->num_places > 0 ? WEFT_TASK_READ : WEFT_TASK_UPLOAD) ||
                           (kind == WEFT_TASK_EXPERT && kept);
    weft_task task = weft_task_of(kind, flow);
    weft_wait waits[2];
    uint32_t num_waits = 0;
    task.expert = position;
    if (after != UINT32_MAX)
        waits[num_waits++] = (weft_wait){after, -1};
    if (!w->backward && first_use)
        waits[num_waits++] = (weft_wait){WEFT_STEP_BEFORE, -1};
    for (int i = 0; i < operands->count; i++) {
        const weft_value value = operands->rows[i].value;
        const weft_slot_kind holds = weft_value_slot_kind((int)value);
        if (has_operand(w, &task, value))
            task.operands[i] =
                w->builder ? w->first[holds] + place_of(w->shape, holds, position) : 0;
    }
    if (w->builder)
        return weft_program_append(w->builder, &task, waits, num_waits, out_index);
    task.first_wait = w->num_waits;
    task.num_waits = (uint16_t)num_waits;
    for (uint32_t i = 0; i < num_waits; i++)
        w->waits[w->num_waits++] = waits[i];
    *out_index = w->num_tasks;
    w->tasks[w->num_tasks++] = task;
    return WEFT_OK;
}

/* Frees a place in host memory and reads what the file has for it. */
static weft_status append_read(writer *w, weft_flow flow, int position)
{
    uint32_t index;
    if (w->shape->num_places == 0)
        return WEFT_OK;
    WEFT_TRY(append(w, WEFT_TASK_WRITE, flow, position, UINT32_MAX, &index));
    return append(w, WEFT_TASK_READ, flow, position, UINT32_MAX, &index);
}

/* On demand an upload waits for the previous expert's computation. */
static weft_status append_upload(writer *w, int position)
{
    if (position < w->shape->num_kept)
        return WEFT_OK;
    WEFT_TRY(append_read(w, WEFT_FLOW_WEIGHT, position));
    return append(w, WEFT_TASK_UPLOAD, WEFT_FLOW_WEIGHT, position,
                  w->shape->order == WEFT_EXPERT_ORDER_DEMAND ? w->last_expert : UINT32_MAX,
                  &w->last_upload);
}

static weft_status append_position(writer *w, int position)
{
    const bool whole = w->shape->order == WEFT_EXPERT_ORDER_LAYER;
    const weft_flow flow = w->backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    const bool first = w->last_expert == UINT32_MAX;
    uint32_t index;
    if (!whole)
        WEFT_TRY(append_upload(w, position));
    WEFT_TRY(append(w, WEFT_TASK_EXPERT, flow, position,
                    whole && first ? w->last_upload : UINT32_MAX, &w->last_expert));
    if (!w->backward)
        return WEFT_OK;
    WEFT_TRY(append_read(w, WEFT_FLOW_GRADIENT, position));
    WEFT_TRY(append(w, WEFT_TASK_DOWNLOAD, WEFT_FLOW_GRADIENT, position, UINT32_MAX, &index));
    if (!w->shape->accumulates)
        return WEFT_OK;
    return append(w, WEFT_TASK_ACCUMULATE, WEFT_FLOW_GRADIENT, position, UINT32_MAX, &index);
}

static weft_status append_all(writer *w)
{
    const int n = w->shape->num_positions;
    w->last_expert = w->last_upload = UINT32_MAX;
    for (int i = 0; i < n && w->shape->order == WEFT_EXPERT_ORDER_LAYER; i++)
        WEFT_TRY(append_upload(w, w->backward ? n - 1 - i : i));
    for (int i = 0; i < n; i++)
        WEFT_TRY(append_position(w, w->backward ? n - 1 - i : i));
    return WEFT_OK;
}

weft_status weft_program_experts(const weft_experts_shape *shape, bool backward, weft_arena *arena,
                                 weft_program *out)
{
    WEFT_TRY(check_shape(shape));
    writer w = {.shape = shape, .backward = backward};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w));
    WEFT_TRY(append_all(&w));
    return weft_program_finish(w.builder, 0, out);
}

void weft_experts_slice(const weft_program *program, bool backward, int first, int end,
                        uint32_t *out_first, uint32_t *out_end)
{
    *out_first = *out_end = 0;
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const int position = program->tasks[t].expert;
        if (program->tasks[t].flow == WEFT_FLOW_WEIGHT) /* reads come ahead of the computation */
            continue;
        if (backward ? position >= end : position < first)
            *out_first = t + 1;
        if (backward ? position >= first : position < end)
            *out_end = t + 1;
    }
}

/* --- the checker --------------------------------------------------------------------------- */

/* Proves that each position uses its own slots: backward finds there what forward left, and the
 * update finds gradients by position. Proof 1 has shown that slots are of the right kinds. */
static weft_status check_places(const weft_experts_shape *shape, const weft_program *program,
                                weft_arena *scratch, const char *where)
{
    int next[WEFT_NUM_SLOT_KINDS] = {0};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)program->num_slots, sizeof(int), &memory));
    int *numbers = memory; /* each slot's index within its kind */
    for (int32_t i = 0; i < program->num_slots; i++)
        numbers[i] = next[program->slots[i].holds]++;
    for (uint32_t t = 0; t < program->num_tasks; t++) {
        const weft_task *task = &program->tasks[t];
        for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++) {
            const int32_t slot = task->operands[i];
            if (slot < 0)
                continue;
            const weft_slot_kind holds = (weft_slot_kind)program->slots[slot].holds;
            const int place = place_of(shape, holds, task->expert);
            if (numbers[slot] != place)
                return WEFT_ERROR(WEFT_INTERNAL,
                                  "%s, task %u: expert %d is in slot %d, which is number %d of %s, "
                                  "not its own, %d",
                                  where, t, task->expert, slot, numbers[slot],
                                  weft_slot_kind_text((int)holds), place);
        }
    }
    return WEFT_OK;
}

static weft_status check_direction(const weft_experts_shape *shape, bool backward,
                                   const weft_program *program, weft_arena *scratch)
{
    const size_t most = 8 * (size_t)shape->num_positions;
    void *tasks, *waits;
    WEFT_TRY(weft_arena_alloc_array(scratch, most, sizeof(weft_task), &tasks));
    WEFT_TRY(weft_arena_alloc_array(scratch, most, sizeof(weft_wait), &waits));
    writer w = {.shape = shape, .backward = backward, .tasks = tasks, .waits = waits};
    WEFT_TRY(append_all(&w));
    weft_expectation expected = {
        .tasks = tasks,
        .waits = waits,
        .num_tasks = w.num_tasks,
        .ordered = ~0u,
    };
    if (shape->num_places == 0)
        expected.holds[expected.num_holds++] =
            (weft_holding){WEFT_SLOT_HOST_WEIGHTS, WEFT_VALUE_HOST_WEIGHTS, WEFT_BY_EXPERT, 0, 0};
    if (shape->num_kept > 0)
        expected.holds[expected.num_holds++] =
            (weft_holding){WEFT_SLOT_EXPERT_WEIGHTS, WEFT_VALUE_EXPERT_WEIGHTS, WEFT_BY_EXPERT, 0,
                           shape->num_kept};
    snprintf(expected.where, sizeof expected.where, "experts %s",
             backward ? "backward" : "forward");
    WEFT_TRY(weft_program_check(program, &expected, 1));
    return check_places(shape, program, scratch, expected.where);
}

weft_status weft_program_experts_check(const weft_experts_shape *shape, const weft_program *forward,
                                       const weft_program *backward)
{
    WEFT_TRY(check_shape(shape));
    weft_arena scratch = {0};
    weft_status status = check_direction(shape, false, forward, &scratch);
    if (status == WEFT_OK && backward)
        status = check_direction(shape, true, backward, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}

/* --- its price ---------------------------------------------------------------------------------
 */

double weft_experts_task_us(const weft_expert_costs *costs, const double *rows,
                            const weft_task *task)
{
    const double mine = rows[task->expert];
    if (!(mine > 0))
        return 0;
    switch (task->kind) {
    case WEFT_TASK_UPLOAD:
        return costs->upload_us;
    case WEFT_TASK_EXPERT:
        return costs->launch_us + mine * costs->row_us[task->flow == WEFT_FLOW_GRADIENT];
    case WEFT_TASK_DOWNLOAD:
        return costs->download_us;
    case WEFT_TASK_ACCUMULATE:
        return costs->accumulate_us;
    case WEFT_TASK_READ:
        return costs->read_us[task->flow == WEFT_FLOW_GRADIENT];
    case WEFT_TASK_WRITE:
        return costs->write_us[task->flow == WEFT_FLOW_GRADIENT];
    default:
        return 0; /* the task belongs to no expert */
    }
}
