/* Where groups stand, and whether their ranks issue the same.
 *
 * Each collective adds to this process' part of a sum over the world a hash of what it is: rank 0
 * of a group of n adds n - 1 times its hash, each other rank takes its own away. A message adds its
 * hash where it is sent, and takes it away where it is received; so does each row of an all_to_all.
 * What all ranks issue alike cancels out. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_ops.h"

static struct {
    pthread_mutex_t lock;
    weft_comm *oldest, *newest; /* groups of more than one */
} places = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* This process' part of the sum over a group, of what it issues there and in groups made of it. */
typedef struct weft_comm_sum {
    atomic_uint_least32_t part;
    atomic_int num_users; /* its group, and the sums of groups made of that */
    struct weft_comm_sum *outer;
} weft_comm_sum;

enum { MAX_PEERS = 32 };

/* Messages between this process and another, to name what does not match. */
typedef struct peer_messages {
    int32_t rank;                                    /* of the world */
    uint32_t num_sent, num_received, sent, received; /* sums of hashes */
    char group[16];                                  /* of the last one */
} peer_messages;

static struct {
    pthread_mutex_t lock;
    int count;
    peer_messages at[MAX_PEERS];
} peers = {.lock = PTHREAD_MUTEX_INITIALIZER};

weft_status weft_comm_place_add(weft_comm *comm)
{
    comm->sum = calloc(1, sizeof *comm->sum);
    if (!comm->sum)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for group %s", comm->name);
    atomic_init(&comm->sum->part, 0);
    atomic_init(&comm->sum->num_users, 1);
    pthread_mutex_lock(&places.lock);
    comm->older_place = places.newest;
    comm->newer_place = NULL;
    if (places.newest)
        places.newest->newer_place = comm;
    else
        places.oldest = comm;
    places.newest = comm;
    pthread_mutex_unlock(&places.lock);
    return WEFT_OK;
}

void weft_comm_match_within(weft_comm *comm, weft_comm *parent)
{
    if (!comm->sum || !parent->sum)
        return;
    atomic_fetch_add(&parent->sum->num_users, 1);
    comm->sum->outer = parent->sum;
}

static void leave_sum(weft_comm_sum *sum)
{
    while (sum && atomic_fetch_sub(&sum->num_users, 1) == 1) {
        weft_comm_sum *outer = sum->outer;
        free(sum);
        sum = outer;
    }
}

void weft_comm_place_remove(weft_comm *comm)
{
    pthread_mutex_lock(&places.lock);
    if (comm->older_place)
        comm->older_place->newer_place = comm->newer_place;
    else
        places.oldest = comm->newer_place;
    if (comm->newer_place)
        comm->newer_place->older_place = comm->older_place;
    else
        places.newest = comm->older_place;
    pthread_mutex_unlock(&places.lock);
    leave_sum(comm->sum);
}

void weft_comm_each_place(void (*visit)(void *context, const weft_comm_place *place), void *context)
{
    pthread_mutex_lock(&places.lock);
    for (weft_comm *comm = places.oldest; comm; comm = comm->newer_place) {
        weft_comm_place place = {.first_rank = weft_comm_world_rank(comm, 0),
                                 .size = comm->size,
                                 .rank = comm->rank,
                                 .world_ranks = comm->world_ranks,
                                 .num_collectives = atomic_load(&comm->num_collectives),
                                 .num_begun = atomic_load(&comm->num_begun),
                                 .num_messages = atomic_load(&comm->num_messages),
                                 .trail = atomic_load(&comm->trail)};
        memcpy(place.group, comm->name, sizeof place.group);
        visit(context, &place);
    }
    pthread_mutex_unlock(&places.lock);
}

/* splitmix64's finalizer (Steele et al. 2014) */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) + UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
    return hash ^ hash >> 31;
}

static uint32_t hash_collective(const weft_comm_op *op)
{
    /* What ranks of one group have alike; rows are compared one by one. */
    const bool rows = op->rows != NULL;
    uint64_t hash =
        mix(op->sequence, (uint64_t)op->kind | (uint64_t)op->dtype << 8 |
                              (uint64_t)op->reduce << 16 | (uint64_t)(uint32_t)op->peer << 24);
    return (uint32_t)mix(hash, rows ? op->chunk_bytes : op->bytes);
}

static uint32_t hash_message(int from, int to, int tag, size_t bytes)
{
    return (uint32_t)mix(mix((uint64_t)(uint32_t)from << 32 | (uint32_t)to, (uint64_t)tag), bytes);
}

/* Adds to the peer's messages; returns the hash. */
static uint32_t note_message(const weft_comm *comm, int peer, bool sends, int tag, size_t bytes)
{
    const int own = weft_comm_world_rank(comm, comm->rank),
              other = weft_comm_world_rank(comm, peer);
    const uint32_t hash =
        sends ? hash_message(own, other, tag, bytes) : hash_message(other, own, tag, bytes);
    int i = 0;
    pthread_mutex_lock(&peers.lock);
    while (i < peers.count && peers.at[i].rank != other)
        i++;
    if (i < MAX_PEERS) {
        peer_messages *p = &peers.at[i];
        if (i == peers.count)
            peers.at[peers.count++] = (peer_messages){.rank = other};
        *(sends ? &p->num_sent : &p->num_received) += 1;
        *(sends ? &p->sent : &p->received) += hash;
        memcpy(p->group, comm->name, sizeof p->group);
    }
    pthread_mutex_unlock(&peers.lock);
    return hash;
}

enum { ROW_TAG = -1 };

static uint32_t add_rows(const weft_comm_op *op, uint32_t sum)
{
    const weft_comm *comm = op->comm;
    const size_t *sent = op->rows->bytes, *received = sent + comm->size;
    const int own = weft_comm_world_rank(comm, comm->rank);
    for (int i = 0; i < comm->size; i++) {
        const int peer = weft_comm_world_rank(comm, i);
        if (i == comm->rank)
            continue;
        sum += hash_message(own, peer, ROW_TAG, sent[i]);
        sum -= hash_message(peer, own, ROW_TAG, received[i]);
    }
    return sum;
}

void weft_comm_match_add(const weft_comm_op *op)
{
    const weft_comm *comm = op->comm;
    if (comm->size == 1)
        return;
    uint32_t sum = 0;
    if (!weft_comm_is_message(op->kind)) {
        uint32_t hash = hash_collective(op);
        atomic_fetch_add(&op->comm->trail, hash);
        sum = comm->rank == 0 ? (uint32_t)(comm->size - 1) * hash : -hash;
        if (op->rows)
            sum = add_rows(op, sum);
    } else if (op->peer != comm->rank) {
        uint32_t hash =
            note_message(comm, op->peer, op->kind != WEFT_COMM_RECV, op->tag, op->bytes);
        sum = op->kind == WEFT_COMM_RECV ? -hash : hash;
        if (op->kind == WEFT_COMM_SEND_RECV)
            sum -= note_message(comm, op->from, false, op->tag, op->from_bytes);
    }
    for (weft_comm_sum *at = comm->sum; at; at = at->outer)
        atomic_fetch_add(&at->part, sum);
}

double weft_comm_match(const weft_comm *world)
{
    return world->sum ? (double)atomic_load(&world->sum->part) : 0;
}

bool weft_comm_matches(double sum)
{
    return (uint64_t)sum % (UINT64_C(1) << 32) == 0;
}

/* --- naming what does not match ------------------------------------------------------------ */

enum { MAX_PLACES = 24 };

typedef struct standing {
    char group[16];
    int32_t first_rank, size;
    uint32_t trail;
    uint64_t num_collectives;
} standing;

typedef struct standings {
    standing at[MAX_PLACES];
    peer_messages peers[MAX_PEERS];
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

static const peer_messages *find_peer(const standings *of, int rank)
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
            const peer_messages *sent = &all[i].peers[j], none = {0};
            const standings *receiver = find_rank(all, num_ranks, sent->rank);
            if (!receiver)
                continue; /* of another world */
            const peer_messages *received = find_peer(receiver, all[i].world_rank);
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
    pthread_mutex_lock(&peers.lock);
    own.num_peers = peers.count;
    memcpy(own.peers, peers.at, sizeof own.peers);
    pthread_mutex_unlock(&peers.lock);
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
