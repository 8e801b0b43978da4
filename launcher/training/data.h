/* The datasets of a run: what it trains on, one or a blend of several, and sets to validate on. */
#ifndef WEFT_LAUNCHER_TRAINING_DATA_H
#define WEFT_LAUNCHER_TRAINING_DATA_H

#include "core/dataset/dataset.h"

/* The parts of the data, by data.split. */
typedef enum weft_split_kind {
    WEFT_SPLIT_TRAIN,
    WEFT_SPLIT_VALIDATION,
    WEFT_SPLIT_TEST,
    WEFT_NUM_SPLITS
} weft_split_kind;

typedef struct weft_data_set {
    const char *name; /* in metrics */
    weft_dataset *dataset;
    weft_split splits[WEFT_NUM_SPLITS]; /* a validation set has all in WEFT_SPLIT_VALIDATION */
    bool is_hashed;                     /* xxh64 is known: of tokens, tokenizer and mask */
    uint64_t xxh64;
} weft_data_set;

/* Zero is valid: none. Arrays lie in the arena of who opened it. */
typedef struct weft_data {
    weft_data_set *parts; /* what is trained on: 1, or more in a blend */
    size_t num_parts;
    weft_blend blend;
    weft_split splits[WEFT_NUM_SPLITS]; /* of the one part, or the blend's */
    weft_data_set *validation;          /* data.validation */
    size_t num_validation;
    const char *tokenizer; /* whose tokens they are (weft_tokenizer_identity); "": unknown */
} weft_data;

void weft_data_close(weft_data *data);

#endif
