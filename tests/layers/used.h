/* What a pass really did: kernels as they were called and collectives as they were recorded, as
 * operations, to be held against what layers list. */
#ifndef WEFT_TESTS_LAYERS_USED_H
#define WEFT_TESTS_LAYERS_USED_H

#include "layers/describe/describe.h"

/* Operations of one half of a pass; alike ones are one, whose counts, FLOPs and bytes are summed.
 * All that is bound by memory is one. */
enum { USED_MAX = 64 };
typedef struct used_half {
    int count;
    weft_operation operations[USED_MAX];
} used_half;

/* Everything from here until used_end is of the pass's forward, or of its backward. Between the
 * two no other pass runs in this process. */
void used_begin(void);
void used_end(used_half *out);
/* Casts from or to this memory are the test's own; up to four ranges, until all are forgotten. */
void used_ignore(const void *start, size_t bytes);
void used_ignore_nothing(void);

/* False: choices are sorted again in backward, so that their rows are not known when kernels are
 * enqueued. */
void used_know_rows(bool known);

/* The listed operations of a half, in the same form. */
void used_add_listed(used_half *out, const weft_description *listed, bool forward);
/* Leaves out matrix products, attention's among them. */
void used_drop_products(used_half *half);
/* Expects both to be alike. memory: this rank did all that a list tells of memory. */
void used_compare(const used_half *used, const used_half *listed, bool memory, const char *what);

#endif
