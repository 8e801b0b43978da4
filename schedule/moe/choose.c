#include <math.h>
#include <stdio.h>

#include "core/cluster/cluster.h"
#include "schedule/moe/choose.h"

enum { MAX_ROWS = WEFT_MOE_MAX_PARTITIONS * WEFT_NUM_REUSES + WEFT_MOE_MAX_PEERS };

static weft_status need(const weft_cluster *cluster, weft_cost_kind kind)
{
    if (weft_cluster_knows(cluster, kind))
        return WEFT_OK;
    return weft_lack_mark(
        WEFT_ERROR(WEFT_CONFIG,
                   "cluster \"%s\": costs.%s is not known, and choosing partitions and memory "
                   "reuse of an MoE layer needs it",
                   cluster->name, weft_cost_text(kind)));
}

/* Fails where the cluster lacks a cost that an allowed strategy needs. */
static weft_status need_all(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            unsigned reuses)
{
    if (!(shape->pace_flops > 0))
        WEFT_TRY(
            need(cluster, shape->element_bytes < 4 ? WEFT_COST_GEMM_BF16 : WEFT_COST_GEMM_FP32));
    const weft_cost_kind lacking =
        weft_cluster_lacks_exchange(cluster, shape->ep, shape->ep_inside);
    if (lacking != WEFT_NUM_COSTS)
        WEFT_TRY(need(cluster, lacking));
    WEFT_TRY(need(cluster, WEFT_COST_COPY));
    const unsigned copying = 1u << WEFT_REUSE_S1 | 1u << WEFT_REUSE_S2 | 1u << WEFT_REUSE_S3;
    if (reuses & copying) {
        WEFT_TRY(need(cluster, WEFT_COST_TO_HOST));
        WEFT_TRY(need(cluster, WEFT_COST_TO_DEVICE));
    }
    return WEFT_OK;
}

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

static weft_status price_us(const weft_moe_costs *costs, const weft_interference *interference,
                            const weft_moe_pipeline *pipeline, weft_arena *arena, double *out_us)
{
    *out_us = 0;
    for (int backward = 0; backward <= 1; backward++) {
        weft_program program;
        double us;
        WEFT_TRY(weft_program_moe(pipeline, backward, arena, &program));
        WEFT_TRY(weft_program_moe_price(&program, costs, interference, NULL, &us));
        *out_us += us;
    }
    return WEFT_OK;
}

typedef struct choosing {
    const weft_cluster *cluster;
    const weft_moe_layer_shape *shape;
    weft_moe_model model;
    const weft_moe_pricer *pricer;
    weft_moe_pipeline pipelines[MAX_ROWS];
    weft_choice_row rows[MAX_ROWS];
    int num_rows;
} choosing;

/* Forward plus backward of one pipeline. */
static weft_status predict(void *context, int index, weft_choice_row *row)
{
    const choosing *c = context;
    const weft_moe_pipeline *pipeline = &c->pipelines[index];
    if (c->model == WEFT_MOE_MODEL_PRICE && c->pricer)
        return c->pricer->us(c->pricer->context, pipeline, &row->us);
    const weft_moe_costs costs = weft_moe_costs_of(c->cluster, c->shape, pipeline);
    const weft_interference beside = weft_moe_interference(c->cluster, c->shape), *alpha = &beside;
    if (c->model != WEFT_MOE_MODEL_PRICE) {
        row->us = weft_moe_phases_of(&costs, alpha, pipeline, false).total_us +
                  weft_moe_phases_of(&costs, alpha, pipeline, true).total_us;
        return WEFT_OK;
    }
    weft_arena arena = {0};
    const weft_status status = price_us(&costs, alpha, pipeline, &arena, &row->us);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    return WEFT_OK;
}

static unsigned quickest(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                         unsigned reuses)
{
    weft_choice_row rows[WEFT_NUM_REUSES];
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        rows[reuse] = (weft_choice_row){
            .us = reuses >> reuse & 1 ? weft_moe_quick_us(cluster, shape, (weft_reuse)reuse)
                                      : (double)NAN};
    return 1u << weft_choose_priced(rows, WEFT_NUM_REUSES);
}

int weft_moe_list_peers(const weft_moe_layer_shape *shape,
                        weft_moe_pipeline out[WEFT_MOE_MAX_PEERS])
{
    const int groups[WEFT_MOE_MAX_PEERS] = {1, shape->ep_inside};
    int count = 0;
    for (int i = 0; i < WEFT_MOE_MAX_PEERS; i++) {
        const int group = groups[i];
        if (group < 1 + i || group >= shape->ep || shape->ep % group != 0)
            continue;
        out[count] = weft_moe_by_peers(shape->ep, group);
        count += out[count].num_partitions <= WEFT_MOE_MAX_PARTITIONS;
    }
    return count;
}

weft_choice_row weft_moe_row(const weft_moe_pipeline *pipeline)
{
    weft_choice_row row = {.weight = pipeline->num_partitions, .us = NAN};
    snprintf(row.name, sizeof row.name, "%s", weft_moe_pipeline_text(pipeline).text);
    return row;
}

static void add_row(choosing *c, weft_moe_pipeline pipeline)
{
    c->rows[c->num_rows] = weft_moe_row(&pipeline);
    c->pipelines[c->num_rows++] = pipeline;
}

weft_status weft_choose_moe(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            weft_moe_model model, const int *partitions, int num_partitions,
                            unsigned allowed_reuses, bool by_peers, const weft_moe_pricer *pricer,
                            weft_moe_choice *out)
{
    static const char *const units[] = {[WEFT_MOE_MODEL_QUICK] = " by equation 10 and phases",
                                        [WEFT_MOE_MODEL_PHASES] = " by phases",
                                        [WEFT_MOE_MODEL_PRICE] = " by priced programs"};
    const unsigned all = (1u << WEFT_NUM_REUSES) - 1;
    const bool by_plan = model == WEFT_MOE_MODEL_PRICE && pricer;
    unsigned reuses = allowed_reuses ? allowed_reuses : all;
    if (num_partitions < 1 || num_partitions > WEFT_MOE_MAX_PARTITIONS || reuses & ~all)
        return WEFT_ERROR(WEFT_CONFIG,
                          "nothing to choose from: %d numbers of partitions, "
                          "strategies %#x",
                          num_partitions, allowed_reuses);
    WEFT_TRY(need_all(cluster, shape, reuses));
    if (model == WEFT_MOE_MODEL_QUICK)
        reuses = quickest(cluster, shape, reuses);

    choosing c = {.cluster = cluster, .shape = shape, .model = model, .pricer = pricer};
    for (int i = 0; i < num_partitions; i++) {
        if (partitions[i] < 1 || partitions[i] > WEFT_MOE_MAX_PARTITIONS)
            return WEFT_ERROR(WEFT_CONFIG, "%d partitions of an MoE layer: 1 to %d are possible",
                              partitions[i], WEFT_MOE_MAX_PARTITIONS);
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
            if (reuses >> reuse & 1)
                add_row(&c, (weft_moe_pipeline){.num_partitions = partitions[i],
                                                .reuse = (weft_reuse)reuse,
                                                .by_experts =
                                                    shape->cut_experts > 0 && partitions[i] > 1});
    }
    weft_moe_pipeline peers[WEFT_MOE_MAX_PEERS];
    const int num_peers = weft_moe_list_peers(shape, peers);
    const bool weighs = by_peers && model == WEFT_MOE_MODEL_PRICE && reuses >> WEFT_REUSE_NONE & 1;
    for (int i = 0; i < num_peers && weighs; i++)
        add_row(&c, peers[i]);
    int best;
    WEFT_TRY(weft_choose(c.rows, c.num_rows, predict, &c,
                         by_plan ? " by the plan's price" : units[model], &best, out->reason));
    out->pipeline = c.pipelines[best];
    out->us = c.rows[best].us;
    return WEFT_OK;
}
