/* A training step allocates nothing on the device: its number of allocations and high-water marks
 * stand still. Dense stacks from the first step on; an MoE stack may first meet more rows an expert
 * than balanced routing gives, and keeps what it grew. Runs with 2 ranks. */

#include "tests/world.h"
#include "tests/layers/training.h"

#define SHAPE                                                                                      \
    "\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, \"seq_length\": 32, "     \
    "\"vocab_size\": 61"
#define MOE                                                                                        \
    SHAPE ", \"num_experts\": 4, \"moe_router_topk\": 2, \"moe_aux_loss_coeff\": 0.01, "           \
          "\"swiglu\": true, \"normalization\": \"RMSNorm\", "                                     \
          "\"moe_shared_expert_intermediate_size\": 16"
#define DROPOUT ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1"

enum { WARM_UP = 3, STEPS = 6 };

static const struct {
    const char *name, *model;
    int ranks, warm_up;
    const char *mesh, *parallel;
} cases[] = {
    {"dense", SHAPE DROPOUT, 1, 0, "dp=1", NULL},
    {"dense", SHAPE DROPOUT, 2, 0, "pp=2", NULL},
    {"dense", SHAPE, 2, 0, "tp=2,sp=1", NULL},
    {"dense", SHAPE, 2, WARM_UP, "tp=2,sp=1",
     "\"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": 2"},
    {"dense", SHAPE, 2, 0, "dp=2,zero=1", NULL},
    {"dense", SHAPE, 2, 0, "dp=2,zero=3", NULL},
    {"muon", SHAPE, 2, 0, "dp=2,zero=1", NULL},
    {"muon", SHAPE, 2, 0, "tp=2,sp=1", NULL},
    {"moe", MOE, 1, WARM_UP, "dp=1", NULL},
    {"moe", MOE DROPOUT, 2, WARM_UP, "pp=2", NULL},
    {"moe", MOE, 2, WARM_UP, "tp=2,binding=tp,sp=1", NULL},
    {"moe", MOE, 2, WARM_UP, "dp=2,binding=dp,ep=2", NULL},
    {"moe", MOE, 2, WARM_UP, "dp=2,binding=dp,ep=2",
     "\"moe_num_partitions\": 4, \"moe_memory_reuse\": \"s1\""},
    {"moe", MOE, 2, WARM_UP, "dp=2,binding=dp,ep=2", "\"moe_num_partitions\": 3"},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void check(weft_comm *part, int i, bool bf16)
{
    training_case c = {.name = cases[i].name,
                       .model = cases[i].model,
                       .mesh = cases[i].mesh,
                       .parallel = cases[i].parallel,
                       .train =
                           strcmp(cases[i].name, "muon") == 0 ? "\"optimizer\": \"muon\"" : NULL,
                       .global_batch = 8,
                       .bf16 = bf16};
    training t;
    weft_step_result result;
    weft_device_stats before, after;
    training_start(&t, &c, part);
    for (int s = 0; s < cases[i].warm_up; s++)
        training_step(&t, &result);
    weft_device_get_stats(t.trainer.device, &before);
    for (int s = 0; s < STEPS; s++)
        training_step(&t, &result);
    weft_device_get_stats(t.trainer.device, &after);
    const char *precision = bf16 ? "bf16" : "fp32";
    EXPECT(before.num_allocs > 0 && after.num_allocs == before.num_allocs,
           "%s %s on %s: %d steps allocate %d times", c.name, precision, c.mesh, STEPS,
           (int)(after.num_allocs - before.num_allocs));
    EXPECT(after.bytes_peak == before.bytes_peak && after.bytes_now == before.bytes_now,
           "%s %s on %s: %zu device bytes become %zu", c.name, precision, c.mesh, before.bytes_peak,
           after.bytes_peak);
    EXPECT(after.pinned_bytes_peak == before.pinned_bytes_peak &&
               after.pinned_bytes_now == before.pinned_bytes_now,
           "%s %s on %s: %zu pinned bytes become %zu", c.name, precision, c.mesh,
           before.pinned_bytes_peak, after.pinned_bytes_peak);
    if (weft_comm_rank(part) == 0)
        printf("%-6s %s %d ranks %-22s %zu bytes in %d allocations\n", c.name, precision,
               cases[i].ranks, c.mesh, after.bytes_peak, (int)after.num_allocs);
    training_release(&t);
}

int main(void)
{
    weft_comm *world = world_begin(2);
    for (int i = 0; i < NUM_CASES; i++) {
        weft_comm *part = world_part(world, cases[i].ranks);
        for (int bf16 = 0; bf16 < 2 && part; bf16++)
            check(part, i, bf16);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
