#include "launcher/planning/layer_price.h"

#include <string.h>

#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "launcher/planning/step.h"
#include "launcher/planning/tier_price.h"
#include "layers/describe/describe.h"
#include "layers/model/model.h"

/* All that differs between the layers of a search; zeroed before it is filled, to be compared as
 * bytes. Layers talk along these axes alone. */
typedef struct price_key {
    weft_shape shape;
    weft_layer_function make;
    weft_group tp, cp, heads, ring, ep, etp;
    uint32_t kinds;
    int recompute_group, exchange, exchange_chunks;
} price_key;

typedef struct kept_price {
    price_key key;
    struct kept_price *next;
    double us;
} kept_price;

enum { BINS = 1 << 12 };
struct weft_layer_prices {
    weft_arena *arena;
    kept_price *bins[BINS];
};

weft_status weft_layer_prices_create(weft_arena *arena, weft_layer_prices **out)
{
    weft_layer_prices *prices;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &prices));
    prices->arena = arena;
    *out = prices;
    return WEFT_OK;
}

static price_key key_of(const weft_site *site, weft_layer_function make,
                        const weft_outline *outline)
{
    const weft_group *groups = site->groups;
    price_key key;
    memset(&key, 0, sizeof key);
    key.shape = outline->shape;
    key.make = make;
    key.tp = groups[WEFT_AXIS_TP];
    key.cp = groups[WEFT_AXIS_CP];
    key.heads = site->heads;
    key.ring = site->ring;
    key.ep = groups[WEFT_AXIS_EP];
    key.etp = groups[WEFT_AXIS_ETP];
    key.kinds = site->kinds;
    key.recompute_group = outline->layers[0].recompute_group;
    key.exchange = site->exchange;
    key.exchange_chunks = site->exchange_chunks;
    return key;
}

static kept_price **bin_of(weft_layer_prices *prices, const price_key *key)
{
    const uint32_t *words = (const uint32_t *)key;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key / sizeof *words; i++)
        hash = (hash ^ words[i]) * 16777619u;
    return &prices->bins[(hash ^ hash >> 16) % BINS];
}

static weft_status price_layer(const weft_site *site, const weft_config *config,
                               weft_layer_function make, weft_outline *outline, double *out_us)
{
    weft_description *description = &outline->layers[0].description;
    weft_pass_price price = {.coarse = false};
    WEFT_TRY(weft_rehearse_alone(&config->model, &outline->shape, make, description));
    weft_status status = weft_pass_price_add(site, outline, 0, 1, &price);
    *out_us = weft_pass_us(&price.forward) + weft_pass_us(&price.backward) +
              weft_pass_us(&price.recompute);
    if (status == WEFT_OK && outline->shape.experts_on_host)
        status = weft_tier_layer_us(site, config, outline, &price, out_us);
    weft_description_release(description);
    return status;
}

/* Uploads of experts depend on more than the key has. */
weft_status weft_layer_price_us(const weft_site *site, const weft_config *config,
                                weft_layer_function make, weft_outline *outline, double *out_us)
{
    if (!config->planned_prices || outline->shape.experts_on_host)
        return price_layer(site, config, make, outline, out_us);
    const price_key key = key_of(site, make, outline);
    kept_price **bin = bin_of(config->planned_prices, &key), *kept = *bin;
    while (kept && memcmp(&kept->key, &key, sizeof key) != 0)
        kept = kept->next;
    if (!kept) {
        double us;
        WEFT_TRY(price_layer(site, config, make, outline, &us));
        WEFT_TRY(WEFT_ARRAY(config->planned_prices->arena, 1, &kept));
        *kept = (kept_price){.key = key, .next = *bin, .us = us};
        *bin = kept;
    }
    *out_us = kept->us;
    return WEFT_OK;
}

weft_status weft_moe_layer_price_begin(const weft_config *config, const weft_mesh *mesh,
                                       const weft_cluster *cluster, int ranks_per_node,
                                       const weft_moe_options *form, weft_moe_layer_price *out)
{
    const weft_pace pace = weft_config_pace(config);
    weft_cluster placed = *cluster;
    if (ranks_per_node > 0)
        placed.ranks_per_node = ranks_per_node;
    out->config = config;
    out->accumulates = weft_step_accumulates(config, mesh);
    out->cluster = out->experts = *cluster;
    out->shape = weft_model_shape(&config->model, mesh, config->train.micro_batch_size,
                                  weft_config_dtype(config), true);
    out->site = (weft_site){.cluster = &out->cluster,
                            .curves = config->planned_curves,
                            .unsourced = true,
                            .kinds = weft_places_kinds(&placed, mesh->world),
                            .exchange = (int)form->form,
                            .exchange_chunks = form->num_chunks};
    if (pace.flops > 0 && pace.work == WEFT_PACE_ALL)
        weft_cluster_set_pace(&out->cluster, pace.flops);
    if (pace.flops > 0 && pace.work == WEFT_PACE_EXPERTS) {
        weft_cluster_set_pace(&out->experts, pace.flops);
        out->site.experts = &out->experts;
    }
    return weft_places_groups(mesh, &placed, 0, weft_config_sends_directly(config), false,
                              &out->site);
}

/* Experts beyond device memory: as they will be; auto is priced as in host memory. */
static void add_tier(const weft_moe_layer_price *p, const weft_moe_dims *dims,
                     weft_outline *outline)
{
    weft_outline_layer *layer = &outline->layers[0];
    outline->tier = weft_tier_closed(&p->config->tier);
    if (p->config->tier.experts == WEFT_TIER_AUTO)
        outline->tier.experts = WEFT_TIER_HOST;
    outline->accumulates = p->accumulates;
    outline->shape.experts_on_host = true;
    layer->expert_elements = outline->shape.hidden * dims->ffn * (dims->gates + 1);
}

weft_status weft_moe_layer_price_us(void *context, const weft_moe_pipeline *pipeline,
                                    double *out_us)
{
    weft_moe_layer_price *p = context;
    const weft_moe_dims dims = weft_moe_dims_of(&p->config->model, &p->shape);
    weft_outline_layer layer = {
        .name = "MoE layer", .kind = "moe", .num_experts = (int)dims.local_experts};
    weft_outline outline = {.num_layers = 1, .layers = &layer, .shape = p->shape};
    outline.shape.cp_comm_type = outline.shape.cp_inner = 0; /* attention's alone */
    outline.shape.attention_chunks = 0;
    if (p->config->model.moe_shared_expert_intermediate_size == 0)
        outline.shape.mlp_chunks = 0;
    outline.shape.moe_partitions = pipeline->num_partitions;
    outline.shape.moe_reuse = (int)pipeline->reuse;
    outline.shape.moe_peer_group = pipeline->peer_group;
    outline.shape.moe_by_experts = pipeline->by_experts;
    if (p->config->tier.experts != WEFT_TIER_NONE)
        add_tier(p, &dims, &outline);
    return weft_layer_price_us(&p->site, p->config, weft_moe_create, &outline, out_us);
}
