/* The saves of a run: those that training waits for, and those that go on beside it
 * (checkpoint.async_save). One that fails amid a run leaves the run as it was: the next one tries
 * again. All functions are collective over the trainer's world. */
#ifndef WEFT_LAUNCHER_TRAINING_SAVES_H
#define WEFT_LAUNCHER_TRAINING_SAVES_H

#include "launcher/training/progress.h"
#include "launcher/training/run_folder.h"
#include "parallel/checkpoint_writer.h"

enum { WEFT_SAVES_PATH_BYTES = 4096 };

typedef struct weft_saves {
    weft_trainer *trainer;
    weft_progress *progress; /* used on rank 0 */
    const char *dir;         /* RUN/checkpoints */
    int64_t num_skipped;     /* while another was under way */
    int64_t published;       /* the last one's step, on rank 0; 0: none */
} weft_saves;

/* Makes the ring of trainer->writer, which may be NULL. WEFT_CONFIG also where a run that does not
 * go on has too few nodes for its copies. Agreed. */
weft_status weft_saves_reserve(weft_trainer *trainer, const weft_config_source *source,
                               bool goes_on) WEFT_CHECKED;
/* Before a start looks for its checkpoint: a newer step that nodes' memory alone has, of an earlier
 * start that the folder's --resume goes on with, becomes the newest (*out_found), with one line.
 * Agreed. */
weft_status weft_saves_restore(const weft_saves *saves, weft_comm *world,
                               const weft_run_folder *folder, const weft_run_start *start,
                               const weft_checkpoint_options *options,
                               bool *out_found) WEFT_CHECKED;
/* Takes the memory of copies on other nodes, where the config asks for them. Where a run that goes
 * on has too few nodes left, there are none, with one line. Agreed. */
weft_status weft_saves_reserve_copies(weft_saves *saves, const weft_config_source *source,
                                      bool goes_on) WEFT_CHECKED;
/* Where they are due after a step; not while a save is under way. */
weft_status weft_saves_copy(weft_saves *saves) WEFT_CHECKED;
/* What this node holds, where it may be of a rank that computes wrongly: the next start goes on
 * from a checkpoint. Rank-local; the error record stays. */
void weft_saves_forget_copies(weft_saves *saves);
/* Brings the run at `run` back to its newest checkpoint that is whole: `path`, on rank 0. Damaged
 * ones are passed over as at a start, with one line. The save that is under way ends before; copies
 * in other nodes' memory, which hold later steps, go. WEFT_DIVERGED: there is no checkpoint yet. */
weft_status weft_saves_rewind(weft_saves *saves, const char *run,
                              char path[WEFT_SAVES_PATH_BYTES]) WEFT_CHECKED;
/* After a load that failed on all ranks: whether rank 0 finds that the checkpoint is damaged, and
 * not that it is another model's. The error record stays. */
weft_status weft_saves_find_damage(weft_comm *world, const char *checkpoint,
                                   bool *out) WEFT_CHECKED;
/* After each step, with the world's word from its result: what is under way goes on. */
weft_status weft_saves_advance(weft_saves *saves, weft_writer_word word) WEFT_CHECKED;
/* A save that is due amid a run. */
weft_status weft_saves_save(weft_saves *saves) WEFT_CHECKED;
/* Waits for the one that is under way. */
weft_status weft_saves_finish(weft_saves *saves) WEFT_CHECKED;
/* The last one, which training waits for, after the one that is under way. */
weft_status weft_saves_end(weft_saves *saves) WEFT_CHECKED;

#endif
