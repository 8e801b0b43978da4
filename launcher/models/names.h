/* A family's table applied to a model and to the names of tensors: which tensor fills which part of
 * which parameter. Total in both directions, or an error that names what is left. Pure. */
#ifndef WEFT_LAUNCHER_MODELS_NAMES_H
#define WEFT_LAUNCHER_MODELS_NAMES_H

#include <weft/family.h>
#include <weft/list.h>
#include <weft/model.h>

#include "core/arena.h"
#include "launcher/models/map.h"
#include "launcher/models/safetensors.h"
#include "layers/outline/outline.h"

/* What names are matched with. */
typedef struct weft_names_model {
    const weft_family *family;
    const weft_model_options *options;   /* resolved */
    const weft_listed_parameter *listed; /* sorted by name */
    size_t num_listed;
    int64_t
        next_layers; /* behind the last one, whose tensors are ignored; 0: with mtp_num_layers */
} weft_names_model;

/* A tensor's place. */
typedef struct weft_name_use {
    size_t tensor, parameter; /* indices */
    weft_map map;
} weft_name_use;

typedef struct weft_names {
    weft_name_use *uses; /* sorted by parameter and place in it */
    size_t num_uses;
    weft_name_use *copies; /* WEFT_NAME_COPY: a tensor, and the parameter that it is the same as */
    size_t num_copies;
    weft_string_list ignored; /* tensors that the family ignores */
} weft_names;

/* The places of the tensors, whose names and shapes are given. `where`: what has them, for errors.
 * Errors: WEFT_FILE: a tensor that nothing takes, of another shape, or of a dtype that Weft does
 * not read; a parameter that lacks one, or that two fill. */
weft_status weft_names_match(const weft_names_model *model, const weft_safetensor *tensors,
                             size_t count, const char *where, weft_arena *arena,
                             weft_names *out) WEFT_CHECKED;
/* The tensors that the family's files have of the model: names, shapes; no dtype. In the order of
 * the model's layers. */
weft_status weft_names_list(const weft_names_model *model, weft_arena *arena, weft_safetensor **out,
                            size_t *out_count) WEFT_CHECKED;
size_t weft_listed_elements(const weft_listed_parameter *parameter);

#endif
