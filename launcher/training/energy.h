/* The energy that a job takes. Processors: one rank of each node reads RAPL's counters of packages
 * (/sys/class/powercap, or the folder WEFT_POWERCAP); most systems allow that to root alone. GPUs:
 * one of the ranks that use a GPU reads NVML's counter. If a counter of one kind cannot be read,
 * that kind is not reported. */
#ifndef WEFT_LAUNCHER_TRAINING_ENERGY_H
#define WEFT_LAUNCHER_TRAINING_ENERGY_H

#include <stdbool.h>

#include "comm/comm.h"

/* A GPU's counter of energy, by NVIDIA's management library: libnvidia-ml.so.1, which comes with
 * the driver and is looked for at run time, or the file that WEFT_NVML names. */

/* Zero is valid: nothing is open. */
typedef struct weft_nvml {
    void *library;
    void *gpu; /* nvmlDevice_t */
    int (*read)(void *gpu, unsigned long long *out_mj);
    int (*end)(void);
} weft_nvml;

enum { WEFT_ENERGY_MAX_PACKAGES = 16 };

/* One counter, in joules, which wraps to 0 at `range`. */
typedef struct weft_energy_package {
    char folder[256];
    double last, range;
} weft_energy_package;

typedef struct weft_energy {
    bool is_read;     /* all nodes' counters are read */
    int num_packages; /* that this rank reads */
    weft_energy_package packages[WEFT_ENERGY_MAX_PACKAGES];
    bool gpus_are_read; /* all GPUs' counters are read */
    weft_nvml nvml;     /* the counter of the GPU that this rank reads */
    double gpu_last;    /* joules */
} weft_energy;

/* Joules of all nodes since the last call; -1: not read. */
typedef struct weft_joules {
    double processors, gpus;
} weft_joules;

/* `device`: this rank's. Collective. */
weft_status weft_energy_create(weft_energy *energy, const weft_device *device,
                               weft_comm *world) WEFT_CHECKED;
/* Collective. */
weft_status weft_energy_take(weft_energy *energy, weft_comm *world, weft_joules *out) WEFT_CHECKED;
/* Zero is legal. */
void weft_energy_release(weft_energy *energy);

/* The GPU at a place on the PCI bus ("0000:41:00.0"). False: no library, no such GPU, or one that
 * counts nothing (before Volta); nothing is open then. */
bool weft_nvml_open(const char *bus, weft_nvml *out);
/* Since the driver was loaded. False: it cannot be read now. */
bool weft_nvml_joules(const weft_nvml *nvml, double *out);
void weft_nvml_close(weft_nvml *nvml);

#endif
