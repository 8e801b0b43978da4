/* Arrays that grow, of malloc. */
#ifndef WEFT_CORE_GROW_H
#define WEFT_CORE_GROW_H

#include <stddef.h>

#include <weft/status.h>

/* Gives the array that the pointer at `array` begins (NULL: none yet) room for `wanted` items of
 * `each` bytes, or for more than twice as many as before. WEFT_MEMORY: for how many of `what`; the
 * array is as it was. */
weft_status weft_grow(void *array, size_t *capacity, size_t wanted, size_t each,
                      const char *what) WEFT_CHECKED;
#define WEFT_GROW(items, capacity, wanted, what)                                                   \
    weft_grow(&(items), &(capacity), wanted, sizeof *(items), what)

#endif
