#include "launcher/measuring/own.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_attention(const weft_operation *o)
{
    return strcmp(o->module, WEFT_MODULE_ATTENTION) == 0;
}

/* Whether both are the same work; attention's products of one direction and size are. */
static bool is_same(const weft_operation *a, const weft_operation *b)
{
    if (a->kind != b->kind || a->dtype != b->dtype || strcmp(a->module, b->module) != 0)
        return false;
    if (is_attention(a))
        return (a->phase == WEFT_PHASE_FORWARD) == (b->phase == WEFT_PHASE_FORWARD) &&
               a->flops == b->flops;
    if (a->phase != b->phase)
        return false;
    if (a->kind == WEFT_OPERATION_MEMORY)
        return a->bytes == b->bytes;
    return a->m == b->m && a->n == b->n && a->k == b->k && a->groups == b->groups;
}

static void add(const weft_operation *o, weft_own_operation *list, int *count)
{
    weft_operation one = *o;
    const uint64_t num = o->count ? o->count : 1;
    int i = 0;
    one.count = 1;
    one.flops = o->flops / num;
    one.bytes = o->bytes / num;
    while (i < *count && !is_same(&list[i].operation, &one))
        i++;
    if (i == *count)
        list[(*count)++] = (weft_own_operation){.operation = one, .each = 1};
    list[i].weight += (double)num;
}

weft_status weft_own_list(const weft_own_model *model, weft_arena *arena, weft_own_operation **out,
                          int *out_count)
{
    const weft_outline *outline = model->outline;
    size_t most = 0;
    void *memory;
    for (int l = 0; l < outline->num_layers; l++)
        most += (size_t)outline->layers[l].description.num_operations;
    WEFT_TRY(weft_arena_alloc_array(arena, most ? most : 1, sizeof **out, &memory));
    *out = memory;
    *out_count = 0;
    for (int l = 0; l < outline->num_layers; l++) {
        const weft_description *d = &outline->layers[l].description;
        for (int i = 0; i < d->num_operations; i++) {
            const weft_operation *o = &d->operations[i];
            if (o->repeated) /* it is forward's */
                continue;
            if (o->kind == WEFT_OPERATION_GEMM ? o->flops > 0
                                               : o->kind == WEFT_OPERATION_MEMORY && o->bytes > 0)
                add(o, *out, out_count);
        }
    }
    return WEFT_OK;
}

static double rounded(double us)
{
    char text[32];
    snprintf(text, sizeof text, "%.5g", us);
    return strtod(text, NULL);
}

/* As schedule/cost/cost.c asks for it: one of the products that a launch of several groups has. */
static weft_product product_of(const weft_operation *o)
{
    const uint64_t groups = o->groups ? o->groups : 1;
    const bool by_k = groups > 1 && o->phase == WEFT_PHASE_WEIGHT_GRADIENT;
    const double part = (double)((by_k ? o->k : o->m) + groups - 1) / (double)groups;
    return (weft_product){.kind = weft_dtype_bytes(o->dtype) < 4 ? WEFT_COST_GEMM_BF16
                                                                 : WEFT_COST_GEMM_FP32,
                          .m = by_k ? (double)o->m : floor(part),
                          .n = (double)o->n,
                          .k = by_k ? floor(part) : (double)o->k};
}

static bool has_shape(const weft_product *a, const weft_product *b)
{
    return a->kind == b->kind && a->m == b->m && a->n == b->n && a->k == b->k;
}

/* The mean, by how often they run, of all products of the shape. */
static void fill_mean(const weft_own_operation *list, int count, weft_product *product)
{
    double us = 0, weight = 0;
    for (int i = 0; i < count; i++) {
        const weft_operation *o = &list[i].operation;
        const weft_product own = product_of(o);
        const double groups = o->groups ? (double)o->groups : 1;
        if (o->kind != WEFT_OPERATION_GEMM || is_attention(o) || !(list[i].us > 0) ||
            !has_shape(&own, product))
            continue;
        us += list[i].weight * list[i].us;
        weight += list[i].weight * groups;
    }
    product->us = rounded(us / weight);
}

static weft_status keep_product(const weft_own_operation *list, int count, int at,
                                weft_cluster *cluster)
{
    weft_product product = product_of(&list[at].operation);
    for (int i = 0; i < cluster->num_products; i++)
        if (has_shape(&cluster->products[i], &product))
            return WEFT_OK;
    if (cluster->num_products == WEFT_MAX_PRODUCTS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different products",
                          WEFT_MAX_PRODUCTS);
    fill_mean(list, count, &product);
    cluster->products[cluster->num_products++] = product;
    return WEFT_OK;
}

static weft_status keep_operation(const weft_own_operation *own, weft_phase phase,
                                  weft_cluster *cluster)
{
    const weft_operation *o = &own->operation;
    weft_timed_operation timed = {.phase = phase,
                                  .dtype = o->dtype,
                                  .volume = (double)(is_attention(o) ? o->flops : o->bytes),
                                  .us = rounded(own->us)};
    if (strlen(o->module) >= sizeof timed.module)
        return WEFT_OK;
    if (cluster->num_operations == WEFT_MAX_TIMED_OPERATIONS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different operations",
                          WEFT_MAX_TIMED_OPERATIONS);
    snprintf(timed.module, sizeof timed.module, "%s", o->module);
    cluster->operations[cluster->num_operations++] = timed;
    return WEFT_OK;
}

weft_status weft_own_keep(const weft_own_operation *list, int count, weft_cluster *cluster)
{
    for (int i = 0; i < count; i++) {
        const weft_operation *o = &list[i].operation;
        if (!(list[i].us > 0))
            continue;
        if (o->kind == WEFT_OPERATION_GEMM && !is_attention(o)) {
            WEFT_TRY(keep_product(list, count, i, cluster));
        } else if (is_attention(o) && o->phase != WEFT_PHASE_FORWARD) { /* one kernel, two phases */
            WEFT_TRY(keep_operation(&list[i], WEFT_PHASE_RECOMPUTE, cluster));
            WEFT_TRY(keep_operation(&list[i], WEFT_PHASE_INPUT_GRADIENT, cluster));
        } else {
            WEFT_TRY(keep_operation(&list[i], o->phase, cluster));
        }
    }
    return WEFT_OK;
}
