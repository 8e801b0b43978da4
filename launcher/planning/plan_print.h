/* Plans as text for people and as JSON. */
#ifndef WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H
#define WEFT_LAUNCHER_PLANNING_PLAN_PRINT_H

#include <cjson/cJSON.h>

#include "launcher/planning/against.h"

void weft_plan_print(const weft_plan *plan, const weft_cluster *cluster, FILE *out);
void weft_against_print(const weft_against *against, FILE *out);
/* A new object; against: its part of that name, or NULL. */
cJSON *weft_plan_json(const weft_plan *plan, const weft_against *against);
/* Prints an object and deletes it. WEFT_MEMORY. */
weft_status weft_print_json(cJSON *json, FILE *out) WEFT_CHECKED;
/* "stage 2 needs 1.2 GB more than the 80 GB ...", for a plan that does not fit. */
const char *weft_plan_short_text(const weft_plan *plan, char *out, size_t capacity);

/* "12.5 ms", "7200 s", "5.85 h". */
typedef struct weft_time_words {
    char text[32];
} weft_time_words;
weft_time_words weft_time_text_of(double us);
/* "41.2", in percent; "-": it would be above 1. */
typedef struct weft_utilization {
    char text[16];
} weft_utilization;
weft_utilization weft_utilization_text(double utilization);

#endif
