/* The proof of core/device/device.h that lanes do not disturb each other.
 *
 * Notes are walked in the order in which the host enqueued them, which no order of lanes
 * contradicts. Each lane has a vector clock: how many notes of every lane are done when its next
 * one begins (Lamport 1978; Fidge 1988, Mattern 1989). All ends of ranges cut memory into cells; a
 * cell knows who wrote it last and, since then, each lane's last reader. An operation is compared
 * with these alone, for whoever is ordered behind them is ordered behind those before (Flanagan and
 * Freund 2009, FastTrack). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/device/ops.h"

enum { NONE = -1 };

typedef struct walk {
    const weft_noted *notes;
    const weft_range *ranges;
    size_t count;
    const void **lanes, **events; /* sorted */
    size_t num_lanes, num_events;
    uint32_t *numbers;  /* by note: its number on its lane, from 1 */
    uint32_t *of;       /* by range: its note */
    uint32_t *clocks;   /* [num_lanes + 1, num_lanes]: each lane's, and last the host's */
    uint32_t *recorded; /* [num_events, num_lanes] */
    uintptr_t *ends;    /* of ranges, sorted: cell c goes from ends[c] to ends[c + 1] */
    size_t num_ends;
    uint32_t *cells; /* [num_ends, 1 + num_lanes]: the range + 1 of the last write, and of reads */
} walk;

/* --- tables --------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* Sorts addresses, and drops those that stand there twice. */
static size_t sort(void *addresses, size_t count)
{
    uintptr_t *all = addresses;
    size_t kept = 0;
    qsort(all, count, sizeof *all, by_address);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || all[i] != all[i - 1])
            all[kept++] = all[i];
    return kept;
}

static size_t place(const void *addresses, size_t count, uintptr_t address)
{
    const uintptr_t *found = bsearch(&address, addresses, count, sizeof address, by_address);
    return (size_t)(found - (const uintptr_t *)addresses);
}

static size_t num_rows(const weft_range *range)
{
    return !range->base || range->bytes == 0                   ? 0
           : range->rows == 0 || range->stride == range->bytes ? 1
                                                               : range->rows;
}

/* Where a row begins and ends; dense rows are one. */
static void row_of(const weft_range *range, size_t row, uintptr_t out[2])
{
    const bool is_dense = range->rows > 0 && range->stride == range->bytes;
    out[0] = (uintptr_t)range->base + row * range->stride;
    out[1] = out[0] + (is_dense ? range->rows : 1) * range->bytes;
}

static bool touches(const weft_noted *note)
{
    return note->kind == WEFT_NOTED_TOUCH || note->kind == WEFT_NOTED_COPY ||
           note->kind == WEFT_NOTED_ZERO;
}

static size_t lane_of(const walk *w, const weft_noted *note)
{
    return place(w->lanes, w->num_lanes, (uintptr_t)note->lane);
}

static uint32_t *clock_of(const walk *w, size_t lane)
{
    return w->clocks + lane * w->num_lanes;
}

static void *zeroed(size_t count, size_t size)
{
    return calloc(count + 1, size);
}

static weft_status out_of_memory(void)
{
    return WEFT_ERROR(WEFT_MEMORY, "out of memory for a proof that lanes are ordered");
}

static weft_status list_lanes_and_events(walk *w)
{
    size_t num_ranges = 0;
    w->lanes = zeroed(w->count, sizeof *w->lanes);
    w->events = zeroed(w->count, sizeof *w->events);
    w->numbers = zeroed(w->count, sizeof *w->numbers);
    if (!w->lanes || !w->events || !w->numbers)
        return out_of_memory();
    for (size_t i = 0; i < w->count; i++) {
        const weft_noted *note = &w->notes[i];
        if (note->lane)
            w->lanes[w->num_lanes++] = note->lane;
        if (note->event)
            w->events[w->num_events++] = note->event;
        if (touches(note) && note->first_range + note->num_ranges > num_ranges)
            num_ranges = note->first_range + note->num_ranges;
    }
    w->num_lanes = sort(w->lanes, w->num_lanes);
    w->num_events = sort(w->events, w->num_events);
    w->of = zeroed(num_ranges, sizeof *w->of);
    w->clocks = zeroed((w->num_lanes + 1) * w->num_lanes, sizeof *w->clocks);
    w->recorded = zeroed(w->num_events * w->num_lanes, sizeof *w->recorded);
    return w->of && w->clocks && w->recorded ? WEFT_OK : out_of_memory();
}

static weft_status cut_into_cells(walk *w)
{
    for (size_t i = 0; i < w->count; i++)
        for (size_t k = 0; touches(&w->notes[i]) && k < w->notes[i].num_ranges; k++)
            w->num_ends += 2 * num_rows(&w->ranges[w->notes[i].first_range + k]);
    w->ends = zeroed(w->num_ends, sizeof *w->ends);
    if (!w->ends)
        return out_of_memory();
    w->num_ends = 0;
    for (size_t i = 0; i < w->count; i++)
        for (size_t k = 0; touches(&w->notes[i]) && k < w->notes[i].num_ranges; k++) {
            const weft_range *range = &w->ranges[w->notes[i].first_range + k];
            w->of[w->notes[i].first_range + k] = (uint32_t)i;
            for (size_t row = 0; row < num_rows(range); row++, w->num_ends += 2)
                row_of(range, row, w->ends + w->num_ends);
        }
    w->num_ends = sort(w->ends, w->num_ends);
    w->cells = zeroed(w->num_ends * (1 + w->num_lanes), sizeof *w->cells);
    return w->cells ? WEFT_OK : out_of_memory();
}

static void release(walk *w)
{
    free(w->lanes);
    free(w->events);
    free(w->numbers);
    free(w->of);
    free(w->clocks);
    free(w->recorded);
    free(w->ends);
    free(w->cells);
}

/* --- the walk ------------------------------------------------------------------------------- */

static void join(const walk *w, uint32_t *clock, const uint32_t *with)
{
    for (size_t i = 0; i < w->num_lanes; i++)
        clock[i] = clock[i] < with[i] ? with[i] : clock[i];
}

static bool is_ordered(const walk *w, uint32_t range, size_t lane)
{
    const uint32_t note = w->of[range];
    return w->numbers[note] <= clock_of(w, lane)[lane_of(w, &w->notes[note])];
}

/* An earlier range of the cell that this one is not ordered behind; NONE. */
static int64_t disturbed(const walk *w, size_t cell, const weft_range *range, size_t lane)
{
    const uint32_t *known = w->cells + cell * (1 + w->num_lanes);
    for (size_t i = 0; i <= (range->writes ? w->num_lanes : 0); i++)
        if (known[i] > 0 && !is_ordered(w, known[i] - 1, lane))
            return (int64_t)known[i] - 1;
    return NONE;
}

static void note_in(walk *w, size_t cell, size_t index, size_t lane)
{
    uint32_t *known = w->cells + cell * (1 + w->num_lanes);
    if (!w->ranges[index].writes) {
        known[1 + lane] = (uint32_t)index + 1;
        return;
    }
    memset(known, 0, (1 + w->num_lanes) * sizeof *known);
    known[0] = (uint32_t)index + 1;
}

/* Compares one row of a range with what the cells know. False: it found a race. */
static bool walk_row(walk *w, size_t index, size_t row, size_t lane, weft_race *out)
{
    const weft_range *range = &w->ranges[index];
    uintptr_t ends[2];
    row_of(range, row, ends);
    const size_t first = place(w->ends, w->num_ends, ends[0]);
    for (size_t c = first; w->ends[c] < ends[1]; c++) {
        const int64_t before = disturbed(w, c, range, lane);
        if (before != NONE) {
            size_t end = c + 1;
            while (w->ends[end] < ends[1] && disturbed(w, end, range, lane) == before)
                end++;
            *out = (weft_race){.notes = {&w->notes[w->of[before]], &w->notes[w->of[index]]},
                               .ranges = {&w->ranges[before], range},
                               .base = (const void *)w->ends[c], /* NOLINT */
                               .bytes = w->ends[end] - w->ends[c]};
            return false;
        }
        note_in(w, c, index, lane);
    }
    return true;
}

static bool walk_ranges(walk *w, const weft_noted *note, size_t lane, weft_race *out)
{
    for (size_t k = note->first_range; k < note->first_range + note->num_ranges; k++)
        for (size_t row = 0; row < num_rows(&w->ranges[k]); row++)
            if (!walk_row(w, k, row, lane, out))
                return false;
    return true;
}

/* False: it found a race. */
static bool walk_note(walk *w, size_t i, weft_race *out)
{
    const weft_noted *note = &w->notes[i];
    uint32_t *host = clock_of(w, w->num_lanes);
    uint32_t *recorded =
        note->event
            ? w->recorded + place(w->events, w->num_events, (uintptr_t)note->event) * w->num_lanes
            : NULL;
    if (note->kind == WEFT_NOTED_HOST_WAIT) {
        join(w, host, recorded);
        return true;
    }
    const size_t lane = lane_of(w, note);
    uint32_t *clock = clock_of(w, lane);
    if (note->kind == WEFT_NOTED_SYNC) {
        join(w, host, clock);
        return true;
    }
    join(w, clock, host);
    w->numbers[i] = ++clock[lane];
    if (note->kind == WEFT_NOTED_RECORD)
        memcpy(recorded, clock, w->num_lanes * sizeof *clock);
    else if (note->kind == WEFT_NOTED_WAIT)
        join(w, clock, recorded);
    return !touches(note) || walk_ranges(w, note, lane, out);
}

weft_status weft_race_find(const weft_noted *notes, size_t count, const weft_range *ranges,
                           weft_race *out)
{
    walk w = {.notes = notes, .ranges = ranges, .count = count};
    weft_race found = {0};
    weft_status status = list_lanes_and_events(&w);
    if (status == WEFT_OK)
        status = cut_into_cells(&w);
    for (size_t i = 0; status == WEFT_OK && i < count && walk_note(&w, i, &found); i++)
        ;
    release(&w);
    if (status == WEFT_OK)
        *out = found;
    return status;
}

/* --- words ---------------------------------------------------------------------------------- */

static const char *label_of(const weft_noted *note)
{
    return note->kind == WEFT_NOTED_COPY   ? "copy"
           : note->kind == WEFT_NOTED_ZERO ? "zeroing"
                                           : note->label;
}

static int tell(const weft_race *race, int which, char *text, size_t bytes)
{
    const weft_noted *note = race->notes[which];
    const weft_range *range = race->ranges[which];
    return snprintf(text, bytes, "lane %s: %s of %s %s %s", note->lane->name, label_of(note),
                    note->operation.module, range->writes ? "writes" : "reads", range->name);
}

weft_race_words weft_race_text(const weft_race *race)
{
    weft_race_words words = {""};
    const size_t size = sizeof words.text;
    size_t used = 0;
    for (int i = 0; race->notes[0] && i < 2 && used < size; i++) {
        if (i == 1)
            used += (size_t)snprintf(words.text + used, size - used, "; ");
        used += (size_t)tell(race, i, words.text + used, size - used);
    }
    if (race->notes[0] && used < size)
        snprintf(words.text + used, size - used,
                 "; %zu bytes are the same, and no event orders them", race->bytes);
    return words;
}
