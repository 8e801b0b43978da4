#include "launcher/planning/figures_print.h"

#include <math.h>

#include "core/text.h"
#include "layers/outline/footprint.h"

/* Efficiencies of 1, which no hardware has. */
static void report_missing(weft_report *r, const weft_plan_figures *f)
{
    FILE *out = weft_report_stream(r, WEFT_REPORT_TEXT);
    int count = 0;
    for (int i = 0; out && i < f->num_inputs; i++)
        if (f->inputs[i].is_missing)
            fprintf(out, "%s%s", count++ ? ", " : "", f->inputs[i].what);
    if (count > 0)
        fprintf(out, "%s not given: 1, as if every operation reached its peak\n",
                count == 1 ? " is" : " are");
}

/* Where nobody knows it, people are not told of it. */
static void report_known(weft_report *r, const char *key, const char *title, weft_unit unit,
                         double value)
{
    if (isfinite(value) || r->form == WEFT_REPORT_JSON)
        weft_report_row(r, key, title, unit, value);
}

static void report_price(weft_report *r, const char *key, const char *title, double value,
                         const char *unit)
{
    if (r->form == WEFT_REPORT_JSON)
        weft_report_row(r, key, title, WEFT_UNIT_NONE, value);
    else if (isfinite(value))
        weft_report_cell(r, title, "%.4g%s%s", value, *unit ? " " : "", unit);
}

static void report_loads(weft_report *r, const weft_plan_figures *f)
{
    weft_report_open(r, WEFT_REPORT_TABLE, "imbalance");
    for (int i = 0; i < f->num_loads; i++) {
        const weft_plan_at_load *l = &f->loads[i];
        weft_report_record(r);
        weft_report_row(r, "load", "expert load", WEFT_UNIT_NONE, l->load);
        weft_report_row(r, "step_time_s", "step", WEFT_UNIT_SECONDS, l->step_us / 1e6);
        weft_report_row(r, "memory_bytes", "memory", WEFT_UNIT_BYTES, l->memory_bytes);
        weft_report_cell(r, "", "%s", l->fits ? "" : "does not fit");
        weft_report_bool(r, "fits", l->fits);
        if (!l->fits)
            weft_report_bad(r);
    }
    weft_report_close(r);
}

void weft_plan_report_source(weft_report *r, const char *what, weft_source_class class_,
                             const char *where, double spread)
{
    weft_report_record(r);
    weft_report_text(r, "what", "figure", what);
    weft_report_text(r, "class", "is", weft_source_class_text(class_));
    if (r->form == WEFT_REPORT_JSON)
        weft_report_row(r, "spread", NULL, WEFT_UNIT_SHARE, spread);
    else if (spread > 0)
        weft_report_cell(r, "spread", "±%.3g %%", 100 * spread);
    weft_report_text(r, "where", "from", *where ? where : NULL);
}

void weft_plan_figures_report(weft_report *r, const weft_plan_figures *f)
{
    const double range_s[] = {f->range_us[0] / 1e6, f->range_us[1] / 1e6};
    if (r->form == WEFT_REPORT_TEXT)
        weft_report_line(r, "between %s and %s, by the spread of the numbers behind it",
                         weft_seconds_text(range_s[0]).text, weft_seconds_text(range_s[1]).text);
    weft_report_numbers(r, "step_time_range_s", range_s, 2);
    if (f->num_loads > 1 || (f->num_loads > 0 && r->form == WEFT_REPORT_JSON))
        report_loads(r, f);
    weft_report_open(r, WEFT_REPORT_FACTS, NULL);
    weft_report_open(r, WEFT_REPORT_OBJECT, "checkpoint");
    weft_report_row(r, "bytes", "a checkpoint", WEFT_UNIT_BYTES, f->checkpoint_bytes);
    report_known(r, "write_s", "until it is written", WEFT_UNIT_SECONDS, f->write_s);
    report_known(r, "stall_s", "until training goes on", WEFT_UNIT_SECONDS, f->stall_s);
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "failures");
    weft_report_value(r, "hours_between", f->hours_between);
    report_known(r, NULL, "between failures", WEFT_UNIT_SECONDS, 3600 * f->hours_between);
    report_known(r, "save_every_s", "best saved every", WEFT_UNIT_SECONDS, f->save_every_s);
    report_known(r, "goodput", "of the time is work that lasts", WEFT_UNIT_SHARE, f->goodput);
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "cost");
    weft_report_text(r, "currency", NULL, *f->currency ? f->currency : NULL);
    report_price(r, "hour", "an hour costs", f->costs.hour, f->currency);
    report_price(r, "billion_tokens", "a billion tokens cost", f->costs.billion_tokens,
                 f->currency);
    report_price(r, "joules_per_token", "a token takes", f->costs.joules_per_token, "J");
    weft_report_value(r, "days", f->days);
    report_known(r, NULL, "all tokens take", WEFT_UNIT_SECONDS, 86400 * f->days);
    report_price(r, "total", "all tokens cost", f->total, f->currency);
    weft_report_close(r);
    weft_report_close(r);
    report_missing(r, f);
    weft_report_open(r, WEFT_REPORT_GROUP, "sources");
    for (int i = 0; i < f->num_inputs; i++)
        weft_plan_report_source(r, f->inputs[i].what, f->inputs[i].class_, f->inputs[i].where,
                                f->inputs[i].spread);
    weft_report_close(r);
}

void weft_plan_report_parts(weft_report *r, const weft_plan *plan, int stage)
{
    static const weft_memory_purpose purposes[] = {WEFT_MEMORY_WEIGHTS, WEFT_MEMORY_GRADIENTS,
                                                   WEFT_MEMORY_OPTIMIZER, WEFT_MEMORY_ACTIVATIONS};
    weft_part_bytes parts[WEFT_NUM_MODEL_PARTS];
    weft_footprint_parts(&plan->step.outline, &plan->mesh, stage, &plan->step.programs[stage],
                         &plan->stages[stage].footprint, parts);
    weft_report_open(r, WEFT_REPORT_OBJECT, "parts");
    for (int part = 0; part < WEFT_NUM_MODEL_PARTS; part++) {
        weft_report_open(r, WEFT_REPORT_OBJECT, weft_model_part_text(part));
        for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++)
            weft_report_value(r, weft_memory_text(purposes[i]), parts[part].bytes[purposes[i]]);
        weft_report_close(r);
    }
    weft_report_close(r);
}
