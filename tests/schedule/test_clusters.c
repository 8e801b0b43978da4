/* The cluster files of examples/clusters: every number has its source, and what is priced by them
 * lies where such machines are. */
#include "tests/core/check.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/cost/cost.h"
#include "schedule/exchange/exchange.h"

enum { MAX_FILES = 16 };
static weft_cluster clusters[MAX_FILES];
static int num_clusters;

static int read_all(void **state)
{
    (void)state;
    char path[4096];
    const char *root = getenv("WEFT_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/examples/clusters", root ? root : ".");
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".json") || num_clusters == MAX_FILES)
            continue;
        snprintf(path, sizeof path, "%s/examples/clusters/%.200s", root ? root : ".",
                 entry->d_name);
        if (weft_cluster_read(path, &clusters[num_clusters++]) != WEFT_OK) {
            print_error("%s\n", weft_error_get()->text);
            return -1;
        }
    }
    if (folder)
        closedir(folder);
    return num_clusters == 7 ? 0 : -1;
}

static const weft_cluster *named(const char *device)
{
    for (int i = 0; i < num_clusters; i++)
        if (strncmp(clusters[i].hardware.device_name, device, strlen(device)) == 0)
            return &clusters[i];
    fail_msg("no %s", device);
    return NULL;
}

static void check_source(const weft_cluster *c, const char *path)
{
    const weft_source *source = weft_cluster_source(c, -1, path);
    if (!source || !*source->where)
        fail_msg("%s: %s has no source", c->name, path);
}

static void every_number_has_its_source(void **state)
{
    (void)state;
    for (int i = 0; i < num_clusters; i++) {
        const weft_hardware *h = &clusters[i].hardware;
        for (int f = 0; f < WEFT_NUM_FIGURES; f++)
            if (weft_hardware_knows(h, (weft_figure)f))
                check_source(&clusters[i], weft_figure_path((weft_figure)f));
        for (int e = 0; e < WEFT_NUM_EFFICIENCIES; e++) {
            const weft_efficiency_kind kind = (weft_efficiency_kind)e;
            assert_true(h->efficiencies[e].num_points > 0);
            check_source(&clusters[i], weft_efficiency_path(kind));
            assert_int_equal(
                weft_cluster_source(&clusters[i], -1, weft_efficiency_path(kind))->class_,
                WEFT_SOURCE_ASSUMED);
        }
        assert_string_equal(h->device_name + strlen(h->device_name) - 2, "GB");
    }
}

static weft_operation product(weft_dtype dtype, uint64_t m, uint64_t n, uint64_t k)
{
    return (weft_operation){.kind = WEFT_OPERATION_GEMM,
                            .module = "linear",
                            .dtype = dtype,
                            .m = m,
                            .n = n,
                            .k = k,
                            .count = 1,
                            .flops = 2 * m * n * k};
}

/* Of its peak what a product reaches. */
static double share_of_peak(const weft_cluster *c, weft_dtype dtype, uint64_t m, uint64_t n,
                            uint64_t k)
{
    const weft_site site = {.cluster = c};
    const weft_operation o = product(dtype, m, n, k);
    weft_estimate e;
    OK(weft_operation_us(&site, &o, &e));
    assert_int_equal(e.source, WEFT_SOURCE_ASSUMED);
    return (double)o.flops / (e.us * 1e-6) /
           c->hardware.figures[dtype == WEFT_F16 ? WEFT_FIGURE_PEAK_FP16 : WEFT_FIGURE_PEAK_FP32];
}

static void between(const weft_cluster *c, const char *what, double value, double low, double high)
{
    if (!(value >= low && value <= high))
        fail_msg("%s: %s is %g, not %g to %g", c->name, what, value, low, high);
}

static void products_reach_what_gpus_reach(void **state)
{
    (void)state;
    for (int i = 0; i < num_clusters; i++) {
        const weft_cluster *c = &clusters[i];
        between(c, "a large product", share_of_peak(c, WEFT_F16, 8192, 8192, 8192), 0.6, 0.85);
        between(c, "a layer's product", share_of_peak(c, WEFT_F16, 4096, 4096, 4096), 0.4, 0.8);
        between(c, "a thin product", share_of_peak(c, WEFT_F16, 64, 4096, 4096), 0.005, 0.4);
        between(c, "one in fp32", share_of_peak(c, WEFT_F32, 8192, 8192, 8192), 0.6, 0.85);
    }
    weft_site site = {.cluster = named("V100")};
    const weft_operation bf16 = product(WEFT_BF16, 64, 64, 64);
    weft_estimate e;
    FAILS(weft_operation_us(&site, &bf16, &e), WEFT_CONFIG,
          "cluster \"DGX-1 with V100 32 GB\": device.peak.bf16 is not known, and linear needs it");
}

/* 2 (n - 1) / n V / t in GB/s, as nccl-tests have it. */
static double bus_bandwidth(const weft_cluster *c, int first_stride, int size, double bytes)
{
    int ranks[64];
    for (int i = 0; i < size; i++)
        ranks[i] = i * first_stride;
    const weft_site site = {.cluster = c};
    const weft_group group = weft_group_of(c, ranks, size, false);
    weft_estimate e;
    OK(weft_collective_us(&site, &group, WEFT_COLLECTIVE_ALL_REDUCE, bytes, &e));
    return 2.0 * (size - 1) / size * bytes / (e.us * 1e-6) * 1e-9;
}

static void links_reach_what_links_reach(void **state)
{
    (void)state;
    for (int i = 0; i < num_clusters; i++) {
        const weft_cluster *c = &clusters[i];
        const double *f = c->hardware.figures;
        const double inside = f[WEFT_FIGURE_INSIDE_BANDWIDTH] * 1e-9;
        const double card = f[WEFT_FIGURE_BETWEEN_BANDWIDTH] * f[WEFT_FIGURE_CARDS] / 8 * 1e-9;
        between(c, "a large all-reduce inside", bus_bandwidth(c, 1, 8, 1e9) / inside, 0.7, 0.9);
        between(c, "a small one", bus_bandwidth(c, 1, 8, 65536) / inside, 0.001, 0.2);
        between(c, "one between nodes", bus_bandwidth(c, 8, 16, 1e9) / card, 0.7, 0.95);
        /* Of whole nodes: cards together carry it, though reducing inside comes first. */
        between(c, "one of 8 nodes", bus_bandwidth(c, 1, 64, 4e9) / (8 * card), 0.4, 0.95);
    }
    /* GPUs that differ in NVLink alone. */
    const double a100 = bus_bandwidth(named("A100 SXM4 80"), 1, 8, 1e9);
    const double a800 = bus_bandwidth(named("A800"), 1, 8, 1e9);
    assert_true(a800 / a100 > 0.66 && a800 / a100 < 0.68);
}

static void generations_follow_each_other(void **state)
{
    (void)state;
    static const char *const devices[] = {"V100", "A100 SXM4 40", "A100 SXM4 80",
                                          "H100", "H200",         "B200"};
    double before_gemm = INFINITY, before_norm = INFINITY;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        const weft_cluster *c = named(devices[i]);
        const weft_site site = {.cluster = c};
        const weft_operation gemm = product(WEFT_F16, 8192, 8192, 8192);
        const weft_operation norm = {
            .kind = WEFT_OPERATION_MEMORY, .module = "norm", .bytes = 1000000000, .count = 1};
        weft_estimate e;
        OK(weft_operation_us(&site, &gemm, &e));
        assert_true(e.us <= before_gemm);
        before_gemm = e.us;
        OK(weft_operation_us(&site, &norm, &e));
        assert_true(e.us < before_norm);
        between(c, "a norm's bandwidth",
                1e9 / (e.us * 1e-6) / c->hardware.figures[WEFT_FIGURE_MEMORY_BANDWIDTH], 0.75, 0.9);
        before_norm = e.us;
        OK(weft_work_us(&site, WEFT_COST_TO_HOST, 1e9, &e));
        between(c, "a copy to the host in ms", e.us * 1e-3, 10, 70);
    }
}

/* Ways to run MoE layers are chosen for machines that nobody here has measured. */
static void choices_are_made_by_them(void **state)
{
    (void)state;
    for (int i = 0; i < num_clusters; i++) {
        weft_cluster c = clusters[i];
        weft_cost_complete(&c);
        const weft_exchange_shape exchange = {
            .bytes = 256e6, .t = 8, .e = 8, .minimal_bytes = 65536};
        weft_exchange_choice form;
        OK(weft_choose_exchange(&c, &exchange, 0, &form));
        /* Eight ranks of a node need not all send the same. */
        assert_true(form.form != WEFT_EXCHANGE_BASELINE);
        assert_true(form.us < 0.5 * form.best_us[WEFT_EXCHANGE_BASELINE]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_has_its_source),
        cmocka_unit_test(products_reach_what_gpus_reach),
        cmocka_unit_test(links_reach_what_links_reach),
        cmocka_unit_test(generations_follow_each_other),
        cmocka_unit_test(choices_are_made_by_them),
    };
    return cmocka_run_group_tests(tests, read_all, NULL);
}
