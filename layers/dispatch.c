/* Where each token goes: the dispatch plan, and the exchange of rows between ranks. */
#include <string.h>

#include "layers/moe.h"

/* Rows come sorted by sender, then expert; experts want theirs together. */
static weft_status order_rows(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    size_t local = m->dims.local_experts;
    size_t peers = m->dims.exchange ? (size_t)weft_pass_groups(pass)->mesh.ep : 1;
    state->order = state->inverse = NULL;
    if (local > 1 && peers > 1) {
        void *memory;
        WEFT_TRY(weft_pass_host(pass, 2 * (state->num_rows + 1) * sizeof(int32_t), &memory));
        state->order = memory;
        state->inverse = state->order + state->num_rows + 1;
    }
    int64_t row = 0;
    for (size_t e = 0; e < local; e++) {
        state->offsets[e] = row;
        int64_t before = 0; /* rows of earlier senders and of this sender's earlier experts */
        for (size_t p = 0; p < peers; p++) {
            for (size_t f = 0; f < local; f++) {
                int64_t count = state->received[p * local + f];
                if (f == e)
                    for (int64_t i = 0; i < count; i++, row++)
                        if (state->order) {
                            state->order[row] = (int32_t)(before + i);
                            state->inverse[before + i] = (int32_t)row;
                        }
                before += count;
                if (f == e && !state->order)
                    row = state->offsets[e] + count;
            }
        }
    }
    state->offsets[local] = (int64_t)state->num_rows;
    return WEFT_OK;
}

weft_status weft_moe_dispatch_plan(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_groups *groups = weft_pass_groups(pass);
    weft_lane *lane = weft_pass_lane(pass);
    weft_comm *ep = groups->by_axis[WEFT_AXIS_EP];
    size_t topk = (size_t)o->moe_router_topk, choices = d->tokens * topk;
    size_t num_peers = d->exchange ? (size_t)groups->mesh.ep : 1;
    /* With an exchange all choices are sorted, else only those of this rank's experts. */
    size_t first = d->exchange ? 0 : (size_t)groups->coords.at[WEFT_AXIS_EP] * d->local_experts;
    size_t planned = d->exchange ? d->experts : d->local_experts;
    size_t num_host = d->experts + 1 + num_peers * d->local_experts + d->local_experts + 1;
    void *host, *sizes;
    weft_tensor row_of, token_of, scratch;
    size_t mark = weft_pass_mark(pass);
    WEFT_TRY(weft_pass_host(pass, num_host * sizeof(int64_t), &host));
    WEFT_TRY(weft_pass_host(pass, 2 * num_peers * sizeof(size_t), &sizes));
    state->counts = host;
    state->received = state->counts + d->experts + 1;
    state->offsets = state->received + num_peers * d->local_experts;
    state->send_bytes = sizes;
    state->recv_bytes = state->send_bytes + num_peers;
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, d->tokens, topk, &row_of));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, d->tokens, topk, &token_of));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_I32, d->tokens, topk, &scratch));
    state->row_of = row_of.data;
    state->token_of = token_of.data;
    WEFT_TRY(weft_lane_zero(lane, state->counts, (d->experts + 1) * sizeof(int64_t)));
    WEFT_TRY(weft_dispatch_plan(
        lane, &(weft_dispatch_plan_args){.num_tokens = d->tokens,
                                         .num_experts = d->experts,
                                         .topk = topk,
                                         .first_expert = first,
                                         .num_local = planned,
                                         .capacity = d->capacity,
                                         .policy = (weft_drop_policy)o->moe_token_drop_policy,
                                         .top_index = state->index.data,
                                         .top_prob = state->prob.data,
                                         .counts = state->counts,
                                         .row_of = state->row_of,
                                         .token_of = state->token_of,
                                         .dropped = state->counts + d->experts,
                                         .scratch = scratch.data}));
    weft_pass_release(pass, mark);
    for (size_t p = 0; p < num_peers; p++)
        state->send_bytes[p] = d->local_experts * sizeof(int64_t);
    if (d->exchange)
        WEFT_TRY(weft_all_to_all(ep, lane, state->counts, state->send_bytes, state->received,
                                 state->send_bytes));
    /* From here on sizes depend on the data: the host waits for them. */
    WEFT_TRY(weft_lane_sync(lane));
    if (!d->exchange)
        memcpy(state->received, state->counts + first, d->local_experts * sizeof(int64_t));

    size_t row_bytes =
        weft_pass_shape(pass)->hidden * weft_dtype_bytes(weft_pass_shape(pass)->dtype);
    state->num_sent = state->num_rows = 0;
    for (size_t p = 0; p < num_peers; p++) {
        int64_t sent = 0, received = 0;
        for (size_t e = 0; e < d->local_experts; e++) {
            sent += state->counts[(d->exchange ? p * d->local_experts : first) + e];
            received += state->received[p * d->local_experts + e];
        }
        state->send_bytes[p] = (size_t)sent * row_bytes;
        state->recv_bytes[p] = (size_t)received * row_bytes;
        state->num_sent += (size_t)sent;
        state->num_rows += (size_t)received;
    }
    if (choices < state->num_sent)
        return WEFT_ERROR(WEFT_INTERNAL, "dispatch plan keeps %zu of %zu choices", state->num_sent,
                          choices);
    return order_rows(m, pass, state);
}

weft_status weft_moe_select(weft_pass *pass, const weft_tensor *from, const int32_t *index,
                            weft_tensor *to)
{
    if (to->dims[0] == 0)
        return WEFT_OK;
    return weft_permute(weft_pass_lane(pass), &(weft_permute_args){.num_rows = to->dims[0],
                                                                   .cols = to->dims[1],
                                                                   .dtype = to->dtype,
                                                                   .x = from->data,
                                                                   .token_of = index,
                                                                   .rows = to->data});
}

weft_status weft_moe_to_experts(weft_pass *pass, weft_moe_state *state, const weft_tensor *home,
                                weft_tensor *to)
{
    weft_tensor arrived = *to;
    if (state->order)
        WEFT_TRY(weft_pass_scratch(pass, to->dtype, to->dims[0], to->dims[1], &arrived));
    WEFT_TRY(weft_all_to_all(weft_pass_groups(pass)->by_axis[WEFT_AXIS_EP], weft_pass_lane(pass),
                             home->data, state->send_bytes, arrived.data, state->recv_bytes));
    return state->order ? weft_moe_select(pass, &arrived, state->order, to) : WEFT_OK;
}

weft_status weft_moe_to_home(weft_pass *pass, weft_moe_state *state, const weft_tensor *expert,
                             weft_tensor *to)
{
    weft_tensor leaving = *expert;
    if (state->order) {
        WEFT_TRY(weft_pass_scratch(pass, to->dtype, expert->dims[0], expert->dims[1], &leaving));
        WEFT_TRY(weft_moe_select(pass, expert, state->inverse, &leaving));
    }
    return weft_all_to_all(weft_pass_groups(pass)->by_axis[WEFT_AXIS_EP], weft_pass_lane(pass),
                           leaving.data, state->recv_bytes, to->data, state->send_bytes);
}
