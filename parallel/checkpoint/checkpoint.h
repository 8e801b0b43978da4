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

#include <stdio.h>

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
/* The folder that `path` means: itself when it holds a manifest, else path/latest's, else
 * path/checkpoints/latest's. Rank-local. WEFT_FILE when there is none. */
weft_status weft_checkpoint_resolve(const char *path, weft_arena *arena,
                                    const char **out_folder) WEFT_CHECKED;
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
 * moments), then weft_optimizer_reload. A dataset that is missing, of another shape or left over is
 * an error naming it; then nothing has been filled. Synced on return. */
weft_status weft_checkpoint_load(const char *folder, weft_parameters *parameters,
                                 weft_optimizer *optimizer, weft_lane *lane) WEFT_CHECKED;
/* Fills weights alone, for generate; verifies the shards of weights. */
weft_status weft_checkpoint_load_weights(const char *folder, weft_parameters *parameters,
                                         weft_lane *lane) WEFT_CHECKED;
/* Prints step, datasets with shapes, and parameter count; verifies every hash. json: as JSON.
 * Rank-local. */
weft_status weft_checkpoint_inspect(const char *folder, bool json, FILE *out) WEFT_CHECKED;

#endif
