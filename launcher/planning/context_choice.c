#include "launcher/planning/context_choice.h"

#include <math.h>
#include <stdio.h>

#include "core/cluster/cluster.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/pass_price.h"
#include "launcher/planning/places.h"
#include "layers/describe/rehearse.h"
#include "layers/model/model.h"

enum { AUTO = WEFT_NUM_CONTEXT_FORMS, MOST_FORMS = 64 };

typedef struct choosing {
    const weft_config *config;
    weft_cluster cluster; /* prices */
    weft_cluster placed;  /* says on which nodes the ranks lie */
    weft_mesh meshes[MOST_FORMS];
    weft_choice_row rows[MOST_FORMS];
    int num_rows;
} choosing;

bool weft_context_is_open(const weft_config *config, const weft_mesh *mesh)
{
    return config->parallel.cp_comm_type == AUTO && mesh->cp > 1;
}

static weft_status read_cluster(choosing *c)
{
    const char *path = c->config->schedule.cluster;
    const weft_pace pace = weft_config_pace(c->config);
    if (!path || !path[0])
        return WEFT_KEY_ERROR("parallel.cp_comm_type",
                              "auto is chosen by price, which takes parallel.cluster (a file that "
                              "weft calibrate writes)");
    WEFT_TRY(weft_choice_cluster(c->config, &c->cluster));
    if (pace.flops > 0 && pace.work == WEFT_PACE_ALL)
        weft_cluster_set_pace(&c->cluster, pace.flops);
    return WEFT_OK;
}

/* The rule of weft_moe_find_nodes. */
static void place(choosing *c, const weft_topology *topology, int world)
{
    const bool by_file = c->cluster.num_nodes * c->cluster.ranks_per_node == world;
    c->placed = c->cluster;
    if (topology && !(by_file && topology->num_nodes != c->cluster.num_nodes))
        c->placed.ranks_per_node = weft_places_fullest_node(topology);
}

/* What a layer's attention takes in a micro-batch, its products by weights included. */
static weft_status attention_us(void *context, int index, weft_choice_row *row)
{
    const choosing *c = context;
    const weft_mesh *mesh = &c->meshes[index];
    const weft_config *config = c->config;
    const weft_recompute_options *recompute = &config->train.recompute;
    weft_outline_layer layer = {.name = "attention",
                                .kind = "attention",
                                .recompute_group = recompute->granularity == WEFT_RECOMPUTE_FULL};
    weft_outline outline = {.num_layers = 1, .layers = &layer};
    weft_pass_price price = {.coarse = false};
    outline.shape = weft_model_shape(&config->model, mesh, config->train.micro_batch_size,
                                     weft_config_dtype(config), true);
    WEFT_TRY(weft_recompute_modules(recompute, &outline.shape.recompute));
    weft_site site = {.cluster = &c->cluster,
                      .unsourced = true,
                      .kinds = weft_places_kinds(&c->placed, mesh->world)};
    WEFT_TRY(
        weft_places_pass_groups(mesh, &c->placed, 0, weft_config_sends_directly(config), &site));
    weft_shape shape = outline.shape; /* of attention: experts make no other */
    shape.ep = shape.etp = shape.pp = 1;
    shape.binding = 0;
    WEFT_TRY(
        weft_rehearse_alone(&config->model, &shape, weft_attention_create, &layer.description));
    const weft_status status = weft_pass_price_add(&site, &outline, 0, 1, &price);
    weft_description_release(&layer.description);
    row->us = weft_pass_us(&price.forward) + weft_pass_us(&price.backward) +
              weft_pass_us(&price.recompute);
    return status;
}

static void form_text(const weft_mesh *mesh, char *out, size_t capacity)
{
    const char *form = weft_context_form_text(mesh->cp_comm_type);
    if (mesh->cp_comm_type == WEFT_CONTEXT_A2A_P2P)
        snprintf(out, capacity, "%s [%d, %d]", form, mesh->cp_inner, mesh->cp / mesh->cp_inner);
    else
        snprintf(out, capacity, "%s", form);
}

/* Whole query groups for each of `inner` neighbours. */
static void add_form(choosing *c, const weft_mesh *mesh, weft_context_form form, int inner)
{
    const int64_t groups = c->config->model.num_query_groups, ranks = (int64_t)inner * mesh->tp;
    if (c->num_rows == MOST_FORMS)
        return;
    weft_choice_row *row = &c->rows[c->num_rows];
    weft_mesh *with = &c->meshes[c->num_rows++];
    *with = *mesh;
    with->cp_comm_type = (int)form;
    with->cp_inner = form == WEFT_CONTEXT_A2A_P2P ? inner : 0;
    *row = (weft_choice_row){.us = NAN};
    form_text(with, row->name, sizeof row->name);
    if (inner > 1 && groups % ranks != 0)
        snprintf(row->why_not, sizeof row->why_not, "%lld query groups over %lld ranks",
                 (long long)groups, (long long)ranks);
}

static void add_forms(choosing *c, const weft_mesh *mesh)
{
    add_form(c, mesh, WEFT_CONTEXT_P2P, 1);
    add_form(c, mesh, WEFT_CONTEXT_ALL_GATHER, 1);
    add_form(c, mesh, WEFT_CONTEXT_A2A, mesh->cp);
    for (int inner = 2; inner < mesh->cp; inner++)
        if (mesh->cp % inner == 0)
            add_form(c, mesh, WEFT_CONTEXT_A2A_P2P, inner);
}

weft_status weft_context_choose(const weft_config *config, const weft_topology *topology,
                                weft_mesh *mesh, weft_context_selection *out)
{
    choosing c = {.config = config};
    char form[48];
    int best;
    *out = (weft_context_selection){.chosen = false};
    if (!weft_context_is_open(config, mesh)) {
        if (config->context_is_kept && mesh->cp > 1) {
            form_text(mesh, form, sizeof form);
            snprintf(out->reason, sizeof out->reason, "%s (as this run chose)", form);
        }
        return WEFT_OK;
    }
    WEFT_TRY(read_cluster(&c));
    place(&c, topology, mesh->world);
    add_forms(&c, mesh);
    const weft_status status = weft_choose(c.rows, c.num_rows, attention_us, &c,
                                           " a layer and micro-batch", &best, out->reason);
    const bool is_planned = config->planned_on && weft_lack_is(weft_error_get()); /* by --cluster */
    WEFT_TRY(status == WEFT_CONFIG && !is_planned ? weft_error_key(status, "parallel.cluster")
                                                  : status);
    *mesh = c.meshes[best];
    out->chosen = true;
    if (mesh->cp_comm_type == WEFT_CONTEXT_A2A_P2P) {
        out->sizes[0] = mesh->cp_inner;
        out->sizes[1] = mesh->cp / mesh->cp_inner;
    }
    return WEFT_OK;
}

void weft_context_keep(const weft_context_selection *selection, const weft_mesh *mesh,
                       weft_parallel_options *out)
{
    if (!selection->chosen)
        return;
    out->cp_comm_type = mesh->cp_comm_type;
    if (mesh->cp_comm_type == WEFT_CONTEXT_A2A_P2P)
        out->hierarchical_context_parallel_sizes =
            (weft_int_list){.values = selection->sizes, .count = 2, .is_array = true};
}
