/* What a search found, as text, as JSON, and its winner as a config. */
#ifndef WEFT_LAUNCHER_SEARCHING_SEARCH_PRINT_H
#define WEFT_LAUNCHER_SEARCHING_SEARCH_PRINT_H

#include <stdio.h>

#include "launcher/searching/search.h"

struct cJSON;

/* What beside the mesh makes a plan: "b 4, zero 1, 1f1b, recompute core_attn". */
enum { WEFT_SEARCH_CHOICES_BYTES = 192 };
const char *weft_search_choices_text(const weft_candidate *candidate, const weft_config *config,
                                     char *out, size_t capacity);
/* A table of the plans, and what became of the rest. */
void weft_search_print(const weft_search_result *result, FILE *out);
/* The scaling curve: a row a result, each its best plan; below it why devices stay
 * idle. */
void weft_search_print_scaling(const weft_search_result *results, int count, FILE *out);
/* num_devices, num_devices_used, devices_unused_reason, plans, rejected, counts: a new object.
 * `config`: the one that was searched from; overrides are what differs from it. NULL: no memory. */
weft_status weft_search_json(const weft_search_result *result, const weft_config *config,
                             weft_arena *arena, struct cJSON **out) WEFT_CHECKED;
/* "nothing fits 16 devices; nearest: tp 8, ... (b 1, zero 3, ...) lacks 1.2 GiB of 77 GiB;
 * ...": up to three that have room. */
const char *weft_search_short_text(const weft_search_result *result, char *out, size_t capacity);
/* Writes the best plan's config. Errors: WEFT_FILE. */
weft_status weft_search_emit(const weft_search_result *result, const weft_config_source *source,
                             const char *path, weft_arena *arena) WEFT_CHECKED;

#endif
