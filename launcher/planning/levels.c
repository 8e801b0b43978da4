#include "launcher/planning/levels.h"

#include <math.h>
#include <string.h>

#include "core/stage.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/sharding_price.h"
#include "launcher/planning/step_price.h"
#include "launcher/planning/tier_price.h"
#include "schedule/experts/experts.h"
#include "schedule/price/price.h"

#define FORWARD_US 1000.0 /* of a virtual stage, on average, without a cluster */

enum { MAX_BODIES = 2 };

typedef struct making {
    const weft_config *config;
    const weft_cluster *cluster;
    weft_level level;
    weft_body body;
    weft_trace *trace;
    weft_arena *arena;
    weft_levels *out;
    weft_program *programs;
    double (*layer_us)[4]; /* [num_layers]: forward, backward, recompute, of backward the weights'
                              half */
    weft_unit_time *units; /* [num_layers] */
    /* What is a program inside a layer: whose forward and backward rows 2 i and 2 i + 1 are; the
     * first layer that has each, -1: none; what their tasks take, forward and backward. */
    weft_body bodies[MAX_BODIES];
    int moe_layer, attention_layer;
    weft_moe_costs moe[2];
    weft_inner_costs attention[2];
    /* Of the first layer with experts, all of them uploaded in turn, as many rows for each. */
    weft_experts_shape experts;
    weft_expert_costs expert_costs;
    double *expert_rows; /* [num_positions] */
} making;

/* --- what tasks take ----------------------------------------------------------------------- */

/* Microseconds of a FLOP: so that virtual stages' forwards take FORWARD_US on average. */
static double flop_us(const weft_outline *outline)
{
    double flops = 0;
    for (int l = 0; l < outline->num_layers; l++)
        flops += (double)outline->layers[l].description.cost.forward_flops;
    return flops > 0 ? FORWARD_US * weft_layout_num_stages(&outline->layout) / flops : 0;
}

/* Experts' FLOPs, a partition's part of them. */
static void price_partition_by_flops(making *m, const weft_outline *outline)
{
    const weft_description *d = &outline->layers[m->moe_layer].description;
    const double us = flop_us(outline) / weft_shape_pipeline(&outline->shape).num_partitions;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *op = &d->operations[i];
        if (!weft_operation_is_experts(op))
            continue;
        double *place = op->phase == WEFT_PHASE_FORWARD     ? &m->moe[0].expert_us
                        : op->phase == WEFT_PHASE_RECOMPUTE ? &m->moe[1].recompute_us
                                                            : &m->moe[1].expert_backward_us;
        *place += us * (double)op->flops;
    }
}

static void price_attention_by_flops(making *m, const weft_outline *outline)
{
    const weft_description *d = &outline->layers[m->attention_layer].description;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *op = &d->operations[i];
        const weft_estimate estimate = {.us = flop_us(outline) * (double)op->flops};
        const bool backward = op->phase != WEFT_PHASE_FORWARD;
        if (!op->repeated && op->inner == WEFT_INNER_ATTENTION)
            weft_inner_add(&m->attention[backward], op, &estimate);
    }
}

/* A rank's weights of one expert, in elements. */
static double expert_elements(const making *m, const weft_outline *outline)
{
    const weft_description *d = &outline->layers[m->moe_layer].description;
    double elements = 0;
    for (int i = 0; i < d->num_held; i++)
        elements += d->held[i].group == WEFT_GRADIENT_EXPERT ? (double)d->held[i].local : 0;
    return elements / m->experts.num_positions;
}

/* What a partition's experts compute, shared out. site NULL: copies take no time. */
static weft_status price_experts(making *m, const weft_outline *outline, const weft_site *site)
{
    const double experts = m->experts.num_positions;
    const double parts = weft_shape_pipeline(&outline->shape).num_partitions;
    const double elements = expert_elements(m, outline);
    weft_expert_costs *costs = &m->expert_costs;
    costs->row_us[0] = m->moe[0].expert_us * parts / experts;
    costs->row_us[1] = m->moe[1].expert_backward_us * parts / experts;
    if (!site)
        return WEFT_OK;
    WEFT_TRY(weft_tier_costs(site, outline, elements, costs));
    return m->experts.num_places > 0
               ? weft_tier_file_costs(site, outline, elements, m->experts.accumulates, costs)
               : WEFT_OK;
}

static double deferred_flops(const weft_description *description)
{
    double flops = 0;
    for (int i = 0; i < description->num_operations; i++)
        flops += description->operations[i].deferred ? (double)description->operations[i].flops : 0;
    return flops;
}

static weft_status price_layers_by_flops(making *m, const weft_outline *outline)
{
    const double us = flop_us(outline);
    if (!(us > 0))
        return WEFT_ERROR(WEFT_CONFIG, "no layer describes FLOPs: there is nothing to price by");
    for (int l = 0; l < outline->num_layers; l++) {
        const weft_layer_cost *cost = &outline->layers[l].description.cost;
        m->layer_us[l][0] = us * (double)cost->forward_flops;
        m->layer_us[l][1] = us * (double)cost->backward_flops;
        m->layer_us[l][2] = outline->layers[l].recompute_group > 0 ? m->layer_us[l][0] : 0;
        m->layer_us[l][3] = us * deferred_flops(&outline->layers[l].description);
    }
    return WEFT_OK;
}

static weft_status price_layers(making *m)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_layout *layout = &outline->layout;
    const weft_mesh *mesh = &m->out->plan.mesh;
    const weft_cluster *experts;
    weft_stage_kinds *kinds;
    weft_site site;
    WEFT_TRY(weft_step_experts(m->config, m->cluster, m->arena, &experts));
    WEFT_TRY(weft_stage_kinds_find(m->cluster, mesh, m->arena, &kinds));
    for (int s = 0; s < weft_layout_num_stages(layout); s++) {
        const int rank = weft_rank_of_stage(layout->is_v, layout->num_ranks, s);
        WEFT_TRY(weft_step_site(m->config, m->cluster, experts, &m->out->plan, rank,
                                kinds[rank].all, &site));
        for (int l = layout->first[s]; l < layout->first[s + 1]; l++) {
            weft_pass_price price = {0};
            WEFT_TRY(weft_pass_price_add(&site, outline, l, l + 1, &price));
            m->layer_us[l][0] = weft_pass_us(&price.forward);
            WEFT_TRY(weft_unit_price(&site, outline, l, &m->units[l]));
            m->layer_us[l][1] = weft_pass_us(&price.backward);
            m->layer_us[l][l < outline->num_layers - 1] += m->units[l].clear_us;
            m->layer_us[l][2] = weft_pass_us(&price.recompute);
            m->layer_us[l][3] = weft_pass_us(&price.weights);
            if (l == m->moe_layer)
                WEFT_TRY(weft_pass_price_partition(&site, outline, l, m->moe));
            if (l == m->moe_layer && m->level == WEFT_LEVEL_EXPERTS)
                WEFT_TRY(price_experts(m, outline, &site));
            if (l == m->attention_layer)
                WEFT_TRY(weft_pass_price_attention(&site, outline, l, m->attention));
        }
    }
    return WEFT_OK;
}

/* Of a whole pass: of its layers one by one. */
static double pass_us(const making *m, int row, const weft_task *task)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_layout *layout = &outline->layout;
    const bool backward = task->kind == WEFT_TASK_BACKWARD;
    double us = 0;
    int first, end;
    weft_layout_range(layout, row, task->chunk, &first, &end);
    for (int l = first; l < end; l++) {
        const bool is_early = weft_outline_recomputes_layer_early(outline, row, task->chunk, l);
        if (task->flow == WEFT_FLOW_WEIGHT) {
            us += m->layer_us[l][3];
            continue;
        }
        us += task->kind == WEFT_TASK_RECOMPUTE ? 0 : m->layer_us[l][backward];
        us -= task->flow == WEFT_FLOW_INPUT ? m->layer_us[l][3] : 0;
        us += (task->kind == WEFT_TASK_RECOMPUTE) == is_early && task->kind != WEFT_TASK_FORWARD
                  ? m->layer_us[l][2]
                  : 0;
    }
    return us;
}

static double task_us(const void *context, int row, const weft_task *task)
{
    const making *m = context;
    const bool backward = task->kind == WEFT_TASK_BACKWARD || task->flow == WEFT_FLOW_GRADIENT;
    if (m->level == WEFT_LEVEL_EXPERTS)
        return weft_experts_task_us(&m->expert_costs, m->expert_rows, task);
    if (m->level == WEFT_LEVEL_LAYER)
        return m->bodies[row / 2] == WEFT_BODY_ATTENTION
                   ? weft_context_task_time(&m->attention[row % 2], task)->us
                   : weft_moe_task_us(&m->moe[row % 2], task);
    if (task->kind == WEFT_TASK_LAYER)
        return m->layer_us[task->layer][backward];
    if (task->kind == WEFT_TASK_RECOMPUTE && task->layer >= 0)
        return m->layer_us[task->layer][2];
    if (task->kind == WEFT_TASK_GATHER && task->layer >= 0)
        return m->units[task->layer].gather_us;
    if (task->kind == WEFT_TASK_REDUCE && task->layer >= 0)
        return m->units[task->layer].reduce_us;
    if (task->kind == WEFT_TASK_OFFLOAD && task->layer >= 0)
        return m->units[task->layer].offload_us;
    if (task->kind == WEFT_TASK_PREFETCH && task->layer >= 0)
        return m->units[task->layer].prefetch_us;
    if (task->kind != WEFT_TASK_FORWARD && task->kind != WEFT_TASK_BACKWARD &&
        task->kind != WEFT_TASK_RECOMPUTE)
        return 0;
    if (weft_task_opens_pair(task)) /* both end when the pair does */
        return pass_us(m, row, task) + pass_us(m, row, task + 1);
    return task->flags & WEFT_TASK_PAIRED ? 0 : pass_us(m, row, task);
}

static void task_links(const void *context, int row, const weft_task *task,
                       double out_us[WEFT_MAX_LINKS])
{
    const making *m = context;
    if (m->bodies[row / 2] != WEFT_BODY_ATTENTION)
        return;
    const weft_task_time *time = weft_context_task_time(&m->attention[row % 2], task);
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        out_us[l] = time->link_us[l];
}

/* --- the programs of a level --------------------------------------------------------------- */

static weft_status add_rows(making *m, int capacity)
{
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)capacity, &m->out->rows));
    return WEFT_ARRAY(m->arena, (size_t)capacity, &m->programs);
}

static weft_status make_steps(making *m)
{
    const weft_step *step = &m->out->plan.step;
    WEFT_TRY(add_rows(m, step->shape.num_stages));
    for (int rank = 0; rank < step->shape.num_stages; rank++) {
        m->programs[rank] = step->programs[rank];
        WEFT_TRY(weft_arena_printf(m->arena, &m->out->rows[rank].name, "rank %d", rank));
    }
    m->out->num_rows = step->shape.num_stages;
    return WEFT_OK;
}

/* An empty chunk has no pass. */
static weft_status make_passes(making *m)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_layout *layout = &outline->layout;
    weft_chunk_shape shape;
    const int num_kinds = outline->shape.splits_backward && !outline->leaves_weights
                              ? WEFT_NUM_PASS_KINDS
                              : WEFT_NUM_WHOLE_PASS_KINDS;
    const int num = num_kinds * weft_layout_num_stages(layout);
    WEFT_TRY(add_rows(m, num));
    for (int i = 0; i < num; i++) {
        const int pass = i / num_kinds;
        const int rank = pass / layout->num_chunks, chunk = pass % layout->num_chunks;
        const weft_pass_kind kind = (weft_pass_kind)(i % num_kinds);
        weft_program *program = &m->programs[m->out->num_rows];
        WEFT_TRY(weft_outline_pass(outline, rank, chunk, m->arena, &shape));
        if (shape.num_layers == 0 || (kind == WEFT_PASS_RECOMPUTE && !shape.recomputes_early))
            continue;
        WEFT_TRY(weft_program_pass(&shape, kind, m->arena, program));
        WEFT_TRY(weft_program_pass_check(&shape, kind, program));
        WEFT_TRY(weft_arena_printf(m->arena, &m->out->rows[m->out->num_rows++].name,
                                   "rank %d chunk %d %s", rank, chunk, weft_pass_kind_text(kind)));
    }
    return WEFT_OK;
}

static weft_status make_partitions(making *m, weft_program programs[2])
{
    weft_moe_pipeline pipeline = weft_shape_pipeline(&m->out->plan.step.outline.shape);
    pipeline.beside = m->out->plan.step.outline.pairs;
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_moe(&pipeline, backward, m->arena, &programs[backward]));
    return weft_program_moe_check(&pipeline, &programs[0], &programs[1]);
}

static weft_status make_attention(making *m, weft_program programs[2])
{
    const weft_context_plan plan = weft_context_plan_of(&m->out->plan.step.outline.shape);
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_context(&plan, backward, m->arena, &programs[backward]));
    return weft_program_context_check(&plan, &programs[0], &programs[1]);
}

/* Lists what the model has of what is asked for. */
static weft_status list_bodies(making *m, int *num)
{
    const bool any = m->body == WEFT_BODY_ALL;
    const bool experts = (any || m->body == WEFT_BODY_EXPERTS) && m->moe_layer >= 0;
    const bool attention = (any || m->body == WEFT_BODY_ATTENTION) && m->attention_layer >= 0;
    *num = 0;
    if (attention)
        m->bodies[(*num)++] = WEFT_BODY_ATTENTION;
    if (experts)
        m->bodies[(*num)++] = WEFT_BODY_EXPERTS;
    if (*num > 0)
        return WEFT_OK;
    return WEFT_ERROR(
        WEFT_CONFIG, "level layer: %s%s%s",
        m->body != WEFT_BODY_ATTENTION ? "the model has no MoE layer" : "", any ? ", and " : "",
        m->body != WEFT_BODY_EXPERTS ? "no attention goes over context-parallel ranks (cp 1)" : "");
}

static weft_status make_layer(making *m)
{
    int num;
    WEFT_TRY(list_bodies(m, &num));
    WEFT_TRY(add_rows(m, 2 * num));
    for (int i = 0; i < num; i++) {
        const bool experts = m->bodies[i] == WEFT_BODY_EXPERTS;
        weft_level_row *rows = &m->out->rows[2 * i];
        WEFT_TRY((experts ? make_partitions : make_attention)(m, &m->programs[2 * i]));
        rows[0].name = num < 2 ? "forward" : experts ? "experts forward" : "attention forward";
        rows[1].name = num < 2 ? "backward" : experts ? "experts backward" : "attention backward";
    }
    m->out->num_rows = 2 * num;
    return WEFT_OK;
}

/* As the config offloads them; else two slots of weights and two of gradients, nothing kept. */
static weft_status make_experts(making *m)
{
    const weft_step *step = &m->out->plan.step;
    if (m->moe_layer < 0)
        return WEFT_ERROR(WEFT_CONFIG, "level experts: the model has no MoE layer");
    const int num = (int)weft_moe_dims_of(&m->config->model, &step->outline.shape).local_experts;
    const bool accumulates = step->shape.num_micro_batches > 1 || step->outline.accumulates;
    m->experts =
        step->outline.shape.experts_on_host
            ? weft_tier_shape(&step->outline.tier, num, step->outline.shape.ep, accumulates)
            : (weft_experts_shape){.num_positions = num,
                                   .num_slots = 2,
                                   .num_gradient_slots = WEFT_TIER_GRADIENTS,
                                   .order = WEFT_EXPERT_ORDER_EXPERT,
                                   .accumulates = accumulates};
    WEFT_TRY(add_rows(m, 2));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)m->experts.num_positions, &m->expert_rows));
    for (int q = 0; q < m->experts.num_positions; q++)
        m->expert_rows[q] = 1;
    for (int backward = 0; backward < 2; backward++) {
        WEFT_TRY(weft_program_experts(&m->experts, backward, m->arena, &m->programs[backward]));
        m->out->rows[backward].name = backward ? "backward" : "forward";
    }
    m->out->num_rows = 2;
    return weft_program_experts_check(&m->experts, &m->programs[0], &m->programs[1]);
}

/* The description says what all tasks of a kind take. */
static void share_attention(making *m)
{
    for (int i = 0; i < m->out->num_rows; i++)
        if (m->bodies[i / 2] == WEFT_BODY_ATTENTION)
            weft_context_share(&m->attention[i % 2], &m->programs[i]);
}

/* --- the whole ----------------------------------------------------------------------------- */

static weft_status name_rows(making *m)
{
    const char **names;
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)m->out->num_rows, &names));
    for (int i = 0; i < m->out->num_rows; i++)
        names[i] = m->out->rows[i].name;
    weft_trace_name_ranks(m->trace, names, m->out->num_rows);
    return WEFT_OK;
}

/* A step that its cluster has priced has its times. Else programs of one level take no notice of
 * each other, but for a step's messages. */
static weft_status price_rows(making *m)
{
    weft_levels *out = m->out;
    const weft_plan *plan = &out->plan;
    const bool is_step = m->level == WEFT_LEVEL_STEP, is_priced = m->cluster && is_step;
    const weft_pricing pricing = {.cost = task_us,
                                  .context = m,
                                  .links = m->level == WEFT_LEVEL_LAYER ? task_links : NULL,
                                  .interference = m->cluster && m->level >= WEFT_LEVEL_LAYER
                                                      ? &m->cluster->interference
                                                      : NULL,
                                  .trace = m->trace};
    weft_price price;
    if (!is_priced)
        WEFT_TRY(weft_program_price(m->programs, out->num_rows, &pricing, m->arena, &price));
    out->us = is_priced ? plan->step_us : price.makespan_us;
    for (int i = 0; i < out->num_rows; i++) {
        weft_level_row *row = &out->rows[i];
        row->program = &m->programs[i];
        row->us = is_step ? out->us : 0;
        if (!is_step)
            for (uint32_t t = 0; t < row->program->num_tasks; t++)
                row->us = fmax(row->us, price.spans[i][t].end_us);
        const double idle =
            is_priced ? plan->stages[i].us[WEFT_TIME_BUBBLE] : row->us - price.busy_us[i];
        row->bubble_share = row->us > 0 ? fmax(0, idle) / row->us : 0;
    }
    return m->trace ? name_rows(m) : WEFT_OK;
}

static int find_moe_layer(const weft_outline *outline)
{
    int l = 0;
    while (l < outline->num_layers &&
           !weft_description_has_experts(&outline->layers[l].description))
        l++;
    return l < outline->num_layers ? l : -1;
}

static int find_attention_layer(const weft_outline *outline)
{
    for (int l = 0; l < outline->num_layers && outline->shape.cp > 1; l++) {
        const weft_description *d = &outline->layers[l].description;
        for (int i = 0; i < d->num_operations; i++)
            if (d->operations[i].fused)
                return l;
    }
    return -1;
}

/* By what the config says that there is. */
static weft_status choose_tier(const making *m, const weft_moe_options *moe, weft_plan *plan)
{
    plan->tier.options = m->config->tier;
    if (!weft_tier_is_left_open(&m->config->tier))
        return WEFT_OK;
    weft_tier_room *rooms;
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)plan->mesh.pp, &rooms));
    for (int s = 0; s < plan->mesh.pp; s++)
        rooms[s] = weft_tier_room_of(m->config);
    return weft_tier_choose(m->config, &plan->mesh, moe, rooms, &plan->tier);
}

static weft_status make_step(making *m, const weft_config_source *source)
{
    weft_moe_nodes nodes;
    weft_moe_selection moe;
    weft_plan *plan = &m->out->plan;
    if (m->cluster)
        return weft_plan_make(m->config, source, m->cluster,
                              m->level == WEFT_LEVEL_STEP ? m->trace : NULL, m->arena, plan);
    WEFT_TRY(weft_config_mesh(m->config, source, 0, &plan->mesh));
    WEFT_TRY(weft_moe_find_nodes(m->config, &plan->mesh, NULL, &nodes));
    WEFT_TRY(weft_moe_selection_start(m->config, &plan->mesh, &nodes, &moe));
    weft_config copy = *m->config;
    WEFT_TRY(choose_tier(m, &moe.options, plan));
    copy.tier = plan->tier.options;
    return weft_step_make(&copy, &plan->mesh, &moe.options, m->arena, &plan->step);
}

/* Where no order of `auto` keeps the limit, the step has another. */
static weft_status check_auto(making *m)
{
    weft_plan *plan = &m->out->plan;
    weft_config copy = *m->config;
    if (copy.schedule.pipeline_schedule != WEFT_PIPELINE_AUTO || copy.device.memory_limit == 0)
        return WEFT_OK;
    copy.tier = plan->tier.options;
    weft_tier_room *rooms;
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)plan->mesh.pp, &rooms));
    for (int s = 0; s < plan->mesh.pp; s++)
        rooms[s] = weft_tier_room_of(m->config);
    return weft_tier_check_room(&copy, &plan->mesh, &plan->step, rooms);
}

static weft_status make(making *m, const weft_config_source *source)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    WEFT_TRY(make_step(m, source));
    WEFT_TRY(check_auto(m));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->layer_us));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->units));
    m->moe_layer = find_moe_layer(outline);
    m->attention_layer = find_attention_layer(outline);
    WEFT_TRY(m->level == WEFT_LEVEL_STEP      ? make_steps(m)
             : m->level == WEFT_LEVEL_PASS    ? make_passes(m)
             : m->level == WEFT_LEVEL_EXPERTS ? make_experts(m)
                                              : make_layer(m));
    if (m->cluster) {
        WEFT_TRY(price_layers(m));
    } else {
        WEFT_TRY(price_layers_by_flops(m, outline));
        if (m->moe_layer >= 0)
            price_partition_by_flops(m, outline);
        if (m->level == WEFT_LEVEL_EXPERTS)
            WEFT_TRY(price_experts(m, outline, NULL));
        if (m->attention_layer >= 0)
            price_attention_by_flops(m, outline);
    }
    if (m->level == WEFT_LEVEL_LAYER)
        share_attention(m);
    return price_rows(m);
}

weft_status weft_levels_make(const weft_config *config, const weft_config_source *source,
                             const weft_cluster *cluster, weft_level level, weft_body body,
                             weft_trace *trace, weft_arena *arena, weft_levels *out)
{
    memset(out, 0, sizeof *out);
    making m = {.config = config,
                .cluster = cluster,
                .level = level,
                .body = body,
                .trace = trace,
                .arena = arena,
                .out = out};
    weft_status status = weft_config_locate(source, make(&m, source));
    if (status != WEFT_OK)
        weft_levels_release(out);
    return status;
}

void weft_levels_release(weft_levels *levels)
{
    weft_plan_release(&levels->plan);
}

weft_status weft_levels_orders(const weft_levels *levels, weft_arena *arena, const weft_order **out)
{
    const weft_pipeline_shape *shape = &levels->plan.step.shape;
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    void *memory;
    *out = shape->orders;
    if (shape->orders)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)shape->num_stages, sizeof **out, &memory));
    *out = memory;
    return weft_order_make(shape->kind, &order, arena, memory);
}
