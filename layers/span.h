/* When the parts of layers ran, for timelines: off unless a model is told to keep spans. A span is
 * noted on the lane that does the work, so that it shows what really ran beside what. Private to
 * layers/. */
#ifndef WEFT_LAYERS_SPAN_H
#define WEFT_LAYERS_SPAN_H

#include <weft/layer.h>

#include "schedule/program.h"

/* name, text, track: a lane of programs, or one of those below */
#define WEFT_SPAN_LIST(X)                                                                          \
    X(MOE, "moe", LAYERS)                                                                          \
    X(GATING, "gating", PARTS)                                                                     \
    X(PERMUTE, "permute", PARTS)                                                                   \
    X(EXPERT, "expert", PARTS)                                                                     \
    X(RECOMPUTE, "recompute", PARTS)                                                               \
    X(COUNTS, "counts", EXCHANGE)                                                                  \
    X(DISPATCH, "dispatch", EXCHANGE)                                                              \
    X(COMBINE, "combine", EXCHANGE)                                                                \
    X(TENSOR, "tensor", TENSOR)

typedef enum weft_span_kind {
#define WEFT_SPAN_ENUM(name, text, track) WEFT_SPAN_##name,
    WEFT_SPAN_LIST(WEFT_SPAN_ENUM)
#undef WEFT_SPAN_ENUM
        WEFT_NUM_SPANS
} weft_span_kind;

/* Tracks after those of the lanes (weft_model_track_names). */
enum {
    WEFT_TRACK_LAYERS = WEFT_NUM_LANES,
    WEFT_TRACK_PARTS,
    WEFT_TRACK_EXCHANGE,
    WEFT_TRACK_TENSOR,
    WEFT_NUM_TRACKS
};

/* part: a partition, or -1. *out_id is for the end. */
weft_status weft_span_begin(weft_pass *pass, weft_lane *lane, weft_span_kind kind, int part,
                            int *out_id) WEFT_CHECKED;
weft_status weft_span_end(weft_pass *pass, weft_lane *lane, int id) WEFT_CHECKED;

#endif
