/* What <weft/sized.h> promises of structs that a program fills. */
#ifndef WEFT_CORE_SIZED_H
#define WEFT_CORE_SIZED_H

#include <stddef.h>

#include <weft/status.h>

/* Copies what the program gave, a struct that begins with its size_t struct_bytes, into `out` of
 * known_bytes, the rest zero; out's struct_bytes is known_bytes. `name` is the struct's. Errors:
 * WEFT_INTERNAL: NULL, or a size that <weft/sized.h> refuses. */
weft_status weft_sized_copy(const char *name, const void *given, void *out,
                            size_t known_bytes) WEFT_CHECKED;

#endif
