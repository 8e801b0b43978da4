/* The results of weft bench all-to-all as tables, JSON and a drawing. */
#include <stdlib.h>

#include "launcher/measuring/bench_exchange.h"

static double error_of(const weft_exchange_variant *v)
{
    return v->time.median > 0 ? v->predicted_us / v->time.median - 1 : 0;
}

/* How much longer the chosen form took than the fastest. */
static double behind_best(const weft_exchange_result *r)
{
    return r->variants[r->chosen].time.median / r->variants[r->best].time.median - 1;
}

static void size_text(double bytes, char out[32])
{
    if (bytes >= 1048576)
        snprintf(out, 32, "%.4g MiB", bytes / 1048576);
    else
        snprintf(out, 32, "%.4g KiB", bytes / 1024);
}

static void speed_cell(weft_table *table, int column, const weft_spread *speed)
{
    if (speed->count > 0)
        weft_table_cell(table, column, "%.2f", speed->median);
}

static weft_status fill_table(weft_table *table, const weft_exchange_result *r)
{
    for (int i = 0; i < r->num_variants; i++) {
        const weft_exchange_variant *v = &r->variants[i];
        char text[32];
        WEFT_TRY(weft_table_row(table));
        weft_exchange_variant_text(v, text);
        weft_table_cell(table, 0, "%s", text);
        weft_table_cell(table, 1, "%.2f", v->time.median / 1e3);
        weft_table_cell(table, 2, "%.2f", v->time.low / 1e3);
        weft_table_cell(table, 3, "%.2f", v->time.high / 1e3);
        for (int k = 0; k < 3; k++)
            speed_cell(table, 4 + k, &v->speed[k]);
        if (!v->is_bare) {
            weft_table_cell(table, 7, "%.2f", v->predicted_us / 1e3);
            weft_table_cell(table, 8, "%+.1f", 100 * error_of(v));
        }
        weft_table_cell(table, 9, "%s%s%s", i == r->chosen ? "chosen" : "",
                        i == r->chosen && i == r->best ? ", " : "", i == r->best ? "fastest" : "");
    }
    return WEFT_OK;
}

static void print_verdict(const weft_exchange_result *r, FILE *out)
{
    const weft_exchange_variant *v = &r->variants[r->chosen];
    char text[32];
    weft_exchange_variant_text(v, text);
    fprintf(out, "chosen: %s", text);
    if (v->speed[WEFT_BENCH_BASELINE].count > 0)
        fprintf(out, ", %.2f times the baseline", v->speed[WEFT_BENCH_BASELINE].median);
    if (v->speed[WEFT_BENCH_O1_PAPER].count > 0)
        fprintf(out, ", %.2f times o1_paper", v->speed[WEFT_BENCH_O1_PAPER].median);
    fprintf(out, ", time against the bare I/t %+.1f %%, against the fastest %+.1f %%\n\n",
            100 * (1 / v->speed[WEFT_BENCH_BARE].median - 1), 100 * behind_best(r));
}

weft_status weft_exchange_print_last(const weft_exchange_report *report, FILE *out)
{
    static const char *const heads[] = {
        "form",       "ms",     "quartile",     "quartile", "x baseline",
        "x o1_paper", "x bare", "predicted ms", "error %",  ""};
    const weft_exchange_rig *rig = report->rig;
    const weft_exchange_result *r = &report->results[report->num_results - 1];
    weft_table table;
    char text[32];
    if (report->num_results == 1)
        fprintf(out, "\n%d nodes x %d ranks%s; medians of %d paired rounds\n\n",
                weft_comm_size(rig->between), weft_comm_size(rig->inside),
                rig->uneven ? ", uneven blocks" : "", report->rounds);
    WEFT_TRY(weft_table_begin(&table, heads, sizeof heads / sizeof *heads));
    weft_status status = fill_table(&table, r);
    if (status == WEFT_OK) {
        size_text(r->bytes, text);
        fprintf(out, "I = %s (%d a measurement)\n", text, r->train);
        weft_table_print(&table, out);
        print_verdict(r, out);
    }
    weft_table_release(&table);
    WEFT_TRY(status);
    return fflush(out) == 0 ? WEFT_OK : WEFT_ERROR(WEFT_FILE, "the table could not be written");
}

/* --- JSON ---------------------------------------------------------------------------------- */

static void add_spread(cJSON *to, const char *name, const weft_spread *spread)
{
    if (spread->count == 0)
        return;
    cJSON *object = cJSON_AddObjectToObject(to, name);
    cJSON_AddNumberToObject(object, "median", spread->median);
    cJSON_AddNumberToObject(object, "low", spread->low);
    cJSON_AddNumberToObject(object, "high", spread->high);
}

static void add_variant(cJSON *to, const weft_exchange_variant *v, int rounds)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(to, object);
    cJSON_AddStringToObject(object, "form", v->is_bare ? "bare" : weft_exchange_text((int)v->form));
    add_spread(object, "us", &v->time);
    cJSON_AddItemToObject(object, "rounds_us", cJSON_CreateDoubleArray(v->us, rounds));
    add_spread(object, "times_baseline", &v->speed[WEFT_BENCH_BASELINE]);
    add_spread(object, "times_o1_paper", &v->speed[WEFT_BENCH_O1_PAPER]);
    add_spread(object, "times_bare", &v->speed[WEFT_BENCH_BARE]);
    if (v->is_bare)
        return;
    cJSON_AddNumberToObject(object, "chunks", v->num_chunks);
    cJSON_AddBoolToObject(object, "tried", v->tried);
    cJSON_AddNumberToObject(object, "predicted_us", v->predicted_us);
    cJSON_AddNumberToObject(object, "error", error_of(v));
    cJSON_AddBoolToObject(object, "data_checked", true); /* one that is wrong ends the run */
}

static void add_result(cJSON *to, const weft_exchange_result *r, int rounds)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(to, object);
    cJSON_AddNumberToObject(object, "bytes", r->bytes);
    cJSON_AddNumberToObject(object, "model_bytes", r->model_bytes);
    cJSON_AddNumberToObject(object, "train", r->train);
    cJSON *choice = cJSON_AddObjectToObject(object, "choice");
    cJSON_AddStringToObject(choice, "form", weft_exchange_text((int)r->choice.form));
    cJSON_AddNumberToObject(choice, "chunks", r->choice.num_chunks);
    cJSON_AddNumberToObject(choice, "predicted_us", r->choice.us);
    cJSON_AddStringToObject(choice, "reason", r->choice.reason);
    cJSON_AddNumberToObject(choice, "behind_best", behind_best(r));
    cJSON *best = cJSON_AddObjectToObject(object, "best");
    cJSON_AddStringToObject(best, "form", weft_exchange_text((int)r->variants[r->best].form));
    cJSON_AddNumberToObject(best, "chunks", r->variants[r->best].num_chunks);
    cJSON *ways = cJSON_AddArrayToObject(object, "results");
    for (int i = 0; i < r->num_variants; i++)
        add_variant(ways, &r->variants[i], rounds);
}

static weft_status add_cluster(cJSON *to, const weft_cluster *cluster)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the cluster's text");
    weft_status status = weft_cluster_print(cluster, stream);
    fclose(stream);
    if (status == WEFT_OK)
        cJSON_AddItemToObject(to, "cluster", cJSON_Parse(text));
    free(text);
    return status;
}

weft_status weft_exchange_json(const weft_exchange_report *report)
{
    const weft_exchange_rig *rig = report->rig;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "bench", "all-to-all");
    cJSON_AddNumberToObject(json, "nodes", weft_comm_size(rig->between));
    cJSON_AddNumberToObject(json, "ranks_per_node", weft_comm_size(rig->inside));
    cJSON_AddBoolToObject(json, "uneven", rig->uneven);
    cJSON_AddNumberToObject(json, "rounds", report->rounds);
    cJSON *sizes = cJSON_AddArrayToObject(json, "sizes");
    for (int i = 0; i < report->num_results; i++)
        add_result(sizes, &report->results[i], report->rounds);
    weft_status status = add_cluster(json, report->cluster);
    if (status == WEFT_OK)
        status = weft_bench_print_json(json);
    cJSON_Delete(json);
    return status;
}

/* --- drawing ------------------------------------------------------------------------------- */

enum { BAR_BARE, BAR_FIRST_FORM, BAR_CHOSEN = BAR_FIRST_FORM + WEFT_NUM_EXCHANGES, NUM_BARS };

/* Of a form, its best number of chunks. */
static void fill_bars(const weft_exchange_result *r, weft_spread *bars)
{
    for (int i = 0; i < r->num_variants; i++) {
        const weft_exchange_variant *v = &r->variants[i];
        weft_spread ms = {v->time.median / 1e3, v->time.low / 1e3, v->time.high / 1e3,
                          v->time.count};
        weft_spread *bar = &bars[v->is_bare ? BAR_BARE : BAR_FIRST_FORM + (int)v->form];
        if (bar->count == 0 || ms.median < bar->median)
            *bar = ms;
        if (i == r->chosen)
            bars[BAR_CHOSEN] = ms;
    }
}

weft_status weft_exchange_svg(const weft_exchange_report *report, const char *path)
{
    weft_spread values[WEFT_BENCH_MAX_SIZES * NUM_BARS] = {{0}};
    char groups[WEFT_BENCH_MAX_SIZES][32];
    const char *group_texts[WEFT_BENCH_MAX_SIZES], *labels[NUM_BARS];
    labels[BAR_BARE] = "bare all-to-all of I/t";
    labels[BAR_CHOSEN] = "as the model chose";
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++)
        labels[BAR_FIRST_FORM + form] = weft_exchange_text(form);
    for (int i = 0; i < report->num_results; i++) {
        size_text(report->results[i].bytes, groups[i]);
        group_texts[i] = groups[i];
        fill_bars(&report->results[i], values + (size_t)i * NUM_BARS);
    }
    char title[128];
    snprintf(title, sizeof title, "All-to-all of experts, %d nodes × %d ranks",
             weft_comm_size(report->rig->between), weft_comm_size(report->rig->inside));
    weft_bars bars = {.title = title,
                      .unit = "ms",
                      .legend =
                          "groups: I, the bytes that a rank sends; t: ranks of a node; o1_paper "
                          "to direct: MoNTA's forms, each with its best number of chunks",
                      .num_groups = report->num_results,
                      .num_bars = NUM_BARS,
                      .groups = group_texts,
                      .labels = labels,
                      .values = values};
    return weft_bench_write_svg(&bars, path);
}
