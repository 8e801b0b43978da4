#include "launcher/searching/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/searching/kinds.h"
#include "layers/pass/offload.h"
#include "schedule/pipeline/order.h"

/* What a candidate's passes share out; kept for those that differ in nothing of it. */
typedef struct sharing_key {
    weft_kind_key table;
    int order, zero, num_chunks, is_v, by_work, pp, dp;
} sharing_key;

typedef struct sharing {
    sharing_key key;
    struct sharing *next;
    weft_shared_passes passes;
    const uint16_t *first; /* of its weft_layout */
} sharing;

/* What an element of a parameter takes after the backwards: dense, of experts. Microseconds. */
typedef struct update_price {
    double reduce_us[2], gather_us[2], step_us[2];
    /* Of experts beyond device memory; what the host does behind the norm. */
    double away_reduce_us, away_step_us;
} update_price;

struct weft_bounds {
    weft_kind_tables tables;
    sharing *sharings[WEFT_KIND_BINS];
    weft_layout layout;
    weft_mesh updated;       /* the mesh of `updates` */
    update_price updates[4]; /* by ZeRO's stage */
    uint64_t limit_bytes;    /* the largest of a device */
};

/* Where some nodes tell none there is none. */
static void find_limit(weft_bounds *b)
{
    const weft_search_space *s = b->tables.space;
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
    const weft_status status = weft_kind_tables_init(space, &b->tables);
    if (status != WEFT_OK) {
        weft_bounds_destroy(b);
        return status;
    }
    find_limit(b);
    *out = b;
    return WEFT_OK;
}

void weft_bounds_destroy(weft_bounds *b)
{
    if (b)
        weft_kind_tables_release(&b->tables);
    free(b);
}

/* --- a candidate --------------------------------------------------------------------------- */

typedef struct bounding {
    weft_bounds *bounds;
    const weft_candidate *candidate;
    weft_config config;
    weft_mesh mesh;
    int num_layers, num_micro_batches;
    const weft_kind_table *table;     /* of the stage at hand */
    const weft_shared_passes *shared; /* NULL: not known */
} bounding;

static const weft_kind_price *kind_at(const bounding *b, int layer)
{
    return &b->table->kinds[b->bounds->tables.own ? layer : b->bounds->tables.kind_of[layer]];
}

/* A chunk of a stage. */
typedef struct chunk_sum {
    double forward_us, backward_us, recompute_us, kept_bytes, dense, experts;
    double away, expert;          /* elements, and those of an expert */
    double less_us;               /* of a step's first backward, than of the others */
    double adds_us, downloads_us; /* of experts, of a later backward */
} chunk_sum;

static chunk_sum sum_layers(const bounding *b, const weft_layout *layout, int first, int end)
{
    const weft_recompute_options *recompute = &b->config.train.recompute;
    const bool full = recompute->granularity == WEFT_RECOMPUTE_FULL;
    chunk_sum sum = {0};
    double last = 0;
    for (int l = first; l < end; l++) {
        const weft_kind_price *kind = kind_at(b, l);
        const bool again = full && layout && weft_recompute_group(recompute, layout, l) > 0;
        sum.forward_us += kind->forward_us;
        sum.backward_us += kind->backward_us;
        sum.recompute_us += again ? kind->recompute_us : 0;
        last = full && (again || !layout) ? 0 : kind->kept_bytes;
        sum.kept_bytes += last;
        sum.dense += kind->dense;
        sum.experts += kind->experts;
        sum.away += kind->away;
        sum.expert = fmax(sum.expert, kind->expert);
    }
    sum.kept_bytes -= fmin(last, b->table->boundary_bytes);
    return sum;
}

static int num_copying(const bounding *b, int first, int end)
{
    int num = 0;
    for (int l = first; l < end; l++)
        num += kind_at(b, l)->copy_us[0] + kind_at(b, l)->input_us[0] > 0;
    return num;
}

/* The slots of a stage's rings. */
static int num_copy_slots(const bounding *b, const weft_layout *layout, int stage)
{
    int most = 0;
    for (int c = 0; c < layout->num_chunks; c++) {
        int first, end;
        weft_layout_range(layout, stage, c, &first, &end);
        const int num = num_copying(b, first, end);
        most = num > most ? num : most;
    }
    return most < WEFT_OFFLOAD_SLOTS ? most : WEFT_OFFLOAD_SLOTS;
}

/* What the chunk's passes wait for copies of what they offload. From the end of a pass to that of
 * the next one there are all copies but those for which there are slots. Where the layer offloads
 * with which a pass ends, its copy begins there, or there the slot is free: one more, and a layer
 * behind it. No other layer's output is the first one's input. */
static void add_copies(const bounding *b, int first, int end, int num_slots, chunk_sum *sum)
{
    double *const passes[] = {&sum->forward_us, &sum->backward_us};
    for (int back = 0; back < 2 && num_slots > 0 && end > first; back++) {
        double us = 0, most_us = 0;
        for (int l = first; l < end; l++) {
            const weft_kind_price *kind = kind_at(b, l);
            const double copy_us = kind->copy_us[back] + (l > first ? kind->input_us[back] : 0);
            us += copy_us;
            most_us = fmax(most_us, copy_us);
        }
        const int last = back ? first : end - 1;
        const bool ends = num_copying(b, last, last + 1) > 0;
        const double behind = back ? kind_at(b, last)->backward_us : kind_at(b, last)->forward_us;
        *passes[back] =
            fmax(*passes[back], us - (num_slots - ends) * most_us + (ends ? behind : 0));
    }
}

/* What the chunk's passes wait for experts. A figure that is missing is the plan's to name. */
static weft_status add_waits(const bounding *b, int first, int end, chunk_sum *sum)
{
    const weft_site site = {.cluster = b->bounds->tables.space->cluster,
                            .experts = b->bounds->tables.experts,
                            .curves = b->bounds->tables.space->config.planned_curves,
                            .unsourced = true};
    const int last = b->num_layers - 1;
    double us[WEFT_TIER_LEASTS];
    first = first > 1 ? first : 1;
    end = end < last ? end : last;
    if (!b->table->away)
        return WEFT_OK;
    const weft_status status =
        weft_away_waits(b->table->away, &site, &b->config, b->bounds->tables.kind_of, first, end,
                        sum->recompute_us, &b->bounds->tables.arena, us);
    if (status == WEFT_CONFIG) {
        weft_error_clear();
        return WEFT_OK;
    }
    WEFT_TRY(status);
    sum->forward_us += us[WEFT_TIER_FORWARD];
    sum->backward_us += us[WEFT_TIER_LATER_BACKWARD];
    sum->less_us = us[WEFT_TIER_LATER_BACKWARD] - us[WEFT_TIER_FIRST_BACKWARD];
    sum->adds_us = us[WEFT_TIER_ADDS];
    sum->downloads_us = us[WEFT_TIER_DOWNLOADS];
    return WEFT_OK;
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

enum { ADAMW_BYTES = 28 }; /* of an element, at least */

/* Experts beyond device memory are buckets of their own. A figure that is missing is the plan's to
 * name. */
static weft_status price_away(const bounding *b, const weft_site *site, const weft_group *group,
                              double elements, bool zero, update_price *out)
{
    const double element = (double)weft_dtype_bytes(weft_config_dtype(&b->config)),
                 share = zero ? 1.0 / group->size : 1;
    const bool split = b->config.train.split_master || element == sizeof(float);
    weft_estimate reduce = {0}, step = {0}, gather = {0};
    weft_status status =
        weft_work_us(site, WEFT_COST_ADAMW_HOST,
                     elements * share * (ADAMW_BYTES + (split ? 0 : element)), &step);
    if (status == WEFT_OK && group->size > 1)
        status = weft_collective_us(
            site, group, zero ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE,
            elements * sizeof(float), &reduce);
    if (status == WEFT_OK && group->size > 1 && zero)
        status = weft_collective_us(site, group, WEFT_COLLECTIVE_ALL_GATHER, elements * element,
                                    &gather);
    if (status == WEFT_CONFIG)
        weft_error_clear();
    else if (status != WEFT_OK)
        return status;
    out->away_reduce_us = status == WEFT_OK ? reduce.us / elements : 0;
    out->away_step_us = status == WEFT_OK ? (step.us + gather.us) / elements : 0;
    return WEFT_OK;
}

/* Of the kinds of layers with the table at hand the smallest expert; 0: there is none. */
static double smallest_expert(const weft_kind_table *t)
{
    double least = 0;
    for (int k = 0; k < t->num_kinds; k++)
        if (t->kinds[k].expert > 0 && (least == 0 || t->kinds[k].expert < least))
            least = t->kinds[k].expert;
    return least;
}

/* Of a gradient group's buckets of at most `most` elements; section 1: of experts. */
static weft_status price_section(const bounding *b, const weft_site *site, const weft_group *group,
                                 int section, double most, update_price *updates)
{
    const double element = (double)weft_dtype_bytes(weft_config_dtype(&b->config)),
                 expert = section == 1 ? smallest_expert(b->table) : 0;
    const weft_cost_kind kind = steps_on_host(&b->config) ? WEFT_COST_ADAMW_HOST : WEFT_COST_ADAMW;
    for (int zero = 0; zero < 2; zero++) {
        update_price *u = &updates[zero];
        const double share = zero ? 1.0 / group->size : 1;
        WEFT_TRY(least_us(site, NULL, kind, most, share * ADAMW_BYTES, &u->step_us[section]));
        if (expert > 0)
            WEFT_TRY(price_away(b, site, group, expert, zero, u));
        if (group->size == 1)
            continue;
        WEFT_TRY(least_us(site, group,
                          zero ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE, most,
                          sizeof(float), &u->reduce_us[section]));
        if (zero)
            WEFT_TRY(least_us(site, group, WEFT_COLLECTIVE_ALL_GATHER, most, element,
                              &u->gather_us[section]));
    }
    return WEFT_OK;
}

static weft_status price_updates(bounding *b, weft_arena *scratch)
{
    enum { MARGIN = 32 };
    static const weft_axis axes[] = {WEFT_AXIS_DP_CP, WEFT_AXIS_EDP};
    const weft_cluster *cluster = b->bounds->tables.space->cluster;
    const weft_site site = {
        .cluster = cluster, .experts = b->bounds->tables.experts, .unsourced = true};
    update_price *updates = b->bounds->updates;
    int *ranks;
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)b->mesh.world, &ranks));
    memset(updates, 0, sizeof b->bounds->updates);
    for (int i = 0; i < 2; i++) {
        double most = (double)b->config.parallel.ddp_bucket_size;
        for (int k = 0; k < b->table->num_kinds; k++)
            most = fmax(most, b->table->kinds[k].largest[i]);
        const int size = weft_mesh_group_rising(&b->mesh, axes[i], 0, ranks, b->mesh.world);
        const weft_group group =
            weft_group_of(cluster, ranks, size, weft_config_sends_directly(&b->config));
        most += MARGIN + (double)WEFT_ALIGN_ELEMENTS * size; /* of padding */
        WEFT_TRY(price_section(b, &site, &group, i, most, updates));
    }
    for (int zero = 2; zero < 4; zero++) { /* passes reduce, and gather, what they share out */
        updates[zero] = updates[1];
        memset(updates[zero].reduce_us, 0, sizeof updates[zero].reduce_us);
    }
    memset(updates[3].gather_us, 0, sizeof updates[3].gather_us);
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
    const weft_cluster *cluster = b->bounds->tables.space->cluster;
    const weft_sharding zero = weft_parallel_sharding(&b->config.parallel);
    const int each = cluster->ranks_per_node;
    *out = NULL;
    if (b->config.train.parameter_rules.count > 0 ||
        weft_kind_key_of(&b->bounds->tables, b->candidate, &b->config, &b->mesh, 0).pp != 0 ||
        !weft_ranks_nest(b->mesh.tp * b->mesh.cp * b->mesh.pp, each) ||
        !weft_ranks_nest(b->mesh.etp * b->mesh.ep * b->mesh.pp, each))
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

static bool are_away(const bounding *b)
{
    const int tier = b->config.tier.experts;
    return tier == WEFT_TIER_HOST || tier == WEFT_TIER_FILE;
}

static double reduce_us(const bounding *b, const update_price *u, const chunk_sum *sum)
{
    return u ? sum->dense * u->reduce_us[0] + sum->experts * u->reduce_us[1] +
                   (are_away(b) ? sum->away * u->away_reduce_us : 0)
             : 0;
}

/* After the norm: steps one after the other, and what they updated is gathered. */
static double after_norm_us(const update_price *u, const chunk_sum *sum)
{
    return u ? fmax(sum->dense * u->step_us[0] + sum->experts * u->step_us[1],
                    sum->dense * u->gather_us[0] + sum->experts * u->gather_us[1])
             : 0;
}

/* --- all of it ----------------------------------------------------------------------------- */

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
static weft_status sum_stage(const bounding *b, const weft_layout *layout, int stage,
                             const update_price *updates, stage_sum *out)
{
    const double m = b->num_micro_batches;
    const bool splits = b->config.schedule.splits_backward;
    *out = (stage_sum){.least_kept = INFINITY};
    double behind_us = 0;
    for (int c = layout->num_chunks - 1; c >= 0; c--) {
        int begin, end;
        weft_layout_range(layout, stage, c, &begin, &end);
        chunk_sum sum = sum_layers(b, layout, begin, end);
        if (!b->shared)
            add_copies(b, begin, end, num_copy_slots(b, layout, stage), &sum);
        WEFT_TRY(add_waits(b, begin, end, &sum));
        if (b->shared) {
            const weft_shared_chunk *shared = &b->shared->chunks[stage * b->shared->num_chunks + c];
            sum.forward_us += shared->us[0];
            sum.backward_us += shared->us[1];
            out->start_us += shared->start_us[0] + shared->start_us[1];
            out->first_start_us[0] = shared->start_us[0];
            out->first_start_us[1] = fmin(0, shared->start_us[1]);
        }
        const double but_one_us = m > 1 ? (m - 1) * sum.backward_us - sum.less_us : 0;
        out->behind_us = splits ? 0 : fmax(out->behind_us, behind_us + but_one_us);
        behind_us += m * sum.backward_us - sum.less_us - reduce_us(b, updates, &sum);
        out->all.forward_us += sum.forward_us;
        out->all.backward_us += sum.backward_us;
        out->all.recompute_us += sum.recompute_us;
        out->all.less_us += sum.less_us;
        out->all.dense += sum.dense;
        out->all.experts += sum.experts;
        out->all.away += sum.away;
        out->all.expert = fmax(out->all.expert, sum.expert);
        out->all.adds_us += sum.adds_us;
        out->all.downloads_us += sum.downloads_us;
        out->least_kept = fmin(out->least_kept, sum.kept_bytes);
        out->first = sum;
    }
    return WEFT_OK;
}

static double tail_us(const bounding *b, int stage)
{
    return b->shared ? b->shared->tail_us[stage] : 0;
}

/* What is known of the stages in front. */
typedef struct stages_sum {
    double before_us[2]; /* their forwards and backwards of the first micro-batch */
    double after_us;     /* what is behind the norm */
    double stepped_us;   /* until the host has stepped all experts, less the forwards */
    double rest_us;      /* from the first backward on, less the backwards */
    bool away;
} stages_sum;

/* Of two experts on a rank the second one gets no rows: one has twice the mean. */
static bool has_pair(const bounding *b)
{
    for (int k = 0; k < b->table->num_kinds; k++)
        if (b->table->kinds[k].expert > 0 &&
            fabs(b->table->kinds[k].away / b->table->kinds[k].expert - 2) < 0.5)
            return true;
    return false;
}

/* What the host does for a stage's experts behind the norm before every one is stepped that a
 * forward needs. Where several ranks step an expert its layer may wait for all but the last. */
static double host_us(const bounding *b, const update_price *u, const chunk_sum *sum)
{
    const bool but_one = b->config.tier.experts == WEFT_TIER_FILE || has_pair(b) ||
                         (b->mesh.edp > 1 && weft_parallel_sharding(&b->config.parallel) != 0);
    return u ? fmax(0, sum->away - (but_one ? sum->expert : 0)) * u->away_step_us : 0;
}

/* Whether every expert gets rows, but of two. */
static bool uses_all(const weft_config *c)
{
    return !(c->moe_expert_load > 0) && !(c->moe_load > 0) &&
           !(c->model.moe_router_forced_load > 0);
}

/* Forwards that come behind a stage's first backward, at least. */
static double num_forwards_behind(const bounding *b, int stage)
{
    const weft_schedule_options *o = &b->config.schedule;
    const int ahead = b->mesh.pp - stage, m = b->num_micro_batches;
    const bool alternates =
        b->mesh.pp == 1 || (o->pipeline_schedule == WEFT_PIPELINE_1F1B &&
                            !(o->pipeline_schedule_file && o->pipeline_schedule_file[0]));
    return alternates && b->bounds->layout.num_chunks == 1 && m > ahead ? m - ahead : 0;
}

/* The host steps experts beside the next step's forward. From the norm of a step to that of the
 * next one there are all updates, the rest of the forward that needed the last of them, then all
 * backwards: none begins before a forward has been through all layers. */
static double bound_by_host(const bounding *b, const stages_sum *sum)
{
    const bool one = b->bounds->layout.num_chunks == 1 && !b->config.schedule.splits_backward;
    return sum->stepped_us + sum->rest_us + (one ? sum->before_us[0] + sum->before_us[1] : 0);
}

/* What of a step's gradients has come down, and is added up, when the last expert has computed: all
 * but the last ones, as there are two slots for them on the device and two in host memory. */
static double gradients_us(const bounding *b, const chunk_sum *sum)
{
    const double m = b->num_micro_batches, used = has_pair(b) ? sum->away / 2 : sum->away,
                 one = used > 0 ? sum->expert / used : 0;
    if (!uses_all(&b->config))
        return 0;
    return fmax((m - 1) * sum->adds_us - 4 * one * sum->adds_us,
                m * sum->downloads_us - 2 * one * sum->downloads_us);
}

static void add_host(const bounding *b, const update_price *updates, const stage_sum *stage, int s,
                     const double front_us[2], stages_sum *sum)
{
    const bool one = b->bounds->layout.num_chunks == 1 && !b->config.schedule.splits_backward;
    const double us = host_us(b, updates, &stage->all), m = b->num_micro_batches;
    const double passes = m * (stage->all.backward_us + stage->all.recompute_us) -
                          stage->all.less_us + fmin(0, stage->start_us) +
                          num_forwards_behind(b, s) * stage->all.forward_us;
    const double rest = front_us[1] + fmax(passes, gradients_us(b, &stage->all));
    if (weft_step_drains(&b->config))
        sum->after_us = fmax(sum->after_us, us);
    sum->stepped_us = fmax(sum->stepped_us, us - (one ? sum->before_us[0] : 0));
    sum->rest_us = fmax(sum->rest_us, rest - (one ? sum->before_us[1] : 0));
}

static weft_status add_stage(const bounding *b, int s, const update_price *updates, stages_sum *sum,
                             weft_bound *out)
{
    const weft_layout *layout = &b->bounds->layout;
    const double m = b->num_micro_batches, before[2] = {sum->before_us[0], sum->before_us[1]};
    stage_sum stage;
    WEFT_TRY(sum_stage(b, layout, s, updates, &stage));
    const chunk_sum *all = &stage.all;
    const double end_us = before[0] + stage.start_us - all->less_us +
                          m * (all->forward_us + all->backward_us + all->recompute_us);
    out->step_us = fmax(out->step_us, end_us + before[1] + tail_us(b, 0));
    out->step_us = fmax(out->step_us, end_us + tail_us(b, s));
    out->step_us = fmax(out->step_us, before[0] + fmin(0, stage.start_us) + m * all->forward_us +
                                          stage.behind_us + reduce_us(b, updates, all));
    if (are_away(b))
        out->step_us = fmax(out->step_us, before[0] + fmin(0, stage.start_us) + all->forward_us +
                                              gradients_us(b, all) + before[1]);
    const double kept = stage.least_kept * num_in_flight(b, s, layout->num_chunks);
    sum->away |= leaves(b, all, kept);
    sum->after_us = fmax(sum->after_us, after_norm_us(updates, all));
    sum->before_us[0] += stage.first.forward_us + stage.first_start_us[0];
    /* Of halves nothing waits for the weights'. */
    sum->before_us[1] +=
        b->config.schedule.splits_backward
            ? 0
            : stage.first.backward_us - stage.first.less_us + stage.first_start_us[1];
    if (are_away(b))
        add_host(b, updates, &stage, s, before, sum);
    note_memory(b, state_bytes(b, all) + kept, out);
    return WEFT_OK;
}

static weft_status bound_by_stages(bounding *b, weft_bound *out, bool *out_away)
{
    const bool alike =
        weft_kind_key_of(&b->bounds->tables, b->candidate, &b->config, &b->mesh, 0).pp == 0;
    const update_price *updates = NULL;
    stages_sum sum = {.stepped_us = -INFINITY, .rest_us = -INFINITY};
    for (int s = 0; s < b->mesh.pp; s++) {
        if (s == 0 || !alike)
            WEFT_TRY(weft_kind_table_find(&b->bounds->tables, b->candidate, &b->config, &b->mesh, s,
                                          &b->table));
        if (s == 0)
            WEFT_TRY(find_updates(b, &updates));
        WEFT_TRY(add_stage(b, s, updates, &sum, out));
    }
    *out_away = sum.away;
    out->step_us += sum.after_us;
    if (are_away(b) && uses_all(&b->config) && !weft_step_drains(&b->config) &&
        !weft_step_at_once(&b->config))
        out->step_us = fmax(out->step_us, bound_by_host(b, &sum));
    return WEFT_OK;
}

/* Where experts leave the device because they have no room, the time is that of experts on the
 * host. */
static weft_status bound_as_they_lie(bounding *b, weft_bound *out)
{
    weft_bound away = {.fits = true};
    bool leave;
    WEFT_TRY(bound_by_stages(b, out, &leave));
    if (b->config.tier.experts != WEFT_TIER_AUTO || !leave)
        return WEFT_OK;
    b->config.tier.experts = WEFT_TIER_HOST;
    WEFT_TRY(bound_by_stages(b, &away, &leave));
    out->step_us = away.step_us;
    return WEFT_OK;
}

static weft_status start(weft_bounds *bounds, const weft_candidate *c, bounding *b)
{
    *b = (bounding){.bounds = bounds, .candidate = c, .num_layers = bounds->tables.num_layers};
    weft_space_apply(bounds->tables.space, c, &b->config);
    WEFT_TRY(weft_mesh_build(&b->config.parallel, bounds->tables.space->world,
                             b->config.model.num_experts, &b->mesh));
    b->num_micro_batches =
        (int)(b->config.train.global_batch_size / b->config.train.micro_batch_size / b->mesh.dp);
    if (bounds->tables.own) {
        const weft_kind_table *first;
        WEFT_TRY(weft_kind_table_find(&bounds->tables, c, &b->config, &b->mesh, 0, &first));
        b->num_layers = first->num_kinds;
    }
    return WEFT_OK;
}

weft_status weft_bound_of(weft_bounds *bounds, const weft_candidate *c, weft_bound *out)
{
    const double *work;
    bounding b;
    *out = (weft_bound){.fits = true};
    WEFT_TRY(start(bounds, c, &b));
    WEFT_TRY(weft_kind_work_find(&bounds->tables, c, &b.config, &b.mesh, &work));
    WEFT_TRY(weft_layout_build(&b.config.parallel, b.mesh.pp, b.num_layers, work, &bounds->layout));
    return bound_as_they_lie(&b, out);
}

/* --- the tighter one ----------------------------------------------------------------------- */

bool weft_bound_is_loose(const weft_bounds *bounds, const weft_candidate *c)
{
    return bounds->tables.space->cluster->num_groups == 0 &&
           (c->zero >= 2 || bounds->tables.space->forms[c->form].offload);
}

static sharing_key key_of_sharing(const bounding *b)
{
    const weft_candidate *c = b->candidate;
    sharing_key key;
    memset(&key, 0, sizeof key);
    key.table = weft_kind_key_of(&b->bounds->tables, c, &b->config, &b->mesh, 0);
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
    weft_kind_choice *chosen;
    uint16_t *first;
    WEFT_TRY(weft_kind_choice_find(&bounds->tables, &b->config, &b->mesh, &key->table, &chosen));
    weft_mesh mesh = b->mesh; /* that of the choice may have other stages and replicas */
    mesh.cp_comm_type = chosen->mesh.cp_comm_type;
    mesh.cp_inner = chosen->mesh.cp_inner;
    mesh.attention_chunks = chosen->mesh.attention_chunks;
    mesh.mlp_chunks = chosen->mesh.mlp_chunks;
    weft_config away = b->config; /* experts that may leave the device share out nothing */
    if (away.tier.experts == WEFT_TIER_AUTO)
        away.tier.experts = WEFT_TIER_HOST;
    sharing *s;
    WEFT_TRY(weft_arena_alloc(&bounds->tables.arena, sizeof(sharing), &s));
    s->key = *key;
    WEFT_TRY(weft_shared_passes_find(&away, bounds->tables.space->cluster, bounds->tables.experts,
                                     &mesh, &chosen->moe, &bounds->tables.arena, layout,
                                     &s->passes));
    const size_t num = (size_t)weft_layout_num_stages(layout) + 1;
    WEFT_TRY(WEFT_ARRAY(&bounds->tables.arena, num, &first));
    memcpy(first, layout->first, num * sizeof *layout->first);
    s->first = first;
    *out = s;
    return WEFT_OK;
}

static weft_status find_sharing(const bounding *b, const sharing **out)
{
    const sharing_key key = key_of_sharing(b);
    sharing **bin = &b->bounds->sharings[weft_kind_bin(&key, sizeof key)], *s = *bin;
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
    return bound_as_they_lie(&b, out);
}
