/* Names what ranks do not issue alike: match.c finds that they do not. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_ops.h"

enum { MAX_PLACES = 24 };

typedef struct standing {
    char group[16];
    int32_t first_rank, size;
    uint32_t trail;
    uint64_t num_collectives;
} standing;

typedef struct standings {
    standing at[MAX_PLACES];
    weft_comm_peer peers[WEFT_COMM_MAX_PEERS];
    int32_t count, num_peers, world_rank;
} standings;

static void note(void *context, const weft_comm_place *place)
{
    standings *all = context;
    if (all->count == MAX_PLACES || place->num_collectives == 0)
        return;
    standing *s = &all->at[all->count++];
    *s = (standing){.first_rank = place->first_rank,
                    .size = place->size,
                    .trail = place->trail,
                    .num_collectives = place->num_collectives};
    memcpy(s->group, place->group, sizeof s->group);
}

static const standing *find_group(const standings *of, const standing *group)
{
    for (int i = 0; i < of->count; i++)
        if (of->at[i].first_rank == group->first_rank && of->at[i].size == group->size &&
            strcmp(of->at[i].group, group->group) == 0)
            return &of->at[i];
    return NULL;
}

static bool is_equal(const standing *a, const standing *b)
{
    return a->trail == b->trail && a->num_collectives == b->num_collectives;
}

/* How many ranks stand in `group` as it does, and how many there are in it; one that does not. */
static int count_alike(const standings *all, int num_ranks, const standing *group, int *out_members,
                       const standings **out_other)
{
    int num_alike = 0;
    *out_members = 0;
    for (int i = 0; i < num_ranks; i++) {
        const standing *s = find_group(&all[i], group);
        if (!s)
            continue;
        *out_members += 1;
        if (is_equal(s, group))
            num_alike++;
        else
            *out_other = &all[i];
    }
    return num_alike;
}

static weft_status name_difference(const standings *odd, const standing *own,
                                   const standings *other)
{
    const standing *theirs = find_group(other, own);
    if (own->num_collectives != theirs->num_collectives)
        return WEFT_ERROR(WEFT_COMM,
                          "group %s: rank %d has issued %" PRIu64 " collectives, rank %d %" PRIu64,
                          own->group, (int)odd->world_rank, own->num_collectives,
                          (int)other->world_rank, theirs->num_collectives);
    return WEFT_ERROR(WEFT_COMM,
                      "group %s: among %" PRIu64 " collectives rank %d has issued others than rank "
                      "%d, by kind, type, count, root or order; log.check_collectives finds which",
                      own->group, own->num_collectives, (int)odd->world_rank,
                      (int)other->world_rank);
}

static const weft_comm_peer *find_peer(const standings *of, int rank)
{
    for (int i = 0; i < of->num_peers; i++)
        if (of->peers[i].rank == rank)
            return &of->peers[i];
    return NULL;
}

static const standings *find_rank(const standings *all, int num_ranks, int rank)
{
    for (int i = 0; i < num_ranks; i++)
        if (all[i].world_rank == rank)
            return &all[i];
    return NULL;
}

static weft_status name_messages(const standings *all, int num_ranks)
{
    for (int i = 0; i < num_ranks; i++)
        for (int j = 0; j < all[i].num_peers; j++) {
            const weft_comm_peer *sent = &all[i].peers[j], none = {0};
            const standings *receiver = find_rank(all, num_ranks, sent->rank);
            if (!receiver)
                continue; /* of another world */
            const weft_comm_peer *received = find_peer(receiver, all[i].world_rank);
            received = received ? received : &none;
            if (sent->num_sent != received->num_received)
                return WEFT_ERROR(WEFT_COMM,
                                  "group %s: rank %d has sent %u messages to rank %d, which has "
                                  "received %u",
                                  sent->group, (int)all[i].world_rank, (unsigned)sent->num_sent,
                                  (int)sent->rank, (unsigned)received->num_received);
            if (sent->sent != received->received)
                return WEFT_ERROR(WEFT_COMM,
                                  "group %s: among %u messages from rank %d to rank %d are some of "
                                  "another tag or size than were received",
                                  sent->group, (unsigned)sent->num_sent, (int)all[i].world_rank,
                                  (int)sent->rank);
        }
    return WEFT_ERROR(WEFT_COMM, "ranks sent rows of an all_to_all, or messages, that others did "
                                 "not receive, or of another size");
}

/* The rank that most of its group differ from; of two that differ, the one that issued less. */
static weft_status name_odd(const standings *all, int num_ranks)
{
    for (int i = 0; i < num_ranks; i++)
        for (int j = 0; j < all[i].count; j++) {
            const standing *own = &all[i].at[j];
            const standings *other = NULL;
            int num_members, num_alike = count_alike(all, num_ranks, own, &num_members, &other);
            if (!other || 2 * num_alike > num_members)
                continue;
            if (2 * num_alike == num_members &&
                own->num_collectives > find_group(other, own)->num_collectives)
                continue;
            return name_difference(&all[i], own, other);
        }
    return name_messages(all, num_ranks);
}

weft_status weft_comm_mismatch(weft_comm *world)
{
    standings own = {.world_rank = weft_comm_world_rank(world, world->rank)}, *all = NULL;
    weft_comm_each_place(note, &own);
    own.num_peers = weft_comm_match_peers(own.peers);
    if (world->rank == 0)
        all = calloc((size_t)world->size, sizeof *all);
    if (world->rank == 0 && !all)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for where %d ranks stand", world->size);
    weft_status status = weft_comm_gather_host(world, &own, all, sizeof own);
    if (status == WEFT_OK && all)
        status = name_odd(all, world->size);
    free(all);
    return weft_comm_agree(world, status);
}
