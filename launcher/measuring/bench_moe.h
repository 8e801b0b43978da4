/* What the parts of weft bench moe-layer share: cases of one layer and their times. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_MOE_H
#define WEFT_LAUNCHER_MEASURING_BENCH_MOE_H

#include "launcher/measuring/bench.h"
#include "launcher/measuring/bench_layer.h"
#include "schedule/moe/choose.h"

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
