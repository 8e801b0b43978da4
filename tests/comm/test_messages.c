/* Messages between two ranks, and what happens when the ends disagree. */
#include "comm/mpi/mpi_comm.h"
#include "tests/comm/comm_test.h"

static void fill(uint8_t *data, size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)test_hash((uint64_t)seed, i);
}

static size_t num_wrong(const uint8_t *data, size_t bytes, int seed)
{
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += data[i] != (uint8_t)test_hash((uint64_t)seed, i);
    return wrong;
}

/* Every rank sends to both neighbours and receives from both, all at once, on two lanes. */
static void test_crossing(test_setup *t, size_t bytes)
{
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    uint8_t *out[2], *in[2];
    void *sent[2], *received[2];
    for (int k = 0; k < 2; k++) {
        out[k] = malloc(bytes + 1);
        in[k] = malloc(bytes + 1);
        fill(out[k], bytes, 2 * t->rank + k);
        memset(in[k], 0x5a, bytes + 1);
        sent[k] = test_to_device(t, out[k], bytes);
        received[k] = test_to_device(t, in[k], bytes + 1);
    }
    EXPECT_OK(weft_send(t->comm, t->lanes[0], next, 3, sent[0], bytes));
    EXPECT_OK(weft_send(t->comm, t->lanes[1], previous, 4, sent[1], bytes));
    EXPECT_OK(weft_recv(t->comm, t->lanes[2], previous, 3, received[0], bytes));
    EXPECT_OK(weft_recv(t->comm, t->lanes[3], next, 4, received[1], bytes));
    for (int i = 0; i < TEST_NUM_LANES; i++)
        EXPECT_OK(weft_lane_sync(t->lanes[i]));
    for (int k = 0; k < 2; k++) {
        test_from_device(t, out[k], sent[k], bytes);
        test_from_device(t, in[k], received[k], bytes + 1);
    }
    EXPECT(num_wrong(in[0], bytes, 2 * previous) == 0, "from the previous rank, %zu bytes", bytes);
    EXPECT(num_wrong(in[1], bytes, 2 * next + 1) == 0, "from the next rank, %zu bytes", bytes);
    EXPECT(in[0][bytes] == 0x5a && in[1][bytes] == 0x5a, "wrote past the end");
    for (int k = 0; k < 2; k++) {
        free(out[k]);
        free(in[k]);
    }
}

/* Messages of one tag keep their order; another tag may overtake. */
static void test_order(test_setup *t)
{
    enum { NUM = 50 };
    int sent[NUM], got[NUM] = {0}, late = -1, sign = 7;
    for (int i = 0; i < NUM; i++)
        sent[i] = 1000 + i;
    int *out = test_to_device(t, sent, sizeof sent), *in = test_to_device(t, got, sizeof got);
    if (t->rank == 0) {
        for (int i = 0; i < NUM; i++)
            EXPECT_OK(weft_send(t->comm, t->lanes[0], 1, 9, out + i, sizeof *out));
        EXPECT_OK(weft_send(t->comm, t->lanes[1], 1, 1023, &sign, sizeof sign));
    } else if (t->rank == 1) {
        EXPECT_OK(weft_recv(t->comm, t->lanes[0], 0, 1023, &late, sizeof late));
        for (int i = 0; i < NUM; i++)
            EXPECT_OK(weft_recv(t->comm, t->lanes[0], 0, 9, in + i, sizeof *in));
    }
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT_OK(weft_lane_sync(t->lanes[1]));
    test_from_device(t, sent, out, sizeof sent);
    test_from_device(t, got, in, sizeof got);
    for (int i = 0; t->rank == 1 && i < NUM; i++)
        EXPECT(got[i] == 1000 + i, "message %d is %d", i, got[i]);
    EXPECT(t->rank != 1 || late == 7, "got %d", late);
}

/* The receiver of another size than was sent learns both sizes; the group is broken there. `cut`:
 * both in pieces, which differ at the last. */
static void test_size_mismatch(test_setup *t, size_t sent, size_t received, const char *text)
{
    weft_comm *group;
    weft_lane *lane;
    uint8_t array[4096] = {0};
    EXPECT_OK(
        weft_comm_split(t->comm, t->rank < 2 ? 0 : -1, 0, "pair", WEFT_PURPOSE_PIPELINE, &group));
    if (!group)
        return;
    EXPECT_OK(weft_lane_create(t->device, 0, "mismatch", &lane));
    uint8_t *data = test_to_device(t, array, sizeof array);
    if (t->rank == 0) {
        EXPECT_OK(weft_send(group, lane, 1, 5, data, sent));
        EXPECT_OK(weft_lane_sync(lane));
    } else {
        weft_status status = weft_recv(group, lane, 0, 5, data, received);
        EXPECT_ERROR(test_lane_status(lane, status), WEFT_COMM, text);
        EXPECT_ERROR(weft_comm_barrier(group), WEFT_COMM, "group pair is broken since its recv 0");
    }
    weft_lane_destroy(lane);
    test_from_device(t, array, data, sizeof array);
    weft_comm_destroy(group);
}

/* A ring: every rank sends to the next and receives from the previous, of other sizes, on one lane.
 * Then each rank by itself: the sizes of a copy are equal. */
static void test_send_recv(test_setup *t, size_t bytes)
{
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    size_t sent = bytes * (size_t)(t->rank + 1), received = bytes * (size_t)(previous + 1);
    uint8_t *out = malloc(sent + 1), *in = malloc(received + 1), *copy = malloc(sent + 1);
    fill(out, sent, t->rank);
    memset(in, 0x5a, received + 1);
    memset(copy, 0x5a, sent + 1);
    void *from = test_to_device(t, out, sent), *to = test_to_device(t, in, received + 1);
    void *copied = test_to_device(t, copy, sent + 1);
    EXPECT_OK(weft_send_recv(t->comm, t->lanes[0], next, from, sent, previous, to, received, 7));
    EXPECT_OK(weft_send_recv(t->comm, t->lanes[1], t->rank, from, sent, t->rank, copied, sent, 7));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT_OK(weft_lane_sync(t->lanes[1]));
    test_from_device(t, out, from, sent);
    test_from_device(t, in, to, received + 1);
    test_from_device(t, copy, copied, sent + 1);
    EXPECT(num_wrong(in, received, previous) == 0, "from the previous rank, %zu bytes", received);
    EXPECT(num_wrong(copy, sent, t->rank) == 0, "from this rank, %zu bytes", sent);
    EXPECT(in[received] == 0x5a && copy[sent] == 0x5a, "wrote past the end");
    free(out);
    free(in);
    free(copy);
}

/* Its halves meet plain messages, and it is counted where it sends. Its operands are the host's:
 * lanes of any device serve them. */
static void test_send_recv_mixed(test_setup *t)
{
    uint64_t bytes[2], counts[2];
    int out[2] = {100 + t->rank, 200 + t->rank}, in[2] = {0};
    weft_comm_totals(WEFT_PURPOSE_CONTROL, &bytes[0], &counts[0]);
    if (t->rank == 0) {
        EXPECT_OK(weft_send_recv(t->comm, t->lanes[0], 1, out, 8, 1, in, 4, 8));
    } else if (t->rank == 1) {
        EXPECT_OK(weft_send(t->comm, t->lanes[0], 0, 8, out, 4));
        EXPECT_OK(weft_recv(t->comm, t->lanes[1], 0, 8, in, 8));
    }
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT_OK(weft_lane_sync(t->lanes[1]));
    weft_comm_totals(WEFT_PURPOSE_CONTROL, &bytes[1], &counts[1]);
    EXPECT(t->rank != 0 || (in[0] == 101 && bytes[1] - bytes[0] == 8 && counts[1] - counts[0] == 1),
           "got %d; %d bytes in %d operations", in[0], (int)(bytes[1] - bytes[0]),
           (int)(counts[1] - counts[0]));
    EXPECT(t->rank != 1 || (in[0] == 100 && in[1] == 200), "got %d and %d", in[0], in[1]);
}

static void test_send_recv_refusals(test_setup *t)
{
    char data[8] = {0};
    weft_lane *lane = t->lanes[0];
    int own = t->rank;
    EXPECT_ERROR(weft_send_recv(t->comm, lane, own, data, 8, own, data, 4, 0), WEFT_INTERNAL,
                 "send_recv sends 8 bytes to this rank itself and receives 4");
    EXPECT_ERROR(weft_send_recv(t->comm, lane, own, data, 8, t->size, data, 8, 0), WEFT_INTERNAL,
                 "with rank");
    EXPECT_ERROR(weft_send_recv(t->comm, lane, -1, data, 8, -1, data, 8, 0), WEFT_INTERNAL,
                 "with rank -1");
    EXPECT_ERROR(weft_send_recv(t->comm, lane, own, data, 8, own, data, 8, 1024), WEFT_INTERNAL,
                 "tag 1024");
    if (t->size > 1)
        EXPECT_ERROR(weft_send_recv(t->comm, lane, own, data, 8, (own + 1) % t->size, data, 8, 0),
                     WEFT_INTERNAL, "a rank that sends to itself receives that");
}

static void test_refusals(test_setup *t)
{
    char data[8] = {0};
    weft_lane *lane = t->lanes[0];
    EXPECT_ERROR(weft_send(t->comm, lane, t->rank, 0, data, 8), WEFT_INTERNAL, "send on rank");
    EXPECT_ERROR(weft_recv(t->comm, lane, t->size, 0, data, 8), WEFT_INTERNAL, "recv on rank");
    EXPECT_ERROR(weft_recv(t->comm, lane, -1, 0, data, 8), WEFT_INTERNAL, "with rank -1");
    if (t->size > 1) {
        int other = t->rank == 0 ? 1 : 0;
        EXPECT_ERROR(weft_send(t->comm, lane, other, 1024, data, 8), WEFT_INTERNAL, "tag 1024");
        EXPECT_ERROR(weft_send(t->comm, lane, other, -1, data, 8), WEFT_INTERNAL, "tag -1");
    }
}

int main(void)
{
    test_setup t;
    test_setup_init(&t);
    static const size_t sizes[] = {0, 1, 4096, 100000, (size_t)3 << 20};
    test_refusals(&t);
    test_send_recv_refusals(&t);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        test_send_recv(&t, sizes[i] / (size_t)t.size);
    if (t.size > 1) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            test_crossing(&t, sizes[i]);
    }
    if (t.size > 1 && !t.nccl) { /* which compares neither tags nor sizes */
        test_send_recv_mixed(&t);
        test_order(&t);
        test_size_mismatch(&t, 100, 200, "rank 0 sent 100 bytes where 200 are received here");
        test_size_mismatch(&t, 200, 100, "where 100 are received here");
        test_size_mismatch(&t, 0, 8, "rank 0 sent 0 bytes where 8 are received here");
        test_size_mismatch(&t, 8, 0, "where 0 are received here");
        EXPECT_OK(weft_comm_barrier(t.comm));
        weft_mpi_set_limits(
            &(weft_mpi_limits){.message_bytes = 128, .piece_bytes = 128, .direct_bytes = 8});
        static const size_t cut_sizes[] = {127, 128, 129, 256, 100001};
        for (size_t i = 0; i < sizeof cut_sizes / sizeof cut_sizes[0]; i++) {
            test_crossing(&t, cut_sizes[i]);
            test_send_recv(&t, cut_sizes[i] / 3);
        }
        /* The same number of full pieces on both sides, but for what ends the message. */
        test_size_mismatch(&t, 256, 300, "rank 0 sent 0 bytes where 44 are received here");
        EXPECT_OK(weft_comm_barrier(t.comm));
    }
    return test_setup_finish(&t);
}
