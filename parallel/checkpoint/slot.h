/* A rank's state in one file of a node's memory: a page of head, then entries as a ring has them
 * (parallel/checkpoint/writer_internal.h): datasets and texts, where the rank is 0, and hyperslabs
 * with their elements. The head is written last, so a file that is cut off amid its writing has
 * none. */
#ifndef WEFT_PARALLEL_CHECKPOINT_SLOT_H
#define WEFT_PARALLEL_CHECKPOINT_SLOT_H

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/staging.h"

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
/* NULL: there is no room. */
void *weft_slot_room(const weft_slot *slot, uint64_t at, size_t bytes);
/* The chain of hashes over one more entry. */
uint64_t weft_slot_hash(uint64_t before, const weft_staging_entry *entry);
/* Fills in what is missing in a head: magic and own hash. */
void weft_slot_seal(weft_slot_head *head);
void weft_slot_write_head(weft_slot *slot, const weft_slot_head *head);

/* False: it holds nothing, or something else. Of an open slot. */
bool weft_slot_read_head(const weft_slot *slot, weft_slot_head *out);
/* The entry at *at, which moves behind it; NULL at the end, or where no entry can lie. */
const weft_staging_entry *weft_slot_next(const weft_slot *slot, const weft_slot_head *head,
                                         uint64_t *at);
/* Whether all hashes are right. */
bool weft_slot_is_whole(const weft_slot *slot, const weft_slot_head *head);

#endif
