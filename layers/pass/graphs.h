/* A model's forward and backward as CUDA graphs: the host enqueues one graph instead of many
 * kernels.
 *
 * The first run of a pass goes kernel by kernel, so that its kernels allocate memory; the second
 * run is captured, later ones are replayed. Replays differ in tokens and labels alone, which are
 * copied to the pass's own memory. Calls with other arguments (addresses of boundary activations,
 * whether gradients are overwritten) have graphs of their own. A changed loss scale replaces a
 * graph. */
#ifndef WEFT_LAYERS_PASS_GRAPHS_H
#define WEFT_LAYERS_PASS_GRAPHS_H

#include "layers/pass/pass.h"

/* A call to enqueue on the pass's lane. */
typedef struct weft_pass_call {
    weft_pass *pass;
    weft_pass_kind kind;
    const weft_tensor *from; /* x, or dy; recomputation: this and `to` are NULL */
    weft_tensor *to;         /* y, or dx */
    bool has_points;         /* a backward's that are waited for: it is no graph */
    weft_deferred *deferred; /* of a half of a backward; else NULL */
} weft_pass_call;
typedef weft_status (*weft_pass_enqueue)(const weft_pass_call *call);

/* Of weft_pass_recomputed: notes the rows at which it grew; empties it, too. */
void weft_pass_note_recomputed(const weft_pass *pass);
void weft_pass_empty_recomputed(const weft_pass *pass);
/* Copies the micro-batch's tokens and labels to where graphs read them. */
weft_status weft_graphs_take_tokens(weft_pass *pass) WEFT_CHECKED;
/* Copies its losses, behind its forward, from where graphs write them. */
weft_status weft_graphs_give_losses(weft_pass *pass) WEFT_CHECKED;
/* Enqueues the call, by its graph where there is one. */
weft_status weft_graphs_run(const weft_pass_call *call, weft_pass_enqueue enqueue) WEFT_CHECKED;

#endif
