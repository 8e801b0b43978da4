/* The tasks of an MoE layer's program on one micro-batch.
 *
 * Where a tensor's ring is as long as there are partitions, they lie back to back; else each slot
 * has room for the largest partition. Without an exchange the rows at home are the rows at the
 * experts: the program is synchronous, and what travels is already there. */
#include "layers/moe_tasks.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "layers/moe.h"
#include "layers/pass.h"
#include "layers/note.h"

/* What the running program works on. */
typedef struct work {
    weft_moe *m;
    weft_pass *pass;
    weft_moe_state *state;
    const weft_moe_slots *slots;
    weft_tensor rows;                     /* what is routed */
    weft_tensor home, dispatched, middle; /* rings: rows being sent, T_DI, T_M */
    weft_tensor output;                   /* T_DO */
    weft_tensor doutput, ddispatched;     /* dT_DO, dT_DI */
    weft_tensor act, ordered, dordered;   /* of one partition at a time */
} work;

static size_t ring_rows(weft_slot_ring ring, int num_parts, size_t all, size_t most)
{
    return ring.length >= num_parts ? all : (size_t)ring.length * most;
}

/* Partition p's rows of a ring. */
static weft_tensor ring_at(const work *w, weft_slot_ring ring, const weft_tensor *base, int p,
                           bool at_home)
{
    const weft_moe_state *s = w->state;
    const weft_moe_part *part = &s->parts[p];
    size_t row = at_home ? part->first_sent : part->first_row;
    if (ring.length < s->num_parts)
        row = (size_t)(p % ring.length) * (at_home ? s->max_sent : s->max_rows);
    weft_tensor out = *base;
    out.dims[0] = at_home ? part->num_sent : part->num_rows;
    out.data = (char *)base->data + row * base->dims[1] * weft_dtype_bytes(base->dtype);
    return out;
}

/* What stands at home, one place a partition. */
static weft_tensor home_at(const work *w, int p)
{
    weft_tensor out = w->state->returned;
    out.dims[0] = w->state->parts[p].num_sent;
    out.data = (char *)out.data +
               w->state->parts[p].first_sent * out.dims[1] * weft_dtype_bytes(out.dtype);
    return out;
}

static weft_moe_expert_rows expert_rows(const work *w, int p)
{
    weft_moe_expert_rows r = {.part = &w->state->parts[p],
                              .x = ring_at(w, w->slots->dispatched, &w->dispatched, p, false),
                              .middle = ring_at(w, w->slots->middle, &w->middle, p, false),
                              .act = w->act,
                              .ordered = w->ordered,
                              .dordered = w->dordered};
    r.act.dims[0] = r.ordered.dims[0] = r.dordered.dims[0] = r.part->num_rows;
    return r;
}

/* --- an emulated accelerator --------------------------------------------------------------- */

/* The thread that stands for the accelerator wakes late, by much of a millisecond where more
 * threads are awake than there are cores, which an accelerator that has work queued does not. So a
 * task that the thread finds ready as it wakes counts from its predecessor's end. */
enum { AT_ONCE_NS = 100 * 1000 };

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static weft_status sleep_for(const void *raw)
{
    static _Thread_local int64_t last_end, last_awake;
    const double *seconds = raw;
    int64_t start = now_ns();
    if (start - last_awake < AT_ONCE_NS)
        start = last_end;
    last_end = start + (int64_t)(*seconds * 1e9);
    struct timespec end = {.tv_sec = (time_t)(last_end / 1000000000),
                           .tv_nsec = (long)(last_end % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        continue;
    last_awake = now_ns();
    return WEFT_OK;
}

/* Lets the time of `gemms` linear layers pass in place of the work, where the device has a pace. */
static weft_status pace(const work *w, const weft_moe_part *part, double gemms, bool *out_paced)
{
    double rate = w->pass->model->setup.pace_flops;
    const weft_moe_dims *d = &w->m->dims;
    *out_paced = rate > 0;
    if (!*out_paced)
        return WEFT_OK;
    double flops = 2.0 * (double)part->num_rows * (double)w->rows.dims[1] * (double)d->ffn * gemms;
    double seconds = flops / rate;
    return weft_lane_submit(weft_pass_lane(w->pass), "paced computation", sleep_for, &seconds,
                            sizeof seconds);
}

/* --- tasks --------------------------------------------------------------------------------- */

static weft_status run_permute(void *context, const weft_task *task, weft_lane *lane)
{
    (void)lane;
    const work *w = context;
    int p = task->micro_batch;
    weft_tensor to = ring_at(w, w->slots->home, &w->home, p, true);
    return weft_moe_select(w->pass, &w->rows, w->state->token_of + w->state->parts[p].first_sent,
                           &to);
}

static size_t sum_of(const size_t *bytes, int first, int end)
{
    size_t sum = 0;
    for (int i = first; i < end; i++)
        sum += bytes[i];
    return sum;
}

/* Partition p with the p-th group of ranks ahead, what comes being from as many behind; a message
 * to each. */
static weft_status move_by_peers(const work *w, weft_lane *lane, int p, const char *from,
                                 const size_t *out_bytes, char *to, const size_t *in_bytes,
                                 bool to_experts)
{
    weft_comm *ep = weft_pass_groups(w->pass)->by_axis[WEFT_AXIS_EP];
    int group = w->pass->model->moe->options.peer_group, rank = weft_comm_rank(ep);
    int num_groups = weft_comm_size(ep) / group, mine = rank / group;
    int ahead = (mine + p) % num_groups * group;
    int behind = (mine + num_groups - p) % num_groups * group;
    int out = to_experts ? ahead : behind, in = to_experts ? behind : ahead;
    for (int k = 0; k < group; k++) {
        int receiver = out + (rank % group + k) % group;
        int sender = in + (rank % group + group - k) % group;
        WEFT_TRY(weft_send_recv(ep, lane, receiver, from + sum_of(out_bytes, out, receiver),
                                out_bytes[receiver], sender, to + sum_of(in_bytes, in, sender),
                                in_bytes[sender], p));
    }
    return WEFT_OK;
}

/* Between home and the experts, either way. */
static weft_status move(const work *w, weft_lane *lane, int p, const weft_tensor *from,
                        const weft_tensor *to, bool to_experts)
{
    const weft_moe_part *part = &w->state->parts[p];
    const size_t *out_bytes = to_experts ? part->send_bytes : part->recv_bytes;
    const size_t *in_bytes = to_experts ? part->recv_bytes : part->send_bytes;
    if (!w->m->dims.exchange)
        return WEFT_OK;
    if (w->pass->model->moe->options.split == WEFT_MOE_SPLIT_TOKENS)
        return weft_moe_exchange(w->pass, lane, from->data, out_bytes, to->data, in_bytes);
    return move_by_peers(w, lane, p, from->data, out_bytes, to->data, in_bytes, to_experts);
}

static weft_status run_dispatch(void *context, const weft_task *task, weft_lane *lane)
{
    const work *w = context;
    int p = task->micro_batch;
    bool gradient = task->flow == WEFT_FLOW_GRADIENT;
    weft_tensor from = gradient ? home_at(w, p) : ring_at(w, w->slots->home, &w->home, p, true);
    weft_tensor to = gradient ? ring_at(w, w->slots->doutput, &w->doutput, p, false)
                              : ring_at(w, w->slots->dispatched, &w->dispatched, p, false);
    return move(w, lane, p, &from, &to, true);
}

static weft_status run_combine(void *context, const weft_task *task, weft_lane *lane)
{
    const work *w = context;
    int p = task->micro_batch;
    bool gradient = task->flow == WEFT_FLOW_GRADIENT;
    weft_tensor from = gradient ? ring_at(w, w->slots->ddispatched, &w->ddispatched, p, false)
                                : ring_at(w, w->slots->output, &w->output, p, false);
    weft_tensor to = home_at(w, p);
    if (w->m->dims.summed) {
        size_t note;
        WEFT_TRY(weft_note_begin(w->pass, lane, WEFT_NOTE_TENSOR, &note));
        WEFT_TRY(weft_all_reduce(weft_pass_groups(w->pass)->by_axis[WEFT_AXIS_ETP], lane, from.data,
                                 weft_tensor_count(&from), from.dtype, WEFT_REDUCE_SUM));
        WEFT_TRY(weft_note_end(w->pass, lane, note));
    }
    return move(w, lane, p, &from, &to, false);
}

static weft_status run_expert(void *context, const weft_task *task, weft_lane *lane)
{
    (void)lane;
    const work *w = context;
    int p = task->micro_batch;
    bool backward = task->flow == WEFT_FLOW_GRADIENT, paced;
    weft_moe_expert_rows r = expert_rows(w, p);
    WEFT_TRY(pace(w, r.part, (backward ? 2 : 1) * (double)(w->m->dims.gates + 1), &paced));
    if (paced)
        return WEFT_OK;
    if (!backward) {
        weft_tensor out = ring_at(w, w->slots->output, &w->output, p, false);
        return weft_moe_experts(w->m, w->pass, &r, &out);
    }
    weft_tensor dout = ring_at(w, w->slots->doutput, &w->doutput, p, false);
    weft_tensor din = ring_at(w, w->slots->ddispatched, &w->ddispatched, p, false);
    return weft_moe_experts_backward(w->m, w->pass, &r, &dout, &din,
                                     p == 0 && weft_pass_overwrite(w->pass));
}

static weft_status run_recompute(void *context, const weft_task *task, weft_lane *lane)
{
    (void)lane;
    const work *w = context;
    weft_moe_expert_rows r = expert_rows(w, task->micro_batch);
    bool paced;
    WEFT_TRY(pace(w, r.part, (double)w->m->dims.gates, &paced));
    return paced ? WEFT_OK : weft_moe_experts_first(w->m, w->pass, &r);
}

/* A partition's tensor on the device and its copy on the host. */
static weft_tensor offloaded(const work *w, const weft_task *task, void **host)
{
    const weft_moe_state *s = w->state;
    bool middle = task->flow == WEFT_FLOW_MIDDLE;
    int p = task->micro_batch;
    weft_tensor t = middle ? ring_at(w, w->slots->middle, &w->middle, p, false)
                           : ring_at(w, w->slots->dispatched, &w->dispatched, p, false);
    *host = (middle ? s->host_middle : s->host_input) +
            s->parts[p].first_row * t.dims[1] * weft_dtype_bytes(t.dtype);
    return t;
}

static weft_status run_offload(void *context, const weft_task *task, weft_lane *lane)
{
    void *host;
    weft_tensor t = offloaded(context, task, &host);
    return weft_lane_copy(lane, host, t.data, weft_tensor_bytes(&t));
}

static weft_status run_prefetch(void *context, const weft_task *task, weft_lane *lane)
{
    void *host;
    weft_tensor t = offloaded(context, task, &host);
    return weft_lane_copy(lane, t.data, host, weft_tensor_bytes(&t));
}

void weft_moe_bind_tasks(weft_executor *executor)
{
    executor->run[WEFT_TASK_PERMUTE] = run_permute;
    executor->run[WEFT_TASK_DISPATCH] = run_dispatch;
    executor->run[WEFT_TASK_EXPERT] = run_expert;
    executor->run[WEFT_TASK_COMBINE] = run_combine;
    executor->run[WEFT_TASK_RECOMPUTE] = run_recompute;
    executor->run[WEFT_TASK_OFFLOAD] = run_offload;
    executor->run[WEFT_TASK_PREFETCH] = run_prefetch;
}

/* --- memory -------------------------------------------------------------------------------- */

static weft_status host_copy(work *w, size_t cols, char **out)
{
    void *memory;
    WEFT_TRY(weft_pass_host(w->pass, w->state->num_rows * cols * weft_dtype_bytes(w->rows.dtype),
                            &memory));
    *out = memory;
    return WEFT_OK;
}

/* T_DI and T_M: kept from forward to backward, or rings that both halves take anew. */
static weft_status take_inputs(work *w, bool backward)
{
    weft_moe_state *s = w->state;
    weft_dtype dtype = w->rows.dtype;
    size_t hidden = w->rows.dims[1], middle = w->m->dims.gates * w->m->dims.ffn;
    if (s->plan->pipeline.reuse == WEFT_REUSE_NONE) {
        if (!backward) {
            WEFT_TRY(weft_pass_stash(w->pass, dtype, s->num_rows, hidden, &s->dispatched));
            WEFT_TRY(weft_pass_stash(w->pass, dtype, s->num_rows, middle, &s->middle));
        }
        w->dispatched = s->dispatched;
        w->middle = s->middle;
        return WEFT_OK;
    }
    size_t rows = ring_rows(w->slots->dispatched, s->num_parts, s->num_rows, s->max_rows);
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, rows, hidden, &w->dispatched));
    rows = ring_rows(w->slots->middle, s->num_parts, s->num_rows, s->max_rows);
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, rows, middle, &w->middle));
    if (!backward && weft_reuse_offloads_input(s->plan->pipeline.reuse))
        WEFT_TRY(host_copy(w, hidden, &s->host_input));
    if (!backward && weft_reuse_offloads_middle(s->plan->pipeline.reuse))
        WEFT_TRY(host_copy(w, middle, &s->host_middle));
    return WEFT_OK;
}

/* Rows being sent, where the program sends any: at the experts already without an exchange. */
static weft_status take_home(work *w)
{
    const weft_moe_state *s = w->state;
    if (!w->m->dims.exchange) {
        w->home = w->dispatched;
        return WEFT_OK;
    }
    if (w->slots->home.first < 0)
        return WEFT_OK;
    size_t rows = ring_rows(w->slots->home, s->num_parts, s->num_sent, s->max_sent);
    return weft_pass_scratch(w->pass, w->rows.dtype, rows, w->rows.dims[1], &w->home);
}

static weft_status take_expert_rows(work *w, bool backward)
{
    const weft_moe_state *s = w->state;
    weft_dtype dtype = w->rows.dtype;
    size_t hidden = w->rows.dims[1];
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, s->max_rows, w->m->dims.ffn, &w->act));
    if (!s->parts[0].order)
        return WEFT_OK;
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, s->max_rows, hidden, &w->ordered));
    return backward ? weft_pass_scratch(w->pass, dtype, s->max_rows, hidden, &w->dordered)
                    : WEFT_OK;
}

static weft_status take_ring(work *w, weft_slot_ring ring, weft_tensor *out)
{
    const weft_moe_state *s = w->state;
    return weft_pass_scratch(w->pass, w->rows.dtype,
                             ring_rows(ring, s->num_parts, s->num_rows, s->max_rows),
                             w->rows.dims[1], out);
}

/* What runs on the compute lane are the layer's parts; the expert lane's is an exchange. */
static const int tracks[WEFT_NUM_LANES] = {
    [WEFT_LANE_COMPUTE] = WEFT_TRACK_PARTS,
    [WEFT_LANE_EXPERT] = WEFT_TRACK_EXCHANGE,
    [WEFT_LANE_OFFLOAD] = WEFT_LANE_OFFLOAD,
    [WEFT_LANE_PREFETCH] = WEFT_LANE_PREFETCH,
};

static weft_status run(work *w, bool backward)
{
    weft_moe_runtime *runtime = w->pass->model->moe;
    const weft_moe_pipeline *pipeline = &w->state->plan->pipeline;
    bool synchronous = !w->m->dims.exchange ||
                       (pipeline->num_partitions == 1 && pipeline->reuse == WEFT_REUSE_NONE);
    weft_note_tasks(w->pass, tracks, &runtime->executor);
    weft_note_tasks(w->pass, NULL, &runtime->exchange_executor);
    return weft_moe_runtime_enqueue(runtime, w->state->plan, backward, weft_pass_lane(w->pass),
                                    synchronous, w);
}

weft_status weft_moe_run_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                 const weft_tensor *rows)
{
    work w = {.m = m, .pass = pass, .state = state, .rows = *rows};
    w.slots = &state->plan->slots[0];
    WEFT_TRY(take_inputs(&w, false));
    WEFT_TRY(weft_pass_stash(pass, rows->dtype, state->num_sent, rows->dims[1], &state->returned));
    WEFT_TRY(take_home(&w));
    w.output = state->returned;
    if (m->dims.exchange)
        WEFT_TRY(take_ring(&w, w.slots->output, &w.output));
    WEFT_TRY(take_expert_rows(&w, false));
    return run(&w, false);
}

weft_status weft_moe_run_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                  const weft_tensor *rows)
{
    work w = {.m = m, .pass = pass, .state = state, .rows = *rows};
    w.slots = &state->plan->slots[1];
    WEFT_TRY(take_inputs(&w, true));
    WEFT_TRY(take_home(&w));
    w.doutput = w.ddispatched = state->returned; /* in place: dT_DO is used up before dT_DI */
    if (m->dims.exchange) {
        WEFT_TRY(take_ring(&w, w.slots->doutput, &w.doutput));
        WEFT_TRY(take_ring(&w, w.slots->ddispatched, &w.ddispatched));
    }
    WEFT_TRY(take_expert_rows(&w, true));
    return run(&w, true);
}
