#include <stdint.h>
#include <string.h>

#include "launcher/models/config_json.h"
#include "launcher/planning/families.h"
#include "launcher/planning/run_changes.h"

bool weft_family_has_function(const char *section, const weft_key *row)
{
    static const char *const free_keys[] = {"seq_length", "moe_expert_capacity_factor",
                                            "moe_token_drop_policy", "moe_router_forced_load"};
    if (strcmp(section, "model") != 0 ||
        (row->resume != WEFT_RESUME_SHAPES && row->resume != WEFT_RESUME_TASK))
        return false;
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++)
        if (strcmp(row->key, free_keys[i]) == 0)
            return false;
    return true;
}

/* How a model differs from what a family's config.json can say of it. */
typedef struct distance {
    const weft_family *family;
    weft_config config;
    weft_arena *arena;
    int other_parts; /* parts of layers that the family makes otherwise: attention counts 2 */
    size_t count;    /* SIZE_MAX: its config.json cannot hold the model's numbers, `says` why */
    const char *key, *is, *says; /* of the first difference */
} distance;

static weft_status count_difference(void *context, const char *section, const weft_key *row,
                                    const char *is, const char *says)
{
    distance *d = context;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t count = weft_config_sections(&d->config, sections);
    const char *idle = NULL;
    if (!weft_family_has_function(section, row))
        return WEFT_OK;
    if (row->idle)
        WEFT_TRY(weft_options_reason(sections, count, "", row->idle, d->arena, &idle));
    if (idle || d->count++ > 0)
        return WEFT_OK;
    d->key = row->key;
    WEFT_TRY(weft_arena_strdup(d->arena, is, &d->is));
    return weft_arena_strdup(d->arena, says, &d->says);
}

/* What is said in several ways, in one of them. */
static weft_status spell_out(weft_config *config, weft_arena *arena)
{
    weft_model_options *o = &config->model;
    const size_t layers = (size_t)o->num_layers;
    int64_t *experts, num_windowed = 0;
    WEFT_TRY(WEFT_ARRAY(arena, 3 * layers, &experts));
    int64_t *windows = experts + layers, *no_rope = windows + layers;
    for (int64_t i = 0; i < o->num_layers; i++) {
        experts[i] = weft_model_is_moe_layer(o, i);
        num_windowed += windows[i] = weft_model_is_windowed_layer(o, i);
        no_rope[i] = !weft_model_is_roped_layer(o, i);
    }
    o->moe_layer_freq = (weft_int_list){.values = experts, .count = layers, .is_array = true};
    o->window_attn_skip_freq =
        (weft_int_list){.values = windows, .count = layers, .is_array = true};
    o->no_rope_freq = (weft_int_list){.values = no_rope, .count = layers, .is_array = true};
    o->softmax_scale = weft_family_score_scale(o);
    if (num_windowed == 0)
        o->window_size = 0;
    if (o->moe_router_num_groups == 0) /* one group is none (WEFT_KEY_OR_ONE) */
        o->moe_router_num_groups = o->moe_router_group_topk = 1;
    if (o->activation_func_clamp_value >= WEFT_FAMILY_NO_BOUND) /* WEFT_KEY_BOUND */
        o->activation_func_clamp_value = 0;
    if (o->rotary_base_local == 0 && o->rotary_scaling_type == WEFT_ROTARY_UNSCALED)
        o->rotary_base_local = o->rotary_base;
    return WEFT_OK;
}

static int count_other_parts(const weft_family *family, const weft_model_options *o)
{
    bool has_latents = false, has_experts = false;
    for (size_t i = 0; i < family->num_fixed; i++)
        has_latents |= strcmp(family->fixed[i].weft, "multi_latent_attention") == 0;
    for (size_t i = 0; i < family->num_keys; i++)
        has_experts |= family->keys[i].weft && strcmp(family->keys[i].weft, "num_experts") == 0;
    return 2 * (has_latents != o->multi_latent_attention) + (has_experts != (o->num_experts > 0));
}

/* Writes the family's config.json and reads it again: what is lost differs. */
static weft_status measure(distance *d)
{
    weft_config_json json = {.path = d->family->name, .application = d->config.application};
    weft_config says;
    WEFT_TRY(weft_config_json_make(d->family, &d->config, -1, "float32", d->arena, &json.text));
    weft_status status = weft_config_json_take(&json, d->arena);
    if (status == WEFT_OK)
        status = weft_config_json_load(&json, d->arena, &says);
    if (status == WEFT_OK) {
        weft_config is = d->config;
        WEFT_TRY(spell_out(&is, d->arena));
        WEFT_TRY(spell_out(&says, d->arena));
        return weft_run_compare(&is, &says, count_difference, d);
    }
    if (status != WEFT_CONFIG)
        return status;
    d->count = SIZE_MAX;
    status = weft_arena_strdup(d->arena, weft_error_get()->text, &d->says);
    weft_error_clear();
    return status;
}

static bool is_nearer(const distance *a, const distance *b)
{
    if (!b->family || a->count == 0)
        return true;
    return a->other_parts < b->other_parts ||
           (a->other_parts == b->other_parts && a->count < b->count);
}

static weft_status approach(distance *nearest, const weft_family *family, const weft_config *config,
                            weft_arena *arena)
{
    distance d = {.family = family,
                  .config = *config,
                  .arena = arena,
                  .other_parts = count_other_parts(family, &config->model)};
    WEFT_TRY(measure(&d));
    if (is_nearer(&d, nearest))
        *nearest = d;
    return WEFT_OK;
}

weft_status weft_family_find(const weft_config *config, const char *where, weft_arena *arena,
                             const weft_family **out)
{
    distance nearest = {.count = SIZE_MAX}, named;
    bool is_own;
    const char *name = config->model.family;
    const weft_family *family = name ? weft_family_named(config->application, name, &is_own) : NULL;
    if (family)
        WEFT_TRY(approach(&nearest, family, config, arena));
    named = nearest;
    for (size_t i = 0; nearest.count > 0 && (family = weft_family_at(config->application, i)); i++)
        WEFT_TRY(approach(&nearest, family, config, arena));
    *out = nearest.family;
    if (nearest.count == 0)
        return WEFT_OK;
    if (named.count == SIZE_MAX && named.family)
        return WEFT_ERROR(WEFT_CONFIG, "%s: its files would not be model.family %s's: %s", where,
                          name, named.says);
    if (named.family)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: its files would not be model.family %s's: model.%s is %s, and they "
                          "would have %s",
                          where, name, named.key, named.is, named.says);
    if (nearest.count == SIZE_MAX)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: its model is of no family that has files at Hugging Face's, and the "
                          "nearest cannot have it: %s",
                          where, nearest.says);
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: its model is of no family that has files at Hugging Face's: "
                      "model.%s is %s, and the nearest, %s, has %s",
                      where, nearest.key, nearest.is, nearest.family->name, nearest.says);
}
