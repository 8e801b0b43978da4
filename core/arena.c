#include "core/arena.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16, MIN_BLOCK_BYTES = 64 * 1024 };
_Static_assert(_Alignof(max_align_t) >= ALIGNMENT, "malloc's blocks are aligned");

struct weft_arena_block {
    weft_arena_block *next;
    size_t size, used; /* bytes of `data` */
    size_t dirty;      /* bytes behind these are zero */
    _Alignas(ALIGNMENT) unsigned char data[];
};

static atomic_int allocations_until_failure; /* 0: never */

void weft_alloc_fail_after(int n)
{
    atomic_store(&allocations_until_failure, n);
}

bool weft_alloc_should_fail(void)
{
    int left = atomic_load_explicit(&allocations_until_failure, memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak(&allocations_until_failure, &left, left - 1))
            return left == 1;
    return false;
}

/* What is zero already stays untouched: it takes no memory before somebody writes there. */
static void take(weft_arena_block *block, size_t bytes, void *out)
{
    void *memory = block->data + block->used;
    if (block->used < block->dirty)
        memset(memory, 0, bytes < block->dirty - block->used ? bytes : block->dirty - block->used);
    block->used += bytes;
    if (block->dirty < block->used)
        block->dirty = block->used;
    memcpy(out, &memory, sizeof memory);
}

weft_status weft_arena_alloc(weft_arena *arena, size_t bytes, void *out)
{
    if (weft_alloc_should_fail())
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: asked %zu bytes", bytes);
    if (bytes > SIZE_MAX / 2)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: asked %zu bytes", bytes);
    size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;

    /* Blocks behind `current` are kept from before a reset and are empty. */
    for (weft_arena_block *block = arena->current; block; block = block->next)
        if (block->size - block->used >= rounded) {
            arena->current = block;
            take(block, rounded, out);
            return WEFT_OK;
        }

    const bool is_large = rounded > MIN_BLOCK_BYTES; /* its pages are zero by themselves */
    const size_t size = is_large ? rounded : MIN_BLOCK_BYTES;
    weft_arena_block *block =
        is_large ? calloc(1, sizeof *block + size) : malloc(sizeof *block + size);
    if (!block)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: asked %zu bytes", bytes);
    block->size = size;
    block->used = 0;
    block->dirty = is_large ? 0 : size;
    if (arena->current) {
        block->next = arena->current->next;
        arena->current->next = block;
    } else {
        block->next = NULL;
        arena->first = block;
    }
    arena->current = block;
    take(block, rounded, out);
    return WEFT_OK;
}

weft_status weft_arena_alloc_array(weft_arena *arena, size_t count, size_t size, void *out)
{
    if (size && count > SIZE_MAX / size)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: asked %zu times %zu bytes", count,
                          size);
    return weft_arena_alloc(arena, count * size, out);
}

weft_status weft_arena_grow(weft_arena *arena, void *array, size_t *capacity, size_t wanted,
                            size_t each)
{
    const size_t had = *capacity, twice = 2 * had + 16, room = wanted > twice ? wanted : twice;
    void *items, *larger;
    if (wanted <= had)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(arena, room, each, &larger));
    memcpy(&items, array, sizeof items);
    if (had > 0)
        memcpy(larger, items, had * each);
    memcpy(array, &larger, sizeof larger);
    *capacity = room;
    return WEFT_OK;
}

weft_status weft_arena_strdup(weft_arena *arena, const char *text, const char **out)
{
    size_t bytes = strlen(text) + 1;
    void *copy;
    WEFT_TRY(weft_arena_alloc(arena, bytes, &copy));
    *out = memcpy(copy, text, bytes);
    return WEFT_OK;
}

weft_status weft_arena_printf(weft_arena *arena, const char **out, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    void *text = NULL;
    weft_status status = length < 0
                             ? WEFT_ERROR(WEFT_INTERNAL, "format \"%s\" cannot be printed", format)
                             : weft_arena_alloc(arena, (size_t)length + 1, &text);
    if (status == WEFT_OK) {
        vsnprintf(text, (size_t)length + 1, format, again);
        *out = text;
    }
    va_end(again);
    return status;
}

void weft_arena_reset(weft_arena *arena)
{
    for (weft_arena_block *block = arena->first; block; block = block->next)
        block->used = 0;
    arena->current = arena->first;
}

void weft_arena_release(weft_arena *arena)
{
    for (weft_arena_block *block = arena->first; block;) {
        weft_arena_block *next = block->next;
        free(block);
        block = next;
    }
    *arena = (weft_arena){0};
}
