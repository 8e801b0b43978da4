/* Timelines, measured or priced.
 *
 * A trace is a list of slices; a slice's track is (rank, lane). Written as Chrome/Perfetto JSON or
 * drawn as SVG. Adding and stamping are thread-safe. Slices of one track do not overlap. */
#ifndef WEFT_CORE_TRACE_TRACE_H
#define WEFT_CORE_TRACE_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include <weft/device.h>

#include "core/clock.h"

typedef struct weft_slice {
    int rank, lane;          /* the track */
    char name[24];           /* "F3", "send 3", ... */
    char category[16];       /* "forward", "backward", "send": chooses the colour */
    double start_us, end_us; /* since the trace's origin */
    int micro_batch, stage;  /* -1: none */
} weft_slice;

typedef struct weft_trace weft_trace;

weft_status weft_trace_create(weft_trace **out) WEFT_CHECKED;
void weft_trace_destroy(weft_trace *trace);
weft_status weft_trace_add(weft_trace *trace, const weft_slice *slice) WEFT_CHECKED;
void weft_trace_clear(weft_trace *trace);
/* Around a lane's work: begin adds the slice, and the lane stamps its start and end when it reaches
 * begin and end. Stamps replace the slice's own times and count from the origin, a time of
 * weft_now_us (0 unless set). *out_index is for the end. trace NULL: does nothing. The trace must
 * outlive the lane's work. */
weft_status weft_trace_begin(weft_trace *trace, weft_lane *lane, const weft_slice *slice,
                             size_t *out_index) WEFT_CHECKED;
weft_status weft_trace_end(weft_trace *trace, weft_lane *lane, size_t index) WEFT_CHECKED;
void weft_trace_set_origin(weft_trace *trace, double origin_us);
size_t weft_trace_count(const weft_trace *trace);
const weft_slice *weft_trace_slices(const weft_trace *trace); /* borrowed, in order of adding */
/* Names a lane index for both writers: `names[lane]`. Borrowed. */
void weft_trace_name_lanes(weft_trace *trace, const char *const *names, int count);
/* The name of a lane index; NULL where it has none. */
const char *weft_trace_lane_name(const weft_trace *trace, int lane);

/* The same for ranks: "rank 3: stage 1, tp 0". */
void weft_trace_name_ranks(weft_trace *trace, const char *const *names, int count);
const char *weft_trace_rank_name(const weft_trace *trace, int rank);

/* What letters behind the first of a slice's name mean, for the drawing's legend: "g" in "sg3",
 * a gradient. All letters of a name, "Bi", go before those behind the first. */
typedef struct weft_trace_letters {
    const char *letters, *text;
} weft_trace_letters;
void weft_trace_explain(weft_trace *trace, const weft_trace_letters *rows,
                        int count); /* borrowed */
/* NULL where nobody explained them. */
const char *weft_trace_letters_text(const weft_trace *trace, const char *letters);

/* What the trace is of, for its JSON ("otherData"). */
typedef struct weft_trace_fact {
    const char *name, *text;
} weft_trace_fact;
void weft_trace_tell(weft_trace *trace, const weft_trace_fact *facts, int count); /* borrowed */

/* Chrome trace JSON ("traceEvents", complete events, process = rank, thread = lane). */
weft_status weft_trace_write_json(const weft_trace *trace, FILE *out) WEFT_CHECKED;
/* An SVG: a row for each track, a box for each slice with its name where it fits, a time axis and a
 * legend of colours and of the letters in names. The category chooses a slice's colour; one that
 * ends in " back" is striped. Readable on light and dark, at 390 pixels wide and for colour-blind
 * readers. */
weft_status weft_trace_write_svg(const weft_trace *trace, const char *title, const char *subtitle,
                                 FILE *out) WEFT_CHECKED;

/* The colour of a category in drawings, "#0072b2"; one for all that have none. Static. */
const char *weft_trace_colour(const char *category);

/* One of the two, as SVG where there is a title, else as JSON, into a new file, which replaces what
 * has its name once it is whole; or into what is there, if that is no regular file. */
weft_status weft_trace_write_file(const weft_trace *trace, const char *path, const char *title,
                                  const char *subtitle) WEFT_CHECKED;

/* The tracks of a trace, for its writers. */

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
