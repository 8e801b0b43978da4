#include "launcher/searching/what_if.h"

#include <math.h>

#include "core/clock.h"
#include "core/cluster/cluster.h"
#include "launcher/planning/figures.h"
#include "launcher/process/stop.h"

/* Node counts that are tried: so many, in steps of so large a share of today's. */
enum { MORE_NODES = 16 };

typedef struct asking {
    const weft_config *config; /* the plan's */
    const weft_config_source *source;
    const weft_plan *plan;   /* today's */
    weft_config_source open; /* the source without --mesh */
    weft_arena *arena;
    int num_nodes; /* that the plan lies on */
    weft_search_progress *progress;
} asking;

static double billion_tokens_cost(const weft_cluster *cluster, int world, double tokens_per_s)
{
    const weft_mesh ranks = {.world = world};
    return weft_plan_costs_of(cluster, &ranks, tokens_per_s).billion_tokens;
}

static double gain_of(const asking *a, double tokens_per_s)
{
    return tokens_per_s / a->plan->tokens_per_s - 1;
}

/* The mesh asked for, on a cluster. */
static weft_status plan_same(const asking *a, const weft_config *config,
                             const weft_cluster *cluster, weft_what_if_plan *out)
{
    weft_config planned = *config;
    weft_plan plan;
    char axes[128];
    planned.planned_on = cluster;
    planned.planned_curves = NULL;
    planned.planned_prices = NULL;
    WEFT_TRY(weft_plan_make(&planned, a->source, cluster, NULL, a->arena, &plan));
    weft_mesh_print(&plan.mesh, axes, sizeof axes);
    *out = (weft_what_if_plan){.known = true,
                               .fits = plan.fits,
                               .step_us = plan.step_us,
                               .tokens_per_s = plan.tokens_per_s,
                               .gain = gain_of(a, plan.tokens_per_s),
                               .billion_tokens_cost =
                                   billion_tokens_cost(cluster, plan.mesh.world, plan.tokens_per_s),
                               .limits = plan.limits};
    weft_plan_release(&plan);
    return weft_arena_printf(a->arena, &out->mesh, "%s", axes);
}

static weft_status plan_best(const asking *a, const weft_config *config,
                             const weft_cluster *cluster, const weft_search_options *options,
                             weft_what_if_row *row)
{
    weft_search_result result;
    weft_config searched = *config;
    a->progress->what = row->help;
    searched.planned_on = cluster;
    WEFT_TRY(weft_search_run(&searched, &a->open, cluster, options, a->arena, &result));
    row->num_nodes = result.num_nodes;
    if (result.is_stopped)
        return weft_arena_printf(a->arena, &row->without, "stopped before its search was over");
    if (result.num_plans == 0)
        return WEFT_OK;
    const weft_found *best = &result.plans[0];
    row->best = (weft_what_if_plan){.known = true,
                                    .fits = true,
                                    .mesh = best->mesh,
                                    .step_us = best->step_us,
                                    .tokens_per_s = best->tokens_per_s,
                                    .gain = gain_of(a, best->tokens_per_s),
                                    .billion_tokens_cost = billion_tokens_cost(
                                        result.cluster, result.world, best->tokens_per_s),
                                    .limits = best->limits};
    return WEFT_OK;
}

static weft_status ask(const asking *a, const weft_config *config, const weft_cluster *cluster,
                       weft_what_if_row *row)
{
    WEFT_TRY(plan_same(a, config, cluster, &row->same));
    WEFT_TRY(plan_best(
        a, config, cluster,
        &(weft_search_options){.top = 1, .nodes = a->num_nodes, .progress = a->progress}, row));
    /* This mesh may have what no search tries. */
    if (row->same.fits && row->best.known && row->same.tokens_per_s > row->best.tokens_per_s)
        row->best = row->same;
    return WEFT_OK;
}

static weft_status ask_better(const asking *a, const weft_cluster *cluster, weft_better better,
                              weft_what_if_row *row)
{
    weft_config config = *a->config;
    weft_cluster *with;
    WEFT_TRY(WEFT_ARRAY(a->arena, 1, &with));
    weft_cluster_better(cluster, better, with);
    if (better == WEFT_BETTER_MEMORY)
        config.device.memory_limit *= 2;
    if (better == WEFT_BETTER_RATE)
        config.device.pace *= 2; /* of an emulated accelerator */
    return ask(a, &config, with, row);
}

/* Why it is this count and no lower one. */
static weft_status tell_skipped(const asking *a, int first, int last, int step,
                                weft_what_if_row *row)
{
    if (last < first)
        return WEFT_OK;
    return weft_arena_printf(
        a->arena, &row->why,
        "%d nodes: of %d to %d, in steps of %d, no count has a faster legal mesh that fits",
        row->num_nodes, first, last, step);
}

/* The cluster's nodes may be one, whose file knows no links to others. */
static bool is_lack(weft_status status)
{
    return status == WEFT_CONFIG && weft_lack_is(weft_error_get());
}

static weft_status note_lack(const asking *a, weft_what_if_row *row)
{
    weft_error error;
    weft_error_take(&error);
    row->lacks = true;
    return weft_arena_printf(a->arena, &row->without, "%s", error.text);
}

static weft_status ask_nodes(const asking *a, const weft_cluster *cluster,
                             const weft_what_if_plan *today, weft_what_if_row *row)
{
    const int nodes = a->num_nodes, step = (nodes + MORE_NODES - 1) / MORE_NODES;
    for (int i = 1; i <= MORE_NODES; i++) {
        const weft_search_options options = {
            .top = 1,
            .nodes = nodes + i * step,
            .below_us = today->known ? today->step_us : 0, /* the batch is the same */
            .all_devices = true,
            .progress = a->progress};
        const weft_status status = plan_best(a, a->config, cluster, &options, row);
        if (is_lack(status))
            return note_lack(a, row);
        if (status == WEFT_CONFIG) /* no mesh is legal */
            continue;
        WEFT_TRY(status);
        if (row->without)
            return WEFT_OK;
        if (row->best.known && (!today->known || row->best.tokens_per_s > today->tokens_per_s))
            return tell_skipped(a, nodes + step, nodes + (i - 1) * step, step, row);
        row->best.known = false;
    }
    return weft_arena_printf(a->arena, &row->without,
                             "none of %d to %d nodes, in steps of %d, has a faster legal mesh",
                             nodes + step, nodes + MORE_NODES * step, step);
}

static weft_status ask_twice(const asking *a, const weft_cluster *cluster, weft_what_if_row *row)
{
    const weft_search_options options = {
        .top = 1, .nodes = 2 * a->num_nodes, .all_devices = true, .progress = a->progress};
    const weft_status status = plan_best(a, a->config, cluster, &options, row);
    if (is_lack(status))
        return note_lack(a, row);
    if (status == WEFT_CONFIG)
        return weft_arena_printf(a->arena, &row->without, "no mesh is legal on all of %d nodes",
                                 2 * a->num_nodes);
    return status;
}

static weft_status ask_balanced(const asking *a, const weft_cluster *cluster, weft_what_if_row *row)
{
    weft_config config = *a->config;
    if (config.model.num_experts == 0)
        return weft_arena_printf(a->arena, &row->without, "the model has no experts");
    if (!(a->plan->step.outline.shape.moe_load > 1))
        return weft_arena_printf(a->arena, &row->without, "the plan's experts are balanced");
    config.moe_load = 1;
    config.model.moe_router_forced_load = 0;
    return ask(a, &config, cluster, row);
}

static weft_what_if_row *add(weft_what_if *out, const char *name, const char *help)
{
    weft_what_if_row *row = &out->rows[out->num_rows++];
    *row = (weft_what_if_row){.name = name, .help = help};
    return row;
}

weft_status weft_what_if_run(const weft_config *config, const weft_config_source *source,
                             const weft_cluster *cluster, const weft_plan *plan, weft_arena *arena,
                             weft_what_if *out)
{
    weft_search_progress progress = {.said_us = weft_now_us()};
    asking a = {.config = config,
                .source = source,
                .plan = plan,
                .open = *source,
                .arena = arena,
                .progress = &progress};
    a.num_nodes = (plan->mesh.world + cluster->ranks_per_node - 1) / cluster->ranks_per_node;
    *out = (weft_what_if){0};
    a.open.mesh = NULL;
    weft_stop_catch_wishes();
    weft_what_if_row *today = add(out, "today", "today");
    WEFT_TRY(ask(&a, config, cluster, today));
    if (!weft_stop_asked())
        WEFT_TRY(ask_nodes(&a, cluster, &today->best, add(out, "nodes", "next faster node count")));
    if (!weft_stop_asked())
        WEFT_TRY(ask_twice(&a, cluster, add(out, "nodes_x2", "twice the nodes")));
    for (int i = 0; i < WEFT_NUM_BETTERS && !weft_stop_asked(); i++)
        WEFT_TRY(ask_better(&a, cluster, (weft_better)i,
                            add(out, weft_better_text(i), weft_better_help(i))));
    out->is_stopped = weft_stop_asked();
    if (out->is_stopped)
        return WEFT_OK;
    return ask_balanced(&a, cluster, add(out, "balanced_experts", "balanced experts"));
}

/* --- report -------------------------------------------------------------------------------- */

static void report_gain(weft_report *r, const char *title, const weft_what_if_plan *p)
{
    if (p->known && !p->fits)
        weft_report_cell(r, title, "%+.1f %% !", 100 * p->gain);
    else
        weft_report_row(r, NULL, title, WEFT_UNIT_CHANGE, p->known ? p->gain : (double)NAN);
}

static void report_plan(weft_report *r, const char *key, const weft_what_if_plan *p)
{
    if (!p->known) {
        weft_report_text(r, key, NULL, NULL);
        return;
    }
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_text(r, "mesh", NULL, p->mesh);
    weft_report_bool(r, "fits", p->fits);
    weft_report_value(r, "gain", p->gain);
    weft_report_value(r, "step_time_s", p->step_us / 1e6);
    weft_report_value(r, "tokens_per_s", p->tokens_per_s);
    weft_report_text(r, "limits", NULL, weft_limit_texts[(int)p->limits]);
    weft_report_value(r, "billion_tokens_cost", p->billion_tokens_cost);
    weft_report_close(r);
}

/* What a row's best plan is, for people. */
static void report_best(weft_report *r, const weft_what_if_row *row)
{
    const weft_what_if_plan *best = &row->best;
    weft_report_cell(r, "most of it", "%s",
                     best->known ? weft_limit_texts[(int)best->limits] : "-");
    weft_report_row(r, NULL, "nodes", WEFT_UNIT_COUNT, best->known ? row->num_nodes : (double)NAN);
    if (isfinite(best->billion_tokens_cost) && best->billion_tokens_cost > 0)
        weft_report_row(r, NULL, "a billion tokens", WEFT_UNIT_NONE, best->billion_tokens_cost);
    weft_report_cell(r, "its mesh", "%s",
                     row->lacks     ? "-"
                     : row->without ? row->without
                     : best->known  ? best->mesh
                                    : "nothing fits");
}

static void report_row(weft_report *r, const weft_what_if_row *row)
{
    weft_report_record(r);
    weft_report_text(r, "name", NULL, row->name);
    weft_report_text(r, "help", "", row->help);
    weft_report_value(r, "num_nodes", row->num_nodes);
    if (row->without)
        weft_report_text(r, "without", NULL, row->without);
    if (row->why)
        weft_report_text(r, "why", NULL, row->why);
    report_gain(r, "this mesh", &row->same);
    report_gain(r, "new search", &row->best);
    report_best(r, row);
    report_plan(r, "same_mesh", &row->same);
    report_plan(r, "new_search", &row->best);
}

void weft_what_if_report(weft_report *r, const weft_what_if *w)
{
    bool misfits = false;
    const char *lack = NULL;
    weft_report_line(r, "\nWhat it would buy, in tokens a second:\n");
    weft_report_open(r, WEFT_REPORT_TABLE, "what_if");
    for (int i = 0; i < w->num_rows; i++) {
        report_row(r, &w->rows[i]);
        misfits |= w->rows[i].same.known && !w->rows[i].same.fits;
        lack = w->rows[i].lacks && !lack ? w->rows[i].without : lack;
    }
    weft_report_close(r);
    if (misfits)
        weft_report_line(r, "\n  !: it does not fit");
    if (lack)
        weft_report_line(r, "\n  more nodes: %s", lack);
    for (int i = 0; i < w->num_rows; i++)
        if (w->rows[i].why)
            weft_report_line(r, "\n  %s: %s", w->rows[i].help, w->rows[i].why);
    if (w->is_stopped)
        weft_report_line(r, "\n  stopped before its end: other rows were not asked for");
}
