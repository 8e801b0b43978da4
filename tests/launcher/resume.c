/* Stopping and going on. Six steps at a stretch against three steps, a checkpoint, a trainer made
 * anew and three more: the same bits in every loss, weight and moment on the same mesh; 1e-5 (the
 * bound of mesh invariance) where another mesh loads the checkpoint. Dropout is on, so that its
 * streams have to go on where they were. bf16 masters are split in one half alone: their form
 * changes no bit. */
#include "launcher/training/trainer.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { STEPS = 6, HALF = 3 };

typedef struct run_case {
    const char *mesh;
    int world;
    const char *precision;
    bool split; /* bf16 masters; half the other way */
    bool muon;
} run_case;

/* Steps first + 1 .. last, from `start` where given, and a checkpoint in world_folder/name. */
static void train(weft_comm *world, const run_case *c, const char *start, int first, int last,
                  const char *name, weft_step_result *out)
{
    weft_arena arena = {0};
    weft_config config;
    weft_trainer trainer;
    char text[1024], from[128], to[128];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, "
             "\"num_query_groups\": 2, "
             "\"ffn_hidden_size\": 24, \"seq_length\": 12, \"vocab_size\": 53, \"num_experts\": 4, "
             "\"moe_layer_freq\": 2, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.001, "
             "\"init_method_std\": 0.1, \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}, "
             "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": %d, "
             "\"lr\": 2e-3, \"lr_warmup_iters\": 2, \"adam_eps\": 1e-5, \"seed\": 9, "
             "\"precision\": \"%s\", \"split_master\": %s, \"optimizer\": \"%s\"}, "
             "\"parallel\": {\"ddp_bucket_size\": 2000}, \"data\": {\"mock_data\": true}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"trace_step\": 0}}",
             STEPS, c->precision, c->split ? "true" : "false", c->muon ? "muon" : "adam");
    weft_config_source source = {.file = name, .text = text, .mesh = c->mesh};
    world_must(world, weft_config_load(&source, &arena, &config), name);
    world_must(world, weft_trainer_create(&trainer, &config, &source, world, &arena), name);
    if (start)
        snprintf(from, sizeof from, "%s/%s/step-%d", world_folder, start, first);
    world_must(world, weft_trainer_start(&trainer, start ? from : NULL), name);
    EXPECT(trainer.step == first, "%s starts after step %d", name, (int)trainer.step);
    for (int i = first; i < last; i++)
        world_must(world, weft_trainer_step(&trainer, &out[i]), name);
    snprintf(to, sizeof to, "%s/%s", world_folder, name);
    world_must(world, weft_trainer_save(&trainer, to), name);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}

/* Straight through, then in two halves. */
static void check_same_mesh(weft_comm *world, const run_case *c, int number)
{
    weft_step_result straight[STEPS] = {{0}}, halves[STEPS] = {{0}};
    char name[3][32];
    run_case other_form = *c;
    other_form.split = !c->split;
    snprintf(name[0], sizeof name[0], "straight-%d", number);
    snprintf(name[1], sizeof name[1], "half-%d", number);
    snprintf(name[2], sizeof name[2], "whole-%d", number);
    train(world, c, NULL, 0, STEPS, name[0], straight);
    train(world, &other_form, NULL, 0, HALF, name[1], halves);
    train(world, c, name[1], HALF, STEPS, name[2], halves);
    for (int i = 0; i < STEPS; i++)
        EXPECT(straight[i].loss == halves[i].loss && straight[i].aux_loss == halves[i].aux_loss &&
                   straight[i].grad_norm == halves[i].grad_norm && straight[i].lr == halves[i].lr,
               "%s %s: step %d: loss %.17g against %.17g", c->mesh, c->precision, i + 1,
               halves[i].loss, straight[i].loss);
    EXPECT(straight[STEPS - 1].loss != straight[HALF].loss, "the losses stand still");
    if (weft_comm_rank(world) == 0)
        weights_expect(name[2], name[0], STEPS, "", 0);
}

/* Half number `half` goes on where `c` says. */
static void check_other_mesh(weft_comm *world, const run_case *c, int half,
                             const weft_step_result *straight)
{
    weft_step_result result[STEPS];
    char name[3][48];
    snprintf(name[0], sizeof name[0], "half-%d", half);
    snprintf(name[1], sizeof name[1], "%s-%d", c->mesh, half);
    snprintf(name[2], sizeof name[2], "straight-%d", half);
    weft_comm *part = world_part(world, c->world);
    if (part) {
        train(part, c, name[0], HALF, STEPS, name[1], result);
        for (int i = HALF; i < STEPS; i++)
            EXPECT(fabs(result[i].loss / straight[i].loss - 1) <= 1e-5,
                   "on %s: step %d: loss %.9g against %.9g", c->mesh, i + 1, result[i].loss,
                   straight[i].loss);
        if (weft_comm_rank(part) == 0)
            weights_expect(name[1], name[2], STEPS, "model/", 1e-5);
    }
    weft_comm_destroy(part);
}

int main(void)
{
    static const run_case same[] = {
        {"tp=2,pp=2,binding=tp", 4, "fp32", false, false},
        {"tp=2,pp=2,binding=tp", 4, "bf16", true, false},
        {"dp=4,binding=dp,ep=2,zero=1", 4, "fp32", false, false},
        {"dp=4,binding=dp,ep=2,zero=1", 4, "bf16", false, false},
        {"tp=2,dp=2,sp=1,binding=dp,ep=2,etp=2,zero=0", 4, "fp32", false, false},
        {"dp=4,binding=dp,ep=2,zero=3", 4, "bf16", true, false},
        {"tp=2,dp=2,sp=1,binding=dp,ep=2,zero=1", 4, "fp32", false, true},
        {"pp=2,dp=2,zero=1", 4, "bf16", true, true},
        {"tp=4,sp=1,binding=tp", 4, "fp32", false, false}, /* which share key/value heads */
    };
    enum { NUM_SAME = sizeof same / sizeof *same };
    static const run_case other[] = {
        {"dp=1", 1, "fp32", false, false},
        {"dp=2,binding=dp,ep=2,zero=1", 2, "fp32", false, false},
        {"tp=4,sp=1,binding=tp", 4, "fp32", false, false},
        {"dp=4,binding=dp,ep=2,zero=3", 4, "fp32", false, false},
        {"pp=2,dp=2,zero=2", 4, "fp32", false, false},
        {"pp=4", 4, "fp32", false, false},
    };
    weft_comm *world = world_begin(4);
    world_make_folder(world);
    for (int i = 0; i < NUM_SAME; i++)
        check_same_mesh(world, &same[i], i);
    weft_step_result straight[STEPS];
    train(world, &same[0], NULL, 0, STEPS, "straight-0", straight);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        check_other_mesh(world, &other[i], 0, straight);
    for (size_t i = 0; i < 2; i++)
        check_other_mesh(world, &other[i], NUM_SAME - 1, straight);
    const int muon = NUM_SAME - 3;
    train(world, &same[muon], NULL, 0, STEPS, "straight-muon", straight);
    for (size_t i = 0; i < 3; i++) {
        run_case c = other[i];
        c.muon = true;
        check_other_mesh(world, &c, muon, straight);
    }
    return world_finish(world);
}
