/* Layers of published runs: Megatron-LM of 2021 and 2022, DeepSpeed-MoE and PPMoE, on GPUs. Weft
 * never runs these kernels. Each line is a rule: what a part of a layer does in forward and in
 * backward, or what is kept between the two. Parts stand as forward runs them.
 *
 * Kept activations follow Korthikanti et al., "Reducing Activation Recomputation in Large
 * Transformer Models" (2022), section 4: a layer keeps s b h (34 + 5 a s / h) bytes at two bytes an
 * element, over t tensor-parallel ranks s b h (10 + 24 / t + 5 a s / (h t)), and under sequence
 * parallelism all of it over t. Masks of dropout have one byte an element. The norms' sums of rows
 * are left out, as in the paper. Dropout is always on, as in those runs.
 *
 * Megatron-LM of 2024 with Transformer Engine keeps the same, but for fused attention, which keeps
 * a sum of each query's exponentials in the place of scores, and for masks where nothing is
 * dropped.
 *
 * Kernels follow Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
 * Using Megatron-LM" (2021), section 4.2: scores are stored, in [batch, heads, s, s]; scale, causal
 * mask and softmax are one kernel, which reads the lower triangle alone; bias and GELU, and bias,
 * dropout and residual, are one each; dropout of the softmax, norms and copies stand alone. Each
 * reads and writes device memory. Gradients of weights are added up in fp16 in fp16 training, else
 * in fp32.
 *
 * Those of 2021 are Megatron-LM's before September 2021: it sums the gradient of a column-parallel
 * layer's input before it goes on (async_tensor_model_parallel_allreduce came then), and its norms
 * are Apex's first ones (persist_layer_norm came in October).
 *
 * Experts over data-parallel ranks: DeepSpeed-MoE (Rajbhandari et al. 2022) after GShard (Lepikhin
 * et al. 2021). With S tokens here, E experts and C places an expert, one-hot masks [S, E, C] say
 * which token has which place. Products with them lay rows out for the experts, [E C, S] x [S, H],
 * and bring them home, [S, E C] x [E C, H]. Every expert gets C rows of each rank, empty ones too.
 * Without a capacity factor C is what the hottest expert needs. All tensor-parallel ranks have all
 * tokens and send all of them.
 *
 * Experts in the tensor-parallel group: PPMoE (Chen et al. 2023, algorithm 1). Rows are chosen by
 * their index and put back by it; experts compute one after the other. */
#include "layers/describe/plain.h"

#include <math.h>
#include <string.h>

#include "layers/layers.h"

static const weft_phase forward = WEFT_PHASE_FORWARD, input = WEFT_PHASE_INPUT_GRADIENT,
                        weight = WEFT_PHASE_WEIGHT_GRADIENT;

#define APEX_NORMS                                                                                 \
    "github.com/NVIDIA/apex/pull/1037, 2021: the first ones take 1.40 and 2.03 times as long"
#define OPTIMIZER "github.com/NVIDIA/Megatron-LM, megatron/optimizer/optimizer.py, 2022"
#define GATING "github.com/microsoft/DeepSpeed, deepspeed/moe/sharded_moe.py, 2022"

static const weft_plain_fact facts[WEFT_NUM_PLAIN_FACTS] = {
    [WEFT_PLAIN_NORM] = {2, "rows that a norm moves forward", APEX_NORMS},
    [WEFT_PLAIN_NORM_BACK] = {3, "rows that a norm moves backward", APEX_NORMS},
    [WEFT_PLAIN_NORM_2021] = {3, "rows that a norm of 2021 moves forward", APEX_NORMS},
    [WEFT_PLAIN_NORM_BACK_2021] = {6, "rows that a norm of 2021 moves backward", APEX_NORMS},
    [WEFT_PLAIN_MASK] = {1, "bytes of a dropout's mask", "arXiv 2205.05198, 2022, section 4"},
    [WEFT_PLAIN_ROUTING] = {12, "kernels over all scores", GATING},
    [WEFT_PLAIN_ROUTING_BACK] = {4, "kernels over all scores backward", GATING},
    [WEFT_PLAIN_FP16_GRADIENT] = {2, "a summed gradient in fp16 training", OPTIMIZER},
    [WEFT_PLAIN_CLIP] = {8, "gradients clipped", OPTIMIZER},
    [WEFT_PLAIN_ADAMW] = {28, "AdamW", "github.com/NVIDIA/apex, csrc/multi_tensor_adam.cu, 2022"},
    [WEFT_PLAIN_MASTER] = {6, "a master to its weight of 16 bits", OPTIMIZER},
    [WEFT_PLAIN_UNSCALE] = {14, "fp16's gradients to fp32, and unscaled", OPTIMIZER},
};

const weft_plain_fact *weft_plain_fact_at(weft_plain_fact_kind kind)
{
    return &facts[kind];
}

/* A layer, and the sizes that its parts share. */
typedef struct plain {
    const weft_layer *layer;
    const weft_model_options *options;
    const weft_shape *shape;
    weft_layer_cost *out;
    weft_dims d;
    size_t element, added; /* bytes of an activation; moved to add a weight's gradient to the sum */
    size_t rows, whole;    /* bytes of hidden states: of this rank's rows, and of all S * B */
    size_t mask;           /* bytes of the mask of a dropout of this rank's rows */
    size_t bias;           /* 1: linear layers have one; 0: none */
    bool of_2021;
} plain;

/* Kernels, `count` in each phase in which they move bytes. */
static void kernels(const plain *p, const char *module, size_t count, size_t forward_bytes,
                    size_t input_bytes, size_t weight_bytes)
{
    weft_cost_memory(p->out, forward, module, forward_bytes, forward_bytes ? count : 0);
    weft_cost_memory(p->out, input, module, input_bytes, input_bytes ? count : 0);
    weft_cost_memory(p->out, weight, module, weight_bytes, weight_bytes ? count : 0);
}

static void keep(const plain *p, const char *module, size_t bytes)
{
    weft_cost_stash(p->out, module, WEFT_U8, bytes, 1, weight);
}

static void scratch(const plain *p, weft_phase phase, size_t bytes)
{
    weft_cost_scratch(p->out, p->shape, phase, WEFT_U8, bytes, 1);
}

/* --- linear layers --------------------------------------------------------------------------- */

size_t weft_plain_gradient_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? facts[WEFT_PLAIN_FP16_GRADIENT].value : sizeof(float);
}

/* A collective of the region's rows beside the product before it. */
static void reduce_beside(const plain *p, const char *module, weft_collective what)
{
    weft_cost_operation(p->out, &(weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                                  .phase = input,
                                                  .module = module,
                                                  .axis = WEFT_AXIS_TP,
                                                  .collective = what,
                                                  .bytes = p->whole,
                                                  .count = p->shape->tp > 1,
                                                  .beside = !p->of_2021});
}

/* A product and its gradients, of `count` layers. The weight's is made in the activations' type and
 * added to the sum.
 *
 * Under sequence parallelism a column-parallel layer keeps its share of the rows, and gathers them
 * anew while it makes the gradient of its input (Korthikanti et al., section 4.2.2). That gradient
 * is scattered or summed while the weight's is made. */
static void linear(const plain *p, const char *module, size_t rows, size_t in, size_t width,
                   size_t count, bool is_column)
{
    const weft_dtype dtype = p->shape->dtype;
    const bool gathers = p->shape->sequence_parallel;
    weft_cost_gemm(p->out, forward, module, dtype, rows, width, in, count);
    weft_cost_gemm(p->out, input, module, dtype, rows, in, width, count);
    if (is_column && gathers)
        reduce_beside(p, "enter", WEFT_COLLECTIVE_ALL_GATHER);
    weft_cost_gemm(p->out, weight, module, dtype, width, in, rows, count);
    if (is_column)
        reduce_beside(p, "exit",
                      gathers ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE);
    kernels(p, module, count, 0, 0, count * width * in * p->added);
}

static void column_parallel(const plain *p, const char *module, size_t width)
{
    weft_cost_enter(p->out, p->shape, forward);
    linear(p, module, p->d.rows_full, p->d.hidden, width, 1, true);
    scratch(p, input, p->shape->sequence_parallel ? p->whole : 0);
}

static void row_parallel(const plain *p, const char *module, size_t in)
{
    weft_cost_enter(p->out, p->shape, input);
    linear(p, module, p->d.rows_full, in, p->d.hidden, 1, false);
    weft_cost_exit(p->out, p->shape, forward);
    keep(p, module, p->d.rows_full * in * p->element);
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Apex's first norms read a row once for its sums and once to normalise it; backward reads gradient
 * and input for the weights, the row's sums and the result, half of the last from caches. */
static void norm(const plain *p, const char *module)
{
    const size_t ahead = facts[p->of_2021 ? WEFT_PLAIN_NORM_2021 : WEFT_PLAIN_NORM].value,
                 back = facts[p->of_2021 ? WEFT_PLAIN_NORM_BACK_2021 : WEFT_PLAIN_NORM_BACK].value;
    kernels(p, module, 1, ahead * p->rows, back * p->rows, 0);
}

/* The end of a branch: bias, dropout and residual in one kernel. Backward drops the gradient, sums
 * it for the bias, and adds the branch's gradient to the residual's. */
static void end_branch(const plain *p, const char *module)
{
    kernels(p, module, 1, 3 * p->rows + p->mask, 2 * p->rows + p->mask, p->bias * p->rows);
    kernels(p, module, 1, 0, 3 * p->rows, 0);
    keep(p, module, p->mask);
}

static void describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out);

static void describe_block(const plain *p)
{
    const weft_block *b = (const weft_block *)p->layer;
    const weft_layer *inside[] = {b->attention, b->mlp};
    norm(p, "input_layernorm");
    end_branch(p, "attention_dropout_add");
    norm(p, "pre_mlp_layernorm");
    end_branch(p, "mlp_dropout_add");
    keep(p, "input_layernorm", p->rows);
    keep(p, "pre_mlp_layernorm", p->rows);
    keep(p, "input", p->rows);
    keep(p, "middle", p->rows);
    scratch(p, input, 2 * p->rows);
    for (int i = 0; i < 2; i++) {
        weft_layer_cost cost = {.list = p->out->list};
        describe(inside[i], p->shape, &cost);
        weft_cost_inside(p->out, &cost);
    }
}

static const char scores[] = "attention_scores";

/* One launch of all heads' products, whole squares. */
static void batched(const plain *p, weft_phase phase, size_t n, size_t k)
{
    const size_t heads = p->shape->batch * p->d.heads, m = heads * p->shape->seq;
    weft_cost_operation(p->out, &(weft_operation){.kind = WEFT_OPERATION_GEMM,
                                                  .phase = phase,
                                                  .module = scores,
                                                  .dtype = p->shape->dtype,
                                                  .m = m,
                                                  .n = n,
                                                  .k = k,
                                                  .groups = heads,
                                                  .count = 1,
                                                  .flops = 2 * m * n * k});
}

/* Forward's operations once more, from this one of the list on. */
static void repeat(const plain *p, int first)
{
    for (int i = first, end = p->out->list->num_operations; i < end; i++) {
        weft_operation o = p->out->list->operations[i];
        if (o.phase != forward)
            continue;
        o.phase = WEFT_PHASE_RECOMPUTE;
        o.repeated = true;
        weft_cost_operation(p->out, &o);
    }
}

/* Softmax reads one half forward and two backward, and writes all. */
static void core_attention(const plain *p)
{
    const size_t seq = p->shape->seq, channels = p->d.head_dim;
    const size_t squares = p->shape->batch * p->d.heads * seq * seq, bytes = squares * p->element;
    const size_t pieces[] = {bytes, squares, bytes};
    const int first = p->out->list->num_operations;
    const bool again = p->shape->recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN);
    if (p->shape->plain_kernels == WEFT_PLAIN_FUSED) {
        keep(p, WEFT_MODULE_ATTENTION, p->shape->batch * p->d.heads * seq * sizeof(float));
        return;
    }
    batched(p, forward, seq, channels);
    kernels(p, scores, 1, (squares / 2 + squares) * p->element, 2 * bytes, 0);
    kernels(p, scores, 1, 2 * bytes + squares, 2 * bytes + squares, 0); /* its dropout */
    batched(p, forward, channels, seq);
    batched(p, input, seq, channels); /* of the dropped softmax */
    for (int i = 0; i < 3; i++)       /* of values, queries and keys */
        batched(p, input, channels, seq);
    if (again)
        repeat(p, first);
    for (int i = 0; i < 3; i++)
        if (again)
            p->out->recomputed_bytes += weft_piece_bytes(WEFT_U8, pieces[i], 1);
        else
            keep(p, WEFT_MODULE_ATTENTION, pieces[i]);
    scratch(p, input, 2 * bytes); /* gradients of dropped and whole softmax */
}

static void describe_attention(const plain *p)
{
    const weft_dims *d = &p->d;
    const size_t row = d->rows_full * p->element, width = d->heads * d->head_dim;
    const size_t qkv = row * d->qkv, rotated = row * (d->heads + d->groups) * d->rotary;
    const size_t bias = p->bias || p->options->add_qkv_bias;
    column_parallel(p, "linear_qkv", d->qkv);
    kernels(p, "linear_qkv", 1, 2 * bias * qkv, 2 * qkv, bias * qkv); /* three gradients packed */
    kernels(p, "rotary", 1, 2 * rotated, 2 * rotated, 0);
    keep(p, "linear_qkv", qkv);
    if (p->shape->plain_kernels == WEFT_PLAIN_FUSED && p->options->qk_layernorm)
        keep(p, "qk_layernorm", row * (d->heads + d->groups) * d->head_dim); /* their inputs */
    core_attention(p);
    kernels(p, "context", 1, 2 * row * width, 2 * row * width, 0); /* heads beside each other */
    row_parallel(p, "linear_proj", width);
    scratch(p, input, qkv);
}

/* Bias and activation as one kernel, of so many elements in and out. */
static void activation(const plain *p, size_t up, size_t down, size_t count)
{
    kernels(p, "activation", count, (up + down) * p->element, (2 * up + down) * p->element,
            p->bias * up * p->element);
}

static void mlp(const plain *p, size_t ffn_all)
{
    const size_t ffn = ffn_all / (size_t)p->shape->tp, up = p->d.gates * ffn;
    const size_t row = p->d.rows_full * p->element;
    column_parallel(p, "linear_fc1", up);
    activation(p, p->d.rows_full * up, p->d.rows_full * ffn, 1);
    keep(p, "linear_fc1", row * up);
    row_parallel(p, "linear_fc2", ffn);
    scratch(p, input, row * ffn);
    scratch(p, input, row * up);
}

static void describe_mlp(const plain *p)
{
    mlp(p, ((const weft_mlp *)p->layer)->ffn_all);
}

static void describe_embedding(const plain *p)
{
    const size_t learned = p->options->position_embedding_type == WEFT_POSITION_LEARNED;
    kernels(p, "embedding", 1, 2 * p->whole, 0, 3 * p->whole);
    weft_cost_exit(p->out, p->shape, forward);
    weft_cost_enter(p->out, p->shape, weight);
    kernels(p, "embedding", 1, 0, 0, p->d.vocab_rows * p->d.hidden * p->added); /* dense */
    kernels(p, "positions", 1, 3 * learned * p->rows, 0, 2 * learned * p->rows);
    kernels(p, "dropout", 1, 2 * p->rows + p->mask, 0, 2 * p->rows + p->mask);
    keep(p, "dropout", p->mask);
}

/* The logits in fp32, whole: the largest, differences, exponentials, their sum and shares, one
 * kernel each; backward scales the shares in place. Ranks reduce the largest, the label's, the sum.
 */
static void describe_head(const plain *p)
{
    static const char loss[] = "loss", layer[] = "output_layer";
    const size_t rows = p->d.rows_full, vocab = p->d.vocab_rows;
    const size_t logits = rows * vocab * p->element, wide = rows * vocab * sizeof(float);
    norm(p, "final_layernorm");
    column_parallel(p, layer, vocab);
    kernels(p, loss, 1, logits + wide, logits + wide, 0);
    kernels(p, loss, 1, 2 * wide, 2 * wide, 0);
    kernels(p, loss, 2, 2 * wide, 0, 0);
    kernels(p, loss, 2, 4 * wide, 0, 0);
    weft_cost_collective(p->out, forward, loss, WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_REDUCE,
                         3 * rows * sizeof(float), p->shape->tp > 1 ? 3 : 0);
    keep(p, "input", p->rows);
    keep(p, layer, p->rows);
    keep(p, loss, wide);
    scratch(p, forward, logits);
    scratch(p, input, logits);
}

/* --- experts --------------------------------------------------------------------------------- */

/* Rows that an expert gets of each rank: by the capacity, or a rank's load, or that of its hottest
 * expert if known. */
static size_t places_of(const plain *p, const weft_moe_dims *d)
{
    const weft_model_options *o = p->options;
    const double experts = (double)d->experts, topk = (double)o->moe_router_topk;
    const double load = p->shape->moe_load > 0 ? p->shape->moe_load : 1;
    const bool is_bounded = d->exchange && o->moe_expert_capacity_factor > 0;
    const double factor = is_bounded ? o->moe_expert_capacity_factor
                                     : fmax(load, fmin(o->moe_router_forced_load, experts / topk));
    return (size_t)ceil(factor * ((double)p->d.rows_full * topk) / experts);
}

/* Softmax, choice, masks of the chosen, places by sums along the tokens, in fp32. */
static void route(const plain *p, size_t experts)
{
    static const char module[] = "router";
    const size_t tokens = p->d.rows_full, hidden = p->d.hidden;
    const size_t wide = tokens * hidden * sizeof(float), scored = tokens * experts * sizeof(float);
    kernels(p, module, 1, p->whole + wide, p->whole + wide, 0); /* rows to fp32 */
    weft_cost_gemm(p->out, forward, module, WEFT_F32, tokens, experts, hidden, 1);
    weft_cost_gemm(p->out, weight, module, WEFT_F32, experts, hidden, tokens, 1);
    weft_cost_gemm(p->out, input, module, WEFT_F32, tokens, hidden, experts, 1);
    const size_t ahead = facts[WEFT_PLAIN_ROUTING].value,
                 back = facts[WEFT_PLAIN_ROUTING_BACK].value;
    kernels(p, module, ahead, 2 * ahead * scored, 0, 0);
    kernels(p, module, back, 0, 2 * back * scored, 0);
    keep(p, module, scored); /* logits */
    keep(p, module, scored); /* gates */
    keep(p, module, wide);
}

/* Rows to `places` by products with masks, and home again. */
static void lay_out(const plain *p, size_t places)
{
    static const char module[] = "one_hot";
    const weft_dtype dtype = p->shape->dtype;
    const size_t tokens = p->d.rows_full, hidden = p->d.hidden, mask = tokens * places;
    const size_t typed = mask * p->element, wide = mask * sizeof(float);
    /* weights in fp32, whether they are there, both in the activations' type */
    kernels(p, module, 1, wide, wide, 0);
    kernels(p, module, 1, wide + mask, 0, 0);
    kernels(p, module, 1, mask + typed, 0, 0);
    kernels(p, module, 1, wide + typed, wide + typed, 0);
    weft_cost_gemm(p->out, forward, module, dtype, places, hidden, tokens, 1);
    weft_cost_gemm(p->out, forward, module, dtype, tokens, hidden, places, 1);
    /* gradients of the experts' outputs, of the weights, of the input */
    weft_cost_gemm(p->out, input, module, dtype, places, hidden, tokens, 1);
    weft_cost_gemm(p->out, input, module, dtype, tokens, places, hidden, 1);
    weft_cost_gemm(p->out, input, module, dtype, tokens, hidden, places, 1);
    keep(p, module, typed);
    keep(p, module, typed);
}

static void describe_moe(const plain *p)
{
    const weft_moe_dims d = weft_moe_dims_of(p->options, p->shape);
    const size_t places = places_of(p, &d), local = d.local_experts, width = d.gates * d.ffn;
    const bool travels = p->shape->binding != 0;
    const size_t each = places * (travels ? (size_t)p->shape->ep : 1), all = d.experts * places;
    const size_t row = p->d.hidden * p->element, moved = local * each * row;
    const size_t shared = (size_t)p->options->moe_shared_expert_intermediate_size;
    weft_cost_enter(p->out, p->shape, forward);
    weft_cost_enter(p->out, p->shape, input);
    weft_cost_enter(p->out, p->shape, weight);
    route(p, d.experts);
    if (travels)
        lay_out(p, all);
    else { /* chosen, and put back into cleared rows */
        kernels(p, "index_select", 2 * local, 4 * moved, 4 * moved, 0);
        kernels(p, "index_select", 1, p->whole, p->whole, 0);
    }
    linear(p, "experts.linear_fc1", each, p->d.hidden, width, local, false);
    linear(p, "experts.linear_fc2", each, d.ffn, p->d.hidden, local, false);
    activation(p, local * each * width, local * each * d.ffn, local);
    for (int half = 0; half < 2; half++) {
        const weft_phase phase = half ? input : forward;
        weft_cost_collective(p->out, phase, "all_to_all", WEFT_AXIS_EP, WEFT_COLLECTIVE_ALL_TO_ALL,
                             2 * all * row, travels ? 2 : 0);
        weft_cost_collective(p->out, phase, "experts", WEFT_AXIS_ETP, WEFT_COLLECTIVE_ALL_REDUCE,
                             moved, travels && p->shape->etp > 1 ? local : 0);
        if (!travels) /* every rank has the answers of its own experts alone */
            weft_cost_exit(p->out, p->shape, phase);
        scratch(p, phase, moved);
        scratch(p, phase, local * each * width * p->element);
        scratch(p, phase, shared ? p->rows : 0);
    }
    keep(p, "dispatch", moved);
    keep(p, "experts", local * each * width * p->element);
    keep(p, "experts", local * each * d.ffn * p->element);
    keep(p, "combine", travels ? all * row : moved);
    if (shared == 0)
        return;
    mlp(p, shared);
    kernels(p, "shared_experts", 1, 3 * p->rows, 3 * p->rows, 0);
}

/* --- all ------------------------------------------------------------------------------------- */

static const struct {
    const char *kind;
    void (*describe)(const plain *);
} layers[] = {{"embedding", describe_embedding},
              {"block", describe_block},
              {"attention", describe_attention},
              {"mlp", describe_mlp},
              {"moe", describe_moe},
              {"head", describe_head}};

static void describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const weft_model_options *o = &((const weft_layer_common *)layer)->options;
    plain p = {.layer = layer,
               .options = o,
               .shape = shape,
               .out = out,
               .element = weft_dtype_bytes(shape->dtype),
               .of_2021 = shape->plain_kernels == WEFT_PLAIN_2021};
    if (weft_layer_table(layer).width != weft_layer_width) { /* none of the library's */
        weft_cost_own(out, shape, layer);
        return;
    }
    p.d = weft_dims_of(o, shape);
    p.added = p.element + 2 * weft_plain_gradient_bytes(shape->dtype);
    const size_t numbers = p.d.rows * p.d.hidden;
    if (shape->plain_kernels != WEFT_PLAIN_FUSED || o->hidden_dropout > 0)
        p.mask = numbers * facts[WEFT_PLAIN_MASK].value;
    p.rows = numbers * p.element;
    p.whole = p.d.rows_full * p.d.hidden * p.element;
    p.bias = !o->disable_bias_linear;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (strcmp(weft_layer_kind(layer), layers[i].kind) == 0)
            layers[i].describe(&p);
}

void weft_plain_describe(const weft_layer *layer, const weft_shape *shape, weft_description *out)
{
    out->keeps_input = true;
    describe(layer, shape, &out->cost);
}
