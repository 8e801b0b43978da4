/* The checker of layers finds each of a set of faults, and only where they are, and none in layers
 * that are good: Weft's own of every kind, and a user's. Runs with 2 ranks. */
#include <stdlib.h>

#include <weft/weft.h>

#include "layers/check/internal.h"
#include "tests/world.h"
#include "tests/layers/harness.h"
#include "tests/layers/stub.h"

/* --- a layer and a loss that can be wrong -------------------------------------------------- */

typedef enum fault {
    NONE,
    GRADIENT_FORGOTTEN,
    GRADIENT_DOUBLED,
    DX_WITHOUT_WEIGHT,
    DX_IN_PART,
    Y_IN_PART,
    Y_READ_BACK,
    ALWAYS_ADDS,
    ALWAYS_WRITES,
    X_CHANGED,
    DY_CHANGED,
    KEEPS_IN_LAYER,
    SCRATCH_NOT_CLEARED,
    STASH_NOT_SAID,
    PARAMETERS_NOT_SAID,
    SCRATCH_NOT_SAID,
    NO_SUM_OVER_TP,
    LOSS_ON_ALL_RANKS,
    LOSS_NOT_SCALED,
    Y_BEYOND,
    DX_BEFORE,
    GRADIENT_BEYOND,
    STASH_BEYOND,
    SCRATCH_BEYOND,
    STATE_NOT_SAID,
    Y_BEYOND_ON_SECOND,
    X_NOT_AWAITED,
    DY_NOT_AWAITED,
    METRIC_IN_PART,
    METRIC_NOT_AWAITED,
    NUM_FAULTS
} fault;
static fault now;

static const struct {
    const char *name;
    const char *wrong[4]; /* the checks that say so, all of them */
} expected[NUM_FAULTS] = {
    [NONE] = {"none", {0}},
    [GRADIENT_FORGOTTEN] = {"gradient forgotten", {"gradient of w:"}},
    [GRADIENT_DOUBLED] = {"gradient doubled", {"gradient of w:"}},
    [DX_WITHOUT_WEIGHT] = {"dx without the weight", {"gradient of x:"}},
    [DX_IN_PART] = {"dx in part", {"written: 16 of 128 elements of dx"}},
    [Y_IN_PART] = {"y in part", {"written: 16 of 128 elements of y"}},
    [Y_READ_BACK] = {"y read in backward", {"written: 16 gradients"}},
    [ALWAYS_ADDS] = {"overwrite ignored", {"overwrite: gradient of w:"}},
    [ALWAYS_WRITES] = {"always overwrites", {"add: gradient of w:"}},
    [X_CHANGED] = {"x changed", {"kept: x is"}},
    [DY_CHANGED] = {"dy changed", {"kept: dy is"}},
    [KEEPS_IN_LAYER] = {"kept in the layer", {"in flight: gradient of w differs"}},
    [SCRATCH_NOT_CLEARED] = {"scratch not cleared", {"again: y differs"}},
    [STASH_NOT_SAID] = {"stash not said",
                        {"describe: activation_bytes says 0, a pass takes 512",
                         "describe at tp=2: activation_bytes says 0, a pass takes 512",
                         "describe at tp=2,sp=1: activation_bytes says 0, a pass takes 256"}},
    [PARAMETERS_NOT_SAID] = {"parameters not said",
                             {"describe: num_params says 8, a pass finds 16",
                              "describe at tp=2: num_params", "describe at tp=2,sp=1: num_params"}},
    [SCRATCH_NOT_SAID] = {"scratch not said",
                          {"describe: scratch_bytes says 0, a pass takes 64",
                           "describe at tp=2: scratch_bytes", "describe at tp=2,sp=1: scratch"}},
    [NO_SUM_OVER_TP] = {"no sum over tp", {"tp=2,sp=1: gradient of w:"}},
    [LOSS_ON_ALL_RANKS] = {"loss on all ranks", {"tp=2: the loss:"}},
    [LOSS_NOT_SCALED] = {"loss not scaled", {"gradient of x:"}},
    [Y_BEYOND] = {"beyond y", {"written: forward writes beyond y"}},
    [DX_BEFORE] = {"before dx", {"written: backward writes beyond dx"}},
    [GRADIENT_BEYOND] = {"beyond a gradient", {"written: backward writes beyond a gradient"}},
    [STASH_BEYOND] = {"beyond stash", {"written: forward writes beyond a piece of the stash"}},
    [SCRATCH_BEYOND] = {"beyond scratch", {"written: forward writes beyond a piece of scratch"}},
    [STATE_NOT_SAID] =
        {"state not said",
         {"written: forward writes beyond a layer's state: ops->state_bytes is too small"}},
    [Y_BEYOND_ON_SECOND] = {"beyond y on rank 1",
                            {"tp=2: forward writes beyond y", "tp=2,sp=1: forward writes"}},
    [X_NOT_AWAITED] = {"x not awaited", {"lane: y differs"}},
    [DY_NOT_AWAITED] = {"dy not awaited", {"lane: dx differs"}},
    [METRIC_IN_PART] = {"a metric of a rank's rows", {"tp=2,sp=1: metric size: "}},
    [METRIC_NOT_AWAITED] = {"a metric before the lane", {"lane: metric size differs"}},
};

/* y = w x, element by element; w [H]. */
typedef struct gate {
    weft_layer base;
    weft_parameter *w;
    weft_metric *size; /* the mean of x squared */
    weft_tensor kept;  /* a fault: of the last forward */
} gate;

typedef struct gate_state {
    weft_tensor x, y, copy;
} gate_state;

static bool sums_over_tp(const weft_shape *shape)
{
    return shape->sequence_parallel && now != METRIC_IN_PART && now != X_NOT_AWAITED;
}

static void gate_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    (void)layer;
    size_t rows = shape->seq * shape->batch / (size_t)(shape->sequence_parallel ? shape->tp : 1);
    out->num_params = now == PARAMETERS_NOT_SAID ? shape->hidden / 2 : shape->hidden;
    out->local_params = shape->hidden;
    out->param_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    out->activation_bytes = now == STASH_NOT_SAID ? 0 : rows * shape->hidden * 4;
    out->scratch_bytes = now == SCRATCH_NOT_SAID ? 0 : shape->hidden * 4;
    out->tp_forward_bytes = sums_over_tp(shape) ? sizeof(float) : 0;
}

static weft_status gate_init(weft_layer *layer, weft_build *build)
{
    const weft_shape *shape = weft_build_shape(build);
    bool partial = shape->sequence_parallel && now != NO_SUM_OVER_TP;
    WEFT_TRY(weft_build_metric(build, "size", WEFT_METRIC_MEAN, &((gate *)layer)->size));
    return weft_build_parameter(build,
                                &WEFT_ARGS(weft_parameter_spec, .name = "w", .num_dims = 1,
                                           .dims = {shape->hidden}, .init = WEFT_INIT_ONE,
                                           .sum_over_tp = partial),
                                &((gate *)layer)->w);
}

static float sum_squares(const weft_tensor *x)
{
    double sum = 0;
    for (size_t i = 0; i < weft_tensor_count(x); i++)
        sum += (double)((const float *)x->data)[i] * (double)((const float *)x->data)[i];
    return (float)sum;
}

/* By scratch of one row, before it has another use. */
static weft_status add_metric(const gate *g, weft_pass *pass, float own, float *scratch)
{
    const weft_shape *shape = weft_pass_shape(pass);
    *scratch = own;
    if (sums_over_tp(shape))
        WEFT_TRY(weft_pass_all_reduce(pass, WEFT_AXIS_TP, scratch, 1, WEFT_F32));
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    g->size->sum += (double)*scratch;
    g->size->count += (double)(shape->seq * shape->batch);
    return WEFT_OK;
}

static weft_status gate_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    gate *g = (gate *)layer;
    gate_state *state = weft_pass_state(pass, layer);
    const float *w = g->w->weight.data;
    size_t rows = x->dims[0], cols = x->dims[1], mark = weft_pass_mark(pass);
    weft_tensor sums;
    float size = sum_squares(x);
    if (now != X_NOT_AWAITED)
        WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    if (now != METRIC_NOT_AWAITED)
        size = sum_squares(x);
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, rows, cols, &state->copy));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, 1, cols, &sums));
    float *from = x->data, *to = y->data, *sum = sums.data;
    if (now != X_NOT_AWAITED)
        WEFT_TRY(add_metric(g, pass, size, sum));
    if (now != SCRATCH_NOT_CLEARED)
        memset(sum, 0, cols * sizeof *sum);
    for (size_t i = 0; i < (now == Y_IN_PART ? rows - 1 : rows) * cols; i++)
        to[i] = from[i] * w[i % cols] + 0 * sum[i % cols];
    memcpy(state->copy.data, from, rows * cols * sizeof *from);
    if (now == X_CHANGED)
        from[0] = 1;
    if (now == Y_BEYOND || (now == Y_BEYOND_ON_SECOND && weft_pass_coords(pass)->tp.at == 1))
        to[rows * cols + 3] = 1;
    if (now == STASH_BEYOND)
        ((float *)state->copy.data)[rows * cols] = 1;
    if (now == SCRATCH_BEYOND)
        sum[cols + 15] = 1;
    state->x = *x;
    state->y = *y;
    g->kept = *x;
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status gate_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    gate *g = (gate *)layer;
    gate_state *state = weft_pass_state(pass, layer);
    const float *w = g->w->weight.data;
    const weft_tensor *x = now == KEEPS_IN_LAYER ? &g->kept
                           : now == Y_READ_BACK  ? &state->y
                                                 : &state->copy;
    size_t rows = dy->dims[0], cols = dy->dims[1];
    float *from = dy->data, *to = dx->data;
    if (now != DY_NOT_AWAITED)
        WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    if (now == DX_BEFORE)
        *(to - 4) = 1;
    if (now == GRADIENT_BEYOND)
        g->w->grad[cols + 8] = 1;
    for (size_t i = 0; i < (now == DX_IN_PART ? rows - 1 : rows) * cols; i++)
        to[i] = from[i] * (now == DX_WITHOUT_WEIGHT ? 1 : w[i % cols]);
    bool overwrite = now == ALWAYS_WRITES || (weft_pass_overwrite(pass) && now != ALWAYS_ADDS);
    for (size_t c = 0; c < cols && now != GRADIENT_FORGOTTEN; c++) {
        double sum = 0;
        for (size_t r = 0; r < rows; r++)
            sum += (double)from[r * cols + c] * (double)((const float *)x->data)[r * cols + c];
        g->w->grad[c] =
            (overwrite ? 0 : g->w->grad[c]) + (float)(now == GRADIENT_DOUBLED ? 2 * sum : sum);
    }
    if (now == GRADIENT_FORGOTTEN && overwrite)
        memset(g->w->grad, 0, cols * sizeof(float));
    if (now == DY_CHANGED)
        from[0] = 1;
    return WEFT_OK;
}

static weft_layer_ops gate_ops = {.struct_bytes = sizeof(weft_layer_ops),
                                  .kind = "gate",
                                  .state_bytes = sizeof(gate_state),
                                  .describe = gate_describe,
                                  .init = gate_init,
                                  .forward = gate_forward,
                                  .backward = gate_backward,
                                  .destroy = stub_destroy};

/* A last layer: half the mean square of its rows. */
static weft_status loss_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)y;
    const float *values = x->data;
    const weft_shape *shape = weft_pass_shape(pass);
    bool counts = shape->sequence_parallel || now == LOSS_ON_ALL_RANKS ||
                  weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    *(weft_tensor *)weft_pass_state(pass, layer) = *x;
    WEFT_TRY(weft_lane_sync(weft_pass_lane(pass)));
    for (size_t i = 0; i < weft_tensor_count(x) && counts; i++)
        weft_pass_metrics(pass)->loss_sum += 0.5 * (double)values[i] * (double)values[i];
    return WEFT_OK;
}

static weft_status loss_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    const weft_tensor *x = weft_pass_state(pass, layer);
    const weft_shape *shape = weft_pass_shape(pass);
    float scale = now == LOSS_NOT_SCALED ? 1 : weft_pass_loss_scale(pass);
    for (size_t i = 0; i < weft_tensor_count(x); i++)
        ((float *)dx->data)[i] =
            scale * ((const float *)x->data)[i] / (float)(shape->seq * shape->batch);
    return WEFT_OK;
}

static const weft_layer_ops loss_ops = {.struct_bytes = sizeof(weft_layer_ops),
                                        .kind = "squares",
                                        .state_bytes = sizeof(weft_tensor),
                                        .describe = stub_describe,
                                        .init = stub_init,
                                        .forward = loss_forward,
                                        .backward = loss_backward,
                                        .destroy = stub_destroy,
                                        .makes_loss = true};

static weft_status build_own(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add(model, stub_create(&gate_ops, sizeof(gate))));
    return weft_model_add(model, stub_create(&loss_ops, sizeof(weft_layer)));
}

/* --- a layer with a lane of its own --------------------------------------------------------- */

/* y = x + kept, where another lane copies x to `kept`; it may forget that lane. */
typedef struct copier {
    weft_layer base;
    weft_lane *lane;
    weft_event *begun, *copied;
} copier;
static bool forgets;

static weft_status copier_init(weft_layer *layer, weft_build *build)
{
    copier *c = (copier *)layer;
    weft_device *device = weft_build_device(build);
    WEFT_TRY(weft_lane_create(device, 0, "copies", &c->lane));
    WEFT_TRY(weft_event_create(device, &c->begun));
    return weft_event_create(device, &c->copied);
}

static weft_status copier_run(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                              weft_tensor *y)
{
    const copier *c = (const copier *)layer;
    weft_lane *lane = weft_pass_lane(pass);
    const size_t mark = weft_pass_mark(pass);
    weft_tensor kept;
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, x->dims[0], x->dims[1], &kept));
    WEFT_TRY(weft_lane_record(lane, c->begun));
    WEFT_TRY(weft_lane_wait(c->lane, c->begun));
    WEFT_TRY(weft_lane_copy(c->lane, kept.data, x->data, weft_tensor_bytes(x)));
    WEFT_TRY(weft_lane_record(c->lane, c->copied));
    if (!forgets)
        WEFT_TRY(weft_lane_wait(lane, c->copied));
    weft_pass_release(pass, mark);
    return weft_add(lane,
                    &WEFT_ARGS(weft_add_args, .count = weft_tensor_count(x), .dtype = x->dtype,
                               .a = x->data, .b = kept.data, .y = y->data));
}

static void copier_destroy(weft_layer *layer)
{
    copier *c = (copier *)layer;
    weft_lane_destroy(c->lane);
    weft_event_destroy(c->begun);
    weft_event_destroy(c->copied);
    free(c);
}

static const weft_layer_ops copier_ops = {.struct_bytes = sizeof(weft_layer_ops),
                                          .kind = "copier",
                                          .init = copier_init,
                                          .forward = copier_run,
                                          .backward = copier_run,
                                          .destroy = copier_destroy};

static weft_status build_copier(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add(model, stub_create(&copier_ops, sizeof(copier))));
    return weft_model_add_head(model, options);
}

/* The gate inside a block. */
static weft_status build_inside(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                  stub_create(&gate_ops, sizeof(gate))));
    return weft_model_add_head(model, options);
}

/* --- the test ------------------------------------------------------------------------------ */

/* model: keys beside small sizes, or behind "{" all of them. */
static int check(weft_comm *world, const char *model, weft_expert_binding binding, weft_dtype dtype,
                 const char *layer, weft_model_function build, char **out_text)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    char json[512];
    size_t bytes;
    int wrong = -1;
    snprintf(json, sizeof json, "{\"model\": %s%s}}",
             model[0] == '{' ? ""
                             : "{\"num_layers\": 1, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
                               "\"num_attention_heads\": 2, \"seq_length\": 4, \"vocab_size\": 29",
             model);
    EXPECT_OK(harness_options(json, &arena, &options));
    FILE *out = open_memstream(out_text, &bytes);
    weft_check_setup setup = {.options = &options,
                              .micro_batch_size = 2,
                              .binding = binding,
                              .dtype = dtype,
                              .layer = layer,
                              .out = out};
    EXPECT_OK(weft_check_run(world, &setup, build, &wrong));
    fclose(out);
    weft_arena_release(&arena);
    return wrong;
}

/* Each expected check is wrong, and no other. */
static void check_fault(weft_comm *world, fault f)
{
    char *text;
    now = f;
    gate_ops.state_bytes = f == STATE_NOT_SAID ? 0 : sizeof(gate_state);
    int wrong = check(world, "", WEFT_BINDING_TP, WEFT_F32, NULL, build_own, &text), count = 0;
    now = NONE;
    while (count < 4 && expected[f].wrong[count]) {
        char line[128];
        snprintf(line, sizeof line, "  WRONG  %s", expected[f].wrong[count++]);
        EXPECT(weft_comm_rank(world) > 0 || strstr(text, line), "%s: no \"%s\" in\n%s",
               expected[f].name, line, text);
    }
    EXPECT(wrong == count, "%s: %d are wrong, not %d:\n%s", expected[f].name, wrong, count, text);
    free(text);
}

static void check_good(weft_comm *world, const char *model, weft_expert_binding binding,
                       weft_dtype dtype, const char *kind)
{
    char *text;
    int wrong = check(world, model, binding, dtype, NULL, NULL, &text);
    EXPECT(wrong == 0, "%s: %d are wrong:\n%s", model, wrong, text);
    EXPECT(weft_comm_rank(world) > 0 || (strstr(text, kind) && strstr(text, "ok     tp=2,sp=1: ")),
           "%s: no %s on two ranks in\n%s", model, kind, text);
    free(text);
}

/* A block is checked with the layers inside it, which come first: a fault shows under the name of
 * the one that has it. */
static void check_inside(weft_comm *world)
{
    char *text;
    now = PARAMETERS_NOT_SAID;
    int wrong = check(world, "", WEFT_BINDING_TP, WEFT_F32, "block", build_inside, &text);
    now = NONE;
    const char *inner = strstr(text, "decoder.layers.0.mlp (gate)\n");
    const char *wrongs = strstr(text, "WRONG"), *block = strstr(text, "decoder.layers.0 (block)\n");
    EXPECT(wrong == 3, "%d are wrong, not three of the gate", wrong);
    EXPECT(weft_comm_rank(world) > 0 ||
               (inner && wrongs && block && inner < wrongs && wrongs < block &&
                strstr(text, "decoder.layers.0.self_attention (")),
           "a block with a gate:\n%s", text);
    free(text);
}

/* A forgotten wait has a name, whether or not the lanes ran in a wrong order here. */
static void check_own_lane(weft_comm *world)
{
    for (int f = 0; f < 2; f++) {
        char *text;
        forgets = f;
        const int wrong =
            check(world, "", WEFT_BINDING_TP, WEFT_F32, "copier", build_copier, &text);
        const char *line = f ? "  WRONG  races: lane copies: copy of own writes to; lane compute: "
                               "add of own reads b; 512 bytes are the same, and no event orders "
                               "them; record an event behind the first"
                             : "  ok     races";
        EXPECT(wrong == f, "%d are wrong:\n%s", wrong, text);
        EXPECT(weft_comm_rank(world) > 0 ||
                   (strstr(text, "decoder.layers.0 (copier)") && strstr(text, line)),
               "no \"%s\" in\n%s", line, text);
        free(text);
    }
}

static void check_child_not_given(void)
{
    static const char says[] =
        "runs a layer of kind copier that its init has not given to weft_build_child";
    weft_layer *child = stub_create(&copier_ops, sizeof(copier));
    EXPECT_ERROR(weft_layer_forward(child, NULL, NULL, NULL), WEFT_CONFIG, says);
    EXPECT_ERROR(weft_layer_backward(child, NULL, NULL, NULL), WEFT_CONFIG, says);
    EXPECT_ERROR(weft_layer_forward(NULL, NULL, NULL, NULL), WEFT_INTERNAL, "child is NULL");
    free(child);
}

int main(void)
{
    weft_comm *world = world_begin(2);
    for (int f = NONE; f < NUM_FAULTS; f++)
        check_fault(world, (fault)f);
    check_inside(world);
    check_child_not_given();
    check_own_lane(world);
    check_good(world, ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1", WEFT_BINDING_TP,
               WEFT_BF16, "(mlp)");
    check_good(world,
               ", \"swiglu\": true, \"normalization\": \"RMSNorm\", \"disable_bias_linear\": true, "
               "\"position_embedding_type\": \"rope\", "
               "\"untie_embeddings_and_output_weights\": true",
               WEFT_BINDING_TP, WEFT_F32, "(head)");
    check_good(world, ", \"num_query_groups\": 1", WEFT_BINDING_TP, WEFT_F32, "(attention)");
    check_good(
        world,
        ", \"num_query_groups\": 1, \"qk_layernorm\": true, \"position_embedding_type\": \"rope\"",
        WEFT_BINDING_TP, WEFT_F32, "(attention)");
    check_good(world,
               ", \"normalization\": \"RMSNorm\", \"num_query_groups\": 1, \"qk_layernorm\": true, "
               "\"qk_layernorm_across_heads\": true, \"position_embedding_type\": \"rope\", "
               "\"rotary_interleaved\": true",
               WEFT_BINDING_TP, WEFT_BF16, "(attention)");
    check_good(world,
               ", \"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "
               "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8, \"q_lora_rank\": 20, "
               "\"position_embedding_type\": \"rope\"",
               WEFT_BINDING_TP, WEFT_F32, "(attention)");
    check_good(world,
               ", \"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "
               "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8, \"normalization\": \"RMSNorm\"",
               WEFT_BINDING_TP, WEFT_BF16, "(attention)");
    check_good(world,
               ", \"window_size\": 3, \"softmax_type\": \"learnable\", "
               "\"attn_logit_softcapping\": 2.0, \"position_embedding_type\": \"rope\"",
               WEFT_BINDING_TP, WEFT_F32, "(attention)");
    check_good(world,
               ", \"norm_placement\": \"sandwich\", \"apply_layernorm_1p\": true, "
               "\"geglu\": true",
               WEFT_BINDING_TP, WEFT_F32, "(block)");
    check_good(world,
               ", \"num_experts\": 4, \"add_expert_bias\": true, \"quick_geglu\": true, "
               "\"glu_linear_offset\": 1.0",
               WEFT_BINDING_TP, WEFT_F32, "(moe)");
    for (int b = 0; b < 2; b++)
        check_good(world,
                   ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.1, \"moe_z_loss_coeff\": "
                   "0.1, "
                   "\"moe_router_score_function\": \"sigmoid\", \"moe_router_num_groups\": 2, "
                   "\"moe_router_group_topk\": 1, \"moe_router_enable_expert_bias\": true, "
                   "\"moe_shared_expert_intermediate_size\": 8, \"moe_shared_expert_gate\": "
                   "true, "
                   "\"moe_router_bias\": true",
                   b ? WEFT_BINDING_DP : WEFT_BINDING_TP, WEFT_F32, "(moe)");
    for (int b = 0; b < 2; b++)
        check_good(world,
                   ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.1, "
                   "\"moe_z_loss_coeff\": 0.1, "
                   "\"moe_shared_expert_intermediate_size\": 8",
                   b ? WEFT_BINDING_DP : WEFT_BINDING_TP, WEFT_F32, "(moe)");
    /* To one row two experts are nearly equal: a step of either length crosses the choice. */
    check_good(world,
               "{\"num_layers\": 1, \"num_experts\": 4, \"hidden_size\": 64, "
               "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 61, "
               "\"position_embedding_type\": \"rope\"",
               WEFT_BINDING_TP, WEFT_F32, "(moe)");
    check_good(world,
               ", \"num_experts\": 4, \"mtp_num_layers\": 2, \"mtp_loss_scaling_factor\": 0.3, "
               "\"position_embedding_type\": \"rope\"",
               WEFT_BINDING_TP, WEFT_F32, "(mtp)");
    return world_finish(world);
}
