/* What tasks move or make. */
#ifndef WEFT_SCHEDULE_FLOWS_H
#define WEFT_SCHEDULE_FLOWS_H

/* Messages, layers, dispatches, experts and combines move activations (forward) or gradients
 * (backward). Offloads and prefetches move T_DI (input), T_M (middle) or a layer's stash. Gathers
 * and uploads move weights; downloads and accumulations move gradients. Reads and writes of a file
 * serve an expert's weights (in the update, with its optimizer state) or its gradient. Sums go over
 * the tensor-parallel group or between tied embeddings. Recomputations make a layer's activation,
 * or a backward's first stash. Under context parallelism keys stand for a block's keys and values,
 * own for a rank's own block, heads for what is exchanged for sequence. name, text, letters in
 * timelines */
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
