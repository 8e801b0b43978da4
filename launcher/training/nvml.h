/* A GPU's counter of energy, by NVIDIA's management library: libnvidia-ml.so.1, which comes with
 * the driver and is looked for at run time, or the file that WEFT_NVML names. */
#ifndef WEFT_LAUNCHER_TRAINING_NVML_H
#define WEFT_LAUNCHER_TRAINING_NVML_H

#include <stdbool.h>

/* Zero is valid: nothing is open. */
typedef struct weft_nvml {
    void *library;
    void *gpu; /* nvmlDevice_t */
    int (*read)(void *gpu, unsigned long long *out_mj);
    int (*end)(void);
} weft_nvml;

/* The GPU at a place on the PCI bus ("0000:41:00.0"). False: no library, no such GPU, or one that
 * counts nothing (before Volta); nothing is open then. */
bool weft_nvml_open(const char *bus, weft_nvml *out);
/* Since the driver was loaded. False: it cannot be read now. */
bool weft_nvml_joules(const weft_nvml *nvml, double *out);
void weft_nvml_close(weft_nvml *nvml);

#endif
