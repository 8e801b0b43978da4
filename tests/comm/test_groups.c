/* Groups: who is in them, under which rank; and many of them in flight at once. */
#include "tests/comm/comm_test.h"

static void test_identity(test_setup *t)
{
    weft_comm *even, *reversed, *some, *alone;
    /* Colours; keys turn the order around. */
    EXPECT_OK(weft_comm_split(t->comm, t->rank % 2, t->rank, "even", WEFT_PURPOSE_TENSOR, &even));
    EXPECT(weft_comm_size(even) == (t->size + 1 - t->rank % 2) / 2, "size %d",
           weft_comm_size(even));
    EXPECT(weft_comm_rank(even) == t->rank / 2, "rank %d", weft_comm_rank(even));
    EXPECT(strcmp(weft_comm_name(even), "even") == 0, "name %s", weft_comm_name(even));
    for (int i = 0; i < weft_comm_size(even); i++)
        EXPECT(weft_comm_world_rank(even, i) == 2 * i + t->rank % 2, "member %d is world rank %d",
               i, weft_comm_world_rank(even, i));
    EXPECT(weft_comm_world_rank(even, t->size) == -1 && weft_comm_world_rank(even, -1) == -1,
           "a rank that is no member");

    EXPECT_OK(weft_comm_split(t->comm, 0, -t->rank, "reversed", WEFT_PURPOSE_DATA, &reversed));
    EXPECT(weft_comm_rank(reversed) == t->size - 1 - t->rank, "rank %d", weft_comm_rank(reversed));
    for (int i = 0; i < t->size; i++)
        EXPECT(weft_comm_world_rank(reversed, i) == t->size - 1 - i, "member %d", i);

    /* Only the first rank has a group, and it is alone in it. */
    some = reversed;
    EXPECT_OK(weft_comm_split(t->comm, t->rank == 0 ? 7 : -1, 0, "some", WEFT_PURPOSE_DATA, &some));
    EXPECT((some != NULL) == (t->rank == 0), "group %p", (void *)some);
    EXPECT_OK(weft_comm_split(t->comm, t->rank, 0, "alone", WEFT_PURPOSE_EXPERT, &alone));
    EXPECT(weft_comm_size(alone) == 1 && weft_comm_rank(alone) == 0, "size %d",
           weft_comm_size(alone));
    EXPECT(weft_comm_world_rank(alone, 0) == t->rank, "world rank %d",
           weft_comm_world_rank(alone, 0));

    /* A split of a split. */
    weft_comm *half;
    EXPECT_OK(weft_comm_split(even, weft_comm_rank(even) / 2, 0, "half", WEFT_PURPOSE_DATA, &half));
    EXPECT(weft_comm_world_rank(half, weft_comm_rank(half)) == t->rank, "world rank %d",
           weft_comm_world_rank(half, weft_comm_rank(half)));
    int64_t members = 1;
    EXPECT_OK(weft_comm_all_reduce_host(half, &members, 1, WEFT_I64, WEFT_REDUCE_SUM));
    EXPECT(members == weft_comm_size(half), "%d members of %d", (int)members, weft_comm_size(half));

    weft_comm_destroy(half);
    weft_comm_destroy(alone);
    weft_comm_destroy(some);
    weft_comm_destroy(reversed);
    weft_comm_destroy(even);
    weft_comm_destroy(NULL);
}

static void test_node(test_setup *t)
{
    weft_comm *node;
    int local_rank = 0, local_size = 1;
    bool launched = weft_comm_launched(NULL, NULL, &local_rank, &local_size);
    EXPECT_OK(weft_comm_split_node(t->comm, &node));
    EXPECT(weft_comm_size(node) == local_size && weft_comm_rank(node) == local_rank,
           "rank %d of %d, launched %d", weft_comm_rank(node), weft_comm_size(node), launched);
    EXPECT_OK(weft_comm_barrier(node));
    weft_comm_destroy(node);
}

static weft_status delay(const void *args)
{
    unsigned spin = *(const unsigned *)args;
    for (volatile unsigned i = 0; i < spin; i++)
        continue;
    return WEFT_OK;
}

/* Four groups on four lanes, issued in another order on every rank, with delays: would deadlock if
 * one operation in flight held another back. */
static void test_many_in_flight(test_setup *t)
{
    enum { NUM_ROUNDS = 40, COUNT = 3000 };
    static const weft_comm_purpose purposes[TEST_NUM_LANES] = {
        WEFT_PURPOSE_DATA, WEFT_PURPOSE_EXPERT, WEFT_PURPOSE_TENSOR, WEFT_PURPOSE_PIPELINE};
    weft_comm *groups[TEST_NUM_LANES];
    int64_t *buffers[TEST_NUM_LANES];
    for (int g = 0; g < TEST_NUM_LANES; g++) {
        EXPECT_OK(weft_comm_split(t->comm, 0, 0, "many", purposes[g], &groups[g]));
        buffers[g] = malloc(COUNT * sizeof(int64_t));
        for (int i = 0; i < COUNT; i++)
            buffers[g][i] = g + i;
    }
    for (int round = 0; round < NUM_ROUNDS; round++)
        for (int k = 0; k < TEST_NUM_LANES; k++) {
            int g = (k * (t->rank % 2 ? 3 : 1) + t->rank + round) % TEST_NUM_LANES;
            unsigned spin = (unsigned)(test_hash((uint64_t)t->rank, (uint64_t)round) % 20000);
            size_t count = round % 3 == 0 ? COUNT : 5;
            EXPECT_OK(weft_lane_submit(t->lanes[g], "delay", delay, &spin, sizeof spin));
            EXPECT_OK(weft_all_reduce(groups[g], t->lanes[g], buffers[g], count, WEFT_I64,
                                      WEFT_REDUCE_MAX));
        }
    for (int g = 0; g < TEST_NUM_LANES; g++)
        EXPECT_OK(weft_lane_sync(t->lanes[g]));
    for (int g = 0; g < TEST_NUM_LANES; g++) {
        for (int i = 0; i < COUNT; i++)
            if (buffers[g][i] != g + i) {
                EXPECT(false, "group %d, element %d is %d", g, i, (int)buffers[g][i]);
                break;
            }
        free(buffers[g]);
        weft_comm_destroy(groups[g]);
    }
}

/* One group on two lanes at once: operations are told apart by the order they were issued in, even
 * where the ranks' lanes reach them in different orders. */
static void test_two_lanes(test_setup *t)
{
    enum { COUNT = 9000 };
    static int32_t first[COUNT], second[COUNT];
    for (int i = 0; i < COUNT; i++) {
        first[i] = 1;
        second[i] = i;
    }
    unsigned spin = 300000;
    weft_lane *slow = t->lanes[t->rank % 2];
    EXPECT_OK(weft_lane_submit(slow, "delay", delay, &spin, sizeof spin));
    EXPECT_OK(weft_all_reduce(t->comm, t->lanes[0], first, COUNT, WEFT_I32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_all_reduce(t->comm, t->lanes[1], second, COUNT, WEFT_I32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT_OK(weft_lane_sync(t->lanes[1]));
    size_t num_wrong = 0;
    for (int i = 0; i < COUNT; i++)
        num_wrong += first[i] != t->size || second[i] != i * t->size;
    EXPECT(num_wrong == 0, "%zu wrong", num_wrong);
}

static void test_records(test_setup *t)
{
    static weft_comm_record records[WEFT_COMM_MAX_RECORDS];
    uint64_t bytes_before, count_before, bytes_after, count_after;
    weft_comm *group;
    EXPECT_OK(
        weft_comm_split(t->comm, 0, 0, "recorded group's name", WEFT_PURPOSE_CONTEXT, &group));
    weft_comm_totals(WEFT_PURPOSE_CONTEXT, &bytes_before, &count_before);
    float data[16] = {0};
    size_t share = 16 / (size_t)t->size;
    EXPECT_OK(weft_all_reduce(group, t->lanes[0], data, 16, WEFT_F32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_reduce_scatter(group, t->lanes[0], data, data + (size_t)t->rank * share, share,
                                  WEFT_F32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    weft_comm_totals(WEFT_PURPOSE_CONTEXT, &bytes_after, &count_after);
    EXPECT(bytes_after - bytes_before == 64 + share * 4 * (size_t)t->size, "%d bytes",
           (int)(bytes_after - bytes_before));
    EXPECT(count_after - count_before == 2, "%d operations", (int)(count_after - count_before));

    int n = weft_comm_records(records, WEFT_COMM_MAX_RECORDS);
    EXPECT(n >= 2, "%d records", n);
    const weft_comm_record *last = &records[n - 1], *previous = &records[n - 2];
    EXPECT(strcmp(last->kind, "reduce_scatter") == 0 && strcmp(previous->kind, "all_reduce") == 0,
           "%s after %s", last->kind, previous->kind);
    EXPECT(strcmp(last->group, "recorded group'") == 0, "group %s", last->group);
    EXPECT(last->sequence == 1 && previous->sequence == 0 && previous->bytes == 64 &&
               previous->peer == -1,
           "sequence %d", (int)last->sequence);
    EXPECT(last->end_us >= last->start_us && last->start_us >= previous->end_us &&
               previous->start_us > 0,
           "times %g %g", last->start_us, last->end_us);

    /* The ring keeps the newest. */
    for (int i = 0; i < WEFT_COMM_MAX_RECORDS + 10; i++)
        EXPECT_OK(weft_comm_broadcast_host(group, data, 4, 0));
    n = weft_comm_records(records, WEFT_COMM_MAX_RECORDS);
    EXPECT(n == WEFT_COMM_MAX_RECORDS, "%d records", n);
    for (int i = 0; i < n; i++)
        if (records[i].sequence != (uint64_t)(12 + i)) {
            EXPECT(false, "record %d has sequence %d", i, (int)records[i].sequence);
            break;
        }
    EXPECT(weft_comm_records(records, 3) == 3 && records[2].sequence == WEFT_COMM_MAX_RECORDS + 11,
           "newest %d", (int)records[2].sequence);
    weft_comm_destroy(group);
}

int main(void)
{
    test_setup t;
    test_setup_init(&t);
    test_identity(&t);
    test_node(&t);
    test_many_in_flight(&t);
    test_two_lanes(&t);
    test_records(&t);
    return test_setup_finish(&t);
}
