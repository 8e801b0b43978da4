/* Linked from the pure set alone: core, schedule, the mesh and shards, the layers without a
 * backend, and what planning reads. That it links without MPI, HDF5, oneDNN and CUDA is the test;
 * that it plans a step is the proof that the set suffices. */
#include <stdio.h>

#include "core/trace.h"
#include "launcher/planning/config.h"
#include "layers/outline.h"
#include "parallel/shard.h"
#include "schedule/pipeline.h"
#include "schedule/price.h"

enum { TP = 2, STAGES = 4, RANKS = 8, MICRO_BATCHES = 6 };

static weft_status plan_mesh(void)
{
    weft_parallel_options options = {.tensor_model_parallel_size = TP,
                                     .pipeline_model_parallel_size = STAGES,
                                     .context_parallel_size = 1,
                                     .order = "tp-cp-ep-dp-pp"};
    weft_mesh mesh;
    WEFT_TRY(weft_mesh_build(&options, RANKS, 4, &mesh));
    weft_coords coords = weft_mesh_coords(&mesh, RANKS - 1);
    weft_shard shard = {.num_dims = 2, .global_dims = {65, 64}, .axis = {WEFT_AXIS_TP}};
    weft_box box = weft_shard_box(&shard, &coords);
    if (coords.at[WEFT_AXIS_PP] != STAGES - 1 || box.start[0] != 33 || box.valid[0] != 32)
        return WEFT_ERROR(WEFT_INTERNAL, "the last rank is misplaced");
    return WEFT_OK;
}

/* The config's model as every rank would have it, without ranks: forward FLOPs of a layer. */
static weft_status outline_model(weft_arena *arena, double *out_flops)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 6, \"hidden_size\": 64, \"num_attention_heads\": 4, "
        "\"seq_length\": 32, \"vocab_size\": 65, \"num_experts\": 4, \"moe_router_topk\": 2}, "
        "\"parallel\": {\"tensor_model_parallel_size\": 2, \"pipeline_model_parallel_size\": 4, "
        "\"pipeline_model_parallel_layout\": \"auto\"}, "
        "\"train\": {\"train_iters\": 1}, \"data\": {\"mock_data\": true}}";
    const weft_config_source source = {.file = "pure.json", .text = text};
    weft_config config;
    weft_mesh mesh;
    weft_outline outline;
    char layout[64];
    WEFT_TRY(weft_config_load(&source, arena, &config));
    WEFT_TRY(weft_config_mesh(&config, &source, 0, &mesh));
    WEFT_TRY(weft_model_outline(&(weft_model_setup){.options = &config.model,
                                                    .parallel = &config.parallel,
                                                    .micro_batch_size = 1,
                                                    .training = true},
                                &mesh, NULL, &outline));
    printf("%s\n", weft_layout_text(&outline.layout, layout, sizeof layout));
    if (outline.num_layers != 8 || weft_layout_num_stages(&outline.layout) != STAGES)
        return WEFT_ERROR(WEFT_INTERNAL, "an outline of %d layers", outline.num_layers);
    const weft_outline_layer *layer = &outline.layers[1];
    printf("%s (%s): %d operations, %d parameters\n", layer->name, layer->kind,
           layer->description.num_operations, layer->num_parameters);
    *out_flops = (double)layer->description.cost.forward_flops;
    weft_outline_release(&outline);
    return WEFT_OK;
}

static double cost_of(const void *context, int stage, const weft_task *task)
{
    (void)stage;
    const double *flops = context;
    return task->kind == WEFT_TASK_BACKWARD ? 2 * *flops / 1e3 : *flops / 1e3;
}

static weft_status plan_step(weft_arena *arena)
{
    double flops;
    WEFT_TRY(outline_model(arena, &flops));
    weft_pipeline_shape shape = {.num_stages = STAGES, .num_micro_batches = MICRO_BATCHES};
    weft_program programs[STAGES];
    for (int stage = 0; stage < STAGES; stage++)
        WEFT_TRY(weft_program_pipeline(&shape, stage, arena, &programs[stage]));
    WEFT_TRY(weft_program_pipeline_check(programs, &shape));
    weft_price price;
    WEFT_TRY(weft_program_price(
        programs, STAGES, &(weft_pricing){.cost = cost_of, .context = &flops}, arena, &price));
    printf("a step of %.0f us, %.0f %% of it bubble\n", price.makespan_us,
           100 * price.bubble_share);
    if (price.bubble_share <= 0 || price.bubble_share >= 1)
        return WEFT_ERROR(WEFT_INTERNAL, "an impossible bubble");
    return WEFT_OK;
}

static weft_status plan(void)
{
    weft_arena arena = {0};
    weft_status status = plan_mesh();
    if (status == WEFT_OK)
        status = plan_step(&arena);
    weft_arena_release(&arena);
    return status;
}

int main(void)
{
    if (plan() == WEFT_OK)
        return 0;
    fprintf(stderr, "%s\n", weft_error_get()->text);
    return 1;
}
