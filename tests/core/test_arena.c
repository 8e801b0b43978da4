#include "core/arena.h"
#include "tests/core/check.h"

CASE(memory_is_aligned_zeroed_and_apart)
{
    weft_arena arena = {0};
    enum { NUM = 500 };
    unsigned char *parts[NUM];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < NUM; i++) {
            void *memory;
            size_t bytes = i * 13 % 3000;
            OK(weft_arena_alloc(&arena, bytes, &memory));
            parts[i] = memory;
            assert_int_equal((uintptr_t)memory % 16, 0);
            for (size_t b = 0; b < bytes; b++)
                assert_int_equal(parts[i][b], 0);
            memset(parts[i], (int)(i % 251 + 1), bytes);
        }
        for (size_t i = 0; i < NUM; i++)
            for (size_t b = 0; b < i * 13 % 3000; b++)
                assert_int_equal(parts[i][b], i % 251 + 1);
        weft_arena_reset(&arena);
    }
    weft_arena_release(&arena);
    assert_null(arena.first);
}

CASE(reset_keeps_the_blocks)
{
    weft_arena arena = {0};
    void *first, *second, *large, *again;
    OK(weft_arena_alloc(&arena, 1000, &first));
    OK(weft_arena_alloc(&arena, 60000, &second)); /* second block */
    OK(weft_arena_alloc(&arena, 10000000, &large));
    weft_arena_reset(&arena);
    OK(weft_arena_alloc(&arena, 1000, &again));
    assert_ptr_equal(again, first);
    OK(weft_arena_alloc(&arena, 10000000, &again));
    assert_ptr_equal(again, large);
    weft_arena_release(&arena);
    OK(weft_arena_alloc(&arena, 8, &again));
    weft_arena_release(&arena);
    weft_arena_release(&arena);
}

CASE(sizes_that_overflow_are_refused)
{
    weft_arena arena = {0};
    void *out = &arena;
    FAILS(weft_arena_alloc_array(&arena, SIZE_MAX / 4, 8, &out), WEFT_MEMORY, "times 8 bytes");
    FAILS(weft_arena_alloc(&arena, SIZE_MAX - 3, &out), WEFT_MEMORY, "out of host memory");
    assert_ptr_equal(out, &arena);
    OK(weft_arena_alloc_array(&arena, 0, 8, &out));
    OK(weft_arena_alloc_array(&arena, 8, 0, &out));
    assert_non_null(out);
    weft_arena_release(&arena);
}

CASE(texts)
{
    weft_arena arena = {0};
    char text[] = "layers.3.attention";
    const char *copy, *printed;
    OK(weft_arena_strdup(&arena, text, &copy));
    text[0] = 'X';
    assert_string_equal(copy, "layers.3.attention");
    OK(weft_arena_printf(&arena, &printed, "%s/%d/%s", copy, 12, ""));
    assert_string_equal(printed, "layers.3.attention/12/");
    weft_arena_release(&arena);
}

CASE(the_nth_allocation_fails_once)
{
    weft_arena arena = {0};
    void *out;
    weft_alloc_fail_after(3);
    OK(weft_arena_alloc(&arena, 1, &out));
    OK(weft_arena_alloc(&arena, 1, &out));
    FAILS(weft_arena_alloc(&arena, 1, &out), WEFT_MEMORY, "out of host memory");
    OK(weft_arena_alloc(&arena, 1, &out));

    const char *text = "kept";
    weft_alloc_fail_after(1);
    FAILS(weft_arena_printf(&arena, &text, "%d", 3), WEFT_MEMORY, "out of host memory");
    assert_string_equal(text, "kept");
    weft_alloc_fail_after(1);
    weft_alloc_fail_after(0);
    OK(weft_arena_printf(&arena, &text, "%d", 3));
    weft_arena_release(&arena);
}
