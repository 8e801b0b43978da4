/* The outline: a model in C before it has memory. `build` runs and every layer declares its
 * parameters, without communicator or device, so mistakes show before ranks start and all ranks
 * know what the stages share. */
#ifndef WEFT_LAYERS_OUTLINE_OUTLINE_H
#define WEFT_LAYERS_OUTLINE_OUTLINE_H

#include "layers/model/model.h"
#include "layers/tier/tier.h"
#include "parallel/mesh/mesh.h"
#include "parallel/residency/residency.h"
#include "schedule/moe/layer.h"
#include "schedule/pass.h"

enum { WEFT_MAX_TIED = 8 };

/* Names of parameters declared with is_embedding. */
typedef struct weft_tied {
    int count;
    char names[WEFT_MAX_TIED][WEFT_MAX_NAME_BYTES];
} weft_tied;

/* A layer's sharded parameters of one section (parallel/residency/residency.h). */
typedef struct weft_unit_shape {
    uint64_t elements; /* padding included */
    int num_buckets;   /* an expert is a bucket of its own */
} weft_unit_shape;

/* A layer of the list. */
typedef struct weft_outline_layer {
    char name[64];       /* "decoder.layers.3" */
    const char *kind;    /* ops->kind; lives as long as the program */
    bool in_place;       /* ops->in_place */
    int recompute_group; /* weft_recompute_group */
    bool offloads;       /* it offloads a part of its stash, or its input (layers/pass/offload.h) */
    bool offloads_input;
    uint64_t offloaded_bytes;     /* the part's bytes */
    bool host_waits;              /* the host waits inside its forward's program */
    weft_description description; /* for outline.shape, children included */
    weft_held *parameters;        /* as init declared them, in order */
    int num_experts;              /* local experts, each in a bucket of its own */
    uint64_t expert_elements;     /* of one such bucket */
    int num_parameters;
    weft_unit_shape units[WEFT_NUM_SECTIONS];
} weft_outline_layer;

typedef struct weft_outline {
    int num_layers;
    weft_outline_layer *layers;
    weft_shape shape;         /* a rank's shape, which descriptions are for */
    weft_layout layout;       /* the cut into p * v virtual stages */
    weft_tied tied;           /* pp > 1: parameters of which the last stage has a copy */
    weft_residency residency; /* of a rank's parameters */
    weft_tier_options tier;   /* where experts are; what of the setup */
    bool accumulates, steps_at_once;
    bool pairs;               /* forwards and backwards run as pairs, with memory of their own */
    bool leaves_weights;      /* of weft_model_setup */
    weft_held_elements *held; /* by pipeline rank */
    weft_metric_list metrics;
    uint64_t num_frozen; /* elements of the parameters that setup.rules freeze */
} weft_outline;

/* Runs `build` (NULL: what the options describe) and lets each layer declare its parameters on one
 * rank of its stage. Reads of the setup: options, own_options, rules, parallel, micro_batch_size,
 * dtype, training, moe, logit_rows. weft_outline_release frees what *out owns. Pure if `build` and
 * the layers' init are. Errors name the layer: WEFT_CONFIG for a list that is no model (empty;
 * layers at places that are not theirs; fewer layers than stages; missing ops) or whose stages do
 * not tie the same parameters, and those of `build` and of init. A rule of setup.rules that
 * matches no parameter, or rules that freeze all: WEFT_CONFIG. */
weft_status weft_model_outline(const weft_model_setup *setup, const weft_mesh *mesh,
                               weft_model_function build, weft_outline *out) WEFT_CHECKED;

/* A parameter of a whole model, as checkpoints have it. */
typedef struct weft_listed_parameter {
    char name[WEFT_MAX_NAME_BYTES];
    int num_dims;
    size_t dims[WEFT_MAX_DIMS];
    bool by_expert; /* the first axis counts experts */
    bool is_matrix; /* of weft_parameter_spec */
} weft_listed_parameter;

/* The parameters of the model on one rank, each once, sorted by name; memory from the arena. Reads
 * of the setup: options, own_options, dtype, micro_batch_size. Errors as weft_model_outline. */
weft_status weft_model_list_parameters(const weft_model_setup *setup, weft_model_function build,
                                       weft_arena *arena, weft_listed_parameter **out,
                                       size_t *out_count) WEFT_CHECKED;

/* The number of buckets of a layer's parameters: one for each local expert. */
size_t weft_outline_parts(const weft_outline_layer *layer);
/* Whether the layer has sharded parameters. */
bool weft_outline_shares(const weft_outline_layer *layer);
/* Fills outline->held and the layers' units. */
weft_status weft_outline_hold(weft_outline *outline, const weft_mesh *mesh) WEFT_CHECKED;
/* The buckets of a pipeline rank's gradients, as its optimizer has them, with chunks; from the
 * arena. */
weft_status weft_outline_buckets(const weft_outline *outline, const weft_mesh *mesh, int rank,
                                 weft_arena *arena, weft_buckets *out) WEFT_CHECKED;

/* The shape of a chunk's passes, with memory from the arena. */
weft_status weft_outline_pass(const weft_outline *outline, int rank, int chunk, weft_arena *arena,
                              weft_chunk_shape *out) WEFT_CHECKED;

/* Whether a backward's first recomputation is a task of its own, which does not wait for a gradient
 * from another rank. Layers that keep their input recompute inside backward. */
bool weft_outline_recomputes_early(const weft_outline *outline, int rank, int chunk);

/* Whether that task recomputes the layer, one of the chunk. */
bool weft_outline_recomputes_layer_early(const weft_outline *outline, int rank, int chunk,
                                         int layer);
/* Whether the layer's backward can be in two halves. */
bool weft_outline_splits(const weft_outline *outline, int layer);
/* Whether in a pair the forward's last layer of the model, which makes its gradients, comes behind
 * the whole backward: layers share parameters, whose gradients are then summed in one order. */
bool weft_outline_loss_waits(const weft_outline *outline);
/* Whether some layer's forward runs again. */
bool weft_outline_repeats(const weft_outline *outline);

/* The partitions of MoE layers of this shape. */
weft_moe_pipeline weft_shape_pipeline(const weft_shape *shape);
/* Gives the shape the form in which rows travel between MoE layers. */
void weft_shape_exchange(const weft_moe_options *moe, weft_shape *shape);

void weft_outline_release(weft_outline *outline); /* a zeroed one is legal */

bool weft_tied_has(const weft_tied *tied, const char *name);

/* --- what the outline and the model share (layers/model/list.c) --------------------------- */

/* Runs `build` and checks the list; NULL: what the options describe. */
weft_status weft_model_build(weft_model *model, weft_model_function build) WEFT_CHECKED;
/* Megatron's names of layers of the list: "embedding.", "decoder.layers.0.", ..., "decoder.". */
void weft_model_layer_prefix(const weft_model *model, int index, char *out, size_t capacity);
/* Frees layers, their places, lists and metrics. */
void weft_model_forget(weft_model *model);
/* Initialises the layers of model->rank: they declare their parameters. */
weft_status weft_model_init_layers(weft_model *model) WEFT_CHECKED;

#endif
