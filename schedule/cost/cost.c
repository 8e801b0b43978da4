/* The cost of a device's work, and the functions that give all costs. */
#include "schedule/cost/cost.h"

#include <math.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "schedule/cost/costing.h"

/* --- bound by memory ----------------------------------------------------------------------- */

/* `bytes` by the memory's figures. */
static double moved_us(weft_costing *p, double bytes)
{
    return bytes /
           (weft_costing_figure(p, WEFT_FIGURE_MEMORY_BANDWIDTH) *
            weft_costing_share(p, WEFT_EFFICIENCY_MEMORY, bytes)) *
           1e6;
}

static double memory_curve_us(weft_costing *p, weft_cost_kind kind, double bytes, bool scaled)
{
    return p->estimate.memory_us = weft_costing_curve(p, kind, bytes, scaled);
}

/* A kernel that reads and writes `bytes`. */
static double memory_us(weft_costing *p, weft_cost_kind kind, double bytes)
{
    if (!(bytes > 0))
        return 0;
    if (weft_costing_knows(p, kind))
        return memory_curve_us(p, kind, bytes, false);
    if (weft_costing_knows(p, WEFT_COST_MEMORY))
        return memory_curve_us(p, WEFT_COST_MEMORY, bytes, true);
    if (weft_costing_knows(p, WEFT_COST_COPY)) /* which reads and writes its volume */
        return memory_curve_us(p, WEFT_COST_COPY, bytes / 2, true);
    p->estimate.memory_us = moved_us(p, bytes);
    return weft_costing_figure_or(p, WEFT_FIGURE_LAUNCH, 0) + p->estimate.memory_us;
}

static double transfer_us(weft_costing *p, weft_figure rate, double bytes, double ranks)
{
    return weft_costing_figure_or(p, WEFT_FIGURE_LAUNCH, 0) +
           bytes * ranks / weft_costing_figure(p, rate) * 1e6;
}

/* AdamW on host memory, which the ranks of a node share. Devices that are CPUs step in the host's
 * memory anyway. */
static double host_adamw_us(weft_costing *p, double bytes, double ranks)
{
    if (weft_costing_knows(p, WEFT_COST_ADAMW_HOST))
        return weft_costing_curve(p, WEFT_COST_ADAMW_HOST, bytes, false);
    if (!weft_hardware_knows(p->hardware, WEFT_FIGURE_MULTIPROCESSORS) &&
        weft_cluster_knows(p->cluster, WEFT_COST_ADAMW))
        return weft_costing_curve(p, WEFT_COST_ADAMW, bytes, true);
    return bytes * ranks / weft_costing_figure(p, WEFT_FIGURE_HOST_BANDWIDTH) * 1e6;
}

/* Reads or writes of a node's storage: by the curve of this way (direct or through the page cache),
 * else by the other's. */
static double storage_us(weft_costing *p, weft_cost_kind kind, double bytes, double ranks)
{
    const bool writes = kind == WEFT_COST_STORAGE_WRITE || kind == WEFT_COST_DIRECT_WRITE;
    const weft_cost_kind buffered = writes ? WEFT_COST_STORAGE_WRITE : WEFT_COST_STORAGE_READ;
    if (weft_costing_knows(p, kind))
        return weft_costing_curve(p, kind, bytes, false);
    if (kind != buffered && weft_costing_knows(p, buffered))
        return weft_costing_curve(p, buffered, bytes, true);
    return transfer_us(p, writes ? WEFT_FIGURE_STORAGE_WRITE : WEFT_FIGURE_STORAGE_READ, bytes,
                       ranks);
}

/* The largest ratio between a measured shape and one that is priced by it. */
#define FARTHEST 4.0

static double distance_of(double known, double wanted)
{
    return fmax(known, wanted) / fmin(known, wanted);
}

/* Notes that what was measured is used at its own shape, or scaled by `ratio`. */
static double use_measured(weft_costing *p, int input, double us, double ratio)
{
    weft_costing_note(p, input);
    if (fabs(ratio - 1) <= 1e-9)
        return us;
    weft_costing_scale(p, input);
    return us * ratio;
}

/* The measured time of one such operation, from the nearest volume; 0: none was measured. */
static double timed_us(weft_costing *p, const weft_operation *o)
{
    const double count = (double)(o->count ? o->count : 1);
    const double volume = (double)(o->kind == WEFT_OPERATION_GEMM ? o->flops : o->bytes) / count;
    const weft_timed_operation *nearest = NULL;
    if (!weft_costing_is_measured_here(p, "device") || !(volume > 0))
        return 0;
    for (int i = 0; i < p->cluster->num_operations; i++) {
        const weft_timed_operation *known = &p->cluster->operations[i];
        const double least = nearest ? distance_of(nearest->volume, volume) : FARTHEST;
        if (known->phase == o->phase && known->dtype == o->dtype &&
            distance_of(known->volume, volume) < least && strcmp(known->module, o->module) == 0)
            nearest = known;
    }
    return nearest ? use_measured(p, WEFT_INPUT_OPERATIONS, nearest->us, volume / nearest->volume)
                   : 0;
}

/* --- products ------------------------------------------------------------------------------ */

/* `num` products [m, k] x [k, n] in one launch. */
typedef struct products {
    double m, n, k, num;
    bool
        uneven; /* m is the mean of rows that differ: a group's last tile is half full on average */
} products;

static double flops_of(const products *x)
{
    return 2 * x->m * x->n * x->k * x->num;
}

static double moved_bytes(const products *x, weft_dtype dtype)
{
    return (double)weft_dtype_bytes(dtype) * x->num * (x->m * x->k + x->k * x->n + x->m * x->n);
}

static double peak_of(weft_costing *p, weft_dtype dtype)
{
    return weft_costing_figure(p, dtype == WEFT_BF16  ? WEFT_FIGURE_PEAK_BF16
                                  : dtype == WEFT_F16 ? WEFT_FIGURE_PEAK_FP16
                                                      : WEFT_FIGURE_PEAK_FP32);
}

/* A tile is no larger than its product, in steps of 16. */
static double tile_of(weft_costing *p, weft_figure figure, double size)
{
    return fmin(weft_costing_figure_or(p, figure, 128), ceil(size / 16) * 16);
}

/* Seconds of the tiles' FLOPs at a peak of 1 FLOP/s, without the fixed cost of waves. */
static double wave_flops(weft_costing *p, const products *x, double *out_waves)
{
    const double tile_m = tile_of(p, WEFT_FIGURE_TILE_M, x->m);
    const double tile_n = tile_of(p, WEFT_FIGURE_TILE_N, x->n);
    const double at_once = weft_costing_figure(p, WEFT_FIGURE_MULTIPROCESSORS);
    const double tiles = x->num * ceil(x->m / tile_m) * ceil(x->n / tile_n);
    *out_waves = ceil(tiles / at_once);
    return *out_waves * 2 * tile_m * tile_n * x->k * at_once;
}

/* Sides of tiles are powers of two, of at least this. */
enum { LEAST_TILE = 64 };

/* The tiles that libraries have: the device's own on its end or on its side, for narrow products no
 * wider than these, and for products that leave multiprocessors without work smaller ones. */
typedef struct tiling {
    double m, n;
} tiling;

static double narrowed(double tile, double size)
{
    while (tile > LEAST_TILE && tile / 2 >= size)
        tile /= 2;
    return tile;
}

/* A wave loads its first operands, computes and stores its tiles. */
static double waves_us(weft_costing *p, const products *x, const tiling *t, double tiles,
                       double flop_us, weft_dtype dtype)
{
    const double at_once = weft_costing_figure(p, WEFT_FIGURE_MULTIPROCESSORS);
    const double results = t->m * t->n * at_once;
    const double stored = weft_hardware_knows(p->hardware, WEFT_FIGURE_MEMORY_BANDWIDTH)
                              ? moved_us(p, results * (double)weft_dtype_bytes(dtype))
                              : 0;
    const double wave_us =
        weft_costing_figure_or(p, WEFT_FIGURE_WAVE, 0) + 2 * results * x->k * flop_us + stored;
    return ceil(tiles / at_once) * wave_us;
}

/* The least time among this tiling and its smaller ones. */
static double tiled_us(weft_costing *p, const products *x, const tiling *largest, double flop_us,
                       weft_dtype dtype)
{
    const double at_once = weft_costing_figure(p, WEFT_FIGURE_MULTIPROCESSORS);
    tiling t = {narrowed(largest->m, x->m), narrowed(largest->n, x->n)};
    double best_us = INFINITY, tiles = 0;
    while (tiles < at_once) {
        tiles = x->num * (x->uneven ? x->m / t.m + 0.5 : ceil(x->m / t.m)) * ceil(x->n / t.n);
        best_us = fmin(best_us, waves_us(p, x, &t, tiles, flop_us, dtype));
        if (fmax(t.m, t.n) <= LEAST_TILE)
            break;
        *(t.m >= t.n ? &t.m : &t.n) /= 2;
    }
    return best_us;
}

/* By tiles and waves, or by FLOPs, at the device's peak. */
static double model_us(weft_costing *p, const products *x, weft_dtype dtype)
{
    const double flops = flops_of(x);
    const double rate =
        peak_of(p, dtype) * weft_costing_share(p, WEFT_EFFICIENCY_GEMM, flops) * 1e-6;
    double us = flops / rate;
    if (weft_hardware_knows(p->hardware, WEFT_FIGURE_MULTIPROCESSORS)) {
        const double m = weft_costing_figure_or(p, WEFT_FIGURE_TILE_M, 128),
                     n = weft_costing_figure_or(p, WEFT_FIGURE_TILE_N, 128);
        const tiling tiles[] = {{m, n}, {n, m}, {fmin(m, n), fmin(m, n)}};
        us = INFINITY;
        for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
            us = fmin(us, tiled_us(p, x, &tiles[i], 1 / rate, dtype));
    }
    if (weft_hardware_knows(p->hardware, WEFT_FIGURE_MEMORY_BANDWIDTH)) {
        const double moving_us = moved_us(p, moved_bytes(x, dtype));
        p->estimate.memory_us = moving_us > us ? moving_us : 0;
        us = fmax(us, moving_us);
    }
    return weft_costing_figure_or(p, WEFT_FIGURE_LAUNCH, 0) + us;
}

/* The measured product with this shape, else the nearest that differs in one of m, n, k; NULL:
 * none. */
static const weft_product *find_product(const weft_costing *p, const products *x,
                                        weft_cost_kind kind)
{
    const weft_product *nearest = NULL;
    double least = FARTHEST;
    if (!weft_costing_is_measured_here(p, "device"))
        return NULL;
    for (int i = 0; i < p->cluster->num_products; i++) {
        const weft_product *known = &p->cluster->products[i];
        const bool m = known->m == x->m, n = known->n == x->n, k = known->k == x->k;
        const double distance = distance_of(known->m * known->n * known->k, x->m * x->n * x->k);
        if (known->kind == kind && m + n + k >= 2 && distance < least) {
            nearest = known;
            least = distance;
        }
    }
    return nearest;
}

/* fp16 goes at bf16's times where those were measured. */
static weft_cost_kind gemm_kind(weft_dtype dtype)
{
    return weft_dtype_bytes(dtype) < 4 ? WEFT_COST_GEMM_BF16 : WEFT_COST_GEMM_FP32;
}

/* Scales the measured curve to another shape. A CPU runs the products of one launch one after the
 * other. */
static double scaled_us(weft_costing *p, const products *x, weft_dtype dtype)
{
    const weft_cost_kind kind = gemm_kind(dtype);
    const double flops = flops_of(x), width = p->cluster->costs[kind].width;
    const bool own =
        dtype != WEFT_F16 && x->num == 1 && (width == 0 || (x->n == width && x->k == width));
    if (own || !weft_hardware_knows(p->hardware, WEFT_FIGURE_MULTIPROCESSORS) || width == 0)
        return x->num * weft_costing_curve(p, kind, flops / x->num, !own);
    double waves, own_waves;
    const products measured = {flops / (2 * width * width), width, width, 1, false};
    const double ratio = wave_flops(p, x, &waves) / wave_flops(p, &measured, &own_waves);
    const double wave_us = weft_costing_figure_or(p, WEFT_FIGURE_WAVE, 0);
    const double launch_us = weft_costing_figure_or(p, WEFT_FIGURE_LAUNCH, 0);
    const double fixed_us = launch_us + own_waves * wave_us;
    return launch_us + waves * wave_us +
           fmax(weft_costing_curve(p, kind, flops, true) - fixed_us, 0) * ratio;
}

/* Whether reading the product's operands at full memory bandwidth takes longer than its FLOPs at
 * peak. Notes no input. */
static bool is_bound_by_memory(weft_costing *p, const products *x, weft_dtype dtype)
{
    const weft_cost *memory = &p->cluster->costs[WEFT_COST_MEMORY];
    const double given = p->hardware->figures[WEFT_FIGURE_MEMORY_BANDWIDTH];
    const double rate = weft_costing_knows(p, WEFT_COST_MEMORY) ? memory->peak : given;
    const double peak = p->cluster->costs[gemm_kind(dtype)].peak;
    return rate > 0 && peak > 0 && moved_bytes(x, dtype) / rate > flops_of(x) / peak;
}

static double with_bound(weft_costing *p, const products *x, weft_dtype dtype, double us)
{
    p->estimate.memory_us = is_bound_by_memory(p, x, dtype) ? us : 0;
    return us;
}

/* One such product's time over a measured one's, by waves of tiles or by FLOPs. */
static double ratio_of(weft_costing *p, const products *x, const weft_product *known)
{
    const products one = {x->m, x->n, x->k, 1, false},
                   measured = {known->m, known->n, known->k, 1, false};
    double waves;
    if (flops_of(&one) == flops_of(&measured))
        return 1;
    if (!weft_hardware_knows(p->hardware, WEFT_FIGURE_MULTIPROCESSORS))
        return flops_of(&one) / flops_of(&measured);
    return wave_flops(p, &one, &waves) / wave_flops(p, &measured, &waves);
}

static double products_us(weft_costing *p, const products *x, weft_dtype dtype)
{
    const weft_cost_kind kind = gemm_kind(dtype);
    const weft_product *known = find_product(p, x, kind);
    if (known) {
        const double ratio = ratio_of(p, x, known);
        const double us = use_measured(p, WEFT_INPUT_PRODUCTS, known->us, ratio);
        if (x->num > 1 && weft_hardware_knows(p->hardware, WEFT_FIGURE_MULTIPROCESSORS))
            weft_costing_scale(p, WEFT_INPUT_PRODUCTS);
        return with_bound(p, x, dtype, x->num * us);
    }
    return weft_costing_knows(p, kind) ? with_bound(p, x, dtype, scaled_us(p, x, dtype))
                                       : model_us(p, x, dtype);
}

/* What an attention kernel computes. */
typedef struct attention {
    double flops; /* of both of its products; of a batch in one launch */
    double keys;  /* that a query sees */
    double width; /* channels of a head */
    bool backward;
} attention;

/* Heads up to the first go at the curves of narrow ones, from the second on at those of wide ones.
 */
#define NARROW_HEAD 64.0
#define WIDE_HEAD 128.0

/* By the first of the curves that the file has. */
static double share_of_width(weft_costing *p, const attention *x, bool narrow)
{
    static const weft_efficiency_kind kinds[] = {
        WEFT_EFFICIENCY_ATTENTION_64_BACKWARD, WEFT_EFFICIENCY_ATTENTION_BACKWARD,
        WEFT_EFFICIENCY_ATTENTION_64, WEFT_EFFICIENCY_ATTENTION};
    for (size_t i = x->backward ? 0 : 2; i < sizeof kinds / sizeof *kinds; i++)
        if (p->hardware->efficiencies[kinds[i]].num_points > 0 && (narrow || i % 2 == 1))
            return weft_costing_share(p, kinds[i], x->keys);
    return weft_costing_share(p, WEFT_EFFICIENCY_GEMM, x->flops);
}

static double attention_share(weft_costing *p, const attention *x)
{
    const double part = fmin(fmax((x->width - NARROW_HEAD) / (WIDE_HEAD - NARROW_HEAD), 0), 1);
    const double narrow = part < 1 ? share_of_width(p, x, true) : 0;
    const double wide = part > 0 ? share_of_width(p, x, false) : 0;
    return (1 - part) * narrow + part * wide;
}

static double attention_us(weft_costing *p, weft_cost_kind kind, weft_dtype dtype,
                           const attention *x)
{
    const double flops = x->flops;
    if (weft_costing_knows(p, kind))
        return weft_costing_curve(p, kind, flops, false);
    const double share = attention_share(p, x);
    const double peak = peak_of(p, dtype);
    return weft_costing_figure_or(p, WEFT_FIGURE_LAUNCH, 0) + flops / (peak * share) * 1e6;
}

static double gemm_us(weft_costing *p, const weft_operation *o)
{
    const double count = (double)(o->count ? o->count : 1), groups = (double)o->groups;
    products x = {(double)o->m, (double)o->n, (double)o->k, 1, false};
    if (o->fused) {
        const weft_cost_kind kind =
            weft_dtype_bytes(o->dtype) < 4 ? WEFT_COST_ATTENTION_BF16 : WEFT_COST_ATTENTION_FP32;
        const double measured_us = timed_us(p, o);
        if (measured_us > 0)
            return count * measured_us;
        const bool priced =
            weft_costing_knows(p, kind) || !weft_costing_knows(p, gemm_kind(o->dtype));
        const attention both = {.flops = 2 * (double)o->flops,
                                .keys = fmax(x.n, x.k),
                                .width = fmin(x.n, x.k),
                                .backward = o->phase != WEFT_PHASE_FORWARD};
        if (priced) /* one of the two operations of a launch */
            return attention_us(p, kind, o->dtype, &both) / 2;
        x.num = count;
        const double share = fmin((double)o->flops / flops_of(&x), 1),
                     us = products_us(p, &x, o->dtype);
        p->estimate.memory_us *= share;
        return share * us;
    }
    if (groups > 0 && o->phase == WEFT_PHASE_WEIGHT_GRADIENT)
        x.k = ceil(x.k / groups);
    else if (groups > 0)
        x.m = ceil(x.m / groups);
    x.num = groups > 0 ? groups : 1;
    x.uneven =
        groups > 1 && o->inner == WEFT_INNER_EXPERTS && o->phase != WEFT_PHASE_WEIGHT_GRADIENT;
    const double us = products_us(p, &x, o->dtype);
    p->estimate.memory_us *= count;
    return count * us;
}

/* --- doors --------------------------------------------------------------------------------- */

/* What is asked. */
typedef struct question {
    const char *what; /* for errors */
    const weft_operation *operation;
    const weft_group *group;
    weft_collective collective;
    weft_cost_kind kind;
    int ranks;
    double volume;
} question;
typedef weft_status (*answer_function)(weft_costing *p, const weft_site *site, const question *q);

/* GPUs before Ampere compute no bf16; of others the file does not tell. */
static const char *without_bf16(const weft_costing *p)
{
    static const char *const before[] = {"V100", "T4", "P100", "RTX 2", "TITAN"};
    if (strcmp(p->lacks, weft_figure_path(WEFT_FIGURE_PEAK_BF16)) != 0 ||
        !weft_hardware_knows(p->hardware, WEFT_FIGURE_PEAK_FP16))
        return "";
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        if (strstr(p->hardware->device_name, before[i]))
            return "; the GPU has no bf16: train.precision fp16 would do";
    return "; the file has device.peak.fp16: add bf16, or train.precision fp16 would do";
}

/* Names the missing number, and the command that measures it. */
static weft_status refuse(const weft_costing *p, const char *what)
{
    bool is_measured = false;
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        is_measured |= weft_cluster_knows(p->cluster, (weft_cost_kind)i);
    if (is_measured && p->unmeasured < WEFT_NUM_COSTS) {
        const char *cost = weft_cost_text(p->unmeasured);
        const bool is_between = weft_cost_part_of(p->unmeasured) == WEFT_PART_BETWEEN;
        return weft_lack_mark(
            WEFT_ERROR(WEFT_CONFIG,
                       "cluster \"%s\": neither costs.%s nor %s is known, and %s needs one; weft "
                       "calibrate measures it%s (alone: --only %s)",
                       p->cluster->name, cost, p->lacks, what,
                       is_between ? " on two nodes or more" : "", cost));
    }
    return weft_lack_mark(WEFT_ERROR(WEFT_CONFIG,
                                     "cluster \"%s\": %s is not known, and %s needs it%s",
                                     p->cluster->name, p->lacks, what, without_bf16(p)));
}

/* Asks for each kind of the site's nodes: the slowest counts, with the worst source class. */
static weft_status ask(const weft_site *site, answer_function answer, const question *q,
                       weft_estimate *out)
{
    weft_estimate slowest = {.us = -1};
    bool buffered = true;
    for (int kind = site->kinds ? 0 : -1; kind < 0 || site->kinds >> kind; kind++) {
        if (kind >= 0 && !(site->kinds >> kind & 1))
            continue;
        weft_costing p = weft_costing_start(site, kind);
        WEFT_TRY(answer(&p, site, q));
        if (p.lacks)
            return refuse(&p, q->what);
        weft_costing_at_least(&p, slowest.source);
        p.estimate.spread = fmax(p.estimate.spread, slowest.spread);
        slowest.source = p.estimate.source;
        slowest.spread = p.estimate.spread;
        buffered &= p.estimate.buffered;
        if (p.estimate.us > slowest.us)
            slowest = p.estimate;
        if (kind < 0)
            break;
    }
    *out = slowest;
    out->buffered = buffered;
    return WEFT_OK;
}

static const weft_group *group_of(const weft_site *site, const weft_operation *o)
{
    const weft_group *part = o->axis != WEFT_AXIS_CP                       ? NULL
                             : o->collective == WEFT_COLLECTIVE_ALL_TO_ALL ? &site->heads
                             : o->collective == WEFT_COLLECTIVE_MESSAGE    ? &site->ring
                                                                           : NULL;
    return part && part->size > 0 ? part : &site->groups[o->axis];
}

static weft_status answer_operation(weft_costing *p, const weft_site *site, const question *q)
{
    const weft_operation *operation = q->operation;
    const double count = (double)(operation->count ? operation->count : 1);
    const double bytes = (double)operation->bytes / count;
    switch (operation->kind) {
    case WEFT_OPERATION_GEMM:
        if (operation->flops > 0)
            p->estimate.us = gemm_us(p, operation);
        break;
    case WEFT_OPERATION_MEMORY:
        p->estimate.us = count * timed_us(p, operation);
        p->estimate.memory_us = p->estimate.us;
        if (p->estimate.us > 0)
            break;
        p->estimate.us = count * memory_us(p, WEFT_COST_MEMORY, bytes);
        p->estimate.memory_us *= count;
        break;
    case WEFT_OPERATION_COLLECTIVE:
        weft_price_collective(p, group_of(site, operation), operation->collective, bytes);
        p->estimate.us *= count;
        for (int i = 0; i < WEFT_NUM_LINKS; i++) {
            p->estimate.links[i].bytes *= count;
            p->estimate.links[i].us *= count;
        }
        break;
    case WEFT_NUM_OPERATION_KINDS:
        break;
    }
    return WEFT_OK;
}

weft_status weft_operation_us(const weft_site *site, const weft_operation *operation,
                              weft_estimate *out)
{
    const question q = {.what = operation->module, .operation = operation};
    return ask(site, answer_operation, &q, out);
}

static const char *const collective_texts[WEFT_NUM_COLLECTIVES] = {
    [WEFT_COLLECTIVE_ALL_REDUCE] = "an all-reduce",
    [WEFT_COLLECTIVE_ALL_GATHER] = "an all-gather",
    [WEFT_COLLECTIVE_REDUCE_SCATTER] = "a reduce-scatter",
    [WEFT_COLLECTIVE_ALL_TO_ALL] = "an all-to-all",
    [WEFT_COLLECTIVE_MESSAGE] = "a message",
};

static weft_status answer_collective(weft_costing *p, const weft_site *site, const question *q)
{
    (void)site;
    weft_price_collective(p, q->group, q->collective, q->volume);
    return WEFT_OK;
}

weft_status weft_collective_us(const weft_site *site, const weft_group *group,
                               weft_collective collective, double bytes, weft_estimate *out)
{
    const question q = {.what = collective_texts[collective],
                        .group = group,
                        .collective = collective,
                        .volume = bytes};
    return ask(site, answer_collective, &q, out);
}

static weft_status answer_small_sum(weft_costing *p, const weft_site *site, const question *q)
{
    (void)site;
    weft_price_small_sum(p, q->ranks, q->volume);
    return WEFT_OK;
}

weft_status weft_small_sum_us(const weft_site *site, int ranks, double bytes, weft_estimate *out)
{
    const question q = {.what = "a sum over all ranks", .ranks = ranks, .volume = bytes};
    return ask(site, answer_small_sum, &q, out);
}

static weft_status answer_work(weft_costing *p, const weft_site *site, const question *q)
{
    const weft_cost_kind kind = q->kind;
    double *us = &p->estimate.us;
    if (!(q->volume > 0))
        return WEFT_OK;
    switch (kind) {
    case WEFT_COST_MEMORY:
    case WEFT_COST_ADAMW:
        *us = memory_us(p, kind, q->volume);
        break;
    case WEFT_COST_ATTENTION_FP32:
    case WEFT_COST_ATTENTION_BF16:
        *us = attention_us(p, kind, kind == WEFT_COST_ATTENTION_BF16 ? WEFT_BF16 : WEFT_F32,
                           &(attention){.flops = q->volume, .keys = INFINITY, .width = WIDE_HEAD});
        break;
    case WEFT_COST_ADAMW_HOST:
        *us = host_adamw_us(p, q->volume, site->cluster->ranks_per_node);
        break;
    case WEFT_COST_STORAGE_WRITE:
    case WEFT_COST_STORAGE_READ:
    case WEFT_COST_DIRECT_WRITE:
    case WEFT_COST_DIRECT_READ:
        *us = storage_us(p, kind, q->volume, site->cluster->ranks_per_node);
        break;
    default:
        if (weft_costing_knows(p, kind))
            *us = weft_costing_curve(p, kind, q->volume, false);
        else if (kind == WEFT_COST_COPY)
            *us = memory_us(p, kind, 2 * q->volume);
        else if (kind == WEFT_COST_TO_HOST || kind == WEFT_COST_TO_DEVICE)
            *us = transfer_us(p, WEFT_FIGURE_HOST_LINK, q->volume, 1);
        else
            return WEFT_ERROR(WEFT_INTERNAL, "%s is no work of one rank", weft_cost_text(kind));
        if (kind == WEFT_COST_TO_HOST || kind == WEFT_COST_TO_DEVICE)
            p->estimate.links[WEFT_LINK_HOST] = (weft_link_load){q->volume, *us};
    }
    return WEFT_OK;
}

weft_status weft_work_us(const weft_site *site, weft_cost_kind kind, double volume,
                         weft_estimate *out)
{
    const question q = {.what = weft_cost_help(kind), .kind = kind, .volume = volume};
    return ask(site, answer_work, &q, out);
}
