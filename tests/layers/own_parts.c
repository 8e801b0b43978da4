/* What a layer of the user's hands in and asks for: structs of other sizes than the library's,
 * metrics, its place in the mesh and sums over it. On one rank, and on two tensor-parallel ones. */
#include <string.h>

#include "layers/pass/pass.h"
#include "tests/expect.h"
#include "tests/layers/harness.h"
#include "tests/layers/stub.h"

enum { SEQ = 6, BATCH = 2 };

static const weft_layer_ops first_ops = {.struct_bytes = sizeof(weft_layer_ops),
                                         .kind = "first",
                                         .describe = stub_describe,
                                         .init = stub_init,
                                         .forward = stub_pass,
                                         .backward = stub_pass,
                                         .destroy = stub_destroy,
                                         .reads_tokens = true};
static weft_layer_ops last_ops; /* each test's own */

static void reset_last(void)
{
    last_ops = first_ops;
    last_ops.reads_tokens = false;
    last_ops.makes_loss = true;
}

static float one_logit;
static const weft_tensor own_logits = {.data = &one_logit};

static const weft_tensor *give_logits(const weft_layer *layer, weft_pass *pass)
{
    (void)layer;
    (void)pass;
    return &own_logits;
}

static int64_t width_of_4(const weft_layer *layer)
{
    (void)layer;
    return 4;
}

static weft_status failing_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)layer;
    (void)x;
    (void)y;
    return weft_lane_submit(weft_pass_lane(pass), "mine", NULL, NULL, 0);
}

static weft_status add(weft_model *model, const weft_layer_ops *ops)
{
    return weft_model_add(model, stub_create(ops, sizeof(weft_layer)));
}

static weft_status build_two(weft_model *model, const weft_model_options *options)
{
    (void)options;
    WEFT_TRY(add(model, &first_ops));
    return add(model, &last_ops);
}

static weft_layer_ops inner_ops; /* of a layer inside a block */

static weft_status build_block(weft_model *model, const weft_model_options *options)
{
    weft_layer *inner = stub_create(&inner_ops, sizeof *inner);
    WEFT_TRY(add(model, &first_ops));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options), inner));
    return add(model, &last_ops);
}

/* What a build function gives NULL for. */
static enum {
    TO_MODEL,
    TO_ADD,
    TO_BLOCK,
    TO_ATTENTION,
    TO_MLP,
    TO_CREATE,
    TO_HEAD,
    TO_MTP,
    NUM_NULLS
} null;
static const char *const null_texts[NUM_NULLS] = {
    [TO_MODEL] = "weft_model_add: model is NULL",
    [TO_ADD] = "layer 1: weft_model_add: layer is NULL",
    [TO_BLOCK] = "weft_model_add_block: options is NULL",
    [TO_ATTENTION] = "weft_model_add_block: attention is NULL",
    [TO_MLP] = "weft_model_add_block: mlp is NULL",
    [TO_CREATE] = "layer 1: weft_mlp_create: options is NULL",
    [TO_HEAD] = "weft_model_add_head: options is NULL",
    [TO_MTP] = "weft_model_add_mtp: options is NULL",
};

static weft_status build_with_null(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(add(model, &first_ops));
    switch (null) {
    case TO_MODEL:
        return weft_model_add(NULL, NULL);
    case TO_ADD:
        return weft_model_add(model, NULL);
    case TO_BLOCK:
        return weft_model_add_block(model, NULL, weft_attention_create(options),
                                    weft_mlp_create(options));
    case TO_ATTENTION:
        return weft_model_add_block(model, options, NULL, weft_mlp_create(options));
    case TO_MLP:
        return weft_model_add_block(model, options, weft_attention_create(options), NULL);
    case TO_CREATE:
        return weft_model_add(model, weft_mlp_create(NULL));
    case TO_HEAD:
        return weft_model_add_head(model, NULL);
    default:
        return weft_model_add_mtp(model, NULL, weft_attention_create(options),
                                  weft_mlp_create(options));
    }
}

static weft_status build_other_options(weft_model *model, const weft_model_options *options)
{
    weft_model_options copy = *options;
    copy.struct_bytes = 0;
    WEFT_TRY(add(model, &first_ops));
    WEFT_TRY(weft_model_add(model, weft_mlp_create(&copy)));
    return add(model, &last_ops);
}

static weft_status build_headless(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(add(model, &first_ops));
    return weft_model_add_mtp(model, options, weft_attention_create(options),
                              weft_mlp_create(options));
}

/* What the last layer says of itself is what the model says. */
static void check_facts(weft_model *model)
{
    weft_tensor logits = {0};
    EXPECT(weft_model_labels_are_tokens(model) == last_ops.labels_are_tokens, "other labels");
    weft_status status = weft_model_logits(model, 0, &logits);
    if (last_ops.logits)
        EXPECT(status == WEFT_OK && logits.data == own_logits.data, "not the layer's logits");
    else
        EXPECT(status == WEFT_CONFIG, "logits of a layer that gives none");
}

/* A model of its own; `passes` forwards through it. */
static weft_status create(weft_comm *world, weft_model_function build, int passes)
{
    harness h;
    weft_arena arena = {0};
    weft_model_options options = {0};
    int32_t tokens[SEQ * BATCH] = {0};
    char mesh[16];
    EXPECT_OK(harness_options("{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, "
                              "\"num_attention_heads\": 2, \"seq_length\": 6, "
                              "\"vocab_size\": 16}}",
                              &arena, &options));
    snprintf(mesh, sizeof mesh, "tp=%d", weft_comm_size(world));
    weft_status status = harness_create(&h, world, &options, mesh, BATCH, WEFT_F32, build);
    for (int i = 0; i < passes && status == WEFT_OK; i++)
        status = harness_pass(&h, tokens, tokens, false, true);
    if (status == WEFT_OK)
        check_facts(h.model);
    harness_release(&h);
    weft_arena_release(&arena);
    return status;
}

static void expect_bug(weft_status status, const char *text)
{
    EXPECT(status == WEFT_INTERNAL && strstr(weft_error_get()->text, text), "%s",
           weft_error_get()->text);
}

/* A wrong call by the program's own functions is the program's, and no bug of the library's. */
static void expect_wrong_call(weft_status status, const char *whose, const char *text)
{
    char wanted[160];
    snprintf(wanted, sizeof wanted, "a wrong call in this program's %s: ", whose);
    EXPECT(status == WEFT_CONFIG && weft_error_get()->status == WEFT_CONFIG &&
               strstr(weft_error_get()->text, wanted) && strstr(weft_error_get()->text, text),
           "no \"%s\" with \"%s\" in %s", wanted, text, weft_error_get()->text);
}

/* --- sizes and metrics ----------------------------------------------------------------------- */

static weft_status declare(weft_layer *layer, weft_build *build)
{
    weft_parameter *p;
    weft_metric *metrics[2];
    weft_parameter_spec spec = WEFT_ARGS(weft_parameter_spec, .name = "old", .num_dims = 1);
    (void)layer;
    spec.dims[0] = 4;
    spec.struct_bytes = 0;
    expect_bug(weft_build_parameter(build, &spec, &p), "weft_parameter_spec: struct_bytes is 0");
    spec.struct_bytes = offsetof(weft_parameter_spec, no_weight_decay);
    spec.no_weight_decay = true; /* beyond what an older program knows: not read */
    expect_bug(weft_build_parameter(build, &spec, NULL), "old: no place for it was given");
    WEFT_TRY(weft_build_parameter(build, &spec, &p));
    EXPECT(!p->spec->no_weight_decay, "what lies beyond the struct was read");

    WEFT_TRY(weft_build_metric(build, "hits", WEFT_METRIC_SUM, &metrics[0]));
    WEFT_TRY(weft_build_metric(build, "hits", WEFT_METRIC_SUM, &metrics[1]));
    EXPECT(metrics[0] == metrics[1], "one name, two metrics");
    EXPECT(weft_build_metric(build, "hits", WEFT_METRIC_MEAN, &metrics[1]) == WEFT_CONFIG,
           "a sum that is a mean");
    EXPECT(weft_build_metric(build, "the \"hits\"", WEFT_METRIC_SUM, &metrics[1]) == WEFT_CONFIG,
           "a name that is no key");
    expect_bug(weft_build_metric(build, NULL, WEFT_METRIC_SUM, &metrics[1]), "name is NULL");
    expect_bug(weft_build_metric(build, "a", WEFT_METRIC_SUM, NULL), "out is NULL");
    EXPECT(weft_build_metric(build, "a", (weft_metric_kind)7, &metrics[1]) == WEFT_CONFIG,
           "a kind that is none");
    expect_bug(weft_build_child(build, NULL, layer), "weft_build_child: prefix is NULL");
    weft_error_clear();
    expect_bug(weft_build_child(build, "c.", NULL), "weft_build_child: child is NULL");
    return WEFT_OK;
}

static void check_sizes(weft_comm *world)
{
    reset_last();
    last_ops.struct_bytes = 0;
    expect_wrong_call(create(world, build_two, 0), "layer (first)",
                      "weft_layer_ops: struct_bytes is 0");
    reset_last();
    expect_wrong_call(create(world, build_other_options, 0), "build function",
                      "weft_model_options: struct_bytes is 0");
    if (weft_comm_size(world) == 1) {
        last_ops.forward = failing_pass;
        expect_wrong_call(create(world, build_two, 1), "layer (first)", "no function");
        EXPECT(strncmp(weft_error_get()->text, "decoder forward: ", 17) == 0, "%s",
               weft_error_get()->text);
        reset_last();
        inner_ops = first_ops;
        inner_ops.reads_tokens = false;
        inner_ops.kind = "inner";
        inner_ops.forward = failing_pass;
        expect_wrong_call(create(world, build_block, 1), "layer (inner)", "no function");
        EXPECT(strncmp(weft_error_get()->text, "decoder.layers.0.mlp forward: ", 30) == 0, "%s",
               weft_error_get()->text);
    }
    for (null = 0; null < NUM_NULLS; null++)
        expect_wrong_call(create(world, build_with_null, 0), "build function", null_texts[null]);
    EXPECT(create(world, build_headless, 0) == WEFT_CONFIG &&
               strstr(weft_error_get()->text, "multi-token prediction stands behind no head"),
           "%s", weft_error_get()->text);
    reset_last();
    last_ops.init = declare;
    last_ops.struct_bytes = offsetof(weft_layer_ops, is_static); /* before there was one */
    EXPECT_OK(create(world, build_two, 0));
    reset_last();
    last_ops.logits = give_logits;
    last_ops.labels_are_tokens = true;
    EXPECT_OK(create(world, build_two, 0));
    last_ops.width = width_of_4;
    EXPECT(create(world, build_two, 0) == WEFT_CONFIG &&
               strstr(weft_error_get()->text, "made with hidden_size 4, and the model's is 8"),
           "%s", weft_error_get()->text);
}

/* --- sums ------------------------------------------------------------------------------------ */

static weft_status nothing(const void *args)
{
    (void)args;
    return WEFT_OK;
}

static weft_status sum(weft_layer *layer, weft_pass *pass, const weft_tensor *x, weft_tensor *y)
{
    const weft_place *at = weft_pass_coords(pass);
    weft_tensor one;
    (void)layer;
    (void)x;
    (void)y;
    EXPECT(at->tp.at == at->world.at && at->tp.size == weft_pass_shape(pass)->tp &&
               at->tp.size == at->world.size && at->dp.size == 1 && at->pp.at == 0,
           "tp %d of %d", at->tp.at, at->tp.size);
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, 1, 1, &one));
    float *value = one.data;
    *value = (float)(1 + at->tp.at);
    WEFT_TRY(weft_pass_all_reduce(pass, WEFT_AXIS_TP, value, 1, WEFT_F32));
    WEFT_TRY(weft_pass_all_reduce(pass, WEFT_AXIS_DP, value, 1, WEFT_F32));
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    EXPECT(*value == (at->tp.size == 2 ? 3 : 1), "the sum is %g", (double)*value);
    expect_bug(weft_pass_all_reduce(pass, WEFT_AXIS_PP, value, 1, WEFT_F32), "cannot sum over pp");
    expect_bug(weft_pass_all_reduce(pass, WEFT_NUM_AXES, value, 1, WEFT_F32), "no axis");
    expect_bug(weft_pass_all_reduce(pass, WEFT_AXIS_TP, value, 1, (weft_dtype)99), "dtype 99");
    weft_lane *lane = weft_pass_lane(pass);
    expect_bug(weft_pass_all_reduce(pass, WEFT_AXIS_TP, NULL, 1, WEFT_F32), "values is NULL");
    expect_bug(weft_pass_stash(pass, WEFT_F32, 1, 1, NULL), "weft_pass_stash: out is NULL");
    expect_bug(weft_pass_scratch(NULL, WEFT_F32, 1, 1, &one), "weft_pass_scratch: pass is NULL");
    expect_bug(weft_pass_enter(pass, NULL, &one), "weft_pass_enter: x is NULL");
    expect_bug(weft_pass_exit(pass, &one, NULL), "weft_pass_exit: y is NULL");
    expect_bug(weft_gemm(NULL, NULL), "weft_gemm: lane is NULL");
    expect_bug(weft_lane_record(lane, NULL), "weft_lane_record: event is NULL");
    expect_bug(weft_lane_copy(NULL, value, value, 1), "weft_lane_copy: lane is NULL");
    expect_bug(weft_lane_submit(lane, "mine", nothing, NULL, 8), "args is NULL");
    expect_bug(weft_lane_submit(lane, NULL, nothing, NULL, 0), "label is NULL");
    expect_bug(weft_pass_scratch(pass, (weft_dtype)99, 1, 1, &one), "99 is no dtype");
    EXPECT(weft_pass_scratch(pass, WEFT_F32, (size_t)1 << 62, 8, &one) == WEFT_MEMORY &&
               weft_pass_stash(pass, WEFT_F32, (size_t)1 << 62, 1, &one) == WEFT_MEMORY,
           "a size that overflows");
    return WEFT_OK;
}

int main(void)
{
    weft_comm *world;
    int rank, size = 1, local_rank, local_size;
    bool launched = weft_comm_launched(&rank, &size, &local_rank, &local_size);
    EXPECT_OK(launched && size > 1 ? weft_comm_create_world(&world)
                                   : weft_comm_create_self(&world));
    check_sizes(world);
    reset_last();
    last_ops.forward = sum;
    EXPECT_OK(create(world, build_two, 2));
    weft_comm_destroy(world);
    return expect_finish();
}
