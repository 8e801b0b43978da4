/* The optimizer's kernels on host memory: the CPU backend's vector code, called directly.
 *
 * Whatever the device is, state that lies in host memory (pinned, or any other) is stepped there by
 * the machine's cores. A call does the whole work on the calling thread and the OpenMP threads that
 * it starts, and returns when it is done. Results have the bits of the same kernel on a CPU device,
 * whatever the number of threads here and there. Arguments are those of <weft/kernels.h>, with all
 * memory in the host's; every thread may call, also that of a lane. The pace of an emulated
 * accelerator is not the host's: these take their own time. */
#ifndef WEFT_KERNELS_HOST_H
#define WEFT_KERNELS_HOST_H

#include <weft/kernels.h>

/* Starts OpenMP's library in this thread, so that no two lanes do at once. */
void weft_host_prepare(void);

/* cast and split_master round masters to weights; add accumulates (y may be a or b). */
#define WEFT_HOST_KERNEL_LIST(X)                                                                   \
    X(adamw)                                                                                       \
    X(split_master)                                                                                \
    X(join_master)                                                                                 \
    X(sum_squares)                                                                                 \
    X(find_not_finite)                                                                             \
    X(add)                                                                                         \
    X(cast)

/* weft_host_adamw(args, num_threads) and so on; num_threads from 1. Errors: WEFT_INTERNAL, with
 * what is wrong with the arguments or their number of threads. */
#define WEFT_HOST_DECLARE(kernel)                                                                  \
    weft_status weft_host_##kernel(const weft_##kernel##_args *args, int num_threads) WEFT_CHECKED;
WEFT_HOST_KERNEL_LIST(WEFT_HOST_DECLARE)
#undef WEFT_HOST_DECLARE

/* Clears `bytes` of host memory; NULL where bytes is 0. Errors: as above. */
weft_status weft_host_zero(void *to, size_t bytes, int num_threads) WEFT_CHECKED;

#endif
