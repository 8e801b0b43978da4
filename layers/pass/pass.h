/* The pass's own struct, and the model's. Private to layers/. */
#ifndef WEFT_LAYERS_PASS_PASS_H
#define WEFT_LAYERS_PASS_PASS_H

#include "layers/layers.h"
#include "layers/model/model.h"
#include "layers/moe/moe.h"
#include "layers/outline/outline.h"
#include "layers/pass/offload_rings.h"
#include "layers/pass/stack.h"
#include "layers/tier/run.h"
#include "parallel/mesh/mesh.h"
#include "parallel/parameters/parameters.h"
#include "schedule/operands.h"
#include "schedule/pair.h"

typedef struct weft_graphs weft_graphs;

enum { WEFT_MODEL_MAX_LAYERS = 4096 };
/* A micro-batch's inputs, 4 bytes a token each: tokens, labels and, with documents, positions,
 * first_seen and label_weights. */
enum { WEFT_PASS_INPUTS = 5, WEFT_PASS_PLAIN_INPUTS = 2 };

/* A layer's data from forward to backward. */
typedef struct weft_pass_kept {
    weft_tensor x;    /* its input; inside a recomputed group only the address */
    size_t host_mark; /* where its host memory begins */
} weft_pass_kept;

/* The rings of sharded layers (parallel/residency/residency.h): a pass's tasks use the slots in
 * rotation, from where the previous pass stopped. Each slot has an event at its last use; the task
 * that fills the slot next, in whatever program, waits for it. */
typedef struct weft_rings {
    weft_parameters *parameters; /* borrowed */
    weft_lane *reduce;           /* borrowed; NULL: nothing is trained */
    weft_lane *gather;           /* NULL: no sharded weights */
    /* Events of gradient slots, of weight slots. */
    weft_event *used[2][WEFT_RING_SLOTS];
    /* Likewise the ring's slot for the next program's first slot; with pairs of forwards, of
     * backwards, which have slots of their own. */
    int turn[2][WEFT_PAIR_STRANDS];
} weft_rings;

/* What the first half of a backward leaves to the second: functions of layers, in order, and memory
 * for what they read. */
typedef struct weft_deferred {
    weft_stack stack;
    struct weft_deferred_work {
        weft_deferred_function run;
        weft_layer *layer;
        int listed; /* the layer of the list that it is, or is inside */
    } * works;
    size_t num_works, next, capacity;
    size_t soon;             /* works below it: weft_pass_defer_soon */
    weft_rows rows, fullest; /* of its MoE layers, and of those that used most of the stack */
    size_t fullest_bytes;
} weft_deferred;

/* Memory that passes share for the stashes of one group of recomputed layers, or module. */
typedef struct weft_recomputed {
    weft_stack stack;
    weft_rows rows, fullest; /* of its MoE layers; of those that used most of it */
    size_t noted_bytes;      /* the bytes of `fullest` */
} weft_recomputed;

/* The programs of passes, with an MoE pipeline's inside the layers. */
typedef struct weft_bodies {
    const weft_task *inside[2];  /* the pipeline's, forward and backward; NULL: no MoE layers */
    weft_program *programs;      /* by chunk [WEFT_NUM_PASS_KINDS]; training has all kinds */
    weft_program *leaving;       /* by chunk: of pairs' backwards that leave weights' gradients */
    struct weft_bodies *earlier; /* NULL: the first */
} weft_bodies;

struct weft_pass {
    weft_model *model;
    const weft_bodies *bodies; /* of its micro-batch */
    int chunk, first, end;     /* its micro-batch's chunk, whose layers are [first, end) */
    weft_lane *lane;
    weft_micro_batch micro_batch;
    weft_tensor normed;      /* where blocks' norms write */
    bool backward;           /* a backward is being enqueued */
    weft_deferred *deferred; /* the slot of a backward in two halves */
    bool defers;             /* a layer's first half is being enqueued */
    bool leaves;             /* likewise, or a second, of a whole backward in a pair: the memory of
                                gradients is that of both */
    int listed;              /* the layer of the list that is being enqueued */
    weft_stack stash, host;
    /* What layers offload, apart from `host`: layers write there while the lanes still copy what
     * the pass before offloaded, perhaps another chunk's. */
    weft_stack copies;
    /* rows: this micro-batch's; kept_rows: of MoE layers that keep their stash; fullest: the same
     * two of the micro-batch that used most memory. */
    weft_rows rows, kept_rows, fullest, fullest_kept;
    weft_rows layer_rows;      /* rows of the layer whose forward runs */
    size_t held_bytes;         /* the stash, host and copied bytes of `fullest` */
    weft_stack host_before;    /* the host stack before a repeated forward */
    bool shares_stash;         /* stashes are pieces of weft_pass_recomputed */
    bool leaves_out;           /* likewise, within a recomputed module */
    bool repeats;              /* a forward runs again */
    weft_stack *out;           /* the layer's offloaded stash; NULL: none */
    bool goes_out;             /* stashes go to `out`, if there is one */
    weft_offloaded *offloaded; /* of the chunk's layers; NULL: nothing is offloaded */
    char *states;              /* every layer's state struct, back to back; then weft_pass_kept */
    void *near[WEFT_PASS_INPUTS]; /* with graphs: device memory of the inputs */
    float *near_losses;           /* likewise of the losses; NULL: they are not asked for */
    float *far_losses;            /* likewise, where they go behind the forward; NULL: nowhere */
};

/* The scratch of its forward, or of its backward. */
weft_stack *weft_pass_scratch_stack(const weft_pass *pass);

/* Of its forward, or of its backward. */
weft_recomputed *weft_pass_recomputed(const weft_pass *pass);

/* Gives the pass to a chunk, until its backward is over. */
void weft_pass_serve(weft_pass *pass, int chunk);
/* What a layer's first half leaves next goes here, where nothing is. */
void weft_deferred_empty(weft_deferred *deferred);
/* Notes rows, where more memory is in use than ever before. */
void weft_deferred_note(weft_deferred *deferred);
/* Does all that the first half left of a layer of the list; those above it come first. */
weft_status weft_pass_run_deferred(weft_pass *pass, int listed) WEFT_CHECKED;
/* The works below `end`. */
weft_status weft_pass_run_left(weft_pass *pass, size_t end) WEFT_CHECKED;
void weft_deferred_release(weft_deferred *deferred);

/* A layer of this stage, from the list or a child. */
typedef struct weft_member {
    weft_layer *layer;
    int parent; /* -1: of the list */
    size_t state_offset;
} weft_member;

/* A parameter that a layer uses: its own, or one that an earlier layer declared. */
typedef struct weft_use {
    weft_parameter *parameter;
    int member;
    bool declared;
} weft_use;

/* Rows at a rank's experts over those that balanced routing brings. */
typedef struct weft_loads {
    double *values;
    size_t count, capacity;
} weft_loads;

/* The layers: the whole list, and what this stage's declare. */
typedef struct weft_model_tree {
    weft_layer **layers; /* the whole list */
    int num_layers;
    size_t capacity;
    weft_member *members; /* by weft_layer_place.index */
    int num_members;
    size_t members_capacity;
    weft_use *uses; /* in order of declaration */
    int num_uses;
    size_t uses_capacity;
    weft_layer_place *places; /* the members' places, the last first */
    size_t states_bytes;  /* of a pass: the members' states, with kept_offset what follows them */
    weft_tied tied;       /* parameters of both first and last stage */
    weft_tied embeddings; /* this stage's parameters declared as embeddings */
} weft_model_tree;

/* What micro-batches under way hold. */
typedef struct weft_model_memory {
    weft_pass *passes;
    weft_deferred *deferred; /* the setup's; behind them what pairs leave */
    int num_deferred;
    size_t kept_offset;                            /* in a pass's states */
    weft_recomputed recomputed[WEFT_PAIR_STRANDS]; /* with pairs of forwards, of backwards; else
                                                      the first */
    weft_stack scratch;          /* shared: all passes run on one compute lane; at its bottom: */
    weft_tensor normed;          /* the latest output of blocks' norms; with pairs in each pass */
    weft_tensor gradients[2];    /* training: gradients between layers, alternating */
    weft_stack backward_scratch; /* with pairs backwards' own */
    /* Of the MoE layer that took most scratch; the most of backwards' while something left ran. */
    weft_moe_load scratch_load[WEFT_NUM_SCRATCH_USES];
    int scratch_layer[WEFT_NUM_SCRATCH_USES]; /* of the list */
    size_t left_peak_bytes;
    weft_rings rings;
    weft_offload_rings offload;
} weft_model_memory;

/* What layers count in a step. */
typedef struct weft_model_sums {
    weft_metrics *metrics;  /* recomputation's metrics */
    weft_metric_list list;  /* of all stages */
    weft_metric *own;       /* pinned, [WEFT_MAX_METRICS], by the list; NULL: none declared */
    bool declares;          /* while a layer is registered: it has declared some */
    weft_metric *saved;     /* pinned: own before a recomputation */
    double *expert_choices; /* weft_model_expert_choices; NULL: not counted */
    weft_loads loads;       /* loads of this step's MoE layers, in the order of their runs */
    bool repeats;           /* some forward runs again */
} weft_model_sums;

/* The programs of passes, and what runs them. */
typedef struct weft_model_run {
    struct weft_open_body *body; /* that is being enqueued, or was last (layers/pass/run.c) */
    weft_program *programs;      /* the bodies' without what is inside layers, likewise */
    weft_bodies *bodies;         /* the latest made */
    int num_slots;               /* room in: */
    weft_tensor *slots[WEFT_PAIR_STRANDS];      /* of the running program; of a pair's two */
    weft_executor executors[WEFT_PAIR_STRANDS]; /* likewise */
    weft_graphs *graphs;                        /* NULL: no graphs */
    bool loss_waits;                            /* weft_outline_loss_waits */
    bool *leaves;      /* by layer: whether its backward in a pair leaves its weights' gradients */
    weft_trace *trace; /* NULL: none is kept; borrowed */
    int trace_rank;
} weft_model_run;

struct weft_model {
    weft_model_setup setup;
    weft_model_options options;
    weft_shape shape;
    weft_model_function build; /* that made it; NULL: what the options describe */
    weft_model_tree tree;
    weft_layout layout; /* the list's cut into stages */
    weft_place place;
    weft_parameters *parameters;
    uint64_t num_frozen;
    weft_model_memory memory;
    weft_model_sums sums;
    weft_model_run run;
    weft_moe_runtime *moe;                /* NULL without experts */
    struct weft_context_runtime *context; /* NULL where cp is 1 */
    struct weft_tensor_runtime *tensor;   /* NULL: no product is cut in chunks */
    weft_tier_run *tier;                  /* NULL: experts are on the device */
    weft_layer_cost coarse; /* while one is rehearsed: sums of layers inside that list nothing */
    weft_arena arena;
};

weft_status weft_rings_create(weft_device *device, weft_parameters *parameters,
                              weft_rings *out) WEFT_CHECKED;
void weft_rings_release(weft_rings *rings);
/* Makes and checks the programs of this rank's passes (layers/pass/run.c). */
weft_status weft_model_make_programs(weft_model *model, const weft_outline *outline) WEFT_CHECKED;
/* layers/model/runtimes.c: create what MoE layers share, what attention layers share with cp above
 * 1, and what tensor-parallel products in chunks share. A model in C may have MoE layers that the
 * options do not list, but none without experts.
 */
weft_status weft_model_create_moe(weft_model *model) WEFT_CHECKED;
/* Gives MoE layers the programs of experts beyond device memory. */
weft_status weft_model_inline_tier(weft_model *model) WEFT_CHECKED;
weft_status weft_model_create_context(weft_model *model) WEFT_CHECKED;
weft_status weft_model_create_tensor(weft_model *model) WEFT_CHECKED;
/* Sets the lanes of the pass's bodies, and their tracks. */
void weft_pass_prepare(const weft_pass *pass, weft_executor *executor);
/* Whether graphs can hold all that this stage's layers enqueue. Pure. */
bool weft_graphs_fit(const weft_model *model);
weft_status weft_graphs_create(weft_model *model) WEFT_CHECKED;
void weft_graphs_destroy(weft_model *model);

/* Whether this rank has the layer. */
bool weft_model_has_layer(const weft_model *model, int layer);

/* The model's record of a layer of its stage. */
struct weft_layer_place {
    weft_layer_ops ops; /* the layer's, in this library's version */
    char name[64];
    int index;                   /* of the member */
    bool splits;                 /* weft_layer_set_splits */
    struct weft_alone *alone[2]; /* layers/pass/parts.h: forward, backward; NULL: not yet */
    weft_layer_place *next;
};

struct weft_build {
    weft_model *model;
    char prefix[64];
    int layer;  /* the layer's index in the list, for names of parameters */
    int member; /* the layer whose init runs */
};

/* Gives a layer (or the child of member `parent`) its index and state, and calls its init under
 * `prefix`. */
weft_status weft_model_register(weft_model *model, weft_layer *layer, const char *prefix,
                                int list_index, int parent) WEFT_CHECKED;

#endif
