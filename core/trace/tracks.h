/* The tracks of a trace, for its writers. */
#ifndef WEFT_CORE_TRACE_TRACKS_H
#define WEFT_CORE_TRACE_TRACKS_H

#include "core/trace/trace.h"

typedef struct weft_track {
    int rank, lane;
} weft_track;

/* Every (rank, lane) that has slices, once, in ascending order. The caller frees the array; it is
 * NULL for an empty trace. */
weft_status weft_trace_tracks(const weft_trace *trace, weft_track **out,
                              size_t *out_count) WEFT_CHECKED;
/* The index of a slice's track among them. */
size_t weft_track_find(const weft_track *tracks, size_t count, const weft_slice *slice);

#endif
