#include "launcher/planning/no_effect.h"

#include <string.h>

#include "core/log.h"

typedef struct telling {
    const weft_config *config;
    const weft_option_section *sections;
    size_t num_sections;
    weft_arena arena;
    char why[160], keys[320]; /* that are not told yet, and why they have none */
} telling;

static void tell(telling *t)
{
    if (t->keys[0])
        weft_log(WEFT_LOG_WARN, "%s: no effect of %s", t->why, t->keys);
    t->keys[0] = '\0';
}

/* Keys with the same reason that follow each other stand in one line. */
static weft_status add_key(void *context, const char *section, const weft_key *row,
                           const char *before, const char *after)
{
    telling *t = context;
    const char *why;
    (void)before, (void)after;
    WEFT_TRY(weft_options_reason(t->sections, t->num_sections, row->idle, &t->arena, &why));
    if (!why || (t->config->planned_on && strcmp(row->key, "cluster") == 0)) /* plans read it */
        return WEFT_OK;
    if (strcmp(why, t->why) != 0)
        tell(t);
    snprintf(t->why, sizeof t->why, "%s", why);
    const size_t used = strlen(t->keys);
    snprintf(t->keys + used, sizeof t->keys - used, "%s%s.%s", used ? ", " : "", section, row->key);
    return WEFT_OK;
}

/* Modules of MoE layers that the model does not have; modules of which none is recomputed. */
static void tell_modules(const weft_config *c)
{
    const weft_string_list *modules = &c->train.recompute.modules;
    const weft_string_list *offloaded = &c->train.offload.modules;
    static const char no_experts[] = "model.num_experts is 0";
    const bool selects = c->train.recompute.granularity == WEFT_RECOMPUTE_SELECTIVE;
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
    telling t = {.config = config, .sections = after};
    given.application = NULL;
    t.num_sections = weft_config_sections(&initial, before);
    weft_config_sections(&given, after);
    weft_status status =
        weft_options_parse(before, t.num_sections, "defaults", NULL, NULL, 0, &t.arena);
    if (given.model.moe_ffn_hidden_size == given.model.ffn_hidden_size) /* filled in */
        given.model.moe_ffn_hidden_size = initial.model.moe_ffn_hidden_size;
    if (status == WEFT_OK)
        status = weft_options_compare(before, after, t.num_sections, add_key, &t);
    tell(&t);
    weft_arena_release(&t.arena);
    tell_modules(config);
    if (weft_recompute_names_always(&config->train.recompute))
        weft_log(WEFT_LOG_INFO, "recompute: no norm's and no activation's output is ever kept, so "
                                "layernorm and moe_act change nothing");
    return status;
}
