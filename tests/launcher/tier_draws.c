/* Experts beyond device memory in drawn combinations of degree, order, slots, kept experts,
 * partitions, optimizer, places of the host, threads, precision, recomputation, mesh and sharding,
 * over 20 steps beside experts on the device of the same mesh: with one micro-batch a rank losses,
 * gradient norms and every dataset of the checkpoint are the same to the bit, with more to 1e-5.
 * Each goes on from the other's checkpoint.
 *
 * Runs under mpirun with 4 ranks. WEFT_PROPERTY_DRAWS=40: so many; WEFT_PROPERTY_SEED=7: others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum {
    NUM_DRAWS = 16,
    ALL_DRAWS = 40,
    NUM_STEPS = 20,
    MORE_STEPS = 2,
    MAX_VALUES = 6,
    TEXT_BYTES = 512
};

/* replicas: how many take a sequence each in a micro-batch; least: micro-batches that it needs. */
static const struct {
    const char *mesh;
    int world, replicas, least;
} meshes[] = {
    {"tp=1", 1, 1, 1},
    {"tp=2,binding=tp", 2, 1, 1},
    {"tp=2,binding=tp,sp=1", 2, 1, 1},
    {"dp=2,ep=2,binding=dp", 2, 2, 1},
    {"dp=2,ep=1,binding=dp", 2, 2, 1},
    {"pp=2", 2, 1, 1},
    {"pp=2,vp=2", 2, 1, 2},
    {"cp=2", 2, 1, 1},
    {"dp=4,ep=2,binding=dp", 4, 4, 1},
    {"dp=4,ep=4,binding=dp", 4, 4, 1},
    {"tp=2,dp=2,ep=2,etp=2,binding=dp", 4, 2, 1},
    {"tp=2,dp=2,binding=tp", 4, 2, 1},
    {"pp=2,dp=2,ep=2,binding=dp", 4, 2, 1},
    {"pp=2,dp=2,ep=1,binding=dp", 4, 2, 1},
    {"pp=2,tp=2,binding=tp", 4, 1, 1},
    {"cp=2,dp=2,ep=2,binding=dp", 4, 2, 1},
};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

/* What is drawn for experts beyond device memory: a value of each row. in_file: of a file alone. */
typedef struct option {
    bool in_file;
    const char *values[MAX_VALUES];
} option;
static const option options[] = {
    {false, {"offload.experts=host", "offload.experts=file"}},
    {false, {"offload.order=expert", "offload.order=demand", "offload.order=layer"}},
    {false, {"offload.slots=2", "offload.slots=3", "offload.slots=5", "offload.slots=40"}},
    {false, {"offload.kept=0", "offload.kept=0.25", "offload.kept=0.5", "offload.kept=1"}},
    {false, {"offload.optimizer=auto", "offload.optimizer=after"}},
    {false, {"offload.num_threads=1", "offload.num_threads=2"}},
    {true, {"offload.eviction=program", "offload.eviction=lru"}},
    {true, {"offload.cached=0", "offload.cached=0.25", "offload.cached=0.6"}},
    {true, {"offload.io=auto", "offload.io=threads"}},
};
/* Partitions by experts, of which a rank has enough for the most of them. */
enum { MOST_PARTITIONS = 4 };
static const char *const partitions[MOST_PARTITIONS] = {
    "parallel.moe_num_partitions=1", "parallel.moe_num_partitions=2",
    "parallel.moe_num_partitions=3", "parallel.moe_num_partitions=4"};
enum { NUM_OPTIONS = sizeof options / sizeof *options };

/* Of the training, with and without. */
static const char *const trains[][MAX_VALUES] = {
    {", \"precision\": \"fp32\"", ", \"precision\": \"bf16\"",
     ", \"precision\": \"bf16\", \"split_master\": false"},
    {"", ", \"clip_grad\": 0"},
    {"", "", ", \"recompute_granularity\": \"full\"",
     ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"moe\"]"},
};
enum { NUM_TRAINS = sizeof trains / sizeof *trains };

/* Of the model: more experts than tokens choose; tokens that are dropped. */
static const char *const models[][MAX_VALUES] = {
    {"4", "8", "12", "24"},
    {"\"moe_router_topk\": 1", "\"moe_router_topk\": 2"},
    {"", ", \"swiglu\": true, \"add_expert_bias\": true",
     ", \"moe_shared_expert_intermediate_size\": 16"},
    {"", ", \"moe_layer_freq\": 2", ", \"hidden_dropout\": 0.1"},
    {"", ", \"moe_expert_capacity_factor\": 1.0", ", \"moe_aux_loss_coeff\": 0.02"},
};
enum { NUM_MODELS = sizeof models / sizeof *models };

typedef struct draw {
    int mesh, num_micro_batches;
    char model[TEXT_BYTES], train[TEXT_BYTES], with_mesh[TEXT_BYTES];
    const char *set[NUM_OPTIONS + 3];
    int num_partitions;
} draw;

static uint64_t random_state;

static int next_random(int bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)bound);
}

static const char *one_of(const char *const values[MAX_VALUES])
{
    int count = 0;
    while (count < MAX_VALUES && values[count])
        count++;
    return values[next_random(count)];
}

/* How often each value of `options` was drawn. */
static int num_drawn[NUM_OPTIONS][MAX_VALUES];

static void count_value(int row, const char *value)
{
    for (int i = 0; i < MAX_VALUES; i++)
        num_drawn[row][i] += options[row].values[i] == value;
}

static void draw_model(draw *d)
{
    const char *drawn[NUM_MODELS], *ep = strstr(meshes[d->mesh].mesh, "ep=");
    for (int i = 0; i < NUM_MODELS; i++)
        drawn[i] = one_of(models[i]);
    const int over = ep ? atoi(ep + 3) : 1, local = atoi(drawn[0]) / over;
    const int most = local < MOST_PARTITIONS ? local : MOST_PARTITIONS;
    const int least = over > 1 && most > 1 ? 2 : 1; /* where they are seen */
    d->num_partitions = least + next_random(most - least + 1);
    snprintf(d->model, sizeof d->model, MESH_SIZES(4) ", \"num_experts\": %s, %s%s%s%s}", drawn[0],
             drawn[1], drawn[2], drawn[3], drawn[4]);
}

static void draw_all(int number, draw *d)
{
    char zero[16] = "";
    int count = 0;
    d->mesh = number < NUM_MESHES ? number * 7 % NUM_MESHES : next_random(NUM_MESHES);
    const int more = next_random(3) == 0 ? 1 + next_random(3) : 0;
    d->num_micro_batches = meshes[d->mesh].least + more;
    draw_model(d);
    snprintf(d->train, sizeof d->train, "%s%s%s", one_of(trains[0]), one_of(trains[1]),
             one_of(trains[2]));
    if (meshes[d->mesh].replicas > 1)
        snprintf(zero, sizeof zero, ",zero=%d", next_random(4));
    snprintf(d->with_mesh, sizeof d->with_mesh, "%s%s", meshes[d->mesh].mesh, zero);
    bool in_file = false;
    for (int i = 0; i < NUM_OPTIONS; i++) {
        const char *value = one_of(options[i].values);
        if (i == 0)
            in_file = strcmp(value, "offload.experts=file") == 0;
        if (options[i].in_file && !in_file)
            continue;
        d->set[count++] = value;
        count_value(i, value);
    }
    if (d->num_partitions > 1) {
        d->set[count++] = partitions[d->num_partitions - 1];
        d->set[count++] = "parallel.moe_partition_by=experts";
    }
    d->set[count] = NULL;
}

/* from: the run to go on from; NULL: none. */
static void train(weft_comm *part, const draw *d, bool beyond, const char *name, const char *from,
                  weft_step_result *out)
{
    mesh_training what = {.name = name,
                          .model = d->model,
                          .mesh = d->with_mesh,
                          .train = d->train,
                          .batch = d->num_micro_batches * meshes[d->mesh].replicas,
                          .steps = from ? MORE_STEPS : NUM_STEPS,
                          .from = from,
                          .from_step = NUM_STEPS,
                          .saves = !from};
    if (beyond)
        mesh_set(&what, d->set, NUM_OPTIONS + 3);
    mesh_run(part, &what, out);
}

static double distance(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / fabs(b);
}

static void say(const draw *d, int number, double worst[2], const weights_difference *state,
                double seconds)
{
    printf("%2d %s, %d micro-batches%s:", number, d->with_mesh, d->num_micro_batches, d->train);
    for (int i = 0; d->set[i]; i++)
        printf(" %s", strchr(d->set[i], '.') + 1);
    printf("; losses %.1e, norms %.1e, datasets %.1e (%d of %d differ), %.1f s\n", worst[0],
           worst[1], state->worst, state->num_unequal, state->count, seconds);
    fflush(stdout);
}

/* false: other bits where only rounding may differ, of weights in 16 bits. */
static bool is_same(weft_comm *part, const draw *d, int number)
{
    weft_step_result results[2][NUM_STEPS], more[2][MORE_STEPS];
    char name[2][32], last[2][160];
    const bool adds = d->num_micro_batches > 1;
    const double bound = adds ? 1e-5 : 0, start = weft_now_us();
    double worst[2] = {0};
    for (int beyond = 0; beyond < 2; beyond++) {
        snprintf(name[beyond], sizeof name[beyond], "%d-%d", number, beyond);
        snprintf(last[beyond], sizeof last[beyond], "%s/%s/step-%d", world_folder, name[beyond],
                 NUM_STEPS);
        train(part, d, beyond, name[beyond], NULL, results[beyond]);
    }
    for (int beyond = 0; beyond < 2; beyond++)
        train(part, d, beyond, "more", name[!beyond], more[beyond]);
    if (weft_comm_rank(part) > 0)
        return true;
    for (int s = 0; s < NUM_STEPS; s++) {
        const weft_step_result *with = &results[1][s], *without = &results[0][s];
        worst[0] = fmax(worst[0], distance(with->loss, without->loss));
        worst[1] = fmax(worst[1], distance(with->grad_norm, without->grad_norm));
        EXPECT(with->tier.on && !without->tier.on, "draw %d: experts are not elsewhere", number);
        EXPECT(with->dropped_tokens == without->dropped_tokens,
               "draw %d, step %d: %g tokens dropped, not %g", number, s + 1, with->dropped_tokens,
               without->dropped_tokens);
    }
    const weights_difference state = weights_compare(last[1], last[0], "");
    say(d, number, worst, &state, (weft_now_us() - start) / 1e6);
    if (adds && strstr(d->train, "bf16") &&
        (fmax(worst[0], worst[1]) > bound || state.worst >= 1e-4))
        return false;
    EXPECT(worst[0] <= bound && worst[1] <= bound, "draw %d: losses differ by %g, norms by %g",
           number, worst[0], worst[1]);
    EXPECT(state.count > 20 && (adds ? state.worst < 1e-4 : state.num_unequal == 0),
           "draw %d: %d of %d datasets differ, %s most (%g)", number, state.num_unequal,
           state.count, state.where, state.worst);
    mesh_compare(more[1], more[0], MORE_STEPS, bound, "draw %d, from the other's checkpoint",
                 number);
    return true;
}

/* With several micro-batches sums are taken in another order. A last bit of one, 1e-8, turns the
 * rounding of a bf16 weight now and then, and from there on losses differ by 1e-4. Then the same
 * draw in fp32 has to hold. */
static void check(weft_comm *part, const draw *d, int number)
{
    int64_t again = !is_same(part, d, number);
    EXPECT_OK(weft_comm_all_reduce_host(part, &again, 1, WEFT_I64, WEFT_REDUCE_MAX));
    if (!again)
        return;
    draw in_fp32 = *d;
    memcpy(strstr(in_fp32.train, "bf16"), "fp32", 4);
    EXPECT(is_same(part, &in_fp32, number), "draw %d in fp32", number);
}

/* Enough draws draw everything. */
static void check_drawn(void)
{
    for (int i = 0; i < NUM_OPTIONS; i++)
        for (int k = 0; k < MAX_VALUES && options[i].values[k]; k++)
            EXPECT(num_drawn[i][k] > 0, "%s is not drawn", options[i].values[k]);
}

int main(void)
{
    const char *seed = getenv("WEFT_PROPERTY_SEED"), *draws = getenv("WEFT_PROPERTY_DRAWS");
    const int count = draws ? atoi(draws) : NUM_DRAWS;
    weft_comm *world = world_begin(4);
    const int rank = weft_comm_rank(world);
    weft_comm_set_check(true); /* as the ranks that train */
    weft_log_set_level(WEFT_LOG_WARN);
    random_state = seed ? strtoull(seed, NULL, 10) : 16;
    if (rank == 0)
        printf("seed %llu\n", (unsigned long long)random_state);
    world_make_folder(world);
    for (int i = 0; i < count; i++) {
        draw d;
        draw_all(i, &d);
        weft_comm *part = world_part(world, meshes[d.mesh].world);
        if (part)
            check(part, &d, i);
        weft_comm_destroy(part);
        EXPECT_OK(weft_comm_barrier(world));
        if (rank == 0)
            expect_shell("rm -rf %s/*", world_folder);
    }
    if (count >= ALL_DRAWS)
        check_drawn();
    return world_finish(world);
}
