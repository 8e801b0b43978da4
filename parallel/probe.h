/* Do the libraries that parallel/ stands on work here? See core/probe.h. */
#ifndef WEFT_PARALLEL_PROBE_H
#define WEFT_PARALLEL_PROBE_H

#include "core/probe.h"

/* This machine as hwloc sees it. */
void weft_probe_hwloc(weft_probe *out);
/* Writes and reads a small file through parallel HDF5, by this process alone. Starts MPI. */
void weft_probe_hdf5(weft_probe *out);
/* Hashes by a published test value. */
void weft_probe_xxhash(weft_probe *out);
/* Writes and reads a small spill file (parallel/spill/spill.h) under a folder. The version says by
 * what offloaded experts' files would be read there ("io_uring", "threads"), the note why not by
 * io_uring, and whether past the page cache. */
void weft_probe_file_io(const char *folder, weft_probe *out);

#endif
