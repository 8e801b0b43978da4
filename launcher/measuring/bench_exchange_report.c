/* The results of weft bench all-to-all as tables, JSON and a drawing. */
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

static void report_variant(weft_report *r, const weft_exchange_result *result, int i, int rounds)
{
    static const char *const keys[] = {"times_baseline", "times_o1_paper", "times_bare"};
    static const char *const titles[] = {"x baseline", "x o1_paper", "x bare"};
    const weft_exchange_variant *v = &result->variants[i];
    const bool is_chosen = i == result->chosen, is_best = i == result->best;
    char text[32];
    weft_exchange_variant_text(v, text);
    weft_report_record(r);
    weft_report_cell(r, "form", "%s", text);
    weft_report_text(r, "form", NULL, v->is_bare ? "bare" : weft_exchange_text((int)v->form));
    weft_report_row(r, NULL, "ms", WEFT_UNIT_FIXED, v->time.median / 1e3);
    weft_report_cell(r, "quartiles", "%.2f-%.2f", v->time.low / 1e3, v->time.high / 1e3);
    weft_bench_report_spread(r, "us", &v->time);
    weft_report_numbers(r, "rounds_us", v->us, (size_t)rounds);
    for (int k = 0; k < 3; k++) {
        weft_bench_report_spread(r, keys[k], &v->speed[k]);
        if (v->speed[k].count > 0)
            weft_report_row(r, NULL, titles[k], WEFT_UNIT_FIXED, v->speed[k].median);
    }
    if (!v->is_bare) {
        weft_report_value(r, "chunks", v->num_chunks);
        weft_report_bool(r, "tried", v->tried);
        weft_report_value(r, "predicted_us", v->predicted_us);
        weft_report_row(r, NULL, "predicted ms", WEFT_UNIT_FIXED, v->predicted_us / 1e3);
        weft_report_row(r, "error", "error", WEFT_UNIT_CHANGE, error_of(v));
        weft_report_bool(r, "data_checked", true); /* one that is wrong ends the run */
    }
    weft_report_cell(r, "", "%s%s%s", is_chosen ? "chosen" : "", is_chosen && is_best ? ", " : "",
                     is_best ? "fastest" : "");
}

static void report_choice(weft_report *r, const weft_exchange_result *result)
{
    const weft_exchange_variant *best = &result->variants[result->best];
    weft_report_open(r, WEFT_REPORT_OBJECT, "choice");
    weft_report_text(r, "form", NULL, weft_exchange_text((int)result->choice.form));
    weft_report_value(r, "chunks", result->choice.num_chunks);
    weft_report_value(r, "predicted_us", result->choice.us);
    weft_report_text(r, "reason", NULL, result->choice.reason);
    weft_report_value(r, "behind_best", behind_best(result));
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "best");
    weft_report_text(r, "form", NULL, weft_exchange_text((int)best->form));
    weft_report_value(r, "chunks", best->num_chunks);
    weft_report_close(r);
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

static void report_result(weft_report *r, const weft_exchange_result *result, int rounds)
{
    FILE *out = weft_report_stream(r, WEFT_REPORT_TEXT);
    char text[32];
    size_text(result->bytes, text);
    weft_report_line(r, "I = %s (%d a measurement)", text, result->train);
    weft_report_value(r, "bytes", result->bytes);
    weft_report_value(r, "model_bytes", result->model_bytes);
    weft_report_value(r, "train", result->train);
    report_choice(r, result);
    weft_report_open(r, WEFT_REPORT_TABLE, "results");
    for (int i = 0; i < result->num_variants; i++)
        report_variant(r, result, i, rounds);
    weft_report_close(r);
    if (out)
        print_verdict(result, out);
}

weft_status weft_exchange_print_last(const weft_exchange_report *report, FILE *out)
{
    const weft_exchange_rig *rig = report->rig;
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_TEXT);
    if (report->num_results == 1)
        weft_report_line(&r, "\n%d nodes x %d ranks%s; medians of %d paired rounds\n",
                         weft_comm_size(rig->between), weft_comm_size(rig->inside),
                         rig->uneven ? ", uneven blocks" : "", report->rounds);
    report_result(&r, &report->results[report->num_results - 1], report->rounds);
    return weft_report_end(&r, WEFT_OK, out);
}

weft_status weft_exchange_json(const weft_exchange_report *report)
{
    const weft_exchange_rig *rig = report->rig;
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_JSON);
    weft_report_text(&r, "bench", NULL, "all-to-all");
    weft_report_value(&r, "nodes", weft_comm_size(rig->between));
    weft_report_value(&r, "ranks_per_node", weft_comm_size(rig->inside));
    weft_report_bool(&r, "uneven", rig->uneven);
    weft_report_value(&r, "rounds", report->rounds);
    weft_report_open(&r, WEFT_REPORT_GROUP, "sizes");
    for (int i = 0; i < report->num_results; i++) {
        weft_report_record(&r);
        report_result(&r, &report->results[i], report->rounds);
    }
    weft_report_close(&r);
    weft_cluster_write_json(report->cluster, "cluster", &r.json);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* --- drawing ------------------------------------------------------------------------------- */

enum { BAR_BARE, BAR_FIRST_FORM, BAR_CHOSEN = BAR_FIRST_FORM + WEFT_NUM_EXCHANGES, NUM_BARS };

/* Of a form, its best number of chunks. */
static void fill_bars(const weft_exchange_result *r, weft_spread *bars)
{
    for (int i = 0; i < r->num_variants; i++) {
        const weft_exchange_variant *v = &r->variants[i];
        const weft_spread ms = weft_spread_ms(&v->time);
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
