/* Reports what planning/figures.h has. */
#ifndef WEFT_LAUNCHER_PLANNING_FIGURES_PRINT_H
#define WEFT_LAUNCHER_PLANNING_FIGURES_PRINT_H

#include "launcher/planning/figures.h"
#include "launcher/report/report.h"

/* For people what is known. */
void weft_plan_figures_report(weft_report *report, const weft_plan_figures *figures);
/* "parts", the memory of embedding, decoder and head, of a stage. */
void weft_plan_report_parts(weft_report *report, const weft_plan *plan, int stage);
/* A record: a number behind a plan. */
void weft_plan_report_source(weft_report *report, const char *what, weft_source_class class_,
                             const char *where, double spread);

#endif
