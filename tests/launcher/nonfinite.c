/* Numbers that are no numbers: a layer of a user's own, in a user's own program, gives a NaN
 * gradient or a NaN loss at step 3 on one rank, or a NaN output in evaluation. The job ends within
 * seconds with a line that says at which step, and for a gradient in which parameter, the
 * checkpoint before is there, and the weights are as they were before the step. The test starts
 * itself as that program. */
#include <math.h>
#include <stdlib.h>

#include <weft/weft.h>

#include "launcher/training/trainer.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"
#include "tests/launcher/poison.h"

enum { BAD_STEP = 3 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 6, "
    "\"eval_iters\": 1},\n"
    "\"checkpoint\": {\"save_interval\": 1}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static weft_status submit_fill(weft_pass *pass, void *to, size_t count, float value)
{
    fill_args args = {to, count, value, false};
    return weft_lane_submit(weft_pass_lane(pass), "fill", fill, &args, sizeof args);
}

static bool asked_for(const char *what)
{
    const char *poisoned = getenv("POISON");
    return poisoned && strcmp(poisoned, what) == 0;
}

/* Of the step and the rank that go wrong. */
static bool is_bad(const poison *p)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *bad = getenv("POISONED_RANK");
    return p->run == BAD_STEP && (!rank || strcmp(rank, bad ? bad : "1") == 0);
}

static weft_status spoil_loss(const void *raw)
{
    (*(weft_metrics *const *)raw)->loss_sum += NAN;
    return WEFT_OK;
}

weft_status poison_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x, weft_tensor *y)
{
    poison *p = (poison *)layer;
    if (weft_pass_training(pass) && weft_pass_overwrite(pass))
        p->run++;
    if (weft_pass_training(pass) && asked_for("loss") && is_bad(p)) {
        weft_metrics *metrics = weft_pass_metrics(pass);
        WEFT_TRY(weft_lane_submit(weft_pass_lane(pass), "spoil", spoil_loss, &metrics,
                                  sizeof(weft_metrics *)));
    }
    if (!weft_pass_training(pass) && asked_for("evaluation"))
        return submit_fill(pass, y->data, weft_tensor_count(y), NAN);
    return weft_lane_copy(weft_pass_lane(pass), y->data, x->data,
                          weft_tensor_count(x) * weft_dtype_bytes(x->dtype));
}

weft_status poison_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                            weft_tensor *dx)
{
    poison *p = (poison *)layer;
    bool bad = asked_for("gradient") && is_bad(p);
    WEFT_TRY(submit_fill(pass, p->bias->grad, p->hidden, bad ? NAN : 0));
    if (asked_for("weight") && p->run == BAD_STEP)
        WEFT_TRY(submit_fill(pass, p->bias->weight.data, p->hidden, NAN));
    return weft_lane_copy(weft_pass_lane(pass), dx->data, dy->data,
                          weft_tensor_count(dy) * weft_dtype_bytes(dy->dtype));
}

/* The ranks say one line, with `part`. */
static void check_lines(const char *mesh, const child *c, const char *part)
{
    int count = 0;
    char *text = strdup(c->err ? c->err : "");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        EXPECT(strstr(line, part), "%s: \"%s\" lacks \"%s\"", mesh, line, part);
        count++;
    }
    EXPECT(count == 1, "%s: %d lines on stderr: %s", mesh, count, c->err);
    free(text);
}

static void check(const char *run, const char *mesh, const char *poisoned, const char *eval,
                  int exit_code, const char *part, const char *latest)
{
    child c;
    child_run(&c, WORDS("train", "c.json", "--out", run, "--mesh", mesh, "--set", eval),
              WORDS(poisoned));
    EXPECT(c.exit_code == exit_code, "%s: exit %d: %s", mesh, c.exit_code, c.err);
    if (part)
        check_lines(mesh, &c, part);
    char *text = child_read_in(run, "checkpoints/latest");
    EXPECT(text && strcmp(text, latest) == 0, "%s: latest is %s", mesh, text);
}

/* Every weight and moment of this process, one after the other. */
static size_t copy_state(const weft_optimizer *optimizer, float *out)
{
    size_t count = 0;
    for (int i = 0; i < weft_optimizer_num_pieces(optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(optimizer, i);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++, count += piece.count)
            if (out)
                memcpy(out + count, piece.data[kind], piece.count * sizeof *out);
    }
    return count;
}

/* One rank, in this process: nothing was updated when the step says that it failed. */
static void check_untouched(const char *poisoned, const char *part)
{
    weft_arena arena = {0};
    weft_config parsed;
    weft_trainer t;
    weft_step_result result;
    weft_comm *self;
    const weft_application application = {.struct_bytes = sizeof application,
                                          .build = poison_build};
    weft_config_source source = {.file = poisoned, .text = config, .application = &application};
    setenv("POISON", poisoned, 1);
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(weft_config_load(&source, &arena, &parsed));
    EXPECT_OK(weft_trainer_create(&t, &parsed, &source, self, &arena));
    EXPECT_OK(weft_trainer_start(&t, NULL));
    for (int step = 1; step < BAD_STEP; step++)
        EXPECT_OK(weft_trainer_step(&t, &result));
    size_t bytes = copy_state(t.optimizer, NULL) * sizeof(float);
    float *before = malloc(bytes), *after = malloc(bytes);
    EXPECT(before && after, "no memory");
    copy_state(t.optimizer, before);
    EXPECT_ERROR(weft_trainer_step(&t, &result), WEFT_DIVERGED, part);
    copy_state(t.optimizer, after);
    EXPECT(bytes > 0 && memcmp(before, after, bytes) == 0, "%s: updated", poisoned);
    free(before);
    free(after);
    weft_trainer_release(&t);
    weft_comm_destroy(self);
    weft_arena_release(&arena);
    unsetenv("POISON");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return weft_main(argc, argv, poison_build);
    child_program = "/proc/self/exe";
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    check("good", "dp=2", "POISON=", "eval_interval=2", 0, NULL, "step-6\n");
    /* Named by the rank that made it, not by one that holds the sum. */
    check("alone", "dp=1", "POISON=gradient", "eval_interval=0", 8,
          "error step 3: gradient norm is not finite; first in "
          "decoder.layers.1.bias on rank 0",
          "step-2\n");
    check("stages", "pp=2", "POISON=gradient", "eval_interval=0", 8,
          "error step 3: gradient norm is not finite; first in "
          "decoder.layers.1.bias on rank 1",
          "step-2\n");
    check("replicas", "dp=2", "POISON=gradient", "eval_interval=0", 8,
          "error step 3: gradient norm is not finite; first in "
          "decoder.layers.1.bias on rank 1 (layer 2)",
          "step-2\n");
    setenv("POISONED_RANK", "2", 1);
    static const char *const sharding[] = {"no_shard", "optim", "optim_grads",
                                           "optim_grads_params"};
    for (int i = 0; i < 4; i++) {
        char set[96], run[32];
        snprintf(run, sizeof run, "four%d", i);
        snprintf(set, sizeof set, "data_parallel_sharding_strategy=%s", sharding[i]);
        check(run, "dp=4", "POISON=gradient", set, 8,
              "first in decoder.layers.1.bias on rank 2 (layer 2)", "step-2\n");
    }
    check("tensors", "tp=2,dp=2", "POISON=gradient", "eval_interval=0", 8,
          "first in decoder.layers.1.bias on rank 2 (layer 2)", "step-2\n");
    unsetenv("POISONED_RANK");
    check("losses", "dp=2", "POISON=loss", "eval_interval=0", 8,
          "error step 3: loss is nan on rank 1", "step-2\n");
    check_untouched("gradient", "first in decoder.layers.1.bias on rank 0");
    check_untouched("loss", "loss is nan on rank 0");
    /* Nothing but the save looks at a weight that no loss and no gradient depends on. */
    check("weight", "dp=2", "POISON=weight", "eval_interval=0", 8,
          "step 3: model/decoder.layers.1.bias [0:16] is not finite: not saved", "step-2\n");
    check("evaluated", "dp=2", "POISON=evaluation", "eval_interval=4", 8,
          "error step 4: the validation part's loss is nan", "step-4\n");
    return child_finish();
}
