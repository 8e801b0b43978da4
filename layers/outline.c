#include "layers/outline.h"

#include <stdlib.h>
#include <string.h>

#include "layers/pass.h"

bool weft_tied_has(const weft_tied *tied, const char *name)
{
    for (int i = 0; i < tied->count; i++)
        if (strcmp(tied->names[i], name) == 0)
            return true;
    return false;
}

/* The coordinates of a rank of that stage. */
static weft_coords coords_of_stage(const weft_mesh *mesh, int stage)
{
    weft_coords coords = weft_mesh_coords(mesh, 0);
    for (int rank = 1; rank < mesh->world && coords.at[WEFT_AXIS_PP] != stage; rank++)
        coords = weft_mesh_coords(mesh, rank);
    return coords;
}

/* The stage's parameters, without memory. What they call an embedding stands in model->embeddings.
 */
static weft_status declare_stage(weft_model *model, weft_groups *groups, int stage,
                                 weft_parameters **out)
{
    groups->coords = coords_of_stage(&groups->mesh, stage);
    weft_model_stage_range(model, stage, &model->first, &model->end);
    WEFT_TRY(weft_parameters_create(groups, model->setup.device, model->setup.dtype, out));
    model->parameters = *out;
    model->embeddings.count = 0;
    return weft_model_init_layers(model);
}

static bool same_shape(const weft_parameter_spec *a, const weft_parameter_spec *b)
{
    return a->num_dims == b->num_dims && memcmp(a->dims, b->dims, sizeof a->dims) == 0 &&
           memcmp(a->split, b->split, sizeof a->split) == 0;
}

/* The last stage's embeddings are copies of the first's: in one order, since the stages sum their
 * gradients as one range. */
static weft_status tie(const weft_model *model, const weft_tied *first_stage,
                       const weft_parameters *first, const weft_parameters *last, weft_tied *out)
{
    const weft_layer *layer = model->layers[model->num_layers - 1];
    const weft_tied *mine = &model->embeddings;
    for (int i = 0, at = 0; i < mine->count; i++) {
        const char *name = mine->names[i];
        if (!weft_tied_has(first_stage, name))
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties parameter %s, which no layer of the first stage "
                              "declares as an embedding",
                              model->num_layers - 1, layer->ops->kind, name);
        while (at < first_stage->count && strcmp(first_stage->names[at], name) != 0)
            at++;
        if (at++ == first_stage->count)
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties its parameters in another order than the first "
                              "stage declares them",
                              model->num_layers - 1, layer->ops->kind);
        if (!same_shape(weft_parameters_find(first, name)->spec,
                        weft_parameters_find(last, name)->spec))
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties parameter %s in another shape than the first "
                              "stage's",
                              model->num_layers - 1, layer->ops->kind, name);
    }
    *out = *mine;
    return WEFT_OK;
}

static weft_status outline_stages(weft_model *model, weft_groups *groups, weft_parameters **stages,
                                  weft_outline *out)
{
    int last = groups->mesh.pp - 1;
    WEFT_TRY(declare_stage(model, groups, 0, &stages[0]));
    weft_tied offered = model->embeddings;
    for (int s = 1; s <= last; s++)
        WEFT_TRY(declare_stage(model, groups, s, &stages[s]));
    return last > 0 ? tie(model, &offered, stages[0], stages[last], &out->tied) : WEFT_OK;
}

weft_status weft_model_outline(const weft_model_setup *setup, const weft_mesh *mesh,
                               weft_model_function build, weft_outline *out)
{
    weft_groups groups = {.mesh = *mesh};
    weft_device *device = NULL;
    memset(out, 0, sizeof *out);
    weft_model *model = calloc(1, sizeof *model);
    weft_parameters **stages = calloc((size_t)mesh->pp, sizeof *stages);
    if (!model || !stages) {
        free(model);
        free(stages);
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model's outline");
    }
    weft_status status = weft_device_create_cpu(1, 0, &device); /* for layers whose init asks */
    model->options = *setup->options;
    model->setup = (weft_model_setup){.options = &model->options,
                                      .own_options = setup->own_options,
                                      .groups = &groups,
                                      .device = device,
                                      .dtype = setup->dtype,
                                      .micro_batch_size = setup->micro_batch_size,
                                      .training = true};
    model->shape =
        weft_model_shape(&model->options, mesh, setup->micro_batch_size, setup->dtype, true);
    if (status == WEFT_OK)
        status = weft_model_list_layers(model, build);
    if (status == WEFT_OK)
        status = outline_stages(model, &groups, stages, out);
    out->num_layers = model->num_layers;
    model->parameters = NULL;
    weft_model_destroy(model);
    for (int s = 0; s < mesh->pp; s++)
        weft_parameters_destroy(stages[s]);
    free(stages);
    weft_device_destroy(device);
    return status;
}
