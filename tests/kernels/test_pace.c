/* A device with a pace: what its kernels give has the bits of one without, FLOPs take at least
 * their time, all else takes none of it, and what is marked as the experts' is passed over. How
 * near the pace it stays is measured by bench/pace.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/pace.h"
#include "kernels/flops.h"

#define OK(call) assert_int_equal((call), WEFT_OK)

enum { ROWS = 24, IN = 16, OUT = 20, SEQ = 12, HEADS = 2, DIM = 8, QKV = 3 * HEADS * DIM };

typedef struct bench {
    weft_device *device;
    weft_lane *lane;
} bench;

static int open_bench(void **state)
{
    static bench b;
    OK(weft_device_create_cpu(1, 0, &b.device));
    OK(weft_lane_create(b.device, 0, "compute", &b.lane));
    *state = &b;
    return 0;
}

static int close_bench(void **state)
{
    bench *b = *state;
    weft_lane_destroy(b->lane);
    weft_device_destroy(b->device);
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const int64_t row_offsets[] = {0, 7, 7, ROWS - 3};

/* What the four kernels with FLOPs read and write, and one without. */
typedef struct work {
    float x[ROWS * IN], w[3 * OUT * IN], y[ROWS * OUT], grouped[ROWS * OUT];
    float qkv[SEQ * QKV], out[SEQ * HEADS * DIM], lse[HEADS * SEQ];
    float dqkv[SEQ * QKV], delta[HEADS * SEQ], sum[ROWS * IN];
} work;

static void fill(work *w)
{
    memset(w, 0, sizeof *w);
    for (int i = 0; i < ROWS * IN; i++)
        w->x[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 3 * OUT * IN; i++)
        w->w[i] = (float)(i % 5) * 0.25f;
    for (int i = 0; i < SEQ * QKV; i++)
        w->qkv[i] = (float)(i % 11) * 0.125f - 0.5f;
}

static weft_gemm_args gemm_of(work *w)
{
    return WEFT_ARGS(weft_gemm_args, .m = ROWS, .n = OUT, .k = IN, .transpose_b = true, .a = w->x,
                     .b = w->w, .c = w->y);
}

static weft_grouped_gemm_args groups_of(work *w)
{
    return WEFT_ARGS(weft_grouped_gemm_args, .num_groups = 3, .in = IN, .out = OUT,
                     .row_offsets = row_offsets, .x = w->x, .w = w->w, .y = w->grouped);
}

static weft_attention_shape shape_of(bool causal)
{
    return (weft_attention_shape){.seq_q = SEQ,
                                  .seq_k = SEQ,
                                  .batch = 1,
                                  .heads = HEADS,
                                  .groups = HEADS,
                                  .head_dim = DIM,
                                  .q_token_stride = QKV,
                                  .q_group_stride = 3 * DIM,
                                  .k_token_stride = QKV,
                                  .k_group_stride = 3 * DIM,
                                  .causal = causal};
}

static weft_attention_forward_args forward_of(work *w)
{
    return WEFT_ARGS(weft_attention_forward_args, .shape = shape_of(true), .q = w->qkv,
                     .k = w->qkv + DIM, .v = w->qkv + 2 * DIM, .out = w->out, .lse = w->lse);
}

static weft_attention_backward_args backward_of(work *w)
{
    return WEFT_ARGS(weft_attention_backward_args, .shape = shape_of(true), .q = w->qkv,
                     .k = w->qkv + DIM, .v = w->qkv + 2 * DIM, .out = w->out, .dout = w->out,
                     .lse = w->lse, .delta = w->delta, .dq = w->dqkv, .dk = w->dqkv + DIM,
                     .dv = w->dqkv + 2 * DIM);
}

static void add(const bench *b, work *w)
{
    OK(weft_add(b->lane,
                &WEFT_ARGS(weft_add_args, .count = ROWS * IN, .a = w->x, .b = w->x, .y = w->sum)));
}

static double run_all(const bench *b, work *w)
{
    const weft_gemm_args gemm = gemm_of(w);
    const weft_grouped_gemm_args groups = groups_of(w);
    const weft_attention_forward_args forward = forward_of(w);
    const weft_attention_backward_args backward = backward_of(w);
    fill(w);
    OK(weft_gemm(b->lane, &gemm));
    OK(weft_grouped_gemm(b->lane, &groups));
    OK(weft_attention_forward(b->lane, &forward));
    OK(weft_attention_backward(b->lane, &backward));
    add(b, w);
    OK(weft_lane_sync(b->lane));
    return weft_gemm_args_flops(&gemm) + weft_grouped_gemm_args_flops(&groups) +
           weft_attention_forward_args_flops(&forward) +
           weft_attention_backward_args_flops(&backward);
}

static void kernels_know_their_flops(void **state)
{
    (void)state;
    static work w;
    const weft_gemm_args gemm = gemm_of(&w);
    const weft_grouped_gemm_args groups = groups_of(&w);
    weft_attention_forward_args forward = forward_of(&w);
    weft_attention_backward_args backward = backward_of(&w);
    const weft_add_args sum = {.count = 5};
    const weft_add_args *no_product = &sum;
    const double pair = 2.0 * HEADS * DIM; /* of one product */
    assert_true(weft_gemm_args_flops(&gemm) == 2.0 * ROWS * IN * OUT);
    assert_true(weft_grouped_gemm_args_flops(&groups) == 2.0 * (ROWS - 3) * IN * OUT);
    assert_true(weft_attention_forward_args_flops(&forward) == 2 * pair * SEQ * SEQ / 2);
    assert_true(weft_attention_backward_args_flops(&backward) == 5 * pair * SEQ * SEQ / 2);
    forward.shape.causal = false;
    assert_true(weft_attention_forward_args_flops(&forward) == 2 * pair * SEQ * SEQ);
    forward.shape.causal = true; /* queries behind all keys see them all, as a ring's do */
    forward.shape.first_query = SEQ;
    assert_true(weft_attention_forward_args_flops(&forward) == 2 * pair * SEQ * SEQ);
    forward.shape.first_query = SEQ - 4; /* 4 of them see part of the last 4 keys */
    assert_true(weft_attention_forward_args_flops(&forward) ==
                2 * pair * (4 * (SEQ - 4) + 8 + (SEQ - 4) * SEQ));
    assert_true(WEFT_KERNEL_FLOPS(no_product) == 0);
}

static void all_work_takes_its_time_and_keeps_its_bits(void **state)
{
    const bench *b = *state;
    static work plain, paced;
    double flops = run_all(b, &plain), seconds = 0.06;
    weft_device_set_pace(b->device, (weft_pace){flops / seconds, WEFT_PACE_ALL});
    double start = now();
    run_all(b, &paced);
    assert_true(now() - start >= seconds);
    assert_memory_equal(&plain, &paced, sizeof plain);
}

/* Short tasks, each of which oversleeps: the next ones are shorter by that and no more. */
static void a_lane_makes_up_what_it_owes_alone(void **state)
{
    const bench *b = *state;
    static work w;
    enum { TASKS = 200 };
    const weft_gemm_args gemm = gemm_of(&w);
    double each = 2e-4;
    fill(&w);
    weft_device_set_pace(b->device, (weft_pace){weft_gemm_args_flops(&gemm) / each, WEFT_PACE_ALL});
    double start = now();
    for (int i = 0; i < TASKS; i++)
        OK(weft_gemm(b->lane, &gemm));
    OK(weft_lane_sync(b->lane));
    assert_true(now() - start >= TASKS * each);
}

/* One FLOP a second: what waited would never end. */
static void kernels_without_flops_take_none_of_it(void **state)
{
    const bench *b = *state;
    static work w;
    fill(&w);
    weft_device_set_pace(b->device, (weft_pace){1, WEFT_PACE_ALL});
    add(b, &w);
    OK(weft_lane_sync(b->lane));
    assert_true(w.sum[0] == 2 * w.x[0]);
}

static void experts_are_passed_over(void **state)
{
    const bench *b = *state;
    static work plain, paced;
    run_all(b, &plain);
    weft_device_set_pace(b->device, (weft_pace){1, WEFT_PACE_EXPERTS});
    run_all(b, &paced); /* no experts' */
    assert_memory_equal(&plain, &paced, sizeof plain);

    const weft_grouped_gemm_args groups = groups_of(&paced);
    double seconds = 0.03;
    weft_device_set_pace(
        b->device, (weft_pace){weft_grouped_gemm_args_flops(&groups) / seconds, WEFT_PACE_EXPERTS});
    fill(&paced);
    double start = now();
    weft_lane_mark_experts(b->lane, true);
    OK(weft_grouped_gemm(b->lane, &groups));
    add(b, &paced);
    weft_lane_mark_experts(b->lane, false);
    OK(weft_lane_sync(b->lane));
    assert_true(now() - start >= seconds);
    assert_true(paced.grouped[0] == 0 && paced.sum[0] == 0);
    weft_device_set_pace(b->device, (weft_pace){0});
    weft_lane_mark_experts(b->lane, true); /* without a pace they compute */
    OK(weft_grouped_gemm(b->lane, &groups));
    weft_lane_mark_experts(b->lane, false);
    OK(weft_lane_sync(b->lane));
    assert_memory_equal(paced.grouped, plain.grouped, sizeof plain.grouped);
}

/* A kernel that ends a second after its time. */
static weft_status end_late(const void *unused)
{
    (void)unused;
    weft_pace_end(weft_pace_start_ns() - 1000000000, 1);
    return WEFT_OK;
}

static void what_cannot_be_made_up_is_counted(void **state)
{
    const bench *b = *state;
    weft_device_set_pace(b->device, (weft_pace){1e9, WEFT_PACE_ALL});
    OK(weft_lane_submit(b->lane, "late", end_late, NULL, 0));
    OK(weft_lane_sync(b->lane));
    assert_true(weft_device_take_late(b->device) > 0.9);
    assert_true(weft_device_take_late(b->device) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)
        TEST(kernels_know_their_flops),
        TEST(all_work_takes_its_time_and_keeps_its_bits),
        TEST(a_lane_makes_up_what_it_owes_alone),
        TEST(kernels_without_flops_take_none_of_it),
        TEST(experts_are_passed_over),
        TEST(what_cannot_be_made_up_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
