/* The copies of ranks' states that nodes hold for each other, in a writer's process: it puts its
 * rank's state into a slot of its own node and sends the same bytes to
 * peers on other nodes over TCP, and a thread of it fills the slots of the ranks whose peer this
 * one is. Each state has two slots, taken in turn, so that one is whole while the other is filled.
 *
 * One connection for each peer and state: a hello, entries behind their lengths, a length of 0, the
 * head; the peer answers with one byte. */
#ifndef WEFT_PARALLEL_CHECKPOINT_KEEPER_H
#define WEFT_PARALLEL_CHECKPOINT_KEEPER_H

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/staging.h"

/* A slot is a rank's state in one file of a node's memory: a page of head, then entries as a ring
 * has them (parallel/checkpoint/writer_internal.h): datasets and texts, where the rank is 0, and
 * hyperslabs with their elements. The head is written last, so a file that is cut off amid its
 * writing has none. */
enum { WEFT_SLOT_FRONT_BYTES = 4096 };

typedef struct weft_slot_head {
    uint64_t magic;
    int64_t rank, world; /* whose state it is, of so many */
    weft_checkpoint_info info;
    uint64_t bytes; /* of the entries */
    uint64_t hash;  /* of the entries but for elements, which have their shards' */
    uint64_t own;   /* of this head, up to here */
} weft_slot_head;

typedef struct weft_slot {
    char *memory; /* NULL: none */
    size_t bytes; /* of the file */
} weft_slot;

/* Makes a file with room for so many bytes of entries; its memory is there when it returns.
 * WEFT_MEMORY, WEFT_FILE. */
weft_status weft_slot_create(const char *path, size_t capacity) WEFT_CHECKED;
/* Maps a file, to write or to read it. WEFT_FILE. */
weft_status weft_slot_open(const char *path, bool writes, weft_slot *out) WEFT_CHECKED;
void weft_slot_release(weft_slot *slot);

/* Begins anew: without a head it holds nothing. */
void weft_slot_clear(weft_slot *slot);

/* False: it holds nothing, or something else. Of an open slot. */
bool weft_slot_read_head(const weft_slot *slot, weft_slot_head *out);
/* The entry at *at, which moves behind it; NULL at the end, or where no entry can lie. */
const weft_staging_entry *weft_slot_next(const weft_slot *slot, const weft_slot_head *head,
                                         uint64_t *at);
/* Whether all hashes are right. */
bool weft_slot_is_whole(const weft_slot *slot, const weft_slot_head *head);

enum { WEFT_COPY_TOKEN_BYTES = 16, WEFT_COPY_FOLDER_BYTES = 512, WEFT_COPY_SLOTS = 2 };
enum { WEFT_COPY_TIMEOUT_S = 60 }; /* of one send, and of the peer's answer */

/* One end of a copy: a peer, or a rank whose states are held here. */
typedef struct weft_copy_end {
    int32_t rank;
    uint32_t address; /* IPv4; network order, as the port; of a peer */
    uint16_t port;
} weft_copy_end;

/* What a rank's writer is to do, in front of num_peers and then num_held ends. */
typedef struct weft_copy_plan {
    unsigned char token[WEFT_COPY_TOKEN_BYTES]; /* of this job: others are not listened to */
    char folder[WEFT_COPY_FOLDER_BYTES];        /* of the slots, which are there */
    int32_t rank, world, num_peers, num_held;
} weft_copy_plan;

/* FOLDER/rank-3.1 */
weft_status weft_copy_path(const char *folder, int rank, int slot, char *out,
                           size_t capacity) WEFT_CHECKED;

typedef struct weft_keeper weft_keeper;

/* Opens the socket, at `address` (0: the loopback's). *out_port: network order. WEFT_COMM. */
weft_status weft_keeper_create(uint32_t address, weft_keeper **out,
                               uint16_t *out_port) WEFT_CHECKED;
/* Maps the slots and begins to listen. It goes on until the process ends. */
weft_status weft_keeper_start(weft_keeper *keeper, const weft_copy_plan *plan) WEFT_CHECKED;

/* One state: into slot `turn`, from now on without what was there. */
weft_status weft_keeper_begin(weft_keeper *keeper, const weft_checkpoint_info *info,
                              int turn) WEFT_CHECKED;
/* A hyperslab's hash is filled in. */
weft_status weft_keeper_put(weft_keeper *keeper, const weft_staging_entry *entry) WEFT_CHECKED;
/* Waits until all peers have it. */
weft_status weft_keeper_end(weft_keeper *keeper) WEFT_CHECKED;
/* Gives the state up, if one was begun and has not ended. */
void weft_keeper_drop(weft_keeper *keeper);

#endif
