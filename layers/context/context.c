/* The tasks of attention over context-parallel ranks, and what these share. */
#include "layers/context/context.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "kernels/kernels.h"
#include "parallel/sequence.h"
#include "schedule/operands.h"

/* --- sizes ---------------------------------------------------------------------------------- */

weft_context_plan weft_context_plan_of(const weft_shape *shape)
{
    const weft_context_form form = (weft_context_form)shape->cp_comm_type;
    return (weft_context_plan){.form = form,
                               .cp = shape->cp,
                               .inner = form == WEFT_CONTEXT_A2A       ? shape->cp
                                        : form == WEFT_CONTEXT_A2A_P2P ? shape->cp_inner
                                                                       : 1};
}

weft_context_shape weft_context_shape_of(const weft_shape *shape, const weft_dims *dims)
{
    return (weft_context_shape){.plan = weft_context_plan_of(shape),
                                .rows = dims->rows_full,
                                .batch = shape->batch,
                                .heads = dims->heads,
                                .groups = dims->groups,
                                .head_dim = dims->head_dim,
                                .value_dim = dims->value_dim,
                                .dtype = shape->dtype};
}

bool weft_context_deals(const weft_shape *shape)
{
    if (shape->cp <= 1)
        return false;
    const weft_context_plan plan = weft_context_plan_of(shape);
    return weft_context_exchanges(&plan);
}

bool weft_context_exchanges(const weft_context_plan *plan)
{
    return plan->inner > 1;
}

static weft_context_sizes context_sizes_of(const weft_context_shape *s)
{
    const size_t inner = (size_t)s->plan.inner;
    weft_context_sizes z = {
        .width_qkv = (s->heads + s->groups) * s->head_dim + s->groups * s->value_dim,
        .width_out = s->heads * s->value_dim,
        .rows = s->rows * inner,
        .heads = s->heads / inner,
        .groups = s->groups / inner,
        .in_group = s->heads / s->groups,
        .head_dim = s->head_dim,
        .value_dim = s->value_dim,
        .pair = s->head_dim + s->value_dim,
    };
    z.queries = z.heads * z.head_dim;
    z.result = z.heads * z.value_dim;
    z.keys = z.groups * z.pair;
    z.block_keys = z.rows * z.keys;
    z.all_keys = z.block_keys;
    if (s->plan.form == WEFT_CONTEXT_ALL_GATHER)
        z.all_keys *= (size_t)s->plan.cp;
    return z;
}

/* Bytes of a slot of that kind in the scratch, rounded up like scratch; 0: the slot lies in a
 * tensor of the layer. */
static size_t context_slot_bytes(const weft_context_shape *s, weft_slot_kind holds, bool backward)
{
    const weft_context_sizes z = context_sizes_of(s);
    switch (holds) {
    case WEFT_SLOT_HOME:
        return weft_piece_bytes(
            s->dtype, weft_context_exchanges(&s->plan) ? s->rows * z.width_qkv : z.block_keys, 1);
    case WEFT_SLOT_KEYS:
        return weft_piece_bytes(s->dtype, z.all_keys, 1);
    case WEFT_SLOT_PARTIAL: /* in forward the result itself, if that is fp32 */
        if (backward)       /* of queries */
            return weft_piece_bytes(WEFT_F32, z.rows, z.queries);
        return s->dtype != WEFT_F32 ? weft_piece_bytes(WEFT_F32, z.rows, z.result) : 0;
    case WEFT_SLOT_HEADS_GRADIENT:
        return weft_piece_bytes(s->dtype, s->rows, z.width_qkv);
    case WEFT_SLOT_KEYS_GRADIENT:
        return weft_piece_bytes(WEFT_F32, z.all_keys, 1);
    case WEFT_SLOT_OWN_GRADIENT:
    case WEFT_SLOT_ARRIVED:
        return weft_piece_bytes(WEFT_F32, z.block_keys, 1);
    default:
        return 0;
    }
}

/* The number of slots of each kind in the programs. */
size_t weft_context_scratch_bytes(const weft_context_shape *s, bool backward)
{
    const bool exchanges = weft_context_exchanges(&s->plan);
    const bool gathers = s->plan.form == WEFT_CONTEXT_ALL_GATHER;
    const bool rings = weft_context_blocks(&s->plan) > 1;
    const struct {
        weft_slot_kind holds;
        size_t count;
    } rows[] = {
        {WEFT_SLOT_HOME, exchanges || gathers},
        {WEFT_SLOT_KEYS, rings ? 2 : gathers},
        {WEFT_SLOT_PARTIAL, 1},
        {WEFT_SLOT_HEADS_GRADIENT, backward && exchanges},
        {WEFT_SLOT_OWN_GRADIENT, backward && !gathers},
        {WEFT_SLOT_KEYS_GRADIENT, backward ? (size_t)weft_context_shares(&s->plan) : 0},
        {WEFT_SLOT_ARRIVED, backward && (rings || gathers)},
    };
    size_t bytes = backward ? weft_piece_bytes(WEFT_F32, s->heads, s->rows) : 0; /* delta */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bytes += rows[i].count * context_slot_bytes(s, rows[i].holds, backward);
    return bytes;
}

/* The most bytes that one operation sends or receives. */
static size_t context_message_bytes(const weft_context_shape *s)
{
    const weft_context_sizes z = context_sizes_of(s);
    const size_t each = weft_dtype_bytes(s->dtype);
    size_t bytes = 2 * z.block_keys * sizeof(float);
    if (s->plan.form == WEFT_CONTEXT_ALL_GATHER)
        bytes = (z.all_keys + z.block_keys) * sizeof(float);
    if (weft_context_exchanges(&s->plan) && 2 * s->rows * z.width_qkv * each > bytes)
        bytes = 2 * s->rows * z.width_qkv * each;
    return bytes;
}

struct weft_context_runtime {
    weft_device *device; /* borrowed */
    weft_comm *cp;
    weft_context_plan plan;
    weft_arena arena;
    weft_program programs[2]; /* forward, backward */
    void **memory[2][2];      /* in a forward, in a backward of the model: by direction */
    bool *begun[2];
    weft_lane *keys, *gradients; /* of a ring: the keys', and their gradients' */
    size_t *send_bytes;          /* [cp] */
};

/* The memory of an operand; NULL: the task has none. */
static void *slot_of(const weft_context_work *w, const weft_task *task, weft_operand_name name)
{
    const int slot = weft_task_slot(task, name);
    return slot < 0 ? NULL : w->memory[slot];
}

/* The address `elements` elements behind `data`. */
static void *at(const void *data, size_t elements, weft_dtype dtype)
{
    return (char *)data + elements * weft_dtype_bytes(dtype);
}

/* --- packing ------------------------------------------------------------------------------- */

/* Copies strided rows of `count` elements. */
static weft_status move_rows(weft_lane *lane, size_t rows, size_t count, weft_dtype from_dtype,
                             const void *from, size_t from_stride, weft_dtype to_dtype, void *to,
                             size_t to_stride)
{
    if (rows > 1 && from_stride == count && to_stride == count) {
        count *= rows;
        rows = 0;
    }
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = count, .from_dtype = from_dtype,
                                      .to_dtype = to_dtype, .from = from, .to = to, .rows = rows,
                                      .from_stride = from_stride, .to_stride = to_stride));
}

/* Copies keys and values out of packed rows, where they follow a group's queries, or back. */
static weft_status move_keys(const weft_context_work *w, weft_lane *lane, size_t rows,
                             weft_dtype from_dtype, const void *from, bool from_packed,
                             weft_dtype to_dtype, void *to)
{
    const weft_context_sizes *z = &w->sizes;
    const size_t queries = z->in_group * z->head_dim, apart = queries + z->pair;
    return move_rows(lane, rows * z->groups, z->pair, from_dtype,
                     from_packed ? from : at(from, queries, from_dtype),
                     from_packed ? z->pair : apart, to_dtype,
                     from_packed ? at(to, queries, to_dtype) : to, from_packed ? apart : z->pair);
}

/* Turns rows [rows, width] into `inner` blocks of rows [rows, width / inner], or back. */
static weft_status deal_heads(const weft_context_work *w, weft_lane *lane, size_t width,
                              const void *from, void *to, bool back)
{
    const size_t rows = w->call.shape.rows, inner = (size_t)w->runtime->plan.inner;
    const size_t part = width / inner;
    const weft_dtype dtype = w->call.shape.dtype;
    for (size_t i = 0; i < inner; i++)
        WEFT_TRY(move_rows(lane, rows, part, dtype,
                           at(from, back ? i * rows * part : i * part, dtype), back ? part : width,
                           dtype, at(to, back ? i * part : i * rows * part, dtype),
                           back ? width : part));
    return WEFT_OK;
}

/* The buffer that a rank sends to its neighbours, with all_gather to all ranks. */
static weft_status run_permute(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_call *c = &w->call;
    void *to = slot_of(w, task, WEFT_OPERAND_TO);
    if (task->flow == WEFT_FLOW_KEYS) {
        const void *heads = slot_of(w, task, WEFT_OPERAND_FROM);
        return move_keys(w, lane, w->sizes.rows, c->shape.dtype, heads ? heads : c->qkv, false,
                         c->shape.dtype, to);
    }
    if (!weft_context_exchanges(&w->runtime->plan))
        return move_keys(w, lane, w->sizes.rows, c->shape.dtype, c->qkv, false, c->shape.dtype, to);
    return w->backward ? deal_heads(w, lane, w->sizes.width_out, c->dout, to, false)
                       : deal_heads(w, lane, w->sizes.width_qkv, c->qkv, to, false);
}

/* --- travel -------------------------------------------------------------------------------- */

/* An all-to-all among the `inner` neighbours; other ranks of the group get 0 bytes. */
static weft_status exchange(const weft_context_work *w, weft_lane *lane, size_t width,
                            const void *from, void *to)
{
    weft_context_runtime *r = w->runtime;
    const int inner = r->plan.inner, first = weft_comm_rank(r->cp) / inner * inner;
    const size_t part = width / (size_t)inner;
    for (int i = 0; i < inner; i++)
        r->send_bytes[first + i] =
            w->call.shape.rows * part * weft_dtype_bytes(w->call.shape.dtype);
    return weft_all_to_all(r->cp, lane, from, r->send_bytes, to, r->send_bytes);
}

static weft_status run_dispatch(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return exchange(w, lane, w->backward ? w->sizes.width_out : w->sizes.width_qkv,
                    slot_of(w, task, WEFT_OPERAND_FROM), slot_of(w, task, WEFT_OPERAND_TO));
}

static weft_status run_combine(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return exchange(w, lane, w->backward ? w->sizes.width_qkv : w->sizes.width_out,
                    slot_of(w, task, WEFT_OPERAND_FROM), slot_of(w, task, WEFT_OPERAND_TO));
}

static weft_status run_gather(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return weft_all_gather(w->runtime->cp, lane, slot_of(w, task, WEFT_OPERAND_FROM),
                           slot_of(w, task, WEFT_OPERAND_TO), w->sizes.block_keys,
                           w->call.shape.dtype);
}

static weft_status run_reduce(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    return weft_reduce_scatter(w->runtime->cp, lane, slot_of(w, task, WEFT_OPERAND_FROM),
                               slot_of(w, task, WEFT_OPERAND_TO), w->sizes.block_keys, WEFT_F32,
                               WEFT_REDUCE_SUM);
}

/* Sends to the next group of neighbours, receives from the previous one. */
static weft_status run_shift(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    weft_context_runtime *r = w->runtime;
    const bool gradient = task->flow == WEFT_FLOW_GRADIENT;
    const int cp = r->plan.cp, rank = weft_comm_rank(r->cp);
    const size_t bytes =
        w->sizes.block_keys * weft_dtype_bytes(gradient ? WEFT_F32 : w->call.shape.dtype);
    return weft_send_recv(
        r->cp, lane, (rank + r->plan.inner) % cp, slot_of(w, task, WEFT_OPERAND_FROM), bytes,
        (rank + cp - r->plan.inner) % cp, slot_of(w, task, WEFT_OPERAND_TO), bytes, gradient);
}

/* --- sums and rounding --------------------------------------------------------------------- */

static weft_status add_arrived(const weft_context_work *w, weft_lane *lane, const float *arrived,
                               float *share)
{
    return weft_add(lane, &WEFT_ARGS(weft_add_args, .count = w->sizes.block_keys, .dtype = WEFT_F32,
                                     .a = arrived, .b = share, .y = share));
}

/* Adds this rank's share to what arrived; the first rank's is the sum. */
static weft_status run_sum(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    float *share = slot_of(w, task, WEFT_OPERAND_X);
    const float *arrived = slot_of(w, task, WEFT_OPERAND_FROM);
    return arrived ? add_arrived(w, lane, arrived, share) : WEFT_OK;
}

/* Makes the keys' gradient from the one that came home and this rank's share, or one of these. */
static weft_status place_gradients(const weft_context_work *w, const weft_task *task,
                                   weft_lane *lane)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_dtype dtype = w->call.shape.dtype;
    const size_t queries = z->in_group * z->head_dim;
    const float *arrived = slot_of(w, task, WEFT_OPERAND_FROM);
    float *share = slot_of(w, task, WEFT_OPERAND_KEYS);
    void *heads = slot_of(w, task, WEFT_OPERAND_TO), *to = heads ? heads : w->call.dqkv;
    WEFT_TRY(move_rows(lane, z->rows * z->groups, queries, WEFT_F32,
                       slot_of(w, task, WEFT_OPERAND_Y), queries, dtype, to, queries + z->pair));
    if (arrived && share)
        WEFT_TRY(add_arrived(w, lane, arrived, share));
    return move_keys(w, lane, z->rows, WEFT_F32, share ? share : arrived, true, dtype, to);
}

static weft_status run_place(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_call *c = &w->call;
    const void *from = slot_of(w, task, WEFT_OPERAND_FROM);
    if (task->flow == WEFT_FLOW_GRADIENT)
        return place_gradients(w, task, lane);
    if (task->flow == WEFT_FLOW_HEADS)
        return w->backward ? deal_heads(w, lane, w->sizes.width_qkv, from, c->dqkv, true)
                           : deal_heads(w, lane, w->sizes.width_out, from, c->out, true);
    void *heads = slot_of(w, task, WEFT_OPERAND_TO), *to = heads ? heads : c->out;
    return to == from ? WEFT_OK
                      : move_rows(lane, 0, w->sizes.rows * w->sizes.result, WEFT_F32, from, 0,
                                  c->shape.dtype, to, 0);
}

/* --- attending ----------------------------------------------------------------------------- */

/* A rank's rows are in the cut's order: blocks of `inner` neighbours back to back, each in runs of
 * consecutive positions. The kernel is called for each pair of runs, except pairs that the causal
 * mask hides. */

/* The cut's runs [first, first + count), back to back. */
typedef struct stretch {
    int first, count;
} stretch;

static stretch runs_of(const weft_context_work *w, int block)
{
    const weft_context_plan *plan = &w->runtime->plan;
    const int each = plan->inner * w->call.cut->num_runs;
    return (stretch){block * each, each};
}

/* One task's queries and keys. */
typedef struct pair {
    weft_attention_shape shape;
    size_t first_key;
    size_t query_rows, key_rows; /* rows ahead of them in their stretches */
    const int32_t *first_seen;   /* its queries'; NULL: queries see all keys */
    weft_attention_piece piece;
    weft_attention_variant variant;
} pair;

static const void *queries_of(const weft_context_work *w)
{
    return weft_context_exchanges(&w->runtime->plan) ? w->call.heads : w->call.qkv;
}

static weft_status attend_forward(const weft_context_work *w, const weft_task *task,
                                  weft_lane *lane, const pair *p)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_dtype dtype = w->call.shape.dtype;
    const char *keys = slot_of(w, task, WEFT_OPERAND_KEYS), *qkv = queries_of(w);
    const void *k = keys ? keys : at(qkv, z->in_group * z->head_dim, dtype);
    k = at(k, p->key_rows * p->shape.k_token_stride, dtype);
    float *partial = slot_of(w, task, WEFT_OPERAND_Y);
    return weft_attention_forward(
        lane, &WEFT_ARGS(weft_attention_forward_args, .shape = p->shape, .dtype = dtype,
                         .q = at(qkv, p->query_rows * p->shape.q_token_stride, dtype), .k = k,
                         .v = at(k, z->head_dim, dtype), .out = partial + p->query_rows * z->result,
                         .lse = w->call.lse + p->query_rows * z->heads, .first_seen = p->first_seen,
                         .first_key = p->first_key, .piece = p->piece, .value_dim = z->value_dim,
                         .variant = p->variant));
}

static weft_status attend_backward(const weft_context_work *w, const weft_task *task,
                                   weft_lane *lane, const pair *p)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_context_call *c = &w->call;
    const weft_dtype dtype = c->shape.dtype;
    const size_t result = p->query_rows * z->result;
    const bool exchanged = weft_context_exchanges(&w->runtime->plan);
    const char *keys = slot_of(w, task, WEFT_OPERAND_KEYS), *qkv = queries_of(w);
    const void *k = keys ? keys : at(qkv, z->in_group * z->head_dim, dtype);
    k = at(k, p->key_rows * p->shape.k_token_stride, dtype);
    const void *dout = exchanged ? slot_of(w, task, WEFT_OPERAND_DY) : c->dout;
    float *dq = slot_of(w, task, WEFT_OPERAND_Y), *dk = slot_of(w, task, WEFT_OPERAND_TO);
    dq += p->query_rows * z->queries;
    dk += p->key_rows * z->keys;
    return weft_attention_backward(
        lane,
        &WEFT_ARGS(weft_attention_backward_args, .shape = p->shape, .dtype = dtype,
                   .q = at(qkv, p->query_rows * p->shape.q_token_stride, dtype), .k = k,
                   .v = at(k, z->head_dim, dtype),
                   .out = at(exchanged ? c->heads_out : c->out, result, dtype),
                   .dout = at(dout, result, dtype), .lse = c->lse + p->query_rows * z->heads,
                   .delta = w->delta + p->query_rows * z->heads, .dq = dq, .dk = dk,
                   .dv = dk + z->head_dim, .first_seen = p->first_seen, .first_key = p->first_key,
                   .dq_token_stride = z->queries, .dq_group_stride = z->in_group * z->head_dim,
                   .dk_token_stride = z->keys, .dk_group_stride = z->pair, .piece = p->piece,
                   .value_dim = z->value_dim, .variant = p->variant));
}

/* The shape of a pair's call, without the queries' position. */
static weft_attention_shape shape_of(const weft_context_work *w, const weft_task *task)
{
    const weft_context_sizes *z = &w->sizes;
    weft_attention_shape shape = w->call.attention;
    const size_t width = z->in_group * z->head_dim + z->pair;
    const bool packed = weft_task_slot(task, WEFT_OPERAND_KEYS) >= 0;
    shape.seq_q = shape.seq_k = w->call.cut->run_length;
    shape.batch = w->call.shape.batch;
    shape.heads = z->heads;
    shape.groups = z->groups;
    shape.head_dim = z->head_dim;
    shape.q_token_stride = z->groups * width;
    shape.q_group_stride = width;
    shape.k_token_stride = packed ? z->keys : z->groups * width;
    shape.k_group_stride = packed ? z->pair : width;
    shape.causal = true;
    shape.first_head +=
        (size_t)(weft_comm_rank(w->runtime->cp) % w->runtime->plan.inner) * z->heads;
    return shape;
}

/* Those of the heads here; NULL: none. */
static const void *sinks_of(const weft_context_work *w)
{
    const size_t part = (size_t)(weft_comm_rank(w->runtime->cp) % w->runtime->plan.inner);
    const void *sinks = w->call.variant.sinks;
    return sinks ? at(sinks, part * w->sizes.heads, w->call.shape.dtype) : NULL;
}

static weft_status zero_gradients(const weft_context_work *w, const weft_task *task,
                                  weft_lane *lane)
{
    const size_t queries = w->sizes.rows * w->sizes.queries;
    if (task->part == 0)
        WEFT_TRY(weft_lane_zero(lane, slot_of(w, task, WEFT_OPERAND_Y), queries * sizeof(float)));
    if (weft_task_slot(task, WEFT_OPERAND_X) >= 0) /* adds to an earlier part's */
        return WEFT_OK;
    return weft_lane_zero(lane, slot_of(w, task, WEFT_OPERAND_TO),
                          w->sizes.all_keys * sizeof(float));
}

/* Backward attends a ring's own block in two halves: early queries first, late ones at the end. */
static bool is_attended(const weft_context_work *w, const weft_task *task, int query)
{
    const int each = w->call.cut->num_runs;
    if (task->flow != WEFT_FLOW_OWN || weft_context_blocks(&w->runtime->plan) == 1)
        return true;
    return (query % each < each / 2) == (task->part == 0);
}

/* Whether a query of the pair sees a key of it: the first query of each sample sees the earliest.
 */
static bool is_seen(const pair *p)
{
    const size_t end = p->first_key + p->shape.seq_k;
    bool seen = !p->first_seen;
    if (weft_attention_start(&p->variant, p->shape.first_query) >= end)
        return false;
    for (size_t b = 0; b < p->shape.batch && !seen; b++)
        seen = (size_t)p->first_seen[b] < end;
    return seen;
}

static weft_status run_attend(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_plan *plan = &w->runtime->plan;
    const weft_sequence_cut *cut = w->call.cut;
    const int blocks = weft_context_blocks(plan),
              mine = weft_comm_rank(w->runtime->cp) / plan->inner;
    const stretch queries = runs_of(w, mine);
    stretch keys = runs_of(w, (mine + blocks - task->part) % (plan->cp / plan->inner));
    if (plan->form == WEFT_CONTEXT_ALL_GATHER)
        keys = (stretch){0, plan->cp * cut->num_runs};
    const size_t run_rows = cut->run_length * w->call.shape.batch;
    pair p = {.shape = shape_of(w, task), .variant = w->call.variant};
    p.variant.sinks = sinks_of(w);
    if (w->backward)
        WEFT_TRY(zero_gradients(w, task, lane));
    for (int q = 0; q < queries.count; q++) {
        const int32_t query_run = cut->runs[queries.first + q];
        bool *begun = &w->begun[q];
        if (!is_attended(w, task, q))
            continue;
        p.shape.first_query = (size_t)query_run * cut->run_length;
        p.query_rows = (size_t)q * run_rows;
        if (w->call.first_seen)
            p.first_seen = w->call.first_seen + (size_t)query_run * run_rows;
        for (int k = 0; k < keys.count; k++) {
            const int32_t key_run = cut->runs[keys.first + k];
            if (key_run > query_run)
                continue;
            p.first_key = (size_t)key_run * cut->run_length;
            p.key_rows = (size_t)k * run_rows;
            if (!is_seen(&p))
                continue;
            p.piece = *begun ? WEFT_ATTENTION_NEXT : WEFT_ATTENTION_FIRST;
            *begun = true;
            WEFT_TRY((w->backward ? attend_backward : attend_forward)(w, task, lane, &p));
        }
    }
    return WEFT_OK;
}

/* --- the runtime --------------------------------------------------------------------------- */

static const weft_task_function runs[WEFT_NUM_TASK_KINDS] = {
    [WEFT_TASK_PERMUTE] = run_permute, [WEFT_TASK_DISPATCH] = run_dispatch,
    [WEFT_TASK_COMBINE] = run_combine, [WEFT_TASK_GATHER] = run_gather,
    [WEFT_TASK_REDUCE] = run_reduce,   [WEFT_TASK_SHIFT] = run_shift,
    [WEFT_TASK_SUM] = run_sum,         [WEFT_TASK_PLACE] = run_place,
};

static weft_status run_named(weft_context_work *w, const weft_task *task, weft_lane *lane)
{
    if (task->kind == WEFT_TASK_ATTEND)
        return run_attend(w, task, lane);
    WEFT_TRY_AS(lane, "context", runs[task->kind](w, task, lane));
    return WEFT_OK;
}

weft_status weft_context_run_task(weft_context_work *w, const weft_task *task, weft_lane *lane)
{
    const weft_note_scope scope =
        weft_note_task(lane, WEFT_INNER_ATTENTION, task->kind, task->flow);
    const weft_status status = run_named(w, task, lane);
    weft_note_leave(lane, scope);
    return status;
}

/* Sets the slots' memory: tensors of the call, or pieces of the scratch. */
static void bind_slots(weft_context_work *w)
{
    const weft_context_call *c = &w->call;
    char *scratch = c->scratch;
    for (int32_t i = 0; i < w->program->num_slots; i++) {
        const weft_slot_kind holds = (weft_slot_kind)w->program->slots[i].holds;
        const size_t bytes = context_slot_bytes(&c->shape, holds, w->backward);
        w->memory[i] = holds == WEFT_SLOT_HEADS    ? c->heads
                       : holds == WEFT_SLOT_RESULT ? c->heads_out
                       : bytes > 0                 ? scratch
                       : c->heads_out              ? c->heads_out
                                                   : c->out; /* partial in fp32 */
        scratch += bytes;
    }
    w->delta = w->backward ? (float *)(void *)scratch : NULL;
}

/* Of the heads here, by runs of queries; where ranks exchange heads, others add those of theirs. */
static weft_status add_sinks(const weft_context_work *w, weft_lane *lane)
{
    const weft_context_call *c = &w->call;
    const weft_context_sizes *z = &w->sizes;
    const int mine = weft_comm_rank(w->runtime->cp), inner = w->runtime->plan.inner;
    const size_t all = c->shape.heads, first = (size_t)(mine % inner) * z->heads;
    const size_t rows = c->cut->run_length * c->shape.batch;
    const stretch queries = runs_of(w, mine / inner);
    if (c->overwrite)
        WEFT_TRY(weft_lane_zero(lane, c->dsinks, all * sizeof *c->dsinks));
    for (int q = 0; q < queries.count; q++) {
        const size_t at = (size_t)q * rows * z->heads;
        WEFT_TRY(weft_attention_sinks(
            lane, &WEFT_ARGS(weft_attention_sinks_args, .seq = c->cut->run_length,
                             .batch = c->shape.batch, .heads = z->heads, .dtype = c->shape.dtype,
                             .sinks = sinks_of(w), .lse = c->lse + at, .delta = w->delta + at,
                             .dsinks = c->dsinks + first)));
    }
    return WEFT_OK;
}

void weft_context_begin(weft_context_work *w, weft_context_runtime *r,
                        const weft_context_call *call, bool backward, bool in_backward)
{
    *w = (weft_context_work){.runtime = r,
                             .call = *call,
                             .program = &r->programs[backward],
                             .memory = r->memory[in_backward][backward],
                             .begun = r->begun[in_backward],
                             .sizes = context_sizes_of(&call->shape),
                             .backward = backward};
    bind_slots(w);
    memset(w->begun, 0, (size_t)r->plan.cp * WEFT_DEAL_MAX_RUNS * sizeof *w->begun);
}

weft_status weft_context_end(const weft_context_work *w, weft_lane *compute)
{
    return w->backward && w->call.dsinks ? add_sinks(w, compute) : WEFT_OK;
}

/* Exchanges run on the compute lane. In a body the lane `reduce` is that of parameters' gradients,
 * so that a ring's are on the other of the two that messages have. */
weft_inside weft_context_inside(const weft_context_runtime *r, bool backward, int place)
{
    static const uint8_t of_a_ring[WEFT_NUM_LANES] = {
        [WEFT_LANE_SEND] = WEFT_LANE_SEND, [WEFT_LANE_REDUCE] = WEFT_LANE_RECEIVE};
    return (weft_inside){&r->programs[backward], r->keys ? of_a_ring : NULL, place};
}

void weft_context_runtime_lanes(const weft_context_runtime *r, weft_lane *lanes[WEFT_NUM_LANES])
{
    lanes[WEFT_LANE_SEND] = r->keys;
    lanes[WEFT_LANE_RECEIVE] = r->gradients;
}

static weft_status make_programs(weft_context_runtime *r)
{
    const size_t num_runs = (size_t)r->plan.cp * WEFT_DEAL_MAX_RUNS;
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_context(&r->plan, backward, &r->arena, &r->programs[backward]));
    if (!weft_device_is_note(r->device))
        WEFT_TRY(weft_program_context_check(&r->plan, &r->programs[0], &r->programs[1]));
    for (int i = 0; i < 4; i++) {
        WEFT_TRY(
            WEFT_ARRAY(&r->arena, (size_t)r->programs[i % 2].num_slots, &r->memory[i / 2][i % 2]));
    }
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(WEFT_ARRAY(&r->arena, num_runs, &r->begun[i]));
    }
    return WEFT_OK;
}

static weft_status init(weft_context_runtime *r)
{
    WEFT_TRY(make_programs(r));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)r->plan.cp, &r->send_bytes));
    if (weft_context_blocks(&r->plan) == 1)
        return WEFT_OK;
    WEFT_TRY(weft_lane_create(r->device, 0, "keys", &r->keys));
    return weft_lane_create(r->device, 0, "keys' gradients", &r->gradients);
}

weft_status weft_context_runtime_create(weft_device *device, weft_comm *cp,
                                        const weft_context_plan *plan, weft_context_runtime **out)
{
    weft_context_runtime *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for attention over context-parallel ranks");
    r->device = device;
    r->cp = cp;
    r->plan = *plan;
    const weft_status status = init(r);
    if (status != WEFT_OK) {
        weft_context_runtime_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_context_runtime_destroy(weft_context_runtime *r)
{
    if (!r)
        return;
    weft_lane_destroy(r->keys);
    weft_lane_destroy(r->gradients);
    weft_arena_release(&r->arena);
    free(r);
}

weft_status weft_context_runtime_reserve(weft_context_runtime *r, weft_lane *compute,
                                         const weft_context_shape *shape)
{
    weft_lane *const lanes[] = {compute, r->keys, r->gradients};
    for (int i = 0; i < 3; i++)
        if (lanes[i])
            WEFT_TRY(weft_comm_reserve(r->cp, lanes[i], context_message_bytes(shape)));
    return WEFT_OK;
}
