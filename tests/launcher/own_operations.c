/* What weft calibrate --for measures of a program's own layers: the calls that they make, whichever
 * they are, and of one that describes itself the products. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "launcher/measuring/own.h"
#include "tests/expect.h"
#include "tests/layers/stub.h"

typedef struct odd { /* y = gelu(x W^T) + x with W [H, H], and rows of y in a turned order */
    weft_layer base;
    weft_parameter *weight;
    weft_device *device;
    int32_t *order; /* memory of its own, [rows] */
    size_t rows;
} odd;

static weft_status odd_init(weft_layer *layer, weft_build *build)
{
    odd *o = (odd *)layer;
    const weft_shape *shape = weft_build_shape(build);
    void *order;
    o->device = weft_build_device(build);
    o->rows = weft_shape_local_tokens(shape);
    WEFT_TRY(weft_device_alloc(o->device, WEFT_SPACE_DEVICE, o->rows * sizeof(int32_t), "order",
                               &order));
    o->order = order;
    return weft_build_parameter(build,
                                &WEFT_ARGS(weft_parameter_spec, .name = "weight", .num_dims = 2,
                                           .dims = {shape->hidden, shape->hidden},
                                           .init_std = 0.02f),
                                &o->weight);
}

static weft_status odd_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    const odd *o = (odd *)layer;
    weft_lane *lane = weft_pass_lane(pass);
    const size_t rows = x->dims[0], hidden = x->dims[1];
    weft_tensor pre, made;
    WEFT_TRY(weft_pass_stash(pass, x->dtype, rows, hidden, &pre));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, rows, 1, &made));
    WEFT_TRY(weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = rows, .n = hidden, .k = hidden,
                                        .transpose_b = true, .dtype = x->dtype, .c_dtype = x->dtype,
                                        .a = x->data, .b = o->weight->weight.data, .c = y->data,
                                        .epilogue = WEFT_GEMM_GELU, .pre = pre.data)));
    WEFT_TRY(weft_add(lane, &WEFT_ARGS(weft_add_args, .count = rows * hidden, .dtype = x->dtype,
                                       .a = y->data, .b = x->data, .y = y->data)));
    WEFT_TRY(weft_permute(lane, &WEFT_ARGS(weft_permute_args, .num_rows = rows, .cols = hidden,
                                           .dtype = x->dtype, .x = y->data, .token_of = o->order,
                                           .rows = pre.data)));
    return weft_permute(lane, &WEFT_ARGS(weft_permute_args, .num_rows = rows, .cols = hidden,
                                         .dtype = x->dtype, .x = y->data, .token_of = made.data,
                                         .rows = pre.data));
}

/* In a step's first micro-batch there is other work. */
static weft_status odd_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    const odd *o = (odd *)layer;
    weft_lane *lane = weft_pass_lane(pass);
    const size_t rows = dy->dims[0], hidden = dy->dims[1];
    if (weft_pass_overwrite(pass))
        WEFT_TRY(weft_lane_zero(lane, o->weight->grad, hidden * hidden * sizeof(float)));
    WEFT_TRY(
        weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = hidden, .n = hidden, .k = rows,
                                   .transpose_a = true, .dtype = dy->dtype, .c_dtype = WEFT_F32,
                                   .a = dy->data, .b = dx->data, .c = o->weight->grad, .beta = 1)));
    return weft_lane_copy(lane, dx->data, dy->data, weft_tensor_bytes(dy));
}

static void odd_destroy(weft_layer *layer)
{
    odd *o = (odd *)layer;
    if (o->order)
        weft_device_free(o->device, WEFT_SPACE_DEVICE, o->order, o->rows * sizeof(int32_t));
    free(o);
}

/* Twice as wide as the hidden size, and no pass of its own is run. */
static void told_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    (void)layer;
    weft_cost_linear(out, shape, "told", weft_shape_local_tokens(shape), shape->hidden,
                     2 * shape->hidden);
}

static weft_status told_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *from,
                             weft_tensor *to)
{
    (void)layer, (void)pass, (void)from, (void)to;
    return WEFT_ERROR(WEFT_INTERNAL, "a layer that describes itself ran");
}

static const weft_layer_ops odd_ops = {.struct_bytes = sizeof odd_ops,
                                       .kind = "odd",
                                       .init = odd_init,
                                       .forward = odd_forward,
                                       .backward = odd_backward,
                                       .destroy = odd_destroy};
static const weft_layer_ops told_ops = {.struct_bytes = sizeof told_ops,
                                        .kind = "told",
                                        .describe = told_describe,
                                        .init = stub_init,
                                        .forward = told_pass,
                                        .backward = told_pass,
                                        .destroy = odd_destroy};

static weft_layer *create(const weft_layer_ops *ops)
{
    return stub_create(ops, sizeof(odd));
}

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add(model, create(&odd_ops)));
    WEFT_TRY(weft_model_add(model, create(&told_ops)));
    return weft_model_add_head(model, options);
}

static bool has_product(const weft_cluster *cluster, double m, double n, double k)
{
    for (int i = 0; i < cluster->num_products; i++) {
        const weft_product *p = &cluster->products[i];
        if (p->m == m && p->n == n && p->k == k)
            return p->us > 0;
    }
    return false;
}

static int operations_of(const weft_cluster *cluster, const char *module)
{
    int count = 0;
    for (int i = 0; i < cluster->num_operations; i++)
        count += strcmp(cluster->operations[i].module, module) == 0;
    return count;
}

int main(void)
{
    const weft_model_options options = WEFT_ARGS(
        weft_model_options, .num_layers = 1, .hidden_size = 24, .ffn_hidden_size = 40,
        .num_attention_heads = 2, .num_query_groups = 2, .kv_channels = 12, .seq_length = 16,
        .max_position_embeddings = 16, .vocab_size = 50, .norm_epsilon = 1e-5);
    const weft_mesh mesh = {
        .world = 1, .tp = 1, .cp = 1, .dp = 1, .pp = 1, .ep = 1, .etp = 1, .edp = 1};
    const weft_shape shape = weft_model_shape(&options, &mesh, 2, WEFT_F32, true);
    const weft_own_model model = {
        .options = &options, .build = build, .shape = &shape, .num_micro_batches = 2};
    weft_cluster cluster = {0};
    weft_comm *self;
    weft_device *device;
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(weft_device_create_cpu(1, 0, &device));
    EXPECT_OK(weft_measure_own(self, device, &model, true, &cluster));
    EXPECT(has_product(&cluster, 32, 24, 24), "the own layer's product is not measured");
    EXPECT(has_product(&cluster, 24, 24, 32), "nor its weight's gradient");
    EXPECT(has_product(&cluster, 32, 48, 24) && has_product(&cluster, 48, 24, 32) &&
               has_product(&cluster, 32, 24, 48),
           "nor the products of the layer that describes itself");
    EXPECT(operations_of(&cluster, "activation") == 1, "nor the activation after the product");
    EXPECT(operations_of(&cluster, "own") == 1, /* the sum */
           "%d operations of the own layer: by indices of its own, or that nobody made?",
           operations_of(&cluster, "own"));
    weft_device_stats stats;
    weft_device_get_stats(device, &stats);
    EXPECT(stats.bytes_now == 0 && stats.pinned_bytes_now == 0, "%zu and %zu bytes are left",
           stats.bytes_now, stats.pinned_bytes_now);
    weft_device_destroy(device);
    weft_comm_destroy(self);
    return expect_finish();
}
