#include "launcher/planning/figures_print.h"

#include <math.h>

#include "core/text.h"
#include "layers/footprint_parts.h"

/* --- lines ----------------------------------------------------------------------------------- */

typedef struct duration {
    char text[32];
} duration;

/* In the unit that suits. */
static duration duration_text(double s)
{
    duration out;
    const double scale = s < 1 ? 1e-3 : s < 120 ? 1 : s < 7200 ? 60 : s < 172800 ? 3600 : 86400;
    const char *unit = s < 1 ? "ms" : s < 120 ? "s" : s < 7200 ? "min" : s < 172800 ? "h" : "days";
    snprintf(out.text, sizeof out.text, "%.3g %s", s / scale, unit);
    return out;
}

static void print_loads(const weft_plan_figures *f, FILE *out)
{
    for (int i = 0; i < f->num_loads && f->num_loads > 1; i++)
        fprintf(out, "%s%.4g: %s, %s%s", i ? ";  " : "at an expert load of ", f->loads[i].load,
                duration_text(f->loads[i].step_us / 1e6).text,
                weft_bytes_text((double)f->loads[i].memory_bytes).text,
                f->loads[i].fits ? "" : ", does not fit");
    if (f->num_loads > 1)
        fprintf(out, "\n");
}

static void print_failures(const weft_plan_figures *f, FILE *out)
{
    fprintf(out, "checkpoint %s", weft_bytes_text((double)f->checkpoint_bytes).text);
    if (isfinite(f->write_s))
        fprintf(out, ", written in %s", duration_text(f->write_s).text);
    if (isfinite(f->save_every_s))
        fprintf(out, "; best saved every %s", duration_text(f->save_every_s).text);
    if (isfinite(f->hours_between))
        fprintf(out, "; a failure every %s", duration_text(3600 * f->hours_between).text);
    if (isfinite(f->goodput))
        fprintf(out, "; %.1f %% of the time lasts", 100 * f->goodput);
    fprintf(out, "\n");
}

static void print_costs(const weft_plan_figures *f, FILE *out)
{
    const char *space = *f->currency ? " " : "";
    if (isfinite(f->costs.hour))
        fprintf(out, "costs %.4g%s%s an hour, %.4g%s%s a billion tokens\n", f->costs.hour, space,
                f->currency, f->costs.billion_tokens, space, f->currency);
    if (isfinite(f->costs.joules_per_token))
        fprintf(out, "%.3g J a token\n", f->costs.joules_per_token);
    if (isfinite(f->days))
        fprintf(out, "all tokens: %s", duration_text(86400 * f->days).text);
    if (isfinite(f->total))
        fprintf(out, ", %.4g%s%s", f->total, space, f->currency);
    if (isfinite(f->days))
        fprintf(out, "\n");
}

/* Efficiencies of 1, which no hardware has. */
static void print_missing(const weft_plan_figures *f, FILE *out)
{
    int count = 0;
    for (int i = 0; i < f->num_inputs; i++)
        if (f->inputs[i].is_missing)
            fprintf(out, "%s%s", count++ ? ", " : "", f->inputs[i].what);
    if (count > 0)
        fprintf(out, "%s not given: 1, as if every operation reached its peak\n",
                count == 1 ? " is" : " are");
}

void weft_plan_figures_print(const weft_plan_figures *figures, FILE *out)
{
    fprintf(out, "between %s and %s, by the spread of the numbers behind it\n",
            duration_text(figures->range_us[0] / 1e6).text,
            duration_text(figures->range_us[1] / 1e6).text);
    print_loads(figures, out);
    print_failures(figures, out);
    print_costs(figures, out);
    print_missing(figures, out);
}

/* --- JSON ------------------------------------------------------------------------------------ */

void weft_plan_add_number(cJSON *json, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    cJSON_AddRawToObject(json, key, isfinite(value) ? text : "null");
}

/* Null: nobody says. */
static void add_text(cJSON *json, const char *key, const char *text)
{
    if (*text)
        cJSON_AddStringToObject(json, key, text);
    else
        cJSON_AddNullToObject(json, key);
}

static void add_loads(cJSON *plan, const weft_plan_figures *f)
{
    cJSON *list = f->num_loads > 0 ? cJSON_AddArrayToObject(plan, "imbalance") : NULL;
    for (int i = 0; i < f->num_loads; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(list, row);
        weft_plan_add_number(row, "load", f->loads[i].load);
        weft_plan_add_number(row, "step_time_s", f->loads[i].step_us / 1e6);
        weft_plan_add_number(row, "memory_bytes", (double)f->loads[i].memory_bytes);
        cJSON_AddBoolToObject(row, "fits", f->loads[i].fits);
    }
}

static void add_costs(cJSON *plan, const weft_plan_figures *f)
{
    cJSON *cost = cJSON_AddObjectToObject(plan, "cost");
    add_text(cost, "currency", f->currency);
    weft_plan_add_number(cost, "hour", f->costs.hour);
    weft_plan_add_number(cost, "billion_tokens", f->costs.billion_tokens);
    weft_plan_add_number(cost, "joules_per_token", f->costs.joules_per_token);
    weft_plan_add_number(cost, "days", f->days);
    weft_plan_add_number(cost, "total", f->total);
}

static void add_sources(cJSON *plan, const weft_plan_figures *f)
{
    cJSON *list = cJSON_AddArrayToObject(plan, "sources");
    for (int i = 0; i < f->num_inputs; i++) {
        const weft_plan_input *input = &f->inputs[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(list, row);
        cJSON_AddStringToObject(row, "what", input->what);
        cJSON_AddStringToObject(row, "class", weft_source_class_text(input->class_));
        add_text(row, "where", input->where);
        weft_plan_add_number(row, "spread", input->spread);
    }
}

void weft_plan_add_figures(cJSON *plan, const weft_plan_figures *f)
{
    cJSON *range = cJSON_AddArrayToObject(plan, "step_time_range_s");
    for (int end = 0; end < 2; end++) {
        char text[32];
        snprintf(text, sizeof text, "%.17g", f->range_us[end] / 1e6);
        cJSON_AddItemToArray(range, cJSON_CreateRaw(text));
    }
    add_loads(plan, f);
    cJSON *checkpoint = cJSON_AddObjectToObject(plan, "checkpoint");
    weft_plan_add_number(checkpoint, "bytes", (double)f->checkpoint_bytes);
    weft_plan_add_number(checkpoint, "write_s", f->write_s);
    weft_plan_add_number(checkpoint, "stall_s", f->stall_s);
    cJSON *failures = cJSON_AddObjectToObject(plan, "failures");
    weft_plan_add_number(failures, "hours_between", f->hours_between);
    weft_plan_add_number(failures, "save_every_s", f->save_every_s);
    weft_plan_add_number(failures, "goodput", f->goodput);
    add_costs(plan, f);
    add_sources(plan, f);
}

void weft_plan_add_parts(cJSON *json, const weft_plan *plan, int stage)
{
    static const weft_memory_purpose purposes[] = {WEFT_MEMORY_WEIGHTS, WEFT_MEMORY_GRADIENTS,
                                                   WEFT_MEMORY_OPTIMIZER, WEFT_MEMORY_ACTIVATIONS};
    weft_part_bytes parts[WEFT_NUM_MODEL_PARTS];
    weft_footprint_parts(&plan->step.outline, &plan->mesh, stage, &plan->step.programs[stage],
                         &plan->stages[stage].footprint, parts);
    cJSON *object = cJSON_AddObjectToObject(json, "parts");
    for (int part = 0; part < WEFT_NUM_MODEL_PARTS; part++) {
        cJSON *bytes = cJSON_AddObjectToObject(object, weft_model_part_text(part));
        for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++)
            weft_plan_add_number(bytes, weft_memory_text(purposes[i]),
                                 (double)parts[part].bytes[purposes[i]]);
    }
}
