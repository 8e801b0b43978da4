/* Rehearsal: a layer's own forward and backward run once on the device `note`, where nothing is
 * computed. What they enqueue and allocate is the layer's description. Pure if the layer's init is.
 * Where MoE layers wait for counts, the shape's load answers. Private to layers/. */
#ifndef WEFT_LAYERS_REHEARSE_H
#define WEFT_LAYERS_REHEARSE_H

#include "layers/describe.h"
#include "layers/runtime.h"

/* The layers of the list that `build` makes (NULL: what the options describe), each as one of
 * many: of layers that Weft's own list has alike, one is rehearsed. A layer that describes itself
 * is not run. options: resolved; own_options: NULL: none. *out: [*out_count], which
 * weft_descriptions_release frees. Errors: those of `build`, of the list and of the layers, which
 * they name. */
weft_status weft_rehearse_model(const weft_model_options *options, const void *own_options,
                                const weft_shape *shape, weft_model_function build,
                                weft_description **out, int *out_count) WEFT_CHECKED;
void weft_descriptions_release(weft_description *descriptions, int count); /* NULL is legal */

/* Sees the notes of each layer's forward and backward, with ranges (core/device/device.h); of
 * layers that are alike one's. Nothing is remembered. Errors: the witness' too. */
typedef struct weft_witness {
    weft_status (*see)(void *context, const weft_layer *layer, const weft_device *device);
    void *context;
} weft_witness;
weft_status weft_rehearse_before(const weft_witness *witness, const weft_model_options *options,
                                 const void *own_options, const weft_shape *shape,
                                 weft_model_function build) WEFT_CHECKED;

/* A layer that no list has: one of the library's. */
typedef weft_layer *(*weft_layer_function)(const weft_model_options *);
weft_status weft_rehearse_alone(const weft_model_options *options, const weft_shape *shape,
                                weft_layer_function make, weft_description *out) WEFT_CHECKED;

#endif
