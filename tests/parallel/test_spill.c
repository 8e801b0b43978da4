/* Spill files give back what was written: by both ways of I/O, in any size, from several threads
 * and from a lane. */
#include <pthread.h>

#include <weft/device.h>

#include "core/rng.h"
#include "tests/parallel/spill_sample.h"

static weft_spill_io ways[2];
static int num_ways;

typedef struct dice {
    uint64_t stream, n;
} dice;
static size_t draw(dice *d, size_t below)
{
    size_t drawn = (size_t)(weft_rng_uniform(11, d->stream, d->n++) * (float)below);
    return drawn < below ? drawn : below - 1;
}

/* A record's parts as they should be, and memory for transfers. */
typedef struct record {
    void *wanted[WEFT_SPILL_MAX_PARTS], *memory[WEFT_SPILL_MAX_PARTS];
    bool is_written[WEFT_SPILL_MAX_PARTS];
} record;

static void record_create(const weft_spill_options *o, record *r)
{
    memset(r, 0, sizeof *r);
    for (int p = 0; p < o->num_parts; p++) {
        r->wanted[p] = spill_memory(o->parts[p].bytes);
        r->memory[p] = spill_memory(o->parts[p].bytes);
        memset(r->memory[p], 0, weft_spill_padded_bytes(o->parts[p].bytes));
    }
}

static void record_release(record *r)
{
    for (int p = 0; p < WEFT_SPILL_MAX_PARTS; p++) {
        free(r->wanted[p]);
        free(r->memory[p]);
    }
}

enum { MAX_RECORDS = 6, MAX_TRANSFERS = MAX_RECORDS * WEFT_SPILL_MAX_PARTS };

/* One batch of drawn reads and writes of records first .. first + count - 1; checks what came. */
static void run_batch(weft_spill *spill, const weft_spill_options *o, dice *d, record *records,
                      size_t first, size_t count)
{
    weft_spill_transfer transfers[MAX_TRANSFERS] = {{0}};
    int n = 0;
    for (size_t r = first; r < first + count; r++)
        for (int p = 0; p < o->num_parts; p++) {
            size_t what = draw(d, 3);
            bool is_write = what == 0 || (what == 1 && !records[r].is_written[p]);
            if (what == 2)
                continue;
            if (is_write) {
                spill_fill(records[r].wanted[p], o->parts[p].bytes, d->n);
                memcpy(records[r].memory[p], records[r].wanted[p], o->parts[p].bytes);
                records[r].is_written[p] = true;
            } else {
                memset(records[r].memory[p], 0xee, o->parts[p].bytes);
            }
            transfers[n++] = (weft_spill_transfer){r, p, is_write, records[r].memory[p]};
        }
    for (int i = n - 1; i > 0; i--) { /* in any order */
        size_t j = draw(d, (size_t)i + 1);
        weft_spill_transfer t = transfers[i];
        transfers[i] = transfers[j];
        transfers[j] = t;
    }
    OK(weft_spill_run(spill, transfers, n));
    for (int i = 0; i < n; i++) {
        const weft_spill_transfer *t = &transfers[i];
        assert_memory_equal(t->memory, records[t->record].wanted[t->part], o->parts[t->part].bytes);
    }
}

CASE(drawn_sizes_come_back)
{
    for (int round = 0; round < 60 * num_ways; round++) {
        dice d = {(uint64_t)round / (uint64_t)num_ways, 0};
        weft_spill_options o = {.folder = temporary_folder, .io = ways[round % num_ways]};
        o.num_records = 1 + draw(&d, MAX_RECORDS);
        o.num_parts = 1 + (int)draw(&d, WEFT_SPILL_MAX_PARTS);
        for (int p = 0; p < o.num_parts; p++)
            o.parts[p] = (weft_spill_part){"part", 1 + draw(&d, draw(&d, 2) ? 300000 : 9000)};
        o.piece_bytes = WEFT_SPILL_ALIGN * draw(&d, 17); /* 0: as it is when nobody says */
        o.queue_depth = (int)draw(&d, 20);
        o.buffered = draw(&d, 3) == 0;
        weft_spill *spill;
        record records[MAX_RECORDS];
        OK(weft_spill_create(&o, &spill));
        assert_int_equal(weft_spill_io_used(spill), o.io);
        assert_false(weft_spill_is_direct(spill) && o.buffered);
        for (size_t r = 0; r < o.num_records; r++)
            record_create(&o, &records[r]);
        for (int batch = 0; batch < 12; batch++)
            run_batch(spill, &o, &d, records, 0, o.num_records);
        for (size_t r = 0; r < o.num_records; r++)
            record_release(&records[r]);
        weft_spill_destroy(spill);
    }
}

/* All parts of all records. */
static void run_all(weft_spill *spill, const weft_spill_options *o, record *records, bool is_write)
{
    weft_spill_transfer transfers[MAX_TRANSFERS];
    int n = 0;
    for (size_t r = 0; r < MAX_RECORDS; r++)
        for (int p = 0; p < o->num_parts; p++)
            transfers[n++] = (weft_spill_transfer){r, p, is_write, records[r].memory[p]};
    OK(weft_spill_run(spill, transfers, n));
}

CASE(both_ways_write_the_same_file)
{
    record records[MAX_RECORDS];
    unsigned char *files[2] = {NULL, NULL};
    uint64_t bytes = 0;
    for (int w = 0; w < num_ways; w++) {
        weft_spill_options o = spill_options(ways[w]);
        weft_spill *spill;
        o.num_records = MAX_RECORDS;
        OK(weft_spill_create(&o, &spill));
        OK(weft_spill_file_bytes(&o, &bytes));
        assert_int_equal(bytes, MAX_RECORDS * (5 + 10) * 4096);
        for (size_t r = 0; r < MAX_RECORDS; r++) {
            record_create(&o, &records[r]);
            for (int p = 0; p < o.num_parts; p++)
                spill_fill(records[r].memory[p], o.parts[p].bytes, r * 10 + (size_t)p);
        }
        run_all(spill, &o, records, true);
        weft_spill_stats stats;
        weft_spill_get_stats(spill, &stats);
        assert_int_equal(stats.bytes_written, bytes);
        assert_int_equal(stats.num_writes, MAX_RECORDS * (3 + 5));
        assert_true(stats.write_us > 0 && stats.read_us == 0 && stats.bytes_read == 0);
        run_all(spill, &o, records, false);
        weft_spill_get_stats(spill, &stats);
        assert_int_equal(stats.bytes_read, bytes);
        assert_int_equal(stats.num_reads, MAX_RECORDS * (3 + 5));
        assert_true(stats.read_us > 0);

        files[w] = spill_memory(bytes);
        assert_int_equal(pread(weft_spill_descriptor(spill), files[w], bytes, 0), bytes);
        for (size_t r = 0; r < MAX_RECORDS; r++) {
            assert_memory_equal(files[w] + r * 15 * 4096, records[r].memory[0], 20001);
            assert_memory_equal(files[w] + (r * 15 + 5) * 4096, records[r].memory[1], 40000);
            record_release(&records[r]);
        }
        weft_spill_destroy(spill);
    }
    if (num_ways == 2)
        assert_memory_equal(files[0], files[1], bytes);
    free(files[0]);
    free(files[1]);
}

/* --- several threads ----------------------------------------------------------------------- */

enum { NUM_THREADS = 4 };
typedef struct caller {
    pthread_t thread;
    weft_spill *spill;
    const weft_spill_options *options;
    record *records;
    size_t first, count;
} caller;

static void *call(void *arg)
{
    caller *c = arg;
    dice d = {1000 + c->first, 0};
    for (int i = 0; i < 100; i++)
        run_batch(c->spill, c->options, &d, c->records, c->first, c->count);
    return NULL;
}

/* More than may call at once. */
CASE(threads_share_a_file)
{
    for (int w = 0; w < num_ways; w++) {
        weft_spill_options o = spill_options(ways[w]);
        weft_spill *spill;
        record records[NUM_LABELS];
        caller callers[NUM_THREADS];
        o.num_callers = 3;
        OK(weft_spill_create(&o, &spill));
        for (size_t r = 0; r < NUM_LABELS; r++)
            record_create(&o, &records[r]);
        for (size_t i = 0; i < NUM_THREADS; i++) {
            callers[i] = (caller){.spill = spill, .options = &o, .records = records};
            callers[i].first = 2 * i;
            callers[i].count = 2;
            assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
        }
        for (int i = 0; i < NUM_THREADS; i++)
            pthread_join(callers[i].thread, NULL);
        for (size_t r = 0; r < NUM_LABELS; r++)
            record_release(&records[r]);
        weft_spill_destroy(spill);
    }
}

/* --- a lane -------------------------------------------------------------------------------- */

typedef struct lane_args {
    weft_spill *spill;
    weft_spill_transfer transfer;
} lane_args;

static weft_status run_on_lane(const void *args)
{
    const lane_args *a = args;
    return weft_spill_run(a->spill, &a->transfer, 1);
}

CASE(a_lane_reads_and_writes)
{
    weft_device *device;
    weft_lane *lane;
    weft_spill *spill;
    void *memory;
    weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
    OK(weft_device_create_cpu(1, 0, &device));
    OK(weft_lane_create(device, 0, "file", &lane));
    OK(weft_device_alloc(device, WEFT_SPACE_PINNED, 20480 + WEFT_SPILL_ALIGN, "place", &memory));
    char *place = memory, *wanted = spill_memory(20001);
    place += (WEFT_SPILL_ALIGN - (uintptr_t)place % WEFT_SPILL_ALIGN) % WEFT_SPILL_ALIGN;
    memset(place, 0, 20480);
    spill_fill(place, 20001, 5);
    memcpy(wanted, place, 20001);
    OK(weft_spill_create(&o, &spill));
    lane_args args = {spill, {5, 0, true, place}};
    OK(weft_lane_submit(lane, "write", run_on_lane, &args, sizeof args));
    OK(weft_lane_zero(lane, place, 20001));
    args.transfer.is_write = false;
    OK(weft_lane_submit(lane, "read", run_on_lane, &args, sizeof args));
    OK(weft_lane_sync(lane));
    assert_memory_equal(place, wanted, 20001);
    weft_spill_fail_after(1, WEFT_SPILL_FAULT_FLIP);
    OK(weft_lane_submit(lane, "read", run_on_lane, &args, sizeof args));
    FAILS(weft_lane_sync(lane), WEFT_FILE,
          "lane file, read: rank 1, layer 3, expert 5: weights: damaged: 20001 bytes at byte "
          "307200 of the experts' file in ");
    weft_lane_destroy(lane);
    weft_spill_destroy(spill);
    weft_device_free(device, WEFT_SPACE_PINNED, memory, 20480 + WEFT_SPILL_ALIGN);
    weft_device_destroy(device);
    free(wanted);
}

CASE(misuse_is_told)
{
    weft_spill *spill;
    weft_spill_options o = spill_options(WEFT_SPILL_THREADS), bad = o;
    uint64_t bytes;
    char *memory = spill_memory(40000);
    bad.num_parts = 0;
    FAILS(weft_spill_create(&bad, &spill), WEFT_INTERNAL, "options are out of range");
    bad = o;
    bad.parts[1].bytes = 0;
    FAILS(weft_spill_create(&bad, &spill), WEFT_INTERNAL, "options are out of range");
    bad = o;
    bad.piece_bytes = 1000;
    FAILS(weft_spill_create(&bad, &spill), WEFT_INTERNAL, "options are out of range");
    bad = o;
    bad.num_records = SIZE_MAX;
    FAILS(weft_spill_create(&bad, &spill), WEFT_CONFIG, "no file holds 18446744073709551615");
    bad = o;
    bad.parts[0].bytes = SIZE_MAX;
    FAILS(weft_spill_file_bytes(&bad, &bytes), WEFT_CONFIG, "no file holds 8 records");
    OK(weft_spill_create(&o, &spill));
    FAILS(weft_spill_run(spill, &(weft_spill_transfer){8, 0, true, memory}, 1), WEFT_INTERNAL,
          "no record 8, part 0");
    FAILS(weft_spill_run(spill, &(weft_spill_transfer){0, 2, true, memory}, 1), WEFT_INTERNAL,
          "no record 0, part 2");
    FAILS(weft_spill_run(spill, &(weft_spill_transfer){0, 0, true, memory + 64}, 1), WEFT_INTERNAL,
          "expert 0: weights: memory is not at a multiple of 4096 bytes");
    FAILS(weft_spill_run(spill, &(weft_spill_transfer){4, 1, false, memory}, 1), WEFT_INTERNAL,
          "expert 4: state: read from the experts' file, never written");
    OK(weft_spill_run(spill, NULL, 0));
    weft_spill_destroy(spill);
    weft_spill_destroy(NULL);
    assert_string_equal(weft_spill_io_text(WEFT_SPILL_URING), "uring");
    free(memory);
}

int main(void)
{
    if (temporary_create(NULL) != 0)
        return 1;
    for (int io = WEFT_SPILL_URING; io <= WEFT_SPILL_THREADS; io++)
        if (spill_io_works((weft_spill_io)io))
            ways[num_ways++] = (weft_spill_io)io;
    int failures = run_cases();
    temporary_remove(NULL);
    return failures;
}
