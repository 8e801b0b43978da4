#include "launcher/text/bytes.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

weft_bytes weft_bytes_of(const char *text)
{
    return (weft_bytes){text, strlen(text)};
}

bool weft_bytes_begin(weft_bytes text, weft_bytes with)
{
    return text.bytes >= with.bytes && memcmp(text.text, with.text, with.bytes) == 0;
}

size_t weft_bytes_find(weft_bytes text, size_t from, weft_bytes wanted)
{
    while (from < text.bytes) {
        const char *at = memchr(text.text + from, wanted.text[0], text.bytes - from);
        if (!at)
            break;
        from = (size_t)(at - text.text);
        if (weft_bytes_begin((weft_bytes){at, text.bytes - from}, wanted))
            return from;
        from++;
    }
    return text.bytes;
}

weft_status weft_bytes_copy(weft_bytes text, weft_arena *arena, weft_bytes *out)
{
    char *copy;
    WEFT_TRY(WEFT_ARRAY(arena, text.bytes + 1, &copy));
    memcpy(copy, text.text, text.bytes);
    *out = (weft_bytes){copy, text.bytes};
    return WEFT_OK;
}

weft_status weft_buffer_add(weft_buffer *buffer, weft_bytes more)
{
    if (more.bytes == 0)
        return WEFT_OK;
    if (more.bytes > buffer->capacity - buffer->bytes) {
        size_t capacity = 2 * buffer->capacity + 256;
        if (capacity < buffer->bytes + more.bytes)
            capacity = buffer->bytes + more.bytes;
        char *larger = realloc(buffer->text, capacity);
        if (!larger)
            return WEFT_ERROR(WEFT_MEMORY, "no memory for a text of %zu bytes", capacity);
        buffer->text = larger;
        buffer->capacity = capacity;
    }
    memcpy(buffer->text + buffer->bytes, more.text, more.bytes);
    buffer->bytes += more.bytes;
    return WEFT_OK;
}

void weft_buffer_release(weft_buffer *buffer)
{
    free(buffer->text);
    *buffer = (weft_buffer){0};
}

size_t weft_utf8_bytes(const char *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char c = s[0], low = 0x80, high = 0xbf; /* of the second byte */
    size_t bytes = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (bytes < 2)
        return bytes;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    if (bytes > left || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    return bytes;
}

uint32_t weft_utf8_character(const char *text, size_t *bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    *bytes = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t character = *bytes == 1 ? s[0] : s[0] & (0x7fu >> *bytes);
    for (size_t i = 1; i < *bytes; i++)
        character = character << 6 | (s[i] & 0x3fu);
    return character;
}

size_t weft_power_of_two_above(size_t n)
{
    size_t power = 16;
    while (power < n)
        power *= 2;
    return power;
}

/* The slot that holds this text, or the free one where it belongs. */
static uint32_t *find_slot(const weft_text_ids *ids, const char *text, size_t bytes)
{
    for (size_t i = XXH64(text, bytes, 0);; i++) {
        uint32_t *slot = &ids->slots[i & (ids->num_slots - 1)];
        if (*slot == WEFT_NO_ID)
            return slot;
        const weft_bytes *found = &ids->texts[*slot];
        if (found->bytes == bytes && memcmp(found->text, text, bytes) == 0)
            return slot;
    }
}

weft_status weft_text_ids_make(const weft_bytes *texts, uint32_t count, weft_arena *arena,
                               weft_text_ids *out)
{
    weft_text_ids ids = {.texts = texts, .num_slots = weft_power_of_two_above(2 * (size_t)count)};
    WEFT_TRY(WEFT_ARRAY(arena, ids.num_slots, &ids.slots));
    memset(ids.slots, 0xff, ids.num_slots * sizeof(uint32_t));
    for (uint32_t id = 0; id < count; id++) {
        if (!texts[id].text)
            continue;
        uint32_t *slot = find_slot(&ids, texts[id].text, texts[id].bytes);
        if (*slot != WEFT_NO_ID)
            return WEFT_ERROR(WEFT_FILE, "tokens %u and %u are the same text", *slot, id);
        *slot = id;
    }
    *out = ids;
    return WEFT_OK;
}

uint32_t weft_text_ids_find(const weft_text_ids *ids, const char *text, size_t bytes)
{
    return ids->num_slots ? *find_slot(ids, text, bytes) : WEFT_NO_ID;
}
