#include "launcher/measuring/bench_layer.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"

/* --- the ends ------------------------------------------------------------------------------ */

typedef struct end {
    weft_layer base;
    bool filled; /* what it gives lies where it will lie next time: it is made once */
} end;

static void end_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    (void)layer;
    (void)shape;
    memset(out, 0, sizeof *out);
}

static weft_status end_init(weft_layer *layer, weft_build *build)
{
    (void)layer;
    (void)build;
    return WEFT_OK;
}

static void end_destroy(weft_layer *layer)
{
    free(layer);
}

typedef struct fill_args {
    weft_tensor to;
    size_t experts, topk;
} fill_args;

static void put(const weft_tensor *t, size_t index, float value)
{
    if (t->dtype == WEFT_F32) {
        ((float *)t->data)[index] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)t->data)[index] = (uint16_t)(bits >> 16);
}

/* Small numbers; and, where there are experts, token t asks for t k, t k + 1, ... in the columns
 * that the router reads. */
static weft_status fill(const void *raw)
{
    const fill_args *a = raw;
    size_t rows = a->to.dims[0], cols = a->to.dims[1];
    for (size_t t = 0; t < rows; t++) {
        for (size_t c = 0; c < cols; c++)
            put(&a->to, t * cols + c, (float)((t * 31 + c * 17) % 64) / 256.0f - 0.125f);
        for (size_t c = 0; c < a->experts; c++)
            put(&a->to, t * cols + c, 0);
        for (size_t k = 0; k < a->topk; k++)
            put(&a->to, t * cols + (t * a->topk + k) % a->experts, 4);
    }
    return WEFT_OK;
}

static weft_status give(end *e, weft_pass *pass, const weft_tensor *to, size_t experts, size_t topk)
{
    if (e->filled)
        return WEFT_OK;
    e->filled = true;
    return weft_lane_submit(weft_pass_lane(pass), "bench input", fill,
                            &(fill_args){*to, experts, topk}, sizeof(fill_args));
}

typedef struct source {
    end end;
    size_t experts, topk;
} source;

static weft_status source_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    (void)x;
    source *s = (source *)layer;
    return give(&s->end, pass, y, s->experts, s->topk);
}

static weft_status ignore_gradient(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    (void)layer;
    (void)pass;
    (void)dy;
    (void)dx;
    return WEFT_OK;
}

static weft_status sink_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    return give((end *)layer, pass, dx, 0, 0);
}

static weft_status ignore_rows(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    (void)layer;
    (void)pass;
    (void)x;
    (void)y;
    return WEFT_OK;
}

static const weft_layer_ops source_ops = {
    .struct_bytes = sizeof source_ops,
    .kind = "source",
    .reads_tokens = true,
    .describe = end_describe,
    .init = end_init,
    .forward = source_forward,
    .backward = ignore_gradient,
    .destroy = end_destroy,
};
static const weft_layer_ops sink_ops = {
    .struct_bytes = sizeof sink_ops,
    .kind = "sink",
    .makes_loss = true,
    .describe = end_describe,
    .init = end_init,
    .forward = ignore_rows,
    .backward = sink_backward,
    .destroy = end_destroy,
};

static weft_status build(weft_model *model, const weft_model_options *options)
{
    source *first = calloc(1, sizeof *first);
    if (first) {
        first->end.base.ops = &source_ops;
        first->experts = (size_t)options->num_experts;
        first->topk = (size_t)options->moe_router_topk;
    }
    WEFT_TRY(weft_model_add(model, (weft_layer *)first));
    WEFT_TRY(weft_model_add(model, weft_moe_create(options)));
    end *last = calloc(1, sizeof *last);
    if (last)
        last->base.ops = &sink_ops;
    return weft_model_add(model, (weft_layer *)last);
}

/* --- the layer ----------------------------------------------------------------------------- */

static weft_status create_groups(weft_bench_layer *layer, const weft_bench_layer_shape *shape)
{
    weft_parallel_options parallel = {0};
    weft_option_section section = {"parallel", weft_parallel_rows, weft_num_parallel_rows,
                                   &parallel, ""};
    weft_arena arena = {0};
    weft_mesh mesh;
    char all[48];
    snprintf(all, sizeof all, "dp=%d,binding=dp,ep=%d", weft_comm_size(layer->world),
             weft_comm_size(layer->world));
    weft_status status = weft_options_parse(&section, 1, "bench", NULL, NULL, 0, &arena);
    if (status == WEFT_OK)
        status = weft_mesh_apply_alias(shape->mesh ? shape->mesh : all, &arena, &parallel, NULL);
    if (status == WEFT_OK)
        status = weft_mesh_build(&parallel, weft_comm_size(layer->world), shape->experts, &mesh);
    weft_arena_release(&arena);
    WEFT_TRY(status);
    return weft_groups_create(layer->world, &mesh, NULL, &layer->groups);
}

/* The router reads the first E columns. */
static void set_router(weft_model *model)
{
    weft_parameters *all = weft_model_parameters(model);
    weft_parameter *router = weft_parameters_find(all, "decoder.layers.0.router.weight");
    weft_tensor *w = &router->weight;
    memset(w->data, 0, weft_tensor_bytes(w));
    for (size_t e = 0; e < w->dims[0]; e++)
        put(w, e * w->dims[1] + e, 4);
}

static weft_status create_rest(weft_bench_layer *layer, const weft_bench_layer_shape *shape)
{
    layer->options = (weft_model_options){.num_layers = 1,
                                          .hidden_size = shape->hidden,
                                          .num_attention_heads = 1,
                                          .seq_length = shape->tokens,
                                          .vocab_size = 1,
                                          .norm_epsilon = 1e-5,
                                          .swiglu = shape->swiglu,
                                          .init_method_std = 0.02,
                                          .num_experts = shape->experts,
                                          .moe_router_topk = shape->topk,
                                          .moe_ffn_hidden_size = shape->ffn};
    static const int64_t every_layer[] = {1};
    layer->options.moe_layer_freq = (weft_int_list){.values = every_layer, .count = 1};
    if (shape->experts > shape->hidden)
        return WEFT_ERROR(WEFT_CONFIG, "balanced routing needs as many columns as experts: %lld",
                          (long long)shape->experts);
    WEFT_TRY(weft_model_options_resolve(&layer->options));
    WEFT_TRY(weft_device_create_cpu(shape->num_threads, 0, &layer->device));
    WEFT_TRY(weft_lane_create(layer->device, 0, "compute", &layer->lane));
    WEFT_TRY(weft_model_create(&(weft_model_setup){.options = &layer->options,
                                                   .groups = &layer->groups,
                                                   .device = layer->device,
                                                   .dtype = shape->dtype,
                                                   .micro_batch_size = 1,
                                                   .bucket_elements = (size_t)1 << 24,
                                                   .training = true,
                                                   .num_passes = 1,
                                                   .seed = 1,
                                                   .moe = shape->moe},
                               build, &layer->model));
    WEFT_TRY(weft_parameters_initialize(weft_model_parameters(layer->model), layer->lane, 1));
    WEFT_TRY(weft_lane_sync(layer->lane));
    set_router(layer->model);
    layer->tokens = calloc((size_t)shape->tokens, sizeof *layer->tokens);
    return layer->tokens ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for tokens");
}

weft_status weft_bench_layer_create(weft_comm *world, const weft_bench_layer_shape *shape,
                                    weft_bench_layer **out)
{
    weft_bench_layer *layer = calloc(1, sizeof *layer);
    weft_status status =
        layer ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a layer to measure");
    WEFT_TRY(weft_comm_agree(world, status));
    layer->world = world;
    status = weft_comm_agree(world, create_groups(layer, shape));
    if (status == WEFT_OK)
        status = weft_comm_agree(world, create_rest(layer, shape));
    if (status != WEFT_OK) {
        weft_bench_layer_destroy(layer);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = layer;
    return WEFT_OK;
}

void weft_bench_layer_destroy(weft_bench_layer *layer)
{
    if (!layer)
        return;
    weft_model_destroy(layer->model);
    weft_lane_destroy(layer->lane);
    weft_groups_release(&layer->groups);
    weft_device_destroy(layer->device);
    free(layer->tokens);
    free(layer);
}

weft_status weft_bench_layer_run(weft_bench_layer *layer, double out_us[2])
{
    weft_micro_batch micro_batch = {.tokens = layer->tokens,
                                    .labels = layer->tokens,
                                    .step = 1,
                                    .overwrite = true,
                                    .loss_scale = 1,
                                    .training = true};
    for (int half = 0; half < 2; half++) {
        WEFT_TRY(weft_comm_barrier(layer->world));
        weft_device_set_pace(layer->device, (weft_pace){.flops = layer->pace_flops[half],
                                                        .work = WEFT_PACE_EXPERTS});
        double start = weft_now_us();
        if (half == 0)
            WEFT_TRY(weft_model_forward(layer->model, 0, &micro_batch, layer->lane, NULL, NULL));
        else
            WEFT_TRY(weft_model_backward(layer->model, 0, layer->lane, NULL, NULL, false));
        WEFT_TRY(weft_model_enqueue(layer->model));
        WEFT_TRY(weft_lane_sync(layer->lane));
        out_us[half] = weft_now_us() - start;
    }
    return weft_comm_all_reduce_host(layer->world, out_us, 2, WEFT_F64, WEFT_REDUCE_MAX);
}

weft_status weft_bench_layer_peak(weft_bench_layer *layer, double *out_bytes)
{
    weft_device_stats stats;
    weft_device_get_stats(layer->device, &stats);
    *out_bytes = (double)stats.bytes_peak;
    return weft_comm_all_reduce_host(layer->world, out_bytes, 1, WEFT_F64, WEFT_REDUCE_MAX);
}
