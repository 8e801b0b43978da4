#include "launcher/planning/moe_choice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/planning/layer_price.h"
#include "launcher/planning/places.h"
#include "layers/describe/describe.h"
#include "schedule/cost/cost.h"

/* MPMoE searches n from 2 to 8; 1 is the synchronous layer. */
static const int candidates[] = {1, 2, 3, 4, 6, 8};
enum {
    NUM_CANDIDATES = sizeof candidates / sizeof *candidates,
    ALL_REUSES = 1 << WEFT_REUSE_S1 | 1 << WEFT_REUSE_S2 | 1 << WEFT_REUSE_S3 | 1 << WEFT_REUSE_S4,
    WARM_UP_STEPS = 2, /* memory grows to its size and pages are touched */
    REPEATS = 2,       /* of a trial: the faster one counts, since noise only slows */
    DEFAULT_CHUNKS = 4,
};

static const char as_configured[] = "as configured", as_chosen[] = "as this run chose";

/* The options as they were before a resumed run's own choice was kept. */
static const weft_schedule_options *asked_of(const weft_config *config)
{
    return config->moe_is_kept ? &config->asked : &config->schedule;
}

/* --- the all-to-all of tensor-sharded experts ---------------------------------------------- */

static weft_status choose_form(const weft_config *config, const weft_cluster *cluster,
                               const weft_moe_layer_shape *shape, int etp, weft_moe_selection *s,
                               double *out_factor)
{
    const weft_schedule_options *p = &config->schedule;
    bool is_auto = p->moe_all_to_all == WEFT_NUM_EXCHANGES;
    s->options.form = is_auto ? WEFT_EXCHANGE_DIRECT : (weft_exchange_form)p->moe_all_to_all;
    s->options.num_chunks = (int)p->moe_all_to_all_chunks;
    *out_factor = 1;
    if (etp == 1) {
        s->options.form = WEFT_EXCHANGE_BASELINE;
        return WEFT_OK;
    }
    weft_exchange_shape exchange = {.bytes = shape->rows * shape->hidden * shape->element_bytes,
                                    .t = etp,
                                    .e = shape->ep,
                                    .e_near = shape->ep_inside,
                                    .minimal_bytes = 64 << 10,
                                    .num_chunks = s->options.num_chunks};
    weft_exchange_choice choice = {.us = 0};
    if (cluster) {
        unsigned allowed = 1u << s->options.form;
        if (is_auto) /* O1 sends all at once */
            allowed = 1u << WEFT_EXCHANGE_O2 | 1u << WEFT_EXCHANGE_O3 | 1u << WEFT_EXCHANGE_DIRECT |
                      (exchange.num_chunks > 1 ? 0u : 1u << WEFT_EXCHANGE_O1);
        WEFT_TRY(weft_choose_exchange(cluster, &exchange, allowed, &choice));
        s->options.form = choice.form;
        if (s->options.num_chunks == 0)
            s->options.num_chunks = choice.num_chunks;
        double baseline = weft_exchange_us(cluster, &exchange, WEFT_EXCHANGE_BASELINE, 1);
        if (baseline > 0)
            *out_factor = choice.us / baseline;
    }
    bool chunked = s->options.form == WEFT_EXCHANGE_O2 || s->options.form == WEFT_EXCHANGE_O3;
    if (chunked && s->options.num_chunks == 0)
        s->options.num_chunks = DEFAULT_CHUNKS;
    const bool was_open = asked_of(config)->moe_all_to_all == WEFT_NUM_EXCHANGES;
    char chunks[64] = "";
    if (s->options.num_chunks > 0)
        snprintf(chunks, sizeof chunks, " in %s",
                 weft_count_text(s->options.num_chunks, "chunk").text);
    if (!cluster)
        snprintf(choice.reason, sizeof choice.reason, "%s%s (%s)",
                 weft_exchange_text((int)s->options.form), chunks,
                 is_auto ? "copies nothing and hides the gather; no cluster file to weigh others by"
                 : was_open ? as_chosen
                            : as_configured);
    size_t used = strlen(s->reason);
    snprintf(s->reason + used, sizeof s->reason - used, "; all-to-all %s", choice.reason);
    return WEFT_OK;
}

/* --- n and S ------------------------------------------------------------------------------- */

static unsigned allowed_reuses(const weft_schedule_options *p)
{
    return p->moe_memory_reuse == WEFT_NUM_REUSES ? (unsigned)ALL_REUSES
                                                  : 1u << p->moe_memory_reuse;
}

/* Up to `most`: tokens, or a rank's experts. */
static int list_candidates(const weft_schedule_options *p, double most, int out[NUM_CANDIDATES])
{
    int count = 0;
    out[0] = (int)p->moe_num_partitions;
    if (p->moe_num_partitions > 0)
        return 1;
    for (int i = 0; i < NUM_CANDIDATES; i++)
        if (candidates[i] <= most)
            out[count++] = candidates[i];
    return count;
}

static double most_partitions(const weft_moe_layer_shape *shape, const weft_moe_selection *s)
{
    return shape->cut_experts > 0 ? fmin(s->tokens, shape->cut_experts) : s->tokens;
}

/* Partitions by peers may be chosen where n is, unless something has to be reused or tokens asked
 * for; sharded experts have forms of the all-to-all instead. */
static bool weighs_peers(const weft_schedule_options *p, const weft_moe_selection *s)
{
    return p->moe_num_partitions == 0 && p->moe_partition_by == WEFT_MOE_PARTITION_BY_AUTO &&
           p->moe_memory_reuse == WEFT_REUSE_NONE && !s->is_sharded && !s->by_experts;
}

static void start_profile(const weft_schedule_options *p, const weft_moe_layer_shape *shape,
                          weft_moe_selection *s)
{
    int list[NUM_CANDIDATES], count = list_candidates(p, most_partitions(shape, s), list);
    s->profiling = true;
    s->allowed = allowed_reuses(p);
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        weft_granularity_init(&s->searches[reuse], list, count);
    if (weighs_peers(p, s) && count > 1)
        s->num_peers = weft_moe_list_peers(shape, s->peers);
    s->options.pipeline.num_partitions = list[0];
    s->options.pipeline.by_experts = s->by_experts && list[0] > 1;
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        if (s->allowed & 1u << reuse) {
            s->options.pipeline.reuse = (weft_reuse)reuse;
            break;
        }
}

bool weft_moe_fixed_pipeline(const weft_schedule_options *p, int ep, weft_moe_pipeline *out)
{
    const int n = (int)p->moe_num_partitions;
    const bool is_fixed = n > 0 && p->moe_memory_reuse != WEFT_NUM_REUSES;
    if (p->moe_partition_by == WEFT_MOE_PARTITION_BY_PEERS)
        *out = weft_moe_by_peers(ep, (int)p->moe_peer_group_size);
    else if (is_fixed)
        *out = (weft_moe_pipeline){.num_partitions = n,
                                   .reuse = (weft_reuse)p->moe_memory_reuse,
                                   .by_experts = n > 1 && p->moe_partition_by ==
                                                              WEFT_MOE_PARTITION_BY_EXPERTS};
    else
        *out = (weft_moe_pipeline){.num_partitions = 1};
    return is_fixed;
}

static void say_pipeline(weft_moe_selection *s, const char *reason)
{
    snprintf(s->reason, sizeof s->reason, "%s (%s)",
             weft_moe_pipeline_text(&s->options.pipeline).text, reason);
}

/* Where the cluster tells all that the layer's operations take, a pipeline is chosen by the price
 * that a plan gives it; else by the costs of copies, exchanges and products alone. */
static weft_status price_by_plan(const weft_config *config, const weft_mesh *mesh,
                                 const weft_cluster *cluster, const weft_moe_nodes *nodes,
                                 const weft_moe_options *form, weft_moe_layer_price *price,
                                 bool *out)
{
    const weft_moe_pipeline synchronous = {.num_partitions = 1, .reuse = WEFT_REUSE_NONE};
    double us;
    *out = false;
    if (!cluster || config->schedule.moe_choice != WEFT_MOE_CHOICE_PRICE)
        return WEFT_OK;
    WEFT_TRY(weft_moe_layer_price_begin(config, mesh, cluster, nodes->ranks_per_node, form, price));
    const weft_status status = weft_moe_layer_price_us(price, &synchronous, &us);
    const bool needs = config->schedule.moe_num_partitions == 0 && /* nothing else has uploads */
                       config->tier.experts != WEFT_TIER_NONE;
    *out = status == WEFT_OK;
    return status == WEFT_CONFIG && !needs ? WEFT_OK : status;
}

static weft_status choose_pipeline(const weft_config *config, const weft_cluster *cluster,
                                   const weft_moe_layer_shape *shape, const weft_moe_pricer *pricer,
                                   weft_moe_selection *s)
{
    static const weft_moe_model models[] = {
        [WEFT_MOE_CHOICE_QUICK] = WEFT_MOE_MODEL_QUICK,
        [WEFT_MOE_CHOICE_PHASES] = WEFT_MOE_MODEL_PHASES,
        [WEFT_MOE_CHOICE_PRICE] = WEFT_MOE_MODEL_PRICE,
    };
    const weft_schedule_options *p = &config->schedule;
    bool fixed_n = p->moe_num_partitions > 0;
    if (weft_moe_fixed_pipeline(p, shape->ep, &s->options.pipeline)) {
        const weft_schedule_options *asked = asked_of(config);
        bool was_open =
            asked->moe_num_partitions == 0 || asked->moe_memory_reuse == WEFT_NUM_REUSES;
        say_pipeline(s, was_open ? as_chosen : as_configured);
        return WEFT_OK;
    }
    if (p->moe_choice == WEFT_MOE_CHOICE_PROFILE) {
        start_profile(p, shape, s);
        return WEFT_OK;
    }
    if (!cluster)
        return WEFT_KEY_ERROR(fixed_n ? "parallel.moe_memory_reuse" : "parallel.moe_num_partitions",
                              "to be chosen, which takes parallel.cluster (a file that weft "
                              "calibrate writes; of plan and schedule: --cluster) or "
                              "parallel.moe_choice \"profile\"");
    int list[NUM_CANDIDATES], count = list_candidates(p, most_partitions(shape, s), list);
    weft_moe_choice choice;
    WEFT_TRY(weft_choose_moe(cluster, shape, models[p->moe_choice], list, count, allowed_reuses(p),
                             weighs_peers(p, s), pricer, &choice));
    s->options.pipeline = choice.pipeline;
    snprintf(s->reason, sizeof s->reason, "%s", choice.reason);
    return WEFT_OK;
}

weft_moe_layer_shape weft_moe_layer_shape_of(const weft_model_options *options,
                                             const weft_shape *shape, int ep_inside,
                                             double pace_flops)
{
    weft_moe_dims d = weft_moe_dims_of(options, shape);
    return (weft_moe_layer_shape){
        .rows = (double)d.tokens * (double)options->moe_router_topk,
        .hidden = (double)shape->hidden,
        .ffn = (double)d.ffn,
        .gates = (int)d.gates,
        .element_bytes = (double)weft_dtype_bytes(shape->dtype),
        .ep = shape->ep,
        .ep_inside = ep_inside,
        .exchange_factor = 1,
        .pace_flops = pace_flops,
    };
}

/* A file that cannot be used is a mistake of the key that names it. */
weft_status weft_choice_cluster(const weft_config *config, weft_cluster *out)
{
    const weft_pace pace = weft_config_pace(config);
    weft_status status = WEFT_OK;
    if (config->planned_on)
        *out = *config->planned_on;
    else
        status = weft_cluster_read(config->schedule.cluster, out);
    if (status == WEFT_CONFIG || status == WEFT_FILE)
        return weft_error_key(WEFT_CONFIG, "parallel.cluster");
    if (status == WEFT_OK && pace.link > 0)
        weft_cluster_set_link_pace(out, pace.link);
    return status;
}

static weft_moe_dims dims_of(const weft_config *config, const weft_mesh *mesh, weft_shape *out)
{
    *out = weft_model_shape(&config->model, mesh, config->train.micro_batch_size,
                            weft_config_dtype(config), true);
    return weft_moe_dims_of(&config->model, out);
}

weft_status weft_moe_find_nodes(const weft_config *config, const weft_mesh *mesh,
                                const weft_topology *topology, weft_moe_nodes *out)
{
    weft_shape shape;
    weft_cluster cluster = {0};
    const char *path = config->schedule.cluster;
    *out = (weft_moe_nodes){0};
    if (config->model.num_experts == 0 || !dims_of(config, mesh, &shape).exchange)
        return WEFT_OK;
    if (path && path[0])
        WEFT_TRY(weft_choice_cluster(config, &cluster));
    out->by_file = cluster.num_nodes > 0 &&
                   cluster.num_nodes * cluster.ranks_per_node == mesh->world &&
                   !(topology && topology->num_nodes == cluster.num_nodes);
    weft_topology of_file = {.world = mesh->world,
                             .num_nodes = cluster.num_nodes,
                             .ranks_per_node = cluster.ranks_per_node};
    const weft_topology *used = out->by_file ? &of_file : topology;
    out->ranks_per_node = used ? weft_places_fullest_node(used) : 0;
    return used ? weft_topology_inside(used, mesh, WEFT_AXIS_EP, &out->ep_inside) : WEFT_OK;
}

/* A curve that is missing: the file, and the command that measures it. */
static weft_status name_remedy(weft_status status, const weft_config *config, const weft_mesh *mesh,
                               const weft_cluster *cluster, bool by_file)
{
    char text[WEFT_ERROR_TEXT_BYTES / 2], nodes[40] = "";
    const char *path = config->schedule.cluster;
    if (status != WEFT_CONFIG || !cluster || (config->planned_on && weft_lack_is(weft_error_get())))
        return status; /* the verb names --cluster's file */
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, weft_error_get()->text);
    if (by_file)
        snprintf(nodes, sizeof nodes, " --ranks-per-node %d", cluster->ranks_per_node);
    return WEFT_KEY_ERROR(
        "parallel.cluster",
        "%s: %s; measure on these ranks: mpirun -n %d weft calibrate --out %s%s%s", path, text,
        mesh->world, path, nodes,
        config->device.kind == WEFT_DEVICE_KIND_CUDA ? " --device cuda" : "");
}

double weft_moe_worst_load(const weft_config *config, const weft_mesh *mesh)
{
    const weft_model_options *o = &config->model;
    if (o->num_experts == 0)
        return 1;
    const double topk = o->moe_router_topk > 0 ? (double)o->moe_router_topk : 1;
    double most = fmin(mesh->ep, (double)o->num_experts / topk);
    if (o->moe_expert_capacity_factor > 0)
        most = fmin(most, o->moe_expert_capacity_factor);
    return fmax(most, 1);
}

weft_status weft_moe_selection_start(const weft_config *config, const weft_mesh *mesh,
                                     const weft_moe_nodes *nodes, weft_moe_selection *out)
{
    weft_moe_selection s = {
        .options = {.pipeline = {.num_partitions = 1},
                    .load.rows = weft_model_forced_load(&config->model, mesh->ep)}};
    const weft_schedule_options *p = &config->schedule;
    *out = s;
    if (config->model.num_experts == 0)
        return WEFT_OK;
    weft_shape shape;
    weft_moe_dims d = dims_of(config, mesh, &shape);
    s.travels = d.exchange;
    s.is_sharded = mesh->etp > 1;
    s.tokens = (double)d.tokens;
    if (!s.travels) {
        *out = s;
        return WEFT_OK;
    }
    const bool is_fixed = weft_moe_fixed_pipeline(p, mesh->ep, &s.options.pipeline);
    weft_cluster read, cluster;
    bool has_cluster = p->cluster && p->cluster[0];
    const weft_cluster *known = !has_cluster             ? NULL
                                : config->planned_curves ? config->planned_curves
                                                         : &cluster;
    if (has_cluster)
        WEFT_TRY(weft_choice_cluster(config, &read));
    if (has_cluster && nodes->ep_inside == 0) {
        *out = s;
        return WEFT_OK;
    }
    if (known == &cluster) { /* what was not measured follows from the file's figures */
        cluster = read;
        weft_cost_complete(&cluster);
    }
    weft_moe_layer_shape layer = weft_moe_layer_shape_of(&config->model, &shape, nodes->ep_inside,
                                                         weft_config_pace(config).flops);
    s.by_experts = weft_tier_cuts_experts(&config->tier, p);
    layer.cut_experts = s.by_experts ? (int)d.local_experts : 0;
    weft_moe_selection form = s; /* its sentence comes after the one on n and S */
    weft_status status =
        choose_form(config, known, &layer, mesh->etp, &form, &layer.exchange_factor);
    WEFT_TRY(name_remedy(status, config, mesh, known, nodes->by_file));
    s.options.form = form.options.form;
    s.options.num_chunks = form.options.num_chunks;
    weft_moe_layer_price price;
    const weft_moe_pricer pricer = {weft_moe_layer_price_us, &price};
    bool by_plan = false;
    if (!is_fixed) /* else nobody asks */
        WEFT_TRY(price_by_plan(config, mesh, has_cluster ? &read : NULL, nodes, &s.options, &price,
                               &by_plan));
    WEFT_TRY(name_remedy(choose_pipeline(config, known, &layer, by_plan ? &pricer : NULL, &s),
                         config, mesh, known, nodes->by_file));
    if (s.reason[0]) {
        size_t used = strlen(s.reason);
        snprintf(s.reason + used, sizeof s.reason - used, "%s", form.reason);
    }
    *out = s;
    return WEFT_OK;
}

/* --- measuring ----------------------------------------------------------------------------- */

/* What to measure next, by tokens and then by peers; s->is_trial false: the fastest. */
static void next_trial(weft_moe_selection *s)
{
    weft_granularity_next_of(s->searches, s->allowed, s->tokens, &s->trial, &s->is_trial);
    s->trial.by_experts = s->by_experts && s->trial.num_partitions > 1;
    if (s->is_trial)
        return;
    s->best_us = weft_granularity_us(&s->searches[s->trial.reuse], s->tokens);
    s->is_trial = s->num_tried < s->num_peers;
    if (s->is_trial)
        s->trial = s->peers[s->num_tried];
    for (int i = 0; i < s->num_peers && !s->is_trial; i++)
        if (s->peers_us[i] < s->best_us) {
            s->best_us = s->peers_us[i];
            s->trial = s->peers[i];
        }
}

weft_status weft_moe_selection_before(weft_moe_selection *s, weft_model *model)
{
    if (!s->profiling || s->num_steps < WARM_UP_STEPS || s->num_repeats > 0)
        return WEFT_OK;
    next_trial(s);
    WEFT_TRY(weft_model_set_moe_pipeline(model, &s->trial));
    if (s->is_trial)
        return WEFT_OK;
    char why[80];
    s->profiling = false;
    s->options.pipeline = s->trial;
    snprintf(why, sizeof why, "fastest of %d measured, %.3g ms a step", s->num_trials,
             s->best_us / 1e3);
    say_pipeline(s, why);
    return WEFT_OK;
}

void weft_moe_selection_after(weft_moe_selection *s, double step_ms)
{
    if (!s->profiling)
        return;
    s->num_steps++;
    if (!s->is_trial)
        return;
    s->trial_ms = s->num_repeats == 0 ? step_ms : fmin(s->trial_ms, step_ms);
    if (++s->num_repeats < REPEATS)
        return;
    if (s->trial.peer_group > 0)
        s->peers_us[s->num_tried++] = s->trial_ms * 1e3;
    else
        weft_granularity_report(&s->searches[s->trial.reuse], s->tokens, s->trial.num_partitions,
                                s->trial_ms * 1e3);
    s->num_repeats = 0;
    s->is_trial = false;
    s->num_trials++;
}

void weft_moe_selection_keep(const weft_moe_selection *s, weft_schedule_options *out)
{
    if (!s->travels || s->profiling)
        return;
    const weft_moe_pipeline *pipeline = &s->options.pipeline;
    const bool by_peers = pipeline->peer_group > 0;
    if (out->moe_num_partitions == 0) {
        out->moe_partition_by = by_peers               ? WEFT_MOE_PARTITION_BY_PEERS
                                : pipeline->by_experts ? WEFT_MOE_PARTITION_BY_EXPERTS
                                                       : WEFT_MOE_PARTITION_BY_TOKENS;
        out->moe_num_partitions = by_peers ? 1 : pipeline->num_partitions; /* as one asks for it */
        out->moe_peer_group_size = by_peers ? pipeline->peer_group : 1;
    }
    out->moe_memory_reuse = (int)pipeline->reuse;
    if (s->is_sharded) {
        out->moe_all_to_all = (int)s->options.form;
        out->moe_all_to_all_chunks = s->options.num_chunks;
    }
}

void weft_moe_selection_tell(weft_moe_selection *s)
{
    if (s->told || !s->reason[0])
        return;
    weft_log(WEFT_LOG_INFO, "MoE layers: %s", s->reason);
    s->told = true;
}
