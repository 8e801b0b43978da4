#include "launcher/measuring/own.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
                          .k = by_k ? floor(part) : (double)o->k,
                          .us = 0};
}

static weft_timed_operation timed_of(const weft_operation *o)
{
    weft_timed_operation timed = {
        .phase = o->phase,
        .dtype = o->dtype,
        .volume = (double)(o->kind == WEFT_OPERATION_GEMM ? o->flops : o->bytes)};
    snprintf(timed.module, sizeof timed.module, "%s", o->module);
    return timed;
}

/* Whether both have one entry in the file. */
static bool is_same(const weft_own_operation *a, const weft_own_operation *b)
{
    if (a->by_volume != b->by_volume)
        return false;
    if (a->by_volume) {
        const weft_timed_operation x = timed_of(&a->operation), y = timed_of(&b->operation);
        return x.phase == y.phase && x.dtype == y.dtype && x.volume == y.volume &&
               strcmp(x.module, y.module) == 0;
    }
    const weft_product x = product_of(&a->operation), y = product_of(&b->operation);
    return x.kind == y.kind && x.m == y.m && x.n == y.n && x.k == y.k;
}

/* The mean of all that are the same, by how often they run; those before `at` have had it. */
static double mean_us(const weft_own_operation *list, int count, int at)
{
    double us = 0, weight = 0;
    for (int i = 0; i < count; i++) {
        const double groups = list[i].operation.groups ? (double)list[i].operation.groups : 1;
        if (!(list[i].us > 0) || !is_same(&list[i], &list[at]))
            continue;
        if (i < at)
            return 0;
        us += list[i].weight * list[i].us;
        weight += list[i].weight * (list[i].by_volume ? 1 : groups);
    }
    return weight > 0 ? rounded(us / weight) : 0;
}

static weft_status keep_product(const weft_operation *o, double us, weft_cluster *cluster)
{
    if (cluster->num_products == WEFT_MAX_PRODUCTS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different products",
                          WEFT_MAX_PRODUCTS);
    weft_product *product = &cluster->products[cluster->num_products++];
    *product = product_of(o);
    product->us = us;
    return WEFT_OK;
}

static weft_status keep_operation(const weft_operation *o, double us, weft_cluster *cluster)
{
    if (strlen(o->module) >= sizeof cluster->operations[0].module)
        return WEFT_OK;
    if (cluster->num_operations == WEFT_MAX_TIMED_OPERATIONS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different operations",
                          WEFT_MAX_TIMED_OPERATIONS);
    weft_timed_operation *timed = &cluster->operations[cluster->num_operations++];
    *timed = timed_of(o);
    timed->us = us;
    return WEFT_OK;
}

weft_status weft_own_keep(const weft_own_operation *list, int count, weft_cluster *cluster)
{
    for (int i = 0; i < count; i++) {
        const double us = mean_us(list, count, i);
        if (us > 0 && list[i].by_volume)
            WEFT_TRY(keep_operation(&list[i].operation, us, cluster));
        else if (us > 0)
            WEFT_TRY(keep_product(&list[i].operation, us, cluster));
    }
    return WEFT_OK;
}
