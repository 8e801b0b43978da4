/* Experts beyond device memory train with the numbers of experts on the device: with one
 * micro-batch a rank losses and gradient norms are the same to the bit, in every order, with slots
 * for few or more than all, experts kept, with and without clipping, in every precision, binding
 * and sharding; with several they differ by the order of their sums.
 *
 * With "file" all of them train from a file, with places for a quarter of the experts, which leave
 * them by program or, in every second case, as least used.
 *
 * Runs under mpirun with 4 ranks: [file]. */
#include <stdio.h>
#include <string.h>

#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { NUM_STEPS = 4, MAX_SET = 6 };

/* More experts than tokens choose, so that some have no rows; tokens that are dropped. */
#define MOE(layers, experts)                                                                       \
    MESH_SIZES(layers)                                                                             \
    ", \"hidden_dropout\": 0.1, \"num_experts\": " #experts ", \"moe_router_topk\": 2, "           \
    "\"moe_aux_loss_coeff\": 0.02}"
#define FEW(layers)                                                                                \
    MESH_SIZES(layers)                                                                             \
    ", \"num_experts\": 4, \"moe_router_topk\": 1, \"moe_expert_capacity_factor\": 1.0, "          \
    "\"moe_layer_freq\": 2, \"swiglu\": true, \"moe_shared_expert_intermediate_size\": 16}"
typedef struct tier_case {
    int world, batch; /* ranks; sequences a step, of which a rank takes one at a time */
    bool adds;        /* several micro-batches a rank: 1e-5, not bits */
    const char *model, *mesh, *train, *offload[MAX_SET];
} tier_case;

static const tier_case cases[] = {
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.slots=2"}},
    {1, 1, false, MOE(3, 8), "tp=1", BF16, {"offload.slots=3", "offload.order=demand"}},
    {1, 1, false, MOE(3, 8), "tp=1", UNCLIPPED, {"offload.order=layer"}},
    {1, 1, false, MOE(3, 8), "tp=1", BF16 UNCLIPPED, {"offload.kept=0.25"}},
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.kept=0.5", "offload.optimizer=after"}},
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.kept=1"}},
    {1, 1, false, FEW(4), "tp=1", ", \"split_master\": false" BF16, {"offload.slots=16"}},
    {1, 4, true, MOE(3, 8), "tp=1", "", {"offload.slots=2"}},
    {1, 4, true, MOE(3, 8), "tp=1", BF16 UNCLIPPED, {"offload.kept=0.25"}},
    {2, 2, false, MOE(3, 8), "tp=2,binding=tp", "", {"offload.slots=2"}},
    {2, 2, false, MOE(3, 8), "tp=2,binding=tp,sp=1", BF16, {"offload.kept=0.5"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {"offload.slots=2"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=1,binding=dp", "", {"offload.slots=3"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=1,binding=dp,zero=0", UNCLIPPED, {"offload.kept=0.25"}},
    {2, 2, false, MOE(4, 8), "pp=2", BF16, {"offload.slots=2"}},
    {2, 8, true, MOE(4, 8), "pp=2,vp=2", "", {"offload.kept=0.25"}},
    {4, 4, false, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=1", BF16, {"offload.order=demand"}},
    {4, 4, false, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=3", UNCLIPPED, {"offload.slots=2"}},
    {4, 4, false, MOE(3, 8), "tp=2,dp=2,ep=2,etp=2,binding=dp", "", {"offload.kept=0.25"}},
    {4, 2, false, FEW(4), "pp=2,dp=2,ep=2,binding=dp", BF16, {"offload.slots=2"}},
    {4, 8, true, FEW(4), "pp=2,tp=2,binding=tp", UNCLIPPED, {"offload.order=layer"}},
    {1,
     1,
     false,
     MOE(3, 8),
     "tp=1",
     ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"moe\"]",
     {"offload.slots=2"}},
    {1,
     1,
     false,
     MOE(3, 8),
     "tp=1",
     ", \"recompute_granularity\": \"full\"",
     {"offload.kept=0.25"}},
    {2, 2, false, MOE(3, 8), "cp=2", "", {"offload.slots=2"}},
};

static bool in_file;

static void set_offload(const tier_case *c, int i, bool on, mesh_training *what)
{
    memset(what->set, 0, sizeof what->set);
    mesh_set(what, (const char *const[]){"train.micro_batch_size=1"}, 1);
    if (!on)
        return;
    const char *const degree[] = {in_file ? "offload.experts=file" : "offload.experts=host",
                                  in_file && i % 2 ? "offload.eviction=lru" : NULL};
    mesh_set(what, degree, 2);
    mesh_set(what, c->offload, MAX_SET);
}

/* Trains without and with, compares, and lets each go on from the other's checkpoint. */
static void check(weft_comm *part, const tier_case *c, int i)
{
    weft_step_result results[2][NUM_STEPS];
    char name[2][32];
    mesh_training what = {.model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = NUM_STEPS,
                          .saves = true};
    for (int on = 0; on < 2; on++) {
        snprintf(name[on], sizeof name[on], "case-%d-%s", i, on ? "with" : "without");
        what.name = name[on];
        set_offload(c, i, on, &what);
        mesh_run(part, &what, results[on]);
    }
    mesh_compare(results[1], results[0], NUM_STEPS, c->adds ? 1e-5 : 0, "case %d, %s, %s", i,
                 c->mesh, c->offload[0]);
    if (weft_comm_rank(part) == 0)
        weights_expect(name[1], name[0], NUM_STEPS, "", c->adds ? 1e-4 : 0);
    what.saves = false;
    what.from_step = NUM_STEPS;
    for (int on = 0; on < 2; on++) {
        what.from = name[!on];
        set_offload(c, i, on, &what);
        mesh_run(part, &what, results[on]);
    }
    mesh_compare(results[1], results[0], NUM_STEPS, c->adds ? 1e-5 : 0,
                 "case %d, %s, %s, from the other's checkpoint", i, c->mesh, c->offload[0]);
}

int main(int argc, char **argv)
{
    weft_comm *world = world_begin(4);
    in_file = argc > 1 && strcmp(argv[1], "file") == 0;
    world_make_folder(world);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
