/* What the parts of weft bench moe-layer share: cases of one layer and their times. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_MOE_H
#define WEFT_LAUNCHER_MEASURING_BENCH_MOE_H

#include "comm/comm.h"
#include "launcher/measuring/bench.h"
#include "layers/model/model.h"
#include "schedule/moe/choose.h"

/* One MoE layer between two ends that cost nothing, on a mesh. Routing is balanced: each expert
 * gets as many of any E / k tokens in a row. */
typedef struct weft_bench_layer_shape {
    int64_t tokens, hidden, ffn; /* a rank; M; H of a whole expert */
    int64_t experts, topk;
    bool swiglu;
    weft_dtype dtype;
    int num_threads;
    const char *mesh; /* as --mesh; NULL: ep over all ranks */
    weft_moe_options moe;
} weft_bench_layer_shape;

typedef struct weft_bench_layer {
    weft_comm *world; /* borrowed */
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_model_options options;
    weft_model *model;
    int32_t *tokens;
    double pace_flops[2]; /* of an emulated accelerator, forward and backward; 0: none */
} weft_bench_layer;

/* Collective over world; all ranks return the same status. */
weft_status weft_bench_layer_create(weft_comm *world, const weft_bench_layer_shape *shape,
                                    weft_bench_layer **out) WEFT_CHECKED;
void weft_bench_layer_destroy(weft_bench_layer *layer); /* NULL is legal */
/* Runs one forward and backward, always with the same inputs. out_us: the slowest rank's
 * microseconds of each. Collective. */
weft_status weft_bench_layer_run(weft_bench_layer *layer, double out_us[2]) WEFT_CHECKED;
/* High-water mark of device memory since the layer was created, the largest of all ranks. */
weft_status weft_bench_layer_peak(weft_bench_layer *layer, double *out_bytes) WEFT_CHECKED;

enum { WEFT_BENCH_MAX_CASES = 64, WEFT_BENCH_MAX_ROUNDS = 200 };

typedef enum weft_bench_mode {
    WEFT_BENCH_SYNCHRONOUS, /* n = 1, as FastMoE */
    WEFT_BENCH_PEERS,       /* as FasterMoE, a partition a peer */
    WEFT_BENCH_NODES,       /* the same, a partition a node's peers */
    WEFT_BENCH_PIPELINED,
    WEFT_BENCH_FREE, /* a pipelined program without waits: lanes run the same work freely */
} weft_bench_mode;

typedef struct weft_bench_case {
    weft_bench_mode mode;
    weft_moe_pipeline pipeline;
    weft_spread us[3]; /* forward, backward, both */
    double predicted_us;
    double rounds[3][WEFT_BENCH_MAX_ROUNDS];
} weft_bench_case;

typedef struct weft_bench_point {
    weft_bench_layer_shape shape;
    double comm_us[2], comp_us[2]; /* the synchronous layer's communication and computation alone */
    double pace_flops[2];
    weft_bench_case cases[WEFT_BENCH_MAX_CASES];
    int num_cases;
    weft_moe_choice model_choice, profile_choice;
    int num_trials;                       /* of the profile */
    double best_us, model_us, profile_us; /* measured, of the best and of the chosen */
    double model_cost_us;                 /* what choosing by the model took */
} weft_bench_point;

typedef struct weft_bench_moe_options {
    weft_bench_options common;
    weft_bench_layer_shape shape;
    int partitions[16], num_partitions;
    unsigned reuses;
    double ratio;      /* computation : communication; 0: as the shape gives it */
    bool pace;         /* by an emulated accelerator */
    double pace_flops; /* of this rate; 0: of the rate that gives the ratio */
    bool balanced;     /* ratio holds forward and backward each, not over both together */
    bool memory;
    const char *cluster, *trace;
    int64_t grid[64][3]; /* tokens, M, H */
    int num_grid;
} weft_bench_moe_options;

/* Makes the layer, brings it to the ratio, measures all cases paired, predicts them from `cluster`
 * and lets both ways of choosing choose. Collective. */
weft_status weft_bench_moe_point(weft_comm *world, const weft_bench_moe_options *options,
                                 const weft_cluster *cluster, weft_bench_point *out) WEFT_CHECKED;
/* The case of this mode and pipeline, or NULL. pipeline NULL: the first of that mode. */
const weft_bench_case *weft_bench_find(const weft_bench_point *point, weft_bench_mode mode,
                                       const weft_moe_pipeline *pipeline);
/* The fastest pipelined case. */
const weft_bench_case *weft_bench_best(const weft_bench_point *point);
/* "synchronous", "n 4, s1", ... Returns `text`. */
char *weft_bench_case_text(const weft_bench_case *c, char *text, size_t bytes);

#endif
