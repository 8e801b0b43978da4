/* A model on a mesh, and the passes of one of its layers alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/grow.h"
#include "core/rng.h"
#include "layers/check/internal.h"
#include "parallel/mesh/mesh.h"

/* --- guards ---------------------------------------------------------------------------------- */

/* Bytes around the memory that a layer gets: they show a write beyond it. */

enum { GUARD_BYTES = 256, STATE_GUARD_BYTES = 1024, PATTERN = 0xff }; /* a NaN in fp32 and bf16 */

static weft_status check_guards_take(weft_check_guards *g, const char *what, size_t bytes,
                                     void **out)
{
    WEFT_TRY(WEFT_GROW(g->pieces, g->capacity, (size_t)g->count + 1, "pieces to check"));
    size_t all = weft_piece_bytes(WEFT_U8, bytes, 1) + 2 * GUARD_BYTES;
    char *base = aligned_alloc(64, all);
    if (!base)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    memset(base, PATTERN, all);
    memset(base + GUARD_BYTES, g->fill, bytes);
    g->pieces[g->count++] = (weft_check_piece){what, base, bytes};
    *out = base + GUARD_BYTES;
    return WEFT_OK;
}

static bool is_whole(const char *guard, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)guard[i] != PATTERN)
            return false;
    return true;
}

/* The name of an overwritten guard, after all guards are restored; NULL: none. */
static const char *check_guards_broken(const weft_check_guards *g)
{
    const char *what = NULL;
    for (int i = 0; i < g->count; i++) {
        char *before = g->pieces[i].base, *behind = before + GUARD_BYTES + g->pieces[i].bytes;
        if (is_whole(before, GUARD_BYTES) && is_whole(behind, GUARD_BYTES))
            continue;
        what = what ? what : g->pieces[i].what;
        memset(before, PATTERN, GUARD_BYTES);
        memset(behind, PATTERN, GUARD_BYTES);
    }
    return what;
}

static void check_guards_poison(weft_check_guards *g)
{
    for (int i = 0; i < g->count; i++)
        memset(g->pieces[i].base, PATTERN, g->pieces[i].bytes + 2 * GUARD_BYTES);
}

static void check_guards_release(weft_check_guards *g)
{
    for (int i = 0; i < g->count; i++)
        free(g->pieces[i].base);
    free(g->pieces);
    memset(g, 0, sizeof *g);
}

/* --- the layers' state --------------------------------------------------------------------- */

static weft_status guard_states(weft_model *model)
{
    size_t bytes = 0;
    for (int m = 0; m < model->tree.num_members; m++) {
        size_t own = model->tree.members[m].layer->place->ops.state_bytes;
        model->tree.members[m].state_offset = bytes;
        bytes += weft_piece_bytes(WEFT_U8, own, 1) + STATE_GUARD_BYTES;
    }
    model->tree.states_bytes = bytes;
    for (int i = 0; i < model->setup.num_passes; i++) {
        free(model->memory.passes[i].states);
        model->memory.passes[i].states = calloc(1, bytes + 1);
        if (!model->memory.passes[i].states)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    }
    return WEFT_OK;
}

static char *state_guard(const weft_pass *pass, int member)
{
    const weft_member *m = &pass->model->tree.members[member];
    return pass->states + m->state_offset + m->layer->place->ops.state_bytes;
}

/* Zeroes the states and restores the guards behind them. */
static void check_clear_states(weft_pass *pass)
{
    memset(pass->states, 0, pass->model->tree.states_bytes);
    for (int m = 0; m < pass->model->tree.num_members; m++)
        memset(state_guard(pass, m), PATTERN, STATE_GUARD_BYTES);
}

static bool states_broken(const weft_pass *pass)
{
    for (int m = 0; m < pass->model->tree.num_members; m++)
        if (!is_whole(state_guard(pass, m), STATE_GUARD_BYTES))
            return true;
    return false;
}

/* --- a place ------------------------------------------------------------------------------- */

enum { GRADIENT = 4, STASH, SCRATCH, STATE, NUM_BEYOND };
static const char *const check_names[NUM_BEYOND] = {
    "x",
    "y",
    "dy",
    "dx",
    "a gradient",
    "a piece of the stash",
    "a piece of scratch",
    "a layer's state: ops->state_bytes is too small"};

static weft_status give_stash(void *guards, size_t bytes, void **out)
{
    return check_guards_take(guards, check_names[STASH], bytes, out);
}

static weft_status give_scratch(void *guards, size_t bytes, void **out)
{
    return check_guards_take(guards, check_names[SCRATCH], bytes, out);
}

/* Puts guards around gradients, states, and the memory of passes. */
static weft_status check_guard(weft_check_place *p)
{
    weft_model *model = p->model;
    for (int u = 0; u < model->tree.num_uses; u++) {
        weft_parameter *parameter = model->tree.uses[u].parameter;
        void *grad;
        if (!model->tree.uses[u].declared || !parameter->grad)
            continue;
        WEFT_TRY(check_guards_take(&p->given, check_names[GRADIENT],
                                   weft_parameter_span(parameter) * sizeof(float), &grad));
        parameter->grad = grad;
    }
    for (int slot = 0; slot < 2; slot++) {
        model->memory.passes[slot].stash.give = give_stash;
        model->memory.passes[slot].stash.giver = &p->stash[slot];
    }
    model->memory.scratch.give = give_scratch;
    model->memory.scratch.giver = &p->scratch;
    return guard_states(model);
}

/* Sets place->beyond to what the pass in that slot wrote beyond its memory, if anything. */
static void check_find_beyond(weft_check_place *p, int slot)
{
    const char *found[] = {check_guards_broken(&p->given), check_guards_broken(&p->stash[slot]),
                           check_guards_broken(&p->scratch),
                           states_broken(&p->model->memory.passes[slot]) ? check_names[STATE]
                                                                         : NULL};
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < NUM_BEYOND && found[i] && p->beyond <= 0; n++)
            if (found[i] == check_names[n])
                p->beyond = 1 + n + (p->model->memory.passes[slot].backward ? NUM_BEYOND : 0);
}

void weft_check_beyond_text(double beyond, char out[96])
{
    int code = (int)beyond - 1;
    snprintf(out, 96, "%sward writes beyond %s", code < NUM_BEYOND ? "for" : "back",
             check_names[code % NUM_BEYOND]);
}

enum { SEED = 7, STREAM_X = 101, STREAM_DY = 103, STREAM_TOKENS = 105 };

/* The factor between a layer's part of the loss and the micro-batch's mean. */
static const float loss_scale = 0.5f;

static weft_status make_mesh(const char *text, weft_expert_binding binding, int world,
                             const weft_model_options *options, weft_mesh *out)
{
    weft_parallel_options parallel = {0};
    weft_arena arena = {0};
    weft_option_section section = {"parallel", weft_parallel_rows, weft_num_parallel_rows,
                                   &parallel, ""};
    weft_status status = weft_options_parse(&section, 1, "check", NULL, NULL, 0, &arena);
    if (status == WEFT_OK)
        status = weft_mesh_apply_alias(text, &arena, &parallel, NULL);
    parallel.expert_binding = (int)binding;
    if (status == WEFT_OK)
        status = weft_mesh_build(&parallel, world, options->num_experts, out);
    weft_arena_release(&arena);
    return status;
}

/* Weights that keep values near size 1, so that every gradient is visible; training's initial
 * weights are too small. A pure function of names and global indices. */
static weft_status set_weights(weft_check_place *p)
{
    const weft_parameters *parameters = weft_model_parameters(p->model);
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_placed *placed = weft_parameters_at(parameters, i);
        const weft_parameter_spec *spec = placed->parameter.spec;
        bool is_matrix = spec->num_dims > 1 && spec->init == WEFT_INIT_NORMAL;
        const weft_random_normal_args values = {
            .struct_bytes = sizeof values,
            .seed = SEED,
            .stream = weft_rng_stream_of(placed->parameter.name),
            .mean = spec->init == WEFT_INIT_ONE ? 1.0f : 0.0f,
            .std = is_matrix ? 1 / sqrtf((float)spec->dims[spec->num_dims - 1]) : 0.3f,
            .dtype = placed->parameter.weight.dtype,
            .x = placed->parameter.weight.data};
        WEFT_TRY(weft_parameters_draw(placed, p->lane, &values));
    }
    return WEFT_OK;
}

static weft_status take_rows(weft_check_place *p, const char *what, weft_tensor *out)
{
    void *data;
    size_t bytes = p->rows * p->hidden * weft_dtype_bytes(p->dtype);
    WEFT_TRY(check_guards_take(&p->given, what, bytes, &data));
    *out = weft_tensor_2d(data, p->dtype, p->rows, p->hidden);
    return WEFT_OK;
}

/* Fills this rank's rows of a whole [S * B, H] of normal numbers. */
static weft_status fill_rows(weft_check_place *p, uint64_t stream, const weft_tensor *to)
{
    return weft_random_normal(
        p->lane, &(weft_random_normal_args){.struct_bytes = sizeof(weft_random_normal_args),
                                            .num_dims = 2,
                                            .global_dims = {p->rows_full, p->hidden},
                                            .start = {p->first_row, 0},
                                            .local_dims = {p->rows, p->hidden},
                                            .seed = SEED,
                                            .stream = stream,
                                            .std = 1,
                                            .dtype = to->dtype,
                                            .x = to->data});
}

static weft_status make_rows(weft_check_place *p)
{
    const weft_shape *shape = weft_model_get_shape(p->model);
    p->rows_full = weft_shape_local_tokens(shape);
    p->rows = weft_pass_rows(&p->model->memory.passes[0]);
    p->first_row =
        shape->sequence_parallel ? (size_t)p->groups.coords.at[WEFT_AXIS_TP] * p->rows : 0;
    p->hidden = shape->hidden;
    p->tokens = calloc(4 * p->rows_full, sizeof *p->tokens);
    if (!p->tokens)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for tokens to check");
    for (size_t i = 0; i < 4 * p->rows_full; i++)
        p->tokens[i] =
            (int32_t)((double)weft_rng_uniform(SEED, STREAM_TOKENS, i) * (double)shape->vocab);
    WEFT_TRY(check_guards_take(&p->given, check_names[0],
                               p->rows * p->hidden * weft_dtype_bytes(p->dtype), &p->arriving));
    for (int b = 0; b < 2; b++) {
        weft_tensor *all[] = {&p->x[b], &p->y[b], &p->dy[b], &p->dx[b]}; /* as their names */
        for (int i = 0; i < 4; i++)
            WEFT_TRY(take_rows(p, check_names[i], all[i]));
        WEFT_TRY(fill_rows(p, STREAM_X + (uint64_t)b, &p->x[b]));
        WEFT_TRY(fill_rows(p, STREAM_DY + (uint64_t)b, &p->dy[b]));
    }
    return weft_lane_sync(p->lane);
}

static weft_model_setup model_setup(const weft_check_setup *setup, weft_dtype dtype)
{
    return (weft_model_setup){.options = setup->options,
                              .own_options = setup->own_options,
                              .dtype = dtype,
                              .micro_batch_size = setup->micro_batch_size,
                              .bucket_elements = 1 << 20,
                              .training = true,
                              .num_passes = 2,
                              .seed = SEED};
}

weft_status weft_check_model(const weft_check_setup *setup, weft_model_function build,
                             weft_metric_list *out_metrics)
{
    weft_model_setup model = model_setup(setup, WEFT_F32);
    weft_mesh mesh;
    weft_outline outline;
    WEFT_TRY(make_mesh("tp=1", setup->binding, 1, setup->options, &mesh));
    WEFT_TRY(weft_model_outline(&model, &mesh, build, &outline));
    *out_metrics = outline.metrics;
    weft_outline_release(&outline);
    return WEFT_OK;
}

weft_status weft_check_place_create(weft_check_place *p, weft_comm *comm,
                                    const weft_check_setup *setup, const char *mesh_text,
                                    weft_dtype dtype, weft_model_function build)
{
    weft_mesh mesh;
    memset(p, 0, sizeof *p);
    p->mesh = mesh_text;
    p->dtype = dtype;
    WEFT_TRY(make_mesh(mesh_text, setup->binding, weft_comm_size(comm), setup->options, &mesh));
    weft_model_setup model = model_setup(setup, dtype);
    model.groups = &p->groups;
    weft_outline outline; /* made before any collective call */
    WEFT_TRY(weft_model_outline(&model, &mesh, build, &outline));
    weft_outline_release(&outline);
    WEFT_TRY(weft_groups_create(comm, &mesh, NULL, &p->groups));
    WEFT_TRY(weft_device_create_cpu(1, 0, &p->device));
    WEFT_TRY(weft_lane_create(p->device, 0, "compute", &p->lane));
    model.device = p->device;
    WEFT_TRY(weft_model_create(&model, build, &p->model));
    WEFT_TRY(set_weights(p));
    WEFT_TRY(check_guard(p));
    return make_rows(p);
}

void weft_check_place_release(weft_check_place *p)
{
    free(p->tokens);
    weft_model_destroy(p->model);
    weft_check_guards *all[] = {&p->given, &p->stash[0], &p->stash[1], &p->scratch};
    for (int i = 0; i < 4; i++)
        check_guards_release(all[i]);
    weft_lane_destroy(p->lane);
    weft_groups_release(&p->groups);
    weft_device_destroy(p->device);
    memset(p, 0, sizeof *p);
}

/* --- a layer ------------------------------------------------------------------------------- */

static bool is_inside(const weft_model_tree *tree, int member, int ancestor)
{
    while (member >= 0 && member != ancestor)
        member = tree->members[member].parent;
    return member == ancestor;
}

weft_status weft_check_layer_of(weft_check_place *place, int index, weft_check_layer *out)
{
    const weft_model_tree *tree = &place->model->tree;
    *out = (weft_check_layer){.place = place, .layer = tree->members[index].layer};
    out->in_list = tree->members[index].parent < 0;
    out->reads_rows = out->layer != tree->layers[0];
    out->gives_rows = out->layer != tree->layers[tree->num_layers - 1];
    for (int u = 0; u < tree->num_uses; u++) {
        const weft_use *use = &tree->uses[u];
        if (!is_inside(tree, use->member, index))
            continue;
        if (out->num_parameters == WEFT_CHECK_MAX_PARAMETERS)
            return WEFT_ERROR(WEFT_CONFIG, "%s: more than %d parameters",
                              weft_layer_name(out->layer), WEFT_CHECK_MAX_PARAMETERS);
        out->parameters[out->num_parameters] = use->parameter;
        out->declared[out->num_parameters++] = use->declared;
    }
    return WEFT_OK;
}

static void poison(const weft_tensor *t)
{
    memset(t->data, 0xff, weft_tensor_bytes(t));
}

typedef struct arrival {
    const weft_check_place *place;
    const weft_tensor *to;
} arrival;

/* After the layer's function, or while it waits for the lane. */
static weft_status arrive(const void *args)
{
    const arrival *a = args;
    const struct timespec moment = {.tv_nsec = 1000000};
    for (int i = 0; i < 20 && !atomic_load(&a->place->returned); i++)
        nanosleep(&moment, NULL);
    memcpy(a->to->data, a->place->arriving, weft_tensor_bytes(a->to));
    return WEFT_OK;
}

static weft_status begin_pass(weft_check_place *p, const weft_tensor *from)
{
    atomic_store(&p->returned, false);
    if (!p->late || !from)
        return WEFT_OK;
    memcpy(p->arriving, from->data, weft_tensor_bytes(from));
    poison(from);
    return weft_lane_submit(p->lane, "arrive", arrive, &(arrival){p, from}, sizeof(arrival));
}

/* The end of the pass on this rank. The TP group meets here, so that the check of collectives names
 * a rank that calls more of them than others. */
static weft_status end_pass(weft_check_place *p, int slot, weft_status status)
{
    atomic_store(&p->returned, true);
    if (status == WEFT_OK)
        status = weft_lane_sync(p->lane);
    check_find_beyond(p, slot);
    weft_comm *tp = p->groups.by_axis[WEFT_AXIS_TP];
    return status == WEFT_OK && weft_comm_size(tp) > 1 ? weft_comm_barrier(tp) : status;
}

weft_status weft_check_forward(const weft_check_layer *l, int slot, int batch, bool overwrite,
                               weft_check_memory memory)
{
    weft_check_place *p = l->place;
    weft_pass *pass = &p->model->memory.passes[slot];
    weft_tensor none = {0};
    pass->lane = p->lane;
    pass->backward = false;
    pass->micro_batch =
        (weft_micro_batch){.tokens = p->tokens + (size_t)batch * p->rows_full,
                           .labels = p->tokens + (size_t)(2 + batch) * p->rows_full,
                           .step = 1,
                           .first_sample = (uint64_t)batch * weft_model_get_shape(p->model)->batch,
                           .overwrite = overwrite,
                           .backward_overwrites = overwrite,
                           .loss_scale = loss_scale,
                           .training = true};
    weft_stack_rewind(&pass->stash, 0);
    weft_stack_rewind(&pass->host, 0);
    check_clear_states(pass);
    weft_model_clear_metrics(p->model);
    check_guards_release(&p->stash[slot]);
    check_guards_release(&p->scratch);
    p->stash[slot].fill = p->scratch.fill = memory == WEFT_CHECK_POISONED ? 0xff : 0;
    poison(&p->y[slot]);
    size_t mark = weft_pass_mark(pass);
    weft_status status = begin_pass(p, l->reads_rows ? &p->x[batch] : NULL);
    if (status == WEFT_OK)
        status = l->layer->ops->forward(l->layer, pass, l->reads_rows ? &p->x[batch] : &none,
                                        l->gives_rows ? &p->y[slot] : NULL);
    status = end_pass(p, slot, status);
    weft_pass_release(pass, mark);
    return weft_layer_failed(l->layer, "forward", status);
}

weft_status weft_check_backward(const weft_check_layer *l, int slot)
{
    weft_check_place *p = l->place;
    weft_pass *pass = &p->model->memory.passes[slot];
    size_t batch = pass->micro_batch.first_sample > 0;
    weft_tensor none = {0};
    pass->backward = true;
    check_guards_poison(&p->scratch);
    p->scratch.fill = 0xff;
    poison(&p->y[slot]);
    poison(&p->dx[slot]);
    size_t mark = weft_pass_mark(pass);
    weft_status status = begin_pass(p, l->gives_rows ? &p->dy[batch] : NULL);
    if (status == WEFT_OK)
        status = l->layer->ops->backward(l->layer, pass, l->gives_rows ? &p->dy[batch] : &none,
                                         &p->dx[slot]);
    status = end_pass(p, slot, status);
    weft_pass_release(pass, mark);
    return weft_layer_failed(l->layer, "backward", status);
}

float weft_check_number(const weft_tensor *t, size_t i)
{
    union {
        uint32_t bits;
        float number;
    } one = {0};
    if (t->dtype == WEFT_F32)
        return ((const float *)t->data)[i];
    one.bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
    return one.number;
}

/* This rank's part of the loss that the layer adds through metrics. */
static double own_loss(const weft_check_layer *l)
{
    const weft_metrics *m = weft_model_metrics(l->place->model);
    const weft_metric_list *list = weft_model_metric_list(l->place->model);
    const weft_metric *own = weft_model_own_metrics(l->place->model);
    double further = 0;
    for (int i = 0; i < list->count; i++)
        if (list->rows[i].share > 0 && own[i].count > 0)
            further += list->rows[i].share * own[i].sum / own[i].count;
    return (double)loss_scale * (m->loss_sum / (double)l->place->rows_full + m->aux_loss + further);
}

double weft_check_loss(const weft_check_layer *l, int slot)
{
    const weft_check_place *p = l->place;
    size_t batch = p->model->memory.passes[slot].micro_batch.first_sample > 0;
    double loss = own_loss(l);
    for (size_t i = 0; l->gives_rows && i < p->rows * p->hidden; i++)
        loss +=
            (double)weft_check_number(&p->dy[batch], i) * (double)weft_check_number(&p->y[slot], i);
    return loss;
}

void weft_check_fill_gradients(const weft_check_layer *l, float value)
{
    for (int i = 0; i < l->num_parameters; i++)
        for (size_t k = 0; k < weft_tensor_count(&l->parameters[i]->weight); k++)
            l->parameters[i]->grad[weft_parameter_place(l->parameters[i], k)] = value;
}

const char *weft_check_parameter_name(const weft_check_layer *l, const weft_parameter *parameter)
{
    size_t bytes = strlen(weft_layer_name(l->layer));
    bool inside = strncmp(parameter->name, weft_layer_name(l->layer), bytes) == 0 &&
                  parameter->name[bytes] == '.';
    return parameter->name + (inside ? bytes + 1 : 0);
}

/* --- results ------------------------------------------------------------------------------- */

static float *copy_of(const weft_tensor *t)
{
    size_t count = weft_tensor_count(t);
    float *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = weft_check_number(t, i);
    return copy;
}

static float *copy_gradient(const weft_parameter *parameter)
{
    size_t count = weft_tensor_count(&parameter->weight);
    float *copy = malloc((count + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        copy[i] = parameter->grad[weft_parameter_place(parameter, i)];
    return copy;
}

weft_status weft_check_result_forward(const weft_check_layer *l, int slot, weft_check_result *out)
{
    memset(out, 0, sizeof *out);
    out->count = l->place->rows * l->place->hidden;
    out->loss = own_loss(l);
    out->y = copy_of(&l->place->y[slot]);
    return out->y ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
}

weft_status weft_check_result_backward(const weft_check_layer *l, int slot, weft_check_result *out)
{
    out->dx = copy_of(&l->place->dx[slot]);
    bool good = out->dx != NULL;
    for (int i = 0; i < l->num_parameters; i++) {
        out->gradients[i] = copy_gradient(l->parameters[i]);
        out->names[i] = l->parameters[i]->name;
        good = good && out->gradients[i];
    }
    return good ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
}

void weft_check_result_metrics(const weft_check_layer *l, weft_check_result *out)
{
    const weft_model *model = l->place->model;
    out->num_metrics = model->sums.own ? model->sums.list.count : 0;
    for (int i = 0; i < out->num_metrics; i++)
        out->metrics[i] = model->sums.own[i];
}

double weft_check_metric(const weft_check_layer *l, const weft_check_result *result, int metric)
{
    const weft_metric *m = &result->metrics[metric];
    bool is_mean = l->place->model->sums.list.rows[metric].kind == WEFT_METRIC_MEAN;
    return is_mean ? m->sum / m->count : m->sum;
}

void weft_check_result_release(weft_check_result *result)
{
    free(result->y);
    free(result->dx);
    for (int i = 0; i < WEFT_CHECK_MAX_PARAMETERS; i++)
        free(result->gradients[i]);
    memset(result, 0, sizeof *result);
}
