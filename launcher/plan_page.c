#include "launcher/plan_page.h"

#include <math.h>

#include "core/text.h"
#include "launcher/searching/search_print.h"

bool weft_plan_page_draws(const weft_config *config, const weft_config_source *source)
{
    weft_mesh mesh;
    if (weft_config_mesh(config, source, 0, &mesh) != WEFT_OK) { /* the plan will say why */
        weft_error_clear();
        return false;
    }
    return config->train.global_batch_size / config->train.micro_batch_size / mesh.dp * mesh.pp <=
           WEFT_PAGE_MAX_TASKS;
}

/* "tp 8, dp 2; b 4, zero 1" */
static weft_status row_text(const char *mesh, const weft_candidate *candidate,
                            const weft_config *config, weft_arena *arena, const char **out)
{
    char choices[WEFT_SEARCH_CHOICES_BYTES];
    return weft_arena_printf(arena, out, "%s; %s", mesh,
                             weft_search_choices_text(candidate, config, choices, sizeof choices));
}

/* The plans, and behind them what is legal and does not fit. */
static weft_status list_meshes(const weft_search_result *r, weft_arena *arena, weft_page *page)
{
    void *memory;
    const int count = r->num_plans + r->num_misses;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)count + 1, sizeof(weft_page_mesh), &memory));
    weft_page_mesh *rows = memory;
    for (int i = 0; i < r->num_plans; i++) {
        const weft_found *f = &r->plans[i];
        rows[i] = (weft_page_mesh){.step_s = f->step_us / 1e6,
                                   .low_s = (double)NAN,
                                   .high_s = (double)NAN,
                                   .tokens_per_s = f->tokens_per_s,
                                   .memory_bytes = (double)f->memory_bytes,
                                   .fits = true};
        WEFT_TRY(row_text(f->mesh, &f->candidate, &f->config, arena, &rows[i].mesh));
        WEFT_TRY(weft_arena_printf(arena, &rows[i].note, "most of it: %s",
                                   weft_limit_text((int)f->limits)));
    }
    for (int i = 0; i < r->num_misses; i++) {
        const weft_missed *m = &r->misses[i];
        weft_page_mesh *row = &rows[r->num_plans + i];
        *row = (weft_page_mesh){.step_s = (double)NAN,
                                .low_s = (double)NAN,
                                .high_s = (double)NAN,
                                .tokens_per_s = (double)NAN,
                                .memory_bytes = (double)m->memory_bytes};
        WEFT_TRY(row_text(m->mesh, &m->candidate, &m->config, arena, &row->mesh));
        WEFT_TRY(weft_arena_printf(arena, &row->note, "lacks %s%s",
                                   weft_bytes_text((double)m->short_by_bytes).text,
                                   m->of_host ? " of host memory" : ""));
    }
    page->meshes = rows;
    page->num_meshes = count;
    return WEFT_OK;
}

static weft_status list_scales(const weft_plan_search *search, weft_arena *arena, weft_page *page)
{
    void *memory;
    const size_t count = (size_t)search->num_results;
    WEFT_TRY(weft_arena_alloc_array(arena, count, sizeof(weft_page_scale), &memory));
    weft_page_scale *rows = memory;
    for (size_t i = 0; i < count; i++) {
        const weft_search_result *r = &search->results[i];
        const weft_found *best = r->num_plans > 0 ? r->plans : NULL;
        rows[i] = (weft_page_scale){.nodes = r->num_devices / r->cluster->ranks_per_node,
                                    .devices = r->num_devices,
                                    .used = r->world,
                                    .idle = r->unused,
                                    .step_s = best ? best->step_us / 1e6 : (double)NAN,
                                    .tokens_per_s = best ? best->tokens_per_s : (double)NAN};
        if (best)
            WEFT_TRY(row_text(best->mesh, &best->candidate, &best->settled, arena, &rows[i].mesh));
    }
    page->scales = rows;
    page->num_scales = count > 1 ? (int)count : 0;
    return WEFT_OK;
}

static weft_status add_gains(weft_page *page, const weft_what_if *w, weft_arena *arena)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)w->num_rows, sizeof *page->gains, &memory));
    weft_page_gain *gains = memory;
    page->num_gains = 0;
    for (int i = 0; i < w->num_rows; i++) {
        const weft_what_if_row *row = &w->rows[i];
        if (row->without)
            continue;
        gains[page->num_gains++] = (weft_page_gain){
            .change = row->help,
            .same_mesh = row->same.known ? 1 + row->same.gain : (double)NAN,
            .searched = row->best.known ? 1 + row->best.gain : (double)NAN,
            .mesh = row->best.mesh,
            .limits = row->best.known ? weft_limit_text((int)row->best.limits) : NULL,
            .cost_per_billion = row->best.known ? row->best.billion_tokens_cost : (double)NAN};
    }
    page->gains = gains;
    return WEFT_OK;
}

weft_status weft_plan_page_write(weft_page *page, const weft_plan_search *search,
                                 const weft_what_if *what_if, const char *path, weft_arena *arena)
{
    page->no_trace = "The step has too many tasks for a timeline.";
    if (search) {
        const weft_search_result *last = &search->results[search->num_results - 1];
        WEFT_TRY(list_meshes(search->best ? search->best : last, arena, page));
        WEFT_TRY(list_scales(search, arena, page));
    }
    if (what_if)
        WEFT_TRY(add_gains(page, what_if, arena));
    return weft_page_write(page, path);
}
