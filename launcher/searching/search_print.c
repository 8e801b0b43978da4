#include "launcher/searching/search_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/text.h"
#include "launcher/planning/plan_print.h"
#include "schedule/exchange.h"
#include "schedule/moe_layer.h"

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

const char *weft_search_choices_text(const weft_candidate *candidate, const weft_config *c,
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
    snprintf(out, capacity, "b %d, zero %d%s%s%s%s%s%s", candidate->micro_batch,
             (int)weft_parallel_sharding(&c->parallel),
             candidate->pp == 1                                          ? ""
             : c->schedule.pipeline_schedule == (int)WEFT_PIPELINE_GPIPE ? ", gpipe"
                                                                         : ", 1f1b",
             chunks, candidate->by_work ? ", cut by work" : "", order, moe,
             recompute->granularity != WEFT_RECOMPUTE_FULL ? ""
             : recompute->method == WEFT_RECOMPUTE_BLOCK   ? ", recompute some layers"
                                                           : ", recompute full");
    if (recompute->granularity == WEFT_RECOMPUTE_SELECTIVE)
        add_modules("recompute", &recompute->modules, out, capacity);
    if (c->train.offload.on)
        add_modules("offload", &c->train.offload.modules, out, capacity);
    return out;
}

static const char *seconds_text(double us, char out[32])
{
    snprintf(out, 32, "%s", weft_time_text_of(us).text);
    return out;
}

static void print_counts(const weft_search_result *r, FILE *out)
{
    const weft_search_counts *c = &r->counts;
    if (r->is_stopped)
        fprintf(out, "Stopped before its end: the best so far. %s may be faster.\n",
                weft_count_text((long long)r->num_open, "candidate").text);
    fprintf(out,
            "%zu candidates: %zu refused by a rule, %zu do not fit, %zu cannot be faster, %zu the "
            "same as another, %zu priced\n",
            c->considered, c->illegal, c->memory, c->bound, c->repeated, c->priced);
}

void weft_search_print(const weft_search_result *r, FILE *out)
{
    char choices[WEFT_SEARCH_CHOICES_BYTES], step[32];
    if (r->unused)
        fprintf(out, "%d of %d devices are used: %s\n", r->world, r->num_devices, r->unused);
    if (r->num_plans > 0)
        fprintf(out, "  #       step     tokens/s   MFU      memory  most of it        mesh\n");
    for (int i = 0; i < r->num_plans; i++) {
        const weft_found *f = &r->plans[i];
        fprintf(
            out, "%3d %10s %12.4g %5s %10s  %-16s  %s; %s\n", i + 1, seconds_text(f->step_us, step),
            f->tokens_per_s, weft_utilization_text(f->model_flops_utilization).text,
            weft_bytes_text((double)f->memory_bytes).text, weft_limit_text((int)f->limits), f->mesh,
            weft_search_choices_text(&f->candidate, &f->settled, choices, sizeof choices));
    }
    for (int i = 0; i < r->num_misses; i++) {
        const weft_missed *m = &r->misses[i];
        fprintf(out, "does not fit by %10s%s: %s; %s\n",
                weft_bytes_text((double)m->short_by_bytes).text, m->of_host ? " of the host" : "",
                m->mesh,
                weft_search_choices_text(&m->candidate, &m->config, choices, sizeof choices));
    }
    for (int i = 0; i < r->num_plans; i++)
        if (r->plans[i].file_is_free) {
            fprintf(out, "experts in a file: reads and writes take no time here: storage.read or "
                         "storage.write is not known\n");
            break;
        }
    if (r->lacking)
        fprintf(out, "%s\n", r->lacking);
    print_counts(r, out);
}

void weft_search_print_scaling(const weft_search_result *results, int count, FILE *out)
{
    char choices[WEFT_SEARCH_CHOICES_BYTES], step[32];
    fprintf(out, "nodes devices    used       step     tokens/s  a device  best plan\n");
    for (int i = 0; i < count; i++) {
        const weft_search_result *r = &results[i];
        const int nodes = r->num_devices / r->cluster->ranks_per_node;
        const weft_found *f = r->plans;
        if (r->num_plans == 0)
            fprintf(out, "%5d %7d %7d %10s\n", nodes, r->num_devices, r->world,
                    r->is_stopped ? "stopped" : "none fits");
        else
            fprintf(out, "%5d %7d %7d %10s %12.4g %9.4g  %s; %s\n", nodes, r->num_devices, r->world,
                    seconds_text(f->step_us, step), f->tokens_per_s, f->tokens_per_s / r->world,
                    f->mesh,
                    weft_search_choices_text(&f->candidate, &f->settled, choices, sizeof choices));
    }
    for (int i = 0; i < count; i++)
        if (results[i].is_stopped)
            fprintf(out, "Stopped before its end: of the last row the best so far, and no more.\n");
    for (int i = 0; i < count; i++)
        if (results[i].unused)
            fprintf(
                out, "%s: %d of %d devices are used: %s\n",
                weft_count_text(results[i].num_devices / results[i].cluster->ranks_per_node, "node")
                    .text,
                results[i].world, results[i].num_devices, results[i].unused);
}

const char *weft_search_short_text(const weft_search_result *r, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "nothing fits %s",
                                   weft_count_text(r->world, "device").text);
    for (int i = 0; i < r->num_misses && i < 3 && used < capacity; i++) {
        const weft_missed *m = &r->misses[i];
        char choices[WEFT_SEARCH_CHOICES_BYTES];
        weft_search_choices_text(&m->candidate, &m->config, choices, sizeof choices);
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

/* --- JSON ---------------------------------------------------------------------------------- */

static void add_number(cJSON *json, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    cJSON_AddRawToObject(json, key, isfinite(value) ? text : "null");
}

static weft_status parse_config(const weft_config *config, weft_arena *arena, cJSON **out)
{
    const char *text;
    WEFT_TRY(weft_config_text(config, arena, &text));
    *out = cJSON_Parse(text);
    return *out ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a config");
}

static const cJSON *value_of(const cJSON *config, const char *key)
{
    char section[32];
    const char *dot = strchr(key, '.');
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(config, section),
                                            dot + 1);
}

/* The searched keys whose values differ. */
static weft_status add_overrides(cJSON *json, const weft_config *config, const cJSON *from,
                                 weft_arena *arena)
{
    cJSON *now, *overrides = cJSON_AddObjectToObject(json, "overrides");
    WEFT_TRY(parse_config(config, arena, &now));
    weft_config copy = *config;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t num_sections = weft_config_sections(&copy, sections);
    for (size_t s = 0; s < num_sections; s++)
        for (size_t i = 0; i < sections[s].num_rows; i++) {
            char key[96];
            snprintf(key, sizeof key, "%s.%s", sections[s].name, sections[s].rows[i].key);
            const cJSON *value = sections[s].rows[i].searched ? value_of(now, key) : NULL;
            if (value && !cJSON_Compare(value, value_of(from, key), true))
                cJSON_AddItemToObject(overrides, key, cJSON_Duplicate(value, true));
        }
    cJSON_Delete(now);
    return WEFT_OK;
}

static weft_status add_plan(cJSON *list, const weft_found *f, const cJSON *from, weft_arena *arena)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToArray(list, json);
    cJSON_AddStringToObject(json, "mesh", f->mesh);
    WEFT_TRY(add_overrides(json, &f->settled, from, arena));
    const int experts = weft_tier_as_ran(&f->settled.tier).experts;
    if (f->settled.model.num_experts > 0 && experts != WEFT_TIER_AUTO)
        cJSON_AddStringToObject(json, "experts",
                                experts == WEFT_TIER_FILE   ? "file"
                                : experts == WEFT_TIER_HOST ? "host"
                                                            : "none");
    if (f->file_is_free)
        cJSON_AddBoolToObject(json, "file_is_free", true);
    add_number(json, "step_time_s", f->step_us / 1e6);
    add_number(json, "tokens_per_s", f->tokens_per_s);
    add_number(json, "model_flops_utilization", f->model_flops_utilization);
    add_number(json, "memory_bytes", (double)f->memory_bytes);
    add_number(json, "memory_limit_bytes", (double)f->memory_limit_bytes);
    cJSON_AddStringToObject(json, "limits", weft_limit_text((int)f->limits));
    cJSON_AddStringToObject(json, "source", weft_source_class_text(f->source));
    const weft_plan_costs *c = &f->costs;
    if (isfinite(c->hour) || isfinite(c->joules_per_token)) {
        cJSON *cost = cJSON_AddObjectToObject(json, "cost");
        add_number(cost, "hour", c->hour);
        add_number(cost, "billion_tokens", c->billion_tokens);
        add_number(cost, "joules_per_token", c->joules_per_token);
    }
    cJSON *time = cJSON_AddObjectToObject(json, "time");
    for (int i = 0; i < WEFT_NUM_TIMES; i++)
        add_number(time, weft_time_text(i), f->us[i] / 1e6);
    return WEFT_OK;
}

static weft_status add_miss(cJSON *list, const weft_missed *m, const cJSON *from, weft_arena *arena)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToArray(list, json);
    cJSON_AddStringToObject(json, "mesh", m->mesh);
    WEFT_TRY(add_overrides(json, &m->config, from, arena));
    cJSON_AddStringToObject(json, "reason", m->of_host ? "host_memory" : "memory");
    add_number(json, "memory_bytes", (double)m->memory_bytes);
    add_number(json, "memory_limit_bytes", (double)m->memory_limit_bytes);
    add_number(json, "short_by_bytes", (double)m->short_by_bytes);
    return WEFT_OK;
}

static weft_status fill(const weft_search_result *r, const cJSON *from, weft_arena *arena,
                        cJSON *json)
{
    const weft_search_counts *c = &r->counts;
    const struct {
        const char *key;
        size_t count;
    } counts[] = {{"considered", c->considered}, {"illegal", c->illegal}, {"memory", c->memory},
                  {"bound", c->bound},           {"same", c->repeated},   {"priced", c->priced}};
    add_number(json, "num_nodes", r->num_devices / r->cluster->ranks_per_node);
    add_number(json, "num_devices", r->num_devices);
    add_number(json, "num_devices_used", r->world);
    if (r->unused)
        cJSON_AddStringToObject(json, "devices_unused_reason", r->unused);
    cJSON_AddBoolToObject(json, "complete", !r->is_stopped);
    if (r->lacking)
        cJSON_AddStringToObject(json, "left_out_reason", r->lacking);
    cJSON *list = cJSON_AddArrayToObject(json, "plans");
    for (int i = 0; i < r->num_plans; i++)
        WEFT_TRY(add_plan(list, &r->plans[i], from, arena));
    list = cJSON_AddArrayToObject(json, "rejected");
    for (int i = 0; i < r->num_misses; i++)
        WEFT_TRY(add_miss(list, &r->misses[i], from, arena));
    cJSON *numbers = cJSON_AddObjectToObject(json, "counts");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        add_number(numbers, counts[i].key, (double)counts[i].count);
    return WEFT_OK;
}

weft_status weft_search_json(const weft_search_result *r, const weft_config *config,
                             weft_arena *arena, cJSON **out)
{
    cJSON *from;
    WEFT_TRY(parse_config(config, arena, &from));
    cJSON *json = cJSON_CreateObject();
    const weft_status status =
        json ? fill(r, from, arena, json) : WEFT_ERROR(WEFT_MEMORY, "out of memory for JSON");
    cJSON_Delete(from);
    if (status != WEFT_OK)
        cJSON_Delete(json);
    else
        *out = json;
    return status;
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
