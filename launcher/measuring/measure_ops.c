/* The operations whose costs are measured. */
#include <math.h>

#include <weft/kernels.h>

#include "core/clock.h"
#include "kernels/host.h"
#include "launcher/measuring/measure_internal.h"

static bool is_gemm(weft_cost_kind kind)
{
    return kind == WEFT_COST_GEMM_FP32 || kind == WEFT_COST_GEMM_BF16;
}

static bool is_storage(weft_cost_kind kind)
{
    return weft_cost_part_of(kind) == WEFT_PART_STORAGE;
}

static bool is_attention(weft_cost_kind kind)
{
    return kind == WEFT_COST_ATTENTION_FP32 || kind == WEFT_COST_ATTENTION_BF16;
}

/* Of fp32: a norm reads and writes x; AdamW reads weight, gradient and both moments and writes all
 * but the gradient. */
enum { NORM_BYTES = 2 * 4, ADAMW_BYTES = 7 * 4 };
enum { HEAD_DIM = 64, SHORTEST = 16 }; /* sequence */

/* Heads of attention as wide as half a product; in its buffers, q, k and v of all of them. */
static size_t num_heads(const weft_measure_rig *rig)
{
    return rig->gemm_width / 2 / HEAD_DIM;
}

/* Of causal attention over a sequence. */
static double attention_flops(const weft_measure_rig *rig, double seq)
{
    return 2 * seq * seq * HEAD_DIM * (double)num_heads(rig);
}

/* Of a norm: as wide as a product, where there is room. */
static size_t norm_cols(const weft_measure_rig *rig)
{
    size_t room = rig->options.max_bytes / sizeof(float);
    return rig->gemm_width < room ? rig->gemm_width : room;
}

bool weft_measure_can(const weft_measure_rig *rig, weft_cost_kind kind)
{
    const weft_cost_part part = weft_cost_part_of(kind);
    return !((part == WEFT_PART_BETWEEN && rig->num_nodes <= 1) ||
             (part == WEFT_PART_INSIDE && rig->ranks_per_node <= 1) ||
             (part == WEFT_PART_STORAGE && !rig->options.storage) ||
             (part == WEFT_PART_DIRECT && !rig->takes_direct));
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
    if (is_attention(kind)) {
        for (size_t seq = SHORTEST; seq <= rig->gemm_rows / 2; seq *= quick ? 4 : 2)
            out[count++] = attention_flops(rig, (double)seq);
        return count;
    }
    if (weft_cost_part_of(kind) == WEFT_PART_DIRECT)
        return weft_measure_direct_volumes(rig, out);
    size_t bytes = WEFT_MEASURE_SMALLEST, most = rig->options.max_bytes;
    if (kind == WEFT_COST_MEMORY) { /* from one row on */
        bytes = NORM_BYTES * norm_cols(rig);
        most = 2 * most < 4 * rig->gemm_rows * bytes ? 2 * most : 4 * rig->gemm_rows * bytes;
    } else if (kind == WEFT_COST_ADAMW) { /* four arrays in two buffers */
        most *= 2;
    } else if (kind == WEFT_COST_ADAMW_HOST) { /* in one, where two lie beside each other */
        most = rig->host_bytes / (quick ? 4 : 8) / 64 * 64 / sizeof(float) * ADAMW_BYTES;
    } else if (is_storage(
                   kind)) { /* checkpoints are large, and every volume has a disk's latency */
        bytes =
            most / 16 < WEFT_MEASURE_STORAGE_SMALLEST ? most / 16 : WEFT_MEASURE_STORAGE_SMALLEST;
    }
    while (bytes <= most && count < WEFT_CURVE_MAX_POINTS) {
        out[count++] = (double)bytes;
        /* Small ones cost their latency, and nearly the same. */
        bytes *= quick ? 16 : bytes < 65536 || is_storage(kind) ? 4 : 2;
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

/* Elements that a rank gives to a gather, or keeps of a scattered sum. */
static size_t share_of(const weft_comm *comm, size_t bytes)
{
    size_t share = bytes / (size_t)weft_comm_size(comm) / sizeof(float);
    return share ? share : 1;
}

static weft_status all_gather(weft_measure_rig *rig, weft_comm *comm, weft_lane *lane, size_t bytes)
{
    size_t share = share_of(comm, bytes);
    return weft_all_gather(comm, lane, rig->receive + (size_t)weft_comm_rank(comm) * share * 4,
                           rig->receive, share, WEFT_F32);
}

static weft_status reduce_scatter(weft_measure_rig *rig, weft_comm *comm, weft_lane *lane,
                                  size_t bytes)
{
    return weft_reduce_scatter(comm, lane, rig->send, rig->receive, share_of(comm, bytes), WEFT_F32,
                               WEFT_REDUCE_SUM);
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

/* Where the next piece begins of buffers of `room`: walking on through them, so that small pieces
 * too come from memory and not from a cache. */
static size_t walk(weft_measure_rig *rig, size_t bytes, size_t room)
{
    size_t at = rig->walked_bytes + bytes > room ? 0 : rig->walked_bytes;
    rig->walked_bytes = at + (bytes + 63) / 64 * 64;
    return at;
}

static weft_status copy(weft_measure_rig *rig, weft_lane *lane, char *to, const char *from,
                        size_t bytes)
{
    size_t at = walk(rig, bytes, rig->options.max_bytes);
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

/* Causal, of packed q, k and v. */
static weft_status attention(weft_measure_rig *rig, weft_lane *lane, weft_dtype dtype, double flops)
{
    size_t heads = num_heads(rig), token = 3 * heads * HEAD_DIM;
    size_t seq = (size_t)(sqrt(flops / attention_flops(rig, 1)) + 0.5);
    const char *qkv = rig->gemm_a;
    size_t bytes = weft_dtype_bytes(dtype), out_bytes = seq * heads * HEAD_DIM * bytes;
    weft_attention_shape shape = {.seq_q = seq,
                                  .seq_k = seq,
                                  .batch = 1,
                                  .heads = heads,
                                  .groups = heads,
                                  .head_dim = HEAD_DIM,
                                  .q_token_stride = token,
                                  .q_group_stride = 3 * HEAD_DIM,
                                  .k_token_stride = token,
                                  .k_group_stride = 3 * HEAD_DIM,
                                  .causal = true};
    return weft_attention_forward(
        lane, &WEFT_ARGS(weft_attention_forward_args, .shape = shape, .dtype = dtype, .q = qkv,
                         .k = qkv + HEAD_DIM * bytes, .v = qkv + 2 * HEAD_DIM * bytes,
                         .out = rig->gemm_c, .lse = (float *)((char *)rig->gemm_c + out_bytes)));
}

/* RMSNorm: zeros stay zeros. */
static weft_status norm(weft_measure_rig *rig, weft_lane *lane, size_t bytes)
{
    size_t cols = norm_cols(rig);
    return weft_norm_forward(lane,
                             &WEFT_ARGS(weft_norm_forward_args, .kind = WEFT_NORM_RMS,
                                        .rows = bytes / NORM_BYTES / cols, .cols = cols,
                                        .dtype = WEFT_F32, .x = rig->send, .weight = rig->gemm_b,
                                        .y = rig->receive, .rstd = rig->gemm_c, .epsilon = 1e-5f));
}

/* Of what no cache holds, since a step comes between. Zeros stay zeros here, too. */
static weft_status adamw(weft_measure_rig *rig, weft_lane *lane, size_t bytes)
{
    size_t count = bytes / ADAMW_BYTES, half = rig->options.max_bytes / 2 / 64 * 64;
    size_t at = walk(rig, count * sizeof(float), half);
    float *send = (float *)(rig->send + at), *receive = (float *)(rig->receive + at);
    half /= sizeof(float);
    return weft_adamw(lane, &WEFT_ARGS(weft_adamw_args, .count = count, .master = receive,
                                       .m = receive + half, .v = send + half, .grad = send,
                                       .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f,
                                       .weight_decay = 0.1f, .step = 1));
}

typedef struct host_step {
    weft_adamw_args args;
    int num_threads;
} host_step;

static weft_status run_host_step(const void *args)
{
    const host_step *step = args;
    return weft_host_adamw(&step->args, step->num_threads);
}

/* The same in the host's memory, on its cores. What is stepped lies apart by more than a cache
 * holds before it is stepped again. */
static weft_status adamw_host(weft_measure_rig *rig, weft_lane *lane, size_t bytes)
{
    const size_t count = bytes / ADAMW_BYTES, quarter = rig->host_bytes / 4 / 64 * 64;
    float *host = (float *)(rig->host + walk(rig, count * sizeof(float), quarter));
    const size_t next = quarter / sizeof(float);
    const host_step step = {
        .args = WEFT_ARGS(weft_adamw_args, .count = count, .master = host, .m = host + next,
                          .v = host + 2 * next, .grad = host + 3 * next, .lr = 1e-3f, .beta1 = 0.9f,
                          .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .step = 1),
        .num_threads = rig->options.host_threads};
    return weft_lane_submit(lane, "adamw_host", run_host_step, &step, sizeof step);
}

weft_status weft_measure_submit(weft_measure_rig *rig, weft_cost_kind kind, weft_lane *lane,
                                double volume)
{
    const weft_cost_part part = weft_cost_part_of(kind);
    weft_comm *comm = part == WEFT_PART_BETWEEN ? rig->between : rig->inside;
    size_t bytes = part == WEFT_PART_PRODUCTS ? 0 : (size_t)volume;
    switch (kind) {
    case WEFT_COST_ALL_TO_ALL:
    case WEFT_COST_ALL_TO_ALL_INSIDE:
        return all_to_all(rig, comm, lane, bytes);
    case WEFT_COST_ALL_GATHER:
    case WEFT_COST_ALL_GATHER_BETWEEN:
        return all_gather(rig, comm, lane, bytes);
    case WEFT_COST_ALL_REDUCE:
    case WEFT_COST_ALL_REDUCE_BETWEEN:
        return weft_all_reduce(comm, lane, rig->receive, bytes / 4, WEFT_F32, WEFT_REDUCE_SUM);
    case WEFT_COST_REDUCE_SCATTER:
    case WEFT_COST_REDUCE_SCATTER_BETWEEN:
        return reduce_scatter(rig, comm, lane, bytes);
    case WEFT_COST_MESSAGE:
    case WEFT_COST_MESSAGE_INSIDE:
        return message(rig, comm, lane, bytes);
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
    case WEFT_COST_ATTENTION_FP32:
        return attention(rig, lane, WEFT_F32, volume);
    case WEFT_COST_ATTENTION_BF16:
        return attention(rig, lane, WEFT_BF16, volume);
    case WEFT_COST_MEMORY:
        return norm(rig, lane, bytes);
    case WEFT_COST_ADAMW:
        return adamw(rig, lane, bytes);
    case WEFT_COST_ADAMW_HOST:
        return adamw_host(rig, lane, bytes);
    case WEFT_COST_STORAGE_WRITE:
    case WEFT_COST_STORAGE_READ:
    case WEFT_COST_DIRECT_WRITE:
    case WEFT_COST_DIRECT_READ:
        return weft_measure_storage(rig, kind, lane, bytes);
    case WEFT_NUM_COSTS:
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
    const weft_cost_part part = weft_cost_part_of(kind);
    return (part == WEFT_PART_BETWEEN || part == WEFT_PART_INSIDE) && kind != WEFT_COST_MESSAGE &&
           kind != WEFT_COST_MESSAGE_INSIDE;
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
