#include "schedule/exchange/exchange.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "core/cluster/cluster.h"

/* What a form does after its all-to-all. */
static const struct form {
    bool sharded;     /* sends I / t and gathers the rest inside the node */
    bool gathers_all; /* also gathers the rank's own bytes */
    bool copies;      /* puts what it gathered into its final place */
    bool chunked;
    bool copy_beside_gather; /* a chunk's copy runs beside the next chunk's all-gather */
} forms[WEFT_NUM_EXCHANGES] = {
    [WEFT_EXCHANGE_BASELINE] = {0},
    [WEFT_EXCHANGE_O1_PAPER] = {.sharded = true, .gathers_all = true, .copies = true},
    [WEFT_EXCHANGE_O1] = {.sharded = true, .copies = true},
    [WEFT_EXCHANGE_O2] = {.sharded = true, .copies = true, .chunked = true},
    [WEFT_EXCHANGE_O3] = {.sharded = true,
                          .copies = true,
                          .chunked = true,
                          .copy_beside_gather = true},
    [WEFT_EXCHANGE_DIRECT] = {.sharded = true, .chunked = true, .copy_beside_gather = true},
};

static double remote_share(const weft_exchange_shape *shape)
{
    return (shape->e - 1.0) / shape->e;
}

/* Bytes that a rank holds after a chunk's all-gather; the copy moves as many. */
static double gathered_bytes(const weft_exchange_shape *shape, weft_exchange_form form,
                             int num_chunks)
{
    const double chunk = shape->bytes / num_chunks;
    return forms[form].gathers_all ? chunk : chunk * remote_share(shape);
}

weft_exchange_costs weft_exchange_costs_of(const weft_cluster *cluster,
                                           const weft_exchange_shape *shape,
                                           weft_exchange_form form, int num_chunks)
{
    assert(num_chunks >= 1 && shape->t >= 1 && shape->e >= 1);
    const double chunk = shape->bytes / num_chunks;
    const double gathered = gathered_bytes(shape, form, num_chunks);
    weft_exchange_costs costs = {0};
    costs.all_to_all_us = weft_cluster_exchange_us(
        cluster, forms[form].sharded ? chunk / shape->t : chunk, shape->e, shape->e_near);
    if (forms[form].sharded && shape->t > 1)
        costs.all_gather_us = weft_cluster_us(cluster, WEFT_COST_ALL_GATHER, gathered);
    if (forms[form].copies)
        costs.copy_us = weft_cluster_us(cluster, WEFT_COST_COPY, gathered);
    return costs;
}

static double max(double a, double b)
{
    return a > b ? a : b;
}

/* One chunk passes through all stages, and the N - 1 others follow at the pace of the slowest
 * stage: lines 13-17 of Algorithm 1 (two stages) and Algorithm 2 (three; the paper omits that the
 * copy may be slowest). N = 1 is eq. 11 and the copies. */
double weft_exchange_us(const weft_cluster *cluster, const weft_exchange_shape *shape,
                        weft_exchange_form form, int num_chunks)
{
    const weft_exchange_costs costs = weft_exchange_costs_of(cluster, shape, form, num_chunks);
    const double inside = forms[form].copy_beside_gather ? max(costs.all_gather_us, costs.copy_us)
                                                         : costs.all_gather_us + costs.copy_us;
    return costs.all_to_all_us + costs.all_gather_us + costs.copy_us +
           (num_chunks - 1) * max(costs.all_to_all_us, inside);
}

static weft_status need(const weft_cluster *cluster, weft_exchange_form form, weft_cost_kind kind)
{
    if (weft_cluster_knows(cluster, kind))
        return WEFT_OK;
    return weft_lack_mark(WEFT_ERROR(
        WEFT_CONFIG, "cluster \"%s\": costs.%s is not known, and the all-to-all form %s needs it",
        cluster->name, weft_cost_text(kind), weft_exchange_text(form)));
}

static weft_status need_all(const weft_cluster *cluster, const weft_exchange_shape *shape,
                            weft_exchange_form form)
{
    const weft_cost_kind lacking = weft_cluster_lacks_exchange(cluster, shape->e, shape->e_near);
    if (lacking != WEFT_NUM_COSTS)
        WEFT_TRY(need(cluster, form, lacking));
    const bool moves = gathered_bytes(shape, form, 1) > 0;
    if (forms[form].sharded && shape->t > 1 && moves)
        WEFT_TRY(need(cluster, form, WEFT_COST_ALL_GATHER));
    if (forms[form].copies && moves)
        WEFT_TRY(need(cluster, form, WEFT_COST_COPY));
    return WEFT_OK;
}

/* Algorithms 1 and 2. One chunk is always a candidate: there is nothing smaller to avoid. */
static int best_chunks(const weft_cluster *cluster, const weft_exchange_shape *shape,
                       weft_exchange_form form, double *out_us)
{
    const bool given = forms[form].chunked && shape->num_chunks > 0;
    const int limit = forms[form].chunked && !given ? WEFT_EXCHANGE_MAX_CHUNKS : 1;
    int best = given ? shape->num_chunks : 1;
    *out_us = weft_exchange_us(cluster, shape, form, best);
    for (int n = 2; n <= limit; n++) {
        if (shape->bytes / ((double)n * shape->t) < shape->minimal_bytes)
            break;
        const double us = weft_exchange_us(cluster, shape, form, n);
        if (us < *out_us) {
            *out_us = us;
            best = n;
        }
    }
    return best;
}

typedef struct choosing {
    const weft_cluster *cluster;
    const weft_exchange_shape *shape;
    weft_exchange_form forms[WEFT_NUM_EXCHANGES];
    weft_exchange_choice *choice;
} choosing;

static weft_status price_form(void *context, int index, weft_choice_row *row)
{
    const choosing *c = context;
    const weft_exchange_form form = c->forms[index];
    WEFT_TRY(need_all(c->cluster, c->shape, form));
    const int chunks = best_chunks(c->cluster, c->shape, form, &row->us);
    if (forms[form].chunked)
        snprintf(row->name, sizeof row->name, "%s x%d", weft_exchange_text(form), chunks);
    c->choice->best_chunks[form] = chunks;
    c->choice->best_us[form] = row->us;
    return WEFT_OK;
}

weft_status weft_choose_exchange(const weft_cluster *cluster, const weft_exchange_shape *shape,
                                 unsigned allowed, weft_exchange_choice *out)
{
    if (allowed == 0)
        allowed = (1u << WEFT_NUM_EXCHANGES) - 1;
    if (!(shape->bytes >= 0) || !(shape->minimal_bytes > 0) || shape->t < 1 || shape->e < 1 ||
        shape->num_chunks < 0 || shape->num_chunks > WEFT_EXCHANGE_MAX_CHUNKS ||
        allowed >> WEFT_NUM_EXCHANGES)
        return WEFT_ERROR(WEFT_CONFIG,
                          "no all-to-all of %g bytes over %d ranks inside and %d between nodes, "
                          "slices of at least %g bytes, %d chunks, forms %#x",
                          shape->bytes, shape->t, shape->e, shape->minimal_bytes, shape->num_chunks,
                          allowed);

    weft_exchange_choice choice = {.us = 0};
    choosing c = {.cluster = cluster, .shape = shape, .choice = &choice};
    weft_choice_row rows[WEFT_NUM_EXCHANGES];
    int num_rows = 0, best;
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++) {
        if (!(allowed >> form & 1))
            continue;
        rows[num_rows] = (weft_choice_row){.us = NAN};
        snprintf(rows[num_rows].name, sizeof rows->name, "%s", weft_exchange_text(form));
        c.forms[num_rows++] = (weft_exchange_form)form;
    }
    WEFT_TRY(weft_choose(rows, num_rows, price_form, &c, "", &best, choice.reason));
    choice.form = c.forms[best];
    choice.num_chunks = choice.best_chunks[choice.form];
    choice.us = rows[best].us;
    *out = choice;
    return WEFT_OK;
}
