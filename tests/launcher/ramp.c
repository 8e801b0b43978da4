/* A batch that grows: its sizes are Megatron-LM's, every mesh and schedule gives the single-rank
 * losses, gradients and learning rates with the same samples at the same step, and so does a run
 * that goes on elsewhere. Runs under mpirun with 4 ranks. */
#include <math.h>
#include <stdio.h>

#include "launcher/planning/ramp.h"
#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { STEPS = 9, BEFORE = 3, BATCH = 16 };

static const char model[] =
    "{\"num_layers\": 4, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 4, "
    "\"moe_aux_loss_coeff\": 0.02, \"num_attention_heads\": 4, \"seq_length\": 16, "
    "\"vocab_size\": 61, \"init_method_std\": 0.1}";
#define RAMP ", \"rampup_batch_size\": [4, 4, 40], \"eval_iters\": 0"
static const int sizes[STEPS] = {4, 4, 4, 4, 8, 8, 12, 16, 16};

static const struct {
    const char *mesh;
    int world;
    bool goes_on; /* from the checkpoint of another mesh */
} meshes[] = {{"dp=4,zero=2", 4, false},
              {"pp=2", 2, false},
              {"pp=4", 4, true},
              {"pp=2,dp=2,vp=2,zero=1", 4, true},
              {"pp=2,schedule=zb_h1", 2, false},
              {"pp=2,dp=2,schedule=zbv", 4, false},
              {"pp=4,schedule=gpipe", 4, false},
              {"cp=2,dp=2,binding=dp,ep=2", 4, true}};

/* Megatron-LM's own words (num_microbatches_calculator.py), sample by sample. */
static void check_sizes(const int64_t ramp[3], int64_t batch)
{
    const weft_train_options t = {.global_batch_size = batch,
                                  .micro_batch_size = 1,
                                  .rampup_batch_size = {.values = ramp, .count = 3}};
    const int64_t num_increments = (batch - ramp[0]) / ramp[1];
    const double each = (double)ramp[2] / (double)num_increments;
    int64_t consumed = 0;
    for (int step = 0; step < 300; step++) {
        EXPECT(weft_ramp_samples(&t, step) == consumed, "%d steps: %lld samples, not %lld", step,
               (long long)weft_ramp_samples(&t, step), (long long)consumed);
        const int64_t size = consumed > ramp[2]
                                 ? batch
                                 : ramp[0] + (int64_t)((double)consumed / each + 1e-9) * ramp[1];
        EXPECT(weft_ramp_batch(&t, consumed) == size, "%lld samples: %lld, not %lld",
               (long long)consumed, (long long)weft_ramp_batch(&t, consumed), (long long)size);
        consumed += size;
    }
}

static void check_refusal(const char *mesh, const char *ramp, const char *wanted)
{
    static const char text[] = "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, "
                               "\"num_attention_heads\": 4, \"seq_length\": 12, "
                               "\"vocab_size\": 53}, \"train\": {\"global_batch_size\": 8}, "
                               "\"data\": {\"mock_data\": true}}";
    const char *const set[] = {ramp};
    const weft_config_source source = {
        .file = "ramp", .text = text, .mesh = mesh, .set = set, .num_set = 1};
    weft_arena arena = {0};
    weft_config config;
    weft_mesh placed;
    weft_status status = weft_config_load(&source, &arena, &config);
    if (status == WEFT_OK)
        status = weft_config_mesh(&config, &source, 4, &placed);
    EXPECT_ERROR(status, WEFT_CONFIG, wanted);
    weft_arena_release(&arena);
}

static void check_refusals(void)
{
    check_refusal("dp=4", "rampup_batch_size=[4,4]", "2 numbers; a ramp has three");
    check_refusal("dp=4", "rampup_batch_size=[8,4,100]",
                  "begins with 8 samples, not below global_batch_size 8");
    check_refusal("dp=4", "rampup_batch_size=[3,4,100]",
                  "from 3 samples, 4 more at a time, misses global_batch_size 8");
    check_refusal("dp=4", "rampup_batch_size=[2,2,100]",
                  "2 samples a step do not divide by micro_batch_size 1 x dp 4");
    check_refusal("dp=4", "rampup_batch_size=[4,2,100]",
                  "6 samples a step do not divide by micro_batch_size 1 x dp 4");
}

static void check_mesh(weft_comm *world, int which, const weft_step_result *alone)
{
    weft_step_result results[STEPS];
    const int first = meshes[which].goes_on ? BEFORE : 0;
    weft_comm *part = world_part(world, meshes[which].world);
    if (!part)
        return;
    const mesh_training what = {.name = "ramp",
                                .model = model,
                                .mesh = meshes[which].mesh,
                                .train = RAMP,
                                .batch = BATCH,
                                .steps = STEPS - first,
                                .from = meshes[which].goes_on ? "alone" : NULL,
                                .from_step = BEFORE,
                                .set = {"train.lr_decay_iters=6"}};
    mesh_run(part, &what, results + first);
    for (int i = first; i < STEPS; i++) {
        const weft_step_result *is = &results[i], *was = &alone[i];
        EXPECT(fabs(is->loss / was->loss - 1) <= 1e-5 &&
                   fabs(is->aux_loss / was->aux_loss - 1) <= 1e-5 &&
                   fabs(is->grad_norm / was->grad_norm - 1) <= 1e-4,
               "%s, step %d: loss %.9g, norm %.9g against %.9g, %.9g", what.mesh, i + 1, is->loss,
               is->grad_norm, was->loss, was->grad_norm);
        EXPECT(is->lr == was->lr && is->tokens == was->tokens &&
                   is->consumed_tokens == was->consumed_tokens,
               "%s, step %d: lr %g, %g tokens", what.mesh, i + 1, is->lr, is->tokens);
    }
    weft_comm_destroy(part);
}

int main(void)
{
    static const int64_t ramps[][4] = {
        {2, 2, 24, 8}, {4, 4, 40, 16}, {1, 3, 100, 10}, {8, 8, 7, 64}, {5, 5, 1000, 30}};
    weft_step_result alone[STEPS] = {{0}};
    weft_comm *world = world_begin(0), *self;
    const int rank = weft_comm_rank(world);
    for (size_t i = 0; i < sizeof ramps / sizeof *ramps; i++)
        check_sizes(ramps[i], ramps[i][3]);
    check_refusals();
    world_make_folder(world);
    EXPECT_OK(weft_comm_split(world, rank, rank, "self", WEFT_PURPOSE_CONTROL, &self));
    mesh_training what = {.name = "alone",
                          .model = model,
                          .mesh = "dp=1",
                          .train = RAMP,
                          .batch = BATCH,
                          .steps = STEPS,
                          .set = {"train.lr_decay_iters=6"}};
    mesh_run(self, &what, alone);
    for (int i = 0; i < STEPS; i++)
        EXPECT(alone[i].tokens == 16. * sizes[i], "step %d: %g tokens", i + 1, alone[i].tokens);
    if (rank == 0) {
        weft_step_result some[BEFORE];
        what.steps = BEFORE;
        what.saves = true;
        mesh_run(self, &what, some);
    }
    EXPECT_OK(weft_comm_barrier(world));
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        check_mesh(world, (int)i, alone);
    weft_comm_destroy(self);
    return world_finish(world);
}
