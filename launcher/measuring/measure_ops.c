/* The operations whose costs are measured. */
#include <weft/kernels.h>

#include "core/trace.h"
#include "launcher/measuring/measure_internal.h"

static bool is_gemm(weft_cost_kind kind)
{
    return kind == WEFT_COST_GEMM_FP32 || kind == WEFT_COST_GEMM_BF16;
}

bool weft_measure_can(const weft_measure_rig *rig, weft_cost_kind kind)
{
    switch (kind) {
    case WEFT_COST_ALL_TO_ALL:
    case WEFT_COST_ALL_REDUCE_BETWEEN:
    case WEFT_COST_MESSAGE:
        return rig->num_nodes > 1;
    case WEFT_COST_ALL_TO_ALL_INSIDE:
    case WEFT_COST_ALL_GATHER:
    case WEFT_COST_ALL_REDUCE:
    case WEFT_COST_MESSAGE_INSIDE:
        return rig->ranks_per_node > 1;
    default:
        return kind <= WEFT_COST_GEMM_BF16;
    }
}

int weft_measure_volumes(const weft_measure_rig *rig, weft_cost_kind kind,
                         double out[WEFT_CURVE_MAX_POINTS])
{
    bool quick = rig->options.quick;
    int count = 0;
    if (is_gemm(kind)) {
        double flops_a_row = 2.0 * (double)rig->gemm_width * (double)rig->gemm_width;
        int rows = quick ? 4 : 1, last = quick ? 256 : WEFT_MEASURE_MAX_GEMM_ROWS;
        for (; rows <= last; rows *= quick ? 8 : 2)
            out[count++] = rows * flops_a_row;
        return count;
    }
    size_t bytes = WEFT_MEASURE_SMALLEST;
    while (bytes <= rig->options.max_bytes && count < WEFT_CURVE_MAX_POINTS) {
        out[count++] = (double)bytes;
        /* Small ones cost their latency, and nearly the same. */
        bytes *= quick ? 16 : bytes < 65536 ? 4 : 2;
    }
    return count;
}

/* Piece number 1 .. n - 1 of a volume that is cut into n - 1. */
static size_t piece_bytes(size_t bytes, size_t n, size_t number)
{
    return bytes * number / (n - 1) - bytes * (number - 1) / (n - 1);
}

/* A rank's own block stays where it is. */
static weft_status all_to_all(weft_measure_rig *rig, weft_comm *comm, weft_lane *lane, size_t bytes)
{
    size_t n = (size_t)weft_comm_size(comm), me = (size_t)weft_comm_rank(comm);
    for (size_t peer = 0; peer < n; peer++) {
        size_t ahead = (peer + n - me) % n;
        rig->send_bytes[peer] = ahead ? piece_bytes(bytes, n, ahead) : 0;
        rig->receive_bytes[peer] = ahead ? piece_bytes(bytes, n, n - ahead) : 0;
    }
    return weft_all_to_all(comm, lane, rig->send, rig->send_bytes, rig->receive,
                           rig->receive_bytes);
}

static weft_status all_gather(weft_measure_rig *rig, weft_comm *comm, weft_lane *lane, size_t bytes)
{
    size_t share = bytes / (size_t)weft_comm_size(comm) / sizeof(float);
    share = share ? share : 1;
    return weft_all_gather(comm, lane, rig->receive + (size_t)weft_comm_rank(comm) * share * 4,
                           rig->receive, share, WEFT_F32);
}

/* To the other rank of the pair, which answers with the smallest message: time runs from the
 * sender's side alone, and nothing is sent before what came earlier has arrived. */
static weft_status message(weft_measure_rig *rig, weft_comm *comm, weft_lane *lane, size_t bytes)
{
    int me = weft_comm_rank(comm), peer = me ^ 1;
    if (peer >= weft_comm_size(comm))
        return WEFT_OK; /* an odd one out */
    if (me < peer) {
        WEFT_TRY(weft_send(comm, lane, peer, 0, rig->send, bytes));
        return weft_recv(comm, lane, peer, 0, rig->receive, WEFT_MEASURE_SMALLEST);
    }
    WEFT_TRY(weft_recv(comm, lane, peer, 0, rig->receive, bytes));
    return weft_send(comm, lane, peer, 0, rig->send, WEFT_MEASURE_SMALLEST);
}

/* Walks on through the buffers, so that small copies too come from memory and not from a cache. */
static weft_status copy(weft_measure_rig *rig, weft_lane *lane, char *to, const char *from,
                        size_t bytes)
{
    size_t at = rig->copied_bytes;
    if (at + bytes > rig->options.max_bytes)
        at = 0;
    rig->copied_bytes = at + (bytes + 63) / 64 * 64;
    return weft_lane_copy(lane, to + at, from + at, bytes);
}

static weft_status gemm(weft_measure_rig *rig, weft_lane *lane, weft_dtype dtype, double flops)
{
    size_t width = rig->gemm_width;
    double rows = flops / 2 / (double)width / (double)width;
    return weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = rows < 1 ? 1 : (size_t)(rows + 0.5),
                                      .n = width, .k = width, .transpose_b = true, .dtype = dtype,
                                      .c_dtype = dtype, .a = rig->gemm_a, .b = rig->gemm_b,
                                      .c = rig->gemm_c, .alpha = 1));
}

weft_status weft_measure_submit(weft_measure_rig *rig, weft_cost_kind kind, weft_lane *lane,
                                double volume)
{
    size_t bytes = is_gemm(kind) ? 0 : (size_t)volume;
    switch (kind) {
    case WEFT_COST_ALL_TO_ALL:
        return all_to_all(rig, rig->between, lane, bytes);
    case WEFT_COST_ALL_TO_ALL_INSIDE:
        return all_to_all(rig, rig->inside, lane, bytes);
    case WEFT_COST_ALL_GATHER:
        return all_gather(rig, rig->inside, lane, bytes);
    case WEFT_COST_ALL_REDUCE:
        return weft_all_reduce(rig->inside, lane, rig->receive, bytes / 4, WEFT_F32,
                               WEFT_REDUCE_SUM);
    case WEFT_COST_ALL_REDUCE_BETWEEN:
        return weft_all_reduce(rig->between, lane, rig->receive, bytes / 4, WEFT_F32,
                               WEFT_REDUCE_SUM);
    case WEFT_COST_MESSAGE:
        return message(rig, rig->between, lane, bytes);
    case WEFT_COST_MESSAGE_INSIDE:
        return message(rig, rig->inside, lane, bytes);
    case WEFT_COST_COPY:
        return copy(rig, lane, rig->receive, rig->send, bytes);
    case WEFT_COST_TO_HOST:
        return copy(rig, lane, rig->host, rig->send, bytes);
    case WEFT_COST_TO_DEVICE:
        return copy(rig, lane, rig->receive, rig->host, bytes);
    case WEFT_COST_GEMM_FP32:
        return gemm(rig, lane, WEFT_F32, volume);
    case WEFT_COST_GEMM_BF16:
        return gemm(rig, lane, WEFT_BF16, volume);
    default:
        break;
    }
    return WEFT_ERROR(WEFT_INTERNAL, "no such cost: %d", (int)kind);
}

typedef struct stamp_args {
    double *at;
} stamp_args;

static weft_status stamp(const void *args)
{
    *((const stamp_args *)args)->at = weft_now_us();
    return WEFT_OK;
}

weft_status weft_measure_stamp(weft_lane *lane, double *at)
{
    return weft_lane_submit(lane, "time stamp", stamp, &(stamp_args){at}, sizeof(stamp_args));
}

static bool is_collective(weft_cost_kind kind)
{
    return kind == WEFT_COST_ALL_TO_ALL || kind == WEFT_COST_ALL_TO_ALL_INSIDE ||
           kind == WEFT_COST_ALL_GATHER || kind == WEFT_COST_ALL_REDUCE ||
           kind == WEFT_COST_ALL_REDUCE_BETWEEN;
}

weft_status weft_measure_train(weft_measure_rig *rig, weft_cost_kind kind, double volume,
                               int num_before, int num, double *out_us)
{
    weft_lane *lane = rig->lanes[WEFT_WORK_COMM];
    double start_us = 0, end_us = 0;
    WEFT_TRY(weft_comm_barrier(rig->world));
    for (int i = 0; i < num_before; i++)
        WEFT_TRY(weft_measure_submit(rig, kind, lane, volume));
    WEFT_TRY(weft_measure_stamp(lane, &start_us));
    for (int i = 0; i < num; i++)
        WEFT_TRY(weft_measure_submit(rig, kind, lane, volume));
    WEFT_TRY(weft_measure_stamp(lane, &end_us));
    for (int i = 0; i < num_before; i++)
        WEFT_TRY(weft_measure_submit(rig, kind, lane, volume));
    WEFT_TRY(weft_lane_sync(lane));
    /* A rank that is behind in a collective was so before: it does not take longer. */
    bool by_mean = is_collective(kind);
    double us = (end_us - start_us) / num / (by_mean ? weft_comm_size(rig->world) : 1);
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &us, 1, WEFT_F64,
                                       by_mean ? WEFT_REDUCE_SUM : WEFT_REDUCE_MAX));
    *out_us = us;
    return WEFT_OK;
}
