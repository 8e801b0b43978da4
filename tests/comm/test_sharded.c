/* The all-to-all in chunks against the plain one, on every grid of (between x inside) that the
 * ranks make, numbered along either axis; and what happens when the ends disagree. */
#include <time.h>

#include "tests/comm/comm_test.h"

typedef struct grid {
    weft_comm *between, *inside;
    weft_comm_purpose purpose; /* of both: one that the gate lets pass, one that it holds */
    int e, t, b, i;            /* sizes, and this rank's place */
} grid;

static grid grid_make(test_setup *t, int inner_size, bool inside_first)
{
    grid g = {.purpose = inside_first ? WEFT_PURPOSE_EXPERT : WEFT_PURPOSE_DATA,
              .e = t->size / inner_size,
              .t = inner_size};
    g.b = inside_first ? t->rank / g.t : t->rank % g.e;
    g.i = inside_first ? t->rank % g.t : t->rank / g.e;
    EXPECT_OK(weft_comm_split(t->comm, g.i, t->rank, "between", g.purpose, &g.between));
    EXPECT_OK(weft_comm_split(t->comm, g.b, t->rank, "inside", g.purpose, &g.inside));
    return g;
}

static void grid_release(grid *g)
{
    weft_comm_destroy(g->between);
    weft_comm_destroy(g->inside);
}

static uint8_t byte_of(int salt, int from, int to, size_t k)
{
    return (uint8_t)test_hash((uint64_t)(salt * 4096 + from * 64 + to), k);
}

/* What rank `from` sends to rank `to` in a round: nothing, a byte, about a chunk, several. */
static size_t block_bytes(int round, int from, int to, size_t chunk_bytes)
{
    const size_t chunk = chunk_bytes ? chunk_bytes : 100000;
    const size_t sizes[] = {0,
                            1,
                            63,
                            64,
                            65,
                            chunk - 1,
                            chunk,
                            chunk + 1,
                            2 * chunk,
                            3001,
                            5 * chunk + 7,
                            9 * chunk + 333};
    uint64_t hash = test_hash((uint64_t)(round * 64 + from), (uint64_t)to);
    return sizes[hash % (sizeof sizes / sizeof sizes[0])];
}

typedef struct exchange {
    uint8_t *send, *recv, *wanted;
    void *operands[3]; /* these three */
    size_t *send_bytes, *recv_bytes, sent, received;
} exchange;

enum { GUARD = 0x5a, NUM_GUARDS = 64 };

static exchange exchange_make(test_setup *t, const grid *g, int round, size_t chunk_bytes)
{
    exchange x = {.send_bytes = calloc((size_t)g->e, sizeof(size_t)),
                  .recv_bytes = calloc((size_t)g->e, sizeof(size_t))};
    for (int peer = 0; peer < g->e; peer++) {
        x.sent += x.send_bytes[peer] = block_bytes(round, g->b, peer, chunk_bytes);
        x.received += x.recv_bytes[peer] = block_bytes(round, peer, g->b, chunk_bytes);
    }
    x.send = malloc(x.sent + 1);
    x.recv = malloc(x.received + NUM_GUARDS);
    x.wanted = malloc(x.received + NUM_GUARDS);
    memset(x.recv, GUARD, x.received + NUM_GUARDS);
    memset(x.wanted, GUARD, x.received + NUM_GUARDS);
    uint8_t *at = x.send;
    for (int peer = 0; peer < g->e; peer++)
        for (size_t k = 0; k < x.send_bytes[peer]; k++)
            *at++ = byte_of(round, g->b, peer, k);
    x.operands[0] = test_to_device(t, x.send, x.sent);
    x.operands[1] = test_to_device(t, x.recv, x.received + NUM_GUARDS);
    x.operands[2] = test_to_device(t, x.wanted, x.received + NUM_GUARDS);
    return x;
}

static void exchange_check(test_setup *t, const grid *g, const exchange *x, int round,
                           size_t chunk_bytes)
{
    test_from_device(t, x->send, x->operands[0], x->sent);
    test_from_device(t, x->recv, x->operands[1], x->received + NUM_GUARDS);
    test_from_device(t, x->wanted, x->operands[2], x->received + NUM_GUARDS);
    EXPECT(memcmp(x->recv, x->wanted, x->received + NUM_GUARDS) == 0,
           "round %d, %d x %d, chunks of %zu: differs from the plain form", round, g->e, g->t,
           chunk_bytes);
    size_t num_wrong = 0;
    const uint8_t *at = x->recv;
    for (int peer = 0; peer < g->e; peer++)
        for (size_t k = 0; k < x->recv_bytes[peer]; k++)
            num_wrong += *at++ != byte_of(round, peer, g->b, k);
    EXPECT(num_wrong == 0, "round %d, %d x %d, chunks of %zu: %zu wrong", round, g->e, g->t,
           chunk_bytes, num_wrong);
}

static void exchange_free(exchange *x)
{
    free(x->send);
    free(x->recv);
    free(x->wanted);
    free(x->send_bytes);
    free(x->recv_bytes);
}

/* An operation on each lane, all in flight at once, with others of both groups between them. */
static void test_equal(test_setup *t, const grid *g, size_t chunk_bytes, int first_round)
{
    exchange all[TEST_NUM_LANES];
    int ranks[TEST_NUM_LANES][64];
    for (int k = 0; k < TEST_NUM_LANES; k++) {
        exchange *x = &all[k];
        *x = exchange_make(t, g, first_round + k, chunk_bytes);
        EXPECT_OK(weft_all_to_all_sharded(g->between, g->inside, t->lanes[k], x->operands[0],
                                          x->send_bytes, x->operands[1], x->recv_bytes,
                                          chunk_bytes));
        EXPECT_OK(weft_all_to_all(g->between, t->lanes[(k + 1) % TEST_NUM_LANES], x->operands[0],
                                  x->send_bytes, x->operands[2], x->recv_bytes));
        EXPECT_OK(weft_all_gather(g->inside, t->lanes[(k + 2) % TEST_NUM_LANES], &g->i, ranks[k],
                                  sizeof g->i, WEFT_U8));
    }
    for (int k = 0; k < TEST_NUM_LANES; k++)
        EXPECT_OK(weft_lane_sync(t->lanes[k]));
    for (int k = 0; k < TEST_NUM_LANES; k++) {
        exchange_check(t, g, &all[k], first_round + k, chunk_bytes);
        for (int i = 0; i < g->t; i++)
            EXPECT(ranks[k][i] == i, "gathered %d from rank %d", ranks[k][i], i);
        exchange_free(&all[k]);
    }
}

static void test_record(test_setup *t, const grid *g)
{
    size_t *rows = calloc((size_t)g->e, sizeof *rows);
    uint64_t bytes[2], counts[2];
    uint8_t own[2][100] = {{1}};
    rows[g->b] = sizeof own[0];
    weft_comm_totals(g->purpose, &bytes[0], &counts[0]);
    EXPECT_OK(
        weft_all_to_all_sharded(g->between, g->inside, t->lanes[0], own[0], rows, own[1], rows, 0));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT(memcmp(own[0], own[1], sizeof own[0]) == 0, "the own block");
    weft_comm_totals(g->purpose, &bytes[1], &counts[1]);
    EXPECT(bytes[1] - bytes[0] == 100 && counts[1] - counts[0] == 1, "%d bytes, %d operations",
           (int)(bytes[1] - bytes[0]), (int)(counts[1] - counts[0]));
    weft_comm_record last;
    EXPECT(weft_comm_records(&last, 1) == 1 && strcmp(last.kind, "all_to_all_sharded") == 0 &&
               strcmp(last.group, "between") == 0 && last.end_us > 0,
           "the record is %s of %s", last.kind, last.group);
    rows[g->b]--;
    size_t *other = calloc((size_t)g->e, sizeof *other);
    EXPECT_ERROR(
        weft_all_to_all_sharded(g->between, g->inside, t->lanes[0], own[0], rows, own[1], other, 0),
        WEFT_INTERNAL, "all_to_all_sharded sends 99 bytes to this rank itself");
    free(other);
    free(rows);
}

/* Block 0 of the second place along `between` comes with another size than is received there. One
 * rank there at least finds out; all of them where something is missing, since they hand it to each
 * other. */
static void test_mismatch(test_setup *t, int inner_size, size_t sent, size_t received)
{
    grid g = grid_make(t, inner_size, true);
    weft_lane *lane;
    EXPECT_OK(weft_lane_create(t->device, 0, "mismatch", &lane));
    size_t *rows = calloc((size_t)g.e * 2, sizeof *rows);
    uint8_t *array = calloc(sent + received + 1, 1);
    uint8_t *data = test_to_device(t, array, sent + received + 1);
    if (g.b == 0)
        rows[1] = sent;
    if (g.b == 1)
        rows[g.e] = received;
    weft_status status =
        test_lane_status(lane, weft_all_to_all_sharded(g.between, g.inside, lane, data, rows,
                                                       data + sent, rows + g.e, 512));
    int32_t failed = g.b == 1 && status != WEFT_OK;
    if (failed) {
        const char *text = weft_error_get()->text;
        EXPECT(status == WEFT_COMM && strstr(text, "group between, rank 1 of") &&
                   strstr(text, "all_to_all_sharded 0: ") && strstr(text, "received here"),
               "the text is \"%s\"", text);
        weft_error_clear();
        EXPECT_ERROR(weft_comm_barrier(g.between), WEFT_COMM,
                     "group between is broken since its all_to_all_sharded 0");
        EXPECT_ERROR(weft_comm_barrier(g.inside), WEFT_COMM, "group inside is broken");
    } else {
        EXPECT_OK(status);
    }
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, &failed, 1, WEFT_I32, WEFT_REDUCE_SUM));
    EXPECT(received > sent ? failed == g.t : failed >= 1 && failed <= g.t,
           "%d of %d found %zu bytes for %zu", failed, g.t, sent, received);
    free(rows);
    test_from_device(t, array, data, sent + received + 1);
    free(array);
    weft_lane_destroy(lane);
    grid_release(&g);
}

/* Debug mode tells the difference on every rank. */
static void test_check(test_setup *t, int inner_size)
{
    grid g = grid_make(t, inner_size, true);
    weft_lane *lane;
    EXPECT_OK(weft_lane_create(t->device, 0, "checked", &lane));
    size_t *rows = calloc((size_t)g.e * 2, sizeof *rows);
    uint8_t data[16] = {0};
    weft_comm_set_check(true);
    EXPECT_OK(weft_all_to_all_sharded(g.between, g.inside, lane, data, rows, data, rows + g.e, 64));
    EXPECT_OK(weft_lane_sync(lane));
    if (g.e > 1 && g.b == 0)
        rows[1] = 8;
    weft_status status = test_lane_status(
        lane, weft_all_to_all_sharded(g.between, g.inside, lane, data, rows, data, rows + g.e, 64));
    if (g.e > 1)
        EXPECT_ERROR(status, WEFT_COMM, "rank 0 sends 8 bytes to rank 1, which receives 0");
    else
        EXPECT_OK(status);
    weft_comm_set_check(false);
    free(rows);
    weft_lane_destroy(lane);
    grid_release(&g);
}

/* The ranks inside disagree about the size of chunks; those between agree. */
static void test_check_inside(test_setup *t, int inner_size)
{
    grid g = grid_make(t, inner_size, true);
    weft_lane *lane;
    EXPECT_OK(weft_lane_create(t->device, 0, "checked", &lane));
    size_t *rows = calloc((size_t)g.e, sizeof *rows);
    weft_comm_set_check(true);
    weft_status status =
        test_lane_status(lane, weft_all_to_all_sharded(g.between, g.inside, lane, NULL, rows, NULL,
                                                       rows, g.i == 0 ? 64 : 128));
    EXPECT_ERROR(status, WEFT_COMM, "inside group inside: rank 1 differs");
    weft_comm_set_check(false);
    free(rows);
    weft_lane_destroy(lane);
    grid_release(&g);
}

/* Ranks that failed keep requests, hence cannot end MPI in peace: the test says how it went, then
 * takes the job down. */
static void finish_mismatches(test_setup *t)
{
    int32_t failures = expect_failures;
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, &failures, 1, WEFT_I32, WEFT_REDUCE_SUM));
    if (t->rank == 0) {
        puts(failures ? "some mismatch was not found" : "every mismatch was found");
        fflush(stdout);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    EXPECT_OK(weft_comm_barrier(t->comm));
    weft_comm_abort(t->comm, WEFT_COMM);
}

static void test_mismatches(test_setup *t, int inner_size)
{
    static const size_t pairs[][2] = {{100, 200}, {200, 100},  {0, 8},      {8, 0},
                                      {65, 64},   {512, 513},  {1024, 512}, {512, 1024},
                                      {511, 512}, {3000, 100}, {100, 3000}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        test_mismatch(t, inner_size, pairs[i][0], pairs[i][1]);
    test_check(t, inner_size);
    if (inner_size > 1)
        test_check_inside(t, inner_size);
}

static void test_grid(test_setup *t, int inner_size, bool inside_first)
{
    static const size_t chunks[] = {1, 1000, 4096, 70000, 0};
    grid g = grid_make(t, inner_size, inside_first);
    for (int i = 0; i < (int)(sizeof chunks / sizeof chunks[0]); i++)
        test_equal(t, &g, chunks[i], 10 * i + 3 * inside_first);
    test_record(t, &g);
    grid_release(&g);
}

int main(int argc, char **argv)
{
    bool mismatches = argc > 1 && strcmp(argv[1], "mismatches") == 0;
    test_setup t;
    test_setup_init(&t);
    for (int inner_size = 1; inner_size <= t.size; inner_size++) {
        if (t.size % inner_size)
            continue;
        if (mismatches && inner_size < t.size) {
            test_mismatches(&t, inner_size);
        } else if (!mismatches) {
            test_grid(&t, inner_size, true);
            test_grid(&t, inner_size, false);
        }
    }
    if (mismatches)
        finish_mismatches(&t);
    return test_setup_finish(&t);
}
