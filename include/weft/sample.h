/* A dataset of the program's own: a function that fills a sample. */
#ifndef WEFT_SAMPLE_H
#define WEFT_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef enum weft_sample_use {
    WEFT_SAMPLE_TRAIN,
    WEFT_SAMPLE_VALIDATION,
    WEFT_SAMPLE_TEST,
} weft_sample_use;

/* The sample that Weft asks for. The library's; may grow at its end. */
typedef struct weft_sample {
    weft_sample_use use;
    uint64_t index; /* from 0, without end, in each use: training sample `index` of the run */
    uint64_t seed;  /* train.seed */
    size_t seq_length;
    int64_t vocab_size;
    const void *own_options; /* of the application; NULL: it has none */
    int32_t *tokens;         /* the function fills [seq_length], each in [0, vocab_size) */
    int32_t *labels;         /* the function fills [seq_length]: for Weft's head the next tokens,
                                each in [0, vocab_size); a program's own last layer defines them */
} weft_sample;

/* Fills tokens and labels as a pure function of the sample's other fields: ranks ask for samples in
 * any order, several for the same one, and a resumed run goes on where it stopped. Its error ends
 * the job. */
typedef weft_status (*weft_sample_function)(const weft_sample *sample);

#endif
