#include "core/sized.h"

#include <string.h>

weft_status weft_sized_copy(const char *name, const void *given, void *out, size_t known_bytes)
{
    size_t bytes;
    if (!given)
        return WEFT_ERROR(WEFT_INTERNAL, "%s: NULL was given", name);
    memcpy(&bytes, given, sizeof bytes);
    if (bytes == 0)
        return WEFT_ERROR(WEFT_INTERNAL, "%s: struct_bytes is 0; set it to sizeof(%s)", name, name);
    if (bytes > known_bytes || bytes <= sizeof bytes || bytes % sizeof(void *) != 0)
        return WEFT_ERROR(WEFT_INTERNAL,
                          "%s: struct_bytes is %zu, and this library knows %zu bytes of it; the "
                          "program was compiled with other headers or did not set it",
                          name, bytes, known_bytes);
    memset(out, 0, known_bytes);
    memcpy(out, given, bytes);
    memcpy(out, &known_bytes, sizeof known_bytes);
    return WEFT_OK;
}
