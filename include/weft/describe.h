/* How a layer describes itself that is not rehearsed: a call for each operation, stashed tensor and
 * parameter.
 *
 *     static void mine_describe(const weft_layer *layer, const weft_shape *shape,
 *                               weft_layer_cost *out)
 *     {
 *         weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, F * H, F / tp * H);
 *         weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
 *         weft_cost_linear(out, shape, "fc1", rows, H, F / tp);
 *         weft_cost_stash(out, "fc1", shape->dtype, rows, F / tp, WEFT_PHASE_WEIGHT_GRADIENT);
 *         ...
 *
 * Every function adds to the sums in `out` and, where the library collects one, to the list behind
 * the sums. Where a layer sets sums itself, all or some, Weft prices it by the sums and calls its
 * description `coarse`. Pure; units as in weft_layer_cost. */
#ifndef WEFT_DESCRIBE_H
#define WEFT_DESCRIBE_H

#include "layer.h"
#include "operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Any operation. Adds a GEMM's FLOPs and a collective's bytes to the sums. */
void weft_cost_operation(weft_layer_cost *out, const weft_operation *operation);
/* `count` products [m, k] x [k, n], executed whole. */
void weft_cost_gemm(weft_layer_cost *out, weft_phase phase, const char *module, weft_dtype dtype,
                    size_t m, size_t n, size_t k, size_t count);
/* x[rows, in] W^T[in, out_width]: the product of forward and both of backward. */
void weft_cost_linear(weft_layer_cost *out, const weft_shape *shape, const char *module,
                      size_t rows, size_t in, size_t out_width);
/* `kernels` launches that read and write `bytes` in all: see weft_operation. */
void weft_cost_memory(weft_layer_cost *out, weft_phase phase, const char *module, size_t bytes,
                      size_t kernels);
/* `count` collectives of `bytes` in all. */
void weft_cost_collective(weft_layer_cost *out, weft_phase phase, const char *module,
                          weft_axis axis, weft_collective collective, size_t bytes, size_t count);
/* weft_pass_enter, and weft_pass_partial with weft_pass_exit, in the activation dtype: the bytes
 * that they pass over tp, and the scratch that they hold until the layer's forward or backward
 * ends. */
void weft_cost_enter(weft_layer_cost *out, const weft_shape *shape, weft_phase phase);
void weft_cost_exit(weft_layer_cost *out, const weft_shape *shape, weft_phase phase);

/* A tensor of weft_pass_stash. */
void weft_cost_stash(weft_layer_cost *out, const char *module, weft_dtype dtype, size_t d0,
                     size_t d1, weft_phase until);
/* A piece of weft_pass_host. */
void weft_cost_host(weft_layer_cost *out, size_t bytes);
/* A tensor of weft_pass_scratch that the layer holds at its peak: that of forward, or (any other
 * phase) that of backward, which counts only where shape->training. */
void weft_cost_scratch(weft_layer_cost *out, const weft_shape *shape, weft_phase phase,
                       weft_dtype dtype, size_t d0, size_t d1);
/* A parameter's elements: all of them, and those held here. global 0: a copy of another stage's. */
void weft_cost_parameter(weft_layer_cost *out, const weft_shape *shape, weft_gradient_group group,
                         size_t global, size_t local);
/* The description of a child that describes itself, too. Children run one after the other, so the
 * largest child's scratch counts beside the layer's own. */
void weft_cost_child(weft_layer_cost *out, const weft_shape *shape, const weft_layer *child);

#ifdef __cplusplus
}
#endif
#endif
