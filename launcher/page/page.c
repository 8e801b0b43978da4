/* The page around its sections, the answer, memory, where time goes, and sources. */
#include "launcher/page/page.h"

#include <math.h>

#include "core/file.h"
#include "core/svg.h"
#include "core/text.h"
#include "launcher/page/parts.h"
#include "launcher/planning/figures.h"
#include "launcher/planning/plan_print.h"

enum { MAX_STAGES = 64 };

/* --- the answer ---------------------------------------------------------------------------- */

static void write_range(const weft_page *page, FILE *out)
{
    const weft_plan_figures *figures = page->plan->figures;
    if (figures)
        fprintf(out, " (%s to %s)", weft_seconds_text(figures->range_us[0] / 1e6).text,
                weft_seconds_text(figures->range_us[1] / 1e6).text);
}

static void answer_plan(const weft_page *page, FILE *out)
{
    const weft_plan *plan = page->plan;
    char axes[128], text[512];
    weft_mesh_print(&plan->mesh, axes, sizeof axes);
    fprintf(out, "<p class=\"answer\"><strong class=\"%s\">%s</strong> On %s",
            plan->fits ? "good" : "bad", plan->fits ? "It fits." : "It does not fit.",
            weft_count_text(plan->mesh.world, "device").text);
    if (page->cluster) {
        fputs(" of ", out);
        weft_svg_write_text(page->cluster->name, out);
    }
    fprintf(out, " (%s) a step takes <strong>%s</strong>", axes,
            weft_seconds_text(plan->step_us / 1e6).text);
    write_range(page, out);
    fprintf(out, ": <strong>%s tokens/s</strong>",
            weft_unit_text(WEFT_UNIT_COUNT, plan->tokens_per_s).text);
    if (plan->model_flops_utilization > 0)
        fprintf(out, ", %.1f %% of the devices' peak", 100 * plan->model_flops_utilization);
    fprintf(out, ". Most of the step is %s.</p>\n", weft_limit_text(plan->limits));
    if (!plan->fits) {
        fputs("<p class=\"bad\">", out);
        weft_svg_write_text(weft_plan_short_text(plan, text, sizeof text), out);
        fputs("</p>\n", out);
    }
}

static void answer_search(const weft_page *page, FILE *out)
{
    if (page->search)
        fputs("<p class=\"answer\"><strong class=\"bad\">No mesh fits.</strong></p>\n", out);
}

/* --- where time goes ------------------------------------------------------------------------ */

static void write_time(const weft_page *page, weft_page_colours *colours, FILE *out)
{
    const weft_plan *plan = page->plan;
    if (!plan)
        return;
    weft_page_begin(out, "time", "Where the step's time goes");
    for (int i = 0; i < WEFT_NUM_TIMES; i++) {
        const double share = plan->us[i] / plan->step_us;
        if (!(plan->us[i] > 0))
            continue;
        fprintf(out,
                "<div class=\"row\"><span>%s</span><div class=\"bar\"><i class=\"k%d\" "
                "style=\"width:%.2f%%\"></i></div><span class=\"v\">%s, %.1f %%</span></div>\n",
                weft_time_text(i), weft_page_colour(colours, weft_time_text(i)), 100 * share,
                weft_seconds_text(plan->us[i] / 1e6).text, 100 * share);
    }
    fputs("<p class=\"soft\">Of the compute lanes, the stages' mean. Communication counts where "
          "nothing hides it.</p>\n</section>\n",
          out);
}

/* --- memory ---------------------------------------------------------------------------------- */

static const char *purpose_name(int purpose)
{
    return purpose == WEFT_MEMORY_OPTIMIZER ? "optimizer state"
                                            : weft_memory_text((weft_memory_purpose)purpose);
}

static void write_stage(const weft_plan *plan, int s, double scale, weft_page_colours *colours,
                        FILE *out)
{
    const weft_plan_stage *stage = &plan->stages[s];
    fprintf(out, "<div class=\"row\"><span>stage %d</span><div class=\"bar\">", s);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
        if (stage->footprint.bytes[p] > 0)
            fprintf(out, "<i class=\"k%d\" style=\"width:%.2f%%\" title=\"%s %s\"></i>",
                    weft_page_colour(colours, purpose_name(p)),
                    100 * (double)stage->footprint.bytes[p] / scale, purpose_name(p),
                    weft_bytes_text((double)stage->footprint.bytes[p]).text);
    if (stage->memory_limit_bytes > 0)
        fprintf(out, "<b style=\"left:calc(%.2f%% - 1px)\" title=\"limit %s\"></b>",
                100 * (double)stage->memory_limit_bytes / scale,
                weft_bytes_text((double)stage->memory_limit_bytes).text);
    const bool is_over =
        stage->memory_limit_bytes > 0 && stage->footprint.device_bytes > stage->memory_limit_bytes;
    fprintf(out, "</div><span class=\"v%s\">%s</span></div>\n", is_over ? " bad" : "",
            weft_bytes_text((double)stage->footprint.device_bytes).text);
}

static void write_stage_table(const weft_plan *plan, const int *stages, int count, weft_report *r)
{
    fputs("<details><summary>As a table</summary>", r->out);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < count; i++) {
        const weft_plan_stage *stage = &plan->stages[stages[i]];
        const uint64_t limit = stage->memory_limit_bytes;
        weft_report_record(r);
        weft_report_row(r, NULL, "stage", WEFT_UNIT_COUNT, stages[i]);
        for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
            weft_report_row(r, NULL, purpose_name(p), WEFT_UNIT_BYTES, stage->footprint.bytes[p]);
        weft_report_row(r, NULL, "all", WEFT_UNIT_BYTES, stage->footprint.device_bytes);
        weft_report_row(r, NULL, "limit", WEFT_UNIT_BYTES, limit > 0 ? (double)limit : NAN);
    }
    weft_report_close(r);
    fputs("</details>\n", r->out);
}

static void write_memory(const weft_page *page, weft_page_colours *colours, weft_report *r)
{
    const weft_plan *plan = page->plan;
    FILE *out = r->out;
    int stages[MAX_STAGES];
    double scale = 1;
    if (!plan)
        return;
    const int count = weft_page_pick(plan->num_stages, plan->fullest, MAX_STAGES, stages);
    for (int s = 0; s < plan->num_stages; s++)
        scale = fmax(scale, 1.01 * fmax((double)plan->stages[s].footprint.device_bytes,
                                        (double)plan->stages[s].memory_limit_bytes));
    weft_page_begin(out, "memory", "Memory of each stage's ranks");
    fputs("<div class=\"keys\">", out);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++) {
        bool any = false;
        for (int s = 0; s < plan->num_stages && !any; s++)
            any = plan->stages[s].footprint.bytes[p] > 0;
        if (any)
            weft_page_key(out, weft_page_colour(colours, purpose_name(p)), purpose_name(p));
    }
    fputs("</div>\n", out);
    for (int i = 0; i < count; i++)
        write_stage(plan, stages[i], scale, colours, out);
    if (plan->memory_limit_bytes > 0)
        fprintf(out, "<p class=\"soft\">The line is the limit, %s on the fullest stage, %d.</p>\n",
                weft_bytes_text((double)plan->memory_limit_bytes).text, plan->fullest);
    if (count < plan->num_stages)
        fprintf(out, "<p class=\"soft\">%d of %d stages are shown, the fullest among them.</p>\n",
                count, plan->num_stages);
    write_stage_table(plan, stages, count, r);
    fputs("</section>\n", out);
}

/* --- the file -------------------------------------------------------------------------------- */

static void write_pieces(const char *const *pieces, FILE *out)
{
    for (; *pieces; pieces++)
        fputs(*pieces, out);
}

static weft_status write_sections(const weft_page *page, weft_page_colours *colours, weft_report *r)
{
    if (page->plan)
        answer_plan(page, r->out);
    else
        answer_search(page, r->out);
    WEFT_TRY(weft_page_ranked(page, r));
    write_memory(page, colours, r);
    write_time(page, colours, r->out);
    WEFT_TRY(weft_page_timeline(page, colours, r->out));
    WEFT_TRY(weft_page_scaling(page, r));
    weft_page_gains(page, r);
    weft_page_ladder(page, r);
    weft_page_figures(page, r);
    weft_page_sources(page, r);
    return WEFT_OK;
}

/* Its head has the colours that the sections came to use. */
static weft_status write_page(const weft_page *page, const weft_page_colours *colours,
                              weft_report *sections, FILE *out)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>",
          out);
    weft_svg_write_text(page->title, out);
    fputs(": planned</title>\n<style>\n", out);
    write_pieces(weft_page_style, out);
    weft_page_write_colours(out, colours);
    fputs("</style>\n</head>\n<body>\n<main>\n<h1>", out);
    weft_svg_write_text(page->title, out);
    fputs("</h1>\n", out);
    const weft_status status = weft_report_end(sections, WEFT_OK, out);
    fputs("<p class=\"soft\">Planned by Weft, not measured.</p>\n</main>\n<script>\n", out);
    write_pieces(weft_page_script, out);
    fputs("</script>\n</body>\n</html>\n", out);
    return status;
}

weft_status weft_page_write(const weft_page *page, const char *path)
{
    weft_page_colours colours = {.count = 0};
    weft_new_file file;
    weft_report sections;
    weft_report_begin(&sections, WEFT_REPORT_HTML);
    weft_status status = sections.status;
    if (status == WEFT_OK)
        status = write_sections(page, &colours, &sections);
    if (status == WEFT_OK)
        status = weft_new_file_open(path, &file);
    if (status != WEFT_OK)
        return weft_report_end(&sections, status, NULL);
    return weft_new_file_close(&file, write_page(page, &colours, &sections, file.file));
}
