#include "kernels/cpu/scratch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { NUM_SLOTS = 1024, ALIGNMENT = 2 << 20 };

static struct {
    atomic_bool taken;
    void *memory; /* belongs, with its size, to the taker */
    size_t bytes;
} slots[NUM_SLOTS];

weft_scratch weft_scratch_take(int wish, size_t bytes)
{
    for (int i = 0; i < NUM_SLOTS; i++) {
        const int slot = (wish + i) % NUM_SLOTS;
        if (atomic_exchange_explicit(&slots[slot].taken, true, memory_order_acquire))
            continue;
        if (slots[slot].bytes < bytes) {
            free(slots[slot].memory);
            slots[slot].bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            slots[slot].memory = aligned_alloc(ALIGNMENT, slots[slot].bytes);
            if (!slots[slot].memory)
                slots[slot].bytes = 0;
            else /* huge pages, where there are any */
                (void)madvise(slots[slot].memory, slots[slot].bytes, MADV_HUGEPAGE);
        }
        return (weft_scratch){slots[slot].memory, slot};
    }
    return (weft_scratch){NULL, -1};
}

void weft_scratch_give(weft_scratch scratch)
{
    if (scratch.slot >= 0)
        atomic_store_explicit(&slots[scratch.slot].taken, false, memory_order_release);
}
