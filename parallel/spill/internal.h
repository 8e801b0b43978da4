/* How pieces of a spill file's batches reach the disk: io_uring or threads behind one table. */
#ifndef WEFT_PARALLEL_SPILL_INTERNAL_H
#define WEFT_PARALLEL_SPILL_INTERNAL_H

#include <pthread.h>

#include "core/arena.h"
#include "parallel/spill/spill.h"

/* An area of one transfer. The file (spill.c) sets all but `next`, `queue` and `result`. */
typedef struct weft_spill_piece {
    struct weft_spill_piece *next; /* in a list of the backend's */
    int queue;                     /* the backend's note */
    char *memory;
    uint64_t offset;               /* in the file */
    size_t bytes, done;            /* of the piece; read or written so far */
    size_t asked;                  /* by the request under way, behind `done` */
    int64_t result;                /* of that request: bytes, or -errno */
    int fault;                     /* an errno: the request does nothing and fails with it */
    int num_tries;                 /* requests that moved nothing and may be made again */
    int transfer;                  /* whose */
    size_t part_offset;            /* where in its part */
    bool is_write, is_done, flips; /* flips: a bit of what is read, for tests */
} weft_spill_piece;

typedef struct weft_spill_backend weft_spill_backend;

enum { WEFT_SPILL_WHY_BYTES = 160 };

/* A backend has num_queues queues; one thread uses one. No slot allocates but open. */
typedef struct weft_spill_ops {
    /* On success *out is the backend. WEFT_MEMORY has its record; any other error none, but `why`:
     * the reason in a few words. */
    weft_status (*open)(int fd, int num_queues, int depth, weft_arena *arena,
                        char why[WEFT_SPILL_WHY_BYTES], weft_spill_backend **out);
    void (*close)(weft_spill_backend *); /* nothing is under way */
    /* Takes a request; `start` lets all taken ones begin. At most `depth` are under way. */
    void (*submit)(weft_spill_backend *, int queue, weft_spill_piece *);
    int (*start)(weft_spill_backend *, int queue);
    /* Blocks until a request is over. */
    int (*wait)(weft_spill_backend *, int queue, weft_spill_piece **out);
    /* start and wait return 0, or an errno when the backend is broken. */
} weft_spill_ops;

extern const weft_spill_ops weft_spill_uring, weft_spill_threads;

/* What one running batch has of its own. */
typedef struct weft_spill_caller {
    bool is_busy;
    void *hash;               /* an XXH64_state_t; pieces are hashed in order, so one is enough */
    weft_spill_piece *pieces; /* a ring, twice queue_depth: hashing does not hold up the disk */
} weft_spill_caller;

typedef struct weft_spill_record_part {
    uint64_t hash;
    bool is_written;
} weft_spill_record_part;

struct weft_spill {
    weft_spill_options options; /* without zeros */
    weft_arena arena;
    int fd;
    bool is_direct;
    uint64_t record_bytes, part_offset[WEFT_SPILL_MAX_PARTS];
    weft_spill_record_part *record_parts; /* num_records x num_parts */
    const weft_spill_ops *ops;            /* NULL: not open */
    weft_spill_backend *backend;
    pthread_mutex_t mutex; /* of what follows */
    pthread_cond_t is_free;
    weft_spill_caller callers[WEFT_SPILL_MAX_CALLERS];
    weft_spill_stats stats;
};

/* Of the file, for tests. */
int weft_spill_descriptor(const weft_spill *spill);

#endif
