/* weft plan: what its figures promise of each other, on clusters of data sheets; the program that
 * links the pure set alone says the same; what does not fit, or lacks a figure, is one line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

static const char dense[] =
    "{\"model\": {\"num_layers\": 32, \"hidden_size\": 4096, \"ffn_hidden_size\": 14336, "
    "\"num_attention_heads\": 32, \"num_query_groups\": 8, \"seq_length\": 4096, "
    "\"vocab_size\": 128256, \"normalization\": \"RMSNorm\", \"swiglu\": true, "
    "\"disable_bias_linear\": true, \"position_embedding_type\": \"rope\"}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 256, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

static const char wide[] =
    "{\"model\": {\"num_layers\": 8, \"hidden_size\": 4096, \"ffn_hidden_size\": 16384, "
    "\"num_attention_heads\": 32, \"seq_length\": 4096, \"vocab_size\": 128256}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 256, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

static const char moe[] =
    "{\"model\": {\"num_layers\": 32, \"hidden_size\": 4096, \"ffn_hidden_size\": 14336, "
    "\"num_attention_heads\": 32, \"num_query_groups\": 8, \"seq_length\": 4096, "
    "\"vocab_size\": 32000, \"swiglu\": true, \"num_experts\": 8, \"moe_router_topk\": 2}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 256, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

static const char paced[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 2, "
    "\"seq_length\": 32, \"vocab_size\": 64, \"num_experts\": 4}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 1}, "
    "\"data\": {\"mock_data\": true}, \"device\": {\"pace\": 2e6}}";

/* At a link this slow the step is what is copied over it. */
static const char linked[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 2, "
    "\"seq_length\": 32, \"vocab_size\": 64}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 1, "
    "\"fine_grained_activation_offloading\": true, \"offload_modules\": [\"block\"]}, "
    "\"data\": {\"mock_data\": true}, \"device\": {\"pace_link\": 2e6}}";

static double sum_of(const cJSON *object)
{
    double sum = 0;
    for (const cJSON *item = object ? object->child : NULL; item; item = item->next) {
        EXPECT(item->valuedouble >= 0, "%s is %g", item->string, item->valuedouble);
        sum += item->valuedouble;
    }
    return sum;
}

/* Runs a plan with --json; *out_json is the caller's (NULL: it gave none). */
static int plan(const char *config, const char *cluster, const char *mesh, const char *set,
                cJSON **out_json)
{
    const char *args[12] = {"plan", config, "--json", "--cluster", cluster};
    int n = 5;
    child c;
    if (mesh)
        args[n++] = "--mesh", args[n++] = mesh;
    if (set)
        args[n++] = "--set", args[n++] = set;
    child_run(&c, args, NULL);
    *out_json = child_parse(c.out);
    int code = c.exit_code;
    EXPECT(code == 0 || child_is_line(c.err), "exit %d: \"%s\"", code, c.err);
    EXPECT(code == 0 || code == 3, "%s on %s: exit %d: %s", config, mesh ? mesh : "", code, c.err);
    return code;
}

static void check_sums(const cJSON *json, const char *name)
{
    const double step = number_of(json, "step_time_s");
    double most = 0;
    EXPECT(step > 0 && isfinite(step), "%s: a step of %g s", name, step);
    EXPECT_NEAR(sum_of(cJSON_GetObjectItem(json, "time")), step, 1e-8 * step);
    for (const cJSON *s = cJSON_GetObjectItem(json, "stages")->child; s; s = s->next) {
        EXPECT_NEAR(sum_of(cJSON_GetObjectItem(s, "time")), step, 1e-6 * step);
        const cJSON *bytes = cJSON_GetObjectItem(s, "memory");
        const double pinned = number_of(bytes, "pinned host"), all = number_of(s, "memory_bytes");
        EXPECT_NEAR(sum_of(bytes) - pinned, all, 0.5);
        most = fmax(most, all);
    }
    EXPECT(number_of(json, "memory_bytes") == most, "%s: not the fullest rank's memory", name);
    const double mfu = number_of(json, "model_flops_utilization");
    EXPECT(mfu > 0 && mfu < 1, "%s: an MFU of %g", name, mfu);
    EXPECT_NEAR(number_of(json, "tokens_per_s") * step, 256 * 4096, 1e-3);
}

static double time_of(const cJSON *json, const char *kind)
{
    return number_of(cJSON_GetObjectItem(json, "time"), kind);
}

/* Nothing is where nobody talks. Gradients are also summed over tp (of norms) and between the
 * stages that hold a tied embedding. */
static void check_meshes(void)
{
    static const struct {
        const char *config, *mesh;
        int devices;
        bool bubble, tensor, expert, data;
    } rows[] = {
        {"dense.json", "tp=1", 1, false, false, false, false},
        {"dense.json", "tp=8,sp=1", 8, false, true, false, true},
        {"dense.json", "dp=8", 8, false, false, false, true},
        {"dense.json", "pp=8", 8, true, false, false, true},
        {"dense.json", "tp=8,pp=4,dp=4,sp=1", 128, true, true, false, true},
        {"moe.json", "dp=8,ep=8,binding=dp", 8, false, false, true, true},
        {"moe.json", "tp=8,binding=tp", 8, false, true, false, true},
        {"moe.json", "tp=2,pp=4,dp=8,ep=8,etp=1,binding=dp", 64, true, true, true, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *json;
        (void)plan(rows[i].config, "cluster.json", rows[i].mesh, NULL, &json);
        if (!json)
            continue;
        check_sums(json, rows[i].mesh);
        EXPECT(number_of(json, "num_devices") == rows[i].devices, "%s: devices", rows[i].mesh);
        EXPECT((time_of(json, "bubble") > 0) == rows[i].bubble, "%s: bubble %g", rows[i].mesh,
               time_of(json, "bubble"));
        EXPECT((time_of(json, "tensor") > 0) == rows[i].tensor, "%s: tensor", rows[i].mesh);
        EXPECT((time_of(json, "expert") > 0) == rows[i].expert, "%s: expert", rows[i].mesh);
        EXPECT((time_of(json, "data") > 0) == rows[i].data, "%s: data", rows[i].mesh);
    }
}

static double step_of(const char *config, const char *mesh, const char *set)
{
    cJSON *json;
    (void)plan(config, "cluster.json", mesh, set, &json);
    double step = json ? number_of(json, "step_time_s") : NAN;
    return step;
}

/* Of tensor-parallel products in chunks less of what travels is seen. */
static void check_overlap(void)
{
    static const char *const meshes[] = {"tp=8", "tp=8,sp=1"};
    for (int i = 0; i < 2; i++) {
        cJSON *whole, *cut;
        (void)plan("dense.json", "cluster.json", meshes[i], NULL, &whole);
        (void)plan("dense.json", "cluster.json", meshes[i], "parallel.tp_comm_overlap=true", &cut);
        const cJSON *chunks = cJSON_GetObjectItem(cut, "tp_comm_overlap_chunks");
        EXPECT(whole && cut && !cJSON_GetObjectItem(whole, "tp_comm_overlap_chunks"), "%s",
               meshes[i]);
        EXPECT(cJSON_GetArraySize(chunks) == 2 && cJSON_GetArrayItem(chunks, 1)->valuedouble > 1,
               "%s: chunks", meshes[i]);
        EXPECT(time_of(cut, "tensor") < 0.8 * time_of(whole, "tensor") &&
                   number_of(cut, "step_time_s") < number_of(whole, "step_time_s"),
               "%s: %g s for %g, %g of a step for %g", meshes[i], time_of(cut, "tensor"),
               time_of(whole, "tensor"), number_of(cut, "step_time_s"),
               number_of(whole, "step_time_s"));
        check_sums(cut, meshes[i]);
        cJSON_Delete(whole);
        cJSON_Delete(cut);
    }
}

static void check_directions(void)
{
    EXPECT(step_of("dense.json", "pp=8", "train.global_batch_size=512") >
               1.5 * step_of("dense.json", "pp=8", NULL),
           "twice the batch");
    EXPECT(step_of("dense.json", "dp=16", NULL) > 0.5 * step_of("dense.json", "dp=8", NULL),
           "twice the devices are more than twice as fast");
    const double synchronous = step_of("moe.json", "dp=16,ep=8,binding=dp", NULL);
    const double pipelined =
        step_of("moe.json", "dp=16,ep=8,binding=dp", "parallel.moe_num_partitions=2");
    EXPECT(pipelined != synchronous, "partitions change nothing");
}

static void expect_limit(const char *config, const char *mesh, const char *set, const char *wanted)
{
    cJSON *json;
    (void)plan(config, "cluster.json", mesh, set, &json);
    const char *limits = cJSON_GetStringValue(cJSON_GetObjectItem(json, "limits"));
    EXPECT(limits && strcmp(limits, wanted) == 0, "%s on %s: %s binds, not %s", config, mesh,
           limits ? limits : "nothing", wanted);
}

/* Many tokens compute, few wait for weights, few micro-batches leave stages idle. */
static void check_limits(void)
{
    expect_limit("dense.json", "tp=1", NULL, "compute");
    expect_limit("dense.json", "tp=1", "model.seq_length=8", "memory_bandwidth");
    expect_limit("dense.json", "pp=32", "train.global_batch_size=2", "bubble");
}

/* --- nodes that differ ---------------------------------------------------------------------- */

/* The sheet's nodes, the first of them as they are and all others, or all, at half the peak and
 * with this much memory (0: theirs). */
static void write_kinds(const char *sheet, const char *path, int num_first, double memory_bytes)
{
    cJSON *json = child_parse(strchr(sheet, '{')); /* behind its comment */
    cJSON *groups = cJSON_AddArrayToObject(json, "groups"), *group = NULL;
    const cJSON *device = cJSON_GetObjectItem(json, "device");
    const double peak = number_of(cJSON_GetObjectItem(device, "peak"), "bf16");
    const int num_nodes = (int)number_of(json, "num_nodes");
    for (int second = num_first == 0; second < 2; second++) {
        cJSON_AddItemToArray(groups, group = cJSON_CreateObject());
        cJSON_AddNumberToObject(group, "num_nodes", second ? num_nodes - num_first : num_first);
    }
    cJSON *own = cJSON_AddObjectToObject(group, "device");
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(own, "peak"), "bf16", peak / 2);
    if (memory_bytes > 0)
        cJSON_AddNumberToObject(own, "memory_bytes", memory_bytes);
    char *text = cJSON_Print(json);
    EXPECT(child_write(path, text), "cannot write %s", path);
    free(text);
}

static double compute_of(const cJSON *json, int stage)
{
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "stages"), stage);
    return number_of(cJSON_GetObjectItem(item, "time"), "compute");
}

/* A node of the first kind, others at half its peak: whoever shares a step with those goes at their
 * speed; stages that lie on the first node alone do not. */
static void check_kinds(const char *sheet)
{
    static const char *const shared[] = {"dp=16", "dp=16,order=pp-dp-tp-ep-cp", "tp=16,sp=1",
                                         "tp=2,dp=16,pp=2,order=tp-pp-cp-ep-dp"};
    static const char across[] = "parallel.allow_tp_across_nodes=true";
    cJSON *fast, *slow, *mixed;
    write_kinds(sheet, "mixed.json", 1, 0);
    write_kinds(sheet, "slow.json", 0, 0);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        const char *config = i == 2 ? "wide.json" : "dense.json";
        (void)plan(config, "slow.json", shared[i], across, &slow);
        (void)plan(config, "mixed.json", shared[i], across, &mixed);
        const double world = number_of(mixed, "num_devices");
        EXPECT_NEAR(number_of(mixed, "step_time_s") / number_of(slow, "step_time_s"), 1, 1e-9);
        EXPECT_NEAR(number_of(mixed, "model_flops_utilization") /
                        number_of(slow, "model_flops_utilization"),
                    world / (world + 8), 1e-9);
    }
    (void)plan("dense.json", "cluster.json", "dp=8,pp=2", NULL, &fast);
    (void)plan("dense.json", "slow.json", "dp=8,pp=2", NULL, &slow);
    (void)plan("dense.json", "mixed.json", "dp=8,pp=2", NULL, &mixed);
    EXPECT_NEAR(compute_of(mixed, 0) / compute_of(fast, 0), 1, 1e-9);
    EXPECT_NEAR(compute_of(mixed, 1) / compute_of(slow, 1), 1, 1e-9);
    EXPECT(compute_of(slow, 0) > 1.5 * compute_of(fast, 0), "half the peak changes little");
    EXPECT(number_of(mixed, "step_time_s") > number_of(fast, "step_time_s") &&
               number_of(mixed, "step_time_s") < number_of(slow, "step_time_s"),
           "a step is not between those of its kinds");
    const double first = number_of(cJSON_GetObjectItem(mixed, "stages")->child, "memory_bytes");
    write_kinds(sheet, "mixed.json", 1, 30e9);
    EXPECT(plan("dense.json", "mixed.json", "dp=8,pp=2", NULL, &mixed) == 3, "30 GB are enough");
    EXPECT(number_of(mixed, "memory_limit_bytes") < 30e9 &&
               number_of(mixed, "memory_bytes") != first,
           "not the smaller device's memory");
    CHILD_REFUSED(3, "does not fit: a rank of stage 1 needs ", "plan", "dense.json", "--cluster",
                  "mixed.json", "--mesh", "dp=8,pp=2");
    CHILD_REFUSED(3, "than the ", "plan", "dense.json", "--cluster", "mixed.json", "--mesh",
                  "dp=16");
}

/* Messages that travel before they are asked for wait for nobody. */
static void check_eager(const char *sheet)
{
    static const char *const meshes[] = {"dp=8,pp=2", "pp=8"};
    static const char *const places[] = {"between", "inside"};
    for (int i = 0; i < 2; i++) {
        cJSON *json = child_parse(strchr(sheet, '{')), *waits, *eager, *small;
        cJSON *place = cJSON_GetObjectItem(json, places[i]);
        for (int large = 0; large < 2; large++) {
            cJSON_DeleteItemFromObject(place, "eager_bytes");
            cJSON_AddNumberToObject(place, "eager_bytes", large ? 1e9 : 1e6);
            char *text = cJSON_Print(json);
            EXPECT(child_write(large ? "eager.json" : "small.json", text), "eager_bytes");
            free(text);
        }
        (void)plan("dense.json", "cluster.json", meshes[i], NULL, &waits);
        (void)plan("dense.json", "small.json", meshes[i], NULL, &small);
        (void)plan("dense.json", "eager.json", meshes[i], NULL, &eager);
        EXPECT(number_of(small, "step_time_s") == number_of(waits, "step_time_s"),
               "messages are larger than a million bytes");
        EXPECT(number_of(eager, "step_time_s") < number_of(waits, "step_time_s") &&
                   time_of(eager, "pipeline") < 0.9 * time_of(waits, "pipeline"),
               "%s: %g s of messages that are not waited for, of %g", places[i],
               time_of(eager, "pipeline"), time_of(waits, "pipeline"));
    }
}

/* The cluster with this host: its memory, and the link between it and a device. */
static void write_host(const char *sheet, const char *path, double memory, double bandwidth)
{
    cJSON *json = child_parse(strchr(sheet, '{'));
    cJSON *host = cJSON_GetObjectItemCaseSensitive(json, "host");
    cJSON_ReplaceItemInObject(host, "memory_bytes", cJSON_CreateNumber(memory));
    cJSON_ReplaceItemInObject(host, "link_bandwidth", cJSON_CreateNumber(bandwidth));
    char *text = cJSON_Print(json);
    EXPECT(child_write(path, text), "cannot write %s", path);
    free(text);
}

static double pinned_of(const cJSON *json)
{
    const cJSON *stage = cJSON_GetObjectItem(json, "stages")->child;
    return number_of(cJSON_GetObjectItem(stage, "memory"), "pinned host");
}

/* What is offloaded leaves the device for the host; its copies hide behind layers, or a slow link
 * is what binds. */
static void check_offload(const char *sheet)
{
    static const char *const sets[] = {"train.offload_modules=[\"block\"]",
                                       "train.offload_modules=[\"core_attn\",\"mlp\"]"};
    char config[1024];
    const char *train = strstr(dense, "\"micro_batch_size\"");
    snprintf(config, sizeof config, "%.*s\"fine_grained_activation_offloading\": true, %s",
             (int)(train - dense), dense, train);
    EXPECT(child_write("offload.json", config), "cannot write offload.json");
    write_host(sheet, "quick.json", 2e12, 1e14);
    write_host(sheet, "slow_host.json", 2e12, 1e9);
    write_host(sheet, "small_host.json", 1e10, 1e14);
    cJSON *kept, *quick, *slow;
    (void)plan("dense.json", "quick.json", "pp=8", NULL, &kept);
    const double host = pinned_of(kept);
    for (int i = 0; i < 2; i++) {
        (void)plan("offload.json", "quick.json", "pp=8", sets[i], &quick);
        (void)plan("offload.json", "slow_host.json", "pp=8", sets[i], &slow);
        check_sums(quick, sets[i]);
        check_sums(slow, sets[i]);
        const cJSON *stage = cJSON_GetObjectItem(quick, "stages")->child;
        const double out = sum_of(cJSON_GetObjectItem(stage, "offloaded"));
        EXPECT(out > 0 && pinned_of(quick) == host + out &&
                   number_of(quick, "host_memory_bytes") >= host + out,
               "%s: %g bytes on the host, %g offloaded", sets[i], pinned_of(quick), out);
        EXPECT(number_of(quick, "memory_bytes") < number_of(kept, "memory_bytes"),
               "%s: saves nothing", sets[i]);
        EXPECT(time_of(quick, "host") < 1e-3 * number_of(quick, "step_time_s"), "%s: %g s exposed",
               sets[i], time_of(quick, "host"));
        EXPECT(time_of(slow, "host") > 0.5 * number_of(slow, "step_time_s") &&
                   strcmp(cJSON_GetObjectItem(slow, "limits")->valuestring, "host") == 0,
               "%s: %g s exposed on a slow link", sets[i], time_of(slow, "host"));
        const cJSON *copies = cJSON_GetObjectItem(stage, "offload_time");
        EXPECT(number_of(copies, "out") > 0 &&
                   number_of(copies, "out") == number_of(copies, "back"),
               "%s: copies take %g s and %g s", sets[i], number_of(copies, "out"),
               number_of(copies, "back"));
    }
    CHILD_REFUSED(3, "of host memory, and its share of the node's is", "plan", "offload.json",
                  "--cluster", "small_host.json", "--mesh", "pp=8", "--set", sets[0]);
}

static double memory_of(const char *config, const char *mesh, const char *set)
{
    cJSON *json;
    (void)plan(config, "cluster.json", mesh, set, &json);
    double bytes = json ? number_of(json, "memory_bytes") : NAN;
    return bytes;
}

/* A forced load is planned for; one that is balanced is what a plan takes routing for. */
static void check_loads(void)
{
    static const char mesh[] = "dp=8,ep=8,binding=dp";
    static const char even[] = "model.moe_router_forced_load=1",
                      uneven[] = "model.moe_router_forced_load=3";
    EXPECT(step_of("moe.json", mesh, even) == step_of("moe.json", mesh, NULL), "a load of 1");
    EXPECT(step_of("moe.json", mesh, uneven) > 1.3 * step_of("moe.json", mesh, NULL),
           "three times the rows take no longer");
    EXPECT(memory_of("moe.json", mesh, uneven) > memory_of("moe.json", mesh, even),
           "three times the rows take no memory");
    EXPECT(step_of("moe.json", "dp=1", uneven) == step_of("moe.json", "dp=1", NULL),
           "a rank with all experts has a load");
}

/* Rows that all ranks of a node hold alike leave it once. */
static void check_forms(void)
{
    static const char mesh[] = "tp=8,dp=4,ep=4,etp=8,binding=dp";
    const double baseline = step_of("moe.json", mesh, "parallel.moe_all_to_all=\"baseline\"");
    EXPECT(step_of("moe.json", mesh, "parallel.moe_all_to_all=\"direct\"") < 0.9 * baseline,
           "the direct form is priced as the baseline");
}

/* At a pace this slow, what is paced is all of the step. */
static void check_pace(void)
{
    static const char mesh[] = "dp=4,ep=4,binding=dp";
    const double experts = step_of("paced.json", mesh, NULL);
    const double half = step_of("paced.json", mesh, "device.pace=1e6");
    EXPECT_NEAR(half / experts, 2, 0.01);
    EXPECT(step_of("paced.json", mesh, "device.pace_work=all") > 1.2 * experts,
           "at a pace of all work only the experts are paced");
    EXPECT(step_of("paced.json", mesh, "device.pace=0") < 0.01 * experts,
           "a pace of the experts changes nothing");
    const double link = step_of("linked.json", "dp=4", NULL);
    EXPECT_NEAR(step_of("linked.json", "dp=4", "device.pace_link=1e6") / link, 2, 0.05);
    EXPECT(step_of("linked.json", "dp=4", "device.pace_link=0") < 0.05 * link,
           "a pace of the link changes nothing");
}

/* A trace that cannot be written costs nobody the plan. */
static void check_full(void)
{
    child_says(WORDS("plan", "dense.json", "--cluster", "cluster.json", "--mesh", "tp=8", "--trace",
                     "/dev/full"),
               6, WORDS("8 devices on DGX H100"), WORDS("/dev/full"));
}

static void check_refusals(void)
{
    CHILD_REFUSED(3, "does not fit: a rank of stage 0 needs ", "plan", "dense.json", "--cluster",
                  "cluster.json", "--mesh", "dp=8", "--set", "device.memory_limit=20000000000");
    CHILD_REFUSED(2, "4096 ranks, the cluster DGX H100 has 1024 devices", "plan", "dense.json",
                  "--cluster", "cluster.json", "--mesh", "dp=4096", "--set",
                  "train.global_batch_size=4096");
    CHILD_REFUSED(2, "device.", "plan", "dense.json", "--cluster", "empty.json");
    CHILD_REFUSED(2, "it must stay inside a node; 8 would", "plan", "dense.json", "--cluster",
                  "cluster.json", "--mesh", "tp=16", "--set", "model.num_query_groups=32");
    CHILD_REFUSED(2, "--cluster", "plan", "dense.json");
    CHILD_REFUSED(2, "--cluster: its value FILE is missing", "plan", "dense.json", "--cluster", "");
    CHILD_REFUSED(2, "parallel.pipeline_schedule_file: none.csv: No such file", "plan",
                  "dense.json", "--cluster", "cluster.json", "--mesh", "pp=2", "--set",
                  "parallel.pipeline_schedule_file=none.csv");
    CHILD_REFUSED(2, "--cluster none.json: No such file", "plan", "dense.json", "--cluster",
                  "none.json");
    CHILD_REFUSED(2, "64 stages for 32 layers", "plan", "dense.json", "--cluster", "cluster.json",
                  "--mesh", "pp=64");
    CHILD_REFUSED(2, "train.global_batch_size", "plan", "dense.json", "--cluster", "cluster.json",
                  "--mesh", "pp=8", "--set", "train.global_batch_size=600000");
    CHILD_REFUSED(2, "device.pace: 1 is out of range: 0, or 1e+06 to 1e+18 FLOP/s", "plan",
                  "paced.json", "--cluster", "cluster.json", "--set", "device.pace=1");
    CHILD_REFUSED(2, "model.seq_length: ", "plan", "dense.json", "--cluster", "cluster.json",
                  "--set", "model.seq_length=1000000000");
    check_full();
}

/* --- on other devices ------------------------------------------------------------------------ */

static const char tiny[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 64}, "
    "\"parallel\": {\"pipeline_model_parallel_size\": 2}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 4}, "
    "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true}, "
    "\"log\": {\"trace_step\": 4}}";

static const char routed[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 64, \"num_experts\": 4}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 4}, "
    "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true}, "
    "\"log\": {\"trace_step\": 4}}";

/* A forced load of experts on a model that has none. */
static void check_no_effect(void)
{
    child_says(WORDS("plan", "tiny.json", "--cluster", "cluster.json", "--set",
                     "moe_router_forced_load=2"),
               0, NULL, WORDS("no effect of model.moe_router_forced_load"));
}

/* The choice of partitions is the given cluster's, whatever the config names. */
static void check_choice(void)
{
    CHILD_REFUSED(0, "--cluster cluster.json: no effect of parallel.cluster", "plan", "moe.json",
                  "--cluster", "cluster.json", "--mesh", "dp=8,ep=8,pp=2", "--set",
                  "parallel.cluster=nowhere.json", "--set", "parallel.moe_num_partitions=0");
}

/* What is chosen for MoE layers is what the plan itself finds fastest, but for ties of 1 %. */
static void check_chosen(void)
{
    static const char *const fixed[] = {"moe_num_partitions=1", "moe_num_partitions=2",
                                        "moe_num_partitions=4", "moe_num_partitions=8"};
    static const char *const meshes[] = {"dp=8,ep=8", "dp=16,ep=16,pp=2",
                                         "tp=4,pp=2,dp=8,ep=8,sp=1"};
    static const char batch[] = "{\"model\": {\"num_layers\": 4, \"hidden_size\": 4096, "
                                "\"num_attention_heads\": 32, \"seq_length\": 4096, "
                                "\"vocab_size\": 32000, \"num_experts\": 16, "
                                "\"ffn_hidden_size\": 8192}, \"train\": {\"micro_batch_size\": 1, "
                                "\"global_batch_size\": 64, \"train_iters\": 1, \"precision\": "
                                "\"bf16\"}, \"data\": {\"mock_data\": true}}";
    EXPECT(child_write("sixteen.json", batch), "cannot write a config");
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        cJSON *json;
        (void)plan("sixteen.json", "cluster.json", meshes[m], "moe_num_partitions=0", &json);
        const double chosen = number_of(json, "step_time_s");
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
            (void)plan("sixteen.json", "cluster.json", meshes[m], fixed[i], &json);
            const double step = number_of(json, "step_time_s");
            EXPECT(chosen <= 1.01 * step, "%s: chosen %g s, %s %g s", meshes[m], chosen, fixed[i],
                   step);
        }
    }
}

/* The lower of what the config allows and the devices have. */
static void check_memory_limit(void)
{
    static const char *const sets[] = {"device.memory_limit=70000000000",
                                       "device.memory_limit=999000000000",
                                       "device.memory_limit=16GiB", "device.memory_limit=1.5k"};
    cJSON *json;
    double limits[4];
    for (int i = 0; i < 4; i++) {
        (void)plan("dense.json", "cluster.json", "tp=8", sets[i], &json);
        limits[i] = number_of(json, "memory_limit_bytes");
    }
    EXPECT(limits[0] == 70e9 && limits[1] > 70e9 && limits[1] < 90e9, "%g and %g", limits[0],
           limits[1]);
    EXPECT(limits[2] == 16.0 * (1 << 30) && limits[3] == 1536, "%g and %g", limits[2], limits[3]);
    CHILD_REFUSED(2,
                  "memory_limit=16XB: expected an integer of 0 to 1PB, also with k, M, G, "
                  "T, P or KiB, MiB, "
                  "GiB, TiB, PiB (powers of 1024), kB, MB, GB, TB, PB (of 1000), got \"16XB\"\n",
                  "plan", "dense.json", "--set", "memory_limit=16XB", "--cluster", "cluster.json");
}

/* Forwards and backwards of each rank in their order, as one text; the caller's. */
static char *order_of(const char *path)
{
    char *out = calloc(1, 1 << 16);
    cJSON *json = child_read_json(path);
    size_t used = 0;
    for (int rank = 0; rank < 4; rank++)
        for (const cJSON *e = json ? cJSON_GetObjectItem(json, "traceEvents")->child : NULL; e;
             e = e->next) {
            const cJSON *name = cJSON_GetObjectItem(e, "name"),
                        *category = cJSON_GetObjectItem(e, "cat");
            if (category && number_of(e, "pid") == rank && used + 64 < 1 << 16 &&
                (strcmp(category->valuestring, "forward") == 0 ||
                 strcmp(category->valuestring, "backward") == 0))
                used += (size_t)sprintf(out + used, "%s of %g ", name->valuestring,
                                        number_of(cJSON_GetObjectItem(e, "args"), "stage"));
        }
    EXPECT(used > 1000, "%s: %zu bytes of an order", path, used);
    return out;
}

/* The order of `auto` is the run's, at whatever load of experts a plan looks. */
static void check_auto_load(void)
{
    char *orders[2];
    for (int i = 0; i < 2; i++) {
        child c;
        CHILD_RUN(&c, "plan", "moe.json", "--cluster", "cluster.json", "--mesh",
                  "pp=4,vp=2,dp=2,ep=2,binding=dp", "--set", "parallel.pipeline_schedule=auto",
                  "--set", "train.global_batch_size=16", "--set",
                  "model.moe_layer_freq=[0,0,0,0,0,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
                  "1,1,1,1]",
                  "--expert-load", i ? "2" : "1", "--trace", "t.json");
        EXPECT(c.exit_code == 0 || c.exit_code == 3, "exit %d: %s", c.exit_code, c.err);
        orders[i] = order_of("t.json");
        remove("t.json");
    }
    EXPECT(strcmp(orders[0], orders[1]) == 0, "an uneven load has another order");
    free(orders[0]);
    free(orders[1]);
}

/* The first line names the schedule; of one stage there is none, whatever a search holds. */
static void check_schedule(void)
{
    child c;
    CHILD_RUN(&c, "plan", "dense.json", "--cluster", "cluster.json", "--mesh", "pp=4,schedule=zbv",
              "--set", "train.global_batch_size=16");
    EXPECT(strstr(c.out, ": tp 1, pp 4, dp 1, schedule zbv, 2 virtual stages a rank\n"), "%s",
           c.out);
    CHILD_RUN(&c, "plan", "dense.json", "--cluster", "cluster.json", "--search", "--top", "1000",
              "--nodes", "1", "--mesh", "cp=1,dp=1", "--set", "parallel.pipeline_schedule=zbv",
              "--set", "train.global_batch_size=16", "--set", "train.micro_batch_size=1");
    int num_one = 0, num_v = 0;
    for (const char *line = c.out; line && *line; line = strchr(line + 1, '\n')) {
        const int bytes = (int)strcspn(line + 1, "\n") + 1;
        char text[512];
        snprintf(text, sizeof text, "%.*s", bytes, line);
        num_one += strstr(text, "pp 1,") != NULL;
        num_v += strstr(text, "zbv v 2") != NULL;
        EXPECT(!strstr(text, "pp 1,") || !strstr(text, " v 2"), "%s", text);
    }
    EXPECT(num_one > 0 && num_v > 0, "%d plans of one stage, %d in a V: %s%s", num_one, num_v,
           c.out, c.err);
}

/* Whatever the limit, an order of `auto` keeps it, or the plan does not fit. */
static void check_auto_limit(void)
{
    static const char *const meshes[] = {"pp=4", "pp=4,vp=2", "pp=8,vp=2", "pp=4,vp=4"};
    int num_kept = 0;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        double most = 0;
        for (int k = 0; k < 8; k++) {
            char limit[64];
            child c;
            snprintf(limit, sizeof limit, "device.memory_limit=%.0f", most * (1.02 - 0.03 * k));
            CHILD_RUN(&c, "plan", "dense.json", "--json", "--cluster", "cluster.json", "--mesh",
                      meshes[i], "--set", "parallel.pipeline_schedule=auto", "--set",
                      "train.global_batch_size=24", "--set", limit);
            cJSON *json = child_parse(c.out);
            EXPECT(json, "%s, %s: %s", meshes[i], limit, c.err);
            const double bytes = json ? number_of(json, "memory_bytes") : 0;
            if (k > 0)
                EXPECT(c.exit_code == (bytes <= most * (1.02 - 0.03 * k) ? 0 : 3),
                       "%s, %s: %.0f bytes, exit %d", meshes[i], limit, bytes, c.exit_code);
            num_kept += k > 0 && c.exit_code == 0;
            most = k > 0 ? most : bytes;
        }
    }
    EXPECT(num_kept > 12, "%d orders keep a limit", num_kept);
}

/* A measured file without a curve: the command that measures it. */
static void check_unmeasured(void)
{
    EXPECT(child_write("measured.json",
                       "{\"num_nodes\": 1, \"ranks_per_node\": 2, \"costs\": {\"memory\": "
                       "{\"peak\": 1e10, \"points\": [[1000, 1], [1000000, 100]]}}}"),
           "measured.json");
    CHILD_REFUSED(2, "neither costs.gemm_fp32 nor device.peak.fp32 is known, and ", "plan",
                  "tiny.json", "--cluster", "measured.json");
    CHILD_REFUSED(2, "; weft calibrate measures it (alone: --only gemm_fp32)", "plan", "tiny.json",
                  "--cluster", "measured.json");
    EXPECT(
        child_write("alone.json",
                    "{\"num_nodes\": 1, \"ranks_per_node\": 2, \"device\": {\"peak\": {\"fp32\": "
                    "1e12}, \"memory_bandwidth\": 1e11, \"memory_bytes\": 1e10}, \"inside\": "
                    "{\"bandwidth\": 1e10, \"latency_us\": 1}, \"costs\": {\"memory\": "
                    "{\"peak\": 1e10, \"points\": [[1000, 1], [1000000, 100]]}}}"),
        "alone.json");
    child_says(
        WORDS("plan", "tiny.json", "--cluster", "alone.json", "--mesh", "dp=2", "--what-if"), 0,
        WORDS("free network", "balanced experts", "\n  more nodes: cluster \"\": neither costs.",
              "; weft calibrate measures it on two nodes or more (alone: --only "),
        NULL);
}

/* A GPU without bf16 trains in fp16, whatever device the config is for. */
static void check_fp16(void)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/examples/clusters/v100.json", getenv("WEFT_SOURCE_DIR"));
    CHILD_GOOD("plan", "tiny.json", "--cluster", path, "--set", "precision=fp16");
    CHILD_REFUSED(2, "device.peak.bf16 is not known, and ", "plan", "tiny.json", "--cluster", path,
                  "--set", "precision=bf16");
    CHILD_REFUSED(2, "the GPU has no bf16: train.precision fp16 would do", "plan", "tiny.json",
                  "--cluster", path, "--set", "precision=bf16");
    CHILD_GOOD("plan", "routed.json", "--cluster", path, "--set", "precision=fp16", "--set",
               "moe_num_partitions=0", "--mesh", "dp=2,ep=2,binding=dp");
}

/* Tokens to train on are counted by thousands. */
static void check_same_tokens(const char *cluster)
{
    static const char *const same[] = {"1e9", "1000M", "1B"};
    double days[3];
    for (int i = 0; i < 3; i++) {
        cJSON *json = child_json(WORDS("plan", "tiny.json", "--cluster", cluster, "--mesh",
                                       "tp=2,dp=1", "--tokens", same[i], "--json"));
        days[i] = number_of(cJSON_GetObjectItem(json, "cost"), "days");
        cJSON_Delete(json);
    }
    EXPECT(days[0] > 0 && days[1] == days[0] && days[2] == days[0], "%g, %g and %g days", days[0],
           days[1], days[2]);
}

/* What a line leaves out is said: devices, a mesh's ep, the file's key of another unit. */
static void check_left_out(void)
{
    char path[1024], config[1024];
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    snprintf(config, sizeof config,
             "{\"parallel\": {\"data_parallel_size\": 2, \"expert_model_parallel_size\": 2}, %s",
             routed + 1);
    EXPECT(child_write("spread.json", config), "cannot write spread.json");
    child_says(
        WORDS("plan", "spread.json", "--cluster", path, "--mesh", "tp=2,dp=2"), 0,
        WORDS("--mesh has no ep: the config's expert_model_parallel_size of 2 does not count"),
        NULL);
    child_says(WORDS("plan", "tiny.json", "--cluster", path, "--mesh", "tp=2", "--tokens", "2T"), 0,
               WORDS("no dp is given, so 1 is planned: 1022 devices of"), NULL);
    CHILD_REFUSED(2,
                  "--tokens 2X: expected a number of at least 1, also with k, M, B or T (powers of "
                  "1000), got ",
                  "plan", "tiny.json", "--cluster", path, "--tokens", "2X");
    check_same_tokens(path);
    EXPECT(child_write("heads.json",
                       "{\"model\": {\"num_layers\": 2, \"hidden_size\": 64, "
                       "\"num_attention_heads\": 16, \"seq_length\": 16, \"vocab_size\": 64}, "
                       "\"data\": {\"mock_data\": true}}"),
           "heads.json");
    child_says(WORDS("plan", "heads.json", "--cluster", path, "--mesh", "tp=3"), 2, NULL,
               WORDS("; tp 1, 2, 4 or 8 would\n"));
    EXPECT(child_write("fp16.json", "{\"name\": \"new\", \"num_nodes\": 1, \"ranks_per_node\": 8, "
                                    "\"device\": {\"name\": \"H900\", \"memory_bandwidth\": 1e12, "
                                    "\"peak\": {\"fp16\": 1e15}}}") &&
               child_write("gb.json", "{\"name\": \"new\", \"num_nodes\": 1, \"ranks_per_node\": "
                                      "1, \"device\": {\"memory_gb\": 80}}"),
           "cannot write");
    CHILD_REFUSED(2, "the file has device.peak.fp16: add bf16", "plan", "tiny.json", "--cluster",
                  "fp16.json", "--set", "precision=bf16");
    CHILD_REFUSED(2, "device.memory_gb: unknown key; did you mean device.memory_bytes?", "plan",
                  "tiny.json", "--cluster", "gb.json");
}

/* auto is the cheapest of the forms, heads that do not come out even left out. */
static void check_context(void)
{
    static const char *const forms[] = {"parallel.cp_comm_type=p2p",
                                        "parallel.cp_comm_type=all_gather",
                                        "parallel.cp_comm_type=a2a"};
    static const char *const meshes[] = {"cp=2", "cp=8", "cp=16,dp=2", "tp=8,cp=4,sp=1"};
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        double best = INFINITY;
        cJSON *json;
        for (int f = 0; f < 3; f++) {
            child c;
            CHILD_RUN(&c, "plan", "dense.json", "--json", "--cluster", "cluster.json", "--mesh",
                      meshes[m], "--set", forms[f]);
            json = child_parse(c.out);
            EXPECT(json || (f == 2 && c.exit_code == 2 && strstr(c.err, "num_query_groups")),
                   "%s, %s: exit %d: %s", meshes[m], forms[f], c.exit_code, c.err);
            if (json)
                best = fmin(best, number_of(json, "step_time_s"));
        }
        plan("dense.json", "cluster.json", meshes[m], "parallel.cp_comm_type=auto", &json);
        const cJSON *form = cJSON_GetObjectItem(json, "cp_comm_type");
        const cJSON *reason = cJSON_GetObjectItem(json, "cp_comm_type_reason");
        EXPECT(form && reason, "%s: nothing is said of the form", meshes[m]);
        if (!form || !reason)
            continue;
        const bool two = strcmp(form->valuestring, "a2a+p2p") == 0; /* not tried above */
        const double us = number_of(json, "step_time_s");
        EXPECT(us <= best * (1 + 1e-9) && (two || us >= best * (1 - 1e-9)),
               "%s: %s takes %g s, the best of the others %g", meshes[m], form->valuestring, us,
               best);
        EXPECT(strncmp(reason->valuestring, form->valuestring, strlen(form->valuestring)) == 0 &&
                   strstr(reason->valuestring, "all_gather"),
               "%s: %s", meshes[m], reason->valuestring);
    }
}

/* A peak that the config has of another device is not the cluster's; CPUs do not compute in fp16.
 */
static void check_other_device(void)
{
    cJSON *json, *own;
    char cpu[1024];
    plan("dense.json", "cluster.json", "dp=8", "device.peak_flops=1e10", &json);
    plan("dense.json", "cluster.json", "dp=8", NULL, &own);
    EXPECT(number_of(json, "model_flops_utilization") == number_of(own, "model_flops_utilization"),
           "an MFU of %g, not %g", number_of(json, "model_flops_utilization"),
           number_of(own, "model_flops_utilization"));
    snprintf(cpu, sizeof cpu,
             "{\"name\": \"cores\", \"num_nodes\": 1, \"ranks_per_node\": 8, \"device\": "
             "{\"name\": \"core\", \"memory_bandwidth\": 1e10, \"peak\": {\"fp32\": 1e11, "
             "\"bf16\": 2e11}}, \"inside\": {\"bandwidth\": 1e10, \"latency_us\": 1}}");
    EXPECT(child_write("cores.json", cpu), "cannot write cores.json");
    CHILD_REFUSED(2, "train.precision: fp16 needs GPUs, and cluster \"cores\" has CPUs", "plan",
                  "dense.json", "--cluster", "cores.json", "--set", "precision=fp16");
}

/* No output replaces what the plan is made of, or another output. */
static void check_outputs(const char *sheet)
{
    CHILD_REFUSED(2, "--html .//cluster.json: the same file as --cluster", "plan", "dense.json",
                  "--cluster", "cluster.json", "--html", ".//cluster.json");
    CHILD_REFUSED(2, "--trace dense.json: the same file as CONFIG", "plan", "dense.json",
                  "--cluster", "cluster.json", "--trace", "dense.json");
    CHILD_REFUSED(2, "--html ./new.json: the same file as --emit", "plan", "dense.json",
                  "--cluster", "cluster.json", "--search", "--emit", "new.json", "--html",
                  "./new.json");
    char *text = child_read("cluster.json");
    EXPECT(text && strcmp(text, sheet) == 0, "another cluster.json");
}

/* The same bytes from the program that links no MPI, HDF5, oneDNN or CUDA. */
static void check_alone(const char *alone)
{
    const char *const *args = WORDS("plan", "moe.json", "--cluster", "cluster.json", "--mesh",
                                    "dp=8,ep=8,pp=2", "--json");
    child whole, pure;
    child_run(&whole, args, NULL);
    child_program = alone;
    child_run(&pure, args, NULL);
    child_program = NULL;
    EXPECT(whole.exit_code == 0 && pure.exit_code == 0, "exit %d and %d: %s", whole.exit_code,
           pure.exit_code, pure.err);
    EXPECT(strcmp(whole.out, pure.out) == 0, "weft-plan says something else than weft plan");
    child_program = alone;
    CHILD_RUN(&pure, "plan", "moe.json");
    child_program = NULL;
    EXPECT(pure.exit_code == 2 &&
               strcmp(pure.err, "weft-plan plan: --cluster FILE is missing; see weft-plan plan "
                                "--help\n") == 0,
           "exit %d: %s", pure.exit_code, pure.err);
}

/* An efficiency that is not given is 1, which is told. */
static void check_efficiency(void)
{
    child c;
    char sheet[1024];
    snprintf(sheet, sizeof sheet,
             "{\"num_nodes\": 1, \"ranks_per_node\": 8, \"device\": {\"memory_bandwidth\": 1e10, "
             "\"peak\": {\"fp32\": 1e11, \"bf16\": 2e11}, \"efficiency\": {\"memory\": [[1e6, "
             "0.5]]}}, \"inside\": {\"bandwidth\": 1e10, \"latency_us\": 1, \"efficiency\": "
             "[[1e6, 0.5]]}}");
    EXPECT(child_write("bare.json", sheet), "cannot write bare.json");
    const char *args[] = {"plan",   "dense.json", "--cluster", "bare.json",
                          "--mesh", "tp=8",       NULL,        NULL};
    child_run(&c, args, NULL);
    EXPECT(strstr(c.out, "\ndevice.efficiency.gemm is not given: 1"), "%s%s", c.out, c.err);
    args[6] = "--json";
    child_run(&c, args, NULL);
    EXPECT(strstr(c.out, "\"not given: 1\"") != NULL, "%s%s", c.out, c.err);
}

/* The measured peak is below the products that were measured beside it: no share of it is told. */
static void check_low_peak(void)
{
    child c;
    char sheet[1024];
    snprintf(sheet, sizeof sheet,
             "{\"num_nodes\": 1, \"ranks_per_node\": 8, \"device\": {\"memory_bandwidth\": 1e12, "
             "\"efficiency\": {\"attention\": [[1e6, 1]]}, \"peak\": {\"fp32\": 1e11, \"bf16\": "
             "1e11}}, \"products\": [[\"bf16\", 4096, 4096, 4096, 1000]], "
             "\"inside\": {\"bandwidth\": 1e12, \"latency_us\": 1}}");
    EXPECT(child_write("low.json", sheet), "cannot write low.json");
    CHILD_RUN(&c, "plan", "dense.json", "--cluster", "low.json", "--mesh", "tp=8");
    EXPECT(strstr(c.out, "MFU -   most") && strstr(c.out, "peak cannot be right"), "%s%s", c.out,
           c.err);
}

/* Attention's FLOPs of so long a sequence pass 2^64. */
static void check_long(void)
{
    static const char *const lengths[] = {"seq_length=8388608", "seq_length=16777216"};
    double mfu[2];
    for (int i = 0; i < 2; i++) {
        cJSON *json;
        (void)plan("dense.json", "cluster.json", "tp=8,cp=8,sp=1", lengths[i], &json);
        mfu[i] = number_of(json, "model_flops_utilization");
    }
    EXPECT_NEAR(mfu[1] / mfu[0], 1, 0.05);
}

int main(void)
{
    char alone[1024];
    snprintf(alone, sizeof alone, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    child_begin();
    const char *sheet = child_cluster("h100", "cluster.json");
    EXPECT(child_write("dense.json", dense) && child_write("moe.json", moe) &&
               child_write("wide.json", wide) && child_write("tiny.json", tiny) &&
               child_write("routed.json", routed) && child_write("paced.json", paced) &&
               child_write("linked.json", linked) &&
               child_write("empty.json", "{\"name\": \"empty\", \"num_nodes\": 1, "
                                         "\"ranks_per_node\": 8}"),
           "cannot write configs");
    check_meshes();
    check_fp16();
    check_left_out();
    check_choice();
    check_chosen();
    check_memory_limit();
    check_auto_limit();
    check_auto_load();
    check_schedule();
    check_unmeasured();
    check_no_effect();
    check_context();
    check_other_device();
    check_overlap();
    check_directions();
    check_loads();
    check_long();
    check_efficiency();
    check_low_peak();
    check_forms();
    check_limits();
    check_pace();
    check_kinds(sheet);
    check_eager(sheet);
    check_offload(sheet);
    check_refusals();
    check_outputs(sheet);
    check_alone(alone);
    return child_finish();
}
