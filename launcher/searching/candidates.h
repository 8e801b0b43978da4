/* What a search looks at: configs that differ from the one given in how it runs, never in what it
 * trains. docs/planning.md lists the keys and their values. Pure.
 *
 * A *candidate* is a mesh on so many devices with its micro-batch, schedule, layout and ZeRO stage,
 * and a *form*: what saves memory besides. Form 0 saves nothing. The other forms stand in *chains*,
 * each of which saves more and more; a form is looked at where form 0 does not fit, nor anything
 * before it in its chain. So of a chain one form is left, the first that fits.
 *
 * A key that the command's line gives is *held*: it keeps its value. */
#ifndef WEFT_LAUNCHER_SEARCHING_CANDIDATES_H
#define WEFT_LAUNCHER_SEARCHING_CANDIDATES_H

#include "core/cluster/cluster.h"
#include "launcher/planning/config.h"

enum { WEFT_MAX_FORMS = 16, WEFT_LEAST_TOKENS = 1024 };
/* Up to the first all divisors; up to the second powers of two among them, and the largest. */
enum { WEFT_ALL_MICRO_BATCHES = 16, WEFT_MOST_MICRO_BATCH = 64 };

typedef struct weft_candidate {
    int tp, cp, pp, dp, ep, etp;
    int binding;  /* weft_expert_binding */
    int order;    /* of the space's */
    int zero;     /* 0 to 3 */
    int schedule; /* weft_pipeline_kind */
    int num_chunks, micro_batch, form;
    bool sequence_parallel;
    bool by_work; /* the layout "auto" */
} weft_candidate;

typedef struct weft_search_form {
    int chain, place; /* chain 0, place 0: form 0 */
    int recompute;    /* of candidates.c; 0: none */
    int offload;      /* 0: none; 1: core_attn; 2: block */
    bool reuse;       /* of partitions' buffers in MoE layers */
} weft_search_form;

typedef struct weft_search_space {
    weft_config config;               /* as given, on the cluster's devices, in one file's words */
    const weft_config_source *source; /* borrowed, as the cluster */
    const weft_cluster *cluster;
    int world;
    int64_t least_tokens; /* of a sequence, that cp leaves a rank */
    unsigned held;        /* bits 1 << weft_searched */
    int num_orders;
    const char *orders[3];
    int num_forms;
    weft_search_form forms[WEFT_MAX_FORMS];
} weft_search_space;

/* The space of configs on all devices of the cluster's first `nodes` nodes. least_tokens 0:
 * WEFT_LEAST_TOKENS. The config has its vocab_size. */
weft_search_space weft_space_of(const weft_config *config, const weft_config_source *source,
                                const weft_cluster *cluster, int nodes, int64_t least_tokens);

/* Of form 0, in the order in which ties are broken; malloc'd, free it. */
typedef struct weft_candidate_list {
    weft_candidate *values;
    size_t count, capacity;
    size_t illegal; /* meshes whose sizes multiply to the devices, and that a rule refuses */
    char why[WEFT_ERROR_TEXT_BYTES]; /* of the first of them */
} weft_candidate_list;
weft_status weft_space_list(const weft_search_space *space, weft_candidate_list *out) WEFT_CHECKED;
void weft_candidate_list_release(weft_candidate_list *list);

/* The forms to look at where this candidate's does not fit, at most WEFT_MAX_FORMS; how many. */
int weft_space_next_forms(const weft_search_space *space, const weft_candidate *candidate,
                          int out[WEFT_MAX_FORMS]);
/* The config of a candidate: complete, and legal unless a rule that needs more than sizes says no.
 */
void weft_space_apply(const weft_search_space *space, const weft_candidate *candidate,
                      weft_config *out);
/* Whether two candidates differ in the order of their ranks alone. */
bool weft_candidate_differs_by_order(const weft_candidate *a, const weft_candidate *b);
/* Whether a layout "by work" cuts as an even one would, which is another candidate. */
bool weft_candidate_repeats(const weft_candidate *candidate, const weft_layout *layout);

#endif
