/* What the passes held at most, and the loads at which they did. */
#include "layers/pass.h"

/* The bytes that were reserved for balanced routing, or as many more as an uneven load took. */
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

/* Passes within what was reserved count as if its load had come. */
void weft_model_held_loads(const weft_model *model, weft_moe_load *out_passes,
                           weft_moe_load *out_scratch)
{
    const weft_moe_load *planned = &model->setup.moe.load;
    double balanced = 0, rows = 0, sent = 0;
    for (int i = 0; i < model->setup.num_passes; i++) {
        const weft_pass *pass = &model->passes[i];
        const weft_rows *most = &pass->fullest;
        bool grew = pass->held_bytes > pass->stash.first_bytes + pass->host.first_bytes;
        balanced += most->balanced;
        rows += grew ? most->rows : most->balanced * (planned->rows > 0 ? planned->rows : 1);
        sent += grew ? most->sent : most->balanced * (planned->sent > 0 ? planned->sent : 1);
    }
    *out_passes = *out_scratch = *planned;
    if (balanced > 0)
        *out_passes = (weft_moe_load){.rows = rows / balanced, .sent = sent / balanced};
    bool grew = model->scratch.peak_bytes > model->scratch.first_bytes ||
                model->recomputed.peak_bytes > model->recomputed.first_bytes;
    for (int i = 0; i < model->offload.num_slots; i++)
        grew = grew ||
               model->offload.slots[i].stack.peak_bytes > model->offload.slots[i].stack.first_bytes;
    if (grew)
        *out_scratch = model->scratch_load;
}
