/* The layer of examples/own_layer.c against a plain fp64 version of its formula: outputs equal, and
 * every gradient equal to central differences of that version. Runs on one rank and on two
 * tensor-parallel ones, with and without sequence parallelism. */
#include <stdlib.h>

/* The example as it stands, its main under another name. */
int own_layer_main(int argc, char **argv);
#define main own_layer_main
#include "examples/own_layer.c"
#undef main

#include "kernels/kernels.h"
#include "layers/pass.h"
#include "tests/expect.h"
#include "tests/layers/harness.h"

enum { SEQ = 6, BATCH = 2, ROWS = SEQ * BATCH, HIDDEN = 8, FFN = 12 };

/* Inputs, weights and the loss' weights of a run: loss = sum of r * y. */
static double x[ROWS * HIDDEN], r[ROWS * HIDDEN], w1[FFN * HIDDEN], w2[HIDDEN * FFN];

/* The value in [-1, 1) of a place in a named array. */
static double value(int array, size_t i)
{
    uint32_t bits = (uint32_t)i * 2654435761u + (uint32_t)array * 40503u + 12345u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return (double)(bits >> 8) / 8388608.0 - 1.0;
}

static double reference(size_t row, size_t column)
{
    double y = 0;
    for (size_t f = 0; f < FFN; f++) {
        double pre = 0;
        for (size_t h = 0; h < HIDDEN; h++)
            pre += x[row * HIDDEN + h] * w1[f * HIDDEN + h];
        y += w2[column * FFN + f] * (pre > 0 ? pre * pre : 0);
    }
    return y;
}

static double reference_loss(void)
{
    double loss = 0;
    for (size_t row = 0; row < ROWS; row++)
        for (size_t column = 0; column < HIDDEN; column++)
            loss += r[row * HIDDEN + column] * reference(row, column);
    return loss;
}

static double slope(double *at)
{
    const double step = 1e-5, kept = *at;
    *at = kept + step;
    double above = reference_loss();
    *at = kept - step;
    double below = reference_loss();
    *at = kept;
    return (above - below) / (2 * step);
}

/* --- a source and a sink around the layer -------------------------------------------------- */

static float got_y[ROWS * HIDDEN], got_dx[ROWS * HIDDEN];

static void no_cost(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    (void)layer;
    (void)shape;
    *out = (weft_layer_cost){0};
}

static weft_status no_init(weft_layer *layer, weft_build *build)
{
    (void)layer;
    (void)build;
    return WEFT_OK;
}

static int tp_rank;

/* Where this rank's rows of a global [ROWS, HIDDEN] array begin. */
static size_t start_of(const weft_tensor *rows)
{
    return rows->dims[0] == ROWS ? 0 : (size_t)tp_rank * rows->dims[0] * HIDDEN;
}

/* Between fp64 or fp32 and a tensor's elements; the lane is idle. */
static void put(const double *from, const weft_tensor *to)
{
    for (size_t i = 0; i < weft_tensor_count(to); i++) {
        union {
            float number;
            uint32_t bits;
        } one = {.number = (float)from[i]};
        if (to->dtype == WEFT_F32)
            ((float *)to->data)[i] = one.number;
        else /* round to nearest */
            ((uint16_t *)to->data)[i] = (uint16_t)((one.bits + 0x8000u) >> 16);
    }
}

static void get(const weft_tensor *from, float *to)
{
    for (size_t i = 0; i < weft_tensor_count(from); i++) {
        union {
            uint32_t bits;
            float number;
        } one = {.bits = 0};
        if (from->dtype == WEFT_F32)
            one.number = ((const float *)from->data)[i];
        else
            one.bits = (uint32_t)((const uint16_t *)from->data)[i] << 16;
        to[i] = one.number;
    }
}

static weft_status source_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *in,
                                  weft_tensor *y)
{
    (void)layer;
    (void)in;
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    put(x + start_of(y), y);
    return WEFT_OK;
}

static weft_status source_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    (void)layer;
    (void)dx;
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    get(dy, got_dx + start_of(dy));
    return WEFT_OK;
}

static weft_status sink_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *in,
                                weft_tensor *y)
{
    (void)layer;
    (void)y;
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    get(in, got_y + start_of(in));
    return WEFT_OK;
}

static weft_status sink_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)layer;
    (void)dy;
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    put(r + start_of(dx), dx);
    return WEFT_OK;
}

static const weft_layer_ops source_ops = {.struct_bytes = sizeof source_ops,
                                          .kind = "source",
                                          .describe = no_cost,
                                          .init = no_init,
                                          .forward = source_forward,
                                          .backward = source_backward,
                                          .destroy = primer_destroy};
static const weft_layer_ops sink_ops = {.struct_bytes = sizeof sink_ops,
                                        .kind = "sink",
                                        .describe = no_cost,
                                        .init = no_init,
                                        .forward = sink_forward,
                                        .backward = sink_backward,
                                        .destroy = primer_destroy};

static weft_status add(weft_model *model, const weft_layer_ops *ops)
{
    weft_layer *layer = calloc(1, sizeof *layer);
    if (layer)
        layer->ops = ops;
    return weft_model_add(model, layer);
}

static weft_status build_alone(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(add(model, &source_ops));
    WEFT_TRY(weft_model_add(model, primer_create(options)));
    return add(model, &sink_ops);
}

/* --- checks -------------------------------------------------------------------------------- */

static void expect_close(const char *what, double got, double wanted, double tolerance)
{
    EXPECT(fabs(got - wanted) <= tolerance * (1 + fabs(wanted)), "%s: %.9g, the reference %.9g",
           what, got, wanted);
}

/* This rank's rows, after the pass of one micro-batch; `times`: gradients of how many. */
static void check_values(const primer *p, size_t rows, double times, double tolerance)
{
    size_t first = rows == ROWS ? 0 : (size_t)tp_rank * rows;
    for (size_t row = first; row < first + rows; row++)
        for (size_t column = 0; column < HIDDEN; column++) {
            size_t i = row * HIDDEN + column;
            expect_close("y", got_y[i], reference(row, column), tolerance);
            expect_close("dx", got_dx[i], slope(&x[i]), tolerance);
        }
    size_t ffn = p->w1->weight.dims[0];
    for (size_t f = 0; f < ffn; f++)
        for (size_t h = 0; h < HIDDEN; h++) {
            size_t all = (size_t)tp_rank * ffn + f;
            expect_close("w1's gradient", p->w1->grad[f * HIDDEN + h],
                         times * slope(&w1[all * HIDDEN + h]), tolerance);
            expect_close("w2's gradient", p->w2->grad[h * ffn + f],
                         times * slope(&w2[h * FFN + all]), tolerance);
        }
}

static void set_weights(const primer *p)
{
    size_t ffn = p->w1->weight.dims[0];
    EXPECT(p->w1->weight.dims[1] == HIDDEN && p->w2->weight.dims[0] == HIDDEN &&
               p->w2->weight.dims[1] == ffn,
           "shapes of the weights");
    double mine[FFN * HIDDEN];
    weft_tensor flat = weft_tensor_1d(p->w1->weight.data, p->w1->weight.dtype, ffn * HIDDEN);
    size_t first = (size_t)tp_rank * ffn;
    put(w1 + first * HIDDEN, &flat);
    for (size_t h = 0; h < HIDDEN; h++)
        for (size_t f = 0; f < ffn; f++)
            mine[h * ffn + f] = w2[h * FFN + first + f];
    flat.data = p->w2->weight.data;
    put(mine, &flat);
}

static void totals(uint64_t *flops, uint64_t *tp_bytes)
{
    uint64_t count;
    *flops = weft_gemm_flops();
    weft_comm_totals(WEFT_PURPOSE_TENSOR, tp_bytes, &count);
}

/* What describe says is what a pass took; beside it the model keeps the source's and the layer's
 * output, and two gradients between layers. */
static void check_describe(harness *h, const primer *p, size_t rows)
{
    weft_layer_cost cost;
    uint64_t flops[2], tp_bytes[2];
    int32_t tokens[ROWS] = {0};
    const weft_shape *shape = weft_model_get_shape(h->model);
    size_t row_bytes = piece(rows, HIDDEN, shape->dtype);
    weft_layer_describe(&p->base, shape, &cost);
    totals(&flops[0], &tp_bytes[0]);
    EXPECT_OK(harness_pass(h, tokens, tokens, true, false));
    totals(&flops[1], &tp_bytes[1]);
    EXPECT(cost.num_params == 2 * HIDDEN * FFN, "parameters");
    EXPECT(weft_model_stash_bytes(h->model, 0) == cost.activation_bytes + 2 * row_bytes,
           "%zu bytes stashed", weft_model_stash_bytes(h->model, 0));
    EXPECT(h->model->scratch.peak_bytes == cost.scratch_bytes + 3 * row_bytes,
           "%zu bytes of scratch", h->model->scratch.peak_bytes);
    EXPECT(flops[1] - flops[0] == cost.forward_flops + cost.backward_flops, "%llu FLOPs",
           (unsigned long long)(flops[1] - flops[0]));
    EXPECT(tp_bytes[1] - tp_bytes[0] == cost.tp_forward_bytes + cost.tp_backward_bytes,
           "%llu bytes over TP", (unsigned long long)(tp_bytes[1] - tp_bytes[0]));
}

static void check(weft_comm *world, const char *mesh, weft_dtype dtype, double tolerance)
{
    harness h;
    weft_arena arena = {0};
    weft_model_options options = {0};
    EXPECT_OK(harness_options("{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, "
                              "\"ffn_hidden_size\": 12, \"num_attention_heads\": 2, "
                              "\"seq_length\": 6, \"vocab_size\": 16}}",
                              &arena, &options));
    EXPECT_OK(harness_create(&h, world, &options, mesh, BATCH, dtype, build_alone));
    tp_rank = h.groups.coords.at[WEFT_AXIS_TP];
    const primer *p = (const primer *)weft_model_layer(h.model, 1);
    set_weights(p);
    int32_t tokens[ROWS] = {0};
    EXPECT_OK(harness_pass(&h, tokens, tokens, true, true));
    const weft_shape *shape = weft_model_get_shape(h.model);
    size_t rows = ROWS / (shape->sequence_parallel ? (size_t)shape->tp : 1);
    check_values(p, rows, 1, tolerance);
    /* a second micro-batch adds to the gradients of the first */
    EXPECT_OK(harness_pass(&h, tokens, tokens, true, false));
    check_values(p, rows, 2, tolerance);
    check_describe(&h, p, rows);
    harness_release(&h);
    weft_arena_release(&arena);
}

/* --- structs of other sizes ---------------------------------------------------------------- */

static weft_layer_ops other_ops;

static weft_status build_other_ops(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(add(model, &source_ops));
    WEFT_TRY(weft_model_add(model, primer_create(options)));
    return add(model, &other_ops);
}

static weft_status build_other_options(weft_model *model, const weft_model_options *options)
{
    weft_model_options copy = *options;
    copy.struct_bytes = 0;
    WEFT_TRY(add(model, &source_ops));
    WEFT_TRY(weft_model_add(model, weft_mlp_create(&copy)));
    return add(model, &sink_ops);
}

static weft_status old_init(weft_layer *layer, weft_build *build)
{
    weft_parameter *p;
    weft_parameter_spec spec = {.name = "old", .num_dims = 1, .dims = {4}};
    (void)layer;
    EXPECT(weft_build_parameter(build, &spec, &p) == WEFT_INTERNAL &&
               strstr(weft_error_get()->text, "weft_parameter_spec: struct_bytes is 0"),
           "%s", weft_error_get()->text);
    spec.struct_bytes = offsetof(weft_parameter_spec, no_weight_decay) / 8 * 8;
    spec.no_weight_decay = true; /* beyond it: not read */
    WEFT_TRY(weft_build_parameter(build, &spec, &p));
    EXPECT(!p->spec->no_weight_decay, "what lies beyond the struct was read");
    return WEFT_OK;
}

static weft_status create(weft_comm *world, weft_model_function function)
{
    harness h;
    weft_arena arena = {0};
    weft_model_options options = {0};
    EXPECT_OK(harness_options("{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, "
                              "\"num_attention_heads\": 2, \"seq_length\": 6, "
                              "\"vocab_size\": 16}}",
                              &arena, &options));
    weft_status status = harness_create(&h, world, &options, NULL, BATCH, WEFT_F32, function);
    harness_release(&h);
    weft_arena_release(&arena);
    return status;
}

static void check_sizes(weft_comm *world)
{
    other_ops = sink_ops;
    other_ops.struct_bytes = 0;
    EXPECT(create(world, build_other_ops) == WEFT_INTERNAL &&
               strstr(weft_error_get()->text, "weft_layer_ops: struct_bytes is 0"),
           "%s", weft_error_get()->text);
    other_ops.init = old_init;
    other_ops.struct_bytes = offsetof(weft_layer_ops, is_static); /* before there was one */
    EXPECT_OK(create(world, build_other_ops));
    EXPECT(create(world, build_other_options) == WEFT_INTERNAL &&
               strstr(weft_error_get()->text, "weft_model_options: struct_bytes is 0"),
           "%s", weft_error_get()->text);
}

int main(void)
{
    weft_comm *world;
    for (size_t i = 0; i < ROWS * HIDDEN; i++) {
        x[i] = value(1, i);
        r[i] = value(2, i);
    }
    for (size_t i = 0; i < FFN * HIDDEN; i++) {
        w1[i] = 0.5 * value(3, i);
        w2[i] = 0.5 * value(4, i);
    }
    int rank, size = 1, local_rank, local_size;
    bool launched = weft_comm_launched(&rank, &size, &local_rank, &local_size);
    EXPECT_OK(launched && size > 1 ? weft_comm_create_world(&world)
                                   : weft_comm_create_self(&world));
    if (weft_comm_size(world) == 1) {
        check(world, "tp=1", WEFT_F32, 1e-5);
        check(world, "tp=1", WEFT_BF16, 3e-2);
        check_sizes(world);
    } else {
        check(world, "tp=2", WEFT_F32, 1e-5);
        check(world, "tp=2,sp=1", WEFT_F32, 1e-5);
        check(world, "tp=2,sp=1", WEFT_BF16, 3e-2);
    }
    weft_comm_destroy(world);
    return expect_finish();
}
