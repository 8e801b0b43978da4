/* The gate: which queued sends may go to the network now.
 *
 * Messages share links, and what is on its way already cannot be called back: a transport serves
 * in order. So operations of the background (purposes behind EXPERT) keep little in flight, and
 * hold new sends back while a more urgent operation has moving traffic on the same link. Traffic
 * inside the node and between nodes are links apart.
 *
 * Ranks of a node share its links, hence the gate: each sees what is urgent to any of them.
 *
 * Never more than delay: a held operation may send a window's worth again after `hold_ns`, however
 * busy the link is, and a full window that nobody empties lets one more message pass after
 * `stall_ns`. Whatever other ranks wait for, each queued send goes out in bounded time, so the gate
 * cannot deadlock operations that would end without it. Receives of operations that send too are
 * counted as traffic: a transport may say that a send is complete as soon as it has a copy, so that
 * what still arrives tells best whether an exchange goes on.
 *
 * Small messages neither hold nor are held: they cost a link nothing, and who waits for one often
 * waits for a rank that is late.
 *
 * Sends of one operation on one link go in the order in which they were queued.
 *
 * A pass is used by one thread at a time (the engine's driver), a gate by any process that maps it.
 * Knows nothing of MPI, nor of clocks. */
#ifndef WEFT_COMM_MPI_GATE_H
#define WEFT_COMM_MPI_GATE_H

#include <stdatomic.h>

#include "comm/comm.h"

typedef enum weft_link { WEFT_LINK_INSIDE, WEFT_LINK_BETWEEN, WEFT_NUM_LINKS } weft_link;

typedef struct weft_gate_limits {
    size_t small_bytes;                  /* the most in a small message */
    size_t window_bytes[WEFT_NUM_LINKS]; /* in flight, of an operation inside a node, of all of a
                                            node's between; one message each may exceed it */
    int64_t hold_ns;                     /* the most that an operation is held at a time */
    int64_t quiet_ns;                    /* traffic that has not moved for so long holds nobody */
    int64_t stall_ns; /* after so long without an end, one message more than the window */
} weft_gate_limits;

/* Messages of a purpose, but for small ones, that are under way on a link, and when one last began
 * or ended. */
typedef struct weft_gate_traffic {
    atomic_uint_least64_t num_pending;
    atomic_int_least64_t moved_ns;
} weft_gate_traffic;

/* One a node, in memory that its ranks share, or one a process. Zero is valid. */
typedef struct weft_gate {
    weft_gate_traffic traffic[WEFT_NUM_LINKS][WEFT_NUM_PURPOSES];
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
    } lanes[WEFT_NUM_LINKS];
} weft_gate_pass;

/* The purposes that keep out of the others' way. */
bool weft_gate_is_background(weft_comm_purpose purpose);

/* `limits` is borrowed. */
void weft_gate_enter(weft_gate_pass *pass, weft_gate *gate, const weft_gate_limits *limits,
                     weft_comm_purpose purpose);
/* Queues a send; returns its number on that link. */
uint64_t weft_gate_queue(weft_gate_pass *pass, weft_link link, size_t bytes, int64_t now_ns);
/* True: send it now, it counts as in flight. Asked again and again until then. */
bool weft_gate_admit(weft_gate_pass *pass, weft_link link, uint64_t number, size_t bytes,
                     int64_t now_ns);
/* A send that was admitted is complete. */
void weft_gate_end(weft_gate_pass *pass, weft_link link, size_t bytes, int64_t now_ns);
/* A receive is posted; it is complete. */
void weft_gate_await(weft_gate_pass *pass, weft_link link, size_t bytes, int64_t now_ns);
void weft_gate_arrive(weft_gate_pass *pass, weft_link link, size_t bytes, int64_t now_ns);
/* Before its first: the operation sends nothing, and its receives hold nobody. */
void weft_gate_only_receives(weft_gate_pass *pass);
/* At the operation's end; forgets what it leaves behind when it failed. */
void weft_gate_leave(weft_gate_pass *pass);

#endif
