/* Cost: what operations take on a cluster. Pure; no communicator, no device.
 *
 * Three kinds of numbers, best first: a curve that was measured, at the shape it was measured at;
 * the same curve scaled to another shape by the equations below; the equations with the figures of
 * core/hardware.h. An estimate says which it is (core/hardware.h: weft_source_class) and what
 * spread its numbers have.
 *
 * Products. [m, k] x [k, n] is cut into ceil(m / tile_m) ceil(n / tile_n) tiles, of which a GPU
 * computes device.multiprocessors at once, a wave (NVIDIA, "Matrix Multiplication Background User's
 * Guide": tile and wave quantization):
 *     launch + waves (wave_us + 2 tile_m tile_n k multiprocessors / (peak efficiency)
 *                     + what the wave's tiles take to be stored, by bytes)
 * and not less than its operands take from memory. wave_us and the stores do not depend on k: all
 * multiprocessors are in them at once. Tiles lie on their end or side or are square, the least time
 * counts; they are halved, to 64, where a product is narrower, and while there are fewer than
 * multiprocessors. Without multiprocessors (a CPU):
 *     launch + 2mnk / (peak efficiency)
 * A measured curve replaces this at its own shape, m rows times one matrix of width x width;
 * elsewhere the ratio of waves of tile_m x tile_n scales it, on a CPU FLOPs do. A row of `products`
 * replaces both at its shape, and is scaled so where one of m, n, k differs, up to 4 times. A row
 * of `operations` replaces what follows, for the same module, phase and type; its volume scales it
 * up to 4 times.
 *
 * What is bound by memory: launches + bytes / (memory_bandwidth efficiency).
 *
 * Collectives, n ranks, a buffer of V bytes, latency a, rate B:
 *     all-gather, reduce-scatter   (n - 1) a + (n - 1) / n V / B               ring
 *     all-reduce                   the less of 2 (n - 1) a + 2 (n - 1) / n V / B   ring
 *                                  and 2 ceil(log2 n) a + 2 V / B                  tree
 *     all-to-all                   a + (n - 1) / n V / B     all messages are under way together
 *     message                      a + V / B
 * (Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
 * 2005; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.) With q ranks on each
 * of N nodes collectives go node by node. An all-reduce is a reduce-scatter inside, an all-reduce
 * of V / q between ranks of one place, an all-gather inside; an all-gather goes between nodes
 * first, a reduce-scatter inside first. An all-to-all sends inside and between at once. In `direct`
 * groups, as Weft's are over MPI (docs/communication.md), every rank sends to every other one:
 * f (a + (n - 1) / n V / B), f = 2 for all-reduce, of which (n - q) / n V leaves the node.
 *
 * A message goes to another node unless its whole group is on one; up to the eager_bytes of inside
 * or between it is buffered. A sum of a few numbers over all ranks goes inside each node to its
 * first rank, between these along a binomial tree, and back: 2 messages inside, 2 ceil(log2 N)
 * between.
 *
 * Between nodes B is a card's bandwidth times its efficiency at the bytes that a rank sends,
 * divided among the ranks that share the card, and by the oversubscription of the network's worst
 * level. Level l carries what leaves the switches of level l - 1. The first level carries all that
 * leaves a node; a higher one carries 1 / (the group's nodes below a switch) of a ring, and of an
 * all-to-all what goes to ranks elsewhere. */
#ifndef WEFT_SCHEDULE_COST_H
#define WEFT_SCHEDULE_COST_H

#include <weft/operation.h>

#include "core/cluster.h"

/* Where the ranks of a group lie. A group of one rank costs nothing. */
typedef struct weft_group {
    int size;       /* ranks */
    int near;       /* of them on each of their nodes; 1 .. size */
    int stride;     /* nodes from one of its nodes to the next; 1: neighbours */
    double sharing; /* ranks that send through one card at once, its own and those of others: all
                       ranks of a node by its cards, where all do the same; 1 or more */
    bool direct;    /* every rank sends to every other one, not in rings node by node */
} weft_group;
/* The group of ranks[0 .. size - 1], which rise; ranks are numbered node by node, and all ranks of
 * a node do the same at once. Where nodes hold different numbers of the group's ranks, the largest
 * number counts; of cards, the smallest. */
weft_group weft_group_of(const weft_cluster *cluster, const int *ranks, int size, bool direct);

/* Which numbers of the file prices took: a bit each of figures, efficiencies and costs, then of the
 * rest. */
enum {
    WEFT_INPUT_EFFICIENCIES = WEFT_NUM_FIGURES,
    WEFT_INPUT_COSTS = WEFT_INPUT_EFFICIENCIES + WEFT_NUM_EFFICIENCIES,
    WEFT_INPUT_PRODUCTS = WEFT_INPUT_COSTS + WEFT_NUM_COSTS,
    WEFT_INPUT_OPERATIONS,
    WEFT_INPUT_LEVELS,
    WEFT_NUM_INPUTS
};
typedef struct weft_inputs {
    uint64_t used;   /* bit 1 << input */
    uint64_t scaled; /* of them: measured at another shape too */
} weft_inputs;
/* The path of its number, for weft_cluster_source: "device.peak.bf16", "costs.message". Static. */
const char *weft_input_path(int input);

/* Where operations run, with a group an axis. On nodes of several kinds an operation takes what it
 * takes on the slowest of them, with the narrowest of their links: their ranks wait for each other.
 */
typedef struct weft_site {
    const weft_cluster *cluster; /* borrowed */
    const weft_cluster *experts; /* where a pace is the experts' alone; NULL: as the cluster */
    const weft_cluster *curves;  /* with curves of all its links and copies (weft_cost_complete);
                                    NULL: made where they are needed */
    uint32_t kinds; /* of nodes: bits 1 << weft_cluster_hardware's group; 0: nodes are alike */
    weft_group groups[WEFT_NUM_AXES]; /* by weft_axis */
    /* Of the CP group: neighbours that deal heads among themselves by an all-to-all, and ranks that
     * hand on keys in a ring by messages. Size 0: as the group. */
    weft_group heads, ring;
    int exchange, exchange_chunks; /* how tensor-sharded experts exchange rows, a
                                      weft_exchange_form; chunks 0: 1 */
    weft_inputs *inputs;           /* gets what prices take; NULL: nobody asks */
    bool unsourced; /* estimates have neither source nor spread, which take long to look up */
} weft_site;

/* Inside a node, between nodes, and between a device and its host. */
typedef enum weft_link {
    WEFT_LINK_INSIDE,
    WEFT_LINK_BETWEEN,
    WEFT_LINK_HOST,
    WEFT_NUM_LINKS
} weft_link;

/* What an operation puts on a link: the bytes that a rank sends, and the time that they take on the
 * rank's share of the link while nothing else is there. */
typedef struct weft_link_load {
    double bytes, us;
} weft_link_load;

typedef struct weft_estimate {
    double us;
    double memory_us; /* of it: the device's memory reads and writes, and that takes longest */
    weft_source_class source; /* of the worst of its numbers */
    double spread;            /* the largest of its numbers' */
    weft_link_load links[WEFT_NUM_LINKS];
    bool buffered; /* a message that travels before its receiver asks, on all kinds of the nodes */
} weft_estimate;

/* Prices an operation `count` times, one after the other. WEFT_CONFIG names the module, and the key
 * of a figure that the cluster lacks. */
weft_status weft_operation_us(const weft_site *site, const weft_operation *operation,
                              weft_estimate *out) WEFT_CHECKED;
/* Prices one collective over a group; bytes as weft_operation has them. */
weft_status weft_collective_us(const weft_site *site, const weft_group *group,
                               weft_collective collective, double bytes,
                               weft_estimate *out) WEFT_CHECKED;
/* Prices a sum of a few numbers over all `ranks` of a mesh, which fill nodes. */
weft_status weft_small_sum_us(const weft_site *site, int ranks, double bytes,
                              weft_estimate *out) WEFT_CHECKED;
/* Prices one kernel, copy or transfer of a volume in the unit of its kind: anything but GEMMs and
 * collectives. Storage: one rank's, while all ranks of its node do the same. */
weft_status weft_work_us(const weft_site *site, weft_cost_kind kind, double volume,
                         weft_estimate *out) WEFT_CHECKED;

/* Adds the curves that the cluster lacks and its figures imply, at the shapes that calibration
 * measures: schedule/exchange.h and choose.h read curves. A cost that no figure implies stays
 * unknown. Such curves are no measurements, so callers complete a copy of the cluster. */
void weft_cost_complete(weft_cluster *cluster);

#endif
