#include "launcher/models/config_json.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/json_write.h"
#include "launcher/models/config_json_internal.h"
#include "launcher/planning/families.h"

enum { MAX_SEQ_LENGTH = 4096, MAX_LAYERS = 65533 };

/* What is being read: keys of the text stand in `part`, which is text_config or the whole. */
typedef struct reader {
    weft_config_json *json;
    weft_json_span root, part;
    weft_arena *arena;
    weft_json_out out; /* of section "model" */
} reader;

/* --- values -------------------------------------------------------------------------------- */

/* name: one spelling, or several with '|' between them. */
static bool is_key(weft_json_span key, const char *name)
{
    for (const char *at = name; *at; at += strcspn(at, "|"), at += *at == '|') {
        const size_t bytes = strcspn(at, "|");
        if (key.bytes == bytes + 2 && memcmp(key.start + 1, at, bytes) == 0)
            return true;
    }
    return false;
}

static bool find(weft_json_span object, const char *name, weft_json_span *out)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    while (weft_json_next(object, &cursor, &key, &value))
        if (is_key(key, name)) {
            *out = value;
            return true;
        }
    return false;
}

/* Of the text's config, and where that lacks it of the whole. */
static bool find_key(const reader *r, const char *name, weft_json_span *out)
{
    return find(r->part, name, out) || find(r->root, name, out);
}

static weft_json_span span_of(const char *text, size_t bytes)
{
    return (weft_json_span){text, bytes};
}

static bool is_null(weft_json_span value)
{
    return weft_json_kind_of(value) == WEFT_JSON_NULL;
}

/* Objects with the same members, in any order, but for one of the name `but`; NULL: all. */
static bool have_same_members(weft_json_span a, weft_json_span b, const char *but)
{
    const weft_json_span objects[2] = {a, b};
    size_t counts[2] = {0};
    for (int i = 0; i < 2; i++) {
        const char *cursor = NULL, *other_cursor;
        weft_json_span key, value, other_key, other;
        for (; weft_json_next(objects[i], &cursor, &key, &value); counts[i]++) {
            bool same = but && is_key(key, but);
            other_cursor = NULL;
            counts[i] -= same;
            while (!same && weft_json_next(objects[!i], &other_cursor, &other_key, &other))
                same = weft_json_are_equal(key, other_key) && weft_json_are_equal(value, other);
            if (!same)
                return false;
        }
    }
    return counts[0] == counts[1];
}

/* Whether the value is one of those that stand apart by '|'. */
static bool is_among(weft_json_span value, const char *values)
{
    for (const char *at = values; *at; at += strcspn(at, "|"), at += *at == '|')
        if (weft_json_are_equal(value, span_of(at, strcspn(at, "|"))))
            return true;
    return false;
}

static int shown(weft_json_span value)
{
    return value.bytes < 80 ? (int)value.bytes : 80;
}

static weft_status refuse(const reader *r, const char *key, weft_json_span value,
                          const char *values)
{
    return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %.*s; Weft's %s has %s alone", r->json->path, key,
                      shown(value), value.start, r->json->family->name, values);
}

static weft_status write_raw(reader *r, const char *key, weft_json_span value)
{
    const char *text;
    WEFT_TRY(weft_arena_printf(r->arena, &text, "%.*s", (int)value.bytes, value.start));
    weft_json_raw(&r->out, key, text);
    return WEFT_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the keys of an object, and refuses one that is there twice. */
static weft_status list_keys(const reader *r, weft_json_span object, const char ***out,
                             size_t *out_count)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    size_t count = 0;
    while (weft_json_next(object, &cursor, &key, &value))
        count++;
    const char **keys;
    WEFT_TRY(WEFT_ARRAY(r->arena, count + 1, &keys));
    *out = keys;
    *out_count = count;
    cursor = NULL;
    for (size_t i = 0; i < count && weft_json_next(object, &cursor, &key, &value); i++)
        WEFT_TRY(weft_arena_printf(r->arena, &keys[i], "%.*s", (int)key.bytes, key.start));
    qsort(keys, count, sizeof *keys, compare_texts);
    for (size_t i = 1; i < count; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "%s: %s stands there twice", r->json->path, keys[i]);
    return WEFT_OK;
}

/* --- keys ---------------------------------------------------------------------------------- */

static weft_status check_only(const reader *r, const weft_family_key *key, weft_json_span value)
{
    return is_among(value, key->values) ? WEFT_OK : refuse(r, key->key, value, key->values);
}

static weft_status check_each(const reader *r, const weft_family_key *key, weft_json_span list)
{
    const char *cursor = NULL;
    weft_json_span value;
    if (is_null(list))
        return WEFT_OK;
    if (weft_json_kind_of(list) != WEFT_JSON_ARRAY)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %s, not a list", r->json->path, key->key,
                          weft_json_kind_text(list));
    while (weft_json_next(list, &cursor, NULL, &value))
        WEFT_TRY(check_only(r, key, value));
    return WEFT_OK;
}

static weft_status write_opposite(reader *r, const weft_family_key *key, weft_json_span value)
{
    if (weft_json_kind_of(value) != WEFT_JSON_BOOL)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %s, neither true nor false", r->json->path,
                          key->key, weft_json_kind_text(value));
    weft_json_bool(&r->out, key->weft, *value.start == 'f');
    return WEFT_OK;
}

/* is_root: 1 over the number's root is written. */
static weft_status write_above_0(reader *r, const weft_family_key *key, weft_json_span value,
                                 bool is_root)
{
    const double number = strtod(value.start, NULL);
    if (weft_json_kind_of(value) != WEFT_JSON_NUMBER || !(number > 0))
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %.*s, not a number above 0", r->json->path,
                          key->key, shown(value), value.start);
    if (!is_root)
        return write_raw(r, key->weft, value);
    weft_json_number(&r->out, key->weft, 1 / sqrt(number));
    return WEFT_OK;
}

/* A number a layer: 1 for `ones`, which have a window or no positions, 0 for `zeros`; where there
 * is no list, what stands under `interval`, such as 4: every fourth layer. */
static weft_status write_by_layer(reader *r, const weft_family_key *key, weft_json_span list,
                                  const char *interval, const char *ones, const char *zeros,
                                  const char *wanted)
{
    const char *cursor = NULL;
    weft_json_span value;
    if (weft_json_kind_of(list) != WEFT_JSON_ARRAY) {
        (void)find_key(r, interval, &list);
        return write_raw(r, key->weft, list);
    }
    weft_json_open_flat(&r->out, key->weft, '[');
    while (weft_json_next(list, &cursor, NULL, &value)) {
        if (!is_among(value, ones) && !is_among(value, zeros))
            return refuse(r, key->key, value, wanted);
        weft_json_raw(&r->out, NULL, is_among(value, ones) ? "1" : "0");
    }
    weft_json_close(&r->out);
    return WEFT_OK;
}

static weft_status read_count(const reader *r, const char *key, weft_json_span value, int64_t *out)
{
    const double most = 1e12, number = strtod(value.start, NULL);
    if (weft_json_kind_of(value) != WEFT_JSON_NUMBER || !(number >= 0 && number <= most) ||
        number != floor(number))
        return WEFT_ERROR(WEFT_CONFIG, "%s: %.*s is %.*s, not a whole number from 0 to %g",
                          r->json->path, (int)strcspn(key, "|"), key, shown(value), value.start,
                          most);
    *out = (int64_t)number;
    return WEFT_OK;
}

/* 0 where the key is missing, or null. */
static weft_status find_count(const reader *r, const char *key, int64_t *out)
{
    weft_json_span value;
    *out = 0;
    return find_key(r, key, &value) && !is_null(value) ? read_count(r, key, value, out) : WEFT_OK;
}

static weft_status write_dense_first(reader *r, const weft_family_key *key, weft_json_span value)
{
    int64_t layers, dense = 0;
    WEFT_TRY(find_count(r, "num_hidden_layers", &layers));
    WEFT_TRY(read_count(r, key->key, value, &dense));
    if (dense >= layers || layers > MAX_LAYERS)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %.*s of %lld layers", r->json->path, key->key,
                          shown(value), value.start, (long long)layers);
    weft_json_open_flat(&r->out, key->weft, '[');
    for (int64_t i = 0; i < layers; i++)
        weft_json_raw(&r->out, NULL, i < dense ? "0" : "1");
    weft_json_close(&r->out);
    return WEFT_OK;
}

/* One shared expert of so many times an expert's width. */
static weft_status write_shared(reader *r, const weft_family_key *key, weft_json_span value)
{
    int64_t width, experts = 0;
    WEFT_TRY(find_count(r, "moe_intermediate_size", &width));
    WEFT_TRY(read_count(r, key->key, value, &experts));
    weft_json_number(&r->out, key->weft, (double)experts * (double)width);
    return WEFT_OK;
}

static weft_status read_key(reader *r, const weft_family_key *key)
{
    weft_json_span value;
    const bool takes =
        key->kind != WEFT_KEY_ONLY && key->kind != WEFT_KEY_EACH && key->kind != WEFT_KEY_OR_NONE;
    bool is_there = find_key(r, key->key, &value) && !(takes && is_null(value));
    if (!is_there && !key->missing)
        return WEFT_ERROR(WEFT_CONFIG, "%s: lacks %s, which a %s model needs", r->json->path,
                          key->key, r->json->family->name);
    if (!is_there && (!*key->missing || key->kind == WEFT_KEY_EACH))
        return WEFT_OK;
    if (!is_there)
        value = span_of(key->missing, strlen(key->missing));
    switch (key->kind) {
    case WEFT_KEY_SAME:
    case WEFT_KEY_OR_ONE:
        return write_raw(r, key->weft, value);
    case WEFT_KEY_BOUND:
        return write_above_0(r, key, value, false);
    case WEFT_KEY_NOT:
        return write_opposite(r, key, value);
    case WEFT_KEY_ONLY:
        return check_only(r, key, value);
    case WEFT_KEY_EACH:
        return check_each(r, key, value);
    case WEFT_KEY_DENSE_FIRST:
        return write_dense_first(r, key, value);
    case WEFT_KEY_SHARED:
        return write_shared(r, key, value);
    case WEFT_KEY_OR_NONE:
        return write_raw(r, key->weft, is_null(value) ? span_of("0", 1) : value);
    case WEFT_KEY_LAYERS:
        return write_by_layer(r, key, value, "sliding_window_pattern", weft_sliding_layer,
                              weft_full_layer, "\"sliding_attention\" and \"full_attention\"");
    case WEFT_KEY_ROOT:
        return write_above_0(r, key, value, true);
    case WEFT_KEY_ROPED:
        return write_by_layer(r, key, value, "no_rope_layer_interval", "0", "1", "0 and 1");
    }
    return WEFT_OK;
}

/* --- rotary positions ---------------------------------------------------------------------- */

/* What says it, and what it is called there. */
typedef struct rope_object {
    const char *name; /* NULL: nothing does */
    weft_json_span object;
    weft_json_span local; /* of layers with a window, where they have one of their own; or {0} */
} rope_object;

static bool find_in_rope(const rope_object *rope, const char *key, weft_json_span *out)
{
    return rope->name && find(rope->object, key, out) && !is_null(*out);
}

/* Of objects by layer's type, which nothing stands beside, the one of full attention; in *out the
 * other one. */
static weft_json_span by_layer(weft_json_span object, weft_json_span *out)
{
    weft_json_span full_one, other, key, value;
    const char *cursor = NULL;
    size_t count = 0;
    if (weft_json_kind_of(object) != WEFT_JSON_OBJECT ||
        !find(object, "full_attention", &full_one) || !find(object, "sliding_attention", &other))
        return object;
    while (weft_json_next(object, &cursor, &key, &value))
        count++;
    if (count > 2)
        return object;
    *out = other;
    return full_one;
}

static weft_status check_rope(const reader *r, const char *name, weft_json_span object)
{
    const char *cursor = NULL;
    weft_json_span key, value;
    if (weft_json_kind_of(object) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s is %s, not an object", r->json->path, name,
                          weft_json_kind_text(object));
    while (weft_json_next(object, &cursor, &key, &value))
        if (weft_json_kind_of(value) == WEFT_JSON_OBJECT)
            return WEFT_ERROR(WEFT_CONFIG, "%s: %s differs by layer (%.*s), which Weft has not",
                              r->json->path, name, shown(key), key.start);
    return WEFT_OK;
}

/* transformers 5 reads rope_parameters, and transformers 4 rope_scaling with a rope_theta beside
 * it. Where both are there they say the same. */
static weft_status find_rope(const reader *r, rope_object *out)
{
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    weft_json_span object, theta;
    *out = (rope_object){.name = NULL};
    for (int i = 0; i < 2; i++) {
        weft_json_span local = {0};
        if (!find_key(r, names[i], &object) || is_null(object))
            continue;
        if (i == 0 && r->json->family->rope_local) {
            object = by_layer(object, &local);
            if (!local.start)
                return WEFT_ERROR(WEFT_CONFIG,
                                  "%s: a %s model's rope_parameters has full_attention and "
                                  "sliding_attention, and nothing else",
                                  r->json->path, r->json->family->name);
        }
        WEFT_TRY(check_rope(r, names[i], object));
        if (local.start)
            WEFT_TRY(check_rope(r, names[i], local));
        const bool has_theta = find(object, "rope_theta", &theta);
        if (out->name && !have_same_members(out->object, object, has_theta ? NULL : "rope_theta"))
            return WEFT_ERROR(WEFT_CONFIG, "%s: rope_parameters and rope_scaling differ",
                              r->json->path);
        if (!out->name)
            *out = (rope_object){names[i], object, local};
    }
    return WEFT_OK;
}

static weft_status find_rope_type(const reader *r, const rope_object *rope,
                                  const weft_rope_type **out)
{
    weft_json_span type = span_of(weft_rope_types[0].type, strlen(weft_rope_types[0].type));
    const char *key = "rope_type";
    if (!find_in_rope(rope, key, &type) && find_in_rope(rope, "type", &type))
        key = "type";
    for (int i = 0; i < WEFT_NUM_ROPE_TYPES; i++)
        if (is_among(type, weft_rope_types[i].type)) {
            *out = &weft_rope_types[i];
            return WEFT_OK;
        }
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: %s.%s is %.*s; Weft has \"default\", \"linear\", \"llama3\" and "
                      "\"yarn\"",
                      r->json->path, rope->name, key, shown(type), type.start);
}

static weft_status read_rope_key(reader *r, const rope_object *rope, const weft_rope_key *key)
{
    weft_json_span value;
    if (!find_in_rope(rope, key->key, &value)) {
        if (!key->missing)
            return WEFT_ERROR(WEFT_CONFIG, "%s: %s lacks %s", r->json->path, rope->name, key->key);
        value = span_of(key->missing, strlen(key->missing));
    }
    return write_raw(r, key->weft, value);
}

static double number_in_rope(const rope_object *rope, const char *key)
{
    weft_json_span value;
    return find_in_rope(rope, key, &value) ? strtod(value.start, NULL) : 0;
}

static double magnitude_of(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* YaRN's rotated channels grow: as mscale and mscale_all_dim say where both are there. */
static weft_status read_magnitude(reader *r, const rope_object *rope)
{
    const double factor = number_in_rope(rope, "factor"),
                 asked = number_in_rope(rope, "attention_factor");
    double mscale = number_in_rope(rope, "mscale"), all = number_in_rope(rope, "mscale_all_dim");
    if (r->json->family->scales_scores && all != 0 && mscale == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s has mscale_all_dim without mscale", r->json->path,
                          rope->name);
    if (mscale == 0 || all == 0)
        mscale = 1, all = 0;
    const double is = magnitude_of(factor, mscale) / magnitude_of(factor, all);
    if (asked != 0 && fabs(asked - is) > 1e-6 * is)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: %s.attention_factor is %g; Weft has what factor and mscale say, %g, "
                          "alone",
                          r->json->path, rope->name, asked, is);
    weft_json_number(&r->out, "yarn_mscale", mscale);
    weft_json_number(&r->out, "yarn_mscale_all_dim", all);
    return WEFT_OK;
}

/* A key of the rotary positions: in rope_parameters, or by itself. */
static bool find_rope_key(const reader *r, const rope_object *rope, const char *name,
                          weft_json_span *out)
{
    return find_in_rope(rope, name, out) || (find_key(r, name, out) && !is_null(*out));
}

/* Layers with a window have a base of their own and no scaling. Where nothing says their base,
 * transformers 4 has that of the others, and transformers 5 that of the published model. */
static weft_status read_local_rope(reader *r, const rope_object *rope, weft_json_span theta)
{
    const char *local = r->json->family->rope_local, *usual = r->json->family->rope_theta;
    weft_json_span value, type;
    if (!local)
        return WEFT_OK;
    if (rope->local.start && find(rope->local, "rope_type|type", &type) &&
        !is_among(type, weft_rope_types[0].type))
        return refuse(r, "rope_parameters.sliding_attention.rope_type", type,
                      weft_rope_types[0].type);
    if (rope->local.start && find(rope->local, "rope_theta", &value) && !is_null(value))
        return write_raw(r, "rotary_base_local", value);
    if (find_key(r, "rope_local_base_freq", &value) && !is_null(value))
        return write_raw(r, "rotary_base_local", value);
    if (!*local && strtod(theta.start, NULL) != strtod(usual, NULL))
        return WEFT_ERROR(
            WEFT_CONFIG,
            "%s: rope_theta is %.*s, which is of all layers in transformers 4, and in "
            "transformers 5 not of those with a window, which have %g: "
            "rope_parameters.sliding_attention.rope_theta would say it",
            r->json->path, shown(theta), theta.start, strtod(usual, NULL));
    return write_raw(r, "rotary_base_local", *local ? span_of(local, strlen(local)) : theta);
}

/* By itself and inside it is the same: each generation of transformers reads another one. */
static weft_status check_theta(const reader *r, const rope_object *rope)
{
    weft_json_span inside, beside;
    if (find_in_rope(rope, "rope_theta", &inside) && find_key(r, "rope_theta", &beside) &&
        !is_null(beside) && strtod(inside.start, NULL) != strtod(beside.start, NULL))
        return WEFT_ERROR(WEFT_CONFIG, "%s: rope_theta is %.*s, and in %s %.*s", r->json->path,
                          shown(beside), beside.start, rope->name, shown(inside), inside.start);
    return WEFT_OK;
}

/* Adds an object's keys that nothing reads to those of the whole. */
static weft_status ignore_in_rope(reader *r, const char *name, weft_json_span object)
{
    static const char read[] = "rope_type|type|rope_theta|partial_rotary_factor|attention_factor|"
                               "mscale|mscale_all_dim";
    weft_string_list *ignored = &r->json->ignored;
    const char **keys, **all;
    size_t count;
    WEFT_TRY(list_keys(r, object, &keys, &count));
    WEFT_TRY(WEFT_ARRAY(r->arena, ignored->count + count + 1, &all));
    memcpy(all, ignored->values, ignored->count * sizeof *all);
    ignored->values = all;
    for (size_t i = 0; i < count; i++) {
        const weft_json_span key = span_of(keys[i], strlen(keys[i]));
        bool is_read = is_key(key, read);
        for (int k = 0; k < WEFT_NUM_ROPE_KEYS; k++)
            is_read = is_read || is_key(key, weft_rope_keys[k].key);
        if (is_read)
            continue;
        WEFT_TRY(weft_json_string(key, r->arena, &keys[i]));
        WEFT_TRY(weft_arena_printf(r->arena, &all[ignored->count++], "%s.%s", name, keys[i]));
    }
    return WEFT_OK;
}

static weft_status ignore_in_ropes(reader *r, const rope_object *rope)
{
    const char *full_one, *local;
    r->json->rope = rope->name;
    if (!rope->name)
        return WEFT_OK;
    if (!rope->local.start)
        return ignore_in_rope(r, rope->name, rope->object);
    WEFT_TRY(weft_arena_printf(r->arena, &full_one, "%s.full_attention", rope->name));
    WEFT_TRY(weft_arena_printf(r->arena, &local, "%s.sliding_attention", rope->name));
    WEFT_TRY(ignore_in_rope(r, full_one, rope->object));
    return ignore_in_rope(r, local, rope->local);
}

static weft_status read_rope(reader *r)
{
    const char *theta = r->json->family->rope_theta;
    weft_json_span value;
    const weft_rope_type *type = NULL;
    rope_object rope;
    if (!theta)
        return WEFT_OK;
    WEFT_TRY(find_rope(r, &rope));
    if (!rope.name && r->json->family->must_scale)
        return WEFT_ERROR(WEFT_CONFIG, "%s: lacks rope_parameters, and rope_scaling as well",
                          r->json->path);
    WEFT_TRY(check_theta(r, &rope));
    WEFT_TRY(ignore_in_ropes(r, &rope));
    WEFT_TRY(find_rope_type(r, &rope, &type));
    if (r->json->family->rotates_part) {
        if (!find_rope_key(r, &rope, "partial_rotary_factor", &value))
            value = span_of("0.5", 3);
        WEFT_TRY(write_raw(r, "rotary_percent", value));
    } else if (find_rope_key(r, &rope, "partial_rotary_factor", &value) && !is_among(value, "1"))
        return refuse(r, "partial_rotary_factor", value, "1");
    if (!find_rope_key(r, &rope, "rope_theta", &value))
        value = span_of(theta, strlen(theta));
    WEFT_TRY(write_raw(r, "rotary_base", value));
    WEFT_TRY(read_local_rope(r, &rope, value));
    weft_json_raw(&r->out, "rotary_scaling_type", type->weft);
    for (int i = 0; i < WEFT_NUM_ROPE_KEYS; i++)
        if (weft_rope_keys[i].types & type->bit)
            WEFT_TRY(read_rope_key(r, &rope, &weft_rope_keys[i]));
    if (type->bit == WEFT_ROPE_YARN)
        return read_magnitude(r, &rope);
    if (r->json->family->scales_scores && type->bit != WEFT_ROPE_DEFAULT &&
        number_in_rope(&rope, "mscale_all_dim") != 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s has mscale_all_dim, which Weft has for yarn alone",
                          r->json->path, rope.name);
    return WEFT_OK;
}

/* --- the whole ----------------------------------------------------------------------------- */

/* transformers goes by model_type: another family there is another model. */
static weft_status check_type(const reader *r)
{
    weft_json_span type;
    const weft_family *family;
    if (!find(r->root, "model_type", &type) || is_key(type, r->json->family->model_type))
        return WEFT_OK;
    for (size_t i = 0; (family = weft_family_at(r->json->application, i)) != NULL; i++)
        if (is_key(type, family->model_type))
            return WEFT_ERROR(WEFT_CONFIG, "%s: the architecture is %s, but model_type is %s's",
                              r->json->path, r->json->family->architecture, family->architecture);
    return WEFT_OK;
}

static weft_status find_family(reader *r)
{
    weft_json_span list, value = {"null", 4};
    const char *cursor = NULL;
    if (find(r->root, "architectures", &list) && weft_json_kind_of(list) == WEFT_JSON_ARRAY)
        (void)weft_json_next(list, &cursor, NULL, &value);
    if (is_null(value))
        (void)find(r->root, "model_type", &value);
    const weft_application *own = r->json->application;
    const weft_family *family;
    for (size_t i = 0; (family = weft_family_at(own, i)) != NULL; i++)
        if (is_key(value, family->architecture) || is_key(value, family->model_type)) {
            r->json->family = family;
            return check_type(r);
        }
    char all[WEFT_FAMILIES_TEXT_BYTES];
    return WEFT_ERROR(WEFT_CONFIG, "%s: the architecture is %.*s; Weft has %s", r->json->path,
                      shown(value), value.start, weft_families_text(own, true, all));
}

/* fp8 as DeepSeek has it, MXFP4 as GPT-OSS: numbers say themselves which tensors are. */
static bool is_scaled_blocks(weft_json_span quantization, weft_json_span method)
{
    weft_json_span sizes, size;
    const char *cursor = NULL;
    int count = 0;
    if (is_key(method, "mxfp4"))
        return true;
    if (!is_key(method, "fp8") || !find(quantization, "weight_block_size", &sizes) ||
        weft_json_kind_of(sizes) != WEFT_JSON_ARRAY)
        return false;
    while (weft_json_next(sizes, &cursor, NULL, &size))
        count += is_among(size, "128") ? 1 : 3;
    return count == 2;
}

static weft_status check_quantization(const reader *r)
{
    static const char *const names[] = {"quantization_config", "compression_config"};
    weft_json_span value, method = {"unnamed", 7};
    for (int i = 0; i < 2; i++)
        if (find_key(r, names[i], &value) && !is_null(value)) {
            if (weft_json_kind_of(value) == WEFT_JSON_OBJECT)
                (void)find(value, "quant_method", &method);
            if (i == 0 && is_scaled_blocks(value, method))
                continue;
            return WEFT_ERROR(WEFT_CONFIG,
                              "%s: %s: quantised weights (%.*s), which Weft does not read",
                              r->json->path, names[i], shown(method), method.start);
        }
    return WEFT_OK;
}

static bool is_read(const weft_family *family, weft_json_span key)
{
    static const char *const always[] = {
        "architectures",         "model_type",           "dtype",
        "torch_dtype",           "text_config",          "rope_theta",
        "rope_scaling",          "rope_parameters",      "quantization_config",
        "partial_rotary_factor", "rope_local_base_freq", "sliding_window_pattern",
        "no_rope_layer_interval"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (is_key(key, always[i]))
            return true;
    for (size_t i = 0; i < family->num_keys; i++)
        if (is_key(key, family->keys[i].key))
            return true;
    return family->next_layers && is_key(key, family->next_layers);
}

static weft_status list_ignored(reader *r)
{
    const char **keys;
    size_t count, used = 0;
    WEFT_TRY(list_keys(r, r->part, &keys, &count));
    for (size_t i = 0; i < count; i++) {
        const weft_json_span key = span_of(keys[i], strlen(keys[i]));
        if (!is_read(r->json->family, key))
            WEFT_TRY(weft_json_string(key, r->arena, &keys[used++]));
    }
    r->json->ignored = (weft_string_list){.values = keys, .count = used};
    return WEFT_OK;
}

/* Of a context that the model bears Weft trains a part, unless it is told another. */
static void write_seq_length(reader *r)
{
    for (size_t i = 0; i < r->json->family->num_keys; i++) {
        const weft_family_key *key = &r->json->family->keys[i];
        weft_json_span value;
        if (!key->weft || strcmp(key->weft, "max_position_embeddings") != 0 ||
            !find_key(r, key->key, &value))
            continue;
        const double longest = strtod(value.start, NULL);
        weft_json_number(&r->out, "seq_length",
                         longest < MAX_SEQ_LENGTH ? longest : MAX_SEQ_LENGTH);
    }
}

static weft_status read_model(reader *r)
{
    const weft_family *family = r->json->family;
    weft_json_open(&r->out, NULL, '{');
    if (family->build)
        weft_json_text(&r->out, "family", family->model_type);
    for (size_t i = 0; i < family->num_fixed; i++)
        weft_json_raw(&r->out, family->fixed[i].weft, family->fixed[i].value);
    for (size_t i = 0; i < family->num_keys; i++)
        WEFT_TRY(read_key(r, &family->keys[i]));
    WEFT_TRY(read_rope(r));
    write_seq_length(r);
    if (family->next_layers)
        WEFT_TRY(find_count(r, family->next_layers, &r->json->next_layers));
    if (r->json->next_layers > 0 && !r->json->lacks_next_layers)
        weft_json_number(&r->out, "mtp_num_layers", (double)r->json->next_layers);
    weft_json_close(&r->out);
    return WEFT_OK;
}

static weft_status parse(reader *r)
{
    weft_json_fault fault;
    const char *path = r->json->path;
    if (!weft_json_check(r->json->text, &r->root, &fault)) {
        int line, column;
        weft_json_position(r->json->text, fault.at, &line, &column);
        return WEFT_ERROR(WEFT_CONFIG, "%s:%d:%d: %s", path, line, column, fault.reason);
    }
    if (weft_json_kind_of(r->root) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_CONFIG, "%s: %s, not an object", path, weft_json_kind_text(r->root));
    if (!find(r->root, "text_config", &r->part) || weft_json_kind_of(r->part) != WEFT_JSON_OBJECT)
        r->part = r->root;
    const char **keys;
    size_t count;
    return list_keys(r, r->root, &keys, &count);
}

weft_status weft_config_json_take(weft_config_json *out, weft_arena *arena)
{
    reader r = {.json = out, .arena = arena};
    weft_new_text model;
    WEFT_TRY(parse(&r));
    WEFT_TRY(find_family(&r));
    WEFT_TRY(check_quantization(&r));
    WEFT_TRY(list_ignored(&r));
    WEFT_TRY(weft_new_text_open(&model));
    r.out.file = model.file;
    return weft_new_text_close(&model, read_model(&r), arena, &out->model);
}

weft_status weft_config_json_read(const char *path, const weft_application *application,
                                  weft_arena *arena, weft_config_json *out)
{
    char *text;
    *out = (weft_config_json){.path = path, .application = application};
    WEFT_TRY(weft_file_read_text(path, arena, &text, NULL));
    out->text = text;
    return weft_config_json_take(out, arena);
}

/* What is behind ": model.KEY: " in an error of a config; NULL: it is not of that key. */
static const char *behind_key(const char *error, const char *key)
{
    char named[96];
    const int bytes = snprintf(named, sizeof named, ": model.%s: ", key);
    const char *at = strstr(error, named);
    return at ? at + bytes : NULL;
}

/* An error of section "model" by the file's own key. */
static weft_status name_own_key(const weft_config_json *json, weft_arena *arena, weft_status status)
{
    const char *error, *key = NULL, *rest = NULL;
    if (status != WEFT_CONFIG)
        return status;
    WEFT_TRY(weft_arena_strdup(arena, weft_error_get()->text, &error));
    for (size_t i = 0; !rest && i < json->family->num_keys; i++)
        if (json->family->keys[i].weft && (rest = behind_key(error, json->family->keys[i].weft)))
            WEFT_TRY(weft_first_spelling(json->family->keys[i].key, arena, &key));
    for (int i = 0; !rest && i < WEFT_NUM_ROPE_KEYS; i++)
        if ((rest = behind_key(error, weft_rope_keys[i].weft)))
            WEFT_TRY(weft_arena_printf(arena, &key, "%s%s%s", json->rope ? json->rope : "",
                                       json->rope ? "." : "", weft_rope_keys[i].key));
    if (!rest && (rest = behind_key(error, "rotary_base")))
        key = "rope_theta";
    return rest ? WEFT_ERROR(status, "%s: %s: %s", json->path, key, rest) : status;
}

weft_status weft_config_json_load(const weft_config_json *json, weft_arena *arena, weft_config *out)
{
    weft_config_source source = {.no_data = true, .application = json->application};
    WEFT_TRY(weft_arena_printf(arena, &source.file, "%s, as section model", json->path));
    WEFT_TRY(weft_arena_printf(arena, &source.text, "{\"model\": %s}", json->model));
    WEFT_TRY(name_own_key(json, arena, weft_config_load(&source, arena, out)));
    const char *wrong = json->family->check ? json->family->check(&out->model) : NULL;
    return wrong ? WEFT_ERROR(WEFT_CONFIG, "%s: %s", json->path, wrong) : WEFT_OK;
}

weft_status weft_config_json_without_scales(const weft_config_json *json, weft_arena *arena,
                                            const char **out)
{
    weft_json_span root, key, value;
    weft_json_fault fault;
    const char *cursor = NULL, *before = NULL;
    *out = json->text;
    if (!weft_json_check(json->text, &root, &fault))
        return WEFT_ERROR(WEFT_INTERNAL, "%s: %s", json->path, fault.reason);
    for (; weft_json_next(root, &cursor, &key, &value); before = value.start + value.bytes) {
        if (!is_key(key, "quantization_config") || is_null(value))
            continue;
        const char *end = value.start + value.bytes;
        if (!before) { /* the first: with the comma behind it */
            before = key.start;
            end += strspn(end, " \t\r\n");
            end += *end == ',';
            end += strspn(end, " \t\r\n");
        }
        return weft_arena_printf(arena, out, "%.*s%s", (int)(before - json->text), json->text, end);
    }
    return WEFT_OK;
}

weft_status weft_config_json_set_dtype(const weft_config_json *json, const char *dtype,
                                       weft_arena *arena, const char **out)
{
    static const char *const names[] = {"dtype", "torch_dtype"};
    weft_json_span root, value;
    weft_json_fault fault;
    *out = json->text;
    if (!weft_json_check(json->text, &root, &fault))
        return WEFT_ERROR(WEFT_INTERNAL, "%s: %s", json->path, fault.reason);
    for (int i = 0; i < 2; i++)
        if (find(root, names[i], &value))
            return weft_arena_printf(arena, out, "%.*s\"%s\"%s", (int)(value.start - json->text),
                                     json->text, dtype, value.start + value.bytes);
    return WEFT_OK;
}
