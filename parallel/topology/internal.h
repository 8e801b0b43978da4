/* Shared by limits.c, topology.c, bind.c and their tests. `root`: "" for this machine, else a
 * folder that stands for "/". */
#ifndef WEFT_PARALLEL_TOPOLOGY_INTERNAL_H
#define WEFT_PARALLEL_TOPOLOGY_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

/* The processors' worth of time that this process's control group (version 1 or 2) grants, rounded
 * up; 0: no limit. */
int weft_cpu_quota(const char *root);
/* Bytes of memory that the machine (MemAvailable) and this process's control groups leave;
 * UINT64_MAX: neither says. */
uint64_t weft_host_memory_left(const char *root);

/* Where weft_machine_bind would bind, on a machine of an hwloc synthetic description: processing
 * units such as "0-3". */
weft_status weft_machine_part(const char *synthetic, int index, int count, char out[256],
                              int *out_sharers) WEFT_CHECKED;

#endif
