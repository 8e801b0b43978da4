/* What kernels are, as operations: from the arguments of a call alone. */
#ifndef WEFT_KERNELS_NOTE_NOTE_H
#define WEFT_KERNELS_NOTE_NOTE_H

#include <weft/kernels.h>
#include <weft/operation.h>

/* Of attention's backward: the scores again, dP, and dQ, dK and dV. */
enum { WEFT_KERNEL_MAX_OPERATIONS = 3 };
typedef struct weft_kernel_operations {
    int count;
    weft_operation all[WEFT_KERNEL_MAX_OPERATIONS];
} weft_kernel_operations;

/* The operations of a kernel of this name ("gemm"). Modules are NULL where a kernel serves several.
 * Phases are those in a backward, FORWARD what forwards do. Reads arguments that lie on the host.
 * An unknown kernel, or one that no pass calls, has none. */
weft_kernel_operations weft_kernel_operations_of(const char *kernel, const void *args);

#endif
