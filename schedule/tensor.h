/* A product of a tensor-parallel region in chunks of rows, as a program: while one chunk is
 * computed, another travels. Rows are gathered before the product that reads them (sequence
 * parallelism's all-gather before a split by outputs; in backward that of a split by inputs), or
 * its partial sums are reduced behind it (reduce-scatter or all-reduce behind a split by inputs; in
 * backward behind one by outputs).
 *
 * A backward's last product makes the gradients of weights from all rows. Where it alone reads what
 * is gathered, the gathers run beside the chunks:
 *
 *   compute  | chunk 0  | chunk 1  | chunk 2  | weights           |
 *   reduce   | gather 0 | gather 1 | gather 2 | reduce 0 | 1 | 2 |
 *
 * All collectives have one lane, so ranks that run the same program issue them in one order. Slots:
 * `gathered` and `partial`, one a chunk. Pure. */
#ifndef WEFT_SCHEDULE_TENSOR_H
#define WEFT_SCHEDULE_TENSOR_H

#include "schedule/program.h"

enum { WEFT_TENSOR_MAX_CHUNKS = 16 };

/* Zero but for chunks: nothing is done. */
typedef struct weft_tensor_plan {
    int chunks;
    bool backward; /* products make gradients */
    bool gathers;
    bool multiplies; /* a product a chunk */
    bool reads;      /* these read what is gathered */
    bool reduces;    /* what these make */
    bool weights;    /* a product of all rows is last */
} weft_tensor_plan;

/* Errors: WEFT_CONFIG, WEFT_MEMORY. */
weft_status weft_program_tensor(const weft_tensor_plan *plan, weft_arena *arena,
                                weft_program *out) WEFT_CHECKED;
/* Proves that the program is the plan's: every chunk travels and is computed once and in order, and
 * no product reads rows that are not there. WEFT_INTERNAL with the task's index and text. */
weft_status weft_program_tensor_check(const weft_tensor_plan *plan,
                                      const weft_program *program) WEFT_CHECKED;

#endif
