/* The dispatch plan: where each token goes, partition by partition. */
#include <string.h>

#include "layers/moe.h"
#include "layers/pass.h"
#include "layers/note.h"

/* What the plan is made of, while it is made. */
typedef struct planning {
    weft_moe *m;
    weft_pass *pass;
    weft_moe_state *state;
    size_t ep;           /* ranks that tokens travel between; 1: none */
    size_t rank;         /* this one's number among them */
    size_t local;        /* experts here */
    size_t kernel_parts; /* partitions that the sort knows: those by tokens */
    bool by_peers;
    size_t group; /* ranks that are one partition when cut by peers */
} planning;

static planning planning_of(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    const weft_groups *groups = weft_pass_groups(pass);
    const int group = state->plan->pipeline.peer_group;
    bool by_peers = m->dims.exchange && group > 0;
    return (planning){.m = m,
                      .pass = pass,
                      .state = state,
                      .ep = m->dims.exchange ? (size_t)groups->mesh.ep : 1,
                      .rank = (size_t)groups->coords.at[WEFT_AXIS_EP],
                      .local = m->dims.local_experts,
                      .kernel_parts = by_peers ? 1 : (size_t)state->num_parts,
                      .by_peers = by_peers,
                      .group = (size_t)group};
}

static weft_status host(weft_pass *pass, size_t count, size_t size, void *out)
{
    void *memory;
    WEFT_TRY(weft_pass_host(pass, count * size, &memory));
    memcpy(out, &memory, sizeof memory);
    return WEFT_OK;
}

static weft_status take_memory(planning *p)
{
    const weft_moe_dims *d = &p->m->dims;
    weft_moe_state *s = p->state;
    size_t parts = (size_t)s->num_parts;
    WEFT_TRY(host(p->pass, d->experts + 1, sizeof *s->counts, &s->counts));
    WEFT_TRY(host(p->pass, 1, sizeof *s->wrong, &s->wrong));
    WEFT_TRY(host(p->pass, p->ep * p->kernel_parts * p->local, sizeof *s->received, &s->received));
    s->partition_counts = s->counts;
    s->sent_counts = s->counts;
    if (p->kernel_parts > 1) {
        size_t num = p->kernel_parts * d->experts;
        WEFT_TRY(host(p->pass, num, sizeof(int64_t), &s->partition_counts));
        WEFT_TRY(host(p->pass, num, sizeof(int64_t), &s->sent_counts));
    }
    WEFT_TRY(host(p->pass, parts, sizeof *s->parts, &s->parts));
    if (!weft_pass_repeats(p->pass))
        memset(s->parts, 0, parts * sizeof *s->parts);
    for (size_t i = 0; i < parts; i++) {
        weft_moe_part *part = &s->parts[i];
        WEFT_TRY(host(p->pass, 2 * p->ep, sizeof(size_t), &part->send_bytes));
        part->recv_bytes = part->send_bytes + p->ep;
        WEFT_TRY(host(p->pass, p->local + 1, sizeof(int64_t), &part->offsets));
    }
    return WEFT_OK;
}

static weft_status enqueue_sort(const planning *p)
{
    weft_moe_state *s = p->state;
    const weft_moe_dims *d = &p->m->dims;
    const weft_model_options *o = &p->m->common.options;
    weft_lane *lane = weft_pass_lane(p->pass);
    size_t topk = (size_t)o->moe_router_topk, mark = weft_pass_mark(p->pass);
    weft_tensor row_of, token_of, scratch;
    WEFT_TRY(weft_pass_stash(p->pass, WEFT_I32, d->tokens, topk, &row_of));
    WEFT_TRY(weft_pass_stash(p->pass, WEFT_I32, d->tokens, topk, &token_of));
    WEFT_TRY(weft_pass_scratch(p->pass, WEFT_I32, d->tokens, topk, &scratch));
    s->row_of = row_of.data;
    s->token_of = token_of.data;
    /* Where tokens travel all choices are sorted, else only those of this rank's experts. */
    s->sort = WEFT_ARGS(
        weft_dispatch_plan_args, .num_tokens = d->tokens, .num_experts = d->experts, .topk = topk,
        .first_expert = d->exchange ? 0 : p->rank * p->local,
        .num_local = d->exchange ? d->experts : p->local, .capacity = d->capacity,
        .policy = (weft_drop_policy)o->moe_token_drop_policy, .top_index = s->index.data,
        .top_prob = s->prob.data, .counts = s->counts, .num_partitions = p->kernel_parts,
        .partition_counts = s->partition_counts, .row_of = s->row_of, .token_of = s->token_of,
        .dropped = s->counts + d->experts, .wrong = s->wrong, .scratch = scratch.data);
    WEFT_TRY(weft_dispatch_plan(lane, &s->sort));
    weft_pass_release(p->pass, mark);
    return WEFT_OK;
}

/* On the lane: [parts][ep][local] -> [ep][parts][local], what each peer is sent. */
static weft_status arrange_counts(const void *raw)
{
    const planning *p = raw;
    for (size_t peer = 0; peer < p->ep; peer++)
        for (size_t part = 0; part < p->kernel_parts; part++)
            memcpy(p->state->sent_counts + (peer * p->kernel_parts + part) * p->local,
                   p->state->partition_counts + (part * p->ep + peer) * p->local,
                   p->local * sizeof(int64_t));
    return WEFT_OK;
}

static weft_status exchange_counts(const planning *p)
{
    weft_moe_state *s = p->state;
    weft_lane *lane = weft_pass_lane(p->pass);
    size_t *bytes = NULL;
    WEFT_TRY(host(p->pass, p->ep, sizeof *bytes, &bytes));
    for (size_t peer = 0; peer < p->ep; peer++)
        bytes[peer] = p->kernel_parts * p->local * sizeof(int64_t);
    if (weft_pass_repeats(p->pass)) /* they are known */
        return WEFT_OK;
    if (p->kernel_parts > 1)
        WEFT_TRY(weft_lane_submit(lane, "dispatch counts", arrange_counts, p, sizeof *p));
    if (p->m->dims.exchange)
        WEFT_TRY(weft_all_to_all(weft_pass_groups(p->pass)->by_axis[WEFT_AXIS_EP], lane,
                                 s->sent_counts, bytes, s->received, bytes));
    /* From here on sizes depend on the data: the host waits for them. */
    WEFT_TRY(weft_lane_sync(lane));
    WEFT_TRY(weft_dispatch_plan_check(&s->sort));
    if (!p->m->dims.exchange)
        memcpy(s->received, s->counts + p->rank * p->local, bytes[0]);
    return WEFT_OK;
}

/* Cut by peers, partition i of a rank goes to the i-th group of ranks after its own. */
static size_t group_of_part(const planning *p, size_t rank, size_t part)
{
    return (rank / p->group + part) % (p->ep / p->group);
}

/* Rows that `peer` sends in partition `part` for local expert e. */
static int64_t received_rows(const planning *p, size_t peer, size_t part, size_t e)
{
    if (p->by_peers) {
        if (group_of_part(p, peer, part) != p->rank / p->group)
            return 0;
        part = 0;
    }
    return p->state->received[(peer * p->kernel_parts + part) * p->local + e];
}

static int64_t sent_rows(const planning *p, size_t peer, size_t part)
{
    int64_t sum = 0;
    if (p->by_peers) {
        if (group_of_part(p, p->rank, part) != peer / p->group)
            return 0;
        part = 0;
    }
    size_t first = p->m->dims.exchange ? 0 : p->rank;
    for (size_t e = 0; e < p->local; e++)
        sum += p->state->partition_counts[(part * p->ep + first + peer) * p->local + e];
    return sum;
}

static weft_status take_order(const planning *p, weft_moe_part *part)
{
    const weft_model_options *o = &p->m->common.options;
    size_t balanced = weft_moe_balanced_rows(&p->m->dims, (size_t)o->moe_router_topk, p->ep);
    size_t room = weft_moe_order_room(balanced, p->ep, (size_t)p->state->num_parts);
    room = room > part->num_rows ? room : part->num_rows;
    WEFT_TRY(host(p->pass, 2 * (room + 1), sizeof(int32_t), &part->order));
    part->inverse = part->order + part->num_rows + 1;
    return WEFT_OK;
}

/* Rows come sorted by sender, then expert; experts want theirs together. */
static weft_status order_rows(planning *p, size_t index, weft_moe_part *part)
{
    if (p->local > 1 && p->ep > 1 && (!p->by_peers || p->group > 1))
        WEFT_TRY(take_order(p, part));
    int64_t row = 0;
    for (size_t e = 0; e < p->local; e++) {
        part->offsets[e] = row;
        int64_t before = 0; /* rows of earlier senders and of this sender's earlier experts */
        for (size_t peer = 0; peer < p->ep; peer++)
            for (size_t f = 0; f < p->local; f++) {
                int64_t count = received_rows(p, peer, index, f);
                for (int64_t i = 0; f == e && i < count; i++, row++)
                    if (part->order) {
                        part->order[row] = (int32_t)(before + i);
                        part->inverse[before + i] = (int32_t)row;
                    }
                before += count;
            }
    }
    part->offsets[p->local] = row;
    return WEFT_OK;
}

static void count_part(weft_moe_state *s, const weft_moe_part *part)
{
    s->num_sent += part->num_sent;
    s->num_rows += part->num_rows;
    s->max_sent = part->num_sent > s->max_sent ? part->num_sent : s->max_sent;
    s->max_rows = part->num_rows > s->max_rows ? part->num_rows : s->max_rows;
}

/* The plan stands in the pass's host memory: nobody needs to wait for it again. */
static weft_status repeat_parts(const planning *p)
{
    weft_moe_state *s = p->state;
    s->num_sent = s->num_rows = s->max_sent = s->max_rows = 0;
    for (int i = 0; i < s->num_parts; i++) {
        weft_moe_part *part = &s->parts[i];
        count_part(s, part);
        if (part->order)
            WEFT_TRY(take_order(p, part));
    }
    return WEFT_OK;
}

static weft_status size_parts(planning *p)
{
    weft_moe_state *s = p->state;
    const weft_shape *shape = weft_pass_shape(p->pass);
    size_t row_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    s->num_sent = s->num_rows = s->max_sent = s->max_rows = 0;
    for (size_t i = 0; i < (size_t)s->num_parts; i++) {
        weft_moe_part *part = &s->parts[i];
        for (size_t peer = 0; peer < p->ep; peer++) {
            size_t sent = (size_t)sent_rows(p, peer, i), received = 0;
            for (size_t e = 0; e < p->local; e++)
                received += (size_t)received_rows(p, peer, i, e);
            part->send_bytes[peer] = sent * row_bytes;
            part->recv_bytes[peer] = received * row_bytes;
            part->num_sent += sent;
            part->num_rows += received;
        }
        part->first_sent = s->num_sent;
        part->first_row = s->num_rows;
        count_part(s, part);
        WEFT_TRY(order_rows(p, i, part));
    }
    /* The sort puts peers' rows one after the other, whatever partition they are. */
    for (size_t i = 0; p->by_peers && i < (size_t)s->num_parts; i++) {
        size_t to = group_of_part(p, p->rank, i) * p->group, before = 0;
        for (size_t e = 0; e < to * p->local; e++)
            before += (size_t)s->partition_counts[e];
        s->parts[i].first_sent = before;
    }
    return WEFT_OK;
}

weft_status weft_moe_sort_choices(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    state->plan = pass->model->moe->current;
    state->num_parts = state->plan->pipeline.num_partitions;
    planning p = planning_of(m, pass, state);
    WEFT_TRY(take_memory(&p));
    return enqueue_sort(&p);
}

weft_status weft_moe_exchange_counts(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    planning p = planning_of(m, pass, state);
    WEFT_TRY(exchange_counts(&p));
    WEFT_TRY(weft_pass_repeats(pass) ? repeat_parts(&p) : size_parts(&p));
    size_t choices = m->dims.tokens * (size_t)m->common.options.moe_router_topk;
    if (choices < state->num_sent)
        return WEFT_ERROR(WEFT_INTERNAL, "dispatch plan keeps %zu of %zu choices", state->num_sent,
                          choices);
    return WEFT_OK;
}
