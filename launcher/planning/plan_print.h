/* Plans as text for people and as JSON. */
#ifndef WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H
#define WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H

#include "launcher/planning/plan.h"

void weft_plan_print(const weft_plan *plan, const weft_cluster *cluster, FILE *out);
/* One JSON object. WEFT_MEMORY. */
weft_status weft_plan_print_json(const weft_plan *plan, FILE *out) WEFT_CHECKED;
/* "stage 2 needs 1.2 GB more than the 80 GB ...", for a plan that does not fit. */
const char *weft_plan_short_text(const weft_plan *plan, char *out, size_t capacity);

#endif
