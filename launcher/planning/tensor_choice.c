#include "launcher/planning/tensor_choice.h"

#include "launcher/planning/moe_choice.h"
#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "layers/describe/rehearse.h"
#include "layers/model/model.h"
#include "schedule/tensor.h"

typedef struct tensor_choosing {
    const weft_config *config;
    weft_cluster cluster;
    weft_site site;
    weft_shape shape;
} tensor_choosing;

/* What a layer of this kind takes in a micro-batch. */
static weft_status layer_us(const tensor_choosing *c, weft_layer_function make, int chunks,
                            double *out)
{
    weft_outline_layer layer = {.name = "a layer", .kind = "a layer"};
    weft_outline outline = {.num_layers = 1, .layers = &layer, .shape = c->shape};
    weft_pass_price price = {.coarse = false};
    outline.shape.attention_chunks = outline.shape.mlp_chunks = chunks;
    WEFT_TRY(weft_rehearse_alone(&c->config->model, &outline.shape, make, &layer.description));
    const weft_status status = weft_pass_price_add(&c->site, &outline, 0, 1, &price);
    weft_description_release(&layer.description);
    *out = weft_pass_us(&price.forward) + weft_pass_us(&price.backward);
    return status;
}

static weft_status choose(const tensor_choosing *c, weft_layer_function make, int *out)
{
    double best_us = 0, us;
    for (int chunks = 1; chunks <= WEFT_TENSOR_MAX_CHUNKS; chunks *= 2) {
        WEFT_TRY(layer_us(c, make, chunks, &us));
        if (chunks > 1 && !(us < best_us))
            break; /* more only add to what chunks cost */
        best_us = us;
        *out = chunks;
    }
    return WEFT_OK;
}

weft_status weft_tensor_choose(const weft_config *config, const weft_topology *topology,
                               weft_mesh *mesh)
{
    const char *path = config->schedule.cluster;
    const weft_pace pace = weft_config_pace(config);
    if (!weft_mesh_leaves_chunks(&config->parallel, mesh) || !path || !path[0])
        return WEFT_OK;
    if (config->plain_kernels) { /* other software cuts its own products */
        mesh->attention_chunks = mesh->mlp_chunks = 1;
        return WEFT_OK;
    }
    tensor_choosing c = {.config = config};
    WEFT_TRY(weft_choice_cluster(config, &c.cluster));
    weft_cluster placed = c.cluster;
    if (topology && c.cluster.num_nodes * c.cluster.ranks_per_node != mesh->world)
        placed.ranks_per_node = weft_places_fullest_node(topology);
    if (pace.flops > 0 && pace.work == WEFT_PACE_ALL)
        weft_cluster_set_pace(&c.cluster, pace.flops);
    c.shape = weft_model_shape(&config->model, mesh, config->train.micro_batch_size,
                               weft_config_dtype(config), true);
    c.shape.ep = c.shape.etp = c.shape.pp = 1;
    c.shape.binding = 0;
    c.site = (weft_site){
        .cluster = &c.cluster, .unsourced = true, .kinds = weft_places_kinds(&placed, mesh->world)};
    WEFT_TRY(
        weft_places_pass_groups(mesh, &placed, 0, weft_config_sends_directly(config), &c.site));
    WEFT_TRY(choose(&c, weft_attention_create, &mesh->attention_chunks));
    return choose(&c, weft_mlp_create, &mesh->mlp_chunks);
}

void weft_tensor_keep(const weft_mesh *mesh, int64_t numbers[2], weft_parallel_options *out)
{
    if (!weft_mesh_leaves_chunks(out, mesh))
        return;
    numbers[0] = mesh->attention_chunks;
    numbers[1] = mesh->mlp_chunks;
    out->tp_comm_overlap_chunks = (weft_int_list){.values = numbers, .count = 2, .is_array = true};
}
