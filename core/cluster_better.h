/* A cluster of which one part is better: what a plan would gain by it. Pure. */
#ifndef WEFT_CORE_CLUSTER_BETTER_H
#define WEFT_CORE_CLUSTER_BETTER_H

#include "core/cluster.h"

#define WEFT_PART_BIT(part) (1u << WEFT_PART_##part)
/* name, whose measured costs are better (bits 1 << weft_cost_part), text, what it is */
#define WEFT_BETTER_LIST(X)                                                                        \
    X(BETWEEN, WEFT_PART_BIT(BETWEEN), "between_x2", "links between nodes x2")                     \
    X(INSIDE, WEFT_PART_BIT(INSIDE), "inside_x2", "links inside nodes x2")                         \
    X(MEMORY, 0, "memory_x2", "memory x2")                                                         \
    X(RATE, WEFT_PART_BIT(PRODUCTS), "rate_x2", "products and attention x2")                       \
    X(LATENCY, WEFT_PART_BIT(INSIDE) | WEFT_PART_BIT(BETWEEN), "latency_half", "half the latency") \
    X(NETWORK, WEFT_PART_BIT(INSIDE) | WEFT_PART_BIT(BETWEEN), "free_network", "a free network")
typedef enum weft_better {
#define WEFT_BETTER_ENUM(name, parts, text, help) WEFT_BETTER_##name,
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
