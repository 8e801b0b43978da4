/* What a search found as a report, and its winner as a config. */
#ifndef WEFT_LAUNCHER_SEARCHING_SEARCH_PRINT_H
#define WEFT_LAUNCHER_SEARCHING_SEARCH_PRINT_H

#include "launcher/report/report.h"
#include "launcher/searching/search.h"

/* What beside the mesh makes a plan: "b 4, zero 1, 1f1b, recompute core_attn". */
enum { WEFT_SEARCH_CHOICES_BYTES = 192 };
const char *weft_search_choices_text(const weft_candidate *candidate, const weft_config *config,
                                     char *out, size_t capacity);
/* The plans, and what became of the rest. config: the one that was searched from, for JSON alone,
 * whose overrides are what differs from it. */
weft_status weft_search_report(weft_report *report, const weft_search_result *result,
                               const weft_config *config, weft_arena *arena) WEFT_CHECKED;
/* The scaling curve: for people a row a result, each its best plan, and why devices stay idle; in
 * JSON "scaling" has each whole. */
weft_status weft_search_report_scaling(weft_report *report, const weft_search_result *results,
                                       int count, const weft_config *config,
                                       weft_arena *arena) WEFT_CHECKED;
/* "nothing fits 16 devices; nearest: tp 8, ... (b 1, zero 3, ...) lacks 1.2 GiB of 77 GiB;
 * ...": up to three that have room. */
const char *weft_search_short_text(const weft_search_result *result, char *out, size_t capacity);
/* Writes the best plan's config. Errors: WEFT_FILE. */
weft_status weft_search_emit(const weft_search_result *result, const weft_config_source *source,
                             const char *path, weft_arena *arena) WEFT_CHECKED;

#endif
