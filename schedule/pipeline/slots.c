#include "schedule/pipeline/lowering.h"

/* Slots of one kind. A taker gets the slot that has been free longest, or a new one. Entries from
 * `head` on are sorted by when they become free. */
typedef struct weft_slot_pool {
    struct weft_slot_free {
        int32_t free_at;
        int32_t index;
    } * entries;
    uint32_t head, tail;
    int num_rows;
} weft_slot_pool;

static int32_t take(weft_slot_pool *from, int32_t now, int32_t free_at, int32_t *out_free_at)
{
    const bool is_free = from->head < from->tail && from->entries[from->head].free_at <= now;
    if (out_free_at)
        *out_free_at = is_free ? from->entries[from->head].free_at : 0;
    const int32_t index = is_free ? from->entries[from->head++].index : from->num_rows++;
    uint32_t at = from->tail++;
    for (; at > from->head && from->entries[at - 1].free_at > free_at; at--)
        from->entries[at] = from->entries[at - 1];
    from->entries[at] = (struct weft_slot_free){free_at, index};
    return index;
}

int32_t weft_lowering_take(const weft_lowering *l, int pool, int32_t now, int32_t free_at,
                           int32_t *out_free_at)
{
    return pool * WEFT_POOL_SLOTS + take(&l->pools[pool], now, free_at, out_free_at);
}

int32_t weft_lowering_row(const weft_lowering *l, int32_t operand)
{
    return l->first_rows[operand / WEFT_POOL_SLOTS] + operand % WEFT_POOL_SLOTS;
}

static weft_status add_shared(weft_lowering *l, weft_program_builder *builder, weft_slot_kind kind,
                              const weft_order_pool *from, int pool)
{
    for (int i = 0; i < from->num; i++) {
        const weft_order_slot *slot = &from->slots[i];
        const weft_slot row = {
            .holds = kind,
            .chunk = slot->chunk,
            .bytes = kind == WEFT_SLOT_ACTIVATION && slot->receives ? l->shape->boundary_bytes : 0};
        WEFT_TRY(weft_program_add_slots(builder, &row, 1, i == 0 ? &l->first_rows[pool] : NULL));
    }
    return WEFT_OK;
}

/* Activations first. */
weft_status weft_lowering_add_slots(weft_lowering *l, weft_program_builder *builder)
{
    static const weft_slot_kind kinds[WEFT_NUM_TIMED_POOLS] = {
        WEFT_SLOT_OUTPUT, WEFT_SLOT_GRADIENT, WEFT_SLOT_INPUT_GRADIENT, WEFT_SLOT_RECOMPUTED};
    WEFT_TRY(add_shared(l, builder, WEFT_SLOT_ACTIVATION, &l->slots->stash, WEFT_POOL_ACTIVATION));
    for (int pool = 0; pool < WEFT_NUM_TIMED_POOLS; pool++) {
        const weft_slot slot = {.holds = kinds[pool],
                                .chunk = -1,
                                .bytes =
                                    pool < WEFT_POOL_RECOMPUTED ? l->shape->boundary_bytes : 0};
        WEFT_TRY(
            weft_program_add_slots(builder, &slot, l->pools[pool].num_rows, &l->first_rows[pool]));
    }
    return l->shape->forward_only ? WEFT_OK
                                  : add_shared(l, builder, WEFT_SLOT_DEFERRED, &l->slots->deferred,
                                               WEFT_POOL_DEFERRED);
}

static bool is_used(const weft_lowering *l, int pool)
{
    return pool == WEFT_POOL_OUTPUT ? l->p > 1 && (l->v > 1 || l->rank < l->p - 1)
           : l->shape->forward_only || pool == WEFT_POOL_RECOMPUTED ? false
           : pool == WEFT_POOL_GRADIENT                             ? l->v > 1 || l->rank < l->p - 1
                                        : l->p > 1 && (l->v > 1 || l->rank > 0);
}

void weft_lowering_empty_pools(weft_lowering *l)
{
    for (int i = 0; i < WEFT_NUM_TIMED_POOLS; i++) {
        weft_slot_pool *pool = &l->pools[i];
        *pool = (weft_slot_pool){.entries = pool->entries};
        while (pool->num_rows < (is_used(l, i) ? 2 : 0))
            pool->entries[pool->tail++] = (struct weft_slot_free){0, pool->num_rows++};
    }
}

weft_status weft_lowering_start(weft_lowering *l, weft_arena *scratch)
{
    const size_t all = (size_t)l->v * (size_t)l->m;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int32_t), &memory));
    l->held = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int32_t), &memory));
    l->free_at = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(weft_lowered_message), &memory));
    l->sends = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(weft_lowered_message), &memory));
    l->receives = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)l->v, sizeof(uint32_t), &memory));
    l->last_backward = memory;
    WEFT_TRY(
        weft_arena_alloc_array(scratch, WEFT_NUM_TIMED_POOLS, sizeof(weft_slot_pool), &memory));
    l->pools = memory;
    for (int i = 0; i < WEFT_NUM_TIMED_POOLS; i++) {
        WEFT_TRY(weft_arena_alloc_array(scratch, all + 2, sizeof(struct weft_slot_free), &memory));
        l->pools[i] = (weft_slot_pool){.entries = memory};
    }
    weft_lowering_empty_pools(l);
    return WEFT_OK;
}
