#include "launcher/searching/kinds.h"

#include <math.h>
#include <string.h>

#include "launcher/planning/mesh_choice.h"
#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "launcher/planning/plan.h"
#include "launcher/planning/step_price.h"
#include "layers/describe/describe.h"
#include "layers/describe/rehearse.h"
#include "layers/pass/offload.h"

/* The shortest list with a layer of each kind. */
static weft_status shorten(weft_kind_tables *b)
{
    const weft_model_options *o = &b->space->config.model;
    int64_t at[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    b->short_model = *o;
    b->own = weft_config_has_own_model(&b->space->config);
    b->num_layers = (int)o->num_layers + 2;
    if (b->own)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(&b->arena, (size_t)b->num_layers, &b->kind_of));
    int num = 0;
    for (int64_t i = 0; i < o->num_layers; i++) {
        const bool is_moe = weft_model_is_moe_layer(o, i);
        const bool is_windowed = weft_model_is_windowed_layer(o, i);
        const bool has_no_rope = !weft_model_is_roped_layer(o, i);
        const int kind = 4 * has_no_rope + 2 * is_windowed + is_moe;
        if (at[kind] < 0) {
            b->short_freq[num] = is_moe;
            b->short_windows[num] = is_windowed;
            b->short_no_rope[num] = has_no_rope;
            at[kind] = num++;
        }
        b->kind_of[i + 1] = 1 + (int)at[kind];
    }
    b->kind_of[b->num_layers - 1] = 1 + num;
    b->short_model.num_layers = num;
    b->short_model.moe_layer_freq =
        (weft_int_list){.values = b->short_freq, .count = (size_t)num, .is_array = true};
    b->short_model.window_attn_skip_freq =
        (weft_int_list){.values = b->short_windows, .count = (size_t)num, .is_array = true};
    b->short_model.no_rope_freq =
        (weft_int_list){.values = b->short_no_rope, .count = (size_t)num, .is_array = true};
    return WEFT_OK;
}

weft_status weft_kind_tables_init(const weft_search_space *space, weft_kind_tables *b)
{
    b->space = space;
    WEFT_TRY(shorten(b));
    WEFT_TRY(WEFT_ARRAY(&b->arena, (size_t)b->num_layers, &b->work));
    return weft_step_experts(&space->config, space->cluster, &b->arena, &b->experts);
}

void weft_kind_tables_release(weft_kind_tables *b)
{
    weft_arena_release(&b->arena);
}

/* --- one table ----------------------------------------------------------------------------- */

/* All that travels in a program of an MoE layer that pairs run. */
static weft_status add_travels(const weft_site *site, const weft_outline *outline, int layer,
                               const weft_inner_costs *costs, weft_made_programs *made, double *us)
{
    weft_priced_program program;
    if (costs->inner != WEFT_INNER_EXPERTS)
        return WEFT_OK;
    WEFT_TRY(weft_priced_program_make(site, outline, layer, costs, NULL, made, &program));
    for (uint32_t i = 0; i < program.program->num_tasks; i++)
        if (weft_body_travels(
                (int)weft_priced_program_lane(&program, program.program->tasks[i].lane)))
            us[costs->half != WEFT_HALF_FORWARD] += program.times[i].us;
    return WEFT_OK;
}

/* In pairs what travels may take no time: the other pass computes meanwhile. */
static weft_status leave_travels(const weft_site *site, const weft_outline *outline, int layer,
                                 double *forward_us, double *backward_us)
{
    weft_layer_costs costs;
    weft_arena arena = {0};
    weft_made_programs made = {.arena = &arena, .beside = true};
    double travels_us[2] = {0, 0};
    if (!outline->pairs || !outline->layers[layer].host_waits)
        return WEFT_OK;
    WEFT_TRY(weft_pass_layer_costs(site, outline, layer, false, &costs));
    weft_status status = WEFT_OK;
    for (int i = 0; i < costs.num_programs && status == WEFT_OK; i++)
        status = add_travels(site, outline, layer, &costs.programs[i], &made, travels_us);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    *forward_us = fmax(0, *forward_us - travels_us[0]);
    *backward_us = fmax(0, *backward_us - travels_us[1]);
    return WEFT_OK;
}

/* On nodes of several kinds, the cheapest of them. out_price: of the last. */
static weft_status price_kind(const weft_kind_tables *b, weft_site *site,
                              const weft_outline *outline, int layer, weft_kind_price *out,
                              weft_pass_price *out_price)
{
    const weft_cluster *cluster = b->space->cluster;
    const int groups = cluster->num_groups;
    for (int g = 0; g < (groups > 0 ? groups : 1); g++) {
        weft_pass_price price = {0};
        site->kinds = groups > 0 ? 1u << g : 0;
        WEFT_TRY(weft_pass_price_add(site, outline, layer, layer + 1, &price));
        double us[] = {weft_pass_us(&price.forward), weft_pass_us(&price.backward),
                       weft_pass_us(&price.recompute)};
        *out_price = price;
        WEFT_TRY(leave_travels(site, outline, layer, &us[0], &us[1]));
        us[2] = outline->pairs ? 0 : us[2]; /* likewise, and nothing is said of its parts */
        out->forward_us = g == 0 ? us[0] : fmin(out->forward_us, us[0]);
        out->backward_us = g == 0 ? us[1] : fmin(out->backward_us, us[1]);
        out->recompute_us = g == 0 ? us[2] : fmin(out->recompute_us, us[2]);
    }
    return WEFT_OK;
}

/* What a chunk's last layer gives, or the next one offloads, lies elsewhere; so may experts, which
 * the host then steps beside passes. */
static void count_bytes(const weft_kind_tables *b, const weft_outline *outline, int layer,
                        weft_kind_price *out)
{
    const bool leave = b->space->config.tier.experts != WEFT_TIER_NONE;
    const weft_outline_layer *l = &outline->layers[layer];
    const weft_layer_cost *cost = &l->description.cost;
    const double row =
        (double)weft_piece_bytes(WEFT_U8, weft_shape_boundary_bytes(&outline->shape), 1);
    const double away = (double)l->offloaded_bytes + (outline->shape.offload ? row : 0);
    out->kept_bytes = fmax(0, (double)cost->activation_bytes - away);
    for (int i = 0; i < l->num_parameters; i++) {
        const bool expert = l->parameters[i].group == WEFT_GRADIENT_EXPERT;
        const double elements = expert && leave ? 0 : (double)l->parameters[i].local;
        *(expert ? &out->experts : &out->dense) += elements;
        out->away += expert && leave ? (double)l->parameters[i].local : 0;
        out->expert = expert && leave ? (double)l->expert_elements : out->expert;
        out->largest[expert] = fmax(out->largest[expert], elements);
    }
}

/* A figure that is missing is the plan's to name. */
static weft_status price_copies(const weft_site *site, const weft_outline *outline, int layer,
                                weft_kind_price *out)
{
    static const weft_cost_kind kinds[] = {WEFT_COST_TO_HOST, WEFT_COST_TO_DEVICE};
    const double own = (double)outline->layers[layer].offloaded_bytes,
                 all = (double)weft_outline_offloaded(outline, layer);
    for (int back = 0; back < 2 && all > 0; back++) {
        weft_estimate without = {0}, with = {0};
        weft_status status = weft_work_us(site, kinds[back], own, &without);
        if (status == WEFT_OK)
            status = weft_work_us(site, kinds[back], all, &with);
        if (status == WEFT_CONFIG)
            weft_error_clear();
        else
            WEFT_TRY(status);
        out->copy_us[back] = without.us;
        out->input_us[back] = with.us - without.us;
    }
    return WEFT_OK;
}

/* A user's own model says nothing of layers' experts, and rules freeze what they name. */
static bool knows_experts(const weft_kind_tables *b)
{
    return !b->own && b->space->cluster->num_groups == 0 &&
           b->space->config.train.parameter_rules.count == 0;
}

static weft_status fill(weft_kind_tables *b, const weft_config *config, weft_site *site,
                        const weft_outline *outline, const weft_kind_key *key, weft_arena *scratch,
                        weft_kind_table **out)
{
    const size_t num = (size_t)outline->num_layers;
    weft_pass_price *prices;
    weft_kind_table *t;
    WEFT_TRY(WEFT_ARRAY(scratch, num, &prices));
    WEFT_TRY(
        weft_arena_alloc(&b->arena, sizeof(weft_kind_table) + num * sizeof(weft_kind_price), &t));
    t->key = *key;
    t->num_kinds = (int)num;
    t->boundary_bytes =
        (double)weft_piece_bytes(WEFT_U8, weft_shape_boundary_bytes(&outline->shape), 1);
    for (int l = 0; l < t->num_kinds; l++) {
        WEFT_TRY(price_kind(b, site, outline, l, &t->kinds[l], &prices[l]));
        count_bytes(b, outline, l, &t->kinds[l]);
        if (b->space->cluster->num_groups == 0)
            WEFT_TRY(price_copies(site, outline, l, &t->kinds[l]));
    }
    if (knows_experts(b))
        WEFT_TRY(weft_away_make(config, outline, prices, &b->arena, &t->away));
    *out = t;
    return WEFT_OK;
}

/* The layers' list on one stage of this mesh. */
static weft_status outline_kinds(const weft_kind_tables *b, const weft_config *config,
                                 const weft_mesh *mesh, const weft_moe_options *moe,
                                 weft_outline *out)
{
    weft_model_setup setup = weft_step_setup(config, moe);
    weft_parallel_options alone = config->parallel;
    weft_mesh stage = *mesh;
    if (!b->own)
        setup.options = &b->short_model;
    alone.pipeline_model_parallel_size = 1;
    alone.num_virtual_stages_per_pipeline_rank = alone.num_layers_per_virtual_pipeline_stage = 0;
    alone.decoder_first_pipeline_num_layers = alone.decoder_last_pipeline_num_layers = 0;
    alone.pipeline_model_parallel_layout = "";
    alone.use_distributed_optimizer = false;
    alone.data_parallel_sharding_strategy = 0;
    setup.parallel = &alone;
    setup.rules = (weft_string_list){0}; /* a pattern may name layers that are not here */
    stage.world /= stage.pp;
    stage.pp = 1;
    return weft_model_outline(&setup, &stage, weft_config_build(config), out);
}

size_t weft_kind_bin(const void *key, size_t num_bytes)
{
    const unsigned char *bytes = key;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < num_bytes; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash >> 20 & (WEFT_KIND_BINS - 1);
}

static weft_status make_choice(weft_kind_tables *b, const weft_config *config, const weft_mesh *p2p,
                               weft_kind_choice *out)
{
    const weft_cluster *cluster = b->space->cluster;
    const weft_topology topology = {.world = p2p->world,
                                    .num_nodes = cluster->num_nodes,
                                    .ranks_per_node = cluster->ranks_per_node};
    weft_mesh_choice choice;
    weft_moe_selection moe;
    out->mesh = *p2p;
    WEFT_TRY(weft_topology_check(&topology, p2p, config->parallel.allow_tp_across_nodes));
    WEFT_TRY(weft_mesh_choose(config, &topology, &out->mesh, &choice));
    WEFT_TRY(weft_moe_selection_start(config, &out->mesh, &choice.nodes, &moe));
    if (config->moe_load > 0)
        moe.options.load.rows = weft_plan_load_on(config, &out->mesh);
    out->moe = moe.options;
    return WEFT_OK;
}

/* A plan chooses by prices that know nothing of what is offloaded, nor, of MoE layers, of what is
 * recomputed. */
weft_status weft_kind_choice_find(weft_kind_tables *b, const weft_config *config,
                                  const weft_mesh *p2p, const weft_kind_key *of_table,
                                  weft_kind_choice **out)
{
    weft_kind_key key = *of_table;
    key.offload = key.splits = key.tier = 0;
    key.recompute = p2p->cp > 1 ? key.recompute : 0;
    weft_kind_choice **bin = &b->choices[weft_kind_bin(&key, sizeof key)], *c = *bin;
    while (c && memcmp(&c->key, &key, sizeof key) != 0)
        c = c->next;
    *out = c;
    if (c)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc(&b->arena, sizeof *c, &c));
    c->key = key;
    WEFT_TRY(make_choice(b, config, p2p, c));
    c->next = *bin;
    *bin = c;
    *out = c;
    return WEFT_OK;
}

/* Of a shape which recomputes nothing and has an even load. */
static weft_status make_work(weft_kind_tables *b, const weft_config *config, weft_kind_choice *c)
{
    weft_mesh stage = c->mesh;
    stage.world /= stage.pp;
    stage.pp = 1;
    const weft_shape shape = weft_model_shape(
        &config->model, &stage, config->train.micro_batch_size, weft_config_dtype(config), true);
    weft_description *plain;
    double *work;
    int count;
    WEFT_TRY(weft_rehearse_model(b->own ? &config->model : &b->short_model, config->own, &shape,
                                 weft_config_build(config), &plain, &count));
    const weft_status status = WEFT_ARRAY(&b->arena, (size_t)count, &work);
    for (int i = 0; i < count && status == WEFT_OK; i++)
        work[i] = weft_description_work(&plain[i]);
    weft_descriptions_release(plain, count);
    c->work = status == WEFT_OK ? work : NULL;
    return status;
}

static weft_status make_table(weft_kind_tables *b, const weft_config *config, const weft_mesh *p2p,
                              int first_rank, const weft_kind_key *key, weft_kind_table **out)
{
    weft_kind_choice *chosen;
    weft_outline outline;
    WEFT_TRY(weft_kind_choice_find(b, config, p2p, key, &chosen));
    weft_site site = {.cluster = b->space->cluster,
                      .experts = b->experts,
                      .curves = b->space->config.planned_curves,
                      .unsourced = true,
                      .exchange = (int)chosen->moe.form,
                      .exchange_chunks = chosen->moe.num_chunks};
    WEFT_TRY(weft_places_groups(&chosen->mesh, b->space->cluster, first_rank,
                                weft_config_sends_directly(config), false, &site));
    WEFT_TRY(outline_kinds(b, config, &chosen->mesh, &chosen->moe, &outline));
    weft_arena scratch = {0};
    const weft_status status = fill(b, config, &site, &outline, key, &scratch, out);
    weft_arena_release(&scratch);
    weft_outline_release(&outline);
    return status;
}

bool weft_ranks_nest(int span, int each)
{
    return span % each == 0 || each % span == 0;
}

/* Where groups and nodes nest, a group lies like every other one of its axis: what differs between
 * stages, and with the number of stages and replicas, has no part in passes. */
static bool is_alike(const weft_kind_tables *b, const weft_candidate *c, const weft_mesh *mesh)
{
    const weft_cluster *cluster = b->space->cluster;
    const int each = cluster->ranks_per_node, stage = mesh->world / c->pp;
    const bool nest = weft_ranks_nest(c->tp, each) && weft_ranks_nest(c->tp * c->cp, each) &&
                      weft_ranks_nest(c->etp * c->ep, each) && weft_ranks_nest(stage, each);
    return cluster->num_groups == 0 && nest &&
           (strcmp(mesh->order, "tp-cp-ep-dp-pp") == 0 ||
            strcmp(mesh->order, "tp-cp-ep-pp-dp") == 0);
}

/* The parts of a sequence lie a whole number of nodes apart, which is as far as any. */
static bool is_far(const weft_kind_tables *b, const weft_candidate *c, const weft_mesh *mesh)
{
    const weft_cluster *cluster = b->space->cluster;
    const int each = cluster->ranks_per_node;
    return cluster->num_groups == 0 && cluster->num_levels == 0 && weft_ranks_nest(c->tp, each) &&
           weft_ranks_nest(c->etp * c->ep, each) && c->tp * c->dp % each == 0 &&
           strcmp(mesh->order, "tp-ep-dp-cp-pp") == 0;
}

weft_kind_key weft_kind_key_of(const weft_kind_tables *b, const weft_candidate *c,
                               const weft_config *config, const weft_mesh *mesh, int first_rank)
{
    const weft_cluster *cluster = b->space->cluster;
    const weft_search_form *form = &b->space->forms[c->form];
    const bool alike = is_alike(b, c, mesh), far = is_far(b, c, mesh);
    weft_kind_key key;
    memset(&key, 0, sizeof key);
    key.order = alike ? -1 : far ? -2 : c->order;
    if (!alike && !far) {
        key.class_ = cluster->num_groups > 0 ? first_rank : first_rank % cluster->ranks_per_node;
        key.pp = c->pp;
        key.dp = c->dp;
    }
    key.tp = c->tp;
    key.cp = c->cp;
    key.ep = c->ep;
    key.etp = c->etp;
    key.binding = c->binding;
    key.sequence_parallel = c->sequence_parallel;
    key.micro_batch = c->micro_batch;
    key.recompute = form->recompute;
    key.offload = form->offload;
    key.reuse = form->reuse;
    key.splits = config->schedule.splits_backward;
    key.tier = config->tier.experts;
    return key;
}

/* A table that is not legal is kept with its error. */
weft_status weft_kind_table_find(weft_kind_tables *b, const weft_candidate *c,
                                 const weft_config *config, const weft_mesh *mesh, int stage,
                                 const weft_kind_table **out)
{
    const int first_rank = weft_mesh_rank(mesh, 0, 0, 0, stage);
    const weft_kind_key key = weft_kind_key_of(b, c, config, mesh, first_rank);
    weft_kind_table **bin = &b->bins[weft_kind_bin(&key, sizeof key)], *t = *bin;
    while (t && memcmp(&t->key, &key, sizeof key) != 0)
        t = t->next;
    if (!t) {
        const weft_status status = make_table(b, config, mesh, first_rank, &key, &t);
        if (status == WEFT_CONFIG) {
            weft_error *error;
            WEFT_TRY(weft_arena_alloc(&b->arena, sizeof *t, &t));
            WEFT_TRY(weft_arena_alloc(&b->arena, sizeof *error, &error));
            weft_error_take(error);
            t->key = key;
            t->error = error;
        } else {
            WEFT_TRY(status);
        }
        t->next = *bin;
        *bin = t;
    }
    *out = t;
    return t->error ? weft_error_put(t->error) : WEFT_OK;
}

weft_status weft_kind_work_find(weft_kind_tables *b, const weft_candidate *candidate,
                                const weft_config *config, const weft_mesh *mesh,
                                const double **out)
{
    const char *layout = config->parallel.pipeline_model_parallel_layout;
    const weft_kind_key key =
        weft_kind_key_of(b, candidate, config, mesh, weft_mesh_rank(mesh, 0, 0, 0, 0));
    weft_kind_choice *chosen;
    *out = NULL;
    if (!layout || strcmp(layout, "auto") != 0)
        return WEFT_OK;
    WEFT_TRY(weft_kind_choice_find(b, config, mesh, &key, &chosen));
    if (!chosen->work)
        WEFT_TRY(make_work(b, config, chosen));
    for (int l = 0; !b->own && l < b->num_layers; l++)
        b->work[l] = chosen->work[b->kind_of[l]];
    *out = b->own ? chosen->work : b->work;
    return WEFT_OK;
}
