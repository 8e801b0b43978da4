/* Lanes beside computing, each in turn so slow that the others run far ahead: experts in host
 * memory train with the bits that they have on the device, in every order, stepped at once,
 * deferred and after the backward, with kept experts, replicas, several micro-batches and
 * evaluations amid steps; likewise where one rank's experts compute on the other, and lanes of one
 * rank alone are slow. A task that does not wait for what it needs finds it missing, or
 * overwrites what is needed.
 *
 * Runs under mpirun with 2 ranks: test_tier_slow [device.kind=cuda]. The linker puts the functions
 * below before the library's. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <weft/device.h>

#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { NUM_STEPS = 3, DELAY_US = 150, LONG_DELAY_US = 12000, MAX_SET = 5 };

/* The name of the lane whose copies and functions are slow; NULL: none. On one rank; -1: all. */
static const char *slow;
static int slow_rank, own_rank;
static _Atomic int num_delays;
static long delay_us;

static weft_status sleep_on(const void *args)
{
    const struct timespec delay = {.tv_nsec = 1000 * *(const long *)args};
    nanosleep(&delay, NULL);
    return WEFT_OK;
}

weft_status __real_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes);
weft_status __wrap_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes);
weft_status __real_weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes);
weft_status __wrap_weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes);

static weft_status delay(weft_lane *lane)
{
    if (!slow || strcmp(weft_lane_name(lane), slow) != 0 ||
        (slow_rank >= 0 && slow_rank != own_rank))
        return WEFT_OK;
    num_delays++;
    return __real_weft_lane_submit(lane, "delay", sleep_on, &delay_us, sizeof delay_us);
}

weft_status __wrap_weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                                    const void *args, size_t num_bytes)
{
    WEFT_TRY(delay(lane));
    WEFT_TRY(__real_weft_lane_submit(lane, label, function, args, num_bytes));
    return WEFT_OK;
}

weft_status __wrap_weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    WEFT_TRY(delay(lane));
    WEFT_TRY(__real_weft_lane_copy(lane, to, from, bytes));
    return WEFT_OK;
}

#define CPU "device.kind=cpu"
#define MODEL                                                                                      \
    "{\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 37, "                         \
    "\"init_method_std\": 0.1, \"num_experts\": 5, \"moe_router_topk\": 2}"
#define NO_CLIP "train.clip_grad=0"
#define MANY "model.num_experts=24" /* some without rows */
#define FROM_FILE "offload.experts=file"
#define KEPT "offload.kept=0.4"
#define ORDER(name) "offload.order=" name
#define PLACED "dp=2,ep=2,binding=dp"
#define BALANCED "offload.placement=balanced", "model.num_experts=6"
#define AFTER "offload.optimizer=after"
#define STATE "offload.optimizer_state=host" /* of all but experts, slowed or not */

typedef struct slow_case {
    int world, batch;
    const char *mesh, *set[MAX_SET];
} slow_case;

static const slow_case cases[] = {
    {1, 1, "tp=1", {"offload.slots=2"}},
    {1, 1, "tp=1", {NO_CLIP, KEPT}},
    {1, 1, "tp=1", {KEPT}},
    {1, 1, "tp=1", {NO_CLIP, ORDER("demand")}},
    {1, 1, "tp=1", {ORDER("layer"), AFTER}},
    {1, 3, "tp=1", {"offload.slots=2"}},
    {1, 3, "tp=1", {NO_CLIP, KEPT}},
    {1, 1, "tp=1", {STATE, KEPT, "parallel.ddp_bucket_size=1000"}},
    {2, 4, "dp=2,ep=1,binding=dp,zero=3", {STATE, NO_CLIP}},
    {1, 1, "tp=1", {FROM_FILE, KEPT}},
    {1, 3, "tp=1", {FROM_FILE, NO_CLIP}},
    {2, 2, "dp=2,ep=1,binding=dp", {KEPT}},
    {2, 2, "dp=2,ep=1,binding=dp", {NO_CLIP}},
    {2, 2, "dp=2,ep=1,binding=dp", {MANY, KEPT}},
    {2, 2, "dp=2,ep=1,binding=dp", {MANY, NO_CLIP, KEPT}},
    {2, 4, "dp=2,ep=1,binding=dp,zero=0", {NO_CLIP, "train.precision=bf16"}},
    /* Experts of one rank computed on the other: whose step, and whose gradients, come late. */
    {2, 2, PLACED, {BALANCED}},
    {2, 2, PLACED, {BALANCED, NO_CLIP, KEPT}},
    {2, 4, PLACED, {BALANCED, KEPT}},
    {2, 6, PLACED, {BALANCED, NO_CLIP}},
    {2, 8, PLACED, {"offload.placement=balanced", "model.num_experts=4", "model.num_layers=1"}},
};

static const char *device;

/* Leaves a checkpoint, at once behind the last step. */
static void train(weft_comm *part, const slow_case *c, const char *degree, const char *name,
                  weft_step_result *out)
{
    mesh_training what = {.name = name,
                          .model = MODEL,
                          .mesh = c->mesh,
                          .batch = c->batch,
                          .steps = NUM_STEPS,
                          .saves = true,
                          .set = {device, degree}};
    mesh_set(&what, c->set, MAX_SET);
    mesh_run(part, &what, out);
}

static bool has(const slow_case *c, const char *set)
{
    for (int i = 0; i < MAX_SET && c->set[i]; i++)
        if (strcmp(c->set[i], set) == 0)
            return true;
    return false;
}

static void check(weft_comm *part, const slow_case *c)
{
    static const char *const lanes[] = {"compute", "to_device", "to_host",
                                        "host",    "file",      "landings"};
    const bool is_placed = strcmp(c->mesh, PLACED) == 0;
    weft_step_result wanted[NUM_STEPS], got[NUM_STEPS];
    char names[2][32]; /* the ranks train cases of one beside each other */
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof names[i], "%s-%d", i ? "slow" : "wanted",
                 c->world == 1 ? own_rank : 2);
    slow = NULL;
    /* Sums over micro-batches are taken in another order on the device, and a GPU's AdamW rounds
     * its own way. */
    const bool on_host = c->batch > c->world || strcmp(device, CPU) != 0;
    train(part, c, on_host ? "offload.experts=host" : "offload.experts=none", names[0], wanted);
    for (size_t i = 0; i < (is_placed ? 2 : 1) * sizeof lanes / sizeof *lanes; i++) {
        slow = lanes[i % (sizeof lanes / sizeof *lanes)];
        if ((strcmp(slow, "file") == 0 && !has(c, FROM_FILE)) ||
            (strcmp(slow, "landings") == 0 && !is_placed))
            continue;
        /* So slow that the next micro-batches of the other rank come up to it. */
        delay_us = is_placed && c->batch == 4 * c->world && strstr(slow, "host") ? LONG_DELAY_US
                                                                                 : DELAY_US;
        slow_rank = is_placed ? (int)(i / (sizeof lanes / sizeof *lanes)) : -1;
        num_delays = 0;
        train(part, c, "offload.experts=host", names[1], got);
        EXPECT(num_delays > 0 || (is_placed && slow_rank != own_rank), "%s, %s: no lane \"%s\"",
               c->mesh, c->set[0], slow);
        mesh_compare(got, wanted, NUM_STEPS, 0, "%s, %s, slow %s", c->mesh, c->set[0], slow);
        if (weft_comm_rank(part) == 0)
            weights_expect(names[1], names[0], NUM_STEPS, "", 0);
        EXPECT_OK(weft_comm_barrier(part));
    }
}

int main(int argc, char **argv)
{
    const char *why = NULL;
    weft_comm *world = world_begin(2);
    own_rank = weft_comm_rank(world);
    device = argc > 1 ? argv[1] : CPU;
    if (strcmp(device, CPU) != 0 && weft_device_num_cuda(&why) == 0) {
        if (own_rank == 0)
            printf("skipped: no CUDA device: %s\n", why);
        weft_comm_destroy(world);
        return 77;
    }
    weft_comm *part;
    EXPECT_OK(weft_comm_split(world, own_rank, 0, "part", WEFT_PURPOSE_CONTROL, &part));
    world_make_folder(world);
    int num_alone = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool is_alone = cases[i].world == 1;
        if (!is_alone || num_alone++ % 2 == own_rank) /* the ranks share the cases of one */
            check(is_alone ? part : world, &cases[i]);
    }
    weft_comm_destroy(part);
    return world_finish(world);
}
