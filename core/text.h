/* Words for people. */
#ifndef WEFT_CORE_TEXT_H
#define WEFT_CORE_TEXT_H

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

#endif
