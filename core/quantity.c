#include "core/quantity.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

weft_quantity weft_quantity_of(const char *unit)
{
    if (!unit)
        return WEFT_QUANTITY_NONE;
    if (strncmp(unit, "bytes", 5) == 0)
        return WEFT_QUANTITY_BYTES;
    if (strcmp(unit, "s") == 0)
        return WEFT_QUANTITY_SECONDS;
    return strcmp(unit, "tokens") == 0 ? WEFT_QUANTITY_TOKENS : WEFT_QUANTITY_COUNT;
}

const char *weft_quantity_suffixes(weft_quantity kind)
{
    static const char *const texts[] = {
        [WEFT_QUANTITY_NONE] = "none",
        [WEFT_QUANTITY_BYTES] = "k, M, G, T or P (powers of 1024), kB, MB, GB, TB or PB (of 1000)",
        [WEFT_QUANTITY_TOKENS] = "k or M (powers of 1024), B or T (of 1000)",
        [WEFT_QUANTITY_COUNT] = "k, M, B or T (powers of 1000)",
        [WEFT_QUANTITY_SECONDS] = "s, m, h or d",
    };
    return texts[kind];
}

/* What a suffix multiplies by; 0: it is none. */
static double factor_of(weft_quantity kind, const char *suffix)
{
    static const char bytes[] = "KMGTP", counts[] = "KMBT", times[] = "smhd";
    static const double seconds[] = {1, 60, 3600, 86400};
    const char first = (char)toupper((unsigned char)*suffix);
    const char *at = strchr(kind == WEFT_QUANTITY_BYTES ? bytes : counts, first);
    const bool is_alone = suffix[0] && !suffix[1];
    if (kind == WEFT_QUANTITY_SECONDS) {
        at = is_alone ? strchr(times, *suffix) : NULL;
        return at ? seconds[at - times] : 0;
    }
    if (kind == WEFT_QUANTITY_NONE || !first || !at)
        return 0;
    if (kind == WEFT_QUANTITY_BYTES)
        return is_alone || strcmp(suffix + 1, "iB") == 0 ? pow(1024, (double)(at - bytes + 1))
               : strcmp(suffix + 1, "B") == 0            ? pow(1000, (double)(at - bytes + 1))
                                                         : 0;
    const bool is_binary = kind == WEFT_QUANTITY_TOKENS && at - counts < 2;
    return is_alone ? pow(is_binary ? 1024 : 1000, (double)(at - counts + 1)) : 0;
}

bool weft_quantity_read(weft_quantity kind, const char *text, size_t bytes, double *out)
{
    char copy[64], *end;
    if (bytes == 0 || bytes >= sizeof copy || !isdigit((unsigned char)text[0]))
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    if (strpbrk(copy, "xX")) /* hexadecimal digits */
        return false;
    *out = strtod(copy, &end);
    end += *end == ' ';
    const double factor = *end ? factor_of(kind, end) : 1;
    *out *= factor;
    return factor > 0 && isfinite(*out);
}
