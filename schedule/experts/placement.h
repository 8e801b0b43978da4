/* Which rank of a node runs which expert of a layer, for one micro-batch. ES-MoE section 4.2
 * ("dynamic expert placement"; it numbers no equation), corrected: the paper gives each expert one
 * time, the maximum of its upload and its processing, and adds these up, although a rank uploads
 * and computes at once. Here a rank's time is max(sum of uploads, sum of computes), the least that
 * its lanes need.
 *
 * List scheduling (Graham 1969, LPT): experts in falling order of max(upload, compute) go where
 * that maximum ends least. If the heaviest rank then takes more than 1.05 times the mean, up to
 * four moves or swaps of experts lighten it. The maximum over k ranks, beside the least possible
 * one:
 * - where no upload counts: at most 4/3 - 1/(3k) times (Graham). So it is where every compute is at
 *   least its upload, as all sums of computes are then the greater.
 * - uploads all equal (experts of one layer are of one size, and those without rows do not count):
 * no case above 4/3 - 1/(3k) is known; a search by hill climbing over small cases ends at it.
 * - any uploads: the list alone up to 2: (1, 0), (0, 1 - a), (1 - 2a, 1 - 2a) on two ranks, which
 * puts the first two apart. At most 3 - 1/k: when the expert came that made the maximum, and takes
 * p, every rank had at least the maximum less p in uploads or in computes, and all these are at
 * most 2k times the least maximum. The search has found nothing above 2. All up to the rounding of
 * times to 2^-28ths of their sum.
 *
 * Uploads are whole: where they are what takes longest, u of them on k ranks take ceil(u / k),
 * however they are placed.
 *
 * Pure, nothing allocates, no state: the same bits on every rank that has the same figures. */
#ifndef WEFT_SCHEDULE_EXPERTS_PLACEMENT_H
#define WEFT_SCHEDULE_EXPERTS_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFT_PLACEMENT_MAX_RANKS = 64 }; /* of a node */

/* An expert's times are finite and at least 0. One without rows runs nowhere: it stands on its home
 * rank and takes no time. */
typedef struct weft_placement_shape {
    int32_t num_experts, num_ranks; /* of a layer, of the node; at least 1 rank */
    const int32_t *home;            /* by expert: the rank that keeps and steps it */
    const bool *kept; /* by expert: on its home rank's device, runs there without an upload; NULL:
                         none. The bounds exclude these */
    const int32_t *rows;      /* by expert, of all ranks of the node */
    const double *upload_us;  /* by expert */
    const double *compute_us; /* by expert, of all its rows */
    /* Splits an expert whose compute exceeds a rank's mean, max(all uploads, all computes) / ranks,
     * into parts of that mean (to a row) and a rest. Each part has a rank of its own and an upload,
     * except a kept expert's first part, which stays at home. */
    bool replicas;
    int32_t max_parts; /* the most parts of an expert, which may exceed the mean; 0: no limit */
} weft_placement_shape;

/* Rows [first_row, first_row + num_rows) of an expert's, run by a rank. */
typedef struct weft_placement_part {
    int32_t expert, rank, first_row, num_rows;
} weft_placement_part;

/* The arrays are the caller's. */
typedef struct weft_placement {
    int32_t num_parts;
    weft_placement_part *parts; /* by expert, then by row; room for weft_placement_capacity */
    int32_t
        *first_part; /* [num_experts + 1]: expert e has parts [first_part[e], first_part[e + 1]) */
    double max_us, mean_us; /* over the ranks, of max(uploads, computes) */
} weft_placement;

size_t weft_placement_capacity(int32_t num_experts, int32_t num_ranks); /* of parts */
size_t weft_placement_scratch_bytes(int32_t num_experts, int32_t num_ranks);
/* O(parts * ranks), and O(parts^2) for a swap. Ties between ranks go to the lesser sum of the other
 * kind, then home, then the lowest number. Experts of equal time are placed by the longer other
 * time, if it differs much, then by the lowest number. `scratch`: 8-byte aligned, any content. */
void weft_placement_find(const weft_placement_shape *shape, void *scratch, weft_placement *out);

#endif
