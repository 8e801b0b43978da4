/* A layer's forward and backward in parts: its own, and between them the tasks of the programs
 * inside it. A body has each as a task, which other tasks may stand between. A part enqueues its
 * work on its lane and returns. A layer without a program inside is one part. Private to layers/.
 */
#ifndef WEFT_LAYERS_PASS_PARTS_H
#define WEFT_LAYERS_PASS_PARTS_H

#include <weft/layer.h>

#include "schedule/body.h"

typedef struct weft_model weft_model;
struct weft_alone;

/* What is behind weft_layer_ops.parts. */
typedef struct weft_layer_parts {
    /* False: there is no such part. pass: a backward's, whose forward has run; NULL: of any pass to
     * come. */
    bool (*at)(const weft_layer *, const weft_model *, weft_pass *pass, bool backward, int part,
               weft_body_part *out);
    weft_status (*forward)(weft_layer *, weft_pass *, int part, weft_lane *lane,
                           const weft_tensor *x, weft_tensor *y);
    weft_status (*backward)(weft_layer *, weft_pass *, int part, weft_lane *lane,
                            const weft_tensor *dy, weft_tensor *dx);
} weft_layer_parts;

/* Of any layer; enqueued like weft_layer_forward and weft_layer_backward. */
bool weft_part_at(const weft_layer *layer, const weft_model *model, weft_pass *pass, bool backward,
                  int part, weft_body_part *out);
weft_status weft_part_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                              const weft_tensor *x, weft_tensor *y) WEFT_CHECKED;
weft_status weft_part_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                               const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
/* The functions forward and backward of a layer that has parts, for one inside a layer that has
 * none: a body of its own. */
weft_status weft_parts_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y) WEFT_CHECKED;
weft_status weft_parts_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx) WEFT_CHECKED;
/* What these made; NULL is legal. */
void weft_alone_destroy(struct weft_alone *alone);

#endif
