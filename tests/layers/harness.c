#include "tests/layers/harness.h"

#include "parallel/parameters/internal.h"

#include <stdlib.h>
#include <string.h>

weft_moe_options harness_moe;
const char *harness_parallel;
const weft_recompute_options *harness_recompute;
bool harness_generates, harness_shards;
size_t harness_cached;
int harness_passes, harness_deferred;

weft_status harness_options(const char *json, weft_arena *arena, weft_model_options *out)
{
    weft_option_section section = {"model", weft_model_rows, weft_num_model_rows, out, ""};
    WEFT_TRY(weft_options_parse(&section, 1, "test", json, NULL, 0, arena));
    return weft_model_options_resolve(out);
}

/* Head and tail. */
static weft_status cut_sequence(harness *h, int cp)
{
    const size_t seq = (size_t)h->options.seq_length;
    h->rows = seq / (size_t)cp;
    h->runs = malloc(2 * (size_t)cp * sizeof *h->runs);
    h->index = malloc(h->rows * sizeof *h->index);
    if (!h->runs || !h->index)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the cut of %zu tokens", seq);
    h->cut = weft_sequence_head_tail(seq, cp, h->runs);
    return WEFT_OK;
}

/* Some values, since those of shares would come from an optimizer's masters. */
static weft_status fill_shares(const harness *h)
{
    const weft_parameters *p = weft_model_parameters(h->model);
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        if (p->held.weights[kind] > 0)
            WEFT_TRY(weft_random_normal(h->lane, &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                                            .global_dims = {p->held.weights[kind]},
                                                            .local_dims = {p->held.weights[kind]},
                                                            .seed = 7, .stream = (uint64_t)kind,
                                                            .std = 0.2f, .dtype = p->dtype,
                                                            .x = p->sections[kind].weights)));
    return weft_lane_sync(h->lane);
}

weft_status harness_create(harness *h, weft_comm *world, const weft_model_options *options,
                           const char *mesh_text, size_t batch, weft_dtype dtype,
                           weft_model_function build)
{
    memset(h, 0, sizeof *h);
    weft_parallel_options parallel = {0};
    weft_option_section section = {"parallel", weft_parallel_rows, weft_num_parallel_rows,
                                   &parallel, ""};
    weft_mesh mesh;
    h->world = world;
    h->options = *options;
    h->batch = batch;
    h->tokens = batch * (size_t)options->seq_length;
    WEFT_TRY(weft_options_parse(&section, 1, "test", harness_parallel, NULL, 0, &h->arena));
    if (mesh_text)
        WEFT_TRY(weft_mesh_apply_alias(mesh_text, &h->arena, &parallel, NULL));
    WEFT_TRY(weft_mesh_build(&parallel, weft_comm_size(world), options->num_experts, &mesh));
    h->parallel = parallel;
    WEFT_TRY(cut_sequence(h, mesh.cp));
    WEFT_TRY(weft_groups_create(world, &mesh, NULL, &h->groups));
    weft_sequence_index(&h->cut, h->groups.coords.at[WEFT_AXIS_CP], h->index);
    WEFT_TRY(weft_device_create_cpu(1, 0, &h->device));
    WEFT_TRY(weft_lane_create(h->device, 0, "compute", &h->lane));
    WEFT_TRY(
        weft_model_create(&(weft_model_setup){.options = &h->options,
                                              .groups = &h->groups,
                                              .device = h->device,
                                              .dtype = dtype,
                                              .micro_batch_size = (int64_t)batch,
                                              .bucket_elements = 1 << 20,
                                              .training = !harness_generates,
                                              .num_passes = harness_passes ? harness_passes : 1,
                                              .num_deferred = harness_deferred,
                                              .parallel = harness_shards ? &h->parallel : NULL,
                                              .recompute = harness_recompute,
                                              .cached_tokens = harness_cached,
                                              .seed = 7,
                                              .moe = harness_moe},
                          build, &h->model));
    if (harness_shards) {
        WEFT_TRY(weft_lane_create(h->device, 0, "reduce", &h->reduce));
        weft_model_use_reduce_lane(h->model, h->reduce);
        return fill_shares(h);
    }
    WEFT_TRY(weft_parameters_initialize(weft_model_parameters(h->model), h->lane, 7));
    return weft_lane_sync(h->lane);
}

void harness_release(harness *h)
{
    weft_model_destroy(h->model);
    weft_lane_destroy(h->lane);
    weft_lane_destroy(h->reduce);
    weft_groups_release(&h->groups);
    weft_device_destroy(h->device);
    weft_arena_release(&h->arena);
    free(h->runs);
    free(h->index);
}

weft_status harness_pass(harness *h, const int32_t *tokens, const int32_t *labels, bool training,
                         bool overwrite)
{
    memset(weft_model_metrics(h->model), 0, sizeof(weft_metrics));
    weft_micro_batch micro_batch = {.tokens = tokens,
                                    .labels = labels,
                                    .positions = h->positions,
                                    .first_seen = h->first_seen,
                                    .label_weights = h->label_weights,
                                    .step = 1,
                                    .overwrite = overwrite,
                                    .backward_overwrites = overwrite,
                                    .loss_scale = 1.0f,
                                    .training = training,
                                    .cut = h->cut.cp > 1 ? &h->cut : NULL,
                                    .index = h->cut.cp > 1 ? h->index : NULL};
    WEFT_TRY(weft_model_forward(h->model, 0, &micro_batch, h->lane, NULL, NULL));
    WEFT_TRY(weft_model_enqueue(h->model));
    if (training)
        WEFT_TRY(weft_model_backward(h->model, 0, h->lane, NULL, NULL, false));
    WEFT_TRY(weft_model_enqueue(h->model));
    return weft_lane_sync(h->lane);
}
