/* What it takes to place the experts of a layer: microseconds a call, median and fastest of rounds
 * of 1,000 calls over 64 Zipf draws, and the worst maximum over the mean. build/bench_placement */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/rng.h"
#include "core/sorted.h"
#include "schedule/experts/placement.h"

enum { DRAWS = 64, ROUNDS = 1001, MAX_EXPERTS = 256, MAX_RANKS = 8 };

typedef struct draw {
    int32_t home[MAX_EXPERTS], rows[MAX_EXPERTS];
    double upload[MAX_EXPERTS], compute[MAX_EXPERTS];
} draw;
static draw draws[DRAWS];

/* 256 rows an expert, of which the i-th hottest has 1 / i^s; as many take `ratio` uploads. */
static void fill(int experts, int ranks, double s, double ratio)
{
    double sum = 0;
    for (int i = 1; i <= experts; i++)
        sum += pow(i, -s);
    for (int d = 0; d < DRAWS; d++)
        for (int e = 0; e < experts; e++) {
            const uint64_t place = weft_rng_permute(1, (uint64_t)d, (uint64_t)experts, (uint64_t)e);
            const double share = pow((double)place + 1, -s) / sum;
            draws[d].home[e] = e * ranks / experts;
            draws[d].rows[e] = (int32_t)(256 * experts * share);
            draws[d].upload[e] = 100;
            draws[d].compute[e] = 100 * ratio * draws[d].rows[e] / 256;
        }
}

static void measure(int experts, int ranks, double s, double ratio, bool replicas, void *scratch)
{
    weft_placement_part parts[MAX_EXPERTS + MAX_RANKS];
    int32_t first_part[MAX_EXPERTS + 1];
    double times[ROUNDS], worst = 0;
    fill(experts, ranks, s, ratio);
    for (int round = 0; round < ROUNDS; round++) {
        const double start = weft_now_us();
        for (int call = 0; call < DRAWS; call++) {
            const draw *d = &draws[call];
            weft_placement_shape shape = {.num_experts = experts,
                                          .num_ranks = ranks,
                                          .home = d->home,
                                          .rows = d->rows,
                                          .upload_us = d->upload,
                                          .compute_us = d->compute,
                                          .replicas = replicas};
            weft_placement found = {.parts = parts, .first_part = first_part};
            weft_placement_find(&shape, scratch, &found);
            worst = fmax(worst, found.max_us / found.mean_us);
        }
        times[round] = (weft_now_us() - start) / DRAWS;
    }
    weft_sort(times, ROUNDS);
    printf("%7d %5d %5.2f %6.1f %8s %8.2f %8.2f %8.3f\n", experts, ranks, s, ratio,
           replicas ? "yes" : "no", times[ROUNDS / 2], times[0], worst);
}

int main(void)
{
    const int sizes[][2] = {{64, 4}, {64, 8}, {128, 4}, {128, 8}, {256, 8}};
    const double exponents[] = {0, 0.5, 1.25}, ratios[] = {0.5, 1.2};
    void *scratch = malloc(weft_placement_scratch_bytes(MAX_EXPERTS, MAX_RANKS));
    if (!scratch)
        return 3;
    printf("experts ranks  zipf  ratio replicas   median  fastest max/mean\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t s = 0; s < sizeof exponents / sizeof *exponents; s++)
            for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++)
                for (int replicas = 0; replicas < 2; replicas++)
                    measure(sizes[i][0], sizes[i][1], exponents[s], ratios[r], replicas, scratch);
    free(scratch);
    return 0;
}
