/* Attention's blocks have every tile of every head once, and those of some heads, the ones with the
 * most work first, before the next heads'. */
#include "kernels/cuda/attention.cuh"

#include "tests/expect.h"

static void check(int num_heads, int num_tiles, int at_once)
{
    static int times[64][64];
    memset(times, 0, sizeof times);
    block_place last = {0, 0};
    for (int i = 0; i < num_heads * num_tiles; i++) {
        const block_place at = place_of_block(i, num_heads, num_tiles, at_once);
        EXPECT(at.head >= 0 && at.head < num_heads && at.tile >= 0 && at.tile < num_tiles,
               "block %d", i);
        times[at.head][at.tile]++;
        const int part = at.head / at_once, last_part = last.head / at_once;
        EXPECT(part > last_part || (part == last_part && at.tile >= last.tile), "block %d", i);
        last = at;
    }
    for (int h = 0; h < num_heads; h++)
        for (int t = 0; t < num_tiles; t++)
            EXPECT(times[h][t] == 1, "head %d, tile %d: %d times", h, t, times[h][t]);
}

static void check_at_once(int got, int wanted)
{
    EXPECT(got == wanted, "%d heads at once, not %d", wanted, got);
}

int main(void)
{
    for (int heads = 1; heads <= 40; heads += 3)
        for (int tiles = 1; tiles <= 9; tiles++)
            for (int at_once = 1; at_once <= heads; at_once++)
                check(heads, tiles, at_once);
    const size_t mega = 1 << 20;
    check_at_once(heads_at_once(192, 8, mega / 4), 64); /* 16 MiB together */
    check_at_once(heads_at_once(200, 8, mega / 4), 50); /* and all parts alike */
    check_at_once(heads_at_once(12, 8, mega / 4), 12);
    check_at_once(heads_at_once(32, 32, 4 * mega), 16); /* for enough blocks */
    check_at_once(heads_at_once(3, 1000, 64 * mega), 1);
    check_at_once(heads_at_once(5, 1, 0), 5);
    return expect_finish();
}
