/* Token ids. */
#ifndef WEFT_LAUNCHER_TEXT_TOKENS_H
#define WEFT_LAUNCHER_TEXT_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

/* A growing list; zero is an empty one. */
typedef struct weft_tokens {
    int32_t *ids;
    size_t count, capacity;
} weft_tokens;

weft_status weft_tokens_add(weft_tokens *tokens, int32_t id) WEFT_CHECKED;
/* Makes room for `more` further ids. */
weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more) WEFT_CHECKED;
void weft_tokens_release(weft_tokens *tokens);

#endif
