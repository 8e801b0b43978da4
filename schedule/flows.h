/* What tasks move or make. */
#ifndef WEFT_SCHEDULE_FLOWS_H
#define WEFT_SCHEDULE_FLOWS_H

/* Messages, layers, dispatches, experts and combines: activations (forward) or gradients
 * (backward). Offloads and prefetches: the input, T_DI, the middle, T_M, or a layer's stash.
 * Gathers and uploads: weights. Downloads and accumulations: gradients. Reads and writes of a file:
 * for an expert's weights, its update's all; for its gradient. Sums: over the
 * tensor-parallel group or between tied embeddings. Recomputations: a layer's activation, or the
 * stash that a backward takes first. Under context parallelism: a block's keys and values; a
 * backward's own block; heads for sequence, and their gradients. name, text, letters in timelines
 */
#define WEFT_FLOW_LIST(X)                                                                          \
    X(NONE, "", "")                                                                                \
    X(ACTIVATION, "activation", "")                                                                \
    X(GRADIENT, "gradient", "g")                                                                   \
    X(INPUT, "input", "i")                                                                         \
    X(MIDDLE, "middle", "m")                                                                       \
    X(WEIGHT, "weight", "w")                                                                       \
    X(TENSOR, "tensor", "t")                                                                       \
    X(TIED, "tied", "e")                                                                           \
    X(STASH, "stash", "s")                                                                         \
    X(KEYS, "keys", "k")                                                                           \
    X(OWN, "own", "o")                                                                             \
    X(HEADS, "heads", "h")                                                                         \
    X(HEADS_GRADIENT, "heads_gradient", "hg")

typedef enum weft_flow {
#define WEFT_FLOW_ENUM(name, text, letters) WEFT_FLOW_##name,
    WEFT_FLOW_LIST(WEFT_FLOW_ENUM)
#undef WEFT_FLOW_ENUM
        WEFT_NUM_FLOWS
} weft_flow;

#endif
