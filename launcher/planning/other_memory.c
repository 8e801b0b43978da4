#include "launcher/planning/other_memory.h"

#include <string.h>

#include "launcher/planning/software.h"
#include "layers/outline/footprint.h"
#include "layers/pass/recompute.h"

/* Whether its rules describe what the config does. */
static bool is_described(const weft_config *config)
{
    const unsigned described = WEFT_RECOMPUTE_MODULE(CORE_ATTN) | WEFT_RECOMPUTE_ALWAYS;
    unsigned modules = 0;
    if (!(weft_software_state_bytes(config->software) > 0) || config->model.num_experts > 0 ||
        weft_dtype_bytes(weft_config_dtype(config)) != 2)
        return false;
    if (weft_recompute_modules(&config->train.recompute, &modules) != WEFT_OK) {
        weft_error_clear();
        return false;
    }
    return !(modules & ~described) && config->parallel.context_parallel_size <= 1 &&
           !config->model.multi_latent_attention && !config->train.offload.on &&
           !config->schedule.splits_backward &&
           config->tier.optimizer_state == WEFT_TIER_STATE_DEVICE &&
           weft_parallel_sharding(&config->parallel) <= WEFT_SHARD_OPTIM;
}

/* Leaves of the slots of stashes those that hold most at once in the order of compute. */
static weft_status leave_held(const weft_outline *outline, int rank, weft_arena *arena,
                              weft_program *program)
{
    const size_t num_chunks = (size_t)outline->layout.num_chunks;
    int *held, *most;
    weft_slot *slots;
    int num_slots = 0;
    uint64_t bytes = 0, most_bytes = 0;
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &held));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &most));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)program->num_slots, &slots));
    memset(held, 0, num_chunks * sizeof *held);
    memset(most, 0, num_chunks * sizeof *most);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const bool begins = task->kind == WEFT_TASK_FORWARD;
        if (!begins && task->kind != WEFT_TASK_BACKWARD)
            continue;
        const uint64_t stash = weft_footprint_stash(outline, rank, task->chunk);
        held[task->chunk] += begins ? 1 : -1;
        bytes = begins ? bytes + stash : bytes - stash;
        if (bytes > most_bytes)
            memcpy(most, held, num_chunks * sizeof *most);
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
    }
    for (int i = 0; i < program->num_slots; i++) {
        const weft_slot *slot = &program->slots[i];
        const int chunk = slot->chunk > 0 ? slot->chunk : 0;
        if (slot->holds != WEFT_SLOT_ACTIVATION || most[chunk]-- > 0)
            slots[num_slots++] = *slot;
    }
    program->slots = slots;
    program->num_slots = num_slots;
    return WEFT_OK;
}

weft_status weft_other_memory_make(const weft_config *config, const weft_mesh *mesh,
                                   const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    weft_config copy = *config;
    weft_status status = WEFT_OK;
    *out = (weft_step){0};
    if (!is_described(config))
        return WEFT_OK;
    copy.plain_kernels = WEFT_PLAIN_FUSED;
    WEFT_TRY(weft_step_make(&copy, mesh, moe, arena, out));
    for (int rank = 0; status == WEFT_OK && rank < mesh->pp; rank++)
        status = leave_held(&out->outline, rank, arena, &out->programs[rank]);
    if (status != WEFT_OK)
        weft_step_release(out);
    return status;
}

/* A layer is made again once the loss is done with its logits: the larger of both counts. */
static uint64_t never_together(const weft_step *step, int rank, const weft_footprint *footprint)
{
    const uint64_t again = weft_footprint_recomputed(&step->outline, rank);
    for (int i = 0; i < footprint->num_modules; i++)
        if (strcmp(footprint->modules[i].module, "loss") == 0)
            return footprint->modules[i].bytes < again ? footprint->modules[i].bytes : again;
    return 0;
}

void weft_other_memory_footprint(const weft_config *config, const weft_step *step, int rank,
                                 weft_footprint *out)
{
    const uint64_t workspaces = weft_software_workspace_bytes(config->software);
    weft_config copy = *config;
    copy.train.split_master = false;
    weft_step_footprint(&copy, step, rank, &step->programs[rank], out);
    const uint64_t apart = never_together(step, rank, out);
    out->bytes[WEFT_MEMORY_OTHER] += workspaces;
    out->bytes[WEFT_MEMORY_SCRATCH] -= apart;
    out->device_bytes += workspaces - apart;
}
