/* The all-to-all of tensor-sharded experts in MoNTA's forms ("Pipelining"). All ETP ranks hold the
 * same bytes to send, so each carries only its slice between nodes, and an all-gather inside the
 * node makes what arrives whole.
 *
 * A block (what one EP rank sends another) is cut into chunks, a chunk into a slice for each ETP
 * rank. A cut depends only on the block's size, so both ends cut alike. Slices are padded to the
 * first one's size where an all-gather needs equal shares. */
#include "layers/moe/internal.h"
#include "layers/moe/moe.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"
#include "schedule/operands.h"

enum { ALIGNMENT = 64, MAX_STAGING = 4 };

typedef struct movement {
    const weft_exchange_memory *memory;
    weft_comm *ep, *etp;
    const char *send;
    char *recv;
    const size_t *send_bytes, *recv_bytes;
    size_t num_chunks;
    bool all; /* o1_paper: the rank's own block travels too */
    /* By slot. arrived: this rank's slices of a chunk, by peer; gathered: all ETP ranks' slices,
     * [t][share]. */
    char *staging[MAX_STAGING];
    char *packed[MAX_STAGING]; /* this rank's slices to send */
    size_t *sent, *came;       /* host: [ep], bytes of the current chunk */
} movement;

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

typedef struct span {
    size_t start, bytes;
} span;

static span piece_of(size_t total, size_t piece, size_t index)
{
    size_t start = index * piece < total ? index * piece : total;
    size_t end = start + piece < total ? start + piece : total;
    return (span){start, end - start};
}

static span chunk_of(const movement *m, size_t block_bytes, size_t chunk)
{
    return piece_of(block_bytes, round_up((block_bytes + m->num_chunks - 1) / m->num_chunks),
                    chunk);
}

static size_t slice_bytes(const movement *m, size_t chunk_bytes)
{
    size_t t = (size_t)weft_comm_size(m->etp);
    return round_up((chunk_bytes + t - 1) / t);
}

static span slice_of(const movement *m, size_t block_bytes, size_t chunk, size_t etp_rank)
{
    span c = chunk_of(m, block_bytes, chunk);
    span s = piece_of(c.bytes, slice_bytes(m, c.bytes), etp_rank);
    s.start += c.start;
    return s;
}

/* Whether the block to or from this EP rank travels. */
static bool travels(const movement *m, int peer)
{
    return m->all || peer != weft_comm_rank(m->ep);
}

/* An ETP rank's bytes in a chunk's all-gather: the largest share. */
static size_t share_bytes(const movement *m, const size_t *block_bytes, size_t chunk)
{
    size_t sum = 0;
    for (int peer = 0; peer < weft_comm_size(m->ep); peer++)
        if (travels(m, peer))
            sum += slice_bytes(m, chunk_of(m, block_bytes[peer], chunk).bytes);
    return sum;
}

/* The chunks are not all of one size, and the first is never smaller than the others. */
static weft_status take_staging(movement *m, const weft_program *program)
{
    size_t t = (size_t)weft_comm_size(m->etp), ep = (size_t)weft_comm_size(m->ep);
    size_t sent = share_bytes(m, m->send_bytes, 0), came = share_bytes(m, m->recv_bytes, 0);
    const weft_exchange_memory *memory = m->memory;
    void *sizes;
    WEFT_TRY(memory->host(memory->context, 2 * ep * sizeof(size_t), &sizes));
    m->sent = sizes;
    m->came = m->sent + ep;
    for (int i = 0; i < program->num_slots; i++) {
        bool arrived = program->slots[i].holds == WEFT_SLOT_ARRIVED;
        void *area;
        if (arrived) {
            WEFT_TRY(memory->device(memory->context, sent, &area));
            m->packed[i] = area;
        }
        WEFT_TRY(memory->device(memory->context, arrived ? came : t * came, &area));
        m->staging[i] = area;
    }
    return WEFT_OK;
}

/* Drops all but this rank's slice, and exchanges it. */
static weft_status run_dispatch(void *context, const weft_task *task, weft_lane *lane)
{
    movement *m = context;
    size_t chunk = (size_t)task->part, to = 0, at = 0;
    size_t rank = (size_t)weft_comm_rank(m->etp);
    int slot = weft_task_slot(task, WEFT_OPERAND_TO);
    char *packed = m->packed[slot];
    for (int peer = 0; peer < weft_comm_size(m->ep); peer++) {
        span s = slice_of(m, m->send_bytes[peer], chunk, rank);
        span r = slice_of(m, m->recv_bytes[peer], chunk, rank);
        m->sent[peer] = travels(m, peer) ? s.bytes : 0;
        m->came[peer] = travels(m, peer) ? r.bytes : 0;
        if (m->sent[peer] > 0)
            WEFT_TRY(weft_lane_copy(lane, packed + at, m->send + to + s.start, s.bytes));
        at += m->sent[peer];
        to += m->send_bytes[peer];
    }
    return weft_all_to_all(m->ep, lane, packed, m->sent, m->staging[slot], m->came);
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    const movement *m = context;
    return weft_all_gather(m->etp, lane, m->staging[weft_task_slot(task, WEFT_OPERAND_FROM)],
                           m->staging[weft_task_slot(task, WEFT_OPERAND_TO)],
                           share_bytes(m, m->recv_bytes, (size_t)task->part), WEFT_U8);
}

static weft_status run_place(void *context, const weft_task *task, weft_lane *lane)
{
    const movement *m = context;
    size_t chunk = (size_t)task->part, share = share_bytes(m, m->recv_bytes, chunk);
    const char *gathered = m->staging[weft_task_slot(task, WEFT_OPERAND_FROM)];
    for (int rank = 0; rank < weft_comm_size(m->etp); rank++) {
        const char *from = gathered + (size_t)rank * share;
        char *block = m->recv;
        for (int peer = 0; peer < weft_comm_size(m->ep); peer++) {
            span s = slice_of(m, m->recv_bytes[peer], chunk, (size_t)rank);
            if (travels(m, peer) && s.bytes > 0) {
                WEFT_TRY(weft_lane_copy(lane, block + s.start, from, s.bytes));
                from += s.bytes;
            }
            block += m->recv_bytes[peer];
        }
    }
    return WEFT_OK;
}

void weft_moe_bind_exchange_tasks(weft_executor *executor)
{
    executor->run[WEFT_TASK_DISPATCH] = run_dispatch;
    executor->run[WEFT_TASK_GATHER] = run_gather;
    executor->run[WEFT_TASK_PLACE] = run_place;
}

static weft_status copy_own_block(const movement *m, weft_lane *lane)
{
    size_t to = 0, from = 0;
    int rank = weft_comm_rank(m->ep);
    for (int peer = 0; peer < rank; peer++) {
        from += m->send_bytes[peer];
        to += m->recv_bytes[peer];
    }
    return weft_lane_copy(lane, m->recv + to, m->send + from, m->send_bytes[rank]);
}

static weft_status run_program(weft_moe_runtime *r, movement *m, weft_lane *lane)
{
    WEFT_TRY(take_staging(m, &r->exchange_program));
    if (!m->all)
        WEFT_TRY(copy_own_block(m, lane));
    return weft_runner_enqueue(&r->exchanging, &r->exchange_program, lane, m);
}

weft_status weft_moe_exchange_over(weft_moe_runtime *r, weft_comm *ep, weft_comm *etp,
                                   const weft_exchange_memory *memory, weft_lane *lane,
                                   const void *send, const size_t *send_bytes, void *recv,
                                   const size_t *recv_bytes)
{
    movement m = {.memory = memory,
                  .ep = ep,
                  .etp = etp,
                  .send = send,
                  .recv = recv,
                  .send_bytes = send_bytes,
                  .recv_bytes = recv_bytes,
                  .num_chunks = r->options.num_chunks > 0 ? (size_t)r->options.num_chunks : 1,
                  .all = r->options.form == WEFT_EXCHANGE_O1_PAPER};
    if (weft_comm_size(m.etp) == 1 || r->options.form == WEFT_EXCHANGE_BASELINE)
        return weft_all_to_all(m.ep, lane, send, send_bytes, recv, recv_bytes);
    if (r->options.form != WEFT_EXCHANGE_DIRECT)
        return run_program(r, &m, lane);
    return weft_all_to_all_sharded(m.ep, m.etp, lane, send, send_bytes, recv, recv_bytes,
                                   r->direct_chunk_bytes);
}

static weft_status scratch(void *context, size_t bytes, void **out)
{
    weft_tensor area;
    WEFT_TRY(weft_pass_scratch(context, WEFT_U8, 1, bytes, &area));
    *out = area.data;
    return WEFT_OK;
}

static weft_status host(void *context, size_t bytes, void **out)
{
    return weft_pass_host(context, bytes, out);
}

weft_status weft_moe_exchange(weft_pass *pass, weft_lane *lane, const void *send,
                              const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    const weft_groups *groups = weft_pass_groups(pass);
    weft_exchange_memory memory = {.context = pass, .device = scratch, .host = host};
    weft_note_tasks(pass, NULL, &pass->model->moe->exchanging.executor);
    return weft_moe_exchange_over(pass->model->moe, groups->by_axis[WEFT_AXIS_EP],
                                  groups->by_axis[WEFT_AXIS_ETP], &memory, lane, send, send_bytes,
                                  recv, recv_bytes);
}
