/* Collectives through shared windows, on any number of ranks of one node: the same bits as by
 * messages, for all types, kinds and odd counts; many at once on lanes and groups; what differs
 * between ranks is an error on all of them. With the argument "off" or "disagree": the
 * environment's WEFT_SHARED_WINDOWS is 0, or not the same on all ranks. */
#include <unistd.h>

#include "comm/mpi/mpi_comm.h"
#include "tests/comm/comm_test.h"

static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_I32, WEFT_I64};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0], GUARD = 0x5a };

typedef enum path { BY_MESSAGES, BY_WINDOW, BY_SMALL_PIECES } path;

/* No operation may be in flight here. */
static void set_path(path way)
{
    weft_mpi_set_limits(&(weft_mpi_limits){
        .shared_bytes = way == BY_MESSAGES ? SIZE_MAX : 1,
        .piece_bytes = way == BY_SMALL_PIECES ? 192 : 0,
    });
}

static bool has_window(const weft_comm *comm)
{
    return ((const weft_mpi_comm *)comm)->window != NULL;
}

/* One operation and its operands, made alike on every rank from its seed. */
typedef enum form {
    ALL_REDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_IN_PLACE,
    ALL_GATHER,
    ALL_GATHER_IN_PLACE,
    NUM_FORMS,
} form;

typedef struct operation {
    weft_comm *comm;
    form form;
    weft_dtype dtype;
    weft_reduce reduce;
    size_t count;
    char *send, *recv; /* recv may point into send, or send into recv */
    char *memory;      /* of both */
    size_t send_bytes, recv_bytes;
} operation;

/* The operands lie `shift` elements off their alignment. */
static void operation_init(operation *op, size_t shift, uint64_t seed)
{
    size_t element = weft_dtype_bytes(op->dtype), share = op->count * element;
    size_t size = (size_t)weft_comm_size(op->comm), rank = (size_t)weft_comm_rank(op->comm);
    bool reduces = op->form <= REDUCE_SCATTER_IN_PLACE;
    op->send_bytes = op->form == ALL_REDUCE || !reduces ? share : size * share;
    op->recv_bytes = reduces ? share : size * share;
    size_t room = op->send_bytes + op->recv_bytes + (2 * shift + 1) * element;
    op->memory = malloc(room);
    memset(op->memory, GUARD, room);
    op->send = op->memory + shift * element;
    op->recv = op->send + op->send_bytes + shift * element;
    if (op->form == ALL_REDUCE)
        op->recv = op->send;
    else if (op->form == REDUCE_SCATTER_IN_PLACE)
        op->recv = op->send + rank * share;
    else if (op->form == ALL_GATHER_IN_PLACE)
        op->send = op->recv + rank * share;
    test_fill(op->send, op->dtype, op->send_bytes / element, test_hash(seed, rank));
}

static weft_status operation_issue(const operation *op, weft_lane *lane)
{
    if (op->form == ALL_REDUCE)
        return weft_all_reduce(op->comm, lane, op->recv, op->count, op->dtype, op->reduce);
    if (op->form <= REDUCE_SCATTER_IN_PLACE)
        return weft_reduce_scatter(op->comm, lane, op->send, op->recv, op->count, op->dtype,
                                   op->reduce);
    return weft_all_gather(op->comm, lane, op->send, op->recv, op->count, op->dtype);
}

/* The result by messages, which test_collectives.c compares with sums of its own. */
static void expect_as_by_messages(const operation *op, weft_lane *lane, size_t shift, uint64_t seed,
                                  const char *where)
{
    operation twin = *op;
    operation_init(&twin, shift, seed);
    EXPECT_OK(operation_issue(&twin, lane));
    EXPECT_OK(weft_lane_sync(lane));
    EXPECT(memcmp(twin.recv, op->recv, op->recv_bytes) == 0,
           "%s: form %d of %zu %s, reduce %d, on %d ranks: other bits than by messages", where,
           (int)op->form, op->count, weft_dtype_text(op->dtype), (int)op->reduce,
           weft_comm_size(op->comm));
    const char *end = op->memory + (op->recv - op->memory) + op->recv_bytes;
    bool last = op->form != ALL_REDUCE && op->form != REDUCE_SCATTER_IN_PLACE;
    EXPECT(!last || *end == GUARD, "%s: form %d wrote past its end", where, (int)op->form);
    free(twin.memory);
}

static void test_bits(test_setup *t, path way)
{
    static const size_t counts[] = {1, 5, 63, 1001, 70001};
    size_t num_counts = sizeof counts / sizeof counts[0] - (way == BY_SMALL_PIECES);
    for (size_t c = 0; c < num_counts; c++)
        for (int d = 0; d < NUM_DTYPES; d++)
            for (int f = 0; f < NUM_FORMS; f++) {
                uint64_t seed = test_hash(c * 64 + (uint64_t)d, (uint64_t)f);
                operation op = {.comm = t->comm,
                                .form = (form)f,
                                .dtype = dtypes[d],
                                .reduce = (weft_reduce)(seed % 3),
                                .count = counts[c]};
                operation_init(&op, c % 2, seed);
                set_path(way);
                EXPECT_OK(operation_issue(&op, t->lanes[0]));
                EXPECT_OK(weft_lane_sync(t->lanes[0]));
                set_path(BY_MESSAGES);
                expect_as_by_messages(&op, t->lanes[0], c % 2, seed, "alone");
                free(op.memory);
            }
}

/* Operations of three groups, issued in one order on every rank, but on lanes that each rank picks
 * for itself and with delays of its own; more at once than a window has channels. */
enum { NUM_AT_ONCE = 60, NUM_LANES = 12 };

static void test_many_at_once(test_setup *t, weft_comm *const *groups, int num_groups, path way)
{
    operation ops[NUM_AT_ONCE];
    weft_lane *lanes[NUM_LANES];
    for (int i = 0; i < NUM_LANES; i++)
        setup_must(weft_lane_create(t->device, 0, "many", &lanes[i]));
    for (uint64_t i = 0; i < NUM_AT_ONCE; i++) {
        uint64_t hash = test_hash(i, 77);
        ops[i] = (operation){.comm = groups[hash % (uint64_t)num_groups],
                             .form = (form)(hash / 4 % NUM_FORMS),
                             .dtype = dtypes[hash / 32 % NUM_DTYPES],
                             .reduce = (weft_reduce)(hash / 256 % 3),
                             .count = 1 + hash / 1024 % (way == BY_SMALL_PIECES ? 500 : 60000)};
        operation_init(&ops[i], i % 3, i);
    }
    set_path(way);
    for (uint64_t i = 0; i < NUM_AT_ONCE; i++) {
        uint64_t mine = test_hash(i, 1000 + (uint64_t)t->rank);
        if (mine % 8 == 0)
            usleep((useconds_t)(mine / 8 % 3000));
        EXPECT_OK(operation_issue(&ops[i], lanes[mine / 64 % NUM_LANES]));
    }
    for (int i = 0; i < NUM_LANES; i++)
        EXPECT_OK(weft_lane_sync(lanes[i]));
    EXPECT_OK(weft_comm_barrier(t->comm));
    set_path(BY_MESSAGES);
    for (uint64_t i = 0; i < NUM_AT_ONCE; i++) {
        expect_as_by_messages(&ops[i], t->lanes[0], i % 3, i, "many");
        free(ops[i].memory);
    }
    for (int i = 0; i < NUM_LANES; i++)
        weft_lane_destroy(lanes[i]);
}

/* Messages of a rank that waits in a window go on: the window's operation ends only when a message
 * sent before it has come through. */
static void test_beside_messages(test_setup *t)
{
    if (t->size < 2)
        return;
    size_t bytes = 3000000;
    char *sent = malloc(bytes), *received = malloc(bytes);
    float sum = 1;
    memset(sent, t->rank + 1, bytes);
    set_path(BY_WINDOW);
    if (t->rank == 0)
        EXPECT_OK(weft_send(t->comm, t->lanes[0], 1, 5, sent, bytes));
    if (t->rank == 1) {
        EXPECT_OK(weft_recv(t->comm, t->lanes[0], 0, 5, received, bytes));
        EXPECT_OK(weft_lane_sync(t->lanes[0]));
        EXPECT(received[0] == 1 && received[bytes - 1] == 1, "another message arrived");
    }
    EXPECT_OK(weft_all_reduce(t->comm, t->lanes[1], &sum, 1, WEFT_F32, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_lane_sync(t->lanes[1]));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    EXPECT(sum == (float)t->size, "sum %g", sum);
    free(sent);
    free(received);
}

static weft_comm *split(weft_comm *comm, int color, int key, const char *name)
{
    weft_comm *group;
    setup_must(weft_comm_split(comm, color, key, name, WEFT_PURPOSE_TENSOR, &group));
    return group;
}

/* Who gets a window: groups inside a node. */
static void test_who(test_setup *t, bool on)
{
    if (t->size < 2)
        return;
    EXPECT(has_window(t->comm) == on, "the world's window");
    if (t->size % 4 != 0)
        return;
    weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = t->size / 2});
    weft_comm *inside = split(t->comm, t->rank / (t->size / 2), 0, "inside");
    weft_comm *between = split(t->comm, t->rank % (t->size / 2), 0, "between");
    EXPECT(has_window(inside) == on, "a node's window");
    EXPECT(!has_window(between), "a window between nodes");
    weft_mpi_set_limits(NULL);
    weft_comm_destroy(inside);
    weft_comm_destroy(between);
}

/* Ranks that do not mean the same all learn it, and other groups go on. */
static void test_mismatch(test_setup *t)
{
    if (t->size < 2)
        return;
    weft_comm *group = split(t->comm, 0, t->rank, "wrong");
    float *x = calloc(1000, sizeof *x);
    set_path(BY_WINDOW);
    usleep(t->rank == 1 ? 20000 : 0);
    size_t count = t->rank == 1 ? 900 : 1000;
    weft_status status = weft_comm_all_reduce_host(group, x, count, WEFT_F32, WEFT_REDUCE_SUM);
    const char *text = weft_error_get()->text;
    EXPECT(status == WEFT_COMM, "status %d", (int)status);
    EXPECT(strstr(text, "differs: all_reduce of") || strstr(text, "failed in this operation"),
           "text \"%s\"", text);
    weft_error_clear();
    EXPECT_ERROR(weft_comm_barrier(group), WEFT_COMM, "is broken since its all_reduce");
    EXPECT_OK(weft_comm_barrier(t->comm));
    weft_comm_destroy(group);
    free(x);
}

static int test_disagreement(void)
{
    int rank = 0;
    weft_comm *world;
    weft_comm_launched(&rank, NULL, NULL, NULL);
    setenv("WEFT_SHARED_WINDOWS", rank == 1 ? "0" : "1", 1);
    EXPECT_ERROR(weft_comm_create_world(&world), WEFT_CONFIG,
                 "WEFT_SHARED_WINDOWS must be the same on all ranks");
    return expect_finish();
}

/* What is urgent to one rank holds back the others of its node. */
static void test_gate(test_setup *t, bool on)
{
    enum { BULK = 1 << 20 };
    const weft_gate_link link = WEFT_GATE_BETWEEN;
    const weft_gate_limits *limits = &weft_mpi_get_limits()->gate;
    bool urgent_here = t->rank == 0, free = !on && !urgent_here;
    weft_gate_pass urgent, pass;
    if (t->size == 1)
        return; /* no MPI */
    EXPECT_OK(weft_comm_agree(t->comm, WEFT_OK));
    weft_gate_enter(&urgent, weft_mpi_gate(), limits, WEFT_PURPOSE_EXPERT);
    weft_gate_enter(&pass, weft_mpi_gate(), limits, WEFT_PURPOSE_DATA);
    if (urgent_here)
        weft_gate_await(&urgent, link, BULK, 0);
    EXPECT_OK(weft_comm_agree(t->comm, WEFT_OK));
    weft_gate_queue(&pass, link, BULK, 0);
    EXPECT(weft_gate_admit(&pass, link, 0, BULK, 0) == free, "rank %d", t->rank);
    EXPECT_OK(weft_comm_agree(t->comm, WEFT_OK));
    weft_gate_leave(&urgent);
    EXPECT_OK(weft_comm_agree(t->comm, WEFT_OK));
    EXPECT(free || weft_gate_admit(&pass, link, 0, BULK, 0), "rank %d: still held", t->rank);
    weft_gate_leave(&pass);
}

static const void *window_of(const weft_comm *comm)
{
    return ((const weft_mpi_comm *)comm)->window;
}

/* A group of the same ranks in the same order has a destroyed one's window, and sums with it. */
static void test_reuse(test_setup *t)
{
    const void *first = NULL;
    if (t->size == 1)
        return; /* no MPI */
    for (int i = 0; i < 2; i++) {
        weft_comm *group = split(t->comm, 0, t->rank, "group"),
                  *again = split(t->comm, 0, t->rank, "again"),
                  *turned = split(t->comm, 0, -t->rank, "turned");
        first = first ? first : window_of(group);
        EXPECT(window_of(group) == first || window_of(again) == first, "pass %d", i);
        EXPECT(window_of(group) != window_of(again), "pass %d: two groups share", i);
        EXPECT(window_of(turned) != first, "pass %d: ranks in another order", i);
        test_many_at_once(t, (weft_comm *[]){group, again, turned}, 3, BY_WINDOW);
        weft_comm_destroy(turned);
        weft_comm_destroy(again);
        weft_comm_destroy(group);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    bool on = strcmp(what, "off") != 0;
    if (strcmp(what, "disagree") == 0)
        return test_disagreement();
    setenv("WEFT_SHARED_WINDOWS", on ? "1" : "0", 1);
    test_setup t;
    test_setup_init(&t);
    test_who(&t, on);
    test_gate(&t, on);
    test_bits(&t, BY_WINDOW);
    if (on) {
        weft_comm *groups[] = {t.comm, split(t.comm, t.rank % 2, t.rank, "half"),
                               split(t.comm, 0, -t.rank, "turned")};
        test_bits(&t, BY_SMALL_PIECES);
        test_many_at_once(&t, groups, 1, BY_WINDOW);
        test_many_at_once(&t, groups, 3, BY_WINDOW);
        test_many_at_once(&t, groups, 3, BY_SMALL_PIECES);
        test_beside_messages(&t);
        weft_comm_destroy(groups[1]);
        weft_comm_destroy(groups[2]);
        test_reuse(&t);
        test_mismatch(&t);
        test_reuse(&t);
    }
    weft_mpi_set_limits(NULL);
    return test_setup_finish(&t);
}
