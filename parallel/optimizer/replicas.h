/* Ranks that hold the same compare it: the XXH64 of every parameter's weights, and of its masters
 * and moments where these are replicated too. A bit that flipped in one rank's memory would stay
 * unseen for ever, since gradients are summed and weights are not.
 *
 * Replicas are the ranks of a gradient group (with ZeRO of weights that are not shared out; without
 * it of state, too), those of a tensor-parallel group of what it does not split, those of it that
 * share key/value heads, and the two stages of a tied embedding. What lies in a file has hashes of
 * its own (parallel/spill/spill.h). */
#ifndef WEFT_PARALLEL_OPTIMIZER_REPLICAS_H
#define WEFT_PARALLEL_OPTIMIZER_REPLICAS_H

#include "parallel/optimizer/optimizer.h"

/* What was found, the same on every rank. Where several groups differ, of the lowest rank's. */
typedef struct weft_replica_report {
    int num_differ; /* parameters that differ among some replicas, summed over groups; 0: none */
    char name[WEFT_MAX_NAME_BYTES]; /* the first of them */
    char group[16];
    int rank, other;   /* of the world: one that stands apart, and the lowest of the others */
    int num_replicas;  /* in that group */
    bool has_majority; /* more than half agree, in every group */
    bool is_mended;    /* all differences are gone */
} weft_replica_report;

/* The caller has drained the lanes that write weights and state. mends: where there is a majority
 * the others take its bits, of what is in device memory. Enqueues on `lane` and waits for it.
 * Collective over the world. */
weft_status weft_replicas_compare(weft_optimizer *optimizer, bool mends, weft_lane *lane,
                                  weft_replica_report *out) WEFT_CHECKED;

#endif
