#include "layers/tier/placing.h"

#include <string.h>

size_t weft_placing_capacity(int num_experts, int num_ranks)
{
    return weft_placement_capacity(num_experts, num_ranks);
}

static bool together(const weft_placing *p, int a, int b)
{
    return !p->setup.nodes || p->setup.nodes[a] == p->setup.nodes[b];
}

/* Lists the node's ranks, rising, if `rank` is the node's first; else none. */
static int find_members(const weft_placing *p, int rank)
{
    int count = 0;
    for (int r = 0; r < p->setup.num_ranks; r++)
        if (together(p, rank, r))
            p->members[count++] = r;
    return p->members[0] == rank ? count : 0;
}

weft_status weft_placing_init(const weft_placing_setup *setup, weft_arena *arena, weft_placing *out)
{
    weft_placing p = {.setup = *setup};
    const size_t ranks = (size_t)setup->num_ranks, experts = (size_t)setup->num_experts;
    const size_t capacity = weft_placing_capacity(setup->num_experts, setup->num_ranks);
    WEFT_TRY(WEFT_ARRAY(arena, (ranks + 1) * experts, &p.before));
    WEFT_TRY(WEFT_ARRAY(arena, ranks, &p.members));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.numbers));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.home));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.rows));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.kept));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.upload_us));
    WEFT_TRY(WEFT_ARRAY(arena, experts, &p.compute_us));
    WEFT_TRY(WEFT_ARRAY(arena, capacity, &p.found));
    WEFT_TRY(WEFT_ARRAY(arena, experts + 1, &p.first_found));
    WEFT_TRY(WEFT_ARRAY(arena, experts + ranks, &p.cursors));
    WEFT_TRY(weft_arena_alloc_array(
        arena, weft_placement_scratch_bytes(setup->num_experts, setup->num_ranks) / 8 + 1, 8,
        &p.scratch));
    for (int r = 0; r < setup->num_ranks; r++)
        if (find_members(&p, r) > WEFT_PLACEMENT_MAX_RANKS)
            return WEFT_KEY_ERROR("offload.placement",
                                  "balanced deals a layer's experts out over at most %d ranks of "
                                  "a node; home would",
                                  WEFT_PLACEMENT_MAX_RANKS);
    *out = p;
    return WEFT_OK;
}

/* --- where experts run ---------------------------------------------------------------------- */

static int64_t rows_of(const weft_placing *p, int expert)
{
    return p->before[(size_t)p->setup.num_ranks * (size_t)p->num_experts + (size_t)expert];
}

static void sum_senders(weft_placing *p, const int64_t *sent)
{
    const size_t experts = (size_t)p->num_experts;
    memset(p->before, 0, experts * sizeof *p->before);
    for (size_t i = 0; i < (size_t)p->setup.num_ranks * experts; i++)
        p->before[i + experts] = p->before[i] + sent[i];
}

/* Places the experts whose home is among the `count` members of a node. */
static void place_node(weft_placing *p, int count, const bool *kept)
{
    int num = 0;
    for (int m = 0; m < count; m++)
        for (int i = 0; i < p->local_experts; i++, num++) {
            const int e = p->members[m] * p->local_experts + i;
            p->numbers[num] = e;
            p->home[num] = m;
            p->rows[num] = (int32_t)rows_of(p, e);
            p->kept[num] = kept && kept[e];
            p->upload_us[num] = p->setup.upload_us;
            p->compute_us[num] = (double)rows_of(p, e) * p->setup.row_us;
        }
    weft_placement_find(&(weft_placement_shape){.num_experts = num,
                                                .num_ranks = count,
                                                .home = p->home,
                                                .kept = p->kept,
                                                .rows = p->rows,
                                                .upload_us = p->upload_us,
                                                .compute_us = p->compute_us,
                                                .replicas = p->setup.replicas > 1,
                                                .max_parts = p->setup.replicas},
                        p->scratch,
                        &(weft_placement){.parts = p->found, .first_part = p->first_found});
}

/* Ranks of a node may be apart: experts are placed node by node, and listed by number. */
void weft_placing_find(weft_placing *p, int local_experts, const int64_t *sent, const bool *kept,
                       weft_placement_part *parts, int32_t *first_part)
{
    p->local_experts = local_experts;
    p->num_experts = local_experts * p->setup.num_ranks;
    sum_senders(p, sent);
    int32_t *const counts = first_part + 1;
    for (int pass = 0; pass < 2; pass++) { /* first counts parts, then writes them */
        for (int rank = 0; rank < p->setup.num_ranks; rank++) {
            const int count = find_members(p, rank);
            if (count == 0)
                continue;
            place_node(p, count, kept);
            for (int i = 0; i < count * local_experts; i++) {
                const int e = p->numbers[i];
                const int32_t first = p->first_found[i], end = p->first_found[i + 1];
                if (pass == 0)
                    counts[e] = end - first;
                for (int32_t k = first; k < end && pass == 1; k++) {
                    weft_placement_part part = p->found[k];
                    part.expert = e;
                    part.rank = p->members[part.rank];
                    parts[first_part[e] + k - first] = part;
                }
            }
        }
        first_part[0] = 0;
        for (int e = 0; e < p->num_experts && pass == 0; e++)
            counts[e] += first_part[e];
    }
}

weft_status weft_placing_check(const weft_placing *p, const bool *kept,
                               const weft_placement_part *parts, const int32_t *first_part)
{
    for (int e = 0; e < p->num_experts; e++) {
        const int home = e / p->local_experts;
        int64_t row = 0;
        bool fits = first_part[e + 1] > first_part[e];
        for (int32_t i = first_part[e]; i < first_part[e + 1]; i++) {
            fits = fits && parts[i].expert == e && parts[i].first_row == row &&
                   parts[i].rank >= 0 && parts[i].rank < p->setup.num_ranks &&
                   (parts[i].num_rows > 0 || rows_of(p, e) == 0) &&
                   together(p, home, parts[i].rank);
            for (int32_t k = first_part[e]; k < i && fits; k++)
                fits = parts[k].rank != parts[i].rank;
            row += parts[i].num_rows;
        }
        if (!fits || row != rows_of(p, e) ||
            (((kept && kept[e]) || row == 0) && parts[first_part[e]].rank != home))
            return WEFT_ERROR(WEFT_INTERNAL,
                              "the placement of expert %d, at home on rank %d, does not have its "
                              "%lld rows once each",
                              e, home, (long long)rows_of(p, e));
    }
    return WEFT_OK;
}

/* --- rows ----------------------------------------------------------------------------------- */

/* The number of a sender's rows in a part. */
static int64_t overlap(const weft_placing *p, const weft_placement_part *part, int sender)
{
    const int64_t *at = p->before + (size_t)sender * (size_t)p->num_experts + (size_t)part->expert;
    const int64_t end = part->first_row + part->num_rows;
    const int64_t from = at[0] > part->first_row ? at[0] : part->first_row;
    const int64_t to = at[p->num_experts] < end ? at[p->num_experts] : end;
    return to > from ? to - from : 0;
}

void weft_placing_sends(weft_placing *p, const weft_placement_part *parts,
                        const int32_t *first_part, size_t *out_rows, int32_t *out_to)
{
    const int32_t num_parts = first_part[p->num_experts];
    int64_t row = 0;
    size_t next = 0;
    for (int r = 0; r < p->setup.num_ranks; r++)
        out_rows[r] = 0;
    for (int32_t i = 0; i < num_parts; i++)
        out_rows[parts[i].rank] += (size_t)overlap(p, &parts[i], p->setup.rank);
    for (int r = 0; r < p->setup.num_ranks; r++) {
        p->cursors[r] = (int64_t)next;
        next += out_rows[r];
    }
    for (int32_t i = 0; i < num_parts; i++)
        for (int64_t k = overlap(p, &parts[i], p->setup.rank); k > 0; k--)
            out_to[row++] = (int32_t)p->cursors[parts[i].rank]++;
}

static int seat_of(const weft_placing *p, int expert)
{
    return weft_placing_seat(expert, p->setup.rank * p->local_experts, p->local_experts);
}

void weft_placing_receives(weft_placing *p, const weft_placement_part *parts,
                           const int32_t *first_part, size_t *out_rows, int64_t *offsets)
{
    for (int r = 0; r < p->setup.num_ranks; r++)
        out_rows[r] = 0;
    for (int s = 0; s <= p->num_experts; s++)
        offsets[s] = 0;
    for (int32_t i = 0; i < first_part[p->num_experts]; i++) {
        if (parts[i].rank != p->setup.rank)
            continue;
        offsets[seat_of(p, parts[i].expert) + 1] = parts[i].num_rows;
        for (int r = 0; r < p->setup.num_ranks; r++)
            out_rows[r] += (size_t)overlap(p, &parts[i], r);
    }
    for (int s = 0; s < p->num_experts; s++)
        offsets[s + 1] += offsets[s];
}

void weft_placing_order(weft_placing *p, const weft_placement_part *parts,
                        const int32_t *first_part, const int64_t *offsets, int32_t *order,
                        int32_t *inverse)
{
    int32_t came = 0;
    memcpy(p->cursors, offsets, (size_t)p->num_experts * sizeof *p->cursors);
    for (int r = 0; r < p->setup.num_ranks; r++)
        for (int32_t i = 0; i < first_part[p->num_experts]; i++) {
            if (parts[i].rank != p->setup.rank)
                continue;
            int64_t *row = &p->cursors[seat_of(p, parts[i].expert)];
            for (int64_t k = overlap(p, &parts[i], r); k > 0; k--, came++, (*row)++) {
                order[*row] = came;
                inverse[came] = (int32_t)*row;
            }
        }
}

void weft_placing_select(const weft_placing *p, const weft_placement_part *parts,
                         const int32_t *first_part, const int64_t *offsets, int32_t *out_to)
{
    for (int32_t i = 0; i < first_part[p->num_experts]; i++) {
        const bool is_here = parts[i].rank == p->setup.rank;
        const int64_t first = is_here ? offsets[seat_of(p, parts[i].expert)] : 0;
        for (int64_t k = 0; k < parts[i].num_rows; k++)
            *out_to++ = is_here ? (int32_t)(first + k) : -1;
    }
}
