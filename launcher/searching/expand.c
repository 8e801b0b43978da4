#include "launcher/searching/expand.h"

#include <math.h>

#include "core/cluster/cluster.h"
#include "core/divisor.h"
#include "core/text.h"
#include "launcher/planning/places.h"
#include "schedule/context.h"

enum {
    STATE_BYTES = 12,
    MAX_STEPS = 64,
    MAX_DOUBLINGS = 16
}; /* of a parameter: fp32 weight and both moments */

static const char along[] = "tp-cp-ep-dp-pp", across[] = "tp-ep-dp-cp-pp";

const char *const weft_expand_texts[] = {"data", "context", "horizontal", "vertical"};

/* --- what a step would be ------------------------------------------------------------------ */

#define LEAST_LR_CHANGE 0.01 /* of the tokens a step; below it none is advised */

typedef struct ladder {
    const weft_expand_request *request;
    weft_arena *arena, *scratch; /* of the job, of a plan */
    weft_expand *out;
    int max_nodes;
} ladder;

/* A mesh that is tried for a step. */
typedef struct candidate {
    weft_config config;
    int num_nodes;
    double wanted_batch;
    bool keeps_batch;
} candidate;

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Tensor-parallel groups over which experts are spread; 1: they stay in one. */
static int64_t spread(const weft_mesh *mesh)
{
    if (mesh->binding == WEFT_BINDING_TP)
        return 1;
    return divide_up((int64_t)mesh->ep * mesh->etp, mesh->tp);
}

static int64_t reach_of(const weft_cluster *cluster)
{
    return cluster->num_levels > 0 ? cluster->levels[0].nodes : cluster->num_nodes;
}

static weft_expand_kind kind_of(const weft_mesh *mesh)
{
    if (mesh->cp == 1)
        return WEFT_EXPAND_DATA;
    if (mesh->ep == 1 || mesh->binding == WEFT_BINDING_TP)
        return WEFT_EXPAND_CONTEXT;
    return weft_mesh_is_vertical(mesh) ? WEFT_EXPAND_VERTICAL : WEFT_EXPAND_HORIZONTAL;
}

/* MoNTA's conditions, in nodes. */
static const char *refused_by_switch(const ladder *l, const weft_mesh *today, int64_t cp)
{
    const weft_cluster *cluster = l->request->to;
    const int64_t ep = spread(today), reach = reach_of(cluster);
    const bool vertical = cp >= ep;
    const int64_t groups = vertical ? (cp > ep ? cp : ep) : ep * cp;
    const int64_t needed = divide_up(groups * today->tp, cluster->ranks_per_node);
    const char *text = NULL;
    if (cp == 1 || ep <= 1 || needed <= reach)
        return NULL;
    const weft_status status = weft_arena_printf(
        l->arena, &text,
        "%s, ep %lld %s cp %lld takes %lld nodes on one switch, which reaches %lld",
        vertical ? "vertical" : "horizontal", (long long)ep, vertical ? "along" : "x",
        (long long)cp, (long long)needed, (long long)reach);
    return status == WEFT_OK ? text : "the switch is too small";
}

/* The sizes of a batch at this length: what would keep the tokens or samples, and the smallest that
 * replicas share evenly. */
static void set_batch(const ladder *l, int64_t dp, candidate *c)
{
    const weft_config *today = l->request->config;
    weft_config *config = &c->config;
    const double samples = (double)today->train.global_batch_size,
                 length = (double)config->model.seq_length / (double)today->model.seq_length;
    int64_t micro = (int64_t)((double)today->train.micro_batch_size / length);
    c->wanted_batch = l->request->keeps_samples ? samples : samples / length;
    if (micro < 1)
        micro = 1;
    while (micro > 1 && fmod(c->wanted_batch, (double)(micro * dp)) != 0)
        micro--;
    const int64_t each = micro * dp;
    config->train.micro_batch_size = micro;
    const int64_t shares = llround(c->wanted_batch / (double)each); /* the nearest legal batch */
    config->train.global_batch_size = (shares > 0 ? shares : 1) * each;
    config->train.rampup_batch_size.count = 0; /* of a run's first steps; an expansion goes on */
    c->keeps_batch = (double)config->train.global_batch_size == c->wanted_batch;
}

/* The config with this mesh; its experts as they were. */
static candidate make_candidate(const ladder *l, const weft_expand_step *before, int64_t context,
                                int64_t cp, int64_t dp)
{
    candidate c = {.config = before->config};
    weft_config *config = &c.config;
    weft_parallel_options *p = &config->parallel;
    const weft_mesh *mesh = &before->mesh;
    const int64_t world = (int64_t)mesh->tp * mesh->pp * cp * dp;
    c.num_nodes = (int)divide_up(world, l->request->to->ranks_per_node);
    config->model.seq_length = context;
    if (config->model.max_position_embeddings < context)
        config->model.max_position_embeddings = context; /* no learned ones */
    if (context > l->request->config->model.seq_length && l->out->block_tokens > 0)
        config->data.shuffle_block_tokens = l->out->block_tokens;
    if (config->data.shuffle_block_tokens % context != 0)
        config->data.shuffle_block_tokens = 0;
    p->context_parallel_size = cp;
    p->data_parallel_size = dp;
    if (cp > 1 && cp != mesh->cp && spread(mesh) > 1)
        p->order = cp < spread(mesh) ? across : along;
    if (cp != mesh->cp && p->cp_comm_type == WEFT_CONTEXT_A2A_P2P) {
        static const int64_t none[] = {0};
        p->cp_comm_type = WEFT_CONTEXT_P2P;
        p->hierarchical_context_parallel_sizes = (weft_int_list){.values = none, .count = 1};
    }
    config->schedule.cluster = l->request->to_path;
    set_batch(l, dp, &c);
    return c;
}

/* --- its price ----------------------------------------------------------------------------- */

/* Seconds of a checkpoint, shared by the ranks; 0: nobody says. */
static double storage_s(const weft_expand_step *step, weft_cost_kind kind, uint64_t bytes)
{
    const weft_site site = {.cluster = step->cluster,
                            .kinds = weft_places_kinds(step->cluster, step->mesh.world)};
    weft_estimate estimate;
    if (weft_work_us(&site, kind, (double)bytes / step->mesh.world, &estimate) != WEFT_OK) {
        weft_error_clear();
        return 0;
    }
    return estimate.us / 1e6;
}

static void take_plan(const ladder *l, const weft_plan *plan, weft_expand_step *step)
{
    const weft_config *today = l->request->config;
    const double tokens = (double)(today->train.global_batch_size * today->model.seq_length);
    step->mesh = plan->mesh;
    step->kind = kind_of(&plan->mesh);
    step->num_nodes = (int)divide_up(plan->mesh.world, step->cluster->ranks_per_node);
    step->fits = plan->fits;
    step->memory_bytes = plan->memory_bytes;
    step->memory_limit_bytes = plan->memory_limit_bytes;
    step->step_us = plan->step_us;
    step->tokens_per_s = plan->tokens_per_s;
    step->model_flops_utilization = plan->model_flops_utilization;
    step->limits = plan->limits;
    step->tokens = (double)(step->config.train.global_batch_size * step->config.model.seq_length);
    step->lr_advised = fabs(step->tokens / tokens - 1) < LEAST_LR_CHANGE
                           ? 0
                           : today->train.lr * sqrt(step->tokens / tokens);
    step->costs = weft_plan_costs_of(step->cluster, &plan->mesh, plan->tokens_per_s);
}

/* Bytes that the fullest rank lacks, of its device or its node. */
static uint64_t short_by(const weft_plan *plan)
{
    if (plan->memory_limit_bytes > 0 && plan->memory_bytes > plan->memory_limit_bytes)
        return plan->memory_bytes - plan->memory_limit_bytes;
    return plan->fits ? 0 : plan->host_memory_bytes - plan->host_limit_bytes;
}

/* Plans step->config. A step that does not fit, or whose mesh is not legal, fills `miss`. */
static weft_status plan_step(const ladder *l, const weft_config_source *source,
                             weft_expand_step *step, weft_expand_miss *miss)
{
    weft_plan plan = {0};
    weft_arena_reset(l->scratch);
    const weft_status status =
        weft_plan_make(&step->config, source, step->cluster, NULL, l->scratch, &plan);
    if (status != WEFT_OK)
        return status;
    take_plan(l, &plan, step);
    miss->short_by_bytes = short_by(&plan);
    if (l->out->checkpoint_bytes == 0)
        for (int i = 0; i < plan.step.outline.num_layers; i++)
            l->out->checkpoint_bytes +=
                STATE_BYTES * plan.step.outline.layers[i].description.cost.num_params;
    weft_plan_release(&plan);
    if (step->fits)
        return WEFT_OK;
    return weft_arena_printf(l->arena, &miss->reason, "a rank needs %s more memory than there is",
                             weft_bytes_text((double)miss->short_by_bytes).text);
}

static weft_expand_miss start_miss(const candidate *c)
{
    const weft_parallel_options *p = &c->config.parallel;
    weft_expand_miss miss = {.num_nodes = c->num_nodes};
    snprintf(miss.mesh, sizeof miss.mesh, "tp %lld, pp %lld, dp %lld, cp %lld",
             (long long)p->tensor_model_parallel_size, (long long)p->pipeline_model_parallel_size,
             (long long)p->data_parallel_size, (long long)p->context_parallel_size);
    return miss;
}

/* Plans a candidate; where it cannot be, `miss` has the reason. */
static weft_status try_candidate(const ladder *l, const candidate *c, weft_expand_step *step,
                                 weft_expand_miss *miss)
{
    const char *place;
    WEFT_TRY(weft_arena_printf(l->arena, &place, "context %lld on %s",
                               (long long)c->config.model.seq_length,
                               weft_count_text(c->num_nodes, "node").text));
    /* Its values stand in no file. */
    const weft_config_source source = {.file = place,
                                       .text = "{}",
                                       .no_data = true,
                                       .application = l->request->source->application};
    *step = (weft_expand_step){.config = c->config,
                               .cluster = l->request->to,
                               .num_nodes = c->num_nodes,
                               .wanted_batch = c->wanted_batch};
    const weft_status status = plan_step(l, &source, step, miss);
    if (status != WEFT_CONFIG || weft_lack_is(weft_error_get()))
        return weft_lack_name_file(status, l->request->to_path);
    WEFT_TRY(weft_arena_strdup(l->arena, weft_error_get()->text, &miss->reason));
    weft_error_clear();
    return WEFT_OK;
}

/* --- a step in context --------------------------------------------------------------------- */

/* The fewest replicas of so many context-parallel ranks that experts allow and that leave no rank
 * of the step before idle. */
static int64_t fewest_replicas(const weft_mesh *mesh, int64_t cp)
{
    const int64_t ep = spread(mesh), experts = (int64_t)mesh->ep * mesh->etp;
    const int64_t group = (int64_t)mesh->tp * cp;
    int64_t unit = cp > 1 && cp < ep ? ep : 1;
    if (mesh->binding == WEFT_BINDING_DP) {
        const int64_t needed = experts / weft_common_divisor(experts, group);
        unit = unit / weft_common_divisor(unit, needed) * needed;
    }
    int64_t dp = unit;
    while (group * mesh->pp * dp < mesh->world)
        dp += unit;
    return dp;
}

/* The nearest is the one that lacks least memory; behind it, what forbids more ranks. */
static void note_miss(weft_expand *out, const weft_expand_miss *miss)
{
    weft_expand_miss *nearest = &out->nearest;
    const bool is_short = miss->short_by_bytes > 0, was_short = nearest->short_by_bytes > 0;
    if (!nearest->reason || (is_short && !was_short) ||
        (is_short && miss->short_by_bytes <= nearest->short_by_bytes)) {
        *nearest = *miss;
        out->beyond = (weft_expand_miss){0};
    } else if (!is_short && was_short && !out->beyond.reason) {
        out->beyond = *miss;
    }
}

/* The fewest context-parallel ranks that hold this length; as few nodes as then are legal, but no
 * fewer than before. */
static weft_status climb(const ladder *l, const weft_expand_step *before, int64_t context,
                         bool keeps_batch, weft_expand_step *step, bool *found)
{
    weft_expand_miss misses[MAX_DOUBLINGS], refused = {0};
    int num_misses = 0;
    *found = false;
    for (int64_t cp = before->mesh.cp; cp <= WEFT_CONTEXT_MAX_RANKS && cp <= context; cp *= 2) {
        const int64_t dp = fewest_replicas(&before->mesh, cp);
        const candidate c = make_candidate(l, before, context, cp, dp);
        weft_expand_miss miss = start_miss(&c);
        miss.reason = refused_by_switch(l, &before->mesh, cp);
        if (miss.reason)
            refused = miss;
        if (c.num_nodes > l->max_nodes) { /* vertical, more ranks may take fewer nodes */
            if (!miss.reason)
                miss.reason = "more nodes than there are";
            note_miss(l->out, &miss);
            continue;
        }
        if (!miss.reason && keeps_batch && !c.keeps_batch)
            WEFT_TRY(weft_arena_printf(l->arena, &miss.reason,
                                       "a batch of %.6g samples does not divide by dp %lld",
                                       c.wanted_batch, (long long)dp));
        if (!miss.reason)
            WEFT_TRY(try_candidate(l, &c, step, &miss));
        if (!miss.reason) {
            while (num_misses > 0 && misses[num_misses - 1].num_nodes > step->num_nodes)
                num_misses--;
            if (num_misses > 0)
                step->fewer = misses[num_misses - 1];
            step->refused = refused;
            *found = true;
            return WEFT_OK;
        }
        misses[num_misses++] = miss;
        note_miss(l->out, &miss);
    }
    return WEFT_OK;
}

/* --- the ladder ---------------------------------------------------------------------------- */

static weft_expand_step *append(const ladder *l, const weft_expand_step *step)
{
    weft_expand *out = l->out;
    const weft_expand_step *before = &out->steps[out->num_steps - 1];
    weft_expand_step *at = &out->steps[out->num_steps++];
    *at = *step;
    at->nodes_added = at->num_nodes - before->num_nodes;
    at->write_s = storage_s(before, WEFT_COST_STORAGE_WRITE, out->checkpoint_bytes);
    at->read_s = storage_s(at, WEFT_COST_STORAGE_READ, out->checkpoint_bytes);
    return at;
}

static weft_status stop_at(const ladder *l, int64_t context, int num_nodes)
{
    const weft_expand_miss *nearest = &l->out->nearest;
    l->out->stopped = nearest->short_by_bytes > 0 ? WEFT_MEMORY : WEFT_CONFIG;
    if (!nearest->reason)
        return weft_arena_printf(l->arena, &l->out->stop_text,
                                 "context %lld: no mesh of at most %d nodes is legal",
                                 (long long)context, num_nodes);
    const weft_expand_miss *beyond = &l->out->beyond;
    return weft_arena_printf(
        l->arena, &l->out->stop_text,
        "context %lld: %s on at most %d nodes; the %s, %s on %d: %s%s%s%s%s", (long long)context,
        nearest->short_by_bytes > 0 ? "nothing fits" : "no mesh is legal", num_nodes,
        nearest->short_by_bytes > 0 ? "nearest" : "first", nearest->mesh, nearest->num_nodes,
        nearest->reason, beyond->reason ? "; " : "", beyond->reason ? beyond->mesh : "",
        beyond->reason ? ": " : "", beyond->reason ? beyond->reason : "");
}

static weft_status add_contexts(ladder *l)
{
    const weft_int_list *contexts = &l->request->contexts;
    for (size_t i = 0; i < contexts->count; i++) {
        const weft_expand_step *before = &l->out->steps[l->out->num_steps - 1];
        weft_expand_step step;
        bool found;
        l->out->nearest = l->out->beyond = (weft_expand_miss){0};
        WEFT_TRY(climb(l, before, contexts->values[i], true, &step, &found));
        if (!found) { /* that batches cannot be kept is then no reason */
            l->out->nearest = l->out->beyond = (weft_expand_miss){0};
            WEFT_TRY(climb(l, before, contexts->values[i], false, &step, &found));
        }
        if (!found)
            return stop_at(l, contexts->values[i], l->max_nodes);
        append(l, &step);
    }
    l->out->nearest = l->out->beyond = (weft_expand_miss){0};
    return WEFT_OK;
}

/* Twice the ranks at a time, until they fill their nodes, and then twice the nodes; 0: no more. */
static int64_t next_world(const ladder *l, int64_t world)
{
    const int64_t of_node = l->request->to->ranks_per_node, nodes = divide_up(world, of_node),
                  full = nodes * of_node;
    if (world < full)
        return 2 * world < full ? 2 * world : full;
    if (nodes >= l->max_nodes)
        return 0;
    return of_node * (2 * nodes < l->max_nodes ? 2 * nodes : l->max_nodes);
}

/* More replicas of the same mesh. */
static weft_status add_nodes(ladder *l)
{
    const weft_expand_request *r = l->request;
    const weft_mesh *today = &l->out->steps[0].mesh;
    const int64_t replica = (int64_t)today->tp * today->pp * today->cp,
                  context = r->config->model.seq_length;
    int64_t world = today->world, before = 0;
    weft_expand_miss miss = {0};
    if (r->to == r->cluster) {
        before = today->dp;
        world = next_world(l, world);
    }
    for (; world > 0 && l->out->num_steps < MAX_STEPS; world = next_world(l, world)) {
        const int64_t dp = world / replica;
        weft_expand_step step;
        if (dp == before)
            continue;
        before = dp;
        const candidate c = make_candidate(l, &l->out->steps[0], context, today->cp, dp);
        const weft_expand_miss last = miss;
        miss = start_miss(&c);
        WEFT_TRY(try_candidate(l, &c, &step, &miss));
        if (miss.reason)
            note_miss(l->out, &miss);
        if (!miss.reason)
            append(l, &step)->fewer = last;
    }
    if (l->out->num_steps == 1)
        return stop_at(l, context, l->max_nodes);
    l->out->nearest = l->out->beyond = (weft_expand_miss){0};
    return WEFT_OK;
}

/* --- what is asked ------------------------------------------------------------------------- */

static weft_status check_contexts(const weft_expand_request *r)
{
    const weft_model_options *model = &r->config->model;
    int64_t before = model->seq_length;
    for (size_t i = 0; i < r->contexts.count; i++) {
        const int64_t context = r->contexts.values[i];
        if (context <= before)
            return WEFT_ERROR(WEFT_CONFIG, "--context %lld: not above %s%lld", (long long)context,
                              i == 0 ? "today's model.seq_length, " : "", (long long)before);
        if (model->position_embedding_type == WEFT_POSITION_LEARNED &&
            context > model->max_position_embeddings)
            return weft_config_locate(
                r->source,
                WEFT_KEY_ERROR("model.position_embedding_type",
                               "learned positions cannot grow: the model has %lld, and --context "
                               "asks for %lld; rope's could",
                               (long long)model->max_position_embeddings, (long long)context));
        before = context;
    }
    return WEFT_OK;
}

static weft_status check_nodes(const ladder *l)
{
    const weft_expand_request *r = l->request;
    const int64_t now = divide_up(l->out->steps[0].mesh.world, r->to->ranks_per_node);
    if (l->max_nodes > r->to->num_nodes)
        return WEFT_ERROR(WEFT_CONFIG, "--max-nodes %d: the cluster %s has %d", l->max_nodes,
                          r->to->name, r->to->num_nodes);
    if (now > l->max_nodes)
        return WEFT_ERROR(WEFT_CONFIG, "today's mesh takes %lld nodes, of which there are %d",
                          (long long)now, l->max_nodes);
    const weft_mesh *today = &l->out->steps[0].mesh;
    const int64_t left = now * r->to->ranks_per_node - today->world;
    if (now == l->max_nodes && left < today->world / today->dp && r->contexts.count == 0 &&
        r->to == r->cluster)
        return WEFT_ERROR(WEFT_CONFIG,
                          "today's mesh is on all %d nodes already; --context, --max-nodes or --to "
                          "says what to grow to",
                          l->max_nodes);
    return WEFT_OK;
}

/* One order of tokens for all lengths, where they divide the longest. */
static void find_block(const weft_expand_request *r, weft_expand *out)
{
    const int64_t given = r->config->data.shuffle_block_tokens;
    const size_t count = r->contexts.count;
    if (count == 0 || weft_config_has_own_data(r->config))
        return;
    int64_t block = r->contexts.values[count - 1];
    if (given > 0 && given % block == 0)
        block = given;
    bool divide = block % r->config->model.seq_length == 0;
    for (size_t i = 0; i < count; i++)
        divide &= block % r->contexts.values[i] == 0;
    out->reorders = !divide || (r->goes_on && given != block);
    if (divide)
        out->block_tokens = block;
}

static weft_status tell_positions(const ladder *l)
{
    const weft_model_options *model = &l->request->config->model;
    if (l->request->contexts.count == 0 || model->position_embedding_type != WEFT_POSITION_ROPE)
        return WEFT_OK;
    return weft_arena_printf(l->arena, &l->out->positions,
                             "rotary positions: model.rotary_base %g was trained at %lld tokens; "
                             "look at the loss behind "
                             "them, and at a larger base (--allow-change model.rotary_base)",
                             model->rotary_base, (long long)model->seq_length);
}

static weft_status start(ladder *l)
{
    weft_expand_step *today = &l->out->steps[0];
    weft_expand_miss miss = {0};
    *today =
        (weft_expand_step){.config = *l->request->config,
                           .cluster = l->request->cluster,
                           .wanted_batch = (double)l->request->config->train.global_batch_size};
    today->config.schedule.cluster = l->request->cluster_path;
    l->out->num_steps = 1;
    WEFT_TRY(plan_step(l, l->request->source, today, &miss));
    today->config.parallel.data_parallel_size = today->mesh.dp;
    if (!l->request->goes_on && l->out->block_tokens > 0)
        today->config.data.shuffle_block_tokens = l->out->block_tokens;
    WEFT_TRY(check_nodes(l));
    return tell_positions(l);
}

weft_status weft_expand_make(const weft_expand_request *request, weft_arena *arena,
                             weft_expand *out)
{
    weft_arena scratch = {0};
    *out = (weft_expand){0};
    WEFT_TRY(check_contexts(request));
    if (request->contexts.count >= MAX_STEPS)
        return WEFT_ERROR(WEFT_CONFIG, "--context: at most %d steps", MAX_STEPS - 1);
    WEFT_TRY(WEFT_ARRAY(arena, MAX_STEPS, &out->steps));
    find_block(request, out);
    ladder l = {.request = request,
                .arena = arena,
                .scratch = &scratch,
                .out = out,
                .max_nodes = request->max_nodes > 0 ? request->max_nodes : request->to->num_nodes};
    weft_status status = start(&l);
    if (status == WEFT_OK)
        status = request->contexts.count > 0 ? add_contexts(&l) : add_nodes(&l);
    weft_arena_release(&scratch);
    return status;
}
