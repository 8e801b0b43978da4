#include "launcher/searching/candidates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "launcher/planning/plan.h"
#include "launcher/planning/ramp.h"
#include "layers/model/model.h"
#include "parallel/mesh/mesh.h"
#include "schedule/context.h"
#include "schedule/exchange/exchange.h"
#include "schedule/moe/layer.h"
#include "schedule/pipeline/order.h"

/* What of a micro-batch's activations is made again. */
enum { RECOMPUTE_NOTHING, RECOMPUTE_ATTENTION, RECOMPUTE_MODULES, RECOMPUTE_HALF, RECOMPUTE_ALL };
enum { OFFLOAD_NOTHING, OFFLOAD_ATTENTION, OFFLOAD_BLOCK };
enum { CHAIN_NONE, CHAIN_RECOMPUTE, CHAIN_OFFLOAD, CHAIN_REUSE };

/* docs/planning.md lists them. */
static const weft_search_form all_forms[] = {
    {CHAIN_NONE, 0, RECOMPUTE_NOTHING, OFFLOAD_NOTHING, false},
    {CHAIN_RECOMPUTE, 0, RECOMPUTE_ATTENTION, OFFLOAD_NOTHING, false},
    {CHAIN_RECOMPUTE, 1, RECOMPUTE_MODULES, OFFLOAD_NOTHING, false},
    {CHAIN_RECOMPUTE, 2, RECOMPUTE_HALF, OFFLOAD_NOTHING, false},
    {CHAIN_RECOMPUTE, 3, RECOMPUTE_ALL, OFFLOAD_NOTHING, false},
    {CHAIN_OFFLOAD, 0, RECOMPUTE_NOTHING, OFFLOAD_ATTENTION, false},
    {CHAIN_OFFLOAD, 1, RECOMPUTE_NOTHING, OFFLOAD_BLOCK, false},
    {CHAIN_REUSE, 0, RECOMPUTE_NOTHING, OFFLOAD_NOTHING, true},
};
enum { NUM_FORMS = sizeof all_forms / sizeof *all_forms };
_Static_assert(NUM_FORMS <= (int)WEFT_MAX_FORMS, "of a space");

/* --- what is held -------------------------------------------------------------------------- */

static unsigned find_held(const weft_config_source *source, weft_config *config)
{
    unsigned held = 0;
    char key[96];
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t num_sections = weft_config_sections(config, sections);
    for (size_t s = 0; s < num_sections; s++)
        for (size_t i = 0; i < sections[s].num_rows; i++) {
            const weft_key *row = &sections[s].rows[i];
            snprintf(key, sizeof key, "%s.%s", sections[s].name, row->key);
            if (row->searched && ((row->alias && weft_config_mesh_names(source, row->alias)) ||
                                  weft_config_is_set(source, key)))
                held |= 1u << row->searched;
        }
    return held;
}

static bool space_holds(const weft_search_space *space, weft_searched what)
{
    return space->held >> what & 1;
}

/* --- the space ----------------------------------------------------------------------------- */

/* Experts beyond device memory go up once for all rows: their layers run in one partition. */
static bool runs_whole(const weft_search_space *s)
{
    return s->config.tier.experts != WEFT_TIER_NONE;
}

/* A pair's layers run as the config says: plans choose how for a layer alone. */
static bool has_pairs(const weft_search_space *s)
{
    return s->config.schedule.overlap_moe_expert_parallel_comm && s->config.model.num_experts > 0;
}

static bool form_is_allowed(const weft_search_space *s, const weft_search_form *form)
{
    if (has_pairs(s) && (form->offload || form->reuse))
        return false;
    return !((form->recompute && space_holds(s, WEFT_SEARCHED_RECOMPUTE)) ||
             (form->offload && space_holds(s, WEFT_SEARCHED_OFFLOAD)) ||
             (form->reuse && (space_holds(s, WEFT_SEARCHED_REUSE) ||
                              s->config.model.num_experts == 0 || runs_whole(s))));
}

static void list_orders(weft_search_space *s)
{
    static const char *const orders[] = {"tp-cp-ep-dp-pp", "tp-ep-dp-cp-pp", "tp-cp-ep-pp-dp"};
    if (space_holds(s, WEFT_SEARCHED_ORDER))
        s->orders[s->num_orders++] = s->config.parallel.order;
    else
        for (; s->num_orders < 3; s->num_orders++)
            s->orders[s->num_orders] = orders[s->num_orders];
}

weft_search_space weft_space_of(const weft_config *config, const weft_config_source *source,
                                const weft_cluster *cluster, int nodes, int64_t least_tokens)
{
    weft_search_space s = {.config = *config,
                           .source = source,
                           .cluster = cluster,
                           .world = nodes * cluster->ranks_per_node,
                           .least_tokens = least_tokens > 0 ? least_tokens : WEFT_LEAST_TOKENS};
    s.held = find_held(source, &s.config);
    if (weft_plan_is_of_gpus(config, cluster))
        s.config.device.kind = WEFT_DEVICE_KIND_CUDA;
    s.config.planned_on = cluster;
    list_orders(&s);
    for (int i = 0; i < NUM_FORMS; i++)
        if (form_is_allowed(&s, &all_forms[i]))
            s.forms[s.num_forms++] = all_forms[i];
    return s;
}

/* --- a candidate's config ------------------------------------------------------------------ */

static void apply_mesh(const weft_search_space *s, const weft_candidate *c, weft_config *out)
{
    static const int64_t none = 0;
    weft_parallel_options *p = &out->parallel;
    p->tensor_model_parallel_size = c->tp;
    p->context_parallel_size = c->cp;
    p->pipeline_model_parallel_size = c->pp;
    p->data_parallel_size = c->dp;
    p->expert_model_parallel_size = c->ep;
    p->expert_tensor_parallel_size = c->etp;
    p->expert_binding = c->binding;
    p->order = s->orders[c->order];
    p->sequence_parallel = c->sequence_parallel;
    if (!space_holds(s, WEFT_SEARCHED_CONTEXT)) {
        p->cp_comm_type = WEFT_NUM_CONTEXT_FORMS; /* auto */
        p->hierarchical_context_parallel_sizes = (weft_int_list){.values = &none, .count = 1};
    }
    if (!space_holds(s, WEFT_SEARCHED_OVERLAP)) {
        p->tp_comm_overlap = c->tp > 1;
        p->tp_comm_overlap_chunks = (weft_int_list){.values = &none, .count = 1}; /* by price */
    }
}

static void apply_zero(const weft_search_space *s, int zero, weft_config *out)
{
    if (space_holds(s, WEFT_SEARCHED_ZERO))
        return;
    out->parallel.data_parallel_sharding_strategy = 1 + zero;
    out->parallel.use_distributed_optimizer = zero > 0;
}

static void apply_pipeline(const weft_search_space *s, const weft_candidate *c, weft_config *out)
{
    weft_parallel_options *p = &out->parallel;
    if (!space_holds(s, WEFT_SEARCHED_SCHEDULE)) {
        out->schedule.pipeline_schedule = c->schedule;
        out->schedule.pipeline_schedule_file = "";
    }
    weft_config_settle_stages(out);
    if (!space_holds(s, WEFT_SEARCHED_CHUNKS)) {
        p->num_virtual_stages_per_pipeline_rank = c->num_chunks > 1 ? c->num_chunks : 0;
        p->num_layers_per_virtual_pipeline_stage = 0;
    }
    if (!space_holds(s, WEFT_SEARCHED_LAYOUT)) {
        p->pipeline_model_parallel_layout = c->by_work ? "auto" : "";
        p->decoder_first_pipeline_num_layers = p->decoder_last_pipeline_num_layers = 0;
    }
    if (out->schedule.microbatch_group_size_per_virtual_pipeline_stage > 0 &&
        !weft_config_is_set(s->source, "parallel.microbatch_group_size_per_virtual_pipeline_stage"))
        out->schedule.microbatch_group_size_per_virtual_pipeline_stage = 0;
}

static void has_kinds(const weft_model_options *o, bool *out_dense, bool *out_moe)
{
    *out_dense = *out_moe = false;
    for (int64_t i = 0; i < o->num_layers; i++)
        *(weft_model_is_moe_layer(o, i) ? out_moe : out_dense) = true;
}

static void apply_recompute(const weft_candidate *c, int kind, weft_config *out)
{
    static const char *const qkv_names[] = {"core_attn", "mlp", "moe"},
                             *const qkv_moe[] = {"core_attn", "moe"},
                             *const latent_names[] = {"core_attn", "mla_up_proj", "mlp", "moe"},
                             *const latent_moe[] = {"core_attn", "mla_up_proj", "moe"};
    const size_t more = out->model.multi_latent_attention; /* mla_up_proj */
    const char *const *names = more ? latent_names : qkv_names;
    weft_recompute_options *r = &out->train.recompute;
    bool dense, moe;
    *r = (weft_recompute_options){
        .granularity = WEFT_RECOMPUTE_NONE, .num_layers = 1, .modules = {names, 1}};
    has_kinds(&out->model, &dense, &moe);
    const int64_t each = out->model.num_layers / ((int64_t)c->pp * c->num_chunks);
    switch (kind) {
    case RECOMPUTE_ATTENTION:
        r->granularity = WEFT_RECOMPUTE_SELECTIVE;
        r->modules.count = 1 + more;
        break;
    case RECOMPUTE_MODULES:
        r->granularity = WEFT_RECOMPUTE_SELECTIVE;
        r->modules = dense ? (weft_string_list){names, (moe ? 3 : 2) + more}
                           : (weft_string_list){more ? latent_moe : qkv_moe, 2 + more};
        break;
    case RECOMPUTE_HALF:
        r->granularity = WEFT_RECOMPUTE_FULL;
        r->method = WEFT_RECOMPUTE_BLOCK;
        r->num_layers = (each + 1) / 2 > 0 ? (each + 1) / 2 : 1;
        break;
    case RECOMPUTE_ALL:
        r->granularity = WEFT_RECOMPUTE_FULL;
        break;
    default:
        break;
    }
}

static void apply_offload(int kind, weft_config *out)
{
    static const char *const attention[] = {"core_attn"}, *const block[] = {"block"};
    out->train.offload = (weft_offload_options){
        .on = kind != OFFLOAD_NOTHING, .modules = {kind == OFFLOAD_BLOCK ? block : attention, 1}};
}

/* What plans choose by price is left to them; of pairs they choose no partitions. */
static void apply_moe(const weft_search_space *s, bool reuse, weft_config *out)
{
    weft_schedule_options *p = &out->schedule;
    if (has_pairs(s)) {
        p->moe_num_partitions += p->moe_num_partitions == 0;
    } else if (!space_holds(s, WEFT_SEARCHED_PARTITIONS)) {
        p->moe_num_partitions = runs_whole(s) ? 1 : 0;
        p->moe_partition_by = WEFT_MOE_PARTITION_BY_AUTO;
        p->moe_peer_group_size = 1;
        p->moe_choice = WEFT_MOE_CHOICE_PRICE;
    }
    if (!space_holds(s, WEFT_SEARCHED_REUSE))
        p->moe_memory_reuse = reuse ? WEFT_NUM_REUSES : WEFT_REUSE_NONE;
    if (!space_holds(s, WEFT_SEARCHED_EXCHANGE)) {
        p->moe_all_to_all = WEFT_NUM_EXCHANGES;
        p->moe_all_to_all_chunks = 0;
    }
}

void weft_space_apply(const weft_search_space *s, const weft_candidate *c, weft_config *out)
{
    const weft_search_form *form = &s->forms[c->form];
    *out = s->config;
    out->train.micro_batch_size = c->micro_batch;
    apply_mesh(s, c, out);
    apply_zero(s, c->zero, out);
    apply_pipeline(s, c, out);
    if (!space_holds(s, WEFT_SEARCHED_RECOMPUTE))
        apply_recompute(c, form->recompute, out);
    if (!space_holds(s, WEFT_SEARCHED_OFFLOAD))
        apply_offload(form->offload, out);
    if (out->model.num_experts > 0)
        apply_moe(s, form->reuse, out);
}

/* --- enumeration --------------------------------------------------------------------------- */

typedef struct listing {
    const weft_search_space *space;
    const weft_model_options *model;
    weft_candidate_list *out;
    weft_candidate at;
} listing;

/* A held size of 0 is none. */
static bool may_be(const listing *l, weft_searched what, int64_t held, int64_t value)
{
    return !space_holds(l->space, what) || held == value ||
           (held == 0 && what != WEFT_SEARCHED_BINDING);
}

static weft_status append(listing *l)
{
    weft_candidate_list *list = l->out;
    WEFT_TRY(WEFT_GROW(list->values, list->capacity, list->count + 1, "candidates"));
    list->values[list->count++] = l->at;
    return WEFT_OK;
}

/* Among one rank all ZeRO stages are the same. Backwards in two halves would keep what the last two
 * stages give back. */
static weft_status list_zeros(listing *l)
{
    static const int zeros[] = {1, 0, 2, 3};
    const bool splits = weft_pipeline_kind_splits(l->at.schedule);
    const bool own = l->model->num_experts > 0 && l->at.binding == WEFT_BINDING_DP;
    const int replicas = l->at.dp * l->at.cp,
              of_experts = own ? replicas * l->at.tp / (l->at.ep * l->at.etp) : 1;
    const bool shares = replicas > 1 || of_experts > 1;
    const int num = !shares ? 1 : splits ? 2 : sizeof zeros / sizeof *zeros;
    if (space_holds(l->space, WEFT_SEARCHED_ZERO)) {
        l->at.zero = (int)weft_parallel_sharding(&l->space->config.parallel);
        return append(l);
    }
    for (int i = 0; i < num; i++) {
        l->at.zero = zeros[i];
        WEFT_TRY(append(l));
    }
    return WEFT_OK;
}

/* Evenly, and by the layers' work where a pipeline's stages have a chunk each and backwards are
 * whole. */
static weft_status list_layouts(listing *l)
{
    l->at.by_work = false;
    WEFT_TRY(list_zeros(l));
    if (l->at.pp == 1 || l->at.num_chunks > 1 || weft_pipeline_kind_splits(l->at.schedule) ||
        space_holds(l->space, WEFT_SEARCHED_LAYOUT))
        return WEFT_OK;
    l->at.by_work = true;
    return list_zeros(l);
}

static weft_status list_chunks(listing *l)
{
    static const int chunks[] = {1, 2, 3, 4, 6, 8, 12, 16};
    const int64_t own = l->space->config.parallel.num_virtual_stages_per_pipeline_rank;
    const bool held =
        space_holds(l->space, WEFT_SEARCHED_CHUNKS) || space_holds(l->space, WEFT_SEARCHED_LAYOUT);
    l->at.num_chunks = own > 0 ? (int)own : 1;
    if (held)
        return list_layouts(l);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const bool is_v = l->at.pp > 1 && weft_pipeline_kind_is_v(l->at.schedule);
        const bool cuts = l->at.schedule == WEFT_PIPELINE_1F1B || is_v;
        const bool divides = l->model->num_layers % ((int64_t)l->at.pp * chunks[i]) == 0;
        l->at.num_chunks = chunks[i];
        if (is_v ? chunks[i] == 2 && divides : chunks[i] == 1 || (l->at.pp > 1 && cuts && divides))
            WEFT_TRY(list_layouts(l));
    }
    return WEFT_OK;
}

/* Of one stage all schedules are the same. Of those with backwards in two halves the ones that need
 * no more memory than 1F1B stand for all. */
static weft_status list_schedules(listing *l)
{
    const weft_schedule_options *own = &l->space->config.schedule;
    if (space_holds(l->space, WEFT_SEARCHED_SCHEDULE)) {
        l->at.schedule = own->pipeline_schedule;
        return list_chunks(l);
    }
    static const int kinds[] = {WEFT_PIPELINE_1F1B, WEFT_PIPELINE_GPIPE, WEFT_PIPELINE_ZB_H1,
                                WEFT_PIPELINE_ZBV};
    for (size_t i = 0; i < (l->at.pp > 1 ? sizeof kinds / sizeof *kinds : 1); i++) {
        l->at.schedule = kinds[i];
        WEFT_TRY(list_chunks(l));
    }
    return WEFT_OK;
}

static void refuse(listing *l, const char *why)
{
    if (l->out->illegal++ == 0)
        snprintf(l->out->why, sizeof l->out->why, "%s", why);
}

/* The sizes and bindings as a mesh. Errors: WEFT_CONFIG, what no rule allows. */
static weft_status space_mesh(const weft_search_space *s, const weft_candidate *c, weft_mesh *out)
{
    weft_config config;
    weft_space_apply(s, c, &config);
    return weft_mesh_build(&config.parallel, s->world, config.model.num_experts, out);
}

/* The rules that follow from sizes. */
static weft_status check(const listing *l)
{
    weft_config config;
    weft_mesh mesh;
    weft_candidate first = l->at;
    first.form = 0;
    weft_space_apply(l->space, &first, &config);
    WEFT_TRY(space_mesh(l->space, &first, &mesh));
    WEFT_TRY(weft_model_check_mesh(&config.model, &mesh, config.model.num_layers,
                                   config.train.micro_batch_size));
    return weft_model_check_moe(&config.model, &config.schedule, &mesh);
}

static weft_status list_micro_batch(listing *l, int64_t micro_batch)
{
    l->at.micro_batch = (int)micro_batch;
    l->at.num_chunks = 1;
    const weft_status status = check(l);
    if (status == WEFT_CONFIG)
        refuse(l, weft_error_get()->text);
    else
        WEFT_TRY(status);
    if (status == WEFT_OK)
        WEFT_TRY(list_schedules(l));
    weft_error_clear();
    return WEFT_OK;
}

/* Of large ones powers of two, and the largest: what lies between is seldom the best. */
static weft_status list_micro_batches(listing *l)
{
    const weft_train_options *t = &l->space->config.train;
    const int64_t each = weft_ramp_unit(t) / l->at.dp;
    if (space_holds(l->space, WEFT_SEARCHED_MICRO_BATCH))
        return t->micro_batch_size <= each && each % t->micro_batch_size == 0
                   ? list_micro_batch(l, t->micro_batch_size)
                   : WEFT_OK;
    int64_t largest = each < WEFT_MOST_MICRO_BATCH ? each : WEFT_MOST_MICRO_BATCH;
    while (each % largest != 0)
        largest--;
    for (int64_t b = 1; b <= largest; b++)
        if (each % b == 0 && (b <= WEFT_ALL_MICRO_BATCHES || b == largest || (b & (b - 1)) == 0))
            WEFT_TRY(list_micro_batch(l, b));
    return WEFT_OK;
}

static weft_status list_sequences(listing *l)
{
    const bool own = l->space->config.parallel.sequence_parallel;
    const bool held = space_holds(l->space, WEFT_SEARCHED_SEQUENCE);
    for (int on = 0; on < 2; on++) {
        l->at.sequence_parallel = on;
        if (held ? own == (bool)on : on == 0 || l->at.tp > 1)
            WEFT_TRY(list_micro_batches(l));
    }
    return WEFT_OK;
}

/* Orders that number the ranks of this mesh differently, and give both grids the same pipelines. */
static weft_status list_meshes_by_order(listing *l)
{
    const weft_candidate *c = &l->at;
    const bool moe = l->model->num_experts > 0 && c->binding == WEFT_BINDING_DP;
    for (int i = 0; i < l->space->num_orders; i++) {
        l->at.order = i;
        if ((i == 1 && (c->cp == 1 || c->dp == 1)) ||
            (i == 2 && (c->pp == 1 || c->dp == 1 || (moe && c->etp * c->ep != c->tp * c->cp))))
            continue;
        WEFT_TRY(list_sequences(l));
    }
    return WEFT_OK;
}

/* Experts in the tensor-parallel group, or over the ranks of a stage, whole or cut as the rest. */
static weft_status list_experts(listing *l)
{
    const weft_parallel_options *own = &l->space->config.parallel;
    const int64_t num = l->model->num_experts, stage = l->space->world / l->at.pp;
    l->at.binding = WEFT_BINDING_DP;
    l->at.ep = l->at.etp = 1;
    if (num == 0)
        return list_meshes_by_order(l);
    for (int64_t ep = 1; ep <= num && ep <= stage; ep++)
        for (int cut = 0; cut < (l->at.tp > 1 ? 2 : 1); cut++) {
            const int etp = cut ? l->at.tp : 1;
            if (num % ep != 0 || stage % (ep * etp) != 0 ||
                !may_be(l, WEFT_SEARCHED_EP, own->expert_model_parallel_size, ep) ||
                !may_be(l, WEFT_SEARCHED_ETP, own->expert_tensor_parallel_size, etp) ||
                !may_be(l, WEFT_SEARCHED_BINDING, own->expert_binding, WEFT_BINDING_DP))
                continue;
            l->at.binding = WEFT_BINDING_DP;
            l->at.ep = (int)ep;
            l->at.etp = etp;
            WEFT_TRY(list_meshes_by_order(l));
        }
    l->at.binding = WEFT_BINDING_TP;
    l->at.ep = l->at.tp;
    l->at.etp = 1;
    const bool named = space_holds(l->space, WEFT_SEARCHED_BINDING);
    if (num % l->at.tp != 0 || (l->at.tp == 1 && !named) ||
        !may_be(l, WEFT_SEARCHED_EP, own->expert_model_parallel_size, l->at.tp) ||
        !may_be(l, WEFT_SEARCHED_ETP, own->expert_tensor_parallel_size, 1) ||
        !may_be(l, WEFT_SEARCHED_BINDING, own->expert_binding, WEFT_BINDING_TP))
        return WEFT_OK;
    return list_meshes_by_order(l);
}

static weft_status list_replicas(listing *l)
{
    const weft_parallel_options *own = &l->space->config.parallel;
    const int64_t dp = l->space->world / ((int64_t)l->at.tp * l->at.cp * l->at.pp);
    l->at.dp = (int)dp;
    if (!may_be(l, WEFT_SEARCHED_DP, own->data_parallel_size, dp))
        return WEFT_OK;
    const weft_train_options *train = &l->space->config.train;
    if (weft_ramp_unit(train) % dp == 0)
        return list_experts(l);
    char why[160];
    const bool has_ramp = train->global_batch_size % dp == 0;
    snprintf(why, sizeof why, "tp %d x cp %d x pp %d leave dp %lld, which does not divide %s %lld",
             l->at.tp, l->at.cp, l->at.pp, (long long)dp,
             has_ramp ? "what rampup_batch_size grows in," : "global_batch_size",
             (long long)(has_ramp ? weft_ramp_unit(train) : train->global_batch_size));
    refuse(l, why);
    return WEFT_OK;
}

static weft_status list_pipelines(listing *l)
{
    const int64_t own = l->space->config.parallel.pipeline_model_parallel_size;
    const int left = l->space->world / (l->at.tp * l->at.cp);
    const bool held = space_holds(l->space, WEFT_SEARCHED_PP);
    const int64_t most = held ? own : l->model->num_layers;
    for (int pp = 1; pp <= left && pp <= most; pp++) {
        if (left % pp != 0 || (held && pp != own))
            continue;
        l->at.pp = pp;
        WEFT_TRY(list_replicas(l));
    }
    return WEFT_OK;
}

weft_status weft_space_list(const weft_search_space *s, weft_candidate_list *out)
{
    listing l = {.space = s, .model = &s->config.model, .out = out};
    const weft_parallel_options *own = &s->config.parallel;
    const int near = own->allow_tp_across_nodes ? s->world : s->cluster->ranks_per_node;
    const bool holds_cp = space_holds(s, WEFT_SEARCHED_CP);
    *out = (weft_candidate_list){0};
    const bool holds_tp = space_holds(s, WEFT_SEARCHED_TP);
    const int64_t parts = l.model->seq_length / s->least_tokens;
    const int64_t most_tp = holds_tp ? own->tensor_model_parallel_size : near;
    const int64_t most_cp = holds_cp ? own->context_parallel_size : parts > 1 ? parts : 1;
    for (int tp = 1; tp <= s->world && tp <= most_tp; tp++) {
        if (s->world % tp != 0 ||
            (holds_tp ? tp != most_tp : near % tp != 0 || l.model->num_attention_heads % tp != 0))
            continue;
        for (int cp = 1; cp <= s->world / tp && cp <= most_cp; cp++) {
            if (s->world / tp % cp != 0 || (holds_cp && cp != most_cp))
                continue;
            l.at.tp = tp;
            l.at.cp = cp;
            WEFT_TRY(list_pipelines(&l));
        }
    }
    return WEFT_OK;
}

void weft_candidate_list_release(weft_candidate_list *list)
{
    free(list->values);
    *list = (weft_candidate_list){0};
}

/* --- forms --------------------------------------------------------------------------------- */

int weft_space_next_forms(const weft_search_space *s, const weft_candidate *c,
                          int out[WEFT_MAX_FORMS])
{
    const weft_search_form *now = &s->forms[c->form];
    int count = 0, chain = CHAIN_NONE;
    if (c->zero == 0 && !space_holds(s, WEFT_SEARCHED_ZERO))
        return 0;
    for (int i = c->form + 1; i < s->num_forms; i++) {
        const weft_search_form *form = &s->forms[i];
        if (c->form > 0 ? form->chain == now->chain : form->chain != chain)
            out[count++] = i;
        chain = form->chain;
        if (c->form > 0 && count > 0)
            break;
    }
    return count;
}

bool weft_candidate_differs_by_order(const weft_candidate *a, const weft_candidate *b)
{
    return a->order != b->order && a->tp == b->tp && a->cp == b->cp && a->pp == b->pp &&
           a->dp == b->dp && a->ep == b->ep && a->etp == b->etp && a->binding == b->binding &&
           a->zero == b->zero && a->schedule == b->schedule && a->num_chunks == b->num_chunks &&
           a->micro_batch == b->micro_batch && a->form == b->form &&
           a->sequence_parallel == b->sequence_parallel && a->by_work == b->by_work;
}

bool weft_candidate_repeats(const weft_candidate *c, const weft_layout *layout)
{
    if (!c->by_work)
        return false;
    const weft_layout even = weft_layout_even(layout->num_ranks, layout->num_layers);
    return memcmp(even.first, layout->first,
                  ((size_t)layout->num_ranks + 1) * sizeof *even.first) == 0;
}
