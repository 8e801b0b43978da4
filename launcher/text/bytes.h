/* Texts that are not NUL-terminated: UTF-8, and finding. */
#ifndef WEFT_LAUNCHER_TEXT_BYTES_H
#define WEFT_LAUNCHER_TEXT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"

/* No token, no merge. */
#define WEFT_NO_ID UINT32_MAX

/* Bytes that are not NUL-terminated; text NULL: none. */
typedef struct weft_bytes {
    const char *text;
    size_t bytes;
} weft_bytes;

/* The NUL-terminated text. */
weft_bytes weft_bytes_of(const char *text);
/* Where `wanted`, which is not empty, first stands at `from` or behind; text.bytes: nowhere. */
size_t weft_bytes_find(weft_bytes text, size_t from, weft_bytes wanted);
bool weft_bytes_begin(weft_bytes text, weft_bytes with);
/* A copy in the arena. */
weft_status weft_bytes_copy(weft_bytes text, weft_arena *arena, weft_bytes *out) WEFT_CHECKED;

/* Bytes that grow; zero is none. */
typedef struct weft_buffer {
    char *text;
    size_t bytes, capacity;
} weft_buffer;

weft_status weft_buffer_add(weft_buffer *buffer, weft_bytes more) WEFT_CHECKED;
void weft_buffer_release(weft_buffer *buffer);

/* Bytes of the UTF-8 character at `s` (RFC 3629: shortest form, no surrogates), or 0. left > 0. */
size_t weft_utf8_bytes(const char *s, size_t left);
/* The character that begins there, and how many bytes it has; the text is valid UTF-8. */
uint32_t weft_utf8_character(const char *s, size_t *bytes);

/* Finds texts by their bytes. Zero is one that holds none. */
typedef struct weft_text_ids {
    const weft_bytes *texts;
    uint32_t *slots; /* ids; WEFT_NO_ID is free */
    size_t num_slots;
} weft_text_ids;

/* Of all texts that are not NULL. WEFT_FILE: two are the same. */
weft_status weft_text_ids_make(const weft_bytes *texts, uint32_t count, weft_arena *arena,
                               weft_text_ids *out) WEFT_CHECKED;
/* WEFT_NO_ID: none. */
uint32_t weft_text_ids_find(const weft_text_ids *ids, const char *text, size_t bytes);
/* A power of two, at least 16. */
size_t weft_power_of_two_above(size_t n);

#endif
