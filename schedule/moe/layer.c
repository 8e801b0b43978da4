#include "schedule/moe/layer.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "schedule/build.h"
#include "schedule/check.h"

static const char *const reuse_texts[WEFT_NUM_REUSES] = {
#define ROW(name, text) text,
    WEFT_REUSE_LIST(ROW)
#undef ROW
};

const char *weft_reuse_text(int reuse)
{
    return reuse >= 0 && reuse < WEFT_NUM_REUSES ? reuse_texts[reuse] : "?";
}

bool weft_reuse_offloads_input(weft_reuse reuse)
{
    return reuse == WEFT_REUSE_S1 || reuse == WEFT_REUSE_S3;
}

bool weft_reuse_offloads_middle(weft_reuse reuse)
{
    return reuse == WEFT_REUSE_S1 || reuse == WEFT_REUSE_S2;
}

static bool communicates_again(weft_reuse reuse)
{
    return reuse == WEFT_REUSE_S2 || reuse == WEFT_REUSE_S4;
}

static bool recomputes(weft_reuse reuse)
{
    return reuse == WEFT_REUSE_S3 || reuse == WEFT_REUSE_S4;
}

weft_moe_pipeline weft_moe_by_peers(int ep, int group)
{
    return (weft_moe_pipeline){ep / group, WEFT_REUSE_NONE, group, 0, 0};
}

void weft_moe_run_of(int num_positions, int n, int part, int *first, int *end)
{
    *first = (int)((int64_t)num_positions * part / n);
    *end = (int)((int64_t)num_positions * (part + 1) / n);
}

weft_moe_pipeline_words weft_moe_pipeline_text(const weft_moe_pipeline *pipeline)
{
    weft_moe_pipeline_words words;
    if (pipeline->peer_group > 0)
        snprintf(words.text, sizeof words.text, "partitions by peers, %d each",
                 pipeline->peer_group);
    else
        snprintf(words.text, sizeof words.text, "%s%s, reuse %s",
                 weft_count_text(pipeline->num_partitions, "partition").text,
                 pipeline->by_experts ? " by experts" : "", weft_reuse_text((int)pipeline->reuse));
    return words;
}

static weft_status check_pipeline(const weft_moe_pipeline *pipeline)
{
    if (pipeline->num_partitions < 1 || pipeline->num_partitions > WEFT_MOE_MAX_PARTITIONS)
        return WEFT_ERROR(WEFT_CONFIG, "an MoE layer in %d partitions: 1 to %d are possible",
                          pipeline->num_partitions, WEFT_MOE_MAX_PARTITIONS);
    if ((int)pipeline->reuse < 0 || pipeline->reuse >= WEFT_NUM_REUSES)
        return WEFT_ERROR(WEFT_CONFIG, "no memory reuse strategy %d", (int)pipeline->reuse);
    if (pipeline->peer_group < 0 || (pipeline->peer_group > 0 && pipeline->reuse))
        return WEFT_ERROR(WEFT_CONFIG, "partitions by peers, %d each, with reuse %s: none would",
                          pipeline->peer_group, weft_reuse_text((int)pipeline->reuse));
    if (pipeline->by_experts && pipeline->peer_group > 0)
        return WEFT_ERROR(WEFT_CONFIG, "partitions by peers and by experts");
    return WEFT_OK;
}

/* The partition that runs as number i. */
static int partition_at(const weft_moe_pipeline *pipeline, bool backward, int i)
{
    return backward && pipeline->by_experts ? pipeline->num_partitions - 1 - i : i;
}

/* The tasks of a layer's programs. */
static const struct {
    weft_task_kind kind;
    weft_flow flow;
} pairs[] = {
    {WEFT_TASK_PERMUTE, WEFT_FLOW_NONE},      {WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION},
    {WEFT_TASK_DISPATCH, WEFT_FLOW_GRADIENT}, {WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION},
    {WEFT_TASK_EXPERT, WEFT_FLOW_GRADIENT},   {WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION},
    {WEFT_TASK_COMBINE, WEFT_FLOW_GRADIENT},  {WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT},
    {WEFT_TASK_OFFLOAD, WEFT_FLOW_MIDDLE},    {WEFT_TASK_PREFETCH, WEFT_FLOW_INPUT},
    {WEFT_TASK_PREFETCH, WEFT_FLOW_MIDDLE},   {WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE},
};
enum { NUM_PAIRS = sizeof(pairs) / sizeof(pairs[0]) };

/* Whether the program has this task for each of its partitions. */
static bool has_task(const weft_moe_pipeline *pipeline, bool backward, int kind, int flow)
{
    const weft_reuse reuse = pipeline->reuse;
    switch (kind) {
    case WEFT_TASK_PERMUTE:
        return !backward || communicates_again(reuse);
    case WEFT_TASK_DISPATCH:
        return flow == WEFT_FLOW_GRADIENT ? backward : !backward || communicates_again(reuse);
    case WEFT_TASK_EXPERT:
    case WEFT_TASK_COMBINE:
        return backward == (flow == WEFT_FLOW_GRADIENT);
    case WEFT_TASK_RECOMPUTE:
        return backward && recomputes(reuse);
    default: /* offload forward, prefetch backward */
        return backward == (kind == WEFT_TASK_PREFETCH) &&
               (flow == WEFT_FLOW_INPUT ? weft_reuse_offloads_input(reuse)
                                        : weft_reuse_offloads_middle(reuse));
    }
}

/* The task of a partition, without operands. */
static weft_task task_of(const weft_moe_pipeline *pipeline, weft_task_kind kind, weft_flow flow,
                         int partition)
{
    const bool travels = kind == WEFT_TASK_DISPATCH || kind == WEFT_TASK_COMBINE;
    weft_task task = weft_task_of(kind, flow);
    task.part = partition;
    task.peer = travels && pipeline->peer_group > 0 ? partition : -1;
    if (kind == WEFT_TASK_PERMUTE && pipeline->beside)
        task.lane = WEFT_LANE_EXPERT;
    return task;
}

/* A program while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    const weft_moe_pipeline *pipeline;
    int first[WEFT_NUM_SLOT_KINDS], length[WEFT_NUM_SLOT_KINDS]; /* the ring of each kind */
    bool backward;
} writer;

static weft_status add_ring(writer *w, weft_slot_kind holds, bool used, int length)
{
    const weft_slot slot = {.holds = holds, .chunk = -1};
    w->length[holds] = used ? length : 0;
    return weft_program_add_slots(w->builder, &slot, w->length[holds], &w->first[holds]);
}

static weft_status add_slots(writer *w)
{
    const int n = w->pipeline->num_partitions;
    const weft_reuse reuse = w->pipeline->reuse;
    const bool back = w->backward;
    const int one = reuse == WEFT_REUSE_NONE ? n : 1;
    const int two = reuse == WEFT_REUSE_NONE || n < 2 ? n : 2;
    const struct {
        weft_slot_kind holds;
        bool used;
        int length;
    } rings[] = {
        /* Slots of both directions come first, with the same numbers in both. */
        {WEFT_SLOT_T_DI, true, two},
        {WEFT_SLOT_T_M, true, one},
        {WEFT_SLOT_HOST_T_DI, weft_reuse_offloads_input(reuse), n},
        {WEFT_SLOT_HOST_T_M, weft_reuse_offloads_middle(reuse), n},
        {WEFT_SLOT_HOME, !back || communicates_again(reuse), two},
        {WEFT_SLOT_T_DO, !back, two},
        {WEFT_SLOT_RESULT, !back, n},
        {WEFT_SLOT_DT_DO, back, two},
        {WEFT_SLOT_DT_M, back, one},
        {WEFT_SLOT_DT_DI, back, two},
        {WEFT_SLOT_RESULT_GRADIENT, back, n},
    };
    for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++)
        WEFT_TRY(add_ring(w, rings[i].holds, rings[i].used, rings[i].length));
    return WEFT_OK;
}

/* Counts rows, once for all partitions. */
static weft_task counts_task(const weft_moe_pipeline *pipeline)
{
    weft_task task = weft_task_of(WEFT_TASK_COUNTS, WEFT_FLOW_NONE);
    if (pipeline->beside)
        task.lane = WEFT_LANE_EXPERT;
    task.flags = WEFT_TASK_HOST_WAITS;
    return task;
}

/* Appends the task of the partition that runs as `number`, if strategy and direction have the
 * task. */
static weft_status append(writer *w, weft_task_kind kind, weft_flow flow, int number)
{
    if (number >= w->pipeline->num_partitions ||
        !has_task(w->pipeline, w->backward, (int)kind, (int)flow))
        return WEFT_OK;
    const int partition = partition_at(w->pipeline, w->backward, number);
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    weft_task task = task_of(w->pipeline, kind, flow, partition);
    for (int i = 0; i < operands->count; i++) {
        const weft_slot_kind holds = weft_value_slot_kind((int)operands->rows[i].value);
        if (w->length[holds] == 0) /* weights belong to the experts' program */
            continue;
        task.operands[i] = w->first[holds] + partition % w->length[holds];
    }
    WEFT_TRY(weft_program_append(w->builder, &task, NULL, 0, NULL));
    return WEFT_OK;
}

/* Dispatches a partition's rows to the experts, ahead of the gradient: T_M may be recomputed from
 * the rows while the gradient travels. */
static weft_status append_arrival(writer *w, int number)
{
    WEFT_TRY(append(w, WEFT_TASK_PREFETCH, WEFT_FLOW_INPUT, number));
    WEFT_TRY(append(w, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, number));
    WEFT_TRY(append(w, WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION, number));
    WEFT_TRY(append(w, WEFT_TASK_DISPATCH, WEFT_FLOW_GRADIENT, number));
    return WEFT_OK;
}

/* Appends all tasks. The next partition is dispatched before this one is combined, so that S and R
 * alternate and the experts never lack rows. T_M has one slot: its prefetch follows the previous
 * partition's experts and precedes the next prefetch of T_DI on the same lane; its offload precedes
 * that of the next T_DI, because the next partition's experts wait for the slot. */
static weft_status append_all(writer *w)
{
    const weft_flow flow = w->backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    const weft_task counts = counts_task(w->pipeline);
    if (!w->backward)
        WEFT_TRY(weft_program_append(w->builder, &counts, NULL, 0, NULL));
    WEFT_TRY(append_arrival(w, 0));
    for (int p = 0; p < w->pipeline->num_partitions; p++) {
        WEFT_TRY(append(w, WEFT_TASK_PREFETCH, WEFT_FLOW_MIDDLE, p));
        WEFT_TRY(append_arrival(w, p + 1));
        WEFT_TRY(append(w, WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT, p));
        WEFT_TRY(append(w, WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE, p));
        WEFT_TRY(append(w, WEFT_TASK_EXPERT, flow, p));
        WEFT_TRY(append(w, WEFT_TASK_OFFLOAD, WEFT_FLOW_MIDDLE, p));
        WEFT_TRY(append(w, WEFT_TASK_COMBINE, flow, p));
    }
    return WEFT_OK;
}

weft_status weft_program_moe(const weft_moe_pipeline *pipeline, bool backward, weft_arena *arena,
                             weft_program *out)
{
    WEFT_TRY(check_pipeline(pipeline));
    writer w = {.pipeline = pipeline, .backward = backward};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w));
    WEFT_TRY(append_all(&w));
    WEFT_TRY(weft_program_finish(w.builder, pipeline->num_partitions < 2 ? 1 : 2, out));
    return WEFT_OK;
}

/* The slots' contents when backward starts. Other layers have used the reused rings since forward,
 * so only tensors that the strategy keeps are still there. */
static void expect_kept(const weft_moe_pipeline *pipeline, weft_expectation *out)
{
    const weft_reuse reuse = pipeline->reuse;
    const struct {
        weft_holding held;
        bool kept;
    } rows[WEFT_MAX_HOLDINGS] = {
        {{WEFT_SLOT_RESULT_GRADIENT, WEFT_VALUE_SENT_GRADIENT, WEFT_BY_PART, 0, 0}, true},
        {{WEFT_SLOT_HOST_T_DI, WEFT_VALUE_HOST_T_DI, WEFT_BY_PART, 0, 0},
         weft_reuse_offloads_input(reuse)},
        {{WEFT_SLOT_HOST_T_M, WEFT_VALUE_HOST_T_M, WEFT_BY_PART, 0, 0},
         weft_reuse_offloads_middle(reuse)},
        {{WEFT_SLOT_T_DI, WEFT_VALUE_T_DI, WEFT_BY_PART, 0, 0}, reuse == WEFT_REUSE_NONE},
        {{WEFT_SLOT_T_M, WEFT_VALUE_T_M, WEFT_BY_PART, 0, 0}, reuse == WEFT_REUSE_NONE},
    };
    for (int i = 0; i < WEFT_MAX_HOLDINGS; i++)
        if (rows[i].kept)
            out->holds[out->num_holds++] = rows[i].held;
}

/* Expects all operands but weights and their gradients, which belong to the experts' program. */
static void expect_operands(weft_task *task)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int i = 0; i < operands->count; i++)
        task->operands[i] = operands->rows[i].value == WEFT_VALUE_EXPERT_WEIGHTS ||
                                    operands->rows[i].value == WEFT_VALUE_EXPERT_GRADIENT
                                ? -1
                                : 0;
}

/* Expects each part in its own slot where every part has one: there backward and the layer read
 * it. */
static weft_status check_direction(const weft_moe_pipeline *pipeline, bool backward,
                                   const weft_program *program, weft_arena *scratch)
{
    const int n = pipeline->num_partitions;
    const weft_flow flow = backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    weft_task *tasks;
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)(NUM_PAIRS * n) + 1, &tasks));
    const weft_wait counted = {.task = 0, .point = -1};
    weft_expectation expected = {.tasks = tasks,
                                 .waits = &counted,
                                 .ordered = ~0u,
                                 .begins = WEFT_TASK_DISPATCH,
                                 .ends = WEFT_TASK_COMBINE,
                                 .flow = flow,
                                 .num_parts = n};
    snprintf(expected.where, sizeof(expected.where), "%s", backward ? "backward" : "forward");
    if (!backward)
        tasks[expected.num_tasks++] = counts_task(pipeline);
    for (int i = 0; i < NUM_PAIRS * n; i++) {
        if (!has_task(pipeline, backward, (int)pairs[i / n].kind, (int)pairs[i / n].flow))
            continue;
        weft_task *task = &tasks[expected.num_tasks++];
        *task = task_of(pipeline, pairs[i / n].kind, pairs[i / n].flow,
                        partition_at(pipeline, backward, i % n));
        task->num_waits = !backward; /* for the counts */
        expect_operands(task);
    }
    if (backward)
        expect_kept(pipeline, &expected);
    return weft_program_check(program, &expected, 1);
}

weft_status weft_program_moe_check(const weft_moe_pipeline *pipeline, const weft_program *forward,
                                   const weft_program *backward)
{
    WEFT_TRY(check_pipeline(pipeline));
    weft_arena scratch = {0};
    weft_status status = check_direction(pipeline, false, forward, &scratch);
    if (status == WEFT_OK && backward)
        status = check_direction(pipeline, true, backward, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
