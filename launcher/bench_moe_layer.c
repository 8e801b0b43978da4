/* weft bench moe-layer. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "launcher/bench_moe.h"
#include "launcher/measure.h"
#include "launcher/verbs.h"

static void help(void)
{
    printf(
        "usage: weft bench moe-layer [options]     on the ranks of any launcher\n"
        "\n"
        "One MoE layer, forward and backward, experts over all ranks: the synchronous layer, the\n"
        "one split by peers, and every n and memory reuse asked for, paired; and what the cost\n"
        "model and the profile would have chosen.\n"
        "\n"
        "  --tokens B --hidden M --ffn H   the layer (default 2048, 512, 1024)\n"
        "  --experts E --topk K            default 2 a rank, 1\n"
        "  --swiglu, --precision fp32|bf16, --threads N (1), --mesh AXES\n"
        "  --partitions 1,2,4,8            the n to try\n"
        "  --reuse none,s1,...             the strategies to try (default none,s1,s2,s3,s4)\n"
        "  --ratio R                       bring computation to R times communication: by H, or\n"
        "  --pace                          by an accelerator that only takes its time, no CPU\n"
        "  --pace-flops F                  the same at a given rate, whatever the ratio\n"
        "  --balance sum|each              the ratio over both directions (default), or each\n"
        "  --grid B:M:H,B:M:H,...          several layers, a line each: choice against the best\n"
        "  --memory                        device memory by n and strategy, nothing timed\n"
        "  --cluster FILE|measure|none     costs to predict by (default measure)\n"
        "  --rounds N                      measured rounds (default 9)\n"
        "  --json FILE, --svg FILE         the same numbers (FILE -: stdout)\n"
        "  --trace FILE                    rank 0's measured timeline of the best, as SVG\n");
}

static bool parse_list(const char *text, int *out, int room, int *out_count)
{
    *out_count = 0;
    for (char *end; *out_count < room; text = end + 1) {
        long value = strtol(text, &end, 10);
        if (end == text || value < 1 || value > WEFT_MOE_MAX_PARTITIONS ||
            (*out_count > 0 && value <= out[*out_count - 1]))
            return false;
        out[(*out_count)++] = (int)value;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
    }
    return false;
}

static bool parse_reuses(const char *text, unsigned *out)
{
    *out = 0;
    while (*text) {
        size_t length = strcspn(text, ",");
        int found = -1;
        for (int i = 0; i < WEFT_NUM_REUSES; i++)
            if (strlen(weft_reuse_text(i)) == length &&
                strncmp(weft_reuse_text(i), text, length) == 0)
                found = i;
        if (found < 0)
            return false;
        *out |= 1u << found;
        text += length + (text[length] == ',');
    }
    return *out != 0;
}

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

static bool parse_size(const char *text, int64_t *out)
{
    char *end;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && *out > 0;
}

/* Options by the index of `rows`. */
static bool take_option(weft_bench_moe_options *o, int option, const char *value)
{
    int64_t number = 0;
    char *end;
    switch (option) {
    case 'B':
        return parse_size(value, &o->shape.tokens);
    case 'M':
        return parse_size(value, &o->shape.hidden);
    case 'H':
        return parse_size(value, &o->shape.ffn);
    case 'E':
        return parse_size(value, &o->shape.experts);
    case 'K':
        return parse_size(value, &o->shape.topk);
    case 't':
        if (!parse_size(value, &number) || number > 1024)
            return false;
        o->shape.num_threads = (int)number;
        return true;
    case 'N':
        if (!parse_size(value, &number) || number > WEFT_BENCH_MAX_ROUNDS)
            return false;
        o->common.rounds = (int)number;
        return true;
    case 'g':
        o->shape.swiglu = true;
        return true;
    case 'd':
        o->shape.dtype = strcmp(value, "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
        return strcmp(value, "bf16") == 0 || strcmp(value, "fp32") == 0;
    case 'm':
        o->shape.mesh = value;
        return true;
    case 'n':
        return parse_list(value, o->partitions, 16, &o->num_partitions);
    case 'S':
        return parse_reuses(value, &o->reuses);
    case 'r':
        o->ratio = strtod(value, &end);
        return end != value && *end == '\0' && o->ratio > 0 && isfinite(o->ratio);
    case 'p':
        o->pace = true;
        return true;
    case 'F':
        o->pace = true;
        o->pace_flops = strtod(value, &end);
        return end != value && *end == '\0' && o->pace_flops > 0 && isfinite(o->pace_flops);
    case 'b':
        o->balanced = strcmp(value, "each") == 0;
        return o->balanced || strcmp(value, "sum") == 0;
    case 'G':
        return parse_grid(value, o);
    case 'Y':
        o->memory = true;
        return true;
    case 'c':
        o->cluster = value;
        return true;
    case 'j':
        o->common.json = value;
        return true;
    case 's':
        o->common.svg = value;
        return true;
    case 'T':
        o->trace = value;
        return true;
    default:
        return false;
    }
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, weft_bench_moe_options *o)
{
    static const struct option options[] = {{"tokens", required_argument, NULL, 'B'},
                                            {"hidden", required_argument, NULL, 'M'},
                                            {"ffn", required_argument, NULL, 'H'},
                                            {"experts", required_argument, NULL, 'E'},
                                            {"topk", required_argument, NULL, 'K'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"rounds", required_argument, NULL, 'N'},
                                            {"swiglu", no_argument, NULL, 'g'},
                                            {"precision", required_argument, NULL, 'd'},
                                            {"mesh", required_argument, NULL, 'm'},
                                            {"partitions", required_argument, NULL, 'n'},
                                            {"reuse", required_argument, NULL, 'S'},
                                            {"ratio", required_argument, NULL, 'r'},
                                            {"pace", no_argument, NULL, 'p'},
                                            {"pace-flops", required_argument, NULL, 'F'},
                                            {"balance", required_argument, NULL, 'b'},
                                            {"grid", required_argument, NULL, 'G'},
                                            {"memory", no_argument, NULL, 'Y'},
                                            {"cluster", required_argument, NULL, 'c'},
                                            {"json", required_argument, NULL, 'j'},
                                            {"svg", required_argument, NULL, 's'},
                                            {"trace", required_argument, NULL, 'T'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    *o = (weft_bench_moe_options){
        .common = {.rounds = 9},
        .shape = {.tokens = 2048, .hidden = 512, .ffn = 1024, .topk = 1, .num_threads = 1},
        .partitions = {1, 2, 4, 8},
        .num_partitions = 4,
        .reuses = (1u << WEFT_NUM_REUSES) - 1,
        .cluster = "measure"};
    o->shape.dtype = WEFT_F32;
    int option;
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            help();
            return 0;
        }
        if (!take_option(o, option, optarg)) {
            WEFT_ERROR(WEFT_CONFIG,
                       "%s: unknown option or bad value; see weft bench moe-layer "
                       "--help",
                       argv[optind - 1]);
            return weft_verb_fail("bench moe-layer");
        }
    }
    if (optind == argc)
        return -1;
    WEFT_ERROR(WEFT_CONFIG, "%s: no such argument; see weft bench moe-layer --help", argv[optind]);
    return weft_verb_fail("bench moe-layer");
}

/* --- reporting ----------------------------------------------------------------------------- */

static double bound_us(const weft_bench_point *p)
{
    return fmax(p->comm_us[0], p->comp_us[0]) + fmax(p->comm_us[1], p->comp_us[1]);
}

static void print_head(const weft_bench_point *p)
{
    printf("%lld tokens a rank, M %lld, H %lld, %lld experts top-%lld, %s\n"
           "alone: communication %.2f + %.2f ms, computation %.2f + %.2f ms (forward + backward)\n",
           (long long)p->shape.tokens, (long long)p->shape.hidden, (long long)p->shape.ffn,
           (long long)p->shape.experts, (long long)p->shape.topk, weft_dtype_text(p->shape.dtype),
           p->comm_us[0] / 1e3, p->comm_us[1] / 1e3, p->comp_us[0] / 1e3, p->comp_us[1] / 1e3);
    if (p->pace_flops[0] > 0)
        printf("paced: %.3g and %.3g FLOP/s\n", p->pace_flops[0], p->pace_flops[1]);
}

static void fill_row(weft_table *t, const weft_bench_point *p, const weft_bench_case *c)
{
    const weft_bench_case *sync = weft_bench_find(p, WEFT_BENCH_SYNCHRONOUS, NULL);
    const weft_bench_case *peers = weft_bench_find(p, WEFT_BENCH_PEERS, NULL);
    const weft_bench_case *nodes = weft_bench_find(p, WEFT_BENCH_NODES, NULL);
    double us = c->us[2].median;
    char text[48];
    weft_table_cell(t, 0, "%s", weft_bench_case_text(c, text, sizeof text));
    weft_table_cell(t, 1, "%.2f", c->us[0].median / 1e3);
    weft_table_cell(t, 2, "%.2f", c->us[1].median / 1e3);
    weft_table_cell(t, 3, "%.2f", us / 1e3);
    weft_table_cell(t, 4, "%.2f-%.2f", c->us[2].low / 1e3, c->us[2].high / 1e3);
    weft_table_cell(t, 5, "%.2f", sync->us[2].median / us);
    weft_table_cell(t, 6, "%.2f", peers->us[2].median / us);
    if (nodes)
        weft_table_cell(t, 7, "%.2f", nodes->us[2].median / us);
    weft_table_cell(t, 8, "%.0f %%", 100 * bound_us(p) / us);
    if (c->predicted_us > 0) {
        weft_table_cell(t, 9, "%.2f", c->predicted_us / 1e3);
        weft_table_cell(t, 10, "%+.0f %%", 100 * (c->predicted_us / us - 1));
    }
}

static void print_choices(const weft_bench_point *p)
{
    const weft_moe_pipeline *model = &p->model_choice.pipeline;
    const weft_moe_pipeline *profile = &p->profile_choice.pipeline;
    if (p->model_us > 0)
        printf("the model chooses n %d, %s in %.2f ms: %.2f of the best\n", model->num_partitions,
               weft_reuse_text((int)model->reuse), p->model_cost_us / 1e3,
               p->model_us / p->best_us);
    if (p->profile_us > 0)
        printf("the profile chooses n %d, %s after %d trials: %.2f of the best\n",
               profile->num_partitions, weft_reuse_text((int)profile->reuse), p->num_trials,
               p->profile_us / p->best_us);
}

static weft_status print_point(const weft_bench_point *p)
{
    static const char *const heads[] = {
        "form",       "forward ms", "backward ms",  "both ms",      "quartiles", "x synchronous",
        "x by peers", "x by nodes", "of the bound", "predicted ms", "error"};
    weft_table table = {0};
    WEFT_TRY(weft_table_begin(&table, heads, sizeof heads / sizeof *heads));
    print_head(p);
    weft_status status = WEFT_OK;
    for (int i = 0; i < p->num_cases && status == WEFT_OK; i++) {
        status = weft_table_row(&table);
        if (status == WEFT_OK)
            fill_row(&table, p, &p->cases[i]);
    }
    if (status == WEFT_OK)
        weft_table_print(&table, stdout);
    weft_table_release(&table);
    print_choices(p);
    fflush(stdout);
    return status;
}

static cJSON *point_json(const weft_bench_point *p)
{
    static const char *const parts[] = {"forward_us", "backward_us", "us"};
    cJSON *json = cJSON_CreateObject(), *cases = cJSON_CreateArray();
    cJSON_AddNumberToObject(json, "tokens", (double)p->shape.tokens);
    cJSON_AddNumberToObject(json, "hidden", (double)p->shape.hidden);
    cJSON_AddNumberToObject(json, "ffn", (double)p->shape.ffn);
    cJSON_AddNumberToObject(json, "experts", (double)p->shape.experts);
    cJSON_AddItemToObject(json, "communication_us", cJSON_CreateDoubleArray(p->comm_us, 2));
    cJSON_AddItemToObject(json, "computation_us", cJSON_CreateDoubleArray(p->comp_us, 2));
    cJSON_AddItemToObject(json, "pace_flops", cJSON_CreateDoubleArray(p->pace_flops, 2));
    cJSON_AddItemToObject(json, "cases", cases);
    for (int i = 0; i < p->num_cases; i++) {
        const weft_bench_case *c = &p->cases[i];
        cJSON *row = cJSON_CreateObject();
        char text[48];
        cJSON_AddStringToObject(row, "form", weft_bench_case_text(c, text, sizeof text));
        for (int k = 0; k < 3; k++) {
            double spread[] = {c->us[k].low, c->us[k].median, c->us[k].high};
            cJSON_AddItemToObject(row, parts[k], cJSON_CreateDoubleArray(spread, 3));
        }
        if (c->predicted_us > 0)
            cJSON_AddNumberToObject(row, "predicted_us", c->predicted_us);
        cJSON_AddItemToArray(cases, row);
    }
    cJSON_AddNumberToObject(json, "best_us", p->best_us);
    cJSON_AddNumberToObject(json, "model_choice_us", p->model_us);
    cJSON_AddNumberToObject(json, "profile_choice_us", p->profile_us);
    cJSON_AddNumberToObject(json, "profile_trials", p->num_trials);
    cJSON_AddNumberToObject(json, "model_cost_us", p->model_cost_us);
    return json;
}

/* One line a point of a grid. */
static weft_status print_grid_row(weft_table *t, const weft_bench_point *p)
{
    const weft_bench_case *best = weft_bench_best(p);
    const weft_bench_case *sync = weft_bench_find(p, WEFT_BENCH_SYNCHRONOUS, NULL);
    double errors[WEFT_BENCH_MAX_CASES];
    int num = 0;
    char text[48];
    for (int i = 0; i < p->num_cases; i++)
        if (p->cases[i].predicted_us > 0)
            errors[num++] = fabs(p->cases[i].predicted_us / p->cases[i].us[2].median - 1);
    WEFT_TRY(weft_table_row(t));
    weft_table_cell(t, 0, "%lld:%lld:%lld", (long long)p->shape.tokens, (long long)p->shape.hidden,
                    (long long)p->shape.ffn);
    weft_table_cell(t, 1, "%.2f",
                    (p->comp_us[0] + p->comp_us[1]) / (p->comm_us[0] + p->comm_us[1]));
    weft_table_cell(t, 2, "%.2f", sync->us[2].median / 1e3);
    weft_table_cell(t, 3, "%s", best ? weft_bench_case_text(best, text, sizeof text) : "");
    weft_table_cell(t, 4, "%.2f", p->best_us / 1e3);
    weft_table_cell(t, 5, "%d, %s", p->model_choice.pipeline.num_partitions,
                    weft_reuse_text((int)p->model_choice.pipeline.reuse));
    weft_table_cell(t, 6, "%.3f", p->model_us / p->best_us);
    weft_table_cell(t, 7, "%d, %s", p->profile_choice.pipeline.num_partitions,
                    weft_reuse_text((int)p->profile_choice.pipeline.reuse));
    weft_table_cell(t, 8, "%.3f", p->profile_us / p->best_us);
    weft_table_cell(t, 9, "%d", p->num_trials);
    weft_table_cell(t, 10, "%.0f %%", num > 0 ? 100 * weft_spread_of(errors, num).median : NAN);
    return WEFT_OK;
}

static weft_status write_svg(const weft_bench_moe_options *o, const weft_bench_point *p)
{
    static char texts[WEFT_BENCH_MAX_CASES][48];
    const char *labels[WEFT_BENCH_MAX_CASES], *groups[] = {"forward", "backward", "both"};
    weft_spread values[3 * WEFT_BENCH_MAX_CASES];
    for (int i = 0; i < p->num_cases; i++) {
        labels[i] = weft_bench_case_text(&p->cases[i], texts[i], sizeof texts[i]);
        for (int k = 0; k < 3; k++) {
            weft_spread *v = &values[k * p->num_cases + i];
            *v = p->cases[i].us[k];
            v->median /= 1e3;
            v->low /= 1e3;
            v->high /= 1e3;
        }
    }
    weft_bars bars = {.title = "one MoE layer",
                      .unit = "ms",
                      .num_groups = 3,
                      .num_bars = p->num_cases,
                      .groups = groups,
                      .labels = labels,
                      .values = values};
    FILE *out = fopen(o->common.svg, "w");
    if (!out)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write", o->common.svg);
    weft_status status = weft_bars_write_svg(&bars, out);
    if (fclose(out) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write", o->common.svg);
    return status;
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
        &(weft_measure_options){.max_bytes = 16u << 20, .seconds = 1, .kinds = kinds}, cluster);
    weft_device_destroy(device);
    return status;
}

static weft_status run_points(weft_comm *world, const weft_bench_moe_options *o, cJSON *json)
{
    static const char *const heads[] = {"B:M:H",   "comp/comm", "n 1 ms",  "best",
                                        "ms",      "model",     "of best", "profile",
                                        "of best", "trials",    "error"};
    static weft_bench_point p;
    weft_cluster cluster;
    const weft_cluster *known;
    weft_table table = {0};
    bool speaks = weft_comm_rank(world) == 0;
    WEFT_TRY(get_cluster(world, o, &cluster, &known));
    WEFT_TRY(weft_table_begin(&table, heads, sizeof heads / sizeof *heads));
    cJSON *points = cJSON_AddArrayToObject(json, "points");
    weft_status status = WEFT_OK;
    for (int i = 0; i < (o->num_grid > 0 ? o->num_grid : 1) && status == WEFT_OK; i++) {
        memset(&p, 0, sizeof p);
        p.shape = o->shape;
        if (o->num_grid > 0) {
            p.shape.tokens = o->grid[i][0];
            p.shape.hidden = o->grid[i][1];
            p.shape.ffn = o->grid[i][2];
        }
        status = weft_bench_moe_point(world, o, known, &p);
        if (status != WEFT_OK || !speaks)
            continue;
        cJSON_AddItemToArray(points, point_json(&p));
        status = o->num_grid > 0 ? print_grid_row(&table, &p) : print_point(&p);
    }
    if (status == WEFT_OK && speaks && o->num_grid > 0)
        weft_table_print(&table, stdout);
    weft_table_release(&table);
    if (status == WEFT_OK && speaks && o->common.svg)
        status = write_svg(o, &p);
    return status;
}

static weft_status run(weft_comm *world, const weft_bench_moe_options *options)
{
    weft_bench_moe_options o = *options;
    cJSON *json = cJSON_CreateObject();
    if (o.shape.experts == 0)
        o.shape.experts = 2 * weft_comm_size(world);
    weft_status status =
        o.memory ? weft_bench_moe_memory(world, &o, json) : run_points(world, &o, json);
    if (status == WEFT_OK && o.common.json && weft_comm_rank(world) == 0)
        status = weft_bench_write_json(json, o.common.json);
    cJSON_Delete(json);
    return weft_comm_agree(world, status);
}

int weft_bench_moe_layer(int argc, char **argv)
{
    weft_bench_moe_options options;
    weft_comm *world = NULL;
    int code = parse(argc, argv, &options), rank = 0, size = 1;
    if (code >= 0)
        return code;
    bool launched = weft_comm_launched(&rank, &size, NULL, NULL);
    weft_log_set_rank(rank);
    weft_status status = launched ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
    if (status == WEFT_OK)
        status = run(world, &options);
    if (status != WEFT_OK)
        code = rank == 0 ? weft_verb_fail("bench moe-layer") : weft_status_exit_code(status);
    weft_comm_destroy(world);
    return status == WEFT_OK ? 0 : code;
}
