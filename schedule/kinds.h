/* What tasks do, and the lanes that they run on. */
#ifndef WEFT_SCHEDULE_KINDS_H
#define WEFT_SCHEDULE_KINDS_H

/* name, text, letter for timelines, the stretch of a step (core/doing.h) that each rank of a stage
 * comes to with it; -1: some ranks alone have such a task */
#define WEFT_TASK_LIST(X)                                                                          \
    X(FORWARD, "forward", "F", WEFT_DOING_PASSES)                                                  \
    X(BACKWARD, "backward", "B", WEFT_DOING_PASSES)                                                \
    X(SEND, "send", "s", WEFT_DOING_PASSES)                                                        \
    X(RECEIVE, "receive", "r", WEFT_DOING_PASSES)                                                  \
    X(SUM, "sum", "A", WEFT_DOING_SUMS)                                                            \
    X(REDUCE, "reduce", "R", WEFT_DOING_SUMS)                                                      \
    X(NORM, "norm", "N", WEFT_DOING_NORM)                                                          \
    X(STEP, "step", "S", -1)                                                                       \
    X(LAYER, "layer", "l", WEFT_DOING_PASSES)                                                      \
    X(COUNTS, "counts", "c", WEFT_DOING_PASSES)                                                    \
    X(PERMUTE, "permute", "P", -1)                                                                 \
    X(DISPATCH, "dispatch", "D", WEFT_DOING_PASSES)                                                \
    X(EXPERT, "expert", "E", -1)                                                                   \
    X(COMBINE, "combine", "C", WEFT_DOING_PASSES)                                                  \
    X(OFFLOAD, "offload", "O", -1)                                                                 \
    X(PREFETCH, "prefetch", "p", -1)                                                               \
    X(RECOMPUTE, "recompute", "M", -1)                                                             \
    X(GATHER, "gather", "G", WEFT_DOING_UPDATES)                                                   \
    X(PLACE, "place", "L", -1)                                                                     \
    X(SHIFT, "shift", "h", WEFT_DOING_PASSES)                                                      \
    X(ATTEND, "attend", "a", -1)                                                                   \
    X(PRODUCT, "product", "X", -1)                                                                 \
    X(UPLOAD, "upload", "U", -1)                                                                   \
    X(DOWNLOAD, "download", "d", -1)                                                               \
    X(ACCUMULATE, "accumulate", "+", -1)                                                           \
    X(READ, "read", "I", -1)                                                                       \
    X(WRITE, "write", "W", -1)

typedef enum weft_task_kind {
#define WEFT_TASK_ENUM(name, text, letter, stretch) WEFT_TASK_##name,
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
    X(FILE, "file")                                                                                \
    X(INSIDE, "inside")                                                                            \
    X(TENSOR, "tensor")

typedef enum weft_lane_kind {
#define WEFT_LANE_ENUM(name, text) WEFT_LANE_##name,
    WEFT_LANE_LIST(WEFT_LANE_ENUM)
#undef WEFT_LANE_ENUM
        WEFT_NUM_LANES
} weft_lane_kind;

#endif
