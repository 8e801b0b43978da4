/* A plan as a page: one HTML file that a browser opens without a network. Style and script stand in
 * it; it asks for nothing outside itself and is at most WEFT_PAGE_MAX_BYTES long.
 *
 * Whoever has a table (a search, what-if, an expansion) fills in its rows; a section stands on the
 * page where there is a row. All texts are escaped. Numbers that are not known are NAN. Pure but
 * for writing the file. */
#ifndef WEFT_LAUNCHER_PAGE_PAGE_H
#define WEFT_LAUNCHER_PAGE_PAGE_H

#include "launcher/planning/plan.h"

enum { WEFT_PAGE_MAX_BYTES = 2000000 };

/* A mesh: a row of the ranked table, best first, and a dot of speed over memory. */
typedef struct weft_page_mesh {
    const char *mesh; /* "tp 8, pp 4, dp 8" */
    double step_s, low_s, high_s, tokens_per_s, memory_bytes;
    bool fits;
    const char *note; /* what limits it, or why it was discarded; NULL: nothing */
} weft_page_mesh;

/* The best mesh of so many nodes: a point of the scaling curve; rising nodes. */
typedef struct weft_page_scale {
    int nodes, devices;
    const char *mesh;
    double step_s, tokens_per_s; /* NAN: nothing fits */
    int used;                    /* of the devices; 0: all */
    const char *idle;            /* why not all; NULL */
} weft_page_scale;

/* What a change of the cluster or of the load brings. */
typedef struct weft_page_gain {
    const char *change;         /* "links between nodes x2" */
    double same_mesh, searched; /* speed over today's: 1.25; after a new search */
    const char *mesh, *limits;  /* of that search; NULL: not known */
    double cost_per_billion;    /* of tokens */
} weft_page_gain;

/* A step of an expansion, the first of them today's mesh. */
typedef struct weft_page_rung {
    const char *step; /* "today", "32,768 tokens" */
    int nodes;
    const char *mesh, *kind, *why; /* "horizontal"; why not fewer nodes; NULL: nothing to say */
    double memory_bytes, tokens_per_s, cost_per_billion;
} weft_page_rung;

typedef struct weft_page {
    const char *title;           /* the config */
    const weft_plan *plan;       /* NULL: none; then neither cluster's limits nor trace are shown */
    const weft_cluster *cluster; /* its sources; NULL: none */
    const weft_trace *trace;     /* of the plan's step, a rank a stage; NULL: not drawn, and */
    const char *no_trace;        /* why; NULL: nothing is said */
    const weft_page_mesh *meshes;
    int num_meshes;
    const weft_page_scale *scales;
    int num_scales;
    const weft_page_gain *gains;
    int num_gains;
    const weft_page_rung *rungs;
    int num_rungs;
} weft_page;

/* The most (stage, micro-batch) pairs of a step whose timeline is drawn: above, the timeline alone
 * would take gigabytes of memory. */
enum { WEFT_PAGE_MAX_TASKS = 1 << 18 };

/* Writes PATH.partial and renames it into place. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_page_write(const weft_page *page, const char *path) WEFT_CHECKED;

#endif
