/* A stand-in for the CUDA driver's library, found in its place through LD_LIBRARY_PATH. The
 * environment variable FAKE_CUDA says how it behaves: "two" devices that work, "none", "refuse" to
 * start, "forget" what is copied, "crash", or "exit". */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALL(name, ...)                                                                            \
    int name(__VA_ARGS__);                                                                         \
    int name(__VA_ARGS__)

static unsigned char memory[65536];

static int mode_is(const char *mode)
{
    const char *given = getenv("FAKE_CUDA");
    return given && !strcmp(given, mode);
}

CALL(cuInit, unsigned flags)
{
    if (mode_is("crash"))
        kill(getpid(), SIGKILL);
    if (mode_is("exit"))
        _exit(3);
    return flags || mode_is("refuse") ? 999 : 0;
}

CALL(cuDriverGetVersion, int *out)
{
    *out = 13000;
    return 0;
}

CALL(cuDeviceGetCount, int *out)
{
    *out = mode_is("none") ? 0 : 2;
    return 0;
}

CALL(cuDeviceGet, int *out, int index)
{
    *out = 100 + index;
    return 0;
}

CALL(cuDeviceGetName, char *out, int capacity, int device)
{
    return snprintf(out, (size_t)capacity, "Stand-in %d", device) < 0;
}

CALL(cuDeviceTotalMem_v2, size_t *out_bytes, int device)
{
    *out_bytes = (size_t)8 << 30;
    return device < 100;
}

CALL(cuDevicePrimaryCtxRetain, void **out_context, int device)
{
    *out_context = memory;
    return device < 100;
}

CALL(cuDevicePrimaryCtxRelease_v2, int device)
{
    return device < 100;
}

CALL(cuCtxSetCurrent, void *context)
{
    return context != memory;
}

CALL(cuMemAlloc_v2, unsigned long long *out, size_t bytes)
{
    *out = 64; /* an offset: a device's address means nothing to the host */
    return bytes > sizeof memory - 64;
}

CALL(cuMemFree_v2, unsigned long long address)
{
    return address != 64;
}

CALL(cuMemcpyHtoD_v2, unsigned long long to, const void *from, size_t bytes)
{
    memcpy(memory + to, from, bytes);
    return 0;
}

CALL(cuMemcpyDtoH_v2, void *to, unsigned long long from, size_t bytes)
{
    memcpy(to, memory + from, bytes);
    if (mode_is("forget"))
        memset(to, 0, bytes / 2);
    return 0;
}

CALL(cuGetErrorName, int error, const char **out)
{
    *out = "CUDA_ERROR_STANDIN";
    return error != 999;
}
