/* What the slots of programs are memory for. */
#ifndef WEFT_SCHEDULE_SLOTS_H
#define WEFT_SCHEDULE_SLOTS_H

/* name, text */
#define WEFT_SLOT_LIST(X)                                                                          \
    X(ACTIVATION, "activation")                                                                    \
    X(OUTPUT, "output")                                                                            \
    X(GRADIENT, "gradient")                                                                        \
    X(INPUT_GRADIENT, "input_gradient")                                                            \
    X(LAYER, "layer")                                                                              \
    X(LAYER_STASH, "layer_stash")                                                                  \
    X(LAYER_GRADIENT, "layer_gradient")                                                            \
    X(WEIGHTS, "weights")                                                                          \
    X(WEIGHT_GRADIENTS, "weight_gradients")                                                        \
    X(HOME, "home")                                                                                \
    X(T_DI, "T_DI")                                                                                \
    X(T_M, "T_M")                                                                                  \
    X(T_DO, "T_DO")                                                                                \
    X(RESULT, "result")                                                                            \
    X(HOST_T_DI, "host_T_DI")                                                                      \
    X(HOST_T_M, "host_T_M")                                                                        \
    X(DT_DO, "dT_DO")                                                                              \
    X(DT_M, "dT_M")                                                                                \
    X(DT_DI, "dT_DI")                                                                              \
    X(RESULT_GRADIENT, "result_gradient")                                                          \
    X(ARRIVED, "arrived")                                                                          \
    X(GATHERED, "gathered")                                                                        \
    X(RECOMPUTED, "recomputed")                                                                    \
    X(RECOMPUTED_LAYER, "recomputed_layer")                                                        \
    X(DEFERRED, "deferred")                                                                        \
    X(KEYS, "keys")                                                                                \
    X(KEYS_GRADIENT, "keys_gradient")                                                              \
    X(OWN_GRADIENT, "own_gradient")                                                                \
    X(PARTIAL, "partial")                                                                          \
    X(HEADS, "heads")                                                                              \
    X(HEADS_GRADIENT, "heads_gradient")                                                            \
    X(OFFLOADED, "offloaded")                                                                      \
    X(OFFLOADED_LAYER, "offloaded_layer")                                                          \
    X(HOST_STASH, "host_stash")                                                                    \
    X(EXPERT_WEIGHTS, "expert_weights")                                                            \
    X(EXPERT_GRADIENTS, "expert_gradients")                                                        \
    X(HOST_WEIGHTS, "host_weights")                                                                \
    X(HOST_GRADIENTS, "host_gradients")                                                            \
    X(HOST_STAGING, "host_staging")

typedef enum weft_slot_kind {
#define WEFT_SLOT_ENUM(name, text) WEFT_SLOT_##name,
    WEFT_SLOT_LIST(WEFT_SLOT_ENUM)
#undef WEFT_SLOT_ENUM
        WEFT_NUM_SLOT_KINDS
} weft_slot_kind;

#endif
