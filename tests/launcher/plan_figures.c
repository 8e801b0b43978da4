/* What a plan says beside its price: sums, ranges, loads of experts, failures and costs by hand,
 * and a checkpoint's bytes beside those that a run writes. And reductions of shared-out gradients,
 * which go on beside the next forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "launcher/planning/figures.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

#define MODEL(more, batch)                                                                         \
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 4, "            \
    "\"seq_length\": 32, \"vocab_size\": 250" more "}, \"train\": {\"micro_batch_size\": 1, "      \
    "\"global_batch_size\": " batch ", \"train_iters\": 1}, \"data\": {\"mock_data\": true}}"

static const char dense[] = MODEL("", "8");
static const char untied[] = MODEL(", \"untie_embeddings_and_output_weights\": true", "8");
static const char moe[] = MODEL(", \"num_experts\": 8, \"moe_router_topk\": 2", "16");

/* Figures of one class and spread, no efficiencies: all times scale alike. %s: more sections. */
#define SHEET                                                                                      \
    "{\"name\": \"sheet\", \"num_nodes\": 4, \"ranks_per_node\": 4, \"device\": {"                 \
    "\"memory_bytes\": 1e10, \"memory_bandwidth\": 1e12, \"launch_us\": 3, "                       \
    "\"peak\": {\"fp32\": 2e13, \"bf16\": 4e13}}, "                                                \
    "\"inside\": {\"bandwidth\": 1e11, \"latency_us\": 2}, "                                       \
    "\"between\": {\"cards\": 4, \"bandwidth\": 1e10, \"latency_us\": 5}%s, "                      \
    "\"sources\": {\"device\": [\"datasheet\", \"the sheet\", %g], "                               \
    "\"inside\": [\"datasheet\", \"the sheet\", %g], \"between\": [\"assumed\", \"\", %g]}}"

static void write_cluster(const char *path, const char *more, double spread)
{
    char text[4096];
    snprintf(text, sizeof text, SHEET, more, spread, spread, spread);
    EXPECT(child_write(path, text), "cannot write %s", path);
}

static const cJSON *object(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    EXPECT(item, "no %s", key);
    return item;
}

static void near(double value, double wanted, double share)
{
    EXPECT_NEAR(value, wanted, share * fabs(wanted));
}

/* The plan as JSON; the caller's. more: further arguments, NULL at the end, or NULL. */
static cJSON *plan(const char *config, const char *cluster, const char *mesh,
                   const char *const *more)
{
    const char *args[CHILD_MAX_ARGS] = {"plan",  config,   "--json", "--cluster",
                                        cluster, "--mesh", mesh};
    for (int n = 7; more && *more; n++)
        args[n] = *more++;
    return child_json(args);
}

/* --- sums ------------------------------------------------------------------------------------ */

static void check_parts(void)
{
    static const struct {
        const char *config, *mesh, *set;
    } rows[] = {
        {"dense.json", "dp=1", NULL},
        {"dense.json", "pp=2", NULL},
        {"untied.json", "pp=4,dp=2", "train.precision=bf16"},
        {"untied.json", "dp=4,zero=1", "train.precision=bf16"},
        {"dense.json", "dp=4,zero=2", NULL},
        {"untied.json", "dp=4,zero=3", NULL},
        {"moe.json", "dp=4,ep=4,binding=dp,zero=1", NULL},
        {"moe.json", "tp=2,pp=2,dp=2", NULL},
        {"dense.json", "pp=2,vp=2", "train.recompute_granularity=full"},
    };
    static const char *const purposes[] = {"weights", "gradients", "optimizer", "activations"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const more[] = {rows[i].set ? "--set" : NULL, rows[i].set, NULL};
        cJSON *json = plan(rows[i].config, "cluster.json", rows[i].mesh, more);
        const cJSON *stages = object(json, "stages");
        for (const cJSON *s = stages ? stages->child : NULL; s; s = s->next)
            for (int p = 0; p < 4; p++) {
                double sum = 0;
                for (const cJSON *part = object(s, "parts")->child; part; part = part->next)
                    sum += number_of(part, purposes[p]);
                EXPECT(sum == number_of(object(s, "memory"), purposes[p]),
                       "%s, %s: %s of the parts %g, of the stage %g", rows[i].config, rows[i].mesh,
                       purposes[p], sum, number_of(object(s, "memory"), purposes[p]));
            }
        near(number_of(json, "tokens_per_s_per_device") * number_of(json, "num_devices"),
             number_of(json, "tokens_per_s"), 1e-12);
        double sum = 0;
        for (const cJSON *t = object(json, "time")->child; t; t = t->next)
            sum += t->valuedouble;
        near(sum, number_of(json, "step_time_s"), 1e-9);
    }
    /* 250 words and 32 positions of 64; a head of its own with a norm. */
    cJSON *json = plan("untied.json", "cluster.json", "dp=1", NULL);
    const cJSON *parts = object(object(json, "stages")->child, "parts");
    const double embedding = number_of(object(parts, "embedding"), "optimizer"),
                 head = number_of(object(parts, "head"), "optimizer");
    near(embedding, (250 + 32) * 64 * 8, 0.02); /* but for padding */
    near(head, (250 * 64 + 2 * 64) * 8, 0.02);
}

/* --- reductions ------------------------------------------------------------------------------ */

static double sharded_step(const char *mesh, int num_micro_batches)
{
    char batch[48];
    snprintf(batch, sizeof batch, "train.global_batch_size=%d", 16 * num_micro_batches);
    cJSON *json = plan("dense.json", "cluster.json", mesh,
                       WORDS("--set", batch, "--set", "model.hidden_size=512", "--set",
                             "parallel.ddp_bucket_size=1000000"));
    const double step = number_of(json, "step_time_s");
    return step;
}

/* Where reductions take longer than all passes, the forward between two backwards costs nothing.
 * With one micro-batch as much is reduced, once, as with ZeRO-1. */
static void check_reductions(void)
{
    static const char beside[] = "dp=16,zero=2", behind[] = "dp=16,zero=2,schedule=gpipe";
    cJSON *json = child_json(WORDS("schedule", "dense.json", "--json", "--cluster", "cluster.json",
                                   "--mesh", beside, "--level", "pass", "--set",
                                   "model.hidden_size=512", "--set", "train.global_batch_size=16"));
    const double forward = number_of(object(json, "programs")->child, "us") / 1e6;
    for (int n = 1; n < 4; n++) {
        EXPECT_NEAR(sharded_step(behind, n) - sharded_step(beside, n), (n - 1) * forward, 1e-9);
        near(sharded_step(beside, n + 1) - sharded_step(beside, n),
             sharded_step(beside, 2) - sharded_step(beside, 1), 1e-9);
    }
    near(sharded_step(beside, 1), sharded_step("dp=16,zero=1", 1), 0.02);
}

/* Replicas nearer than parts of a sequence: all ranks sum the same gradients over the same nodes.
 */
static void check_order(void)
{
    double us[2];
    for (int i = 0; i < 2; i++) {
        cJSON *json =
            plan("dense.json", "cluster.json", i ? "cp=2,dp=8,order=tp-ep-dp-cp-pp" : "cp=2,dp=8",
                 WORDS("--set", "parallel.overlap_grad_reduce=false"));
        us[i] = number_of(object(json, "time"), "data");
    }
    near(us[1], us[0], 1e-9);
}

/* --- ranges ---------------------------------------------------------------------------------- */

static void check_ranges(void)
{
    static const char *const meshes[] = {"dp=1", "dp=4,zero=1", "tp=4", "pp=4", "tp=2,pp=2,dp=4"};
    write_cluster("wide.json", "", 0.3);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        cJSON *json = plan("dense.json", "cluster.json", meshes[i], NULL);
        cJSON *wide = plan("dense.json", "wide.json", meshes[i], NULL);
        const double step = number_of(json, "step_time_s");
        const cJSON *ends = object(json, "step_time_range_s");
        near(cJSON_GetArrayItem(ends, 0)->valuedouble, step / 1.1, 1e-9);
        near(cJSON_GetArrayItem(ends, 1)->valuedouble, step * 1.1, 1e-9);
        ends = object(wide, "step_time_range_s");
        near(cJSON_GetArrayItem(ends, 0)->valuedouble, step / 1.3, 1e-9);
        near(cJSON_GetArrayItem(ends, 1)->valuedouble, step * 1.3, 1e-9);
        near(number_of(wide, "step_time_s"), step, 1e-12);
    }
}

static const cJSON *source_of(const cJSON *json, const char *what)
{
    for (const cJSON *row = object(json, "sources")->child; row; row = row->next)
        if (strcmp(object(row, "what")->valuestring, what) == 0)
            return row;
    return NULL;
}

static void check_sources(void)
{
    cJSON *json = plan("dense.json", "cluster.json", "dp=2", NULL);
    const cJSON *peak = source_of(json, "device.peak.fp32");
    EXPECT(peak && strcmp(object(peak, "class")->valuestring, "datasheet") == 0 &&
               strcmp(object(peak, "where")->valuestring, "the sheet") == 0 &&
               number_of(peak, "spread") == 0.1,
           "the peak's source");
    EXPECT(source_of(json, "inside.bandwidth") && source_of(json, "device.launch_us"),
           "a number is missing");
    EXPECT(!source_of(json, "between.bandwidth") && !source_of(json, "device.peak.bf16") &&
               !source_of(json, "storage.write"),
           "a number that was not taken");
    json = plan("dense.json", "cluster.json", "dp=8", NULL);
    const cJSON *between = source_of(json, "between.bandwidth");
    EXPECT(between && cJSON_IsNull(object(between, "where")) &&
               strcmp(object(between, "class")->valuestring, "assumed") == 0,
           "between nodes");
}

/* --- loads of experts ------------------------------------------------------------------------- */

static void check_loads(void)
{
    static const char mesh[] = "dp=4,ep=4,binding=dp";
    cJSON *even = plan("moe.json", "cluster.json", mesh, NULL);
    cJSON *uneven = plan("moe.json", "cluster.json", mesh, WORDS("--expert-load", "2"));
    const cJSON *two = object(even, "imbalance"), *three = object(uneven, "imbalance");
    EXPECT(cJSON_GetArraySize(two) == 2 && cJSON_GetArraySize(three) == 3, "%d and %d loads",
           cJSON_GetArraySize(two), cJSON_GetArraySize(three));
    static const double loads[] = {1, 2, 4};
    double step = 0, bytes = 0;
    for (int i = 0; i < cJSON_GetArraySize(three); i++) {
        const cJSON *row = cJSON_GetArrayItem(three, i);
        EXPECT(number_of(row, "load") == loads[i], "load %d is %g", i, number_of(row, "load"));
        EXPECT(number_of(row, "step_time_s") > step && number_of(row, "memory_bytes") >= bytes,
               "a load of %g takes no more", loads[i]);
        EXPECT(cJSON_IsTrue(object(row, "fits")), "a load of %g does not fit", loads[i]);
        step = number_of(row, "step_time_s");
        bytes = number_of(row, "memory_bytes");
    }
    const cJSON *first = three->child;
    EXPECT(number_of(first, "step_time_s") == number_of(even, "step_time_s") &&
               number_of(first, "memory_bytes") == number_of(even, "memory_bytes"),
           "a load of 1 is not the balanced plan");
    EXPECT(number_of(first->next, "step_time_s") == number_of(uneven, "step_time_s") &&
               number_of(first->next, "memory_bytes") == number_of(uneven, "memory_bytes"),
           "the load asked for is not the plan's");
    EXPECT(cJSON_Compare(first, two->child, true) &&
               cJSON_Compare(first->next->next, two->child->next, true),
           "the other loads depend on the one asked for");
    /* Two experts a token, one a rank: at most half of all ranks' rows come to one. */
    even = plan("moe.json", "cluster.json", "dp=8,ep=8,binding=dp", NULL);
    const cJSON *worst = cJSON_GetArrayItem(object(even, "imbalance"), 1);
    EXPECT(worst && number_of(worst, "load") == 4, "the worst load");
    cJSON *alone = plan("dense.json", "cluster.json", "dp=4", NULL);
    EXPECT(!cJSON_GetObjectItem(alone, "imbalance"), "a dense model has loads of experts");
}

/* --- checkpoints ------------------------------------------------------------------------------ */

/* Bytes of all datasets, by the manifest; *out_file: of the file that they are in. */
static double saved_bytes(const char *folder, double *out_file)
{
    char path[128];
    double bytes = 0;
    snprintf(path, sizeof path, "%s/checkpoints/step-1/manifest.json", folder);
    cJSON *json = child_read_json(path);
    for (const cJSON *d = json ? object(json, "datasets")->child : NULL; d; d = d->next) {
        double elements = 1;
        for (const cJSON *n = object(d, "shape")->child; n; n = n->next)
            elements *= n->valuedouble;
        bytes += 4 * elements;
    }
    *out_file = json ? number_of(object(json, "files")->child, "bytes") : (double)NAN;
    return bytes;
}

static void check_checkpoints(void)
{
    static const struct {
        const char *config, *mesh;
    } rows[] = {{"dense.json", "dp=1"},
                {"dense.json", "pp=2"},
                {"untied.json", "tp=2"},
                {"moe.json", "dp=2,ep=2,binding=dp,zero=1"}};
    write_cluster("stored.json", ", \"storage\": {\"write\": 1e9, \"read\": 2e9}", 0.1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char run[16];
        double file;
        snprintf(run, sizeof run, "run%zu", i);
        CHILD_GOOD("train", rows[i].config, "--out", run, "--mesh", rows[i].mesh);
        const double saved = saved_bytes(run, &file);
        cJSON *json = plan(rows[i].config, "stored.json", rows[i].mesh, NULL);
        const cJSON *checkpoint = object(json, "checkpoint");
        const double bytes = number_of(checkpoint, "bytes");
        EXPECT(bytes == saved, "%s on %s: %g bytes are planned, %g saved", rows[i].config,
               rows[i].mesh, bytes, saved);
        EXPECT(file >= bytes && file < bytes + 1e6, "a file of %g bytes for %g", file, bytes);
        /* One node writes all of it, and reads it back; kernels' launches count. */
        near(number_of(checkpoint, "write_s"), bytes / 1e9 + 3e-6, 1e-6);
        near(number_of(checkpoint, "stall_s"), bytes / 1e9 + bytes / 2e9 + 6e-6, 1e-6);
    }
}

/* --- failures and costs ----------------------------------------------------------------------- */

static double best_goodput(double save_s, double restart_s, double between_s, double *out_at)
{
    double best = 0;
    for (double at = save_s / 100; at < 10 * between_s; at *= 1.0005) {
        const double goodput = weft_daly_goodput(at, save_s, restart_s, between_s);
        if (goodput > best) {
            best = goodput;
            *out_at = at;
        }
    }
    return best;
}

/* The interval of higher order beside the best one of all, and limits. */
static void check_daly(void)
{
    static const double saves[] = {1, 60, 600, 3600};
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        const double between_s = 24 * 3600, restart_s = 300;
        double at = 0;
        const double best = best_goodput(saves[i], restart_s, between_s, &at);
        const double interval = weft_daly_interval_s(saves[i], between_s);
        near(interval, at, 0.01);
        const double goodput = weft_daly_goodput(interval, saves[i], restart_s, between_s);
        EXPECT(goodput <= best * (1 + 1e-6) && goodput > best * (1 - 1e-4), "%g of %g at best",
               goodput, best);
    }
    /* Daly's own examples: dumps of 5 minutes, a failure a day, in 6 hours, in 15 minutes. */
    EXPECT_NEAR(weft_daly_interval_s(5, 24 * 60), 117, 0.5);
    EXPECT_NEAR(weft_daly_interval_s(5, 6 * 60), 57, 0.5);
    EXPECT_NEAR(weft_daly_interval_s(5, 15), 9.1, 0.05);
    near(weft_daly_interval_s(1, 1e8), sqrt(2 * 1e8), 0.001); /* Young's */
    EXPECT(weft_daly_interval_s(300, 100) == 100, "saves longer than twice the time between");
    near(weft_daly_goodput(1000, 1e-9, 0, 1e12), 1, 1e-6);
}

static void check_costs(void)
{
    static const char node[] = ", \"storage\": {\"write\": 1e9, \"read\": 1e9}, \"node\": "
                               "{\"hours_between_failures\": 1000, \"restart_s\": 120, "
                               "\"price_per_hour\": 20, \"watts\": 4000, \"currency\": \"EUR\"}";
    write_cluster("priced.json", node, 0.1);
    cJSON *json = plan("dense.json", "priced.json", "dp=8", WORDS("--tokens", "1e12"));
    const double rate = number_of(json, "tokens_per_s"); /* on two nodes */
    const cJSON *cost = object(json, "cost"), *failures = object(json, "failures");
    EXPECT(strcmp(object(cost, "currency")->valuestring, "EUR") == 0, "the currency");
    EXPECT(number_of(cost, "hour") == 40, "%g an hour", number_of(cost, "hour"));
    near(number_of(cost, "billion_tokens"), 40 * (1e9 / rate) / 3600, 1e-12);
    near(number_of(cost, "joules_per_token"), 8000 / rate, 1e-12);
    near(number_of(cost, "days"), 1e12 / rate / 86400, 1e-12);
    near(number_of(cost, "total"), 40 * 1e12 / rate / 3600, 1e-12);
    near(number_of(failures, "hours_between"), 500, 1e-12);
    const double stall_s = number_of(object(json, "checkpoint"), "stall_s"), between_s = 500 * 3600;
    const double interval = number_of(failures, "save_every_s");
    near(interval, sqrt(2 * stall_s * between_s), 0.01);
    /* Half of an interval is lost with a failure, and the restart. */
    const double goodput = number_of(failures, "goodput");
    near(1 - goodput, stall_s / interval + (interval / 2 + 120) / between_s, 0.02);
    EXPECT(source_of(json, "node.watts") && source_of(json, "storage.write"), "sources of costs");
    /* Without figures and without --tokens nobody knows. */
    json = plan("dense.json", "cluster.json", "dp=8", NULL);
    static const char *const keys[][2] = {{"cost", "currency"},
                                          {"cost", "hour"},
                                          {"cost", "billion_tokens"},
                                          {"cost", "joules_per_token"},
                                          {"cost", "days"},
                                          {"cost", "total"},
                                          {"failures", "hours_between"},
                                          {"failures", "save_every_s"},
                                          {"failures", "goodput"},
                                          {"checkpoint", "write_s"},
                                          {"checkpoint", "stall_s"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        EXPECT(cJSON_IsNull(object(object(json, keys[i][0]), keys[i][1])), "%s.%s", keys[i][0],
               keys[i][1]);
    /* Nodes that differ: one of two costs more, and fails more often. */
    char more[1024];
    snprintf(more, sizeof more,
             "%s, \"groups\": [{\"num_nodes\": 1, \"node\": {\"price_per_hour\": 50, "
             "\"hours_between_failures\": 250}}, {\"num_nodes\": 3}]",
             node);
    write_cluster("differ.json", more, 0.1);
    json = plan("dense.json", "differ.json", "dp=8", NULL);
    EXPECT(number_of(object(json, "cost"), "hour") == 70, "nodes that differ");
    near(number_of(object(json, "failures"), "hours_between"), 200, 1e-12);
    EXPECT(source_of(json, "groups[0].node.price_per_hour") &&
               source_of(json, "node.price_per_hour") && source_of(json, "node.watts") &&
               !source_of(json, "groups[0].node.watts"),
           "sources of nodes that differ");
    json = plan("dense.json", "differ.json", "dp=4", NULL);
    EXPECT(number_of(object(json, "cost"), "hour") == 50, "of the first node alone");
    EXPECT(!source_of(json, "node.price_per_hour"), "a number of nodes that are not used");
}

/* --- promises --------------------------------------------------------------------------------- */

/* A dense model of 7B on a node of each published GPU. */
#define PUBLISHED                                                                                  \
    "{\"model\": {\"num_layers\": 32, \"hidden_size\": 4096, \"num_attention_heads\": 32, "        \
    "\"seq_length\": 2048, \"vocab_size\": 50368, \"disable_bias_linear\": true}, "                \
    "\"train\": {\"micro_batch_size\": 6, \"global_batch_size\": 48, \"train_iters\": 1, "         \
    "\"precision\": \"%s\", \"recompute_granularity\": \"%s\"}, "                                  \
    "\"data\": {\"mock_data\": true}}"

static cJSON *plan_on(const char *file, const char *precision, const char *recompute, child *text)
{
    char path[4096], config[1024];
    snprintf(config, sizeof config, PUBLISHED, precision, recompute);
    snprintf(path, sizeof path, "%s/examples/clusters/%s.json", getenv("WEFT_SOURCE_DIR"), file);
    EXPECT(child_write("published.json", config), "cannot write published.json");
    CHILD_RUN(text, "plan", "published.json", "--cluster", path, "--mesh", "dp=8,zero=3");
    return plan("published.json", path, "dp=8,zero=3", NULL);
}

/* Ranges follow from the sources; more than any published run did is said; so is a full device. */
static void check_promises(void)
{
    static const char *const files[] = {"v100", "a100-40gb", "a100-80gb", "a800",     "h100",
                                        "h200", "b200",      "h100-500w", "b200-750w"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const bool is_v100 = i == 0;
        child c;
        cJSON *json = plan_on(files[i], is_v100 ? "fp16" : "bf16", "full", &c);
        const cJSON *range = object(json, "step_time_range_s");
        const double step = number_of(json, "step_time_s"),
                     low = cJSON_GetArrayItem(range, 0)->valuedouble,
                     high = cJSON_GetArrayItem(range, 1)->valuedouble;
        EXPECT(low < 0.95 * step && high > 1.05 * step && high - low < 2 * 0.2 * step,
               "%s: %g s, %g to %g", files[i], step, low, high);
        EXPECT(
            strstr(c.out, "by data sheets and published measurements; nothing was measured here"),
            "%s: %s", files[i], c.out);
    }
    for (int h100 = 0; h100 < 2; h100++) {
        child c;
        cJSON *json = plan_on(h100 ? "h100" : "a100-80gb", "bf16", "none", &c);
        const double share = number_of(json, "model_flops_utilization"),
                     best = number_of(json, "published_utilization");
        EXPECT_NEAR(best, h100 ? 0.52 : 0.705, 1e-12);
        EXPECT((share > best) == (strstr(c.out, "MFU above the best published") != NULL),
               "%g beside %g: %s", share, best, c.out);
        /* What is left of the memory is said where it is little. */
        const double part = number_of(json, "memory_bytes") / number_of(json, "memory_limit_bytes");
        EXPECT(!cJSON_IsTrue(object(json, "tight")) == (part <= 0.95), "%g of the memory", part);
        EXPECT((part > 0.95 && part <= 1) == (strstr(c.out, "fits with no margin") != NULL),
               "%g of the memory: %s", part, c.out);
    }
}

/* The same work by FSDP of PyTorch takes longer, on what its rules name; no run of Weft is so. */
static void check_software(void)
{
    const char *const fsdp[] = {"--software", "fsdp", NULL};
    char config[1024], path[4096];
    double longer[2];
    for (int h100 = 0; h100 < 2; h100++) {
        snprintf(config, sizeof config, PUBLISHED, "bf16", "full");
        EXPECT(child_write("published.json", config), "cannot write published.json");
        snprintf(path, sizeof path, "%s/examples/clusters/%s.json", getenv("WEFT_SOURCE_DIR"),
                 h100 ? "h100" : "a100-80gb");
        cJSON *own = plan("published.json", path, "dp=8,zero=3", NULL);
        cJSON *theirs = plan("published.json", path, "dp=8,zero=3", fsdp);
        longer[h100] = number_of(theirs, "step_time_s") / number_of(own, "step_time_s") - 1;
        EXPECT_NEAR(number_of(theirs, "memory_bytes"), number_of(own, "memory_bytes"), 0.5);
        double sum = 0;
        for (const cJSON *part = object(theirs, "time")->child; part; part = part->next)
            sum += part->valuedouble;
        near(sum, number_of(theirs, "step_time_s"), 1e-6);
    }
    /* FlashAttention-2 is an A100's own; an H100 has faster ones. */
    EXPECT(longer[0] > 0.005 && longer[0] < 0.05 && longer[1] > 0.04 && longer[1] < 0.2,
           "%g longer on A100, %g on H100", longer[0], longer[1]);
    CHILD_REFUSED(2, "--software fsdp: Weft's runs and plain kernels", "plan", "published.json",
                  "--cluster", path, "--mesh", "dp=8", "--software", "fsdp", "--kernels", "plain");
    CHILD_REFUSED(2, "--software plain-2021: --kernels has other ones", "plan", "published.json",
                  "--cluster", path, "--mesh", "dp=8", "--software", "plain-2021", "--kernels",
                  "plain");
    CHILD_REFUSED(2, "--software: of one mesh", "plan", "published.json", "--cluster", path,
                  "--search", "--nodes", "1", "--software", "fsdp");
}

/* Megatron-LM's tests on one node, gpt3_7b_tp4_pp1_memory_speed, te_tp1_pp4_vp1, with the
 * distributed optimizer and without (tests/functional_tests/test_cases/gpt, 2026,
 * golden_values_dev_dgx_h100.json): what PyTorch's allocator gave the last rank at most. */
#define GPT(layers, hidden, heads, groups, length, vocab, more, micro)                             \
    "{\"model\": {\"num_layers\": " #layers ", \"hidden_size\": " #hidden                          \
    ", \"num_attention_heads\": " #heads ", \"num_query_groups\": " #groups                        \
    ", \"seq_length\": " #length ", \"vocab_size\": " #vocab ", \"hidden_dropout\": 0.1" more      \
    "}, \"train\": {\"micro_batch_size\": " #micro                                                 \
    ", \"global_batch_size\": 32, \"train_iters\": 1, \"precision\": \"bf16\"}, "                  \
    "\"data\": {\"mock_data\": true}}"

static void check_their_memory(void)
{
    static const struct {
        const char *config, *mesh, *set;
        double bytes;
    } rows[] = {
        {GPT(32, 4096, 32, 8, 8192, 131584, ", \"untie_embeddings_and_output_weights\": true", 2),
         "tp=4,dp=2", "train.global_batch_size=8", 57143791616},
        {GPT(12, 512, 8, 8, 1024, 50304, "", 4), "pp=4,dp=2",
         "parallel.num_virtual_stages_per_pipeline_rank=3", 2432144384},
        {GPT(12, 512, 8, 8, 1024, 50304, "", 4), "pp=4,dp=2,zero=0",
         "parallel.num_virtual_stages_per_pipeline_rank=3", 2643299328},
        {GPT(12, 512, 8, 8, 1024, 50304, "", 4), "dp=8,zero=0", "train.recompute_granularity=full",
         2561334272},
        {GPT(12, 512, 8, 8, 1024, 50688, ", \"qk_layernorm\": true", 4), "tp=4,dp=2,zero=0",
         "train.recompute_granularity=none", 1177314304},
    };
    char path[4096];
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const more[] = {"--software", "megatron", "--set", rows[i].set, NULL};
        EXPECT(child_write("theirs.json", rows[i].config), "cannot write theirs.json");
        cJSON *json = plan("theirs.json", path, rows[i].mesh, more);
        const cJSON *stages = object(json, "stages"),
                    *last = cJSON_GetArrayItem(stages, cJSON_GetArraySize(stages) - 1);
        const double planned = number_of(last, "memory_bytes");
        EXPECT(fabs(planned / rows[i].bytes - 1) < 0.02, "%s: %g of %g bytes", rows[i].mesh,
               planned, rows[i].bytes);
        double parts = 0;
        for (const cJSON *part = object(last, "parts")->child; part; part = part->next)
            parts += number_of(part, "activations");
        EXPECT_NEAR(parts, number_of(object(last, "memory"), "activations"), 0.5);
        cJSON_Delete(json);
    }
}

static double seconds_with(const char *config, const char *path, const char *mesh,
                           const char *option, const char *value)
{
    const char *const more[] = {option, value, NULL};
    cJSON *json = plan(config, path, mesh, more);
    const double seconds = number_of(json, "step_time_s");
    return seconds;
}

#define LONG                                                                                       \
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 4096, \"num_attention_heads\": 32, "         \
    "\"seq_length\": 65536, \"vocab_size\": 50368}, \"train\": {\"micro_batch_size\": 1, "         \
    "\"global_batch_size\": 8, \"train_iters\": 1, \"precision\": \"bf16\", "                      \
    "\"recompute_granularity\": \"full\"}, \"data\": {\"mock_data\": true}}"
#define SPARSE(length, more)                                                                       \
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 4096, \"num_attention_heads\": 32, "         \
    "\"seq_length\": " length                                                                      \
    ", \"vocab_size\": 50368, \"num_experts\": 128, \"moe_router_topk\": 8, "                      \
    "\"moe_ffn_hidden_size\": 1536" more "}, \"train\": {\"micro_batch_size\": 1, "                \
    "\"global_batch_size\": 32, \"train_iters\": 1, \"precision\": \"bf16\"}, "                    \
    "\"data\": {\"mock_data\": true}}"

#define BIASES ", \"add_expert_bias\": true"

static double exchange_with(const char *config, const char *path, const char *software)
{
    const char *const more[] = {"--software", software, NULL};
    cJSON *json = plan(config, path, "dp=32,ep=32", more);
    const double seconds = number_of(object(json, "time"), "expert");
    return seconds;
}

/* Rows that travel once to a node; the host's products, where experts are many and small, and
 * biases and bounds of theirs that are kernels of their own. */
static void check_experts(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    EXPECT(child_write("sparse.json", SPARSE("4096", "")) &&
               child_write("biased.json", SPARSE("4096", BIASES)) &&
               child_write("short.json", SPARSE("512", "")),
           "cannot write");
    const double all = exchange_with("sparse.json", path, "megatron-a2a"),
                 once = exchange_with("sparse.json", path, "megatron-deepep");
    EXPECT(once > 0.3 * all && once < 0.6 * all, "%g s, rows once a node %g s", all, once);
    /* 16 experts on a rank of each of two layers, 6 products each in 4 passes, which the host
     * issues in 120 us: 92 ms, of which the GPU is at work for some. */
    const double own = seconds_with("short.json", path, "dp=8,ep=8", "--software", "weft"),
                 host = seconds_with("short.json", path, "dp=8,ep=8", "--software", "megatron-a2a");
    const double issued = 4 * 6 * 2 * 16 * 120e-6;
    EXPECT(host > own + 0.7 * issued && host < own + issued, "%g s, issued by the host %g s", own,
           host);
    const double ours = seconds_with("biased.json", path, "dp=16,ep=16", "--software", "weft") -
                        seconds_with("sparse.json", path, "dp=16,ep=16", "--software", "weft"),
                 theirs =
                     seconds_with("biased.json", path, "dp=16,ep=16", "--software", "automodel") -
                     seconds_with("sparse.json", path, "dp=16,ep=16", "--software", "automodel");
    EXPECT(ours > 0 && theirs > 4 * ours, "biases take %g s, and %g s", ours, theirs);
}

/* What the software makes again with selective recomputation, of what it makes again with full. */
static double again_by(const char *software, const char *file, double *out_selective)
{
    static const char *const forms[] = {"full", "selective", "none"};
    char path[4096], config[1024];
    double seconds[3];
    snprintf(path, sizeof path, "%s/examples/clusters/%s.json", getenv("WEFT_SOURCE_DIR"), file);
    for (int form = 0; form < 3; form++) {
        snprintf(config, sizeof config, PUBLISHED, "bf16", forms[form]);
        EXPECT(child_write("published.json", config), "cannot write published.json");
        seconds[form] = seconds_with("published.json", path, "dp=8,zero=2", "--software", software);
    }
    *out_selective = seconds[1] - seconds[2];
    return *out_selective / (seconds[0] - seconds[2]);
}

/* Selective recomputation of fsdp is torchtitan's: every second product and what is no product
 * again, where Weft's makes attention alone again. It keeps the attention of PyTorch's own kernels,
 * not that of cuDNN, which B200 has. */
static void check_choice(void)
{
    double own, theirs, on_b200;
    (void)again_by("weft", "h100", &own);
    const double share = again_by("fsdp", "h100", &theirs),
                 more = again_by("fsdp", "b200", &on_b200);
    EXPECT(share > 0.3 && share < 0.7, "%g of all again", share);
    EXPECT(theirs > own, "%g s again, attention alone %g s", theirs, own);
    EXPECT(more > share + 0.05, "%g of all again on B200, %g on H100", more, share);
}

/* Each software's rules show where its operations are most of a step: FlashAttention in Triton over
 * long sequences, collectives beside backward. */
static void check_rules(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    EXPECT(child_write("long.json", LONG), "cannot write");
    const double late = seconds_with("long.json", path, "dp=8,zero=3", "--software", "fsdp"),
                 early = seconds_with("long.json", path, "dp=8,zero=3", "--software", "fsdp-2023");
    EXPECT(early / late > 1.4 && early / late < 1.8, "%g times as long", early / late);
    const char *const megatron[] = {"--software", "megatron", NULL};
    cJSON *shown = plan("long.json", path, "tp=8", NULL),
          *hidden = plan("long.json", path, "tp=8", megatron);
    const double all = number_of(object(shown, "time"), "tensor"),
                 left = number_of(object(hidden, "time"), "tensor");
    EXPECT(left > 0.3 * all && left < 0.95 * all, "%g s, beside backward %g s", all, left);
    /* Plain kernels by either name. */
    const double kernels = seconds_with("long.json", path, "dp=8", "--kernels", "plain"),
                 software = seconds_with("long.json", path, "dp=8", "--software", "plain");
    EXPECT_NEAR(kernels, software, 0);
}

/* The H100's file with interference of 1, at the path. */
static void write_undisturbed(const char *path)
{
    static const char row[] = "\"interference\": [[1, 0.82, 1, 0.82]";
    char text[16384], from[4096];
    snprintf(from, sizeof from, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    FILE *file = fopen(from, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    if (file)
        fclose(file);
    char *found = strstr(text, row);
    EXPECT(found, "no row of interference in %s", from);
    if (found)
        memcpy(found, "\"interference\": [[1, 1.00, 1, 1.00]", sizeof row - 1);
    EXPECT(child_write(path, text), "cannot write %s", path);
}

/* Gathers and reductions beside computation slow it; over MPI the hosts send. */
static void check_interference(void)
{
    static const char *const meshes[] = {"dp=8,zero=3", "dp=8"};
    const char *const overlap[] = {"--set", "parallel.overlap_grad_reduce=true", NULL};
    char config[1024], path[4096];
    snprintf(config, sizeof config, PUBLISHED, "bf16", "full");
    EXPECT(child_write("published.json", config), "cannot write published.json");
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    write_undisturbed("undisturbed.json");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        cJSON *slowed = plan("published.json", path, meshes[i], overlap);
        cJSON *alone = plan("published.json", "undisturbed.json", meshes[i], overlap);
        const double longer =
            number_of(slowed, "step_time_s") / number_of(alone, "step_time_s") - 1;
        EXPECT(longer > 0.002 && longer < 0.18, "%s: %g longer", meshes[i], longer);
    }
}

/* --- lines ------------------------------------------------------------------------------------ */

static void check_text(void)
{
    child c;
    CHILD_RUN(&c, "plan", "moe.json", "--cluster", "priced.json", "--mesh", "dp=8,ep=4,binding=dp",
              "--tokens", "1e9");
    static const char *const parts[] = {" (",
                                        ": by data sheets; nothing was measured here)",
                                        "\n  expert load ",
                                        "\n  a checkpoint ",
                                        "\n  best saved every ",
                                        "\n  between failures ",
                                        "\n  of the time is work that lasts ",
                                        "40 EUR\n",
                                        "\n  a billion tokens cost ",
                                        "\n  a token takes ",
                                        "\n  all tokens take "};
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        EXPECT(strstr(c.out, parts[i]), "no \"%s\" in:\n%s", parts[i], c.out);
    CHILD_RUN(&c, "plan", "dense.json", "--cluster", "priced.json", "--search", "--mesh", "tp=1",
              "--tokens", "1e9");
    const char *found = c.out ? strstr(c.out, "\nthe fastest plan:\n") : NULL;
    EXPECT(c.exit_code == 0 && found && strstr(found, "\n  all tokens take ") &&
               strstr(found, "\n  all tokens cost ") && strstr(found, "80 EUR\n"),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
    child_says(WORDS("plan", "dense.json", "--cluster", "cluster.json"), 0,
               WORDS("!costs ", "!between failures ", "!nan",
                     "\n  best saved every  unknown: the cluster file lacks "
                     "node.hours_between_failures, storage.write, storage.read\n"),
               NULL);
}

static void check_refusals(void)
{
    static const struct {
        const char *config, *option, *value, *wanted;
    } rows[] = {
        {"moe.json", "--expert-load", "0.5", "--expert-load 0.5"},
        {"moe.json", "--expert-load", "5",
         "--expert-load 5: on this mesh the fullest rank has at "
         "most 4 times the mean"},
        {"moe.json", "--expert-load", "much", "--expert-load much"},
        {"moe.json", "--expert-loads", "2", "did you mean --expert-load?"},
        {"dense.json", "--expert-load", "2", "--expert-load 2: the model has no experts"},
        {"dense.json", "--tokens", "0", "--tokens 0"},
        {"dense.json", "--token", "5", "did you mean --tokens?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHILD_REFUSED(2, rows[i].wanted, "plan", rows[i].config, "--cluster", "cluster.json",
                      "--mesh", i < 4 ? "dp=4,ep=4,binding=dp" : "dp=4", rows[i].option,
                      rows[i].value);
    }
    CHILD_REFUSED(2, "--against and --expert-load: one of them", "plan", "moe.json", "--cluster",
                  "cluster.json", "--expert-load", "2", "--against", "run3");
}

int main(void)
{
    child_begin();
    EXPECT(child_write("dense.json", dense) && child_write("untied.json", untied) &&
               child_write("moe.json", moe),
           "cannot write configs");
    write_cluster("cluster.json", "", 0.1);
    check_daly();
    check_parts();
    check_reductions();
    check_order();
    check_ranges();
    check_sources();
    check_loads();
    check_checkpoints();
    check_costs();
    check_promises();
    check_interference();
    check_software();
    check_their_memory();
    check_rules();
    check_experts();
    check_choice();
    check_text();
    check_refusals();
    return child_finish();
}
