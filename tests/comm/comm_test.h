/* What the communicator tests share: a group (self on one rank, the world under a launcher), a
 * device and lanes. With WEFT_TEST_DEVICE=cuda that is the first GPU, which all ranks share, and
 * operands lie in its memory; with nccl, each rank has a GPU of its own, and the group is NCCL's.
 */
#ifndef WEFT_TESTS_COMM_COMM_TEST_H
#define WEFT_TESTS_COMM_COMM_TEST_H

#include <stdlib.h>

#include "comm/comm.h"
#include "tests/expect.h"

enum { TEST_NUM_LANES = 4, TEST_PINNED_BYTES = 4 << 20 };

typedef struct test_setup {
    weft_comm *comm, *world; /* the same one without NCCL */
    weft_device *device;
    weft_lane *lanes[TEST_NUM_LANES];
    weft_lane *copies; /* NULL: operands are the host's own arrays */
    int rank, size;
    bool nccl;
} test_setup;

/* A test that cannot start takes the others down with it. */
static inline void setup_must(weft_status status)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "setup: %s\n", weft_error_get()->text);
    exit(1);
}

static inline void test_setup_device(test_setup *t)
{
    const char *device = getenv("WEFT_TEST_DEVICE"), *why = NULL;
    int index = 0, num_wanted = 1, num;
    t->copies = NULL;
    t->nccl = device && strcmp(device, "nccl") == 0;
    if (!device || (strcmp(device, "cuda") != 0 && !t->nccl)) {
        setup_must(weft_device_create_cpu(1, 0, &t->device));
        return;
    }
    if (t->nccl)
        weft_comm_launched(NULL, NULL, &index, &num_wanted);
    num = weft_device_num_cuda(&why);
    if (num < num_wanted) {
        printf("skipped: no CUDA device%s: %s\n", num ? " for each rank" : "",
               num ? "too few" : why);
        exit(77);
    }
    setup_must(weft_device_create_cuda(index, 0, &t->device));
    setup_must(weft_lane_create(t->device, 0, "copies", &t->copies));
}

/* For pipelines, so that all kinds of operations go by NCCL. */
static inline void test_setup_group(test_setup *t)
{
    t->comm = t->world;
    if (!t->nccl)
        return;
    setup_must(weft_comm_use_nccl(t->world, t->device, WEFT_COMM_BY_NCCL, NULL));
    setup_must(weft_comm_split(t->world, 0, 0, "test", WEFT_PURPOSE_PIPELINE, &t->comm));
}

static inline void test_setup_init(test_setup *t)
{
    static const char *const names[TEST_NUM_LANES] = {"a", "b", "c", "d"};
    test_setup_device(t);
    if (weft_comm_launched(NULL, NULL, NULL, NULL))
        setup_must(weft_comm_create_world(&t->world));
    else
        setup_must(weft_comm_create_self(&t->world));
    test_setup_group(t);
    for (int i = 0; i < TEST_NUM_LANES; i++) {
        setup_must(weft_lane_create(t->device, 0, names[i], &t->lanes[i]));
        setup_must(weft_comm_reserve(t->comm, t->lanes[i], TEST_PINNED_BYTES));
    }
    t->rank = weft_comm_rank(t->comm);
    t->size = weft_comm_size(t->comm);
}

static inline int test_setup_finish(test_setup *t)
{
    for (int i = 0; i < TEST_NUM_LANES; i++)
        weft_lane_destroy(t->lanes[i]);
    weft_lane_destroy(t->copies);
    weft_device_destroy(t->device);
    if (t->comm != t->world)
        weft_comm_destroy(t->comm);
    weft_comm_destroy(t->world);
    return expect_finish();
}

/* An array as an operand: itself, or a copy of it on the GPU. */
static inline void *test_to_device(test_setup *t, void *array, size_t bytes)
{
    void *operand;
    if (!t->copies)
        return array;
    setup_must(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, bytes, "operand", &operand));
    setup_must(weft_lane_copy(t->copies, operand, array, bytes));
    setup_must(weft_lane_sync(t->copies));
    return operand;
}

/* How an operation that fails on its lane ended: where its caller enqueues more behind it, such as
 * the copy to the device, the caller may learn it before the lane is waited for. */
static inline weft_status test_lane_status(weft_lane *lane, weft_status enqueued)
{
    return enqueued ? enqueued : weft_lane_sync(lane);
}

/* What the operand has become, in the array; frees the operand. */
static inline void test_from_device(test_setup *t, void *array, void *operand, size_t bytes)
{
    if (!t->copies)
        return;
    setup_must(weft_lane_copy(t->copies, array, operand, bytes));
    setup_must(weft_lane_sync(t->copies));
    weft_device_free(t->device, WEFT_SPACE_DEVICE, operand, bytes);
}

/* The value of fp16 bits, and the bits nearest to a value that is a number: by definition, one at a
 * time. */
static inline double test_half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31)
        value = mantissa ? (double)NAN : (double)INFINITY;
    return bits & 0x8000 ? -value : value;
}

static inline uint16_t test_half_nearest(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (size >= 65520)
        return (uint16_t)(sign | 0x7c00);
    int exponent = size < 0x1p-14 ? -14 : ilogb(size);
    double steps = nearbyint(ldexp(size, 10 - exponent)); /* 1024 and more where it is normal */
    return (uint16_t)(sign | (uint16_t)((exponent + 14) * 1024 + (int)steps));
}

/* A number that every rank can compute for every rank. */
static inline uint64_t test_hash(uint64_t a, uint64_t b)
{
    uint64_t x = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xc2b2ae3d27d4eb4fu;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

/* Numbers whose sums round and depend on the order; what is random bits is no NaN. */
static inline void test_fill(void *x, weft_dtype dtype, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = test_hash(seed, i);
        double real = ((double)(hash % 2000003) - 1000001.0) / 1019.0;
        float narrow = (float)real;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        if (dtype == WEFT_F32)
            ((float *)x)[i] = narrow;
        else if (dtype == WEFT_F64)
            ((double *)x)[i] = real;
        else if (dtype == WEFT_BF16)
            ((uint16_t *)x)[i] = (uint16_t)(bits >> 16);
        else if (dtype == WEFT_F16)
            ((uint16_t *)x)[i] = test_half_nearest(real);
        else if (dtype == WEFT_I32)
            ((uint32_t *)x)[i] = (uint32_t)hash;
        else
            ((uint64_t *)x)[i] = hash;
    }
}

#endif
