/* weft compare: what differs between two runs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/json.h"
#include "core/text.h"
#include "launcher/arguments.h"
#include "launcher/planning/run_changes.h"
#include "launcher/training/ledger.h"
#include "launcher/training/metrics.h"
#include "launcher/verbs.h"

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
    weft_config config;
    weft_ledger_who who;
    curve loss, validation;
    numbers rate, mfu;
} run;

typedef struct comparison {
    run runs[2];
    weft_arena arena;
    bool json;
    int num_settings; /* that differ */
} comparison;

/* --- reading ------------------------------------------------------------------------------- */

static weft_status grow(void **items, size_t *capacity, size_t count, size_t bytes)
{
    if (count < *capacity)
        return WEFT_OK;
    const size_t larger = *capacity ? 2 * *capacity : 1024;
    void *memory = realloc(*items, larger * bytes);
    if (!memory)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the metrics of %zu steps", larger);
    *items = memory;
    *capacity = larger;
    return WEFT_OK;
}

static weft_status add_point(curve *c, int64_t step, double loss)
{
    void *items = c->points;
    WEFT_TRY(grow(&items, &c->capacity, c->count, sizeof *c->points));
    c->points = items;
    c->points[c->count++] = (point){step, loss};
    return WEFT_OK;
}

static weft_status add_number(numbers *n, double value)
{
    void *items = n->values;
    if (!isfinite(value))
        return WEFT_OK;
    WEFT_TRY(grow(&items, &n->capacity, n->count, sizeof *n->values));
    n->values = items;
    n->values[n->count++] = value;
    return WEFT_OK;
}

static weft_status add_line(void *context, const cJSON *line)
{
    run *r = context;
    const int64_t step = (int64_t)weft_metrics_number(line, "step");
    if (weft_metrics_is_evaluation(line))
        return add_point(&r->validation, step, weft_metrics_number(line, "validation_loss"));
    WEFT_TRY(add_point(&r->loss, step, weft_metrics_number(line, "loss")));
    WEFT_TRY(add_number(&r->rate, weft_metrics_number(line, "tokens_per_s")));
    return add_number(&r->mfu, weft_metrics_number(line, "model_flops_utilization"));
}

static weft_status read_run(run *r, const weft_application *application, weft_arena *arena)
{
    weft_config_source source = {.application = application};
    weft_ledger_account account = {0};
    const char *ledger;
    WEFT_TRY(weft_metrics_read(r->path, add_line, r));
    WEFT_TRY(weft_arena_printf(arena, &source.file, "%s/config.json", r->path));
    WEFT_TRY(weft_config_load(&source, arena, &r->config));
    WEFT_TRY(weft_arena_printf(arena, &ledger, "%s/ledger.jsonl", r->path));
    weft_status status = weft_ledger_read(ledger, &account);
    r->who = account.who;
    weft_ledger_account_release(&account);
    return status;
}

static int rises(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NaN of none. */
static double median(numbers *n)
{
    if (n->count == 0)
        return NAN;
    qsort(n->values, n->count, sizeof *n->values, rises);
    return (n->values[(n->count - 1) / 2] + n->values[n->count / 2]) / 2;
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
    void *memory;
    size_t j = 0;
    WEFT_TRY(weft_arena_alloc_array(arena, a->count + 1, sizeof *out->all, &memory));
    *out = (pairs){.all = memory};
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

/* --- text ---------------------------------------------------------------------------------- */

static weft_status print_setting(void *context, const char *section, const weft_key *row,
                                 const char *a, const char *b)
{
    comparison *c = context;
    char key[96];
    snprintf(key, sizeof key, "%s.%s", section, row->key);
    if (c->json)
        printf("%s\n    {\"key\": \"%s\", \"a\": %s, \"b\": %s}", c->num_settings ? "," : "", key,
               a, b);
    else
        printf("  %-36s %-24s %s\n", key, a, b);
    c->num_settings++;
    return WEFT_OK;
}

static void print_run(const run *r, const char *letter)
{
    const curve *c = &r->loss;
    printf("%s  %s: ", letter, r->path);
    if (r->who.weft[0])
        printf("weft %s, %s; ", r->who.weft, r->who.mesh);
    if (c->count > 0)
        printf("steps %" PRId64 " to %" PRId64 "\n", c->points[0].step,
               c->points[c->count - 1].step);
    else
        printf("no step\n");
}

static void print_pairs(const char *what, const pairs *p)
{
    printf("%s at %s that both have", what, weft_count_text((long long)p->count, "step").text);
    if (p->count == 0)
        printf("\n");
    else if (p->first == p->count)
        printf(": the same to the bit\n");
    else
        printf(": first differs at step %" PRId64 "\n", p->all[p->first].step);
    for (size_t i = 0; i < p->count; i++)
        if (is_shown(p, i))
            printf("  step %-31" PRId64 " %-24.6f %-12.6f %+.3g\n", p->all[i].step,
                   p->all[i].loss[0], p->all[i].loss[1], p->all[i].loss[1] - p->all[i].loss[0]);
}

static void print_medians(comparison *c)
{
    const double rate[2] = {median(&c->runs[0].rate), median(&c->runs[1].rate)};
    const double mfu[2] = {median(&c->runs[0].mfu), median(&c->runs[1].mfu)};
    printf("medians of all steps\n  %-36s %-24.0f %-12.0f %+.1f %%\n", "tokens/s", rate[0], rate[1],
           100 * (rate[1] / rate[0] - 1));
    printf("  %-36s %-24.4f %-12.4f\n", "share of peak (MFU)", mfu[0], mfu[1]);
}

static weft_status print_text(comparison *c, const pairs *loss, const pairs *validation)
{
    print_run(&c->runs[0], "A");
    print_run(&c->runs[1], "B");
    printf("%-38s %-24s %s\n", "settings that differ", "A", "B");
    WEFT_TRY(weft_run_compare(&c->runs[0].config, &c->runs[1].config, print_setting, c));
    if (c->num_settings == 0)
        printf("  none\n");
    print_pairs("loss", loss);
    print_pairs("validation loss", validation);
    print_medians(c);
    return WEFT_OK;
}

/* --- JSON ---------------------------------------------------------------------------------- */

/* JSON has no numbers that are not finite. */
static void print_number(const char *before, double value)
{
    if (isfinite(value))
        printf("%s%.17g", before, value);
    else
        printf("%snull", before);
}

static weft_status print_run_json(run *r, weft_arena *arena)
{
    const char *path, *mesh;
    WEFT_TRY(weft_json_quote_utf8(r->path, arena, &path));
    WEFT_TRY(weft_json_quote_utf8(r->who.mesh, arena, &mesh));
    printf("{\"run\": %s, \"weft\": \"%s\", \"mesh\": %s, \"steps\": %zu, \"last_step\": %" PRId64,
           path, r->who.weft, mesh, r->loss.count,
           r->loss.count ? r->loss.points[r->loss.count - 1].step : 0);
    print_number(", \"tokens_per_s_median\": ", median(&r->rate));
    print_number(", \"model_flops_utilization_median\": ", median(&r->mfu));
    printf("}");
    return WEFT_OK;
}

static void print_pairs_json(const char *key, const pairs *p)
{
    bool any = false;
    printf(",\n  \"%s\": {\"common_steps\": %zu, \"first_difference\": ", key, p->count);
    if (p->first < p->count)
        printf("%" PRId64, p->all[p->first].step);
    else
        printf("null");
    printf(", \"rows\": [");
    for (size_t i = 0; i < p->count; i++) {
        if (!is_shown(p, i))
            continue;
        printf("%s\n    {\"step\": %" PRId64, any ? "," : "", p->all[i].step);
        print_number(", \"a\": ", p->all[i].loss[0]);
        print_number(", \"b\": ", p->all[i].loss[1]);
        printf("}");
        any = true;
    }
    printf("]}");
}

static weft_status print_json(comparison *c, const pairs *loss, const pairs *validation)
{
    printf("{\n  \"a\": ");
    WEFT_TRY(print_run_json(&c->runs[0], &c->arena));
    printf(",\n  \"b\": ");
    WEFT_TRY(print_run_json(&c->runs[1], &c->arena));
    printf(",\n  \"settings\": [");
    WEFT_TRY(weft_run_compare(&c->runs[0].config, &c->runs[1].config, print_setting, c));
    printf("]");
    print_pairs_json("loss", loss);
    print_pairs_json("validation_loss", validation);
    printf("\n}\n");
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
    return c->json ? print_json(c, &loss, &validation) : print_text(c, &loss, &validation);
}

int weft_verb_compare(int argc, char **argv, const weft_application *application)
{
    comparison c = {0};
    weft_string_list given = {0};
    const weft_argument rows[] = {
        {"json", NULL, "one JSON object on standard output", .flag = &c.json},
    };
    const weft_arguments verb = {
        .verb = "compare",
        .operands = "RUN RUN",
        .given = &given,
        .about =
            "What differs between two runs: settings, version and mesh of their last starts; "
            "the first step whose\nlosses differ, and the losses at some of the steps that both "
            "have; medians of tokens/s and MFU.\nRUN: a run's folder. Nothing is written.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &c.arena);
    if (code < 0) {
        for (int i = 0; i < 2; i++)
            c.runs[i].path = given.values[i];
        code = compare(&c, application) == WEFT_OK ? 0 : weft_verb_fail("compare");
    }
    for (int i = 0; i < 2; i++) {
        free(c.runs[i].loss.points);
        free(c.runs[i].validation.points);
        free(c.runs[i].rate.values);
        free(c.runs[i].mfu.values);
    }
    weft_arena_release(&c.arena);
    return code;
}
