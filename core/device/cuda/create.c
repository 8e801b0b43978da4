/* Finds CUDA devices and opens them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/cuda/internal.h"
#include "core/device/device.h"

/* For streams in which a function stands, and which must not hold up what has nothing to do with
 * it. Read by the driver when it starts, hence before anything else asks CUDA. */
static void prepare_driver(void)
{
    /* Queues of their own: streams that share one of the driver's wait for each other. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* By default a kernel is loaded at its first launch, which waits for all streams, also for one
     * that waits for a rank which cannot go on before that launch. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static const char *why_none(cudaError_t error)
{
    int driver = 0;
    if (error == cudaErrorNoDevice)
        return "the machine has no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it";
    if (error != cudaErrorInsufficientDriver)
        return cudaGetErrorString(error);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "the machine has no NVIDIA driver (libcuda.so.1)";
    return "the machine's NVIDIA driver is older than the CUDA that Weft was built with";
}

int weft_device_num_cuda(const char **out_why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0;
    pthread_once(&once, prepare_driver);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return count;
    (void)cudaGetLastError();
    if (out_why)
        *out_why = why_none(error == cudaSuccess ? cudaErrorNoDevice : error);
    return 0;
}

int weft_cuda_index(const weft_device *device)
{
    return ((const cuda_device *)device)->index;
}

bool weft_device_gpu_bus(const weft_device *device, char out[WEFT_GPU_BUS_BYTES])
{
    if (strcmp(weft_device_name(device), "cuda") != 0)
        return false;
    if (cudaDeviceGetPCIBusId(out, WEFT_GPU_BUS_BYTES, weft_cuda_index(device)) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

int weft_cuda_num_multiprocessors(const weft_device *device)
{
    return ((const cuda_device *)device)->num_multiprocessors;
}

static weft_status check_capability(int index)
{
    int major = 0, minor = 0, pools = 0;
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index)));
    if (major < 8)
        return WEFT_ERROR(WEFT_DEVICE, "compute capability %d.%d, but Weft needs 8.0 or later",
                          major, minor);
    if (!pools)
        return WEFT_ERROR(WEFT_DEVICE, "no memory pools (cudaDevAttrMemoryPoolsSupported)");
    return WEFT_OK;
}

/* Freed memory stays with the pool: a training step asks for the same again. */
static weft_status create_pool(cuda_device *device)
{
    uint64_t keep = UINT64_MAX;
    struct cudaMemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device->index;
    WEFT_TRY(WEFT_CUDA(cudaMemPoolCreate(&device->pool, &props)));
    WEFT_TRY(
        WEFT_CUDA(cudaMemPoolSetAttribute(device->pool, cudaMemPoolAttrReleaseThreshold, &keep)));
    return WEFT_CUDA(cudaStreamCreateWithFlags(&device->pool_stream, cudaStreamNonBlocking));
}

static weft_status find_function(const char *name, cuda_stream_value *out)
{
    void *symbol = NULL;
    enum cudaDriverEntryPointQueryResult found;
    WEFT_TRY(WEFT_CUDA(
        cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &found)));
    if (found != cudaDriverEntryPointSuccess || !symbol)
        return WEFT_ERROR(WEFT_DEVICE, "the NVIDIA driver lacks %s", name);
    memcpy(out, &symbol, sizeof symbol);
    return WEFT_OK;
}

static weft_status device_init(cuda_device *device)
{
    int index = device->index;
    WEFT_TRY(check_capability(index));
    WEFT_TRY(WEFT_CUDA(cudaSetDevice(index)));
    weft_cuda_enter(device);
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&device->num_multiprocessors,
                                              cudaDevAttrMultiProcessorCount, index)));
    WEFT_TRY(create_pool(device));
    WEFT_TRY(find_function("cuStreamWaitValue64", &device->wait_value));
    return find_function("cuStreamWriteValue64", &device->write_value);
}

weft_status weft_device_create_cuda(int index, size_t budget_bytes, weft_device **out)
{
    const char *why = "";
    int count = weft_device_num_cuda(&why);
    if (count == 0)
        return WEFT_ERROR(WEFT_DEVICE, "no CUDA device: %s", why);
    if (index < 0 || index >= count)
        return WEFT_ERROR(WEFT_CONFIG, "no CUDA device %d: the machine has %d, counted from 0",
                          index, count);
    cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: cuda device");
    device->base.ops = &weft_cuda_device_ops;
    device->base.num_threads = 1;
    device->base.budget_bytes = budget_bytes;
    device->index = index;
    weft_status status = device_init(device);
    if (status != WEFT_OK) {
        weft_error_context(status, "CUDA device %d", index);
        weft_cuda_device_destroy(&device->base);
        return status;
    }
    *out = &device->base;
    return WEFT_OK;
}
