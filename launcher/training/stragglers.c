#include "launcher/training/stragglers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sorted.h"

typedef struct place {
    int stage;
    char node[WEFT_STRAGGLER_NODE_BYTES];
} place;

static weft_status make_room(weft_stragglers *s, int num_ranks, place **out)
{
    const size_t count = (size_t)num_ranks;
    s->ranks = calloc(count, sizeof *s->ranks);
    s->ms = calloc(count, sizeof *s->ms);
    s->sorted = calloc(count, sizeof *s->sorted);
    *out = calloc(count, sizeof **out);
    if (!s->ranks || !s->ms || !s->sorted || !*out)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the times of %d ranks", num_ranks);
    return WEFT_OK;
}

weft_status weft_stragglers_create(weft_stragglers *s, double factor, int64_t steps, int stage,
                                   weft_comm *world)
{
    const int num_ranks = weft_comm_size(world);
    place own = {.stage = stage}, *places = NULL;
    weft_status status = WEFT_OK;
    *s = (weft_stragglers){.factor = num_ranks > 1 ? factor : 0, .steps = steps};
    s->num_ranks = num_ranks;
    if (s->factor == 0)
        return WEFT_OK;
    gethostname(own.node, sizeof own.node - 1);
    if (weft_comm_rank(world) == 0)
        status = make_room(s, num_ranks, &places);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = weft_comm_gather_host(world, &own, places, sizeof own);
    for (int i = 0; status == WEFT_OK && places && i < num_ranks; i++) {
        s->ranks[i].stage = places[i].stage;
        memcpy(s->ranks[i].node, places[i].node, sizeof places[i].node);
    }
    free(places);
    return status;
}

weft_status weft_stragglers_gather(weft_stragglers *s, double own_ms, weft_comm *world)
{
    return s->factor == 0 ? WEFT_OK : weft_comm_gather_host(world, &own_ms, s->ms, sizeof own_ms);
}

static size_t sort_stage(weft_stragglers *s, int stage)
{
    size_t count = 0;
    for (int i = 0; i < s->num_ranks; i++)
        if (s->ranks[i].stage == stage)
            s->sorted[count++] = s->ms[i];
    weft_sort(s->sorted, count);
    return count;
}

/* Counts a step of a rank; true: the rank is now a straggler. */
static bool count(weft_stragglers *s, weft_straggler *r, bool is_slow)
{
    r->num_slow = is_slow ? r->num_slow + 1 : 0;
    r->num_well = is_slow ? 0 : r->num_well + 1;
    if (r->num_well >= s->steps)
        r->told = false;
    return r->num_slow >= s->steps && !r->told;
}

/* For a rank above the upper median of its others, that median is sorted[(count - 1) / 2]; ranks
 * below it are never slow. */
static int judge_stage(weft_stragglers *s, int stage, int64_t step, char *out, size_t capacity)
{
    const size_t num = sort_stage(s, stage);
    const double median = num > 1 ? s->sorted[(num - 1) / 2] : 0;
    int found = -1;
    for (int i = 0; i < s->num_ranks; i++) {
        weft_straggler *r = &s->ranks[i];
        if (r->stage != stage ||
            !count(s, r, num > 1 && median > 0 && s->ms[i] > s->factor * median) || found >= 0)
            continue; /* of several in a step, one is reported per step */
        r->told = true;
        found = i;
        snprintf(out, capacity,
                 "step %" PRId64 ": rank %d on %s is slow: for %" PRId64
                 " steps it has computed at least %.3g times as long as the median of its stage's "
                 "other ranks, now %.3g ms against %.3g ms",
                 step, i, r->node, r->num_slow, s->factor, s->ms[i], median);
    }
    return found;
}

int weft_stragglers_judge(weft_stragglers *s, int64_t step, char *out, size_t capacity)
{
    int found = -1, num_stages = 0;
    s->slowest = 0;
    for (int i = 0; i < s->num_ranks; i++) {
        num_stages = s->ranks[i].stage >= num_stages ? s->ranks[i].stage + 1 : num_stages;
        s->slowest = s->ms[i] > s->ms[s->slowest] ? i : s->slowest;
    }
    for (int stage = 0; stage < num_stages; stage++) {
        char line[512];
        int rank = judge_stage(s, stage, step, line, sizeof line);
        if (rank < 0)
            continue;
        if (found >= 0) {
            s->ranks[rank].told = false; /* reported in the next step */
            continue;
        }
        found = rank;
        snprintf(out, capacity, "%s", line);
    }
    memcpy(s->sorted, s->ms, (size_t)s->num_ranks * sizeof *s->ms);
    weft_sort(s->sorted, s->num_ranks);
    return found;
}

void weft_stragglers_release(weft_stragglers *s)
{
    free(s->ranks);
    free(s->ms);
    free(s->sorted);
    *s = (weft_stragglers){0};
}
