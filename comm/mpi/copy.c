#include "comm/mpi/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifdef __SSE2__
enum { LINE_BYTES = 64, CHUNK_BYTES = 2048, DISTANCE_BYTES = 8192 };

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
        size_t early = at + DISTANCE_BYTES, stop = early + CHUNK_BYTES;
        for (; early < stop && early < bytes; early += LINE_BYTES)
            __builtin_prefetch(in + early);
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
