/* What Weft's own layers share, and their structs. Private to layers/. */
#ifndef WEFT_LAYERS_LAYERS_H
#define WEFT_LAYERS_LAYERS_H

#include <weft/kernels.h>
#include <weft/model.h>

#include "layers/describe/describe.h"
#include "layers/linear.h"
#include "layers/pass/recompute.h"
#include "parallel/parameters/parameters.h"
#include "parallel/sequence.h"

/* How many tokens of the text came before this pass's (weft_shape.cached_tokens). */
size_t weft_pass_first_token(const weft_pass *pass);
/* Where a last layer leaves each label's loss (weft_micro_batch); NULL: nowhere. */
float *weft_pass_losses(const weft_pass *pass);
typedef struct weft_norm {
    weft_norm_kind kind;
    float epsilon;
    float weight_offset;           /* 1: it multiplies by 1 + its weight */
    weft_parameter *weight, *bias; /* bias: LayerNorm */
    const char *name;              /* static: "input_layernorm" */
} weft_norm;
weft_status weft_norm_init(weft_build *build, const weft_model_options *options, const char *name,
                           weft_norm *out) WEFT_CHECKED;
/* The same of rows of `cols` numbers; above: hidden_size. */
weft_status weft_norm_init_wide(weft_build *build, const weft_model_options *options,
                                const char *name, size_t cols, weft_norm *out) WEFT_CHECKED;
/* Statistics, kept for backward. */
typedef struct weft_norm_stats {
    float *mean, *rstd;
} weft_norm_stats;
/* y = norm(x), or norm(sum = x + residual). Stashes y's statistics. */
weft_status weft_norm_run(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                          const weft_tensor *residual, weft_tensor *sum, const weft_tensor *y,
                          weft_norm_stats *stats) WEFT_CHECKED;
/* The output of the norm that ran last: rows [S*B, H] (under sequence parallelism the TP shard), at
 * one address for all blocks of the stage. */
const weft_tensor *weft_pass_normed(const weft_pass *pass);
/* Recomputes weft_pass_normed from x, with the bits of the norm's forward. */
weft_status weft_norm_rerun(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                            const weft_norm_stats *stats) WEFT_CHECKED;
/* The same into y. */
weft_status weft_norm_rerun_to(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                               const weft_norm_stats *stats, const weft_tensor *y) WEFT_CHECKED;
weft_status weft_norm_run_backward(weft_pass *pass, const weft_norm *norm, const weft_tensor *dy,
                                   const weft_tensor *x, const weft_norm_stats *stats,
                                   bool accumulate, weft_tensor *dx) WEFT_CHECKED;
/* The same as a first half; `deferred` NULL or the backward whole: weft_norm_run_backward. */
struct weft_norm_deferred;
weft_status weft_norm_backward_deferring(weft_pass *pass, const weft_norm *norm,
                                         const weft_tensor *dy, const weft_tensor *x,
                                         const weft_norm_stats *stats, bool accumulate,
                                         const struct weft_norm_deferred *deferred,
                                         weft_tensor *dx) WEFT_CHECKED;

/* Whether this forward is a recomputation. It gets the first forward's pieces of host memory, with
 * their content. */
bool weft_pass_repeats(const weft_pass *pass);

/* Until weft_pass_keep stashes belong to `modules` (bits of layers/pass/recompute.h). If backward
 * recomputes one of the modules, the stashes lie in the area that all passes share; if one is
 * offloaded, they are offloaded. send_out: they can be offloaded, not recomputed. */
void weft_pass_leave_out(weft_pass *pass, unsigned modules);
void weft_pass_send_out(weft_pass *pass, unsigned modules);
/* leave_out beside what is left out of the same layer already. */
void weft_pass_leave_out_beside(weft_pass *pass, unsigned modules);
void weft_pass_keep(weft_pass *pass);
/* The end of the pass's host memory; the next two functions begin and end a recomputation from
 * there (weft_pass_repeats). */
size_t weft_pass_host_mark(const weft_pass *pass);
void weft_pass_begin_repeat(weft_pass *pass, size_t host_mark);
void weft_pass_end_repeat(weft_pass *pass);

/* --- a backward in two halves (weft_model_backward_input) ------------------------------------- */

/* Says in a layer's init whether its backward can leave the gradients of all its parameters to the
 * second half. A layer says nothing: it cannot. Below: whether it can. */
void weft_layer_set_splits(weft_layer *layer, bool splits);
bool weft_layer_splits(const weft_layer *layer);
/* Whether the backward that runs is a first half, and must leave them. */
bool weft_pass_defers(const weft_pass *pass);
/* What the second half does for the layer, in the order of these calls. The layer's state and its
 * stash are as the first half left them. */
typedef weft_status (*weft_deferred_function)(weft_layer *layer, weft_pass *pass);
weft_status weft_pass_defer(weft_pass *pass, weft_layer *layer,
                            weft_deferred_function run) WEFT_CHECKED;
/* In a pair, what was deferred so far comes while the rows travel that this part computed
 * (schedule/pair.h). */
void weft_pass_defer_soon(weft_pass *pass);
/* Allocates a tensor that both halves see. Stashes of a recomputed module are such, too. */
weft_status weft_pass_deferred(weft_pass *pass, weft_dtype dtype, size_t d0, size_t d1,
                               weft_tensor *out) WEFT_CHECKED;
/* weft_pass_enter, under sequence parallelism, into this tensor. */
weft_status weft_pass_gather(weft_pass *pass, const weft_tensor *x,
                             const weft_tensor *gathered) WEFT_CHECKED;
/* weft_pass_enter, into such a tensor; without sequence parallelism it is a copy. */
weft_status weft_pass_enter_deferred(weft_pass *pass, const weft_tensor *x,
                                     weft_tensor *full) WEFT_CHECKED;

/* A norm in two halves: [2, H], of weight and of bias. Gathered weights are copied, since they are
 * not gathered for the second half. A ring's gradients are made here where their slot is filled in
 * the second half. Both lie in the deferred memory whether needed or not: they are small. */
typedef struct weft_norm_deferred {
    weft_tensor weights, gradients;
    bool later; /* gradients are made here */
} weft_norm_deferred;
/* In the first half, before the next functions. */
weft_status weft_norm_defer(weft_pass *pass, const weft_norm *norm,
                            weft_norm_deferred *out) WEFT_CHECKED;
/* weft_norm_rerun_to, in the second half. */
weft_status weft_norm_rerun_deferred(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                                     const weft_norm_stats *stats,
                                     const weft_norm_deferred *deferred,
                                     const weft_tensor *y) WEFT_CHECKED;
/* Adds gradients to a ring's slot, in the second half; nothing where they are no ring's. */
weft_status weft_norm_end_deferred(weft_pass *pass, const weft_norm *norm,
                                   const weft_norm_deferred *deferred) WEFT_CHECKED;

/* Communicators and coordinates of the mesh the model runs on. */
const weft_groups *weft_build_groups(const weft_build *build);
const weft_groups *weft_pass_groups(const weft_pass *pass);
/* The runtime of attention over cp; NULL: cp is 1. */
struct weft_context_runtime *weft_pass_context(const weft_pass *pass);
/* How the micro-batch's sequence is cut over cp; NULL: all of it is here. Borrowed. */
const weft_sequence_cut *weft_pass_cut(const weft_pass *pass);
/* weft_build_parameter of the rows that this TP rank holds (parallel/parameters/parameters.h). */
weft_status weft_build_rows(weft_build *build, const weft_parameter_spec *spec,
                            const weft_placed_rows *rows, weft_parameter **out) WEFT_CHECKED;
/* A linear layer by outputs, of which this TP rank has these; count 0: its even part. */
weft_status weft_linear_declare_rows(weft_build *build, const weft_model_options *options,
                                     const weft_linear_row *row,
                                     const weft_placed_rows *rows) WEFT_CHECKED;
/* Finds by global name an earlier layer's parameter of this stage, to share it. This layer's
 * backward runs first and writes the gradient, the other layer's adds to it. *out NULL: no layer of
 * this stage declared it. */
weft_status weft_build_share(weft_build *build, const char *name,
                             weft_parameter **out) WEFT_CHECKED;
/* The experts that each token chose in the pass's last forward, [T, K]; NULL where other things
 * decide too (a capacity's drops), and of a layer of another kind. */
const weft_tensor *weft_moe_choices(const weft_layer *layer, weft_pass *pass);
/* Declares the metric, a mean, of a loss that the layer adds to the step's: `share` of it. */
weft_status weft_build_loss(weft_build *build, const char *name, double share,
                            weft_metric **out) WEFT_CHECKED;
/* weft_build_child under this very prefix, without the layer's. */
weft_status weft_build_global_child(weft_build *build, const char *prefix,
                                    weft_layer *child) WEFT_CHECKED;
/* Declares a parameter under this very name, without the layer's prefix. */
weft_status weft_build_global_parameter(weft_build *build, const weft_parameter_spec *spec,
                                        weft_parameter **out) WEFT_CHECKED;

#define WEFT_WORD_EMBEDDINGS "embedding.word_embeddings.weight"
/* A parameter [V, H], split over TP by vocabulary: the word embeddings, which first and last stage
 * share, or under another global name the head's own. */
weft_status weft_vocabulary_declare(weft_build *build, const weft_model_options *options,
                                    const char *name, weft_parameter **out) WEFT_CHECKED;

/* An MLP of global width `ffn` and these modules; NULL when memory is short. */
weft_layer *weft_mlp_create_wide(const weft_model_options *options, size_t ffn, unsigned modules);

/* A depth of multi-token prediction, from 1, around a block, whose owner it is from here on; NULL
 * after an error. The head gives it the embedding, and says whether it is the first to write its
 * gradient. */
weft_layer *weft_mtp_create(const weft_model_options *options, weft_layer *block, int depth);
void weft_mtp_embed(weft_layer *mtp, weft_parameter *words, bool writes);
const weft_layer *weft_mtp_block(const weft_layer *mtp);
enum { WEFT_MAX_MTP_LAYERS = 8 };
/* Adds the next depth, with this block. The head computes its loss and frees it. WEFT_CONFIG: the
 * layer is no head; the block is freed. */
weft_status weft_head_add_mtp(weft_layer *head, const weft_model_options *options,
                              weft_layer *block) WEFT_CHECKED;
/* The block of a depth, from 0; NULL: the head does not have so many. */
const weft_layer *weft_head_mtp_block(const weft_layer *head, int depth);

/* Allocates a zeroed layer whose first member is the base and second the options. */
weft_layer *weft_layer_new(const weft_layer_ops *ops, size_t bytes,
                           const weft_model_options *options);
void weft_layer_free(weft_layer *layer);
/* Marks the layer as owned by a block or a model. WEFT_CONFIG: it has an owner. */
weft_status weft_layer_take(weft_layer *layer) WEFT_CHECKED;
/* Whether a model has initialised the layer. */
bool weft_layer_is_placed(const weft_layer *layer);
/* The layer whose forward or backward this thread is in, of several inside each other the inner
 * one. */
const weft_layer *weft_layer_innermost(void);
/* Whether the layer has a description of its own, of all that it does. */
bool weft_layer_describes_itself(const weft_layer *layer);
/* The layer's table in this library's version, whatever version the program has. */
weft_layer_ops weft_layer_table(const weft_layer *layer);
/* The layer's kind, or "of no kind"; below: the name of a function that the table lacks, or
 * NULL. */
const char *weft_layer_kind(const weft_layer *layer);
/* Of a failure with WEFT_INTERNAL in a function that a program wrote: says that the program made a
 * wrong call, and returns WEFT_CONFIG. Other failures return `status`. */
weft_status weft_program_failed(weft_status status, const char *whose);
/* The same of a layer's function; a layer of the library's returns `status`. */
weft_status weft_layer_blame(const weft_layer *layer, weft_status status);
/* The same of `doing` ("forward"), and puts the layer's name before the text, unless that begins
 * with a layer inside it. */
weft_status weft_layer_failed(const weft_layer *layer, const char *doing, weft_status status);
const char *weft_layer_missing(const weft_layer *layer);
/* ops->width of layers of ours: options.hidden_size. */
int64_t weft_layer_width(const weft_layer *layer);
/* ops->is_static, which may be NULL; and one that is always true. */
bool weft_layer_is_static(const weft_layer *layer);
bool weft_layer_always_static(const weft_layer *layer);

typedef struct weft_layer_common { /* the head of each of Weft's layers */
    weft_layer base;
    weft_model_options options;
} weft_layer_common;

typedef struct weft_mlp {
    weft_layer_common common;
    weft_linear fc1, fc2;
    size_t ffn_all;   /* global width */
    unsigned modules; /* modules that the MLP is part of: bits of layers/pass/recompute.h */
} weft_mlp;

typedef struct weft_block {
    weft_layer_common common;
    weft_layer *attention, *mlp; /* owned */
    weft_norm norm1, norm2;      /* before attention and MLP; none where norms stand behind alone */
    weft_norm after1, after2;    /* behind them; none where norms stand before alone */
} weft_block;

#endif
