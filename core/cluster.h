/* A cluster as numbers: what its nodes are made of (core/hardware.h), what each operation costs by
 * its volume, and how operations that run beside each other slow each other down. `weft calibrate`
 * measures it, or a user writes it. schedule/cost.h prices operations by it.
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
 * "interference", three rows of four; the sections of core/hardware.h; "groups" of nodes that
 * differ; "sources". Only the two counts are required. */
#ifndef WEFT_CORE_CLUSTER_H
#define WEFT_CORE_CLUSTER_H

#include <stdbool.h>
#include <stdio.h>

#include <weft/operation.h>
#include <weft/status.h>

#include "core/hardware.h"

/* name, text, unit of volume, help */
#define WEFT_COST_LIST(X)                                                                          \
    X(ALL_TO_ALL, "all_to_all", "bytes", "all-to-all between nodes")                               \
    X(ALL_TO_ALL_INSIDE, "all_to_all_inside", "bytes", "all-to-all inside a node")                 \
    X(ALL_GATHER, "all_gather", "bytes", "all-gather inside a node")                               \
    X(ALL_REDUCE, "all_reduce", "bytes", "all-reduce inside a node")                               \
    X(ALL_REDUCE_BETWEEN, "all_reduce_between", "bytes", "all-reduce between nodes")               \
    X(MESSAGE, "message", "bytes", "point-to-point between nodes")                                 \
    X(MESSAGE_INSIDE, "message_inside", "bytes", "point-to-point inside a node")                   \
    X(COPY, "copy", "bytes", "copy on the device")                                                 \
    X(TO_HOST, "to_host", "bytes", "copy from the device to the host")                             \
    X(TO_DEVICE, "to_device", "bytes", "copy from the host to the device")                         \
    X(GEMM_FP32, "gemm_fp32", "FLOPs", "GEMM in fp32")                                             \
    X(GEMM_BF16, "gemm_bf16", "FLOPs", "GEMM in bf16")                                             \
    X(ALL_GATHER_BETWEEN, "all_gather_between", "bytes", "all-gather between nodes")               \
    X(REDUCE_SCATTER, "reduce_scatter", "bytes", "reduce-scatter inside a node")                   \
    X(REDUCE_SCATTER_BETWEEN, "reduce_scatter_between", "bytes", "reduce-scatter between nodes")   \
    X(ATTENTION_FP32, "attention_fp32", "FLOPs", "attention in fp32")                              \
    X(ATTENTION_BF16, "attention_bf16", "FLOPs", "attention in bf16")                              \
    X(MEMORY, "memory", "bytes", "norms and whatever else is bound by memory")                     \
    X(ADAMW, "adamw", "bytes", "AdamW")                                                            \
    X(STORAGE_WRITE, "storage_write", "bytes", "writing to storage")                               \
    X(STORAGE_READ, "storage_read", "bytes", "reading from storage")                               \
    X(ADAMW_HOST, "adamw_host", "bytes", "AdamW on host memory")                                   \
    X(DIRECT_WRITE, "direct_write", "bytes", "writing to storage past the page cache")             \
    X(DIRECT_READ, "direct_read", "bytes", "reading from storage past the page cache")

typedef enum weft_cost_kind {
#define WEFT_COST_ENUM(name, text, unit, help) WEFT_COST_##name,
    WEFT_COST_LIST(WEFT_COST_ENUM)
#undef WEFT_COST_ENUM
        WEFT_NUM_COSTS
} weft_cost_kind;
const char *weft_cost_text(weft_cost_kind kind);
const char *weft_cost_unit(weft_cost_kind kind);
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

/* Replaces the devices by emulated accelerators (core/pace.h): products and attention run at
 * `flops` FLOP/s, whatever their shape and type, and computation and other work do not slow each
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

#endif
