#include "launcher/planning/figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/step_price.h"
#include "parallel/optimizer/optimizer.h"

#define UNKNOWN ((double)NAN)

/* What making them takes. */
typedef struct making {
    const weft_config *config;
    const weft_config_source *source;
    const weft_cluster *cluster;
    weft_plan *plan;
    weft_plan_figures *out;
} making;

/* --- between which times -------------------------------------------------------------------- */

/* The same programs at one end of all inputs. */
static weft_status price_at(const making *m, weft_cluster_end end, weft_arena *scratch,
                            double *out_us)
{
    weft_config config = *m->config;
    weft_plan plan = *m->plan;
    weft_cluster *moved;
    WEFT_TRY(weft_arena_alloc(scratch, sizeof *m->cluster, &moved));
    weft_cluster_at_end(m->cluster, end, moved);
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)plan.num_stages, &plan.stages));
    memset(plan.us, 0, sizeof plan.us);
    if (weft_plan_is_of_gpus(m->config, m->cluster))
        config.device.kind = WEFT_DEVICE_KIND_CUDA;
    WEFT_TRY(weft_step_price(&config, moved, NULL, scratch, &plan));
    *out_us = plan.step_us;
    return WEFT_OK;
}

/* Tasks that meet in another order may end sooner where each takes longer: the step as planned is
 * within the range whatever they do. */
static weft_status find_range(const making *m, double out_us[2])
{
    double us[WEFT_NUM_CLUSTER_ENDS];
    for (int end = 0; end < WEFT_NUM_CLUSTER_ENDS; end++) {
        weft_arena scratch = {0};
        const weft_status status = price_at(m, (weft_cluster_end)end, &scratch, &us[end]);
        weft_arena_release(&scratch);
        WEFT_TRY(status);
    }
    out_us[0] = fmin(us[WEFT_CLUSTER_FAST], m->plan->step_us);
    out_us[1] = fmax(us[WEFT_CLUSTER_SLOW], m->plan->step_us);
    return WEFT_OK;
}

weft_status weft_plan_range(const weft_config *config, const weft_cluster *cluster,
                            const weft_plan *plan, double out_us[2])
{
    weft_plan copy = *plan;
    const making m = {.config = config, .cluster = cluster, .plan = &copy};
    return find_range(&m, out_us);
}

/* --- loads of experts ----------------------------------------------------------------------- */

weft_status weft_plan_check_load(const weft_config *config, const weft_config_source *source,
                                 bool any_mesh)
{
    weft_mesh mesh;
    if (config->model.num_experts == 0)
        return WEFT_ERROR(WEFT_CONFIG, "--expert-load %g: the model has no experts",
                          config->moe_load);
    if (any_mesh)
        return WEFT_OK;
    WEFT_TRY(weft_config_mesh(config, source, 0, &mesh));
    const double worst = weft_moe_worst_load(config, &mesh);
    if (config->moe_load <= worst)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG,
                      "--expert-load %g: on this mesh the fullest rank has at most %g times the "
                      "mean",
                      config->moe_load, worst);
}

static weft_status plan_at(const making *m, double load, weft_plan_at_load *out)
{
    weft_config config = *m->config;
    weft_arena scratch = {0};
    weft_plan plan = {0};
    config.moe_load = load;
    const weft_status status =
        weft_plan_make(&config, m->source, m->cluster, NULL, &scratch, &plan);
    if (status == WEFT_OK)
        *out = (weft_plan_at_load){load, plan.step_us, plan.memory_bytes, plan.fits};
    weft_plan_release(&plan);
    weft_arena_release(&scratch);
    return status;
}

static weft_status find_loads(const making *m)
{
    const weft_plan *plan = m->plan;
    const double own = fmax(plan->step.outline.shape.moe_load, 1),
                 worst = weft_moe_worst_load(m->config, &plan->mesh);
    const double loads[WEFT_MAX_PLAN_LOADS] = {1, own, worst};
    for (int i = 0; i < WEFT_MAX_PLAN_LOADS; i++) {
        weft_plan_at_load *out = &m->out->loads[m->out->num_loads];
        if (i > 0 && loads[i] <= out[-1].load)
            continue;
        *out = (weft_plan_at_load){own, plan->step_us, plan->memory_bytes, plan->fits};
        if (loads[i] != own)
            WEFT_TRY(plan_at(m, loads[i], out));
        m->out->num_loads++;
    }
    return WEFT_OK;
}

/* --- checkpoints ---------------------------------------------------------------------------- */

enum { STATE_BYTES = WEFT_NUM_STATES * sizeof(float) }; /* of an element that AdamW steps */

/* Bytes that the ranks of a stage write between them. */
typedef struct stage_bytes {
    double dense, expert;
} stage_bytes;

static stage_bytes bytes_of_stage(const weft_outline *outline, int rank)
{
    stage_bytes bytes = {0, 0};
    int first, end;
    for (int chunk = 0; chunk < outline->layout.num_chunks; chunk++) {
        weft_layout_range(&outline->layout, rank, chunk, &first, &end);
        for (int l = first; l < end; l++)
            for (int i = 0; i < outline->layers[l].num_parameters; i++) {
                const weft_held *held = &outline->layers[l].parameters[i];
                double *to = held->group == WEFT_GRADIENT_EXPERT ? &bytes.expert : &bytes.dense;
                const bool by_muon = outline->residency.muon && held->matrices.count > 0;
                *to += (double)held->global * (STATE_BYTES - (by_muon ? sizeof(float) : 0));
            }
    }
    return bytes;
}

/* What a rank writes: its part of the stage's, one replica of it or its share (ZeRO). */
static double bytes_written(const weft_plan *plan, const stage_bytes *stages, int rank)
{
    const weft_mesh *mesh = &plan->mesh;
    const weft_coords at = weft_mesh_coords(mesh, rank);
    const bool shares = plan->step.outline.residency.sharding != WEFT_NO_SHARD;
    const stage_bytes *stage = &stages[at.at[WEFT_AXIS_PP]];
    double bytes = 0;
    if (shares || at.at[WEFT_AXIS_DP_CP] == 0)
        bytes += stage->dense / mesh->tp / (shares ? mesh->dp * mesh->cp : 1);
    if (stage->expert > 0 && (shares || at.at[WEFT_AXIS_EDP] == 0))
        bytes += stage->expert / mesh->ep / mesh->etp / (shares ? mesh->edp : 1);
    return bytes;
}

/* Seconds in which a rank of the slowest nodes of a mesh reads or writes so much, by the nodes'
 * group; all ranks of the nodes do. */
static double storage_s(const making *m, weft_cost_kind kind,
                        const double volumes[WEFT_MAX_NODE_GROUPS + 1])
{
    double us = 0;
    for (int group = -1; group < m->cluster->num_groups; group++) {
        const weft_site site = {.cluster = m->cluster,
                                .kinds = group < 0 ? 0 : 1u << group,
                                .inputs = &m->plan->inputs};
        weft_estimate estimate;
        if (!(volumes[group + 1] > 0))
            continue;
        if (weft_work_us(&site, kind, volumes[group + 1], &estimate) != WEFT_OK) {
            weft_error_clear(); /* the file does not tell */
            return UNKNOWN;
        }
        us = fmax(us, estimate.us);
    }
    return us / 1e6;
}

/* The fullest node's bytes a rank, by the nodes' group. */
static void find_written(const making *m, const stage_bytes *stages,
                         double out[WEFT_MAX_NODE_GROUPS + 1])
{
    const int each = m->cluster->ranks_per_node, world = m->plan->mesh.world;
    for (int first = 0; first < world; first += each) {
        double *most = &out[weft_cluster_group_of(m->cluster, first / each) + 1];
        double bytes = 0;
        for (int r = first; r < first + each && r < world; r++)
            bytes += bytes_written(m->plan, stages, r);
        *most = fmax(*most, bytes / each);
    }
}

/* Every rank reads so much. A mesh smaller than a node has all of the node's storage. */
static double read_s(const making *m, double bytes)
{
    const int each = m->cluster->ranks_per_node, world = m->plan->mesh.world;
    double volumes[WEFT_MAX_NODE_GROUPS + 1] = {0};
    if (world < each)
        bytes *= (double)world / each;
    for (int group = -1; group < m->cluster->num_groups; group++)
        if ((group < 0) == (m->cluster->num_groups == 0) &&
            weft_kind_num_ranks(m->cluster, &m->plan->mesh, group) > 0)
            volumes[group + 1] = bytes;
    return storage_s(m, WEFT_COST_STORAGE_READ, volumes);
}

/* *out_load_s: until it is read again, and verified. */
static weft_status find_checkpoint(const making *m, weft_arena *scratch, double *out_load_s)
{
    const weft_plan *plan = m->plan;
    const int world = plan->mesh.world;
    double volumes[WEFT_MAX_NODE_GROUPS + 1] = {0}, all = 0, most_owned = 0;
    stage_bytes *stages;
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)plan->num_stages, &stages));
    for (int s = 0; s < plan->num_stages; s++) {
        double owned = 0;
        stages[s] = bytes_of_stage(&plan->step.outline, s);
        all += stages[s].dense + stages[s].expert;
        for (int group = 0; group < WEFT_NUM_GRADIENT_GROUPS; group++)
            owned += (double)plan->step.outline.held[s].owned[group];
        most_owned = fmax(most_owned, owned * STATE_BYTES);
    }
    find_written(m, stages, volumes);
    m->out->checkpoint_bytes = (uint64_t)all;
    m->out->write_s = storage_s(m, WEFT_COST_STORAGE_WRITE, volumes);
    m->out->stall_s = m->out->write_s + read_s(m, all / world);
    *out_load_s = read_s(m, all / world + most_owned);
    return WEFT_OK;
}

/* --- failures and costs --------------------------------------------------------------------- */

double weft_daly_interval_s(double save_s, double between_s)
{
    const double half = save_s / (2 * between_s);
    if (!(half < 1))
        return between_s;
    return sqrt(2 * save_s * between_s) * (1 + sqrt(half) / 3 + half / 9) - save_s;
}

double weft_daly_goodput(double interval_s, double save_s, double restart_s, double between_s)
{
    return interval_s /
           (between_s * exp(restart_s / between_s) * expm1((interval_s + save_s) / between_s));
}

/* A figure summed over the nodes of the mesh, or its reciprocal; UNKNOWN where one lacks it. */
static double sum_nodes(const weft_cluster *c, const weft_mesh *mesh, weft_figure figure,
                        bool reciprocal)
{
    double sum = 0;
    for (int group = c->num_groups > 0 ? 0 : -1; group < c->num_groups; group++) {
        const weft_hardware *h = weft_cluster_hardware(c, group);
        const double ranks = (double)weft_kind_num_ranks(c, mesh, group);
        const double nodes = ceil(ranks / c->ranks_per_node);
        if (nodes > 0 && !weft_hardware_knows(h, figure))
            return UNKNOWN;
        if (nodes > 0)
            sum += nodes * (reciprocal ? 1 / h->figures[figure] : h->figures[figure]);
    }
    return sum;
}

/* Nodes wait for each other: the longest. */
static double longest_restart_s(const weft_cluster *c, const weft_mesh *mesh)
{
    double longest_s = 0;
    if (isnan(sum_nodes(c, mesh, WEFT_FIGURE_RESTART, false)))
        return UNKNOWN;
    for (int group = c->num_groups > 0 ? 0 : -1; group < c->num_groups; group++) {
        const weft_hardware *h = weft_cluster_hardware(c, group);
        if (weft_kind_num_ranks(c, mesh, group) > 0)
            longest_s = fmax(longest_s, h->figures[WEFT_FIGURE_RESTART]);
    }
    return longest_s;
}

static void use(const making *m, weft_figure figure, double value)
{
    if (!isnan(value))
        m->plan->inputs.used |= UINT64_C(1) << figure;
}

/* "a, b". */
static weft_status find_lacking(const making *m, double load_s, weft_arena *arena)
{
    weft_plan_figures *out = m->out;
    const struct {
        weft_figure figure;
        double follows;
    } rows[] = {{WEFT_FIGURE_FAILURES, out->hours_between},
                {WEFT_FIGURE_STORAGE_WRITE, out->write_s},
                {WEFT_FIGURE_STORAGE_READ, load_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (isnan(rows[i].follows))
            WEFT_TRY(weft_arena_printf(
                arena, &out->save_lacks, "%s%s%s", out->save_lacks ? out->save_lacks : "",
                out->save_lacks ? ", " : "", weft_figure_path(rows[i].figure)));
    return WEFT_OK;
}

static void find_failures(const making *m, double load_s)
{
    weft_plan_figures *out = m->out;
    const weft_mesh *mesh = &m->plan->mesh;
    const double restart_s = longest_restart_s(m->cluster, mesh);
    out->hours_between = 1 / sum_nodes(m->cluster, mesh, WEFT_FIGURE_FAILURES, true);
    out->save_every_s = out->goodput = UNKNOWN;
    use(m, WEFT_FIGURE_FAILURES, out->hours_between);
    if (isnan(out->hours_between) || isnan(out->stall_s))
        return;
    const double between_s = 3600 * out->hours_between;
    out->save_every_s = weft_daly_interval_s(out->stall_s, between_s);
    out->goodput =
        weft_daly_goodput(out->save_every_s, out->stall_s, restart_s + load_s, between_s);
    use(m, WEFT_FIGURE_RESTART, out->goodput);
}

weft_plan_costs weft_plan_costs_of(const weft_cluster *cluster, const weft_mesh *mesh,
                                   double tokens_per_s)
{
    const double hour = sum_nodes(cluster, mesh, WEFT_FIGURE_PRICE, false);
    return (weft_plan_costs){.hour = hour,
                             .billion_tokens = hour / 3600 * 1e9 / tokens_per_s,
                             .joules_per_token =
                                 sum_nodes(cluster, mesh, WEFT_FIGURE_WATTS, false) / tokens_per_s};
}

static void find_costs(const making *m, double num_tokens)
{
    weft_plan_figures *out = m->out;
    const double tokens_per_s = m->plan->tokens_per_s;
    out->currency = m->cluster->currency;
    out->costs = weft_plan_costs_of(m->cluster, &m->plan->mesh, tokens_per_s);
    use(m, WEFT_FIGURE_PRICE, out->costs.hour);
    use(m, WEFT_FIGURE_WATTS, out->costs.joules_per_token);
    out->days = num_tokens > 0 ? num_tokens / tokens_per_s / 86400 : UNKNOWN;
    out->total = out->costs.hour * 24 * out->days;
}

/* --- sources -------------------------------------------------------------------------------- */

/* Whether a group's nodes have this number for themselves. */
static bool owns(const weft_node_group *group, int input)
{
    return input < WEFT_INPUT_EFFICIENCIES ? group->own_figures >> input & 1
           : input < WEFT_INPUT_COSTS
               ? group->own_efficiencies >> (input - WEFT_INPUT_EFFICIENCIES) & 1
               : false;
}

static weft_status add_input(const making *m, int input, int group, weft_arena *arena,
                             weft_plan_input *list)
{
    const char *path = weft_input_path(input);
    const weft_source *source = weft_cluster_source(m->cluster, group, path);
    weft_plan_input *to = &list[m->out->num_inputs++];
    *to = (weft_plan_input){.what = path,
                            .class_ = weft_cluster_class(m->cluster, group, path),
                            .where = source ? source->where : "",
                            .spread = weft_cluster_spread(m->cluster, group, path)};
    const weft_hardware *hardware = weft_cluster_hardware(m->cluster, group);
    if (input >= WEFT_INPUT_EFFICIENCIES && input < WEFT_INPUT_COSTS &&
        hardware->efficiencies[input - WEFT_INPUT_EFFICIENCIES].num_points == 0) {
        to->is_missing = true;
        to->class_ = WEFT_SOURCE_ASSUMED;
        to->where = "not given: 1";
        to->spread = 0;
    }
    if (to->class_ == WEFT_SOURCE_MEASURED && m->plan->inputs.scaled >> input & 1)
        to->class_ = WEFT_SOURCE_SCALED;
    if (group >= 0)
        WEFT_TRY(weft_arena_printf(arena, &to->what, "groups[%d].%s", group, path));
    return WEFT_OK;
}

static weft_status list_inputs(const making *m, weft_arena *arena)
{
    const weft_cluster *c = m->cluster;
    weft_plan_input *list;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)WEFT_NUM_INPUTS * (WEFT_MAX_NODE_GROUPS + 1), &list));
    m->out->inputs = list;
    for (int input = 0; input < WEFT_NUM_INPUTS; input++) {
        bool all_own = c->num_groups > 0; /* of the mesh's nodes */
        if (!(m->plan->inputs.used >> input & 1))
            continue;
        for (int g = 0; g < c->num_groups; g++)
            all_own &= owns(&c->groups[g], input) || weft_kind_num_ranks(c, &m->plan->mesh, g) == 0;
        if (!all_own)
            WEFT_TRY(add_input(m, input, -1, arena, list));
        for (int g = 0; g < c->num_groups; g++)
            if (owns(&c->groups[g], input) && weft_kind_num_ranks(c, &m->plan->mesh, g) > 0)
                WEFT_TRY(add_input(m, input, g, arena, list));
    }
    return WEFT_OK;
}

weft_status weft_plan_figures_make(const weft_config *config, const weft_config_source *source,
                                   const weft_cluster *cluster, double num_tokens,
                                   weft_arena *arena, weft_plan *plan)
{
    weft_arena scratch = {0};
    double load_s = UNKNOWN;
    weft_plan_figures *figures;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &figures));
    const making m = {config, source, cluster, plan, figures};
    WEFT_TRY(find_range(&m, m.out->range_us));
    if (config->model.num_experts > 0)
        WEFT_TRY(find_loads(&m));
    const weft_status status = find_checkpoint(&m, &scratch, &load_s);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    find_failures(&m, load_s);
    if (isnan(m.out->save_every_s))
        WEFT_TRY(find_lacking(&m, load_s, arena));
    find_costs(&m, num_tokens);
    WEFT_TRY(list_inputs(&m, arena));
    plan->figures = m.out;
    return WEFT_OK;
}
