#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/device/device.h"

enum {
    POOL_BYTES = 48 << 20,
    REFERENCE_BYTES = 256 << 20,
    GUARD_BYTES = 64,
    GUARD = 0x5a,
    MAX_BUFFERS = 256,
    NUM_SAMPLES = 64,
};

static weft_device *devices[PROBE_NUM_RUNS]; /* with CUDA: one */
static weft_device *note_device;
static weft_lane *note_lane;
static unsigned char *written; /* by byte: 1 */
static weft_lane *lanes[PROBE_NUM_RUNS];
static unsigned char *pool, *initial, *first_result, *reference;
static size_t pool_used, reference_used, guards[MAX_BUFFERS];
static int num_guards;

bool probe_on_cuda(void)
{
    const char *device = getenv("WEFT_TEST_DEVICE");
    return device && !strcmp(device, "cuda");
}

bool probe_is_emulated(void)
{
#ifdef WEFT_TESTS_EMULATED
    return probe_on_cuda();
#else
    return false;
#endif
}

bool probe_takes_case(void)
{
#ifdef WEFT_SANITIZED
    static uint64_t random = 1;
    return !probe_is_emulated() || probe_pick(&random, 3) == 0;
#else
    return true;
#endif
}

int probe_num_runs(void)
{
#ifdef WEFT_SANITIZED
    return 2;
#else
    return probe_is_emulated() ? 2 : PROBE_NUM_RUNS;
#endif
}

int probe_num_dtypes(void)
{
    return probe_on_cuda() ? 3 : 2;
}

weft_dtype probe_dtype(int i)
{
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16};
    return dtypes[i];
}

static weft_status create_lanes(void)
{
    const char *why = NULL;
    if (!probe_on_cuda()) {
        for (int run = 0; run < PROBE_NUM_RUNS; run++) {
            WEFT_TRY(weft_device_create_cpu(run + 1, 0, &devices[run]));
            WEFT_TRY(weft_lane_create(devices[run], 0, "probe", &lanes[run]));
        }
        pool = aligned_alloc(64, POOL_BYTES);
        return WEFT_OK;
    }
    if (weft_device_num_cuda(&why) == 0) {
        printf("skipped: no CUDA device: %s\n", why);
        exit(77);
    }
    WEFT_TRY(weft_device_create_cuda(0, 0, &devices[0]));
    for (int run = 0; run < PROBE_NUM_RUNS; run++)
        WEFT_TRY(weft_lane_create(devices[0], 0, "probe", &lanes[run]));
    void *pinned;
    WEFT_TRY(weft_device_alloc(devices[0], WEFT_SPACE_PINNED, POOL_BYTES, "probe", &pinned));
    pool = pinned;
    return WEFT_OK;
}

int probe_setup(void **state)
{
    (void)state;
    if (create_lanes() != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error_get()->text);
        return -1;
    }
    initial = malloc(POOL_BYTES);
    first_result = malloc(POOL_BYTES);
    reference = aligned_alloc(64, REFERENCE_BYTES);
    written = malloc(POOL_BYTES);
    if (!pool || !initial || !first_result || !reference || !written)
        return -1;
    if (weft_device_create_note(&note_device) != WEFT_OK ||
        weft_lane_create(note_device, 0, "note", &note_lane) != WEFT_OK)
        return -1;
    weft_notes_keep_ranges(note_device);
    return 0;
}

int probe_teardown(void **state)
{
    (void)state;
    for (int run = 0; run < PROBE_NUM_RUNS; run++)
        weft_lane_destroy(lanes[run]);
    if (probe_on_cuda())
        weft_device_free(devices[0], WEFT_SPACE_PINNED, pool, POOL_BYTES);
    else
        free(pool);
    for (int run = 0; run < PROBE_NUM_RUNS; run++)
        weft_device_destroy(devices[run]);
    weft_lane_destroy(note_lane);
    weft_device_destroy(note_device);
    free(written);
    free(initial);
    free(first_result);
    free(reference);
    return 0;
}

int probe_start(void **state)
{
    (void)state;
    pool_used = reference_used = 0;
    num_guards = 0;
    return 0;
}

void *probe_alloc(size_t bytes)
{
    size_t padded = (bytes + 63) / 64 * 64;
    if (num_guards == MAX_BUFFERS || padded + GUARD_BYTES > POOL_BYTES - pool_used)
        fail_msg("the probe's pool is too small");
    void *out = pool + pool_used;
    memset(out, 0xff, bytes);
    memset(pool + pool_used + bytes, GUARD, padded - bytes + GUARD_BYTES);
    guards[num_guards++] = pool_used + bytes;
    pool_used += padded + GUARD_BYTES;
    return out;
}

double *probe_doubles(size_t count)
{
    size_t bytes = (count * sizeof(double) + 63) / 64 * 64;
    if (bytes > REFERENCE_BYTES - reference_used)
        fail_msg("the probe's reference memory is too small");
    double *out = (double *)(void *)(reference + reference_used);
    memset(out, 0, bytes);
    reference_used += bytes;
    return out;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = *state ^ (*state >> 29);
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

size_t probe_pick(uint64_t *state, size_t below)
{
    return (size_t)(next(state) % below);
}

double probe_normal(uint64_t *state)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += (double)(next(state) >> 11) * 0x1p-53;
    return sum;
}

double probe_round(double x, weft_dtype dtype)
{
    if (x == 0.0 || !isfinite(x) || dtype == WEFT_F64)
        return x;
    const int digits = dtype == WEFT_BF16 ? 8 : dtype == WEFT_F16 ? 11 : 24;
    const int smallest = dtype == WEFT_F16 ? -24 : dtype == WEFT_BF16 ? -133 : -149;
    const double limit = dtype == WEFT_F16 ? 65536.0 : 0x1p128;
    int exponent;
    frexp(x, &exponent);
    int place = exponent - digits < smallest ? smallest : exponent - digits;
    double rounded = ldexp(nearbyint(ldexp(x, -place)), place);
    return fabs(rounded) >= limit ? copysign(INFINITY, x) : rounded;
}

/* The fp16 bits of a number that is one, and back. */
static uint16_t half_of(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    x = fabs(x);
    if (!isfinite(x))
        return sign | (isnan(x) ? 0x7e00 : 0x7c00);
    if (x < 0x1p-14)
        return sign | (uint16_t)ldexp(x, 24);
    const double fraction = frexp(x, &exponent) * 2.0 - 1.0;
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 | (unsigned)ldexp(fraction, 10));
}

static double value_of_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double x;
    if (exponent == 31)
        x = mantissa ? (double)NAN : (double)INFINITY;
    else
        x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -x : x;
}

static void write_one(void *to, size_t i, double x, weft_dtype dtype)
{
    float value = (float)probe_round(x, dtype);
    if (dtype == WEFT_F32) {
        ((float *)to)[i] = value;
    } else if (dtype == WEFT_F16) {
        ((uint16_t *)to)[i] = half_of((double)value);
    } else {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}

void *probe_random(size_t count, weft_dtype dtype, double spread, uint64_t seed)
{
    void *out = probe_alloc(count * weft_dtype_bytes(dtype));
    uint64_t state = seed * 977 + 5;
    for (size_t i = 0; i < count; i++)
        write_one(out, i, spread * probe_normal(&state), dtype);
    return out;
}

float *probe_constant(size_t count, float value)
{
    float *out = probe_alloc(count * sizeof *out);
    for (size_t i = 0; i < count; i++)
        out[i] = value;
    return out;
}

double *probe_read(const void *x, size_t count, weft_dtype dtype)
{
    double *out = probe_doubles(count);
    for (size_t i = 0; i < count; i++) {
        if (dtype == WEFT_F32) {
            out[i] = (double)((const float *)x)[i];
        } else if (dtype == WEFT_F16) {
            out[i] = value_of_half(((const uint16_t *)x)[i]);
        } else {
            uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            out[i] = (double)value;
        }
    }
    return out;
}

weft_lane *probe_lane(int run)
{
    return lanes[run];
}

void probe_before(int run)
{
    if (probe_is_emulated())
        setenv("WEFT_EMULATE_ORDER", run % 2 ? "backward" : "forward", 1);
    if (run == 0)
        memcpy(initial, pool, pool_used);
    else
        memcpy(pool, initial, pool_used);
}

void probe_finish(int run, weft_status status, const char *kernel)
{
    if (status == WEFT_OK)
        status = weft_lane_sync(lanes[run]);
    if (status != WEFT_OK)
        fail_msg("%s: %s", kernel, weft_error_get()->text);
    for (int i = 0; i < num_guards; i++) {
        size_t end = i + 1 < num_guards ? (guards[i] + 63) / 64 * 64 + GUARD_BYTES : pool_used;
        for (size_t at = guards[i]; at < end; at++) {
            if (pool[at] != GUARD)
                fail_msg("%s wrote beyond the end of buffer %d", kernel, i);
        }
    }
}

void probe_after(int run, weft_status status, const char *kernel)
{
    probe_finish(run, status, kernel);
    if (run == 0)
        memcpy(first_result, pool, pool_used);
    else if (memcmp(first_result, pool, pool_used))
        fail_msg("%s differs between %s 1 and %d", kernel, probe_on_cuda() ? "lanes" : "threads",
                 run + 1);
}

/* --- ranges --------------------------------------------------------------------------------- */

weft_lane *probe_note(void)
{
    weft_notes_clear(note_device);
    return note_lane;
}

/* Restores what the last call on the note device touches, and marks what it writes. */
static void restore(const weft_range *range)
{
    for (size_t row = 0; row < (range->rows ? range->rows : 1); row++) {
        const size_t at = (size_t)((const unsigned char *)range->base - pool) + row * range->stride;
        if (at + range->bytes > pool_used) /* not the pool's */
            continue;
        memcpy(pool + at, initial + at, range->bytes);
        if (range->writes)
            memset(written + at, 1, range->bytes);
    }
}

void probe_before_ranges(weft_status status, const char *kernel)
{
    size_t count;
    const weft_noted *notes = weft_notes(note_device, &count);
    if (status != WEFT_OK)
        fail_msg("%s: %s", kernel, weft_error_get()->text);
    memset(written, 0, pool_used);
    memset(pool, 0xa5, pool_used);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < notes[i].num_ranges; k++)
            restore(&weft_noted_ranges(note_device)[notes[i].first_range + k]);
    memcpy(initial, pool, pool_used);
}

void probe_after_ranges(weft_status status, const char *kernel)
{
    if (status == WEFT_OK)
        status = weft_lane_sync(lanes[0]);
    if (status != WEFT_OK)
        fail_msg("%s: %s", kernel, weft_error_get()->text);
    for (size_t i = 0; i < pool_used; i++)
        if (pool[i] != (written[i] ? first_result : initial)[i])
            fail_msg("%s: byte %zu: %s", kernel, i,
                     written[i] ? "it reads beyond its ranges" : "it writes beyond its ranges");
    memcpy(pool, first_result, pool_used);
}

double probe_tolerance(weft_dtype dtype, double fp32)
{
    return dtype != WEFT_F32 ? 1e-2 : probe_on_cuda() ? fmax(fp32, 1e-5) : fp32;
}

/* `floor`: an absolute error that an element may always have. */
static void close_enough(const double *got, const double *expected, size_t count, double tolerance,
                         double floor, const char *what)
{
    double size = 0.0, error = 0.0, mean = 0.0;
    for (size_t i = 0; i < count; i++) {
        size += expected[i] * expected[i];
        error += (got[i] - expected[i]) * (got[i] - expected[i]);
        mean += fabs(expected[i]) / (double)count;
    }
    if (!(sqrt(error) <= tolerance * sqrt(size) + floor * sqrt((double)count)))
        fail_msg("%s: relative error %g over %zu elements, allowed %g", what, sqrt(error / size),
                 count, tolerance);
    for (size_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - expected[i]) <= 100 * tolerance * (fabs(expected[i]) + mean) + floor))
            fail_msg("%s: element %zu is %.9g, expected %.9g", what, i, got[i], expected[i]);
    }
}

void probe_close(const double *got, const double *expected, size_t count, double tolerance,
                 const char *what)
{
    close_enough(got, expected, count, tolerance, 1e-30, what);
}

void probe_gradient(probe_loss loss, const void *context, double *x, size_t count,
                    const double *gradient, const double *before, double tolerance,
                    const char *what)
{
    double got[NUM_SAMPLES], expected[NUM_SAMPLES], noise = 0.0;
    uint64_t state = count;
    const size_t num = count < NUM_SAMPLES ? count : NUM_SAMPLES;
    for (size_t s = 0; s < num; s++) {
        const size_t i = num == count ? s : probe_pick(&state, count);
        const double kept = x[i], step = 1e-5 * (1.0 + fabs(kept));
        x[i] = kept + step;
        double above = loss(context);
        x[i] = kept - step;
        double below = loss(context);
        x[i] = kept;
        expected[s] = (above - below) / (2 * step);
        got[s] = gradient[i] - (before ? before[i] : 0.0);
        /* what the rounding of the two losses leaves of a difference of nothing */
        noise = fmax(noise, 2e-15 * (fabs(above) + fabs(below)) / step);
    }
    close_enough(got, expected, num, tolerance, noise, what);
}

AROUND(.set_up = probe_setup, .tear_down = probe_teardown, .before = probe_start)
