/* GEMMs with GELU and with its backward as epilogues, against fp64, and against the kernels one
 * after the other. */
#include "probe.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

static const double slope = 0.79788456080286535588; /* sqrt(2 / pi) */

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(slope * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(slope * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x);
}

/* With numbers of about 1 / sqrt(k) in A, sums are of GELU's interesting size. */
typedef struct epilogue_case {
    weft_gemm_args args;
    double *a, *b, *bias, *pre; /* as fp64 */
    size_t count, bytes;        /* of C */
} epilogue_case;

static epilogue_case make_case(weft_gemm_epilogue epilogue, const size_t size[3], int form,
                               weft_dtype dtype, weft_dtype c_dtype)
{
    const size_t m = size[0], n = size[1], k = size[2];
    epilogue_case e = {.count = m * n, .bytes = m * n * weft_dtype_bytes(c_dtype)};
    const bool has_bias = epilogue == WEFT_GEMM_GELU && form != 2;
    void *a = probe_random(m * k, dtype, 1.5 / sqrt((double)k + 1), 1);
    void *b = probe_random(k * n, dtype, 1, 2), *bias = probe_random(n, dtype, 1, 3);
    void *pre =
        epilogue == WEFT_GEMM_GELU ? probe_alloc(e.bytes) : probe_random(m * n, c_dtype, 1.5, 4);
    e.args = WEFT_ARGS(weft_gemm_args, .m = m, .n = n, .k = k, .transpose_a = form & 1,
                       .transpose_b = form & 2, .dtype = dtype, .c_dtype = c_dtype, .a = a, .b = b,
                       .c = probe_alloc(e.bytes), .alpha = form == 3 ? -0.75f : 0,
                       .bias = has_bias ? bias : NULL, .epilogue = epilogue, .pre = pre);
    e.a = probe_read(a, m * k, dtype);
    e.b = probe_read(b, k * n, dtype);
    e.bias = has_bias ? probe_read(bias, n, dtype) : NULL;
    e.pre = probe_read(pre, m * n, c_dtype);
    return e;
}

/* Of pre and C. */
static void reference(const epilogue_case *e, double *pre, double *c)
{
    const weft_gemm_args *g = &e->args;
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < g->k; p++)
                sum += e->a[g->transpose_a ? p * g->m + i : i * g->k + p] *
                       e->b[g->transpose_b ? j * g->k + p : p * g->n + j];
            const size_t at = i * g->n + j;
            sum = sum * (g->alpha == 0 ? 1 : (double)g->alpha) + (e->bias ? e->bias[j] : 0);
            pre[at] = g->epilogue == WEFT_GEMM_GELU ? sum : e->pre[at];
            c[at] = g->epilogue == WEFT_GEMM_GELU ? gelu(sum) : sum * gelu_slope(e->pre[at]);
        }
}

static void check_case(const epilogue_case *e, int run)
{
    double *pre = probe_doubles(e->count), *c = probe_doubles(e->count);
    const weft_gemm_args *g = &e->args;
    const double tolerance = probe_tolerance(g->c_dtype, 1e-5);
    char what[128];
    snprintf(what, sizeof what, "epilogue %d %zux%zux%zu %s%s %s to %s, run %d", (int)g->epilogue,
             g->m, g->n, g->k, g->transpose_a ? "T" : "N", g->transpose_b ? "T" : "N",
             weft_dtype_text(g->dtype), weft_dtype_text(g->c_dtype), run);
    probe_before(run);
    probe_finish(run, weft_gemm(probe_lane(run), g), what);
    reference(e, pre, c);
    probe_close(probe_read(g->c, e->count, g->c_dtype), c, e->count, tolerance, what);
    probe_close(probe_read(g->pre, e->count, g->c_dtype), pre, e->count, tolerance, what);
}

/* What is in c is the GEMM's, then the activation's kernel's result. */
static void check_apart(const epilogue_case *e, int run)
{
    weft_gemm_args g = e->args;
    void *c = probe_alloc(e->bytes), *pre = probe_alloc(e->bytes);
    probe_finish(run, weft_gemm(probe_lane(run), &e->args), "with its epilogue");
    const bool is_forward = g.epilogue == WEFT_GEMM_GELU;
    g.epilogue = WEFT_GEMM_PLAIN;
    g.c = is_forward ? pre : c;
    probe_finish(run, weft_gemm(probe_lane(run), &g), "without");
    if (is_forward)
        probe_finish(
            run,
            weft_activation_forward(probe_lane(run),
                                    &WEFT_ARGS(weft_activation_forward_args, .rows = g.m,
                                               .cols = g.n, .dtype = g.c_dtype, .x = pre, .y = c)),
            "gelu");
    else
        probe_finish(run,
                     weft_activation_backward(probe_lane(run),
                                              &WEFT_ARGS(weft_activation_backward_args, .rows = g.m,
                                                         .cols = g.n, .dtype = g.c_dtype,
                                                         .x = g.pre, .dy = c, .dx = c)),
                     "gelu backward");
    assert_memory_equal(c, e->args.c, e->bytes);
    if (is_forward)
        assert_memory_equal(pre, e->args.pre, e->bytes);
}

static const weft_gemm_epilogue epilogues[] = {WEFT_GEMM_GELU, WEFT_GEMM_GELU_BACKWARD};

/* Rows of C of 8 elements and not, k odd, empty and beyond a block. */
static const size_t sizes[][3] = {{1, 1, 1},    {2, 3, 5},     {5, 8, 16},
                                  {13, 31, 2},  {29, 64, 31},  {70, 40, 0},
                                  {33, 72, 48}, {48, 130, 70}, {3, 96, 770}};

CASE(epilogues_equal_fp64)
{
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int i = 0; i < 2 * 4 * (2 * probe_num_dtypes() - 1); i++) {
            const int type = i / 8;
            const weft_dtype dtype = probe_dtype((type + 1) / 2);
            const bool widens = type > 0 && type % 2 == 0;
            const epilogue_case e =
                make_case(epilogues[i % 2], sizes[s], i / 2 % 4, dtype, widens ? WEFT_F32 : dtype);
            for (int run = 0; run < PROBE_NUM_RUNS; run++)
                check_case(&e, run);
            probe_start(NULL);
        }
}

/* On the CPU always, on a GPU where cuBLASLt is not asked. */
CASE(epilogues_equal_kernels_apart)
{
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int i = 0; i < 2 * 4 * probe_num_dtypes(); i++) {
            const weft_dtype dtype = probe_dtype(i / 8);
            if (probe_on_cuda() && dtype != WEFT_F32 && sizes[s][1] % 8 == 0)
                continue;
            const epilogue_case e = make_case(epilogues[i % 2], sizes[s], i / 2 % 4, dtype, dtype);
            for (int run = 0; run < PROBE_NUM_RUNS; run++)
                check_apart(&e, run);
            probe_start(NULL);
        }
}

/* Of the emulated cuBLASLt. */
static size_t num_fused(void)
{
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD);
    size_t (*count)(void) = NULL;
    if (library)
        *(void **)&count = dlsym(library, "weft_emulated_num_gelu");
    if (!count)
        skip();
    dlclose(library);
    return count();
}

/* In 16 bits with rows of 8 elements, aligned, where the library has an algorithm: here, for even
 * k. Twice, since the answer is remembered. */
CASE(cublas_fuses_what_it_can)
{
    static const struct {
        size_t size[3];
        weft_dtype dtype, c_dtype;
        size_t shift; /* of pre, in bytes */
        bool is_fused;
    } cases[] = {
        {{9, 16, 10}, WEFT_BF16, WEFT_BF16, 0, true},
        {{9, 16, 10}, WEFT_F16, WEFT_F16, 0, true},
        {{9, 16, 10}, WEFT_BF16, WEFT_BF16, 8, false},
        {{9, 16, 11}, WEFT_BF16, WEFT_BF16, 0, false},
        {{9, 20, 10}, WEFT_BF16, WEFT_BF16, 0, false},
        {{9, 16, 10}, WEFT_BF16, WEFT_F32, 0, false},
        {{9, 16, 10}, WEFT_F32, WEFT_F32, 0, false},
    };
    if (!probe_on_cuda())
        skip();
    float *x = probe_constant(1, 1), *y = probe_alloc(sizeof *y);
    PROBE_RUN(gemm, .m = 1, .n = 1, .k = 1, .a = x, .b = x, .c = y); /* loads the library */
    for (size_t i = 0; i < 2 * 2 * sizeof cases / sizeof cases[0]; i++) {
        const size_t at = i / 2 % (sizeof cases / sizeof cases[0]);
        epilogue_case e =
            make_case(epilogues[i % 2], cases[at].size, 0, cases[at].dtype, cases[at].c_dtype);
        char *shifted = (char *)probe_alloc(e.bytes + 16) + cases[at].shift;
        memcpy(shifted, e.args.pre, e.bytes);
        e.args.pre = shifted;
        const size_t before = num_fused();
        check_case(&e, 0);
        assert_int_equal(num_fused() - before, cases[at].is_fused);
        probe_start(NULL);
    }
}

CASE(wrong_epilogues_are_refused)
{
    float x[4] = {0}, pre[4] = {0};
    const weft_gemm_args good = {.struct_bytes = sizeof good,
                                 .m = 2,
                                 .n = 2,
                                 .c = x,
                                 .epilogue = WEFT_GEMM_GELU,
                                 .pre = pre};
    weft_gemm_args wrong[6];
    for (int i = 0; i < 6; i++)
        wrong[i] = good;
    wrong[0].beta = 1;
    wrong[1].ldc = 3;
    wrong[2].pre = NULL;
    wrong[3].pre = x;
    wrong[4].epilogue = WEFT_GEMM_GELU_BACKWARD, wrong[4].bias = pre;
    wrong[5].epilogue = (weft_gemm_epilogue)3;
    for (int i = 0; i < 6; i++)
        assert_int_equal(weft_gemm(probe_lane(0), &wrong[i]), WEFT_INTERNAL);
}
