/* Stacks that grow under a limit: a block takes what is asked and a little more, so that others may
 * grow as well, and memory ends before blocks do. */
#include "layers/pass/stack.h"

#include "tests/core/check.h"

enum { KIB = 1 << 10, LIMIT = 4 << 20, FIRST = 1 << 20 };

static weft_stack stack_of(weft_device *device, weft_memory_purpose holds)
{
    return (weft_stack){.device = device,
                        .space = WEFT_SPACE_DEVICE,
                        .holds = holds,
                        .purpose = weft_memory_text(holds)};
}

static size_t bytes_now(const weft_device *device)
{
    weft_device_stats stats;
    weft_device_get_stats(device, &stats);
    return stats.bytes_now;
}

CASE(leaves_room_to_others)
{
    weft_device *device;
    void *memory;
    OK(weft_device_create_cpu(1, LIMIT, &device));
    weft_stack grows = stack_of(device, WEFT_MEMORY_ACTIVATIONS),
               other = stack_of(device, WEFT_MEMORY_SCRATCH);
    OK(weft_stack_reserve(&grows, FIRST));
    OK(weft_stack_alloc(&grows, FIRST, &memory));
    OK(weft_stack_reserve(&other, 2 * FIRST));
    OK(weft_stack_alloc(&other, 2 * FIRST, &memory));
    const size_t left = LIMIT - bytes_now(device);
    OK(weft_stack_alloc(&grows, 48 * KIB, &memory));
    const size_t taken = left - (LIMIT - bytes_now(device));
    assert_true(taken >= 48 * KIB && taken <= 48 * KIB + left / 8);
    OK(weft_stack_alloc(&other, 7 * left / 8 - 64 * KIB, &memory));
    weft_stack_release(&grows);
    weft_stack_release(&other);
    weft_device_destroy(device);
}

/* Pieces of any size find room, but for what does not hold one more, until next to nothing is left.
 */
CASE(takes_all_there_is)
{
    for (size_t bytes = KIB / 2; bytes <= 64 * KIB; bytes *= 2) {
        weft_device *device;
        void *memory;
        weft_status status = WEFT_OK;
        OK(weft_device_create_cpu(1, LIMIT, &device));
        weft_stack stack = stack_of(device, WEFT_MEMORY_SCRATCH);
        OK(weft_stack_reserve(&stack, 64));
        for (size_t i = 0; status == WEFT_OK; i++)
            status = weft_stack_alloc(&stack, bytes, &memory);
        if (status != WEFT_MEMORY || (double)stack.used_bytes < 0.75 * LIMIT)
            fail_msg("pieces of %zu bytes: %zu of %d are used: %s", bytes, stack.used_bytes, LIMIT,
                     weft_error_get()->text);
        weft_stack_release(&stack);
        weft_device_destroy(device);
    }
}

/* What grew piece by piece is one block from the next step on, which holds what did not fit before;
 * what lies at the bottom stays where it is. */
CASE(settles)
{
    weft_device *device;
    void *memory, *bottom;
    OK(weft_device_create_cpu(1, LIMIT, &device));
    for (int held = 0; held < 2; held++) {
        weft_stack stack = stack_of(device, WEFT_MEMORY_SCRATCH);
        OK(weft_stack_reserve(&stack, 256 * KIB));
        OK(weft_stack_alloc(&stack, 64 * KIB, &bottom));
        *(char *)bottom = 42;
        const size_t mark = held ? weft_stack_mark(&stack) : 0;
        for (int i = 0; i < 3; i++)
            OK(weft_stack_alloc(&stack, 500 * KIB, &memory));
        assert_true(stack.num_blocks > 2);
        weft_stack_settle(&stack); /* in use */
        assert_true(stack.num_blocks > 2);
        weft_stack_rewind(&stack, mark);
        const size_t bytes = bytes_now(device);
        weft_stack_settle(&stack);
        assert_int_equal(bytes_now(device), bytes);
        assert_int_equal(stack.num_blocks, held + 1);
        assert_true(!held || *(char *)bottom == 42);
        OK(weft_stack_alloc(&stack, 600 * KIB, &memory));
        assert_int_equal(bytes_now(device), bytes);
        weft_stack_release(&stack);
        assert_int_equal(bytes_now(device), 0);
    }
    weft_device_destroy(device);
}

/* Without a limit blocks have room for what will follow. */
CASE(grows_in_large_blocks)
{
    weft_device *device;
    void *memory;
    OK(weft_device_create_cpu(1, 0, &device));
    weft_stack stack = stack_of(device, WEFT_MEMORY_SCRATCH);
    for (int i = 0; i < 1024; i++)
        OK(weft_stack_alloc(&stack, 48 * KIB, &memory));
    assert_in_range(stack.num_blocks, 2, WEFT_STACK_MAX_BLOCKS);
    weft_stack_release(&stack);
    weft_device_destroy(device);
}
