/* How near to a device's limits its kernels run.
 *
 *     bench_kernels [--device cpu|cuda] [--threads N] [--tokens T] [--dtype bf16|fp16|fp32]
 *                   [--only NAME] [--json]
 *
 * With a GPU by default on the first of them, in bf16; without on the CPU with N threads (all), in
 * fp32. Shapes are those of a GPT-2 of 1558M parameters (hidden 1600, 25 heads of 64, vocabulary
 * 50304), of a Llama of 1B (heads of 64 in 8 groups, SwiGLU) and of a layer of 8 experts, top 2.
 * Bytes are what a kernel must read and write at least, beside a copy of device memory (read and
 * written); FLOPs are those of attention's unmasked pairs and of GEMMs, beside a large square GEMM;
 * both ceilings are measured in the same run. T scales all of it (32768 on a GPU, 8192 on the CPU).
 * Medians of 9 samples; a sample is as many launches as fill some milliseconds, so that the time of
 * launching does not show. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/device.h>
#include <weft/kernels.h>

#include "bench/bench.h"

enum {
    SAMPLES = 9,
    HIDDEN = 1600,
    WIDE = 4 * HIDDEN,
    VOCABULARY = 50304,
    HEADS = 25,
    LLAMA_HEADS = 32,
    GROUPS = 8,
    HEAD_DIM = 64,
    EXPERTS = 8,
    TOPK = 2,
    MAX_BUFFERS = 32,
};

static weft_device *device;
static weft_lane *lane;
static bool is_json, is_first_row = true;
static const char *only;
static double copy_rate, matmul_rate; /* bytes and FLOPs per second */

static struct {
    weft_space space;
    void *memory;
    size_t bytes;
} buffers[MAX_BUFFERS];
static int num_buffers;

/* Zeroed, until release_all(). */
static void *allocate(weft_space space, size_t bytes)
{
    void *memory = NULL;
    if (num_buffers == MAX_BUFFERS) {
        fprintf(stderr, "bench_kernels: too many buffers\n");
        exit(weft_status_exit_code(WEFT_INTERNAL));
    }
    check(weft_device_alloc(device, space, bytes, "bench", &memory));
    check(weft_lane_zero(lane, memory, bytes));
    buffers[num_buffers].space = space;
    buffers[num_buffers].memory = memory;
    buffers[num_buffers++].bytes = bytes;
    return memory;
}

static void *on_device(size_t bytes)
{
    return allocate(WEFT_SPACE_DEVICE, bytes);
}

static void release_all(void)
{
    check(weft_lane_sync(lane));
    while (num_buffers > 0) {
        num_buffers--;
        weft_device_free(device, buffers[num_buffers].space, buffers[num_buffers].memory,
                         buffers[num_buffers].bytes);
    }
}

static void *random_numbers(size_t count, weft_dtype dtype)
{
    void *x = on_device(count * weft_dtype_bytes(dtype));
    check(weft_random_normal(lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                              .global_dims = {count}, .local_dims = {count},
                                              .seed = 1, .std = 1.0f, .dtype = dtype, .x = x)));
    return x;
}

static int32_t *random_tokens(size_t count)
{
    int32_t *host = allocate(WEFT_SPACE_PINNED, count * sizeof *host);
    int32_t *tokens = on_device(count * sizeof *tokens);
    check(weft_lane_sync(lane));
    uint64_t state = 1;
    for (size_t t = 0; t < count; t++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        /* every eighth is one of 64 frequent ones, as in texts */
        host[t] = (int32_t)((state >> 33) % (t % 8 ? VOCABULARY : 64));
    }
    check(weft_lane_copy(lane, tokens, host, count * sizeof *tokens));
    check(weft_lane_sync(lane));
    return tokens;
}

static double median(double *seconds)
{
    weft_sort(seconds, SAMPLES);
    return seconds[SAMPLES / 2];
}

static bool is_wanted(const char *name)
{
    return !only || strstr(name, only);
}

/* Launches of a sample, where the first ones took `seconds`. */
static int launches_for(double seconds)
{
    const double enough = 5e-3 / seconds;
    return enough > 200 ? 200 : enough < 1 ? 1 : (int)enough;
}

/* Sets `seconds_` to a launch's time. The first two launches are not counted. */
#define MEASURE(call)                                                                              \
    double seconds_, samples_[SAMPLES], start_ = 0;                                                \
    int num_launches_ = 1;                                                                         \
    for (int s_ = -2; s_ < SAMPLES; s_++) {                                                        \
        check(weft_lane_sync(lane));                                                               \
        start_ = seconds_now();                                                                    \
        for (int l_ = 0; l_ < num_launches_; l_++)                                                 \
            check(call);                                                                           \
        check(weft_lane_sync(lane));                                                               \
        samples_[s_ < 0 ? 0 : s_] = (seconds_now() - start_) / num_launches_;                      \
        if (s_ == -1)                                                                              \
            num_launches_ = launches_for(samples_[0]);                                             \
    }                                                                                              \
    seconds_ = median(samples_)

static void report(const char *name, weft_dtype dtype, bool is_bytes, double work, double seconds)
{
    const double rate = work / seconds, share = rate / (is_bytes ? copy_rate : matmul_rate);
    if (is_json)
        printf("%s\n    {\"kernel\": \"%s\", \"dtype\": \"%s\", \"%s\": %.0f, \"us\": %.2f, "
               "\"%s\": %.3f, \"of_%s\": %.4f}",
               is_first_row ? "" : ",", name, weft_dtype_text(dtype), is_bytes ? "bytes" : "flops",
               work, seconds * 1e6, is_bytes ? "gb_per_s" : "tflops",
               rate * (is_bytes ? 1e-9 : 1e-12), is_bytes ? "copy" : "matmul", share);
    else
        printf("%-28s %-5s %10.1f %-5s %10.1f us %9.4g %-8s %5.0f %% of %s\n", name,
               weft_dtype_text(dtype), work * (is_bytes ? 1e-6 : 1e-9), is_bytes ? "MB" : "GFLOP",
               seconds * 1e6, rate * (is_bytes ? 1e-9 : 1e-12), is_bytes ? "GB/s" : "TFLOP/s",
               100 * share, is_bytes ? "copy" : "matmul");
    is_first_row = false;
    fflush(stdout);
}

#define BENCH(name, kernel, element, is_bytes, work, ...)                                          \
    do {                                                                                           \
        if (!is_wanted(name))                                                                      \
            break;                                                                                 \
        MEASURE(weft_##kernel(lane, &WEFT_ARGS(weft_##kernel##_args, __VA_ARGS__)));               \
        report(name, element, is_bytes, (double)(work), seconds_);                                 \
    } while (0)
#define BYTES(name, kernel, element, work, ...)                                                    \
    BENCH(name, kernel, element, true, work, __VA_ARGS__)
#define FLOPS(name, kernel, element, work, ...)                                                    \
    BENCH(name, kernel, element, false, work, __VA_ARGS__)

/* By all threads on the CPU, where a lane's own copy is one's. */
static weft_status copy(bool is_gpu, void *to, const void *from, size_t bytes)
{
    if (is_gpu)
        return weft_lane_copy(lane, to, from, bytes);
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = bytes / sizeof(float),
                                      .from_dtype = WEFT_F32, .to_dtype = WEFT_F32, .from = from,
                                      .to = to));
}

static void measure_copy(bool is_gpu, size_t bytes)
{
    char *from = on_device(bytes), *to = on_device(bytes);
    MEASURE(copy(is_gpu, to, from, bytes));
    copy_rate = 2.0 * (double)bytes / seconds_;
    release_all();
}

static void measure_matmul(size_t n, weft_dtype dtype)
{
    void *a = random_numbers(n * n, dtype), *b = random_numbers(n * n, dtype);
    void *c = on_device(n * n * weft_dtype_bytes(dtype));
    const weft_gemm_args args = {.struct_bytes = sizeof args,
                                 .m = n,
                                 .n = n,
                                 .k = n,
                                 .transpose_b = true,
                                 .dtype = dtype,
                                 .c_dtype = dtype,
                                 .a = a,
                                 .b = b,
                                 .c = c};
    MEASURE(weft_gemm(lane, &args));
    matmul_rate = 2.0 * (double)n * (double)n * (double)n / seconds_;
    release_all();
}

static void bench_activations(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), narrow = tokens * HIDDEN, wide = tokens * WIDE;
    void *x = random_numbers(2 * wide, dtype), *y = on_device(2 * wide * e),
         *z = on_device(wide * e);
    float *mean = on_device(tokens * 4), *rstd = on_device(tokens * 4);
    float *gradient = on_device(2 * WIDE * 4);
    void *weight = random_numbers(HIDDEN, dtype);
    BYTES("layer norm", norm_forward, dtype, 2 * narrow * e, .rows = tokens, .cols = HIDDEN,
          .dtype = dtype, .x = x, .weight = weight, .bias = weight, .y = y, .mean = mean,
          .rstd = rstd, .epsilon = 1e-5f);
    BYTES("layer norm + residual", norm_forward, dtype, 4 * narrow * e, .rows = tokens,
          .cols = HIDDEN, .dtype = dtype, .x = x, .residual = y, .sum = z, .weight = weight,
          .bias = weight, .y = y, .mean = mean, .rstd = rstd, .epsilon = 1e-5f);
    BYTES("layer norm backward", norm_backward, dtype, 4 * narrow * e, .rows = tokens,
          .cols = HIDDEN, .dtype = dtype, .dy = y, .x = x, .weight = weight, .mean = mean,
          .rstd = rstd, .dx = z, .accumulate = true, .dweight = gradient, .dbias = gradient + WIDE,
          .overwrite = true);
    BYTES("rms norm + residual", norm_forward, dtype, 4 * narrow * e, .kind = WEFT_NORM_RMS,
          .rows = tokens, .cols = HIDDEN, .dtype = dtype, .x = x, .residual = y, .sum = z,
          .weight = weight, .y = y, .rstd = rstd, .epsilon = 1e-5f);
    BYTES("rms norm backward", norm_backward, dtype, 4 * narrow * e, .kind = WEFT_NORM_RMS,
          .rows = tokens, .cols = HIDDEN, .dtype = dtype, .dy = y, .x = x, .weight = weight,
          .rstd = rstd, .dx = z, .accumulate = true, .dweight = gradient, .overwrite = true);
    BYTES("bias gradient", bias_gradient, dtype, wide * e, .rows = tokens, .cols = WIDE,
          .dtype = dtype, .dy = x, .db = gradient, .overwrite = true);
    BYTES("gelu", activation_forward, dtype, 2 * wide * e, .kind = WEFT_ACTIVATION_GELU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .y = y);
    BYTES("gelu backward", activation_backward, dtype, 3 * wide * e, .kind = WEFT_ACTIVATION_GELU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .dy = z, .dx = y);
    BYTES("swiglu", activation_forward, dtype, 3 * wide * e, .kind = WEFT_ACTIVATION_SWIGLU,
          .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x, .y = z);
    BYTES("swiglu backward", activation_backward, dtype, 5 * wide * e,
          .kind = WEFT_ACTIVATION_SWIGLU, .rows = tokens, .cols = WIDE, .dtype = dtype, .x = x,
          .dy = z, .dx = y);
    /* Packed by query group, values between. */
    BYTES("rope", rope, dtype, 2 * tokens * (LLAMA_HEADS + GROUPS) * HEAD_DIM * e,
          .seq = tokens / 4, .batch = 4, .heads = LLAMA_HEADS / GROUPS + 1, .head_dim = HEAD_DIM,
          .token_stride = (size_t)(LLAMA_HEADS + 2 * GROUPS) * HEAD_DIM, .head_stride = HEAD_DIM,
          .groups = GROUPS, .group_stride = (size_t)(LLAMA_HEADS / GROUPS + 2) * HEAD_DIM,
          .rotary_dim = HEAD_DIM, .base = 10000.0f, .dtype = dtype, .x = y);
    BYTES("dropout", dropout, dtype, 2 * wide * e, .rows = tokens, .cols = WIDE, .dtype = dtype,
          .x = x, .y = y, .p = 0.1f, .seed = 1);
    BYTES("dropout + residual", dropout, dtype, 3 * wide * e, .rows = tokens, .cols = WIDE,
          .dtype = dtype, .x = x, .residual = z, .y = y, .p = 0.1f, .seed = 1);
    BYTES("add", add, dtype, 3 * wide * e, .count = wide, .dtype = dtype, .a = x, .b = y, .y = z);
    BYTES("scale", scale, dtype, 2 * wide * e, .count = wide, .dtype = dtype, .x = x,
          .factor = 1.0f);
    release_all();
}

static void bench_vocabulary(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), count = tokens * VOCABULARY;
    const size_t table_count = (size_t)VOCABULARY * HIDDEN;
    void *logits = random_numbers(count, dtype), *table = random_numbers(table_count, dtype);
    void *positions = random_numbers(tokens / 4 * HIDDEN, dtype);
    void *y = on_device(tokens * HIDDEN * e);
    float *dtable = on_device(table_count * 4), *row = on_device(3 * tokens * 4);
    float *dpositions = on_device(tokens / 4 * HIDDEN * 4);
    int32_t *labels = random_tokens(tokens);
    double *sum = on_device(sizeof *sum);
    BYTES("cross-entropy, fused", cross_entropy_stats, dtype, count * e,
          .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = tokens, .cols = VOCABULARY,
          .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits, .labels = labels,
          .row_max = row, .row_sum = row + tokens, .target = row + 2 * tokens);
    BYTES("cross-entropy, maximum", cross_entropy_stats, dtype, count * e,
          .pass = WEFT_CROSS_ENTROPY_MAX, .rows = tokens, .cols = VOCABULARY,
          .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits, .row_max = row);
    BYTES("cross-entropy, loss", cross_entropy_loss, WEFT_F32, 12 * tokens, .rows = tokens,
          .row_max = row, .row_sum = row + tokens, .target = row + 2 * tokens, .loss_sum = sum);
    BYTES("cross-entropy backward", cross_entropy_backward, dtype, 2 * count * e, .rows = tokens,
          .cols = VOCABULARY, .valid_cols = VOCABULARY, .dtype = dtype, .logits = logits,
          .labels = labels, .row_max = row, .row_sum = row + tokens, .scale = 1.0f);
    BYTES("embedding", embedding_forward, dtype, 2 * tokens * HIDDEN * e + tokens / 4 * HIDDEN * e,
          .num_tokens = tokens, .batch = 4, .cols = HIDDEN, .tokens = labels,
          .num_rows = VOCABULARY, .dtype = dtype, .table = table, .positions = positions, .y = y);
    BYTES("embedding backward", embedding_backward, dtype,
          tokens * HIDDEN * (2 * e + 8) + tokens / 4 * HIDDEN * 8, .num_tokens = tokens, .batch = 4,
          .cols = HIDDEN, .tokens = labels, .num_rows = VOCABULARY, .num_positions = tokens / 4,
          .dtype = dtype, .dy = y, .dtable = dtable, .dpositions = dpositions);
    release_all();
}

static void bench_experts(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), choices = tokens * TOPK;
    const size_t logit_bytes = tokens * EXPERTS * 4, row_bytes = choices * HIDDEN * e;
    float *logits = random_numbers(tokens * EXPERTS, WEFT_F32), *scores = on_device(logit_bytes);
    float *dlogits = on_device(logit_bytes), *sums = on_device((2 * EXPERTS + 1) * 4);
    int32_t *index = on_device(choices * 4), *row_of = on_device(choices * 4);
    int32_t *token_of = on_device(choices * 4), *scratch = on_device(choices * 4);
    float *prob = on_device(choices * 4), *dprob = on_device(choices * 4);
    int64_t *counts = allocate(WEFT_SPACE_PINNED, EXPERTS * sizeof *counts);
    int64_t *dropped = allocate(WEFT_SPACE_PINNED, sizeof *dropped);
    weft_wrong_choice *wrong = allocate(WEFT_SPACE_PINNED, sizeof *wrong);
    void *x = random_numbers(tokens * HIDDEN, dtype), *y = on_device(tokens * HIDDEN * e);
    void *rows = on_device(row_bytes), *drows = on_device(row_bytes);
    const weft_route_args route = {.struct_bytes = sizeof route,
                                   .num_tokens = tokens,
                                   .num_experts = EXPERTS,
                                   .topk = TOPK,
                                   .logits = logits,
                                   .scores = scores,
                                   .top_index = index,
                                   .top_prob = prob,
                                   .counts = sums,
                                   .score_sums = sums + EXPERTS,
                                   .z_sum = sums + 2 * EXPERTS};
    const weft_dispatch_plan_args plan = {.struct_bytes = sizeof plan,
                                          .num_tokens = tokens,
                                          .num_experts = EXPERTS,
                                          .topk = TOPK,
                                          .num_local = EXPERTS,
                                          .top_index = index,
                                          .top_prob = prob,
                                          .counts = counts,
                                          .row_of = row_of,
                                          .token_of = token_of,
                                          .dropped = dropped,
                                          .wrong = wrong,
                                          .scratch = scratch};
    check(weft_route(lane, &route)); /* so that --only finds what they give */
    check(weft_dispatch_plan(lane, &plan));
    check(weft_lane_sync(lane));
    check(weft_dispatch_plan_check(&plan));
    if (is_wanted("route")) {
        MEASURE(weft_route(lane, &route));
        report("route", WEFT_F32, true, (double)(2 * logit_bytes + 8 * choices), seconds_);
    }
    BYTES("route backward", route_backward, WEFT_F32, 3 * logit_bytes + 12 * choices,
          .num_tokens = tokens, .num_experts = EXPERTS, .topk = TOPK, .logits = logits,
          .scores = scores, .top_index = index, .top_prob = prob, .dtop_prob = dprob,
          .fraction = sums, .aux_scale = 0.1f, .z_scale = 0.1f, .dlogits = dlogits);
    if (is_wanted("dispatch plan")) {
        MEASURE(weft_dispatch_plan(lane, &plan));
        report("dispatch plan", WEFT_I32, true, (double)(12 * choices), seconds_);
    }
    BYTES("permute", permute, dtype, 2 * row_bytes, .num_rows = choices, .cols = HIDDEN,
          .dtype = dtype, .x = x, .token_of = token_of, .rows = rows);
    BYTES("permute backward", permute_backward, dtype, row_bytes + tokens * HIDDEN * e,
          .num_tokens = tokens, .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .drows = drows,
          .row_of = row_of, .dx = x);
    BYTES("combine", combine, dtype, row_bytes + tokens * HIDDEN * e, .num_tokens = tokens,
          .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .rows = rows, .row_of = row_of,
          .top_prob = prob, .y = y);
    BYTES("combine backward", combine_backward, dtype, 2 * row_bytes + tokens * HIDDEN * e,
          .num_tokens = tokens, .topk = TOPK, .cols = HIDDEN, .dtype = dtype, .dy = y, .rows = rows,
          .row_of = row_of, .top_prob = prob, .drows = drows, .dtop_prob = dprob);
    release_all();
}

/* An MLP's products, with the activation as an epilogue, and their gradients. */
static void bench_gemm(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype);
    const double flops = 2.0 * (double)tokens * HIDDEN * WIDE;
    void *x = random_numbers(tokens * HIDDEN, dtype), *pre = on_device(tokens * WIDE * e);
    void *w = random_numbers((size_t)HIDDEN * WIDE, dtype), *bias = random_numbers(WIDE, dtype);
    void *y = on_device(tokens * WIDE * e);
    float *gradient = on_device((size_t)HIDDEN * WIDE * 4);
    FLOPS("GEMM", gemm, dtype, flops, .m = tokens, .n = WIDE, .k = HIDDEN, .transpose_b = true,
          .dtype = dtype, .c_dtype = dtype, .a = x, .b = w, .c = y, .bias = bias);
    FLOPS("GEMM + GELU", gemm, dtype, flops, .m = tokens, .n = WIDE, .k = HIDDEN,
          .transpose_b = true, .dtype = dtype, .c_dtype = dtype, .a = x, .b = w, .c = y,
          .bias = bias, .epilogue = WEFT_GEMM_GELU, .pre = pre);
    FLOPS("GEMM + GELU backward", gemm, dtype, flops, .m = tokens, .n = WIDE, .k = HIDDEN,
          .dtype = dtype, .c_dtype = dtype, .a = x, .b = w, .c = y,
          .epilogue = WEFT_GEMM_GELU_BACKWARD, .pre = pre);
    FLOPS("GEMM, input gradient", gemm, dtype, flops, .m = tokens, .n = HIDDEN, .k = WIDE,
          .dtype = dtype, .c_dtype = dtype, .a = y, .b = w, .c = x);
    FLOPS("GEMM, weight gradient", gemm, dtype, flops, .m = WIDE, .n = HIDDEN, .k = tokens,
          .transpose_a = true, .dtype = dtype, .c_dtype = WEFT_F32, .a = y, .b = x, .c = gradient);
    FLOPS("GEMM, weight gradient added", gemm, dtype, flops, .m = WIDE, .n = HIDDEN, .k = tokens,
          .transpose_a = true, .dtype = dtype, .c_dtype = WEFT_F32, .a = y, .b = x, .c = gradient,
          .beta = 1.0f);
    release_all();
}

static void bench_grouped(size_t tokens, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), rows = tokens * TOPK;
    void *x = random_numbers(rows * HIDDEN, dtype), *y = on_device(rows * WIDE * e);
    void *w = random_numbers((size_t)EXPERTS * HIDDEN * WIDE, dtype);
    float *wgrad = on_device((size_t)EXPERTS * HIDDEN * WIDE * 4);
    int64_t offsets[EXPERTS + 1];
    for (size_t g = 0; g <= EXPERTS; g++)
        offsets[g] = (int64_t)(rows * g / EXPERTS);
    static const char *const names[] = {"experts", "experts, dgrad", "experts, wgrad"};
    for (int kind = 0; kind < 3; kind++)
        FLOPS(names[kind], grouped_gemm, dtype, 2.0 * (double)rows * HIDDEN * WIDE,
              .kind = (weft_grouped_kind)kind, .num_groups = EXPERTS, .in = HIDDEN, .out = WIDE,
              .row_offsets = offsets, .dtype = dtype, .x = x, .w = w, .y = y, .wgrad = wgrad,
              .overwrite = true);
    release_all();
}

static void bench_attention(const char *name, const char *backward_name, size_t seq, size_t batch,
                            size_t heads, size_t groups, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype), each = heads / groups, rows = seq * batch;
    const size_t group = (each + 2) * HEAD_DIM, token = groups * group;
    const size_t key = each * HEAD_DIM * e, value = key + HEAD_DIM * e;
    char *qkv = random_numbers(rows * token, dtype), *dqkv = on_device(rows * token * e);
    void *dout = random_numbers(rows * heads * HEAD_DIM, dtype);
    void *out = on_device(rows * heads * HEAD_DIM * e);
    float *lse = on_device(rows * heads * 4), *delta = on_device(rows * heads * 4);
    const weft_attention_shape shape = {.seq_q = seq,
                                        .seq_k = seq,
                                        .batch = batch,
                                        .heads = heads,
                                        .groups = groups,
                                        .head_dim = HEAD_DIM,
                                        .q_token_stride = token,
                                        .q_group_stride = group,
                                        .k_token_stride = token,
                                        .k_group_stride = group,
                                        .causal = true};
    const double pairs = 0.5 * (double)seq * (double)(seq + 1) * (double)(batch * heads);
    FLOPS(name, attention_forward, dtype, 4.0 * HEAD_DIM * pairs, .shape = shape, .dtype = dtype,
          .q = qkv, .k = qkv + key, .v = qkv + value, .out = out, .lse = lse);
    FLOPS(backward_name, attention_backward, dtype, 10.0 * HEAD_DIM * pairs, .shape = shape,
          .dtype = dtype, .q = qkv, .k = qkv + key, .v = qkv + value, .out = out, .dout = dout,
          .lse = lse, .delta = delta, .dq = dqkv, .dk = dqkv + key, .dv = dqkv + value);
    release_all();
}

static void bench_parameters(size_t count, weft_dtype dtype)
{
    const size_t e = weft_dtype_bytes(dtype);
    float *master = on_device(count * 4), *m = on_device(count * 4), *v = on_device(count * 4);
    float *grad = random_numbers(count, WEFT_F32);
    void *weight = on_device(count * e);
    double *sum = on_device(sizeof *sum);
    BYTES("adamw", adamw, dtype, (28 + e) * count, .count = count, .master = master, .m = m, .v = v,
          .grad = grad, .weight = weight, .dtype = dtype, .lr = 1e-3f, .beta1 = 0.9f,
          .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .step = 1);
    if (dtype == WEFT_BF16)
        BYTES("adamw, split", adamw, dtype, 28 * count, .count = count, .low = on_device(count * 2),
              .m = m, .v = v, .grad = grad, .weight = weight, .dtype = dtype, .lr = 1e-3f,
              .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .step = 1);
    BYTES("sum of squares", sum_squares, WEFT_F32, 4 * count, .count = count, .x = grad,
          .sum = sum);
    uint64_t *ends = on_device(sizeof *ends);
    int32_t *found = on_device(sizeof *found);
    const uint64_t end = count;
    check(weft_lane_copy(lane, ends, &end, sizeof end));
    BYTES("find what is not finite", find_not_finite, WEFT_F32, 4 * count, .count = count,
          .x = grad, .num_parts = 1, .ends = ends, .found = found);
    uint64_t *hash = on_device(sizeof *hash);
    BYTES("hash", hash, WEFT_F32, 4 * count, .count = count, .x = grad, .element_bytes = 4,
          .num_parts = 1, .ends = ends, .hashes = hash);
    BYTES("cast from fp32", cast, dtype, (4 + e) * count, .count = count, .from_dtype = WEFT_F32,
          .to_dtype = dtype, .from = master, .to = weight);
    BYTES("cast to fp32", cast, dtype, (4 + e) * count, .count = count, .from_dtype = dtype,
          .to_dtype = WEFT_F32, .from = weight, .to = master);
    BYTES("random normal", random_normal, dtype, e * count, .num_dims = 1, .global_dims = {count},
          .local_dims = {count}, .seed = 1, .std = 1.0f, .dtype = dtype, .x = weight);
    release_all();
}

static weft_dtype dtype_named(const char *name)
{
    static const weft_dtype dtypes[] = {WEFT_BF16, WEFT_F16, WEFT_F32};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, weft_dtype_text(dtypes[i])))
            return dtypes[i];
    fprintf(stderr, "bench_kernels: --dtype is bf16, fp16 or fp32, not %s\n", name);
    exit(2);
}

typedef struct options {
    const char *device; /* NULL: a GPU where there is one */
    int threads;
    size_t tokens; /* 0: by the device */
    const char *dtype;
} options;

static void read_options(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) {
            is_json = true;
        } else if (i + 1 < argc && !strcmp(argv[i], "--device")) {
            o->device = argv[++i];
        } else if (i + 1 < argc && !strcmp(argv[i], "--threads")) {
            o->threads = atoi(argv[++i]);
        } else if (i + 1 < argc && !strcmp(argv[i], "--tokens")) {
            o->tokens = (size_t)strtoul(argv[++i], NULL, 10);
        } else if (i + 1 < argc && !strcmp(argv[i], "--dtype")) {
            o->dtype = argv[++i];
        } else if (i + 1 < argc && !strcmp(argv[i], "--only")) {
            only = argv[++i];
        } else {
            fprintf(stderr,
                    "usage: %s [--device cpu|cuda] [--threads N] [--tokens T] "
                    "[--dtype bf16|fp16|fp32] [--only NAME] [--json]\n",
                    argv[0]);
            exit(2);
        }
    }
    if (o->device && strcmp(o->device, "cpu") != 0 && strcmp(o->device, "cuda") != 0) {
        fprintf(stderr, "bench_kernels: --device is cpu or cuda, not %s\n", o->device);
        exit(2);
    }
}

/* Makes the device and the lane; returns whether it is a GPU. */
static bool open_device(const options *o)
{
    const char *why = NULL;
    bool is_gpu = weft_device_num_cuda(&why) > 0;
    if (o->device && !strcmp(o->device, "cuda") && !is_gpu) {
        printf("skipped: no CUDA device: %s\n", why);
        exit(77);
    }
    is_gpu = is_gpu && !(o->device && !strcmp(o->device, "cpu"));
    if (is_gpu)
        check(weft_device_create_cuda(0, 0, &device));
    else
        check(weft_device_create_cpu(o->threads, 0, &device));
    check(weft_lane_create(device, 0, "bench", &lane));
    return is_gpu;
}

int main(int argc, char **argv)
{
    options o = {0};
    read_options(&o, argc, argv);
    const bool is_gpu = open_device(&o);
    const char *name = is_gpu ? "cuda" : "cpu";
    const size_t tokens = o.tokens ? o.tokens : is_gpu ? 32768 : 8192;
    const weft_dtype dtype = o.dtype ? dtype_named(o.dtype) : is_gpu ? WEFT_BF16 : WEFT_F32;
    if (tokens < 16) {
        fprintf(stderr, "bench_kernels: --tokens must be at least 16\n");
        return 2;
    }
    const size_t square = tokens / 4 < 8192 ? tokens / 4 : 8192;
    measure_copy(is_gpu, tokens << 15);
    measure_matmul(square, dtype);
    if (is_json)
        printf("{\"device\": \"%s\", \"tokens\": %zu, \"copy_gb_per_s\": %.3f, "
               "\"matmul_tflops\": %.3f, \"kernels\": [",
               name, tokens, copy_rate * 1e-9, matmul_rate * 1e-12);
    else
        printf("%s: copy of %zu MB: %.1f GB/s (read and written); %s GEMM of %zu^3: %.4g "
               "TFLOP/s\n",
               name, tokens >> 5, copy_rate * 1e-9, weft_dtype_text(dtype), square,
               matmul_rate * 1e-12);
    bench_activations(tokens, dtype);
    bench_vocabulary(tokens / 4, dtype);
    bench_experts(tokens, dtype);
    bench_gemm(tokens / 4, dtype);
    bench_grouped(tokens / 4, dtype);
    bench_attention("attention, GPT-2", "attention backward, GPT-2",
                    tokens / 16 < 1024 ? tokens / 16 : 1024, 16, HEADS, HEADS, dtype);
    bench_attention("attention, Llama", "attention backward, Llama",
                    tokens / 4 < 4096 ? tokens / 4 : 4096, 4, LLAMA_HEADS, GROUPS, dtype);
    bench_parameters(tokens << 12, dtype);
    if (is_json)
        printf("\n]}\n");
    weft_lane_destroy(lane);
    weft_device_destroy(device);
    return 0;
}
