/* A stand-in for NVIDIA's management library: GPUs on bus 41 and, as the emulation of CUDA has
 * them, 1, whose counter of millijoules is the file that FAKE_NVML names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
    static int gpu;
    *out = &gpu;
    return strcmp(bus, "0000:41:00.0") != 0 && strcmp(bus, "0000:01:00.0") != 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *out);
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *out)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = gpu && path ? fopen(path, "r") : NULL;
    const int num = file ? fscanf(file, "%llu", out) : 0;
    if (file)
        fclose(file);
    return num != 1;
}
