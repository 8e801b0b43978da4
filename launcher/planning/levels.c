#include "launcher/planning/levels.h"

#include <math.h>
#include <string.h>

#include "core/device/device.h"
#include "core/stage.h"
#include "launcher/planning/body_price.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/sharding_price.h"
#include "launcher/planning/step_price.h"
#include "launcher/planning/tier_price.h"
#include "layers/moe/moe.h"
#include "schedule/experts/experts.h"
#include "schedule/price/price.h"

#define FORWARD_US 1000.0 /* of a virtual stage, on average, without a cluster */

/* A layer's parts, by the task of a pass. */
enum {
    BODY_FORWARD,
    BODY_BACKWARD,
    BODY_AGAIN,
    BODY_INPUT, /* of a backward in two halves */
    BODY_WEIGHTS,
    NUM_BODIES
};

typedef struct making {
    const weft_config *config;
    const weft_cluster *cluster;
    weft_level level;
    weft_body body;
    weft_trace *trace;
    weft_arena *arena;
    weft_levels *out;
    weft_program *programs;
    weft_priced_body *priced; /* by row, of passes and of programs inside a layer */
    double (*layer_us)[4]; /* [num_layers]: forward, backward, recompute, of backward the weights'
                              half */
    weft_unit_time *units; /* [num_layers] */
    weft_site *sites;      /* [num_layers]; NULL: no cluster prices */
    weft_made_programs made;
    weft_layer_body *(*bodies)[NUM_BODIES]; /* [num_layers] */
    /* The first layer that has each; -1: none. */
    int moe_layer, attention_layer, tensor_layer;
    /* Of the first layer with experts, all of them uploaded in turn, as many rows for each. */
    weft_experts_shape experts;
    weft_expert_costs expert_costs;
    double *expert_rows; /* [num_positions] */
    weft_program uploaded[2];
    bool is_tiered; /* they are beyond the device, and their tasks in layers' programs */
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

static const weft_site *site_of(const making *m, int layer)
{
    return m->sites ? &m->sites[layer] : NULL;
}

/* By a cluster, or by FLOPs. again: of a forward whose counts are known. */
static weft_status layer_costs(const making *m, int layer, bool again, weft_layer_costs *out)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_description *d = &outline->layers[layer].description;
    if (m->sites)
        return weft_pass_layer_costs(site_of(m, layer), outline, layer, again, out);
    weft_layer_costs_begin(out);
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *op = &d->operations[i];
        const weft_estimate estimate = {.us = flop_us(outline) * (double)op->flops};
        (void)weft_layer_costs_add(out, op,
                                   op->repeated                      ? WEFT_HALF_AGAIN
                                   : op->phase == WEFT_PHASE_FORWARD ? WEFT_HALF_FORWARD
                                                                     : WEFT_HALF_BACKWARD,
                                   &estimate);
    }
    return WEFT_OK;
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

/* What a layer's experts compute, shared out. Without a cluster copies take no time. */
static weft_status price_experts(making *m, const weft_outline *outline)
{
    const weft_site *site = site_of(m, m->moe_layer);
    const double experts = m->experts.num_positions, elements = expert_elements(m, outline);
    weft_expert_costs *costs = &m->expert_costs;
    weft_layer_costs *of;
    WEFT_TRY(WEFT_ARRAY(m->arena, 1, &of));
    WEFT_TRY(layer_costs(m, m->moe_layer, false, of));
    for (int backward = 0; backward < 2; backward++)
        costs->row_us[backward] =
            weft_inner_time(weft_inner_costs_of(of, WEFT_INNER_EXPERTS, backward), WEFT_TASK_EXPERT,
                            backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION)
                ->us /
            experts;
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
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->sites));
    WEFT_TRY(weft_step_experts(m->config, m->cluster, m->arena, &experts));
    WEFT_TRY(weft_stage_kinds_find(m->cluster, mesh, m->arena, &kinds));
    for (int s = 0; s < weft_layout_num_stages(layout); s++) {
        const int rank = weft_rank_of_stage(layout->is_v, layout->num_ranks, s);
        for (int l = layout->first[s]; l < layout->first[s + 1]; l++) {
            weft_pass_price price = {0};
            weft_site *site = &m->sites[l];
            WEFT_TRY(weft_step_site(m->config, m->cluster, experts, &m->out->plan, rank,
                                    kinds[rank].all, site));
            WEFT_TRY(weft_pass_price_add(site, outline, l, l + 1, &price));
            m->layer_us[l][0] = weft_pass_us(&price.forward);
            WEFT_TRY(weft_unit_price(site, outline, l, &m->units[l]));
            m->layer_us[l][1] = weft_pass_us(&price.backward);
            m->layer_us[l][l < outline->num_layers - 1] += m->units[l].clear_us;
            m->layer_us[l][2] = weft_pass_us(&price.recompute);
            m->layer_us[l][3] = weft_pass_us(&price.weights);
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

/* Experts that come up one by one take what is theirs, the rest of their layer's task nothing. */
static double task_us(const void *context, int row, const weft_task *task)
{
    const making *m = context;
    if (m->level == WEFT_LEVEL_EXPERTS || (m->is_tiered && task->expert >= 0))
        return weft_experts_task_us(&m->expert_costs, m->expert_rows, task);
    if (m->is_tiered && task->kind == WEFT_TASK_EXPERT)
        return 0;
    if (m->priced)
        return weft_priced_body_us(&m->priced[row], row, task);
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
    weft_priced_body_links(&m->priced[row], row, task, out_us);
}

/* --- layers' bodies -------------------------------------------------------------------------- */

/* As the config offloads them; else two slots of weights and two of gradients, nothing kept. */
static weft_status find_experts(making *m)
{
    const weft_step *step = &m->out->plan.step;
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
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)m->experts.num_positions, &m->expert_rows));
    for (int q = 0; q < m->experts.num_positions; q++)
        m->expert_rows[q] = 1;
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_experts(&m->experts, backward, m->arena, &m->uploaded[backward]));
    return weft_program_experts_check(&m->experts, &m->uploaded[0], &m->uploaded[1]);
}

/* As layers have them: with the chunks of their exchanges, and experts beyond the device. */
static weft_status make_experts_programs(making *m)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    weft_moe_options options = m->out->plan.step.moe;
    const bool travels = weft_description_travels(&outline->layers[m->moe_layer].description);
    options.pipeline = weft_shape_pipeline(&outline->shape);
    options.pipeline.beside = outline->pairs;
    WEFT_TRY(weft_device_create_note(&m->out->device));
    WEFT_TRY(weft_moe_runtime_create(m->out->device, &options, travels, 1, &m->out->moe));
    m->is_tiered = outline->shape.experts_on_host;
    if (m->is_tiered) {
        WEFT_TRY(find_experts(m));
        WEFT_TRY(price_experts(m, outline));
        WEFT_TRY(weft_moe_runtime_add_experts(
            m->out->moe, &(weft_moe_experts){m->experts.num_positions, m->uploaded}));
    }
    m->made.experts = weft_moe_whole_of(m->out->moe, m->out->moe->current,
                                        m->is_tiered ? m->experts.num_positions : 0)
                          ->programs;
    return WEFT_OK;
}

static weft_status make_body(making *m, int layer, bool again, weft_way way, double us,
                             weft_layer_body **out)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_site *site = site_of(m, layer);
    weft_layer_costs *costs;
    WEFT_TRY(WEFT_ARRAY(m->arena, 1, &costs));
    WEFT_TRY(WEFT_ARRAY(m->arena, 1, out));
    WEFT_TRY(layer_costs(m, layer, again, costs));
    return weft_layer_body_list(site, outline, layer, costs, way, site && weft_pass_is_slowed(site),
                                &(weft_body_total){.us = us}, &m->made, *out);
}

/* Of one part. */
static weft_status make_lump(making *m, double us, weft_layer_body **out)
{
    WEFT_TRY(WEFT_ARRAY(m->arena, 1, out));
    **out = weft_layer_body_lump(us);
    return WEFT_OK;
}

/* Layers that are alike have other times on other stages. */
static weft_status make_bodies(making *m)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    const weft_layout *layout = &outline->layout;
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->bodies));
    for (int s = 0; s < weft_layout_num_stages(layout); s++)
        for (int l = layout->first[s]; l < layout->first[s + 1]; l++) {
            const double *us = m->layer_us[l];
            weft_layer_body **of = m->bodies[l];
            if (l > layout->first[s] && l < outline->num_layers - 1 &&
                weft_pass_same_layer(outline, l - 1, l)) {
                memcpy(of, m->bodies[l - 1], sizeof *m->bodies);
                continue;
            }
            WEFT_TRY(make_body(m, l, false, WEFT_WAY_FORWARD, us[0], &of[BODY_FORWARD]));
            WEFT_TRY(make_body(m, l, false, WEFT_WAY_BACKWARD, us[1], &of[BODY_BACKWARD]));
            WEFT_TRY(make_body(m, l, true, WEFT_WAY_FORWARD, us[2], &of[BODY_AGAIN]));
            WEFT_TRY(make_body(m, l, false, WEFT_WAY_INPUT, us[1] - us[3], &of[BODY_INPUT]));
            WEFT_TRY(make_lump(m, us[3], &of[BODY_WEIGHTS]));
        }
    return WEFT_OK;
}

static const weft_layer_body *layer_body(const void *context, const weft_task *task)
{
    const making *m = context;
    return m->bodies[task->layer][task->flow == WEFT_FLOW_WEIGHT      ? BODY_WEIGHTS
                                  : task->flow == WEFT_FLOW_INPUT     ? BODY_INPUT
                                  : task->flow == WEFT_FLOW_GRADIENT  ? BODY_BACKWARD
                                  : task->kind == WEFT_TASK_RECOMPUTE ? BODY_AGAIN
                                                                      : BODY_FORWARD];
}

static weft_task_time beside_time(const void *context, const weft_task *task)
{
    const making *m = context;
    return weft_unit_task_time(&m->units[task->layer], task);
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
    const weft_body_source source = {.layer = layer_body, .beside = beside_time, .context = m};
    weft_chunk_shape shape;
    weft_program pass;
    const int num_kinds = outline->shape.splits_backward && !outline->leaves_weights
                              ? WEFT_NUM_PASS_KINDS
                              : WEFT_NUM_WHOLE_PASS_KINDS;
    const int num = num_kinds * weft_layout_num_stages(layout);
    WEFT_TRY(make_bodies(m));
    WEFT_TRY(add_rows(m, num));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)num, &m->priced));
    for (int i = 0; i < num; i++) {
        const int number = i / num_kinds;
        const int rank = number / layout->num_chunks, chunk = number % layout->num_chunks;
        const weft_pass_kind kind = (weft_pass_kind)(i % num_kinds);
        weft_priced_body *body = &m->priced[m->out->num_rows];
        WEFT_TRY(weft_outline_pass(outline, rank, chunk, m->arena, &shape));
        if (shape.num_layers == 0 || (kind == WEFT_PASS_RECOMPUTE && !shape.recomputes_early))
            continue;
        WEFT_TRY(weft_program_pass(&shape, kind, m->arena, &pass));
        WEFT_TRY(weft_program_pass_check(&shape, kind, &pass));
        WEFT_TRY(weft_priced_body_make(&pass, &source, m->arena, body));
        WEFT_TRY(weft_priced_body_check(&pass, &source, &body->program));
        m->programs[m->out->num_rows] = body->program;
        WEFT_TRY(weft_arena_printf(m->arena, &m->out->rows[m->out->num_rows++].name,
                                   "rank %d chunk %d %s", rank, chunk, weft_pass_kind_text(kind)));
    }
    return WEFT_OK;
}

static bool is_asked_for(const making *m, weft_body body)
{
    return m->body == WEFT_BODY_ALL || m->body == body;
}

/* Adds a row of a program of the layer; NULL: it has none. */
static weft_status add_inner(making *m, int layer, const weft_inner_costs *costs, const char *body)
{
    const int row = m->out->num_rows;
    const bool backward = costs && costs->half != WEFT_HALF_FORWARD;
    const char *direction = backward ? "backward" : "forward";
    weft_priced_program program;
    if (!costs)
        return WEFT_OK;
    const weft_outline *outline = &m->out->plan.step.outline;
    WEFT_TRY(weft_priced_program_make(site_of(m, layer), outline, layer, costs, NULL, &m->made,
                                      &program));
    m->priced[row] = (weft_priced_body){*program.program, program.times};
    m->programs[row] = *program.program;
    m->out->num_rows++;
    return weft_arena_printf(m->arena, &m->out->rows[row].name, "%s%s%s%s", body,
                             body[0] ? " " : "", direction, costs->deferred ? ", weights" : "");
}

/* A layer's programs of one kind. */
static weft_status add_inners(making *m, int layer, weft_inner inner, const char *body)
{
    weft_layer_costs *costs;
    if (layer < 0)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(m->arena, 1, &costs));
    WEFT_TRY(layer_costs(m, layer, false, costs));
    for (int i = 0; i < costs->num_programs; i++) {
        const weft_inner_costs *program = &costs->programs[i];
        if (program->inner == inner && program->half != WEFT_HALF_AGAIN &&
            weft_inner_has_program(&m->out->plan.step.outline, program))
            WEFT_TRY(
                add_inner(m, layer, program, inner == WEFT_INNER_TENSOR ? program->module : body));
    }
    return WEFT_OK;
}

static weft_status check_asked(const making *m)
{
    const bool attention = m->attention_layer >= 0 && is_asked_for(m, WEFT_BODY_ATTENTION),
               experts = m->moe_layer >= 0 && is_asked_for(m, WEFT_BODY_EXPERTS),
               tensor = m->tensor_layer >= 0 && is_asked_for(m, WEFT_BODY_TENSOR),
               any = m->body == WEFT_BODY_ALL;
    if (attention || experts || tensor)
        return WEFT_OK;
    if (m->body == WEFT_BODY_TENSOR)
        return WEFT_ERROR(WEFT_CONFIG,
                          "level layer: no tensor-parallel product is cut (tp_comm_overlap)");
    return WEFT_ERROR(
        WEFT_CONFIG, "level layer: %s%s%s",
        m->body != WEFT_BODY_ATTENTION ? "the model has no MoE layer" : "", any ? ", and " : "",
        m->body != WEFT_BODY_EXPERTS ? "no attention goes over context-parallel ranks (cp 1)" : "");
}

/* Names say which program's a row is, unless all are of one. */
static weft_status make_layer(making *m)
{
    const bool attention = m->attention_layer >= 0 && is_asked_for(m, WEFT_BODY_ATTENTION),
               experts = m->moe_layer >= 0 && is_asked_for(m, WEFT_BODY_EXPERTS),
               tensor = m->tensor_layer >= 0 && is_asked_for(m, WEFT_BODY_TENSOR);
    const bool several = attention + experts + tensor > 1;
    WEFT_TRY(check_asked(m));
    WEFT_TRY(add_rows(m, 2 * WEFT_LAYER_PROGRAMS));
    WEFT_TRY(WEFT_ARRAY(m->arena, 2 * WEFT_LAYER_PROGRAMS, &m->priced));
    if (attention)
        WEFT_TRY(
            add_inners(m, m->attention_layer, WEFT_INNER_ATTENTION, several ? "attention" : ""));
    if (experts)
        WEFT_TRY(add_inners(m, m->moe_layer, WEFT_INNER_EXPERTS, several ? "experts" : ""));
    return tensor ? add_inners(m, m->tensor_layer, WEFT_INNER_TENSOR, "") : WEFT_OK;
}

static weft_status make_experts(making *m)
{
    if (m->moe_layer < 0)
        return WEFT_ERROR(WEFT_CONFIG, "level experts: the model has no MoE layer");
    WEFT_TRY(find_experts(m));
    WEFT_TRY(add_rows(m, 2));
    for (int backward = 0; backward < 2; backward++) {
        m->programs[backward] = m->uploaded[backward];
        m->out->rows[backward].name = backward ? "backward" : "forward";
    }
    m->out->num_rows = 2;
    return WEFT_OK;
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

/* As in the price of a pass. */
static bool is_slowed(const making *m)
{
    return m->cluster && m->level != WEFT_LEVEL_STEP &&
           (m->level != WEFT_LEVEL_PASS || weft_pass_is_slowed(&m->sites[0]));
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
                                  .links = m->priced ? task_links : NULL,
                                  .interference = is_slowed(m) ? &m->cluster->interference : NULL,
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

/* The first layer with such a program; -1: none. */
static int find_layer(const weft_outline *outline, weft_inner inner)
{
    for (int l = 0; l < outline->num_layers; l++) {
        const weft_description *d = &outline->layers[l].description;
        for (int i = 0; i < d->num_operations; i++)
            if (d->operations[i].inner == inner)
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
    const weft_tier_room room = weft_tier_room_of(m->config);
    return weft_tier_choose(WEFT_STEP_TRAINS, m->config, &plan->mesh, moe, &room, &plan->tier);
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
    return weft_step_make(WEFT_STEP_TRAINS, &copy, &plan->mesh, &moe.options, m->arena,
                          &plan->step);
}

/* Where no order of `auto` keeps the limit, the step has another. */
static weft_status check_auto(making *m)
{
    weft_plan *plan = &m->out->plan;
    weft_config copy = *m->config;
    if (copy.schedule.pipeline_schedule != WEFT_PIPELINE_AUTO || copy.device.memory_limit == 0)
        return WEFT_OK;
    copy.tier = plan->tier.options;
    const weft_tier_room room = weft_tier_room_of(m->config);
    return weft_tier_check_room(&copy, &plan->mesh, &plan->step, &room);
}

static weft_status make(making *m, const weft_config_source *source)
{
    const weft_outline *outline = &m->out->plan.step.outline;
    WEFT_TRY(make_step(m, source));
    WEFT_TRY(check_auto(m));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->layer_us));
    WEFT_TRY(WEFT_ARRAY(m->arena, (size_t)outline->num_layers, &m->units));
    m->moe_layer = find_layer(outline, WEFT_INNER_EXPERTS);
    m->attention_layer = find_layer(outline, WEFT_INNER_ATTENTION);
    m->tensor_layer = find_layer(outline, WEFT_INNER_TENSOR);
    m->made = (weft_made_programs){.arena = m->arena};
    if (m->level == WEFT_LEVEL_EXPERTS)
        WEFT_TRY(make_experts(m));
    WEFT_TRY(m->cluster ? price_layers(m) : price_layers_by_flops(m, outline));
    if (m->level == WEFT_LEVEL_EXPERTS)
        WEFT_TRY(price_experts(m, outline));
    else if (m->level != WEFT_LEVEL_STEP && m->moe_layer >= 0)
        WEFT_TRY(make_experts_programs(m));
    if (m->level != WEFT_LEVEL_EXPERTS)
        WEFT_TRY(m->level == WEFT_LEVEL_STEP   ? make_steps(m)
                 : m->level == WEFT_LEVEL_PASS ? make_passes(m)
                                               : make_layer(m));
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
    weft_moe_runtime_destroy(levels->moe);
    weft_device_destroy(levels->device);
    levels->moe = NULL;
    levels->device = NULL;
    weft_plan_release(&levels->plan);
}

weft_status weft_levels_orders(const weft_levels *levels, weft_arena *arena, const weft_order **out)
{
    const weft_pipeline_shape *shape = &levels->plan.step.shape;
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    weft_order *made;
    *out = shape->orders;
    if (shape->orders)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)shape->num_stages, &made));
    *out = made;
    return weft_order_make(shape->kind, &order, arena, made);
}
