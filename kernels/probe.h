/* Do the libraries beneath the kernels work here? See core/probe.h. */
#ifndef WEFT_KERNELS_PROBE_H
#define WEFT_KERNELS_PROBE_H

#include "core/probe.h"

/* Multiplies two small matrices. */
void weft_probe_onednn(weft_probe *out);

#endif
