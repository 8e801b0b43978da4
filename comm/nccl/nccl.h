/* NCCL for the groups of a run. The door of this room. */
#ifndef WEFT_COMM_NCCL_NCCL_H
#define WEFT_COMM_NCCL_NCCL_H

#include "comm/comm.h"

/* Writes the version ("2.28.9") of ncclGetVersion's code. Returns why Weft does not use it, or
 * NULL. */
const char *weft_nccl_version(int code, char text[32]);

/* Whether NCCL can serve these ranks with each rank's device, and why: the same answer
 * on every rank. Accordingly switches NCCL on or off for groups made from now on. `device` is
 * borrowed as long as groups are made. Collective over `world`. */
weft_status weft_nccl_use(weft_comm *world, weft_device *device, char *why, size_t why_bytes,
                          bool *out_used) WEFT_CHECKED;
void weft_nccl_use_none(void);
/* Puts NCCL beside a new mpi group where NCCL is on and the group's purpose calls for it.
 * Collective over the group. */
weft_status weft_nccl_adopt(weft_comm **group) WEFT_CHECKED;
/* Ends all communicators; when the world ends. Collective, unless a group is broken. */
void weft_nccl_stop(void);

#endif
