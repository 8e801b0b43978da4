/* weft bench all-to-all: its options, and the order of its measurements. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/measuring/bench.h"
#include "launcher/measuring/measure.h"
#include "launcher/training/start.h"
#include "launcher/verbs/measure/measure.h"
#include "layers/moe/moe.h"

/* --- the forms of the experts' all-to-all, run and timed without a model --------------------- */

enum {
    WEFT_BENCH_MAX_SIZES = 8,
    WEFT_BENCH_MAX_CHUNKS = 8, /* counts to try */
    WEFT_BENCH_MAX_TRAIN = 64,
    /* the bare all-to-all; three forms of one chunk; the others with every count and the chosen */
    WEFT_BENCH_MAX_VARIANTS = 1 + 3 + 3 * (WEFT_BENCH_MAX_CHUNKS + 1),
};

/* A way to move the tokens, of one size. */
typedef struct exchange_variant {
    bool is_bare; /* the all-to-all between nodes of 1 / t of every block, and nothing else */
    weft_exchange_form form;
    int num_chunks;
    bool tried;           /* false: run only because the model chose it */
    double predicted_us;  /* 0: bare */
    double *us;           /* a round each */
    weft_spread time;     /* us */
    weft_spread speed[3]; /* baseline's, o1_paper's, bare's time over this one's, round by round */
} exchange_variant;

enum { WEFT_BENCH_BASELINE, WEFT_BENCH_O1_PAPER, WEFT_BENCH_BARE };

typedef struct exchange_result {
    double bytes;       /* I */
    double model_bytes; /* I of the even exchange that loads the busiest rank alike */
    int train;          /* operations a measurement */
    weft_exchange_choice choice;
    exchange_variant variants[WEFT_BENCH_MAX_VARIANTS];
    int num_variants;
    int chosen, best; /* indices; best: the fastest form; bare is no form */
} exchange_result;

/* Groups, lane and memory. Buffers hold the largest size. */
typedef struct exchange_rig {
    weft_comm *world, *between, *inside; /* world: borrowed */
    weft_device *device;                 /* borrowed */
    weft_lane *lane;
    bool uneven;
    char *send, *recv, *staging;
    size_t send_capacity, recv_capacity, staging_capacity, staging_used;
    char *host_staging;
    size_t host_used;
    size_t *send_bytes, *recv_bytes; /* [between], of the size at hand */
    size_t *bare_send_bytes, *bare_recv_bytes;
} exchange_rig;

typedef struct exchange_report {
    const exchange_rig *rig;
    const weft_cluster *cluster;
    const exchange_result *results;
    int num_results, rounds;
} exchange_report;

static const char what[] = "bench all-to-all";
enum { HOST_STAGING_BYTES = 1 << 16, STAGING_SLACK_BYTES = 1 << 20, POISON = 0xa5 };

/* --- groups and memory --------------------------------------------------------------------- */

/* Alike on all ranks, or an error on all. */
static weft_status check_groups(const exchange_rig *rig)
{
    int64_t sizes[2] = {weft_comm_size(rig->inside), -weft_comm_size(rig->inside)};
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, sizes, 2, WEFT_I64, WEFT_REDUCE_MAX));
    if (sizes[0] != -sizes[1])
        return WEFT_ERROR(WEFT_CONFIG,
                          "nodes of %d and of %d ranks: the same number on each is needed",
                          (int)-sizes[1], (int)sizes[0]);
    return WEFT_OK;
}

static weft_status make_groups(exchange_rig *rig, int ranks_inside)
{
    int rank = weft_comm_rank(rig->world), size = weft_comm_size(rig->world);
    int node = ranks_inside > 0 ? rank / ranks_inside : 0;
    if (ranks_inside > 0 && size % ranks_inside)
        return WEFT_ERROR(WEFT_CONFIG, "%s cannot be divided into groups of %d",
                          weft_count_text(size, "rank").text, ranks_inside);
    if (ranks_inside == 0) {
        /* The node's number: its first rank. */
        weft_comm *shared;
        WEFT_TRY(weft_comm_split_node(rig->world, &shared));
        node = weft_comm_world_rank(shared, 0);
        weft_comm_destroy(shared);
    }
    WEFT_TRY(weft_comm_split(rig->world, node, rank, "inside", WEFT_PURPOSE_TENSOR, &rig->inside));
    WEFT_TRY(check_groups(rig));
    WEFT_TRY(weft_comm_split(rig->world, weft_comm_rank(rig->inside), node, "between",
                             WEFT_PURPOSE_EXPERT, &rig->between));
    if (weft_comm_size(rig->inside) < 2 || weft_comm_size(rig->between) < 2)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%d node%s of %d: at least two of two ranks are needed; --inside N takes "
                          "N consecutive ranks for a node",
                          weft_comm_size(rig->between),
                          weft_comm_size(rig->between) == 1 ? "" : "s",
                          weft_comm_size(rig->inside));
    return WEFT_OK;
}

/* The share of what every rank sends that goes to the outer rank `to`; uneven: the further, the
 * more, as with experts of which some are popular. */
static double share_before(const exchange_rig *rig, int to)
{
    double e = weft_comm_size(rig->between);
    return rig->uneven ? to * (to + 1.0) / (e * (e + 1)) : to / e;
}

static size_t block_bytes(const exchange_rig *rig, double bytes, int to)
{
    return (size_t)(bytes * share_before(rig, to + 1)) - (size_t)(bytes * share_before(rig, to));
}

static weft_status take(exchange_rig *rig, size_t bytes, char **out)
{
    void *memory;
    WEFT_TRY(weft_device_alloc(rig->device, WEFT_SPACE_DEVICE, bytes, what, &memory));
    *out = memory;
    return weft_lane_zero(rig->lane, memory, bytes);
}

/* Staging at its largest: two areas of half of everything (o2 in two chunks) or one of it all: what
 * is sent, a share of what comes, and what comes. */
static weft_status allocate(exchange_rig *rig, double max_bytes)
{
    size_t e = (size_t)weft_comm_size(rig->between);
    WEFT_TRY(weft_lane_create(rig->device, 0, "expert", &rig->lane));
    rig->send_capacity = (size_t)max_bytes;
    rig->recv_capacity = e * block_bytes(rig, max_bytes, (int)e - 1) + e;
    rig->staging_capacity = rig->send_capacity + 2 * rig->recv_capacity + STAGING_SLACK_BYTES;
    WEFT_TRY(take(rig, rig->send_capacity, &rig->send));
    WEFT_TRY(take(rig, rig->recv_capacity, &rig->recv));
    WEFT_TRY(take(rig, rig->staging_capacity, &rig->staging));
    rig->host_staging = malloc(HOST_STAGING_BYTES);
    rig->send_bytes = calloc(4 * e, sizeof *rig->send_bytes);
    if (!rig->host_staging || !rig->send_bytes)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: %s", what);
    rig->recv_bytes = rig->send_bytes + e;
    rig->bare_send_bytes = rig->recv_bytes + e;
    rig->bare_recv_bytes = rig->bare_send_bytes + e;
    return weft_lane_sync(rig->lane);
}

/* ranks_inside: consecutive ranks that are taken for a node; 0: those that share memory. Collective
 * over world. Errors: WEFT_CONFIG (groups of different sizes, or only one rank in a group or one
 * group), WEFT_MEMORY, WEFT_COMM. */
static weft_status exchange_rig_init(exchange_rig *rig, weft_comm *world, weft_device *device,
                                     int ranks_inside, double max_bytes, bool uneven)
{
    *rig = (exchange_rig){.world = world, .device = device, .uneven = uneven};
    WEFT_TRY(make_groups(rig, ranks_inside));
    return weft_comm_agree(world, allocate(rig, max_bytes));
}

static void exchange_rig_release(exchange_rig *rig)
{
    weft_lane_destroy(rig->lane);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->send, rig->send_capacity);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->recv, rig->recv_capacity);
    weft_device_free(rig->device, WEFT_SPACE_DEVICE, rig->staging, rig->staging_capacity);
    free(rig->host_staging);
    free(rig->send_bytes);
    weft_comm_destroy(rig->between);
    weft_comm_destroy(rig->inside);
}

/* Staging is taken anew for each operation: the next one of a lane starts behind all of it. */
static weft_status take_device(void *context, size_t bytes, void **out)
{
    exchange_rig *rig = context;
    size_t end = rig->staging_used + (bytes + 63) / 64 * 64;
    if (end > rig->staging_capacity)
        return WEFT_ERROR(WEFT_MEMORY, "%s: staging areas of %zu bytes, %zu are there", what, end,
                          rig->staging_capacity);
    *out = rig->staging + rig->staging_used;
    rig->staging_used = end;
    return WEFT_OK;
}

static weft_status take_host(void *context, size_t bytes, void **out)
{
    exchange_rig *rig = context;
    size_t end = rig->host_used + (bytes + 63) / 64 * 64;
    if (end > HOST_STAGING_BYTES)
        return WEFT_ERROR(WEFT_MEMORY, "%s: too many ranks", what);
    *out = rig->host_staging + rig->host_used;
    rig->host_used = end;
    return WEFT_OK;
}

/* --- data ---------------------------------------------------------------------------------- */

/* Word `index` of what the ranks of outer rank `from` send. */
static uint64_t word_of(int from, uint64_t index)
{
    uint64_t x = index + ((uint64_t)from << 48) + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Bytes at `start` of what `from` sends. */
static void generate(int from, size_t start, size_t bytes, char *out)
{
    for (size_t done = 0; done < bytes;) {
        uint64_t word = word_of(from, (start + done) / 8);
        size_t skip = (start + done) % 8, part = 8 - skip;
        part = part < bytes - done ? part : bytes - done;
        memcpy(out + done, (char *)&word + skip, part);
        done += part;
    }
}

/* Sets the sizes for I bytes and fills `send`. *out_bytes: I of an even exchange that loads the
 * busiest rank alike. */
static weft_status exchange_rig_load(exchange_rig *rig, double bytes, double *out_bytes)
{
    int e = weft_comm_size(rig->between), me = weft_comm_rank(rig->between);
    size_t t = (size_t)weft_comm_size(rig->inside), total = 0;
    double away = 0, most = 0;
    for (int peer = 0; peer < e; peer++) {
        rig->send_bytes[peer] = block_bytes(rig, bytes, peer);
        rig->recv_bytes[peer] = block_bytes(rig, bytes, me);
        rig->bare_send_bytes[peer] = rig->send_bytes[peer] / t;
        rig->bare_recv_bytes[peer] = rig->recv_bytes[peer] / t;
        total += rig->send_bytes[peer];
        /* what it gets, and what it sends */
        away = (e - 1) * (double)block_bytes(rig, bytes, peer);
        most = away > most ? away : most;
        away = bytes - (double)block_bytes(rig, bytes, peer);
        most = away > most ? away : most;
    }
    *out_bytes = most * e / (e - 1);
    generate(me, 0, total, rig->send);
    return WEFT_OK;
}

/* The first byte that is not what was sent; -1: none. */
static int64_t find_wrong(const exchange_rig *rig)
{
    char expected[4096];
    size_t at = 0;
    for (int from = 0; from < weft_comm_size(rig->between); from++) {
        size_t start = 0;
        for (int to = 0; to < weft_comm_rank(rig->between); to++)
            start += rig->send_bytes[to]; /* alike on all senders */
        for (size_t done = 0; done < rig->recv_bytes[from];) {
            size_t part = rig->recv_bytes[from] - done;
            part = part < sizeof expected ? part : sizeof expected;
            generate(from, start + done, part, expected);
            if (memcmp(rig->recv + at + done, expected, part) != 0)
                return (int64_t)(at + done);
            done += part;
        }
        at += rig->recv_bytes[from];
    }
    return -1;
}

/* --- running ------------------------------------------------------------------------------- */

static weft_status submit(exchange_rig *rig, const exchange_variant *variant,
                          weft_moe_runtime *runtime)
{
    weft_exchange_memory memory = {.context = rig, .device = take_device, .host = take_host};
    rig->staging_used = rig->host_used = 0;
    if (variant->is_bare)
        return weft_all_to_all(rig->between, rig->lane, rig->send, rig->bare_send_bytes, rig->recv,
                               rig->bare_recv_bytes);
    weft_moe_movement movement;
    weft_moe_movement_start(runtime, rig->between, rig->inside, &movement);
    movement.send = rig->send;
    movement.recv = rig->recv;
    movement.send_bytes = rig->send_bytes;
    movement.recv_bytes = rig->recv_bytes;
    return weft_moe_exchange_over(runtime, &movement, &memory, rig->lane);
}

static weft_status make_runtime(exchange_rig *rig, const exchange_variant *variant,
                                weft_moe_runtime **out)
{
    size_t total = 0;
    weft_moe_options options = {.form = variant->form, .num_chunks = variant->num_chunks};
    for (int peer = 0; peer < weft_comm_size(rig->between); peer++)
        total += rig->send_bytes[peer];
    return weft_moe_runtime_create(rig->device, &options, true,
                                   total / (size_t)weft_comm_size(rig->between), out);
}

/* From when all ranks are there until the last one has what it was sent. */
static weft_status time_one(exchange_rig *rig, const exchange_variant *variant,
                            weft_moe_runtime *runtime, double *out_us)
{
    WEFT_TRY(weft_comm_barrier(rig->world));
    double start_us = weft_now_us();
    WEFT_TRY(submit(rig, variant, runtime));
    WEFT_TRY(weft_lane_sync(rig->lane));
    *out_us = weft_now_us() - start_us;
    return WEFT_OK;
}

static weft_status run_train(exchange_rig *rig, const exchange_variant *variant,
                             weft_moe_runtime *runtime, int train, double *out_us)
{
    double times_us[1 + WEFT_BENCH_MAX_TRAIN], sum_us = 0;
    for (int i = 0; i < 1 + train; i++)
        WEFT_TRY(time_one(rig, variant, runtime, &times_us[i]));
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, times_us, 1 + (size_t)train, WEFT_F64,
                                       WEFT_REDUCE_MAX));
    for (int i = 1; i < 1 + train; i++)
        sum_us += times_us[i];
    *out_us = sum_us / train;
    return WEFT_OK;
}

/* One untimed operation, which empties a shaper's burst, then `train` timed ones close behind, a
 * barrier before each. *out_us: the mean of their times, each from the barrier until the slowest
 * rank is done. 1 <= train <= WEFT_BENCH_MAX_TRAIN. The same on all ranks. Collective over the
 * world. */
static weft_status exchange_rig_time(exchange_rig *rig, const exchange_variant *variant, int train,
                                     double *out_us)
{
    weft_moe_runtime *runtime = NULL;
    assert(train >= 1 && train <= WEFT_BENCH_MAX_TRAIN);
    if (!variant->is_bare)
        WEFT_TRY(make_runtime(rig, variant, &runtime));
    weft_status status = run_train(rig, variant, runtime, train, out_us);
    weft_moe_runtime_destroy(runtime);
    return status;
}

/* "o2 x4", "bare I/t". */
static void exchange_variant_text(const exchange_variant *variant, char out[32])
{
    if (variant->is_bare)
        snprintf(out, 32, "bare I/t");
    else if (variant->form < WEFT_EXCHANGE_O2)
        snprintf(out, 32, "%s", weft_exchange_text(variant->form));
    else
        snprintf(out, 32, "%s x%d", weft_exchange_text(variant->form), variant->num_chunks);
}

/* Runs the variant once and compares received with sent bytes. WEFT_INTERNAL on all ranks where one
 * byte differs. Collective over the world. */
static weft_status exchange_rig_check(exchange_rig *rig, const exchange_variant *variant)
{
    char text[32];
    weft_moe_runtime *runtime = NULL;
    if (variant->is_bare)
        return WEFT_OK;
    memset(rig->recv, POISON, rig->recv_capacity);
    WEFT_TRY(make_runtime(rig, variant, &runtime));
    weft_status status = submit(rig, variant, runtime);
    if (status == WEFT_OK)
        status = weft_lane_sync(rig->lane);
    weft_moe_runtime_destroy(runtime);
    WEFT_TRY(status);
    int64_t wrong = find_wrong(rig);
    exchange_variant_text(variant, text);
    return weft_comm_agree(rig->world, wrong < 0 ? WEFT_OK
                                                 : WEFT_ERROR(WEFT_INTERNAL,
                                                              "%s: byte %lld or a later one is not "
                                                              "what was sent",
                                                              text, (long long)wrong));
}

/* --- reporting ------------------------------------------------------------------------------- */

static double error_of(const exchange_variant *v)
{
    return v->time.median > 0 ? v->predicted_us / v->time.median - 1 : 0;
}

/* How much longer the chosen form took than the fastest. */
static double behind_best(const exchange_result *r)
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

static void report_variant(weft_report *r, const exchange_result *result, int i, int rounds)
{
    static const char *const keys[] = {"times_baseline", "times_o1_paper", "times_bare"};
    static const char *const titles[] = {"x baseline", "x o1_paper", "x bare"};
    const exchange_variant *v = &result->variants[i];
    const bool is_chosen = i == result->chosen, is_best = i == result->best;
    char text[32];
    exchange_variant_text(v, text);
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

static void report_choice(weft_report *r, const exchange_result *result)
{
    const exchange_variant *best = &result->variants[result->best];
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

static void print_verdict(const exchange_result *r, FILE *out)
{
    const exchange_variant *v = &r->variants[r->chosen];
    char text[32];
    exchange_variant_text(v, text);
    fprintf(out, "chosen: %s", text);
    if (v->speed[WEFT_BENCH_BASELINE].count > 0)
        fprintf(out, ", %.2f times the baseline", v->speed[WEFT_BENCH_BASELINE].median);
    if (v->speed[WEFT_BENCH_O1_PAPER].count > 0)
        fprintf(out, ", %.2f times o1_paper", v->speed[WEFT_BENCH_O1_PAPER].median);
    fprintf(out, ", time against the bare I/t %+.1f %%, against the fastest %+.1f %%\n\n",
            100 * (1 / v->speed[WEFT_BENCH_BARE].median - 1), 100 * behind_best(r));
}

static void report_result(weft_report *r, const exchange_result *result, int rounds)
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
static weft_status exchange_print_last(const exchange_report *report, FILE *out)
{
    const exchange_rig *rig = report->rig;
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
static weft_status exchange_json(const exchange_report *report)
{
    const exchange_rig *rig = report->rig;
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

/* --- the verb -------------------------------------------------------------------------------- */

enum { MAX_ROUNDS = 1000 };
/* The timed operations of a measurement take about this: the clock's grain then does not show. */
static const double train_us = 200e3;

typedef struct arguments {
    weft_bench_options common;
    weft_arena *arena;
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
        LIST("sizes", "I,...", &args->sizes, WEFT_BENCH_MAX_SIZES, 1024, 17179869184.0, "bytes",
             "bytes a rank sends in the baseline, its own block included"),
        LIST("chunks", "N,...", &args->chunks, WEFT_BENCH_MAX_CHUNKS, 1, WEFT_EXCHANGE_MAX_CHUNKS,
             "", "chunks that o2, o3 and direct are tried with, besides those chosen"),
        SET("forms", "F,...", &args->forms, forms, WEFT_NUM_EXCHANGES,
            "baseline, o1_paper, o1, o2, o3, direct"),
        FLAG("uneven", &args->uneven, "blocks of different sizes, as popular experts make them"),
        SMALL("inside", "N", &args->inside, 2, 1e6,
              "take N consecutive ranks for a node (those that share memory)"),
        TEXT("cluster", "FILE", &args->cluster,
             "the costs, by weft calibrate, instead of measuring them"),
        REAL("seconds", "S", &args->seconds, 1, 3600, "s", "time for measuring a cost"),
        BYTES("minimal", "I", &args->minimal, 1, 17179869184.0,
              "smallest slice that the model may choose"),
        SMALL("rounds", "N", &args->common.rounds, 1, MAX_ROUNDS,
              "measured rounds, after one untimed"),
        FLAG("json", &args->common.json,
             "all numbers as one JSON object on standard output instead of tables"),
    };
    const weft_arguments verb = {
        .verb = "bench all-to-all",
        .about = "The all-to-all of experts that are tensor-sharded, in all its forms. The t ranks "
                 "of a node hold\nthe same tokens, rank j of each node exchanges them with rank j "
                 "of the others. Every form is\ntimed in turn, round by round, beside the bare "
                 "all-to-all of I / t, and its data checked. What the\nlinks cost is measured "
                 "before, and the model's time and choice stand beside what was measured.\n"
                 "Needs two nodes of two ranks.\n",
        ROWS_OF(rows)};
    *args = (arguments){.common.rounds = 9,
                        .arena = arena,
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

static weft_exchange_shape shape_of(const arguments *args, const exchange_rig *rig, double bytes)
{
    return (weft_exchange_shape){.bytes = bytes,
                                 .t = weft_comm_size(rig->inside),
                                 .e = weft_comm_size(rig->between),
                                 .minimal_bytes = (double)args->minimal};
}

static weft_status add_variant(const arguments *args, exchange_result *result,
                               exchange_variant variant)
{
    for (int i = 0; i < result->num_variants; i++) {
        exchange_variant *v = &result->variants[i];
        if (v->is_bare == variant.is_bare && v->form == variant.form &&
            v->num_chunks == variant.num_chunks) {
            v->tried = v->tried || variant.tried;
            return WEFT_OK;
        }
    }
    WEFT_TRY(WEFT_ARRAY(args->arena, (size_t)args->common.rounds, &variant.us));
    result->variants[result->num_variants++] = variant;
    return WEFT_OK;
}

/* The bare one first, then the forms: one of no chunks once, the others in each count to try and
 * in the model's. */
static weft_status list_variants(const arguments *args, exchange_result *result)
{
    WEFT_TRY(add_variant(args, result, (exchange_variant){.is_bare = true}));
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++) {
        exchange_variant v = {.form = (weft_exchange_form)form, .num_chunks = 1};
        if (!(args->forms >> form & 1))
            continue;
        if (form < WEFT_EXCHANGE_O2) {
            v.tried = true;
            WEFT_TRY(add_variant(args, result, v));
            continue;
        }
        v.num_chunks = result->choice.best_chunks[form];
        WEFT_TRY(add_variant(args, result, v));
        v.tried = true;
        for (size_t i = 0; i < args->chunks.count; i++) {
            v.num_chunks = (int)args->chunks.values[i];
            WEFT_TRY(add_variant(args, result, v));
        }
    }
    return WEFT_OK;
}

static int find_variant(const exchange_result *result, bool is_bare, weft_exchange_form form,
                        int num_chunks)
{
    for (int i = 0; i < result->num_variants; i++) {
        const exchange_variant *v = &result->variants[i];
        if (v->is_bare == is_bare && (is_bare || (v->form == form && v->num_chunks == num_chunks)))
            return i;
    }
    return -1;
}

static weft_status measure_rounds(const arguments *args, exchange_rig *rig, exchange_result *result)
{
    double us, bare_us = 0;
    for (int i = 0; i < result->num_variants; i++) {
        WEFT_TRY(exchange_rig_check(rig, &result->variants[i]));
        WEFT_TRY(exchange_rig_time(rig, &result->variants[i], 1, &us));
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
            WEFT_TRY(exchange_rig_time(rig, &result->variants[i], result->train,
                                       &result->variants[i].us[round]));
        }
    return WEFT_OK;
}

/* Ratios are of one round: what slows a round down slows all of it down. */
static void find_speeds(exchange_result *result, const exchange_variant *against, int which,
                        int rounds)
{
    double ratios[MAX_ROUNDS];
    for (int i = 0; against && i < result->num_variants; i++) {
        for (int round = 0; round < rounds; round++)
            ratios[round] = against->us[round] / result->variants[i].us[round];
        result->variants[i].speed[which] = weft_spread_of(ratios, rounds);
    }
}

static void judge(exchange_result *result, int rounds)
{
    int at[3] = {find_variant(result, false, WEFT_EXCHANGE_BASELINE, 1),
                 find_variant(result, false, WEFT_EXCHANGE_O1_PAPER, 1),
                 find_variant(result, true, WEFT_EXCHANGE_BASELINE, 0)};
    for (int which = 0; which < 3; which++)
        find_speeds(result, at[which] < 0 ? NULL : &result->variants[at[which]], which, rounds);
    result->best = -1;
    for (int i = 0; i < result->num_variants; i++) {
        exchange_variant *v = &result->variants[i];
        double sorted[MAX_ROUNDS]; /* rounds stay in their order for the ratios */
        memcpy(sorted, v->us, (size_t)rounds * sizeof *sorted);
        v->time = weft_spread_of(sorted, rounds);
        if (!v->is_bare &&
            (result->best < 0 || v->time.median < result->variants[result->best].time.median))
            result->best = i;
    }
    result->chosen = find_variant(result, false, result->choice.form, result->choice.num_chunks);
}

static weft_status measure_size(const arguments *args, exchange_rig *rig,
                                const weft_cluster *cluster, exchange_result *result)
{
    WEFT_TRY(exchange_rig_load(rig, result->bytes, &result->model_bytes));
    weft_exchange_shape shape = shape_of(args, rig, result->model_bytes);
    WEFT_TRY(weft_choose_exchange(cluster, &shape, args->forms, &result->choice));
    WEFT_TRY(weft_comm_agree(rig->world, list_variants(args, result)));
    for (int i = 0; i < result->num_variants; i++) {
        exchange_variant *v = &result->variants[i];
        if (!v->is_bare)
            v->predicted_us = weft_exchange_us(cluster, &shape, v->form, v->num_chunks);
    }
    WEFT_TRY(measure_rounds(args, rig, result));
    judge(result, args->common.rounds);
    return WEFT_OK;
}

/* --- all of it ----------------------------------------------------------------------------- */

static weft_status get_cluster(const arguments *args, exchange_rig *rig, weft_cluster *out)
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

/* Each size is shown as soon as it is measured. */
static weft_status measure_all(const arguments *args, exchange_rig *rig, exchange_result *results)
{
    weft_cluster cluster;
    exchange_report report = {
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
    const bool is_json = writes && args->common.json;
    return weft_comm_agree(rig->world, is_json ? exchange_json(&report) : WEFT_OK);
}

static weft_status run(const arguments *args, weft_comm *world)
{
    static exchange_result results[WEFT_BENCH_MAX_SIZES];
    exchange_rig rig = {0};
    weft_device *device = NULL;
    weft_status status = weft_comm_agree(world, weft_device_create_cpu(1, 0, &device));
    if (status == WEFT_OK)
        status =
            exchange_rig_init(&rig, world, device, args->inside, largest_of(args), args->uneven);
    if (status == WEFT_OK)
        status = measure_all(args, &rig, results);
    if (status == WEFT_COMM || status == WEFT_DEVICE) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    if (device)
        exchange_rig_release(&rig);
    weft_device_destroy(device);
    return status;
}

int weft_bench_all_to_all(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    arguments args;
    weft_arena arena = {0};
    int code = parse(argc, argv, &args, &arena);
    weft_start start = weft_start_find();
    if (code < 0) {
        weft_status status = weft_start_world(&start);
        if (status == WEFT_OK)
            status = run(&args, start.world);
        code = weft_start_end(&start, status, "bench all-to-all");
    }
    weft_comm_destroy(start.world);
    weft_arena_release(&arena);
    return code;
}
