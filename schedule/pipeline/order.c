#include "schedule/pipeline/order.h"

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static weft_status check_shape(const weft_order_shape *shape)
{
    const int p = shape->num_ranks, v = shape->num_chunks, m = shape->num_micro_batches;
    if (p < 1 || v < 1 || m < 1)
        return WEFT_ERROR(
            WEFT_CONFIG, "no pipeline of %d ranks with %d virtual stages each and %d micro-batches",
            p, v, m);
    if (shape->group_size != 0 && shape->group_size < p)
        return WEFT_ERROR(WEFT_CONFIG,
                          "groups of %d micro-batches in a pipeline of %d ranks: a group has at "
                          "least as many as there are ranks",
                          shape->group_size, p);
    return WEFT_OK;
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

int64_t weft_compute_time(int kind)
{
    static const int64_t times[WEFT_NUM_COMPUTES] = {[WEFT_COMPUTE_FORWARD] = 1,
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
                *out++ = (weft_compute){m, kind == WEFT_COMPUTE_BACKWARD ? v - 1 - chunk : chunk,
                                        (int32_t)kind, 0};
    }
}

/* The most forwards of a rank whose backwards have not run. */
static int num_ahead(weft_pipeline_kind kind, const weft_order_shape *shape, int rank)
{
    const int p = shape->num_ranks, v = shape->num_chunks, m = shape->num_micro_batches;
    if (kind == WEFT_PIPELINE_GPIPE)
        return m * v;
    if (v == 1)
        return smaller(p - rank, m);
    return smaller(2 * (p - rank - 1) + (v - 1) * group_at(shape, 0) + 1, m * v);
}

weft_status weft_order_make(weft_pipeline_kind kind, const weft_order_shape *shape,
                            weft_arena *arena, weft_order *orders)
{
    WEFT_TRY(check_shape(shape));
    const size_t all = (size_t)shape->num_micro_batches * (size_t)shape->num_chunks;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, 2 * all, sizeof(weft_compute), &memory));
    const weft_compute *forwards = memory, *backwards = forwards + all;
    list_all(shape, WEFT_COMPUTE_FORWARD, memory);
    list_all(shape, WEFT_COMPUTE_BACKWARD, (weft_compute *)memory + all);
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        WEFT_TRY(weft_arena_alloc_array(arena, 2 * all, sizeof(weft_compute), &memory));
        weft_order *order = &orders[rank];
        *order = (weft_order){.computes = memory};
        /* One rule makes every schedule: forward while fewer are in flight than may be, else
         * backward. */
        const size_t bound = (size_t)num_ahead(kind, shape, rank);
        for (size_t f = 0, b = 0; b < all;)
            order->computes[order->count++] =
                f < all && f - b < bound ? forwards[f++] : backwards[b++];
    }
    return WEFT_OK;
}
