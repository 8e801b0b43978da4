#include "schedule/moe/choose.h"

static double max(double a, double b)
{
    return a > b ? a : b;
}

/* Table II for experts of any shape: GEMMs as large as the first linear layer, all-to-alls, and
 * copies as large as T_DI between device and host. */
typedef struct amounts {
    double gemms, exchanges, copies;
} amounts;

static amounts amounts_of(const weft_moe_layer_shape *shape, weft_reuse reuse, bool backward)
{
    const bool reuses = reuse != WEFT_REUSE_NONE;
    const double forward_gemms = 1 + shape->gates;                   /* up and gates; down */
    const double middle = shape->gates * shape->ffn / shape->hidden; /* T_M by T_DI */
    amounts q = {.gemms = forward_gemms, .exchanges = 2};
    if (reuses && weft_reuse_offloads_input(reuse))
        q.copies += 1;
    if (reuses && weft_reuse_offloads_middle(reuse))
        q.copies += middle;
    if (!backward)
        return q;
    q.gemms *= 2;
    if (reuses && !weft_reuse_offloads_middle(reuse))
        q.gemms += shape->gates;
    if (reuses && !weft_reuse_offloads_input(reuse))
        q.exchanges += 1;
    return q;
}

static double gemm_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape)
{
    const double flops = 2 * shape->rows * shape->hidden * shape->ffn;
    if (shape->pace_flops > 0)
        return flops / shape->pace_flops * 1e6;
    return weft_cluster_us(
        cluster, shape->element_bytes < 4 ? WEFT_COST_GEMM_BF16 : WEFT_COST_GEMM_FP32, flops);
}

double weft_moe_quick_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                         weft_reuse reuse)
{
    const double bytes = shape->rows * shape->hidden * shape->element_bytes;
    const double gemm = gemm_us(cluster, shape);
    const double exchange = weft_moe_exchange_us(cluster, shape, bytes);
    const weft_interference beside = weft_moe_interference(cluster, shape), *i = &beside;
    double us = 0;
    for (int backward = 0; backward <= 1; backward++) {
        const amounts q = amounts_of(shape, reuse, backward);
        const bool copies = q.copies > 0;
        const double sigma = i->alpha[WEFT_WORK_COMP][copies ? WEFT_WORK_ALL : WEFT_WORK_COMM];
        const double mu = i->alpha[WEFT_WORK_COMM][copies ? WEFT_WORK_ALL : WEFT_WORK_COMP];
        const double eta = i->alpha[WEFT_WORK_MEM][WEFT_WORK_ALL];
        const double copy =
            copies ? weft_cluster_us(cluster, backward ? WEFT_COST_TO_DEVICE : WEFT_COST_TO_HOST,
                                     bytes)
                   : 0;
        us += max(q.gemms * gemm / sigma, max(q.exchanges * exchange / mu, q.copies * copy / eta));
    }
    return us;
}
