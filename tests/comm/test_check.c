/* Agreement at the end of a phase, and the debug mode that compares what ranks are about to do. */
#include "tests/comm/comm_test.h"

/* Every rank must say the same; returns whether they do. */
static void expect_same_text(test_setup *t, const char *text)
{
    char mine[WEFT_ERROR_TEXT_BYTES] = {0}, *all = malloc(sizeof mine * (size_t)t->size);
    snprintf(mine, sizeof mine, "%s", text);
    EXPECT_OK(weft_comm_all_gather_host(t->comm, mine, all, sizeof mine));
    for (int rank = 0; rank < t->size; rank++)
        EXPECT(strcmp(all + sizeof mine * (size_t)rank, mine) == 0, "\"%s\" against \"%s\"",
               all + sizeof mine * (size_t)rank, mine);
    free(all);
}

static void expect_agreed(test_setup *t, weft_status mine, weft_status wanted, const char *text)
{
    char got[WEFT_ERROR_TEXT_BYTES];
    weft_status status = weft_comm_agree(t->comm, mine);
    snprintf(got, sizeof got, "%s", weft_error_get()->text);
    EXPECT(status == wanted && strcmp(got, text) == 0, "status %d, text \"%s\"", status, got);
    EXPECT(weft_error_get()->status == wanted, "record %d", weft_error_get()->status);
    weft_error_clear();
    expect_same_text(t, got);
}

static void test_agree(test_setup *t)
{
    char text[64];
    expect_agreed(t, WEFT_OK, WEFT_OK, "");
    /* One fails, the last one. */
    weft_status mine = WEFT_OK;
    if (t->rank == t->size - 1)
        mine = WEFT_ERROR(WEFT_FILE, "no such file: %d", t->rank);
    int last = t->size - 1;
    if (t->size > 1)
        snprintf(text, sizeof text, "rank %d: no such file: %d", last, last);
    else
        snprintf(text, sizeof text, "no such file: %d", last);
    expect_agreed(t, mine, WEFT_FILE, text);
    if (t->size == 1)
        return;

    /* All fail, differently: the worst, and its lowest rank. */
    mine = t->rank == 0 ? WEFT_ERROR(WEFT_CONFIG, "a config")
                        : WEFT_ERROR(WEFT_DEVICE, "device of %d", t->rank);
    expect_agreed(t, mine, WEFT_DEVICE, "rank 1: device of 1");
    /* A status without a record, and a record of something else. */
    mine = WEFT_OK;
    if (t->rank == 1) {
        mine = WEFT_MEMORY;
        (void)WEFT_ERROR(WEFT_CONFIG, "long past");
    }
    expect_agreed(t, mine, WEFT_MEMORY, "rank 1: out of memory");
    /* The text names the world rank, and the group still works. */
    weft_comm *reversed;
    EXPECT_OK(weft_comm_split(t->comm, 0, -t->rank, "reversed", WEFT_PURPOSE_DATA, &reversed));
    mine = t->rank == 1 ? WEFT_ERROR(WEFT_FILE, "lost") : WEFT_OK;
    EXPECT_ERROR(weft_comm_agree(reversed, mine), WEFT_FILE, "rank 1: lost");
    EXPECT_OK(weft_comm_agree(reversed, WEFT_OK));
    weft_comm_destroy(reversed);
}

typedef enum mistake { KIND, BYTES, DTYPE, REDUCE, ROOT, ROW } mistake;

/* One collective that rank 1 gets wrong. */
static weft_status issue(weft_comm *group, weft_lane *lane, mistake wrong, bool odd, float *data)
{
    size_t rows[64] = {0};
    switch (wrong) {
    case KIND:
        return odd ? weft_all_gather(group, lane, data, data + 64, 16, WEFT_F32)
                   : weft_all_reduce(group, lane, data, 16, WEFT_F32, WEFT_REDUCE_SUM);
    case BYTES:
        return weft_all_reduce(group, lane, data, odd ? 12 : 16, WEFT_F32, WEFT_REDUCE_SUM);
    case DTYPE:
        return weft_all_reduce(group, lane, data, 16, odd ? WEFT_I32 : WEFT_F32, WEFT_REDUCE_SUM);
    case REDUCE:
        return weft_all_reduce(group, lane, data, 16, WEFT_F32,
                               odd ? WEFT_REDUCE_MAX : WEFT_REDUCE_SUM);
    case ROOT:
        return weft_broadcast(group, lane, data, 64, odd ? 1 : 0);
    case ROW:
        rows[0] = 0;
        rows[1] = 0;
        return weft_all_to_all(group, lane, data, odd ? (size_t[64]){24} : rows, data + 64, rows);
    }
    return WEFT_OK;
}

/* On every rank the error names the rank and both sides, after collectives that agreed. */
static void test_mistake(test_setup *t, mistake wrong, const char *parts[3])
{
    weft_comm *group;
    weft_lane *lane;
    float *data = calloc(16 * 64 + 64, sizeof *data);
    EXPECT_OK(weft_comm_split(t->comm, 0, 0, "checked", WEFT_PURPOSE_TENSOR, &group));
    EXPECT_OK(weft_lane_create(t->device, 0, "checked", &lane));
    EXPECT_OK(weft_all_reduce(group, lane, data, 16, WEFT_F32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_all_gather(group, lane, data, data + 64, 16, WEFT_F32));
    EXPECT_OK(weft_lane_sync(lane));
    weft_status status = test_lane_status(lane, issue(group, lane, wrong, t->rank == 1, data));
    EXPECT(status == WEFT_COMM, "mistake %d was not found", wrong);
    char text[WEFT_ERROR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", weft_error_get()->text);
    for (int i = 0; i < 3; i++)
        EXPECT(strstr(text, parts[i]), "no \"%s\" in \"%s\"", parts[i], text);
    EXPECT(strstr(text, "group checked"), "no group in \"%s\"", text);
    weft_error_clear();
    EXPECT_ERROR(weft_comm_barrier(group), WEFT_COMM, "group checked is broken");
    weft_lane_destroy(lane);
    weft_comm_destroy(group);
    free(data);
}

static void test_check(test_setup *t)
{
    weft_comm_set_check(true);
    /* Nothing wrong: nothing found. */
    float data[16] = {0};
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, data, 16, WEFT_F32, WEFT_REDUCE_SUM));
    size_t *rows = calloc((size_t)t->size, sizeof *rows);
    EXPECT_OK(weft_all_to_all(t->comm, t->lanes[0], data, rows, data, rows));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    free(rows);
    if (t->size > 1) {
        char gathered[64];
        snprintf(gathered, sizeof gathered, "all_gather 2 of %d bytes fp32", 64 * t->size);
        test_mistake(t, KIND,
                     (const char *[]){"rank 1 differs", gathered,
                                      "rank 0 has all_reduce 2 of 64 bytes fp32 sum"});
        test_mistake(
            t, BYTES,
            (const char *[]){"rank 1 differs", "all_reduce 2 of 48 bytes", "2 of 64 bytes"});
        test_mistake(t, DTYPE,
                     (const char *[]){"rank 1 differs", "bytes int32 sum", "bytes fp32 sum"});
        test_mistake(t, REDUCE, (const char *[]){"rank 1 differs", "fp32 max", "fp32 sum"});
        test_mistake(t, ROOT, (const char *[]){"rank 1 differs", "from rank 1", "from rank 0"});
        test_mistake(t, ROW, (const char *[]){"rank 1 sends 24 bytes", "to rank 0", "receives 0"});
    }
    weft_comm_set_check(false);
    EXPECT_OK(weft_comm_barrier(t->comm));
}

int main(void)
{
    test_setup t;
    test_setup_init(&t);
    test_agree(&t);
    test_check(&t);
    return test_setup_finish(&t);
}
