/* What a rank hands to its writer's process: entries in memory that both map, one behind the other,
 * in a ring of fixed size. One process puts, the other takes. Whoever has to wait says so, and the
 * other wakes it, through the socket between them (parallel/checkpoint/checkpoint.h). */
#ifndef WEFT_PARALLEL_CHECKPOINT_STAGING_H
#define WEFT_PARALLEL_CHECKPOINT_STAGING_H

#include <stdatomic.h>
#include <stdint.h>

#include <weft/status.h>

typedef struct weft_staging_entry {
    uint64_t kind;  /* the user's, from 1 */
    uint64_t bytes; /* of what follows it */
} weft_staging_entry;

/* Bytes are counted from the ring's beginning and never start over. */
typedef struct weft_staging_shared {
    atomic_uint_fast64_t put, taken;
    atomic_int taker_waits, putter_waits;
} weft_staging_shared;

typedef struct weft_staging {
    weft_staging_shared *shared; /* NULL: not mapped */
    char *memory;
    size_t capacity;
    uint64_t filled; /* the putter's: what lies behind shared->put is not shown yet */
} weft_staging;

/* What an entry takes of the capacity. */
size_t weft_staging_entry_bytes(size_t bytes);
/* Maps the same in the taker. */
weft_status weft_staging_join(int file, size_t capacity, weft_staging *out) WEFT_CHECKED;
void weft_staging_release(weft_staging *ring);

/* The putter. Room for an entry, which the caller fills; NULL: not now. One that is no longer than
 * the capacity gets room in the end. */
void *weft_staging_put(weft_staging *ring, uint64_t kind, size_t bytes);
/* Shows to the taker what was put; true: it is to be woken. */
bool weft_staging_show(weft_staging *ring);
/* Says that the putter waits for room, before it looks for it once more. */
void weft_staging_wait_for_room(weft_staging *ring);

/* The taker. The next entry, in front of its bytes; NULL: none. */
const weft_staging_entry *weft_staging_next(weft_staging *ring);
/* Gives its room back; true: the putter is to be woken. */
bool weft_staging_take(weft_staging *ring, const weft_staging_entry *entry);
/* Says that the taker waits for entries, before it looks for one once more. */
void weft_staging_wait_for_entries(weft_staging *ring);

#endif
