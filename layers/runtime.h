/* Models at run time: what the trainer drives. See include/weft/model.h for building them. */
#ifndef WEFT_LAYERS_RUNTIME_H
#define WEFT_LAYERS_RUNTIME_H

#include <weft/model.h>

#include "core/options.h"
#include "core/trace.h"
#include "layers/describe.h"
#include "layers/moe_options.h"
#include "layers/offload.h"
#include "layers/recompute.h"
#include "layers/tier.h"
#include "parallel/layout.h"
#include "parallel/parameters.h"
#include "parallel/sequence.h"
#include "schedule/options.h"

extern const weft_option_row weft_model_rows[];
extern const size_t weft_num_model_rows;
/* Fills in defaults of fields that are 0, and makes checks that rows cannot make: WEFT_CONFIG. */
weft_status weft_model_options_resolve(weft_model_options *options) WEFT_CHECKED;

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

/* The metrics that layers of all stages declared by weft_build_metric, in order. */
enum { WEFT_MAX_METRICS = 32 };
typedef struct weft_metric_list {
    int count;
    struct {
        char name[48];
        weft_metric_kind kind;
    } rows[WEFT_MAX_METRICS];
} weft_metric_list;

typedef struct weft_model_setup {
    const weft_model_options *options; /* resolved; copied */
    const void *own_options;           /* of the application; NULL: none; borrowed */
    weft_string_list frozen;           /* patterns of parameters' names; each matches one */
    const weft_groups *groups;         /* borrowed */
    weft_device *device;               /* borrowed */
    weft_dtype dtype;
    int64_t micro_batch_size;
    size_t bucket_elements;
    bool training;  /* false: weights alone; logits are kept */
    bool evaluates; /* a trained model: weights alone; its losses have the bits of training's */
    const weft_parallel_options *parallel; /* the cut into stages; NULL: evenly; borrowed */
    int num_passes;                        /* micro-batches in flight on this rank */
    const int *pass_chunks; /* each pass's chunk; NULL: chunk 0; borrowed until the model is made */
    const weft_recompute_options *recompute; /* NULL: nothing; borrowed */
    const weft_offload_options *offload;     /* NULL: nothing; borrowed */
    const weft_tier_options *tier;           /* NULL: experts are on the device; borrowed */
    bool split_master;                       /* bf16 masters are split; also in the experts' file */
    bool accumulates;                        /* a step has several micro-batches on this rank */
    bool steps_at_once;                      /* the host steps experts before the norm is known */
    int host_threads;                        /* threads of the host's steps, from 1 */
    uint64_t seed;
    weft_moe_options moe;
    size_t logit_rows; /* weft_shape.logit_rows, which weft_model_create sets */
    bool graphs;       /* run passes as CUDA graphs where device and layers can */
    bool documents;    /* micro-batches have documents' inputs */
    int plain_kernels; /* outlines alone: weft_shape.plain_kernels */
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
const weft_layout *weft_model_layout(const weft_model *model);
/* Sum over all layers: FLOPs of forward and backward of one micro-batch on the whole model (not
 * divided by tp), and global parameters. */
void weft_model_totals(const weft_model *model, uint64_t *out_params, double *out_flops);

/* One micro-batch. */
typedef struct weft_micro_batch {
    /* [S / cp, B], first_seen [S, B], device-readable until backward is done. positions, first_seen
     * and label_weights: optional, if the setup has documents; see weft_pass_positions. The host
     * reads first_seen, too. */
    const int32_t *tokens, *labels, *positions, *first_seen;
    const float *label_weights;
    /* cp > 1: the sequence's cut, and the index in the sequence of each token here, int32 [S / cp],
     * device-readable. NULL: the whole sequence is here. */
    const weft_sequence_cut *cut;
    const int32_t *index;
    int64_t step;
    uint64_t first_sample; /* index in the global batch */
    /* Whether its forward, and its backward, is the first of the step through these layers. */
    bool overwrite, backward_overwrites;
    float loss_scale; /* 1 / micro-batches in the global batch */
    bool training;
} weft_micro_batch;

/* Forward of this stage into pass `slot`. x: input of the stage (NULL on the first stage, which
 * reads tokens); y: where the stage's output goes (NULL on the last stage). x must stay valid until
 * the backward. Enqueued on `lane`. */
weft_status weft_model_forward(weft_model *model, int slot, const weft_micro_batch *micro_batch,
                               weft_lane *lane, const weft_tensor *x, weft_tensor *y) WEFT_CHECKED;
/* What the backward of pass `slot` makes again before it needs a gradient. Where the pass's chunk
 * has such a part (weft_outline_recomputes_early), it comes right before the backward. */
weft_status weft_model_recompute(weft_model *model, int slot, weft_lane *lane) WEFT_CHECKED;
/* Backward of pass `slot`. dy NULL on the last stage, dx NULL on the first. points[i], unless
 * NULL, is recorded where the gradients of layer i are final on `lane`. points NULL: no task waits
 * for them, and the backward may be kept as a graph. */
weft_status weft_model_backward(weft_model *model, int slot, weft_lane *lane, const weft_tensor *dy,
                                weft_tensor *dx, weft_event *const *points) WEFT_CHECKED;
/* Bytes of the hidden states that travel between stages. */
size_t weft_model_boundary_bytes(const weft_model *model);
/* The step's sums on this rank; valid when the lane is idle. */
weft_metrics *weft_model_metrics(weft_model *model);
/* The layers' own, the same list on every rank; what this rank has of them: [list->count]. */
const weft_metric_list *weft_model_metric_list(const weft_model *model);
const weft_metric *weft_model_own_metrics(const weft_model *model);
/* Of each micro-batch and MoE layer, in the order in which they ran: the rows at this rank's
 * experts over those that balanced routing brings, or of the fullest rank where no tokens travel.
 * The ranks of an EP group have as many. */
double *weft_model_loads(weft_model *model, size_t *out_count);
/* What the passes' own memory of a purpose comes to: `bytes` counts what was reserved for the
 * planned load, or as much more as was taken at once; `blocks_bytes` is held now. */
typedef struct weft_stack_use {
    size_t bytes, blocks_bytes;
    bool grew;
} weft_stack_use;
/* Between steps: what passes grew becomes one block each. Waits for the lanes where there is any.
 */
void weft_model_settle(weft_model *model);
void weft_model_held(const weft_model *model, weft_memory_purpose purpose, weft_stack_use *out);
/* The loads at which a footprint is what was held. */
void weft_model_held_loads(const weft_model *model, weft_moe_held_loads *out);
/* Experts beyond device memory; where all are on the device these do nothing, and events are NULL.
 * `bucket`: of section EXPERT (parallel/parameters.h). A step, or an evaluation, begins; */
void weft_model_begin_tier(weft_model *model, bool training);
/* its update uses the bucket: for the norm, or steps it; */
void weft_model_update_expert(weft_model *model, int bucket, bool is_step);
/* whether the bucket has a gradient in this step; */
bool weft_model_has_gradient(const weft_model *model, int bucket);
/* the event where that is in host memory, and the one where its update is over; */
weft_event *weft_model_landed(const weft_model *model, int bucket);
weft_event *weft_model_stepped(const weft_model *model, int bucket);
/* whose update the tasks of this bucket do, once all gradients of its layer are enqueued; */
int weft_model_turn(weft_model *model, int bucket, weft_tier_turn_kind kind);
/* of an expert in a file, on the lane of the file, NULL where none is: a place for its record, and
 * there its gradient, or all of it; */
weft_status weft_model_make_room(weft_model *model, int bucket) WEFT_CHECKED;
weft_status weft_model_read_expert(weft_model *model, int bucket, bool whole) WEFT_CHECKED;
weft_lane *weft_model_file_lane(const weft_model *model);
/* whether such experts are read and step while the layers below go backward, which `passed` tells
 * of: the layer's backward is enqueued, its point recorded; */
bool weft_model_goes_ahead(const weft_model *model);
void weft_model_tell_passed(weft_model *model, weft_status (*passed)(void *context, int layer),
                            void *context);
/* from here on what the device has of its weights is out of date; if it is kept there, it comes up
 * again; */
void weft_model_change(weft_model *model, int bucket);
weft_status weft_model_refresh(weft_model *model, int bucket, weft_lane *lane) WEFT_CHECKED;
/* the bucket's update is over at this point of the lane, where its event is recorded; */
weft_status weft_model_end_update(weft_model *model, int bucket, weft_lane *lane) WEFT_CHECKED;
/* once, before the next: experts that are dealt out over ranks see those of the others. Collective
 * over EP; */
weft_status weft_model_join_tier(weft_model *model) WEFT_CHECKED;
/* all weights changed, the lanes being idle (first values, a load): before the first forward;
 * waits for lanes that run on. */
weft_status weft_model_reset_tier(weft_model *model) WEFT_CHECKED;
weft_status weft_model_drain_tier(weft_model *model) WEFT_CHECKED;
/* NULL: there is none. */
const weft_tier_counts *weft_model_tier_counts(const weft_model *model);
/* Clears all of these, before a step. */
void weft_model_clear_metrics(weft_model *model);
/* Whether the last layer is Weft's head; one of the program's own reads labels as it likes. */
bool weft_model_labels_are_tokens(const weft_model *model);
/* Elements of the whole model's frozen parameters. */
uint64_t weft_model_num_frozen(const weft_model *model);
/* Logits [S * B, V local] of the last forward in `slot` without training (last stage). */
weft_status weft_model_logits(weft_model *model, int slot, weft_tensor *out) WEFT_CHECKED;
/* Changes (n, S) of the MoE layers for the forwards to come; none may be in flight. Does nothing in
 * a model without such layers. */
weft_status weft_model_set_moe_pipeline(weft_model *model,
                                        const weft_moe_pipeline *pipeline) WEFT_CHECKED;
/* The same with other programs (forward, backward) on that pipeline's slots: measurements leave out
 * tasks and drop waits. They are not checked and need not give right results. Borrowed. */
weft_status weft_model_set_moe_programs(weft_model *model, const weft_moe_pipeline *pipeline,
                                        const weft_program programs[2]) WEFT_CHECKED;
/* Pins what one operation of this model on `compute`, and on lanes of its own, needs
 * (weft_comm_reserve); uneven routing may need more, later. */
weft_status weft_model_reserve(weft_model *model, weft_lane *compute) WEFT_CHECKED;
/* The lane on which backwards reduce what layers share out, and on which nothing else of their
 * gradient groups stands out of order: the step's. Borrowed. Needed before the first backward. */
void weft_model_use_reduce_lane(weft_model *model, weft_lane *reduce);
/* The MoE layers' (n, S) now; n = 1 without such layers. */
weft_moe_pipeline weft_model_moe_pipeline(const weft_model *model);
/* Whether tokens of MoE layers travel on this mesh, so that (n, S) has a meaning. */
bool weft_model_moe_exchanges(const weft_model *model);
/* From now on adds slices of what layers do to this trace, as this rank; NULL: no more. Borrowed.
 * Tracks are those of the lanes and those of layers/note.h. */
void weft_model_set_trace(weft_model *model, weft_trace *trace, int rank);
const char *const *weft_model_track_names(int *out_count); /* static */

/* Forwards and backwards so far that were enqueued as graphs. */
uint64_t weft_model_num_replays(const weft_model *model);

/* Bytes that pass `slot` has stashed now (for tests against describe). */
size_t weft_model_stash_bytes(const weft_model *model, int slot);

#endif
