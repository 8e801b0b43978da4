/* What a run tells while it goes: a live line, and metrics.jsonl. Used by rank 0. */
#ifndef WEFT_LAUNCHER_PROGRESS_H
#define WEFT_LAUNCHER_PROGRESS_H

#include <stdio.h>

#include "launcher/trainer.h"

typedef struct weft_progress {
    FILE *metrics; /* metrics.jsonl; NULL: none */
    bool live;     /* a terminal: one line that rewrites itself */
    bool json;     /* metrics lines on stdout instead of text */
    int64_t first_step, last_step, interval;
    double start_us;
} weft_progress;

/* Opens RUN/metrics.jsonl for appending and drops lines after `step`: a resumed run writes them
 * anew. */
weft_status weft_progress_open(weft_progress *progress, const char *run_dir, int64_t step,
                               int64_t train_iters, int64_t interval, bool json) WEFT_CHECKED;
/* One step: a metrics line, and the progress line where it is due: step, loss, tokens/s, share of
 * peak, time left. */
weft_status weft_progress_step(weft_progress *progress,
                               const weft_step_result *result) WEFT_CHECKED;
/* A line of its own (evaluation, checkpoints), which the live line does not overwrite. */
void weft_progress_note(weft_progress *progress, const char *format, ...) WEFT_PRINTF(2, 3);
void weft_progress_close(weft_progress *progress);

#endif
