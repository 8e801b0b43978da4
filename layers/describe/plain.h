/* Descriptions of layers with the plain kernels of published runs, for weft_shape's plain_kernels;
 * Weft never runs these. Each function adds everything but parameters. Pure. */
#ifndef WEFT_LAYERS_DESCRIBE_PLAIN_H
#define WEFT_LAYERS_DESCRIBE_PLAIN_H

#include "layers/describe/describe.h"

/* Bytes of a weight gradient's element while micro-batches and replicas are summed. */
size_t weft_plain_gradient_bytes(weft_dtype dtype);
void weft_describe_plain_embedding(const weft_model_options *, const weft_shape *,
                                   weft_layer_cost *out);
void weft_describe_plain_attention(const weft_model_options *, const weft_shape *,
                                   weft_layer_cost *out);
/* ffn: global width. */
void weft_describe_plain_mlp(const weft_model_options *, const weft_shape *, size_t ffn,
                             weft_layer_cost *out);
/* Adds bias and activation as one kernel, whose output is kept; `kernels` each. */
void weft_describe_plain_activation(const weft_model_options *, const weft_shape *, size_t rows,
                                    size_t width, size_t kernels, weft_layer_cost *out);
/* The block without its children. */
void weft_describe_plain_block(const weft_model_options *, const weft_shape *,
                               weft_layer_cost *out);
void weft_describe_plain_head(const weft_model_options *, const weft_shape *, weft_layer_cost *out);
/* The shared expert included. */
void weft_describe_plain_moe(const weft_model_options *, const weft_shape *, weft_layer_cost *out);

#endif
