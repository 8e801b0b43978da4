/* weft plan --html: what stands on the page. */
#ifndef WEFT_LAUNCHER_PLAN_PAGE_H
#define WEFT_LAUNCHER_PLAN_PAGE_H

#include "launcher/page/page.h"
#include "launcher/plan_search.h"
#include "launcher/searching/what_if.h"

/* Whether the step of the config's mesh has few enough tasks for a timeline, whose memory grows
 * with them. */
bool weft_plan_page_draws(const weft_config *config, const weft_config_source *source);
/* Completes a page that has title, plan, cluster and trace, by what was searched and asked (NULL:
 * it was not), from the arena, and writes it. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_plan_page_write(weft_page *page, const weft_plan_search *search,
                                 const weft_what_if *what_if, const char *path,
                                 weft_arena *arena) WEFT_CHECKED;

#endif
