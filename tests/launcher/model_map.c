/* Maps between a tensor and a parameter against their definition: random blocks, seen from both
 * sides through windows of every size. */
#include <stdint.h>

#include "core/rng.h"
#include "launcher/models/map.h"
#include "tests/expect.h"

enum { MOST = 4096, AXES = 4 };

static uint64_t draw;

static size_t below(size_t bound)
{
    return (size_t)(weft_rng_uniform(11, 0, draw++) * (float)bound) % bound;
}

/* Two orders of the same axes, the tensor's and the parameter's, each dense. */
static weft_map_piece random_piece(void)
{
    weft_map_piece piece = {.first = {below(50), below(50)}};
    size_t extents[AXES], strides[2][AXES];
    int order[AXES] = {0, 1, 2, 3};
    for (int a = 0; a < AXES; a++)
        extents[a] = 1 + below(6);
    for (int side = 0; side < 2; side++) {
        size_t stride = 1;
        for (int a = AXES; a-- > 1;) { /* an order of their own */
            const size_t b = below((size_t)a + 1);
            const int other = order[a];
            order[a] = order[b];
            order[b] = other;
        }
        for (int a = 0; a < AXES; a++) {
            strides[side][order[a]] = stride;
            stride *= extents[order[a]];
            if (a == 1 && side == WEFT_MAP_PARAMETER)
                stride *= 1 + below(3); /* between groups others have rows */
        }
    }
    for (int a = 0; a < AXES; a++)
        weft_map_add_axis(&piece, extents[a], strides[0][a], strides[1][a]);
    return piece;
}

/* By the definition: where each element of one side is on the other; SIZE_MAX: nowhere. */
static void enumerate(const weft_map_piece *p, weft_map_side side, size_t out[MOST])
{
    const weft_map_side other = side == WEFT_MAP_FILE ? WEFT_MAP_PARAMETER : WEFT_MAP_FILE;
    size_t index[WEFT_MAP_AXES] = {0};
    for (size_t i = 0; i < MOST; i++)
        out[i] = SIZE_MAX;
    for (bool goes_on = true; goes_on;) {
        size_t here = p->first[side], there = p->first[other];
        for (int a = 0; a < p->num_axes; a++) {
            here += index[a] * p->stride[side][a];
            there += index[a] * p->stride[other][a];
        }
        out[here] = there;
        int a = 0;
        while (a < p->num_axes && ++index[a] == p->extent[a])
            index[a++] = 0;
        goes_on = a < p->num_axes;
    }
}

typedef struct seen {
    size_t where[MOST], last;
    bool rises;
} seen;

static weft_status see(void *context, size_t here, size_t there, size_t count, size_t stride)
{
    seen *s = context;
    for (size_t i = 0; i < count; i++)
        s->where[here + i] = there + i * stride;
    s->rises = s->rises && here >= s->last;
    s->last = here + count;
    return WEFT_OK;
}

static void check(const weft_map_piece *piece, weft_map_side side)
{
    static size_t wanted[MOST];
    static seen s;
    const size_t first = below(MOST), count = below(MOST - first) + 1;
    enumerate(piece, side, wanted);
    for (size_t i = 0; i < MOST; i++)
        s.where[i] = SIZE_MAX;
    s.last = 0;
    s.rises = true;
    EXPECT_OK(weft_map_visit(piece, side, first, count, see, &s));
    for (size_t i = 0; i < MOST; i++) {
        const size_t is = i >= first && i < first + count ? wanted[i] : SIZE_MAX;
        EXPECT(s.where[i] == is, "side %d, element %zu: %zu, not %zu", (int)side, i, s.where[i],
               is);
    }
    EXPECT(s.rises, "out of order");
}

int main(void)
{
    for (int i = 0; i < 3000 && expect_failures == 0; i++) {
        const weft_map_piece piece = random_piece();
        check(&piece, WEFT_MAP_FILE);
        check(&piece, WEFT_MAP_PARAMETER);
    }
    return expect_finish();
}
