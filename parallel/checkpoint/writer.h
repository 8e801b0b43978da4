/* Asynchronous saves: the ranks train on while a process beside each of them writes.
 *
 * At a step's end every rank copies what it writes into a ring of host memory that it shares with
 * its writer (weft_checkpoint_begin); where the ring is smaller than that, it waits for the writer
 * for the rest. The writers write, fsync, read back and compare, and rank 0's publishes: the same
 * files with the same bytes as weft_checkpoint_save, by the same phases. Between phases the ranks
 * pass on what their writers have done: each brings its word to a maximum over the world that it
 * takes part in anyway, such as a step's, and all call weft_checkpoint_advance with that.
 *
 * A writer is forked before MPI is initialised, and never calls it. It dies with its rank. */
#ifndef WEFT_PARALLEL_CHECKPOINT_WRITER_H
#define WEFT_PARALLEL_CHECKPOINT_WRITER_H

#include "parallel/checkpoint/checkpoint.h"

typedef struct weft_checkpoint_writer weft_checkpoint_writer;

/* What a rank's writer says; the world's is the largest. */
typedef enum weft_writer_word {
    WEFT_WRITER_READY, /* with its part of the phase, or it has none */
    WEFT_WRITER_BUSY,
    WEFT_WRITER_FAILED,
    WEFT_WRITER_LOST /* its process has ended, or hung and was killed */
} weft_writer_word;

/* Of the last save. */
typedef struct weft_writer_report {
    int64_t step;
    bool copies;       /* it went to nodes' memory, not to disk (parallel/checkpoint/copies.h) */
    double stalled_us; /* this rank, in weft_checkpoint_begin */
    double waited_us;  /* of that, for room in the ring */
    size_t bytes;      /* that this rank copied */
    double written_us; /* the writer took to write and fsync, and */
    double verified_us;
} weft_writer_report;

/* Starts the process. The caller has one thread, and no MPI yet. WEFT_MEMORY. */
weft_status weft_checkpoint_writer_create(weft_checkpoint_writer **out) WEFT_CHECKED;
/* Ends the process, amid a save too, which then never was. NULL is legal. */
void weft_checkpoint_writer_destroy(weft_checkpoint_writer *writer);
/* A writer that makes no progress for so long in a save, or is stopped by a signal for 10 s, is
 * killed and lost: takes nothing from the ring, or neither syncs, verifies nor publishes it all. 0,
 * as at first: waits forever. */
void weft_checkpoint_writer_limit(weft_checkpoint_writer *writer, double seconds);
/* Makes the ring, of `staging_bytes`, or of what a save takes where that is less or staging_bytes
 * is 0. WEFT_CONFIG: less than the largest piece that is handed over at once. WEFT_MEMORY. A writer
 * that has ended is none: the first word says it. Rank-local. */
weft_status weft_checkpoint_writer_reserve(weft_checkpoint_writer *writer,
                                           const weft_parameters *parameters,
                                           const weft_optimizer *optimizer,
                                           size_t staging_bytes) WEFT_CHECKED;
/* That of the ring. */
size_t weft_checkpoint_writer_bytes(const weft_checkpoint_writer *writer);

/* Whether a save is under way, the same on all ranks. */
bool weft_checkpoint_writer_is_busy(const weft_checkpoint_writer *writer);
/* Whether a rank has lost its writer: the ranks save by themselves from then on. The same on all
 * ranks. */
bool weft_checkpoint_writer_is_off(const weft_checkpoint_writer *writer);
weft_writer_report weft_checkpoint_writer_report(const weft_checkpoint_writer *writer);

/* As weft_checkpoint_save, until this rank's part is copied; the state may change from then on. No
 * save is under way. `keep`: the writer removes other checkpoints behind it. Collective. */
weft_status weft_checkpoint_begin(weft_checkpoint_writer *writer, const char *dir,
                                  const weft_checkpoint_info *info,
                                  const weft_checkpoint_keep *keep,
                                  const weft_parameters *parameters,
                                  const weft_optimizer *optimizer, const char *config_text,
                                  const char *tokenizer_text) WEFT_CHECKED;
/* Rank-local; does not wait. */
weft_writer_word weft_checkpoint_writer_word(weft_checkpoint_writer *writer);
/* `word`: of the world. Collective unless that is WEFT_WRITER_BUSY, when nothing happens; waits for
 * no writer. *out_published: the save is the latest checkpoint. The errors are a save's, on all
 * ranks: it is given up. */
weft_status weft_checkpoint_advance(weft_checkpoint_writer *writer, weft_writer_word word,
                                    bool *out_published) WEFT_CHECKED;
/* Waits for the save that is under way, if any, and says what advance says. Collective. */
weft_status weft_checkpoint_finish(weft_checkpoint_writer *writer,
                                   bool *out_published) WEFT_CHECKED;

#endif
