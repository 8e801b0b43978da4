/* The dispatch plan: where each token goes, partition by partition. */
#include <string.h>

#include "core/device/device.h"
#include "kernels/reorder.h"
#include "layers/moe/internal.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"

/* The plan while it is made. */
typedef struct planning {
    weft_moe *m;
    weft_pass *pass;
    weft_moe_state *state;
    size_t ep;           /* ranks that tokens travel between; 1: none */
    size_t rank;         /* this rank's number among the `ranks` */
    size_t ranks;        /* ranks that share the experts, with or without an exchange */
    size_t local;        /* experts here */
    size_t kernel_parts; /* partitions of the sort: by tokens alone */
    bool by_peers, by_experts;
    size_t group; /* ranks that are one partition when cut by peers */
    bool placed;  /* experts may compute away from home */
    size_t seats; /* experts that may compute here */
} planning;

static planning planning_of(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    const weft_groups *groups = weft_pass_groups(pass);
    const int group = state->plan->pipeline.peer_group;
    const bool by_peers = m->dims.exchange && group > 0;
    const bool by_experts = m->dims.exchange && state->plan->pipeline.by_experts;
    const bool placed = weft_pass_shape(pass)->experts_placed;
    return (planning){.m = m,
                      .pass = pass,
                      .state = state,
                      .ep = m->dims.exchange ? (size_t)groups->mesh.ep : 1,
                      .rank = (size_t)groups->coords.at[WEFT_AXIS_EP],
                      .ranks = (size_t)groups->mesh.ep,
                      .local = m->dims.local_experts,
                      .kernel_parts = by_peers || by_experts ? 1 : (size_t)state->cut.num_parts,
                      .by_peers = by_peers,
                      .by_experts = by_experts,
                      .group = (size_t)group,
                      .placed = placed,
                      .seats = placed ? m->dims.experts : m->dims.local_experts};
}

static weft_status host(weft_pass *pass, size_t count, size_t size, void *out)
{
    void *memory;
    WEFT_TRY(weft_pass_host(pass, count * size, &memory));
    memcpy(out, &memory, sizeof memory);
    return WEFT_OK;
}

static weft_status take_placed(const planning *p, weft_moe_part *part)
{
    const weft_moe_dims *d = &p->m->dims;
    const size_t parts = weft_placing_capacity((int)d->experts, (int)p->ranks);
    WEFT_TRY(host(p->pass, parts, sizeof *part->placed, &part->placed));
    WEFT_TRY(host(p->pass, d->experts + 1, sizeof *part->first_placed, &part->first_placed));
    return host(p->pass, d->tokens * (size_t)p->m->common.options.moe_router_topk, sizeof *part->to,
                &part->to);
}

/* Arrays that partitions by experts share. */
static weft_status take_runs(const planning *p)
{
    const weft_moe_dims *d = &p->m->dims;
    weft_moe_state *s = p->state;
    weft_moe_part *first = &s->cut.parts[0];
    WEFT_TRY(host(p->pass, d->experts, sizeof *s->sorted.part_of, &s->sorted.part_of));
    WEFT_TRY(host(p->pass, p->local + 1, sizeof *first->all_offsets, &first->all_offsets));
    WEFT_TRY(host(p->pass, d->tokens * (size_t)p->m->common.options.moe_router_topk,
                  sizeof *first->to, &first->to));
    if (!weft_pass_shape(p->pass)->experts_on_host)
        return WEFT_OK;
    WEFT_TRY(host(p->pass, 2 * d->experts, sizeof *s->sorted.totals, &s->sorted.totals));
    WEFT_TRY(host(p->pass, p->local, sizeof *first->positions, &first->positions));
    return host(p->pass, 2 * p->local, sizeof *first->own_rows, &first->own_rows);
}

static void share_runs(const planning *p)
{
    const weft_moe_part *first = &p->state->cut.parts[0];
    for (int i = 0; i < p->state->cut.num_parts; i++) {
        weft_moe_part *part = &p->state->cut.parts[i];
        part->all_offsets = first->all_offsets;
        part->positions = first->positions;
        part->own_rows = first->own_rows;
        weft_moe_run_of((int)p->local, p->state->cut.num_parts, i, &part->first_position,
                        &part->end_position);
    }
}

static weft_status take_memory(planning *p)
{
    const weft_moe_dims *d = &p->m->dims;
    weft_moe_state *s = p->state;
    size_t parts = (size_t)s->cut.num_parts;
    WEFT_TRY(host(p->pass, d->experts + 1, sizeof *s->sorted.counts, &s->sorted.counts));
    WEFT_TRY(host(p->pass, 1, sizeof *s->sorted.wrong, &s->sorted.wrong));
    const size_t ranks = p->placed ? p->ranks : p->ep;
    WEFT_TRY(host(p->pass, ranks * p->kernel_parts * p->seats, sizeof *s->sorted.received,
                  &s->sorted.received));
    s->sorted.partition_counts = s->sorted.counts;
    s->sorted.sent_counts = s->sorted.counts;
    if (p->kernel_parts > 1) {
        size_t num = p->kernel_parts * d->experts;
        WEFT_TRY(host(p->pass, num, sizeof(int64_t), &s->sorted.partition_counts));
        WEFT_TRY(host(p->pass, num, sizeof(int64_t), &s->sorted.sent_counts));
    }
    WEFT_TRY(host(p->pass, parts, sizeof *s->cut.parts, &s->cut.parts));
    if (!weft_pass_repeats(p->pass))
        memset(s->cut.parts, 0, parts * sizeof *s->cut.parts);
    if (p->by_experts) {
        WEFT_TRY(take_runs(p));
        share_runs(p);
    }
    for (size_t i = 0; i < parts; i++) {
        weft_moe_part *part = &s->cut.parts[i];
        WEFT_TRY(host(p->pass, 2 * ranks, sizeof(size_t), &part->send_bytes));
        part->recv_bytes = part->send_bytes + ranks;
        WEFT_TRY(host(p->pass, p->seats + 1, sizeof(int64_t), &part->offsets));
        if (p->by_experts)
            continue;
        part->all_offsets = part->offsets;
        part->first_position = 0;
        part->end_position = (int)p->seats;
        if (weft_pass_shape(p->pass)->experts_on_host) {
            WEFT_TRY(host(p->pass, p->seats, sizeof *part->positions, &part->positions));
            WEFT_TRY(host(p->pass, 2 * p->seats, sizeof *part->own_rows, &part->own_rows));
        }
        if (p->placed)
            WEFT_TRY(take_placed(p, part));
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
    s->sorted.row_of = row_of.data;
    s->sorted.token_of = token_of.data;
    /* All choices are sorted if tokens or experts travel, else those of this rank's experts. */
    const bool all = d->exchange || p->placed;
    s->sorted.args = WEFT_ARGS(
        weft_dispatch_plan_args, .num_tokens = d->tokens, .num_experts = d->experts, .topk = topk,
        .first_expert = all ? 0 : p->rank * p->local, .num_local = all ? d->experts : p->local,
        .capacity = d->capacity, .policy = (weft_drop_policy)o->moe_token_drop_policy,
        .top_index = s->routing.index.data, .top_prob = s->routing.prob.data,
        .counts = s->sorted.counts, .num_partitions = p->kernel_parts,
        .partition_counts = s->sorted.partition_counts, .row_of = s->sorted.row_of,
        .token_of = s->sorted.token_of, .dropped = s->sorted.counts + d->experts,
        .wrong = s->sorted.wrong, .scratch = scratch.data);
    WEFT_TRY(weft_dispatch_plan(lane, &s->sorted.args));
    weft_pass_release(p->pass, mark);
    return WEFT_OK;
}

/* On the lane: [parts][ep][local] -> [ep][parts][local], counts by receiver. */
static weft_status arrange_counts(const void *raw)
{
    const planning *p = raw;
    for (size_t peer = 0; peer < p->ep; peer++)
        for (size_t part = 0; part < p->kernel_parts; part++)
            memcpy(p->state->sorted.sent_counts + (peer * p->kernel_parts + part) * p->local,
                   p->state->sorted.partition_counts + (part * p->ep + peer) * p->local,
                   p->local * sizeof(int64_t));
    return WEFT_OK;
}

static weft_status note_arrangement(const planning *p, weft_lane *lane)
{
    const size_t bytes = p->ep * p->kernel_parts * p->local * sizeof(int64_t);
    const weft_range ranges[] = {
        {.name = "counts", .base = p->state->sorted.partition_counts, .bytes = bytes},
        {.name = "sent", .base = p->state->sorted.sent_counts, .bytes = bytes, .writes = true}};
    return weft_note_ranges(lane, "dispatch counts", ranges, 2);
}

/* Partitions by experts at positions: an expert's partition follows from its rows of all ranks and
 * from whether its rank keeps it. */
static weft_status sum_counts(const planning *p, weft_lane *lane)
{
    const size_t experts = p->m->dims.experts;
    int64_t *totals = p->state->sorted.totals, *kept = totals + experts;
    memset(kept, 0, experts * sizeof *kept);
    if (p->pass->model->tier)
        weft_tier_kept_places(p->pass->model->tier, p->m->layer, kept + p->rank * p->local);
    WEFT_TRY(weft_lane_copy(lane, totals, p->state->sorted.counts, experts * sizeof *totals));
    return weft_all_reduce(weft_pass_groups(p->pass)->by_axis[WEFT_AXIS_EP], lane, totals,
                           2 * experts, WEFT_I64, WEFT_REDUCE_SUM);
}

static weft_status exchange_counts(const planning *p, weft_lane *lane)
{
    weft_moe_sorted *sorted = &p->state->sorted;
    size_t *bytes = NULL;
    WEFT_TRY(host(p->pass, p->ep, sizeof *bytes, &bytes));
    for (size_t peer = 0; peer < p->ep; peer++)
        bytes[peer] = p->kernel_parts * p->local * sizeof(int64_t);
    if (weft_pass_repeats(p->pass)) /* the counts are known already */
        return WEFT_OK;
    if (p->kernel_parts > 1) {
        WEFT_TRY(note_arrangement(p, lane));
        WEFT_TRY(weft_lane_submit(lane, "dispatch counts", arrange_counts, p, sizeof *p));
    }
    if (p->placed && p->m->dims.exchange)
        WEFT_TRY(weft_all_gather(weft_pass_groups(p->pass)->by_axis[WEFT_AXIS_EP], lane,
                                 sorted->counts, sorted->received, p->seats, WEFT_I64));
    else if (p->m->dims.exchange)
        WEFT_TRY(weft_all_to_all(weft_pass_groups(p->pass)->by_axis[WEFT_AXIS_EP], lane,
                                 sorted->sent_counts, bytes, sorted->received, bytes));
    if (p->by_experts && weft_pass_shape(p->pass)->experts_on_host)
        WEFT_TRY(sum_counts(p, lane));
    /* From here on sizes depend on the data: the host waits for them. */
    WEFT_TRY(weft_lane_sync(lane));
    if (weft_device_is_note(p->pass->model->setup.device))
        return WEFT_OK;
    WEFT_TRY(weft_dispatch_plan_check(&sorted->args));
    if (p->placed && !p->m->dims.exchange) { /* as if the first rank sent all rows */
        memset(sorted->received, 0, p->ranks * p->seats * sizeof *sorted->received);
        memcpy(sorted->received, sorted->counts, p->seats * sizeof *sorted->received);
    } else if (!p->m->dims.exchange) {
        memcpy(sorted->received, sorted->counts + p->rank * p->local, bytes[0]);
    }
    return WEFT_OK;
}

/* Cut by peers, partition i of a rank goes to the i-th group of ranks after its own. */
static size_t group_of_part(const planning *p, size_t rank, size_t part)
{
    return (rank / p->group + part) % (p->ep / p->group);
}

/* And comes from the i-th group before it. */
static size_t group_behind(const planning *p, size_t part)
{
    return group_of_part(p, p->rank, p->ep / p->group - part);
}

/* Rows that `peer` sends in partition `part` for local expert e. */
static int64_t received_rows(const planning *p, size_t peer, size_t part, size_t e)
{
    if (p->by_peers) {
        if (group_of_part(p, peer, part) != p->rank / p->group)
            return 0;
        part = 0;
    }
    if (p->by_experts) {
        if (p->state->sorted.part_of[p->rank * p->local + e] != (int32_t)part)
            return 0;
        part = 0;
    }
    return p->state->sorted.received[(peer * p->kernel_parts + part) * p->local + e];
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
    for (size_t e = 0; e < p->local && p->by_experts; e++)
        if (p->state->sorted.part_of[peer * p->local + e] == (int32_t)part)
            sum += p->state->sorted.counts[peer * p->local + e];
    for (size_t e = 0; e < p->local && !p->by_experts; e++)
        sum += p->state->sorted.partition_counts[(part * p->ep + first + peer) * p->local + e];
    return sum;
}

static weft_status take_order(const planning *p, weft_moe_part *part)
{
    const weft_model_options *o = &p->m->common.options;
    size_t balanced = weft_moe_balanced_rows(&p->m->dims, (size_t)o->moe_router_topk, p->ep);
    size_t room = weft_moe_order_room(balanced, p->ep, (size_t)p->state->cut.num_parts);
    room = room > part->num_rows ? room : part->num_rows;
    WEFT_TRY(host(p->pass, 2 * (room + 1), sizeof(int32_t), &part->order));
    part->inverse = part->order + part->num_rows + 1;
    return WEFT_OK;
}

/* Rows arrive sorted by sender, then expert; each expert needs its own together. */
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

static void count_part(weft_moe_cut *cut, const weft_moe_part *part)
{
    cut->num_sent += part->num_sent;
    cut->num_rows += part->num_rows;
    cut->max_sent = part->num_sent > cut->max_sent ? part->num_sent : cut->max_sent;
    cut->max_rows = part->num_rows > cut->max_rows ? part->num_rows : cut->max_rows;
}

/* The plan stays in the pass's host memory; backward need not wait for it. */
static weft_status repeat_parts(const planning *p)
{
    weft_moe_cut *cut = &p->state->cut;
    cut->num_sent = cut->num_rows = cut->max_sent = cut->max_rows = 0;
    for (int i = 0; i < cut->num_parts; i++) {
        weft_moe_part *part = &cut->parts[i];
        count_part(cut, part);
        if (part->order)
            WEFT_TRY(take_order(p, part));
    }
    return WEFT_OK;
}

/* The experts' positions in the uploading program, and their rows. */
static void place_experts(const planning *p, weft_moe_part *part)
{
    if (!p->by_experts)
        weft_tier_positions(p->pass->model->tier, p->m->layer, part->offsets, part->positions);
    for (size_t e = 0; e < p->seats; e++) {
        part->own_rows[2 * e] = 0;
        part->own_rows[2 * e + 1] = part->all_offsets[e + 1] - part->all_offsets[e];
    }
}

/* Partitions by experts are runs of positions on every rank; without offloading positions are
 * numbers. */
static void cut_by_experts(const planning *p)
{
    weft_moe_state *s = p->state;
    const bool listed = p->pass->model->tier;
    int32_t *positions = s->cut.parts[0].positions;
    int64_t *offsets = s->cut.parts[0].all_offsets;
    for (size_t k = 0; k < p->ep; k++) {
        const size_t rank = (p->rank + 1 + k) % p->ep; /* this rank last: its positions remain */
        const size_t first = rank * p->local;
        if (listed)
            weft_tier_stand((int)p->local, s->sorted.totals + p->m->dims.experts + first,
                            s->sorted.totals + first, positions);
        for (int i = 0; i < s->cut.num_parts; i++)
            for (int q = s->cut.parts[i].first_position; q < s->cut.parts[i].end_position; q++)
                s->sorted.part_of[first + (size_t)(listed ? positions[q] : q)] = i;
    }
    offsets[0] = 0;
    for (size_t e = 0; e < p->local; e++) {
        offsets[e + 1] = offsets[e];
        for (size_t peer = 0; peer < p->ep; peer++)
            offsets[e + 1] += s->sorted.received[peer * p->local + e];
    }
}

/* Orders the leaving rows by partition, then expert and so receiver. */
static void send_by_partition(const planning *p)
{
    const weft_moe_state *s = p->state;
    size_t next[WEFT_MOE_MAX_PARTITIONS];
    int32_t *to = s->cut.parts[0].to;
    for (int i = 0; i < s->cut.num_parts; i++)
        next[i] = s->cut.parts[i].first_sent;
    for (size_t e = 0; e < p->m->dims.experts; e++)
        for (int64_t i = 0; i < s->sorted.counts[e]; i++)
            *to++ = (int32_t)next[s->sorted.part_of[e]]++;
}

/* Each rank has all tokens and selects its parts' rows. */
static void take_rows(const planning *p, weft_placing *placing)
{
    weft_moe_cut *cut = &p->state->cut;
    weft_moe_part *part = &cut->parts[0];
    weft_placing_receives(placing, part->placed, part->first_placed, part->recv_bytes,
                          part->offsets);
    weft_placing_select(placing, part->placed, part->first_placed, part->offsets, part->to);
    part->num_sent = part->num_rows = (size_t)part->offsets[p->seats];
    count_part(cut, part);
    place_experts(p, part);
}

/* With placement there is one partition. */
static weft_status place_rows(const planning *p)
{
    weft_moe_state *s = p->state;
    const weft_shape *shape = weft_pass_shape(p->pass);
    const size_t row_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    weft_tier_run *tier = p->pass->model->tier;
    weft_placing *placing = weft_tier_placing(tier);
    weft_moe_part *part = &s->cut.parts[0];
    WEFT_TRY(weft_tier_deal_out(tier, p->m->layer, s->sorted.received, part->placed,
                                part->first_placed));
    s->cut.num_sent = s->cut.num_rows = s->cut.max_sent = s->cut.max_rows = 0;
    if (!p->m->dims.exchange) {
        take_rows(p, placing);
        return WEFT_OK;
    }
    weft_placing_sends(placing, part->placed, part->first_placed, part->send_bytes, part->to);
    weft_placing_receives(placing, part->placed, part->first_placed, part->recv_bytes,
                          part->offsets);
    for (size_t peer = 0; peer < p->ep; peer++) {
        part->num_sent += part->send_bytes[peer];
        part->num_rows += part->recv_bytes[peer];
        part->send_bytes[peer] *= row_bytes;
        part->recv_bytes[peer] *= row_bytes;
    }
    count_part(&s->cut, part);
    WEFT_TRY(take_order(p, part));
    weft_placing_order(placing, part->placed, part->first_placed, part->offsets, part->order,
                       part->inverse);
    place_experts(p, part);
    return WEFT_OK;
}

/* With placement rows leave in another order than they were sorted. */
static weft_status reorder(const planning *p, weft_lane *lane)
{
    weft_moe_state *s = p->state;
    const size_t topk = (size_t)p->m->common.options.moe_router_topk;
    const size_t mark = weft_pass_mark(p->pass);
    weft_tensor scratch;
    size_t num_rows = 0; /* sorted rows, sent or not */
    for (size_t e = 0; e < p->m->dims.experts; e++)
        num_rows += (size_t)s->sorted.counts[e];
    WEFT_TRY(weft_pass_scratch(p->pass, WEFT_I32, p->m->dims.tokens, topk, &scratch));
    WEFT_TRY(weft_reorder(lane, &(weft_reorder_args){.num_choices = p->m->dims.tokens * topk,
                                                     .num_rows = num_rows,
                                                     .to = s->cut.parts[0].to,
                                                     .row_of = s->sorted.row_of,
                                                     .token_of = s->sorted.token_of,
                                                     .scratch = scratch.data}));
    weft_pass_release(p->pass, mark);
    return WEFT_OK;
}

static weft_status size_parts(planning *p)
{
    weft_moe_state *s = p->state;
    const weft_shape *shape = weft_pass_shape(p->pass);
    size_t row_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    s->cut.num_sent = s->cut.num_rows = s->cut.max_sent = s->cut.max_rows = 0;
    if (p->by_experts)
        cut_by_experts(p);
    for (size_t i = 0; i < (size_t)s->cut.num_parts; i++) {
        weft_moe_part *part = &s->cut.parts[i];
        for (size_t peer = 0; peer < p->ep; peer++) {
            size_t sent = (size_t)sent_rows(p, peer, i), received = 0;
            for (size_t e = 0; e < p->local; e++)
                received += (size_t)received_rows(p, peer, i, e);
            part->send_bytes[peer] = sent * row_bytes;
            part->recv_bytes[peer] = received * row_bytes;
            part->num_sent += sent;
            part->num_rows += received;
        }
        part->first_sent = s->cut.num_sent;
        part->first_row = s->cut.num_rows;
        count_part(&s->cut, part);
        WEFT_TRY(order_rows(p, i, part));
        if (p->pass->model->tier)
            place_experts(p, part);
    }
    if (p->by_experts)
        send_by_partition(p);
    /* The sort orders rows by peer, whatever their partition. */
    for (size_t i = 0; p->by_peers && i < (size_t)s->cut.num_parts; i++) {
        size_t to = group_of_part(p, p->rank, i) * p->group, before = 0;
        for (size_t e = 0; e < to * p->local; e++)
            before += (size_t)s->sorted.partition_counts[e];
        s->cut.parts[i].first_sent = before;
    }
    return WEFT_OK;
}

/* --- a load in place of counts ---------------------------------------------------------------- */

/* A load as a factor of an n-th of the balanced rows; `otherwise` for an unknown one. */
static size_t at_load(double load, size_t balanced, size_t n, size_t otherwise)
{
    return load > 0 ? (size_t)(load * (double)balanced / (double)n + 0.5) : otherwise;
}

/* Of `rows` the i-th partition's, larger ones last; by experts in proportion to its run's. */
static size_t rows_of_part(const planning *p, size_t rows, size_t i)
{
    const size_t n = (size_t)p->state->cut.num_parts;
    const weft_moe_part *part = &p->state->cut.parts[i];
    if (p->by_experts)
        return rows * (size_t)part->end_position / p->local -
               rows * (size_t)part->first_position / p->local;
    return rows / n + (i >= n - rows % n);
}

/* The largest partition's share, by its experts where these are cut. */
static size_t largest_part(const planning *p, size_t rows)
{
    const size_t n = (size_t)p->state->cut.num_parts, experts = (p->local + n - 1) / n;
    return p->by_experts ? (rows * experts + p->local - 1) / p->local : (rows + n - 1) / n;
}

/* Deals a partition's rows out to the peers that it goes to or comes from, by peers a group; `own`
 * stay here. */
static void deal_out(const planning *p, size_t group, size_t rows, size_t own, size_t *bytes)
{
    const weft_shape *shape = weft_pass_shape(p->pass);
    const size_t row_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    const size_t first = group * p->group;
    const size_t end = p->by_peers ? first + p->group : p->ep;
    const bool is_here = p->rank >= first && p->rank < end;
    size_t others = end - first - is_here, left = is_here ? rows - own : rows;
    memset(bytes, 0, p->ep * sizeof *bytes);
    for (size_t peer = first; peer < end; peer++) {
        const size_t share = peer == p->rank ? own : left / others;
        bytes[peer] = share * row_bytes;
        left -= peer == p->rank ? 0 : share;
        others -= peer != p->rank;
    }
}

/* For those who make a recording's calls again: as if each sender had as many rows for each expert.
 */
static void order_evenly(const planning *p, const weft_moe_part *part)
{
    const size_t runs = p->ep * p->local, each = part->num_rows / runs;
    for (size_t row = 0; row < part->num_rows; row++) {
        const size_t run = each > 0 ? row / each : runs;
        const size_t from =
            run < runs ? (run % p->ep * p->local + run / p->ep) * each + row % each : row;
        part->order[row] = (int32_t)from;
        part->inverse[from] = (int32_t)row;
    }
}

/* The rows at a position of this rank's experts. */
static int64_t rows_at(const planning *p, size_t rows, size_t position)
{
    return (int64_t)(rows * (position + 1) / p->local - rows * position / p->local);
}

/* Experts beyond device memory stand at positions, in runs of them where these are partitions. */
static void stand_planned(const planning *p, size_t rows)
{
    weft_moe_state *s = p->state;
    const weft_moe_part *all = &s->cut.parts[0];
    const size_t experts = p->m->dims.experts, first = p->rank * p->local;
    memset(s->sorted.totals, 0, experts * sizeof *s->sorted.totals);
    weft_tier_stand((int)p->local, s->sorted.totals + experts + first, s->sorted.totals + first,
                    all->positions);
    for (size_t q = 0; q < p->local; q++)
        all->all_offsets[all->positions[q] + 1] = rows_at(p, rows, q);
    all->all_offsets[0] = 0;
    for (int i = 0; i < s->cut.num_parts; i++) {
        memset(s->cut.parts[i].offsets, 0, (p->local + 1) * sizeof(int64_t));
        for (int q = s->cut.parts[i].first_position; q < s->cut.parts[i].end_position; q++)
            s->cut.parts[i].offsets[all->positions[q] + 1] = rows_at(p, rows, (size_t)q);
        for (size_t e = 0; e < p->local; e++)
            s->cut.parts[i].offsets[e + 1] += s->cut.parts[i].offsets[e];
    }
    for (size_t e = 0; e < p->local; e++)
        all->all_offsets[e + 1] += all->all_offsets[e];
}

static void place_planned(const planning *p, size_t rows)
{
    if (p->by_experts)
        stand_planned(p, rows);
    for (int i = 0; i < p->state->cut.num_parts; i++)
        place_experts(p, &p->state->cut.parts[i]);
}

/* The shape's load: rows that arrive and leave in all, and in the largest partition. */
static weft_status plan_parts(const planning *p)
{
    const weft_shape *shape = weft_pass_shape(p->pass);
    const size_t n = (size_t)p->state->cut.num_parts;
    const size_t balanced =
        weft_moe_balanced_rows(&p->m->dims, (size_t)p->m->common.options.moe_router_topk, p->ranks);
    const size_t rows = at_load(shape->moe_load, balanced, 1, balanced);
    const size_t sent =
        p->m->dims.exchange ? at_load(shape->moe_sent, balanced, 1, balanced) : rows;
    const bool orders = p->ep > 1 && (p->local > 1 || p->placed) && (!p->by_peers || p->group > 1);
    weft_moe_cut *cut = &p->state->cut;
    cut->num_sent = cut->num_rows = cut->max_sent = cut->max_rows = 0;
    for (size_t i = 0; i < n; i++) {
        weft_moe_part *part = &cut->parts[i];
        part->num_sent = rows_of_part(p, sent, i);
        part->num_rows = rows_of_part(p, rows, i);
        part->first_sent = cut->num_sent;
        part->first_row = cut->num_rows;
        part->end_position = p->by_experts ? part->end_position : (int)p->local;
        const int first = part->first_position, end = part->end_position;
        for (int e = 0; e <= (int)p->local; e++)
            part->offsets[e] = e <= first ? 0
                               : e >= end ? (int64_t)part->num_rows
                                          : (int64_t)part->num_rows * (e - first) / (end - first);
        const size_t even = part->num_rows / (p->by_peers ? p->group : p->ep);
        const size_t own = even < part->num_sent ? even : part->num_sent;
        deal_out(p, p->by_peers ? group_of_part(p, p->rank, i) : 0, part->num_sent, own,
                 part->send_bytes);
        deal_out(p, p->by_peers ? group_behind(p, i) : 0, part->num_rows, own, part->recv_bytes);
        if (orders)
            WEFT_TRY(take_order(p, part));
        if (orders && weft_note_keeps_calls(p->pass->model->setup.device))
            order_evenly(p, part);
        count_part(cut, part);
    }
    if (p->pass->model->tier)
        place_planned(p, rows);
    cut->max_rows = at_load(shape->moe_part_load, balanced, n, largest_part(p, rows));
    cut->max_sent = at_load(shape->moe_part_sent, balanced, n, largest_part(p, sent));
    return WEFT_OK;
}

static weft_status repeat_planned(const planning *p)
{
    weft_moe_cut *cut = &p->state->cut;
    const size_t max_rows = cut->max_rows, max_sent = cut->max_sent;
    WEFT_TRY(repeat_parts(p));
    cut->max_rows = max_rows;
    cut->max_sent = max_sent;
    return WEFT_OK;
}

weft_status weft_moe_sort_choices(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    state->plan = pass->model->moe->current;
    state->cut.num_parts = state->plan->pipeline.num_partitions;
    planning p = planning_of(m, pass, state);
    WEFT_TRY(take_memory(&p));
    return enqueue_sort(&p);
}

weft_status weft_moe_exchange_counts(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                     weft_lane *lane)
{
    planning p = planning_of(m, pass, state);
    WEFT_TRY(exchange_counts(&p, lane));
    if (weft_device_is_note(pass->model->setup.device))
        return weft_pass_repeats(pass) ? repeat_planned(&p) : plan_parts(&p);
    WEFT_TRY(weft_pass_repeats(pass) ? repeat_parts(&p)
             : p.placed              ? place_rows(&p)
                                     : size_parts(&p));
    size_t choices = m->dims.tokens * (size_t)m->common.options.moe_router_topk;
    if (choices < state->cut.num_sent)
        return WEFT_ERROR(WEFT_INTERNAL, "dispatch plan keeps %zu of %zu choices",
                          state->cut.num_sent, choices);
    return p.placed || p.by_experts ? reorder(&p, lane) : WEFT_OK;
}
