/* What the verbs' options have in common. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_H
#define WEFT_LAUNCHER_ARGUMENTS_H

#include <stdbool.h>

#include <weft/status.h>

/* A whole number of low to high; is_bytes: also 64k, 4MiB, 2G in powers of 1024. WEFT_CONFIG naming
 * the option ("rounds"). */
weft_status weft_parse_count(const char *option, const char *text, bool is_bytes, double low,
                             double high, double *out) WEFT_CHECKED;

#endif
