#include "launcher/training/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The part of nvml.h that is used: every function returns nvmlReturn_t, 0 for success. */
enum { SUCCESS = 0 };

static bool find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

static bool start(weft_nvml *nvml, const char *bus)
{
    int (*init)(void);
    int (*by_bus)(const char *, void **);
    if (!find(nvml->library, "nvmlInit_v2", (void *)&init, sizeof init) ||
        !find(nvml->library, "nvmlShutdown", (void *)&nvml->end, sizeof nvml->end) ||
        !find(nvml->library, "nvmlDeviceGetHandleByPciBusId_v2", (void *)&by_bus, sizeof by_bus) ||
        !find(nvml->library, "nvmlDeviceGetTotalEnergyConsumption", (void *)&nvml->read,
              sizeof nvml->read))
        nvml->end = NULL;
    else if (init() != SUCCESS)
        nvml->end = NULL;
    else
        return by_bus(bus, &nvml->gpu) == SUCCESS;
    return false;
}

bool weft_nvml_open(const char *bus, weft_nvml *out)
{
    const char *own = getenv("WEFT_NVML");
    double joules;
    *out = (weft_nvml){.library = dlopen(own ? own : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (out->library && start(out, bus) && weft_nvml_joules(out, &joules))
        return true;
    weft_nvml_close(out);
    return false;
}

bool weft_nvml_joules(const weft_nvml *nvml, double *out)
{
    unsigned long long mj = 0;
    if (!nvml->library || nvml->read(nvml->gpu, &mj) != SUCCESS)
        return false;
    *out = (double)mj * 1e-3;
    return true;
}

void weft_nvml_close(weft_nvml *nvml)
{
    if (nvml->end)
        nvml->end();
    if (nvml->library)
        dlclose(nvml->library);
    *nvml = (weft_nvml){.library = NULL};
}
