/* Layers: a struct and an ops table. No autograd; backward stands beside forward.
 *
 * A layer maps hidden states x [S_local * B, H] to y of the same shape (the head maps to the loss).
 * It enqueues all its work on the pass's lane. Weft calls `init` once, where the layer declares
 * parameters. Then it calls forward and backward once for each micro-batch; the pass keeps what
 * backward needs from forward. To know what a layer costs Weft rehearses another on a device that
 * keeps what is enqueued and runs nothing: its memory has addresses alone, and nobody calls
 * functions on its lanes.
 *
 * Invariants: forward writes y; backward writes dx and adds parameter gradients (in the first
 * micro-batch of a step it overwrites them: weft_pass_overwrite). x is at the same place, with the
 * same values, when the lane runs the micro-batch's backward; in between other layers may use its
 * memory. The caller may change y once forward's work is done; dy stays valid until backward's work
 * is done. Forward and backward never allocate: they take memory from the pass. One thread drives a
 * model. */
#ifndef WEFT_LAYER_H
#define WEFT_LAYER_H

#include <stdint.h>

#include "device.h"
#include "mesh.h"
#include "parameter.h"
#include "shape.h"
#include "sized.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_layer weft_layer;
typedef struct weft_pass weft_pass;
typedef struct weft_build weft_build;

/* What a layer can do. Functions up to destroy are required, but for describe; so is reads_tokens
 * of a model's first layer and makes_loss of its last. May grow at its end. x, y, dy, dx: [S_local
 * * B, H] of the activation dtype, borrowed; a layer leaves y->data and dx->data as given. A
 * model's first layer gets an empty x and its dx is not used; its last gets y NULL and an empty dy.
 * Errors of forward and backward end the job. */
typedef struct weft_layer_ops {
    size_t struct_bytes;
    const char *kind;   /* "attention", "moe", ... */
    size_t state_bytes; /* of the per-pass struct that weft_pass_state gives, zeroed at forward */
    /* What it costs (<weft/describe.h>, pure), in place of a rehearsal: for a layer that branches
     * on data, or does its work in functions on the lane. NULL: it is rehearsed. */
    void (*describe)(const weft_layer *, const weft_shape *, weft_layer_cost *out);
    weft_status (*init)(weft_layer *, weft_build *);
    weft_status (*forward)(weft_layer *, weft_pass *, const weft_tensor *x, weft_tensor *y);
    weft_status (*backward)(weft_layer *, weft_pass *, const weft_tensor *dy, weft_tensor *dx);
    void (*destroy)(weft_layer *); /* frees the layer */
    /* Whether forward and backward enqueue only kernels, copies and zeroing, the same ones each
     * micro-batch, with arguments that depend only on where the pass's memory lies and on
     * weft_pass_training, _overwrite and _loss_scale: then CUDA graphs repeat them. NULL: no. */
    bool (*is_static)(const weft_layer *);
    bool reads_tokens; /* a model's first layer, and no other: x is empty */
    bool makes_loss;   /* a model's last layer, and no other: y is NULL */
    /* Of a last layer: labels are ids below vocab_size, and other data is refused. */
    bool labels_are_tokens;
    bool in_place;      /* dx may be where dy is */
    bool routes_tokens; /* a row's values decide which weights it meets, as with experts */
    /* The hidden_size that it was made for; it must be the model's. NULL: any. */
    int64_t (*width)(const weft_layer *);
    /* Of a last layer: the logits [S * B, V local] of the pass's last forward without training, in
     * the pass's memory, for weft generate. NULL: it keeps none. */
    const weft_tensor *(*logits)(const weft_layer *, weft_pass *);
    const struct weft_layer_parts *parts; /* the library's own */
    /* Without training a token's y depends on that token's x alone, whatever stands before it:
     * weft generate may bring the tokens of a text one by one, or some in a pass. */
    bool by_token;
} weft_layer_ops;

typedef struct weft_layer_place weft_layer_place; /* the library's own */

/* A layer embeds this as its first member, zero but for ops. Fixed. */
struct weft_layer {
    const weft_layer_ops *ops;
    weft_layer_place *place; /* set by the model, before init */
};
/* "decoder.layers.3", as errors call it; "" before the model has placed it. Borrowed. */
const char *weft_layer_name(const weft_layer *layer);

/* --- init: declaring parameters ------------------------------------------------------------ */

/* The shape the model is being built for. */
const weft_shape *weft_build_shape(const weft_build *build);
weft_device *weft_build_device(const weft_build *build);
/* Declares a parameter of this layer. The model owns *out and gives it memory before the first
 * forward. Errors: WEFT_CONFIG (a dimension that cannot be split so; a name that is taken, or has
 * more than letters, digits, '.', '_' and '-'), WEFT_MEMORY. */
weft_status weft_build_parameter(weft_build *build, const weft_parameter_spec *spec,
                                 weft_parameter **out) WEFT_CHECKED;
/* Declares a metric: `name` becomes a key of metrics.jsonl. Layers that declare one name add to one
 * number. *out lives as long as the model. Errors: WEFT_CONFIG (a name with more than lowercase
 * letters, digits and '_'; a key that Weft writes; another kind elsewhere; too many). */
weft_status weft_build_metric(weft_build *build, const char *name, weft_metric_kind kind,
                              weft_metric **out) WEFT_CHECKED;
/* Where this rank stands in the mesh. Borrowed. */
const weft_place *weft_build_coords(const weft_build *build);
/* Registers a layer inside this one: names its parameters under `prefix` ("self_attention."),
 * gives it its own per-pass state and calls its init. The parent owns the child. */
weft_status weft_build_child(weft_build *build, const char *prefix, weft_layer *child) WEFT_CHECKED;
/* How a layer runs one inside it: the child's own functions, and an error names the child. */
weft_status weft_layer_forward(weft_layer *child, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y) WEFT_CHECKED;
weft_status weft_layer_backward(weft_layer *child, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx) WEFT_CHECKED;

/* --- the pass: one micro-batch ------------------------------------------------------------- */

weft_lane *weft_pass_lane(const weft_pass *pass);
bool weft_pass_training(const weft_pass *pass);  /* false: no backward follows, no dropout */
bool weft_pass_overwrite(const weft_pass *pass); /* first micro-batch of the step */
const weft_shape *weft_pass_shape(const weft_pass *pass);
/* Rows of hidden states here: S_local * B (S_local = S / cp, and 1 / tp of that under sequence
 * parallel). */
size_t weft_pass_rows(const weft_pass *pass);
uint64_t weft_pass_seed(const weft_pass *pass);
/* A dropout stream of (step, layer, `use`), the same on every mesh. */
uint64_t weft_pass_stream(const weft_pass *pass, const weft_layer *layer, int use);
/* d(total loss) / d(this micro-batch's mean loss): the loss scale (1 but in fp16) over the number
 * of micro-batches of the global batch. */
float weft_pass_loss_scale(const weft_pass *pass);
/* Tokens and labels, int32 [S / cp, B], readable by the device. */
const int32_t *weft_pass_tokens(const weft_pass *pass);
const int32_t *weft_pass_labels(const weft_pass *pass);
/* The index in the sequence of each of these tokens, int32 [S / cp], rising, readable by the
 * device: context parallelism deals runs of the sequence. NULL: all S tokens are here. */
const int32_t *weft_pass_index(const weft_pass *pass);
/* docs/documents.md; NULL without: each token's place in its document, and [S, B] the index in the
 * sequence of the first that it sees. A last layer multiplies losses by the weights, fp32. */
const int32_t *weft_pass_positions(const weft_pass *pass);
const int32_t *weft_pass_first_seen(const weft_pass *pass);
const float *weft_pass_label_weights(const weft_pass *pass);
/* The step's sums, host memory that kernels may add to: see weft_metrics. */
weft_metrics *weft_pass_metrics(weft_pass *pass);

/* Where this rank stands in the mesh. TP ranks see the same tokens, so a layer counts a loss or a
 * sum of its own only where tp.at is 0; CP ranks see different ones of the same samples. Borrowed.
 */
const weft_place *weft_pass_coords(const weft_pass *pass);

/* The layer's struct of ops->state_bytes in this pass, for what backward needs. Borrowed. */
void *weft_pass_state(weft_pass *pass, const weft_layer *layer);
/* A tensor [d0, d1] that lives from forward to the end of this micro-batch's backward: not cleared,
 * 64-byte aligned. The pass has reserved what the layer costs; more than that it allocates now and
 * keeps (WEFT_MEMORY). */
weft_status weft_pass_stash(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                            weft_tensor *out) WEFT_CHECKED;
/* A tensor that lives until weft_pass_release to a mark taken before it. Work already enqueued may
 * use it after release: later users come later on the same lane. Otherwise as a stash. */
weft_status weft_pass_scratch(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                              weft_tensor *out) WEFT_CHECKED;
size_t weft_pass_mark(const weft_pass *pass);
void weft_pass_release(weft_pass *pass, size_t mark);

/* Pinned host memory that lives like a stash, for counts that the host reads. The lane may still
 * use what a pass before had there: enqueue what fills it, or wait for the lane first. */
weft_status weft_pass_host(weft_pass *pass, size_t bytes, void **out) WEFT_CHECKED;

/* Sums `count` values over the ranks of an axis, in place on the pass's lane; every rank gets the
 * same bits. The values are memory of the pass or of the model. Collective over the axis: all its
 * ranks make the same calls in the same order, whatever the data. A layer that calls it has no
 * is_static, and adds the bytes over tp and ep in a describe of its own. Errors: WEFT_INTERNAL for
 * pp, whose stages do not run the same layers; WEFT_COMM. */
weft_status weft_pass_all_reduce(weft_pass *pass, weft_axis axis, void *values, size_t count,
                                 weft_dtype dtype) WEFT_CHECKED;

/* --- tensor-parallel regions --------------------------------------------------------------- */

/* Megatron-LM's f and g (Shoeybi et al. 2019, Fig. 3); with sequence parallelism Korthikanti et al.
 * 2022, Fig. 5. Inside a region every TP rank sees all S / cp * B rows and makes a
 * partial sum.
 *
 * enter: the full [S / cp * B, H] from what is here: x itself, or under sequence parallelism an
 *   all-gather of rows into scratch.
 * partial: where the region's partial result [S / cp * B, H] goes: y itself, or scratch.
 * exit: sums the partials over TP into y: all-reduce, or reduce-scatter of rows.
 * The backward of enter is partial + exit on gradients, and the other way round. enter and exit are
 * collective over the TP group: all its ranks call them in the same order. */
weft_status weft_pass_enter(weft_pass *pass, const weft_tensor *x, weft_tensor *full) WEFT_CHECKED;
weft_status weft_pass_partial(weft_pass *pass, const weft_tensor *y,
                              weft_tensor *partial) WEFT_CHECKED;
weft_status weft_pass_exit(weft_pass *pass, const weft_tensor *partial,
                           weft_tensor *y) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
