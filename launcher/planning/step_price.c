#include "launcher/planning/step_price.h"

#include <math.h>

#include "core/stage.h"
#include "launcher/planning/places.h"
#include "launcher/planning/sharding_price.h"
#include "launcher/planning/software.h"
#include "launcher/planning/tier_price.h"
#include "layers/describe/plain.h"
#include "schedule/price/price.h"

/* One bucket of a stage, microseconds. */
typedef struct bucket_time {
    double sum_us, reduce_us, step_us, gather_us;
    double norm_us;   /* offloaded: its sum of squares */
    double upload_us; /* its weights to where it is kept; state on the host: to the device */
    double download_us;
    double link_us[3][WEFT_NUM_LINKS]; /* of sum, reduce, gather */
} bucket_time;

typedef struct stage_cost {
    weft_pass_price *chunks;
    double **backward_us;     /* [num_chunks][layers of the chunk] */
    double **weights_us;      /* the same of the weights' halves */
    weft_pass_time *inputs;   /* [num_chunks]: of backwards' input halves */
    weft_pass_time *pairs;    /* [2][num_chunks][num_chunks]: of a forward with a backward, with its
                                 input's half */
    weft_estimate message[2]; /* to the stage before and the one behind */
    double sent_us[2];        /* of plain kernels: what a pass to them waits for its message */
    bucket_time *buckets;
    double norm_us;
    /* What is shared out: what a chunk's first forward and backward wait for more than others; the
     * last backward's reductions. */
    double (*start_us)[2];
    double tail_us;
    double copies_us[2];  /* of what a micro-batch offloads: out, back */
    weft_tier_walk *tier; /* NULL: no experts beyond device memory */
} stage_cost;

typedef struct pricing {
    const weft_config *config;
    const weft_cluster *cluster;
    const weft_cluster *experts; /* as in weft_site */
    weft_plan *plan;
    stage_cost *stages;
} pricing;

/* --- where groups lie ---------------------------------------------------------------------- */

weft_status weft_step_experts(const weft_config *config, const weft_cluster *cluster,
                              weft_arena *arena, const weft_cluster **out)
{
    const weft_pace pace = weft_config_pace(config);
    weft_cluster *paced = NULL;
    *out = NULL;
    if (pace.flops <= 0 || pace.work != WEFT_PACE_EXPERTS)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &paced));
    *paced = *cluster;
    weft_cluster_set_pace(paced, pace.flops);
    *out = paced;
    return WEFT_OK;
}

/* Of plain kernels the ranks of a tensor-parallel group have the same tokens and whole experts:
 * each sends to the ranks at its own place in the groups along dp. */
static void set_plain_experts(const weft_cluster *cluster, const weft_mesh *mesh, int stage,
                              weft_site *site)
{
    enum { MAX_EXPERTS = 1024 };
    int ranks[MAX_EXPERTS];
    const weft_group *ep = &site->groups[WEFT_AXIS_EP];
    if (ep->size > mesh->dp || ep->size > MAX_EXPERTS)
        return;
    for (int i = 0; i < ep->size; i++)
        ranks[i] = weft_mesh_rank(mesh, 0, 0, i, stage);
    site->groups[WEFT_AXIS_EP] = weft_group_of(cluster, ranks, ep->size, ep->direct);
}

weft_status weft_step_site(const weft_config *config, const weft_cluster *cluster,
                           const weft_cluster *experts, const weft_plan *plan, int stage,
                           uint32_t kinds, weft_site *out)
{
    const weft_mesh *mesh = &plan->mesh;
    *out = (weft_site){.cluster = cluster,
                       .experts = experts,
                       .curves = cluster == config->planned_on ? config->planned_curves : NULL,
                       .kinds = kinds,
                       .unsourced = plan->unsourced,
                       .software = config->software,
                       .clamps = config->model.activation_func_clamp_value > 0,
                       .exchange = (int)plan->step.moe.form,
                       .exchange_chunks = plan->step.moe.num_chunks};
    WEFT_TRY(weft_places_groups(mesh, cluster, weft_mesh_rank(mesh, 0, 0, 0, stage),
                                weft_config_sends_directly(config), true, out));
    out->exchanged = weft_software_exchanged(config->software, &out->groups[WEFT_AXIS_EP],
                                             (double)config->model.num_experts,
                                             (double)config->model.moe_router_topk);
    const weft_shape *shape = &plan->step.outline.shape;
    if (shape->plain_kernels && shape->binding != 0 && shape->tp > 1 && shape->etp == 1)
        set_plain_experts(cluster, mesh, stage, out);
    return WEFT_OK;
}

/* --- what tasks take ----------------------------------------------------------------------- */

#define ROUNDING 1e-9 /* of sums over a step's tasks */

static weft_axis group_axis(int section)
{
    return section == WEFT_SECTION_EXPERT ? WEFT_AXIS_EDP : WEFT_AXIS_DP_CP;
}

static void note_source(pricing *p, const weft_estimate *estimate)
{
    if (estimate->source > p->plan->source)
        p->plan->source = estimate->source;
}

static weft_status collective_us(pricing *p, const weft_site *site, const weft_group *group,
                                 weft_collective kind, double bytes, double *out_us,
                                 double links[WEFT_NUM_LINKS])
{
    weft_estimate estimate;
    *out_us = 0;
    if (group->size <= 1)
        return WEFT_OK;
    WEFT_TRY(weft_collective_us(site, group, kind, bytes, &estimate));
    *out_us = estimate.us;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        links[l] = estimate.links[l].us;
    note_source(p, &estimate);
    return WEFT_OK;
}

static weft_status work_us(pricing *p, const weft_site *site, weft_cost_kind kind, double volume,
                           double *out_us)
{
    weft_estimate estimate;
    WEFT_TRY(weft_work_us(site, kind, volume, &estimate));
    *out_us = estimate.us;
    note_source(p, &estimate);
    return WEFT_OK;
}

/* Of an element: its gradient is read, m, v and the master are read and written. A whole master of
 * 16 bits' weight lies beside it, which is written; a split one is that weight and as many low
 * bits. */
static double adamw_bytes(size_t element_bytes, bool split)
{
    return 28 + (element_bytes < 4 && !split ? (double)element_bytes : 0);
}

/* Plain kernels, each reading and writing memory: gradients cleared, of fp16 copied to fp32 and
 * unscaled, all clipped; AdamW; the master to the weight. */
static double plain_adamw_bytes(weft_dtype dtype)
{
    size_t bytes = weft_plain_gradient_bytes(dtype); /* cleared */
    bytes += weft_plain_fact_at(WEFT_PLAIN_CLIP)->value;
    bytes += weft_plain_fact_at(WEFT_PLAIN_ADAMW)->value;
    bytes += dtype == WEFT_F32 ? 0 : weft_plain_fact_at(WEFT_PLAIN_MASTER)->value;
    bytes += dtype == WEFT_F16 ? weft_plain_fact_at(WEFT_PLAIN_UNSCALE)->value : 0;
    return (double)bytes;
}

/* The two ends of a tied embedding. */
static weft_group tied_group(const pricing *p, bool direct)
{
    const weft_mesh *mesh = &p->plan->mesh;
    const int ends[] = {weft_mesh_rank(mesh, 0, 0, 0, 0),
                        weft_mesh_rank(mesh, 0, 0, 0, mesh->pp - 1)};
    return weft_group_of(p->cluster, ends, 2, direct);
}

/* What the host does with an expert's bucket. Of the experts that may be kept all are alike: the
 * share of them that is kept goes up. */
static weft_status price_on_host(pricing *p, const weft_site *site, const weft_bucket_shape *b,
                                 double bytes, bucket_time *out)
{
    const weft_outline *outline = &p->plan->step.outline;
    const weft_outline_layer *layer = &outline->layers[b->layer];
    const double share = (double)b->elements / b->owners,
                 kept = weft_tier_num_kept(&outline->tier, layer->num_experts);
    WEFT_TRY(work_us(p, site, WEFT_COST_ADAMW_HOST, WEFT_TIER_SQUARE_BYTES * share, &out->norm_us));
    if (kept > 0)
        WEFT_TRY(work_us(p, site, WEFT_COST_TO_DEVICE,
                         (double)b->elements * (double)weft_dtype_bytes(outline->shape.dtype),
                         &out->upload_us));
    out->upload_us *= kept / fmax(1, layer->num_experts);
    return work_us(p, site, WEFT_COST_ADAMW_HOST, bytes, &out->step_us);
}

/* Of one whose state alone is on the host. bytes: what its step reads and writes. */
static weft_status price_staged(pricing *p, const weft_site *site, const weft_bucket_shape *b,
                                double bytes, bucket_time *out)
{
    const double share = (double)b->elements / b->owners,
                 element = (double)weft_dtype_bytes(p->plan->step.outline.shape.dtype);
    WEFT_TRY(work_us(p, site, WEFT_COST_TO_HOST, share * sizeof(float), &out->download_us));
    WEFT_TRY(work_us(p, site, WEFT_COST_TO_DEVICE, share * element, &out->upload_us));
    return work_us(p, site, WEFT_COST_ADAMW_HOST, bytes, &out->step_us);
}

/* What sums a bucket before its gradient group does. */
static weft_group summing_group(const pricing *p, const weft_site *site, const weft_bucket_shape *b)
{
    weft_group group = site->groups[WEFT_AXIS_TP];
    if (b->sum == WEFT_BUCKET_SUM_TIED)
        return tied_group(p, site->groups[group_axis(b->section)].direct);
    if (b->section == WEFT_SECTION_DENSE_SHARED) {
        group.size /= (int)p->config->model.num_query_groups;
        group.near = group.near < group.size ? group.near : group.size;
    }
    return group;
}

/* What Muon does before the bucket's step: of all matrices an owner takes its share, and one more,
 * which other owners have parts of. A product is one of about the mean size, as many as have the
 * FLOPs of all. */
static weft_status price_matrices(pricing *p, const weft_site *site, const weft_bucket_shape *b,
                                  double *out_us)
{
    const weft_matrices *m = &b->matrices;
    const weft_axis axis = b->section == WEFT_SECTION_EXPERT ? WEFT_AXIS_ETP : WEFT_AXIS_TP;
    const double parts = b->num_experts > 0 ? b->num_experts : 1,
                 steps = (double)p->config->train.muon_num_ns_steps;
    const double count = fmin((double)m->count, (double)m->count / b->owners + parts);
    const double each = m->flops / (double)m->count; /* three products */
    double gather_us, split_us, links[WEFT_NUM_LINKS];
    weft_estimate product;
    if (m->count == 0)
        return WEFT_OK;
    const uint64_t side = (uint64_t)fmax(1, cbrt(each / 6));
    const double products = each / (double)(2 * side * side * side);
    WEFT_TRY(weft_operation_us(site,
                               &(weft_operation){.kind = WEFT_OPERATION_GEMM,
                                                 .module = "Muon",
                                                 .dtype = p->plan->step.outline.shape.dtype,
                                                 .m = side,
                                                 .n = side,
                                                 .k = side,
                                                 .count = 1,
                                                 .flops = 2 * side * side * side},
                               &product));
    note_source(p, &product);
    WEFT_TRY(collective_us(
        p, site, &site->groups[group_axis(b->section)], WEFT_COLLECTIVE_ALL_GATHER,
        b->owners > 1 ? (double)b->elements * sizeof(float) / parts : 0, &gather_us, links));
    WEFT_TRY(collective_us(p, site, &site->groups[axis], WEFT_COLLECTIVE_ALL_GATHER,
                           (double)m->gathered_bytes / (double)m->count, &split_us, links));
    *out_us += (b->owners > 1 ? parts * gather_us : 0) +
               count * ((m->gathered_bytes > 0 ? split_us : 0) + products * steps * product.us);
    return WEFT_OK;
}

static weft_status price_bucket(pricing *p, const weft_site *site, const weft_bucket_shape *b,
                                size_t element_bytes, bucket_time *out)
{
    const weft_group *group = &site->groups[group_axis(b->section)];
    const weft_dtype dtype = p->plan->step.outline.shape.dtype;
    const bool plain = p->plan->step.outline.shape.plain_kernels != WEFT_PLAIN_NONE;
    const double elements = (double)b->elements;
    const double bytes =
        elements * (double)(plain ? weft_plain_gradient_bytes(dtype) : sizeof(float));
    const double share = elements / b->owners, times = b->num_experts > 0 ? b->num_experts : 1;
    const bool split = p->config->train.split_master && dtype == WEFT_BF16;
    const weft_group summed = summing_group(p, site, b);
    if (b->sum != WEFT_BUCKET_SUM_NONE)
        WEFT_TRY(collective_us(p, site, &summed, WEFT_COLLECTIVE_ALL_REDUCE, bytes, &out->sum_us,
                               out->link_us[0]));
    if (weft_bucket_reduces(b))
        WEFT_TRY(collective_us(p, site, group,
                               weft_bucket_gathers(b) ? WEFT_COLLECTIVE_REDUCE_SCATTER
                                                      : WEFT_COLLECTIVE_ALL_REDUCE,
                               bytes / times, &out->reduce_us, out->link_us[1]));
    if (weft_bucket_gathers(b))
        WEFT_TRY(collective_us(p, site, group, WEFT_COLLECTIVE_ALL_GATHER,
                               elements * (double)element_bytes / times, &out->gather_us,
                               out->link_us[2]));
    out->reduce_us *= times;
    out->gather_us *= times;
    for (int l = 0; l < WEFT_NUM_LINKS; l++) {
        out->link_us[1][l] *= times;
        out->link_us[2][l] *= times;
    }
    if (weft_bucket_is_offloaded(b))
        return price_on_host(p, site, b, share * adamw_bytes(element_bytes, split), out);
    if (weft_bucket_is_staged(b))
        return price_staged(p, site, b, share * adamw_bytes(element_bytes, split), out);
    const double theirs = weft_software_value(site->software, WEFT_RULE_ADAMW_BYTES);
    WEFT_TRY(work_us(p, site, WEFT_COST_ADAMW,
                     share * (plain        ? plain_adamw_bytes(dtype)
                              : theirs > 0 ? theirs
                                           : adamw_bytes(element_bytes, split)),
                     &out->step_us));
    return price_matrices(p, site, b, &out->step_us);
}

enum { NORM_BYTES = 64 }; /* of sums and flags, which all ranks add up */

/* The gradients are read once more for their norm, and every rank gets the sum of all. */
static weft_status price_norm(pricing *p, const weft_site *site, const weft_buckets *buckets,
                              double *out_us)
{
    double bytes = 0;
    for (int b = 0; b < buckets->count; b++) {
        const weft_bucket_shape *shape = &buckets->shapes[b];
        bytes += weft_bucket_is_offloaded(shape) ? 0 : 4 * (double)shape->elements / shape->owners;
    }
    weft_estimate sum;
    WEFT_TRY(work_us(p, site, WEFT_COST_MEMORY, bytes, out_us));
    WEFT_TRY(weft_small_sum_us(site, p->plan->mesh.world, NORM_BYTES, &sum));
    note_source(p, &sum);
    *out_us += sum.us;
    return WEFT_OK;
}

static weft_status price_message(pricing *p, const weft_site *site, int stage, int peer,
                                 double bytes, weft_estimate *out)
{
    const weft_mesh *mesh = &p->plan->mesh;
    const int rank = weft_mesh_rank(mesh, 0, 0, 0, stage),
              other = weft_mesh_rank(mesh, 0, 0, 0, peer);
    const int ends[] = {rank < other ? rank : other, rank < other ? other : rank};
    *out = (weft_estimate){0};
    if (stage == peer)
        return WEFT_OK;
    weft_site both = *site;
    both.kinds |= p->plan->kinds[peer].all;
    weft_group group = weft_group_of(p->cluster, ends, 2, site->groups[WEFT_AXIS_PP].direct);
    group.sharing = fmax(1, group.sharing * weft_places_leaving_share(mesh, p->cluster, rank,
                                                                      WEFT_AXIS_PP, peer - stage));
    WEFT_TRY(weft_collective_us(&both, &group, WEFT_COLLECTIVE_MESSAGE, bytes, out));
    note_source(p, out);
    return WEFT_OK;
}

/* Of plain kernels. Without sequence parallelism tensor-parallel ranks hold the same rows: each
 * sends its share to the next stage, whose ranks gather them (Narayanan et al. 2021, section 4.1).
 * A pass is over when its message is: nothing is computed meanwhile. */
static weft_status price_plain_message(pricing *p, const weft_site *site, int stage, int peer,
                                       stage_cost *cost, int ahead)
{
    const weft_step *step = &p->plan->step;
    const weft_shape *shape = &step->outline.shape;
    const bool shares = shape->tp > 1 && !shape->sequence_parallel;
    const double bytes = (double)step->shape.boundary_bytes;
    weft_estimate message, gather = {0};
    WEFT_TRY(price_message(p, site, stage, peer, shares ? bytes / shape->tp : bytes, &message));
    if (shares && stage != peer)
        WEFT_TRY(weft_collective_us(site, &site->groups[WEFT_AXIS_TP], WEFT_COLLECTIVE_ALL_GATHER,
                                    bytes, &gather));
    cost->message[ahead] = (weft_estimate){.source = message.source, .buffered = true};
    cost->sent_us[ahead] = message.us + gather.us;
    return WEFT_OK;
}

/* Whether most backwards have a forward right ahead of them. */
static bool alternates(const weft_program *program)
{
    int num_backwards = 0, num_behind = 0;
    bool behind = false;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task_kind kind = program->tasks[i].kind;
        if (kind == WEFT_TASK_BACKWARD) {
            num_backwards++;
            num_behind += behind;
        }
        if (kind == WEFT_TASK_BACKWARD || kind == WEFT_TASK_FORWARD)
            behind = kind == WEFT_TASK_FORWARD;
    }
    return 2 * num_behind > num_backwards;
}

/* Passes gather and reduce what is shared out, and copy what is offloaded. */
static weft_status price_sharing(const weft_site *site, const weft_step *step,
                                 const weft_pass_price *layers, int stage, int chunk,
                                 stage_cost *cost)
{
    weft_pass_time *passes[] = {&cost->chunks[chunk].forward, &cost->chunks[chunk].backward};
    const double between_us = alternates(&step->programs[stage]) ? weft_pass_us(passes[0]) : 0;
    for (int backward = 0; backward < 2; backward++) {
        weft_sharding_time time;
        WEFT_TRY(weft_sharding_price(site, &step->outline, layers, stage, chunk, backward,
                                     between_us, &time));
        passes[backward]->data_us += time.exposed_us;
        passes[backward]->host_us += time.host_us;
        cost->copies_us[backward] += time.copies_us;
        passes[backward]->compute_us += time.clear_us;
        passes[backward]->memory_us += time.clear_us;
        for (int l = 0; l < WEFT_NUM_LINKS; l++)
            passes[backward]->link_us[l] += time.link_us[l];
        cost->start_us[chunk][backward] = time.start_us;
        if (backward && chunk == 0) /* whose backward is the last */
            cost->tail_us = time.tail_us;
    }
    return WEFT_OK;
}

static void add_price(weft_pass_price *sum, const weft_pass_price *layer)
{
    weft_pass_time_add(&sum->forward, &layer->forward);
    weft_pass_time_add(&sum->backward, &layer->backward);
    weft_pass_time_add(&sum->weights, &layer->weights);
    weft_pass_time_add(&sum->recompute, &layer->recompute);
    sum->coarse |= layer->coarse;
    if (layer->source > sum->source)
        sum->source = layer->source;
}

/* The passes of a stage's replicas on nodes of these kinds; *out_us: of a micro-batch through all
 * chunks. */
static weft_status price_passes(pricing *p, const weft_site *site, int stage, weft_arena *arena,
                                stage_cost *out, double *out_us)
{
    const weft_outline *outline = &p->plan->step.outline;
    const size_t num_chunks = (size_t)outline->layout.num_chunks;
    weft_pass_price one = {0}, *layers = NULL;
    int priced = -1; /* the layer of `one` */
    *out_us = 0;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)outline->num_layers, &layers));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &out->chunks));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &out->backward_us));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &out->weights_us));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &out->inputs));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &out->start_us));
    for (int c = 0; c < outline->layout.num_chunks; c++) {
        int first, end;
        weft_pass_price *chunk = &out->chunks[c];
        weft_layout_range(&outline->layout, stage, c, &first, &end);
        WEFT_TRY(WEFT_ARRAY(arena, 2 * (size_t)(end - first), &out->backward_us[c]));
        out->weights_us[c] = out->backward_us[c] + (end - first);
        for (int l = first; l < end; l++) {
            const double before = weft_pass_us(&chunk->backward);
            if (priced < 0 || !weft_pass_same_layer(outline, priced, l)) {
                one = (weft_pass_price){0};
                WEFT_TRY(weft_pass_price_add(site, outline, l, l + 1, &one));
                priced = l;
            }
            add_price(chunk, &one);
            layers[l] = one;
            if (!weft_outline_recomputes_layer_early(outline, stage, c, l)) {
                weft_pass_time_add(&chunk->backward, &chunk->recompute);
                chunk->recompute = (weft_pass_time){0};
            }
            out->backward_us[c][l - first] = weft_pass_us(&chunk->backward) - before;
            out->weights_us[c][l - first] = weft_pass_us(&one.weights);
        }
        WEFT_TRY(price_sharing(site, &p->plan->step, layers, stage, c, out));
        if (outline->shape.plain_kernels || site->software != WEFT_SOFTWARE_WEFT) {
            weft_pass_issue(&chunk->forward);
            weft_pass_issue(&chunk->backward);
        }
        out->inputs[c] = chunk->backward;
        weft_pass_time_subtract(&out->inputs[c], &chunk->weights);
        *out_us += weft_pass_us(&chunk->forward) + weft_pass_us(&chunk->backward) +
                   weft_pass_us(&chunk->recompute);
        p->plan->coarse |= chunk->coarse;
        note_source(p, &(weft_estimate){.source = chunk->source});
    }
    if (p->plan->step.shape.pairs)
        WEFT_TRY(
            weft_pass_price_pairs(site, outline, stage, layers, out->chunks, arena, &out->pairs));
    if (p->plan->step.programs)
        WEFT_TRY(weft_tier_walk_make(site, p->config, &p->plan->step, p->plan->mesh.world, stage,
                                     layers, arena, &out->tier));
    return WEFT_OK;
}

/* Of the replicas, which wait for each other, the slowest; each mix of kinds is priced once. */
static weft_status price_slowest(pricing *p, const weft_site *site, int stage, weft_arena *arena)
{
    const weft_stage_kinds *kinds = &p->plan->kinds[stage];
    double slowest = -1;
    for (uint32_t mix = 0; mix < 1u << WEFT_MAX_NODE_GROUPS; mix++) {
        weft_site replica = *site;
        stage_cost cost = {0};
        double us;
        if (!kinds->together[mix])
            continue;
        replica.kinds = mix;
        WEFT_TRY(price_passes(p, &replica, stage, arena, &cost, &us));
        if (us > slowest) {
            p->stages[stage] = cost;
            slowest = us;
        }
    }
    return WEFT_OK;
}

static weft_status price_stage(pricing *p, int stage, weft_arena *arena)
{
    const weft_step *step = &p->plan->step;
    const int num_stages = p->plan->num_stages;
    const size_t element_bytes = weft_dtype_bytes(step->outline.shape.dtype);
    stage_cost *cost = &p->stages[stage];
    weft_site site;
    WEFT_TRY(weft_step_site(p->config, p->cluster, p->experts, p->plan, stage,
                            p->plan->kinds[stage].all, &site));
    site.inputs = &p->plan->inputs;
    WEFT_TRY(price_slowest(p, &site, stage, arena));
    const double bytes = (double)step->shape.boundary_bytes;
    for (int ahead = 0; ahead < 2; ahead++) {
        const int peer = (stage + (ahead ? 1 : num_stages - 1)) % num_stages;
        if (step->outline.shape.plain_kernels)
            WEFT_TRY(price_plain_message(p, &site, stage, peer, cost, ahead));
        else
            WEFT_TRY(price_message(p, &site, stage, peer, bytes, &cost->message[ahead]));
    }
    const weft_buckets *buckets = &step->shape.buckets[stage];
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)buckets->count, &cost->buckets));
    for (int b = 0; b < buckets->count; b++)
        WEFT_TRY(price_bucket(p, &site, &buckets->shapes[b], element_bytes, &cost->buckets[b]));
    return price_norm(p, &site, buckets, &cost->norm_us);
}

/* --- the simulation's questions ------------------------------------------------------------ */

static bool is_pass(int kind)
{
    return kind == WEFT_TASK_FORWARD || kind == WEFT_TASK_BACKWARD || kind == WEFT_TASK_RECOMPUTE;
}

/* A pair's time is its forward's: what waits for either waits for both. */
static const weft_pass_time *pass_of(const pricing *p, int stage, const weft_task *task)
{
    static const weft_pass_time none;
    const stage_cost *cost = &p->stages[stage];
    const int at = task->chunk > 0 ? task->chunk : 0;
    const int v = p->plan->step.outline.layout.num_chunks;
    const weft_pass_price *chunk = &cost->chunks[at];
    if (weft_task_opens_pair(task))
        return &cost->pairs[((task[1].flow == WEFT_FLOW_INPUT) * v + at) * v + task[1].chunk];
    if (task->flags & WEFT_TASK_PAIRED)
        return &none;
    return task->kind == WEFT_TASK_FORWARD     ? &chunk->forward
           : task->kind == WEFT_TASK_RECOMPUTE ? &chunk->recompute
           : task->flow == WEFT_FLOW_INPUT     ? &cost->inputs[at]
           : task->flow == WEFT_FLOW_WEIGHT    ? &chunk->weights
                                               : &chunk->backward;
}

/* Before a step's first forward of a chunk nothing hides its first gather, and before its first
 * backward no gradients wait to be reduced. */
static double start_us(const stage_cost *cost, const weft_task *task)
{
    const int chunk = task->chunk > 0 ? task->chunk : 0;
    if (task->micro_batch > 0 || task->kind == WEFT_TASK_RECOMPUTE ||
        task->flow == WEFT_FLOW_WEIGHT)
        return 0;
    return cost->start_us[chunk][task->kind == WEFT_TASK_BACKWARD];
}

/* What a pass waits for what it sends: from the last virtual stage nothing goes on, from the first
 * nothing back. */
static double sent_us(const pricing *p, int stage, const weft_task *task)
{
    const weft_layout *layout = &p->plan->step.outline.layout;
    const int chunk = task->chunk > 0 ? task->chunk : 0;
    const int virtual_stage = weft_stage_of(layout->is_v, layout->num_ranks, stage, chunk);
    if (task->kind == WEFT_TASK_FORWARD)
        return virtual_stage + 1 < weft_layout_num_stages(layout) ? p->stages[stage].sent_us[1] : 0;
    return task->kind == WEFT_TASK_BACKWARD && task->flow != WEFT_FLOW_WEIGHT && virtual_stage > 0
               ? p->stages[stage].sent_us[0]
               : 0;
}

static uint32_t index_of(const pricing *p, int stage, const weft_task *task)
{
    return (uint32_t)(task - p->plan->step.programs[stage].tasks);
}

/* What a pass waits for its experts. */
static double tier_us(const pricing *p, int stage, const weft_task *task)
{
    const weft_tier_walk *tier = p->stages[stage].tier;
    return tier ? weft_tier_wait_us(tier, index_of(p, stage, task)) : 0;
}

/* The sum stands for its whole section: for all its buckets. */
static double sum_us(const pricing *p, int stage, const weft_task *task)
{
    const weft_buckets *buckets = &p->plan->step.shape.buckets[stage];
    const weft_bucket_sum sum =
        task->flow == WEFT_FLOW_TENSOR ? WEFT_BUCKET_SUM_TENSOR : WEFT_BUCKET_SUM_TIED;
    double us = 0;
    for (int b = 0; b < buckets->count; b++)
        us += buckets->shapes[b].sum == sum ? p->stages[stage].buckets[b].sum_us : 0;
    return us;
}

static const weft_estimate *message_of(const pricing *p, int stage, const weft_task *send)
{
    return &p->stages[stage].message[send->peer == (stage + 1) % p->plan->num_stages];
}

static bool is_buffered(const void *context, int stage, const weft_task *send)
{
    return message_of(context, stage, send)->buffered;
}

static double inside_us(const void *context, int stage, const weft_task *task, double start_us)
{
    const pricing *p = context;
    weft_tier_walk *tier = p->stages[stage].tier;
    return tier ? weft_tier_enter(tier, index_of(p, stage, task), start_us) : 0;
}

/* Alone, without what is inside. */
static double task_us(const void *context, int stage, const weft_task *task)
{
    const pricing *p = context;
    const stage_cost *cost = &p->stages[stage];
    switch (task->kind) {
    case WEFT_TASK_FORWARD:
    case WEFT_TASK_BACKWARD:
    case WEFT_TASK_RECOMPUTE:
        return weft_pass_us(pass_of(p, stage, task)) + start_us(cost, task) +
               sent_us(p, stage, task);
    case WEFT_TASK_SEND:
        return message_of(p, stage, task)->us;
    case WEFT_TASK_SUM:
        return sum_us(p, stage, task);
    case WEFT_TASK_REDUCE:
        return task->bucket < 0 ? cost->tail_us : cost->buckets[task->bucket].reduce_us;
    case WEFT_TASK_NORM:
        return task->bucket < 0 ? cost->norm_us : cost->buckets[task->bucket].norm_us;
    case WEFT_TASK_DOWNLOAD:
        return cost->buckets[task->bucket].download_us;
    case WEFT_TASK_UPLOAD:
        return task->bucket < 0 ? 0 : cost->buckets[task->bucket].upload_us;
    case WEFT_TASK_READ:
    case WEFT_TASK_WRITE:
        return cost->tier ? weft_tier_file_us(cost->tier, task) : 0;
    case WEFT_TASK_STEP:
        return cost->buckets[task->bucket].step_us;
    case WEFT_TASK_GATHER:
        return cost->buckets[task->bucket].gather_us;
    default:
        return 0; /* no task of a step */
    }
}

/* An expert's gradient is final when it has landed, at the latest, here, as the backward ends. */
static double landed_share(const pricing *p, int stage, const weft_task *task, int bucket)
{
    const stage_cost *cost = &p->stages[stage];
    if (!cost->tier)
        return 1;
    const double us = task_us(p, stage, task) + tier_us(p, stage, task),
                 landed = weft_tier_landed_us(cost->tier, bucket);
    return us > 0 ? fmax(0, fmin(1, landed / us)) : 1;
}

/* A layer's gradients are final when the backwards of it and of all above it are over. */
static double point_share(const void *context, int stage, const weft_task *task, int layer,
                          const weft_task *waiting)
{
    const pricing *p = context;
    if (layer == WEFT_POINT_LANDED)
        return landed_share(p, stage, task, waiting->bucket);
    int first, end;
    double us = 0, all = 0;
    double *const *by_layer =
        task->flow == WEFT_FLOW_WEIGHT ? p->stages[stage].weights_us : p->stages[stage].backward_us;
    weft_layout_range(&p->plan->step.outline.layout, stage, task->chunk, &first, &end);
    for (int l = first; l < end; l++) {
        const double own = by_layer[task->chunk][l - first];
        us += l >= layer ? own : 0;
        all += own;
    }
    return all > 0 ? us / all : 1;
}

static void task_links(const void *context, int stage, const weft_task *task,
                       double out_us[WEFT_MAX_LINKS])
{
    const pricing *p = context;
    const stage_cost *cost = &p->stages[stage];
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        switch (task->kind) {
        case WEFT_TASK_FORWARD:
        case WEFT_TASK_BACKWARD:
        case WEFT_TASK_RECOMPUTE:
            out_us[l] = pass_of(p, stage, task)->link_us[l];
            break;
        case WEFT_TASK_SEND:
            out_us[l] = message_of(p, stage, task)->links[l].us;
            break;
        case WEFT_TASK_REDUCE:
            out_us[l] = task->bucket < 0 ? 0 : cost->buckets[task->bucket].link_us[1][l];
            break;
        case WEFT_TASK_GATHER:
            out_us[l] = cost->buckets[task->bucket].link_us[2][l];
            break;
        default:
            break;
        }
}

/* --- the whole ----------------------------------------------------------------------------- */

/* Adds exposed time to the links that were needed for it. */
static void lay_to_links(double us, const double needed[WEFT_NUM_LINKS], double out[WEFT_NUM_LINKS])
{
    double all = 0;
    for (int l = 0; l < WEFT_NUM_LINKS; l++)
        all += needed[l];
    for (int l = 0; l < WEFT_NUM_LINKS && all > 0; l++)
        out[l] += us * needed[l] / all;
}

/* Of a pass: what it is longer than alone it waits for what it exposes, which shares its links.
 * What it hid, and company slows until it shows, is taken for the reductions'; so is all that slows
 * a GPU, which lacks the multiprocessors that reductions take. */
static void add_pass(const weft_pass_time *pass, const weft_span *span, double start, double sent,
                     double tier, bool taken, weft_plan_stage *out)
{
    double *us = out->us;
    double slowed = span->end_us - span->start_us - weft_pass_us(pass) - start - sent - tier;
    const double exposed = pass->tensor_us + pass->expert_us + pass->context_us;
    const bool of_passes = exposed > 0 && !taken;
    slowed = slowed > ROUNDING * span->end_us ? slowed : 0;
    tier = tier > ROUNDING * span->end_us ? tier : 0;
    const double longer = of_passes ? 1 + slowed / exposed : 1;
    us[WEFT_TIME_COMPUTE] += pass->compute_us;
    us[WEFT_TIME_TENSOR] += longer * pass->tensor_us;
    us[WEFT_TIME_EXPERT] += longer * pass->expert_us;
    us[WEFT_TIME_CONTEXT] += longer * pass->context_us;
    us[WEFT_TIME_DATA] += (of_passes ? 0 : slowed) + pass->data_us + start;
    us[WEFT_TIME_HOST] += pass->host_us;
    us[WEFT_TIME_UPLOAD] += tier;
    us[WEFT_TIME_PIPELINE] += sent;
    out->exposed_us[WEFT_LINK_HOST] += pass->host_us + tier;
    out->memory_us += pass->memory_us;
    lay_to_links(longer * exposed, pass->link_us, out->exposed_us);
}

/* What the lanes to and from host memory do in a step: of experts there, in passes and in updates;
 * of buckets whose state is there. */
static void sum_tier(const pricing *p, int stage)
{
    static const weft_lane_kind lanes[] = {WEFT_LANE_TO_DEVICE, WEFT_LANE_TO_HOST, WEFT_LANE_HOST,
                                           WEFT_LANE_FILE};
    const weft_program *program = &p->plan->step.programs[stage];
    const weft_bucket_shape *shapes = p->plan->step.shape.buckets[stage].shapes;
    const weft_tier_walk *tier = p->stages[stage].tier;
    weft_plan_stage *out = &p->plan->stages[stage];
    const weft_file_bytes file = tier ? weft_tier_file_bytes(tier) : (weft_file_bytes){0};
    out->file_read_bytes = file.read;
    out->file_written_bytes = file.written;
    for (size_t k = 0; k < sizeof lanes / sizeof *lanes; k++) {
        out->tier_us[k] = tier ? weft_tier_busy_us(tier, lanes[k]) : 0;
        for (uint32_t i = 0; i < program->num_tasks; i++) {
            const weft_task *task = &program->tasks[i];
            if (task->lane == lanes[k] && task->bucket >= 0)
                (weft_bucket_is_staged(&shapes[task->bucket]) ? out->stepped_us
                                                              : out->tier_us)[k] +=
                    task_us(p, stage, task);
        }
    }
}

static bool is_slowed(const pricing *p)
{
    return weft_pass_taken_share(p->cluster) > 0 && !weft_config_sends_directly(p->config);
}

/* What the compute lane does, by what for. */
static void sum_stage(const pricing *p, const weft_price *price, int stage)
{
    const weft_program *program = &p->plan->step.programs[stage];
    const weft_idle idle = weft_price_idle(program, price, stage);
    weft_plan_stage *out = &p->plan->stages[stage];
    double *us = out->us;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->lane != WEFT_LANE_COMPUTE)
            continue;
        if (!is_pass(task->kind)) {
            const weft_span *span = &price->spans[stage][i]; /* longer where gathers slow it */
            us[WEFT_TIME_OPTIMIZER] += fmax(task_us(p, stage, task), span->end_us - span->start_us);
            continue;
        }
        const stage_cost *cost = &p->stages[stage];
        add_pass(pass_of(p, stage, task), &price->spans[stage][i], start_us(cost, task),
                 sent_us(p, stage, task), tier_us(p, stage, task),
                 p->plan->step.outline.shape.plain_kernels != 0 || is_slowed(p), out);
    }
    us[WEFT_TIME_DATA] += idle.reduce_us;
    us[WEFT_TIME_PIPELINE] += idle.message_us;
    us[WEFT_TIME_OPTIMIZER] += idle.host_us;
    double needed[2][WEFT_NUM_LINKS] = {{0}}; /* by messages, by buckets */
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        double links[WEFT_MAX_LINKS] = {0};
        const int kind = program->tasks[i].kind;
        if (is_pass(kind))
            continue;
        task_links(p, stage, &program->tasks[i], links);
        for (int l = 0; l < WEFT_NUM_LINKS; l++)
            needed[kind != WEFT_TASK_SEND][l] += links[l];
    }
    lay_to_links(us[WEFT_TIME_PIPELINE], needed[0], out->exposed_us);
    lay_to_links(us[WEFT_TIME_DATA], needed[1], out->exposed_us);
    us[WEFT_TIME_BUBBLE] += idle.bubble_us;
    sum_tier(p, stage);
}

static weft_status simulate_once(const pricing *p, weft_trace *trace, weft_arena *arena,
                                 weft_price *out)
{
    const weft_plan *plan = p->plan;
    const bool runs_on = plan->step.outline.shape.experts_on_host && !weft_step_drains(p->config);
    weft_interference taken = weft_interference_none();
    taken.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] = 1 - weft_pass_taken_share(p->cluster);
    const weft_pricing asked = {.cost = task_us,
                                .inside = inside_us,
                                .interference = plan->step.outline.shape.plain_kernels ? &taken
                                                : is_slowed(p) ? &p->cluster->interference
                                                               : NULL,
                                .buffered = is_buffered,
                                .point = point_share,
                                .links = task_links,
                                .context = p,
                                .runs_on = runs_on ? WEFT_STEP_RUNS_ON : 0,
                                .trace = trace};
    return weft_program_price(plan->step.programs, plan->num_stages, &asked, arena, out);
}

static bool has_tier(const pricing *p)
{
    bool any = false;
    for (int stage = 0; stage < p->plan->num_stages; stage++)
        any |= p->stages[stage].tier != NULL;
    return any;
}

/* Where experts are beyond the device a step follows from the one before it, whose updates the host
 * may make beside it: the second of two is taken. */
static weft_status simulate(const pricing *p, weft_trace *trace, weft_arena *arena, weft_price *out)
{
    const int num_steps = has_tier(p) ? 2 : 1;
    for (int k = 0; k < num_steps; k++) {
        for (int stage = 0; stage < p->plan->num_stages; stage++) {
            weft_tier_walk *tier = p->stages[stage].tier;
            if (tier)
                WEFT_TRY(
                    weft_tier_begin_step(tier, k > 0 ? out->spans[stage] : NULL, out->makespan_us));
        }
        WEFT_TRY(simulate_once(p, k + 1 == num_steps ? trace : NULL, arena, out));
        for (int stage = 0; stage < p->plan->num_stages; stage++)
            if (p->stages[stage].tier)
                WEFT_TRY(weft_tier_end_step(p->stages[stage].tier));
    }
    return WEFT_OK;
}

weft_status weft_step_price(const weft_config *config, const weft_cluster *cluster,
                            weft_trace *trace, weft_arena *arena, weft_plan *plan)
{
    pricing p = {.config = config, .cluster = cluster, .plan = plan};
    const int num_stages = plan->num_stages;
    weft_price price;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num_stages, &p.stages));
    WEFT_TRY(weft_step_experts(config, cluster, arena, &p.experts));
    for (int stage = 0; stage < num_stages; stage++) {
        weft_status status = price_stage(&p, stage, arena);
        if (status != WEFT_OK)
            return weft_error_context(status, "stage %d", stage);
    }
    WEFT_TRY(simulate(&p, trace, arena, &price));
    plan->step_us = price.makespan_us;
    for (int stage = 0; stage < num_stages; stage++) {
        sum_stage(&p, &price, stage);
        for (int back = 0; back < 2; back++)
            plan->stages[stage].copies_us[back] =
                plan->step.shape.num_micro_batches * p.stages[stage].copies_us[back];
        for (int i = 0; i < WEFT_NUM_TIMES; i++)
            plan->us[i] += plan->stages[stage].us[i] / num_stages;
    }
    return WEFT_OK;
}
