/* The optimizer's state in host memory trains with the numbers of the state on the device: losses,
 * gradient norms and all that checkpoints hold, to the bit, over every kind of parallelism and
 * sharding, in every precision of the CPU, with and without clipping, beside experts wherever these
 * are. Each goes on from the other's checkpoint, and what goes on has the bits of what never
 * stopped.
 *
 * Runs under mpirun with 4 ranks. */
#include <stdio.h>

#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { NUM_STEPS = 4, MAX_SET = 4, NUM_RUNS = 5 };

#define GPT2(layers) MESH_SIZES(layers) ", \"hidden_dropout\": 0.1}"
#define UNTIED(layers)                                                                             \
    MESH_SIZES(layers) ", \"untie_embeddings_and_output_weights\": true, \"swiglu\": true}"
#define MOE(layers)                                                                                \
    MESH_SIZES(layers)                                                                             \
    ", \"num_experts\": 8, \"moe_router_topk\": 2, \"moe_aux_loss_coeff\": "                       \
    "0.02}"
#define WHOLE ", \"split_master\": false"
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
    const char *const state[] = {"train.lr_decay_style=constant",
                                 runs[r].on_host ? "offload.optimizer_state=host" : NULL};
    char name[32], from[32];
    snprintf(name, sizeof name, "%d-%d", i, r);
    snprintf(from, sizeof from, "%d-%d", i, runs[r].from);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = runs[r].steps,
                          .from = runs[r].from < 0 ? NULL : from,
                          .from_step = NUM_STEPS,
                          .saves = true};
    mesh_set(&what, state, 2);
    mesh_set(&what, c->set, MAX_SET);
    mesh_run(part, &what, results);
}

static void compare_saved(weft_comm *part, int i, int a, int b, int step)
{
    char names[2][32];
    snprintf(names[0], sizeof names[0], "%d-%d", i, a);
    snprintf(names[1], sizeof names[1], "%d-%d", i, b);
    if (weft_comm_rank(part) == 0)
        weights_expect(names[0], names[1], step, "", 0);
}

static void check(weft_comm *part, const state_case *c, int i)
{
    static const char what[] = "case %d, %s%s, %s";
    weft_step_result results[NUM_RUNS][2 * NUM_STEPS];
    for (int r = 0; r < NUM_RUNS; r++)
        train(part, c, i, r, results[r]);
    mesh_compare(results[1], results[0], NUM_STEPS, 0, what, i, c->mesh, c->train, runs[1].what);
    compare_saved(part, i, 1, 0, NUM_STEPS);
    mesh_compare(results[2], results[3], NUM_STEPS, 0, what, i, c->mesh, c->train, runs[2].what);
    compare_saved(part, i, 2, 3, 2 * NUM_STEPS);
    mesh_compare(results[4], results[1], NUM_STEPS, 0, what, i, c->mesh, c->train, runs[4].what);
    mesh_compare(results[4] + NUM_STEPS, results[2], NUM_STEPS, 0, what, i, c->mesh, c->train,
                 runs[4].what);
    compare_saved(part, i, 4, 2, 2 * NUM_STEPS);
}

int main(void)
{
    weft_comm *world = world_begin(4);
    world_make_folder(world);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
