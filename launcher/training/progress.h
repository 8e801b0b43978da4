/* A run's output: a live line, and metrics.jsonl. Rank 0 alone uses it. */
#ifndef WEFT_LAUNCHER_TRAINING_PROGRESS_H
#define WEFT_LAUNCHER_TRAINING_PROGRESS_H

#include <stdio.h>

#include "launcher/training/ledger.h"
#include "launcher/training/trainer.h"

/* Zero is valid: nothing is exported. */
typedef struct weft_exports {
    FILE *events; /* a file of its own for each start; NULL: none */
    char events_path[1100];
    const char *text; /* the Prometheus file; borrowed; NULL: none */
    const char *run;  /* its label; borrowed */
    int64_t seq_length;
} weft_exports;

typedef struct weft_progress {
    FILE *metrics; /* metrics.jsonl; NULL: none */
    bool live;     /* one line that rewrites itself, on the user's terminal */
    int terminal;  /* the terminal, for its width */
    bool json;     /* metrics lines on stdout instead of text */
    int64_t first_step, last_step, interval;
    double start_us;
    const weft_ledger_account *account; /* the account in steps' lines; borrowed, NULL: none */
    char path[1024];                    /* of metrics.jsonl */
    int64_t num_unwritten;              /* lines that could not be written */
    weft_exports exports;               /* the same numbers for other tools */
    bool ends_with_step; /* the opened file ended with the line of `step`, no evaluation */
} weft_progress;

/* Opens the exports, and RUN/metrics.jsonl for appending, and drops lines after `step`, which a
 * resumed run writes anew. Finds the user's terminal: WEFT_TTY if weft train started the ranks,
 * stdout of a single rank. Under the user's own launcher there is none, since a rank's stdout may
 * be a terminal of the launcher. */
weft_status weft_progress_open(weft_progress *progress, const char *run_dir, int64_t step,
                               const weft_config *config, bool json) WEFT_CHECKED;
/* Writes a step's metrics line and, if due, the progress line (step, loss, tokens/s, share of peak,
 * time left), on a terminal as much as fits. Counts lines that cannot be written and warns of the
 * first; the file keeps whole lines. */
void weft_progress_step(weft_progress *progress, const weft_step_result *result);
/* Writes the metrics line of an evaluation after step `step`, in the same way, and a line of
 * text. */
void weft_progress_evaluation(weft_progress *progress, int64_t step,
                              const weft_evaluation *evaluation);
/* At a run's end: warns of metrics lines that are missing. */
void weft_progress_tell_unwritten(const weft_progress *progress);
/* WEFT_CONFIG where a layer's metric has the name of a key that every line has. */
weft_status weft_progress_check_metrics(const weft_metric_list *own) WEFT_CHECKED;
/* Prints a separate line (checkpoints), which the live line does not overwrite. */
void weft_progress_note(weft_progress *progress, const char *format, ...) WEFT_PRINTF(2, 3);
void weft_progress_close(weft_progress *progress);

#endif
