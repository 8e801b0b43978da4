/* Descriptions of the MoE layers of published runs.
 *
 * Over data-parallel ranks: DeepSpeed-MoE (Rajbhandari et al. 2022) after GShard (Lepikhin et al.
 * 2021). With S tokens here, E experts and C places an expert, one-hot masks [S, E, C] say which
 * token has which place. Products with them lay rows out for the experts, [E C, S] x [S, H], and
 * bring them home, [S, E C] x [E C, H]. Every expert gets C rows of each rank, empty ones too.
 * Without a capacity factor C is what the hottest expert needs. All tensor-parallel ranks have all
 * tokens and send all of them.
 *
 * In the tensor-parallel group: PPMoE (Chen et al. 2023, algorithm 1). Rows are chosen by their
 * index and put back by it; experts compute one after the other. */
#include "layers/describe/plain.h"
#include "layers/pass/recompute.h"

typedef struct moe {
    weft_layer_cost *out;
    const weft_shape *shape;
    size_t tokens, experts, local, topk, hidden, ffn, gates;
    size_t places;      /* rows that an expert gets of each rank */
    size_t expert_rows; /* that each local expert computes */
    bool exchange;
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

static moe moe_of(const weft_model_options *o, const weft_shape *shape, const weft_moe_dims *d,
                  weft_layer_cost *out)
{
    /* a rank's load, or its hottest expert's if known */
    const double most = (double)o->num_experts / (double)o->moe_router_topk;
    const double load = larger(shape->moe_load > 0 ? shape->moe_load : 1,
                               o->moe_router_forced_load < most ? o->moe_router_forced_load : most);
    const double factor =
        d->exchange && o->moe_expert_capacity_factor > 0 ? o->moe_expert_capacity_factor : load;
    moe m = {.out = out,
             .shape = shape,
             .tokens = weft_shape_local_tokens(shape),
             .experts = d->experts,
             .local = d->local_experts,
             .topk = (size_t)o->moe_router_topk,
             .hidden = shape->hidden,
             .ffn = d->ffn,
             .gates = d->gates,
             .exchange = shape->binding != 0};
    m.places = up(factor * (double)(m.tokens * m.topk) / (double)m.experts);
    m.expert_rows = m.places * (m.exchange ? (size_t)shape->ep : 1);
    return m;
}

static void move(const moe *m, weft_phase phase, const char *module, size_t bytes, size_t kernels)
{
    weft_cost_memory(m->out, phase, module, bytes, kernels);
}

static size_t row_bytes(const moe *m, size_t rows)
{
    return rows * weft_row_bytes(m->shape);
}

/* Softmax, choice, masks of the chosen, places by sums along the tokens: so many kernels over all
 * tokens' scores, in fp32. */
enum { ROUTING_KERNELS = 12, ROUTING_BACKWARD = 4 };

static void describe_router(const moe *m)
{
    const weft_shape *shape = m->shape;
    const size_t scores = m->tokens * m->experts, rows = m->tokens * m->hidden;
    const size_t cast = rows * (weft_dtype_bytes(shape->dtype) + sizeof(float));
    move(m, WEFT_PHASE_FORWARD, "router", cast, 1);
    weft_cost_gemm(m->out, WEFT_PHASE_FORWARD, "router", WEFT_F32, m->tokens, m->experts, m->hidden,
                   1);
    move(m, WEFT_PHASE_FORWARD, "router", 2 * ROUTING_KERNELS * scores * sizeof(float),
         ROUTING_KERNELS);
    move(m, WEFT_PHASE_INPUT_GRADIENT, "router", 2 * ROUTING_BACKWARD * scores * sizeof(float),
         ROUTING_BACKWARD);
    weft_cost_gemm(m->out, WEFT_PHASE_WEIGHT_GRADIENT, "router", WEFT_F32, m->experts, m->hidden,
                   m->tokens, 1);
    weft_cost_gemm(m->out, WEFT_PHASE_INPUT_GRADIENT, "router", WEFT_F32, m->tokens, m->hidden,
                   m->experts, 1);
    move(m, WEFT_PHASE_INPUT_GRADIENT, "router", cast, 1);
    for (int i = 0; i < 2; i++) /* logits, gates */
        weft_cost_stash(m->out, "router", WEFT_F32, m->tokens, m->experts,
                        WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash(m->out, "router", WEFT_F32, m->tokens, m->hidden, WEFT_PHASE_WEIGHT_GRADIENT);
}

static void mask_product(const moe *m, weft_phase phase, const char *module, size_t rows,
                         size_t width, size_t k)
{
    weft_cost_gemm(m->out, phase, module, m->shape->dtype, rows, width, k, 1);
}

/* Rows to their places by products with masks, and home again. */
static void describe_masks(const moe *m)
{
    const weft_shape *shape = m->shape;
    const size_t places = m->experts * m->places, mask = m->tokens * places;
    const size_t act = weft_dtype_bytes(shape->dtype);
    const weft_phase forward = WEFT_PHASE_FORWARD, backward = WEFT_PHASE_INPUT_GRADIENT;
    /* weights in fp32, whether they are there, both in the activations' type */
    move(m, forward, "one_hot", mask * sizeof(float), 1);
    move(m, forward, "one_hot", mask * (sizeof(float) + 1), 1);
    move(m, forward, "one_hot", mask * (1 + act), 1);
    move(m, forward, "one_hot", mask * (sizeof(float) + act), 1);
    mask_product(m, forward, "one_hot", places, m->hidden, m->tokens);
    mask_product(m, forward, "one_hot", m->tokens, m->hidden, places);
    mask_product(m, backward, "one_hot", places, m->hidden, m->tokens); /* of experts' outputs */
    mask_product(m, backward, "one_hot", m->tokens, places, m->hidden); /* of the weights */
    mask_product(m, backward, "one_hot", m->tokens, m->hidden, places); /* of the input */
    move(m, backward, "one_hot", mask * (sizeof(float) + act), 1);
    move(m, backward, "one_hot", mask * sizeof(float), 1);
    for (int i = 0; i < 2; i++)
        weft_cost_stash(m->out, "one_hot", shape->dtype, m->tokens, places,
                        WEFT_PHASE_INPUT_GRADIENT);
}

/* Rows that are chosen and put back by their index. */
static void describe_indices(const moe *m)
{
    const size_t rows = row_bytes(m, m->local * m->expert_rows);
    for (int half = 0; half < 2; half++) {
        const weft_phase phase = half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD;
        move(m, phase, "index_select", 2 * rows, m->local);
        move(m, phase, "index_select", row_bytes(m, m->tokens), 1); /* cleared */
        move(m, phase, "index_select", 2 * rows, m->local);
    }
}

static void describe_travel(const moe *m, weft_phase phase)
{
    if (m->exchange)
        weft_cost_collective(m->out, phase, "all_to_all", WEFT_AXIS_EP, WEFT_COLLECTIVE_ALL_TO_ALL,
                             2 * row_bytes(m, m->experts * m->places), 2);
    if (m->exchange && m->shape->etp > 1)
        weft_cost_collective(m->out, phase, "experts", WEFT_AXIS_ETP, WEFT_COLLECTIVE_ALL_REDUCE,
                             row_bytes(m, m->local * m->expert_rows), m->local);
}

static void expert_linear(const moe *m, const char *module, size_t in, size_t width)
{
    const weft_dtype dtype = m->shape->dtype;
    const size_t weights = m->local * in * width;
    weft_cost_gemm(m->out, WEFT_PHASE_FORWARD, module, dtype, m->expert_rows, width, in, m->local);
    weft_cost_gemm(m->out, WEFT_PHASE_INPUT_GRADIENT, module, dtype, m->expert_rows, in, width,
                   m->local);
    weft_cost_gemm(m->out, WEFT_PHASE_WEIGHT_GRADIENT, module, dtype, width, in, m->expert_rows,
                   m->local);
    move(m, WEFT_PHASE_WEIGHT_GRADIENT, module,
         weights * (weft_dtype_bytes(dtype) + 2 * weft_plain_gradient_bytes(dtype)), m->local);
}

static void keep(const moe *m, const char *module, size_t rows, size_t width)
{
    weft_cost_stash(m->out, module, m->shape->dtype, rows, width, WEFT_PHASE_WEIGHT_GRADIENT);
}

static void describe_shared(const weft_model_options *o, const weft_shape *shape,
                            weft_layer_cost *out)
{
    const size_t width = (size_t)o->moe_shared_expert_intermediate_size;
    const size_t rows = weft_dims_of(o, shape).rows;
    if (width == 0)
        return;
    weft_describe_plain_mlp(o, shape, width, out);
    for (int half = 0; half < 2; half++) {
        const weft_phase phase = half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD;
        weft_cost_scratch(out, shape, phase, shape->dtype, rows, shape->hidden);
        weft_cost_memory(out, phase, "shared_experts", 3 * rows * weft_row_bytes(shape), 1);
    }
}

void weft_describe_plain_moe(const weft_model_options *o, const weft_shape *shape,
                             weft_layer_cost *out)
{
    const weft_moe_dims dims = weft_moe_dims_of(o, shape);
    const moe m = moe_of(o, shape, &dims, out);
    const size_t rows = m.local * m.expert_rows;
    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    weft_cost_enter(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    describe_router(&m);
    if (m.exchange)
        describe_masks(&m);
    else
        describe_indices(&m);
    expert_linear(&m, "experts.linear_fc1", m.hidden, m.gates * m.ffn);
    expert_linear(&m, "experts.linear_fc2", m.ffn, m.hidden);
    weft_describe_plain_activation(o, shape, rows, m.ffn, m.local, out);
    for (int half = 0; half < 2; half++) {
        const weft_phase phase = half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD;
        describe_travel(&m, phase);
        if (!m.exchange) /* every rank has the answers of its own experts alone */
            weft_cost_exit(out, shape, phase);
        weft_cost_scratch(out, shape, phase, shape->dtype, rows, m.hidden);
        weft_cost_scratch(out, shape, phase, shape->dtype, rows, m.gates * m.ffn);
    }
    keep(&m, "dispatch", rows, m.hidden);
    keep(&m, "experts", rows, m.gates * m.ffn);
    keep(&m, "experts", rows, m.ffn);
    keep(&m, "combine", m.exchange ? m.experts * m.places : rows, m.hidden);
    describe_shared(o, shape, out);
}
