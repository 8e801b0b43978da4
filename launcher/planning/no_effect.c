#include "launcher/planning/no_effect.h"

#include <string.h>

#include "core/log.h"

typedef struct keys {
    char text[320];
    int count;
} keys;

static weft_status add_key(void *context, const char *section, const weft_option_row *row,
                           const char *before, const char *after)
{
    keys *k = context;
    size_t used = strlen(k->text);
    (void)before, (void)after;
    if (strncmp(row->key, "moe_", 4) == 0)
        snprintf(k->text + used, sizeof k->text - used, "%s%s.%s", k->count++ ? ", " : "", section,
                 row->key);
    return WEFT_OK;
}

weft_status weft_config_tell_no_effect(const weft_config *config)
{
    weft_config given = *config, initial = {0};
    weft_option_section before[WEFT_MAX_CONFIG_SECTIONS], after[WEFT_MAX_CONFIG_SECTIONS];
    weft_arena arena = {0};
    keys k = {.count = 0};
    if (config->model.num_experts > 0)
        return WEFT_OK;
    given.application = NULL;
    size_t num = weft_config_sections(&initial, before);
    weft_config_sections(&given, after);
    weft_status status = weft_options_parse(before, num, "defaults", NULL, NULL, 0, &arena);
    if (given.model.moe_ffn_hidden_size == given.model.ffn_hidden_size) /* filled in */
        given.model.moe_ffn_hidden_size = initial.model.moe_ffn_hidden_size;
    if (status == WEFT_OK)
        status = weft_options_compare(before, after, num, add_key, &k);
    if (status == WEFT_OK && k.count > 0)
        weft_log(WEFT_LOG_WARN, "model.num_experts is 0: no effect of %s", k.text);
    weft_arena_release(&arena);
    return status;
}
