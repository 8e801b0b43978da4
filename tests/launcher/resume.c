/* Stopping and going on. Six steps at a stretch against three steps, a checkpoint, a trainer made
 * anew and three more: the same bits in every loss, weight and moment on the same mesh; 1e-5 (the
 * bound of mesh invariance) where another mesh loads the checkpoint. Dropout is on, so that its
 * streams have to go on where they were. bf16 masters are split in one half alone: their form
 * changes no bit. More meshes: optimizer_state.c, and those that the torturer changes to. */
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { STEPS = 6, HALF = 3 };

static const char model[] =
    "{\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, \"num_query_groups\": 2, "
    "\"ffn_hidden_size\": 24, \"seq_length\": 12, \"vocab_size\": 53, \"num_experts\": 4, "
    "\"moe_layer_freq\": 2, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.001, "
    "\"init_method_std\": 0.1, \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}";

#define MUON ", \"optimizer\": \"muon\""
#define WHOLE ", \"split_master\": false"

static const struct {
    const char *mesh, *train, *first_half; /* more keys of section "train" */
} same[] = {
    {"tp=2,pp=2,binding=tp", "", ""},
    {"tp=2,pp=2,binding=tp", BF16, BF16 WHOLE},
    {"tp=2,dp=2,sp=1,binding=dp,ep=2,etp=2,zero=0", "", ""},
    {"dp=4,binding=dp,ep=2,zero=3", BF16 WHOLE, BF16},
    {"tp=2,dp=2,sp=1,binding=dp,ep=2,zero=1", MUON, MUON},
    {"pp=2,dp=2,zero=1", BF16 MUON, BF16 MUON WHOLE},
    {"tp=4,sp=1,binding=tp", "", ""}, /* which share key/value heads */
};
enum { NUM_SAME = sizeof same / sizeof *same };

static const struct {
    int half, world; /* of which of `same` */
    const char *mesh;
} other[] = {
    {0, 1, "dp=1"},
    {0, 4, "dp=4,binding=dp,ep=2,zero=3"},
    {0, 4, "pp=4"},
    {4, 2, "dp=2,binding=dp,ep=2,zero=1"},
    {4, 4, "tp=4,sp=1,binding=tp"},
    {6, 2, "dp=2,binding=dp,ep=2,zero=1"},
};
enum { NUM_OTHER = sizeof other / sizeof *other };

/* So many steps, after half of them from a run's checkpoint; NULL: from the start. */
static void run(weft_comm *part, const char *mesh, const char *train, const char *name,
                const char *from, int steps, weft_step_result *out)
{
    const mesh_training what = {.name = name,
                                .model = model,
                                .mesh = mesh,
                                .train = train,
                                .batch = 8,
                                .steps = steps,
                                .from = from,
                                .from_step = HALF,
                                .saves = true,
                                .set = {"train.lr_decay_style=constant"}};
    mesh_run(part, &what, out);
}

/* Straight through, then in two halves. */
static void check_same_mesh(weft_comm *world, int i, weft_step_result *straight)
{
    weft_step_result halves[STEPS];
    char name[3][32];
    snprintf(name[0], sizeof name[0], "straight-%d", i);
    snprintf(name[1], sizeof name[1], "half-%d", i);
    snprintf(name[2], sizeof name[2], "whole-%d", i);
    run(world, same[i].mesh, same[i].train, name[0], NULL, STEPS, straight);
    run(world, same[i].mesh, same[i].first_half, name[1], NULL, HALF, halves);
    run(world, same[i].mesh, same[i].train, name[2], name[1], HALF, halves + HALF);
    mesh_compare(halves, straight, STEPS, 0, "%s%s", same[i].mesh, same[i].train);
    EXPECT(straight[STEPS - 1].loss != straight[HALF].loss, "the losses stand still");
    if (weft_comm_rank(world) == 0)
        weights_expect(name[2], name[0], STEPS, "", 0);
}

static void check_other_mesh(weft_comm *world, int i, const weft_step_result *straight)
{
    weft_step_result results[HALF];
    char name[3][64];
    snprintf(name[0], sizeof name[0], "half-%d", other[i].half);
    snprintf(name[1], sizeof name[1], "other-%d", i);
    snprintf(name[2], sizeof name[2], "straight-%d", other[i].half);
    weft_comm *part = world_part(world, other[i].world);
    if (part) {
        run(part, other[i].mesh, same[other[i].half].train, name[1], name[0], HALF, results);
        for (int s = 0; s < HALF; s++)
            EXPECT(fabs(results[s].loss / straight[HALF + s].loss - 1) <= 1e-5,
                   "on %s: step %d: loss %.9g against %.9g", other[i].mesh, HALF + s + 1,
                   results[s].loss, straight[HALF + s].loss);
        if (weft_comm_rank(part) == 0)
            weights_expect(name[1], name[2], STEPS, "model/", 1e-5);
    }
    weft_comm_destroy(part);
}

int main(void)
{
    weft_step_result straight[NUM_SAME][STEPS];
    weft_comm *world = world_begin(4);
    world_make_folder(world);
    for (int i = 0; i < NUM_SAME; i++)
        check_same_mesh(world, i, straight[i]);
    for (int i = 0; i < NUM_OTHER; i++)
        check_other_mesh(world, i, straight[other[i].half]);
    return world_finish(world);
}
