/* An MoE layer whose tokens travel gives the single rank's output and gradients whatever the
 * partitions, the memory reuse, the split and the form of the all-to-all; and the forms give the
 * same bits. Runs with 4 ranks. */
#include <stdlib.h>

#include "tests/world.h"
#include "tests/layers/moe_case.h"

#define SHAPE "\"hidden_size\": 20, \"seq_length\": 8, \"num_experts\": 4, "
#define LOSSES ", \"moe_aux_loss_coeff\": 0.05, \"moe_z_loss_coeff\": 0.01"

static const moe_case cases[] = {
    {"top-1",
     SHAPE "\"ffn_hidden_size\": 24, \"moe_router_topk\": 1, "
           "\"moe_router_pre_softmax\": true" LOSSES,
     3, MOE_SPREAD, MOE_TIGHT},
    {"top-2 swiglu", SHAPE "\"ffn_hidden_size\": 16, \"swiglu\": true" LOSSES, 2, MOE_SPREAD,
     MOE_TIGHT},
    {"last starved", SHAPE "\"ffn_hidden_size\": 24, \"swiglu\": true" LOSSES, 3, MOE_LAST_STARVED,
     MOE_TIGHT},
    {"some room", SHAPE "\"ffn_hidden_size\": 16, \"moe_expert_capacity_factor\": 0.8" LOSSES, 3,
     MOE_SPREAD, MOE_TIGHT},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static const struct {
    int ranks;
    const char *mesh;
    bool sharded;     /* experts, over TP */
    bool sliced;      /* each TP rank routes its own rows, and drops among them */
    int experts_over; /* ranks that have the four experts */
} meshes[] = {
    {2, "dp=2,binding=dp,ep=2", false, false, 2},
    {4, "dp=4,binding=dp,ep=4", false, false, 4},
    {4, "tp=2,dp=2,binding=dp,ep=4,sp=1", false, true, 4},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2", true, false, 2},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", true, false, 2},
};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

static int num_runs;
static double worst;

static void run(weft_comm *part, int mesh, int form)
{
    if (!part)
        return;
    /* Not every case with everything: they take turns. */
    const moe_case *c = &cases[(num_runs++ + form) % (NUM_CASES - meshes[mesh].sliced)];
    double error = moe_case_check_mesh(c, part, meshes[mesh].mesh);
    worst = error > worst ? error : worst;
    EXPECT(error <= 5e-6,
           "%s on %s: n %d, reuse %s, peers %d, experts %d, form %s in %d chunks: %.3g", c->name,
           meshes[mesh].mesh, harness_moe.pipeline.num_partitions,
           weft_reuse_text((int)harness_moe.pipeline.reuse), harness_moe.pipeline.peer_group,
           harness_moe.pipeline.by_experts, weft_exchange_text((int)harness_moe.form),
           harness_moe.num_chunks, error);
}

static void check_pipelines(weft_comm *part, int mesh)
{
    static const int partitions[] = {1, 2, 3, 4, 8, 30};
    for (int i = 0; i < 6; i++)
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
            /* Two and three with everything; of others every second strategy, by turns. */
            if (i != 1 && i != 2 && (reuse + mesh) % 2)
                continue;
            harness_moe = (weft_moe_options){
                .pipeline = {.num_partitions = partitions[i], .reuse = (weft_reuse)reuse}};
            if (meshes[mesh].sharded)
                harness_moe.form = WEFT_EXCHANGE_DIRECT;
            run(part, mesh, i);
        }
    for (int n = 2; n <= 4 / meshes[mesh].experts_over; n++)
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
            harness_moe = (weft_moe_options){
                .pipeline = {.num_partitions = n, .reuse = (weft_reuse)reuse, .by_experts = 1}};
            if (meshes[mesh].sharded)
                harness_moe.form = WEFT_EXCHANGE_DIRECT;
            run(part, mesh, n);
        }
    for (int i = 0; i < 2 * NUM_CASES && !meshes[mesh].sharded; i++) {
        harness_moe =
            (weft_moe_options){.pipeline = weft_moe_by_peers(meshes[mesh].ranks, 1 + i % 2)};
        run(part, mesh, i / 2);
    }
}

static void check_forms(weft_comm *part, int mesh)
{
    static const weft_moe_pipeline pipelines[] = {{.num_partitions = 1},
                                                  {.num_partitions = 3, .reuse = WEFT_REUSE_S4}};
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++)
        for (int chunks = 0; chunks < 4; chunks++)
            for (int i = 0; i < 2; i++) {
                bool whole = form <= WEFT_EXCHANGE_O1;
                if (whole && chunks > 1)
                    continue;
                harness_moe = (weft_moe_options){.pipeline = pipelines[i],
                                                 .form = (weft_exchange_form)form,
                                                 .num_chunks = chunks};
                run(part, mesh, 0);
            }
}

/* One pass on the mesh; y and dx are the caller's to free. */
static void one_pass(const moe_case *c, weft_comm *world, const char *mesh, float **y, float **dx,
                     size_t *count)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    char text[1024];
    rig r;
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 7, %s}}",
             c->json);
    EXPECT_OK(harness_options(text, &arena, &options));
    EXPECT_OK(rig_create(&r, world, &options, mesh, c->batch, WEFT_F32, weft_moe_create));
    size_t whole = r.rows_full * r.hidden;
    float *x = malloc(2 * whole * sizeof *x);
    uint64_t replica = (uint64_t)r.h.groups.coords.at[WEFT_AXIS_DP];
    rig_random(x, whole, 1, 11 + replica);
    rig_random(x + whole, whole, 1, 31 + replica);
    EXPECT_OK(rig_pass(&r, x, x + whole, true));
    *count = r.rows * r.hidden;
    *y = malloc(*count * sizeof **y);
    *dx = malloc(*count * sizeof **dx);
    memcpy(*y, r.y, *count * sizeof **y);
    memcpy(*dx, r.dx, *count * sizeof **dx);
    free(x);
    rig_release(&r);
    weft_arena_release(&arena);
}

/* Moving rows in another way changes no bit, nor does computing experts in runs. */
static void check_bits(weft_comm *world)
{
    const char *mesh = meshes[3].mesh;
    float *y, *dx, *other_y, *other_dx;
    size_t count, other_count;
    harness_moe = (weft_moe_options){0};
    one_pass(&cases[1], world, mesh, &y, &dx, &count);
    for (int form = 1; form <= WEFT_NUM_EXCHANGES; form++) {
        const bool in_runs = form == WEFT_NUM_EXCHANGES;
        harness_moe = (weft_moe_options){
            .form = in_runs ? WEFT_EXCHANGE_DIRECT : (weft_exchange_form)form,
            .num_chunks = form >= WEFT_EXCHANGE_O2 ? 3 : 1,
        };
        if (in_runs)
            harness_moe.pipeline = (weft_moe_pipeline){.num_partitions = 2, .by_experts = 1};
        one_pass(&cases[1], world, mesh, &other_y, &other_dx, &other_count);
        EXPECT(count == other_count && memcmp(y, other_y, count * sizeof *y) == 0 &&
                   memcmp(dx, other_dx, count * sizeof *dx) == 0,
               "%s differs from the baseline", in_runs ? "runs" : weft_exchange_text(form));
        free(other_y);
        free(other_dx);
    }
    free(y);
    free(dx);
}

int main(void)
{
    weft_comm *world = world_begin(4);
    int rank = weft_comm_rank(world);
    for (int m = 0; m < NUM_MESHES; m++) {
        weft_comm *part = world_part(world, meshes[m].ranks);
        num_runs = 0;
        worst = 0;
        check_pipelines(part, m);
        if (meshes[m].sharded)
            check_forms(part, m);
        if (rank == 0)
            printf("%-40s %d runs, worst error %.1e\n", meshes[m].mesh, num_runs, worst);
        weft_comm_destroy(part);
    }
    check_bits(world);
    EXPECT_OK(weft_comm_barrier(world));
    weft_comm_destroy(world);
    int code = moe_case_finish();
    int own = expect_finish();
    return code ? code : own;
}
