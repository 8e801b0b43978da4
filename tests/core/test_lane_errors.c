/* A failing task poisons its lane: the rest is skipped, and the error comes back to whoever
 * submits, waits or syncs, across lanes and threads. */
#include "tests/core/lanes.h"

CASE(the_first_error_comes_back)
{
    bench *t = *state;
    int count = 0, *to_count = &count, seven = 7, eight = 8;
    atomic_bool gate = false, *to_gate = &gate;
    OK(SUBMIT(t->a, lane_gate, to_gate)); /* so that all of this is accepted */
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(SUBMIT(t->a, lane_fail, seven));
    OK(SUBMIT(t->a, lane_fail, eight));
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(weft_lane_record(t->a, t->x));
    atomic_store(&gate, true);
    FAILS(weft_event_wait_host(t->x), WEFT_FILE, "lane alpha, lane_fail: shard 7 is torn");
    FAILS(weft_lane_sync(t->a), WEFT_FILE, "shard 7 is torn");
    FAILS(SUBMIT(t->a, lane_count, to_count), WEFT_FILE, "shard 7 is torn");
    FAILS(weft_lane_zero(t->a, &count, sizeof count), WEFT_FILE, "shard 7 is torn");
    FAILS(weft_lane_record(t->a, t->y), WEFT_FILE, "shard 7 is torn");
    assert_int_equal(count, 1);
    /* The other lane is well. */
    OK(SUBMIT(t->b, lane_count, to_count));
    OK(weft_lane_sync(t->b));
    assert_int_equal(count, 2);
}

CASE(the_record_keeps_the_place)
{
    bench *t = *state;
    int seven = 7;
    OK(SUBMIT(t->a, lane_fail, seven));
    assert_int_equal(weft_lane_sync(t->a), WEFT_FILE);
    assert_string_equal(weft_error_get()->frames[0].function, "lane_fail");
}

CASE(waiters_complete_with_the_error)
{
    bench *t = *state;
    int count = 0, *to_count = &count, seven = 7;
    atomic_bool gate = false, *to_gate = &gate;
    OK(SUBMIT(t->a, lane_gate, to_gate));
    OK(SUBMIT(t->a, lane_fail, seven));
    OK(weft_lane_record(t->a, t->x));
    OK(weft_lane_wait(t->b, t->x));
    OK(SUBMIT(t->b, lane_count, to_count));
    atomic_store(&gate, true);
    FAILS(weft_lane_sync(t->b), WEFT_FILE, "lane alpha, lane_fail: shard 7 is torn");
    assert_int_equal(count, 0);
    FAILS(weft_lane_wait(t->b, t->y), WEFT_FILE, "lane alpha, lane_fail: shard 7 is torn");
}

CASE(a_wait_on_a_lane_long_poisoned)
{
    bench *t = *state;
    int seven = 7;
    OK(SUBMIT(t->a, lane_fail, seven));
    assert_int_equal(weft_lane_sync(t->a), WEFT_FILE);
    FAILS(weft_lane_record(t->a, t->x), WEFT_FILE, "shard 7");
    OK(weft_lane_wait(t->b, t->x)); /* b itself is well until it gets there */
    FAILS(weft_lane_sync(t->b), WEFT_FILE, "shard 7 is torn");
}

CASE(a_point_before_the_failure_is_good)
{
    bench *t = *state;
    int count = 0, *to_count = &count, seven = 7;
    OK(SUBMIT(t->a, lane_count, to_count));
    OK(weft_lane_record(t->a, t->x));
    OK(SUBMIT(t->a, lane_fail, seven));
    assert_int_equal(weft_lane_sync(t->a), WEFT_FILE);
    OK(weft_lane_wait(t->b, t->x));
    OK(SUBMIT(t->b, lane_count, to_count));
    OK(weft_lane_sync(t->b));
    assert_int_equal(count, 2);
}

CASE(a_poisoned_lane_skips_its_waits)
{
    bench *t = *state;
    int seven = 7;
    atomic_bool first = false, second = false, *to_first = &first, *to_second = &second;
    OK(SUBMIT(t->a, lane_gate, to_first));
    OK(SUBMIT(t->a, lane_fail, seven));
    OK(SUBMIT(t->b, lane_gate, to_second));
    OK(weft_lane_record(t->b, t->y));
    OK(weft_lane_wait(t->a, t->y));
    atomic_store(&first, true);
    if (on_cuda()) /* a stream waits for another whatever became of its functions */
        atomic_store(&second, true);
    FAILS(weft_lane_sync(t->a), WEFT_FILE, "shard 7"); /* although b still stands */
    assert_true(on_cuda() || !atomic_load(&second));
    atomic_store(&second, true);
    OK(weft_lane_sync(t->b));
}

static weft_status lane_fail_silently(const void *args)
{
    (void)args;
    return WEFT_COMM;
}

CASE(a_status_without_a_text_gets_one)
{
    bench *t = *state;
    OK(weft_lane_submit(t->a, "reduce", lane_fail_silently, NULL, 0));
    FAILS(weft_lane_sync(t->a), WEFT_COMM, "lane alpha, reduce: communication failed");
}

CASE(destroy_of_a_poisoned_lane)
{
    bench *t = *state;
    int seven = 7;
    weft_lane *lane;
    OK(weft_lane_create(t->device, 0, "gone", &lane));
    OK(SUBMIT(lane, lane_fail, seven));
    (void)!weft_lane_record(lane, t->x); /* fails only if the lane was quick */
    weft_lane_destroy(lane);
    FAILS(weft_event_wait_host(t->x), WEFT_FILE, "lane gone, lane_fail: shard 7 is torn");
}

CASE(bad_arguments_are_refused)
{
    bench *t = *state;
    weft_lane *lane = NULL;
    char area[64], args[WEFT_LANE_MAX_ARGS_BYTES + 1] = {0};
    FAILS(weft_lane_create(t->device, -1, "urgent", &lane), WEFT_INTERNAL, "below 0");
    assert_null(lane);
    FAILS(weft_lane_submit(t->a, "big", lane_count, args, sizeof args), WEFT_INTERNAL,
          "at most 384");
    FAILS(weft_lane_submit(t->a, "none", NULL, NULL, 0), WEFT_INTERNAL, "no function");
    FAILS(weft_lane_copy(t->a, area + 8, area, 32), WEFT_INTERNAL, "overlap");
    FAILS(weft_lane_copy(t->a, area, area + 8, 32), WEFT_INTERNAL, "overlap");
    FAILS(weft_lane_copy(t->a, area, NULL, 1), WEFT_INTERNAL, "no memory");
    FAILS(weft_lane_zero(t->a, NULL, 1), WEFT_INTERNAL, "no memory");
    OK(weft_lane_sync(t->a)); /* and the lane is none the worse */
}

AROUND(.before = bench_open, .after = bench_close)

int main(void)
{
    skip_without_device();
    return run_cases();
}
