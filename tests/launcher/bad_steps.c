/* Steps whose numbers are wrong, in a program with a layer and samples of its own: whose fault they
 * are is found by running them again, and they are stopped at, skipped or gone back from, with the
 * losses of a run that never had the batch. The test starts itself as that program.
 *
 * BAD says what goes wrong, on rank BAD_RANK and from the run of a step BAD_RUN on:
 *   data       a gradient, wherever the marked sample is
 *   rank       a gradient of that rank, whatever it computes
 *   transient  the same, once
 *   code       gradients of every rank
 *   loss       the loss of that rank, once
 *   spike      the loss, wherever the marked sample is
 *   diverges   the loss, on every rank from its sixth run on
 *   weight     a parameter that nothing depends on, once
 *   evaluation what a layer gives in evaluation
 *   moment     a number of AdamW's first moment of that rank, after a step
 *   flip       a bit of a weight on that rank, once; ONCE: a file that says that it has been
 *   reads      a bit of the state that STATE=kind,rank updates, before a step reads it; ONCE
 *   leaves     the same, right behind a step's update
 * MARKED is the index of the marked sample; WITHOUT=first,count: the data lack these samples.
 * DAMAGE: the file that is cut when the marked sample is read. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

#include "parallel/optimizer/optimizer.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"
#include "tests/layers/stub.h"

enum { VOCAB = 53, MARK = VOCAB - 1, SEQ = 12, MAX_STEPS = 16 };

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 6, "
    "\"lr_decay_style\": \"constant\", \"lr\": 1e-2},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* y = x, with a parameter that nothing depends on but for its gradient. */
typedef struct poison {
    weft_layer base;
    size_t hidden;
    weft_parameter *bias;
    int run;     /* of a training step */
    bool marked; /* the tokens have a mark */
} poison;

static weft_status poison_init(weft_layer *layer, weft_build *build)
{
    poison *p = (poison *)layer;
    weft_parameter_spec spec = {
        .struct_bytes = sizeof spec, .name = "bias", .num_dims = 1, .dims = {p->hidden}};
    return weft_build_parameter(build, &spec, &p->bias);
}

static void poison_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const poison *p = (const poison *)layer;
    *out = (weft_layer_cost){.num_params = p->hidden,
                             .local_params = p->hidden,
                             .param_bytes = p->hidden * weft_dtype_bytes(shape->dtype)};
}

typedef struct fill_args {
    float *to;
    size_t count;
    float value;
    bool adds;
} fill_args;

static weft_status fill(const void *raw)
{
    const fill_args *a = raw;
    for (size_t i = 0; i < a->count; i++)
        a->to[i] = a->adds ? a->to[i] + a->value : a->value;
    return WEFT_OK;
}

static long number(const char *name, long other)
{
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : other;
}

static bool goes_wrong_by(const char *what)
{
    const char *bad = getenv("BAD");
    return bad && strcmp(bad, what) == 0;
}

static weft_status fill_sample(const weft_sample *sample)
{
    long first = -1, count = 0;
    const char *without = getenv("WITHOUT");
    uint64_t index = sample->index;
    if (without && sscanf(without, "%ld,%ld", &first, &count) == 2 && (long)index >= first)
        index += (uint64_t)count;
    for (size_t s = 0; s < SEQ; s++) {
        sample->tokens[s] = (int32_t)((index * 7 + s * (index % 5 + 1)) % (VOCAB - 1));
        sample->labels[s] = (int32_t)((index * 7 + (s + 1) * (index % 5 + 1)) % (VOCAB - 1));
    }
    if ((long)index != number("MARKED", -1))
        return WEFT_OK;
    sample->tokens[0] = MARK;
    const char *damaged = getenv("DAMAGE");
    return damaged && truncate(damaged, 99) != 0 ? WEFT_FILE : WEFT_OK;
}

typedef struct raise_args {
    weft_metrics *metrics;
    double by;
} raise_args;

static weft_status raise_loss(const void *raw)
{
    const raise_args *a = raw;
    a->metrics->loss_sum += a->by;
    return WEFT_OK;
}

static bool is_here(void)
{
    return number("OMPI_COMM_WORLD_RANK", 0) == number("BAD_RANK", 2);
}

static bool is_bad(const poison *p)
{
    const bool here = is_here();
    const long from = number("BAD_RUN", 3);
    return (goes_wrong_by("data") && p->marked) ||
           (goes_wrong_by("rank") && here && p->run >= from) ||
           (goes_wrong_by("transient") && here && p->run == from) ||
           (goes_wrong_by("code") && p->run >= from);
}

static double loss_is_off_by(const poison *p)
{
    if (goes_wrong_by("loss") && is_here() && p->run == number("BAD_RUN", 3))
        return NAN;
    return (p->marked && goes_wrong_by("spike")) || (p->run >= 6 && goes_wrong_by("diverges")) ? 1e4
                                                                                               : 0;
}

static weft_status poison_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    poison *p = (poison *)layer;
    weft_lane *lane = weft_pass_lane(pass);
    const int32_t *tokens = weft_pass_tokens(pass);
    const fill_args nothing = {y->data, weft_tensor_count(y), NAN, false};
    if (!weft_pass_training(pass) && goes_wrong_by("evaluation"))
        return weft_lane_submit(lane, "fill", fill, &nothing, sizeof nothing);
    if (weft_pass_training(pass) && weft_pass_overwrite(pass))
        p->run++;
    p->marked = false;
    for (size_t s = 0; s < SEQ; s++)
        p->marked = p->marked || tokens[s] == MARK;
    const raise_args raise = {weft_pass_metrics(pass), loss_is_off_by(p)};
    if (weft_pass_training(pass) && raise.by != 0)
        WEFT_TRY(weft_lane_submit(lane, "raise", raise_loss, &raise, sizeof raise));
    return weft_lane_copy(lane, y->data, x->data,
                          weft_tensor_count(x) * weft_dtype_bytes(x->dtype));
}

/* A bit of a weight that is not used again in this step. */
static weft_status flip(const void *raw)
{
    uint32_t bits;
    float *weight = *(float *const *)raw;
    memcpy(&bits, weight, sizeof bits);
    bits ^= 1u << 13;
    memcpy(weight, &bits, sizeof bits);
    return WEFT_OK;
}

static bool is_first(void)
{
    const char *path = getenv("ONCE");
    const int file = path ? open(path, O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (file >= 0)
        close(file);
    return !path || file >= 0;
}

/* The last piece of what a rank updates: of the kind that STATE names, on the rank that it names.
 */
static weft_optimizer *updating;
static weft_status flip_state(weft_lane *lane)
{
    int kind = 0, rank = 0;
    const char *state = getenv("STATE");
    if (!updating || !state || sscanf(state, "%d,%d", &kind, &rank) != 2 ||
        number("OMPI_COMM_WORLD_RANK", 0) != rank || !is_first())
        return WEFT_OK;
    float *number = weft_optimizer_piece(updating, weft_optimizer_num_pieces(updating) - 1)
                        .data[(weft_state_kind)kind];
    return weft_lane_submit(lane, "flip", flip, &number, sizeof(float *));
}

static weft_status poison_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    poison *p = (poison *)layer;
    const fill_args args = {p->bias->grad, p->hidden, is_bad(p) ? NAN : 1e-3f,
                            !weft_pass_overwrite(pass)};
    WEFT_TRY(weft_lane_submit(weft_pass_lane(pass), "fill", fill, &args, sizeof args));
    if (goes_wrong_by("flip") && p->run == number("BAD_RUN", 3) && is_here() &&
        weft_pass_overwrite(pass) && is_first()) {
        float *weight = (float *)p->bias->weight.data + 5;
        WEFT_TRY(weft_lane_submit(weft_pass_lane(pass), "flip", flip, &weight, sizeof(float *)));
    }
    const fill_args weight = {p->bias->weight.data, p->hidden, NAN, false};
    if (goes_wrong_by("weight") && p->run == number("BAD_RUN", 3))
        WEFT_TRY(weft_lane_submit(weft_pass_lane(pass), "fill", fill, &weight, sizeof weight));
    if (goes_wrong_by("reads") && p->run == number("BAD_RUN", 3) && weft_pass_overwrite(pass))
        WEFT_TRY(flip_state(weft_pass_lane(pass)));
    return weft_lane_copy(weft_pass_lane(pass), dx->data, dy->data,
                          weft_tensor_count(dy) * weft_dtype_bytes(dy->dtype));
}

static const weft_layer_ops poison_ops = {.struct_bytes = sizeof poison_ops,
                                          .kind = "poison",
                                          .describe = poison_describe,
                                          .init = poison_init,
                                          .forward = poison_forward,
                                          .backward = poison_backward,
                                          .destroy = stub_destroy};

/* A dense model of one block, with the layer behind it. */
static weft_status poison_build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                  weft_mlp_create(options)));
    weft_layer *layer = stub_create(&poison_ops, sizeof(poison));
    if (layer)
        ((poison *)layer)->hidden = (size_t)options->hidden_size;
    WEFT_TRY(weft_model_add(model, layer));
    return weft_model_add_head(model, options);
}

static weft_status spoil(const void *raw)
{
    **(float *const *)raw = NAN;
    return WEFT_OK;
}

/* The state of what the rank updates, before its update number BAD_RUN. */
__typeof__(weft_optimizer_update) __real_weft_optimizer_update, __wrap_weft_optimizer_update;
weft_status __wrap_weft_optimizer_update(weft_optimizer *optimizer, int bucket, weft_lane *lane,
                                         int64_t step, double lr)
{
    if (bucket == 0 && goes_wrong_by("moment") && is_here() && step == number("BAD_RUN", 3)) {
        float *moment = weft_optimizer_piece(optimizer, weft_optimizer_num_pieces(optimizer) - 1)
                            .data[WEFT_STATE_EXP_AVG];
        WEFT_TRY(weft_lane_submit(lane, "spoil", spoil, &moment, sizeof(float *)));
    }
    updating = optimizer;
    WEFT_TRY(__real_weft_optimizer_update(optimizer, bucket, lane, step, lr));
    return goes_wrong_by("leaves") && bucket == weft_optimizer_num_buckets(optimizer) - 1 &&
                   step == number("BAD_RUN", 2)
               ? flip_state(lane)
               : WEFT_OK;
}

/* --- runs ------------------------------------------------------------------------------------ */

typedef struct losses {
    char text[MAX_STEPS][40]; /* by step, as they stand in metrics.jsonl */
    int last, lines;
    long bad_steps; /* of the last line */
} losses;

static void read_losses(const char *run, losses *out)
{
    memset(out, 0, sizeof *out);
    char *text = child_read_in(run, "metrics.jsonl");
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        int step = 0;
        char loss[40] = "";
        if (sscanf(line, "{\"step\": %d, \"loss\": %39[^,]", &step, loss) != 2 || step < 1 ||
            step >= MAX_STEPS)
            continue;
        memcpy(out->text[step], loss, sizeof loss);
        out->last = step;
        out->lines++;
        const char *bad = strstr(line, "\"bad_steps\": ");
        out->bad_steps = bad ? strtol(bad + strlen("\"bad_steps\": "), NULL, 10) : 0;
    }
}

/* What the environment says of data and faults, "NAME=value"; sets: with a space between. */
typedef struct run {
    const char *name, *mesh, *bad, *data, *sets;
    int exit_code;
    const char *part, *other; /* of the one line on stderr; none: no line */
} run;

static void check(const run *r, losses *out)
{
    const char *args[CHILD_MAX_ARGS] = {"train", "c.json", "--out", r->name, "--mesh", r->mesh};
    int n = 6, lines = 0;
    child c;
    char *sets = strdup(r->sets ? r->sets : "");
    for (char *set = strtok(sets, " "); set; set = strtok(NULL, " ")) {
        args[n++] = "--set";
        args[n++] = set;
    }
    child_run(&c, args, WORDS(r->bad ? r->bad : "BAD=", r->data ? r->data : "MARKED=-1"));
    EXPECT(c.exit_code == r->exit_code, "%s: exit %d: %s", r->name, c.exit_code, c.err);
    char *text = strdup(c.err ? c.err : "");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
        EXPECT((!r->part || strstr(line, r->part)) && (!r->other || strstr(line, r->other)),
               "%s: \"%s\" lacks \"%s\" or more", r->name, line, r->part ? r->part : r->other);
    EXPECT(lines == (r->part != NULL), "%s: %d lines on stderr: %s", r->name, lines, c.err);
    free(sets);
    free(text);
    losses own;
    read_losses(r->name, out ? out : &own);
}

/* Steps [first, last] of a have the losses of b's, which are `behind` less. */
static void check_same(const char *what, const losses *a, const losses *b, int first, int last,
                       int behind)
{
    for (int step = first; step <= last; step++)
        EXPECT(a->text[step][0] && strcmp(a->text[step], b->text[step - behind]) == 0,
               "%s: loss of step %d is %s, not %s", what, step, a->text[step],
               b->text[step - behind]);
    EXPECT(a->lines == a->last, "%s: %d lines of %d steps", what, a->lines, a->last);
}

/* What weft inspect --sample prints of a step has all three parts. */
static void check_read(const char *name, const char *step, const char *const parts[3])
{
    child c;
    CHILD_RUN(&c, "inspect", name, "--sample", step);
    EXPECT(c.exit_code == 0, "%s step %s: %s", name, step, c.err);
    for (int i = 0; i < 3; i++)
        EXPECT(strstr(c.out, parts[i]), "%s step %s lacks %s: %s", name, step, parts[i], c.out);
}

/* Step 6 spikes, and step 4 has been damaged since: back to step 2. */
static void check_damaged_rewind(void)
{
    static const char *const sets[] = {"on_bad_step=rewind", "loss_spike_factor=3",
                                       "save_interval=2", "train_iters=7"};
    static const char *const damaged[] = {"model.h5", "manifest.json"};
    losses without, rewound;
    check(&(run){"lacks_more", "dp=4", NULL, "WITHOUT=8,16", "train_iters=7", 0, NULL, NULL},
          &without);
    for (int i = 0; i < 2; i++) {
        child c;
        char name[16], damage[128];
        snprintf(name, sizeof name, "past%d", i);
        const char *args[CHILD_MAX_ARGS] = {"train", "c.json", "--out", name, "--mesh", "dp=4"};
        child_add_sets(args, sets, 4);
        snprintf(damage, sizeof damage, "DAMAGE=%s/checkpoints/step-4/%s", name, damaged[i]);
        child_run(&c, args, WORDS("BAD=spike", "MARKED=22", damage));
        EXPECT(c.exit_code == 0 && strstr(c.err, "checkpoints/step-2 is taken: ") &&
                   strstr(c.err, "checkpoints/step-4 is damaged: "),
               "%s: exit %d: %s", name, c.exit_code, c.err);
        read_losses(name, &rewound);
        check_same("a spike that was gone back from past damage", &rewound, &without, 1, 7, 0);
    }
}

static void check_verdicts(void)
{
    static const run runs[] = {
        {"data", "dp=4", "BAD=data", "MARKED=10", NULL, 8,
         "error step 3: gradient norm is not finite; first in decoder.layers.1.bias on rank 2 "
         "(layer 2)",
         "so again there, and on rank 1 with the same data: the data, samples 10 to 10"},
        {"rank", "dp=4", "BAD=rank", NULL, NULL, 10,
         "step 3: gradient norm is not finite; first in decoder.layers.1.bias on rank 2 (layer 2)",
         "so again there, and rank 1 is well with the same data: rank 2 computes wrongly"},
        {"no_shard", "dp=4", "BAD=rank", NULL, "data_parallel_sharding_strategy=no_shard", 10,
         "first in decoder.layers.1.bias on rank 2 (layer 2)", "rank 2 computes wrongly"},
        {"optim", "dp=4", "BAD=rank", NULL, "data_parallel_sharding_strategy=optim", 10,
         "first in decoder.layers.1.bias on rank 2 (layer 2)", "rank 2 computes wrongly"},
        {"optim_grads", "dp=4", "BAD=rank", NULL, "data_parallel_sharding_strategy=optim_grads", 10,
         "first in decoder.layers.1.bias on rank 2 (layer 2)", "rank 2 computes wrongly"},
        {"stages_alone", "pp=2", "BAD=rank", "BAD_RANK=1", NULL, 8,
         "error step 3: gradient norm is not finite; first in decoder.layers.1.bias on rank 1",
         "no replica to ask"},
        {"loss", "dp=2", "BAD=loss", "BAD_RANK=1", NULL, 8, "error step 3: loss is nan on rank 1",
         "transient on rank 1"},
        {"skips_a_rank", "dp=4", "BAD=rank", NULL,
         "on_bad_step=skip max_bad_steps=1 log.level=error", 10,
         "error step 4: ", "rank 2 computes wrongly; reliability.max_bad_steps is 1"},
        {"moment", "dp=4", "BAD=moment", NULL, "data_parallel_sharding_strategy=optim", 8,
         "error step 4: ",
         "; exp_avg of embedding.word_embeddings.weight on rank 2 (layer 0) is nan"},
        {"own_moment", "dp=4", "BAD=moment", NULL, "data_parallel_sharding_strategy=no_shard", 10,
         "error step 4: ", "rank 2 computes wrongly; exp_avg of "},
        {"transient", "dp=4", "BAD=transient", NULL, NULL, 8, "on rank 2",
         "run again it is well: transient on rank 2"},
        {"code", "dp=2", "BAD=code", NULL, NULL, 8, "on rank 0",
         "on rank 1 too, and with other data; lr 0.01, gradient norms of the steps before "},
        {"alone", "dp=1", "BAD=data", "MARKED=10", NULL, 8, "on rank 0",
         "so again with samples 10 to 10, and no replica to ask; lr 0.01, "},
        {"micro_batches", "dp=2", "BAD=data", "MARKED=9", NULL, 8, "on rank 1",
         "the data, samples 9 to 9"},
        {"tensors", "tp=2,dp=2", "BAD=data", "MARKED=9", NULL, 8, "on rank 2",
         "on rank 0 with the same data: the data, samples 9 to 9"},
        {"stages", "pp=2,dp=2", "BAD=data", "MARKED=9", NULL, 8,
         "with the same data: the data, samples 9 to 9", NULL},
        {"sharded", "dp=4", "BAD=data", "MARKED=10",
         "data_parallel_sharding_strategy=optim_grads_params", 8, "decoder.layers.1.bias on rank 2",
         "the data, samples 10 to 10"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check(&runs[i], NULL);
}

/* The checkpoint before is the last, and numbers that no step looks at are in none. */
static void check_saved(void)
{
    static const struct {
        run run;
        const char *latest;
    } cases[] = {
        {{"evaluates", "dp=2", NULL, NULL, "save_interval=1 eval_interval=2 eval_iters=1", 0, NULL,
          NULL},
         "step-6\n"},
        {{"saves", "dp=4", "BAD=rank", NULL, "save_interval=1", 10, "step 3: ", NULL}, "step-2\n"},
        {{"weight", "dp=2", "BAD=weight", NULL, "save_interval=1", 8,
          "step 3: model/decoder.layers.1.bias [0:16] is not finite: not saved", NULL},
         "step-2\n"},
        {{"evaluated", "dp=2", "BAD=evaluation", NULL,
          "save_interval=1 eval_interval=4 eval_iters=1", 8,
          "error step 4: the validation part's loss is nan", NULL},
         "step-4\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check(&cases[i].run, NULL);
        child_expect_latest(cases[i].run.name, cases[i].latest);
    }
}

/* Every hyperslab's hash of two runs' last checkpoints. */
static void check_same_state(const char *a, const char *b)
{
    char path[2][96];
    snprintf(path[0], sizeof path[0], "%s/checkpoints/step-6/shards.json", a);
    snprintf(path[1], sizeof path[1], "%s/checkpoints/step-6/shards.json", b);
    char *first = child_read(path[0]), *second = child_read(path[1]);
    EXPECT(first && second && strcmp(first, second) == 0, "%s and %s: other weights", a, b);
}

/* The flip is in no checkpoint, since replicas are compared before a save, and the ranks that start
 * again go on as if it had never been. */
static void check_flip_restarts(void)
{
    child c;
    child_run(&c,
              WORDS("train", "c.json", "--out", "again", "--mesh", "dp=4", "--set",
                    "data_parallel_sharding_strategy=no_shard", "--set",
                    "replica_check_interval=1000", "--set", "save_interval=2", "--set",
                    "max_restarts=2"),
              WORDS("BAD=flip", "ONCE=flipped"));
    EXPECT(c.exit_code == 0 && strstr(c.err, "step 4: decoder.layers.1.bias differs") &&
               strstr(c.err, "the job ended with exit code 10 after step ") &&
               strstr(c.err, ": it is started again in 1 s (1 of 2, reliability.max_restarts)"),
           "exit %d: %s", c.exit_code, c.err);
    check_same_state("again", "whole");
}

static void check_replicas(void)
{
    losses good, mended;
    static const char alone[] = "step 3: decoder.layers.1.bias differs between the 4 replicas of "
                                "group dp-cp: rank 2 stands alone";
    check(&(run){"unseen", "dp=4", "BAD=flip", NULL, "data_parallel_sharding_strategy=no_shard", 0,
                 NULL, NULL},
          NULL);
    check(&(run){"differs", "dp=4", "BAD=flip", NULL,
                 "replica_check_interval=1 data_parallel_sharding_strategy=no_shard", 10, alone,
                 NULL},
          NULL);
    check(&(run){"mended", "dp=4", "BAD=flip", NULL,
                 "replica_check_interval=3 on_replica_difference=majority "
                 "data_parallel_sharding_strategy=no_shard",
                 0, alone, "; it takes the bits of rank 0"},
          &mended);
    check(&(run){"whole", "dp=4", NULL, NULL, "data_parallel_sharding_strategy=no_shard", 0, NULL,
                 NULL},
          &good);
    check_same("a bit that flipped", &mended, &good, 1, 6, 0);
    check_same_state("mended", "whole");
    check_flip_restarts();
    check(&(run){"tie", "dp=2", "BAD=flip", "BAD_RANK=1",
                 "replica_check_interval=1 on_replica_difference=majority "
                 "data_parallel_sharding_strategy=no_shard",
                 10, "rank 1 and others, no majority", NULL},
          NULL);
    check(&(run){"over_tensors", "tp=4", "BAD=flip", NULL,
                 "replica_check_interval=1 num_attention_heads=4", 10,
                 "between the 4 replicas of group tp: rank 2 stands alone", NULL},
          NULL);
    check(&(run){"alike", "tp=2,dp=2", NULL, NULL, "replica_check_interval=1", 0, NULL, NULL},
          NULL);
    check(&(run){"alike_sharded", "tp=2,dp=2", NULL, NULL,
                 "replica_check_interval=1 data_parallel_sharding_strategy=optim_grads_params", 0,
                 NULL, NULL},
          NULL);
    check(
        &(run){"alike_stages", "pp=2,dp=2", NULL, NULL, "replica_check_interval=1", 0, NULL, NULL},
        NULL);
}

/* A state that a restart goes on from is that of a run whose bits are whole. */
static void check_state_restarts(void)
{
    child c;
    check(&(run){"unflipped", "dp=2", NULL, NULL, NULL, 0, NULL, NULL}, NULL);
    for (int interval = 1; interval <= 2; interval++) {
        char name[16], set[32], once[16];
        snprintf(name, sizeof name, "since%d", interval);
        snprintf(set, sizeof set, "state_check_interval=%d", interval);
        snprintf(once, sizeof once, "ONCE=flip%d", interval);
        child_run(&c,
                  WORDS("train", "c.json", "--out", name, "--mesh", "dp=2", "--set", set, "--set",
                        "save_interval=2", "--set", "max_restarts=2"),
                  WORDS("BAD=reads", "STATE=1,1", once));
        EXPECT(c.exit_code == 0 && strstr(c.err, "step 3: exp_avg of ") &&
                   strstr(c.err, "the job ended with exit code 10 after step ") &&
                   strstr(c.err, ": it is started again in 1 s (1 of 2, reliability.max_restarts)"),
               "exit %d: %s", c.exit_code, c.err);
        check_same_state(name, "unflipped");
    }
}

#define EVERY "state_check_interval=1"
#define NO_SHARD "data_parallel_sharding_strategy=no_shard"
#define BF16 "precision=bf16"
#define WHOLE "split_master=false"

static void check_state(void)
{
    static const char text[] = " changed after step 2 had left it";
    static const run found[] = {
        {"of_shares", "dp=2", "BAD=reads", "STATE=1,1", EVERY, 10,
         "step 3: exp_avg of decoder.layers.0.input_layernorm.weight on rank 1", text},
        {"of_weights", "dp=2", "BAD=reads", "STATE=0,0", EVERY, 10,
         "step 3: weight of decoder.layers.0.self_attention.linear_proj.weight on rank 0", text},
        {"of_masters", "dp=2", "BAD=reads", "STATE=0,1", EVERY " " BF16 " " WHOLE, 10,
         "step 3: master of decoder.layers.0.input_layernorm.weight on rank 1", text},
        {"of_one", "dp=1", "BAD=reads", "STATE=2,0", EVERY, 10,
         "step 3: exp_avg_sq of decoder.layers.0.input_layernorm.weight on rank 0", text},
        {"of_tensors", "tp=2", "BAD=reads", "STATE=1,1", EVERY, 10,
         "step 3: exp_avg of decoder.layers.0.input_layernorm.weight on rank 1", text},
        {"of_replicas", "dp=2", "BAD=reads", "STATE=1,1", EVERY " " NO_SHARD, 10, "exp_avg of ",
         text},
        {"in_interval", "dp=2", "BAD=reads", "STATE=1,1", "state_check_interval=2", 10,
         "step 3: exp_avg of decoder.layers.0.input_layernorm.weight on rank 1", text},
        {"unasked", "dp=2", "BAD=reads", "STATE=1,1", "state_check_interval=3", 0, NULL, NULL},
        {"unsaved", "dp=2", "BAD=leaves", "STATE=1,1", "state_check_interval=1000 save_interval=2",
         10, "step 2: exp_avg of ", text},
        {"skips_none", "dp=2", "BAD=transient", "BAD_RANK=1", EVERY " on_bad_step=skip", 0,
         "transient on rank 1; the second run counts", NULL},
        {"skips_one", "dp=2", "BAD=data", "MARKED=10", EVERY " on_bad_step=skip", 0, "skipped",
         NULL},
        {"state_alike", "tp=2,dp=2", NULL, NULL, EVERY " " BF16, 0, NULL, NULL},
        {"stages_alike", "pp=2,dp=2", NULL, NULL, EVERY " precision=bf16", 0, NULL, NULL},
        {"shares_alike", "dp=4", NULL, NULL,
         EVERY " data_parallel_sharding_strategy=optim_grads_params", 0, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        check(&found[i], NULL);
    EXPECT(access("unsaved/checkpoints/step-2", F_OK) != 0, "a flip was saved");
    check_state_restarts();
}

int main(int argc, char **argv)
{
    const weft_application application = {
        .struct_bytes = sizeof application, .build = poison_build, .sample = fill_sample};
    if (argc > 1)
        return weft_application_main(argc, argv, &application);
    child_program = "/proc/self/exe";
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");

    losses good, without, transient, skipped, rewound;
    check(&(run){"good", "dp=4", NULL, NULL, NULL, 0, NULL, NULL}, &good);
    check_verdicts();
    check_saved();
    check_replicas();
    check_state();

    check(&(run){"redone", "dp=4", "BAD=transient", NULL, "on_bad_step=skip", 0,
                 "transient on rank 2; the second run counts (bad step 1 of at most 10)", NULL},
          &transient);
    check_same("a transient fault", &transient, &good, 1, 6, 0);
    check(&(run){"redone_loss", "dp=4", "BAD=loss", NULL, "on_bad_step=skip", 0,
                 "step 3: loss is nan on rank 2",
                 "transient on rank 2; the second run counts (bad step 1 of at most 10)"},
          &transient);
    check_same("a transient loss", &transient, &good, 1, 6, 0);

    check(&(run){"without", "dp=4", NULL, "WITHOUT=8,4", NULL, 0, NULL, NULL}, &without);
    check(&(run){"skips", "dp=4", "BAD=data", "MARKED=10", "on_bad_step=skip", 0,
                 "step 3: ", "samples 10 to 10; the batch is skipped (bad step 1 of at most 10)"},
          &skipped);
    check_same("a batch that was skipped", &skipped, &good, 1, 2, 0);
    check_same("behind a batch that was skipped", &skipped, &without, 4, 6, 1);
    EXPECT(skipped.bad_steps == 1, "%ld bad steps", skipped.bad_steps);
    check(&(run){"many", "dp=2", "BAD=code", NULL,
                 "on_bad_step=skip max_bad_steps=1 log.level=error", 8,
                 "error step 4: ", "; reliability.max_bad_steps is 1"},
          NULL);

    /* Step 6 spikes: back to step 4, and on with the batch of what would have been step 7. */
    check(&(run){"lacks", "dp=4", NULL, "WITHOUT=16,8", "train_iters=7", 0, NULL, NULL}, &without);
    check(&(run){"rewinds", "dp=4", "BAD=spike", "MARKED=22",
                 "on_bad_step=rewind loss_spike_factor=3 save_interval=4 train_iters=7", 0,
                 "step 6: loss is ",
                 "on rank 2; so again there, and on rank 1 with the same data: the data, samples "
                 "22 to 22"},
          &rewound);
    check_same("a spike that was gone back from", &rewound, &without, 1, 7, 0);
    EXPECT(rewound.bad_steps == 1, "%ld bad steps", rewound.bad_steps);
    check_read("skips", "3",
               (const char *[]){"(updated nothing: its batch was skipped)",
                                "micro-batch 0\n  sample 8\n",
                                "  sample 11\n    tokens: 25, 27, "});
    check_read("rewinds", "5",
               (const char *[]){"\n96 tokens of the data's order before it were passed over",
                                "micro-batch 0\n  sample 24\n", "  sample 27\n"});
    check_damaged_rewind();
    check(&(run){"diverges", "dp=4", "BAD=diverges", NULL,
                 "on_bad_step=stop loss_spike_factor=3 train_iters=7", 8, "error step 6: loss is ",
                 "; weights and moments are finite"},
          NULL);
    check(&(run){"nowhere", "dp=2", "BAD=data", "MARKED=1",
                 "on_bad_step=rewind save_interval=4 log.level=error", 8,
                 "step 1: a bad step, and no checkpoint yet to go back to", NULL},
          NULL);
    check(&(run){"refused", "dp=2", NULL, NULL, "on_bad_step=rewind", 2,
                 "rewind needs checkpoints to go back to", NULL},
          NULL);
    check(&(run){"below", "dp=2", NULL, NULL, "loss_spike_factor=0.5", 2,
                 "0.5 is out of range: 0, or above 1", NULL},
          NULL);
    return child_finish();
}
