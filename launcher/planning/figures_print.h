/* Prints what planning/figures.h has, as lines and as JSON. */
#ifndef WEFT_LAUNCHER_PLANNING_FIGURES_PRINT_H
#define WEFT_LAUNCHER_PLANNING_FIGURES_PRINT_H

#include <stdio.h>

#include <cjson/cJSON.h>

#include "launcher/planning/figures.h"

/* A line each of what is known. */
void weft_plan_figures_print(const weft_plan_figures *figures, FILE *out);
/* Adds the figures' keys to a plan. */
void weft_plan_add_figures(cJSON *plan, const weft_plan_figures *figures);
/* Adds "parts", the memory of embedding, decoder and head, to a stage. */
void weft_plan_add_parts(cJSON *json, const weft_plan *plan, int stage);
/* All its digits; null where it is not finite. */
void weft_plan_add_number(cJSON *json, const char *key, double value);

#endif
