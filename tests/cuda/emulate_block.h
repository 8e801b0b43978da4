/* The emulation of CUDA on the CPU, seen by kernels compiled as C++ (emulate.cuh) and by the
 * stand-in for the runtime library: blocks of threads, and what those threads do together.
 *
 * One kernel runs at a time, block after block; the threads of a block are fibers of the operating
 * system's thread that serves the stream, each with a stack of its own. A fiber runs until it
 * waits for others, so that between two waits threads do not mix: what depends on their order is
 * a race, and shows as a difference between WEFT_EMULATE_ORDER=forward and backward, which run the
 * threads of a block and the blocks of a grid from the first to the last, or the other way.
 *
 * Shared memory holds 0xff bytes (NaN) when a block starts. What would hang or be undefined on a
 * GPU ends the process with one line that names kernel, block and thread.
 */
#ifndef WEFT_TESTS_CUDA_EMULATE_BLOCK_H
#define WEFT_TESTS_CUDA_EMULATE_BLOCK_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The running block and thread. */
typedef struct weft_emulate_position {
    dim3 grid, block;
    uint3 block_index, thread_index;
} weft_emulate_position;
extern weft_emulate_position weft_emulate_here;

/* Enqueues a kernel: `call` runs it for one thread with a copy of the `bytes` of `arguments`.
 * Refuses what CUDA refuses: cudaErrorInvalidConfiguration or cudaErrorInvalidValue. `pointers` are
 * those among the arguments: one to host memory that is not pinned ends the process, for a GPU
 * could not read it. */
cudaError_t weft_emulate_launch(const char *kernel, const void *function, dim3 blocks, dim3 threads,
                                size_t shared_bytes, cudaStream_t stream,
                                void (*call)(const void *), const void *arguments, size_t bytes,
                                const void *const *pointers, int num_pointers);

/* The start of the running block's dynamic shared memory. */
void *weft_emulate_shared(void);

/* Waits until all threads of the block are here. */
void weft_emulate_barrier(void);

/* What the lanes of `mask` do together: each waits for all others. */
typedef enum weft_emulate_collective {
    WEFT_EMULATE_SYNC,    /* gives 0 */
    WEFT_EMULATE_SHUFFLE, /* gives the value of lane `source`, all ones where that is not in mask */
    WEFT_EMULATE_BALLOT,  /* gives a bit for each lane whose value is not 0 */
    WEFT_EMULATE_PUBLISH  /* values are pointers, which weft_emulate_published() lists then */
} weft_emulate_collective;
uint64_t weft_emulate_warp(weft_emulate_collective what, unsigned mask, uint64_t value,
                           unsigned source);
/* 32 pointers, NULL for lanes outside the mask, until the warp publishes again. */
void *const *weft_emulate_published(void);

/* cp.async: copies happen as late as CUDA allows, in weft_emulate_copy_wait, so that a missing wait
 * shows. Copies `bytes` of the source, then zeros up to `size`. */
void weft_emulate_copy_async(void *to, const void *from, unsigned size, unsigned bytes);
void weft_emulate_copy_commit(void);
/* Finishes all committed groups but the newest `pending`. */
void weft_emulate_copy_wait(unsigned pending);

#ifdef __cplusplus
}
#endif
#endif
