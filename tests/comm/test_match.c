/* What ranks issue is compared by one sum over the world: 0 where all issue the same, and where one
 * does not, its rank and group are named. On any number of ranks. */
#include "tests/comm/comm_test.h"

enum { COUNT = 64 };

static test_setup t;

static double sum(void)
{
    double all = weft_comm_match(t.world);
    setup_must(weft_comm_all_reduce_host(t.world, &all, 1, WEFT_F64, WEFT_REDUCE_SUM));
    return all;
}

/* Every kind of operation, made alike. */
static void test_alike(void)
{
    float values[COUNT] = {0}, all[COUNT * 8] = {0};
    size_t bytes[8], back[8];
    int next = (t.rank + 1) % t.size, before = (t.rank + t.size - 1) % t.size;
    weft_lane *lane = t.lanes[0];
    for (int i = 0; i < t.size; i++) {
        bytes[i] = (size_t)(4 * (1 + i + 2 * t.rank)); /* rows differ between ranks */
        back[i] = (size_t)(4 * (1 + t.rank + 2 * i));
    }
    setup_must(weft_all_reduce(t.comm, lane, values, COUNT, WEFT_F32, WEFT_REDUCE_SUM));
    setup_must(weft_all_gather(t.comm, lane, values, all, COUNT, WEFT_F32));
    setup_must(weft_reduce_scatter(t.comm, lane, all, values, COUNT, WEFT_F32, WEFT_REDUCE_MAX));
    setup_must(weft_broadcast(t.comm, lane, values, sizeof values, t.size - 1));
    setup_must(weft_all_to_all(t.comm, lane, all, bytes, all + 256, back));
    setup_must(weft_send_recv(t.comm, lane, next, values, 8, before, all, 8, 3));
    setup_must(weft_lane_sync(lane));
    EXPECT(weft_comm_matches(sum()), "the same calls differ");
}

static void expect_mismatch(const char *what, const char *part)
{
    EXPECT(!weft_comm_matches(sum()), "%s: not found", what);
    EXPECT_ERROR(weft_comm_mismatch(t.world), WEFT_COMM, part);
}

/* Root 0 broadcasts once more than the others take part in: what it sends lies there. */
static void test_more_calls(void)
{
    weft_comm *group;
    char value = 0;
    setup_must(weft_comm_split(t.world, 0, 0, "odd", WEFT_PURPOSE_DATA, &group));
    for (int i = 0; i < (t.rank == 0 ? 3 : 2); i++)
        setup_must(weft_comm_broadcast_host(group, &value, 1, 0));
    expect_mismatch("a call more", t.size > 2 ? "group odd: rank 0 has issued 3 collectives"
                                              : "group odd: rank 1 has issued 2 collectives");
}

static void test_message(void)
{
    char value = 0;
    if (t.rank == 0)
        setup_must(weft_comm_send_host(t.world, 1, 7, &value, 1));
    EXPECT(!weft_comm_matches(sum()), "a message more: not found");
    if (t.rank == 1) /* so that the sum is as before */
        setup_must(weft_comm_recv_host(t.world, 0, 7, &value, 1));
}

int main(void)
{
    test_setup_init(&t);
    EXPECT(weft_comm_matches(sum()), "a start differs");
    test_alike();
    if (t.size > 1) {
        test_message();
        EXPECT(weft_comm_matches(sum()), "a message that came late differs");
        test_more_calls();
    }
    return test_setup_finish(&t);
}
