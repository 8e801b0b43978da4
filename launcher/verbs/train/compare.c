/* weft compare: what differs between two runs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "core/sorted.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/run_changes.h"
#include "launcher/report/report.h"
#include "launcher/training/ledger.h"
#include "launcher/training/metrics.h"
#include "launcher/verbs/train/train.h"

/* A step and what it has: a loss, or a validation loss. */
typedef struct point {
    int64_t step;
    double loss;
} point;

typedef struct curve {
    point *points;
    size_t count, capacity;
} curve;

/* Numbers of which the median is wanted. */
typedef struct numbers {
    double *values;
    size_t count, capacity;
} numbers;

typedef struct run {
    const char *path;
    weft_arena *arena;
    weft_config config;
    weft_ledger_who who;
    curve loss, validation;
    numbers rate, mfu;
} run;

typedef struct comparison {
    run runs[2];
    weft_arena arena;
    bool json;
} comparison;

/* --- reading ------------------------------------------------------------------------------- */

static weft_status add_point(curve *c, int64_t step, double loss, weft_arena *arena)
{
    WEFT_TRY(WEFT_ARENA_GROW(arena, c->points, c->capacity, c->count + 1));
    c->points[c->count++] = (point){step, loss};
    return WEFT_OK;
}

static weft_status add_number(numbers *n, double value, weft_arena *arena)
{
    if (!isfinite(value))
        return WEFT_OK;
    WEFT_TRY(WEFT_ARENA_GROW(arena, n->values, n->capacity, n->count + 1));
    n->values[n->count++] = value;
    return WEFT_OK;
}

static weft_status add_line(void *context, const cJSON *line)
{
    run *r = context;
    const int64_t step = (int64_t)weft_metrics_number(line, "step");
    if (weft_metrics_is_evaluation(line))
        return add_point(&r->validation, step, weft_metrics_number(line, "validation_loss"),
                         r->arena);
    WEFT_TRY(add_point(&r->loss, step, weft_metrics_number(line, "loss"), r->arena));
    WEFT_TRY(add_number(&r->rate, weft_metrics_number(line, "tokens_per_s"), r->arena));
    return add_number(&r->mfu, weft_metrics_number(line, "model_flops_utilization"), r->arena);
}

static weft_status read_run(run *r, const weft_application *application, weft_arena *arena)
{
    weft_config_source source = {.application = application};
    weft_ledger_account account = {0};
    const char *ledger;
    r->arena = arena;
    WEFT_TRY(weft_metrics_read(r->path, add_line, r));
    WEFT_TRY(weft_arena_printf(arena, &source.file, "%s/config.json", r->path));
    WEFT_TRY(weft_config_load(&source, arena, &r->config));
    weft_run_fill_dp(r->path, &r->config);
    WEFT_TRY(weft_arena_printf(arena, &ledger, "%s/ledger.jsonl", r->path));
    weft_status status = weft_ledger_read(ledger, &account);
    r->who = account.who;
    weft_ledger_account_release(&account);
    return status;
}

/* NaN of none. */
static double median(numbers *n)
{
    if (n->count == 0)
        return NAN;
    weft_sort(n->values, n->count);
    return weft_quantile(n->values, n->count, 0.5);
}

/* --- both runs ----------------------------------------------------------------------------- */

/* What both runs have of a step. */
typedef struct pair {
    int64_t step;
    double loss[2];
} pair;

typedef struct pairs {
    pair *all;
    size_t count, first; /* that differs; count: none */
} pairs;

static bool differ(const pair *p)
{
    return !(p->loss[0] == p->loss[1] || (isnan(p->loss[0]) && isnan(p->loss[1])));
}

/* The steps of both curves, whose steps rise. */
static weft_status find_pairs(const curve *a, const curve *b, weft_arena *arena, pairs *out)
{
    size_t j = 0;
    *out = (pairs){.count = 0};
    WEFT_TRY(WEFT_ARRAY(arena, a->count + 1, &out->all));
    for (size_t i = 0; i < a->count; i++) {
        const point *at = &a->points[i];
        while (j < b->count && b->points[j].step < at->step)
            j++;
        if (j < b->count && b->points[j].step == at->step)
            out->all[out->count++] = (pair){at->step, {at->loss, b->points[j].loss}};
    }
    while (out->first < out->count && !differ(&out->all[out->first]))
        out->first++;
    return WEFT_OK;
}

enum { NUM_ROWS = 6 };

/* Whether pair i is shown: a few, evenly, with the ends and the first that differs. */
static bool is_shown(const pairs *p, size_t i)
{
    if (p->count <= NUM_ROWS || i == p->first)
        return true;
    for (size_t row = 0; row < NUM_ROWS; row++)
        if (i == row * (p->count - 1) / (NUM_ROWS - 1))
            return true;
    return false;
}

/* --- report -------------------------------------------------------------------------------- */

static weft_status report_setting(void *context, const char *section, const weft_key *row,
                                  const char *a, const char *b)
{
    weft_report *r = context;
    char key[96];
    snprintf(key, sizeof key, "%s.%s", section, row->key);
    weft_report_record(r);
    weft_report_text(r, "key", "settings that differ", key);
    weft_report_cell(r, "A", "%s", a);
    weft_report_cell(r, "B", "%s", b);
    weft_report_raw(r, "a", a);
    weft_report_raw(r, "b", b);
    return WEFT_OK;
}

static void report_run(weft_report *r, const char *key, const char *letter, run *of)
{
    const curve *c = &of->loss;
    const int64_t last = c->count ? c->points[c->count - 1].step : 0;
    char who[256] = "", steps[64] = "no step";
    if (of->who.weft[0])
        snprintf(who, sizeof who, "weft %s, %s; ", of->who.weft, of->who.mesh);
    if (c->count > 0)
        snprintf(steps, sizeof steps, "steps %" PRId64 " to %" PRId64, c->points[0].step, last);
    weft_report_line(r, "%s  %s: %s%s", letter, of->path, who, steps);
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_text(r, "run", NULL, of->path);
    weft_report_text(r, "weft", NULL, of->who.weft);
    weft_report_text(r, "mesh", NULL, of->who.mesh);
    weft_report_value(r, "steps", c->count);
    weft_report_value(r, "last_step", last);
    weft_report_value(r, "tokens_per_s_median", median(&of->rate));
    weft_report_value(r, "model_flops_utilization_median", median(&of->mfu));
    weft_report_close(r);
}

static void report_pairs(weft_report *r, const char *key, const char *what, const pairs *p)
{
    const double first = p->first < p->count ? (double)p->all[p->first].step : (double)NAN;
    char how[64] = "";
    if (p->first < p->count)
        snprintf(how, sizeof how, ": first differs at step %.0f", first);
    else if (p->count > 0)
        snprintf(how, sizeof how, ": the same to the bit");
    weft_report_line(r, "%s at %s that both have%s", what,
                     weft_count_text((long long)p->count, "step").text, how);
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "common_steps", p->count);
    weft_report_value(r, "first_difference", first);
    weft_report_open(r, WEFT_REPORT_TABLE, "rows");
    for (size_t i = 0; i < p->count; i++) {
        const double *loss = p->all[i].loss;
        if (!is_shown(p, i))
            continue;
        weft_report_record(r);
        weft_report_row(r, "step", "step", WEFT_UNIT_INDEX, p->all[i].step);
        weft_report_value(r, "a", loss[0]);
        weft_report_value(r, "b", loss[1]);
        weft_report_cell(r, "A", "%.6f", loss[0]);
        weft_report_cell(r, "B", "%.6f", loss[1]);
        weft_report_cell(r, "B - A", "%+.3g", loss[1] - loss[0]);
    }
    weft_report_close(r);
    weft_report_close(r);
}

static void report_medians(weft_report *r, comparison *c)
{
    const double rate[2] = {median(&c->runs[0].rate), median(&c->runs[1].rate)};
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    weft_report_record(r);
    weft_report_cell(r, "medians of all steps", "tokens/s");
    weft_report_row(r, NULL, "A", WEFT_UNIT_COUNT, rate[0]);
    weft_report_row(r, NULL, "B", WEFT_UNIT_COUNT, rate[1]);
    weft_report_row(r, NULL, "B to A", WEFT_UNIT_CHANGE, rate[1] / rate[0] - 1);
    weft_report_record(r);
    weft_report_cell(r, "medians of all steps", "share of peak (MFU)");
    weft_report_row(r, NULL, "A", WEFT_UNIT_SHARE, median(&c->runs[0].mfu));
    weft_report_row(r, NULL, "B", WEFT_UNIT_SHARE, median(&c->runs[1].mfu));
    weft_report_close(r);
}

static weft_status report(comparison *c, const pairs *loss, const pairs *validation, weft_report *r)
{
    report_run(r, "a", "A", &c->runs[0]);
    report_run(r, "b", "B", &c->runs[1]);
    weft_report_open(r, WEFT_REPORT_TABLE, "settings");
    WEFT_TRY(weft_run_compare(&c->runs[0].config, &c->runs[1].config, report_setting, r));
    if (r->num_lines == 0)
        weft_report_line(r, "settings that differ: none");
    weft_report_close(r);
    report_pairs(r, "loss", "loss", loss);
    report_pairs(r, "validation_loss", "validation loss", validation);
    report_medians(r, c);
    return WEFT_OK;
}

/* --- the verb ------------------------------------------------------------------------------ */

static weft_status compare(comparison *c, const weft_application *application)
{
    run *runs = c->runs;
    pairs loss, validation;
    for (int i = 0; i < 2; i++)
        WEFT_TRY(read_run(&runs[i], application, &c->arena));
    WEFT_TRY(find_pairs(&runs[0].loss, &runs[1].loss, &c->arena, &loss));
    WEFT_TRY(find_pairs(&runs[0].validation, &runs[1].validation, &c->arena, &validation));
    weft_report r;
    weft_report_begin(&r, c->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    return weft_report_end(&r, report(c, &loss, &validation, &r), stdout);
}

int weft_verb_compare(int argc, char **argv, const weft_verb_given *given)
{
    comparison c = {0};
    weft_string_list operands = {0};
    const weft_argument rows[] = {
        FLAG("json", &c.json, "one JSON object on standard output"),
    };
    const weft_arguments verb = {
        .verb = "compare",
        .operands = "RUN RUN",
        .given = &operands,
        .about =
            "What differs between two runs: settings, version and mesh of their last starts; "
            "the first step whose\nlosses differ, and the losses at some of the steps that both "
            "have; medians of tokens/s and MFU.\nRUN: a run's folder. Nothing is written.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &c.arena);
    if (code < 0) {
        for (int i = 0; i < 2; i++)
            c.runs[i].path = operands.values[i];
        code = compare(&c, given->application) == WEFT_OK ? 0 : weft_verb_fail("compare");
    }
    weft_arena_release(&c.arena);
    return code;
}
