#include "launcher/planning/file_price.h"

/* Parts of what lies in a place, as in parallel/records/records.c. */
typedef struct place {
    int32_t record; /* -1: none */
    unsigned here, differ;
} place;

struct weft_file_walk {
    weft_records_sizes sizes;
    weft_spill_eviction eviction;
    weft_file_rates rates;
    weft_arena *arena;
    int32_t *uses; /* of a step */
    size_t num_uses, max_uses;
    weft_spill_cache *cache; /* NULL: uses are listed */
    place *places;
    uint8_t *in_file; /* of records: parts that were changed */
    weft_file_bytes bytes;
};

weft_status weft_file_walk_make(const weft_records_sizes *sizes, weft_spill_eviction eviction,
                                const weft_file_rates *rates, weft_arena *arena,
                                weft_file_walk **out)
{
    weft_file_walk *w;
    WEFT_TRY(weft_arena_alloc(arena, sizeof **out, &w));
    *w = (weft_file_walk){.sizes = *sizes, .eviction = eviction, .rates = *rates, .arena = arena};
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)sizes->num_places, &w->places));
    for (int32_t i = 0; i < sizes->num_places; i++)
        w->places[i] = (place){.record = -1};
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)sizes->num_records, &w->in_file));
    *out = w;
    return WEFT_OK;
}

weft_status weft_file_walk_learn(weft_file_walk *w)
{
    if (w->cache)
        return WEFT_OK;
    const size_t planned = w->eviction == WEFT_SPILL_PROGRAM ? w->num_uses : 0;
    WEFT_TRY(weft_spill_cache_create(w->sizes.num_places, w->sizes.num_records, planned,
                                     w->eviction, w->arena, &w->cache));
    return planned > 0 ? weft_spill_cache_plan(w->cache, w->uses, w->num_uses, true) : WEFT_OK;
}

static weft_status list(weft_file_walk *w, int32_t record)
{
    if (w->num_uses == w->max_uses) {
        const size_t wanted = w->max_uses > 0 ? 2 * w->max_uses : 256;
        int32_t *moved;
        WEFT_TRY(WEFT_ARRAY(w->arena, wanted, &moved));
        for (size_t i = 0; i < w->num_uses; i++)
            moved[i] = w->uses[i];
        w->uses = moved;
        w->max_uses = wanted;
    }
    w->uses[w->num_uses++] = record;
    return WEFT_OK;
}

uint64_t weft_record_set_bytes(const weft_records_sizes *sizes, unsigned parts)
{
    uint64_t bytes = 0;
    for (int part = 0; part < WEFT_NUM_RECORD_PARTS; part++)
        bytes += parts >> part & 1 ? weft_spill_padded_bytes(sizes->part_bytes[part]) : 0;
    return bytes;
}

weft_status weft_file_walk_use(weft_file_walk *w, int32_t record, unsigned reads, unsigned changes,
                               weft_file_times *out)
{
    weft_spill_use use;
    *out = (weft_file_times){0};
    if (!w->cache)
        return list(w, record);
    WEFT_TRY(weft_spill_cache_use(w->cache, record, changes != 0, &use));
    place *p = &w->places[use.place];
    if (use.is_miss) {
        out->write_us = w->rates.write_us[p->differ];
        w->bytes.written += weft_record_set_bytes(&w->sizes, p->differ);
        if (p->record >= 0)
            w->in_file[p->record] |= (uint8_t)p->differ;
        *p = (place){.record = record};
    }
    const unsigned missing = reads & ~p->here & w->in_file[record];
    out->read_us = w->rates.read_us[missing];
    w->bytes.read += weft_record_set_bytes(&w->sizes, missing);
    p->here |= reads | changes;
    p->differ |= changes;
    return WEFT_OK;
}

void weft_file_walk_drop(weft_file_walk *w, int32_t record, unsigned parts)
{
    const int32_t index = w->cache ? weft_spill_cache_place(w->cache, record) : -1;
    w->in_file[record] &= (uint8_t)~parts;
    if (index >= 0)
        w->places[index].differ &= ~parts;
}

int32_t weft_file_walk_place(const weft_file_walk *w, int32_t record)
{
    return w->cache ? weft_spill_cache_place(w->cache, record) : -1;
}

weft_file_bytes weft_file_walk_bytes(const weft_file_walk *w)
{
    return w->bytes;
}
