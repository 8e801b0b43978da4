/* Random programs: groups of every purpose, each with its own lane and the same random operations
 * on all members, random delays before them and waits between them on each rank, and neighbours
 * that count as nodes so that the gate holds back and cuts. Whatever the delays, all must end, with
 * the right values.
 *
 *     test_comm_stress [SECONDS [SEED]]      an even number of ranks, at least 4 */
#include <errno.h>
#include <time.h>

#include "comm/mpi/mpi_comm.h"
#include "tests/comm/comm_test.h"

enum {
    NUM_OPS = 14, /* of a group in an epoch */
    MAX_ELEMENTS = 60000,
    STUCK_SECONDS = 300,
};

typedef enum stress_place { TP, EP, PP_SEND, PP_RECV, CP, DP, CONTROL, NUM_PLACES } stress_place;
static const char *const place_texts[NUM_PLACES] = {"tp", "ep", "pp send", "pp recv",
                                                    "cp", "dp", "control"};

/* One operation of one rank, with what it reads, writes and should have written. */
typedef struct operation {
    stress_place place;
    int kind;
    uint64_t id; /* the same on all members */
    size_t count;
    int32_t *send, *recv, *wanted;
    size_t num_wanted;
    size_t *bytes; /* an all-to-all's rows */
} operation;

typedef struct stress {
    test_setup setup;
    uint64_t seed, epoch;
    weft_comm *groups[NUM_PLACES]; /* PP_RECV: that of PP_SEND, lent */
    weft_comm *inside;             /* of EP, for the all-to-all in chunks */
    weft_lane *lanes[NUM_PLACES];
    weft_event *events[NUM_PLACES]; /* behind what is queued there */
    operation ops[NUM_PLACES][NUM_OPS];
    pthread_mutex_t lock; /* the watch's */
    pthread_cond_t change;
    uint64_t num_epochs;
    bool over;
} stress;

static uint64_t random_of(uint64_t a, uint64_t b, uint64_t c)
{
    return test_hash(test_hash(a, b), c);
}

static int32_t value(uint64_t id, int rank, size_t i)
{
    return (int32_t)((id % 65521 + 1) * (uint64_t)(rank + 1) * 31 + i * 7) & 0xffffff;
}

/* Mostly small, at times large, at times nothing. */
static size_t random_count(uint64_t random)
{
    if (random % 16 == 0)
        return 0;
    return (random >> 8) % ((size_t)MAX_ELEMENTS >> (random >> 4) % 12) + 1;
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    if (!memory)
        abort();
    return memory;
}

static void fill(operation *op, size_t num_send, size_t num_recv, size_t num_wanted)
{
    op->send = allocate(num_send * sizeof *op->send);
    op->recv = allocate(num_recv * sizeof *op->recv);
    op->wanted = allocate(num_wanted * sizeof *op->wanted);
    op->num_wanted = num_wanted;
}

static size_t row_count(uint64_t id, int from, int to)
{
    return random_count(random_of(id, (uint64_t)from, (uint64_t)to)) / 4;
}

static void prepare_rows(operation *op, int rank, int size)
{
    size_t num_sent = 0, num_received = 0;
    op->bytes = allocate(2 * (size_t)size * sizeof *op->bytes);
    for (int peer = 0; peer < size; peer++) {
        op->bytes[peer] = row_count(op->id, rank, peer) * sizeof(int32_t);
        op->bytes[size + peer] = row_count(op->id, peer, rank) * sizeof(int32_t);
        num_sent += op->bytes[peer] / sizeof(int32_t);
        num_received += op->bytes[size + peer] / sizeof(int32_t);
    }
    fill(op, num_sent, num_received, num_received);
    size_t sent = 0, received = 0;
    for (int peer = 0; peer < size; peer++) {
        for (size_t i = 0; i < row_count(op->id, rank, peer); i++)
            op->send[sent++] = value(op->id, rank * size + peer, i);
        for (size_t i = 0; i < row_count(op->id, peer, rank); i++)
            op->wanted[received++] = value(op->id, peer * size + rank, i);
    }
}

static void prepare_reduction(operation *op, int rank, int size, bool scatter)
{
    size_t all = scatter ? (size_t)size * op->count : op->count;
    size_t skip = scatter ? (size_t)rank * op->count : 0;
    fill(op, all, op->count, op->count);
    for (size_t i = 0; i < all; i++)
        op->send[i] = value(op->id, rank, i);
    for (int peer = 0; peer < size; peer++)
        for (size_t i = 0; i < op->count; i++)
            op->wanted[i] += value(op->id, peer, skip + i);
    if (!scatter)
        memcpy(op->recv, op->send, op->count * sizeof *op->recv);
}

static void prepare_gather(operation *op, int rank, int size)
{
    fill(op, op->count, (size_t)size * op->count, (size_t)size * op->count);
    for (size_t i = 0; i < op->count; i++)
        op->send[i] = value(op->id, rank, i);
    for (int peer = 0; peer < size; peer++)
        for (size_t i = 0; i < op->count; i++)
            op->wanted[(size_t)peer * op->count + i] = value(op->id, peer, i);
}

/* From one rank to this one; -1: only what is sent. */
static void prepare_message(operation *op, int rank, int from)
{
    fill(op, op->count, op->count, from < 0 ? 0 : op->count);
    for (size_t i = 0; i < op->count; i++)
        op->send[i] = value(op->id, rank, i);
    for (size_t i = 0; i < op->num_wanted; i++)
        op->wanted[i] = value(op->id, from, i);
}

static void prepare(stress *s, stress_place place, int index)
{
    operation *op = &s->ops[place][index];
    weft_comm *group = s->groups[place];
    int rank = weft_comm_rank(group), size = weft_comm_size(group);
    uint64_t name = (uint64_t)(place == PP_RECV ? PP_SEND : place) << 32;
    if (place != EP) /* whose all-to-all in chunks spans all such groups */
        name += (uint64_t)weft_comm_world_rank(group, 0);
    *op = (operation){.place = place};
    op->id = random_of(s->seed, s->epoch, random_of(name, (uint64_t)index, 0));
    uint64_t random = random_of(op->id, 1, 0);
    op->count = random_count(random_of(op->id, 2, 0));
    op->kind = (int)(random % 3);
    switch (place) {
    case TP:
    case DP:
        if (op->kind == 2 && place == TP)
            prepare_gather(op, rank, size);
        else if (op->kind == 2)
            prepare_message(op, rank, (int)(random / 3 % (uint64_t)size)); /* a broadcast */
        else
            prepare_reduction(op, rank, size, op->kind == 1);
        break;
    case EP:
        prepare_rows(op, rank, size);
        break;
    case PP_SEND:
        prepare_message(op, rank, -1);
        break;
    case PP_RECV:
        prepare_message(op, rank, rank > 0 ? rank - 1 : -1);
        break;
    case CP:
        if (op->kind == 0)
            prepare_gather(op, rank, size);
        else
            prepare_message(op, rank, (rank + size - 1) % size);
        break;
    default:
        op->count = op->count % 4 + 1;
        prepare_reduction(op, rank, size, false);
    }
}

static weft_status queue(stress *s, operation *op)
{
    weft_comm *group = s->groups[op->place];
    weft_lane *lane = s->lanes[op->place];
    int rank = weft_comm_rank(group), size = weft_comm_size(group);
    size_t bytes = op->count * sizeof(int32_t);
    int tag = (int)(op->id % 2);
    switch (op->place) {
    case TP:
    case DP:
        if (op->kind == 0)
            return weft_all_reduce(group, lane, op->recv, op->count, WEFT_I32, WEFT_REDUCE_SUM);
        if (op->kind == 1)
            return weft_reduce_scatter(group, lane, op->send, op->recv, op->count, WEFT_I32,
                                       WEFT_REDUCE_SUM);
        if (op->place == TP)
            return weft_all_gather(group, lane, op->send, op->recv, op->count, WEFT_I32);
        int root = (int)(random_of(op->id, 1, 0) / 3 % (uint64_t)size);
        if (rank == root)
            memcpy(op->recv, op->send, bytes);
        return weft_broadcast(group, lane, op->recv, bytes, root);
    case EP:
        if (op->kind == 0)
            return weft_all_to_all_sharded(group, s->inside, lane, op->send, op->bytes, op->recv,
                                           op->bytes + size, 0);
        return weft_all_to_all(group, lane, op->send, op->bytes, op->recv, op->bytes + size);
    case PP_SEND:
        return rank + 1 < size ? weft_send(group, lane, rank + 1, tag, op->send, bytes) : WEFT_OK;
    case PP_RECV:
        return rank > 0 ? weft_recv(group, lane, rank - 1, tag, op->recv, bytes) : WEFT_OK;
    case CP:
        if (op->kind == 0)
            return weft_all_gather(group, lane, op->send, op->recv, op->count, WEFT_I32);
        return weft_send_recv(group, lane, (rank + 1) % size, op->send, bytes,
                              (rank + size - 1) % size, op->recv, bytes, tag);
    default:
        return weft_all_reduce(group, lane, op->recv, op->count, WEFT_I32, WEFT_REDUCE_SUM);
    }
}

static weft_status sleep_us(const void *args)
{
    long us = *(const long *)args;
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    return WEFT_OK;
}

/* Queues the next operation of a place, now and then late, or behind what this rank has queued on
 * another lane so far. */
static void queue_next(stress *s, stress_place place, int index, uint64_t random)
{
    weft_lane *lane = s->lanes[place];
    long us = (random >> 8) % 3 ? 0 : (long)((random >> 16) % 2000);
    us = (random >> 40) % 64 == 0 ? 15000 : us;
    if (us > 0)
        EXPECT_OK(weft_lane_submit(lane, "delay", sleep_us, &us, sizeof us));
    if ((random >> 48) % 3 == 0)
        EXPECT_OK(weft_lane_wait(lane, s->events[(random >> 52) % NUM_PLACES]));
    EXPECT_OK(queue(s, &s->ops[place][index]));
}

/* The order is the same on all ranks, so that whatever waits for what, it could end: delays and
 * waits are each rank's own. Both ends of a message have one place in the order. */
static void run_epoch(stress *s)
{
    int next[NUM_PLACES] = {0};
    uint64_t common = random_of(s->seed, s->epoch, 999);
    uint64_t mine = random_of(s->seed, s->epoch, 1000 + (uint64_t)s->setup.rank);
    for (int p = 0; p < NUM_PLACES; p++)
        for (int i = 0; i < NUM_OPS; i++)
            prepare(s, (stress_place)p, i);
    for (int left = (NUM_PLACES - 1) * NUM_OPS; left > 0; left--) {
        int p = (int)(random_of(common, (uint64_t)left, 0) % NUM_PLACES);
        while (p == PP_RECV || next[p] == NUM_OPS)
            p = (p + 1) % NUM_PLACES;
        int index = next[p]++;
        queue_next(s, (stress_place)p, index, random_of(mine, (uint64_t)left, 0));
        if (p == PP_SEND) {
            queue_next(s, PP_RECV, index, random_of(mine, (uint64_t)left, 1));
            EXPECT_OK(weft_lane_record(s->lanes[PP_RECV], s->events[PP_RECV]));
        }
        EXPECT_OK(weft_lane_record(s->lanes[p], s->events[p]));
    }
    for (int p = 0; p < NUM_PLACES; p++)
        EXPECT_OK(weft_lane_sync(s->lanes[p]));
}

static void compare(stress *s)
{
    for (int p = 0; p < NUM_PLACES; p++)
        for (int i = 0; i < NUM_OPS; i++) {
            operation *op = &s->ops[p][i];
            size_t num_wrong = 0;
            for (size_t k = 0; k < op->num_wanted; k++)
                num_wrong += op->recv[k] != op->wanted[k];
            EXPECT(num_wrong == 0,
                   "rank %d, seed %llu, epoch %llu, %s operation %d (kind %d): "
                   "%zu of %zu values are wrong",
                   s->setup.rank, (unsigned long long)s->seed, (unsigned long long)s->epoch,
                   place_texts[p], i, op->kind, num_wrong, op->num_wanted);
            free(op->send);
            free(op->recv);
            free(op->wanted);
            free(op->bytes);
        }
}

/* Every other epoch cuts small and holds briefly, and goes by messages inside nodes too. */
static void set_limits(const stress *s)
{
    weft_mpi_limits limits = {.ranks_per_node = s->setup.size / 2};
    if (s->epoch % 2 == 0) {
        limits.message_bytes = limits.piece_bytes = 8192;
        limits.background_bytes = 4096;
        limits.shared_bytes = SIZE_MAX;
        limits.gate = (weft_gate_limits){.small_bytes = 256,
                                         .window_bytes = {8192, 4096 + s->epoch % 4 * 4096},
                                         .hold_ns = 2000000,
                                         .quiet_ns = 1000000};
    }
    weft_mpi_set_limits(&limits);
}

/* Tells what is in flight when an epoch does not end, and ends the job. */
static void *watch(void *arg)
{
    stress *s = arg;
    static weft_comm_record records[WEFT_COMM_MAX_RECORDS];
    pthread_mutex_lock(&s->lock);
    while (!s->over) {
        uint64_t seen = s->num_epochs;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += STUCK_SECONDS;
        int error = 0;
        while (!s->over && s->num_epochs == seen && error != ETIMEDOUT)
            error = pthread_cond_timedwait(&s->change, &s->lock, &until);
        if (s->over || s->num_epochs != seen)
            continue;
        fprintf(stderr, "rank %d: stuck, seed %llu, epoch %llu\n", s->setup.rank,
                (unsigned long long)s->seed, (unsigned long long)s->epoch);
        int num = weft_comm_records(records, WEFT_COMM_MAX_RECORDS);
        for (int i = 0; i < num; i++)
            if (records[i].end_us == 0)
                fprintf(stderr, "rank %d: %s %s %llu of %zu bytes, peer %d\n", s->setup.rank,
                        records[i].group, records[i].kind, (unsigned long long)records[i].sequence,
                        records[i].bytes, records[i].peer);
        weft_comm_abort(s->setup.comm, WEFT_COMM);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void announce(stress *s, bool over)
{
    pthread_mutex_lock(&s->lock);
    s->num_epochs++;
    s->over = over;
    pthread_cond_signal(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static void make_groups(stress *s)
{
    test_setup *t = &s->setup;
    int rank = t->rank, half = t->size / 2;
    static const weft_comm_purpose purposes[NUM_PLACES] = {
        [TP] = WEFT_PURPOSE_TENSOR,  [EP] = WEFT_PURPOSE_EXPERT, [PP_SEND] = WEFT_PURPOSE_PIPELINE,
        [CP] = WEFT_PURPOSE_CONTEXT, [DP] = WEFT_PURPOSE_DATA,   [CONTROL] = WEFT_PURPOSE_CONTROL};
    const int colors[NUM_PLACES] = {[TP] = rank / 2, [EP] = rank % 2, [CP] = rank % half};
    for (int p = 0; p < NUM_PLACES; p++) {
        setup_must(weft_lane_create(t->device, 0, place_texts[p], &s->lanes[p]));
        setup_must(weft_event_create(t->device, &s->events[p]));
        if (p != PP_RECV)
            setup_must(weft_comm_split(t->comm, colors[p], rank, place_texts[p], purposes[p],
                                       &s->groups[p]));
    }
    s->groups[PP_RECV] = s->groups[PP_SEND];
    setup_must(weft_comm_split(t->comm, rank / 2, rank, "etp", WEFT_PURPOSE_TENSOR, &s->inside));
}

int main(int argc, char **argv)
{
    static stress s = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
    double seconds = argc > 1 ? atof(argv[1]) : 4;
    s.seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_setup_init(&s.setup);
    if (s.setup.size < 4 || s.setup.size % 2 != 0)
        return test_setup_finish(&s.setup);
    make_groups(&s);
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, watch, &s) != 0)
        return 1;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int32_t go_on = 1; go_on; s.epoch++) {
        set_limits(&s);
        EXPECT_OK(weft_comm_barrier(s.setup.comm));
        run_epoch(&s);
        compare(&s);
        clock_gettime(CLOCK_MONOTONIC, &now);
        go_on = (double)(now.tv_sec - start.tv_sec) < seconds && expect_failures == 0;
        EXPECT_OK(weft_comm_all_reduce_host(s.setup.comm, &go_on, 1, WEFT_I32, WEFT_REDUCE_MIN));
        announce(&s, !go_on);
    }
    pthread_join(watcher, NULL);
    if (s.setup.rank == 0)
        printf("%llu epochs of %d operations a rank, seed %llu\n", (unsigned long long)s.epoch,
               NUM_PLACES * NUM_OPS, (unsigned long long)s.seed);
    for (int p = 0; p < NUM_PLACES; p++) {
        weft_lane_destroy(s.lanes[p]);
        if (p != PP_RECV)
            weft_comm_destroy(s.groups[p]);
    }
    weft_comm_destroy(s.inside);
    return test_setup_finish(&s.setup);
}
