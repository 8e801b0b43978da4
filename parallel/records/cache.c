#include "parallel/records/cache.h"

#include <string.h>

/* When a place is emptied: the larger the earlier. Numbers of uses and of the clock are below. */
#define EMPTY UINT64_MAX
#define NEVER (UINT64_MAX - 1)

typedef struct place {
    int32_t record; /* -1: empty */
    bool is_changed;
    uint64_t rank;   /* EMPTY, NEVER, the number of the record's next use, or by the clock */
    int32_t in_heap; /* where */
} place;

struct weft_spill_cache {
    int32_t num_places, num_records;
    size_t max_uses;
    weft_spill_eviction eviction;
    place *places;
    int32_t *heap;     /* of places: the next to be emptied on top */
    int32_t *place_of; /* of records; -1: none */
    /* The plan. Uses are counted on through its repetitions. */
    size_t num_uses, at;
    uint64_t round_start;
    bool repeats;
    int32_t *uses;
    uint64_t *next_use; /* of use i's record, counted from the round's start; NEVER */
    uint64_t *seen;     /* of records: the use seen last, in a run over the uses */
    uint64_t *expected; /* of records, without a plan */
    uint64_t clock;     /* LRU: falls with each use */
};

/* --- the heap ------------------------------------------------------------------------------ */

static bool goes_before(const weft_spill_cache *c, int32_t a, int32_t b)
{
    const place *x = &c->places[a], *y = &c->places[b];
    if (x->rank != y->rank)
        return x->rank > y->rank;
    if (x->is_changed != y->is_changed)
        return y->is_changed;
    return a < b;
}

static void put(weft_spill_cache *c, int32_t at, int32_t p)
{
    c->heap[at] = p;
    c->places[p].in_heap = at;
}

static void sink(weft_spill_cache *c, int32_t at)
{
    int32_t p = c->heap[at];
    while (at < c->num_places / 2) {
        int32_t child = 2 * at + 1;
        if (child + 1 < c->num_places && goes_before(c, c->heap[child + 1], c->heap[child]))
            child++;
        if (!goes_before(c, c->heap[child], p))
            break;
        put(c, at, c->heap[child]);
        at = child;
    }
    put(c, at, p);
}

/* The place's rank or state is another. */
static void moved(weft_spill_cache *c, int32_t p)
{
    int32_t at = c->places[p].in_heap;
    while (at > 0 && goes_before(c, p, c->heap[(at - 1) / 2])) {
        put(c, at, c->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(c, at, p);
    sink(c, at);
}

/* --- create and plan ----------------------------------------------------------------------- */

weft_status weft_spill_cache_create(int32_t num_places, int32_t num_records, size_t max_uses,
                                    weft_spill_eviction eviction, weft_arena *arena,
                                    weft_spill_cache **out)
{
    weft_spill_cache *c = NULL;
    if (num_places < 1 || num_records < 1)
        return WEFT_ERROR(WEFT_INTERNAL, "a cache of %d places for %d records", (int)num_places,
                          (int)num_records);
    size_t places = (size_t)num_places, records = (size_t)num_records;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &c));
    WEFT_TRY(WEFT_ARRAY(arena, places, &c->places));
    WEFT_TRY(WEFT_ARRAY(arena, places, &c->heap));
    WEFT_TRY(WEFT_ARRAY(arena, records, &c->place_of));
    WEFT_TRY(WEFT_ARRAY(arena, records, &c->seen));
    WEFT_TRY(WEFT_ARRAY(arena, records, &c->expected));
    WEFT_TRY(WEFT_ARRAY(arena, max_uses, &c->uses));
    WEFT_TRY(WEFT_ARRAY(arena, max_uses, &c->next_use));
    c->num_places = num_places;
    c->num_records = num_records;
    c->max_uses = max_uses;
    c->eviction = eviction;
    c->clock = NEVER;
    for (int32_t p = 0; p < num_places; p++) { /* equal ranks by number: already a heap */
        c->places[p] = (place){.record = -1, .rank = EMPTY};
        put(c, p, p);
    }
    for (int32_t r = 0; r < num_records; r++) {
        c->place_of[r] = -1;
        c->expected[r] = NEVER;
    }
    *out = c;
    return WEFT_OK;
}

/* next_use from behind: of each record the use seen last is its next one. */
static void find_next_uses(weft_spill_cache *c)
{
    for (int32_t r = 0; r < c->num_records; r++)
        c->seen[r] = NEVER;
    if (c->repeats)
        for (size_t i = c->num_uses; i-- > 0;)
            c->seen[c->uses[i]] = c->num_uses + i;
    for (size_t i = c->num_uses; i-- > 0;) {
        c->next_use[i] = c->seen[c->uses[i]];
        c->seen[c->uses[i]] = i;
    }
}

weft_status weft_spill_cache_plan(weft_spill_cache *c, const int32_t *uses, size_t num_uses,
                                  bool repeats)
{
    if (num_uses > c->max_uses)
        return WEFT_ERROR(WEFT_INTERNAL, "a plan of %zu uses, made for %zu", num_uses, c->max_uses);
    for (size_t i = 0; i < num_uses; i++)
        if (uses[i] < 0 || uses[i] >= c->num_records)
            return WEFT_ERROR(WEFT_INTERNAL, "use %zu is of record %d of %d", i, (int)uses[i],
                              (int)c->num_records);
    if (num_uses)
        memmove(c->uses, uses, num_uses * sizeof *uses);
    c->num_uses = num_uses;
    c->repeats = repeats && num_uses;
    c->at = 0;
    c->round_start = 0;
    find_next_uses(c);
    if (c->eviction != WEFT_SPILL_PROGRAM)
        return WEFT_OK;
    for (int32_t p = 0; p < c->num_places; p++)
        if (c->places[p].record >= 0)
            c->places[p].rank = c->seen[c->places[p].record];
    for (int32_t at = c->num_places / 2; at-- > 0;)
        sink(c, at);
    return WEFT_OK;
}

/* --- uses ---------------------------------------------------------------------------------- */

/* The rank that the record has after this use. */
static weft_status next_rank(weft_spill_cache *c, int32_t record, uint64_t *out)
{
    if (record < 0 || record >= c->num_records)
        return WEFT_ERROR(WEFT_INTERNAL, "a use of record %d of %d", (int)record,
                          (int)c->num_records);
    if (c->eviction == WEFT_SPILL_LRU) {
        *out = --c->clock;
        return WEFT_OK;
    }
    if (c->max_uses == 0) {
        *out = c->expected[record];
        return WEFT_OK;
    }
    if (c->at == c->num_uses && c->repeats) {
        c->round_start += c->num_uses;
        c->at = 0;
    }
    if (c->at == c->num_uses || c->uses[c->at] != record)
        return WEFT_ERROR(WEFT_INTERNAL, "a use of record %d, planned: %d (use %zu of %zu)",
                          (int)record, c->at < c->num_uses ? (int)c->uses[c->at] : -1, c->at,
                          c->num_uses);
    uint64_t next = c->next_use[c->at++];
    *out = next == NEVER ? NEVER : c->round_start + next;
    return WEFT_OK;
}

weft_status weft_spill_cache_use(weft_spill_cache *c, int32_t record, bool changes,
                                 weft_spill_use *out)
{
    uint64_t rank = 0;
    WEFT_TRY(next_rank(c, record, &rank));
    weft_spill_use use = {.place = c->place_of[record], .evicted = -1};
    if (use.place < 0) {
        use.is_miss = true;
        use.place = c->heap[0];
        place *emptied = &c->places[use.place];
        use.evicted = emptied->record;
        use.writes_back = emptied->is_changed;
        if (use.evicted >= 0)
            c->place_of[use.evicted] = -1;
        c->place_of[record] = use.place;
        emptied->record = record;
        emptied->is_changed = false;
    }
    c->places[use.place].rank = rank;
    c->places[use.place].is_changed |= changes;
    moved(c, use.place);
    *out = use;
    return WEFT_OK;
}

void weft_spill_cache_expect(weft_spill_cache *c, int32_t record, uint64_t when)
{
    const int32_t p = c->place_of[record];
    c->expected[record] = when;
    if (p < 0 || c->eviction != WEFT_SPILL_PROGRAM)
        return;
    c->places[p].rank = when;
    moved(c, p);
}

int32_t weft_spill_cache_place(const weft_spill_cache *c, int32_t record)
{
    return c->place_of[record];
}
