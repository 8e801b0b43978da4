/* One layer: its memory, its owner, its name and its table. */
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "layers/pass.h"

weft_layer *weft_layer_new(const weft_layer_ops *ops, size_t bytes,
                           const weft_model_options *options)
{
    weft_layer_common *layer = calloc(1, bytes);
    if (!layer)
        return NULL;
    layer->base.ops = ops;
    if (weft_sized_copy("weft_model_options", options, &layer->options, sizeof layer->options) !=
        WEFT_OK) {
        free(layer);
        return NULL;
    }
    return &layer->base;
}

void weft_layer_free(weft_layer *layer)
{
    free(layer);
}

bool weft_layer_is_static(const weft_layer *layer)
{
    return layer->place->ops.is_static && layer->place->ops.is_static(layer);
}

bool weft_layer_always_static(const weft_layer *layer)
{
    (void)layer;
    return true;
}

/* The place of a layer that has an owner and no name yet. */
static weft_layer_place owned;

weft_status weft_layer_take(weft_layer *layer)
{
    if (layer->place)
        return WEFT_ERROR(WEFT_CONFIG,
                          "a layer (%s) is added twice; each place in a model needs its own",
                          layer->ops && layer->ops->kind ? layer->ops->kind : "of no kind");
    layer->place = &owned;
    return WEFT_OK;
}

bool weft_layer_is_placed(const weft_layer *layer)
{
    return layer->place && layer->place != &owned;
}

void weft_layer_destroy(weft_layer *layer)
{
    if (layer && layer->ops && layer->ops->destroy)
        layer->ops->destroy(layer);
}

const char *weft_layer_name(const weft_layer *layer)
{
    return layer->place ? layer->place->name : "";
}

const char *weft_layer_kind(const weft_layer *layer)
{
    return layer->ops && layer->ops->kind ? layer->ops->kind : "of no kind";
}

const char *weft_layer_missing(const weft_layer *layer)
{
    const weft_layer_ops *ops = layer->ops;
    return !ops             ? "ops"
           : !ops->kind     ? "ops->kind"
           : !ops->describe ? "ops->describe"
           : !ops->init     ? "ops->init"
           : !ops->forward  ? "ops->forward"
           : !ops->backward ? "ops->backward"
           : !ops->destroy  ? "ops->destroy"
                            : NULL;
}

weft_layer_ops weft_layer_table(const weft_layer *layer)
{
    weft_layer_ops known = {0};
    size_t bytes = layer->ops->struct_bytes;
    memcpy(&known, layer->ops, bytes < sizeof known ? bytes : sizeof known);
    return known;
}

int64_t weft_layer_width(const weft_layer *layer)
{
    return ((const weft_layer_common *)layer)->options.hidden_size;
}
