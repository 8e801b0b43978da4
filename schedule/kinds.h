/* What tasks do, and the lanes that they run on. */
#ifndef WEFT_SCHEDULE_KINDS_H
#define WEFT_SCHEDULE_KINDS_H

/* name, text, letter for timelines */
#define WEFT_TASK_LIST(X)                                                                          \
    X(FORWARD, "forward", "F")                                                                     \
    X(BACKWARD, "backward", "B")                                                                   \
    X(SEND, "send", "s")                                                                           \
    X(RECEIVE, "receive", "r")                                                                     \
    X(SUM, "sum", "A")                                                                             \
    X(REDUCE, "reduce", "R")                                                                       \
    X(NORM, "norm", "N")                                                                           \
    X(STEP, "step", "S")                                                                           \
    X(LAYER, "layer", "l")                                                                         \
    X(COUNTS, "counts", "c")                                                                       \
    X(PERMUTE, "permute", "P")                                                                     \
    X(DISPATCH, "dispatch", "D")                                                                   \
    X(EXPERT, "expert", "E")                                                                       \
    X(COMBINE, "combine", "C")                                                                     \
    X(OFFLOAD, "offload", "O")                                                                     \
    X(PREFETCH, "prefetch", "p")                                                                   \
    X(RECOMPUTE, "recompute", "M")                                                                 \
    X(GATHER, "gather", "G")                                                                       \
    X(PLACE, "place", "L")                                                                         \
    X(SHIFT, "shift", "h")                                                                         \
    X(ATTEND, "attend", "a")                                                                       \
    X(UPLOAD, "upload", "U")                                                                       \
    X(DOWNLOAD, "download", "d")                                                                   \
    X(ACCUMULATE, "accumulate", "+")                                                               \
    X(READ, "read", "I")                                                                           \
    X(WRITE, "write", "W")

typedef enum weft_task_kind {
#define WEFT_TASK_ENUM(name, text, letter) WEFT_TASK_##name,
    WEFT_TASK_LIST(WEFT_TASK_ENUM)
#undef WEFT_TASK_ENUM
        WEFT_NUM_TASK_KINDS
} weft_task_kind;

/* name, text */
#define WEFT_LANE_LIST(X)                                                                          \
    X(COMPUTE, "compute")                                                                          \
    X(SEND, "send")                                                                                \
    X(RECEIVE, "receive")                                                                          \
    X(REDUCE, "reduce")                                                                            \
    X(EXPERT, "expert")                                                                            \
    X(GATHER, "gather")                                                                            \
    X(PLACE, "place")                                                                              \
    X(OFFLOAD, "offload")                                                                          \
    X(PREFETCH, "prefetch")                                                                        \
    X(TO_DEVICE, "to_device")                                                                      \
    X(TO_HOST, "to_host")                                                                          \
    X(HOST, "host")                                                                                \
    X(FILE, "file")

typedef enum weft_lane_kind {
#define WEFT_LANE_ENUM(name, text) WEFT_LANE_##name,
    WEFT_LANE_LIST(WEFT_LANE_ENUM)
#undef WEFT_LANE_ENUM
        WEFT_NUM_LANES
} weft_lane_kind;

#endif
