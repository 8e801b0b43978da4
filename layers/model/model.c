/* A model at run time: the memory of this stage, and the passes through it. layers/model/list.c has
 * the list of layers and its cut into stages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "layers/context/context.h"
#include "layers/describe/rehearse.h"
#include "layers/outline/footprint.h"
#include "layers/outline/outline.h"
#include "layers/pass/pass.h"
#include "layers/tensor/tensor.h"
#include "parallel/parameters/parameters.h"

static size_t metrics_bytes(const weft_model_sums *sums)
{
    return (sums->repeats ? 2 : 1) * sizeof *sums->metrics;
}

static weft_status create_metrics(weft_model_sums *sums, weft_device *device, bool repeats)
{
    void *memory;
    sums->repeats = repeats;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                   metrics_bytes(sums), "metrics", &memory));
    sums->metrics = memset(memory, 0, metrics_bytes(sums));
    if (!repeats || !sums->own)
        return WEFT_OK;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                   WEFT_MAX_METRICS * sizeof *sums->own, "metrics", &memory));
    sums->saved = memory;
    return WEFT_OK;
}

static weft_status create_deferred(weft_model *model, const weft_outline *outline)
{
    const weft_model_setup *s = &model->setup;
    model->memory.num_deferred = s->num_deferred + (s->leaves_weights ? WEFT_PAIR_LEAVERS : 0);
    if (model->memory.num_deferred == 0)
        return WEFT_OK;
    model->memory.deferred =
        calloc((size_t)model->memory.num_deferred, sizeof *model->memory.deferred);
    if (!model->memory.deferred)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for backwards in two halves");
    for (int i = 0; i < model->memory.num_deferred; i++) {
        weft_stack *stack = &model->memory.deferred[i].stack;
        *stack = (weft_stack){.device = s->device,
                              .holds = WEFT_MEMORY_ACTIVATIONS,
                              .purpose = "deferred activations"};
        const int rank = model->place.pp.at;
        const bool is_left = i >= s->num_deferred;
        const int chunk = s->deferred_chunks && !is_left ? s->deferred_chunks[i] : 0;
        WEFT_TRY(weft_stack_reserve(stack, is_left
                                               ? weft_footprint_left(outline, rank)
                                               : weft_footprint_deferred(outline, rank, chunk)));
    }
    return WEFT_OK;
}

/* Reserves the footprint, so that a step allocates nothing. */
static weft_status create_passes(weft_model *model, const weft_outline *outline)
{
    int count = model->setup.num_passes;
    model->memory.kept_offset = model->tree.states_bytes;
    model->tree.states_bytes += (size_t)model->tree.num_layers * sizeof(weft_pass_kept);
    model->memory.passes = calloc((size_t)count, sizeof *model->memory.passes);
    if (!model->memory.passes)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %d passes", count);
    for (int i = 0; i < count; i++) {
        weft_pass *pass = &model->memory.passes[i];
        int chunk = model->setup.pass_chunks ? model->setup.pass_chunks[i] : 0;
        pass->model = model;
        weft_pass_serve(pass, chunk);
        pass->stash = (weft_stack){.device = model->setup.device,
                                   .holds = WEFT_MEMORY_ACTIVATIONS,
                                   .purpose = "activations"};
        pass->host = (weft_stack){.device = model->setup.device,
                                  .space = WEFT_SPACE_PINNED,
                                  .holds = WEFT_MEMORY_PINNED,
                                  .purpose = "host memory of layers"};
        pass->copies = pass->host;
        WEFT_TRY(weft_stack_reserve(&pass->stash,
                                    weft_footprint_stash(outline, model->place.pp.at, chunk)));
        WEFT_TRY(weft_stack_reserve(&pass->host, weft_footprint_host(outline, model->place.pp.at)));
        WEFT_TRY(
            weft_stack_reserve(&pass->copies, weft_footprint_copies(outline, model->place.pp.at)));
        pass->states = calloc(1, model->tree.states_bytes + 1);
        if (weft_footprint_copies(outline, model->place.pp.at) > 0) {
            pass->offloaded = calloc((size_t)model->tree.num_layers, sizeof *pass->offloaded);
            if (!pass->offloaded)
                return WEFT_ERROR(WEFT_MEMORY, "out of memory for what layers offload");
        }
        if (!pass->states)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for the state of %d layers",
                              model->tree.num_members);
    }
    model->memory.scratch = (weft_stack){
        .device = model->setup.device, .holds = WEFT_MEMORY_SCRATCH, .purpose = "scratch"};
    size_t rows = weft_pass_rows(&model->memory.passes[0]), hidden = model->shape.hidden;
    size_t row_bytes = weft_piece_bytes(model->shape.dtype, rows, hidden);
    WEFT_TRY(weft_stack_reserve(
        &model->memory.scratch,
        weft_footprint_scratch(outline, model->place.pp.at, WEFT_SCRATCH_FORWARD)));
    weft_tensor *kept[] = {&model->memory.normed, &model->memory.gradients[0],
                           &model->memory.gradients[1]};
    for (int i = model->setup.pairs; i < (model->setup.training ? 3 : 1); i++) {
        void *data;
        WEFT_TRY(weft_stack_alloc(&model->memory.scratch, row_bytes, &data));
        *kept[i] = weft_tensor_2d(data, model->shape.dtype, rows, hidden);
    }
    for (int i = 0; i < count; i++)
        model->memory.passes[i].normed = model->memory.normed;
    model->memory.backward_scratch = (weft_stack){
        .device = model->setup.device, .holds = WEFT_MEMORY_SCRATCH, .purpose = "scratch"};
    WEFT_TRY(weft_stack_reserve(&model->memory.backward_scratch,
                                weft_footprint_backward_scratch(outline, model->place.pp.at)));
    for (int i = 0; i <= model->setup.pairs; i++) {
        weft_stack *again = &model->memory.recomputed[i].stack;
        *again = (weft_stack){.device = model->setup.device,
                              .holds = WEFT_MEMORY_ACTIVATIONS,
                              .purpose = "recomputed activations"};
        WEFT_TRY(weft_stack_reserve(again, weft_footprint_recomputed(outline, model->place.pp.at) /
                                               (1 + model->setup.pairs)));
    }
    const weft_offload_sizes sizes = weft_outline_offload_sizes(outline, model->place.pp.at);
    const weft_tensor row = weft_tensor_2d(NULL, model->shape.dtype, rows, hidden);
    WEFT_TRY(weft_offload_create(model->setup.device, &sizes, &row, &model->memory.offload));
    WEFT_TRY(create_deferred(model, outline));
    return create_metrics(&model->sums, model->setup.device, weft_outline_repeats(outline));
}

/* ", from model.hidden_size": the keys that the sizes of a tensor are, or two to four times. */
static void keys_of(const weft_model_options *o, const weft_parameter_spec *spec, char *out,
                    size_t room)
{
    const struct {
        const char *key;
        int64_t value;
    } keys[] = {{"hidden_size", o->hidden_size},
                {"ffn_hidden_size", o->ffn_hidden_size},
                {"moe_ffn_hidden_size", spec->is_expert ? o->moe_ffn_hidden_size : 0},
                {"num_experts", spec->is_expert ? o->num_experts : 0},
                {"vocab_size", spec->is_embedding ? o->vocab_size : 0}};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int d = 0; d < spec->num_dims && used < room; d++) {
            const size_t value = (size_t)keys[i].value, dim = spec->dims[d];
            if (value == 0 || dim % value != 0 || dim / value > 4)
                continue;
            used += (size_t)snprintf(out + used, room - used, "%smodel.%s", used ? ", " : ", from ",
                                     keys[i].key);
            break;
        }
}

/* Parameters for which there is no memory: the largest of them, and the keys that make it large. */
static weft_status name_largest(const weft_model *model, weft_status status)
{
    const weft_parameter *largest = NULL;
    char dims[96] = "", keys[160];
    size_t used = 0;
    weft_error error;
    if (status != WEFT_MEMORY)
        return status;
    for (int i = 0; i < weft_parameters_count(model->parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(model->parameters, i)->parameter;
        if (!largest || weft_tensor_count(&p->weight) > weft_tensor_count(&largest->weight))
            largest = p;
    }
    if (!largest)
        return status;
    for (int d = 0; d < largest->spec->num_dims; d++)
        used += (size_t)snprintf(dims + used, sizeof dims - used, "%s%zu", d ? " x " : "",
                                 largest->spec->dims[d]);
    keys_of(&model->options, largest->spec, keys, sizeof keys);
    weft_error_take(&error);
    const size_t told = strlen(error.text);
    snprintf(error.text + told, sizeof error.text - told, "; the largest is %s: %s, %s%s",
             largest->name, dims, weft_bytes_text((double)weft_tensor_bytes(&largest->weight)).text,
             keys);
    return weft_error_put(&error);
}

static weft_status init(weft_model *model, const weft_outline *outline, weft_model_function build)
{
    const weft_model_setup *s = &model->setup;
    model->tree.tied = outline->tied;
    model->shape.recompute = outline->shape.recompute;
    model->shape.offload = outline->shape.offload;
    model->shape.experts_on_host = outline->shape.experts_on_host;
    model->shape.experts_placed = outline->shape.experts_placed;
    model->shape.splits_backward = outline->shape.splits_backward;
    model->sums.list = outline->metrics;
    model->num_frozen = outline->num_frozen;
    model->place = weft_coords_place(&s->groups->coords, s->groups->mesh.world);
    WEFT_TRY(weft_model_create_moe(model));
    WEFT_TRY(weft_model_create_context(model));
    WEFT_TRY(weft_model_create_tensor(model));
    WEFT_TRY(weft_model_build(model, build));
    model->layout = outline->layout;
    WEFT_TRY(weft_parameters_create(s->groups, s->device, s->dtype, &model->parameters));
    WEFT_TRY(weft_model_init_layers(model));
    WEFT_TRY(weft_parameters_apply_rules(model->parameters, &s->rules, NULL));
    weft_residency residency = outline->residency;
    residency.bucket_elements = s->bucket_elements;
    const weft_experts_file file =
        weft_tier_file(&outline->tier, weft_tier_state_bytes(s->dtype, s->split_master));
    if (outline->shape.experts_on_host && outline->tier.experts == WEFT_TIER_FILE)
        weft_parameters_use_file(model->parameters, &file);
    if (outline->shape.experts_placed)
        weft_parameters_share_experts(model->parameters);
    WEFT_TRY(name_largest(model, weft_parameters_allocate(model->parameters, &residency,
                                                          s->training && !s->evaluates)));
    WEFT_TRY(weft_rings_create(s->device, model->parameters, &model->memory.rings));
    if (outline->shape.experts_on_host)
        WEFT_TRY(weft_tier_create(&(weft_tier_setup){.device = s->device,
                                                     .parameters = model->parameters,
                                                     .options = &outline->tier,
                                                     .training = s->training && !s->evaluates,
                                                     .accumulates = outline->accumulates,
                                                     .num_threads = s->host_threads,
                                                     .at_once = outline->steps_at_once},
                                  &model->tier));
    WEFT_TRY(weft_model_inline_tier(model));
    WEFT_TRY(create_passes(model, outline));
    WEFT_TRY(weft_model_make_programs(model, outline));
    return s->graphs && !s->pairs && weft_graphs_fit(model) ? weft_graphs_create(model) : WEFT_OK;
}

weft_status weft_model_create(const weft_model_setup *setup, weft_model_function build,
                              weft_model **out)
{
    weft_model *model = calloc(1, sizeof *model);
    if (!model)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the model");
    model->setup = *setup;
    model->setup.pairs = setup->pairs && setup->training;
    model->setup.leaves_weights = model->setup.pairs && setup->leaves_weights;
    model->options = *setup->options;
    model->build = build;
    model->shape = weft_model_shape(&model->options, &setup->groups->mesh, setup->micro_batch_size,
                                    setup->dtype, setup->training);
    if (setup->logit_rows == 0)
        model->setup.logit_rows =
            weft_logit_rows(strcmp(weft_device_name(setup->device), "cuda") == 0);
    model->shape.logit_rows = model->setup.logit_rows;
    model->shape.cached_tokens = setup->cached_tokens;
    weft_error_clear();
    weft_outline outline;
    weft_status status = weft_model_outline(&model->setup, &setup->groups->mesh, build, &outline);
    if (status == WEFT_OK) {
        status = init(model, &outline, build);
        weft_outline_release(&outline);
    }
    if (status != WEFT_OK) {
        weft_model_destroy(model);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = model;
    return WEFT_OK;
}

static void release_memory(weft_model_memory *m, const weft_model_setup *setup)
{
    for (int i = 0; m->passes && i < setup->num_passes; i++) {
        weft_stack_release(&m->passes[i].stash);
        weft_stack_release(&m->passes[i].host);
        weft_stack_release(&m->passes[i].copies);
        free(m->passes[i].states);
        free(m->passes[i].offloaded);
    }
    free(m->passes);
    for (int i = 0; m->deferred && i < m->num_deferred; i++)
        weft_deferred_release(&m->deferred[i]);
    free(m->deferred);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        weft_stack_release(&m->recomputed[i].stack);
    weft_rings_release(&m->rings);
    weft_offload_release(&m->offload);
    weft_stack_release(&m->scratch);
    weft_stack_release(&m->backward_scratch);
}

static void release_sums(weft_model_sums *sums, weft_device *device)
{
    free(sums->loads.values);
    free(sums->expert_choices);
    if (sums->metrics)
        weft_device_free(device, WEFT_SPACE_PINNED, sums->metrics, metrics_bytes(sums));
    if (sums->saved)
        weft_device_free(device, WEFT_SPACE_PINNED, sums->saved,
                         WEFT_MAX_METRICS * sizeof *sums->saved);
}

void weft_model_destroy(weft_model *model)
{
    if (!model)
        return;
    weft_tier_abandon(model->tier);
    weft_device_wait(model->setup.device); /* after an error lanes may still run the pass */
    weft_graphs_destroy(model);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        weft_executor_release(&model->run.executors[i]);
    release_memory(&model->memory, &model->setup);
    weft_tier_destroy(model->tier);
    weft_arena_release(&model->arena);
    release_sums(&model->sums, model->setup.device);
    weft_model_forget(model);
    weft_parameters_destroy(model->parameters);
    weft_moe_runtime_destroy(model->moe);
    weft_context_runtime_destroy(model->context);
    weft_tensor_runtime_destroy(model->tensor);
    free(model);
}

/* --- asking -------------------------------------------------------------------------------- */

weft_parameters *weft_model_parameters(weft_model *model)
{
    return model->parameters;
}

const weft_shape *weft_model_get_shape(const weft_model *model)
{
    return &model->shape;
}

int weft_model_num_layers(const weft_model *model)
{
    return model->tree.num_layers;
}

const weft_layer *weft_model_layer(const weft_model *model, int index)
{
    return model->tree.layers[index];
}

weft_status weft_model_totals(const weft_model *model, uint64_t *out_params, double *out_flops)
{
    weft_shape whole = model->shape;
    weft_description *layers;
    int count;
    whole.tp = whole.cp = whole.ep = whole.etp = whole.pp = 1;
    whole.sequence_parallel = whole.splits_backward = false;
    whole.recompute = whole.offload = 0;
    whole.moe_partitions = whole.moe_reuse = whole.moe_peer_group = whole.moe_by_experts = 0;
    whole.moe_exchange = whole.moe_exchange_chunks = 0;
    WEFT_TRY(weft_rehearse_model(&model->options, model->setup.own_options, &whole, model->build,
                                 &layers, &count));
    *out_params = 0;
    *out_flops = 0;
    for (int i = 0; i < count; i++) {
        const weft_layer_cost *cost = &layers[i].cost;
        *out_params += cost->num_params;
        *out_flops += (double)cost->forward_flops + (double)cost->backward_flops;
    }
    weft_descriptions_release(layers, count);
    return WEFT_OK;
}

/* TP: full rows gathered from shares. EP: what balanced routing sends and receives. */
weft_status weft_model_reserve(weft_model *model, weft_lane *compute)
{
    const weft_shape *shape = &model->shape;
    const weft_groups *groups = model->setup.groups;
    size_t row_bytes = shape->hidden * weft_dtype_bytes(shape->dtype);
    WEFT_TRY(weft_comm_reserve(groups->by_axis[WEFT_AXIS_TP], compute,
                               2 * weft_shape_local_tokens(shape) * row_bytes));
    if (model->tensor)
        WEFT_TRY(weft_comm_reserve(groups->by_axis[WEFT_AXIS_TP],
                                   weft_tensor_runtime_lane(model->tensor),
                                   2 * weft_shape_local_tokens(shape) * row_bytes));
    if (model->memory.rings.gather)
        WEFT_TRY(weft_parameters_reserve(model->parameters, model->memory.rings.gather));
    if (model->context) {
        const weft_dims dims = weft_dims_of(&model->options, shape);
        const weft_context_shape context = weft_context_shape_of(shape, &dims);
        WEFT_TRY(weft_context_runtime_reserve(model->context, compute, &context));
    }
    if (!weft_model_moe_exchanges(model))
        return WEFT_OK;
    size_t tokens = weft_moe_dims_of(&model->options, shape).tokens;
    return weft_moe_runtime_reserve(model->moe, groups->by_axis[WEFT_AXIS_EP], compute,
                                    2 * tokens * (size_t)model->options.moe_router_topk *
                                        row_bytes);
}

void weft_model_use_reduce_lane(weft_model *model, weft_lane *reduce)
{
    model->memory.rings.reduce = reduce;
}

weft_metrics *weft_model_metrics(weft_model *model)
{
    return model->sums.metrics;
}

const weft_metric_list *weft_model_metric_list(const weft_model *model)
{
    return &model->sums.list;
}

const weft_metric *weft_model_own_metrics(const weft_model *model)
{
    return model->sums.own;
}

double *weft_model_loads(weft_model *model, size_t *out_count)
{
    *out_count = model->sums.loads.count;
    return model->sums.loads.values;
}

static size_t num_choices(const weft_model *model)
{
    return (size_t)model->tree.num_layers * (size_t)model->options.num_experts;
}

weft_status weft_model_count_choices(weft_model *model)
{
    model->sums.expert_choices = calloc(num_choices(model) + 1, sizeof *model->sums.expert_choices);
    return model->sums.expert_choices
               ? WEFT_OK
               : WEFT_ERROR(WEFT_MEMORY, "out of memory for the choices of experts");
}

double *weft_model_expert_choices(weft_model *model, size_t *out_count)
{
    *out_count = num_choices(model);
    return model->sums.expert_choices;
}

void weft_model_clear_metrics(weft_model *model)
{
    memset(model->sums.metrics, 0, sizeof *model->sums.metrics);
    model->sums.loads.count = 0;
    if (model->sums.expert_choices)
        memset(model->sums.expert_choices, 0,
               num_choices(model) * sizeof *model->sums.expert_choices);
    if (model->sums.own)
        memset(model->sums.own, 0, WEFT_MAX_METRICS * sizeof *model->sums.own);
}

bool weft_model_labels_are_tokens(const weft_model *model)
{
    return weft_layer_table(model->tree.layers[model->tree.num_layers - 1]).labels_are_tokens;
}

uint64_t weft_model_num_frozen(const weft_model *model)
{
    return model->num_frozen;
}

size_t weft_model_boundary_bytes(const weft_model *model)
{
    return weft_shape_boundary_bytes(&model->shape);
}

size_t weft_model_stash_bytes(const weft_model *model, int slot)
{
    return model->memory.passes[slot].stash.used_bytes;
}

void weft_model_bring(weft_model *model, size_t seq)
{
    model->shape.seq = seq;
    model->memory.normed.dims[0] = weft_shape_boundary_rows(&model->shape);
    for (int i = 0; i < model->setup.num_passes; i++)
        model->memory.passes[i].normed = model->memory.normed;
}

weft_status weft_model_logits(weft_model *model, int slot, weft_tensor *out)
{
    if (model->memory.passes[slot].end != model->tree.num_layers)
        return WEFT_ERROR(WEFT_INTERNAL, "logits are on the last stage");
    const weft_layer *head = model->tree.layers[model->tree.num_layers - 1];
    const weft_layer_ops *ops = &head->place->ops;
    if (!ops->logits)
        return WEFT_ERROR(WEFT_CONFIG, "the model's last layer (%s) gives no logits", ops->kind);
    *out = *ops->logits(head, &model->memory.passes[slot]);
    return WEFT_OK;
}

/* --- the passes' peaks of memory, and the loads there ---------------------------------------- */

static bool grew(const weft_stack *stack)
{
    return stack->peak_bytes > stack->first_bytes;
}

/* The bytes reserved for balanced routing, or the peak of an uneven load if that is more. */
static void add_stack(const weft_stack *stack, weft_memory_purpose purpose, weft_stack_use *out)
{
    if (stack->holds != purpose)
        return;
    for (int b = 0; b < stack->num_blocks; b++)
        out->blocks_bytes += stack->blocks[b].size;
    out->grew = out->grew || grew(stack);
    out->bytes += grew(stack) ? stack->peak_bytes : stack->first_bytes;
}

void weft_model_held(const weft_model *model, weft_memory_purpose purpose, weft_stack_use *out)
{
    *out = (weft_stack_use){0};
    add_stack(&model->memory.scratch, purpose, out);
    add_stack(&model->memory.backward_scratch, purpose, out);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        add_stack(&model->memory.recomputed[i].stack, purpose, out);
    for (int i = 0; i < model->memory.offload.num_slots; i++)
        add_stack(&model->memory.offload.slots[i].stack, purpose, out);
    for (int i = 0; i < model->setup.num_passes; i++) {
        add_stack(&model->memory.passes[i].stash, purpose, out);
        add_stack(&model->memory.passes[i].host, purpose, out);
        add_stack(&model->memory.passes[i].copies, purpose, out);
    }
    for (int i = 0; i < model->memory.num_deferred; i++)
        add_stack(&model->memory.deferred[i].stack, purpose, out);
}

void weft_model_settle(weft_model *model)
{
    for (int i = 0; i < model->setup.num_passes; i++) {
        weft_stack *stash = &model->memory.passes[i].stash;
        if (stash->num_blocks < 2)
            continue;
        weft_stack_rewind(stash, 0);
        weft_stack_settle(stash);
    }
    for (int i = 0; i < model->memory.num_deferred; i++) {
        weft_stack *stack = &model->memory.deferred[i].stack;
        if (stack->num_blocks < 2)
            continue;
        weft_stack_rewind(stack, 0);
        weft_stack_settle(stack);
    }
    weft_stack_settle(&model->memory.scratch);
    weft_stack_settle(&model->memory.backward_scratch);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++) {
        weft_stack *again = &model->memory.recomputed[i].stack;
        if (again->num_blocks < 2)
            continue;
        weft_stack_rewind(again, 0);
        weft_stack_settle(again);
    }
}

/* Adds a peak; one within the reservation counts at the reserved load. */
static void add_rows(const weft_model *model, bool by_load, const weft_rows *most, weft_rows *sum)
{
    const weft_moe_load *planned = &model->setup.moe.load;
    sum->balanced += most->balanced;
    sum->rows += by_load ? most->rows : most->balanced * (planned->rows > 0 ? planned->rows : 1);
    sum->sent += by_load ? most->sent : most->balanced * (planned->sent > 0 ? planned->sent : 1);
}

static void take_load(const weft_rows *sum, weft_moe_load *out)
{
    if (sum->balanced > 0)
        *out =
            (weft_moe_load){.rows = sum->rows / sum->balanced, .sent = sum->sent / sum->balanced};
}

void weft_model_held_loads(const weft_model *model, weft_moe_held_loads *out)
{
    const weft_moe_load *planned = &model->setup.moe.load;
    weft_rows kept = {0}, all = {0}, deferred = {0}, again = {0};
    for (int i = 0; i < model->setup.num_passes; i++) {
        const weft_pass *pass = &model->memory.passes[i];
        add_rows(model, grew(&pass->stash), &pass->fullest_kept, &kept);
        add_rows(model, grew(&pass->host) || grew(&pass->copies), &pass->fullest, &all);
    }
    for (int i = 0; i < model->memory.num_deferred; i++) {
        const weft_deferred *d = &model->memory.deferred[i];
        add_rows(model, grew(&d->stack), &d->fullest, &deferred);
    }
    *out = (weft_moe_held_loads){*planned,
                                 *planned,
                                 *planned,
                                 *planned,
                                 {*planned, *planned},
                                 {*planned, *planned, *planned, *planned},
                                 {-1, -1, -1, -1}};
    take_load(&kept, &out->passes);
    take_load(&all, &out->pinned);
    take_load(&deferred, &out->deferred);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++) {
        const weft_recomputed *r = &model->memory.recomputed[i];
        add_rows(model, grew(&r->stack), &r->fullest, &again);
    }
    take_load(&again, &out->recomputed);
    for (int i = 0; i < model->memory.offload.num_slots; i++)
        if (grew(&model->memory.offload.slots[i].stack))
            take_load(&model->memory.offload.slots[i].fullest, &out->offloaded[i]);
    for (int i = 0; i < WEFT_NUM_SCRATCH_USES; i++) {
        const weft_stack *scratch = i == WEFT_SCRATCH_FORWARD || !model->setup.pairs
                                        ? &model->memory.scratch
                                        : &model->memory.backward_scratch;
        if (!grew(scratch) || !(model->memory.scratch_load[i].rows > 0))
            continue;
        out->scratch[i] = model->memory.scratch_load[i];
        out->scratch_layer[i] = model->memory.scratch_layer[i];
    }
}
