/* What the tasks of an MoE layer's programs read and write: the table of schedule/moe_layer.h, for
 * its generator and its checker. */
#ifndef WEFT_SCHEDULE_MOE_LAYER_TASKS_H
#define WEFT_SCHEDULE_MOE_LAYER_TASKS_H

#include "schedule/moe_layer.h"

/* name, text */
#define WEFT_MOE_TENSOR_LIST(X)                                                                    \
    X(NOTHING, "nothing")                                                                          \
    X(HOME, "rows to send")                                                                        \
    X(DISPATCHED, "T_DI")                                                                          \
    X(MIDDLE, "T_M")                                                                               \
    X(OUTPUT, "T_DO")                                                                              \
    X(RESULT, "result")                                                                            \
    X(HOST_INPUT, "T_DI on the host")                                                              \
    X(HOST_MIDDLE, "T_M on the host")                                                              \
    X(DRESULT, "gradient to send")                                                                 \
    X(DOUTPUT, "dT_DO")                                                                            \
    X(DMIDDLE, "dT_M")                                                                             \
    X(DDISPATCHED, "dT_DI")                                                                        \
    X(DHOME, "gradient that came back")

typedef enum weft_moe_tensor {
#define WEFT_MOE_TENSOR_ENUM(name, text) WEFT_MOE_TENSOR_##name,
    WEFT_MOE_TENSOR_LIST(WEFT_MOE_TENSOR_ENUM)
#undef WEFT_MOE_TENSOR_ENUM
        WEFT_NUM_MOE_TENSORS
} weft_moe_tensor;

typedef struct weft_moe_operands {
    weft_moe_tensor reads[WEFT_TASK_MAX_READS], writes[WEFT_TASK_MAX_WRITES];
} weft_moe_operands;

/* NULL: a layer has no such task. */
const weft_moe_operands *weft_moe_operands_of(int kind, int flow);
weft_slot_ring weft_moe_ring_of(const weft_moe_slots *slots, weft_moe_tensor tensor);
/* Whether the program has this task for each of its partitions. */
bool weft_moe_has_task(const weft_moe_pipeline *pipeline, bool backward, int kind, int flow);
weft_status weft_moe_pipeline_check(const weft_moe_pipeline *pipeline) WEFT_CHECKED;

#endif
