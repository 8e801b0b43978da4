/* The folder of a run: who works in it, and where a training starts.
 *
 * Rank 0 locks RUN/.lock (flock) for as long as it lives and writes its process and host there. The
 * system unlocks it when the process ends, and not before: a rank that outlives its launcher still
 * keeps others out. */
#ifndef WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H
#define WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H

#include "launcher/planning/config.h"

/* What the command line says about the folder. */
typedef struct weft_run_folder {
    const char *path;
    bool resume;
    const char *from; /* "step-4": the checkpoint to go on from; NULL: the newest */
    int64_t below;    /* else only those of earlier steps than this; 0: any */
} weft_run_folder;

/* Where a training starts. */
typedef struct weft_run_start {
    const char *checkpoint; /* the run's own, from the arena; NULL: it has none to go on from */
    int64_t step;           /* of that */
    bool latest_is_lost;    /* it is the newest, but `latest` does not lead to it */
    int num_damaged;        /* newer ones that were passed over */
    const char *damaged;    /* the newest of those, */
    weft_error damage;      /* and what is wrong with it */
} weft_run_start;

/* A run that has checkpoints, with or without `latest`, is never started over: WEFT_CONFIG unless
 * resume. A run that has none starts afresh, also with resume; WEFT_FILE where its ledger says that
 * it has saved. Where the newest is damaged in
 * what can be checked without reading all elements, it is the newest that is not; a checkpoint that
 * is named is taken or refused. WEFT_FILE: it is damaged, or all are, and which other one is whole.
 * WEFT_CONFIG: a newer Weft has saved it, or one of a later step. Rank-local. */
weft_status weft_run_find_start(const weft_run_folder *folder, weft_arena *arena,
                                weft_run_start *out) WEFT_CHECKED;
/* Counts the start's checkpoint as damaged, by the current error record, which it takes; another
 * error than WEFT_FILE stays. */
weft_status weft_run_pass_over(weft_run_start *start) WEFT_CHECKED;
/* So many damaged checkpoints may a run pass over: checkpoint.fallback; any number where a run that
 * nobody watches is to go on (reliability.max_restarts), unless fallback is 0. */
int64_t weft_run_fallback(const weft_config *config);
/* What is wrong with the newest, where more than `most` were passed over. Rank-local. */
weft_status weft_run_check_fallback(const weft_run_folder *folder, const weft_run_start *start,
                                    int64_t most) WEFT_CHECKED;
/* One line, where some were passed over. */
void weft_run_tell_damage(const weft_run_start *start, const char *when);
/* Adds to a WEFT_FILE record which other checkpoint is whole, if the start's own is not. */
weft_status weft_run_name_whole(const weft_run_folder *folder, const weft_run_start *start,
                                weft_status status) WEFT_CHECKED;

/* The same for what only reads one: `given`, a run, came to `checkpoint` (NULL: to none). Names the
 * newest whole one beside it, as what to give. */
weft_status weft_run_name_beside(const char *given, const char *checkpoint,
                                 weft_status status) WEFT_CHECKED;

/* WEFT_CONFIG with pid and host where another training is at work there. */
weft_status weft_run_check_free(const weft_run_folder *folder) WEFT_CHECKED;
/* Locks the folder, which must exist, and looks again: WEFT_CONFIG where the run does not start at
 * `start` any more. *out_lock: the caller closes it at the end; -1, with a warning: the file system
 * has no locks. */
weft_status weft_run_lock(const weft_run_folder *folder, const weft_run_start *start,
                          int *out_lock) WEFT_CHECKED;

#endif
