#include "tests/launcher/meshes.h"

#include <stdio.h>

#include "tests/expect.h"
#include "tests/launcher/planned.h"

static void must(weft_comm *world, const mesh_training *what, int step, weft_status status)
{
    EXPECT(status == WEFT_OK, "%s on %s, step %d: %s", what->name, what->mesh, step,
           weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(world, status);
}

/* Adam's epsilon is well above rounding: the key biases have no gradient in exact arithmetic
 * (softmax does not see them), and a tiny epsilon would make steps of their rounding errors. */
void mesh_run(weft_comm *world, const mesh_training *what, weft_step_result *results)
{
    weft_arena arena = {0};
    weft_config config;
    weft_trainer trainer;
    char text[4096];
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
    must(world, what, 0, weft_config_load(&source, &arena, &config));
    weft_comm_set_check(true);
    must(world, what, 0, weft_trainer_create(&trainer, &config, &source, world, &arena));
    must(world, what, 0, weft_trainer_start(&trainer, what->from));
    const bool grows = config.train.rampup_batch_size.count > 0; /* its first step is no plan's */
    if (!grows)
        planned_begin(&trainer, &source);
    for (int i = 0; i < what->steps; i++) {
        must(world, what, i + 1, weft_trainer_step(&trainer, &results[i]));
        if (i == 0 && !grows)
            planned_end(&trainer);
    }
    if (what->checkpoint)
        must(world, what, what->steps, weft_trainer_save(&trainer, what->checkpoint));
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}
