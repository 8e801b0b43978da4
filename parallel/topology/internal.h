/* Shared by control_group.c, cpu_quota.c, host_memory.c, topology.c and their tests. `root`: "" for
 * this machine, else a folder that stands for "/". */
#ifndef WEFT_PARALLEL_TOPOLOGY_INTERNAL_H
#define WEFT_PARALLEL_TOPOLOGY_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFT_GROUP_PATH_BYTES = 4096 };
/* This process's control group, as its hierarchy names it: "/a/b". */
typedef struct weft_control_group {
    bool version_2;
    char path[WEFT_GROUP_PATH_BYTES];
} weft_control_group;

/* The group whose `controller` ("cpu", "memory") this process is under: "0::/a/b" in version 2,
 * "4:cpu,cpuacct:/a/b" in version 1. false: none. */
bool weft_group_find(const char *root, const char *controller, weft_control_group *out);
/* To the group above; false: there is none. */
bool weft_group_up(weft_control_group *group);
/* The first line of the file root + a + b + c; false where there is none. */
bool weft_group_read_line(const char *root, const char *a, const char *b, const char *c, char *out,
                          int capacity);

/* The processors' worth of time that this process's control group (version 1 or 2) grants, rounded
 * up; 0: no limit. */
int weft_cpu_quota(const char *root);
/* Bytes of memory that the machine (MemAvailable) and this process's control groups leave;
 * UINT64_MAX: neither says. */
uint64_t weft_host_memory_left(const char *root);

#endif
