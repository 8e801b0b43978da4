/* weft plan --search: its options, what it finds, and how that is told. */
#ifndef WEFT_LAUNCHER_VERBS_PLAN_PLAN_SEARCH_H
#define WEFT_LAUNCHER_VERBS_PLAN_PLAN_SEARCH_H

#include "launcher/report/report.h"
#include "launcher/searching/search.h"

enum { WEFT_PLAN_SEARCH_TOP = 5 };

typedef struct weft_plan_search {
    bool on;
    int top;
    weft_int_list nodes; /* empty: the cluster's */
    const char *emit;    /* NULL: no file */
    /* What is found. */
    weft_search_result *results; /* [num_results], one of each number of nodes */
    int num_results;
    const weft_search_result *best; /* that has the fastest plan; NULL: nothing fits */
    bool is_stopped;                /* by a signal, before the end */
} weft_plan_search;

/* Refuses options of a search without one, and what is of a run beside one. */
weft_status weft_plan_search_check(const weft_plan_search *search,
                                   const char *against) WEFT_CHECKED;
/* From here on SIGINT and its like end a search, with what it has. Errors: those of
 * weft_search_run. */
weft_status weft_plan_search_find(weft_plan_search *search, const weft_config *config,
                                  const weft_config_source *source, const weft_cluster *cluster,
                                  weft_arena *arena) WEFT_CHECKED;
/* config: the one that was searched from. */
weft_status weft_plan_search_report(const weft_plan_search *search, const weft_config *config,
                                    weft_arena *arena, weft_report *report) WEFT_CHECKED;
/* Writes the winner's config, where it is asked for. Errors: WEFT_FILE; WEFT_MEMORY where nothing
 * fits. */
weft_status weft_plan_search_end(const weft_plan_search *search, const weft_config_source *source,
                                 weft_arena *arena) WEFT_CHECKED;

#endif
