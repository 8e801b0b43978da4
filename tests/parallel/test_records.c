/* Records in a file with few places: whatever is taken in whatever order, by any of two lanes, has
 * the values that were put there; parts that were never changed are zero; what is dropped is not
 * written; by program as few reads as Belady's; faults of the file end the lane that waits. */
#include "parallel/records/records.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/core/temporary.h"

enum { NUM_RECORDS = 12, NUM_TURNS = 600, COUNT = 1500 };

static const char *const labels[NUM_RECORDS] = {
    "layer 1, expert 0", "layer 1, expert 1", "layer 1, expert 2",  "layer 1, expert 3",
    "layer 1, expert 4", "layer 1, expert 5", "layer 1, expert 6",  "layer 1, expert 7",
    "layer 1, expert 8", "layer 1, expert 9", "layer 1, expert 10", "layer 1, expert 11"};

static weft_records_options options(int num_places, weft_spill_eviction eviction)
{
    return (weft_records_options){.sizes = {.part_bytes = {COUNT, 2 * COUNT, 3 * COUNT},
                                            .num_records = NUM_RECORDS,
                                            .num_places = num_places},
                                  .folder = temporary_folder,
                                  .labels = labels,
                                  .io = WEFT_SPILL_THREADS,
                                  .eviction = eviction};
}

typedef struct rig {
    weft_device *device;
    weft_lane *lanes[2];
    weft_records *records;
} rig;

static rig make(int num_places, weft_spill_eviction eviction)
{
    rig r = {0};
    const weft_records_options o = options(num_places, eviction);
    assert_int_equal(weft_device_create_cpu(1, 0, &r.device), WEFT_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_lane_create(r.device, 0, "test", &r.lanes[i]), WEFT_OK);
    assert_int_equal(weft_records_create(r.device, &o, &r.records), WEFT_OK);
    return r;
}

static void release(rig *r)
{
    weft_records_destroy(r->records);
    for (int i = 0; i < 2; i++)
        weft_lane_destroy(r->lanes[i]);
    weft_device_destroy(r->device);
}

/* What a part is expected to hold, and becomes. */
typedef struct visit {
    unsigned char *memory;
    size_t bytes;
    int expected, value; /* -1: neither looked at; nor changed */
} visit;

static weft_status run_visit(const void *raw)
{
    const visit *v = raw;
    for (size_t i = 0; i < v->bytes; i++) {
        if (v->expected >= 0 && v->memory[i] != v->expected)
            return WEFT_ERROR(WEFT_INTERNAL, "byte %zu is %d, not %d", i, v->memory[i],
                              v->expected);
        if (v->value >= 0)
            v->memory[i] = (unsigned char)v->value;
    }
    return WEFT_OK;
}

static weft_status visit_part(const rig *r, int32_t record, weft_record_part part, int expected,
                              int value, weft_lane *lane)
{
    const visit v = {weft_records_at(r->records, record, part), (size_t)(part + 1) * COUNT,
                     expected, value};
    return weft_lane_submit(lane, "visit", run_visit, &v, sizeof v);
}

static void check_random(int num_places, weft_spill_eviction eviction, unsigned seed)
{
    rig r = make(num_places, eviction);
    int values[NUM_RECORDS][WEFT_NUM_RECORD_PARTS] = {{0}};
    srand(seed);
    for (int turn = 0; turn < NUM_TURNS; turn++) {
        const int32_t record = rand() % NUM_RECORDS;
        weft_lane *lane = r.lanes[rand() % 2];
        const unsigned reads = (unsigned)rand() % 8, changes = (unsigned)rand() % 8;
        weft_records_expect(r.records, record, (uint64_t)(turn + rand() % 40));
        assert_int_equal(weft_records_take(r.records, record, reads, changes, lane), WEFT_OK);
        for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++) {
            const int old = values[record][part];
            if (changes & 1u << part)
                values[record][part] = 1 + rand() % 255;
            assert_int_equal(visit_part(&r, record, (weft_record_part)part,
                                        reads & 1u << part ? old : -1,
                                        changes & 1u << part ? values[record][part] : -1, lane),
                             WEFT_OK);
        }
        assert_int_equal(weft_records_give(r.records, record, lane), WEFT_OK);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(weft_lane_sync(r.lanes[i]), WEFT_OK);
    const weft_records_counts counts = weft_records_counted(r.records);
    assert_int_equal(counts.num_takes, NUM_TURNS);
    assert_true((counts.file.bytes_read > 0) == (num_places < NUM_RECORDS));
    release(&r);
}

CASE(test_values_survive)
{
    static const int places[] = {1, 2, 3, 7, NUM_RECORDS};
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        check_random(places[i], WEFT_SPILL_PROGRAM, i);
        check_random(places[i], WEFT_SPILL_LRU, i + 100);
    }
}

/* A gradient that is dropped costs no write, and is zero when it comes again. */
CASE(test_drop)
{
    rig r = make(1, WEFT_SPILL_LRU);
    assert_int_equal(weft_records_take(r.records, 0, 0, WEFT_RECORD_G, r.lanes[0]), WEFT_OK);
    assert_int_equal(visit_part(&r, 0, WEFT_RECORD_GRADIENT, -1, 5, r.lanes[0]), WEFT_OK);
    assert_int_equal(weft_records_give(r.records, 0, r.lanes[0]), WEFT_OK);
    weft_records_drop(r.records, 0, WEFT_RECORD_G);
    assert_int_equal(weft_records_take(r.records, 1, WEFT_RECORD_W, 0, r.lanes[1]), WEFT_OK);
    assert_int_equal(weft_records_give(r.records, 1, r.lanes[1]), WEFT_OK);
    assert_int_equal(weft_records_take(r.records, 0, WEFT_RECORD_G, 0, r.lanes[0]), WEFT_OK);
    assert_int_equal(visit_part(&r, 0, WEFT_RECORD_GRADIENT, 0, -1, r.lanes[0]), WEFT_OK);
    assert_int_equal(weft_records_give(r.records, 0, r.lanes[0]), WEFT_OK);
    assert_int_equal(weft_lane_sync(r.lanes[0]), WEFT_OK);
    assert_int_equal(weft_records_counted(r.records).file.bytes_written, 0);
    release(&r);
}

static weft_status add_one(const void *raw)
{
    const visit *v = raw;
    for (size_t i = 0; i < v->bytes; i++)
        v->memory[i]++;
    return WEFT_OK;
}

/* Adds one to weights and state, and finds no gradient. */
static weft_status pay(void *context, int32_t record, weft_lane *lane)
{
    const rig *r = context;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++) {
        const visit v = {weft_records_at(r->records, record, (weft_record_part)part),
                         (size_t)COUNT * (size_t)(part + 1), 0, -1};
        WEFT_TRY(weft_lane_submit(lane, "pay", part == WEFT_RECORD_GRADIENT ? run_visit : add_one,
                                  &v, sizeof v));
    }
    return WEFT_OK;
}

static void visit_all(const rig *r, int32_t record, unsigned reads, const int expected[],
                      const int values[])
{
    unsigned changes = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        changes |= values[part] >= 0 ? 1u << part : 0;
    assert_int_equal(weft_records_take(r->records, record, reads, changes, r->lanes[0]), WEFT_OK);
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        assert_int_equal(visit_part(r, record, (weft_record_part)part, expected[part], values[part],
                                    r->lanes[0]),
                         WEFT_OK);
    assert_int_equal(weft_records_give(r->records, record, r->lanes[0]), WEFT_OK);
}

/* What a record owes is paid when its weights or state are read, once, wherever it is; is written;
 * and is not paid for its gradient. */
CASE(test_owed)
{
    static const int none[] = {-1, -1, -1}, first[] = {3, 9, 5}, second[] = {4, -1, -1},
                     third[] = {4, -1, 6}, fourth[] = {5, -1, 7};
    for (int num_places = 1; num_places <= 2; num_places++) {
        rig r = make(num_places, WEFT_SPILL_LRU);
        weft_records_set_payment(r.records, pay, &r);
        visit_all(&r, 0, 0, none, first);
        weft_records_drop(r.records, 0, WEFT_RECORD_G);
        visit_all(&r, 1, WEFT_RECORD_W, none, none);
        weft_records_owe(r.records, 0);
        visit_all(&r, 0, WEFT_RECORD_W, second, none);
        visit_all(&r, 1, WEFT_RECORD_W, none, none);
        visit_all(&r, 0, WEFT_RECORD_W | WEFT_RECORD_S, third, none);
        weft_records_owe(r.records, 0);
        visit_all(&r, 0, WEFT_RECORD_G, none, none);
        visit_all(&r, 1, WEFT_RECORD_W, none, none);
        visit_all(&r, 0, WEFT_RECORD_W | WEFT_RECORD_S, fourth, none);
        assert_int_equal(weft_lane_sync(r.lanes[0]), WEFT_OK);
        release(&r);
    }
}

/* Over and over through all records with places for some: least recently used misses always; who
 * knows the next use misses as Belady's choice does. */
CASE(test_program)
{
    enum { PLACES = 5, ROUNDS = 40 };
    uint64_t misses[2];
    for (int lru = 0; lru < 2; lru++) {
        rig r = make(PLACES, lru ? WEFT_SPILL_LRU : WEFT_SPILL_PROGRAM);
        for (int turn = 0; turn < ROUNDS * NUM_RECORDS; turn++) {
            const int32_t record = turn % NUM_RECORDS;
            weft_records_expect(r.records, record, (uint64_t)turn + NUM_RECORDS);
            assert_int_equal(weft_records_take(r.records, record, WEFT_RECORD_W, 0, r.lanes[0]),
                             WEFT_OK);
            assert_int_equal(weft_records_give(r.records, record, r.lanes[0]), WEFT_OK);
        }
        misses[lru] = weft_records_counted(r.records).num_misses;
        release(&r);
    }
    assert_int_equal(misses[1], ROUNDS * NUM_RECORDS);
    /* Belady in a round of R with C places: R - C of R - 1 uses miss. */
    const double wanted = (double)ROUNDS * NUM_RECORDS * (NUM_RECORDS - PLACES) / (NUM_RECORDS - 1);
    assert_true(fabs((double)misses[0] - wanted) < NUM_RECORDS);
}

/* A fault poisons who waits for the record, with its label and the system's words. */
CASE(test_faults)
{
    static const struct {
        int fault;
        const char *text;
    } faults[] = {{EIO, "Input/output error"},
                  {ENOSPC, "No space left"},
                  {WEFT_SPILL_FAULT_FLIP, "layer 1, expert"}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        rig r = make(2, WEFT_SPILL_LRU);
        weft_status status = WEFT_OK;
        for (int32_t turn = 0; turn < 60 && status == WEFT_OK; turn++) {
            if (turn == 30) {
                assert_int_equal(weft_records_drain(r.records), WEFT_OK);
                weft_spill_fail_after(faults[i].fault == WEFT_SPILL_FAULT_FLIP ? 2 : 1,
                                      faults[i].fault);
            }
            status = weft_records_take(r.records, turn % NUM_RECORDS, WEFT_RECORD_W, WEFT_RECORD_W,
                                       r.lanes[0]);
            if (status == WEFT_OK)
                status =
                    visit_part(&r, turn % NUM_RECORDS, WEFT_RECORD_WEIGHTS, -1, turn, r.lanes[0]);
            if (status == WEFT_OK)
                status = weft_records_give(r.records, turn % NUM_RECORDS, r.lanes[0]);
        }
        if (status == WEFT_OK)
            status = weft_lane_sync(r.lanes[0]);
        assert_int_equal(weft_spill_fail_after(0, 0), 0);
        assert_int_equal(status, WEFT_FILE);
        assert_non_null(strstr(weft_error_get()->text, faults[i].text));
        assert_non_null(strstr(weft_error_get()->text, "layer 1, expert"));
        weft_error_clear();
        release(&r);
    }
}

CASE(test_no_room)
{
    rig r = make(2, WEFT_SPILL_LRU);
    const weft_records_options o = options(2, WEFT_SPILL_LRU);
    weft_records *other = NULL;
    weft_spill_fail_after(2, ENOSPC);
    assert_int_equal(weft_records_create(r.device, &o, &other), WEFT_FILE);
    assert_non_null(strstr(weft_error_get()->text, "no room for the experts' file"));
    assert_null(other);
    weft_error_clear();
    release(&r);
}

CASE(test_sizes)
{
    weft_records_sizes s = {.part_bytes = {4096, 1, 0}, .num_records = 100};
    assert_int_equal(weft_records_place_bytes(&s), 8192);
    assert_int_equal(weft_records_file_bytes(&s), 819200);
    weft_records_choose(&s, 0.25);
    assert_int_equal(s.num_places, 25);
    assert_int_equal(weft_records_pinned_bytes(&s), 25 * 8192 + 4096);
    weft_records_choose(&s, 0);
    assert_int_equal(s.num_places, WEFT_RECORDS_LEAST);
    weft_records_choose(&s, 1);
    assert_int_equal(s.num_places, 100);
    s.num_records = 1;
    weft_records_choose(&s, 0);
    assert_int_equal(s.num_places, 1);
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
