/* What a step reads of the experts' file and writes to it. The records that a rank's step works on
 * are listed once, in order; from then on a cache of as many places as host memory has for them
 * (parallel/records/records.h) takes every step's uses after the other, and what a use has to write
 * back and to read is what it takes then. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_FILE_PRICE_H
#define WEFT_LAUNCHER_PLANNING_FILE_PRICE_H

#include "core/arena.h"
#include "parallel/records/records.h"

typedef struct weft_file_walk weft_file_walk;

/* By set of parts, which go as one batch (parallel/spill/spill.h). */
enum { WEFT_RECORD_SETS = 1 << WEFT_NUM_RECORD_PARTS };
typedef struct weft_file_rates {
    double read_us[WEFT_RECORD_SETS], write_us[WEFT_RECORD_SETS];
} weft_file_rates;
/* Bytes of a set of parts in the file. */
uint64_t weft_record_set_bytes(const weft_records_sizes *sizes, unsigned parts);

/* From the arena. */
weft_status weft_file_walk_make(const weft_records_sizes *sizes, weft_spill_eviction eviction,
                                const weft_file_rates *rates, weft_arena *arena,
                                weft_file_walk **out) WEFT_CHECKED;
/* The first step: uses are listed, and nothing is read or written. Behind it the list is taken for
 * every step's. */
weft_status weft_file_walk_learn(weft_file_walk *walk) WEFT_CHECKED;

/* Microseconds of the file. */
typedef struct weft_file_times {
    double write_us, read_us;
} weft_file_times;
/* A use as weft_records_take is told of it. Errors: WEFT_INTERNAL (not the use that was listed). */
weft_status weft_file_walk_use(weft_file_walk *walk, int32_t record, unsigned reads,
                               unsigned changes, weft_file_times *out) WEFT_CHECKED;
/* As weft_records_drop. */
void weft_file_walk_drop(weft_file_walk *walk, int32_t record, unsigned parts);
/* The place of a record, -1: none. */
int32_t weft_file_walk_place(const weft_file_walk *walk, int32_t record);
/* What all uses until now have read and written. */
typedef struct weft_file_bytes {
    uint64_t read, written;
} weft_file_bytes;
weft_file_bytes weft_file_walk_bytes(const weft_file_walk *walk);

#endif
