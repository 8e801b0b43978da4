/* A layer runs one inside it; in a rehearsal that one may describe itself instead. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/sized.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"
#include "layers/tensor/tensor.h"

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

/* Else it has no parameters, and no name for errors. */
static weft_status check_given(const weft_layer *child)
{
    WEFT_TRY(WEFT_GIVEN(child));
    return child->place ? WEFT_OK
                        : WEFT_ERROR(WEFT_CONFIG,
                                     "runs a layer of kind %s that its init has not given to "
                                     "weft_build_child",
                                     weft_layer_kind(child));
}

weft_status weft_layer_forward(weft_layer *child, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    WEFT_TRY(check_given(child));
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
    WEFT_TRY(check_given(child));
    const weft_layer *outer = innermost;
    innermost = child;
    const weft_status status = is_described(child, pass)
                                   ? described(child, pass, true)
                                   : child->ops->backward(child, pass, dy, dx);
    innermost = outer;
    return weft_layer_failed(child, "backward", status);
}

/* --- parts ------------------------------------------------------------------------------------ */

weft_way weft_way_back(const weft_pass *pass)
{
    return pass->defers ? WEFT_WAY_INPUT : WEFT_WAY_BACKWARD;
}

int weft_layer_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                      weft_way way, weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    return parts ? parts->inside(layer, model, pass, way, out) : 0;
}

int weft_inside_count_parts(const weft_inside *inside, int count)
{
    int num_parts = 1;
    for (int i = 0; i < count; i++)
        num_parts += (int)inside[i].program->num_tasks + 1;
    return num_parts;
}

int weft_layer_count_parts(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                           weft_way way)
{
    weft_inside inside[WEFT_MAX_INSIDE];
    return weft_inside_count_parts(inside, weft_layer_inside(layer, model, pass, way, inside));
}

bool weft_inside_at(const weft_inside *inside, int count, int part, weft_body_part *out)
{
    int at = 0;
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    for (; part > 0 && at < count; at++) {
        const weft_inside *in = &inside[at];
        out->place = in->place;
        if ((uint32_t)part <= in->program->num_tasks) {
            out->program = in->program;
            out->task = (uint32_t)part - 1;
            if (in->lanes)
                out->lane = (weft_lane_kind)in->lanes[in->program->tasks[out->task].lane];
            return true;
        }
        out->from = in->place + 1;
        part -= (int)in->program->num_tasks + 1;
    }
    out->to = at < count ? inside[at].place : INT_MAX;
    return part == 0;
}

bool weft_part_at(const weft_layer *layer, const weft_model *model, weft_pass *pass, weft_way way,
                  int part, weft_body_part *out)
{
    weft_inside inside[WEFT_MAX_INSIDE];
    const int count = weft_layer_inside(layer, model, pass, way, inside);
    return weft_inside_at(inside, count, part, out);
}

weft_status weft_part_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                              const weft_tensor *x, weft_tensor *y)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    const weft_layer *outer = innermost;
    if (!parts)
        return weft_layer_forward(layer, pass, x, y);
    innermost = layer;
    const weft_status status = parts->forward(layer, pass, part, lane, x, y);
    innermost = outer;
    return weft_layer_failed(layer, "forward", status);
}

weft_status weft_part_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                               const weft_tensor *dy, weft_tensor *dx)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    const weft_layer *outer = innermost;
    if (!parts)
        return weft_layer_backward(layer, pass, dy, dx);
    innermost = layer;
    const weft_status status = parts->backward(layer, pass, part, lane, dy, dx);
    innermost = outer;
    return weft_layer_failed(layer, "backward", status);
}

static struct weft_program_inside kind_of(const weft_model *model, const weft_program *program)
{
    struct weft_program_inside out = {.inner = WEFT_INNER_EXPERTS};
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        out.backward |= program->tasks[i].flow == WEFT_FLOW_GRADIENT;
        if (program->tasks[i].kind == WEFT_TASK_ATTEND)
            out.inner = WEFT_INNER_ATTENTION;
    }
    if (model->tensor && weft_tensor_plan_of(model->tensor, program, &out.plan)) {
        out.inner = WEFT_INNER_TENSOR;
        out.backward = out.plan.backward;
    }
    return out;
}

void weft_layer_list_inside(const weft_layer *layer, const weft_model *model,
                            weft_programs_inside out[WEFT_NUM_WAYS])
{
    weft_inside inside[WEFT_MAX_INSIDE];
    for (int way = 0; way < (model->shape.training ? (int)WEFT_NUM_WAYS : 1); way++) {
        weft_programs_inside *to = &out[way];
        to->count = weft_layer_inside(layer, model, NULL, (weft_way)way, inside);
        for (int i = 0; i < to->count; i++)
            to->rows[i] = kind_of(model, inside[i].program);
    }
}

/* --- a body of one layer ---------------------------------------------------------------------- */

/* Kept from pass to pass. */
typedef struct weft_alone {
    weft_arena arena;
    const weft_task *inside[WEFT_MAX_INSIDE]; /* each program's tasks */
    weft_program body;
    weft_executor executor;
    weft_layer *layer;
    weft_pass *pass;
    const weft_tensor *from;
    weft_tensor *to;
    int part; /* the next one */
    weft_way way;
} weft_alone;

void weft_alone_destroy(weft_alone *alone)
{
    if (!alone)
        return;
    weft_executor_release(&alone->executor);
    weft_arena_release(&alone->arena);
    free(alone);
}

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const weft_alone *a = context;
    (void)task;
    return weft_part_at(a->layer, a->pass->model, a->pass, a->way, part, out);
}

static weft_status run_part(void *context, const weft_task *task, weft_lane *lane)
{
    weft_alone *a = context;
    const weft_layer_parts *parts = weft_layer_table(a->layer).parts;
    (void)task;
    return (a->way ? parts->backward : parts->forward)(a->layer, a->pass, a->part++, lane, a->from,
                                                       a->to);
}

static weft_status make_body(weft_alone *a)
{
    const weft_task layer =
        weft_task_of(WEFT_TASK_LAYER, a->way ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION);
    const weft_program whole = {.tasks = &layer, .num_tasks = 1};
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        a->executor.run[kind] = run_part;
    a->executor.context = a;
    WEFT_TRY(weft_program_body(&whole, part_of, a, &a->arena, &a->body));
    return weft_executor_prepare(&a->executor, a->pass->model->setup.device, a->body.num_tasks);
}

/* The layer's, made anew where its programs are others. */
static weft_status find_alone(weft_layer *layer, weft_pass *pass, weft_way way,
                              const weft_task *const inside[WEFT_MAX_INSIDE], weft_alone **out)
{
    weft_alone **kept = &layer->place->alone[way != WEFT_WAY_FORWARD];
    if (*kept && memcmp((*kept)->inside, inside, sizeof(*kept)->inside) != 0) {
        weft_alone_destroy(*kept);
        *kept = NULL;
    }
    *out = *kept;
    if (*kept)
        return WEFT_OK;
    *out = *kept = calloc(1, sizeof **kept);
    if (!*kept)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a layer's parts");
    **kept = (weft_alone){.layer = layer, .pass = pass, .way = way};
    memcpy((*kept)->inside, inside, sizeof(*kept)->inside);
    return make_body(*kept);
}

static weft_status run_alone(weft_layer *layer, weft_pass *pass, weft_way way,
                             const weft_tensor *from, weft_tensor *to)
{
    const weft_layer_parts *parts = weft_layer_table(layer).parts;
    const weft_task *tasks[WEFT_MAX_INSIDE] = {NULL};
    weft_inside inside[WEFT_MAX_INSIDE];
    const int count = weft_layer_inside(layer, pass->model, pass, way, inside);
    weft_alone *a;
    if (count == 0)
        return (way ? parts->backward : parts->forward)(layer, pass, 0, pass->lane, from, to);
    for (int i = 0; i < count; i++)
        tasks[i] = inside[i].program->tasks;
    WEFT_TRY(find_alone(layer, pass, way, tasks, &a));
    a->pass = pass;
    a->from = from;
    a->to = to;
    a->part = 0;
    weft_pass_prepare(pass, &a->executor);
    return weft_program_enqueue(&a->body, &a->executor);
}

weft_status weft_parts_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    return run_alone(layer, pass, WEFT_WAY_FORWARD, x, y);
}

weft_status weft_parts_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    return run_alone(layer, pass, weft_way_back(pass), dy, dx);
}
