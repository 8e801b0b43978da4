/* MoNTA's equations 8 to 11 and its Algorithms 1 to 3 as printed, for comparison with the paper;
 * schedule/exchange/exchange.h has the forms that Weft runs and what they take.
 *
 *   AA_j  = I / (N t) (e - 1) / e / (B1 r1)     r1 at I / (N t)                     (8)
 *   AG_j  = I / N (t - 1) / t / (B2 r2)         r2 at I / N: all rows are gathered  (9)
 *   D2D_j = I / N / (B3 r3)                     r3 at I / N                         (10)
 *   T_O1  = AA + AG with N = 1, no copy                                             (11)
 *   T_O2  = AA + (AG + D2D) N if AA < AG + D2D, else AA N + AG + D2D       (Algorithm 1)
 *   T_O3  = AA + AG N + D2D if AA < AG, else AA N + AG + D2D               (Algorithm 2)
 *
 * for N = 1, 2, ... until I / (N t) or I / N is below I_minimal. Lines 18-19 of Algorithms 1 and 2
 * differ from the paper, which prints T = T_min and means T_min = T, keeping N. Algorithm 3 takes
 * the least of T_O1, T_O2 and T_O3. The paper has no equation for its baseline; it is taken as eq.
 * 8 with t = 1 and N = 1.
 *
 * B and r of a measured cost (all_to_all, all_gather, copy) are its peak and the share of it at
 * this volume. Else B1 is between.bandwidth, shared by a node's ranks where the file has the number
 * of cards, B2 is inside.bandwidth, B3 device.memory_bandwidth, and r1, r2, r3 come from the
 * efficiencies between, inside and device memory (between two points the time is interpolated,
 * below the first it holds, beyond the last its share does). Latencies do not enter. Pure. */
#ifndef WEFT_SCHEDULE_EXCHANGE_PAPER_H
#define WEFT_SCHEDULE_EXCHANGE_PAPER_H

#include "schedule/exchange/exchange.h"

/* The paper's B1, B2, B3: between nodes, inside a node, in a device's memory. */
enum { WEFT_PAPER_BETWEEN, WEFT_PAPER_INSIDE, WEFT_PAPER_MEMORY, WEFT_NUM_PAPER_RATES };

typedef struct weft_exchange_paper {
    double rates[WEFT_NUM_PAPER_RATES];  /* B, bytes a second; 0: not needed */
    double shares[WEFT_NUM_PAPER_RATES]; /* r with N = 1 */
    double baseline_us, o1_us;
    double o2_us, o3_us;          /* infinity: no N is allowed */
    int64_t o2_chunks, o3_chunks; /* 0 then */
    weft_exchange_form choice;    /* Algorithm 3; equal times: the form that comes first */
} weft_exchange_paper;

/* Of the shape counts bytes, t, e and minimal_bytes. WEFT_CONFIG for an impossible shape, and for a
 * figure that the cluster lacks, with its name. */
weft_status weft_exchange_paper_of(const weft_cluster *cluster, const weft_exchange_shape *shape,
                                   weft_exchange_paper *out) WEFT_CHECKED;

#endif
