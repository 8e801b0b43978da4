/* weft plan --html: what stands on the page. */
#ifndef WEFT_LAUNCHER_PLAN_PAGE_H
#define WEFT_LAUNCHER_PLAN_PAGE_H

#include "launcher/page/page.h"
#include "launcher/searching/search.h"

/* Whether the step of the config's mesh has few enough tasks for a timeline, whose memory grows
 * with them. */
bool weft_plan_page_draws(const weft_config *config, const weft_config_source *source);
/* A plan's page; trace: of its step, or NULL. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_plan_page_write(const char *path, const char *title, const weft_cluster *cluster,
                                 const weft_plan *plan, const weft_trace *trace) WEFT_CHECKED;
/* A search's page, of one result or, for the scaling curve, of several: the best plan of the last
 * one that has any, its meshes ranked. Errors: those of the plan; WEFT_FILE, WEFT_MEMORY. */
weft_status weft_plan_page_search(const char *path, const weft_config_source *source,
                                  const weft_search_result *results, int count,
                                  weft_arena *arena) WEFT_CHECKED;

#endif
