/* What config_json.c, which reads a config.json, and config_json_make.c, which writes one, share.
 */
#ifndef WEFT_LAUNCHER_MODELS_CONFIG_JSON_INTERNAL_H
#define WEFT_LAUNCHER_MODELS_CONFIG_JSON_INTERNAL_H

#include <stdbool.h>

#include "core/arena.h"
#include "core/json.h"

/* How frequencies may be scaled: weft_rope_type and Weft's rotary_scaling_type. */
enum {
    WEFT_ROPE_DEFAULT = 1,
    WEFT_ROPE_LINEAR = 2,
    WEFT_ROPE_LLAMA3 = 4,
    WEFT_ROPE_YARN = 8,
    WEFT_NUM_ROPE_TYPES = 4,
    WEFT_NUM_ROPE_KEYS = 7
};

typedef struct weft_rope_type {
    const char *type, *weft; /* JSON */
    unsigned bit;
} weft_rope_type;

typedef struct weft_rope_key {
    const char *key, *weft, *missing; /* as of weft_family_key */
    unsigned types;
} weft_rope_key;

extern const weft_rope_type weft_rope_types[WEFT_NUM_ROPE_TYPES];
extern const weft_rope_key weft_rope_keys[WEFT_NUM_ROPE_KEYS];
/* Values of layer_types. */
extern const char weft_sliding_layer[], weft_full_layer[];

/* Numbers by value, all else as it is written. */
bool weft_json_are_equal(weft_json_span a, weft_json_span b);
/* Of several with '|' between them. In the arena. */
weft_status weft_first_spelling(const char *name, weft_arena *arena, const char **out) WEFT_CHECKED;

#endif
