/* Rows at the experts: the fullest rank decides a step's time. */
#include <stdlib.h>

#include "layers/moe/internal.h"
#include "layers/pass/pass.h"

/* Rows by rank with placement. */
static size_t fullest_placed(const weft_moe_state *state, size_t experts, size_t ranks)
{
    const weft_moe_part *part = &state->parts[0];
    size_t most = 0;
    for (size_t r = 0; r < ranks; r++) {
        size_t rows = 0;
        for (int32_t i = 0; i < part->first_placed[experts]; i++)
            rows += part->placed[i].rank == (int32_t)r ? (size_t)part->placed[i].num_rows : 0;
        most = rows > most ? rows : most;
    }
    return most;
}

/* Without an exchange every rank knows the rows of all. */
static size_t fullest_rows(const weft_moe *m, const weft_moe_state *state)
{
    const weft_moe_dims *d = &m->dims;
    size_t most = state->num_rows;
    if (!d->exchange && state->parts[0].placed)
        return fullest_placed(state, d->experts, d->experts / d->local_experts);
    for (size_t first = 0; !d->exchange && first < d->experts; first += d->local_experts) {
        size_t rows = 0;
        for (size_t e = first; e < first + d->local_experts; e++)
            rows += (size_t)state->counts[e];
        most = rows > most ? rows : most;
    }
    return most;
}

weft_status weft_moe_count_rows(const weft_moe *m, weft_pass *pass, const weft_moe_state *state)
{
    weft_loads *loads = &pass->model->loads;
    const double balanced = (double)weft_moe_balanced_rows(
        &m->dims, (size_t)m->common.options.moe_router_topk, (size_t)weft_pass_shape(pass)->ep);
    if (loads->count == loads->capacity) { /* in the first step alone */
        size_t capacity = 2 * loads->capacity + 16;
        double *larger = realloc(loads->values, capacity * sizeof *larger);
        if (!larger)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for the loads of %zu layers", capacity);
        loads->values = larger;
        loads->capacity = capacity;
    }
    loads->values[loads->count++] = (double)fullest_rows(m, state) / balanced;
    const weft_shape *shape = weft_pass_shape(pass);
    const bool again = pass->shares_stash || shape->recompute & WEFT_RECOMPUTE_MODULE(MOE);
    const bool out =
        pass->out && shape->offload & (WEFT_RECOMPUTE_MODULE(MOE) | WEFT_OFFLOAD_BLOCK);
    weft_rows *const sums[] = {&pass->layer_rows, &pass->rows,
                               again ? &pass->model->again : &pass->kept_rows};
    for (int i = 0; i < (out && !again ? 2 : 3); i++) {
        sums[i]->rows += (double)state->num_rows;
        sums[i]->sent += (double)state->num_sent;
        sums[i]->balanced += balanced;
    }
    return WEFT_OK;
}

size_t weft_moe_scratch_before(const weft_pass *pass)
{
    return pass->model->scratch.peak_bytes;
}

void weft_moe_note_scratch(const weft_moe *m, weft_pass *pass, const weft_moe_state *state,
                           size_t before)
{
    weft_model *model = pass->model;
    const double balanced = (double)weft_moe_balanced_rows(
        &m->dims, (size_t)m->common.options.moe_router_topk, (size_t)weft_pass_shape(pass)->ep);
    const double part = balanced / state->num_parts;
    if (model->scratch.peak_bytes > before)
        model->scratch_load = (weft_moe_load){.rows = (double)state->num_rows / balanced,
                                              .sent = (double)state->num_sent / balanced,
                                              .part_rows = (double)state->max_rows / part,
                                              .part_sent = (double)state->max_sent / part};
}

double *weft_model_loads(weft_model *model, size_t *out_count)
{
    *out_count = model->loads.count;
    return model->loads.values;
}
