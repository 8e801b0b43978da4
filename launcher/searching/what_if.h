/* What would it buy? The plan again, with one part of the cluster better: on the same mesh, and on
 * the mesh that a new search finds. Pure. */
#ifndef WEFT_LAUNCHER_SEARCHING_WHAT_IF_H
#define WEFT_LAUNCHER_SEARCHING_WHAT_IF_H

#include "launcher/report/report.h"
#include "launcher/searching/search.h"

/* A plan in a row. */
typedef struct weft_what_if_plan {
    bool known;
    bool fits;
    const char *mesh; /* its axes as text */
    double step_us, tokens_per_s;
    double gain;                /* its tokens a second over those of the plan asked for, less 1 */
    double billion_tokens_cost; /* in the cluster's currency; NAN: it has no price */
    weft_limit_kind limits;
} weft_what_if_plan;

typedef struct weft_what_if_row {
    const char *name, *help;
    const char *without; /* one line: why the row has no plans; NULL: it has */
    bool lacks;          /* the cluster's file a figure of links between nodes, which that names */
    int num_nodes;
    weft_what_if_plan same, best; /* on the mesh asked for; the best of a search */
    const char *why; /* one line: why it is this number of nodes; NULL: nothing to say */
} weft_what_if_row;

/* today: nothing is better; nodes: the next node count that has a faster legal mesh; nodes_x2; what
 * core/cluster/cluster.h has; balanced_experts. */
enum { WEFT_MAX_WHAT_IF = 10 };
typedef struct weft_what_if {
    bool is_stopped; /* before its end: rows behind the last are not asked for */
    int num_rows;
    weft_what_if_row rows[WEFT_MAX_WHAT_IF];
} weft_what_if;

/* `plan`: of config on cluster. A search looks at as many nodes as the plan lies on; it holds what
 * --set gives, not what --mesh gives. Texts
 * live in the arena. SIGINT and its like end it (launcher/process/stop.h). Errors: as
 * weft_search_run. */
weft_status weft_what_if_run(const weft_config *config, const weft_config_source *source,
                             const weft_cluster *cluster, const weft_plan *plan, weft_arena *arena,
                             weft_what_if *out) WEFT_CHECKED;
/* "what_if": a row each. */
void weft_what_if_report(weft_report *report, const weft_what_if *what_if);

#endif
