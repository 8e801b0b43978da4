/* The rate that attention reaches on a layer's packed queries, keys and values, causal, and what
 * sgemm reaches at the shapes of its products.
 *
 *     bench_attention_rate SEQ fp32|bf16 THREADS [BATCH HEADS HEAD_DIM [WINDOW]] [--json]
 *
 * B = 4, 12 heads of 64. Medians of 9 passes after one warm-up; of fewer where a pass takes more
 * than seconds. Only products of unmasked pairs count: 4 D FLOPs a pair forward (scores, values),
 * 10 D backward (scores again, and the gradients of probabilities, queries, keys and values).
 *
 * Beside every pass run the same products as plain fp32 GEMMs, for 1024 queries and 1024 keys:
 * m = n = 1024, k = D for scores and the gradients of probabilities, m = k = 1024, n = D for the
 * others, the left operand transposed for the gradients of keys and values. `sgemm` is their rate
 * together, and `share` what attention reaches of it: the median of the passes.
 *
 * With a window, each pass also runs behind one without it: `of_whole` is the median of the ratio
 * of their times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

#include "bench/bench.h"
#include "kernels/kernels.h"

enum { PASSES = 10, BLOCK = 1024 };

static void randomise(weft_lane *lane, void *x, size_t count, weft_dtype dtype, uint64_t stream)
{
    check(weft_random_normal(lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                              .global_dims = {count}, .local_dims = {count},
                                              .stream = stream, .std = 1, .dtype = dtype, .x = x)));
}

static double median(const double *values, int num)
{
    double sorted[PASSES];
    memcpy(sorted, values, (size_t)num * sizeof *sorted);
    weft_sort(sorted, (size_t)num);
    return sorted[num / 2];
}

/* Operands of a block's products; what they hold does not matter. */
typedef struct products {
    weft_lane *lane;
    size_t dim;
    float *rows, *others, *scores;
} products;

static void multiply(const products *p, bool makes_scores, bool transpose_a)
{
    check(weft_gemm(p->lane,
                    &WEFT_ARGS(weft_gemm_args, .m = BLOCK, .n = makes_scores ? BLOCK : p->dim,
                               .k = makes_scores ? p->dim : BLOCK, .transpose_a = transpose_a,
                               .transpose_b = makes_scores, .a = makes_scores ? p->rows : p->scores,
                               .b = p->others, .c = makes_scores ? p->scores : p->rows)));
}

/* FLOP/s of the products of one pass, run again and again for a tenth of a second. */
static double sgemm_rate(const products *p, bool backward)
{
    const double flops = (backward ? 10.0 : 4.0) * BLOCK * BLOCK * (double)p->dim;
    const double start = seconds_now();
    double end = start;
    int times = 0;
    for (; end < start + 0.1; times++) {
        for (int i = 0; i < (backward ? 2 : 1); i++)
            multiply(p, true, false);
        multiply(p, false, false);
        for (int i = 0; i < (backward ? 2 : 0); i++)
            multiply(p, false, true);
        check(weft_lane_sync(p->lane));
        end = seconds_now();
    }
    return times * flops / (end - start);
}

static size_t number(int argc, char **argv, int i, size_t otherwise)
{
    return argc > i && atoi(argv[i]) > 0 ? (size_t)atoi(argv[i]) : otherwise;
}

int main(int argc, char **argv)
{
    const bool json = argc > 4 && strcmp(argv[argc - 1], "--json") == 0;
    argc -= json;
    if ((argc != 4 && argc != 7 && argc != 8) || atoi(argv[1]) < 1 ||
        (strcmp(argv[2], "fp32") != 0 && strcmp(argv[2], "bf16") != 0)) {
        fprintf(stderr, "usage: bench_attention_rate SEQ fp32|bf16 THREADS [BATCH HEADS HEAD_DIM "
                        "[WINDOW]] [--json]\n");
        return 2;
    }
    const size_t seq = (size_t)atoi(argv[1]), batch = number(argc, argv, 4, 4);
    const size_t heads = number(argc, argv, 5, 12), head_dim = number(argc, argv, 6, 64);
    const size_t window = number(argc, argv, 7, 0);
    const size_t rows = seq * batch, hidden = heads * head_dim;
    const weft_dtype dtype = strcmp(argv[2], "bf16") == 0 ? WEFT_BF16 : WEFT_F32;
    const size_t bytes = weft_dtype_bytes(dtype);
    weft_device *device;
    weft_lane *lane;
    check(weft_device_create_cpu(atoi(argv[3]), 0, &device));
    check(weft_lane_create(device, 0, "compute", &lane));

    char *qkv = allocate_zeros(device, rows * 3 * hidden * bytes);
    char *dqkv = allocate_zeros(device, rows * 3 * hidden * bytes);
    void *out = allocate_zeros(device, rows * hidden * bytes);
    void *dout = allocate_zeros(device, rows * hidden * bytes);
    float *lse = allocate_zeros(device, rows * heads * sizeof *lse);
    float *delta = allocate_zeros(device, rows * heads * sizeof *delta);
    randomise(lane, qkv, rows * 3 * hidden, dtype, 0);
    randomise(lane, dout, rows * hidden, dtype, 1);
    const size_t block = BLOCK * head_dim * sizeof(float);
    const products p = {lane, head_dim, allocate_zeros(device, block),
                        allocate_zeros(device, block),
                        allocate_zeros(device, BLOCK * BLOCK * sizeof(float))};

    const size_t part = head_dim * bytes;
    const weft_attention_shape shape = {.seq_q = seq,
                                        .seq_k = seq,
                                        .batch = batch,
                                        .heads = heads,
                                        .groups = heads,
                                        .head_dim = head_dim,
                                        .q_token_stride = 3 * hidden,
                                        .q_group_stride = 3 * head_dim,
                                        .k_token_stride = 3 * hidden,
                                        .k_group_stride = 3 * head_dim,
                                        .causal = true};
    weft_attention_forward_args forward = {.struct_bytes = sizeof forward,
                                           .shape = shape,
                                           .dtype = dtype,
                                           .q = qkv,
                                           .k = qkv + part,
                                           .v = qkv + 2 * part,
                                           .out = out,
                                           .lse = lse};
    weft_attention_backward_args backward = {.struct_bytes = sizeof backward,
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
    const double seen = (double)(window > 0 && window < seq ? window : seq);
    const double pairs =
        (double)batch * (double)heads * (seen * (seen + 1) / 2 + ((double)seq - seen) * seen);
    double rates[2][PASSES], sgemm[2][PASSES], shares[2][PASSES], of_whole[2][PASSES];
    const double began = seconds_now();
    int passes = 0;
    /* The first pass warms up; the next takes its place. Long passes need no more than a few. */
    for (int pass = 0; pass < PASSES && (pass < 2 || seconds_now() - began < 60); pass++) {
        passes = pass > 0 ? pass : 1;
        for (int i = 0; i < 2; i++) {
            sgemm[i][passes - 1] = sgemm_rate(&p, i);
            double took[2] = {0, 0};
            for (int windowed = window > 0 ? 0 : 1; windowed < 2; windowed++) {
                forward.variant.window = backward.variant.window = windowed ? window : 0;
                if (i) /* the lse that belongs to it */
                    check(weft_attention_forward(lane, &forward));
                check(weft_lane_sync(lane));
                const double start = seconds_now();
                check(i ? weft_attention_backward(lane, &backward)
                        : weft_attention_forward(lane, &forward));
                check(weft_lane_sync(lane));
                took[windowed] = seconds_now() - start;
            }
            const double flops = pairs * (i ? 10 : 4) * (double)head_dim;
            rates[i][passes - 1] = flops / took[1];
            of_whole[i][passes - 1] = window > 0 ? took[1] / took[0] : 1;
            shares[i][passes - 1] = rates[i][passes - 1] / sgemm[i][passes - 1];
        }
        if (seconds_now() - began > 60) /* it was no mere warm-up */
            break;
    }
    for (int i = 0; i < 2; i++) {
        const double rate = median(rates[i], passes),
                     flops = pairs * (i ? 10 : 4) * (double)head_dim;
        const char *name = i ? "backward" : "forward";
        printf(json ? "%s\"%s\": {\"gflops\": %.6g, \"ms\": %.6g, \"sgemm_gflops\": %.6g, "
                      "\"share\": %.4g, \"of_whole\": %.4g}%s"
                    : "%s%s %.1f GFLOP/s, %.2f ms; sgemm %.1f, share %.3f, of the whole %.3f%s",
               json ? (i ? ", " : "{") : "", name, rate / 1e9, flops / rate * 1e3,
               median(sgemm[i], passes) / 1e9, median(shares[i], passes),
               median(of_whole[i], passes), json ? (i ? "}\n" : "") : "\n");
    }
    return 0;
}
