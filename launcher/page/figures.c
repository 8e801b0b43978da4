/* What the step's price alone does not say: loads of experts, checkpoints, failures, costs; and the
 * numbers behind it all. */
#include <math.h>

#include "core/text.h"
#include "launcher/page/parts.h"
#include "launcher/planning/figures.h"

static void write_row(FILE *out, const char *name, const char *value)
{
    fputs("<tr>", out);
    weft_page_cell(out, name);
    weft_page_number(out, value);
    fputs("</tr>\n", out);
}

static void write_time(FILE *out, const char *name, double seconds)
{
    if (isfinite(seconds))
        write_row(out, name, weft_page_seconds(seconds).text);
}

static void write_price(FILE *out, const char *name, double value, const char *unit)
{
    char text[96];
    snprintf(text, sizeof text, "%.4g%s%.32s", value, *unit ? " " : "", unit);
    if (isfinite(value))
        write_row(out, name, text);
}

static void write_loads(const weft_plan_figures *f, FILE *out)
{
    if (f->num_loads < 2)
        return;
    fputs("<div class=\"scroll\"><table><tr><th>rows at the fullest rank's experts over the "
          "mean</th><th class=\"n\">step</th><th class=\"n\">memory</th><th></th></tr>\n",
          out);
    for (int i = 0; i < f->num_loads; i++) {
        const weft_plan_at_load *l = &f->loads[i];
        fprintf(out, "<tr%s><td>%.4g</td>", l->fits ? "" : " class=\"bad\"", l->load);
        weft_page_number(out, weft_page_seconds(l->step_us / 1e6).text);
        weft_page_number(out, weft_page_bytes((double)l->memory_bytes).text);
        weft_page_cell(out, l->fits ? "" : "does not fit");
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

void weft_page_figures(const weft_page *page, FILE *out)
{
    const weft_plan_figures *f = page->plan ? page->plan->figures : NULL;
    char goodput[32];
    if (!f)
        return;
    weft_page_begin(out, "run", "Over a run");
    write_loads(f, out);
    fputs("<div class=\"scroll\"><table>\n", out);
    write_row(out, "a checkpoint", weft_page_bytes((double)f->checkpoint_bytes).text);
    write_time(out, "until it is written", f->write_s);
    write_time(out, "until training goes on", f->stall_s);
    write_time(out, "between failures", 3600 * f->hours_between);
    write_time(out, "best saved every", f->save_every_s);
    snprintf(goodput, sizeof goodput, "%.1f %%", 100 * f->goodput);
    if (isfinite(f->goodput))
        write_row(out, "of the time is work that lasts", goodput);
    write_price(out, "an hour costs", f->costs.hour, f->currency);
    write_price(out, "a billion tokens cost", f->costs.billion_tokens, f->currency);
    write_price(out, "a token takes", f->costs.joules_per_token, "J");
    write_time(out, "all tokens take", 86400 * f->days);
    write_price(out, "all tokens cost", f->total, f->currency);
    fputs("</table></div>\n</section>\n", out);
}

/* --- sources --------------------------------------------------------------------------------- */

static void write_source(const char *key, weft_source_class class_, const char *where,
                         double spread, FILE *out)
{
    char text[32] = "";
    if (spread > 0)
        snprintf(text, sizeof text, "\u00b1%.3g %%", 100 * spread);
    fputs("<tr>", out);
    weft_page_cell(out, key);
    weft_page_cell(out, weft_source_class_text(class_));
    weft_page_number(out, text);
    weft_page_cell(out, where);
    fputs("</tr>\n", out);
}

/* The numbers that were taken; where nobody asked for them, those that the file tells of. */
void weft_page_sources(const weft_page *page, FILE *out)
{
    const weft_plan_figures *f = page->plan ? page->plan->figures : NULL;
    const weft_cluster *c = page->cluster;
    if (!f && !c)
        return;
    weft_page_begin(out, "sources", "Sources and ranges");
    if (page->plan)
        fprintf(out, "<p>The worst of the numbers behind the plan is %s%s.",
                weft_source_class_text(page->plan->source),
                page->plan->coarse ? "; a layer gives only sums" : "");
    if (f)
        fprintf(out, " With every number at either end of its spread a step takes %s to %s.",
                weft_page_seconds(f->range_us[0] / 1e6).text,
                weft_page_seconds(f->range_us[1] / 1e6).text);
    fputs(page->plan ? "</p>\n" : "", out);
    fputs("<div class=\"scroll\"><table><tr><th>figure</th><th>is</th><th class=\"n\">spread</th>"
          "<th>from</th></tr>\n",
          out);
    for (int i = 0; f && i < f->num_inputs; i++)
        write_source(f->inputs[i].what, f->inputs[i].class_, f->inputs[i].where,
                     f->inputs[i].spread, out);
    for (int i = 0; !f && i < c->num_sources; i++)
        write_source(c->sources[i].key, c->sources[i].class_, c->sources[i].where,
                     c->sources[i].spread, out);
    fputs("</table></div>\n</section>\n", out);
}
