/* Copies of long arrays in pieces. */
#ifndef WEFT_COMM_COPY_H
#define WEFT_COMM_COPY_H

#include <stddef.h>

/* memcpy that asks for what it reads early, and also for the first part of the `ahead_bytes` that
 * follow in the source, which the caller copies next. */
void weft_copy_ahead(void *to, const void *from, size_t bytes, size_t ahead_bytes);
/* memcpy past the caches, where the CPU can: for results that are larger than the caches. Twice to
 * three times as fast there, for the target is not read before it is written. */
void weft_copy_past(void *to, const void *from, size_t bytes);

#endif
