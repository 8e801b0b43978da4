/* Descriptions of the layers of published runs: Megatron-LM of 2021 and 2022, on GPUs. Weft never
 * runs these kernels.
 *
 * Kept activations follow Korthikanti et al., "Reducing Activation Recomputation in Large
 * Transformer Models" (2022), section 4: a layer keeps s b h (34 + 5 a s / h) bytes at two bytes an
 * element, over t tensor-parallel ranks s b h (10 + 24 / t + 5 a s / (h t)), and under sequence
 * parallelism all of it over t. Masks of dropout have one byte an element. The norms' sums of rows
 * are left out, as in the paper. Dropout is always on, as in those runs.
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
 * are Apex's first ones (persist_layer_norm came in October). */
#include "layers/describe/plain.h"
#include "layers/pass/recompute.h"

enum { MASK_BYTES = 1 };

static size_t element_bytes(const weft_shape *shape)
{
    return weft_dtype_bytes(shape->dtype);
}

static void stash(weft_layer_cost *out, const weft_shape *shape, const char *module, size_t d0,
                  size_t d1, weft_phase until)
{
    weft_cost_stash(out, module, shape->dtype, d0, d1, until);
}

static void stash_mask(weft_layer_cost *out, const char *module, size_t d0, size_t d1)
{
    weft_cost_stash(out, module, WEFT_U8, d0, d1, WEFT_PHASE_INPUT_GRADIENT);
}

/* A kernel: elements read and written, and bytes of masks beside them. */
static void move(weft_layer_cost *out, const weft_shape *shape, weft_phase phase,
                 const char *module, size_t elements, size_t masks)
{
    weft_cost_memory(out, phase, module, elements * element_bytes(shape) + masks * MASK_BYTES, 1);
}

/* --- linear layers --------------------------------------------------------------------------- */

size_t weft_plain_gradient_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 2 : sizeof(float);
}

/* The gradient is made in the activations' type and added to the sum. */
static void add_gradient(weft_layer_cost *out, const weft_shape *shape, const char *module,
                         size_t elements)
{
    weft_cost_memory(
        out, WEFT_PHASE_WEIGHT_GRADIENT, module,
        elements * (element_bytes(shape) + 2 * weft_plain_gradient_bytes(shape->dtype)), 1);
}

/* Under sequence parallelism a column-parallel layer keeps its share of the rows, and gathers them
 * anew while it makes the gradient of its input (Korthikanti et al., section 4.2.2). That gradient
 * is scattered or summed while the weight's is made. */
static bool is_of_2021(const weft_shape *shape)
{
    return shape->plain_kernels == WEFT_PLAIN_2021;
}

static void column_backward(weft_layer_cost *out, const weft_shape *shape, const char *module,
                            size_t rows, size_t in, size_t width)
{
    const size_t bytes = rows * in * element_bytes(shape);
    const bool gathers = shape->sequence_parallel && shape->tp > 1, beside = !is_of_2021(shape);
    weft_cost_gemm(out, WEFT_PHASE_INPUT_GRADIENT, module, shape->dtype, rows, in, width, 1);
    if (gathers)
        weft_cost_operation(out, &(weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                                   .phase = WEFT_PHASE_INPUT_GRADIENT,
                                                   .module = "enter",
                                                   .axis = WEFT_AXIS_TP,
                                                   .collective = WEFT_COLLECTIVE_ALL_GATHER,
                                                   .bytes = bytes,
                                                   .count = 1,
                                                   .beside = beside});
    weft_cost_gemm(out, WEFT_PHASE_WEIGHT_GRADIENT, module, shape->dtype, width, in, rows, 1);
    if (shape->tp > 1)
        weft_cost_operation(out,
                            &(weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                                              .phase = WEFT_PHASE_INPUT_GRADIENT,
                                              .module = "exit",
                                              .axis = WEFT_AXIS_TP,
                                              .collective = gathers ? WEFT_COLLECTIVE_REDUCE_SCATTER
                                                                    : WEFT_COLLECTIVE_ALL_REDUCE,
                                              .bytes = bytes,
                                              .count = 1,
                                              .beside = beside});
    if (shape->sequence_parallel)
        weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, rows, in);
    add_gradient(out, shape, module, width * in);
}

static void row_backward(weft_layer_cost *out, const weft_shape *shape, const char *module,
                         size_t rows, size_t in, size_t width)
{
    weft_cost_enter(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_gemm(out, WEFT_PHASE_INPUT_GRADIENT, module, shape->dtype, rows, in, width, 1);
    weft_cost_gemm(out, WEFT_PHASE_WEIGHT_GRADIENT, module, shape->dtype, width, in, rows, 1);
    add_gradient(out, shape, module, width * in);
}

static void forward_product(weft_layer_cost *out, const weft_shape *shape, const char *module,
                            size_t rows, size_t in, size_t width)
{
    weft_cost_gemm(out, WEFT_PHASE_FORWARD, module, shape->dtype, rows, width, in, 1);
}

/* --- what branches have ---------------------------------------------------------------------- */

/* Apex's first norms read a row once for its sums and once to normalise it; backward reads gradient
 * and input for the weights, the row's sums and the result, half of the last from caches: 1.4 and
 * 2.0 times the traffic of kernels that read once (NVIDIA/apex pull request 1037). */
static void norm(weft_layer_cost *out, const weft_shape *shape, const char *module, size_t rows)
{
    const bool twice = is_of_2021(shape);
    const size_t elements = rows * shape->hidden;
    move(out, shape, WEFT_PHASE_FORWARD, module, (twice ? 3 : 2) * elements, 0);
    move(out, shape, WEFT_PHASE_INPUT_GRADIENT, module, (twice ? 6 : 3) * elements, 0);
}

/* The end of a branch: bias, dropout and residual in one kernel. Backward drops the gradient, sums
 * it for the bias, and adds the branch's gradient to the residual's. */
static void end_branch(weft_layer_cost *out, const weft_shape *shape, const char *module,
                       size_t rows, bool bias)
{
    const size_t elements = rows * shape->hidden;
    move(out, shape, WEFT_PHASE_FORWARD, module, 3 * elements, elements);
    move(out, shape, WEFT_PHASE_INPUT_GRADIENT, module, 2 * elements, elements);
    if (bias)
        move(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, module, elements, 0);
    move(out, shape, WEFT_PHASE_INPUT_GRADIENT, module, 3 * elements, 0);
    stash_mask(out, module, rows, shape->hidden);
}

void weft_describe_plain_block(const weft_model_options *o, const weft_shape *shape,
                               weft_layer_cost *out)
{
    const size_t rows = weft_dims_of(o, shape).rows;
    const bool bias = !o->disable_bias_linear;
    norm(out, shape, "input_layernorm", rows);
    end_branch(out, shape, "attention_dropout_add", rows, bias);
    norm(out, shape, "pre_mlp_layernorm", rows);
    end_branch(out, shape, "mlp_dropout_add", rows, bias);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, 2 * rows, shape->hidden);
    /* inputs and outputs of both norms */
    stash(out, shape, "input_layernorm", rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    stash(out, shape, "pre_mlp_layernorm", rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    stash(out, shape, "input", rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    stash(out, shape, "middle", rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
}

/* --- attention ------------------------------------------------------------------------------- */

#define SCORES "attention_scores"

/* One launch of all heads' products, whole squares. */
static void batched(weft_layer_cost *out, const weft_shape *shape, weft_phase phase, size_t heads,
                    size_t n, size_t k)
{
    const size_t m = heads * shape->seq;
    weft_cost_operation(out, &(weft_operation){.kind = WEFT_OPERATION_GEMM,
                                               .phase = phase,
                                               .module = SCORES,
                                               .dtype = shape->dtype,
                                               .m = m,
                                               .n = n,
                                               .k = k,
                                               .groups = heads,
                                               .count = 1,
                                               .flops = 2 * m * n * k});
}

/* Scores, softmax, its dropout and the context, of `heads` heads of all samples. */
static void scores_forward(weft_layer_cost *out, const weft_shape *shape, weft_phase phase,
                           size_t heads, size_t head_dim)
{
    const size_t squares = heads * shape->seq * shape->seq;
    batched(out, shape, phase, heads, shape->seq, head_dim);
    move(out, shape, phase, SCORES, squares / 2 + squares, 0);
    move(out, shape, phase, SCORES, 2 * squares, squares);
    batched(out, shape, phase, heads, head_dim, shape->seq);
}

static void scores_backward(weft_layer_cost *out, const weft_shape *shape, size_t heads,
                            size_t head_dim)
{
    const weft_phase phase = WEFT_PHASE_INPUT_GRADIENT;
    const size_t squares = heads * shape->seq * shape->seq;
    batched(out, shape, phase, heads, shape->seq, head_dim); /* of the dropped softmax */
    batched(out, shape, phase, heads, head_dim, shape->seq); /* of the values */
    move(out, shape, phase, SCORES, 2 * squares, squares);
    move(out, shape, phase, SCORES, squares + squares, 0);   /* two halves read, all written */
    batched(out, shape, phase, heads, head_dim, shape->seq); /* of queries and of keys */
    batched(out, shape, phase, heads, head_dim, shape->seq);
}

static void keep_scores(weft_layer_cost *out, const weft_shape *shape, size_t heads)
{
    static const char module[] = WEFT_MODULE_ATTENTION;
    const unsigned core = WEFT_RECOMPUTE_MODULE(CORE_ATTN);
    const size_t rows = heads * shape->seq, seq = shape->seq;
    weft_cost_stash_unless(out, shape, core, module, shape->dtype, rows, seq,
                           WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash_unless(out, shape, core, module, WEFT_U8, rows, seq, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash_unless(out, shape, core, module, shape->dtype, rows, seq,
                           WEFT_PHASE_INPUT_GRADIENT);
}

static void rotate(weft_layer_cost *out, const weft_shape *shape, weft_phase phase,
                   const weft_dims *d)
{
    const size_t elements = d->rows_full * (d->heads + d->groups) * d->rotary;
    if (elements > 0)
        move(out, shape, phase, "rotary", 2 * elements, 0);
}

void weft_describe_plain_attention(const weft_model_options *o, const weft_shape *shape,
                                   weft_layer_cost *out)
{
    const weft_dims d = weft_dims_of(o, shape);
    const size_t heads = shape->batch * d.heads, width = d.heads * d.head_dim;
    const bool bias = !o->disable_bias_linear || o->add_qkv_bias;
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    forward_product(out, shape, "linear_qkv", d.rows_full, d.hidden, d.qkv);
    if (bias)
        move(out, shape, WEFT_PHASE_FORWARD, "linear_qkv", 2 * d.rows_full * d.qkv, 0);
    rotate(out, shape, WEFT_PHASE_FORWARD, &d);
    scores_forward(out, shape, WEFT_PHASE_FORWARD, heads, d.head_dim);
    /* heads beside each other */
    move(out, shape, WEFT_PHASE_FORWARD, "context", 2 * d.rows_full * width, 0);
    forward_product(out, shape, "linear_proj", d.rows_full, width, d.hidden);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);

    row_backward(out, shape, "linear_proj", d.rows_full, width, d.hidden);
    move(out, shape, WEFT_PHASE_INPUT_GRADIENT, "context", 2 * d.rows_full * width, 0);
    if (shape->recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN)) {
        weft_cost_repeats(out, true);
        scores_forward(out, shape, WEFT_PHASE_RECOMPUTE, heads, d.head_dim);
        weft_cost_repeats(out, false);
    }
    scores_backward(out, shape, heads, d.head_dim);
    rotate(out, shape, WEFT_PHASE_INPUT_GRADIENT, &d);
    /* the three gradients packed, and summed for the bias */
    move(out, shape, WEFT_PHASE_INPUT_GRADIENT, "linear_qkv", 2 * d.rows_full * d.qkv, 0);
    if (bias)
        move(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, "linear_qkv", d.rows_full * d.qkv, 0);
    column_backward(out, shape, "linear_qkv", d.rows_full, d.hidden, d.qkv);

    stash(out, shape, "linear_qkv", d.rows_full, d.qkv, WEFT_PHASE_INPUT_GRADIENT);
    keep_scores(out, shape, heads);
    stash(out, shape, "linear_proj", d.rows_full, width, WEFT_PHASE_WEIGHT_GRADIENT);
    /* gradients of dropped and whole softmax; of q, k and v */
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, 2 * heads * shape->seq,
                      shape->seq);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, d.qkv);
}

/* --- MLP ------------------------------------------------------------------------------------- */

void weft_describe_plain_activation(const weft_model_options *o, const weft_shape *shape,
                                    size_t rows, size_t width, size_t kernels, weft_layer_cost *out)
{
    const size_t gates = o->swiglu ? 2 : 1;
    const size_t bytes = rows * width * element_bytes(shape);
    const char *const module = "activation";
    weft_cost_memory(out, WEFT_PHASE_FORWARD, module, (gates + 1) * bytes, kernels);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, module, (2 * gates + 1) * bytes, kernels);
    if (!o->disable_bias_linear)
        weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, module, gates * bytes, kernels);
}

void weft_describe_plain_mlp(const weft_model_options *o, const weft_shape *shape, size_t ffn_all,
                             weft_layer_cost *out)
{
    const weft_dims d = weft_dims_of(o, shape);
    const size_t ffn = ffn_all / (size_t)shape->tp, up = d.gates * ffn;
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    forward_product(out, shape, "linear_fc1", d.rows_full, d.hidden, up);
    forward_product(out, shape, "linear_fc2", d.rows_full, ffn, d.hidden);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);
    row_backward(out, shape, "linear_fc2", d.rows_full, ffn, d.hidden);
    weft_describe_plain_activation(o, shape, d.rows_full, ffn, 1, out);
    column_backward(out, shape, "linear_fc1", d.rows_full, d.hidden, up);
    stash(out, shape, "linear_fc1", d.rows_full, up, WEFT_PHASE_INPUT_GRADIENT);
    stash(out, shape, "linear_fc2", d.rows_full, ffn, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, ffn);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, up);
}

/* --- the ends -------------------------------------------------------------------------------- */

void weft_describe_plain_embedding(const weft_model_options *o, const weft_shape *shape,
                                   weft_layer_cost *out)
{
    const weft_dims d = weft_dims_of(o, shape);
    const bool learned = o->position_embedding_type == WEFT_POSITION_LEARNED;
    const size_t elements = d.rows * d.hidden, whole = d.rows_full * d.hidden;
    move(out, shape, WEFT_PHASE_FORWARD, "embedding", 2 * whole, 0);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);
    if (learned)
        move(out, shape, WEFT_PHASE_FORWARD, "positions", 3 * elements, 0);
    move(out, shape, WEFT_PHASE_FORWARD, "dropout", 2 * elements, elements);
    move(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, "dropout", 2 * elements, elements);
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    move(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, "embedding", 3 * whole, 0);
    /* the table's gradient is dense */
    add_gradient(out, shape, "embedding", d.vocab_rows * d.hidden);
    if (learned)
        move(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, "positions", 2 * elements, 0);
    stash_mask(out, "dropout", d.rows, d.hidden);
}

/* The logits in fp32, whole: the largest, differences, exponentials, their sum and shares, one
 * kernel each; backward scales the shares in place. */
void weft_describe_plain_head(const weft_model_options *o, const weft_shape *shape,
                              weft_layer_cost *out)
{
    const weft_dims d = weft_dims_of(o, shape);
    const size_t logits = d.rows_full * d.vocab_rows, act = element_bytes(shape);
    static const char loss[] = "loss", layer[] = "output_layer";
    const size_t reads_and_writes[] = {1, 2, 2, 1, 2};
    norm(out, shape, "final_layernorm", d.rows);
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    forward_product(out, shape, layer, d.rows_full, d.hidden, d.vocab_rows);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, loss, logits * (act + sizeof(float)), 1);
    for (size_t i = 0; i < sizeof reads_and_writes / sizeof *reads_and_writes; i++)
        weft_cost_memory(out, WEFT_PHASE_FORWARD, loss,
                         reads_and_writes[i] * logits * sizeof(float), 1);
    if (shape->tp > 1) /* the largest, the label's, the sum */
        weft_cost_collective(out, WEFT_PHASE_FORWARD, loss, WEFT_AXIS_TP,
                             WEFT_COLLECTIVE_ALL_REDUCE, 3 * d.rows_full * sizeof(float), 3);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, loss, 2 * logits * sizeof(float), 1);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, loss, logits * (act + sizeof(float)), 1);
    column_backward(out, shape, layer, d.rows_full, d.hidden, d.vocab_rows);
    stash(out, shape, "input", d.rows, d.hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    stash(out, shape, layer, d.rows, d.hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_stash(out, loss, WEFT_F32, d.rows_full, d.vocab_rows, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, shape->dtype, d.rows_full, d.vocab_rows);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full,
                      d.vocab_rows);
}
