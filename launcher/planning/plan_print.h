/* Plans as reports. */
#ifndef WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H
#define WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H

#include "launcher/planning/against.h"
#include "launcher/planning/figures.h"
#include "launcher/report/report.h"

void weft_plan_report(weft_report *report, const weft_plan *plan, const weft_cluster *cluster);
/* Its part "time", of a step or a stage. */
void weft_plan_report_times(weft_report *report, const double us[WEFT_NUM_TIMES]);
/* Its part "against". */
void weft_against_report(weft_report *report, const weft_against *against);
/* "tp 2, pp 4, dp 1, schedule zbv, 2 virtual stages a rank". */
const char *weft_plan_mesh_text(const weft_plan *plan, char *out, size_t capacity);
/* Whether less than a twentieth of the fullest device's memory is left. */
bool weft_plan_is_tight(uint64_t memory_bytes, uint64_t limit_bytes);
/* "stage 2 needs 1.2 GB more than the 80 GB ...", for a plan that does not fit. */
const char *weft_plan_short_text(const weft_plan *plan, char *out, size_t capacity);

/* For people what is known. */
void weft_plan_figures_report(weft_report *report, const weft_plan_figures *figures);
/* Its part "cost", for people rows of the facts that are open. */
void weft_plan_costs_report(weft_report *report, const weft_plan_figures *figures);
/* A record: a number behind a plan. */
void weft_plan_report_source(weft_report *report, const char *what, weft_source_class class_,
                             const char *where, double spread);

#endif
