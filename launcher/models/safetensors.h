/* Tensors in files of the safetensors format: a u64 that says how long the header is; the header, a
 * JSON object of names, each with dtype, shape and the place of its bytes behind the header, and
 * "__metadata__"; the bytes, without holes.
 *
 * A folder has one file, model.safetensors, or several and model.safetensors.index.json, whose
 * weight_map says which file has which tensor. Nothing in a header is believed: lengths, places,
 * shapes and the index are checked against each other and the files. */
#ifndef WEFT_LAUNCHER_MODELS_SAFETENSORS_H
#define WEFT_LAUNCHER_MODELS_SAFETENSORS_H

#include <weft/tensor.h>

#include "core/arena.h"
#include "core/file.h"

enum { WEFT_SAFETENSORS_MAX_DIMS = 8 };

#define WEFT_SAFETENSORS_FILE "model.safetensors"
#define WEFT_SAFETENSORS_INDEX "model.safetensors.index.json"

enum { WEFT_SCALED_BLOCK = 128, WEFT_FP4_BLOCK = 32 };

typedef struct weft_safetensor {
    const char *name;
    const char *dtype_text; /* as the file calls it: "BF16" */
    weft_dtype dtype;       /* where can_read */
    bool can_read;          /* the dtype is one of Weft's: F32, BF16, F16; or it has scales */
    int num_dims;
    size_t
        dims[WEFT_SAFETENSORS_MAX_DIMS]; /* of MXFP4 those of its numbers: [..., rows, columns] */
    int file;                            /* that has it */
    uint64_t offset, bytes;              /* in the file */
    /* What its numbers are multiplied by. Of F8_E4M3: NAME_scale_inv, F32, of each block of 128 x
     * 128. Of MXFP4, whose U8 NAME_blocks [..., rows, blocks, 16] are two numbers a byte:
     * NAME_scales, U8, 2^(x - 127) of each block of 32. NULL: it has none. */
    const struct weft_safetensor *scales;
    bool is_fp4;
    bool is_scales; /* of another tensor */
} weft_safetensor;

typedef struct weft_safetensors {
    const char *folder;
    const char **names; /* of files, in the folder */
    weft_file *files;
    int num_files;
    bool has_index;
    weft_safetensor *tensors; /* sorted by name */
    size_t num_tensors;
    uint64_t bytes; /* of all tensors */
} weft_safetensors;

/* Opens the files of a folder and reads their headers. The caller releases *out, also after an
 * error. Memory from the arena. Errors: WEFT_FILE naming file, tensor and fault; WEFT_MEMORY. */
weft_status weft_safetensors_open(const char *folder, weft_arena *arena,
                                  weft_safetensors *out) WEFT_CHECKED;
void weft_safetensors_release(weft_safetensors *files);
/* NULL: there is none of that name. */
const weft_safetensor *weft_safetensors_find(const weft_safetensors *files, const char *name);
size_t weft_safetensor_elements(const weft_safetensor *tensor);
/* Elements first, first + 1, ... of a tensor that can be read, as fp32. raw: room for as many of
 * its own, where it has scales of fp32. */
weft_status weft_safetensor_read(const weft_safetensors *files, const weft_safetensor *tensor,
                                 size_t first, size_t count, void *raw, float *out) WEFT_CHECKED;

/* --- writing ------------------------------------------------------------------------------- */

/* Which tensors go into which file: the tensors' `file`, and num_files, are filled in. In their
 * order, a file after the other, each of at most `most` bytes, or of one tensor. */
void weft_safetensors_split(weft_safetensor *const *tensors, size_t count, uint64_t most,
                            int *num_files);
/* "model-00001-of-00003.safetensors", of one file "model.safetensors". In the arena. */
weft_status weft_safetensors_name(int file, int num_files, weft_arena *arena,
                                  const char **out) WEFT_CHECKED;
/* Orders a file's tensors as the format's own writer does, larger elements first and then by name,
 * fills in their offsets and gives the bytes before the first of them. In the arena. */
weft_status weft_safetensors_lay_out(weft_safetensor **tensors, size_t count, weft_arena *arena,
                                     const char **out_head, size_t *out_bytes) WEFT_CHECKED;
/* The index of what weft_safetensors_split has divided: sorted by name. names: of files. */
weft_status weft_safetensors_write_index(const weft_safetensor *tensors, size_t count,
                                         const char *const *names, FILE *out) WEFT_CHECKED;

#endif
