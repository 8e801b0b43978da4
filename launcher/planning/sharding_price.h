/* What sharing out gradients and weights (parallel/residency/residency.h) and offloading
 * (layers/pass/offload.h) add to passes on a cluster: their bodies priced, whose gathers,
 * reductions and copies run beside the layers' parts and share links with them. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_SHARDING_PRICE_H
#define WEFT_LAUNCHER_PLANNING_SHARDING_PRICE_H

#include "launcher/planning/pass_price.h"

/* Of a layer, for one pass. */
typedef struct weft_unit_time {
    double gather_us, reduce_us;
    double link_us[2][WEFT_NUM_LINKS]; /* of the gather, of the reduction */
    double clear_us;                   /* on the compute lane, ahead of what makes gradients */
    double copy_us;                    /* there, behind a gather, by software that copies */
    double offload_us, prefetch_us;    /* to the host, and back */
} weft_unit_time;
/* Errors: WEFT_CONFIG with the figure that the
 * cluster lacks. */
weft_status weft_unit_price(const weft_site *site, const weft_outline *outline, int layer,
                            weft_unit_time *out) WEFT_CHECKED;

/* Of a gather, a reduction or a copy beside layers. */
weft_task_time weft_unit_task_time(const weft_unit_time *unit, const weft_task *task);

/* Of a chunk's forward, or backward. */
typedef struct weft_sharding_time {
    double exposed_us; /* in each pass: the compute lane waits for gathers and reductions, */
    double host_us;    /* and for copies, */
    double copies_us;  /* which take so long */
    double clear_us;   /* computed besides */
    double start_us;   /* in the first one: nothing came before it to hide the first gather, or,
                        * below zero, to fill slots of gradients */
    double tail_us;    /* behind the last one: reductions that are not over with its layers */
    double link_us[WEFT_NUM_LINKS];
} weft_sharding_time;
/* Zero where nothing is shared out or offloaded. layers: the prices of the chunk's, by the
 * outline's (weft_pass_price_add). between_us: what the compute lane does between two backwards;
 * where weights are whole, reductions go on beside it. */
weft_status weft_sharding_price(const weft_site *site, const weft_outline *outline,
                                const weft_pass_price *layers, int rank, int chunk, bool backward,
                                double between_us, weft_sharding_time *out) WEFT_CHECKED;

#endif
