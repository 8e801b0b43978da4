#include "schedule/experts/placement.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The maximum over the mean from which no swap is tried, and how many are made at most. */
#define GOOD_ENOUGH 1.05
enum { MAX_SWAPS = 4 };
/* Independent chains of comparisons, which run side by side. Divides the most ranks. */
enum { CHAINS = 4 };

/* Times are whole multiples of 2^-28 of all experts' time, so sums are exact in any order. A word
 * has the longer time, below it the other time, which breaks ties, and below both a tag: a rank's
 * number + 1, a part's 0. */
enum { TIME_BITS = 28, TAG_BITS = 7, NUM_TAGS = 1 << TAG_BITS };
typedef struct load {
    uint64_t upload, compute;
} load;

/* Arrays in the scratch are indexed by part. */
typedef struct placing {
    const weft_placement_shape *shape;
    weft_placement *out;
    double mean, scale;
    load *loads;
    uint64_t *order, *spare; /* sort key and part, of the parts to be placed */
    int32_t num_placed;
    load ranks[WEFT_PLACEMENT_MAX_RANKS];
} placing;

size_t weft_placement_capacity(int32_t num_experts, int32_t num_ranks)
{
    return (size_t)num_experts + (size_t)num_ranks;
}

size_t weft_placement_scratch_bytes(int32_t num_experts, int32_t num_ranks)
{
    return weft_placement_capacity(num_experts, num_ranks) * (sizeof(load) + 2 * sizeof(uint64_t));
}

static double greater(double a, double b) /* fmax would be a call */
{
    return a > b ? a : b;
}

static inline uint64_t tagged_longer(load a)
{
    return a.upload > a.compute ? a.upload : a.compute;
}

static uint64_t longer(load a)
{
    return tagged_longer(a) >> TAG_BITS;
}

static bool is_kept(const weft_placement_shape *shape, int32_t expert)
{
    return shape->kept && shape->kept[expert];
}

static void begin(placing *p, const weft_placement_shape *shape, void *scratch, weft_placement *out)
{
    const size_t capacity = weft_placement_capacity(shape->num_experts, shape->num_ranks);
    double uploads = 0, kept = 0, computes = 0;
    for (int32_t e = 0; e < shape->num_experts; e++) {
        assert(shape->home[e] >= 0 && shape->home[e] < shape->num_ranks && shape->rows[e] >= 0);
        assert(shape->upload_us[e] >= 0 && shape->compute_us[e] >= 0);
        if (shape->rows[e] == 0)
            continue;
        const bool stays = is_kept(shape, e);
        kept += stays ? shape->upload_us[e] : 0;
        uploads += stays ? 0 : shape->upload_us[e];
        computes += shape->compute_us[e];
    }
    const double most = greater(uploads + kept, computes); /* of one rank */
    p->shape = shape;
    p->out = out;
    p->mean = greater(uploads, computes) / shape->num_ranks;
    p->scale = most > 0 ? (1 << TIME_BITS) * (1 - 1e-9) / most : 0;
    p->loads = scratch;
    p->order = (uint64_t *)(void *)(p->loads + capacity);
    p->spare = p->order + capacity;
    p->num_placed = 0;
    for (int32_t r = 0; r < shape->num_ranks; r++)
        p->ranks[r] = (load){(uint64_t)r + 1, (uint64_t)r + 1};
    for (int32_t r = shape->num_ranks; r % CHAINS != 0; r++) /* never the least */
        p->ranks[r] = (load){UINT64_MAX / 2, UINT64_MAX / 2};
    out->num_parts = 0;
}

/* Rows of an expert's first parts. */
static int32_t rows_a_part(const placing *p, int32_t expert)
{
    const int32_t rows = p->shape->rows[expert];
    const double compute = p->shape->compute_us[expert];
    if (!p->shape->replicas || rows == 0 || compute <= p->mean)
        return rows;
    /* Rounding up makes at most ceil(compute / mean) parts, which fit the arrays; 1e-6 exceeds the
     * quotient's rounding error and is less than a rank's share of a row. */
    const int32_t wanted = (int32_t)ceil(rows * (p->mean / compute) - 1e-6);
    const int32_t most = p->shape->max_parts;
    const int32_t least = most > 0 ? rows / most + (rows % most > 0) : 0;
    return wanted > least ? wanted : least;
}

static bool is_uploaded(const weft_placement_shape *shape, const weft_placement_part *part)
{
    return shape->rows[part->expert] > 0 && !(is_kept(shape, part->expert) && part->first_row == 0);
}

static double upload_of(const weft_placement_shape *shape, const weft_placement_part *part)
{
    return is_uploaded(shape, part) ? shape->upload_us[part->expert] : 0;
}

static double compute_of(const weft_placement_shape *shape, const weft_placement_part *part)
{
    const int32_t rows = shape->rows[part->expert];
    const double compute = rows == 0 ? 0 : shape->compute_us[part->expert];
    return part->num_rows == rows ? compute : compute * ((double)part->num_rows / rows);
}

static inline void put(placing *p, int32_t part, int32_t rank)
{
    p->out->parts[part].rank = rank;
    p->ranks[rank].upload += p->loads[part].upload;
    p->ranks[rank].compute += p->loads[part].compute;
}

static void take(placing *p, int32_t part)
{
    load *rank = &p->ranks[p->out->parts[part].rank];
    rank->upload -= p->loads[part].upload;
    rank->compute -= p->loads[part].compute;
}

static void add_part(placing *p, int32_t expert, int32_t first_row, int32_t num_rows)
{
    const int32_t index = p->out->num_parts++;
    weft_placement_part *part = &p->out->parts[index];
    *part = (weft_placement_part){expert, -1, first_row, num_rows};
    const uint64_t upload = (uint64_t)(int64_t)(upload_of(p->shape, part) * p->scale);
    const uint64_t compute = (uint64_t)(int64_t)(compute_of(p->shape, part) * p->scale);
    p->loads[index] = (load){((upload << TIME_BITS) + compute) << TAG_BITS,
                             ((compute << TIME_BITS) + upload) << TAG_BITS};
    if (!is_uploaded(p->shape, part)) {
        put(p, index, p->shape->home[expert]);
        return;
    }
    /* The key rises with the longer time and, where that is equal, with the shorter one. */
    const float key =
        (float)(int64_t)((upload + compute) + 255 * (upload > compute ? upload : compute));
    uint32_t bits; /* of a float that is not negative: they rise with it */
    memcpy(&bits, &key, sizeof bits);
    p->order[p->num_placed++] = (uint64_t)~bits << 32 | (uint32_t)index;
}

static void make_parts(placing *p)
{
    for (int32_t e = 0; e < p->shape->num_experts; e++) {
        const int32_t step = rows_a_part(p, e), rows = p->shape->rows[e];
        int32_t first = 0;
        p->out->first_part[e] = p->out->num_parts;
        for (; rows - first > step; first += step)
            add_part(p, e, first, step);
        add_part(p, e, first, rows - first);
    }
    p->out->first_part[p->shape->num_experts] = p->out->num_parts;
}

/* Of an entry's 64 bits; the first is the key's sign, the same for all. */
enum {
    NUM_DIGITS = 3,
    DIGIT_BITS = 7,
    NUM_VALUES = 1 << DIGIT_BITS,
    FIRST_BIT = 63 - 3 * DIGIT_BITS
};

static int digit_of(uint64_t entry, int digit)
{
    return (int)(entry >> (FIRST_BIT + DIGIT_BITS * digit) & (NUM_VALUES - 1));
}

/* A stable radix sort by the keys' upper bits, free of the unpredictable branches of a comparison
 * sort. */
static void sort_coarsely(placing *p)
{
    uint32_t counts[NUM_DIGITS][NUM_VALUES] = {{0}};
    const int32_t n = p->num_placed;
    for (int32_t i = 0; i < n; i++)
        for (int digit = 0; digit < NUM_DIGITS; digit++)
            counts[digit][digit_of(p->order[i], digit)]++;
    for (int digit = 0; digit < NUM_DIGITS; digit++) {
        uint32_t *next = counts[digit], sum = 0;
        if (n == 0 || next[digit_of(p->order[0], digit)] == (uint32_t)n)
            continue; /* all entries have this digit */
        for (int value = 0; value < NUM_VALUES; value++) {
            const uint32_t count = next[value];
            next[value] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < n; i++)
            p->spare[next[digit_of(p->order[i], digit)]++] = p->order[i];
        uint64_t *sorted = p->spare;
        p->spare = p->order;
        p->order = sorted;
    }
}

static int32_t part_at(const placing *p, int32_t place)
{
    return (int32_t)(uint32_t)p->order[place];
}

static uint64_t time_at(const placing *p, int32_t place)
{
    return longer(p->loads[part_at(p, place)]) >> TIME_BITS;
}

/* Sorts coarsely, then corrects the few entries whose keys are too short. */
static void sort(placing *p)
{
    sort_coarsely(p);
    for (int32_t i = 1; i < p->num_placed; i++) {
        const uint64_t entry = p->order[i], time = time_at(p, i);
        int32_t to = i;
        for (; to > 0 && time_at(p, to - 1) < time; to--)
            p->order[to] = p->order[to - 1];
        p->order[to] = entry;
    }
}

/* A rank has one part of an expert at most. */
static bool may_go(const placing *p, int32_t part, int32_t rank)
{
    const int32_t expert = p->out->parts[part].expert;
    const int32_t first = p->out->first_part[expert], end = p->out->first_part[expert + 1];
    for (int32_t i = first; i < end && end - first > 1; i++)
        if (p->out->parts[i].rank == rank)
            return false;
    return true;
}

static inline uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t with(const placing *p, load added, int32_t rank)
{
    return tagged_longer(
        (load){p->ranks[rank].upload + added.upload, p->ranks[rank].compute + added.compute});
}

/* The rank whose maximum ends least, by its tag; home has tag 0 and so wins ties. Branch-free,
 * except for split experts. */
static int32_t best_rank(const placing *p, int32_t part)
{
    const int32_t ranks = p->shape->num_ranks, expert = p->out->parts[part].expert;
    const int32_t home = p->shape->home[expert];
    const load added = p->loads[part];
    uint64_t ends[CHAINS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    if (p->out->first_part[expert + 1] - p->out->first_part[expert] > 1) {
        for (int32_t r = 0; r < ranks; r++)
            ends[0] = may_go(p, part, r) ? lesser(ends[0], with(p, added, r)) : ends[0];
    } else {
        ends[0] = with(p, added, home) & ~(uint64_t)(NUM_TAGS - 1);
        for (int32_t r = 0; r < ranks; r += CHAINS) {
            ends[0] = lesser(ends[0], with(p, added, r));
            ends[1] = lesser(ends[1], with(p, added, r + 1));
            ends[2] = lesser(ends[2], with(p, added, r + 2));
            ends[3] = lesser(ends[3], with(p, added, r + 3));
        }
    }
    const uint64_t best = lesser(lesser(ends[0], ends[1]), lesser(ends[2], ends[3]));
    const int32_t tag = (int32_t)(best & (NUM_TAGS - 1));
    return tag == 0 ? home : tag - 1;
}

static int32_t heaviest_rank(const placing *p)
{
    int32_t heaviest = 0;
    for (int32_t r = 1; r < p->shape->num_ranks; r++)
        if (longer(p->ranks[r]) > longer(p->ranks[heaviest]))
            heaviest = r;
    return heaviest;
}

static bool is_good(const placing *p)
{
    double sum = 0;
    for (int32_t r = 0; r < p->shape->num_ranks; r++)
        sum += (double)longer(p->ranks[r]);
    return (double)longer(p->ranks[heaviest_rank(p)]) * p->shape->num_ranks <= GOOD_ENOUGH * sum;
}

/* The longer of the two ranks if part i goes to `rank`, and part j (-1: none) from there to i's. */
static uint64_t after_swap(const placing *p, int32_t i, int32_t j, int32_t rank)
{
    const load none = {0}, out = p->loads[i], in = j < 0 ? none : p->loads[j];
    const load a = p->ranks[p->out->parts[i].rank], b = p->ranks[rank];
    const uint64_t from =
        longer((load){a.upload - out.upload + in.upload, a.compute - out.compute + in.compute});
    const uint64_t to =
        longer((load){b.upload + out.upload - in.upload, b.compute + out.compute - in.compute});
    return from > to ? from : to;
}

/* Moves a part of the heaviest rank, or swaps it with another rank's, to minimise the longer of the
 * two ranks; false: no gain. */
static bool lighten(placing *p)
{
    const int32_t heaviest = heaviest_rank(p);
    uint64_t best = longer(p->ranks[heaviest]);
    int32_t best_i = -1, best_j = -1, best_rank = -1;
    for (int32_t a = 0; a < p->num_placed; a++) {
        const int32_t i = part_at(p, a);
        if (p->out->parts[i].rank != heaviest)
            continue;
        for (int32_t b = -p->shape->num_ranks; b < p->num_placed; b++) {
            const int32_t j = b < 0 ? -1 : part_at(p, b);
            const int32_t rank = j < 0 ? -1 - b : p->out->parts[j].rank;
            const uint64_t time = rank == heaviest ? UINT64_MAX : after_swap(p, i, j, rank);
            if (time < best && may_go(p, i, rank) && (j < 0 || may_go(p, j, heaviest))) {
                best = time;
                best_i = i;
                best_j = j;
                best_rank = rank;
            }
        }
    }
    if (best_i < 0)
        return false;
    take(p, best_i);
    put(p, best_i, best_rank);
    if (best_j >= 0) {
        take(p, best_j);
        put(p, best_j, heaviest);
    }
    return true;
}

static void measure(const placing *p)
{
    double uploads[WEFT_PLACEMENT_MAX_RANKS], computes[WEFT_PLACEMENT_MAX_RANKS], max = 0, sum = 0;
    const int32_t ranks = p->shape->num_ranks;
    for (int32_t r = 0; r < ranks; r++)
        uploads[r] = computes[r] = 0;
    for (int32_t i = 0; i < p->out->num_parts; i++) {
        const weft_placement_part *part = &p->out->parts[i];
        uploads[part->rank] += upload_of(p->shape, part);
        computes[part->rank] += compute_of(p->shape, part);
    }
    for (int32_t r = 0; r < ranks; r++) {
        max = greater(max, greater(uploads[r], computes[r]));
        sum += greater(uploads[r], computes[r]);
    }
    p->out->max_us = max;
    p->out->mean_us = sum / ranks;
}

void weft_placement_find(const weft_placement_shape *shape, void *scratch, weft_placement *out)
{
    assert(shape->num_ranks >= 1 && shape->num_ranks <= WEFT_PLACEMENT_MAX_RANKS);
    placing p;
    begin(&p, shape, scratch, out);
    make_parts(&p);
    sort(&p);
    for (int32_t i = 0; i < p.num_placed; i++)
        put(&p, part_at(&p, i), best_rank(&p, part_at(&p, i)));
    for (int i = 0; i < MAX_SWAPS && !is_good(&p) && lighten(&p); i++)
        ;
    measure(&p);
}
