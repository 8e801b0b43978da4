/* A layer that spoils what tests ask for. */
#ifndef WEFT_TESTS_LAUNCHER_POISON_H
#define WEFT_TESTS_LAUNCHER_POISON_H

#include "tests/layers/stub.h"

/* y = x, with a parameter that nothing depends on but for its gradient. */
typedef struct poison {
    weft_layer base;
    size_t hidden;
    weft_parameter *bias;
    int run;     /* of a training step */
    bool marked; /* the tokens have a mark */
} poison;

static inline weft_status poison_init(weft_layer *layer, weft_build *build)
{
    poison *p = (poison *)layer;
    weft_parameter_spec spec = {
        .struct_bytes = sizeof spec, .name = "bias", .num_dims = 1, .dims = {p->hidden}};
    return weft_build_parameter(build, &spec, &p->bias);
}

static inline void poison_describe(const weft_layer *layer, const weft_shape *shape,
                                   weft_layer_cost *out)
{
    const poison *p = (const poison *)layer;
    *out = (weft_layer_cost){.num_params = p->hidden,
                             .local_params = p->hidden,
                             .param_bytes = p->hidden * weft_dtype_bytes(shape->dtype)};
}

typedef struct fill_args {
    float *to;
    size_t count;
    float value;
    bool adds;
} fill_args;

static inline weft_status fill(const void *raw)
{
    const fill_args *a = raw;
    for (size_t i = 0; i < a->count; i++)
        a->to[i] = a->adds ? a->to[i] + a->value : a->value;
    return WEFT_OK;
}

/* The test's own. */
weft_status poison_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                           weft_tensor *y);
weft_status poison_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                            weft_tensor *dx);

static const weft_layer_ops poison_ops = {.struct_bytes = sizeof poison_ops,
                                          .kind = "poison",
                                          .describe = poison_describe,
                                          .init = poison_init,
                                          .forward = poison_forward,
                                          .backward = poison_backward,
                                          .destroy = stub_destroy};

/* A dense model of one block, with the layer behind it. */
static inline weft_status poison_build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                  weft_mlp_create(options)));
    weft_layer *layer = stub_create(&poison_ops, sizeof(poison));
    if (layer)
        ((poison *)layer)->hidden = (size_t)options->hidden_size;
    WEFT_TRY(weft_model_add(model, layer));
    return weft_model_add_head(model, options);
}

#endif
