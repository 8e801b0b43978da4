/* Distributed checkpoints: a folder a step, any mesh loads any checkpoint.
 *
 *   DIR/step-N/model.h5       global datasets: model/<name>, optimizer/exp_avg/<name>,
 *                             optimizer/exp_avg_sq/<name>, fp32; experts share one dataset with a
 *                             leading expert axis. h5dump and h5py read it as it is
 *   DIR/step-N/shards.json    a row a hyperslab written: dataset, start, count, xxh64 of its bytes
 *   DIR/step-N/config.json    the resolved config, as given by the caller
 *   DIR/step-N/tokenizer.json the tokenizer's description, where there is one
 *   DIR/step-N/manifest.json  written last: format version, step, consumed tokens, fp16's loss
 *                             scale, every dataset with its shape and place in model.h5, every file
 *                             with size and xxh64 (model.h5: of the bytes outside the datasets),
 *                             its own xxh64
 *   DIR/latest                a text file: "step-N"
 *   DIR/step-N.replaced       only after a kill while step-N was replaced, where the file system
 *                             cannot exchange two names at once: readers of step-N find it
 *
 * Rank 0 makes model.h5 with HDF5; then each rank writes its own hyperslabs with plain writes at
 * the datasets' offsets (contiguous, no filter): see docs/checkpoints.md. A save writes under a
 * temporary name, reopens and verifies, writes the manifest last, fsyncs, renames the folder into
 * place, then moves `latest` by rename: a reader never sees half a checkpoint.
 *
 * save, load and load_weights are collective over groups->world: all ranks return the same status.
 * The others are rank-local. Only the calling thread may use HDF5. Errors: WEFT_FILE naming file,
 * dataset and fault; WEFT_CONFIG where a newer Weft wrote the checkpoint, which then is not damaged
 * and which no save replaces. */
#ifndef WEFT_PARALLEL_CHECKPOINT_CHECKPOINT_H
#define WEFT_PARALLEL_CHECKPOINT_CHECKPOINT_H

#include "parallel/optimizer/optimizer.h"

typedef struct weft_checkpoint_info {
    int64_t step;
    int64_t consumed_tokens; /* of the data, as inputs */
    uint64_t seed;
    weft_loss_scale loss_scale;         /* all zero: the run has none */
    int64_t bad_steps, skipped_batches; /* so far; their batches that AdamW's steps do not count */
    weft_loss_mean loss_mean;           /* all zero: nothing asks for it */
} weft_checkpoint_info;

/* Saves under `dir` (made where missing; seen by all ranks), replacing a checkpoint of the same
 * step. config_text: the resolved config as JSON. tokenizer_text: JSON of the tokenizer
 * description, or NULL. The caller has synced the lanes that write the state. WEFT_DIVERGED: a
 * weight or a moment is not finite; such a state is never published. After an error, such as a full
 * disk, what was there before is untouched. */
weft_status weft_checkpoint_save(const char *dir, const weft_checkpoint_info *info,
                                 const weft_parameters *parameters, const weft_optimizer *optimizer,
                                 const char *config_text, const char *tokenizer_text) WEFT_CHECKED;
/* Bytes that a save of so many elements asks for before it writes: with what HDF5 has beside them.
 */
uint64_t weft_checkpoint_file_bytes(uint64_t elements, size_t num_datasets);
/* The folder that `path` means: itself when it holds a manifest, else path/latest's, else
 * path/checkpoints/latest's. Rank-local. WEFT_FILE when there is none. */
weft_status weft_checkpoint_resolve(const char *path, weft_arena *arena,
                                    const char **out_folder) WEFT_CHECKED;
/* RUN of RUN/checkpoints/step-N, by its name where the path has that. */
weft_status weft_checkpoint_run(const char *folder, weft_arena *arena,
                                const char **out) WEFT_CHECKED;
/* The steps of the whole checkpoints in `dir` (folders step-N with a manifest, for
 * weft_checkpoint_resolve), rising, in the arena; a folder that is not there has none. Rank-local.
 */
weft_status weft_checkpoint_list(const char *dir, weft_arena *arena, int64_t **out_steps,
                                 size_t *out_count) WEFT_CHECKED;
/* Which checkpoints stay beside the newest. */
typedef struct weft_checkpoint_keep {
    int64_t latest_k;        /* so many up to what `latest` names; below 1: all stay */
    int64_t retain_interval; /* and those whose step it divides; 0: none */
} weft_checkpoint_keep;

/* Removes the others in `dir`, and what removals and saves that were killed have left. Those of
 * later steps than `latest` stay: they are of what a run has abandoned. A checkpoint loses its name
 * before its files: killed anywhere, none is half there. One rank calls it, after a save; no other
 * is under way. *out_removed is set also after WEFT_FILE. */
weft_status weft_checkpoint_prune(const char *dir, const weft_checkpoint_keep *keep,
                                  int *out_removed) WEFT_CHECKED;
/* WEFT_CONFIG where the folder's manifest says that a newer Weft wrote it; WEFT_OK of any other
 * folder, one that is damaged or missing too. Rank-local. */
weft_status weft_checkpoint_check_format(const char *folder) WEFT_CHECKED;
/* Verifies every hash, elements too, on this rank alone. */
weft_status weft_checkpoint_verify(const char *folder) WEFT_CHECKED;
/* Checks the manifest, and all files' sizes and hashes but for the elements in model.h5. */
weft_status weft_checkpoint_read_info(const char *folder, weft_checkpoint_info *out) WEFT_CHECKED;
/* Reads the manifest's config text into the arena; checks that file alone. */
weft_status weft_checkpoint_read_config(const char *folder, weft_arena *arena,
                                        const char **out_text) WEFT_CHECKED;
/* NULL where the checkpoint has none. */
weft_status weft_checkpoint_read_tokenizer(const char *folder, weft_arena *arena,
                                           const char **out_text) WEFT_CHECKED;
/* Verifies every shard's hash (each rank a part of them), fills the optimizer's pieces (masters and
 * moments; moments are zero where the checkpoint has weights alone), then weft_optimizer_reload. A
 * dataset that is missing, of another shape or left over is an error naming it; then nothing has
 * been filled. Synced on return. */
weft_status weft_checkpoint_load(const char *folder, weft_parameters *parameters,
                                 weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* Fills weights alone, for generate; verifies the shards of weights. */
weft_status weft_checkpoint_load_weights(const char *folder, weft_parameters *parameters,
                                         weft_lane *lane) WEFT_CHECKED;

enum { WEFT_STORED_NAME_BYTES = WEFT_MAX_NAME_BYTES + 32 };
#define WEFT_STORED_WEIGHT "model/" /* what names of weights begin with */

/* One dataset of model.h5: fp32, contiguous. */
typedef struct weft_stored {
    char name[WEFT_STORED_NAME_BYTES]; /* "optimizer/exp_avg/decoder.layers.0..." */
    int num_dims;
    size_t dims[WEFT_MAX_DIMS];
    uint64_t offset; /* bytes from the start of the file; known once written */
} weft_stored;

/* Sorted by name, names unique. */
typedef struct weft_stored_list {
    weft_stored *items;
    int count;
} weft_stored_list;

typedef struct weft_checkpoint_contents {
    weft_checkpoint_info info;
    weft_stored_list datasets; /* in the arena */
    uint64_t num_parameters, bytes;
    size_t num_shards;
    bool has_optimizer;
} weft_checkpoint_contents;

/* Says what a checkpoint holds, and verifies every hash. Rank-local. */
weft_status weft_checkpoint_inspect(const char *folder, weft_arena *arena,
                                    weft_checkpoint_contents *out) WEFT_CHECKED;

/* Checkpoints of weights alone, as a whole and without a mesh: where models come from other formats
 * and go to them. They are of step 0, of no seed. Rank-local. */

typedef struct weft_weight { /* a parameter */
    char name[WEFT_MAX_NAME_BYTES];
    int num_dims;
    size_t dims[WEFT_MAX_DIMS];
} weft_weight;

/* What every element of a checkpoint is. */
bool weft_are_finite(const float *data, size_t count);
typedef struct weft_weights_writer weft_weights_writer;
/* Fills in elements first, first + 1, ... of a weight, in row-major order. */
typedef weft_status (*weft_weights_function)(void *context, size_t first, size_t count, float *out);

/* Begins DIR/step-0. Errors: a save's. */
weft_status weft_weights_create(const char *dir, const weft_weight *weights, size_t count,
                                weft_weights_writer **out) WEFT_CHECKED;
/* Writes one of them, in pieces that `fill` gives in rising order. WEFT_DIVERGED: one that is not
 * finite. */
weft_status weft_weights_write(weft_weights_writer *writer, const char *name,
                               weft_weights_function fill, void *context) WEFT_CHECKED;
/* Syncs all to the disk and publishes; who reads it compares the hashes. WEFT_FILE: one of them was
 * not written. */
weft_status weft_weights_publish(weft_weights_writer *writer, const char *config_text) WEFT_CHECKED;
/* What is not published goes. NULL is legal. */
void weft_weights_abandon(weft_weights_writer *writer);

typedef struct weft_weights_reader weft_weights_reader;
/* Opens a checkpoint's weights. */
weft_status weft_weights_open(const char *folder, weft_weights_reader **out) WEFT_CHECKED;
/* Sorted by name; borrowed. */
const weft_weight *weft_weights_list(const weft_weights_reader *reader, size_t *out_count);
/* Elements first, first + 1, ... of weight `index` of the list. Hashes of a weight that is read
 * from its beginning on, in order, are compared as its elements go by, so that it is read once; of
 * another, before its first element is given. */
weft_status weft_weights_read(weft_weights_reader *reader, size_t index, size_t first, size_t count,
                              float *out) WEFT_CHECKED;
/* Compares those hashes of what was read that were not yet: WEFT_OK means that all of it was good.
 */
weft_status weft_weights_finish(weft_weights_reader *reader) WEFT_CHECKED;
void weft_weights_close(weft_weights_reader *reader); /* NULL is legal */

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
    bool copies;       /* it went to nodes' memory, not to disk (weft_copies_begin) */
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
/* The bytes of a ring for a save of at most `staging_bytes`; 0: of what it takes. WEFT_CONFIG: less
 * than the largest piece that is handed over at once. Rank-local. */
weft_status weft_checkpoint_find_staging(const weft_optimizer *optimizer, size_t staging_bytes,
                                         size_t *out) WEFT_CHECKED;
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

/* Copies of each rank's state in nodes' memory (checkpoint.peer_copies): the rank's own node has
 * one, and K other nodes. A snapshot is taken as for an asynchronous save, and the rank's writer
 * puts it into files of a folder in memory, which outlive all of the job's processes, here and on
 * the peers' nodes, over TCP. A start that follows looks for the newest step whose states are all
 * there, on whatever nodes it has, and makes a checkpoint of it, which any mesh loads.
 *
 * RUN/checkpoints/copies has the random name of a start's copies: PATH/weft-<name>/<node>/. Other
 * runs and other starts have others, so that nothing is mixed. */

typedef struct weft_copies_place {
    const char *dir;    /* RUN/checkpoints, which all ranks share */
    const char *path;   /* a folder in each node's own memory */
    const char *node;   /* this node's name; NULL: its host name */
    int ranks_per_node; /* 0: as the machines say */
} weft_copies_place;

/* The ranks of nodes, for who copies to whom. */
typedef struct weft_copies_nodes {
    int num_nodes;
    int *node_of, *position_of; /* by rank: its node, and its place there */
    int *first;                 /* by node, and the end: where its ranks begin in `ranks` */
    int *ranks;
} weft_copies_nodes;

/* node_of: [world], nodes in the order of their first ranks. Memory from the arena. Pure. */
weft_status weft_copies_find_nodes(const int *node_of, int world, weft_arena *arena,
                                   weft_copies_nodes *out) WEFT_CHECKED;
/* Who holds copy k (from 1) of a rank's state: the rank of its position, k nodes on. Pure. */
int weft_copies_peer(const weft_copies_nodes *nodes, int rank, int k);

/* Takes the memory for `num_copies` copies on other nodes, two of each, `text_bytes` for config and
 * tokenizer among them, names them in place->dir, and starts those who receive. WEFT_CONFIG: too
 * few nodes, or host memory is short. WEFT_MEMORY, WEFT_FILE, WEFT_COMM: then nothing is left.
 * After weft_checkpoint_writer_reserve. Collective, agreed. */
weft_status weft_copies_reserve(weft_checkpoint_writer *writer, const weft_copies_place *place,
                                int num_copies, size_t text_bytes,
                                const weft_parameters *parameters,
                                const weft_optimizer *optimizer) WEFT_CHECKED;
/* Host memory that this rank has taken for them, until it gave it back; 0: there are none. */
size_t weft_copies_bytes(const weft_checkpoint_writer *writer);
/* As weft_checkpoint_begin, but into memory: weft_checkpoint_advance ends it, behind which all
 * copies are there, and publishes nothing. The texts are rank 0's. Collective. */
weft_status weft_copies_begin(weft_checkpoint_writer *writer, const weft_checkpoint_info *info,
                              const weft_parameters *parameters, const weft_optimizer *optimizer,
                              const char *config_text, const char *tokenizer_text) WEFT_CHECKED;
/* Forgets what all copies hold, where the run goes back behind it. None is under way. Rank-local.
 */
weft_status weft_copies_clear(weft_checkpoint_writer *writer) WEFT_CHECKED;
/* Gives the memory back: a checkpoint has all that it holds. Rank-local; without copies, nothing.
 */
void weft_copies_release(weft_checkpoint_writer *writer);

typedef struct weft_copies_found {
    int64_t step;   /* made a checkpoint; -1: none */
    uint64_t bytes; /* of its states */
    int num_ranks;  /* whose states they are */
    int64_t newest; /* step -1: newer than the checkpoint, but not whole; -1: none is newer */
    int missing;    /* the first rank whose state of that step is not there */
} weft_copies_found;

/* Whether an earlier start has left a name. Rank-local. */
bool weft_copies_are_named(const char *dir);
/* Makes the newest step that is newer than `newer_than` and whole in memory a checkpoint, the
 * latest, and gives the memory of that start back. A copy whose hash differs counts as lost, with a
 * line of the rank that reads it. WEFT_FILE: the checkpoint cannot be written; the memory stays.
 * Collective over world, agreed. */
weft_status weft_copies_restore(weft_comm *world, const weft_copies_place *place,
                                int64_t newer_than, weft_copies_found *out) WEFT_CHECKED;

#endif
