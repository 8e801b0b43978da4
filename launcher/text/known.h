/* What reading a whole dataset of files tells, and where it is kept: beside the dataset, in
 * PREFIX.xxh64.json, with what identifies this writing of both files. So a start reads a dataset
 * once. */
#ifndef WEFT_LAUNCHER_TEXT_KNOWN_H
#define WEFT_LAUNCHER_TEXT_KNOWN_H

#include <stdbool.h>

#include "core/dataset/dataset.h"

/* The largest token, and XXH64 of the ids, 32 bits each whatever they are stored as, and of a text
 * that says which tokenizer they are of (weft_tokenizer_identity). */
typedef struct weft_known {
    int32_t max_token;
    uint64_t xxh64;
} weft_known;

#define WEFT_KNOWN_SUFFIX ".xxh64.json"

/* What is kept of these very files and this tokenizer, beside the dataset or as that of prefix
 * `spare` (NULL: none); false: nothing, or nothing to trust. */
bool weft_known_recall(const weft_dataset *dataset, const char *spare, const char *tokenizer,
                       weft_known *out);
/* Reads every token. Errors: those of weft_dataset_read. */
weft_status weft_known_read(const weft_dataset *dataset, const char *tokenizer,
                            weft_known *out) WEFT_CHECKED;
/* The same, and keeps what that tells: beside the dataset; where nothing can be written there, as
 * that of `spare`; nowhere if the files change meanwhile (*out_kept false). */
weft_status weft_known_look(const weft_dataset *dataset, const char *spare, const char *tokenizer,
                            weft_known *out, bool *out_kept) WEFT_CHECKED;
/* WEFT_FILE where a token lies outside the vocabulary that PREFIX.json describes (0: none does). */
weft_status weft_known_check(const char *prefix, int64_t vocab_size,
                             const weft_known *known) WEFT_CHECKED;
/* Keeps what whoever wrote the files knows. */
weft_status weft_known_keep(const char *prefix, const char *tokenizer,
                            const weft_known *known) WEFT_CHECKED;

#endif
