/* Numbers that would fit, for the end of an error: "1, 2 or 4". */
#ifndef WEFT_CORE_FITS_H
#define WEFT_CORE_FITS_H

#include <stdint.h>

enum { WEFT_MAX_FITS = 16, WEFT_FITS_TEXT_BYTES = 256 };

typedef struct weft_fits { /* zero: none */
    int count;             /* those beyond WEFT_MAX_FITS are only counted */
    int64_t values[WEFT_MAX_FITS];
} weft_fits;

void weft_fits_add(weft_fits *fits, int64_t value);
/* All divisors of `number`; the nearest ones below and above `value`. number > 0. */
weft_fits weft_fits_divisors(int64_t number);
weft_fits weft_fits_divisors_near(int64_t number, int64_t value);
/* The nearest positive multiples of `number` below and above `value`. */
weft_fits weft_fits_multiples_near(int64_t number, int64_t value);
/* Writes them to `out` and returns it. */
const char *weft_fits_text(const weft_fits *fits, char out[WEFT_FITS_TEXT_BYTES]);

#endif
