#include "launcher/planning/pass_price.h"

#include <math.h>
#include <string.h>

#include "launcher/planning/software.h"
#include "launcher/planning/tensor_price.h"
#include "schedule/context.h"
#include "schedule/cost/cost.h"
#include "schedule/exchange/exchange.h"
#include "schedule/operands.h"
#include "schedule/pair.h"
#include "schedule/price/price.h"

/* --- programs inside layers ------------------------------------------------------------------ */

#define ROUNDING 1e-9 /* of sums over a program's tasks */

const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow)
{
    static const weft_task_time none;
    for (int i = 0; i < costs->num_rows; i++)
        if (costs->rows[i].kind == kind && costs->rows[i].flow == flow)
            return &costs->rows[i].time;
    return &none;
}

/* A block of the rank's own counts among the others: weft_context_share shares it out. */
static int summed_flow(int flow)
{
    return flow == WEFT_FLOW_OWN ? WEFT_FLOW_GRADIENT : flow;
}

void weft_inner_add(weft_inner_costs *costs, const weft_operation *o, const weft_estimate *estimate)
{
    const int flow = summed_flow(o->flow);
    int i = 0;
    while (i < costs->num_rows && !(costs->rows[i].kind == o->task && costs->rows[i].flow == flow))
        i++;
    if (i == costs->num_rows)
        costs->rows[costs->num_rows++] = (weft_inner_row){.kind = o->task, .flow = flow};
    costs->rows[i].time.us += estimate->us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        costs->rows[i].time.link_us[l] += estimate->links[l].us;
}

static bool takes_time(const weft_task *task)
{
    return task->kind != WEFT_TASK_SUM || weft_task_slot(task, WEFT_OPERAND_FROM) >= 0;
}

static weft_task_time scaled(const weft_task_time *time, double by)
{
    weft_task_time out = {.us = time->us * by};
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out.link_us[l] = time->link_us[l] * by;
    return out;
}

/* What a kind's tasks have in all, in tasks. */
static double shares_of(const weft_program *program, const weft_inner_row *row)
{
    double sum = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind == row->kind && summed_flow(task->flow) == row->flow && takes_time(task))
            sum += weft_context_share_of(program, task);
    }
    return sum;
}

/* Of all that backward attends, an own block's parts take their shares. */
void weft_context_share(weft_inner_costs *costs, const weft_program *program)
{
    for (int i = 0; i < costs->num_rows; i++) {
        const double shares = shares_of(program, &costs->rows[i]);
        if (shares > 0)
            costs->rows[i].time = scaled(&costs->rows[i].time, 1 / shares);
    }
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->flow == WEFT_FLOW_OWN)
            costs->own[task->part > 0] =
                scaled(weft_inner_time(costs, task->kind, WEFT_FLOW_GRADIENT),
                       weft_context_share_of(program, task));
    }
}

const weft_task_time *weft_context_task_time(const weft_inner_costs *costs, const weft_task *task)
{
    if (task->flow == WEFT_FLOW_OWN)
        return &costs->own[task->part > 0];
    return weft_inner_time(costs, takes_time(task) ? (int)task->kind : -1, task->flow);
}

static double block_us(const void *context, int stage, const weft_task *task)
{
    (void)stage;
    return weft_context_task_time(context, task)->us;
}

static void block_links(const void *context, int stage, const weft_task *task,
                        double out_us[WEFT_MAX_LINKS])
{
    (void)stage;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out_us[l] = weft_context_task_time(context, task)->link_us[l];
}

/* Prices one direction, whose times have not been shared out: how long the compute lane is busy,
 * beside what slows it, and how long it waits. Errors: those of weft_program_context and
 * weft_program_price. */
static weft_status context_price(const weft_context_plan *plan, bool backward,
                                 weft_inner_costs *costs, const weft_interference *interference,
                                 double *computed_us, double *exposed_us)
{
    weft_arena arena = {0};
    weft_program program;
    weft_price price = {.makespan_us = 0};
    weft_status status = weft_program_context(plan, backward, &arena, &program);
    if (status == WEFT_OK) {
        weft_context_share(costs, &program);
        status = weft_program_price(&program, 1,
                                    &(weft_pricing){.cost = block_us,
                                                    .links = block_links,
                                                    .context = costs,
                                                    .interference = interference},
                                    &arena, &price);
    }
    *computed_us = status == WEFT_OK ? price.busy_us[0] : 0;
    weft_arena_release(&arena);
    WEFT_TRY(status);
    *exposed_us = price.makespan_us - *computed_us;
    if (*exposed_us < ROUNDING * price.makespan_us)
        *exposed_us = 0;
    return WEFT_OK;
}

double weft_pass_us(const weft_pass_time *time)
{
    return time->compute_us + time->tensor_us + time->expert_us + time->context_us + time->data_us +
           time->host_us;
}

static void add_times(weft_pass_time *sum, const weft_pass_time *other, double times)
{
    sum->compute_us += times * other->compute_us;
    sum->memory_us += times * other->memory_us;
    sum->tensor_us += times * other->tensor_us;
    sum->expert_us += times * other->expert_us;
    sum->context_us += times * other->context_us;
    sum->data_us += times * other->data_us;
    sum->host_us += times * other->host_us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        sum->link_us[l] += times * other->link_us[l];
    sum->num_issued += times * other->num_issued;
}

void weft_pass_time_add(weft_pass_time *sum, const weft_pass_time *other)
{
    add_times(sum, other, 1);
}

void weft_pass_time_subtract(weft_pass_time *sum, const weft_pass_time *other)
{
    add_times(sum, other, -1);
}

void weft_pass_issue(weft_pass_time *time)
{
    const double issue_us = weft_software_rule_at(WEFT_RULE_ISSUE_US)->values[WEFT_SOFTWARE_PLAIN];
    time->compute_us += fmax(0, issue_us * time->num_issued - weft_pass_us(time));
}

typedef struct pricing {
    const weft_site *site;
    const weft_outline *outline;
    const weft_outline_layer *layer;
    bool repeats;   /* its forward alone, once more: the counts are known */
    double gemm_us; /* of the last product */
    bool chooses;   /* selective recomputation is the software's choice, of these products */
    weft_software_products products;
    bool has_program[WEFT_NUM_INNERS]; /* of this layer; else its operations are all in a row */
    weft_inner_costs costs[WEFT_NUM_INNERS][WEFT_NUM_HALVES];
    weft_tensor_costs tensors;
    weft_pass_price *out;
} pricing;

static double *place_of(weft_pass_time *time, const weft_operation *op)
{
    if (op->kind != WEFT_OPERATION_COLLECTIVE)
        return &time->compute_us;
    return op->axis == WEFT_AXIS_EP || op->axis == WEFT_AXIS_ETP ? &time->expert_us
           : op->axis == WEFT_AXIS_CP                            ? &time->context_us
                                                                 : &time->tensor_us;
}

/* With a pace of the experts' alone nothing of theirs is computed: their FLOPs take their time, and
 * all else none. */
static weft_status price_operation(const weft_site *site, const weft_operation *op,
                                   weft_estimate *out)
{
    weft_site paced = *site;
    if (site->experts && weft_operation_is_experts(op)) {
        paced.cluster = site->experts;
        if (op->kind == WEFT_OPERATION_MEMORY) {
            *out = (weft_estimate){0};
            return WEFT_OK;
        }
    }
    return weft_operation_us(&paced, op, out);
}

/* Of the plain all-to-all's time, what rows of tensor-sharded experts take in the form that they
 * travel in: from the cluster's curves, or those that follow from its figures. */
static double form_share(const pricing *p, const weft_operation *op)
{
    const weft_shape *shape = &p->outline->shape;
    const weft_exchange_form form = (weft_exchange_form)p->site->exchange;
    const int chunks = p->site->exchange_chunks > 0 ? p->site->exchange_chunks : 1;
    const weft_group *ep = &p->site->groups[WEFT_AXIS_EP];
    weft_cluster made;
    const weft_cluster *cluster = p->site->curves ? p->site->curves : &made;
    weft_exchange_shape exchange = {.bytes =
                                        (double)op->bytes / (double)(op->count ? op->count : 1),
                                    .t = shape->etp,
                                    .e = shape->ep,
                                    .e_near = ep->near};
    if (!p->site->curves) {
        made = *p->site->cluster;
        weft_cost_complete(&made);
    }
    const double plain = weft_exchange_us(cluster, &exchange, WEFT_EXCHANGE_BASELINE, 1);
    return plain > 0 ? weft_exchange_us(cluster, &exchange, form, chunks) / plain : 1;
}

static bool is_sharded_exchange(const pricing *p, const weft_operation *op)
{
    return op->kind == WEFT_OPERATION_COLLECTIVE && op->axis == WEFT_AXIS_EP &&
           p->outline->shape.etp > 1 && p->site->exchange != WEFT_EXCHANGE_BASELINE &&
           (weft_operation_is_of(op, WEFT_TASK_DISPATCH) ||
            weft_operation_is_of(op, WEFT_TASK_COMBINE));
}

static void scale(weft_estimate *estimate, double share)
{
    estimate->us *= share;
    estimate->memory_us *= share;
    for (int l = 0; l < WEFT_NUM_LINKS; l++) {
        estimate->links[l].us *= share;
        estimate->links[l].bytes *= share;
    }
}

/* An uneven load: the fullest rank's link carries what comes to it and goes home from it, beside
 * what the other ranks of its node carry, which have the mean of the rest. */
static weft_operation at_load(const pricing *p, const weft_operation *op)
{
    const double load = p->outline->shape.moe_load;
    const weft_group *ep = &p->site->groups[WEFT_AXIS_EP];
    weft_operation out = *op;
    const bool goes = weft_operation_is_of(op, WEFT_TASK_DISPATCH);
    if (op->kind != WEFT_OPERATION_COLLECTIVE || op->axis != WEFT_AXIS_EP ||
        (!goes && !weft_operation_is_of(op, WEFT_TASK_COMBINE)))
        return out;
    if (p->site->exchanged > 0)
        out.bytes = (uint64_t)((double)op->bytes * p->site->exchanged + 0.5);
    if (!(load > 1))
        return out;
    const double others = (ep->size - load) / (ep->size - 1), near = ep->near;
    const double shared = ep->near < ep->size ? (load + (near - 1) * others) / near : load;
    out.bytes = (uint64_t)((double)out.bytes * shared / (goes ? 1 : load) + 0.5);
    return out;
}

/* Before NCCL 2.12, which sends along rails, all-to-alls beyond a node took longer. */
static bool is_plain_exchange(const pricing *p, const weft_operation *op)
{
    const weft_group *ep = &p->site->groups[WEFT_AXIS_EP];
    return p->outline->shape.plain_kernels && op->kind == WEFT_OPERATION_COLLECTIVE &&
           op->axis == WEFT_AXIS_EP && ep->near < ep->size;
}

/* A GPU's library carries a collective on multiprocessors, which products lack as long. */
double weft_pass_taken_share(const weft_cluster *cluster)
{
    const double all = weft_cluster_hardware(cluster, cluster->num_groups > 0 ? 0 : -1)
                           ->figures[WEFT_FIGURE_MULTIPROCESSORS];
    const double taken = weft_gpu_fact_at(WEFT_GPU_COLLECTIVE_BLOCKS)->value;
    return all > taken ? taken / all : 0;
}

bool weft_pass_is_slowed(const weft_site *site)
{
    return weft_pass_taken_share(site->cluster) > 0 && !site->groups[WEFT_AXIS_DP_CP].direct;
}

/* What a collective adds to the product beside it. */
static double beside_us(const pricing *p, double us)
{
    const double taken = weft_pass_taken_share(p->site->cluster);
    return fmax(0, us - p->gemm_us) + fmin(us, p->gemm_us) * taken;
}

/* Operations are listed as they run. */
static void place_experts(weft_pass_experts *out, const weft_operation *op, double us)
{
    const bool goes =
        weft_operation_is_of(op, WEFT_TASK_PERMUTE) || weft_operation_is_of(op, WEFT_TASK_DISPATCH);
    if (weft_operation_is_experts(op))
        out->experts_us += us;
    else if (out->experts_us == 0)
        *(goes ? &out->between_us : &out->before_us) += us;
}

/* What backward makes again of a forward's operation. */
static void add_again(const pricing *p, const weft_operation *op, const weft_estimate *estimate)
{
    weft_pass_time *backward = &p->out->backward;
    const double share = weft_software_again(p->site, &p->products, op);
    backward->compute_us += share * estimate->us;
    backward->memory_us += share * estimate->memory_us;
    backward->num_issued += ceil(share) * weft_software_launches(p->site, op);
}

static const weft_operation *forward_product(const weft_description *d, const char *module)
{
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        if (o->kind == WEFT_OPERATION_GEMM && o->phase == WEFT_PHASE_FORWARD &&
            strcmp(o->module, module) == 0)
            return o;
    }
    return NULL;
}

static void find_products(pricing *p)
{
    const weft_description *d = &p->layer->description;
    const weft_operation *qkv = forward_product(d, "linear_qkv"),
                         *proj = forward_product(d, "linear_proj"),
                         *up = forward_product(d, "linear_fc1"),
                         *down = forward_product(d, "linear_fc2");
    p->chooses = p->outline->shape.recompute != 0 && weft_software_chooses(p->site->software);
    if (qkv && proj)
        p->products.keys = ((double)qkv->n - (double)proj->k) / 2 / (double)qkv->n;
    if (up && down)
        p->products.gates = (double)up->n / (double)down->k;
}

static weft_status add_operation(pricing *p, const weft_operation *described)
{
    weft_operation loaded = at_load(p, described), *op = &loaded;
    const bool backward = op->phase != WEFT_PHASE_FORWARD;
    const int half = op->repeated ? WEFT_HALF_AGAIN
                     : backward   ? WEFT_HALF_BACKWARD
                                  : WEFT_HALF_FORWARD;
    if (op->repeated)
        op->phase = WEFT_PHASE_FORWARD;
    weft_pass_time *time = backward ? &p->out->backward : &p->out->forward;
    weft_estimate estimate;
    WEFT_TRY(price_operation(p->site, op, &estimate));
    if (is_sharded_exchange(p, op))
        scale(&estimate, form_share(p, op));
    if (is_plain_exchange(p, op))
        scale(&estimate, weft_software_rule_at(WEFT_RULE_OFF_RAILS)->values[WEFT_SOFTWARE_PLAIN]);
    if (op->kind != WEFT_OPERATION_COLLECTIVE)
        scale(&estimate, weft_software_factor(p->site, described, p->chooses));
    if (op->kind == WEFT_OPERATION_GEMM)
        p->gemm_us = estimate.us;
    if (op->beside || weft_software_is_beside(p->site, described))
        estimate.us = beside_us(p, estimate.us);
    place_experts(&p->out->experts[p->repeats ? WEFT_HALF_AGAIN : half], op, estimate.us);
    const bool in_chunks =
        op->inner == WEFT_INNER_TENSOR && weft_tensor_add(&p->tensors, op, half, &estimate);
    if (p->has_program[op->inner])
        weft_inner_add(&p->costs[op->inner][half], op, &estimate);
    else if (!in_chunks)
        *place_of(time, op) += estimate.us;
    if (op->kind != WEFT_OPERATION_COLLECTIVE)
        time->memory_us += estimate.memory_us;
    time->num_issued += weft_software_launches(p->site, op);
    if (p->chooses && !backward && !p->repeats)
        add_again(p, op, &estimate);
    if (op->deferred && !p->has_program[op->inner]) {
        *place_of(&p->out->weights, op) += in_chunks ? 0 : estimate.us;
        p->out->weights.memory_us += estimate.memory_us;
        p->out->weights.num_issued += weft_software_launches(p->site, op);
    }
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        time->link_us[l] += estimate.links[l].us;
    if (estimate.source > p->out->source)
        p->out->source = estimate.source;
    return WEFT_OK;
}

/* A layer that gives sums is a product as wide as the hidden size, and one collective an axis. */
static weft_status add_sums(pricing *p, const weft_layer_cost *cost, const weft_shape *shape)
{
    const uint64_t rows =
        weft_shape_local_tokens(shape) / (shape->sequence_parallel ? (size_t)shape->tp : 1);
    const struct {
        weft_phase phase;
        uint64_t flops, bytes[2];
    } halves[] = {
        {WEFT_PHASE_FORWARD, cost->forward_flops, {cost->tp_forward_bytes, cost->ep_forward_bytes}},
        {WEFT_PHASE_INPUT_GRADIENT,
         cost->backward_flops,
         {cost->tp_backward_bytes, cost->ep_backward_bytes}},
    };
    for (size_t i = 0; i < (p->repeats ? 1 : 2); i++) {
        const uint64_t k = shape->hidden, each = 2 * rows * k;
        weft_operation op = {.kind = WEFT_OPERATION_GEMM,
                             .phase = halves[i].phase,
                             .module = p->layer->kind,
                             .dtype = shape->dtype,
                             .m = rows,
                             .n = each ? (halves[i].flops + each - 1) / each : 0,
                             .k = k,
                             .count = 1,
                             .flops = halves[i].flops};
        if (op.flops > 0)
            WEFT_TRY(add_operation(p, &op));
        for (int axis = 0; axis < 2; axis++) {
            op = (weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                  .phase = halves[i].phase,
                                  .module = p->layer->kind,
                                  .dtype = shape->dtype,
                                  .count = 1,
                                  .bytes = halves[i].bytes[axis],
                                  .axis = axis ? WEFT_AXIS_EP : WEFT_AXIS_TP,
                                  .collective = axis ? WEFT_COLLECTIVE_ALL_TO_ALL
                                                     : WEFT_COLLECTIVE_ALL_REDUCE};
            if (op.bytes > 0)
                WEFT_TRY(add_operation(p, &op));
        }
    }
    return WEFT_OK;
}

/* Copies of T_DI or T_M between device and host, for one partition. */
static weft_status host_copy_us(const pricing *p, weft_cost_kind kind, double bytes, double *out)
{
    weft_estimate estimate;
    WEFT_TRY(weft_work_us(p->site, kind, bytes, &estimate));
    *out = estimate.us;
    return WEFT_OK;
}

/* Bytes of a stashed or, with reuse, of an offloaded tensor: the rows that travel. */
static double travelling_bytes(const pricing *p)
{
    const weft_description *d = &p->layer->description;
    uint64_t bytes = 0;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        if (o->kind == WEFT_OPERATION_COLLECTIVE && o->phase == WEFT_PHASE_FORWARD &&
            weft_operation_is_of(o, WEFT_TASK_DISPATCH))
            bytes += o->bytes;
    }
    return (double)bytes;
}

/* The width of T_M over that of T_DI: the first linear layer's output over its input. */
static double middle_share(const pricing *p)
{
    const weft_description *d = &p->layer->description;
    for (int i = 0; i < d->num_operations; i++)
        if (weft_operation_is_experts(&d->operations[i]) && d->operations[i].groups > 0)
            return (double)d->operations[i].n / (double)d->operations[i].k;
    return 0;
}

/* Messages of a partition by peers: as an all-to-all between two ranks that sends as much over each
 * link. */
static weft_status message_us(const pricing *p, int group, int ahead, double bytes, double *out)
{
    const weft_group *ep = &p->site->groups[WEFT_AXIS_EP];
    const weft_moe_peer_shares share = weft_moe_peer_shares_of(ep->size, ep->near, group, ahead);
    weft_group pair = *ep;
    weft_estimate inside, between;
    pair.size = pair.near = 2;
    WEFT_TRY(weft_collective_us(p->site, &pair, WEFT_COLLECTIVE_ALL_TO_ALL,
                                2 * bytes * share.inside, &inside));
    pair.near = 1;
    WEFT_TRY(weft_collective_us(p->site, &pair, WEFT_COLLECTIVE_ALL_TO_ALL,
                                2 * bytes * share.between, &between));
    *out = fmax(inside.us, between.us);
    return WEFT_OK;
}

/* What a partition's tasks take, in one direction. */
static weft_status partition_costs(const pricing *p, int half, weft_moe_costs *out)
{
    const weft_inner_costs *inner = &p->costs[WEFT_INNER_EXPERTS][half];
    const bool backward = half == WEFT_HALF_BACKWARD;
    const weft_flow flow = backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    const weft_moe_pipeline pipeline = weft_shape_pipeline(&p->outline->shape);
    const int n = pipeline.num_partitions;
    const double bytes = travelling_bytes(p) / n, middle = bytes * middle_share(p);
    const bool by_peers = pipeline.peer_group > 0;
    *out = (weft_moe_costs){
        .permute_us = weft_inner_time(inner, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE)->us / n,
        .dispatch_us = by_peers ? 0 : weft_inner_time(inner, WEFT_TASK_DISPATCH, flow)->us / n,
        .combine_us = by_peers ? 0 : weft_inner_time(inner, WEFT_TASK_COMBINE, flow)->us / n,
        .recompute_us = weft_inner_time(inner, WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE)->us / n,
        .counts_us = weft_inner_time(inner, WEFT_TASK_COUNTS, WEFT_FLOW_NONE)->us,
    };
    weft_moe_even_shares(&pipeline, p->layer->num_experts, out->shares);
    for (int i = 0; by_peers && i < n; i++)
        WEFT_TRY(message_us(p, pipeline.peer_group, i, bytes, &out->by_peer_us[i]));
    *(backward ? &out->expert_backward_us : &out->expert_us) =
        weft_inner_time(inner, WEFT_TASK_EXPERT, flow)->us / n;
    if (weft_reuse_offloads_input(pipeline.reuse)) {
        WEFT_TRY(host_copy_us(p, WEFT_COST_TO_HOST, bytes, &out->input_to_host_us));
        WEFT_TRY(host_copy_us(p, WEFT_COST_TO_DEVICE, bytes, &out->input_to_device_us));
    }
    if (weft_reuse_offloads_middle(pipeline.reuse)) {
        WEFT_TRY(host_copy_us(p, WEFT_COST_TO_HOST, middle, &out->middle_to_host_us));
        WEFT_TRY(host_copy_us(p, WEFT_COST_TO_DEVICE, middle, &out->middle_to_device_us));
    }
    return WEFT_OK;
}

/* What experts and what travels beside them do to each other. */
static const weft_interference *beside_experts(const weft_site *site)
{
    return &(site->experts ? site->experts : site->cluster)->interference;
}

/* The layer's partitions by their program: beside what computes stands what travels and what is
 * copied. */
static weft_status add_partitions(pricing *p)
{
    const weft_moe_pipeline pipeline = weft_shape_pipeline(&p->outline->shape);
    for (int half = 0; half < (p->repeats ? 1 : WEFT_NUM_HALVES); half++) {
        const weft_inner_costs *inner = &p->costs[WEFT_INNER_EXPERTS][half];
        const bool backward = half == WEFT_HALF_BACKWARD;
        weft_pass_time *time = half == WEFT_HALF_FORWARD ? &p->out->forward : &p->out->backward;
        weft_moe_costs costs;
        weft_arena arena = {0};
        weft_program program;
        double us = 0;
        if (inner->num_rows == 0)
            continue;
        WEFT_TRY(partition_costs(p, half, &costs));
        weft_status status = weft_program_moe(&pipeline, backward, &arena, &program);
        if (status == WEFT_OK)
            status = weft_program_moe_price(&program, &costs, beside_experts(p->site), NULL, &us);
        weft_arena_release(&arena);
        WEFT_TRY(status);
        time->link_us[WEFT_LINK_HOST] +=
            pipeline.num_partitions * (backward
                                           ? costs.input_to_device_us + costs.middle_to_device_us
                                           : costs.input_to_host_us + costs.middle_to_host_us);
        const double computed = weft_inner_time(inner, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE)->us +
                                weft_inner_time(inner, WEFT_TASK_RECOMPUTE, WEFT_FLOW_NONE)->us +
                                weft_inner_time(inner, WEFT_TASK_EXPERT, WEFT_FLOW_ACTIVATION)->us +
                                weft_inner_time(inner, WEFT_TASK_EXPERT, WEFT_FLOW_GRADIENT)->us;
        time->compute_us += computed;
        time->expert_us += fmax(0, us - computed);
    }
    return WEFT_OK;
}

/* The layer's attention by its program: beside its blocks stands what travels. */
static weft_status add_attention(pricing *p)
{
    const weft_context_plan plan = weft_context_plan_of(&p->outline->shape);
    for (int half = 0; half < WEFT_NUM_HALVES; half++) {
        weft_pass_time *time = half == WEFT_HALF_FORWARD ? &p->out->forward : &p->out->backward;
        double computed_us = 0, exposed_us = 0;
        weft_inner_costs *inner = &p->costs[WEFT_INNER_ATTENTION][half];
        if (inner->num_rows == 0)
            continue;
        WEFT_TRY(context_price(&plan, half == WEFT_HALF_BACKWARD, inner,
                               &p->site->cluster->interference, &computed_us, &exposed_us));
        time->compute_us += computed_us;
        time->context_us += exposed_us;
    }
    return WEFT_OK;
}

/* Tensor-parallel products in chunks by their programs. */
static weft_status add_tensor(const pricing *p, const weft_tensor_row *row, weft_arena *arena)
{
    weft_pass_time *time = row->half == WEFT_HALF_FORWARD ? &p->out->forward : &p->out->backward;
    weft_pass_time sum = {0};
    WEFT_TRY(weft_tensor_price(row, &p->site->cluster->interference, arena, &sum.compute_us,
                               &sum.tensor_us));
    weft_pass_time_add(time, &sum);
    if (row->deferred)
        weft_pass_time_add(&p->out->weights, &sum);
    return WEFT_OK;
}

static weft_status add_tensors(pricing *p)
{
    weft_arena arena = {0};
    weft_status status = WEFT_OK;
    for (int i = 0; i < p->tensors.num_rows && status == WEFT_OK; i++)
        status = add_tensor(p, &p->tensors.rows[i], &arena);
    weft_arena_release(&arena);
    return status;
}

static weft_status add_layer(pricing *p)
{
    const weft_description *d = &p->layer->description;
    const weft_shape *shape = &p->outline->shape;
    memset(p->costs, 0, sizeof p->costs);
    p->tensors.num_rows = 0;
    find_products(p);
    p->has_program[WEFT_INNER_ATTENTION] = true;
    p->has_program[WEFT_INNER_EXPERTS] =
        (shape->moe_partitions > 1 || shape->moe_reuse > 0) && weft_description_travels(d);
    if (d->coarse) {
        p->out->coarse = true;
        return add_sums(p, &d->cost, shape);
    }
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *op = &d->operations[i];
        if (!p->repeats ||
            (op->phase == WEFT_PHASE_FORWARD && !weft_operation_is_of(op, WEFT_TASK_COUNTS)))
            WEFT_TRY(add_operation(p, op));
    }
    WEFT_TRY(add_partitions(p));
    WEFT_TRY(add_tensors(p));
    return add_attention(p);
}

static weft_status add_recompute(const pricing *p)
{
    weft_pass_price again = {0};
    pricing repeated = *p;
    if (p->layer->recompute_group == 0)
        return WEFT_OK;
    repeated.repeats = true;
    repeated.out = &again;
    WEFT_TRY(add_layer(&repeated));
    weft_pass_time_add(&p->out->recompute, &again.forward);
    p->out->experts[WEFT_HALF_AGAIN] = again.experts[WEFT_HALF_AGAIN];
    return WEFT_OK;
}

bool weft_pass_same_layer(const weft_outline *outline, int a, int b)
{
    const weft_outline_layer *x = &outline->layers[a], *y = &outline->layers[b];
    const weft_description *d = &x->description, *e = &y->description;
    return !d->coarse && !e->coarse && d->num_operations == e->num_operations &&
           (x->recompute_group > 0) == (y->recompute_group > 0) &&
           memcmp(d->operations, e->operations,
                  (size_t)d->num_operations * sizeof *d->operations) == 0;
}

/* Whether the host waits for the counts of experts' rows before it issues what follows. */
static bool waits_on_gpu(const pricing *p)
{
    return weft_pass_taken_share(p->site->cluster) > 0 && !p->outline->shape.plain_kernels &&
           weft_description_has_experts(&p->layer->description);
}

weft_status weft_pass_price_add(const weft_site *site, const weft_outline *outline, int first,
                                int end, weft_pass_price *out)
{
    pricing p = {.site = site, .outline = outline, .out = out};
    for (int i = first; i < end; i++) {
        p.layer = &outline->layers[i];
        weft_status status = add_layer(&p);
        if (waits_on_gpu(&p))
            p.out->forward.compute_us += weft_gpu_fact_at(WEFT_GPU_HOST_WAIT_US)->value;
        if (status == WEFT_OK)
            status = add_recompute(&p);
        if (status != WEFT_OK)
            return weft_error_context(status, "%s", p.layer->name);
    }
    return WEFT_OK;
}

weft_status weft_pass_price_partition(const weft_site *site, const weft_outline *outline, int layer,
                                      weft_moe_costs out[2])
{
    weft_pass_price sum = {0};
    pricing p = {.site = site,
                 .outline = outline,
                 .layer = &outline->layers[layer],
                 .has_program = {[WEFT_INNER_EXPERTS] = true},
                 .out = &sum};
    const weft_description *d = &p.layer->description;
    for (int i = 0; i < d->num_operations; i++)
        WEFT_TRY(add_operation(&p, &d->operations[i]));
    WEFT_TRY(partition_costs(&p, false, &out[0]));
    return partition_costs(&p, true, &out[1]);
}

weft_status weft_pass_price_attention(const weft_site *site, const weft_outline *outline, int layer,
                                      weft_inner_costs out[2])
{
    weft_pass_price sum = {0};
    pricing p = {.site = site,
                 .outline = outline,
                 .layer = &outline->layers[layer],
                 .has_program = {[WEFT_INNER_ATTENTION] = true},
                 .out = &sum};
    const weft_description *d = &p.layer->description;
    for (int i = 0; i < d->num_operations; i++)
        WEFT_TRY(add_operation(&p, &d->operations[i]));
    for (int half = 0; half < 2; half++)
        out[half] = p.costs[WEFT_INNER_ATTENTION][half];
    return WEFT_OK;
}

/* --- pairs ---------------------------------------------------------------------------------- */

/* A chunk's forward, or its backward, while its parts are listed. */
typedef struct listing {
    const weft_site *site;
    const weft_outline *outline;
    const weft_pass_price *layers;
    const weft_program *programs; /* of an MoE layer: forward, backward */
    weft_pair_part *parts;
    int count;
    double alone_us; /* what the pass takes alone */
    bool halved;     /* a backward's input's half alone */
    bool leaves;     /* a whole backward's parts leave the weights' half */
    int priced;      /* the layer of `costs`; -1: none */
    weft_moe_costs costs[2];
    double program_us[2]; /* what these programs take alone */
} listing;

static void add_part(listing *l, weft_part_kind kind, double us)
{
    l->parts[l->count++] = (weft_pair_part){.kind = kind, .us = us};
}

/* The latest part leaves work. */
static void leave(listing *l, double soon_us, double late_us)
{
    l->parts[l->count - 1].soon_us = l->leaves ? soon_us : 0;
    l->parts[l->count - 1].late_us = l->leaves ? late_us : 0;
}

/* What the latest part leaves comes in front of a layer that leaves nothing. */
static void leave_nothing(listing *l)
{
    weft_pair_part *last = l->count > 0 ? &l->parts[l->count - 1] : NULL;
    if (!last)
        return;
    last->us += last->late_us;
    last->late_us = 0;
}

/* Of the experts' weights' gradients those of the second product, which come first. */
static double soon_share(const weft_description *d)
{
    double second = 0, all = 0;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        if (!o->deferred || o->kind != WEFT_OPERATION_GEMM || o->groups == 0)
            continue;
        second = all > 0 ? second : (double)o->flops;
        all += (double)o->flops;
    }
    return all > 0 ? second / all : 0;
}

/* The parts of an MoE layer that takes `us`, and weights_us more in the weights' half: of what its
 * program leaves nearly all of a forward's comes before, of a backward's behind. The halves of the
 * experts' backward are as many products each, and the program has the input's. */
static void list_moe(listing *l, int layer, bool backward, double weights_us, double us)
{
    const double soon = soon_share(&l->outline->layers[layer].description);
    const weft_program *program = &l->programs[backward];
    const double rest = us - l->program_us[backward];
    double experts_us = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].kind == WEFT_TASK_EXPERT) {
            experts_us += weft_moe_task_us(&l->costs[backward], &program->tasks[i]);
            last = i;
        }
    experts_us = fmin(experts_us, weights_us);
    add_part(l, WEFT_PART_COMPUTES, backward ? 0 : fmax(0, rest));
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        add_part(l, task->lane == WEFT_LANE_COMPUTE ? WEFT_PART_COMPUTES : WEFT_PART_TRAVELS,
                 weft_moe_task_us(&l->costs[backward], task));
        if (i == last)
            leave(l, soon * experts_us, (1 - soon) * experts_us);
    }
    add_part(l, WEFT_PART_COMPUTES, backward ? fmax(0, rest) : 0);
    leave(l, 0, weights_us - experts_us);
}

static weft_status list_layer(listing *l, int layer, bool backward, const weft_pass_time *time)
{
    const bool splits = backward && (l->halved || l->leaves);
    const double weights_us = splits ? weft_pass_us(&l->layers[layer].weights) : 0;
    const double us = weft_pass_us(time) - weights_us;
    l->alone_us += l->leaves ? us + weights_us : us;
    if (l->leaves && weights_us <= 0)
        leave_nothing(l);
    if (!l->outline->layers[layer].host_waits) {
        add_part(l, WEFT_PART_COMPUTES, us);
        leave(l, 0, weights_us);
        return WEFT_OK;
    }
    if (l->priced < 0 || !weft_pass_same_layer(l->outline, l->priced, layer)) {
        WEFT_TRY(weft_pass_price_partition(l->site, l->outline, layer, l->costs));
        for (int i = 0; i < 2; i++)
            WEFT_TRY(weft_program_moe_price(&l->programs[i], &l->costs[i], beside_experts(l->site),
                                            NULL, &l->program_us[i]));
    }
    l->priced = layer;
    list_moe(l, layer, backward, weights_us, us);
    return WEFT_OK;
}

/* The forwards that a group of layers, which ends with this one, runs again. */
static weft_status list_again(listing *l, int first, int last)
{
    const int group = l->outline->layers[last].recompute_group;
    int from = last;
    while (from > first && l->outline->layers[from - 1].recompute_group == group)
        from--;
    for (int i = from; i <= last; i++)
        WEFT_TRY(list_layer(l, i, false, &l->layers[i].recompute));
    return WEFT_OK;
}

static weft_status list_parts(listing *l, int first, int end, bool backward, weft_arena *arena)
{
    const weft_outline_layer *layers = l->outline->layers;
    void *memory;
    const size_t most = l->programs[0].num_tasks + l->programs[1].num_tasks + 4;
    WEFT_TRY(
        weft_arena_alloc_array(arena, most * (size_t)(end - first), sizeof *l->parts, &memory));
    l->parts = memory;
    for (int i = first; i < end; i++) {
        const int layer = backward ? end - 1 - (i - first) : i;
        const int group = layers[layer].recompute_group;
        const bool ends_group =
            group > 0 && (layer == end - 1 || layers[layer + 1].recompute_group != group);
        if (backward && ends_group)
            WEFT_TRY(list_again(l, first, layer));
        WEFT_TRY(list_layer(l, layer, backward,
                            backward ? &l->layers[layer].backward : &l->layers[layer].forward));
    }
    return WEFT_OK;
}

/* A forward and a backward as one: what each waits for its exchanges alone is less by what the
 * other computes beside them. */
static weft_pass_time pair_of(const weft_pass_price *forward, const weft_pass_price *backward,
                              bool halved, double less_us)
{
    weft_pass_time sum = forward->forward;
    weft_pass_time_add(&sum, &backward->backward);
    if (halved)
        weft_pass_time_subtract(&sum, &backward->weights);
    sum.expert_us -= less_us;
    if (sum.expert_us < 0) {
        sum.compute_us += sum.expert_us;
        sum.expert_us = 0;
    }
    return sum;
}

/* Of a forward of chunk f and a backward of chunk b. */
static weft_status price_pair(const listing *of_stage, int stage, int f, int b,
                              const weft_pass_price *chunks, weft_arena *arena, weft_pass_time *out)
{
    const weft_outline *outline = of_stage->outline;
    const int of[WEFT_PAIR_STRANDS] = {f, b};
    listing strands[WEFT_PAIR_STRANDS];
    int first, end;
    for (int s = 0; s < WEFT_PAIR_STRANDS; s++) {
        strands[s] = *of_stage;
        weft_layout_range(&outline->layout, stage, of[s], &first, &end);
        WEFT_TRY(list_parts(&strands[s], first, end, s == WEFT_PAIR_BACKWARD, arena));
    }
    const listing *forward = &strands[WEFT_PAIR_FORWARD], *backward = &strands[WEFT_PAIR_BACKWARD];
    weft_layout_range(&outline->layout, stage, f, &first, &end);
    const bool waits = end == outline->num_layers && weft_outline_loss_waits(outline);
    double us;
    WEFT_TRY(weft_pair_price((const weft_pair_part *const[]){forward->parts, backward->parts},
                             (const int[]){forward->count - waits, backward->count},
                             beside_experts(of_stage->site), &us));
    us += waits ? forward->parts[forward->count - 1].us : 0;
    *out = pair_of(&chunks[f], &chunks[b], of_stage->halved,
                   forward->alone_us + backward->alone_us - us);
    return WEFT_OK;
}

weft_status weft_pass_price_pairs(const weft_site *site, const weft_outline *outline, int stage,
                                  const weft_pass_price *layers, const weft_pass_price *chunks,
                                  weft_arena *arena, weft_pass_time **out)
{
    const int v = outline->layout.num_chunks;
    weft_moe_pipeline pipeline = weft_shape_pipeline(&outline->shape);
    weft_program programs[2];
    void *memory;
    pipeline.beside = true;
    for (int i = 0; i < 2; i++)
        WEFT_TRY(weft_program_moe(&pipeline, i, arena, &programs[i]));
    WEFT_TRY(weft_arena_alloc_array(arena, 2 * (size_t)v * (size_t)v, sizeof **out, &memory));
    *out = memory;
    for (int i = 0; i < 2 * v * v; i++) {
        const listing of_stage = {.site = site,
                                  .outline = outline,
                                  .layers = layers,
                                  .programs = programs,
                                  .halved = i >= v * v,
                                  .leaves = i < v * v && outline->leaves_weights,
                                  .priced = -1};
        if (!of_stage.halved || outline->shape.splits_backward)
            WEFT_TRY(price_pair(&of_stage, stage, i / v % v, i % v, chunks, arena, *out + i));
    }
    return WEFT_OK;
}
