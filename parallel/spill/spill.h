/* A spill file: experts' weights and optimizer state that host memory does not hold.
 *
 * The file has records of one size, one an expert bucket. A record has parts (weights, state) that
 * are read and written each by itself. The file is allocated whole when it is created and has no
 * name: it is gone with the process, however that ends. It bypasses the page cache (O_DIRECT) where
 * the file system can; one warning says so where it cannot.
 *
 * A batch of transfers is cut in pieces, of which up to queue_depth are under way at once, in the
 * batch's order, by io_uring or by a pool of threads. weft_spill_run returns when all are over, so
 * a lane's function may call it (weft_lane_submit). Up to num_callers threads run batches at once;
 * more wait for their turn.
 *
 * What is read is compared with the xxh64 of what was written, which stays in memory. Any fault is
 * one line with the record's label, the part, the byte and the system's words, and after it no part
 * of a read batch may be used. Reads and writes that end early go on where they ended. */
#ifndef WEFT_PARALLEL_SPILL_SPILL_H
#define WEFT_PARALLEL_SPILL_SPILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

typedef struct weft_spill weft_spill;

/* Memory of transfers and the parts in the file begin at multiples of this many bytes, which every
 * disk's O_DIRECT takes. */
enum { WEFT_SPILL_ALIGN = 4096, WEFT_SPILL_MAX_PARTS = 8, WEFT_SPILL_MAX_CALLERS = 8 };

typedef enum weft_spill_io {
    WEFT_SPILL_AUTO,    /* io_uring where it works, else threads and a warning that says why */
    WEFT_SPILL_URING,   /* io_uring; an error where it does not work */
    WEFT_SPILL_THREADS, /* pread and pwrite by a pool of up to 8 threads */
} weft_spill_io;
const char *weft_spill_io_text(weft_spill_io io); /* "auto", "uring", "threads"; static */

typedef struct weft_spill_part {
    const char *name; /* in errors: "weights"; borrowed */
    size_t bytes;     /* at least 1 */
} weft_spill_part;

/* Zero but for folder, num_records, num_parts and parts is valid. What it points to is borrowed
 * while the file lives. */
typedef struct weft_spill_options {
    const char *folder;
    size_t num_records;
    int num_parts;
    weft_spill_part parts[WEFT_SPILL_MAX_PARTS];
    const char *const *labels; /* of the records: "layer 3, expert 17"; NULL: "record 17" */
    weft_spill_io io;
    bool buffered;      /* through the page cache, without asking for O_DIRECT */
    size_t piece_bytes; /* 0: 1 MiB; a multiple of WEFT_SPILL_ALIGN */
    int queue_depth;    /* pieces of a batch under way; 0: 16; at most 1024 */
    int num_callers;    /* 0: 2 */
} weft_spill_options;

/* Bytes that a part takes in the file and in a transfer's memory: rounded up to the alignment. */
static inline size_t weft_spill_padded_bytes(size_t bytes)
{
    return (bytes + WEFT_SPILL_ALIGN - 1) / WEFT_SPILL_ALIGN * WEFT_SPILL_ALIGN;
}
/* Whether the folder takes a file without a name; makes none. Errors: WEFT_FILE. */
weft_status weft_spill_try(const char *folder) WEFT_CHECKED;
/* Bytes of the file with these records and parts. Errors: WEFT_CONFIG where no file is that large.
 */
weft_status weft_spill_file_bytes(const weft_spill_options *options, uint64_t *out) WEFT_CHECKED;

/* Allocates the file. No record has been written. Errors: WEFT_CONFIG (io_uring does not work, with
 * the reason), WEFT_FILE (the folder; no room, with the bytes wanted and free), WEFT_MEMORY,
 * WEFT_DEVICE (no thread), WEFT_INTERNAL (options out of range). */
weft_status weft_spill_create(const weft_spill_options *options, weft_spill **out) WEFT_CHECKED;
/* No batch may be running. NULL is legal. */
void weft_spill_destroy(weft_spill *spill);

/* One part of one record, from memory to file or back. */
typedef struct weft_spill_transfer {
    size_t record;
    int part;
    bool is_write;
    void *memory; /* aligned; padded bytes, all of which are written or overwritten */
} weft_spill_transfer;

/* Runs the transfers beside each other: their parts and, but for writes, their memory are
 * distinct, and no other thread works on either. Blocks; allocates nothing. When it returns, with
 * or without an error, nothing uses the memory any more; after an error the parts that were to be
 * written are unwritten. Errors: WEFT_FILE, WEFT_INTERNAL (no such part; memory that is not
 * aligned; a part read that was never written). */
weft_status weft_spill_run(weft_spill *spill, const weft_spill_transfer *transfers,
                           int num_transfers) WEFT_CHECKED;

typedef struct weft_spill_stats {
    uint64_t bytes_read, bytes_written; /* padding included */
    uint64_t num_reads, num_writes;     /* system calls or requests */
    /* Summed over batches: from the first read (write) asked for to the last one's end. */
    double read_us, write_us;
} weft_spill_stats;
/* Of all batches that are over. Any thread. */
void weft_spill_get_stats(weft_spill *spill, weft_spill_stats *out);

weft_spill_io weft_spill_io_used(const weft_spill *spill); /* URING or THREADS */
bool weft_spill_is_direct(const weft_spill *spill);        /* false: through the page cache */

/* Failure injection for tests: the n-th call to the system from now on (0: never), counted over all
 * spill files, has a fault. An errno: the call fails with it. SHORT: a read or write moves half of
 * what is asked. FLIP: a read has a wrong bit. Neither concerns calls that set up. Returns how
 * many calls the last fault was still away, 0 when it has happened. */
enum { WEFT_SPILL_FAULT_SHORT = -1, WEFT_SPILL_FAULT_FLIP = -2 };
int weft_spill_fail_after(int n, int fault);
/* 0, or the fault of the call that is about to be made. */
int weft_spill_next_fault(void);

#endif
