/* A run's numbers for other tools: TensorBoard's event files, and Prometheus' text for
 * node_exporter. Rank 0 alone uses it. What cannot be written amid a run is told once, and ends the
 * export, not the run. */
#ifndef WEFT_LAUNCHER_TRAINING_EXPORTS_H
#define WEFT_LAUNCHER_TRAINING_EXPORTS_H

#include <stdio.h>

#include "launcher/training/trainer.h"

/* Zero is valid: nothing is exported. */
typedef struct weft_exports {
    FILE *events; /* a file of its own for each start; NULL: none */
    char events_path[1100];
    const char *text; /* the Prometheus file; borrowed; NULL: none */
    const char *run;  /* its label; borrowed */
    int64_t seq_length;
} weft_exports;

/* Opens what section `log` asks for, for steps behind `step`: TensorBoard drops what earlier starts
 * wrote of them. Errors: WEFT_FILE. */
weft_status weft_exports_open(weft_exports *exports, const weft_config *config, const char *run,
                              int64_t step) WEFT_CHECKED;
/* A step, with Megatron-LM's tags. */
void weft_exports_step(weft_exports *exports, const weft_step_result *result);
void weft_exports_evaluation(weft_exports *exports, int64_t step,
                             const weft_evaluation *evaluation);
/* Puts the numbers of a line of metrics in place of the Prometheus file, where `text` is set. */
void weft_exports_line(weft_exports *exports, const char *line);
void weft_exports_close(weft_exports *exports);

#endif
