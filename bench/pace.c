/* How near the pace of an emulated accelerator its lanes stay.
 *
 *     mpirun -n RANKS bench_pace [--tasks N] [--rounds R] [--edge E] [--seconds S ...]
 *
 * Each rank multiplies N (100) pairs of E x E matrices (192) on its lane, at the pace that makes
 * each take S seconds, and so for each S (0.0005, 0.002, 0.01), R rounds (3) from a common start.
 * A table says of the ranks' R times N tasks: planned and measured time, and the error; how long a
 * rank computed in that, without a pace and all ranks at once; and what it fell behind for good.
 * Beside each product stands a sum without FLOPs, whose time is no part of the plan: the time of
 * the sums alone is measured first, and counts as planned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

#include "bench/bench.h"
#include "comm/comm.h"
#include "core/device/device.h"

enum { MAX_LENGTHS = 8 };

typedef struct bench {
    weft_comm *world;
    weft_device *device;
    weft_lane *lane;
    int rank, tasks, rounds;
    size_t edge;
    float *a, *b, *c;
} bench;

static void usage(void)
{
    fprintf(stderr, "usage: mpirun -n RANKS bench_pace [--tasks N] [--rounds R] [--edge E] "
                    "[--seconds S ...]\n");
    exit(2);
}

static float *matrix(const bench *b)
{
    size_t count = b->edge * b->edge;
    float *x = malloc(count * sizeof *x);
    if (!x)
        check(WEFT_ERROR(WEFT_MEMORY, "out of memory for matrices"));
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 13) - 6;
    return x;
}

/* Seconds that a round takes on this rank, its products left out or not. */
static double run(const bench *b, bool products)
{
    const weft_gemm_args gemm = WEFT_ARGS(weft_gemm_args, .m = b->edge, .n = b->edge, .k = b->edge,
                                          .a = b->a, .b = b->b, .c = b->c);
    const weft_add_args sum =
        WEFT_ARGS(weft_add_args, .count = b->edge * b->edge, .a = b->a, .b = b->b, .y = b->c);
    check(weft_comm_barrier(b->world));
    double start = weft_now_us();
    for (int i = 0; i < b->tasks; i++) {
        if (products)
            check(weft_gemm(b->lane, &gemm));
        check(weft_add(b->lane, &sum));
    }
    check(weft_lane_sync(b->lane));
    return (weft_now_us() - start) * 1e-6;
}

static void measure(const bench *b, double seconds)
{
    double flops = 2.0 * (double)b->edge * (double)b->edge * (double)b->edge;
    double planned = 0, computed = 0, measured = 0;
    weft_device_set_pace(b->device, (weft_pace){0});
    for (int i = 0; i < b->rounds; i++) {
        double sums = run(b, false);
        computed += run(b, true) - sums;
        planned += sums + b->tasks * seconds;
    }
    weft_device_take_late(b->device);
    weft_device_set_pace(b->device, (weft_pace){.flops = flops / seconds, .work = WEFT_PACE_ALL});
    for (int i = 0; i < b->rounds; i++)
        measured += run(b, true);
    double late = weft_device_take_late(b->device);
    double row[5] = {planned, measured, 100 * (measured / planned - 1), computed, late};
    int size = weft_comm_size(b->world);
    double(*all)[5] = malloc((size_t)size * sizeof *all);
    if (!all)
        check(WEFT_ERROR(WEFT_MEMORY, "out of memory for a table"));
    check(weft_comm_all_gather_host(b->world, row, all, sizeof row));
    for (int r = 0; r < size && b->rank == 0; r++)
        printf("%8.2f %5d %11.2f %11.2f %+8.2f %11.2f %9.2f\n", seconds * 1e3, r, all[r][0] * 1e3,
               all[r][1] * 1e3, all[r][2], all[r][3] * 1e3, all[r][4] * 1e3);
    fflush(stdout);
    free(all);
}

int main(int argc, char **argv)
{
    bench b = {.tasks = 100, .rounds = 3, .edge = 192};
    double lengths[MAX_LENGTHS] = {0.0005, 0.002, 0.01};
    int num_lengths = 3, num_given = 0;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--tasks") == 0 && more)
            b.tasks = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rounds") == 0 && more)
            b.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--edge") == 0 && more)
            b.edge = (size_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0 && more && num_given < MAX_LENGTHS)
            lengths[num_given++] = atof(argv[++i]);
        else
            usage();
    }
    num_lengths = num_given ? num_given : num_lengths;
    if (b.tasks < 1 || b.rounds < 1 || b.edge < 1 || b.edge > 1 << 13)
        usage();
    check(weft_comm_create_world(&b.world));
    check(weft_device_create_cpu(1, 0, &b.device));
    check(weft_lane_create(b.device, 0, "compute", &b.lane));
    b.rank = weft_comm_rank(b.world);
    b.a = matrix(&b);
    b.b = matrix(&b);
    b.c = matrix(&b);
    run(&b, true); /* makes what the kernels need */
    if (b.rank == 0)
        printf("%d products of %zu a round, %d rounds\n%8s %5s %11s %11s %8s %11s %9s\n", b.tasks,
               b.edge, b.rounds, "task ms", "rank", "planned ms", "measured ms", "error %",
               "computed ms", "behind ms");
    for (int i = 0; i < num_lengths; i++)
        if (lengths[i] > 0)
            measure(&b, lengths[i]);
    weft_lane_destroy(b.lane);
    weft_device_destroy(b.device);
    free(b.a);
    free(b.b);
    free(b.c);
    weft_comm_destroy(b.world);
    return 0;
}
