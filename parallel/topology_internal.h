/* Shared by cpu_quota.c, topology.c and their tests. */
#ifndef WEFT_PARALLEL_TOPOLOGY_INTERNAL_H
#define WEFT_PARALLEL_TOPOLOGY_INTERNAL_H

/* The processors' worth of time that this process's control group (version 1 or 2) grants, rounded
 * up; 0: no limit. `root`: "" for this machine, else a folder that stands for "/". */
int weft_cpu_quota(const char *root);

#endif
