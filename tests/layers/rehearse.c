/* A program's own layer without describe is rehearsed: its operations, stash and scratch are those
 * of its functions. One that touches device memory on the host ends with a line that names it. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "layers/describe/rehearse.h"
#include "tests/expect.h"
#include "tests/layers/stub.h"

typedef struct square { /* y = x W^T, with W [H, H], whole on each rank */
    weft_layer base;
    weft_parameter *weight;
} square;

static bool touches; /* the host reads x */

static weft_status square_init(weft_layer *layer, weft_build *build)
{
    const size_t hidden = weft_build_shape(build)->hidden;
    return weft_build_parameter(build,
                                &WEFT_ARGS(weft_parameter_spec, .name = "weight", .num_dims = 2,
                                           .dims = {hidden, hidden}, .init_std = 0.02f),
                                &((square *)layer)->weight);
}

static weft_status square_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    const square *s = (square *)layer;
    weft_tensor kept, scratch;
    const size_t mark = weft_pass_mark(pass);
    if (touches)
        return ((const volatile float *)x->data)[0] > 0 ? WEFT_OK : WEFT_CONFIG;
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, 3, 5, &kept));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, 100, 1, &scratch));
    WEFT_TRY(weft_gemm(weft_pass_lane(pass),
                       &WEFT_ARGS(weft_gemm_args, .m = x->dims[0], .n = x->dims[1], .k = x->dims[1],
                                  .transpose_b = true, .dtype = x->dtype, .c_dtype = x->dtype,
                                  .a = x->data, .b = s->weight->weight.data, .c = y->data)));
    weft_pass_release(pass, mark);
    return weft_pass_all_reduce(pass, WEFT_AXIS_TP, y->data, weft_tensor_count(y), y->dtype);
}

static weft_status square_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    const square *s = (square *)layer;
    return weft_gemm(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_gemm_args, .m = dy->dims[0], .n = dy->dims[1],
                                .k = dy->dims[1], .dtype = dy->dtype, .c_dtype = dy->dtype,
                                .a = dy->data, .b = s->weight->weight.data, .c = dx->data));
}

static const weft_layer_ops square_ops = {.struct_bytes = sizeof square_ops,
                                          .kind = "square",
                                          .init = square_init,
                                          .forward = square_forward,
                                          .backward = square_backward,
                                          .destroy = stub_destroy};

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add(model, stub_create(&square_ops, sizeof(square))));
    return weft_model_add_head(model, options);
}

static weft_status build_inside(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                  stub_create(&square_ops, sizeof(square))));
    return weft_model_add_head(model, options);
}

static const weft_model_options options = {.struct_bytes = sizeof options,
                                           .num_layers = 1,
                                           .hidden_size = 16,
                                           .ffn_hidden_size = 64,
                                           .num_attention_heads = 4,
                                           .num_query_groups = 4,
                                           .kv_channels = 4,
                                           .seq_length = 8,
                                           .max_position_embeddings = 8,
                                           .vocab_size = 32,
                                           .norm_epsilon = 1e-5,
                                           .init_method_std = 0.02};
static const weft_shape shape = {.seq = 8,
                                 .batch = 3,
                                 .hidden = 16,
                                 .vocab = 32,
                                 .tp = 2,
                                 .cp = 1,
                                 .ep = 1,
                                 .etp = 1,
                                 .pp = 1,
                                 .dtype = WEFT_F32,
                                 .training = true};

static const weft_operation *find(const weft_description *d, weft_operation_kind kind,
                                  weft_phase phase)
{
    for (int i = 0; i < d->num_operations; i++)
        if (d->operations[i].kind == kind && d->operations[i].phase == phase)
            return &d->operations[i];
    return NULL;
}

static weft_status build_block(weft_model *model, const weft_model_options *of)
{
    WEFT_TRY(weft_model_add_embedding(model, of));
    WEFT_TRY(weft_model_add_block(model, of, weft_attention_create(of), weft_mlp_create(of)));
    return weft_model_add_head(model, of);
}

/* A family's function may make what the options describe, and other layers: what is remembered of
 * the first is not taken for the second. */
static void check_family(void)
{
    const weft_model_function functions[] = {NULL, build_block, build, build_block};
    weft_model_options named = options;
    int operations[4] = {0};
    named.family = "squares";
    for (int i = 0; i < 4; i++) {
        weft_description *all;
        int count;
        EXPECT_OK(weft_rehearse_model(&named, NULL, &shape, functions[i], &all, &count));
        EXPECT(count == 3, "%d layers", count);
        operations[i] = all[1].num_operations;
        weft_descriptions_release(all, count);
    }
    EXPECT(operations[2] == 3 && operations[0] > 3, "%d operations", operations[2]);
    EXPECT(operations[1] == operations[0] && operations[3] == operations[0], "another block");
}

static void check_own(void)
{
    enum { ROWS = 24 };
    weft_description *all;
    int count;
    EXPECT_OK(weft_rehearse_model(&options, NULL, &shape, build, &all, &count));
    EXPECT(count == 3, "%d layers", count);
    const weft_description *d = &all[1];
    const weft_operation *forward = find(d, WEFT_OPERATION_GEMM, WEFT_PHASE_FORWARD),
                         *backward = find(d, WEFT_OPERATION_GEMM, WEFT_PHASE_INPUT_GRADIENT),
                         *sum = find(d, WEFT_OPERATION_COLLECTIVE, WEFT_PHASE_FORWARD);
    EXPECT(!d->coarse && d->num_operations == 3 && forward && backward && sum, "%d operations",
           d->num_operations);
    EXPECT(forward->m == ROWS && forward->n == 16 && forward->flops == 2 * ROWS * 16 * 16 &&
               strcmp(forward->module, "own") == 0,
           "another product");
    EXPECT(sum->axis == WEFT_AXIS_TP && sum->bytes == ROWS * 16 * sizeof(float), "%d bytes summed",
           (int)sum->bytes);
    EXPECT(d->cost.activation_bytes == 64 + ROWS * 16 * sizeof(float) &&
               d->cost.scratch_bytes == 448 && d->cost.num_params == 256,
           "%d bytes kept, %d of scratch, %d parameters", (int)d->cost.activation_bytes,
           (int)d->cost.scratch_bytes, (int)d->cost.num_params);
    weft_descriptions_release(all, count);
}

/* What a rehearsal remembers does not take one list of MoE layers for another at its place. */
static void check_lists(void)
{
    int64_t frequencies[2] = {1, 0};
    weft_model_options o = options;
    weft_shape one = shape;
    weft_description *all;
    int count;
    one.tp = 1;
    o.num_layers = 2;
    o.num_experts = 4;
    o.moe_router_topk = 1;
    o.moe_ffn_hidden_size = 64;
    o.moe_layer_freq = (weft_int_list){.values = frequencies, .count = 2, .is_array = true};
    for (int first = 1; first >= 0; first--) {
        frequencies[0] = first;
        frequencies[1] = !first;
        EXPECT_OK(weft_rehearse_model(&o, NULL, &one, NULL, &all, &count));
        EXPECT(weft_description_has_experts(&all[1]) == first &&
                   weft_description_has_experts(&all[2]) == !first,
               "another list of MoE layers");
        weft_descriptions_release(all, count);
    }
}

/* Partitions by peers: balanced rows go to the groups ahead, and as many come from those behind. */
static void check_peers(void)
{
    weft_model_options o = options;
    weft_shape by_peers = shape;
    weft_description *all;
    int count;
    uint64_t bytes[2] = {0}; /* to the experts, and home */
    o.num_experts = 8;
    o.moe_router_topk = 2;
    o.moe_ffn_hidden_size = 16;
    by_peers.tp = 1;
    by_peers.ep = by_peers.moe_partitions = 4;
    by_peers.binding = by_peers.moe_peer_group = 1;
    EXPECT_OK(weft_rehearse_model(&o, NULL, &by_peers, NULL, &all, &count));
    for (int i = 0; i < all[1].num_operations; i++) {
        const weft_operation *op = &all[1].operations[i];
        if (op->kind == WEFT_OPERATION_COLLECTIVE && op->phase == WEFT_PHASE_FORWARD &&
            op->collective == WEFT_COLLECTIVE_MESSAGE)
            bytes[strcmp(op->module, "combine") == 0] += op->bytes;
    }
    EXPECT(bytes[0] == 24 * 2 * 16 * sizeof(float) && bytes[1] == bytes[0],
           "%d bytes to the experts, %d home", (int)bytes[0], (int)bytes[1]);
    weft_descriptions_release(all, count);
}

/* In a child of this process, which ends. */
static void check_touching(weft_model_function of, const char *line)
{
    int ends[2], state;
    char text[512] = "";
    EXPECT(pipe(ends) == 0, "no pipe");
    const pid_t child = fork();
    if (child == 0) {
        weft_description *all;
        int count;
        dup2(ends[1], STDERR_FILENO);
        touches = true;
        (void)!weft_rehearse_model(&options, NULL, &shape, of, &all, &count);
        _exit(0);
    }
    close(ends[1]);
    EXPECT(read(ends[0], text, sizeof text - 1) >= 0, "nothing is said");
    close(ends[0]);
    EXPECT(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 2,
           "state %d", state);
    EXPECT(strncmp(text, line, strlen(line)) == 0, "%s", text);
}

int main(void)
{
    check_own();
    check_family();
    check_lists();
    check_peers();
    check_touching(build, "weft: decoder.layers.0 forward reads or writes device memory");
    check_touching(build_inside,
                   "weft: decoder.layers.0.mlp forward reads or writes device memory");
    return expect_finish();
}
