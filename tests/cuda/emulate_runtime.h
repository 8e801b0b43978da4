/* The stand-in for the CUDA runtime library, seen by its parts and by stand-ins for libraries on
 * top of it.
 *
 * A stream is a thread that serves a queue. Device memory is one range of addresses that faults
 * when touched, except while a stream runs something "on the device", one at a time: so host code
 * that reads a device pointer ends the process with a line that says so.
 */
#ifndef WEFT_TESTS_CUDA_EMULATE_RUNTIME_H
#define WEFT_TESTS_CUDA_EMULATE_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WEFT_EMULATE_MAX_DEVICES = 8,
    WEFT_EMULATE_MULTIPROCESSORS = 4, /* few: kernels that fill the device finish soon */
    WEFT_EMULATE_MAX_SHARED = 227 * 1024,
    WEFT_EMULATE_SHARED_UNASKED = 48 * 1024 /* more only after cudaFuncSetAttribute */
};

/* Enqueues `run` of a copy of the argument's `bytes`, 16-byte aligned: on_device as a kernel would
 * run (device memory may be used, nothing else is on the device meanwhile), otherwise as a host
 * function would. A graph that is captured runs it once a launch. Callable from any thread. Errors:
 * cudaErrorInvalidResourceHandle, cudaErrorMemoryAllocation. */
cudaError_t weft_emulate_enqueue(cudaStream_t stream, void (*run)(void *argument),
                                 const void *argument, size_t bytes, bool on_device);
/* Whether this thread captures a stream, and therefore must not allocate or wait. Such a call
 * spoils the capture. */
bool weft_emulate_spoils_capture(void);

/* Ends the process with "CUDA emulation: " and the text. */
_Noreturn void weft_emulate_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Names the kernel, block and thread that run, if any do on this thread, and ends the process. */
void weft_emulate_blame_kernel(const char *why);

/* Sets this thread's last error and gives it back. */
cudaError_t weft_emulate_error(cudaError_t error);

/* How many devices there are (WEFT_EMULATE_GPUS), and this thread's. */
int weft_emulate_num_devices(void);
int weft_emulate_device(void);

/* Every call to CUDA passes here first: it waits while another thread loads a kernel. */
void weft_emulate_enter(void);
/* Loads what has this key, unless that was done. Libraries that load their kernels by themselves do
 * so whatever CUDA_MODULE_LOADING says. */
void weft_emulate_load(uint64_t key, bool by_library);
/* From now on nothing is announced on streams, and who waits for one gets this error, as after a
 * fault on the device; cudaSuccess mends it. For tests, which find it by name. */
void weft_emulate_break(cudaError_t error);
cudaError_t weft_emulate_broken(void);
/* Waits for all that the device's streams were given so far. */
void weft_emulate_drain(int device);

/* Runs `run(argument)` now, on the device. */
void weft_emulate_on_device(void (*run)(void *argument), void *argument);

/* Device memory, filled with 0xff bytes while it is free. */
cudaError_t weft_emulate_alloc(int device, size_t bytes, void **out);
cudaError_t weft_emulate_free(void *memory);

typedef enum weft_emulate_kind {
    WEFT_EMULATE_PAGEABLE,
    WEFT_EMULATE_PINNED,
    WEFT_EMULATE_DEVICE
} weft_emulate_kind;
/* What an address is, and whose. */
weft_emulate_kind weft_emulate_find(const void *memory, int *out_device);

/* True where the stream exists. NULL is the device's default stream. */
bool weft_emulate_stream_valid(cudaStream_t stream);

/* cudaFuncSetAttribute's limit for a kernel. */
size_t weft_emulate_shared_limit(const void *function);

#endif
