/* A layer's forward and backward in parts, between which another pass's parts can be enqueued. A
 * part enqueues its work and returns; parts come in order, and all of them are the whole. A part
 * computes, on the pass's lane, or travels: it runs on a lane beside, and computation need not wait
 * for it until a later part. Plain layers are one part. Private to layers/. */
#ifndef WEFT_LAYERS_PASS_PARTS_H
#define WEFT_LAYERS_PASS_PARTS_H

#include <weft/layer.h>

#include "schedule/pair.h"

/* What is behind weft_layer_ops.parts. */
typedef struct weft_layer_parts {
    /* Of a part behind one that was enqueued, or the first. */
    weft_part_kind (*kind)(const weft_layer *, weft_pass *, bool backward, int part);
    weft_status (*forward)(weft_layer *, weft_pass *, int part, const weft_tensor *x,
                           weft_tensor *y);
    weft_status (*backward)(weft_layer *, weft_pass *, int part, const weft_tensor *dy,
                            weft_tensor *dx);
} weft_layer_parts;

/* Of any layer; enqueued like weft_layer_forward and weft_layer_backward. */
weft_part_kind weft_part_kind_of(const weft_layer *layer, weft_pass *pass, bool backward, int part);
weft_status weft_part_forward(weft_layer *layer, weft_pass *pass, int part, const weft_tensor *x,
                              weft_tensor *y) WEFT_CHECKED;
weft_status weft_part_backward(weft_layer *layer, weft_pass *pass, int part, const weft_tensor *dy,
                               weft_tensor *dx) WEFT_CHECKED;
/* The functions forward and backward of a layer that has parts. */
weft_status weft_parts_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y) WEFT_CHECKED;
weft_status weft_parts_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx) WEFT_CHECKED;

#endif
