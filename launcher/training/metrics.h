/* Reads RUN/metrics.jsonl, which progress.h writes: a line for each step and each evaluation, in
 * their order. */
#ifndef WEFT_LAUNCHER_TRAINING_METRICS_H
#define WEFT_LAUNCHER_TRAINING_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

struct cJSON;

typedef weft_status (*weft_metrics_function)(void *context, const struct cJSON *line);
/* Calls `visit` for each line that is a JSON object with a step; others, such as a last line that
 * is still being written, are passed over. WEFT_FILE: the folder has no metrics. */
weft_status weft_metrics_read(const char *run, weft_metrics_function visit,
                              void *context) WEFT_CHECKED;
/* The number at this key; NaN: there is none. */
double weft_metrics_number(const struct cJSON *line, const char *key);
/* Whether the line is of an evaluation. */
bool weft_metrics_is_evaluation(const struct cJSON *line);

#endif
