/* Numbers with a suffix, as people write them: "8GiB", "512k", "30m". One set of suffixes for keys
 * of the config and options of verbs. A space may stand before a suffix; of its letters the first
 * may be small or large, and those of bytes all small, but for seconds. */
#ifndef WEFT_CORE_QUANTITY_H
#define WEFT_CORE_QUANTITY_H

#include <stdbool.h>
#include <stddef.h>

typedef enum weft_quantity {
    WEFT_QUANTITY_NONE,   /* no suffix */
    WEFT_QUANTITY_BYTES,  /* k M G T P, and KiB to PiB: powers of 1024; kB to PB: of 1000 */
    WEFT_QUANTITY_LENGTH, /* in tokens; k M: powers of 1024, as models' contexts have it */
    WEFT_QUANTITY_COUNT,  /* k M B T: powers of 1000, also of tokens to train on */
    WEFT_QUANTITY_SECONDS /* s m h d */
} weft_quantity;

/* Of a key's unit: "bytes", "bytes/s", "tokens" (a length), "s", others; NULL: none. */
weft_quantity weft_quantity_of(const char *unit);
/* The regular expression of a number and one of the suffixes, to POSIX as to JSON schemas. */
enum { WEFT_QUANTITY_PATTERN_BYTES = 80 };
void weft_quantity_pattern(weft_quantity kind, char out[WEFT_QUANTITY_PATTERN_BYTES]);
/* False: neither that nor its number alone, or not finite. */
bool weft_quantity_read(weft_quantity kind, const char *text, size_t bytes, double *out);
/* Whether digits and a suffix were meant, good or not: an error then names the suffixes. */
bool weft_quantity_is_meant(weft_quantity kind, const char *text, size_t bytes);
/* The shortest of a number of bytes that is exact: "4MiB", "16GB", "1000". */
void weft_quantity_bytes_text(double bytes, char out[32]);
/* The suffixes in words, for errors. Static. */
const char *weft_quantity_suffixes(weft_quantity kind);

#endif
