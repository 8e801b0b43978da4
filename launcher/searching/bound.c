#include "launcher/searching/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/planning/moe_choice.h"
#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "launcher/planning/plan.h"
#include "launcher/planning/step_price.h"
#include "launcher/planning/tier_price.h"
#include "layers/describe/describe.h"
#include "schedule/pipeline/order.h"

/* --- tables of layers ---------------------------------------------------------------------- */

/* A kind of layers: embedding, head, and one or two of blocks between; of a user's own model each
 * layer. Microseconds of a micro-batch. */
typedef struct kind_price {
    double forward_us, backward_us, recompute_us;
    double kept_bytes;     /* of its stash, at least */
    double dense, experts; /* elements of parameters on a rank */
    double largest[2];     /* of one of them: dense, of experts */
    double away;           /* elements of experts that may leave the device */
    double uploads_us;     /* of a pass, if these do */
} kind_price;

/* All that a table depends on; zeroed before it is filled, to be compared as bytes. */
typedef struct table_key {
    int order, class_, tp, cp, ep, etp, binding, sequence_parallel, micro_batch;
    int recompute, offload, reuse; /* of the form */
    int splits;                    /* backwards are in two halves */
    int pp, dp;                    /* where nodes and groups do not nest; else 0 */
} table_key;

/* What a plan chooses by itself: attention's form over cp, how MoE layers run. */
typedef struct choice {
    table_key key;
    struct choice *next;
    weft_mesh mesh;
    weft_moe_options moe;
} choice;

typedef struct table {
    table_key key;
    struct table *next;
    weft_status status; /* WEFT_CONFIG: what it describes is not legal */
    weft_error error;
    double boundary_bytes; /* what a stage hands on, as a piece of memory, at least */
    int num_kinds;
    kind_price kinds[]; /* the first, those between, the last */
} table;

/* What a candidate's passes share out; kept for those that differ in nothing of it. */
typedef struct sharing_key {
    table_key table;
    int order, zero, num_chunks, is_v, by_work, pp, dp;
} sharing_key;

typedef struct sharing {
    sharing_key key;
    struct sharing *next;
    weft_shared_passes passes;
    const uint16_t *first; /* of its weft_layout */
} sharing;

enum { NUM_BINS = 1 << 14 };

/* What an element of a parameter takes after the backwards: dense, of experts. Microseconds. */
typedef struct update_price {
    double reduce_us[2], gather_us[2], step_us[2];
} update_price;

struct weft_bounds {
    const weft_search_space *space;
    weft_model_options short_model;                            /* with a layer of each kind */
    int64_t short_freq[8], short_windows[8], short_no_rope[8]; /* a layer of each kind */
    int num_layers;                                            /* of the model's list */
    int *kind_of;                                              /* [num_layers] */
    bool own; /* a model function: each layer is a kind */
    table *bins[NUM_BINS];
    choice *choices[NUM_BINS];
    sharing *sharings[NUM_BINS];
    weft_arena arena;            /* of all tables */
    const weft_cluster *experts; /* as in weft_site */
    weft_layout layout;
    weft_mesh updated;       /* the mesh of `updates` */
    update_price updates[4]; /* by ZeRO's stage */
    uint64_t limit_bytes;    /* the largest of a device */
};

/* The shortest list with a layer of each kind. */
static weft_status shorten(weft_bounds *b)
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

/* Where some nodes tell none there is none. */
static void find_limit(weft_bounds *b)
{
    const weft_search_space *s = b->space;
    const int groups = s->cluster->num_groups;
    for (int g = 0; g < (groups > 0 ? groups : 1); g++) {
        const uint64_t limit = weft_plan_memory_limit(&s->config, s->cluster, groups > 0 ? g : -1);
        if (limit == 0) {
            b->limit_bytes = 0;
            return;
        }
        b->limit_bytes = limit > b->limit_bytes ? limit : b->limit_bytes;
    }
}

weft_status weft_bounds_create(const weft_search_space *space, weft_bounds **out)
{
    weft_bounds *b = calloc(1, sizeof *b);
    if (!b)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for bounds");
    b->space = space;
    weft_status status = shorten(b);
    if (status == WEFT_OK)
        status = weft_step_experts(&space->config, space->cluster, &b->arena, &b->experts);
    find_limit(b);
    if (status != WEFT_OK)
        weft_bounds_destroy(b);
    else
        *out = b;
    return status;
}

void weft_bounds_destroy(weft_bounds *b)
{
    if (b)
        weft_arena_release(&b->arena);
    free(b);
}

/* --- one table ----------------------------------------------------------------------------- */

/* In pairs what travels may take no time: the other pass computes meanwhile. */
static weft_status leave_travels(const weft_site *site, const weft_outline *outline, int layer,
                                 double *forward_us, double *backward_us)
{
    weft_moe_costs costs[2];
    if (!outline->pairs || !outline->layers[layer].host_waits)
        return WEFT_OK;
    WEFT_TRY(weft_pass_price_partition(site, outline, layer, costs));
    double travels_us[2] = {costs[0].counts_us, 0};
    const int n = outline->shape.moe_partitions > 1 ? outline->shape.moe_partitions : 1;
    for (int back = 0; back < 2; back++) {
        travels_us[back] += n * (costs[back].dispatch_us + costs[back].combine_us);
        for (int i = 0; outline->shape.moe_peer_group > 0 && i < n; i++)
            travels_us[back] += 2 * costs[back].by_peer_us[i];
    }
    *forward_us = fmax(0, *forward_us - travels_us[0] - n * costs[0].permute_us);
    *backward_us = fmax(0, *backward_us - travels_us[1]);
    return WEFT_OK;
}

/* On nodes of several kinds, the cheapest of them. */
static weft_status price_kind(const weft_bounds *b, weft_site *site, const weft_outline *outline,
                              int layer, kind_price *out)
{
    const weft_cluster *cluster = b->space->cluster;
    const int groups = cluster->num_groups;
    for (int g = 0; g < (groups > 0 ? groups : 1); g++) {
        weft_pass_price price = {0};
        site->kinds = groups > 0 ? 1u << g : 0;
        WEFT_TRY(weft_pass_price_add(site, outline, layer, layer + 1, &price));
        double us[] = {weft_pass_us(&price.forward), weft_pass_us(&price.backward),
                       weft_pass_us(&price.recompute)};
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
static void count_bytes(const weft_bounds *b, const weft_outline *outline, int layer,
                        kind_price *out)
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
        out->largest[expert] = fmax(out->largest[expert], elements);
    }
}

/* Of a user's own model nothing is said of layers' experts. A figure that is missing is the plan's
 * to name. */
static weft_status price_uploads(const weft_bounds *b, const weft_config *config,
                                 const weft_mesh *mesh, const weft_site *site,
                                 const weft_outline *outline, kind_price *out)
{
    const int num = (int)config->model.num_experts / mesh->ep;
    if (!(out->away > 0) || b->own || b->space->cluster->num_groups > 0)
        return WEFT_OK;
    const weft_status status =
        weft_tier_least_uploads_us(site, config, outline, num, out->away / num, &out->uploads_us);
    if (status == WEFT_CONFIG)
        weft_error_clear();
    return status == WEFT_CONFIG ? WEFT_OK : status;
}

static weft_status fill(weft_bounds *b, const weft_config *config, const weft_mesh *mesh,
                        weft_site *site, const weft_outline *outline, const table_key *key,
                        table **out)
{
    const size_t num = (size_t)outline->num_layers;
    table *t;
    WEFT_TRY(weft_arena_alloc(&b->arena, sizeof(table) + num * sizeof(kind_price), &t));
    t->key = *key;
    t->num_kinds = (int)num;
    t->boundary_bytes =
        (double)weft_piece_bytes(WEFT_U8, weft_shape_boundary_bytes(&outline->shape), 1);
    for (int l = 0; l < t->num_kinds; l++) {
        WEFT_TRY(price_kind(b, site, outline, l, &t->kinds[l]));
        count_bytes(b, outline, l, &t->kinds[l]);
        WEFT_TRY(price_uploads(b, config, mesh, site, outline, &t->kinds[l]));
    }
    *out = t;
    return WEFT_OK;
}

/* The layers' list on one stage of this mesh. */
static weft_status outline_kinds(const weft_bounds *b, const weft_config *config,
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

static size_t bin_of(const void *key, size_t num_bytes)
{
    const unsigned char *bytes = key;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < num_bytes; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash >> 20 & (NUM_BINS - 1);
}

static weft_status make_choice(weft_bounds *b, const weft_config *config, const weft_mesh *p2p,
                               choice *out)
{
    const weft_cluster *cluster = b->space->cluster;
    const weft_topology topology = {.world = p2p->world,
                                    .num_nodes = cluster->num_nodes,
                                    .ranks_per_node = cluster->ranks_per_node};
    weft_context_selection context;
    weft_moe_nodes nodes;
    weft_moe_selection moe;
    out->mesh = *p2p;
    WEFT_TRY(weft_topology_check(&topology, p2p, config->parallel.allow_tp_across_nodes));
    WEFT_TRY(weft_context_choose(config, &topology, &out->mesh, &context));
    WEFT_TRY(weft_moe_find_nodes(config, &out->mesh, &topology, &nodes));
    WEFT_TRY(weft_moe_selection_start(config, &out->mesh, &nodes, &moe));
    if (config->moe_load > 0)
        moe.options.load.rows = weft_plan_load_on(config, &out->mesh);
    out->moe = moe.options;
    return WEFT_OK;
}

/* A plan chooses by prices that know nothing of what is offloaded, nor, of MoE layers, of what is
 * recomputed. */
static weft_status find_choice(weft_bounds *b, const weft_config *config, const weft_mesh *p2p,
                               const table_key *of_table, const choice **out)
{
    table_key key = *of_table;
    key.offload = key.splits = 0;
    key.recompute = p2p->cp > 1 ? key.recompute : 0;
    choice **bin = &b->choices[bin_of(&key, sizeof key)], *c = *bin;
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

static weft_status make_table(weft_bounds *b, const weft_config *config, const weft_mesh *p2p,
                              int first_rank, const table_key *key, table **out)
{
    const choice *chosen;
    weft_outline outline;
    WEFT_TRY(find_choice(b, config, p2p, key, &chosen));
    weft_site site = {.cluster = b->space->cluster,
                      .experts = b->experts,
                      .curves = b->space->config.planned_curves,
                      .unsourced = true,
                      .exchange = (int)chosen->moe.form,
                      .exchange_chunks = chosen->moe.num_chunks};
    WEFT_TRY(weft_places_pass_groups(&chosen->mesh, b->space->cluster, first_rank,
                                     weft_config_sends_directly(config), &site));
    WEFT_TRY(outline_kinds(b, config, &chosen->mesh, &chosen->moe, &outline));
    const weft_status status = fill(b, config, &chosen->mesh, &site, &outline, key, out);
    weft_outline_release(&outline);
    return status;
}

/* Whether groups of `span` ranks and nodes nest. */
static bool nests(int span, int each)
{
    return span % each == 0 || each % span == 0;
}

/* Where groups and nodes nest, a group lies like every other one of its axis: what differs between
 * stages, and with the number of stages and replicas, has no part in passes. */
static bool is_alike(const weft_bounds *b, const weft_candidate *c, const weft_mesh *mesh)
{
    const weft_cluster *cluster = b->space->cluster;
    const int each = cluster->ranks_per_node, stage = mesh->world / c->pp;
    const bool nest = nests(c->tp, each) && nests(c->tp * c->cp, each) &&
                      nests(c->etp * c->ep, each) && nests(stage, each);
    return cluster->num_groups == 0 && nest &&
           (strcmp(mesh->order, "tp-cp-ep-dp-pp") == 0 ||
            strcmp(mesh->order, "tp-cp-ep-pp-dp") == 0);
}

/* The parts of a sequence lie a whole number of nodes apart, which is as far as any. */
static bool is_far(const weft_bounds *b, const weft_candidate *c, const weft_mesh *mesh)
{
    const weft_cluster *cluster = b->space->cluster;
    const int each = cluster->ranks_per_node;
    return cluster->num_groups == 0 && cluster->num_levels == 0 && nests(c->tp, each) &&
           nests(c->etp * c->ep, each) && c->tp * c->dp % each == 0 &&
           strcmp(mesh->order, "tp-ep-dp-cp-pp") == 0;
}

static table_key key_of(const weft_bounds *b, const weft_candidate *c, const weft_config *config,
                        const weft_mesh *mesh, int first_rank)
{
    const weft_cluster *cluster = b->space->cluster;
    const weft_search_form *form = &b->space->forms[c->form];
    const bool alike = is_alike(b, c, mesh), far = is_far(b, c, mesh);
    table_key key;
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
    return key;
}

/* A table that is not legal is kept with its error. */
static weft_status find_table(weft_bounds *b, const weft_candidate *c, const weft_config *config,
                              const weft_mesh *mesh, int stage, const table **out)
{
    const int first_rank = weft_mesh_rank(mesh, 0, 0, 0, stage);
    const table_key key = key_of(b, c, config, mesh, first_rank);
    table **bin = &b->bins[bin_of(&key, sizeof key)], *t = *bin;
    while (t && memcmp(&t->key, &key, sizeof key) != 0)
        t = t->next;
    if (!t) {
        const weft_status status = make_table(b, config, mesh, first_rank, &key, &t);
        if (status == WEFT_CONFIG) {
            weft_error error;
            weft_error_take(&error);
            WEFT_TRY(weft_arena_alloc(&b->arena, sizeof *t, &t));
            t->key = key;
            t->status = WEFT_CONFIG;
            t->error = error;
        } else {
            WEFT_TRY(status);
        }
        t->next = *bin;
        *bin = t;
    }
    *out = t;
    return t->status == WEFT_OK ? WEFT_OK : weft_error_put(&t->error);
}

/* --- a candidate --------------------------------------------------------------------------- */

typedef struct bounding {
    weft_bounds *bounds;
    const weft_candidate *candidate;
    weft_config config;
    weft_mesh mesh;
    int num_layers, num_micro_batches;
    const table *table;               /* of the stage at hand */
    const weft_shared_passes *shared; /* NULL: not known */
} bounding;

static const kind_price *kind_at(const bounding *b, int layer)
{
    return &b->table->kinds[b->bounds->own ? layer : b->bounds->kind_of[layer]];
}

/* A chunk of a stage. */
typedef struct chunk_sum {
    double forward_us, backward_us, recompute_us, kept_bytes, dense, experts;
    double away, uploads_us, any_recompute_us; /* uploads: of a pass */
} chunk_sum;

/* The first layer with experts may find them in their slots: those of the pass before. */
static chunk_sum sum_layers(const bounding *b, const weft_layout *layout, int first, int end)
{
    const weft_recompute_options *recompute = &b->config.train.recompute;
    const bool full = recompute->granularity == WEFT_RECOMPUTE_FULL;
    chunk_sum sum = {0};
    double last = 0, most_us = 0;
    for (int l = first; l < end; l++) {
        const kind_price *kind = kind_at(b, l);
        const bool again = full && layout && weft_recompute_group(recompute, layout, l) > 0;
        sum.forward_us += kind->forward_us;
        sum.backward_us += kind->backward_us;
        sum.recompute_us += again ? kind->recompute_us : 0;
        last = full && (again || !layout) ? 0 : kind->kept_bytes;
        sum.kept_bytes += last;
        sum.dense += kind->dense;
        sum.experts += kind->experts;
        sum.away += kind->away;
        sum.any_recompute_us += kind->recompute_us;
        sum.uploads_us += kind->uploads_us;
        most_us = fmax(most_us, kind->uploads_us);
    }
    sum.uploads_us -= most_us;
    sum.kept_bytes -= fmin(last, b->table->boundary_bytes);
    return sum;
}

static bool steps_on_host(const weft_config *config)
{
    return config->tier.optimizer_state == WEFT_TIER_STATE_HOST;
}

/* Weights, gradients and the optimizer's state, as far as they are on the device. */
static double state_bytes(const bounding *b, const chunk_sum *sum)
{
    const weft_config *c = &b->config;
    const weft_dtype dtype = weft_config_dtype(c);
    const weft_sharding zero = weft_parallel_sharding(&c->parallel);
    const double weight = (double)weft_dtype_bytes(dtype), gradient = sizeof(float);
    const double master = dtype == WEFT_F32                             ? 0
                          : c->train.split_master && dtype == WEFT_BF16 ? 2
                                                                        : 4;
    const double moments = c->train.optimizer == WEFT_OPTIMIZER_MUON ? 1 : 2; /* at least */
    const double state = steps_on_host(c) ? 0 : master + moments * sizeof(float);
    const double elements[] = {sum->dense, sum->experts};
    const double ranks[] = {(double)b->mesh.dp * b->mesh.cp, b->mesh.edp};
    const bool frozen = c->train.parameter_rules.count > 0;
    double bytes = 0;
    for (int i = 0; i < 2; i++) {
        const double share = elements[i] / ranks[i];
        bytes += weight * (zero >= WEFT_SHARD_OPTIM_GRADS_PARAMS ? share : elements[i]);
        if (frozen)
            continue;
        bytes += gradient * (zero >= WEFT_SHARD_OPTIM_GRADS ? share : elements[i]);
        bytes += state * (zero >= WEFT_SHARD_OPTIM ? share : elements[i]);
    }
    return bytes;
}

/* Whether experts leave the device: as configured, or because a stage has no room for them. kept:
 * bytes beside the weights. */
static bool leaves(const bounding *b, const chunk_sum *sum, double kept)
{
    const uint64_t limit = b->bounds->limit_bytes;
    chunk_sum with = *sum;
    if (b->config.tier.experts != WEFT_TIER_AUTO)
        return b->config.tier.experts != WEFT_TIER_NONE;
    with.experts += with.away;
    return limit > 0 && state_bytes(b, &with) + kept > (double)limit;
}

/* What goes up for a stage's passes, one after the other behind the first one's start; the last one
 * ends behind it. A pass may end earlier than the walk of its experts by what it makes again, which
 * is done ahead of it. */
static double uploads_us(const bounding *b, const chunk_sum *sum)
{
    if (b->config.schedule.splits_backward || b->config.schedule.overlap_moe_expert_parallel_comm)
        return 0;
    return 2.0 * b->num_micro_batches * sum->uploads_us - sum->any_recompute_us;
}

/* Stashes that a stage has at once, at least. */
static double num_in_flight(const bounding *b, int stage, int num_chunks)
{
    const weft_schedule_options *o = &b->config.schedule;
    const int p = b->mesh.pp, m = b->num_micro_batches;
    if ((o->pipeline_schedule_file && o->pipeline_schedule_file[0]) ||
        weft_pipeline_kind_is_v(o->pipeline_schedule) || o->pipeline_schedule == WEFT_PIPELINE_AUTO)
        return 1;
    if (o->pipeline_schedule == WEFT_PIPELINE_GPIPE)
        return (double)m * num_chunks;
    if (num_chunks == 1)
        return m < p - stage ? m : p - stage;
    const double ahead = 2.0 * (p - stage - 1) + (num_chunks - 1.0) * (m < p ? m : p) + 1;
    return fmin((double)m * num_chunks, ahead);
}

static void note_memory(const bounding *b, double bytes, weft_bound *out)
{
    if (bytes <= (double)out->memory_bytes)
        return;
    out->memory_bytes = (uint64_t)bytes;
    out->limit_bytes = b->bounds->limit_bytes;
    out->fits = out->limit_bytes == 0 || out->memory_bytes <= out->limit_bytes;
}

/* --- what comes after the backwards -------------------------------------------------------- */

/* The least that an element takes of a bucket of at most `most` elements: what is sent or updated
 * together takes less for each the more it is. */
static weft_status least_us(const weft_site *site, const weft_group *group, int kind, double most,
                            double bytes, double *out)
{
    *out = INFINITY;
    for (double elements = most; elements >= fmin(most, 1024); elements /= 2) {
        weft_estimate estimate;
        if (!group)
            WEFT_TRY(weft_work_us(site, (weft_cost_kind)kind, elements * bytes, &estimate));
        else
            WEFT_TRY(weft_collective_us(site, group, (weft_collective)kind, elements * bytes,
                                        &estimate));
        *out = fmin(*out, estimate.us / elements);
    }
    return WEFT_OK;
}

static weft_status price_updates(bounding *b, weft_arena *scratch)
{
    enum { ADAMW_BYTES = 28, MARGIN = 32 };
    static const weft_axis axes[] = {WEFT_AXIS_DP_CP, WEFT_AXIS_EDP};
    const weft_cluster *cluster = b->bounds->space->cluster;
    const weft_site site = {.cluster = cluster, .experts = b->bounds->experts, .unsourced = true};
    const double element = (double)weft_dtype_bytes(weft_config_dtype(&b->config));
    const weft_cost_kind kind = steps_on_host(&b->config) ? WEFT_COST_ADAMW_HOST : WEFT_COST_ADAMW;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)b->mesh.world, sizeof(int), &memory));
    memset(b->bounds->updates, 0, sizeof b->bounds->updates);
    for (int i = 0; i < 2; i++) {
        int *ranks = memory;
        double most = (double)b->config.parallel.ddp_bucket_size;
        for (int k = 0; k < b->table->num_kinds; k++)
            most = fmax(most, b->table->kinds[k].largest[i]);
        const int size = weft_mesh_group_rising(&b->mesh, axes[i], 0, ranks, b->mesh.world);
        const weft_group group =
            weft_group_of(cluster, ranks, size, weft_config_sends_directly(&b->config));
        most += MARGIN + (double)WEFT_ALIGN_ELEMENTS * size; /* of padding */
        for (int zero = 0; zero < 2; zero++) {
            update_price *u = &b->bounds->updates[zero];
            const double share = zero ? 1.0 / size : 1;
            WEFT_TRY(least_us(&site, NULL, kind, most, share * ADAMW_BYTES, &u->step_us[i]));
            if (size == 1)
                continue;
            WEFT_TRY(least_us(&site, &group,
                              zero ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE,
                              most, sizeof(float), &u->reduce_us[i]));
            if (zero)
                WEFT_TRY(least_us(&site, &group, WEFT_COLLECTIVE_ALL_GATHER, most, element,
                                  &u->gather_us[i]));
        }
    }
    update_price *updates = b->bounds->updates; /* passes reduce, and gather, what they share out */
    for (int i = 0; i < 2; i++) {
        updates[2].step_us[i] = updates[3].step_us[i] = updates[1].step_us[i];
        updates[2].gather_us[i] = updates[1].gather_us[i];
    }
    b->bounds->updated = b->mesh;
    return WEFT_OK;
}

static bool same_mesh(const weft_mesh *a, const weft_mesh *b)
{
    return a->world == b->world && a->tp == b->tp && a->cp == b->cp && a->dp == b->dp &&
           a->pp == b->pp && a->ep == b->ep && a->etp == b->etp && a->binding == b->binding &&
           strcmp(a->order, b->order) == 0;
}

/* Where gradients' groups lie alike on all stages; else nothing is known of it: NULL. The table of
 * a stage is at hand. */
static weft_status find_updates(bounding *b, const update_price **out)
{
    const weft_cluster *cluster = b->bounds->space->cluster;
    const weft_sharding zero = weft_parallel_sharding(&b->config.parallel);
    const int each = cluster->ranks_per_node;
    *out = NULL;
    if (b->config.train.parameter_rules.count > 0 ||
        key_of(b->bounds, b->candidate, &b->config, &b->mesh, 0).pp != 0 ||
        !nests(b->mesh.tp * b->mesh.cp * b->mesh.pp, each) ||
        !nests(b->mesh.etp * b->mesh.ep * b->mesh.pp, each))
        return WEFT_OK;
    if (!same_mesh(&b->bounds->updated, &b->mesh)) {
        weft_arena scratch = {0};
        const weft_status status = price_updates(b, &scratch);
        weft_arena_release(&scratch);
        WEFT_TRY(status);
    }
    *out = &b->bounds->updates[zero];
    return WEFT_OK;
}

static double reduce_us(const update_price *u, const chunk_sum *sum)
{
    return u ? sum->dense * u->reduce_us[0] + sum->experts * u->reduce_us[1] : 0;
}

/* After the norm: steps one after the other, and what they updated is gathered. */
static double after_norm_us(const update_price *u, const chunk_sum *sum)
{
    return u ? fmax(sum->dense * u->step_us[0] + sum->experts * u->step_us[1],
                    sum->dense * u->gather_us[0] + sum->experts * u->gather_us[1])
             : 0;
}

/* --- all of it ----------------------------------------------------------------------------- */

/* The least of each figure of the blocks. */
static kind_price least_block(const bounding *b)
{
    kind_price least = *kind_at(b, b->num_layers > 2 ? 1 : 0);
    for (int l = 2; l < b->num_layers - 1; l++) {
        const kind_price *kind = kind_at(b, l);
        least.forward_us = fmin(least.forward_us, kind->forward_us);
        least.backward_us = fmin(least.backward_us, kind->backward_us);
        least.dense = fmin(least.dense, kind->dense);
        least.experts = fmin(least.experts, kind->experts);
        least.uploads_us = fmin(least.uploads_us, kind->uploads_us);
    }
    return least;
}

/* However layers are cut. Some stage has as many blocks as the mean, rounded up. And with stages'
 * passes T_s, whose sum is T, x >= m T_s + sum of T_i, i < s, for all s means T_s <= (x - sum) / m,
 * so that T <= x (1 - (1 - 1 / m)^p). Of backwards in two halves T <= x p / m. */
static weft_status bound_by_mean(bounding *b, weft_bound *out)
{
    const update_price *updates;
    const double m = b->num_micro_batches, p = b->mesh.pp;
    WEFT_TRY(find_table(b->bounds, b->candidate, &b->config, &b->mesh, 0, &b->table));
    WEFT_TRY(find_updates(b, &updates));
    const chunk_sum sum = sum_layers(b, NULL, 0, b->num_layers);
    const kind_price block = least_block(b);
    const double blocks = b->num_layers > 2 ? ceil((b->num_layers - 2) / p) : 0;
    const chunk_sum most = {.dense = blocks * block.dense, .experts = blocks * block.experts};
    const double passes = blocks * m * (block.forward_us + block.backward_us);
    note_memory(b, state_bytes(b, &sum) / b->mesh.pp, out);
    out->step_us = (sum.forward_us + sum.backward_us) /
                   (b->config.schedule.splits_backward ? p / m : 1 - pow(1 - 1 / m, p));
    out->step_us = fmax(out->step_us, passes);
    const chunk_sum mean = {
        .dense = sum.dense / p, .experts = sum.experts / p, .away = sum.away / p};
    const chunk_sum up = {.uploads_us = fmax(0, blocks - 1) * block.uploads_us,
                          .any_recompute_us = sum.any_recompute_us};
    if (leaves(b, &mean, 0))
        out->step_us = fmax(out->step_us, uploads_us(b, &up));
    out->step_us =
        fmax(out->step_us, passes - blocks * block.backward_us + reduce_us(updates, &most));
    out->step_us += after_norm_us(updates, &most);
    return WEFT_OK;
}

/* What is known of a stage whose chunks are added from the last to the first. */
typedef struct stage_sum {
    chunk_sum all, first;
    double least_kept;
    double behind_us;         /* of backwards and reductions: see below */
    double start_us;          /* of all chunks' first forwards and backwards, */
    double first_start_us[2]; /* and of the first chunk's, or less */
} stage_sum;

/* A chunk's gradients are final in its last backward, before which all forwards are over, all
 * backwards of the chunks behind it, and its own but one. From there on reductions of it and of the
 * chunks in front of it are one after the other. */
static stage_sum sum_stage(const bounding *b, const weft_layout *layout, int stage,
                           const update_price *updates)
{
    const double m = b->num_micro_batches;
    const bool splits = b->config.schedule.splits_backward;
    stage_sum out = {.least_kept = INFINITY};
    double behind_us = 0;
    for (int c = layout->num_chunks - 1; c >= 0; c--) {
        int begin, end;
        weft_layout_range(layout, stage, c, &begin, &end);
        chunk_sum sum = sum_layers(b, layout, begin, end);
        if (b->shared) {
            const weft_shared_chunk *shared = &b->shared->chunks[stage * b->shared->num_chunks + c];
            sum.forward_us += shared->us[0];
            sum.backward_us += shared->us[1];
            out.start_us += shared->start_us[0] + shared->start_us[1];
            out.first_start_us[0] = shared->start_us[0];
            out.first_start_us[1] = fmin(0, shared->start_us[1]);
        }
        out.behind_us = splits ? 0 : fmax(out.behind_us, behind_us + (m - 1) * sum.backward_us);
        behind_us += m * sum.backward_us - reduce_us(updates, &sum);
        out.all.forward_us += sum.forward_us;
        out.all.backward_us += sum.backward_us;
        out.all.recompute_us += sum.recompute_us;
        out.all.dense += sum.dense;
        out.all.experts += sum.experts;
        out.all.away += sum.away;
        out.all.uploads_us += sum.uploads_us;
        out.all.any_recompute_us += sum.any_recompute_us;
        out.least_kept = fmin(out.least_kept, sum.kept_bytes);
        out.first = sum;
    }
    return out;
}

static double tail_us(const bounding *b, int stage)
{
    return b->shared ? b->shared->tail_us[stage] : 0;
}

static weft_status bound_by_stages(bounding *b, weft_bound *out)
{
    const weft_layout *layout = &b->bounds->layout;
    const bool alike = key_of(b->bounds, b->candidate, &b->config, &b->mesh, 0).pp == 0;
    const double m = b->num_micro_batches;
    const update_price *updates = NULL;
    double before_us[2] = {0, 0}; /* forwards and backwards of the stages in front */
    double after_us = 0, up_us = 0;
    bool away = false;
    for (int s = 0; s < b->mesh.pp; s++) {
        if (s == 0 || !alike)
            WEFT_TRY(find_table(b->bounds, b->candidate, &b->config, &b->mesh, s, &b->table));
        if (s == 0)
            WEFT_TRY(find_updates(b, &updates));
        const stage_sum sum = sum_stage(b, layout, s, updates);
        const double pass = sum.all.forward_us + sum.all.backward_us + sum.all.recompute_us;
        const double end_us = before_us[0] + sum.start_us + m * pass;
        out->step_us = fmax(out->step_us, end_us + before_us[1] + tail_us(b, 0));
        out->step_us = fmax(out->step_us, end_us + tail_us(b, s));
        out->step_us =
            fmax(out->step_us, before_us[0] + fmin(0, sum.start_us) + m * sum.all.forward_us +
                                   sum.behind_us + reduce_us(updates, &sum.all));
        const double kept = sum.least_kept * num_in_flight(b, s, layout->num_chunks);
        up_us = fmax(up_us, before_us[0] + uploads_us(b, &sum.all) + before_us[1]);
        away |= leaves(b, &sum.all, kept);
        after_us = fmax(after_us, after_norm_us(updates, &sum.all));
        before_us[0] += sum.first.forward_us + sum.first_start_us[0];
        /* Of halves nothing waits for the weights'. */
        before_us[1] +=
            b->config.schedule.splits_backward ? 0 : sum.first.backward_us + sum.first_start_us[1];
        note_memory(b, state_bytes(b, &sum.all) + kept, out);
    }
    out->step_us = away ? fmax(out->step_us, up_us) : out->step_us;
    out->step_us += after_us;
    return WEFT_OK;
}

static weft_status start(weft_bounds *bounds, const weft_candidate *c, bounding *b)
{
    *b = (bounding){.bounds = bounds, .candidate = c, .num_layers = bounds->num_layers};
    weft_space_apply(bounds->space, c, &b->config);
    WEFT_TRY(weft_mesh_build(&b->config.parallel, bounds->space->world, b->config.model.num_experts,
                             &b->mesh));
    b->num_micro_batches =
        (int)(b->config.train.global_batch_size / b->config.train.micro_batch_size / b->mesh.dp);
    if (bounds->own) {
        const table *first;
        WEFT_TRY(find_table(bounds, c, &b->config, &b->mesh, 0, &first));
        b->num_layers = first->num_kinds;
    }
    return WEFT_OK;
}

weft_status weft_bound_of(weft_bounds *bounds, const weft_candidate *c, weft_bound *out)
{
    bounding b;
    *out = (weft_bound){.fits = true};
    WEFT_TRY(start(bounds, c, &b));
    const char *layout = b.config.parallel.pipeline_model_parallel_layout;
    if (layout && strcmp(layout, "auto") == 0 && bounds->space->cluster->num_groups == 0 &&
        key_of(bounds, c, &b.config, &b.mesh, 0).pp == 0)
        return bound_by_mean(&b, out);
    if (layout && strcmp(layout, "auto") == 0)
        return WEFT_OK; /* stages' layers have prices of their own */
    WEFT_TRY(weft_layout_build(&b.config.parallel, b.mesh.pp, b.num_layers, NULL, &bounds->layout));
    return bound_by_stages(&b, out);
}

/* --- the tighter one ----------------------------------------------------------------------- */

bool weft_bound_is_loose(const weft_bounds *bounds, const weft_candidate *c)
{
    return bounds->space->cluster->num_groups == 0 &&
           (c->by_work || c->zero >= 2 || bounds->space->forms[c->form].offload);
}

static sharing_key key_of_sharing(const bounding *b)
{
    const weft_candidate *c = b->candidate;
    sharing_key key;
    memset(&key, 0, sizeof key);
    key.table = key_of(b->bounds, c, &b->config, &b->mesh, 0);
    key.order = c->order;
    key.zero = c->zero;
    key.num_chunks = c->num_chunks;
    key.is_v = b->config.parallel.stages_in_v && c->pp > 1;
    key.by_work = c->by_work;
    key.pp = c->pp;
    key.dp = c->dp;
    return key;
}

static weft_status make_sharing(const bounding *b, const sharing_key *key, sharing **out)
{
    weft_bounds *bounds = b->bounds;
    weft_layout *layout = &bounds->layout;
    const choice *chosen;
    void *memory;
    WEFT_TRY(find_choice(bounds, &b->config, &b->mesh, &key->table, &chosen));
    weft_mesh mesh = b->mesh; /* that of the choice may have other stages and replicas */
    mesh.cp_comm_type = chosen->mesh.cp_comm_type;
    mesh.cp_inner = chosen->mesh.cp_inner;
    weft_config away = b->config; /* experts that may leave the device share out nothing */
    if (away.tier.experts == WEFT_TIER_AUTO)
        away.tier.experts = WEFT_TIER_HOST;
    sharing *s;
    WEFT_TRY(weft_arena_alloc(&bounds->arena, sizeof(sharing), &s));
    s->key = *key;
    WEFT_TRY(weft_shared_passes_find(&away, bounds->space->cluster, bounds->experts, &mesh,
                                     &chosen->moe, &bounds->arena, layout, &s->passes));
    const size_t num = (size_t)weft_layout_num_stages(layout) + 1;
    WEFT_TRY(weft_arena_alloc_array(&bounds->arena, num, sizeof *layout->first, &memory));
    memcpy(memory, layout->first, num * sizeof *layout->first);
    s->first = memory;
    *out = s;
    return WEFT_OK;
}

static weft_status find_sharing(const bounding *b, const sharing **out)
{
    const sharing_key key = key_of_sharing(b);
    sharing **bin = &b->bounds->sharings[bin_of(&key, sizeof key)], *s = *bin;
    while (s && memcmp(&s->key, &key, sizeof key) != 0)
        s = s->next;
    if (!s) {
        WEFT_TRY(make_sharing(b, &key, &s));
        s->next = *bin;
        *bin = s;
    }
    *out = s;
    return WEFT_OK;
}

weft_status weft_bound_tighten(weft_bounds *bounds, const weft_candidate *c, weft_bound *out)
{
    bounding b;
    const sharing *found = NULL;
    weft_layout *layout = &bounds->layout;
    *out = (weft_bound){.fits = true};
    WEFT_TRY(start(bounds, c, &b));
    WEFT_TRY(find_sharing(&b, &found));
    b.shared = &found->passes;
    layout->is_v = found->key.is_v;
    layout->num_ranks = b.mesh.pp;
    layout->num_chunks = b.shared->num_chunks;
    layout->num_layers = b.num_layers;
    memcpy(layout->first, found->first,
           ((size_t)weft_layout_num_stages(layout) + 1) * sizeof *layout->first);
    return bound_by_stages(&b, out);
}
