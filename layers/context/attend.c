/* A rank's rows are in the cut's order: blocks of `inner` neighbours back to back, each in runs of
 * consecutive positions. The kernel is called for each pair of runs, except pairs that the causal
 * mask hides. */
#include "layers/context/work.h"

/* The cut's runs [first, first + count), back to back. */
typedef struct stretch {
    int first, count;
} stretch;

static stretch runs_of(const weft_context_work *w, int block)
{
    const weft_context_plan *plan = &w->runtime->plan;
    const int each = plan->inner * w->call->cut->num_runs;
    return (stretch){block * each, each};
}

/* One task's queries and keys. */
typedef struct pair {
    weft_attention_shape shape;
    size_t first_key;
    size_t query_rows, key_rows; /* rows ahead of them in their stretches */
    const int32_t *first_seen;   /* its queries'; NULL: queries see all keys */
    weft_attention_piece piece;
} pair;

static const void *queries_of(const weft_context_work *w)
{
    return weft_context_exchanges(&w->runtime->plan) ? w->call->heads : w->call->qkv;
}

static weft_status attend_forward(const weft_context_work *w, const weft_task *task,
                                  weft_lane *lane, const pair *p)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_dtype dtype = w->call->shape.dtype;
    const char *keys = weft_context_slot(w, task, WEFT_OPERAND_KEYS), *qkv = queries_of(w);
    const void *k = keys ? keys : weft_context_at(qkv, z->in_group * z->head_dim, dtype);
    k = weft_context_at(k, p->key_rows * p->shape.k_token_stride, dtype);
    float *partial = weft_context_slot(w, task, WEFT_OPERAND_Y);
    return weft_attention_forward(
        lane,
        &WEFT_ARGS(weft_attention_forward_args, .shape = p->shape, .dtype = dtype,
                   .q = weft_context_at(qkv, p->query_rows * p->shape.q_token_stride, dtype),
                   .k = k, .v = weft_context_at(k, z->head_dim, dtype),
                   .out = partial + p->query_rows * z->result,
                   .lse = w->call->lse + p->query_rows * z->heads, .first_seen = p->first_seen,
                   .first_key = p->first_key, .piece = p->piece));
}

static weft_status attend_backward(const weft_context_work *w, const weft_task *task,
                                   weft_lane *lane, const pair *p)
{
    const weft_context_sizes *z = &w->sizes;
    const weft_context_call *c = w->call;
    const weft_dtype dtype = c->shape.dtype;
    const size_t result = p->query_rows * z->result;
    const bool exchanged = weft_context_exchanges(&w->runtime->plan);
    const char *keys = weft_context_slot(w, task, WEFT_OPERAND_KEYS), *qkv = queries_of(w);
    const void *k = keys ? keys : weft_context_at(qkv, z->in_group * z->head_dim, dtype);
    k = weft_context_at(k, p->key_rows * p->shape.k_token_stride, dtype);
    const void *dout = exchanged ? weft_context_slot(w, task, WEFT_OPERAND_DY) : c->dout;
    float *dq = weft_context_slot(w, task, WEFT_OPERAND_Y),
          *dk = weft_context_slot(w, task, WEFT_OPERAND_TO);
    dk += p->key_rows * z->keys;
    return weft_attention_backward(
        lane, &WEFT_ARGS(weft_attention_backward_args, .shape = p->shape, .dtype = dtype,
                         .q = weft_context_at(qkv, p->query_rows * p->shape.q_token_stride, dtype),
                         .k = k, .v = weft_context_at(k, z->head_dim, dtype),
                         .out = weft_context_at(exchanged ? c->heads_out : c->out, result, dtype),
                         .dout = weft_context_at(dout, result, dtype),
                         .lse = c->lse + p->query_rows * z->heads,
                         .delta = w->delta + p->query_rows * z->heads, .dq = dq + result, .dk = dk,
                         .dv = dk + z->head_dim, .first_seen = p->first_seen,
                         .first_key = p->first_key, .dq_token_stride = z->result,
                         .dq_group_stride = z->in_group * z->head_dim, .dk_token_stride = z->keys,
                         .dk_group_stride = 2 * z->head_dim, .piece = p->piece));
}

/* The shape of a pair's call, without the queries' position. */
static weft_attention_shape shape_of(const weft_context_work *w, const weft_task *task)
{
    const weft_context_sizes *z = &w->sizes;
    weft_attention_shape shape = w->call->attention;
    const size_t width = (z->in_group + 2) * z->head_dim;
    const bool packed = weft_task_slot(task, WEFT_OPERAND_KEYS) >= 0;
    shape.seq_q = shape.seq_k = w->call->cut->run_length;
    shape.batch = w->call->shape.batch;
    shape.heads = z->heads;
    shape.groups = z->groups;
    shape.head_dim = z->head_dim;
    shape.q_token_stride = z->groups * width;
    shape.q_group_stride = width;
    shape.k_token_stride = packed ? z->keys : z->groups * width;
    shape.k_group_stride = packed ? 2 * z->head_dim : width;
    shape.causal = true;
    shape.first_head +=
        (size_t)(weft_comm_rank(w->runtime->cp) % w->runtime->plan.inner) * z->heads;
    return shape;
}

static weft_status zero_gradients(const weft_context_work *w, const weft_task *task,
                                  weft_lane *lane)
{
    const size_t queries = w->sizes.rows * w->sizes.result;
    if (task->part == 0)
        WEFT_TRY(weft_lane_zero(lane, weft_context_slot(w, task, WEFT_OPERAND_Y),
                                queries * sizeof(float)));
    if (weft_task_slot(task, WEFT_OPERAND_X) >= 0) /* adds to an earlier part's */
        return WEFT_OK;
    return weft_lane_zero(lane, weft_context_slot(w, task, WEFT_OPERAND_TO),
                          w->sizes.all_keys * sizeof(float));
}

/* Backward attends a ring's own block in two halves: early queries first, late ones at the end. */
static bool is_attended(const weft_context_work *w, const weft_task *task, int query)
{
    const int each = w->call->cut->num_runs;
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
    for (size_t b = 0; b < p->shape.batch && !seen; b++)
        seen = (size_t)p->first_seen[b] < end;
    return seen;
}

weft_status weft_context_attend(void *context, const weft_task *task, weft_lane *lane)
{
    const weft_context_work *w = context;
    const weft_context_plan *plan = &w->runtime->plan;
    const weft_sequence_cut *cut = w->call->cut;
    const int blocks = weft_context_blocks(plan),
              mine = weft_comm_rank(w->runtime->cp) / plan->inner;
    const stretch queries = runs_of(w, mine);
    stretch keys = runs_of(w, (mine + blocks - task->part) % (plan->cp / plan->inner));
    if (plan->form == WEFT_CONTEXT_ALL_GATHER)
        keys = (stretch){0, plan->cp * cut->num_runs};
    const size_t run_rows = cut->run_length * w->call->shape.batch;
    pair p = {.shape = shape_of(w, task)};
    if (w->backward)
        WEFT_TRY(zero_gradients(w, task, lane));
    for (int q = 0; q < queries.count; q++) {
        const int32_t query_run = cut->runs[queries.first + q];
        bool *begun = &w->runtime->begun[q];
        if (!is_attended(w, task, q))
            continue;
        p.shape.first_query = (size_t)query_run * cut->run_length;
        p.query_rows = (size_t)q * run_rows;
        if (w->call->first_seen)
            p.first_seen = w->call->first_seen + (size_t)query_run * run_rows;
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
