/* The folder of a run: who works in it, where a training starts, and whether it goes on as the run
 * that it was.
 *
 * RUN/.lock is locked (flock) by rank 0 for as long as it lives, and says which process on which
 * host that is. The system unlocks it with the process, however that ends, and not before: a rank
 * that outlives its launcher still keeps others out. */
#ifndef WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H
#define WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H

#include "launcher/planning/config.h"

/* What the command line says about the folder. */
typedef struct weft_run_folder {
    const char *path;
    bool resume;
    const char *from; /* "step-4": the checkpoint to go on from; NULL: the newest */
} weft_run_folder;

/* Where a training starts. */
typedef struct weft_run_start {
    const char *checkpoint; /* the run's own, from the arena; NULL: it has none to go on from */
    int64_t step;           /* of that */
    bool latest_is_lost;    /* it is the newest there, but `latest` does not lead to it */
} weft_run_start;

/* A run that has checkpoints is never started over, nor where `latest` is lost: WEFT_CONFIG unless
 * it is to be resumed. One without any starts, also when it is to be resumed. Of a damaged
 * checkpoint, WEFT_FILE says which other one is whole. Rank-local. */
weft_status weft_run_find_start(const weft_run_folder *folder, weft_arena *arena,
                                weft_run_start *out) WEFT_CHECKED;
/* Adds to a WEFT_FILE record which other checkpoint is whole, if the start's own is not. */
weft_status weft_run_name_whole(const weft_run_folder *folder, const weft_run_start *start,
                                weft_status status) WEFT_CHECKED;

/* WEFT_CONFIG with pid and host where another training is at work there. */
weft_status weft_run_check_free(const weft_run_folder *folder) WEFT_CHECKED;
/* Locks the folder, which is there, and looks again: WEFT_CONFIG where it does not start at `start`
 * any more. *out_lock: to be closed at the end; -1: the file system has no locks, which is warned
 * of. */
weft_status weft_run_lock(const weft_run_folder *folder, const weft_run_start *start,
                          int *out_lock) WEFT_CHECKED;

#endif
