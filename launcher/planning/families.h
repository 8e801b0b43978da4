/* The families of weft (examples/families) and of a program. */
#ifndef WEFT_LAUNCHER_PLANNING_FAMILIES_H
#define WEFT_LAUNCHER_PLANNING_FAMILIES_H

#include <weft/application.h>

/* In the order in which an export looks for the family of a model that names none. */
#define WEFT_FAMILIES(X)                                                                           \
    X(gpt2)                                                                                        \
    X(llama)                                                                                       \
    X(mistral)                                                                                     \
    X(qwen2)                                                                                       \
    X(qwen3)                                                                                       \
    X(mixtral)                                                                                     \
    X(qwen3_moe)                                                                                   \
    X(olmo2)                                                                                       \
    X(olmo3)                                                                                       \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(gpt_oss)                                                                                     \
    X(glm4_moe)                                                                                    \
    X(deepseek_v3)                                                                                 \
    X(minimax_m2)                                                                                  \
    X(smollm3)

#define WEFT_FAMILY_DECLARE(name) extern const weft_family weft_family_##name;
WEFT_FAMILIES(WEFT_FAMILY_DECLARE)

/* The family at `index`, a program's own before Weft's; NULL behind the last. application NULL: it
 * has none. */
const weft_family *weft_family_at(const weft_application *application, size_t index);
/* The family of this model_type; NULL: there is none. *out_own: it is a program's own. */
const weft_family *weft_family_named(const weft_application *application, const char *model_type,
                                     bool *out_own);

enum { WEFT_FAMILIES_TEXT_BYTES = 512 };
/* Their model_types, or their architectures, as "a, b, c". */
const char *weft_families_text(const weft_application *application, bool architectures,
                               char out[WEFT_FAMILIES_TEXT_BYTES]);

#endif
