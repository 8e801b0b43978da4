/* Scratch for threads inside a kernel. A block is made at first use, grows to the largest size
 * asked for and lasts as long as the process, so warm kernels allocate nothing. Any thread. */
#ifndef WEFT_KERNELS_CPU_SCRATCH_H
#define WEFT_KERNELS_CPU_SCRATCH_H

#include <stddef.h>

typedef struct weft_scratch {
    void *memory; /* aligned to a huge page, not cleared; NULL when memory is out */
    int slot;
} weft_scratch;

/* `wish`: where the search for a free block begins. By its OpenMP thread number a thread gets the
 * block that its core has in cache. */
weft_scratch weft_scratch_take(int wish, size_t bytes);
/* Gives a scratch back, also one without memory. */
void weft_scratch_give(weft_scratch scratch);

#endif
