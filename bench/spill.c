/* Rate of a spill file beside the disk's own.
 *
 *     bench_spill [--folder DIR] [--records N] [--mib M] [--rounds N] [--io auto|uring|threads]
 *                 [--depth D] [--piece-kib K] [--json]
 *
 * N records (16) of M MiB (16), one part in four weights, as bf16 training has. Each round measures
 * in turn, each over all records: reads, writes, and a write of one record beside a read of
 * another, as a cache does that makes room. `disk` is one thread that reads or writes a file of its
 * own from end to end by pread and pwrite with O_DIRECT, as dd does, in blocks of 1 MiB and of a
 * record: those with the larger median. `spill` takes records in drawn order, one batch a record
 * (or pair). Rates are MB/s of bytes moved, reads and writes together; medians of N rounds (9), and
 * the quartiles of the rounds' ratios. Both files have been written once before. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "core/clock.h"
#include "core/rng.h"
#include "parallel/spill/spill.h"

enum { MAX_ROUNDS = 1000, MAX_RECORDS = 4096 };
typedef enum kind { READ, WRITE, BOTH, NUM_KINDS } kind;
static const char *const kind_names[] = {"read", "write", "interleaved"};

typedef struct bench {
    const char *folder;
    size_t num_records, record_bytes;
    int rounds, depth;
    size_t piece_bytes;
    bool is_json;
    weft_spill_io io;
    int fd; /* the plain file */
    weft_spill *spill;
    char *memory[2]; /* to read into, to write from */
    size_t order[MAX_RECORDS];
} bench;

static void fail(const char *what)
{
    fprintf(stderr, "bench_spill: %s: %s\n", what, strerror(errno));
    exit(6);
}

static void usage(void)
{
    fprintf(stderr, "usage: bench_spill [--folder DIR] [--records N] [--mib M] [--rounds N] "
                    "[--io auto|uring|threads] [--depth D] [--piece-kib K] [--json]\n");
    exit(2);
}

/* --- the disk's own ------------------------------------------------------------------------ */

static void plain_block(const bench *b, bool is_write, size_t bytes, uint64_t offset)
{
    char *memory = b->memory[is_write];
    ssize_t moved = is_write ? pwrite(b->fd, memory, bytes, (off_t)offset)
                             : pread(b->fd, memory, bytes, (off_t)offset);
    if (moved != (ssize_t)bytes)
        fail("the plain file");
}

/* MB/s. Both: the file's first half is read, its second half written, block by block. */
static double plain_rate(const bench *b, kind k, size_t block)
{
    uint64_t bytes = b->num_records * b->record_bytes, half = bytes / 2;
    double start = weft_now_us();
    if (k == BOTH)
        for (uint64_t at = 0; at < half; at += block) {
            plain_block(b, false, block, at);
            plain_block(b, true, block, half + at);
        }
    else
        for (uint64_t at = 0; at < bytes; at += block)
            plain_block(b, k == WRITE, block, at);
    return (double)bytes / (weft_now_us() - start);
}

/* --- ours ---------------------------------------------------------------------------------- */

static int add_record(const bench *b, weft_spill_transfer *transfers, int n, size_t record,
                      bool is_write)
{
    char *memory = b->memory[is_write];
    transfers[n++] = (weft_spill_transfer){record, 0, is_write, memory};
    transfers[n++] = (weft_spill_transfer){record, 1, is_write, memory + b->record_bytes / 4};
    return n;
}

static void shuffle(bench *b, uint64_t round)
{
    for (size_t i = b->num_records - 1; i > 0; i--) {
        size_t j = (size_t)(weft_rng_uniform(1, round, i) * (float)(i + 1));
        size_t other = b->order[j > i ? i : j];
        b->order[j > i ? i : j] = b->order[i];
        b->order[i] = other;
    }
}

static double spill_rate(const bench *b, kind k)
{
    weft_spill_transfer transfers[4];
    double start = weft_now_us();
    for (size_t i = 0; i < b->num_records; i++) {
        int n = 0;
        if (k == BOTH) { /* pairs */
            n = add_record(b, transfers, n, b->order[i++], true);
            n = add_record(b, transfers, n, b->order[i], false);
        } else {
            n = add_record(b, transfers, n, b->order[i], k == WRITE);
        }
        check(weft_spill_run(b->spill, transfers, n));
    }
    return (double)(b->num_records * b->record_bytes) / (weft_now_us() - start);
}

/* --- rounds -------------------------------------------------------------------------------- */

typedef struct rates {
    double blocks[2][MAX_ROUNDS]; /* the disk's, of 1 MiB and of a record */
    double spill[MAX_ROUNDS], ratio[MAX_ROUNDS];
    const double *disk; /* the better of the blocks */
} rates;

static double quantile(const double *values, int count, int quarter)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    weft_sort(sorted, (size_t)count);
    return sorted[(count - 1) * quarter / 4];
}

static void create(bench *b)
{
    weft_spill_options o = {.folder = b->folder,
                            .num_records = b->num_records,
                            .num_parts = 2,
                            .parts = {{"weights", b->record_bytes / 4},
                                      {"state", b->record_bytes - b->record_bytes / 4}},
                            .io = b->io,
                            .queue_depth = b->depth,
                            .piece_bytes = b->piece_bytes};
    uint64_t bytes = b->num_records * b->record_bytes;
    check(weft_spill_create(&o, &b->spill));
    if (!weft_spill_is_direct(b->spill)) {
        fprintf(stderr, "bench_spill: %s has no O_DIRECT: choose another --folder\n", b->folder);
        exit(6);
    }
    b->fd = open(b->folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (b->fd < 0 || (errno = posix_fallocate(b->fd, 0, (off_t)bytes)) != 0)
        fail(b->folder);
    for (int i = 0; i < 2; i++) {
        b->memory[i] = aligned_alloc(WEFT_SPILL_ALIGN, b->record_bytes);
        if (!b->memory[i])
            fail("memory");
        for (size_t at = 0; at < b->record_bytes; at++)
            b->memory[i][at] = (char)((at * 2654435761U) >> 13);
    }
    for (size_t i = 0; i < b->num_records; i++)
        b->order[i] = i;
    plain_rate(b, WRITE, b->record_bytes);
    spill_rate(b, WRITE);
}

static void measure(bench *b, rates out[NUM_KINDS])
{
    for (int round = 0; round < b->rounds; round++) {
        shuffle(b, (uint64_t)round);
        for (int k = 0; k < NUM_KINDS; k++) {
            for (int turn = 0; turn < 3; turn++) /* who goes first takes turns */
                switch ((turn + round) % 3) {
                case 0:
                    out[k].blocks[0][round] = plain_rate(b, (kind)k, (size_t)1 << 20);
                    break;
                case 1:
                    out[k].blocks[1][round] = plain_rate(b, (kind)k, b->record_bytes);
                    break;
                default:
                    out[k].spill[round] = spill_rate(b, (kind)k);
                }
        }
    }
    for (int k = 0; k < NUM_KINDS; k++) {
        rates *r = &out[k];
        bool large = quantile(r->blocks[1], b->rounds, 2) > quantile(r->blocks[0], b->rounds, 2);
        r->disk = r->blocks[large];
        for (int round = 0; round < b->rounds; round++)
            r->ratio[round] = r->spill[round] / r->disk[round];
    }
}

static void print(const bench *b, rates r[NUM_KINDS])
{
    int n = b->rounds;
    const char *io = weft_spill_io_text(weft_spill_io_used(b->spill));
    if (b->is_json)
        printf("{\"io\": \"%s\", \"records\": %zu, \"record_bytes\": %zu, \"rounds\": %d", io,
               b->num_records, b->record_bytes, n);
    else
        printf("%s, %zu records of %zu MiB, %d rounds\n%-12s %10s %10s %7s  %s\n", io,
               b->num_records, b->record_bytes >> 20, n, "MB/s", "disk", "spill", "ratio",
               "quartiles");
    for (int k = 0; k < NUM_KINDS; k++) {
        double low = quantile(r[k].ratio, n, 1), high = quantile(r[k].ratio, n, 3);
        if (b->is_json)
            printf(", \"%s\": {\"disk\": %.1f, \"spill\": %.1f, \"ratio\": [%.3f, %.3f, %.3f]}",
                   kind_names[k], quantile(r[k].disk, n, 2), quantile(r[k].spill, n, 2), low,
                   quantile(r[k].ratio, n, 2), high);
        else
            printf("%-12s %10.1f %10.1f %7.2f  %.2f-%.2f\n", kind_names[k],
                   quantile(r[k].disk, n, 2), quantile(r[k].spill, n, 2),
                   quantile(r[k].ratio, n, 2), low, high);
    }
    printf(b->is_json ? "}\n" : "");
}

int main(int argc, char **argv)
{
    static bench b = {
        .folder = ".", .num_records = 16, .record_bytes = (size_t)16 << 20, .rounds = 9};
    static rates measured[NUM_KINDS];
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--folder") == 0 && more)
            b.folder = argv[++i];
        else if (strcmp(argv[i], "--records") == 0 && more)
            b.num_records = (size_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--mib") == 0 && more)
            b.record_bytes = (size_t)atoi(argv[++i]) << 20;
        else if (strcmp(argv[i], "--rounds") == 0 && more)
            b.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--depth") == 0 && more)
            b.depth = atoi(argv[++i]);
        else if (strcmp(argv[i], "--piece-kib") == 0 && more)
            b.piece_bytes = (size_t)atoi(argv[++i]) << 10;
        else if (strcmp(argv[i], "--json") == 0)
            b.is_json = true;
        else if (strcmp(argv[i], "--io") == 0 && more) {
            int io = 0;
            for (i++; io < 3 && strcmp(argv[i], weft_spill_io_text((weft_spill_io)io)) != 0; io++)
                continue;
            if (io == 3)
                usage();
            b.io = (weft_spill_io)io;
        } else
            usage();
    }
    if (b.rounds < 1 || b.rounds > MAX_ROUNDS || b.num_records < 2 || b.num_records % 2 ||
        b.num_records > MAX_RECORDS || b.record_bytes < (size_t)1 << 20 ||
        b.record_bytes > (size_t)1 << 30 || b.depth < 0)
        usage();
    create(&b);
    measure(&b, measured);
    print(&b, measured);
    weft_spill_destroy(b.spill);
    close(b.fd);
    free(b.memory[0]);
    free(b.memory[1]);
    return 0;
}
