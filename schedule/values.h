/* What tasks read and write: the one table by which waits are derived, programs printed, checked
 * and run. */
#ifndef WEFT_SCHEDULE_VALUES_H
#define WEFT_SCHEDULE_VALUES_H

#include <stdbool.h>

#include "schedule/operands.h"

/* The values of operands, and the slots (bits) that may hold each. A value belongs to its task's
 * micro-batch, virtual stage, layer, part and expert, or with `next` to the neighbour's. name,
 * text, slots */
#define WEFT_SLOT_BIT(name) (1ull << WEFT_SLOT_##name)
#define WEFT_VALUE_LIST(X)                                                                         \
    X(NOTHING, "nothing", 0)                                                                       \
    X(ACTIVATION, "the activation", WEFT_SLOT_BIT(ACTIVATION) | WEFT_SLOT_BIT(OUTPUT))             \
    X(STASH, "the stash", WEFT_SLOT_BIT(ACTIVATION))                                               \
    X(GRADIENT, "the gradient", WEFT_SLOT_BIT(GRADIENT) | WEFT_SLOT_BIT(INPUT_GRADIENT))           \
    X(LAYER, "the layer's input",                                                                  \
      WEFT_SLOT_BIT(LAYER) | WEFT_SLOT_BIT(ACTIVATION) | WEFT_SLOT_BIT(OUTPUT) |                   \
          WEFT_SLOT_BIT(RECOMPUTED_LAYER) | WEFT_SLOT_BIT(LAYER_GRADIENT) |                        \
          WEFT_SLOT_BIT(OFFLOADED_LAYER))                                                          \
    X(LAYER_STASH, "the layer's stash", WEFT_SLOT_BIT(LAYER_STASH) | WEFT_SLOT_BIT(RECOMPUTED))    \
    X(LAYER_GRADIENT, "the layer's gradient",                                                      \
      WEFT_SLOT_BIT(LAYER_GRADIENT) | WEFT_SLOT_BIT(GRADIENT) | WEFT_SLOT_BIT(INPUT_GRADIENT))     \
    X(WEIGHTS, "the weights", WEFT_SLOT_BIT(WEIGHTS))                                              \
    X(WEIGHT_GRADIENTS, "the weights' gradients", WEFT_SLOT_BIT(WEIGHT_GRADIENTS))                 \
    X(HOME, "rows to send", WEFT_SLOT_BIT(HOME))                                                   \
    X(T_DI, "T_DI", WEFT_SLOT_BIT(T_DI))                                                           \
    X(T_M, "T_M", WEFT_SLOT_BIT(T_M))                                                              \
    X(T_DO, "T_DO", WEFT_SLOT_BIT(T_DO))                                                           \
    X(RESULT, "result", WEFT_SLOT_BIT(RESULT))                                                     \
    X(HOST_T_DI, "T_DI on the host", WEFT_SLOT_BIT(HOST_T_DI))                                     \
    X(HOST_T_M, "T_M on the host", WEFT_SLOT_BIT(HOST_T_M))                                        \
    X(SENT_GRADIENT, "gradient to send", WEFT_SLOT_BIT(RESULT_GRADIENT))                           \
    X(DT_DO, "dT_DO", WEFT_SLOT_BIT(DT_DO))                                                        \
    X(DT_M, "dT_M", WEFT_SLOT_BIT(DT_M))                                                           \
    X(DT_DI, "dT_DI", WEFT_SLOT_BIT(DT_DI))                                                        \
    X(HOME_GRADIENT, "gradient that came back", WEFT_SLOT_BIT(RESULT_GRADIENT))                    \
    X(ARRIVED, "what arrived", WEFT_SLOT_BIT(ARRIVED))                                             \
    X(GATHERED, "what was gathered", WEFT_SLOT_BIT(GATHERED))                                      \
    X(RECOMPUTED, "the stash made again", WEFT_SLOT_BIT(RECOMPUTED))                               \
    X(DEFERRED, "what weights' gradients are made of", WEFT_SLOT_BIT(DEFERRED))                    \
    X(KEYS, "keys and values", WEFT_SLOT_BIT(KEYS))                                                \
    X(SHARE, "the share of the keys' gradient", WEFT_SLOT_BIT(KEYS_GRADIENT))                      \
    X(OWN_SHARE, "the share of its own keys' gradient", WEFT_SLOT_BIT(OWN_GRADIENT))               \
    X(KEYS_GRADIENT, "the keys' gradient so far", WEFT_SLOT_BIT(KEYS_GRADIENT))                    \
    X(ARRIVED_GRADIENT, "the keys' gradient that arrived", WEFT_SLOT_BIT(ARRIVED))                 \
    X(PARTIAL, "the result over the blocks so far", WEFT_SLOT_BIT(PARTIAL))                        \
    X(PARTIAL_SUM, "this rank's share of the sum", WEFT_SLOT_BIT(PARTIAL))                         \
    X(HEADS, "all tokens of these heads", WEFT_SLOT_BIT(HEADS))                                    \
    X(HEADS_RESULT, "the result for these heads", WEFT_SLOT_BIT(RESULT))                           \
    X(HEADS_DY, "the result's gradient for these heads", WEFT_SLOT_BIT(HEADS_GRADIENT))            \
    X(HEADS_DX, "all tokens' gradient of these heads", WEFT_SLOT_BIT(HEADS_GRADIENT))              \
    X(RETURNED, "what came back", WEFT_SLOT_BIT(HOME))                                             \
    X(OFFLOADED, "what the layer offloads", WEFT_SLOT_BIT(OFFLOADED))                              \
    X(HOST_STASH, "what the layer offloaded, on the host", WEFT_SLOT_BIT(HOST_STASH))              \
    X(EXPERT_WEIGHTS, "the expert's weights", WEFT_SLOT_BIT(EXPERT_WEIGHTS))                       \
    X(EXPERT_GRADIENT, "the expert's gradient", WEFT_SLOT_BIT(EXPERT_GRADIENTS))                   \
    X(HOST_WEIGHTS, "the expert's weights on the host", WEFT_SLOT_BIT(HOST_WEIGHTS))               \
    X(HOST_GRADIENT, "the expert's gradient on the host", WEFT_SLOT_BIT(HOST_GRADIENTS))           \
    X(STAGED_GRADIENT, "the micro-batch's gradient on the host", WEFT_SLOT_BIT(HOST_STAGING))

typedef enum weft_value {
#define WEFT_VALUE_ENUM(name, text, slots) WEFT_VALUE_##name,
    WEFT_VALUE_LIST(WEFT_VALUE_ENUM)
#undef WEFT_VALUE_ENUM
        WEFT_NUM_VALUES
} weft_value;

typedef struct weft_operand {
    weft_operand_name name;
    weft_value value;
    bool writes;
    int next; /* 1: the next stage's value (LAYER: the next layer's; a task without a stage: the
                 next part's); -1: the previous one's */
    bool in_place; /* lies where x lies, if the task has an x */
    bool whole;    /* all parts share the value */
} weft_operand;

typedef struct weft_operands {
    int kind, flow, lane; /* lane: unless a generator says otherwise */
    int count;
    weft_operand rows[WEFT_TASK_MAX_OPERANDS];
} weft_operands;

/* NULL: there is no such task. */
const weft_operands *weft_operands_of(int kind, int flow);

const char *weft_value_text(int value);
uint64_t weft_value_slots(int value);
/* The slot kind that generators use for a value: the first that may hold it. */
weft_slot_kind weft_value_slot_kind(int value);

#endif
