#include "launcher/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

weft_status weft_parse_count(const char *option, const char *text, bool is_bytes, double low,
                             double high, double *out)
{
    static const char *const units[] = {"", "k", "M", "G"};
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    for (int i = 1; is_bytes && i < 4; i++) {
        size_t length = strlen(end);
        bool named = (*end == *units[i] || (i == 1 && *end == 'K')) &&
                     (length == 1 || strcmp(end + 1, "iB") == 0);
        if (end != text && named) {
            value *= pow(1024, i);
            end += length;
            break;
        }
    }
    if (end == text || *end || value != floor(value) || !(value >= low && value <= high))
        return WEFT_ERROR(WEFT_CONFIG, "--%s %.40s: not a whole number of %.0f to %.0f", option,
                          text, low, high);
    *out = value;
    return WEFT_OK;
}
