#include "comm/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { LINE_BYTES = 64, CHUNK_BYTES = 2048, DISTANCE_BYTES = 8192 };

/* Asks for the chunk that lies DISTANCE_BYTES behind the one at `from + at`, as far as `end`. */
static void prefetch(const char *from, size_t at, size_t end)
{
    at += DISTANCE_BYTES;
    end = end < at + CHUNK_BYTES ? end : at + CHUNK_BYTES;
    for (; at < end; at += LINE_BYTES)
        __builtin_prefetch(from + at);
}

void weft_copy_ahead(void *to, const void *from, size_t bytes, size_t ahead_bytes)
{
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        size_t n = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        prefetch(from, at, bytes + ahead_bytes);
        memcpy((char *)to + at, (const char *)from + at, n);
    }
}

#ifdef __SSE2__
/* Whole lines; the target begins one. */
static void stream(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE_BYTES) {
        __m128i words[4];
        for (int i = 0; i < 4; i++)
            words[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + at) + i);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)(void *)(to + at) + i, words[i]);
    }
}

void weft_copy_past(void *to, const void *from, size_t bytes)
{
    const char *in = from;
    char *out = to;
    size_t head = (LINE_BYTES - (uintptr_t)out % LINE_BYTES) % LINE_BYTES;
    head = head < bytes ? head : bytes;
    memcpy(out, in, head);
    size_t end = head + (bytes - head) / LINE_BYTES * LINE_BYTES;
    for (size_t at = head; at < end; at += CHUNK_BYTES) {
        prefetch(in, at, bytes);
        stream(out + at, in + at, end - at < CHUNK_BYTES ? end - at : CHUNK_BYTES);
    }
    memcpy(out + end, in + end, bytes - end);
    _mm_sfence();
}
#else
void weft_copy_past(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
