/* The arithmetic of measuring, the drawing, and the verb on one rank. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/measuring/calibrate.h"
#include "launcher/measuring/measure.h"
#include "tests/core/check.h"
#include "tests/launcher/child.h"

/* --- arithmetic ---------------------------------------------------------------------------- */

CASE(retransmissions_are_left_out)
{
    double odd[] = {30e3, 10e3, 20e3};
    assert_true(weft_measure_typical_us(odd, 3) == 20e3);
    double even[] = {40e3, 10e3, 20e3, 30e3};
    assert_true(weft_measure_typical_us(even, 4) == 25e3);
    double one[] = {5};
    assert_true(weft_measure_typical_us(one, 1) == 5);
    /* Most of them were held up: a plain median would take one that was. */
    double late[] = {221e3, 20e3, 222e3, 22e3, 421e3};
    assert_true(weft_measure_typical_us(late, 5) == 21e3);
    /* Long trains may differ by as much without having lost a thing. */
    double slow[] = {2.0e6, 2.2e6, 2.25e6};
    assert_true(weft_measure_typical_us(slow, 3) == 2.2e6);
    double slow_late[] = {1.0e6, 1.05e6, 1.25e6, 1.26e6};
    assert_true(weft_measure_typical_us(slow_late, 4) == 1.025e6);
}

CASE(scatter_is_between_the_quartiles)
{
    double us[] = {14, 10, 12, 11, 13};
    assert_true(fabs(weft_measure_scatter(us, 5) - 2.0 / 12) < 1e-12);
    double late[] = {20e3, 221e3, 22e3, 222e3, 24e3}; /* two retransmissions */
    assert_true(fabs(weft_measure_scatter(late, 5) - 2.0 / 22) < 1e-12);
    double one[] = {5};
    assert_true(weft_measure_scatter(one, 1) == 0);
    weft_cluster c = {0};
    weft_measure_say_source(&c, "costs.copy", 0.12345);
    weft_measure_say_source(&c, "costs.memory", 50);
    assert_int_equal(c.num_sources, 2);
    assert_string_equal(c.sources[0].key, "costs.copy");
    assert_int_equal(c.sources[0].class_, WEFT_SOURCE_MEASURED);
    assert_true(c.sources[0].spread == 0.12 && c.sources[1].spread == 10);
}

static void check_times(weft_curve curve, const double *wanted)
{
    weft_measure_make_rise(&curve);
    for (int i = 0; i < curve.num_points; i++)
        if (!(fabs(curve.time_us[i] - wanted[i]) < 1e-9))
            fail_msg("point %d: %.9g is not %.9g", i, curve.time_us[i], wanted[i]);
}

CASE(times_are_made_to_rise)
{
    weft_curve curve = {
        .num_points = 7, .volume = {1, 2, 4, 8, 16, 32, 64}, .time_us = {5, 7, 3, 10, 12, 11, 30}};
    check_times(curve, (const double[]){5, 5, 5, 10, 11.5, 11.5, 30});
    /* The last four: their mean is 10, of volume 30; the best rate is then 64 / 10. */
    curve.time_us[6] = 7;
    check_times(curve, (const double[]){5, 5, 5, 10 - 22 / 6.4, 10 - 14 / 6.4, 10 + 2 / 6.4,
                                        10 + 34 / 6.4});
    /* One disturbance is not spread over the points behind it. */
    weft_curve disturbed = {
        .num_points = 5, .volume = {1, 2, 4, 8, 16}, .time_us = {1, 2, 400, 8, 16}};
    assert_true(weft_measure_is_disturbed(&disturbed, 2));
    for (int i = 0; i < 5; i++)
        assert_true(i == 2 || !weft_measure_is_disturbed(&disturbed, i));
    check_times(disturbed, (const double[]){1, 2, 8, 8, 16});
    disturbed.time_us[2] = 4;
    disturbed.time_us[4] = 400;
    assert_true(weft_measure_is_disturbed(&disturbed, 4));
    disturbed.num_points = 1;
    assert_false(weft_measure_is_disturbed(&disturbed, 0));
    /* A line does not change, nor does a lone point. */
    for (int i = 0; i < 7; i++)
        curve.time_us[i] = 3 + curve.volume[i] / 4;
    weft_curve line = curve;
    check_times(curve, line.time_us);
    curve.num_points = 1;
    check_times(curve, line.time_us);
    weft_curve none = {0};
    weft_measure_make_rise(&none);
    assert_int_equal(none.num_points, 0);
}

CASE(progress_counts_shares)
{
    static const double ends[] = {20, 30, 70};
    static const struct {
        double at, done;
    } cases[] = {{0, 0},  {10, 0},    {15, 0.5}, {20, 1}, {25, 1.5},
                 {30, 2}, {60, 2.75}, {70, 3},   {90, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(fabs(weft_measure_done_at(10, ends, 3, cases[i].at) - cases[i].done) < 1e-12);
    static const double at_once[] = {10, 10};
    assert_true(weft_measure_done_at(10, at_once, 2, 10) == 2);
}

CASE(spreads_are_told)
{
    char *text = NULL;
    size_t bytes = 0;
    weft_cluster c = {.name = "c", .num_nodes = 1, .ranks_per_node = 1};
    c.interference = weft_interference_none();
    c.costs[WEFT_COST_COPY] = (weft_cost){.peak = 1e9, .curve = weft_curve_linear(1, 1e3)};
    c.costs[WEFT_COST_MEMORY] = c.costs[WEFT_COST_COPY];
    weft_measure_say_source(&c, "costs.copy", 0.31);
    weft_measure_say_source(&c, "costs.memory", 0.04);
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    OK(weft_calibrate_print(&c, false, out));
    fclose(out);
    assert_non_null(strstr(text, ", spread 31 %\n"));
    assert_non_null(strstr(text, ", spread 4 %\n"));
    free(text);
    out = open_memstream(&text, &bytes);
    assert_non_null(out);
    weft_calibrate_warn(&c, out);
    fclose(out);
    assert_string_equal(text, "weft calibrate: costs.copy: half of its measurements spread over "
                              "31 % of the median; measure again on a quiet machine\n");
    free(text);
}

/* One line for many; a number for people. No size of messages is "0 bytes". */
CASE(many_spreads_are_one_line)
{
    char *text = NULL;
    size_t bytes = 0;
    weft_cluster c = {.name = "c", .num_nodes = 1, .ranks_per_node = 2};
    c.interference = weft_interference_none();
    c.costs[WEFT_COST_COPY] = (weft_cost){.peak = 1e9, .curve = weft_curve_linear(1, 1e3)};
    c.hardware.given = 1u << WEFT_FIGURE_INSIDE_EAGER;
    weft_measure_say_source(&c, "costs.copy", 2.5);
    weft_measure_say_source(&c, "costs.memory", 0.04);
    weft_measure_say_source(&c, "costs.adamw", 12);
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    weft_calibrate_warn(&c, out);
    OK(weft_calibrate_print(&c, false, out));
    fclose(out);
    const char *line = "weft calibrate: 2 of 3 measured numbers are uncertain (--json: all "
                       "spreads), most of all costs.adamw: half of its measurements spread over at "
                       "least 10 times the median; measure again on a quiet machine\n";
    if (strncmp(text, line, strlen(line)) != 0 || !strstr(text, ", spread 2.5 times\n") ||
        !strstr(text, ": no message inside a node travels before its receiver asks\n"))
        fail_msg("%s", text);
    free(text);
}

/* --- the verb ------------------------------------------------------------------------------ */

/* Whether a file here goes past the page cache. */
static bool takes_direct(void)
{
    const int file = open("direct", O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (file >= 0)
        close(file);
    unlink("direct");
    return file >= 0;
}

static bool is_measured_alone(weft_cost_kind kind)
{
    if (kind == WEFT_COST_DIRECT_WRITE || kind == WEFT_COST_DIRECT_READ)
        return takes_direct();
    return (kind >= WEFT_COST_COPY && kind <= WEFT_COST_GEMM_BF16) ||
           kind >= WEFT_COST_ATTENTION_FP32;
}

CASE(one_rank_measures_what_it_can)
{
    child c;
    weft_cluster cluster;
    CHILD_RUN(&c, "calibrate", "--out", "a.json", "--quick", "--name", "here");
    if (c.exit_code != 0)
        fail_msg("exit %d: %s", c.exit_code, c.err);
    assert_non_null(strstr(c.err, "all-to-all between nodes: cannot be measured with 1 node"));
    assert_non_null(strstr(c.out, "not measured: all_to_all, "));
    assert_non_null(strstr(c.out, "\none rank has no links: "));
    assert_non_null(strstr(c.err, ", of about 0.2 s each: about "));
    assert_non_null(strstr(c.err, "; 1 of "));
    assert_non_null(strstr(c.err, " s left\n"));
    assert_non_null(strstr(c.out, "gemm_fp32: GEMM in fp32, peak "));
    OK(weft_cluster_read("a.json", &cluster));
    assert_string_equal(cluster.name, "here");
    assert_int_equal(cluster.num_nodes * cluster.ranks_per_node, 1);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        assert_int_equal(weft_cluster_knows(&cluster, (weft_cost_kind)i),
                         is_measured_alone((weft_cost_kind)i));
    for (int i = 0; i < WEFT_NUM_COSTS; i++) { /* each says how far its trains lay apart */
        char key[48];
        snprintf(key, sizeof key, "costs.%s", weft_cost_text((weft_cost_kind)i));
        const weft_source *source = weft_cluster_source(&cluster, -1, key);
        assert_true(!source == !weft_cluster_knows(&cluster, (weft_cost_kind)i));
        if (source && strcmp(source->where, "weft calibrate") != 0)
            fail_msg("%s is from %s", key, source->where);
    }
    /* --json is the file; --only leaves the rest out. */
    CHILD_RUN(&c, "calibrate", "--out", "b.json", "--quick", "--json", "--only", "copy,gemm_bf16",
              "--no-interference", "--max-bytes", "4k");
    char *text = child_read("b.json");
    assert_non_null(text);
    assert_string_equal(c.out, text);
    OK(weft_cluster_read("b.json", &cluster));
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        assert_int_equal(weft_cluster_knows(&cluster, (weft_cost_kind)i),
                         i == WEFT_COST_COPY || i == WEFT_COST_GEMM_BF16);
    const weft_curve *copy = &cluster.costs[WEFT_COST_COPY].curve;
    assert_true(copy->volume[copy->num_points - 1] == 4096);
    assert_true(cluster.interference.alpha[0][2] == 1);
}

/* What shares no memory with the device's own step; what goes past the page cache in whole blocks,
 * however small the volumes are to be. */
CASE(hosts_and_their_files_are_measured)
{
    child c;
    weft_cluster cluster;
    CHILD_RUN(&c, "calibrate", "--out", "d.json", "--quick", "--only",
              "adamw_host,direct_write,direct_read", "--no-interference", "--max-bytes", "256",
              "--threads", "2");
    if (c.exit_code != 0)
        fail_msg("exit %d: %s", c.exit_code, c.err);
    const bool says_no = strstr(c.err, "does not go past the page cache (O_DIRECT)") != NULL;
    assert_int_equal(says_no, !takes_direct());
    OK(weft_cluster_read("d.json", &cluster));
    const weft_curve *step = &cluster.costs[WEFT_COST_ADAMW_HOST].curve;
    assert_true(step->num_points == 1 && step->volume[0] == 256);
    const weft_curve *direct = &cluster.costs[WEFT_COST_DIRECT_READ].curve;
    assert_int_equal(direct->num_points, takes_direct());
    assert_true(direct->num_points == 0 || direct->volume[0] == 4096);
    if (access("/dev/shm", W_OK) != 0)
        return;
    /* Memory as a file system: it may refuse, and then says so; all else is measured. */
    CHILD_RUN(&c, "calibrate", "--out", "e.json", "--quick", "--only", "storage_write,direct_write",
              "--no-interference", "--storage", "/dev/shm");
    assert_int_equal(c.exit_code, 0);
    OK(weft_cluster_read("e.json", &cluster));
    assert_true(weft_cluster_knows(&cluster, WEFT_COST_STORAGE_WRITE));
    assert_int_equal(!strstr(c.err, "/dev/shm: the file system does not go past the page cache"),
                     weft_cluster_knows(&cluster, WEFT_COST_DIRECT_WRITE));
}

/* Bytes/s that one thread reads and writes far beyond its caches, at best; 0: no memory for it. By
 * pieces that are over before others get the core. */
static double memory_rate(void)
{
    enum { ROUNDS = 4 };
    const size_t bytes = (size_t)256 << 20, piece = (size_t)8 << 20;
    char *from = malloc(bytes), *to = malloc(bytes);
    double best_us = INFINITY;
    if (from && to) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
    }
    for (size_t at = 0; from && to && at < ROUNDS * bytes; at += piece) {
        const double start = weft_now_us();
        memcpy(to + at % bytes, from + at % bytes, piece);
        best_us = fmin(best_us, weft_now_us() - start);
        from[at % bytes] = to[at % bytes + 1];
    }
    free(from);
    free(to);
    return 2 * (double)piece / best_us * 1e6;
}

/* The best rate of the host's step over that of the memory, in the same seconds. */
static double step_beats_memory(void)
{
    child c;
    weft_cluster cluster;
    double best = 0;
    CHILD_RUN(&c, "calibrate", "--out", "h.json", "--only", "adamw_host", "--no-interference",
              "--seconds", "1", "--threads", "2");
    if (c.exit_code != 0)
        fail_msg("exit %d: %s", c.exit_code, c.err);
    OK(weft_cluster_read("h.json", &cluster));
    const weft_curve *step = &cluster.costs[WEFT_COST_ADAMW_HOST].curve;
    const double memory = 2 * memory_rate(); /* of two threads */
    for (int i = 0; i < step->num_points && memory > 0; i++)
        best = fmax(best, step->volume[i] / step->time_us[i] * 1e6 / memory);
    return best;
}

/* A step never meets an expert of the step before in a cache: what one takes cannot beat the
 * memory's rate, with room for a faster kernel. Other work slows one of the two now and then; a
 * cache would be faster each time. */
CASE(hosts_step_what_no_cache_holds)
{
    double least = step_beats_memory();
    for (int i = 0; i < 5 && least > 1.5; i++)
        least = fmin(least, step_beats_memory());
    if (least > 1.5)
        fail_msg("steps at %.3g times what memory gives", least);
}

static const char model_text[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4,"
    " \"seq_length\": 16, \"vocab_size\": 61, \"num_experts\": 4, \"moe_layer_freq\": [0, 1],"
    " \"ffn_hidden_size\": 48, \"swiglu\": true},"
    " \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 2, \"train_iters\": 1,"
    " \"precision\": \"%s\"}, \"data\": {\"mock_data\": true}}";

/* Whether what takes FLOPs or bytes in this config is in the file, each at its own shape. */
static void check_operations(const weft_cluster *cluster)
{
    static const char *const modules[] = {"embedding",  "input_layernorm", "core_attention",
                                          "activation", "router",          "combine",
                                          "loss"};
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        bool found = false;
        for (int k = 0; k < cluster->num_operations; k++)
            found |= strcmp(cluster->operations[k].module, modules[i]) == 0;
        if (!found)
            fail_msg("%s was not measured", modules[i]);
    }
    bool experts = false, head = false;
    for (int i = 0; i < cluster->num_products; i++) {
        const weft_product *p = &cluster->products[i];
        experts |= p->m == 8 && p->n == 96 && p->k == 32; /* 16 tokens, 2 each, of 4 */
        head |= p->m == 16 && p->n == 61 && p->k == 32;
    }
    assert_true(experts && head);
}

/* The file that --for writes prices the model by what was measured alone. */
CASE(a_model_has_its_own_operations)
{
    static const char *const types[] = {"fp32", "bf16"};
    for (int i = 0; i < 2; i++) {
        child c;
        weft_cluster cluster;
        FILE *config = fopen("model.json", "w");
        assert_non_null(config);
        fprintf(config, model_text, types[i]);
        fclose(config);
        CHILD_RUN(&c, "calibrate", "--for", "model.json", "--out", "own.json", "--only",
                  "adamw,memory", "--quick", "--no-interference", "--threads", "1");
        if (c.exit_code != 0)
            fail_msg("exit %d: %s", c.exit_code, c.err);
        assert_non_null(strstr(c.err, "operations of the model: sweep 3 of 3\n"));
        OK(weft_cluster_read("own.json", &cluster));
        check_operations(&cluster);
        CHILD_RUN(&c, "plan", "model.json", "--cluster", "own.json", "--json");
        if (c.exit_code != 0)
            fail_msg("exit %d: %s", c.exit_code, c.err);
        assert_non_null(strstr(c.out, "\"source\": \"measured\""));
    }
}

#define COSTS                                                                                      \
    "all_to_all, all_to_all_inside, all_gather, all_reduce, all_reduce_between, message, "         \
    "message_inside, copy, to_host, to_device, gemm_fp32, gemm_bf16, all_gather_between, "         \
    "reduce_scatter, reduce_scatter_between, attention_fp32, attention_bf16, memory, adamw, "      \
    "storage_write, storage_read, adamw_host, direct_write or direct_read"

static const struct misuse {
    const char *args[10];
    int exit_code;
    const char *wanted;
} misuses[] = {
    {{"calibrate"}, 2, "weft calibrate: --out CLUSTER is missing; see weft calibrate --help"},
    {{"calibrate", "--out"}, 2, "weft calibrate: --out: its value CLUSTER is missing"},
    {{"calibrate", "--fast"}, 2, "weft calibrate: --fast: unknown option"},
    {{"calibrate", "--out", "x", "y"}, 2, "weft calibrate: y: unexpected"},
    {{"calibrate", "--out", "x", "--seconds", "0"},
     2,
     "weft calibrate: --seconds 0: 0 is out of range: 0.01 to 3600"},
    {{"calibrate", "--out", "x", "--seconds", "nan"}, 2, "weft calibrate: --seconds nan: exp"},
    {{"calibrate", "--out", "x", "--max-bytes", "1"},
     2,
     "weft calibrate: --max-bytes 1: 1 is out of range: 256 to 64GiB"},
    {{"calibrate", "--out", "x", "--max-bytes", "4T"},
     2,
     "weft calibrate: --max-bytes 4T: \"4T\" is out of range: 256 to 64GiB"},
    {{"calibrate", "--out", "x", "--threads", "0"},
     2,
     "weft calibrate: --threads 0: 0 is out of range: 1 to 4096"},
    {{"calibrate", "--out", "x", "--only", "coppy"},
     2,
     "weft calibrate: --only coppy: expected " COSTS ", got \"coppy\"; did you mean copy?\n"},
    {{"calibrate", "--out", "x", "--only", ","},
     2,
     "weft calibrate: --only \"\": expected all_to_all, "},
    {{"calibrate", "--out", "x", "--quick", "--ranks-per-node", "2"},
     2,
     "weft calibrate: 1 rank cannot be divided into nodes of 2"},
    {{"calibrate", "--out", "x", "--storage", "none"}, 6, "weft calibrate: none: cannot write: "},
    {{"calibrate", "--out", "x", "--mesh", "tp=2"}, 2, "weft calibrate: --mesh: needs --for"},
    {{"calibrate", "--out", "x", "--for", "none.json"}, 2, "weft calibrate: none.json: "},
    {{"calibrate", "--out", "x", "--for", "model.json", "--mesh", "tp=3"},
     2,
     "weft calibrate: --mesh tp=3"},
    {{"calibrate", "--out", "x", "--for", "model.json", "--mesh", "dp=8192",
      "--set=global_batch_size=8192"},
     2,
     "weft calibrate: --for model.json: 8192 ranks on the "},
    {{"calibrate", "--out", ""}, 2, "weft calibrate: --out: its value CLUSTER is missing"},
    {{"calibrate", "--out", "/dev/full"},
     6,
     "weft calibrate: /dev/full: cannot write: not a regular file"},
    {{"calibrate", "--out", "."}, 6, "weft calibrate: .: cannot write: Is a directory"},
    {{"calibrate", "--out", "none/x"}, 6, "weft calibrate: none/x: cannot write: "},
};

/* mpirun's own block behind it counts for none. */
static void ranks_without_a_gpu_say_one_line(void)
{
    static const char env[] = "/usr/bin/env";
    const char *why, *weft = getenv("WEFT_BINARY_DIR");
    char program[1024];
    child c;
    if (weft_device_num_cuda(&why) > 0)
        return;
    snprintf(program, sizeof program, "%s/weft", weft);
    child_run_other(env, &c,
                    WORDS("mpirun", "--allow-run-as-root", "--oversubscribe", "-q", "-n", "2",
                          program, "calibrate", "--out", "x", "--quick", "--device", "cuda"),
                    NULL);
    if (c.exit_code != 4 || !child_is_line(c.err) || strncmp(c.err, "weft calibrate: ", 16) != 0)
        fail_msg("exit %d: %s", c.exit_code, c.err);
}

CASE(misuse_is_one_line_and_writes_nothing)
{
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        child c;
        child_run(&c, misuses[i].args, NULL);
        if (c.exit_code != misuses[i].exit_code || !child_is_line(c.err) ||
            strncmp(c.err, misuses[i].wanted, strlen(misuses[i].wanted)) != 0)
            fail_msg("exit %d: %sfor %s", c.exit_code, c.err, misuses[i].wanted);
        assert_string_equal(c.out, "");
        assert_int_equal(access("x", F_OK), -1);
    }
    child c;
    CHILD_RUN(&c, "calibrate", "--out", "x", "--quick", "--only", "message", "--no-interference");
    assert_int_equal(c.exit_code, 2);
    assert_non_null(strstr(c.err, "weft calibrate: --only: none of these costs can be measured "
                                  "with 1 node of 1 rank\n"));
    assert_int_equal(access("x", F_OK), -1);
    child_run(&c, WORDS("calibrate", "--out", "x", "--for", "model.json", "--mesh", "tp=2"),
              WORDS("PATH=/nowhere"));
    assert_int_equal(c.exit_code, 5);
    assert_non_null(strstr(c.err, "cannot start mpirun for 2 ranks: is it on PATH?"));
    child_run(&c, WORDS("calibrate", "--out", "x", "--for", "model.json", "--mesh", "tp=2"),
              WORDS("TMPDIR=/dev/full"));
    assert_int_equal(c.exit_code, 6);
    assert_string_equal(c.err, "weft calibrate: /dev/full: cannot write there what mpirun keeps of "
                               "a job: Not a directory; TMPDIR can name another folder\n");
    ranks_without_a_gpu_say_one_line();
    CHILD_RUN(&c, "calibrate", "--help");
    assert_int_equal(c.exit_code, 0);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        assert_non_null(strstr(c.out, weft_cost_text((weft_cost_kind)i)));
}

int main(void)
{
    child_begin();
    const int failed = run_cases();
    child_finish();
    return failed;
}
