/* Nodes that have other numbers of GPUs than the others. */
#ifndef WEFT_LAUNCHER_TRAINING_CARDS_H
#define WEFT_LAUNCHER_TRAINING_CARDS_H

#include <stddef.h>

#include <weft/status.h>

#include "comm/comm.h"

/* What a rank's node has. */
typedef struct weft_rank_cards {
    char node[64];
    int num_gpus, num_ranks;
} weft_rank_cards;

/* "node0 has 8 GPUs for 8 ranks, node1 has 4 GPUs for 8 ranks", three nodes at most; "" where all
 * are alike. ranks: [world]. */
void weft_cards_text(const weft_rank_cards *ranks, int world, char *out, size_t room);
/* Rank 0 warns of them. Collective over world, of ranks that compute on GPUs. */
weft_status weft_cards_tell(weft_comm *world) WEFT_CHECKED;

#endif
