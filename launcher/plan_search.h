/* weft plan --search: its options, and what it prints. */
#ifndef WEFT_LAUNCHER_PLAN_SEARCH_H
#define WEFT_LAUNCHER_PLAN_SEARCH_H

#include "launcher/searching/search.h"

enum { WEFT_PLAN_SEARCH_TOP = 5 };

typedef struct weft_plan_search {
    bool on;
    int top;
    weft_int_list nodes; /* empty: the cluster's */
    const char *emit;    /* NULL: no file */
    const char *html;    /* of --html; NULL: no page */
} weft_plan_search;

/* Refuses options of a search without one, and what is of one mesh beside one. */
weft_status weft_plan_search_check(const weft_plan_search *search, const char *against,
                                   const char *trace) WEFT_CHECKED;
/* Searches and prints. Errors: those of weft_search_run; WEFT_MEMORY where nothing fits. */
weft_status weft_plan_search_run(const weft_plan_search *search, const weft_config *config,
                                 const weft_config_source *source, const weft_cluster *cluster,
                                 bool json, weft_arena *arena) WEFT_CHECKED;

#endif
