/* The gate of the shared expert (Qwen2-MoE): y += sigmoid(x w) shared(x), a number a token. To the
 * kernels it is a router that has one expert, whose rows are the shared expert's. */
#include "core/device/device.h"
#include "layers/moe/internal.h"
#include "layers/model/model.h"

weft_status weft_moe_gate_init(weft_moe *m, weft_build *build)
{
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_build_shape(build);
    const size_t rows = weft_shape_boundary_rows(shape);
    void *memory;
    if (!m->shared || !o->moe_shared_expert_gate)
        return WEFT_OK;
    const weft_linear_row row = {.linear = &m->gate,
                                 .name = "shared_experts.gate",
                                 .kind = shape->sequence_parallel ? WEFT_LINEAR_SCORES_SUMMED
                                                                  : WEFT_LINEAR_SCORES,
                                 .in = (size_t)o->hidden_size,
                                 .out = 1};
    WEFT_TRY(weft_linears_declare(build, o, &row, 1));
    m->device = weft_build_device(build);
    WEFT_TRY(weft_device_alloc_for(m->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                   rows * sizeof *m->own_row, "rows of the shared expert",
                                   &memory));
    m->own_row = memory;
    m->num_own_rows = rows;
    for (size_t t = 0; t < rows; t++)
        m->own_row[t] = (int32_t)t;
    return WEFT_OK;
}

weft_status weft_moe_gate_forward(const weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                  const weft_tensor *x, const weft_tensor *to)
{
    const size_t rows = x->dims[0];
    weft_lane *lane = weft_pass_lane(pass);
    weft_moe_gate *g = &state->gate;
    weft_tensor sums;
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, rows, 1, &g->logits));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, rows, 1, &g->scores));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, rows, 1, &g->index));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, 3, 1, &sums));
    float *sum = sums.data;
    WEFT_TRY(weft_lane_zero(lane, sum, 3 * sizeof *sum));
    WEFT_TRY(weft_linear_forward(pass, &m->gate, x, false, &g->logits));
    WEFT_TRY(weft_route(
        lane, &WEFT_ARGS(weft_route_args, .num_tokens = rows, .num_experts = 1, .topk = 1,
                         .pre_softmax = true, .logits = g->logits.data, .scores = g->scores.data,
                         .top_index = g->index.data, .top_prob = g->scores.data, .counts = sum,
                         .score_sums = sum + 1, .z_sum = sum + 2, .sigmoid = true)));
    return weft_combine(lane, &WEFT_ARGS(weft_combine_args, .num_tokens = rows, .topk = 1,
                                         .cols = x->dims[1], .dtype = x->dtype, .rows = g->out.data,
                                         .row_of = m->own_row, .num_rows = rows,
                                         .top_prob = g->scores.data, .y = to->data));
}

weft_status weft_moe_gate_backward(const weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                   const weft_tensor *dy, const weft_tensor *dx)
{
    const size_t rows = dy->dims[0];
    weft_lane *lane = weft_pass_lane(pass);
    weft_moe_gate *g = &state->gate;
    weft_tensor dprob, dlogits;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, rows, 1, &dprob));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, rows, 1, &dlogits));
    WEFT_TRY(weft_combine_backward(
        lane,
        &WEFT_ARGS(weft_combine_backward_args, .num_tokens = rows, .topk = 1, .cols = dy->dims[1],
                   .dtype = dy->dtype, .dy = dy->data, .rows = g->out.data, .row_of = m->own_row,
                   .num_rows = rows, .top_prob = g->scores.data, .drows = g->out.data,
                   .dtop_prob = dprob.data)));
    WEFT_TRY(weft_route_backward(
        lane, &WEFT_ARGS(weft_route_backward_args, .num_tokens = rows, .num_experts = 1, .topk = 1,
                         .pre_softmax = true, .logits = g->logits.data, .scores = g->scores.data,
                         .top_index = g->index.data, .top_prob = g->scores.data,
                         .dtop_prob = dprob.data, .dlogits = dlogits.data, .sigmoid = true)));
    return weft_moe_logits_backward(pass, &m->gate, &state->x, &dlogits, dx);
}
