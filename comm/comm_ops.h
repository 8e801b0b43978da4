/* What a backend implements, and the base that its communicators embed as first member.
 *
 * The wrappers (comm.c) check arguments, number and record the operation and keep the broken flag;
 * a backend only runs it. Private to comm/. */
#ifndef WEFT_COMM_COMM_OPS_H
#define WEFT_COMM_COMM_OPS_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"

/* name, text; collectives first */
#define WEFT_COMM_KIND_LIST(X)                                                                     \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(GATHER, "gather")                                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(ALL_TO_ALL_SHARDED, "all_to_all_sharded")                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")                                                                                \
    X(SEND_RECV, "send_recv")

typedef enum weft_comm_kind {
#define WEFT_COMM_KIND_ENUM(name, text) WEFT_COMM_##name,
    WEFT_COMM_KIND_LIST(WEFT_COMM_KIND_ENUM)
#undef WEFT_COMM_KIND_ENUM
} weft_comm_kind;

const char *weft_comm_kind_text(weft_comm_kind kind);
static inline bool weft_comm_is_message(weft_comm_kind kind)
{
    return kind >= WEFT_COMM_SEND;
}

/* Of how many blocks of an all_to_all_sharded the tags fit into one sequence number of `inside`: it
 * takes as many numbers there as its blocks need. */
enum { WEFT_COMM_BLOCKS_PER_SEQUENCE = 7 };

/* The two rows of sizes of one all_to_all: `size` entries sent, then `size` received. */
typedef struct weft_comm_rows {
    struct weft_comm_rows *next_free, *next_owned;
    size_t bytes[]; /* 2 * size */
} weft_comm_rows;

/* One operation: small enough to travel by value to a lane. */
typedef struct weft_comm_op {
    weft_comm *comm;
    weft_comm_kind kind;
    uint64_t sequence; /* collectives and messages are numbered apart */
    const void *send;
    void *recv;       /* the buffer of all_reduce and broadcast */
    size_t count;     /* elements: all_reduce the buffer, reduce_scatter and gathers a share */
    size_t bytes;     /* as recorded; broadcast, messages: what is sent or received */
    weft_dtype dtype; /* broadcast, messages and all_to_all: WEFT_U8 */
    weft_reduce reduce;
    int peer; /* root (of a gather: rank 0), or the other end; -1 */
    int tag;  /* messages */
    int from; /* send_recv: the rank received from, and its bytes */
    size_t from_bytes;
    weft_comm_rows *rows; /* all_to_all, all_to_all_sharded */
    /* all_to_all_sharded: the other group, and the operation's first number there. */
    weft_comm *inside;
    uint64_t inside_sequence;
    size_t chunk_bytes;
    weft_doing doing; /* when it was issued */
    weft_doing_place place;
} weft_comm_op;

struct weft_comm_ops {
    const char *name;
    /* Queues the operation on a lane. Backends that run on the host use weft_comm_run_on_lane. */
    weft_status (*enqueue)(weft_lane *lane, const weft_comm_op *op);
    /* Runs it to its end on the calling thread. */
    weft_status (*run)(const weft_comm_op *op);
    weft_status (*split)(weft_comm *parent, int color, int key, const char *name,
                         weft_comm_purpose purpose, weft_comm **out);
    weft_status (*split_node)(weft_comm *parent, weft_comm **out);
    void (*destroy)(weft_comm *comm); /* frees the whole object */
    /* Optional. Backends that enqueue call it in debug mode to compare signatures. */
    weft_status (*check)(const weft_comm_op *op);
};

/* This process' part of the sum over a group, of what it issues there and in groups made of it. */
typedef struct weft_comm_sum {
    atomic_uint_least32_t part;
    atomic_int num_users; /* its group, and the sums of groups made of that */
    struct weft_comm_sum *outer;
} weft_comm_sum;

enum { WEFT_COMM_MAX_PEERS = 32 };

/* Messages between this process and another, to name what does not match. */
typedef struct weft_comm_peer {
    int32_t rank;                                    /* of the world */
    uint32_t num_sent, num_received, sent, received; /* sums of hashes */
    char group[16];                                  /* of the last one */
} weft_comm_peer;

struct weft_comm {
    const weft_comm_ops *ops;
    char name[16];
    weft_comm_purpose purpose;
    int rank, size;
    int *world_ranks; /* size entries; owned. NULL: the world, rank i is i */
    /* Ends the job. A group of one that was split from a world ends that world. */
    void (*abort)(int exit_code);
    atomic_uint_least64_t num_collectives, num_messages;
    atomic_uint_least64_t num_begun;      /* collectives, by the highest number */
    atomic_uint_least32_t trail;          /* of its collectives (match.c) */
    weft_comm_sum *sum;                   /* match.c; NULL: a group of one */
    weft_comm *older_place, *newer_place; /* the list of groups of more than one */
    atomic_bool broken;
    pthread_mutex_t lock;
    weft_comm_rows *free_rows, *owned_rows; /* guarded by lock */
    char broken_by[48];                     /* "all_reduce 12"; guarded by lock */
};

/* For backends. The base takes over `world_ranks` (malloc'ed) on success. */
weft_status weft_comm_base_init(weft_comm *comm, const weft_comm_ops *ops, const char *name,
                                weft_comm_purpose purpose, int rank, int size, int *world_ranks,
                                void (*abort)(int)) WEFT_CHECKED;
void weft_comm_base_release(weft_comm *comm);
/* WEFT_COMM, where it is. */
weft_status weft_comm_check_broken(weft_comm *comm) WEFT_CHECKED;
/* After an operation failed: breaks its groups and puts the operation into the error. Returns
 * `status`. */
weft_status weft_comm_fail(const weft_comm_op *op, weft_status status);
/* NULL: out of memory. */
weft_comm_rows *weft_comm_rows_take(weft_comm *comm);
/* After an operation that needs its rows no longer. Without rows it does nothing. */
void weft_comm_rows_give_back(const weft_comm_op *op);
/* Run an operation with its record and the broken flag: on this thread, or as work of a lane. */
weft_status weft_comm_run_here(const weft_comm_op *op) WEFT_CHECKED;
weft_status weft_comm_run_on_lane(weft_lane *lane, const weft_comm_op *op) WEFT_CHECKED;

/* backend.c. Before the world ends MPI. Collective. */
void weft_comm_stop_backends(void);

/* A self communicator for a group of one rank. */
weft_status weft_comm_self_make(const char *name, weft_comm_purpose purpose, int world_rank,
                                void (*abort)(int), weft_comm **out) WEFT_CHECKED;

/* Opens a record and returns its ticket; closes the ticket's record. Thread-safe. */
uint64_t weft_comm_record_begin(const weft_comm_op *op);
void weft_comm_record_end(uint64_t ticket);
/* Its operation failed: it is in flight no longer, and has no end. */
void weft_comm_record_fail(uint64_t ticket);

/* match.c. When an operation gets its number. */
void weft_comm_match_add(const weft_comm_op *op);
/* What was sent to and received from others, up to so many of them; returns how many. */
int weft_comm_match_peers(weft_comm_peer out[WEFT_COMM_MAX_PEERS]);
/* What `comm` issues counts for `parent` too. */
void weft_comm_match_within(weft_comm *comm, weft_comm *parent);

#endif
