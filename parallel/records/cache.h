/* Which of a spill file's records are in host memory: C places over R records. Pure.
 *
 * The caller says the order in which it will use records, then uses them in that order, each in a
 * place. Where a record is in no place, one is emptied for it:
 *   program  the one whose record is used again last, or never (Belady 1966, MIN: no other choice
 *            misses less often)
 *   lru      the one whose record was used least recently; the order need not be known
 * Of records that are never used again those go first that are unchanged, and need no writing.
 * The same uses give the same choices on every machine. A choice is made, not carried out: the
 * caller writes back what a place holds before it fills the place, and waits for a place's last use
 * where it reads ahead. Not thread-safe. */
#ifndef WEFT_PARALLEL_RECORDS_CACHE_H
#define WEFT_PARALLEL_RECORDS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"

typedef struct weft_spill_cache weft_spill_cache;

typedef enum weft_spill_eviction { WEFT_SPILL_PROGRAM, WEFT_SPILL_LRU } weft_spill_eviction;

/* Of the arena; all places are empty. num_places and num_records: at least 1. max_uses: of
 * weft_spill_cache_plan (0 for LRU will do, and with weft_spill_cache_expect). Nothing else
 * allocates. Errors: WEFT_INTERNAL, WEFT_MEMORY. */
weft_status weft_spill_cache_create(int32_t num_places, int32_t num_records, size_t max_uses,
                                    weft_spill_eviction eviction, weft_arena *arena,
                                    weft_spill_cache **out) WEFT_CHECKED;

/* The uses to come, which replace those planned before; what is in places stays. `repeats`: after
 * the last one the first follows, without end; else nothing is known of what comes behind. O(uses
 * + places). The array may go after the call. Errors: WEFT_INTERNAL (too many uses; no such
 * record). */
weft_status weft_spill_cache_plan(weft_spill_cache *cache, const int32_t *uses, size_t num_uses,
                                  bool repeats) WEFT_CHECKED;

typedef struct weft_spill_use {
    int32_t place;
    bool is_miss;     /* the record has to be read into the place, or made there */
    int32_t evicted;  /* a miss: the record that the place held; -1: it was empty */
    bool writes_back; /* that record was changed: write it first */
} weft_spill_use;

/* The next use. `changes`: the record then differs from what the file has. O(log places). Errors:
 * WEFT_INTERNAL (not the use planned next, with PROGRAM; no such record). */
weft_status weft_spill_cache_use(weft_spill_cache *cache, int32_t record, bool changes,
                                 weft_spill_use *out) WEFT_CHECKED;

/* With PROGRAM and max_uses 0 there is no plan: the caller says when a record is used next, by
 * numbers that rise with time, before or between its uses. NEVER until it does. O(log places). */
void weft_spill_cache_expect(weft_spill_cache *cache, int32_t record, uint64_t when);

/* The place that has the record, -1: none. */
int32_t weft_spill_cache_place(const weft_spill_cache *cache, int32_t record);

#endif
