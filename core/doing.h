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

/* How far a process is in a step: what it has come to, of tasks and of what follows them. Ranks
 * that run the same come to the same numbers, others to the same stretches. */
typedef struct weft_doing_place {
    int64_t step;
    int32_t program; /* of ranks that run the same tasks, such as a pipeline stage */
    int32_t stretch; /* weft_doing_stretch; beyond the last a number of each further point */
    int32_t number;  /* of the step, from 0 */
} weft_doing_place;

typedef enum weft_doing_stretch {
    WEFT_DOING_PASSES,
    WEFT_DOING_SUMS,
    WEFT_DOING_NORM,
    WEFT_DOING_UPDATES,
    WEFT_DOING_BEHIND, /* the tasks */
} weft_doing_stretch;

/* This thread runs steps of that program: from here on its places are the process'. */
void weft_doing_lead(int32_t program);
/* A new step's place is its beginning. */
void weft_doing_enter_step(int64_t step);
/* The thread that leads comes to the next place; WEFT_DOING_BEHIND: of the host's, one stretch on.
 * Others do nothing. */
void weft_doing_pass(weft_doing_stretch stretch);
/* Any thread. */
weft_doing_place weft_doing_place_now(void);
/* Above 0: a is further than b, below 0: it is not so far, 0: nobody knows. */
int weft_doing_compare(const weft_doing_place *a, const weft_doing_place *b);

/* Of this thread; borrowed. */
weft_doing *weft_doing_now(void);
/* Inside what this thread is at, or at the top: the task. Numbers that it leaves open (-1) are
 * those of what is outside. The caller puts back what was there. */
void weft_doing_begin(const char *task, int32_t micro_batch, int32_t chunk, int32_t layer,
                      int32_t part);
/* "forward micro-batch 3 chunk 1: dispatch layer 2 part 0"; "" at nothing. Returns `out`. */
const char *weft_doing_text(const weft_doing *doing, char out[WEFT_DOING_TEXT_BYTES]);

#endif
