/* What names a GPU to other libraries. */
#ifndef WEFT_CORE_DEVICE_GPU_H
#define WEFT_CORE_DEVICE_GPU_H

#include <stdbool.h>

#include <weft/device.h>

enum { WEFT_GPU_BUS_BYTES = 32 };
/* "0000:41:00.0": the place on the PCI bus of a CUDA device's GPU. False: the CPU, or CUDA does not
 * tell. */
bool weft_device_gpu_bus(const weft_device *device, char out[WEFT_GPU_BUS_BYTES]);

#endif
