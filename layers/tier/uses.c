#include "layers/tier/uses.h"

enum { ORDER_BITS = 24, VISITS_A_LAYER = 1024, UPDATE_VISITS = 2, BEHIND_VISIT = 1 << 23 };

static weft_status make(weft_tier_visits *v, int capacity, weft_arena *arena)
{
    return WEFT_ARRAY(arena, (size_t)capacity + 1, &v->layers);
}

weft_status weft_tier_uses_init(weft_tier_uses *u, weft_records *records, int num_layers,
                                int num_experts, weft_arena *arena)
{
    u->records = records;
    u->num_layers = num_layers;
    u->num_experts = num_experts;
    u->capacity = records ? num_layers * VISITS_A_LAYER : 0;
    WEFT_TRY(make(&u->before, u->capacity, arena));
    return make(&u->now, u->capacity, arena);
}

void weft_tier_uses_begin(weft_tier_uses *u, bool training)
{
    const weft_tier_visits old = u->before;
    if (u->training) {
        u->knows = u->now.count < u->capacity;
        u->before = u->now;
        u->now = old;
        u->clock += UPDATE_VISITS;
    }
    u->training = training;
    u->now.count = 0;
    u->start = u->clock + 1;
}

void weft_tier_uses_visit(weft_tier_uses *u, int layer, bool backward)
{
    u->clock++;
    if (u->training && u->now.count < u->capacity)
        u->now.layers[u->now.count++] = 2 * layer + backward;
}

/* Finds the layer's next visit behind number `from`, in the previous step: its number, or -1; and
 * whether it is a backward. */
static int find(const weft_tier_uses *u, int layer, int from, bool *backward)
{
    for (int i = from; i < u->before.count; i++)
        if (u->before.layers[i] / 2 == layer) {
            *backward = u->before.layers[i] % 2;
            return i;
        }
    return -1;
}

static void expect(const weft_tier_uses *u, int32_t record, uint64_t visit, int order)
{
    weft_records_expect(u->records, record, visit << ORDER_BITS | (uint64_t)order);
}

void weft_tier_uses_again(weft_tier_uses *u, int32_t record, int order)
{
    if (u->records)
        expect(u, record, u->clock, order);
}

static uint64_t norm_visit(const weft_tier_uses *u)
{
    return u->start + (uint64_t)u->before.count;
}

void weft_tier_uses_later(weft_tier_uses *u, int32_t record, int order, int turned)
{
    const int at = u->now.count - 1;
    bool backward = false;
    if (!u->records)
        return;
    if (!u->training || !u->knows || at < 0) {
        expect(u, record, u->clock + (uint64_t)u->num_layers, order);
        return;
    }
    const int layer = u->now.layers[at] / 2;
    const bool goes_backward = u->now.layers[at] % 2;
    const int next = find(u, layer, at + 1, &backward);
    if (next >= 0)
        expect(u, record, u->start + (uint64_t)next, backward == goes_backward ? order : turned);
    else if (u->ahead)
        expect(u, record, u->clock, BEHIND_VISIT + record);
    else
        expect(u, record, norm_visit(u), record);
}

void weft_tier_uses_update(weft_tier_uses *u, int layer, int32_t first, int32_t record,
                           bool is_step)
{
    bool backward;
    if (!u->records)
        return;
    if (is_step) {
        const int next = u->knows ? find(u, layer, 0, &backward) : layer;
        expect(u, record, norm_visit(u) + UPDATE_VISITS + (uint64_t)(next > 0 ? next : 0),
               record - first);
    } else if (u->ahead) { /* now */
        expect(u, record, u->clock, BEHIND_VISIT + record);
    } else {
        expect(u, record, norm_visit(u) + 1, u->num_experts - record);
    }
}
