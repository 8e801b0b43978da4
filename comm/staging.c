#include "comm/staging.h"

#ifdef WEFT_HAS_CUDA

#include "core/device/cuda/cuda.h"

enum {
    ALIGNMENT = 64,
    MIN_WORKSPACE_BYTES = 1 << 20, /* so that it grows seldom */
};

/* What this rank reads and writes of an operation's operands. */
typedef struct extent {
    size_t send_bytes, recv_bytes;
    bool one_buffer; /* all_reduce, broadcast */
} extent;

static size_t sum_of(const size_t *bytes, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += bytes[i];
    return sum;
}

static extent extent_of(const weft_comm_op *op)
{
    int size = op->comm->size;
    bool root = op->peer == op->comm->rank;
    switch (op->kind) {
    case WEFT_COMM_ALL_REDUCE:
        return (extent){op->bytes, op->bytes, true};
    case WEFT_COMM_BROADCAST:
        return (extent){root ? op->bytes : 0, root ? 0 : op->bytes, true};
    case WEFT_COMM_REDUCE_SCATTER:
        return (extent){op->bytes, op->bytes / (size_t)size, false};
    case WEFT_COMM_ALL_GATHER:
        return (extent){op->bytes / (size_t)size, op->bytes, false};
    case WEFT_COMM_GATHER:
        return (extent){op->bytes / (size_t)size, root ? op->bytes : 0, false};
    case WEFT_COMM_ALL_TO_ALL:
    case WEFT_COMM_ALL_TO_ALL_SHARDED:
        return (extent){op->bytes, sum_of(op->rows->bytes + size, size), false};
    case WEFT_COMM_SEND:
        return (extent){op->bytes, 0, false};
    case WEFT_COMM_RECV:
        return (extent){0, op->bytes, false};
    case WEFT_COMM_SEND_RECV:
        return (extent){op->bytes, op->from_bytes, false};
    }
    return (extent){0};
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Of an operation's copies of so many bytes, each rounded up. */
static size_t workspace_bytes(size_t bytes)
{
    return bytes > MIN_WORKSPACE_BYTES ? bytes : MIN_WORKSPACE_BYTES;
}

weft_status weft_staging_begin(weft_lane *lane, const weft_comm_op *op, weft_staging *out)
{
    weft_staging staging = {.op = *op};
    extent e = weft_staging_is_needed(lane) ? extent_of(op) : (extent){0};
    bool sends = e.send_bytes > 0 && weft_cuda_is_device_memory(op->send);
    bool receives = e.recv_bytes > 0 && weft_cuda_is_device_memory(op->recv);
    if (!sends && !receives) {
        *out = staging;
        return WEFT_OK;
    }
    size_t sent = sends ? round_up(e.send_bytes) : 0;
    size_t recv_start = e.one_buffer ? 0 : sent, received = receives ? e.recv_bytes : 0;
    size_t bytes = recv_start + received;
    bytes = bytes > sent ? bytes : sent;
    void *memory = NULL;
    WEFT_TRY(weft_cuda_pinned_workspace(lane, workspace_bytes(bytes), &memory));
    char *workspace = memory;
    if (sends) {
        staging.op.send = workspace;
        WEFT_TRY(weft_lane_copy(lane, workspace, op->send, e.send_bytes));
    }
    if (receives) {
        staging.op.recv = workspace + recv_start;
        staging.to = op->recv;
        staging.bytes = received;
    }
    if (e.one_buffer)
        staging.op.send = staging.op.recv = workspace;
    *out = staging;
    return WEFT_OK;
}

weft_status weft_staging_reserve(weft_lane *lane, size_t bytes)
{
    void *memory;
    return weft_cuda_pinned_workspace(lane, workspace_bytes(bytes + ALIGNMENT), &memory);
}

weft_status weft_staging_end(weft_lane *lane, const weft_staging *staging)
{
    return weft_lane_copy(lane, staging->to, staging->op.recv, staging->bytes);
}

bool weft_staging_is_needed(const weft_lane *lane)
{
    return weft_lane_is_cuda(lane);
}

#else

weft_status weft_staging_begin(weft_lane *lane, const weft_comm_op *op, weft_staging *out)
{
    (void)lane;
    *out = (weft_staging){.op = *op};
    return WEFT_OK;
}

weft_status weft_staging_end(weft_lane *lane, const weft_staging *staging)
{
    (void)lane;
    (void)staging;
    return WEFT_OK;
}

weft_status weft_staging_reserve(weft_lane *lane, size_t bytes)
{
    return WEFT_ERROR(WEFT_INTERNAL, "lane %s: %zu bytes of pinned memory, but there is no GPU",
                      weft_lane_name(lane), bytes);
}

bool weft_staging_is_needed(const weft_lane *lane)
{
    (void)lane;
    return false;
}

#endif
