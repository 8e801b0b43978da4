/* What this thread is at, for records of what it starts: the task of a program, and inside it the
 * task of a program below. Costs a few stores. */
#ifndef WEFT_CORE_DOING_H
#define WEFT_CORE_DOING_H

#include <stddef.h>
#include <stdint.h>

/* Zero is valid: at nothing. Tasks are static strings; the numbers of `task`, then of `inner`. */
typedef struct weft_doing {
    const char *task, *inner;
    int32_t micro_batch, chunk, layer, part; /* -1: none */
} weft_doing;

enum { WEFT_DOING_TEXT_BYTES = 96 };

/* Of this thread; borrowed. */
weft_doing *weft_doing_now(void);
/* Inside what this thread is at, or at the top: the task. Numbers that it leaves open (-1) are
 * those of what is outside. The caller puts back what was there. */
void weft_doing_begin(const char *task, int32_t micro_batch, int32_t chunk, int32_t layer,
                      int32_t part);
/* "forward micro-batch 3 chunk 1: dispatch layer 2 part 0"; "" at nothing. Returns `out`. */
const char *weft_doing_text(const weft_doing *doing, char out[WEFT_DOING_TEXT_BYTES]);

#endif
