#include "launcher/planning/plan_print.h"

#include <math.h>
#include <string.h>

#include "core/text.h"
#include "layers/outline/footprint.h"
#include "schedule/context.h"

/* --- published figures ---------------------------------------------------------------------- */

/* What published training runs reached of a GPU's peak: said beside a plan that promises more, and
 * in no price. */
typedef struct published_best {
    const char *device; /* how the names of such devices begin */
    bool experts;       /* of models with experts; else of dense ones */
    double share;       /* of the peak of 16 bits, attention counted whole */
    const char *where;
} published_best;

static const published_best bests[] = {
    {"A100", false, 0.705, "Llama 13B, arXiv 2311.05610, 2023"},
    {"H100", false, 0.52, "dense models in 16 bits; Megatron-LM's README, 2024, has 49 %"},
    {"H100", true, 0.493, "Mixtral 8x22B, arXiv 2504.14960, 2025"},
    {"B200", true, 0.166, "GPT-OSS 120B, Megatron-Bridge, performance summary 26.02.01, 2026"},
    {"H200", false, 0.52, "on H100, which computes as fast"},
    {"H200", true, 0.493, "Mixtral 8x22B on H100, arXiv 2504.14960, 2025"},
};

static bool has_experts(const weft_plan *plan)
{
    const weft_outline *outline = &plan->step.outline;
    bool any = false;
    for (int i = 0; i < outline->num_layers; i++)
        any |= weft_description_has_experts(&outline->layers[i].description);
    return any;
}

/* The best that is known of the plan's device, kind of model and precision; NULL: none is. Static.
 */
static const published_best *published_best_of(const weft_plan *plan, const weft_cluster *cluster)
{
    const char *name = cluster->hardware.device_name;
    const bool experts = has_experts(plan);
    if (cluster->num_groups > 0 || weft_dtype_bytes(plan->step.outline.shape.dtype) != 2)
        return NULL;
    for (size_t i = 0; i < sizeof bests / sizeof *bests; i++)
        if (bests[i].experts == experts &&
            strncmp(name, bests[i].device, strlen(bests[i].device)) == 0)
            return &bests[i];
    return NULL;
}

/* Whether the plan promises more. */
static bool published_is_below(const weft_plan *plan, const weft_cluster *cluster)
{
    const published_best *best = published_best_of(plan, cluster);
    return best && isfinite(plan->model_flops_utilization) &&
           plan->model_flops_utilization > best->share;
}

/* --- the plan -------------------------------------------------------------------------------- */

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

void weft_plan_costs_report(weft_report *r, const weft_plan_figures *f)
{
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
}

void weft_plan_figures_report(weft_report *r, const weft_plan_figures *f)
{
    const double range_s[] = {f->range_us[0] / 1e6, f->range_us[1] / 1e6};
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
    if (f->save_lacks)
        weft_report_cell(r, "best saved every", "unknown: the cluster file lacks %s",
                         f->save_lacks);
    report_known(r, "goodput", "of the time is work that lasts", WEFT_UNIT_SHARE, f->goodput);
    weft_report_close(r);
    weft_plan_costs_report(r, f);
    weft_report_close(r);
    report_missing(r, f);
    weft_report_open(r, WEFT_REPORT_GROUP, "sources");
    for (int i = 0; i < f->num_inputs; i++)
        weft_plan_report_source(r, f->inputs[i].what, f->inputs[i].class_, f->inputs[i].where,
                                f->inputs[i].spread);
    weft_report_close(r);
}

/* "parts", the memory of embedding, decoder and head, of a stage. */
static void plan_report_parts(weft_report *r, const weft_plan *plan, int stage)
{
    static const weft_memory_purpose purposes[] = {WEFT_MEMORY_WEIGHTS, WEFT_MEMORY_GRADIENTS,
                                                   WEFT_MEMORY_OPTIMIZER, WEFT_MEMORY_ACTIVATIONS};
    weft_part_bytes parts[WEFT_NUM_MODEL_PARTS];
    const weft_step *step = weft_plan_memory_step(plan);
    weft_footprint_parts(&step->outline, &plan->mesh, stage, &step->programs[stage],
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

static weft_counted time_text(double us)
{
    return weft_seconds_text(us / 1e6);
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

const char *weft_plan_mesh_text(const weft_plan *plan, char *out, size_t capacity)
{
    const weft_pipeline_shape *shape = &plan->step.shape;
    const bool is_file = shape->orders && shape->kind != WEFT_PIPELINE_AUTO;
    weft_mesh_print(&plan->mesh, out, capacity);
    size_t used = strlen(out);
    if (plan->mesh.pp > 1)
        used += (size_t)snprintf(out + used, capacity - used, ", schedule %s",
                                 is_file ? "of a file" : weft_pipeline_kind_text(shape->kind));
    if (plan->mesh.pp > 1 && shape->num_chunks > 1)
        snprintf(out + used, capacity - used, ", %d virtual stages a rank", shape->num_chunks);
    return out;
}

const char *weft_plan_short_text(const weft_plan *plan, char *out, size_t capacity)
{
    char purposes[256];
    const weft_footprint *fullest = &plan->stages[plan->fullest].footprint;
    const bool on_device = !weft_plan_lacks_memory(plan);
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
             "does not fit: a rank of stage %d needs %s, %s more than the %s there are (%s)%s",
             plan->fullest, weft_bytes_text((double)plan->memory_bytes).text,
             weft_bytes_text((double)(plan->memory_bytes - plan->memory_limit_bytes)).text,
             weft_bytes_text((double)plan->memory_limit_bytes).text,
             weft_footprint_text(fullest, purposes, sizeof purposes), plan->advice);
    return out;
}

/* Of a device's memory that is left, this share may be taken by what no plan counts: fragments,
 * libraries' workspaces, other programs. */
#define LEAST_MARGIN 0.05

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

/* A plan promises no more than what stands behind it. */
static void print_range(const weft_plan *plan, FILE *out)
{
    const weft_plan_figures *f = plan->figures;
    bool of_classes[WEFT_NUM_SOURCE_CLASSES] = {false};
    for (int i = 0; f && i < f->num_inputs; i++)
        of_classes[f->inputs[i].class_] = true;
    if (!f)
        return;
    fprintf(out, "   (%s to %s: ", time_text(f->range_us[0]).text, time_text(f->range_us[1]).text);
    if (of_classes[WEFT_SOURCE_MEASURED] || of_classes[WEFT_SOURCE_SCALED])
        fprintf(out, "by measurements of this machine)");
    else
        fprintf(out, "by data sheets%s; nothing was measured here)",
                of_classes[WEFT_SOURCE_PUBLISHED] ? " and published measurements" : "");
}

/* What no published run has done. */
static void print_published(const weft_plan *plan, const weft_cluster *cluster, FILE *out)
{
    const published_best *best = published_best_of(plan, cluster);
    if (published_is_below(plan, cluster))
        fprintf(out, "MFU above the best published of %s models on %s, %.3g %% (%s): expect less\n",
                best->experts ? "MoE" : "dense", best->device, 100 * best->share, best->where);
}

bool weft_plan_is_tight(uint64_t memory_bytes, uint64_t limit_bytes)
{
    return limit_bytes > 0 && (double)memory_bytes > (1 - LEAST_MARGIN) * (double)limit_bytes;
}

static bool is_tight(const weft_plan *plan)
{
    return weft_plan_is_tight(plan->memory_bytes, plan->memory_limit_bytes);
}

static void print_head(const weft_plan *plan, const weft_cluster *cluster, FILE *out)
{
    char mesh[192];
    fprintf(out, "%s on %s: %s\n", weft_count_text(plan->mesh.world, "device").text, cluster->name,
            weft_plan_mesh_text(plan, mesh, sizeof mesh));
    fprintf(out, "step %s", time_text(plan->step_us).text);
    print_range(plan, out);
    fprintf(out, "   %s tokens/s   MFU %s   most of it: %s\n",
            weft_unit_text(WEFT_UNIT_COUNT, plan->tokens_per_s).text,
            weft_unit_text(WEFT_UNIT_SHARE, plan->model_flops_utilization).text,
            weft_limit_texts[plan->limits]);
    if (plan->num_idle > 0)
        fprintf(out, "no dp is given, so %d is planned: %s of the cluster idle\n", plan->mesh.dp,
                weft_count_text(plan->num_idle, "device").text);
    if (plan->dropped_ep > 0)
        fprintf(out,
                "--mesh has no ep: the config's expert_model_parallel_size of %lld does not "
                "count; ep=%lld would keep it\n",
                (long long)plan->dropped_ep, (long long)plan->dropped_ep);
    if (plan->ramp[0])
        fprintf(out, "a step %s\n", plan->ramp);
    print_utilization(plan, out);
    print_published(plan, cluster, out);
    fprintf(out, "memory %s of the fullest rank", weft_bytes_text((double)plan->memory_bytes).text);
    if (plan->num_stages > 1)
        fprintf(out, " (stage %d)", plan->fullest);
    if (plan->memory_limit_bytes > 0)
        fprintf(out, ", of %s", weft_bytes_text((double)plan->memory_limit_bytes).text);
    if (plan->fits && is_tight(plan))
        fprintf(out, ": %.3g %%, which fits with no margin; libraries may take the rest",
                100 * (double)plan->memory_bytes / (double)plan->memory_limit_bytes);
    if (plan->mesh_choice.reason[0])
        fprintf(out, "\nattention over %d context-parallel ranks: %s", plan->mesh.cp,
                plan->mesh_choice.reason);
    fprintf(out, "\n");
    if (plan->tier.reason[0])
        fprintf(out, "%s\n", plan->tier.reason);
}

/* --- rows ---------------------------------------------------------------------------------- */

void weft_plan_report_times(weft_report *r, const double us[WEFT_NUM_TIMES])
{
    weft_report_open(r, WEFT_REPORT_OBJECT, "time");
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        weft_report_value(r, weft_time_texts[i], us[i] / 1e6);
    weft_report_close(r);
}

static void report_shares(weft_report *r, const weft_plan *plan)
{
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < WEFT_NUM_TIMES; i++) {
        if (!(plan->us[i] > 0))
            continue;
        weft_report_record(r);
        weft_report_cell(r, "time in", "%s", weft_time_texts[i]);
        weft_report_row(r, NULL, "takes", WEFT_UNIT_SECONDS, plan->us[i] / 1e6);
        weft_report_row(r, NULL, "of the step", WEFT_UNIT_SHARE, plan->us[i] / plan->step_us);
    }
    weft_report_close(r);
    weft_report_line(r, "%s", "");
}

/* What goes up and down, and what the host steps; of experts in a file what is read and written. */
static void report_lanes(weft_report *r, const char *key, const double us[3], double file_us)
{
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_row(r, "up", "up", WEFT_UNIT_SECONDS, us[0] / 1e6);
    weft_report_row(r, "down", "down", WEFT_UNIT_SECONDS, us[1] / 1e6);
    weft_report_row(r, "host", "stepped", WEFT_UNIT_SECONDS, us[2] / 1e6);
    if (file_us >= 0)
        weft_report_row(r, "file", "read and written", WEFT_UNIT_SECONDS, file_us / 1e6);
    weft_report_close(r);
}

static void report_copies(weft_report *r, const double us[2])
{
    weft_report_open(r, WEFT_REPORT_OBJECT, "offload_time");
    weft_report_row(r, "back", "up", WEFT_UNIT_SECONDS, us[1] / 1e6);
    weft_report_row(r, "out", "down", WEFT_UNIT_SECONDS, us[0] / 1e6);
    weft_report_close(r);
}

/* Of one holder; in JSON the times alone, which a stage has under a key each. */
static void report_held(weft_report *r, const weft_plan_stage *stage, int holder)
{
    const uint64_t bytes = bytes_on_host(stage, holder), file = stage->footprint.file_bytes;
    if (bytes == 0)
        return;
    weft_report_row(r, NULL, "memory", WEFT_UNIT_BYTES, bytes);
    if (holder == OF_ACTIVATIONS) {
        report_copies(r, stage->copies_us);
    } else if (holder == OF_OPTIMIZER) {
        report_lanes(r, "optimizer_time", stage->stepped_us, -1);
    } else {
        report_lanes(r, "experts_time", stage->tier_us, file > 0 ? stage->tier_us[3] : -1);
        if (file > 0)
            weft_report_row(r, NULL, "in a file", WEFT_UNIT_BYTES, file);
    }
}

/* For people: what each stage's host memory holds, and its times in a step. */
static void report_hosts(weft_report *r, const weft_plan *plan)
{
    static const char *const holders[] = {"experts", "optimizer", "activations"};
    bool is_free = false;
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int s = 0; s < plan->num_stages && r->form != WEFT_REPORT_JSON; s++)
        for (int holder = 0; holder <= OF_ACTIVATIONS; holder++) {
            const weft_plan_stage *stage = &plan->stages[s];
            if (bytes_on_host(stage, holder) == 0)
                continue;
            weft_report_record(r);
            weft_report_row(r, NULL, "stage", WEFT_UNIT_INDEX, s);
            weft_report_cell(r, "in host memory", "%s", holders[holder]);
            report_held(r, stage, holder);
            is_free |= stage->footprint.file_bytes > 0 && stage->tier_us[3] < 0;
        }
    weft_report_close(r);
    if (is_free)
        weft_report_line(r, "experts in a file: reads and writes take no time here: "
                            "storage.read or storage.write is not known");
}

static void report_modules(weft_report *r, const char *key, const weft_module_bytes *modules,
                           int count)
{
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    for (int i = 0; i < count; i++)
        weft_report_value(r, modules[i].module, modules[i].bytes);
    weft_report_close(r);
}

static void report_offloaded(weft_report *r, const weft_plan_stage *stage)
{
    report_modules(r, "offloaded", stage->footprint.offloaded, stage->footprint.num_offloaded);
    if (stage->footprint.file_bytes > 0 && stage->tier_us[3] >= 0) {
        weft_report_value(r, "read_bytes", stage->file_read_bytes);
        weft_report_value(r, "written_bytes", stage->file_written_bytes);
    }
    for (int holder = 0; holder <= OF_ACTIVATIONS && r->form == WEFT_REPORT_JSON; holder++)
        report_held(r, stage, holder);
}

/* From and to which of the layout's layers each chunk is. */
static void report_layers(weft_report *r, const weft_layout *layout, int stage)
{
    if (r->form != WEFT_REPORT_JSON)
        return;
    weft_json_open_flat(&r->json, "layers", '[');
    for (int c = 0; c < layout->num_chunks; c++) {
        int first, end;
        weft_layout_range(layout, stage, c, &first, &end);
        weft_json_numbers(&r->json, NULL, (const double[]){first, end}, 2);
    }
    weft_json_close(&r->json);
}

static void report_stage(weft_report *r, const weft_plan *plan, int s)
{
    const weft_plan_stage *stage = &plan->stages[s];
    const weft_footprint *footprint = &stage->footprint;
    char layers[64];
    layers_text(&plan->step.outline.layout, s, layers);
    weft_report_record(r);
    weft_report_row(r, "stage", "stage", WEFT_UNIT_INDEX, s);
    weft_report_cell(r, "layers", "%s", layers);
    report_layers(r, &plan->step.outline.layout, s);
    weft_report_row(r, NULL, "compute", WEFT_UNIT_SECONDS, stage->us[WEFT_TIME_COMPUTE] / 1e6);
    weft_report_row(r, NULL, "bubble", WEFT_UNIT_SECONDS, stage->us[WEFT_TIME_BUBBLE] / 1e6);
    weft_plan_report_times(r, stage->us);
    weft_report_row(r, "memory_bytes", "memory", WEFT_UNIT_BYTES, footprint->device_bytes);
    weft_report_open(r, WEFT_REPORT_OBJECT, "memory");
    for (int i = 0; i < WEFT_NUM_MEMORY_PURPOSES; i++)
        weft_report_value(r, weft_memory_text((weft_memory_purpose)i), footprint->bytes[i]);
    weft_report_close(r);
    report_modules(r, "activations", footprint->modules, footprint->num_modules);
    plan_report_parts(r, plan, s);
    if (footprint->num_offloaded > 0)
        report_offloaded(r, stage);
}

/* How layers run, as far as that was a choice. */
static void report_choices(weft_report *r, const weft_plan *plan)
{
    const weft_mesh *mesh = &plan->mesh;
    if (mesh->attention_chunks > 1 || mesh->mlp_chunks > 1)
        weft_report_numbers(r, "tp_comm_overlap_chunks",
                            (const double[]){mesh->attention_chunks, mesh->mlp_chunks}, 2);
    if (mesh->cp > 1)
        weft_report_text(r, "cp_comm_type", NULL, weft_context_form_text(mesh->cp_comm_type));
    if (mesh->cp > 1 && mesh->cp_inner > 0)
        weft_report_numbers(r, "hierarchical_context_parallel_sizes",
                            (const double[]){mesh->cp_inner, mesh->cp / mesh->cp_inner}, 2);
    if (plan->tier.options.experts != WEFT_TIER_NONE || plan->tier.chosen) {
        weft_report_text(r, "experts", NULL, weft_tier_text(plan->tier.options.experts));
        weft_report_value(r, "experts_kept", plan->tier.options.kept);
    }
    if (plan->tier.reason[0])
        weft_report_text(r, "experts_reason", NULL, plan->tier.reason);
    if (plan->mesh_choice.reason[0])
        weft_report_text(r, "cp_comm_type_reason", NULL, plan->mesh_choice.reason);
}

static void report_head(weft_report *r, const weft_plan *plan, const weft_cluster *cluster)
{
    const published_best *best = published_best_of(plan, cluster);
    char axes[128];
    weft_mesh_print(&plan->mesh, axes, sizeof axes);
    weft_report_bool(r, "fits", plan->fits);
    weft_report_bool(r, "tight", is_tight(plan));
    weft_report_value(r, "step_time_s", plan->step_us / 1e6);
    weft_report_value(r, "tokens_per_s", plan->tokens_per_s);
    weft_report_value(r, "tokens_per_s_per_device", plan->tokens_per_s / plan->mesh.world);
    weft_report_value(r, "model_flops_utilization", plan->model_flops_utilization);
    weft_report_value(r, "published_utilization", best ? best->share : (double)NAN);
    weft_report_value(r, "memory_bytes", plan->memory_bytes);
    weft_report_value(r, "memory_limit_bytes", plan->memory_limit_bytes);
    weft_report_value(r, "host_memory_bytes", plan->host_memory_bytes);
    weft_report_value(r, "host_memory_limit_bytes", plan->host_limit_bytes);
    if (plan->file_bytes > 0)
        weft_report_value(r, "file_bytes", plan->file_bytes);
    weft_report_value(r, "num_devices", plan->mesh.world);
    weft_report_value(r, "num_devices_idle", plan->num_idle);
    weft_report_text(r, "mesh", NULL, axes);
    if (plan->ramp[0])
        weft_report_text(r, "ramp", NULL, plan->ramp);
    report_choices(r, plan);
    weft_report_text(r, "limits", NULL, weft_limit_texts[plan->limits]);
    weft_report_bool(r, "coarse", plan->coarse);
    weft_report_text(r, "source", NULL, weft_source_class_text(plan->source));
    weft_plan_report_times(r, plan->us);
}

void weft_plan_report(weft_report *r, const weft_plan *plan, const weft_cluster *cluster)
{
    FILE *out = weft_report_stream(r, WEFT_REPORT_TEXT);
    if (out)
        print_head(plan, cluster, out);
    report_head(r, plan, cluster);
    if (plan->figures)
        weft_plan_figures_report(r, plan->figures);
    weft_report_line(r, "%s", "");
    report_shares(r, plan);
    weft_report_open(r, WEFT_REPORT_TABLE, "stages");
    for (int s = 0; s < plan->num_stages; s++)
        report_stage(r, plan, s);
    weft_report_close(r);
    report_hosts(r, plan);
    weft_report_line(r, "\nThe worst of the numbers behind it is %s%s.",
                     weft_source_class_text(plan->source),
                     plan->coarse ? "; a layer gives only sums (coarse)" : "");
}

/* --- beside a run -------------------------------------------------------------------------- */

static void report_error(weft_report *r, double planned, double measured, weft_unit unit)
{
    weft_report_row(r, "planned", "planned", unit, planned);
    weft_report_row(r, "measured", "measured", unit, measured);
    weft_report_row(r, "error", "error", WEFT_UNIT_CHANGE, weft_against_error(planned, measured));
}

/* For people without what is neither planned nor measured. */
static void report_rows(weft_report *r, const char *key, const char *title,
                        const weft_against_row *rows, int count, weft_unit unit)
{
    const double scale = unit == WEFT_UNIT_SECONDS ? 1e6 : 1;
    weft_report_open(r, WEFT_REPORT_TABLE, key);
    for (int i = 0; i < count; i++) {
        const weft_against_row *row = &rows[i];
        if (r->form != WEFT_REPORT_JSON && !(row->planned > 0) && !(row->measured > 0))
            continue;
        weft_report_record(r);
        weft_report_text(r, "name", NULL, row->name);
        if (row->stage >= 0) {
            weft_report_cell(r, title, "%s, stage %d", row->name, row->stage);
            weft_report_value(r, "stage", row->stage);
        } else {
            weft_report_cell(r, title, "%s",
                             strcmp(row->name, "step") == 0 ? "optimizer's step" : row->name);
        }
        report_error(r, row->planned / scale, row->measured / scale, unit);
    }
    weft_report_close(r);
    weft_report_line(r, "%s", "");
}

void weft_against_report(weft_report *r, const weft_against *a)
{
    char load[80] = "";
    if (a->load > 0)
        snprintf(load, sizeof load, ", planned at its fullest rank's load of %.4g", a->load);
    weft_report_line(r, "\n%s: %s after its warm-up, half of them between %s and %s%s", a->run,
                     weft_count_text(a->num_steps, "step").text, time_text(a->low_us).text,
                     time_text(a->high_us).text, load);
    weft_report_line(
        r, "  a step: %s planned, %s measured (the median of these), error %s",
        time_text(a->planned_us).text, time_text(a->measured_us).text,
        weft_unit_text(WEFT_UNIT_CHANGE, weft_against_error(a->planned_us, a->measured_us)).text);
    if (a->num_times > 0)
        weft_report_line(
            r, "  step %lld, whose timeline was kept: %s planned, %s measured, error %s; of it\n",
            (long long)a->traced_step, time_text(a->planned_us).text, time_text(a->traced_us).text,
            weft_unit_text(WEFT_UNIT_CHANGE, weft_against_error(a->planned_us, a->traced_us)).text);
    weft_report_open(r, WEFT_REPORT_OBJECT, "against");
    weft_report_text(r, "run", NULL, a->run);
    weft_report_value(r, "num_steps", a->num_steps);
    weft_report_value(r, "spread", a->spread);
    if (a->num_times > 0) {
        weft_report_value(r, "traced_step", (double)a->traced_step);
        weft_report_value(r, "traced_step_time_s", a->traced_us / 1e6);
    }
    if (a->load > 0)
        weft_report_value(r, "rank_load", a->load);
    weft_report_open(r, WEFT_REPORT_OBJECT, "step_time_s");
    report_error(r, a->planned_us / 1e6, a->measured_us / 1e6, WEFT_UNIT_SECONDS);
    weft_report_close(r);
    report_rows(r, "phases_s", "phase", a->phases, a->num_phases, WEFT_UNIT_SECONDS);
    report_rows(r, "time_s", "time in", a->times, a->num_times, WEFT_UNIT_SECONDS);
    report_rows(r, "memory_bytes", "memory", a->purposes, a->num_purposes, WEFT_UNIT_BYTES);
    weft_report_close(r);
}
