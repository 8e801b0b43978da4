/* Timelines of layers: their programs' tasks, and notes of work that is no task. Private to
 * layers/, but for the tracks. */
#ifndef WEFT_LAYERS_PASS_NOTE_H
#define WEFT_LAYERS_PASS_NOTE_H

#include <weft/layer.h>

#include "core/trace/trace.h"
#include "schedule/run.h"

/* name, text, track */
#define WEFT_NOTE_LIST(X)                                                                          \
    X(ATTENTION, "attention", PARTS)                                                               \
    X(MOE, "moe", MOE)                                                                             \
    X(GATING, "gating", PARTS)                                                                     \
    X(TENSOR, "tensor", TENSOR)

typedef enum weft_note_kind {
#define WEFT_NOTE_ENUM(name, text, track) WEFT_NOTE_##name,
    WEFT_NOTE_LIST(WEFT_NOTE_ENUM)
#undef WEFT_NOTE_ENUM
        WEFT_NUM_NOTES
} weft_note_kind;

/* Tracks after those of the lanes (weft_model_track_names). */
enum {
    WEFT_TRACK_LAYERS = WEFT_NUM_LANES,
    WEFT_TRACK_MOE,
    WEFT_TRACK_PARTS,
    WEFT_TRACK_EXCHANGE,
    WEFT_TRACK_TENSOR,
    WEFT_TRACK_CONTEXT, /* computation of attention over context-parallel ranks */
    WEFT_TRACK_KEYS,
    WEFT_TRACK_KEYS_GRADIENTS,
    WEFT_TRACK_EXPERTS, /* computation of experts beyond device memory */
    WEFT_TRACK_UPLOADS,
    WEFT_TRACK_DOWNLOADS,
    WEFT_TRACK_ACCUMULATIONS,
    WEFT_NUM_TRACKS
};

/* Add a slice for the work enqueued on `lane` between begin and end, if the model keeps a
 * timeline. */
weft_status weft_note_begin(weft_pass *pass, weft_lane *lane, weft_note_kind kind,
                            size_t *out_id) WEFT_CHECKED;
weft_status weft_note_end(weft_pass *pass, weft_lane *lane, size_t id) WEFT_CHECKED;
/* The same for a task of a layer; WEFT_NO_TRACK: no slice. */
weft_status weft_note_task_begin(weft_pass *pass, weft_lane *lane, const weft_task *task, int track,
                                 size_t *out_id) WEFT_CHECKED;
weft_status weft_note_task_end(weft_pass *pass, weft_lane *lane, int track, size_t id) WEFT_CHECKED;
/* Makes an executor add the slices of its program's tasks, on `tracks` by lane (NULL: the lanes'),
 * if the model keeps a timeline. */
void weft_note_tasks(const weft_pass *pass, const int tracks[WEFT_NUM_LANES],
                     weft_executor *executor);

#endif
