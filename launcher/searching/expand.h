/* The ladder: how a run grows from today's mesh to a longer context or to more nodes, a step a row,
 * each the smallest that fits, priced as a plan.
 *
 * How context-parallel ranks lie to those that share experts follows MoNTA (section "Cluster
 * Expansion", Fig. 12). Horizontal: CP is orthogonal to EP; for cp < ep, where a switch reaches ep
 * x cp nodes. Vertical: EP lies along CP; for cp >= ep, on max(ep, cp) nodes. A rank's node counts
 * where tensor-parallel groups are a node; else so many groups as fill one. A switch reaches the
 * nodes of the cluster's first network level; without levels, all. Pure. */
#ifndef WEFT_LAUNCHER_SEARCHING_EXPAND_H
#define WEFT_LAUNCHER_SEARCHING_EXPAND_H

#include "launcher/planning/figures.h"
#include "launcher/report/report.h"

typedef enum weft_expand_kind {
    WEFT_EXPAND_DATA,    /* cp 1: replicas alone */
    WEFT_EXPAND_CONTEXT, /* cp above 1 without experts that others share */
    WEFT_EXPAND_HORIZONTAL,
    WEFT_EXPAND_VERTICAL
} weft_expand_kind;
extern const char *const weft_expand_texts[];

typedef struct weft_expand_request {
    const weft_config *config; /* today's; model.vocab_size is known */
    const weft_config_source *source;
    const char *cluster_path, *to_path;
    const weft_cluster *cluster, *to; /* of today; of all other steps, maybe the same */
    weft_int_list contexts;           /* rising; none: the ladder is one of nodes */
    int max_nodes;                    /* 0: all of `to` */
    bool keeps_samples;               /* a step; else tokens */
    bool goes_on;                     /* today's is a run, whose data has an order */
} weft_expand_request;

/* Why a smaller step will not do. */
typedef struct weft_expand_miss {
    const char *reason; /* in the arena; NULL: none was tried */
    int num_nodes;
    char mesh[96];
    uint64_t short_by_bytes; /* 0: not for memory */
} weft_expand_miss;

typedef struct weft_expand_step {
    weft_config config; /* as it would train */
    const weft_cluster *cluster;
    weft_expand_kind kind;
    weft_mesh mesh;
    int num_nodes, nodes_added;
    bool fits;
    uint64_t memory_bytes, memory_limit_bytes; /* as of weft_plan */
    double step_us, tokens_per_s, model_flops_utilization;
    weft_limit_kind limits;
    weft_plan_costs costs; /* NAN: nodes have no price */
    double tokens;         /* a step */
    double wanted_batch;   /* samples that keep what is kept; the nearest legal batch is another
                              where micro-batches run out */
    double lr_advised;     /* for other tokens a step than today's, by the root of their ratio; 0 */
    double write_s, read_s;   /* the checkpoint before it: written there, read here; 0: unknown */
    weft_expand_miss fewer;   /* the last one tried on no more nodes */
    weft_expand_miss refused; /* the last one that a switch is too small for */
} weft_expand_step;

typedef struct weft_expand {
    int num_steps; /* today's is the first */
    weft_expand_step *steps;
    uint64_t checkpoint_bytes; /* of weights and moments */
    int64_t block_tokens;      /* data.shuffle_block_tokens of steps with a longer context; 0 */
    bool reorders;             /* some step orders what is left of the epoch anew */
    const char *positions;     /* what to look at; NULL: nothing */
    weft_status stopped;       /* WEFT_OK: the target is reached; else the ladder ends below it */
    const char *stop_text;     /* why */
    weft_expand_miss nearest;  /* what came next to it */
    weft_expand_miss beyond;   /* what forbids a larger mesh than that */
} weft_expand;

/* All of `out` lives in the arena. Errors: those of today's plan; WEFT_CONFIG: learned positions
 * that would have to grow, contexts and node counts that are none to grow to. A step that cannot be
 * is no error: `stopped` is WEFT_MEMORY where memory is short, WEFT_CONFIG where no mesh is legal.
 */
weft_status weft_expand_make(const weft_expand_request *request, weft_arena *arena,
                             weft_expand *out) WEFT_CHECKED;

void weft_expand_report(weft_report *report, const weft_expand *expand,
                        const weft_expand_request *request);
/* Whether a file is in the folder under a name that a ladder's files have. */
bool weft_expand_emits(const char *folder, const char *file);
/* WEFT_CONFIG without `force`: the folder has the files of a ladder. */
weft_status weft_expand_check_folder(const char *folder, bool force) WEFT_CHECKED;
/* Writes step-N.json and step-N.sh of each step into the folder, which is made, and removes those
 * of another ladder there; of a run's ladder all but today's. run: the run that they go on with;
 * NULL: DIR/run. cluster: the config's own parallel.cluster. WEFT_FILE. */
weft_status weft_expand_emit(const weft_expand *expand, const char *folder, const char *run,
                             const char *cluster, weft_arena *arena) WEFT_CHECKED;

#endif
