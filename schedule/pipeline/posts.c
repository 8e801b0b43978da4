#include "schedule/pipeline/posts.h"

/* A rank's progress. */
typedef struct progress {
    uint32_t head;           /* the compute that comes next */
    uint32_t sent, received; /* numbers of delivered messages */
} progress;

typedef struct sequence {
    const weft_order_shape *shape;
    const weft_order *orders;
    int32_t *const *starts;
    weft_rank_posts *ranks;
    progress *at; /* of each rank */
    int *ready;   /* ranks whose next send may have become possible, a stack */
    bool *is_ready;
    int num_ready;
} sequence;

static void look_at(sequence *s, int rank)
{
    if (!s->is_ready[rank])
        s->ready[s->num_ready++] = rank;
    s->is_ready[rank] = true;
}

/* Marks the sender of the rank's next receive as ready. */
static void look_at_sender(sequence *s, int rank)
{
    if (s->at[rank].received < s->ranks[rank].num_receives)
        look_at(s, s->ranks[rank].receives[s->at[rank].received].peer);
}

static bool is_message(const sequence *s, int from, const weft_post *send, int to,
                       const weft_post *receive)
{
    const weft_compute *maker = &s->orders[from].computes[send->compute];
    const weft_compute *user = &s->orders[to].computes[receive->compute];
    const int p = s->shape->num_ranks, next = maker->kind == WEFT_COMPUTE_FORWARD ? 1 : -1;
    const bool is_v = s->shape->is_v;
    return receive->peer == from &&
           (maker->kind == WEFT_COMPUTE_FORWARD) == (user->kind == WEFT_COMPUTE_FORWARD) &&
           maker->micro_batch == user->micro_batch &&
           weft_stage_of(is_v, p, from, maker->chunk) + next ==
               weft_stage_of(is_v, p, to, user->chunk);
}

/* The last of the computes that come next: one, or both of a pair. */
static uint32_t last_next(const sequence *s, int rank)
{
    const uint32_t head = s->at[rank].head;
    return head + (s->shape->pairs && head < s->orders[rank].count &&
                   s->orders[rank].computes[head].is_paired);
}

/* Whether the receiver has room: for its next compute, or for one message beyond that. */
static bool has_room(const sequence *s, int rank, const weft_post *receive)
{
    const progress *at = &s->at[rank];
    const uint32_t next = last_next(s, rank);
    if (receive->compute <= next)
        return true;
    const bool holds_one = at->received > 0 && receive[-1].compute > next;
    return !holds_one && receive->free_at <= s->starts[rank][at->head];
}

static void post(const sequence *s, int rank, uint32_t index, bool received)
{
    weft_rank_posts *of = &s->ranks[rank];
    of->posted[of->num_posted++] = (weft_posted){s->at[rank].head, index, received};
}

/* Delivers the rank's next message if its receiver has room. */
static bool hand_over(sequence *s, int rank)
{
    const weft_rank_posts *of = &s->ranks[rank];
    progress *at = &s->at[rank];
    if (at->sent == of->num_sends || of->sends[at->sent].compute >= at->head)
        return false;
    const weft_post *send = &of->sends[at->sent];
    progress *other = &s->at[send->peer];
    if (other->received == s->ranks[send->peer].num_receives)
        return false;
    const weft_post *receive = &s->ranks[send->peer].receives[other->received];
    if (!is_message(s, rank, send, send->peer, receive) || !has_room(s, send->peer, receive))
        return false;
    post(s, rank, at->sent++, false);
    post(s, send->peer, other->received++, true);
    look_at_sender(s, send->peer);
    return true;
}

static void hand_over_all(sequence *s)
{
    while (s->num_ready > 0) {
        const int rank = s->ready[--s->num_ready];
        s->is_ready[rank] = false;
        while (hand_over(s, rank))
            ;
    }
}

/* The rank whose next compute starts first; -1: nothing is left. */
static int find_first(const sequence *s)
{
    int first = -1;
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        if (s->at[rank].head == s->orders[rank].count)
            continue;
        if (first < 0 || s->starts[rank][s->at[rank].head] < s->starts[first][s->at[first].head])
            first = rank;
    }
    return first;
}

static weft_status run(sequence *s)
{
    for (int rank; rank = find_first(s), rank >= 0;) {
        const weft_rank_posts *of = &s->ranks[rank];
        progress *at = &s->at[rank];
        const uint32_t next = last_next(s, rank);
        if (at->received < of->num_receives && of->receives[at->received].compute <= next)
            return WEFT_ERROR(WEFT_INTERNAL, "rank %d has no input for its compute %u", rank,
                              of->receives[at->received].compute);
        at->head = next + 1;
        look_at(s, rank);
        look_at_sender(s, rank);
        hand_over_all(s);
    }
    return WEFT_OK;
}

static weft_status start(sequence *s, weft_arena *scratch)
{
    const size_t p = (size_t)s->shape->num_ranks;
    WEFT_TRY(WEFT_ARRAY(scratch, p, &s->at));
    WEFT_TRY(WEFT_ARRAY(scratch, p, &s->ready));
    return WEFT_ARRAY(scratch, p, &s->is_ready);
}

weft_status weft_posts_find(const weft_order_shape *shape, const weft_order *orders,
                            int32_t *const *starts, weft_rank_posts *ranks)
{
    weft_arena scratch = {0};
    sequence s = {.shape = shape, .orders = orders, .starts = starts, .ranks = ranks};
    weft_status status = start(&s, &scratch);
    if (status == WEFT_OK)
        status = run(&s);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
