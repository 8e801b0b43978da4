/* Models from Hugging Face's files and back: config.json, tensors and tokenizer of a folder.
 *
 *   RUN/config.json            what `weft train` takes: the model, and checkpoint.load: "."
 *   RUN/checkpoints/step-0/    the weights alone, in fp32
 *   RUN/source/                what the folder had beside its tensors, and tensors.json: their
 * names, dtypes, shapes and files, by which export makes the same again
 *
 * Tensors pass through one by one, in pieces: what is in memory does not grow with the model, but
 * for one tensor where it is transposed. Rank-local. Errors name the file, the tensor, the
 * parameter or the key, and leave nothing behind. */
#ifndef WEFT_LAUNCHER_MODELS_MODELS_H
#define WEFT_LAUNCHER_MODELS_MODELS_H

#include "launcher/models/safetensors.h"
#include "launcher/planning/config.h"
#include "launcher/report/report.h"

/* What was read or written, for people and for comparing. */
typedef struct weft_card {
    const char *from, *to; /* to NULL: nothing was written */
    const char *family;
    const weft_safetensor *tensors; /* those that are parameters, and copies, sorted by name */
    const uint64_t *hashes;         /* xxh64 of their bytes; NULL: nobody asked */
    size_t num_tensors;
    uint64_t bytes, num_elements; /* of parameters, each once */
    size_t num_parameters;
    int num_files;
    size_t num_scaled; /* fp8 or MXFP4 in blocks: read as their products, and exported as BF16 */
    weft_string_list ignored_tensors, ignored_keys, copies;
} weft_card;

typedef struct weft_import {
    const char *folder, *out; /* out NULL: reads and checks all, and hashes it */
    const weft_application *application;
} weft_import;

/* Memory of the card from the arena. Errors: WEFT_CONFIG: of config.json, or `out` is there;
 * WEFT_FILE, WEFT_MEMORY; WEFT_DIVERGED: a weight is not finite. */
weft_status weft_import_model(const weft_import *import, weft_arena *arena,
                              weft_card *card) WEFT_CHECKED;

typedef struct weft_export {
    const char *checkpoint;   /* a run's folder, its checkpoints folder, or one step-N folder */
    const char *like;         /* a folder with config.json and tokenizer; NULL: the run's source */
    const char *out;          /* NULL: makes and hashes all, and writes nothing */
    const char *dtype;        /* "fp32", "bf16", "fp16"; NULL: each tensor's of the source, else
                                 the run's precision */
    uint64_t max_shard_bytes; /* of a file; 0: the source's files where the tensors have its dtypes,
                                 else 5 GB */
    const weft_application *application;
} weft_export;

weft_status weft_export_model(const weft_export *export, weft_arena *arena,
                              weft_card *card) WEFT_CHECKED;

#endif
