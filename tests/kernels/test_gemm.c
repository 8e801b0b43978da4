/* GEMMs alone and by groups against triple loops and finite differences in fp64, with 1, 2 and 3
 * threads. `test_gemm groups` has those by groups alone; `test_gemm refused` instead expects that
 * bf16 is refused because of WEFT_CPU_BF16. */
#include "probe.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/gemm.h"

static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};

enum { MAX_GROUPS = 140 };

/* Every case has numbers of its own. */
static uint64_t next_seed;

/* An operand as the kernel and as the reference see it. */
typedef struct matrix {
    void *data;
    double *values;
    size_t count;
    weft_dtype dtype;
} matrix;

static matrix random_matrix(size_t count, weft_dtype dtype)
{
    matrix x = {.count = count, .dtype = dtype};
    x.data = probe_random(count, dtype, 1, next_seed++);
    x.values = probe_read(x.data, count, dtype);
    return x;
}

static matrix poisoned_matrix(size_t count, weft_dtype dtype)
{
    matrix x = {.count = count, .dtype = dtype};
    x.data = probe_alloc(count * weft_dtype_bytes(dtype));
    x.values = probe_doubles(count);
    return x;
}

/* c becomes the result and `size` the sum of the sizes of the terms that it consists of. c and
 * `size` are dense here. */
static void reference(const weft_gemm_args *args, const double *a, const double *b,
                      const double *before, const double *bias, double *c, double *size)
{
    size_t k = args->k;
    size_t a_row = args->transpose_a ? 1 : args->lda, a_column = args->transpose_a ? args->lda : 1;
    size_t b_row = args->transpose_b ? 1 : args->ldb, b_column = args->transpose_b ? args->ldb : 1;
    for (size_t i = 0; i < args->m; i++)
        for (size_t j = 0; j < args->n; j++) {
            double sum = 0, sizes = 0;
            for (size_t p = 0; p < k; p++) {
                double term = a[i * a_row + p * a_column] * b[p * b_row + j * b_column];
                sum += term;
                sizes += fabs(term);
            }
            double alpha = args->alpha == 0 ? 1 : args->alpha;
            double old = args->beta == 0 ? 0 : args->beta * before[i * args->ldc + j];
            double more = bias ? bias[j] : 0;
            c[i * args->n + j] = alpha * sum + old + more;
            size[i * args->n + j] = fabs(alpha) * sizes + fabs(old) + fabs(more);
        }
}

/* No order of summing `num` terms in fp32 is further off than the sum of their sizes times
 * num 2^-24, but for terms of second order; rounding to bf16 adds at most 2^-8 of the sum. */
static void within_bounds(const double *got, const double *expected, const double *size,
                          size_t count, size_t num, weft_dtype dtype, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        double bound = (double)(num + 8) * 0x1p-24 * size[i];
        if (dtype != WEFT_F32)
            bound = bound * (1 + 0x1p-7) + 0x1p-8 * fabs(expected[i]);
        if (dtype == WEFT_F16)
            bound += 0x1p-25; /* half of the smallest step */
        if (!(fabs(got[i] - expected[i]) <= bound))
            fail_msg("%s: element %zu is %.9g, expected %.9g within %.3g", what, i, got[i],
                     expected[i], bound);
    }
    probe_close(got, expected, count, dtype == WEFT_F32 ? probe_tolerance(dtype, 1e-6) : 4e-3,
                what);
}

/* The dense part of c, whose gaps must be what they were. */
static double *dense(const weft_gemm_args *args, const matrix *c, const double *before)
{
    double *all = probe_read(c->data, c->count, c->dtype), *out = probe_doubles(args->m * args->n);
    for (size_t i = 0; i < args->m; i++)
        for (size_t j = 0; j < args->ldc; j++) {
            const size_t at = i * args->ldc + j;
            if (j < args->n)
                out[i * args->n + j] = all[at];
            else
                assert_memory_equal(&all[at], &before[at], sizeof *all);
        }
    return out;
}

/* Runs one GEMM whose operands have `gap` unused elements after each row. With beta 0, C starts as
 * NaN. */
static void one(weft_gemm_args args, size_t gap, bool with_bias)
{
    if (!probe_takes_case())
        return;
    args.lda = (args.transpose_a ? args.m : args.k) + gap;
    args.ldb = (args.transpose_b ? args.k : args.n) + gap;
    args.ldc = args.n + gap;
    const matrix a = random_matrix((args.transpose_a ? args.k : args.m) * args.lda, args.dtype);
    const matrix b = random_matrix((args.transpose_b ? args.n : args.k) * args.ldb, args.dtype);
    const matrix bias = random_matrix(args.n, args.dtype);
    const size_t num_c = args.m * args.ldc;
    matrix c =
        args.beta == 0 ? poisoned_matrix(num_c, args.c_dtype) : random_matrix(num_c, args.c_dtype);
    const double *before = probe_read(c.data, c.count, c.dtype);
    double *expected = probe_doubles(args.m * args.n), *size = probe_doubles(args.m * args.n);
    args.a = a.data, args.b = b.data, args.c = c.data;
    args.bias = with_bias ? bias.data : NULL;
    reference(&args, a.values, b.values, before, with_bias ? bias.values : NULL, expected, size);

    weft_gemm_args given = args;
    if (gap == 0)
        given.lda = given.ldb = given.ldc = 0;
    char what[160];
    for (int run = 0; run < PROBE_NUM_RUNS; run++) {
        snprintf(what, sizeof what,
                 "gemm %zux%zux%zu %s%s %s to %s alpha %g beta %g gap %zu%s, %d threads", args.m,
                 args.n, args.k, args.transpose_a ? "T" : "N", args.transpose_b ? "T" : "N",
                 weft_dtype_text(args.dtype), weft_dtype_text(args.c_dtype), (double)args.alpha,
                 (double)args.beta, gap, with_bias ? " bias" : "", run + 1);
        probe_before(run);
        uint64_t flops = weft_gemm_flops();
        probe_finish(run, weft_gemm(probe_lane(run), &given), what);
        assert_int_equal(weft_gemm_flops() - flops, 2 * args.m * args.n * args.k);
        within_bounds(dense(&args, &c, before), expected, size, args.m * args.n, args.k,
                      args.c_dtype, what);
    }
    probe_start(NULL);
}

/* The four transposes with all dtypes. */
static void all_forms(size_t m, size_t n, size_t k)
{
    for (int form = 0; form < 4; form++)
        for (int type = 0; type < 2 * probe_num_dtypes() - 1; type++) {
            const bool widens = type && type % 2 == 0;
            weft_gemm_args args = {
                .struct_bytes = sizeof args, .m = m, .n = n, .k = k, .transpose_a = form & 1};
            args.transpose_b = form & 2;
            args.dtype = dtypes[(type + 1) / 2];
            args.c_dtype = widens ? WEFT_F32 : args.dtype;
            one(args, 0, !widens);
            args.alpha = -0.75f;
            args.beta = 0.5f;
            one(args, 3, widens);
            one(args, 0, true);
            args.beta = 1;
            args.alpha = 1;
            one(args, 1, false);
            args.beta = 0;
            one(args, 2, true);
        }
}

CASE(gemm_of_small_and_odd_sizes)
{
    const size_t sizes[][3] = {{1, 1, 1},  {1, 40, 7},  {40, 1, 3},   {2, 3, 5},
                               {5, 8, 16}, {13, 31, 2}, {15, 33, 17}, {29, 65, 31}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        all_forms(sizes[i][0], sizes[i][1], sizes[i][2]);
}

CASE(gemm_of_middle_sizes)
{
    all_forms(200, 130, 70);
    all_forms(3, 70, 769);
}

/* Beyond the edge of the blocks that bf16 may be converted in: one dimension, then all. */
CASE(gemm_in_several_blocks)
{
    if (probe_is_emulated())
        skip(); /* the CPU's blocks */
    all_forms(1050, 37, 5);
    all_forms(6, 2100, 6);
    all_forms(9, 33, 1555);
    for (int form = 0; form < 4; form++)
        for (int c = 0; c < 2; c++) {
            weft_gemm_args args = {
                .struct_bytes = sizeof args, .m = 1030, .n = 1060, .k = 30, .dtype = WEFT_BF16};
            args.c_dtype = dtypes[c], args.beta = form == 3 ? 0.5f : 0;
            args.transpose_a = form & 1, args.transpose_b = form & 2;
            one(args, form == 2 ? 5 : 0, form == 1);
        }
#ifndef WEFT_SANITIZED /* ten seconds of the reference's loops */
    weft_gemm_args args = {
        .struct_bytes = sizeof args, .m = 1100, .n = 1040, .k = 1030, .transpose_b = true};
    args.dtype = args.c_dtype = WEFT_BF16;
    one(args, 0, true);
#endif
}

CASE(gemm_without_k)
{
    all_forms(5, 6, 0);
    for (int run = 0; run < PROBE_NUM_RUNS; run++) {
        float *c = probe_alloc(2 * sizeof *c);
        weft_gemm_args args = {
            .struct_bytes = sizeof args, .m = 1, .n = 2, .c = c}; /* no a, no b */
        probe_finish(run, weft_gemm(probe_lane(run), &args), "gemm without operands");
        assert_true(c[0] == 0 && c[1] == 0);
    }
}

CASE(gemm_of_nothing)
{
    PROBE_RUN(gemm, .m = 0, .n = 5, .k = 7);
    PROBE_RUN(gemm, .m = 3, .n = 0, .k = 7);
    PROBE_RUN(gemm, .m = 0, .n = 5, .k = 7, .dtype = WEFT_BF16, .c_dtype = WEFT_BF16);
}

/* A run that is resumed goes on with the same bits: the same product at the same number of threads
 * must not depend on where its operands lie or on what ran before. */
CASE(gemm_repeats_bit_by_bit)
{
    enum { M = 70, N = 130, K = 1100 };
    for (int type = 0; type < probe_num_dtypes(); type++)
        for (int form = 0; form < 4; form++)
            for (int run = 0; run < PROBE_NUM_RUNS; run++) {
                const weft_dtype dtype = dtypes[type];
                const size_t bytes = weft_dtype_bytes(dtype), shift = 64;
                const matrix a = random_matrix(M * K, dtype), b = random_matrix(N * K, dtype);
                char *a2 = (char *)probe_alloc(M * K * bytes + shift) + shift;
                char *b2 = (char *)probe_alloc(N * K * bytes + shift) + shift;
                memcpy(a2, a.data, M * K * bytes);
                memcpy(b2, b.data, N * K * bytes);
                void *c = probe_alloc(M * N * bytes), *c2 = probe_alloc(M * N * bytes);
                weft_gemm_args args = {.struct_bytes = sizeof args,
                                       .m = M,
                                       .n = N,
                                       .k = K,
                                       .dtype = dtype,
                                       .c_dtype = dtype};
                args.transpose_a = form & 1, args.transpose_b = form & 2;
                args.a = a.data, args.b = b.data, args.c = c;
                probe_finish(run, weft_gemm(probe_lane(run), &args), "gemm");
                args.a = a2, args.b = b2, args.c = c2;
                probe_finish(run, weft_gemm(probe_lane(run), &args), "gemm again");
                assert_memory_equal(c, c2, M * N * bytes);
                probe_start(NULL);
            }
}

/* More shapes than any cache of primitives holds, twice. */
CASE(gemm_of_very_many_shapes)
{
    enum { M = 1100, N = 3, K = 4 };
    const matrix a = random_matrix(M * K, WEFT_BF16), b = random_matrix(N * K, WEFT_BF16);
    matrix c = poisoned_matrix(M * N, WEFT_BF16);
    weft_gemm_args args = {
        .struct_bytes = sizeof args, .n = N, .k = K, .transpose_b = true, .dtype = WEFT_BF16};
    args.c_dtype = WEFT_BF16, args.lda = args.ldb = K, args.ldc = N;
    args.a = a.data, args.b = b.data, args.c = c.data;
    double *expected = probe_doubles(M * N), *size = probe_doubles(M * N);
    args.m = M;
    reference(&args, a.values, b.values, NULL, NULL, expected, size);
    for (int again = 0; again < 2; again++)
        for (args.m = 1; args.m <= M; args.m++) {
            memset((char *)c.data + 2 * (args.m - 1) * N, 0xff, 2 * N);
            probe_finish(0, weft_gemm(probe_lane(0), &args), "gemm");
            if (args.m % 100 == 0)
                within_bounds(probe_read(c.data, args.m * N, WEFT_BF16), expected, size, args.m * N,
                              K, WEFT_BF16, "many shapes");
        }
}

/* Lanes are threads: each multiplies in its own rhythm while the others do. */
CASE(gemm_on_several_lanes_at_once)
{
    if (probe_on_cuda()) /* its lanes are queues of one device, not threads */
        skip();
    enum { LANES = 4, GEMMS = 24 };
    weft_device *devices[LANES];
    weft_lane *lanes[LANES];
    weft_gemm_args args[LANES][GEMMS];
    matrix a[LANES][GEMMS], b[LANES][GEMMS], c[LANES][GEMMS];
    for (int lane = 0; lane < LANES; lane++) {
        assert_int_equal(weft_device_create_cpu(1 + lane % 2, 0, &devices[lane]), WEFT_OK);
        assert_int_equal(weft_lane_create(devices[lane], 0, "several", &lanes[lane]), WEFT_OK);
        for (int i = 0; i < GEMMS; i++) {
            weft_gemm_args *g = &args[lane][i];
            *g = WEFT_ARGS(weft_gemm_args, .m = 20 + 7 * (size_t)(i % 5),
                           .n = 30 + 9 * (size_t)(i % 3));
            g->k = 40 + 13 * (size_t)((i + lane) % 4);
            g->dtype = g->c_dtype = i % 4 == 0 ? WEFT_F32 : WEFT_BF16;
            g->lda = g->ldb = g->k, g->ldc = g->n, g->transpose_b = true;
            a[lane][i] = random_matrix(g->m * g->k, g->dtype);
            b[lane][i] = random_matrix(g->n * g->k, g->dtype);
            g->a = a[lane][i].data, g->b = b[lane][i].data;
        }
    }
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < GEMMS; i++) {
            weft_gemm_args *g = &args[lane][i];
            c[lane][i] = (matrix){.count = g->m * g->n, .dtype = g->c_dtype};
            g->c = c[lane][i].data = malloc(g->m * g->n * weft_dtype_bytes(g->c_dtype));
            assert_non_null(g->c);
        }
    for (int i = 0; i < GEMMS; i++)
        for (int lane = 0; lane < LANES; lane++)
            assert_int_equal(weft_gemm(lanes[lane], &args[lane][i]), WEFT_OK);
    for (int lane = 0; lane < LANES; lane++) {
        assert_int_equal(weft_lane_sync(lanes[lane]), WEFT_OK);
        weft_lane_destroy(lanes[lane]);
        weft_device_destroy(devices[lane]);
        for (int i = 0; i < GEMMS; i++) {
            const weft_gemm_args *g = &args[lane][i];
            const size_t count = g->m * g->n;
            double *expected = probe_doubles(count), *size = probe_doubles(count);
            reference(g, a[lane][i].values, b[lane][i].values, NULL, NULL, expected, size);
            within_bounds(probe_read(g->c, count, g->c_dtype), expected, size, count, g->k,
                          g->c_dtype, "several lanes");
            free(g->c);
        }
    }
}

/* A thread a lane: each multiplies the first rows of a by b, one row more each time. */
typedef struct submitter {
    weft_gemm_args args;
    matrix c[40];
    int run;
    weft_status status;
} submitter;

static void *submit(void *argument)
{
    submitter *s = argument;
    for (size_t i = 0; i < sizeof s->c / sizeof s->c[0] && s->status == WEFT_OK; i++) {
        s->args.m = i + 1, s->args.c = s->c[i].data;
        s->status = weft_gemm(probe_lane(s->run), &s->args);
    }
    if (s->status == WEFT_OK)
        s->status = weft_lane_sync(probe_lane(s->run));
    return NULL;
}

CASE(gemm_from_several_threads)
{
    enum { M = 40, N = 33, K = 50 };
    submitter submitters[PROBE_NUM_RUNS];
    pthread_t threads[PROBE_NUM_RUNS];
    const matrix a = random_matrix(M * K, WEFT_BF16), b = random_matrix(N * K, WEFT_BF16);
    weft_gemm_args args = {.struct_bytes = sizeof args,
                           .m = M,
                           .n = N,
                           .k = K,
                           .dtype = WEFT_BF16,
                           .c_dtype = WEFT_F32};
    args.lda = K, args.ldb = args.ldc = N, args.a = a.data, args.b = b.data;
    double *expected = probe_doubles(M * N), *size = probe_doubles(M * N);
    reference(&args, a.values, b.values, NULL, NULL, expected, size);
    for (int t = 0; t < PROBE_NUM_RUNS; t++) {
        submitters[t] = (submitter){.args = args, .run = t};
        for (size_t i = 0; i < M; i++)
            submitters[t].c[i] = poisoned_matrix((i + 1) * N, WEFT_F32);
    }
    for (int t = 0; t < PROBE_NUM_RUNS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, submit, &submitters[t]), 0);
    for (int t = 0; t < PROBE_NUM_RUNS; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    for (int t = 0; t < PROBE_NUM_RUNS; t++) {
        assert_int_equal(submitters[t].status, WEFT_OK);
        for (size_t i = 0; i < M; i++)
            within_bounds(probe_read(submitters[t].c[i].data, (i + 1) * N, WEFT_F32), expected,
                          size, (i + 1) * N, K, WEFT_F32, "several threads");
    }
}

/* A linear layer by groups, in fp64, and the loss sum(y * dy). */
typedef struct linear {
    const int64_t *offsets;
    size_t num_groups, in, out;
    const double *x, *w, *dy;
} linear;

static double linear_loss(const void *context)
{
    const linear *l = context;
    double loss = 0;
    for (size_t g = 0; g < l->num_groups; g++)
        for (size_t row = (size_t)l->offsets[g]; row < (size_t)l->offsets[g + 1]; row++)
            for (size_t o = 0; o < l->out; o++) {
                const double *x = l->x + row * l->in, *w = l->w + (g * l->out + o) * l->in;
                double y = 0;
                for (size_t i = 0, in = l->in; i < in; i++)
                    y += x[i] * w[i];
                loss += y * l->dy[row * l->out + o];
            }
    return loss;
}

/* Backward of one linear layer, as the layers call it, against finite differences. */
CASE(gradients_are_those_of_the_loss)
{
    enum { ROWS = 37, IN = 21, OUT = 18 };
    const int64_t offsets[] = {0, ROWS};
    for (int type = 0; type < probe_num_dtypes(); type++)
        for (int run = 0; run < PROBE_NUM_RUNS; run++) {
            const weft_dtype dtype = dtypes[type];
            matrix x = random_matrix(ROWS * IN, dtype), w = random_matrix(OUT * IN, dtype);
            matrix dy = random_matrix(ROWS * OUT, dtype), dx = poisoned_matrix(ROWS * IN, dtype);
            matrix dw = random_matrix(OUT * IN, WEFT_F32);
            weft_gemm_args dgrad = {
                .struct_bytes = sizeof dgrad, .m = ROWS, .n = IN, .k = OUT, .dtype = dtype};
            dgrad.c_dtype = dtype, dgrad.a = dy.data, dgrad.b = w.data, dgrad.c = dx.data;
            weft_gemm_args wgrad = {.struct_bytes = sizeof wgrad,
                                    .m = OUT,
                                    .n = IN,
                                    .k = ROWS,
                                    .dtype = dtype,
                                    .beta = 1};
            wgrad.transpose_a = true, wgrad.a = dy.data, wgrad.b = x.data, wgrad.c = dw.data;
            probe_finish(run, weft_gemm(probe_lane(run), &dgrad), "dgrad");
            probe_finish(run, weft_gemm(probe_lane(run), &wgrad), "wgrad");
            const linear l = {offsets, 1, IN, OUT, x.values, w.values, dy.values};
            probe_gradient(linear_loss, &l, x.values, x.count, probe_read(dx.data, x.count, dtype),
                           NULL, dtype == WEFT_F32 ? 1e-5 : 5e-3, "dgrad");
            probe_gradient(linear_loss, &l, w.values, w.count,
                           probe_read(dw.data, w.count, WEFT_F32), dw.values, 1e-5, "wgrad");
            probe_start(NULL);
        }
}

/* The three kinds over the groups' rows. `first`: rows before the first group, and as many after
 * the last, that must not be touched. The forward pass is held to the reference, the backward ones
 * to finite differences of the loss. */
static void groups_of_one_kind(weft_grouped_gemm_args args, size_t first, int run)
{
    const size_t all = (size_t)args.row_offsets[args.num_groups] + first;
    const size_t num_w = args.num_groups * args.in * args.out;
    const weft_dtype dtype = args.dtype;
    const bool forward = args.kind == WEFT_GROUPED_FORWARD, dgrad = args.kind == WEFT_GROUPED_DGRAD;
    const matrix x =
        dgrad ? poisoned_matrix(all * args.in, dtype) : random_matrix(all * args.in, dtype);
    const matrix y =
        forward ? poisoned_matrix(all * args.out, dtype) : random_matrix(all * args.out, dtype);
    const matrix w = random_matrix(num_w, dtype);
    const matrix wgrad =
        args.overwrite ? poisoned_matrix(num_w, WEFT_F32) : random_matrix(num_w, WEFT_F32);
    args.x = x.data, args.w = w.data, args.y = y.data, args.wgrad = wgrad.data;
    char what[64];
    snprintf(what, sizeof what, "grouped kind %d %s %d threads", (int)args.kind,
             weft_dtype_text(dtype), run + 1);
    probe_finish(run, weft_grouped_gemm(probe_lane(run), &args), what);

    /* For dgrad x is 0 here; any would do, the loss being linear in it. */
    const linear l = {args.row_offsets, args.num_groups, args.in, args.out,
                      x.values,         w.values,        y.values};
    if (args.kind == WEFT_GROUPED_WGRAD) {
        probe_gradient(linear_loss, &l, w.values, num_w, probe_read(wgrad.data, num_w, WEFT_F32),
                       wgrad.values, 1e-5, what);
        return;
    }
    const size_t cols = forward ? args.out : args.in, inner = (all - 2 * first) * cols;
    double *got = probe_read(forward ? y.data : x.data, all * cols, dtype);
    for (size_t i = 0; i < first * cols; i++)
        assert_true(isnan(got[i]) && isnan(got[(all - first) * cols + i]));
    if (dgrad) {
        probe_gradient(linear_loss, &l, x.values + first * cols, inner, got + first * cols, NULL,
                       dtype == WEFT_F32 ? 1e-5 : 5e-3, what);
        return;
    }
    for (size_t g = 0; g < args.num_groups; g++) {
        const size_t from = (size_t)args.row_offsets[g];
        weft_gemm_args one_group = {.struct_bytes = sizeof one_group,
                                    .m = (size_t)args.row_offsets[g + 1] - from,
                                    .n = args.out};
        one_group.k = one_group.lda = one_group.ldb = args.in;
        one_group.ldc = args.out, one_group.transpose_b = true;
        const size_t count = one_group.m * args.out;
        double *expected = probe_doubles(count), *size = probe_doubles(count);
        reference(&one_group, x.values + from * args.in, w.values + g * args.in * args.out, NULL,
                  NULL, expected, size);
        within_bounds(got + from * args.out, expected, size, count, args.in, dtype, what);
    }
}

static void groups(const size_t *rows, size_t num_groups, size_t in, size_t out, size_t first)
{
    int64_t offsets[MAX_GROUPS + 1] = {(int64_t)first};
    assert_true(num_groups <= MAX_GROUPS);
    for (size_t g = 0; g < num_groups; g++)
        offsets[g + 1] = offsets[g] + (int64_t)rows[g];
    const weft_grouped_gemm_args kinds[] = {
        {.kind = WEFT_GROUPED_FORWARD},
        {.kind = WEFT_GROUPED_DGRAD},
        {.kind = WEFT_GROUPED_WGRAD, .overwrite = true},
        {.kind = WEFT_GROUPED_WGRAD},
    };
    for (int type = 0; type < probe_num_dtypes(); type++)
        for (int kind = 0; kind < 4; kind++)
            for (int run = 0; run < PROBE_NUM_RUNS; run++) {
                weft_grouped_gemm_args args = kinds[kind];
                args.struct_bytes = sizeof args;
                args.num_groups = num_groups, args.in = in, args.out = out;
                args.row_offsets = offsets, args.dtype = dtypes[type];
                groups_of_one_kind(args, first, run);
                probe_start(NULL);
            }
}

CASE(groups_of_few_rows)
{
    groups((const size_t[]){0, 1, 3, 0, 2, 0}, 6, 20, 35, 2);
    groups((const size_t[]){1}, 1, 1, 1, 1);
    groups((const size_t[]){0, 0}, 2, 8, 8, 1);
}

CASE(groups_of_uneven_rows)
{
    groups((const size_t[]){40, 0, 29, 1, 17, 14, 50, 3}, 8, 24, 30, 0);
    groups((const size_t[]){100, 5}, 2, 13, 20, 3);
    groups((const size_t[]){1, 1300, 0}, 3, 4, 6, 1);
}

/* Rows of all matrices are multiples of 16 bytes, as where libraries do all groups in one launch.
 */
CASE(groups_of_aligned_rows)
{
    groups((const size_t[]){5, 0, 16, 33, 1}, 5, 16, 24, 2);
    size_t many[MAX_GROUPS];
    for (size_t g = 0; g < MAX_GROUPS; g++)
        many[g] = g % 5 == 3 ? 0 : 1 + g % 3;
    groups(many, MAX_GROUPS, 8, 16, 1);
}

CASE(groups_of_nothing)
{
    PROBE_RUN(grouped_gemm, .num_groups = 0);
    const int64_t offsets[] = {0, 0};
    for (int type = 0; type < probe_num_dtypes(); type++) {
        float *wgrad = probe_alloc(6 * sizeof *wgrad);
        PROBE_RUN(grouped_gemm, .kind = WEFT_GROUPED_WGRAD, .num_groups = 1, .in = 2, .out = 3,
                  .row_offsets = offsets, .dtype = dtypes[type], .wgrad = wgrad, .overwrite = true);
        for (int i = 0; i < 6; i++)
            assert_true(wgrad[i] == 0);
        for (int i = 0; i < 6; i++)
            wgrad[i] = (float)i;
        PROBE_RUN(grouped_gemm, .kind = WEFT_GROUPED_WGRAD, .num_groups = 1, .in = 2, .out = 3,
                  .row_offsets = offsets, .dtype = dtypes[type], .wgrad = wgrad);
        for (int i = 0; i < 6; i++)
            assert_true(wgrad[i] == (float)i);
    }
}

/* The groups of one kind in all ways that a call may say where matrices lie, and in calls of their
 * own. */
enum { GROUPS_IN = 24, GROUPS_OUT = 40, GROUPS_STRIDE = GROUPS_IN * GROUPS_OUT + 64 };
typedef enum deal { DENSE, STRIDED, SCATTERED, ALONE, NUM_DEALS } deal;
static const size_t dealt_rows[] = {7, 0, 33, 1, 160, 0, 16};
enum { NUM_DEALT = sizeof dealt_rows / sizeof *dealt_rows };

typedef struct dealt {
    weft_grouped_gemm_args args;
    void *w[NUM_DEALT]; /* of each group, in a buffer of its own */
    float *wgrad[NUM_DEALT];
    size_t bytes; /* of x or y, which is written */
    void *written;
} dealt;

/* The same numbers whatever the deal; matrices of groups without rows are NULL where they may. */
static void deal_out(deal how, weft_grouped_gemm_args args, const int64_t *offsets, dealt *d)
{
    const size_t all = (size_t)offsets[NUM_DEALT], size = GROUPS_IN * GROUPS_OUT;
    const size_t stride = how == DENSE ? size : GROUPS_STRIDE;
    const bool gradient = args.kind == WEFT_GROUPED_WGRAD;
    const size_t element = gradient ? sizeof(float) : weft_dtype_bytes(args.dtype);
    const weft_dtype dtype = gradient ? WEFT_F32 : args.dtype;
    char *block = probe_alloc(NUM_DEALT * stride * element);
    *d = (dealt){.args = args};
    d->args.in = GROUPS_IN, d->args.out = GROUPS_OUT;
    d->args.num_groups = NUM_DEALT, d->args.row_offsets = offsets;
    d->args.x = probe_random(all * GROUPS_IN, args.dtype, 1, 11);
    d->args.y = probe_random(all * GROUPS_OUT, args.dtype, 1, 12);
    d->args.stride = how == STRIDED ? stride : 0;
    for (int g = 0; g < NUM_DEALT; g++) {
        const bool none = dealt_rows[g] == 0 && (how == SCATTERED || how == ALONE);
        const int at = how == SCATTERED ? NUM_DEALT - 1 - g : g;
        char *at_group = block + (size_t)at * stride * element;
        memcpy(at_group, probe_random(size, dtype, 1, 20 + (uint64_t)g), size * element);
        d->w[g] = none || gradient ? NULL : at_group;
        d->wgrad[g] = none || !gradient ? NULL : (float *)(void *)at_group;
    }
    if (how == DENSE || how == STRIDED)
        d->args.w = d->w[0], d->args.wgrad = d->wgrad[0];
    else
        d->args.w_of = (const void *const *)d->w, d->args.wgrad_of = d->wgrad;
    if (!gradient) {
        d->written = args.kind == WEFT_GROUPED_FORWARD ? d->args.y : d->args.x;
        d->bytes = all * (args.kind == WEFT_GROUPED_FORWARD ? GROUPS_OUT : GROUPS_IN) * element;
    }
}

static void run_dealt(deal how, const dealt *d, int run)
{
    for (size_t g = 0; g < (how == ALONE ? NUM_DEALT : 1); g++) {
        weft_grouped_gemm_args args = d->args;
        if (how == ALONE) {
            args.num_groups = 1;
            args.row_offsets += g, args.w_of += g, args.wgrad_of += g;
        }
        probe_finish(run, weft_grouped_gemm(probe_lane(run), &args), "dealt groups");
    }
}

CASE(groups_alone_have_the_bits_of_all)
{
    const weft_grouped_gemm_args kinds[] = {
        {.struct_bytes = sizeof *kinds, .kind = WEFT_GROUPED_FORWARD},
        {.struct_bytes = sizeof *kinds, .kind = WEFT_GROUPED_DGRAD},
        {.struct_bytes = sizeof *kinds, .kind = WEFT_GROUPED_WGRAD, .overwrite = true},
        {.struct_bytes = sizeof *kinds, .kind = WEFT_GROUPED_WGRAD},
    };
    int64_t offsets[NUM_DEALT + 1] = {2};
    dealt all[NUM_DEALS];
    for (int g = 0; g < NUM_DEALT; g++)
        offsets[g + 1] = offsets[g] + (int64_t)dealt_rows[g];
    for (int c = 0; c < 4 * probe_num_dtypes() * PROBE_NUM_RUNS; c++) {
        const int run = c % PROBE_NUM_RUNS;
        weft_grouped_gemm_args args = kinds[c / PROBE_NUM_RUNS % 4];
        args.dtype = dtypes[c / PROBE_NUM_RUNS / 4];
        probe_start(state);
        for (int how = 0; how < NUM_DEALS; how++) {
            deal_out((deal)how, args, offsets, &all[how]);
            run_dealt((deal)how, &all[how], run);
            const dealt *one = &all[0], *other = &all[how];
            assert_memory_equal(one->written ? one->written : "",
                                other->written ? other->written : "", one->bytes);
            for (int g = 0; g < NUM_DEALT; g++)
                if (other->wgrad[g])
                    assert_memory_equal(all[0].args.wgrad + (size_t)g * GROUPS_IN * GROUPS_OUT,
                                        other->wgrad[g], GROUPS_IN * GROUPS_OUT * sizeof(float));
        }
    }
}

CASE(groups_with_rows_need_matrices)
{
    const int64_t offsets[] = {0, 1};
    const void *none[] = {NULL};
    float *x = probe_alloc(4 * sizeof *x);
    assert_int_equal(
        weft_grouped_gemm(probe_lane(0),
                          &WEFT_ARGS(weft_grouped_gemm_args, .num_groups = 1, .in = 2, .out = 2,
                                     .row_offsets = offsets, .x = x, .y = x + 2, .w_of = none)),
        WEFT_INTERNAL);
    assert_non_null(strstr(weft_error_get()->text, "a group with rows"));
    assert_int_equal(
        weft_grouped_gemm(probe_lane(0), &WEFT_ARGS(weft_grouped_gemm_args, .num_groups = 1,
                                                    .in = 2, .out = 2, .row_offsets = offsets,
                                                    .x = x, .y = x + 2, .w = x, .stride = 3)),
        WEFT_INTERNAL);
    assert_non_null(strstr(weft_error_get()->text, "stride"));
}

CASE(bf16_is_refused)
{
    const matrix a = random_matrix(64, WEFT_BF16), b = random_matrix(64, WEFT_BF16);
    matrix c = poisoned_matrix(64, WEFT_BF16);
    weft_gemm_args args = {.struct_bytes = sizeof args,
                           .m = 8,
                           .n = 8,
                           .k = 8,
                           .dtype = WEFT_BF16,
                           .c_dtype = WEFT_BF16};
    args.a = a.data, args.b = b.data, args.c = c.data;
    weft_status status = weft_gemm(probe_lane(0), &args);
    if (status == WEFT_OK)
        status = weft_lane_sync(probe_lane(0));
    assert_int_equal(status, WEFT_CONFIG);
    assert_non_null(strstr(weft_error_get()->text, "WEFT_CPU_BF16="));
}

int main(int argc, char **argv)
{
    const bool refused = argc > 1 && !strcmp(argv[1], "refused"),
               groups = argc > 1 && !strcmp(argv[1], "groups");
    const char *form = getenv("WEFT_CPU_BF16");
    if (!refused && form && !strcmp(form, "native") && !weft_gemm_native_works()) {
        puts("skipped: oneDNN multiplies no bf16 on this processor");
        return 77;
    }
    cmocka_set_test_filter(refused ? "bf16_is_refused" : groups ? "groups_*" : NULL);
    cmocka_set_skip_filter(refused  ? NULL
                           : groups ? "groups_with_rows_need_matrices"
                                    : "bf16_is_refused");
    return run_cases();
}
