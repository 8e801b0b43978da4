/* What import and export share. */
#ifndef WEFT_LAUNCHER_MODELS_WORK_H
#define WEFT_LAUNCHER_MODELS_WORK_H

#include "launcher/models/config_json.h"
#include "launcher/models/models.h"
#include "launcher/models/names.h"

#define WEFT_SOURCE_FOLDER "source"
#define WEFT_SOURCE_TENSORS "tensors.json"

enum { WEFT_PIECE_ELEMENTS = 4 << 20 }; /* that pass through memory at once */

/* The parameters of a config's model, to match names with. */
weft_status weft_names_model_of(const weft_family *family, const weft_config *config,
                                weft_arena *arena, weft_names_model *out) WEFT_CHECKED;

/* --- gathering ----------------------------------------------------------------------------- */

/* Gives elements first, first + 1, ... of one tensor or parameter, as fp32. */
typedef weft_status (*weft_gather_read)(void *context, size_t index, size_t first, size_t count,
                                        float *out);

/* Makes one side of maps from the other, which it reads: in runs, or whole where it is transposed.
 */
typedef struct weft_gather {
    weft_map_side side; /* that is made */
    weft_gather_read read;
    void *context;
    float *whole; /* of `whole_of`, what a transposition reads */
    size_t whole_of;
} weft_gather;

/* Elements [first, first + count) of the made side, as far as the map has them, into `out`.
 * other, other_elements: what is read of. */
weft_status weft_gather_map(weft_gather *gather, const weft_map *map, size_t other,
                            size_t other_elements, size_t first, size_t count,
                            float *out) WEFT_CHECKED;
void weft_gather_release(weft_gather *gather);

/* --- folders ------------------------------------------------------------------------------- */

/* A folder that is DIR/.NAME.weft-part until it is whole. Its file .weft-part, locked (flock),
 * tells it from a folder of the user's: what a killed command has left makes way, nothing else
 * does. */
typedef struct weft_new_folder {
    const char *path, *partial;
    int lock;
} weft_new_folder;

/* WEFT_CONFIG: `path` is there, and no empty folder; or another process makes it. WEFT_FILE. */
weft_status weft_new_folder_open(const char *path, weft_arena *arena,
                                 weft_new_folder *out) WEFT_CHECKED;
/* With WEFT_OK renames the folder into place, else removes it; returns the first error. */
weft_status weft_new_folder_close(const weft_new_folder *folder, weft_status status) WEFT_CHECKED;
/* Writes a file whole. */
weft_status weft_folder_write(const char *folder, const char *name, const char *text) WEFT_CHECKED;
/* Copies what stands beside a model's tensors: configs and the tokenizer's files, but for
 * config.json and what lists tensors. */
weft_status weft_folder_copy_texts(const char *from, const char *to) WEFT_CHECKED;

/* --- the source's tensors ------------------------------------------------------------------ */

/* What is written where an import is exported: tensors with scales as BF16. */
weft_status weft_origin_write(const char *folder, const weft_safetensors *files) WEFT_CHECKED;
typedef struct weft_origin {
    weft_safetensor *tensors; /* as tensors.json lists them */
    size_t num_tensors;
    const char **names; /* of files */
    int num_files;
} weft_origin;
weft_status weft_origin_read(const char *folder, weft_arena *arena, weft_origin *out) WEFT_CHECKED;

#endif
