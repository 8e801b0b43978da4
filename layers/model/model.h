/* Models at run time: what the trainer drives. See include/weft/model.h for building them. */
#ifndef WEFT_LAYERS_MODEL_MODEL_H
#define WEFT_LAYERS_MODEL_MODEL_H

#include <weft/model.h>

#include "core/options/options.h"
#include "core/trace/trace.h"
#include "layers/describe/describe.h"
#include "layers/moe/options.h"
#include "layers/pass/offload.h"
#include "layers/pass/recompute.h"
#include "layers/tier/tier.h"
#include "parallel/mesh/mesh.h"
#include "parallel/parameters/parameters.h"
#include "parallel/sequence.h"
#include "schedule/options.h"

extern const weft_key weft_model_rows[];
extern const size_t weft_num_model_rows;
/* Fills in defaults of fields that are 0, and makes checks that rows cannot make: WEFT_CONFIG. */
weft_status weft_model_options_resolve(weft_model_options *options) WEFT_CHECKED;

/* Rows that moe_router_forced_load brings to the fullest rank's experts, over the mean: it is the
 * first expert's, and the others share the rest. 0: none is forced. */
double weft_model_forced_load(const weft_model_options *options, int ep);
/* The shape of layers on this mesh, with synchronous MoE layers. Pure. */
weft_shape weft_model_shape(const weft_model_options *options, const weft_mesh *mesh,
                            int64_t micro_batch_size, weft_dtype dtype, bool training);
/* Rows and bytes of the hidden states between layers, on one rank. Pure. */
size_t weft_shape_boundary_rows(const weft_shape *shape);
size_t weft_shape_boundary_bytes(const weft_shape *shape);

/* Whether the model fits the mesh: a layer a stage, and heads, query groups, widths and sequence
 * divide as tp and etp need. options: resolved; num_layers: those between the first and the last.
 * Pure. WEFT_CONFIG, the text starting with the key of section "parallel" that does not fit. */
weft_status weft_model_check_mesh(const weft_model_options *options, const weft_mesh *mesh,
                                  int64_t num_layers, int64_t micro_batch_size) WEFT_CHECKED;

/* Whether the MoE layers can run on the mesh as section "parallel" says: partitions, peers, the
 * form of the all-to-all and its chunks. Pure. WEFT_CONFIG, as above. */
weft_status weft_model_check_moe(const weft_model_options *options,
                                 const weft_schedule_options *schedule,
                                 const weft_mesh *mesh) WEFT_CHECKED;

/* A layer that a model function makes otherwise than weft_model_build_gpt does. */
typedef struct weft_other_layer {
    int index;       /* -1: there is none */
    const char *key; /* of section "model", which describes it; NULL: more than one does */
} weft_other_layer;
/* The first such layer. Layers are the same that have the same options. options: resolved. Errors:
 * the function's. */
weft_status weft_model_find_other(const weft_model_options *options, const void *own_options,
                                  weft_model_function build, weft_other_layer *out) WEFT_CHECKED;

/* The metrics that layers of all stages declared by weft_build_metric, in order. */
enum { WEFT_MAX_METRICS = 32 };
typedef struct weft_metric_list {
    int count;
    struct {
        char name[48];
        weft_metric_kind kind;
        double share; /* by which a mean counts in the loss whose gradient layers make */
    } rows[WEFT_MAX_METRICS];
} weft_metric_list;

typedef struct weft_model_setup {
    const weft_model_options *options; /* resolved; copied */
    const void *own_options;           /* of the application; NULL: none; borrowed */
    weft_string_list rules;            /* of train.parameter_rules; each matches a parameter */
    const weft_groups *groups;         /* borrowed */
    weft_device *device;               /* borrowed */
    weft_dtype dtype;
    int64_t micro_batch_size;
    size_t bucket_elements;
    bool training;  /* false: weights alone; logits are kept */
    bool evaluates; /* a trained model: weights alone; its losses have the bits of training's */
    const weft_parallel_options *parallel; /* the cut into stages; NULL: evenly; borrowed */
    int num_passes;                        /* micro-batches in flight on this rank */
    /* The chunk for whose stash each pass has memory; chunks whose stash takes no more may use it,
     * too. NULL: chunk 0; borrowed until the model is made. */
    const int *pass_chunks;
    /* Slots for backwards in two halves, and each slot's chunk (likewise). 0: all backwards are
     * whole. Outlines look only at whether there are any (weft_shape.splits_backward). */
    int num_deferred;
    const int *deferred_chunks;
    const weft_recompute_options *recompute; /* NULL: nothing; borrowed */
    const weft_offload_options *offload;     /* NULL: nothing; borrowed */
    const weft_tier_options *tier;           /* NULL: experts are on the device; borrowed */
    bool muon;                               /* steps matrices (weft_residency.muon) */
    bool split_master;                       /* bf16 masters are split; also in the experts' file */
    bool accumulates;                        /* a step has several micro-batches on this rank */
    bool steps_at_once;                      /* the host steps experts before the norm is known */
    int host_threads;                        /* threads of the host's steps, from 1 */
    uint64_t seed;
    weft_moe_options moe;
    size_t logit_rows;    /* weft_shape.logit_rows; 0: weft_model_create sets it by the device */
    bool pairs;           /* a forward may run with a backward (weft_model_pair) */
    bool leaves_weights;  /* with pairs: whole backwards in them leave weights' gradients for later;
                             what reductions share out has memory for two layers then */
    bool graphs;          /* run passes as CUDA graphs where device and layers can */
    bool documents;       /* micro-batches have documents' inputs */
    bool losses;          /* micro-batches have memory for each label's loss */
    int plain_kernels;    /* outlines alone: weft_shape.plain_kernels */
    size_t cached_tokens; /* weft_shape.cached_tokens; each pass then continues the same text */
} weft_model_setup;

/* Runs `build`, cuts the list into stages, initialises this stage's layers, lays out parameters and
 * reserves the passes' memory from `describe`. Rank-local; follow with weft_comm_agree. */
weft_status weft_model_create(const weft_model_setup *setup, weft_model_function build,
                              weft_model **out) WEFT_CHECKED;
void weft_model_destroy(weft_model *model);

weft_parameters *weft_model_parameters(weft_model *model);
const weft_shape *weft_model_get_shape(const weft_model *model);
/* All layers of the model (every rank has the list), and its cut into stages. */
int weft_model_num_layers(const weft_model *model);
const weft_layer *weft_model_layer(const weft_model *model, int index);
/* Sum over all layers: FLOPs of forward and backward of one micro-batch on the whole model (not
 * divided by tp), and global parameters. */
weft_status weft_model_totals(const weft_model *model, uint64_t *out_params,
                              double *out_flops) WEFT_CHECKED;

/* One micro-batch. */
typedef struct weft_micro_batch {
    /* [S / cp, B], first_seen [S, B], device-readable until backward is done. positions, first_seen
     * and label_weights: optional, if the setup has documents; see weft_pass_positions. The host
     * reads first_seen, too. */
    const int32_t *tokens, *labels, *positions, *first_seen;
    const float *label_weights;
    /* NULL; or [S / cp, B], pinned, if the setup has losses: each label's loss, times its weight,
     * on tp rank 0 of the last stage, by the end of its forward. */
    float *losses;
    /* cp > 1: the sequence's cut, and the index in the sequence of each token here, int32 [S / cp],
     * device-readable. NULL: the whole sequence is here. With a cache: each token's place. */
    const weft_sequence_cut *cut;
    const int32_t *index;
    size_t first_token; /* of a model that caches: how many tokens came before these */
    int64_t step;
    int chunk;             /* of this rank, through whose layers it goes */
    uint64_t first_sample; /* index in the global batch */
    /* Whether its forward is the step's first through these layers; whether its backward is. */
    bool overwrite, backward_overwrites;
    float loss_scale; /* 1 / micro-batches in the global batch */
    bool training;
} weft_micro_batch;

/* Bodies: the next functions open one, a pass or a pair of two, and enqueue what stands before its
 * first part; weft_model_next enqueues its parts, one a call, until it is over. Kept as a graph it
 * is over at once. *out_layer: the layer whose gradients hold this micro-batch's share on the lane
 * behind this part, with those of all layers above it; -1: none, as in pairs that leave some. */
bool weft_model_goes_on(const weft_model *model);
weft_status weft_model_next(weft_model *model, int *out_layer) WEFT_CHECKED;
/* All parts. */
weft_status weft_model_enqueue(weft_model *model) WEFT_CHECKED;
/* Forward of this stage into pass `slot`. x: input of the stage (NULL on the first stage, which
 * reads tokens); y: where the stage's output goes (NULL on the last stage). x must stay valid until
 * the backward. Enqueued on `lane`. */
weft_status weft_model_forward(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                               weft_lane *lane, const weft_tensor *x, weft_tensor *y) WEFT_CHECKED;
/* Recomputes what the backward of pass `slot` needs before any gradient. Call it right before the
 * backward if weft_outline_recomputes_early. */
weft_status weft_model_recompute(weft_model *model, int slot, weft_lane *lane) WEFT_CHECKED;
/* Backward of pass `slot`. dy NULL on the last stage, dx NULL on the first. has_points: a task
 * waits for a layer's gradients, so that the backward is not kept as a graph. */
weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, bool has_points) WEFT_CHECKED;
/* The two as one pair (schedule/pair.h), of passes in different slots. The setup has pairs. The
 * backward is whole, or its input's half (see below) if a slot `deferred` is named. */
typedef struct weft_pair_call {
    int forward_slot, backward_slot;
    int deferred;                 /* -1: the backward is whole */
    weft_micro_batch micro_batch; /* the forward's */
    const weft_tensor *x, *dy;
    weft_tensor *y, *dx;
} weft_pair_call;
weft_status weft_model_pair(weft_model *model, weft_lane *lane,
                            const weft_pair_call *call) WEFT_CHECKED;
/* The same in two halves, with the same bits in every gradient: dx first; what gradients of
 * parameters need is kept in `deferred`, a slot of the setup's num_deferred for the pass's chunk.
 * Until the second half nothing else uses the slot, or the pass. A chunk's second halves and whole
 * backwards follow each other in the order of their forwards. Layers that cannot be split do all
 * in the first half: those of programs, recomputed as a whole or offloading; blocks with such a
 * layer inside, with norms of queries and keys, with a recomputed MLP or MoE layer, or with experts
 * that are beyond device memory or do not keep their tokens. Layers' points are in the
 * second half, in order. */
weft_status weft_model_backward_input(weft_model *model, int slot, int deferred, weft_lane *lane,
                                      const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
weft_status weft_model_backward_weights(weft_model *model, int slot, int deferred, weft_lane *lane,
                                        bool has_points) WEFT_CHECKED;
/* Bytes of the hidden states that travel between stages. */
size_t weft_model_boundary_bytes(const weft_model *model);
/* The step's sums on this rank; valid when the lane is idle. */
weft_metrics *weft_model_metrics(weft_model *model);
/* The layers' own metrics, the same list on every rank; below: this rank's values,
 * [list->count]. */
const weft_metric_list *weft_model_metric_list(const weft_model *model);
const weft_metric *weft_model_own_metrics(const weft_model *model);
/* One load for each run of an MoE layer, in order: rows at this rank's experts (the fullest rank's
 * where no tokens travel) over those under balanced routing. The ranks of an EP group have equally
 * many. */
double *weft_model_loads(weft_model *model, size_t *out_count);
/* From now on steps count their tokens' choices of each expert. Errors: WEFT_MEMORY. */
weft_status weft_model_count_choices(weft_model *model) WEFT_CHECKED;
/* Of the step so far, [layers of the model][num_experts], dropped ones too; the sum over all ranks
 * is the global batch's. NULL: they are not counted. Borrowed; the caller may change them. */
double *weft_model_expert_choices(weft_model *model, size_t *out_count);
/* The passes' own memory of one purpose. bytes: reserved for the planned load, or the most in use
 * at once if that is more; blocks_bytes: allocated now. */
typedef struct weft_stack_use {
    size_t bytes, blocks_bytes;
    bool grew;
} weft_stack_use;
/* Between steps: merges the blocks by which stacks grew into one each. Waits for the lanes if there
 * are any. */
void weft_model_settle(weft_model *model);
void weft_model_held(const weft_model *model, weft_memory_purpose purpose, weft_stack_use *out);
/* The loads at which a footprint equals the memory in use. */
void weft_model_held_loads(const weft_model *model, weft_moe_held_loads *out);
/* Experts beyond device memory. Without any the next functions do nothing, and events are NULL.
 * `bucket`: of section EXPERT (parallel/parameters/parameters.h). Begins a step or an evaluation.
 */
void weft_model_begin_tier(weft_model *model, bool training);
/* The update uses the bucket, for the norm or to step it. */
void weft_model_update_expert(weft_model *model, int bucket, bool is_step);
/* Whether the bucket has a gradient in this step. */
bool weft_model_has_gradient(const weft_model *model, int bucket);
/* Events: the bucket's gradient is in host memory; its update is over. */
weft_event *weft_model_landed(const weft_model *model, int bucket);
weft_event *weft_model_stepped(const weft_model *model, int bucket);
/* The bucket whose update this bucket's tasks do, once all gradients of the layer are enqueued. */
int weft_model_turn(weft_model *model, int bucket, weft_tier_turn_kind kind);
/* An expert in a file, on the file's lane (NULL: none): frees a place for its record; reads its
 * gradient, or all of it. */
weft_status weft_model_make_room(weft_model *model, int bucket) WEFT_CHECKED;
weft_status weft_model_read_expert(weft_model *model, int bucket, bool whole) WEFT_CHECKED;
weft_lane *weft_model_file_lane(const weft_model *model);
/* Whether such experts are read and stepped during the backward of the layers below. */
bool weft_model_goes_ahead(const weft_model *model);
/* Marks the device's copy of the weights as out of date; a kept expert comes up again. */
void weft_model_change(weft_model *model, int bucket);
weft_status weft_model_refresh(weft_model *model, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Records the event of the bucket's finished update on the lane. */
weft_status weft_model_end_update(weft_model *model, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Call it once, before weft_model_reset_tier: connects ranks that compute each other's experts.
 * Collective over EP. */
weft_status weft_model_join_tier(weft_model *model) WEFT_CHECKED;
/* Call it after all weights changed (first values, a load), with idle lanes, before the first
 * forward; below: waits for lanes that run on. */
weft_status weft_model_reset_tier(weft_model *model) WEFT_CHECKED;
weft_status weft_model_drain_tier(weft_model *model) WEFT_CHECKED;
/* NULL: no such experts. */
const weft_tier_counts *weft_model_tier_counts(const weft_model *model);
/* Clears metrics and loads, before a step. */
void weft_model_clear_metrics(weft_model *model);
/* Whether the last layer is Weft's head; a program's own last layer may read labels in its own
 * way. */
bool weft_model_labels_are_tokens(const weft_model *model);
/* Elements of the whole model's frozen parameters. */
uint64_t weft_model_num_frozen(const weft_model *model);
/* Logits [S * B, V local] of the last forward in `slot` without training (last stage). */
weft_status weft_model_logits(weft_model *model, int slot, weft_tensor *out) WEFT_CHECKED;
/* Of a model that caches keys and values: later passes bring `seq` tokens, of those that it was
 * made for. None may be in flight. */
void weft_model_bring(weft_model *model, size_t seq);
/* Changes (n, S) of the MoE layers for later forwards; none may be in flight. Does nothing in a
 * model without such layers. */
weft_status weft_model_set_moe_pipeline(weft_model *model,
                                        const weft_moe_pipeline *pipeline) WEFT_CHECKED;
/* The same with other programs (forward, backward) on that pipeline's slots: measurements leave out
 * tasks and drop waits. Nobody checks these, and their results may be wrong. Borrowed. */
weft_status weft_model_set_moe_programs(weft_model *model, const weft_moe_pipeline *pipeline,
                                        const weft_program programs[2]) WEFT_CHECKED;
/* Pins the memory of this model's operations on `compute` and on its own lanes (weft_comm_reserve);
 * uneven routing may pin more later. */
weft_status weft_model_reserve(weft_model *model, weft_lane *compute) WEFT_CHECKED;
/* The step's reduce lane, on which backwards also reduce sharded gradients, in one order for each
 * gradient group. Borrowed. Needed before the first backward. */
void weft_model_use_reduce_lane(weft_model *model, weft_lane *reduce);
/* The MoE layers' current (n, S); n = 1 without such layers. */
weft_moe_pipeline weft_model_moe_pipeline(const weft_model *model);
/* Whether tokens of MoE layers travel on this mesh, so that (n, S) has a meaning. */
bool weft_model_moe_exchanges(const weft_model *model);
/* Adds slices of the layers' work to this trace, as this rank; NULL: stops. Borrowed. Tracks are
 * those of the lanes and those of layers/pass/note.h. */
void weft_model_set_trace(weft_model *model, weft_trace *trace, int rank);
const char *const *weft_model_track_names(int *out_count); /* static */

/* The number of passes enqueued as graphs so far. */
uint64_t weft_model_num_replays(const weft_model *model);

/* Bytes in the stash of pass `slot` (for tests of describe). */
size_t weft_model_stash_bytes(const weft_model *model, int slot);

#endif
