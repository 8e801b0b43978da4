#include <inttypes.h>
#include <string.h>

#include "core/dataset/dataset.h"
#include "core/divisor.h"

/* Divides the weights by what divides them all; their sum. */
static weft_status reduce(const int64_t *weights, size_t count, int64_t *out, uint64_t *period)
{
    int64_t divisor = 0;
    double sum = 0; /* which no weights overflow */
    for (size_t i = 0; i < count; i++) {
        if (weights[i] < 1)
            return WEFT_ERROR(WEFT_CONFIG, "a blend's weight %" PRId64 " is not above 0",
                              weights[i]);
        divisor = weft_common_divisor(weights[i], divisor);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = weights[i] / divisor;
        sum += (double)out[i];
    }
    if (sum > WEFT_BLEND_MAX_PERIOD)
        return WEFT_ERROR(WEFT_CONFIG,
                          "weights as exact as these make an order that repeats after %.0f blocks, "
                          "of at most %d: fewer digits",
                          sum, WEFT_BLEND_MAX_PERIOD);
    *period = (uint64_t)sum;
    return WEFT_OK;
}

/* The first and the last place, from 0, of a dataset's next block. */
typedef struct window {
    uint64_t first, last;
} window;

static window window_of(uint64_t block, uint64_t weight, uint64_t period)
{
    return (window){block * period / weight, ((block + 1) * period + weight - 1) / weight - 1};
}

static void fill(const int64_t *weights, size_t count, uint64_t period, window *windows,
                 uint32_t *taken, uint16_t *which, uint32_t *before)
{
    for (size_t i = 0; i < count; i++)
        windows[i] = window_of(0, (uint64_t)weights[i], period);
    for (uint64_t place = 0; place < period; place++) {
        size_t next = count;
        for (size_t i = 0; i < count; i++)
            if (windows[i].first <= place &&
                (next == count || windows[i].last < windows[next].last))
                next = i;
        which[place] = (uint16_t)next;
        before[place] = taken[next]++;
        windows[next] = window_of(taken[next], (uint64_t)weights[next], period);
    }
}

weft_status weft_blend_order(const int64_t *weights, size_t count, weft_arena *arena,
                             weft_blend *out)
{
    void *reduced, *windows, *taken, *which, *before;
    uint64_t period = 0;
    if (count < 1 || count > WEFT_BLEND_MAX_DATASETS)
        return WEFT_ERROR(WEFT_CONFIG, "a blend of %zu datasets, of 1 to %d", count,
                          WEFT_BLEND_MAX_DATASETS);
    WEFT_TRY(weft_arena_alloc_array(arena, count, sizeof(int64_t), &reduced));
    WEFT_TRY(reduce(weights, count, reduced, &period));
    WEFT_TRY(weft_arena_alloc_array(arena, count, sizeof(window), &windows));
    WEFT_TRY(weft_arena_alloc_array(arena, count, sizeof(uint32_t), &taken));
    WEFT_TRY(weft_arena_alloc_array(arena, period, sizeof(uint16_t), &which));
    WEFT_TRY(weft_arena_alloc_array(arena, period, sizeof(uint32_t), &before));
    fill(reduced, count, period, windows, taken, which, before);
    *out = (weft_blend){count, reduced, period, which, before};
    return WEFT_OK;
}
