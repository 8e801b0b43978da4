/* Layers of published runs, row by row: Megatron-LM of 2021 and 2022, DeepSpeed-MoE and PPMoE, on
 * GPUs. Weft never runs these kernels. A layer's rows stand as its operations run, since a
 * collective may be under way beside the product before it.
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
#include "layers/plain.h"

#include <string.h>

#include "layers/mlp.h"

static const weft_phase forward = WEFT_PHASE_FORWARD, input = WEFT_PHASE_INPUT_GRADIENT,
                        weight = WEFT_PHASE_WEIGHT_GRADIENT;

/* A layer, and the sizes that its rows are made of. */
typedef struct plain {
    const weft_layer *layer;
    const weft_model_options *options;
    const weft_shape *shape;
    weft_layer_cost *out;
    weft_dims d;
    size_t
        element; /* bytes of an activation; below: those moved to add one of a weight's gradient */
    size_t added;
    size_t rows, whole; /* bytes of hidden states: of this rank's rows, and of all S * B */
    size_t masks;       /* of a dropout of this rank's rows */
    size_t heads;       /* of all samples */
    bool bias, of_2021;
} plain;

typedef struct row {
    weft_operation done; /* count 0: nothing */
    size_t kept;         /* bytes, until done.phase */
    size_t scratch;      /* bytes, while that phase's half runs */
} row;

static void add(const plain *p, const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_operation o = rows[i].done;
        o.repeated = o.phase == WEFT_PHASE_RECOMPUTE;
        o.flops = weft_operation_model_flops(&o);
        if (o.kind == WEFT_OPERATION_MEMORY)
            o.dtype = p->shape->dtype;
        weft_cost_operation(p->out, &o);
        if (rows[i].kept > 0)
            weft_cost_stash(p->out, o.module, WEFT_U8, rows[i].kept, 1, o.phase);
        weft_cost_scratch(p->out, p->shape, o.phase, WEFT_U8, rows[i].scratch, 1);
    }
}
#define ADD(p, ...) add(p, (const row[]){__VA_ARGS__}, sizeof(row[]){__VA_ARGS__} / sizeof(row))

static row gemm(weft_dtype dtype, weft_phase phase, const char *module, size_t m, size_t n,
                size_t k, size_t count)
{
    return (row){.done = {.kind = WEFT_OPERATION_GEMM,
                          .phase = phase,
                          .module = module,
                          .dtype = dtype,
                          .m = m,
                          .n = n,
                          .k = k,
                          .count = count}};
}

static row product(const plain *p, weft_phase phase, const char *module, size_t m, size_t n,
                   size_t k)
{
    return gemm(p->shape->dtype, phase, module, m, n, k, 1);
}

static row kernels(weft_phase phase, const char *module, size_t bytes, size_t count)
{
    return (row){.done = {.kind = WEFT_OPERATION_MEMORY,
                          .phase = phase,
                          .module = module,
                          .bytes = bytes,
                          .count = count}};
}

static row kernel(weft_phase phase, const char *module, size_t bytes)
{
    return kernels(phase, module, bytes, 1);
}

static row kept(weft_phase until, const char *module, size_t bytes)
{
    return (row){.done = {.phase = until, .module = module}, .kept = bytes};
}

static row scratch(weft_phase phase, size_t bytes)
{
    return (row){.done = {.phase = phase}, .scratch = bytes};
}

static row collective(weft_phase phase, const char *module, weft_axis axis, weft_collective what,
                      size_t bytes, size_t count)
{
    return (row){.done = {.kind = WEFT_OPERATION_COLLECTIVE,
                          .phase = phase,
                          .module = module,
                          .axis = axis,
                          .collective = what,
                          .bytes = bytes,
                          .count = count}};
}

/* A region's begin and, below, its end. Under sequence parallelism its rows are scratch. */
static row enter(const plain *p, weft_phase phase)
{
    const bool gathers = p->shape->sequence_parallel;
    row r = collective(phase, "enter", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_GATHER, p->whole,
                       gathers && p->shape->tp > 1);
    r.scratch = gathers ? p->whole : 0;
    return r;
}

static row leave(const plain *p, weft_phase phase)
{
    const bool scatters = p->shape->sequence_parallel;
    row r = collective(phase, "exit", WEFT_AXIS_TP,
                       scatters ? WEFT_COLLECTIVE_REDUCE_SCATTER : WEFT_COLLECTIVE_ALL_REDUCE,
                       p->whole, p->shape->tp > 1);
    r.scratch = scatters ? p->whole : 0;
    return r;
}

/* --- linear layers --------------------------------------------------------------------------- */

size_t weft_plain_gradient_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F16 ? 2 : sizeof(float);
}

/* Under sequence parallelism a column-parallel layer keeps its share of the rows, and gathers them
 * anew while it makes the gradient of its input (Korthikanti et al., section 4.2.2). That gradient
 * is scattered or summed while the weight's is made. */
static void column_backward(const plain *p, const char *module, size_t width)
{
    const size_t rows = p->d.rows_full, in = p->d.hidden;
    row gather = enter(p, input), scatter = leave(p, input);
    gather.done.beside = scatter.done.beside = !p->of_2021;
    gather.scratch = 0;
    ADD(p, product(p, input, module, rows, in, width), gather,
        product(p, weight, module, width, in, rows), scatter,
        kernel(weight, module, width * in * p->added));
}

static void row_backward(const plain *p, const char *module, size_t in)
{
    const size_t rows = p->d.rows_full, width = p->d.hidden;
    ADD(p, enter(p, input), product(p, input, module, rows, in, width),
        product(p, weight, module, width, in, rows), kernel(weight, module, width * in * p->added));
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* Apex's first norms read a row once for its sums and once to normalise it; backward reads gradient
 * and input for the weights, the row's sums and the result, half of the last from caches: 1.4 and
 * 2.0 times the traffic of kernels that read once (NVIDIA/apex pull request 1037). */
static void norm(const plain *p, const char *module)
{
    ADD(p, kernel(forward, module, (p->of_2021 ? 3 : 2) * p->rows),
        kernel(input, module, (p->of_2021 ? 6 : 3) * p->rows));
}

/* The end of a branch: bias, dropout and residual in one kernel. Backward drops the gradient, sums
 * it for the bias, and adds the branch's gradient to the residual's. */
static void end_branch(const plain *p, const char *module)
{
    ADD(p, kernel(forward, module, 3 * p->rows + p->masks),
        kernel(input, module, 2 * p->rows + p->masks), kernels(weight, module, p->rows, p->bias),
        kernel(input, module, 3 * p->rows), kept(input, module, p->masks));
}

static void describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out);

static void describe_block(const plain *p)
{
    const weft_block *b = (const weft_block *)p->layer;
    const weft_layer *children[] = {b->attention, b->mlp};
    norm(p, "input_layernorm");
    end_branch(p, "attention_dropout_add");
    norm(p, "pre_mlp_layernorm");
    end_branch(p, "mlp_dropout_add");
    /* inputs and outputs of both norms */
    ADD(p, scratch(input, 2 * p->rows), kept(weight, "input_layernorm", p->rows),
        kept(weight, "pre_mlp_layernorm", p->rows), kept(weight, "input", p->rows),
        kept(weight, "middle", p->rows));
    for (int i = 0; i < 2; i++) {
        weft_layer_cost cost = {.list = p->out->list};
        describe(children[i], p->shape, &cost);
        weft_cost_inside(p->out, &cost);
    }
}

/* --- attention ------------------------------------------------------------------------------- */

#define SCORES "attention_scores"

/* One launch of all heads' products, whole squares. */
static row batched(const plain *p, weft_phase phase, size_t n, size_t k)
{
    row r = product(p, phase, SCORES, p->heads * p->shape->seq, n, k);
    r.done.groups = p->heads;
    return r;
}

/* Scores, softmax, its dropout and the context, of `squares` scores. */
static void scores_forward(const plain *p, weft_phase phase, size_t squares)
{
    const size_t seq = p->shape->seq, channels = p->d.head_dim;
    ADD(p, batched(p, phase, seq, channels),
        kernel(phase, SCORES, (squares / 2 + squares) * p->element),
        kernel(phase, SCORES, 2 * squares * p->element + squares),
        batched(p, phase, channels, seq));
}

/* Products of the dropped softmax, of the values, and behind the kernels of queries and of keys.
 * Softmax reads two halves and writes all. */
static void scores_backward(const plain *p, size_t squares)
{
    const size_t seq = p->shape->seq, channels = p->d.head_dim;
    ADD(p, batched(p, input, seq, channels), batched(p, input, channels, seq),
        kernel(input, SCORES, 2 * squares * p->element + squares),
        kernel(input, SCORES, 2 * squares * p->element), batched(p, input, channels, seq),
        batched(p, input, channels, seq));
}

static void keep_scores(const plain *p, size_t squares, bool again)
{
    const size_t pieces[] = {squares * p->element, squares, squares * p->element};
    for (int i = 0; i < 3; i++)
        if (again)
            p->out->recomputed_bytes += weft_piece_bytes(WEFT_U8, pieces[i], 1);
        else
            ADD(p, kept(input, WEFT_MODULE_ATTENTION, pieces[i]));
}

static void describe_attention(const plain *p)
{
    const weft_dims *d = &p->d;
    const size_t rows = d->rows_full, width = d->heads * d->head_dim;
    const size_t qkv = rows * d->qkv * p->element, context = rows * width * p->element;
    const size_t rotated = rows * (d->heads + d->groups) * d->rotary * p->element;
    const size_t squares = p->heads * p->shape->seq * p->shape->seq;
    const bool bias = p->bias || p->options->add_qkv_bias;
    const bool again = p->shape->recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN);
    ADD(p, enter(p, forward), product(p, forward, "linear_qkv", rows, d->qkv, d->hidden),
        kernels(forward, "linear_qkv", 2 * qkv, bias),
        kernels(forward, "rotary", 2 * rotated, rotated > 0));
    scores_forward(p, forward, squares);
    /* heads beside each other */
    ADD(p, kernel(forward, "context", 2 * context),
        product(p, forward, "linear_proj", rows, d->hidden, width), leave(p, forward));

    row_backward(p, "linear_proj", width);
    ADD(p, kernel(input, "context", 2 * context));
    if (again)
        scores_forward(p, WEFT_PHASE_RECOMPUTE, squares);
    scores_backward(p, squares);
    /* the three gradients packed, and summed for the bias */
    ADD(p, kernels(input, "rotary", 2 * rotated, rotated > 0), kernel(input, "linear_qkv", 2 * qkv),
        kernels(weight, "linear_qkv", qkv, bias));
    column_backward(p, "linear_qkv", d->qkv);

    ADD(p, kept(input, "linear_qkv", qkv));
    keep_scores(p, squares, again);
    /* gradients of dropped and whole softmax; of q, k and v */
    ADD(p, kept(weight, "linear_proj", context), scratch(input, 2 * squares * p->element),
        scratch(input, qkv));
}

/* --- MLP ------------------------------------------------------------------------------------- */

/* Bias and activation as one kernel, whose output of so many bytes is kept; `count` each. */
static void activation(const plain *p, size_t bytes, size_t count)
{
    static const char module[] = "activation";
    ADD(p, kernels(forward, module, (p->d.gates + 1) * bytes, count),
        kernels(input, module, (2 * p->d.gates + 1) * bytes, count),
        kernels(weight, module, p->d.gates * bytes, p->bias ? count : 0));
}

static void mlp(const plain *p, size_t ffn_all)
{
    const size_t rows = p->d.rows_full, hidden = p->d.hidden;
    const size_t ffn = ffn_all / (size_t)p->shape->tp, up = p->d.gates * ffn;
    const size_t bytes = rows * ffn * p->element;
    ADD(p, enter(p, forward), product(p, forward, "linear_fc1", rows, up, hidden),
        product(p, forward, "linear_fc2", rows, hidden, ffn), leave(p, forward));
    row_backward(p, "linear_fc2", ffn);
    activation(p, bytes, 1);
    column_backward(p, "linear_fc1", up);
    ADD(p, kept(input, "linear_fc1", p->d.gates * bytes), kept(weight, "linear_fc2", bytes),
        scratch(input, bytes), scratch(input, p->d.gates * bytes));
}

static void describe_mlp(const plain *p)
{
    mlp(p, ((const weft_mlp *)p->layer)->ffn_all);
}

/* --- the ends -------------------------------------------------------------------------------- */

/* The table's gradient is dense. */
static void describe_embedding(const plain *p)
{
    const bool learned = p->options->position_embedding_type == WEFT_POSITION_LEARNED;
    ADD(p, kernel(forward, "embedding", 2 * p->whole), leave(p, forward),
        kernels(forward, "positions", 3 * p->rows, learned),
        kernel(forward, "dropout", 2 * p->rows + p->masks),
        kernel(weight, "dropout", 2 * p->rows + p->masks), enter(p, weight),
        kernel(weight, "embedding", 3 * p->whole),
        kernel(weight, "embedding", p->d.vocab_rows * p->d.hidden * p->added),
        kernels(weight, "positions", 2 * p->rows, learned), kept(input, "dropout", p->masks));
}

/* The logits in fp32, whole: the largest, differences, exponentials, their sum and shares, one
 * kernel each; backward scales the shares in place. Ranks reduce the largest, the label's, the sum.
 */
static void describe_head(const plain *p)
{
    static const char loss[] = "loss", layer[] = "output_layer";
    const size_t rows = p->d.rows_full, vocab = p->d.vocab_rows;
    const size_t logits = rows * vocab * p->element, all = rows * vocab * sizeof(float);
    norm(p, "final_layernorm");
    ADD(p, enter(p, forward), product(p, forward, layer, rows, vocab, p->d.hidden),
        kernel(forward, loss, logits + all), kernel(forward, loss, all),
        kernel(forward, loss, 2 * all), kernel(forward, loss, 2 * all), kernel(forward, loss, all),
        kernel(forward, loss, 2 * all),
        collective(forward, loss, WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_REDUCE,
                   3 * rows * sizeof(float), p->shape->tp > 1 ? 3 : 0),
        kernel(input, loss, 2 * all), kernel(input, loss, logits + all));
    column_backward(p, layer, vocab);
    ADD(p, kept(weight, "input", p->rows), kept(weight, layer, p->rows), kept(input, loss, all),
        scratch(forward, logits), scratch(input, logits));
}

/* --- experts --------------------------------------------------------------------------------- */

typedef struct moe {
    const plain *p;
    weft_moe_dims d;
    size_t tokens, hidden;
    size_t places; /* rows that an expert gets of each rank */
    size_t rows;   /* that each local expert computes */
    size_t moved;  /* bytes of all of those */
} moe;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static size_t up(double value)
{
    const size_t whole = (size_t)value;
    return whole + (value > (double)whole);
}

static moe moe_of(const plain *p)
{
    const weft_model_options *o = p->options;
    moe m = {.p = p,
             .d = weft_moe_dims_of(o, p->shape),
             .tokens = p->d.rows_full,
             .hidden = p->d.hidden};
    /* a rank's load, or its hottest expert's if known */
    const size_t topk = (size_t)o->moe_router_topk;
    const double most = (double)m.d.experts / (double)topk;
    const double load = larger(p->shape->moe_load > 0 ? p->shape->moe_load : 1,
                               o->moe_router_forced_load < most ? o->moe_router_forced_load : most);
    const double factor =
        m.d.exchange && o->moe_expert_capacity_factor > 0 ? o->moe_expert_capacity_factor : load;
    m.d.exchange = p->shape->binding != 0; /* on one rank, too */
    m.places = up(factor * (double)(m.tokens * topk) / (double)m.d.experts);
    m.rows = m.places * (m.d.exchange ? (size_t)p->shape->ep : 1);
    m.moved = m.d.local_experts * m.rows * m.hidden * p->element;
    return m;
}

/* Softmax, choice, masks of the chosen, places by sums along the tokens: so many kernels over all
 * tokens' scores, in fp32. */
enum { ROUTING_KERNELS = 12, ROUTING_BACKWARD = 4 };

static void route(const moe *m)
{
    static const char module[] = "router";
    const size_t tokens = m->tokens, experts = m->d.experts, hidden = m->hidden;
    const size_t scores = tokens * experts * sizeof(float), wide = tokens * hidden * sizeof(float);
    const size_t cast = m->p->whole + wide;
    /* kept: logits, gates, rows */
    ADD(m->p, kernel(forward, module, cast),
        gemm(WEFT_F32, forward, module, tokens, experts, hidden, 1),
        kernels(forward, module, 2 * ROUTING_KERNELS * scores, ROUTING_KERNELS),
        kernels(input, module, 2 * ROUTING_BACKWARD * scores, ROUTING_BACKWARD),
        gemm(WEFT_F32, weight, module, experts, hidden, tokens, 1),
        gemm(WEFT_F32, input, module, tokens, hidden, experts, 1), kernel(input, module, cast),
        kept(input, module, scores), kept(input, module, scores), kept(weight, module, wide));
}

/* Rows to their places by products with masks, and home again: weights in fp32, whether they are
 * there, both in the activations' type. Backward's products are those of the experts' outputs, of
 * the weights and of the input. */
static void lay_out_by_masks(const moe *m)
{
    static const char module[] = "one_hot";
    const plain *p = m->p;
    const size_t tokens = m->tokens, places = m->d.experts * m->places, hidden = m->hidden;
    const size_t mask = tokens * places, typed = mask * p->element, wide = mask * sizeof(float);
    ADD(p, kernel(forward, module, wide), kernel(forward, module, wide + mask),
        kernel(forward, module, mask + typed), kernel(forward, module, wide + typed),
        product(p, forward, module, places, hidden, tokens),
        product(p, forward, module, tokens, hidden, places),
        product(p, input, module, places, hidden, tokens),
        product(p, input, module, tokens, places, hidden),
        product(p, input, module, tokens, hidden, places), kernel(input, module, wide + typed),
        kernel(input, module, wide), kept(input, module, typed), kept(input, module, typed));
}

/* Rows that are chosen, and put back into cleared ones. */
static void choose_by_index(const moe *m, weft_phase phase)
{
    static const char module[] = "index_select";
    ADD(m->p, kernels(phase, module, 2 * m->moved, m->d.local_experts),
        kernel(phase, module, m->p->whole),
        kernels(phase, module, 2 * m->moved, m->d.local_experts));
}

static void expert_linear(const moe *m, const char *module, size_t in, size_t width)
{
    const weft_dtype dtype = m->p->shape->dtype;
    const size_t local = m->d.local_experts;
    ADD(m->p, gemm(dtype, forward, module, m->rows, width, in, local),
        gemm(dtype, input, module, m->rows, in, width, local),
        gemm(dtype, weight, module, width, in, m->rows, local),
        kernels(weight, module, local * in * width * m->p->added, local));
}

/* All-to-alls there and back. In the tensor-parallel group every rank has the answers of its own
 * experts alone. */
static void travel(const moe *m, weft_phase phase)
{
    const plain *p = m->p;
    const size_t sent = m->d.experts * m->places * m->hidden * p->element;
    const size_t sums = p->shape->etp > 1 ? m->d.local_experts : 0;
    if (m->d.exchange)
        ADD(p,
            collective(phase, "all_to_all", WEFT_AXIS_EP, WEFT_COLLECTIVE_ALL_TO_ALL, 2 * sent, 2),
            collective(phase, "experts", WEFT_AXIS_ETP, WEFT_COLLECTIVE_ALL_REDUCE, m->moved,
                       sums));
    else
        ADD(p, leave(p, phase));
    ADD(p, scratch(phase, m->moved),
        scratch(phase, m->d.local_experts * m->rows * m->d.gates * m->d.ffn * p->element));
}

/* The shared expert is an MLP, whose answer is added. */
static void share(const plain *p)
{
    static const char module[] = "shared_experts";
    const size_t width = (size_t)p->options->moe_shared_expert_intermediate_size;
    if (width == 0)
        return;
    mlp(p, width);
    ADD(p, kernel(forward, module, 3 * p->rows), scratch(forward, p->rows),
        kernel(input, module, 3 * p->rows), scratch(input, p->rows));
}

static void describe_moe(const plain *p)
{
    const moe m = moe_of(p);
    const size_t middle = m.d.local_experts * m.rows * m.d.ffn * p->element;
    ADD(p, enter(p, forward), enter(p, input), enter(p, weight));
    route(&m);
    if (m.d.exchange)
        lay_out_by_masks(&m);
    for (int half = 0; half < 2 && !m.d.exchange; half++)
        choose_by_index(&m, half ? input : forward);
    expert_linear(&m, "experts.linear_fc1", m.hidden, m.d.gates * m.d.ffn);
    expert_linear(&m, "experts.linear_fc2", m.d.ffn, m.hidden);
    activation(p, middle, m.d.local_experts);
    travel(&m, forward);
    travel(&m, input);
    ADD(p, kept(weight, "dispatch", m.moved), kept(weight, "experts", m.d.gates * middle),
        kept(weight, "experts", middle),
        kept(weight, "combine",
             m.d.exchange ? m.d.experts * m.places * m.hidden * p->element : m.moved));
    share(p);
}

/* --- all ------------------------------------------------------------------------------------- */

static plain plain_of(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const weft_model_options *o = &((const weft_layer_common *)layer)->options;
    const weft_dims d = weft_dims_of(o, shape);
    const size_t element = weft_dtype_bytes(shape->dtype), masks = d.rows * d.hidden;
    return (plain){.layer = layer,
                   .options = o,
                   .shape = shape,
                   .out = out,
                   .d = d,
                   .element = element,
                   .added = element + 2 * weft_plain_gradient_bytes(shape->dtype),
                   .rows = masks * element,
                   .whole = d.rows_full * d.hidden * element,
                   .masks = masks,
                   .heads = shape->batch * d.heads,
                   .bias = !o->disable_bias_linear,
                   .of_2021 = shape->plain_kernels == WEFT_PLAIN_2021};
}

static void describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    static const struct {
        const char *kind;
        void (*describe)(const plain *);
    } known[] = {{"embedding", describe_embedding},
                 {"block", describe_block},
                 {"attention", describe_attention},
                 {"mlp", describe_mlp},
                 {"moe", describe_moe},
                 {"head", describe_head}};
    const bool is_ours = weft_layer_table(layer).width == weft_layer_width;
    for (size_t i = 0; is_ours && i < sizeof known / sizeof *known; i++)
        if (strcmp(weft_layer_kind(layer), known[i].kind) == 0) {
            const plain p = plain_of(layer, shape, out);
            known[i].describe(&p);
            return;
        }
    weft_cost_own(out, shape, layer);
}

void weft_plain_describe(const weft_layer *layer, const weft_shape *shape, weft_description *out)
{
    out->keeps_input = true;
    describe(layer, shape, &out->cost);
}
