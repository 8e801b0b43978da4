/* A cluster at either end of its numbers: what each is at best and at worst, by its spread. Pure.
 *
 * A number of the file lies within its spread s: between value / (1 + s) and value (1 + s). The
 * spread is the source's; where that is silent, the class': of what was measured 5 %, of a data
 * sheet's 5 %, of what was assumed 20 %. What was measured has 5 % at the least, whatever one
 * calibration saw: steps of one config on one machine differ by as much from hour to hour
 * (bench/results/2026-11-22-plans.md). Sizes and counts (memory, cards, tiles, eager bytes) and
 * interference have no spread. */
#ifndef WEFT_CORE_CLUSTER_RANGE_H
#define WEFT_CORE_CLUSTER_RANGE_H

#include "core/cluster/cluster.h"

typedef enum weft_cluster_end {
    WEFT_CLUSTER_SLOW, /* rates at their least, times at their longest */
    WEFT_CLUSTER_FAST,
    WEFT_NUM_CLUSTER_ENDS
} weft_cluster_end;

/* The class of the number at a path, as weft_cluster_source has paths and groups: where no source
 * covers it, measured for costs, products and operations, else assumed. */
weft_source_class weft_cluster_class(const weft_cluster *cluster, int group, const char *path);
/* Its spread, as above; 0 of sizes, counts and what no time follows from. */
double weft_cluster_spread(const weft_cluster *cluster, int group, const char *path);
/* The cluster with all numbers at one end. Efficiencies end at 1, oversubscription at 1. */
void weft_cluster_at_end(const weft_cluster *cluster, weft_cluster_end end, weft_cluster *out);

#endif
