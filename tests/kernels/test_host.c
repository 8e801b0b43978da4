/* Kernels on host memory: the bits of a CPU device's, whatever the number of threads, on the main
 * thread, on several at once and on a lane's; with WEFT_TEST_DEVICE=cuda on that of a CUDA device's
 * lane, whose pinned memory they work on. */
#include "kernels/host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/core/check.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#define REFUSED(call)                                                                              \
    do {                                                                                           \
        assert_int_equal((call), WEFT_INTERNAL);                                                   \
        weft_error_clear();                                                                        \
    } while (0)

enum { MOST = 40001 };
static const size_t counts[] = {0, 1, 2, 15, 17, 35, 8191, 8193, 16384, 16385, 30011, MOST};
enum { NUM_COUNTS = sizeof counts / sizeof *counts };

/* All that the kernels read and write. */
typedef struct weights {
    float master[MOST], m[MOST], v[MOST], grad[MOST], y[MOST], scale;
    uint16_t weight[MOST], low[MOST];
    float whole[MOST];   /* weights in fp32, beside the masters */
    uint16_t half[MOST]; /* in fp16 */
    double sum;
} weights;

static weft_device *cpu;
static weft_lane *lane;
static weights host, device;

static int open_lane(void **unused)
{
    (void)unused;
    OK(weft_device_create_cpu(3, 0, &cpu));
    OK(weft_lane_create(cpu, 0, "compute", &lane));
    return 0;
}

static int close_lane(void **unused)
{
    (void)unused;
    weft_lane_destroy(lane);
    weft_device_destroy(cpu);
    return 0;
}

static void fill(weights *s)
{
    uint64_t x = 88172645463325252;
    memset(s, 0xff, sizeof *s);
    for (size_t i = 0; i < MOST; i++) {
        float values[3];
        for (int j = 0; j < 3; j++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            values[j] = (float)((double)(x >> 11) / (double)(1ull << 53) - 0.5);
        }
        s->master[i] = values[0], s->grad[i] = values[1], s->y[i] = values[2];
        s->m[i] = 0.1f * values[1], s->v[i] = values[2] * values[2];
    }
    s->scale = 0.25f;
    s->sum = 3;
}

typedef enum form { ALONE, WHOLE, ROUNDED, HALF, SPLIT, NUM_FORMS } form;

static weft_adamw_args step_of(weights *s, size_t count, form f, bool scaled)
{
    return WEFT_ARGS(weft_adamw_args, .count = count, .master = f == SPLIT ? NULL : s->master,
                     .m = s->m, .v = s->v, .low = f == SPLIT ? s->low : NULL, .grad = s->grad,
                     .grad_scale = scaled ? &s->scale : NULL,
                     .weight = f == ALONE   ? NULL
                               : f == WHOLE ? (void *)s->whole
                               : f == HALF  ? (void *)s->half
                                            : (void *)s->weight,
                     .dtype = f == ALONE || f == WHOLE ? WEFT_F32
                              : f == HALF              ? WEFT_F16
                                                       : WEFT_BF16,
                     .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f,
                     .weight_decay = 0.1f, .step = 3);
}

/* Every kernel in turn on the host (threads from 1), or on the lane (threads 0). */
static weft_status run(weights *s, size_t count, form f, int threads)
{
#define RUN(kernel, ...)                                                                           \
    do {                                                                                           \
        const weft_##kernel##_args args_ = __VA_ARGS__;                                            \
        weft_status status_ =                                                                      \
            threads ? weft_host_##kernel(&args_, threads) : weft_##kernel(lane, &args_);           \
        if (status_ != WEFT_OK)                                                                    \
            return status_;                                                                        \
    } while (0)
    if (f == SPLIT)
        RUN(split_master, WEFT_ARGS(weft_split_master_args, .count = count, .master = s->master,
                                    .weight = s->weight, .low = s->low));
    RUN(adamw, step_of(s, count, f, count % 2));
    if (f == SPLIT)
        RUN(join_master, WEFT_ARGS(weft_join_master_args, .count = count, .weight = s->weight,
                                   .low = s->low, .master = s->master));
    if (f == ALONE) {
        RUN(split_master, WEFT_ARGS(weft_split_master_args, .count = count, .master = s->master,
                                    .weight = s->weight));
        RUN(cast, WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = WEFT_F32,
                            .to_dtype = WEFT_F16, .from = s->master, .to = s->half));
    }
    RUN(add, WEFT_ARGS(weft_add_args, .count = count, .dtype = WEFT_F32, .a = s->y, .b = s->grad,
                       .y = s->y));
    RUN(sum_squares, WEFT_ARGS(weft_sum_squares_args, .count = count, .x = s->y, .sum = &s->sum));
#undef RUN
    if (!threads) {
        if (weft_lane_zero(lane, s->grad, count * sizeof *s->grad) != WEFT_OK)
            return WEFT_INTERNAL;
        return weft_lane_sync(lane);
    }
    return weft_host_zero(s->grad, count * sizeof *s->grad, threads);
}

CASE(bits_are_those_of_a_device)
{
    for (int c = 0; c < NUM_COUNTS; c++)
        for (int f = 0; f < NUM_FORMS; f++) {
            fill(&device);
            OK(run(&device, counts[c], (form)f, 0));
            for (int threads = 1; threads <= 3; threads++) {
                fill(&host);
                OK(run(&host, counts[c], (form)f, threads));
                assert_memory_equal(&host, &device, sizeof host);
            }
        }
    assert_true(device.sum > 4 && device.grad[0] == 0); /* they did something */
}

CASE(large_memory_is_cleared_whole)
{
    const size_t bytes = ((size_t)3 << 20) + 5;
    char *memory = malloc(bytes + 1);
    assert_non_null(memory);
    for (int threads = 1; threads <= 3; threads++) {
        memset(memory, 7, bytes + 1);
        OK(weft_host_zero(memory, bytes, threads));
        assert_true(memory[bytes] == 7);
        for (size_t i = 0; i < bytes; i++)
            assert_true(memory[i] == 0);
    }
    free(memory);
}

typedef struct job {
    weights *s;
    int threads, before, after;
    weft_status status;
} job;

static int own_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static void *run_job(void *context)
{
    job *j = context;
    j->before = own_threads();
    for (int i = 0; i < 5 && j->status == WEFT_OK; i++) {
        fill(j->s);
        j->status = run(j->s, MOST, SPLIT, j->threads);
    }
    j->after = own_threads();
    return NULL;
}

/* Each with its own number, which its other work does not get. */
CASE(threads_do_not_disturb_each_other)
{
    job jobs[2] = {{.s = &host, .threads = 1}, {.threads = 2}};
    pthread_t threads[2];
    jobs[1].s = malloc(sizeof(weights));
    assert_non_null(jobs[1].s);
    fill(&device);
    OK(run(&device, MOST, SPLIT, 0));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        OK(jobs[i].status);
        assert_memory_equal(jobs[i].s, &device, sizeof device);
        assert_int_equal(jobs[i].before, jobs[i].after);
    }
    free(jobs[1].s);
}

typedef struct lane_args {
    weights *s;
    int threads;
} lane_args;

static weft_status run_on_lane(const void *args)
{
    const lane_args *a = args;
    return run(a->s, MOST, ROUNDED, a->threads);
}

/* On the thread of a lane, of a CUDA device where the test has one, in its pinned memory. */
CASE(lanes_may_call)
{
    const char *wish = getenv("WEFT_TEST_DEVICE");
    weft_device *other = NULL;
    weft_lane *host_lane;
    void *pinned;
    if (wish && strcmp(wish, "cuda") == 0) {
        if (weft_device_num_cuda(NULL) == 0)
            skip();
        OK(weft_device_create_cuda(0, 0, &other));
    } else {
        OK(weft_device_create_cpu(1, 0, &other));
    }
    OK(weft_lane_create(other, 0, "host", &host_lane));
    OK(weft_device_alloc(other, WEFT_SPACE_PINNED, sizeof(weights), "state", &pinned));
    fill(&device);
    OK(run(&device, MOST, ROUNDED, 0));
    for (int threads = 1; threads <= 2; threads++) {
        fill(pinned);
        OK(weft_lane_submit(host_lane, "host step", run_on_lane, &(lane_args){pinned, threads},
                            sizeof(lane_args)));
        OK(weft_lane_sync(host_lane));
        assert_memory_equal(pinned, &device, sizeof device);
    }
    weft_device_free(other, WEFT_SPACE_PINNED, pinned, sizeof(weights));
    weft_lane_destroy(host_lane);
    weft_device_destroy(other);
}

CASE(wrong_arguments_are_refused)
{
    fill(&host);
    weft_adamw_args step = step_of(&host, 10, WHOLE, false);
    REFUSED(weft_host_adamw(&step, 0));
    REFUSED(weft_host_adamw(&step, -1));
    step.step = 0;
    REFUSED(weft_host_adamw(&step, 1));
    step = step_of(&host, 10, SPLIT, false);
    step.dtype = WEFT_F32;
    REFUSED(weft_host_adamw(&step, 1));
    step.struct_bytes = 0;
    REFUSED(weft_host_adamw(&step, 1));
    REFUSED(weft_host_add(&WEFT_ARGS(weft_add_args, .count = 1, .dtype = WEFT_F16, .a = &host,
                                     .b = &host, .y = &host),
                          1));
    REFUSED(weft_host_sum_squares(&WEFT_ARGS(weft_sum_squares_args, .count = 1, .x = host.y), 1));
    REFUSED(weft_host_zero(NULL, 1, 1));
    REFUSED(weft_host_zero(&host, 1, 0));
    OK(weft_host_zero(NULL, 0, 1));
}

AROUND(.set_up = open_lane, .tear_down = close_lane)
