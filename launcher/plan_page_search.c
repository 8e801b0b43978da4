/* A search's page: its plans ranked, speed over memory, the scaling curve, and the best plan as
 * weft plan has it. */
#include <math.h>

#include "core/text.h"
#include "launcher/plan_page.h"
#include "launcher/planning/figures.h"

/* The plans, and behind them what is legal and does not fit. */
static weft_status list_meshes(const weft_search_result *r, weft_arena *arena, weft_page *page)
{
    const int count = r->num_plans + r->num_misses;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count + 1, sizeof(weft_page_mesh), &memory));
    weft_page_mesh *rows = memory;
    for (int i = 0; i < r->num_plans; i++) {
        const weft_found *f = &r->plans[i];
        rows[i] = (weft_page_mesh){.mesh = f->mesh,
                                   .step_s = f->step_us / 1e6,
                                   .tokens_per_s = f->tokens_per_s,
                                   .memory_bytes = (double)f->memory_bytes,
                                   .fits = true};
        WEFT_TRY(
            weft_arena_printf(arena, &rows[i].note, "most of it: %s", weft_limit_text(f->limits)));
    }
    for (int i = 0; i < r->num_misses; i++) {
        const weft_missed *m = &r->misses[i];
        weft_page_mesh *row = &rows[r->num_plans + i];
        *row = (weft_page_mesh){.mesh = m->mesh,
                                .step_s = NAN,
                                .tokens_per_s = NAN,
                                .memory_bytes = (double)m->memory_bytes};
        WEFT_TRY(weft_arena_printf(arena, &row->note, "lacks %s%s",
                                   weft_bytes_text((double)m->short_by_bytes).text,
                                   m->of_host ? " of host memory" : ""));
    }
    page->meshes = rows;
    page->num_meshes = count;
    return WEFT_OK;
}

static weft_status list_scales(const weft_search_result *results, int count, weft_arena *arena,
                               weft_page *page)
{
    void *memory;
    if (count < 2)
        return WEFT_OK;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count, sizeof(weft_page_scale), &memory));
    weft_page_scale *rows = memory;
    for (int i = 0; i < count; i++) {
        const weft_search_result *r = &results[i];
        const weft_found *best = r->num_plans > 0 ? r->plans : NULL;
        rows[i] = (weft_page_scale){.nodes = r->num_nodes,
                                    .devices = r->num_devices,
                                    .mesh = best ? best->mesh : NULL,
                                    .step_s = best ? best->step_us / 1e6 : NAN,
                                    .tokens_per_s = best ? best->tokens_per_s : NAN};
    }
    page->scales = rows;
    page->num_scales = count;
    return WEFT_OK;
}

/* The best of the results' first that has the most nodes and a plan; or the last. */
static const weft_search_result *shown_of(const weft_search_result *results, int count)
{
    for (int i = count - 1; i >= 0; i--)
        if (results[i].num_plans > 0)
            return &results[i];
    return &results[count - 1];
}

weft_status weft_plan_page_search(const char *path, const weft_config_source *source,
                                  const weft_search_result *results, int count, weft_arena *arena)
{
    const weft_search_result *shown = shown_of(results, count);
    const weft_found *best = shown->num_plans > 0 ? shown->plans : NULL;
    weft_page page = {.title = source->file, .cluster = shown->cluster, .no_trace = NULL};
    weft_plan plan = {0};
    weft_trace *trace = NULL;
    WEFT_TRY(list_meshes(shown, arena, &page));
    WEFT_TRY(list_scales(results, count, arena, &page));
    if (!best)
        return weft_page_write(&page, path);
    if (weft_plan_page_draws(&best->config, source))
        WEFT_TRY(weft_trace_create(&trace));
    weft_status status = weft_plan_make(&best->config, source, shown->cluster, trace, arena, &plan);
    if (status == WEFT_OK)
        status = weft_plan_figures_make(&best->config, source, shown->cluster, 0, arena, &plan);
    page.plan = &plan;
    page.trace = trace;
    if (status == WEFT_OK)
        status = weft_page_write(&page, path);
    weft_trace_destroy(trace);
    weft_plan_release(&plan);
    return status;
}
