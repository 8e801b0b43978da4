/* Chooses the kept experts of a layer, the positions of experts, and the order of updates. */
#include "layers/tier/share.h"

#include <string.h>

static bool is_kept(const weft_tier_layer *l, int e)
{
    for (int i = 0; i < l->num_kept; i++)
        if (l->kept[i].bucket == l->first_bucket + e)
            return true;
    return false;
}

void weft_tier_positions(const weft_tier_run *t, int layer, const int64_t *offsets, int32_t *out)
{
    const weft_tier_layer *l = weft_tier_layer_of(t, layer);
    int count = l->num_kept;
    for (int e = 0; e < l->num_seats; e++)
        l->now[e] = offsets[e + 1] - offsets[e];
    for (int i = 0; i < l->num_kept; i++)
        out[i] = l->kept[i].bucket - l->first_bucket;
    for (int e = 0; e < l->num_seats; e++)
        if (e >= l->num_experts || !is_kept(l, e))
            out[count++] = e;
    weft_tier_sort_by_rows(out + l->num_kept, l->num_seats - l->num_kept, l->now);
}

void weft_tier_stand(int num, const int64_t *kept, const int64_t *rows, int32_t *out)
{
    int num_kept = 0, count;
    for (int e = 0; e < num; e++)
        num_kept += kept[e] > 0;
    count = num_kept;
    for (int e = 0; e < num; e++)
        out[kept[e] > 0 ? kept[e] - 1 : count++] = e;
    weft_tier_sort_by_rows(out + num_kept, num - num_kept, rows);
}

void weft_tier_kept_places(const weft_tier_run *t, int layer, int64_t *out)
{
    const weft_tier_layer *l = weft_tier_layer_of(t, layer);
    memset(out, 0, (size_t)l->num_experts * sizeof *out);
    for (int i = 0; i < l->num_kept; i++)
        out[l->kept[i].bucket - l->first_bucket] = i + 1;
}

/* Orders updates like the next forward's positions, if its rows are like this step's; or by landing
 * of gradients, after experts without rows in the last backward. */
static void order_updates(const weft_tier_run *t, weft_tier_layer *l)
{
    int32_t *wanted = l->turns[WEFT_TIER_TURN_WANTED].order;
    int32_t *landed = l->turns[WEFT_TIER_TURN_LANDED].order;
    int count = l->num_kept;
    for (int k = 0; k < l->num_kept; k++)
        wanted[k] = l->kept[k].bucket - l->first_bucket;
    for (int i = 0; i < l->num_experts; i++)
        if (!is_kept(l, l->order[i]))
            wanted[count++] = l->order[i];
    for (int e = 0; e < l->num_experts; e++) {
        landed[e] = e;
        l->now[e] = -(int64_t)t->experts[l->first_bucket + e].landed_at;
    }
    weft_tier_sort_by_rows(landed, l->num_experts, l->now);
}

/* Keeps the experts with most rows in the last step on the device; those that drop out free their
 * places for new ones. */
static void choose_kept(weft_tier_layer *l)
{
    for (int e = 0; e < l->num_experts; e++)
        l->order[e] = e;
    weft_tier_sort_by_rows(l->order, l->num_experts, l->rows);
    for (int e = 0; e < l->num_experts; e++)
        l->keeps[l->order[e]] = e < l->num_kept;
    for (int i = 0; i < l->num_kept; i++) {
        const int bucket = l->kept[i].bucket;
        if (bucket >= 0 && l->keeps[bucket - l->first_bucket])
            l->keeps[bucket - l->first_bucket] = false; /* it has a place already */
        else
            l->kept[i].bucket = -1;
    }
    for (int i = 0, e = 0; i < l->num_kept; i++) {
        if (l->kept[i].bucket >= 0)
            continue;
        while (!l->keeps[e])
            e++;
        l->kept[i].bucket = l->first_bucket + e++;
        l->kept[i].version = 0; /* its weights are not there yet */
    }
}

void weft_tier_choose_experts(weft_tier_run *t, weft_tier_layer *l)
{
    if (l->chosen)
        return;
    choose_kept(l);
    order_updates(t, l);
    weft_tier_share_choose(t, l);
    memset(l->rows, 0, (size_t)l->num_experts * sizeof *l->rows);
    l->chosen = true;
    for (int kind = 0; kind < WEFT_NUM_TIER_TURNS; kind++) {
        l->turns[kind].count = 0;
        for (int e = 0; e < l->num_experts; e++)
            l->turns[kind].of[e] = -1;
    }
}

int weft_tier_turn(weft_tier_run *t, int bucket, weft_tier_turn_kind kind)
{
    weft_tier_layer *l = weft_tier_layer_with(t, bucket);
    if (t->options.experts == WEFT_TIER_FILE) /* records leave host memory in the list's order */
        return bucket;
    weft_tier_choose_experts(t, l);
    weft_tier_turns *turns = &l->turns[kind];
    int32_t *turn = &turns->of[bucket - l->first_bucket];
    if (*turn < 0)
        *turn = turns->order[turns->count++];
    return l->first_bucket + *turn;
}
