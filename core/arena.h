/* Host arenas: memory that is freed together. An owner names its arena after its lifetime (job,
 * step, scratch). Callers pass arenas; there is no hidden "current" one. Not thread-safe. */
#ifndef WEFT_CORE_ARENA_H
#define WEFT_CORE_ARENA_H

#include <stddef.h>

#include <weft/status.h>

typedef struct weft_arena_block weft_arena_block;

typedef struct weft_arena { /* zero is a valid, empty arena */
    weft_arena_block *first, *current;
} weft_arena;

/* Memory of the arena, 16-byte aligned and zeroed. Errors of all: WEFT_MEMORY; *out, a pointer of
 * any type, is set on success only. */
weft_status weft_arena_alloc(weft_arena *arena, size_t bytes, void *out) WEFT_CHECKED;
/* Overflow-checked count * size. */
weft_status weft_arena_alloc_array(weft_arena *arena, size_t count, size_t size,
                                   void *out) WEFT_CHECKED;
/* The same, of what *out points to. */
#define WEFT_ARRAY(arena, count, out) weft_arena_alloc_array(arena, count, sizeof **(out), out)
/* Gives the array that the pointer at `array` begins (NULL: none yet) room for `wanted` items of
 * `each` bytes: more than twice as many as before, if it has less. What it outgrows stays the
 * arena's. */
weft_status weft_arena_grow(weft_arena *arena, void *array, size_t *capacity, size_t wanted,
                            size_t each) WEFT_CHECKED;
#define WEFT_ARENA_GROW(arena, items, capacity, wanted)                                            \
    weft_arena_grow(arena, &(items), &(capacity), wanted, sizeof *(items))
weft_status weft_arena_strdup(weft_arena *arena, const char *text, const char **out) WEFT_CHECKED;
weft_status weft_arena_printf(weft_arena *arena, const char **out, const char *format, ...)
    WEFT_PRINTF(3, 4) WEFT_CHECKED;
void weft_arena_reset(weft_arena *arena);   /* keeps the blocks for reuse */
void weft_arena_release(weft_arena *arena); /* frees them; the arena is empty and usable again */

/* Failure injection for tests: the n-th host allocation from now on fails (0: never). Covers
 * arenas and weft_device_alloc. */
void weft_alloc_fail_after(int n);
bool weft_alloc_should_fail(void);

#endif
