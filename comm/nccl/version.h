/* Which versions of NCCL are used. */
#ifndef WEFT_COMM_NCCL_VERSION_H
#define WEFT_COMM_NCCL_VERSION_H

/* Writes the version ("2.28.9") that ncclGetVersion's code means; returns why it is not used, or
 * NULL. */
const char *weft_nccl_version(int code, char text[32]);

#endif
