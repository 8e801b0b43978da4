#include "launcher/planning/mesh_choice.h"

#include <math.h>
#include <stdio.h>

#include "core/cluster/cluster.h"
#include "launcher/planning/layer_price.h"
#include "launcher/planning/places.h"
#include "layers/model/model.h"
#include "schedule/tensor.h"

enum { AUTO = WEFT_NUM_CONTEXT_FORMS, MOST_ROWS = 64 };

/* Rows are meshes, which differ in what is chosen. */
typedef struct choosing {
    const weft_config *config;
    weft_cluster cluster;     /* prices */
    weft_cluster placed;      /* says on which nodes the ranks lie */
    weft_layer_function make; /* of the layer that is priced */
    bool cuts;                /* rows differ in chunks, else in the form */
    weft_mesh meshes[MOST_ROWS];
    weft_choice_row rows[MOST_ROWS];
    int num_rows;
} choosing;

bool weft_mesh_leaves_form(const weft_config *config, const weft_mesh *mesh)
{
    return config->parallel.cp_comm_type == AUTO && mesh->cp > 1;
}

/* What the layer takes in a micro-batch, attention with its products by weights. */
static weft_status price_layer(void *context, int index, weft_choice_row *row)
{
    const choosing *c = context;
    const weft_mesh *mesh = &c->meshes[index];
    const weft_config *config = c->config;
    const weft_recompute_options *recompute = &config->train.recompute;
    weft_outline_layer layer = {.name = "a layer", .kind = "a layer"};
    weft_outline outline = {.num_layers = 1, .layers = &layer};
    weft_shape *shape = &outline.shape;
    row->us = NAN;
    if (c->cuts && index > 1 && !(row[-1].us < row[-2].us))
        return WEFT_OK; /* more only add to what chunks cost */
    *shape = weft_model_shape(&config->model, mesh, config->train.micro_batch_size,
                              weft_config_dtype(config), true);
    shape->ep = shape->etp = shape->pp = 1; /* experts make no other of these layers */
    shape->binding = 0;
    if (!c->cuts) {
        layer.recompute_group = recompute->granularity == WEFT_RECOMPUTE_FULL;
        WEFT_TRY(weft_recompute_modules(recompute, &shape->recompute));
    }
    weft_site site = {.cluster = &c->cluster,
                      .unsourced = true,
                      .kinds = weft_places_kinds(&c->placed, mesh->world)};
    WEFT_TRY(
        weft_places_groups(mesh, &c->placed, 0, weft_config_sends_directly(config), false, &site));
    site.groups[WEFT_AXIS_EP] = site.groups[WEFT_AXIS_ETP] = (weft_group){0};
    return weft_layer_price_us(&site, config, c->make, &outline, &row->us);
}

/* The mesh of the row that takes least. */
static weft_status choose(choosing *c, weft_layer_function make, const weft_mesh **out,
                          char reason[WEFT_CHOICE_REASON_BYTES])
{
    int best;
    c->make = make;
    const weft_status status = weft_choose(c->rows, c->num_rows, price_layer, c,
                                           " a layer and micro-batch", &best, reason);
    const bool is_planned =
        c->config->planned_on && weft_lack_is(weft_error_get()); /* by --cluster */
    WEFT_TRY(status == WEFT_CONFIG && !is_planned ? weft_error_key(status, "parallel.cluster")
                                                  : status);
    *out = &c->meshes[best];
    return WEFT_OK;
}

static weft_mesh *add_row(choosing *c, const weft_mesh *mesh)
{
    c->rows[c->num_rows] = (weft_choice_row){.us = NAN};
    c->meshes[c->num_rows] = *mesh;
    return &c->meshes[c->num_rows++];
}

/* --- the form ------------------------------------------------------------------------------ */

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
    weft_choice_row *row = &c->rows[c->num_rows];
    weft_mesh *with = add_row(c, mesh);
    with->cp_comm_type = (int)form;
    with->cp_inner = form == WEFT_CONTEXT_A2A_P2P ? inner : 0;
    form_text(with, row->name, sizeof row->name);
    if (inner > 1 && groups % ranks != 0)
        snprintf(row->why_not, sizeof row->why_not, "%lld query groups over %lld ranks",
                 (long long)groups, (long long)ranks);
}

static weft_status choose_form(choosing *c, weft_mesh *mesh, weft_mesh_choice *out)
{
    const weft_mesh *best;
    c->num_rows = 0;
    c->cuts = false;
    add_form(c, mesh, WEFT_CONTEXT_P2P, 1);
    add_form(c, mesh, WEFT_CONTEXT_ALL_GATHER, 1);
    add_form(c, mesh, WEFT_CONTEXT_A2A, mesh->cp);
    for (int inner = 2; inner < mesh->cp && c->num_rows < MOST_ROWS; inner++)
        if (mesh->cp % inner == 0)
            add_form(c, mesh, WEFT_CONTEXT_A2A_P2P, inner);
    WEFT_TRY(choose(c, weft_attention_create, &best, out->reason));
    *mesh = *best;
    out->has_form = true;
    return WEFT_OK;
}

/* --- chunks -------------------------------------------------------------------------------- */

static weft_status choose_chunks(choosing *c, weft_mesh *mesh)
{
    const weft_mesh *of_attention, *of_mlp;
    char reason[WEFT_CHOICE_REASON_BYTES];
    c->num_rows = 0;
    c->cuts = true;
    for (int chunks = 1; chunks <= WEFT_TENSOR_MAX_CHUNKS; chunks *= 2) {
        weft_mesh *with = add_row(c, mesh);
        with->attention_chunks = with->mlp_chunks = chunks;
    }
    WEFT_TRY(choose(c, weft_attention_create, &of_attention, reason));
    WEFT_TRY(choose(c, weft_mlp_create, &of_mlp, reason));
    mesh->attention_chunks = of_attention->attention_chunks;
    mesh->mlp_chunks = of_mlp->mlp_chunks;
    return WEFT_OK;
}

/* --- both ---------------------------------------------------------------------------------- */

/* The ranks lie by the rule of weft_moe_find_nodes. */
static weft_status choose_open(const weft_config *config, const weft_topology *topology,
                               bool form_is_open, bool cuts, weft_mesh *mesh, weft_mesh_choice *out)
{
    const weft_pace pace = weft_config_pace(config);
    choosing c = {.config = config};
    WEFT_TRY(weft_choice_cluster(config, &c.cluster));
    const bool by_file = c.cluster.num_nodes * c.cluster.ranks_per_node == mesh->world;
    c.placed = c.cluster;
    if (topology && !(by_file && topology->num_nodes != c.cluster.num_nodes))
        c.placed.ranks_per_node = weft_places_fullest_node(topology);
    if (pace.flops > 0 && pace.work == WEFT_PACE_ALL)
        weft_cluster_set_pace(&c.cluster, pace.flops);
    if (form_is_open)
        WEFT_TRY(choose_form(&c, mesh, out));
    return cuts ? choose_chunks(&c, mesh) : WEFT_OK;
}

weft_status weft_mesh_choose(const weft_config *config, const weft_topology *topology,
                             weft_mesh *mesh, weft_mesh_choice *out)
{
    const char *path = config->schedule.cluster;
    const bool has_cluster = path && path[0], form_is_open = weft_mesh_leaves_form(config, mesh);
    bool cuts = has_cluster && weft_mesh_leaves_chunks(&config->parallel, mesh);
    weft_cluster cluster;
    *out = (weft_mesh_choice){.has_form = false};
    if (form_is_open && !has_cluster)
        return WEFT_KEY_ERROR("parallel.cp_comm_type",
                              "auto is chosen by price, which takes parallel.cluster (a file that "
                              "weft calibrate writes)");
    if (!form_is_open && config->context_is_kept && mesh->cp > 1) {
        char form[48];
        form_text(mesh, form, sizeof form);
        snprintf(out->reason, sizeof out->reason, "%s (as this run chose)", form);
    }
    if (cuts && config->plain_kernels) { /* other software cuts its own products */
        mesh->attention_chunks = mesh->mlp_chunks = 1;
        cuts = false;
    }
    if (form_is_open || cuts)
        WEFT_TRY(choose_open(config, topology, form_is_open, cuts, mesh, out));
    else if (has_cluster && config->model.num_experts > 0) /* which nothing may read otherwise */
        WEFT_TRY(weft_choice_cluster(config, &cluster));
    return weft_moe_find_nodes(config, mesh, topology, &out->nodes);
}

void weft_mesh_keep(weft_mesh_choice *choice, const weft_mesh *mesh, weft_parallel_options *out)
{
    if (choice->has_form) {
        out->cp_comm_type = mesh->cp_comm_type;
        if (mesh->cp_comm_type == WEFT_CONTEXT_A2A_P2P) {
            choice->sizes[0] = mesh->cp_inner;
            choice->sizes[1] = mesh->cp / mesh->cp_inner;
            out->hierarchical_context_parallel_sizes =
                (weft_int_list){.values = choice->sizes, .count = 2, .is_array = true};
        }
    }
    if (weft_mesh_leaves_chunks(out, mesh)) {
        choice->chunks[0] = mesh->attention_chunks;
        choice->chunks[1] = mesh->mlp_chunks;
        out->tp_comm_overlap_chunks =
            (weft_int_list){.values = choice->chunks, .count = 2, .is_array = true};
    }
}
