/* Which backend groups get, and the reason given for it. */
#include "tests/comm/comm_test.h"

static void expect_reason(test_setup *t, weft_comm_choice wanted, const char *part)
{
    const char *why = "";
    EXPECT_OK(weft_comm_use_nccl(t->comm, t->device, wanted, &why));
    EXPECT(strstr(why, part), "the reason is \"%s\", not \"%s\"", why, part);
}

/* On one GPU several ranks get MPI, and can ask for nothing else. */
static void test_choice(test_setup *t)
{
    bool on_gpu = t->copies;
    const char *obstacle = !on_gpu        ? "the device is no GPU"
                           : t->size == 1 ? "there is one rank"
                                          : "ranks 0 and 1 share a GPU";
    expect_reason(t, WEFT_COMM_BY_ANY, obstacle);
    expect_reason(t, WEFT_COMM_BY_MPI, on_gpu ? "as the configuration says" : obstacle);
    if (on_gpu && t->size == 1)
        expect_reason(t, WEFT_COMM_BY_NCCL, obstacle);
    else
        EXPECT_ERROR(weft_comm_use_nccl(t->comm, t->device, WEFT_COMM_BY_NCCL, NULL), WEFT_CONFIG,
                     obstacle);
}

/* Groups work after any of this. */
static void test_group(test_setup *t)
{
    weft_comm *group;
    int32_t one = 1;
    EXPECT_OK(weft_comm_split(t->comm, 0, 0, "data", WEFT_PURPOSE_DATA, &group));
    void *operand = test_to_device(t, &one, sizeof one);
    EXPECT_OK(weft_all_reduce(group, t->lanes[0], operand, 1, WEFT_I32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    test_from_device(t, &one, operand, sizeof one);
    EXPECT(one == t->size, "%d ranks sum up to %d", t->size, (int)one);
    weft_comm_destroy(group);
}

int main(void)
{
    test_setup t;
    test_setup_init(&t);
    test_choice(&t);
    test_group(&t);
    return test_setup_finish(&t);
}
