#include <math.h>
#include <string.h>

#include "launcher/searching/kinds.h"

/* Of a pass that meets kinds of layers in this order. */
typedef struct run {
    struct run *next;
    const int *kinds;
    int step, num; /* from kind to kind in their list; how many are known */
    double *us[WEFT_TIER_LEASTS];
} run;

/* A layer with experts: what its passes take in all, and up to them. */
typedef struct away_kind {
    int num_experts;
    uint64_t expert_elements;
    double forward_us, backward_us, recompute_us;
    weft_pass_experts experts[WEFT_NUM_HALVES];
} away_kind;

struct weft_away {
    weft_dtype dtype;
    double moe_load;
    run *runs;
    int num_kinds;
    away_kind kinds[];
};

/* Where layers of one kind are recomputed in part, none of it is counted, and its time is taken
 * from what is found. */
static bool recomputes_some(const weft_config *config)
{
    const weft_recompute_options *r = &config->train.recompute;
    return r->granularity == WEFT_RECOMPUTE_FULL && r->method == WEFT_RECOMPUTE_BLOCK;
}

weft_status weft_away_make(const weft_config *config, const weft_outline *outline,
                           const weft_pass_price *prices, weft_arena *arena, weft_away **out)
{
    weft_away *a = NULL;
    *out = NULL;
    if (!outline->shape.experts_on_host || outline->num_layers > WEFT_MAX_KINDS ||
        weft_shape_pipeline(&outline->shape).num_partitions > 1)
        return WEFT_OK;
    const size_t num = (size_t)outline->num_layers;
    WEFT_TRY(weft_arena_alloc(arena, sizeof *a + num * sizeof *a->kinds, &a));
    a->dtype = outline->shape.dtype;
    a->moe_load = outline->shape.moe_load;
    a->num_kinds = outline->num_layers;
    for (int k = 0; k < a->num_kinds; k++) {
        away_kind *kind = &a->kinds[k];
        *kind = (away_kind){.num_experts = outline->layers[k].num_experts,
                            .expert_elements = outline->layers[k].expert_elements,
                            .forward_us = weft_pass_us(&prices[k].forward),
                            .backward_us = weft_pass_us(&prices[k].backward)};
        memcpy(kind->experts, prices[k].experts, sizeof kind->experts);
        if (recomputes_some(config))
            kind->experts[WEFT_HALF_AGAIN] = (weft_pass_experts){0};
        else
            kind->recompute_us = weft_pass_us(&prices[k].recompute);
    }
    *out = a;
    return WEFT_OK;
}

/* As far as it is asked what passes wait. */
static void restore(const away_kind *kind, weft_outline_layer *layer, weft_pass_price *price)
{
    *layer = (weft_outline_layer){.num_experts = kind->num_experts,
                                  .expert_elements = kind->expert_elements};
    *price = (weft_pass_price){.forward.compute_us = kind->forward_us,
                               .backward.compute_us = kind->backward_us,
                               .recompute.compute_us = kind->recompute_us};
    memcpy(price->experts, kind->experts, sizeof price->experts);
}

static weft_status make_run(weft_away *a, const weft_site *site, const weft_config *config,
                            const int *kinds, int step, int num, weft_arena *arena, run **out)
{
    weft_outline_layer layers[WEFT_MAX_KINDS];
    weft_pass_price prices[WEFT_MAX_KINDS];
    weft_arena scratch = {0};
    int *met;
    weft_outline outline = {
        .num_layers = a->num_kinds,
        .layers = layers,
        .shape = {.dtype = a->dtype, .moe_load = a->moe_load, .experts_on_host = true},
        .tier = config->tier,
        .accumulates = true};
    outline.tier.kept = config->tier.kept < 0 ? 1 : config->tier.kept; /* any may stay */
    for (int k = 0; k < a->num_kinds; k++)
        restore(&a->kinds[k], &layers[k], &prices[k]);
    WEFT_TRY(WEFT_ARRAY(arena, 1, out));
    **out = (run){.kinds = kinds, .step = step, .num = num};
    for (int what = 0; what < WEFT_TIER_LEASTS; what++)
        WEFT_TRY(WEFT_ARRAY(arena, (size_t)num, &(*out)->us[what]));
    WEFT_TRY(WEFT_ARRAY(&scratch, (size_t)num, &met));
    for (int i = 0; i < num; i++)
        met[i] = kinds[i * step];
    const weft_status status =
        weft_tier_least_waits(site, config, &outline, prices, met, num, (*out)->us);
    weft_arena_release(&scratch);
    return status;
}

static bool is_same(const run *r, const int *kinds, int step, int num)
{
    if (r->num < num)
        return false;
    for (int i = 0; i < num; i++)
        if (r->kinds[i * r->step] != kinds[i * step])
            return false;
    return true;
}

static weft_status find_run(weft_away *a, const weft_site *site, const weft_config *config,
                            const int *kinds, int step, int num, weft_arena *arena, const run **out)
{
    run *r = a->runs;
    while (r && !is_same(r, kinds, step, num))
        r = r->next;
    if (!r) {
        WEFT_TRY(make_run(a, site, config, kinds, step, num, arena, &r));
        r->next = a->runs;
        a->runs = r;
    }
    *out = r;
    return WEFT_OK;
}

weft_status weft_away_waits(weft_away *a, const weft_site *site, const weft_config *config,
                            const int *list, int first, int end, double recompute_us,
                            weft_arena *arena, double out_us[WEFT_TIER_LEASTS])
{
    const int num = end - first;
    const run *found;
    memset(out_us, 0, WEFT_TIER_LEASTS * sizeof *out_us);
    if (num <= 0)
        return WEFT_OK;
    WEFT_TRY(find_run(a, site, config, list + first, 1, num, arena, &found));
    out_us[WEFT_TIER_FORWARD] = found->us[WEFT_TIER_FORWARD][num - 1];
    WEFT_TRY(find_run(a, site, config, list + end - 1, -1, num, arena, &found));
    for (int pass = WEFT_TIER_FIRST_BACKWARD; pass < WEFT_TIER_PASSES; pass++)
        out_us[pass] =
            fmax(0, found->us[pass][num - 1] - (recomputes_some(config) ? recompute_us : 0));
    for (int what = WEFT_TIER_ADDS; what < WEFT_TIER_LEASTS; what++)
        out_us[what] = found->us[what][num - 1];
    return WEFT_OK;
}
