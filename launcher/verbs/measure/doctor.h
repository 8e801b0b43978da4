/* Parts of weft doctor. Private to launcher/. */
#ifndef WEFT_LAUNCHER_VERBS_MEASURE_DOCTOR_H
#define WEFT_LAUNCHER_VERBS_MEASURE_DOCTOR_H

#include <stdbool.h>

#include "core/probe.h"

/* Weft's own use of GPUs, or why there is none: built without CUDA, no driver, no GPU. */
void weft_doctor_gpu(weft_probe *out);

typedef struct weft_doctor_nodes_options {
    const char *folder; /* whose disk is measured */
    double seconds, factor;
    bool on_gpu, json;
} weft_doctor_nodes_options;
/* weft doctor --nodes: compares the ranks of this job and prints, on rank 0. Returns the exit code,
 * of WEFT_DEVICE where something stands out. Collective over the launcher's ranks. */
int weft_doctor_nodes(const weft_doctor_nodes_options *options);

#endif
