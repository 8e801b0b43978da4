#include "layers/describe.h"

#include "layers/describe_plain.h"
#include "layers/recompute.h"

/* --- parts that several layers have ---------------------------------------------------------- */

static void describe_norm_params(const weft_model_options *o, const weft_shape *shape,
                                 weft_layer_cost *out)
{
    size_t hidden = (size_t)o->hidden_size;
    for (int i = 0; i < (o->normalization == WEFT_RMSNORM ? 1 : 2); i++) /* weight; bias */
        weft_cost_parameter(
            out, shape, shape->sequence_parallel ? WEFT_GRADIENT_DENSE_SUM : WEFT_GRADIENT_DENSE,
            hidden, hidden);
}

static void describe_norm_stats(const weft_model_options *o, weft_layer_cost *out,
                                const char *module, size_t rows)
{
    for (int i = 0; i < (o->normalization == WEFT_RMSNORM ? 1 : 2); i++)
        weft_cost_stash(out, module, WEFT_F32, rows, 1, WEFT_PHASE_WEIGHT_GRADIENT);
}

static void describe_linear(const weft_shape *shape, weft_layer_cost *out, const char *module,
                            size_t rows, size_t in, size_t width, bool bias)
{
    weft_cost_linear(out, shape, module, rows, in, width);
    if (bias)
        weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, module,
                         rows * width * weft_dtype_bytes(shape->dtype), 1);
}

void weft_cost_activation(weft_layer_cost *out, const weft_shape *shape, size_t gates, size_t rows,
                          size_t width, size_t kernels)
{
    size_t bytes = rows * width * weft_dtype_bytes(shape->dtype);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "activation", (gates + 1) * bytes, kernels);
    weft_cost_memory(out, WEFT_PHASE_RECOMPUTE, "activation", (gates + 1) * bytes, kernels);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "activation", (2 * gates + 1) * bytes,
                     kernels);
}

/* --- embedding ------------------------------------------------------------------------------- */

void weft_describe_embedding(const weft_model_options *o, const weft_shape *shape,
                             weft_layer_cost *out)
{
    weft_dims d = weft_dims_of(o, shape);
    bool learned = o->position_embedding_type == WEFT_POSITION_LEARNED;
    bool tied = !o->untie_embeddings_and_output_weights && shape->pp > 1;
    size_t positions = weft_or_else(o->max_position_embeddings, o->seq_length) * d.hidden;
    size_t whole = d.rows_full * weft_row_bytes(shape), added = 2 * d.hidden * sizeof(float);
    weft_cost_parameter(out, shape, tied ? WEFT_GRADIENT_EMBEDDING : WEFT_GRADIENT_DENSE,
                        shape->vocab * d.hidden, d.vocab_rows * d.hidden);
    if (learned)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, positions, positions);
    if (shape->plain_kernels) {
        weft_describe_plain_embedding(o, shape, out);
        return;
    }

    weft_cost_memory(out, WEFT_PHASE_FORWARD, "embedding", (learned ? 3 : 2) * whole, 1);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);
    weft_cost_stash(out, "output", shape->dtype, d.rows, d.hidden, WEFT_PHASE_WEIGHT_GRADIENT);

    if (shape->training && o->hidden_dropout > 0) {
        size_t bytes = 2 * d.rows * weft_row_bytes(shape);
        weft_cost_memory(out, WEFT_PHASE_FORWARD, "dropout", bytes, 1);
        weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, "dropout", bytes, 1);
        weft_cost_scratch(out, shape, WEFT_PHASE_WEIGHT_GRADIENT, shape->dtype, d.rows, d.hidden);
    }
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, "embedding", whole + d.rows_full * added, 1);
    if (learned)
        weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, "positions",
                         whole + weft_shape_local_seq(shape) * added, 1);
}

/* --- attention ------------------------------------------------------------------------------- */

/* Adds a product of all heads with an S x S side (or this rank's rows), of which causal attention
 * computes half. */
static void describe_scores(const weft_shape *shape, weft_layer_cost *out, weft_phase phase,
                            const weft_dims *d, size_t n, size_t k, size_t count)
{
    count *= shape->batch * d->heads;
    weft_cost_operation(out,
                        &(weft_operation){.kind = WEFT_OPERATION_GEMM,
                                          .phase = phase,
                                          .module = WEFT_MODULE_ATTENTION,
                                          .dtype = shape->dtype,
                                          .m = weft_shape_local_seq(shape),
                                          .n = n,
                                          .k = k,
                                          .count = count,
                                          .flops = weft_shape_local_seq(shape) * n * k * count});
}

static void describe_rotary(const weft_shape *shape, weft_layer_cost *out, weft_phase phase,
                            const weft_dims *d)
{
    size_t rotated = d->rows_full * (d->heads + d->groups) * d->rotary;
    if (d->rotary > 0)
        weft_cost_memory(out, phase, "rotary", 2 * rotated * weft_dtype_bytes(shape->dtype), 1);
}

/* Weight, then bias, of `rows` rows of QKV that each rank holds, `sharers` of them the same. */
static void describe_qkv_params(const weft_shape *shape, const weft_dims *d, size_t rows,
                                size_t sharers, bool bias, weft_layer_cost *out)
{
    const weft_gradient_group group =
        sharers > 1 ? WEFT_GRADIENT_DENSE_SHARED : WEFT_GRADIENT_DENSE;
    const size_t all = rows * (size_t)shape->tp / sharers;
    weft_cost_parameter(out, shape, group, all * d->hidden, rows * d->hidden);
    if (bias)
        weft_cost_parameter(out, shape, group, all, rows);
}

void weft_describe_attention(const weft_model_options *o, const weft_shape *shape,
                             weft_layer_cost *out)
{
    weft_dims d = weft_dims_of(o, shape);
    size_t tp = (size_t)shape->tp, proj_in = d.heads * d.head_dim, seq = shape->seq;
    bool bias = !o->disable_bias_linear, qkv_bias = bias || o->add_qkv_bias;
    const size_t kv = d.sharers > 1 ? 2 * d.head_dim : 0; /* of d.qkv, a product of its own */
    describe_qkv_params(shape, &d, d.qkv - kv, 1, qkv_bias, out);
    if (kv > 0)
        describe_qkv_params(shape, &d, kv, d.sharers, qkv_bias, out);
    weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, d.hidden * proj_in * tp,
                        d.hidden * proj_in);
    if (bias)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, d.hidden, d.hidden);

    if (shape->plain_kernels) {
        weft_describe_plain_attention(o, shape, out);
        return;
    }
    describe_linear(shape, out, "linear_qkv", d.rows_full, d.hidden, d.qkv - kv, qkv_bias);
    if (kv > 0)
        describe_linear(shape, out, "linear_qkv", d.rows_full, d.hidden, kv, qkv_bias);
    describe_linear(shape, out, "linear_proj", d.rows_full, proj_in, d.hidden, bias);
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    describe_rotary(shape, out, WEFT_PHASE_FORWARD, &d);
    describe_scores(shape, out, WEFT_PHASE_FORWARD, &d, seq, d.head_dim, 1); /* QK */
    describe_scores(shape, out, WEFT_PHASE_FORWARD, &d, d.head_dim, seq, 1); /* PV */
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);

    weft_cost_enter(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    describe_scores(shape, out, WEFT_PHASE_RECOMPUTE, &d, seq, d.head_dim, 1);
    describe_scores(shape, out, WEFT_PHASE_INPUT_GRADIENT, &d, seq, d.head_dim, 1); /* dP */
    describe_scores(shape, out, WEFT_PHASE_INPUT_GRADIENT, &d, d.head_dim, seq, 3); /* dQ dK dV */
    describe_rotary(shape, out, WEFT_PHASE_INPUT_GRADIENT, &d);
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_exit(out, shape, WEFT_PHASE_INPUT_GRADIENT);

    weft_cost_stash_of(out, shape, WEFT_RECOMPUTE_MODULE(CORE_ATTN), "linear_qkv", shape->dtype,
                       d.rows_full, d.qkv, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(CORE_ATTN), "core_attention",
                           shape->dtype, d.rows_full, proj_in, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(CORE_ATTN), "core_attention", WEFT_F32,
                           d.heads, d.rows_full, WEFT_PHASE_INPUT_GRADIENT);
    if (shape->recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN)) {
        weft_cost_repeats(out, true);
        describe_scores(shape, out, WEFT_PHASE_RECOMPUTE, &d, seq, d.head_dim, 1);
        describe_scores(shape, out, WEFT_PHASE_RECOMPUTE, &d, d.head_dim, seq, 1);
        weft_cost_repeats(out, false);
    }
    /* their gradients; the last shares its place with delta */
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, d.qkv);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, proj_in);
    if (shape->cp > 1)
        weft_describe_context(shape, &d, out);
    else
        weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, WEFT_F32, d.heads, d.rows_full);
}

/* --- MLP ------------------------------------------------------------------------------------- */

void weft_describe_mlp(const weft_model_options *o, const weft_shape *shape, size_t ffn_all,
                       unsigned modules, weft_layer_cost *out)
{
    weft_dims d = weft_dims_of(o, shape);
    bool bias = !o->disable_bias_linear;
    size_t ffn = ffn_all / (size_t)shape->tp, up = d.gates * ffn, up_all = d.gates * ffn_all;
    weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, up_all * d.hidden, up * d.hidden);
    if (bias)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, up_all, up);
    weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, d.hidden * ffn_all, d.hidden * ffn);
    if (bias)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, d.hidden, d.hidden);

    if (shape->plain_kernels) {
        weft_describe_plain_mlp(o, shape, ffn_all, out);
        return;
    }
    describe_linear(shape, out, "linear_fc1", d.rows_full, d.hidden, up, bias);
    weft_cost_activation(out, shape, d.gates, d.rows_full, ffn, 1);
    describe_linear(shape, out, "linear_fc2", d.rows_full, ffn, d.hidden, bias);
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);
    weft_cost_enter(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_exit(out, shape, WEFT_PHASE_INPUT_GRADIENT);

    weft_cost_stash_unless(out, shape, modules, "linear_fc1", shape->dtype, d.rows_full, up,
                           WEFT_PHASE_WEIGHT_GRADIENT);
    if (shape->recompute & modules) {
        weft_cost_repeats(out, true);
        weft_cost_gemm(out, WEFT_PHASE_RECOMPUTE, "linear_fc1", shape->dtype, d.rows_full, up,
                       d.hidden, 1);
        weft_cost_repeats(out, false);
    }
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, shape->dtype, d.rows_full, ffn);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, d.rows_full, ffn);
}

/* --- block ----------------------------------------------------------------------------------- */

void weft_describe_block(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    static const char *const norms[] = {"input_layernorm", "pre_mlp_layernorm"};
    size_t rows = weft_dims_of(o, shape).rows, bytes = rows * weft_row_bytes(shape);
    bool drops = shape->training && o->hidden_dropout > 0;
    for (int i = 0; i < 2; i++)
        describe_norm_params(o, shape, out);
    if (shape->plain_kernels) {
        weft_describe_plain_block(o, shape, out);
        return;
    }
    for (int i = 0; i < 2; i++) {
        describe_norm_stats(o, out, norms[i], rows);
        /* the second one sums x and attention's output, too */
        weft_cost_memory(out, WEFT_PHASE_FORWARD, norms[i], (i == 0 ? 2 : 4) * bytes, 1);
        weft_cost_memory(out, WEFT_PHASE_RECOMPUTE, norms[i], 2 * bytes, 1);
        weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, norms[i], 4 * bytes, 1);
        weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype,
                          i == 0 || drops ? rows : 0, shape->hidden);
    }
    weft_cost_memory(out, WEFT_PHASE_FORWARD, drops ? "dropout" : "residual", 3 * bytes, 1);
    if (drops) {
        weft_cost_memory(out, WEFT_PHASE_FORWARD, "dropout", 2 * bytes, 1);
        weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "dropout", 4 * bytes, 2);
    }
    weft_cost_stash(out, "middle", shape->dtype, rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_stash(out, "output", shape->dtype, rows, shape->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
}

/* --- head ------------------------------------------------------------------------------------ */

/* Each chunk of rows reads the whole output matrix twice and adds to its fp32 gradient. On a GPU
 * only products of thousands of rows hide this addition; a CPU's GEMMs run at full rate with
 * fewer. */
size_t weft_logit_rows(bool gpu)
{
    enum { CPU_ROWS = 256, GPU_ROWS = 8192 };
    return gpu ? GPU_ROWS : CPU_ROWS;
}

size_t weft_head_chunk_rows(const weft_shape *shape)
{
    size_t rows = weft_shape_local_tokens(shape);
    size_t most = shape->logit_rows ? shape->logit_rows : weft_logit_rows(false);
    return shape->training && rows > most ? most : rows;
}

/* Adds logits and loss of a chunk, in training their gradients too, `count` times. */
static void describe_chunks(const weft_shape *shape, weft_layer_cost *out, size_t vocab,
                            size_t rows, size_t count)
{
    const weft_phase phase = WEFT_PHASE_FORWARD;
    const char *name = "output_layer";
    size_t hidden = shape->hidden, bytes = count * rows * vocab * weft_dtype_bytes(shape->dtype);
    size_t reads = shape->tp > 1 ? 2 : 1; /* the largest logit, then the sum; tp 1: both at once */
    weft_cost_gemm(out, phase, name, shape->dtype, rows, vocab, hidden, count);
    weft_cost_memory(out, phase, "loss", reads * bytes, (reads + 1) * count);
    if (shape->tp > 1) { /* the largest; the sum and the label's */
        weft_cost_collective(out, phase, "loss", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_REDUCE,
                             3 * count * rows * sizeof(float), 2 * count);
    }
    if (!shape->training)
        return;
    weft_cost_memory(out, phase, "loss", 2 * bytes, count);
    weft_cost_gemm(out, phase, name, shape->dtype, vocab, hidden, rows, count);
    weft_cost_gemm(out, phase, name, shape->dtype, rows, hidden, vocab, count);
}

void weft_describe_head(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    weft_dims d = weft_dims_of(o, shape);
    size_t chunk = weft_head_chunk_rows(shape), bytes = d.rows * weft_row_bytes(shape);
    describe_norm_params(o, shape, out);
    if (o->untie_embeddings_and_output_weights)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, shape->vocab * d.hidden,
                            d.vocab_rows * d.hidden);
    else if (shape->pp > 1) /* a copy of the first stage's */
        weft_cost_parameter(out, shape, WEFT_GRADIENT_EMBEDDING, 0, d.vocab_rows * d.hidden);

    if (shape->plain_kernels) {
        weft_describe_plain_head(o, shape, out);
        return;
    }
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "final_layernorm", 2 * bytes, 1);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "final_layernorm", 3 * bytes, 1);
    describe_norm_stats(o, out, "final_layernorm", d.rows);
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    describe_chunks(shape, out, d.vocab_rows, chunk, d.rows_full / chunk);
    if (d.rows_full % chunk > 0)
        describe_chunks(shape, out, d.vocab_rows, d.rows_full % chunk, 1);
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, WEFT_F32, chunk, 1);
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, WEFT_F32, 2, chunk);
    if (!shape->training) { /* logits are kept whole */
        weft_cost_stash(out, "output_layer", shape->dtype, chunk, d.vocab_rows,
                        WEFT_PHASE_WEIGHT_GRADIENT);
        return;
    }
    weft_cost_scratch(out, shape, WEFT_PHASE_FORWARD, shape->dtype, chunk, d.vocab_rows);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);
    /* the gradient of the norm's output */
    weft_cost_stash(out, "output_layer", shape->dtype, d.rows, d.hidden, WEFT_PHASE_INPUT_GRADIENT);
}
