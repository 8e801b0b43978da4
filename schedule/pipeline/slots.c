#include "schedule/pipeline/lowering.h"

/* Slots of one kind, of one chunk or shared by all. A taker gets the slot that has been free
 * longest, or a new one. Entries from `head` on are sorted by when they become free. */
typedef struct weft_slot_pool {
    struct weft_slot_free {
        int64_t free_at;
        int32_t index;
    } * entries;
    uint32_t head, tail;
    int num_rows;
    int32_t first;
} weft_slot_pool;

static int32_t take(weft_slot_pool *from, int64_t now, int64_t free_at, int64_t *out_free_at)
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

int32_t weft_lowering_take(const weft_lowering *l, int pool, int64_t now, int64_t free_at,
                           int64_t *out_free_at)
{
    return pool * WEFT_POOL_SLOTS + take(&l->pools[pool], now, free_at, out_free_at);
}

int weft_lowering_num_slots(const weft_lowering *l, int pool)
{
    return l->pools[pool].num_rows;
}

int32_t weft_lowering_row(const weft_lowering *l, int32_t operand)
{
    return l->pools[operand / WEFT_POOL_SLOTS].first + operand % WEFT_POOL_SLOTS;
}

int weft_lowering_num_pools(const weft_lowering *l)
{
    return WEFT_POOL_ACTIVATION + 2 * l->v;
}

/* The chunk whose activations a pool has, or what its backwards defer; -1: neither. */
static int chunk_of(const weft_lowering *l, int pool, bool *out_defers)
{
    *out_defers = pool >= WEFT_POOL_ACTIVATION + l->v;
    return pool < WEFT_POOL_ACTIVATION ? -1 : (pool - WEFT_POOL_ACTIVATION) % l->v;
}

static weft_status add_pool(const weft_lowering *l, weft_program_builder *builder,
                            const int *training, int pool)
{
    static const weft_slot_kind kinds[] = {WEFT_SLOT_OUTPUT, WEFT_SLOT_GRADIENT,
                                           WEFT_SLOT_INPUT_GRADIENT, WEFT_SLOT_RECOMPUTED};
    weft_slot_pool *rows = &l->pools[pool];
    bool defers;
    const int chunk = chunk_of(l, pool, &defers);
    const bool is_activation = chunk >= 0 && !defers;
    const bool has_rows = is_activation ? weft_stage_of(l->shape->is_v, l->p, l->rank, chunk) > 0
                                        : pool < WEFT_POOL_RECOMPUTED;
    weft_slot slot = {.holds = defers          ? WEFT_SLOT_DEFERRED
                               : is_activation ? WEFT_SLOT_ACTIVATION
                                               : kinds[pool],
                      .chunk = chunk,
                      .bytes = has_rows ? l->shape->boundary_bytes : 0};
    WEFT_TRY(weft_program_add_slots(builder, &slot, rows->num_rows, &rows->first));
    slot.bytes = 0;
    return is_activation && training
               ? weft_program_add_slots(builder, &slot, training[pool] - rows->num_rows, NULL)
               : WEFT_OK;
}

/* Activations first. */
weft_status weft_lowering_add_slots(const weft_lowering *l, weft_program_builder *builder,
                                    const int *training)
{
    for (int c = 0; c < l->v; c++)
        WEFT_TRY(add_pool(l, builder, training, WEFT_POOL_ACTIVATION + c));
    for (int pool = 0; pool < weft_lowering_num_pools(l); pool++)
        if (pool < WEFT_POOL_ACTIVATION || pool >= WEFT_POOL_ACTIVATION + l->v)
            WEFT_TRY(add_pool(l, builder, training, pool));
    return WEFT_OK;
}

weft_status weft_lowering_start(weft_lowering *l, weft_arena *scratch, const int *training)
{
    const size_t all = (size_t)l->v * (size_t)l->m;
    void *memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int32_t), &memory));
        l->held[i] = memory;
    }
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(int32_t), &memory));
    l->stash = memory;
    l->deferred = l->stash + all;
    WEFT_TRY(weft_arena_alloc_array(scratch, 4 * all, sizeof(weft_task), &memory));
    l->tasks = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(weft_lowered_message), &memory));
    l->sends = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(weft_lowered_message), &memory));
    l->receives = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)l->v, sizeof(uint32_t), &memory));
    l->last_backward = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)weft_lowering_num_pools(l),
                                    sizeof(weft_slot_pool), &memory));
    l->pools = memory;
    for (int i = 0; i < weft_lowering_num_pools(l); i++) {
        bool defers;
        const int chunk = chunk_of(l, i, &defers);
        const bool is_activation = chunk >= 0 && !defers;
        const bool is_used = is_activation           ? training != NULL
                             : i == WEFT_POOL_OUTPUT ? l->p > 1 && (l->v > 1 || l->rank < l->p - 1)
                             : l->shape->forward_only || i >= WEFT_POOL_RECOMPUTED ? false
                             : i == WEFT_POOL_GRADIENT ? l->v > 1 || l->rank < l->p - 1
                                                       : l->p > 1 && (l->v > 1 || l->rank > 0);
        const size_t most = chunk >= 0 ? (size_t)l->m : all;
        WEFT_TRY(weft_arena_alloc_array(scratch, most + 2, sizeof(struct weft_slot_free), &memory));
        l->pools[i] = (weft_slot_pool){.entries = memory};
        int rows = is_used ? 2 : 0;
        if (is_activation && training && training[i] < rows)
            rows = training[i];
        while (l->pools[i].num_rows < rows)
            l->pools[i].entries[l->pools[i].tail++] =
                (struct weft_slot_free){0, l->pools[i].num_rows++};
    }
    return WEFT_OK;
}
