/* What an expert all-to-all loses beside a gradient reduction that always has more to send.
 *
 *     bench_priority [--mib M] [--period MS] [--gradient-mib G] [--count N] [--rounds R] [--json
 * FILE]
 *
 * under mpirun. Each rank sends M MiB (4) to the others, in equal shares, every MS milliseconds
 * (100); beside it ranks all-reduce G MiB (16) of fp32 again and again. A round measures N (15)
 * all-to-alls alone, the reduction alone, both, and the same all-to-all beside MPI_Iallreduce of
 * the same data, which a thread of its own completes. R rounds (3). An all-to-all starts at one
 * time on all ranks, by the clock, which therefore must be one: a machine's, with emulated nodes.
 * Its time is the slowest rank's; all contents are checked. */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "core/sorted.h"

enum { MAX_SAMPLES = 4096, MAX_ENDS = 65536 };
#define LATE_SECONDS 0.01

typedef enum bench_mode { ALONE, WEFT, MPI, REDUCTION, NUM_MODES } bench_mode;
static const char *const mode_texts[NUM_MODES] = {
    [ALONE] = "all-to-all alone",
    [WEFT] = "beside weft's all-reduce",
    [MPI] = "beside MPI_Iallreduce",
    [REDUCTION] = "weft's all-reduce alone",
};

typedef struct options {
    size_t bytes, gradient_bytes;
    int period_ms, count, rounds;
    const char *json;
} options;

/* Reductions back to back, on a thread. */
typedef struct background {
    bench_mode mode;
    weft_comm *comm;
    weft_lane *lane;
    MPI_Comm handle;
    float *gradient; /* zeros; the last element: how many ranks want to end */
    size_t count;
    atomic_bool stop;
    int num_ends; /* when reductions ended, seconds */
    double ends[MAX_ENDS];
    pthread_t thread;
} background;

typedef struct bench {
    options options;
    weft_comm *world, *experts;
    weft_lane *lane;
    int rank, size;
    char *send, *recv;
    size_t *bytes;
    background background;
    int num_samples[NUM_MODES];
    double samples[NUM_MODES][MAX_SAMPLES]; /* milliseconds */
    double rates[NUM_MODES][MAX_SAMPLES];   /* of the reduction, MB/s; one a round */
} bench;

static void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "bench_priority: %s\n", weft_error_get()->text);
    MPI_Abort(MPI_COMM_WORLD, weft_status_exit_code(status));
    exit(weft_status_exit_code(status));
}

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "bench_priority: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double when)
{
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)(1e9 * (when - (double)t.tv_sec));
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

static void reduce(background *b)
{
    if (b->mode != MPI) {
        check(weft_all_reduce(b->comm, b->lane, b->gradient, b->count, WEFT_F32, WEFT_REDUCE_SUM));
        check(weft_lane_sync(b->lane));
        return;
    }
    MPI_Request request;
    int done = 0;
    struct timespec nap = {.tv_nsec = 200000};
    require(MPI_Iallreduce(MPI_IN_PLACE, b->gradient, (int)b->count, MPI_FLOAT, MPI_SUM, b->handle,
                           &request) == MPI_SUCCESS,
            "MPI_Iallreduce failed");
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        nanosleep(&nap, NULL);
}

static void *run_background(void *arg)
{
    background *b = arg;
    float *last = &b->gradient[b->count - 1];
    do {
        *last = atomic_load(&b->stop) ? 1 : 0;
        reduce(b);
        require(b->gradient[0] == 0 && b->gradient[b->count / 2] == 0, "a wrong sum");
        require(b->num_ends < MAX_ENDS, "too many reductions");
        b->ends[b->num_ends++] = seconds();
    } while (*last == 0);
    return NULL;
}

/* MB/s of gradients between two moments, by the reductions that ended there. */
static double background_rate(const background *b, double from, double to)
{
    int first = -1, last = -1;
    for (int i = 0; i < b->num_ends; i++) {
        if (b->ends[i] < from || b->ends[i] > to)
            continue;
        first = first < 0 ? i : first;
        last = i;
    }
    if (last <= first)
        return 0;
    double bytes = (double)(last - first) * (double)b->count * sizeof(float);
    return 1e-6 * bytes / (b->ends[last] - b->ends[first]);
}

/* Returns when the last rank was done. */
static double exchange(bench *b, int turn, double start, double *out_ms)
{
    size_t share = b->bytes[b->size - 1 - (b->rank == b->size - 1)];
    memset(b->send, 1 + (b->rank + turn) % 100, b->options.bytes);
    sleep_until(start);
    if (seconds() > start + LATE_SECONDS)
        start = seconds(); /* the agreement on `start` itself came late */
    check(weft_all_to_all(b->experts, b->lane, b->send, b->bytes, b->recv, b->bytes));
    check(weft_lane_sync(b->lane));
    double end = seconds();
    *out_ms = 1e3 * (end - start);
    for (int peer = 0, at = 0; peer < b->size; peer++) {
        if (peer == b->rank)
            continue;
        const char *got = b->recv + (size_t)at++ * share;
        char wanted = (char)(1 + (peer + turn) % 100);
        require(got[0] == wanted && got[share / 2] == wanted && got[share - 1] == wanted,
                "a wrong byte");
    }
    check(weft_comm_all_reduce_host(b->world, &end, 1, WEFT_F64, WEFT_REDUCE_MAX));
    return end;
}

static void check_clock(bench *b)
{
    check(weft_comm_barrier(b->world));
    double now[2] = {seconds(), -seconds()};
    check(weft_comm_all_reduce_host(b->world, now, 2, WEFT_F64, WEFT_REDUCE_MAX));
    require(now[0] + now[1] < 1, "the ranks share no clock: run them on one machine");
}

static void measure(bench *b, bench_mode mode, int round)
{
    background *beside = &b->background;
    double period = 1e-3 * b->options.period_ms;
    beside->mode = mode;
    beside->num_ends = 0;
    atomic_store(&beside->stop, false);
    double from = seconds() + 4 * period;
    check(weft_comm_broadcast_host(b->world, &from, sizeof from, 0));
    if (mode != ALONE)
        require(pthread_create(&beside->thread, NULL, run_background, beside) == 0, "no thread");
    double next = from;
    sleep_until(from - period / 2);
    for (int i = 0; i < b->options.count; i++) {
        if (mode == REDUCTION) {
            sleep_until(next);
            next += period;
            continue;
        }
        double end = exchange(b, i, next, &b->samples[mode][b->num_samples[mode]++]);
        while (next < end + (mode == MPI ? 2 * period : period / 4))
            next += period;
    }
    double to = seconds();
    if (mode == ALONE)
        return;
    atomic_store(&beside->stop, true);
    pthread_join(beside->thread, NULL);
    b->rates[mode][round] = background_rate(beside, from, to);
}

static double quantile(double *values, int count, double share)
{
    weft_sort(values, (size_t)count);
    return weft_quantile(values, (size_t)count, share);
}

static void report(bench *b)
{
    double median[NUM_MODES] = {0}, p90[NUM_MODES] = {0}, rate[NUM_MODES] = {0};
    for (int m = 0; m < NUM_MODES; m++) {
        size_t count = (size_t)b->num_samples[m];
        if (count > 0) {
            check(weft_comm_all_reduce_host(b->world, b->samples[m], count, WEFT_F64,
                                            WEFT_REDUCE_MAX));
            median[m] = quantile(b->samples[m], (int)count, 0.5);
            p90[m] = quantile(b->samples[m], (int)count, 0.9);
        }
        if (m != ALONE)
            rate[m] = quantile(b->rates[m], b->options.rounds, 0.5);
    }
    if (b->rank != 0)
        return;
    printf("%-26s %10s %10s %8s %8s %10s %8s\n", "", "median ms", "p90 ms", "median", "p90", "MB/s",
           "rate");
    for (int m = 0; m < NUM_MODES; m++) {
        printf("%-26s", mode_texts[m]);
        if (m == REDUCTION)
            printf(" %10s %10s %8s %8s", "", "", "", "");
        else
            printf(" %10.2f %10.2f %8.2f %8.2f", median[m], p90[m], median[m] / median[ALONE],
                   p90[m] / median[ALONE]);
        if (m == REDUCTION || m == WEFT)
            printf(" %10.1f %8.2f", rate[m], rate[m] / rate[REDUCTION]);
        else if (m == MPI)
            printf(" %10.1f", rate[m]);
        printf("\n");
    }
    if (!b->options.json)
        return;
    FILE *file = fopen(b->options.json, "w");
    require(file != NULL, "cannot write the --json file");
    fprintf(file,
            "{\"ranks\": %d, \"all_to_all_bytes\": %zu, \"period_ms\": %d, "
            "\"gradient_bytes\": %zu, \"samples\": %d,\n"
            " \"alone\": {\"median_ms\": %.3f, \"p90_ms\": %.3f},\n",
            b->size, b->options.bytes, b->options.period_ms, b->options.gradient_bytes,
            b->num_samples[ALONE], median[ALONE], p90[ALONE]);
    for (int m = WEFT; m <= MPI; m++)
        fprintf(file,
                " \"%s\": {\"median_ms\": %.3f, \"p90_ms\": %.3f, \"median_ratio\": %.3f, "
                "\"p90_ratio\": %.3f, \"reduction_mb_s\": %.2f},\n",
                m == WEFT ? "weft" : "mpi_iallreduce", median[m], p90[m], median[m] / median[ALONE],
                p90[m] / median[ALONE], rate[m]);
    fprintf(file, " \"reduction_alone_mb_s\": %.2f, \"reduction_ratio\": %.3f}\n", rate[REDUCTION],
            rate[WEFT] / rate[REDUCTION]);
    require(fclose(file) == 0, "cannot write the --json file");
}

static options parse(int argc, char **argv)
{
    options o = {.bytes = 4, .gradient_bytes = 16, .period_ms = 100, .count = 15, .rounds = 3};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0) {
            o.json = argv[i + 1];
            continue;
        }
        int value = atoi(argv[i + 1]);
        if (value <= 0)
            break;
        if (strcmp(argv[i], "--mib") == 0)
            o.bytes = (size_t)value;
        else if (strcmp(argv[i], "--gradient-mib") == 0)
            o.gradient_bytes = (size_t)value;
        else if (strcmp(argv[i], "--period") == 0)
            o.period_ms = value;
        else if (strcmp(argv[i], "--count") == 0)
            o.count = value;
        else if (strcmp(argv[i], "--rounds") == 0)
            o.rounds = value;
        else
            o.rounds = 0;
    }
    if (argc % 2 == 0 || o.rounds <= 0 || o.count * o.rounds > MAX_SAMPLES) {
        fprintf(stderr, "usage: bench_priority [--mib M] [--period MS] [--gradient-mib G] "
                        "[--count N] [--rounds R] [--json FILE]\n");
        exit(2);
    }
    o.bytes <<= 20;
    o.gradient_bytes <<= 20;
    return o;
}

int main(int argc, char **argv)
{
    static bench b;
    weft_device *device;
    b.options = parse(argc, argv);
    check(weft_comm_create_world(&b.world));
    b.rank = weft_comm_rank(b.world);
    b.size = weft_comm_size(b.world);
    require(b.size > 1, "needs more than one rank");
    check(weft_device_create_cpu(1, 0, &device));
    check(weft_lane_create(device, 0, "experts", &b.lane));
    check(weft_comm_split(b.world, 0, b.rank, "ep", WEFT_PURPOSE_EXPERT, &b.experts));
    background *beside = &b.background;
    check(weft_lane_create(device, 0, "gradients", &beside->lane));
    check(weft_comm_split(b.world, 0, b.rank, "dp", WEFT_PURPOSE_DATA, &beside->comm));
    require(MPI_Comm_dup(MPI_COMM_WORLD, &beside->handle) == MPI_SUCCESS, "MPI_Comm_dup failed");
    beside->count = b.options.gradient_bytes / sizeof(float);
    beside->gradient = calloc(beside->count, sizeof(float));
    b.send = malloc(b.options.bytes);
    b.recv = calloc(1, b.options.bytes);
    b.bytes = calloc((size_t)b.size, sizeof *b.bytes);
    require(beside->gradient && b.send && b.recv && b.bytes, "no memory");
    for (int peer = 0; peer < b.size; peer++)
        b.bytes[peer] = peer == b.rank ? 0 : b.options.bytes / (size_t)(b.size - 1);
    check_clock(&b);
    for (int round = 0; round < b.options.rounds; round++) {
        measure(&b, ALONE, round);
        measure(&b, REDUCTION, round);
        measure(&b, WEFT, round);
        measure(&b, MPI, round);
    }
    report(&b);
    free(b.bytes);
    free(b.recv);
    free(b.send);
    free(beside->gradient);
    MPI_Comm_free(&beside->handle);
    weft_lane_destroy(beside->lane);
    weft_lane_destroy(b.lane);
    weft_device_destroy(device);
    weft_comm_destroy(beside->comm);
    weft_comm_destroy(b.experts);
    weft_comm_destroy(b.world);
    return 0;
}
