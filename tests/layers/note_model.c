#include "tests/layers/note_model.h"

#include <stdlib.h>
#include <string.h>

#include "comm/note/note.h"
#include "parallel/sequence.h"

enum { BATCH = 2, ROW_BYTES = 1 << 20 };

static weft_status read_options(note_model *m, const note_case *c)
{
    char text[2048];
    snprintf(text, sizeof text, "{\"model\": {%s}, \"parallel\": {%s%s}}", c->model,
             c->parallel ? c->parallel : "", "");
    weft_option_section sections[] = {
        {"model", weft_model_rows, weft_num_model_rows, &m->options, ""},
        {"parallel", weft_parallel_rows, weft_num_parallel_rows, &m->parallel, ""}};
    WEFT_TRY(weft_options_parse(sections, 2, c->name, text, NULL, 0, &m->arena));
    WEFT_TRY(weft_mesh_apply_alias(c->mesh, &m->arena, &m->parallel, NULL));
    return weft_model_options_resolve(&m->options);
}

static weft_status create_groups(note_model *m, const note_case *c)
{
    weft_mesh mesh;
    WEFT_TRY(weft_mesh_build(&m->parallel, c->world, m->options.num_experts, &mesh));
    const weft_coords coords = weft_mesh_coords(&mesh, c->rank);
    WEFT_TRY(weft_comm_create_note("world", WEFT_AXIS_NONE, c->rank, c->world, &m->world));
    return weft_groups_create_note(m->world, &mesh, &coords, &m->groups);
}

static weft_status create_device(note_model *m)
{
    WEFT_TRY(weft_device_create_note(&m->device));
    weft_notes_keep_ranges(m->device);
    WEFT_TRY(weft_lane_create(m->device, 0, "compute", &m->compute));
    WEFT_TRY(weft_lane_create(m->device, 1, "reduce", &m->reduce));
    for (int i = 0; i < 2 * NOTE_PASSES; i++)
        WEFT_TRY(weft_device_alloc(m->device, WEFT_SPACE_DEVICE, ROW_BYTES, "rows", &m->rows[i]));
    const int cp = m->groups.mesh.cp;
    m->runs = malloc(2 * (size_t)cp * sizeof *m->runs);
    if (!m->runs)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a test");
    m->cut = weft_sequence_head_tail((size_t)m->options.seq_length, cp, m->runs);
    return WEFT_OK;
}

weft_status note_model_create(note_model *m, const note_case *c)
{
    memset(m, 0, sizeof *m);
    WEFT_TRY(read_options(m, c));
    WEFT_TRY(create_groups(m, c));
    WEFT_TRY(create_device(m));
    const char *modules[1] = {c->modules};
    const weft_string_list list = {.values = modules, .count = c->modules != NULL};
    weft_recompute_options recompute = c->recompute;
    const weft_offload_options offload = {.on = c->offloads, .modules = list};
    if (!c->offloads)
        recompute.modules = list;
    weft_model_setup setup = {.options = &m->options,
                              .groups = &m->groups,
                              .device = m->device,
                              .dtype = c->dtype,
                              .micro_batch_size = BATCH,
                              .bucket_elements = 1 << 12,
                              .training = true,
                              .parallel = &m->parallel,
                              .num_passes = NOTE_PASSES,
                              .pairs = c->pairs,
                              .leaves_weights = c->pairs && !c->halves,
                              .num_deferred = c->halves ? NOTE_PASSES : 0,
                              .recompute = &recompute,
                              .offload = c->offloads ? &offload : NULL,
                              .accumulates = true,
                              .moe = c->moe};
    m->halves = c->halves;
    m->pairs = c->pairs;
    WEFT_TRY(weft_model_create(&setup, NULL, &m->model));
    weft_model_use_reduce_lane(m->model, m->reduce);
    weft_notes_clear(m->device);
    return WEFT_OK;
}

void note_model_release(note_model *m)
{
    weft_model_destroy(m->model);
    for (int i = 0; i < 2 * NOTE_PASSES; i++)
        if (m->rows[i])
            weft_device_free(m->device, WEFT_SPACE_DEVICE, m->rows[i], ROW_BYTES);
    weft_lane_destroy(m->compute);
    weft_lane_destroy(m->reduce);
    weft_groups_release(&m->groups);
    weft_comm_destroy(m->world);
    weft_device_destroy(m->device);
    weft_arena_release(&m->arena);
    free(m->runs);
}

static weft_tensor rows(const note_model *m, int which)
{
    const weft_shape *shape = weft_model_get_shape(m->model);
    return weft_tensor_2d(m->rows[which], shape->dtype, weft_shape_boundary_rows(shape),
                          shape->hidden);
}

static weft_micro_batch micro_batch_in(const note_model *m, int slot, bool is_first)
{
    const bool cut = m->cut.cp > 1;
    /* Tokens are on no lane's way: they lie where a stage's rows end. */
    char *tokens = (char *)m->rows[slot] + ROW_BYTES / 2;
    return (weft_micro_batch){.tokens = (int32_t *)(void *)tokens,
                              .labels = (int32_t *)(void *)(tokens + ROW_BYTES / 8),
                              .cut = cut ? &m->cut : NULL,
                              .index = cut ? (int32_t *)(void *)(tokens + ROW_BYTES / 4) : NULL,
                              .step = 1,
                              .overwrite = is_first,
                              .backward_overwrites = is_first,
                              .loss_scale = 1,
                              .training = true};
}

/* What comes from another stage, or goes there; of the whole pipeline's ends nothing. */
static weft_tensor *between(const note_model *m, int which, bool is_last, weft_tensor *out)
{
    const weft_coords *at = &m->groups.coords;
    const int end = is_last ? at->size[WEFT_AXIS_PP] - 1 : 0;
    *out = rows(m, which);
    return at->at[WEFT_AXIS_PP] == end ? NULL : out;
}

static weft_status forward(note_model *m, int slot, bool is_first)
{
    const weft_micro_batch micro_batch = micro_batch_in(m, slot, is_first);
    weft_tensor x, y;
    WEFT_TRY(weft_model_forward(m->model, slot, &micro_batch, m->compute,
                                between(m, slot, false, &x),
                                between(m, NOTE_PASSES + slot, true, &y)));
    return weft_model_enqueue(m->model);
}

static weft_status backward(note_model *m, int slot)
{
    weft_tensor rows_dy, rows_dx;
    const weft_tensor *dy = between(m, NOTE_PASSES + slot, true, &rows_dy);
    weft_tensor *dx = between(m, slot, false, &rows_dx);
    WEFT_TRY(weft_model_recompute(m->model, slot, m->compute));
    WEFT_TRY(weft_model_enqueue(m->model));
    WEFT_TRY(m->halves ? weft_model_backward_input(m->model, slot, slot, m->compute, dy, dx)
                       : weft_model_backward(m->model, slot, m->compute, dy, dx, false));
    return weft_model_enqueue(m->model);
}

static weft_status pair(note_model *m, int slot, int before)
{
    weft_tensor x, y, dy, dx;
    const weft_pair_call call = {.forward_slot = slot,
                                 .backward_slot = before,
                                 .deferred = m->halves ? before : -1,
                                 .micro_batch = micro_batch_in(m, slot, false),
                                 .x = between(m, slot, false, &x),
                                 .y = between(m, NOTE_PASSES + slot, true, &y),
                                 .dy = between(m, NOTE_PASSES + before, true, &dy),
                                 .dx = between(m, before, false, &dx)};
    WEFT_TRY(weft_model_pair(m->model, m->compute, &call));
    return weft_model_enqueue(m->model);
}

/* The second half, right before another micro-batch needs the pass. */
static weft_status finish(note_model *m, int slot)
{
    if (m->halves)
        WEFT_TRY(weft_model_backward_weights(m->model, slot, slot, m->compute, false));
    return weft_model_enqueue(m->model);
}

weft_status note_model_step(note_model *m, int micro_batches)
{
    weft_model_clear_metrics(m->model);
    for (int i = 0; m->pairs && i <= micro_batches + 1; i++) {
        if (i > 1)
            WEFT_TRY(finish(m, i % NOTE_PASSES));
        if (i > micro_batches)
            break;
        WEFT_TRY(i == 0               ? forward(m, 0, true)
                 : i == micro_batches ? backward(m, (i - 1) % NOTE_PASSES)
                                      : pair(m, i % NOTE_PASSES, (i - 1) % NOTE_PASSES));
    }
    for (int i = 0; !m->pairs && i < micro_batches + NOTE_PASSES; i++) {
        if (i >= NOTE_PASSES)
            WEFT_TRY(finish(m, i % NOTE_PASSES));
        if (i < micro_batches)
            WEFT_TRY(forward(m, i % NOTE_PASSES, i == 0));
        if (i >= NOTE_PASSES - 1 && i < micro_batches + NOTE_PASSES - 1)
            WEFT_TRY(backward(m, (i + 1 - NOTE_PASSES) % NOTE_PASSES));
    }
    return WEFT_OK;
}
