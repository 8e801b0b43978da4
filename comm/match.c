/* Whether the ranks of groups issue the same.
 *
 * Each collective adds to this process' part of a sum over the world a hash of what it is: rank 0
 * of a group of n adds n - 1 times its hash, each other rank takes its own away. A message adds its
 * hash where it is sent, and takes it away where it is received; so does each row of an all_to_all.
 * What all ranks issue alike cancels out. */
#include <inttypes.h>
#include <string.h>

#include "comm/comm_ops.h"

static struct {
    pthread_mutex_t lock;
    int count;
    weft_comm_peer at[WEFT_COMM_MAX_PEERS];
} peers = {.lock = PTHREAD_MUTEX_INITIALIZER};

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
    if (i < WEFT_COMM_MAX_PEERS) {
        weft_comm_peer *p = &peers.at[i];
        if (i == peers.count)
            peers.at[peers.count++] = (weft_comm_peer){.rank = other};
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

int weft_comm_match_peers(weft_comm_peer out[WEFT_COMM_MAX_PEERS])
{
    pthread_mutex_lock(&peers.lock);
    const int count = peers.count;
    memcpy(out, peers.at, sizeof peers.at);
    pthread_mutex_unlock(&peers.lock);
    return count;
}
