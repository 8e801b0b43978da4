/* Costs against their equations by hand, their limits, and the curves that replace them. */
#include "tests/core/check.h"

#include <math.h>
#include <string.h>

#include "schedule/cost/cost.h"

static void figure(weft_cluster *c, weft_figure figure, double value)
{
    c->hardware.figures[figure] = value;
    c->hardware.given |= 1u << figure;
}

/* 16 nodes of 8: inside 100 kB/us after 2 us, 8 cards of 10 kB/us after 5 us; 100 MFLOP/us in bf16,
 * 1 MB/us of memory. */
static weft_cluster modelled(void)
{
    weft_cluster c = {.name = "modelled", .num_nodes = 16, .ranks_per_node = 8};
    c.interference = weft_interference_none();
    figure(&c, WEFT_FIGURE_INSIDE_BANDWIDTH, 100e9);
    figure(&c, WEFT_FIGURE_INSIDE_LATENCY, 2);
    figure(&c, WEFT_FIGURE_CARDS, 8);
    figure(&c, WEFT_FIGURE_BETWEEN_BANDWIDTH, 10e9);
    figure(&c, WEFT_FIGURE_BETWEEN_LATENCY, 5);
    figure(&c, WEFT_FIGURE_PEAK_BF16, 100e12);
    figure(&c, WEFT_FIGURE_MEMORY_BANDWIDTH, 1e12);
    figure(&c, WEFT_FIGURE_LAUNCH, 3);
    return c;
}

static weft_estimate collective(const weft_cluster *c, weft_group group, weft_collective kind,
                                double bytes)
{
    weft_site site = {.cluster = c, .groups[WEFT_AXIS_DP] = group};
    weft_operation o = {.kind = WEFT_OPERATION_COLLECTIVE,
                        .module = "it",
                        .axis = WEFT_AXIS_DP,
                        .collective = kind,
                        .bytes = (uint64_t)bytes,
                        .count = 1};
    weft_estimate alone, out;
    OK(weft_collective_us(&site, &group, kind, bytes, &alone));
    OK(weft_operation_us(&site, &o, &out)); /* the same by the other door */
    assert_true(alone.us == out.us);
    o.bytes *= 3;
    o.count = 3;
    OK(weft_operation_us(&site, &o, &out)); /* three of them */
    close_to(out.us, 3 * alone.us);
    close_to(out.links[WEFT_LINK_BETWEEN].us, 3 * alone.links[WEFT_LINK_BETWEEN].us);
    return alone;
}

static double collective_us(const weft_cluster *c, weft_group group, weft_collective kind,
                            double bytes)
{
    return collective(c, group, kind, bytes).us;
}

#define INSIDE(n) ((weft_group){n, n, 1, 1, false})
#define BETWEEN(n) ((weft_group){n, 1, 1, 1, false})

/* Messages of up to so many bytes, inside and between nodes alone. */
CASE(small_messages_are_buffered)
{
    weft_cluster c = modelled();
    const weft_group inside = INSIDE(2), between = BETWEEN(2);
    assert_false(collective(&c, inside, WEFT_COLLECTIVE_MESSAGE, 1).buffered);
    figure(&c, WEFT_FIGURE_INSIDE_EAGER, 0);
    figure(&c, WEFT_FIGURE_BETWEEN_EAGER, 1e6);
    assert_false(collective(&c, inside, WEFT_COLLECTIVE_MESSAGE, 1).buffered);
    assert_true(collective(&c, between, WEFT_COLLECTIVE_MESSAGE, 1e6).buffered);
    assert_false(collective(&c, between, WEFT_COLLECTIVE_MESSAGE, 1e6 + 1).buffered);
    assert_false(collective(&c, between, WEFT_COLLECTIVE_ALL_REDUCE, 1e3).buffered);
    figure(&c, WEFT_FIGURE_INSIDE_EAGER, 4096);
    assert_true(collective(&c, inside, WEFT_COLLECTIVE_MESSAGE, 4096).buffered);
    assert_false(collective(&c, inside, WEFT_COLLECTIVE_MESSAGE, 4097).buffered);
}

/* --- collectives by their equations -------------------------------------------------------- */

CASE(one_rank_costs_nothing)
{
    const weft_cluster c = modelled();
    for (int kind = 0; kind < WEFT_NUM_COLLECTIVES; kind++) {
        assert_true(collective_us(&c, INSIDE(1), (weft_collective)kind, 1e9) == 0);
        assert_true(collective_us(&c, INSIDE(8), (weft_collective)kind, 0) == 0);
    }
    /* Nor does it need to know anything. */
    const weft_cluster nothing = {.num_nodes = 1, .ranks_per_node = 1};
    assert_true(collective_us(&nothing, INSIDE(1), WEFT_COLLECTIVE_ALL_REDUCE, 1e9) == 0);
}

CASE(rings_are_as_the_equations_say)
{
    const weft_cluster c = modelled();
    const double v = 64e6;
    for (int n = 2; n <= 8; n++) {
        const double wire = (n - 1.0) / n * v / 100e3, tree = 2 * ceil(log2(n)) * 2 + 2 * v / 100e3;
        close_to(collective_us(&c, INSIDE(n), WEFT_COLLECTIVE_ALL_GATHER, v), (n - 1) * 2 + wire);
        close_to(collective_us(&c, INSIDE(n), WEFT_COLLECTIVE_REDUCE_SCATTER, v),
                 (n - 1) * 2 + wire);
        close_to(collective_us(&c, INSIDE(n), WEFT_COLLECTIVE_ALL_REDUCE, v),
                 fmin(2 * (n - 1) * 2 + 2 * wire, tree));
        close_to(collective_us(&c, INSIDE(n), WEFT_COLLECTIVE_ALL_TO_ALL, v), 2 + wire);
    }
    close_to(collective_us(&c, INSIDE(8), WEFT_COLLECTIVE_MESSAGE, v), 2 + v / 100e3);
    close_to(collective_us(&c, BETWEEN(2), WEFT_COLLECTIVE_MESSAGE, v), 5 + v / 10e3);
    close_to(collective_us(&c, BETWEEN(16), WEFT_COLLECTIVE_ALL_GATHER, v),
             15 * 5 + 15.0 / 16 * v / 10e3);
}

/* Small buffers cost latencies, of a tree where there are many ranks; large ones the rate. */
CASE(limits_are_latency_and_bandwidth)
{
    const weft_cluster c = modelled();
    close_to(collective_us(&c, BETWEEN(16), WEFT_COLLECTIVE_ALL_REDUCE, 1), 8 * 5 + 2.0 / 10e3);
    const double large = 1e12;
    for (int n = 2; n <= 16; n *= 2) {
        const double us = collective_us(&c, BETWEEN(n), WEFT_COLLECTIVE_ALL_REDUCE, large);
        /* the bus bandwidth, 2 (n - 1) / n V / t, is the card's */
        close_to(round(2.0 * (n - 1) / n * large / us), 10e3);
    }
}

CASE(more_bytes_take_longer)
{
    weft_cluster c = modelled();
    c.hardware.efficiencies[WEFT_EFFICIENCY_BETWEEN] =
        (weft_share_curve){3, {1e4, 1e6, 1e8}, {0.1, 0.6, 0.9}};
    c.costs[WEFT_COST_ALL_REDUCE].curve = weft_curve_linear(9, 70e3);
    const weft_group groups[] = {INSIDE(8), BETWEEN(16), {64, 8, 1, 1, false}, {64, 4, 2, 2, true}};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int kind = 0; kind < WEFT_NUM_COLLECTIVES; kind++) {
            double before = 0;
            for (double bytes = 1; bytes < 1e12; bytes *= 1.7) {
                const double us = collective_us(&c, groups[g], (weft_collective)kind, floor(bytes));
                if (!(us >= before && us > 0))
                    fail_msg("group %zu kind %d: %g bytes take %g us after %g", g, kind, bytes, us,
                             before);
                before = us;
            }
        }
}

/* --- node by node, cards and the network --------------------------------------------------- */

CASE(groups_over_nodes_go_node_by_node)
{
    const weft_cluster c = modelled();
    const weft_group group = {32, 8, 1, 1, false}; /* 8 on each of 4 nodes */
    const double v = 256e6, inside = 7 * 2 + 7.0 / 8 * v / 100e3;
    close_to(collective_us(&c, group, WEFT_COLLECTIVE_ALL_GATHER, v),
             3 * 5 + 3.0 / 4 * v / 8 / 10e3 + inside);
    close_to(collective_us(&c, group, WEFT_COLLECTIVE_REDUCE_SCATTER, v),
             3 * 5 + 3.0 / 4 * v / 8 / 10e3 + inside);
    close_to(collective_us(&c, group, WEFT_COLLECTIVE_ALL_REDUCE, v),
             2 * inside + 2 * 3 * 5 + 2 * 3.0 / 4 * v / 8 / 10e3);
    /* An all-to-all's slower half: 24 of 32 blocks leave the node. */
    close_to(collective_us(&c, group, WEFT_COLLECTIVE_ALL_TO_ALL, v), 5 + 24.0 / 32 * v / 10e3);
    /* A message goes to another node. */
    close_to(collective_us(&c, group, WEFT_COLLECTIVE_MESSAGE, v), 5 + v / 10e3);
    /* Where every rank sends to every other one, what leaves the node is not folded before. */
    const weft_group direct = {32, 8, 1, 1, true};
    close_to(collective_us(&c, direct, WEFT_COLLECTIVE_ALL_REDUCE, v),
             2 * (5 + 24.0 / 32 * v / 10e3));
    close_to(collective_us(&c, direct, WEFT_COLLECTIVE_ALL_GATHER, v), 5 + 24.0 / 32 * v / 10e3);
}

CASE(cards_are_shared)
{
    weft_cluster c = modelled();
    const double v = 1e9, alone = collective_us(&c, BETWEEN(4), WEFT_COLLECTIVE_ALL_GATHER, v);
    const weft_group shared = {4, 1, 1, 4, false};
    close_to(collective_us(&c, shared, WEFT_COLLECTIVE_ALL_GATHER, v) - 15, 4 * (alone - 15));
    /* Two cards for eight ranks that send at once. */
    figure(&c, WEFT_FIGURE_CARDS, 2);
    const int places[] = {3, 11, 19, 27};
    const weft_group group = weft_group_of(&c, places, 4, false);
    assert_true(group.size == 4 && group.near == 1 && group.stride == 1 && group.sharing == 4);
}

CASE(groups_know_where_they_lie)
{
    const weft_cluster c = modelled();
    const int node[] = {8, 9, 10, 11, 12, 13, 14, 15}, far[] = {0, 1, 32, 33, 64, 65};
    weft_group group = weft_group_of(&c, node, 8, true);
    assert_true(group.size == 8 && group.near == 8 && group.direct && group.sharing == 1);
    group = weft_group_of(&c, far, 6, false);
    assert_true(group.size == 6 && group.near == 2 && group.stride == 4);
    group = weft_group_of(&c, far, 1, false);
    assert_true(group.size == 1 && group.near == 1 && group.stride == 1);
}

/* Switches of 4 nodes, above them half the bandwidth. */
CASE(levels_are_oversubscribed)
{
    weft_cluster c = modelled();
    c.num_levels = 2;
    c.levels[0] = (weft_network_level){4, 1};
    c.levels[1] = (weft_network_level){16, 8};
    const double v = 1e9, rate = 10e3;
    /* Below one switch nothing changes. */
    close_to(collective_us(&c, BETWEEN(4), WEFT_COLLECTIVE_ALL_TO_ALL, v), 5 + 0.75 * v / rate);
    /* Over four switches, 12 of the 15 others are elsewhere. */
    close_to(collective_us(&c, BETWEEN(16), WEFT_COLLECTIVE_ALL_TO_ALL, v),
             5 + 15.0 / 16 * v / rate * 8 * 12 / 15);
    /* A ring leaves a switch once for four nodes. */
    close_to(collective_us(&c, BETWEEN(16), WEFT_COLLECTIVE_ALL_GATHER, v),
             15 * 5 + 15.0 / 16 * v / rate * 8 / 4);
    /* Nodes that lie a switch apart send all through the upper level. */
    const weft_group apart = {4, 1, 4, 1, false};
    close_to(collective_us(&c, apart, WEFT_COLLECTIVE_ALL_GATHER, v), 3 * 5 + 0.75 * v / rate * 8);
    c.levels[0].oversubscription = 2; /* then of all that leaves a node */
    close_to(collective_us(&c, BETWEEN(4), WEFT_COLLECTIVE_ALL_TO_ALL, v), 5 + 2 * 0.75 * v / rate);
}

CASE(links_know_their_load)
{
    const weft_cluster c = modelled();
    const weft_group group = {32, 8, 1, 2, false};
    const double v = 256e6;
    const weft_estimate e = collective(&c, group, WEFT_COLLECTIVE_ALL_REDUCE, v);
    close_to(e.links[WEFT_LINK_INSIDE].bytes, 2 * 7.0 / 8 * v);
    close_to(e.links[WEFT_LINK_INSIDE].us, 2 * 7.0 / 8 * v / 100e3);
    close_to(e.links[WEFT_LINK_BETWEEN].bytes, 2 * 3.0 / 4 * v / 8);
    close_to(e.links[WEFT_LINK_BETWEEN].us, 2 * 2 * 3.0 / 4 * v / 8 / 10e3);
    const weft_estimate inside = collective(&c, INSIDE(8), WEFT_COLLECTIVE_ALL_TO_ALL, v);
    assert_true(inside.links[WEFT_LINK_BETWEEN].us == 0);
    close_to(inside.us - 2, inside.links[WEFT_LINK_INSIDE].us);
}

/* --- measured curves ----------------------------------------------------------------------- */

/* 4 nodes of 4 ranks with a card, measured by all ranks at once. */
static weft_cluster measured(void)
{
    weft_cluster c = {.name = "measured", .num_nodes = 4, .ranks_per_node = 4};
    c.interference = weft_interference_none();
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        weft_curve curve = {3, {256, 1e5, 1e7}, {20.5 + i, 100 + i, 3000 + i}};
        c.costs[i] = (weft_cost){.curve = curve, .peak = 1e10};
    }
    return c;
}

CASE(a_curve_is_exact_at_its_own_shape)
{
    const weft_cluster c = measured();
    const int inside[] = {4, 5, 6, 7}, between[] = {1, 5, 9, 13};
    const weft_group groups[] = {weft_group_of(&c, inside, 4, false),
                                 weft_group_of(&c, between, 4, false)};
    static const weft_cost_kind kinds[WEFT_NUM_COLLECTIVES][2] = {
        {WEFT_COST_ALL_REDUCE, WEFT_COST_ALL_REDUCE_BETWEEN},
        {WEFT_COST_ALL_GATHER, WEFT_COST_ALL_GATHER_BETWEEN},
        {WEFT_COST_REDUCE_SCATTER, WEFT_COST_REDUCE_SCATTER_BETWEEN},
        {WEFT_COST_ALL_TO_ALL_INSIDE, WEFT_COST_ALL_TO_ALL},
        {WEFT_COST_MESSAGE_INSIDE, WEFT_COST_MESSAGE}};
    for (int kind = 0; kind < WEFT_NUM_COLLECTIVES; kind++)
        for (int link = 0; link < 2; link++)
            for (double bytes = 100; bytes < 1e9; bytes *= 7) {
                /* of an all-to-all the curve's volume is what goes to others */
                const double volume = kind == WEFT_COLLECTIVE_ALL_TO_ALL ? bytes * 3.0 / 4 : bytes;
                const weft_estimate e = collective(&c, groups[link], (weft_collective)kind, bytes);
                assert_true(e.us == weft_cluster_us(&c, kinds[kind][link], volume));
                assert_int_equal(e.source, WEFT_SOURCE_MEASURED);
            }
}

CASE(a_curve_is_scaled_elsewhere)
{
    weft_cluster c = measured();
    c.costs[WEFT_COST_ALL_GATHER].curve = weft_curve_linear(30, 1000);
    weft_estimate e = collective(&c, INSIDE(2), WEFT_COLLECTIVE_ALL_GATHER, 1e6);
    /* a third of the steps, and 1/2 of the buffer on the wire instead of 3/4 */
    close_to(e.us, 10 + 1e6 / 1000 * (1.0 / 2) / (3.0 / 4));
    assert_int_equal(e.source, WEFT_SOURCE_SCALED);
    /* Alone on the card that four ranks shared. */
    c.costs[WEFT_COST_ALL_GATHER_BETWEEN].curve = weft_curve_linear(30, 1000);
    close_to(collective_us(&c, BETWEEN(4), WEFT_COLLECTIVE_ALL_GATHER, 1e6), 30 + 1e6 / 1000 / 4);
    /* A kin's curve by what a rank sends, where its own was not measured. */
    c.costs[WEFT_COST_REDUCE_SCATTER].curve.num_points = 0;
    c.costs[WEFT_COST_ALL_GATHER].curve.num_points = 0;
    c.costs[WEFT_COST_ALL_REDUCE].curve = weft_curve_linear(40, 1000);
    e = collective(&c, INSIDE(4), WEFT_COLLECTIVE_REDUCE_SCATTER, 1e6);
    close_to(e.us, 40 * 3.0 / 4 + 1e6 / 1000 / 2);
    assert_int_equal(e.source, WEFT_SOURCE_SCALED);
    /* Messages to all: what leaves the node, by the curve between, of two nodes of two. */
    const weft_group direct = {4, 2, 1, 4, true};
    c.costs[WEFT_COST_ALL_REDUCE_BETWEEN].curve = weft_curve_linear(50, 1000);
    close_to(collective_us(&c, direct, WEFT_COLLECTIVE_ALL_REDUCE, 3e6),
             50 + 2 * 3e6 * (2.0 / 4) / (2 * 3.0 / 4) / 1000);
}

/* --- the device ---------------------------------------------------------------------------- */

static weft_estimate gemm(const weft_cluster *c, weft_dtype dtype, uint64_t m, uint64_t n,
                          uint64_t k, uint64_t groups)
{
    const weft_site site = {.cluster = c};
    const weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                              .module = "linear",
                              .dtype = dtype,
                              .m = m,
                              .n = n,
                              .k = k,
                              .groups = groups,
                              .count = 1,
                              .flops = 2 * m * n * k};
    weft_estimate out;
    OK(weft_operation_us(&site, &o, &out));
    return out;
}

CASE(products_are_tiles_and_waves)
{
    weft_cluster c = modelled();
    /* Without multiprocessors by FLOPs, or by the operands' bytes. */
    close_to(gemm(&c, WEFT_BF16, 1024, 1024, 1024, 0).us, 3 + 2 * pow(1024, 3) / 100e6);
    close_to(gemm(&c, WEFT_BF16, 1, 4096, 4096, 0).us, 3 + 2 * (4096 + 4096 + 4096.0 * 4096) / 1e6);
    figure(&c, WEFT_FIGURE_MULTIPROCESSORS, 50);
    figure(&c, WEFT_FIGURE_WAVE, 7);
    /* 64 tiles of 128 x 128 are two waves of 50, each 2 MFLOP/us a multiprocessor; a wave's tiles
     * are stored together, 1 MB/us */
    const double fixed = 7 + 2 * 128 * 128 * 50 / 1e6;
    close_to(gemm(&c, WEFT_BF16, 1024, 1024, 4096, 0).us,
             3 + 2 * (fixed + 2 * 128 * 128 * 4096.0 / 2e6));
    /* 50 tiles are one, 51 two. */
    const double one = gemm(&c, WEFT_BF16, 128 * 50, 128, 4096, 0).us;
    close_to(gemm(&c, WEFT_BF16, 128 * 50 + 1, 128, 4096, 0).us - 3, 2 * (one - 3));
    /* k has a cost apart from the products: halves of it take longer. */
    close_to(2 * gemm(&c, WEFT_BF16, 1024, 1024, 2048, 0).us -
                 gemm(&c, WEFT_BF16, 1024, 1024, 4096, 0).us,
             3 + 2 * fixed);
    /* Groups that share the rows fill waves together. */
    close_to(gemm(&c, WEFT_BF16, 1024, 1024, 4096, 8).us,
             gemm(&c, WEFT_BF16, 1024, 1024, 4096, 0).us);
    c.hardware.efficiencies[WEFT_EFFICIENCY_GEMM] = (weft_share_curve){1, {1}, {0.5}};
    close_to(gemm(&c, WEFT_BF16, 1024, 1024, 4096, 0).us,
             3 + 2 * (fixed + 2 * 128 * 128 * 4096.0 / 1e6));
}

/* Tiles lie as they fit best, are halved where one would do, and where multiprocessors are idle. */
CASE(tiles_fit_their_products)
{
    weft_cluster c = modelled();
    figure(&c, WEFT_FIGURE_MULTIPROCESSORS, 50);
    figure(&c, WEFT_FIGURE_TILE_M, 256);
    figure(&c, WEFT_FIGURE_TILE_N, 128);
    figure(&c, WEFT_FIGURE_MEMORY_BANDWIDTH, 10e12);
    const double large = 2 * 256 * 128 * 4096.0 / 2e6 + 2 * 256 * 128 * 50 / 10e6;
    /* 50 tiles of 256 x 128, on their ends or on their sides: one wave */
    close_to(gemm(&c, WEFT_BF16, 2560, 640, 4096, 0).us, 3 + large);
    close_to(gemm(&c, WEFT_BF16, 640, 2560, 4096, 0).us, 3 + large);
    /* 51 of these are two waves; 102 of 128 x 128 are three of half the time */
    close_to(gemm(&c, WEFT_BF16, 256 * 51, 128, 4096, 0).us, 3 + 1.5 * large);
    /* 96 columns take a tile of 128, 64 one of 64 */
    close_to(gemm(&c, WEFT_BF16, 256 * 50, 96, 4096, 0).us, 3 + large);
    close_to(gemm(&c, WEFT_BF16, 256 * 50, 64, 4096, 0).us, 3 + large / 2);
    /* 32 tiles of 128 x 128 leave 18 multiprocessors idle; 64 of 128 x 64 leave none */
    close_to(gemm(&c, WEFT_BF16, 1024, 512, 4096, 0).us, 3 + 2 * large / 4);
}

CASE(products_take_their_measured_times)
{
    weft_cluster c = measured();
    const weft_curve *curve = &c.costs[WEFT_COST_GEMM_BF16].curve;
    c.costs[WEFT_COST_GEMM_BF16].width = 64;
    /* On a CPU by FLOPs, products of one launch one after the other. */
    weft_estimate e = gemm(&c, WEFT_BF16, 100, 64, 64, 0);
    assert_true(e.us == weft_curve_time_us(curve, 2.0 * 100 * 64 * 64));
    assert_int_equal(e.source, WEFT_SOURCE_MEASURED);
    e = gemm(&c, WEFT_BF16, 100, 32, 128, 4);
    close_to(e.us, 4 * weft_curve_time_us(curve, 2.0 * 25 * 32 * 128));
    assert_int_equal(e.source, WEFT_SOURCE_SCALED);
    assert_int_equal(gemm(&c, WEFT_F16, 100, 64, 64, 0).source, WEFT_SOURCE_SCALED);
    /* On a GPU the waves' ratio scales it: twice the columns, twice the tiles. */
    figure(&c, WEFT_FIGURE_MULTIPROCESSORS, 1);
    assert_true(gemm(&c, WEFT_BF16, 128, 64, 64, 0).us ==
                weft_curve_time_us(curve, 2.0 * 128 * 64 * 64));
    close_to(gemm(&c, WEFT_BF16, 128, 1, 4096, 0).us, /* a tile has 16 columns at least */
             16 * weft_curve_time_us(curve, 2.0 * 128 * 64 * 64));
    /* A product that was measured itself. */
    c.products[c.num_products++] = (weft_product){WEFT_COST_GEMM_BF16, 128, 1, 4096, 12.25};
    e = gemm(&c, WEFT_BF16, 128, 1, 4096, 0);
    assert_true(e.us == 12.25);
    assert_int_equal(e.source, WEFT_SOURCE_MEASURED);
    assert_true(gemm(&c, WEFT_F32, 128, 1, 4096, 0).us != 12.25);
    /* And one that differs from it in one number is scaled, by waves. */
    e = gemm(&c, WEFT_BF16, 128, 1, 2048, 0);
    close_to(e.us, 12.25 / 2);
    assert_int_equal(e.source, WEFT_SOURCE_ASSUMED); /* the tiles are */
    assert_true(fabs(gemm(&c, WEFT_BF16, 128, 1, 512, 0).us - 12.25 / 8) > 1e-6); /* too far */
    assert_true(fabs(gemm(&c, WEFT_BF16, 64, 1, 2048, 0).us - 12.25 / 4) > 1e-6); /* two numbers */
    c.hardware.given &= ~(1u << WEFT_FIGURE_MULTIPROCESSORS);                     /* by FLOPs */
    close_to(gemm(&c, WEFT_BF16, 100, 1, 4096, 0).us, 12.25 * 100 / 128);
}

/* Of three kernels, and of attention: at their own module, phase, type and volume. */
CASE(operations_take_their_measured_times)
{
    weft_cluster c = measured();
    weft_site site = {.cluster = &c};
    weft_operation o = {.kind = WEFT_OPERATION_MEMORY,
                        .phase = WEFT_PHASE_FORWARD,
                        .module = "loss",
                        .dtype = WEFT_BF16,
                        .bytes = 3 * 4096,
                        .count = 3};
    weft_estimate by_curve, e;
    OK(weft_operation_us(&site, &o, &by_curve));
    c.operations[c.num_operations++] =
        (weft_timed_operation){"loss", WEFT_PHASE_FORWARD, WEFT_BF16, 4096, 7.5};
    c.operations[c.num_operations++] =
        (weft_timed_operation){"core_attention", WEFT_PHASE_RECOMPUTE, WEFT_F32, 1000, 0.5};
    OK(weft_operation_us(&site, &o, &e));
    assert_true(e.us == 3 * 7.5 && e.source == WEFT_SOURCE_MEASURED);
    o.dtype = WEFT_F32;
    OK(weft_operation_us(&site, &o, &e));
    assert_true(e.us == by_curve.us);
    o = (weft_operation){.kind = WEFT_OPERATION_GEMM,
                         .phase = WEFT_PHASE_RECOMPUTE,
                         .module = "core_attention",
                         .m = 10,
                         .n = 10,
                         .k = 10,
                         .count = 8,
                         .flops = 8 * 1000,
                         .fused = true};
    OK(weft_operation_us(&site, &o, &e));
    assert_true(e.us == 8 * 0.5);
    /* Devices of another kind were not measured; an emulated one has its attention's FLOPs. */
    c.num_groups = 1;
    c.groups[0] = (weft_node_group){.num_nodes = c.num_nodes,
                                    .hardware = c.hardware,
                                    .own_figures = 1u << WEFT_FIGURE_PEAK_FP32};
    site.kinds = 1;
    assert_true(weft_operation_us(&site, &o, &e) == WEFT_CONFIG); /* no figure tells */
    site.kinds = 0;
    c.num_groups = 0;
    weft_cluster_set_pace(&c, 1e9);
    OK(weft_operation_us(&site, &o, &e));
    close_to(e.us, 8 * 1000 / 1e9 * 1e6);
    assert_int_equal(c.num_operations, 1);
}

static double attention_of(const weft_cluster *c, uint64_t flops, uint64_t width, weft_phase phase)
{
    const weft_site site = {.cluster = c};
    const weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                              .phase = phase,
                              .module = "core_attention",
                              .dtype = WEFT_BF16,
                              .m = 1024,
                              .n = 1024,
                              .k = width,
                              .count = 8,
                              .flops = flops,
                              .fused = true};
    weft_estimate out;
    OK(weft_operation_us(&site, &o, &out));
    return out.us;
}

static double attention(const weft_cluster *c, uint64_t flops)
{
    return attention_of(c, flops, 64, WEFT_PHASE_FORWARD);
}

/* Rows of experts differ: the last tile of each is half full. */
CASE(experts_leave_tiles_half_full)
{
    weft_cluster c = modelled();
    c.hardware.figures[WEFT_FIGURE_MULTIPROCESSORS] = 1;
    c.hardware.given |= 1u << WEFT_FIGURE_MULTIPROCESSORS;
    const weft_site site = {.cluster = &c};
    weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                        .module = "linear_fc1",
                        .dtype = WEFT_BF16,
                        .m = 8 * 256,
                        .n = 1024,
                        .k = 4096,
                        .groups = 8,
                        .count = 1,
                        .flops = UINT64_C(2) * 8 * 256 * 1024 * 4096};
    weft_estimate even, uneven;
    OK(weft_operation_us(&site, &o, &even));
    o.inner = WEFT_INNER_EXPERTS;
    OK(weft_operation_us(&site, &o, &uneven));
    assert_true(uneven.us > 1.1 * even.us && uneven.us < 1.3 * even.us);
    o.m *= 16; /* of many tiles a half is little */
    OK(weft_operation_us(&site, &o, &uneven));
    o.inner = WEFT_INNER_NONE;
    OK(weft_operation_us(&site, &o, &even));
    assert_true(uneven.us > even.us && uneven.us < 1.03 * even.us);
}

/* A product of attention is half of what forward computes in one launch. */
CASE(attention_has_costs_of_its_own)
{
    const uint64_t flops = (uint64_t)8 * 1024 * 1024 * 64;
    weft_cluster c = modelled();
    close_to(attention(&c, flops), (3 + 2 * (double)flops / 100e6) / 2);
    c.hardware.efficiencies[WEFT_EFFICIENCY_ATTENTION] = (weft_share_curve){1, {1}, {0.25}};
    close_to(attention(&c, flops), (3 + 4 * 2 * (double)flops / 100e6) / 2);
    /* Backward and narrow heads have curves of their own; between two widths it is interpolated. */
    c.hardware.efficiencies[WEFT_EFFICIENCY_ATTENTION_BACKWARD] =
        (weft_share_curve){2, {512, 1024}, {0.1, 0.2}};
    close_to(attention(&c, flops), (3 + 4 * 2 * (double)flops / 100e6) / 2);
    close_to(attention_of(&c, flops, 128, WEFT_PHASE_INPUT_GRADIENT),
             (3 + 5 * 2 * (double)flops / 100e6) / 2);
    c.hardware.efficiencies[WEFT_EFFICIENCY_ATTENTION_64] = (weft_share_curve){1, {1}, {0.125}};
    close_to(attention(&c, flops), (3 + 8 * 2 * (double)flops / 100e6) / 2);
    close_to(attention_of(&c, flops, 96, WEFT_PHASE_FORWARD),
             (3 + 2 * (double)flops / 100e6 / 0.1875) / 2);
    c.costs[WEFT_COST_ATTENTION_BF16].curve = weft_curve_linear(10, 1e7);
    close_to(attention(&c, flops), (10 + 2 * (double)flops / 1e7) / 2);
    /* By products alone: half of them, as it is causal. */
    weft_cluster old = {.name = "old", .num_nodes = 1, .ranks_per_node = 1};
    old.costs[WEFT_COST_GEMM_BF16].curve = weft_curve_linear(0, 1e6);
    close_to(attention(&old, flops), (double)flops / 1e6);
}

static weft_estimate work(const weft_cluster *c, weft_cost_kind kind, double volume)
{
    const weft_site site = {.cluster = c};
    weft_estimate out;
    OK(weft_work_us(&site, kind, volume, &out));
    return out;
}

/* Copies over the link take their bytes at its pace, whatever was measured or is beside them. */
CASE(a_link_pace_takes_copies_alone)
{
    weft_cluster c = modelled();
    figure(&c, WEFT_FIGURE_HOST_LINK, 20e9);
    c.costs[WEFT_COST_TO_HOST].curve = weft_curve_linear(7, 1e3);
    c.costs[WEFT_COST_COPY].curve = weft_curve_linear(7, 1e3);
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_NUM_WORK_CLASSES; x++)
            c.interference.alpha[y][x] = x == y ? 1 : 0.5 + 0.05 * x + 0.01 * y;
    const weft_interference before = c.interference;
    const double copy = work(&c, WEFT_COST_COPY, 1e6).us;
    weft_cluster_set_link_pace(&c, 5e8);
    assert_true(work(&c, WEFT_COST_TO_HOST, 1e6).us == 2000);
    assert_true(work(&c, WEFT_COST_TO_DEVICE, 1e6).us == 2000);
    assert_true(work(&c, WEFT_COST_TO_DEVICE, 1e6).links[WEFT_LINK_HOST].us == 2000);
    assert_true(work(&c, WEFT_COST_COPY, 1e6).us == copy);
    for (int x = 0; x <= WEFT_NUM_WORK_CLASSES; x++)
        assert_true(c.interference.alpha[WEFT_WORK_MEM][x] == 1);
    assert_true(c.interference.alpha[WEFT_WORK_COMP][WEFT_WORK_MEM] == 1 &&
                c.interference.alpha[WEFT_WORK_COMP][WEFT_WORK_ALL] ==
                    before.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] &&
                c.interference.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] ==
                    before.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP]);
}

CASE(a_pace_takes_flops_alone)
{
    weft_cluster c = modelled();
    figure(&c, WEFT_FIGURE_MULTIPROCESSORS, 132);
    c.products[c.num_products++] = (weft_product){WEFT_COST_GEMM_FP32, 100, 200, 300, 77};
    c.costs[WEFT_COST_GEMM_FP32] =
        (weft_cost){.curve = weft_curve_linear(9, 5e6), .peak = 5e12, .width = 1024};
    const weft_site site = {.cluster = &c};
    weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                        .module = "linear",
                        .dtype = WEFT_F32,
                        .m = 100,
                        .n = 200,
                        .k = 300,
                        .count = 3,
                        .flops = 3 * 12000000};
    weft_estimate before, out;
    weft_operation memory = {
        .kind = WEFT_OPERATION_MEMORY, .module = "norm", .bytes = 1 << 20, .count = 1};
    OK(weft_operation_us(&site, &memory, &before));
    weft_cluster_set_pace(&c, 2e9);
    OK(weft_operation_us(&site, &o, &out));
    close_to(out.us, 3 * 12e6 / 2e9 * 1e6);
    o.dtype = WEFT_BF16;
    o.fused = true;
    o.flops /= 2; /* causal */
    OK(weft_operation_us(&site, &o, &out));
    close_to(out.us, 3 * 6e6 / 2e9 * 1e6);
    OK(weft_operation_us(&site, &memory, &out));
    close_to(out.us, before.us);
}

CASE(what_is_bound_by_memory_takes_its_bytes)
{
    weft_cluster c = modelled();
    const weft_site site = {.cluster = &c};
    const weft_operation norms = {
        .kind = WEFT_OPERATION_MEMORY, .module = "norm", .bytes = 6000000, .count = 3};
    weft_estimate out;
    OK(weft_operation_us(&site, &norms, &out));
    close_to(out.us, 3 * (3 + 2e6 / 1e6));
    close_to(work(&c, WEFT_COST_COPY, 1e6).us, 3 + 2);
    close_to(work(&c, WEFT_COST_ADAMW, 28e6).us, 3 + 28);
    figure(&c, WEFT_FIGURE_HOST_LINK, 20e9);
    figure(&c, WEFT_FIGURE_STORAGE_WRITE, 4e9);
    close_to(work(&c, WEFT_COST_TO_HOST, 1e6).us, 3 + 50);
    close_to(work(&c, WEFT_COST_STORAGE_WRITE, 1e9).us, 3 + 8 * 250e3); /* eight ranks write */
    assert_true(work(&c, WEFT_COST_ADAMW, 0).us == 0);
    /* A copy's curve moves its volume twice. */
    c.costs[WEFT_COST_COPY].curve = weft_curve_linear(5, 1000);
    OK(weft_operation_us(&site, &norms, &out));
    close_to(out.us, 3 * (5 + 1e6 / 1000));
    assert_int_equal(out.source, WEFT_SOURCE_SCALED);
    c.costs[WEFT_COST_MEMORY].curve = weft_curve_linear(5, 4000);
    OK(weft_operation_us(&site, &norms, &out));
    close_to(out.us, 3 * (5 + 2e6 / 4000));
    assert_int_equal(out.source, WEFT_SOURCE_MEASURED);
    close_to(work(&c, WEFT_COST_ADAMW, 28e6).us, 5 + 28e6 / 4000);
    c.costs[WEFT_COST_ADAMW].curve = weft_curve_linear(6, 2000);
    assert_true(work(&c, WEFT_COST_ADAMW, 28e6).us == weft_cluster_us(&c, WEFT_COST_ADAMW, 28e6));
}

/* What an offloaded optimizer takes: measured, else as what is alike, else by figures. */
CASE(host_and_files_have_costs_of_their_own)
{
    weft_cluster c = modelled(); /* of eight ranks a node */
    const weft_site site = {.cluster = &c};
    weft_estimate out;
    FAILS(weft_work_us(&site, WEFT_COST_ADAMW_HOST, 9, &out), WEFT_CONFIG,
          "host.memory_bandwidth is not");
    figure(&c, WEFT_FIGURE_HOST_BANDWIDTH, 400e9);
    close_to(work(&c, WEFT_COST_ADAMW_HOST, 28e6).us, 8 * 70);
    figure(&c, WEFT_FIGURE_MULTIPROCESSORS, 132); /* a GPU's own step tells nothing of its host */
    c.costs[WEFT_COST_ADAMW].curve = weft_curve_linear(6, 2000);
    close_to(work(&c, WEFT_COST_ADAMW_HOST, 28e6).us, 8 * 70);
    c.hardware.given &= ~(1u << WEFT_FIGURE_MULTIPROCESSORS);
    close_to(work(&c, WEFT_COST_ADAMW_HOST, 28e6).us, 6 + 28e6 / 2000);
    assert_int_equal(work(&c, WEFT_COST_ADAMW_HOST, 28e6).source, WEFT_SOURCE_SCALED);
    c.costs[WEFT_COST_ADAMW_HOST].curve = weft_curve_linear(1, 4000);
    close_to(work(&c, WEFT_COST_ADAMW_HOST, 28e6).us, 1 + 28e6 / 4000);
    assert_int_equal(work(&c, WEFT_COST_ADAMW_HOST, 28e6).source, WEFT_SOURCE_MEASURED);

    figure(&c, WEFT_FIGURE_STORAGE_WRITE, 4e9);
    close_to(work(&c, WEFT_COST_DIRECT_WRITE, 1e9).us, 3 + 8 * 250e3);
    c.costs[WEFT_COST_STORAGE_WRITE].curve = weft_curve_linear(100, 500);
    close_to(work(&c, WEFT_COST_DIRECT_WRITE, 1e9).us, 100 + 1e9 / 500);
    c.costs[WEFT_COST_DIRECT_WRITE].curve = weft_curve_linear(50, 800);
    close_to(work(&c, WEFT_COST_DIRECT_WRITE, 1e9).us, 50 + 1e9 / 800);
    close_to(work(&c, WEFT_COST_STORAGE_WRITE, 1e9).us, 100 + 1e9 / 500);
    FAILS(weft_work_us(&site, WEFT_COST_DIRECT_READ, 9, &out), WEFT_CONFIG, "storage.read");
}

/* What binds is told of products too: few rows wait for their matrix. */
CASE(products_of_few_rows_are_bound_by_memory)
{
    weft_cluster c = modelled();
    const weft_estimate few = gemm(&c, WEFT_BF16, 1, 4096, 4096, 0);
    close_to(few.memory_us, few.us - 3);
    assert_true(gemm(&c, WEFT_BF16, 1024, 1024, 1024, 0).memory_us == 0);
    c.costs[WEFT_COST_GEMM_BF16] =
        (weft_cost){.curve = weft_curve_linear(0, 100e6), .peak = 100e12};
    const weft_estimate measured = gemm(&c, WEFT_BF16, 1, 4096, 4096, 0);
    assert_true(measured.us > 0 && measured.memory_us == measured.us);
    assert_true(gemm(&c, WEFT_BF16, 1024, 1024, 1024, 0).memory_us == 0);
    figure(&c, WEFT_FIGURE_HOST_LINK, 20e9);
    close_to(work(&c, WEFT_COST_TO_HOST, 1e6).links[WEFT_LINK_HOST].us, 3 + 50);
    close_to(work(&c, WEFT_COST_ADAMW, 28e6).memory_us, 28);
}

/* --- sources, nodes that differ, what is missing ------------------------------------------- */

CASE(estimates_are_as_sure_as_their_worst_number)
{
    weft_cluster c = modelled();
    assert_int_equal(gemm(&c, WEFT_BF16, 64, 64, 64, 0).source, WEFT_SOURCE_ASSUMED);
    c.sources[c.num_sources++] = (weft_source){"device", WEFT_SOURCE_DATASHEET, "", 0.02};
    c.sources[c.num_sources++] = (weft_source){"inside", WEFT_SOURCE_MEASURED, "", 0};
    c.sources[c.num_sources++] = (weft_source){"inside.efficiency", WEFT_SOURCE_ASSUMED, "", 0.3};
    weft_estimate e = gemm(&c, WEFT_BF16, 64, 64, 64, 0);
    assert_int_equal(e.source, WEFT_SOURCE_DATASHEET);
    assert_true(e.spread == 0.02);
    assert_int_equal(collective(&c, INSIDE(4), WEFT_COLLECTIVE_ALL_GATHER, 9).source,
                     WEFT_SOURCE_MEASURED);
    c.hardware.efficiencies[WEFT_EFFICIENCY_INSIDE] = (weft_share_curve){1, {1}, {0.5}};
    e = collective(&c, INSIDE(4), WEFT_COLLECTIVE_ALL_GATHER, 9);
    assert_int_equal(e.source, WEFT_SOURCE_ASSUMED);
    assert_true(e.spread == 0.3);
}

/* What prices took, by the paths of the file. */
CASE(prices_tell_their_inputs)
{
    weft_cluster c = modelled();
    weft_inputs inputs = {0};
    const weft_group group = INSIDE(4);
    const weft_site site = {.cluster = &c, .inputs = &inputs};
    weft_estimate e;
    OK(weft_collective_us(&site, &group, WEFT_COLLECTIVE_ALL_GATHER, 1e6, &e));
    /* an efficiency that is not given counts as 1, and is told */
    assert_true(inputs.used == (UINT64_C(1) << WEFT_FIGURE_INSIDE_BANDWIDTH |
                                UINT64_C(1) << WEFT_FIGURE_INSIDE_LATENCY |
                                UINT64_C(1) << (WEFT_INPUT_EFFICIENCIES + WEFT_EFFICIENCY_INSIDE)));
    c.costs[WEFT_COST_ALL_REDUCE] = (weft_cost){.curve = weft_curve_linear(2, 1e5), .peak = 1e11};
    inputs = (weft_inputs){0};
    OK(weft_collective_us(&site, &group, WEFT_COLLECTIVE_ALL_GATHER, 1e6, &e));
    const uint64_t kin = UINT64_C(1) << (WEFT_INPUT_COSTS + WEFT_COST_ALL_REDUCE);
    assert_true(inputs.used & kin && inputs.scaled == kin);
    assert_string_equal(weft_input_path(WEFT_FIGURE_PEAK_BF16), "device.peak.bf16");
    assert_string_equal(weft_input_path(WEFT_INPUT_EFFICIENCIES), "device.efficiency.gemm");
    assert_string_equal(weft_input_path(WEFT_INPUT_COSTS + WEFT_COST_MESSAGE), "costs.message");
    assert_string_equal(weft_input_path(WEFT_INPUT_PRODUCTS), "products");
    assert_string_equal(weft_input_path(WEFT_INPUT_OPERATIONS), "operations");
    assert_string_equal(weft_input_path(WEFT_INPUT_LEVELS), "between.levels");
}

/* 2 us inside, 5 us between: 100 ranks are on 13 nodes, four storeys of a binomial tree. */
CASE(a_small_sum_costs_the_tree_s_latencies)
{
    const weft_cluster c = modelled();
    const weft_site site = {.cluster = &c};
    weft_estimate e;
    OK(weft_small_sum_us(&site, 1, 64, &e));
    assert_true(e.us == 0);
    OK(weft_small_sum_us(&site, 8, 64, &e));
    assert_true(fabs(e.us - 2 * 2) < 0.01);
    OK(weft_small_sum_us(&site, 16, 64, &e));
    assert_true(fabs(e.us - (2 * 2 + 2 * 5)) < 0.05);
    OK(weft_small_sum_us(&site, 100, 64, &e));
    assert_true(fabs(e.us - (2 * 2 + 8 * 5)) < 0.1);
}

CASE(nodes_that_differ_have_their_own_costs)
{
    weft_cluster c = modelled();
    c.costs[WEFT_COST_GEMM_BF16].curve = weft_curve_linear(0, 1e6);
    c.costs[WEFT_COST_MESSAGE].curve = weft_curve_linear(0, 1);
    c.num_groups = 2;
    c.groups[0] = (weft_node_group){.num_nodes = 8, .hardware = c.hardware};
    c.groups[1] = c.groups[0];
    c.groups[1].hardware.figures[WEFT_FIGURE_PEAK_BF16] = 10e12;
    c.groups[1].own_figures = 1u << WEFT_FIGURE_PEAK_BF16;
    weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                        .module = "linear",
                        .dtype = WEFT_BF16,
                        .m = 1000,
                        .n = 1000,
                        .k = 1000,
                        .flops = 2000000000};
    weft_estimate first, second, message;
    weft_site site = {.cluster = &c, .kinds = 1};
    OK(weft_operation_us(&site, &o, &first));
    site.kinds = 2;
    OK(weft_operation_us(&site, &o, &second));
    close_to(first.us, 2000);     /* what was measured */
    close_to(second.us, 3 + 200); /* it was not measured there */
    site.kinds = 3;
    OK(weft_operation_us(&site, &o, &second));
    close_to(second.us, 2000); /* whoever is faster waits */
    assert_int_equal(second.source, WEFT_SOURCE_ASSUMED);
    const weft_group pair = {2, 1, 1, 1, false};
    OK(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 100, &message));
    close_to(message.us, 100); /* the network is the same */
    c.groups[1].hardware.figures[WEFT_FIGURE_BETWEEN_BANDWIDTH] = 5e9;
    c.groups[1].own_figures |= 1u << WEFT_FIGURE_BETWEEN_BANDWIDTH;
    OK(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 1e6, &message));
    close_to(message.us, 1e6); /* as measured on the others */
    c.costs[WEFT_COST_MESSAGE].curve.num_points = 0;
    OK(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 1e6, &message));
    close_to(message.us, 5 + 200); /* the narrower end's rate */
    for (int i = 0; i < 2; i++) {
        c.groups[i].hardware.figures[WEFT_FIGURE_BETWEEN_EAGER] = i ? 1e5 : 1e6;
        c.groups[i].hardware.given |= 1u << WEFT_FIGURE_BETWEEN_EAGER;
    }
    OK(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 1e6, &message));
    assert_false(message.buffered); /* not on both */
    OK(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 1e5, &message));
    assert_true(message.buffered);
    c.groups[1].hardware.figures[WEFT_FIGURE_CARDS] = 2;
    assert_true(weft_group_of(&c, (const int[]){0, 8}, 2, false).sharing == 1);
    assert_true(weft_group_of(&c, (const int[]){0, 64}, 2, false).sharing == 4);
}

CASE(what_is_missing_is_named)
{
    weft_cluster c = {.name = "bare", .num_nodes = 2, .ranks_per_node = 2};
    const weft_site site = {.cluster = &c, .groups[WEFT_AXIS_TP] = INSIDE(2)};
    weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                        .module = "linear_qkv",
                        .dtype = WEFT_BF16,
                        .m = 1,
                        .n = 1,
                        .k = 1,
                        .flops = 2};
    weft_estimate out = {.us = 77};
    FAILS(weft_operation_us(&site, &o, &out), WEFT_CONFIG,
          "cluster \"bare\": device.peak.bf16 is not known, and linear_qkv needs it");
    o.dtype = WEFT_F32;
    FAILS(weft_operation_us(&site, &o, &out), WEFT_CONFIG, "device.peak.fp32 is not known");
    o = (weft_operation){.kind = WEFT_OPERATION_MEMORY, .module = "norm", .bytes = 9, .count = 1};
    FAILS(weft_operation_us(&site, &o, &out), WEFT_CONFIG, "device.memory_bandwidth is not known");
    o = (weft_operation){.kind = WEFT_OPERATION_COLLECTIVE,
                         .module = "exit",
                         .bytes = 9,
                         .count = 1,
                         .axis = WEFT_AXIS_TP};
    FAILS(weft_operation_us(&site, &o, &out), WEFT_CONFIG,
          "inside.latency_us is not known, and ex");
    const weft_group pair = BETWEEN(2);
    FAILS(weft_collective_us(&site, &pair, WEFT_COLLECTIVE_MESSAGE, 9, &out), WEFT_CONFIG,
          "between.latency_us is not known, and a message needs it");
    FAILS(weft_work_us(&site, WEFT_COST_STORAGE_READ, 9, &out), WEFT_CONFIG, "storage.read is not");
    assert_true(out.us == 77);
}

/* Curves for those who ask for curves: what is estimated at the shape that would be measured. */
CASE(unknown_curves_follow_from_figures)
{
    weft_cluster c = modelled();
    const weft_cluster before = c;
    c.costs[WEFT_COST_COPY] = (weft_cost){.curve = weft_curve_linear(5, 1000), .peak = 1e9};
    weft_cost_complete(&c);
    assert_true(weft_cluster_us(&c, WEFT_COST_COPY, 1e6) == 1005); /* it was known */
    assert_false(weft_cluster_knows(&c, WEFT_COST_GEMM_FP32));     /* no figure tells */
    assert_false(weft_cluster_knows(&c, WEFT_COST_STORAGE_READ));
    const double v = 1 << 26; /* a point of the curves, and 4096 is 2^12 */
    close_to(weft_cluster_us(&c, WEFT_COST_ALL_REDUCE, v),
             collective_us(&before, INSIDE(8), WEFT_COLLECTIVE_ALL_REDUCE, v));
    close_to(weft_cluster_us(&c, WEFT_COST_ALL_GATHER_BETWEEN, v),
             collective_us(&before, BETWEEN(16), WEFT_COLLECTIVE_ALL_GATHER, v));
    close_to(weft_cluster_us(&c, WEFT_COST_ALL_TO_ALL, v), 5 + v / 10e3);
    close_to(weft_cluster_us(&c, WEFT_COST_MESSAGE_INSIDE, v), 2 + v / 100e3);
    close_to(weft_cluster_us(&c, WEFT_COST_GEMM_BF16, 2.0 * 1024 * 4096 * 4096),
             gemm(&before, WEFT_BF16, 1024, 4096, 4096, 0).us);
    assert_int_equal(c.costs[WEFT_COST_GEMM_BF16].width, 4096);
    assert_true(weft_cluster_efficiency(&c, WEFT_COST_MESSAGE, 1) < 0.01);
    /* A kin's curve is no figure: what was not measured there is still to be named. */
    weft_cluster kin = measured();
    kin.costs[WEFT_COST_REDUCE_SCATTER] = (weft_cost){.peak = 0};
    weft_cost_complete(&kin);
    assert_false(weft_cluster_knows(&kin, WEFT_COST_REDUCE_SCATTER));
    weft_cluster one = {.num_nodes = 1, .ranks_per_node = 1};
    weft_cost_complete(&one);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        assert_false(weft_cluster_knows(&one, (weft_cost_kind)i));
    assert_int_equal(weft_error_get()->status, WEFT_OK); /* nothing of it stays behind */
}
