/* weft plan: what a config's mesh takes on a cluster. No ranks, no data, no device. */
#include "launcher/verbs/plan/plan.h"

#include <string.h>

#include "core/clock.h"
#include "core/cluster/cluster.h"
#include "core/log.h"
#include "launcher/arguments/rows.h"
#include "launcher/page/page.h"
#include "launcher/planning/config.h"
#include "launcher/planning/figures.h"
#include "launcher/planning/plan_print.h"
#include "launcher/planning/run_changes.h"
#include "launcher/planning/software.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"
#include "launcher/report/report.h"
#include "launcher/searching/search.h"

enum { PLAN_SEARCH_TOP = 5 };

typedef struct plan_search {
    bool on;
    int top;
    weft_int_list nodes; /* empty: the cluster's */
    const char *emit;    /* NULL: no file */
    /* What is found. */
    weft_search_result *results; /* [num_results], one of each number of nodes */
    int num_results;
    const weft_search_result *best; /* that has the fastest plan; NULL: nothing fits */
    bool is_stopped;                /* by a signal, before the end */
} plan_search;

static weft_status plan_search_check(const plan_search *s)
{
    for (size_t i = 0; i < s->nodes.count; i++)
        for (size_t k = 0; k < i; k++)
            if (s->nodes.values[k] == s->nodes.values[i])
                return WEFT_ERROR(WEFT_CONFIG, "--nodes: %lld stands there twice",
                                  (long long)s->nodes.values[i]);
    if (s->emit && s->nodes.count > 1)
        return WEFT_ERROR(
            WEFT_CONFIG,
            "--emit: writes the config of one plan, and --nodes asks for plans on %zu "
            "numbers of nodes: give it one",
            s->nodes.count);
    return WEFT_OK;
}

/* From here on SIGINT and its like end a search, with what it has. Errors: those of
 * weft_search_run. */
static weft_status plan_search_find(plan_search *s, const weft_config *config,
                                    const weft_config_source *source, const weft_cluster *cluster,
                                    weft_arena *arena)
{
    s->num_results = s->nodes.count > 0 ? (int)s->nodes.count : 1;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)s->num_results, &s->results));
    weft_search_progress progress = {.what = "search", .said_us = weft_now_us()};
    weft_stop_catch_wishes();
    for (int i = 0; i < s->num_results; i++) {
        weft_search_result *r = &s->results[i];
        const weft_search_options options = {.top = s->top,
                                             .ranges = true,
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

/* config: the one that was searched from. */
static weft_status plan_search_report(const plan_search *s, const weft_config *config,
                                      weft_report *report)
{
    if (s->nodes.count > 1)
        return weft_search_report_scaling(report, s->results, s->num_results, config);
    return weft_search_report(report, s->results, config);
}

/* Writes the winner's config, where it is asked for. Errors: WEFT_FILE; WEFT_MEMORY where nothing
 * fits. */
static weft_status plan_search_end(const plan_search *s, const weft_config_source *source,
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

typedef struct planner {
    const char *cluster, *mesh, *trace, *against, *html;
    weft_string_list set;
    plan_search search;
    bool json, asks_what_if;
    bool is_stopped;                /* before all was answered */
    int kernels;                    /* weft_kernels_kind */
    int software;                   /* weft_software */
    double expert_load, num_tokens; /* 0: not given */
    weft_arena arena;
    weft_config_source source;
    weft_vocabulary_function vocabulary;
} planner;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, planner *p)
{
    const char *file;
    const weft_argument rows[] = {
        TEXT("cluster", "FILE", &p->cluster,
             "what operations cost: from weft calibrate, or of data sheets", .required = true),
        TEXT("mesh", "AXES", &p->mesh, "such as tp=8,pp=4: replaces the config's mesh"),
        FLAG("search", &p->search.on,
             "the best plans on all devices of the cluster, whatever keys they take"),
        SMALL("top", "K", &p->search.top, 1, 1e4, "how many plans a search lists",
              .needs = "search"),
        LIST("nodes", "N,..", &p->search.nodes, 32, 1, 1e5, "",
             "search on so many nodes of the cluster; several: the scaling curve",
             .needs = "search"),
        TEXT("emit", "FILE", &p->search.emit,
             "write the best plan of a search as a config that trains", .needs = "search"),
        TEXTS("set", "KEY=VALUE", &p->set, "override a key of the config; may be repeated"),
        TEXT("against", "RUN", &p->against,
             "a run of this config: planned beside measured, each with its error",
             .excludes = "search expert-load"),
        REAL("expert-load", "X", &p->expert_load, 1, 1e6, NULL,
             "rows at the fullest rank's experts over the mean (1)"),
        REAL("tokens", "T", &p->num_tokens, 1, 1e18, "",
             "to train on, such as 300M or 2T (10^12): days and costs"),
        TEXT("trace", "FILE", &p->trace,
             "the planned step's timeline, a track a stage, for Perfetto"),
        NAMED("kernels", "KIND", &p->kernels, weft_kernels_texts, WEFT_NUM_KERNELS,
              "weft's own, or of published runs, which only plans know: plain, plain-2021"),
        NAMED("software", "KIND", &p->software, weft_software_texts, WEFT_NUM_SOFTWARE,
              "whose operations, by rules that only plans know: weft, megatron (2024), "
              "megatron-a2a and "
              "megatron-deepep (2025, by how experts' rows travel), automodel (NeMo's), fsdp "
              "(PyTorch's), "
              "fsdp-2023, or as --kernels: plain, plain-2021"),
        TEXT("html", "FILE", &p->html,
             "the plan as a page: one file, which a browser opens offline"),
        FLAG("what-if", &p->asks_what_if,
             "what better links, memory, devices or more nodes would gain"),
        FLAG("json", &p->json, "the plan as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "plan",
        .operands = "CONFIG",
        .words = "all-to-all moe-layer",
        .operand = &file,
        .about =
            "Says before anyone pays for it what training CONFIG takes on a cluster: whether it "
            "fits,\nhow long a step lasts and why. It prices the programs that training runs. "
            "Exit code 3: it does not fit.\nWithout a config: plan all-to-all, plan moe-layer.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &p->arena);
    if (code < 0)
        p->source = weft_plan_source(file, &p->set, p->mesh, p->source.application);
    return code;
}

/* A plan, and what is told of it. */
typedef struct answer {
    const weft_config *config;
    const weft_cluster *cluster;
    bool has_plan; /* false: a search found none */
    weft_plan plan;
    weft_trace *trace;           /* NULL: nobody asks */
    const weft_against *against; /* NULL without a run */
    weft_what_if what_if;
} answer;

/* What the fastest plan found takes for all tokens; JSON has it in the plan itself. */
static void report_found_costs(const weft_plan *plan, weft_report *report)
{
    weft_report_line(report, "the fastest plan:");
    weft_report_open(report, WEFT_REPORT_FACTS, NULL);
    weft_plan_costs_report(report, plan->figures);
    weft_report_close(report);
}

/* What is asked beside the plan itself stands in the same report. */
static weft_status fill(const planner *p, const answer *a, const weft_config *config,
                        weft_report *report)
{
    if (p->search.on)
        WEFT_TRY(plan_search_report(&p->search, config, report));
    else
        weft_plan_report(report, &a->plan, a->cluster);
    if (p->search.on && a->has_plan && p->json) {
        weft_report_open(report, WEFT_REPORT_OBJECT, "best");
        weft_plan_report(report, &a->plan, a->cluster);
        weft_report_close(report);
    } else if (p->search.on && a->has_plan && p->num_tokens > 0) {
        report_found_costs(&a->plan, report);
    }
    if (a->against)
        weft_against_report(report, a->against);
    if (p->asks_what_if && a->has_plan)
        weft_what_if_report(report, &a->what_if);
    return WEFT_OK;
}

static weft_status write_page(const planner *p, const answer *a)
{
    const plan_search *search = &p->search;
    weft_page page = {.title = p->source.file,
                      .plan = a->has_plan ? &a->plan : NULL,
                      .cluster = a->cluster,
                      .trace = a->trace,
                      .no_trace = "The step has too many tasks for a timeline.",
                      .what_if = p->asks_what_if && a->has_plan ? &a->what_if : NULL};
    if (search->on) {
        page.search = search->best ? search->best : &search->results[search->num_results - 1];
        page.scaling = search->results;
        page.num_scales = search->num_results;
    }
    return weft_page_write(&page, p->html);
}

/* A file that cannot be written costs nobody the plan. */
static weft_status tell(planner *p, const answer *a, const weft_config *config)
{
    char text[512];
    weft_report report;
    weft_report_begin(&report, p->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    WEFT_TRY(weft_report_end(&report, fill(p, a, config, &report), stdout));
    if (p->trace && a->has_plan) {
        WEFT_TRY(weft_trace_write_file(a->trace, p->trace, NULL, NULL));
        weft_output_tell_written(p->trace, p->json);
    }
    if (p->html)
        WEFT_TRY(write_page(p, a));
    weft_output_tell_written(p->html, p->json);
    if (p->search.on) {
        WEFT_TRY(plan_search_end(&p->search, &p->source, &p->arena));
        weft_output_tell_written(p->search.best ? p->search.emit : NULL, p->json);
        return WEFT_OK;
    }
    if (a->plan.fits)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_MEMORY, "%s", weft_plan_short_text(&a->plan, text, sizeof text));
}

/* Tracks are stages: their first ranks stand for all replicas. */
static weft_status name_tracks(const weft_plan *plan, weft_trace *trace, weft_arena *arena)
{
    const char **names;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)plan->num_stages, &names));
    for (int s = 0; s < plan->num_stages; s++)
        WEFT_TRY(weft_arena_printf(arena, &names[s], "stage %d", s));
    weft_trace_name_ranks(trace, names, plan->num_stages);
    return WEFT_OK;
}

/* Whether the step of the config's mesh has few enough tasks for a timeline, whose memory grows
 * with them. */
static bool draws_timeline(const weft_config *config, const weft_config_source *source)
{
    weft_mesh mesh;
    if (weft_config_mesh(config, source, 0, &mesh) != WEFT_OK) { /* the plan will say why */
        weft_error_clear();
        return false;
    }
    return config->train.global_batch_size / config->train.micro_batch_size / mesh.dp * mesh.pp <=
           WEFT_PAGE_MAX_TASKS;
}

static weft_status make(planner *p, answer *a)
{
    const weft_config *config = a->config;
    a->has_plan = true;
    if (p->trace || p->against || (p->html && draws_timeline(config, &p->source)))
        WEFT_TRY(weft_trace_create(&a->trace));
    WEFT_TRY(weft_plan_make(config, &p->source, a->cluster, a->trace, &p->arena, &a->plan));
    WEFT_TRY(
        weft_plan_figures_make(config, &p->source, a->cluster, p->num_tokens, &p->arena, &a->plan));
    WEFT_TRY(weft_plan_advise(config, a->cluster, &p->arena, &a->plan));
    if (a->trace)
        WEFT_TRY(name_tracks(&a->plan, a->trace, &p->arena));
    if (!p->asks_what_if)
        return WEFT_OK;
    return weft_what_if_run(config, &p->source, a->cluster, &a->plan, &p->arena, &a->what_if);
}

static weft_status lay_beside(const planner *p, const weft_config *of_run, answer *a,
                              weft_arena *arena, weft_against *out)
{
    WEFT_TRY(weft_against_read(p->against, of_run, a->config, &a->plan, a->trace, arena, out));
    a->against = out;
    if (of_run->device.kind == WEFT_DEVICE_KIND_CPU && weft_plan_is_of_gpus(a->config, a->cluster))
        weft_log(WEFT_LOG_WARN, "--against %s: it ran on CPUs, and the cluster %s is of GPUs",
                 p->against, a->cluster->name);
    return WEFT_OK;
}

static weft_status check_files(const planner *p)
{
    const weft_line_file files[] = {{"CONFIG", p->source.file, false},
                                    {"--cluster", p->cluster, false},
                                    {"--trace", p->trace, true},
                                    {"--emit", p->search.emit, true},
                                    {"--html", p->html, true}};
    WEFT_TRY(weft_output_check(files, sizeof files / sizeof *files));
    WEFT_TRY(weft_output_try(p->search.emit));
    return weft_output_try(p->html);
}

/* Plain kernels by their name as software. */
static weft_status choose_kernels(planner *p)
{
    const int named = p->software == WEFT_SOFTWARE_PLAIN        ? WEFT_KERNELS_PLAIN
                      : p->software == WEFT_SOFTWARE_PLAIN_2021 ? WEFT_KERNELS_PLAIN_2021
                                                                : WEFT_KERNELS_WEFT;
    if (named == WEFT_KERNELS_WEFT)
        return WEFT_OK;
    if (p->kernels != WEFT_KERNELS_WEFT && p->kernels != named)
        return WEFT_ERROR(WEFT_CONFIG, "--software %s: --kernels has other ones",
                          weft_software_texts[p->software]);
    p->kernels = named;
    p->software = WEFT_SOFTWARE_WEFT;
    return WEFT_OK;
}

/* Everything before the plan. */
static weft_status load(planner *p, weft_config *config, weft_config *of_run,
                        weft_cluster **cluster)
{
    WEFT_TRY(plan_search_check(&p->search));
    WEFT_TRY(check_files(p));
    WEFT_TRY(weft_plan_load(&p->source, p->vocabulary, &p->arena, config));
    WEFT_TRY(choose_kernels(p));
    if (p->against && p->kernels != WEFT_KERNELS_WEFT)
        return WEFT_ERROR(WEFT_CONFIG, "--against %s: no run has plain kernels", p->against);
    if (p->software != WEFT_SOFTWARE_WEFT && (p->against || p->kernels != WEFT_KERNELS_WEFT))
        return WEFT_ERROR(WEFT_CONFIG, "--software %s: Weft's runs and plain kernels have none",
                          weft_software_texts[p->software]);
    config->software = p->software;
    WEFT_TRY(weft_plan_set_kernels((weft_kernels_kind)p->kernels, &p->source, config));
    if (p->against) {
        weft_run_fill_dp(p->against, config);
        WEFT_TRY(weft_against_check(config, &p->source, p->against, &p->arena, of_run));
    }
    if (p->against && weft_tier_is_left_open(&config->tier)) /* as the run chose */
        config->tier = of_run->tier;
    if (p->against && config->model.num_experts > 0)
        WEFT_TRY(weft_against_load(p->against, &p->arena, config));
    if (p->expert_load > 0) {
        config->moe_load = p->expert_load;
        config->moe_load_asked = true;
        WEFT_TRY(weft_plan_check_load(config, &p->source, p->search.on));
    }
    return weft_plan_cluster("cluster", p->cluster, config, &p->arena, cluster);
}

static weft_status answer_all(planner *p, answer *a)
{
    weft_config config, of_run;
    weft_cluster *cluster;
    weft_against against;
    WEFT_TRY(load(p, &config, &of_run, &cluster));
    a->config = &config;
    a->cluster = cluster;
    if (p->search.on) {
        WEFT_TRY(plan_search_find(&p->search, &config, &p->source, cluster, &p->arena));
        if (!p->search.best)
            return tell(p, a, &config);
        a->config = &p->search.best->plans[0].config;
        a->cluster = p->search.best->cluster;
    }
    WEFT_TRY(make(p, a));
    if (!p->search.on)
        WEFT_TRY(weft_config_tell_no_effect(&config));
    if (p->against)
        WEFT_TRY(lay_beside(p, &of_run, a, &p->arena, &against));
    return tell(p, a, &config);
}

static weft_status run(planner *p)
{
    answer a = {0};
    const weft_status status = answer_all(p, &a);
    p->is_stopped = p->search.is_stopped || a.what_if.is_stopped;
    weft_trace_destroy(a.trace);
    weft_plan_release(&a.plan);
    return weft_lack_name_file(status, p->cluster);
}

int weft_verb_plan(int argc, char **argv, const weft_verb_given *given)
{
    if (argc > 1 && strcmp(argv[1], "all-to-all") == 0) {
        weft_verb_brief("what an all-to-all of experts takes on a cluster");
        return weft_plan_all_to_all(argc - 1, argv + 1, given);
    }
    if (argc > 1 && strcmp(argv[1], "moe-layer") == 0) {
        weft_verb_brief("what one MoE layer takes on a cluster");
        return weft_plan_moe_layer(argc - 1, argv + 1, given);
    }
    if (argc > 1 && (strcmp(argv[1], "all_to_all") == 0 || strcmp(argv[1], "moe_layer") == 0)) {
        WEFT_ERROR(WEFT_CONFIG, "%s: no config; did you mean plan %s?", argv[1],
                   argv[1][0] == 'a' ? "all-to-all" : "moe-layer");
        return weft_verb_fail("plan");
    }
    planner p = {.search.top = PLAN_SEARCH_TOP,
                 .source.application = given->application,
                 .vocabulary = given->vocabulary};
    int code = parse(argc, argv, &p);
    if (code < 0)
        code = run(&p) != WEFT_OK ? weft_verb_fail("plan") : p.is_stopped ? WEFT_EXIT_STOPPED : 0;
    weft_arena_release(&p.arena);
    return code;
}
