/* Which versions of NCCL Weft uses. */
#ifndef WEFT_COMM_NCCL_VERSION_H
#define WEFT_COMM_NCCL_VERSION_H

/* Writes the version ("2.28.9") of ncclGetVersion's code. Returns why Weft does not use it, or
 * NULL. */
const char *weft_nccl_version(int code, char text[32]);

#endif
