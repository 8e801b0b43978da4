/* Measuring on several ranks: all of them end with one and the same sensible cluster. */
#include <stdlib.h>
#include <unistd.h>

#include "core/log.h"
#include "launcher/calibrate.h"
#include "launcher/measure.h"
#include "tests/core/device_under_test.h"
#include "tests/expect.h"
#include "tests/launcher/svg.h"

static bool is_between(int kind)
{
    return kind == WEFT_COST_ALL_TO_ALL || kind == WEFT_COST_ALL_REDUCE_BETWEEN ||
           kind == WEFT_COST_MESSAGE;
}

static bool is_inside(int kind)
{
    return kind == WEFT_COST_ALL_TO_ALL_INSIDE || kind == WEFT_COST_ALL_GATHER ||
           kind == WEFT_COST_ALL_REDUCE || kind == WEFT_COST_MESSAGE_INSIDE;
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

static void check_alpha(const weft_cluster *c)
{
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = c->interference.alpha[y][x];
            EXPECT(alpha > 0 && alpha <= 1, "alpha(%d, %d) = %g", y, x, alpha);
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
    char path[] = "test_cluster_XXXXXX", *text = NULL;
    size_t bytes = 0;
    weft_cluster back;
    int file = mkstemp(path);
    EXPECT(file >= 0, "%s", path);
    close(file);
    EXPECT_OK(weft_cluster_write(c, path));
    EXPECT_OK(weft_cluster_read(path, &back));
    expect_same(c, &back, "read back");
    unlink(path);
    FILE *out = open_memstream(&text, &bytes);
    EXPECT_OK(weft_calibrate_draw(c, out));
    fclose(out);
    EXPECT(svg_is_well_formed(text), "%s", text);
    free(text);
}

static void check_nodes_of(weft_comm *world, weft_device *device, int ranks_per_node)
{
    weft_measure_options options = {.quick = true, .ranks_per_node = ranks_per_node, .name = "t"};
    weft_cluster c, first;
    int size = weft_comm_size(world);
    memset(&c, 0, sizeof c);
    EXPECT_OK(weft_measure_cluster(world, device, &options, &c));
    EXPECT(c.num_nodes == (ranks_per_node ? size / ranks_per_node : 1) &&
               c.num_nodes * c.ranks_per_node == size,
           "%d nodes of %d", c.num_nodes, c.ranks_per_node);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        check_cost(&c, (weft_cost_kind)i);
    check_alpha(&c);
    first = c;
    EXPECT_OK(weft_comm_broadcast_host(world, &first, sizeof first, 0));
    expect_same(&c, &first, "rank 0's");
    if (weft_comm_rank(world) == 0)
        check_file(&c);
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
    EXPECT_ERROR(weft_measure_cluster(world, device,
                                      &(weft_measure_options){.ranks_per_node = size + 1}, &c),
                 WEFT_CONFIG, "do not divide into nodes of");
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
