/* Reads the numbers of a cluster for an estimate and notes their sources. */
#ifndef WEFT_SCHEDULE_COST_COSTING_H
#define WEFT_SCHEDULE_COST_COSTING_H

#include "schedule/cost/cost.h"

/* An estimate in the making. */
typedef struct weft_costing {
    const weft_cluster *cluster;
    int node_group;
    const weft_hardware *hardware;
    weft_estimate estimate;
    const char *lacks;         /* path of the first figure that was missing; NULL: none */
    weft_cost_kind unmeasured; /* the first curve asked for and not known; WEFT_NUM_COSTS: none */
    weft_inputs *inputs;       /* the site's, borrowed */
    uint64_t noted;            /* bit 1 << input: see weft_costing_note */
    bool unsourced;            /* the site's flag */
} weft_costing;

/* On nodes of one kind: weft_cluster_hardware's group, -1 where they are alike. */
weft_costing weft_costing_start(const weft_site *site, int node_group);
/* A figure, or 1 where it is missing (lacks is set). */
double weft_costing_figure(weft_costing *p, weft_figure figure);
/* A figure, or `otherwise` where it is missing; then no source is noted. */
double weft_costing_figure_or(weft_costing *p, weft_figure figure, double otherwise);
/* The share of a rate that a volume reaches. */
double weft_costing_share(weft_costing *p, weft_efficiency_kind kind, double volume);
/* Whether measurements in a section of the file ("device") hold for these nodes. */
bool weft_costing_is_measured_here(const weft_costing *p, const char *section);
/* Whether the cluster has a curve that holds for these nodes. */
bool weft_costing_knows(weft_costing *p, weft_cost_kind kind);
/* A curve's microseconds; scaled: not at the shape that was measured. */
double weft_costing_curve(weft_costing *p, weft_cost_kind kind, double volume, bool scaled);
/* Notes an input, once: its class, and its spread. */
void weft_costing_note(weft_costing *p, int input);
/* Notes that it was measured at another shape. */
void weft_costing_scale(weft_costing *p, int input);
/* Makes the estimate's class at least as uncertain as this. */
void weft_costing_at_least(weft_costing *p, weft_source_class class_);

/* --- what collectives put on links: schedule/cost/link.c ------------------------------------- */

/* Adds one collective of `bytes` to the estimate. */
void weft_price_collective(weft_costing *p, const weft_group *group, weft_collective collective,
                           double bytes);
/* weft_small_sum_us on nodes of one kind. */
void weft_price_small_sum(weft_costing *p, int ranks, double bytes);

#endif
