#include "launcher/planning/tier_price.h"

#include <math.h>
#include <string.h>

#include "core/arena.h"
#include "parallel/records/records.h"
#include "schedule/moe/inside.h"

/* --- the experts' file ----------------------------------------------------------------------- */

/* The records that a rank's step works on are listed once, in order; from then on a cache of as
 * many places as host memory has for them (parallel/records/records.h) takes every step's uses
 * after the other, and what a use has to write back and to read is what it takes then. */

/* By set of parts, which go as one batch (parallel/spill/spill.h). */
enum { WEFT_RECORD_SETS = 1 << WEFT_NUM_RECORD_PARTS };

typedef struct weft_file_rates {
    double read_us[WEFT_RECORD_SETS], write_us[WEFT_RECORD_SETS];
} weft_file_rates;

/* Microseconds of the file. */
typedef struct file_times {
    double write_us, read_us;
} file_times;

/* Parts of what lies in a filed, as in parallel/records/records.c. */
typedef struct filed {
    int32_t record; /* -1: none */
    unsigned here, differ;
} filed;

typedef struct file_walk {
    weft_records_sizes sizes;
    weft_spill_eviction eviction;
    weft_file_rates rates;
    weft_arena *arena;
    int32_t *uses; /* of a step */
    size_t num_uses, capacity;
    weft_spill_cache *cache; /* NULL: uses are listed */
    filed *places;
    uint8_t *in_file; /* of records: parts that were changed */
    weft_file_bytes bytes;
} file_walk;

/* From the arena. */
static weft_status file_walk_make(const weft_records_sizes *sizes, weft_spill_eviction eviction,
                                  const weft_file_rates *rates, weft_arena *arena, file_walk **out)
{
    file_walk *w;
    WEFT_TRY(weft_arena_alloc(arena, sizeof **out, &w));
    *w = (file_walk){.sizes = *sizes, .eviction = eviction, .rates = *rates, .arena = arena};
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)sizes->num_places, &w->places));
    for (int32_t i = 0; i < sizes->num_places; i++)
        w->places[i] = (filed){.record = -1};
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)sizes->num_records, &w->in_file));
    *out = w;
    return WEFT_OK;
}

/* The first step: uses are listed, and nothing is read or written. Behind it the list is taken for
 * every step's. */
static weft_status file_walk_learn(file_walk *w)
{
    if (w->cache)
        return WEFT_OK;
    const size_t planned = w->eviction == WEFT_SPILL_PROGRAM ? w->num_uses : 0;
    WEFT_TRY(weft_spill_cache_create(w->sizes.num_places, w->sizes.num_records, planned,
                                     w->eviction, w->arena, &w->cache));
    return planned > 0 ? weft_spill_cache_plan(w->cache, w->uses, w->num_uses, true) : WEFT_OK;
}

static weft_status list(file_walk *w, int32_t record)
{
    WEFT_TRY(WEFT_ARENA_GROW(w->arena, w->uses, w->capacity, w->num_uses + 1));
    w->uses[w->num_uses++] = record;
    return WEFT_OK;
}

/* Bytes of a set of parts in the file. */
static uint64_t record_set_bytes(const weft_records_sizes *sizes, unsigned parts)
{
    uint64_t bytes = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        bytes += parts >> part & 1 ? weft_spill_padded_bytes(sizes->part_bytes[part]) : 0;
    return bytes;
}

/* A use as weft_records_take is told of it. Errors: WEFT_INTERNAL (not the use that was listed). */
static weft_status file_walk_use(file_walk *w, int32_t record, unsigned reads, unsigned changes,
                                 file_times *out)
{
    weft_spill_use use;
    *out = (file_times){0};
    if (!w->cache)
        return list(w, record);
    WEFT_TRY(weft_spill_cache_use(w->cache, record, changes != 0, &use));
    filed *p = &w->places[use.place];
    if (use.is_miss) {
        out->write_us = w->rates.write_us[p->differ];
        w->bytes.written += record_set_bytes(&w->sizes, p->differ);
        if (p->record >= 0)
            w->in_file[p->record] |= (uint8_t)p->differ;
        *p = (filed){.record = record};
    }
    const unsigned missing = reads & ~p->here & w->in_file[record];
    out->read_us = w->rates.read_us[missing];
    w->bytes.read += record_set_bytes(&w->sizes, missing);
    p->here |= reads | changes;
    p->differ |= changes;
    return WEFT_OK;
}

/* As weft_records_drop. */
static void file_walk_drop(file_walk *w, int32_t record, unsigned parts)
{
    const int32_t index = w->cache ? weft_spill_cache_place(w->cache, record) : -1;
    w->in_file[record] &= (uint8_t)~parts;
    if (index >= 0)
        w->places[index].differ &= ~parts;
}

typedef struct tier_layer {
    weft_experts_shape shape;
    weft_program programs[2]; /* of the experts; of partitions by experts, with theirs inside */
    bool is_cut;              /* the latter */
    double alone_us[WEFT_NUM_HALVES]; /* a program whose experts wait for nothing */
    weft_expert_costs costs;
    const double *shares;                  /* [positions] */
    double parts[WEFT_MOE_MAX_PARTITIONS]; /* of partitions, likewise */
    bool is_even; /* every micro-batch has the same experts at the same positions */
    int *buckets; /* [positions]: of the stage, as their updates come; NULL: of no step */
    int num_buckets;
    bool has_gradient; /* of a micro-batch of the step */
    bool in_order;     /* updates come in the order of positions */
} tier_layer;

/* A slot of weights on the device; anyone's may hold what whoever comes next looks for. */
enum { ANYONES = -2 };
typedef struct place {
    double filled_us, used_us;
    int layer, position; /* whose they are, */
    uint32_t pass;       /* of a micro-batch */
} place;

struct weft_tier_walk {
    const weft_outline *outline;
    const weft_program *step;
    const weft_buckets *buckets;
    int stage, num_slots;
    uint32_t num_tasks;            /* of the longest program */
    tier_layer *layers;            /* by the outline's; num_positions 0: none of the experts */
    const weft_pass_price *prices; /* likewise */
    place *slots;
    double gradient_us[WEFT_TIER_GRADIENTS], staging_us[WEFT_EXPERTS_STAGING];
    weft_lanes lanes;
    double busy_us[WEFT_NUM_LANES];
    double started_us; /* the last pass */
    double *ends_us;   /* of a program's tasks */
    double *wait_us;   /* [num_tasks] of the step */
    double *landed_us;
    double *stepped_us;       /* by bucket: of weft_tier_begin_step */
    file_walk *file;          /* NULL: no expert is in one */
    bool is_unknown;          /* nobody knows what it takes */
    bool file_is_known;       /* what a step reads and writes is as in any other */
    file_times (*file_us)[2]; /* by bucket: of the update, whole and of the gradient alone */
    double read_us;           /* of the read that follows a write */
    double *used_us;          /* of places in host memory: what is done last there is over */
    weft_status status;       /* of the first use that was not foreseen */
};

/* A layer's program at hand. */
typedef struct running {
    weft_tier_walk *walk; /* NULL: experts wait for nothing */
    tier_layer *layer;
    int index;     /* of the layer */
    uint32_t pass; /* of which micro-batch; alike for its forward and backward */
    const weft_pass_experts *half;
    const weft_program *program; /* that is walked */
} running;

/* --- what tasks take ----------------------------------------------------------------------- */

weft_status weft_tier_costs(const weft_site *site, const weft_outline *outline, double elements,
                            weft_expert_costs *out)
{
    weft_estimate up, down, add = {0};
    WEFT_TRY(weft_work_us(site, WEFT_COST_TO_DEVICE,
                          elements * (double)weft_dtype_bytes(outline->shape.dtype), &up));
    WEFT_TRY(weft_work_us(site, WEFT_COST_TO_HOST, elements * sizeof(float), &down));
    if (outline->shape.experts_on_host)
        WEFT_TRY(weft_work_us(site, WEFT_COST_ADAMW_HOST, elements * WEFT_TIER_ADD_BYTES, &add));
    out->upload_us = up.us;
    out->download_us = down.us;
    out->accumulate_us = add.us;
    return WEFT_OK;
}

weft_status weft_tier_file_costs(const weft_site *site, const weft_outline *outline,
                                 double elements, bool accumulates, weft_expert_costs *out)
{
    weft_estimate weights, gradient, written;
    WEFT_TRY(weft_work_us(site, WEFT_COST_DIRECT_READ,
                          elements * (double)weft_dtype_bytes(outline->shape.dtype), &weights));
    WEFT_TRY(weft_work_us(site, WEFT_COST_DIRECT_READ, elements * sizeof(float), &gradient));
    WEFT_TRY(weft_work_us(site, WEFT_COST_DIRECT_WRITE, elements * sizeof(float), &written));
    out->read_us[0] = weights.us;
    out->read_us[1] = accumulates ? gradient.us : 0;
    out->write_us[1] = written.us;
    return WEFT_OK;
}

/* Shares that fall by one factor, the first `load` times the mean. */
static void fall(double load, int num, double *out)
{
    double low = 0, high = 1, sum = 0; /* of the factor */
    for (int step = 0; step < 60; step++) {
        const double middle = (low + high) / 2;
        const double first = num * (1 - middle) / (1 - pow(middle, num));
        *(first > load ? &low : &high) = middle;
    }
    for (int q = 0; q < num; q++)
        sum += out[q] = load > 1 ? pow(low, q) : 1;
    for (int q = 0; q < num; q++)
        out[q] /= sum;
}

/* One has `most`, the others the rest. */
static void share_rest(double most, int num, double *out)
{
    for (int q = 0; q < num; q++)
        out[q] = q == 0 ? most : (1 - most) / (num - 1);
}

/* Rows of the fullest expert over the mean where nobody says: routers that begin to learn have had
 * 1.3 to 4.9, most about that. */
#define EXPERT_LOAD 2.0

/* The share of a rank's rows that the expert at each position gets, the most first: alike where
 * routing is forced to be even; at a load that is asked for, or forced, one has all that is beyond
 * the mean; else each a fixed part of the one before it, so that the first has the fullest expert's
 * rows, the run's or EXPERT_LOAD. */
static void share_rows(const weft_config *config, const weft_outline *outline, int num, double *out)
{
    const double load = fmax(1, outline->shape.moe_load), experts = (double)num;
    const double all = (double)config->model.num_experts,
                 forced = fmin(config->model.moe_router_forced_load,
                               all / (double)config->model.moe_router_topk);
    if (config->moe_expert_load > 0)
        fall(fmin(config->moe_expert_load / load, experts), num, out);
    else if (config->moe_load == 0 && forced > 1 && all > 1) /* the first expert's */
        share_rest(forced / (forced + (experts - 1) * (all - forced) / (all - 1)), num, out);
    else if (load > 1 || forced > 0)
        share_rest((1 + (load - 1) * experts) / (load * experts), num, out);
    else
        fall(fmin(EXPERT_LOAD, experts), num, out);
}

/* --- a layer's experts --------------------------------------------------------------------- */

/* When the position's expert has its weights of the step before. Where updates come in another
 * order than positions (of several owners all update in the order of numbers), which one it is
 * follows from chance, and uploads stand behind each other: of q + 1 of n drawn ones the last is
 * taken. */
static double stepped_us(const weft_tier_walk *w, const tier_layer *l, int position)
{
    const int last = l->shape.num_positions - 1;
    if (!l->buckets)
        return -INFINITY;
    if (l->in_order)
        return w->stepped_us[l->buckets[position]];
    const int drawn = (int)((double)last * (position + 1) / (position + 2) + 0.5);
    return w->stepped_us[l->buckets[drawn]];
}

static bool is_up(const running *r, const weft_task *task)
{
    const weft_experts_shape *shape = &r->layer->shape;
    const place *to = &r->walk->slots[(task->expert - shape->num_kept) % shape->num_slots];
    return to->layer == ANYONES || (to->layer == r->index && to->position == task->expert &&
                                    (to->pass == r->pass || r->layer->is_even));
}

/* A use of a bucket's record. */
static file_times use_record(weft_tier_walk *w, int bucket, unsigned reads, unsigned changes)
{
    file_times us;
    const weft_status status =
        file_walk_use(w->file, w->buckets->shapes[bucket].index, reads, changes, &us);
    if (w->status == WEFT_OK)
        w->status = status;
    return us;
}

/* When the work is over that was done last in a bucket's place: whoever comes next there waits.
 * NULL: it is in none. */
static double *place_used_us(weft_tier_walk *w, int bucket)
{
    int32_t at = -1;
    if (bucket >= 0 && w->file && w->file->cache)
        at = weft_spill_cache_place(w->file->cache, w->buckets->shapes[bucket].index);
    return at < 0 ? NULL : &w->used_us[at];
}

/* -1: of no step. */
static int bucket_of(const running *r, const weft_task *task)
{
    return r->layer->buckets ? r->layer->buckets[task->expert] : -1;
}

/* When work of so long is over in the place. */
static double end_in_place(const running *r, const weft_task *task, double at, double us)
{
    double *used = place_used_us(r->walk, bucket_of(r, task));
    at = (used ? fmax(at, *used) : at) + us;
    if (used)
        *used = at;
    return at;
}

/* A gradient is in host memory. */
static void land(const running *r, const weft_task *task, double at)
{
    const int bucket = bucket_of(r, task);
    if (bucket >= 0)
        r->walk->landed_us[bucket] = at;
}

/* A write, then its read: both behind what is done in the place. */
static double file_task(const running *r, const weft_task *task, double at)
{
    weft_tier_walk *w = r->walk;
    const bool of_gradient = task->flow == WEFT_FLOW_GRADIENT;
    const int bucket = bucket_of(r, task);
    double us = 0;
    if (!of_gradient && is_up(r, task))
        return at;
    if (!w->file) /* unknown, or a layer alone, for which nothing has its place */
        return at + weft_experts_task_us(&r->layer->costs, r->layer->shares, task);
    if (weft_task_awaits_step(task, r->program->waits))
        at = fmax(at, stepped_us(w, r->layer, task->expert));
    if (task->kind == WEFT_TASK_WRITE) {
        const file_times times =
            of_gradient
                ? use_record(w, bucket, r->layer->has_gradient ? WEFT_RECORD_G : 0, WEFT_RECORD_G)
                : use_record(w, bucket, WEFT_RECORD_W, 0);
        us = times.write_us;
        w->read_us = times.read_us;
    } else {
        us = w->read_us;
    }
    if (!(us > 0))
        return at;
    w->busy_us[WEFT_LANE_FILE] += us;
    return end_in_place(r, task, at, us);
}

static double upload(const running *r, const weft_task *task, double at)
{
    const weft_experts_shape *shape = &r->layer->shape;
    if (task->expert < shape->num_kept)
        return at;
    place *to = &r->walk->slots[(task->expert - shape->num_kept) % shape->num_slots];
    if (is_up(r, task)) {
        *to = (place){to->filled_us, to->used_us, r->index, task->expert, r->pass};
        return at;
    }
    at = fmax(at, fmax(to->used_us, stepped_us(r->walk, r->layer, task->expert)));
    at = end_in_place(r, task, at, r->layer->costs.upload_us);
    r->walk->busy_us[WEFT_LANE_TO_DEVICE] += r->layer->costs.upload_us;
    *to = (place){at, at, r->index, task->expert, r->pass};
    return at;
}

static double compute(const running *r, const weft_task *task, double at, double us)
{
    const weft_experts_shape *shape = &r->layer->shape;
    place *weights = task->expert < shape->num_kept
                         ? NULL
                         : &r->walk->slots[(task->expert - shape->num_kept) % shape->num_slots];
    at = fmax(at, weights ? weights->filled_us : stepped_us(r->walk, r->layer, task->expert));
    if (task->flow == WEFT_FLOW_GRADIENT)
        at = fmax(at, r->walk->gradient_us[task->expert % WEFT_TIER_GRADIENTS]);
    at += us;
    if (weights)
        weights->used_us = at;
    return at;
}

/* A step's first gradient stays where it lands. */
static double download(const running *r, const weft_task *task, double at, double us)
{
    weft_tier_walk *w = r->walk;
    if (r->layer->has_gradient)
        at = fmax(at, w->staging_us[task->expert % WEFT_EXPERTS_STAGING]) + us;
    else
        at = end_in_place(r, task, at, us);
    w->busy_us[WEFT_LANE_TO_HOST] += us;
    w->gradient_us[task->expert % WEFT_TIER_GRADIENTS] = at;
    land(r, task, at);
    return at;
}

static double accumulate(const running *r, const weft_task *task, double at, double us)
{
    weft_tier_walk *w = r->walk;
    if (!r->layer->has_gradient)
        return at;
    at = end_in_place(r, task, at, us);
    w->busy_us[WEFT_LANE_HOST] += us;
    w->staging_us[task->expert % WEFT_EXPERTS_STAGING] = at;
    land(r, task, at);
    return at;
}

/* Of a partition's task. The counts are known, and experts take what theirs do. */
static double own_us(const running *r, const weft_task *task)
{
    return task->kind == WEFT_TASK_COUNTS || task->kind == WEFT_TASK_EXPERT
               ? 0
               : r->half->task_us[task->kind] * r->layer->parts[task->part];
}

static double end_of(void *context, const weft_task *task, double at)
{
    const running *r = context;
    const tier_layer *l = r->layer;
    if (task->expert < 0)
        return at + own_us(r, task);
    const double us = weft_experts_task_us(&l->costs, l->shares, task);
    if (!(l->shares[task->expert] > 0))
        return at;
    if (!r->walk)
        return task->kind == WEFT_TASK_EXPERT ? at + us : at;
    switch (task->kind) {
    case WEFT_TASK_WRITE:
    case WEFT_TASK_READ:
        return file_task(r, task, at);
    case WEFT_TASK_UPLOAD:
        return upload(r, task, at);
    case WEFT_TASK_EXPERT:
        return compute(r, task, at, us);
    case WEFT_TASK_DOWNLOAD:
        return download(r, task, at, us);
    default:
        return accumulate(r, task, at, us);
    }
}

/* Until all is over but what runs on beside the layer. */
static double run_program(running *r, bool backward, double at, weft_lanes *lanes, double *ends_us)
{
    double *us = lanes->us;
    us[WEFT_LANE_COMPUTE] = us[WEFT_LANE_EXPERT] = at;
    r->program = &r->layer->programs[backward];
    weft_program_in_order(r->program, end_of, r, lanes, ends_us);
    return fmax(us[WEFT_LANE_COMPUTE], us[WEFT_LANE_EXPERT]);
}

/* The experts of a half of a pass that reaches the layer at `at`: what they wait, and until when
 * they compute, or their answers are home. Partitions have their way there, and home, in their
 * program. */
static double walk_experts(running *r, const weft_pass_price *price, int half, double at,
                           double *out_end)
{
    const bool backward = half == WEFT_HALF_BACKWARD;
    r->half = &price->experts[half];
    at += r->half->before_us;
    if (!r->layer->is_cut)
        at += r->half->task_us[WEFT_TASK_PERMUTE] + r->half->task_us[WEFT_TASK_DISPATCH];
    *out_end = run_program(r, backward, at, &r->walk->lanes, r->walk->ends_us);
    r->layer->has_gradient |= backward;
    return fmax(0, *out_end - at - r->layer->alone_us[half]);
}

/* --- making -------------------------------------------------------------------------------- */

/* Layers' buckets in the order of their last tasks' updates. */
static weft_status find_buckets(weft_tier_walk *w)
{
    const bool in_file = w->outline->tier.experts == WEFT_TIER_FILE;
    for (uint32_t i = 0; i < w->step->num_tasks; i++) {
        const weft_task *task = &w->step->tasks[i];
        if (task->kind != WEFT_TASK_STEP || task->bucket < 0)
            continue;
        const weft_bucket_shape *shape = &w->buckets->shapes[task->bucket];
        if (!weft_bucket_is_offloaded(shape))
            continue;
        tier_layer *l = &w->layers[shape->layer];
        l->in_order = !weft_bucket_gathers(shape) && !in_file;
        if (l->num_buckets < l->shape.num_positions)
            l->buckets[l->num_buckets++] = task->bucket;
    }
    for (int l = 0; l < w->outline->num_layers; l++)
        if (w->layers[l].num_buckets != w->layers[l].shape.num_positions)
            return WEFT_ERROR(WEFT_INTERNAL, "layer %d has %d experts and %d of their buckets", l,
                              w->layers[l].shape.num_positions, w->layers[l].num_buckets);
    return WEFT_OK;
}

/* Puts experts into the layer's programs. */
static weft_status cut_layer(const weft_moe_pipeline *pipeline, const weft_pass_experts *halves,
                             weft_arena *arena, tier_layer *out)
{
    const weft_program experts[] = {out->programs[0], out->programs[1]};
    const weft_moe_inside inside = {.experts = experts,
                                    .num_positions = out->shape.num_positions,
                                    .num_partitions = pipeline->num_partitions};
    weft_program plain;
    double *ends_us;
    int first, end;
    out->is_cut = true;
    for (int p = 0; p < inside.num_partitions; p++) {
        weft_moe_run_of(inside.num_positions, inside.num_partitions, p, &first, &end);
        for (int q = first; q < end; q++)
            out->parts[p] += out->shares[q];
    }
    for (int half = 0; half < WEFT_NUM_HALVES; half++) {
        const bool backward = half == WEFT_HALF_BACKWARD;
        running r = {.layer = out, .half = &halves[half]};
        weft_lanes lanes = {.host_us = 0};
        if (half != WEFT_HALF_AGAIN) {
            WEFT_TRY(weft_program_moe(pipeline, backward, arena, &plain));
            WEFT_TRY(weft_program_moe_inside(&plain, &inside, arena, &out->programs[backward]));
        }
        WEFT_TRY(WEFT_ARRAY(arena, out->programs[backward].num_tasks, &ends_us));
        out->alone_us[half] = run_program(&r, backward, 0, &lanes, ends_us);
    }
    return WEFT_OK;
}

static weft_status make_layer(weft_tier_walk *w, const weft_site *site, const weft_config *config,
                              int layer, weft_arena *arena)
{
    const weft_outline_layer *described = &w->outline->layers[layer];
    const weft_pass_experts *halves = w->prices[layer].experts;
    const weft_moe_pipeline pipeline = weft_shape_pipeline(&w->outline->shape);
    const int num = described->num_experts;
    tier_layer *out = &w->layers[layer];
    double *shares = NULL;
    out->shape = weft_tier_shape(&w->outline->tier, num, 1, w->outline->accumulates);
    WEFT_TRY(weft_tier_costs(site, w->outline, (double)described->expert_elements, &out->costs));
    for (int backward = 0; backward < 2; backward++) {
        WEFT_TRY(weft_program_experts(&out->shape, backward, arena, &out->programs[backward]));
        out->costs.row_us[backward] = out->alone_us[backward] =
            halves[backward].task_us[WEFT_TASK_EXPERT];
    }
    out->alone_us[WEFT_HALF_AGAIN] = out->alone_us[WEFT_HALF_FORWARD];
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num, &shares));
    share_rows(config, w->outline, num, shares);
    out->shares = shares;
    out->is_even = shares[0] <= shares[num - 1] * (1 + 1e-9);
    if (pipeline.num_partitions > 1)
        WEFT_TRY(cut_layer(&pipeline, halves, arena, out));
    for (int backward = 0; backward < 2; backward++)
        if (out->programs[backward].num_tasks > w->num_tasks)
            w->num_tasks = out->programs[backward].num_tasks;
    if (out->shape.num_slots > w->num_slots)
        w->num_slots = out->shape.num_slots;
    return WEFT_OK;
}

/* Of the stage's. Layers that are alike share their programs. */
static weft_status make_layers(weft_tier_walk *w, const weft_site *site, const weft_config *config,
                               weft_arena *arena)
{
    int first, end, last = -1;
    for (int c = 0; c < w->outline->layout.num_chunks; c++) {
        weft_layout_range(&w->outline->layout, w->stage, c, &first, &end);
        for (int l = first; l < end; l++) {
            if (w->outline->layers[l].num_experts == 0)
                continue;
            if (last >= 0 && weft_pass_same_layer(w->outline, last, l))
                w->layers[l] = w->layers[last];
            else
                WEFT_TRY(make_layer(w, site, config, l, arena));
            WEFT_TRY(
                WEFT_ARRAY(arena, (size_t)w->layers[l].shape.num_positions, &w->layers[l].buckets));
            last = l;
        }
    }
    return WEFT_OK;
}

static weft_status make_state(weft_tier_walk *w, weft_arena *arena)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)w->num_slots + 1, &w->slots));
    return WEFT_ARRAY(arena, w->num_tasks, &w->ends_us);
}

/* A world smaller than a node has all of the node's storage. pace: bytes/s of a rank's file; 0: as
 * the storage has it. */
static weft_status file_rates(const weft_site *site, const weft_records_sizes *sizes, int world,
                              double pace, weft_file_rates *out)
{
    const double share = fmin(1, (double)world / site->cluster->ranks_per_node);
    *out = (weft_file_rates){0};
    for (unsigned parts = 1; pace > 0 && parts < WEFT_RECORD_SETS; parts++)
        out->read_us[parts] = out->write_us[parts] =
            1e6 * (double)record_set_bytes(sizes, parts) / pace;
    if (pace > 0)
        return WEFT_OK;
    for (unsigned parts = 1; parts < WEFT_RECORD_SETS; parts++) {
        const double bytes = share * (double)record_set_bytes(sizes, parts);
        weft_estimate read, write;
        WEFT_TRY(weft_work_us(site, WEFT_COST_DIRECT_READ, bytes, &read));
        WEFT_TRY(weft_work_us(site, WEFT_COST_DIRECT_WRITE, bytes, &write));
        out->read_us[parts] = read.us;
        out->write_us[parts] = write.us;
    }
    return WEFT_OK;
}

/* The places of the footprint. */
static weft_status make_file(weft_tier_walk *w, const weft_site *site, const weft_config *config,
                             int world, weft_arena *arena)
{
    const weft_dtype dtype = w->outline->shape.dtype;
    const weft_experts_file file =
        weft_tier_file(&w->outline->tier, weft_tier_state_bytes(dtype, config->train.split_master));
    uint64_t largest = 0;
    int num = 0, owners = 1;
    weft_file_rates rates;
    for (int b = 0; b < w->buckets->count; b++) {
        const weft_bucket_shape *shape = &w->buckets->shapes[b];
        if (!weft_bucket_is_in_file(shape))
            continue;
        largest = shape->elements > largest ? shape->elements : largest;
        owners = shape->owners;
        num++;
    }
    if (num == 0)
        return WEFT_OK;
    const weft_records_sizes sizes =
        weft_experts_file_sizes(&file, dtype, largest, largest / (size_t)owners, num, true);
    const double pace = weft_config_pace(config).file;
    if (file_rates(site, &sizes, world, pace, &rates) != WEFT_OK) { /* the cluster does not tell */
        weft_error_clear();
        w->is_unknown = true;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)w->buckets->count, &w->file_us));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)sizes.num_places, &w->used_us));
    return file_walk_make(&sizes, file.eviction, &rates, arena, &w->file);
}

weft_status weft_tier_walk_make(const weft_site *site, const weft_config *config,
                                const weft_step *step, int world, int stage,
                                const weft_pass_price *prices, weft_arena *arena,
                                weft_tier_walk **out)
{
    const weft_outline *outline = &step->outline;
    weft_tier_walk *w = NULL;
    *out = NULL;
    if (!outline->shape.experts_on_host)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &w));
    *w = (weft_tier_walk){.outline = outline,
                          .step = &step->programs[stage],
                          .buckets = &step->shape.buckets[stage],
                          .stage = stage,
                          .prices = prices};
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)outline->num_layers, &w->layers));
    WEFT_TRY(make_layers(w, site, config, arena));
    if (w->num_tasks == 0)
        return WEFT_OK;
    WEFT_TRY(find_buckets(w));
    WEFT_TRY(make_state(w, arena));
    WEFT_TRY(WEFT_ARRAY(arena, w->step->num_tasks, &w->wait_us));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)w->buckets->count, &w->landed_us));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)w->buckets->count, &w->stepped_us));
    WEFT_TRY(make_file(w, site, config, world, arena));
    *out = w;
    return WEFT_OK;
}

/* --- a step -------------------------------------------------------------------------------- */

/* What the experts of a layer wait in a pass that reaches the layer at `at`, and that computes them
 * again ahead of a backward. *out_us: what the layer takes without that. */
static double walk_layer(running *r, const weft_pass_price *price, bool backward, double at,
                         double *out_us)
{
    weft_lanes *lanes = &r->walk->lanes;
    double wait = 0, end;
    *out_us = weft_pass_us(backward ? &price->backward : &price->forward);
    if (backward && price->recompute.compute_us > 0)
        *out_us += weft_pass_us(&price->recompute);
    if (r->layer->shape.num_positions == 0)
        return 0;
    lanes->host_goes_on = backward; /* the counts are known */
    if (backward && price->experts[WEFT_HALF_AGAIN].task_us[WEFT_TASK_EXPERT] > 0) {
        wait = walk_experts(r, price, WEFT_HALF_AGAIN, at, &end);
        at = end;
    }
    if (!backward)
        lanes->host_us = fmax(lanes->host_us, at + price->experts[WEFT_HALF_FORWARD].before_us);
    return wait +
           walk_experts(r, price, backward ? WEFT_HALF_BACKWARD : WEFT_HALF_FORWARD, at, &end);
}

enum { STEPPED = WEFT_RECORD_W | WEFT_RECORD_S, ALL_PARTS = STEPPED | WEFT_RECORD_G };

static void use_whole(weft_tier_walk *w, int bucket)
{
    w->file_us[bucket][0] = use_record(w, bucket, ALL_PARTS, STEPPED);
    file_walk_drop(w->file, w->buckets->shapes[bucket].index, WEFT_RECORD_G);
}

/* What the update reads and writes; at once: of a layer, behind its last backward, on the lane
 * ahead of what the layers below read. */
static void update_layer(weft_tier_walk *w, int layer)
{
    for (int b = 0; b < w->buckets->count; b++) {
        const weft_bucket_shape *shape = &w->buckets->shapes[b];
        if (!weft_bucket_is_in_file(shape) || shape->layer != layer)
            continue;
        use_whole(w, b);
        w->lanes.us[WEFT_LANE_FILE] = fmax(w->lanes.us[WEFT_LANE_FILE], w->landed_us[b]) +
                                      w->file_us[b][0].write_us + w->file_us[b][0].read_us;
    }
}

static bool steps_at_once(const weft_tier_walk *w)
{
    for (int b = 0; b < w->buckets->count; b++)
        if (weft_bucket_is_in_file(&w->buckets->shapes[b]))
            return w->buckets->shapes[b].at_once && !weft_bucket_reduces(&w->buckets->shapes[b]);
    return false;
}

/* Behind the passes. */
static void update_all(weft_tier_walk *w)
{
    for (int b = 0; b < w->buckets->count; b++) {
        const weft_bucket_shape *shape = &w->buckets->shapes[b];
        if (weft_bucket_is_in_file(shape) && shape->at_once)
            use_whole(w, b);
        else if (weft_bucket_is_in_file(shape))
            w->file_us[b][1] =
                use_record(w, b, WEFT_RECORD_G, weft_bucket_reduces(shape) ? WEFT_RECORD_G : 0);
    }
    for (int b = w->buckets->count - 1; b >= 0; b--)
        if (weft_bucket_is_in_file(&w->buckets->shapes[b]) && !w->buckets->shapes[b].at_once)
            use_whole(w, b);
}

/* Of the chunk's. */
static bool is_last_backward(const weft_tier_walk *w, const weft_task *task)
{
    for (const weft_task *t = task + 1; t < w->step->tasks + w->step->num_tasks; t++)
        if (t->kind == WEFT_TASK_BACKWARD && t->chunk == task->chunk)
            return false;
    return task->kind == WEFT_TASK_BACKWARD;
}

/* What a pass waits that starts then; *out_us: what it takes. */
static double walk_pass(weft_tier_walk *w, const weft_task *task, double start, double *out_us)
{
    const bool backward = task->kind != WEFT_TASK_FORWARD;
    const bool updates = w->file && steps_at_once(w) && is_last_backward(w, task);
    int first, end;
    double at = start, wait = 0;
    w->started_us = start;
    weft_layout_range(&w->outline->layout, w->stage, task->chunk > 0 ? task->chunk : 0, &first,
                      &end);
    for (int i = 0; i < end - first; i++) {
        const int l = backward ? end - 1 - i : first + i;
        running r = {
            .walk = w, .layer = &w->layers[l], .index = l, .pass = (uint32_t)task->micro_batch};
        double us;
        const double waited = walk_layer(&r, &w->prices[l], backward, at, &us);
        at += us + waited;
        wait += waited;
        if (updates)
            update_layer(w, l);
    }
    *out_us = at - start;
    return wait;
}

/* All was over at `us`, and slots hold what this layer looks for; -1: nothing. */
static void rest(weft_tier_walk *w, double us, int layer)
{
    for (int s = 0; s < w->num_slots; s++)
        w->slots[s] = (place){us, us, layer, -1, 0};
    for (int i = 0; i < WEFT_TIER_GRADIENTS; i++)
        w->gradient_us[i] = us;
    for (int i = 0; i < WEFT_EXPERTS_STAGING; i++)
        w->staging_us[i] = us;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        w->lanes.us[lane] = us;
    memset(w->busy_us, 0, sizeof w->busy_us);
    w->lanes.host_us = us;
}

static void begin_step(weft_tier_walk *w, double filed_us)
{
    if (w->file)
        w->file->bytes = (weft_file_bytes){0};
    for (int l = 0; l < w->outline->num_layers; l++)
        w->layers[l].has_gradient = false;
    rest(w, 0, -1);
    w->lanes.us[WEFT_LANE_FILE] = fmax(0, filed_us);
    for (int b = 0; w->file && b < w->buckets->count; b++) {
        double *used = weft_bucket_is_in_file(&w->buckets->shapes[b]) ? place_used_us(w, b) : NULL;
        if (used)
            *used = fmax(0, w->stepped_us[b]);
    }
}

static bool is_pass(const weft_task *task)
{
    return task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD;
}

/* A first step lists what it uses; one finds the file empty, and the next one's places as that one
 * left them. Each pass begins as the one before it ends. */
static weft_status learn_file(weft_tier_walk *w)
{
    enum { STEPS_UNTIL_STEADY = 3 };
    for (int k = 0; k < STEPS_UNTIL_STEADY; k++) {
        double at = 0, us;
        begin_step(w, 0);
        for (const weft_task *task = w->step->tasks; task < w->step->tasks + w->step->num_tasks;
             task++)
            if (is_pass(task)) {
                (void)walk_pass(w, task, at, &us);
                at += us;
            }
        WEFT_TRY(weft_tier_end_step(w));
        WEFT_TRY(file_walk_learn(w->file));
    }
    w->file_is_known = true;
    return WEFT_OK;
}

/* Returns when the step before has read and written all. */
static double find_stepped(weft_tier_walk *w, const weft_span *before, double makespan_us)
{
    double filed_us = -INFINITY;
    for (int b = 0; b < w->buckets->count; b++)
        w->stepped_us[b] = -INFINITY;
    for (uint32_t i = 0; i < w->step->num_tasks && before; i++) {
        const weft_task *task = &w->step->tasks[i];
        const double end_us = before[i].end_us - makespan_us;
        if (task->lane == WEFT_LANE_FILE)
            filed_us = fmax(filed_us, end_us);
        if (task->bucket >= 0 && weft_bucket_is_offloaded(&w->buckets->shapes[task->bucket]) &&
            (task->kind == WEFT_TASK_STEP || task->kind == WEFT_TASK_GATHER ||
             task->kind == WEFT_TASK_UPLOAD))
            w->stepped_us[task->bucket] = fmax(w->stepped_us[task->bucket], end_us);
    }
    return filed_us;
}

weft_status weft_tier_begin_step(weft_tier_walk *w, const weft_span *before, double makespan_us)
{
    const double filed_us = find_stepped(w, before, makespan_us);
    if (w->file && !w->file_is_known)
        WEFT_TRY(learn_file(w));
    begin_step(w, filed_us);
    return WEFT_OK;
}

weft_status weft_tier_end_step(weft_tier_walk *w)
{
    if (w->file && !steps_at_once(w))
        update_all(w);
    return w->status;
}

double weft_tier_enter(weft_tier_walk *w, uint32_t index, double start_us)
{
    const weft_task *task = &w->step->tasks[index];
    double us;
    if (is_pass(task))
        return w->wait_us[index] = walk_pass(w, task, start_us, &us);
    if (task->lane == WEFT_LANE_FILE && w->file && !steps_at_once(w))
        return fmax(0, w->lanes.us[WEFT_LANE_FILE] - start_us);
    return 0;
}

double weft_tier_wait_us(const weft_tier_walk *w, uint32_t task)
{
    return w->wait_us[task];
}

double weft_tier_landed_us(const weft_tier_walk *w, int bucket)
{
    return w->landed_us[bucket] - w->started_us;
}

double weft_tier_file_us(const weft_tier_walk *w, const weft_task *task)
{
    if (!w->file)
        return 0;
    const file_times *us = &w->file_us[task->bucket][task->flow == WEFT_FLOW_GRADIENT];
    return task->kind == WEFT_TASK_READ ? us->read_us : us->write_us;
}

weft_file_bytes weft_tier_file_bytes(const weft_tier_walk *w)
{
    return w->file ? w->file->bytes : (weft_file_bytes){0};
}

double weft_tier_busy_us(const weft_tier_walk *w, weft_lane_kind lane)
{
    return lane == WEFT_LANE_FILE && w->is_unknown ? -1 : w->busy_us[lane];
}

/* --- layers alone --------------------------------------------------------------------------- */

/* Of no step. */
static weft_status make_alone(weft_tier_walk *w, const weft_site *site, const weft_config *config,
                              weft_arena *arena)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)w->outline->num_layers, &w->layers));
    for (int l = 0; l < w->outline->num_layers; l++)
        if (w->outline->layers[l].num_experts > 0)
            WEFT_TRY(make_layer(w, site, config, l, arena));
    return make_state(w, arena);
}

weft_status weft_tier_layer_us(const weft_site *site, const weft_config *config,
                               const weft_outline *outline, const weft_pass_price *price,
                               double *out_us)
{
    weft_tier_walk w = {.outline = outline, .prices = price};
    weft_arena arena = {0};
    weft_status status = make_alone(&w, site, config, &arena);
    *out_us = 0;
    if (status == WEFT_OK && outline->tier.experts == WEFT_TIER_FILE &&
        weft_tier_file_costs(site, outline, (double)outline->layers[0].expert_elements,
                             outline->accumulates, &w.layers[0].costs) != WEFT_OK)
        weft_error_clear(); /* the cluster does not tell: they take no time */
    if (status == WEFT_OK) {
        running r = {.walk = &w, .layer = w.layers};
        begin_step(&w, 0);
        for (int backward = 0; backward < 2; backward++) {
            double us;
            *out_us += walk_layer(&r, price, backward, *out_us, &us);
            *out_us += us;
        }
    }
    weft_arena_release(&arena);
    return status;
}

/* All that was before is long over. has_gradient: of micro-batches before. */
static void walk_least(weft_tier_walk *w, const int *layers, int num, bool backward,
                       bool has_gradient, double *out_us, double *const out_busy_us[2])
{
    double at = 0, wait = 0;
    rest(w, -INFINITY, ANYONES);
    for (int i = 0; i < num; i++) {
        running r = {.walk = w, .layer = &w->layers[layers[i]], .index = i};
        double us;
        r.layer->has_gradient = has_gradient;
        const double waited = walk_layer(&r, &w->prices[layers[i]], backward, at, &us);
        at += us + waited;
        out_us[i] = wait += waited;
        out_busy_us[0][i] = w->busy_us[WEFT_LANE_HOST];
        out_busy_us[1][i] = w->busy_us[WEFT_LANE_TO_HOST];
    }
}

weft_status weft_tier_least_waits(const weft_site *site, const weft_config *config,
                                  const weft_outline *outline, const weft_pass_price *prices,
                                  const int *layers, int num,
                                  double *const out_us[WEFT_TIER_LEASTS])
{
    weft_tier_walk w = {.outline = outline, .prices = prices};
    weft_arena arena = {0};
    const weft_status status = make_alone(&w, site, config, &arena);
    for (int pass = 0; pass < WEFT_TIER_PASSES && status == WEFT_OK; pass++)
        walk_least(&w, layers, num, pass > 0, pass == WEFT_TIER_LATER_BACKWARD, out_us[pass],
                   &out_us[WEFT_TIER_ADDS]);
    weft_arena_release(&arena);
    return status;
}
