/* Dispatch plans, and the permutations that follow them, against naive references. */
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/reorder.h"

typedef struct plan_case {
    size_t num_tokens, num_experts, topk, first_expert, num_local, capacity, num_partitions;
    weft_drop_policy policy;
    const int32_t *top_index;
    const float *top_prob;
    int64_t *counts, *partition_counts, *dropped;
    int32_t *row_of, *token_of;
} plan_case;

static plan_case make_plan(plan_case p)
{
    const size_t num_choices = p.num_tokens * p.topk;
    p.counts = probe_alloc(p.num_experts * sizeof *p.counts);
    if (p.num_partitions > 0)
        p.partition_counts =
            probe_alloc(p.num_partitions * p.num_experts * sizeof *p.partition_counts);
    p.dropped = probe_alloc(sizeof *p.dropped);
    weft_wrong_choice *wrong = probe_alloc(sizeof *wrong);
    p.row_of = probe_alloc(num_choices * sizeof *p.row_of);
    p.token_of = probe_alloc(num_choices * sizeof *p.token_of);
    int32_t *scratch = probe_alloc(num_choices * sizeof *scratch);
    PROBE_RUN(dispatch_plan, .num_tokens = p.num_tokens, .num_experts = p.num_experts,
              .topk = p.topk, .first_expert = p.first_expert, .num_local = p.num_local,
              .capacity = p.capacity, .policy = p.policy, .num_partitions = p.num_partitions,
              .partition_counts = p.partition_counts, .top_index = p.top_index,
              .top_prob = p.top_prob, .counts = p.counts, .row_of = p.row_of,
              .token_of = p.token_of, .dropped = p.dropped, .wrong = wrong, .scratch = scratch);
    assert_true(wrong->choice == -1 && wrong->expert == -1);
    return p;
}

static size_t num_rows(const plan_case *p)
{
    size_t rows = 0;
    for (size_t e = p->first_expert; e < p->first_expert + p->num_local; e++)
        rows += (size_t)p->counts[e];
    return rows;
}

/* PPMoE §3.3.3: eight tokens in the order 2,3,1,2,0,3,2,0; rank 0 holds experts 0 and 1. */
CASE(the_example_of_ppmoe)
{
    enum { TOKENS = 8, COLS = 3 };
    static const int32_t order[TOKENS] = {2, 3, 1, 2, 0, 3, 2, 0};
    static const int32_t tokens_of_rank[2][5] = {{4, 7, 2}, {0, 3, 6, 1, 5}};
    static const int64_t counts[4] = {2, 1, 3, 2};
    int32_t *top_index = probe_alloc(sizeof order);
    memcpy(top_index, order, sizeof order);
    float *x = probe_random(TOKENS * COLS, WEFT_F32, 1.0, 1);
    float *prob = probe_constant(TOKENS, 1.0f), *sum = probe_constant(TOKENS * COLS, 0.0f);
    for (size_t rank = 0; rank < 2; rank++) {
        plan_case p = make_plan((plan_case){.num_tokens = TOKENS,
                                            .num_experts = 4,
                                            .topk = 1,
                                            .first_expert = 2 * rank,
                                            .num_local = 2,
                                            .top_index = top_index});
        const size_t rows = num_rows(&p);
        assert_int_equal(rows, rank ? 5 : 3);
        assert_int_equal(*p.dropped, 0);
        assert_memory_equal(p.counts, counts, sizeof counts);
        assert_memory_equal(p.token_of, tokens_of_rank[rank], rows * sizeof(int32_t));
        float *moved = probe_alloc(rows * COLS * sizeof *moved);
        PROBE_RUN(permute, .num_rows = rows, .num_tokens = TOKENS, .cols = COLS, .x = x,
                  .token_of = p.token_of, .rows = moved);
        for (size_t i = 0; i < rows; i++)
            assert_memory_equal(moved + i * COLS, x + tokens_of_rank[rank][i] * COLS,
                                COLS * sizeof *x);
        float *y = probe_alloc(TOKENS * COLS * sizeof *y);
        PROBE_RUN(combine, .num_tokens = TOKENS, .num_rows = rows, .topk = 1, .cols = COLS,
                  .rows = moved, .row_of = p.row_of, .top_prob = prob, .y = y);
        PROBE_RUN(add, .count = TOKENS * COLS, .a = sum, .b = y, .y = sum);
    }
    /* The two ranks together give every token back: the all-reduce that ends PPMoE's layer. */
    assert_memory_equal(sum, x, TOKENS * COLS * sizeof *x);
}

static bool is_kept(const plan_case *p, size_t choice)
{
    if (p->capacity == 0)
        return true;
    size_t before = 0;
    for (size_t i = 0; i < p->num_tokens * p->topk; i++) {
        if (p->top_index[i] != p->top_index[choice])
            continue;
        if (p->policy == WEFT_DROP_POSITION)
            before += i < choice;
        else
            before += p->top_prob[i] > p->top_prob[choice] ||
                      (p->top_prob[i] == p->top_prob[choice] && i < choice);
    }
    return before < p->capacity;
}

/* `all_to`: an expert that every token chooses first, or -1. */
static void check_plan(plan_case p, int all_to)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t num_choices = p.num_tokens * p.topk;
    int32_t *top_index = probe_alloc(num_choices * sizeof *top_index);
    float *top_prob = probe_random(num_choices, WEFT_F32, 1.0, 1);
    uint64_t random = 6;
    for (size_t t = 0; t < p.num_tokens; t++) {
        for (size_t i = 0; i < p.topk; i++) { /* k different experts, the last one never */
            int32_t *choice = &top_index[t * p.topk + i];
            bool again = true;
            while (again) {
                *choice = (int32_t)probe_pick(&random, p.num_experts > p.topk ? p.num_experts - 1
                                                                              : p.num_experts);
                if (i == 0 && all_to >= 0)
                    *choice = all_to;
                again = false;
                for (size_t j = 0; j < i; j++)
                    again = again || top_index[t * p.topk + j] == *choice;
            }
            float *prob = &top_prob[t * p.topk + i];
            *prob = rintf(4.0f * fabsf(*prob)) / 16.0f; /* many ties */
        }
    }
    p.top_index = top_index;
    p.top_prob = top_prob;
    p = make_plan(p);
    int64_t *counts = calloc(p.num_experts, sizeof *counts), dropped = 0;
    size_t row = 0;
    for (size_t i = 0; i < num_choices; i++) {
        counts[top_index[i]] += is_kept(&p, i);
        dropped += !is_kept(&p, i);
    }
    assert_memory_equal(p.counts, counts, p.num_experts * sizeof *counts);
    free(counts);
    assert_true(*p.dropped == dropped);
    const size_t partitions = p.num_partitions > 1 ? p.num_partitions : 1;
    for (size_t part = 0; part < partitions; part++) {
        const size_t begin = part * p.num_tokens / partitions * p.topk;
        const size_t end = (part + 1) * p.num_tokens / partitions * p.topk;
        for (size_t e = 0; e < p.num_experts; e++) {
            const bool is_local = e >= p.first_expert && e < p.first_expert + p.num_local;
            const size_t first_row = row;
            for (size_t i = begin; i < end; i++) {
                if (top_index[i] != (int32_t)e)
                    continue;
                if (!is_local || !is_kept(&p, i)) {
                    assert_int_equal(p.row_of[i], -1);
                    continue;
                }
                assert_int_equal(p.row_of[i], row);
                assert_int_equal(p.token_of[row], i / p.topk);
                row++;
            }
            if (is_local && p.num_partitions > 1)
                assert_int_equal(p.partition_counts[part * p.num_experts + e], row - first_row);
        }
    }
    assert_int_equal(row, num_rows(&p));
}

/* Of the eight forms that three bits make, four in which any two bits meet in every way: an
 * emulated device is slow. */
static bool is_left_out(int form)
{
    return probe_on_cuda() && ((form ^ form >> 1 ^ form >> 2) & 1);
}

CASE(plans_equal_the_naive_sort)
{
    static const size_t shapes[][3] = {{1, 1, 1}, {9, 4, 1}, {50, 5, 3}, {200, 16, 2}, {64, 6, 6}};
    static const size_t capacities[] = {0, 1, 7, 25, 1000};
    for (size_t s = 0; s < 5; s++) {
        for (size_t c = 0; c < 5; c++) {
            for (int form = 0; form < 8; form++) {
                if (is_left_out(form))
                    continue;
                plan_case p = {.num_tokens = shapes[s][0],
                               .num_experts = shapes[s][1],
                               .topk = shapes[s][2],
                               .capacity = capacities[c],
                               .num_local = shapes[s][1],
                               .policy = form & 1 ? WEFT_DROP_PROBS : WEFT_DROP_POSITION};
                if (form & 2) {
                    p.first_expert = p.num_experts / 2;
                    p.num_local = p.num_experts / 3;
                }
                check_plan(p, form & 4 ? (int)(p.num_experts / 2) : -1);
                p.num_partitions = 1 + (s + c) % 4; /* also more than there are tokens */
                check_plan(p, form & 4 ? (int)(p.num_experts / 2) : -1);
            }
        }
    }
    check_plan((plan_case){.num_experts = 4, .topk = 2, .num_local = 4}, -1);
}

/* More than one block of threads sorts these. */
CASE(larger_plans_equal_the_naive_sort)
{
    static const size_t shapes[][4] = {{3000, 70, 2, 60}, {200, 1024, 16, 5}};
    for (size_t s = 0; s < 2; s++) {
        for (int form = 0; form < 6; form++) {
            plan_case p = {.num_tokens = shapes[s][0],
                           .num_experts = shapes[s][1],
                           .topk = shapes[s][2],
                           .capacity = form < 2 ? 0 : shapes[s][3],
                           .policy = form < 4 ? WEFT_DROP_POSITION : WEFT_DROP_PROBS,
                           .first_expert = 3,
                           .num_local = shapes[s][1] / 2,
                           .num_partitions = form % 2 ? 3 : 1};
            check_plan(p, form % 2 ? 5 : -1);
        }
    }
}

/* A plan of 1500 tokens where some choices are wrong: the lane fails, or the check says so. */
static void check_wrong(weft_dispatch_plan_args args, int32_t first, const char *text)
{
    enum { TOKENS = 1500, EXPERTS = 4, TOPK = 2, WRONG = 2801 };
    probe_start(NULL);
    weft_lane *lane = NULL;
    assert_int_equal(weft_lane_create(weft_lane_device(probe_lane(0)), 0, "wrong", &lane), WEFT_OK);
    int32_t *top_index = probe_alloc(TOKENS * TOPK * sizeof *top_index);
    for (int i = 0; i < TOKENS * TOPK; i++)
        top_index[i] = i % EXPERTS;
    top_index[WRONG] = first;
    top_index[WRONG + 2] = INT32_MAX;
    args.num_tokens = TOKENS;
    args.num_experts = args.num_local = EXPERTS;
    args.topk = TOPK;
    args.top_index = top_index;
    args.top_prob = probe_random(TOKENS * TOPK, WEFT_F32, 1.0, 1);
    args.counts = probe_alloc(EXPERTS * sizeof *args.counts);
    args.partition_counts = probe_alloc(3 * EXPERTS * sizeof *args.partition_counts);
    args.row_of = probe_alloc(TOKENS * TOPK * sizeof *args.row_of);
    args.token_of = probe_alloc(TOKENS * TOPK * sizeof *args.token_of);
    args.dropped = probe_alloc(sizeof *args.dropped);
    args.wrong = probe_alloc(sizeof *args.wrong);
    args.scratch = probe_alloc(TOKENS * TOPK * sizeof *args.scratch);
    weft_status status = weft_dispatch_plan(lane, &args);
    if (status == WEFT_OK)
        status = weft_lane_sync(lane);
    if (probe_on_cuda()) { /* whose rows are those without the wrong choices */
        assert_int_equal(status, WEFT_OK);
        int64_t num_rows = 0;
        for (int e = 0; e < EXPERTS; e++)
            num_rows += args.counts[e];
        assert_true(num_rows <= TOKENS * TOPK - 2);
        for (int i = 0; i < TOKENS * TOPK; i++)
            assert_true(args.row_of[i] >= -1 && args.row_of[i] < num_rows);
        assert_int_equal(args.row_of[WRONG], -1);
        assert_int_equal(args.row_of[WRONG + 2], -1);
        for (int64_t row = 0; row < num_rows; row++)
            assert_in_range(args.token_of[row], 0, TOKENS - 1);
        status = weft_dispatch_plan_check(&args);
    }
    assert_int_equal(status, WEFT_INTERNAL);
    assert_non_null(strstr(weft_error_get()->text, text));
    weft_error_clear();
    assert_int_equal(weft_dispatch_plan_check(&args), WEFT_INTERNAL);
    weft_error_clear();
    weft_lane_destroy(lane);
}

CASE(a_wrong_expert_is_refused)
{
    static const char *const text[] = {"choice 1 of token 1400 is expert 4 of 4",
                                       "choice 1 of token 1400 is expert -1 of 4"};
    for (int form = 0; form < 4; form++)
        check_wrong(WEFT_ARGS(weft_dispatch_plan_args, .capacity = form < 2 ? 0 : 600,
                              .policy = form < 3 ? WEFT_DROP_POSITION : WEFT_DROP_PROBS,
                              .num_partitions = form % 2 ? 3 : 1),
                    form % 2 ? -1 : 4, text[form % 2]);
}

/* Against the plan with its rows read one by one: some go to other places, the others nowhere. */
CASE(rows_go_to_other_places)
{
    enum { TOKENS = 900, TOPK = 3, CHOICES = TOKENS * TOPK, EXPERTS = 7 };
    for (int leaves = 0; leaves < 2; leaves++) {
        probe_start(NULL);
        int32_t *top_index = probe_alloc(CHOICES * sizeof *top_index);
        for (size_t i = 0; i < CHOICES; i++)
            top_index[i] = (int32_t)((i / TOPK * i + i % TOPK) % EXPERTS);
        plan_case p = make_plan((plan_case){.num_tokens = TOKENS,
                                            .num_experts = EXPERTS,
                                            .topk = TOPK,
                                            .first_expert = 1,
                                            .num_local = EXPERTS - 2,
                                            .top_index = top_index});
        const size_t rows = num_rows(&p);
        int32_t *to = probe_alloc(CHOICES * sizeof *to);
        int32_t *scratch = probe_alloc(CHOICES * sizeof *scratch);
        int32_t *row_of = malloc(CHOICES * sizeof *row_of);
        int32_t *token_of = malloc(CHOICES * sizeof *token_of);
        assert_true(row_of && token_of && rows > 100 && rows < CHOICES);
        memcpy(row_of, p.row_of, CHOICES * sizeof *row_of);
        memcpy(token_of, p.token_of, CHOICES * sizeof *token_of);
        int32_t next = 0; /* from behind, every third one goes nowhere */
        for (size_t i = rows; i-- > 0;)
            to[i] = leaves && i % 3 == 0 ? -1 : next++;
        weft_lane *lane = probe_lane(0);
        assert_int_equal(weft_reorder(lane, &(weft_reorder_args){CHOICES, rows, to, p.row_of,
                                                                 p.token_of, scratch}),
                         WEFT_OK);
        assert_int_equal(weft_lane_sync(lane), WEFT_OK);
        for (size_t i = 0; i < CHOICES; i++)
            assert_int_equal(p.row_of[i], row_of[i] < 0 ? -1 : to[row_of[i]]);
        for (size_t i = 0; i < rows; i++)
            if (to[i] >= 0)
                assert_int_equal(p.token_of[to[i]], token_of[i]);
        free(row_of);
        free(token_of);
    }
}

typedef struct move_case {
    size_t num_tokens, topk, cols, rows;
    const int32_t *row_of, *token_of;
    double *x, *drows;         /* permute */
    double *moved, *prob, *dy; /* combine */
} move_case;

static double permute_loss(const void *context)
{
    const move_case *m = context;
    double loss = 0.0;
    for (size_t i = 0; i < m->rows * m->cols; i++)
        loss += m->drows[i] * m->x[(size_t)m->token_of[i / m->cols] * m->cols + i % m->cols];
    return loss;
}

static double combined(const move_case *m, size_t t, size_t c)
{
    double y = 0.0;
    for (size_t k = t * m->topk; k < (t + 1) * m->topk; k++)
        if (m->row_of[k] >= 0)
            y += m->prob[k] * m->moved[(size_t)m->row_of[k] * m->cols + c];
    return y;
}

static double combine_loss(const void *context)
{
    const move_case *m = context;
    double loss = 0.0;
    for (size_t t = 0; t < m->num_tokens; t++)
        for (size_t c = 0; c < m->cols; c++)
            loss += m->dy[t * m->cols + c] * combined(m, t, c);
    return loss;
}

/* form: 0 all tokens to one expert, 1 spread, 2 half of the experts elsewhere, 3 with drops. */
static void check_moves(size_t num_tokens, size_t num_experts, size_t topk, size_t cols,
                        weft_dtype dtype, int form, bool accumulate, bool in_place)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t num_choices = num_tokens * topk, bytes = weft_dtype_bytes(dtype);
    int32_t *top_index = probe_alloc(num_choices * sizeof *top_index);
    for (size_t i = 0; i < num_choices; i++) {
        size_t t = i / topk, k = i % topk;
        top_index[i] = (int32_t)(form == 0 ? k : (t * t + 2 * k * k + k) % num_experts);
        if (form > 0 && topk > 1)
            top_index[i] = (int32_t)((t * t + k) % num_experts);
    }
    float *prob = probe_random(num_choices, WEFT_F32, 1.0, 1);
    plan_case p = make_plan((plan_case){.num_tokens = num_tokens,
                                        .num_experts = num_experts,
                                        .topk = topk,
                                        .num_local = form == 2 ? num_experts / 2 : num_experts,
                                        .capacity = form == 3 ? 1 + num_tokens / 3 : 0,
                                        .policy = WEFT_DROP_PROBS,
                                        .top_index = top_index,
                                        .top_prob = prob});
    move_case m = {.num_tokens = num_tokens,
                   .topk = topk,
                   .cols = cols,
                   .rows = num_rows(&p),
                   .row_of = p.row_of,
                   .token_of = p.token_of};
    const size_t count = num_tokens * cols, row_count = m.rows * cols;
    void *x = probe_random(count, dtype, 1.0, 2), *moved = probe_alloc(row_count * bytes);
    PROBE_RUN(permute, .num_rows = m.rows, .num_tokens = num_tokens, .cols = cols, .dtype = dtype,
              .x = x, .token_of = p.token_of, .rows = moved);
    for (size_t i = 0; i < m.rows; i++)
        assert_memory_equal((char *)moved + i * cols * bytes,
                            (char *)x + (size_t)p.token_of[i] * cols * bytes, cols * bytes);

    void *drows = probe_random(row_count, dtype, 1.0, 3);
    void *dx = accumulate ? probe_random(count, dtype, 1.0, 4) : probe_alloc(count * bytes);
    double *before = accumulate ? probe_read(dx, count, dtype) : NULL;
    PROBE_RUN(permute_backward, .num_tokens = num_tokens, .num_rows = m.rows, .topk = topk,
              .cols = cols, .dtype = dtype, .drows = drows, .row_of = p.row_of, .dx = dx,
              .accumulate = accumulate);
    m.x = probe_read(x, count, dtype);
    m.drows = probe_read(drows, row_count, dtype);
    const double tolerance = probe_tolerance(dtype, 1e-5);
    probe_gradient(permute_loss, &m, m.x, count, probe_read(dx, count, dtype), before, tolerance,
                   "permute backward");

    void *rows = probe_random(row_count, dtype, 1.0, 5), *dy = probe_random(count, dtype, 1.0, 6);
    void *y = probe_alloc(count * bytes);
    float *dprob = probe_alloc(num_choices * sizeof *dprob);
    void *drows_out = in_place ? rows : probe_alloc(row_count * bytes);
    m.moved = probe_read(rows, row_count, dtype);
    m.prob = probe_read(prob, num_choices, WEFT_F32);
    m.dy = probe_read(dy, count, dtype);
    PROBE_RUN(combine, .num_tokens = num_tokens, .num_rows = m.rows, .topk = topk, .cols = cols,
              .dtype = dtype, .rows = rows, .row_of = p.row_of, .top_prob = prob, .y = y);
    double *expected = probe_doubles(count);
    for (size_t i = 0; i < count; i++)
        expected[i] = combined(&m, i / cols, i % cols);
    probe_close(probe_read(y, count, dtype), expected, count, probe_tolerance(dtype, 1e-6),
                "combine");
    PROBE_RUN(combine_backward, .num_tokens = num_tokens, .num_rows = m.rows, .topk = topk,
              .cols = cols, .dtype = dtype, .dy = dy, .rows = rows, .row_of = p.row_of,
              .top_prob = prob, .drows = drows_out, .dtop_prob = dprob);
    probe_gradient(combine_loss, &m, m.moved, row_count, probe_read(drows_out, row_count, dtype),
                   NULL, tolerance, "combine backward, rows");
    probe_gradient(combine_loss, &m, m.prob, num_choices, probe_read(dprob, num_choices, WEFT_F32),
                   NULL, 1e-5, "combine backward, probabilities");
    for (size_t i = 0; i < num_choices; i++)
        if (p.row_of[i] < 0)
            assert_true(dprob[i] == 0.0f);
}

CASE(moves_equal_fp64_and_finite_differences)
{
    for (int form = 0; form < 8 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 8);
        if (is_left_out(form & 7))
            continue;
        check_moves(1, 2, 1, 1, dtype, form & 3, form & 4, form & 4);
        check_moves(11, 4, 1, 7, dtype, form & 3, form & 4, form & 4);
        check_moves(37, 8, 2, 531, dtype, form & 3, form & 4, form & 4);
        check_moves(19, 6, 3, 1031, dtype, form & 3, form & 4, form & 4);
        check_moves(9, 6, 3, 1160, dtype, form & 3, form & 4, form & 4); /* aligned rows */
        check_moves(5, 4, 1, 1608, dtype, form & 3, form & 4, form & 4); /* of one choice */
    }
}
