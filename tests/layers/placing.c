/* Experts that run on other ranks of their node: whatever is drawn, every row reaches one rank of
 * its expert's node once, rows of an expert stand in order of sender, and what a placement lacks is
 * found. All ranks are played by one process, rows carry their names. */
#include <string.h>

#include "layers/tier/placing.h"
#include "tests/expect.h"

enum { MAX_RANKS = 8, MAX_LOCAL = 6, MAX_EXPERTS = MAX_RANKS * MAX_LOCAL, NUM_DRAWS = 3000 };
enum { MAX_ROWS = 12000 };

static uint64_t drawn;

static int draw_below(int bound)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (int)((drawn >> 33) % (uint64_t)bound);
}

/* A row: its sender, expert, and number among those of both. */
typedef struct row {
    int sender, expert, number;
} row;

typedef struct drawn_case {
    int ranks, local, experts, nodes[MAX_RANKS], replicas;
    int64_t sent[MAX_RANKS * MAX_EXPERTS];
    bool kept[MAX_EXPERTS];
    double upload_us;
} drawn_case;

static drawn_case draw(void)
{
    drawn_case c = {.ranks = 1 + draw_below(MAX_RANKS), .local = 1 + draw_below(MAX_LOCAL)};
    const int num_nodes = 1 + draw_below(3), most = 1 + draw_below(40);
    c.experts = c.ranks * c.local;
    c.replicas = draw_below(2) ? 1 : 2 + draw_below(4);
    c.upload_us = draw_below(3) * 10;
    for (int r = 0; r < c.ranks; r++)
        c.nodes[r] = draw_below(num_nodes);
    for (int e = 0; e < c.experts; e++) {
        const bool hot = draw_below(8) == 0, absent = draw_below(5) == 0;
        c.kept[e] = draw_below(4) == 0;
        for (int r = 0; r < c.ranks && !absent; r++)
            c.sent[r * c.experts + e] = draw_below(hot ? 8 * most : most);
    }
    return c;
}

static weft_placing placing_of(const drawn_case *c, int rank, weft_arena *arena)
{
    weft_placing p = {0};
    EXPECT_OK(weft_placing_init(&(weft_placing_setup){.num_ranks = c->ranks,
                                                      .rank = rank,
                                                      .nodes = c->nodes,
                                                      .num_experts = c->experts,
                                                      .replicas = c->replicas,
                                                      .upload_us = c->upload_us,
                                                      .row_us = 1},
                                arena, &p));
    return p;
}

typedef struct rank_state {
    weft_placing placing;
    weft_placement_part parts[MAX_EXPERTS + MAX_RANKS];
    int32_t first_part[MAX_EXPERTS + 1];
    size_t sends[MAX_RANKS], comes[MAX_RANKS];
    int64_t offsets[MAX_EXPERTS + 1];
    row sent[MAX_ROWS], came[MAX_ROWS];
    int32_t order[MAX_ROWS], inverse[MAX_ROWS];
} rank_state;

static rank_state ranks[MAX_RANKS];
static int num_moved, num_split;

static void fill_sends(const drawn_case *c, int r)
{
    static int32_t to[MAX_ROWS];
    int i = 0;
    weft_placing_sends(&ranks[r].placing, ranks[r].parts, ranks[r].first_part, ranks[r].sends, to);
    for (int e = 0; e < c->experts; e++)
        for (int k = 0; k < c->sent[r * c->experts + e]; k++)
            ranks[r].sent[to[i++]] = (row){r, e, k};
}

/* The all-to-all. */
static void receive(const drawn_case *c, int r)
{
    rank_state *s = &ranks[r];
    size_t came = 0;
    weft_placing_receives(&s->placing, s->parts, s->first_part, s->comes, s->offsets);
    for (int from = 0; from < c->ranks; from++) {
        size_t at = 0;
        for (int before = 0; before < r; before++)
            at += ranks[from].sends[before];
        EXPECT(s->comes[from] == ranks[from].sends[r], "%zu rows from %d to %d, not %zu",
               s->comes[from], from, r, ranks[from].sends[r]);
        memcpy(s->came + came, ranks[from].sent + at, s->comes[from] * sizeof(row));
        came += s->comes[from];
    }
    EXPECT((int64_t)came == s->offsets[c->experts], "%zu rows at %lld places", came,
           (long long)s->offsets[c->experts]);
    weft_placing_order(&s->placing, s->parts, s->first_part, s->offsets, s->order, s->inverse);
}

/* Every row of an expert once, over all ranks; on one rank those that follow each other. */
static void check_rows(const drawn_case *c)
{
    static int64_t seen[MAX_RANKS * MAX_EXPERTS];
    memset(seen, 0, sizeof seen);
    for (int r = 0; r < c->ranks; r++)
        for (int s = 0; s < c->experts; s++) {
            const int e = weft_placing_expert(s, r * c->local, c->local);
            EXPECT(weft_placing_seat(e, r * c->local, c->local) == s, "seat %d of rank %d", s, r);
            const row *before = NULL;
            for (int64_t i = ranks[r].offsets[s]; i < ranks[r].offsets[s + 1]; i++) {
                const row *at = &ranks[r].came[ranks[r].order[i]];
                EXPECT(ranks[r].inverse[ranks[r].order[i]] == i && at->expert == e,
                       "a row of expert %d among those of %d", at->expert, e);
                EXPECT(c->nodes[r] == c->nodes[e / c->local], "expert %d on rank %d", e, r);
                EXPECT(!before || (at->sender == before->sender
                                       ? at->number == before->number + 1
                                       : at->sender > before->sender && at->number == 0),
                       "expert %d: row %d of %d", e, at->number, at->sender);
                seen[at->sender * c->experts + e]++;
                before = at;
            }
            num_moved += before && r != e / c->local;
        }
    for (int i = 0; i < c->ranks * c->experts; i++)
        EXPECT(seen[i] == c->sent[i], "rank %d, expert %d: %lld of %lld rows", i / c->experts,
               i % c->experts, (long long)seen[i], (long long)c->sent[i]);
}

/* What is wrong with one part is found. */
static void check_faults(const drawn_case *c)
{
    const rank_state *s = &ranks[0];
    static weft_placement_part parts[MAX_EXPERTS + MAX_RANKS];
    const int32_t num = s->first_part[c->experts], at = draw_below(num);
    for (int fault = 0; fault < 3; fault++) {
        memcpy(parts, s->parts, (size_t)num * sizeof *parts);
        parts[at].num_rows += fault == 0;
        parts[at].first_row += fault == 1;
        parts[at].rank = fault == 2 ? c->ranks : parts[at].rank;
        EXPECT_ERROR(weft_placing_check(&s->placing, c->kept, parts, s->first_part), WEFT_INTERNAL,
                     "rows once each");
    }
    if (s->first_part[parts[at].expert + 1] - s->first_part[parts[at].expert] > 1) {
        const int32_t first = s->first_part[parts[at].expert];
        memcpy(parts, s->parts, (size_t)num * sizeof *parts);
        parts[first + 1].rank = parts[first].rank;
        num_split++;
        EXPECT_ERROR(weft_placing_check(&s->placing, c->kept, parts, s->first_part), WEFT_INTERNAL,
                     "rows once each");
    }
}

/* All ranks have all tokens: every row is taken by one rank, where its expert's stand, in order. */
static void check_selected(const drawn_case *c)
{
    static int32_t to[MAX_RANKS * MAX_ROWS], owner[MAX_RANKS * MAX_ROWS];
    drawn_case whole = *c;
    weft_arena arena = {0};
    int num = 0;
    memset(whole.sent, 0, sizeof whole.sent);
    for (int e = 0; e < c->experts; e++)
        for (int r = 0; r < c->ranks; r++)
            whole.sent[e] += c->sent[r * c->experts + e];
    for (int e = 0; e < c->experts; e++)
        num += (int)whole.sent[e];
    for (int i = 0; i < num; i++)
        owner[i] = -1;
    for (int r = 0; r < c->ranks; r++) {
        rank_state *s = &ranks[r];
        int at_row = 0, came = 0;
        s->placing = placing_of(&whole, r, &arena);
        weft_placing_find(&s->placing, c->local, whole.sent, c->kept, s->parts, s->first_part);
        weft_placing_receives(&s->placing, s->parts, s->first_part, s->comes, s->offsets);
        weft_placing_select(&s->placing, s->parts, s->first_part, s->offsets, to);
        for (int e = 0; e < c->experts; e++) {
            const int64_t *at = &s->offsets[weft_placing_seat(e, r * c->local, c->local)];
            int64_t next = at[0];
            for (int64_t k = 0; k < whole.sent[e]; k++, at_row++) {
                if (to[at_row] < 0)
                    continue;
                EXPECT(owner[at_row] < 0 && to[at_row] == next,
                       "row %d of expert %d, taken by %d and %d", (int)k, e, owner[at_row], r);
                owner[at_row] = r;
                next++;
                came++;
            }
            EXPECT(next == at[1], "expert %d has %d rows on rank %d", e, (int)(next - at[0]), r);
        }
        EXPECT(came == (int)s->offsets[c->experts], "%d rows on rank %d", came, r);
    }
    for (int i = 0; i < num; i++)
        EXPECT(owner[i] >= 0, "row %d is computed nowhere", i);
    weft_arena_release(&arena);
}

static void check(const drawn_case *c)
{
    weft_arena arena = {0};
    for (int r = 0; r < c->ranks; r++) {
        ranks[r].placing = placing_of(c, r, &arena);
        weft_placing_find(&ranks[r].placing, c->local, c->sent, c->kept, ranks[r].parts,
                          ranks[r].first_part);
        EXPECT_OK(
            weft_placing_check(&ranks[r].placing, c->kept, ranks[r].parts, ranks[r].first_part));
        const size_t bytes = (size_t)ranks[r].first_part[c->experts] * sizeof(weft_placement_part);
        EXPECT(memcmp(ranks[r].parts, ranks[0].parts, bytes) == 0, "rank %d places otherwise", r);
        for (int e = 0; e < c->experts; e++)
            EXPECT(ranks[r].first_part[e + 1] - ranks[r].first_part[e] <= c->replicas,
                   "expert %d is split too often", e);
        fill_sends(c, r);
    }
    for (int r = 0; r < c->ranks; r++)
        receive(c, r);
    check_rows(c);
    check_faults(c);
    check_selected(c);
    weft_arena_release(&arena);
}

int main(void)
{
    for (int i = 0; i < NUM_DRAWS && expect_failures == 0; i++) {
        drawn = (uint64_t)i;
        const drawn_case c = draw();
        check(&c);
        EXPECT(expect_failures == 0, "draw %d: %d ranks, %d local experts, %d replicas", i, c.ranks,
               c.local, c.replicas);
    }
    EXPECT(num_moved > NUM_DRAWS && num_split > 100, "%d moved, %d split", num_moved, num_split);
    return expect_finish();
}
