/* The saves of a run, synchronous or beside training (checkpoint.async_save). A save that fails
 * amid a run changes nothing, and the next one tries again. All functions are collective over the
 * trainer's world. */
#ifndef WEFT_LAUNCHER_TRAINING_SAVES_H
#define WEFT_LAUNCHER_TRAINING_SAVES_H

#include "launcher/training/progress.h"
#include "launcher/training/run_folder.h"
#include "parallel/checkpoint/checkpoint.h"

enum { WEFT_SAVES_PATH_BYTES = 4096 };

typedef struct weft_saves {
    weft_trainer *trainer;
    weft_progress *progress; /* used on rank 0 */
    const char *dir;         /* RUN/checkpoints */
    int64_t num_skipped;     /* saves skipped while another was under way */
    int64_t published;       /* the last published step, on rank 0; 0: none */
} weft_saves;

/* Makes the ring of trainer->writer, which may be NULL. WEFT_CONFIG also if a new run has too few
 * nodes for its copies. Agreed. */
weft_status weft_saves_reserve(weft_trainer *trainer, const weft_config_source *source,
                               bool goes_on) WEFT_CHECKED;
/* Before a start finds its checkpoint: makes a newer step that only nodes' memory has, from an
 * earlier start of this run, the newest checkpoint (*out_found), with one line. Agreed. */
weft_status weft_saves_restore(const weft_saves *saves, weft_comm *world,
                               const weft_run_folder *folder, const weft_run_start *start,
                               const weft_checkpoint_options *options,
                               bool *out_found) WEFT_CHECKED;
/* Allocates for copies on other nodes, if configured. A resumed run with too few nodes has none,
 * with one line. Agreed. */
weft_status weft_saves_reserve_copies(weft_saves *saves, const weft_config_source *source,
                                      bool goes_on) WEFT_CHECKED;
/* Copies to other nodes if due after a step, unless a save is under way. */
weft_status weft_saves_copy(weft_saves *saves) WEFT_CHECKED;
/* Drops this node's copies, which a rank that computes wrongly may have written; the next start
 * uses a checkpoint. Rank-local; the error record stays. */
void weft_saves_forget_copies(weft_saves *saves);
/* Brings the run at `run` back to its newest checkpoint that is whole: `path`, on rank 0. Skips
 * damaged ones as a start does, with one line. A save that is under way ends before; copies in
 * other nodes' memory, of later steps, are dropped. WEFT_DIVERGED: there is no checkpoint yet. */
weft_status weft_saves_rewind(weft_saves *saves, const char *run,
                              char path[WEFT_SAVES_PATH_BYTES]) WEFT_CHECKED;
/* After a load that failed on all ranks: whether the checkpoint is damaged, by rank 0, rather than
 * another model's. The error record stays. */
weft_status weft_saves_find_damage(weft_comm *world, const char *checkpoint,
                                   bool *out) WEFT_CHECKED;
/* Call it after each step, with the writers' state from its result: advances a save that is under
 * way. */
weft_status weft_saves_advance(weft_saves *saves, weft_writer_word word) WEFT_CHECKED;
/* Saves amid a run. */
weft_status weft_saves_save(weft_saves *saves) WEFT_CHECKED;
/* The last, synchronous save, after one that is under way. */
weft_status weft_saves_end(weft_saves *saves) WEFT_CHECKED;

#endif
