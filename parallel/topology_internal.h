/* Between topology.c and its tests. */
#ifndef WEFT_PARALLEL_TOPOLOGY_INTERNAL_H
#define WEFT_PARALLEL_TOPOLOGY_INTERNAL_H

/* The processors' worth of time that the control group of this process grants, rounded up; 0: no
 * limit. Versions 1 and 2. `root`: "" for this machine, else a folder that stands for "/". */
int weft_cpu_quota(const char *root);

#endif
