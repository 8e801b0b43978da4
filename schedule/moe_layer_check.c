#include "schedule/moe_layer_tasks.h"
#include "schedule/proof.h"

static const char *const value_texts[WEFT_NUM_MOE_TENSORS] = {
#define ROW(name, text) text,
    WEFT_MOE_TENSOR_LIST(ROW)
#undef ROW
};

/* One direction being checked. */
typedef struct moe_check {
    weft_proof proof;
    const weft_program *program;
    const weft_moe_pipeline *pipeline;
    weft_moe_slots slots;
    bool backward;
} moe_check;

/* Tasks that the layer does not have are refused before anybody asks for their values. */
static int value_read(const void *context, const weft_task *task, int i)
{
    (void)context;
    return (int)weft_moe_operands_of(task->kind, (int)task->flow)->reads[i];
}

static int value_written(const void *context, const weft_task *task, int i)
{
    (void)context;
    return (int)weft_moe_operands_of(task->kind, (int)task->flow)->writes[i];
}

/* Every operand lies in its tensor's ring: that is where the executor has memory for it. */
static weft_status check_ring(const moe_check *check, uint32_t index, int32_t slot,
                              weft_moe_tensor tensor)
{
    const weft_slot_ring ring = weft_moe_ring_of(&check->slots, tensor);
    if (tensor != WEFT_MOE_TENSOR_NOTHING &&
        (slot < ring.first || slot >= ring.first + ring.length))
        return weft_proof_fail(&check->proof, index,
                               "has %s in slot %d, but its slots are %d to %d", value_texts[tensor],
                               slot, ring.first, ring.first + ring.length - 1);
    return WEFT_OK;
}

static weft_status check_form(const moe_check *check)
{
    const weft_proof *proof = &check->proof;
    WEFT_TRY(weft_proof_num_slots(proof));
    if (check->program->num_slots != check->slots.num_slots)
        return WEFT_ERROR(WEFT_INTERNAL, "%s has %d slots instead of %d", proof->where,
                          check->program->num_slots, check->slots.num_slots);
    for (uint32_t i = 0; i < check->program->num_tasks; i++) {
        const weft_task *task = &check->program->tasks[i];
        WEFT_TRY(weft_proof_waits(proof, i));
        if (!weft_moe_has_task(check->pipeline, check->backward, task->kind, (int)task->flow))
            return weft_proof_fail(proof, i, "has no place in this program");
        if (task->lane != weft_task_kind_lane(task->kind))
            return weft_proof_fail(proof, i, "is not on the %s lane",
                                   weft_lane_kind_text(weft_task_kind_lane(task->kind)));
        if (task->stage != 0 || task->peer != -1)
            return weft_proof_fail(proof, i, "has stage %d and peer %d", task->stage, task->peer);
        if (task->micro_batch < 0 || task->micro_batch >= check->pipeline->num_partitions)
            return weft_proof_fail(proof, i, "serves a partition that is not one of %d",
                                   check->pipeline->num_partitions);
        WEFT_TRY(weft_proof_operands(proof, i));
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            WEFT_TRY(
                check_ring(check, i, task->reads[k], (weft_moe_tensor)value_read(check, task, k)));
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            WEFT_TRY(check_ring(check, i, task->writes[k],
                                (weft_moe_tensor)value_written(check, task, k)));
    }
    return WEFT_OK;
}

/* Every task that the program needs is there once for each partition, in their order; and between
 * dispatch and combine, which share a lane, there are no more partitions than the bound. */
static weft_status check_counts(const moe_check *check)
{
    const weft_program *program = check->program;
    const int n = check->pipeline->num_partitions;
    const weft_flow flow = check->backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    int seen[WEFT_NUM_TASK_KINDS][WEFT_NUM_FLOWS] = {{0}};
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        int *mine = &seen[task->kind][task->flow];
        if (task->micro_batch != *mine)
            return weft_proof_fail(&check->proof, i, "comes where partition %d is due", *mine);
        ++*mine;
        const int in_flight = seen[WEFT_TASK_DISPATCH][flow] - seen[WEFT_TASK_COMBINE][flow];
        if (in_flight > program->max_in_flight)
            return weft_proof_fail(&check->proof, i,
                                   "puts %d partitions in flight, at most %d may be", in_flight,
                                   program->max_in_flight);
    }
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        for (int f = 0; f < WEFT_NUM_FLOWS; f++)
            if (weft_moe_has_task(check->pipeline, check->backward, kind, f) && seen[kind][f] < n)
                return WEFT_ERROR(WEFT_INTERNAL, "%s has no %s%s%s of partition %d",
                                  check->proof.where, weft_task_kind_text(kind), f ? " " : "",
                                  weft_flow_text(f), seen[kind][f]);
    return WEFT_OK;
}

/* What a ring holds when backward starts: one partition a slot. */
static void fill(weft_slot_state *slots, weft_slot_ring ring, weft_moe_tensor tensor)
{
    for (int p = 0; p < ring.length; p++)
        slots[ring.first + p] = (weft_slot_state){.value = (int32_t)tensor, .micro_batch = p};
}

/* A ring goes on from where forward left it. */
static void keep(weft_slot_state *slots, const weft_slot_state *forward, weft_slot_ring ring)
{
    for (int i = ring.first; i < ring.first + ring.length; i++)
        slots[i] =
            (weft_slot_state){.value = forward[i].value, .micro_batch = forward[i].micro_batch};
}

/* What the layer takes from its program lies where it looks for it. */
static weft_status check_results(const moe_check *check, const weft_slot_state *slots)
{
    const weft_slot_ring ring = check->backward ? check->slots.dresult : check->slots.result;
    const int wanted = check->backward ? WEFT_MOE_TENSOR_DHOME : WEFT_MOE_TENSOR_RESULT;
    for (int p = 0; p < ring.length; p++)
        if (slots[ring.first + p].value != wanted || slots[ring.first + p].micro_batch != p)
            return WEFT_ERROR(WEFT_INTERNAL, "%s leaves no %s of partition %d in slot %d",
                              check->proof.where, value_texts[wanted], p, ring.first + p);
    return WEFT_OK;
}

static weft_status check_direction(moe_check *check, const weft_slot_state *forward,
                                   weft_slot_state **out_slots)
{
    const char *name = check->backward ? "backward" : "forward";
    snprintf(check->proof.where, sizeof(check->proof.where), "%s", name);
    check->proof.program = check->program;
    check->slots = weft_moe_slots_of(check->pipeline, check->backward);
    WEFT_TRY(check_form(check));
    WEFT_TRY(check_counts(check));
    WEFT_TRY(weft_proof_pasts(&check->proof));

    void *memory;
    WEFT_TRY(weft_arena_alloc_array(check->proof.scratch, (size_t)check->slots.num_slots,
                                    sizeof(weft_slot_state), &memory));
    weft_slot_state *slots = memory;
    if (check->backward) {
        /* Other layers use the rings that are reused before backward comes: only what a strategy
         * says it keeps is still there. */
        fill(slots, check->slots.dresult, WEFT_MOE_TENSOR_DRESULT);
        keep(slots, forward, check->slots.host_input);
        keep(slots, forward, check->slots.host_middle);
        if (check->pipeline->reuse == WEFT_REUSE_NONE) {
            keep(slots, forward, check->slots.dispatched);
            keep(slots, forward, check->slots.middle);
        }
    }
    WEFT_TRY(weft_proof_slots(&check->proof, slots));
    WEFT_TRY(check_results(check, slots));
    *out_slots = slots;
    return WEFT_OK;
}

static weft_status check_both(const weft_moe_pipeline *pipeline, const weft_program *forward,
                              const weft_program *backward, weft_arena *scratch)
{
    weft_slot_state *slots = NULL;
    moe_check check = {.pipeline = pipeline, .program = forward};
    check.proof = (weft_proof){.read = value_read,
                               .written = value_written,
                               .context = &check,
                               .value_texts = value_texts,
                               .scratch = scratch};
    WEFT_TRY(check_direction(&check, NULL, &slots));
    check.program = backward;
    check.backward = true;
    if (backward)
        WEFT_TRY(check_direction(&check, slots, &slots));
    return WEFT_OK;
}

weft_status weft_program_moe_check(const weft_moe_pipeline *pipeline, const weft_program *forward,
                                   const weft_program *backward)
{
    WEFT_TRY(weft_moe_pipeline_check(pipeline));
    weft_arena scratch = {0};
    const weft_status status = check_both(pipeline, forward, backward, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
