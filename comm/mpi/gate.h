/* The gate: which queued sends may go to the network now.
 *
 * Messages share links, and a transport serves in order: a message under way cannot be called back.
 * So operations of the background (purposes behind EXPERT) keep little in flight, and hold new
 * sends back while a more urgent operation has moving traffic on the same link. The inside of the
 * node and the network between nodes are two links.
 *
 * Ranks of a node share its links, and so the gate: each sees what is urgent to any of them.
 *
 * The gate only delays. A held operation may send another window's worth after `hold_ns`, however
 * busy the link is, and a full window that nobody empties lets one more message pass after
 * `stall_ns`. So each queued send goes out in bounded time, whatever other ranks wait for, and the
 * gate cannot deadlock operations that would end without it. Receives of operations that also send
 * count as traffic: a transport may call a send complete as soon as it has a copy, so what still
 * arrives tells best whether an exchange goes on.
 *
 * Small messages neither hold nor are held: they cost a link nothing, and a rank that waits for one
 * often waits for a late rank.
 *
 * Sends of one operation on one link go in the order in which they were queued.
 *
 * One thread at a time (the engine's driver) uses a pass; any process that maps a gate uses it. The
 * gate knows nothing of MPI or clocks. */
#ifndef WEFT_COMM_MPI_GATE_H
#define WEFT_COMM_MPI_GATE_H

#include <stdatomic.h>

#include "comm/comm.h"

typedef enum weft_gate_link { WEFT_GATE_INSIDE, WEFT_GATE_BETWEEN, WEFT_GATE_LINKS } weft_gate_link;

typedef struct weft_gate_limits {
    size_t small_bytes; /* the most in a small message */
    size_t
        window_bytes[WEFT_GATE_LINKS]; /* in flight: inside a node of one operation, between nodes
                                         of all of a node's; each may have one message anyway */
    int64_t hold_ns;                   /* the most that an operation is held at a time */
    int64_t quiet_ns;                  /* traffic that has not moved for so long holds nobody */
    int64_t stall_ns;                  /* a window full for so long lets one more message pass */
} weft_gate_limits;

/* How many messages of a purpose, but for small ones, are under way on a link, and when one last
 * began or ended. */
typedef struct weft_gate_traffic {
    atomic_uint_least64_t num_pending;
    atomic_int_least64_t moved_ns;
} weft_gate_traffic;

/* One a node, in memory that its ranks share, or one a process. Zero is valid. */
typedef struct weft_gate {
    weft_gate_traffic traffic[WEFT_GATE_LINKS][WEFT_NUM_PURPOSES];
    atomic_uint_least64_t bytes_between; /* of the background, in flight between nodes */
} weft_gate;

typedef enum weft_gate_wait { WEFT_GATE_FREE, WEFT_GATE_FULL, WEFT_GATE_HELD } weft_gate_wait;

/* One operation's place at the gate. */
typedef struct weft_gate_pass {
    weft_gate *gate;
    const weft_gate_limits *limits;
    weft_comm_purpose purpose;
    bool only_receives;
    struct weft_gate_lane {
        uint64_t num_queued, num_sent; /* since the operation began */
        uint64_t num_pending;          /* in the traffic: sends and receives */
        size_t bytes_in_flight;        /* but for small messages */
        size_t allowance; /* bytes that may still pass in spite of more urgent traffic */
        weft_gate_wait wait;
        int64_t since_ns;
    } lanes[WEFT_GATE_LINKS];
} weft_gate_pass;

/* True for the purposes behind EXPERT. */
bool weft_gate_is_background(weft_comm_purpose purpose);

/* `limits` is borrowed. */
void weft_gate_enter(weft_gate_pass *pass, weft_gate *gate, const weft_gate_limits *limits,
                     weft_comm_purpose purpose);
/* Queues a send; returns its number on that link. */
uint64_t weft_gate_queue(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns);
/* True: send it now; it counts as in flight. The caller asks again until then. */
bool weft_gate_admit(weft_gate_pass *pass, weft_gate_link link, uint64_t number, size_t bytes,
                     int64_t now_ns);
/* A send that was admitted is complete. */
void weft_gate_end(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns);
/* A receive is posted; that receive is complete. */
void weft_gate_await(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns);
void weft_gate_arrive(weft_gate_pass *pass, weft_gate_link link, size_t bytes, int64_t now_ns);
/* Before its first receive: the operation sends nothing, so its receives hold nobody. */
void weft_gate_only_receives(weft_gate_pass *pass);
/* At the operation's end, also of one that failed: takes its traffic off the gate. */
void weft_gate_leave(weft_gate_pass *pass);

#endif
