/* The optimizer's state in host memory, by its limits: what it takes of device and host is what its
 * footprint told; where the state does not fit the device it is advised, or what is cheaper, and
 * trains; the host's limit binds it. Plans price it against sums by hand, and the run's timeline
 * shows it. Muon's state and operations, of a plan and of a run, are those by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

enum { MAX_SET = 6, MAX_ARGS = 24 };

static const char config[] =
    "{\"model\": {\"num_layers\": 3, \"hidden_size\": 32, \"ffn_hidden_size\": 128,\n"
    "  \"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 300},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 2, \"train_iters\": 2},\n"
    "\"parallel\": {\"ddp_bucket_size\": 8192},\n"
    "\"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 2}}\n";

/* AdamW at 1e8 bytes/s on the host, a link of 4e8 bytes/s, everything else fast. */
#define HOST_RATE 1e8
#define LINK_RATE 4e8
static const char cluster[] =
    "{\"name\": \"c\", \"num_nodes\": 1, \"ranks_per_node\": 4, \"costs\": {"
    "\"adamw_host\": {\"peak\": 1e8, \"latency_us\": 0}}, "
    "\"device\": {\"name\": \"d\", \"peak\": {\"fp32\": 1e13, \"bf16\": 1e13}, "
    "\"memory_bandwidth\": 1e13, "
    "\"launch_us\": 0}, "
    "\"host\": {\"link_bandwidth\": 4e8, \"memory_bandwidth\": 1e13}, "
    "\"inside\": {\"bandwidth\": 1e13, \"latency_us\": 0}}";

#define HOST "offload.optimizer_state=host"

static child run(const char *verb, const char *const sets[MAX_SET])
{
    const char *args[MAX_ARGS] = {verb, "c.json", "--out", "run"};
    child c;
    if (strcmp(verb, "plan") == 0) {
        args[2] = "--cluster";
        args[3] = "cluster.json";
        args[4] = "--json";
    } else {
        EXPECT(system("rm -rf run") == 0, "rm");
    }
    child_add_sets(args, sets, MAX_SET);
    child_run(&c, args, NULL);
    return c;
}

#define SETS(...) ((const char *const[MAX_SET]){__VA_ARGS__})

typedef struct bytes {
    double device, pinned, optimizer;
} bytes;

/* Trains, and gives what the run took, which is what was planned. */
static bytes train(const char *const sets[MAX_SET])
{
    child c = run("train", sets);
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", sets[0], c.exit_code, c.err);
    cJSON *json = child_read_json("run/memory.json");
    const cJSON *rank = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "ranks"), 0);
    const bytes used = {number_at(rank, "used", "device in all"),
                        number_at(rank, "used", "pinned host"),
                        number_at(rank, "used", "optimizer")},
                planned = {number_at(rank, "planned", "device in all"),
                           number_at(rank, "planned", "pinned host"),
                           number_at(rank, "planned", "optimizer")};
    EXPECT(used.device == planned.device && used.pinned == planned.pinned &&
               used.optimizer == planned.optimizer,
           "%s: took %.0f, %.0f and %.0f bytes, not %.0f, %.0f and %.0f", sets[0], used.device,
           used.pinned, used.optimizer, planned.device, planned.pinned, planned.optimizer);
    return used;
}

static void refuse(const char *const sets[MAX_SET], const char *key, const char *wanted)
{
    char begins[64];
    child c = run("train", sets);
    snprintf(begins, sizeof begins, "weft train: %s: out of memory: ", key);
    EXPECT(c.exit_code == 3 && child_is_line(c.err) &&
               strncmp(c.err, begins, strlen(begins)) == 0 && strstr(c.err, wanted),
           "%s: exit %d: %s", sets[0], c.exit_code, c.err);
}

/* In fp32 weights, moments and two buckets' gradients are pinned; in bf16 2 + 2 + 8 bytes. */
static void check_memory(void)
{
    char limit[64], host[64];
    const bytes device = train(SETS("offload.optimizer_state=device")), moved = train(SETS(HOST));
    EXPECT(device.optimizer > 0 && moved.optimizer == 0 &&
               moved.device == device.device - device.optimizer,
           "device %.0f and %.0f, of which state %.0f and %.0f", device.device, moved.device,
           device.optimizer, moved.optimizer);
    const double more = moved.pinned - device.pinned, staged = more - 1.5 * device.optimizer;
    EXPECT(staged > 0 && staged <= 2 * 4 * 12000, "%.0f bytes pinned more, %.0f staged", more,
           staged);
    const bytes split = train(SETS(HOST, "train.precision=bf16"));
    EXPECT(split.pinned == moved.pinned, "%.0f bytes pinned in bf16, %.0f in fp32", split.pinned,
           moved.pinned);
    snprintf(limit, sizeof limit, "device.memory_limit=%.0f", moved.device);
    snprintf(host, sizeof host, "offload.host_memory_limit=%.0f", moved.pinned - 1);
    refuse(SETS(limit), "device.memory_limit", "; offload.optimizer_state host would fit");
    train(SETS(HOST, limit));
    refuse(SETS(HOST, limit, host), "offload.host_memory_limit", " of host memory");
    snprintf(limit, sizeof limit, "device.memory_limit=%.0f", moved.device - 1);
    child c = run("train", SETS(limit));
    EXPECT(c.exit_code == 3 && !strstr(c.err, "; offload.optimizer_state host would fit"),
           "exit %d: %s", c.exit_code, c.err);
    c = run("train", SETS("offload.host_memory_limit=1"));
    EXPECT(c.exit_code == 2 || strstr(c.err, "offload.host_memory_limit"), "exit %d: %s",
           c.exit_code, c.err);
}

/* A plan says the same of a limit as the training that it refused. */
static void check_planned_advice(const char *limit, const char *err)
{
    const char *advice = strstr(err, "; ");
    child c = run("plan", SETS(limit));
    EXPECT(c.exit_code == 3 && advice && strstr(c.err, advice), "%s: exit %d: %s, not%s", limit,
           c.exit_code, c.err, advice ? advice : " nothing");
}

/* "; train.micro_batch_size 1 and offload.optimizer_state host would fit, ..." as key=value each;
 * how many. */
static int read_advice(const char *err, char sets[MAX_SET][64])
{
    const char *end = err ? strstr(err, " would fit") : NULL, *at = end ? strrchr(err, ';') : NULL;
    int count = 0;
    for (at = at ? at + 2 : NULL; at && at < end && count < MAX_SET - 1; count++) {
        const char *value = strchr(at, ' ');
        const size_t length = strcspn(value + 1, " ,");
        snprintf(sets[count], sizeof sets[count], "%.*s=%.*s", (int)(value - at), at, (int)length,
                 value + 1);
        at = value + 1 + length;
        at += strncmp(at, ", ", 2) == 0 ? 2 : strncmp(at, " and ", 5) == 0 ? 5 : 0;
        at = strncmp(at, " would", 6) == 0 ? NULL : at;
    }
    return count;
}

/* What is advised where limits get smaller trains within them; in the end nothing does. */
static void check_advice(void)
{
    const double all = train(SETS("offload.optimizer_state=device")).device;
    int last = 0, num_advised = 0;
    char limit[64], sets[MAX_SET][64];
    for (double share = 0.99; share > 0.1; share -= 0.09) {
        snprintf(limit, sizeof limit, "device.memory_limit=%.0f", share * all);
        child c = run("train", SETS(limit));
        const char *lack = strstr(c.err, " it would still lack ");
        const int count = read_advice(c.err, sets);
        EXPECT(c.exit_code == 3 && child_is_line(c.err) && (count > 0) == !lack,
               "%s: exit %d, %d advised: %s", limit, c.exit_code, count, c.err);
        check_planned_advice(limit, c.err);
        last = count;
        num_advised += count > 0;
        if (lack)
            break;
        const char *args[MAX_SET] = {limit};
        for (int i = 0; i < count; i++)
            args[1 + i] = sets[i];
        train(args);
    }
    EXPECT(num_advised >= 3 && last == 0, "%d limits had advice, the last %d", num_advised, last);
}

typedef struct planned {
    double step, down, host, up, pinned, optimizer;
} planned;

static planned ask(const char *const sets[MAX_SET])
{
    child c = run("plan", sets);
    cJSON *json = child_parse(c.out);
    const cJSON *stage = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "stages"), 0),
                *lanes = cJSON_GetObjectItem(stage, "optimizer_time"), *row;
    planned p = {.pinned = number_at(stage, "memory", "pinned host")};
    double times = 0;
    EXPECT(c.exit_code == 0, "plan: exit %d: %s", c.exit_code, c.err);
    p.step = cJSON_GetNumberValue(cJSON_GetObjectItem(json, "step_time_s"));
    p.optimizer = number_at(json, "time", "optimizer");
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "time")) times += row->valuedouble;
    EXPECT(fabs(times - p.step) < 1e-6 * p.step, "times sum to %g of %g s", times, p.step);
    if (lanes) {
        p.down = number_at(stage, "optimizer_time", "down");
        p.host = number_at(stage, "optimizer_time", "host");
        p.up = number_at(stage, "optimizer_time", "up");
    }
    return p;
}

/* Of each element 4 bytes go down, 28 are stepped, 4 go up in fp32 and 2 in bf16. Steps follow each
 * other, and copies hide behind them but the first down and the last up. */
static void check_plan(void)
{
    const bytes used = train(SETS(HOST));
    const planned device = ask(SETS(NULL)), host = ask(SETS(HOST)),
                  whole = ask(SETS(HOST, "parallel.ddp_bucket_size=1000000000")),
                  half = ask(SETS(HOST, "train.precision=bf16"));
    const double elements = host.host * HOST_RATE / 28;
    EXPECT(device.host == 0 && elements > 30000, "%g elements are stepped", elements);
    EXPECT(host.pinned == used.pinned, "%.0f bytes pinned, planned %.0f", used.pinned, host.pinned);
    EXPECT(fabs(host.down - 4 * elements / LINK_RATE) < 1e-9 * host.down &&
               fabs(host.up - host.down) < 1e-9 * host.down &&
               fabs(half.up - host.up / 2) < 1e-9 * host.up,
           "down in %g s, up in %g, in bf16 in %g", host.down, host.up, half.up);
    const double longer = host.step - device.step, longest = whole.step - device.step;
    EXPECT(fabs(longest - (whole.down + whole.host + whole.up)) < 1e-3 * longest,
           "one bucket: %g s longer, %g + %g + %g", longest, whole.down, whole.host, whole.up);
    EXPECT(longer >= host.host && longer < host.host + 0.5 * (host.down + host.up),
           "%g s longer, of which the host steps %g", longer, host.host);
    EXPECT(host.optimizer - device.optimizer > 0.999 * longer, "%g of %g s are the optimizer's",
           host.optimizer - device.optimizer, longer);
}

static void check_seen(void)
{
    train(SETS(HOST));
    char *trace = child_read("run/trace.json");
    EXPECT(trace && strstr(trace, "\"download\"") && strstr(trace, "\"to_host\"") &&
               strstr(trace, "\"host\"") && strstr(trace, "\"upload\""),
           "no copies in the timeline: %.2000s", trace);
    child_says(WORDS("plan", "c.json", "--cluster", "cluster.json", "--set", HOST), 0,
               WORDS("  in host memory ", "      0  optimizer ", "!activations"), NULL);
}

/* --- Muon ----------------------------------------------------------------------------------- */

/* Three layers' matrices: query, key, value and projection of 32 x 32, an MLP's of 128 x 32 and 32
 * x 128. */
enum { SIDE = 32, LONG = 128, LAYERS = 3, NS_STEPS = 5 };
#define MATRIX_ELEMENTS (LAYERS * (4 * SIDE * SIDE + 2 * SIDE * LONG))
/* Of a step of Newton and Schulz the products X X^T, A A and B X. */
#define PRODUCTS(other)                                                                            \
    (2.0 * SIDE * SIDE * (other) + 2.0 * SIDE * SIDE * SIDE + 2.0 * SIDE * SIDE * (other))
#define MUON "train.optimizer=muon"

/* No second moments of matrices; room for the largest twice, for two squares and a sum. */
static void check_muon_memory(void)
{
    const bytes adam = train(SETS("train.optimizer=adam")), muon = train(SETS(MUON));
    const double room = 4.0 * (2 * SIDE * LONG + 2 * SIDE * SIDE) + 8,
                 wanted = adam.optimizer - 4.0 * MATRIX_ELEMENTS + room;
    EXPECT(muon.optimizer == wanted && adam.device - muon.device == adam.optimizer - wanted,
           "%.0f bytes of %.0f, by hand %.0f", muon.optimizer, muon.device, wanted);
}

/* Of a run whose operations take their time at a pace, a step in the mean: a lane makes up in one
 * step what it was late by in the step before, but no run is faster than its pace. */
static double paced_ms(const char *set, const char *pace)
{
    double sum = 0;
    int steps = 0;
    train(SETS(set, pace, "device.pace_work=all", "device.peak_flops=0", "train.train_iters=3"));
    char *text = child_read("run/metrics.jsonl");
    for (const char *at = text; at && (at = strstr(at, "\"step_ms\": ")); steps++)
        sum += atof(at += strlen("\"step_ms\": "));
    return steps > 0 ? sum / steps : 0;
}

/* A plan's operations where products alone take time, and a run's with those of its passes, which a
 * pace lets be no faster. */
static void check_muon_price(void)
{
    const double rate = 1e8,
                 by_hand = LAYERS * NS_STEPS * (4 * PRODUCTS(SIDE) + 2 * PRODUCTS(LONG));
    char slow[sizeof cluster];
    strcpy(slow, cluster);
    memcpy(strstr(slow, "\"fp32\": 1e13"), "\"fp32\": 1e08", strlen("\"fp32\": 1e08"));
    EXPECT(child_write("cluster.json", slow), "cluster.json");
    const planned adam = ask(SETS(NULL)), muon = ask(SETS(MUON));
    const double priced = rate * (muon.optimizer - adam.optimizer), all = rate * muon.step,
                 ran = rate / 1e3 * paced_ms(MUON, "device.pace=1e8");
    EXPECT(fabs(priced - by_hand) < 1e-4 * by_hand, "%g FLOPs planned, %g by hand", priced,
           by_hand);
    EXPECT(ran > all, "%g FLOPs in a run's step, %g in a plan's", ran, all);
}

/* Neither goes on from what the other saved: the same run, and one that starts from it. */
static void check_other_optimizer(const char *saved, const char *other)
{
    char saves[32], goes_on[32], names[2][96];
    static const char way[] = "an optimizer's state does not go over to another: start a new run "
                              "with checkpoint.load of weights alone";
    child c[2], allowed;
    snprintf(saves, sizeof saves, "train.optimizer=%s", saved);
    snprintf(goes_on, sizeof goes_on, "train.optimizer=%s", other);
    snprintf(names[0], sizeof names[0], "train.optimizer \"%s\" -> \"%s\"", saved, other);
    snprintf(names[1], sizeof names[1],
             "train.optimizer: %s does not go on from what %s saved: ", other, saved);
    train(SETS(saves, "train.lr_decay_iters=4"));
    CHILD_RUN(&c[0], "train", "c.json", "--out", "run", "--resume", "--set", goes_on, "--set",
              "train.lr_decay_iters=4", "--set", "train.train_iters=4");
    CHILD_RUN(&c[1], "train", "c.json", "--out", "begun", "--set", goes_on, "--set",
              "checkpoint.load=run");
    for (int i = 0; i < 2; i++) {
        EXPECT(c[i].exit_code == 2 && child_is_line(c[i].err) && strstr(c[i].err, names[i]),
               "%s after %s: exit %d: %s", other, saved, c[i].exit_code, c[i].err);
    }
    CHILD_RUN(&allowed, "train", "c.json", "--out", "run", "--resume", "--set", goes_on, "--set",
              "train.lr_decay_iters=4", "--allow-change", "train.optimizer");
    EXPECT(allowed.exit_code == 2 && strstr(allowed.err, way) && strstr(c[0].err, way) &&
               strstr(c[1].err, "or a checkpoint of weights alone (weft export"),
           "%s after %s: %s%s%s", other, saved, allowed.err, c[0].err, c[1].err);
}

/* What the refusal says, in words on the key. */
static void check_explained(void)
{
    child_says(WORDS("config", "--explain", "train.optimizer"), 0,
               WORDS("checkpoint.load of weights alone", "!--allow-change"), NULL);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config) && child_write("cluster.json", cluster), "files");
    check_memory();
    check_advice();
    check_plan();
    check_seen();
    check_muon_memory();
    check_muon_price();
    check_other_optimizer("adam", "muon");
    check_other_optimizer("muon", "adam");
    check_explained();
    return child_finish();
}
