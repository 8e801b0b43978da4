/* Structs of the CUDA device, for the files of this room alone. */
#ifndef WEFT_CORE_DEVICE_CUDA_INTERNAL_H
#define WEFT_CORE_DEVICE_CUDA_INTERNAL_H

#include <cuda.h>
#include <stdatomic.h>

#include "core/device/cuda/cuda.h"
#include "core/device/ops.h"
#include "core/device/worker.h"

/* cuStreamWaitValue64, cuStreamWriteValue64 */
typedef CUresult (*cuda_stream_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned flags);

typedef struct cuda_device {
    weft_device base;
    int index, num_multiprocessors;
    cudaMemPool_t pool;
    cudaStream_t pool_stream; /* orders the pool's allocations and frees */
    cuda_stream_value wait_value, write_value;
    atomic_int lost; /* the cudaError_t of a failed wait for a stream: no stream goes on after it */
} cuda_device;

/* In pinned memory, a cache line each. The GPU writes `reached` and reads `passed`. */
typedef struct cuda_counters {
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t reached; /* slots that the stream has come to */
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t passed;  /* slots that the worker has done */
} cuda_counters;

enum { NUM_PINNED_SIZES = 48 };

typedef struct cuda_lane {
    weft_lane base;
    weft_timeline *line; /* its points are the worker's slots; kernels make none */
    cudaStream_t stream;
    cuda_counters *counters;
    CUdeviceptr reached_address, passed_address;
    weft_worker *worker; /* NULL until something needs it */
    void *workspace;
    void *pinned[NUM_PINNED_SIZES]; /* by powers of two */
    int pinned_size;                /* the largest one so far: the one in use */
    bool capturing;                 /* a graph keeps the lane's work */
} cuda_lane;

typedef struct cuda_event {
    weft_event base;
    cudaEvent_t event;
    weft_mark mark;
} cuda_event;

extern const weft_device_ops weft_cuda_device_ops;

/* Makes the device current on the calling thread. */
void weft_cuda_enter(const cuda_device *device);
void weft_cuda_device_destroy(weft_device *device);

#endif
