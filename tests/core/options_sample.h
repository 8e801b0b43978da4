/* Two sections with a row of each type, for the tests of the options code. */
#ifndef WEFT_TESTS_CORE_OPTIONS_SAMPLE_H
#define WEFT_TESTS_CORE_OPTIONS_SAMPLE_H

#include "core/key_rows.h"
#include "core/options/options.h"
#include "tests/core/check.h"

typedef struct sample_model {
    int64_t num_layers, num_query_groups;
    bool swiglu;
    int position;
    weft_int_list layer_freq;
    int kind;
} sample_model;

typedef struct sample_train {
    double lr, weight_decay;
    int64_t seed;
    const char *data_path, *name;
    weft_string_list blend, tags;
    int64_t num_steps;
} sample_train;

typedef struct sample {
    sample_model model;
    sample_train train;
} sample;

#define T sample_model
static const weft_key sample_model_rows[] = {
    RANGE(FREE, num_layers, "8", 1, 1000, "layers", "how many layers"),
    RANGE(FREE, num_query_groups, NULL, 1, 1e18, NULL, "groups; null: one a head"),
    FLAG(FREE, swiglu, "false", "gated MLP"),
    CHOICE(FREE, position, "\"rope\"", "learned|rope|none", "position embedding"),
    ROW(FREE, "layer_freq", layer_freq, INT_LIST, "1", 0, 64, NULL, "which layers"),
    CHOICE(FREE, kind, NULL, "dense|sparse", "null: from the rest"),
};
#undef T

#define T sample_train
static const weft_key sample_train_rows[] = {
    REAL(FREE, lr, "1e-3", 0, 10, "learning rate"),
    REAL(FREE, weight_decay, "0.01", 0, 0, "decay"),
    RANGE(FREE, seed, "1234", 0, 0, NULL, "seed"),
    TEXT(FREE, data_path, NULL, "prefix"),
    TEXT(FREE, name, "\"run\"", "name"),
    ROW(FREE, "blend", blend, STRINGS, NULL, 0, 0, NULL, "weights and prefixes"),
    ROW(FREE, "tags", tags, STRINGS, "[]", 0, 0, NULL, "labels"),
    RANGE(FREE, num_steps, "10", 0, 1e18, "steps", "length of the run"),
};
#undef T

static inline void sample_sections(sample *target, weft_option_section out[2])
{
    out[0] = (weft_option_section){"model", sample_model_rows,
                                   sizeof sample_model_rows / sizeof *sample_model_rows,
                                   &target->model, "the model"};
    out[1] = (weft_option_section){"train", sample_train_rows,
                                   sizeof sample_train_rows / sizeof *sample_train_rows,
                                   &target->train, "the training"};
}

static inline weft_status sample_parse(sample *target, weft_arena *arena, const char *text,
                                       const char *override)
{
    weft_option_section sections[2];
    sample_sections(target, sections);
    return weft_options_parse(sections, 2, "run.json", text, &override, override ? 1 : 0, arena);
}

/* What is written of it, malloc'd. */
static inline char *sample_written(sample *target)
{
    char *text = NULL;
    size_t bytes;
    weft_option_section sections[2];
    sample_sections(target, sections);
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    OK(weft_options_write(sections, 2, file));
    fclose(file);
    return text;
}

#endif
