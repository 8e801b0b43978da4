#include "core/quantity.h"

#include <ctype.h>
#include <math.h>
#include <regex.h>
#include <stdio.h>
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
    return strcmp(unit, "tokens") == 0 ? WEFT_QUANTITY_LENGTH : WEFT_QUANTITY_COUNT;
}

const char *weft_quantity_suffixes(weft_quantity kind)
{
    static const char *const texts[] = {
        [WEFT_QUANTITY_NONE] = "none",
        [WEFT_QUANTITY_BYTES] = ("k, M, G, T, P or KiB, MiB, GiB, TiB, PiB (powers of 1024), kB, "
                                 "MB, GB, TB, PB (of 1000)"),
        [WEFT_QUANTITY_LENGTH] = "k or M (powers of 1024)",
        [WEFT_QUANTITY_COUNT] = "k, M, B or T (powers of 1000)",
        [WEFT_QUANTITY_SECONDS] = "s, m, h or d",
    };
    return texts[kind];
}

void weft_quantity_pattern(weft_quantity kind, char out[WEFT_QUANTITY_PATTERN_BYTES])
{
    static const char *const suffixes[] = {
        [WEFT_QUANTITY_NONE] = "",
        [WEFT_QUANTITY_BYTES] = " ?([kKmMgGtTpP](i?B)?|[kmgtp]i?b)",
        [WEFT_QUANTITY_LENGTH] = " ?[kKmM]",
        [WEFT_QUANTITY_COUNT] = " ?[kKmMbBtT]",
        [WEFT_QUANTITY_SECONDS] = " ?[smhd]",
    };
    snprintf(out, WEFT_QUANTITY_PATTERN_BYTES, "[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?%s",
             suffixes[kind]);
}

static bool matches(weft_quantity kind, const char *text)
{
    char pattern[WEFT_QUANTITY_PATTERN_BYTES], whole[WEFT_QUANTITY_PATTERN_BYTES + 4];
    regex_t regex;
    weft_quantity_pattern(kind, pattern);
    snprintf(whole, sizeof whole, "^%s$", pattern);
    if (regcomp(&regex, whole, REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    const bool good = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return good;
}

/* What a suffix that matches multiplies by. */
static double factor_of(weft_quantity kind, const char *suffix)
{
    static const char bytes[] = "KMGTP", counts[] = "KMBT", times[] = "smhd";
    static const double seconds[] = {1, 60, 3600, 86400};
    if (kind == WEFT_QUANTITY_SECONDS)
        return seconds[strchr(times, *suffix) - times];
    const char first = (char)toupper((unsigned char)*suffix);
    if (kind == WEFT_QUANTITY_BYTES)
        return pow(suffix[1] == 'B' || suffix[1] == 'b' ? 1000 : 1024,
                   (double)(strchr(bytes, first) - bytes + 1));
    const int power = (int)(strchr(counts, first) - counts) + 1;
    return pow(kind == WEFT_QUANTITY_LENGTH ? 1024 : 1000, power);
}

bool weft_quantity_read(weft_quantity kind, const char *text, size_t bytes, double *out)
{
    char copy[64], *end;
    if (bytes == 0 || bytes >= sizeof copy || memchr(text, '\0', bytes))
        return false;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    const bool is_plain = matches(WEFT_QUANTITY_NONE, copy);
    if (!is_plain && !matches(kind, copy))
        return false;
    *out = strtod(copy, &end);
    end += *end == ' ';
    *out *= is_plain ? 1 : factor_of(kind, end);
    return isfinite(*out);
}

bool weft_quantity_is_meant(weft_quantity kind, const char *text, size_t bytes)
{
    char copy[64];
    size_t at = 0;
    bool has_digit = false;
    snprintf(copy, sizeof copy, "%.*s", (int)(bytes < 63 ? bytes : 63), text);
    if (matches(WEFT_QUANTITY_NONE, copy)) /* such as 1e9 */
        return false;
    for (; at < bytes && text[at] && strchr("+-.0123456789 ", text[at]); at++)
        has_digit |= isdigit((unsigned char)text[at]) != 0;
    return kind && has_digit && at < bytes && isalpha((unsigned char)text[at]);
}

void weft_quantity_bytes_text(double bytes, char out[32])
{
    static const char *const units[2][6] = {{"", "KiB", "MiB", "GiB", "TiB", "PiB"},
                                            {"", "kB", "MB", "GB", "TB", "PB"}};
    char text[2][32];
    for (int i = 0; i < 2; i++) {
        const double base = i ? 1000 : 1024;
        double left = bytes;
        int unit = 0;
        for (; unit < 5 && left >= base && fmod(left, base) == 0; unit++)
            left /= base;
        snprintf(text[i], 32, "%.10g%s", left, units[i][unit]);
    }
    snprintf(out, 32, "%s", text[strlen(text[1]) < strlen(text[0])]);
}
