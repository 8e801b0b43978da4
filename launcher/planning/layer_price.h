/* What a layer alone takes in each way of cutting it, by the price that weft plan gives its
 * operations and its programs: so that a choice and the plan of what it chose agree. */
#ifndef WEFT_LAUNCHER_PLANNING_LAYER_PRICE_H
#define WEFT_LAUNCHER_PLANNING_LAYER_PRICE_H

#include "launcher/planning/config.h"
#include "layers/describe/rehearse.h"
#include "layers/moe/options.h"
#include "layers/outline/outline.h"
#include "schedule/cost/cost.h"
#include "schedule/moe/choose.h"

/* Prices of layers alone, each once: a search asks for one again and again. They are of one model
 * on one cluster. */
typedef struct weft_layer_prices weft_layer_prices;
weft_status weft_layer_prices_create(weft_arena *arena, weft_layer_prices **out) WEFT_CHECKED;

/* Microseconds of a micro-batch that the outline's one layer takes, as `make` makes it for the
 * outline's shape: forward, backward, and what is recomputed. Kept in config->planned_prices, if
 * there are such. Errors: those of the rehearsal; WEFT_CONFIG with the figure that the cluster
 * lacks. */
weft_status weft_layer_price_us(const weft_site *site, const weft_config *config,
                                weft_layer_function make, weft_outline *outline,
                                double *out_us) WEFT_CHECKED;

/* A layer of experts. */
typedef struct weft_moe_layer_price {
    const weft_config *config;
    weft_cluster cluster, experts; /* experts: where a pace is theirs alone */
    weft_site site;
    weft_shape shape;
    bool accumulates; /* a step has several micro-batches on a rank */
} weft_moe_layer_price;

/* cluster: copied. form: how tensor-sharded experts exchange rows. ranks_per_node: of the nodes
 * that the mesh's groups lie on; 0: the cluster's. Errors: WEFT_MEMORY. Pure. */
weft_status weft_moe_layer_price_begin(const weft_config *config, const weft_mesh *mesh,
                                       const weft_cluster *cluster, int ranks_per_node,
                                       const weft_moe_options *form,
                                       weft_moe_layer_price *out) WEFT_CHECKED;
/* A weft_moe_pricer's function: microseconds of forward and backward of a micro-batch. Errors:
 * WEFT_CONFIG with the figure that the cluster lacks. */
weft_status weft_moe_layer_price_us(void *price, const weft_moe_pipeline *pipeline,
                                    double *out_us) WEFT_CHECKED;

#endif
