/* Reads what a program hands in: structs as <weft/sized.h> promises, and pointers. */
#ifndef WEFT_CORE_SIZED_H
#define WEFT_CORE_SIZED_H

#include <stddef.h>

#include <weft/status.h>

/* Copies the program's struct, which begins with its size_t struct_bytes, into `out` of
 * known_bytes. Zeroes the rest and sets out's struct_bytes to known_bytes. `name`: the struct's.
 * Errors: WEFT_INTERNAL (NULL, or a size that <weft/sized.h> refuses). */
weft_status weft_sized_copy(const char *name, const void *given, void *out,
                            size_t known_bytes) WEFT_CHECKED;

/* Of a pointer that a public function needs: WEFT_TRY(WEFT_GIVEN(lane)). Where it is NULL the error
 * (WEFT_INTERNAL) names the function and the argument. */
#define WEFT_GIVEN(argument)                                                                       \
    ((argument) ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "%s: %s is NULL", __func__, #argument))

#endif
