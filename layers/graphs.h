/* A model's forward and backward as graphs: enqueued again at once instead of kernel by kernel.
 * Private to layers/.
 *
 * A pass that is asked for the first time runs as ever; the second time it is captured, once its
 * kernels have what they allocate at first; then it is replayed. What differs from one replay to
 * the next lies in memory: tokens and labels, which are copied to a place of the pass's own. What
 * is an argument (the place of boundary activations, whether gradients are overwritten) tells one
 * graph from another, and a loss scale that changed makes a graph anew. */
#ifndef WEFT_LAYERS_GRAPHS_H
#define WEFT_LAYERS_GRAPHS_H

#include "layers/pass.h"

/* What is to be enqueued on the pass's lane. */
typedef struct weft_pass_call {
    weft_pass *pass;
    const weft_tensor *from;   /* x, or dy */
    weft_tensor *to;           /* y, or dx */
    weft_event *const *points; /* backward: by layer; NULL, or it is never part of a graph */
} weft_pass_call;
typedef weft_status (*weft_pass_enqueue)(const weft_pass_call *call);

/* Whether all that this stage's layers enqueue can be kept. Pure. */
bool weft_graphs_fit(const weft_model *model);
weft_status weft_graphs_create(weft_model *model) WEFT_CHECKED;
void weft_graphs_destroy(weft_model *model);
/* Moves the micro-batch's tokens and labels to where graphs read them. */
weft_status weft_graphs_take_tokens(weft_pass *pass) WEFT_CHECKED;
/* Enqueues the call, by its graph where there is one. */
weft_status weft_graphs_run(const weft_pass_call *call, weft_pass_enqueue enqueue) WEFT_CHECKED;

#endif
