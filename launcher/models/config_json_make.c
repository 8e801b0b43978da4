#include "launcher/models/config_json_internal.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_write.h"
#include "launcher/models/config_json.h"
#include "layers/model/model.h"

const weft_rope_type weft_rope_types[] = {{"\"default\"", "\"none\"", WEFT_ROPE_DEFAULT},
                                          {"\"linear\"", "\"linear\"", WEFT_ROPE_LINEAR},
                                          {"\"llama3\"", "\"llama3\"", WEFT_ROPE_LLAMA3},
                                          {"\"yarn\"", "\"yarn\"", WEFT_ROPE_YARN}};

const weft_rope_key weft_rope_keys[] = {
    {"factor", "rotary_scaling_factor", NULL, WEFT_ROPE_LINEAR | WEFT_ROPE_LLAMA3 | WEFT_ROPE_YARN},
    {"original_max_position_embeddings", "original_max_position_embeddings", NULL,
     WEFT_ROPE_LLAMA3 | WEFT_ROPE_YARN},
    {"low_freq_factor", "rotary_low_freq_factor", NULL, WEFT_ROPE_LLAMA3},
    {"high_freq_factor", "rotary_high_freq_factor", NULL, WEFT_ROPE_LLAMA3},
    {"beta_fast", "yarn_beta_fast", "32", WEFT_ROPE_YARN},
    {"beta_slow", "yarn_beta_slow", "1", WEFT_ROPE_YARN},
    {"truncate", "yarn_correction_range_round_to_int", "true", WEFT_ROPE_YARN}};

const char weft_sliding_layer[] = "\"sliding_attention\"", weft_full_layer[] = "\"full_attention\"";

bool weft_json_are_equal(weft_json_span a, weft_json_span b)
{
    if (weft_json_kind_of(a) == WEFT_JSON_NUMBER && weft_json_kind_of(b) == WEFT_JSON_NUMBER)
        return strtod(a.start, NULL) == strtod(b.start, NULL);
    return a.bytes == b.bytes && memcmp(a.start, b.start, a.bytes) == 0;
}

weft_status weft_first_spelling(const char *name, weft_arena *arena, const char **out)
{
    return weft_arena_printf(arena, out, "%.*s", (int)strcspn(name, "|"), name);
}

/* A key of section "model" as JSON. */
static weft_status value_of(const weft_config *config, const char *key, weft_arena *arena,
                            const char **out)
{
    weft_model_options copy = config->model;
    const weft_option_section section = {"model", weft_model_rows, weft_num_model_rows, &copy, ""};
    const weft_key *row = weft_key_find(weft_model_rows, weft_num_model_rows, key);
    return row ? weft_option_text(&section, row, arena, out)
               : WEFT_ERROR(WEFT_INTERNAL, "a family of models names model.%s, which is no key",
                            key);
}

/* As Python's readers want it: a number that may be a fraction has a point or an exponent. */
static weft_status value_for_python(const weft_config *config, const char *key, weft_arena *arena,
                                    const char **out)
{
    WEFT_TRY(value_of(config, key, arena, out));
    const bool is_real =
        weft_key_find(weft_model_rows, weft_num_model_rows, key)->type == WEFT_OPTION_DOUBLE;
    return is_real && !strpbrk(*out, ".eE") ? weft_arena_printf(arena, out, "%s.0", *out) : WEFT_OK;
}

/* The number in the file: of dense layers, or of shared experts. */
static int64_t count_of(weft_family_kind kind, const weft_model_options *o)
{
    int64_t dense = 0;
    if (kind == WEFT_KEY_SHARED)
        return o->moe_shared_expert_intermediate_size / o->moe_ffn_hidden_size;
    while (dense < o->num_layers && !weft_model_is_moe_layer(o, dense))
        dense++;
    return dense;
}

static void write_layer_types(const char *name, const weft_model_options *o, weft_json_out *out)
{
    weft_json_open_flat(out, name, '[');
    for (int64_t i = 0; i < o->num_layers; i++)
        weft_json_raw(out, NULL,
                      weft_model_is_windowed_layer(o, i) ? weft_sliding_layer : weft_full_layer);
    weft_json_close(out);
}

static void write_roped_layers(const char *name, const weft_model_options *o, weft_json_out *out)
{
    weft_json_open_flat(out, name, '[');
    for (int64_t i = 0; i < o->num_layers; i++)
        weft_json_raw(out, NULL, weft_model_is_roped_layer(o, i) ? "1" : "0");
    weft_json_close(out);
}

/* All layers have the model's window, or there is none. */
static bool are_alike(const weft_model_options *o)
{
    int64_t windowed = 0;
    for (int64_t i = 0; i < o->num_layers; i++)
        windowed += weft_model_is_windowed_layer(o, i);
    return windowed == o->num_layers || o->window_size == 0;
}

double weft_family_score_scale(const weft_model_options *o)
{
    return o->softmax_scale > 0 ? o->softmax_scale : 1 / sqrt((double)o->kv_channels);
}

static weft_json_span span_of(const char *text)
{
    return (weft_json_span){text, strlen(text)};
}

static weft_status write_key(const weft_family_key *key, const weft_config *config,
                             weft_arena *arena, weft_json_out *out)
{
    const char *value, *name;
    if (key->kind == WEFT_KEY_EACH)
        return WEFT_OK;
    WEFT_TRY(weft_first_spelling(key->key, arena, &name));
    if (key->kind == WEFT_KEY_LAYERS && !*key->missing && are_alike(&config->model))
        return WEFT_OK;
    if (key->kind == WEFT_KEY_LAYERS) {
        write_layer_types(name, &config->model, out);
        return WEFT_OK;
    }
    if (key->kind == WEFT_KEY_ROPED) {
        write_roped_layers(name, &config->model, out);
        return WEFT_OK;
    }
    if (key->kind == WEFT_KEY_ROOT) {
        const double scale = weft_family_score_scale(&config->model);
        weft_json_number(out, name, round(1e6 / (scale * scale)) / 1e6);
        return WEFT_OK;
    }
    if (key->kind == WEFT_KEY_DENSE_FIRST || key->kind == WEFT_KEY_SHARED) {
        weft_json_number(out, name, (double)count_of(key->kind, &config->model));
        return WEFT_OK;
    }
    WEFT_TRY(key->weft ? value_for_python(config, key->weft, arena, &value)
                       : weft_first_spelling(key->values, arena, &value));
    if (key->kind == WEFT_KEY_SAME && key->values &&
        weft_json_are_equal(span_of(value), span_of(key->missing)))
        value = key->values;
    if (strtod(value, NULL) == 0)
        value = key->kind == WEFT_KEY_OR_NONE  ? (key->values ? key->values : "null")
                : key->kind == WEFT_KEY_OR_ONE ? "1"
                : key->kind == WEFT_KEY_BOUND  ? "1e30"
                                               : value;
    if (key->kind == WEFT_KEY_NOT)
        weft_json_bool(out, name, strcmp(value, "false") == 0);
    else
        weft_json_raw(out, name, value);
    return WEFT_OK;
}

static weft_status write_magnitude(const weft_config *config, weft_arena *arena, weft_json_out *out)
{
    const char *mscale, *all;
    if (config->model.yarn_mscale == 1 && config->model.yarn_mscale_all_dim == 0)
        return WEFT_OK;
    WEFT_TRY(value_for_python(config, "yarn_mscale", arena, &mscale));
    WEFT_TRY(value_for_python(config, "yarn_mscale_all_dim", arena, &all));
    weft_json_raw(out, "mscale", mscale);
    weft_json_raw(out, "mscale_all_dim", all);
    return WEFT_OK;
}

/* Members of an object that says how positions are rotated, its bracket open. */
static weft_status write_rope_members(const weft_config *config, const weft_rope_type *type,
                                      weft_arena *arena, weft_json_out *out)
{
    const char *value;
    weft_json_raw(out, "rope_type", type->type);
    for (int i = 0; i < WEFT_NUM_ROPE_KEYS; i++) {
        if (!(weft_rope_keys[i].types & type->bit))
            continue;
        WEFT_TRY(value_for_python(config, weft_rope_keys[i].weft, arena, &value));
        weft_json_raw(out, weft_rope_keys[i].key, value);
    }
    return type->bit == WEFT_ROPE_YARN ? write_magnitude(config, arena, out) : WEFT_OK;
}

static weft_status write_rope_object(const char *name, const char *theta, const weft_config *config,
                                     const weft_rope_type *type, weft_arena *arena,
                                     weft_json_out *out)
{
    weft_json_open(out, name, '{');
    if (theta)
        weft_json_raw(out, "rope_theta", theta);
    WEFT_TRY(write_rope_members(config, type, arena, out));
    weft_json_close(out);
    return WEFT_OK;
}

/* What transformers 5 reads: without it some families there have a base or a scaling of their own.
 */
static weft_status write_rope_parameters(const weft_family *family, const char *theta,
                                         const char *local, const weft_config *config,
                                         const weft_rope_type *type, weft_arena *arena,
                                         weft_json_out *out)
{
    if (!family->rope_local)
        return write_rope_object("rope_parameters", theta, config, type, arena, out);
    weft_json_open(out, "rope_parameters", '{');
    WEFT_TRY(write_rope_object("full_attention", theta, config, type, arena, out));
    WEFT_TRY(
        write_rope_object("sliding_attention", local, config, &weft_rope_types[0], arena, out));
    weft_json_close(out);
    return WEFT_OK;
}

/* Of each generation of transformers what it reads. */
static weft_status write_rope(const weft_family *family, const weft_config *config,
                              weft_arena *arena, weft_json_out *out)
{
    const char *theta, *local, *value, *weft;
    const weft_rope_type *type = &weft_rope_types[0];
    WEFT_TRY(value_of(config, "rotary_scaling_type", arena, &weft));
    for (int i = 0; i < WEFT_NUM_ROPE_TYPES; i++)
        if (strcmp(weft_rope_types[i].weft, weft) == 0)
            type = &weft_rope_types[i];
    WEFT_TRY(value_for_python(config, "rotary_base", arena, &theta));
    local = theta;
    if (config->model.rotary_base_local > 0)
        WEFT_TRY(value_for_python(config, "rotary_base_local", arena, &local));
    weft_json_raw(out, "rope_theta", theta);
    if (family->rope_local && *family->rope_local)
        weft_json_raw(out, "rope_local_base_freq", local);
    if (family->rotates_part) {
        WEFT_TRY(value_for_python(config, "rotary_percent", arena, &value));
        weft_json_raw(out, "partial_rotary_factor", value);
    }
    if (type->bit == WEFT_ROPE_DEFAULT)
        weft_json_raw(out, "rope_scaling", "null");
    else
        WEFT_TRY(write_rope_object("rope_scaling", theta, config, type, arena, out));
    return write_rope_parameters(family, theta, local, config, type, arena, out);
}

static weft_status write_all(const weft_family *family, const weft_config *config, int64_t eod,
                             const char *dtype, weft_arena *arena, weft_json_out *out)
{
    weft_json_open(out, NULL, '{');
    weft_json_open_flat(out, "architectures", '[');
    weft_json_text(out, NULL, family->architecture);
    weft_json_close(out);
    weft_json_text(out, "model_type", family->model_type);
    for (size_t i = 0; i < family->num_keys; i++)
        WEFT_TRY(write_key(&family->keys[i], config, arena, out));
    if (family->rope_theta)
        WEFT_TRY(write_rope(family, config, arena, out));
    if (family->next_layers) {
        const char *key;
        WEFT_TRY(weft_first_spelling(family->next_layers, arena, &key));
        weft_json_number(out, key, (double)config->model.mtp_num_layers);
    }
    /* What a class of transformers' has for its published model may lie beyond this vocabulary. */
    weft_json_raw(out, "bos_token_id", "null");
    if (eod >= 0)
        weft_json_number(out, "eos_token_id", (double)eod);
    else
        weft_json_raw(out, "eos_token_id", "null");
    weft_json_raw(out, "pad_token_id", "null");
    weft_json_text(out, "torch_dtype", dtype);
    weft_json_close(out);
    return WEFT_OK;
}

weft_status weft_config_json_make(const weft_family *family, const weft_config *config, int64_t eod,
                                  const char *dtype, weft_arena *arena, const char **out)
{
    weft_new_text text;
    WEFT_TRY(weft_new_text_open(&text));
    weft_json_out json = {.file = text.file};
    return weft_new_text_close(&text, write_all(family, config, eod, dtype, arena, &json), arena,
                               out);
}
