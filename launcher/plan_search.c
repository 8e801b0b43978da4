#include "launcher/plan_search.h"

#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "launcher/plan_page.h"
#include "launcher/searching/search_print.h"

weft_status weft_plan_search_check(const weft_plan_search *s, const char *against,
                                   const char *trace)
{
    if (!s->on && (s->emit || s->nodes.count > 0 || s->top != WEFT_PLAN_SEARCH_TOP))
        return WEFT_ERROR(WEFT_CONFIG, "--%s: needs --search",
                          s->emit              ? "emit"
                          : s->nodes.count > 0 ? "nodes"
                                               : "top");
    if (s->on && (against || trace))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--%s: of one mesh, and --search looks at many; --emit "
                          "writes the best one's config",
                          against ? "against" : "trace");
    if (s->emit && s->nodes.count > 1)
        return WEFT_ERROR(WEFT_CONFIG, "--emit: one plan's config, and --nodes has %zu numbers",
                          s->nodes.count);
    return WEFT_OK;
}

static weft_status print_json(const weft_search_result *results, int count,
                              const weft_config *config, weft_arena *arena)
{
    cJSON *json = NULL, *rows = count > 1 ? cJSON_CreateArray() : NULL;
    weft_status status = WEFT_OK;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        status = weft_search_json(&results[i], config, arena, &json);
        if (status == WEFT_OK && rows) {
            cJSON_AddItemToArray(rows, json);
            json = NULL;
        }
    }
    if (rows) {
        json = cJSON_CreateObject();
        cJSON_AddItemToObject(json, "scaling", rows);
    }
    char *text = status == WEFT_OK ? cJSON_Print(json) : NULL;
    cJSON_Delete(json);
    WEFT_TRY(status);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the plans");
    printf("%s\n", text);
    free(text);
    return WEFT_OK;
}

weft_status weft_plan_search_run(const weft_plan_search *s, const weft_config *config,
                                 const weft_config_source *source, const weft_cluster *cluster,
                                 bool json, weft_arena *arena)
{
    const int count = s->nodes.count > 0 ? (int)s->nodes.count : 1;
    char text[WEFT_ERROR_TEXT_BYTES];
    bool any = false;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count, sizeof(weft_search_result), &memory));
    weft_search_result *results = memory;
    for (int i = 0; i < count; i++) {
        const weft_search_options options = {
            .top = s->top, .nodes = s->nodes.count > 0 ? (int)s->nodes.values[i] : 0};
        WEFT_TRY(weft_search_run(config, source, cluster, &options, arena, &results[i]));
        any |= results[i].num_plans > 0;
    }
    if (json)
        WEFT_TRY(print_json(results, count, config, arena));
    else if (count > 1)
        weft_search_print_scaling(results, count, stdout);
    else
        weft_search_print(results, stdout);
    if (s->html)
        WEFT_TRY(weft_plan_page_search(s->html, source, results, count, arena));
    if (!any)
        return WEFT_ERROR(WEFT_MEMORY, "%s",
                          weft_search_short_text(&results[count - 1], text, sizeof text));
    return s->emit ? weft_search_emit(results, source, s->emit, arena) : WEFT_OK;
}
