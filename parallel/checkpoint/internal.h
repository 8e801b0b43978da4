/* What the checkpoint*.c files share: the datasets, their hyperslabs ("shards" in the files), the
 * manifest, and the folder they lie in. */
#ifndef WEFT_PARALLEL_CHECKPOINT_INTERNAL_H
#define WEFT_PARALLEL_CHECKPOINT_INTERNAL_H

#include <inttypes.h>

#include "core/arena.h"
#include "parallel/checkpoint/checkpoint.h"

enum {
    WEFT_SHARD_MAX_ELEMENTS = 4 << 20, /* a shard is read, written and hashed in one piece */
};

uint64_t weft_stored_elements(const weft_stored *stored);
/* The dataset's index, or -1. */
int weft_stored_find(const weft_stored_list *list, const char *name);
/* "model/", "optimizer/exp_avg/", ... before the parameter's name. */
void weft_stored_name(weft_state_kind kind, const char *parameter,
                      char out[WEFT_STORED_NAME_BYTES]);
/* The datasets of the whole model: the union over pipeline stages. num_kinds 1: weights alone.
 * Collective over the pipeline group. */
weft_status weft_stored_collect(const weft_parameters *parameters, int num_kinds, weft_arena *arena,
                                weft_stored_list *out) WEFT_CHECKED;

/* A hyperslab as it was written, and the xxh64 of its bytes in row-major order. */
typedef struct weft_stored_shard {
    int64_t dataset; /* index in the list */
    size_t start[WEFT_MAX_DIMS], count[WEFT_MAX_DIMS];
    uint64_t hash;
} weft_stored_shard;

typedef struct weft_shard_list {
    weft_stored_shard *items;
    size_t count, capacity;
} weft_shard_list;

static inline size_t weft_shard_elements(const weft_stored_shard *shard, int num_dims)
{
    size_t elements = 1;
    for (int d = 0; d < num_dims; d++)
        elements *= shard->count[d];
    return elements;
}

/* By dataset, then by place: for qsort. */
int weft_shard_compare(const void *a, const void *b);
/* "[0:4, 8:16]". */
void weft_shard_print(const weft_stored_shard *shard, int num_dims, char *out, size_t capacity);
/* Memory from the arena. */
weft_status weft_shard_append(weft_shard_list *list, weft_arena *arena,
                              const weft_stored_shard *shard) WEFT_CHECKED;
/* Whether the shards hold every element: WEFT_FILE naming the dataset that lacks some. */
weft_status weft_shards_check_cover(const char *path, const weft_stored_list *datasets,
                                    const weft_shard_list *shards) WEFT_CHECKED;

/* Visits local elements [first, first + count) of a parameter in runs of at most
 * WEFT_SHARD_MAX_ELEMENTS, of whole rows where rows are shorter. */
typedef weft_status (*weft_run_function)(void *context, size_t first, size_t count);
weft_status weft_runs_visit(const weft_box *box, size_t first, size_t count,
                            weft_run_function visit, void *context) WEFT_CHECKED;

/* --- model.h5 ------------------------------------------------------------------------------ */

typedef struct weft_tensor_file weft_tensor_file;

/* Creates the datasets of the file, which is there (weft_raw_reserve), without writing elements,
 * and closes it. Fills the list's offsets. Rank-local: one rank calls it. */
weft_status weft_tensor_file_create(const char *path, weft_stored_list *list) WEFT_CHECKED;
/* Opens for reading, rank-local; each dataset of the list must be there with its type, shape and
 * offset. `list` is borrowed until close. */
weft_status weft_tensor_file_open(const char *path, const weft_stored_list *list,
                                  weft_tensor_file **out) WEFT_CHECKED;
/* data: the shard's elements, host memory. */
weft_status weft_tensor_file_read(weft_tensor_file *file, const weft_stored_shard *shard,
                                  float *data) WEFT_CHECKED;
/* Closes and frees; NULL is legal. */
weft_status weft_tensor_file_close(weft_tensor_file *file) WEFT_CHECKED;

/* Any number of ranks at once write elements at the datasets' offsets, with plain writes: an error
 * is the system's own (a full disk says so), and HDF5 never holds an open file that it cannot
 * finish. */
typedef struct weft_raw_file {
    const char *path;
    int fd;
    size_t waiting_bytes; /* written since the disk was last told to begin */
} weft_raw_file;

/* Makes sure that the disk has room for the datasets, where the file system can say so. */
weft_status weft_raw_reserve(const char *path, const weft_stored_list *list) WEFT_CHECKED;
weft_status weft_raw_open(const char *path, weft_raw_file *out) WEFT_CHECKED;
/* The disk begins with what was written while the rest still is. */
weft_status weft_raw_write(weft_raw_file *file, const weft_stored *dataset,
                           const weft_stored_shard *shard, const float *data) WEFT_CHECKED;
/* The same of a run of bytes from `place` on. */
weft_status weft_raw_write_run(weft_raw_file *file, uint64_t place, const float *data,
                               size_t bytes) WEFT_CHECKED;
/* Flushes to the disk and closes. forgets: what is on the disk leaves the system's cache, so that
 * whoever reads it next reads the disk, where the file system does as it is advised. */
weft_status weft_raw_close(weft_raw_file *file, bool forgets) WEFT_CHECKED;

/* Gives rank i every size-th shard of rank 0's list from the i-th on, so that each verifies a part.
 * Memory from the arena. Collective over world. */
weft_status weft_shards_deal(weft_comm *world, const weft_shard_list *all, weft_arena *arena,
                             weft_shard_list *out) WEFT_CHECKED;
/* WEFT_FILE naming file, dataset and shard: `hash` is of other elements. */
weft_status weft_shard_check(const char *path, const weft_stored *dataset,
                             const weft_stored_shard *shard, uint64_t hash) WEFT_CHECKED;
/* Reads each shard and compares its hash. WEFT_FILE names the file, the dataset and the shard. */
weft_status weft_shards_verify(weft_tensor_file *file, const char *path,
                               const weft_stored_list *datasets,
                               const weft_shard_list *shards) WEFT_CHECKED;

/* --- a save ---------------------------------------------------------------------------------- */

/* One save, on one rank. The caller fills info to dir. */
typedef struct weft_save {
    weft_checkpoint_info info;
    const weft_parameters *parameters;
    const weft_optimizer *optimizer;
    weft_comm *world;
    const char *dir;
    weft_arena arena;
    const char *name, *temporary, *target, *model;
    weft_stored_list datasets;
    weft_shard_list shards; /* that this rank wrote; gathered: on rank 0, all of them */
    weft_shard_list dealt;  /* that this rank verifies, gathered */
    weft_lane *lane;
} weft_save;

/* Fills in name to model, from dir. */
weft_status weft_save_name(weft_save *save) WEFT_CHECKED;
/* Makes the folder and model.h5 in it, and finds the datasets; without parameters the caller has
 * filled them in, and there is no lane. `status`: of what the caller needs
 * beside. Collective over world, agreed. */
weft_status weft_save_open(weft_save *save, weft_status status) WEFT_CHECKED;
/* Visits the runs of every piece that this rank writes. The lane has what `visit` enqueues, and is
 * synced in the end. `run` is the visitor's context. */
typedef struct weft_save_run {
    weft_state_piece piece;
    int64_t dataset;
    const float *data; /* of the piece's first element */
} weft_save_run;
weft_status weft_save_visit(weft_save *save, weft_save_run *run,
                            weft_run_function visit) WEFT_CHECKED;
/* A slab of the run, without its hash. */
weft_stored_shard weft_save_shard(const weft_save_run *run, const weft_slab *slab);
/* Fills in the hash; WEFT_DIVERGED naming the dataset and the shard where an element is not finite.
 */
weft_status weft_shard_hash(int64_t step, const weft_stored *dataset, weft_stored_shard *shard,
                            const float *data) WEFT_CHECKED;
/* That error. */
weft_status weft_shard_refuse(int64_t step, const weft_stored *dataset,
                              const weft_stored_shard *shard) WEFT_CHECKED;
/* Gives rank 0 the shards of all ranks, in one order, and every rank its part to verify. Collective
 * over world. */
weft_status weft_save_gather(weft_save *save) WEFT_CHECKED;
/* Reads what was dealt back and compares the hashes. Rank-local. */
weft_status weft_save_verify(const char *model, const weft_stored_list *datasets,
                             const weft_shard_list *dealt) WEFT_CHECKED;
/* Rank 0, of what name to target say: the texts, the manifest last, then the new names. */
weft_status weft_save_publish(const weft_save *save, const char *config_text,
                              const char *tokenizer_text) WEFT_CHECKED;
/* failed: removes the temporary folder. */
void weft_save_release(weft_save *save, bool failed);

/* --- the texts beside it ------------------------------------------------------------------- */

#define WEFT_CHECKPOINT_FORMAT "weft-checkpoint"
enum { WEFT_CHECKPOINT_VERSION = 2, WEFT_CHECKPOINT_OF_SAMPLES = 1 };

typedef enum weft_part {
    WEFT_PART_MODEL,
    WEFT_PART_SHARDS,
    WEFT_PART_CONFIG,
    WEFT_PART_TOKENIZER, /* may be missing */
    WEFT_NUM_PARTS
} weft_part;
extern const char *const weft_part_names[WEFT_NUM_PARTS];

typedef struct weft_manifest {
    weft_checkpoint_info info;
    weft_stored_list datasets;
    struct {
        bool present;
        uint64_t bytes;
        uint64_t hash; /* of model.h5: of the bytes outside its datasets, so that HDF5 is never
                          given damaged structures; the datasets have their shards' */
    } parts[WEFT_NUM_PARTS];
} weft_manifest;

/* Size and hash of the file at `path`; of WEFT_PART_MODEL see above (needs the datasets' offsets).
 */
weft_status weft_part_hash(const char *path, const weft_manifest *manifest, int part,
                           uint64_t *out_bytes, uint64_t *out_hash) WEFT_CHECKED;
/* Fills parts[] from the files in the folder. */
weft_status weft_manifest_measure(const char *folder, weft_manifest *manifest) WEFT_CHECKED;
weft_status weft_manifest_write(const char *folder, const weft_manifest *manifest) WEFT_CHECKED;
/* Prints the end of a manifest: the hash of `text`, which is all before the end. */
enum { WEFT_MANIFEST_END_BYTES = 35 };
void weft_manifest_print_end(const char *text, size_t bytes, char out[WEFT_MANIFEST_END_BYTES]);
/* Reads and checks the manifest alone. */
weft_status weft_manifest_read(const char *folder, weft_arena *arena,
                               weft_manifest *out) WEFT_CHECKED;
/* Checks the size and hash of one of its parts, or of all that are present. */
weft_status weft_part_check(const char *folder, const weft_manifest *manifest, int part,
                            weft_arena *arena) WEFT_CHECKED;
weft_status weft_parts_check(const char *folder, const weft_manifest *manifest,
                             weft_arena *arena) WEFT_CHECKED;
weft_status weft_shards_write(const char *folder, const weft_stored_list *datasets,
                              const weft_shard_list *shards) WEFT_CHECKED;
weft_status weft_shards_read(const char *folder, const weft_stored_list *datasets,
                             weft_arena *arena, weft_shard_list *out) WEFT_CHECKED;

/* --- the folder ---------------------------------------------------------------------------- */

#define WEFT_MANIFEST_NAME "manifest.json"
#define WEFT_ASIDE ".replaced"

/* Makes `path` and what is missing above it. */
weft_status weft_folder_make(const char *path) WEFT_CHECKED;
bool weft_folder_exists(const char *path);
/* Removes a folder and the files in it, or a link and not its target; ignores failures. */
void weft_folder_remove(const char *path);
/* Makes an empty folder and replaces whatever has its name. */
weft_status weft_folder_make_new(const char *path) WEFT_CHECKED;
/* Opens folder/name for writing: a new file, which replaces whatever has that name. */
weft_status weft_folder_create_file(const char *folder, const char *name, FILE **out) WEFT_CHECKED;
/* Flushes, fsyncs and closes; reports any write that failed before. */
weft_status weft_folder_finish_file(const char *folder, const char *name, FILE *file) WEFT_CHECKED;
/* fsync of a file or a folder. */
weft_status weft_folder_sync(const char *path) WEFT_CHECKED;
/* Renames `temporary` to `target`, replacing a folder that is there. A kill at any moment
 * leaves one of both whole, under the target's name or, where the file system cannot exchange two
 * names at once, under that name with WEFT_ASIDE, where readers look too. */
weft_status weft_folder_publish(const char *temporary, const char *target) WEFT_CHECKED;
/* Makes `link` (a text file in `dir`) say `text`, by rename. */
weft_status weft_folder_point(const char *dir, const char *link, const char *text) WEFT_CHECKED;

#endif
