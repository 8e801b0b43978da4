/* A cluster of which one part is better: what a plan would gain by it. Pure. */
#ifndef WEFT_CORE_CLUSTER_BETTER_H
#define WEFT_CORE_CLUSTER_BETTER_H

#include "core/cluster/cluster.h"

/* name, text, what it is */
#define WEFT_BETTER_LIST(X)                                                                        \
    X(BETWEEN, "between_x2", "links between nodes x2")                                             \
    X(INSIDE, "inside_x2", "links inside nodes x2")                                                \
    X(MEMORY, "memory_x2", "memory x2")                                                            \
    X(RATE, "rate_x2", "products and attention x2")                                                \
    X(LATENCY, "latency_half", "half the latency")                                                 \
    X(NETWORK, "free_network", "a free network")
typedef enum weft_better {
#define WEFT_BETTER_ENUM(name, text, help) WEFT_BETTER_##name,
    WEFT_BETTER_LIST(WEFT_BETTER_ENUM)
#undef WEFT_BETTER_ENUM
        WEFT_NUM_BETTERS
} weft_better;
const char *weft_better_text(int better);
const char *weft_better_help(int better);

/* Changes figures and measured curves alike. A curve's first time is its start-up: a
 * faster rate halves the rest of each time, a lower latency the start-up. A network that
 * takes no time takes 10^-12 of it, and leaves copies to and from the host as they are. */
void weft_cluster_better(const weft_cluster *cluster, weft_better better, weft_cluster *out);

#endif
