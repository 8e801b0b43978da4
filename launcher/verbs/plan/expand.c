/* weft expand: the ladder from today's mesh to a longer context or to more nodes. No ranks, no
 * data, no device. */
#include <sys/stat.h>

#include "core/cluster/cluster.h"
#include "launcher/arguments/rows.h"
#include "launcher/page/page.h"
#include "launcher/planning/run_changes.h"
#include "launcher/process/output.h"
#include "launcher/searching/expand.h"
#include "launcher/verbs/plan/plan.h"

enum { MAX_CONTEXTS = 32 };

typedef struct expander {
    const char *given, *to, *mesh, *emit, *html;
    weft_string_list set;
    bool json, force;
    int batch; /* 0: tokens, 1: samples */
    weft_arena arena;
    weft_config_source source;
    weft_vocabulary_function vocabulary;
    weft_expand_request request;
} expander;

static const char *const batch_names[] = {"tokens", "samples"};

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, expander *x)
{
    const weft_argument rows[] = {
        TEXT("cluster", "FILE", &x->request.cluster_path,
             "where it trains today: from weft calibrate, or of data sheets", .required = true),
        TEXT("to", "FILE", &x->to, "the cluster that it moves to"),
        LIST("context", "N,...", &x->request.contexts, MAX_CONTEXTS, 1, 1e9, "tokens",
             "the sequence lengths of the steps; one: and its doublings below it"),
        SMALL("max-nodes", "N", &x->request.max_nodes, 0, 1e6,
              "the most nodes to take; 0: the cluster's"),
        NAMED("batch", "KEPT", &x->batch, batch_names, 2,
              "what a step keeps: its tokens, or its samples"),
        TEXT("mesh", "AXES", &x->mesh, "such as tp=8,ep=8: replaces today's mesh"),
        TEXTS("set", "KEY=VALUE", &x->set, "override a key of the config; may be repeated"),
        TEXT("emit", "DIR", &x->emit, "write each step's config and start command there"),
        FLAG("force", &x->force, "replace another ladder's files there", .needs = "emit"),
        TEXT("html", "FILE", &x->html,
             "the ladder as a page: one file, which a browser opens offline"),
        FLAG("json", &x->json, "the ladder as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "expand",
        .operands = "CONFIG|RUN",
        .operand = &x->given,
        .about = "Says how training grows from today's mesh to a longer context, or to more nodes: "
                 "a row a\nstep, with the fewest nodes that hold it, their mesh, memory, speed and "
                 "cost.\nExit code 3: a step does not fit.\n",
        ROWS_OF(rows)};
    return weft_arguments_parse(&verb, argc, argv, &x->arena);
}

/* A run is its folder, and goes on by the config in it. */
static weft_status find_config(expander *x)
{
    struct stat info;
    const char *file = x->given;
    x->request.goes_on = stat(x->given, &info) == 0 && S_ISDIR(info.st_mode);
    if (x->request.goes_on)
        WEFT_TRY(weft_arena_printf(&x->arena, &file, "%s/config.json", x->given));
    x->source = weft_plan_source(file, &x->set, x->mesh, x->source.application);
    return WEFT_OK;
}

/* One length far above today's has the doublings between as steps. */
static weft_status fill_contexts(expander *x, int64_t today)
{
    weft_int_list *list = &x->request.contexts;
    if (list->count != 1 || list->values[0] <= 2 * today)
        return WEFT_OK;
    int64_t *values;
    WEFT_TRY(WEFT_ARRAY(&x->arena, 64, &values));
    size_t count = 0;
    for (int64_t context = 2 * today; context < list->values[0]; context *= 2)
        values[count++] = context;
    values[count++] = list->values[0];
    *list = (weft_int_list){.values = values, .count = count, .is_array = true};
    return WEFT_OK;
}

/* The target's own copy of the config says what its MoE layers are chosen by. */
static weft_status read_clusters(expander *x, weft_config *config)
{
    weft_expand_request *r = &x->request;
    weft_config other = *config;
    weft_cluster *cluster, *to;
    WEFT_TRY(weft_plan_cluster("cluster", r->cluster_path, config, &x->arena, &cluster));
    r->cluster = r->to = cluster;
    r->to_path = r->cluster_path;
    if (!x->to)
        return WEFT_OK;
    other.schedule.cluster = NULL;
    r->to_path = x->to;
    WEFT_TRY(weft_plan_cluster("to", x->to, &other, &x->arena, &to));
    r->to = to;
    return WEFT_OK;
}

/* A ladder's files may be none of the line's either. */
static weft_status check_files(const expander *x)
{
    const weft_line_file files[] = {{"CONFIG", x->source.file, false},
                                    {"--cluster", x->request.cluster_path, false},
                                    {"--to", x->to, false},
                                    {"--html", x->html, true}};
    const size_t count = sizeof files / sizeof *files;
    WEFT_TRY(weft_output_check(files, count));
    for (size_t i = 0; i < count && x->emit; i++)
        if (files[i].path && weft_expand_emits(x->emit, files[i].path))
            return WEFT_ERROR(WEFT_CONFIG, "--emit %s: would replace %s %s", x->emit,
                              files[i].option, files[i].path);
    return x->emit ? weft_expand_check_folder(x->emit, x->force) : WEFT_OK;
}

static weft_status run(expander *x)
{
    weft_config config;
    weft_expand expand;
    weft_expand_request *r = &x->request;
    WEFT_TRY(find_config(x));
    WEFT_TRY(check_files(x));
    WEFT_TRY(weft_plan_load(&x->source, x->vocabulary, &x->arena, &config));
    if (r->goes_on && !x->mesh)
        weft_run_fill_dp(x->given, &config);
    const char *own_cluster = config.schedule.cluster;
    WEFT_TRY(fill_contexts(x, config.model.seq_length));
    WEFT_TRY(read_clusters(x, &config));
    r->config = &config;
    r->source = &x->source;
    r->keeps_samples = x->batch == 1;
    WEFT_TRY(weft_expand_make(r, &x->arena, &expand));
    weft_report report;
    weft_report_begin(&report, x->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_expand_report(&report, &expand, r);
    WEFT_TRY(weft_report_end(&report, WEFT_OK, stdout));
    if (x->emit)
        WEFT_TRY(weft_expand_emit(&expand, x->emit, r->goes_on ? x->given : NULL, own_cluster,
                                  &x->arena));
    weft_output_tell_written(x->emit, x->json);
    if (x->html)
        WEFT_TRY(weft_page_write(
            &(weft_page){.title = x->given, .cluster = r->cluster, .expand = &expand, .request = r},
            x->html));
    weft_output_tell_written(x->html, x->json);
    if (expand.stopped != WEFT_OK)
        return WEFT_ERROR(expand.stopped, "%s", expand.stop_text);
    return WEFT_OK;
}

int weft_verb_expand(int argc, char **argv, const weft_verb_given *given)
{
    expander x = {.source.application = given->application, .vocabulary = given->vocabulary};
    int code = parse(argc, argv, &x);
    if (code < 0)
        code = weft_lack_name_file(run(&x), x.request.cluster_path) == WEFT_OK
                   ? 0
                   : weft_verb_fail("expand");
    weft_arena_release(&x.arena);
    return code;
}
