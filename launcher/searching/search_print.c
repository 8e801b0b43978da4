#include "launcher/searching/search.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/planning/plan_print.h"
#include "launcher/planning/run_changes.h"
#include "schedule/exchange/exchange.h"
#include "schedule/moe/layer.h"
#include "schedule/pipeline/order.h"

/* --- text ---------------------------------------------------------------------------------- */

/* What beside the mesh makes a plan. */
static void add_modules(const char *what, const weft_string_list *modules, char *out,
                        size_t capacity)
{
    size_t used = strlen(out);
    used += (size_t)snprintf(out + used, capacity - used, ", %s", what);
    for (size_t i = 0; i < modules->count && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%s", i > 0 ? "+" : " ",
                                 modules->values[i]);
}

/* What a plan chose of its MoE layers, where that is not the least; of what was not planned to the
 * end, whether they may reuse memory. */
static void moe_text(const weft_config *c, char *out, size_t capacity)
{
    const weft_schedule_options *p = &c->schedule;
    size_t used = 0;
    out[0] = '\0';
    if (c->model.num_experts == 0)
        return;
    if (p->moe_num_partitions > 0 && p->moe_partition_by == WEFT_MOE_PARTITION_BY_PEERS)
        used =
            (size_t)snprintf(out, capacity, ", n by %lld peers", (long long)p->moe_peer_group_size);
    else if (p->moe_num_partitions > 1)
        used = (size_t)snprintf(out, capacity, ", n %lld%s", (long long)p->moe_num_partitions,
                                p->moe_partition_by == WEFT_MOE_PARTITION_BY_EXPERTS ? " by experts"
                                                                                     : "");
    if (p->moe_memory_reuse == WEFT_NUM_REUSES)
        used += (size_t)snprintf(out + used, capacity - used, ", memory reuse");
    else if (p->moe_memory_reuse != WEFT_REUSE_NONE)
        used += (size_t)snprintf(out + used, capacity - used, ", reuse %s",
                                 weft_reuse_text(p->moe_memory_reuse));
    if (c->parallel.expert_tensor_parallel_size > 1 && p->moe_all_to_all < WEFT_NUM_EXCHANGES)
        used += (size_t)snprintf(out + used, capacity - used, ", %s",
                                 weft_exchange_text(p->moe_all_to_all));
    const int experts = weft_tier_as_ran(&c->tier).experts;
    if (experts == WEFT_TIER_HOST || experts == WEFT_TIER_FILE)
        snprintf(out + used, capacity - used, ", experts in %s",
                 experts == WEFT_TIER_FILE ? "a file" : "host memory");
}

/* The chunks of tensor-parallel products, of a plan that was made to the end. */
static void chunks_text(const weft_parallel_options *p, char *out, size_t capacity)
{
    const weft_int_list *chunks = &p->tp_comm_overlap_chunks;
    const size_t used = strlen(out);
    if (p->tp_comm_overlap && chunks->is_array)
        snprintf(out + used, capacity - used, ", tp in %lld and %lld chunks",
                 (long long)chunks->values[0], (long long)chunks->values[1]);
}

static const char *search_choices_text(const weft_candidate *candidate, const weft_config *c,
                                       char *out, size_t capacity)
{
    const weft_recompute_options *recompute = &c->train.recompute;
    char chunks[24] = "", order[48] = "", moe[128];
    moe_text(c, moe, sizeof moe);
    if (candidate->order > 0)
        snprintf(order, sizeof order, ", order %s", c->parallel.order);
    if (c->parallel.num_virtual_stages_per_pipeline_rank > 1)
        snprintf(chunks, sizeof chunks, " v %" PRId64,
                 c->parallel.num_virtual_stages_per_pipeline_rank);
    snprintf(out, capacity, "b %d, zero %d%s%s%s%s%s%s%s", candidate->micro_batch,
             (int)weft_parallel_sharding(&c->parallel), candidate->pp == 1 ? "" : ", ",
             candidate->pp == 1 ? "" : weft_pipeline_kind_text(c->schedule.pipeline_schedule),
             chunks, candidate->by_work ? ", cut by work" : "", order, moe,
             recompute->granularity != WEFT_RECOMPUTE_FULL ? ""
             : recompute->method == WEFT_RECOMPUTE_BLOCK   ? ", recompute some layers"
                                                           : ", recompute full");
    if (recompute->granularity == WEFT_RECOMPUTE_SELECTIVE)
        add_modules("recompute", &recompute->modules, out, capacity);
    if (c->train.offload.on)
        add_modules("offload", &c->train.offload.modules, out, capacity);
    chunks_text(&c->parallel, out, capacity);
    return out;
}

const char *weft_search_short_text(const weft_search_result *r, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "nothing fits %s",
                                   weft_count_text(r->world, "device").text);
    for (int i = 0; i < r->num_misses && i < 3 && used < capacity; i++) {
        const weft_missed *m = &r->misses[i];
        char choices[WEFT_SEARCH_CHOICES_BYTES];
        search_choices_text(&m->candidate, &m->config, choices, sizeof choices);
        const size_t bytes = (size_t)snprintf(
            out + used, capacity - used, "%s %s (%s) lacks %s of%s %s",
            i > 0 ? ";" : "; nearest:", m->mesh, choices,
            weft_bytes_text((double)m->short_by_bytes).text, m->of_host ? " the host's" : "",
            weft_bytes_text((double)m->memory_limit_bytes).text);
        if (used + bytes >= capacity) { /* none is cut short */
            out[used] = '\0';
            break;
        }
        used += bytes;
    }
    return out;
}

/* --- reports -------------------------------------------------------------------------------- */

static weft_status report_override(void *context, const char *section, const weft_key *row,
                                   const char *before, const char *after)
{
    char key[96];
    (void)before;
    snprintf(key, sizeof key, "%s.%s", section, row->key);
    if (row->searched)
        weft_report_raw(context, key, after);
    return WEFT_OK;
}

/* A plan's mesh and what else makes it; in JSON what differs from the config searched from. */
static weft_status report_mesh(weft_report *r, const char *mesh, const weft_candidate *candidate,
                               const weft_config *config, const weft_config *from)
{
    char choices[WEFT_SEARCH_CHOICES_BYTES];
    weft_report_cell(r, "mesh", "%s; %s", mesh,
                     search_choices_text(candidate, config, choices, sizeof choices));
    weft_report_text(r, "mesh", NULL, mesh);
    if (!from)
        return WEFT_OK;
    weft_report_open(r, WEFT_REPORT_OBJECT, "overrides");
    WEFT_TRY(weft_run_compare(from, config, report_override, r));
    weft_report_close(r);
    return WEFT_OK;
}

static void report_costs(weft_report *r, const weft_found *f)
{
    const weft_plan_costs *c = &f->costs;
    if (!isfinite(c->hour) && !isfinite(c->joules_per_token))
        return;
    weft_report_open(r, WEFT_REPORT_OBJECT, "cost");
    weft_report_value(r, "hour", c->hour);
    weft_report_value(r, "billion_tokens", c->billion_tokens);
    weft_report_value(r, "joules_per_token", c->joules_per_token);
    weft_report_close(r);
}

static bool is_tight(const weft_found *f)
{
    return weft_plan_is_tight(f->memory_bytes, f->memory_limit_bytes);
}

static void report_memory(weft_report *r, const weft_found *f)
{
    weft_report_cell(r, "memory", "%s%s", weft_bytes_text((double)f->memory_bytes).text,
                     is_tight(f) ? ", tight" : "");
}

static void explain_tight(weft_report *r)
{
    weft_report_line(r, "tight: it fits with no margin; libraries may take the rest");
}

static weft_status report_plan(weft_report *r, const weft_found *f, int place, int num_devices,
                               const weft_config *from)
{
    const int experts = weft_tier_as_ran(&f->settled.tier).experts;
    weft_report_record(r);
    weft_report_row(r, NULL, "#", WEFT_UNIT_COUNT, place);
    weft_report_row(r, "step_time_s", "step", WEFT_UNIT_SECONDS, f->step_us / 1e6);
    if (f->range_us[1] > 0) {
        weft_report_cell(r, "range", "%s to %s", weft_seconds_text(f->range_us[0] / 1e6).text,
                         weft_seconds_text(f->range_us[1] / 1e6).text);
        weft_report_numbers(r, "step_time_range_s",
                            (const double[]){f->range_us[0] / 1e6, f->range_us[1] / 1e6}, 2);
    }
    weft_report_row(r, "tokens_per_s", "tokens/s", WEFT_UNIT_COUNT, f->tokens_per_s);
    weft_report_value(r, "tokens_per_s_per_device", f->tokens_per_s / num_devices);
    weft_report_row(r, "model_flops_utilization", "MFU", WEFT_UNIT_SHARE,
                    f->model_flops_utilization);
    report_memory(r, f);
    weft_report_value(r, "memory_bytes", f->memory_bytes);
    weft_report_value(r, "memory_limit_bytes", f->memory_limit_bytes);
    weft_report_bool(r, "tight", is_tight(f));
    weft_report_text(r, "limits", "most of it", weft_limit_texts[(int)f->limits]);
    WEFT_TRY(report_mesh(r, f->mesh, &f->candidate, &f->settled, from));
    if (f->settled.model.num_experts > 0 && experts != WEFT_TIER_AUTO)
        weft_report_text(r, "experts", NULL,
                         experts == WEFT_TIER_FILE   ? "file"
                         : experts == WEFT_TIER_HOST ? "host"
                                                     : "none");
    if (f->file_is_free)
        weft_report_bool(r, "file_is_free", true);
    weft_report_text(r, "source", NULL, weft_source_class_text(f->source));
    report_costs(r, f);
    weft_plan_report_times(r, f->us);
    return WEFT_OK;
}

static weft_status report_miss(weft_report *r, const weft_missed *m, const weft_config *from)
{
    weft_report_record(r);
    weft_report_bad(r);
    weft_report_cell(r, "does not fit by", "%s%s", weft_bytes_text((double)m->short_by_bytes).text,
                     m->of_host ? " of the host" : "");
    weft_report_text(r, "would_fit", "would fit with", m->remedy);
    weft_report_text(r, "reason", NULL, m->of_host ? "host_memory" : "memory");
    weft_report_value(r, "memory_bytes", m->memory_bytes);
    weft_report_value(r, "memory_limit_bytes", m->memory_limit_bytes);
    weft_report_value(r, "short_by_bytes", m->short_by_bytes);
    return report_mesh(r, m->mesh, &m->candidate, &m->config, from);
}

/* For people the one line that says how far it came. */
static void report_nothing(weft_report *r, const weft_search_result *result)
{
    weft_report_line(r, "Stopped before a plan was priced: %s looked at, %zu left.",
                     weft_count_text((long long)result->counts.considered, "candidate").text,
                     result->num_open);
}

static void report_counts(weft_report *r, const weft_search_result *result)
{
    const weft_search_counts *c = &result->counts;
    const struct {
        const char *key;
        size_t count;
    } counts[] = {{"considered", c->considered}, {"illegal", c->illegal}, {"memory", c->memory},
                  {"bound", c->bound},           {"same", c->repeated},   {"priced", c->priced}};
    if (result->is_stopped && result->num_plans == 0)
        report_nothing(r, result);
    else if (result->is_stopped)
        weft_report_line(r, "Stopped before its end: the best so far. %s may be faster.",
                         weft_count_text((long long)result->num_open, "candidate").text);
    if (!result->is_stopped || result->num_plans > 0)
        weft_report_line(r,
                         "%zu candidates: %zu refused by a rule, %zu do not fit, %zu cannot be "
                         "faster, %zu the same as another, %zu priced",
                         c->considered, c->illegal, c->memory, c->bound, c->repeated, c->priced);
    weft_report_open(r, WEFT_REPORT_OBJECT, "counts");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        weft_report_value(r, counts[i].key, counts[i].count);
    weft_report_close(r);
}

static weft_status report_result(weft_report *r, const weft_search_result *result,
                                 const weft_config *from)
{
    bool is_free = false, has_tight = false;
    weft_report_value(r, "num_nodes", result->num_devices / result->cluster->ranks_per_node);
    weft_report_value(r, "num_devices", result->num_devices);
    weft_report_value(r, "num_devices_used", result->world);
    weft_report_bool(r, "complete", !result->is_stopped);
    if (result->unused) {
        weft_report_text(r, "devices_unused_reason", NULL, result->unused);
        weft_report_line(r, "%d of %d devices are used: %s", result->world, result->num_devices,
                         result->unused);
    }
    weft_report_open(r, WEFT_REPORT_TABLE, "plans");
    for (int i = 0; i < result->num_plans; i++) {
        WEFT_TRY(report_plan(r, &result->plans[i], i + 1, result->world, from));
        is_free |= result->plans[i].file_is_free;
        has_tight |= is_tight(&result->plans[i]);
    }
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_TABLE, "rejected");
    for (int i = 0; i < result->num_misses; i++)
        WEFT_TRY(report_miss(r, &result->misses[i], from));
    weft_report_close(r);
    if (has_tight)
        explain_tight(r);
    if (is_free)
        weft_report_line(r, "experts in a file: reads and writes take no time here: "
                            "storage.read or storage.write is not known");
    if (result->lacking) {
        weft_report_text(r, "left_out_reason", NULL, result->lacking);
        weft_report_line(r, "%s", result->lacking);
    }
    report_counts(r, result);
    return WEFT_OK;
}

weft_status weft_search_report(weft_report *r, const weft_search_result *result,
                               const weft_config *config)
{
    return report_result(r, result, r->form == WEFT_REPORT_JSON ? config : NULL);
}

static weft_status report_scale(weft_report *r, const weft_search_result *result)
{
    const weft_found *best = result->num_plans > 0 ? result->plans : NULL;
    weft_report_record(r);
    weft_report_row(r, NULL, "nodes", WEFT_UNIT_COUNT,
                    result->num_devices / result->cluster->ranks_per_node);
    weft_report_row(r, NULL, "devices", WEFT_UNIT_COUNT, result->num_devices);
    weft_report_row(r, NULL, "used", WEFT_UNIT_COUNT, result->world);
    const double rate = best ? best->tokens_per_s : (double)NAN;
    weft_report_row(r, NULL, "step", WEFT_UNIT_SECONDS, best ? best->step_us / 1e6 : rate);
    weft_report_row(r, NULL, "tokens/s", WEFT_UNIT_COUNT, rate);
    weft_report_row(r, NULL, "a device", WEFT_UNIT_COUNT, rate / result->world);
    if (best)
        report_memory(r, best);
    if (best)
        return report_mesh(r, best->mesh, &best->candidate, &best->settled, NULL);
    weft_report_cell(r, "mesh", "%s", result->is_stopped ? "stopped" : "nothing fits");
    return WEFT_OK;
}

weft_status weft_search_report_scaling(weft_report *r, const weft_search_result *results, int count,
                                       const weft_config *config)
{
    bool has_tight = false;
    weft_report_open(r, WEFT_REPORT_GROUP, "scaling");
    for (int i = 0; i < count && r->form == WEFT_REPORT_JSON; i++) {
        weft_report_record(r);
        WEFT_TRY(weft_search_report(r, &results[i], config));
    }
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < count && r->form != WEFT_REPORT_JSON; i++)
        WEFT_TRY(report_scale(r, &results[i]));
    weft_report_close(r);
    for (int i = 0; i < count; i++)
        has_tight |= results[i].num_plans > 0 && is_tight(results[i].plans);
    if (has_tight)
        explain_tight(r);
    for (int i = 0; i < count; i++) {
        const weft_search_result *result = &results[i];
        if (result->is_stopped)
            weft_report_line(
                r, "Stopped before its end: of the last row the best so far, and no more.");
        if (result->unused)
            weft_report_line(
                r, "%s: %d of %d devices are used: %s",
                weft_count_text(result->num_devices / result->cluster->ranks_per_node, "node").text,
                result->world, result->num_devices, result->unused);
    }
    return WEFT_OK;
}

/* --- the winner's config ------------------------------------------------------------------- */

weft_status weft_search_emit(const weft_search_result *r, const weft_config_source *source,
                             const char *path, weft_arena *arena)
{
    weft_config config;
    const char *text;
    WEFT_TRY(weft_search_settle(&r->plans[0], source, r->cluster, arena, &config));
    WEFT_TRY(weft_config_text(&config, arena, &text));
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    fputs(text, file.file); /* whose errors closing finds */
    return weft_new_file_close(&file, WEFT_OK);
}
