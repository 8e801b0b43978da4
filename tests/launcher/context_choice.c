/* parallel.cp_comm_type "auto" and parallel.tp_comm_overlap: all ranks run the form and the chunks
 * that the cluster's price says, the checkpoint holds them, and a run that goes on keeps them,
 * whatever the cluster then says. Runs with 4 ranks. */
#include <math.h>
#include <stdio.h>

#include "core/log.h"
#include "launcher/training/trainer.h"
#include "tests/world.h"

/* Two nodes of two; FLOPs and bytes a microsecond, and the latency of a message. */
static void write_cluster(weft_comm *world, const char *path, double flops, double inside,
                          double between, double latency_us)
{
    weft_cluster c = {.name = "made up", .num_nodes = 2, .ranks_per_node = 2};
    c.interference = weft_interference_none();
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++) {
        const bool computes = strcmp(weft_cost_unit((weft_cost_kind)kind), "FLOPs") == 0;
        const bool is_inside = kind == WEFT_COST_ALL_TO_ALL_INSIDE ||
                               kind == WEFT_COST_MESSAGE_INSIDE || kind == WEFT_COST_ALL_GATHER ||
                               kind == WEFT_COST_REDUCE_SCATTER || kind == WEFT_COST_MEMORY ||
                               kind == WEFT_COST_COPY;
        const double rate = computes ? flops : is_inside ? inside : between;
        c.costs[kind] = (weft_cost){.curve = weft_curve_linear(computes ? 0 : latency_us, rate),
                                    .peak = rate * 1e6};
    }
    if (weft_comm_rank(world) == 0)
        EXPECT_OK(weft_cluster_write(&c, path));
    EXPECT_OK(weft_comm_barrier(world));
}

static void start(weft_trainer *t, weft_comm *world, weft_arena *arena, const char *path,
                  const char *mesh, const char *from)
{
    weft_config config, run;
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
             "\"seq_length\": 32, \"vocab_size\": 61}, "
             "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, "
             "\"train_iters\": 100, \"lr\": 1e-3, \"seed\": 5}, "
             "\"parallel\": {\"cp_comm_type\": \"auto\", \"tp_comm_overlap\": true, "
             "\"cluster\": \"%s\"}, "
             "\"data\": {\"mock_data\": true}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, "
             "\"log\": {\"trace_step\": 0, \"level\": \"warn\"}}",
             path);
    weft_config_source source = {.file = "choice", .text = text, .mesh = mesh};
    if (from) {
        weft_config_source had = {0};
        EXPECT_OK(weft_arena_printf(arena, &had.file, "%s/config.json", from));
        EXPECT_OK(weft_config_load(&had, arena, &run));
        source.run = &run;
    }
    EXPECT_OK(weft_config_load(&source, arena, &config));
    world_must(world, weft_trainer_create(t, &config, &source, world, arena), mesh);
    world_must(world, weft_trainer_start(t, from), mesh);
}

static void expect_form(const weft_trainer *t, int form, int inner)
{
    const weft_mesh *mesh = &t->groups.mesh;
    EXPECT(mesh->cp_comm_type == form && mesh->cp_inner == inner, "%s, %d: %s",
           weft_context_form_text(mesh->cp_comm_type), mesh->cp_inner, t->mesh_choice.reason);
}

/* Latencies alone make the form with the fewest of them best; a slow network between fast nodes the
 * one that sends least over it; slow computation the ring, which hides all and copies little. */
static void check_forms(weft_comm *world, const char *path)
{
    static const struct {
        double flops, inside, between, latency_us;
        int form, inner;
    } rows[] = {
        {1e9, 1e6, 1e6, 100, WEFT_CONTEXT_ALL_GATHER, 0},
        {1e9, 1e6, 1, 0, WEFT_CONTEXT_A2A, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_trainer t = {0};
        weft_arena arena = {0};
        weft_step_result result;
        write_cluster(world, path, rows[i].flops, rows[i].inside, rows[i].between,
                      rows[i].latency_us);
        start(&t, world, &arena, path, "cp=4", NULL);
        expect_form(&t, rows[i].form, rows[i].inner);
        EXPECT_OK(weft_trainer_step(&t, &result));
        EXPECT(isfinite(result.loss), "a loss of %g", result.loss);
        weft_trainer_release(&t);
        weft_arena_release(&arena);
    }
}

/* Goes on with the same bits where the cluster's file now says something else. */
static void check_kept(weft_comm *world, const char *path, const char *folder)
{
    enum { STEPS = 2 };
    weft_trainer t = {0}, again = {0};
    weft_arena arena = {0};
    weft_step_result wanted, got;
    double losses[STEPS];
    char from[128];
    write_cluster(world, path, 1e9, 1e6, 1, 0);
    start(&t, world, &arena, path, "cp=4", NULL);
    const weft_mesh chosen = t.groups.mesh;
    EXPECT_OK(weft_trainer_step(&t, &wanted));
    EXPECT_OK(weft_trainer_save(&t, folder));
    for (int i = 0; i < STEPS; i++) {
        EXPECT_OK(weft_trainer_step(&t, &wanted));
        losses[i] = wanted.loss;
    }
    weft_trainer_release(&t);
    write_cluster(world, path, 1e9, 1e6, 1e6, 100);
    snprintf(from, sizeof from, "%s/step-1", folder);
    start(&again, world, &arena, path, "cp=4", from);
    expect_form(&again, chosen.cp_comm_type, chosen.cp_inner);
    EXPECT(strstr(again.mesh_choice.reason, "as this run chose"), "%s", again.mesh_choice.reason);
    for (int i = 0; i < STEPS; i++) {
        EXPECT_OK(weft_trainer_step(&again, &got));
        EXPECT(got.loss == losses[i], "step %d: %.17g, not %.17g", i, got.loss, losses[i]);
    }
    weft_trainer_release(&again);
    start(&again, world, &arena, path, "cp=2,dp=2", from); /* another mesh: anew */
    EXPECT(again.mesh_choice.has_form && !strstr(again.mesh_choice.reason, "as this run chose"),
           "%s", again.mesh_choice.reason);
    weft_trainer_release(&again);
    weft_arena_release(&arena);
}

static void expect_chunks(const weft_trainer *t, bool cut)
{
    const weft_mesh *mesh = &t->groups.mesh;
    EXPECT((mesh->mlp_chunks > 1) == cut && (cut || mesh->attention_chunks == 1),
           "%d and %d chunks", mesh->attention_chunks, mesh->mlp_chunks);
}

/* Where messages begin late, products stay whole; where bytes take long, they are cut, but for
 * attention's where copies into tokens' order take as long. A run that goes on has them cut alike.
 */
static void check_chunks(weft_comm *world, const char *path, const char *folder)
{
    const char *mesh = "tp=4,sp=1";
    char from[128];
    weft_trainer t = {0};
    weft_arena arena = {0};
    weft_step_result wanted, got;
    write_cluster(world, path, 1e9, 1e6, 1e6, 1000);
    start(&t, world, &arena, path, mesh, NULL);
    expect_chunks(&t, false);
    weft_trainer_release(&t);
    write_cluster(world, path, 1e4, 1e2, 1e2, 0);
    start(&t, world, &arena, path, mesh, NULL);
    expect_chunks(&t, true);
    const weft_mesh chosen = t.groups.mesh;
    EXPECT_OK(weft_trainer_step(&t, &wanted));
    EXPECT_OK(weft_trainer_save(&t, folder));
    EXPECT_OK(weft_trainer_step(&t, &wanted));
    weft_trainer_release(&t);
    write_cluster(world, path, 1e9, 1e6, 1e6, 1000);
    snprintf(from, sizeof from, "%s/step-1", folder);
    start(&t, world, &arena, path, mesh, from);
    EXPECT(t.groups.mesh.attention_chunks == chosen.attention_chunks &&
               t.groups.mesh.mlp_chunks == chosen.mlp_chunks,
           "%d and %d chunks", t.groups.mesh.attention_chunks, t.groups.mesh.mlp_chunks);
    EXPECT_OK(weft_trainer_step(&t, &got));
    EXPECT(got.loss == wanted.loss && got.grad_norm == wanted.grad_norm, "%.17g, not %.17g",
           got.loss, wanted.loss);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

int main(void)
{
    char path[96];
    weft_comm *world = world_begin(4);
    weft_log_set_level(WEFT_LOG_WARN);
    world_make_folder(world);
    snprintf(path, sizeof path, "%s/cluster.json", world_folder);
    check_forms(world, path);
    check_kept(world, path, world_folder);
    check_chunks(world, path, world_folder);
    return world_finish(world);
}
