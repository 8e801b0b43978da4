#include "launcher/planning/pairs_price.h"

#include <math.h>

#include "schedule/pair.h"

static double *add_part(weft_pair_part *parts, int *count, weft_part_kind kind, double us)
{
    parts[*count] = (weft_pair_part){kind, us};
    return &parts[(*count)++].us;
}

/* The parts of an MoE layer that takes `rest` beside its program: nearly all of a forward's comes
 * before, of a backward's behind. */
static void list_moe(const weft_moe_costs *costs, bool backward, double us, weft_pair_part *parts,
                     int *count)
{
    const double travels[] = {backward ? 0 : costs->counts_us, backward ? 0 : costs->permute_us,
                              costs->dispatch_us};
    double *before = add_part(parts, count, WEFT_PART_COMPUTES, 0), rest = us;
    for (size_t i = 0; i < sizeof travels / sizeof *travels; i++)
        rest -= *add_part(parts, count, WEFT_PART_TRAVELS, travels[i]);
    rest -= *add_part(parts, count, WEFT_PART_COMPUTES,
                      backward ? costs->expert_backward_us : costs->expert_us);
    rest -= *add_part(parts, count, WEFT_PART_TRAVELS, costs->combine_us);
    double *behind = add_part(parts, count, WEFT_PART_COMPUTES, 0);
    *(backward ? behind : before) = fmax(0, rest);
}

enum { MOE_PARTS = 7 };

/* The parts of a chunk's forward, or of its backward. */
static weft_status list_parts(const weft_site *site, const weft_outline *outline, int first,
                              int end, const weft_pass_price *layers, bool backward,
                              weft_arena *arena, weft_pair_part **out, int *out_count)
{
    void *memory;
    weft_moe_costs costs[2] = {0};
    int priced = -1;
    *out_count = 0;
    WEFT_TRY(
        weft_arena_alloc_array(arena, MOE_PARTS * (size_t)(end - first), sizeof **out, &memory));
    *out = memory;
    for (int i = first; i < end; i++) {
        const int l = backward ? end - 1 - (i - first) : i;
        const double us = weft_pass_us(backward ? &layers[l].backward : &layers[l].forward);
        if (!outline->layers[l].host_waits) {
            (void)add_part(*out, out_count, WEFT_PART_COMPUTES, us);
            continue;
        }
        if (priced < 0 || !weft_pass_same_layer(outline, priced, l))
            WEFT_TRY(weft_pass_price_partition(site, outline, l, costs));
        priced = l;
        list_moe(&costs[backward], backward, us, *out, out_count);
    }
    return WEFT_OK;
}

/* A forward and a backward as one: what each waits for its exchanges alone is less by what the
 * other computes beside them. */
static weft_pass_time pair_of(const weft_pass_price *forward, const weft_pass_price *backward,
                              double us)
{
    weft_pass_time sum = forward->forward;
    weft_pass_time_add(&sum, &backward->backward);
    sum.expert_us -= weft_pass_us(&sum) - us;
    if (sum.expert_us < 0) {
        sum.compute_us += sum.expert_us;
        sum.expert_us = 0;
    }
    return sum;
}

weft_status weft_pairs_price(const weft_site *site, const weft_outline *outline, int stage,
                             const weft_pass_price *layers, const weft_pass_price *chunks,
                             weft_arena *arena, weft_pass_time **out)
{
    const int v = outline->layout.num_chunks;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)v * (size_t)v, sizeof **out, &memory));
    *out = memory;
    for (int f = 0; f < v; f++)
        for (int b = 0; b < v; b++) {
            const int of[WEFT_PAIR_STRANDS] = {f, b};
            weft_pair_part *parts[WEFT_PAIR_STRANDS];
            int counts[WEFT_PAIR_STRANDS], first, end;
            for (int s = 0; s < WEFT_PAIR_STRANDS; s++) {
                weft_layout_range(&outline->layout, stage, of[s], &first, &end);
                WEFT_TRY(list_parts(site, outline, first, end, layers, s == WEFT_PAIR_BACKWARD,
                                    arena, &parts[s], &counts[s]));
            }
            double us;
            WEFT_TRY(weft_pair_price((const weft_pair_part *const *)parts, counts,
                                     &site->cluster->interference, &us));
            (*out)[f * v + b] = pair_of(&chunks[f], &chunks[b], us);
        }
    return WEFT_OK;
}
