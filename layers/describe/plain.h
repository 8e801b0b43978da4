/* Plain kernels: what the library's layers do and keep in published runs, for weft_shape's
 * plain_kernels. Plans alone have them. Pure. */
#ifndef WEFT_LAYERS_DESCRIBE_PLAIN_H
#define WEFT_LAYERS_DESCRIBE_PLAIN_H

#include "layers/describe/describe.h"

/* Numbers of these kernels. */
typedef enum weft_plain_fact_kind {
    WEFT_PLAIN_NORM, /* rows that a norm moves: forward, backward; those of 2021 */
    WEFT_PLAIN_NORM_BACK,
    WEFT_PLAIN_NORM_2021,
    WEFT_PLAIN_NORM_BACK_2021,
    WEFT_PLAIN_MASK,    /* bytes of a dropout's mask */
    WEFT_PLAIN_ROUTING, /* kernels over all scores: forward, backward */
    WEFT_PLAIN_ROUTING_BACK,
    WEFT_PLAIN_FP16_GRADIENT, /* bytes an element from here on */
    WEFT_PLAIN_CLIP,
    WEFT_PLAIN_ADAMW,
    WEFT_PLAIN_MASTER,
    WEFT_PLAIN_UNSCALE,
    WEFT_NUM_PLAIN_FACTS
} weft_plain_fact_kind;

typedef struct weft_plain_fact {
    size_t value;
    const char *what, *where; /* where: who published it, and when */
} weft_plain_fact;
const weft_plain_fact *weft_plain_fact_at(weft_plain_fact_kind kind);

/* Bytes of a weight gradient's element while micro-batches and replicas are summed. */
size_t weft_plain_gradient_bytes(weft_dtype dtype);
/* Adds all but parameters, of the layers inside it too; what other layers say of themselves. */
void weft_plain_describe(const weft_layer *layer, const weft_shape *shape, weft_description *out);

#endif
