/* Building a model: the list of layers, its cut into stages, and what they declare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "layers/outline.h"
#include "layers/pass.h"

/* --- building ------------------------------------------------------------------------------ */

weft_status weft_model_add(weft_model *model, weft_layer *layer)
{
    if (!layer && weft_error_get()->status != WEFT_OK) /* what its create function found */
        return weft_error_context(weft_error_get()->status, "layer %d", model->num_layers);
    if (!layer)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for layer %d", model->num_layers);
    weft_status status = weft_layer_take(layer);
    if (status != WEFT_OK)
        return weft_error_context(status, "layer %d", model->num_layers);
    if (model->num_layers == model->capacity) {
        int capacity = model->capacity ? 2 * model->capacity : 16;
        weft_layer **layers = realloc(model->layers, (size_t)capacity * sizeof *layers);
        if (!layers) {
            weft_layer_destroy(layer);
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for layer %d", model->num_layers);
        }
        model->layers = layers;
        model->capacity = capacity;
    }
    model->layers[model->num_layers++] = layer;
    return WEFT_OK;
}

weft_status weft_model_add_embedding(weft_model *model, const weft_model_options *options)
{
    return weft_model_add(model, weft_embedding_create(options));
}

weft_status weft_model_add_block(weft_model *model, const weft_model_options *options,
                                 weft_layer *attention, weft_layer *mlp)
{
    return weft_model_add(model, weft_block_create(options, attention, mlp));
}

weft_status weft_model_add_head(weft_model *model, const weft_model_options *options)
{
    return weft_model_add(model, weft_head_create(options));
}

weft_status weft_model_build_gpt(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *mlp = weft_model_is_moe_layer(options, i) ? weft_moe_create(options)
                                                              : weft_mlp_create(options);
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options), mlp));
    }
    return weft_model_add_head(model, options);
}

const void *weft_model_own_options(const weft_model *model)
{
    return model->setup.own_options;
}

const weft_layout *weft_model_layout(const weft_model *model)
{
    return &model->layout;
}

bool weft_model_has_layer(const weft_model *model, int layer)
{
    int first, end;
    for (int c = 0; c < model->layout.num_chunks; c++) {
        weft_layout_range(&model->layout, model->rank, c, &first, &end);
        if (layer >= first && layer < end)
            return true;
    }
    return false;
}

/* By what the layers say of themselves. */
static weft_status cut(weft_model *model)
{
    static const weft_parallel_options evenly;
    const weft_parallel_options *options = model->setup.parallel;
    double *work = calloc((size_t)model->num_layers, sizeof *work);
    if (!work)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the stage layout");
    for (int i = 0; i < model->num_layers; i++) {
        weft_layer_cost cost;
        weft_layer_describe(model->layers[i], &model->shape, &cost);
        work[i] = (double)cost.forward_flops + (double)cost.backward_flops;
    }
    weft_status status =
        weft_layout_build(options ? options : &evenly, model->setup.groups->mesh.pp,
                          model->num_layers, work, &model->layout);
    free(work);
    return status;
}

static const char *kind_of(const weft_layer *layer)
{
    return layer->ops && layer->ops->kind ? layer->ops->kind : "of no kind";
}

/* What a layer of the user's may lack. */
static const char *missing_of(const weft_layer *layer)
{
    const weft_layer_ops *ops = layer->ops;
    return !ops             ? "ops"
           : !ops->kind     ? "ops->kind"
           : !ops->describe ? "ops->describe"
           : !ops->init     ? "ops->init"
           : !ops->forward  ? "ops->forward"
           : !ops->backward ? "ops->backward"
           : !ops->destroy  ? "ops->destroy"
                            : NULL;
}

static void *grown(void *array, int count, int *capacity, size_t each)
{
    if (count < *capacity)
        return array;
    int wanted = *capacity ? 2 * *capacity : 64;
    void *larger = realloc(array, (size_t)wanted * each);
    if (larger)
        *capacity = wanted;
    return larger;
}

/* Layers of ours are made from options, which a program may have changed. */
static weft_status check_width(const weft_model *model, const weft_layer *layer)
{
    static const weft_layer_ops *const ours[] = {&weft_embedding_ops, &weft_attention_ops,
                                                 &weft_mlp_ops,       &weft_moe_ops,
                                                 &weft_block_ops,     &weft_head_ops};
    int64_t wanted = (int64_t)model->shape.hidden;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        int64_t width = layer->ops == ours[i]
                            ? ((const weft_layer_common *)layer)->options.hidden_size
                            : wanted;
        if (width != wanted)
            return WEFT_ERROR(WEFT_CONFIG,
                              "the %s is made with hidden_size %lld, and the model's is %lld",
                              layer->ops->kind, (long long)width, (long long)wanted);
    }
    return WEFT_OK;
}

weft_status weft_model_register(weft_model *model, weft_layer *layer, const char *prefix,
                                int list_index, int parent)
{
    int name_bytes = (int)strlen(prefix) - 1;
    if (!layer)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %.*s", name_bytes, prefix);
    const char *missing = missing_of(layer);
    if (missing)
        return WEFT_ERROR(WEFT_CONFIG, "%.*s: %s is NULL", name_bytes, prefix, missing);
    if (weft_layer_is_placed(layer))
        return WEFT_ERROR(WEFT_CONFIG, "%.*s: this layer (%s) is also %s; each needs its own",
                          name_bytes, prefix, layer->ops->kind, weft_layer_name(layer));
    WEFT_TRY(check_width(model, layer));
    weft_member *members =
        grown(model->members, model->num_members, &model->members_capacity, sizeof *members);
    if (!members)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the list of layers");
    model->members = members;
    weft_layer_place *place = calloc(1, sizeof *place);
    if (!place)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the list of layers");
    place->next = model->places;
    model->places = place;
    place->index = model->num_members++;
    snprintf(place->name, sizeof place->name, "%.*s", name_bytes, prefix);
    members[place->index] =
        (weft_member){.layer = layer, .parent = parent, .state_offset = model->states_bytes};
    WEFT_TRY(weft_sized_copy("weft_layer_ops", layer->ops, &place->ops, sizeof place->ops));
    model->states_bytes += weft_piece_bytes(WEFT_U8, place->ops.state_bytes, 1);
    layer->place = place;
    weft_build build = {.model = model, .layer = list_index, .member = place->index};
    snprintf(build.prefix, sizeof build.prefix, "%s", prefix);
    return layer->ops->init(layer, &build);
}

const char *weft_layer_name(const weft_layer *layer)
{
    return layer->place ? layer->place->name : "";
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
    weft_model *model = build->model;
    weft_use *uses = grown(model->uses, model->num_uses, &model->uses_capacity, sizeof *uses);
    if (!uses)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the list of parameters");
    model->uses = uses;
    uses[model->num_uses++] =
        (weft_use){.parameter = parameter, .member = build->member, .declared = declared};
    return WEFT_OK;
}

static weft_status note_embedding(weft_model *model, const char *name)
{
    weft_tied *embeddings = &model->embeddings;
    if (embeddings->count == WEFT_MAX_TIED)
        return WEFT_ERROR(WEFT_CONFIG, "parameter %s: a stage has at most %d embeddings", name,
                          WEFT_MAX_TIED);
    snprintf(embeddings->names[embeddings->count++], WEFT_MAX_NAME_BYTES, "%s", name);
    return WEFT_OK;
}

/* An embedding is a tied one where first and last stage declare it: the outline knows. */
static weft_status declare(weft_build *build, const char *prefix, const weft_parameter_spec *spec,
                           weft_parameter **out)
{
    weft_model *model = build->model;
    weft_parameter_spec own;
    char name[WEFT_MAX_NAME_BYTES];
    WEFT_TRY(weft_sized_copy("weft_parameter_spec", spec, &own, sizeof own));
    bool is_embedding = own.is_embedding;
    snprintf(name, sizeof name, "%s%s", prefix, own.name);
    own.is_embedding = is_embedding && weft_tied_has(&model->tied, name);
    own.may_pad = own.may_pad || is_embedding;
    WEFT_TRY(weft_parameters_declare(model->parameters, prefix, &own, build->layer, out));
    if (is_embedding)
        WEFT_TRY(note_embedding(model, name));
    return note_use(build, *out, true);
}

weft_status weft_build_parameter(weft_build *build, const weft_parameter_spec *spec,
                                 weft_parameter **out)
{
    if (!out)
        return WEFT_ERROR(WEFT_INTERNAL, "parameter %s%s: no place for it was given (out is NULL)",
                          build->prefix, spec && spec->name ? spec->name : "");
    return declare(build, build->prefix, spec, out);
}

weft_status weft_build_global_parameter(weft_build *build, const weft_parameter_spec *spec,
                                        weft_parameter **out)
{
    return declare(build, "", spec, out);
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
    weft_model *model = build->model;
    weft_metric_list *list = &model->metric_list;
    int i = 0;
    if (!is_metric_name(name))
        return WEFT_ERROR(WEFT_CONFIG,
                          "metric \"%s\": a name is of 1 to %zu lowercase letters, digits and _",
                          name, sizeof list->rows[0].name - 1);
    while (i < list->count && strcmp(list->rows[i].name, name) != 0)
        i++;
    if (i < list->count && list->rows[i].kind != kind)
        return WEFT_ERROR(WEFT_CONFIG, "metric %s: a sum to one layer, a mean to another", name);
    if (i == WEFT_MAX_METRICS)
        return WEFT_ERROR(WEFT_CONFIG, "metric %s: a model has at most %d of its own", name,
                          WEFT_MAX_METRICS);
    if (!model->own_metrics) {
        void *memory;
        size_t bytes = WEFT_MAX_METRICS * sizeof *model->own_metrics;
        WEFT_TRY(
            weft_device_alloc(model->setup.device, WEFT_SPACE_PINNED, bytes, "metrics", &memory));
        model->own_metrics = memset(memory, 0, bytes);
    }
    if (i == list->count) {
        snprintf(list->rows[i].name, sizeof list->rows[i].name, "%s", name);
        list->rows[i].kind = kind;
        list->count++;
    }
    *out = &model->own_metrics[i];
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
    char name[64];
    if (snprintf(name, sizeof name, "%s%s", build->prefix, prefix) >= (int)sizeof name)
        return WEFT_ERROR(WEFT_CONFIG, "layer name %s%s is too long", build->prefix, prefix);
    return weft_model_register(build->model, child, name, build->layer, build->member);
}

/* Megatron's names: the layers between embedding and head are decoder.layers.0, 1, ... */
static void layer_prefix(const weft_model *model, int index, char *out, size_t capacity)
{
    if (index == 0)
        snprintf(out, capacity, "embedding.");
    else if (index == model->num_layers - 1)
        snprintf(out, capacity, "decoder.");
    else
        snprintf(out, capacity, "decoder.layers.%d.", index - 1);
}

weft_status weft_model_init_layers(weft_model *model)
{
    for (int i = 0; i < model->num_layers; i++) {
        if (!weft_model_has_layer(model, i))
            continue;
        char prefix[64];
        layer_prefix(model, i, prefix, sizeof prefix);
        weft_status status = weft_model_register(model, model->layers[i], prefix, i, -1);
        if (status != WEFT_OK)
            return weft_error_context(status, "layer %d (%s)", i, kind_of(model->layers[i]));
    }
    return WEFT_OK;
}

/* What the table says of where a layer may stand. One of an older program does not. */
static const char *misplaced(const weft_layer *layer, bool is_first, bool is_last)
{
    const weft_layer_ops *ops = layer->ops;
    if (ops->struct_bytes <= offsetof(weft_layer_ops, reads_tokens))
        return NULL;
    if (ops->reads_tokens && !is_first)
        return "it reads tokens, as a model's first layer alone does";
    if (ops->makes_loss && !is_last)
        return "it makes the loss, as a model's last layer alone does";
    if (is_first && !ops->reads_tokens)
        return "it reads no tokens, as a model's first layer does (ops->reads_tokens); an "
               "embedding "
               "is missing";
    if (is_last && !ops->makes_loss)
        return "it makes no loss, as a model's last layer does (ops->makes_loss); a head is "
               "missing";
    return NULL;
}

static weft_status check_list(const weft_model *model)
{
    int last = model->num_layers - 1;
    if (model->num_layers == 0)
        return WEFT_ERROR(WEFT_CONFIG, "the model has no layers: its build function added none");
    for (int i = 0; i <= last; i++) {
        const weft_layer *layer = model->layers[i];
        const char *missing = missing_of(layer);
        if (missing)
            return WEFT_ERROR(WEFT_CONFIG, "layer %d (%s): %s is NULL", i, kind_of(layer), missing);
        const char *why = misplaced(layer, i == 0, i == last);
        if (why)
            return WEFT_ERROR(WEFT_CONFIG, "layer %d (%s) of %d: %s", i, kind_of(layer), last + 1,
                              why);
    }
    if (last == 0)
        return WEFT_ERROR(WEFT_CONFIG, "layer 0 (%s): a model needs a first and a last layer",
                          kind_of(model->layers[0]));
    return weft_model_check_mesh(&model->options, &model->setup.groups->mesh, last - 1,
                                 model->setup.micro_batch_size);
}

weft_status weft_model_list_layers(weft_model *model, weft_model_function build)
{
    WEFT_TRY((build ? build : weft_model_build_gpt)(model, &model->options));
    WEFT_TRY(check_list(model));
    return cut(model);
}
