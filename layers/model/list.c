/* The list of a model's layers and its cut into stages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sized.h"
#include "layers/outline/outline.h"
#include "layers/pass/pass.h"

weft_status weft_model_add(weft_model *model, weft_layer *layer)
{
    WEFT_TRY(WEFT_GIVEN(model));
    if (!layer && weft_error_get()->status != WEFT_OK) /* its create function has set an error */
        return weft_error_context(weft_error_get()->status, "layer %d", model->tree.num_layers);
    weft_status status = WEFT_GIVEN(layer);
    if (status == WEFT_OK)
        status = weft_layer_take(layer);
    if (status != WEFT_OK)
        return weft_error_context(status, "layer %d", model->tree.num_layers);
    if (model->tree.num_layers == model->tree.capacity) {
        int capacity = model->tree.capacity ? 2 * model->tree.capacity : 16;
        weft_layer **layers = realloc(model->tree.layers, (size_t)capacity * sizeof *layers);
        if (!layers) {
            weft_layer_destroy(layer);
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for layer %d", model->tree.num_layers);
        }
        model->tree.layers = layers;
        model->tree.capacity = capacity;
    }
    model->tree.layers[model->tree.num_layers++] = layer;
    return WEFT_OK;
}

weft_status weft_model_add_embedding(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(WEFT_GIVEN(model));
    WEFT_TRY(WEFT_GIVEN(options));
    return weft_model_add(model, weft_embedding_create(options));
}

weft_status weft_model_add_block(weft_model *model, const weft_model_options *options,
                                 weft_layer *attention, weft_layer *mlp)
{
    WEFT_TRY(WEFT_GIVEN(model));
    bool failed = weft_error_get()->status != WEFT_OK; /* a create function, which says more */
    weft_layer *block = weft_block_create(options, attention, mlp); /* frees both on failure */
    if (!block && !failed) {
        WEFT_TRY(WEFT_GIVEN(options));
        WEFT_TRY(WEFT_GIVEN(attention));
        WEFT_TRY(WEFT_GIVEN(mlp));
    }
    return weft_model_add(model, block);
}

weft_status weft_model_add_head(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(WEFT_GIVEN(model));
    WEFT_TRY(WEFT_GIVEN(options));
    return weft_model_add(model, weft_head_create(options));
}

static weft_layer *attention_of(const weft_model_options *options, int64_t index)
{
    weft_model_options own = *options;
    const bool is_windowed = weft_model_is_windowed_layer(options, index);
    if (own.position_embedding_type == WEFT_POSITION_ROPE &&
        !weft_model_is_roped_layer(options, index))
        own.position_embedding_type = WEFT_POSITION_NONE;
    if (!is_windowed)
        own.window_size = own.attention_chunk_size = 0;
    if (is_windowed && own.rotary_base_local > 0) {
        own.rotary_base = own.rotary_base_local;
        own.rotary_scaling_type = WEFT_ROTARY_UNSCALED;
    }
    return weft_attention_create(&own);
}

static weft_layer *block_of(const weft_model_options *options, int64_t index)
{
    weft_layer *mlp = weft_model_is_moe_layer(options, index) ? weft_moe_create(options)
                                                              : weft_mlp_create(options);
    return weft_block_create(options, attention_of(options, index), mlp);
}

/* Each depth of multi-token prediction has a block such as the model's last. */
static weft_status add_head(weft_model *model, const weft_model_options *options)
{
    weft_layer *head = weft_head_create(options);
    weft_status status = head ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for the head");
    for (int d = 1; status == WEFT_OK && d <= options->mtp_num_layers; d++)
        status = weft_head_add_mtp(
            head, weft_mtp_create(options, block_of(options, options->num_layers - 1), d));
    if (status == WEFT_OK)
        return weft_model_add(model, head);
    weft_layer_destroy(head);
    return status;
}

weft_status weft_model_build_gpt(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(WEFT_GIVEN(model));
    WEFT_TRY(WEFT_GIVEN(options));
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *mlp = weft_model_is_moe_layer(options, i) ? weft_moe_create(options)
                                                              : weft_mlp_create(options);
        WEFT_TRY(weft_model_add_block(model, options, attention_of(options, i), mlp));
    }
    return add_head(model, options);
}

const void *weft_model_own_options(const weft_model *model)
{
    return model->setup.own_options;
}

bool weft_model_has_layer(const weft_model *model, int layer)
{
    int first, end;
    for (int c = 0; c < model->layout.num_chunks; c++) {
        weft_layout_range(&model->layout, model->place.pp.at, c, &first, &end);
        if (layer >= first && layer < end)
            return true;
    }
    return false;
}

/* Megatron's names: the layers between embedding and head are decoder.layers.0, 1, ... */
void weft_model_layer_prefix(const weft_model *model, int index, char *out, size_t capacity)
{
    if (index == 0)
        snprintf(out, capacity, "embedding.");
    else if (index == model->tree.num_layers - 1)
        snprintf(out, capacity, "decoder.");
    else
        snprintf(out, capacity, "decoder.layers.%d.", index - 1);
}

weft_status weft_model_init_layers(weft_model *model)
{
    for (int i = 0; i < model->tree.num_layers; i++) {
        if (!weft_model_has_layer(model, i))
            continue;
        char prefix[64];
        weft_model_layer_prefix(model, i, prefix, sizeof prefix);
        weft_status status = weft_model_register(model, model->tree.layers[i], prefix, i, -1);
        if (status != WEFT_OK)
            return weft_error_context(status, "layer %d (%s)", i,
                                      weft_layer_kind(model->tree.layers[i]));
    }
    return WEFT_OK;
}

/* Where the layer's table allows it to stand; an older program's table does not say. */
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
    int last = model->tree.num_layers - 1;
    if (model->tree.num_layers == 0)
        return WEFT_ERROR(WEFT_CONFIG, "the model has no layers: its build function added none");
    for (int i = 0; i <= last; i++) {
        const weft_layer *layer = model->tree.layers[i];
        const char *missing = weft_layer_missing(layer);
        if (missing)
            return WEFT_ERROR(WEFT_CONFIG, "layer %d (%s): %s is NULL", i, weft_layer_kind(layer),
                              missing);
        const char *why = misplaced(layer, i == 0, i == last);
        if (why)
            return WEFT_ERROR(WEFT_CONFIG, "layer %d (%s) of %d: %s", i, weft_layer_kind(layer),
                              last + 1, why);
    }
    if (last == 0)
        return WEFT_ERROR(WEFT_CONFIG, "layer 0 (%s): a model needs a first and a last layer",
                          weft_layer_kind(model->tree.layers[0]));
    return weft_model_check_mesh(&model->options, &model->setup.groups->mesh, last - 1,
                                 model->setup.micro_batch_size);
}

weft_status weft_model_build(weft_model *model, weft_model_function build)
{
    WEFT_TRY(
        build ? weft_program_failed(build(model, &model->options), "this program's build function")
              : weft_model_build_gpt(model, &model->options));
    return check_list(model);
}

void weft_model_forget(weft_model *model)
{
    if (model->sums.own)
        weft_device_free(model->setup.device, WEFT_SPACE_PINNED, model->sums.own,
                         WEFT_MAX_METRICS * sizeof *model->sums.own);
    for (int i = 0; i < model->tree.num_layers; i++)
        weft_layer_destroy(model->tree.layers[i]);
    free(model->tree.layers);
    free(model->tree.members);
    free(model->tree.uses);
    while (model->tree.places) {
        weft_layer_place *next = model->tree.places->next;
        free(model->tree.places);
        model->tree.places = next;
    }
}
