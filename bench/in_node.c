/* Collectives of Weft beside Open MPI's, on ranks of one node.
 *
 *     mpirun -n RANKS bench_in_node [--json FILE] [--rounds N] [--min-kib K] [--max-kib K]
 *
 * Each size is measured in turn, ours then MPI's, N times (21 unless told) after two of each that
 * do not count. A time is the slowest rank's, from a common start to the completion of an operation
 * that was queued on a lane; buffers are fp32. Bytes are the whole buffer: of an all_reduce, of
 * what an all_gather yields and of what a reduce_scatter takes. With
 * WEFT_SHARED_WINDOWS=0 in the environment it is the path by messages that is measured. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "comm/comm.h"
#include "core/sorted.h"

enum { DEFAULT_ROUNDS = 21, WARM_UPS = 2, MAX_ROUNDS = 1000 };

typedef enum operation { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, NUM_OPERATIONS } operation;
static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter"};
static const char *const mpi_names[] = {"MPI_Allreduce", "MPI_Allgather",
                                        "MPI_Reduce_scatter_block"};

typedef struct bench {
    weft_comm *comm;
    weft_device *device;
    weft_lane *lane;
    int rank, size, rounds;
    float *send, *recv;
} bench;

typedef struct quartiles {
    double low, median, high;
} quartiles;

static void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "bench_in_node: %s\n", weft_error_get()->text);
    MPI_Abort(MPI_COMM_WORLD, weft_status_exit_code(status));
}

static void usage(void)
{
    fprintf(stderr, "usage: mpirun -n RANKS bench_in_node [--json FILE] [--rounds N] "
                    "[--min-kib K] [--max-kib K]\n");
    exit(2);
}

static void run_ours(const bench *b, operation what, size_t count)
{
    size_t share = count / (size_t)b->size;
    if (what == ALL_REDUCE)
        check(weft_all_reduce(b->comm, b->lane, b->recv, count, WEFT_F32, WEFT_REDUCE_SUM));
    else if (what == ALL_GATHER)
        check(weft_all_gather(b->comm, b->lane, b->send, b->recv, share, WEFT_F32));
    else
        check(weft_reduce_scatter(b->comm, b->lane, b->send, b->recv, share, WEFT_F32,
                                  WEFT_REDUCE_SUM));
    check(weft_lane_sync(b->lane));
}

static void run_mpi(const bench *b, operation what, size_t count)
{
    int all = (int)count, share = all / b->size;
    if (what == ALL_REDUCE)
        MPI_Allreduce(MPI_IN_PLACE, b->recv, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (what == ALL_GATHER)
        MPI_Allgather(b->send, share, MPI_FLOAT, b->recv, share, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Reduce_scatter_block(b->send, b->recv, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Microseconds on the slowest rank. */
static double time_one(const bench *b, void (*run)(const bench *, operation, size_t),
                       operation what, size_t count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    run(b, what, count);
    double mine = (MPI_Wtime() - start) * 1e6, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static quartiles quartiles_of(double *values, int count)
{
    weft_sort(values, (size_t)count);
    return (quartiles){values[count / 4], values[count / 2], values[count - 1 - count / 4]};
}

static void fill(const bench *b, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)((i + (size_t)b->rank) % 5) * 1e-3f;
}

static void measure(const bench *b, operation what, size_t bytes, FILE *json, bool *first)
{
    static double ours[MAX_ROUNDS], mpi[MAX_ROUNDS], ratio[MAX_ROUNDS];
    size_t count = bytes / sizeof(float) / (size_t)b->size * (size_t)b->size;
    for (int round = -WARM_UPS; round < b->rounds; round++) {
        /* Sums of sums would grow past all bounds. */
        fill(b, b->recv, count);
        double our_time = time_one(b, run_ours, what, count);
        fill(b, b->recv, count);
        double mpi_time = time_one(b, run_mpi, what, count);
        if (round < 0)
            continue;
        ours[round] = our_time;
        mpi[round] = mpi_time;
        ratio[round] = mpi_time / our_time;
    }
    if (b->rank != 0)
        return;
    quartiles o = quartiles_of(ours, b->rounds), m = quartiles_of(mpi, b->rounds);
    quartiles r = quartiles_of(ratio, b->rounds);
    printf("%-15s %6zu KiB  %9.0f %9.0f..%-9.0f %9.0f %9.0f..%-9.0f %6.2f %6.2f..%.2f\n",
           names[what], bytes >> 10, o.median, o.low, o.high, m.median, m.low, m.high, r.median,
           r.low, r.high);
    fflush(stdout);
    if (!json)
        return;
    fprintf(json,
            "%s\n  {\"operation\": \"%s\", \"against\": \"%s\", \"ranks\": %d, \"bytes\": %zu, "
            "\"rounds\": %d,\n   \"us\": [%.1f, %.1f, %.1f], \"mpi_us\": [%.1f, %.1f, %.1f], "
            "\"ratio\": [%.3f, %.3f, %.3f]}",
            *first ? "" : ",", names[what], mpi_names[what], b->size, bytes, b->rounds, o.low,
            o.median, o.high, m.low, m.median, m.high, r.low, r.median, r.high);
    *first = false;
}

/* As a trainer's buffers are allocated. */
static float *allocate(const bench *b, size_t bytes)
{
    void *x;
    check(weft_device_alloc(b->device, WEFT_SPACE_DEVICE, bytes, "operands", &x));
    fill(b, x, bytes / sizeof(float)); /* the pages are there */
    return x;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = DEFAULT_ROUNDS};
    const char *json_path = NULL;
    size_t min_bytes = (size_t)64 << 10, max_bytes = (size_t)64 << 20;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0 && more)
            json_path = argv[++i];
        else if (strcmp(argv[i], "--rounds") == 0 && more)
            b.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--min-kib") == 0 && more)
            min_bytes = (size_t)atoi(argv[++i]) << 10;
        else if (strcmp(argv[i], "--max-kib") == 0 && more)
            max_bytes = (size_t)atoi(argv[++i]) << 10;
        else
            usage();
    }
    if (b.rounds < 1 || b.rounds > MAX_ROUNDS || min_bytes == 0 || max_bytes < min_bytes ||
        max_bytes > (size_t)1 << 30)
        usage();
    check(weft_comm_create_world(&b.comm));
    check(weft_device_create_cpu(1, 0, &b.device));
    check(weft_lane_create(b.device, 0, "communication", &b.lane));
    b.rank = weft_comm_rank(b.comm);
    b.size = weft_comm_size(b.comm);
    b.send = allocate(&b, max_bytes);
    b.recv = allocate(&b, max_bytes);
    FILE *json = NULL;
    if (json_path && b.rank == 0 && !(json = fopen(json_path, "w"))) {
        fprintf(stderr, "bench_in_node: %s: %s\n", json_path, strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 6);
    }
    if (b.rank == 0)
        printf("%d ranks, fp32, %d rounds: median and quartiles\n%-26s %9s %20s %9s %20s %6s\n",
               b.size, b.rounds, "", "ours us", "", "mpi us", "", "ratio");
    bool first = true;
    if (json)
        fprintf(json, "[");
    for (int what = 0; what < NUM_OPERATIONS; what++)
        for (size_t bytes = min_bytes; bytes <= max_bytes; bytes *= 4)
            measure(&b, (operation)what, bytes, json, &first);
    if (json) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    weft_device_free(b.device, WEFT_SPACE_DEVICE, b.send, max_bytes);
    weft_device_free(b.device, WEFT_SPACE_DEVICE, b.recv, max_bytes);
    weft_lane_destroy(b.lane);
    weft_device_destroy(b.device);
    weft_comm_destroy(b.comm);
    return 0;
}
