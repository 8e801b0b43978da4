/* Experts in host memory, or in a file, used hard: all tokens to one expert, experts that no token
 * ever chooses, more slots than experts, one expert a rank, virtual stages, frozen experts.
 * Evaluated after every step, amid saves, while the host still steps: an evaluation sees weights
 * after all steps, and changes nothing. A gradient of one expert that is not finite ends the run
 * before that expert is stepped, with its name.
 *
 * Runs under mpirun with 4 ranks: [file]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/training/trainer.h"
#include "schedule/operands.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { STEPS = 4, BAD_STEP = 3, MAX_SET = 6 };

#define TOP1 "model.moe_router_topk=1"
#define UNCLIPPED "train.clip_grad=0"
#define BF16 "train.precision=bf16"
#define EXPERTS(number) "model.num_experts=" number
#define KEPT(share) "offload.kept=" share

typedef struct hard_case {
    int world, batch;
    bool adds; /* several micro-batches a rank: 1e-5, not bits */
    const char *mesh, *set[MAX_SET];
} hard_case;

static const hard_case cases[] = {
    {1, 1, false, "tp=1", {TOP1, "model.moe_router_forced_load=4", KEPT("0.25")}},
    {4,
     4,
     false,
     "dp=4,ep=4,binding=dp",
     {TOP1, "model.moe_router_forced_load=4", UNCLIPPED, "offload.order=demand"}},
    {2, 2, false, "dp=2,ep=2,binding=dp", {TOP1, EXPERTS("64"), KEPT("0.25"), BF16}},
    {2, 2, false, "dp=2,ep=1,binding=dp", {TOP1, EXPERTS("32"), UNCLIPPED, "offload.slots=40"}},
    {4, 4, false, "dp=4,ep=4,binding=dp,zero=3", {EXPERTS("8"), KEPT("0.5"), UNCLIPPED}},
    {4, 4, true, "pp=2,vp=2,dp=2,ep=2,binding=dp", {BF16, KEPT("0.5")}},
    {4, 4, true, "pp=2,vp=2,dp=2,ep=1,binding=dp", {UNCLIPPED, "offload.order=layer"}},
    {2,
     2,
     false,
     "dp=2,ep=1,binding=dp",
     {"train.parameter_rules=[\"*experts* frozen\"]", KEPT("0.5")}},
    {1, 1, false, "tp=1", {"train.parameter_rules=[\"*experts*fc1* frozen\"]", BF16, UNCLIPPED}},
    {2, 2, false, "pp=2", {"offload.optimizer=after", BF16}},
};

static const char *degree_beyond = "host";

typedef struct result {
    double loss, grad_norm, evaluated;
} result;

static void create(weft_comm *world, const hard_case *c, const char *degree, weft_arena *arena,
                   weft_trainer *out)
{
    weft_config config;
    char text[1024], offload[32];
    const char *set[MAX_SET + 1] = {offload};
    snprintf(offload, sizeof offload, "offload.experts=%s", degree);
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
             "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, "
             "\"init_method_std\": 0.1, \"hidden_dropout\": 0.1, \"num_experts\": 4, "
             "\"moe_aux_loss_coeff\": 0.02}, "
             "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": %d, \"train_iters\": %d, "
             "\"lr\": 2e-3, \"adam_eps\": 1e-5, \"seed\": 9, \"eval_iters\": 2}, "
             "\"data\": {\"mock_data\": true, \"split\": \"8,2,0\"}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"check_collectives\": true, \"trace_step\": 2}}",
             c->batch, STEPS);
    weft_config_source source = {.file = c->mesh, .text = text, .mesh = c->mesh, .set = set};
    memcpy(set + 1, c->set, sizeof c->set);
    while (source.num_set <= MAX_SET && set[source.num_set])
        source.num_set++;
    world_must(world, weft_config_load(&source, arena, &config), c->mesh);
    world_must(world, weft_trainer_create(out, &config, &source, world, arena), c->mesh);
    world_must(world, weft_trainer_start(out, NULL), c->mesh);
}

/* A traced step's slices have ended, also those of the host's steps beside the next one. */
static void check_trace(const hard_case *c, const weft_trainer *t)
{
    const weft_slice *slices = weft_trace_slices(t->trace);
    for (size_t i = 0; i < weft_trace_count(t->trace); i++)
        EXPECT(slices[i].start_us > 0 && slices[i].end_us >= slices[i].start_us,
               "%s: slice %s from %g to %g", c->mesh, slices[i].name, slices[i].start_us,
               slices[i].end_us);
}

/* Leaves a checkpoint of the last step in world_folder/name; disturbed: and evaluates after each
 * step, and saves after each other one. */
static void train(weft_comm *world, const hard_case *c, const char *degree, bool disturbed,
                  const char *name, result out[STEPS])
{
    weft_arena arena = {0};
    weft_trainer t;
    weft_step_result step;
    weft_evaluation evaluation;
    char to[128];
    snprintf(to, sizeof to, "%s/%s", world_folder, name);
    create(world, c, degree, &arena, &t);
    for (int i = 0; i < STEPS; i++) {
        world_must(world, weft_trainer_step(&t, &step), c->mesh);
        if (step.step == 2)
            check_trace(c, &t);
        out[i] = (result){step.loss + step.aux_loss, step.grad_norm, 0};
        if (disturbed || i == STEPS - 1)
            world_must(world, weft_trainer_evaluate(&t, WEFT_SPLIT_VALIDATION, &evaluation),
                       c->mesh);
        out[i].evaluated = disturbed || i == STEPS - 1 ? evaluation.loss : 0;
        if ((disturbed && i % 2 == 0) || i == STEPS - 1)
            world_must(world, weft_trainer_save(&t, to), c->mesh);
    }
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

static void compare(const hard_case *c, const char *what, double bound, const result *got,
                    const result *wanted)
{
    for (int i = 0; i < STEPS; i++) {
        const double a[] = {got[i].loss, got[i].grad_norm, got[i].evaluated};
        const double b[] = {wanted[i].loss, wanted[i].grad_norm, wanted[i].evaluated};
        for (int k = 0; k < 3; k++)
            EXPECT(fabs(a[k] - b[k]) <= bound * fabs(b[k]),
                   "%s, %s, %s: step %d: %s %.17g, not %.17g", c->mesh, c->set[0], what, i + 1,
                   (const char *const[]){"loss", "gradient norm", "evaluation"}[k], a[k], b[k]);
    }
}

static void check(weft_comm *part, const hard_case *c)
{
    result none[STEPS], host[STEPS], straight[STEPS];
    train(part, c, "none", true, "none", none);
    train(part, c, degree_beyond, true, "host", host);
    train(part, c, degree_beyond, false, "straight", straight);
    compare(c, "beside experts on the device", c->adds ? 1e-5 : 0, host, none);
    EXPECT(none[STEPS - 1].evaluated != none[0].evaluated, "%s: evaluations stand still", c->mesh);
    for (int i = 0; i < STEPS - 1; i++)
        host[i].evaluated = 0;
    compare(c, "undisturbed", 0, straight, host);
    if (weft_comm_rank(part) == 0) {
        weights_expect("host", "none", STEPS, "", c->adds ? 1e-4 : 0);
        weights_expect("straight", "host", STEPS, "", 0);
    }
    EXPECT_OK(weft_comm_barrier(part));
}

/* --- a gradient that is not finite ------------------------------------------------------------ */

static struct {
    weft_trainer *trainer;
    weft_task_function norm; /* the trainer's */
    int bucket;              /* of section EXPERT: whose gradient goes wrong; -1: none's */
} spoiled;

static weft_status spoil(const void *args)
{
    float *gradient = *(float *const *)args;
    gradient[5] = NAN;
    return WEFT_OK;
}

/* Whose norm the task takes. */
static int index_taken(const weft_trainer *t, int bucket)
{
    const weft_bucket_shape owned = weft_optimizer_bucket(t->optimizer, bucket);
    return weft_bucket_reduces(&owned)
               ? owned.index
               : weft_model_turn(t->model, owned.index, WEFT_TIER_TURN_LANDED);
}

static weft_status run_norm(void *context, const weft_task *task, weft_lane *lane)
{
    weft_trainer *t = spoiled.trainer;
    const weft_parameters *parameters = weft_model_parameters(t->model);
    if (task->bucket >= 0 && t->running.step == BAD_STEP &&
        index_taken(t, task->bucket) == spoiled.bucket) {
        const size_t at = weft_parameters_section(parameters, WEFT_SECTION_EXPERT)
                              ->buckets[spoiled.bucket]
                              .offset;
        const float *gradient =
            weft_parameters_grad(parameters, WEFT_SECTION_EXPERT, spoiled.bucket, at);
        WEFT_TRY(weft_lane_submit(lane, "spoil", spoil, &gradient, sizeof gradient));
    }
    return spoiled.norm(context, task, lane);
}

/* Whether a piece is of the spoiled bucket. */
static bool is_spoiled(const weft_state_piece *piece)
{
    const size_t own = weft_parameter_expert_elements(&piece->placed->parameter);
    return piece->placed->section == WEFT_SECTION_EXPERT &&
           piece->placed->bucket + (int)(piece->first / own) == spoiled.bucket;
}

/* Weights and moments, of the spoiled expert or of all; returns how many. */
static size_t copy_state(const weft_optimizer *o, bool of_all, float *out)
{
    size_t count = 0;
    for (int i = 0; i < weft_optimizer_num_pieces(o); i++) {
        const weft_state_piece piece = weft_optimizer_piece(o, i);
        if (!of_all && !is_spoiled(&piece))
            continue;
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++, count += piece.count)
            if (out)
                memcpy(out + count, piece.data[kind], piece.count * sizeof *out);
    }
    return count;
}

/* at_once: other experts have stepped; else nothing has. */
static void check_not_finite(weft_comm *part, const hard_case *c, bool at_once)
{
    const int rank = weft_comm_rank(part), last = weft_comm_size(part) - 1;
    weft_arena arena = {0};
    weft_trainer t;
    weft_step_result step;
    char wanted[128];
    snprintf(wanted, sizeof wanted,
             "gradient norm is not finite; first in "
             "decoder.layers.3.mlp.experts.linear_fc1.weight on rank %d",
             last);
    create(part, c, "host", &arena, &t);
    spoiled.trainer = &t;
    spoiled.norm = t.executor.run[WEFT_TASK_NORM];
    spoiled.bucket = rank == last ? 1 : -1;
    t.executor.run[WEFT_TASK_NORM] = run_norm;
    for (int i = 1; i < BAD_STEP; i++)
        world_must(part, weft_trainer_step(&t, &step), c->mesh);
    EXPECT_OK(weft_lane_sync(t.lanes[WEFT_LANE_HOST]));
    const size_t bytes = copy_state(t.optimizer, !at_once, NULL) * sizeof(float);
    float *before = malloc(bytes + 1), *after = malloc(bytes + 1);
    EXPECT(before && after && (bytes > 0 || (at_once && rank != last)), "%zu bytes", bytes);
    if (before && after) {
        copy_state(t.optimizer, !at_once, before);
        /* deferred, it is run again, and the other rank is well with the same data */
        EXPECT_ERROR(weft_trainer_step(&t, &step),
                     at_once || last == 0 ? WEFT_DIVERGED : WEFT_FAULTY, wanted);
        weft_device_wait(t.device);
        copy_state(t.optimizer, !at_once, after);
        EXPECT(memcmp(before, after, bytes) == 0, "%s, %s: stepped", c->mesh, c->set[0]);
    }
    free(before);
    free(after);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

int main(int argc, char **argv)
{
    static const hard_case not_finite[] = {
        {1, 1, false, "tp=1", {UNCLIPPED, KEPT("0.5")}},
        {2, 2, false, "dp=2,ep=2,binding=dp", {UNCLIPPED}},
        {2, 4, false, "dp=2,ep=2,binding=dp", {"train.split_master=false", BF16}},
        {1, 1, false, "tp=1", {"offload.optimizer=after"}},
    };
    weft_comm *world = world_begin(4);
    if (argc > 1)
        degree_beyond = argv[1];
    const bool on_host = strcmp(degree_beyond, "host") == 0;
    world_make_folder(world);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i]);
        weft_comm_destroy(part);
    }
    for (size_t i = 0; on_host && i < sizeof not_finite / sizeof *not_finite; i++) {
        weft_comm *part = world_part(world, not_finite[i].world);
        if (part)
            check_not_finite(part, &not_finite[i], strcmp(not_finite[i].set[0], UNCLIPPED) == 0);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
