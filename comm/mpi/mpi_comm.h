/* The mpi backend's own structures.
 *
 * All collectives are made of MPI_Isend and MPI_Irecv, which the progress engine drives: pieces of
 * bounded size, two rounds in flight, and sends of less urgent purposes when the gate lets them.
 * Tags carry the operation's number, so operations of one group cannot be confused even on
 * different lanes. */
#ifndef WEFT_COMM_MPI_MPI_COMM_H
#define WEFT_COMM_MPI_MPI_COMM_H

#include <mpi.h>

#include "comm/comm_ops.h"
#include "comm/mpi/engine.h"
#include "comm/mpi/gate.h"

/* MPI's answer as a status, with MPI's own text. */
#define WEFT_MPI(call) weft_mpi_status(__FILE__, __LINE__, __func__, #call, (call))
weft_status weft_mpi_status(const char *file, int line, const char *function, const char *call,
                            int code) WEFT_CHECKED;
const char *weft_mpi_error_text(int code, char text[MPI_MAX_ERROR_STRING + 1]);

/* Sizes by which the algorithms cut. The same on every rank. */
typedef struct weft_mpi_limits {
    size_t message_bytes;    /* a piece of a point-to-point message; below INT_MAX */
    size_t piece_bytes;      /* to each peer in one round of a collective */
    size_t row_bytes;        /* the same of a row between nodes, in an all_gather or all_to_all */
    size_t direct_bytes;     /* an all_reduce that brings this much or less in goes in one round */
    size_t background_bytes; /* the most in a message of a purpose behind EXPERT */
    size_t shared_bytes; /* reductions and gathers inside a node, of that much or more, go through
                            the window (shared.h) */
    weft_gate_limits gate;
    int ranks_per_node; /* for tests: groups made from now on take so many neighbours in the world
                           for a node (the last node has the rest); 0: ranks that share memory */
} weft_mpi_limits;
/* For tests: NULL restores the defaults, as a field of 0 does. No operation may be in flight. */
void weft_mpi_set_limits(const weft_mpi_limits *limits);
const weft_mpi_limits *weft_mpi_get_limits(void);
/* `wanted`, or the most that a message of the group's purpose may carry if that is less. */
size_t weft_mpi_message_bytes(const weft_comm *comm, size_t wanted);

/* A set of messages in flight together. */
typedef struct weft_mpi_message {
    int peer;
    size_t bytes;
    bool receive;
    bool queued; /* a send that waits at the gate: tag, buffer and handle are kept for it */
    int tag;
    const void *buffer;
    MPI_Comm handle;
    weft_gate_link link;
    uint64_t number; /* among the operation's sends on that link */
} weft_mpi_message;

typedef struct weft_mpi_batch {
    MPI_Request *requests; /* capacity entries each */
    weft_mpi_message *messages;
    MPI_Status *statuses;
    int *indices;
    int count, num_pending, capacity;
    int num_queued;       /* of the pending ones */
    weft_gate_pass *pass; /* of the operation; NULL: past the gate */
} weft_mpi_batch;

typedef struct weft_mpi_slot {
    weft_mpi_batch batch;
    void *scratch; /* what peers send in a reduction */
    size_t scratch_bytes;
    uint64_t round;
    int phase; /* -1: idle */
} weft_mpi_slot;

enum {
    WEFT_MPI_NUM_SLOTS = 2,
    WEFT_MPI_FIRST_COLLECTIVE_TAG = 1024, /* below: messages */
    WEFT_MPI_TAGS_PER_COLLECTIVE = 8,     /* signatures, then two phases a slot */
};

/* What one running operation needs. The communicator lends it and uses it again. */
typedef struct weft_mpi_work {
    struct weft_mpi_work *next_free, *next_owned;
    bool abandoned;
    weft_mpi_slot slots[WEFT_MPI_NUM_SLOTS];
    size_t *offsets;                  /* 2 * size: where rows start; NULL until needed */
    const void **inputs;              /* size: what a fold reads; NULL until needed */
    struct weft_mpi_sharded *sharded; /* NULL until there was such an operation */
    void (*free_sharded)(struct weft_mpi_sharded *);
} weft_mpi_work;

typedef struct weft_mpi_comm {
    weft_comm base;
    MPI_Comm handle;
    struct weft_mpi_window *window;        /* shared.h; NULL: none. Lent */
    struct weft_mpi_tree *tree;            /* tree.h; NULL: none. Owned */
    weft_mpi_work *free_work, *owned_work; /* guarded by base.lock */
} weft_mpi_comm;

/* run.c. Errors name the peer; the test also finds sizes that differ. Receives are posted at
 * once, sends when the gate lets them pass: at once or in a later test. */
weft_status weft_mpi_post_send(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               const void *buffer, size_t bytes) WEFT_CHECKED;
weft_status weft_mpi_post_recv(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               void *buffer, size_t bytes) WEFT_CHECKED;
weft_status weft_mpi_batch_test(weft_mpi_batch *batch, bool *out_moved,
                                bool *out_done) WEFT_CHECKED;

weft_status weft_mpi_work_take(weft_mpi_comm *comm, weft_mpi_work **out) WEFT_CHECKED;
void weft_mpi_work_give_back(weft_mpi_comm *comm, weft_mpi_work *work);
/* For work with messages in flight, to which MPI may still write: never frees or reuses it. */
void weft_mpi_work_abandon(weft_mpi_work *work);
bool weft_mpi_work_any_abandoned(void);
/* Makes offsets and inputs for a group of `size`. */
weft_status weft_mpi_work_reserve(weft_mpi_work *work, int size) WEFT_CHECKED;
void weft_mpi_work_release(weft_mpi_comm *comm); /* at destroy */
weft_status weft_mpi_slot_reserve(weft_mpi_slot *slot, size_t bytes) WEFT_CHECKED;

/* An operation cut in rounds. Round r runs in slot r % 2, so that messages of one tag are posted in
 * order. run.c calls the step with phase 0 to post the round's first messages, and with the next
 * phase each time all posted messages have arrived. A step that posts nothing ends the round. */
typedef struct weft_mpi_run weft_mpi_run;
typedef weft_status (*weft_mpi_step)(weft_mpi_run *run, weft_mpi_slot *slot);
struct weft_mpi_run {
    weft_mpi_comm *comm;
    const weft_comm_op *op;
    weft_mpi_work *work;
    weft_mpi_step step;
    int first_tag;
    weft_gate_pass pass;
    uint64_t num_rounds, num_started, num_ended;
    size_t piece;     /* bytes, or elements in a reduction */
    void *signatures; /* check.c */
};

/* run.c: init takes the work; run_rounds runs the prepared rounds by the engine and gives the work
 * back. */
weft_status weft_mpi_run_init(weft_mpi_run *run, const weft_comm_op *op) WEFT_CHECKED;
weft_status weft_mpi_run_rounds(weft_mpi_run *run) WEFT_CHECKED;
/* The tag of the messages of a slot's phase, or of the signatures. */
int weft_mpi_tag(const weft_mpi_run *run, const weft_mpi_slot *slot);
int weft_mpi_first_tag(uint64_t sequence); /* of the tags of a collective */

/* collectives.c: fills in step, num_rounds and piece. */
void weft_mpi_prepare(weft_mpi_run *run);

/* sharded.c */
weft_status weft_mpi_run_sharded(const weft_comm_op *op) WEFT_CHECKED;

/* check.c: compares the signatures of a collective. */
weft_status weft_mpi_check(const weft_comm_op *op) WEFT_CHECKED;

/* process.c: this process' engine and gate, and after how many collectives tags repeat. `node`: the
 * ranks that share memory with this one. Starting is collective over it. */
weft_status weft_mpi_process_start(MPI_Comm node) WEFT_CHECKED;
void weft_mpi_process_end(void);
weft_engine *weft_mpi_engine(void);
uint64_t weft_mpi_num_sequences(void);
weft_gate *weft_mpi_gate(void);
/* Instead of this process' own. */
void weft_mpi_use_gate(weft_gate *gate);
/* The link by which this process reaches a member of a group. */
weft_gate_link weft_mpi_link(const weft_comm *comm, int rank);
/* The world ranks of a group's members; malloc'ed. */
weft_status weft_mpi_world_ranks(MPI_Comm handle, int size, int **out) WEFT_CHECKED;
/* The members of a group that share a node with this process, as its ranks in ascending order;
 * malloc'ed. */
weft_status weft_mpi_near_ranks(MPI_Comm handle, int **out, int *out_count) WEFT_CHECKED;

#endif
