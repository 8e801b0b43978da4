/* Do the libraries beneath the communicators work here? See core/probe.h. */
#ifndef WEFT_COMM_PROBE_H
#define WEFT_COMM_PROBE_H

#include "core/probe.h"

/* Starts MPI in this process alone, with full thread support, and sends itself a message. */
void weft_probe_mpi(weft_probe *out);
/* Looks for NCCL at run time. */
void weft_probe_nccl(weft_probe *out);

#endif
