/* Cost: the time of operations on a cluster. Pure; needs no communicator and no device.
 *
 * An estimate comes, best first, from a curve at the shape at which it was measured, from that
 * curve scaled to another shape by the equations below, or from these equations with the figures of
 * core/cluster/cluster.h. It carries its source class (weft_source_class) and the spread of its
 * numbers.
 *
 * Products. [m, k] x [k, n] is cut into ceil(m / tile_m) ceil(n / tile_n) tiles, of which a GPU
 * computes device.multiprocessors at once, a wave (NVIDIA, "Matrix Multiplication Background User's
 * Guide": tile and wave quantization):
 *     launch + waves (wave_us + 2 tile_m tile_n k multiprocessors / (peak efficiency)
 *                     + what the wave's tiles take to be stored, by bytes)
 * and not less than its operands take from memory. wave_us and the stores do not depend on k. Tiles
 * are tall, wide or square, and the fastest counts; sides are halved, down to 64, where a product
 * is narrower and while tiles are fewer than multiprocessors. Without multiprocessors (a CPU):
 *     launch + 2mnk / (peak efficiency)
 * A measured curve replaces this at its own shape, m rows times one matrix of width x width;
 * elsewhere the ratio of waves of tile_m x tile_n scales it, on a CPU FLOPs do. A row of `products`
 * replaces both at its own shape and is scaled likewise where one of m, n, k differs, up to 4
 * times. A row of `operations` replaces what follows, for the same module, phase and type; its
 * volume scales it up to 4 times.
 *
 * Products of many matrices in one launch (experts') have m / groups rows each on average. Rows
 * differ, so a group's last tile is half full: m / groups / tile_m + 1/2 tiles.
 *
 * Attention, one kernel each way: launch + FLOPs / (peak efficiency), by the keys that a query sees
 * and the channels of a head.
 *
 * Kernels that memory bounds: launches + bytes / (memory_bandwidth efficiency).
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
#ifndef WEFT_SCHEDULE_COST_COST_H
#define WEFT_SCHEDULE_COST_COST_H

#include <weft/operation.h>

#include "core/cluster/cluster.h"

/* Where the ranks of a group lie. A group of one rank costs nothing. */
typedef struct weft_group {
    int size;       /* ranks */
    int near;       /* ranks of the group on each of its nodes, 1 .. size */
    int stride;     /* distance, in nodes, from one node of the group to the next */
    double sharing; /* ranks, of this group and others, that send through one card at once: a node's
                       ranks over its cards where all ranks do the same; at least 1 */
    bool direct;    /* every rank sends to every other one, not in rings node by node */
} weft_group;
/* The group of ranks[0 .. size - 1], which rise; ranks are numbered node by node, and all ranks of
 * a node do the same at once. Nodes may differ: the most ranks of the group on a node count, and
 * the fewest cards. */
weft_group weft_group_of(const weft_cluster *cluster, const int *ranks, int size, bool direct);

/* The numbers of a cluster's file that a price used: a bit for each figure, efficiency and cost,
 * then for the rest. */
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
    uint64_t scaled; /* those of `used` that were also scaled from another shape */
} weft_inputs;
/* An input's path, for weft_cluster_source: "device.peak.bf16", "costs.message". Static. */
const char *weft_input_path(int input);

/* Where operations run, with a group an axis. On nodes of several kinds the slowest node and the
 * narrowest link decide: ranks wait for each other. */
typedef struct weft_site {
    const weft_cluster *cluster; /* borrowed */
    const weft_cluster *experts; /* for experts with a pace of their own; NULL: as cluster */
    const weft_cluster *curves;  /* `cluster` with all its curves (weft_cost_complete); NULL:
                                    completed when needed */
    uint32_t kinds;              /* bits 1 << weft_cluster_hardware's group; 0: nodes are alike */
    weft_group groups[WEFT_NUM_AXES]; /* by weft_axis */
    /* The CP group's neighbours that exchange heads by an all-to-all, and its ranks that pass keys
     * in a ring. Size 0: the whole CP group. */
    weft_group heads, ring;
    int exchange, exchange_chunks; /* how tensor-sharded experts exchange rows, a
                                      weft_exchange_form; chunks 0: 1 */
    int software;                  /* whose operations (launcher/planning/software.h); 0: Weft's */
    double exchanged;              /* the share of experts' rows that it sends; 0: all */
    bool clamps;                   /* the model bounds its gates */
    weft_inputs *inputs;           /* out: the numbers that prices used; NULL: not wanted */
    bool unsourced;                /* estimates lack source and spread, which are slow to look up */
} weft_site;

/* Inside a node, between nodes, and between a device and its host. */
typedef enum weft_link {
    WEFT_LINK_INSIDE,
    WEFT_LINK_BETWEEN,
    WEFT_LINK_HOST,
    WEFT_NUM_LINKS
} weft_link;

/* An operation's load on a link: the bytes that a rank sends, and their time on the rank's share of
 * an otherwise idle link. */
typedef struct weft_link_load {
    double bytes, us;
} weft_link_load;

typedef struct weft_estimate {
    double us;
    double memory_us;         /* the part of it in which the device's memory is the bottleneck */
    weft_source_class source; /* the worst class among its numbers */
    double spread;            /* the largest spread among its numbers */
    weft_link_load links[WEFT_NUM_LINKS];
    bool buffered; /* a message that leaves before its receiver is ready, on every kind of node */
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
 * measures: schedule/exchange/exchange.h and choose.h read curves. A cost that no figure implies
 * stays unknown. Such curves are no measurements, so callers complete a copy of the cluster. */
void weft_cost_complete(weft_cluster *cluster);

#endif
