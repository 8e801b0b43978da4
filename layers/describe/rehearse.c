#include "layers/describe/rehearse.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/note/note.h"
#include "core/device/device.h"
#include "layers/context/context.h"
#include "layers/describe/plain.h"
#include "layers/outline/outline.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"
#include "layers/tensor/tensor.h"

/* Lists what a stack of stashes gives. */
typedef struct keeper {
    struct weft_rehearsal *rehearsal;
    bool offloaded;
} keeper;

typedef struct weft_rehearsal {
    weft_model model;
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_pass pass;
    weft_stack out; /* the offloaded stash */
    weft_deferred deferred;
    size_t second, end; /* of the notes: those of a backward's second half; those behind the layer's
                           list */
    void *somewhere;    /* the addresses of parameters, inputs and rows between layers */
    size_t first;       /* of the notes: the layer's */
    weft_recording *recording; /* NULL: calls are not kept */
    size_t widest;             /* bytes of the largest matrix of note_products */
    int32_t *runs;
    weft_sequence_cut cut;
    weft_description *keeps;     /* gets what is stashed; NULL: nobody does */
    keeper keepers[2];           /* of the pass's stash, and of the offloaded one */
    const weft_witness *witness; /* NULL: none */
    size_t placed_bytes;         /* of weights and gradients */
} weft_rehearsal;

/* More than any layer takes: addresses cost nothing. */
static const size_t ample = (size_t)1 << 50;
enum { HOST_BYTES = 1 << 15 }; /* at first: of real memory */

/* What lies somewhere. */
enum {
    PLACE_NORMED,
    PLACE_GRADIENTS, /* of rows, two */
    PLACE_X = 3,
    PLACE_Y,
    PLACE_WEIGHTS,
    PLACE_PARAMETER_GRADIENTS,
    PLACE_TOKENS,
    PLACE_POSITIONS,
};

static void *address_of(const weft_rehearsal *r, size_t place)
{
    return (char *)r->somewhere + place * (ample / 16);
}

/* A layer stashes a tensor. */
static weft_status keep(void *giver, size_t bytes, void **out)
{
    const keeper *k = giver;
    const char *module = weft_note_scope_of(k->rehearsal->device).module;
    if (weft_note_keeps_calls(k->rehearsal->device))
        WEFT_TRY(weft_note_piece(k->rehearsal->lane, *out, bytes));
    if (k->rehearsal->keeps)
        weft_cost_kept(&k->rehearsal->keeps->cost,
                       &(weft_kept){.module = module ? module : "own",
                                    .bytes = weft_piece_bytes(WEFT_U8, bytes, 1),
                                    .until = WEFT_PHASE_WEIGHT_GRADIENT,
                                    .offloaded = k->offloaded});
    return WEFT_OK;
}

/* --- making one ------------------------------------------------------------------------------ */

static weft_status create_groups(weft_rehearsal *r, const weft_shape *shape)
{
    const int sizes[WEFT_NUM_AXES] = {
        [WEFT_AXIS_TP] = shape->tp, [WEFT_AXIS_CP] = shape->cp,   [WEFT_AXIS_DP] = 1,
        [WEFT_AXIS_PP] = 1,         [WEFT_AXIS_EP] = shape->ep,   [WEFT_AXIS_ETP] = shape->etp,
        [WEFT_AXIS_EDP] = 1,        [WEFT_AXIS_DP_CP] = shape->cp};
    r->groups.mesh = (weft_mesh){.world = shape->tp * shape->cp,
                                 .tp = shape->tp,
                                 .cp = shape->cp,
                                 .dp = 1,
                                 .pp = 1,
                                 .ep = shape->ep,
                                 .etp = shape->etp,
                                 .edp = 1,
                                 .binding = shape->binding == 0 ? WEFT_BINDING_TP : WEFT_BINDING_DP,
                                 .sequence_parallel = shape->sequence_parallel,
                                 .cp_comm_type = shape->cp_comm_type,
                                 .cp_inner = shape->cp_inner};
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++) {
        r->groups.coords.size[axis] = sizes[axis];
        WEFT_TRY(weft_comm_create_note(weft_axis_text(axis), axis, 0, sizes[axis],
                                       &r->groups.by_axis[axis]));
    }
    return WEFT_OK;
}

static weft_status create_stacks(weft_rehearsal *r)
{
    weft_model *model = &r->model;
    weft_stack *const stacks[] = {&r->pass.stash, &model->memory.scratch,
                                  &model->memory.recomputed[0].stack, &r->out, &r->deferred.stack};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        *stacks[i] = (weft_stack){.device = r->device, .purpose = "a rehearsal"};
        WEFT_TRY(weft_stack_reserve(stacks[i], ample));
    }
    r->keepers[0] = (keeper){r, false};
    r->keepers[1] = (keeper){r, true};
    r->pass.stash.give = r->out.give = keep;
    r->pass.stash.giver = &r->keepers[0];
    r->out.giver = &r->keepers[1];
    r->pass.host = (weft_stack){
        .device = r->device, .space = WEFT_SPACE_PINNED, .purpose = "host memory of layers"};
    return weft_stack_reserve(&r->pass.host, HOST_BYTES);
}

/* Any sequence deals the same work as one without documents. */
static weft_status cut_sequence(weft_rehearsal *r, const weft_shape *shape)
{
    if (shape->cp == 1)
        return WEFT_OK;
    r->runs = calloc(2 * (size_t)shape->cp, sizeof *r->runs);
    if (!r->runs)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a rehearsal");
    r->cut = weft_sequence_head_tail(shape->seq, shape->cp, r->runs);
    return WEFT_OK;
}

static weft_status create_metrics(weft_rehearsal *r)
{
    void *memory;
    const size_t bytes = 2 * sizeof *r->model.sums.metrics;
    WEFT_TRY(weft_device_alloc(r->device, WEFT_SPACE_PINNED, bytes, "metrics", &memory));
    r->model.sums.metrics = memset(memory, 0, bytes);
    return WEFT_OK;
}

/* Rows between layers, at a place of their own. */
static weft_tensor rows_at(const weft_rehearsal *r, size_t place)
{
    const weft_shape *shape = &r->model.shape;
    return weft_tensor_2d(address_of(r, place), shape->dtype, weft_shape_boundary_rows(shape),
                          shape->hidden);
}

static weft_status init(weft_rehearsal *r, const weft_model_options *options,
                        const void *own_options, const weft_shape *shape, weft_device *keeps_for)
{
    weft_model *model = &r->model;
    WEFT_TRY(weft_device_create_note(&r->device));
    if (keeps_for)
        weft_note_keep_calls(r->device, keeps_for);
    if (r->witness)
        weft_notes_keep_ranges(r->device);
    WEFT_TRY(weft_lane_create(r->device, 0, "compute", &r->lane));
    WEFT_TRY(weft_device_alloc(r->device, WEFT_SPACE_DEVICE, ample, "a rehearsal", &r->somewhere));
    WEFT_TRY(create_groups(r, shape));
    WEFT_TRY(cut_sequence(r, shape));
    model->options = *options;
    model->shape = *shape;
    model->shape.pp = 1;
    model->setup = (weft_model_setup){.options = &model->options,
                                      .own_options = own_options,
                                      .groups = &r->groups,
                                      .device = r->device,
                                      .dtype = shape->dtype,
                                      .micro_batch_size = (int64_t)shape->batch,
                                      .training = shape->training,
                                      .moe = {.pipeline = weft_shape_pipeline(shape),
                                              .form = (weft_exchange_form)shape->moe_exchange,
                                              .num_chunks = shape->moe_exchange_chunks,
                                              .as_one = true}};
    model->place = weft_coords_place(&r->groups.coords, r->groups.mesh.world);
    WEFT_TRY(weft_parameters_create(&r->groups, r->device, shape->dtype, &model->parameters));
    WEFT_TRY(weft_model_create_moe(model));
    WEFT_TRY(weft_model_create_context(model));
    WEFT_TRY(weft_model_create_tensor(model));
    WEFT_TRY(create_metrics(r));
    WEFT_TRY(create_stacks(r));
    model->shape = *shape; /* as it was asked for: partitions too where no tokens travel */
    model->shape.pp = 1;
    model->shape.offload &= ~WEFT_OFFLOAD_BLOCK; /* of whole layers */
    model->memory.normed = r->pass.normed = rows_at(r, PLACE_NORMED);
    model->memory.gradients[0] = rows_at(r, PLACE_GRADIENTS);
    model->memory.gradients[1] = rows_at(r, PLACE_GRADIENTS + 1);
    r->pass.model = model;
    r->pass.deferred = &r->deferred;
    r->pass.lane = r->lane;
    r->pass.micro_batch =
        (weft_micro_batch){.tokens = address_of(r, PLACE_TOKENS),
                           .labels = address_of(r, PLACE_TOKENS),
                           .cut = shape->cp > 1 ? &r->cut : NULL,
                           .index = shape->cp > 1 ? address_of(r, PLACE_POSITIONS) : NULL,
                           .step = 1,
                           .overwrite = true,
                           .backward_overwrites = true,
                           .loss_scale = 1,
                           .training = shape->training};
    return WEFT_OK;
}

static void destroy(weft_rehearsal *r)
{
    weft_model *model = &r->model;
    weft_stack_release(&r->pass.stash);
    weft_stack_release(&r->pass.host);
    weft_stack_release(&r->out);
    weft_deferred_release(&r->deferred);
    weft_stack_release(&model->memory.scratch);
    weft_stack_release(&model->memory.recomputed[0].stack);
    free(r->pass.states);
    free(model->sums.loads.values);
    if (r->somewhere)
        weft_device_free(r->device, WEFT_SPACE_DEVICE, r->somewhere, ample);
    if (model->sums.metrics)
        weft_device_free(r->device, WEFT_SPACE_PINNED, model->sums.metrics,
                         2 * sizeof *model->sums.metrics);
    weft_model_forget(model);
    weft_parameters_destroy(model->parameters);
    weft_moe_runtime_destroy(model->moe);
    weft_context_runtime_destroy(model->context);
    weft_tensor_runtime_destroy(model->tensor);
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        weft_comm_destroy(r->groups.by_axis[axis]);
    weft_lane_destroy(r->lane);
    weft_device_destroy(r->device);
    free(r->runs);
    free(r);
}

static weft_status create(const weft_model_options *options, const void *own_options,
                          const weft_shape *shape, const weft_witness *witness,
                          weft_device *keeps_for, weft_rehearsal **out)
{
    weft_rehearsal *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a rehearsal");
    r->witness = witness;
    const weft_status status = init(r, options, own_options, shape, keeps_for);
    if (status != WEFT_OK) {
        destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

/* --- running --------------------------------------------------------------------------------- */

/* What a layer's place in the list decides. */
typedef struct place {
    char prefix[64]; /* "decoder.layers.3." */
    int index;
    bool gives_output; /* of the list, not the last: its output is stashed */
    bool is_first, is_last;
} place;

/* The address of a weight or a gradient; a witness sees each at its own. */
static void *placed(weft_rehearsal *r, size_t in, size_t bytes)
{
    void *memory = (char *)address_of(r, in) + r->placed_bytes;
    r->placed_bytes += r->witness ? weft_piece_bytes(WEFT_U8, bytes, 1) : 0;
    return memory;
}

/* Parameters that the layer declared have an address, and are listed. */
static void place_parameters(weft_rehearsal *r, int first_use, int first, bool lists,
                             weft_description *out)
{
    const weft_parameters *parameters = r->model.parameters;
    for (int i = first_use; i < r->model.tree.num_uses; i++) {
        weft_parameter *parameter = r->model.tree.uses[i].parameter;
        parameter->weight.data = placed(r, PLACE_WEIGHTS, weft_tensor_bytes(&parameter->weight));
        parameter->grad = placed(r, PLACE_PARAMETER_GRADIENTS,
                                 weft_tensor_count(&parameter->weight) * sizeof(float));
    }
    for (int i = first; lists && i < weft_parameters_count(parameters); i++) {
        const weft_held held = weft_held_of(weft_parameters_at(parameters, i), r->model.shape.tp);
        weft_cost_held(&out->cost, &r->model.shape, &held);
    }
}

static void empty(weft_rehearsal *r)
{
    weft_stack *const stacks[] = {&r->pass.stash, &r->out, &r->model.memory.scratch,
                                  &r->model.memory.recomputed[0].stack, &r->pass.host};
    for (int i = 0; i < (r->recording ? 4 : 5); i++) { /* a recording keeps what hosts read */
        weft_stack_rewind(stacks[i], 0);
        stacks[i]->peak_bytes = 0;
    }
    r->model.sums.loads.count = 0;
    if (!r->recording)
        weft_notes_clear(r->device);
    (void)weft_notes(r->device, &r->first);
}

/* Attention block by block over context-parallel ranks is listed as over the whole sequence, whose
 * FLOPs the pieces have in all: a price knows its program. */
typedef struct pieces {
    uint64_t keys;  /* of a query: the sequence, or what a window shows */
    bool of_values; /* the last: probabilities by values, or a gradient like it */
    bool of_scores; /* the gradient of scores has come, before those like values */
} pieces;

static weft_operation whole_of(const weft_rehearsal *r, pieces *p, const weft_operation *piece)
{
    const weft_shape *shape = &r->model.shape;
    const weft_context_plan plan = weft_context_plan_of(shape);
    weft_operation o = *piece;
    if (o.flow == WEFT_FLOW_OWN)
        o.flow = WEFT_FLOW_GRADIENT;
    if (piece->phase == WEFT_PHASE_INPUT_GRADIENT)
        p->of_values = p->of_scores;
    else if (piece->phase == WEFT_PHASE_RECOMPUTE && !piece->repeated)
        p->of_values = false;
    else
        p->of_values = !p->of_values;
    p->of_scores = piece->phase == WEFT_PHASE_INPUT_GRADIENT;
    o.m = weft_shape_local_seq(shape);
    *(p->of_values ? &o.k : &o.n) = p->keys;
    o.count = piece->count * (uint64_t)plan.inner;
    return o;
}

static uint64_t keys_of(const weft_rehearsal *r, const place *at)
{
    const weft_model_options *o = &r->model.options;
    const uint64_t seq = r->model.shape.seq, decoder = (uint64_t)at->index - 1;
    const uint64_t most =
        (uint64_t)(o->attention_chunk_size > 0 ? o->attention_chunk_size : o->window_size);
    return decoder < (uint64_t)o->num_layers && most < seq &&
                   weft_model_is_windowed_layer(o, (int64_t)decoder)
               ? most
               : seq;
}

static void list(const weft_rehearsal *r, const place *at, weft_description *out)
{
    size_t count;
    weft_noted *notes = weft_notes(r->device, &count);
    pieces p = {.keys = keys_of(r, at), .of_values = true};
    for (size_t i = r->first; i < count && i < r->end; i++) {
        weft_operation o = notes[i].operation;
        if (notes[i].kind != WEFT_NOTED_OPERATION)
            continue;
        o.deferred = i >= r->second;
        if (o.kind != WEFT_OPERATION_GEMM)
            o.dtype = r->model.shape.dtype;
        if (r->model.shape.cp > 1 && o.fused) {
            o = whole_of(r, &p, &o);
            notes[i].entry = weft_cost_piece(&out->cost, &o);
        } else {
            notes[i].entry = weft_cost_alike(&out->cost, &o);
        }
    }
}

static weft_status forward(weft_rehearsal *r, weft_layer *layer, const place *at)
{
    weft_tensor x = rows_at(r, PLACE_X), y = rows_at(r, PLACE_Y);
    if (at->is_first)
        x = (weft_tensor){0};
    weft_note_enter(r->device, (weft_note_scope){.module = "output"});
    if (at->gives_output)
        WEFT_TRY(weft_pass_stash(&r->pass, y.dtype, y.dims[0], y.dims[1], &y));
    weft_note_enter(r->device, (weft_note_scope){0});
    r->pass.backward = false;
    r->pass.out = r->model.shape.offload ? &r->out : NULL;
    weft_pass_keep(&r->pass);
    const weft_status status = weft_layer_forward(layer, &r->pass, &x, at->is_last ? NULL : &y);
    r->pass.out = NULL;
    return status;
}

static weft_status backward(weft_rehearsal *r, weft_layer *layer, const place *at)
{
    weft_tensor dy = r->model.memory.gradients[0], dx = r->model.memory.gradients[1];
    if (at->is_last)
        dy = (weft_tensor){0};
    weft_note_enter(r->device, (weft_note_scope){.backward = true});
    r->pass.backward = true;
    return weft_layer_backward(layer, &r->pass, &dy, &dx);
}

/* --- a layer that touches device memory ------------------------------------------------------ */

static _Thread_local char fault_text[256]; /* what a fault of this thread means; "": nothing */

static void tell_fault(int signal_number)
{
    if (fault_text[0] == '\0') { /* another thread's */
        signal(signal_number, SIG_DFL);
        return;
    }
    const char *parts[] = {"weft: ", weft_layer_name(weft_layer_innermost()), fault_text};
    char line[512]; /* what a handler may do is little */
    size_t length = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const char *c = parts[i]; *c && length < sizeof line; c++)
            line[length++] = *c;
    (void)!write(STDERR_FILENO, line, length);
    _exit(weft_status_exit_code(WEFT_CONFIG));
}

static weft_status guarded(weft_rehearsal *r, weft_layer *layer, const place *at, bool is_backward)
{
    const struct sigaction tells = {.sa_handler = tell_fault};
    struct sigaction before;
    snprintf(
        fault_text, sizeof fault_text,
        " %s reads or writes device memory on the host, where its rehearsal has none: let a "
        "function on the lane do it (weft_lane_submit), or, where it branches on data, give the "
        "layer a describe\n",
        is_backward ? "backward" : "forward");
    sigaction(SIGSEGV, &tells, &before);
    const weft_status status = (is_backward ? backward : forward)(r, layer, at);
    sigaction(SIGSEGV, &before, NULL);
    fault_text[0] = '\0';
    return status;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The backward in two halves, of a layer that can be split. */
static weft_status run_halves(weft_rehearsal *r, weft_layer *layer, const place *at,
                              weft_description *out)
{
    weft_deferred *d = &r->deferred;
    weft_stack_rewind(&d->stack, 0);
    d->stack.peak_bytes = 0;
    d->num_works = d->next = 0;
    r->pass.defers = true;
    r->pass.listed = at->index;
    const weft_status status = guarded(r, layer, at, true);
    r->pass.defers = false;
    WEFT_TRY(status);
    (void)weft_notes(r->device, &r->second);
    out->splits = true;
    out->deferred_bytes = d->stack.peak_bytes;
    return weft_pass_run_deferred(&r->pass, at->index);
}

/* The scratch of a backward whose parts leave work, which comes behind the turn at the soonest:
 * then more scratch is in use than later, but that of what the last turn leaves comes on top of the
 * next layer's first turn. */
static weft_status run_leaving(weft_rehearsal *r, weft_layer *layer, const place *at,
                               weft_description *out)
{
    weft_tensor dy = r->model.memory.gradients[0], dx = r->model.memory.gradients[1];
    weft_stack *scratch = &r->model.memory.scratch;
    weft_deferred *d = &r->deferred;
    weft_body_part next;
    bool goes_on = true;
    scratch->peak_bytes = scratch->used_bytes;
    out->begun_scratch_bytes = 0;
    weft_deferred_empty(d);
    r->pass.listed = at->index;
    for (int part = 0; goes_on; part++) {
        r->pass.defers = true;
        const weft_status status = weft_part_backward(layer, &r->pass, part, r->lane, &dy, &dx);
        r->pass.defers = false;
        WEFT_TRY(status);
        goes_on = weft_part_at(layer, &r->model, &r->pass, WEFT_WAY_INPUT, part + 1, &next);
        if (goes_on && !weft_body_travels((int)next.lane))
            continue;
        if (goes_on && out->begun_scratch_bytes == 0)
            out->begun_scratch_bytes = scratch->used_bytes;
        if (!goes_on) {
            out->leaving_scratch_bytes = scratch->peak_bytes;
            scratch->peak_bytes = scratch->used_bytes;
        }
        WEFT_TRY(weft_pass_run_left(&r->pass, d->num_works));
    }
    out->left_scratch_bytes = scratch->peak_bytes - scratch->used_bytes;
    return WEFT_OK;
}

/* What a backward in two halves enqueues is listed; a whole one, which a step also has, may take
 * more scratch. */
static weft_status run_backward(weft_rehearsal *r, weft_layer *layer, const place *at,
                                weft_description *out)
{
    if (!r->model.shape.splits_backward || !weft_layer_splits(layer))
        return guarded(r, layer, at, true);
    WEFT_TRY(run_halves(r, layer, at, out));
    (void)weft_notes(r->device, &r->end);
    WEFT_TRY(guarded(r, layer, at, true));
    if (r->recording || r->witness)
        return WEFT_OK;
    const size_t most = r->model.memory.scratch.peak_bytes;
    WEFT_TRY(run_leaving(r, layer, at, out));
    r->model.memory.scratch.peak_bytes = most;
    return WEFT_OK;
}

static weft_status run(weft_rehearsal *r, weft_layer *layer, const place *at, weft_description *out)
{
    weft_layer_cost *cost = &out->cost;
    const weft_stack *scratch = &r->model.memory.scratch;
    empty(r);
    r->second = r->end = SIZE_MAX;
    r->model.coarse = (weft_layer_cost){0};
    r->keeps = out;
    weft_status status = guarded(r, layer, at, false);
    r->keeps = NULL;
    WEFT_TRY(status);
    cost->scratch.own[0] = scratch->peak_bytes;
    if (r->model.shape.training) {
        r->model.memory.scratch.peak_bytes = 0;
        WEFT_TRY(run_backward(r, layer, at, out));
        cost->scratch.own[1] = scratch->peak_bytes;
    }
    cost->scratch_bytes =
        cost->scratch.own[0] > cost->scratch.own[1] ? cost->scratch.own[0] : cost->scratch.own[1];
    cost->host_bytes = r->pass.host.peak_bytes;
    cost->recomputed_bytes = r->model.memory.recomputed[0].stack.peak_bytes;
    list(r, at, out);
    weft_layer_list_inside(layer, &r->model, out->inside);
    weft_cost_add(cost, &r->model.coarse); /* more than the list: coarse */
    return r->witness ? r->witness->see(r->witness->context, layer, r->device) : WEFT_OK;
}

static weft_status register_layer(weft_rehearsal *r, weft_layer *layer, const place *at,
                                  weft_description *out)
{
    weft_model *model = &r->model;
    const int first_use = model->tree.num_uses, first = weft_parameters_count(model->parameters);
    weft_device_stats before, after;
    weft_device_get_stats(r->device, &before);
    const size_t cached = weft_device_memory_use(r->device, WEFT_MEMORY_ACTIVATIONS).bytes_now;
    const bool counts = model->sums.own;
    model->sums.declares = false;
    WEFT_TRY(weft_model_register(model, layer, at->prefix, at->index, -1));
    out->declares_metrics = model->sums.declares;
    weft_device_get_stats(r->device, &after);
    out->cost.table_bytes = after.pinned_bytes_now - before.pinned_bytes_now;
    out->cost.cache_bytes =
        weft_device_memory_use(r->device, WEFT_MEMORY_ACTIVATIONS).bytes_now - cached;
    if (model->sums.own && !counts)
        out->cost.table_bytes -= WEFT_MAX_METRICS * sizeof *model->sums.own;
    place_parameters(r, first_use, first, !weft_layer_describes_itself(layer), out);
    char *states = realloc(r->pass.states, model->tree.states_bytes + 1);
    if (!states)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the state of %s", at->prefix);
    r->pass.states = memset(states, 0, model->tree.states_bytes + 1);
    return WEFT_OK;
}

static weft_status rehearse(weft_rehearsal *r, weft_layer *layer, const place *at,
                            weft_description *out)
{
    const weft_shape *shape = &r->model.shape;
    weft_description_begin(out, shape);
    weft_status status = register_layer(r, layer, at, out);
    if (status != WEFT_OK)
        status = weft_error_context(status, "layer %d (%s)", at->index, weft_layer_kind(layer));
    else if (shape->plain_kernels)
        weft_plain_describe(layer, shape, out);
    else if (weft_layer_describes_itself(layer))
        weft_cost_own(&out->cost, shape, layer);
    else
        status = run(r, layer, at, out);
    if (status != WEFT_OK) {
        weft_description_release(out);
        return status;
    }
    return weft_description_end(out);
}

static place place_listed(const weft_rehearsal *r, int layer)
{
    const int last = r->model.tree.num_layers - 1;
    place at = {.index = layer,
                .gives_output = layer < last,
                .is_first = layer == 0,
                .is_last = layer == last};
    weft_model_layer_prefix(&r->model, layer, at.prefix, sizeof at.prefix);
    return at;
}

static weft_status rehearse_listed(weft_rehearsal *r, int layer, weft_description *out)
{
    const place at = place_listed(r, layer);
    return rehearse(r, r->model.tree.layers[layer], &at, out);
}

/* An earlier layer of Weft's own list that is alike; -1: none. */
static int alike_before(const weft_rehearsal *r, weft_model_function build, int layer)
{
    const weft_model_options *o = &r->model.options;
    if ((build && build != weft_model_build_gpt) || layer == r->model.tree.num_layers - 1)
        return -1;
    for (int i = 1; i < layer; i++)
        if (weft_model_is_moe_layer(o, i - 1) == weft_model_is_moe_layer(o, layer - 1) &&
            weft_model_is_windowed_layer(o, i - 1) == weft_model_is_windowed_layer(o, layer - 1) &&
            weft_model_is_roped_layer(o, i - 1) == weft_model_is_roped_layer(o, layer - 1))
            return i;
    return -1;
}

static weft_status rehearse_list(weft_rehearsal *r, weft_model_function build,
                                 weft_description *all)
{
    for (int l = 0; l < r->model.tree.num_layers; l++) {
        const int alike = alike_before(r, build, l);
        if (alike < 0)
            WEFT_TRY(rehearse_listed(r, l, &all[l]));
        else
            weft_description_share(&all[alike], &all[l]);
    }
    return WEFT_OK;
}

void weft_descriptions_release(weft_description *descriptions, int count)
{
    for (int i = 0; descriptions && i < count; i++)
        weft_description_release(&descriptions[i]);
    free(descriptions);
}

static weft_status rehearse_model(const weft_model_options *options, const void *own_options,
                                  const weft_shape *shape, weft_model_function build,
                                  const weft_witness *witness, weft_description **out,
                                  int *out_count)
{
    weft_rehearsal *r;
    WEFT_TRY(create(options, own_options, shape, witness, NULL, &r));
    weft_status status = weft_model_build(&r->model, build);
    const int count = r->model.tree.num_layers;
    weft_description *all = calloc((size_t)count + 1, sizeof *all);
    if (status == WEFT_OK)
        status = all ? rehearse_list(r, build, all)
                     : WEFT_ERROR(WEFT_MEMORY, "out of memory for %d descriptions", count);
    destroy(r);
    if (status != WEFT_OK) {
        weft_descriptions_release(all, count);
        return status;
    }
    *out = all;
    *out_count = count;
    return WEFT_OK;
}

weft_status weft_rehearse_before(const weft_witness *witness, const weft_model_options *options,
                                 const void *own_options, const weft_shape *asked,
                                 weft_model_function build)
{
    weft_shape shape = *asked;
    weft_description *all;
    int count;
    shape.pp = 1;
    WEFT_TRY(rehearse_model(options, own_options, &shape, build, witness, &all, &count));
    weft_descriptions_release(all, count);
    return WEFT_OK;
}

static weft_status rehearse_alone(const weft_model_options *options, const weft_shape *shape,
                                  weft_layer_function make, weft_description *out)
{
    static const place alone = {.prefix = "layer.", .index = 1};
    weft_rehearsal *r;
    WEFT_TRY(create(options, NULL, shape, NULL, NULL, &r));
    weft_status status = weft_model_add(&r->model, make(options));
    if (status == WEFT_OK)
        status = rehearse(r, r->model.tree.layers[0], &alone, out);
    destroy(r);
    return status;
}

/* --- recording ------------------------------------------------------------------------------- */

/* The products that a layer which describes itself says it has. */
static weft_status note_products(weft_rehearsal *r, const weft_description *d)
{
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        const bool is_gradient = o->phase == WEFT_PHASE_WEIGHT_GRADIENT;
        size_t count;
        if (o->kind != WEFT_OPERATION_GEMM || o->groups > 0)
            continue;
        WEFT_TRY(weft_gemm(
            r->lane,
            &WEFT_ARGS(weft_gemm_args, .m = o->m, .n = o->n, .k = o->k, .transpose_a = is_gradient,
                       .transpose_b = o->phase == WEFT_PHASE_FORWARD, .dtype = o->dtype,
                       .c_dtype = is_gradient ? WEFT_F32 : o->dtype,
                       .a = address_of(r, PLACE_GRADIENTS), .b = address_of(r, PLACE_WEIGHTS),
                       .c = address_of(r, is_gradient ? PLACE_PARAMETER_GRADIENTS : PLACE_Y))));
        weft_noted *notes = weft_notes(r->device, &count);
        notes[count - 1].entry = i;
        r->widest = larger(r->widest,
                           sizeof(float) * larger(larger(o->m * o->k, o->k * o->n), o->m * o->n));
    }
    return WEFT_OK;
}

/* Of what addresses the layer's calls have used. */
static void widen(weft_rehearsal *r, const weft_description *d)
{
    const weft_shape *shape = &r->model.shape;
    const weft_parameters *parameters = r->model.parameters;
    const size_t rows = larger(weft_tensor_bytes(&r->model.memory.normed), r->widest);
    const size_t tokens = shape->seq * shape->batch * sizeof(int32_t);
    size_t most = 0;
    for (int i = 0; i < weft_parameters_count(parameters); i++)
        most = larger(most, sizeof(float) * weft_parameters_at(parameters, i)->count);
    most = larger(most, r->widest);
    const weft_stack *stash = &r->pass.stash, *recomputed = &r->model.memory.recomputed[0].stack;
    const weft_region now[] = {
        {WEFT_REGION_HOT, address_of(r, PLACE_NORMED), rows},
        {WEFT_REGION_HOT, address_of(r, PLACE_GRADIENTS), rows},
        {WEFT_REGION_HOT, address_of(r, PLACE_GRADIENTS + 1), rows},
        {WEFT_REGION_LEFT, address_of(r, PLACE_X), rows},
        {WEFT_REGION_HOT, address_of(r, PLACE_Y), rows},
        {WEFT_REGION_COLD, address_of(r, PLACE_WEIGHTS), most},
        {WEFT_REGION_COLD, address_of(r, PLACE_PARAMETER_GRADIENTS), most},
        {WEFT_REGION_TOKENS, address_of(r, PLACE_TOKENS), tokens},
        {WEFT_REGION_POSITIONS, address_of(r, PLACE_POSITIONS), tokens},
        {WEFT_REGION_LEFT, stash->blocks[0].base, stash->peak_bytes},
        {WEFT_REGION_LEFT, r->out.blocks[0].base, r->out.peak_bytes},
        {WEFT_REGION_HOT, r->model.memory.scratch.blocks[0].base, d->cost.scratch_bytes},
        {WEFT_REGION_HOT, recomputed->blocks[0].base, recomputed->peak_bytes}};
    weft_recording *recording = r->recording;
    recording->num_regions = sizeof now / sizeof *now;
    for (int i = 0; i < recording->num_regions; i++) {
        const size_t before = recording->regions[i].bytes;
        recording->regions[i] = now[i];
        recording->regions[i].bytes = larger(before, now[i].bytes);
    }
}

/* The same layer in another micro-batch than the first, at the same addresses. */
static weft_status record_next(weft_rehearsal *r, weft_layer *layer, const place *at,
                               size_t host_mark)
{
    weft_micro_batch *micro_batch = &r->pass.micro_batch;
    weft_stack_rewind(&r->pass.host, host_mark);
    empty(r);
    micro_batch->overwrite = micro_batch->backward_overwrites = false;
    weft_status status = guarded(r, layer, at, false);
    if (status == WEFT_OK)
        status = guarded(r, layer, at, true);
    micro_batch->overwrite = micro_batch->backward_overwrites = true;
    return status;
}

static weft_status record_layer(weft_rehearsal *r, int index, weft_recorded_layer *out)
{
    weft_layer *layer = r->model.tree.layers[index];
    const size_t host_mark = weft_stack_mark(&r->pass.host);
    const place at = place_listed(r, index);
    (void)weft_notes(r->device, &out->first);
    WEFT_TRY(rehearse(r, layer, &at, &out->description));
    out->count = 1;
    if (weft_layer_describes_itself(layer))
        WEFT_TRY(note_products(r, &out->description));
    (void)weft_notes(r->device, &out->next);
    widen(r, &out->description);
    WEFT_TRY(weft_layer_describes_itself(layer) ? note_products(r, &out->description)
                                                : record_next(r, layer, &at, host_mark));
    (void)weft_notes(r->device, &out->end);
    return WEFT_OK;
}

static weft_status record_list(weft_rehearsal *r, weft_model_function build, weft_recording *out)
{
    size_t count;
    int *recorded = calloc((size_t)r->model.tree.num_layers, sizeof *recorded);
    out->layers = calloc((size_t)r->model.tree.num_layers, sizeof *out->layers);
    weft_status status = recorded && out->layers
                             ? WEFT_OK
                             : WEFT_ERROR(WEFT_MEMORY, "out of memory for a recording");
    for (int l = 0; status == WEFT_OK && l < r->model.tree.num_layers; l++) {
        const int alike = alike_before(r, build, l);
        recorded[l] = alike < 0 ? out->num_layers++ : recorded[alike];
        if (alike < 0)
            status = record_layer(r, l, &out->layers[recorded[l]]);
        else
            out->layers[recorded[l]].count++;
    }
    out->notes = weft_notes(r->device, &count);
    free(recorded);
    return status;
}

weft_status weft_record_model(const weft_model_options *options, const void *own_options,
                              const weft_shape *asked, weft_model_function build,
                              weft_device *device, weft_recording *out)
{
    weft_model_options even = *options;
    weft_shape shape = *asked;
    shape.pp = 1;
    even.moe_router_forced_load = 1;
    *out = (weft_recording){0};
    WEFT_TRY(create(&even, own_options, &shape, NULL, device, &out->rehearsal));
    out->rehearsal->recording = out;
    weft_status status = weft_model_build(&out->rehearsal->model, build);
    if (status == WEFT_OK)
        status = record_list(out->rehearsal, build, out);
    if (status != WEFT_OK)
        weft_recording_release(out);
    return status;
}

void weft_recording_release(weft_recording *recording)
{
    for (int i = 0; recording->layers && i < recording->num_layers; i++)
        weft_description_release(&recording->layers[i].description);
    free(recording->layers);
    if (recording->rehearsal)
        destroy(recording->rehearsal);
    *recording = (weft_recording){0};
}

/* --- remembering ----------------------------------------------------------------------------- */

/* A search asks for one shape again and again, for meshes that differ in dp and pp alone. A thread
 * remembers rehearsals of what options alone describe. */
typedef struct remembered {
    weft_layer_function make;   /* of a layer alone; NULL: the list */
    weft_model_function build;  /* a family's that is known to make that list; NULL: none is */
    weft_model_options options; /* but for its lists, whose values are here, back to back: */
    int64_t *frequencies;
    weft_shape shape;
    weft_description *descriptions;
    int count;
} remembered;
enum { REMEMBERED = 1024 };
static _Thread_local remembered memory[REMEMBERED];

static uint32_t hash(uint32_t h, const void *data, size_t bytes)
{
    const uint32_t *words = data;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        h = (h ^ words[i]) * 16777619u;
    return h;
}

static weft_model_options without_lists(const weft_model_options *options)
{
    weft_model_options out = *options;
    out.moe_layer_freq.values = out.window_attn_skip_freq.values = out.no_rope_freq.values = NULL;
    out.family = NULL;
    return out;
}

enum { NUM_LISTS = 3 };

static const weft_int_list *list_at(const weft_model_options *o, int index)
{
    const weft_int_list *lists[NUM_LISTS] = {&o->moe_layer_freq, &o->window_attn_skip_freq,
                                             &o->no_rope_freq};
    return lists[index];
}

/* Their lengths are compared before. */
static bool has_lists(const remembered *m, const weft_model_options *options)
{
    size_t at = 0;
    for (int i = 0; i < NUM_LISTS; i++) {
        const weft_int_list *list = list_at(options, i);
        if (list->count > 0 &&
            memcmp(m->frequencies + at, list->values, list->count * sizeof *list->values) != 0)
            return false;
        at += list->count;
    }
    return true;
}

/* NULL: no memory. */
static int64_t *copy_lists(const weft_model_options *options)
{
    size_t count = 0, at = 0;
    for (int i = 0; i < NUM_LISTS; i++)
        count += list_at(options, i)->count;
    int64_t *out = malloc((count + 1) * sizeof *out);
    for (int i = 0; out && i < NUM_LISTS; i++) {
        const weft_int_list *list = list_at(options, i);
        if (list->count > 0)
            memcpy(out + at, list->values, list->count * sizeof *out);
        at += list->count;
    }
    return out;
}

static remembered *place_of(weft_layer_function make, const weft_model_options *options,
                            const weft_shape *shape)
{
    const weft_model_options own = without_lists(options);
    uint32_t h = hash(2166136261u, &own, sizeof own);
    h = hash(h, shape, sizeof *shape);
    h = hash(h, &make, sizeof make);
    return &memory[(h ^ h >> 16) % REMEMBERED];
}

static bool is_known(const remembered *m, weft_layer_function make,
                     const weft_model_options *options, const weft_shape *shape)
{
    const weft_model_options own = without_lists(options);
    return m->descriptions && m->make == make && memcmp(&m->shape, shape, sizeof *shape) == 0 &&
           memcmp(&m->options, &own, sizeof own) == 0 && has_lists(m, options);
}

static weft_status copy_all(const weft_description *all, int count, weft_description **out)
{
    weft_description *copies = calloc((size_t)count + 1, sizeof *copies);
    if (!copies)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %d descriptions", count);
    for (int i = 0; i < count; i++)
        weft_description_share(&all[i], &copies[i]);
    *out = copies;
    return WEFT_OK;
}

/* Without memory for it nothing is remembered. */
static void remember(remembered *m, weft_layer_function make, const weft_model_options *options,
                     const weft_shape *shape, const weft_description *all, int count)
{
    weft_descriptions_release(m->descriptions, m->count);
    free(m->frequencies);
    *m = (remembered){
        .make = make, .options = without_lists(options), .shape = *shape, .count = count};
    m->frequencies = copy_lists(options);
    if (!m->frequencies)
        return;
    if (copy_all(all, count, &m->descriptions) != WEFT_OK)
        weft_error_clear();
}

/* Whether the model is the one that the options describe. A family's mostly is. */
static bool is_described(const weft_model_options *options, const void *own_options,
                         weft_model_function build)
{
    weft_other_layer other = {0};
    if (!build || build == weft_model_build_gpt)
        return true;
    if (!options->family)
        return false;
    if (weft_model_find_other(options, own_options, build, &other) != WEFT_OK)
        weft_error_clear();
    return other.index < 0;
}

weft_status weft_rehearse_model(const weft_model_options *options, const void *own_options,
                                const weft_shape *asked, weft_model_function build,
                                weft_description **out, int *out_count)
{
    weft_shape shape = *asked;
    shape.pp = 1;
    remembered *m = place_of(NULL, options, &shape);
    const bool known = is_known(m, NULL, options, &shape);
    const bool sure = known && build && m->build == build && !own_options;
    if (!sure && !is_described(options, own_options, build))
        return rehearse_model(options, own_options, &shape, build, NULL, out, out_count);
    if (known) {
        m->build = build;
        *out_count = m->count;
        return copy_all(m->descriptions, m->count, out);
    }
    WEFT_TRY(rehearse_model(options, own_options, &shape, NULL, NULL, out, out_count));
    remember(m, NULL, options, &shape, *out, *out_count);
    m->build = build;
    return WEFT_OK;
}

weft_status weft_rehearse_alone(const weft_model_options *options, const weft_shape *asked,
                                weft_layer_function make, weft_description *out)
{
    weft_shape shape = *asked;
    shape.pp = 1;
    remembered *m = place_of(make, options, &shape);
    if (is_known(m, make, options, &shape)) {
        weft_description_share(m->descriptions, out);
        return WEFT_OK;
    }
    WEFT_TRY(rehearse_alone(options, &shape, make, out));
    remember(m, make, options, &shape, out, 1);
    return WEFT_OK;
}
