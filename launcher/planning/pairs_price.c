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

/* A chunk's forward, or its backward, while its parts are listed. */
typedef struct listing {
    const weft_site *site;
    const weft_outline *outline;
    const weft_pass_price *layers;
    weft_pair_part *parts;
    int count;
    int priced; /* the layer of `costs`; -1: none */
    weft_moe_costs costs[2];
} listing;

static weft_status list_layer(listing *l, int layer, bool backward, const weft_pass_time *time)
{
    const double us = weft_pass_us(time);
    if (!l->outline->layers[layer].host_waits) {
        (void)add_part(l->parts, &l->count, WEFT_PART_COMPUTES, us);
        return WEFT_OK;
    }
    if (l->priced < 0 || !weft_pass_same_layer(l->outline, l->priced, layer))
        WEFT_TRY(weft_pass_price_partition(l->site, l->outline, layer, l->costs));
    l->priced = layer;
    list_moe(&l->costs[backward], backward, us, l->parts, &l->count);
    return WEFT_OK;
}

/* The forwards that a group of layers, which ends with this one, runs again. */
static weft_status list_again(listing *l, int first, int last)
{
    const int group = l->outline->layers[last].recompute_group;
    int from = last;
    while (from > first && l->outline->layers[from - 1].recompute_group == group)
        from--;
    for (int i = from; i <= last; i++)
        WEFT_TRY(list_layer(l, i, false, &l->layers[i].recompute));
    return WEFT_OK;
}

static weft_status list_parts(listing *l, int first, int end, bool backward, weft_arena *arena)
{
    const weft_outline_layer *layers = l->outline->layers;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, 2 * MOE_PARTS * (size_t)(end - first), sizeof *l->parts,
                                    &memory));
    l->parts = memory;
    for (int i = first; i < end; i++) {
        const int layer = backward ? end - 1 - (i - first) : i;
        const int group = layers[layer].recompute_group;
        const bool ends_group =
            group > 0 && (layer == end - 1 || layers[layer + 1].recompute_group != group);
        if (backward && ends_group)
            WEFT_TRY(list_again(l, first, layer));
        WEFT_TRY(list_layer(l, layer, backward,
                            backward ? &l->layers[layer].backward : &l->layers[layer].forward));
    }
    return WEFT_OK;
}

static double sum_of(const listing *l)
{
    double us = 0;
    for (int i = 0; i < l->count; i++)
        us += l->parts[i].us;
    return us;
}

/* A forward and a backward as one: what each waits for its exchanges alone is less by what the
 * other computes beside them. */
static weft_pass_time pair_of(const weft_pass_price *forward, const weft_pass_price *backward,
                              double less_us)
{
    weft_pass_time sum = forward->forward;
    weft_pass_time_add(&sum, &backward->backward);
    sum.expert_us -= less_us;
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
            listing strands[WEFT_PAIR_STRANDS];
            int first, end;
            for (int s = 0; s < WEFT_PAIR_STRANDS; s++) {
                strands[s] =
                    (listing){.site = site, .outline = outline, .layers = layers, .priced = -1};
                weft_layout_range(&outline->layout, stage, of[s], &first, &end);
                WEFT_TRY(list_parts(&strands[s], first, end, s == WEFT_PAIR_BACKWARD, arena));
            }
            const listing *forward = &strands[WEFT_PAIR_FORWARD];
            weft_layout_range(&outline->layout, stage, f, &first, &end);
            const bool waits = end == outline->num_layers && weft_outline_loss_waits(outline);
            const double us =
                weft_pair_us((const weft_pair_part *const[]){strands[0].parts, strands[1].parts},
                             (const int[]){forward->count - waits, strands[1].count}) +
                (waits ? forward->parts[forward->count - 1].us : 0);
            const double less_us = sum_of(&strands[0]) + sum_of(&strands[1]) - us;
            (*out)[f * v + b] = pair_of(&chunks[f], &chunks[b], less_us);
        }
    return WEFT_OK;
}
