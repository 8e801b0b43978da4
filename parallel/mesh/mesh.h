/* The mesh: two grids that tile the same ranks (Megatron's parallel folding).
 *
 *   dense:  tp x cp x dp x pp        expert:  etp x ep x edp x pp
 *
 * Both give the same pipeline groups. EP is an alternative tiling, never an extra factor. The
 * order string (default "tp-cp-ep-dp-pp", left varies fastest) is Megatron's. Pure: no MPI.
 *
 * Expert binding: `tp` (PPMoE §3.3: EP tiles the TP group; ep = tp, etp = 1, edp = cp * dp) or
 * `dp` (GShard; EP tiles DP, or with whole experts all ranks of a stage; etp is 1 or tp). */
#ifndef WEFT_PARALLEL_MESH_MESH_H
#define WEFT_PARALLEL_MESH_MESH_H

#include <stdint.h>

#include <weft/mesh.h>
#include <weft/status.h>

#include "core/arena.h"
#include "core/options/options.h"

/* How context parallelism cuts the sequence: parallel/sequence.h. */
typedef enum weft_load_balancer {
    WEFT_BALANCE_HEAD_TAIL,
    WEFT_BALANCE_DOCUMENTS
} weft_load_balancer;

typedef enum weft_expert_binding { WEFT_BINDING_TP, WEFT_BINDING_DP } weft_expert_binding;

/* What the ranks of a gradient group share out among themselves: ZeRO stages 0 to 3 (Rajbhandari et
 * al. 2020), by Megatron-FSDP's names. */
typedef enum weft_sharding {
    WEFT_NO_SHARD,
    WEFT_SHARD_OPTIM,
    WEFT_SHARD_OPTIM_GRADS,
    WEFT_SHARD_OPTIM_GRADS_PARAMS
} weft_sharding;

typedef struct weft_parallel_options { /* of section "parallel" */
    int64_t tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size;
    int context_parallel_load_balancer;  /* weft_load_balancer */
    int64_t expert_model_parallel_size;  /* 0: tp for binding tp; dp binding: 1 */
    int64_t expert_tensor_parallel_size; /* 0: 1 */
    int64_t data_parallel_size;          /* 0: what is left of the ranks */
    int expert_binding;                  /* weft_expert_binding */
    bool sequence_parallel;
    bool use_distributed_optimizer;      /* ZeRO-1 */
    int data_parallel_sharding_strategy; /* 0: as use_distributed_optimizer says; else
                                            1 + weft_sharding */
    bool overlap_grad_reduce;
    int64_t ddp_bucket_size; /* elements */
    /* weft_layout; 0 and "": not given. */
    const char *pipeline_model_parallel_layout;
    int64_t num_virtual_stages_per_pipeline_rank, num_layers_per_virtual_pipeline_stage;
    int64_t decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers;
    bool stages_in_v;  /* no key: follows from the schedule (core/stage.h) */
    const char *order; /* "tp-cp-ep-dp-pp" */
    int cp_comm_type;  /* weft_context_form (schedule/context.h), then "auto" */
    weft_int_list hierarchical_context_parallel_sizes; /* of a2a+p2p: inside a node, between */
    bool allow_tp_across_nodes;
    bool tp_comm_overlap;
    weft_int_list tp_comm_overlap_chunks; /* of all, or attention's and MLPs'; 0: chosen */
} weft_parallel_options;
extern const weft_key weft_parallel_rows[];
extern const size_t weft_num_parallel_rows;

/* Of products beside which rows travel, where no price says better. */
enum { WEFT_TP_CHUNKS = 4 };

const char *weft_axis_text(weft_axis axis);
weft_sharding weft_parallel_sharding(const weft_parallel_options *options);

typedef struct weft_mesh {
    int world, tp, cp, dp, pp, ep, etp, edp;
    weft_expert_binding binding;
    bool sequence_parallel;
    bool stages_in_v;           /* the options'; pp 1: false */
    int cp_comm_type, cp_inner; /* weft_context_plan's; where options leave it open: p2p */
    /* Chunks of tensor-parallel products (weft_shape); where options leave them open:
     * WEFT_TP_CHUNKS. */
    int attention_chunks, mlp_chunks;
    char order[24];
} weft_mesh;

/* This rank's coordinates on every axis (WEFT_AXIS_DP_CP: dp * cp + cp rank), and group sizes. */
typedef struct weft_coords {
    int rank;
    int at[WEFT_NUM_AXES];
    int size[WEFT_NUM_AXES];
} weft_coords;

/* Builds and validates: sizes multiply to world, dp and edp come out whole, both grids give the
 * same pipeline groups, num_experts divides by ep, sequence_parallel needs tp > 1, etp is 1 or tp,
 * binding tp needs ep == tp. num_experts 0: a dense model. Errors: WEFT_CONFIG, with the key,
 * saying which rule breaks and which sizes would fit. */
weft_status weft_mesh_build(const weft_parallel_options *options, int world, int64_t num_experts,
                            weft_mesh *out) WEFT_CHECKED;

/* A mesh for something that has rules of its own. */
typedef struct weft_mesh_request {
    const weft_parallel_options *options;
    int world;           /* 0: as many ranks as the options ask for */
    int64_t num_experts; /* 0: a dense model */
    /* Refuses what the mesh does not fit, with WEFT_KEY_ERROR; NULL: nothing. */
    weft_status (*check)(const void *context, const weft_mesh *mesh);
    const void *context;
} weft_mesh_request;
/* Whether the chunks of tensor-parallel products are left open. */
bool weft_mesh_leaves_chunks(const weft_parallel_options *options, const weft_mesh *mesh);
/* weft_mesh_build and the check. A refusal of tp, pp, ep or etp ends in the values that fit the
 * ranks, the rules and the check with all else as it is: "; tp 1, 2 or 4 would". */
weft_status weft_mesh_build_for(const weft_mesh_request *request, weft_mesh *out) WEFT_CHECKED;
/* The ranks that options ask for: tp * cp * pp * dp, with dp the smallest that the expert grid
 * allows when it is not given. */
int weft_mesh_world(const weft_parallel_options *options);
/* The coordinates by the names of their axes. */
weft_place weft_coords_place(const weft_coords *coords, int world);
weft_coords weft_mesh_coords(const weft_mesh *mesh, int rank);
/* The rank at these coordinates of the dense grid. */
int weft_mesh_rank(const weft_mesh *mesh, int tp, int cp, int dp, int pp);
/* The colour of `rank`'s group along `axis` (equal in one group, different otherwise) and the key
 * that orders it. */
int weft_mesh_color(const weft_mesh *mesh, weft_axis axis, int rank);
/* The rank at `place` of the group along `axis` that these coordinates are in. */
int weft_mesh_member(const weft_mesh *mesh, weft_axis axis, const weft_coords *coords, int place);
/* The world ranks of `rank`'s group in order; returns their number (at most `capacity` written). */
int weft_mesh_group(const weft_mesh *mesh, weft_axis axis, int rank, int *out, int capacity);
/* The same in rising order, which an order with dp ahead of cp does not give dp x cp; capacity: at
 * least their number. */
int weft_mesh_group_rising(const weft_mesh *mesh, weft_axis axis, int rank, int *out, int capacity);
/* Applies "tp=2,pp=2,ep=4" (also cp, dp, etp, binding=tp|dp, sp=0|1, zero=0..3,
 * schedule=..., order=..., layout=..., vp=...) over the options: the mesh given there replaces the
 * file's sizes. more: rows and target of what it may name besides, the schedule; NULL: nothing. */
weft_status weft_mesh_apply_alias(const char *text, weft_arena *arena,
                                  weft_parallel_options *options,
                                  const weft_option_section *more) WEFT_CHECKED;
/* The pipeline rank of the model's last layer; below, whether another rank has its first one. */
int weft_mesh_last_stage(const weft_mesh *mesh);
bool weft_mesh_parts_ends(const weft_mesh *mesh);
/* MoNTA, Fig. 12: whether experts lie along CP, so that a sequence's parts share them; else across
 * it, so that replicas of a part do. Of a mesh with cp, ep above 1 and binding dp. */
bool weft_mesh_is_vertical(const weft_mesh *mesh);
/* One line: "tp 2, pp 2, dp 1, ep 2 (binding tp)". */
void weft_mesh_print(const weft_mesh *mesh, char *out, size_t capacity);

/* The stage layout: how a model's list of layers is cut into p * v virtual stages, in a
 * loop or in a V (core/stage.h). Pure.
 *
 * The first layer of the list is on virtual stage 0 and the last layer on the last stage. A stage
 * between may be empty, and then passes on what comes. From section "parallel":
 *
 *   pipeline_model_parallel_layout "E|(tt|)*6tL"  as written: E the first layer, t one between, L
 *                                                 the last, | the next stage, * repeats
 *   pipeline_model_parallel_layout "auto"         by the layers' work
 *   decoder_first_, decoder_last_pipeline_num_layers  so many layers between on the first and the
 *                                                 last rank, the rest evenly on the others
 *   else                                          evenly, stages in front take one more
 *
 * v is num_virtual_stages_per_pipeline_rank, follows from num_layers_per_virtual_pipeline_stage, or
 * is what the layout's text has; else 1. */

enum { WEFT_MAX_STAGES = 8192 };

typedef struct weft_layout {
    int num_ranks, num_chunks; /* p, v */
    int num_layers;            /* of the whole list */
    bool is_v;
    uint16_t first[WEFT_MAX_STAGES + 1]; /* virtual stage s has [first[s], first[s + 1]) */
} weft_layout;

/* num_layers: of the list, the first and the last among them. work: the work of each layer,
 * [num_layers], for "auto", which makes the largest work of a stage as small as it can be; NULL: 1
 * a layer, 0 for the first and the last. Errors: WEFT_CONFIG with the key. */
weft_status weft_layout_build(const weft_parallel_options *options, int pp, int num_layers,
                              const double *work, weft_layout *out) WEFT_CHECKED;
/* p stages of one chunk, evenly: p <= num_layers - 2, or 1. */
weft_layout weft_layout_even(int pp, int num_layers);

int weft_layout_num_stages(const weft_layout *layout);
/* The layers [first, end) of a chunk. */
void weft_layout_range(const weft_layout *layout, int rank, int chunk, int *first, int *end);
/* As pipeline_model_parallel_layout has it: "E|tt|t|tL". Ends in "..." where it does not fit. */
const char *weft_layout_text(const weft_layout *layout, char *out, size_t capacity);

typedef struct weft_comm weft_comm;

/* The mesh's communicators: one a group that this rank is in and that the run uses. */
typedef struct weft_groups {
    weft_mesh mesh;
    weft_coords coords;
    weft_comm *world;                  /* borrowed */
    weft_comm *by_axis[WEFT_NUM_AXES]; /* NULL for WEFT_AXIS_NONE, and where nothing uses it; self
                                          for size 1 */
    weft_comm *embedding;              /* first and last stage, for tied embeddings; else NULL */
    /* The ranks of dp x cp and of edp once more, for gathers beside reductions; NULL: not used. */
    weft_comm *gather_dense, *gather_experts;
} weft_groups;

/* Which groups a run uses, besides tp, cp and pp, which every run uses: checkpoints talk over pp.
 */
typedef struct weft_groups_use {
    bool reduces;         /* sums gradients over dp x cp */
    bool experts;         /* has experts: sums their gradients over edp */
    bool travels;         /* sends tokens of MoE layers over ep and etp */
    bool ties;            /* holds the same embeddings on first and last stage */
    bool balances;        /* has experts whose load all replicas sum (global_aux_loss) */
    bool sums;            /* has layers that may sum over any axis (weft_pass_all_reduce) */
    bool gathers;         /* gathers weights that the ranks of a gradient group share out */
    bool gathers_on_host; /* experts', in host memory, beside reductions */
} weft_groups_use;

/* use: the same on every rank; NULL: everything. Groups of one rank cost the others nothing.
 * Collective over world. */
weft_status weft_groups_create(weft_comm *world, const weft_mesh *mesh, const weft_groups_use *use,
                               weft_groups *out) WEFT_CHECKED;
/* Groups of a rank at these coordinates that note what is asked of them (comm/note/note.h), all of
 * them. world: such a one, too. */
weft_status weft_groups_create_note(weft_comm *world, const weft_mesh *mesh,
                                    const weft_coords *coords, weft_groups *out) WEFT_CHECKED;
void weft_groups_release(weft_groups *groups); /* a zeroed one is legal */

#endif
