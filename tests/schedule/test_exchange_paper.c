/* MoNTA's equations and algorithms as printed, against a second evaluator; the numbers by hand
 * stand in tests/launcher/plan_layers.c. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <string.h>

#include "schedule/exchange/paper.h"

static void set(weft_cluster *c, weft_figure figure, double value)
{
    c->hardware.figures[figure] = value;
    c->hardware.given |= 1u << figure;
}

/* Nodes of 8 with a card a rank, as the paper's: 25, 200 and 2000 GB/s. */
static weft_cluster example(void)
{
    weft_cluster c = {.name = "example", .num_nodes = 2, .ranks_per_node = 8};
    set(&c, WEFT_FIGURE_CARDS, 8);
    set(&c, WEFT_FIGURE_BETWEEN_BANDWIDTH, 25e9);
    set(&c, WEFT_FIGURE_INSIDE_BANDWIDTH, 200e9);
    set(&c, WEFT_FIGURE_MEMORY_BANDWIDTH, 2e12);
    c.hardware.efficiencies[WEFT_EFFICIENCY_BETWEEN] =
        (weft_share_curve){3, {1e5, 1e6, 4e6}, {0.4, 0.5, 0.8}};
    c.hardware.efficiencies[WEFT_EFFICIENCY_INSIDE] = (weft_share_curve){2, {1e6, 8e6}, {0.5, 0.8}};
    c.hardware.efficiencies[WEFT_EFFICIENCY_MEMORY] = (weft_share_curve){1, {8e6}, {0.5}};
    return c;
}

static const weft_exchange_shape four_by_two = {.bytes = 8e6, .t = 4, .e = 2, .minimal_bytes = 2e6};

/* --- a second evaluator, from the paper's text ---------------------------------------------- */

static double r_at(double (*points)[2], int count, double v)
{
    if (v <= points[0][0])
        return points[0][1] * v / points[0][0]; /* the time holds */
    for (int i = 1; i < count; i++)
        if (v <= points[i][0]) {
            const double t0 = points[i - 1][0] / points[i - 1][1], t1 = points[i][0] / points[i][1];
            const double f = (v - points[i - 1][0]) / (points[i][0] - points[i - 1][0]);
            return v / (t0 + f * (t1 - t0));
        }
    return points[count - 1][1];
}

typedef struct by_hand {
    double points[3][3][2];
    double b[3], i, t, e, minimal;
    double seconds[3]; /* o1, o2, o3 */
} by_hand;

/* Seconds of o1, o2 and o3 in n chunks; false: below I_minimal. */
static bool times_at(by_hand *x, double n, double out[3])
{
    const double i_aa = x->i / (n * x->t), i_ag = x->i / n;
    const double r1 = r_at(x->points[0], 3, i_aa), r2 = r_at(x->points[1], 3, i_ag),
                 r3 = r_at(x->points[2], 3, i_ag);
    const double aa = x->i / (n * x->t) * ((x->e - 1) / x->e) / (x->b[0] * r1);
    const double ag = x->i / n * ((x->t - 1) / x->t) / (x->b[1] * r2);
    const double d2d = x->i / n / (x->b[2] * r3);
    out[0] = aa + ag;
    out[1] = aa < ag + d2d ? aa + (ag + d2d) * n : aa * n + ag + d2d;
    out[2] = aa < ag ? aa + ag * n + d2d : aa * n + ag + d2d;
    return i_aa >= x->minimal && i_ag >= x->minimal;
}

static void evaluate(by_hand *x)
{
    double t[3];
    x->seconds[1] = x->seconds[2] = INFINITY;
    for (int n = 1; times_at(x, n, t); n++)
        for (int which = 1; which < 3; which++)
            x->seconds[which] = fmin(x->seconds[which], t[which]);
    times_at(x, 1, t);
    x->seconds[0] = t[0];
}

/* The number of chunks takes the least time; it may tie with another. */
static void check_chunks(by_hand *x, int which, double us, int64_t chunks)
{
    double t[3];
    if (isinf(x->seconds[which])) {
        assert_true(isinf(us) && chunks == 0);
        return;
    }
    close_to(us, 1e6 * x->seconds[which]);
    assert_true(times_at(x, (double)chunks, t));
    close_to(1e6 * t[which], us);
}

static double real(uint64_t *random, double low, double high)
{
    return low + (high - low) * next_random(random, 100001) / 1e5;
}

CASE(as_evaluated_twice)
{
    static const weft_efficiency_kind kinds[3] = {WEFT_EFFICIENCY_BETWEEN, WEFT_EFFICIENCY_INSIDE,
                                                  WEFT_EFFICIENCY_MEMORY};
    static const weft_figure figures[3] = {
        WEFT_FIGURE_BETWEEN_BANDWIDTH, WEFT_FIGURE_INSIDE_BANDWIDTH, WEFT_FIGURE_MEMORY_BANDWIDTH};
    static const double peaks[3][2] = {{1e9, 5e10}, {2e10, 9e11}, {1e11, 8e12}};
    uint64_t random = 7;
    int chosen[WEFT_NUM_EXCHANGES] = {0};
    for (int draw = 0; draw < 300; draw++) {
        by_hand x = {.i = floor(real(&random, 1e5, 5e8)),
                     .t = 1 + (double)next_random(&random, 8),
                     .e =
                         2 + (double)next_random(&random, 7), /* of one, all N would take as long */
                     .minimal = 65536};
        weft_cluster c = {.name = "drawn", .num_nodes = 8, .ranks_per_node = 8};
        for (int rate = 0; rate < 3; rate++) {
            double volume = 0, share = 0;
            set(&c, figures[rate], x.b[rate] = real(&random, peaks[rate][0], peaks[rate][1]));
            weft_share_curve *curve = &c.hardware.efficiencies[kinds[rate]];
            curve->num_points = 3;
            for (int i = 0; i < 3; i++) {
                curve->volume[i] = x.points[rate][i][0] = volume += real(&random, 1e4, 3e7);
                curve->share[i] = x.points[rate][i][1] = share += real(&random, 0.01, 0.33);
                /* a larger volume takes no less time */
                const double least =
                    i > 0 ? volume * curve->share[i - 1] / curve->volume[i - 1] : share;
                curve->share[i] = x.points[rate][i][1] = share = fmin(share, least);
            }
        }
        evaluate(&x);
        const weft_exchange_shape shape = {
            .bytes = x.i, .t = (int)x.t, .e = (int)x.e, .minimal_bytes = x.minimal};
        weft_exchange_paper p;
        OK(weft_exchange_paper_of(&c, &shape, &p));
        close_to(p.o1_us, 1e6 * x.seconds[0]);
        check_chunks(&x, 1, p.o2_us, p.o2_chunks);
        check_chunks(&x, 2, p.o3_us, p.o3_chunks);
        const double least = fmin(p.o1_us, fmin(p.o2_us, p.o3_us));
        const double times[WEFT_NUM_EXCHANGES] = {[WEFT_EXCHANGE_O1] = p.o1_us,
                                                  [WEFT_EXCHANGE_O2] = p.o2_us,
                                                  [WEFT_EXCHANGE_O3] = p.o3_us};
        close_to(times[p.choice], least);
        chosen[p.choice]++;
    }
    assert_true(chosen[WEFT_EXCHANGE_O1] > 0 && chosen[WEFT_EXCHANGE_O3] > 0);
}

/* A measured cost has its own peak and share of it. */
CASE(measured)
{
    weft_cluster c = example();
    weft_exchange_paper p;
    c.costs[WEFT_COST_ALL_TO_ALL] =
        (weft_cost){.curve = weft_curve_linear(100, 1e4), .peak = 10e9}; /* 100 us, 10 GB/s */
    OK(weft_exchange_paper_of(&c, &four_by_two, &p));
    close_to(p.rates[WEFT_PAPER_BETWEEN], 10e9);
    close_to(p.shares[WEFT_PAPER_BETWEEN], 2.0 / 3); /* 2 MB take 300 us instead of 200 */
    close_to(p.o1_us, 150 + 37.5);
}

/* Ranks share cards where the file counts them. */
CASE(cards)
{
    weft_cluster c = example();
    weft_exchange_paper p;
    set(&c, WEFT_FIGURE_CARDS, 2);
    OK(weft_exchange_paper_of(&c, &four_by_two, &p));
    close_to(p.rates[WEFT_PAPER_BETWEEN], 25e9 / 4);
    c.hardware.figures[WEFT_FIGURE_CARDS] = 0;
    c.hardware.given &= ~(1u << WEFT_FIGURE_CARDS);
    OK(weft_exchange_paper_of(&c, &four_by_two, &p));
    close_to(p.rates[WEFT_PAPER_BETWEEN], 25e9);
}

CASE(refusals)
{
    static const struct {
        weft_figure figure;
        const char *path;
    } rows[] = {{WEFT_FIGURE_BETWEEN_BANDWIDTH, "between.bandwidth"},
                {WEFT_FIGURE_INSIDE_BANDWIDTH, "inside.bandwidth"},
                {WEFT_FIGURE_MEMORY_BANDWIDTH, "device.memory_bandwidth"}};
    weft_exchange_paper p;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_cluster c = example();
        c.hardware.given &= ~(1u << rows[i].figure);
        FAILS(weft_exchange_paper_of(&c, &four_by_two, &p), WEFT_CONFIG, rows[i].path);
    }
    const weft_cluster c = example();
    FAILS(weft_exchange_paper_of(
              &c, &(weft_exchange_shape){.bytes = 0, .t = 1, .e = 1, .minimal_bytes = 1}, &p),
          WEFT_CONFIG, "no all-to-all of 0 bytes");
}
