/* weft plan --kernels plain: what stages keep of published models under every kind of
 * recomputation, against the formulas of Korthikanti et al. 2022; what the kernels cost beside
 * Weft's; what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* The 22B of their table 3. */
static const char config[] =
    "{\"model\": {\"num_layers\": 48, \"hidden_size\": 6144, \"num_attention_heads\": 64, "
    "\"seq_length\": 2048, \"vocab_size\": 51200}, "
    "\"parallel\": {\"use_distributed_optimizer\": false}, "
    "\"train\": {\"micro_batch_size\": 4, \"global_batch_size\": 64, \"train_iters\": 1, "
    "\"precision\": \"fp16\"}, \"data\": {\"mock_data\": true}}";
static const char small[] =
    "{\"model\": {\"num_layers\": 48, \"num_attention_heads\": 4, \"seq_length\": 128, "
    "\"vocab_size\": 1024}, \"parallel\": {\"use_distributed_optimizer\": false}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 16, \"train_iters\": 1, "
    "\"precision\": \"fp16\"}, \"data\": {\"mock_data\": true}}";
static const char experts[] =
    "{\"model\": {\"num_layers\": 8, \"hidden_size\": 2048, \"num_attention_heads\": 16, "
    "\"seq_length\": 1024, \"vocab_size\": 51200, \"num_experts\": 16, \"moe_router_topk\": 1}, "
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 64, \"train_iters\": 1, "
    "\"precision\": \"fp16\"}, \"data\": {\"mock_data\": true}}";

/* The caller's; NULL: no plan. */
static cJSON *plan(const char *file, const char *kernels, const char *mesh, const char *set)
{
    const char *args[12] = {"plan",  file,     "--cluster", "cluster.json", "--json", "--kernels",
                            kernels, "--mesh", mesh};
    if (set)
        args[9] = "--set", args[10] = set;
    return child_json(args);
}

/* What the one stage keeps, the ends' own left out: the embedding's mask, the last norm's input and
 * output, the logits. */
static double decoder_bytes(const cJSON *json, double rows, double tp)
{
    const cJSON *stage = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "stages"), 0);
    const double all = number_of(cJSON_GetObjectItem(stage, "memory"), "activations");
    return all - rows * 6144 * (1 + 2 + 2) - 4.0 * 2048 * 4 * 51200 / tp;
}

static void check_memory(void)
{
    static const char *const recomputes[] = {"train.recompute_granularity=none",
                                             "train.recompute_granularity=selective",
                                             "train.recompute_granularity=full"};
    static const int tps[] = {1, 2, 8};
    const double s = 2048, b = 4, h = 6144, a = 64, layers = 48;
    for (size_t i = 0; i < sizeof tps / sizeof *tps; i++)
        for (int sp = 0; sp < 2; sp++)
            for (int r = 0; r < 3; r++) {
                const double t = tps[i], share = sp ? t : 1, scores = r == 0 ? 5 * a * s / h : 0;
                const double wanted = r == 2 ? 2 * s * b * h / share
                                      : sp   ? s * b * h / t * (34 + scores)
                                             : s * b * h * (10 + 24 / t + scores / t);
                char mesh[64];
                if (sp && t == 1)
                    continue;
                snprintf(mesh, sizeof mesh, "tp=%d,sp=%d", tps[i], sp);
                cJSON *json = plan("dense.json", "plain", mesh, recomputes[r]);
                const double kept = decoder_bytes(json, s * b / share, t);
                EXPECT(fabs(kept / (layers * wanted) - 1) < 1e-3, "%s, %s: %g instead of %g", mesh,
                       recomputes[r], kept, layers * wanted);
            }
}

/* A stage between the ends keeps its layers' of each micro-batch in flight, and nothing else. */
static void check_stages(void)
{
    const double layer = 2.0 * 2048 * 4 * 6144;
    cJSON *json = plan("dense.json", "plain", "tp=8,pp=4", "train.recompute_granularity=full");
    for (int s = 1; s < 3; s++) {
        const cJSON *stage = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "stages"), s);
        const double in_flight =
            number_of(cJSON_GetObjectItem(stage, "memory"), "activations") / (12 * layer);
        EXPECT(fabs(in_flight - (4 - s)) < 1e-9, "stage %d: %g micro-batches", s, in_flight);
    }
}

static double step_of(const char *file, const char *kernels, const char *mesh, const char *set)
{
    cJSON *json = plan(file, kernels, mesh, set);
    const double step = number_of(json, "step_time_s");
    double sum = 0;
    for (const cJSON *t = cJSON_GetObjectItem(json, "time")->child; t; t = t->next)
        sum += t->valuedouble;
    EXPECT_NEAR(sum, step, 1e-6 * step);
    return step;
}

/* Seconds of a step on A100 80 GB: Korthikanti et al. 2022, tables 3 and 5. What others measured of
 * single operations has to give them. */
static void check_published(void)
{
    static const struct {
        const char *model, *mesh;
        int micro, batch;
        double full, selective;
    } rows[] = {
        {"\"num_layers\": 48, \"hidden_size\": 6144, \"num_attention_heads\": 64", "tp=8", 4, 4,
         1.42, 1.10},
        {"\"num_layers\": 96, \"hidden_size\": 12288, \"num_attention_heads\": 96",
         "tp=8,pp=8,vp=3", 1, 64, 18.13, 13.75},
        {"\"num_layers\": 105, \"hidden_size\": 20480, \"num_attention_heads\": 128",
         "tp=8,pp=35,vp=3", 1, 280, 49.05, 37.83},
        {"\"num_layers\": 128, \"hidden_size\": 25600, \"num_attention_heads\": 160", "tp=8,pp=64",
         1, 512, 94.42, 71.49},
    };
    const size_t count = sizeof rows / sizeof *rows;
    char path[4096];
    double sum = 0;
    snprintf(path, sizeof path, "%s/examples/clusters/a100-80gb.json", getenv("WEFT_SOURCE_DIR"));
    for (size_t i = 0; i < 2 * count; i++) {
        const bool full = i % 2 == 0;
        char text[1024], mesh[64];
        snprintf(text, sizeof text,
                 "{\"model\": {%s, \"seq_length\": 2048, \"vocab_size\": 51200, "
                 "\"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}, \"parallel\": "
                 "{\"use_distributed_optimizer\": false}, \"train\": {\"micro_batch_size\": %d, "
                 "\"global_batch_size\": %d, \"train_iters\": 1, \"precision\": \"fp16\", "
                 "\"recompute_granularity\": \"%s\"}, \"data\": {\"mock_data\": true}}",
                 rows[i / 2].model, rows[i / 2].micro, rows[i / 2].batch,
                 full ? "full" : "selective");
        snprintf(mesh, sizeof mesh, "%s%s", rows[i / 2].mesh, full ? "" : ",sp=1");
        EXPECT(child_write("published.json", text), "cannot write published.json");
        cJSON *json =
            child_json((const char *[]){"plan", "published.json", "--cluster", path, "--json",
                                        "--kernels", "plain", "--mesh", mesh, NULL});
        const double wanted = full ? rows[i / 2].full : rows[i / 2].selective;
        const double error = number_of(json, "step_time_s") / wanted - 1;
        EXPECT(fabs(error) < 0.06, "%s: off by %g", mesh, error);
        sum += fabs(error);
    }
    EXPECT(sum / (2 * (double)count) < 0.025, "a mean error of %g", sum / (2 * (double)count));
}

static void check_times(void)
{
    static const char full[] = "train.recompute_granularity=full";
    static const char selective[] = "train.recompute_granularity=selective";
    static const char hot[] = "model.moe_router_forced_load=2";
    const double none = step_of("dense.json", "plain", "tp=8", NULL);
    EXPECT(none > step_of("dense.json", "weft", "tp=8", NULL), "plain kernels cost nothing");
    const double some = step_of("dense.json", "plain", "tp=8", selective);
    const double all = step_of("dense.json", "plain", "tp=8", full);
    /* a forward is a third; core attention of it is little */
    EXPECT(some > 1.01 * none && some < 1.12 * none && all > 1.25 * none && all < 1.45 * none,
           "%g s, selective %g, full %g", none, some, all);
    EXPECT(step_of("dense.json", "plain", "tp=8,sp=1", NULL) < none, "norms are not shared");
    /* Nothing hides the reductions of 2021; on one rank its norms alone take longer. */
    double tensor[2];
    for (int year = 0; year < 2; year++) {
        cJSON *json = plan("dense.json", year ? "plain-2021" : "plain", "tp=8", full);
        tensor[year] = number_of(cJSON_GetObjectItem(json, "time"), "tensor");
    }
    /* 6 all-reduces a layer, of which 2 were beside products that lacked 24 of 108 multiprocessors
     */
    EXPECT(tensor[1] / tensor[0] > 1.2 && tensor[1] / tensor[0] < 6 / (4 + 2 * 24 / 108.0) + 0.02,
           "reductions: %g s and %g s", tensor[0], tensor[1]);
    const double old = step_of("dense.json", "plain-2021", "tp=1", full);
    const double later = step_of("dense.json", "plain", "tp=1", full);
    EXPECT(old > later && old < 1.02 * later, "norms: %g s and %g s", old, later);
    /* Each message is waited for; each rank sends its share of the rows. */
    cJSON *json = plan("dense.json", "plain", "tp=8,pp=4", NULL);
    EXPECT(number_of(cJSON_GetObjectItem(json, "time"), "pipeline") > 0, "messages cost nothing");
    EXPECT(step_of("experts.json", "plain", "dp=8,ep=8", NULL) >
               1.2 * step_of("experts.json", "weft", "dp=8,ep=8", NULL),
           "masks cost nothing");
    EXPECT(step_of("experts.json", "plain", "dp=8,ep=8", hot) >
               1.2 * step_of("experts.json", "plain", "dp=8,ep=8", NULL),
           "padding costs nothing");
    /* Whole experts, too, lie along dp: their rows leave the node. */
    double sent[2];
    for (int whole = 0; whole < 2; whole++) {
        json = plan("experts.json", "plain",
                    whole ? "tp=8,dp=8,ep=8,etp=1" : "tp=8,dp=8,ep=8,etp=8", NULL);
        sent[whole] = number_of(cJSON_GetObjectItem(json, "time"), "expert");
    }
    EXPECT(fabs(sent[1] / sent[0] - 1) < 0.2, "%g s and %g s", sent[0], sent[1]);
    (void)step_of("experts.json", "plain", "tp=8,binding=tp", NULL);
    (void)step_of("experts.json", "plain", "tp=2,dp=8,ep=8,etp=2,pp=2", NULL);
}

/* Reductions that backward hides take 24 of its 108 multiprocessors as long as they are under way.
 */
static void check_taken(void)
{
    static const char *const overlaps[] = {"parallel.overlap_grad_reduce=true",
                                           "parallel.overlap_grad_reduce=false"};
    double data[2];
    for (int i = 0; i < 2; i++) {
        cJSON *json = plan("dense.json", "plain", "tp=8,dp=16", overlaps[i]);
        data[i] = number_of(cJSON_GetObjectItem(json, "time"), "data");
    }
    EXPECT(data[0] > 0.22 * data[1] && data[0] < 0.3 * data[1], "hidden %g s, alone %g s", data[0],
           data[1]);
}

/* Kernels that take less than a framework needs to issue them wait for it: 15 of a layer's forward,
 * at least 25 of its backward, 7 us each. On a rank of its own no more is there than that. */
static void check_issue(void)
{
    static const char set[] = "model.hidden_size=64";
    const double layers = 48, passes = 16, least = 7e-6 * (15 + 25) * layers * passes;
    const double step = step_of("short.json", "plain", "tp=1", set);
    EXPECT(step > least && step < 1.5 * least, "%g s instead of %g", step, least);
    const double weft = step_of("short.json", "weft", "tp=1", set);
    EXPECT(weft < 0.7 * step, "Weft's own kernels wait: %g s", weft);
}

static double bubble_of(const char *mesh)
{
    cJSON *json = plan("experts.json", "plain", mesh, "model.num_layers=32");
    const cJSON *time = cJSON_GetObjectItem(json, "time");
    const double share = number_of(time, "bubble") / number_of(json, "step_time_s");
    return share;
}

/* Virtual stages shorten the bubble with experts, too: messages are handed over when passes are
 * over, whatever a host waits for. */
static void check_virtual_stages(void)
{
    const double one = bubble_of("pp=8,dp=2,ep=2"), two = bubble_of("pp=8,dp=2,ep=2,vp=2");
    EXPECT(two < 0.85 * one, "bubble: %g of a step, with two virtual stages %g", one, two);
}

static void check_refusals(void)
{
    CHILD_REFUSED(2, "plain", "plan", "dense.json", "--cluster", "cluster.json", "--kernels",
                  "plane");
    CHILD_REFUSED(2, "parallel.context_parallel_size: plain kernels see whole sequences", "plan",
                  "dense.json", "--cluster", "cluster.json", "--kernels", "plain", "--mesh",
                  "cp=2");
    CHILD_REFUSED(2, "plain kernels offload nothing", "plan", "dense.json", "--cluster",
                  "cluster.json", "--kernels", "plain", "--set",
                  "train.fine_grained_activation_offloading=true");
    CHILD_REFUSED(2, "of plain kernels core_attn alone is made again", "plan", "experts.json",
                  "--cluster", "cluster.json", "--kernels", "plain", "--set",
                  "train.recompute_granularity=selective", "--set",
                  "train.recompute_modules=[\"moe\"]");
    CHILD_REFUSED(2, "no run has plain kernels", "plan", "dense.json", "--cluster", "cluster.json",
                  "--kernels", "plain", "--against", "run");
    CHILD_REFUSED(2, "parallel.context_parallel_size: plain kernels see whole sequences", "plan",
                  "dense.json", "--cluster", "cluster.json", "--kernels", "plain-2021", "--mesh",
                  "cp=2");
    CHILD_REFUSED(2, "no run has plain kernels", "plan", "dense.json", "--cluster", "cluster.json",
                  "--kernels", "plain-2021", "--against", "run");
    CHILD_REFUSED(2, "kernels", "train", "dense.json", "--out", "run", "--kernels", "plain");
}

int main(void)
{
    child_begin();
    child_cluster("a100-80gb", "cluster.json");
    EXPECT(child_write("dense.json", config) && child_write("experts.json", experts) &&
               child_write("short.json", small),
           "cannot write what is planned");
    check_memory();
    check_stages();
    check_published();
    check_times();
    check_taken();
    check_issue();
    check_virtual_stages();
    check_refusals();
    return child_finish();
}
