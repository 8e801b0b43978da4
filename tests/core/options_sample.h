/* Two sections with a row of each type, for the tests of the options code. */
#ifndef WEFT_TESTS_CORE_OPTIONS_SAMPLE_H
#define WEFT_TESTS_CORE_OPTIONS_SAMPLE_H

#include "core/options/options.h"

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

static const weft_option_row sample_model_rows[] = {
    {"num_layers", WEFT_OPTION_INT, offsetof(sample_model, num_layers), "8", 1, 1000, NULL,
     "layers", "how many layers"},
    {"num_query_groups", WEFT_OPTION_INT, offsetof(sample_model, num_query_groups), NULL, 1, 1e18,
     NULL, NULL, "groups; null: one a head"},
    {"swiglu", WEFT_OPTION_BOOL, offsetof(sample_model, swiglu), "false", 0, 0, NULL, NULL,
     "gated MLP"},
    {"position", WEFT_OPTION_CHOICE, offsetof(sample_model, position), "\"rope\"", 0, 0,
     "learned|rope|none", NULL, "position embedding"},
    {"layer_freq", WEFT_OPTION_INT_LIST, offsetof(sample_model, layer_freq), "1", 0, 64, NULL, NULL,
     "which layers"},
    {"kind", WEFT_OPTION_CHOICE, offsetof(sample_model, kind), NULL, 0, 0, "dense|sparse", NULL,
     "null: from the rest"},
};

static const weft_option_row sample_train_rows[] = {
    {"lr", WEFT_OPTION_DOUBLE, offsetof(sample_train, lr), "1e-3", 0, 10, NULL, NULL,
     "learning rate"},
    {"weight_decay", WEFT_OPTION_DOUBLE, offsetof(sample_train, weight_decay), "0.01", 0, 0, NULL,
     NULL, "decay"},
    {"seed", WEFT_OPTION_INT, offsetof(sample_train, seed), "1234", 0, 0, NULL, NULL, "seed"},
    {"data_path", WEFT_OPTION_STRING, offsetof(sample_train, data_path), NULL, 0, 0, NULL, NULL,
     "prefix"},
    {"name", WEFT_OPTION_STRING, offsetof(sample_train, name), "\"run\"", 0, 0, NULL, NULL, "name"},
    {"blend", WEFT_OPTION_STRINGS, offsetof(sample_train, blend), NULL, 0, 0, NULL, NULL,
     "weights and prefixes"},
    {"tags", WEFT_OPTION_STRINGS, offsetof(sample_train, tags), "[]", 0, 0, NULL, NULL, "labels"},
    {"num_steps", WEFT_OPTION_INT, offsetof(sample_train, num_steps), "10", 0, 1e18, NULL, "steps",
     "length of the run"},
};

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

#endif
