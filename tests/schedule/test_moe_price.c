/* Prices of MoE layers against timelines worked out by hand, and the simulation with interference.
 * With an argument DIR it draws the documentation's timeline there instead. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/price/price.h"
#include "tests/schedule/moe_machine.h"

static double priced_with(const moe_pair *pair, int direction, const weft_moe_costs *costs,
                          const weft_interference *alpha, weft_trace *trace)
{
    double us = -1;
    OK(weft_program_moe_price(&pair->set.programs[direction], costs, alpha, trace, &us));
    return us;
}

static double priced(weft_reuse reuse, int n, int direction, const weft_moe_costs *costs)
{
    moe_pair pair = make_pair(reuse, n);
    const weft_interference none = weft_interference_none();
    const double us = priced_with(&pair, direction, costs, &none, NULL);
    release_set(&pair.set);
    return us;
}

#define ASSERT_US(got, wanted)                                                                     \
    do {                                                                                           \
        const double got_ = (got), wanted_ = (wanted);                                             \
        if (fabs(got_ - wanted_) > 1e-9 * (1 + fabs(wanted_)))                                     \
            fail_msg("%s: %.9g us instead of %.9g", #got, got_, wanted_);                          \
    } while (0)

/* Without reuse (MPMoE Fig. 4b): where S and R take longer than C they fill their lane; where C
 * takes longer than S and R together, the compute lane is filled. */
CASE(without_reuse)
{
    for (int n = 1; n <= 16; n++) {
        const weft_moe_costs traffic = {.dispatch_us = 5, .combine_us = 4, .expert_us = 3};
        ASSERT_US(priced(WEFT_REUSE_NONE, n, 0, &traffic), n == 1 ? 12 : 9 * n);
        const weft_moe_costs compute = {.dispatch_us = 2, .combine_us = 3, .expert_us = 7};
        ASSERT_US(priced(WEFT_REUSE_NONE, n, 0, &compute), 2 + 7 * n + 3);
        const weft_moe_costs backward = {
            .dispatch_us = 2, .combine_us = 3, .expert_us = 1, .expert_backward_us = 14};
        ASSERT_US(priced(WEFT_REUSE_NONE, n, 1, &backward), 2 + 14 * n + 3);
        /* The first rows are permuted before anything travels; the others while something does. */
        const weft_moe_costs permuted = {
            .permute_us = 1, .dispatch_us = 5, .combine_us = 4, .expert_us = 3};
        ASSERT_US(priced(WEFT_REUSE_NONE, n, 0, &permuted), n == 1 ? 13 : 1 + 9 * n);
    }
}

/* With reuse (MPMoE Fig. 7): what each strategy adds, where it is hidden and where it is not. */
CASE(with_reuse)
{
    for (int n = 1; n <= 16; n++) {
        /* Copies shorter than everything else hide: only the last T_M is still on its way when the
         * last rows are back, and only if it takes longer. */
        const weft_moe_costs hidden = {.dispatch_us = 5,
                                       .combine_us = 4,
                                       .expert_us = 3,
                                       .expert_backward_us = 3,
                                       .recompute_us = 1,
                                       .input_to_host_us = 1,
                                       .middle_to_host_us = 1,
                                       .input_to_device_us = 1,
                                       .middle_to_device_us = 1};
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
            ASSERT_US(priced((weft_reuse)reuse, n, 0, &hidden), n == 1 ? 12 : 9 * n);
        ASSERT_US(priced(WEFT_REUSE_S1, n, 1, &hidden), n == 1 ? 12 : 9 * n);
        /* S3 recomputes while the gradient travels. */
        ASSERT_US(priced(WEFT_REUSE_S3, n, 1, &hidden), n == 1 ? 12 : 9 * n);
        /* S2 and S4 send everything twice: the lane of S and R is filled with one dispatch more. */
        ASSERT_US(priced(WEFT_REUSE_S2, n, 1, &hidden), n == 1 ? 17 : 14 * n);
        ASSERT_US(priced(WEFT_REUSE_S4, n, 1, &hidden), n == 1 ? 17 : 14 * n);

        /* T_M has one slot: C of the next partition waits until it is offloaded. */
        const weft_moe_costs slow_offload = {
            .dispatch_us = 2, .combine_us = 2, .expert_us = 10, .middle_to_host_us = 6};
        ASSERT_US(priced(WEFT_REUSE_S1, n, 0, &slow_offload), 2 + 16 * n);
        ASSERT_US(priced(WEFT_REUSE_S2, n, 0, &slow_offload), 2 + 16 * n);
        ASSERT_US(priced(WEFT_REUSE_S3, n, 0, &slow_offload), 2 + 10 * n + 2);
        ASSERT_US(priced(WEFT_REUSE_NONE, n, 0, &slow_offload), 2 + 10 * n + 2);

        /* And backward C waits for T_M, which is prefetched when the partition before is done. */
        const weft_moe_costs slow_prefetch = {
            .dispatch_us = 2, .combine_us = 2, .expert_backward_us = 10, .middle_to_device_us = 6};
        ASSERT_US(priced(WEFT_REUSE_S1, n, 1, &slow_prefetch), 16 * n + 2);
        ASSERT_US(priced(WEFT_REUSE_S2, n, 1, &slow_prefetch), 16 * n + 2);
        ASSERT_US(priced(WEFT_REUSE_S3, n, 1, &slow_prefetch), 2 + 10 * n + 2);

        /* T_DI has two slots: one is prefetched while the other is used. */
        const weft_moe_costs slow_input = {
            .dispatch_us = 2, .combine_us = 2, .expert_backward_us = 10, .input_to_device_us = 6};
        ASSERT_US(priced(WEFT_REUSE_S3, n, 1, &slow_input), 6 + 10 * n + 2);

        /* Recomputation lengthens C, but for the first, which is recomputed while its gradient
         * travels: S4 sends the rows ahead of it. */
        const weft_moe_costs recomputed = {
            .dispatch_us = 2, .combine_us = 2, .expert_backward_us = 10, .recompute_us = 5};
        ASSERT_US(priced(WEFT_REUSE_S3, n, 1, &recomputed), 15 * n + 2);
        ASSERT_US(priced(WEFT_REUSE_S4, n, 1, &recomputed), 2 + 15 * n + 2);
    }
}

static double plain_cost(const void *context, int stage, const weft_task *task)
{
    const weft_moe_costs *c = context;
    (void)stage;
    const double by_kind[WEFT_NUM_TASK_KINDS][WEFT_NUM_FLOWS] = {
        [WEFT_TASK_COUNTS] = {c->counts_us},
        [WEFT_TASK_PERMUTE] = {c->permute_us},
        [WEFT_TASK_DISPATCH] = {0, c->dispatch_us, c->dispatch_us},
        [WEFT_TASK_EXPERT] = {0, c->expert_us, c->expert_backward_us},
        [WEFT_TASK_COMBINE] = {0, c->combine_us, c->combine_us},
        [WEFT_TASK_OFFLOAD] = {0, 0, 0, c->input_to_host_us, c->middle_to_host_us},
        [WEFT_TASK_PREFETCH] = {0, 0, 0, c->input_to_device_us, c->middle_to_device_us},
        [WEFT_TASK_RECOMPUTE] = {c->recompute_us},
    };
    return by_kind[task->kind][task->flow];
}

static weft_moe_costs random_costs(uint64_t *random)
{
    double us[11];
    for (int i = 0; i < 11; i++)
        us[i] = next_random(random, 4) ? next_random(random, 1000) / 7.0 : 0;
    return (weft_moe_costs){.permute_us = us[0],
                            .dispatch_us = us[1],
                            .combine_us = us[2],
                            .expert_us = us[3],
                            .expert_backward_us = us[4],
                            .recompute_us = us[5],
                            .input_to_host_us = us[6],
                            .middle_to_host_us = us[7],
                            .input_to_device_us = us[8],
                            .middle_to_device_us = us[9],
                            .counts_us = us[10]};
}

typedef struct ordered {
    const weft_moe_costs *costs;
    uint32_t num_asked;
    bool late; /* the counts come late */
} ordered;

static double ordered_end(void *context, const weft_task *task, double start_us)
{
    ordered *o = context;
    o->num_asked++;
    return start_us + plain_cost(o->costs, 0, task) +
           (o->late && task->kind == WEFT_TASK_COUNTS ? 1e6 : 0);
}

/* Without events: to the bit what the simulation says; behind lanes that are free later all comes
 * as much later; and what the host waits for inside a task stands ahead of all that follows, unless
 * the host goes on. */
static void in_order_agrees(const weft_program *program, const weft_moe_costs *costs,
                            const weft_price *price, weft_arena *arena)
{
    ordered o = {.costs = costs};
    weft_lanes lanes = {.host_us = 0}, later = {.host_us = 4096};
    double *ends, *shifted;
    OK(WEFT_ARRAY(arena, program->num_tasks, &ends));
    OK(WEFT_ARRAY(arena, program->num_tasks, &shifted));
    weft_program_in_order(program, ordered_end, &o, &lanes, ends);
    assert_int_equal(o.num_asked, program->num_tasks);
    weft_program_in_order(program, ordered_end, &o, &later, shifted);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        assert_true(ends[i] == price->spans[0][i].end_us);
        assert_true(fabs(shifted[i] - ends[i] - 4096) < 1e-6);
        assert_true(lanes.us[program->tasks[i].lane] >= ends[i]);
    }
    o.late = weft_program_host_waits(program);
    for (int goes_on = 0; goes_on < 2 && o.late; goes_on++) {
        lanes = (weft_lanes){.host_goes_on = goes_on};
        weft_program_in_order(program, ordered_end, &o, &lanes, ends);
        assert_true(goes_on ? lanes.host_us == 0 : lanes.host_us >= 1e6);
    }
}

/* Nothing slows anything: to the bit what the simulation without interference says. With a slower
 * or faster company time moves the other way, and never further than everything slowed. */
CASE(beside_and_alone)
{
    uint64_t random = 8;
    for (int round = 0; round < 400; round++) {
        moe_pair pair = make_pair((weft_reuse)next_random(&random, WEFT_NUM_REUSES),
                                  1 + (int)next_random(&random, 12));
        const weft_moe_costs costs = random_costs(&random);
        weft_interference alpha = weft_interference_none();
        const int direction = (int)next_random(&random, 2);
        weft_price plain, beside;
        OK(weft_program_price(&pair.set.programs[direction], 1,
                              &(weft_pricing){.cost = plain_cost, .context = &costs},
                              &pair.set.arena, &plain));
        OK(weft_program_price(
            &pair.set.programs[direction], 1,
            &(weft_pricing){.cost = plain_cost, .context = &costs, .interference = &alpha},
            &pair.set.arena, &beside));
        in_order_agrees(&pair.set.programs[direction], &costs, &plain, &pair.set.arena);
        assert_true(plain.makespan_us == beside.makespan_us);
        assert_true(plain.busy_us[0] == beside.busy_us[0]);
        assert_true(plain.bubble_share == beside.bubble_share);
        assert_true(priced_with(&pair, direction, &costs, &alpha, NULL) == plain.makespan_us);

        for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
            for (int x = 0; x <= WEFT_WORK_ALL; x++)
                alpha.alpha[y][x] = x == y ? 1 : 0.5;
        const double slowed = priced_with(&pair, direction, &costs, &alpha, NULL);
        assert_true(slowed >= plain.makespan_us * (1 - 1e-12));
        assert_true(slowed <= 2 * plain.makespan_us * (1 + 1e-12));
        release_set(&pair.set);
    }
}

/* Where the slices of a trace begin and end. */
static void assert_slice(const weft_trace *trace, const char *name, double start_us, double end_us)
{
    for (size_t i = 0; i < weft_trace_count(trace); i++) {
        const weft_slice *slice = &weft_trace_slices(trace)[i];
        if (strcmp(slice->name, name) != 0)
            continue;
        if (fabs(slice->start_us - start_us) > 1e-9 || fabs(slice->end_us - end_us) > 1e-9)
            fail_msg("%s from %g to %g instead of %g to %g", name, slice->start_us, slice->end_us,
                     start_us, end_us);
        return;
    }
    fail_msg("no slice %s", name);
}

/* Two partitions, worked out by hand. */
CASE(interference)
{
    const weft_moe_costs ones = {.dispatch_us = 1,
                                 .combine_us = 1,
                                 .expert_us = 1,
                                 .input_to_host_us = 1,
                                 .middle_to_host_us = 1};
    moe_pair pair = make_pair(WEFT_REUSE_NONE, 2);
    weft_trace *trace;
    OK(weft_trace_create(&trace));

    /* Both at half their speed while they meet: [S0][S1 C0][R0 C1][R1]. */
    weft_interference alpha = weft_interference_none();
    alpha.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] = 0.5;
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 0.5;
    ASSERT_US(priced_with(&pair, 0, &ones, &alpha, trace), 6);
    assert_slice(trace, "D1", 1, 3);
    assert_slice(trace, "E0", 1, 3);
    assert_slice(trace, "E1", 3, 5);
    assert_slice(trace, "C1", 5, 6);

    /* Only computation suffers: half of C0 is done when S1 is, the rest runs at full speed. */
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 1;
    weft_trace_clear(trace);
    ASSERT_US(priced_with(&pair, 0, &ones, &alpha, trace), 5);
    assert_slice(trace, "D1", 1, 2);
    assert_slice(trace, "E0", 1, 2.5);
    assert_slice(trace, "C0", 2.5, 3.5);
    assert_slice(trace, "E1", 2.5, 4);
    assert_slice(trace, "C1", 4, 5);
    weft_price price;
    OK(weft_program_price(
        &pair.set.programs[0], 1,
        &(weft_pricing){.cost = plain_cost, .context = &ones, .interference = &alpha},
        &pair.set.arena, &price));
    ASSERT_US(price.busy_us[0], 3); /* occupied, not the two it takes alone */
    release_set(&pair.set);

    /* Three at once, and only that costs: S1, C0 and the copy of the first T_DI take 2 together. */
    pair = make_pair(WEFT_REUSE_S1, 2);
    alpha = weft_interference_none();
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        alpha.alpha[y][WEFT_WORK_ALL] = 0.5;
    weft_trace_clear(trace);
    ASSERT_US(priced_with(&pair, 0, &ones, &alpha, trace), 6);
    assert_slice(trace, "D1", 1, 3);
    assert_slice(trace, "E0", 1, 3);
    assert_slice(trace, "Oi0", 1, 3);
    assert_slice(trace, "Om0", 3, 4);
    assert_slice(trace, "C0", 3, 4);
    assert_slice(trace, "E1", 4, 5);
    assert_slice(trace, "Oi1", 4, 5);
    assert_slice(trace, "Om1", 5, 6);
    assert_slice(trace, "C1", 5, 6);
    weft_trace_destroy(trace);

    alpha.alpha[WEFT_WORK_MEM][WEFT_WORK_COMM] = 0;
    double us;
    FAILS(weft_program_moe_price(&pair.set.programs[0], &ones, &alpha, NULL, &us), WEFT_CONFIG,
          "mem beside comm runs at 0 of its speed");
    release_set(&pair.set);
}

/* A message goes on at the speed of its slower end, and lanes of one class leave each other
 * alone. */
static double message_cost(const void *context, int stage, const weft_task *task)
{
    (void)context;
    const double forward_us = stage == 0 ? 4 : 2;
    return task->kind == WEFT_TASK_FORWARD ? forward_us : task->kind == WEFT_TASK_SEND ? 2 : 0;
}

CASE(messages)
{
    program_set set = make_set(WEFT_PIPELINE_GPIPE, 2, 2, true);
    weft_interference alpha = weft_interference_none();
    weft_price price;
    /* F0 [0 4], F1 of stage 0 [4 8] beside its message, which takes [4 8] at half its speed; then
     * F0 of stage 1 [8 10] beside the second message, which takes [8 12] for stage 1's sake until
     * 10, and the rest, half of it, alone: [8 11]; F1 [11 13]. */
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 0.5;
    OK(weft_program_price(set.programs, 2,
                          &(weft_pricing){.cost = message_cost, .interference = &alpha}, &set.arena,
                          &price));
    ASSERT_US(price.makespan_us, 13);
    assert_int_equal(weft_lane_work_class(WEFT_LANE_PLACE), WEFT_WORK_MEM);
    assert_int_equal(weft_lane_work_class(WEFT_LANE_EXPERT), WEFT_WORK_COMM);
    assert_int_equal(weft_lane_work_class(WEFT_LANE_COMPUTE), WEFT_WORK_COMP);
    release_set(&set);

    uint64_t random = 21;
    for (int round = 0; round < 60; round++) {
        set = make_set(next_random(&random, 2), 1 + (int)next_random(&random, 5),
                       1 + (int)next_random(&random, 8), next_random(&random, 4) == 0);
        alpha = weft_interference_none();
        weft_price plain;
        const int p = set.shape.num_stages;
        OK(weft_program_price(set.programs, p, &(weft_pricing){.cost = message_cost}, &set.arena,
                              &plain));
        OK(weft_program_price(set.programs, p,
                              &(weft_pricing){.cost = message_cost, .interference = &alpha},
                              &set.arena, &price));
        assert_true(plain.makespan_us == price.makespan_us);
        assert_true(plain.bubble_share == price.bubble_share);
        release_set(&set);
    }
}

/* Every curve a line of its own, so that no volume can be taken for another. */
static weft_cluster lines(void)
{
    weft_cluster cluster = {.num_nodes = 2, .ranks_per_node = 2};
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++)
        cluster.costs[kind].curve = weft_curve_linear(kind + 1, 100 * (kind + 1));
    cluster.interference = weft_interference_none();
    return cluster;
}

static double line_us(weft_cost_kind kind, double volume)
{
    return kind + 1 + volume / (100 * (kind + 1));
}

CASE(costs_from_curves)
{
    const weft_cluster cluster = lines();
    const weft_moe_pipeline four = {.num_partitions = 4};
    weft_moe_layer_shape shape = {.rows = 1024,
                                  .hidden = 256,
                                  .ffn = 512,
                                  .gates = 1,
                                  .element_bytes = 4,
                                  .ep = 4,
                                  .exchange_factor = 1};
    weft_moe_costs costs = weft_moe_costs_of(&cluster, &shape, &four);
    const double input = 256 * 256 * 4, middle = 256 * 512 * 4, flops = 2.0 * 256 * 256 * 512 * 2;
    ASSERT_US(costs.permute_us, line_us(WEFT_COST_COPY, input));
    ASSERT_US(costs.dispatch_us, line_us(WEFT_COST_ALL_TO_ALL, input * 3 / 4));
    ASSERT_US(costs.combine_us, costs.dispatch_us);
    ASSERT_US(costs.counts_us, line_us(WEFT_COST_ALL_TO_ALL, 8 * 3));
    ASSERT_US(costs.expert_us, line_us(WEFT_COST_GEMM_FP32, flops));
    ASSERT_US(costs.expert_backward_us, line_us(WEFT_COST_GEMM_FP32, 2 * flops));
    ASSERT_US(costs.recompute_us, line_us(WEFT_COST_GEMM_FP32, flops / 2));
    ASSERT_US(costs.input_to_host_us, line_us(WEFT_COST_TO_HOST, input));
    ASSERT_US(costs.middle_to_host_us, line_us(WEFT_COST_TO_HOST, middle));
    ASSERT_US(costs.input_to_device_us, line_us(WEFT_COST_TO_DEVICE, input));
    ASSERT_US(costs.middle_to_device_us, line_us(WEFT_COST_TO_DEVICE, middle));

    /* SwiGLU has two matrices before T_M, in bf16, inside a node, exchanged in a cheaper form. */
    shape.gates = 2;
    shape.element_bytes = 2;
    shape.ep_inside = shape.ep;
    shape.exchange_factor = 0.25;
    costs = weft_moe_costs_of(&cluster, &shape, &four);
    ASSERT_US(costs.dispatch_us, 0.25 * line_us(WEFT_COST_ALL_TO_ALL_INSIDE, input / 2 * 3 / 4));
    ASSERT_US(costs.expert_us, line_us(WEFT_COST_GEMM_BF16, flops * 3 / 2));
    ASSERT_US(costs.recompute_us, line_us(WEFT_COST_GEMM_BF16, flops));
    ASSERT_US(costs.middle_to_host_us, line_us(WEFT_COST_TO_HOST, middle));

    /* An emulated accelerator has its own pace; a single expert rank sends nothing. */
    shape.pace_flops = 1e9;
    shape.ep = 1;
    costs = weft_moe_costs_of(&cluster, &shape, &four);
    ASSERT_US(costs.expert_us, flops * 3 / 2 / 1e3);
    ASSERT_US(costs.recompute_us, flops / 1e3);
    ASSERT_US(costs.dispatch_us, 0);
    ASSERT_US(costs.counts_us, 0);
}

/* Where partitions go, worked out by hand; groups of three do not lie on nodes of two. */
CASE(shares_of_peers)
{
    static const struct {
        int ep, near, group, ahead;
        double inside, between;
    } cases[] = {
        {4, 2, 1, 0, 0, 0},
        {4, 2, 1, 1, 0.5, 0.5},
        {4, 2, 1, 2, 0, 1},
        {4, 2, 1, 3, 0.5, 0.5},
        {4, 2, 2, 0, 0.5, 0},
        {4, 2, 2, 1, 0, 1},
        {4, 4, 1, 3, 1, 0},
        {4, 9, 1, 3, 1, 0},
        {4, 0, 1, 1, 0, 1},
        {4, 1, 2, 0, 0, 0.5},
        {6, 2, 3, 0, 1.0 / 3, 2.0 / 3},
        {6, 2, 3, 1, 1.0 / 3, 1},
        {8, 4, 2, 1, 0.5, 0.5},
        {2, 2, 1, 1, 1, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const weft_moe_peer_shares share =
            weft_moe_peer_shares_of(cases[i].ep, cases[i].near, cases[i].group, cases[i].ahead);
        print_message("case %zu\n", i);
        ASSERT_US(share.inside, cases[i].inside);
        ASSERT_US(share.between, cases[i].between);
    }
    /* All partitions together send what an all-to-all sends. */
    for (int ep = 2; ep <= 32; ep++)
        for (int group = 1; group < ep; group++)
            for (int near = 1; near <= ep && ep % group == 0; near++) {
                double inside = 0, between = 0;
                for (int ahead = 0; ahead < ep / group; ahead++) {
                    const weft_moe_peer_shares s = weft_moe_peer_shares_of(ep, near, group, ahead);
                    inside += s.inside * group;
                    between += s.between * group;
                }
                if (ep % near == 0 && (group % near == 0 || near % group == 0)) {
                    ASSERT_US(inside, near - 1);
                    ASSERT_US(between, ep - near);
                }
                assert_true(inside > near - 1 - 1e-9 && between > ep - near - 1e-9);
            }
}

static double priced_by_peers(int ep, int group, int direction, const weft_moe_costs *costs)
{
    moe_pair pair = make_pair_of(weft_moe_by_peers(ep, group));
    const weft_interference none = weft_interference_none();
    const double us = priced_with(&pair, direction, costs, &none, NULL);
    release_set(&pair.set);
    return us;
}

/* Own rows are computed while the first ones travel:
 *   S1 S2 | .. S3 | ..     communication of 50, 100, 50 each way; R by turns
 *   C0    | C1    | ...    computation of 100 a partition */
CASE(by_peers)
{
    weft_cluster cluster = lines();
    const weft_moe_pipeline one_each = weft_moe_by_peers(4, 1), two_each = weft_moe_by_peers(4, 2);
    const weft_moe_layer_shape shape = {.rows = 1024,
                                        .hidden = 256,
                                        .ffn = 512,
                                        .gates = 1,
                                        .element_bytes = 4,
                                        .ep = 4,
                                        .ep_inside = 2,
                                        .exchange_factor = 0.1};
    weft_moe_costs costs = weft_moe_costs_of(&cluster, &shape, &one_each);
    const double input = 256 * 256 * 4;
    ASSERT_US(costs.dispatch_us, 0);
    ASSERT_US(costs.combine_us, 0);
    ASSERT_US(costs.by_peer_us[0], 0);
    ASSERT_US(costs.by_peer_us[1], fmax(line_us(WEFT_COST_ALL_TO_ALL, input / 2),
                                        line_us(WEFT_COST_ALL_TO_ALL_INSIDE, input / 2)));
    ASSERT_US(costs.by_peer_us[2], line_us(WEFT_COST_ALL_TO_ALL, input));
    ASSERT_US(costs.by_peer_us[3], costs.by_peer_us[1]);
    costs = weft_moe_costs_of(&cluster, &shape, &two_each);
    ASSERT_US(costs.by_peer_us[0], line_us(WEFT_COST_ALL_TO_ALL_INSIDE, input));
    ASSERT_US(costs.by_peer_us[1], line_us(WEFT_COST_ALL_TO_ALL, 2 * input));

    const weft_moe_costs own_first = {
        .expert_us = 100, .expert_backward_us = 100, .by_peer_us = {0, 50, 100, 50}};
    ASSERT_US(priced_by_peers(4, 1, 0, &own_first), 450);
    ASSERT_US(priced_by_peers(4, 1, 1, &own_first), 450);
    const weft_moe_costs by_tokens = {
        .dispatch_us = 50, .combine_us = 50, .expert_us = 100, .expert_backward_us = 100};
    ASSERT_US(priced(WEFT_REUSE_NONE, 4, 0, &by_tokens), 500);
    /* Alone, what travels takes as long as by tokens. */
    const weft_moe_costs traffic = {.by_peer_us = {0, 50, 100, 50}};
    ASSERT_US(priced_by_peers(4, 1, 0, &traffic), 400);
}

static int draw(const char *folder)
{
    const weft_moe_costs costs = {.counts_us = 10,
                                  .permute_us = 4,
                                  .dispatch_us = 40,
                                  .combine_us = 40,
                                  .expert_us = 60,
                                  .expert_backward_us = 120,
                                  .input_to_host_us = 15,
                                  .middle_to_host_us = 30,
                                  .input_to_device_us = 15,
                                  .middle_to_device_us = 30};
    const weft_interference none = weft_interference_none();
    moe_pair pair = make_pair(WEFT_REUSE_S1, 4);
    weft_trace *trace, *backward;
    if (weft_trace_create(&trace) != WEFT_OK || weft_trace_create(&backward) != WEFT_OK)
        return 1;
    const double forward_us = priced_with(&pair, 0, &costs, &none, trace);
    const double backward_us = priced_with(&pair, 1, &costs, &none, backward);
    for (size_t i = 0; i < weft_trace_count(backward); i++) {
        weft_slice slice = weft_trace_slices(backward)[i];
        slice.start_us += forward_us;
        slice.end_us += forward_us;
        if (weft_trace_add(trace, &slice) != WEFT_OK)
            return 1;
    }
    char path[1024];
    snprintf(path, sizeof(path), "%s/schedules-moe.svg", folder);
    FILE *file = fopen(path, "w");
    if (!file || weft_trace_write_svg(trace, "An MoE layer in 4 partitions, strategy S1",
                                      "forward and backward", file) != WEFT_OK)
        return 1;
    fclose(file);
    printf("forward %g us, backward %g us; in one partition %g and %g us\n", forward_us,
           backward_us, 26.0 + 4 * (40 + 60 + 40), 4.0 * (40 + 120 + 40));
    weft_trace_destroy(trace);
    weft_trace_destroy(backward);
    release_set(&pair.set);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return draw(argv[1]);
    return run_cases();
}
