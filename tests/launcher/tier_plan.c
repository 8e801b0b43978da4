/* weft plan of experts in host memory: what waits for uploads, for each order, against sums by
 * hand; what the host steps beside the step, behind it, and beside the next one; what is said of
 * it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* 2 MoE layers of 8 experts, each of 2 x 64 x 256 elements in fp32, on a link of 125 MiB/s each
 * way: a millisecond an upload and a download. 64 tokens choose 2 experts each, so that an expert's
 * forward takes 2 x 16 x 2 x 64 x 256 FLOPs: at 2^20 / 1e-3 FLOP/s a millisecond too. */
static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"ffn_hidden_size\": 256, "
    "\"num_attention_heads\": 2, \"seq_length\": 64, \"vocab_size\": 64, \"num_experts\": 8, "
    "\"moe_router_forced_load\": 1}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 1}, \"data\": {\"mock_data\": "
    "true}, "
    "\"offload\": {\"experts\": \"host\"}, "
    "\"device\": {\"pace\": 1048576000, \"pace_work\": \"all\", \"pace_link\": 131072000}}";

/* AdamW at 1 TB/s on the device. On the host its step of all experts, 28 bytes an element, takes
 * little, or 280 ms. */
#define CLUSTER(rate, more)                                                                        \
    "{\"name\": \"paced\", \"num_nodes\": 1, \"ranks_per_node\": 4, \"costs\": {"                  \
    "\"adamw_host\": {\"peak\": " rate ", \"latency_us\": 0}}, "                                   \
    "\"device\": {\"memory_bandwidth\": 1e12}, "                                                   \
    "\"inside\": {\"bandwidth\": 1e12, \"latency_us\": 1}, "                                       \
    "\"between\": {\"bandwidth\": 1e12, \"latency_us\": 1}, "                                      \
    "\"host\": {\"link_bandwidth\": 1e12}" more "}"
/* Where 16 KiB between two ranks take 2 ms. */
#define SLOW_INSIDE                                                                                \
    "{\"name\": \"paced\", \"num_nodes\": 1, \"ranks_per_node\": 2, \"costs\": {"                  \
    "\"adamw_host\": {\"peak\": 1e12, \"latency_us\": 0}}, "                                       \
    "\"device\": {\"memory_bandwidth\": 1e12}, "                                                   \
    "\"inside\": {\"bandwidth\": 8192000, \"latency_us\": 1}, "                                    \
    "\"between\": {\"bandwidth\": 1e12, \"latency_us\": 1}, "                                      \
    "\"host\": {\"link_bandwidth\": 1e12}}"
#define FROM_FILE "offload.experts=file"

enum { NUM_EXPERTS = 8, NUM_LAYERS = 2, MAX_SET = 8 };
#define ELEMENTS (2.0 * 64 * 256)
#define STEP_S (28 * ELEMENTS * NUM_EXPERTS * NUM_LAYERS / 5.24288e7) /* 0.28 s */
#define SQUARES_S (STEP_S * 4 / 28)

typedef struct planned {
    double step, compute, upload, times;        /* seconds; times: the sum of all kinds */
    double up, down, host, file, read, written; /* of the file: seconds, then bytes */
} planned;

static planned ask(const char *cluster, const char *const set[MAX_SET])
{
    const char *args[8 + 2 * MAX_SET] = {"plan", "config.json", "--cluster", cluster, "--json"};
    child_add_sets(args, set, MAX_SET);
    cJSON *json = child_json(args);
    const cJSON *time = cJSON_GetObjectItem(json, "time"), *row;
    const cJSON *stage = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "stages"), 0),
                *lanes = cJSON_GetObjectItem(stage, "experts_time");
    planned p = {.step = number_of(json, "step_time_s"),
                 .compute = number_of(time, "compute"),
                 .upload = number_of(time, "upload")};
    cJSON_ArrayForEach(row, time) p.times += row->valuedouble;
    if (lanes) {
        p.up = number_of(lanes, "up");
        p.down = number_of(lanes, "down");
        p.host = number_of(lanes, "host");
    }
    if (lanes && cJSON_HasObjectItem(lanes, "file")) {
        p.file = number_of(lanes, "file");
        p.read = number_of(stage, "read_bytes");
        p.written = number_of(stage, "written_bytes");
    }
    EXPECT_NEAR(p.times, p.step, 1e-6 * p.step);
    return p;
}

#define ASK(cluster, ...) ask(cluster, (const char *const[MAX_SET]){__VA_ARGS__})

/* A millisecond an upload; the last layer's backward finds its last slots filled. */
static void check_orders(void)
{
    const planned none = ASK("fast.json", "offload.experts=none"), expert = ASK("fast.json", NULL),
                  demand = ASK("fast.json", "offload.order=demand"),
                  layer = ASK("fast.json", "offload.order=layer"),
                  slow = ASK("fast.json", "device.pace_link=32768000"),
                  kept = ASK("fast.json", "offload.kept=1");
    EXPECT(none.upload == 0 && none.up == 0, "experts on the device wait %g s", none.upload);
    EXPECT_NEAR(expert.compute, none.compute, 1e-9);
    EXPECT_NEAR(expert.up, (2 * NUM_EXPERTS * NUM_LAYERS - 2) * 1e-3, 1e-9);
    EXPECT_NEAR(expert.down, NUM_EXPERTS * NUM_LAYERS * 1e-3, 1e-9);
    /* Of each forward the first one; of the first layer's backward what came while the second's
     * last expert was computed. */
    EXPECT_NEAR(expert.upload, 2e-3, 1e-4);
    /* Backward: all but the second layer's two that are there and the first layer's first one, for
     * which its slot was free ahead of it. */
    EXPECT_NEAR(demand.upload, (16 + 6 + 7) * 1e-3, 1e-4);
    /* Backward: the second layer's are there; the first's come into slots as they get free. */
    EXPECT_NEAR(layer.upload, 16e-3, 1e-4);
    /* 4 ms an upload: forward, the lane is busy until the last expert; backward computes two
     * experts' gradients, 4 ms, meanwhile, and each takes as long as its upload. */
    EXPECT(slow.up > 29 * 4e-3 && slow.step >= slow.up && slow.step < 1.2 * slow.up,
           "uploads take %g s of a step of %g", slow.up, slow.step);
    EXPECT(kept.upload < 1e-9 && kept.up > 15e-3 && kept.up < 17e-3,
           "experts that are kept wait %g s; refreshed in %g", kept.upload, kept.up);
}

/* As routers begin: the fullest of 8 experts has twice the mean, 2 ms, and each next one 0.787 of
 * the one before, down to 0.37 ms. Forward the last four are shorter than an upload: beyond the
 * first upload, for which even ones wait too, they wait for 0.03, 0.24, 0.40 and 0.53 ms, in two
 * layers; backward they have twice the time. */
static void check_routed(void)
{
    const planned even = ASK("fast.json", NULL),
                  routed = ASK("fast.json", "model.moe_router_forced_load=0"),
                  slow = ASK("fast.json", "model.moe_router_forced_load=0",
                             "device.pace_link=65536000");
    EXPECT_NEAR(routed.compute, even.compute, 1e-9);
    EXPECT(routed.upload > even.upload + 2.3e-3 && routed.upload < even.upload + 2.8e-3,
           "routed experts wait %g s, and even ones %g", routed.upload, even.upload);
    EXPECT(slow.step > slow.up, "uploads take %g s of a step of %g", slow.up, slow.step);
}

/* Of a whole plan: seconds that the exchange of rows is not hidden. */
static double exchange_of(const char *n, const char *const more[2], planned *out)
{
    char set[48];
    snprintf(set, sizeof set, "parallel.moe_num_partitions=%s", n);
    *out = ASK("exchange.json", "parallel.expert_model_parallel_size=2",
               "parallel.data_parallel_size=2", "parallel.expert_binding=dp",
               "train.global_batch_size=2", set, more[0], more[1]);
    return out->step - out->compute;
}

/* Two ranks of 4 experts a layer, of 32 rows each, 2 ms an expert forward and 4 backward; 16 KiB go
 * to the other rank and 16 come back, 2 ms each, forward and backward, in 2 layers: 16 ms. Of n
 * partitions by experts the first goes there and the last home while nothing computes: an n-th. The
 * first upload of a forward takes 1 ms, which the first rows take too, or with n 4 the half. What
 * is computed and brought up is the same. */
static void check_partitions(void)
{
    static const char *const by[] = {"parallel.moe_partition_by=experts", NULL},
                             *const open[] = {"parallel.moe_choice=price", NULL},
                             *const none[] = {"parallel.moe_partition_by=experts",
                                              "offload.experts=none"};
    planned one, some, chosen;
    const double whole = exchange_of("1", by, &one);
    EXPECT_NEAR(one.upload, 0, 1e-4);
    for (int n = 2; n <= 4; n += 2) {
        const double exchange = exchange_of(n == 2 ? "2" : "4", by, &some);
        EXPECT_NEAR(some.compute, one.compute, 1e-9);
        EXPECT_NEAR(some.up, one.up, 1e-9);
        EXPECT_NEAR(some.down, one.down, 1e-9);
        EXPECT_NEAR(some.upload, n == 4 ? 1e-3 : 0, 1e-4);
        EXPECT_NEAR(whole - exchange + some.upload, 16e-3 * (1 - 1.0 / n), 2e-4);
    }
    (void)exchange_of("0", open, &chosen);
    EXPECT_NEAR(chosen.step, some.step, 1e-9);
    (void)exchange_of("4", none, &chosen);
    EXPECT(chosen.upload == 0 && fabs(chosen.step + some.upload - some.step) < 2e-4,
           "experts on the device take %g s, in host memory %g", chosen.step, some.step);
}

/* Forced to be even, the next micro-batch finds in their slots what the backward before it left:
 * the first layer's all, where all have slots, or two. */
static void check_micro_batches(void)
{
    const planned layer = ASK("fast.json", "offload.order=layer", "train.global_batch_size=2"),
                  expert = ASK("fast.json", "train.global_batch_size=2"),
                  routed = ASK("fast.json", "offload.order=layer", "train.global_batch_size=2",
                               "model.moe_router_forced_load=0");
    EXPECT_NEAR(layer.up, (3 + 2) * NUM_EXPERTS * 1e-3, 1e-9);
    EXPECT_NEAR(expert.up, (2 * (2 * NUM_EXPERTS * NUM_LAYERS - 2) - 2) * 1e-3, 1e-9);
    EXPECT_NEAR(routed.up, (3 + 3) * NUM_EXPERTS * 1e-3, 1e-9);
}

/* The host needs longer than the step. */
static void check_steps(void)
{
    const planned fast = ASK("fast.json", NULL), deferred = ASK("slow.json", NULL),
                  at_once = ASK("slow.json", "train.clip_grad=0"),
                  after = ASK("slow.json", "offload.optimizer=after");
    EXPECT_NEAR(deferred.host, STEP_S + SQUARES_S, 1e-6);
    /* Sums of squares come beside backward, but for one layer's at the end: an eighth of the steps'
     * time in all. */
    EXPECT(after.step > fast.step + STEP_S && after.step < fast.step + STEP_S + SQUARES_S,
           "steps behind the backward: %g s, of %g and %g", after.step, fast.step, STEP_S);
    /* Steps end with the next forward; backward follows. At once, the host waits from the end of
     * the first layer's steps until the last layer's backward. */
    EXPECT(deferred.step > STEP_S + SQUARES_S && deferred.step < after.step - 15e-3,
           "steps beside the next forward: %g s, behind the backward %g", deferred.step,
           after.step);
    EXPECT(at_once.step > 0.999 * at_once.host && at_once.step < 1.12 * at_once.host,
           "steps at once: %g s, the host's %g", at_once.step, at_once.host);
    EXPECT(deferred.upload > STEP_S - fast.step, "forward waits %g s for steps", deferred.upload);
}

/* Several micro-batches are added up; several stages. */
static void check_meshes(void)
{
    const planned one = ASK("fast.json", NULL),
                  four = ASK("fast.json", "train.global_batch_size=4"),
                  stages = ASK("fast.json", "parallel.pipeline_model_parallel_size=2",
                               "train.global_batch_size=4"),
                  again = ASK("fast.json", "train.recompute_granularity=full"),
                  spread = ASK("fast.json", "parallel.expert_model_parallel_size=2",
                               "parallel.expert_binding=dp", "parallel.data_parallel_size=2",
                               "train.global_batch_size=2");
    EXPECT_NEAR(four.down, 4 * one.down, 1e-9);
    /* The second to fourth find the first layer's first experts in their slots. */
    EXPECT(four.host > one.host, "the host adds for %g s, and without for %g", four.host, one.host);
    EXPECT_NEAR(four.upload, one.upload + 3e-3, 1e-5);
    EXPECT_NEAR(stages.down, four.down / 2, 1e-9);
    EXPECT_NEAR(spread.down, one.down / 2, 1e-9);
    EXPECT(again.up > one.up + 10e-3 && again.up < 1.5 * one.up,
           "a recomputed forward uploads %g s, without %g", again.up, one.up);
}

/* A disk of 100 MB/s. A record is 512 KiB: weights, gradient and twice as much state. */
static void check_file(void)
{
    const double whole_s = 12 * ELEMENTS / 1e8, part_s = 4 * ELEMENTS / 1e8;
    const planned all = ASK("disk.json", FROM_FILE, "offload.cached=1"),
                  host = ASK("disk.json", NULL), quarter = ASK("disk.json", FROM_FILE),
                  lru = ASK("disk.json", FROM_FILE, "offload.eviction=lru"),
                  fewer = ASK("disk.json", FROM_FILE, "offload.cached=0.125"),
                  at_once = ASK("disk.json", FROM_FILE, "train.clip_grad=0"),
                  four = ASK("disk.json", FROM_FILE, "train.global_batch_size=4"),
                  paced = ASK("fast.json", FROM_FILE, "device.pace_file=1e8"),
                  faster = ASK("disk.json", FROM_FILE, "device.pace_file=2e8");
    child c;
    EXPECT(all.file == 0, "with places for all %g s", all.file);
    EXPECT_NEAR(all.step, host.step, 0.05 * host.step);
    /* Of 16 records 4 stay; the others' weights and state go both ways, and besides at most weights
     * come twice and gradients go both ways. */
    EXPECT(quarter.file > 12 * 2 * whole_s && quarter.file < 16 * (2 * whole_s + 4 * part_s),
           "a quarter in memory: %g s", quarter.file);
    EXPECT(lru.file > 1.02 * quarter.file && fewer.file > 1.02 * quarter.file,
           "the file takes %g s, least used %g, of an eighth %g", quarter.file, lru.file,
           fewer.file);
    EXPECT_NEAR(paced.file, quarter.file, 0.01 * quarter.file);
    EXPECT_NEAR(faster.file, quarter.file / 2, 0.01 * quarter.file);
    EXPECT(four.file > quarter.file + 3 * 12 * part_s, "four micro-batches: %g s", four.file);
    /* Its places are waited for, as below. */
    EXPECT(quarter.step > 0.99 * quarter.file &&
               quarter.step < 1.3 * quarter.file + NUM_EXPERTS * 2e-3,
           "a step of %g s, its file's %g", quarter.step, quarter.file);
    EXPECT(at_once.file <= quarter.file && at_once.step > 0.99 * at_once.file &&
               at_once.step < 1.3 * at_once.file,
           "at once a step of %g s, its file's %g", at_once.step, at_once.file);
    child_says(WORDS("plan", "config.json", "--cluster", "fast.json", "--set", FROM_FILE), 0,
               WORDS("storage.read or storage.write is not known"), NULL);
    CHILD_RUN(&c, "plan", "config.json", "--cluster", "disk.json", "--set", FROM_FILE);
    EXPECT(strstr(c.out, "  read and written  in a file\n") && strstr(c.out, "  8 MiB\n"), "%s",
           c.out);
    child_says(
        WORDS("schedule", "config.json", "--level", "experts", "--program", "--set", FROM_FILE), 0,
        WORDS("read file weight expert=0", "waits=step_before\n", "write file gradient expert=7"),
        NULL);
}

/* Every step ends with all that it reads and writes, however late that comes. */
#define DRAINED "offload.optimizer=after"

/* Of a step behind those in which a run learns what it uses: bytes read and written. */
static void train_from_file(double out[2])
{
    out[0] = out[1] = NAN;
    CHILD_GOOD("train", "config.json", "--out", "run", "--set", FROM_FILE, "--set", DRAINED,
               "--set", "train.train_iters=6", "--set", "checkpoint.no_save=true");
    char *text = child_read("run/metrics.jsonl"), *line = text;
    for (int i = 1; i < 5 && line; i++)
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
    cJSON *json = line ? cJSON_ParseWithOpts(line, NULL, false) : NULL;
    EXPECT(json, "no fifth step in %s", text ? text : "no metrics");
    if (json) {
        out[0] = number_of(json, "read_bytes");
        out[1] = number_of(json, "written_bytes");
    }
    cJSON_Delete(json);
}

/* What a run reads and writes, but for a record whose next use it only guesses. */
static void check_bytes(void)
{
    double real[2];
    const planned p = ASK("disk.json", FROM_FILE, DRAINED);
    train_from_file(real);
    EXPECT_NEAR(p.read, real[0], 4 * ELEMENTS);
    EXPECT_NEAR(p.written, real[1], 4 * ELEMENTS);
}

/* A disk that takes no time. Backward, the place that is taken is that of the expert used again
 * last: in the first layer the one just computed. So each of its experts comes up when the one
 * before has gone down: 2 ms more than where all are in memory. */
static void check_places(void)
{
    const planned host = ASK("quick.json", NULL), file = ASK("quick.json", FROM_FILE),
                  all = ASK("quick.json", FROM_FILE, "offload.cached=1");
    EXPECT_NEAR(all.step, host.step, 1e-3);
    EXPECT(file.step > host.step + 10e-3 && file.step < host.step + 32e-3,
           "places are waited for: %g s, none %g", file.step, host.step);
}

static void check_text(void)
{
    child_says(
        WORDS("plan", "config.json", "--cluster", "fast.json"), 0,
        WORDS("  in host memory ", "      0  experts          8 MiB  30 ms ", "!activations"),
        NULL);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("config.json", config) && child_write("fast.json", CLUSTER("1e12", "")) &&
               child_write("slow.json", CLUSTER("5.24288e7", "")) &&
               child_write("disk.json", CLUSTER("1e12", ", \"storage\": {\"read\": 1e8, "
                                                        "\"write\": 1e8}")) &&
               child_write("quick.json", CLUSTER("1e12", ", \"storage\": {\"read\": 1e13, "
                                                         "\"write\": 1e13}")) &&
               child_write("exchange.json", SLOW_INSIDE),
           "cannot write a config");
    check_orders();
    check_routed();
    check_micro_batches();
    check_partitions();
    check_steps();
    check_meshes();
    check_file();
    check_bytes();
    check_places();
    check_text();
    return child_finish();
}
