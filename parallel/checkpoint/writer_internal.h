/* What a rank and its writer's process say to each other, and the rank's side of it. */
#ifndef WEFT_PARALLEL_CHECKPOINT_WRITER_INTERNAL_H
#define WEFT_PARALLEL_CHECKPOINT_WRITER_INTERNAL_H

#include <sys/types.h>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/internal.h"
#include "parallel/checkpoint/staging.h"

/* Entries of the ring, in this order. An error makes the writer pass over all up to DROP. */
typedef enum weft_writer_entry {
    WEFT_WRITER_OPEN = 1, /* weft_writer_open */
    WEFT_WRITER_DATASETS, /* weft_stored [] */
    WEFT_WRITER_SLAB,     /* weft_stored_shard, its elements */
    WEFT_WRITER_FLUSH,    /* answers the hashes of the slabs, DONE */
    WEFT_WRITER_SHARDS,   /* weft_stored_shard [] */
    WEFT_WRITER_VERIFY,   /* those shards; answers DONE */
    WEFT_WRITER_CONFIG,   /* characters */
    WEFT_WRITER_TOKENIZER,
    WEFT_WRITER_PUBLISH, /* those shards, which are all; answers DONE: ready for OPEN */
    WEFT_WRITER_DROP,    /* gives the save up; answers DROPPED */
    WEFT_WRITER_LISTEN,  /* uint32_t, an address; answers DONE: `count` is its port there */
    WEFT_WRITER_COPIES   /* weft_copy_plan and its ends; answers DONE */
} weft_writer_entry;

typedef struct weft_writer_open {
    weft_checkpoint_info info;
    weft_checkpoint_keep keep;
    bool leads;  /* it is rank 0's */
    bool copies; /* into nodes' memory, slot `turn`; DATASETS, CONFIG and TOKENIZER of rank 0,
                  * slabs, and FLUSH, behind which the copies are there */
    int turn;
    char dir[4096];
} weft_writer_open;

typedef enum weft_writer_answer_kind {
    WEFT_WRITER_AWAKE, /* there may be room */
    WEFT_WRITER_HASHES,
    WEFT_WRITER_DONE,
    WEFT_WRITER_DROPPED
} weft_writer_answer_kind;

enum { WEFT_WRITER_HASHES_AT_ONCE = 64 };

/* A message of the socket. The rank's own messages are the ring's capacity, a size_t, and then a
 * byte wherever entries are there. */
typedef struct weft_writer_answer {
    int kind, status; /* weft_status */
    int count;        /* of hashes; what else is answered */
    double us;        /* that the phase took */
    union {
        uint64_t hashes[WEFT_WRITER_HASHES_AT_ONCE];
        char text[WEFT_ERROR_TEXT_BYTES];
    } of;
} weft_writer_answer;

/* The most of a list or a text that one entry has. */
enum { WEFT_WRITER_LIST_BYTES = 1 << 16 };

/* Of the save that is under way, the same on all ranks. */
typedef enum weft_writer_phase {
    WEFT_WRITER_IDLE,
    WEFT_WRITER_WRITING,
    WEFT_WRITER_VERIFYING,
    WEFT_WRITER_PUBLISHING,
    WEFT_WRITER_COPYING,
    WEFT_WRITER_DROPPING
} weft_writer_phase;

/* Of copies in other nodes' memory. */
typedef struct weft_copies {
    bool on;
    int turn; /* the slot that is filled next, the same on all ranks */
    weft_arena arena;
    weft_stored_list datasets;
    const char *dir, *folder; /* that has their name; of this node's slots */
    int *held;                /* the ranks whose slots lie there */
    int num_held;
    size_t bytes; /* of all of them */
} weft_copies;

struct weft_checkpoint_writer {
    pid_t pid; /* 0: it has ended */
    int socket, memory;
    weft_staging ring;
    weft_comm *world;
    weft_writer_phase phase;
    bool off;
    bool answered; /* this rank's part of the phase is done */
    int count;     /* of that answer */
    bool lost;
    double limit_s;   /* 0: none */
    double looked_us; /* when this rank last looked whether its writer gets on, */
    double silent_s;  /* how long it did not by then, */
    double stopped_s; /* of that how long it was stopped by a signal, and */
    uint64_t taken;   /* what of the ring it had taken */
    weft_error error; /* the writer's, of this save */
    size_t num_hashes;
    weft_save save;
    const char *config_text, *tokenizer_text; /* in the save's arena */
    weft_writer_report report;
    weft_copies copies;
};

/* What a slab's entry has. */
size_t weft_writer_slab_bytes(const weft_slab *slab, int num_dims);
/* What a save's slabs take of a ring, and the largest entry. */
weft_status weft_writer_find_bytes(const weft_optimizer *optimizer, size_t *all,
                                   size_t *largest) WEFT_CHECKED;
/* What a rank may take of what its node has; the ranks of a node share it. */
uint64_t weft_writer_memory_left(void);
/* The writer sees what was put, whole. */
weft_status weft_writer_show(weft_checkpoint_writer *writer) WEFT_CHECKED;
weft_status weft_writer_put_bytes(weft_checkpoint_writer *writer, weft_writer_entry kind,
                                  const void *bytes, size_t count) WEFT_CHECKED;
/* In entries of whole items. */
weft_status weft_writer_put_list(weft_checkpoint_writer *writer, weft_writer_entry kind,
                                 const void *items, size_t count, size_t item_bytes) WEFT_CHECKED;
weft_status weft_writer_put_text(weft_checkpoint_writer *writer, weft_writer_entry kind,
                                 const char *text) WEFT_CHECKED;
/* All slabs of the save, whose lane and datasets are there. */
weft_status weft_writer_put_state(weft_checkpoint_writer *writer) WEFT_CHECKED;
/* The writer's part of the next phase has begun. */
void weft_writer_enter(weft_checkpoint_writer *writer, weft_writer_phase next, bool takes_part);
/* Waits for the answer to what was put, outside of saves; its error. A writer that has ended is
 * found by its word, as after any save. */
weft_status weft_writer_wait(weft_checkpoint_writer *writer) WEFT_CHECKED;
/* Gives the save up on all ranks. Another follows not before every writer has heard of it. The
 * record stays; returns `status`. */
weft_status weft_writer_drop(weft_checkpoint_writer *writer, weft_status status) WEFT_CHECKED;

/* The writer's process, until the rank closes its end of the socket. */
void weft_writer_serve(int socket, int memory);

#endif
