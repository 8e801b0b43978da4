#include "tests/launcher/meshes.h"

#include <stdio.h>

#include "tests/launcher/planned.h"
#include "tests/world.h"

void mesh_set(mesh_training *what, const char *const *more, int most)
{
    int count = 0;
    while (what->set[count])
        count++;
    for (int i = 0; i < most && more[i]; i++)
        what->set[count++] = more[i];
    EXPECT(count < MESH_MAX_SET, "%d keys are set", count);
}

void mesh_set_documents(mesh_training *what, int token)
{
    static char key[32];
    snprintf(key, sizeof key, "data.eod_token=%d", token);
    mesh_set(what,
             (const char *const[]){"data.reset_position_ids=true", "data.reset_attention_mask=true",
                                   "data.eod_mask_loss=true", key},
             4);
}

static bool is_near(double a, double b, double bound)
{
    return a == b || fabs(a - b) <= bound * fabs(b);
}

void mesh_compare(const weft_step_result *got, const weft_step_result *wanted, int num_steps,
                  double bound, const char *what, ...)
{
    char text[512];
    va_list args;
    va_start(args, what);
    vsnprintf(text, sizeof text, what, args);
    va_end(args);
    for (int s = 0; s < num_steps; s++)
        EXPECT(is_near(got[s].loss, wanted[s].loss, bound) &&
                   is_near(got[s].grad_norm, wanted[s].grad_norm, bound) &&
                   got[s].dropped_tokens == wanted[s].dropped_tokens,
               "%s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g", text, s + 1,
               got[s].loss, wanted[s].loss, got[s].grad_norm, wanted[s].grad_norm);
}

/* Adam's epsilon is well above rounding: the key biases have no gradient in exact arithmetic
 * (softmax does not see them), and a tiny epsilon would make steps of their rounding errors. */
void mesh_run(weft_comm *world, const mesh_training *what, weft_step_result *results)
{
    weft_arena arena = {0};
    weft_config config;
    weft_trainer trainer;
    char text[4096], name[256], from[300], saved[300];
    snprintf(name, sizeof name, "%s on %s", what->name, what->mesh);
    snprintf(from, sizeof from, "%s/%s/step-%d", world_folder, what->from ? what->from : "",
             what->from_step);
    snprintf(saved, sizeof saved, "%s/%s", world_folder, what->name);
    snprintf(text, sizeof text,
             "{\"model\": %s, \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": %d, "
             "\"train_iters\": %d, \"lr\": 2e-3, \"lr_warmup_iters\": 3, \"seed\": 5, "
             "\"adam_eps\": 1e-5%s}, "
             "\"parallel\": {\"ddp_bucket_size\": 3000%s}, \"data\": {\"mock_data\": true}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"check_collectives\": true, \"trace_step\": 0}}",
             what->model, what->batch, what->steps, what->train ? what->train : "",
             what->parallel ? what->parallel : "");
    weft_config_source source = {
        .file = what->name, .text = text, .mesh = what->mesh, .set = what->set};
    while (what->set[source.num_set])
        source.num_set++;
    world_must(world, weft_config_load(&source, &arena, &config), name);
    weft_comm_set_check(true);
    world_must(world, weft_trainer_create(&trainer, &config, &source, world, &arena), name);
    world_must(world, weft_trainer_start(&trainer, what->from ? from : NULL), name);
    const bool grows = config.train.rampup_batch_size.count > 0; /* its first step is no plan's */
    if (!grows)
        planned_begin(&trainer, &source);
    for (int i = 0; i < what->steps; i++) {
        world_must(world, weft_trainer_step(&trainer, &results[i]), name);
        if (i == 0 && !grows)
            planned_end(&trainer);
    }
    if (what->saves)
        world_must(world, weft_trainer_save(&trainer, saved), name);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}
