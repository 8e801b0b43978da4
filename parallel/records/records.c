#include "parallel/records/records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/arena.h"
#include "core/device/device.h"

typedef struct place {
    int32_t record;        /* -1: none */
    bool is_new;           /* nothing was read for it yet */
    unsigned here, differ; /* parts that are there; that differ from what the file has */
    weft_event *last;      /* behind the work enqueued last on what lies here */
} place;

struct weft_records {
    weft_device *device;
    weft_records_options options;
    weft_arena arena;
    weft_spill *spill;
    weft_spill_cache *cache;
    weft_lane *lane;
    void *memory;
    char *first; /* aligned */
    place *places;
    uint8_t *in_file; /* of records: parts that were changed and are not dropped */
    bool *owes;       /* of records */
    weft_record_payment pay;
    void *pay_context;
    int part_in_file[WEFT_NUM_RECORD_PARTS];
    uint64_t num_takes, num_misses;
};

/* --- sizes --------------------------------------------------------------------------------- */

uint64_t weft_records_place_bytes(const weft_records_sizes *s)
{
    uint64_t bytes = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        bytes += weft_spill_padded_bytes(s->part_bytes[part]);
    return bytes;
}

uint64_t weft_records_pinned_bytes(const weft_records_sizes *s)
{
    return (uint64_t)s->num_places * weft_records_place_bytes(s) + WEFT_SPILL_ALIGN;
}

uint64_t weft_records_file_bytes(const weft_records_sizes *s)
{
    return (uint64_t)s->num_records * weft_records_place_bytes(s);
}

void weft_records_choose(weft_records_sizes *s, double share)
{
    const int32_t wanted = (int32_t)ceil(share * s->num_records - 1e-9);
    const int32_t places = wanted > WEFT_RECORDS_LEAST ? wanted : WEFT_RECORDS_LEAST;
    s->num_places = places < s->num_records ? places : s->num_records;
}

static char *part_at(const weft_records *r, int32_t index, int part)
{
    const weft_records_sizes *s = &r->options.sizes;
    char *at = r->first + (uint64_t)index * weft_records_place_bytes(s);
    for (int before = 0; before < part; before++)
        at += weft_spill_padded_bytes(s->part_bytes[before]);
    return at;
}

/* --- the lane of the file ------------------------------------------------------------------- */

/* Parts of a record, between its place and the file. */
typedef struct turn {
    weft_records *records;
    int32_t place, record;
    unsigned parts, zeros; /* that were never changed */
    bool is_write;
} turn;

static weft_status run_turn(const void *raw)
{
    const turn *t = raw;
    weft_spill_transfer transfers[WEFT_NUM_RECORD_PARTS];
    weft_device *device = weft_lane_current_device();
    size_t bytes = 0;
    int count = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++) {
        char *memory = part_at(t->records, t->place, part);
        if (t->zeros & 1u << part)
            memset(memory, 0, t->records->options.sizes.part_bytes[part]);
        if (!(t->parts & 1u << part))
            continue;
        bytes += weft_spill_padded_bytes(t->records->options.sizes.part_bytes[part]);
        transfers[count++] = (weft_spill_transfer){.record = (size_t)t->record,
                                                   .part = t->records->part_in_file[part],
                                                   .is_write = t->is_write,
                                                   .memory = memory};
    }
    if (count == 0)
        return WEFT_OK;
    const int64_t end = weft_pace_file_start(device, weft_now_ns(), bytes);
    WEFT_TRY(weft_spill_run(t->records->spill, transfers, count));
    weft_pace_file_end(device, end);
    return WEFT_OK;
}

/* A file's read writes its place. */
static weft_status note_turn(weft_records *r, const turn *t)
{
    weft_range ranges[WEFT_NUM_RECORD_PARTS];
    size_t count = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        if ((t->parts | t->zeros) & 1u << part)
            ranges[count++] =
                (weft_range){.name = "place",
                             .base = part_at(r, t->place, part),
                             .bytes = weft_spill_padded_bytes(r->options.sizes.part_bytes[part]),
                             .writes = !t->is_write};
    return weft_note_ranges(r->lane, "experts' file", ranges, count);
}

/* Behind the work enqueued on the place before, and ahead of what follows. */
static weft_status enqueue(weft_records *r, const turn *t)
{
    weft_event *last = r->places[t->place].last;
    WEFT_TRY(weft_lane_wait(r->lane, last));
    WEFT_TRY(note_turn(r, t));
    WEFT_TRY(weft_lane_submit(r->lane, "experts' file", run_turn, t, sizeof *t));
    return weft_lane_record(r->lane, last);
}

/* --- taking --------------------------------------------------------------------------------- */

static weft_status make_room(weft_records *r, int32_t record, bool changes)
{
    weft_spill_use use;
    WEFT_TRY(weft_spill_cache_use(r->cache, record, changes, &use));
    place *p = &r->places[use.place];
    const turn t = {.records = r,
                    .place = use.place,
                    .record = p->record,
                    .parts = p->differ,
                    .is_write = true};
    if (!use.is_miss)
        return WEFT_OK;
    if (p->record >= 0)
        r->in_file[p->record] |= (uint8_t)p->differ;
    *p = (place){.record = record, .last = p->last, .is_new = true};
    return t.record >= 0 && t.parts ? enqueue(r, &t) : WEFT_OK;
}

weft_status weft_records_make_room(weft_records *r, int32_t record)
{
    return make_room(r, record, false);
}

/* Parts are on their way to the place. */
static weft_status pay_owed(weft_records *r, int32_t record, place *p)
{
    r->owes[record] = false;
    p->differ |= WEFT_RECORD_W | WEFT_RECORD_S;
    WEFT_TRY(r->pay(r->pay_context, record, r->lane));
    return weft_lane_record(r->lane, p->last);
}

weft_status weft_records_read(weft_records *r, int32_t record, unsigned parts)
{
    const bool pays = r->owes[record] && (parts & (WEFT_RECORD_W | WEFT_RECORD_S));
    const int32_t index = weft_spill_cache_place(r->cache, record);
    if (index < 0)
        return WEFT_ERROR(WEFT_INTERNAL, "record %d is read, and has no place", (int)record);
    place *p = &r->places[index];
    if (pays)
        parts |= WEFT_RECORD_W | WEFT_RECORD_S;
    const unsigned missing = (parts & ~p->here) | (pays ? WEFT_RECORD_G : 0u);
    const turn t = {.records = r,
                    .place = index,
                    .record = record,
                    .parts = missing & r->in_file[record],
                    .zeros = missing & ~r->in_file[record]};
    p->here |= parts;
    r->num_misses += p->is_new && missing;
    p->is_new &= !missing;
    if (missing)
        WEFT_TRY(enqueue(r, &t));
    return pays ? pay_owed(r, record, p) : WEFT_OK;
}

void weft_records_set_payment(weft_records *r, weft_record_payment pay, void *context)
{
    r->pay = pay;
    r->pay_context = context;
}

bool weft_records_owes(const weft_records *r, int32_t record)
{
    return r->owes[record];
}

void weft_records_owe(weft_records *r, int32_t record)
{
    r->owes[record] = true;
}

weft_status weft_records_take(weft_records *r, int32_t record, unsigned reads, unsigned changes,
                              weft_lane *lane)
{
    if (changes & ~reads & WEFT_RECORD_S)
        r->owes[record] = false;
    WEFT_TRY(make_room(r, record, changes != 0));
    WEFT_TRY(weft_records_read(r, record, reads));
    place *p = &r->places[weft_spill_cache_place(r->cache, record)];
    p->here |= changes;
    p->differ |= changes;
    r->num_takes++;
    return weft_lane_wait(lane, p->last);
}

void *weft_records_at(const weft_records *r, int32_t record, weft_record_part part)
{
    const int32_t index = weft_spill_cache_place(r->cache, record);
    return index < 0 ? NULL : part_at(r, index, part);
}

weft_status weft_records_give(weft_records *r, int32_t record, weft_lane *lane)
{
    return weft_lane_record(lane, r->places[weft_spill_cache_place(r->cache, record)].last);
}

void weft_records_drop(weft_records *r, int32_t record, unsigned parts)
{
    const int32_t index = weft_spill_cache_place(r->cache, record);
    r->in_file[record] &= (uint8_t)~parts;
    if (index >= 0)
        r->places[index].differ &= ~parts;
}

void weft_records_expect(weft_records *r, int32_t record, uint64_t when)
{
    weft_spill_cache_expect(r->cache, record, when);
}

weft_status weft_records_drain(weft_records *r)
{
    return weft_lane_sync(r->lane);
}

weft_lane *weft_records_lane(const weft_records *r)
{
    return r->lane;
}

weft_records_counts weft_records_counted(weft_records *r)
{
    weft_records_counts counts = {.num_takes = r->num_takes, .num_misses = r->num_misses};
    weft_spill_get_stats(r->spill, &counts.file);
    return counts;
}

/* --- making it ------------------------------------------------------------------------------ */

static weft_status make_file(weft_records *r)
{
    static const char *const names[WEFT_NUM_RECORD_PARTS] = {"weights", "gradient",
                                                             "optimizer state"};
    const weft_records_options *o = &r->options;
    weft_spill_options spill = {.folder = o->folder,
                                .num_records = (size_t)o->sizes.num_records,
                                .labels = o->labels,
                                .io = o->io};
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++) {
        if (o->sizes.part_bytes[part] == 0)
            continue;
        r->part_in_file[part] = spill.num_parts;
        spill.parts[spill.num_parts++] = (weft_spill_part){names[part], o->sizes.part_bytes[part]};
    }
    return weft_spill_create(&spill, &r->spill);
}

static weft_status init(weft_records *r)
{
    const weft_records_sizes *s = &r->options.sizes;
    void *memory;
    WEFT_TRY(make_file(r)); /* first: a full disk is the likely fault */
    WEFT_TRY(weft_spill_cache_create(s->num_places, s->num_records, 0, r->options.eviction,
                                     &r->arena, &r->cache));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)s->num_places, &r->places));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)s->num_records, &r->in_file));
    WEFT_TRY(weft_arena_alloc_array(&r->arena, (size_t)s->num_records, sizeof *r->owes, &memory));
    r->owes = memory;
    for (int32_t i = 0; i < s->num_places; i++) {
        r->places[i].record = -1;
        WEFT_TRY(weft_event_create(r->device, &r->places[i].last));
    }
    WEFT_TRY(weft_lane_create(r->device, 1, "file", &r->lane));
    WEFT_TRY(weft_device_alloc_for(r->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                   weft_records_pinned_bytes(s), "experts in host memory",
                                   &r->memory));
    const size_t over = (uintptr_t)r->memory % WEFT_SPILL_ALIGN;
    r->first = (char *)r->memory + (over > 0 ? WEFT_SPILL_ALIGN - over : 0);
    /* A part's padding is written with it. */
    memset(r->first, 0, (size_t)s->num_places * weft_records_place_bytes(s));
    return WEFT_OK;
}

weft_status weft_records_create(weft_device *device, const weft_records_options *options,
                                weft_records **out)
{
    weft_records *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: experts in a file");
    r->device = device;
    r->options = *options;
    const weft_status status = init(r);
    if (status != WEFT_OK) {
        weft_records_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_records_destroy(weft_records *r)
{
    if (!r)
        return;
    weft_lane_destroy(r->lane);
    for (int32_t i = 0; r->places && i < r->options.sizes.num_places; i++)
        weft_event_destroy(r->places[i].last);
    weft_spill_destroy(r->spill);
    if (r->memory)
        weft_device_free(r->device, WEFT_SPACE_PINNED, r->memory,
                         weft_records_pinned_bytes(&r->options.sizes));
    weft_arena_release(&r->arena);
    free(r);
}
