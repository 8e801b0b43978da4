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

/* A forward, a backward, or the first half of one in two, which leaves the weights' gradients. */
typedef enum weft_way {
    WEFT_WAY_FORWARD,
    WEFT_WAY_BACKWARD,
    WEFT_WAY_INPUT,
    WEFT_NUM_WAYS
} weft_way;
/* Of the backward whose part is enqueued. */
weft_way weft_way_back(const weft_pass *pass);

/* A program inside a layer. */
typedef struct weft_inside {
    const weft_program *program;
    const uint8_t *lanes; /* [WEFT_NUM_LANES]: a body's lane for each of the program's; NULL: all
                             tasks run on the compute lane */
    int place;            /* the layer's number of it, in order; it may have others in between */
} weft_inside;
enum { WEFT_MAX_INSIDE = 10 };

/* What is behind weft_layer_ops.parts. The functions enqueue a part on its lane. */
typedef struct weft_layer_parts {
    /* The programs inside, in order: before, between and behind them the layer has parts of its
     * own. pass: a backward's, whose forward has run; NULL: of any pass to come. Returns their
     * number. */
    int (*inside)(const weft_layer *, const weft_model *, weft_pass *pass, weft_way way,
                  weft_inside out[WEFT_MAX_INSIDE]);
    weft_status (*forward)(weft_layer *, weft_pass *, int part, weft_lane *lane,
                           const weft_tensor *x, weft_tensor *y);
    weft_status (*backward)(weft_layer *, weft_pass *, int part, weft_lane *lane,
                            const weft_tensor *dy, weft_tensor *dx);
} weft_layer_parts;

/* Of any layer, as above. */
int weft_layer_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                      weft_way way, weft_inside out[WEFT_MAX_INSIDE]);
int weft_layer_count_parts(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                           weft_way way);
/* False: there is no such part. */
bool weft_part_at(const weft_layer *layer, const weft_model *model, weft_pass *pass, weft_way way,
                  int part, weft_body_part *out);
/* The same of a layer with these programs. */
int weft_inside_count_parts(const weft_inside *inside, int count);
bool weft_inside_at(const weft_inside *inside, int count, int part, weft_body_part *out);
/* Enqueued like weft_layer_forward and weft_layer_backward. */
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
