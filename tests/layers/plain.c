/* Plain kernels: what a layer keeps is what Korthikanti et al. 2022 count, of every row of their
 * table 2; and what experts of published runs send, multiply and pad. */
#include <string.h>

#include "layers/describe/rehearse.h"
#include "layers/pass/recompute.h"
#include "tests/expect.h"

static const weft_model_options gpt = {.struct_bytes = sizeof gpt,
                                       .num_layers = 4,
                                       .hidden_size = 1024,
                                       .ffn_hidden_size = 4096,
                                       .num_attention_heads = 16,
                                       .num_query_groups = 16,
                                       .kv_channels = 64,
                                       .seq_length = 512,
                                       .vocab_size = 32000,
                                       .max_position_embeddings = 512,
                                       .untie_embeddings_and_output_weights = true,
                                       .num_experts = 8,
                                       .moe_router_topk = 2};

static weft_shape shape_of(int tp, bool sequence_parallel)
{
    return (weft_shape){.seq = 512,
                        .batch = 4,
                        .hidden = 1024,
                        .vocab = 32000,
                        .tp = tp,
                        .cp = 1,
                        .ep = 1,
                        .etp = 1,
                        .pp = 1,
                        .binding = 1,
                        .sequence_parallel = sequence_parallel,
                        .dtype = WEFT_F16,
                        .training = true,
                        .plain_kernels = WEFT_PLAIN_2022};
}

static weft_layer *block_of(const weft_model_options *o)
{
    return weft_block_create(o, weft_attention_create(o), weft_mlp_create(o));
}

/* The caller releases the description. */
static weft_description described(const weft_model_options *o, const weft_shape *shape,
                                  weft_layer_function make)
{
    weft_description d = {0};
    EXPECT_OK(weft_rehearse_alone(o, shape, make, &d));
    EXPECT(d.keeps_input && !d.coarse && d.num_held > 0, "no whole list");
    return d;
}

static weft_layer_cost cost_of(const weft_shape *shape, weft_layer_function make)
{
    weft_description d = described(&gpt, shape, make);
    const weft_layer_cost cost = d.cost;
    weft_description_release(&d);
    return cost;
}

/* Bytes of a layer by the paper's equations 1, 2, 4 and 6. */
static double paper_bytes(const weft_shape *shape, bool recomputes)
{
    const double s = (double)shape->seq, b = (double)shape->batch, h = (double)shape->hidden;
    const double a = (double)gpt.num_attention_heads, t = shape->tp;
    const double scores = recomputes ? 0 : 5 * a * s / h;
    return shape->sequence_parallel ? s * b * h / t * (34 + scores)
                                    : s * b * h * (10 + 24 / t + scores / t);
}

static void check_layer(int tp, bool sequence_parallel, bool recomputes)
{
    weft_shape shape = shape_of(tp, sequence_parallel);
    shape.recompute = recomputes ? WEFT_RECOMPUTE_MODULE(CORE_ATTN) : 0;
    const weft_layer_cost cost = cost_of(&shape, block_of);
    EXPECT((double)cost.activation_bytes == paper_bytes(&shape, recomputes),
           "tp %d, sp %d, selective %d: %g bytes instead of %g", tp, sequence_parallel, recomputes,
           (double)cost.activation_bytes, paper_bytes(&shape, recomputes));
    EXPECT((double)cost.recomputed_bytes == (recomputes ? 5.0 * 16 / tp * 512 * 512 * 4 : 0.0),
           "made again: %g bytes", (double)cost.recomputed_bytes);
}

/* The paper's section 4.3: the embedding's mask; the last norm's input and output, the logits in
 * fp32. */
static void check_ends(int tp)
{
    const weft_shape shape = shape_of(tp, true);
    const double rows = 512.0 * 4 / tp;
    const weft_layer_cost first = cost_of(&shape, weft_embedding_create);
    const weft_layer_cost last = cost_of(&shape, weft_head_create);
    EXPECT((double)first.activation_bytes == rows * 1024, "embedding: %g",
           (double)first.activation_bytes);
    EXPECT((double)last.activation_bytes == rows * 1024 * 4 + 4 * 512.0 * 4 * 32000 / tp,
           "head: %g", (double)last.activation_bytes);
}

/* --- years ----------------------------------------------------------------------------------- */

typedef struct year_sums {
    double norms[2];   /* bytes, forward and backward */
    double others;     /* of all other kernels */
    int beside, alone; /* backward's reductions of column-parallel layers */
} year_sums;

static year_sums sums_of_year(weft_plain_year year, int tp)
{
    weft_shape shape = shape_of(tp, false);
    year_sums sums = {0};
    shape.plain_kernels = year;
    weft_description d = described(&gpt, &shape, block_of);
    for (int i = 0; i < d.num_operations; i++) {
        const weft_operation *op = &d.operations[i];
        const bool backward = op->phase != WEFT_PHASE_FORWARD;
        if (op->kind == WEFT_OPERATION_MEMORY)
            *(strstr(op->module, "layernorm") ? &sums.norms[backward] : &sums.others) +=
                (double)op->bytes;
        if (op->kind == WEFT_OPERATION_COLLECTIVE && backward)
            *(op->beside ? &sums.beside : &sums.alone) += 1;
    }
    weft_description_release(&d);
    return sums;
}

/* Until the summer of 2021 both of a layer's reductions of backward stand alone, and norms read
 * rows twice. */
static void check_years(void)
{
    const double rows = 2.0 * 512 * 4 * 1024 * 2; /* bytes of both norms' */
    const year_sums old = sums_of_year(WEFT_PLAIN_2021, 8),
                    later = sums_of_year(WEFT_PLAIN_2022, 8);
    EXPECT(old.beside == 0 && old.alone == 2 && later.beside == 2 && later.alone == 0,
           "%d and %d beside products", old.beside, later.beside);
    EXPECT(later.norms[0] == 2 * rows && later.norms[1] == 3 * rows, "norms: %g and %g bytes",
           later.norms[0], later.norms[1]);
    EXPECT(old.norms[0] == 3 * rows && old.norms[1] == 6 * rows, "older norms: %g and %g bytes",
           old.norms[0], old.norms[1]);
    EXPECT(old.others == later.others, "other kernels: %g and %g bytes", old.others, later.others);
    EXPECT(sums_of_year(WEFT_PLAIN_2021, 1).alone == 0, "one rank reduces");
}

/* --- experts --------------------------------------------------------------------------------- */

typedef struct moe_sums {
    double sent, multiplied, masks; /* bytes over EP, FLOPs of experts, of products with masks */
} moe_sums;

static moe_sums sums_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_description d = described(o, shape, weft_moe_create);
    moe_sums sums = {0};
    for (int i = 0; i < d.num_operations; i++) {
        const weft_operation *op = &d.operations[i];
        if (op->phase != WEFT_PHASE_FORWARD)
            continue;
        if (op->kind == WEFT_OPERATION_COLLECTIVE && op->axis == WEFT_AXIS_EP)
            sums.sent += (double)op->bytes;
        if (op->kind == WEFT_OPERATION_GEMM && strncmp(op->module, "experts", 7) == 0)
            sums.multiplied += (double)op->flops;
        if (op->kind == WEFT_OPERATION_GEMM && strcmp(op->module, "one_hot") == 0)
            sums.masks += (double)op->flops;
    }
    weft_description_release(&d);
    return sums;
}

static void check_experts(void)
{
    const double tokens = 2048, rows = tokens * 2, row = 1024 * 2;
    weft_model_options o = gpt;
    weft_shape shape = shape_of(1, false);
    shape.ep = 4;
    moe_sums even = sums_of(&o, &shape);
    /* there and back; two products a row; both products with masks of all places */
    EXPECT(even.sent == 2 * rows * row, "%g bytes sent", even.sent);
    EXPECT(even.multiplied == 2 * 2 * rows * 1024 * 4096, "%g FLOPs", even.multiplied);
    EXPECT(even.masks == 2 * 2 * tokens * rows * 1024, "%g FLOPs of masks", even.masks);
    /* The hottest expert's places are everybody's. */
    shape.moe_load = 2;
    moe_sums hot = sums_of(&o, &shape);
    EXPECT(hot.sent == 2 * even.sent && hot.multiplied == 2 * even.multiplied &&
               hot.masks == 2 * even.masks,
           "padded: %g bytes, %g FLOPs", hot.sent, hot.multiplied);
    /* A capacity bounds them, and fills them up where they are not needed. */
    o.moe_expert_capacity_factor = 1.25;
    hot = sums_of(&o, &shape);
    EXPECT_NEAR(hot.sent / even.sent, 1.25, 1e-3);
    /* Tensor-parallel ranks each send all rows. */
    o.moe_expert_capacity_factor = 0;
    shape = shape_of(2, false);
    shape.ep = 4;
    const moe_sums twice = sums_of(&o, &shape);
    EXPECT(twice.sent == even.sent, "%g bytes sent by each of two", twice.sent);
    /* PPMoE: nothing travels, nothing is padded, each rank computes its experts' rows. */
    shape = shape_of(4, false);
    shape.binding = 0;
    shape.ep = 4;
    const moe_sums near = sums_of(&o, &shape);
    EXPECT(near.sent == 0 && near.masks == 0 && near.multiplied == even.multiplied / 4,
           "%g bytes, %g FLOPs", near.sent, near.multiplied);
}

int main(void)
{
    static const int tps[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof tps / sizeof *tps; i++) {
        for (int which = 0; which < 4; which++)
            check_layer(tps[i], which & 1, which & 2);
        check_ends(tps[i]);
    }
    check_years();
    check_experts();
    return expect_finish();
}
