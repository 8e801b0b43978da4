#include "launcher/verbs/plan/plan_search.h"

#include "core/clock.h"
#include "launcher/process/stop.h"
#include "launcher/searching/search_print.h"

weft_status weft_plan_search_check(const weft_plan_search *s, const char *against)
{
    if (!s->on && (s->emit || s->nodes.count > 0 || s->top != WEFT_PLAN_SEARCH_TOP))
        return WEFT_ERROR(WEFT_CONFIG, "--%s: needs --search",
                          s->emit              ? "emit"
                          : s->nodes.count > 0 ? "nodes"
                                               : "top");
    if (s->on && against)
        return WEFT_ERROR(WEFT_CONFIG, "--against: of one mesh, and --search looks at many");
    for (size_t i = 0; i < s->nodes.count; i++)
        for (size_t k = 0; k < i; k++)
            if (s->nodes.values[k] == s->nodes.values[i])
                return WEFT_ERROR(WEFT_CONFIG, "--nodes: %lld stands there twice",
                                  (long long)s->nodes.values[i]);
    if (s->emit && s->nodes.count > 1)
        return WEFT_ERROR(WEFT_CONFIG, "--emit: one plan's config, and --nodes has %zu numbers",
                          s->nodes.count);
    return WEFT_OK;
}

weft_status weft_plan_search_find(weft_plan_search *s, const weft_config *config,
                                  const weft_config_source *source, const weft_cluster *cluster,
                                  weft_arena *arena)
{
    void *memory;
    s->num_results = s->nodes.count > 0 ? (int)s->nodes.count : 1;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)s->num_results, sizeof *s->results, &memory));
    s->results = memory;
    weft_search_progress progress = {.what = "search", .said_us = weft_now_us()};
    weft_stop_catch_wishes();
    for (int i = 0; i < s->num_results; i++) {
        weft_search_result *r = &s->results[i];
        const weft_search_options options = {.top = s->top,
                                             .nodes =
                                                 s->nodes.count > 0 ? (int)s->nodes.values[i] : 0,
                                             .progress = &progress};
        WEFT_TRY(weft_search_run(config, source, cluster, &options, arena, r));
        if (r->num_plans > 0 && (!s->best || r->plans[0].step_us < s->best->plans[0].step_us))
            s->best = r;
        if (r->is_stopped || (weft_stop_asked() && i + 1 < s->num_results)) {
            s->is_stopped = true;
            s->num_results = i + 1;
        }
    }
    return WEFT_OK;
}

weft_status weft_plan_search_report(const weft_plan_search *s, const weft_config *config,
                                    weft_arena *arena, weft_report *report)
{
    if (s->nodes.count > 1)
        return weft_search_report_scaling(report, s->results, s->num_results, config, arena);
    return weft_search_report(report, s->results, config, arena);
}

weft_status weft_plan_search_end(const weft_plan_search *s, const weft_config_source *source,
                                 weft_arena *arena)
{
    char text[WEFT_ERROR_TEXT_BYTES];
    if (!s->best && s->is_stopped)
        return WEFT_OK; /* which says so */
    if (!s->best)
        return WEFT_ERROR(
            WEFT_MEMORY, "%s",
            weft_search_short_text(&s->results[s->num_results - 1], text, sizeof text));
    return s->emit ? weft_search_emit(s->results, source, s->emit, arena) : WEFT_OK;
}
