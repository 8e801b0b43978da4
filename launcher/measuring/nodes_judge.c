/* Who stands out. Pure. */
#include <stdlib.h>

#include "core/sorted.h"

#include "launcher/measuring/nodes.h"

enum { LEAST_LATENCY_US = 100 }; /* that one is longer: less is the way through one more switch */

static const struct {
    const char *text, *key;
} kinds[WEFT_NUM_NODES_KINDS] = {
    [WEFT_NODES_COMPUTE] = {"compute", "compute_flops"},
    [WEFT_NODES_MEMORY] = {"memory", "memory_bytes_per_s"},
    [WEFT_NODES_LINK] = {"link", "link_bytes_per_s"},
    [WEFT_NODES_LATENCY] = {"latency", "latency_us"},
    [WEFT_NODES_WRITE] = {"disk write", "write_bytes_per_s"},
    [WEFT_NODES_READ] = {"disk read", "read_bytes_per_s"},
};

const char *weft_nodes_kind_text(weft_nodes_kind kind)
{
    return kinds[kind].text;
}

const char *weft_nodes_kind_key(weft_nodes_kind kind)
{
    return kinds[kind].key;
}

int weft_nodes_peer(int node, int num_nodes, int round)
{
    const int others = num_nodes + num_nodes % 2 - 1; /* in pairs, but for the one that stays */
    int peer;
    if (round < 0 || round >= others || round >= WEFT_NODES_MAX_ROUNDS || num_nodes < 2)
        return -1;
    if (node == others)
        peer = round * (others + 1) / 2 % others; /* whom the rule below gives to itself */
    else
        peer = (round + others - node) % others;
    if (peer == node)
        peer = others;
    return peer < num_nodes ? peer : -1;
}

/* What is compared: a cost, the smaller the better. */
typedef struct candidate {
    weft_nodes_odd is;
    double cost;
} candidate;

typedef struct judging {
    const weft_nodes_rank *ranks;
    int num_ranks;
    double factor;
    candidate *candidates;
    double *sorted;
    bool *out_of; /* by first rank: a node that stands out by its links */
    weft_nodes_odd *out;
    int capacity, count;
} judging;

static double cost_of(weft_nodes_kind kind, double value)
{
    return kind == WEFT_NODES_LATENCY ? value : 1 / value;
}

static void add(judging *j, const weft_nodes_odd *odd)
{
    if (j->count < j->capacity)
        j->out[j->count] = *odd;
    j->count++;
}

/* The upper median of one's others is sorted[(count - 1) / 2] wherever it stands above that, and
 * what does not is never odd. */
static void compare(judging *j, weft_nodes_kind kind, int num)
{
    for (int i = 0; i < num; i++)
        j->sorted[i] = j->candidates[i].cost;
    weft_sort(j->sorted, num);
    const double median = num > 1 ? j->sorted[(num - 1) / 2] : 0;
    for (int i = 0; i < num; i++) {
        const candidate *c = &j->candidates[i];
        weft_nodes_odd odd = c->is;
        if (median <= 0 || c->cost <= j->factor * median ||
            (kind == WEFT_NODES_LATENCY && c->cost < median + LEAST_LATENCY_US))
            continue;
        odd.median = kind == WEFT_NODES_LATENCY ? median : 1 / median;
        odd.factor = c->cost / median;
        if (odd.is_node && odd.peer < 0 && j->out_of)
            j->out_of[odd.rank] = true;
        add(j, &odd);
    }
}

static void put(judging *j, int *num, const weft_nodes_odd *is)
{
    if (is->value > 0)
        j->candidates[(*num)++] = (candidate){*is, cost_of(is->kind, is->value)};
}

static void judge_ranks(judging *j, weft_nodes_kind kind)
{
    const bool of_nodes = kind == WEFT_NODES_WRITE || kind == WEFT_NODES_READ;
    int num = 0;
    for (int rank = 0; rank < j->num_ranks; rank++)
        put(j, &num,
            &(weft_nodes_odd){.kind = kind,
                              .rank = rank,
                              .peer = -1,
                              .is_node = of_nodes,
                              .value = j->ranks[rank].value[kind]});
    compare(j, kind, num);
}

static double of_link(const weft_nodes_link *link, weft_nodes_kind kind)
{
    return kind == WEFT_NODES_LINK ? link->bytes_per_s : link->latency_us;
}

/* The best of all links of a node's ranks; 0: it has none. */
static double best_of(const judging *j, int first_rank, weft_nodes_kind kind)
{
    double best = 0;
    for (int rank = first_rank; rank < j->num_ranks; rank++) {
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            const weft_nodes_link *link = &j->ranks[rank].links[i];
            const double value = of_link(link, kind);
            if (j->ranks[rank].first_rank == first_rank && link->peer >= 0 && value > 0 &&
                (best == 0 || cost_of(kind, value) < cost_of(kind, best)))
                best = value;
        }
    }
    return best;
}

static void judge_nodes(judging *j, weft_nodes_kind kind)
{
    int num = 0;
    for (int rank = 0; rank < j->num_ranks; rank++)
        if (j->ranks[rank].first_rank == rank)
            put(j, &num,
                &(weft_nodes_odd){.kind = kind,
                                  .rank = rank,
                                  .peer = -1,
                                  .is_node = true,
                                  .value = best_of(j, rank, kind)});
    if (num > 2) /* two have one link */
        compare(j, kind, num);
}

/* Each once, as its lower rank has it, of nodes that do not stand out. */
static void judge_links(judging *j, weft_nodes_kind kind)
{
    int num = 0;
    for (int rank = 0; rank < j->num_ranks; rank++) {
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            const weft_nodes_link *link = &j->ranks[rank].links[i];
            if (link->peer > rank && !j->out_of[j->ranks[rank].first_rank] &&
                !j->out_of[j->ranks[link->peer].first_rank])
                put(j, &num,
                    &(weft_nodes_odd){.kind = kind,
                                      .rank = rank,
                                      .peer = link->peer,
                                      .value = of_link(link, kind)});
        }
    }
    if (num > 2)
        compare(j, kind, num);
}

static void judge_all(judging *j)
{
    for (int rank = 0; rank < j->num_ranks; rank++)
        if (*j->ranks[rank].fault || *j->ranks[rank].apart)
            add(j, &(weft_nodes_odd){
                       .kind = WEFT_NODES_WRITE, .rank = rank, .peer = -1, .is_node = true});
    for (int kind = 0; kind < WEFT_NUM_NODES_KINDS; kind++) {
        if (kind != WEFT_NODES_LINK && kind != WEFT_NODES_LATENCY) {
            judge_ranks(j, (weft_nodes_kind)kind);
            continue;
        }
        judge_nodes(j, (weft_nodes_kind)kind);
        judge_links(j, (weft_nodes_kind)kind);
    }
}

int weft_nodes_judge(const weft_nodes_rank *ranks, int num_ranks, double factor,
                     weft_nodes_odd *out, int capacity)
{
    const size_t most = (size_t)num_ranks * WEFT_NODES_MAX_ROUNDS;
    judging j = {.ranks = ranks,
                 .num_ranks = num_ranks,
                 .factor = factor,
                 .candidates = calloc(most, sizeof(candidate)),
                 .sorted = calloc(most, sizeof(double)),
                 .out_of = calloc((size_t)num_ranks, sizeof(bool)),
                 .out = out,
                 .capacity = capacity};
    if (j.candidates && j.sorted && j.out_of)
        judge_all(&j);
    else
        j.count = -1;
    free(j.candidates);
    free(j.sorted);
    free(j.out_of);
    return j.count;
}
