/* NCCL's functions, found at run time: the same binary also starts on machines without NCCL. */
#ifndef WEFT_COMM_NCCL_NCCL_API_H
#define WEFT_COMM_NCCL_NCCL_API_H

#include <nccl.h>
#include <pthread.h>

#include <weft/status.h>

/* result, name, arguments */
#define WEFT_NCCL_API_LIST(X)                                                                      \
    X(ncclResult_t, GetVersion, (int *))                                                           \
    X(const char *, GetErrorString, (ncclResult_t))                                                \
    X(const char *, GetLastError, (ncclComm_t))                                                    \
    X(ncclResult_t, GetUniqueId, (ncclUniqueId *))                                                 \
    X(ncclResult_t, CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))    \
    X(ncclResult_t, CommFinalize, (ncclComm_t))                                                    \
    X(ncclResult_t, CommDestroy, (ncclComm_t))                                                     \
    X(ncclResult_t, CommAbort, (ncclComm_t))                                                       \
    X(ncclResult_t, CommGetAsyncError, (ncclComm_t, ncclResult_t *))                               \
    X(ncclResult_t, GroupStart, (void))                                                            \
    X(ncclResult_t, GroupEnd, (void))                                                              \
    X(ncclResult_t, AllReduce,                                                                     \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(ncclResult_t, ReduceScatter,                                                                 \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(ncclResult_t, AllGather,                                                                     \
      (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                    \
    X(ncclResult_t, Broadcast,                                                                     \
      (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))               \
    X(ncclResult_t, Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))   \
    X(ncclResult_t, Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

typedef struct weft_nccl_api {
#define WEFT_NCCL_API_MEMBER(result, name, arguments) result(*name) arguments;
    WEFT_NCCL_API_LIST(WEFT_NCCL_API_MEMBER)
#undef WEFT_NCCL_API_MEMBER
    char version[32]; /* "2.28.9" */
} weft_nccl_api;

/* Loads the library once a process. Errors: WEFT_CONFIG, with what is missing or why Weft does not
 * use this version. */
weft_status weft_nccl_load(void) WEFT_CHECKED;
/* After a load that succeeded. */
const weft_nccl_api *weft_nccl(void);

/* NCCL's answer as a status, with NCCL's own text. ncclInProgress is no error: communicators do not
 * block (weft_nccl_settle). */
#define WEFT_NCCL(call) weft_nccl_status(__FILE__, __LINE__, __func__, #call, (call))
weft_status weft_nccl_status(const char *file, int line, const char *function, const char *call,
                             ncclResult_t result) WEFT_CHECKED;

enum { WEFT_NCCL_SETUP_SECONDS = 300, WEFT_NCCL_POLL_NS = 200000 };
/* Begin and end calls that NCCL takes as one; the end also settles them. `status`: of the calls in
 * between; the end returns it if it is not WEFT_OK. */
weft_status weft_nccl_begin_group(void) WEFT_CHECKED;
weft_status weft_nccl_end_group(ncclComm_t handle, weft_status status) WEFT_CHECKED;
/* Waits until the communicator's last call is no longer in progress. */
weft_status weft_nccl_settle(ncclComm_t handle) WEFT_CHECKED;
/* Held around every enqueuing. */
extern pthread_mutex_t weft_nccl_order;

#endif
