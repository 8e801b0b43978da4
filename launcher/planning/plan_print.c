#include "launcher/planning/plan_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/text.h"
#include "launcher/planning/figures_print.h"
#include "schedule/context.h"

weft_time_words weft_time_text_of(double us)
{
    weft_time_words out;
    const double scale = us < 1e6 ? 1e3 : us < 7.2e9 ? 1e6 : 3.6e9;
    snprintf(out.text, sizeof out.text, "%.4g %s", us / scale,
             us < 1e6     ? "ms"
             : us < 7.2e9 ? "s"
                          : "h");
    return out;
}

static weft_time_words time_text(double us)
{
    return weft_time_text_of(us);
}

/* The decoder's layers of all chunks of a rank, from 0, beside the embedding (E) and the head (L):
 * "E 0-1 | 4-5". */
static void layers_text(const weft_layout *layout, int rank, char out[64])
{
    int used = 0;
    for (int c = 0; c < layout->num_chunks && used < 60; c++) {
        char range[32] = "";
        int first, end;
        weft_layout_range(layout, rank, c, &first, &end);
        const bool embeds = first == 0 && end > 0, heads = first < end && end == layout->num_layers;
        const int from = first - !embeds, to = end - 1 - heads;
        if (to - from > 1)
            snprintf(range, sizeof range, "%d-%d", from, to - 1);
        else if (to > from)
            snprintf(range, sizeof range, "%d", from);
        used += snprintf(out + used, (size_t)(64 - used), "%s%s%s%s%s%s%s", c ? " | " : "",
                         embeds ? "E" : "", embeds && *range ? " " : "", range,
                         heads && (embeds || *range) ? " " : "", heads ? "L" : "",
                         first < end ? "" : "none");
    }
}

const char *weft_plan_short_text(const weft_plan *plan, char *out, size_t capacity)
{
    char purposes[256];
    const weft_footprint *fullest = &plan->stages[plan->fullest].footprint;
    const bool on_device =
        plan->memory_limit_bytes == 0 || plan->memory_bytes <= plan->memory_limit_bytes;
    const bool on_host =
        plan->host_limit_bytes == 0 || plan->host_memory_bytes <= plan->host_limit_bytes;
    if (on_device && on_host) {
        snprintf(out, capacity,
                 "does not fit: a rank of stage %d needs a file of %s, and offload.file_limit is "
                 "%s",
                 plan->most_file, weft_bytes_text((double)plan->file_bytes).text,
                 weft_bytes_text((double)plan->file_limit_bytes).text);
        return out;
    }
    if (on_device) {
        snprintf(out, capacity,
                 "does not fit: a rank of stage %d needs %s of host memory, and its share of the "
                 "node's is %s",
                 plan->most_host, weft_bytes_text((double)plan->host_memory_bytes).text,
                 weft_bytes_text((double)plan->host_limit_bytes).text);
        return out;
    }
    snprintf(out, capacity,
             "does not fit: a rank of stage %d needs %s, %s more than the %s there are (%s)",
             plan->fullest, weft_bytes_text((double)plan->memory_bytes).text,
             weft_bytes_text((double)(plan->memory_bytes - plan->memory_limit_bytes)).text,
             weft_bytes_text((double)plan->memory_limit_bytes).text,
             weft_footprint_text(fullest, purposes, sizeof purposes));
    return out;
}

/* What host memory holds. */
enum { OF_EXPERTS, OF_OPTIMIZER, OF_ACTIVATIONS };

static int holder_of(const char *module)
{
    static const char experts[] = "experts' ";
    return strncmp(module, experts, sizeof experts - 1) == 0 ? OF_EXPERTS
           : strcmp(module, "optimizer") == 0                ? OF_OPTIMIZER
                                                             : OF_ACTIVATIONS;
}

static uint64_t bytes_on_host(const weft_plan_stage *stage, int of)
{
    const weft_footprint *footprint = &stage->footprint;
    uint64_t bytes = 0;
    for (int i = 0; i < footprint->num_offloaded; i++)
        if (holder_of(footprint->offloaded[i].module) == of)
            bytes += footprint->offloaded[i].bytes;
    return bytes;
}

static const weft_plan_stage *most_on_host(const weft_plan *plan, int holder, uint64_t *out_most)
{
    const weft_plan_stage *of = NULL;
    *out_most = 0;
    for (int s = 0; s < plan->num_stages; s++) {
        const uint64_t bytes = bytes_on_host(&plan->stages[s], holder);
        if (bytes > *out_most) {
            *out_most = bytes;
            of = &plan->stages[s];
        }
    }
    return of;
}

/* Experts in host memory, and the state of what else the host steps, of the rank with most. */
static void print_tier(const weft_plan *plan, FILE *out)
{
    uint64_t most;
    const weft_plan_stage *of = most_on_host(plan, OF_EXPERTS, &most);
    if (of)
        fprintf(out, "experts in host memory %s, up in %s, down in %s, stepped in %s of a step\n",
                weft_bytes_text((double)most).text, time_text(of->tier_us[0]).text,
                time_text(of->tier_us[1]).text, time_text(of->tier_us[2]).text);
    if (of && of->footprint.file_bytes > 0 && of->tier_us[3] < 0)
        fprintf(out,
                "experts in a file %s; reads and writes take no time here: storage.read or "
                "storage.write is not known\n",
                weft_bytes_text((double)of->footprint.file_bytes).text);
    else if (of && of->footprint.file_bytes > 0)
        fprintf(out, "experts in a file %s, read and written in %s of a step\n",
                weft_bytes_text((double)of->footprint.file_bytes).text,
                time_text(of->tier_us[3]).text);
    of = most_on_host(plan, OF_OPTIMIZER, &most);
    if (of)
        fprintf(out,
                "optimizer in host memory %s, gradients down in %s, stepped in %s, weights up in "
                "%s of a step\n",
                weft_bytes_text((double)most).text, time_text(of->stepped_us[1]).text,
                time_text(of->stepped_us[2]).text, time_text(of->stepped_us[0]).text);
}

/* What else is offloaded, of the rank with most of it. */
static void print_offloaded(const weft_plan *plan, FILE *out)
{
    uint64_t most;
    const weft_plan_stage *of = most_on_host(plan, OF_ACTIVATIONS, &most);
    if (of)
        fprintf(out, "offloaded %s, out in %s, back in %s of a step\n",
                weft_bytes_text((double)most).text, time_text(of->copies_us[0]).text,
                time_text(of->copies_us[1]).text);
}

weft_utilization weft_utilization_text(double utilization)
{
    weft_utilization out = {"-"};
    if (isfinite(utilization))
        snprintf(out.text, sizeof out.text, "%.1f", 100 * utilization);
    return out;
}

/* Why there is none. */
static void print_utilization(const weft_plan *plan, FILE *out)
{
    if (isfinite(plan->model_flops_utilization))
        return;
    if (plan->products_flops > 0)
        fprintf(out,
                "MFU: above 1: the measured peak cannot be right, products of this file reach %.4g "
                "FLOP/s\n",
                plan->products_flops);
    else
        fprintf(out, "MFU: above 1: the peak is too low, or attention, which counts whole, is "
                     "causal and computes half\n");
}

void weft_plan_print(const weft_plan *plan, const weft_cluster *cluster, FILE *out)
{
    char axes[128], layers[64];
    weft_mesh_print(&plan->mesh, axes, sizeof axes);
    fprintf(out, "%s on %s: %s\n", weft_count_text(plan->mesh.world, "device").text, cluster->name,
            axes);
    fprintf(out, "step %s   %.4g tokens/s   MFU %s%s   most of it: %s\n",
            time_text(plan->step_us).text, plan->tokens_per_s,
            weft_utilization_text(plan->model_flops_utilization).text,
            isfinite(plan->model_flops_utilization) ? " %" : "", weft_limit_text(plan->limits));
    print_utilization(plan, out);
    fprintf(out, "memory %s of the fullest rank", weft_bytes_text((double)plan->memory_bytes).text);
    if (plan->num_stages > 1)
        fprintf(out, " (stage %d)", plan->fullest);
    if (plan->memory_limit_bytes > 0)
        fprintf(out, ", of %s", weft_bytes_text((double)plan->memory_limit_bytes).text);
    if (plan->context.reason[0])
        fprintf(out, "\nattention over %d context-parallel ranks: %s", plan->mesh.cp,
                plan->context.reason);
    fprintf(out, "\n");
    if (plan->tier.reason[0])
        fprintf(out, "%s\n", plan->tier.reason);
    print_tier(plan, out);
    print_offloaded(plan, out);
    if (plan->figures)
        weft_plan_figures_print(plan->figures, out);
    fprintf(out, "\n");
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        if (plan->us[i] > 0)
            fprintf(out, "  %-10s %10s  %5.1f %%\n", weft_time_text(i), time_text(plan->us[i]).text,
                    100 * plan->us[i] / plan->step_us);
    fprintf(out, "\n  stage  layers        compute     bubble     memory\n");
    for (int s = 0; s < plan->num_stages; s++) {
        const weft_plan_stage *stage = &plan->stages[s];
        layers_text(&plan->step.outline.layout, s, layers);
        fprintf(out, "  %5d  %-10s %10s %10s %10s\n", s, layers,
                time_text(stage->us[WEFT_TIME_COMPUTE]).text,
                time_text(stage->us[WEFT_TIME_BUBBLE]).text,
                weft_bytes_text((double)stage->footprint.device_bytes).text);
    }
    fprintf(out, "\nThe worst of the numbers behind it is %s%s.\n",
            weft_source_class_text(plan->source),
            plan->coarse ? "; a layer gives only sums (coarse)" : "");
}

/* " 3.2 %", signed. */
static weft_time_words error_text(double planned, double measured)
{
    weft_time_words out;
    const double error = weft_against_error(planned, measured);
    snprintf(out.text, sizeof out.text, isfinite(error) ? "%+.1f %%" : "-", 100 * error);
    return out;
}

void weft_against_print(const weft_against *a, FILE *out)
{
    fprintf(out, "\n%s, median of %s, between their quartiles %.1f %%", a->run,
            weft_count_text(a->num_steps, "step").text, 100 * a->spread);
    if (a->load > 0)
        fprintf(out, ", planned at its fullest rank's load of %.4g", a->load);
    fprintf(out, ":\n\n");
    fprintf(out, "                             planned   measured      error\n");
    fprintf(out, "  %-24s %10s %10s %10s\n", "step", time_text(a->planned_us).text,
            time_text(a->measured_us).text, error_text(a->planned_us, a->measured_us).text);
    for (int i = 0; i < a->num_phases; i++) {
        const weft_against_row *row = &a->phases[i];
        const char *name = strcmp(row->name, "step") == 0 ? "optimizer's step" : row->name;
        fprintf(out, "  %-24s %10s %10s %10s\n", name, time_text(row->planned).text,
                time_text(row->measured).text, error_text(row->planned, row->measured).text);
    }
    for (int i = 0; i < a->num_times; i++) {
        const weft_against_row *row = &a->times[i];
        char name[48];
        if (row->planned <= 0 && row->measured <= 0)
            continue;
        snprintf(name, sizeof name, "time in %s", row->name);
        fprintf(out, "  %-24s %10s %10s %10s\n", name, time_text(row->planned).text,
                time_text(row->measured).text, error_text(row->planned, row->measured).text);
    }
    for (int i = 0; i < a->num_purposes; i++) {
        const weft_against_row *row = &a->purposes[i];
        char name[48];
        if (!(row->planned > 0) && !(row->measured > 0))
            continue;
        snprintf(name, sizeof name, "%s, stage %d", row->name, row->stage);
        const weft_counted measured = weft_bytes_text(row->measured);
        if (isnan(row->planned))
            fprintf(out, "  %-24s %10s %10s %10s\n", name, "not planned", measured.text, "-");
        else
            fprintf(out, "  %-24s %10s %10s %10s\n", name, weft_bytes_text(row->planned).text,
                    measured.text, error_text(row->planned, row->measured).text);
    }
}

static void add_number(cJSON *json, const char *key, double value)
{
    weft_plan_add_number(json, key, value);
}

static void add_times(cJSON *json, const char *key, const double us[WEFT_NUM_TIMES])
{
    cJSON *time = cJSON_AddObjectToObject(json, key);
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        add_number(time, weft_time_text(i), us[i] / 1e6);
}

/* What goes up and down, and what the host steps. */
static void add_lanes(cJSON *json, const char *key, const double us[3])
{
    cJSON *lanes = cJSON_AddObjectToObject(json, key);
    add_number(lanes, "up", us[0] / 1e6);
    add_number(lanes, "down", us[1] / 1e6);
    add_number(lanes, "host", us[2] / 1e6);
}

static void add_stage(cJSON *list, const weft_plan *plan, int s)
{
    const weft_plan_stage *stage = &plan->stages[s];
    const weft_footprint *footprint = &stage->footprint;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToArray(list, json);
    add_number(json, "stage", s);
    cJSON *chunks = cJSON_AddArrayToObject(json, "layers");
    for (int c = 0; c < plan->step.outline.layout.num_chunks; c++) {
        int first, end;
        weft_layout_range(&plan->step.outline.layout, s, c, &first, &end);
        cJSON_AddItemToArray(chunks, cJSON_CreateIntArray((const int[]){first, end}, 2));
    }
    add_times(json, "time", stage->us);
    add_number(json, "memory_bytes", (double)footprint->device_bytes);
    cJSON *bytes = cJSON_AddObjectToObject(json, "memory");
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        add_number(bytes, weft_memory_text((weft_memory_purpose)i), (double)footprint->bytes[i]);
    cJSON *modules = cJSON_AddObjectToObject(json, "activations");
    for (int i = 0; i < footprint->num_modules; i++)
        add_number(modules, footprint->modules[i].module, (double)footprint->modules[i].bytes);
    weft_plan_add_parts(json, plan, s);
    if (footprint->num_offloaded == 0)
        return;
    cJSON *offloaded = cJSON_AddObjectToObject(json, "offloaded");
    for (int i = 0; i < footprint->num_offloaded; i++)
        add_number(offloaded, footprint->offloaded[i].module,
                   (double)footprint->offloaded[i].bytes);
    if (bytes_on_host(stage, OF_EXPERTS) > 0)
        add_lanes(json, "experts_time", stage->tier_us);
    if (footprint->file_bytes > 0 && stage->tier_us[3] >= 0) {
        add_number(cJSON_GetObjectItem(json, "experts_time"), "file", stage->tier_us[3] / 1e6);
        add_number(json, "read_bytes", (double)stage->file_read_bytes);
        add_number(json, "written_bytes", (double)stage->file_written_bytes);
    }
    if (bytes_on_host(stage, OF_OPTIMIZER) > 0)
        add_lanes(json, "optimizer_time", stage->stepped_us);
    if (bytes_on_host(stage, OF_ACTIVATIONS) == 0)
        return;
    cJSON *copies = cJSON_AddObjectToObject(json, "offload_time");
    add_number(copies, "out", stage->copies_us[0] / 1e6);
    add_number(copies, "back", stage->copies_us[1] / 1e6);
}

static void add_error(cJSON *json, double planned, double measured, double unit)
{
    add_number(json, "planned", planned / unit);
    add_number(json, "measured", measured / unit);
    add_number(json, "error", weft_against_error(planned, measured));
}

static void add_rows(cJSON *json, const char *key, const weft_against_row *rows, int count,
                     double unit)
{
    cJSON *list = cJSON_AddArrayToObject(json, key);
    for (int i = 0; i < count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(list, row);
        cJSON_AddStringToObject(row, "name", rows[i].name);
        if (rows[i].stage >= 0)
            add_number(row, "stage", rows[i].stage);
        add_error(row, rows[i].planned, rows[i].measured, unit);
    }
}

static void add_against(cJSON *plan, const weft_against *a)
{
    cJSON *json = cJSON_AddObjectToObject(plan, "against");
    cJSON_AddStringToObject(json, "run", a->run);
    add_number(json, "num_steps", a->num_steps);
    add_number(json, "spread", a->spread);
    if (a->load > 0)
        add_number(json, "rank_load", a->load);
    add_error(cJSON_AddObjectToObject(json, "step_time_s"), a->planned_us, a->measured_us, 1e6);
    add_rows(json, "phases_s", a->phases, a->num_phases, 1e6);
    add_rows(json, "time_s", a->times, a->num_times, 1e6);
    add_rows(json, "memory_bytes", a->purposes, a->num_purposes, 1);
}

weft_status weft_print_json(cJSON *json, FILE *out)
{
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the plan");
    fprintf(out, "%s\n", text);
    free(text);
    return WEFT_OK;
}

cJSON *weft_plan_json(const weft_plan *plan, const weft_against *against)
{
    char axes[128];
    cJSON *json = cJSON_CreateObject();
    weft_mesh_print(&plan->mesh, axes, sizeof axes);
    cJSON_AddBoolToObject(json, "fits", plan->fits);
    add_number(json, "step_time_s", plan->step_us / 1e6);
    add_number(json, "tokens_per_s", plan->tokens_per_s);
    add_number(json, "tokens_per_s_per_device", plan->tokens_per_s / plan->mesh.world);
    add_number(json, "model_flops_utilization", plan->model_flops_utilization);
    add_number(json, "memory_bytes", (double)plan->memory_bytes);
    add_number(json, "memory_limit_bytes", (double)plan->memory_limit_bytes);
    add_number(json, "host_memory_bytes", (double)plan->host_memory_bytes);
    add_number(json, "host_memory_limit_bytes", (double)plan->host_limit_bytes);
    if (plan->file_bytes > 0)
        add_number(json, "file_bytes", (double)plan->file_bytes);
    add_number(json, "num_devices", plan->mesh.world);
    cJSON_AddStringToObject(json, "mesh", axes);
    if (plan->mesh.cp > 1)
        cJSON_AddStringToObject(json, "cp_comm_type",
                                weft_context_form_text(plan->mesh.cp_comm_type));
    if (plan->mesh.cp > 1 && plan->mesh.cp_inner > 0)
        cJSON_AddItemToObject(
            json, "hierarchical_context_parallel_sizes",
            cJSON_CreateIntArray(
                (const int[]){plan->mesh.cp_inner, plan->mesh.cp / plan->mesh.cp_inner}, 2));
    if (plan->tier.options.experts != WEFT_TIER_NONE || plan->tier.chosen) {
        cJSON_AddStringToObject(json, "experts", weft_tier_text(plan->tier.options.experts));
        add_number(json, "experts_kept", plan->tier.options.kept);
    }
    if (plan->tier.reason[0])
        cJSON_AddStringToObject(json, "experts_reason", plan->tier.reason);
    if (plan->context.reason[0])
        cJSON_AddStringToObject(json, "cp_comm_type_reason", plan->context.reason);
    cJSON_AddStringToObject(json, "limits", weft_limit_text(plan->limits));
    cJSON_AddBoolToObject(json, "coarse", plan->coarse);
    cJSON_AddStringToObject(json, "source", weft_source_class_text(plan->source));
    add_times(json, "time", plan->us);
    cJSON *stages = cJSON_AddArrayToObject(json, "stages");
    for (int s = 0; s < plan->num_stages; s++)
        add_stage(stages, plan, s);
    if (plan->figures)
        weft_plan_add_figures(json, plan->figures);
    if (against)
        add_against(json, against);
    return json;
}
