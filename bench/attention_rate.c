/* The rate that attention reaches on a layer's packed queries, keys and values, causal.
 *
 *     bench_attention_rate SEQ fp32|bf16 THREADS [--json]
 *
 * B = 4, 12 heads of 64. Medians of 9 passes after one warm-up. Only products of unmasked pairs
 * count: 4 D FLOPs a pair forward (scores, values), 10 D backward (scores again, and the gradients
 * of probabilities, queries, keys and values). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/kernels.h>

#include "kernels/kernels.h"

enum { BATCH = 4, HEADS = 12, HEAD_DIM = 64, PASSES = 10 };

static void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "bench_attention_rate: %s\n", weft_error_get()->text);
    exit(weft_status_exit_code(status));
}

static void *allocate(weft_device *device, size_t bytes)
{
    void *memory;
    check(weft_device_alloc(device, WEFT_SPACE_DEVICE, bytes, "operands", &memory));
    memset(memory, 0, bytes); /* the pages are there */
    return memory;
}

static void randomise(weft_lane *lane, void *x, size_t count, weft_dtype dtype, uint64_t stream)
{
    check(weft_random_normal(lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                              .global_dims = {count}, .local_dims = {count},
                                              .stream = stream, .std = 1, .dtype = dtype, .x = x)));
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times)
{
    qsort(times + 1, PASSES - 1, sizeof *times, ascending);
    return times[1 + (PASSES - 1) / 2];
}

int main(int argc, char **argv)
{
    if (argc < 4 || atoi(argv[1]) < 1 ||
        (strcmp(argv[2], "fp32") != 0 && strcmp(argv[2], "bf16") != 0)) {
        fprintf(stderr, "usage: bench_attention_rate SEQ fp32|bf16 THREADS [--json]\n");
        return 2;
    }
    const size_t seq = (size_t)atoi(argv[1]), hidden = (size_t)HEADS * HEAD_DIM;
    const size_t rows = seq * BATCH;
    const weft_dtype dtype = strcmp(argv[2], "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
    const size_t bytes = weft_dtype_bytes(dtype);
    weft_device *device;
    weft_lane *lane;
    check(weft_device_create_cpu(atoi(argv[3]), 0, &device));
    check(weft_lane_create(device, 0, "compute", &lane));

    char *qkv = allocate(device, rows * 3 * hidden * bytes);
    char *dqkv = allocate(device, rows * 3 * hidden * bytes);
    void *out = allocate(device, rows * hidden * bytes);
    void *dout = allocate(device, rows * hidden * bytes);
    float *lse = allocate(device, rows * HEADS * sizeof *lse);
    float *delta = allocate(device, rows * HEADS * sizeof *delta);
    randomise(lane, qkv, rows * 3 * hidden, dtype, 0);
    randomise(lane, dout, rows * hidden, dtype, 1);

    const size_t part = HEAD_DIM * bytes;
    const weft_attention_shape shape = {.seq_q = seq,
                                        .seq_k = seq,
                                        .batch = BATCH,
                                        .heads = HEADS,
                                        .groups = HEADS,
                                        .head_dim = HEAD_DIM,
                                        .q_token_stride = 3 * hidden,
                                        .q_group_stride = 3 * HEAD_DIM,
                                        .k_token_stride = 3 * hidden,
                                        .k_group_stride = 3 * HEAD_DIM,
                                        .causal = true};
    const weft_attention_forward_args forward = {.struct_bytes = sizeof forward,
                                                 .shape = shape,
                                                 .dtype = dtype,
                                                 .q = qkv,
                                                 .k = qkv + part,
                                                 .v = qkv + 2 * part,
                                                 .out = out,
                                                 .lse = lse};
    const weft_attention_backward_args backward = {.struct_bytes = sizeof backward,
                                                   .shape = shape,
                                                   .dtype = dtype,
                                                   .q = qkv,
                                                   .k = qkv + part,
                                                   .v = qkv + 2 * part,
                                                   .out = out,
                                                   .dout = dout,
                                                   .lse = lse,
                                                   .delta = delta,
                                                   .dq = dqkv,
                                                   .dk = dqkv + part,
                                                   .dv = dqkv + 2 * part};
    double forward_times[PASSES], backward_times[PASSES];
    for (int pass = 0; pass < PASSES; pass++) {
        double start = seconds();
        check(weft_attention_forward(lane, &forward));
        check(weft_lane_sync(lane));
        double middle = seconds();
        check(weft_attention_backward(lane, &backward));
        check(weft_lane_sync(lane));
        forward_times[pass] = middle - start;
        backward_times[pass] = seconds() - middle;
    }
    const double pairs = (double)BATCH * HEADS * (double)seq * ((double)seq + 1) / 2;
    const double forward_s = median(forward_times), backward_s = median(backward_times);
    printf(argc > 4 && strcmp(argv[4], "--json") == 0
               ? "{\"forward_gflops\": %.6g, \"forward_ms\": %.6g, \"backward_gflops\": %.6g, "
                 "\"backward_ms\": %.6g}\n"
               : "forward %.1f GFLOP/s, %.2f ms; backward %.1f GFLOP/s, %.2f ms\n",
           pairs * 4 * HEAD_DIM / forward_s / 1e9, forward_s * 1e3,
           pairs * 10 * HEAD_DIM / backward_s / 1e9, backward_s * 1e3);
    return 0;
}
