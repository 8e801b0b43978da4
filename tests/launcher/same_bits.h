/* What a change of where activations are kept must not change: losses, gradient norms and dropped
 * tokens of a mesh, to the bit. */
#ifndef WEFT_TESTS_LAUNCHER_SAME_BITS_H
#define WEFT_TESTS_LAUNCHER_SAME_BITS_H

#include "tests/launcher/meshes.h"

#define SAME_GPT2(layers) MESH_SIZES(layers) SAME_DROPOUT "}"
#define SAME_LLAMA(layers)                                                                         \
    MESH_SIZES(layers)                                                                             \
    ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "                \
    "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true}"
/* Experts that drop tokens; freq: moe_layer_freq of the layers. */
#define SAME_MOE(layers, freq)                                                                     \
    MESH_SIZES(layers)                                                                             \
    SAME_DROPOUT ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": "      \
                 "0.005, \"moe_expert_capacity_factor\": 1.0, \"moe_layer_freq\": [" freq "], "    \
                 "\"moe_shared_expert_intermediate_size\": 16}"
#define SAME_DROPOUT ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1"

/* Keys of section "train" and "parallel", each behind a comma. */
#define SELECTIVE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
#define PARTS(n, reuse) ", \"moe_num_partitions\": " #n ", \"moe_memory_reuse\": \"" #reuse "\""
#define FORM(form, chunks)                                                                         \
    ", \"moe_all_to_all\": \"" #form "\", \"moe_all_to_all_chunks\": " #chunks

typedef struct same_case {
    int world; /* ranks */
    const char *model, *mesh;
    const char *parallel; /* more keys of section "parallel"; NULL: none */
    const char *train;    /* more keys of section "train" */
    const char *change;   /* more of them, with which bits stay the same */
} same_case;

/* Trains every case with its change, and `also` behind the keys of section "parallel", and without,
 * the last num_packed of them on packed documents. Returns what main returns. Run with 4 ranks. */
int same_bits_main(const same_case *cases, int num_cases, int num_packed, const char *also);

#endif
