/* Linked from the pure set alone: core, schedule, the mesh and shards, and what the layers cost.
 * That it links without MPI, HDF5, oneDNN and CUDA is the test; that it plans a step is the proof
 * that the set suffices. */
#include <inttypes.h>
#include <stdio.h>

#include "core/trace.h"
#include "layers/describe.h"
#include "parallel/shard.h"
#include "schedule/check.h"
#include "schedule/pipeline.h"
#include "schedule/price.h"

enum { TP = 2, STAGES = 4, RANKS = 8, MICRO_BATCHES = 6 };

static const weft_model_options model = {
    .num_layers = 2,
    .hidden_size = 64,
    .num_attention_heads = 4,
    .seq_length = 32,
    .num_experts = 4,
    .moe_router_topk = 2,
    .untie_embeddings_and_output_weights = true,
};

static weft_status plan_mesh(void)
{
    weft_parallel_options options = {.tensor_model_parallel_size = TP,
                                     .pipeline_model_parallel_size = STAGES,
                                     .context_parallel_size = 1,
                                     .order = "tp-cp-ep-dp-pp"};
    weft_mesh mesh;
    WEFT_TRY(weft_mesh_build(&options, RANKS, model.num_experts, &mesh));
    weft_coords coords = weft_mesh_coords(&mesh, RANKS - 1);
    weft_shard shard = {.num_dims = 2, .global_dims = {65, 64}, .axis = {WEFT_AXIS_TP}};
    weft_box box = weft_shard_box(&shard, &coords);
    if (coords.at[WEFT_AXIS_PP] != STAGES - 1 || box.start[0] != 33 || box.valid[0] != 32)
        return WEFT_ERROR(WEFT_INTERNAL, "the last rank is misplaced");
    return WEFT_OK;
}

/* Forward FLOPs of one layer of each kind, on one TP rank. */
static weft_status add_costs(double *out_flops)
{
    weft_shape shape = {.seq = 32,
                        .batch = 1,
                        .hidden = 64,
                        .vocab = 65,
                        .tp = TP,
                        .cp = 1,
                        .ep = TP,
                        .etp = 1,
                        .dtype = WEFT_F32,
                        .training = true};
    weft_layer_cost costs[6], sum = {0};
    weft_describe_embedding(&model, &shape, &costs[0]);
    weft_describe_attention(&model, &shape, &costs[1]);
    weft_describe_mlp(&model, &shape, 256, &costs[2]);
    weft_describe_moe(&model, &shape, &costs[3]);
    weft_describe_block(&model, &shape, &costs[4]);
    weft_describe_head(&model, &shape, &costs[5]);
    for (size_t i = 0; i < 6; i++) {
        if (costs[i].num_params == 0)
            return WEFT_ERROR(WEFT_INTERNAL, "layer kind %zu has no parameters", i);
        weft_cost_add(&sum, &costs[i]);
    }
    printf("%" PRIu64 " parameters, %" PRIu64 " FLOPs\n", sum.num_params, sum.forward_flops);
    *out_flops = (double)sum.forward_flops;
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
    WEFT_TRY(add_costs(&flops));
    weft_pipeline_shape shape = {.num_stages = STAGES, .num_micro_batches = MICRO_BATCHES};
    weft_program programs[STAGES];
    for (int stage = 0; stage < STAGES; stage++)
        WEFT_TRY(weft_program_pipeline(&shape, stage, arena, &programs[stage]));
    WEFT_TRY(weft_program_check(programs, STAGES, MICRO_BATCHES, false));
    weft_price price;
    WEFT_TRY(weft_program_price(programs, STAGES, cost_of, &flops, arena, NULL, &price));
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
