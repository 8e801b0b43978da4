#include "schedule/pipeline/order_slots.h"

/* The pools of the rank whose order is walked. */
typedef struct walk {
    const weft_order_shape *shape;
    int rank;
    uint32_t compute;
} walk;

static int stage_of(const walk *w, int chunk)
{
    return weft_stage_of(w->shape->is_v, w->shape->num_ranks, w->rank, chunk);
}

static bool is_own(const walk *w, int stage)
{
    return stage >= 0 && stage < w->shape->num_ranks * w->shape->num_chunks &&
           weft_rank_of_stage(w->shape->is_v, w->shape->num_ranks, stage) == w->rank;
}

static size_t at_chunk(const walk *w, int chunk, int m)
{
    return (size_t)chunk * (size_t)w->shape->num_micro_batches + (size_t)m;
}

static uint64_t bytes_of(const walk *w, const weft_order_pool *pool, int chunk)
{
    return pool->bytes ? pool->bytes[stage_of(w, chunk)] : 0;
}

/* Whether a slot made for chunk a fits better than one made for chunk b; of equal ones, if `own`
 * counts, the chunk's own does. */
static bool is_better(const walk *w, const weft_order_pool *pool, int chunk, int a, int b, bool own)
{
    const uint64_t asked = bytes_of(w, pool, chunk), of_a = bytes_of(w, pool, a),
                   of_b = bytes_of(w, pool, b);
    if ((of_a < asked) != (of_b < asked))
        return of_a >= asked;
    if (of_a != of_b)
        return (of_a < of_b) == (of_a >= asked);
    return own && a == chunk && b != chunk;
}

/* The place among the free slots of the one that the chunk takes; their end: it takes a new one.
 * early: some slot must be free before the compute before this one ends. */
static uint32_t find(const walk *w, const weft_order_pool *pool, int chunk, bool early)
{
    uint32_t best = pool->tail;
    for (uint32_t k = pool->head; k < pool->tail; k++) {
        const weft_order_slot *slot = &pool->slots[pool->free[k]];
        const bool is_late = early && slot->free_from == w->compute;
        if (is_late && best == pool->tail)
            break;
        if (best == pool->tail ||
            is_better(w, pool, chunk, slot->chunk, pool->slots[pool->free[best]].chunk, !is_late))
            best = k;
    }
    return best;
}

static void take(const walk *w, weft_order_pool *pool, int chunk, int m, bool early)
{
    uint32_t at = find(w, pool, chunk, early);
    const bool is_new = at == pool->tail;
    const int32_t index = is_new ? pool->num++ : pool->free[at];
    for (; !is_new && at > pool->head; at--)
        pool->free[at] = pool->free[at - 1];
    pool->head += !is_new;
    weft_order_slot *slot = &pool->slots[index];
    if (is_new)
        *slot = (weft_order_slot){.chunk = chunk};
    if (bytes_of(w, pool, chunk) > bytes_of(w, pool, slot->chunk))
        slot->chunk = chunk;
    slot->receives |= stage_of(w, chunk) > 0;
    pool->of[at_chunk(w, chunk, m)] = index;
}

static void release(const walk *w, weft_order_pool *pool, int chunk, int m)
{
    const int32_t index = pool->of[at_chunk(w, chunk, m)];
    pool->slots[index].free_from = w->compute + 1;
    pool->free[pool->tail++] = index;
}

static void take_forward(const walk *w, weft_order_pool *pool, const weft_compute *c)
{
    const int stage = stage_of(w, c->chunk);
    if (!is_own(w, stage - 1))
        take(w, pool, c->chunk, c->micro_batch,
             stage > 0 && w->shape->num_chunks > 1 && !w->shape->is_v);
    if (is_own(w, stage + 1))
        take(w, pool, (stage + 1) / w->shape->num_ranks, c->micro_batch, false);
}

void weft_order_slots_find(const weft_order_shape *shape, int rank, const weft_order *order,
                           weft_order_slots *slots)
{
    walk w = {.shape = shape, .rank = rank};
    weft_order_pool *stash = &slots->stash, *deferred = &slots->deferred;
    stash->num = deferred->num = 0;
    stash->head = stash->tail = deferred->head = deferred->tail = 0;
    for (; w.compute < order->count; w.compute++) {
        const weft_compute *c = &order->computes[w.compute];
        if (c->kind == WEFT_COMPUTE_FORWARD)
            take_forward(&w, stash, c);
        if (c->kind == WEFT_COMPUTE_INPUT)
            take(&w, deferred, c->chunk, c->micro_batch, false);
        if (c->kind == WEFT_COMPUTE_WEIGHT)
            release(&w, deferred, c->chunk, c->micro_batch);
        if (c->kind == WEFT_COMPUTE_WEIGHT || c->kind == WEFT_COMPUTE_BACKWARD)
            release(&w, stash, c->chunk, c->micro_batch);
    }
}

uint64_t weft_order_slots_bytes(const weft_order_shape *shape, int rank,
                                const weft_order_slots *slots, uint64_t boundary_bytes)
{
    const walk w = {.shape = shape, .rank = rank};
    uint64_t bytes = 0;
    for (int i = 0; i < slots->stash.num; i++)
        bytes += bytes_of(&w, &slots->stash, slots->stash.slots[i].chunk) +
                 (slots->stash.slots[i].receives ? boundary_bytes : 0);
    for (int i = 0; i < slots->deferred.num; i++)
        bytes += bytes_of(&w, &slots->deferred, slots->deferred.slots[i].chunk);
    return bytes;
}

static weft_status start_pool(size_t most, const uint64_t *bytes, weft_arena *arena,
                              weft_order_pool *out)
{
    void *slots, *of, *free;
    WEFT_TRY(weft_arena_alloc_array(arena, most, sizeof(weft_order_slot), &slots));
    WEFT_TRY(weft_arena_alloc_array(arena, most, sizeof(int32_t), &of));
    WEFT_TRY(weft_arena_alloc_array(arena, most, sizeof(int32_t), &free));
    *out = (weft_order_pool){.slots = slots, .of = of, .free = free, .bytes = bytes};
    return WEFT_OK;
}

weft_status weft_order_slots_start(const weft_order_shape *shape, const uint64_t *stash_bytes,
                                   const uint64_t *deferred_bytes, weft_arena *arena,
                                   weft_order_slots *out)
{
    const size_t most = (size_t)shape->num_chunks * (size_t)shape->num_micro_batches;
    WEFT_TRY(start_pool(most, stash_bytes, arena, &out->stash));
    return start_pool(most, deferred_bytes, arena, &out->deferred);
}
