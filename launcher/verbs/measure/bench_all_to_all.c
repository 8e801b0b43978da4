/* weft bench all-to-all: its options, and the order of its measurements. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments/arguments.h"
#include "launcher/measuring/bench_exchange.h"
#include "launcher/measuring/measure.h"
#include "launcher/process/output.h"
#include "launcher/verbs/measure/measure.h"

/* --- reporting ------------------------------------------------------------------------------- */

static double error_of(const weft_exchange_variant *v)
{
    return v->time.median > 0 ? v->predicted_us / v->time.median - 1 : 0;
}

/* How much longer the chosen form took than the fastest. */
static double behind_best(const weft_exchange_result *r)
{
    return r->variants[r->chosen].time.median / r->variants[r->best].time.median - 1;
}

static void size_text(double bytes, char out[32])
{
    if (bytes >= 1048576)
        snprintf(out, 32, "%.4g MiB", bytes / 1048576);
    else
        snprintf(out, 32, "%.4g KiB", bytes / 1024);
}

static void report_variant(weft_report *r, const weft_exchange_result *result, int i, int rounds)
{
    static const char *const keys[] = {"times_baseline", "times_o1_paper", "times_bare"};
    static const char *const titles[] = {"x baseline", "x o1_paper", "x bare"};
    const weft_exchange_variant *v = &result->variants[i];
    const bool is_chosen = i == result->chosen, is_best = i == result->best;
    char text[32];
    weft_exchange_variant_text(v, text);
    weft_report_record(r);
    weft_report_cell(r, "form", "%s", text);
    weft_report_text(r, "form", NULL, v->is_bare ? "bare" : weft_exchange_text((int)v->form));
    weft_report_row(r, NULL, "ms", WEFT_UNIT_FIXED, v->time.median / 1e3);
    weft_report_cell(r, "quartiles", "%.2f-%.2f", v->time.low / 1e3, v->time.high / 1e3);
    weft_bench_report_spread(r, "us", &v->time);
    weft_report_numbers(r, "rounds_us", v->us, (size_t)rounds);
    for (int k = 0; k < 3; k++) {
        weft_bench_report_spread(r, keys[k], &v->speed[k]);
        if (v->speed[k].count > 0)
            weft_report_row(r, NULL, titles[k], WEFT_UNIT_FIXED, v->speed[k].median);
    }
    if (!v->is_bare) {
        weft_report_value(r, "chunks", v->num_chunks);
        weft_report_bool(r, "tried", v->tried);
        weft_report_value(r, "predicted_us", v->predicted_us);
        weft_report_row(r, NULL, "predicted ms", WEFT_UNIT_FIXED, v->predicted_us / 1e3);
        weft_report_row(r, "error", "error", WEFT_UNIT_CHANGE, error_of(v));
        weft_report_bool(r, "data_checked", true); /* one that is wrong ends the run */
    }
    weft_report_cell(r, "", "%s%s%s", is_chosen ? "chosen" : "", is_chosen && is_best ? ", " : "",
                     is_best ? "fastest" : "");
}

static void report_choice(weft_report *r, const weft_exchange_result *result)
{
    const weft_exchange_variant *best = &result->variants[result->best];
    weft_report_open(r, WEFT_REPORT_OBJECT, "choice");
    weft_report_text(r, "form", NULL, weft_exchange_text((int)result->choice.form));
    weft_report_value(r, "chunks", result->choice.num_chunks);
    weft_report_value(r, "predicted_us", result->choice.us);
    weft_report_text(r, "reason", NULL, result->choice.reason);
    weft_report_value(r, "behind_best", behind_best(result));
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "best");
    weft_report_text(r, "form", NULL, weft_exchange_text((int)best->form));
    weft_report_value(r, "chunks", best->num_chunks);
    weft_report_close(r);
}

static void print_verdict(const weft_exchange_result *r, FILE *out)
{
    const weft_exchange_variant *v = &r->variants[r->chosen];
    char text[32];
    weft_exchange_variant_text(v, text);
    fprintf(out, "chosen: %s", text);
    if (v->speed[WEFT_BENCH_BASELINE].count > 0)
        fprintf(out, ", %.2f times the baseline", v->speed[WEFT_BENCH_BASELINE].median);
    if (v->speed[WEFT_BENCH_O1_PAPER].count > 0)
        fprintf(out, ", %.2f times o1_paper", v->speed[WEFT_BENCH_O1_PAPER].median);
    fprintf(out, ", time against the bare I/t %+.1f %%, against the fastest %+.1f %%\n\n",
            100 * (1 / v->speed[WEFT_BENCH_BARE].median - 1), 100 * behind_best(r));
}

static void report_result(weft_report *r, const weft_exchange_result *result, int rounds)
{
    FILE *out = weft_report_stream(r, WEFT_REPORT_TEXT);
    char text[32];
    size_text(result->bytes, text);
    weft_report_line(r, "I = %s (%d a measurement)", text, result->train);
    weft_report_value(r, "bytes", result->bytes);
    weft_report_value(r, "model_bytes", result->model_bytes);
    weft_report_value(r, "train", result->train);
    report_choice(r, result);
    weft_report_open(r, WEFT_REPORT_TABLE, "results");
    for (int i = 0; i < result->num_variants; i++)
        report_variant(r, result, i, rounds);
    weft_report_close(r);
    if (out)
        print_verdict(result, out);
}

/* Prints the table of the last result; before the first table, what the tables show. */
static weft_status exchange_print_last(const weft_exchange_report *report, FILE *out)
{
    const weft_exchange_rig *rig = report->rig;
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_TEXT);
    if (report->num_results == 1)
        weft_report_line(&r, "\n%d nodes x %d ranks%s; medians of %d paired rounds\n",
                         weft_comm_size(rig->between), weft_comm_size(rig->inside),
                         rig->uneven ? ", uneven blocks" : "", report->rounds);
    report_result(&r, &report->results[report->num_results - 1], report->rounds);
    return weft_report_end(&r, WEFT_OK, out);
}

/* Prints JSON on standard output. */
static weft_status exchange_json(const weft_exchange_report *report)
{
    const weft_exchange_rig *rig = report->rig;
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_JSON);
    weft_report_text(&r, "bench", NULL, "all-to-all");
    weft_report_value(&r, "nodes", weft_comm_size(rig->between));
    weft_report_value(&r, "ranks_per_node", weft_comm_size(rig->inside));
    weft_report_bool(&r, "uneven", rig->uneven);
    weft_report_value(&r, "rounds", report->rounds);
    weft_report_open(&r, WEFT_REPORT_GROUP, "sizes");
    for (int i = 0; i < report->num_results; i++) {
        weft_report_record(&r);
        report_result(&r, &report->results[i], report->rounds);
    }
    weft_report_close(&r);
    weft_cluster_write_json(report->cluster, "cluster", &r.json);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* --- drawing ------------------------------------------------------------------------------- */

enum { BAR_BARE, BAR_FIRST_FORM, BAR_CHOSEN = BAR_FIRST_FORM + WEFT_NUM_EXCHANGES, NUM_BARS };

/* Of a form, its best number of chunks. */
static void fill_bars(const weft_exchange_result *r, weft_spread *bars)
{
    for (int i = 0; i < r->num_variants; i++) {
        const weft_exchange_variant *v = &r->variants[i];
        const weft_spread ms = weft_spread_ms(&v->time);
        weft_spread *bar = &bars[v->is_bare ? BAR_BARE : BAR_FIRST_FORM + (int)v->form];
        if (bar->count == 0 || ms.median < bar->median)
            *bar = ms;
        if (i == r->chosen)
            bars[BAR_CHOSEN] = ms;
    }
}

static weft_status exchange_svg(const weft_exchange_report *report, const char *path)
{
    weft_spread values[WEFT_BENCH_MAX_SIZES * NUM_BARS] = {{0}};
    char groups[WEFT_BENCH_MAX_SIZES][32];
    const char *group_texts[WEFT_BENCH_MAX_SIZES], *labels[NUM_BARS];
    labels[BAR_BARE] = "bare all-to-all of I/t";
    labels[BAR_CHOSEN] = "as the model chose";
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++)
        labels[BAR_FIRST_FORM + form] = weft_exchange_text(form);
    for (int i = 0; i < report->num_results; i++) {
        size_text(report->results[i].bytes, groups[i]);
        group_texts[i] = groups[i];
        fill_bars(&report->results[i], values + (size_t)i * NUM_BARS);
    }
    char title[128];
    snprintf(title, sizeof title, "All-to-all of experts, %d nodes × %d ranks",
             weft_comm_size(report->rig->between), weft_comm_size(report->rig->inside));
    weft_bars bars = {.title = title,
                      .unit = "ms",
                      .legend =
                          "groups: I, the bytes that a rank sends; t: ranks of a node; o1_paper "
                          "to direct: MoNTA's forms, each with its best number of chunks",
                      .num_groups = report->num_results,
                      .num_bars = NUM_BARS,
                      .groups = group_texts,
                      .labels = labels,
                      .values = values};
    return weft_bench_write_svg(&bars, path);
}

/* --- the verb -------------------------------------------------------------------------------- */

enum { MAX_ROUNDS = 1000 };
/* The timed operations of a measurement take about this: the clock's grain then does not show. */
static const double train_us = 200e3;

typedef struct arguments {
    weft_bench_options common;
    weft_int_list sizes, chunks;
    unsigned forms; /* bit i: form i */
    int inside;
    int64_t minimal; /* bytes */
    double seconds;
    bool uneven;
    const char *cluster;
} arguments;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *args, weft_arena *arena)
{
    static const int64_t sizes[] = {4 << 20, 16 << 20, 64 << 20}, chunks[] = {1, 2, 4, 8, 16};
    const char *forms[WEFT_NUM_EXCHANGES];
    const weft_argument rows[] = {
        {"sizes", "I,...", "bytes a rank sends in the baseline, its own block included",
         .list = &args->sizes, .is_bytes = true, .min = 1024, .max = 17179869184.0,
         .most = WEFT_BENCH_MAX_SIZES},
        {"chunks", "N,...", "chunks that o2, o3 and direct are tried with, besides those chosen",
         .list = &args->chunks, .min = 1, .max = WEFT_EXCHANGE_MAX_CHUNKS,
         .most = WEFT_BENCH_MAX_CHUNKS},
        {"forms", "F,...", "baseline, o1_paper, o1, o2, o3, direct", .set = &args->forms,
         .names = forms, .num_names = WEFT_NUM_EXCHANGES},
        {"uneven", NULL, "blocks of different sizes, as popular experts make them",
         .flag = &args->uneven},
        {"inside", "N", "take N consecutive ranks for a node (those that share memory)",
         .count = &args->inside, .min = 2, .max = 1e6},
        {"cluster", "FILE", "the costs, by weft calibrate, instead of measuring them",
         .text = &args->cluster},
        {"seconds", "S", "time for measuring a cost", .number = &args->seconds, .min = 1,
         .max = 3600},
        {"minimal", "I", "smallest slice that the model may choose", .whole = &args->minimal,
         .is_bytes = true, .min = 1, .max = 17179869184.0},
        {"rounds", "N", "measured rounds, after one untimed", .count = &args->common.rounds,
         .min = 1, .max = MAX_ROUNDS},
        {"json", NULL, "all numbers as one JSON object on standard output instead of tables",
         .flag = &args->common.json},
        {"svg", "FILE", "a drawing", .text = &args->common.svg},
    };
    const weft_arguments verb = {
        .verb = "bench all-to-all",
        .about = "The all-to-all of experts that are tensor-sharded, in all its forms. The t ranks "
                 "of a node hold\nthe same tokens, rank j of each node exchanges them with rank j "
                 "of the others. Every form is\ntimed in turn, round by round, beside the bare "
                 "all-to-all of I / t, and its data checked. What the\nlinks cost is measured "
                 "before, and the model's time and choice stand beside what was measured.\n"
                 "Needs two nodes of two ranks.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    *args = (arguments){.common.rounds = 9,
                        .sizes = {sizes, sizeof sizes / sizeof *sizes, true},
                        .chunks = {chunks, sizeof chunks / sizeof *chunks, true},
                        .forms = (1u << WEFT_NUM_EXCHANGES) - 1,
                        .minimal = 64 << 10,
                        .seconds = 3};
    for (int i = 0; i < WEFT_NUM_EXCHANGES; i++)
        forms[i] = weft_exchange_text(i);
    return weft_arguments_parse(&verb, argc, argv, arena);
}

static double largest_of(const arguments *args)
{
    double largest = 0;
    for (size_t i = 0; i < args->sizes.count; i++)
        largest = fmax(largest, (double)args->sizes.values[i]);
    return largest;
}

/* --- one size ------------------------------------------------------------------------------ */

static weft_exchange_shape shape_of(const arguments *args, const weft_exchange_rig *rig,
                                    double bytes)
{
    return (weft_exchange_shape){.bytes = bytes,
                                 .t = weft_comm_size(rig->inside),
                                 .e = weft_comm_size(rig->between),
                                 .minimal_bytes = (double)args->minimal};
}

static weft_status add_variant(weft_exchange_result *result, weft_exchange_variant variant,
                               int rounds)
{
    for (int i = 0; i < result->num_variants; i++) {
        weft_exchange_variant *v = &result->variants[i];
        if (v->is_bare == variant.is_bare && v->form == variant.form &&
            v->num_chunks == variant.num_chunks) {
            v->tried = v->tried || variant.tried;
            return WEFT_OK;
        }
    }
    variant.us = calloc((size_t)rounds, sizeof(double));
    if (!variant.us)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: bench all-to-all");
    result->variants[result->num_variants++] = variant;
    return WEFT_OK;
}

/* The bare one first, then the forms: one of no chunks once, the others in each count to try and
 * in the model's. */
static weft_status list_variants(const arguments *args, weft_exchange_result *result)
{
    int rounds = args->common.rounds;
    WEFT_TRY(add_variant(result, (weft_exchange_variant){.is_bare = true}, rounds));
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++) {
        weft_exchange_variant v = {.form = (weft_exchange_form)form, .num_chunks = 1};
        if (!(args->forms >> form & 1))
            continue;
        if (form < WEFT_EXCHANGE_O2) {
            v.tried = true;
            WEFT_TRY(add_variant(result, v, rounds));
            continue;
        }
        v.num_chunks = result->choice.best_chunks[form];
        WEFT_TRY(add_variant(result, v, rounds));
        v.tried = true;
        for (size_t i = 0; i < args->chunks.count; i++) {
            v.num_chunks = (int)args->chunks.values[i];
            WEFT_TRY(add_variant(result, v, rounds));
        }
    }
    return WEFT_OK;
}

static int find_variant(const weft_exchange_result *result, bool is_bare, weft_exchange_form form,
                        int num_chunks)
{
    for (int i = 0; i < result->num_variants; i++) {
        const weft_exchange_variant *v = &result->variants[i];
        if (v->is_bare == is_bare && (is_bare || (v->form == form && v->num_chunks == num_chunks)))
            return i;
    }
    return -1;
}

static weft_status measure_rounds(const arguments *args, weft_exchange_rig *rig,
                                  weft_exchange_result *result)
{
    double us, bare_us = 0;
    for (int i = 0; i < result->num_variants; i++) {
        WEFT_TRY(weft_exchange_rig_check(rig, &result->variants[i]));
        WEFT_TRY(weft_exchange_rig_time(rig, &result->variants[i], 1, &us));
        if (result->variants[i].is_bare)
            bare_us = fmax(us, 1);
    }
    result->train = (int)fmin(fmax(ceil(train_us / bare_us), 1), WEFT_BENCH_MAX_TRAIN);
    const double start_us = weft_now_us();
    for (int round = 0; round < args->common.rounds; round++)
        for (int i = 0; i < result->num_variants; i++) {
            weft_bench_tell(weft_comm_rank(rig->world) == 0, "%s: round %d of %d, form %d of %d%s",
                            weft_bytes_text(result->bytes).text, round + 1, args->common.rounds,
                            i + 1, result->num_variants,
                            weft_bench_left(weft_now_us() - start_us,
                                            round * result->num_variants + i,
                                            args->common.rounds * result->num_variants)
                                .text);
            WEFT_TRY(weft_exchange_rig_time(rig, &result->variants[i], result->train,
                                            &result->variants[i].us[round]));
        }
    return WEFT_OK;
}

/* Ratios are of one round: what slows a round down slows all of it down. */
static void find_speeds(weft_exchange_result *result, const weft_exchange_variant *against,
                        int which, int rounds)
{
    double ratios[MAX_ROUNDS];
    for (int i = 0; against && i < result->num_variants; i++) {
        for (int round = 0; round < rounds; round++)
            ratios[round] = against->us[round] / result->variants[i].us[round];
        result->variants[i].speed[which] = weft_spread_of(ratios, rounds);
    }
}

static void judge(weft_exchange_result *result, int rounds)
{
    int at[3] = {find_variant(result, false, WEFT_EXCHANGE_BASELINE, 1),
                 find_variant(result, false, WEFT_EXCHANGE_O1_PAPER, 1),
                 find_variant(result, true, WEFT_EXCHANGE_BASELINE, 0)};
    for (int which = 0; which < 3; which++)
        find_speeds(result, at[which] < 0 ? NULL : &result->variants[at[which]], which, rounds);
    result->best = -1;
    for (int i = 0; i < result->num_variants; i++) {
        weft_exchange_variant *v = &result->variants[i];
        double sorted[MAX_ROUNDS]; /* rounds stay in their order for the ratios */
        memcpy(sorted, v->us, (size_t)rounds * sizeof *sorted);
        v->time = weft_spread_of(sorted, rounds);
        if (!v->is_bare &&
            (result->best < 0 || v->time.median < result->variants[result->best].time.median))
            result->best = i;
    }
    result->chosen = find_variant(result, false, result->choice.form, result->choice.num_chunks);
}

static weft_status measure_size(const arguments *args, weft_exchange_rig *rig,
                                const weft_cluster *cluster, weft_exchange_result *result)
{
    WEFT_TRY(weft_exchange_rig_load(rig, result->bytes, &result->model_bytes));
    weft_exchange_shape shape = shape_of(args, rig, result->model_bytes);
    WEFT_TRY(weft_choose_exchange(cluster, &shape, args->forms, &result->choice));
    WEFT_TRY(weft_comm_agree(rig->world, list_variants(args, result)));
    for (int i = 0; i < result->num_variants; i++) {
        weft_exchange_variant *v = &result->variants[i];
        if (!v->is_bare)
            v->predicted_us = weft_exchange_us(cluster, &shape, v->form, v->num_chunks);
    }
    WEFT_TRY(measure_rounds(args, rig, result));
    judge(result, args->common.rounds);
    return WEFT_OK;
}

/* --- all of it ----------------------------------------------------------------------------- */

static weft_status get_cluster(const arguments *args, weft_exchange_rig *rig, weft_cluster *out)
{
    if (args->cluster)
        return weft_comm_agree(rig->world, weft_cluster_read(args->cluster, out));
    weft_measure_options options = {.max_bytes = (size_t)(2 * largest_of(args)),
                                    .seconds = args->seconds,
                                    .ranks_per_node = weft_comm_size(rig->inside),
                                    .no_interference = true,
                                    .kinds = 1u << WEFT_COST_ALL_TO_ALL |
                                             1u << WEFT_COST_ALL_GATHER | 1u << WEFT_COST_COPY,
                                    .report_progress = true};
    return weft_measure_cluster(rig->world, rig->device, &options, out);
}

static weft_status write_all(const arguments *args, const weft_exchange_report *report)
{
    if (args->common.json)
        WEFT_TRY(exchange_json(report));
    if (args->common.svg)
        WEFT_TRY(exchange_svg(report, args->common.svg));
    weft_output_tell_written(args->common.svg, args->common.json);
    return WEFT_OK;
}

/* Each size is shown as soon as it is measured. */
static weft_status measure_all(const arguments *args, weft_exchange_rig *rig,
                               weft_exchange_result *results)
{
    weft_cluster cluster;
    weft_exchange_report report = {
        .rig = rig, .cluster = &cluster, .results = results, .rounds = args->common.rounds};
    bool writes = weft_comm_rank(rig->world) == 0;
    bool prints = writes && !args->common.json;
    WEFT_TRY(get_cluster(args, rig, &cluster));
    for (int i = 0; i < (int)args->sizes.count; i++) {
        results[i].bytes = (double)args->sizes.values[i];
        WEFT_TRY(measure_size(args, rig, &cluster, &results[i]));
        report.num_results = i + 1;
        WEFT_TRY(
            weft_comm_agree(rig->world, prints ? exchange_print_last(&report, stdout) : WEFT_OK));
    }
    return weft_comm_agree(rig->world, writes ? write_all(args, &report) : WEFT_OK);
}

static weft_status run(const arguments *args, weft_comm *world)
{
    static weft_exchange_result results[WEFT_BENCH_MAX_SIZES];
    weft_exchange_rig rig = {0};
    weft_device *device = NULL;
    weft_status status = weft_comm_agree(world, weft_device_create_cpu(1, 0, &device));
    if (status == WEFT_OK)
        status = weft_exchange_rig_init(&rig, world, device, args->inside, largest_of(args),
                                        args->uneven);
    if (status == WEFT_OK)
        status = measure_all(args, &rig, results);
    if (status == WEFT_COMM || status == WEFT_DEVICE) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    for (int i = 0; i < WEFT_BENCH_MAX_SIZES; i++)
        for (int j = 0; j < results[i].num_variants; j++)
            free(results[i].variants[j].us);
    if (device)
        weft_exchange_rig_release(&rig);
    weft_device_destroy(device);
    return status;
}

int weft_bench_all_to_all(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    arguments args;
    weft_arena arena = {0};
    weft_comm *world = NULL;
    int rank = 0, code = parse(argc, argv, &args, &arena);
    bool launched = weft_comm_launched(&rank, NULL, NULL, NULL);
    weft_log_set_rank(rank);
    if (code < 0) {
        weft_status status =
            launched ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
        if (status == WEFT_OK)
            status = run(&args, world);
        code = status == WEFT_OK ? 0
               : rank == 0       ? weft_verb_fail("bench all-to-all")
                                 : weft_status_exit_code(status);
    }
    weft_comm_destroy(world);
    weft_arena_release(&arena);
    return code;
}
