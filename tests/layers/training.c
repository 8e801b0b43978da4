#include "tests/layers/training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The status is the caller's last: without it no rank of the world can go on. */
static void insist(weft_status status, const training_case *c, weft_comm *world)
{
    if (status == WEFT_OK)
        return;
    fprintf(stderr, "%s on %s: %s\n", c ? c->name : "training", c ? c->mesh : "the same mesh",
            weft_error_get()->text);
    weft_comm_abort(world, status);
}

/* Adam's epsilon is well above rounding: some gradients are zero in exact arithmetic. */
void training_start(training *t, const training_case *c, weft_comm *world)
{
    weft_config config;
    char text[2048];
    memset(t, 0, sizeof *t);
    snprintf(text, sizeof text,
             "{\"model\": {%s}, \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": %d, "
             "\"train_iters\": 100, \"lr\": 2e-3, \"seed\": 5, \"adam_eps\": 1e-5, "
             "\"precision\": \"%s\"%s%s}, "
             "\"parallel\": {\"ddp_bucket_size\": 3000%s%s}, \"data\": {\"mock_data\": true%s}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"trace_step\": 0}}",
             c->model, c->global_batch, c->bf16 ? "bf16" : "fp32", c->train ? ", " : "",
             c->train ? c->train : "", c->parallel ? ", " : "", c->parallel ? c->parallel : "",
             c->documents ? ", \"reset_position_ids\": true, \"reset_attention_mask\": true, "
                            "\"eod_mask_loss\": true, \"eod_token\": 3"
                          : "");
    weft_config_source source = {.file = c->name, .text = text, .mesh = c->mesh};
    insist(weft_config_load(&source, &t->arena, &config), c, world);
    insist(weft_trainer_create(&t->trainer, &config, &source, world, &t->arena), c, world);
    insist(weft_trainer_start(&t->trainer, NULL), c, world);
}

void training_step(training *t, weft_step_result *out)
{
    insist(weft_trainer_step(&t->trainer, out), NULL, t->trainer.world);
}

void training_release(training *t)
{
    weft_trainer_release(&t->trainer);
    weft_arena_release(&t->arena);
}

bool training_losses(const training_case *c, weft_comm *world, int steps, double *out)
{
    training t;
    bool finite = true;
    training_start(&t, c, world);
    for (int s = 0; s < steps; s++) {
        weft_step_result result;
        training_step(&t, &result);
        out[s] = result.loss;
        finite = finite && isfinite(result.loss) && isfinite(result.grad_norm);
    }
    training_release(&t);
    return finite;
}
