/* What a run chooses for its MoE layers: from a cluster's costs before the first step, by measuring
 * the first steps, or nothing where no tokens travel. Runs with 2 ranks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "launcher/training/trainer.h"
#include "tests/world.h"

/* Links so slow that computation is free beside them, or the other way round. */
static weft_cluster cluster_of(double bytes_per_us, double flops_per_us)
{
    weft_cluster c = {.name = "made up", .num_nodes = 1, .ranks_per_node = 2};
    c.interference = weft_interference_none();
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++) {
        bool computes = strcmp(weft_cost_unit((weft_cost_kind)kind), "FLOPs") == 0;
        double rate = computes ? flops_per_us : bytes_per_us;
        c.costs[kind] = (weft_cost){.curve = weft_curve_linear(1, rate), .peak = rate * 1e6};
    }
    return c;
}

/* From the checkpoint of a run where `from` is given, as that run. */
static weft_status start_from(weft_trainer *t, weft_comm *world, weft_arena *arena,
                              const char *mesh, const char *parallel, const char *from)
{
    weft_config config, run;
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
             "\"seq_length\": 32, \"vocab_size\": 61, \"num_experts\": 4}, "
             "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, "
             "\"train_iters\": 100, \"lr\": 1e-3, \"seed\": 5}, "
             "\"parallel\": {%s}, \"data\": {\"mock_data\": true}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"trace_step\": 0, \"level\": \"warn\"}}",
             parallel);
    weft_config_source source = {.file = "choice", .text = text, .mesh = mesh};
    weft_mesh built;
    if (from) {
        weft_config_source had = {0};
        WEFT_TRY(weft_arena_printf(arena, &had.file, "%s/config.json", from));
        WEFT_TRY(weft_config_load(&had, arena, &run));
        source.run = &run;
    }
    WEFT_TRY(weft_config_load(&source, arena, &config));
    WEFT_TRY(weft_config_mesh(&config, &source, weft_comm_size(world), &built));
    WEFT_TRY(weft_trainer_create(t, &config, &source, world, arena));
    return weft_trainer_start(t, from);
}

static weft_status start(weft_trainer *t, weft_comm *world, weft_arena *arena, const char *mesh,
                         const char *parallel)
{
    return start_from(t, world, arena, mesh, parallel, NULL);
}

/* Steps until the choice is told; its step's result. */
static weft_step_result run(weft_trainer *t, int most)
{
    weft_step_result result = {0};
    int told = 0, first_told = -1;
    for (int i = 0; i < most; i++) {
        EXPECT_OK(weft_trainer_step(t, &result));
        told += result.moe.choice != NULL;
        if (result.moe.choice && first_told < 0)
            first_told = i;
        if (first_told >= 0 && i > first_told + 2)
            break;
    }
    EXPECT(told <= 1, "told %d times", told);
    return result;
}

static void check_model(weft_comm *world, const char *path, double bytes_per_us,
                        double flops_per_us, bool many)
{
    weft_trainer t = {0};
    weft_arena arena = {0};
    weft_cluster cluster = cluster_of(bytes_per_us, flops_per_us);
    char parallel[400];
    if (weft_comm_rank(world) == 0)
        EXPECT_OK(weft_cluster_write(&cluster, path));
    EXPECT_OK(weft_comm_barrier(world));
    snprintf(parallel, sizeof parallel,
             "\"moe_num_partitions\": 0, \"moe_memory_reuse\": \"auto\", \"cluster\": \"%s\"",
             path);
    world_must(world, start(&t, world, &arena, "dp=2,binding=dp,ep=2", parallel), path);
    weft_step_result result = run(&t, 3);
    weft_moe_pipeline chosen = result.moe.pipeline;
    EXPECT((chosen.num_partitions > 1) == many, "n %d", chosen.num_partitions);
    EXPECT(chosen.reuse >= WEFT_REUSE_S1, "reuse %s", weft_reuse_text((int)chosen.reuse));
    EXPECT(strstr(t.moe.reason, weft_reuse_text((int)chosen.reuse)) != NULL, "%s", t.moe.reason);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

static const char profiled[] = "\"moe_num_partitions\": 0, \"moe_memory_reuse\": \"auto\", "
                               "\"moe_choice\": \"profile\"";

/* Goes on from a checkpoint with what was chosen before it, and with the same bits; with other
 * options of the mesh it is measured anew. */
static void check_kept(weft_comm *world, weft_trainer *straight, const char *folder)
{
    enum { MORE = 3 };
    weft_step_result wanted, got;
    weft_moe_pipeline chosen = straight->moe.options.pipeline;
    double losses[MORE];
    char from[128];
    int64_t step = straight->step;
    EXPECT_OK(weft_trainer_save(straight, folder));
    snprintf(from, sizeof from, "%s/step-%d", folder, (int)step);
    for (int i = 0; i < MORE; i++) {
        EXPECT_OK(weft_trainer_step(straight, &wanted));
        losses[i] = wanted.loss;
    }
    for (int other = 0; other < 2; other++) {
        weft_trainer t = {0};
        weft_arena arena = {0};
        EXPECT_OK(start_from(&t, world, &arena, "dp=2,binding=dp,ep=2",
                             other ? "\"moe_num_partitions\": 0, \"moe_memory_reuse\": \"auto\", "
                                     "\"overlap_grad_reduce\": false, \"moe_choice\": \"profile\""
                                   : profiled,
                             from));
        EXPECT(t.moe.profiling == (other == 1), "measured %s", other ? "on" : "anew");
        for (int i = 0; i < MORE && !other; i++) {
            EXPECT_OK(weft_trainer_step(&t, &got));
            EXPECT(got.loss == losses[i] &&
                       got.moe.pipeline.num_partitions == chosen.num_partitions &&
                       got.moe.pipeline.reuse == chosen.reuse,
                   "step %d: loss %.17g, not %.17g", i + 1, got.loss, losses[i]);
            EXPECT(i > 0 || (got.moe.choice && strstr(got.moe.choice, "(as this run chose)")),
                   "told %s", got.moe.choice);
        }
        weft_trainer_release(&t);
        weft_arena_release(&arena);
    }
}

static void check_profile(weft_comm *world, const char *folder)
{
    weft_trainer t = {0};
    weft_arena arena = {0};
    weft_status status = start(&t, world, &arena, "dp=2,binding=dp,ep=2", profiled);
    EXPECT(status == WEFT_OK, "%s", weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(world, status);
    weft_step_result result = run(&t, 100);
    weft_moe_pipeline now = weft_model_moe_pipeline(t.model);
    int64_t n = now.num_partitions, least = n, most = n;
    EXPECT(t.moe.reason[0] && !t.moe.profiling, "still measuring after %d steps", (int)t.step);
    EXPECT(now.num_partitions == t.moe.options.pipeline.num_partitions &&
               now.reuse == t.moe.options.pipeline.reuse && result.moe.pipeline.reuse == now.reuse,
           "what was chosen runs");
    EXPECT(t.moe.num_trials >= 2 * 4, "%d trials", t.moe.num_trials);
    EXPECT_OK(weft_comm_all_reduce_host(world, &least, 1, WEFT_I64, WEFT_REDUCE_MIN));
    EXPECT_OK(weft_comm_all_reduce_host(world, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    EXPECT(least == most, "ranks chose %d and %d", (int)least, (int)most);
    check_kept(world, &t, folder);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

/* Starts of exchanges take half as long as the experts: own rows first hide them. Chosen from the
 * costs, not where tokens are asked for; kept by a checkpoint, whose run goes on with the same
 * bits; and measured, after the numbers of partitions. */
static void check_peers(weft_comm *world, const char *path, const char *folder)
{
    weft_cluster cluster = cluster_of(1e6, 1e3);
    cluster.costs[WEFT_COST_ALL_TO_ALL_INSIDE].curve = weft_curve_linear(500, 1e6);
    if (weft_comm_rank(world) == 0)
        EXPECT_OK(weft_cluster_write(&cluster, path));
    EXPECT_OK(weft_comm_barrier(world));
    const struct {
        const char *more;
        bool by_peers;
    } cases[] = {
        {"", true},
        {", \"moe_partition_by\": \"tokens\"", false},
        {", \"moe_memory_reuse\": \"s1\"", false},
        {", \"moe_choice\": \"phases\"", false},
    };
    char open[400], kept[128];
    double losses[4];
    weft_step_result result;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_trainer t = {0};
        weft_arena arena = {0};
        snprintf(open, sizeof open, "\"moe_num_partitions\": 0, \"cluster\": \"%s\"%s", path,
                 cases[i].more);
        EXPECT_OK(start(&t, world, &arena, "dp=2,binding=dp,ep=2", open));
        EXPECT((t.moe.options.pipeline.peer_group == 1) == cases[i].by_peers, "%s: %s",
               cases[i].more, t.moe.reason);
        for (int s = 0; s < 4 && i == 0; s++) {
            EXPECT_OK(weft_trainer_step(&t, &result));
            losses[s] = result.loss;
            EXPECT(result.moe.pipeline.peer_group == 1, "step %d is not by peers", s);
            if (s == 0)
                EXPECT(strstr(result.moe.choice, "partitions by peers, 1 each: ") != NULL, "%s",
                       result.moe.choice);
            if (s == 1)
                EXPECT_OK(weft_trainer_save(&t, folder));
        }
        weft_trainer_release(&t);
        weft_arena_release(&arena);
    }
    snprintf(open, sizeof open, "\"moe_num_partitions\": 0, \"cluster\": \"%s\"", path);
    snprintf(kept, sizeof kept, "%s/step-2", folder);
    for (int other = 0; other < 2; other++) { /* as that run chose, or one partition */
        weft_trainer t = {0};
        weft_arena arena = {0};
        EXPECT_OK(start_from(&t, world, &arena, "dp=2,binding=dp,ep=2", other ? "" : open, kept));
        for (int s = 2; s < 4; s++) {
            EXPECT_OK(weft_trainer_step(&t, &result));
            EXPECT(other ? fabs(result.loss - losses[s]) <= 1e-5 * losses[s]
                         : result.loss == losses[s],
                   "step %d: loss %.17g, not %.17g", s, result.loss, losses[s]);
            EXPECT(result.moe.pipeline.peer_group == 1 - other, "peers %d",
                   result.moe.pipeline.peer_group);
        }
        EXPECT(other ||
                   strcmp(t.moe.reason, "partitions by peers, 1 each (as this run chose)") == 0,
               "told %s", t.moe.reason);
        weft_trainer_release(&t);
        weft_arena_release(&arena);
    }
    weft_trainer t = {0};
    weft_arena arena = {0};
    EXPECT_OK(start(&t, world, &arena, "dp=2,binding=dp,ep=2",
                    "\"moe_num_partitions\": 0, \"moe_choice\": \"profile\""));
    bool was_by_peers = false;
    for (int i = 0; i < 100 && t.moe.profiling; i++) {
        EXPECT_OK(weft_trainer_step(&t, &result));
        was_by_peers |= result.moe.pipeline.peer_group == 1;
    }
    EXPECT(was_by_peers && t.moe.num_tried == 1 && t.moe.best_us > 0 &&
               (t.moe.options.pipeline.peer_group == 1) == (t.moe.best_us == t.moe.peers_us[0]),
           "%d measured by peers, %s", t.moe.num_tried, t.moe.reason);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

/* Behind section "parallel". */
#define BEYOND "}, \"offload\": {\"experts\": \"host\""

/* Experts beyond device memory: n is chosen among partitions by experts, at most as many as a rank
 * has, by a price that knows of uploads; kept by a checkpoint; and measured. */
static void check_experts(weft_comm *world, const char *path, const char *folder)
{
    weft_cluster cluster = cluster_of(1, 128);
    char open[400], kept[128];
    weft_step_result result;
    cluster.hardware.figures[WEFT_FIGURE_MEMORY_BANDWIDTH] = 1e9;
    if (weft_comm_rank(world) == 0)
        EXPECT_OK(weft_cluster_write(&cluster, path));
    EXPECT_OK(weft_comm_barrier(world));
    snprintf(kept, sizeof kept, "%s/step-2", folder);
    snprintf(open, sizeof open, "\"moe_num_partitions\": 0, \"cluster\": \"%s\"" BEYOND, path);
    for (int again = 0; again < 2; again++) {
        weft_trainer t = {0};
        weft_arena arena = {0};
        EXPECT_OK(start_from(&t, world, &arena, "dp=2,binding=dp,ep=2", open, again ? kept : NULL));
        EXPECT(t.moe.options.pipeline.by_experts && t.moe.options.pipeline.num_partitions == 2,
               "%s", t.moe.reason);
        const char *told = again ? "2 partitions by experts, reuse none ("
                                 : "2 partitions by experts, reuse none: ";
        EXPECT(strncmp(t.moe.reason, told, strlen(told)) == 0 &&
                   !strstr(t.moe.reason, "as this run chose") == !again,
               "told %s", t.moe.reason);
        for (int s = 0; s < 2; s++) {
            EXPECT_OK(weft_trainer_step(&t, &result));
            EXPECT(result.moe.pipeline.by_experts, "step %d is not by experts", s);
        }
        if (!again)
            EXPECT_OK(weft_trainer_save(&t, folder));
        weft_trainer_release(&t);
        weft_arena_release(&arena);
    }
    weft_trainer t = {0};
    weft_arena arena = {0};
    EXPECT_OK(start(&t, world, &arena, "dp=2,binding=dp,ep=2",
                    "\"moe_num_partitions\": 0, \"moe_choice\": \"profile\"" BEYOND));
    int most = 0;
    for (int i = 0; i < 100 && t.moe.profiling; i++) {
        EXPECT_OK(weft_trainer_step(&t, &result));
        const weft_moe_pipeline *p = &result.moe.pipeline;
        EXPECT(p->by_experts == (p->num_partitions > 1), "%s", weft_moe_pipeline_text(p).text);
        most = p->num_partitions > most ? p->num_partitions : most;
    }
    EXPECT(!t.moe.profiling && most == 2, "measured up to %d: %s", most, t.moe.reason);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

/* Chunks are asked for: O1, which would be the cheapest here since it starts less often, cannot be
 * cut and is not chosen. */
static void check_chunks(const char *path)
{
    weft_arena arena = {0};
    weft_config config;
    weft_mesh mesh;
    weft_moe_selection chosen = {0};
    char text[1024];
    weft_cluster cluster = cluster_of(1e6, 1e9);
    int nodes[] = {0, 0, 1, 1};
    const weft_topology topology = {.world = 4, .num_nodes = 2, .node_of = nodes};
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++)
        cluster.costs[kind].curve = weft_curve_linear(1000, 1e6);
    EXPECT_OK(weft_cluster_write(&cluster, path));
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
             "\"seq_length\": 32, \"vocab_size\": 61, \"num_experts\": 4}, "
             "\"parallel\": {\"cluster\": \"%s\", \"moe_all_to_all_chunks\": 4}, "
             "\"data\": {\"mock_data\": true}}",
             path);
    weft_config_source source = {
        .file = "chunks", .text = text, .mesh = "tp=2,dp=2,binding=dp,ep=2,etp=2"};
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_config_mesh(&config, &source, 0, &mesh));
    weft_moe_nodes found;
    EXPECT_OK(weft_moe_find_nodes(&config, &mesh, &topology, &found));
    EXPECT_OK(weft_moe_selection_start(&config, &mesh, &found, &chosen));
    EXPECT(weft_exchange_max_chunks(chosen.options.form) >= 4 && chosen.options.num_chunks == 4,
           "%s in %d chunks", weft_exchange_text((int)chosen.options.form),
           chosen.options.num_chunks);
    weft_arena_release(&arena);
}

static void check_nothing_travels(weft_comm *world)
{
    weft_trainer t = {0};
    weft_arena arena = {0};
    EXPECT_OK(start(&t, world, &arena, "tp=2,binding=tp", "\"moe_num_partitions\": 4"));
    weft_step_result result = run(&t, 2);
    EXPECT(result.moe.pipeline.num_partitions == 0 && !result.moe.choice, "nothing is said");
    EXPECT(weft_model_moe_pipeline(t.model).num_partitions == 1, "synchronous");
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

int main(void)
{
    char path[96], profiled_runs[80], peers[80], experts[80];
    weft_comm *world = world_begin(2);
    weft_log_set_level(WEFT_LOG_WARN);
    world_make_folder(world);
    snprintf(path, sizeof path, "%s/cluster.json", world_folder);
    snprintf(profiled_runs, sizeof profiled_runs, "%s/profiled", world_folder);
    snprintf(peers, sizeof peers, "%s/peers", world_folder);
    snprintf(experts, sizeof experts, "%s/experts", world_folder);
    check_model(world, path, 1, 128, true);    /* both worth hiding */
    check_model(world, path, 1e6, 1e9, false); /* only latencies */
    check_profile(world, profiled_runs);
    check_peers(world, path, peers);
    check_experts(world, path, experts);
    check_nothing_travels(world);
    if (weft_comm_rank(world) == 0)
        check_chunks(path);
    return world_finish(world);
}
