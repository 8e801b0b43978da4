#include "launcher/planning/no_effect.h"

#include <string.h>

#include "core/log.h"
#include "schedule/context.h"

/* Why some keys may be read by nobody. */
typedef enum reason {
    NO_EXPERTS,
    NO_CPU,
    NO_PACE,
    NO_RECOMPUTE,
    NOT_FULL,
    NOT_SELECTIVE,
    NO_OFFLOAD,
    NO_CONTEXT,
    NO_RING_OF_GROUPS,
    NO_DOCUMENTS,
    NO_MASKED_LABELS,
    NO_BF16,
    ORDER_BY_FILE,
    NUM_REASONS
} reason;
static const char *const reasons[] = {
    [NO_EXPERTS] = "model.num_experts is 0",
    [NO_CPU] = "device.kind is cuda",
    [NO_PACE] = "device.pace is 0",
    [NO_RECOMPUTE] = "train.recompute_granularity is none",
    [NOT_FULL] = "train.recompute_granularity is selective",
    [NOT_SELECTIVE] = "train.recompute_granularity is full",
    [NO_OFFLOAD] = "train.fine_grained_activation_offloading is false",
    [NO_CONTEXT] = "parallel.context_parallel_size is 1",
    [NO_RING_OF_GROUPS] = "parallel.cp_comm_type is not a2a+p2p",
    [NO_DOCUMENTS] = "data.reset_position_ids, reset_attention_mask, eod_mask_loss are false",
    [NO_MASKED_LABELS] = "data.eod_mask_loss is false",
    [NO_BF16] = "train.precision is not bf16",
    [ORDER_BY_FILE] = "parallel.pipeline_schedule_file is given",
};

typedef struct keys {
    const weft_config *config;
    reason why;
    char text[320];
    int count;
} keys;

static bool is_without_effect(const weft_config *c, reason why, const char *key)
{
    bool is_pace = strcmp(key, "pace") == 0, is_work = strcmp(key, "pace_work") == 0;
    bool is_cpu = c->device.kind == WEFT_DEVICE_KIND_CPU;
    bool is_modules = strcmp(key, "recompute_modules") == 0;
    bool is_layers =
        strcmp(key, "recompute_method") == 0 || strcmp(key, "recompute_num_layers") == 0;
    int recompute = c->train.recompute.granularity;
    bool is_sizes = strcmp(key, "hierarchical_context_parallel_sizes") == 0;
    bool has_context = c->parallel.context_parallel_size > 1;
    switch (why) {
    case NO_EXPERTS:
        return c->model.num_experts == 0 &&
               (strncmp(key, "moe_", 4) == 0 ||
                (is_pace && is_cpu && c->device.pace_work == WEFT_PACE_EXPERTS));
    case NO_CPU:
        return !is_cpu && (is_pace || is_work);
    case NO_PACE:
        return is_cpu && is_work && c->device.pace == 0;
    case NO_RECOMPUTE:
        return recompute == WEFT_RECOMPUTE_NONE && (is_modules || is_layers);
    case NOT_FULL:
        return recompute == WEFT_RECOMPUTE_SELECTIVE && is_layers;
    case NOT_SELECTIVE:
        return recompute == WEFT_RECOMPUTE_FULL && is_modules;
    case NO_OFFLOAD:
        return !c->train.offload.on && strcmp(key, "offload_modules") == 0;
    case NO_CONTEXT:
        return !has_context && (is_sizes || strcmp(key, "cp_comm_type") == 0 ||
                                strcmp(key, "context_parallel_load_balancer") == 0);
    case NO_RING_OF_GROUPS:
        return has_context && is_sizes && c->parallel.cp_comm_type != WEFT_CONTEXT_A2A_P2P;
    case NO_DOCUMENTS:
        return strcmp(key, "eod_token") == 0 && !weft_config_has_documents(c);
    case NO_MASKED_LABELS:
        return strcmp(key, "calculate_per_token_loss") == 0 && !c->data.eod_mask_loss;
    case NO_BF16:
        return strcmp(key, "split_master") == 0 && c->train.precision != WEFT_PRECISION_BF16;
    case ORDER_BY_FILE:
        return strcmp(key, "pipeline_schedule") == 0 && c->schedule.pipeline_schedule_file &&
               c->schedule.pipeline_schedule_file[0];
    case NUM_REASONS:
        break;
    }
    return false;
}

static weft_status add_key(void *context, const char *section, const weft_option_row *row,
                           const char *before, const char *after)
{
    keys *k = context;
    size_t used = strlen(k->text);
    (void)before, (void)after;
    if (is_without_effect(k->config, k->why, row->key))
        snprintf(k->text + used, sizeof k->text - used, "%s%s.%s", k->count++ ? ", " : "", section,
                 row->key);
    return WEFT_OK;
}

/* Modules of MoE layers that the model does not have. */
static void tell_modules(const weft_config *c)
{
    const weft_string_list *modules = &c->train.recompute.modules;
    const weft_string_list *offloaded = &c->train.offload.modules;
    const bool selects = c->train.recompute.granularity == WEFT_RECOMPUTE_SELECTIVE;
    for (size_t i = 0; i < modules->count && selects; i++) {
        const bool experts = strcmp(modules->values[i], "moe") == 0;
        const bool shared = strcmp(modules->values[i], "shared_experts") == 0;
        if ((experts || shared) && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of %s in train.recompute_modules",
                     reasons[NO_EXPERTS], modules->values[i]);
        else if (shared && c->model.moe_shared_expert_intermediate_size == 0)
            weft_log(WEFT_LOG_WARN, "model.moe_shared_expert_intermediate_size is 0: no effect of "
                                    "shared_experts in train.recompute_modules");
    }
    for (size_t i = 0; i < offloaded->count && c->train.offload.on; i++)
        if (strcmp(offloaded->values[i], "moe") == 0 && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of moe in train.offload_modules",
                     reasons[NO_EXPERTS]);
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
    for (int i = 0; i < NUM_REASONS && status == WEFT_OK; i++) {
        keys k = {.config = config, .why = (reason)i};
        status = weft_options_compare(before, after, num, add_key, &k);
        if (status == WEFT_OK && k.count > 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of %s", reasons[i], k.text);
    }
    weft_arena_release(&arena);
    tell_modules(config);
    if (weft_recompute_names_always(&config->train.recompute))
        weft_log(WEFT_LOG_INFO, "recompute: no norm's and no activation's output is ever kept, so "
                                "layernorm and moe_act change nothing");
    return status;
}
