/* Dropout and random initialisation against core/rng.h, number by number. */
#include "probe.h"

#include <math.h>

#include "core/rng.h"

typedef struct dropout_case {
    size_t count;
    const double *keep; /* 0 or 1 / (1 - p) */
    double *x, *residual, *dy;
} dropout_case;

static double dropout_loss(const void *context)
{
    const dropout_case *d = context;
    double loss = 0.0;
    for (size_t i = 0; i < d->count; i++)
        loss += d->dy[i] * (d->keep[i] * d->x[i] + (d->residual ? d->residual[i] : 0.0));
    return loss;
}

/* batch > 0: rows are those of tokens that an index counts. */
static void check_dropout(size_t rows, size_t cols, uint64_t first_row, float p, weft_dtype dtype,
                          int form, size_t batch)
{
    probe_start(NULL);
    const size_t num_index = batch ? ((size_t)first_row + rows) / batch + 1 : 0;
    int32_t *index = probe_alloc(num_index * sizeof *index);
    for (size_t i = 0; i < num_index; i++)
        index[i] = (int32_t)(i % 3 * 131072 + 7 * i);
    const uint64_t seed = UINT64_C(0x123456789abcdef0), stream = UINT64_C(0xfedcba9876543210);
    const size_t count = rows * cols;
    void *x = probe_random(count, dtype, 1.0, 1), *dy = probe_random(count, dtype, 1.0, 2);
    void *residual = form ? probe_random(count, dtype, 1.0, 3) : NULL;
    void *y = form == 2 ? residual : probe_alloc(count * weft_dtype_bytes(dtype));
    void *dx = probe_alloc(count * weft_dtype_bytes(dtype));
    double *keep = probe_doubles(count), *expected = probe_doubles(count);
    dropout_case d = {.count = count,
                      .keep = keep,
                      .x = probe_read(x, count, dtype),
                      .residual = residual ? probe_read(residual, count, dtype) : NULL,
                      .dy = probe_read(dy, count, dtype)};
    for (size_t i = 0; i < count; i++) {
        uint64_t row = first_row + i / cols;
        if (batch)
            row = (uint64_t)index[row / batch] * batch + row % batch;
        float u = weft_rng_uniform(seed, stream, row * cols + i % cols);
        keep[i] = u < p ? 0.0 : 1.0 / (1.0 - (double)p);
        expected[i] = keep[i] * d.x[i] + (d.residual ? d.residual[i] : 0.0);
    }
    PROBE_RUN(dropout, .rows = rows, .cols = cols, .first_row = first_row, .dtype = dtype, .x = x,
              .residual = residual, .y = y, .p = p, .seed = seed, .stream = stream,
              .index = batch ? index : NULL, .batch = batch);
    double *got = probe_read(y, count, dtype);
    probe_close(got, expected, count, probe_tolerance(dtype, 1e-6), "dropout");
    for (size_t i = 0; i < count; i++)
        if (keep[i] == 0.0)
            assert_true(got[i] == (d.residual ? d.residual[i] : 0.0));
    PROBE_RUN(dropout, .rows = rows, .cols = cols, .first_row = first_row, .dtype = dtype, .x = dy,
              .y = dx, .p = p, .seed = seed, .stream = stream, .index = batch ? index : NULL,
              .batch = batch);
    probe_gradient(dropout_loss, &d, d.x, count, probe_read(dx, count, dtype), NULL,
                   probe_tolerance(dtype, 1e-5), "dropout backward");
}

CASE(dropout_draws_the_scalar_numbers)
{
    /* Rows start at every remainder of a Philox block, and one call crosses 2^32 blocks. */
    const uint64_t crossing = (UINT64_C(1) << 34) / 1031;
    for (int form = 0; form < 3 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 3);
        for (uint64_t first = 0; first < 5; first++) {
            check_dropout(1, 1, first, 0.5f, dtype, form % 3, 0);
            check_dropout(3, 7, first, 0.1f, dtype, form % 3, 0);
        }
        check_dropout(37, 1031, crossing - 18, 0.1f, dtype, form % 3, 0);
        check_dropout(5, 33, 11, 0.0f, dtype, form % 3, 0);
        check_dropout(5, 33, 11, 0.999f, dtype, form % 3, 0);
        check_dropout(29, 33, 0, 0.1f, dtype, form % 3, 3);
        check_dropout(31, 64, 5, 0.1f, dtype, form % 3, 4);
        check_dropout(3, 4104, 1, 0.5f, dtype, form % 3, 1);
    }
}

/* A draw equal to p is kept, one below it is dropped, for the p that stand on a draw. */
CASE(dropout_compares_exactly)
{
    float *x = probe_constant(1, 1.0f), *y = probe_alloc(sizeof *y);
    for (uint64_t row = 0; row < 50; row++) {
        float u = weft_rng_uniform(7, 8, row);
        const float ps[] = {u, nextafterf(u, 2.0f)};
        for (int i = 0; i < 2; i++) {
            PROBE_RUN(dropout, .rows = 1, .cols = 1, .first_row = row, .x = x, .y = y, .p = ps[i],
                      .seed = 7, .stream = 8);
            assert_true((*y == 0.0f) == (i == 1));
        }
    }
}

/* Cuts a global tensor [G0, G1, G2] into pieces of `local`, the last ones reaching beyond it. */
static void check_shards(const size_t *global, const size_t *local, int num_dims, weft_dtype dtype)
{
    probe_start(NULL);
    const uint64_t seed = 42, stream = weft_rng_stream_of("layer.weight");
    const size_t bytes = weft_dtype_bytes(dtype);
    size_t g[3] = {1, 1, 1}, l[3] = {1, 1, 1};
    for (int d = 0; d < num_dims; d++) {
        g[d] = global[d];
        l[d] = local[d];
    }
    const size_t count = g[0] * g[1] * g[2], local_count = l[0] * l[1] * l[2];
    unsigned char *whole = probe_alloc(count * bytes), *part = probe_alloc(local_count * bytes);
    weft_random_normal_args args = {.struct_bytes = sizeof args,
                                    .num_dims = num_dims,
                                    .seed = seed,
                                    .stream = stream,
                                    .mean = 0.5f,
                                    .std = 0.02f,
                                    .dtype = dtype,
                                    .x = whole};
    for (int d = 0; d < num_dims; d++)
        args.global_dims[d] = args.local_dims[d] = g[d];
    for (int run = 0; run < PROBE_NUM_RUNS; run++) {
        probe_before(run);
        probe_after(run, weft_random_normal(probe_lane(run), &args), "random_normal");
    }
    double *values = probe_read(whole, count, dtype);
    for (size_t i = 0; i < count; i++) {
        double normal = (double)weft_rng_normal(seed, stream, i);
        double expected =
            probe_round((double)(float)((double)0.5f + (double)0.02f * normal), dtype);
        assert_true(values[i] == expected);
    }
    for (size_t a = 0; a < g[0]; a += l[0]) {
        for (size_t b = 0; b < g[1]; b += l[1]) {
            for (size_t c = 0; c < g[2]; c += l[2]) {
                const size_t start[3] = {a, b, c};
                args.x = part;
                for (int d = 0; d < num_dims; d++) {
                    args.start[d] = start[d];
                    args.local_dims[d] = l[d];
                }
                memset(part, 0xff, local_count * bytes);
                for (int run = 0; run < PROBE_NUM_RUNS; run++) {
                    probe_before(run);
                    probe_after(run, weft_random_normal(probe_lane(run), &args), "random_normal");
                }
                static const unsigned char zero[4] = {0};
                for (size_t i = 0; i < local_count; i++) {
                    size_t x = a + i / (l[1] * l[2]), y = b + i / l[2] % l[1], z = c + i % l[2];
                    bool inside = x < g[0] && y < g[1] && z < g[2];
                    const void *expected =
                        inside ? whole + ((x * g[1] + y) * g[2] + z) * bytes : zero;
                    assert_memory_equal(part + i * bytes, expected, bytes);
                }
            }
        }
    }
}

CASE(shards_reassemble_bit_for_bit)
{
    for (int form = 0; form < probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form);
        check_shards((size_t[]){17}, (size_t[]){5}, 1, dtype);
        check_shards((size_t[]){20001}, (size_t[]){9001}, 1, dtype);
        check_shards((size_t[]){13, 33}, (size_t[]){4, 33}, 2, dtype);
        check_shards((size_t[]){13, 33}, (size_t[]){13, 8}, 2, dtype);
        check_shards((size_t[]){5, 7, 9}, (size_t[]){2, 3, 4}, 3, dtype);
        check_shards((size_t[]){101, 401}, (size_t[]){51, 201}, 2, dtype);
    }
    check_shards((size_t[]){1}, (size_t[]){1}, 0, WEFT_F32);
}
