/* An MoE layer's description. */
#include "layers/describe_plain.h"
#include "layers/moe.h"
#include "layers/placing.h"
#include "layers/recompute.h"

weft_moe_dims weft_moe_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_moe_dims d = {0};
    bool by_tp = shape->binding == 0;
    size_t all = weft_shape_local_tokens(shape);
    d.full = by_tp || shape->etp > 1 || shape->tp == 1;
    d.exchange = !by_tp && shape->ep > 1;
    d.summed = d.exchange && shape->etp > 1;
    d.tokens = d.full ? all : all / (size_t)shape->tp;
    d.experts = (size_t)o->num_experts;
    d.local_experts = d.experts / (size_t)shape->ep;
    d.gates = o->swiglu ? 2 : 1;
    d.ffn_all = weft_or_else(o->moe_ffn_hidden_size,
                             (int64_t)weft_or_else(o->ffn_hidden_size, 4 * o->hidden_size));
    d.ffn = d.ffn_all / (size_t)shape->etp;
    if (shape->training && o->moe_expert_capacity_factor > 0) {
        double share = (double)d.tokens * (double)o->moe_router_topk / (double)d.experts *
                       o->moe_expert_capacity_factor;
        d.capacity = (size_t)share;
        if ((double)d.capacity < share)
            d.capacity++;
    }
    return d;
}

size_t weft_moe_balanced_rows(const weft_moe_dims *d, size_t topk, size_t ep)
{
    size_t choices = d->tokens * topk;
    if (d->capacity > 0 && d->experts * d->capacity < choices)
        choices = d->experts * d->capacity;
    return d->exchange ? choices : choices / ep;
}

size_t weft_moe_order_room(size_t balanced, size_t ep, size_t parts)
{
    return (ep < 4 ? ep : 4) * ((balanced + parts - 1) / parts);
}

/* One rank's rows in the rings of an MoE layer's program (schedule/moe_layer.h). */
typedef struct moe_rings {
    size_t parts;
    size_t sent;      /* rows that leave home; without an exchange, rows at the experts */
    size_t all, most; /* rows at the experts, of all partitions and of the largest */
    size_t input, middle,
        home;        /* rows of the rings of T_DI (also dT_DO, dT_DI), T_M, and sent rows */
    size_t kept;     /* rows of T_DI and T_M kept from forward to backward */
    bool resent;     /* backward sends the rows again */
    bool redone;     /* backward recomputes the first linear layer */
    bool reorder;    /* rows arrive by sender and are reordered by expert */
    bool by_experts; /* a partition has all rows of some experts */
} moe_rings;

/* A load as a factor of an n-th of the balanced rows; `otherwise` for an unknown one. */
static size_t at_load(double load, size_t balanced, size_t n, size_t otherwise)
{
    return load > 0 ? (size_t)(load * (double)balanced / (double)n + 0.5) : otherwise;
}

/* The largest partition's share of balanced rows, by its experts if cut by experts. */
static size_t share_of(const moe_rings *r, const weft_moe_dims *d, size_t rows)
{
    const size_t experts = (d->local_experts + r->parts - 1) / r->parts;
    return r->by_experts ? (rows * experts + d->local_experts - 1) / d->local_experts
                         : (rows + r->parts - 1) / r->parts;
}

/* balanced: rows that balanced routing brings. */
static moe_rings moe_rings_of(const weft_moe_dims *d, const weft_shape *shape, size_t balanced)
{
    size_t n = d->exchange && shape->moe_partitions > 1 ? (size_t)shape->moe_partitions : 1;
    size_t rows = at_load(shape->moe_load, balanced, 1, balanced);
    size_t sent = d->exchange ? at_load(shape->moe_sent, balanced, 1, balanced) : rows;
    bool reuse = d->exchange && shape->moe_reuse > 0;
    moe_rings r = {.parts = n,
                   .sent = sent,
                   .all = rows,
                   .by_experts = d->exchange && shape->moe_by_experts > 0};
    size_t most_sent = at_load(shape->moe_part_sent, balanced, n, share_of(&r, d, sent));
    r.most = at_load(shape->moe_part_load, balanced, n, share_of(&r, d, rows));
    r.input = reuse && n > 2 ? 2 * r.most : rows;
    r.middle = reuse ? r.most : rows;
    r.home = !d->exchange ? 0 : reuse && n > 2 ? 2 * most_sent : sent;
    r.kept = reuse ? 0 : rows;
    r.resent = reuse && (shape->moe_reuse == 2 || shape->moe_reuse == 4);
    r.redone = reuse && shape->moe_reuse >= 3;
    r.reorder = d->exchange && (d->local_experts > 1 || shape->experts_placed);
    return r;
}

/* Adds the memory of forward or backward (`phase`). */
static void describe_moe_scratch(const weft_model_options *o, const weft_shape *shape,
                                 weft_layer_cost *out, const weft_moe_dims *d, const moe_rings *r,
                                 weft_phase phase)
{
    bool forward = phase == WEFT_PHASE_FORWARD;
    size_t hidden = shape->hidden;
    int rings = d->exchange ? (forward ? 1 : 2) : 0; /* T_DO; its gradient and T_DI's */
    rings += r->kept == 0;                           /* T_DI */
    weft_cost_scratch(out, shape, phase, shape->dtype, r->most, d->ffn);
    if (forward || r->resent)
        weft_cost_scratch(out, shape, phase, shape->dtype, r->home, hidden);
    for (int i = 0; i < rings; i++)
        weft_cost_scratch(out, shape, phase, shape->dtype, r->input, hidden);
    if (r->kept == 0)
        weft_cost_scratch(out, shape, phase, shape->dtype, r->middle, d->gates * d->ffn);
    for (int i = 0; r->reorder && i < (forward ? 1 : 2); i++)
        weft_cost_scratch(out, shape, phase, shape->dtype, r->most, hidden);
    if (forward)
        return;
    weft_cost_scratch(out, shape, phase, WEFT_F32, d->tokens, (size_t)o->moe_router_topk);
    weft_cost_scratch(out, shape, phase, WEFT_F32, d->tokens, d->experts);
    if (shape->dtype != WEFT_F32) {
        weft_cost_scratch(out, shape, phase, WEFT_F32, d->tokens, hidden);
        weft_cost_scratch(out, shape, phase, shape->dtype, d->tokens, d->experts);
    }
}

static void describe_router(const weft_model_options *o, const weft_shape *shape,
                            weft_layer_cost *out, const weft_moe_dims *d)
{
    size_t topk = (size_t)o->moe_router_topk, hidden = shape->hidden;
    size_t scores = d->tokens * d->experts, act = weft_dtype_bytes(shape->dtype);
    weft_cost_gemm(out, WEFT_PHASE_FORWARD, "router", shape->dtype, d->tokens, d->experts, hidden,
                   1);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "router", 2 * scores * sizeof(float), 1);
    /* choices sorted: the experts chosen, and both directions of the order */
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "router", 3 * d->tokens * topk * sizeof(int32_t), 1);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "router", 3 * scores * sizeof(float), 1);
    if (shape->dtype != WEFT_F32) {
        weft_cost_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, "router",
                         d->tokens * hidden * (act + sizeof(float)), 1);
        weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "router", scores * (act + sizeof(float)),
                         1);
    }
    weft_cost_gemm(out, WEFT_PHASE_WEIGHT_GRADIENT, "router", WEFT_F32, d->experts, hidden,
                   d->tokens, 1);
    weft_cost_gemm(out, WEFT_PHASE_INPUT_GRADIENT, "router", shape->dtype, d->tokens, hidden,
                   d->experts, 1);
    for (int i = 0; i < 2; i++) /* logits, scores */
        weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(MOE), "router", WEFT_F32,
                               d->tokens, d->experts, WEFT_PHASE_INPUT_GRADIENT);
    for (int i = 0; i < 4; i++) /* choice, probability, place at the experts and back */
        weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(MOE), "router", WEFT_F32,
                               d->tokens, topk, WEFT_PHASE_INPUT_GRADIENT);
}

/* Partitions of two sizes: their numbers, rows and experts. By tokens each has all experts, and
 * sizes differ by one row; by experts each has all rows of some experts, and sizes differ by one
 * expert. */
typedef struct part_kind {
    size_t count, rows, experts;
} part_kind;

static part_kind part_kind_of(const moe_rings *r, const weft_moe_dims *d, size_t more)
{
    const size_t whole = r->by_experts ? d->local_experts : r->all;
    const size_t larger = whole % r->parts, each = whole / r->parts + more;
    part_kind kind = {more ? larger : r->parts - larger, each, d->local_experts};
    if (r->by_experts) {
        kind.experts = each;
        kind.rows = (r->all * each + d->local_experts / 2) / d->local_experts;
    }
    return kind;
}

/* One linear layer of all local experts, a launch a partition. */
static void describe_grouped(const weft_shape *shape, weft_layer_cost *out, weft_phase phase,
                             const char *module, const weft_moe_dims *d, const moe_rings *r,
                             size_t in, size_t width)
{
    for (size_t more = 0; more < 2; more++) {
        const part_kind part = part_kind_of(r, d, more);
        const size_t rows = part.rows;
        bool weight = phase == WEFT_PHASE_WEIGHT_GRADIENT;
        bool input = phase == WEFT_PHASE_INPUT_GRADIENT;
        weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                            .phase = phase,
                            .module = module,
                            .dtype = shape->dtype,
                            .m = weight ? width : rows,
                            .n = weight || input ? in : width,
                            .k = weight  ? rows
                                 : input ? width
                                         : in,
                            .groups = part.experts,
                            .count = part.count};
        o.flops = weft_operation_model_flops(&o);
        weft_cost_operation(out, &o);
    }
}

static void describe_experts(const weft_shape *shape, weft_layer_cost *out, const weft_moe_dims *d,
                             const moe_rings *r)
{
    static const weft_phase phases[] = {WEFT_PHASE_FORWARD, WEFT_PHASE_WEIGHT_GRADIENT,
                                        WEFT_PHASE_INPUT_GRADIENT, WEFT_PHASE_RECOMPUTE};
    size_t hidden = shape->hidden, up = d->gates * d->ffn;
    size_t chosen = 2 * r->all * weft_row_bytes(shape); /* rows read and written in another order */
    for (int i = 0; i < (r->redone ? 4 : 3); i++)
        describe_grouped(shape, out, phases[i], "experts.linear_fc1", d, r, hidden, up);
    for (int i = 0; i < 3; i++)
        describe_grouped(shape, out, phases[i], "experts.linear_fc2", d, r, d->ffn, hidden);
    weft_cost_activation(out, shape, d->gates, r->all, d->ffn, r->parts);
    if (r->reorder) {
        weft_cost_memory(out, WEFT_PHASE_FORWARD, "experts", 2 * chosen, 2 * r->parts);
        weft_cost_memory(out, WEFT_PHASE_RECOMPUTE, "experts", (1 + r->redone) * chosen,
                         (1 + r->redone) * r->parts);
        weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "experts", 2 * chosen, 2 * r->parts);
    }
}

/* Adds the exchanges to the experts and back, in one direction. */
static void describe_travel(const weft_shape *shape, weft_layer_cost *out, const weft_moe_dims *d,
                            const moe_rings *r, weft_phase phase)
{
    size_t sent = r->sent * weft_row_bytes(shape), bytes = r->all * weft_row_bytes(shape);
    if (!d->exchange)
        return;
    weft_cost_collective(out, phase, "dispatch", WEFT_AXIS_EP, WEFT_COLLECTIVE_ALL_TO_ALL, sent,
                         r->parts);
    if (d->summed)
        weft_cost_collective(out, phase, "experts", WEFT_AXIS_ETP, WEFT_COLLECTIVE_ALL_REDUCE,
                             bytes, r->parts);
    weft_cost_collective(out, phase, "combine", WEFT_AXIS_EP, WEFT_COLLECTIVE_ALL_TO_ALL, bytes,
                         r->parts);
}

/* Adds the collectives between the layer's rows and the routed ones. */
static void describe_moe_region(const weft_shape *shape, weft_layer_cost *out,
                                const weft_moe_dims *d, weft_phase phase)
{
    if (d->full)
        weft_cost_enter(out, shape, phase);
    if (d->full && phase != WEFT_PHASE_FORWARD)
        weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    if (d->summed && shape->sequence_parallel) /* the partial sum's place alone */
        weft_cost_scratch(out, shape, phase, shape->dtype, weft_shape_local_tokens(shape),
                          shape->hidden);
    else if (d->full && !d->summed)
        weft_cost_exit(out, shape, phase);
    if (!d->full && shape->tp > 1 && !shape->sequence_parallel)
        weft_cost_collective(out, phase, "exit", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_GATHER,
                             weft_shape_local_tokens(shape) * weft_row_bytes(shape), 1);
}

/* Memory that partitions by experts share. */
static void describe_runs(const weft_model_options *o, const weft_shape *shape,
                          weft_layer_cost *out, const weft_moe_dims *d)
{
    weft_cost_host(out, d->experts * sizeof(int32_t));
    weft_cost_host(out, (d->local_experts + 1) * sizeof(int64_t));
    weft_cost_host(out, d->tokens * (size_t)o->moe_router_topk * sizeof(int32_t));
    if (!shape->experts_on_host)
        return;
    weft_cost_host(out, 2 * d->experts * sizeof(int64_t));
    weft_cost_host(out, d->local_experts * sizeof(int32_t));
    weft_cost_host(out, 2 * d->local_experts * sizeof(int64_t));
}

/* Adds host memory for counts, partitions' rows and offloads, as layers/dispatch.c and
 * layers/moe_tasks.c allocate it. */
static void describe_moe_host(const weft_model_options *o, const weft_shape *shape,
                              weft_layer_cost *out, const weft_moe_dims *d, const moe_rings *r)
{
    const size_t sorted = r->by_experts ? 1 : r->parts;
    size_t ep = d->exchange ? (size_t)shape->ep : 1, counts = sorted * d->experts;
    size_t bytes = weft_dtype_bytes(shape->dtype);
    int reuse = r->kept == 0 ? shape->moe_reuse : WEFT_REUSE_NONE;
    size_t balanced = weft_moe_balanced_rows(d, (size_t)o->moe_router_topk, (size_t)shape->ep);
    size_t room = weft_moe_order_room(balanced, ep, r->parts);
    room = room > r->most ? room : r->most;
    const size_t seats = shape->experts_placed ? d->experts : d->local_experts;
    const size_t ranks = shape->experts_placed ? (size_t)shape->ep : ep;
    weft_cost_host(out, (2 * d->experts + 1) * sizeof(float));
    weft_cost_host(out, (d->experts + 1) * sizeof(int64_t));
    weft_cost_host(out, sizeof(weft_wrong_choice));
    weft_cost_host(out, ranks * sorted * seats * sizeof(int64_t));
    for (int i = 0; i < 2 && sorted > 1; i++)
        weft_cost_host(out, counts * sizeof(int64_t));
    weft_cost_host(out, r->parts * sizeof(weft_moe_part));
    weft_cost_host(out, ep * sizeof(size_t));
    if (r->by_experts)
        describe_runs(o, shape, out, d);
    for (size_t p = 0; p < r->parts; p++) {
        weft_cost_host(out, 2 * ranks * sizeof(size_t));
        weft_cost_host(out, (seats + 1) * sizeof(int64_t));
        if (shape->experts_on_host && !r->by_experts) {
            weft_cost_host(out, seats * sizeof(int32_t));
            weft_cost_host(out, 2 * seats * sizeof(int64_t));
        }
        if (shape->experts_placed) {
            weft_cost_host(out, weft_placing_capacity((int)d->experts, (int)ranks) *
                                    sizeof(weft_placement_part));
            weft_cost_host(out, (d->experts + 1) * sizeof(int32_t));
            weft_cost_host(out, d->tokens * (size_t)o->moe_router_topk * sizeof(int32_t));
        }
        if (r->reorder)
            weft_cost_host(out, 2 * (room + 1) * sizeof(int32_t));
    }
    if (weft_reuse_offloads_input((weft_reuse)reuse))
        weft_cost_host(out, r->all * shape->hidden * bytes);
    if (weft_reuse_offloads_middle((weft_reuse)reuse))
        weft_cost_host(out, r->all * d->gates * d->ffn * bytes);
}

/* Adds a recomputation of routing, experts and exchanges, without the counts: answer() in
 * layers/moe.c. Its scratch is free before backward's. */
static void describe_again(const weft_model_options *o, const weft_shape *shape,
                           weft_layer_cost *out, const weft_moe_dims *d, const moe_rings *r)
{
    const weft_phase phase = WEFT_PHASE_RECOMPUTE;
    const size_t topk = (size_t)o->moe_router_topk, hidden = shape->hidden;
    const size_t row = weft_row_bytes(shape), scores = d->tokens * d->experts;
    weft_layer_cost scratch = {0};
    weft_cost_repeats(out, true);
    if (d->full && shape->sequence_parallel && shape->tp > 1)
        weft_cost_collective(out, phase, "enter", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_GATHER,
                             shape->seq / (size_t)shape->cp * shape->batch * row, 1);
    weft_cost_gemm(out, phase, "router", shape->dtype, d->tokens, d->experts, hidden, 1);
    weft_cost_memory(out, phase, "router", 2 * scores * sizeof(float), 1);
    weft_cost_memory(out, phase, "router", 3 * d->tokens * topk * sizeof(int32_t), 1);
    if (!d->full && shape->tp > 1)
        weft_cost_collective(out, phase, "router", WEFT_AXIS_TP, WEFT_COLLECTIVE_ALL_REDUCE,
                             (2 * d->experts + 1) * sizeof(float), 1);
    if (shape->cp > 1)
        weft_cost_collective(out, phase, "router", WEFT_AXIS_CP, WEFT_COLLECTIVE_ALL_REDUCE,
                             (2 * d->experts + 1) * sizeof(float), 1);
    weft_cost_memory(out, phase, "dispatch", 2 * r->sent * row, r->parts);
    describe_travel(shape, out, d, r, phase);
    describe_grouped(shape, out, phase, "experts.linear_fc1", d, r, hidden, d->gates * d->ffn);
    describe_grouped(shape, out, phase, "experts.linear_fc2", d, r, d->ffn, hidden);
    weft_cost_memory(out, phase, "activation",
                     (d->gates + 1) * r->all * d->ffn * weft_dtype_bytes(shape->dtype), r->parts);
    if (r->reorder)
        weft_cost_memory(out, phase, "experts", 4 * r->all * row, 2 * r->parts);
    weft_cost_repeats(out, false);
    if (d->full)
        weft_cost_enter(&scratch, shape, WEFT_PHASE_FORWARD);
    describe_moe_scratch(o, shape, &scratch, d, r, WEFT_PHASE_FORWARD);
    if (shape->training && scratch.scratch.own[0] > out->scratch.own[1])
        weft_cost_scratch(out, shape, phase, WEFT_U8, scratch.scratch.own[0] - out->scratch.own[1],
                          1);
}

static void describe_shared(const weft_model_options *o, const weft_shape *shape,
                            weft_layer_cost *out)
{
    size_t width = (size_t)o->moe_shared_expert_intermediate_size;
    size_t rows = weft_dims_of(o, shape).rows;
    if (width == 0)
        return;
    const uint64_t own = out->recomputed_bytes;
    out->recomputed_bytes = 0;
    weft_describe_mlp(o, shape, width,
                      WEFT_RECOMPUTE_MODULE(SHARED_EXPERTS) | WEFT_RECOMPUTE_MODULE(MOE), out);
    if (own > out->recomputed_bytes)
        out->recomputed_bytes = own;
    for (int half = 0; half < 2; half++) {
        weft_phase phase = half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD;
        weft_cost_scratch(out, shape, phase, shape->dtype, rows, shape->hidden);
        weft_cost_memory(out, phase, "shared_experts", 3 * rows * weft_row_bytes(shape), 1);
    }
}

void weft_describe_moe(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    weft_moe_dims d = weft_moe_dims_of(o, shape);
    size_t hidden = shape->hidden, topk = (size_t)o->moe_router_topk, row = weft_row_bytes(shape);
    moe_rings r = moe_rings_of(&d, shape, weft_moe_balanced_rows(&d, topk, (size_t)shape->ep));
    size_t rows = r.sent;
    weft_cost_parameter(out, shape,
                        shape->tp > 1 && !d.summed ? WEFT_GRADIENT_DENSE_SUM : WEFT_GRADIENT_DENSE,
                        d.experts * hidden, d.experts * hidden);
    for (size_t i = 0; i < 2; i++) { /* up, with its gate; down */
        size_t width = i == 0 ? d.gates : 1;
        weft_cost_parameter(out, shape, WEFT_GRADIENT_EXPERT,
                            d.experts * hidden * d.ffn_all * width,
                            d.local_experts * hidden * d.ffn * width);
    }

    if (shape->plain_kernels) {
        weft_describe_plain_moe(o, shape, &d, out);
        describe_shared(o, shape, out);
        return;
    }
    describe_router(o, shape, out, &d);
    if (!d.full && shape->tp > 1) /* the sums of the auxiliary losses */
        weft_cost_collective(out, WEFT_PHASE_FORWARD, "router", WEFT_AXIS_TP,
                             WEFT_COLLECTIVE_ALL_REDUCE, (2 * d.experts + 1) * sizeof(float), 1);
    if (shape->cp > 1)
        weft_cost_collective(out, WEFT_PHASE_FORWARD, "router", WEFT_AXIS_CP,
                             WEFT_COLLECTIVE_ALL_REDUCE, (2 * d.experts + 1) * sizeof(float), 1);
    if (d.exchange)
        weft_cost_collective(out, WEFT_PHASE_FORWARD, "counts", WEFT_AXIS_EP,
                             WEFT_COLLECTIVE_ALL_TO_ALL,
                             (r.by_experts ? 1 : r.parts) * d.experts * sizeof(int64_t), 1);
    if (r.by_experts && shape->experts_on_host)
        weft_cost_collective(out, WEFT_PHASE_FORWARD, "counts", WEFT_AXIS_EP,
                             WEFT_COLLECTIVE_ALL_REDUCE, 2 * d.experts * sizeof(int64_t), 1);
    describe_experts(shape, out, &d, &r);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "dispatch", 2 * rows * row, r.parts);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "combine", (rows + d.tokens) * row, 1);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "combine", (2 * rows + d.tokens) * row, 1);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "dispatch", (rows + d.tokens) * row, 1);
    if (r.resent) {
        weft_cost_memory(out, WEFT_PHASE_RECOMPUTE, "dispatch", 2 * rows * row, r.parts);
        weft_cost_collective(out, WEFT_PHASE_RECOMPUTE, "dispatch", WEFT_AXIS_EP,
                             WEFT_COLLECTIVE_ALL_TO_ALL, rows * row, r.parts);
    }
    for (int half = 0; half < 2; half++) {
        weft_phase phase = half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD;
        describe_travel(shape, out, &d, &r, phase);
        describe_moe_region(shape, out, &d, phase);
        describe_moe_scratch(o, shape, out, &d, &r, phase);
    }
    weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(MOE), "combine", shape->dtype, rows,
                           hidden, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(MOE), "dispatch", shape->dtype, r.kept,
                           hidden, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_stash_unless(out, shape, WEFT_RECOMPUTE_MODULE(MOE), "experts", shape->dtype, r.kept,
                           d.gates * d.ffn, WEFT_PHASE_WEIGHT_GRADIENT);
    if (shape->recompute & WEFT_RECOMPUTE_MODULE(MOE))
        describe_again(o, shape, out, &d, &r);
    describe_moe_host(o, shape, out, &d, &r);
    if (o->moe_router_forced_load > 0)
        out->table_bytes += d.tokens * d.experts * sizeof(float);
    describe_shared(o, shape, out);
}
