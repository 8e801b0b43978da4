/* Support for kernel tests: tracked buffers, runs at several thread counts, independent fp64
 * references and finite differences.
 *
 * Buffers come from one pool. They start as NaN (every byte 0xff), stand between guards, and
 * PROBE_RUN runs a kernel with 1, 2 and 3 threads from the same state of the whole pool: it fails
 * when any byte differs between these runs, or a guard was touched.
 *
 * With WEFT_TEST_DEVICE=cuda the runs are on three lanes of the first CUDA device instead, with the
 * pool in pinned memory, which both sides read; where there is no such device the program says so
 * and is skipped. On an emulated one there are two runs, threads and blocks forward and backward.
 */
#ifndef WEFT_TESTS_KERNELS_PROBE_H
#define WEFT_TESTS_KERNELS_PROBE_H

#include <stdbool.h>

#include <weft/kernels.h>

#include "tests/core/check.h"

enum { PROBE_NUM_RUNS = 3 };
/* One case in three, drawn, on an emulated device beneath a sanitizer, where each takes long (the
 * same cases all run on one without, nightly); elsewhere each. */
bool probe_takes_case(void);
/* Of these, how many PROBE_RUN makes: fewer beneath a sanitizer, and on an emulated device, which
 * has one order of threads and its reverse. */
int probe_num_runs(void);

/* True where kernels run on a CUDA device: tests of what only the CPU has skip themselves. */
bool probe_on_cuda(void);
bool probe_is_emulated(void); /* such a device is slow: tests of many sizes do fewer */
/* The dtypes of activations that the device has: probe_dtype(0) .. (probe_num_dtypes() - 1). */
int probe_num_dtypes(void);
weft_dtype probe_dtype(int i);

int probe_setup(void **state); /* once a program: devices with 1, 2 and 3 threads */
int probe_teardown(void **state);
int probe_start(void **state); /* before each test: forgets all buffers */

/* A buffer of NaN. */
void *probe_alloc(size_t bytes);
/* fp64 for references: zeroed, not part of the pool's comparisons. */
double *probe_doubles(size_t count);
/* `count` numbers of about normal distribution times `spread`, rounded to dtype. */
void *probe_random(size_t count, weft_dtype dtype, double spread, uint64_t seed);
/* A buffer of copies of `value`. */
float *probe_constant(size_t count, float value);
/* What a buffer holds, as fp64. */
double *probe_read(const void *x, size_t count, weft_dtype dtype);
/* `x` rounded to dtype (nearest, ties to even), by arithmetic on the exponent alone. */
double probe_round(double x, weft_dtype dtype);

weft_lane *probe_lane(int run);
void probe_before(int run);
void probe_after(int run, weft_status status, const char *kernel);
/* The part of probe_after() that looks at one run alone: it succeeded and touched no guard. For
 * kernels whose rounding may depend on the number of threads. */
void probe_finish(int run, weft_status status, const char *kernel);

/* On the CPU, behind these runs: the kernel touches what the device `note` says. It runs once more
 * with other bytes wherever it noted no range, and has the same results; all else stays as it was.
 */
weft_lane *probe_note(void);
void probe_before_ranges(weft_status status, const char *kernel);
void probe_after_ranges(weft_status status, const char *kernel);

#define PROBE_RUN(kernel, ...)                                                                     \
    do {                                                                                           \
        for (int run_ = 0; run_ < probe_num_runs(); run_++) {                                      \
            probe_before(run_);                                                                    \
            weft_status status_ =                                                                  \
                weft_##kernel(probe_lane(run_), &WEFT_ARGS(weft_##kernel##_args, __VA_ARGS__));    \
            probe_after(run_, status_, #kernel);                                                   \
        }                                                                                          \
        if (!probe_on_cuda()) {                                                                    \
            probe_before(1);                                                                       \
            probe_before_ranges(                                                                   \
                weft_##kernel(probe_note(), &WEFT_ARGS(weft_##kernel##_args, __VA_ARGS__)),        \
                #kernel);                                                                          \
            probe_after_ranges(                                                                    \
                weft_##kernel(probe_lane(0), &WEFT_ARGS(weft_##kernel##_args, __VA_ARGS__)),       \
                #kernel);                                                                          \
        }                                                                                          \
    } while (0)

/* Fails unless |got - expected| / |expected| <= tolerance in the 2-norm, and no single element is
 * off by more than 100 times that of its size plus the mean size. */
void probe_close(const double *got, const double *expected, size_t count, double tolerance,
                 const char *what);
/* The tolerance of probe_close: `fp32` for fp32 (on CUDA at least 1e-5), 1e-2 for bf16 and fp16. */
double probe_tolerance(weft_dtype dtype, double fp32);

/* A loss in fp64 that reads x through its context. */
typedef double (*probe_loss)(const void *context);
/* Compares gradient[i] - before[i] (before: optional) with the central difference of `loss` in
 * x[i], for all elements or, where there are many, for a sample of them. */
void probe_gradient(probe_loss loss, const void *context, double *x, size_t count,
                    const double *gradient, const double *before, double tolerance,
                    const char *what);

/* A deterministic number below `below`. */
size_t probe_pick(uint64_t *state, size_t below);
/* A deterministic number of about normal distribution. */
double probe_normal(uint64_t *state);

#endif
