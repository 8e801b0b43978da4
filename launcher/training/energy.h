/* The energy that a job takes. Processors: one rank of each node reads RAPL's counters of packages
 * (/sys/class/powercap, or the folder WEFT_POWERCAP); most systems allow that to root alone. GPUs:
 * one of the ranks that use a GPU reads NVML's counter. If a counter of one kind cannot be read,
 * that kind is not reported. */
#ifndef WEFT_LAUNCHER_TRAINING_ENERGY_H
#define WEFT_LAUNCHER_TRAINING_ENERGY_H

#include "comm/comm.h"
#include "launcher/training/nvml.h"

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

#endif
