/* Building a model: what layers declare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/sized.h"
#include "layers/outline/outline.h"
#include "layers/pass/pass.h"

/* A program may have changed the options since the model was made. */
static weft_status check_width(const weft_model *model, const weft_layer *layer)
{
    const weft_layer_ops *ops = &layer->place->ops;
    long long width = ops->width ? ops->width(layer) : 0, wanted = (long long)model->shape.hidden;
    if (ops->width && width != wanted)
        return WEFT_ERROR(WEFT_CONFIG,
                          "the %s is made with hidden_size %lld, and the model's is %lld",
                          ops->kind, width, wanted);
    return WEFT_OK;
}

weft_status weft_model_register(weft_model *model, weft_layer *layer, const char *prefix,
                                int list_index, int parent)
{
    weft_model_tree *tree = &model->tree;
    int name_bytes = (int)strlen(prefix) - 1;
    if (!layer)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %.*s", name_bytes, prefix);
    const char *missing = weft_layer_missing(layer);
    if (missing)
        return WEFT_ERROR(WEFT_CONFIG, "%.*s: %s is NULL", name_bytes, prefix, missing);
    if (weft_layer_is_placed(layer))
        return WEFT_ERROR(WEFT_CONFIG, "%.*s: this layer (%s) is also %s; each needs its own",
                          name_bytes, prefix, layer->ops->kind, weft_layer_name(layer));
    WEFT_TRY(
        WEFT_GROW(tree->members, tree->members_capacity, (size_t)tree->num_members + 1, "layers"));
    weft_layer_place *place = calloc(1, sizeof *place);
    if (!place)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the list of layers");
    place->next = tree->places;
    tree->places = place;
    place->index = tree->num_members++;
    snprintf(place->name, sizeof place->name, "%.*s", name_bytes, prefix);
    tree->members[place->index] =
        (weft_member){.layer = layer, .parent = parent, .state_offset = tree->states_bytes};
    WEFT_TRY(weft_layer_blame(
        layer, weft_sized_copy("weft_layer_ops", layer->ops, &place->ops, sizeof place->ops)));
    tree->states_bytes += weft_piece_bytes(WEFT_U8, place->ops.state_bytes, 1);
    layer->place = place;
    WEFT_TRY(check_width(model, layer));
    weft_build build = {.model = model, .layer = list_index, .member = place->index};
    snprintf(build.prefix, sizeof build.prefix, "%s", prefix);
    WEFT_TRY(weft_layer_blame(layer, layer->ops->init(layer, &build)));
    return model->shape.cached_tokens == 0 || place->ops.by_token
               ? WEFT_OK
               : WEFT_ERROR(WEFT_CONFIG,
                            "%s (%s) may need the tokens before each (by_token in its table is "
                            "false), so no cache can bring them one by one; weft generate "
                            "--no-cache would do",
                            place->name, place->ops.kind);
}

const weft_shape *weft_build_shape(const weft_build *build)
{
    return &build->model->shape;
}

weft_device *weft_build_device(const weft_build *build)
{
    return build->model->setup.device;
}

const weft_groups *weft_build_groups(const weft_build *build)
{
    return build->model->setup.groups;
}

static weft_status note_use(weft_build *build, weft_parameter *parameter, bool declared)
{
    weft_model_tree *tree = &build->model->tree;
    WEFT_TRY(WEFT_GROW(tree->uses, tree->uses_capacity, (size_t)tree->num_uses + 1, "parameters"));
    tree->uses[tree->num_uses++] =
        (weft_use){.parameter = parameter, .member = build->member, .declared = declared};
    return WEFT_OK;
}

static weft_status note_embedding(weft_tied *embeddings, const char *name)
{
    if (embeddings->count == WEFT_MAX_TIED)
        return WEFT_ERROR(WEFT_CONFIG, "parameter %s: a stage has at most %d embeddings", name,
                          WEFT_MAX_TIED);
    snprintf(embeddings->names[embeddings->count++], WEFT_MAX_NAME_BYTES, "%s", name);
    return WEFT_OK;
}

bool weft_tied_has(const weft_tied *tied, const char *name)
{
    for (int i = 0; i < tied->count; i++)
        if (strcmp(tied->names[i], name) == 0)
            return true;
    return false;
}

/* The outline knows whether both first and last stage declare an embedding. */
static weft_status declare(weft_build *build, const char *prefix, const weft_parameter_spec *spec,
                           const weft_placed_rows *rows, weft_parameter **out)
{
    weft_model *model = build->model;
    weft_parameter_spec own;
    char name[WEFT_MAX_NAME_BYTES];
    WEFT_TRY(weft_sized_copy("weft_parameter_spec", spec, &own, sizeof own));
    bool is_embedding = own.is_embedding;
    snprintf(name, sizeof name, "%s%s", prefix, own.name);
    own.is_embedding = is_embedding && weft_tied_has(&model->tree.tied, name);
    own.may_pad = own.may_pad || is_embedding;
    WEFT_TRY(
        weft_parameters_declare_rows(model->parameters, prefix, &own, rows, build->layer, out));
    if (is_embedding)
        WEFT_TRY(note_embedding(&model->tree.embeddings, name));
    return note_use(build, *out, true);
}

weft_status weft_build_rows(weft_build *build, const weft_parameter_spec *spec,
                            const weft_placed_rows *rows, weft_parameter **out)
{
    return declare(build, build->prefix, spec, rows, out);
}

weft_status weft_build_parameter(weft_build *build, const weft_parameter_spec *spec,
                                 weft_parameter **out)
{
    WEFT_TRY(WEFT_GIVEN(build));
    if (!out)
        return WEFT_ERROR(WEFT_INTERNAL, "parameter %s%s: no place for it was given (out is NULL)",
                          build->prefix, spec && spec->name ? spec->name : "");
    return declare(build, build->prefix, spec, &(weft_placed_rows){0}, out);
}

weft_status weft_build_global_parameter(weft_build *build, const weft_parameter_spec *spec,
                                        weft_parameter **out)
{
    return declare(build, "", spec, &(weft_placed_rows){0}, out);
}

const weft_place *weft_build_coords(const weft_build *build)
{
    return &build->model->place;
}

static bool is_metric_name(const char *name)
{
    size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return bytes > 0 && name[bytes] == '\0' && bytes < sizeof((weft_metric_list *)0)->rows[0].name;
}

weft_status weft_build_metric(weft_build *build, const char *name, weft_metric_kind kind,
                              weft_metric **out)
{
    WEFT_TRY(WEFT_GIVEN(build));
    WEFT_TRY(WEFT_GIVEN(name));
    WEFT_TRY(WEFT_GIVEN(out));
    weft_model *model = build->model;
    weft_metric_list *list = &model->sums.list;
    int i = 0;
    if (!is_metric_name(name))
        return WEFT_ERROR(WEFT_CONFIG,
                          "metric \"%s\": a name is of 1 to %zu lowercase letters, digits and _",
                          name, sizeof list->rows[0].name - 1);
    while (i < list->count && strcmp(list->rows[i].name, name) != 0)
        i++;
    if (kind != WEFT_METRIC_SUM && kind != WEFT_METRIC_MEAN)
        return WEFT_ERROR(WEFT_CONFIG, "metric %s: kind %d is neither a sum nor a mean", name,
                          (int)kind);
    if (i < list->count && list->rows[i].kind != kind)
        return WEFT_ERROR(WEFT_CONFIG, "metric %s: a sum to one layer, a mean to another", name);
    if (i == WEFT_MAX_METRICS)
        return WEFT_ERROR(WEFT_CONFIG, "metric %s: a model has at most %d of its own", name,
                          WEFT_MAX_METRICS);
    if (!model->sums.own) {
        void *memory;
        size_t bytes = WEFT_MAX_METRICS * sizeof *model->sums.own;
        WEFT_TRY(weft_device_alloc_for(model->setup.device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                       bytes, "metrics", &memory));
        model->sums.own = memset(memory, 0, bytes);
    }
    if (i == list->count) {
        snprintf(list->rows[i].name, sizeof list->rows[i].name, "%s", name);
        list->rows[i].kind = kind;
        list->count++;
    }
    model->sums.declares = true;
    *out = &model->sums.own[i];
    return WEFT_OK;
}

weft_status weft_build_loss(weft_build *build, const char *name, double share, weft_metric **out)
{
    WEFT_TRY(weft_build_metric(build, name, WEFT_METRIC_MEAN, out));
    weft_model_sums *sums = &build->model->sums;
    sums->list.rows[*out - sums->own].share = share;
    return WEFT_OK;
}

weft_status weft_build_share(weft_build *build, const char *name, weft_parameter **out)
{
    *out = weft_parameters_find(build->model->parameters, name);
    if (!*out)
        return WEFT_OK;
    (*out)->shared = true;
    return note_use(build, *out, false);
}

weft_status weft_build_child(weft_build *build, const char *prefix, weft_layer *child)
{
    WEFT_TRY(WEFT_GIVEN(build));
    WEFT_TRY(WEFT_GIVEN(prefix));
    char name[64];
    if (snprintf(name, sizeof name, "%s%s", build->prefix, prefix) >= (int)sizeof name)
        return WEFT_ERROR(WEFT_CONFIG, "layer name %s%s is too long", build->prefix, prefix);
    if (!child && weft_error_get()->status != WEFT_OK) /* its create function has set an error */
        return weft_error_context(weft_error_get()->status, "%s%s", build->prefix, prefix);
    WEFT_TRY(WEFT_GIVEN(child));
    return weft_model_register(build->model, child, name, build->layer, build->member);
}

weft_status weft_build_global_child(weft_build *build, const char *prefix, weft_layer *child)
{
    return weft_model_register(build->model, child, prefix, build->layer, build->member);
}
