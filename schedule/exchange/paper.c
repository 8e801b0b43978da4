#include "schedule/exchange/paper.h"

#include <math.h>

#include "core/cluster/cluster.h"

static const struct rate_row {
    weft_cost_kind measured;
    weft_figure figure;
    weft_efficiency_kind efficiency;
    int equation;
} rate_rows[WEFT_NUM_PAPER_RATES] = {
    [WEFT_PAPER_BETWEEN] = {WEFT_COST_ALL_TO_ALL, WEFT_FIGURE_BETWEEN_BANDWIDTH,
                            WEFT_EFFICIENCY_BETWEEN, 8},
    [WEFT_PAPER_INSIDE] = {WEFT_COST_ALL_GATHER, WEFT_FIGURE_INSIDE_BANDWIDTH,
                           WEFT_EFFICIENCY_INSIDE, 9},
    [WEFT_PAPER_MEMORY] = {WEFT_COST_COPY, WEFT_FIGURE_MEMORY_BANDWIDTH, WEFT_EFFICIENCY_MEMORY,
                           10},
};

static bool is_measured(const weft_cluster *cluster, int rate)
{
    const weft_cost_kind kind = rate_rows[rate].measured;
    return weft_cluster_knows(cluster, kind) && cluster->costs[kind].peak > 0;
}

static double cards_share(const weft_cluster *cluster)
{
    const double cards = cluster->hardware.figures[WEFT_FIGURE_CARDS];
    return cards > 0 ? fmin(cards / cluster->ranks_per_node, 1) : 1;
}

static weft_status find_rate(const weft_cluster *cluster, int rate, double *out)
{
    const struct rate_row *row = &rate_rows[rate];
    if (is_measured(cluster, rate)) {
        *out = cluster->costs[row->measured].peak;
        return WEFT_OK;
    }
    if (!weft_hardware_knows(&cluster->hardware, row->figure))
        return weft_lack_mark(
            WEFT_ERROR(WEFT_CONFIG,
                       "cluster \"%s\": neither %s nor costs.%s is known, and equation %d needs "
                       "one",
                       cluster->name, weft_figure_path(row->figure), weft_cost_text(row->measured),
                       row->equation));
    *out = cluster->hardware.figures[row->figure] *
           (rate == WEFT_PAPER_BETWEEN ? cards_share(cluster) : 1);
    return WEFT_OK;
}

/* What is smaller than a curve's first point takes that point's time. */
static double share_at(const weft_cluster *cluster, int rate, double bytes)
{
    const struct rate_row *row = &rate_rows[rate];
    if (is_measured(cluster, rate))
        return weft_cluster_efficiency(cluster, row->measured, bytes);
    const weft_share_curve *curve = &cluster->hardware.efficiencies[row->efficiency];
    if (curve->num_points == 0)
        return 1;
    return weft_share_at(curve, bytes) * fmin(bytes / curve->volume[0], 1);
}

typedef struct chunk {
    double all_to_all_us, all_gather_us, copy_us;
} chunk;

/* Microseconds of `bytes` at the rate and share of `looked_up` bytes. */
static double us_of(const weft_cluster *cluster, const weft_exchange_paper *p, int rate,
                    double bytes, double looked_up)
{
    return bytes > 0 ? 1e6 * bytes / (p->rates[rate] * share_at(cluster, rate, looked_up)) : 0;
}

static double remote_share(int ranks)
{
    return (ranks - 1.0) / ranks;
}

/* Lines 9-12 of both algorithms. */
static chunk chunk_of(const weft_cluster *cluster, const weft_exchange_shape *s,
                      const weft_exchange_paper *p, double num_chunks)
{
    const double all = s->bytes / num_chunks, sent = all / s->t;
    return (chunk){
        .all_to_all_us = us_of(cluster, p, WEFT_PAPER_BETWEEN, sent * remote_share(s->e), sent),
        .all_gather_us = us_of(cluster, p, WEFT_PAPER_INSIDE, all * remote_share(s->t), all),
        .copy_us = us_of(cluster, p, WEFT_PAPER_MEMORY, all, all),
    };
}

/* Lines 13-17 of Algorithm 1; below, those of Algorithm 2. */
static double o2_us(const chunk *c, double n)
{
    const double inside = c->all_gather_us + c->copy_us;
    return c->all_to_all_us < inside ? c->all_to_all_us + inside * n
                                     : c->all_to_all_us * n + inside;
}

static double o3_us(const chunk *c, double n)
{
    return c->all_to_all_us < c->all_gather_us
               ? c->all_to_all_us + c->all_gather_us * n + c->copy_us
               : c->all_to_all_us * n + c->all_gather_us + c->copy_us;
}

static void keep(double us, int64_t n, double *least_us, int64_t *num_chunks)
{
    if (us < *least_us) {
        *least_us = us;
        *num_chunks = n;
    }
}

weft_status weft_exchange_paper_of(const weft_cluster *cluster, const weft_exchange_shape *shape,
                                   weft_exchange_paper *out)
{
    weft_exchange_paper p = {.o2_us = INFINITY, .o3_us = INFINITY};
    if (!(shape->bytes > 0) || !(shape->minimal_bytes >= 1) || shape->t < 1 || shape->e < 1)
        return WEFT_ERROR(WEFT_CONFIG,
                          "no all-to-all of %g bytes over %d ranks inside and %d between nodes, "
                          "slices of at least %g bytes",
                          shape->bytes, shape->t, shape->e, shape->minimal_bytes);
    if (shape->e > 1)
        WEFT_TRY(find_rate(cluster, WEFT_PAPER_BETWEEN, &p.rates[WEFT_PAPER_BETWEEN]));
    if (shape->t > 1)
        WEFT_TRY(find_rate(cluster, WEFT_PAPER_INSIDE, &p.rates[WEFT_PAPER_INSIDE]));
    WEFT_TRY(find_rate(cluster, WEFT_PAPER_MEMORY, &p.rates[WEFT_PAPER_MEMORY]));
    p.shares[WEFT_PAPER_BETWEEN] = share_at(cluster, WEFT_PAPER_BETWEEN, shape->bytes / shape->t);
    p.shares[WEFT_PAPER_INSIDE] = share_at(cluster, WEFT_PAPER_INSIDE, shape->bytes);
    p.shares[WEFT_PAPER_MEMORY] = share_at(cluster, WEFT_PAPER_MEMORY, shape->bytes);

    p.baseline_us =
        us_of(cluster, &p, WEFT_PAPER_BETWEEN, shape->bytes * remote_share(shape->e), shape->bytes);
    const chunk whole = chunk_of(cluster, shape, &p, 1);
    p.o1_us = whole.all_to_all_us + whole.all_gather_us;
    for (int64_t n = 1; shape->bytes / ((double)n * shape->t) >= shape->minimal_bytes &&
                        shape->bytes / (double)n >= shape->minimal_bytes;
         n++) {
        const chunk c = chunk_of(cluster, shape, &p, (double)n);
        keep(o2_us(&c, (double)n), n, &p.o2_us, &p.o2_chunks);
        keep(o3_us(&c, (double)n), n, &p.o3_us, &p.o3_chunks);
    }
    const weft_choice_row rows[] = {{.us = p.o1_us}, {.us = p.o2_us}, {.us = p.o3_us}};
    p.choice = (weft_exchange_form)(WEFT_EXCHANGE_O1 + weft_choose_priced(rows, 3));
    *out = p;
    return WEFT_OK;
}
