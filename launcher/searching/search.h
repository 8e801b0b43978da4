/* Search: the best plans of a config on all devices of a cluster's nodes, at its global batch.
 *
 * Candidates (candidates.h) are taken by their lower bound (bound.h), the lowest first, until the
 * bound of the next is above the K-th best price. Where there is a tighter bound, a candidate whose
 * turn has come is put back by that one. So the K plans are those that pricing every
 * candidate would find: what is left out cannot be faster. Ties go to the candidate that is listed
 * first; of those that differ in the order of their ranks alone, and tie in time and bytes, no
 * other is found. One plan is in memory at a time. Pure. */
#ifndef WEFT_LAUNCHER_SEARCHING_SEARCH_H
#define WEFT_LAUNCHER_SEARCHING_SEARCH_H

#include "launcher/planning/figures.h"
#include "launcher/report/report.h"
#include "launcher/searching/candidates.h"

/* A line in the log every ten seconds, over several searches. */
typedef struct weft_search_progress {
    const char *what; /* "search" */
    double said_us;   /* of weft_now_us, when it last said so: at first, when it began */
} weft_search_progress;

typedef struct weft_search_options {
    int top;              /* K; 0: 1 */
    int nodes;            /* the first so many of the cluster's, or more like them; 0: all */
    int64_t least_tokens; /* as in weft_space_of; 0: WEFT_LEAST_TOKENS */
    double below_us;      /* plans that take as long are not looked for; 0: all are */
    bool ranges;          /* of each plan that is found, between which times its step is */
    bool all_devices;     /* an error where no legal mesh has as many ranks; else fewer nodes do */
    weft_search_progress *progress; /* NULL: nothing is said */
} weft_search_options;

enum { WEFT_MAX_MISSES = 8 };

/* A plan that was found. */
typedef struct weft_found {
    weft_candidate candidate;
    const char *mesh;    /* its axes as text */
    weft_config config;  /* weft_plan_make gives the whole plan of it on the result's cluster; on
                            another one, by which it is to choose, planned_on is that one */
    weft_config settled; /* of weft_search_settle */
    double step_us, us[WEFT_NUM_TIMES], tokens_per_s, model_flops_utilization;
    double range_us[2];                        /* as in weft_plan_figures; 0: not asked for */
    uint64_t memory_bytes, memory_limit_bytes; /* as in weft_plan */
    weft_limit_kind limits;
    bool file_is_free; /* the experts' file takes no time: nobody knows the storage */
    weft_source_class source;
    weft_plan_costs costs; /* NAN: the cluster's file does not tell */
} weft_found;

/* What is legal and does not fit: of each mesh that does not in any form that was planned, the
 * nearest. */
typedef struct weft_missed {
    weft_candidate candidate;
    const char *mesh;
    weft_config config;
    uint64_t memory_bytes, memory_limit_bytes, short_by_bytes;
    bool of_host;       /* the bytes are the host's */
    const char *remedy; /* what would make it fit */
} weft_missed;

/* What became of candidates; considered is the sum of the others. */
typedef struct weft_search_counts {
    size_t considered;
    size_t illegal; /* refused by a rule */
    size_t memory;  /* do not fit: by their bound, or planned */
    size_t bound;   /* cannot be among the best */
    size_t priced;
    size_t repeated; /* the layout by work cuts evenly */
} weft_search_counts;

typedef struct weft_search_result {
    int num_devices;             /* of the nodes that were asked for */
    int world;                   /* that the plans use */
    int num_nodes;               /* they lie on */
    const weft_cluster *cluster; /* that they are plans on: the one given, or with more nodes */
    const char *unused;          /* one line: why world is less; NULL: it is not */
    const char *lacking;         /* one line: what saves memory and takes a figure that the cluster
                                    lacks is left out; NULL: nothing is */
    bool is_stopped; /* before its end (launcher/process/stop.h): the plans are the best so far, and
                        nobody knows the nearest misses */
    size_t num_open; /* then: candidates that nobody has looked at, or that may be faster */
    int num_plans;
    weft_found *plans; /* by step time */
    int num_misses;
    weft_missed *misses; /* by short_by_bytes */
    weft_search_counts counts;
} weft_search_result;

/* `config` as weft_plan_load and weft_plan_cluster leave it; the source says which keys are held.
 * Choices inside a plan are made by `cluster`, whatever file it came from. What is returned lives
 * in the arena and borrows from config and source. num_plans 0: nothing fits. Errors: WEFT_CONFIG:
 * no mesh is legal, in one line with why; a figure that the cluster lacks and a candidate takes
 * (core/cluster/cluster.h). */
weft_status weft_search_run(const weft_config *config, const weft_config_source *source,
                            const weft_cluster *cluster, const weft_search_options *options,
                            weft_arena *arena, weft_search_result *out) WEFT_CHECKED;
/* The config with all choices that its plan makes written down, so that training needs no cluster
 * file: the keys of --emit. */
weft_status weft_search_settle(const weft_found *found, const weft_config_source *source,
                               const weft_cluster *cluster, weft_arena *arena,
                               weft_config *out) WEFT_CHECKED;

/* What beside the mesh makes a plan: "b 4, zero 1, 1f1b, recompute core_attn". */
enum { WEFT_SEARCH_CHOICES_BYTES = 192 };
/* The plans, and what became of the rest. config: the one that was searched from, for JSON alone,
 * whose overrides are what differs from it. */
weft_status weft_search_report(weft_report *report, const weft_search_result *result,
                               const weft_config *config) WEFT_CHECKED;
/* The scaling curve: for people a row a result, each its best plan, and why devices stay idle; in
 * JSON "scaling" has each whole. */
weft_status weft_search_report_scaling(weft_report *report, const weft_search_result *results,
                                       int count, const weft_config *config) WEFT_CHECKED;
/* "nothing fits 16 devices; nearest: tp 8, ... (b 1, zero 3, ...) lacks 1.2 GiB of 77 GiB;
 * ...": up to three that have room. */
const char *weft_search_short_text(const weft_search_result *result, char *out, size_t capacity);
/* Writes the best plan's config. Errors: WEFT_FILE. */
weft_status weft_search_emit(const weft_search_result *result, const weft_config_source *source,
                             const char *path, weft_arena *arena) WEFT_CHECKED;

#endif
