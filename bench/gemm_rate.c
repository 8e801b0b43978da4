/* The rate that a training step's GEMMs reach alone: all of them, forward, dgrad and wgrad, each
 * layer with weights and gradients of its own, and nothing else between.
 *
 *     bench_gemm_rate gpt2|moe fp32|bf16 THREADS [--json]
 *
 * B = 4, T = 256, vocabulary 50304. Medians of 5 passes after one warm-up. step_flops adds
 * attention's 12 L B T^2 H to the GEMMs', as the model's FLOPs count it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

#include "bench/bench.h"

enum { ROWS = 1024, SEQ = 256, VOCABULARY = 50304, PASSES = 6 };

typedef struct linear {
    size_t in, out, groups; /* groups > 1: experts, each with rows / groups rows */
    size_t rows;
    void *w, *x, *y;
    float *grad;
    int64_t *offsets;
} linear;

static weft_lane *lane;
static weft_dtype dtype;

static linear make(weft_device *device, size_t rows, size_t in, size_t out, size_t groups)
{
    size_t bytes = weft_dtype_bytes(dtype);
    linear l = {.in = in, .out = out, .groups = groups, .rows = rows};
    l.w = allocate_zeros(device, groups * in * out * bytes);
    l.grad = allocate_zeros(device, groups * in * out * sizeof(float));
    l.x = allocate_zeros(device, rows * in * bytes);
    l.y = allocate_zeros(device, rows * out * bytes);
    l.offsets = calloc(groups + 1, sizeof *l.offsets);
    for (size_t g = 0; l.offsets && g <= groups; g++)
        l.offsets[g] = (int64_t)(rows * g / groups);
    return l;
}

static void gemm(const linear *l, weft_grouped_kind kind)
{
    if (l->groups > 1) {
        check(weft_grouped_gemm(lane, &WEFT_ARGS(weft_grouped_gemm_args, .kind = kind,
                                                 .num_groups = l->groups, .in = l->in,
                                                 .out = l->out, .row_offsets = l->offsets,
                                                 .dtype = dtype, .x = l->x, .w = l->w, .y = l->y,
                                                 .wgrad = l->grad, .overwrite = true)));
        return;
    }
    weft_gemm_args args = {
        .struct_bytes = sizeof args, .dtype = dtype, .c_dtype = dtype, .alpha = 1};
    if (kind == WEFT_GROUPED_FORWARD) {
        args.m = l->rows, args.n = l->out, args.k = l->in;
        args.a = l->x, args.b = l->w, args.c = l->y, args.transpose_b = true;
    } else if (kind == WEFT_GROUPED_DGRAD) {
        args.m = l->rows, args.n = l->in, args.k = l->out;
        args.a = l->y, args.b = l->w, args.c = l->x;
    } else {
        args.m = l->out, args.n = l->in, args.k = l->rows, args.transpose_a = true;
        args.a = l->y, args.b = l->x, args.c = l->grad, args.c_dtype = WEFT_F32;
    }
    check(weft_gemm(lane, &args));
}

int main(int argc, char **argv)
{
    if (argc < 4 || (strcmp(argv[1], "gpt2") != 0 && strcmp(argv[1], "moe") != 0) ||
        (strcmp(argv[2], "fp32") != 0 && strcmp(argv[2], "bf16") != 0)) {
        fprintf(stderr, "usage: bench_gemm_rate gpt2|moe fp32|bf16 THREADS [--json]\n");
        return 2;
    }
    bool moe = strcmp(argv[1], "moe") == 0, json = argc > 4 && strcmp(argv[4], "--json") == 0;
    size_t layers = moe ? 4 : 12, hidden = moe ? 512 : 768, ffn = 4 * hidden;
    dtype = strcmp(argv[2], "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
    weft_device *device;
    check(weft_device_create_cpu(atoi(argv[3]), 0, &device));
    check(weft_lane_create(device, 0, "compute", &lane));

    linear all[64];
    size_t count = 0, rows = moe ? 2 * ROWS : ROWS, groups = moe ? 8 : 1;
    for (size_t i = 0; i < layers; i++) {
        all[count++] = make(device, ROWS, hidden, 3 * hidden, 1);
        all[count++] = make(device, ROWS, hidden, hidden, 1);
        all[count++] = make(device, rows, hidden, ffn, groups);
        all[count++] = make(device, rows, ffn, hidden, groups);
    }
    all[count++] = make(device, ROWS, hidden, VOCABULARY, 1);

    double times[PASSES], flops = 0;
    for (size_t i = 0; i < count; i++)
        flops += 6.0 * (double)all[i].rows * (double)all[i].in * (double)all[i].out;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = seconds_now();
        for (size_t i = 0; i < count; i++)
            gemm(&all[i], WEFT_GROUPED_FORWARD);
        for (size_t i = count; i-- > 0;) {
            gemm(&all[i], WEFT_GROUPED_DGRAD);
            gemm(&all[i], WEFT_GROUPED_WGRAD);
        }
        check(weft_lane_sync(lane));
        times[pass] = seconds_now() - start;
    }
    weft_sort(times + 1, PASSES - 1);
    double median = times[1 + (PASSES - 1) / 2];
    double attention = 12.0 * (double)layers * (ROWS / SEQ) * SEQ * SEQ * (double)hidden;
    printf(json ? "{\"gflops\": %.6g, \"gemm_ms\": %.6g, \"step_flops\": %.17g}\n"
                : "%.1f GFLOP/s, %.1f ms; a step has %.6g FLOPs\n",
           flops / median / 1e9, median * 1e3, flops + attention);
    return 0;
}
