#include "launcher/training/stragglers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/sorted.h"

enum { TAG = 0, MESSAGE_BYTES = 128 << 10, NUM_TRIES = 2, MIN_NODES = 3 };

static const double most_share = 1. / 300; /* of a run's time */

static weft_status make_room(weft_links *l, bool judges)
{
    const size_t count = (size_t)l->num_nodes;
    WEFT_TRY(WEFT_ARRAY(&l->arena, count, &l->ring_ms));
    WEFT_TRY(weft_arena_alloc(&l->arena, MESSAGE_BYTES, &l->message));
    if (!judges)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(&l->arena, count, &l->nodes));
    WEFT_TRY(WEFT_ARRAY(&l->arena, count, &l->ms));
    return WEFT_ARRAY(&l->arena, count, &l->sorted);
}

static weft_status learn_names(weft_links *l)
{
    char own[WEFT_LINK_NODE_BYTES] = "", (*names)[WEFT_LINK_NODE_BYTES] = NULL;
    weft_status status = WEFT_OK;
    gethostname(own, sizeof own - 1);
    if (l->nodes)
        status = WEFT_ARRAY(&l->arena, (size_t)l->num_nodes, &names);
    WEFT_TRY(weft_comm_agree(l->ring, status));
    WEFT_TRY(weft_comm_gather_host(l->ring, own, names, sizeof own));
    for (int i = 0; names && i < l->num_nodes; i++)
        memcpy(l->nodes[i].node, names[i], sizeof own);
    return WEFT_OK;
}

weft_status weft_links_create(weft_links *l, double factor, int64_t steps, int num_nodes,
                              weft_comm *world)
{
    weft_comm *node = NULL;
    weft_status status = WEFT_OK;
    *l = (weft_links){.factor = factor, .steps = steps, .num_nodes = num_nodes};
    if (factor == 0 || num_nodes < MIN_NODES)
        return WEFT_OK;
    WEFT_TRY(weft_comm_split_node(world, &node));
    const bool is_first = weft_comm_rank(node) == 0;
    weft_comm_destroy(node);
    WEFT_TRY(weft_comm_split(world, is_first ? 0 : -1, weft_comm_rank(world), "links",
                             WEFT_PURPOSE_CONTROL, &l->ring));
    if (l->ring)
        status = make_room(l, weft_comm_rank(l->ring) == 0);
    WEFT_TRY(weft_comm_agree(world, status));
    return l->ring ? learn_names(l) : WEFT_OK;
}

/* --- looking --------------------------------------------------------------------------------- */

static weft_status lead(weft_links *l, int peer, double *out_ms)
{
    char ready;
    double best_us = INFINITY;
    WEFT_TRY(weft_comm_recv_host(l->ring, peer, TAG, &ready, sizeof ready));
    for (int i = 0; i < NUM_TRIES; i++) {
        const double start_us = weft_now_us();
        WEFT_TRY(weft_comm_send_host(l->ring, peer, TAG, l->message, MESSAGE_BYTES));
        WEFT_TRY(weft_comm_recv_host(l->ring, peer, TAG, l->message, MESSAGE_BYTES));
        best_us = fmin(best_us, weft_now_us() - start_us);
    }
    *out_ms = best_us / 2e3;
    return WEFT_OK;
}

static weft_status follow(weft_links *l, int peer)
{
    const char ready = 1;
    WEFT_TRY(weft_comm_send_host(l->ring, peer, TAG, &ready, sizeof ready));
    for (int i = 0; i < NUM_TRIES; i++) {
        WEFT_TRY(weft_comm_recv_host(l->ring, peer, TAG, l->message, MESSAGE_BYTES));
        WEFT_TRY(weft_comm_send_host(l->ring, peer, TAG, l->message, MESSAGE_BYTES));
    }
    return WEFT_OK;
}

/* The round of the edge from a node to the next; a node has one edge in a round. */
static int round_of(const weft_links *l, int node)
{
    return l->num_nodes % 2 && node == l->num_nodes - 1 ? 2 : node % 2;
}

static weft_status go_round(weft_links *l)
{
    const int own = weft_comm_rank(l->ring), next = (own + 1) % l->num_nodes,
              before = (own + l->num_nodes - 1) % l->num_nodes;
    double own_ms = 0;
    for (int round = 0; round < 3; round++) {
        if (round_of(l, own) == round)
            WEFT_TRY(lead(l, next, &own_ms));
        else if (round_of(l, before) == round)
            WEFT_TRY(follow(l, before));
    }
    return weft_comm_all_gather_host(l->ring, &own_ms, l->ring_ms, sizeof own_ms);
}

/* Budgets by the fastest link, so that a slow link is measured as often. */
static int64_t pause_steps(const weft_links *l, double step_ms)
{
    double ms = INFINITY;
    for (int i = 0; i < l->num_nodes; i++)
        ms = fmin(ms, l->ring_ms[i]);
    const double least = ceil((double)l->steps / (WEFT_LINK_LOOKS - 1)),
                 rare = 2 * 2 * NUM_TRIES * ms / (most_share * step_ms);
    const double steps = ceil(fmin(fmax(least, rare), 1e9));
    return steps > 1 ? (int64_t)steps : 1;
}

weft_status weft_links_look(weft_links *l, int64_t step, double step_ms, bool *out_looked)
{
    *out_looked = l->ring && step >= l->next_step;
    if (!*out_looked)
        return WEFT_OK;
    WEFT_TRY(go_round(l));
    l->next_step = step + pause_steps(l, step_ms);
    return WEFT_OK;
}

/* --- judging --------------------------------------------------------------------------------- */

static double least_of(const weft_node_link *link)
{
    double least = INFINITY;
    for (int i = 0; i < WEFT_LINK_LOOKS; i++)
        least = fmin(least, link->ms[i]);
    return least;
}

/* The upper median of the other nodes, for a node above it (judge_stage). */
static double median_of(weft_links *l)
{
    for (int i = 0; i < l->num_nodes; i++)
        l->sorted[i] = least_of(&l->nodes[i]);
    weft_sort(l->sorted, l->num_nodes);
    return l->sorted[(l->num_nodes - 1) / 2];
}

/* The step of the oldest kept measurement. */
static int64_t note(weft_links *l, int64_t step)
{
    const int num = l->num_nodes, at = l->num_looks++ % WEFT_LINK_LOOKS;
    l->look_steps[at] = step;
    for (int i = 0; i < num; i++)
        l->ms[i] = l->nodes[i].ms[at] = fmin(l->ring_ms[i], l->ring_ms[(i + num - 1) % num]);
    return l->look_steps[l->num_looks % WEFT_LINK_LOOKS];
}

/* Delays by other work, which healthy nodes show up to 0.47 ms. */
static const double noise_ms = 1;

int weft_links_judge(weft_links *l, int64_t step, char *out, size_t capacity)
{
    const int num = l->num_nodes;
    const int64_t first_step = note(l, step);
    const bool long_enough = l->num_looks >= WEFT_LINK_LOOKS && step - first_step >= l->steps - 1;
    const double median = median_of(l);
    int found = -1;
    for (int i = 0; i < num; i++) {
        weft_node_link *link = &l->nodes[i];
        const double least = least_of(link);
        const bool is_slow = least > l->factor * median && least - median > noise_ms;
        link->num_well = is_slow ? 0 : link->num_well + 1;
        if (link->num_well >= WEFT_LINK_LOOKS)
            link->told = false;
        if (!is_slow || !long_enough || link->told || found >= 0)
            continue; /* of several nodes one is reported per measurement */
        link->told = true;
        found = i;
        snprintf(out, capacity,
                 "step %" PRId64 ": the link of node %s is slow: for %" PRId64
                 " steps messages of %d KiB have taken at least %.3g ms, %.3g times as long as the "
                 "median of the other nodes'",
                 step, link->node, step - first_step + 1, MESSAGE_BYTES >> 10, least,
                 least / median);
    }
    memcpy(l->sorted, l->ms, (size_t)num * sizeof *l->ms);
    weft_sort(l->sorted, num);
    return found;
}

void weft_links_release(weft_links *l)
{
    weft_comm_destroy(l->ring);
    weft_arena_release(&l->arena);
    *l = (weft_links){0};
}

typedef struct place {
    int stage;
    char node[WEFT_STRAGGLER_NODE_BYTES];
} place;

static weft_status make_places(weft_stragglers *s, int num_ranks, place **out)
{
    const size_t count = (size_t)num_ranks;
    WEFT_TRY(WEFT_ARRAY(&s->arena, count, &s->ranks));
    WEFT_TRY(WEFT_ARRAY(&s->arena, count, &s->ms));
    WEFT_TRY(WEFT_ARRAY(&s->arena, count, &s->sorted));
    return WEFT_ARRAY(&s->arena, count, out);
}

weft_status weft_stragglers_create(weft_stragglers *s, double factor, int64_t steps, int stage,
                                   weft_comm *world)
{
    const int num_ranks = weft_comm_size(world);
    place own = {.stage = stage}, *places = NULL;
    weft_status status = WEFT_OK;
    *s = (weft_stragglers){.factor = num_ranks > 1 ? factor : 0, .steps = steps};
    s->num_ranks = num_ranks;
    if (s->factor == 0)
        return WEFT_OK;
    gethostname(own.node, sizeof own.node - 1);
    if (weft_comm_rank(world) == 0)
        status = make_places(s, num_ranks, &places);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_comm_gather_host(world, &own, places, sizeof own));
    for (int i = 0; places && i < num_ranks; i++) {
        s->ranks[i].stage = places[i].stage;
        memcpy(s->ranks[i].node, places[i].node, sizeof places[i].node);
    }
    return WEFT_OK;
}

weft_status weft_stragglers_gather(weft_stragglers *s, double own_ms, weft_comm *world)
{
    return s->factor == 0 ? WEFT_OK : weft_comm_gather_host(world, &own_ms, s->ms, sizeof own_ms);
}

static size_t sort_stage(weft_stragglers *s, int stage)
{
    size_t count = 0;
    for (int i = 0; i < s->num_ranks; i++)
        if (s->ranks[i].stage == stage)
            s->sorted[count++] = s->ms[i];
    weft_sort(s->sorted, count);
    return count;
}

/* Counts a step of a rank; true: the rank is now a straggler. */
static bool count(weft_stragglers *s, weft_straggler *r, bool is_slow)
{
    r->num_slow = is_slow ? r->num_slow + 1 : 0;
    r->num_well = is_slow ? 0 : r->num_well + 1;
    if (r->num_well >= s->steps)
        r->told = false;
    return r->num_slow >= s->steps && !r->told;
}

/* For a rank above the upper median of its others, that median is sorted[(count - 1) / 2]; ranks
 * below it are never slow. */
static int judge_stage(weft_stragglers *s, int stage, int64_t step, char *out, size_t capacity)
{
    const size_t num = sort_stage(s, stage);
    const double median = num > 1 ? s->sorted[(num - 1) / 2] : 0;
    int found = -1;
    for (int i = 0; i < s->num_ranks; i++) {
        weft_straggler *r = &s->ranks[i];
        if (r->stage != stage ||
            !count(s, r, num > 1 && median > 0 && s->ms[i] > s->factor * median) || found >= 0)
            continue; /* of several in a step, one is reported per step */
        r->told = true;
        found = i;
        snprintf(out, capacity,
                 "step %" PRId64 ": rank %d on %s is slow: for %" PRId64
                 " steps it has computed at least %.3g times as long as the median of its stage's "
                 "other ranks, now %.3g ms against %.3g ms",
                 step, i, r->node, r->num_slow, s->factor, s->ms[i], median);
    }
    return found;
}

int weft_stragglers_judge(weft_stragglers *s, int64_t step, char *out, size_t capacity)
{
    int found = -1, num_stages = 0;
    s->slowest = 0;
    for (int i = 0; i < s->num_ranks; i++) {
        num_stages = s->ranks[i].stage >= num_stages ? s->ranks[i].stage + 1 : num_stages;
        s->slowest = s->ms[i] > s->ms[s->slowest] ? i : s->slowest;
    }
    for (int stage = 0; stage < num_stages; stage++) {
        char line[512];
        int rank = judge_stage(s, stage, step, line, sizeof line);
        if (rank < 0)
            continue;
        if (found >= 0) {
            s->ranks[rank].told = false; /* reported in the next step */
            continue;
        }
        found = rank;
        snprintf(out, capacity, "%s", line);
    }
    memcpy(s->sorted, s->ms, (size_t)s->num_ranks * sizeof *s->ms);
    weft_sort(s->sorted, s->num_ranks);
    return found;
}

void weft_stragglers_release(weft_stragglers *s)
{
    weft_arena_release(&s->arena);
    *s = (weft_stragglers){0};
}
