/* Allocation in stream order, copies, and the driver's waits for values in memory. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/emulate_runtime.h"

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    *out = NULL;
    if (weft_emulate_spoils_capture())
        return weft_emulate_error(cudaErrorStreamCaptureUnsupported);
    return weft_emulate_error(bytes ? weft_emulate_alloc(weft_emulate_device(), bytes, out)
                                    : cudaSuccess);
}

cudaError_t cudaFree(void *memory)
{
    if (!memory)
        return cudaSuccess;
    const cudaError_t error = cudaDeviceSynchronize();
    return error ? error : weft_emulate_error(weft_emulate_free(memory));
}

struct CUmemPoolHandle_st {
    int device;
    size_t max_bytes; /* 0: no limit */
};

cudaError_t cudaMemPoolCreate(cudaMemPool_t *out, const struct cudaMemPoolProps *props)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    if (props->allocType != cudaMemAllocationTypePinned ||
        props->location.type != cudaMemLocationTypeDevice || props->location.id < 0 ||
        props->location.id >= weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorInvalidValue);
    cudaMemPool_t pool = calloc(1, sizeof *pool);
    if (!pool)
        return weft_emulate_error(cudaErrorMemoryAllocation);
    pool->device = props->location.id;
    pool->max_bytes = props->maxSize;
    *out = pool;
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    free(pool);
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    return weft_emulate_error(pool && value && attribute <= cudaMemPoolAttrUsedMemHigh
                                  ? cudaSuccess
                                  : cudaErrorInvalidValue);
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    *out = NULL;
    if (!weft_emulate_stream_valid(stream))
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    if (!pool)
        return weft_emulate_error(cudaErrorInvalidValue);
    if (!bytes)
        return cudaSuccess;
    if (pool->max_bytes && bytes > pool->max_bytes)
        return weft_emulate_error(cudaErrorMemoryAllocation);
    return weft_emulate_error(weft_emulate_alloc(pool->device, bytes, out));
}

static void run_free(void *argument)
{
    void *memory;
    memcpy(&memory, argument, sizeof memory);
    if (weft_emulate_free(memory))
        weft_emulate_die("cudaFreeAsync of %p, which is not allocated", memory);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    return memory ? weft_emulate_error(
                        weft_emulate_enqueue(stream, run_free, &memory, sizeof memory, false))
                  : cudaSuccess;
}

typedef struct copy {
    void *to;
    const void *from; /* NULL: set to `value` */
    size_t bytes;
    int value;
} copy;

static void run_copy(void *argument)
{
    copy *c = argument;
    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
}

static cudaError_t enqueue_copy(copy c, cudaStream_t stream)
{
    if (!c.bytes)
        return weft_emulate_stream_valid(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
    return weft_emulate_enqueue(stream, run_copy, &c, sizeof c, true);
}

/* True where a kind names memory as it is. */
static bool fits(weft_emulate_kind kind, bool device)
{
    return (kind == WEFT_EMULATE_DEVICE) == device;
}

static cudaError_t check_kind(weft_emulate_kind to, weft_emulate_kind from,
                              enum cudaMemcpyKind kind)
{
    bool right = false;
    switch (kind) {
    case cudaMemcpyHostToHost:
        right = fits(to, false) && fits(from, false);
        break;
    case cudaMemcpyHostToDevice:
        right = fits(to, true) && fits(from, false);
        break;
    case cudaMemcpyDeviceToHost:
        right = fits(to, false) && fits(from, true);
        break;
    case cudaMemcpyDeviceToDevice:
        right = fits(to, true) && fits(from, true);
        break;
    case cudaMemcpyDefault:
        right = true;
    }
    return right ? cudaSuccess : cudaErrorInvalidValue;
}

/* Memory that is not pinned is copied before the call returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const weft_emulate_kind to_kind = weft_emulate_find(to, NULL);
    const weft_emulate_kind from_kind = weft_emulate_find(from, NULL);
    cudaError_t error = bytes ? check_kind(to_kind, from_kind, kind) : cudaSuccess;
    if (!error)
        error = enqueue_copy((copy){.to = to, .from = from, .bytes = bytes}, stream);
    if (!error && (to_kind == WEFT_EMULATE_PAGEABLE || from_kind == WEFT_EMULATE_PAGEABLE))
        error = cudaStreamSynchronize(stream);
    return weft_emulate_error(error);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes && weft_emulate_find(memory, NULL) == WEFT_EMULATE_PAGEABLE)
        return weft_emulate_error(cudaErrorInvalidValue);
    return weft_emulate_error(
        enqueue_copy((copy){.to = memory, .value = value, .bytes = bytes}, stream));
}

/* A value in memory that a stream waits for, or writes. */
typedef struct word {
    uint64_t *address, value, seen;
    bool write;
} word;

static void access_word(void *argument)
{
    word *w = argument;
    if (w->write)
        __atomic_store_n(w->address, w->value, __ATOMIC_RELEASE);
    else
        w->seen = __atomic_load_n(w->address, __ATOMIC_ACQUIRE);
}

static void run_word(void *argument)
{
    word *w = argument;
    const bool device = weft_emulate_find(w->address, NULL) == WEFT_EMULATE_DEVICE;
    const struct timespec pause = {.tv_nsec = 20000};
    while (!weft_emulate_broken()) {
        if (device)
            weft_emulate_on_device(access_word, w);
        else
            access_word(w);
        if (w->write || (int64_t)(w->seen - w->value) >= 0)
            break;
        nanosleep(&pause, NULL);
    }
}

static CUresult enqueue_word(CUstream stream, CUdeviceptr address, cuuint64_t value, bool write)
{
    word w = {.address = (uint64_t *)(uintptr_t)address, .value = value, .write = write};
    if (address % 8 || weft_emulate_find(w.address, NULL) == WEFT_EMULATE_PAGEABLE)
        return CUDA_ERROR_INVALID_VALUE;
    return weft_emulate_enqueue(stream, run_word, &w, sizeof w, false) ? CUDA_ERROR_INVALID_HANDLE
                                                                       : CUDA_SUCCESS;
}

static CUresult wait_64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return flags == CU_STREAM_WAIT_VALUE_GEQ ? enqueue_word(stream, address, value, false)
                                             : CUDA_ERROR_INVALID_VALUE;
}

static CUresult write_64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    return flags == CU_STREAM_WRITE_VALUE_DEFAULT ? enqueue_word(stream, address, value, true)
                                                  : CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *out_result)
{
    static CUresult (*const calls[])(CUstream, CUdeviceptr, cuuint64_t, unsigned) = {wait_64,
                                                                                     write_64};
    static const struct {
        const char *name;
        const void *function; /* the address of a pointer */
    } functions[] = {{"cuStreamWaitValue64", &calls[0]}, {"cuStreamWriteValue64", &calls[1]}};
    (void)version;
    (void)flags;
    *out = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (!strcmp(symbol, functions[i].name))
            memcpy(out, functions[i].function, sizeof *out);
    if (out_result)
        *out_result = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
