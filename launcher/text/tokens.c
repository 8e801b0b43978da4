#include "launcher/text/tokens.h"

#include <stdlib.h>

weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more)
{
    if (more <= tokens->capacity - tokens->count)
        return WEFT_OK;
    size_t capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
    if (capacity < tokens->count + more)
        capacity = tokens->count + more;
    int32_t *larger = realloc(tokens->ids, capacity * sizeof(*larger));
    if (!larger)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for %zu tokens", capacity);
    tokens->ids = larger;
    tokens->capacity = capacity;
    return WEFT_OK;
}

weft_status weft_tokens_add(weft_tokens *tokens, int32_t id)
{
    WEFT_TRY(weft_tokens_reserve(tokens, 1));
    tokens->ids[tokens->count++] = id;
    return WEFT_OK;
}

void weft_tokens_release(weft_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (weft_tokens){0};
}
