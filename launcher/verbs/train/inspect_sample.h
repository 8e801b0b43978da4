/* weft inspect --sample: what a step of a run read. */
#ifndef WEFT_LAUNCHER_VERBS_TRAIN_INSPECT_SAMPLE_H
#define WEFT_LAUNCHER_VERBS_TRAIN_INSPECT_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <weft/application.h>
#include <weft/status.h>

typedef struct weft_inspect_sample {
    const char *run;
    int64_t step;
    bool full, json; /* whole texts, which JSON always has */
    const weft_application *application;
} weft_inspect_sample;

/* Prints the samples of the step's global batch, in the order of its micro-batches, by the code
 * that training reads them with. WEFT_CONFIG: no such step, or no data that can be read again;
 * WEFT_FILE: the data have changed since. */
weft_status weft_inspect_sample_print(const weft_inspect_sample *asked, FILE *out) WEFT_CHECKED;

#endif
