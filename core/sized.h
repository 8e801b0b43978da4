/* Reads structs that a program fills, as <weft/sized.h> promises. */
#ifndef WEFT_CORE_SIZED_H
#define WEFT_CORE_SIZED_H

#include <stddef.h>

#include <weft/status.h>

/* Copies the program's struct, which begins with its size_t struct_bytes, into `out` of
 * known_bytes. Zeroes the rest and sets out's struct_bytes to known_bytes. `name`: the struct's.
 * Errors: WEFT_INTERNAL (NULL, or a size that <weft/sized.h> refuses). */
weft_status weft_sized_copy(const char *name, const void *given, void *out,
                            size_t known_bytes) WEFT_CHECKED;

#endif
