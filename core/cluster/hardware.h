/* Nodes as figures: what a data sheet says of a device, its node and the network, and the source of
 * each figure. Plain data; all of it optional.
 *
 * In a cluster's file (core/cluster/cluster.h) a figure stands at its path: "device.peak.bf16" is
 * the key "bf16" of the object "peak" of the object "device". Rates are per second and one way. The
 * share of a rate that an operation reaches is an efficiency, a curve of its volume in bytes or
 * FLOPs. */
#ifndef WEFT_CORE_CLUSTER_HARDWARE_H
#define WEFT_CORE_CLUSTER_HARDWARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Cost curves, piecewise-linear volume -> time with a start-up latency, and curves of the share of
 * a rate by volume. Plain data. */

enum { WEFT_CURVE_MAX_POINTS = 32 };

typedef struct weft_curve {
    int num_points;                       /* 0: everything is free */
    double volume[WEFT_CURVE_MAX_POINTS]; /* bytes or FLOPs, rising */
    double time_us[WEFT_CURVE_MAX_POINTS];
} weft_curve;

/* time = latency + volume / rate: the two-point curve. `rate` is volume per microsecond; a rate of
 * 0 or infinity leaves the latency alone. */
weft_curve weft_curve_linear(double latency_us, double rate_per_us);
/* Interpolates. Below the first point: its time. Beyond the last: the last slope, at least 0. */
double weft_curve_time_us(const weft_curve *curve, double volume);

enum { WEFT_SHARE_CURVE_MAX_POINTS = 16 };

/* The share of a rate, in (0, 1], that an operation reaches by its volume. Between two points the
 * time is interpolated, which reproduces a start-up latency exactly. volume / share must not fall,
 * or a larger operation would end sooner. */
typedef struct weft_share_curve {
    int num_points;                             /* 0: the share is 1 */
    double volume[WEFT_SHARE_CURVE_MAX_POINTS]; /* bytes or FLOPs, rising, above 0 */
    double share[WEFT_SHARE_CURVE_MAX_POINTS];
} weft_share_curve;

/* Below the first point: its share. Beyond the last: that one's. */
double weft_share_at(const weft_share_curve *curve, double volume);

/* name, path, unit, least and most possible, least and most usual today, help. A file with a figure
 * beyond the possible is refused; the usual tells which unit its writer meant. */
#define WEFT_FIGURE_LIST(X)                                                                        \
    X(MEMORY, "device.memory_bytes", "bytes", 1e8, 1e15, 4e9, 1e12, "a device's memory")           \
    X(RESERVED, "device.reserved_bytes", "bytes", 1e5, 1e15, 1e6, 1e11,                            \
      "of it what no run gets: driver, libraries, kernels")                                        \
    X(MEMORY_BANDWIDTH, "device.memory_bandwidth", "bytes/s", 1e8, 1e15, 1e10, 5e13,               \
      "bytes that the device's memory reads and writes")                                           \
    X(LAUNCH, "device.launch_us", "us", 1e-3, 1e3, 0.1, 100,                                       \
      "a kernel beside its work: its launch, start and end")                                       \
    X(MULTIPROCESSORS, "device.multiprocessors", "", 1, 1e5, 1, 1e3,                               \
      "of a GPU: how many tiles of a product are computed at once")                                \
    X(TILE_M, "device.tile_m", "", 1, 65536, 1, 1e3, "rows of such a tile (128)")                  \
    X(TILE_N, "device.tile_n", "", 1, 65536, 1, 1e3, "columns of such a tile (128)")               \
    X(WAVE, "device.wave_us", "us", 1e-3, 1e3, 0.1, 100,                                           \
      "a wave of tiles beside its products: first loads, last stores (0)")                         \
    X(PEAK_FP32, "device.peak.fp32", "FLOP/s", 1e6, 1e18, 1e12, 1e16,                              \
      "fp32 products, added in fp32 (not TF32)")                                                   \
    X(PEAK_BF16, "device.peak.bf16", "FLOP/s", 1e6, 1e18, 1e12, 1e16,                              \
      "bf16 products, added in fp32, without sparsity")                                            \
    X(PEAK_FP16, "device.peak.fp16", "FLOP/s", 1e6, 1e18, 1e12, 1e16,                              \
      "fp16 products, added in fp32, without sparsity")                                            \
    X(INSIDE_BANDWIDTH, "inside.bandwidth", "bytes/s", 1e6, 1e14, 1e9, 1e13,                       \
      "what a device sends to others of its node, one way")                                        \
    X(INSIDE_LATENCY, "inside.latency_us", "us", 1e-3, 1e3, 0.1, 100,                              \
      "from sending to receiving inside a node")                                                   \
    X(INSIDE_EAGER, "inside.eager_bytes", "bytes", 1, 1e12, 1, 1e12,                               \
      "the largest message inside a node that travels before its receiver asks (0)")               \
    X(CARDS, "between.cards", "", 1, 1e4, 1, 1e2, "network cards of a node")                       \
    X(BETWEEN_BANDWIDTH, "between.bandwidth", "bytes/s", 1e6, 1e14, 1e9, 1e12,                     \
      "what one card sends, one way")                                                              \
    X(BETWEEN_LATENCY, "between.latency_us", "us", 1e-3, 1e5, 0.1, 1e3,                            \
      "from sending to receiving between nodes")                                                   \
    X(BETWEEN_EAGER, "between.eager_bytes", "bytes", 1, 1e12, 1, 1e12,                             \
      "the largest message between nodes that travels before its receiver asks (0)")               \
    X(HOST_MEMORY, "host.memory_bytes", "bytes", 1e8, 1e16, 1e10, 1e14, "a node's own memory")     \
    X(HOST_LINK, "host.link_bandwidth", "bytes/s", 1e6, 1e14, 1e9, 1e12,                           \
      "between a device and its host, one way")                                                    \
    X(HOST_BANDWIDTH, "host.memory_bandwidth", "bytes/s", 1e8, 1e15, 1e10, 1e13,                   \
      "bytes that a node's own memory reads and writes")                                           \
    X(STORAGE_WRITE, "storage.write", "bytes/s", 1e5, 1e15, 1e7, 1e13,                             \
      "what a node writes to storage")                                                             \
    X(STORAGE_READ, "storage.read", "bytes/s", 1e5, 1e15, 1e7, 1e13,                               \
      "what a node reads from storage")                                                            \
    X(FAILURES, "node.hours_between_failures", "h", 1, 1e9, 100, 1e6,                              \
      "a node's mean time from one failure that ends a run to the next")                           \
    X(RESTART, "node.restart_s", "s", 1e-3, 1e6, 1, 1e4,                                           \
      "from such a failure until the run starts to read its checkpoint")                           \
    X(PRICE, "node.price_per_hour", "/h", 1e-3, 1e5, 0.1, 1e3, "what an hour of a node costs")     \
    X(WATTS, "node.watts", "W", 20, 1e6, 100, 1e5, "what a node draws while it trains")

typedef enum weft_figure {
#define WEFT_FIGURE_ENUM(name, path, unit, least, most, low, high, help) WEFT_FIGURE_##name,
    WEFT_FIGURE_LIST(WEFT_FIGURE_ENUM)
#undef WEFT_FIGURE_ENUM
        WEFT_NUM_FIGURES
} weft_figure;
/* "device.peak.bf16"; "FLOP/s" ("" for a count); a few words. Static. */
const char *weft_figure_path(weft_figure figure);
const char *weft_figure_unit(weft_figure figure);
const char *weft_figure_help(weft_figure figure);
/* Whether a value is possible: inside the bounds, and whole where it is a count. Times, RESERVED
 * and the EAGER figures may also be 0. *out_meant: the value that the writer meant if the unit is
 * wrong (312 FLOP/s: 312e12), or 0. */
bool weft_figure_is_plausible(weft_figure figure, double value, double *out_meant);

/* The share of a rate that an operation reaches by its volume: name, path, unit of volume, help.
 * Attention's volume is the keys that a query sees. Without a curve of its own backward goes at
 * forward's, and heads of up to 64 channels at those of 128; between 64 and 128 channels the share
 * is interpolated. */
#define WEFT_EFFICIENCY_LIST(X)                                                                    \
    X(GEMM, "device.efficiency.gemm", "FLOPs", "products, of the peak of their type")              \
    X(ATTENTION, "device.efficiency.attention", "keys",                                            \
      "attention forward, of the same peak, by the keys that a query sees")                        \
    X(ATTENTION_BACKWARD, "device.efficiency.attention_backward", "keys",                          \
      "attention backward (as forward)")                                                           \
    X(ATTENTION_64, "device.efficiency.attention_64", "keys",                                      \
      "attention forward of heads of up to 64 channels (as of 128)")                               \
    X(ATTENTION_64_BACKWARD, "device.efficiency.attention_64_backward", "keys",                    \
      "attention backward of such heads (as of 128)")                                              \
    X(MEMORY, "device.efficiency.memory", "bytes", "kernels bound by memory, of its bandwidth")    \
    X(INSIDE, "inside.efficiency", "bytes", "what a rank sends inside a node")                     \
    X(BETWEEN, "between.efficiency", "bytes", "what a rank sends to other nodes")

typedef enum weft_efficiency_kind {
#define WEFT_EFFICIENCY_ENUM(name, path, unit, help) WEFT_EFFICIENCY_##name,
    WEFT_EFFICIENCY_LIST(WEFT_EFFICIENCY_ENUM)
#undef WEFT_EFFICIENCY_ENUM
        WEFT_NUM_EFFICIENCIES
} weft_efficiency_kind;
const char *weft_efficiency_path(weft_efficiency_kind kind);
const char *weft_efficiency_unit(weft_efficiency_kind kind); /* of volumes: "FLOPs"; static */

/* A level of the network. Each of its switches joins `nodes` nodes. What leaves the level below (at
 * the first level: the node) gets the cards' bandwidth divided by `oversubscription`. */
typedef struct weft_network_level {
    int nodes;
    double oversubscription;
} weft_network_level;

enum { WEFT_MAX_LEVELS = 4, WEFT_MAX_NODE_GROUPS = 8, WEFT_MAX_SOURCES = 64 };

/* The figures of nodes that are alike. */
typedef struct weft_hardware {
    char device_name[64];
    uint32_t given; /* bit 1 << weft_figure: known; an unknown figure is 0 */
    double figures[WEFT_NUM_FIGURES];
    weft_share_curve efficiencies[WEFT_NUM_EFFICIENCIES]; /* num_points 0: all of the rate */
} weft_hardware;
bool weft_hardware_knows(const weft_hardware *hardware, weft_figure figure);

/* Where a number comes from, best first. */
#define WEFT_SOURCE_LIST(X)                                                                        \
    X(MEASURED, "measured")   /* here, at this very shape */                                       \
    X(SCALED, "scaled")       /* measured at another shape; no file has it */                      \
    X(DATASHEET, "datasheet") /* the maker's */                                                    \
    X(PUBLISHED, "published") /* others measured such operations, and printed it */                \
    X(ASSUMED, "assumed")     /* by the writer, or unknown */
typedef enum weft_source_class {
#define WEFT_SOURCE_ENUM(name, text) WEFT_SOURCE_##name,
    WEFT_SOURCE_LIST(WEFT_SOURCE_ENUM)
#undef WEFT_SOURCE_ENUM
        WEFT_NUM_SOURCE_CLASSES
} weft_source_class;
const char *weft_source_class_text(weft_source_class class_);

/* The source of all numbers at or below `key` that no longer key covers. */
typedef struct weft_source {
    char key[72];
    weft_source_class class_;
    char where[224];
    double spread; /* of the value, as a share of it (0.05); 0: unknown */
} weft_source;

#endif
