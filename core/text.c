#include "core/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

weft_counted weft_count_text(long long count, const char *noun)
{
    weft_counted out;
    size_t length = strlen(noun);
    bool hisses = length > 1 && (noun[length - 1] == 's' || noun[length - 1] == 'x' ||
                                 strcmp(noun + length - 2, "ch") == 0);
    snprintf(out.text, sizeof out.text, "%lld %s%s", count, noun,
             count == 1 ? ""
             : hisses   ? "es"
                        : "s");
    return out;
}
