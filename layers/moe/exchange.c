/* The all-to-all of tensor-sharded experts in MoNTA's forms ("Pipelining"). All ETP ranks hold the
 * same bytes to send, so each carries only its slice between nodes, and an all-gather inside the
 * node makes what arrives whole.
 *
 * A block (what one EP rank sends another) is cut into chunks, a chunk into a slice for each ETP
 * rank. A cut depends only on the block's size, so both ends cut alike. Slices are padded to the
 * first one's size where an all-gather needs equal shares. */
#include "layers/moe/moe.h"

#include <string.h>

#include "schedule/operands.h"

enum { ALIGNMENT = 64 };

typedef weft_moe_movement movement;

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

void weft_moe_movement_start(const weft_moe_runtime *r, weft_comm *ep, weft_comm *etp,
                             weft_moe_movement *out)
{
    const int num = r->options.num_chunks;
    *out = (weft_moe_movement){.ep = ep,
                               .etp = etp,
                               .num_chunks = num > 0 ? (size_t)num : 1,
                               .all = r->options.form == WEFT_EXCHANGE_O1_PAPER,
                               .is_program = weft_comm_size(etp) > 1 && r->form.num_tasks > 0};
}

/* The chunks are not all of one size, and the first is never smaller than the others. */
size_t weft_moe_staged_bytes(const weft_moe_movement *m, const size_t *block_bytes)
{
    return m->is_program ? share_bytes(m, block_bytes, 0) : 0;
}

weft_status weft_moe_take_staging(const weft_moe_runtime *r, weft_moe_movement *m, size_t most,
                                  const weft_exchange_memory *memory)
{
    const size_t t = (size_t)weft_comm_size(m->etp), ep = (size_t)weft_comm_size(m->ep);
    void *area;
    if (!m->is_program)
        return WEFT_OK;
    WEFT_TRY(memory->host(memory->context, 2 * ep * sizeof(size_t), &area));
    m->sent = area;
    m->came = m->sent + ep;
    for (int i = 0; i < r->form.num_slots; i++) {
        const bool arrived = r->form.slots[i].holds == WEFT_SLOT_ARRIVED;
        if (arrived) {
            WEFT_TRY(memory->device(memory->context, most, &area));
            m->packed[i] = area;
        }
        WEFT_TRY(memory->device(memory->context, arrived ? most : t * most, &area));
        m->staging[i] = area;
    }
    return WEFT_OK;
}

static int slot_of(const movement *m, const weft_task *task, weft_operand_name name)
{
    return weft_task_slot(task, name) - m->first_slot;
}

/* Drops all but this rank's slice, and exchanges it. */
static weft_status run_dispatch(movement *m, const weft_task *task, weft_lane *lane)
{
    size_t chunk = (size_t)task->part, to = 0, at = 0;
    size_t rank = (size_t)weft_comm_rank(m->etp);
    int slot = slot_of(m, task, WEFT_OPERAND_TO);
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

static weft_status run_gather(const movement *m, const weft_task *task, weft_lane *lane)
{
    return weft_all_gather(m->etp, lane, m->staging[slot_of(m, task, WEFT_OPERAND_FROM)],
                           m->staging[slot_of(m, task, WEFT_OPERAND_TO)],
                           share_bytes(m, m->recv_bytes, (size_t)task->part), WEFT_U8);
}

static weft_status run_place(const movement *m, const weft_task *task, weft_lane *lane)
{
    size_t chunk = (size_t)task->part, share = share_bytes(m, m->recv_bytes, chunk);
    const char *gathered = m->staging[slot_of(m, task, WEFT_OPERAND_FROM)];
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

bool weft_moe_is_chunk(const weft_task *task)
{
    return task->flow == WEFT_FLOW_NONE &&
           (task->kind == WEFT_TASK_DISPATCH || task->kind == WEFT_TASK_GATHER ||
            task->kind == WEFT_TASK_PLACE);
}

weft_status weft_moe_exchange_chunk(weft_moe_movement *m, const weft_task *task, weft_lane *lane)
{
    return task->kind == WEFT_TASK_DISPATCH ? run_dispatch(m, task, lane)
           : task->kind == WEFT_TASK_GATHER ? run_gather(m, task, lane)
                                            : run_place(m, task, lane);
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

weft_status weft_moe_exchange_begin(const weft_moe_runtime *r, const weft_moe_movement *m,
                                    weft_lane *lane)
{
    if (weft_comm_size(m->etp) > 1 && r->options.form == WEFT_EXCHANGE_DIRECT)
        return weft_all_to_all_sharded(m->ep, m->etp, lane, m->send, m->send_bytes, m->recv,
                                       m->recv_bytes, r->direct_chunk_bytes);
    if (!m->is_program || r->options.as_one)
        return weft_all_to_all(m->ep, lane, m->send, m->send_bytes, m->recv, m->recv_bytes);
    return m->all ? WEFT_OK : copy_own_block(m, lane);
}

/* --- alone ---------------------------------------------------------------------------------- */

typedef struct lone {
    movement *m;
    const weft_moe_runtime *runtime;
    bool begun;
} lone;

static weft_status run_lone(void *context, const weft_task *task, weft_lane *lane)
{
    lone *l = context;
    if (weft_moe_is_chunk(task))
        return weft_moe_exchange_chunk(l->m, task, lane);
    if (l->begun)
        return WEFT_OK;
    l->begun = true;
    return weft_moe_exchange_begin(l->runtime, l->m, lane);
}

static weft_status make_lone(weft_moe_runtime *r)
{
    const weft_task task = weft_task_of(WEFT_TASK_DISPATCH, WEFT_FLOW_ACTIVATION);
    const weft_program one = {.tasks = &task, .num_tasks = 1};
    const weft_moe_inside inside = {.exchange = &r->form};
    WEFT_TRY(weft_program_moe_inside(&one, &inside, &r->arena, &r->alone));
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        r->executor.run[kind] = run_lone;
    return weft_executor_prepare(&r->executor, r->device, r->alone.num_tasks);
}

weft_status weft_moe_exchange_over(weft_moe_runtime *r, weft_moe_movement *m,
                                   const weft_exchange_memory *memory, weft_lane *lane)
{
    lone l = {.m = m, .runtime = r};
    const size_t sent = weft_moe_staged_bytes(m, m->send_bytes),
                 came = weft_moe_staged_bytes(m, m->recv_bytes);
    WEFT_TRY(weft_moe_take_staging(r, m, sent > came ? sent : came, memory));
    if (r->alone.num_tasks == 0)
        WEFT_TRY(make_lone(r));
    memcpy(r->executor.lanes, r->lanes, sizeof r->lanes);
    r->executor.lanes[WEFT_LANE_EXPERT] = lane;
    r->executor.context = &l;
    return weft_program_enqueue(&r->alone, &r->executor);
}
