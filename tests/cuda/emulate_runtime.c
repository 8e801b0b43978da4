/* Devices, errors, and what kernels may ask for. */
#include "tests/cuda/emulate_runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local cudaError_t last_error;
static _Thread_local int current_device;

/* WEFT_EMULATE_GPUS=none: not even a driver. */
static bool has_driver(void)
{
    const char *text = getenv("WEFT_EMULATE_GPUS");
    return !text || strcmp(text, "none");
}

int weft_emulate_num_devices(void)
{
    const char *text = getenv("WEFT_EMULATE_GPUS");
    if (!text || !*text)
        return 1;
    const int count = atoi(text);
    return count < 0 ? 0 : count > WEFT_EMULATE_MAX_DEVICES ? WEFT_EMULATE_MAX_DEVICES : count;
}

int weft_emulate_device(void)
{
    return current_device;
}

cudaError_t weft_emulate_error(cudaError_t error)
{
    if (error)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

#define ERRORS(X)                                                                                  \
    X(Success, "no error")                                                                         \
    X(ErrorInvalidValue, "invalid argument")                                                       \
    X(ErrorMemoryAllocation, "out of memory")                                                      \
    X(ErrorInvalidConfiguration, "invalid configuration argument")                                 \
    X(ErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")     \
    X(ErrorNoDevice, "no CUDA-capable device is detected")                                         \
    X(ErrorInvalidDevice, "invalid device ordinal")                                                \
    X(ErrorInvalidResourceHandle, "invalid resource handle")                                       \
    X(ErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")   \
    X(ErrorNotReady, "device not ready")                                                           \
    X(ErrorIllegalAddress, "an illegal memory access was encountered")                             \
    X(ErrorIllegalState, "the operation cannot be performed in the present state")                 \
    X(ErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")           \
    X(ErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
#define NAME(error, text)                                                                          \
    case cuda##error:                                                                              \
        return "cuda" #error;
        ERRORS(NAME)
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
#define TEXT(error, text)                                                                          \
    case cuda##error:                                                                              \
        return text;
        ERRORS(TEXT)
    default:
        return "unrecognized error code";
    }
}

static cudaError_t check_device(int device)
{
    weft_emulate_enter();
    if (!has_driver())
        return weft_emulate_error(cudaErrorInsufficientDriver);
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    return weft_emulate_error(
        device < 0 || device >= weft_emulate_num_devices() ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = weft_emulate_num_devices();
    return check_device(0);
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = check_device(device);
    if (!error)
        current_device = device;
    return error;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int device)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } values[] = {
        {cudaDevAttrMultiProcessorCount, WEFT_EMULATE_MULTIPROCESSORS},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrPciBusId, device + 1},
        {cudaDevAttrPciDeviceId, 0},
        {cudaDevAttrPciDomainId, 0},
        {cudaDevAttrMemoryPoolsSupported, 1},
    };
    const cudaError_t error = check_device(device);
    if (error)
        return error;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (values[i].attribute == attribute) {
            *out = values[i].value;
            return cudaSuccess;
        }
    weft_emulate_die("cudaDeviceGetAttribute: attribute %d is unknown here", (int)attribute);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int capacity, int device)
{
    const cudaError_t error = check_device(device);
    if (!error)
        snprintf(out, (size_t)capacity, "0000:%02X:00.0", (unsigned)device + 1);
    return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *out_least, int *out_greatest)
{
    *out_least = 0;
    *out_greatest = -5;
    return check_device(current_device);
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    *out = has_driver() ? CUDART_VERSION : 0;
    return cudaSuccess;
}

/* What kernels were promised. */
typedef struct promise {
    struct promise *next;
    const void *function;
    size_t shared_bytes;
} promise;
static promise *promises;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t weft_emulate_shared_limit(const void *function)
{
    size_t limit = WEFT_EMULATE_SHARED_UNASKED;
    pthread_mutex_lock(&lock);
    for (const promise *p = promises; p; p = p->next)
        if (p->function == function && p->shared_bytes > limit)
            limit = p->shared_bytes;
    pthread_mutex_unlock(&lock);
    return limit;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    const cudaError_t error = check_device(current_device);
    if (error)
        return error;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return weft_emulate_error(value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > WEFT_EMULATE_MAX_SHARED)
        return weft_emulate_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    promise *p = promises;
    while (p && p->function != function)
        p = p->next;
    if (!p && (p = calloc(1, sizeof *p))) {
        p->function = function;
        p->next = promises;
        promises = p;
    }
    if (p)
        p->shared_bytes = (size_t)value;
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(p ? cudaSuccess : cudaErrorMemoryAllocation);
}
