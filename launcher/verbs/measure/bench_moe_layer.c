/* weft bench moe-layer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/arguments/rows.h"
#include "launcher/measuring/bench_moe.h"
#include "launcher/measuring/measure.h"
#include "launcher/training/start.h"
#include "launcher/verbs/measure/measure.h"

/* --- memory ---------------------------------------------------------------------------------- */

/* Of a point of the grid; without a grid, the one layer's. */
static weft_bench_layer_shape bench_shape_of(const weft_bench_moe_options *o, int point)
{
    weft_bench_layer_shape shape = o->shape;
    if (o->num_grid > 0) {
        shape.tokens = o->grid[point][0];
        shape.hidden = o->grid[point][1];
        shape.ffn = o->grid[point][2];
    }
    return shape;
}

/* MPMoE eq. 5: what reuse saves of activations, and again of temporary buffers; elements. */
static double allowed_elements(double rows, double hidden, double middle, int n)
{
    return 2 * rows * (2 * hidden * (n - 2) / n + middle * (n - 1) / n);
}

static weft_status peak_of(weft_comm *world, const weft_bench_layer_shape *shape,
                           weft_moe_pipeline pipeline, double *out_bytes)
{
    weft_bench_layer_shape with = *shape;
    weft_bench_layer *layer = NULL;
    double us[2];
    with.moe = (weft_moe_options){.pipeline = pipeline};
    WEFT_TRY(weft_bench_layer_create(world, &with, &layer));
    /* What experts compute does not matter here: it is passed over. */
    layer->pace_flops[0] = layer->pace_flops[1] = 1e18;
    weft_status status = weft_bench_layer_run(layer, us);
    if (status == WEFT_OK)
        status = weft_bench_layer_run(layer, us);
    if (status == WEFT_OK)
        status = weft_bench_layer_peak(layer, out_bytes);
    weft_bench_layer_destroy(layer);
    return status;
}

static void report_row(weft_report *r, const weft_bench_layer_shape *shape, int n, int reuse,
                       double whole, double bytes)
{
    const double rows = (double)shape->tokens * (double)shape->topk;
    const double middle = (double)shape->ffn * (shape->swiglu ? 2 : 1);
    const double allowed = allowed_elements(rows, (double)shape->hidden, middle, n) *
                           (double)weft_dtype_bytes(shape->dtype);
    weft_report_record(r);
    weft_report_row(r, "tokens", "tokens", WEFT_UNIT_COUNT, shape->tokens);
    weft_report_row(r, "hidden", "M", WEFT_UNIT_COUNT, shape->hidden);
    weft_report_row(r, "ffn", "H", WEFT_UNIT_COUNT, shape->ffn);
    weft_report_row(r, "num_partitions", "n", WEFT_UNIT_COUNT, n);
    weft_report_text(r, "memory_reuse", "S", weft_reuse_text(reuse));
    weft_report_row(r, "synchronous_bytes", "n 1", WEFT_UNIT_BYTES, whole);
    weft_report_row(r, "bytes", "memory", WEFT_UNIT_BYTES, bytes);
    weft_report_row(r, NULL, "fall", WEFT_UNIT_BYTES, whole - bytes);
    weft_report_row(r, "allowed_bytes", "eq. 5-6", WEFT_UNIT_BYTES, allowed);
    weft_report_row(r, NULL, "of eq. 5-6", WEFT_UNIT_SHARE, (whole - bytes) / allowed);
}

static weft_status measure_shape(weft_comm *world, const weft_bench_moe_options *o,
                                 const weft_bench_layer_shape *shape, weft_report *report)
{
    double whole, bytes;
    WEFT_TRY(peak_of(world, shape, (weft_moe_pipeline){.num_partitions = 1}, &whole));
    for (int i = 0; i < o->num_partitions; i++)
        for (int reuse = WEFT_REUSE_S1; reuse < WEFT_NUM_REUSES; reuse++) {
            const int n = o->partitions[i];
            if (n < 2 || !(o->reuses & 1u << reuse))
                continue;
            weft_bench_tell(weft_comm_rank(world) == 0, "%lld tokens, M %lld, H %lld: n %d, %s",
                            (long long)shape->tokens, (long long)shape->hidden,
                            (long long)shape->ffn, n, weft_reuse_text(reuse));
            WEFT_TRY(peak_of(world, shape,
                             (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse},
                             &bytes));
            report_row(report, shape, n, reuse, whole, bytes);
        }
    return WEFT_OK;
}

/* Measures peak device memory by (n, S) and compares what it saves of the synchronous layer's with
 * MPMoE eq. 5-6: the table "memory". Collective. */
static weft_status bench_moe_memory(weft_comm *world, const weft_bench_moe_options *o,
                                    weft_report *report)
{
    weft_report_open(report, WEFT_REPORT_TABLE, "memory");
    for (int i = 0; i < (o->num_grid > 0 ? o->num_grid : 1); i++) {
        const weft_bench_layer_shape shape = bench_shape_of(o, i);
        WEFT_TRY(measure_shape(world, o, &shape, report));
    }
    weft_report_close(report);
    return WEFT_OK;
}

/* --- the verb -------------------------------------------------------------------------------- */

static bool parse_grid(const char *text, weft_bench_moe_options *o)
{
    for (char *end; o->num_grid < 64; text = end + 1) {
        int64_t *point = o->grid[o->num_grid++];
        for (int i = 0; i < 3; i++) {
            point[i] = strtoll(text, &end, 10);
            if (end == text || point[i] < 1 || (i < 2 && *end != ':'))
                return false;
            text = end + 1;
        }
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
    }
    return false;
}

/* Partitions rise, and the rows of the grid are three numbers each. */
static weft_status check_lists(weft_bench_moe_options *o, const weft_int_list *partitions,
                               const char *grid)
{
    o->num_partitions = (int)partitions->count;
    for (int i = 0; i < o->num_partitions; i++) {
        o->partitions[i] = (int)partitions->values[i];
        if (i > 0 && o->partitions[i] <= o->partitions[i - 1])
            return WEFT_ERROR(WEFT_CONFIG, "--partitions: %d stands behind %d: they must rise",
                              o->partitions[i], o->partitions[i - 1]);
    }
    if (grid && !parse_grid(grid, o))
        return WEFT_ERROR(WEFT_CONFIG, "--grid %.40s: expected up to 64 of B:M:H, with commas",
                          grid);
    return WEFT_OK;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, weft_bench_moe_options *o, weft_arena *arena)
{
    static const char *const dtypes[] = {"fp32", "bf16"}, *const balances[] = {"sum", "each"};
    static const int64_t default_partitions[] = {1, 2, 4, 8};
    const char *reuses[WEFT_NUM_REUSES], *grid = NULL;
    weft_int_list partitions = {default_partitions, 4, true};
    int dtype = 0, balance = 0;
    const weft_argument rows[] = {
        WHOLE("tokens", "B", &o->shape.tokens, 1, INFINITY, "a rank's"),
        WHOLE("hidden", "M", &o->shape.hidden, 1, INFINITY, "the model's width"),
        WHOLE("ffn", "H", &o->shape.ffn, 1, INFINITY, "an expert's width"),
        WHOLE("experts", "E", &o->shape.experts, 1, INFINITY, "of the layer (2 a rank)"),
        WHOLE("topk", "K", &o->shape.topk, 1, INFINITY, "experts a token"),
        FLAG("swiglu", &o->shape.swiglu, "experts with a gate"),
        NAMED("precision", "NAME", &dtype, dtypes, 2, "fp32 or bf16"),
        SMALL("threads", "N", &o->shape.num_threads, 1, 1024, "a rank's"),
        TEXT("mesh", "AXES", &o->shape.mesh, "as train's (experts over all ranks)"),
        LIST("partitions", "N,...", &partitions, sizeof o->partitions / sizeof *o->partitions, 1,
             WEFT_MOE_MAX_PARTITIONS, "", "the n to try"),
        SET("reuse", "S,...", &o->reuses, reuses, WEFT_NUM_REUSES,
            "the strategies to try: none, s1, s2, s3, s4"),
        REAL("ratio", "R", &o->ratio, 1e-6, 1e6, NULL,
             "bring computation to R times communication: by H, or as --pace says"),
        FLAG("pace", &o->pace, "by an accelerator that only takes its time, no CPU"),
        REAL("pace-flops", "F", &o->pace_flops, 1, 1e21, NULL,
             "the same at a given rate, whatever the ratio"),
        NAMED("balance", "WHAT", &balance, balances, 2,
              "the ratio holds for the sum of both directions, or for each"),
        TEXT("grid", "B:M:H,...", &grid, "several layers, a line each: choice against the best"),
        FLAG("memory", &o->memory, "device memory by n and strategy, nothing timed"),
        TEXT("cluster", "FILE", &o->cluster, "costs to predict by; measure or none"),
        SMALL("rounds", "N", &o->common.rounds, 1, WEFT_BENCH_MAX_ROUNDS, "measured rounds"),
        FLAG("json", &o->common.json,
             "all numbers as one JSON object on standard output instead of tables"),
        TEXT("trace", "FILE", &o->trace, "rank 0's measured timeline of the best, as SVG"),
    };
    const weft_arguments verb = {
        .verb = "bench moe-layer",
        .about = "On the ranks of any launcher: one MoE layer, forward and backward, experts over "
                 "all ranks. The\nsynchronous layer, the one split by peers, and every n and "
                 "memory reuse asked for, paired; and\nwhat the cost model and the profile would "
                 "have chosen.\n",
        ROWS_OF(rows)};
    *o = (weft_bench_moe_options){
        .common = {.rounds = 9},
        .shape = {.tokens = 2048, .hidden = 512, .ffn = 1024, .topk = 1, .num_threads = 1},
        .reuses = (1u << WEFT_NUM_REUSES) - 1,
        .cluster = "measure"};
    for (int i = 0; i < WEFT_NUM_REUSES; i++)
        reuses[i] = weft_reuse_text(i);
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    o->shape.dtype = dtype ? WEFT_BF16 : WEFT_F32;
    o->balanced = balance != 0;
    o->pace = o->pace || o->pace_flops > 0;
    if (code < 0 && check_lists(o, &partitions, grid) != WEFT_OK)
        code = weft_verb_fail("bench moe-layer");
    return code;
}

/* --- reporting ----------------------------------------------------------------------------- */

static double bound_us(const weft_bench_point *p)
{
    return fmax(p->comm_us[0], p->comp_us[0]) + fmax(p->comm_us[1], p->comp_us[1]);
}

static void report_head(weft_report *r, const weft_bench_point *p)
{
    weft_report_line(r, "%lld tokens a rank, M %lld, H %lld, %lld experts top-%lld, %s",
                     (long long)p->shape.tokens, (long long)p->shape.hidden,
                     (long long)p->shape.ffn, (long long)p->shape.experts, (long long)p->shape.topk,
                     weft_dtype_text(p->shape.dtype));
    weft_report_line(r,
                     "alone: communication %.2f + %.2f ms, computation %.2f + %.2f ms (forward "
                     "+ backward)",
                     p->comm_us[0] / 1e3, p->comm_us[1] / 1e3, p->comp_us[0] / 1e3,
                     p->comp_us[1] / 1e3);
    if (p->pace_flops[0] > 0)
        weft_report_line(r, "paced: %.3g and %.3g FLOP/s", p->pace_flops[0], p->pace_flops[1]);
    weft_report_value(r, "tokens", p->shape.tokens);
    weft_report_value(r, "hidden", p->shape.hidden);
    weft_report_value(r, "ffn", p->shape.ffn);
    weft_report_value(r, "experts", p->shape.experts);
    weft_report_numbers(r, "communication_us", p->comm_us, 2);
    weft_report_numbers(r, "computation_us", p->comp_us, 2);
    weft_report_numbers(r, "pace_flops", p->pace_flops, 2);
}

static void report_case(weft_report *r, const weft_bench_point *p, const weft_bench_case *c)
{
    static const char *const keys[] = {"forward_us", "backward_us", "us"};
    static const char *const titles[] = {"forward ms", "backward ms", "both ms"};
    const weft_bench_case *sync = weft_bench_find(p, WEFT_BENCH_SYNCHRONOUS, NULL);
    const weft_bench_case *peers = weft_bench_find(p, WEFT_BENCH_PEERS, NULL);
    const weft_bench_case *nodes = weft_bench_find(p, WEFT_BENCH_NODES, NULL);
    const double us = c->us[2].median;
    char text[48];
    weft_report_record(r);
    weft_report_text(r, "form", "form", weft_bench_case_text(c, text, sizeof text));
    for (int k = 0; k < 3; k++) {
        weft_report_numbers(r, keys[k],
                            (const double[]){c->us[k].low, c->us[k].median, c->us[k].high}, 3);
        weft_report_row(r, NULL, titles[k], WEFT_UNIT_FIXED, c->us[k].median / 1e3);
    }
    weft_report_cell(r, "quartiles", "%.2f-%.2f", c->us[2].low / 1e3, c->us[2].high / 1e3);
    weft_report_row(r, NULL, "x synchronous", WEFT_UNIT_FIXED, sync->us[2].median / us);
    weft_report_row(r, NULL, "x by peers", WEFT_UNIT_FIXED, peers->us[2].median / us);
    if (nodes)
        weft_report_row(r, NULL, "x by nodes", WEFT_UNIT_FIXED, nodes->us[2].median / us);
    weft_report_row(r, NULL, "of the bound", WEFT_UNIT_SHARE, bound_us(p) / us);
    if (c->predicted_us > 0) {
        weft_report_value(r, "predicted_us", c->predicted_us);
        weft_report_row(r, NULL, "predicted ms", WEFT_UNIT_FIXED, c->predicted_us / 1e3);
        weft_report_row(r, NULL, "error", WEFT_UNIT_CHANGE, c->predicted_us / us - 1);
    }
}

static void report_choices(weft_report *r, const weft_bench_point *p)
{
    const weft_moe_pipeline *model = &p->model_choice.pipeline;
    const weft_moe_pipeline *profile = &p->profile_choice.pipeline;
    if (p->model_us > 0)
        weft_report_line(r, "the model chooses n %d, %s in %.2f ms: %.2f of the best",
                         model->num_partitions, weft_reuse_text((int)model->reuse),
                         p->model_cost_us / 1e3, p->model_us / p->best_us);
    if (p->profile_us > 0)
        weft_report_line(r, "the profile chooses n %d, %s after %d trials: %.2f of the best",
                         profile->num_partitions, weft_reuse_text((int)profile->reuse),
                         p->num_trials, p->profile_us / p->best_us);
    weft_report_value(r, "best_us", p->best_us);
    weft_report_value(r, "model_choice_us", p->model_us);
    weft_report_value(r, "profile_choice_us", p->profile_us);
    weft_report_value(r, "profile_trials", p->num_trials);
    weft_report_value(r, "model_cost_us", p->model_cost_us);
}

static void report_point(weft_report *r, const weft_bench_point *p)
{
    report_head(r, p);
    weft_report_open(r, WEFT_REPORT_TABLE, "cases");
    for (int i = 0; i < p->num_cases; i++)
        report_case(r, p, &p->cases[i]);
    weft_report_close(r);
    report_choices(r, p);
}

/* One line a point of a grid. */
static void report_line(weft_report *r, const weft_bench_point *p)
{
    const weft_bench_case *best = weft_bench_best(p);
    const weft_bench_case *sync = weft_bench_find(p, WEFT_BENCH_SYNCHRONOUS, NULL);
    const weft_moe_pipeline *model = &p->model_choice.pipeline;
    const weft_moe_pipeline *profile = &p->profile_choice.pipeline;
    double errors[WEFT_BENCH_MAX_CASES];
    int num = 0;
    char text[48];
    for (int i = 0; i < p->num_cases; i++)
        if (p->cases[i].predicted_us > 0)
            errors[num++] = fabs(p->cases[i].predicted_us / p->cases[i].us[2].median - 1);
    weft_report_cell(r, "B:M:H", "%lld:%lld:%lld", (long long)p->shape.tokens,
                     (long long)p->shape.hidden, (long long)p->shape.ffn);
    weft_report_row(r, NULL, "comp/comm", WEFT_UNIT_FIXED,
                    (p->comp_us[0] + p->comp_us[1]) / (p->comm_us[0] + p->comm_us[1]));
    weft_report_row(r, NULL, "n 1 ms", WEFT_UNIT_FIXED, sync->us[2].median / 1e3);
    weft_report_cell(r, "best", "%s", best ? weft_bench_case_text(best, text, sizeof text) : "");
    weft_report_row(r, NULL, "ms", WEFT_UNIT_FIXED, p->best_us / 1e3);
    weft_report_cell(r, "model", "%d, %s", model->num_partitions,
                     weft_reuse_text((int)model->reuse));
    weft_report_row(r, NULL, "model of best", WEFT_UNIT_FIXED, p->model_us / p->best_us);
    weft_report_cell(r, "profile", "%d, %s", profile->num_partitions,
                     weft_reuse_text((int)profile->reuse));
    weft_report_row(r, NULL, "profile of best", WEFT_UNIT_FIXED, p->profile_us / p->best_us);
    weft_report_row(r, NULL, "trials", WEFT_UNIT_COUNT, p->num_trials);
    weft_report_row(r, NULL, "error", WEFT_UNIT_SHARE,
                    num > 0 ? weft_spread_of(errors, num).median : (double)NAN);
}

/* --- running ------------------------------------------------------------------------------- */

static weft_status get_cluster(weft_comm *world, const weft_bench_moe_options *o,
                               weft_cluster *cluster, const weft_cluster **out)
{
    *out = NULL;
    if (strcmp(o->cluster, "none") == 0)
        return WEFT_OK;
    *out = cluster;
    if (strcmp(o->cluster, "measure") != 0)
        return weft_comm_agree(world, weft_cluster_read(o->cluster, cluster));
    weft_device *device = NULL;
    WEFT_TRY(weft_comm_agree(world, weft_device_create_cpu(o->shape.num_threads, 0, &device)));
    unsigned kinds = 1u << WEFT_COST_ALL_TO_ALL | 1u << WEFT_COST_ALL_TO_ALL_INSIDE |
                     1u << WEFT_COST_COPY | 1u << WEFT_COST_TO_HOST | 1u << WEFT_COST_TO_DEVICE |
                     1u << WEFT_COST_GEMM_FP32 | 1u << WEFT_COST_GEMM_BF16;
    weft_status status = weft_measure_cluster(
        world, device,
        &(weft_measure_options){
            .max_bytes = 16u << 20, .seconds = 1, .kinds = kinds, .report_progress = true},
        cluster);
    weft_device_destroy(device);
    return status;
}

/* Of one layer all that is known; of a grid for people a line a layer. */
static weft_status run_points(weft_comm *world, const weft_bench_moe_options *o,
                              weft_report *report)
{
    static weft_bench_point p;
    weft_cluster cluster;
    const weft_cluster *known;
    const bool speaks = weft_comm_rank(world) == 0, is_grid = o->num_grid > 0;
    WEFT_TRY(get_cluster(world, o, &cluster, &known));
    if (o->common.json)
        weft_report_open(report, WEFT_REPORT_GROUP, "points");
    else if (is_grid)
        weft_report_open(report, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < (is_grid ? o->num_grid : 1); i++) {
        memset(&p, 0, sizeof p);
        p.shape = bench_shape_of(o, i);
        WEFT_TRY(weft_bench_moe_point(world, o, known, &p));
        if (!speaks)
            continue;
        if (o->common.json || is_grid)
            weft_report_record(report);
        if (o->common.json || !is_grid)
            report_point(report, &p);
        else
            report_line(report, &p);
    }
    if (o->common.json || is_grid)
        weft_report_close(report);
    return WEFT_OK;
}

static weft_status run(weft_comm *world, const weft_bench_moe_options *options)
{
    weft_bench_moe_options o = *options;
    weft_report report;
    weft_report_begin(&report, o.common.json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    if (o.shape.experts == 0)
        o.shape.experts = 2 * weft_comm_size(world);
    weft_status status =
        o.memory ? bench_moe_memory(world, &o, &report) : run_points(world, &o, &report);
    FILE *out = weft_comm_rank(world) == 0 ? stdout : NULL;
    return weft_comm_agree(world, weft_report_end(&report, status, out));
}

int weft_bench_moe_layer(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    weft_bench_moe_options options;
    weft_arena arena = {0};
    int code = parse(argc, argv, &options, &arena);
    weft_start start = weft_start_find();
    if (code < 0) {
        weft_status status = weft_start_world(&start);
        if (status == WEFT_OK)
            status = run(start.world, &options);
        code = weft_start_end(&start, status, "bench moe-layer");
    }
    weft_comm_destroy(start.world);
    weft_arena_release(&arena);
    return code;
}
