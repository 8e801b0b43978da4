/* Parts of layers that do nothing, or as little as they can. */
#ifndef WEFT_TESTS_LAYERS_STUB_H
#define WEFT_TESTS_LAYERS_STUB_H

#include <stdlib.h>

#include <weft/weft.h>

static inline void stub_describe(const weft_layer *layer, const weft_shape *shape,
                                 weft_layer_cost *out)
{
    (void)layer, (void)shape;
    *out = (weft_layer_cost){0};
}

static inline weft_status stub_init(weft_layer *layer, weft_build *build)
{
    (void)layer, (void)build;
    return WEFT_OK;
}

static inline weft_status stub_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *from,
                                    weft_tensor *to)
{
    (void)layer, (void)pass, (void)from, (void)to;
    return WEFT_OK;
}

static inline void stub_destroy(weft_layer *layer)
{
    free(layer);
}

/* Of so many bytes; NULL: no memory. */
static inline weft_layer *stub_create(const weft_layer_ops *ops, size_t bytes)
{
    weft_layer *layer = calloc(1, bytes);
    if (layer)
        layer->ops = ops;
    return layer;
}

#endif
