#include "launcher/training/cards.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/log.h"
#include "core/text.h"

enum { MOST_NAMED = 3 };

static bool is_alike(const weft_rank_cards *a, const weft_rank_cards *b)
{
    return a->num_gpus == b->num_gpus && a->num_ranks == b->num_ranks;
}

void weft_cards_text(const weft_rank_cards *ranks, int world, char *out, size_t room)
{
    const weft_rank_cards *named[MOST_NAMED] = {ranks};
    int count = 1;
    size_t used = 0;
    *out = '\0';
    for (int i = 1; i < world && count < MOST_NAMED; i++) {
        bool is_new = true; /* the first of its kind */
        for (int k = 0; k < count; k++)
            is_new = is_new && !is_alike(named[k], &ranks[i]);
        if (is_new)
            named[count++] = &ranks[i];
    }
    for (int k = 0; k < count && count > 1 && used < room; k++)
        used += (size_t)snprintf(out + used, room - used, "%s%s has %s for %s", k ? ", " : "",
                                 named[k]->node, weft_count_text(named[k]->num_gpus, "GPU").text,
                                 weft_count_text(named[k]->num_ranks, "rank").text);
}

weft_status weft_cards_tell(weft_comm *world)
{
    weft_rank_cards mine = {.num_gpus = weft_device_num_cuda(NULL)};
    weft_arena arena = {0};
    void *all = NULL;
    int rank, size, local_rank;
    char text[400];
    if (!weft_comm_launched(&rank, &size, &local_rank, &mine.num_ranks))
        return WEFT_OK; /* alone */
    gethostname(mine.node, sizeof mine.node - 1);
    const bool collects = weft_comm_rank(world) == 0;
    weft_status status = weft_arena_alloc_array(
        &arena, collects ? (size_t)weft_comm_size(world) : 0, sizeof mine, &all);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = weft_comm_gather_host(world, &mine, all, sizeof mine);
    if (status == WEFT_OK && collects) {
        weft_cards_text(all, weft_comm_size(world), text, sizeof text);
        if (*text)
            weft_log(WEFT_LOG_WARN, "nodes differ: %s; the slowest is the speed of all", text);
    }
    weft_arena_release(&arena);
    return status;
}
