#include "schedule/proof.h"

#include <stdarg.h>

weft_status weft_proof_fail(const weft_proof *proof, uint32_t index, const char *format, ...)
{
    char what[WEFT_ERROR_TEXT_BYTES / 2], task[WEFT_TASK_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return WEFT_ERROR(WEFT_INTERNAL, "%s, task %u (%s) %s", proof->where, index,
                      weft_task_format(proof->program, index, task, sizeof(task)), what);
}

weft_status weft_proof_num_slots(const weft_proof *proof)
{
    const int32_t num_slots = proof->program->num_slots;
    if (num_slots < 0 || num_slots > WEFT_PROGRAM_MAX_SLOTS)
        return WEFT_ERROR(WEFT_INTERNAL, "%s has %d slots", proof->where, num_slots);
    return WEFT_OK;
}

weft_status weft_proof_waits(const weft_proof *proof, uint32_t index)
{
    const weft_program *program = proof->program;
    const weft_task *task = &program->tasks[index];
    if (task->kind >= WEFT_NUM_TASK_KINDS || task->lane >= WEFT_NUM_LANES ||
        task->first_wait > program->num_waits ||
        task->num_waits > program->num_waits - task->first_wait ||
        task->num_waits > WEFT_TASK_MAX_WAITS)
        return WEFT_ERROR(WEFT_INTERNAL, "%s, task %u is malformed: kind %d, %u waits, lane %d",
                          proof->where, index, task->kind, task->num_waits, task->lane);
    for (uint32_t w = 0; w < task->num_waits; w++)
        if (program->waits[task->first_wait + w] >= index)
            return weft_proof_fail(proof, index, "waits for task %u, which is not an earlier one",
                                   program->waits[task->first_wait + w]);
    return WEFT_OK;
}

static weft_status check_operand(const weft_proof *proof, uint32_t index, const char *verb,
                                 int32_t slot, int needed)
{
    if ((slot >= 0) != (needed != 0))
        return weft_proof_fail(proof, index, "must %s %s, but names slot %d", verb,
                               proof->value_texts[needed], slot);
    if (slot < -1 || slot >= proof->program->num_slots)
        return weft_proof_fail(proof, index, "names slot %d, but there are %d", slot,
                               proof->program->num_slots);
    return WEFT_OK;
}

weft_status weft_proof_operands(const weft_proof *proof, uint32_t index)
{
    const weft_task *task = &proof->program->tasks[index];
    for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
        WEFT_TRY(check_operand(proof, index, "read", task->reads[k],
                               proof->read(proof->context, task, k)));
    for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
        WEFT_TRY(check_operand(proof, index, "write", task->writes[k],
                               proof->written(proof->context, task, k)));
    if (task->writes[0] >= 0 && task->writes[0] == task->writes[1])
        return weft_proof_fail(proof, index, "writes two values to one slot");
    return WEFT_OK;
}

static void include_task(weft_past *before, const weft_past *pasts, const weft_task *tasks,
                         uint32_t index)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (before->upto[lane] < pasts[index].upto[lane])
            before->upto[lane] = pasts[index].upto[lane];
    if (before->upto[tasks[index].lane] < index + 1)
        before->upto[tasks[index].lane] = index + 1;
}

weft_status weft_proof_pasts(weft_proof *proof)
{
    const weft_program *program = proof->program;
    void *memory;
    WEFT_TRY(
        weft_arena_alloc_array(proof->scratch, program->num_tasks, sizeof(weft_past), &memory));
    weft_past *pasts = memory;
    uint32_t last[WEFT_NUM_LANES] = {0};
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (last[task->lane])
            include_task(&pasts[i], pasts, program->tasks, last[task->lane] - 1);
        for (uint32_t w = 0; w < task->num_waits; w++)
            include_task(&pasts[i], pasts, program->tasks, program->waits[task->first_wait + w]);
        last[task->lane] = i + 1;
    }
    proof->pasts = pasts;
    return WEFT_OK;
}

static weft_status check_read(const weft_proof *proof, uint32_t index, int32_t slot, int needed,
                              const weft_slot_state *state)
{
    const weft_task *tasks = proof->program->tasks, *task = &tasks[index];
    if (!state->value)
        return weft_proof_fail(proof, index, "reads slot %d before anything is written to it",
                               slot);
    if (state->value != needed || state->micro_batch != task->micro_batch)
        return weft_proof_fail(
            proof, index,
            "needs %s of micro-batch %d from slot %d, which holds %s of micro-batch %d",
            proof->value_texts[needed], task->micro_batch, slot, proof->value_texts[state->value],
            state->micro_batch);
    if (state->writer && proof->pasts[index].upto[tasks[state->writer - 1].lane] < state->writer)
        return weft_proof_fail(
            proof, index, "may read slot %d before task %u has written it: no wait says otherwise",
            slot, state->writer - 1);
    return WEFT_OK;
}

static weft_status check_write(const weft_proof *proof, uint32_t index, int32_t slot,
                               const weft_slot_state *state)
{
    const weft_task *tasks = proof->program->tasks;
    const weft_past *before = &proof->pasts[index];
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (before->upto[lane] < state->readers[lane])
            return weft_proof_fail(
                proof, index,
                "may overwrite slot %d while task %u still reads it: no wait says otherwise", slot,
                state->readers[lane] - 1);
    if (state->writer && before->upto[tasks[state->writer - 1].lane] < state->writer)
        return weft_proof_fail(
            proof, index,
            "may overwrite slot %d before task %u has written it: no wait says otherwise", slot,
            state->writer - 1);
    return WEFT_OK;
}

weft_status weft_proof_slots(const weft_proof *proof, weft_slot_state *slots)
{
    const weft_program *program = proof->program;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            if (task->reads[k] >= 0)
                WEFT_TRY(check_read(proof, i, task->reads[k], proof->read(proof->context, task, k),
                                    &slots[task->reads[k]]));
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            if (task->writes[k] >= 0)
                WEFT_TRY(check_write(proof, i, task->writes[k], &slots[task->writes[k]]));
        for (int k = 0; k < WEFT_TASK_MAX_READS; k++)
            if (task->reads[k] >= 0)
                slots[task->reads[k]].readers[task->lane] = i + 1;
        for (int k = 0; k < WEFT_TASK_MAX_WRITES; k++)
            if (task->writes[k] >= 0)
                slots[task->writes[k]] =
                    (weft_slot_state){.value = proof->written(proof->context, task, k),
                                      .micro_batch = task->micro_batch,
                                      .writer = i + 1};
    }
    return WEFT_OK;
}
