/* Expert buckets in a file (parallel/spill/spill.h), and places in pinned host memory for some of
 * them.
 *
 * A record is a bucket's weights, gradient and optimizer state. Who works on one takes it: it gets
 * a place, what is needed of it is read there, and the part pointers are good for what is enqueued
 * until the next record is taken. Which place that is, is chosen when work is enqueued
 * (parallel/records/cache.h); reading, and before it writing back what the place held, are enqueued
 * on a lane of their own, by tasks of the program (schedule/experts/experts.h) or, where no program
 * says so, as the record is taken. Each place has one event, a chain: work on a record waits for
 * the work enqueued on its place before, whichever record and lane that was on. So nothing waits
 * for what is enqueued later, and one place is enough to go on.
 *
 * A part that was never changed is zero. One thread takes records; all lanes are of one device. */
#ifndef WEFT_PARALLEL_RECORDS_RECORDS_H
#define WEFT_PARALLEL_RECORDS_RECORDS_H

#include <weft/device.h>

#include "parallel/spill/spill.h"
#include "parallel/records/cache.h"

typedef enum weft_record_part {
    WEFT_RECORD_WEIGHTS,
    WEFT_RECORD_GRADIENT,
    WEFT_RECORD_STATE, /* masters or their low halves, exp_avg, exp_avg_sq */
    WEFT_NUM_RECORD_PARTS
} weft_record_part;
/* Sets of parts. */
enum {
    WEFT_RECORD_W = 1 << WEFT_RECORD_WEIGHTS,
    WEFT_RECORD_G = 1 << WEFT_RECORD_GRADIENT,
    WEFT_RECORD_S = 1 << WEFT_RECORD_STATE
};

/* Bytes of each part of the largest record, 0: records have none. */
typedef struct weft_records_sizes {
    size_t part_bytes[WEFT_NUM_RECORD_PARTS];
    int32_t num_records, num_places;
} weft_records_sizes;

/* Places for that share of the records, from 0 to 1, at least WEFT_RECORDS_LEAST where there are so
 * many. Fills num_places. Pure. */
enum { WEFT_RECORDS_LEAST = 2 };
void weft_records_choose(weft_records_sizes *sizes, double share);
/* Of a place; of the pinned memory for all; of the file. */
uint64_t weft_records_place_bytes(const weft_records_sizes *sizes);
uint64_t weft_records_pinned_bytes(const weft_records_sizes *sizes);
uint64_t weft_records_file_bytes(const weft_records_sizes *sizes);

typedef struct weft_records_options {
    weft_records_sizes sizes;
    const char *folder; /* for a file without a name; borrowed, as labels are */
    const char *const *labels;
    weft_spill_io io;
    weft_spill_eviction eviction;
} weft_records_options;

typedef struct weft_records weft_records;

/* Errors: those of weft_spill_create; WEFT_MEMORY; WEFT_DEVICE. */
weft_status weft_records_create(weft_device *device, const weft_records_options *options,
                                weft_records **out) WEFT_CHECKED;
void weft_records_destroy(weft_records *records); /* waits for its lane; NULL is legal */

/* A place for a record that has none: what of another's in it was changed is written. */
weft_status weft_records_make_room(weft_records *records, int32_t record) WEFT_CHECKED;
/* What of these parts is not yet in the record's place is read. WEFT_INTERNAL: it has none. */
weft_status weft_records_read(weft_records *records, int32_t record, unsigned parts) WEFT_CHECKED;
/* Both, where nobody did; then work on a record begins on `lane`, which waits until it may. reads:
 * the parts that are needed; changes: those that are changed, all of a part that is not among
 * `reads`. Errors: WEFT_INTERNAL (no such record); the lanes' own, such as a read's. */
weft_status weft_records_take(weft_records *records, int32_t record, unsigned reads,
                              unsigned changes, weft_lane *lane) WEFT_CHECKED;
/* Where a part of a record lies that was taken last; NULL: it is in no place. */
void *weft_records_at(const weft_records *records, int32_t record, weft_record_part part);
/* Work on the record that was taken is enqueued. */
weft_status weft_records_give(weft_records *records, int32_t record, weft_lane *lane) WEFT_CHECKED;
/* The parts are of no use any more: they are not written, and once out of their place they count as
 * never changed. */
void weft_records_drop(weft_records *records, int32_t record, unsigned parts);
/* Work on a record's weights and state that is put off until they are read: owed by it, it is
 * enqueued by `pay` on the lane of reads and writes, behind the read, with the parts in their place
 * and the gradient zero. */
typedef weft_status (*weft_record_payment)(void *context, int32_t record, weft_lane *lane);
void weft_records_set_payment(weft_records *records, weft_record_payment pay, void *context);
void weft_records_owe(weft_records *records, int32_t record);
/* Whether it still does: neither paid, nor its state made anew without being read. */
bool weft_records_owes(const weft_records *records, int32_t record);
/* When the record is used next, for eviction by program; any rising numbers. */
void weft_records_expect(weft_records *records, int32_t record, uint64_t when);
/* Waits for the lane of reads and writes. */
weft_status weft_records_drain(weft_records *records) WEFT_CHECKED;
/* That lane; borrowed. */
weft_lane *weft_records_lane(const weft_records *records);

typedef struct weft_records_counts {
    uint64_t num_takes, num_misses;
    weft_spill_stats file;
} weft_records_counts;
weft_records_counts weft_records_counted(weft_records *records);

#endif
