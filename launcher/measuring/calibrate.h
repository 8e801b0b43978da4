/* How `weft calibrate` shows a cluster. Pure. Private to launcher/. */
#ifndef WEFT_LAUNCHER_MEASURING_CALIBRATE_H
#define WEFT_LAUNCHER_MEASURING_CALIBRATE_H

#include <stdbool.h>
#include <stdio.h>

#include "core/cluster/cluster.h"

/* Prints a table a cost (its peak and spread; volume, time, rate, share of the peak), then the
 * interference matrix. is_imported: what is there was not measured here. */
weft_status weft_calibrate_print(const weft_cluster *cluster, bool is_imported,
                                 FILE *out) WEFT_CHECKED;
/* One line where measured numbers have a spread above WEFT_CALIBRATE_MOST_SPREAD: how many, and the
 * widest. */
#define WEFT_CALIBRATE_MOST_SPREAD 0.3
void weft_calibrate_warn(const weft_cluster *cluster, FILE *out);

#endif
