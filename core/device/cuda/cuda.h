/* The CUDA device, seen from inside: what the CUDA kernels and communicators need of a lane.
 *
 * A lane is a CUDA stream with a priority, and a worker thread for the functions submitted to it.
 * The worker waits until the stream has reached the function, runs it, and writes a counter in
 * pinned memory for which the stream waits meanwhile. So a function may block (for a peer, say)
 * without holding up other lanes; a callback of the CUDA driver would hold them up.
 *
 * A function that fails poisons its lane as on the CPU: functions and copies submitted later are
 * refused or skipped, and the first error comes back from the next submit, copy, zero, record,
 * sync, and from waiting for the lane's events, on other lanes too. What differs: kernels and
 * copies that the stream already holds run on, and their results are void. The streams of poisoned
 * lanes still wait for each other, so that memory is idle after a sync whatever it returned. An
 * error of CUDA's own that ends the context (an illegal address, say) comes back from every later
 * call.
 *
 * Some calls wait until all streams are idle, and keep other threads out of the driver meanwhile:
 * launching a kernel that is not loaded yet (cuBLASLt loads its own one by one, whatever
 * CUDA_MODULE_LOADING says), cudaFree, cudaFreeHost, making handles. Hence, while a lane waits for
 * a function,
 *  - neither the function nor its worker calls CUDA: the stream writes a counter in pinned memory,
 *    from which the worker learns that its turn has come;
 *  - a thread that launches must not owe another rank anything: schedules start each computation
 *    only after the messages posted before it have arrived (tests/schedule).
 * Each stream has a queue of its own, since a stream that shared one with a waiting lane would wait
 * too: Weft sets CUDA_DEVICE_MAX_CONNECTIONS to 32 where the environment does not set it.
 *
 * Memory of WEFT_SPACE_DEVICE comes from one stream-ordered pool, which keeps what is freed. The
 * runtime is linked statically and finds the driver at run time. dlopen finds cuBLASLt and NCCL, so
 * one binary also starts, and says what is missing, on machines without them. */
#ifndef WEFT_CORE_DEVICE_CUDA_CUDA_H
#define WEFT_CORE_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include <weft/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* WEFT_OK, or WEFT_DEVICE with the call, CUDA's name for the error and its text:
 *     WEFT_TRY(WEFT_CUDA(cudaMemcpyAsync(...))); */
#define WEFT_CUDA(call) weft_cuda_status(__FILE__, __LINE__, __func__, #call, (call))
weft_status weft_cuda_status(const char *file, int line, const char *function, const char *call,
                             cudaError_t error) WEFT_CHECKED;

/* True for lanes of a CUDA device. */
bool weft_lane_is_cuda(const weft_lane *lane);
/* The stream of a CUDA lane. Borrowed. Also makes the lane's device current on this thread. */
cudaStream_t weft_cuda_stream(weft_lane *lane);
/* The device's number; how many multiprocessors it has. */
int weft_cuda_index(const weft_device *device);
int weft_cuda_num_multiprocessors(const weft_device *device);

/* The lane's workspace in device memory, for kernels' partial results: WEFT_CUDA_WORKSPACE_BYTES,
 * the same at every call; the first call allocates (and counts) it. Work enqueued later on this
 * lane may overwrite it. Errors: WEFT_MEMORY, WEFT_INTERNAL (`bytes` is more than that). */
enum { WEFT_CUDA_WORKSPACE_BYTES = 32 << 20 };
weft_status weft_cuda_workspace(weft_lane *lane, size_t bytes, void **out) WEFT_CHECKED;
/* The lane's workspace in pinned memory. It grows by powers of two. Smaller ones stay until the
 * lane is destroyed, since freeing would wait for all streams. Growing pins memory, for which a
 * driver may wait for the streams too: work posted before must be able to end. */
weft_status weft_cuda_pinned_workspace(weft_lane *lane, size_t bytes, void **out) WEFT_CHECKED;
/* True for memory that only the device can read: false for pinned and ordinary host memory. */
bool weft_cuda_is_device_memory(const void *memory);

#ifdef __cplusplus
}
#endif
#endif
