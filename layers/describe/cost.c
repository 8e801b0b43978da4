/* A layer's description, entry by entry, and its sums. */
#include <weft/describe.h>

#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"

size_t weft_piece_bytes(weft_dtype dtype, size_t d0, size_t d1)
{
    size_t bytes = d0 * d1 * weft_dtype_bytes(dtype);
    return (bytes + WEFT_PIECE_BYTES - 1) / WEFT_PIECE_BYTES * WEFT_PIECE_BYTES;
}

/* The array, with room for one more entry; NULL: no list is made, or memory is short. */
static void *roomier(weft_description *list, void *array, int count, size_t each)
{
    bool full = count == 0 || (count >= 16 && (count & (count - 1)) == 0);
    if (!list || !full)
        return list ? array : NULL;
    void *larger = realloc(array, (count == 0 ? 16 : 2 * (size_t)count) * each);
    list->lacks_memory = list->lacks_memory || !larger;
    return larger;
}

/* --- sums: the one place where they follow from entries -------------------------------------- */

/* 2mnk of each product of a GEMM, as model FLOPs count them. */
static uint64_t model_flops(const weft_operation *o)
{
    return 2 * o->m * o->n * o->k * o->count;
}

static void sum_operation(weft_layer_cost *sums, const weft_operation *o)
{
    bool forward = o->phase == WEFT_PHASE_FORWARD;
    if (o->kind == WEFT_OPERATION_GEMM && o->phase != WEFT_PHASE_RECOMPUTE)
        *(forward ? &sums->forward_flops : &sums->backward_flops) += model_flops(o);
    if (o->kind != WEFT_OPERATION_COLLECTIVE)
        return;
    if (o->axis == WEFT_AXIS_TP)
        *(forward ? &sums->tp_forward_bytes : &sums->tp_backward_bytes) += o->bytes;
    if (o->axis == WEFT_AXIS_EP || o->axis == WEFT_AXIS_ETP)
        *(forward ? &sums->ep_forward_bytes : &sums->ep_backward_bytes) += o->bytes;
}

static void sum_kept(weft_layer_cost *sums, const weft_kept *kept)
{
    sums->activation_bytes += kept->bytes;
}

static void sum_held(weft_layer_cost *sums, const weft_held *held, weft_dtype dtype)
{
    sums->num_params += held->global;
    sums->local_params += held->local;
    sums->param_bytes += held->local * weft_dtype_bytes(dtype);
}

static void sum_scratch(weft_layer_cost *sums)
{
    const struct weft_layer_scratch *s = &sums->scratch;
    uint64_t forward = s->own[0] + s->child[0], backward = s->own[1] + s->child[1];
    sums->scratch_bytes = forward > backward ? forward : backward;
}

bool weft_operation_is_of(const weft_operation *o, weft_task_kind kind)
{
    return o->inner == WEFT_INNER_EXPERTS && o->task == (int)kind;
}

bool weft_operation_is_experts(const weft_operation *o)
{
    return weft_operation_is_of(o, WEFT_TASK_EXPERT) ||
           weft_operation_is_of(o, WEFT_TASK_RECOMPUTE);
}

void weft_cost_add(weft_layer_cost *sum, const weft_layer_cost *other)
{
    sum->num_params += other->num_params;
    sum->local_params += other->local_params;
    sum->param_bytes += other->param_bytes;
    sum->activation_bytes += other->activation_bytes;
    sum->forward_flops += other->forward_flops;
    sum->backward_flops += other->backward_flops;
    sum->tp_forward_bytes += other->tp_forward_bytes;
    sum->tp_backward_bytes += other->tp_backward_bytes;
    sum->ep_forward_bytes += other->ep_forward_bytes;
    sum->ep_backward_bytes += other->ep_backward_bytes;
    sum->host_bytes += other->host_bytes;
    sum->table_bytes += other->table_bytes;
    sum->cache_bytes += other->cache_bytes;
    if (other->recomputed_bytes > sum->recomputed_bytes)
        sum->recomputed_bytes = other->recomputed_bytes;
    if (other->scratch_bytes > sum->scratch_bytes)
        sum->scratch_bytes = other->scratch_bytes;
}

/* --- entries --------------------------------------------------------------------------------- */

void weft_cost_operation(weft_layer_cost *out, const weft_operation *operation)
{
    weft_description *list = out->list;
    if (operation->count == 0)
        return;
    sum_operation(out, operation);
    weft_operation *operations = roomier(list, list ? list->operations : NULL,
                                         list ? list->num_operations : 0, sizeof *operations);
    if (operations) {
        list->operations = operations;
        operations[list->num_operations++] = *operation;
    }
}

static bool is_alike(const weft_operation *a, const weft_operation *b)
{
    return a->kind == b->kind && a->phase == b->phase && a->repeated == b->repeated &&
           a->dtype == b->dtype && a->axis == b->axis && a->collective == b->collective &&
           a->m == b->m && a->n == b->n && a->k == b->k && a->groups == b->groups &&
           a->bytes * b->count == b->bytes * a->count && a->inner == b->inner &&
           a->task == b->task && a->flow == b->flow && a->deferred == b->deferred &&
           (a->module == b->module || strcmp(a->module, b->module) == 0);
}

static weft_operation *find_alike(const weft_description *list, const weft_operation *operation)
{
    for (int i = 0; i < list->num_operations; i++)
        if (is_alike(&list->operations[i], operation))
            return &list->operations[i];
    return NULL;
}

/* Adds it as an entry of its own. */
static int add_entry(weft_layer_cost *out, const weft_operation *operation)
{
    weft_cost_operation(out, operation);
    return out->list->num_operations - 1;
}

int weft_cost_alike(weft_layer_cost *out, const weft_operation *operation)
{
    weft_operation *o = find_alike(out->list, operation);
    if (!o)
        return add_entry(out, operation);
    sum_operation(out, operation);
    o->count += operation->count;
    o->flops += operation->flops;
    o->bytes += operation->bytes;
    return (int)(o - out->list->operations);
}

int weft_cost_piece(weft_layer_cost *out, const weft_operation *operation)
{
    weft_operation *o = find_alike(out->list, operation);
    if (!o)
        return add_entry(out, operation);
    o->flops += operation->flops;
    return (int)(o - out->list->operations);
}

void weft_cost_gemm(weft_layer_cost *out, weft_phase phase, const char *module, weft_dtype dtype,
                    size_t m, size_t n, size_t k, size_t count)
{
    weft_cost_operation(out, &(weft_operation){.kind = WEFT_OPERATION_GEMM,
                                               .phase = phase,
                                               .module = module,
                                               .dtype = dtype,
                                               .m = m,
                                               .n = n,
                                               .k = k,
                                               .count = count,
                                               .flops = 2 * m * n * k * count});
}

void weft_cost_linear(weft_layer_cost *out, const weft_shape *shape, const char *module,
                      size_t rows, size_t in, size_t out_width)
{
    weft_dtype dtype = shape->dtype;
    weft_cost_gemm(out, WEFT_PHASE_FORWARD, module, dtype, rows, out_width, in, 1);
    weft_cost_gemm(out, WEFT_PHASE_WEIGHT_GRADIENT, module, dtype, out_width, in, rows, 1);
    weft_cost_gemm(out, WEFT_PHASE_INPUT_GRADIENT, module, dtype, rows, in, out_width, 1);
}

void weft_cost_memory(weft_layer_cost *out, weft_phase phase, const char *module, size_t bytes,
                      size_t kernels)
{
    weft_cost_operation(out, &(weft_operation){.kind = WEFT_OPERATION_MEMORY,
                                               .phase = phase,
                                               .module = module,
                                               .dtype = out->list ? out->list->dtype : WEFT_F32,
                                               .bytes = bytes,
                                               .count = kernels});
}

void weft_cost_collective(weft_layer_cost *out, weft_phase phase, const char *module,
                          weft_axis axis, weft_collective collective, size_t bytes, size_t count)
{
    weft_cost_operation(out, &(weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                               .phase = phase,
                                               .module = module,
                                               .axis = axis,
                                               .collective = collective,
                                               .bytes = bytes,
                                               .count = count});
}

/* Under sequence parallelism a region's gathered rows are scratch. */
static void take_region(weft_layer_cost *out, const weft_shape *shape, weft_phase phase)
{
    if (shape->sequence_parallel)
        weft_cost_scratch(out, shape, phase, shape->dtype, weft_shape_local_tokens(shape),
                          shape->hidden);
}

static size_t region_bytes(const weft_shape *shape)
{
    return weft_shape_local_tokens(shape) * shape->hidden * weft_dtype_bytes(shape->dtype);
}

void weft_cost_enter(weft_layer_cost *out, const weft_shape *shape, weft_phase phase)
{
    take_region(out, shape, phase);
    if (shape->sequence_parallel && shape->tp > 1)
        weft_cost_collective(out, phase, "enter", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_GATHER,
                             region_bytes(shape), 1);
}

void weft_cost_exit(weft_layer_cost *out, const weft_shape *shape, weft_phase phase)
{
    take_region(out, shape, phase);
    if (shape->tp > 1)
        weft_cost_collective(out, phase, "exit", WEFT_AXIS_TP,
                             shape->sequence_parallel ? WEFT_COLLECTIVE_REDUCE_SCATTER
                                                      : WEFT_COLLECTIVE_ALL_REDUCE,
                             region_bytes(shape), 1);
}

void weft_cost_kept(weft_layer_cost *out, const weft_kept *kept)
{
    weft_description *list = out->list;
    sum_kept(out, kept);
    weft_kept *all =
        roomier(list, list ? list->kept : NULL, list ? list->num_kept : 0, sizeof *all);
    if (all) {
        list->kept = all;
        all[list->num_kept++] = *kept;
    }
}

void weft_cost_stash(weft_layer_cost *out, const char *module, weft_dtype dtype, size_t d0,
                     size_t d1, weft_phase until)
{
    weft_cost_kept(
        out,
        &(weft_kept){.module = module, .bytes = weft_piece_bytes(dtype, d0, d1), .until = until});
}

void weft_cost_host(weft_layer_cost *out, size_t bytes)
{
    out->host_bytes += weft_piece_bytes(WEFT_U8, bytes, 1);
}

void weft_cost_scratch(weft_layer_cost *out, const weft_shape *shape, weft_phase phase,
                       weft_dtype dtype, size_t d0, size_t d1)
{
    int half = phase != WEFT_PHASE_FORWARD;
    if (half == 0 || shape->training)
        out->scratch.own[half] += weft_piece_bytes(dtype, d0, d1);
    sum_scratch(out);
}

void weft_cost_parameter(weft_layer_cost *out, const weft_shape *shape, weft_gradient_group group,
                         size_t global, size_t local)
{
    const weft_held held = {.group = group, .global = global, .local = local};
    weft_cost_held(out, shape, &held);
}

void weft_cost_held(weft_layer_cost *out, const weft_shape *shape, const weft_held *held)
{
    weft_description *list = out->list;
    sum_held(out, held, shape->dtype);
    weft_held *all =
        roomier(list, list ? list->held : NULL, list ? list->num_held : 0, sizeof *all);
    if (all) {
        list->held = all;
        all[list->num_held++] = *held;
    }
}

weft_held weft_held_of(const weft_placed *placed, int tp)
{
    _Static_assert((int)WEFT_SECTION_DENSE == (int)WEFT_GRADIENT_DENSE &&
                       (int)WEFT_SECTION_DENSE_SUM == (int)WEFT_GRADIENT_DENSE_SUM &&
                       (int)WEFT_SECTION_DENSE_SHARED == (int)WEFT_GRADIENT_DENSE_SHARED &&
                       (int)WEFT_SECTION_EMBEDDING == (int)WEFT_GRADIENT_EMBEDDING &&
                       (int)WEFT_SECTION_EXPERT == (int)WEFT_GRADIENT_EXPERT,
                   "sections are gradient groups");
    return (weft_held){.group = (weft_gradient_group)placed->section,
                       .global = weft_placed_global(placed, tp),
                       .local = placed->count,
                       .shared = placed->parameter.shared,
                       .used_forward = placed->spec.used_forward,
                       .experts = placed->experts,
                       .matrices = placed->matrices};
}

void weft_cost_own(weft_layer_cost *out, const weft_shape *shape, const weft_layer *layer)
{
    if (weft_layer_describes_itself(layer))
        weft_layer_table(layer).describe(layer, shape, out);
    else if (out->list)
        out->list->lacks = weft_layer_kind(layer);
}

void weft_cost_inside(weft_layer_cost *out, weft_layer_cost *child)
{
    struct weft_layer_scratch *s = &child->scratch, none = {0};
    if (memcmp(s, &none, sizeof none) == 0) /* a layer of sums */
        s->own[0] = s->own[1] = child->scratch_bytes;
    for (int half = 0; half < 2; half++)
        if (s->own[half] + s->child[half] > out->scratch.child[half])
            out->scratch.child[half] = s->own[half] + s->child[half];
    child->scratch_bytes = 0;
    weft_cost_add(out, child);
    sum_scratch(out);
}

void weft_cost_child(weft_layer_cost *out, const weft_shape *shape, const weft_layer *child)
{
    weft_layer_cost cost = {.list = out->list};
    weft_cost_own(&cost, shape, child);
    weft_cost_inside(out, &cost);
}

/* --- descriptions ---------------------------------------------------------------------------- */

void weft_description_begin(weft_description *d, const weft_shape *shape)
{
    *d = (weft_description){.dtype = shape->dtype, .users = malloc(sizeof *d->users)};
    d->cost.list = d;
    d->lacks_memory = !d->users;
    if (d->users)
        *d->users = 1;
}

weft_status weft_description_end(weft_description *d)
{
    weft_layer_cost sums = {0};
    if (d->lacks) {
        const char *kind = d->lacks;
        weft_description_release(d);
        return WEFT_ERROR(WEFT_CONFIG,
                          "layer (%s) does not describe itself, and is described: inside a layer "
                          "that does, or with plain kernels",
                          kind);
    }
    if (d->lacks_memory) {
        weft_description_release(d);
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a layer's description");
    }
    for (int i = 0; i < d->num_operations; i++)
        sum_operation(&sums, &d->operations[i]);
    for (int i = 0; i < d->num_kept; i++)
        sum_kept(&sums, &d->kept[i]);
    for (int i = 0; i < d->num_held; i++)
        sum_held(&sums, &d->held[i], d->dtype);
    sums.scratch_bytes = d->cost.scratch_bytes;
    sums.scratch = d->cost.scratch;
    sums.host_bytes = d->cost.host_bytes;
    sums.table_bytes = d->cost.table_bytes;
    sums.cache_bytes = d->cost.cache_bytes;
    sums.recomputed_bytes = d->cost.recomputed_bytes;
    d->cost.list = NULL;
    d->coarse = memcmp(&sums, &d->cost, sizeof sums) != 0;
    return WEFT_OK;
}

void weft_description_share(const weft_description *d, weft_description *out)
{
    *out = *d;
    ++*d->users;
}

bool weft_description_has_experts(const weft_description *d)
{
    for (int i = 0; i < d->num_held; i++)
        if (d->held[i].experts > 0)
            return true;
    return false;
}

double weft_description_work(const weft_description *d)
{
    double flops = 0, bytes = 0;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        flops += o->kind == WEFT_OPERATION_GEMM ? (double)o->flops : 0;
        bytes += o->kind == WEFT_OPERATION_MEMORY ? (double)o->bytes : 0;
    }
    if (d->coarse)
        flops = (double)d->cost.forward_flops + (double)d->cost.backward_flops;
    return flops + WEFT_FLOPS_A_BYTE * bytes;
}

bool weft_description_travels(const weft_description *d)
{
    for (int i = 0; i < d->num_operations; i++)
        if (d->operations[i].kind == WEFT_OPERATION_COLLECTIVE &&
            weft_operation_is_of(&d->operations[i], WEFT_TASK_DISPATCH))
            return true;
    return false;
}

void weft_description_release(weft_description *d)
{
    if (d->users && --*d->users == 0) {
        free(d->operations);
        free(d->kept);
        free(d->held);
        free(d->users);
    }
    *d = (weft_description){0};
}
