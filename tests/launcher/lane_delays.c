/* Every schedule with lanes that are late at random, as of busy devices: two pipelines of two
 * stages whose tokens travel to 16 experts, most of which have no rows. Nothing hangs, and losses
 * and gradient norms have the bits that they have in time.
 *
 * Runs under mpirun with 4 ranks: test_lane_delays [SECONDS [SCHEDULE]], by default 60 each. The
 * linker puts the functions below before the library's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/device.h>

#include "core/clock.h"
#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { NUM_STEPS = 2, BATCH = 12, ONE_IN = 12, MOST_US = 400 };

static _Atomic int is_late; /* lanes are */
static uint64_t state;

static uint64_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static weft_status sleep_on(const void *args)
{
    const struct timespec delay = {.tv_nsec = *(const long *)args};
    nanosleep(&delay, NULL);
    return WEFT_OK;
}

weft_status __real_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes);
weft_status __wrap_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes);

weft_status __wrap_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes)
{
    if (is_late && draw() % ONE_IN == 0) {
        const long ns = 1000 * (long)(draw() % MOST_US);
        WEFT_TRY(__real_weft_lane_submit(lane, "delay", sleep_on, &ns, sizeof ns));
    }
    WEFT_TRY(__real_weft_lane_submit(lane, label, function, args, num_bytes));
    return WEFT_OK;
}

#define MODEL                                                                                      \
    "{\"num_layers\": 4, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, "                          \
    "\"init_method_std\": 0.1, \"num_experts\": 16, \"moe_router_topk\": 1, "                      \
    "\"moe_aux_loss_coeff\": 0.02, \"moe_shared_expert_intermediate_size\": 16, "                  \
    "\"hidden_dropout\": 0.1}"
#define MESH "pp=2,dp=2,binding=dp,ep=2,schedule="
#define PAIRS ", \"overlap_moe_expert_parallel_comm\": true"

static const struct {
    const char *mesh, *parallel;
} rows[] = {
    {MESH "gpipe", NULL},
    {MESH "1f1b", NULL},
    {MESH "interleaved,vp=2", NULL},
    {MESH "zb_h1", NULL},
    {MESH "zbv", NULL},
    {MESH "v_half", NULL},
    {MESH "v_min", NULL},
    {MESH "dualpipev", NULL},
    {MESH "auto", NULL},
    {MESH "1f1b,zero=3", PAIRS},
    {MESH "interleaved,vp=2", PAIRS},
    {MESH "dualpipev", PAIRS},
};

/* Of the slowest rank. */
static double seconds_since(weft_comm *world, double start_us)
{
    double seconds = (weft_now_us() - start_us) / 1e6;
    EXPECT_OK(weft_comm_all_reduce_host(world, &seconds, 1, WEFT_F64, WEFT_REDUCE_MAX));
    return seconds;
}

static void check(weft_comm *world, size_t row, double seconds)
{
    weft_step_result in_time[NUM_STEPS], late[NUM_STEPS];
    const mesh_training what = {.name = "lane delays",
                                .model = MODEL,
                                .mesh = rows[row].mesh,
                                .parallel = rows[row].parallel,
                                .train = "",
                                .batch = BATCH,
                                .steps = NUM_STEPS};
    const double start_us = weft_now_us();
    int runs = 0;
    mesh_run(world, &what, in_time);
    for (is_late = 1; runs == 0 || seconds_since(world, start_us) < seconds; runs++) {
        state = 1000 * (uint64_t)runs + (uint64_t)weft_comm_rank(world);
        mesh_run(world, &what, late);
        mesh_compare(late, in_time, NUM_STEPS, 0, "%s%s: run %d", rows[row].mesh,
                     rows[row].parallel ? ", pairs" : "", runs);
    }
    is_late = 0;
    if (weft_comm_rank(world) == 0)
        printf("%s%s: %d runs\n", rows[row].mesh, rows[row].parallel ? ", pairs" : "", runs);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 60;
    weft_comm *world = world_begin(4);
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        if (argc < 3 || strstr(rows[row].mesh, argv[2]))
            check(world, row, seconds);
    return world_finish(world);
}
