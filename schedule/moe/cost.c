#include <math.h>

#include "schedule/moe/layer.h"
#include "schedule/price/price.h"

/* The share of fc1's `gates` matrices in an expert's forward; fc2 has one. */
static double middle_share(const weft_moe_layer_shape *shape)
{
    return shape->gates / (shape->gates + 1.0);
}

static double gemm_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape, double flops)
{
    if (shape->pace_flops > 0)
        return 1e6 * flops / shape->pace_flops;
    return weft_cluster_us(
        cluster, shape->element_bytes > 2 ? WEFT_COST_GEMM_FP32 : WEFT_COST_GEMM_BF16, flops);
}

double weft_moe_exchange_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            double bytes)
{
    return shape->exchange_factor *
           weft_cluster_exchange_us(cluster, bytes, shape->ep, shape->ep_inside);
}

weft_moe_peer_shares weft_moe_peer_shares_of(int ep, int near, int group, int ahead)
{
    weft_moe_peer_shares most = {0, 0};
    const int block = near < 1 ? 1 : near < ep ? near : ep, num_groups = ep / group;
    for (int first = 0; first < ep; first += block) {
        int inside = 0, between = 0; /* numbers of equal messages */
        for (int rank = first; rank < first + block && rank < ep; rank++) {
            const int to = (rank / group + ahead) % num_groups * group;
            for (int peer = to; peer < to + group; peer++) {
                between += peer / block != rank / block;
                inside += peer / block == rank / block && peer != rank;
            }
        }
        most.inside = fmax(most.inside, (double)inside / block / group);
        most.between = fmax(most.between, (double)between / block / group);
    }
    return most;
}

/* A curve's volume is what a rank sends while all ranks of the node send, so the mean over the
 * node's ranks is looked up. */
static double by_peer_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape, int group,
                         int ahead, double bytes)
{
    const weft_moe_peer_shares share =
        weft_moe_peer_shares_of(shape->ep, shape->ep_inside, group, ahead);
    const double between =
        share.between > 0 ? weft_cluster_us(cluster, WEFT_COST_ALL_TO_ALL, bytes * share.between)
                          : 0;
    const double inside = share.inside > 0 ? weft_cluster_us(cluster, WEFT_COST_ALL_TO_ALL_INSIDE,
                                                             bytes * share.inside)
                                           : 0;
    return fmax(between, inside);
}

void weft_moe_even_shares(const weft_moe_pipeline *pipeline, int num_experts,
                          double out[WEFT_MOE_MAX_PARTITIONS])
{
    const int n = pipeline->num_partitions;
    for (int p = 0; p < n && pipeline->by_experts && num_experts > 0; p++) {
        int first, end;
        weft_moe_run_of(num_experts, n, p, &first, &end);
        out[p] = (double)n * (end - first) / num_experts;
    }
}

weft_interference weft_moe_interference(const weft_cluster *cluster,
                                        const weft_moe_layer_shape *shape)
{
    return shape->pace_flops > 0 ? weft_interference_paced(&cluster->interference, WEFT_WORK_COMP)
                                 : cluster->interference;
}

weft_moe_costs weft_moe_costs_of(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                                 const weft_moe_pipeline *pipeline)
{
    const int group = pipeline->peer_group;
    const double rows = shape->rows / pipeline->num_partitions;
    const double input_bytes = rows * shape->hidden * shape->element_bytes; /* T_DI, T_DO */
    const double middle_bytes = rows * shape->ffn * shape->gates * shape->element_bytes;
    const double forward_flops = 2 * rows * shape->hidden * shape->ffn * (shape->gates + 1);
    const double exchange_us = group > 0 ? 0 : weft_moe_exchange_us(cluster, shape, input_bytes);
    weft_moe_costs costs = {
        .permute_us = weft_cluster_us(cluster, WEFT_COST_COPY, input_bytes),
        .dispatch_us = exchange_us,
        .combine_us = exchange_us,
        .expert_us = gemm_us(cluster, shape, forward_flops),
        .expert_backward_us = gemm_us(cluster, shape, 2 * forward_flops),
        .recompute_us = gemm_us(cluster, shape, forward_flops * middle_share(shape)),
        .input_to_host_us = weft_cluster_us(cluster, WEFT_COST_TO_HOST, input_bytes),
        .middle_to_host_us = weft_cluster_us(cluster, WEFT_COST_TO_HOST, middle_bytes),
        .input_to_device_us = weft_cluster_us(cluster, WEFT_COST_TO_DEVICE, input_bytes),
        .middle_to_device_us = weft_cluster_us(cluster, WEFT_COST_TO_DEVICE, middle_bytes),
        .counts_us =
            weft_cluster_exchange_us(cluster, 8.0 * shape->ep, shape->ep, shape->ep_inside),
    };
    for (int p = 0; group > 0 && p < pipeline->num_partitions; p++)
        costs.by_peer_us[p] = by_peer_us(cluster, shape, group, p, input_bytes);
    weft_moe_even_shares(pipeline, shape->cut_experts, costs.shares);
    return costs;
}

/* Microseconds of a task for a partition of an n-th of the rows. */
static double partition_us(const weft_moe_costs *costs, const weft_task *task)
{
    const double by_peer_us = task->peer >= 0 ? costs->by_peer_us[task->peer] : 0;
    const bool gradient = task->flow == WEFT_FLOW_GRADIENT, input = task->flow == WEFT_FLOW_INPUT;
    switch (task->kind) {
    case WEFT_TASK_PERMUTE:
        return costs->permute_us;
    case WEFT_TASK_DISPATCH:
        return costs->dispatch_us + by_peer_us;
    case WEFT_TASK_EXPERT:
        return gradient ? costs->expert_backward_us : costs->expert_us;
    case WEFT_TASK_COMBINE:
        return costs->combine_us + by_peer_us;
    case WEFT_TASK_OFFLOAD:
        return input ? costs->input_to_host_us : costs->middle_to_host_us;
    case WEFT_TASK_PREFETCH:
        return input ? costs->input_to_device_us : costs->middle_to_device_us;
    case WEFT_TASK_RECOMPUTE:
        return costs->recompute_us;
    default:
        return 0; /* the task belongs to no layer */
    }
}

double weft_moe_task_us(const weft_moe_costs *costs, const weft_task *task)
{
    if (task->kind == WEFT_TASK_COUNTS)
        return costs->counts_us;
    const double share = task->part >= 0 ? costs->shares[task->part] : 0;
    return partition_us(costs, task) * (share > 0 ? share : 1);
}

static double cost_of(const void *context, int stage, const weft_task *task)
{
    (void)stage;
    return weft_moe_task_us(context, task);
}

weft_status weft_program_moe_price(const weft_program *program, const weft_moe_costs *costs,
                                   const weft_interference *interference, weft_trace *trace,
                                   double *out_us)
{
    return weft_program_us(
        program,
        &(weft_pricing){
            .cost = cost_of, .context = costs, .interference = interference, .trace = trace},
        out_us);
}
