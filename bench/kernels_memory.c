/* How near to the memory's speed the CPU kernels run that move more than they compute.
 *
 *     bench_kernels_memory [--threads N] [--tokens T] [--json] [--only NAME]
 *
 * Shapes are those of a GPT-2 of 124M parameters (hidden 768, vocabulary 50304) and of a layer of
 * 8 experts, top 2. Bytes are what a kernel must read and write at least; the last column compares
 * with a copy by the same threads (bytes read and written) measured in the same run. Medians. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/device.h>
#include <weft/kernels.h>

#include "kernels/kernels.h"

enum { REPEATS = 11, HIDDEN = 768, WIDE = 3072, VOCABULARY = 50304, EXPERTS = 8, TOPK = 2 };

static weft_device *device;
static weft_lane *lane;
static bool is_json, is_first_row = true;
static const char *only;
static double copy_rate; /* bytes per second */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s: %s\n", weft_status_text(status), weft_error_get()->text);
    exit(weft_status_exit_code(status));
}

static void *allocate(size_t bytes)
{
    void *memory = NULL;
    check(weft_device_alloc(device, WEFT_SPACE_DEVICE, bytes, "bench", &memory));
    memset(memory, 0, bytes);
    return memory;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds)
{
    qsort(seconds, REPEATS, sizeof *seconds, ascending);
    return seconds[REPEATS / 2];
}

static bool is_wanted(const char *name)
{
    return !only || strstr(name, only);
}

static void report(const char *name, weft_dtype dtype, double bytes, double seconds)
{
    const double rate = bytes / seconds;
    if (is_json)
        printf("%s\n    {\"kernel\": \"%s\", \"dtype\": \"%s\", \"bytes\": %.0f, "
               "\"us\": %.2f, \"gb_per_s\": %.3f, \"of_copy\": %.4f}",
               is_first_row ? "" : ",", name, weft_dtype_text(dtype), bytes, seconds * 1e6,
               rate * 1e-9, rate / copy_rate);
    else
        printf("%-28s %-5s %9.1f MB %9.0f us %7.1f GB/s %6.0f %%\n", name, weft_dtype_text(dtype),
               bytes * 1e-6, seconds * 1e6, rate * 1e-9, 100 * rate / copy_rate);
    is_first_row = false;
    fflush(stdout);
}

#define BENCH(name, kernel, element, bytes, ...)                                                   \
    do {                                                                                           \
        double seconds_[REPEATS];                                                                  \
        if (!is_wanted(name))                                                                      \
            break;                                                                                 \
        for (int r_ = -1; r_ < REPEATS; r_++) {                                                    \
            double start_ = now();                                                                 \
            check(weft_##kernel(lane, &(weft_##kernel##_args){__VA_ARGS__}));                      \
            check(weft_lane_sync(lane));                                                           \
            seconds_[r_ < 0 ? 0 : r_] = now() - start_;                                            \
        }                                                                                          \
        report(name, element, (double)(bytes), median(seconds_));                                  \
    } while (0)

static void measure_copy(size_t bytes)
{
    char *from = allocate(bytes), *to = allocate(bytes);
    double seconds[REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        double start = now();
        check(weft_cast(lane, &(weft_cast_args){.count = bytes / 4,
                                                .from_dtype = WEFT_F32,
                                                .to_dtype = WEFT_F32,
                                                .from = from,
                                                .to = to}));
        check(weft_lane_sync(lane));
        seconds[r < 0 ? 0 : r] = now() - start;
    }
    double taken = median(seconds);
    copy_rate = 2.0 * (double)bytes / taken;
    weft_device_free(device, WEFT_SPACE_DEVICE, from, bytes);
    weft_device_free(device, WEFT_SPACE_DEVICE, to, bytes);
    if (is_json)
        printf("{\"isa\": \"%s\", \"copy_gb_per_s\": %.3f, \"kernels\": [", weft_kernels_cpu_isa(),
               copy_rate * 1e-9);
    else
        printf("copy of %zu MB: %.1f GB/s (read and written), instruction set %s\n", bytes >> 20,
               copy_rate * 1e-9, weft_kernels_cpu_isa());
}

static void bench_activations(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), narrow = tokens * HIDDEN, wide = tokens * WIDE;
    void *x = allocate(2 * wide * e), *y = allocate(2 * wide * e), *z = allocate(wide * e);
    float *mean = allocate(tokens * 4), *rstd = allocate(tokens * 4);
    float *gradient = allocate(2 * WIDE * 4);
    void *weight = allocate(HIDDEN * e);
    check(weft_random_normal(lane, &(weft_random_normal_args){.num_dims = 1,
                                                              .global_dims = {2 * wide},
                                                              .local_dims = {2 * wide},
                                                              .seed = 1,
                                                              .std = 1.0f,
                                                              .dtype = dtype,
                                                              .x = x}));
    BENCH("layer norm", norm_forward, dtype, 2 * narrow * e, .rows = tokens, .cols = HIDDEN,
          .dtype = dtype, .x = x, .weight = weight, .bias = weight, .y = y, .mean = mean,
          .rstd = rstd, .epsilon = 1e-5f);
    BENCH("layer norm + residual", norm_forward, dtype, 4 * narrow * e, .rows = tokens,
          .cols = HIDDEN, .dtype = dtype, .x = x, .residual = y, .sum = z, .weight = weight,
          .bias = weight, .y = y, .mean = mean, .rstd = rstd, .epsilon = 1e-5f);
    BENCH("layer norm backward", norm_backward, dtype, 3 * narrow * e, .rows = tokens,
          .cols = HIDDEN, .dtype = dtype, .dy = y, .x = x, .weight = weight, .mean = mean,
          .rstd = rstd, .dx = z, .dweight = gradient, .dbias = gradient + WIDE, .overwrite = true);
    BENCH("rms norm", norm_forward, dtype, 2 * narrow * e, .kind = WEFT_NORM_RMS, .rows = tokens,
          .cols = HIDDEN, .dtype = dtype, .x = x, .weight = weight, .y = y, .rstd = rstd,
          .epsilon = 1e-5f);
    BENCH("rms norm backward", norm_backward, dtype, 3 * narrow * e, .kind = WEFT_NORM_RMS,
          .rows = tokens, .cols = HIDDEN, .dtype = dtype, .dy = y, .x = x, .weight = weight,
          .rstd = rstd, .dx = z, .dweight = gradient, .overwrite = true);
    BENCH("bias gradient", bias_gradient, dtype, wide * e, .rows = tokens, .cols = WIDE,
          .dtype = dtype, .dy = x, .db = gradient, .overwrite = true);
    BENCH("gelu", activation_forward, dtype, 2 * wide * e, .kind = WEFT_ACTIVATION_GELU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .y = y);
    BENCH("gelu backward", activation_backward, dtype, 3 * wide * e, .kind = WEFT_ACTIVATION_GELU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .dy = z, .dx = y);
    BENCH("swiglu", activation_forward, dtype, 3 * wide * e, .kind = WEFT_ACTIVATION_SWIGLU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .y = z);
    BENCH("swiglu backward", activation_backward, dtype, 5 * wide * e,
          .kind = WEFT_ACTIVATION_SWIGLU, .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x,
          .dy = z, .dx = y);
    BENCH("rope", rope, dtype, 2 * narrow * e, .seq = tokens / 4, .batch = 4, .heads = 12,
          .head_dim = 64, .token_stride = HIDDEN, .head_stride = 64, .base = 10000.0f,
          .dtype = dtype, .x = x);
    BENCH("dropout", dropout, dtype, 2 * wide * e, .rows = tokens, .cols = WIDE, .dtype = dtype,
          .x = x, .y = y, .p = 0.1f, .seed = 1);
    BENCH("add", add, dtype, 3 * wide * e, .count = wide, .dtype = dtype, .a = x, .b = y, .y = z);
    BENCH("scale", scale, dtype, 2 * wide * e, .count = wide, .dtype = dtype, .x = x,
          .factor = 1.0f);
    weft_device_free(device, WEFT_SPACE_DEVICE, x, 2 * wide * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, y, 2 * wide * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, z, wide * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, mean, tokens * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, rstd, tokens * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, gradient, 2 * WIDE * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, weight, HIDDEN * e);
}

static void bench_vocabulary(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), count = tokens * VOCABULARY;
    const size_t table_count = (size_t)VOCABULARY * HIDDEN;
    void *logits = allocate(count * e), *table = allocate(table_count * e);
    void *y = allocate(tokens * HIDDEN * e);
    float *dtable = allocate(table_count * 4), *row = allocate(3 * tokens * 4);
    int32_t *labels = allocate(tokens * 4);
    double *sum = allocate(sizeof *sum);
    for (size_t t = 0; t < tokens; t++)
        labels[t] = (int32_t)(t * 7919 % VOCABULARY);
    BENCH("cross-entropy, fused", cross_entropy_stats, dtype, count * e,
          .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = tokens, .cols = VOCABULARY,
          .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits, .labels = labels,
          .row_max = row, .row_sum = row + tokens, .target = row + 2 * tokens);
    BENCH("cross-entropy, maximum", cross_entropy_stats, dtype, count * e,
          .pass = WEFT_CROSS_ENTROPY_MAX, .rows = tokens, .cols = VOCABULARY,
          .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits, .row_max = row);
    BENCH("cross-entropy, loss", cross_entropy_loss, WEFT_F32, 12 * tokens, .rows = tokens,
          .row_max = row, .row_sum = row + tokens, .target = row + 2 * tokens, .loss_sum = sum);
    BENCH("cross-entropy backward", cross_entropy_backward, dtype, 2 * count * e, .rows = tokens,
          .cols = VOCABULARY, .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits,
          .labels = labels, .row_max = row, .row_sum = row + tokens, .scale = 1.0f);
    BENCH("embedding", embedding_forward, dtype, 2 * tokens * HIDDEN * e, .num_tokens = tokens,
          .batch = 4, .cols = HIDDEN, .tokens = labels, .num_rows = VOCABULARY, .dtype = dtype,
          .table = table, .y = y);
    BENCH("embedding backward", embedding_backward, dtype, tokens * HIDDEN * (e + 8),
          .num_tokens = tokens, .batch = 4, .cols = HIDDEN, .tokens = labels,
          .num_rows = VOCABULARY, .dtype = dtype, .dy = y, .dtable = dtable);
    weft_device_free(device, WEFT_SPACE_DEVICE, logits, count * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, table, table_count * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, y, tokens * HIDDEN * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, dtable, table_count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, row, 3 * tokens * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, labels, tokens * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, sum, sizeof *sum);
}

static void bench_experts(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), choices = tokens * TOPK;
    const size_t logit_bytes = tokens * EXPERTS * 4, row_bytes = choices * HIDDEN * e;
    float *logits = allocate(logit_bytes), *scores = allocate(logit_bytes);
    float *dlogits = allocate(logit_bytes), *sums = allocate((2 * EXPERTS + 1) * 4);
    int32_t *index = allocate(choices * 4), *row_of = allocate(choices * 4);
    int32_t *token_of = allocate(choices * 4), *scratch = allocate(choices * 4);
    float *prob = allocate(choices * 4), *dprob = allocate(choices * 4);
    int64_t counts[EXPERTS], dropped = 0;
    void *x = allocate(tokens * HIDDEN * e), *y = allocate(tokens * HIDDEN * e);
    void *rows = allocate(row_bytes), *drows = allocate(row_bytes);
    check(weft_random_normal(lane, &(weft_random_normal_args){.num_dims = 1,
                                                              .global_dims = {tokens * EXPERTS},
                                                              .local_dims = {tokens * EXPERTS},
                                                              .seed = 1,
                                                              .std = 1.0f,
                                                              .dtype = WEFT_F32,
                                                              .x = logits}));
    BENCH("route", route, WEFT_F32, 2 * logit_bytes + 8 * choices, .num_tokens = tokens,
          .num_experts = EXPERTS, .topk = TOPK, .logits = logits, .scores = scores,
          .top_index = index, .top_prob = prob, .counts = sums, .score_sums = sums + EXPERTS,
          .z_sum = sums + 2 * EXPERTS);
    BENCH("route backward", route_backward, WEFT_F32, 3 * logit_bytes + 12 * choices,
          .num_tokens = tokens, .num_experts = EXPERTS, .topk = TOPK, .logits = logits,
          .scores = scores, .top_index = index, .top_prob = prob, .dtop_prob = dprob,
          .fraction = sums, .aux_scale = 0.1f, .z_scale = 0.1f, .dlogits = dlogits);
    BENCH("dispatch plan", dispatch_plan, WEFT_I32, 12 * choices, .num_tokens = tokens,
          .num_experts = EXPERTS, .topk = TOPK, .num_local = EXPERTS, .top_index = index,
          .top_prob = prob, .counts = counts, .row_of = row_of, .token_of = token_of,
          .dropped = &dropped, .scratch = scratch);
    BENCH("permute", permute, dtype, 2 * row_bytes, .num_rows = choices, .cols = HIDDEN,
          .dtype = dtype, .x = x, .token_of = token_of, .rows = rows);
    BENCH("permute backward", permute_backward, dtype, row_bytes + tokens * HIDDEN * e,
          .num_tokens = tokens, .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .drows = drows,
          .row_of = row_of, .dx = x);
    BENCH("combine", combine, dtype, row_bytes + tokens * HIDDEN * e, .num_tokens = tokens,
          .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .rows = rows, .row_of = row_of,
          .top_prob = prob, .y = y);
    BENCH("combine backward", combine_backward, dtype, 2 * row_bytes + tokens * HIDDEN * e,
          .num_tokens = tokens, .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .dy = y, .rows = rows,
          .row_of = row_of, .top_prob = prob, .drows = drows, .dtop_prob = dprob);
    weft_device_free(device, WEFT_SPACE_DEVICE, logits, logit_bytes);
    weft_device_free(device, WEFT_SPACE_DEVICE, scores, logit_bytes);
    weft_device_free(device, WEFT_SPACE_DEVICE, dlogits, logit_bytes);
    weft_device_free(device, WEFT_SPACE_DEVICE, sums, (2 * EXPERTS + 1) * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, index, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, row_of, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, token_of, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, scratch, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, prob, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, dprob, choices * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, x, tokens * HIDDEN * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, y, tokens * HIDDEN * e);
    weft_device_free(device, WEFT_SPACE_DEVICE, rows, row_bytes);
    weft_device_free(device, WEFT_SPACE_DEVICE, drows, row_bytes);
}

static void bench_parameters(size_t count)
{
    float *master = allocate(count * 4), *m = allocate(count * 4), *v = allocate(count * 4);
    float *grad = allocate(count * 4), *weight = allocate(count * 4);
    double *sum = allocate(sizeof *sum);
    BENCH("adamw", adamw, WEFT_F32, 28 * count, .count = count, .master = master, .m = m, .v = v,
          .grad = grad, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f,
          .weight_decay = 0.1f, .step = 1);
    BENCH("adamw + bf16 weight", adamw, WEFT_BF16, 30 * count, .count = count, .master = master,
          .m = m, .v = v, .grad = grad, .weight = weight, .dtype = WEFT_BF16, .lr = 1e-3f,
          .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .step = 1);
    BENCH("sum of squares", sum_squares, WEFT_F32, 4 * count, .count = count, .x = grad,
          .sum = sum);
    BENCH("cast to bf16", cast, WEFT_BF16, 6 * count, .count = count, .from_dtype = WEFT_F32,
          .to_dtype = WEFT_BF16, .from = master, .to = weight);
    BENCH("cast to fp32", cast, WEFT_F32, 6 * count, .count = count, .from_dtype = WEFT_BF16,
          .to_dtype = WEFT_F32, .from = weight, .to = master);
    BENCH("random normal", random_normal, WEFT_F32, 4 * count, .num_dims = 1,
          .global_dims = {count}, .local_dims = {count}, .seed = 1, .std = 1.0f, .dtype = WEFT_F32,
          .x = grad);
    weft_device_free(device, WEFT_SPACE_DEVICE, master, count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, m, count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, v, count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, grad, count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, weight, count * 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, sum, sizeof *sum);
}

int main(int argc, char **argv)
{
    int threads = 0;
    size_t tokens = 1024;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) {
            is_json = true;
        } else if (i + 1 < argc && !strcmp(argv[i], "--threads")) {
            threads = atoi(argv[++i]);
        } else if (i + 1 < argc && !strcmp(argv[i], "--tokens")) {
            tokens = (size_t)strtoul(argv[++i], NULL, 10);
        } else if (i + 1 < argc && !strcmp(argv[i], "--only")) {
            only = argv[++i];
        } else {
            fprintf(stderr, "usage: %s [--threads N] [--tokens T] [--json] [--only NAME]\n",
                    argv[0]);
            return 2;
        }
    }
    check(weft_device_create_cpu(threads, 0, &device));
    check(weft_lane_create(device, 0, "bench", &lane));
    measure_copy((size_t)256 << 20);
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16};
    for (int d = 0; d < 2; d++) {
        bench_activations(tokens, dtypes[d]);
        bench_vocabulary(tokens, dtypes[d]);
        bench_experts(tokens, dtypes[d]);
    }
    bench_parameters((size_t)32 << 20);
    if (is_json)
        printf("\n]}\n");
    weft_lane_destroy(lane);
    weft_device_destroy(device);
    return 0;
}
