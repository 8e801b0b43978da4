/* The datasets that section "data" of a config names. */
#ifndef WEFT_LAUNCHER_PLANNING_DATA_SOURCES_H
#define WEFT_LAUNCHER_PLANNING_DATA_SOURCES_H

#include "launcher/planning/config.h"

typedef struct weft_data_source {
    const char *prefix; /* of .bin and .idx */
    const char *name;   /* the end of it: in metrics */
    int64_t weight;     /* in the blend; in proportion to the others' */
} weft_data_source;

typedef struct weft_data_sources {
    const char *key; /* that names them, for errors */
    weft_data_source *of;
    size_t count; /* 0: mock data, or the program's own */
} weft_data_sources;

/* What is trained on: that of data.data_path, or all of data.blend. Memory of the arena. Errors of
 * both: WEFT_CONFIG, of the key: weights that are none, two datasets of one name. */
weft_status weft_data_find_training(const weft_config *config, weft_arena *arena,
                                    weft_data_sources *out) WEFT_CHECKED;
/* Those of data.validation, whose weights are 1. */
weft_status weft_data_find_validation(const weft_config *config, weft_arena *arena,
                                      weft_data_sources *out) WEFT_CHECKED;
/* Makes the paths of data.data_path, data.blend and data.validation absolute, so that a run goes on
 * wherever it is resumed. */
weft_status weft_data_make_absolute(weft_data_options *data, weft_arena *arena) WEFT_CHECKED;

#endif
