/* One MoE layer between two ends that cost nothing, on a mesh, for measuring. Routing is balanced:
 * each expert gets as many of any E / k tokens in a row. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_LAYER_H
#define WEFT_LAUNCHER_MEASURING_BENCH_LAYER_H

#include "comm/comm.h"
#include "layers/model/model.h"

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

#endif
