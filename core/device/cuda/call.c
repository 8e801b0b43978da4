/* Calls of CUDA: the thread's device, and the text of errors. */
#include <string.h>

#include "core/device/cuda/internal.h"

weft_status weft_cuda_status(const char *file, int line, const char *function, const char *call,
                             cudaError_t error)
{
    if (error == cudaSuccess)
        return WEFT_OK;
    (void)cudaGetLastError();             /* reported here, so it is not the next call's */
    int length = (int)strcspn(call, "("); /* without the arguments, unless it begins with one */
    return weft_error_set(file, line, function, WEFT_DEVICE, "%.*s: %s (%s)",
                          length ? length : (int)strlen(call), call, cudaGetErrorString(error),
                          cudaGetErrorName(error));
}

void weft_cuda_enter(const cuda_device *device)
{
    static _Thread_local int current = -1;
    if (current == device->index)
        return;
    if (cudaSetDevice(device->index) == cudaSuccess) /* else the next call says what is wrong */
        current = device->index;
}
