/* Device memory: budget, high-water marks, and the refusal that says what did not fit. */
#include <weft/device.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/arena.h"
#include "tests/core/check.h"
#include "tests/core/device_under_test.h"

enum { MIB = 1024 * 1024 };

static weft_device_stats stats_of(const weft_device *device)
{
    weft_device_stats stats;
    weft_device_get_stats(device, &stats);
    return stats;
}

CASE(marks_follow_use)
{
    weft_device *device;
    void *a, *b, *c;
    OK(device_under_test(0, 0, &device));
    assert_string_equal(weft_device_name(device), on_cuda() ? "cuda" : "cpu");
    assert_true(weft_device_num_threads(device) >= 1);
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, 1000, "a", &a));
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, 9 * MIB, "b", &b));
    OK(weft_device_alloc(device, WEFT_SPACE_PINNED, 77, "c", &c));
    weft_device_stats stats = stats_of(device);
    assert_int_equal(stats.bytes_now, 1000 + 9 * MIB);
    assert_int_equal(stats.pinned_bytes_now, 77);
    assert_int_equal(stats.num_allocs, 3);
    weft_device_free(device, WEFT_SPACE_DEVICE, b, 9 * MIB);
    weft_device_free(device, WEFT_SPACE_PINNED, c, 77);
    weft_device_free(device, WEFT_SPACE_DEVICE, NULL, 5);
    stats = stats_of(device);
    assert_int_equal(stats.bytes_now, 1000);
    assert_int_equal(stats.bytes_peak, 1000 + 9 * MIB);
    assert_int_equal(stats.pinned_bytes_now, 0);
    assert_int_equal(stats.pinned_bytes_peak, 77);
    weft_device_reset_peak(device);
    stats = stats_of(device);
    assert_int_equal(stats.bytes_peak, 1000);
    assert_int_equal(stats.pinned_bytes_peak, 0);
    weft_device_free(device, WEFT_SPACE_DEVICE, a, 1000);
    weft_device_destroy(device);
}

CASE(memory_is_aligned_and_writable)
{
    static const size_t sizes[] = {
        0, 1, 63, 64, 65, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 7 * MIB + 123, 33 * MIB};
    weft_device *device;
    weft_lane *lane;
    OK(device_under_test(1, 0, &device));
    OK(weft_lane_create(device, 0, "writer", &lane));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *memory;
        OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, sizes[i], "x", &memory));
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        OK(weft_lane_zero(lane, memory, sizes[i]));
        OK(weft_lane_sync(lane));
        weft_device_free(device, WEFT_SPACE_DEVICE, memory, sizes[i]);
    }
    weft_lane_destroy(lane);
    assert_int_equal(stats_of(device).bytes_now, 0);
    weft_device_destroy(device);
}

static weft_status write_late(const void *args)
{
    atomic_int *to = *(atomic_int *const *)args;
    struct timespec pause = {.tv_nsec = 50000000};
    nanosleep(&pause, NULL);
    atomic_fetch_add(to, 1);
    return WEFT_ERROR(WEFT_DEVICE, "late");
}

/* A caller that leaves early, at an error, may free what its lanes are still at. */
CASE(freeing_waits_for_the_lanes)
{
    weft_device *device;
    weft_lane *lanes[2];
    void *memory;
    atomic_int written = 0, *to = &written;
    OK(device_under_test(1, 0, &device));
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, 64, "x", &memory));
    for (int i = 0; i < 2; i++) {
        OK(weft_lane_create(device, 0, "late", &lanes[i]));
        OK(weft_lane_submit(lanes[i], "write", write_late, &to, sizeof to));
    }
    (void)WEFT_ERROR(WEFT_CONFIG, "the reason");
    weft_device_free(device, WEFT_SPACE_DEVICE, memory, 64);
    assert_int_equal(written, 2);
    assert_string_equal(weft_error_get()->text, "the reason");
    for (int i = 0; i < 2; i++) {
        FAILS(weft_lane_sync(lanes[i]), WEFT_DEVICE, "late");
        weft_lane_destroy(lanes[i]);
    }
    weft_device_destroy(device);
}

CASE(the_budget_holds)
{
    weft_device *device;
    void *a, *b = &device, *pinned;
    OK(device_under_test(1, 4 * MIB, &device));
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, 3 * MIB + MIB / 4, "weights", &a));
    FAILS(weft_device_alloc(device, WEFT_SPACE_DEVICE, 3 * MIB / 2, "activations", &b), WEFT_MEMORY,
          "out of memory: activations asked 1.5 MiB, 3.2 MiB in use (other 3.2 MiB), budget 4 MiB");
    assert_ptr_equal(b, &device);
    assert_int_equal(stats_of(device).bytes_now, 3 * MIB + MIB / 4);
    assert_int_equal(stats_of(device).budget_bytes, 4 * MIB);
    FAILS(weft_device_alloc(device, WEFT_SPACE_DEVICE, SIZE_MAX, "all", &b), WEFT_MEMORY,
          "all asked");
    /* Exactly what is left fits; pinned memory does not count. */
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, MIB - MIB / 4, "rest", &b));
    FAILS(weft_device_alloc(device, WEFT_SPACE_DEVICE, 1, "one", &pinned), WEFT_MEMORY,
          "one asked 1 byte, 4 MiB in use");
    OK(weft_device_alloc(device, WEFT_SPACE_PINNED, 8 * MIB, "stage", &pinned));
    weft_device_free(device, WEFT_SPACE_PINNED, pinned, 8 * MIB);
    weft_device_free(device, WEFT_SPACE_DEVICE, b, MIB - MIB / 4);
    weft_device_free(device, WEFT_SPACE_DEVICE, a, 3 * MIB + MIB / 4);
    weft_device_destroy(device);
}

static weft_memory_use use_of(const weft_device *device, weft_memory_purpose purpose)
{
    return weft_device_memory_use(device, purpose);
}

/* Each purpose has its own mark, over both spaces; what does not fit names those that are there. */
CASE(purposes_are_counted_apart)
{
    weft_device *device;
    void *weights, *scratch, *again, *pinned, *staging, *none;
    OK(device_under_test(1, 4 * MIB, &device));
    OK(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_WEIGHTS, 2 * MIB, "w",
                             &weights));
    OK(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_SCRATCH, MIB, "s", &scratch));
    OK(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, MIB / 2, "h", &pinned));
    OK(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_STAGING, 100, "p", &staging));
    FAILS(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_ACTIVATIONS, 2 * MIB,
                                "the stash", &none),
          WEFT_MEMORY,
          "out of memory: the stash asked 2 MiB, 3 MiB in use (weights 2 MiB, scratch 1 MiB), "
          "budget 4 MiB");
    assert_int_equal(use_of(device, WEFT_MEMORY_ACTIVATIONS).bytes_peak, 0);
    weft_device_free(device, WEFT_SPACE_DEVICE, scratch, MIB);
    assert_int_equal(use_of(device, WEFT_MEMORY_SCRATCH).bytes_now, 0);
    assert_int_equal(use_of(device, WEFT_MEMORY_SCRATCH).bytes_peak, MIB);
    OK(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_STAGING, MIB, "s", &again));
    assert_int_equal(use_of(device, WEFT_MEMORY_STAGING).bytes_peak, MIB + 100);
    assert_int_equal(use_of(device, WEFT_MEMORY_PINNED).bytes_now, MIB / 2);
    assert_int_equal(use_of(device, WEFT_MEMORY_WEIGHTS).bytes_now, 2 * MIB);
    weft_device_reset_peak(device);
    assert_int_equal(use_of(device, WEFT_MEMORY_SCRATCH).bytes_peak, 0);
    weft_alloc_fail_after(1);
    FAILS(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, 10, "more", &none),
          WEFT_MEMORY, "(staging 100 bytes, pinned host 512 KiB), no budget, and the machine");
    weft_device_free(device, WEFT_SPACE_DEVICE, again, MIB);
    weft_device_free(device, WEFT_SPACE_PINNED, staging, 100);
    weft_device_free(device, WEFT_SPACE_PINNED, pinned, MIB / 2);
    weft_device_free(device, WEFT_SPACE_DEVICE, weights, 2 * MIB);
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        assert_int_equal(use_of(device, (weft_memory_purpose)i).bytes_now, 0);
    weft_device_destroy(device);
}

CASE(a_full_machine_is_told_apart)
{
    weft_device *device;
    void *memory;
    OK(device_under_test(1, 0, &device));
    FAILS(weft_device_alloc(device, WEFT_SPACE_DEVICE, SIZE_MAX / 2 + 9, "vast", &memory),
          WEFT_MEMORY, "no budget, and the machine has no more");
    weft_alloc_fail_after(2);
    OK(weft_device_alloc(device, WEFT_SPACE_DEVICE, 10, "first", &memory));
    weft_device_free(device, WEFT_SPACE_DEVICE, memory, 10);
    FAILS(weft_device_alloc(device, WEFT_SPACE_PINNED, 10, "second", &memory), WEFT_MEMORY,
          "second asked 10 bytes, 0 bytes in use, no budget");
    assert_int_equal(stats_of(device).bytes_now, 0);
    assert_int_equal(stats_of(device).pinned_bytes_now, 0);
    FAILS(weft_device_create_cpu(-1, 0, &device), WEFT_CONFIG, "-1 threads");
    weft_device_destroy(device);
}

enum { NUM_THREADS = 4, PART = 1000, FIT = 3 };

static void *fight(void *arg)
{
    weft_device *device = arg;
    for (int i = 0; i < 3000; i++) {
        void *memory;
        if (weft_device_alloc(device, WEFT_SPACE_DEVICE, PART, "part", &memory) == WEFT_OK)
            weft_device_free(device, WEFT_SPACE_DEVICE, memory, PART);
    }
    weft_error_clear();
    return NULL;
}

CASE(threads_never_pass_the_budget)
{
    weft_device *device;
    pthread_t threads[NUM_THREADS];
    OK(device_under_test(1, FIT * PART, &device));
    for (int i = 0; i < NUM_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fight, device), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        pthread_join(threads[i], NULL);
    weft_device_stats stats = stats_of(device);
    assert_int_equal(stats.bytes_now, 0);
    assert_true(stats.bytes_peak >= PART && stats.bytes_peak <= FIT * PART);
    assert_int_equal(stats.num_allocs, NUM_THREADS * 3000);
    weft_device_destroy(device);
}

int main(void)
{
    skip_without_device();
    return run_cases();
}
