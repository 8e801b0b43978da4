/* Embedding, addition, scaling and conversion against references. */
#include "probe.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

typedef struct embedding_case {
    size_t num_tokens, batch, cols, first_row, num_rows, first_position;
    int numbering; /* 0: by first_position; by an index 1: of positions, 2: of tokens */
    const int32_t *tokens, *index;
    double *table, *positions, *dy; /* table, positions: optional */
} embedding_case;

static size_t position_of(const embedding_case *e, size_t t)
{
    if (e->numbering == 0)
        return e->first_position + t / e->batch;
    return (size_t)e->index[e->numbering == 1 ? t / e->batch : t];
}

static double embedded(const embedding_case *e, size_t t, size_t c)
{
    double y = 0.0;
    if (e->table && e->tokens[t] >= (int32_t)e->first_row &&
        e->tokens[t] < (int32_t)(e->first_row + e->num_rows))
        y = e->table[((size_t)e->tokens[t] - e->first_row) * e->cols + c];
    if (e->positions)
        y += e->positions[position_of(e, t) * e->cols + c];
    return y;
}

static double embedding_loss(const void *context)
{
    const embedding_case *e = context;
    double loss = 0.0;
    for (size_t t = 0; t < e->num_tokens; t++)
        for (size_t c = 0; c < e->cols; c++)
            loss += e->dy[t * e->cols + c] * embedded(e, t, c);
    return loss;
}

/* `tables`: bit 0 the token table, bit 1 the positions. */
static void check_embedding(embedding_case e, weft_dtype dtype, int tables, bool overwrite)
{
    const size_t vocabulary = e.num_rows > 23 ? e.num_rows : 23;
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t count = e.num_tokens * e.cols;
    const size_t num_positions = e.first_position + e.num_tokens / e.batch + 2;
    int32_t *tokens = probe_alloc(e.num_tokens * sizeof *tokens);
    uint64_t random = 9;
    for (size_t t = 0; t < e.num_tokens; t++) /* a few tokens repeat often */
        tokens[t] = (int32_t)probe_pick(&random, t % 3 ? vocabulary : 2);
    int32_t *index = probe_alloc(e.num_tokens * sizeof *index);
    for (size_t t = 0; t < e.num_tokens; t++) /* of tokens: some positions repeat; else backwards */
        index[t] = (int32_t)(e.numbering == 2 ? probe_pick(&random, t % 3 ? num_positions : 2)
                                              : (t < num_positions ? num_positions - 1 - t : 0));
    e.index = e.numbering ? index : NULL;
    void *table = tables & 1 ? probe_random(e.num_rows * e.cols, dtype, 1.0, 1) : NULL;
    void *positions = tables & 2 ? probe_random(num_positions * e.cols, dtype, 1.0, 2) : NULL;
    void *y = probe_alloc(count * weft_dtype_bytes(dtype));
    void *dy = probe_random(count, dtype, 1.0, 3);
    e.tokens = tokens;
    e.table = table ? probe_read(table, e.num_rows * e.cols, dtype) : NULL;
    e.positions = positions ? probe_read(positions, num_positions * e.cols, dtype) : NULL;
    e.dy = probe_read(dy, count, dtype);
    PROBE_RUN(embedding_forward, .num_tokens = e.num_tokens, .batch = e.batch, .cols = e.cols,
              .tokens = tokens, .first_row = e.first_row, .num_rows = e.num_rows, .dtype = dtype,
              .table = table, .positions = positions, .num_positions = num_positions,
              .first_position = e.first_position, .y = y, .index = e.index,
              .index_by_sample = e.numbering == 2);
    double *expected = probe_doubles(count);
    for (size_t i = 0; i < count; i++)
        expected[i] = probe_round(embedded(&e, i / e.cols, i % e.cols), dtype);
    probe_close(probe_read(y, count, dtype), expected, count, 1e-7, "embedding");

    const size_t table_count = e.num_rows * e.cols, position_count = num_positions * e.cols;
    float *dtable = NULL, *dpositions = NULL;
    if (table)
        dtable = overwrite ? probe_alloc(table_count * sizeof *dtable)
                           : probe_random(table_count, WEFT_F32, 1.0, 4);
    if (positions)
        dpositions = overwrite ? probe_alloc(position_count * sizeof *dpositions)
                               : probe_random(position_count, WEFT_F32, 1.0, 5);
    double *dtable_before = overwrite || !table ? NULL : probe_read(dtable, table_count, WEFT_F32);
    double *dpositions_before =
        overwrite || !positions ? NULL : probe_read(dpositions, position_count, WEFT_F32);
    PROBE_RUN(embedding_backward, .num_tokens = e.num_tokens, .batch = e.batch, .cols = e.cols,
              .tokens = tokens, .first_row = e.first_row, .num_rows = e.num_rows,
              .num_positions = num_positions, .dtype = dtype, .dy = dy, .dtable = dtable,
              .dpositions = dpositions, .first_position = e.first_position, .overwrite = overwrite,
              .index = e.index, .index_by_sample = e.numbering == 2);
    if (table)
        probe_gradient(embedding_loss, &e, e.table, table_count,
                       probe_read(dtable, table_count, WEFT_F32), dtable_before, 1e-5, "dtable");
    if (positions)
        probe_gradient(embedding_loss, &e, e.positions, position_count,
                       probe_read(dpositions, position_count, WEFT_F32), dpositions_before, 1e-5,
                       "dpositions");
}

CASE(embedding_equals_fp64_and_finite_differences)
{
    for (int form = 0; form < 18 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 18);
        int tables = 1 + form % 3, numbering = form / 6 % 3;
        if (numbering > 0 && tables != 3)
            continue;
        check_embedding(
            (embedding_case){
                .numbering = numbering, .num_tokens = 1, .batch = 1, .cols = 1, .num_rows = 23},
            dtype, tables, form & 1);
        check_embedding((embedding_case){.numbering = numbering,
                                         .num_tokens = 12,
                                         .batch = 3,
                                         .cols = 37,
                                         .num_rows = 23,
                                         .first_position = 2},
                        dtype, tables, form & 1);
        check_embedding((embedding_case){.numbering = numbering,
                                         .num_tokens = 66,
                                         .batch = 2,
                                         .cols = 301,
                                         .first_row = 1,
                                         .num_rows = 7},
                        dtype, tables, form & 1);
        check_embedding(/* several packs a thread */
                        (embedding_case){.numbering = numbering,
                                         .num_tokens = 7,
                                         .batch = 2,
                                         .cols = 1608,
                                         .num_rows = 23},
                        dtype, tables, form & 1);
        /* Rows that very many tokens chose. */
        check_embedding(
            (embedding_case){
                .numbering = numbering, .num_tokens = 611, .batch = 5, .cols = 16, .num_rows = 300},
            dtype, tables, form & 1);
    }
}

/* The ranks of a vocabulary cut in pieces give, summed, what one rank gives. */
CASE(embedding_shards_sum_to_the_whole)
{
    enum { TOKENS = 40, COLS = 19, ROWS = 24, RANKS = 3 };
    float *table = probe_random(ROWS * COLS, WEFT_F32, 1.0, 1);
    int32_t *tokens = probe_alloc(TOKENS * sizeof *tokens);
    uint64_t random = 1;
    for (int t = 0; t < TOKENS; t++)
        tokens[t] = (int32_t)probe_pick(&random, ROWS);
    float *whole = probe_alloc(TOKENS * COLS * sizeof *whole);
    float *sum = probe_constant(TOKENS * COLS, 0.0f);
    PROBE_RUN(embedding_forward, .num_tokens = TOKENS, .batch = 1, .cols = COLS, .tokens = tokens,
              .num_rows = ROWS, .table = table, .y = whole);
    for (size_t r = 0; r < RANKS; r++) {
        float *part = probe_alloc(TOKENS * COLS * sizeof *part);
        PROBE_RUN(embedding_forward, .num_tokens = TOKENS, .batch = 1, .cols = COLS,
                  .tokens = tokens, .first_row = r * (ROWS / RANKS), .num_rows = ROWS / RANKS,
                  .table = table + r * (ROWS / RANKS) * COLS, .y = part);
        PROBE_RUN(add, .count = TOKENS * COLS, .a = sum, .b = part, .y = sum);
    }
    assert_memory_equal(sum, whole, TOKENS * COLS * sizeof *sum);
}

CASE(add_and_scale)
{
    static const size_t counts[] = {0, 1, 31, 40001};
    for (int form = 0; form < 4 * probe_num_dtypes(); form++) {
        probe_start(NULL);
        const weft_dtype dtype = probe_dtype(form / 4);
        const size_t count = counts[form % 4];
        void *a = probe_random(count, dtype, 1.0, 1), *b = probe_random(count, dtype, 1.0, 2);
        void *y = probe_alloc(count * weft_dtype_bytes(dtype));
        double *x = probe_read(a, count, dtype), *z = probe_read(b, count, dtype);
        double *sum = probe_doubles(count), *scaled = probe_doubles(count);
        for (size_t i = 0; i < count; i++) {
            sum[i] = probe_round((double)((float)x[i] + (float)z[i]), dtype);
            scaled[i] = probe_round((double)((float)x[i] * 0.37f), dtype);
        }
        PROBE_RUN(add, .count = count, .dtype = dtype, .a = a, .b = b, .y = y);
        probe_close(probe_read(y, count, dtype), sum, count, 0.0, "sum");
        PROBE_RUN(add, .count = count, .dtype = dtype, .a = a, .b = b, .y = b);
        probe_close(probe_read(b, count, dtype), sum, count, 0.0, "sum in place");
        PROBE_RUN(scale, .count = count, .dtype = dtype, .x = a, .factor = 0.37f);
        probe_close(probe_read(a, count, dtype), scaled, count, 0.0, "scaled");
    }
}

/* The value of half-precision bits with `mantissa_bits`, from their definition. */
static double decode(uint16_t bits, int mantissa_bits)
{
    const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const double fraction = ldexp(bits & ((1 << mantissa_bits) - 1), -mantissa_bits);
    double x;
    if (exponent == (1 << exponent_bits) - 1)
        x = fraction != 0.0 ? (double)NAN : (double)INFINITY;
    else
        x = exponent ? ldexp(1.0 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return bits & 0x8000 ? -x : x;
}

/* All 65536 numbers of both half precisions go to fp32 exactly and come back. */
CASE(halves_round_trip)
{
    enum { ALL = 65536 };
    static const weft_dtype halves[] = {WEFT_BF16, WEFT_F16};
    for (int h = 0; h < 2; h++) {
        probe_start(NULL);
        uint16_t *in = probe_alloc(ALL * sizeof *in), *out = probe_alloc(ALL * sizeof *out);
        float *wide = probe_alloc(ALL * sizeof *wide);
        for (int i = 0; i < ALL; i++)
            in[i] = (uint16_t)i;
        PROBE_RUN(cast, .count = ALL, .from_dtype = halves[h], .to_dtype = WEFT_F32, .from = in,
                  .to = wide);
        PROBE_RUN(cast, .count = ALL, .from_dtype = WEFT_F32, .to_dtype = halves[h], .from = wide,
                  .to = out);
        for (int i = 0; i < ALL; i++) {
            const double expected = decode(in[i], h ? 10 : 7);
            if (isnan(expected)) {
                assert_true(isnan(wide[i]) && isnan(decode(out[i], h ? 10 : 7)));
                continue;
            }
            assert_true((double)wide[i] == expected && in[i] == out[i]);
        }
    }
}

/* Random fp32 bit patterns, ties between neighbours, and the edges of the range. */
CASE(narrowing_rounds_to_nearest_even)
{
    enum { COUNT = 50000 };
    static const weft_dtype halves[] = {WEFT_BF16, WEFT_F16};
    for (int h = 0; h < 2; h++) {
        probe_start(NULL);
        const int mantissa_bits = h ? 10 : 7;
        float *in = probe_alloc(COUNT * sizeof *in);
        uint16_t *out = probe_alloc(COUNT * sizeof *out);
        uint64_t random = 4;
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits = (uint32_t)probe_pick(&random, (size_t)1 << 32);
            if (i % 4 == 1) /* half way between two bf16 numbers */
                bits = (bits & 0xffff0000u) | 0x8000u;
            memcpy(&in[i], &bits, sizeof bits);
            if (i % 4 == 2) /* the range of fp16, with ties */
                in[i] = (float)ldexp((double)(bits >> 20), (int)(bits & 31) - 27);
            if (i % 4 == 3)
                in[i] = (float)ldexp((double)(bits >> 8), (int)(bits & 31) - 40);
        }
        in[0] = 65519.996f;
        in[1] = 65520.0f;
        in[2] = 0x1p-25f;
        in[3] = 0x1.000002p-25f;
        in[4] = 3.4028235e38f;
        PROBE_RUN(cast, .count = COUNT, .from_dtype = WEFT_F32, .to_dtype = halves[h], .from = in,
                  .to = out);
        for (int i = 0; i < COUNT; i++) {
            double got = decode(out[i], mantissa_bits);
            if (isnan(in[i]))
                assert_true(isnan(got));
            else if (got != probe_round((double)in[i], halves[h]))
                fail_msg("%a becomes %a in %s", (double)in[i], got, weft_dtype_text(halves[h]));
        }
    }
}

CASE(casts_between_halves_and_copies)
{
    enum { COUNT = 1001 };
    uint16_t *bf16 = probe_random(COUNT, WEFT_BF16, 1.0, 1);
    uint16_t *fp16 = probe_alloc(COUNT * sizeof *fp16), *back = probe_alloc(COUNT * sizeof *back);
    float *wide = probe_random(COUNT, WEFT_F32, 1.0, 2), *copy = probe_alloc(COUNT * sizeof *copy);
    PROBE_RUN(cast, .count = COUNT, .from_dtype = WEFT_BF16, .to_dtype = WEFT_F16, .from = bf16,
              .to = fp16);
    PROBE_RUN(cast, .count = COUNT, .from_dtype = WEFT_F16, .to_dtype = WEFT_BF16, .from = fp16,
              .to = back);
    for (int i = 0; i < COUNT; i++)
        assert_true(decode(fp16[i], 10) == probe_round(decode(bf16[i], 7), WEFT_F16));
    for (int i = 0; i < COUNT; i++)
        assert_true(decode(back[i], 7) == probe_round(decode(fp16[i], 10), WEFT_BF16));
    PROBE_RUN(cast, .count = COUNT, .from_dtype = WEFT_F32, .to_dtype = WEFT_F32, .from = wide,
              .to = copy);
    assert_memory_equal(wide, copy, COUNT * sizeof *copy);
}

/* x = x / 2 + 1 / 2 from i, ten times: 1 + (i - 1) / 1024, in one of three widths. */
CASE(cores_multiply_and_add)
{
    float x[WEFT_MULTIPLY_ADD_CHAINS];
    double flops;
    weft_multiply_add_args args = {.rounds = 10, .a = 0.5f, .b = 0.5f, .x = x, .flops = &flops};
    assert_int_equal(weft_cpu_multiply_add(&args), WEFT_OK);
    for (int i = 0; i < WEFT_MULTIPLY_ADD_CHAINS; i++)
        assert_true(x[i] == 1.0f + (float)(i - 1) / 1024.0f);
    double lanes = flops / (2.0 * 10 * WEFT_MULTIPLY_ADD_CHAINS);
    assert_true(lanes == 4 || lanes == 8 || lanes == 16);
    double rate = weft_kernels_cpu_core_flops(WEFT_F32);
    assert_true(rate > 1e7 && rate < 1e13);
    double half = weft_kernels_cpu_core_flops(WEFT_BF16);
    assert_true(half >= 0 && half < 1e13);
    assert_true(weft_kernels_cpu_core_flops(WEFT_F16) == 0);
}

/* Rows at strides of their own, of lengths that divide into packs and that do not. */
CASE(casts_rows)
{
    static const struct {
        size_t rows, cols, from_stride, to_stride;
    } cases[] = {{1, 5, 0, 0}, {7, 24, 40, 24}, {300, 64, 64, 192}, {13, 33, 35, 50}, {3, 0, 0, 0}};
    for (int form = 0; form < 9 * 5; form++) {
        static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
        const weft_dtype from_dtype = dtypes[form % 3], to_dtype = dtypes[form / 3 % 3];
        const size_t rows = cases[form / 9].rows, cols = cases[form / 9].cols;
        const size_t from_stride = cases[form / 9].from_stride;
        const size_t to_stride = cases[form / 9].to_stride;
        probe_start(NULL);
        const size_t from_bytes = weft_dtype_bytes(from_dtype), bytes = weft_dtype_bytes(to_dtype);
        const size_t count = rows * (to_stride > cols ? to_stride : cols);
        char *from =
            probe_random(rows * (from_stride > cols ? from_stride : cols), from_dtype, 1.0, 1);
        char *to = probe_alloc(count * bytes), *expected = probe_alloc(count * bytes);
        PROBE_RUN(cast, .count = cols, .from_dtype = from_dtype, .to_dtype = to_dtype, .from = from,
                  .to = to, .rows = rows, .from_stride = from_stride, .to_stride = to_stride);
        for (size_t row = 0; row < rows; row++)
            PROBE_RUN(cast, .count = cols, .from_dtype = from_dtype, .to_dtype = to_dtype,
                      .from = from + row * from_stride * from_bytes,
                      .to = expected + row * to_stride * bytes);
        assert_memory_equal(to, expected, count * bytes);
    }
}
