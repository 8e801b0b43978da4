#include "launcher/training/peak.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "kernels/kernels.h"
#include "parallel/topology/topology.h"

enum {
    GOES = 4,
    LATER_GOES = 8,
    CPU_SIZE = 1024,
    CUDA_FIRST_SIZE = 128,
    CUDA_LAST_SIZE = 8192,
    LONG_US = 1000,        /* a GEMM of this time is large enough, and is measured alone */
    PART_OF_THE_RUN = 200, /* the part of the run's time for measuring again */
};

static const double TRUSTED = 0.5, NEAR = 0.8; /* shares of the processor's figure */

/* C = A B^T, all n x n. */
typedef struct gemm {
    weft_lane *lane;
    weft_space space;
    weft_dtype dtype;
    size_t n, bytes;
    void *a, *b, *c;
} gemm;

static weft_status allocate(gemm *g, void **out)
{
    return weft_device_alloc_for(weft_lane_device(g->lane), g->space,
                                 g->space == WEFT_SPACE_PINNED ? WEFT_MEMORY_STAGING
                                                               : WEFT_MEMORY_OTHER,
                                 g->bytes, "measuring", out);
}

/* Random numbers: on zeros a GPU draws less power, and runs faster than in training. */
static weft_status fill(gemm *g, void *x)
{
    return weft_random_normal(
        g->lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1, .global_dims = {g->n * g->n},
                            .local_dims = {g->n * g->n}, .std = 1, .dtype = g->dtype, .x = x));
}

static weft_status prepare(gemm *g)
{
    g->bytes = g->n * g->n * weft_dtype_bytes(g->dtype);
    WEFT_TRY(allocate(g, &g->a));
    WEFT_TRY(allocate(g, &g->b));
    WEFT_TRY(allocate(g, &g->c));
    WEFT_TRY(fill(g, g->a));
    WEFT_TRY(fill(g, g->b));
    return weft_lane_sync(g->lane);
}

static void release(gemm *g)
{
    weft_device *device = weft_lane_device(g->lane);
    weft_device_free(device, g->space, g->a, g->bytes);
    weft_device_free(device, g->space, g->b, g->bytes);
    weft_device_free(device, g->space, g->c, g->bytes);
    g->a = g->b = g->c = NULL;
}

static weft_status time_runs(const gemm *g, int repeats, double *out_us)
{
    double start = weft_now_us();
    for (int i = 0; i < repeats; i++)
        WEFT_TRY(weft_gemm(g->lane,
                           &WEFT_ARGS(weft_gemm_args, .m = g->n, .n = g->n, .k = g->n,
                                      .transpose_b = true, .dtype = g->dtype, .c_dtype = g->dtype,
                                      .a = g->a, .b = g->b, .c = g->c, .alpha = 1)));
    WEFT_TRY(weft_lane_sync(g->lane));
    *out_us = (weft_now_us() - start) / repeats;
    return WEFT_OK;
}

static double product_flops(size_t n)
{
    return 2.0 * (double)n * (double)n * (double)n;
}

static double rate(size_t n, double us)
{
    return product_flops(n) / (us * 1e-6);
}

/* --- a GPU --------------------------------------------------------------------------------- */

/* The best of several runs. Short GEMMs run several in a row, as in training. */
static weft_status measure_size(weft_lane *lane, weft_dtype dtype, size_t n, double *out_us)
{
    gemm g = {.lane = lane, .space = WEFT_SPACE_DEVICE, .dtype = dtype, .n = n};
    double us;
    weft_status status = prepare(&g);
    *out_us = INFINITY;
    for (int go = 0; go < GOES && status == WEFT_OK; go++) {
        status = time_runs(&g, *out_us < LONG_US ? 8 : 1, &us);
        if (status == WEFT_OK)
            *out_us = fmin(*out_us, us);
    }
    release(&g);
    return status;
}

/* A GPU reaches its peak only on large matrices in its own memory: these grow while they are fast
 * and fit. Ranks that share a GPU multiply at once. */
static weft_status measure_gpu(weft_peak *p)
{
    double us = 0, best = 0;
    WEFT_TRY(weft_comm_barrier(p->world));
    for (size_t n = CUDA_FIRST_SIZE; n <= CUDA_LAST_SIZE && us < LONG_US; n *= 4) {
        weft_status status = measure_size(p->lane, p->dtype, n, &us);
        if (status == WEFT_MEMORY && best > 0)
            break;
        WEFT_TRY(status);
        best = fmax(best, rate(n, us));
    }
    weft_error_clear();
    weft_device_reset_peak(weft_lane_device(p->lane));
    WEFT_TRY(weft_comm_all_reduce_host(p->world, &best, 1, WEFT_F64, WEFT_REDUCE_SUM));
    p->measured = best / weft_comm_size(p->world);
    return WEFT_OK;
}

/* --- cores --------------------------------------------------------------------------------- */

/* Allocates in pinned memory, which no budget limits. */
static gemm gemm_of(const weft_peak *p)
{
    size_t bytes = (size_t)CPU_SIZE * CPU_SIZE * weft_dtype_bytes(p->dtype);
    return (gemm){.lane = p->lane,
                  .space = WEFT_SPACE_PINNED,
                  .dtype = p->dtype,
                  .n = CPU_SIZE,
                  .bytes = bytes,
                  .a = p->a,
                  .b = p->b,
                  .c = p->c};
}

/* All ranks multiply at once, and the slowest counts: cores that ranks share count once. */
static weft_status measure_together(weft_peak *p)
{
    gemm g = gemm_of(p);
    double us;
    WEFT_TRY(weft_comm_barrier(p->world));
    WEFT_TRY(time_runs(&g, 1, &us));
    WEFT_TRY(weft_comm_all_reduce_host(p->world, &us, 1, WEFT_F64, WEFT_REDUCE_MAX));
    p->measured = fmax(p->measured, rate(CPU_SIZE, us));
    p->spent_us += us;
    return WEFT_OK;
}

/* A rank's cores for its threads: ranks that are bound alike, or unbound, share cores with the
 * node's other ranks; else each has its own. */
static weft_status count_cores(weft_peak *p)
{
    int rank, size, local_rank, local_size, allowed = weft_machine_allowed_cores();
    int threads = weft_device_num_threads(weft_lane_device(p->lane));
    if (!weft_comm_launched(&rank, &size, &local_rank, &local_size) || local_size < 1)
        local_size = 1;
    cpu_set_t set;
    int64_t extremes[2] = {0};
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < CPU_SETSIZE; i++)
            extremes[0] = (extremes[0] * 31 + (CPU_ISSET(i, &set) != 0)) % 1000003;
    extremes[1] = -extremes[0];
    WEFT_TRY(weft_comm_all_reduce_host(p->world, extremes, 2, WEFT_I64, WEFT_REDUCE_MAX));
    bool alike = extremes[0] == -extremes[1];
    p->cores = fmin(threads, (double)allowed / (alike ? local_size : 1));
    return WEFT_OK;
}

static weft_status ask_processor(weft_peak *p)
{
    WEFT_TRY(count_cores(p));
    double sums[2] = {p->cores, p->cores * weft_kernels_cpu_core_flops(p->dtype)};
    WEFT_TRY(weft_comm_all_reduce_host(p->world, sums, 2, WEFT_F64, WEFT_REDUCE_SUM));
    p->cores = sums[0] / weft_comm_size(p->world);
    p->processor = sums[1] / weft_comm_size(p->world);
    return WEFT_OK;
}

static weft_status prepare_cores(weft_peak *p)
{
    gemm g = gemm_of(p);
    double us;
    if (p->a)
        return WEFT_OK;
    weft_status status = prepare(&g);
    p->a = g.a;
    p->b = g.b;
    p->c = g.c;
    return status == WEFT_OK ? time_runs(&g, 1, &us) : status; /* lets the kernel allocate */
}

static weft_status measure_cores(weft_peak *p)
{
    WEFT_TRY(weft_comm_agree(p->world, prepare_cores(p)));
    for (int go = 0; go < GOES; go++)
        WEFT_TRY(measure_together(p));
    p->spent_us = 0; /* of the run */
    return ask_processor(p);
}

/* --- both ---------------------------------------------------------------------------------- */

const char *weft_peak_source_text(weft_peak_source source)
{
    static const char *const texts[] = {"given", "measured", "processor", "achieved"};
    return texts[source];
}

void weft_peak_settle(weft_peak *p)
{
    p->flops = p->measured;
    p->source = WEFT_PEAK_MEASURED;
    if (p->given > 0) {
        p->flops = p->given;
        p->source = WEFT_PEAK_GIVEN;
    } else if (p->measured < TRUSTED * p->processor) {
        p->flops = p->processor;
        p->source = WEFT_PEAK_PROCESSOR;
    }
    if (p->achieved > p->flops) {
        p->flops = p->achieved;
        p->source = WEFT_PEAK_ACHIEVED;
    }
}

void weft_peak_release(weft_peak *p)
{
    gemm g = gemm_of(p);
    if (p->a || p->b || p->c)
        release(&g);
    p->a = p->b = p->c = NULL;
    p->looks = false;
}

/* Stops near the processor's figure, or after several tries. */
static void settle_for_now(weft_peak *p)
{
    bool near = p->processor > 0 && p->measured >= NEAR * p->processor;
    weft_peak_settle(p);
    if (near || p->num_goes == LATER_GOES)
        weft_peak_release(p);
}

weft_status weft_peak_find(weft_peak *p, const weft_config *config, weft_comm *world,
                           weft_lane *lane)
{
    weft_pace pace = weft_config_pace(config);
    double given = config->device.peak_flops;
    *p = (weft_peak){.given = given > 0 || pace.work == WEFT_PACE_EXPERTS ? given : pace.flops,
                     .world = world,
                     .lane = lane,
                     .dtype = weft_config_dtype(config)};
    bool is_gpu = strcmp(weft_device_name(weft_lane_device(lane)), "cuda") == 0;
    p->looks = p->given <= 0 && !is_gpu;
    if (p->given <= 0)
        WEFT_TRY(is_gpu ? measure_gpu(p) : measure_cores(p));
    settle_for_now(p);
    return WEFT_OK;
}

double weft_peak_share(weft_peak *p, double achieved)
{
    p->achieved = fmax(p->achieved, achieved);
    weft_peak_settle(p);
    return achieved / p->flops;
}

weft_status weft_peak_look(weft_peak *p, double step_ms)
{
    p->run_us += step_ms * 1e3;
    if (!p->looks)
        return WEFT_OK;
    double product_us = 1e6 * product_flops(CPU_SIZE) / p->measured;
    if ((p->spent_us + product_us) * PART_OF_THE_RUN > p->run_us)
        return WEFT_OK;
    p->num_goes++;
    WEFT_TRY(prepare_cores(p));
    WEFT_TRY(measure_together(p));
    settle_for_now(p);
    return WEFT_OK;
}

void weft_peak_print(const weft_peak *p, double flops_per_token)
{
    const char *cores = p->cores == 1 ? "core" : "cores";
    printf("model FLOPs: %.4g M a token: 2mnk a matrix product, and backward as much twice\n"
           "share of peak: model FLOPs / (time x ranks x peak); peak: %.4g GFLOP/s, ",
           flops_per_token / 1e6, p->flops / 1e9);
    if (p->source == WEFT_PEAK_GIVEN)
        puts("given");
    else if (p->processor <= 0)
        puts("measured");
    else if (p->source == WEFT_PEAK_MEASURED)
        printf("measured (of the processor's own %.4g: %.3g %s, %s)\n", p->processor / 1e9,
               p->cores, cores, weft_kernels_cpu_isa());
    else
        printf("the processor's own (%.3g %s, %s; measured beside what else runs: %.4g)\n",
               p->cores, cores, weft_kernels_cpu_isa(), p->measured / 1e9);
    if (p->given <= 0 && p->cores > 1 && p->measured < p->processor / 2)
        puts("other work shares these cores: with device.num_threads 1, or OMP_WAIT_POLICY=PASSIVE "
             "in the "
             "environment, steps may take a fraction of the time, as threads that wait for others "
             "keep "
             "no core busy");
}
