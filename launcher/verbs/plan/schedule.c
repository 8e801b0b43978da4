/* weft schedule: prints, prices and draws the programs of a config's step, of its passes or inside
 * its layers. No ranks, no data, no device. */

#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/config.h"
#include "launcher/planning/levels.h"
#include "launcher/process/output.h"
#include "launcher/report/report.h"
#include "launcher/verbs/plan/plan.h"
#include "schedule/pipeline/order_text.h"
#include "schedule/text.h"

static const char *const level_names[] = {"step", "pass", "layer", "experts"};
static const char *const body_names[] = {"all", "attention", "experts", "tensor"};

typedef struct scheduler {
    const char *cluster_file, *mesh, *svg, *trace;
    weft_string_list set;
    int level, body; /* weft_level, weft_body */
    int kernels;     /* weft_kernels_kind */
    bool csv, program, json;
    weft_arena arena;
    weft_config config;
    weft_config_source source;
    weft_vocabulary_function vocabulary;
    weft_cluster *cluster; /* NULL: none */
    weft_levels levels;
} scheduler;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, scheduler *s)
{
    const char *file;
    const weft_argument rows[] = {
        TEXT("mesh", "AXES", &s->mesh, "such as tp=8,pp=4: replaces the config's mesh"),
        TEXTS("set", "KEY=VALUE", &s->set, "override a key of the config; may be repeated"),
        NAMED(
            "level", "LEVEL", &s->level, level_names, 4,
            "step, pass (a chunk's body), layer (the programs inside one) or experts (uploaded in "
            "turn)"),
        NAMED("body", "BODY", &s->body, body_names, 4,
              "of a layer: attention (cp above 1), experts, tensor (tp_comm_overlap), or all"),
        NAMED("kernels", "KIND", &s->kernels, weft_kernels_texts, WEFT_NUM_KERNELS,
              "weft's own, or of published runs, which only plans know: plain, plain-2021"),
        FLAG("csv", &s->csv, "the step's order of compute as PyTorch's CSV: a row a rank",
             .excludes = "program json"),
        FLAG("program", &s->program, "every program as text, each below a line with its name",
             .excludes = "json"),
        TEXT("cluster", "FILE", &s->cluster_file,
             "what operations cost; without it described FLOPs do, messages nothing"),
        TEXT("svg", "FILE", &s->svg, "the timeline, drawn"),
        TEXT("trace", "FILE", &s->trace, "the timeline, for Perfetto"),
        FLAG("json", &s->json, "the summary as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "schedule",
        .operands = "CONFIG",
        .operand = &file,
        .about = "Prints, checks, prices and draws the programs that training CONFIG runs,\n"
                 "without ranks or data.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &s->arena);
    if (code < 0)
        s->source = weft_plan_source(file, &s->set, s->mesh, s->source.application);
    return code;
}

static const char *layout_text(const scheduler *s, char *out, size_t capacity)
{
    return weft_layout_text(&s->levels.plan.step.outline.layout, out, capacity);
}

/* What its times are of. */
static const char *priced_by(const scheduler *s)
{
    return s->cluster ? s->cluster->name : "described FLOPs";
}

/* Without a cluster times have no seconds: a step's is as many mean forwards of a virtual stage, of
 * which weft_levels_make lets each take a millisecond. */
static void time_text(const scheduler *s, char *out, size_t capacity)
{
    if (s->cluster)
        snprintf(out, capacity, "%s", weft_seconds_text(s->levels.us / 1e6).text);
    else
        snprintf(out, capacity, "as long as %.4g forwards of a virtual stage", s->levels.us / 1e3);
}

static void print_head(const scheduler *s, FILE *out)
{
    const weft_pipeline_shape *shape = &s->levels.plan.step.shape;
    const weft_layout *layout = &s->levels.plan.step.outline.layout;
    char axes[128], text[512], time[80];
    weft_mesh_print(&s->levels.plan.mesh, axes, sizeof axes);
    time_text(s, time, sizeof time);
    fprintf(out, "%s: %s in the pipeline, %s: %s\n", axes,
            weft_count_text(shape->num_stages, "rank").text,
            weft_count_text(weft_layout_num_stages(layout), "virtual stage").text,
            layout_text(s, text, sizeof text));
    fprintf(out, "%s; by %s the %s takes %s\n\n",
            weft_count_text(shape->num_micro_batches, "micro-batch").text, priced_by(s),
            s->level == WEFT_LEVEL_STEP ? "step" : "longest", time);
    if (s->levels.plan.mesh_choice.reason[0])
        fprintf(out, "attention over %d context-parallel ranks: %s\n\n", s->levels.plan.mesh.cp,
                s->levels.plan.mesh_choice.reason);
}

static void report_head(const scheduler *s, weft_report *r)
{
    const weft_pipeline_shape *shape = &s->levels.plan.step.shape;
    char text[4096];
    weft_report_text(r, "level", NULL, level_names[s->level]);
    weft_report_value(r, "num_ranks", shape->num_stages);
    weft_report_value(r, "num_virtual_stages",
                      weft_layout_num_stages(&s->levels.plan.step.outline.layout));
    weft_report_text(r, "layout", NULL, layout_text(s, text, sizeof text));
    weft_report_value(r, "num_micro_batches", shape->num_micro_batches);
    weft_report_text(r, "priced_by", NULL, priced_by(s));
    weft_report_value(r, "makespan_us", s->levels.us);
    if (s->levels.plan.mesh_choice.reason[0])
        weft_report_text(r, "cp_comm_type_reason", NULL, s->levels.plan.mesh_choice.reason);
}

static weft_status print_summary(const scheduler *s)
{
    weft_report r;
    weft_report_begin(&r, s->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    FILE *out = weft_report_stream(&r, WEFT_REPORT_TEXT);
    if (out)
        print_head(s, out);
    report_head(s, &r);
    weft_report_open(&r, WEFT_REPORT_TABLE, "programs");
    for (int i = 0; i < s->levels.num_rows; i++) {
        const weft_level_row *row = &s->levels.rows[i];
        weft_report_record(&r);
        weft_report_text(&r, "name", "", row->name);
        weft_report_row(&r, "num_tasks", "tasks", WEFT_UNIT_COUNT, row->program->num_tasks);
        weft_report_row(&r, "max_in_flight", "in flight", WEFT_UNIT_COUNT,
                        row->program->max_in_flight);
        weft_report_row(&r, "bubble_share", "bubble", WEFT_UNIT_SHARE, row->bubble_share);
        weft_report_row(&r, "us", "us", WEFT_UNIT_COUNT, row->us);
    }
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status print_programs(const scheduler *s, FILE *out)
{
    for (int i = 0; i < s->levels.num_rows; i++) {
        fprintf(out, "%s\n", s->levels.rows[i].name);
        WEFT_TRY(weft_program_print(s->levels.rows[i].program, out));
    }
    return WEFT_OK;
}

static weft_status print_order(scheduler *s, FILE *out)
{
    const weft_order_shape shape = weft_pipeline_order_shape(&s->levels.plan.step.shape);
    const weft_order *orders;
    WEFT_TRY(weft_levels_orders(&s->levels, &s->arena, &orders));
    return weft_order_print(&shape, orders, out);
}

static weft_status print(scheduler *s)
{
    if (s->csv)
        return print_order(s, stdout);
    if (s->program)
        return print_programs(s, stdout);
    return print_summary(s);
}

static weft_status draw(const scheduler *s, const weft_trace *trace, const char *path, bool svg)
{
    char axes[128], title[160], time[80];
    if (!path)
        return WEFT_OK;
    weft_mesh_print(&s->levels.plan.mesh, axes, sizeof axes);
    time_text(s, time, sizeof time);
    snprintf(title, sizeof title, "A %s as planned: %s by %.60s", level_names[s->level], time,
             priced_by(s));
    WEFT_TRY(weft_trace_write_file(trace, path, svg ? title : NULL, axes));
    weft_output_tell_written(path, s->json || s->csv || s->program);
    return WEFT_OK;
}

static weft_status make(scheduler *s, weft_trace *trace)
{
    WEFT_TRY(weft_levels_make(&s->config, &s->source, s->cluster, (weft_level)s->level,
                              (weft_body)s->body, trace, &s->arena, &s->levels));
    WEFT_TRY(weft_config_tell_no_effect(&s->config));
    WEFT_TRY(print(s));
    WEFT_TRY(draw(s, trace, s->svg, true));
    return draw(s, trace, s->trace, false);
}

static weft_status run(scheduler *s)
{
    weft_trace *trace = NULL;
    if (s->csv && s->level != WEFT_LEVEL_STEP)
        return WEFT_ERROR(WEFT_CONFIG, "--csv: a %s has no order of compute, a step has",
                          level_names[s->level]);
    if (s->body != WEFT_BODY_ALL && s->level != WEFT_LEVEL_LAYER)
        return WEFT_ERROR(WEFT_CONFIG, "--body %s: a %s has none, a layer has", body_names[s->body],
                          level_names[s->level]);
    const weft_line_file files[] = {{"CONFIG", s->source.file, false},
                                    {"--cluster", s->cluster_file, false},
                                    {"--svg", s->svg, true},
                                    {"--trace", s->trace, true}};
    WEFT_TRY(weft_output_check(files, sizeof files / sizeof *files));
    WEFT_TRY(weft_plan_load(&s->source, s->vocabulary, &s->arena, &s->config));
    WEFT_TRY(weft_plan_set_kernels((weft_kernels_kind)s->kernels, &s->source, &s->config));
    if (s->cluster_file)
        WEFT_TRY(weft_plan_cluster("cluster", s->cluster_file, &s->config, &s->arena, &s->cluster));
    if (s->svg || s->trace)
        WEFT_TRY(weft_trace_create(&trace));
    weft_status status = make(s, trace);
    weft_trace_destroy(trace);
    weft_levels_release(&s->levels);
    return status;
}

int weft_verb_schedule(int argc, char **argv, const weft_verb_given *given)
{
    scheduler s = {.source.application = given->application, .vocabulary = given->vocabulary};
    int code = parse(argc, argv, &s);
    if (code < 0)
        code = run(&s) == WEFT_OK ? 0 : weft_verb_fail("schedule");
    weft_arena_release(&s.arena);
    return code;
}
