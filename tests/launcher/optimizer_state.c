/* The optimizer's state in host memory trains with the numbers of the state on the device: losses,
 * gradient norms and all that checkpoints hold, to the bit, over every kind of parallelism and
 * sharding, in every precision of the CPU, with and without clipping, beside experts wherever these
 * are. Each goes on from the other's checkpoint, and what goes on has the bits of what never
 * stopped.
 *
 * Runs under mpirun with 4 ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"

enum { NUM_STEPS = 4, MAX_SET = 4, NUM_RUNS = 5 };

#define SIZES(layers)                                                                              \
    "{\"num_layers\": " #layers ", \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": 0.1"
#define GPT2(layers) SIZES(layers) ", \"hidden_dropout\": 0.1}"
#define UNTIED(layers)                                                                             \
    SIZES(layers) ", \"untie_embeddings_and_output_weights\": true, \"swiglu\": true}"
#define MOE(layers)                                                                                \
    SIZES(layers) ", \"num_experts\": 8, \"moe_router_topk\": 2, \"moe_aux_loss_coeff\": 0.02}"
#define BF16 ", \"precision\": \"bf16\""
#define WHOLE ", \"split_master\": false"
#define UNCLIPPED ", \"clip_grad\": 0"
#define FROZEN ", \"parameter_rules\": [\"embedding.* frozen\", \"*layernorm* frozen\"]"

typedef struct state_case {
    int world, batch; /* ranks; sequences a step, of which a rank takes one at a time */
    const char *model, *mesh, *train, *set[MAX_SET];
} state_case;

static const state_case cases[] = {
    {1, 1, GPT2(3), "tp=1", "", {NULL}},
    {1, 4, UNTIED(3), "tp=1", BF16, {NULL}},
    {1, 4, GPT2(3), "tp=1", BF16 WHOLE UNCLIPPED, {"parallel.ddp_bucket_size=1000000000"}},
    {1, 2, GPT2(3), "tp=1", BF16 FROZEN, {"offload.num_threads=2"}},
    {2, 4, GPT2(3), "tp=2", "", {NULL}},
    {2, 4, UNTIED(3), "tp=2,sp=1", BF16, {NULL}},
    {2, 4, GPT2(4), "pp=2", BF16, {NULL}},
    {2, 8, UNTIED(4), "pp=2,vp=2", UNCLIPPED, {NULL}},
    {2, 4, GPT2(3), "dp=2,zero=0", BF16, {NULL}},
    {2, 4, GPT2(3), "dp=2,zero=1", "", {NULL}},
    {2, 8, UNTIED(3), "dp=2,zero=2", BF16, {NULL}},
    {2, 8, GPT2(3), "dp=2,zero=3", BF16 WHOLE, {NULL}},
    {2, 4, GPT2(3), "dp=2,zero=1", BF16, {"parallel.overlap_grad_reduce=false"}},
    {2, 2, GPT2(3), "cp=2,zero=1", UNCLIPPED, {NULL}},
    {4, 8, UNTIED(4), "pp=2,dp=2,zero=3", UNCLIPPED BF16, {NULL}},
    {4, 4, GPT2(4), "tp=2,pp=2", BF16, {"train.recompute_granularity=full"}},
    {1, 1, MOE(3), "tp=1", BF16, {NULL}},
    {1, 1, MOE(3), "tp=1", "", {"offload.experts=host"}},
    {1, 1, MOE(3), "tp=1", BF16 UNCLIPPED, {"offload.experts=host", "offload.kept=0.25"}},
    {1, 1, MOE(3), "tp=1", BF16, {"offload.experts=file", "offload.kept=0.5"}},
    {1, 1, MOE(3), "tp=1", UNCLIPPED, {"offload.experts=file"}},
    {2, 4, MOE(3), "dp=2,ep=1,binding=dp,zero=1", BF16, {NULL}},
    {2, 4, MOE(3), "dp=2,ep=1,binding=dp,zero=3", "", {NULL}},
    {2, 2, MOE(3), "dp=2,ep=1,binding=dp,zero=1", BF16, {"offload.experts=host"}},
    {2, 2, MOE(3), "tp=2,binding=tp", "", {"offload.experts=host", "offload.optimizer=after"}},
    {4, 4, MOE(4), "pp=2,dp=2,ep=2,binding=dp,zero=2", BF16, {"offload.experts=file"}},
    {4, 4, MOE(3), "tp=2,dp=2,ep=2,etp=2,binding=dp", "", {NULL}},
};

static char folder[64];

/* One of a case's runs: where the state is, from which other's checkpoint, if any, and how long. */
typedef struct run {
    const char *what;
    bool on_host;
    int from, steps;
} run;

static const run runs[NUM_RUNS] = {
    {"on the device", false, -1, NUM_STEPS},
    {"on the host", true, -1, NUM_STEPS},
    {"on the host, from the device's", true, 0, NUM_STEPS},
    {"on the device, from the host's", false, 1, NUM_STEPS},
    {"on the host, without a stop", true, -1, 2 * NUM_STEPS},
};

static void train(weft_comm *part, const state_case *c, int i, int r, weft_step_result *results)
{
    char name[32], saved[128], from[160];
    int count = 0;
    snprintf(name, sizeof name, "case %d", i);
    snprintf(saved, sizeof saved, "%s/%d-%d", folder, i, r);
    snprintf(from, sizeof from, "%s/%d-%d/step-%d", folder, i, runs[r].from, NUM_STEPS);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = runs[r].steps,
                          .from = runs[r].from < 0 ? NULL : from,
                          .checkpoint = saved};
    what.set[count++] = "train.lr_decay_style=constant";
    if (runs[r].on_host)
        what.set[count++] = "offload.optimizer_state=host";
    for (int k = 0; k < MAX_SET && c->set[k]; k++)
        what.set[count++] = c->set[k];
    mesh_run(part, &what, results);
}

static void compare(const state_case *c, int i, int r, const weft_step_result *got,
                    const weft_step_result *wanted)
{
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(got[s].loss == wanted[s].loss && got[s].grad_norm == wanted[s].grad_norm,
               "case %d, %s%s, %s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               i, c->mesh, c->train, runs[r].what, s + 1, got[s].loss, wanted[s].loss,
               got[s].grad_norm, wanted[s].grad_norm);
}

static void compare_saved(weft_comm *part, int i, int a, int step_a, int b, int step_b)
{
    char paths[2][160];
    if (weft_comm_rank(part) > 0)
        return;
    snprintf(paths[0], sizeof paths[0], "%s/%d-%d/step-%d", folder, i, a, step_a);
    snprintf(paths[1], sizeof paths[1], "%s/%d-%d/step-%d", folder, i, b, step_b);
    const weights_difference d = weights_compare(paths[0], paths[1], "");
    EXPECT(d.count > 0 && d.num_unequal == 0,
           "case %d: %d of %d datasets differ %s from %s, %s most (%g)", i, d.num_unequal, d.count,
           runs[a].what, runs[b].what, d.where, d.worst);
}

static void check(weft_comm *part, const state_case *c, int i)
{
    weft_step_result results[NUM_RUNS][2 * NUM_STEPS];
    for (int r = 0; r < NUM_RUNS; r++)
        train(part, c, i, r, results[r]);
    compare(c, i, 1, results[1], results[0]);
    compare_saved(part, i, 1, NUM_STEPS, 0, NUM_STEPS);
    compare(c, i, 2, results[2], results[3]);
    compare_saved(part, i, 2, 2 * NUM_STEPS, 3, 2 * NUM_STEPS);
    compare(c, i, 4, results[4], results[1]);
    compare(c, i, 4, results[4] + NUM_STEPS, results[2]);
    compare_saved(part, i, 4, 2 * NUM_STEPS, 2, 2 * NUM_STEPS);
}

int main(void)
{
    weft_comm *world, *part;
    EXPECT_OK(weft_comm_create_world(&world));
    const int rank = weft_comm_rank(world);
    EXPECT(weft_comm_size(world) == 4, "run with 4 ranks");
    snprintf(folder, sizeof folder, "/tmp/weft-state-%d", (int)getppid());
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        EXPECT_OK(weft_comm_split(world, rank < cases[i].world ? 0 : -1, rank, "part",
                                  WEFT_PURPOSE_CONTROL, &part));
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    EXPECT_OK(weft_comm_barrier(world));
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(rank > 0 || system(command) == 0, "%s", command);
    weft_comm_destroy(world);
    return expect_finish();
}
