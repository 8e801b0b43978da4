#include "launcher/planning/body_price.h"

#include <math.h>
#include <string.h>

#include "schedule/context.h"
#include "schedule/moe/layer.h"
#include "schedule/operands.h"

#define ROUNDING 1e-9 /* of sums over a program's tasks */

/* --- what operations add up to ---------------------------------------------------------------- */

static void add_scaled(weft_task_time *sum, const weft_task_time *other, double by)
{
    sum->us += by * other->us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        sum->link_us[l] += by * other->link_us[l];
}

static void add_estimate(weft_task_time *sum, const weft_estimate *estimate)
{
    sum->us += estimate->us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        sum->link_us[l] += estimate->links[l].us;
}

/* A block of the rank's own counts among the others, of which it is a share. */
static int summed_flow(int flow)
{
    return flow == WEFT_FLOW_OWN ? WEFT_FLOW_GRADIENT : flow;
}

static bool is_backward(int half)
{
    return half != WEFT_HALF_FORWARD;
}

/* How many programs the direction has so far. */
static int count_programs(const weft_layer_costs *costs, bool backward)
{
    int count = 0;
    for (int i = 0; i < costs->num_programs; i++)
        count += is_backward(costs->programs[i].half) == backward && !costs->programs[i].deferred;
    return count;
}

static bool is_of(const weft_inner_costs *costs, const weft_operation *o, int half)
{
    return costs->inner == o->inner && costs->half == half &&
           (o->inner != WEFT_INNER_TENSOR ||
            (costs->deferred == o->deferred && strcmp(costs->module, o->module) == 0));
}

static weft_inner_costs *program_of(weft_layer_costs *costs, const weft_operation *o, int half)
{
    const bool is_tensor = o->inner == WEFT_INNER_TENSOR;
    for (int i = 0; i < costs->num_programs; i++)
        if (is_of(&costs->programs[i], o, half))
            return &costs->programs[i];
    if (o->inner == WEFT_INNER_NONE || costs->num_programs == WEFT_LAYER_PROGRAMS)
        return NULL;
    weft_inner_costs *added = &costs->programs[costs->num_programs++];
    *added = (weft_inner_costs){.inner = o->inner,
                                .half = half,
                                .module = is_tensor ? o->module : NULL,
                                .deferred = is_tensor && o->deferred};
    return added;
}

void weft_layer_costs_begin(weft_layer_costs *costs)
{
    costs->num_programs = 0;
    costs->soon_us = costs->late_us = 0;
    memset(costs->own, 0, sizeof costs->own);
}

bool weft_layer_costs_add(weft_layer_costs *costs, const weft_operation *o, int half,
                          const weft_estimate *estimate)
{
    weft_inner_costs *program = program_of(costs, o, half);
    const int flow = summed_flow(o->flow);
    int i = 0;
    if (!program) {
        if (!o->deferred)
            add_estimate(&costs->own[is_backward(half)][count_programs(costs, is_backward(half))],
                         estimate);
        return false;
    }
    while (i < program->num_rows &&
           !(program->rows[i].kind == o->task && program->rows[i].flow == flow))
        i++;
    if (i == program->num_rows)
        program->rows[program->num_rows++] = (weft_inner_row){.kind = o->task, .flow = flow};
    add_estimate(&program->rows[i].time, estimate);
    program->num_gathers += o->task == WEFT_TASK_GATHER ? o->count : 0;
    program->num_reduces += o->task == WEFT_TASK_REDUCE ? o->count : 0;
    return true;
}

const weft_inner_costs *weft_inner_costs_of(const weft_layer_costs *costs, weft_inner inner,
                                            int half)
{
    for (int i = 0; i < costs->num_programs; i++)
        if (costs->programs[i].inner == inner && costs->programs[i].half == half)
            return &costs->programs[i];
    return NULL;
}

static int find_row(const weft_inner_costs *costs, int kind, int flow)
{
    for (int i = 0; i < costs->num_rows; i++)
        if (costs->rows[i].kind == kind && costs->rows[i].flow == flow)
            return i;
    return -1;
}

const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow)
{
    static const weft_task_time none;
    const int row = costs ? find_row(costs, kind, flow) : -1;
    return row < 0 ? &none : &costs->rows[row].time;
}

/* --- programs -------------------------------------------------------------------------------- */

/* Tokens that do not travel are one partition. */
static weft_moe_pipeline pipeline_of(const weft_shape *shape, bool travels, bool beside)
{
    weft_moe_pipeline pipeline =
        travels ? weft_shape_pipeline(shape) : (weft_moe_pipeline){.num_partitions = 1};
    if (pipeline.num_partitions == 0)
        pipeline.num_partitions = 1;
    pipeline.beside = beside;
    return pipeline;
}

/* The collectives say in how many chunks. Of several products of one name the chunks are counted as
 * one's, up to the most. */
static weft_tensor_plan tensor_plan_of(const weft_inner_costs *costs)
{
    const bool backward = is_backward(costs->half);
    const uint64_t count =
        costs->num_gathers > costs->num_reduces ? costs->num_gathers : costs->num_reduces;
    const bool multiplies = find_row(costs, WEFT_TASK_PRODUCT, WEFT_FLOW_ACTIVATION) >= 0 ||
                            find_row(costs, WEFT_TASK_PRODUCT, WEFT_FLOW_GRADIENT) >= 0,
               gathers = costs->num_gathers > 0;
    return (weft_tensor_plan){.chunks = count > WEFT_TENSOR_MAX_CHUNKS ? WEFT_TENSOR_MAX_CHUNKS
                                                                       : (int)count,
                              .backward = backward,
                              .gathers = gathers,
                              .multiplies = multiplies,
                              .reads = gathers && multiplies && costs->num_reduces == 0,
                              .reduces = costs->num_reduces > 0 && multiplies,
                              .weights = find_row(costs, WEFT_TASK_PRODUCT, WEFT_FLOW_WEIGHT) >= 0};
}

static weft_status make_program(const weft_shape *shape, bool travels,
                                const weft_inner_costs *costs, const weft_tensor_plan *plan,
                                weft_made_programs *made, weft_program *out)
{
    const bool backward = costs->half == WEFT_HALF_BACKWARD;
    const weft_context_plan context = weft_context_plan_of(shape);
    const weft_moe_pipeline pipeline = pipeline_of(shape, travels, made->beside);
    switch (costs->inner) {
    case WEFT_INNER_EXPERTS:
        if (!made->experts)
            return weft_program_moe(&pipeline, backward, made->arena, out);
        *out = made->experts[backward];
        return WEFT_OK;
    case WEFT_INNER_ATTENTION:
        return weft_program_context(&context, backward, made->arena, out);
    default:
        return weft_program_tensor(plan, made->arena, out);
    }
}

static bool is_plan(const weft_tensor_plan *a, const weft_tensor_plan *b)
{
    return a->chunks == b->chunks && a->backward == b->backward && a->gathers == b->gathers &&
           a->multiplies == b->multiplies && a->reads == b->reads && a->reduces == b->reduces &&
           a->weights == b->weights;
}

static weft_status find_program(const weft_shape *shape, bool travels,
                                const weft_inner_costs *costs, const weft_tensor_plan *cut,
                                weft_made_programs *made, const weft_program **out)
{
    const bool backward = costs->half == WEFT_HALF_BACKWARD;
    const weft_tensor_plan plan = costs->inner != WEFT_INNER_TENSOR ? (weft_tensor_plan){0}
                                  : cut                             ? *cut
                                                                    : tensor_plan_of(costs);
    for (int i = 0; i < made->count; i++)
        if (made->rows[i].inner == costs->inner && made->rows[i].backward == backward &&
            is_plan(&made->rows[i].plan, &plan)) {
            *out = &made->rows[i].program;
            return WEFT_OK;
        }
    if (made->count == WEFT_MADE_PROGRAMS)
        return WEFT_ERROR(WEFT_INTERNAL, "more than %d different programs inside layers",
                          WEFT_MADE_PROGRAMS);
    made->rows[made->count].inner = costs->inner;
    made->rows[made->count].backward = backward;
    made->rows[made->count].plan = plan;
    WEFT_TRY(make_program(shape, travels, costs, &plan, made, &made->rows[made->count].program));
    *out = &made->rows[made->count++].program;
    return WEFT_OK;
}

/* Exchanges of attention run on the compute lane; a ring's messages on those of a stage's. */
weft_lane_kind weft_priced_program_lane(const weft_priced_program *p, int lane)
{
    const weft_context_plan plan = weft_context_plan_of(p->shape);
    const bool rings = p->costs->inner == WEFT_INNER_ATTENTION && weft_context_blocks(&plan) > 1;
    switch (p->costs->inner) {
    case WEFT_INNER_EXPERTS:
        return (p->travels && weft_body_travels(lane)) || weft_body_runs_on(lane)
                   ? (weft_lane_kind)lane
                   : WEFT_LANE_COMPUTE;
    case WEFT_INNER_ATTENTION:
        return rings && lane == WEFT_LANE_SEND     ? WEFT_LANE_SEND
               : rings && lane == WEFT_LANE_REDUCE ? WEFT_LANE_RECEIVE
                                                   : WEFT_LANE_COMPUTE;
    default:
        return lane == WEFT_LANE_COMPUTE ? WEFT_LANE_COMPUTE : WEFT_LANE_TENSOR;
    }
}

const weft_interference *weft_inner_interference(const weft_site *site, weft_inner inner)
{
    const bool paced = inner == WEFT_INNER_EXPERTS && site->experts;
    return &(paced ? site->experts : site->cluster)->interference;
}

/* --- what tasks take ------------------------------------------------------------------------- */

/* How much of its kind's sum a task takes, in tasks. shares: of partitions. */
static double weight_of(const weft_priced_program *p, const double *shares, const weft_task *task)
{
    switch (p->costs->inner) {
    case WEFT_INNER_ATTENTION:
        return task->kind == WEFT_TASK_SUM && weft_task_slot(task, WEFT_OPERAND_FROM) < 0
                   ? 0
                   : weft_context_share_of(p->program, task);
    case WEFT_INNER_EXPERTS:
        return task->part >= 0 && shares[task->part] > 0 ? shares[task->part] : 1;
    default:
        return 1;
    }
}

/* The shares of partitions need not be an n-th on average. */
static void share_out(weft_priced_program *p, const double *shares)
{
    double sums[WEFT_INNER_ROWS] = {0};
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < p->program->num_tasks; i++) {
            const weft_task *task = &p->program->tasks[i];
            const int row = find_row(p->costs, task->kind, summed_flow(task->flow));
            const double weight = row < 0 ? 0 : weight_of(p, shares, task);
            if (weight > 0 && pass == 0)
                sums[row] += p->costs->inner == WEFT_INNER_EXPERTS ? 1 : weight;
            else if (weight > 0)
                add_scaled(&p->times[i], &p->costs->rows[row].time, weight / sums[row]);
        }
    for (int row = 0; row < p->costs->num_rows; row++)
        if (sums[row] == 0)
            add_scaled(&p->rest, &p->costs->rows[row].time, 1);
}

/* Bytes of a stashed or, with reuse, of an offloaded tensor: the rows that travel. */
static double travelling_bytes(const weft_description *d)
{
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
static double middle_share(const weft_description *d)
{
    for (int i = 0; i < d->num_operations; i++)
        if (weft_operation_is_experts(&d->operations[i]) && d->operations[i].groups > 0)
            return (double)d->operations[i].n / (double)d->operations[i].k;
    return 0;
}

/* Messages of a partition by peers: as an all-to-all between two ranks that sends as much over each
 * link. */
static weft_status message_time(const weft_site *site, int group, int ahead, double bytes,
                                weft_task_time *out)
{
    const weft_group *ep = &site->groups[WEFT_AXIS_EP];
    const weft_moe_peer_shares share = weft_moe_peer_shares_of(ep->size, ep->near, group, ahead);
    weft_group pair = *ep;
    weft_estimate inside, between;
    pair.size = pair.near = 2;
    WEFT_TRY(weft_collective_us(site, &pair, WEFT_COLLECTIVE_ALL_TO_ALL, 2 * bytes * share.inside,
                                &inside));
    pair.near = 1;
    WEFT_TRY(weft_collective_us(site, &pair, WEFT_COLLECTIVE_ALL_TO_ALL, 2 * bytes * share.between,
                                &between));
    *out = (weft_task_time){.us = fmax(inside.us, between.us)};
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out->link_us[l] = inside.links[l].us + between.links[l].us;
    return WEFT_OK;
}

/* A copy of T_DI or T_M between device and host, of one partition. */
static weft_status copy_time(const weft_site *site, const weft_task *task, double bytes,
                             weft_task_time *out)
{
    weft_estimate estimate;
    WEFT_TRY(weft_work_us(site,
                          task->kind == WEFT_TASK_OFFLOAD ? WEFT_COST_TO_HOST : WEFT_COST_TO_DEVICE,
                          bytes, &estimate));
    *out = (weft_task_time){.us = estimate.us};
    out->link_us[WEFT_LINK_HOST] = estimate.us;
    return WEFT_OK;
}

/* What no operation says of an MoE layer's tasks. */
static weft_status price_partitions(const weft_site *site, const weft_moe_pipeline *pipeline,
                                    const weft_description *d, const double *shares,
                                    weft_priced_program *p)
{
    const double bytes = travelling_bytes(d) / pipeline->num_partitions;
    for (uint32_t i = 0; i < p->program->num_tasks; i++) {
        const weft_task *task = &p->program->tasks[i];
        const double share = task->part >= 0 && shares[task->part] > 0 ? shares[task->part] : 1;
        if ((task->kind == WEFT_TASK_OFFLOAD || task->kind == WEFT_TASK_PREFETCH) &&
            (task->flow == WEFT_FLOW_INPUT || task->flow == WEFT_FLOW_MIDDLE)) {
            WEFT_TRY(copy_time(site, task,
                               bytes * (task->flow == WEFT_FLOW_MIDDLE ? middle_share(d) : 1),
                               &p->times[i]));
            weft_task_time one = p->times[i];
            p->times[i] = (weft_task_time){0};
            add_scaled(&p->times[i], &one, share);
        } else if (pipeline->peer_group > 0 && task->peer >= 0) {
            WEFT_TRY(message_time(site, pipeline->peer_group, task->peer, bytes, &p->times[i]));
        }
    }
    return WEFT_OK;
}

weft_status weft_priced_program_make(const weft_site *site, const weft_outline *outline, int layer,
                                     const weft_inner_costs *costs, const weft_tensor_plan *cut,
                                     weft_made_programs *made, weft_priced_program *out)
{
    const weft_outline_layer *l = &outline->layers[layer];
    const weft_shape *shape = &outline->shape;
    const bool travels =
        costs->inner == WEFT_INNER_EXPERTS && weft_description_travels(&l->description);
    double parts[WEFT_MOE_MAX_PARTITIONS] = {0};
    const weft_moe_pipeline pipeline = pipeline_of(shape, travels, made->beside);
    *out = (weft_priced_program){.costs = costs, .shape = shape, .travels = travels};
    WEFT_TRY(find_program(shape, travels, costs, cut, made, &out->program));
    WEFT_TRY(WEFT_ARRAY(made->arena, (size_t)out->program->num_tasks, &out->times));
    if (costs->inner == WEFT_INNER_EXPERTS)
        weft_moe_even_shares(&pipeline, l->num_experts, parts);
    share_out(out, parts);
    return site && travels ? price_partitions(site, &pipeline, &l->description, parts, out)
                           : WEFT_OK;
}

/* --- what programs take ---------------------------------------------------------------------- */

static bool computes(int kind)
{
    return kind == WEFT_TASK_PERMUTE || kind == WEFT_TASK_EXPERT || kind == WEFT_TASK_RECOMPUTE ||
           kind == WEFT_TASK_ATTEND || kind == WEFT_TASK_SUM || kind == WEFT_TASK_PLACE ||
           kind == WEFT_TASK_PRODUCT;
}

/* Whether its tasks run one after the other, as one partition's do. */
static bool is_in_a_row(const weft_shape *shape, const weft_inner_costs *costs, bool travels)
{
    const weft_moe_pipeline pipeline = pipeline_of(shape, travels, false);
    const weft_tensor_plan plan = tensor_plan_of(costs);
    const weft_context_plan context = weft_context_plan_of(shape);
    switch (costs->inner) {
    case WEFT_INNER_EXPERTS:
        return pipeline.num_partitions == 1 && pipeline.reuse == WEFT_REUSE_NONE;
    case WEFT_INNER_ATTENTION:
        return context.cp == 1;
    default:
        return plan.chunks == 0 || !(plan.multiplies || plan.weights);
    }
}

static weft_status simulate(const weft_priced_program *p, const weft_interference *interference,
                            weft_arena *arena, weft_inner_price *out)
{
    const weft_priced_body body = {*p->program, p->times};
    weft_price price;
    WEFT_TRY(weft_program_price(&body.program, 1,
                                &(weft_pricing){.cost = weft_priced_body_us,
                                                .links = weft_priced_body_links,
                                                .context = &body,
                                                .interference = interference},
                                arena, &price));
    for (uint32_t i = 0; i < body.program.num_tasks; i++) {
        const weft_task *task = &body.program.tasks[i];
        const weft_span *span = &price.spans[0][i];
        if (computes(task->kind))
            out->computed_us += span->end_us - span->start_us;
        if (task->kind == WEFT_TASK_OFFLOAD || task->kind == WEFT_TASK_PREFETCH)
            out->copied_us += p->times[i].link_us[WEFT_LINK_HOST];
    }
    out->exposed_us = price.makespan_us - out->computed_us;
    if (out->exposed_us < ROUNDING * price.makespan_us)
        out->exposed_us = 0;
    out->exposed_us += p->rest.us;
    return WEFT_OK;
}

bool weft_inner_has_program(const weft_outline *outline, const weft_inner_costs *costs)
{
    return costs->inner != WEFT_INNER_TENSOR || !is_in_a_row(&outline->shape, costs, false);
}

weft_status weft_inner_price_of(const weft_site *site, const weft_outline *outline, int layer,
                                const weft_inner_costs *costs,
                                const weft_interference *interference, weft_made_programs *made,
                                weft_inner_price *out)
{
    const bool travels = costs->inner == WEFT_INNER_EXPERTS &&
                         weft_description_travels(&outline->layers[layer].description);
    weft_priced_program program;
    *out = (weft_inner_price){0};
    for (int i = 0; i < costs->num_rows && is_in_a_row(&outline->shape, costs, travels); i++)
        *(computes(costs->rows[i].kind) ? &out->computed_us : &out->exposed_us) +=
            costs->rows[i].time.us;
    if (is_in_a_row(&outline->shape, costs, travels))
        return WEFT_OK;
    WEFT_TRY(weft_priced_program_make(site, outline, layer, costs, NULL, made, &program));
    return simulate(&program, interference, made->arena, out);
}

/* --- layers' bodies -------------------------------------------------------------------------- */

weft_layer_body weft_layer_body_lump(double us)
{
    return (weft_layer_body){.own[0].us = us, .us = us};
}

/* All that the body has of a link. */
static double body_link_us(const weft_layer_body *body, int link)
{
    double us = 0;
    for (int i = 0; i <= body->num_programs; i++)
        us += body->own[i].link_us[link];
    for (int i = 0; i < body->num_programs; i++)
        for (uint32_t t = 0; t < body->programs[i].program->num_tasks; t++)
            us += body->programs[i].times[t].link_us[link];
    return us;
}

static weft_status add_program(const weft_site *site, const weft_outline *outline, int layer,
                               const weft_inner_costs *costs, const weft_tensor_plan *cut,
                               bool is_inlined, bool slowed, weft_made_programs *made,
                               weft_layer_body *out)
{
    const weft_interference *interference =
        slowed && site ? weft_inner_interference(site, costs->inner) : NULL;
    weft_task_time *before = &out->own[out->num_programs];
    weft_inner_price price;
    WEFT_TRY(weft_inner_price_of(site, outline, layer, costs, interference, made, &price));
    const double us = price.computed_us + price.exposed_us;
    out->us += us;
    if (is_inlined) {
        weft_priced_program *program = &out->programs[out->num_programs];
        WEFT_TRY(weft_priced_program_make(site, outline, layer, costs, cut, made, program));
        add_scaled(before, &program->rest, 1);
        out->num_programs++;
        return WEFT_OK;
    }
    before->us += us;
    for (int i = 0; i < costs->num_rows; i++)
        for (int l = 0; l < WEFT_NUM_LINKS; l++)
            before->link_us[l] += costs->rows[i].time.link_us[l];
    return WEFT_OK;
}

static void add_rest(const weft_body_total *total, bool backward, weft_layer_body *out)
{
    weft_task_time *place = &out->own[backward ? out->num_programs : 0];
    const double more_us = fmax(0, total->us - out->us);
    for (int l = 0; l < WEFT_NUM_LINKS && total->link_us; l++)
        place->link_us[l] += fmax(0, total->link_us[l] - body_link_us(out, l));
    place->us += more_us;
    out->us += more_us;
}

weft_status weft_layer_body_make(const weft_site *site, const weft_outline *outline, int layer,
                                 const weft_layer_costs *costs, bool backward, bool slowed,
                                 const weft_body_total *total, weft_made_programs *made,
                                 weft_layer_body *out)
{
    int number = 0;
    *out = (weft_layer_body){.soon_us = costs->soon_us, .late_us = costs->late_us};
    for (int i = 0; i < costs->num_programs; i++) {
        const weft_inner_costs *program = &costs->programs[i];
        if (is_backward(program->half) != backward || program->deferred)
            continue;
        add_scaled(&out->own[out->num_programs], &costs->own[backward][number], 1);
        out->us += costs->own[backward][number++].us;
        WEFT_TRY(add_program(site, outline, layer, program, NULL,
                             program->inner == WEFT_INNER_EXPERTS, slowed, made, out));
    }
    add_scaled(&out->own[out->num_programs], &costs->own[backward][number], 1);
    out->us += costs->own[backward][number].us;
    add_rest(total, backward, out);
    return WEFT_OK;
}

/* What the operations say of a program that runs: of products one that is cut alike, if there is.
 */
static const weft_inner_costs *costs_of(const weft_layer_costs *costs, int half,
                                        const struct weft_program_inside *inside, unsigned *used)
{
    int found = -1;
    for (int i = 0; i < costs->num_programs; i++) {
        const weft_inner_costs *program = &costs->programs[i];
        const weft_tensor_plan cut = tensor_plan_of(program);
        const bool is_alike =
            inside->inner != WEFT_INNER_TENSOR ||
            (cut.reads == inside->plan.reads && cut.reduces == inside->plan.reduces &&
             cut.gathers == inside->plan.gathers);
        if (program->inner == inside->inner && program->half == half && !program->deferred &&
            !(*used & 1u << i) && (found < 0 || is_alike)) {
            found = i;
            if (is_alike)
                break;
        }
    }
    if (found >= 0)
        *used |= 1u << found;
    return found < 0 ? NULL : &costs->programs[found];
}

weft_status weft_layer_body_list(const weft_site *site, const weft_outline *outline, int layer,
                                 const weft_layer_costs *costs, weft_way way, bool slowed,
                                 const weft_body_total *total, weft_made_programs *made,
                                 weft_layer_body *out)
{
    const bool backward = way != WEFT_WAY_FORWARD;
    const weft_programs_inside *inside = &outline->layers[layer].description.inside[way];
    unsigned used = 0;
    *out = weft_layer_body_lump(0);
    for (int i = 0; i < inside->count; i++) {
        const struct weft_program_inside *row = &inside->rows[i];
        const int half = !backward       ? WEFT_HALF_FORWARD
                         : row->backward ? WEFT_HALF_BACKWARD
                                         : WEFT_HALF_AGAIN;
        const weft_inner_costs *program = costs_of(costs, half, row, &used);
        weft_inner_costs *none;
        if (!program) {
            WEFT_TRY(WEFT_ARRAY(made->arena, 1, &none));
            *none = (weft_inner_costs){.inner = row->inner, .half = half};
            program = none;
        }
        add_scaled(&out->own[i], &costs->own[backward][i], 1);
        out->us += costs->own[backward][i].us;
        WEFT_TRY(add_program(site, outline, layer, program, &row->plan, true, slowed, made, out));
    }
    for (int i = inside->count; i <= WEFT_LAYER_PROGRAMS; i++) {
        add_scaled(&out->own[inside->count], &costs->own[backward][i], 1);
        out->us += costs->own[backward][i].us;
    }
    add_rest(total, backward, out);
    return WEFT_OK;
}

/* --- passes' bodies -------------------------------------------------------------------------- */

/* Of an own part, too, `place` counts the programs before it. */
static bool part_at(const weft_layer_body *body, int part, weft_body_part *out)
{
    *out = (weft_body_part){.lane = WEFT_LANE_COMPUTE};
    for (; part > 0 && out->place < body->num_programs; out->place++) {
        const weft_priced_program *inside = &body->programs[out->place];
        if ((uint32_t)part <= inside->program->num_tasks) {
            out->program = inside->program;
            out->task = (uint32_t)part - 1;
            out->lane = weft_priced_program_lane(inside, inside->program->tasks[out->task].lane);
            return true;
        }
        part -= (int)inside->program->num_tasks + 1;
    }
    return part == 0;
}

static bool part_of(const void *context, const weft_task *task, int part, weft_body_part *out)
{
    const weft_body_source *source = context;
    return part_at(source->layer(source->context, task), part, out);
}

/* The times of a layer's parts; returns their number. */
static uint32_t put_times(const weft_body_source *source, const weft_task *task,
                          weft_task_time *out)
{
    const weft_layer_body *body = source->layer(source->context, task);
    weft_body_part part;
    uint32_t count = 0;
    for (int i = 0; part_at(body, i, &part); i++)
        out[count++] =
            part.program ? body->programs[part.place].times[part.task] : body->own[part.place];
    if (source->more_us)
        out[0].us += source->more_us(source->context, task);
    return count;
}

/* Else the body is the pass's program. */
static bool has_programs(const weft_program *pass, const weft_body_source *source)
{
    for (uint32_t i = 0; i < pass->num_tasks; i++)
        if (!weft_body_beside(&pass->tasks[i]) &&
            source->layer(source->context, &pass->tasks[i])->num_programs > 0)
            return true;
    return false;
}

weft_status weft_priced_body_make(const weft_program *pass, const weft_body_source *source,
                                  weft_arena *arena, weft_priced_body *out)
{
    uint32_t at = 0;
    out->program = *pass;
    if (has_programs(pass, source))
        WEFT_TRY(weft_program_body(pass, part_of, source, arena, &out->program));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)out->program.num_tasks, &out->times));
    for (uint32_t i = 0; i < pass->num_tasks; i++) {
        const weft_task *task = &pass->tasks[i];
        if (weft_body_beside(task))
            out->times[at++] = source->beside(source->context, task);
        else
            at += put_times(source, task, &out->times[at]);
    }
    return WEFT_OK;
}

weft_status weft_priced_body_check(const weft_program *pass, const weft_body_source *source,
                                   const weft_program *body)
{
    return weft_program_body_check(pass, part_of, source, body);
}

double weft_priced_body_us(const void *context, int row, const weft_task *task)
{
    const weft_priced_body *body = context;
    (void)row;
    return body->times[task - body->program.tasks].us;
}

void weft_priced_body_links(const void *context, int row, const weft_task *task,
                            double out_us[WEFT_MAX_LINKS])
{
    const weft_priced_body *body = context;
    (void)row;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out_us[l] = body->times[task - body->program.tasks].link_us[l];
}
