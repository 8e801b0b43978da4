/* The cost of collectives: legs over links, each by the curve of its kind where there is one. */
#include "schedule/cost/costing.h"

#include <math.h>

/* --- where a group lies -------------------------------------------------------------------- */

static double cards_of(const weft_cluster *cluster, int node)
{
    const double cards = weft_cluster_hardware(cluster, weft_cluster_group_of(cluster, node))
                             ->figures[WEFT_FIGURE_CARDS];
    return cards > 0 ? cards : 1;
}

weft_group weft_group_of(const weft_cluster *cluster, const int *ranks, int size, bool direct)
{
    weft_group group = {.size = size, .near = 1, .stride = 1, .sharing = 1, .direct = direct};
    int here = 0, nodes = 0;
    for (int i = 0; i < size; i++) {
        const int node = ranks[i] / cluster->ranks_per_node;
        const int before = i > 0 ? ranks[i - 1] / cluster->ranks_per_node : -1;
        here = node == before ? here + 1 : 1;
        if (node != before) {
            group.sharing = fmax(group.sharing, cluster->ranks_per_node / cards_of(cluster, node));
            nodes++;
        }
        if (here > group.near)
            group.near = here;
    }
    if (nodes > 1)
        group.stride =
            (ranks[size - 1] / cluster->ranks_per_node - ranks[0] / cluster->ranks_per_node) /
            (nodes - 1);
    return group;
}

static int near_of(const weft_group *group)
{
    return group->near < 1 ? 1 : group->near < group->size ? group->near : group->size;
}

/* The factor by which switches narrow the cards' bandwidth: level l carries what leaves a switch of
 * level l - 1. */
static double oversubscription_of(weft_costing *p, const weft_group *group, bool all_to_all)
{
    const weft_cluster *c = p->cluster;
    const int near = near_of(group), nodes = (group->size + near - 1) / near;
    const int stride = group->stride > 1 ? group->stride : 1;
    double most = 1;
    for (int l = 0; l < c->num_levels; l++) {
        const int below = l > 0 ? c->levels[l - 1].nodes / stride : 1;
        const int together = below < 1 ? 1 : below < nodes ? below : nodes;
        if (l > 0 && together == nodes)
            break;
        const double crossing = all_to_all
                                    ? (double)(group->size - together * near) / (group->size - near)
                                    : 1.0 / together;
        weft_costing_note(p, WEFT_INPUT_LEVELS);
        most = fmax(most, c->levels[l].oversubscription * crossing);
    }
    return most;
}

/* --- legs ---------------------------------------------------------------------------------- */

/* A collective among `ranks` over one link. */
typedef struct leg {
    weft_link link;
    weft_collective collective;
    int ranks;
    double volume;  /* the buffer's bytes; 0: only `sent` is known */
    double sent;    /* bytes that a rank sends */
    double sharing; /* a rank has 1 / sharing of the link's bandwidth */
    bool direct;
} leg;

/* The share of a buffer that a rank sends in rings. */
static double sent_share(weft_collective collective, int ranks)
{
    if (collective == WEFT_COLLECTIVE_MESSAGE)
        return 1;
    return (collective == WEFT_COLLECTIVE_ALL_REDUCE ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

/* How many latencies follow each other; an all-reduce has a tree's. */
static double steps_of(weft_collective collective, int ranks, bool direct)
{
    switch (collective) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return direct ? 2 : 2 * ceil(log2(ranks));
    case WEFT_COLLECTIVE_ALL_GATHER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return direct ? 1 : ranks - 1;
    default:
        return 1;
    }
}

static const struct curve {
    weft_cost_kind kinds[WEFT_NUM_LINKS]; /* inside, between */
    bool by_sent;                         /* the volume is what a rank sends */
} curves[WEFT_NUM_COLLECTIVES] = {
    [WEFT_COLLECTIVE_ALL_REDUCE] = {{WEFT_COST_ALL_REDUCE, WEFT_COST_ALL_REDUCE_BETWEEN}, false},
    [WEFT_COLLECTIVE_ALL_GATHER] = {{WEFT_COST_ALL_GATHER, WEFT_COST_ALL_GATHER_BETWEEN}, false},
    [WEFT_COLLECTIVE_REDUCE_SCATTER] = {{WEFT_COST_REDUCE_SCATTER,
                                         WEFT_COST_REDUCE_SCATTER_BETWEEN},
                                        false},
    [WEFT_COLLECTIVE_ALL_TO_ALL] = {{WEFT_COST_ALL_TO_ALL_INSIDE, WEFT_COST_ALL_TO_ALL}, true},
    [WEFT_COLLECTIVE_MESSAGE] = {{WEFT_COST_MESSAGE_INSIDE, WEFT_COST_MESSAGE}, true},
};

/* The measured collective that is most like this one. WEFT_NUM_COLLECTIVES: none was measured. */
static weft_collective measured_kin(weft_costing *p, weft_collective collective, weft_link link)
{
    static const weft_collective kin[WEFT_NUM_COLLECTIVES] = {
        WEFT_COLLECTIVE_REDUCE_SCATTER, WEFT_COLLECTIVE_ALL_GATHER, WEFT_COLLECTIVE_ALL_REDUCE,
        WEFT_COLLECTIVE_ALL_TO_ALL, WEFT_COLLECTIVE_MESSAGE};
    if (weft_costing_knows(p, curves[collective].kinds[link]))
        return collective;
    for (int i = 0; i < WEFT_NUM_COLLECTIVES; i++)
        if (weft_costing_knows(p, curves[kin[i]].kinds[link]))
            return kin[i];
    return WEFT_NUM_COLLECTIVES;
}

/* The time by a measured curve. All ranks measured it at once: the same bytes on a rank's share of
 * the link take as long here, and each latency that follows another counts. */
static double curve_us(weft_costing *p, const leg *x, weft_collective kin)
{
    const weft_cluster *c = p->cluster;
    const weft_cost_kind kind = curves[kin].kinds[x->link];
    const bool inside = x->link == WEFT_LINK_INSIDE;
    int ranks = inside ? c->ranks_per_node : c->num_nodes;
    if (kin == WEFT_COLLECTIVE_MESSAGE || ranks < 2)
        ranks = 2;
    weft_group own = {ranks, 1, 1, 1, false};
    double sharing = 1;
    if (!inside) {
        const double cards = weft_costing_figure_or(p, WEFT_FIGURE_CARDS, 1);
        sharing =
            fmax(c->ranks_per_node / cards, 1) * oversubscription_of(p, &own, curves[kin].by_sent);
    }
    const double volume = curves[kin].by_sent ? x->sent : x->volume;
    if (kin == x->collective && x->sharing == sharing && volume > 0 &&
        (x->ranks == ranks || kin == WEFT_COLLECTIVE_MESSAGE))
        return weft_costing_curve(p, kind, volume, false);
    const double same = x->sent * x->sharing / sharing;
    const double latency_us = c->costs[kind].curve.time_us[0];
    const double repeats =
        steps_of(x->collective, x->ranks, x->direct) / steps_of(kin, ranks, x->direct);
    const double asked = curves[kin].by_sent ? same : same / sent_share(kin, ranks);
    return fmax(weft_costing_curve(p, kind, asked, true) + (repeats - 1) * latency_us, 0);
}

static double figures_us(weft_costing *p, const leg *x, double *out_wire_us)
{
    const bool inside = x->link == WEFT_LINK_INSIDE;
    const double latency_us =
        weft_costing_figure(p, inside ? WEFT_FIGURE_INSIDE_LATENCY : WEFT_FIGURE_BETWEEN_LATENCY);
    const double rate =
        weft_costing_figure(p,
                            inside ? WEFT_FIGURE_INSIDE_BANDWIDTH : WEFT_FIGURE_BETWEEN_BANDWIDTH) *
        weft_costing_share(p, inside ? WEFT_EFFICIENCY_INSIDE : WEFT_EFFICIENCY_BETWEEN, x->sent) *
        1e-6;
    const double wire_us = x->sent * x->sharing / rate;
    double us = steps_of(x->collective, x->ranks, x->direct) * latency_us + wire_us;
    *out_wire_us = wire_us;
    if (x->collective == WEFT_COLLECTIVE_ALL_REDUCE && !x->direct) {
        const double tree_us = us + wire_us / (x->ranks - 1); /* a tree sends the buffer twice */
        us = fmin(2.0 * (x->ranks - 1) * latency_us + wire_us, tree_us);
    }
    return us;
}

/* Microseconds of a leg; its load goes to the estimate. */
static double leg_us(weft_costing *p, const leg *x)
{
    if (!(x->sent > 0) || x->ranks < 2)
        return 0;
    const weft_collective kin = measured_kin(p, x->collective, x->link);
    double us, wire_us;
    if (kin < WEFT_NUM_COLLECTIVES) {
        us = curve_us(p, x, kin);
        wire_us = fmax(us - p->cluster->costs[curves[kin].kinds[x->link]].curve.time_us[0], 0);
    } else {
        us = figures_us(p, x, &wire_us);
    }
    p->estimate.links[x->link].bytes += x->sent;
    p->estimate.links[x->link].us += wire_us;
    return us;
}

/* A leg of rings among `ranks`, of a buffer of `volume`. */
static double ring_us(weft_costing *p, const weft_group *group, weft_link link,
                      weft_collective collective, int ranks, double volume)
{
    weft_group between = *group;
    between.size = ranks;
    between.near = 1;
    const leg x = {.link = link,
                   .collective = collective,
                   .ranks = ranks,
                   .volume = volume,
                   .sent = volume * sent_share(collective, ranks),
                   .sharing =
                       link == WEFT_LINK_INSIDE
                           ? 1
                           : fmax(group->sharing, 1) *
                                 oversubscription_of(p, &between, curves[collective].by_sent),
                   .direct = group->direct};
    return leg_us(p, &x);
}

/* Every rank sends to every other one, inside and between nodes at once. Inside a node these are
 * messages, as in an all-to-all, not the faster collectives of a node's own ranks. */
static double direct_us(weft_costing *p, const weft_group *group, weft_collective collective,
                        double bytes)
{
    const int near = near_of(group), size = group->size;
    const double times = collective == WEFT_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    const leg inside = {.link = WEFT_LINK_INSIDE,
                        .collective = WEFT_COLLECTIVE_ALL_TO_ALL,
                        .ranks = near,
                        .sent = times * bytes * (near - 1) / size,
                        .sharing = 1,
                        .direct = true};
    const leg between = {.link = WEFT_LINK_BETWEEN,
                         .collective = collective,
                         .ranks = size - near + 1,
                         .sent = times * bytes * (size - near) / size,
                         .sharing = fmax(group->sharing, 1) * oversubscription_of(p, group, true),
                         .direct = true};
    return fmax(leg_us(p, &inside), leg_us(p, &between));
}

void weft_price_collective(weft_costing *p, const weft_group *group, weft_collective collective,
                           double bytes)
{
    const int size = group->size, near = near_of(group), nodes = (size + near - 1) / near;
    double *us = &p->estimate.us;
    if (size < 2 || !(bytes > 0))
        return;
    if (collective == WEFT_COLLECTIVE_MESSAGE)
        p->estimate.buffered =
            bytes <= weft_costing_figure_or(
                         p, near == size ? WEFT_FIGURE_INSIDE_EAGER : WEFT_FIGURE_BETWEEN_EAGER, 0);
    if (near == size) {
        *us += ring_us(p, group, WEFT_LINK_INSIDE, collective, size, bytes);
    } else if (near == 1 || collective == WEFT_COLLECTIVE_MESSAGE) {
        *us += ring_us(p, group, WEFT_LINK_BETWEEN, collective, size, bytes);
    } else if (group->direct || collective == WEFT_COLLECTIVE_ALL_TO_ALL) {
        *us += direct_us(p, group, collective, bytes);
    } else {
        const bool reduces = collective == WEFT_COLLECTIVE_ALL_REDUCE;
        if (reduces || collective == WEFT_COLLECTIVE_REDUCE_SCATTER)
            *us += ring_us(p, group, WEFT_LINK_INSIDE, WEFT_COLLECTIVE_REDUCE_SCATTER, near, bytes);
        *us += ring_us(p, group, WEFT_LINK_BETWEEN, collective, nodes, bytes / near);
        if (reduces || collective == WEFT_COLLECTIVE_ALL_GATHER)
            *us += ring_us(p, group, WEFT_LINK_INSIDE, WEFT_COLLECTIVE_ALL_GATHER, near, bytes);
    }
}

void weft_price_small_sum(weft_costing *p, int ranks, double bytes)
{
    const int each = p->cluster->ranks_per_node, nodes = (ranks + each - 1) / each;
    leg message = {.link = WEFT_LINK_INSIDE,
                   .collective = WEFT_COLLECTIVE_MESSAGE,
                   .ranks = 2,
                   .sent = bytes,
                   .sharing = 1};
    if (ranks > 1 && each > 1)
        p->estimate.us += 2 * leg_us(p, &message);
    message.link = WEFT_LINK_BETWEEN;
    if (nodes > 1)
        p->estimate.us += 2 * ceil(log2(nodes)) * leg_us(p, &message);
}
