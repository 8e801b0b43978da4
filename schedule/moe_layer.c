#include "schedule/moe_layer.h"

#include "schedule/moe_layer_tasks.h"

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

weft_status weft_moe_pipeline_check(const weft_moe_pipeline *pipeline)
{
    if (pipeline->num_partitions < 1 || pipeline->num_partitions > WEFT_MOE_MAX_PARTITIONS)
        return WEFT_ERROR(WEFT_CONFIG, "an MoE layer in %d partitions: 1 to %d are possible",
                          pipeline->num_partitions, WEFT_MOE_MAX_PARTITIONS);
    if ((int)pipeline->reuse < 0 || pipeline->reuse >= WEFT_NUM_REUSES)
        return WEFT_ERROR(WEFT_CONFIG, "no memory reuse strategy %d", (int)pipeline->reuse);
    return WEFT_OK;
}

static weft_slot_ring take(weft_moe_slots *slots, bool used, int length)
{
    if (!used)
        return (weft_slot_ring){-1, 0};
    const weft_slot_ring ring = {slots->num_slots, length};
    slots->num_slots += length;
    return ring;
}

weft_moe_slots weft_moe_slots_of(const weft_moe_pipeline *pipeline, bool backward)
{
    const int n = pipeline->num_partitions;
    const weft_reuse reuse = pipeline->reuse;
    const int one = reuse == WEFT_REUSE_NONE ? n : 1;
    const int two = reuse == WEFT_REUSE_NONE || n < 2 ? n : 2;
    weft_moe_slots slots = {.num_slots = 0};
    /* First what both directions have: the same numbers in both. */
    slots.dispatched = take(&slots, true, two);
    slots.middle = take(&slots, true, one);
    slots.host_input = take(&slots, weft_reuse_offloads_input(reuse), n);
    slots.host_middle = take(&slots, weft_reuse_offloads_middle(reuse), n);
    slots.home = take(&slots, !backward || communicates_again(reuse), two);
    slots.output = take(&slots, !backward, two);
    slots.result = take(&slots, !backward, n);
    slots.doutput = take(&slots, backward, two);
    slots.dmiddle = take(&slots, backward, one);
    slots.ddispatched = take(&slots, backward, two);
    slots.dresult = take(&slots, backward, n);
    return slots;
}

int weft_slot_of(weft_slot_ring ring, int partition)
{
    return ring.first < 0 ? -1 : ring.first + partition % ring.length;
}

const weft_moe_operands *weft_moe_operands_of(int kind, int flow)
{
#define T(name) WEFT_MOE_TENSOR_##name
    static const struct {
        int kind, flow;
        weft_moe_operands operands;
    } rows[] = {
        {WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, {{0}, {T(HOME)}}},
        {WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION, {{T(HOME)}, {T(DISPATCHED)}}},
        {WEFT_TASK_DISPATCH, WEFT_FLOW_GRADIENT, {{T(DRESULT)}, {T(DOUTPUT)}}},
        {WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION, {{T(DISPATCHED)}, {T(MIDDLE), T(OUTPUT)}}},
        {WEFT_TASK_EXPERT,
         WEFT_FLOW_GRADIENT,
         {{T(DISPATCHED), T(MIDDLE), T(DOUTPUT)}, {T(DMIDDLE), T(DDISPATCHED)}}},
        {WEFT_TASK_COMBINE, WEFT_FLOW_ACTIVATION, {{T(OUTPUT)}, {T(RESULT)}}},
        {WEFT_TASK_COMBINE, WEFT_FLOW_GRADIENT, {{T(DDISPATCHED)}, {T(DHOME)}}},
        {WEFT_TASK_OFFLOAD, WEFT_FLOW_INPUT, {{T(DISPATCHED)}, {T(HOST_INPUT)}}},
        {WEFT_TASK_OFFLOAD, WEFT_FLOW_MIDDLE, {{T(MIDDLE)}, {T(HOST_MIDDLE)}}},
        {WEFT_TASK_PREFETCH, WEFT_FLOW_INPUT, {{T(HOST_INPUT)}, {T(DISPATCHED)}}},
        {WEFT_TASK_PREFETCH, WEFT_FLOW_MIDDLE, {{T(HOST_MIDDLE)}, {T(MIDDLE)}}},
        {WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE, {{T(DISPATCHED)}, {T(MIDDLE)}}},
    };
#undef T
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].kind == kind && rows[i].flow == flow)
            return &rows[i].operands;
    return NULL;
}

weft_slot_ring weft_moe_ring_of(const weft_moe_slots *slots, weft_moe_tensor tensor)
{
    const weft_slot_ring rings[WEFT_NUM_MOE_TENSORS] = {
        [WEFT_MOE_TENSOR_NOTHING] = {-1, 0},
        [WEFT_MOE_TENSOR_HOME] = slots->home,
        [WEFT_MOE_TENSOR_DISPATCHED] = slots->dispatched,
        [WEFT_MOE_TENSOR_MIDDLE] = slots->middle,
        [WEFT_MOE_TENSOR_OUTPUT] = slots->output,
        [WEFT_MOE_TENSOR_RESULT] = slots->result,
        [WEFT_MOE_TENSOR_HOST_INPUT] = slots->host_input,
        [WEFT_MOE_TENSOR_HOST_MIDDLE] = slots->host_middle,
        [WEFT_MOE_TENSOR_DRESULT] = slots->dresult,
        [WEFT_MOE_TENSOR_DOUTPUT] = slots->doutput,
        [WEFT_MOE_TENSOR_DMIDDLE] = slots->dmiddle,
        [WEFT_MOE_TENSOR_DDISPATCHED] = slots->ddispatched,
        [WEFT_MOE_TENSOR_DHOME] = slots->dresult,
    };
    return rings[tensor];
}

bool weft_moe_has_task(const weft_moe_pipeline *pipeline, bool backward, int kind, int flow)
{
    const weft_reuse reuse = pipeline->reuse;
    if (!weft_moe_operands_of(kind, flow))
        return false;
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

/* A program while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    const weft_moe_pipeline *pipeline;
    weft_moe_slots slots;
    bool backward;
} writer;

/* Appends the partition's task, if the strategy and the direction have it. */
static weft_status append(writer *w, weft_task_kind kind, weft_flow flow, int partition)
{
    if (partition >= w->pipeline->num_partitions ||
        !weft_moe_has_task(w->pipeline, w->backward, (int)kind, (int)flow))
        return WEFT_OK;
    const weft_moe_operands *operands = weft_moe_operands_of((int)kind, (int)flow);
    weft_task task = weft_task_of(kind, partition);
    task.flow = flow;
    task.stage = 0;
    for (int i = 0; i < WEFT_TASK_MAX_READS; i++)
        task.reads[i] = weft_slot_of(weft_moe_ring_of(&w->slots, operands->reads[i]), partition);
    for (int i = 0; i < WEFT_TASK_MAX_WRITES; i++)
        task.writes[i] = weft_slot_of(weft_moe_ring_of(&w->slots, operands->writes[i]), partition);
    WEFT_TRY(weft_program_append(w->builder, &task, NULL, 0, NULL));
    return WEFT_OK;
}

/* Brings a partition's rows to the experts. The rows go before the gradient, because T_M may have
 * to be recomputed from them while the gradient travels. */
static weft_status append_arrival(writer *w, int partition)
{
    WEFT_TRY(append(w, WEFT_TASK_PREFETCH, WEFT_FLOW_INPUT, partition));
    WEFT_TRY(append(w, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, partition));
    WEFT_TRY(append(w, WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION, partition));
    WEFT_TRY(append(w, WEFT_TASK_DISPATCH, WEFT_FLOW_GRADIENT, partition));
    return WEFT_OK;
}

/* The order on every lane. The next partition arrives before this one is combined, so that S and R
 * alternate and the experts find rows when they are done. T_M has one slot: it is prefetched when
 * the partition before is through, ahead of the next T_DI that the same lane brings; and offloaded
 * ahead of the next T_DI, because the next partition's experts wait for its slot. */
static weft_status append_all(writer *w)
{
    const weft_flow flow = w->backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
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
    WEFT_TRY(weft_moe_pipeline_check(pipeline));
    writer w = {
        .pipeline = pipeline, .slots = weft_moe_slots_of(pipeline, backward), .backward = backward};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(append_all(&w));
    WEFT_TRY(weft_program_finish(w.builder, w.slots.num_slots, pipeline->num_partitions < 2 ? 1 : 2,
                                 out));
    return WEFT_OK;
}
