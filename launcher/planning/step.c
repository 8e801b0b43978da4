#include "launcher/planning/step.h"

#include <string.h>

weft_model_setup weft_step_setup(const weft_config *config, const weft_moe_options *moe)
{
    return (weft_model_setup){.options = &config->model,
                              .own_options = config->own,
                              .frozen = config->train.frozen_parameters,
                              .parallel = &config->parallel,
                              .dtype = weft_config_dtype(config),
                              .micro_batch_size = config->train.micro_batch_size,
                              .training = true,
                              .moe = *moe,
                              .logit_rows =
                                  weft_logit_rows(config->device.kind == WEFT_DEVICE_KIND_CUDA)};
}

weft_pipeline_shape weft_step_shape(const weft_config *config, const weft_mesh *mesh,
                                    uint64_t boundary_bytes)
{
    const weft_train_options *train = &config->train;
    return (weft_pipeline_shape){
        .kind = (weft_pipeline_kind)config->schedule.pipeline_schedule,
        .num_stages = mesh->pp,
        .num_micro_batches = (int)(train->global_batch_size / train->micro_batch_size / mesh->dp),
        .boundary_bytes = boundary_bytes};
}

weft_status weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                               weft_program **out)
{
    void *memory;
    WEFT_TRY(
        weft_arena_alloc_array(arena, (size_t)shape->num_stages, sizeof(weft_program), &memory));
    *out = memory;
    WEFT_TRY(weft_program_pipeline(shape, arena, *out));
    return weft_program_pipeline_check(*out, shape);
}

static weft_status make_programs(const weft_config *config, const weft_mesh *mesh,
                                 weft_arena *arena, weft_step *step)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)mesh->pp, sizeof(weft_buckets), &memory));
    weft_buckets *buckets = memory;
    for (int rank = 0; rank < mesh->pp; rank++)
        WEFT_TRY(weft_outline_buckets(&step->outline, mesh, &config->parallel, rank, arena,
                                      &buckets[rank]));
    step->shape = weft_step_shape(config, mesh, weft_shape_boundary_bytes(&step->outline.shape));
    step->shape.buckets = buckets;
    return weft_step_programs(&step->shape, arena, &step->programs);
}

weft_status weft_step_make(const weft_config *config, const weft_mesh *mesh,
                           const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    const weft_model_setup setup = weft_step_setup(config, moe);
    memset(out, 0, sizeof *out);
    WEFT_TRY(weft_model_outline(&setup, mesh, weft_config_build(config), &out->outline));
    weft_status status = out->outline.layout.num_chunks == 1
                             ? make_programs(config, mesh, arena, out)
                             : WEFT_KEY_ERROR("parallel.num_virtual_stages_per_pipeline_rank",
                                              "%d virtual stages a rank; 1 in this version",
                                              out->outline.layout.num_chunks);
    if (status != WEFT_OK)
        weft_step_release(out);
    return status;
}

void weft_step_release(weft_step *step)
{
    weft_outline_release(&step->outline);
    memset(step, 0, sizeof *step);
}

void weft_step_footprint(const weft_config *config, const weft_mesh *mesh, const weft_step *step,
                         int rank, weft_footprint *out)
{
    weft_footprint_of(
        &step->outline, mesh,
        &(weft_footprint_shape){.rank = rank,
                                .program = &step->programs[rank],
                                .num_micro_batches = step->shape.num_micro_batches,
                                .bucket_elements = (size_t)config->parallel.ddp_bucket_size,
                                .distributed = config->parallel.use_distributed_optimizer},
        out);
}
