/* The same config trains alike on the CPU and on a CUDA device: 20 steps of a small model on one
 * mesh in fp32, losses within 1e-4, the CUDA run saved in the middle and resumed. The ranks
 * share one device. bf16 and fp16: in that precision, within 1e-2. overflow: fp16's gradients do.
 * graphs: with CUDA graphs and without, recomputed, offloaded or not, the same bits.
 * muon: with that optimizer.
 *   test_cuda_training dense|moe|muon [MESH [PARALLEL]] | bf16 | fp16|overflow|graphs [MESH] */
#include <math.h>

#include "launcher/training/trainer.h"
#include "tests/world.h"

#ifdef WEFT_SANITIZED /* a later step runs the same code, and takes a second there */
enum { STEPS = 8, HALF = 4, GRAPH_STEPS = 8 };
#else
enum { STEPS = 20, HALF = 10, GRAPH_STEPS = 8 };
#endif

typedef struct run_case {
    const char *mesh, *model, *precision;
    double bound;          /* of a loss */
    const char *more;      /* settings of section train, each after a comma; NULL: none */
    const char *parallel;  /* settings of that section; NULL: none */
    bool kernel_by_kernel; /* no graphs */
    int trace_step;
} run_case;

static void create(weft_comm *world, const run_case *c, const char *device, weft_arena *arena,
                   weft_trainer *out)
{
    char text[1400];
    weft_config config;
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, "
             "\"ffn_hidden_size\": 24, \"seq_length\": 8, \"vocab_size\": 53, "
             "\"init_method_std\": 0.1%s}, "
             "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": %d, "
             "\"lr\": 1e-2, \"lr_warmup_iters\": 2, \"adam_eps\": 1e-5, \"seed\": 9, "
             "\"eval_iters\": 2, "
             "\"precision\": \"%s\"%s}, \"parallel\": {%s}, \"data\": {\"mock_data\": true}, "
             "\"device\": {\"kind\": \"%s\", \"cuda_graphs\": %s, \"peak_flops\": 1e9, "
             "\"num_threads\": 1}, \"log\": {\"trace_step\": %d}}",
             c->model, STEPS, c->precision, c->more ? c->more : "", c->parallel ? c->parallel : "",
             device, c->kernel_by_kernel ? "false" : "true", c->trace_step);
    weft_config_source source = {.file = device, .text = text, .mesh = c->mesh};
    world_must(world, weft_config_load(&source, arena, &config), device);
    world_must(world, weft_trainer_create(out, &config, &source, world, arena), device);
}

/* Steps first + 1 .. last, from first's checkpoint unless that is 0; saved at the end. */
static void train(weft_comm *world, const run_case *c, const char *device, int first, int last,
                  double *out_losses)
{
    weft_arena arena = {0};
    weft_trainer trainer;
    weft_step_result result;
    char dir[128], from[160];
    snprintf(dir, sizeof dir, "%s/%s", world_folder, device);
    snprintf(from, sizeof from, "%s/step-%d", dir, first);
    create(world, c, device, &arena, &trainer);
    world_must(world, weft_trainer_start(&trainer, first ? from : NULL), device);
    for (int i = first; i < last; i++) {
        world_must(world, weft_trainer_step(&trainer, &result), device);
        out_losses[i] = result.loss + result.aux_loss;
    }
    world_must(world, weft_trainer_save(&trainer, dir), device);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}

static void check_alike(weft_comm *world, const run_case *c)
{
    double cpu[STEPS], cuda[STEPS], worst = 0, moved = 0;
    run_case reference = *c;
    if (strcmp(c->precision, "fp16") == 0) /* which the CPU has not */
        reference.precision = "fp32";
    train(world, &reference, "cpu", 0, STEPS, cpu);
    train(world, c, "cuda", 0, HALF, cuda);
    train(world, c, "cuda", HALF, STEPS, cuda);
    for (int i = 0; i < STEPS; i++) {
        worst = fmax(worst, fabs(cuda[i] - cpu[i]));
        moved = fmax(moved, fabs(cpu[i] - cpu[0]));
    }
    EXPECT(worst <= c->bound, "%s on %s: losses are off by %.3g", c->precision, c->mesh, worst);
    EXPECT(moved > 5 * c->bound, "the losses stand still at %g", cpu[0]);
}

/* Overflows skip steps and lower the scale until gradients fit; then training goes on, and so it
 * does from a checkpoint. */
static void check_overflow(weft_comm *world, const char *mesh)
{
    run_case c = {.mesh = mesh, .model = "", .precision = "fp16", .more = ", \"hysteresis\": 1"};
    weft_arena arena = {0};
    weft_trainer trainer;
    weft_step_result result;
    int64_t skipped = 0;
    double scale = pow(2, 32);
    create(world, &c, "cuda", &arena, &trainer);
    world_must(world, weft_trainer_start(&trainer, NULL), "overflow");
    do {
        world_must(world, weft_trainer_step(&trainer, &result), "overflow");
        skipped += result.scale.skipped;
        EXPECT(result.scale.value == scale && result.scale.skipped_steps == skipped,
               "scale %g, %lld skipped", result.scale.value, (long long)result.scale.skipped_steps);
        EXPECT(!result.scale.skipped || !isfinite(result.grad_norm), "a skipped step has a norm");
        scale /= 2;
    } while (result.scale.skipped && result.step < 40);
    EXPECT(skipped > 3 && !result.scale.skipped && isfinite(result.grad_norm), "%lld skipped",
           (long long)skipped);
    world_must(world, weft_trainer_save(&trainer, world_folder), "overflow");
    weft_loss_scale saved = *weft_optimizer_loss_scale(trainer.optimizer);
    weft_trainer_release(&trainer);

    char from[128];
    snprintf(from, sizeof from, "%s/step-%lld", world_folder, (long long)result.step);
    c.more = NULL;
    create(world, &c, "cuda", &arena, &trainer);
    world_must(world, weft_trainer_start(&trainer, from), "overflow");
    const weft_loss_scale *loaded = weft_optimizer_loss_scale(trainer.optimizer);
    EXPECT(loaded->scale == saved.scale && loaded->skipped_steps == skipped &&
               loaded->good_steps == 1,
           "scale %g after loading", loaded->scale);
    world_must(world, weft_trainer_step(&trainer, &result), "overflow");
    EXPECT(!result.scale.skipped && result.scale.value == saved.scale, "scale %g",
           result.scale.value);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}

/* Losses of steps, and of an evaluation after each third. */
static void train_and_evaluate(weft_comm *world, const run_case *c, double *out_losses,
                               uint64_t *out_replays)
{
    weft_arena arena = {0};
    weft_trainer trainer;
    weft_step_result result;
    weft_evaluation evaluation;
    create(world, c, "cuda", &arena, &trainer);
    world_must(world, weft_trainer_start(&trainer, NULL), "graphs");
    for (int i = 0; i < GRAPH_STEPS; i++) {
        world_must(world, weft_trainer_step(&trainer, &result), "graphs");
        out_losses[2 * i] = result.loss;
        out_losses[2 * i + 1] = result.grad_norm;
        if (i % 3 != 2)
            continue;
        world_must(world, weft_trainer_evaluate(&trainer, WEFT_SPLIT_VALIDATION, &evaluation),
                   "graphs");
        out_losses[2 * i + 1] = evaluation.loss;
    }
    *out_replays = weft_model_num_replays(trainer.model);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}

/* fp16's scale changes every fourth step. Nothing is replayed in the first step, the traced one and
 * the first two evaluations' batches. */
static void check_graphs(weft_comm *world, const char *mesh)
{
    run_case c = {.mesh = mesh,
                  .model = "",
                  .precision = "fp16",
                  .more = ", \"initial_loss_scale\": 64, \"loss_scale_window\": 4",
                  .trace_step = 6};
    double kept[2 * GRAPH_STEPS], one_by_one[2 * GRAPH_STEPS];
    uint64_t replays, none;
    train_and_evaluate(world, &c, kept, &replays);
    c.kernel_by_kernel = true;
    train_and_evaluate(world, &c, one_by_one, &none);
    for (int i = 0; i < 2 * GRAPH_STEPS; i++)
        EXPECT(kept[i] == one_by_one[i], "%s: number %d is %.17g by graphs, else %.17g", mesh, i,
               kept[i], one_by_one[i]);
    EXPECT(replays > GRAPH_STEPS && none == 0, "%s: %llu and %llu replays", mesh,
           (unsigned long long)replays, (unsigned long long)none);
    c.kernel_by_kernel = false;
    c.more = ", \"initial_loss_scale\": 64, \"loss_scale_window\": 4, "
             "\"recompute_granularity\": \"full\"";
    train_and_evaluate(world, &c, kept, &replays);
    for (int i = 0; i < 2 * GRAPH_STEPS; i++)
        EXPECT(kept[i] == one_by_one[i], "%s: number %d is %.17g recomputed, else %.17g", mesh, i,
               kept[i], one_by_one[i]);
    EXPECT(replays > GRAPH_STEPS, "%s: %llu replays", mesh, (unsigned long long)replays);
    c.more = ", \"initial_loss_scale\": 64, \"loss_scale_window\": 4, "
             "\"fine_grained_activation_offloading\": true, \"offload_modules\": [\"block\"]";
    train_and_evaluate(world, &c, kept, &replays);
    for (int i = 0; i < 2 * GRAPH_STEPS; i++)
        EXPECT(kept[i] == one_by_one[i], "%s: number %d is %.17g offloaded, else %.17g", mesh, i,
               kept[i], one_by_one[i]);
}

int main(int argc, char **argv)
{
    static const char experts[] = ", \"num_experts\": 4, \"moe_router_topk\": 2, "
                                  "\"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.001";
    static const char muon[] = ", \"optimizer\": \"muon\", \"muon_extra_scale_factor\": 0.2";
    static const char no_overflow[] = ", \"initial_loss_scale\": 1024";
    const char *why = NULL, *model = argc > 1 ? argv[1] : "";
    weft_comm *world = world_begin(0);
    if (weft_device_num_cuda(&why) == 0) {
        if (weft_comm_rank(world) == 0)
            printf("skipped: no CUDA device: %s\n", why);
        weft_comm_destroy(world);
        return 77;
    }
    world_make_folder(world);
    if (strcmp(model, "bf16") == 0)
        check_alike(world,
                    &(run_case){.mesh = "dp=1", .model = "", .precision = "bf16", .bound = 1e-2});
    else if (strcmp(model, "fp16") == 0)
        check_alike(world, &(run_case){.mesh = argc > 2 ? argv[2] : "dp=1",
                                       .model = experts,
                                       .precision = "fp16",
                                       .bound = 1e-2,
                                       .more = no_overflow});
    else if (strcmp(model, "graphs") == 0)
        check_graphs(world, argc > 2 ? argv[2] : "dp=1");
    else if (strcmp(model, "overflow") == 0)
        check_overflow(world, argc > 2 ? argv[2] : "dp=1");
    else
        check_alike(world, &(run_case){.mesh = argc > 2 ? argv[2] : "dp=1",
                                       .model = strcmp(model, "dense") == 0 ? "" : experts,
                                       .precision = "fp32",
                                       .bound = 1e-4,
                                       .more = strcmp(model, "muon") == 0 ? muon : NULL,
                                       .parallel = argc > 3 ? argv[3] : NULL});
    return world_finish(world);
}
