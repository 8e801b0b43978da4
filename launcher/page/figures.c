/* What the step's price alone does not say: loads of experts, checkpoints, failures, costs; and the
 * numbers behind it all. */
#include <math.h>

#include "core/text.h"
#include "launcher/page/parts.h"
#include "launcher/planning/figures_print.h"

void weft_page_figures(const weft_page *page, weft_report *report)
{
    if (!page->plan || !page->plan->figures)
        return;
    weft_page_begin(report->out, "run", "Over a run");
    weft_plan_figures_report(report, page->plan->figures);
    fputs("</section>\n", report->out);
}

/* The numbers that were taken; where nobody asked for them, those that the file tells of. */
void weft_page_sources(const weft_page *page, weft_report *report)
{
    const weft_plan_figures *f = page->plan ? page->plan->figures : NULL;
    const weft_cluster *c = page->cluster;
    if (!f && !c)
        return;
    weft_page_begin(report->out, "sources", "Sources and ranges");
    if (page->plan)
        weft_report_line(report, "The worst of the numbers behind the plan is %s%s.",
                         weft_source_class_text(page->plan->source),
                         page->plan->coarse ? "; a layer gives only sums" : "");
    if (f)
        weft_report_line(report,
                         "With every number at either end of its spread a step takes %s to %s.",
                         weft_seconds_text(f->range_us[0] / 1e6).text,
                         weft_seconds_text(f->range_us[1] / 1e6).text);
    weft_report_open(report, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; f && i < f->num_inputs; i++)
        weft_plan_report_source(report, f->inputs[i].what, f->inputs[i].class_, f->inputs[i].where,
                                f->inputs[i].spread);
    for (int i = 0; !f && i < c->num_sources; i++)
        weft_plan_report_source(report, c->sources[i].key, c->sources[i].class_,
                                c->sources[i].where, c->sources[i].spread);
    weft_report_close(report);
    fputs("</section>\n", report->out);
}
