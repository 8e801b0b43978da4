/* A layer runs one inside it; in a rehearsal that one may describe itself instead. */
#include "core/device/device.h"
#include "core/sized.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"

static bool is_described(const weft_layer *child, const weft_pass *pass)
{
    return weft_device_is_note(pass->model->setup.device) && weft_layer_describes_itself(child);
}

/* Sums without a list, but for memory, which the pass gives. */
static void add_sums(weft_model *model, const weft_layer_cost *cost, bool backward)
{
    const weft_layer_cost half =
        backward ? (weft_layer_cost){.backward_flops = cost->backward_flops,
                                     .tp_backward_bytes = cost->tp_backward_bytes,
                                     .ep_backward_bytes = cost->ep_backward_bytes}
                 : (weft_layer_cost){.forward_flops = cost->forward_flops,
                                     .tp_forward_bytes = cost->tp_forward_bytes,
                                     .ep_forward_bytes = cost->ep_forward_bytes};
    weft_cost_add(&model->coarse, &half);
}

static weft_status keep(weft_pass *pass, const weft_description *d)
{
    uint64_t rest = d->cost.activation_bytes;
    weft_tensor kept;
    void *host;
    for (int i = 0; i < d->num_kept; i++) {
        WEFT_TRY_AS(pass->lane, d->kept[i].module,
                    weft_pass_stash(pass, WEFT_U8, d->kept[i].bytes, 1, &kept));
        rest -= d->kept[i].bytes;
    }
    if (rest > 0)
        WEFT_TRY(weft_pass_stash(pass, WEFT_U8, rest, 1, &kept));
    return d->cost.host_bytes > 0 ? weft_pass_host(pass, d->cost.host_bytes, &host) : WEFT_OK;
}

static weft_status note(weft_pass *pass, const weft_description *d, bool backward)
{
    const struct weft_layer_scratch *s = &d->cost.scratch;
    const uint64_t listed = s->own[backward] + s->child[backward];
    const size_t mark = weft_pass_mark(pass);
    weft_tensor scratch;
    if (!backward)
        WEFT_TRY(keep(pass, d));
    WEFT_TRY(
        weft_pass_scratch(pass, WEFT_U8, listed > 0 ? listed : d->cost.scratch_bytes, 1, &scratch));
    for (int i = 0; i < d->num_operations; i++)
        if ((d->operations[i].phase != WEFT_PHASE_FORWARD) == backward)
            WEFT_TRY(weft_note_operation(pass->lane, &d->operations[i]));
    if (d->coarse)
        add_sums(pass->model, &d->cost, backward);
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status described(const weft_layer *child, weft_pass *pass, bool backward)
{
    weft_description d;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_description_begin(&d, shape);
    weft_cost_own(&d.cost, shape, child);
    WEFT_TRY(weft_description_end(&d));
    const weft_status status = note(pass, &d, backward);
    weft_description_release(&d);
    return status;
}

static _Thread_local const weft_layer *innermost;

const weft_layer *weft_layer_innermost(void)
{
    return innermost;
}

weft_status weft_layer_forward(weft_layer *child, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    const weft_layer *outer = innermost;
    innermost = child;
    const weft_status status = is_described(child, pass) ? described(child, pass, false)
                                                         : child->ops->forward(child, pass, x, y);
    innermost = outer;
    return weft_layer_failed(child, "forward", status);
}

weft_status weft_layer_backward(weft_layer *child, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    const weft_layer *outer = innermost;
    innermost = child;
    const weft_status status = is_described(child, pass)
                                   ? described(child, pass, true)
                                   : child->ops->backward(child, pass, dy, dx);
    innermost = outer;
    return weft_layer_failed(child, "backward", status);
}

/* --- parts ------------------------------------------------------------------------------------ */

weft_part_kind weft_part_kind_of(const weft_layer *layer, weft_pass *pass, bool backward, int part)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    if (parts)
        return parts->kind(layer, pass, backward, part);
    return part == 0 ? WEFT_PART_COMPUTES : WEFT_PART_NONE;
}

weft_status weft_part_forward(weft_layer *layer, weft_pass *pass, int part, const weft_tensor *x,
                              weft_tensor *y)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    const weft_layer *outer = innermost;
    if (!parts)
        return weft_layer_forward(layer, pass, x, y);
    innermost = layer;
    const weft_status status = parts->forward(layer, pass, part, x, y);
    innermost = outer;
    return weft_layer_failed(layer, "forward", status);
}

weft_status weft_part_backward(weft_layer *layer, weft_pass *pass, int part, const weft_tensor *dy,
                               weft_tensor *dx)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    const weft_layer *outer = innermost;
    if (!parts)
        return weft_layer_backward(layer, pass, dy, dx);
    innermost = layer;
    const weft_status status = parts->backward(layer, pass, part, dy, dx);
    innermost = outer;
    return weft_layer_failed(layer, "backward", status);
}

weft_status weft_parts_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    for (int part = 0; parts->kind(layer, pass, false, part) != WEFT_PART_NONE; part++)
        WEFT_TRY(parts->forward(layer, pass, part, x, y));
    return WEFT_OK;
}

weft_status weft_parts_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    for (int part = 0; parts->kind(layer, pass, true, part) != WEFT_PART_NONE; part++)
        WEFT_TRY(parts->backward(layer, pass, part, dy, dx));
    return WEFT_OK;
}
