#include "launcher/planning/moe_layer_price.h"

#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "launcher/planning/step.h"
#include "launcher/planning/tier_price.h"
#include "layers/describe/describe.h"
#include "layers/describe/rehearse.h"
#include "layers/model/model.h"

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
    return weft_places_pass_groups(mesh, &placed, 0, weft_config_sends_directly(config),
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
    weft_pass_price price = {.coarse = false};
    outline.shape.cp_comm_type = outline.shape.cp_inner = 0; /* attention's alone */
    outline.shape.moe_partitions = pipeline->num_partitions;
    outline.shape.moe_reuse = (int)pipeline->reuse;
    outline.shape.moe_peer_group = pipeline->peer_group;
    outline.shape.moe_by_experts = pipeline->by_experts;
    if (p->config->tier.experts != WEFT_TIER_NONE)
        add_tier(p, &dims, &outline);
    WEFT_TRY(weft_rehearse_alone(&p->config->model, &outline.shape, weft_moe_create,
                                 &layer.description));
    weft_status status = weft_pass_price_add(&p->site, &outline, 0, 1, &price);
    *out_us = weft_pass_us(&price.forward) + weft_pass_us(&price.backward);
    if (status == WEFT_OK && outline.shape.experts_on_host)
        status = weft_tier_layer_us(&p->site, p->config, &outline, &price, out_us);
    weft_description_release(&layer.description);
    return status;
}
