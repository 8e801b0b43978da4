#include "launcher/searching/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/clock.h"
#include "core/cluster/cluster.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/planning/layer_price.h"
#include "launcher/planning/mesh_choice.h"
#include "launcher/planning/step_price.h"
#include "launcher/process/stop.h"
#include "launcher/searching/bound.h"
#include "schedule/context.h"
#include "schedule/moe/layer.h"

#define ROUNDING 1e-9 /* of bounds, which add the same numbers in another order */

/* By bound; ties by where the candidate stands in the list. */
typedef struct entry {
    weft_candidate candidate;
    size_t index;
    double us;      /* its bound, then its price */
    uint64_t bytes; /* where it is priced: of the fullest rank */
    bool is_tight;  /* there is no tighter bound */
} entry;

typedef struct entries {
    entry *values;
    size_t count, capacity;
} entries;

/* What does not fit by its bound, or by its footprint. */
typedef struct miss {
    weft_candidate candidate;
    size_t index;
    uint64_t short_by;
    bool planned;
} miss;

typedef struct searching {
    const weft_search_space *space;
    weft_bounds *bounds;
    entries heap;
    entry *best; /* [top], by price */
    int top, num_best;
    double below_us; /* of the options */
    bool ranges;     /* likewise */
    miss *misses;    /* by bound, then by footprint */
    size_t num_misses, most_misses;
    weft_search_counts counts;
    weft_error first_error; /* of an illegal candidate */
    weft_error first_lack;  /* of one that would save memory, and takes a figure that is missing */
    size_t num_lacking;
    weft_search_progress *progress;
    size_t num_seen, num_listed; /* of the candidates without forms */
    weft_arena *arena;
    weft_arena scratch; /* of one plan */
    weft_arena lists;   /* of the best and the misses */
} searching;

static bool is_time_to_tell(weft_search_progress *progress)
{
    const double every_us = 1e7, now = progress ? weft_now_us() : 0;
    if (!progress || now < progress->said_us + every_us)
        return false;
    progress->said_us = now;
    return true;
}

static void tell_progress(const searching *s)
{
    if (!is_time_to_tell(s->progress))
        return;
    if (s->num_seen < s->num_listed)
        weft_log(WEFT_LOG_INFO, "%s on %s: %zu of %zu candidates have bounds", s->progress->what,
                 weft_count_text(s->space->world, "device").text, s->num_seen, s->num_listed);
    else
        weft_log(WEFT_LOG_INFO, "%s on %s: %zu plans are priced, %zu may be faster",
                 s->progress->what, weft_count_text(s->space->world, "device").text,
                 s->counts.priced, s->heap.count);
}

/* --- what is next -------------------------------------------------------------------------- */

static bool is_before(const entry *a, const entry *b)
{
    return a->us < b->us || (a->us == b->us && a->index < b->index) ||
           (a->us == b->us && a->index == b->index && a->candidate.form < b->candidate.form);
}

static weft_status push(entries *heap, const entry *e)
{
    WEFT_TRY(WEFT_GROW(heap->values, heap->capacity, heap->count + 1, "candidates"));
    size_t at = heap->count++;
    for (; at > 0 && is_before(e, &heap->values[(at - 1) / 2]); at = (at - 1) / 2)
        heap->values[at] = heap->values[(at - 1) / 2];
    heap->values[at] = *e;
    return WEFT_OK;
}

static entry take_first(entries *heap)
{
    const entry first = heap->values[0], last = heap->values[--heap->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && is_before(&heap->values[child + 1], &heap->values[child]))
            child++;
        if (!is_before(&heap->values[child], &last))
            break;
        heap->values[at] = heap->values[child];
    }
    if (heap->count > 0)
        heap->values[at] = last;
    return first;
}

/* --- what does not fit --------------------------------------------------------------------- */

static int compare_misses(const void *a, const void *b)
{
    const miss *x = a, *y = b;
    if (x->short_by != y->short_by)
        return x->short_by < y->short_by ? -1 : 1;
    return x->index < y->index   ? -1
           : x->index > y->index ? 1
                                 : x->candidate.form - y->candidate.form;
}

/* The nearest are kept. */
static weft_status note_miss(searching *s, const miss *m)
{
    enum { KEPT = 4096 };
    s->counts.memory++;
    if (s->num_misses == s->most_misses && s->most_misses < 2 * KEPT) {
        s->most_misses = 2 * (size_t)KEPT;
        WEFT_TRY(WEFT_ARRAY(&s->lists, s->most_misses, &s->misses));
    }
    if (s->num_misses == s->most_misses) {
        qsort(s->misses, s->num_misses, sizeof *s->misses, compare_misses);
        s->num_misses = KEPT;
    }
    s->misses[s->num_misses++] = *m;
    return WEFT_OK;
}

static weft_status consider(searching *s, const weft_candidate *c, size_t index);

static weft_status consider_forms(searching *s, const weft_candidate *c, size_t index)
{
    int forms[WEFT_MAX_FORMS];
    const int num = weft_space_next_forms(s->space, c, forms);
    for (int i = 0; i < num; i++) {
        weft_candidate next = *c;
        next.form = forms[i];
        WEFT_TRY(consider(s, &next, index));
    }
    return WEFT_OK;
}

/* A figure that is missing refuses no candidate by a rule: the search ends. What saves memory with
 * a figure that its plain form does without is left out. */
static weft_status refuse(searching *s, const weft_candidate *c, weft_status status)
{
    weft_error error;
    const bool lacks = weft_lack_is(weft_error_get());
    if (status != WEFT_CONFIG || (lacks && c->form == 0))
        return status;
    weft_error_take(&error);
    if (s->counts.illegal++ == 0)
        s->first_error = error;
    if (lacks && s->num_lacking++ == 0)
        s->first_lack = error;
    return WEFT_OK;
}

static weft_status leave_out(searching *s, const entry *e, const weft_bound *bound)
{
    WEFT_TRY(note_miss(s, &(miss){.candidate = e->candidate,
                                  .index = e->index,
                                  .short_by = bound->memory_bytes - bound->limit_bytes}));
    return consider_forms(s, &e->candidate, e->index);
}

/* Bounds a candidate; where it cannot fit, those that come after it. */
static weft_status consider(searching *s, const weft_candidate *c, size_t index)
{
    weft_bound bound;
    s->counts.considered++;
    const weft_status status = weft_bound_of(s->bounds, c, &bound);
    if (status == WEFT_CONFIG) {
        WEFT_TRY(refuse(s, c, status));
        return c->form > 0 ? consider_forms(s, c, index) : WEFT_OK;
    }
    WEFT_TRY(status);
    const entry e = {.candidate = *c,
                     .index = index,
                     .us = bound.step_us * (1 - ROUNDING),
                     .is_tight = !weft_bound_is_loose(s->bounds, c)};
    return bound.fits ? push(&s->heap, &e) : leave_out(s, &e, &bound);
}

/* Its turn by a loose bound: it comes again by a tight one. */
static weft_status tighten(searching *s, entry *e)
{
    weft_bound bound;
    const weft_status status = weft_bound_tighten(s->bounds, &e->candidate, &bound);
    e->is_tight = true;
    if (status == WEFT_CONFIG) { /* its plan says why */
        weft_error_clear();
        return push(&s->heap, e);
    }
    WEFT_TRY(status);
    e->us = fmax(e->us, bound.step_us * (1 - ROUNDING));
    return bound.fits ? push(&s->heap, e) : leave_out(s, e, &bound);
}

/* --- what may be best ---------------------------------------------------------------------- */

static uint64_t short_by(const weft_plan *plan, bool *of_host)
{
    *of_host = plan->memory_limit_bytes == 0 || plan->memory_bytes <= plan->memory_limit_bytes;
    return *of_host ? plan->host_memory_bytes - plan->host_limit_bytes
                    : plan->memory_bytes - plan->memory_limit_bytes;
}

/* Of plans that tie but for the order of their ranks the first in the list is kept. */
static void keep(searching *s, const entry *priced)
{
    for (int i = 0; i < s->num_best; i++)
        if (fabs(s->best[i].us - priced->us) <= ROUNDING * priced->us &&
            s->best[i].bytes == priced->bytes &&
            weft_candidate_differs_by_order(&s->best[i].candidate, &priced->candidate)) {
            if (s->best[i].index < priced->index)
                return;
            s->num_best--;
            memmove(&s->best[i], &s->best[i + 1], (size_t)(s->num_best - i) * sizeof *s->best);
            break;
        }
    int at = s->num_best < s->top ? s->num_best++ : s->top;
    if (at == s->top && !is_before(priced, &s->best[at - 1]))
        return;
    at = at == s->top ? at - 1 : at;
    for (; at > 0 && is_before(priced, &s->best[at - 1]); at--)
        s->best[at] = s->best[at - 1];
    s->best[at] = *priced;
}

static weft_status price(searching *s, entry *e, const weft_config *config, weft_plan *plan)
{
    bool of_host;
    if (weft_candidate_repeats(&e->candidate, &plan->step.outline.layout)) {
        s->counts.repeated++;
        return WEFT_OK;
    }
    if (!plan->fits) {
        WEFT_TRY(note_miss(s, &(miss){.candidate = e->candidate,
                                      .index = e->index,
                                      .short_by = short_by(plan, &of_host),
                                      .planned = true}));
        return consider_forms(s, &e->candidate, e->index);
    }
    plan->unsourced = true;
    weft_config settled = *config;
    settled.tier = plan->tier.options;
    const weft_status status =
        weft_step_price(&settled, s->space->cluster, NULL, &s->scratch, plan);
    if (status == WEFT_CONFIG)
        return refuse(s, &e->candidate, status);
    WEFT_TRY(status);
    s->counts.priced++;
    e->us = plan->step_us;
    e->bytes = plan->memory_bytes;
    keep(s, e);
    return WEFT_OK;
}

static weft_status plan_next(searching *s)
{
    entry e = take_first(&s->heap);
    if (!e.is_tight)
        return tighten(s, &e);
    weft_config config;
    weft_plan plan;
    weft_space_apply(s->space, &e.candidate, &config);
    config.is_trial = true;
    weft_status status =
        weft_plan_start(&config, s->space->source, s->space->cluster, &s->scratch, &plan);
    if (status == WEFT_CONFIG) {
        status = refuse(s, &e.candidate, status);
        if (status == WEFT_OK && e.candidate.form > 0)
            status = consider_forms(s, &e.candidate, e.index);
    } else if (status == WEFT_OK) {
        status = price(s, &e, &config, &plan);
        weft_plan_release(&plan);
    }
    weft_arena_reset(&s->scratch);
    return status;
}

/* Who stops it gets the best plans so far; where none is priced yet, it goes on for one, a few
 * seconds at most. */
static weft_status find_best(searching *s)
{
    const double most_after_us = 5e6;
    double stopped_us = 0;
    while (s->heap.count > 0) {
        if (weft_stop_asked() && stopped_us == 0)
            stopped_us = weft_now_us();
        if (stopped_us > 0 && (s->num_best > 0 || weft_now_us() > stopped_us + most_after_us))
            return WEFT_OK;
        const double us = s->heap.values[0].us;
        if (us >= s->below_us || (s->num_best == s->top && us > s->best[s->top - 1].us)) {
            s->counts.bound += s->heap.count;
            return WEFT_OK;
        }
        WEFT_TRY(plan_next(s));
        tell_progress(s);
    }
    return WEFT_OK;
}

/* --- the result ---------------------------------------------------------------------------- */

static weft_status mesh_text(const weft_mesh *mesh, weft_arena *arena, const char **out)
{
    char axes[160];
    weft_mesh_print(mesh, axes, sizeof axes);
    return weft_arena_strdup(arena, axes, out);
}

static weft_status describe_best(searching *s, weft_search_result *out)
{
    WEFT_TRY(WEFT_ARRAY(s->arena, (size_t)s->num_best, &out->plans));
    for (int i = 0; i < s->num_best; i++) {
        weft_found *found = &out->plans[i];
        weft_plan plan;
        found->candidate = s->best[i].candidate;
        weft_space_apply(s->space, &found->candidate, &found->config);
        WEFT_TRY(weft_plan_make(&found->config, s->space->source, s->space->cluster, NULL,
                                &s->scratch, &plan));
        found->step_us = plan.step_us;
        memcpy(found->us, plan.us, sizeof found->us);
        found->tokens_per_s = plan.tokens_per_s;
        found->model_flops_utilization = plan.model_flops_utilization;
        found->memory_bytes = plan.memory_bytes;
        found->memory_limit_bytes = plan.memory_limit_bytes;
        found->limits = plan.limits;
        found->source = plan.source;
        found->costs = weft_plan_costs_of(s->space->cluster, &plan.mesh, plan.tokens_per_s);
        found->file_is_free = false;
        for (int k = 0; k < plan.num_stages; k++)
            found->file_is_free |=
                plan.stages[k].footprint.file_bytes > 0 && plan.stages[k].tier_us[3] < 0;
        const weft_tier_options ran = plan.tier.options; /* whose numbers alone are used */
        memset(found->range_us, 0, sizeof found->range_us);
        weft_status status = mesh_text(&plan.mesh, s->arena, &found->mesh);
        if (status == WEFT_OK && s->ranges)
            status = weft_plan_range(&found->config, s->space->cluster, &plan, found->range_us);
        weft_plan_release(&plan);
        weft_arena_reset(&s->scratch);
        WEFT_TRY(status);
        WEFT_TRY(weft_search_settle(found, s->space->source, s->space->cluster, s->arena,
                                    &found->settled));
        found->settled.tier = weft_tier_with_choice(&found->config.tier, &ran);
        out->num_plans++;
    }
    return WEFT_OK;
}

static bool same_mesh(const weft_candidate *a, const weft_candidate *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->dp == b->dp && a->ep == b->ep &&
           a->etp == b->etp && a->binding == b->binding;
}

/* Lays a planned miss among the nearest, of which each mesh has one. */
static weft_status lay_miss(searching *s, const weft_candidate *c, const weft_config *config,
                            const weft_plan *plan, weft_search_result *out)
{
    weft_missed missed = {.candidate = *c, .config = *config};
    missed.short_by_bytes = short_by(plan, &missed.of_host);
    missed.memory_bytes = missed.of_host ? plan->host_memory_bytes : plan->memory_bytes;
    missed.memory_limit_bytes = missed.of_host ? plan->host_limit_bytes : plan->memory_limit_bytes;
    WEFT_TRY(mesh_text(&plan->mesh, s->arena, &missed.mesh));
    int at = 0, end = out->num_misses;
    while (at < end && out->misses[at].short_by_bytes <= missed.short_by_bytes)
        at++;
    for (int i = 0; i < at; i++)
        if (same_mesh(&out->misses[i].candidate, c))
            return WEFT_OK;
    for (int i = at; i < end; i++)
        if (same_mesh(&out->misses[i].candidate, c)) {
            memmove(&out->misses[at + 1], &out->misses[at], (size_t)(i - at) * sizeof missed);
            out->misses[at] = missed;
            return WEFT_OK;
        }
    if (at == WEFT_MAX_MISSES)
        return WEFT_OK;
    end -= end == WEFT_MAX_MISSES;
    memmove(&out->misses[at + 1], &out->misses[at], (size_t)(end - at) * sizeof missed);
    out->misses[at] = missed;
    out->num_misses = end + 1;
    return WEFT_OK;
}

static bool halve_batch(weft_config *c)
{
    const bool can = c->train.micro_batch_size % 2 == 0;
    c->train.micro_batch_size /= can ? 2 : 1;
    return can;
}

static bool recompute_all(weft_config *c)
{
    const bool can = c->train.recompute.granularity != WEFT_RECOMPUTE_FULL ||
                     c->train.recompute.method != WEFT_RECOMPUTE_UNIFORM;
    c->train.recompute.granularity = WEFT_RECOMPUTE_FULL;
    c->train.recompute.method = WEFT_RECOMPUTE_UNIFORM;
    c->train.recompute.num_layers = 1;
    c->train.offload.on = false;
    return can;
}

static bool share_all(weft_config *c)
{
    const bool can = weft_parallel_sharding(&c->parallel) != WEFT_SHARD_OPTIM_GRADS_PARAMS &&
                     c->schedule.pipeline_schedule == WEFT_PIPELINE_1F1B;
    c->parallel.data_parallel_sharding_strategy = WEFT_SHARD_OPTIM_GRADS_PARAMS;
    c->parallel.use_distributed_optimizer = true;
    return can;
}

static weft_status fits(searching *s, const weft_config *config, bool *out)
{
    weft_plan plan;
    const weft_status status =
        weft_plan_start(config, s->space->source, s->space->cluster, &s->scratch, &plan);
    *out = status == WEFT_OK && plan.fits;
    if (status == WEFT_OK)
        weft_plan_release(&plan);
    weft_arena_reset(&s->scratch);
    if (status != WEFT_CONFIG)
        return status;
    weft_error_clear();
    return WEFT_OK;
}

/* The first change that makes a miss fit: one alone, then all so far together; else the memory. */
static weft_status find_remedy(searching *s, weft_missed *m)
{
    static const struct {
        bool (*change)(weft_config *);
        bool again;
        const char *text;
    } changes[] = {{halve_batch, true, "micro-batches of "},
                   {share_all, false, "zero 3"},
                   {recompute_all, false, "recompute full"}};
    weft_config all = m->config;
    char text[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes && !m->of_host; i++) {
        weft_config alone = m->config;
        bool can = changes[i].change(&alone), does = false;
        while (can && !does) {
            WEFT_TRY(fits(s, &alone, &does));
            can = !does && changes[i].again && changes[i].change(&alone);
        }
        char batch[24] = "";
        if (changes[i].again)
            snprintf(batch, sizeof batch, "%lld", (long long)alone.train.micro_batch_size);
        if (does)
            return weft_arena_printf(s->arena, &m->remedy, "%s%s", changes[i].text, batch);
        const bool changed = changes[i].change(&all);
        while (changed && changes[i].again && changes[i].change(&all))
            continue;
        if (changed)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s",
                                     used > 0 ? ", " : "", changes[i].text, batch);
        if (used > 0)
            WEFT_TRY(fits(s, &all, &does));
        if (does)
            return weft_arena_printf(s->arena, &m->remedy, "%s", text);
    }
    return weft_arena_printf(s->arena, &m->remedy, "%s more of %s",
                             weft_bytes_text((double)m->short_by_bytes).text,
                             m->of_host ? "host memory" : "memory");
}

/* Bounds are below footprints: the nearest are known once the next one's bound is above theirs. Of
 * each mesh a few are planned. */
static weft_status describe_misses(searching *s, weft_search_result *out)
{
    enum { MOST_PLANNED = 32, MOST_OF_A_MESH = 3 };
    int planned = 0;
    WEFT_TRY(WEFT_ARRAY(s->arena, WEFT_MAX_MISSES + 1, &out->misses));
    if (s->num_misses > 0)
        qsort(s->misses, s->num_misses, sizeof *s->misses, compare_misses);
    for (size_t i = 0; i < s->num_misses && planned < MOST_PLANNED; i++) {
        const miss *m = &s->misses[i];
        int before = 0;
        if (out->num_misses == WEFT_MAX_MISSES &&
            m->short_by > out->misses[WEFT_MAX_MISSES - 1].short_by_bytes)
            break;
        for (size_t k = 0; k < i; k++)
            before += same_mesh(&s->misses[k].candidate, &m->candidate);
        if (before >= MOST_OF_A_MESH)
            continue;
        weft_config config;
        weft_plan plan;
        weft_space_apply(s->space, &m->candidate, &config);
        weft_status status =
            weft_plan_start(&config, s->space->source, s->space->cluster, &s->scratch, &plan);
        if (status == WEFT_OK && !plan.fits) {
            status = lay_miss(s, &m->candidate, &config, &plan, out);
            planned++;
        }
        if (status == WEFT_OK)
            weft_plan_release(&plan);
        weft_arena_reset(&s->scratch);
        if (status != WEFT_CONFIG)
            WEFT_TRY(status);
        weft_error_clear();
    }
    for (int i = 0; i < out->num_misses; i++)
        WEFT_TRY(find_remedy(s, &out->misses[i]));
    return WEFT_OK;
}

/* The first rule that refused something. */
static weft_status no_legal_mesh(const searching *s, const weft_candidate_list *list)
{
    const weft_search_space *space = s->space;
    const weft_config *c = &space->config;
    const char *why = s->counts.illegal > list->illegal ? s->first_error.text : list->why;
    if (why[0])
        return WEFT_ERROR(WEFT_CONFIG, "no mesh of %s is legal; first: %s",
                          weft_count_text(space->world, "device").text, why);
    return WEFT_ERROR(
        WEFT_CONFIG,
        "no mesh of %s is legal: tp divides %lld heads and a node's %d devices, pp is "
        "at most %lld, dp divides a batch of %lld, cp leaves %lld tokens",
        weft_count_text(space->world, "device").text, (long long)c->model.num_attention_heads,
        space->cluster->ranks_per_node, (long long)c->model.num_layers,
        (long long)c->train.global_batch_size, (long long)space->least_tokens);
}

static weft_status search(searching *s, weft_search_result *out, bool *no_sizes)
{
    weft_candidate_list list;
    weft_status status = weft_space_list(s->space, &list);
    *no_sizes = list.count == 0;
    s->counts.illegal = s->counts.considered = list.illegal;
    s->num_listed = list.count;
    for (; s->num_seen < list.count && status == WEFT_OK && !weft_stop_asked(); s->num_seen++) {
        status = consider(s, &list.values[s->num_seen], s->num_seen);
        tell_progress(s);
    }
    if (status == WEFT_OK)
        status = find_best(s);
    out->num_open = s->heap.count - s->counts.bound + list.count - s->num_seen;
    out->is_stopped = weft_stop_asked() && out->num_open > 0;
    if (status == WEFT_OK && s->counts.illegal == s->counts.considered && !out->is_stopped)
        status = no_legal_mesh(s, &list);
    weft_candidate_list_release(&list);
    WEFT_TRY(status);
    if (s->num_lacking > 0 && s->num_best == 0)
        return weft_error_put(&s->first_lack);
    if (s->num_lacking > 0)
        WEFT_TRY(weft_arena_printf(s->arena, &out->lacking, "%zu candidates are left out: %s",
                                   s->num_lacking, s->first_lack.text));
    out->counts = s->counts;
    WEFT_TRY(describe_best(s, out));
    return out->is_stopped ? WEFT_OK : describe_misses(s, out);
}

static weft_status search_nodes(const weft_config *config, const weft_config_source *source,
                                const weft_cluster *cluster, int nodes,
                                const weft_search_options *options, weft_arena *arena,
                                weft_search_result *out, bool *no_sizes)
{
    const weft_search_space space =
        weft_space_of(config, source, cluster, nodes, options->least_tokens);
    searching s = {.space = &space,
                   .top = options->top > 0 ? options->top : 1,
                   .below_us = options->below_us > 0 ? options->below_us : INFINITY,
                   .ranges = options->ranges,
                   .progress = options->progress,
                   .arena = arena};
    weft_status status = WEFT_ARRAY(&s.lists, (size_t)s.top, &s.best);
    if (status == WEFT_OK)
        status = weft_bounds_create(&space, &s.bounds);
    if (status == WEFT_OK)
        status = search(&s, out, no_sizes);
    out->world = space.world;
    out->num_nodes = nodes;
    weft_bounds_destroy(s.bounds);
    weft_arena_release(&s.scratch);
    weft_arena_release(&s.lists);
    free(s.heap.values);
    return status;
}

/* The same cluster, where it has fewer nodes, with so many. */
static weft_status with_nodes(const weft_cluster *cluster, int nodes, weft_arena *arena,
                              const weft_cluster **out)
{
    *out = cluster;
    if (nodes <= cluster->num_nodes)
        return WEFT_OK;
    if (cluster->num_groups > 0)
        return WEFT_ERROR(WEFT_CONFIG, "%d nodes, and the groups of cluster \"%s\" are %d", nodes,
                          cluster->name, cluster->num_nodes);
    weft_cluster *larger;
    WEFT_TRY(weft_arena_alloc(arena, sizeof *cluster, &larger));
    *larger = *cluster;
    larger->num_nodes = nodes;
    *out = larger;
    return WEFT_OK;
}

static weft_status add_prices(const weft_cluster *cluster, weft_arena *arena, weft_config *config)
{
    weft_cluster *curves;
    WEFT_TRY(weft_arena_alloc(arena, sizeof *cluster, &curves));
    *curves = *cluster;
    weft_cost_complete(curves);
    config->planned_curves = curves;
    return weft_layer_prices_create(arena, &config->planned_prices);
}

/* Where no legal mesh has all devices, fewer nodes are taken. */
weft_status weft_search_run(const weft_config *config, const weft_config_source *source,
                            const weft_cluster *cluster, const weft_search_options *options,
                            weft_arena *arena, weft_search_result *out)
{
    const int asked = options->nodes > 0 ? options->nodes : cluster->num_nodes;
    const weft_cluster *on;
    weft_config planned = *config;
    weft_error first = {0};
    if (config->plain_kernels)
        return WEFT_ERROR(WEFT_CONFIG, "--kernels plain: of one mesh; nothing runs them, and "
                                       "--search looks for what runs");
    if (config->software)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--software: of one mesh; Weft runs none, and --search looks "
                          "for what runs");
    WEFT_TRY(with_nodes(cluster, asked, arena, &on));
    WEFT_TRY(add_prices(on, arena, &planned));
    *out = (weft_search_result){0};
    for (int nodes = asked; nodes > 0; nodes--) {
        bool no_sizes = false;
        if (is_time_to_tell(options->progress))
            weft_log(WEFT_LOG_INFO, "%s on %s: no mesh of more is legal", options->progress->what,
                     weft_count_text((int64_t)nodes * on->ranks_per_node, "device").text);
        const weft_status status =
            search_nodes(&planned, source, on, nodes, options, arena, out, &no_sizes);
        out->num_devices = asked * on->ranks_per_node;
        out->cluster = on;
        if (status == WEFT_OK && nodes < asked)
            WEFT_TRY(weft_arena_strdup(arena, first.text, &out->unused));
        if (status != WEFT_CONFIG || options->all_devices || !no_sizes)
            return status;
        if (nodes == asked)
            weft_error_take(&first);
        else
            weft_error_clear();
        *out = (weft_search_result){0};
    }
    return weft_error_put(&first);
}

/* --- the config of a plan ------------------------------------------------------------------ */

weft_status weft_search_settle(const weft_found *found, const weft_config_source *source,
                               const weft_cluster *cluster, weft_arena *arena, weft_config *out)
{
    weft_mesh_choice *choice; /* which the config borrows from */
    weft_moe_selection moe;
    weft_plan plan;
    *out = found->config;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &choice));
    WEFT_TRY(weft_plan_start(&found->config, source, cluster, arena, &plan));
    const weft_mesh mesh = plan.mesh;
    *choice = plan.mesh_choice;
    weft_plan_release(&plan);
    WEFT_TRY(weft_moe_selection_start(&found->config, &mesh, &choice->nodes, &moe));
    weft_mesh_keep(choice, &mesh, &out->parallel);
    if (mesh.attention_chunks == 1 && mesh.mlp_chunks == 1) {
        out->parallel.tp_comm_overlap = false;
        choice->chunks[0] = 0;
        out->parallel.tp_comm_overlap_chunks =
            (weft_int_list){.values = choice->chunks, .count = 1};
    }
    if (out->parallel.cp_comm_type == WEFT_NUM_CONTEXT_FORMS) /* of one rank */
        out->parallel.cp_comm_type = WEFT_CONTEXT_P2P;
    weft_moe_selection_keep(&moe, &out->schedule);
    if (out->schedule.moe_num_partitions == 0) { /* nothing travels */
        out->schedule.moe_num_partitions = 1;
        out->schedule.moe_partition_by = WEFT_MOE_PARTITION_BY_AUTO;
    }
    if (!moe.travels && out->schedule.moe_memory_reuse == WEFT_NUM_REUSES)
        out->schedule.moe_memory_reuse = WEFT_REUSE_NONE;
    out->schedule.cluster = "";
    out->planned_on = out->planned_curves = NULL;
    out->planned_prices = NULL;
    return WEFT_OK;
}
