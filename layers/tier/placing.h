/* Where the experts of an MoE layer run in one micro-batch, and which rows travel to which rank
 * (offload.placement: balanced; ES-MoE section 4.2). Every rank of an expert parallel group knows
 * how many rows each sends to each expert, and finds the same placement: inside each node by
 * schedule/experts/placement.h.
 *
 * An expert's rows are ordered by sender, then in the sender's order, on whichever rank the expert
 * runs. A *part* is a run of its rows on one rank. Rows leave a rank by receiver, then expert; the
 * receiver orders them by *seat*: its own experts, then the group's others by number, most of them
 * without rows here. Where all ranks have all tokens, each computes the rows of its parts. Pure. */
#ifndef WEFT_LAYERS_TIER_PLACING_H
#define WEFT_LAYERS_TIER_PLACING_H

#include "core/arena.h"
#include "schedule/experts/placement.h"

typedef struct weft_placing_setup {
    int num_ranks, rank; /* of the expert parallel group */
    const int *nodes;    /* [num_ranks]: equal numbers: one node; NULL: all ranks share one */
    int num_experts;     /* of the largest layer */
    int replicas;        /* parts that a hot expert is split into, at most */
    double upload_us;    /* of one expert's weights, over all its passes */
    double row_us;
} weft_placing_setup;

/* The placement of the last micro-batch; memory is the arena's. */
typedef struct weft_placing {
    weft_placing_setup setup;
    int local_experts, num_experts; /* of the current layer */
    int64_t *before; /* [num_ranks + 1][num_experts]: an expert's rows of earlier senders */
    int32_t *members, *numbers; /* a node's ranks; its experts */
    int32_t *home, *rows;       /* arguments of schedule/experts/placement.h, of a node */
    bool *kept;
    double *upload_us, *compute_us;
    weft_placement_part *found;
    int32_t *first_found;
    int64_t *cursors; /* [num_experts or num_ranks] */
    void *scratch;
} weft_placing;

/* Errors: WEFT_MEMORY; WEFT_CONFIG (more ranks on a node than WEFT_PLACEMENT_MAX_RANKS). */
weft_status weft_placing_init(const weft_placing_setup *setup, weft_arena *arena,
                              weft_placing *out) WEFT_CHECKED;

/* The most parts of a layer with so many experts. */
size_t weft_placing_capacity(int num_experts, int num_ranks);
/* sent: [num_ranks][num_experts], the rows that each rank sends to each expert. kept:
 * [num_experts], whether an expert's home keeps it on the device; NULL: none. parts: room for
 * weft_placing_capacity, by expert, then by row; an expert without rows has one part, at home.
 * first_part: [num_experts + 1]. */
void weft_placing_find(weft_placing *placing, int local_experts, const int64_t *sent,
                       const bool *kept, weft_placement_part *parts, int32_t *first_part);
/* Proves that every row of every expert is in one part, each part on another rank of its home's
 * node, and a kept expert's first at home. WEFT_INTERNAL with the expert. */
weft_status weft_placing_check(const weft_placing *placing, const bool *kept,
                               const weft_placement_part *parts,
                               const int32_t *first_part) WEFT_CHECKED;

/* Rows that this rank sends, by receiver [num_ranks]; and the place of each row, sorted by expert,
 * among the sent rows [rows]. */
void weft_placing_sends(weft_placing *placing, const weft_placement_part *parts,
                        const int32_t *first_part, size_t *out_rows, int32_t *out_to);
/* Rows that arrive, by sender [num_ranks]; and the first row of each seat [num_experts + 1]. */
void weft_placing_receives(weft_placing *placing, const weft_placement_part *parts,
                           const int32_t *first_part, size_t *out_rows, int64_t *offsets);
/* order[i]: the arrived row that is row i by seat; inverse: the reverse. */
void weft_placing_order(weft_placing *placing, const weft_placement_part *parts,
                        const int32_t *first_part, const int64_t *offsets, int32_t *order,
                        int32_t *inverse);

/* Where all ranks have all tokens: out_to is the place here of each row, sorted by expert; -1:
 * computed elsewhere. offsets: from weft_placing_receives. */
void weft_placing_select(const weft_placing *placing, const weft_placement_part *parts,
                         const int32_t *first_part, const int64_t *offsets, int32_t *out_to);

/* The seat of an expert on a rank, and back. first: the rank's first own expert. */
static inline int weft_placing_seat(int expert, int first, int local)
{
    return expert >= first + local ? expert : expert >= first ? expert - first : expert + local;
}
static inline int weft_placing_expert(int seat, int first, int local)
{
    return seat < local ? first + seat : seat - local < first ? seat - local : seat;
}

#endif
