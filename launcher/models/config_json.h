/* Hugging Face's config.json: read as Weft's section "model" by a family's keys, and written.
 *
 * Both generations of spelling are read: rope_theta and rope_scaling (transformers 4),
 * rope_parameters (5); torch_dtype and dtype. Keys of the text in a model of several kinds of input
 * stand in text_config. What Weft cannot hold is refused by name. */
#ifndef WEFT_LAUNCHER_MODELS_CONFIG_JSON_H
#define WEFT_LAUNCHER_MODELS_CONFIG_JSON_H

#include <weft/application.h>
#include <weft/list.h>

#include "core/arena.h"
#include "launcher/planning/config.h"

typedef struct weft_config_json {
    const char *path, *text;
    const weft_application *application; /* whose families are read, too; NULL: none; borrowed */
    const weft_family *family;
    const char *model;        /* section "model" as a JSON object */
    const char *rope;         /* what the object of the rotary positions is called; NULL: none */
    weft_string_list ignored; /* keys that nothing reads */
    int64_t next_layers;      /* of multi-token prediction, that the files may have */
    bool lacks_next_layers;   /* set before it is taken: they have none, nor has the model */
} weft_config_json;

/* Memory from the arena. Errors: WEFT_CONFIG naming file and key: an architecture that no family
 * has, a value that Weft cannot hold, a key that is missing or there twice; WEFT_FILE. */
weft_status weft_config_json_read(const char *path, const weft_application *application,
                                  weft_arena *arena, weft_config_json *out) WEFT_CHECKED;
/* The same of the text that *out has. */
weft_status weft_config_json_take(weft_config_json *out, weft_arena *arena) WEFT_CHECKED;
/* The model of that section, resolved, and the default of all else; a config without data. Errors
 * name the file's own keys. */
weft_status weft_config_json_load(const weft_config_json *json, weft_arena *arena,
                                  weft_config *out) WEFT_CHECKED;
/* The text without what says that weights have scales of blocks. In the arena. */
weft_status weft_config_json_without_scales(const weft_config_json *json, weft_arena *arena,
                                            const char **out) WEFT_CHECKED;
/* Of attention's scores: softmax_scale, or what stands for 0. */
double weft_family_score_scale(const weft_model_options *options);
/* Whether a key of a config says what function its weights are of. */
bool weft_family_has_function(const char *section, const weft_key *row);
/* The family that the config names, else one, whose config.json says all of the model. WEFT_CONFIG:
 * none does; names the first key that the nearest one has otherwise. `where`: what has the model,
 * for that error. */
weft_status weft_family_find(const weft_config *config, const char *where, weft_arena *arena,
                             const weft_family **out) WEFT_CHECKED;
/* What WEFT_KEY_BOUND has in a file where Weft has no bound. */
#define WEFT_FAMILY_NO_BOUND 1e30
/* A config.json of the model. eod: the token that ends a document; -1: nobody knows. dtype:
 * "bfloat16". In the arena. */
weft_status weft_config_json_make(const weft_family *family, const weft_config *config, int64_t eod,
                                  const char *dtype, weft_arena *arena,
                                  const char **out) WEFT_CHECKED;
/* The text with another dtype where it has one. In the arena. */
weft_status weft_config_json_set_dtype(const weft_config_json *json, const char *dtype,
                                       weft_arena *arena, const char **out) WEFT_CHECKED;

#endif
