/* Plain kernels: what the library's layers do and keep in published runs, for weft_shape's
 * plain_kernels. Plans alone have them. Pure. */
#ifndef WEFT_LAYERS_DESCRIBE_PLAIN_H
#define WEFT_LAYERS_DESCRIBE_PLAIN_H

#include "layers/describe/describe.h"

/* Bytes of a weight gradient's element while micro-batches and replicas are summed. */
size_t weft_plain_gradient_bytes(weft_dtype dtype);
/* Adds all but parameters, of the layers inside it too; what other layers say of themselves. */
void weft_plain_describe(const weft_layer *layer, const weft_shape *shape, weft_description *out);

#endif
