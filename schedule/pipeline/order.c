#include "schedule/pipeline/order.h"

#include "schedule/pipeline/order_v.h"

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The size of the group that starts at micro-batch `first`. */
static int group_at(const weft_order_shape *shape, int first)
{
    const int m = shape->num_micro_batches, p = shape->num_ranks;
    const int n = shape->group_size ? shape->group_size : p;
    if (m <= n)
        return m;
    if (m % n == 0 || m % n >= p)
        return smaller(n, m - first);
    /* The first m % groups groups have one more than the others. */
    const int groups = m / n, small = m / groups, num_large = m % groups;
    return first < num_large * (small + 1) ? small + 1 : small;
}

int32_t weft_compute_time(int kind)
{
    static const int32_t times[WEFT_NUM_COMPUTES] = {[WEFT_COMPUTE_FORWARD] = 1,
                                                     [WEFT_COMPUTE_BACKWARD] = 16,
                                                     [WEFT_COMPUTE_INPUT] = 8,
                                                     [WEFT_COMPUTE_WEIGHT] = 8};
    return times[kind];
}

/* All forwards or all whole backwards of a rank, in the order in which they come. */
static void list_all(const weft_order_shape *shape, weft_compute_kind kind, weft_compute *out)
{
    const int v = shape->num_chunks;
    for (int first = 0, size; first < shape->num_micro_batches; first += size) {
        size = group_at(shape, first);
        for (int chunk = 0; chunk < v; chunk++)
            for (int m = first; m < first + size; m++)
                *out++ = (weft_compute){
                    m, (int16_t)(kind == WEFT_COMPUTE_BACKWARD ? v - 1 - chunk : chunk),
                    (uint8_t)kind, 0};
    }
}

/* The most forwards of a rank whose backwards have not run. */
static int num_ahead(weft_pipeline_kind kind, const weft_order_shape *shape, int rank)
{
    const int p = shape->num_ranks, v = shape->num_chunks, m = shape->num_micro_batches;
    if (kind == WEFT_PIPELINE_GPIPE)
        return m * v;
    if (shape->pairs)
        return 2 * (p - rank) + (v - 1) * group_at(shape, 0);
    if (v == 1 || kind == WEFT_PIPELINE_ZB_H1)
        return smaller(p - rank + (v - 1) * group_at(shape, 0), m * v);
    return smaller(2 * (p - rank - 1) + (v - 1) * group_at(shape, 0) + 1, m * v);
}

/* A loop's forwards and whole backwards of a rank, each in their order. */
typedef struct loop {
    const weft_compute *forwards, *backwards;
    size_t count; /* of each */
} loop;

/* One rule: forward while fewer are in flight than may be, else backward. With pairs the forward
 * that fills the bound makes one with the backward for which it has to. */
static void make_whole(const loop *all, size_t bound, bool pairs, weft_order *order)
{
    for (size_t f = 0, b = 0; b < all->count;) {
        weft_compute *next = &order->computes[order->count++];
        *next = f < all->count && f - b < bound ? all->forwards[f++] : all->backwards[b++];
        next->is_paired = pairs && next->kind == WEFT_COMPUTE_FORWARD && f - b == bound;
    }
}

/* Qi et al. 2024, Zero Bubble, figure 2: of rank i the weights' gradients lag i behind, and wait
 * where the rank would be idle at the end. Pairs as of whole backwards. */
static void make_zb_h1(const loop *all, size_t bound, size_t lag, bool pairs, weft_order *order)
{
    for (size_t f = 0, i = 0, w = 0; w < all->count;) {
        weft_compute *next = &order->computes[order->count++];
        const bool weights = i - w > lag || i == all->count;
        const bool forward = !weights && f < all->count && f - i < bound;
        *next = forward ? all->forwards[f++] : all->backwards[weights ? w++ : i++];
        if (!forward)
            next->kind = weights ? WEFT_COMPUTE_WEIGHT : WEFT_COMPUTE_INPUT;
        next->is_paired = pairs && forward && f - i == bound;
    }
}

static weft_status make_loop(weft_pipeline_kind kind, const weft_order_shape *shape,
                             weft_order *orders)
{
    const size_t all = (size_t)shape->num_micro_batches * (size_t)shape->num_chunks;
    weft_arena scratch = {0};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&scratch, 2 * all, sizeof(weft_compute), &memory));
    const loop l = {memory, (weft_compute *)memory + all, all};
    list_all(shape, WEFT_COMPUTE_FORWARD, memory);
    list_all(shape, WEFT_COMPUTE_BACKWARD, (weft_compute *)memory + all);
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        const size_t bound = (size_t)num_ahead(kind, shape, rank);
        if (kind == WEFT_PIPELINE_ZB_H1)
            make_zb_h1(&l, bound, (size_t)rank, shape->pairs, &orders[rank]);
        else
            make_whole(&l, bound, shape->pairs, &orders[rank]);
    }
    weft_arena_release(&scratch);
    return WEFT_OK;
}

weft_status weft_order_make(weft_pipeline_kind kind, const weft_order_shape *shape,
                            weft_arena *arena, weft_order *orders)
{
    WEFT_TRY(weft_order_check_shape(shape));
    WEFT_TRY(weft_order_check_layout(kind, shape));
    const size_t all = (size_t)shape->num_micro_batches * (size_t)shape->num_chunks;
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        void *memory;
        WEFT_TRY(weft_arena_alloc_array(arena, 3 * all, sizeof(weft_compute), &memory));
        orders[rank] = (weft_order){.computes = memory};
    }
    if (!weft_pipeline_kind_is_v(kind))
        return make_loop(kind, shape, orders);
    for (int rank = 0; rank < shape->num_ranks; rank++)
        weft_order_make_v(kind, shape, rank, &orders[rank]);
    return WEFT_OK;
}
