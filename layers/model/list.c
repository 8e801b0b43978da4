/* The list of a model's layers and its cut into stages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/sized.h"
#include "layers/outline/outline.h"
#include "layers/pass/parts.h"
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
    status = WEFT_GROW(model->tree.layers, model->tree.capacity, (size_t)model->tree.num_layers + 1,
                       "layers");
    if (status != WEFT_OK) {
        weft_layer_destroy(layer);
        return status;
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

weft_status weft_model_add_mtp(weft_model *model, const weft_model_options *options,
                               weft_layer *attention, weft_layer *mlp)
{
    WEFT_TRY(WEFT_GIVEN(model));
    bool failed = weft_error_get()->status != WEFT_OK; /* a create function, which says more */
    weft_layer *block = weft_block_create(options, attention, mlp); /* frees both on failure */
    const int count = model->tree.num_layers;
    if (!block && !failed) {
        WEFT_TRY(WEFT_GIVEN(options));
        WEFT_TRY(WEFT_GIVEN(attention));
        WEFT_TRY(WEFT_GIVEN(mlp));
    }
    if (!block)
        return weft_error_context(weft_error_get()->status, "a depth of multi-token prediction");
    return weft_head_add_mtp(count > 0 ? model->tree.layers[count - 1] : NULL, options, block);
}

weft_layer *weft_attention_create_windowed(const weft_model_options *options)
{
    if (!options || options->rotary_base_local == 0)
        return weft_attention_create(options);
    weft_model_options own = *options;
    own.rotary_base = own.rotary_base_local;
    own.rotary_scaling_type = WEFT_ROTARY_UNSCALED;
    return weft_attention_create(&own);
}

weft_layer *weft_attention_create_whole(const weft_model_options *options)
{
    if (!options)
        return weft_attention_create(options);
    weft_model_options own = *options;
    own.window_size = own.attention_chunk_size = 0;
    return weft_attention_create(&own);
}

weft_layer *weft_attention_create_without_positions(const weft_model_options *options)
{
    if (!options)
        return weft_attention_create(options);
    weft_model_options own = *options;
    own.position_embedding_type = WEFT_POSITION_NONE;
    return weft_attention_create(&own);
}

static weft_layer *attention_of(const weft_model_options *options, int64_t index)
{
    weft_model_options own = *options;
    if (own.position_embedding_type == WEFT_POSITION_ROPE &&
        !weft_model_is_roped_layer(options, index))
        own.position_embedding_type = WEFT_POSITION_NONE;
    return weft_model_is_windowed_layer(options, index) ? weft_attention_create_windowed(&own)
                                                        : weft_attention_create_whole(&own);
}

static weft_layer *mlp_of(const weft_model_options *options, int64_t index)
{
    return weft_model_is_moe_layer(options, index) ? weft_moe_create(options)
                                                   : weft_mlp_create(options);
}

/* Each depth of multi-token prediction has a block such as the model's last. */
weft_status weft_model_build_gpt(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(WEFT_GIVEN(model));
    WEFT_TRY(WEFT_GIVEN(options));
    const int64_t last = options->num_layers - 1;
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i <= last; i++)
        WEFT_TRY(
            weft_model_add_block(model, options, attention_of(options, i), mlp_of(options, i)));
    WEFT_TRY(weft_model_add_head(model, options));
    for (int64_t d = 0; d < options->mtp_num_layers; d++)
        WEFT_TRY(
            weft_model_add_mtp(model, options, attention_of(options, last), mlp_of(options, last)));
    return WEFT_OK;
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

/* --- a model function and the options ------------------------------------------------------- */

/* b: a layer of Weft's own. */
static bool are_same(const weft_layer *a, const weft_layer *b)
{
    const weft_layer_common *x = (const weft_layer_common *)a, *y = (const weft_layer_common *)b;
    return a && a->ops == b->ops && memcmp(&x->options, &y->options, sizeof x->options) == 0;
}

static bool are_same_blocks(const weft_layer *a, const weft_layer *b)
{
    const weft_block *x = (const weft_block *)a, *y = (const weft_block *)b;
    return are_same(a, b) && are_same(x->attention, y->attention) && are_same(x->mlp, y->mlp);
}

static bool are_same_heads(const weft_layer *a, const weft_layer *b)
{
    if (!are_same(a, b))
        return false;
    for (int d = 0; d < WEFT_MAX_MTP_LAYERS; d++) {
        const weft_layer *x = weft_head_mtp_block(a, d), *y = weft_head_mtp_block(b, d);
        if ((x || y) && !(x && y && are_same_blocks(x, y)))
            return false;
    }
    return true;
}

/* Of what attention_of changes. a: not the same as b. */
static const char *key_of_attention(const weft_layer *a, const weft_layer *b)
{
    const weft_model_options *x = &((const weft_layer_common *)a)->options,
                             *y = &((const weft_layer_common *)b)->options;
    if (a->ops != b->ops)
        return NULL;
    if (x->position_embedding_type != y->position_embedding_type)
        return "no_rope_freq";
    if (x->rotary_base != y->rotary_base || x->rotary_scaling_type != y->rotary_scaling_type)
        return "rotary_base_local";
    return x->window_size != y->window_size || x->attention_chunk_size != y->attention_chunk_size
               ? "window_attn_skip_freq"
               : NULL;
}

/* The key that describes block b, which the model function makes as a; NULL: more than one. */
static const char *key_of_block(const weft_layer *a, const weft_layer *b)
{
    const weft_block *x = (const weft_block *)a, *y = (const weft_block *)b;
    if (!are_same(a, b))
        return NULL;
    if (!are_same(x->attention, y->attention))
        return key_of_attention(x->attention, y->attention);
    if (x->mlp->ops == y->mlp->ops)
        return NULL;
    return y->common.options.num_experts > 0 && strcmp(weft_layer_kind(y->mlp), "mlp") == 0
               ? "moe_layer_freq"
               : "num_experts";
}

static weft_other_layer find_other(const weft_model_tree *is, const weft_model_tree *described)
{
    const int last = described->num_layers - 1;
    if (is->num_layers != described->num_layers)
        return (weft_other_layer){is->num_layers <= last ? is->num_layers : last + 1, "num_layers"};
    for (int i = 0; i <= last; i++) {
        const weft_layer *a = is->layers[i], *b = described->layers[i];
        if (i == 0 && !are_same(a, b))
            return (weft_other_layer){i, NULL};
        if (i == last && !are_same_heads(a, b))
            return (weft_other_layer){i, are_same(a, b) ? "mtp_num_layers" : NULL};
        if (i > 0 && i < last && !are_same_blocks(a, b))
            return (weft_other_layer){i, key_of_block(a, b)};
    }
    return (weft_other_layer){-1, NULL};
}

weft_status weft_model_find_other(const weft_model_options *options, const void *own_options,
                                  weft_model_function build, weft_other_layer *out)
{
    weft_model *models = calloc(2, sizeof *models);
    if (!models)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the list of layers");
    models[0].setup.own_options = own_options;
    weft_error_clear();
    weft_status status =
        weft_program_failed(build(&models[0], options), "this program's build function");
    if (status == WEFT_OK)
        status = weft_model_build_gpt(&models[1], options);
    if (status == WEFT_OK)
        *out = find_other(&models[0].tree, &models[1].tree);
    for (int i = 0; i < 2; i++)
        weft_model_forget(&models[i]);
    free(models);
    return status;
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
        for (int backward = 0; backward < 2; backward++)
            weft_alone_destroy(model->tree.places->alone[backward]);
        free(model->tree.places);
        model->tree.places = next;
    }
}
