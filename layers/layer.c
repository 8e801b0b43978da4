/* One layer: its memory, its owner, its name and its table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "layers/pass/pass.h"

weft_layer *weft_layer_new(const weft_layer_ops *ops, size_t bytes,
                           const weft_model_options *options)
{
    weft_layer_common *layer = options ? calloc(1, bytes) : NULL;
    weft_status status = WEFT_OK;
    if (!options)
        status = WEFT_ERROR(WEFT_INTERNAL, "weft_%s_create: options is NULL", ops->kind);
    else if (!layer)
        status = WEFT_ERROR(WEFT_MEMORY, "out of memory for a layer (%s)", ops->kind);
    if (status != WEFT_OK)
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

void weft_layer_set_splits(weft_layer *layer, bool splits)
{
    layer->place->splits = splits;
}

bool weft_layer_splits(const weft_layer *layer)
{
    return layer->place->splits;
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
           : !ops->init     ? "ops->init"
           : !ops->forward  ? "ops->forward"
           : !ops->backward ? "ops->backward"
           : !ops->destroy  ? "ops->destroy"
                            : NULL;
}

weft_status weft_program_failed(weft_status status, const char *whose)
{
    if (status != WEFT_INTERNAL)
        return status;
    weft_error error;
    weft_error_take(&error);
    if (error.status != WEFT_INTERNAL)
        return WEFT_ERROR(WEFT_CONFIG, "%s returned WEFT_INTERNAL and no error's text", whose);
    error.status = WEFT_CONFIG;
    return weft_error_context(weft_error_put(&error), "a wrong call in %s", whose);
}

weft_status weft_layer_blame(const weft_layer *layer, weft_status status)
{
    char whose[96];
    if (weft_layer_table(layer).width == weft_layer_width) /* the library's own have it */
        return status;
    snprintf(whose, sizeof whose, "this program's layer (%s)", weft_layer_kind(layer));
    return weft_program_failed(status, whose);
}

weft_status weft_layer_failed(const weft_layer *layer, const char *doing, weft_status status)
{
    const char *name = weft_layer_name(layer), *text = weft_error_get()->text;
    size_t bytes = strlen(name);
    if (status == WEFT_OK)
        return status;
    status = weft_layer_blame(layer, status);
    bool names_child = strncmp(text, name, bytes) == 0 && text[bytes] == '.';
    return names_child ? status : weft_error_context(status, "%s %s", name, doing);
}

weft_layer_ops weft_layer_table(const weft_layer *layer)
{
    weft_layer_ops known = {0};
    size_t bytes = layer->ops->struct_bytes;
    memcpy(&known, layer->ops, bytes < sizeof known ? bytes : sizeof known);
    return known;
}

bool weft_layer_describes_itself(const weft_layer *layer)
{
    return weft_layer_table(layer).describe;
}

int64_t weft_layer_width(const weft_layer *layer)
{
    return ((const weft_layer_common *)layer)->options.hidden_size;
}
