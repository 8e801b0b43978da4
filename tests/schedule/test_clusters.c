/* The cluster files of examples/clusters, and the rules of other software: every number has a
 * source that a reader can look up, no training run is one, and what is priced by them lies where
 * such machines are: beside published measurements of single operations, too. */
#include "tests/core/check.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/planning/software.h"
#include "layers/describe/plain.h"
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
    return num_clusters == 9 ? 0 : -1;
}

static const weft_cluster *named(const char *device)
{
    for (int i = 0; i < num_clusters; i++)
        if (strncmp(clusters[i].hardware.device_name, device, strlen(device)) == 0)
            return &clusters[i];
    fail_msg("no %s", device);
    return NULL;
}

static bool has_any(const char *text, const char *const *words, size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any |= strstr(text, words[i]) != NULL;
    return any;
}

static bool has_year(const char *text)
{
    for (; *text; text++)
        if ((strncmp(text, "19", 2) == 0 || strncmp(text, "20", 2) == 0) && isdigit(text[2]) &&
            isdigit(text[3]) && !isdigit(text[4]))
            return true;
    return false;
}

/* What is wrong with the source, which has a date, and an address or who published it, and nothing
 * that a training run tells; NULL: nothing. */
static const char *fault_of(const char *where)
{
    static const char *const places[] = {"NVIDIA,", "NVIDIA ", "arXiv", ".com/", ".com,",
                                         ".ai/",    ".org/",   "NCCL",  "AMD",   "Intel"};
    static const char *const runs[] = {"tokens/s",      "MFU",         "step time",
                                       "training run",  "samples/s",   "utilization",
                                       "bench/results", "s/iteration", "step takes"};
    if (!where || !*where)
        return "has no source";
    if (!has_year(where) || !has_any(where, places, sizeof places / sizeof *places))
        return "nobody can look up";
    return has_any(where, runs, sizeof runs / sizeof *runs) ? "comes from a training run" : NULL;
}

static void check_source(const weft_cluster *c, const char *path)
{
    const weft_source *source = weft_cluster_source(c, -1, path);
    const char *fault = fault_of(source ? source->where : NULL);
    if (fault)
        fail_msg("%s: %s: %s: %s", c->name, path, fault, source ? source->where : "");
    if (source->class_ == WEFT_SOURCE_PUBLISHED && strcmp(path, "interference") != 0 &&
        !(source->spread > 0 && source->spread <= 0.2))
        fail_msg("%s: %s has a spread of %g", c->name, path, source->spread);
}

CASE(sources_are_judged)
{
    static const struct {
        const char *where;
        bool good;
    } rows[] = {{"arXiv 2407.08608, 2024, figure 5", true},
                {"github.com/pytorch/pytorch/issues/41383, 2020", true},
                {NULL, false},
                {"", false},
                {"arXiv, figure 5", false},
                {"somebody, 2024", false},
                {"arXiv 2407.08608, 2024: 5.1 s of a step time", false},
                {"github.com/NVIDIA/Megatron-LM, 2024: 47 % MFU", false},
                {"arXiv 2407.08608, 2024, 9,800 tokens/s", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!fault_of(rows[i].where) != rows[i].good)
            fail_msg("%s: %s", rows[i].where, fault_of(rows[i].where));
}

/* Every software but Weft has rules, and each rule is somebody's. */
CASE(every_rule_has_its_source)
{
    bool has_rules[WEFT_NUM_SOFTWARE] = {[WEFT_SOFTWARE_WEFT] = true};
    for (int k = 0; k < WEFT_NUM_SOFTWARE_RULES; k++) {
        const weft_software_rule *rule = weft_software_rule_at((weft_software_rule_kind)k);
        bool any = false;
        if (!rule->what)
            fail_msg("rule %d has no row", k);
        if (fault_of(rule->where))
            fail_msg("%s: %s: %s", rule->what, fault_of(rule->where), rule->where);
        assert_true(rule->values[WEFT_SOFTWARE_WEFT] == 0);
        for (int s = 0; s < WEFT_NUM_SOFTWARE; s++) {
            any |= rule->values[s] > 0;
            has_rules[s] |= rule->values[s] > 0;
        }
        if (!any)
            fail_msg("%s: of no software", rule->what);
    }
    for (int s = 0; s < WEFT_NUM_SOFTWARE; s++)
        if (!has_rules[s])
            fail_msg("%s has no rules", weft_software_texts[s]);
}

static void check_fact(const char *what, double value, const char *where)
{
    if (!what || !(value > 0))
        fail_msg("%s is %g", what ? what : "a fact without a row", value);
    if (fault_of(where))
        fail_msg("%s: %s: %s", what, fault_of(where), where);
}

/* So are the numbers of plain kernels, and those that hold for all software. */
CASE(every_fact_has_its_source)
{
    for (int k = 0; k < WEFT_NUM_GPU_FACTS; k++) {
        const weft_gpu_fact *fact = weft_gpu_fact_at((weft_gpu_fact_kind)k);
        check_fact(fact->what, fact->value, fact->where);
    }
    for (int k = 0; k < WEFT_NUM_PLAIN_FACTS; k++) {
        const weft_plain_fact *fact = weft_plain_fact_at((weft_plain_fact_kind)k);
        check_fact(fact->what, (double)fact->value, fact->where);
    }
}

CASE(every_number_has_its_source)
{
    for (int i = 0; i < num_clusters; i++) {
        const weft_hardware *h = &clusters[i].hardware;
        for (int f = 0; f < WEFT_NUM_FIGURES; f++)
            if (weft_hardware_knows(h, (weft_figure)f))
                check_source(&clusters[i], weft_figure_path((weft_figure)f));
        for (int e = 0; e < WEFT_NUM_EFFICIENCIES; e++) {
            const char *path = weft_efficiency_path((weft_efficiency_kind)e);
            const bool is_v100 = strncmp(h->device_name, "V100", 4) == 0;
            if (is_v100 && strncmp(path, "device.efficiency.attention", 27) == 0)
                continue; /* no such kernel was measured on one */
            assert_true(h->efficiencies[e].num_points > 0);
            check_source(&clusters[i], path);
            assert_int_equal(weft_cluster_source(&clusters[i], -1, path)->class_,
                             is_v100 && e == WEFT_EFFICIENCY_INSIDE ? WEFT_SOURCE_ASSUMED
                                                                    : WEFT_SOURCE_PUBLISHED);
        }
        if (clusters[i].interference.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] < 1)
            check_source(&clusters[i], "interference");
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

CASE(products_reach_what_gpus_reach)
{
    for (int i = 0; i < num_clusters; i++) {
        const weft_cluster *c = &clusters[i];
        /* Of less power than their own limit two reach less. */
        const bool is_capped = strstr(c->hardware.device_name, " W ") != NULL;
        between(c, "a large product", share_of_peak(c, WEFT_F16, 8192, 8192, 8192),
                is_capped ? 0.38 : 0.6, is_capped ? 0.6 : 0.85);
        between(c, "a layer's product", share_of_peak(c, WEFT_F16, 4096, 4096, 4096),
                is_capped ? 0.3 : 0.4, 0.8);
        between(c, "a thin product", share_of_peak(c, WEFT_F16, 64, 4096, 4096), 0.005, 0.4);
        between(c, "one in fp32", share_of_peak(c, WEFT_F32, 8192, 8192, 8192),
                is_capped ? 0.38 : 0.6, 0.85);
    }
    weft_site site = {.cluster = named("V100")};
    const weft_operation bf16 = product(WEFT_BF16, 64, 64, 64);
    weft_estimate e;
    FAILS(weft_operation_us(&site, &bf16, &e), WEFT_CONFIG,
          "cluster \"DGX-1 with V100 32 GB\": device.peak.bf16 is not known, and linear needs it");
}

/* Single products that others measured, in 16 bits, by cuBLAS. A file's rate is that of the slowest
 * of many GPUs, 4 % below one's, and its spread is added; of short products also that of launches.
 */
CASE(products_are_as_published)
{
    static const struct {
        const char *device;
        uint64_t m, n, k;
        double tflops; /* a second */
    } rows[] = {
        /* newsletter.semianalysis.com, 2024-12-22: "roughly 720", Llama 70B's shapes; the one with
         * k of 1280 is left out: prices store a wave's tiles before the next wave begins */
        {"H100 SXM5", 16384, 8192, 7168, 720},
        {"H100 SXM5", 16384, 3584, 8192, 720},
        {"H100 SXM5", 8192, 8192, 8192, 720},
        {"H200", 16384, 8192, 7168, 720},
        /* github.com/vllm-project/vllm/pull/17126, 2025, H100 */
        {"H100 SXM5", 256, 6144, 4096, 544},
        /* arXiv 2604.23466, 2026, tables III and IV: Llama 7B's feed-forward layers */
        {"B200 SXM", 8192, 8192, 8192, 1672},
        {"B200 SXM", 4096, 11008, 4096, 1562},
        {"B200 SXM", 2048, 11008, 4096, 1448},
        /* github.com/vllm-project/vllm/pull/18778 and 19566, 2025, B200 */
        {"B200 SXM", 2048, 4096, 4096, 1444},
        {"B200 SXM", 1024, 6144, 4096, 1433},
        /* github.com/pytorch/FBGEMM/pull/2546, 2024, "H100 500W", bf16 */
        {"H100 500 W", 8192, 8192, 8192, 585},
        {"H100 500 W", 65536, 8192, 7168, 575},
        {"H100 500 W", 65536, 3584, 8192, 546},
        /* github.com/facebookexperimental/triton/pull/854 and 3648, 2026, "power cap 750 W", fp16;
         * 4096 cubed, too short a run to be capped, is left out */
        {"B200 750 W", 8192, 8192, 8192, 1088},
        {"B200 750 W", 1024, 20480, 6144, 1021},
        /* github.com/meta-pytorch/tritonbench/pull/1011 and 1009, 2026, bf16 */
        {"B200 750 W", 8192, 8192, 8192, 959},
        {"B200 750 W", 8192, 8192, 16384, 911},
        /* thonking.ai/p/strangely-matrix-multiplications, 2024 */
        {"A100 SXM4 80", 8192, 8192, 8192, 258},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const weft_cluster *c = named(rows[i].device);
        char what[96];
        snprintf(what, sizeof what, "[%d, %d] x [%d, %d] over what was measured", (int)rows[i].m,
                 (int)rows[i].k, (int)rows[i].k, (int)rows[i].n);
        const double share = share_of_peak(c, WEFT_F16, rows[i].m, rows[i].n, rows[i].k);
        const double planned = share * c->hardware.figures[WEFT_FIGURE_PEAK_BF16] * 1e-12;
        const bool is_short = 2.0 * (double)(rows[i].m * rows[i].n * rows[i].k) < 1e11;
        between(c, what, planned / rows[i].tflops, 0.96 / (is_short ? 1.3 : 1.2), 0.96 * 1.2);
    }
}

/* TFLOP/s of attention of 16,384 tokens and a hidden size of 2,048, as FlashAttention's tables have
 * it: causal, forward and backward together. */
static double attention_rate(const weft_cluster *c, uint64_t keys, uint64_t width, bool backward)
{
    const uint64_t count = 16384 / keys * (2048 / width), flops = keys * keys * width * count;
    const weft_site site = {.cluster = c};
    const weft_operation o = {.kind = WEFT_OPERATION_GEMM,
                              .phase = backward ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD,
                              .module = WEFT_MODULE_ATTENTION,
                              .dtype = WEFT_BF16,
                              .m = keys,
                              .n = keys,
                              .k = width,
                              .count = count,
                              .flops = flops,
                              .fused = true};
    weft_estimate e;
    OK(weft_operation_us(&site, &o, &e));
    return (double)flops / e.us * 1e-6;
}

CASE(attention_is_as_published)
{
    static const struct {
        const char *device;
        uint64_t keys, width;
        bool backward;
        double low, high; /* what libraries reach, TFLOP/s */
    } rows[] = {
        /* arXiv 2407.08608, 2024, figure 5, causal: cuDNN 9 and FlashAttention-3 */
        {"H100 SXM5", 2048, 128, false, 484, 521},
        {"H100 SXM5", 8192, 128, false, 529, 602},
        {"H100 SXM5", 16384, 128, false, 539, 616},
        {"H200", 4096, 64, false, 363, 420},
        {"H100 SXM5", 16384, 64, false, 388, 473},
        /* github.com/Dao-AILab/flash-attention/pull/2280, 2026: one and two CTA */
        {"B200 SXM", 8192, 128, true, 1118, 1209},
        /* and pull/2605, 2026 */
        {"B200 SXM", 4096, 128, false, 1090, 1090},
        {"B200 SXM", 4096, 64, false, 713, 713},
        /* arXiv 2307.08691, 2023: 0.50 to 0.73 of peak forward, up to 0.63 backward */
        {"A100 SXM4 80", 16384, 128, false, 156, 228},
        {"A100 SXM4 80", 16384, 128, true, 156, 197},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        between(
            named(rows[i].device), "attention in TFLOP/s",
            attention_rate(named(rows[i].device), rows[i].keys, rows[i].width, rows[i].backward),
            rows[i].low / 1.1, rows[i].high * 1.1);
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

CASE(links_reach_what_links_reach)
{
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
    /* github.com/stas00/ml-engineering, network, 2026: a ring over 8 H200
     * and four nodes of them (365), where stages inside and between nodes overlap, which prices do
     * not know; 8 A100 */
    between(named("H200"), "an all-reduce of 16 GiB", bus_bandwidth(named("H200"), 1, 8, 17.2e9),
            340, 390);
    between(named("H200"), "over four nodes", bus_bandwidth(named("H200"), 1, 32, 4.3e9), 200, 390);
    between(named("A100 SXM4 80"), "an all-reduce of 16 GiB",
            bus_bandwidth(named("A100 SXM4 80"), 1, 8, 17.2e9), 220, 260);
    /* GPUs that differ in NVLink alone. */
    const double a100 = bus_bandwidth(named("A100 SXM4 80"), 1, 8, 1e9);
    const double a800 = bus_bandwidth(named("A800"), 1, 8, 1e9);
    assert_true(a800 / a100 > 0.66 && a800 / a100 < 0.68);
}

CASE(generations_follow_each_other)
{
    static const char *const devices[] = {"V100",      "A100 SXM4 40", "A100 SXM4 80",
                                          "H100 SXM5", "H200",         "B200 SXM"};
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
CASE(choices_are_made_by_them)
{
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

AROUND(.set_up = read_all, .tear_down = NULL)
