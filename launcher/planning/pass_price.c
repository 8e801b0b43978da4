#include "launcher/planning/pass_price.h"

#include <math.h>
#include <string.h>

#include "launcher/planning/software.h"
#include "schedule/exchange/exchange.h"
#include "schedule/pair.h"

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
    const double issue_us = weft_software_value(WEFT_SOFTWARE_PLAIN, WEFT_RULE_ISSUE_US);
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
    bool cuts_experts; /* into partitions; else an MoE layer's operations are all in a row */
    weft_layer_costs *costs;
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
    if (op->inner == WEFT_INNER_EXPERTS)
        out->task_us[op->task] += us;
    if (!goes && out->task_us[WEFT_TASK_EXPERT] == 0)
        out->before_us += us;
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
        scale(&estimate, weft_software_value(WEFT_SOFTWARE_PLAIN, WEFT_RULE_OFF_RAILS));
    if (op->kind != WEFT_OPERATION_COLLECTIVE)
        scale(&estimate, weft_software_factor(p->site, described, p->chooses));
    if (op->kind == WEFT_OPERATION_GEMM)
        p->gemm_us = estimate.us;
    if (op->beside || weft_software_is_beside(p->site, described))
        estimate.us = beside_us(p, estimate.us);
    place_experts(&p->out->experts[p->repeats ? WEFT_HALF_AGAIN : half], op, estimate.us);
    const bool is_inside = weft_layer_costs_add(p->costs, op, half, &estimate) &&
                           (op->inner != WEFT_INNER_EXPERTS || p->cuts_experts);
    if (!is_inside)
        *place_of(time, op) += estimate.us;
    if (op->kind != WEFT_OPERATION_COLLECTIVE)
        time->memory_us += estimate.memory_us;
    time->num_issued += weft_software_launches(p->site, op);
    if (p->chooses && !backward && !p->repeats)
        add_again(p, op, &estimate);
    if (op->deferred && op->kind == WEFT_OPERATION_GEMM && op->groups > 0)
        *(p->costs->soon_us > 0 ? &p->costs->late_us : &p->costs->soon_us) += estimate.us;
    if (op->deferred && (!is_inside || op->inner == WEFT_INNER_TENSOR)) {
        *place_of(&p->out->weights, op) += is_inside ? 0 : estimate.us;
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

/* A program inside the layer, by its price. */
static weft_status add_program(pricing *p, const weft_inner_costs *costs, weft_made_programs *made)
{
    const int layer = (int)(p->layer - p->outline->layers);
    weft_pass_time *time = costs->half == WEFT_HALF_FORWARD ? &p->out->forward : &p->out->backward;
    weft_inner_price price;
    weft_pass_time sum = {0};
    if (costs->inner == WEFT_INNER_EXPERTS && !p->cuts_experts)
        return WEFT_OK;
    WEFT_TRY(weft_inner_price_of(p->site, p->outline, layer, costs,
                                 weft_inner_interference(p->site, costs->inner), made, &price));
    sum.compute_us = price.computed_us;
    *(costs->inner == WEFT_INNER_EXPERTS     ? &sum.expert_us
      : costs->inner == WEFT_INNER_ATTENTION ? &sum.context_us
                                             : &sum.tensor_us) = price.exposed_us;
    sum.link_us[WEFT_LINK_HOST] = price.copied_us;
    weft_pass_time_add(time, &sum);
    if (costs->deferred)
        weft_pass_time_add(&p->out->weights, &sum);
    return WEFT_OK;
}

static weft_status add_programs(pricing *p)
{
    weft_arena arena = {0};
    weft_made_programs made = {.arena = &arena};
    weft_status status = WEFT_OK;
    for (int i = 0; i < p->costs->num_programs && status == WEFT_OK; i++)
        status = add_program(p, &p->costs->programs[i], &made);
    weft_arena_release(&arena);
    return status;
}

/* What is said of an MoE layer's counts holds for the forward that runs again. */
static weft_status add_operations(pricing *p)
{
    const weft_description *d = &p->layer->description;
    const weft_shape *shape = &p->outline->shape;
    weft_layer_costs_begin(p->costs);
    find_products(p);
    p->cuts_experts =
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
    return WEFT_OK;
}

static weft_status add_layer(pricing *p)
{
    WEFT_TRY(add_operations(p));
    return add_programs(p);
}

static weft_status add_recompute(const pricing *p)
{
    weft_pass_price again = {0};
    weft_layer_costs costs;
    pricing repeated = *p;
    if (p->layer->recompute_group == 0)
        return WEFT_OK;
    repeated.costs = &costs;
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
    weft_layer_costs costs;
    pricing p = {.site = site, .outline = outline, .costs = &costs, .out = out};
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

weft_status weft_pass_layer_costs(const weft_site *site, const weft_outline *outline, int layer,
                                  bool repeats, weft_layer_costs *out)
{
    weft_pass_price unused = {0};
    pricing p = {.site = site,
                 .outline = outline,
                 .layer = &outline->layers[layer],
                 .repeats = repeats,
                 .costs = out,
                 .out = &unused};
    return add_operations(&p);
}

static bool has_programs(const weft_description *d)
{
    for (int i = 0; i < d->num_operations; i++)
        if (d->operations[i].inner != WEFT_INNER_NONE)
            return true;
    return false;
}

weft_status weft_pass_body_make(const weft_site *site, const weft_outline *outline, int layer,
                                int half, bool inlines, bool slowed, const weft_pass_time *total,
                                weft_made_programs *made, weft_layer_body **out)
{
    const weft_body_total sums = {weft_pass_us(total), total->link_us};
    weft_layer_costs *costs;
    WEFT_TRY(WEFT_ARRAY(made->arena, 1, out));
    if (!inlines || !has_programs(&outline->layers[layer].description)) {
        **out = weft_layer_body_lump(sums.us);
        memcpy((*out)->own[0].link_us, total->link_us, sizeof total->link_us);
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_ARRAY(made->arena, 1, &costs));
    WEFT_TRY(weft_pass_layer_costs(site, outline, layer, half == WEFT_HALF_AGAIN, costs));
    return weft_layer_body_make(site, outline, layer, costs, half == WEFT_HALF_BACKWARD, slowed,
                                &sums, made, *out);
}

/* --- pairs ---------------------------------------------------------------------------------- */

/* A chunk's forward, or its backward, while its parts are listed. */
typedef struct listing {
    const weft_site *site;
    const weft_outline *outline;
    const weft_pass_price *layers;
    weft_made_programs *made;
    weft_pair_part *parts;
    int count;
    size_t capacity;
    double alone_us;             /* what the pass takes alone */
    bool halved;                 /* a backward's input's half alone */
    bool leaves;                 /* a whole backward's parts leave the weights' half */
    int priced[WEFT_NUM_HALVES]; /* the layers of `bodies`; -1: none */
    weft_layer_body *bodies[WEFT_NUM_HALVES];
} listing;

static weft_status add_part(listing *l, weft_part_kind kind, double us)
{
    WEFT_TRY(WEFT_ARENA_GROW(l->made->arena, l->parts, l->capacity, (size_t)l->count + 1));
    l->parts[l->count++] = (weft_pair_part){.kind = kind, .us = us};
    return WEFT_OK;
}

/* The latest part leaves work. */
static void leave(listing *l, double soon_us, double late_us)
{
    l->parts[l->count - 1].soon_us += l->leaves ? soon_us : 0;
    l->parts[l->count - 1].late_us += l->leaves ? late_us : 0;
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

/* weights_us: of the weights' half; behind the last task that computes experts it leaves theirs. */
static weft_status list_body(listing *l, const weft_layer_body *body, double weights_us)
{
    const double soon_us = fmin(body->soon_us, weights_us),
                 late_us = fmin(body->late_us, weights_us - soon_us);
    int experts = -1;
    for (int i = 0; i <= body->num_programs; i++) {
        const weft_priced_program *inside = &body->programs[i];
        WEFT_TRY(add_part(l, WEFT_PART_COMPUTES, body->own[i].us));
        for (uint32_t t = 0; i < body->num_programs && t < inside->program->num_tasks; t++) {
            const weft_task *task = &inside->program->tasks[t];
            const int lane = weft_priced_program_lane(inside, task->lane);
            WEFT_TRY(add_part(l, weft_body_travels(lane) ? WEFT_PART_TRAVELS : WEFT_PART_COMPUTES,
                              inside->times[t].us));
            experts = task->kind == WEFT_TASK_EXPERT ? l->count - 1 : experts;
        }
    }
    if (experts >= 0 && l->leaves) {
        l->parts[experts].soon_us = soon_us;
        l->parts[experts].late_us = late_us;
        leave(l, 0, weights_us - soon_us - late_us);
    } else {
        leave(l, 0, weights_us);
    }
    return WEFT_OK;
}

/* Of layers that are alike one's. time: without the weights' half where it comes apart. */
static weft_status find_body(listing *l, int layer, int half, const weft_pass_time *time,
                             const weft_layer_body **out)
{
    if (l->priced[half] < 0 || !weft_pass_same_layer(l->outline, l->priced[half], layer))
        WEFT_TRY(weft_pass_body_make(l->site, l->outline, layer, half, true, true, time, l->made,
                                     &l->bodies[half]));
    l->priced[half] = layer;
    *out = l->bodies[half];
    return WEFT_OK;
}

static weft_status list_layer(listing *l, int layer, int half, const weft_pass_time *time)
{
    const bool splits = half == WEFT_HALF_BACKWARD && (l->halved || l->leaves);
    const double weights_us = splits ? weft_pass_us(&l->layers[layer].weights) : 0;
    weft_pass_time mine = *time;
    const weft_layer_body *body = NULL;
    if (splits)
        weft_pass_time_subtract(&mine, &l->layers[layer].weights);
    l->alone_us += weft_pass_us(&mine) + (l->leaves ? weights_us : 0);
    if (l->leaves && weights_us <= 0)
        leave_nothing(l);
    if (!l->outline->layers[layer].host_waits) {
        WEFT_TRY(add_part(l, WEFT_PART_COMPUTES, weft_pass_us(&mine)));
        leave(l, 0, weights_us);
        return WEFT_OK;
    }
    WEFT_TRY(find_body(l, layer, half, &mine, &body));
    return list_body(l, body, weights_us);
}

/* The forwards that a group of layers, which ends with this one, runs again. */
static weft_status list_again(listing *l, int first, int last)
{
    const int group = l->outline->layers[last].recompute_group;
    int from = last;
    while (from > first && l->outline->layers[from - 1].recompute_group == group)
        from--;
    for (int i = from; i <= last; i++)
        WEFT_TRY(list_layer(l, i, WEFT_HALF_AGAIN, &l->layers[i].recompute));
    return WEFT_OK;
}

static weft_status list_parts(listing *l, int first, int end, bool backward)
{
    const weft_outline_layer *layers = l->outline->layers;
    for (int i = first; i < end; i++) {
        const int layer = backward ? end - 1 - (i - first) : i;
        const int group = layers[layer].recompute_group;
        const bool ends_group =
            group > 0 && (layer == end - 1 || layers[layer + 1].recompute_group != group);
        if (backward && ends_group)
            WEFT_TRY(list_again(l, first, layer));
        WEFT_TRY(list_layer(l, layer, backward ? WEFT_HALF_BACKWARD : WEFT_HALF_FORWARD,
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
                              const weft_pass_price *chunks, weft_pass_time *out)
{
    const weft_outline *outline = of_stage->outline;
    const int of[WEFT_PAIR_STRANDS] = {f, b};
    listing strands[WEFT_PAIR_STRANDS];
    int first, end;
    for (int s = 0; s < WEFT_PAIR_STRANDS; s++) {
        strands[s] = *of_stage;
        weft_layout_range(&outline->layout, stage, of[s], &first, &end);
        WEFT_TRY(list_parts(&strands[s], first, end, s == WEFT_PAIR_BACKWARD));
    }
    const listing *forward = &strands[WEFT_PAIR_FORWARD], *backward = &strands[WEFT_PAIR_BACKWARD];
    weft_layout_range(&outline->layout, stage, f, &first, &end);
    const bool waits = end == outline->num_layers && weft_outline_loss_waits(outline);
    double us;
    WEFT_TRY(weft_pair_price((const weft_pair_part *const[]){forward->parts, backward->parts},
                             (const int[]){forward->count - waits, backward->count},
                             weft_inner_interference(of_stage->site, WEFT_INNER_EXPERTS), &us));
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
    weft_made_programs made = {.arena = arena, .beside = true};
    WEFT_TRY(WEFT_ARRAY(arena, 2 * (size_t)v * (size_t)v, out));
    for (int i = 0; i < 2 * v * v; i++) {
        const listing of_stage = {.site = site,
                                  .outline = outline,
                                  .layers = layers,
                                  .made = &made,
                                  .halved = i >= v * v,
                                  .leaves = i < v * v && outline->leaves_weights,
                                  .priced = {-1, -1, -1}};
        if (!of_stage.halved || outline->shape.splits_backward)
            WEFT_TRY(price_pair(&of_stage, stage, i / v % v, i % v, chunks, *out + i));
    }
    return WEFT_OK;
}
