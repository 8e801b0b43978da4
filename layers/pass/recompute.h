/* Recomputation: parts of a forward are not kept, and made again for backward. Pure.
 *
 * full: of a group of layers (never the model's first or last) only the first one's input is kept,
 * and tasks run their forward again (schedule/pass.h). selective: a layer leaves a module's part
 * out of its stash, and its backward makes that part again. The part lies in an area that all
 * passes of a rank share, since they run on one lane. Its bytes count as activations of module
 * "recomputed". */
#ifndef WEFT_LAYERS_PASS_RECOMPUTE_H
#define WEFT_LAYERS_PASS_RECOMPUTE_H

#include "core/options/options.h"
#include "parallel/mesh/mesh.h"

typedef enum weft_recompute_granularity {
    WEFT_RECOMPUTE_NONE,
    WEFT_RECOMPUTE_FULL,
    WEFT_RECOMPUTE_SELECTIVE,
} weft_recompute_granularity;

typedef enum weft_recompute_method {
    WEFT_RECOMPUTE_UNIFORM, /* all layers, in groups of recompute_num_layers */
    WEFT_RECOMPUTE_BLOCK,   /* the first recompute_num_layers of each virtual stage, one by one */
} weft_recompute_method;

/* Modules, bits of weft_shape.recompute. name, text */
#define WEFT_RECOMPUTE_MODULE_LIST(X)                                                              \
    X(CORE_ATTN, "core_attn")                                                                      \
    X(MLA_UP_PROJ, "mla_up_proj")                                                                  \
    X(MLP, "mlp")                                                                                  \
    X(MOE, "moe")                                                                                  \
    X(SHARED_EXPERTS, "shared_experts")                                                            \
    X(LAYERNORM, "layernorm")                                                                      \
    X(MOE_ACT, "moe_act")
enum {
#define WEFT_RECOMPUTE_ENUM(name, text) WEFT_RECOMPUTE_BIT_##name,
    WEFT_RECOMPUTE_MODULE_LIST(WEFT_RECOMPUTE_ENUM)
#undef WEFT_RECOMPUTE_ENUM
        WEFT_NUM_RECOMPUTE_MODULES
};
#define WEFT_RECOMPUTE_MODULE(name) (1u << WEFT_RECOMPUTE_BIT_##name)
/* No norm's and no activation's output is ever kept. */
#define WEFT_RECOMPUTE_ALWAYS (WEFT_RECOMPUTE_MODULE(LAYERNORM) | WEFT_RECOMPUTE_MODULE(MOE_ACT))

typedef struct weft_recompute_options { /* of section "train" */
    int granularity, method;            /* weft_recompute_granularity, weft_recompute_method */
    int64_t num_layers;
    weft_string_list modules;
} weft_recompute_options;

/* The modules as bits; 0 unless selective. Errors: WEFT_CONFIG with the key, for unknown ones. */
weft_status weft_recompute_modules(const weft_recompute_options *options,
                                   unsigned *out) WEFT_CHECKED;
/* Whether the options name modules that are always recomputed, for a line at start-up. */
bool weft_recompute_names_always(const weft_recompute_options *options);

/* Full: a layer's group in its virtual stage, from 1; 0: kept, like the list's first and last
 * layer. options NULL: none. */
int weft_recompute_group(const weft_recompute_options *options, const weft_layout *layout,
                         int layer);

#endif
