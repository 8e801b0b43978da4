/* What a build without CUDA answers a caller that asks for a CUDA device. */
#include "core/device/device.h"

weft_status weft_device_create_cuda(int index, size_t budget_bytes, weft_device **out)
{
    (void)index, (void)budget_bytes, (void)out;
    return WEFT_ERROR(WEFT_CONFIG,
                      "no CUDA device: this Weft was built without CUDA (cmake -DWEFT_CUDA=on)");
}

int weft_device_num_cuda(const char **out_why)
{
    if (out_why)
        *out_why = "Weft was built without CUDA";
    return 0;
}

bool weft_device_gpu_bus(const weft_device *device, char out[WEFT_GPU_BUS_BYTES])
{
    (void)device, (void)out;
    return false;
}
