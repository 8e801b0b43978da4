/* A plan: what one mesh takes on a cluster. It prices the programs that training runs, and has the
 * footprint that training allocates by. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_PLAN_H
#define WEFT_LAUNCHER_PLANNING_PLAN_H

#include "core/cluster/cluster.h"
#include "core/trace/trace.h"
#include "launcher/planning/mesh_choice.h"
#include "launcher/planning/step.h"
#include "launcher/planning/tier_choice.h"
#include "layers/outline/footprint.h"
#include "parallel/mesh/mesh.h"
#include "schedule/cost/cost.h"

/* Which kinds of nodes a mesh lies on, where a cluster's nodes differ. Replicas of a stage that lie
 * on the same kinds are priced once. Pure. */

/* Kinds are bits 1 << group of the cluster, as weft_site has them; 0: all nodes are alike. */
typedef struct weft_stage_kinds {
    uint32_t all; /* of all its ranks */
    /* By kinds: whether some ranks lie on exactly these together with all ranks for which they wait
     * inside a pass: the members of their groups over tp, cp, ep and etp, and of those' groups. */
    bool together[1 << WEFT_MAX_NODE_GROUPS];
} weft_stage_kinds;

/* Where the step's time goes on the compute lane of a stage. They sum to the step. name, text */
#define WEFT_TIME_LIST(X)                                                                          \
    X(COMPUTE, "compute")     /* forward and backward */                                           \
    X(BUBBLE, "bubble")       /* no work: the pipeline fills, drains, waits for a slower stage */  \
    X(OPTIMIZER, "optimizer") /* norm and AdamW; waiting for the host to do so */                  \
    X(TENSOR, "tensor")       /* collectives over tp that nothing hides; the next three alike */   \
    X(EXPERT, "expert")                                                                            \
    X(CONTEXT, "context")                                                                          \
    X(PIPELINE, "pipeline")                                                                        \
    X(DATA, "data")                                                                                \
    X(HOST, "host")     /* copies of what is offloaded, that nothing hides */                      \
    X(UPLOAD, "upload") /* experts beyond device memory, for which computation waits */
typedef enum weft_time_kind {
#define WEFT_TIME_ENUM(name, text) WEFT_TIME_##name,
    WEFT_TIME_LIST(WEFT_TIME_ENUM)
#undef WEFT_TIME_ENUM
        WEFT_NUM_TIMES
} weft_time_kind;
extern const char *const weft_time_texts[WEFT_NUM_TIMES];

/* What binds: where most of the step's time goes. name, text */
#define WEFT_LIMIT_LIST(X)                                                                         \
    X(COMPUTE, "compute")                                                                          \
    X(MEMORY_BANDWIDTH, "memory_bandwidth")                                                        \
    X(INSIDE, "inside")                                                                            \
    X(BETWEEN, "between")                                                                          \
    X(BUBBLE, "bubble")                                                                            \
    X(HOST, "host")
typedef enum weft_limit_kind {
#define WEFT_LIMIT_ENUM(name, text) WEFT_LIMIT_##name,
    WEFT_LIMIT_LIST(WEFT_LIMIT_ENUM)
#undef WEFT_LIMIT_ENUM
        WEFT_NUM_LIMITS
} weft_limit_kind;
extern const char *const weft_limit_texts[WEFT_NUM_LIMITS];

typedef struct weft_plan_stage {
    double us[WEFT_NUM_TIMES];
    double memory_us;                  /* of compute: bound by the device's memory */
    double exposed_us[WEFT_NUM_LINKS]; /* of transfers that nothing hides, by their link */
    weft_footprint footprint;
    uint64_t memory_limit_bytes; /* of its smallest device; 0: unknown */
    double copies_us[2];         /* of what is offloaded, in a step: to the host, and back */
    /* Of experts beyond device memory, in a step: uploads, downloads, what the host does with them,
     * what is read of a file and written. */
    double tier_us[4];
    uint64_t file_read_bytes, file_written_bytes; /* of them, in a step */
    /* Of the optimizer's state in host memory, in a step: weights up, gradients down, its steps. */
    double stepped_us[4];
} weft_plan_stage;

typedef struct weft_plan {
    weft_mesh mesh;
    weft_mesh_choice mesh_choice; /* how what the config leaves open of the mesh came to be */
    weft_tier_selection tier;     /* where its experts are */
    weft_stage_kinds *kinds;      /* [num_stages] */
    weft_step step;
    weft_step theirs;   /* of software whose layers keep something else; else none */
    int num_idle;       /* of the cluster's devices, where no dp was given */
    int64_t dropped_ep; /* of the config, which --mesh replaces by none; 0: nothing */
    char ramp[128];     /* which step of a growing batch is planned, in words; "": all are alike */
    int num_stages;     /* pipeline ranks */
    weft_plan_stage *stages;
    double step_us, us[WEFT_NUM_TIMES]; /* means over the stages */
    double tokens_per_s;
    double model_flops_utilization; /* 0: the cluster tells no peak; NAN: it would be above 1 */
    double products_flops; /* FLOP/s that a measured product of the cluster's file reaches, where
                              that is above the peak, which then cannot be right; else 0 */
    uint64_t memory_bytes; /* of the fullest rank: least left, or most lacking */
    uint64_t memory_limit_bytes; /* of its device; 0: unknown */
    int fullest;                 /* its stage */
    uint64_t host_memory_bytes;  /* pinned, of the rank that pins most; where its device is the
                                    host's cores, all of its memory */
    uint64_t host_limit_bytes;   /* its share of the node's memory; 0: unknown */
    int most_host;               /* its stage */
    uint64_t file_bytes;         /* of experts, of the rank whose file is largest */
    uint64_t file_limit_bytes;   /* that the config allows; 0: any */
    int most_file;               /* its stage */
    bool fits;
    char advice[WEFT_ADVICE_BYTES]; /* by weft_plan_advise */
    bool coarse;
    weft_limit_kind limits;
    weft_source_class source;                /* of the worst number */
    bool unsourced;                          /* asked of weft_step_price: no source is found */
    weft_inputs inputs;                      /* the numbers that were taken */
    const struct weft_plan_figures *figures; /* planning/figures.h; NULL: nobody asked */
} weft_plan;

/* What a verb that plans reads: one CONFIG, and what its line sets. Borrows. */
weft_config_source weft_plan_source(const char *file, const weft_string_list *set, const char *mesh,
                                    const weft_application *application);
/* weft_config_load; then `vocabulary` fills model.vocab_size from the dataset. NULL: no dataset is
 * read. */
weft_status weft_plan_load(const weft_config_source *source, weft_vocabulary_function vocabulary,
                           weft_arena *arena, weft_config *out) WEFT_CHECKED;
/* Reads a cluster into the arena, for an option of a command line ("cluster"): WEFT_CONFIG also
 * where there is no file. */
weft_status weft_plan_read_cluster(const char *option, const char *path, weft_arena *arena,
                                   weft_cluster **out) WEFT_CHECKED;
/* Reads the cluster that `config` is planned on, with the pace of its emulated accelerator. Choices
 * for MoE layers are made from this one, too, whatever cluster the config names. */
weft_status weft_plan_cluster(const char *option, const char *path, weft_config *config,
                              weft_arena *arena, weft_cluster **out) WEFT_CHECKED;

/* The kernels that a plan is of: Weft's, or those of published runs (layers/describe/plain.c), of
 * which there are lists of operations alone: of 2022, or of 2021. name, text */
#define WEFT_KERNELS_LIST(X) X(WEFT, "weft") X(PLAIN, "plain") X(PLAIN_2021, "plain-2021")
typedef enum weft_kernels_kind {
#define WEFT_KERNELS_ENUM(name, text) WEFT_KERNELS_##name,
    WEFT_KERNELS_LIST(WEFT_KERNELS_ENUM)
#undef WEFT_KERNELS_ENUM
        WEFT_NUM_KERNELS
} weft_kernels_kind;
extern const char *const weft_kernels_texts[WEFT_NUM_KERNELS];
/* WEFT_CONFIG: plain kernels know neither context parallelism nor offloading, nor experts
 * elsewhere. */
weft_status weft_plan_set_kernels(weft_kernels_kind kernels, const weft_config_source *source,
                                  weft_config *config) WEFT_CHECKED;

/* Whether a plan of this config on this cluster is one of GPUs. */
bool weft_plan_is_of_gpus(const weft_config *config, const weft_cluster *cluster);
/* What a rank's device of a group of nodes (weft_cluster_hardware) may hold: the lower of what the
 * config allows and what the device has. 0: nobody says. */
uint64_t weft_plan_memory_limit(const weft_config *config, const weft_cluster *cluster, int group);
/* The step that the plan's memory is of. */
const weft_step *weft_plan_memory_step(const weft_plan *plan);
/* config->moe_load on this mesh; where it is one that is asked for, at most the worst. */
double weft_plan_load_on(const weft_config *config, const weft_mesh *mesh);
/* All but the outline lives in the arena. model.vocab_size is known. `trace` (NULL: none) gets the
 * step's timeline, a rank a pipeline rank. Errors: WEFT_CONFIG: what the config says cannot be, the
 * cluster has too few devices, or a figure is missing, which is named. */
weft_status weft_plan_make(const weft_config *config, const weft_config_source *source,
                           const weft_cluster *cluster, weft_trace *trace, weft_arena *arena,
                           weft_plan *out) WEFT_CHECKED;
/* The same without prices: the mesh, the step and whether it fits. */
weft_status weft_plan_start(const weft_config *config, const weft_config_source *source,
                            const weft_cluster *cluster, weft_arena *arena,
                            weft_plan *out) WEFT_CHECKED;
/* Whether a device's memory is short. */
bool weft_plan_lacks_memory(const weft_plan *plan);
/* Finds what would make a made plan fit its devices' memory, as training says it; plan->advice is
 * empty where it fits, where nothing helps, and where layers keep or run something else than
 * Weft's. */
weft_status weft_plan_advise(const weft_config *config, const weft_cluster *cluster,
                             weft_arena *arena, weft_plan *plan) WEFT_CHECKED;
void weft_plan_release(weft_plan *plan); /* a zeroed one is legal */

/* Finds the kinds of each pipeline rank, [mesh->pp], from the arena. Linear in the ranks. */
weft_status weft_stage_kinds_find(const weft_cluster *cluster, const weft_mesh *mesh,
                                  weft_arena *arena, weft_stage_kinds **out) WEFT_CHECKED;
/* How many ranks of the mesh are on nodes of a group (-1, where nodes are alike: all). */
int64_t weft_kind_num_ranks(const weft_cluster *cluster, const weft_mesh *mesh, int group);

#endif
