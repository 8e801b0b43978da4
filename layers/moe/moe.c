/* The mixture-of-experts layer: router, dispatch, experts, combine.
 *
 * The mesh decides how a token reaches its experts (weft_moe_dims):
 *   binding tp (PPMoE §3.3): every TP rank routes all S * B rows alike and selects by index those
 * of its own experts; the region's exit sums the ranks' results. binding dp, etp = tp (DPMoE,
 * tensor-sharded experts): every TP rank routes all rows, an all-to-all over EP carries them
 * (MoNTA's forms: all TP ranks send the same), and each rank makes its shard's partial sum. Where
 * tokens travel, ranks sum these over ETP before they go home, so all TP ranks have the whole
 * result; with ep = 1 the region's exit sums. binding dp, etp = 1: every rank routes its own 1 / tp
 * of the rows (its sequence shard, or its slice), and an all-to-all over EP carries them; without
 * sequence parallelism an all-gather over TP joins the slices. Where the exit sums, the router's
 * gradients are partial sums over TP, so the auxiliary losses' gradients, which every TP rank has
 * whole, enter as 1 / tp. Experts have no biases.
 *
 * A program leads from routing to the answers at home (tasks.c); its first task is the host's
 * wait for the counts. */
#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/device/device.h"
#include "layers/layers.h"
#include "layers/model/model.h"
#include "layers/moe/internal.h"
#include "layers/pass/note.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"

/* --- the shared expert's gate ---------------------------------------------------------------- */

/* Of Qwen2-MoE: y += sigmoid(x w) shared(x), a number a token. To the kernels it is a router that
 * has one expert, whose rows are the shared expert's. */

/* Declares the shared expert's gate where the options ask. */
static weft_status moe_gate_init(weft_moe *m, weft_build *build)
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

/* to = sigmoid(x w) times state->gate.out. */
static weft_status moe_gate_forward(const weft_moe *m, weft_pass *pass, weft_moe_state *state,
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

/* Turns state->gate.out into its gradient and adds the gate's to dx. */
static weft_status moe_gate_backward(const weft_moe *m, weft_pass *pass, weft_moe_state *state,
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

/* --- the layer ------------------------------------------------------------------------------- */

/* Experts' rows stay where forward left them, and so do the experts; all gradients are of linear
 * layers. */
static bool can_split(const weft_moe *m, const weft_build *build)
{
    const weft_shape *shape = weft_build_shape(build);
    const bool reuses = m->dims.exchange && build->model->setup.moe.pipeline.reuse;
    return !reuses && !m->expert_bias && !m->gate.weight && !shape->experts_on_host &&
           !(shape->recompute & WEFT_RECOMPUTE_MODULE(MOE)) &&
           (!m->shared || weft_layer_splits(m->shared));
}

static weft_status moe_init(weft_layer *layer, weft_build *build)
{
    weft_moe *m = (weft_moe *)layer;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_build_shape(build);
    if (o->num_experts == 0)
        return WEFT_KEY_ERROR("model.num_experts", " is 0, and %s (moe) is an MoE layer",
                              weft_layer_name(layer));
    m->dims = weft_moe_dims_of(o, shape);
    m->layer = build->layer;
    if (o->moe_router_forced_load > 0)
        WEFT_TRY(weft_moe_force_load(m, weft_build_device(build)));
    const weft_moe_dims *d = &m->dims;
    size_t hidden = (size_t)o->hidden_size;
    if (!d->full && weft_shape_local_tokens(shape) % (size_t)shape->tp != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%zu tokens a micro-batch do not divide by tensor parallel size %d",
                          weft_shape_local_tokens(shape), shape->tp);

    if (!d->full && weft_moe_num_sequences(o, shape) > 1 &&
        weft_shape_local_seq(shape) % (size_t)shape->tp != 0)
        return WEFT_KEY_ERROR("model.moe_router_load_balancing_type",
                              "seq_aux_loss: %zu tokens of a sequence do not divide by tensor "
                              "parallel size %d",
                              weft_shape_local_seq(shape), shape->tp);

    const weft_linear_kind first = weft_is_gated(o) ? WEFT_LINEAR_GATED : WEFT_LINEAR_COLUMN;
    const weft_linear_kind router =
        shape->tp > 1 && !d->summed ? WEFT_LINEAR_SCORES_SUMMED : WEFT_LINEAR_SCORES;
    const weft_linear_row rows[] = {
        {&m->router, "router", router, hidden, d->experts, o->moe_router_bias, 0},
        {&m->fc1, "experts.linear_fc1", first, hidden, d->ffn_all, o->add_expert_bias, d->experts},
        {&m->fc2, "experts.linear_fc2", WEFT_LINEAR_ROW, d->ffn_all, hidden, o->add_expert_bias,
         d->experts},
    };
    WEFT_TRY(weft_linears_declare(build, o, rows, 3));
    WEFT_TRY(weft_moe_declare_bias(m, build));
    WEFT_TRY(moe_gate_init(m, build));
    if (m->shared)
        WEFT_TRY(weft_build_child(build, "shared_experts.", m->shared));
    weft_layer_set_splits(layer, can_split(m, build));
    return WEFT_OK;
}

/* The rows that this rank routes: the layer's whole input, or this rank's slice. */
static weft_status routed_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *out)
{
    if (m->dims.full)
        return weft_pass_enter(pass, x, out);
    *out = *x;
    if (!weft_pass_shape(pass)->sequence_parallel) {
        out->dims[0] = m->dims.tokens;
        out->data = (char *)x->data + (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] *
                                          weft_tensor_bytes(out);
    }
    return WEFT_OK;
}

/* Makes y from this rank's part of the result. */
static weft_status result_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *y,
                               weft_tensor *part)
{
    if (m->dims.full)
        return weft_pass_partial(pass, y, part);
    return routed_rows(m, pass, y, part);
}

static weft_status finish_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *part,
                               weft_tensor *y)
{
    const weft_shape *shape = weft_pass_shape(pass);
    if (m->dims
            .summed) { /* every TP rank has all rows: under sequence parallelism it keeps its own */
        if (!shape->sequence_parallel)
            return WEFT_OK;
        size_t bytes = weft_tensor_bytes(y);
        size_t tp_rank = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
        return weft_lane_copy(weft_pass_lane(pass), y->data,
                              (const char *)part->data + tp_rank * bytes, bytes);
    }
    if (m->dims.full)
        return weft_pass_exit(pass, part, y);
    if (shape->sequence_parallel || shape->tp == 1)
        return WEFT_OK;
    size_t note;
    WEFT_TRY(weft_note_begin(pass, weft_pass_lane(pass), WEFT_NOTE_TENSOR, &note));
    WEFT_TRY_AS(weft_pass_lane(pass), "exit",
                weft_all_gather(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], weft_pass_lane(pass),
                                part->data, y->data, weft_tensor_count(part), y->dtype));
    return weft_note_end(pass, weft_pass_lane(pass), note);
}

/* How many experts come up one by one; 0: they are on the device. */
static int num_positions(const weft_moe *m, const weft_model *model)
{
    const bool placed = model->shape.experts_placed;
    return model->tier ? (int)(placed ? m->dims.experts : m->dims.local_experts) : 0;
}

static const weft_moe_whole *whole_of(const weft_moe *m, const weft_model *model,
                                      const weft_moe_plan *plan)
{
    return weft_moe_whole_of(model->moe, plan, num_positions(m, model));
}

/* Sorts the layer's input for the experts, and begins their program. A recomputed layer does not
 * keep its stash. */
static weft_status ask(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    weft_tensor rows;
    size_t gating;
    WEFT_TRY(routed_rows(m, pass, &state->x, &rows));
    weft_pass_leave_out(pass, WEFT_RECOMPUTE_MODULE(MOE));
    WEFT_TRY(weft_note_begin(pass, weft_pass_lane(pass), WEFT_NOTE_GATING, &gating));
    WEFT_TRY_AS(weft_pass_lane(pass), "router", weft_moe_route(m, pass, &state->routing, &rows));
    WEFT_TRY_AS(weft_pass_lane(pass), "router", weft_moe_sort_choices(m, pass, state));
    WEFT_TRY(weft_note_end(pass, weft_pass_lane(pass), gating));
    state->whole = whole_of(m, pass->model, state->plan);
    weft_moe_begin_forward(m, pass, state, &rows);
    return WEFT_OK;
}

/* Recomputes this, without a wait for the counts. */
static weft_status ask_again(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    state->again_mark = weft_pass_mark(pass);
    weft_pass_begin_repeat(pass, state->host_mark);
    return ask(m, pass, state);
}

static void end_again(weft_pass *pass, const weft_moe_state *state)
{
    weft_pass_keep(pass);
    weft_pass_end_repeat(pass);
    weft_pass_release(pass, state->again_mark);
}

static weft_status add_shared(weft_pass *pass, const weft_tensor *shared, const weft_tensor *to)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(
        lane, "shared_experts",
        weft_add(lane, &WEFT_ARGS(weft_add_args, .count = weft_tensor_count(to), .dtype = to->dtype,
                                  .a = to->data, .b = shared->data, .y = to->data)));
    return WEFT_OK;
}

/* Rows by rank with placement. */
static size_t fullest_placed(const weft_moe_cut *cut, size_t experts, size_t ranks)
{
    const weft_moe_part *part = &cut->parts[0];
    size_t most = 0;
    for (size_t r = 0; r < ranks; r++) {
        size_t rows = 0;
        for (int32_t i = 0; i < part->first_placed[experts]; i++)
            rows += part->placed[i].rank == (int32_t)r ? (size_t)part->placed[i].num_rows : 0;
        most = rows > most ? rows : most;
    }
    return most;
}

/* Without an exchange every rank knows the rows of all. */
static size_t fullest_rows(const weft_moe *m, const weft_moe_state *state)
{
    const weft_moe_dims *d = &m->dims;
    size_t most = state->cut.num_rows;
    if (!d->exchange && state->cut.parts[0].placed)
        return fullest_placed(&state->cut, d->experts, d->experts / d->local_experts);
    for (size_t first = 0; !d->exchange && first < d->experts; first += d->local_experts) {
        size_t rows = 0;
        for (size_t e = first; e < first + d->local_experts; e++)
            rows += (size_t)state->sorted.counts[e];
        most = rows > most ? rows : most;
    }
    return most;
}

static double balanced_rows(const weft_moe *m, const weft_pass *pass)
{
    return (double)weft_moe_balanced_rows(&m->dims, (size_t)m->common.options.moe_router_topk,
                                          (size_t)weft_pass_shape(pass)->ep);
}

static weft_status count_rows(const weft_moe *m, weft_pass *pass, const weft_moe_state *state)
{
    weft_loads *loads = &pass->model->sums.loads;
    const double balanced = balanced_rows(m, pass);
    /* In the first step alone. */
    WEFT_TRY(WEFT_GROW(loads->values, loads->capacity, loads->count + 1, "loads of layers"));
    loads->values[loads->count++] = (double)fullest_rows(m, state) / balanced;
    const weft_shape *shape = weft_pass_shape(pass);
    const bool again = pass->shares_stash || shape->recompute & WEFT_RECOMPUTE_MODULE(MOE);
    const bool out =
        pass->out && shape->offload & (WEFT_RECOMPUTE_MODULE(MOE) | WEFT_OFFLOAD_BLOCK);
    weft_rows *const sums[] = {&pass->layer_rows, &pass->rows,
                               again ? &weft_pass_recomputed(pass)->rows : &pass->kept_rows};
    for (int i = 0; i < (out && !again ? 2 : 3); i++) {
        sums[i]->rows += (double)state->cut.num_rows;
        sums[i]->sent += (double)state->cut.num_sent;
        sums[i]->balanced += balanced;
    }
    return WEFT_OK;
}

static void count_deferred(const weft_moe *m, weft_pass *pass, const weft_moe_cut *cut)
{
    weft_rows *rows = &pass->deferred->rows;
    rows->rows += (double)cut->num_rows;
    rows->sent += (double)cut->num_sent;
    rows->balanced += balanced_rows(m, pass);
}

static size_t scratch_before(const weft_pass *pass)
{
    return weft_pass_scratch_stack(pass)->peak_bytes;
}

static void note_scratch(const weft_moe *m, weft_pass *pass, const weft_moe_state *state,
                         size_t before)
{
    weft_model *model = pass->model;
    const double balanced = balanced_rows(m, pass);
    const double part = balanced / state->cut.num_parts;
    const weft_stack *stack = weft_pass_scratch_stack(pass);
    const weft_scratch_use use = !pass->backward ? WEFT_SCRATCH_FORWARD
                                 : !pass->leaves ? WEFT_SCRATCH_BACKWARD
                                 : stack->peak_bytes > model->memory.left_peak_bytes
                                     ? WEFT_SCRATCH_LEAVING
                                     : WEFT_SCRATCH_LEFT;
    if (stack->peak_bytes <= before)
        return;
    model->memory.scratch_layer[use] = pass->listed;
    model->memory.scratch_load[use] =
        (weft_moe_load){.rows = (double)state->cut.num_rows / balanced,
                        .sent = (double)state->cut.num_sent / balanced,
                        .part_rows = (double)state->cut.max_rows / part,
                        .part_sent = (double)state->cut.max_sent / part};
}

static bool makes_again(const weft_model *model, bool backward)
{
    return backward && model->shape.recompute & WEFT_RECOMPUTE_MODULE(MOE);
}

/* Programs have the places of their ways; backward the first is a recomputation's. Before each
 * stands a stage of the layer's own, and one behind the last. */
enum { INSIDE_FORWARD, INSIDE_BACKWARD, BEHIND_BACKWARD };

static int own_inside(const weft_moe *m, const weft_model *model, weft_pass *pass, bool backward,
                      weft_inside out[WEFT_MAX_INSIDE])
{
    static const uint8_t lanes[2][WEFT_NUM_LANES] = {{[WEFT_LANE_TO_DEVICE] = WEFT_LANE_TO_DEVICE,
                                                      [WEFT_LANE_TO_HOST] = WEFT_LANE_TO_HOST,
                                                      [WEFT_LANE_HOST] = WEFT_LANE_HOST,
                                                      [WEFT_LANE_FILE] = WEFT_LANE_FILE},
                                                     {[WEFT_LANE_TO_DEVICE] = WEFT_LANE_TO_DEVICE,
                                                      [WEFT_LANE_TO_HOST] = WEFT_LANE_TO_HOST,
                                                      [WEFT_LANE_HOST] = WEFT_LANE_HOST,
                                                      [WEFT_LANE_FILE] = WEFT_LANE_FILE,
                                                      [WEFT_LANE_EXPERT] = WEFT_LANE_EXPERT,
                                                      [WEFT_LANE_INSIDE] = WEFT_LANE_INSIDE,
                                                      [WEFT_LANE_PLACE] = WEFT_LANE_PLACE,
                                                      [WEFT_LANE_OFFLOAD] = WEFT_LANE_OFFLOAD,
                                                      [WEFT_LANE_PREFETCH] = WEFT_LANE_PREFETCH}};
    const weft_moe_state *state = pass && backward ? weft_pass_state(pass, &m->common.base) : NULL;
    const weft_moe_whole *whole = whole_of(m, model, state ? state->plan : model->moe->current);
    int count = 0;
    for (int i = backward && !makes_again(model, backward); i <= backward; i++)
        out[count++] = (weft_inside){&whole->programs[i], lanes[m->dims.exchange], i};
    return count;
}

/* The shared expert's come last. */
static int moe_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                      weft_way way, weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_moe *m = (const weft_moe *)layer;
    const int count = own_inside(m, model, pass, way != WEFT_WAY_FORWARD, out);
    return m->shared ? count + weft_layer_inside(m->shared, model, pass, way, out + count) : count;
}

/* The layer's own part; false: it is the shared expert's. *out_shared: of the shared expert, from
 * 0 with the layer's last; *out_ends: there is no further one. */
static bool own_part_at(const weft_moe *m, weft_pass *pass, weft_way way, int part,
                        weft_body_part *out, int *out_shared, bool *out_ends)
{
    weft_inside inside[WEFT_MAX_INSIDE];
    const int count = own_inside(m, pass->model, pass, way != WEFT_WAY_FORWARD, inside);
    const int last = weft_inside_count_parts(inside, count) - 1;
    *out_shared = m->shared ? part - last : -1;
    *out_ends = part - last ==
                (m->shared ? weft_layer_count_parts(m->shared, pass->model, pass, way) - 1 : 0);
    return weft_inside_at(inside, count, part, out);
}

static weft_status begin_pass(weft_pass *pass, weft_moe_state *state)
{
    state->scratch_before = scratch_before(pass);
    state->mark = weft_pass_mark(pass);
    return weft_note_begin(pass, weft_pass_lane(pass), WEFT_NOTE_MOE, &state->note);
}

static weft_status end_pass(const weft_moe *m, weft_pass *pass, const weft_moe_state *state)
{
    note_scratch(m, pass, state, state->scratch_before);
    weft_pass_release(pass, state->mark);
    return weft_note_end(pass, weft_pass_lane(pass), state->note);
}

static weft_status begin_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                 const weft_tensor *x)
{
    if (weft_pass_shape(pass)->cached_tokens > 0) /* passes bring more tokens or fewer */
        m->dims = weft_moe_dims_of(&m->common.options, weft_pass_shape(pass));
    WEFT_TRY(begin_pass(pass, state));
    state->x = *x;
    state->host_mark = weft_pass_host_mark(pass);
    return ask(m, pass, state);
}

static weft_status end_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                               const weft_tensor *x, weft_tensor *y)
{
    const size_t hidden = x->dims[1];
    weft_tensor part;
    weft_pass_keep(pass);
    if (!weft_pass_repeats(pass) && !weft_device_is_note(pass->model->setup.device)) {
        WEFT_TRY(weft_moe_count(m, pass, state));
        WEFT_TRY(count_rows(m, pass, state));
    }

    WEFT_TRY(result_rows(m, pass, y, &part));
    WEFT_TRY(
        weft_combine(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_combine_args, .num_tokens = m->dims.tokens,
                                .topk = (size_t)m->common.options.moe_router_topk, .cols = hidden,
                                .dtype = x->dtype, .rows = state->held.returned.data,
                                .row_of = state->sorted.row_of, .num_rows = state->cut.num_sent,
                                .top_prob = state->routing.prob.data, .y = part.data)));
    WEFT_TRY(finish_rows(m, pass, &part, y));
    if (m->shared)
        WEFT_TRY(weft_pass_scratch(pass, x->dtype, x->dims[0], hidden, &state->shared));
    return m->gate.weight ? weft_pass_stash(pass, x->dtype, x->dims[0], hidden, &state->gate.out)
                          : WEFT_OK;
}

/* Behind the shared expert. */
static weft_status join_forward(const weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                const weft_tensor *x, const weft_tensor *y)
{
    if (m->gate.weight)
        WEFT_TRY(moe_gate_forward(m, pass, state, x, &state->shared));
    if (m->shared)
        WEFT_TRY(add_shared(pass, &state->shared, y));
    return end_pass(m, pass, state);
}

static weft_status forward_part(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                const weft_body_part *at, weft_lane *lane, const weft_tensor *x,
                                weft_tensor *y)
{
    if (at->program)
        return weft_moe_run_task(state, &at->program->tasks[at->task], lane);
    return at->from == INSIDE_FORWARD ? begin_forward(m, pass, state, x)
                                      : end_forward(m, pass, state, x, y);
}

static weft_status moe_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                               const weft_tensor *x, weft_tensor *y)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    int shared;
    bool ends;
    if (own_part_at(m, pass, WEFT_WAY_FORWARD, part, &at, &shared, &ends))
        WEFT_TRY(forward_part(m, pass, state, &at, lane, x, y));
    if (shared >= 0)
        WEFT_TRY(weft_part_forward(m->shared, pass, shared, lane, x,
                                   m->gate.weight ? &state->gate.out : &state->shared));
    return ends ? join_forward(m, pass, state, x, y) : WEFT_OK;
}

/* --- the second half of a backward in two ---------------------------------------------------- */

/* Of the experts' first product, or of the second. */
static weft_status experts_weights(weft_layer *layer, weft_pass *pass, bool first)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    weft_lane *lane = weft_pass_lane(pass);
    const size_t scratch = scratch_before(pass);
    size_t whole;
    WEFT_TRY(weft_note_begin(pass, lane, WEFT_NOTE_MOE, &whole));
    weft_lane_mark_experts(lane, true);
    WEFT_TRY_AS(lane, "experts", weft_moe_run_weights(m, pass, state, first));
    weft_lane_mark_experts(lane, false);
    note_scratch(m, pass, state, scratch);
    return weft_note_end(pass, lane, whole);
}

static weft_status first_weights(weft_layer *layer, weft_pass *pass)
{
    return experts_weights(layer, pass, true);
}

static weft_status second_weights(weft_layer *layer, weft_pass *pass)
{
    return experts_weights(layer, pass, false);
}

static weft_status router_weights(weft_layer *layer, weft_pass *pass)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    weft_lane *lane = weft_pass_lane(pass);
    const size_t scratch = scratch_before(pass), mark = weft_pass_mark(pass);
    weft_tensor rows;
    size_t whole;
    WEFT_TRY(weft_note_begin(pass, lane, WEFT_NOTE_GATING, &whole));
    WEFT_TRY(routed_rows(m, pass, &state->x, &rows));
    WEFT_TRY_AS(lane, "router", weft_moe_route_weights(m, pass, &state->routing, &rows));
    note_scratch(m, pass, state, scratch);
    weft_pass_release(pass, mark);
    return weft_note_end(pass, lane, whole);
}

/* Whether the task, which has run, was the program's last of experts. */
static bool ends_experts(const weft_program *program, uint32_t index)
{
    bool ends = program->tasks[index].kind == WEFT_TASK_EXPERT;
    for (uint32_t i = index + 1; i < program->num_tasks; i++)
        ends = ends && program->tasks[i].kind != WEFT_TASK_EXPERT;
    return ends;
}

static weft_status run_backward_task(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                     const weft_body_part *at, weft_lane *lane)
{
    WEFT_TRY(weft_moe_run_task(state, &at->program->tasks[at->task], lane));
    if (!weft_pass_defers(pass) || !ends_experts(at->program, at->task))
        return WEFT_OK;
    WEFT_TRY(weft_pass_defer(pass, &m->common.base, second_weights));
    weft_pass_defer_soon(pass);
    return weft_pass_defer(pass, &m->common.base, first_weights);
}

static weft_status begin_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                  const weft_tensor *dy)
{
    weft_lane *lane = weft_pass_lane(pass);
    const size_t topk = (size_t)m->common.options.moe_router_topk;
    weft_tensor rows;
    WEFT_TRY(routed_rows(m, pass, dy, &rows));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, m->dims.tokens, topk, &state->dprob));
    WEFT_TRY(weft_combine_backward(
        lane, &WEFT_ARGS(weft_combine_backward_args, .num_tokens = m->dims.tokens, .topk = topk,
                         .cols = dy->dims[1], .dtype = dy->dtype, .dy = rows.data,
                         .rows = state->held.returned.data, .row_of = state->sorted.row_of,
                         .num_rows = state->cut.num_sent, .top_prob = state->routing.prob.data,
                         .drows = state->held.returned.data, .dtop_prob = state->dprob.data)));
    if (weft_pass_defers(pass)) { /* a first half reads the rows' shape */
        count_deferred(m, pass, &state->cut);
    } else {
        WEFT_TRY(routed_rows(m, pass, &state->x, &rows));
    }
    return weft_moe_begin_backward(m, pass, state, &rows);
}

static weft_status end_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                const weft_tensor *dy, weft_tensor *dx)
{
    weft_lane *lane = weft_pass_lane(pass);
    const size_t topk = (size_t)m->common.options.moe_router_topk, hidden = dy->dims[1];
    weft_tensor part;
    size_t gating;
    WEFT_TRY(result_rows(m, pass, dx, &part));
    WEFT_TRY(weft_permute_backward(
        lane, &WEFT_ARGS(weft_permute_backward_args, .num_tokens = m->dims.tokens, .topk = topk,
                         .cols = hidden, .dtype = dy->dtype, .drows = state->held.returned.data,
                         .row_of = state->sorted.row_of, .num_rows = state->cut.num_sent,
                         .dx = part.data)));
    WEFT_TRY(weft_note_begin(pass, lane, WEFT_NOTE_GATING, &gating));
    WEFT_TRY_AS(
        lane, "router",
        weft_moe_route_backward(m, pass, &state->routing, &state->work.rows, &state->dprob, &part));
    if (weft_pass_defers(pass))
        WEFT_TRY(weft_pass_defer(pass, &m->common.base, router_weights));
    WEFT_TRY(weft_note_end(pass, lane, gating));
    WEFT_TRY(finish_rows(m, pass, &part, dx));
    if (m->shared)
        WEFT_TRY(weft_pass_scratch(pass, dx->dtype, dx->dims[0], hidden, &state->shared));
    return m->gate.weight ? moe_gate_backward(m, pass, state, dy, dx) : WEFT_OK;
}

/* Behind the shared expert. */
static weft_status join_backward(const weft_moe *m, weft_pass *pass, const weft_moe_state *state,
                                 const weft_tensor *dx)
{
    if (m->shared)
        WEFT_TRY(add_shared(pass, &state->shared, dx));
    return end_pass(m, pass, state);
}

/* What a recomputation enqueues is forward's, and noted so. */
static weft_status run_again(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                             const weft_body_part *at, weft_lane *lane)
{
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_REPEATED);
    const weft_status status = at->program
                                   ? weft_moe_run_task(state, &at->program->tasks[at->task], lane)
                                   : ask_again(m, pass, state);
    weft_note_redoes(lane, outer);
    return status;
}

static weft_status backward_part(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                 const weft_body_part *at, weft_lane *lane, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    const bool again = makes_again(pass->model, true);
    if (at->program)
        return at->place == INSIDE_FORWARD ? run_again(m, pass, state, at, lane)
                                           : run_backward_task(m, pass, state, at, lane);
    if (at->from == INSIDE_FORWARD) {
        WEFT_TRY(begin_pass(pass, state));
        if (again)
            return run_again(m, pass, state, at, lane);
    } else if (at->from == INSIDE_BACKWARD && again) {
        end_again(pass, state);
    }
    return at->from == BEHIND_BACKWARD ? end_backward(m, pass, state, dy, dx)
                                       : begin_backward(m, pass, state, dy);
}

static weft_status moe_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                const weft_tensor *dy, weft_tensor *dx)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    int shared;
    bool ends;
    if (own_part_at(m, pass, weft_way_back(pass), part, &at, &shared, &ends))
        WEFT_TRY(backward_part(m, pass, state, &at, lane, dy, dx));
    if (shared >= 0)
        WEFT_TRY(weft_part_backward(m->shared, pass, shared, lane,
                                    m->gate.weight ? &state->gate.out : dy, &state->shared));
    return ends ? join_backward(m, pass, state, dx) : WEFT_OK;
}

static void moe_destroy(weft_layer *layer)
{
    weft_moe_release_forced((weft_moe *)layer);
    weft_layer_destroy(((weft_moe *)layer)->shared);
    free(layer);
}

static const weft_layer_parts moe_parts = {moe_inside, moe_forward, moe_backward};

static const weft_layer_ops moe_ops = {
    .struct_bytes = sizeof moe_ops,
    .kind = "moe",
    .state_bytes = sizeof(weft_moe_state),
    .init = moe_init,
    .forward = weft_parts_forward,
    .backward = weft_parts_backward,
    .destroy = moe_destroy,
    .routes_tokens = true,
    .width = weft_layer_width,
    .parts = &moe_parts,
    .by_token = true,
};

const weft_tensor *weft_moe_choices(const weft_layer *layer, weft_pass *pass)
{
    if (layer->ops != &moe_ops || ((const weft_moe *)layer)->dims.capacity > 0)
        return NULL;
    return &((const weft_moe_state *)weft_pass_state(pass, layer))->routing.index;
}

weft_layer *weft_moe_create(const weft_model_options *options)
{
    weft_moe *m = (weft_moe *)weft_layer_new(&moe_ops, sizeof *m, options);
    if (m && options->moe_shared_expert_intermediate_size > 0) {
        m->shared = weft_mlp_create_wide(
            options, (size_t)options->moe_shared_expert_intermediate_size,
            WEFT_RECOMPUTE_MODULE(SHARED_EXPERTS) | WEFT_RECOMPUTE_MODULE(MOE));
        if (!m->shared) {
            weft_layer_free(&m->common.base);
            return NULL;
        }
    }
    return (weft_layer *)m;
}
