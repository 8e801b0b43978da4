/* A family of models: a function that adds its layers, what its models always have, and how Hugging
 * Face's files hold one: how their config.json is section "model", and a table of names. One table
 * serves import and export, and is total in both directions: each tensor of the files is used once
 * or named in `ignored`, each element of each parameter is filled once.
 *
 * Names are patterns: {layer} and {expert} stand for numbers from 0. A row holds for those layers
 * and experts whose parameter the model has, so that one table is of dense and MoE layers, of tied
 * and untied heads. Where several rows fill the same parameter (experts one by one, or all in one
 * tensor), the files have one form or the other; export writes the first row's. */
#ifndef WEFT_FAMILY_H
#define WEFT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What of the parameter the tensor is. Rows are outputs. A parameter of experts has an axis of
 * experts before all others; a pattern with {expert} is of one of them, another of all. */
typedef enum weft_name_layout {
    WEFT_NAME_WHOLE,
    WEFT_NAME_QUERY,   /* of packed QKV, [q..., k, v] a group: the rows of all queries, */
    WEFT_NAME_KEY,     /* of all keys, */
    WEFT_NAME_VALUE,   /* of all values */
    WEFT_NAME_QKV,     /* those three, behind each other */
    WEFT_NAME_GATE,    /* of a gated [2, F, H]: the first F rows, */
    WEFT_NAME_UP,      /* the others */
    WEFT_NAME_GATE_UP, /* both, behind each other */
    WEFT_NAME_PAIRS,   /* both, row by row: gate's first, up's first, gate's second */
    WEFT_NAME_COPY, /* the file may have it as well: the same as what fills the parameter, where no
                       other tensor does; a tied head */
} weft_name_layout;

typedef struct weft_family_name {
    const char *file, *parameter; /* patterns */
    weft_name_layout layout;
    bool transposed; /* the file has [in, out] */
} weft_family_name;

/* What a key of config.json becomes. */
typedef enum weft_family_kind {
    WEFT_KEY_SAME,    /* the value of Weft's key */
    WEFT_KEY_NOT,     /* the opposite of a flag */
    WEFT_KEY_ONLY,    /* nothing: Weft has the one value alone */
    WEFT_KEY_EACH,    /* the same of each entry of a list */
    WEFT_KEY_OR_NONE, /* a number: null is 0 */
    WEFT_KEY_LAYERS,  /* window_attn_skip_freq: sliding_attention and full_attention, one a layer;
                         missing: every N-th is full, or with "" all have the window, if
                         there is one, and the list is not written */
    WEFT_KEY_ROOT,    /* 1 / its square root */
    WEFT_KEY_ROPED,   /* no_rope_freq: 1, the layer has rotary positions, and 0, one a layer;
                         missing: every no_rope_layer_interval-th has none, or every N-th */
    WEFT_KEY_DENSE_FIRST, /* how many layers are dense before MoE ones: a list */
    WEFT_KEY_SHARED,      /* how many experts of moe_ffn_hidden_size all tokens pass: their width */
    WEFT_KEY_OR_ONE,      /* a number: where Weft has 0 the file has 1, which means the same */
    WEFT_KEY_BOUND,       /* a number above 0: where Weft has 0, no bound, the file has 1e30 */
} weft_family_kind;

typedef struct weft_family_key {
    const char *key; /* in config.json; other spellings behind '|', the first is written */
    weft_family_kind kind;
    const char *weft;    /* of section "model"; NULL: none */
    const char *missing; /* JSON: what it means that the file lacks the key (SAME, NOT: or has
                            null); NULL: it must have it; "": Weft's key keeps its own default */
    const char *values;  /* JSON, those that Weft can hold, apart by '|', the first one written;
                            NULL:  any; of SAME what is written for `missing`, of OR_NONE for 0
                            (of a window that no layer has) in place of null */
} weft_family_key;

/* Of section "model": what the family always has and Weft's default is not. */
typedef struct weft_family_fixed {
    const char *weft, *value; /* JSON */
} weft_family_fixed;

/* Fixed. A program has its own in weft_application.families. */
typedef struct weft_family {
    const char *name, *architecture, *model_type;
    const char *root, *other_root; /* names that begin with `root` may begin so; NULL: none */
    const char *rope_theta; /* where config.json, which has three spellings, says nothing of it;
                               NULL: the family has no rotary positions */
    const char *rope_local; /* of layers with a window; "": rope_theta; NULL: they are as all */
    bool must_scale;   /* config.json has to say how positions are scaled: transformers else has a
                          scaling of the family's own */
    bool rotates_part; /* partial_rotary_factor, 0.5 where it is missing */
    const char *next_layers; /* the key that says how many layers the files may have behind the last
                                one, for multi-token prediction (mtp_num_layers). NULL: none */
    bool scales_scores;      /* YaRN's mscale_all_dim is of attention's scores as well */
    /* Why Weft has another function than these options are for; NULL: it has not. Optional. */
    const char *(*check)(const weft_model_options *options);
    /* Adds the layers of a model whose config names the family (model.family is model_type). NULL:
     * weft_model_build_gpt does. */
    weft_model_function build;
    const weft_family_fixed *fixed;
    const weft_family_key *keys;
    const weft_family_name *names;
    const char *const *ignored; /* patterns of tensors that are no parameters */
    size_t num_fixed, num_keys, num_names, num_ignored;
} weft_family;

/* `check` of a family with DeepSeek's router: sigmoids, groups of experts, a shared one. */
const char *weft_family_check_router(const weft_model_options *options);

#ifdef __cplusplus
}
#endif
#endif
