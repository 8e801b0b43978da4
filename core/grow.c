#include "core/grow.h"

#include <stdlib.h>
#include <string.h>

weft_status weft_grow(void *array, size_t *capacity, size_t wanted, size_t each, const char *what)
{
    const size_t twice = 2 * *capacity + 64, larger = wanted > twice ? wanted : twice;
    void *items;
    if (wanted <= *capacity)
        return WEFT_OK;
    memcpy(&items, array, sizeof items);
    items = realloc(items, larger * each);
    if (!items)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for %zu %s", larger, what);
    memcpy(array, &items, sizeof items);
    *capacity = larger;
    return WEFT_OK;
}
