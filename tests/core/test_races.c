/* The proof that lanes are ordered, against a second one: operations of random lanes, events and
 * ranges, every pair of which is compared byte by byte over the graph of orders. */
#include <string.h>

#include "core/device/device.h"
#include "tests/expect.h"

enum { NUM_LANES = 4, NUM_EVENTS = 6, NUM_NOTES = 60, NUM_BYTES = 48, NUM_CASES = 4000 };

static weft_device *device;
static weft_lane *lanes[NUM_LANES];
static weft_event *events[NUM_EVENTS];

static void open_device(void)
{
    static const char *const names[NUM_LANES] = {"a", "b", "c", "d"};
    EXPECT_OK(weft_device_create_note(&device));
    weft_notes_keep_ranges(device);
    for (int i = 0; i < NUM_LANES; i++)
        EXPECT_OK(weft_lane_create(device, 0, names[i], &lanes[i]));
    for (int i = 0; i < NUM_EVENTS; i++)
        EXPECT_OK(weft_event_create(device, &events[i]));
}

static void close_device(void)
{
    for (int i = 0; i < NUM_LANES; i++)
        weft_lane_destroy(lanes[i]);
    for (int i = 0; i < NUM_EVENTS; i++)
        weft_event_destroy(events[i]);
    weft_device_destroy(device);
}

static weft_race find(void)
{
    size_t count;
    weft_race race;
    const weft_noted *notes = weft_notes(device, &count);
    EXPECT_OK(weft_race_find(notes, count, weft_noted_ranges(device), &race));
    return race;
}

static char memory[4096];

static void touch(int lane, const char *name, size_t first, size_t bytes, bool writes)
{
    const weft_range range = {
        .name = name, .base = memory + first, .bytes = bytes, .writes = writes};
    EXPECT_OK(weft_note_ranges(lanes[lane], "touch", &range, 1));
}

/* --- by hand ---------------------------------------------------------------------------------- */

static void check_text(void)
{
    open_device();
    weft_note_module(lanes[0], "experts");
    touch(0, "x", 0, 64, true);
    weft_note_module(lanes[0], NULL);
    EXPECT_OK(weft_lane_copy(lanes[1], memory + 100, memory + 48, 32));
    const weft_race race = find();
    EXPECT(race.base == memory + 48 && race.bytes == 16, "%zu bytes", race.bytes);
    const weft_race_words words = weft_race_text(&race);
    EXPECT(strcmp(words.text, "lane a: touch of experts writes x; lane b: copy of own reads from; "
                              "16 bytes are the same, and no event orders them") == 0,
           "%s", words.text);
    close_device();
}

/* What orders: an event; the host; and what does not: an event recorded too early, or again. */
static void check_orders(void)
{
    static const struct {
        const char *order; /* w, r: lane a writes, lane b reads; R, W: event; H: the host for it; S:
                              for lane a */
        bool is_race;
    } cases[] = {{"wr", true},    {"wRWr", false}, {"RwWr", true},  {"wWRr", true},
                 {"wRHr", false}, {"RwHr", true},  {"wSr", false},  {"wRr", true},
                 {"Swr", true},   {"rw", true},    {"wRWrw", true}, {"RwRWr", false},
                 {"wRRWr", false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        open_device();
        for (const char *o = cases[c].order; *o; o++) {
            if (*o == 'w' || *o == 'r')
                touch(*o == 'r', "x", 0, 8, *o == 'w');
            else if (*o == 'R')
                EXPECT_OK(weft_lane_record(lanes[0], events[0]));
            else if (*o == 'W')
                EXPECT_OK(weft_lane_wait(lanes[1], events[0]));
            else if (*o == 'H')
                EXPECT_OK(weft_event_wait_host(events[0]));
            else
                EXPECT_OK(weft_lane_sync(lanes[0]));
        }
        EXPECT((find().notes[0] != NULL) == cases[c].is_race, "%s", cases[c].order);
        close_device();
    }
}

/* Two lanes share rows by columns; and one goes beyond its own. */
static void check_columns(void)
{
    for (size_t width = 8; width <= 9; width++) {
        open_device();
        const weft_range left = {.name = "left",
                                 .base = memory,
                                 .bytes = width,
                                 .rows = 5,
                                 .stride = 16,
                                 .writes = true};
        const weft_range right = {.name = "right",
                                  .base = memory + 8,
                                  .bytes = 8,
                                  .rows = 5,
                                  .stride = 16,
                                  .writes = true};
        EXPECT_OK(weft_note_ranges(lanes[0], "cast", &left, 1));
        EXPECT_OK(weft_note_ranges(lanes[1], "cast", &right, 1));
        const weft_race race = find();
        EXPECT((race.notes[0] != NULL) == (width > 8), "columns of %zu bytes", width);
        EXPECT(width == 8 || (race.base == memory + 8 && race.bytes == 1), "%zu bytes", race.bytes);
        close_device();
    }
}

/* --- at random -------------------------------------------------------------------------------- */

static uint64_t state;
static size_t draw(size_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % below;
}

static void enqueue_random(void)
{
    weft_lane *lane = lanes[draw(NUM_LANES)];
    const size_t what = draw(20);
    if (what < 6) {
        EXPECT_OK(weft_lane_record(lane, events[draw(NUM_EVENTS)]));
    } else if (what < 14) {
        EXPECT_OK(weft_lane_wait(lane, events[draw(NUM_EVENTS)]));
    } else if (what == 14) {
        EXPECT_OK(weft_event_wait_host(events[draw(NUM_EVENTS)]));
    } else if (what == 15 && draw(4) == 0) {
        EXPECT_OK(weft_lane_sync(lane));
    } else {
        weft_range ranges[2];
        for (int i = 0; i < 2; i++) {
            const size_t rows = 1 + draw(3), bytes = 1 + draw(4), stride = bytes + draw(4);
            ranges[i] = (weft_range){.name = "x",
                                     .base = memory + draw(NUM_BYTES - 3 * 8),
                                     .bytes = bytes,
                                     .rows = rows,
                                     .stride = stride,
                                     .writes = draw(3) == 0};
        }
        EXPECT_OK(weft_note_ranges(lane, "touch", ranges, 2));
    }
}

/* before[a][b]: note a is done when b begins. */
static bool before[NUM_NOTES][NUM_NOTES];

static void order(size_t count, size_t a, size_t b)
{
    (void)count;
    before[a][b] = true;
    for (size_t i = 0; i < a; i++)
        before[i][b] = before[i][b] || before[i][a];
}

/* Orders each note behind those of its lane, of what it waits for, and of what the host knows. */
static void make_graph(const weft_noted *notes, size_t count)
{
    bool known[NUM_NOTES] = {false}; /* to the host */
    memset(before, 0, sizeof before);
    for (size_t b = 0; b < count; b++) {
        const weft_noted *note = &notes[b];
        size_t record = b, last = b;
        for (size_t a = 0; a < b; a++) {
            if (note->event && notes[a].kind == WEFT_NOTED_RECORD && notes[a].event == note->event)
                record = a;
            if (note->lane && notes[a].lane == note->lane && notes[a].kind != WEFT_NOTED_SYNC)
                last = a;
        }
        const bool host = note->kind == WEFT_NOTED_HOST_WAIT || note->kind == WEFT_NOTED_SYNC;
        const size_t seen = note->kind == WEFT_NOTED_SYNC ? last : record;
        for (size_t a = 0; host && seen < b && a <= seen; a++)
            known[a] = known[a] || a == seen || before[a][seen];
        if (host)
            continue;
        for (size_t a = 0; a < b; a++)
            if (known[a] || a == last || (note->kind == WEFT_NOTED_WAIT && a == record))
                order(count, a, b);
    }
}

static bool touches_byte(const weft_range *r, size_t byte)
{
    for (size_t row = 0; row < r->rows; row++) {
        const char *first = (const char *)r->base + row * r->stride;
        if (memory + byte >= first && memory + byte < first + r->bytes)
            return true;
    }
    return false;
}

/* Whether both touch a byte, one writing. */
static bool meet(const weft_noted *a, const weft_noted *b)
{
    const weft_range *ranges = weft_noted_ranges(device);
    for (size_t i = 0; i < a->num_ranges; i++)
        for (size_t k = 0; k < b->num_ranges; k++) {
            const weft_range *x = &ranges[a->first_range + i], *y = &ranges[b->first_range + k];
            for (size_t byte = 0; (x->writes || y->writes) && byte < 2 * NUM_BYTES; byte++)
                if (touches_byte(x, byte) && touches_byte(y, byte))
                    return true;
        }
    return false;
}

/* The first note that races with an earlier one; count: none does. */
static size_t first_race(const weft_noted *notes, size_t count)
{
    make_graph(notes, count);
    for (size_t b = 0; b < count; b++)
        for (size_t a = 0; a < b; a++)
            if (notes[a].kind == WEFT_NOTED_TOUCH && notes[b].kind == WEFT_NOTED_TOUCH &&
                notes[a].lane != notes[b].lane && !before[a][b] && meet(&notes[a], &notes[b]))
                return b;
    return count;
}

static void check_random(void)
{
    size_t num_races = 0, num_ordered = 0;
    for (uint64_t c = 0; c < NUM_CASES; c++) {
        open_device();
        state = c;
        const size_t most = 5 + c % (NUM_NOTES - 5);
        for (size_t i = 0; i < most; i++)
            enqueue_random();
        size_t count;
        const weft_noted *notes = weft_notes(device, &count);
        const size_t wanted = first_race(notes, count);
        const weft_race race = find();
        num_races += wanted < count;
        num_ordered += wanted == count;
        EXPECT(wanted == count ? !race.notes[0] : race.notes[1] == &notes[wanted],
               "case %d: another pair", (int)c);
        if (race.notes[0])
            EXPECT(!before[race.notes[0] - notes][race.notes[1] - notes] &&
                       meet(race.notes[0], race.notes[1]),
                   "case %d: no race", (int)c);
        close_device();
    }
    EXPECT(num_races > NUM_CASES / 8 && num_ordered > NUM_CASES / 8, "%zu races, %zu ordered",
           num_races, num_ordered);
}

int main(void)
{
    check_text();
    check_orders();
    check_columns();
    check_random();
    return expect_finish();
}
