#include "layers/outline/outline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/stage.h"
#include "layers/describe/rehearse.h"
#include "layers/pass/pass.h"

/* The mesh seen from a rank of that stage. */
static weft_coords coords_of_stage(const weft_mesh *mesh, int stage)
{
    return weft_mesh_coords(mesh, weft_mesh_rank(mesh, 0, 0, 0, stage));
}

/* Declares the stage's parameters, without memory; embeddings are listed in model->embeddings. */
static weft_status declare_stage(weft_model *model, weft_groups *groups, int stage,
                                 weft_parameters **out)
{
    groups->coords = coords_of_stage(&groups->mesh, stage);
    model->place = weft_coords_place(&groups->coords, groups->mesh.world);
    WEFT_TRY(weft_parameters_create(groups, model->setup.device, model->setup.dtype, out));
    model->parameters = *out;
    model->tree.embeddings.count = 0;
    return weft_model_init_layers(model);
}

static bool same_shape(const weft_parameter_spec *a, const weft_parameter_spec *b)
{
    return a->num_dims == b->num_dims && memcmp(a->dims, b->dims, sizeof a->dims) == 0 &&
           memcmp(a->split, b->split, sizeof a->split) == 0;
}

/* The last stage's embeddings copy the first stage's, in one order, since the stages sum their
 * gradients as one range. */
static weft_status tie(const weft_model *model, const weft_tied *first_stage,
                       const weft_parameters *first, const weft_parameters *last, weft_tied *out)
{
    const weft_layer *layer = model->tree.layers[model->tree.num_layers - 1];
    const weft_tied *mine = &model->tree.embeddings;
    for (int i = 0, at = 0; i < mine->count; i++) {
        const char *name = mine->names[i];
        if (!weft_tied_has(first_stage, name))
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties parameter %s, which no layer of the first stage "
                              "declares as an embedding",
                              model->tree.num_layers - 1, layer->ops->kind, name);
        while (at < first_stage->count && strcmp(first_stage->names[at], name) != 0)
            at++;
        if (at++ == first_stage->count)
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties its parameters in another order than the first "
                              "stage declares them",
                              model->tree.num_layers - 1, layer->ops->kind);
        if (!same_shape(weft_parameters_find(first, name)->spec,
                        weft_parameters_find(last, name)->spec))
            return WEFT_ERROR(WEFT_CONFIG,
                              "layer %d (%s): ties parameter %s in another shape than the first "
                              "stage's",
                              model->tree.num_layers - 1, layer->ops->kind, name);
    }
    *out = *mine;
    return WEFT_OK;
}

/* Among beginnings of parameters' names, with as many words as the pattern's, the nearest. */
static bool nearest_beginning(const char *pattern, weft_parameters *const *stages, int num_stages,
                              char out[WEFT_MAX_NAME_BYTES])
{
    char own[WEFT_MAX_NAME_BYTES];
    snprintf(own, sizeof own, "%.*s", (int)strcspn(pattern, "*?["), pattern);
    size_t bytes = strlen(own), words = 1;
    if (bytes > 0 && own[bytes - 1] == '.')
        own[bytes - 1] = '\0';
    for (const char *at = own; *at; at++)
        words += *at == '.';
    for (int s = 0; s < num_stages; s++)
        for (int i = 0; i < weft_parameters_count(stages[s]); i++) {
            const char *name = weft_parameters_at(stages[s], i)->parameter.name, *end = name;
            for (size_t w = 0; w < words; w++)
                end += strcspn(end, ".") + (w + 1 < words && strchr(end, '.'));
            snprintf(out, WEFT_MAX_NAME_BYTES, "%.*s", (int)(end - name), name);
            if (weft_nearest_name(own, (const char *const[]){out}, 1))
                return true;
        }
    return false;
}

/* Finds a parameter's name in which other words precede the pattern's; out ends with those. */
static bool same_ending(const char *pattern, weft_parameters *const *stages, int num_stages,
                        char out[WEFT_MAX_NAME_BYTES])
{
    char own[WEFT_MAX_NAME_BYTES];
    int bytes = (int)strcspn(pattern, "*?[");
    bytes -= bytes > 0 && pattern[bytes - 1] == '.';
    snprintf(own, sizeof own, ".%.*s", bytes, pattern);
    for (int s = 0; s < num_stages && bytes > 0; s++)
        for (int i = 0; i < weft_parameters_count(stages[s]); i++) {
            const char *name = weft_parameters_at(stages[s], i)->parameter.name;
            const char *at = strstr(name, own), *end = at ? at + strlen(own) : NULL;
            if (!end || (*end != '.' && *end != '\0'))
                continue;
            snprintf(out, WEFT_MAX_NAME_BYTES, "%.*s", (int)(end - name), name);
            return true;
        }
    return false;
}

/* Every rule matches a parameter of some stage; `matches` says how many. */
static weft_status check_matches(const weft_string_list *rules, weft_parameters *const *stages,
                                 int num_stages, const int *matches)
{
    char near[WEFT_MAX_NAME_BYTES], pattern[WEFT_MAX_NAME_BYTES];
    for (size_t i = 0; i < rules->count; i++) {
        weft_rule rule;
        if (matches[i] > 0)
            continue;
        WEFT_TRY(weft_rule_read(rules->values[i], &rule));
        snprintf(pattern, sizeof pattern, "%.*s", (int)rule.pattern_bytes, rule.pattern);
        bool found = same_ending(pattern, stages, num_stages, near) ||
                     nearest_beginning(pattern, stages, num_stages, near);
        return WEFT_KEY_ERROR("train.parameter_rules", "\"%s\" matches no parameter; %s %s",
                              pattern, found ? "did you mean" : "one is",
                              found ? near : weft_parameters_at(stages[0], 0)->parameter.name);
    }
    return WEFT_OK;
}

static weft_status check_any_trains(weft_parameters *const *stages, int num_stages)
{
    for (int s = 0; s < num_stages; s++)
        for (int i = 0; i < weft_parameters_count(stages[s]); i++)
            if (!weft_parameters_at(stages[s], i)->parameter.frozen)
                return WEFT_OK;
    return WEFT_KEY_ERROR("train.parameter_rules",
                          "all parameters are frozen; none is left to train");
}

static uint64_t count_frozen(const weft_parameters *parameters)
{
    uint64_t sum = 0;
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_placed *placed = weft_parameters_at(parameters, i);
        if (placed->parameter.frozen && !placed->parameter.tied_copy)
            sum += weft_placed_global(placed, weft_parameters_groups(parameters)->mesh.tp);
    }
    return sum;
}

static weft_status apply_rules(const weft_string_list *rules, weft_parameters **stages,
                               int num_stages, uint64_t *out_frozen)
{
    *out_frozen = 0;
    if (rules->count == 0)
        return WEFT_OK;
    int *matches = calloc(rules->count, sizeof *matches);
    weft_status status =
        matches ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for the parameters' rules");
    for (int s = 0; s < num_stages && status == WEFT_OK; s++) {
        status = weft_parameters_apply_rules(stages[s], rules, matches);
        *out_frozen += count_frozen(stages[s]);
    }
    if (status == WEFT_OK)
        status = check_matches(rules, stages, num_stages, matches);
    if (status == WEFT_OK)
        status = check_any_trains(stages, num_stages);
    free(matches);
    return status;
}

/* --- layers ---------------------------------------------------------------------------------- */

/* Marks tied parameters, which were not known when stages declared them. */
static weft_status add_declared(weft_outline_layer *layer, const weft_placed *placed, int tp,
                                const weft_tied *tied, bool is_first_stage)
{
    size_t bytes = ((size_t)layer->num_parameters + 1) * sizeof *layer->parameters;
    weft_held *larger = realloc(layer->parameters, bytes);
    bool is_tied = weft_tied_has(tied, placed->parameter.name);
    const bool counts = !is_tied || is_first_stage;
    if (!larger)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the parameters of %s", layer->name);
    layer->parameters = larger;
    weft_held *held = &larger[layer->num_parameters++];
    *held = weft_held_of(placed, tp);
    if (is_tied)
        held->group = WEFT_GRADIENT_EMBEDDING;
    if (!counts)
        held->global = 0;
    return WEFT_OK;
}

/* The shape for descriptions, with MoE layers as these will run. */
static weft_status described_shape(const weft_model_setup *setup, const weft_mesh *mesh,
                                   weft_shape *out)
{
    const weft_moe_options *moe = &setup->moe;
    weft_shape shape = weft_model_shape(setup->options, mesh, setup->micro_batch_size, setup->dtype,
                                        setup->training);
    shape.cached_tokens = setup->cached_tokens;
    shape.logit_rows = setup->logit_rows;
    shape.moe_load = moe->load.rows;
    shape.moe_sent = moe->load.sent;
    shape.moe_part_load = moe->load.part_rows;
    shape.moe_part_sent = moe->load.part_sent;
    shape.plain_kernels = setup->plain_kernels;
    if (!shape.plain_kernels && setup->options->num_experts > 0 &&
        weft_moe_dims_of(setup->options, &shape).exchange) {
        shape.moe_partitions = moe->pipeline.num_partitions;
        shape.moe_reuse = (int)moe->pipeline.reuse;
        shape.moe_peer_group = moe->pipeline.peer_group;
        shape.moe_by_experts = moe->pipeline.by_experts;
        weft_shape_exchange(moe, &shape);
    }
    shape.experts_on_host = setup->options->num_experts > 0 && setup->tier &&
                            weft_tier_closed(setup->tier).experts != WEFT_TIER_NONE;
    *out = shape;
    out->splits_backward = setup->training && (setup->num_deferred > 0 || setup->leaves_weights);
    if (setup->training && setup->recompute)
        WEFT_TRY(weft_recompute_modules(setup->recompute, &out->recompute));
    if (setup->training && setup->recompute && setup->offload)
        WEFT_TRY(weft_offload_modules(setup->offload, setup->recompute, &out->offload));
    return WEFT_OK;
}

/* Places experts if they lie on several ranks. Several ranks may then send an expert's gradient. */
static void place_experts(weft_outline *out)
{
    out->shape.experts_placed =
        out->shape.experts_on_host && weft_tier_is_placed(&out->tier) && out->shape.ep > 1;
    if (!out->shape.experts_placed)
        out->tier.placement = WEFT_TIER_HOME;
    else if (out->tier.replicas > 1)
        out->accumulates = true;
}

/* Whether the host waits inside MoE layers' forward. Published runs send a message when its pass is
 * over, whatever their hosts wait for inside. */
static weft_status find_host_waits(const weft_shape *shape, bool *out)
{
    const weft_moe_pipeline pipeline = weft_shape_pipeline(shape);
    weft_arena arena = {0};
    weft_program program;
    weft_status status = weft_program_moe(&pipeline, false, &arena, &program);
    *out = status == WEFT_OK && !shape->plain_kernels && weft_program_host_waits(&program);
    weft_arena_release(&arena);
    return status;
}

static weft_status outline_layers(const weft_model *model, weft_parameters *const *stages,
                                  weft_description *descriptions, weft_outline *out)
{
    bool moe_waits;
    WEFT_TRY(find_host_waits(&out->shape, &moe_waits));
    out->layers = calloc((size_t)model->tree.num_layers, sizeof *out->layers);
    if (!out->layers)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model's outline");
    for (int l = 0; l < model->tree.num_layers; l++) {
        weft_outline_layer *layer = &out->layers[l];
        snprintf(layer->name, sizeof layer->name, "%s", weft_layer_name(model->tree.layers[l]));
        layer->kind = model->tree.layers[l]->ops->kind;
        layer->in_place = model->tree.layers[l]->place->ops.in_place;
        layer->recompute_group = weft_recompute_group(model->setup.recompute, &out->layout, l);
        layer->description = descriptions[l];
        descriptions[l] = (weft_description){.coarse = false}; /* the outline's now */
        layer->host_waits = moe_waits && weft_description_has_experts(&layer->description);
    }
    weft_outline_offload(out);
    for (int s = 0; s < out->layout.num_ranks; s++)
        for (int i = 0; i < weft_parameters_count(stages[s]); i++) {
            const weft_placed *placed = weft_parameters_at(stages[s], i);
            if (placed->experts > 0)
                out->layers[placed->layer].num_experts = (int)placed->experts;
            WEFT_TRY(add_declared(&out->layers[placed->layer], placed, out->shape.tp, &out->tied,
                                  s == 0));
        }
    return WEFT_OK;
}

void weft_outline_release(weft_outline *outline)
{
    for (int l = 0; outline->layers && l < outline->num_layers; l++) {
        weft_description_release(&outline->layers[l].description);
        free(outline->layers[l].parameters);
    }
    free(outline->layers);
    free(outline->held);
    outline->layers = NULL;
    outline->held = NULL;
}

static weft_status outline_stages(weft_model *model, weft_groups *groups, weft_parameters **stages,
                                  weft_outline *out)
{
    const int last = groups->mesh.pp - 1, end = weft_mesh_last_stage(&groups->mesh);
    WEFT_TRY(declare_stage(model, groups, 0, &stages[0]));
    weft_tied offered = model->tree.embeddings;
    for (int s = 1; s <= last; s++)
        WEFT_TRY(declare_stage(model, groups, s, &stages[s]));
    out->metrics = model->sums.list;
    if (end > 0)
        WEFT_TRY(tie(model, &offered, stages[0], stages[end], &out->tied));
    return apply_rules(&model->setup.rules, stages, last + 1, &out->num_frozen);
}

/* The layers' work, by which they are cut into stages: that of a shape which recomputes nothing and
 * has an even load. */
static weft_status cut(weft_model *model, weft_model_function build, const weft_outline *outline,
                       const weft_description *descriptions, weft_layout *out)
{
    static const weft_parallel_options evenly;
    const weft_parallel_options *options = model->setup.parallel;
    const bool is_same = memcmp(&model->shape, &outline->shape, sizeof model->shape) == 0;
    weft_description *plain = NULL;
    int count = 0;
    double *work = calloc((size_t)model->tree.num_layers, sizeof *work);
    if (!work)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the stage layout");
    weft_status status = is_same || model->setup.groups->mesh.pp == 1
                             ? WEFT_OK
                             : weft_rehearse_model(&model->options, model->setup.own_options,
                                                   &model->shape, build, &plain, &count);
    for (int i = 0; i < model->tree.num_layers; i++)
        work[i] = weft_description_work(count > 0 ? &plain[i] : &descriptions[i]);
    if (status == WEFT_OK)
        status = weft_layout_build(options ? options : &evenly, model->setup.groups->mesh.pp,
                                   model->tree.num_layers, work, out);
    weft_descriptions_release(plain, count);
    free(work);
    return status;
}

/* Everything but the descriptions that it does not take over. */
static weft_status outline_model(weft_model *model, weft_groups *groups, weft_model_function build,
                                 weft_parameters **stages, weft_description *descriptions,
                                 weft_outline *out)
{
    WEFT_TRY(weft_model_build(model, build));
    WEFT_TRY(cut(model, build, out, descriptions, &model->layout));
    out->layout = model->layout;
    WEFT_TRY(outline_stages(model, groups, stages, out));
    WEFT_TRY(outline_layers(model, stages, descriptions, out));
    return weft_outline_hold(out, &groups->mesh);
}

/* The fields that need no layers. */
static weft_status begin_outline(const weft_model_setup *setup, const weft_mesh *mesh,
                                 weft_outline *out)
{
    WEFT_TRY(described_shape(setup, mesh, &out->shape));
    if (setup->tier)
        out->tier = weft_tier_closed(setup->tier);
    out->accumulates = setup->accumulates; /* and see place_experts */
    out->steps_at_once = setup->steps_at_once;
    out->pairs = setup->pairs && setup->training;
    out->leaves_weights = out->pairs && setup->leaves_weights;
    place_experts(out);
    return WEFT_OK;
}

static weft_status outline(const weft_model_setup *setup, weft_model *model, weft_groups *groups,
                           weft_model_function build, weft_parameters **stages, weft_outline *out)
{
    weft_description *descriptions = NULL;
    int count;
    WEFT_TRY(begin_outline(setup, &groups->mesh, out));
    WEFT_TRY(weft_device_create_note(&model->setup.device)); /* for layers whose init uses it */
    WEFT_TRY(weft_rehearse_model(&model->options, setup->own_options, &out->shape, build,
                                 &descriptions, &count));
    out->num_layers = count;
    out->residency = setup->parallel ? weft_residency_of(setup->parallel, count)
                                     : (weft_residency){.num_layers = count};
    out->residency.experts_on_host = out->shape.experts_on_host;
    out->residency.state_on_host = out->tier.optimizer_state == WEFT_TIER_STATE_HOST;
    out->residency.pairs = out->pairs;
    out->residency.muon = setup->muon;
    const weft_status status = outline_model(model, groups, build, stages, descriptions, out);
    weft_descriptions_release(descriptions, count);
    return status;
}

/* A model before it has layers. `groups` lives as long. */
static weft_model *begin_model(const weft_model_setup *setup, const weft_groups *groups)
{
    weft_model *model = calloc(1, sizeof *model);
    if (!model)
        return NULL;
    model->options = *setup->options;
    model->setup = (weft_model_setup){.options = &model->options,
                                      .own_options = setup->own_options,
                                      .rules = setup->rules,
                                      .parallel = setup->parallel,
                                      .recompute = setup->training ? setup->recompute : NULL,
                                      .groups = groups,
                                      .dtype = setup->dtype,
                                      .micro_batch_size = setup->micro_batch_size,
                                      .training = true};
    model->shape = weft_model_shape(&model->options, &groups->mesh, setup->micro_batch_size,
                                    setup->dtype, true);
    return model;
}

static void end_model(weft_model *model)
{
    model->parameters = NULL;
    weft_model_forget(model);
    weft_device_destroy(model->setup.device);
    free(model);
}

weft_status weft_model_outline(const weft_model_setup *setup, const weft_mesh *mesh,
                               weft_model_function build, weft_outline *out)
{
    weft_groups groups = {.mesh = *mesh};
    memset(out, 0, sizeof *out);
    weft_model *model = begin_model(setup, &groups);
    weft_parameters **stages = calloc((size_t)mesh->pp, sizeof *stages);
    if (!model || !stages) {
        free(model);
        free(stages);
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model's outline");
    }
    const weft_status status = outline(setup, model, &groups, build, stages, out);
    if (status != WEFT_OK)
        weft_outline_release(out);
    end_model(model);
    for (int s = 0; s < mesh->pp; s++)
        weft_parameters_destroy(stages[s]);
    free(stages);
    return status;
}

/* --- the list of parameters --------------------------------------------------------------- */

static int compare_listed(const void *a, const void *b)
{
    return strcmp(((const weft_listed_parameter *)a)->name,
                  ((const weft_listed_parameter *)b)->name);
}

static weft_status take_list(const weft_parameters *parameters, weft_arena *arena,
                             weft_listed_parameter **out, size_t *out_count)
{
    const size_t count = (size_t)weft_parameters_count(parameters);
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, out));
    *out_count = count;
    for (size_t i = 0; i < count; i++) {
        const weft_placed *placed = weft_parameters_at(parameters, (int)i);
        weft_listed_parameter *listed = &(*out)[i];
        snprintf(listed->name, sizeof listed->name, "%s", placed->parameter.name);
        listed->num_dims = placed->box.num_dims;
        memcpy(listed->dims, placed->box.global_dims, sizeof listed->dims);
        listed->by_expert = placed->spec.by_expert;
        listed->is_matrix = placed->spec.is_matrix;
    }
    qsort(*out, count, sizeof **out, compare_listed);
    return WEFT_OK;
}

static weft_status list_parameters(weft_model *model, weft_groups *groups,
                                   weft_model_function build, weft_parameters **parameters,
                                   weft_arena *arena, weft_listed_parameter **out,
                                   size_t *out_count)
{
    static const weft_parallel_options evenly;
    WEFT_TRY(weft_device_create_note(&model->setup.device));
    WEFT_TRY(weft_model_build(model, build));
    double *work = calloc((size_t)model->tree.num_layers, sizeof *work);
    if (!work)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the stage layout");
    weft_status status =
        weft_layout_build(&evenly, 1, model->tree.num_layers, work, &model->layout);
    free(work);
    WEFT_TRY(status);
    WEFT_TRY(declare_stage(model, groups, 0, parameters));
    return take_list(*parameters, arena, out, out_count);
}

weft_status weft_model_list_parameters(const weft_model_setup *setup, weft_model_function build,
                                       weft_arena *arena, weft_listed_parameter **out,
                                       size_t *out_count)
{
    static const weft_parallel_options one_rank = {.tensor_model_parallel_size = 1,
                                                   .pipeline_model_parallel_size = 1,
                                                   .context_parallel_size = 1,
                                                   .expert_binding = WEFT_BINDING_DP,
                                                   .order = "tp-cp-ep-dp-pp"};
    weft_groups groups = {0};
    weft_parameters *parameters = NULL;
    WEFT_TRY(weft_mesh_build(&one_rank, 1, setup->options->num_experts, &groups.mesh));
    weft_model *model = begin_model(setup, &groups);
    if (!model)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model's parameters");
    const weft_status status =
        list_parameters(model, &groups, build, &parameters, arena, out, out_count);
    end_model(model);
    weft_parameters_destroy(parameters);
    return status;
}

/* --- passes ------------------------------------------------------------------------------- */

bool weft_outline_recomputes_early(const weft_outline *outline, int rank, int chunk)
{
    const weft_layout *layout = &outline->layout;
    int first, end;
    weft_layout_range(layout, rank, chunk, &first, &end);
    return !outline->pairs && layout->num_ranks > 1 && end > first && end < layout->num_layers &&
           outline->layers[end - 1].recompute_group > 0 &&
           !outline->layers[end - 1].description.keeps_input;
}

bool weft_outline_recomputes_layer_early(const weft_outline *outline, int rank, int chunk,
                                         int layer)
{
    int first, end;
    weft_layout_range(&outline->layout, rank, chunk, &first, &end);
    return weft_outline_recomputes_early(outline, rank, chunk) &&
           outline->layers[layer].recompute_group == outline->layers[end - 1].recompute_group;
}

bool weft_outline_repeats(const weft_outline *outline)
{
    for (int l = 0; l < outline->num_layers; l++)
        if (outline->layers[l].recompute_group > 0)
            return true;
    return false;
}

bool weft_outline_loss_waits(const weft_outline *outline)
{
    for (int l = 0; l < outline->num_layers; l++)
        for (int i = 0; i < outline->layers[l].num_parameters; i++)
            if (outline->layers[l].parameters[i].shared)
                return true;
    return false;
}

bool weft_outline_splits(const weft_outline *outline, int layer)
{
    const weft_outline_layer *l = &outline->layers[layer];
    return l->description.splits && l->recompute_group == 0 && !l->offloads && !l->offloads_input &&
           layer < outline->num_layers - 1;
}

weft_status weft_outline_pass(const weft_outline *outline, int rank, int chunk, weft_arena *arena,
                              weft_chunk_shape *out)
{
    const weft_layout *layout = &outline->layout;
    const weft_held_elements *held = &outline->held[rank];
    const weft_offload_sizes sizes = weft_outline_offload_sizes(outline, rank);
    const int stage = weft_stage_of(layout->is_v, layout->num_ranks, rank, chunk);
    int first, end;
    void *layers;
    weft_layout_range(layout, rank, chunk, &first, &end);
    WEFT_TRY(
        weft_arena_alloc_array(arena, (size_t)(end - first) + 1, sizeof(weft_pass_layer), &layers));
    *out =
        (weft_chunk_shape){.layers = layers,
                           .first = first,
                           .num_layers = end - first,
                           .receives = stage > 0,
                           .passes_on = stage < weft_layout_num_stages(layout) - 1,
                           .row_bytes = weft_shape_boundary_bytes(&outline->shape),
                           .weight_slots = held->weight_slots,
                           .gradient_slots = held->gradient_slots,
                           .weight_bytes = held->slot * weft_dtype_bytes(outline->shape.dtype),
                           .gradient_bytes = held->slot * sizeof(float),
                           .offload_slots = sizes.num_slots,
                           .input_slots = sizes.num_inputs,
                           .recomputes_early = weft_outline_recomputes_early(outline, rank, chunk)};
    for (int k = 0; k < sizes.num_slots; k++)
        out->offload_bytes[k] = sizes.slot_bytes[k];
    for (int l = first; l < end; l++) {
        const weft_outline_layer *layer = &outline->layers[l];
        ((weft_pass_layer *)layers)[l - first] = (weft_pass_layer){
            .stash_bytes = layer->description.cost.activation_bytes - layer->offloaded_bytes,
            .offloads = layer->offloads,
            .offloads_input = layer->offloads_input,
            .offloaded_bytes = layer->offloaded_bytes,
            .in_place = layer->in_place,
            .host_waits = layer->host_waits,
            .gathers = held->weight_slots > 0 && weft_outline_shares(layer),
            .reduces = weft_outline_shares(layer),
            .is_loss = l == outline->num_layers - 1,
            .group = layer->recompute_group,
            .splits = weft_outline_splits(outline, l),
            .deferred_bytes =
                weft_outline_splits(outline, l) ? layer->description.deferred_bytes : 0};
    }
    return WEFT_OK;
}
