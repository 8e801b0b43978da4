/* The folder of a run: its lock, and where a training starts.
 *
 * Rank 0 locks RUN/.lock (flock) for as long as it lives and writes its process and host there. The
 * system unlocks it when the process ends, and not before: a rank that outlives its launcher still
 * keeps others out. */
#ifndef WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H
#define WEFT_LAUNCHER_TRAINING_RUN_FOLDER_H

#include "comm/comm.h"
#include "launcher/planning/config.h"

/* The command line's options for the folder. */
typedef struct weft_run_folder {
    const char *path;
    bool resume;
    const char *from; /* "step-4": the checkpoint to go on from; NULL: the newest */
    int64_t below;    /* without `from`: only checkpoints of earlier steps; 0: any */
} weft_run_folder;

/* Where a training starts. */
typedef struct weft_run_start {
    const char *checkpoint; /* the run's own, from the arena; NULL: none to resume */
    int64_t step;           /* the checkpoint's step */
    bool latest_is_lost;    /* the checkpoint is the newest, but `latest` is missing or broken */
    int num_damaged;        /* newer, damaged ones that were skipped */
    const char *damaged;    /* the newest of these */
    weft_error damage;      /* its damage */
} weft_run_start;

/* A run that has checkpoints, with or without `latest`, is never started over: WEFT_CONFIG unless
 * resume. A run that has none starts afresh, also with resume; WEFT_FILE where its ledger says that
 * it has saved. The start is the newest checkpoint without damage, as far as that shows without
 * reading all elements; or the named one, or an error. WEFT_FILE: the named one or all are damaged;
 * the text names a whole one. WEFT_CONFIG: a newer Weft has saved it, or one of a later step.
 * Rank-local. */
weft_status weft_run_find_start(const weft_run_folder *folder, weft_arena *arena,
                                weft_run_start *out) WEFT_CHECKED;
/* Counts the start's checkpoint as damaged and moves the current error record into the start;
 * leaves errors other than WEFT_FILE. */
weft_status weft_run_pass_over(weft_run_start *start) WEFT_CHECKED;
/* The most damaged checkpoints that a run may skip: checkpoint.fallback; any number with
 * reliability.max_restarts, unless fallback is 0. */
int64_t weft_run_fallback(const weft_config *config);
/* Returns the newest one's damage if more than `most` were skipped. Rank-local. */
weft_status weft_run_check_fallback(const weft_run_folder *folder, const weft_run_start *start,
                                    int64_t most) WEFT_CHECKED;
/* Prints one line if any were skipped. */
void weft_run_tell_damage(const weft_run_start *start, const char *when);
/* Adds the name of a whole checkpoint to a WEFT_FILE record, if the start's own is damaged. */
weft_status weft_run_name_whole(const weft_run_folder *folder, const weft_run_start *start,
                                weft_status status) WEFT_CHECKED;

/* The same for what only reads one: `given`, a run, came to `checkpoint` (NULL: to none). Names the
 * newest whole one beside it, as what to give. */
weft_status weft_run_name_beside(const char *given, const char *checkpoint,
                                 weft_status status) WEFT_CHECKED;

/* Copies RUN/source of the run whose checkpoint `from` is, if that is of an import: what `weft
 * export` and the check of tokenizers need goes with each run. */
weft_status weft_run_keep_source(const char *run, const char *from) WEFT_CHECKED;

/* WEFT_CONFIG with pid and host: another training runs in the folder. */
weft_status weft_run_check_free(const weft_run_folder *folder) WEFT_CHECKED;
/* Locks the folder, which must exist, and finds the start again: WEFT_CONFIG if that is no longer
 * `start`. *out_lock: the caller closes it at the end; -1, with a warning: the file system has no
 * locks. */
weft_status weft_run_lock(const weft_run_folder *folder, const weft_run_start *start,
                          int *out_lock) WEFT_CHECKED;
/* WEFT_FILE where no checkpoint of the run, if it saves any, could be made. Leaves the folder as it
 * was; without `writes` it may be missing, and is only asked. */
weft_status weft_run_check_room(const weft_run_folder *folder, const weft_config *config,
                                bool writes, weft_arena *arena) WEFT_CHECKED;
/* Collective, while rank 0 has the lock: WEFT_FILE on a rank that does not find rank 0's lock in
 * the folder within 30 s (so long may NFS keep what a client knew of a folder). */
weft_status weft_run_check_shared(const weft_run_folder *folder, weft_comm *world) WEFT_CHECKED;

#endif
