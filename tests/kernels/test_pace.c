/* A device with a pace: what its kernels give has the bits of one without, FLOPs take at least
 * their time, all else takes none of it, and what is marked as the experts' is passed over. How
 * near the pace it stays is measured by bench/pace.c. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/device/device.h"
#include "kernels/flops.h"
#include "tests/core/check.h"

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

CASE(kernels_know_their_flops)
{
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

CASE(all_work_takes_its_time_and_keeps_its_bits)
{
    const bench *b = *state;
    static work plain, paced;
    double flops = run_all(b, &plain), seconds = 0.06;
    weft_device_set_pace(b->device, (weft_pace){.flops = flops / seconds, .work = WEFT_PACE_ALL});
    double start = now();
    run_all(b, &paced);
    assert_true(now() - start >= seconds);
    assert_memory_equal(&plain, &paced, sizeof plain);
}

/* Short tasks, each of which oversleeps: the next ones are shorter by that and no more. */
CASE(a_lane_makes_up_what_it_owes_alone)
{
    const bench *b = *state;
    static work w;
    enum { TASKS = 200 };
    const weft_gemm_args gemm = gemm_of(&w);
    double each = 2e-4;
    fill(&w);
    weft_device_set_pace(
        b->device, (weft_pace){.flops = weft_gemm_args_flops(&gemm) / each, .work = WEFT_PACE_ALL});
    double start = now();
    for (int i = 0; i < TASKS; i++)
        OK(weft_gemm(b->lane, &gemm));
    OK(weft_lane_sync(b->lane));
    assert_true(now() - start >= TASKS * each);
}

/* One FLOP a second: what waited would never end. */
CASE(kernels_without_flops_take_none_of_it)
{
    const bench *b = *state;
    static work w;
    fill(&w);
    weft_device_set_pace(b->device, (weft_pace){.flops = 1, .work = WEFT_PACE_ALL});
    add(b, &w);
    OK(weft_lane_sync(b->lane));
    assert_true(w.sum[0] == 2 * w.x[0]);
}

CASE(experts_are_passed_over)
{
    const bench *b = *state;
    static work plain, paced;
    run_all(b, &plain);
    weft_device_set_pace(b->device, (weft_pace){.flops = 1, .work = WEFT_PACE_EXPERTS});
    run_all(b, &paced); /* no experts' */
    assert_memory_equal(&plain, &paced, sizeof plain);

    const weft_grouped_gemm_args groups = groups_of(&paced);
    double seconds = 0.03;
    weft_device_set_pace(b->device,
                         (weft_pace){.flops = weft_grouped_gemm_args_flops(&groups) / seconds,
                                     .work = WEFT_PACE_EXPERTS});
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
    weft_pace_end(weft_now_ns() - 1000000000, 1);
    return WEFT_OK;
}

CASE(what_cannot_be_made_up_is_counted)
{
    const bench *b = *state;
    weft_device_set_pace(b->device, (weft_pace){.flops = 1e9, .work = WEFT_PACE_ALL});
    OK(weft_lane_submit(b->lane, "late", end_late, NULL, 0));
    OK(weft_lane_sync(b->lane));
    assert_true(weft_device_take_late(b->device) > 0.9);
    assert_true(weft_device_take_late(b->device) == 0);
}

/* --- the link to host memory --------------------------------------------------------------- */

enum { LINK_BYTES = 1 << 20, LINK_COPIES = 8 };

typedef struct link_bench {
    char *device[2], *pinned[2], *own; /* own: of no device */
    weft_lane *other;
} link_bench;

static void open_link(const bench *b, link_bench *l)
{
    for (int i = 0; i < 2; i++) {
        void *memory;
        OK(weft_device_alloc(b->device, WEFT_SPACE_DEVICE, LINK_BYTES, "device", &memory));
        l->device[i] = memory;
        OK(weft_device_alloc(b->device, WEFT_SPACE_PINNED, LINK_BYTES, "pinned", &memory));
        l->pinned[i] = memory;
        memset(l->device[i], 1 + i, LINK_BYTES);
        memset(l->pinned[i], 3 + i, LINK_BYTES);
    }
    l->own = calloc(1, LINK_BYTES);
    assert_non_null(l->own);
    OK(weft_lane_create(b->device, 0, "other", &l->other));
}

static void close_link(const bench *b, link_bench *l)
{
    weft_device_set_pace(b->device, (weft_pace){0});
    weft_lane_destroy(l->other);
    for (int i = 0; i < 2; i++) {
        weft_device_free(b->device, WEFT_SPACE_DEVICE, l->device[i], LINK_BYTES);
        weft_device_free(b->device, WEFT_SPACE_PINNED, l->pinned[i], LINK_BYTES);
    }
    free(l->own);
}

/* Seconds of LINK_COPIES copies of all bytes on one lane and, where given, as many on another. */
static double copy_all(const bench *b, const link_bench *l, double rate, char *to, const char *from,
                       char *other_to, const char *other_from)
{
    const size_t part = LINK_BYTES / LINK_COPIES;
    weft_device_set_pace(b->device, (weft_pace){.link = rate}); /* and it owes nothing */
    double start = now();
    for (size_t i = 0; i < LINK_COPIES; i++) {
        OK(weft_lane_copy(b->lane, to + i * part, from + i * part, part));
        if (other_to)
            OK(weft_lane_copy(l->other, other_to + i * part, other_from + i * part, part));
    }
    OK(weft_lane_sync(b->lane));
    OK(weft_lane_sync(l->other));
    return now() - start;
}

CASE(a_link_takes_its_time_each_way)
{
    const bench *b = *state;
    const double seconds = 0.05, rate = LINK_BYTES / seconds;
    link_bench l;
    open_link(b, &l);
    assert_true(copy_all(b, &l, rate, l.device[0], l.pinned[0], NULL, NULL) >= seconds);
    assert_memory_equal(l.device[0], l.pinned[0], LINK_BYTES);
    assert_true(copy_all(b, &l, rate, l.pinned[1], l.device[1], NULL, NULL) >= seconds);
    assert_memory_equal(l.pinned[1], l.device[1], LINK_BYTES);
    assert_true(copy_all(b, &l, rate, l.device[0], l.pinned[0], l.pinned[1], l.device[1]) >=
                seconds);
    /* Two lanes, one way: they share it. */
    assert_true(copy_all(b, &l, rate, l.device[0], l.pinned[0], l.device[1], l.pinned[1]) >=
                2 * seconds);
    close_link(b, &l);
}

/* By the times that copies are given, which no other process can disturb. */
CASE(directions_do_not_slow_each_other)
{
    const bench *b = *state;
    weft_device *d = b->device;
    const int64_t start = weft_now_ns();
    weft_device_set_pace(d, (weft_pace){.link = 1e9});
    assert_int_equal(weft_pace_link_start(d, WEFT_SPACE_PINNED, start, 1000), start + 1000);
    assert_int_equal(weft_pace_link_start(d, WEFT_SPACE_DEVICE, start, 500), start + 500);
    assert_int_equal(weft_pace_link_start(d, WEFT_SPACE_PINNED, start, 100), start + 1100);
    assert_int_equal(weft_pace_link_start(d, WEFT_SPACE_DEVICE, start + 800, 9), start + 809);
    weft_device_set_pace(d, (weft_pace){0});
}

/* At a byte a second what waited would never end. */
CASE(what_does_not_cross_the_link_has_no_pace)
{
    const bench *b = *state;
    link_bench l;
    open_link(b, &l);
    copy_all(b, &l, 1, l.device[0], l.device[1], l.pinned[0], l.pinned[1]);
    copy_all(b, &l, 1, l.own, l.device[0], NULL, NULL);
    copy_all(b, &l, 1, l.device[1], l.own, NULL, NULL);
    OK(weft_lane_zero(b->lane, l.pinned[0], LINK_BYTES));
    OK(weft_lane_sync(b->lane));
    assert_true(l.device[0][LINK_BYTES - 1] == 2 && l.pinned[0][LINK_BYTES - 1] == 0 &&
                l.own[LINK_BYTES - 1] == 2);
    weft_device_set_pace(b->device, (weft_pace){.flops = 1, .work = WEFT_PACE_ALL});
    OK(weft_lane_copy(b->lane, l.device[0], l.pinned[1], LINK_BYTES));
    OK(weft_lane_sync(b->lane));
    assert_memory_equal(l.device[0], l.pinned[1], LINK_BYTES);
    close_link(b, &l);
}

/* Short copies, each of which oversleeps, on a link that memory outruns. */
CASE(a_link_makes_up_what_it_owes_alone)
{
    const bench *b = *state;
    enum { TASKS = 200, BYTES = 256 };
    const double each = 2e-4;
    link_bench l;
    open_link(b, &l);
    weft_device_set_pace(b->device, (weft_pace){.link = BYTES / each});
    double start = now();
    for (int i = 0; i < TASKS; i++)
        OK(weft_lane_copy(b->lane, l.device[0], l.pinned[0], BYTES));
    OK(weft_lane_sync(b->lane));
    assert_true(now() - start >= TASKS * each);
    assert_true(weft_device_take_late(b->device) == 0); /* of computation */
    close_link(b, &l);
}

/* A copy that ends a second after its time. */
CASE(a_link_that_memory_does_not_reach_is_counted)
{
    const bench *b = *state;
    weft_device_set_pace(b->device, (weft_pace){.link = 1e9});
    weft_pace_link_end(
        b->device, WEFT_SPACE_PINNED,
        weft_pace_link_start(b->device, WEFT_SPACE_PINNED, weft_now_ns() - 1000000000, 1000));
    assert_true(weft_device_take_link_late(b->device) > 0.9);
    assert_true(weft_device_take_link_late(b->device) == 0);
    weft_device_set_pace(b->device, (weft_pace){0});
}

/* Reads and writes take turns, whoever asks. */
CASE(a_file_takes_its_time)
{
    const bench *b = *state;
    weft_device *d = b->device;
    const int64_t start = weft_now_ns();
    assert_int_equal(weft_pace_file_start(d, start, 1000), 0); /* without a pace */
    weft_device_set_pace(d, (weft_pace){.file = 1e9});
    assert_int_equal(weft_pace_file_start(d, start, 1000), start + 1000);
    assert_int_equal(weft_pace_file_start(d, start + 500, 500), start + 1500);
    assert_int_equal(weft_pace_file_start(d, start + 2000, 9), start + 2009);
    weft_device_set_pace(d, (weft_pace){.file = 1e9});
    const int64_t end = weft_pace_file_start(d, weft_now_ns(), 20000000);
    weft_pace_file_end(d, end);
    assert_true(weft_now_ns() >= end);
    weft_device_set_pace(d, (weft_pace){.file = 1e9});
    weft_pace_file_end(d, weft_pace_file_start(d, weft_now_ns() - 1000000000, 1000));
    assert_true(weft_device_take_file_late(d) > 0.9);
    assert_true(weft_device_take_file_late(d) == 0 && weft_device_take_link_late(d) == 0);
    weft_device_set_pace(d, (weft_pace){0});
}

AROUND(.before = open_bench, .after = close_bench)
