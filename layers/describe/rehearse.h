/* Rehearsal: a layer's own forward and backward run once on the device `note`, where nothing is
 * computed. What they enqueue and allocate is the layer's description. Pure if the layer's init is.
 * Where MoE layers wait for counts, the shape's load answers. Private to layers/, but for
 * recordings. */
#ifndef WEFT_LAYERS_DESCRIBE_REHEARSE_H
#define WEFT_LAYERS_DESCRIBE_REHEARSE_H

#include "core/device/device.h"
#include "layers/describe/describe.h"
#include "layers/model/model.h"

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

/* --- recordings: rehearsals whose calls can be made again on a device ------------------------- */

/* Addresses that calls use, and how its bytes are found there in a step. */
typedef enum weft_region_use {
    WEFT_REGION_HOT,       /* one place for all layers: what was just made */
    WEFT_REGION_COLD,      /* a layer's own: parameters */
    WEFT_REGION_LEFT,      /* a pass's own, cold but for a piece that the call before touched */
    WEFT_REGION_TOKENS,    /* int32 each, in the vocabulary */
    WEFT_REGION_POSITIONS, /* int32 each, from 0 on */
} weft_region_use;

typedef struct weft_region {
    weft_region_use use;
    const char *start;
    size_t bytes;
} weft_region;
enum { WEFT_MAX_REGIONS = 16 };

/* A layer of the list, of several that are alike one. */
typedef struct weft_recorded_layer {
    int count; /* layers like it */
    weft_description description;
    size_t first, next, end; /* notes of a step's first micro-batch, then of another, which adds to
                                gradients: as many, or the layer does other work there */
} weft_recorded_layer;

typedef struct weft_recording {
    struct weft_rehearsal *rehearsal;
    const weft_noted *notes; /* operations with their entry of the layer's description */
    weft_region regions[WEFT_MAX_REGIONS];
    int num_regions, num_layers;
    weft_recorded_layer *layers;
} weft_recording;

/* As weft_rehearse_model, with experts' rows dealt out evenly. `device` makes the calls again and
 * outlives the recording; its pinned memory is used. Of a layer that describes itself products
 * alone are noted. */
weft_status weft_record_model(const weft_model_options *options, const void *own_options,
                              const weft_shape *shape, weft_model_function build,
                              weft_device *device, weft_recording *out) WEFT_CHECKED;
void weft_recording_release(weft_recording *recording); /* a zeroed one is legal */

#endif
