#include "schedule/pair.h"

#include <math.h>

int weft_turns_next(weft_turns *turns, const weft_part_kind next[WEFT_PAIR_STRANDS])
{
    for (int tried = 0; tried <= WEFT_PAIR_STRANDS; tried++) {
        const weft_part_kind kind = next[turns->whose];
        if (kind == WEFT_PART_COMPUTES || (kind == WEFT_PART_TRAVELS && !turns->computed)) {
            turns->computed |= kind == WEFT_PART_COMPUTES;
            return turns->whose;
        }
        *turns = (weft_turns){.whose = !turns->whose};
    }
    return -1;
}

double weft_pair_us(const weft_pair_part *const parts[WEFT_PAIR_STRANDS],
                    const int counts[WEFT_PAIR_STRANDS])
{
    weft_turns turns = {.whose = WEFT_PAIR_BACKWARD};
    int at[WEFT_PAIR_STRANDS] = {0};
    double strands[WEFT_PAIR_STRANDS] = {0}, lanes[2] = {0};
    for (;;) {
        weft_part_kind next[WEFT_PAIR_STRANDS];
        for (int s = 0; s < WEFT_PAIR_STRANDS; s++)
            next[s] = at[s] < counts[s] ? parts[s][at[s]].kind : WEFT_PART_NONE;
        const int whose = weft_turns_next(&turns, next);
        if (whose < 0)
            return fmax(lanes[0], lanes[1]);
        const weft_pair_part *part = &parts[whose][at[whose]++];
        double *lane = &lanes[part->kind == WEFT_PART_TRAVELS];
        *lane = strands[whose] = fmax(*lane, strands[whose]) + part->us;
    }
}
