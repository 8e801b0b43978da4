#include "launcher/planning/no_effect.h"

#include <string.h>

#include "core/log.h"
#include "schedule/context.h"

static bool has_no_experts(const weft_config *c)
{
    return c->model.num_experts == 0;
}

static bool is_cpu(const weft_config *c)
{
    return c->device.kind == WEFT_DEVICE_KIND_CPU;
}

static bool is_cuda(const weft_config *c)
{
    return !is_cpu(c);
}

static bool paces_experts(const weft_config *c)
{
    return has_no_experts(c) && is_cpu(c) && c->device.pace_work == WEFT_PACE_EXPERTS;
}

static bool has_no_pace(const weft_config *c)
{
    return is_cpu(c) && c->device.pace == 0;
}

static bool prices_nothing(const weft_config *c)
{
    return has_no_experts(c) && c->parallel.context_parallel_size <= 1 && !c->planned_on;
}

static bool recomputes_nothing(const weft_config *c)
{
    return c->train.recompute.granularity == WEFT_RECOMPUTE_NONE;
}

static bool recomputes_modules(const weft_config *c)
{
    return c->train.recompute.granularity == WEFT_RECOMPUTE_SELECTIVE;
}

static bool recomputes_layers(const weft_config *c)
{
    return c->train.recompute.granularity == WEFT_RECOMPUTE_FULL;
}

static bool offloads_nothing(const weft_config *c)
{
    return !c->train.offload.on;
}

/* And what is recomputed or offloaded follows from no virtual stages. */
static bool has_one_stage(const weft_config *c)
{
    return c->parallel.pipeline_model_parallel_size <= 1 &&
           c->parallel.num_virtual_stages_per_pipeline_rank != 1 && !recomputes_layers(c) &&
           offloads_nothing(c);
}

static bool has_no_tier(const weft_config *c)
{
    return c->tier.experts == WEFT_TIER_NONE;
}

static bool steps_on_device(const weft_config *c)
{
    return (has_no_tier(c) || has_no_experts(c)) &&
           c->tier.optimizer_state == WEFT_TIER_STATE_DEVICE;
}

static bool stays_at_home(const weft_config *c)
{
    return c->tier.experts != WEFT_TIER_NONE && c->tier.placement == WEFT_TIER_HOME;
}

static bool has_no_file(const weft_config *c)
{
    return c->tier.experts != WEFT_TIER_FILE && c->tier.experts != WEFT_TIER_AUTO;
}

static bool goes_up_by_layer(const weft_config *c)
{
    return !has_no_tier(c) && c->tier.order == WEFT_EXPERT_ORDER_LAYER;
}

static bool has_no_context(const weft_config *c)
{
    return c->parallel.context_parallel_size <= 1;
}

static bool has_no_inner_groups(const weft_config *c)
{
    return !has_no_context(c) && c->parallel.cp_comm_type != WEFT_CONTEXT_A2A_P2P;
}

static bool has_no_documents(const weft_config *c)
{
    return !weft_config_has_documents(c);
}

static bool has_all_labels(const weft_config *c)
{
    return !c->data.eod_mask_loss;
}

static bool is_not_bf16(const weft_config *c)
{
    return c->train.precision != WEFT_PRECISION_BF16;
}

static bool is_not_fp16(const weft_config *c)
{
    return c->train.precision != WEFT_PRECISION_FP16;
}

static bool has_order_file(const weft_config *c)
{
    return c->schedule.pipeline_schedule_file && c->schedule.pipeline_schedule_file[0];
}

static bool has_no_chunks(const weft_config *c)
{
    return c->parallel.num_virtual_stages_per_pipeline_rank <= 1;
}

static bool keeps_no_timeline(const weft_config *c)
{
    return c->log.trace_step == 0;
}

static bool compares_no_replicas(const weft_config *c)
{
    return c->reliability.replica_check_interval == 0;
}

static bool steps_on_host(const weft_config *c)
{
    return c->tier.optimizer_state == WEFT_TIER_STATE_HOST;
}

static bool saves_nothing(const weft_config *c)
{
    return c->checkpoint.no_save;
}

static bool saves_by_itself(const weft_config *c)
{
    return !c->checkpoint.async_save;
}

static bool copies_nothing(const weft_config *c)
{
    return c->checkpoint.peer_copies == 0;
}

static bool keeps_all_checkpoints(const weft_config *c)
{
    return !saves_nothing(c) && c->checkpoint.keep_latest_k < 0;
}

/* When nobody reads some keys, and why; a star ends a key's beginning; section.key where others
 * have the key, too. */
static const struct rule {
    const char *why, *keys;
    bool (*holds)(const weft_config *config);
} rules[] = {
    {"model.num_experts is 0", "moe_* expert_binding", has_no_experts},
    {"model.num_experts is 0", "pace", paces_experts},
    {"model.num_experts is 0",
     "offload.experts offload.slots offload.kept offload.order offload.optimizer offload.io "
     "offload.path offload.eviction offload.cached offload.file_limit offload.placement "
     "offload.replicas",
     has_no_experts},
    {"model.num_experts is 0 and parallel.context_parallel_size 1", "cluster", prices_nothing},
    {"offload.experts is none",
     "offload.slots offload.kept offload.order offload.optimizer offload.placement "
     "offload.replicas",
     has_no_tier},
    {"offload.experts is none and offload.optimizer_state device",
     "offload.num_threads offload.host_memory_limit", steps_on_device},
    {"offload.placement is home", "offload.replicas", stays_at_home},
    {"offload.experts is not file",
     "offload.io offload.path offload.eviction offload.cached offload.file_limit pace_file",
     has_no_file},
    {"offload.order is layer", "offload.slots", goes_up_by_layer},
    {"device.kind is cuda", "pace pace_work pace_link pace_file", is_cuda},
    {"device.kind is cpu", "cuda_graphs", is_cpu},
    {"device.pace is 0", "pace_work", has_no_pace},
    {"train.recompute_granularity is none",
     "recompute_modules recompute_method recompute_num_layers", recomputes_nothing},
    {"train.recompute_granularity is selective", "recompute_method recompute_num_layers",
     recomputes_modules},
    {"train.recompute_granularity is full", "recompute_modules", recomputes_layers},
    {"train.fine_grained_activation_offloading is false", "offload_modules", offloads_nothing},
    {"parallel.context_parallel_size is 1",
     "hierarchical_context_parallel_sizes cp_comm_type context_parallel_load_balancer",
     has_no_context},
    {"parallel.cp_comm_type is not a2a+p2p", "hierarchical_context_parallel_sizes",
     has_no_inner_groups},
    {"data.reset_position_ids, reset_attention_mask, eod_mask_loss are false", "eod_token",
     has_no_documents},
    {"data.eod_mask_loss is false", "calculate_per_token_loss", has_all_labels},
    {"train.precision is not bf16", "split_master", is_not_bf16},
    {"train.precision is not fp16",
     "initial_loss_scale min_loss_scale loss_scale_window hysteresis", is_not_fp16},
    {"parallel.pipeline_schedule_file is given", "pipeline_schedule", has_order_file},
    {"parallel.num_virtual_stages_per_pipeline_rank is 1",
     "microbatch_group_size_per_virtual_pipeline_stage", has_no_chunks},
    {"parallel.pipeline_model_parallel_size is 1",
     "num_virtual_stages_per_pipeline_rank num_layers_per_virtual_pipeline_stage", has_one_stage},
    {"log.trace_step is 0", "trace_ranks", keeps_no_timeline},
    {"checkpoint.no_save is true", "keep_latest_k save_retain_interval async_save", saves_nothing},
    {"checkpoint.async_save is false", "staging_bytes async_when_busy", saves_by_itself},
    {"reliability.replica_check_interval is 0", "on_replica_difference", compares_no_replicas},
    {"offload.optimizer_state is host", "state_check_interval", steps_on_host},
    {"checkpoint.peer_copies is 0", "peer_interval peer_path", copies_nothing},
    {"checkpoint.keep_latest_k is -1", "save_retain_interval", keeps_all_checkpoints},
};
enum { NUM_RULES = sizeof rules / sizeof *rules };

typedef struct keys {
    const struct rule *rule;
    char text[320];
    int count;
} keys;

static bool names(const char *list, const char *section, const char *key)
{
    char whole[96];
    snprintf(whole, sizeof whole, "%s.%s", section, key);
    for (const char *at = list; *at;) {
        const size_t bytes = strcspn(at, " "), own = bytes - (at[bytes - 1] == '*');
        const char *name = memchr(at, '.', bytes) ? whole : key;
        if (strncmp(name, at, own) == 0 && (own < bytes || name[own] == '\0'))
            return true;
        at += bytes + (at[bytes] == ' ');
    }
    return false;
}

static weft_status add_key(void *context, const char *section, const weft_key *row,
                           const char *before, const char *after)
{
    keys *k = context;
    size_t used = strlen(k->text);
    (void)before, (void)after;
    if (names(k->rule->keys, section, row->key))
        snprintf(k->text + used, sizeof k->text - used, "%s%s.%s", k->count++ ? ", " : "", section,
                 row->key);
    return WEFT_OK;
}

/* Modules of MoE layers that the model does not have; modules of which none is recomputed. */
static void tell_modules(const weft_config *c)
{
    const weft_string_list *modules = &c->train.recompute.modules;
    const weft_string_list *offloaded = &c->train.offload.modules;
    static const char no_experts[] = "model.num_experts is 0";
    const bool selects = recomputes_modules(c);
    unsigned bits = 0;
    if (selects && weft_recompute_modules(&c->train.recompute, &bits) == WEFT_OK &&
        (bits & ~WEFT_RECOMPUTE_ALWAYS) == 0)
        weft_log(WEFT_LOG_WARN, "train.recompute_modules names nothing that is kept: no effect of "
                                "train.recompute_granularity");
    for (size_t i = 0; i < modules->count && selects; i++) {
        const bool experts = strcmp(modules->values[i], "moe") == 0;
        const bool shared = strcmp(modules->values[i], "shared_experts") == 0;
        if ((experts || shared) && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of %s in train.recompute_modules", no_experts,
                     modules->values[i]);
        else if (shared && c->model.moe_shared_expert_intermediate_size == 0)
            weft_log(WEFT_LOG_WARN, "model.moe_shared_expert_intermediate_size is 0: no effect of "
                                    "shared_experts in train.recompute_modules");
    }
    for (size_t i = 0; i < offloaded->count && c->train.offload.on; i++)
        if (strcmp(offloaded->values[i], "moe") == 0 && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of moe in train.offload_modules", no_experts);
}

weft_status weft_config_tell_no_effect(const weft_config *config)
{
    weft_config given = *config, initial = {0};
    weft_option_section before[WEFT_MAX_CONFIG_SECTIONS], after[WEFT_MAX_CONFIG_SECTIONS];
    weft_arena arena = {0};
    given.application = NULL;
    size_t num = weft_config_sections(&initial, before);
    weft_config_sections(&given, after);
    weft_status status = weft_options_parse(before, num, "defaults", NULL, NULL, 0, &arena);
    if (given.model.moe_ffn_hidden_size == given.model.ffn_hidden_size) /* filled in */
        given.model.moe_ffn_hidden_size = initial.model.moe_ffn_hidden_size;
    for (int i = 0; i < NUM_RULES && status == WEFT_OK; i++) {
        keys k = {.rule = &rules[i]};
        if (!rules[i].holds(config))
            continue;
        status = weft_options_compare(before, after, num, add_key, &k);
        if (status == WEFT_OK && k.count > 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of %s", rules[i].why, k.text);
    }
    weft_arena_release(&arena);
    tell_modules(config);
    if (weft_recompute_names_always(&config->train.recompute))
        weft_log(WEFT_LOG_INFO, "recompute: no norm's and no activation's output is ever kept, so "
                                "layernorm and moe_act change nothing");
    return status;
}
