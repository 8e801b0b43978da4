/* Words for people. */
#ifndef WEFT_CORE_TEXT_H
#define WEFT_CORE_TEXT_H

#include <stdint.h>
#include <stdio.h>

typedef struct weft_counted {
    char text[48];
} weft_counted;

/* "1 rank", "3 ranks", "2 micro-batches": weft_count_text(n, "rank").text. The text lives until its
 * full expression ends. */
weft_counted weft_count_text(long long count, const char *noun);

/* "1.5 GiB", "4 GiB", "96 bytes", "1 byte". */
weft_counted weft_bytes_text(double bytes);
/* "1.5 MiB/s", by 1024; "2.1 GFLOP", by 1000. */
weft_counted weft_scaled_text(double value, int step, const char *unit);
/* "12.5 us", "45.6 ms", "1.234 s", "20 min", "5.85 h", "3.4 days". */
weft_counted weft_seconds_text(double seconds);

/* Numbers that would fit, for the end of an error: "1, 2 or 4". */

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
