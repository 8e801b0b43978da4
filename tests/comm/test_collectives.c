/* Conformance of every collective on any backend and any number of ranks: each result is compared
 * with one computed here, from numbers that every rank can make for every rank. With the argument
 * "pieces" everything is cut as if counts could not pass a few bytes; with "window" and "messages"
 * reductions and gathers all go that way, where it is else a matter of size; with "nodes" the group
 * is a control group whose ranks, in an order of their own, are two or three a node. */
#include "comm/mpi/mpi_comm.h"
#include "tests/comm/comm_test.h"

static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_F64, WEFT_I32, WEFT_I64};
static const size_t counts[] = {0, 1, 3, 7, 64, 1000, 20001};
enum { MAX_COUNT = 20001, NUM_COUNTS = sizeof counts / sizeof counts[0] };

/* bf16 by value, one at a time: the reference for the vectorised code. */
static float bf16_value(uint16_t bits)
{
    float value;
    uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t bf16_nearest(float value)
{
    uint16_t truncated = 0, best;
    uint32_t wide;
    memcpy(&wide, &value, 4);
    truncated = (uint16_t)(wide >> 16);
    uint16_t next = (uint16_t)(truncated + 1); /* away from zero */
    double below = fabs((double)value - bf16_value(truncated));
    double above = fabs((double)bf16_value(next) - value);
    if (below == above)
        best = truncated % 2 == 0 ? truncated : next;
    else
        best = below < above ? truncated : next;
    return best;
}

/* Element i of a rank's input. */
static void put_input(weft_dtype dtype, int rank, size_t i, void *at)
{
    uint64_t hash = test_hash((uint64_t)rank, i);
    double real = ((double)(hash % 2000001) - 1000000.0) / 1017.0; /* sums round */
    switch (dtype) {
    case WEFT_F32:
        *(float *)at = (float)real;
        break;
    case WEFT_BF16:
        *(uint16_t *)at = bf16_nearest((float)real);
        break;
    case WEFT_F64:
        *(double *)at = real;
        break;
    case WEFT_I32:
        *(int32_t *)at = (int32_t)(uint32_t)hash;
        break;
    case WEFT_I64:
        *(int64_t *)at = (int64_t)hash;
        break;
    case WEFT_F16:
        *(uint16_t *)at = test_half_nearest((double)(float)real);
        break;
    case WEFT_U8:
        *(uint8_t *)at = (uint8_t)hash;
        break;
    }
}

static double combine(weft_reduce reduce, double a, double b)
{
    if (reduce == WEFT_REDUCE_MAX)
        return a > b ? a : b;
    return a < b ? a : b;
}

/* Element i of the reduction over all ranks, in rank order. */
static void put_reduced(weft_dtype dtype, weft_reduce reduce, int size, size_t i, void *at)
{
    union {
        float f32;
        uint16_t bits;
        double f64;
        int32_t i32;
        int64_t i64;
    } in, acc;
    put_input(dtype, 0, i, &acc);
    bool half = dtype == WEFT_F16, narrow = half || dtype == WEFT_BF16;
    float wide = half ? (float)test_half_value(acc.bits) : bf16_value(acc.bits);
    bool sum = reduce == WEFT_REDUCE_SUM;
    for (int rank = 1; rank < size; rank++) {
        put_input(dtype, rank, i, &in);
        if (dtype == WEFT_F32)
            acc.f32 = sum ? acc.f32 + in.f32 : (float)combine(reduce, acc.f32, in.f32);
        if (dtype == WEFT_F64)
            acc.f64 = sum ? acc.f64 + in.f64 : combine(reduce, acc.f64, in.f64);
        float next = half ? (float)test_half_value(in.bits) : bf16_value(in.bits);
        if (narrow)
            wide = sum ? wide + next : (float)combine(reduce, wide, next);
        if (dtype == WEFT_I32)
            acc.i32 = sum ? (int32_t)((uint32_t)acc.i32 + (uint32_t)in.i32)
                          : (int32_t)combine(reduce, acc.i32, in.i32);
        if (dtype == WEFT_I64 && sum)
            acc.i64 = (int64_t)((uint64_t)acc.i64 + (uint64_t)in.i64);
        if (dtype == WEFT_I64 && !sum && (in.i64 > acc.i64) == (reduce == WEFT_REDUCE_MAX))
            acc.i64 = in.i64;
    }
    if (narrow)
        acc.bits = half ? test_half_nearest((double)wide) : bf16_nearest(wide);
    memcpy(at, &acc, weft_dtype_bytes(dtype));
}

static char *input_of(weft_dtype dtype, int rank, size_t first, size_t count)
{
    size_t element = weft_dtype_bytes(dtype);
    char *data = malloc(count * element + 1);
    for (size_t i = 0; i < count; i++)
        put_input(dtype, rank, first + i, data + i * element);
    return data;
}

static size_t num_wrong_reduced(weft_dtype dtype, weft_reduce reduce, int size, size_t first,
                                size_t count, const char *got)
{
    size_t element = weft_dtype_bytes(dtype), num_wrong = 0;
    for (size_t i = 0; i < count; i++) {
        char wanted[8];
        put_reduced(dtype, reduce, size, first + i, wanted);
        num_wrong += memcmp(wanted, got + i * element, element) != 0;
    }
    return num_wrong;
}

static void test_all_reduce(test_setup *t, weft_dtype dtype, weft_reduce reduce, size_t count)
{
    char *buffer = input_of(dtype, t->rank, 0, count);
    size_t bytes = count * weft_dtype_bytes(dtype);
    void *operand = test_to_device(t, buffer, bytes);
    EXPECT_OK(weft_all_reduce(t->comm, t->lanes[0], operand, count, dtype, reduce));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, buffer, operand, bytes);
    size_t num_wrong = num_wrong_reduced(dtype, reduce, t->size, 0, count, buffer);
    EXPECT(num_wrong == 0, "all_reduce %s %d of %zu on %d ranks: %zu wrong", weft_dtype_text(dtype),
           reduce, count, t->size, num_wrong);
    free(buffer);
}

static void test_reduce_scatter(test_setup *t, weft_dtype dtype, weft_reduce reduce, size_t count,
                                bool in_place)
{
    size_t element = weft_dtype_bytes(dtype), first = (size_t)t->rank * count;
    size_t bytes = count * element, all_bytes = bytes * (size_t)t->size;
    char *send = input_of(dtype, t->rank, 0, count * (size_t)t->size);
    char *apart = calloc(1, bytes + 1);
    char *recv = in_place ? send + first * element : apart;
    char *sent = test_to_device(t, send, all_bytes), *received = test_to_device(t, apart, bytes);
    EXPECT_OK(weft_reduce_scatter(t->comm, t->lanes[0], sent,
                                  in_place ? sent + first * element : received, count, dtype,
                                  reduce));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, send, sent, all_bytes);
    test_from_device(t, apart, received, bytes);
    size_t num_wrong = num_wrong_reduced(dtype, reduce, t->size, first, count, recv);
    EXPECT(num_wrong == 0, "reduce_scatter %s %d of %zu on %d ranks, in place %d: %zu wrong",
           weft_dtype_text(dtype), reduce, count, t->size, in_place, num_wrong);
    free(apart);
    free(send);
}

static void test_all_gather(test_setup *t, weft_dtype dtype, size_t count, bool in_place)
{
    size_t bytes = count * weft_dtype_bytes(dtype);
    char *apart = input_of(dtype, t->rank, 0, count);
    char *recv = malloc(bytes * (size_t)t->size + 1);
    char *own = recv + (size_t)t->rank * bytes;
    memset(recv, 0x5a, bytes * (size_t)t->size + 1);
    if (in_place)
        memcpy(own, apart, bytes);
    size_t recv_bytes = bytes * (size_t)t->size + 1;
    char *sent = test_to_device(t, apart, bytes), *received = test_to_device(t, recv, recv_bytes);
    EXPECT_OK(weft_all_gather(t->comm, t->lanes[0], in_place ? received + (own - recv) : sent,
                              received, count, dtype));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, apart, sent, bytes);
    test_from_device(t, recv, received, recv_bytes);
    for (int rank = 0; rank < t->size; rank++) {
        char *wanted = input_of(dtype, rank, 0, count);
        EXPECT(memcmp(recv + (size_t)rank * bytes, wanted, bytes) == 0,
               "all_gather %s of %zu on %d ranks, in place %d: rank %d's share",
               weft_dtype_text(dtype), count, t->size, in_place, rank);
        free(wanted);
    }
    EXPECT(recv[bytes * (size_t)t->size] == 0x5a, "all_gather wrote past its end");
    free(recv);
    free(apart);
}

/* How much goes from one rank to another: uneven, and often nothing. */
static size_t row_bytes(uint64_t pattern, int from, int to, int size)
{
    if (pattern == 0)
        return 0;
    if (pattern == 1) /* everything to one rank */
        return to == size - 1 ? 5000 + (size_t)from : 0;
    uint64_t hash = test_hash(pattern, (uint64_t)(from * 64 + to));
    return hash % 3 == 0 ? 0 : hash / 3 % 3000;
}

static void test_all_to_all(test_setup *t, uint64_t pattern)
{
    size_t *send_bytes = calloc((size_t)t->size, sizeof *send_bytes);
    size_t *recv_bytes = calloc((size_t)t->size, sizeof *recv_bytes);
    size_t sent = 0, received = 0;
    for (int rank = 0; rank < t->size; rank++) {
        sent += send_bytes[rank] = row_bytes(pattern, t->rank, rank, t->size);
        received += recv_bytes[rank] = row_bytes(pattern, rank, t->rank, t->size);
    }
    uint8_t *send = malloc(sent + 1), *recv = malloc(received + 1), *at = send;
    memset(recv, 0x5a, received + 1);
    for (int rank = 0; rank < t->size; rank++)
        for (size_t i = 0; i < send_bytes[rank]; i++)
            *at++ = (uint8_t)test_hash((uint64_t)(t->rank * 64 + rank), i);
    void *from = test_to_device(t, send, sent), *to = test_to_device(t, recv, received + 1);
    EXPECT_OK(weft_all_to_all(t->comm, t->lanes[0], from, send_bytes, to, recv_bytes));
    memset(send_bytes, 0xff, (size_t)t->size * sizeof *send_bytes); /* copied at the call */
    memset(recv_bytes, 0xff, (size_t)t->size * sizeof *recv_bytes);
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, send, from, sent);
    test_from_device(t, recv, to, received + 1);
    size_t num_wrong = 0;
    at = recv;
    for (int rank = 0; rank < t->size; rank++)
        for (size_t i = 0; i < row_bytes(pattern, rank, t->rank, t->size); i++)
            num_wrong += *at++ != (uint8_t)test_hash((uint64_t)(rank * 64 + t->rank), i);
    EXPECT(num_wrong == 0, "all_to_all %d on %d ranks: %zu wrong", (int)pattern, t->size,
           num_wrong);
    EXPECT(*at == 0x5a, "all_to_all wrote past its end");
    free(recv);
    free(send);
    free(recv_bytes);
    free(send_bytes);
}

static void test_broadcast(test_setup *t, int root, size_t bytes)
{
    uint8_t *buffer = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        buffer[i] = t->rank == root ? (uint8_t)test_hash((uint64_t)root, i) : 0x5a;
    void *operand = test_to_device(t, buffer, bytes);
    EXPECT_OK(weft_broadcast(t->comm, t->lanes[0], operand, bytes, root));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, buffer, operand, bytes);
    size_t num_wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        num_wrong += buffer[i] != (uint8_t)test_hash((uint64_t)root, i);
    EXPECT(num_wrong == 0, "broadcast of %zu from %d on %d ranks: %zu wrong", bytes, root, t->size,
           num_wrong);
    free(buffer);
}

static void test_host(test_setup *t)
{
    int64_t sum = t->rank + 1, all[64] = {0}, mine = 100 + t->rank, root = t->rank;
    EXPECT_OK(weft_comm_barrier(t->comm));
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, &sum, 1, WEFT_I64, WEFT_REDUCE_SUM));
    EXPECT(sum == t->size * (t->size + 1) / 2, "sum %d", (int)sum);
    EXPECT_OK(weft_comm_all_gather_host(t->comm, &mine, all, sizeof mine));
    for (int rank = 0; rank < t->size; rank++)
        EXPECT(all[rank] == 100 + rank, "rank %d gave %d", rank, (int)all[rank]);
    EXPECT_OK(weft_comm_broadcast_host(t->comm, &root, sizeof root, t->size - 1));
    EXPECT(root == t->size - 1, "root %d", (int)root);
}

/* 256 + 1 + 1 is 258 in bf16 only when the sum is rounded once; a NaN must not get lost. */
static void test_bf16_and_nan(test_setup *t)
{
    if (t->size < 3)
        return;
    uint16_t value = t->rank == 0 ? bf16_nearest(256) : t->rank < 3 ? bf16_nearest(1) : 0;
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, &value, 1, WEFT_BF16, WEFT_REDUCE_SUM));
    EXPECT(bf16_value(value) == 258, "got %g", bf16_value(value));
    for (int reduce = WEFT_REDUCE_SUM; reduce <= WEFT_REDUCE_MIN; reduce++)
        for (int where = 0; where < 2; where++) {
            float x[2] = {t->rank == where ? NAN : (float)t->rank, 1};
            uint16_t y = t->rank == where ? 0x7f81 : 0x3f80; /* a NaN whose payload is low */
            EXPECT_OK(weft_comm_all_reduce_host(t->comm, x, 2, WEFT_F32, (weft_reduce)reduce));
            EXPECT(isnan(x[0]) && !isnan(x[1]), "reduce %d: %g %g", reduce, x[0], x[1]);
            EXPECT_OK(weft_comm_all_reduce_host(t->comm, &y, 1, WEFT_BF16, (weft_reduce)reduce));
            EXPECT(isnan(bf16_value(y)), "reduce %d: %g", reduce, bf16_value(y));
        }
}

static void test_refusals(test_setup *t)
{
    char data[64] = {0};
    weft_lane *lane = t->lanes[0];
    EXPECT_ERROR(weft_all_reduce(t->comm, lane, data, 1, WEFT_U8, WEFT_REDUCE_SUM), WEFT_INTERNAL,
                 "all_reduce cannot reduce uint8");
    EXPECT_ERROR(weft_reduce_scatter(t->comm, lane, data, data, 1, WEFT_U8, WEFT_REDUCE_MAX),
                 WEFT_INTERNAL, "reduce_scatter cannot reduce uint8");
    EXPECT_ERROR(weft_all_gather(t->comm, lane, data, data, SIZE_MAX / 2, WEFT_F64), WEFT_INTERNAL,
                 "overflows");
    EXPECT_ERROR(weft_broadcast(t->comm, lane, data, 1, t->size), WEFT_INTERNAL, "broadcast from");
    EXPECT_OK(weft_comm_barrier(t->comm)); /* a refused call breaks nothing */
}

int main(int argc, char **argv)
{
    test_setup t;
    test_setup_init(&t);
    bool pieces = false, nodes = false;
    weft_mpi_limits limits = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "messages") == 0)
            limits.shared_bytes = SIZE_MAX;
        else if (strcmp(argv[i], "window") == 0)
            limits.shared_bytes = 1;
        else if (strcmp(argv[i], "pieces") == 0)
            pieces = true;
        else if (strcmp(argv[i], "nodes") == 0)
            nodes = true;
    }
    if (pieces)
        limits = (weft_mpi_limits){.message_bytes = 128,
                                   .piece_bytes = 128,
                                   .direct_bytes = 8,
                                   .shared_bytes = limits.shared_bytes};
    limits.ranks_per_node = nodes ? 2 + t.size / 4 % 2 : 0;
    weft_mpi_set_limits(&limits);
    if (nodes) {
        int key = (int)(test_hash((uint64_t)t.rank, 5) % 1000);
        setup_must(weft_comm_split(t.world, 0, key, "nodes", WEFT_PURPOSE_CONTROL, &t.comm));
        t.rank = weft_comm_rank(t.comm);
    }
    size_t num_counts = pieces ? NUM_COUNTS - 1 : NUM_COUNTS;

    for (size_t c = 0; c < num_counts; c++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
            for (int reduce = WEFT_REDUCE_SUM; reduce <= WEFT_REDUCE_MIN; reduce++) {
                test_all_reduce(&t, dtypes[d], (weft_reduce)reduce, counts[c]);
                test_reduce_scatter(&t, dtypes[d], (weft_reduce)reduce, counts[c], reduce % 2 == 0);
            }
            test_all_gather(&t, dtypes[d], counts[c], false);
        }
        test_all_gather(&t, WEFT_U8, counts[c], true);
        test_reduce_scatter(&t, WEFT_F32, WEFT_REDUCE_SUM, counts[c], false);
        for (int root = 0; root < t.size; root++)
            test_broadcast(&t, root, counts[c]);
    }
    test_broadcast(&t, t.size / 2, pieces ? 1280 : (size_t)1 << 20); /* an exact number of pieces */
    for (uint64_t pattern = 0; pattern < 8; pattern++)
        test_all_to_all(&t, pattern);
    test_host(&t);
    test_bf16_and_nan(&t);
    test_refusals(&t);
    return test_setup_finish(&t);
}
