#include <stdatomic.h>

#include "parallel/spill/spill.h"

static atomic_int calls_until_fault; /* 0: none */
static atomic_int fault_then;

int weft_spill_fail_after(int n, int fault)
{
    int left = atomic_exchange(&calls_until_fault, 0);
    atomic_store(&fault_then, fault);
    atomic_store(&calls_until_fault, n);
    return left;
}

int weft_spill_next_fault(void)
{
    int left = atomic_load_explicit(&calls_until_fault, memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak(&calls_until_fault, &left, left - 1))
            return left == 1 ? atomic_load(&fault_then) : 0;
    return 0;
}
