/* Partitions and memory reuse: formulas against numbers by hand and against priced programs, the
 * choice against trying everything. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "schedule/moe/choose.h"

static double real(uint64_t *random, double low, double high)
{
    return low + (high - low) * next_random(random, 100001) / 1e5;
}

/* S = 10, C = 12, R = 8, permuting 1; backward C = 24, recomputing 6; T_DI's copies 3 and 4, T_M's
 * 5 and 6. */
static const weft_moe_costs example = {.permute_us = 1,
                                       .dispatch_us = 10,
                                       .combine_us = 8,
                                       .expert_us = 12,
                                       .expert_backward_us = 24,
                                       .recompute_us = 6,
                                       .input_to_host_us = 3,
                                       .input_to_device_us = 4,
                                       .middle_to_host_us = 5,
                                       .middle_to_device_us = 6};

static void phases(const weft_interference *alpha, int n, weft_reuse reuse, bool backward,
                   const double wanted[5])
{
    const weft_moe_pipeline pipeline = {.num_partitions = n, .reuse = reuse};
    const weft_moe_phases got = weft_moe_phases_of(&example, alpha, &pipeline, backward);
    double total = 0;
    for (int i = 0; i < 5; i++) {
        if (!(fabs(got.p_us[i] - wanted[i]) < 1e-9))
            fail_msg("n %d, %s, %s: P%d is %.10g instead of %.10g", n, weft_reuse_text(reuse),
                     backward ? "backward" : "forward", i, got.p_us[i], wanted[i]);
        total += wanted[i];
    }
    close_to(got.total_us, total);
}

CASE(paradigms)
{
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int backward = 0; backward <= 1; backward++) {
            const bool copies = reuse >= WEFT_REUSE_S1 && reuse <= WEFT_REUSE_S3;
            assert_int_equal(weft_moe_paradigm((weft_reuse)reuse, backward),
                             !copies    ? WEFT_PARADIGM_1
                             : backward ? WEFT_PARADIGM_3
                                        : WEFT_PARADIGM_2);
        }
}

CASE(phases_by_hand)
{
    const weft_interference none = weft_interference_none();
    /* Paradigm 1 at its barest: S, max(S, C), (n - 2) max(S + R, C), max(R, C), R. */
    phases(&none, 5, WEFT_REUSE_NONE, true, (const double[]){10, 24, 3 * 24, 24, 8});
    /* With a permute before S1, one beside it, and one before each later C. */
    phases(&none, 5, WEFT_REUSE_NONE, false, (const double[]){1 + 10, 12, 3 * 18, 12, 8});
    phases(&none, 1, WEFT_REUSE_NONE, false, (const double[]){1 + 10, 0, 0, 12, 8});
    phases(&none, 1, WEFT_REUSE_NONE, true, (const double[]){10, 0, 0, 24, 8});
    phases(&none, 2, WEFT_REUSE_NONE, true, (const double[]){10, 24, 0, 24, 8});
    /* S4 backward: rows sent again, T_M recomputed while the gradient travels. */
    phases(&none, 4, WEFT_REUSE_S4, true, (const double[]){1 + 20, 30, 2 * 31, 24, 8});
    /* Paradigm 2: S1 copies 3 + 5; T_M's 5 come before the next C. */
    phases(&none, 4, WEFT_REUSE_S1, false, (const double[]){11, 12, 2 * 18, 5 + 12, 8});
    phases(&none, 1, WEFT_REUSE_S1, false, (const double[]){11, 0, 0, 12, 8});
    phases(&none, 4, WEFT_REUSE_S2, false, (const double[]){11, 12, 2 * 18, 5 + 12, 8});
    phases(&none, 4, WEFT_REUSE_S3, false, (const double[]){11, 12, 2 * 18, 12, 8});
    /* Paradigm 3: what C reads is there before it. */
    phases(&none, 4, WEFT_REUSE_S1, true, (const double[]){10, 24, 2 * 30, 30, 8});
    phases(&none, 4, WEFT_REUSE_S2, true, (const double[]){1 + 20, 24, 2 * 31, 30, 8});
    phases(&none, 4, WEFT_REUSE_S3, true, (const double[]){10, 30, 2 * 30, 24, 8});
    phases(&none, 1, WEFT_REUSE_S1, true, (const double[]){10, 0, 0, 24, 8});
}

static weft_interference some_interference(void)
{
    weft_interference alpha = weft_interference_none();
    alpha.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] = 0.8;
    alpha.alpha[WEFT_WORK_COMP][WEFT_WORK_MEM] = 0.9;
    alpha.alpha[WEFT_WORK_COMP][WEFT_WORK_ALL] = 0.75;
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 0.5;
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_MEM] = 0.625;
    alpha.alpha[WEFT_WORK_COMM][WEFT_WORK_ALL] = 0.4;
    alpha.alpha[WEFT_WORK_MEM][WEFT_WORK_COMP] = 0.6;
    alpha.alpha[WEFT_WORK_MEM][WEFT_WORK_COMM] = 0.3;
    alpha.alpha[WEFT_WORK_MEM][WEFT_WORK_ALL] = 0.2;
    return alpha;
}

CASE(phases_with_interference)
{
    const weft_interference alpha = some_interference();
    /* P1: 10 of S end after 20 at half speed, when 24 - 16 of C are left, which run alone. P2: 24
     * of C end after 30, when 18 - 15 of R and S are left. */
    phases(&alpha, 4, WEFT_REUSE_NONE, true, (const double[]){10, 28, 2 * 33, 27.2, 8});
    /* Three streams: T_DI's 3 end after 15, by alpha(y, all); then two are left, then one. */
    phases(&alpha, 4, WEFT_REUSE_S3, false,
           (const double[]){1 + 10.625, 15 + 0.9375 + 3.53125, 2 * (15 + 2.1875 + 10.90625),
                            15 + 0.9375 + 1.53125, 8});
    /* 10 of communication beside 4 + 6 of copies: 16, and 5.2 of copies alone */
    phases(&alpha, 1, WEFT_REUSE_S1, true, (const double[]){21.2, 0, 0, 24, 8});
    /* experts beside T_DI's copy, combine beside T_M's */
    phases(&alpha, 1, WEFT_REUSE_S1, false, (const double[]){11, 0, 0, 12.5, 13.96});
}

static double priced(const weft_moe_costs *costs, const weft_interference *alpha,
                     const weft_moe_pipeline *pipeline, bool backward)
{
    weft_arena arena = {0};
    weft_program program;
    double us;
    OK(weft_program_moe(pipeline, backward, &arena, &program));
    OK(weft_program_moe_price(&program, costs, alpha, NULL, &us));
    weft_arena_release(&arena);
    return us;
}

/* From communication alone to computation alone. */
static weft_moe_costs random_costs(uint64_t *random)
{
    const double comp = exp(real(random, -3, 3)) * 100, comm = 100, copy = real(random, 1, 100);
    return (weft_moe_costs){.permute_us = real(random, 0, 0.3) * comm,
                            .dispatch_us = comm * real(random, 0.8, 1.2),
                            .combine_us = comm * real(random, 0.8, 1.2),
                            .expert_us = comp,
                            .expert_backward_us = 2 * comp,
                            .recompute_us = comp / 2,
                            .input_to_host_us = copy,
                            .input_to_device_us = copy * real(random, 0.8, 1.2),
                            .middle_to_host_us = 2 * copy,
                            .middle_to_device_us = 2 * copy * real(random, 0.8, 1.2)};
}

/* The largest and the mean relative difference between phases and priced programs. */
typedef struct difference {
    double worst, mean;
} difference;

static difference compare(const weft_interference *alpha, weft_reuse reuse, bool backward)
{
    enum { ROUNDS = 300 };
    uint64_t random = 1;
    difference d = {0};
    for (int round = 0; round < ROUNDS; round++) {
        const weft_moe_costs costs = random_costs(&random);
        const weft_moe_pipeline pipeline = {.num_partitions = 1 + (int)next_random(&random, 16),
                                            .reuse = reuse};
        const double wanted = priced(&costs, alpha, &pipeline, backward);
        const double got = weft_moe_phases_of(&costs, alpha, &pipeline, backward).total_us;
        const double off = fabs(got / wanted - 1);
        d.worst = fmax(d.worst, off);
        d.mean += off / ROUNDS;
    }
    return d;
}

/* Paradigm 1 exactly (S4 recomputes beside the gradient's way, which phases see as one); the others
 * to a few percent: a phase waits for all of the one before, where a stream of the program waits
 * for no more than it needs. */
CASE(phases_are_the_program)
{
    const weft_interference alphas[] = {weft_interference_none(), some_interference()};
    for (int a = 0; a < 2; a++)
        for (int backward = 0; backward <= 1; backward++)
            for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
                const difference d = compare(&alphas[a], (weft_reuse)reuse, backward);
                const bool exact =
                    reuse == WEFT_REUSE_NONE || (reuse == WEFT_REUSE_S4 && !backward);
                if (d.worst > (exact ? 1e-12 : 0.25) || d.mean > 0.03)
                    fail_msg("%s %d: %g at worst, %g on average", weft_reuse_text(reuse), backward,
                             d.worst, d.mean);
            }
}

CASE(nothing_costs_nothing)
{
    const weft_moe_costs free_costs = {0};
    const weft_interference alpha = some_interference();
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        for (int n = 1; n <= 8; n++) {
            const weft_moe_pipeline pipeline = {.num_partitions = n, .reuse = (weft_reuse)reuse};
            assert_true(weft_moe_phases_of(&free_costs, &alpha, &pipeline, n % 2).total_us == 0);
        }
}

/* GEMM 100 FLOPs/us, all-to-all 10 B/us between nodes and 40 inside, copies 20 B/us to the host and
 * 25 back, 1000 on the device; no latencies. */
static weft_cluster example_cluster(double latency_us)
{
    weft_cluster c = {.name = "example", .interference = weft_interference_none()};
    c.costs[WEFT_COST_GEMM_FP32].curve = weft_curve_linear(latency_us, 100);
    c.costs[WEFT_COST_GEMM_BF16].curve = weft_curve_linear(latency_us, 200);
    c.costs[WEFT_COST_ALL_TO_ALL].curve = weft_curve_linear(latency_us, 10);
    c.costs[WEFT_COST_ALL_TO_ALL_INSIDE].curve = weft_curve_linear(latency_us, 40);
    c.costs[WEFT_COST_TO_HOST].curve = weft_curve_linear(latency_us, 20);
    c.costs[WEFT_COST_TO_DEVICE].curve = weft_curve_linear(latency_us, 25);
    c.costs[WEFT_COST_COPY].curve = weft_curve_linear(latency_us, 1000);
    return c;
}

/* B M = 1000 elements of 4 bytes, H = 4 M as in Table II: v_comp 2 x 40000 FLOPs = 800 us, v_comm
 * 2000 bytes = 200 us, v_mem 4000 bytes = 200 us to the host and 160 back. */
static const weft_moe_layer_shape table_shape = {.rows = 100,
                                                 .hidden = 10,
                                                 .ffn = 40,
                                                 .gates = 1,
                                                 .element_bytes = 4,
                                                 .ep = 2,
                                                 .exchange_factor = 1};

CASE(quick_by_hand)
{
    weft_cluster c = example_cluster(0);
    const weft_moe_layer_shape *s = &table_shape;
    /* max(2 800, 2 200, q3 200) + max(q1 800, q2 200, q3 160) */
    close_to(weft_moe_quick_us(&c, s, WEFT_REUSE_NONE), 1600 + 3200);
    close_to(weft_moe_quick_us(&c, s, WEFT_REUSE_S1), 1600 + 3200);
    close_to(weft_moe_quick_us(&c, s, WEFT_REUSE_S3), 1600 + 4000);
    close_to(weft_moe_quick_us(&c, s, WEFT_REUSE_S4), 1600 + 4000);
    /* an accelerator of 1e9 FLOP/s: 80 us a GEMM; copies 5, 4, 1, 0; all-to-alls 2, 3 */
    weft_moe_layer_shape fast = *s;
    fast.pace_flops = 1e9;
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_NONE), 2 * 200 + 2 * 200);
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_S1), 5 * 200 + 5 * 160);
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_S2), 4 * 200 + 4 * 160);
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_S3), 2 * 200 + 2 * 200);
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_S4), 2 * 200 + 3 * 200);
    /* mu and eta: alpha(comm, comp) 0.5 without copies, alpha(comm, all) 0.4, alpha(mem, all) 0.2
     */
    c.interference = some_interference();
    weft_cluster quick = c;
    quick.costs[WEFT_COST_GEMM_FP32].curve = weft_curve_linear(0, 1000);
    close_to(weft_moe_quick_us(&quick, s, WEFT_REUSE_NONE), 2 * 200 / 0.5 + 2 * 200 / 0.5);
    close_to(weft_moe_quick_us(&quick, s, WEFT_REUSE_S3), 2 * 200 / 0.4 + 2 * 200 / 0.4);
    close_to(weft_moe_quick_us(&quick, s, WEFT_REUSE_S2), 4 * 200 / 0.2 + 4 * 160 / 0.2);
    /* an emulated accelerator disturbs nobody */
    close_to(weft_moe_quick_us(&c, &fast, WEFT_REUSE_NONE), 2 * 200 + 2 * 200);
    close_to(weft_moe_quick_us(&c, s, WEFT_REUSE_S3), 1600 / 0.75 + 4000 / 0.75);
    /* SwiGLU: three GEMMs forward, six backward, two recomputed; T_M is 8 T_DI */
    weft_moe_layer_shape gated = *s;
    gated.gates = 2;
    c = example_cluster(0);
    close_to(weft_moe_quick_us(&c, &gated, WEFT_REUSE_S4), 3 * 800 + 8 * 800);
    gated.pace_flops = 1e12;
    close_to(weft_moe_quick_us(&c, &gated, WEFT_REUSE_S1), 9 * 200 + 9 * 160);
    /* bf16, inside a node, a cheaper form of the all-to-all */
    weft_moe_layer_shape inside = *s;
    inside.element_bytes = 2;
    inside.ep_inside = inside.ep;
    inside.exchange_factor = 0.5;
    close_to(weft_moe_quick_us(&c, &inside, WEFT_REUSE_NONE), 2 * 400 + 4 * 400);
    inside.pace_flops = 1e12;
    close_to(weft_moe_quick_us(&c, &inside, WEFT_REUSE_S4), 2 * 12.5 + 3 * 12.5);
}

static const int one_to_sixteen[] = {1, 2, 3, 4, 6, 8, 12, 16};
enum { NUM_CANDIDATES = 8 };

static weft_moe_choice choose(const weft_cluster *c, const weft_moe_layer_shape *shape,
                              weft_moe_model model, unsigned reuses)
{
    weft_moe_choice choice;
    OK(weft_choose_moe(c, shape, model, one_to_sixteen, NUM_CANDIDATES, reuses, false, NULL,
                       &choice));
    return choice;
}

static weft_moe_layer_shape random_shape(uint64_t *random)
{
    return (weft_moe_layer_shape){.rows = real(random, 10, 10000),
                                  .hidden = real(random, 16, 1024),
                                  .ffn = real(random, 16, 4096),
                                  .gates = 1 + (int)next_random(random, 2),
                                  .element_bytes = next_random(random, 2) ? 4 : 2,
                                  .ep = 1 + (int)next_random(random, 8),
                                  .ep_inside = 1 + (int)next_random(random, 4),
                                  .exchange_factor = real(random, 0.2, 1)};
}

static weft_cluster random_cluster(uint64_t *random)
{
    weft_cluster c = {.name = "random", .interference = weft_interference_none()};
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++) {
        const double rate = kind >= WEFT_COST_GEMM_FP32 ? 3e5 : 1e3; /* a microsecond */
        c.costs[kind].curve =
            weft_curve_linear(real(random, 1, 100), exp(real(random, 0, 6)) * rate);
    }
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            c.interference.alpha[y][x] = x == y ? 1 : real(random, 0.4, 1);
    return c;
}

static double both(const weft_cluster *c, const weft_moe_layer_shape *shape, weft_moe_model model,
                   const weft_moe_pipeline *pipeline)
{
    const weft_moe_costs costs = weft_moe_costs_of(c, shape, pipeline);
    double us = 0;
    for (int backward = 0; backward <= 1; backward++)
        us += model == WEFT_MOE_MODEL_PRICE
                  ? priced(&costs, &c->interference, pipeline, backward)
                  : weft_moe_phases_of(&costs, &c->interference, pipeline, backward).total_us;
    return us;
}

/* Nothing allowed is more than 1 % faster, and nothing with a smaller n is as near to the best. */
CASE(best_of_all)
{
    uint64_t random = 77;
    int pipelined = 0;
    for (int round = 0; round < 120; round++) {
        const weft_cluster c = random_cluster(&random);
        const weft_moe_layer_shape shape = random_shape(&random);
        const unsigned reuses = next_random(&random, 1u << WEFT_NUM_REUSES);
        for (int model = WEFT_MOE_MODEL_QUICK; model <= WEFT_MOE_MODEL_PRICE; model++) {
            const weft_moe_choice choice = choose(&c, &shape, (weft_moe_model)model, reuses);
            const weft_reuse chosen = choice.pipeline.reuse;
            assert_true(reuses == 0 || reuses >> chosen & 1);
            close_to(choice.us, both(&c, &shape, (weft_moe_model)model, &choice.pipeline));
            pipelined += choice.pipeline.num_partitions > 1;
            for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
                if (reuses && !(reuses >> reuse & 1))
                    continue;
                if (model == WEFT_MOE_MODEL_QUICK) {
                    assert_true(weft_moe_quick_us(&c, &shape, chosen) <=
                                weft_moe_quick_us(&c, &shape, (weft_reuse)reuse));
                    if (reuse != (int)chosen)
                        continue;
                }
                for (int i = 0; i < NUM_CANDIDATES; i++) {
                    const weft_moe_pipeline other = {.num_partitions = one_to_sixteen[i],
                                                     .reuse = (weft_reuse)reuse};
                    const double us = both(&c, &shape, (weft_moe_model)model, &other);
                    assert_true(choice.us <= 1.01 * us);
                    if (other.num_partitions < choice.pipeline.num_partitions)
                        assert_true(us > choice.us);
                }
            }
            const weft_moe_choice again = choose(&c, &shape, (weft_moe_model)model, reuses);
            assert_memory_equal(&again.pipeline, &choice.pipeline, sizeof(again.pipeline));
            assert_string_equal(again.reason, choice.reason);
        }
    }
    assert_true(pipelined > 60); /* or nothing was chosen above */
}

CASE(degenerate)
{
    for (int model = WEFT_MOE_MODEL_QUICK; model <= WEFT_MOE_MODEL_PRICE; model++) {
        /* one rank: nothing to hide */
        weft_cluster c = example_cluster(5);
        weft_moe_layer_shape shape = table_shape;
        shape.ep = 1;
        weft_moe_choice choice = choose(&c, &shape, (weft_moe_model)model, 0);
        assert_int_equal(choice.pipeline.num_partitions, 1);
        assert_int_equal(choice.pipeline.reuse, WEFT_REUSE_NONE);
        /* latencies alone: the fewest operations */
        c = example_cluster(50);
        shape = table_shape;
        shape.rows = 0.01;
        choice = choose(&c, &shape, (weft_moe_model)model, 0);
        assert_int_equal(choice.pipeline.num_partitions, 1);
        /* equal communication and computation without latency: as fine as it gets */
        c = example_cluster(0);
        shape = table_shape;
        shape.pace_flops = 80000 / 200e-6;
        choice = choose(&c, &shape, (weft_moe_model)model, 1u << WEFT_REUSE_NONE);
        assert_int_equal(choice.pipeline.num_partitions, 16);
        /* nothing costs anything, except that nobody measured an all-to-all of one rank */
        c = (weft_cluster){.name = "free", .interference = weft_interference_none()};
        c.costs[WEFT_COST_GEMM_FP32].curve = c.costs[WEFT_COST_ALL_TO_ALL].curve =
            c.costs[WEFT_COST_COPY].curve = weft_curve_linear(0, 0);
        choice = choose(&c, &table_shape, (weft_moe_model)model, 1u << WEFT_REUSE_S4);
        assert_int_equal(choice.pipeline.num_partitions, 1);
        assert_int_equal(choice.pipeline.reuse, WEFT_REUSE_S4);
        close_to(choice.us, 0);
    }
}

/* Which strategy wins follows from what is slow (MPipeMoE's remark: S1 and S2 wait for copies, S4
 * for computation). */
CASE(strategy_by_what_is_slow)
{
    const unsigned reusing = 0x1e;
    weft_cluster c = example_cluster(0);
    c.costs[WEFT_COST_TO_HOST].curve = c.costs[WEFT_COST_TO_DEVICE].curve =
        weft_curve_linear(0, 0.1);
    weft_moe_layer_shape balanced = table_shape;
    balanced.pace_flops = 80000 / 200e-6;
    for (int model = WEFT_MOE_MODEL_QUICK; model <= WEFT_MOE_MODEL_PRICE; model++) {
        assert_int_equal(choose(&c, &balanced, (weft_moe_model)model, reusing).pipeline.reuse,
                         WEFT_REUSE_S4);
        weft_cluster fast = example_cluster(0);
        fast.costs[WEFT_COST_TO_HOST].curve = fast.costs[WEFT_COST_TO_DEVICE].curve =
            weft_curve_linear(0, 1e6);
        assert_int_equal(choose(&fast, &table_shape, (weft_moe_model)model, reusing).pipeline.reuse,
                         WEFT_REUSE_S1);
    }
}

/* Two nodes of two. Where computation takes longer than what travels, own rows first hide the start
 * and the end, which partitions by tokens cannot; where a message's start costs most, nothing cut
 * is worth it; where nobody asks for peers, or something has to be reused, they are not weighed. */
CASE(peers_by_price)
{
    const unsigned none = 1u << WEFT_REUSE_NONE;
    const int numbers[] = {1, 2, 3, 4};
    const weft_moe_model price = WEFT_MOE_MODEL_PRICE, phases = WEFT_MOE_MODEL_PHASES;
    weft_moe_choice choice;
    weft_cluster c = example_cluster(0);
    weft_moe_layer_shape shape = table_shape;
    shape.ep = 4;
    shape.ep_inside = 2;
    shape.pace_flops = 1e8; /* twice as long as what travels, and more */
    OK(weft_choose_moe(&c, &shape, price, numbers, 4, none, true, NULL, &choice));
    assert_int_equal(choice.pipeline.peer_group, 1);
    assert_int_equal(choice.pipeline.num_partitions, 4);
    assert_non_null(strstr(choice.reason, "partitions by peers, 1 each: "));
    assert_non_null(strstr(choice.reason, " by priced programs (1 partition, reuse none "));
    const double peers_us = choice.us;
    OK(weft_choose_moe(&c, &shape, price, numbers, 4, none, false, NULL, &choice));
    assert_true(choice.pipeline.peer_group == 0 && choice.us > peers_us);
    OK(weft_choose_moe(&c, &shape, phases, numbers, 4, none, true, NULL, &choice));
    assert_int_equal(choice.pipeline.peer_group, 0);
    OK(weft_choose_moe(&c, &shape, price, numbers, 4, 2, true, NULL, &choice));
    assert_true(choice.pipeline.peer_group == 0 && choice.pipeline.reuse == WEFT_REUSE_S1);

    weft_cluster slow_starts = example_cluster(1000);
    OK(weft_choose_moe(&slow_starts, &shape, price, numbers, 4, none, true, NULL, &choice));
    assert_true(choice.pipeline.num_partitions == 1 && choice.pipeline.peer_group == 0);
}

CASE(refusals)
{
    weft_moe_choice choice = {.us = -7};
    weft_cluster c = example_cluster(1);
    const int two[] = {1, 2}, wrong[] = {1, 65};
    const weft_moe_model model = WEFT_MOE_MODEL_PHASES;
    FAILS(weft_choose_moe(&c, &table_shape, model, two, 0, 0, false, NULL, &choice), WEFT_CONFIG,
          "0 numbers of partitions");
    FAILS(weft_choose_moe(&c, &table_shape, model, two, 2, 32, false, NULL, &choice), WEFT_CONFIG,
          "strategies 0x20");
    FAILS(weft_choose_moe(&c, &table_shape, model, wrong, 2, 0, false, NULL, &choice), WEFT_CONFIG,
          "65 partitions of an MoE layer");
    const weft_cost_kind needed[] = {WEFT_COST_GEMM_FP32, WEFT_COST_ALL_TO_ALL, WEFT_COST_COPY,
                                     WEFT_COST_TO_HOST, WEFT_COST_TO_DEVICE};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        weft_cluster less = c;
        less.costs[needed[i]] = (weft_cost){0};
        char name[64];
        snprintf(name, sizeof(name), "\"example\": costs.%s is", weft_cost_text(needed[i]));
        FAILS(weft_choose_moe(&less, &table_shape, model, two, 2, 0, false, NULL, &choice),
              WEFT_CONFIG, name);
    }
    assert_true(choice.us == -7);
    /* What no allowed strategy and no such layer needs may be missing. */
    weft_cluster less = c;
    less.costs[WEFT_COST_TO_HOST] = less.costs[WEFT_COST_TO_DEVICE] =
        less.costs[WEFT_COST_GEMM_FP32] = less.costs[WEFT_COST_ALL_TO_ALL] = (weft_cost){0};
    weft_moe_layer_shape shape = table_shape;
    shape.pace_flops = 1e9;
    shape.ep_inside = shape.ep;
    for (int m = WEFT_MOE_MODEL_QUICK; m <= WEFT_MOE_MODEL_PRICE; m++)
        choose(&less, &shape, (weft_moe_model)m, 1u << WEFT_REUSE_NONE | 1u << WEFT_REUSE_S4);
}
