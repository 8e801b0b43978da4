/* A cluster as numbers: what its nodes are made of (core/cluster/hardware.h), what each operation
 * costs by its volume, and how operations that run beside each other slow each other down. `weft
 * calibrate` measures it, or a user writes it. schedule/cost/cost.h prices operations by it.
 *
 * A cost is a curve volume -> time with its start-up latency (weft_curve). Costs of communication
 * hold while all ranks of a node do the same at once, as layers do: they share the links. Volumes
 * of communication are bytes: what one rank sends to others (all-to-all, point-to-point), or the
 * whole buffer that a rank ends up with (all-gather) or holds (all-reduce, reduce-scatter). Volumes
 * of copies are bytes, of kernels bound by memory bytes read and written, of GEMM and attention
 * FLOPs executed. Pure but for reading, writing and printing.
 *
 * The file is JSON: "name", "num_nodes", "ranks_per_node"; "costs", an object with a member
 * {"peak": volume a second, "points": [[volume, microseconds], ...]} for each of the texts below
 * (without a peak: the best rate of its points; without points: {"peak": ..., "latency_us": ...});
 * "products", single GEMMs by their shape; "operations", a model's other operations;
 * "interference", three rows of four; the sections of core/cluster/hardware.h; "groups" of nodes
 * that differ; "sources". Only the two counts are required. */
#ifndef WEFT_CORE_CLUSTER_CLUSTER_H
#define WEFT_CORE_CLUSTER_CLUSTER_H

#include <stdbool.h>
#include <stdio.h>

#include <weft/operation.h>
#include <weft/status.h>

#include "core/cluster/hardware.h"

/* What of a cluster an operation keeps busy. */
typedef enum weft_cost_part {
    WEFT_PART_BETWEEN,  /* links between nodes */
    WEFT_PART_INSIDE,   /* and inside them */
    WEFT_PART_PRODUCTS, /* the device's arithmetic; volumes are FLOPs */
    WEFT_PART_MEMORY,   /* its memory */
    WEFT_PART_HOST,     /* the host's memory, and the link to it */
    WEFT_PART_STORAGE,
    WEFT_PART_DIRECT, /* storage past the page cache */
} weft_cost_part;

/* name, part, text, help */
#define WEFT_COST_LIST(X)                                                                          \
    X(ALL_TO_ALL, BETWEEN, "all_to_all", "all-to-all between nodes")                               \
    X(ALL_TO_ALL_INSIDE, INSIDE, "all_to_all_inside", "all-to-all inside a node")                  \
    X(ALL_GATHER, INSIDE, "all_gather", "all-gather inside a node")                                \
    X(ALL_REDUCE, INSIDE, "all_reduce", "all-reduce inside a node")                                \
    X(ALL_REDUCE_BETWEEN, BETWEEN, "all_reduce_between", "all-reduce between nodes")               \
    X(MESSAGE, BETWEEN, "message", "point-to-point between nodes")                                 \
    X(MESSAGE_INSIDE, INSIDE, "message_inside", "point-to-point inside a node")                    \
    X(COPY, MEMORY, "copy", "copy on the device")                                                  \
    X(TO_HOST, HOST, "to_host", "copy from the device to the host")                                \
    X(TO_DEVICE, HOST, "to_device", "copy from the host to the device")                            \
    X(GEMM_FP32, PRODUCTS, "gemm_fp32", "GEMM in fp32")                                            \
    X(GEMM_BF16, PRODUCTS, "gemm_bf16", "GEMM in bf16")                                            \
    X(ALL_GATHER_BETWEEN, BETWEEN, "all_gather_between", "all-gather between nodes")               \
    X(REDUCE_SCATTER, INSIDE, "reduce_scatter", "reduce-scatter inside a node")                    \
    X(REDUCE_SCATTER_BETWEEN, BETWEEN, "reduce_scatter_between", "reduce-scatter between nodes")   \
    X(ATTENTION_FP32, PRODUCTS, "attention_fp32", "attention in fp32")                             \
    X(ATTENTION_BF16, PRODUCTS, "attention_bf16", "attention in bf16")                             \
    X(MEMORY, MEMORY, "memory", "norms and whatever else is bound by memory")                      \
    X(ADAMW, MEMORY, "adamw", "AdamW")                                                             \
    X(STORAGE_WRITE, STORAGE, "storage_write", "writing to storage")                               \
    X(STORAGE_READ, STORAGE, "storage_read", "reading from storage")                               \
    X(ADAMW_HOST, HOST, "adamw_host", "AdamW on host memory")                                      \
    X(DIRECT_WRITE, DIRECT, "direct_write", "writing to storage past the page cache")              \
    X(DIRECT_READ, DIRECT, "direct_read", "reading from storage past the page cache")

typedef enum weft_cost_kind {
#define WEFT_COST_ENUM(name, part, text, help) WEFT_COST_##name,
    WEFT_COST_LIST(WEFT_COST_ENUM)
#undef WEFT_COST_ENUM
        WEFT_NUM_COSTS
} weft_cost_kind;
weft_cost_part weft_cost_part_of(weft_cost_kind kind);
const char *weft_cost_text(weft_cost_kind kind);
const char *weft_cost_unit(weft_cost_kind kind); /* of volumes: "bytes", "FLOPs" */
const char *weft_cost_help(weft_cost_kind kind);

typedef struct weft_cost {
    weft_curve curve; /* num_points 0: not known */
    double peak;      /* volume a second: the link's or device's own rate; the r of MoNTA's
                         equations is volume / time / peak */
    int width;        /* GEMM: k and n of the products that were measured; 0: not known */
} weft_cost;

/* What runs beside what (MPMoE §II-C). */
typedef enum weft_work_class {
    WEFT_WORK_COMP, /* computation */
    WEFT_WORK_COMM, /* communication */
    WEFT_WORK_MEM,  /* copies between device and host */
    WEFT_NUM_WORK_CLASSES,
    WEFT_WORK_ALL = WEFT_NUM_WORK_CLASSES, /* the other two at once */
} weft_work_class;
const char *weft_work_class_text(int class_); /* "comp", "comm", "mem", "all" */

/* alpha[y][x]: the speed of y beside x, as a share of y's speed alone; 1 where y == x. */
typedef struct weft_interference {
    double alpha[WEFT_NUM_WORK_CLASSES][WEFT_NUM_WORK_CLASSES + 1];
} weft_interference;
weft_interference weft_interference_none(void); /* all 1 */
/* The same where work of a class takes the time of an emulated accelerator: it slows nothing and
 * nothing slows it. */
weft_interference weft_interference_paced(const weft_interference *interference,
                                          weft_work_class class_);
/* The least alpha that a sound measurement gives: two classes that share everything get a half
 * each, three a third, and an unfair scheduler may halve that. Below it the class stood still while
 * others ran: the span was too short, or the ranks too many for the cores. */
double weft_interference_least(int beside);
/* Finds the first alpha below that; false: there is none. */
bool weft_interference_fault(const weft_interference *interference, int *out_y, int *out_x);

/* The least and the highest rate, volume a second, that any hardware has. A file with a rate beyond
 * them has the wrong unit. */
void weft_cost_bounds(weft_cost_kind kind, double *out_least, double *out_most);

/* A GEMM measured at its own shape, [m, k] x [k, n]. kind: GEMM_FP32 or GEMM_BF16. */
typedef struct weft_product {
    weft_cost_kind kind;
    double m, n, k, us;
} weft_product;
enum { WEFT_MAX_PRODUCTS = 128 };

const char *weft_phase_text(int phase); /* of WEFT_PHASE_LIST; static */

/* A layer's operation (weft_operation) measured at its own volume. Volume and time are of one of
 * its `count`: bytes of a kernel bound by memory, FLOPs of attention's products. */
typedef struct weft_timed_operation {
    char module[48];
    weft_phase phase;
    weft_dtype dtype; /* of activations */
    double volume, us;
} weft_timed_operation;
enum { WEFT_MAX_TIMED_OPERATIONS = 128 };

/* Nodes that differ from the others. Their own figures replace the cluster's; the cluster's hold
 * for the rest. Costs measured of a device or link do not hold for nodes with one of their own. */
typedef struct weft_node_group {
    int num_nodes;
    weft_hardware hardware;    /* the cluster's and its own together */
    uint32_t own_figures;      /* bit 1 << weft_figure */
    uint32_t own_efficiencies; /* bit 1 << weft_efficiency_kind */
    bool own_name;
} weft_node_group;

typedef struct weft_cluster {
    char name[64];
    int num_nodes, ranks_per_node;
    weft_cost costs[WEFT_NUM_COSTS];
    weft_interference interference;
    int num_products;
    weft_product products[WEFT_MAX_PRODUCTS];
    int num_operations;
    weft_timed_operation operations[WEFT_MAX_TIMED_OPERATIONS];
    weft_hardware hardware;
    char currency[16]; /* of node.price_per_hour: "EUR"; "": nobody says */
    int num_levels;    /* of the network, nearest first */
    weft_network_level levels[WEFT_MAX_LEVELS];
    int num_groups; /* 0: all nodes are alike; else the groups are all nodes, in this order */
    weft_node_group groups[WEFT_MAX_NODE_GROUPS];
    int num_sources;
    weft_source sources[WEFT_MAX_SOURCES];
} weft_cluster;

/* Microseconds of one operation; 0 for a volume of 0 or less. An unknown cost gives 0 too: the
 * caller asks weft_cluster_knows first. */
double weft_cluster_us(const weft_cluster *cluster, weft_cost_kind kind, double volume);
bool weft_cluster_knows(const weft_cluster *cluster, weft_cost_kind kind);
/* Microseconds of an all-to-all in a group of `ranks`, `near` of them on each node. `bytes`: all of
 * a rank's blocks, its own too. What leaves the node and what stays inside travel at once; the
 * slower counts. lacks: a cost that this takes and the cluster does not know, else WEFT_NUM_COSTS.
 */
double weft_cluster_exchange_us(const weft_cluster *cluster, double bytes, int ranks, int near);
weft_cost_kind weft_cluster_lacks_exchange(const weft_cluster *cluster, int ranks, int near);
/* The share of the peak that an operation of this volume reaches: r of MoNTA's eq. 8-11, in (0, 1].
 * 1 where cost or peak is unknown. */
double weft_cluster_efficiency(const weft_cluster *cluster, weft_cost_kind kind, double volume);

/* Replaces the devices by emulated accelerators (core/device/device.h): products and attention run
 * at `flops` FLOP/s, whatever their shape and type, and computation and other work do not slow each
 * other down. All else keeps its time. */
void weft_cluster_set_pace(weft_cluster *cluster, double flops);
/* The same of their links to host memory: copies run at `bytes` a second each way, and copies and
 * other work do not slow each other down. */
void weft_cluster_set_link_pace(weft_cluster *cluster, double bytes);

/* The hardware of a group of nodes, or of all (group -1, or no groups). Borrowed. */
const weft_hardware *weft_cluster_hardware(const weft_cluster *cluster, int group);
/* The group that a node is in; -1 where all are alike. */
int weft_cluster_group_of(const weft_cluster *cluster, int node);
/* Where the number at a path ("device.peak.bf16", "costs.message", "products") comes from: the
 * source with the longest key that covers the path, first among the group's own keys
 * ("groups[0].device"). NULL: the file does not say; then costs and products count as measured, the
 * rest as assumed. Borrowed. */
const weft_source *weft_cluster_source(const weft_cluster *cluster, int group, const char *path);

/* Errors: WEFT_FILE; WEFT_CONFIG with file, line and column, the key's path and the nearest right
 * key: unknown and duplicate keys, volumes that do not rise, times that are not positive,
 * impossible rates, figures, efficiencies and interference, sources of numbers that the file does
 * not have. */
weft_status weft_cluster_read(const char *path, weft_cluster *out) WEFT_CHECKED;
/* Writes PATH.partial and renames it into place. Errors: WEFT_CONFIG (a cluster that
 * weft_cluster_read would refuse), WEFT_FILE, WEFT_MEMORY. */
weft_status weft_cluster_write(const weft_cluster *cluster, const char *path) WEFT_CHECKED;
/* The same text to a stream. */
weft_status weft_cluster_print(const weft_cluster *cluster, FILE *out) WEFT_CHECKED;
struct weft_json_out;
void weft_cluster_write_json(const weft_cluster *cluster, const char *key,
                             struct weft_json_out *out);

/* A cluster at either end of its numbers: what each is at best and at worst, by its spread. Pure.
 *
 * A number of the file lies within its spread s: between value / (1 + s) and value (1 + s). The
 * spread is the source's; where that is silent, the class': of what was measured 5 %, of a data
 * sheet's 5 %, of what was assumed 20 %. What was measured has 5 % at the least, whatever one
 * calibration saw: steps of one config on one machine differ by as much from hour to hour
 * (bench/results/2026-11-22-plans.md). Sizes and counts (memory, cards, tiles, eager bytes) and
 * interference have no spread. */

typedef enum weft_cluster_end {
    WEFT_CLUSTER_SLOW, /* rates at their least, times at their longest */
    WEFT_CLUSTER_FAST,
    WEFT_NUM_CLUSTER_ENDS
} weft_cluster_end;

/* The class of the number at a path, as weft_cluster_source has paths and groups: where no source
 * covers it, measured for costs, products and operations, else assumed. */
weft_source_class weft_cluster_class(const weft_cluster *cluster, int group, const char *path);
/* Its spread, as above; 0 of sizes, counts and what no time follows from. */
double weft_cluster_spread(const weft_cluster *cluster, int group, const char *path);
/* The cluster with all numbers at one end. Efficiencies end at 1, oversubscription at 1. */
void weft_cluster_at_end(const weft_cluster *cluster, weft_cluster_end end, weft_cluster *out);

/* A cluster of which one part is better: what a plan would gain by it. Pure. */

#define WEFT_PART_BIT(part) (1u << WEFT_PART_##part)
/* name, whose measured costs are better (bits 1 << weft_cost_part), text, what it is */
#define WEFT_BETTER_LIST(X)                                                                        \
    X(BETWEEN, WEFT_PART_BIT(BETWEEN), "between_x2", "links between nodes x2")                     \
    X(INSIDE, WEFT_PART_BIT(INSIDE), "inside_x2", "links inside nodes x2")                         \
    X(MEMORY, 0, "memory_x2", "memory x2")                                                         \
    X(RATE, WEFT_PART_BIT(PRODUCTS), "rate_x2", "products and attention x2")                       \
    X(LATENCY, WEFT_PART_BIT(INSIDE) | WEFT_PART_BIT(BETWEEN), "latency_half", "half the latency") \
    X(NETWORK, WEFT_PART_BIT(INSIDE) | WEFT_PART_BIT(BETWEEN), "free_network", "a free network")
typedef enum weft_better {
#define WEFT_BETTER_ENUM(name, parts, text, help) WEFT_BETTER_##name,
    WEFT_BETTER_LIST(WEFT_BETTER_ENUM)
#undef WEFT_BETTER_ENUM
        WEFT_NUM_BETTERS
} weft_better;
const char *weft_better_text(int better);
const char *weft_better_help(int better);

/* Changes figures and measured curves alike. A curve's first time is its start-up: a
 * faster rate halves the rest of each time, a lower latency the start-up. A network that
 * takes no time takes 10^-12 of it, and leaves copies to and from the host as they are. */
void weft_cluster_better(const weft_cluster *cluster, weft_better better, weft_cluster *out);

/* Errors about a figure that a cluster's file does not give and a plan takes. No other config would
 * do without it for certain, so who looks at many passes such an error on where another refusal is
 * one candidate less. The mark is the record's key: "cluster", which is no key of a config. */

/* Marks this thread's record; returns `status`. */
weft_status weft_lack_mark(weft_status status);
bool weft_lack_is(const weft_error *error);
/* Puts the file's path before the text of a marked record, once. Returns `status`. */
weft_status weft_lack_name_file(weft_status status, const char *path);

#endif
