/* The passes' peaks of memory, and the loads at these peaks. */
#include "layers/pass/pass.h"

/* The bytes reserved for balanced routing, or the peak of an uneven load if that is more. */
static void add_stack(const weft_stack *stack, weft_memory_purpose purpose, weft_stack_use *out)
{
    if (stack->holds != purpose)
        return;
    for (int b = 0; b < stack->num_blocks; b++)
        out->blocks_bytes += stack->blocks[b].size;
    out->grew = out->grew || stack->peak_bytes > stack->first_bytes;
    out->bytes += stack->peak_bytes > stack->first_bytes ? stack->peak_bytes : stack->first_bytes;
}

void weft_model_held(const weft_model *model, weft_memory_purpose purpose, weft_stack_use *out)
{
    *out = (weft_stack_use){0};
    add_stack(&model->scratch, purpose, out);
    add_stack(&model->recomputed, purpose, out);
    for (int i = 0; i < model->offload.num_slots; i++)
        add_stack(&model->offload.slots[i].stack, purpose, out);
    for (int i = 0; i < model->setup.num_passes; i++) {
        add_stack(&model->passes[i].stash, purpose, out);
        add_stack(&model->passes[i].host, purpose, out);
    }
}

void weft_model_settle(weft_model *model)
{
    for (int i = 0; i < model->setup.num_passes; i++) {
        weft_stack *stash = &model->passes[i].stash;
        if (stash->num_blocks < 2)
            continue;
        weft_stack_rewind(stash, 0);
        weft_stack_settle(stash);
    }
    weft_stack_settle(&model->scratch);
    if (model->recomputed.num_blocks > 1) {
        weft_stack_rewind(&model->recomputed, 0);
        weft_stack_settle(&model->recomputed);
    }
}

/* Adds a pass's peak; a peak within the reservation counts at the reserved load. */
static void add_rows(const weft_model *model, const weft_pass *pass, const weft_rows *most,
                     weft_rows *sum)
{
    const weft_moe_load *planned = &model->setup.moe.load;
    const bool grew = pass->held_bytes > pass->stash.first_bytes + pass->host.first_bytes;
    sum->balanced += most->balanced;
    sum->rows += grew ? most->rows : most->balanced * (planned->rows > 0 ? planned->rows : 1);
    sum->sent += grew ? most->sent : most->balanced * (planned->sent > 0 ? planned->sent : 1);
}

static void take_load(const weft_rows *sum, weft_moe_load *out)
{
    if (sum->balanced > 0)
        *out =
            (weft_moe_load){.rows = sum->rows / sum->balanced, .sent = sum->sent / sum->balanced};
}

void weft_model_held_loads(const weft_model *model, weft_moe_held_loads *out)
{
    const weft_moe_load *planned = &model->setup.moe.load;
    weft_rows kept = {0}, all = {0};
    for (int i = 0; i < model->setup.num_passes; i++) {
        const weft_pass *pass = &model->passes[i];
        add_rows(model, pass, &pass->fullest_kept, &kept);
        add_rows(model, pass, &pass->fullest, &all);
    }
    *out = (weft_moe_held_loads){*planned, *planned, *planned, {*planned, *planned}, *planned};
    take_load(&kept, &out->passes);
    take_load(&all, &out->pinned);
    if (model->recomputed.peak_bytes > model->recomputed.first_bytes)
        take_load(&model->fullest_again, &out->recomputed);
    for (int i = 0; i < model->offload.num_slots; i++)
        if (model->offload.slots[i].stack.peak_bytes > model->offload.slots[i].stack.first_bytes)
            take_load(&model->offload.slots[i].fullest, &out->offloaded[i]);
    if (model->scratch.peak_bytes > model->scratch.first_bytes)
        out->scratch = model->scratch_load;
}
