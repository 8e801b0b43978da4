#include "core/lack.h"

#include <stdio.h>
#include <string.h>

static const char mark[] = "cluster";

static weft_status set_key(const char *key)
{
    weft_error error;
    weft_error_take(&error);
    snprintf(error.key, sizeof error.key, "%s", key);
    return weft_error_put(&error);
}

weft_status weft_lack_mark(weft_status status)
{
    return status == WEFT_OK ? WEFT_OK : set_key(mark);
}

bool weft_lack_is(const weft_error *error)
{
    return error->status != WEFT_OK && strcmp(error->key, mark) == 0;
}

weft_status weft_lack_name_file(weft_status status, const char *path)
{
    if (status == WEFT_OK || !path || !weft_lack_is(weft_error_get()))
        return status;
    set_key("");
    return weft_error_context(status, "%s", path);
}
