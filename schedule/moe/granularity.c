#include "schedule/moe/choose.h"

#include <assert.h>
#include <math.h>

enum { MAX_ELSEWHERE = 64 }; /* questions about another B that end a search */

void weft_granularity_init(weft_granularity *g, const int *candidates, int num_candidates)
{
    assert(num_candidates >= 1 && num_candidates <= WEFT_GRANULARITY_MAX_RANGES);
    *g = (weft_granularity){.num_candidates = num_candidates};
    for (int i = 0; i < num_candidates; i++) {
        assert(candidates[i] > (i == 0 ? 0 : candidates[i - 1]));
        g->candidates[i] = candidates[i];
    }
    /* {1: (0, 1), 8: (inf, inf)} for any first and last candidate */
    const int last = candidates[num_candidates - 1];
    g->ranges[g->num_ranges++] = (weft_granularity_range){
        .n = candidates[0], .floor = 0, .ceil = num_candidates == 1 ? INFINITY : 1};
    if (num_candidates > 1)
        g->ranges[g->num_ranges++] =
            (weft_granularity_range){.n = last, .floor = INFINITY, .ceil = INFINITY};
}

static int index_of(const weft_granularity *g, int n)
{
    int i = 0;
    while (g->candidates[i] != n)
        i++;
    return i;
}

/* The first range that contains B or lies above it. One always does. */
static int range_from(const weft_granularity *g, double tokens)
{
    int i = 0;
    while (i < g->num_ranges - 1 && tokens > g->ranges[i].ceil)
        i++;
    return i;
}

static void start_search(weft_granularity *g, double tokens, int first_n, int last_n)
{
    g->searching_tokens = tokens;
    g->num_elsewhere = 0;
    g->at = index_of(g, first_n);
    g->last = index_of(g, last_n);
    g->best_n = g->candidates[g->at];
    g->best_us = INFINITY;
    g->num_trials = 0;
}

void weft_granularity_next(weft_granularity *g, double tokens, int *out_n, bool *out_trial)
{
    *out_trial = false;
    for (int i = 0; i < g->num_cached; i++)
        if (g->cache[i].tokens == tokens) {
            *out_n = g->cache[i].n;
            return;
        }
    const int above = range_from(g, tokens);
    if (above == 0 || tokens >= g->ranges[above].floor) {
        *out_n = g->ranges[above].n;
        return;
    }
    if (g->searching_tokens > 0 && g->searching_tokens != tokens &&
        ++g->num_elsewhere <= MAX_ELSEWHERE) {
        *out_n = g->ranges[above - 1].n;
        return;
    }
    if (g->searching_tokens != tokens)
        start_search(g, tokens, g->ranges[above - 1].n, g->ranges[above].n);
    g->num_elsewhere = 0;
    *out_n = g->candidates[g->at];
    *out_trial = true;
}

/* Lines 19 to 22. The best n lies between the neighbours', so ranges stay disjoint and rising. */
static void widen(weft_granularity *g, double tokens, int n)
{
    const int i = range_from(g, tokens);
    if (i == 0 || tokens >= g->ranges[i].floor)
        return; /* in a range already */
    if (g->ranges[i - 1].n == n) {
        g->ranges[i - 1].ceil = tokens;
    } else if (g->ranges[i].n == n) {
        g->ranges[i].floor = tokens;
    } else {
        assert(g->num_ranges < g->num_candidates);
        for (int j = g->num_ranges++; j > i; j--)
            g->ranges[j] = g->ranges[j - 1];
        g->ranges[i] = (weft_granularity_range){.n = n, .floor = tokens, .ceil = tokens};
    }
}

static void remember(weft_granularity *g, double tokens, int n, double us)
{
    g->cache[g->next_cached].tokens = tokens;
    g->cache[g->next_cached].us = us;
    g->cache[g->next_cached].n = n;
    g->next_cached = (g->next_cached + 1) % WEFT_GRANULARITY_MAX_CACHE;
    if (g->num_cached < WEFT_GRANULARITY_MAX_CACHE)
        g->num_cached++;
}

void weft_granularity_report(weft_granularity *g, double tokens, int n, double us)
{
    if (g->searching_tokens == 0 || g->searching_tokens != tokens || n != g->candidates[g->at])
        return;
    g->num_trials++;
    if (us < g->best_us) {
        g->best_us = us;
        g->best_n = n;
    }
    /* Beyond the turning point times only rise; an equal time is not a turn yet. */
    const bool turned = !(us <= g->best_us);
    if (!turned && g->at < g->last) {
        g->at++;
        return;
    }
    g->searching_tokens = 0;
    widen(g, tokens, g->best_n);
    remember(g, tokens, g->best_n, g->best_us);
}

double weft_granularity_us(const weft_granularity *g, double tokens)
{
    double best_us = INFINITY, nearest = INFINITY;
    for (int i = 0; i < g->num_cached; i++) {
        const double away = fabs(log(g->cache[i].tokens / tokens));
        if (away < nearest) {
            nearest = away;
            best_us = g->cache[i].us * tokens / g->cache[i].tokens;
        }
    }
    return best_us;
}

void weft_granularity_next_of(weft_granularity g[WEFT_NUM_REUSES], unsigned allowed_reuses,
                              double tokens, weft_moe_pipeline *out, bool *out_trial)
{
    if (allowed_reuses == 0)
        allowed_reuses = (1u << WEFT_NUM_REUSES) - 1;
    const bool several = allowed_reuses & (allowed_reuses - 1);
    double best_us = INFINITY;
    bool chosen = false;
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
        if (!(allowed_reuses >> reuse & 1))
            continue;
        weft_moe_pipeline pipeline = {.reuse = (weft_reuse)reuse};
        weft_granularity_next(&g[reuse], tokens, &pipeline.num_partitions, out_trial);
        const double searching = g[reuse].searching_tokens;
        if (!*out_trial && several && g[reuse].num_cached == 0 && tokens > 0 &&
            (searching == 0 || searching == tokens)) {
            /* n is known without a search, but not its time, which strategies are compared by. */
            if (searching == 0)
                start_search(&g[reuse], tokens, pipeline.num_partitions, pipeline.num_partitions);
            *out_trial = true;
        }
        if (*out_trial) {
            *out = pipeline;
            return;
        }
        const double us = weft_granularity_us(&g[reuse], tokens);
        if (!chosen || us < best_us) {
            chosen = true;
            best_us = us;
            *out = pipeline;
        }
    }
}
