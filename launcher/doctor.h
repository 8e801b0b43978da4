/* Parts of weft doctor. Private to launcher/. */
#ifndef WEFT_LAUNCHER_DOCTOR_H
#define WEFT_LAUNCHER_DOCTOR_H

#include "core/probe.h"

/* Weft's own use of GPUs, or why there is none: built without CUDA, no driver, no GPU. */
void weft_doctor_gpu(weft_probe *out);

#endif
