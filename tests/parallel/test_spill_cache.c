/* The cache over a spill file against Belady's rule as a plain loop, the fewest misses of any
 * choice, and LRU as a plain list. */
#include <stdlib.h>

#include "core/rng.h"
#include "parallel/records/records.h"
#include "tests/core/check.h"

enum { MAX_USES = 400, MAX_RECORDS = 40 };

static uint64_t draw_key;
static int32_t draw(int32_t below)
{
    static uint64_t n;
    int32_t drawn = (int32_t)(weft_rng_uniform(7, draw_key, n++) * (float)below);
    return drawn < below ? drawn : below - 1;
}

typedef struct sequence {
    int32_t places, records;
    int num_uses;
    int32_t uses[MAX_USES];
} sequence;

/* Some uniform, some with favourites, some like a step: forward through all, then back. */
static sequence draw_sequence(uint64_t key)
{
    draw_key = key;
    sequence s = {1 + draw(12), 1 + draw(MAX_RECORDS), 1 + draw(MAX_USES), {0}};
    for (int i = 0; i < s.num_uses; i++) {
        int32_t period = 2 * s.records, at = i % period;
        s.uses[i] = key % 3 == 0   ? draw(s.records)
                    : key % 3 == 1 ? draw(1 + draw(s.records))
                                   : (at < s.records ? at : period - 1 - at);
    }
    return s;
}

/* When the record is used at or after `from`; num_uses (or, repeated, more): never. */
static int next_use(const sequence *s, int32_t record, int from, bool repeats)
{
    for (int i = 0; i < s->num_uses; i++) {
        int at = from + i;
        if (!repeats && at >= s->num_uses)
            break;
        if (s->uses[at % s->num_uses] == record)
            return at;
    }
    return 1 << 30;
}

static uint64_t misses_of_belady(const sequence *s, bool repeats, int rounds)
{
    int32_t held[16];
    int num_held = 0;
    uint64_t misses = 0;
    for (int i = 0; i < rounds * s->num_uses; i++) {
        int32_t record = s->uses[i % s->num_uses];
        int found = -1, last = 0;
        for (int p = 0; p < num_held; p++) {
            if (held[p] == record)
                found = p;
            if (next_use(s, held[p], i + 1, repeats) > next_use(s, held[last], i + 1, repeats))
                last = p;
        }
        if (found >= 0)
            continue;
        misses++;
        held[num_held < s->places ? num_held++ : last] = record;
    }
    return misses;
}

static uint64_t misses_of_lru(const sequence *s)
{
    int32_t held[16]; /* latest first */
    int num_held = 0;
    uint64_t misses = 0;
    for (int i = 0; i < s->num_uses; i++) {
        int found = 0;
        while (found < num_held && held[found] != s->uses[i])
            found++;
        if (found == num_held) {
            misses++;
            if (num_held < s->places)
                num_held++;
            else
                found--;
        }
        memmove(held + 1, held, (size_t)found * sizeof *held);
        held[0] = s->uses[i];
    }
    return misses;
}

/* The cache's misses, while it is checked against a plain picture of places and file. */
static uint64_t misses_of_cache(const sequence *s, weft_spill_eviction eviction, bool repeats,
                                int rounds)
{
    weft_arena arena = {0};
    weft_spill_cache *cache;
    int32_t held[16], version[MAX_RECORDS] = {0}, in_place[16], in_file[MAX_RECORDS] = {0};
    uint64_t misses = 0;
    for (int p = 0; p < 16; p++)
        held[p] = -1;
    OK(weft_spill_cache_create(s->places, s->records, MAX_USES, eviction, &arena, &cache));
    OK(weft_spill_cache_plan(cache, s->uses, (size_t)s->num_uses, repeats));
    for (int i = 0; i < rounds * s->num_uses; i++) {
        int32_t record = s->uses[i % s->num_uses];
        bool changes = draw(3) == 0;
        weft_spill_use use;
        OK(weft_spill_cache_use(cache, record, changes, &use));
        assert_in_range(use.place, 0, s->places - 1);
        if (use.is_miss) {
            assert_int_equal(use.evicted, held[use.place]);
            const bool differs = use.evicted >= 0 && in_file[use.evicted] != version[use.evicted];
            assert_int_equal(use.writes_back, differs);
            if (differs)
                in_file[use.evicted] = in_place[use.place];
            held[use.place] = record;
            in_place[use.place] = in_file[record];
            misses++;
        } else {
            assert_false(use.writes_back);
            assert_int_equal(use.evicted, -1);
        }
        assert_int_equal(held[use.place], record);
        assert_int_equal(in_place[use.place], version[record]); /* nothing lost, nothing stale */
        if (changes)
            in_place[use.place] = ++version[record];
        assert_int_equal(weft_spill_cache_place(cache, record), use.place);
    }
    weft_arena_release(&arena);
    return misses;
}

CASE(program_misses_as_belady)
{
    uint64_t program = 0, lru = 0;
    for (uint64_t key = 0; key < 1000; key++) {
        sequence s = draw_sequence(key);
        uint64_t misses = misses_of_cache(&s, WEFT_SPILL_PROGRAM, false, 1);
        assert_int_equal(misses, misses_of_belady(&s, false, 1));
        program += misses;
        lru += misses_of_lru(&s);
    }
    assert_true(program < lru);
    print_message("1000 sequences: %d misses, lru %d\n", (int)program, (int)lru);
}

CASE(a_plan_that_repeats_looks_past_its_end)
{
    uint64_t repeated = 0, once = 0;
    for (uint64_t key = 0; key < 200; key++) {
        sequence s = draw_sequence(key);
        s.num_uses = s.num_uses % 100 + 1;
        uint64_t misses = misses_of_cache(&s, WEFT_SPILL_PROGRAM, true, 3);
        assert_int_equal(misses, misses_of_belady(&s, true, 3));
        repeated += misses;
        once += 3 * misses_of_belady(&s, false, 1);
    }
    assert_true(repeated < once);
}

CASE(lru_is_lru)
{
    for (uint64_t key = 0; key < 300; key++) {
        sequence s = draw_sequence(key);
        assert_int_equal(misses_of_cache(&s, WEFT_SPILL_LRU, false, 1), misses_of_lru(&s));
    }
}

/* The fewest misses from use i on, with these records held: every choice is tried. */
static int fewest(const sequence *s, int i, unsigned held, signed char memo[][1 << 7])
{
    if (i == s->num_uses)
        return 0;
    if (memo[i][held] >= 0)
        return memo[i][held];
    unsigned wanted = 1U << s->uses[i];
    int best = 100, num_held = 0;
    for (int r = 0; r < s->records; r++)
        num_held += (held >> r) & 1;
    if (held & wanted)
        best = fewest(s, i + 1, held, memo);
    else if (num_held < s->places)
        best = 1 + fewest(s, i + 1, held | wanted, memo);
    else
        for (int r = 0; r < s->records; r++)
            if (held >> r & 1) {
                int misses = 1 + fewest(s, i + 1, (held & ~(1U << r)) | wanted, memo);
                best = misses < best ? misses : best;
            }
    return memo[i][held] = (signed char)best;
}

CASE(no_choice_misses_less)
{
    static signed char memo[24][1 << 7];
    for (uint64_t key = 0; key < 300; key++) {
        sequence s = draw_sequence(key * 3); /* uniform */
        s.records = 2 + s.records % 6;
        s.places = 1 + s.places % 4;
        s.num_uses = 24;
        for (int i = 0; i < s.num_uses; i++)
            s.uses[i] = draw(s.records);
        memset(memo, -1, sizeof memo);
        assert_int_equal(misses_of_cache(&s, WEFT_SPILL_PROGRAM, false, 1), fewest(&s, 0, 0, memo));
    }
}

/* What places hold stays over plans, and a new plan's order counts. */
CASE(a_new_plan_keeps_what_is_there)
{
    weft_arena arena = {0};
    weft_spill_cache *cache;
    weft_spill_use use;
    OK(weft_spill_cache_create(2, 4, 4, WEFT_SPILL_PROGRAM, &arena, &cache));
    OK(weft_spill_cache_plan(cache, (const int32_t[]){0, 1}, 2, false));
    OK(weft_spill_cache_use(cache, 0, true, &use));
    OK(weft_spill_cache_use(cache, 1, false, &use));
    OK(weft_spill_cache_plan(cache, (const int32_t[]){2, 1, 0, 3}, 4, false));
    OK(weft_spill_cache_use(cache, 2, false, &use));
    assert_true(use.is_miss && use.evicted == 0 && use.writes_back); /* 1 comes sooner */
    OK(weft_spill_cache_use(cache, 1, true, &use));
    assert_false(use.is_miss);
    OK(weft_spill_cache_use(cache, 0, false, &use));
    assert_true(use.is_miss && use.evicted == 2 && !use.writes_back); /* both are over: unchanged */
    assert_int_equal(weft_spill_cache_place(cache, 2), -1);
    weft_arena_release(&arena);
}

CASE(misuse_is_told)
{
    weft_arena arena = {0};
    weft_spill_cache *cache;
    weft_spill_use use;
    FAILS(weft_spill_cache_create(0, 4, 4, WEFT_SPILL_LRU, &arena, &cache), WEFT_INTERNAL,
          "0 places for 4 records");
    OK(weft_spill_cache_create(2, 4, 2, WEFT_SPILL_PROGRAM, &arena, &cache));
    FAILS(weft_spill_cache_plan(cache, (const int32_t[]){0, 1, 2}, 3, false), WEFT_INTERNAL,
          "3 uses, made for 2");
    FAILS(weft_spill_cache_plan(cache, (const int32_t[]){0, 4}, 2, false), WEFT_INTERNAL,
          "use 1 is of record 4 of 4");
    OK(weft_spill_cache_plan(cache, (const int32_t[]){3}, 1, false));
    FAILS(weft_spill_cache_use(cache, 4, false, &use), WEFT_INTERNAL, "record 4 of 4");
    FAILS(weft_spill_cache_use(cache, 2, false, &use), WEFT_INTERNAL, "record 2, planned: 3");
    OK(weft_spill_cache_use(cache, 3, false, &use));
    FAILS(weft_spill_cache_use(cache, 3, false, &use), WEFT_INTERNAL, "planned: -1");
    weft_arena_release(&arena);
    for (int n = 1;; n++) {
        weft_alloc_fail_after(n);
        weft_status status = weft_spill_cache_create(2, 4, 2, WEFT_SPILL_PROGRAM, &arena, &cache);
        weft_alloc_fail_after(0);
        weft_arena_release(&arena);
        if (status == WEFT_OK)
            break;
        assert_int_equal(status, WEFT_MEMORY);
        weft_error_clear();
    }
}
