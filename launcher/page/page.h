/* A plan as a page: one HTML file that a browser opens without a network. Style and script stand in
 * it; it asks for nothing outside itself and is at most WEFT_PAGE_MAX_BYTES long.
 *
 * A section stands on the page where there is what it shows. All texts are escaped. Pure but for
 * writing the file. */
#ifndef WEFT_LAUNCHER_PAGE_PAGE_H
#define WEFT_LAUNCHER_PAGE_PAGE_H

#include "launcher/searching/expand.h"
#include "launcher/searching/what_if.h"

enum { WEFT_PAGE_MAX_BYTES = 2000000 };

/* NULL: not asked for. */
typedef struct weft_page {
    const char *title;                /* the config */
    const weft_plan *plan;            /* NULL: neither cluster's limits nor trace are shown */
    const weft_cluster *cluster;      /* its sources */
    const weft_trace *trace;          /* of the plan's step, a rank a stage; NULL: not drawn, and */
    const char *no_trace;             /* why; NULL: nothing is said */
    const weft_search_result *search; /* the plans, and what comes nearest to fitting */
    const weft_search_result *scaling; /* of rising nodes */
    int num_scales;
    const weft_what_if *what_if;
    const weft_expand *expand;
    const weft_expand_request *request; /* of `expand` */
} weft_page;

/* The most (stage, micro-batch) pairs of a step whose timeline is drawn: above, the timeline alone
 * would take gigabytes of memory. */
enum { WEFT_PAGE_MAX_TASKS = 1 << 18 };

/* Writes PATH.partial and renames it into place. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_page_write(const weft_page *page, const char *path) WEFT_CHECKED;

#endif
