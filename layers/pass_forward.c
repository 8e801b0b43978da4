#include "layers/pass_forward.h"

#include <string.h>

#include "layers/pass.h"
#include "schedule/operands.h"

bool weft_outline_recomputes_early(const weft_outline *outline, int rank, int chunk)
{
    const weft_layout *layout = &outline->layout;
    int first, end;
    weft_layout_range(layout, rank, chunk, &first, &end);
    return layout->num_ranks > 1 && end > first && end < layout->num_layers &&
           outline->layers[end - 1].recompute_group > 0 &&
           !outline->layers[end - 1].description.keeps_input;
}

bool weft_outline_recomputes_layer_early(const weft_outline *outline, int rank, int chunk,
                                         int layer)
{
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    return weft_outline_recomputes_early(outline, rank, chunk) &&
           outline->layers[layer].recompute_group == outline->layers[end - 1].recompute_group;
}

bool weft_outline_repeats(const weft_outline *outline)
{
    for (int l = 0; l < outline->num_layers; l++)
        if (outline->layers[l].recompute_group > 0)
            return true;
    return false;
}

weft_pass_kept *weft_pass_kept_of(const weft_pass *pass)
{
    return (weft_pass_kept *)(void *)(pass->states + pass->model->kept_offset);
}

/* Notes the rows at which a stack grew. */
static void note_recomputed(weft_model *model)
{
    if (model->recomputed.peak_bytes > model->noted_again_bytes)
        model->fullest_again = model->again;
    model->noted_again_bytes = model->recomputed.peak_bytes;
}

static void empty_recomputed(weft_model *model)
{
    note_recomputed(model);
    weft_stack_rewind(&model->recomputed, 0);
    model->again = (weft_rows){0};
}

void weft_pass_send_out(weft_pass *pass, unsigned modules)
{
    pass->goes_out = pass->model->shape.offload & (modules | WEFT_OFFLOAD_BLOCK);
}

void weft_pass_leave_out(weft_pass *pass, unsigned modules)
{
    weft_pass_send_out(pass, modules);
    if (!(pass->model->shape.recompute & modules))
        return;
    empty_recomputed(pass->model);
    pass->leaves_out = true;
}

void weft_pass_keep(weft_pass *pass)
{
    pass->leaves_out = false;
    weft_pass_send_out(pass, 0);
}

size_t weft_pass_host_mark(const weft_pass *pass)
{
    return weft_stack_mark(&pass->host);
}

/* Other passes may still use the memory above. */
void weft_pass_begin_repeat(weft_pass *pass, size_t host_mark)
{
    pass->host_before = pass->host;
    weft_stack_rewind(&pass->host, host_mark);
    pass->repeats = true;
}

void weft_pass_end_repeat(weft_pass *pass)
{
    weft_stack_restore(&pass->host_before, &pass->host);
    pass->repeats = false;
}

bool weft_pass_repeats(const weft_pass *pass)
{
    return pass->repeats;
}

weft_tensor weft_pass_operand(const weft_pass_work *w, const weft_task *task,
                              weft_operand_name name)
{
    int slot = weft_task_slot(task, name);
    return slot < 0 ? (weft_tensor){0} : w->slots[slot];
}

/* Sets where the layer's stash goes, and notes its kept data. */
static weft_status begin_layer(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    const int x = weft_task_slot(task, WEFT_OPERAND_X);
    const int stash = weft_task_slot(task, WEFT_OPERAND_STASH);
    const bool inside = x >= 0 && w->program->slots[x].holds == WEFT_SLOT_RECOMPUTED_LAYER;
    pass->shares_stash = w->program->slots[stash].holds == WEFT_SLOT_RECOMPUTED;
    if (pass->shares_stash && !inside)
        empty_recomputed(pass->model);
    if (!pass->repeats)
        weft_pass_kept_of(pass)[task->layer - pass->first] = (weft_pass_kept){
            .x = x < 0 ? (weft_tensor){0} : w->slots[x], .host_mark = weft_pass_host_mark(pass)};
    return WEFT_OK;
}

/* Allocates a task's output, unless the model or a message slot has its memory. */
static weft_status take_output(weft_pass_work *w, int slot)
{
    weft_pass *pass = w->call->pass;
    const weft_shape *shape = &pass->model->shape;
    const bool is_kept = w->program->slots[slot].holds != WEFT_SLOT_RECOMPUTED_LAYER;
    if (is_kept && w->slots[slot].data)
        return WEFT_OK;
    const bool shares = pass->shares_stash;
    pass->shares_stash = !is_kept;
    weft_status status =
        weft_pass_stash(pass, shape->dtype, weft_pass_rows(pass), shape->hidden, &w->slots[slot]);
    pass->shares_stash = shares;
    return status;
}

weft_status weft_pass_run_forward(weft_pass_work *w, const weft_task *task)
{
    weft_pass *pass = w->call->pass;
    weft_layer *layer = pass->model->layers[task->layer];
    weft_tensor x = weft_pass_operand(w, task, WEFT_OPERAND_X), y;
    const int slot = weft_task_slot(task, WEFT_OPERAND_Y);
    size_t most_out[WEFT_OFFLOAD_SLOTS];
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        most_out[i] = pass->model->offload.slots[i].stack.peak_bytes;
    pass->layer_rows = (weft_rows){0};
    WEFT_TRY(begin_layer(w, task));
    if (slot >= 0)
        WEFT_TRY(take_output(w, slot));
    y = weft_pass_operand(w, task, WEFT_OPERAND_Y);
    WEFT_TRY(
        weft_offload_begin(&pass->model->offload, w->program, task, pass, pass->lane, &pass->out));
    weft_pass_keep(pass);
    weft_status status = weft_layer_forward(layer, pass, &x, slot < 0 ? NULL : &y);
    pass->shares_stash = false;
    pass->out = NULL;
    note_recomputed(pass->model);
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++)
        if (pass->model->offload.slots[i].stack.peak_bytes > most_out[i])
            pass->model->offload.slots[i].fullest = pass->layer_rows;
    return status;
}

/* The state structs of a layer and its children. */
static void clear_states(weft_pass *pass, const weft_layer *layer)
{
    const weft_model *model = pass->model;
    int end = layer->place->index + 1;
    while (end < model->num_members && model->members[end].parent >= 0)
        end++;
    const size_t first = model->members[layer->place->index].state_offset;
    const size_t after =
        end < model->num_members ? model->members[end].state_offset : model->kept_offset;
    memset(pass->states + first, 0, after - first);
}

/* Layers add to their own metrics on the lane, so these are restored on the lane. */
static weft_status copy_metrics(const weft_pass *pass, weft_metric *to, const weft_metric *from)
{
    return pass->model->own_metrics
               ? weft_lane_copy(pass->lane, to, from, WEFT_MAX_METRICS * sizeof *to)
               : WEFT_OK;
}

weft_status weft_pass_run_again(void *work, const weft_task *task, weft_lane *lane)
{
    weft_pass_work *w = work;
    weft_pass *pass = w->call->pass;
    weft_model *model = pass->model;
    (void)lane;
    clear_states(pass, model->layers[task->layer]);
    WEFT_TRY(copy_metrics(pass, model->saved_metrics, model->own_metrics));
    weft_pass_begin_repeat(pass, weft_pass_kept_of(pass)[task->layer - pass->first].host_mark);
    weft_status status = weft_pass_run_forward(w, task);
    weft_pass_end_repeat(pass);
    WEFT_TRY(status);
    return copy_metrics(pass, model->own_metrics, model->saved_metrics);
}
