/* The names of operands: a task's function finds by them the slots that it reads and writes. */
#ifndef WEFT_SCHEDULE_OPERANDS_H
#define WEFT_SCHEDULE_OPERANDS_H

#include "schedule/program.h"

/* name, text */
#define WEFT_OPERAND_LIST(ROW)                                                                     \
    ROW(X, "x")                                                                                    \
    ROW(STASH, "stash")                                                                            \
    ROW(MIDDLE, "middle")                                                                          \
    ROW(Y, "y")                                                                                    \
    ROW(DY, "dy")                                                                                  \
    ROW(DMIDDLE, "dmiddle")                                                                        \
    ROW(DX, "dx")                                                                                  \
    ROW(FROM, "from")                                                                              \
    ROW(TO, "to")                                                                                  \
    ROW(RECOMPUTED, "recomputed")                                                                  \
    ROW(WEIGHTS, "weights")                                                                        \
    ROW(WEIGHT_GRADIENTS, "weight_gradients")                                                      \
    ROW(KEYS, "keys")                                                                              \
    ROW(DEFERRED, "deferred")                                                                      \
    ROW(OFFLOADED, "offloaded")                                                                    \
    ROW(STAGING, "stagin"                                                                          \
                 "g")

typedef enum weft_operand_name {
#define WEFT_OPERAND_ENUM(name, text) WEFT_OPERAND_##name,
    WEFT_OPERAND_LIST(WEFT_OPERAND_ENUM)
#undef WEFT_OPERAND_ENUM
        WEFT_NUM_OPERANDS
} weft_operand_name;

/* The slot of an operand; -1: the task has none. */
int weft_task_slot(const weft_task *task, weft_operand_name name);

const char *weft_operand_text(int name);

#endif
