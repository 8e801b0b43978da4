/* What kernels are, as operations: from the arguments of a call alone. Calls that the device `note`
 * keeps (weft_note_keep_calls) can be made again elsewhere. */
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

/* Note what a function of the lane, enqueued next, reads and writes as it calls a kernel of the
 * host (kernels/host.h) with these arguments; elsewhere they do nothing (weft_note_ranges). */
weft_status weft_note_host_adamw(weft_lane *lane, const weft_adamw_args *args) WEFT_CHECKED;
weft_status weft_note_host_add(weft_lane *lane, const weft_add_args *args) WEFT_CHECKED;
weft_status weft_note_host_sum_squares(weft_lane *lane,
                                       const weft_sum_squares_args *args) WEFT_CHECKED;
weft_status weft_note_host_find_not_finite(weft_lane *lane,
                                           const weft_find_not_finite_args *args) WEFT_CHECKED;

/* What an argument that points to memory points to; indices are of rows, experts or tokens. */
typedef enum weft_pointer_kind {
    WEFT_POINTER_NUMBERS,
    WEFT_POINTER_INDEX,
    WEFT_POINTER_MADE_INDEX, /* the kernel writes it */
    WEFT_POINTER_ADDRESSES,  /* of other memory: a host's array */
} weft_pointer_kind;

typedef struct weft_kernel_pointer {
    size_t offset; /* in the struct of arguments */
    weft_pointer_kind kind;
} weft_kernel_pointer;

/* How to make a kernel's call again. */
enum { WEFT_KERNEL_MAX_POINTERS = 11 };
typedef struct weft_kernel_again {
    const char *name;
    size_t args_bytes;
    weft_status (*run)(weft_lane *, const void *args);
    int num_pointers;
    weft_kernel_pointer pointers[WEFT_KERNEL_MAX_POINTERS];
} weft_kernel_again;
/* Static. NULL: a kernel that no pass calls. */
const weft_kernel_again *weft_kernel_again_of(const char *kernel);

#endif
