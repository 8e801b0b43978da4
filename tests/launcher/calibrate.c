/* Measuring on several ranks: all of them end with one and the same sensible cluster. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device/device.h"
#include "launcher/measuring/measure.h"
#include "launcher/planning/moe_choice.h"
#include "parallel/spill/spill.h"
#include "tests/core/device_under_test.h"
#include "tests/expect.h"

static bool is_between(int kind)
{
    return kind == WEFT_COST_ALL_TO_ALL || kind == WEFT_COST_ALL_REDUCE_BETWEEN ||
           kind == WEFT_COST_ALL_GATHER_BETWEEN || kind == WEFT_COST_REDUCE_SCATTER_BETWEEN ||
           kind == WEFT_COST_MESSAGE;
}

static bool is_inside(int kind)
{
    return kind == WEFT_COST_ALL_TO_ALL_INSIDE || kind == WEFT_COST_ALL_GATHER ||
           kind == WEFT_COST_ALL_REDUCE || kind == WEFT_COST_REDUCE_SCATTER ||
           kind == WEFT_COST_MESSAGE_INSIDE;
}

static void check_cost(const weft_cluster *c, weft_cost_kind kind)
{
    const weft_curve *curve = &c->costs[kind].curve;
    bool wanted = is_between(kind)  ? c->num_nodes > 1
                  : is_inside(kind) ? c->ranks_per_node > 1
                                    : true;
    EXPECT(weft_cluster_knows(c, kind) == wanted, "%s of %d nodes of %d", weft_cost_text(kind),
           c->num_nodes, c->ranks_per_node);
    EXPECT(!wanted || (curve->num_points >= 2 && c->costs[kind].peak > 0), "%s: %d points, peak %g",
           weft_cost_text(kind), curve->num_points, c->costs[kind].peak);
    for (int i = 0; i < curve->num_points; i++) {
        EXPECT(curve->time_us[i] > 0, "%s %d", weft_cost_text(kind), i);
        EXPECT(i == 0 || (curve->volume[i] > curve->volume[i - 1] &&
                          curve->time_us[i] >= curve->time_us[i - 1]),
               "%s %d: %g us of %g after %g us of %g", weft_cost_text(kind), i, curve->time_us[i],
               curve->volume[i], curve->time_us[i - 1], curve->volume[i - 1]);
        double rate = curve->volume[i] / (curve->time_us[i] * 1e-6);
        EXPECT(rate <= c->costs[kind].peak * 1.0001, "%s %d: %g beats the peak of %g",
               weft_cost_text(kind), i, rate, c->costs[kind].peak);
    }
}

/* Of a CPU's messages: nothing, or a power of two that was tried. */
static void check_eager(const weft_cluster *c, weft_figure figure, bool wanted)
{
    const double bytes = c->hardware.figures[figure];
    const weft_source *source = weft_cluster_source(c, -1, weft_figure_path(figure));
    EXPECT(weft_hardware_knows(&c->hardware, figure) == wanted, "%s of %d nodes of %d",
           weft_figure_path(figure), c->num_nodes, c->ranks_per_node);
    EXPECT(!wanted || bytes == 0 ||
               (bytes >= 4096 && bytes <= 8 << 20 && exp2(round(log2(bytes))) == bytes),
           "%s: %g", weft_figure_path(figure), bytes);
    EXPECT(!wanted || (source && source->class_ == WEFT_SOURCE_MEASURED), "%s: not measured",
           weft_figure_path(figure));
}

static void check_alpha(const weft_cluster *c)
{
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = c->interference.alpha[y][x];
            EXPECT(alpha >= weft_interference_least(x) && alpha <= 1, "alpha(%d, %d) = %g", y, x,
                   alpha);
            EXPECT(x != y || alpha == 1, "alpha(%d, %d) = %g", y, x, alpha);
        }
}

/* As its file has it; to free. */
static char *printed(const weft_cluster *c)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    EXPECT_OK(weft_cluster_print(c, out));
    fclose(out);
    return text;
}

static void expect_same(const weft_cluster *a, const weft_cluster *b, const char *what)
{
    char *x = printed(a), *y = printed(b);
    EXPECT(strcmp(x, y) == 0, "%s: %s is not %s", what, x, y);
    free(x);
    free(y);
}

static void check_file(const weft_cluster *c)
{
    char path[] = "test_cluster_XXXXXX";
    weft_cluster back;
    int file = mkstemp(path);
    EXPECT(file >= 0, "%s", path);
    close(file);
    EXPECT_OK(weft_cluster_write(c, path));
    EXPECT_OK(weft_cluster_read(path, &back));
    expect_same(c, &back, "read back");
    unlink(path);
}

/* What calibrate measured is all that train's choice takes, wherever the groups lie; without it the
 * message says which curve, which file and which command. */
static void check_choice(weft_comm *world, const weft_cluster *c, const char *mesh_text)
{
    weft_arena arena = {0};
    weft_config config;
    weft_mesh mesh;
    weft_topology topology;
    weft_moe_selection moe;
    weft_moe_nodes nodes = {0};
    char path[64], text[512], remedy[160];
    int size = weft_comm_size(world);
    snprintf(path, sizeof path, "calibrate_%ld.json", (long)getpid());
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 1, \"hidden_size\": 32, \"num_attention_heads\": 4, "
             "\"seq_length\": 32, \"vocab_size\": 61, \"num_experts\": %d}, "
             "\"data\": {\"mock_data\": true}, \"train\": {\"global_batch_size\": %d}, "
             "\"parallel\": {\"moe_num_partitions\": 0, "
             "\"moe_choice\": \"price\", \"cluster\": \"%s\"}}",
             size, size, path);
    const weft_config_source source = {.file = "choice", .text = text, .mesh = mesh_text};
    weft_cluster poor = *c;
    poor.costs[WEFT_COST_ALL_TO_ALL] = poor.costs[WEFT_COST_ALL_TO_ALL_INSIDE] =
        (weft_cost){.peak = 0};
    poor.num_sources = 0; /* of curves that it lacks */
    EXPECT_OK(weft_cluster_write(c, path));
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_topology_discover(world, &arena, &topology));
    EXPECT_OK(weft_config_mesh(&config, &source, size, &mesh)); /* as before ranks start */
    if (topology.node_of)
        EXPECT_OK(weft_moe_find_nodes(&config, &mesh, &topology, &nodes));
    EXPECT_OK(weft_comm_broadcast_host(world, &nodes, sizeof nodes, 0));
    EXPECT_OK(weft_moe_selection_start(&config, &mesh, &nodes, &moe));
    EXPECT(strstr(moe.reason, "partition"), "%d x %d: %s", c->num_nodes, c->ranks_per_node,
           moe.reason);
    EXPECT_OK(weft_cluster_write(&poor, path));
    snprintf(remedy, sizeof remedy,
             "measure on these ranks: mpirun -n %d weft calibrate --out %s%s", size, path,
             c->num_nodes == 1 ? "" : " --ranks-per-node ");
    EXPECT_ERROR(weft_moe_selection_start(&config, &mesh, &nodes, &moe), WEFT_CONFIG, remedy);
    EXPECT_ERROR(weft_moe_selection_start(&config, &mesh, &nodes, &moe), WEFT_CONFIG, path);
    unlink(path);
    weft_arena_release(&arena);
}

/* Volumes and spans large enough that interference is not left out; two ranks, as many as cores. */
static void check_interference(weft_comm *world, weft_device *device)
{
    weft_measure_options options = {
        .max_bytes = 4 << 20, .seconds = 0.2, .kinds = 1u << WEFT_COST_GEMM_FP32};
    weft_cluster c;
    weft_comm *pair;
    int rank = weft_comm_rank(world);
    EXPECT_OK(weft_comm_split(world, rank / 2, rank, "pair", WEFT_PURPOSE_TENSOR, &pair));
    if (rank < 2) {
        EXPECT_OK(weft_measure_cluster(pair, device, &options, &c));
        check_alpha(&c);
    }
    weft_comm_destroy(pair);
    EXPECT_OK(weft_comm_barrier(world));
}

/* As training reads: a volume of 4 MiB in four requests, a first write and at least three reads. */
static void check_direct(weft_comm *world, weft_device *device)
{
    enum { FAR = 1 << 28, CALLS = 4 * 4 };
    const weft_measure_options options = {.max_bytes = 4 << 20,
                                          .seconds = 0.2,
                                          .kinds = 1u << WEFT_COST_DIRECT_READ,
                                          .no_interference = true,
                                          .storage = "."};
    weft_cluster c;
    weft_spill_fail_after(FAR, EIO);
    EXPECT_OK(weft_measure_cluster(world, device, &options, &c));
    const int made = FAR - weft_spill_fail_after(0, 0);
    const weft_curve *read = &c.costs[WEFT_COST_DIRECT_READ].curve;
    const bool had_time = read->num_points > 0 && read->volume[read->num_points - 1] == 4 << 20;
    EXPECT(!had_time || made > CALLS, "read from experts' files %d times", made);
}

/* As on a machine that other work keeps busy: each rank's link is slower than any, even where the
 * pace makes up for the most that it may be late (core/device/pace.c). */
static void check_busy(weft_comm *world)
{
    const weft_measure_options options = {
        .quick = true, .kinds = 1u << WEFT_COST_TO_HOST, .no_interference = true, .storage = "."};
    weft_device *slow;
    weft_cluster c = {.num_nodes = 77};
    EXPECT_OK(weft_device_create_cpu(1, 0, &slow));
    weft_device_set_pace(slow, (weft_pace){.link = 4e4});
    EXPECT_ERROR(weft_measure_cluster(world, slow, &options, &c), WEFT_CONFIG,
                 "bytes/s in 3 tries, where hardware does 1e+06: other work keeps this machine "
                 "busy");
    EXPECT(c.num_nodes == 77, "written by a call that failed");
    weft_device_destroy(slow);
}

/* Where other work leaves too little of the machine to measure anything, the measurements say so.
 */
static void measure_or_skip(weft_comm *world, weft_device *device,
                            const weft_measure_options *options, weft_cluster *c)
{
    const weft_status status = weft_measure_cluster(world, device, options, c);
    if (status == WEFT_CONFIG && strstr(weft_error_get()->text, "other work keeps this machine")) {
        if (weft_comm_rank(world) == 0)
            printf("skipped: %s\n", weft_error_get()->text);
        weft_device_destroy(device);
        weft_comm_destroy(world);
        exit(77);
    }
    EXPECT_OK(status);
}

static void check_nodes_of(weft_comm *world, weft_device *device, int ranks_per_node)
{
    weft_measure_options options = {
        .quick = true, .ranks_per_node = ranks_per_node, .name = "t", .storage = "."};
    weft_cluster c, first;
    int size = weft_comm_size(world);
    memset(&c, 0, sizeof c);
    measure_or_skip(world, device, &options, &c);
    EXPECT(c.num_nodes == (ranks_per_node ? size / ranks_per_node : 1) &&
               c.num_nodes * c.ranks_per_node == size,
           "%d nodes of %d", c.num_nodes, c.ranks_per_node);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        check_cost(&c, (weft_cost_kind)i);
    const bool on_cpu = strcmp(weft_device_name(device), "cuda") != 0;
    check_eager(&c, WEFT_FIGURE_INSIDE_EAGER, on_cpu && c.ranks_per_node > 1);
    check_eager(&c, WEFT_FIGURE_BETWEEN_EAGER, on_cpu && c.num_nodes > 1);
    check_alpha(&c);
    first = c;
    EXPECT_OK(weft_comm_broadcast_host(world, &first, sizeof first, 0));
    expect_same(&c, &first, "rank 0's");
    if (weft_comm_rank(world) == 0)
        check_file(&c);
    char mesh[64];
    snprintf(mesh, sizeof mesh, "dp=%d,ep=%d,binding=dp", size, size);
    check_choice(world, &c, mesh);
    if (size == 4 && ranks_per_node != 1) /* sharded experts gather inside a node */
        check_choice(world, &c, "tp=2,dp=2,ep=2,etp=2,binding=dp");
    EXPECT_OK(weft_comm_barrier(world));
}

int main(void)
{
    weft_comm *world;
    weft_device *device;
    weft_cluster c = {.num_nodes = 77};
    skip_without_device();
    EXPECT_OK(weft_comm_create_world(&world));
    EXPECT_OK(device_under_test(1, 0, &device));
    int size = weft_comm_size(world);
    check_nodes_of(world, device, 0);
    check_nodes_of(world, device, 1);
    if (size % 2 == 0)
        check_nodes_of(world, device, 2);
    check_interference(world, device);
    check_direct(world, device);
    if (!on_cuda())
        check_busy(world);
    EXPECT_ERROR(weft_measure_cluster(world, device,
                                      &(weft_measure_options){.ranks_per_node = size + 1}, &c),
                 WEFT_CONFIG, "cannot be divided into nodes of");
    /* Too large for the device: all ranks say so. */
    weft_device *small;
    EXPECT_OK(device_under_test(1, weft_comm_rank(world) == size - 1 ? 4096 : 0, &small));
    EXPECT_ERROR(weft_measure_cluster(world, small, &(weft_measure_options){.quick = true}, &c),
                 WEFT_MEMORY, "calibration");
    EXPECT(c.num_nodes == 77, "written by a call that failed");
    weft_device_destroy(small);
    weft_device_destroy(device);
    weft_comm_destroy(world);
    return expect_finish();
}
