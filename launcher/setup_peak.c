/* What a device can do at most, which model FLOPs are compared with. */
#include "launcher/setup.h"

#include <math.h>
#include <string.h>

#include <weft/kernels.h>

enum {
    RUNS = 4,
    CPU_SIZE = 1024,
    CUDA_FIRST_SIZE = 128,
    CUDA_LAST_SIZE = 8192,
    LONG_US = 1000, /* a GEMM that takes longer is measured alone, and is large enough */
};

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
    return weft_device_alloc(weft_lane_device(g->lane), g->space, g->bytes, "measuring", out);
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
}

/* The best of some runs. Short GEMMs run several in a row, as in training. */
static weft_status time_runs(const gemm *g, double *out_us)
{
    double best = INFINITY;
    for (int run = 0; run < RUNS; run++) {
        int repeats = best < LONG_US ? 8 : 1;
        double start = weft_now_us();
        for (int i = 0; i < repeats; i++)
            WEFT_TRY(weft_gemm(g->lane, &WEFT_ARGS(weft_gemm_args, .m = g->n, .n = g->n, .k = g->n,
                                                   .transpose_b = true, .dtype = g->dtype,
                                                   .c_dtype = g->dtype, .a = g->a, .b = g->b,
                                                   .c = g->c, .alpha = 1)));
        WEFT_TRY(weft_lane_sync(g->lane));
        best = fmin(best, (weft_now_us() - start) / repeats);
    }
    *out_us = best;
    return WEFT_OK;
}

static weft_status measure(weft_lane *lane, weft_space space, weft_dtype dtype, size_t n,
                           double *out_us)
{
    gemm g = {.lane = lane, .space = space, .dtype = dtype, .n = n};
    weft_status status = prepare(&g);
    if (status == WEFT_OK)
        status = time_runs(&g, out_us);
    release(&g);
    return status;
}

static double rate(size_t n, double us)
{
    return 2.0 * (double)n * (double)n * (double)n / (us * 1e-6);
}

/* On the CPU in pinned memory, which no budget limits. A GPU shows what it can do on large matrices
 * only, and in its own memory: they grow as long as they take little time, and fit. */
weft_status weft_setup_measure_peak(weft_lane *lane, weft_device *device, weft_dtype dtype,
                                    double *out)
{
    double us = 0, best = 0;
    if (strcmp(weft_device_name(device), "cuda") != 0) {
        WEFT_TRY(measure(lane, WEFT_SPACE_PINNED, dtype, CPU_SIZE, &us));
        *out = rate(CPU_SIZE, us);
        return WEFT_OK;
    }
    for (size_t n = CUDA_FIRST_SIZE; n <= CUDA_LAST_SIZE && us < LONG_US; n *= 4) {
        weft_status status = measure(lane, WEFT_SPACE_DEVICE, dtype, n, &us);
        if (status == WEFT_MEMORY && best > 0)
            break;
        WEFT_TRY(status);
        best = fmax(best, rate(n, us));
    }
    weft_error_clear();
    weft_device_reset_peak(device);
    *out = best;
    return WEFT_OK;
}
