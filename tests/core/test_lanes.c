/* Lanes and events: order, real overlap, and points that stay where they were recorded. Data is
 * handed over without locks or atomics, so the thread sanitizer judges the hand-offs too. */
#include <pthread.h>

#include "tests/core/lanes.h"

typedef struct append_args {
    int *list, *count, value;
    unsigned char rest[WEFT_LANE_MAX_ARGS_BYTES - 24]; /* the largest arguments that are allowed */
} append_args;

static weft_status lane_append(const void *args)
{
    const append_args *a = args;
    for (size_t i = 0; i < sizeof a->rest; i++)
        if (a->rest[i] != (unsigned char)a->value)
            return WEFT_ERROR(WEFT_INTERNAL, "arguments of %d are damaged", a->value);
    a->list[(*a->count)++] = a->value;
    return WEFT_OK;
}

CASE(a_lane_runs_in_order)
{
    bench *t = *state;
    enum { NUM = 5000 }; /* several times round the ring, which fills behind the gate */
    static int list[NUM];
    int count = 0;
    append_args args = {.list = list, .count = &count};
    assert_int_equal(sizeof args, WEFT_LANE_MAX_ARGS_BYTES);
    for (int i = 0; i < NUM; i++) {
        args.value = i;
        memset(args.rest, i, sizeof args.rest);
        OK(SUBMIT(t->a, lane_append, args));
    }
    OK(weft_lane_sync(t->a));
    assert_int_equal(count, NUM);
    for (int i = 0; i < NUM; i++)
        assert_int_equal(list[i], i);
}

typedef struct meeting {
    atomic_bool *mine, *theirs;
} meeting;

static weft_status lane_meet(const void *args)
{
    const meeting *m = args;
    atomic_store(m->mine, true);
    return lane_gate(&m->theirs);
}

CASE(two_lanes_overlap)
{
    bench *t = *state;
    atomic_bool here = false, there = false;
    meeting a = {&here, &there}, b = {&there, &here};
    OK(SUBMIT(t->a, lane_meet, a)); /* each ends only while the other runs */
    OK(SUBMIT(t->b, lane_meet, b));
    OK(weft_lane_sync(t->a));
    OK(weft_lane_sync(t->b));
}

CASE(events_order_lanes_both_ways)
{
    bench *t = *state;
    int count = 0, *to_count = &count;
    for (int i = 0; i < 2000; i++) {
        OK(SUBMIT(t->a, lane_count, to_count));
        OK(weft_lane_record(t->a, t->x));
        OK(weft_lane_wait(t->b, t->x));
        OK(SUBMIT(t->b, lane_count, to_count));
        OK(weft_lane_record(t->b, t->y));
        OK(weft_lane_wait(t->a, t->y));
    }
    OK(weft_event_wait_host(t->y));
    assert_int_equal(count, 4000);
    OK(weft_lane_sync(t->a));
}

CASE(a_wait_holds_the_lane)
{
    bench *t = *state;
    atomic_bool gate = false, *to_gate = &gate;
    int count = 0, *to_count = &count;
    OK(SUBMIT(t->a, lane_gate, to_gate));
    OK(weft_lane_record(t->a, t->x));
    OK(weft_lane_wait(t->b, t->x));
    OK(SUBMIT(t->b, lane_count, to_count));
    sleep_us(20000);
    /* Not ordered by anything but the wait: a lane that did not wait would be seen here, by this
     * check or as a race. */
    assert_int_equal(count, 0);
    atomic_store(&gate, true);
    OK(weft_lane_sync(t->b));
    assert_int_equal(count, 1);
    OK(weft_lane_sync(t->a));
}

CASE(an_event_never_recorded_is_complete)
{
    bench *t = *state;
    int count = 0, *to_count = &count;
    OK(weft_event_wait_host(t->x));
    OK(weft_lane_wait(t->a, t->x));
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(weft_lane_sync(t->a));
    assert_int_equal(count, 1);
}

CASE(a_wait_keeps_its_point)
{
    bench *t = *state;
    atomic_bool gate = false, *to_gate = &gate;
    OK(weft_lane_record(t->a, t->x));
    OK(weft_lane_wait(t->b, t->x)); /* for a point that has passed */
    OK(SUBMIT(t->a, lane_gate, to_gate));
    OK(weft_lane_record(t->a, t->x)); /* moves the event, not the wait */
    OK(weft_lane_sync(t->b));
    /* And the other way round: b opens the gate that the moved event stands behind. */
    OK(SUBMIT(t->b, lane_open, to_gate));
    OK(weft_event_wait_host(t->x));
    OK(weft_lane_sync(t->a));
}

CASE(a_lane_may_wait_for_itself)
{
    bench *t = *state;
    int count = 0, *to_count = &count;
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(weft_lane_record(t->a, t->x));
    OK(weft_lane_wait(t->a, t->x));
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(weft_lane_sync(t->a));
    assert_int_equal(count, 2);
}

static void *open_later(void *gate)
{
    sleep_us(30000);
    atomic_store((atomic_bool *)gate, true);
    return NULL;
}

CASE(a_full_ring_blocks_the_submitter)
{
    bench *t = *state;
    atomic_bool gate = false, *to_gate = &gate;
    int count = 0, *to_count = &count;
    pthread_t opener;
    OK(SUBMIT(t->a, lane_gate, to_gate));
    assert_int_equal(pthread_create(&opener, NULL, open_later, &gate), 0);
    for (int i = 0; i < 4000; i++)
        OK(SUBMIT(t->a, lane_count, to_count));
    assert_true(atomic_load(&gate)); /* 4,000 do not fit behind a closed one */
    OK(weft_lane_sync(t->a));
    assert_int_equal(count, 4000);
    pthread_join(opener, NULL);
}

CASE(destroy_finishes_the_work)
{
    bench *t = *state;
    int count = 0, *to_count = &count;
    for (int round = 0; round < 20; round++) {
        weft_lane *lane;
        OK(weft_lane_create(t->device, round, "gamma with a name beyond 15 letters", &lane));
        for (int i = 0; i < 50; i++)
            OK(SUBMIT(lane, lane_count, to_count));
        weft_lane_destroy(lane);
        assert_int_equal(count, 50 * (round + 1));
    }
    weft_lane_destroy(NULL);
    weft_event_destroy(NULL);
    weft_device_destroy(NULL);
}

CASE(an_event_outlives_its_lane)
{
    bench *t = *state;
    atomic_bool gate = false, *to_gate = &gate;
    weft_lane *lane;
    OK(weft_lane_create(t->device, 0, "short", &lane));
    OK(weft_lane_record(lane, t->x));
    OK(SUBMIT(t->b, lane_gate, to_gate));
    OK(weft_lane_record(t->b, t->y));
    OK(weft_lane_wait(t->a, t->y)); /* queued on a while the lane goes */
    OK(SUBMIT(lane, lane_open, to_gate));
    OK(weft_lane_record(lane, t->x));
    OK(weft_lane_wait(t->a, t->x));
    weft_lane_destroy(lane);
    OK(weft_event_wait_host(t->x));
    OK(weft_lane_wait(t->b, t->x));
    OK(weft_lane_sync(t->a));
    OK(weft_lane_sync(t->b));
}

CASE(copies_and_zeroes)
{
    bench *t = *state;
    enum { NUM = 3 * 1000 * 1000 };
    void *from, *between, *to;
    OK(weft_device_alloc(t->device, WEFT_SPACE_PINNED, NUM, "from", &from));
    OK(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, NUM, "between", &between));
    OK(weft_device_alloc(t->device, WEFT_SPACE_PINNED, NUM, "to", &to));
    for (int i = 0; i < NUM; i++)
        ((unsigned char *)from)[i] = (unsigned char)(i * 7 + i / 256);
    OK(weft_lane_copy(t->a, between, from, NUM));
    OK(weft_lane_zero(t->a, from, NUM / 2));
    OK(weft_lane_copy(t->a, NULL, NULL, 0));
    OK(weft_lane_zero(t->a, NULL, 0));
    OK(weft_lane_copy(t->a, to, between, NUM));
    OK(weft_lane_zero(t->a, between, NUM / 3));
    OK(weft_lane_copy(t->a, (char *)to + NUM / 2, between, NUM / 2));
    OK(weft_lane_sync(t->a));
    for (int i = 0; i < NUM; i++) {
        int at = i < NUM / 2 ? i : i - NUM / 2; /* what the second copy from `between` brought */
        unsigned char first = (unsigned char)(i * 7 + i / 256);
        unsigned char again = at < NUM / 3 ? 0 : (unsigned char)(at * 7 + at / 256);
        if (((unsigned char *)to)[i] != (i < NUM / 2 ? first : again) ||
            ((unsigned char *)from)[i] != (i < NUM / 2 ? 0 : first))
            fail_msg("byte %d", i);
    }
    weft_device_free(t->device, WEFT_SPACE_PINNED, from, NUM);
    weft_device_free(t->device, WEFT_SPACE_DEVICE, between, NUM);
    weft_device_free(t->device, WEFT_SPACE_PINNED, to, NUM);
}

typedef struct swap_args {
    int *seen, *next, value;
} swap_args;

static weft_status lane_swap(const void *args)
{
    const swap_args *a = args;
    sleep_us(200); /* so that work behind it would overtake it if it could */
    if (*a->seen != a->value)
        return WEFT_ERROR(WEFT_INTERNAL, "read %d in place of %d", *a->seen, a->value);
    *a->next = a->value + 1;
    return WEFT_OK;
}

/* Copies before and behind a function: it sees what they brought, and they what it wrote. */
CASE(functions_stand_among_copies)
{
    bench *t = *state;
    enum { ROUNDS = 40 };
    void *memory, *next;
    OK(weft_device_alloc(t->device, WEFT_SPACE_PINNED, 2 * sizeof(int), "host", &memory));
    OK(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, sizeof(int), "next", &next));
    int *host = memory;
    OK(weft_lane_zero(t->a, next, sizeof(int)));
    for (int i = 0; i < ROUNDS; i++) {
        swap_args args = {.seen = &host[0], .next = &host[1], .value = i};
        OK(weft_lane_copy(t->a, &host[0], next, sizeof(int)));
        OK(SUBMIT(t->a, lane_swap, args));
        OK(weft_lane_copy(t->a, next, &host[1], sizeof(int)));
    }
    OK(weft_lane_sync(t->a));
    assert_int_equal(host[1], ROUNDS);
    OK(weft_lane_copy(t->b, &host[0], &host[1], sizeof(int))); /* from host to host */
    OK(weft_lane_sync(t->b));
    assert_int_equal(host[0], ROUNDS);
    weft_device_free(t->device, WEFT_SPACE_PINNED, memory, 2 * sizeof(int));
    weft_device_free(t->device, WEFT_SPACE_DEVICE, next, sizeof(int));
}

typedef struct who {
    const weft_device *device;
    pthread_t thread;
} who;

static weft_status lane_who(const void *args)
{
    who *out = *(who *const *)args;
    *out = (who){.device = weft_lane_current_device(), .thread = pthread_self()};
    return WEFT_OK;
}

CASE(work_runs_on_the_lanes_own_thread)
{
    bench *t = *state;
    who first, second, *to_first = &first, *to_second = &second;
    char name[16];
    OK(SUBMIT(t->a, lane_who, to_first));
    OK(SUBMIT(t->b, lane_who, to_second));
    OK(weft_lane_sync(t->a));
    OK(weft_lane_sync(t->b));
    assert_ptr_equal(first.device, t->device);
    assert_int_equal(weft_device_num_threads(first.device), on_cuda() ? 1 : 3);
    assert_null(weft_lane_current_device());
    assert_false(pthread_equal(first.thread, second.thread));
    assert_false(pthread_equal(first.thread, pthread_self()));
    assert_int_equal(pthread_getname_np(second.thread, name, sizeof name), 0);
    assert_string_equal(name, "beta");
    assert_string_equal(weft_lane_name(t->b), "beta");
    assert_ptr_equal(weft_lane_device(t->b), t->device);
}

CASE(eight_lanes_in_a_ring)
{
    bench *t = *state;
    enum { LANES = 8, ROUNDS = 300 };
    weft_lane *lanes[LANES];
    weft_event *events[LANES];
    int parcel = 0, *to_parcel = &parcel;
    static int own[LANES];
    for (int i = 0; i < LANES; i++) {
        OK(weft_lane_create(t->device, i % 3, "ring", &lanes[i]));
        OK(weft_event_create(t->device, &events[i]));
    }
    memset(own, 0, sizeof own);
    /* A parcel goes round, while every lane also has work of its own. */
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < LANES; i++) {
            int *to_own = &own[i];
            OK(SUBMIT(lanes[i], lane_count, to_own));
            OK(weft_lane_wait(lanes[i], events[(i + LANES - 1) % LANES]));
            OK(SUBMIT(lanes[i], lane_count, to_parcel));
            OK(weft_lane_record(lanes[i], events[i]));
            OK(SUBMIT(lanes[i], lane_count, to_own));
        }
    OK(weft_event_wait_host(events[LANES - 1]));
    assert_int_equal(parcel, LANES * ROUNDS);
    for (int i = 0; i < LANES; i++) {
        OK(weft_lane_sync(lanes[i]));
        assert_int_equal(own[i], 2 * ROUNDS);
        weft_lane_destroy(lanes[i]);
        weft_event_destroy(events[i]);
    }
}

static weft_status lane_nap(const void *args)
{
    sleep_us(*(const int *)args);
    return WEFT_OK;
}

CASE(sleeping_waiters_wake)
{
    bench *t = *state;
    int count = 0, *to_count = &count;
    /* Naps far longer than any spinning, so that lanes and host really sleep. */
    for (int i = 0; i < 60; i++) {
        int nap = i % 3 * 700;
        OK(SUBMIT(t->a, lane_nap, nap));
        OK(weft_lane_record(t->a, t->x));
        OK(weft_lane_wait(t->b, t->x));
        OK(SUBMIT(t->b, lane_count, to_count));
        OK(weft_lane_record(t->b, t->y));
        OK(weft_event_wait_host(t->y));
        assert_int_equal(count, i + 1);
        sleep_us(i % 4 * 400);
    }
    OK(weft_lane_sync(t->a));
}

AROUND(.before = bench_open, .after = bench_close)

int main(void)
{
    skip_without_device();
    return run_cases();
}
