/* Experts beyond device memory, by their limits: what fits is predicted right, of the device and of
 * the host; runs take what was predicted; auto takes the first degree that fits, a plan the same
 * one; a run goes on where its experts were, and is read where there is more memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cjson/cJSON.h>

#include "core/clock.h"
#include "core/file.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

enum { RESIDENT = 12, MAX_SET = 6, MAX_ARGS = 24 };

static const char model[] =
    "{\"model\": {\"num_layers\": 3, \"hidden_size\": 32, \"ffn_hidden_size\": 128,\n"
    "  \"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 300, \"num_experts\": %d,\n"
    "  \"moe_router_topk\": 2},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": %d, \"train_iters\": 2,\n"
    "\"lr_decay_style\": \"constant\",\n"
    "  \"eval_iters\": 2},\n"
    "\"data\": {\"data_path\": \"corpus\", \"split\": \"8,2,0\"},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}%s}\n";

static char elsewhere[300]; /* where files are, if not under /tmp: no memory may be there */

/* Costs alone; what memory there is the config says. */
static const char cluster[] =
    "{\"name\": \"c\", \"num_nodes\": 1, \"ranks_per_node\": 4, \"device\": {\"name\": \"d\", "
    "\"peak\": {\"fp32\": 1e12}, \"memory_bandwidth\": 1e11, \"launch_us\": 1}, "
    "\"host\": {\"link_bandwidth\": 1e10, \"memory_bandwidth\": 1e10}, "
    "\"inside\": {\"bandwidth\": 1e10, \"latency_us\": 1}}";

static char limits[2][64]; /* --set's, of the device and of the host */
static const char *mesh;   /* of runs; NULL: one rank */

/* Runs `verb c.json --out run` on a model of so many experts. */
static child run(const char *verb, int experts, int batch, const char *const sets[MAX_SET])
{
    char text[2000];
    const char *args[MAX_ARGS] = {verb, "c.json", "--out", "run"};
    int count = 4;
    child c;
    if (strcmp(verb, "plan") == 0) {
        args[2] = "--cluster";
        args[3] = "cluster.json";
        args[count++] = "--json";
    } else {
        EXPECT(system("rm -rf run") == 0, "rm");
    }
    if (mesh) {
        args[count++] = "--mesh";
        args[count++] = mesh;
    }
    child_add_sets(args, sets, MAX_SET);
    snprintf(text, sizeof text, model, experts, batch, elsewhere);
    EXPECT(child_write("c.json", text), "c.json");
    child_run(&c, args, NULL);
    return c;
}

typedef struct bytes {
    double device, pinned;
} bytes;

/* What the run took, which its footprint told within 1 %. */
static bytes taken(const char *what)
{
    cJSON *json = child_read_json("run/memory.json");
    const cJSON *rank = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "ranks"), 0);
    const bytes used = {number_at(rank, "used", "device in all"),
                        number_at(rank, "used", "pinned host")},
                planned = {number_at(rank, "planned_at_load", "device in all"),
                           number_at(rank, "planned_at_load", "pinned host")};
    EXPECT(fabs(used.device - planned.device) <= 0.01 * planned.device &&
               fabs(used.pinned - planned.pinned) <= 0.01 * planned.pinned,
           "%s: took %.0f and %.0f bytes, not %.0f and %.0f", what, used.device, used.pinned,
           planned.device, planned.pinned);
    return used;
}

/* Trains where the options say, and gives what it took. */
static bytes train(int experts, const char *const sets[MAX_SET], const char *says)
{
    child c = run("train", experts, 2, sets);
    EXPECT(c.exit_code == 0 && (!says || (c.err && strstr(c.err, says))),
           "%d experts, %s: exit %d: %s", experts, sets[0], c.exit_code, c.err);
    return taken(sets[0]);
}

/* Out of memory, in one line that has `wanted`. */
static void refuse(int experts, const char *const sets[MAX_SET], const char *key,
                   const char *wanted)
{
    char begins[64];
    child c = run("train", experts, 2, sets);
    snprintf(begins, sizeof begins, "weft train: %s: out of memory: ", key);
    EXPECT(c.exit_code == 3 && child_is_line(c.err) &&
               strncmp(c.err, begins, strlen(begins)) == 0 && strstr(c.err, wanted),
           "%d experts, %s: exit %d: %s", experts, sets[0], c.exit_code, c.err);
}

/* As many experts as the device has room for, and not one more. */
static void check_device(void)
{
    const bytes used = train(RESIDENT, (const char *[MAX_SET]){"offload.experts=none"}, NULL);
    snprintf(limits[0], sizeof limits[0], "device.memory_limit=%.0f", used.device);
    train(RESIDENT, (const char *[MAX_SET]){"offload.experts=none", limits[0]}, NULL);
    train(RESIDENT, (const char *[MAX_SET]){"offload.experts=auto", limits[0]},
          "experts: none (auto: the first that fits); device ");
    refuse(RESIDENT + 1, (const char *[MAX_SET]){"offload.experts=none", limits[0]},
           "device.memory_limit", "; offload.experts auto would");
    train(RESIDENT + 1, (const char *[MAX_SET]){"offload.experts=auto", limits[0]},
          "experts: host (auto: the first that fits), 0 of 13 kept on the device; device ");
}

static bool plans_to_fit(int experts, const char *degree)
{
    child c =
        run("plan", experts, 2, (const char *[MAX_SET]){"experts=auto", limits[0], limits[1]});
    cJSON *json = child_parse(c.out);
    const cJSON *taken = cJSON_GetObjectItemCaseSensitive(json, "experts");
    const bool fits = c.exit_code == 0;
    EXPECT(c.exit_code == 0 || c.exit_code == 3, "plan: exit %d: %s", c.exit_code, c.err);
    EXPECT(cJSON_IsString(taken) && strcmp(taken->valuestring, degree) == 0,
           "plan of %d experts: %s, not %s", experts, c.out, degree);
    return fits;
}

/* Where host memory has no room for all, a file has, with places for as many as the limit lets: a
 * quarter, or fewer. */
static void check_file(int least, double limit)
{
    struct rlimit before, small;
    const char *const set[MAX_SET] = {"experts=auto", limits[0], limits[1]};
    bytes used = train(least + 1, set, "experts: file (auto: the first that fits), 0 of ");
    EXPECT(used.pinned <= limit, "%.0f of %.0f", used.pinned, limit);
    used = train(4 * least, set, "experts: file (auto: the first that fits), 0 of ");
    EXPECT(used.pinned <= limit && used.pinned > 0.95 * limit, "%.0f of %.0f", used.pinned, limit);
    child c = run("train", least, 2,
                  (const char *[MAX_SET]){"experts=file", limits[0], "offload.file_limit=1000000"});
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, "takes a file of "),
           "exit %d: %s", c.exit_code, c.err);
    EXPECT(getrlimit(RLIMIT_FSIZE, &before) == 0, "no limit");
    small = before;
    small.rlim_cur = 1 << 20;
    EXPECT(setrlimit(RLIMIT_FSIZE, &small) == 0, "no limit");
    c = run("train", least, 2,
            (const char *[MAX_SET]){"experts=file", limits[0], "offload.path=/tmp"});
    EXPECT(c.exit_code == 6 && strstr(c.err, "\nweft train: offload.path: /tmp: no room for ") &&
               strstr(c.err, "File too large"),
           "exit %d: %s", c.exit_code, c.err);
    EXPECT(setrlimit(RLIMIT_FSIZE, &before) == 0, "no limit");
    for (int open = 0; open < 2; open++) { /* which may come to a file */
        c = run("train", 4, 2,
                (const char *[MAX_SET]){open ? "experts=auto" : "experts=host", "offload.path=."});
        EXPECT(c.exit_code == 0 && (strstr(c.err, "no effect of offload.path") == NULL) == open,
               "exit %d: %s", c.exit_code, c.err);
    }
}

/* A file in memory is host memory: auto does not come to it where that is short, and no disk wears
 * out by it. */
static void check_memory_file(int most)
{
    static const char folder[] = "/dev/shm";
    if (!weft_path_is_memory(folder)) {
        printf("%s is no memory: not tested\n", folder);
        return;
    }
    child c =
        run("train", most + 1, 2,
            (const char *[MAX_SET]){"experts=auto", limits[0], limits[1], "offload.path=/dev/shm"});
    EXPECT(c.exit_code == 3 && strstr(c.err, "offload.host_memory_limit: out of memory: ") &&
               strstr(c.err, ", with a file under offload.path, which is in memory"),
           "exit %d: %s", c.exit_code, c.err);
    c = run("train", 4, 2, (const char *[MAX_SET]){"experts=file", "offload.path=/dev/shm"});
    EXPECT(c.exit_code == 0 && strstr(c.err, "warn offload.path: /dev/shm is in memory (tmpfs)") &&
               !strstr(c.err, "TB a day"),
           "exit %d: %s", c.exit_code, c.err);
}

/* The most experts that train from host memory under a limit: what is refused would have taken
 * more, what is not does not. */
static void check_host(void)
{
    const double limit = 24e6;
    int least = RESIDENT + 1, above = 400;
    snprintf(limits[1], sizeof limits[1], "offload.host_memory_limit=%.0f", limit);
    while (above - least > 1) {
        const int middle = (least + above) / 2;
        child c =
            run("train", middle, 2, (const char *[MAX_SET]){"experts=host", limits[0], limits[1]});
        EXPECT(c.exit_code == 0 || c.exit_code == 3, "%d: exit %d: %s", middle, c.exit_code, c.err);
        *(c.exit_code == 0 ? &least : &above) = middle;
    }
    EXPECT(least >= 5 * RESIDENT, "%d experts train from host memory", least);
    const char *const free_host[MAX_SET] = {"offload.experts=host", limits[0]};
    const bytes fits = train(least, free_host, NULL), over = train(least + 1, free_host, NULL);
    EXPECT(fits.pinned <= limit && over.pinned > limit,
           "%d experts take %.0f, one more %.0f, of %.0f", least, fits.pinned, over.pinned, limit);
    refuse(least + 1, (const char *[MAX_SET]){"offload.experts=host", limits[0], limits[1]},
           "offload.host_memory_limit", " of host memory, ");
    EXPECT(plans_to_fit(RESIDENT, "none") && plans_to_fit(RESIDENT + 1, "host") &&
               plans_to_fit(least, "host") && plans_to_fit(least + 1, "file"),
           "plans choose otherwise");
    train(least, (const char *[MAX_SET]){"experts=auto", limits[0], limits[1]}, "experts: host (");
    train(least + 1, (const char *[MAX_SET]){"experts=auto", limits[0], limits[1]},
          "experts: file (");
    printf("%d experts fit the device, %d the host\n", RESIDENT, least);
    check_file(least, limit);
    check_memory_file(least);
}

/* A number of the plan, of what fits. */
static double planned(int experts, const char *const sets[MAX_SET], const char *key)
{
    child c = run("plan", experts, 2, sets);
    cJSON *json = child_parse(c.out);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    EXPECT(c.exit_code == 0 && cJSON_IsNumber(item), "plan of %d: exit %d: %s", experts,
           c.exit_code, c.err);
    const double value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return value;
}

/* The most experts that a plan says to fit, below `above`. */
static int most_planned(int above, const char *const sets[MAX_SET])
{
    int least = 2;
    while (above - least > 1) {
        const int middle = (least + above) / 2;
        child c = run("plan", middle, 2, sets);
        EXPECT(c.exit_code == 0 || c.exit_code == 3, "%d: exit %d: %s", middle, c.exit_code, c.err);
        *(c.exit_code == 0 ? &least : &above) = middle;
    }
    return least;
}

/* One device, on which 12 experts a layer fit and no 13th: 60 train from host memory, and no 61st;
 * 804 from a file, with host memory for a quarter of them, and no 805th. Plans predict each number,
 * and runs take what is predicted. */
static void check_most(void)
{
    enum { ON_HOST = 60, IN_FILE = 804 };
    char host[64], file[64];
    const char *const on_device[MAX_SET] = {"experts=none", limits[0]};
    EXPECT(most_planned(100, on_device) == RESIDENT, "%d fit the device by plan",
           most_planned(100, on_device));

    const char *const on_host[MAX_SET] = {"experts=host", limits[0], host};
    const char *const on_any_host[MAX_SET] = {"experts=host", limits[0]};
    snprintf(host, sizeof host, "offload.host_memory_limit=%.0f",
             planned(ON_HOST, on_any_host, "host_memory_bytes"));
    EXPECT(most_planned(400, on_host) == ON_HOST, "%d fit the host by plan",
           most_planned(400, on_host));
    const bytes fits = train(ON_HOST, on_host, NULL), over = train(ON_HOST + 1, on_any_host, NULL);
    EXPECT(over.pinned > fits.pinned, "one more takes %.0f, not above %.0f", over.pinned,
           fits.pinned);
    refuse(ON_HOST + 1, on_host, "offload.host_memory_limit", " of host memory, ");

    const char *const in_file[MAX_SET] = {"experts=file", "offload.cached=0.25", limits[0], host,
                                          file,           "no_save=true"};
    const char *const in_any_file[MAX_SET] = {"experts=file", "offload.cached=0.25", limits[0]};
    snprintf(host, sizeof host, "offload.host_memory_limit=%.0f",
             planned(IN_FILE, in_any_file, "host_memory_bytes"));
    snprintf(file, sizeof file, "offload.file_limit=%.0f",
             planned(IN_FILE, in_any_file, "file_bytes"));
    EXPECT(most_planned(1000, in_file) == IN_FILE, "%d fit the file by plan",
           most_planned(1000, in_file));
    train(IN_FILE, in_file, NULL);
    child c = run("train", IN_FILE + 1, 2, in_file);
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, "takes a file of "),
           "exit %d: %s", c.exit_code, c.err);
    snprintf(file, sizeof file, "offload.file_limit=0");
    EXPECT(most_planned(1000, in_file) == IN_FILE, "%d fit the host's places by plan",
           most_planned(1000, in_file));
    refuse(IN_FILE + 1, in_file, "offload.host_memory_limit", " of host memory, ");
}

/* The share that the run's config has of what -1 left open, beside what was asked for. */
static double kept_of_run(void)
{
    cJSON *json = child_read_json("run/config.json");
    const double kept = number_at(json, "offload", "chosen_kept");
    const cJSON *offload = cJSON_GetObjectItemCaseSensitive(json, "offload"),
                *asked = cJSON_GetObjectItemCaseSensitive(offload, "experts"),
                *degree = cJSON_GetObjectItemCaseSensitive(offload, "chosen_experts");
    EXPECT(cJSON_IsString(asked) && strcmp(asked->valuestring, "auto") == 0 &&
               number_at(json, "offload", "kept") == -1,
           "the run's config does not have what was asked for");
    EXPECT(cJSON_IsString(degree) && strcmp(degree->valuestring, "host") == 0, "not on the host");
    return kept;
}

/* What the device's memory leaves is kept; one more would be too much. */
static void check_kept(void)
{
    enum { EXPERTS = 56 };
    char set[48];
    train(EXPERTS, (const char *[MAX_SET]){"experts=auto", limits[0], "offload.kept=-1"},
          " (what its memory leaves); device ");
    const double kept = kept_of_run() * EXPERTS;
    EXPECT(kept > 0 && kept < EXPERTS && fabs(kept - round(kept)) < 1e-9, "kept %g", kept);
    snprintf(set, sizeof set, "offload.kept=%.17g", (kept + 1) / EXPERTS);
    refuse(EXPERTS, (const char *[MAX_SET]){"offload.experts=host", limits[0], set},
           "device.memory_limit", "above the limit");
}

/* What the fuller of two ranks was planned to take on the device, with even routing. */
static double planned_even(const char *degree)
{
    child c = run("train", 8, 4, (const char *[MAX_SET]){degree, "train_iters=1"});
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    cJSON *json = child_read_json("run/memory.json");
    const double even =
        number_at(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "ranks"), 0), "planned",
                  "device in all");
    return even;
}

/* Ranks that share experts get more rows than the mean: what is left open has room for them, what
 * is asked for runs as far as it comes, and the error says what would do. */
static void check_uneven(void)
{
    char limit[64];
    const char *sets[MAX_SET] = {"experts=none", "train_iters=8", limit, "no_save=true"};
    mesh = "dp=2,ep=2";
    snprintf(limit, sizeof limit, "device.memory_limit=%.0f", 1.01 * planned_even(sets[0]));
    child c = run("train", 8, 4, sets);
    EXPECT(c.exit_code == 3 && strstr(c.err, "experts got more rows than there is room for (offload"
                                             ".experts auto, host or file, a smaller offload.kept"),
           "exit %d: %s", c.exit_code, c.err);
    sets[0] = "experts=auto";
    c = run("train", 8, 4, sets);
    EXPECT(c.exit_code == 0 &&
               strstr(c.err, "experts: host (auto: the first that fits), 0 of 4 ") &&
               strstr(c.err, "; with room for 1.25 times the mean's rows"),
           "exit %d: %s", c.exit_code, c.err);
    sets[0] = "experts=host";
    const double host = planned_even(sets[0]);
    sets[4] = "offload.kept=-1";
    for (double more = 1.15; more < 1.6; more += 0.15) {
        snprintf(limit, sizeof limit, "device.memory_limit=%.0f", more * host);
        c = run("train", 8, 4, sets);
        EXPECT(c.exit_code == 0, "%g: exit %d: %s", more, c.exit_code, c.err);
    }
    mesh = NULL;
}

/* A number of metrics, of the run's steps together. */
static double metric(const char *key)
{
    cJSON *lines = child_read_metrics("run");
    double sum = 0;
    EXPECT(lines->child, "no metrics");
    for (const cJSON *line = lines->child; line; line = line->next)
        sum += number_of(line, key);
    return sum;
}

/* Where all experts have tokens their gradients, a quarter of what is pinned, come down once, and
 * weights go up once a direction: but not those of the last layer's four, which are in the slots
 * yet, nor twice where they are kept. Compute waits for the link: as long as it takes where experts
 * go up when they are due. */
static void check_metrics(void)
{
    enum { STEPS = 2 };
    const double link = 5e6;
    char set[48];
    snprintf(set, sizeof set, "device.pace_link=%.0f", link);
    const double start = weft_now_us();
    const bytes used =
        train(4, (const char *[MAX_SET]){"experts=host", "slots=8", "pace=1e9", set}, NULL);
    const double up = metric("uploaded_bytes"), down = metric("downloaded_bytes"),
                 ran = (weft_now_us() - start) / 1e3;
    EXPECT(up == down / 12 * (12 + 8) && down > STEPS * used.pinned / 4.1 &&
               down < STEPS * used.pinned / 4,
           "up %.0f, down %.0f of %.0f pinned bytes", up, down, used.pinned);
    const double stepped = metric("host_step_ms");
    EXPECT(stepped > down / 4 * 1e-8 && stepped < ran, "the host stepped for %g ms of %g", stepped,
           ran);
    EXPECT(metric("expert_wait_ms") >= 0 && metric("expert_wait_ms") < metric("step_ms"),
           "waited %g ms of %g", metric("expert_wait_ms"), metric("step_ms"));
    train(
        4,
        (const char *[MAX_SET]){"experts=host", "slots=8", "pace=1e9", set, "offload.order=demand"},
        NULL);
    const double all = 1e3 * metric("uploaded_bytes") / link;
    EXPECT(metric("expert_wait_ms") > 0.9 * all && metric("expert_wait_ms") < metric("step_ms"),
           "waited %g ms for uploads of %g", metric("expert_wait_ms"), all);
    train(4, (const char *[MAX_SET]){"experts=host", "slots=8", "kept=1"}, NULL);
    EXPECT(metric("uploaded_bytes") >= down && metric("uploaded_bytes") <= 1.5 * down,
           "kept: up %.0f, down %.0f", metric("uploaded_bytes"), down);
}

/* The largest or the least of a number of metrics, of the steps that have it. */
static double bound_metric(const char *key, bool largest)
{
    cJSON *lines = child_read_metrics("run");
    double value = NAN;
    for (const cJSON *line = lines->child; line; line = line->next) {
        const double now = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, key));
        value = largest ? fmax(value, now) : fmin(value, now);
    }
    EXPECT(!isnan(value), "no %s", key);
    return value;
}

/* Whether the timeline has a step of an expert that begins before the last backward has ended. */
static bool steps_beside_backward(void)
{
    cJSON *json = child_read_json("run/trace.json");
    const cJSON *event;
    double first_us = INFINITY, last_us = -INFINITY;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(json, "traceEvents"))
    {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "cat"));
        const cJSON *ts = cJSON_GetObjectItemCaseSensitive(event, "ts"),
                    *dur = cJSON_GetObjectItemCaseSensitive(event, "dur");
        if (kind && strcmp(kind, "step") == 0)
            first_us = fmin(first_us, cJSON_GetNumberValue(ts));
        if (kind && strcmp(kind, "backward") == 0)
            last_us = fmax(last_us, cJSON_GetNumberValue(ts) + cJSON_GetNumberValue(dur));
    }
    EXPECT(isfinite(first_us) && isfinite(last_us), "no steps in the timeline");
    return first_us < last_us;
}

/* Large experts, and computing that takes its time: what the host steps beside it, here the next
 * forward, is hidden. At once it begins amid a backward, and behind it not before its end; what of
 * that nothing waits for is the machine's. What a file is written in a day is told, and who wears
 * out by it. */
static void check_hidden(void)
{
    const char *sets[MAX_SET] = {"experts=host", "ffn_hidden_size=4096", "device.pace=2e8",
                                 "pace_work=all", "trace_step=2"};
    train(8, sets, NULL);
    EXPECT(bound_metric("optimizer_hidden_share", true) > 0.5, "beside: %g is hidden",
           bound_metric("optimizer_hidden_share", true));
    EXPECT(!steps_beside_backward(), "steps before the norm is known");
    sets[5] = "clip_grad=0";
    train(8, sets, NULL);
    EXPECT(steps_beside_backward(), "no step at once");
    sets[2] = "offload.optimizer=after";
    sets[3] = "train_iters=2";
    train(8, sets, NULL);
    EXPECT(!steps_beside_backward(), "steps beside backward");
    EXPECT(bound_metric("optimizer_hidden_share", false) >= 0 &&
               bound_metric("optimizer_hidden_share", true) <= 1,
           "%g to %g is hidden", bound_metric("optimizer_hidden_share", false),
           bound_metric("optimizer_hidden_share", true));
    sets[0] = "experts=file";
    train(8, sets, " TB a day; that wears SSDs out");
    EXPECT(metric("written_bytes") > 0, "nothing is written");
    EXPECT(bound_metric("written_bytes", true) < 1.2 * bound_metric("written_bytes", false),
           "the first step's are %g, another's %g", bound_metric("written_bytes", true),
           bound_metric("written_bytes", false));
}

/* The run's loss on its validation part. */
static double evaluate(const char *a, const char *b)
{
    cJSON *json = child_json(WORDS("eval", "run", "--json", "--set", a, "--set", b));
    const double value = number_of(json, "loss");
    return value;
}

/* By the run's own config. */
static void resume(const char *const more[MAX_SET], const char *says, const char * not )
{
    const char *args[MAX_ARGS] = {"train", "--out", "run", "--resume"};
    child c;
    child_add_sets(args, more, MAX_SET);
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 0 && (!says || strstr(c.err, says)) && (!not || !strstr(c.err, not )),
           "resumed: exit %d: %s", c.exit_code, c.err);
}

/* A run whose experts were in host memory: other verbs read it, within its limits and without; it
 * goes on where it was, chooses anew on other limits, or goes where it is told to. */
static void check_later(void)
{
    train(RESIDENT + 8, (const char *[MAX_SET]){"experts=auto", limits[0]}, NULL);
    const double there = evaluate("log.level=info", "log.log_interval=1"),
                 on_device = evaluate("offload.experts=none", "device.memory_limit=0"),
                 by_auto = evaluate("offload.experts=auto", "offload.kept=-1");
    EXPECT(there == on_device && there == by_auto, "evaluated: %.17g, %.17g, %.17g", there,
           on_device, by_auto);
    CHILD_GOOD("generate", "run", "--prompt", "the ", "--num-tokens", "3");
    CHILD_GOOD("inspect", "run");
    resume((const char *[MAX_SET]){"train_iters=3"}, "experts: host, ", "-> \"host\"");
    resume((const char *[MAX_SET]){"device.memory_limit=0", "train_iters=4"},
           "offload.experts \"host\" -> \"none\"", NULL);
    resume((const char *[MAX_SET]){limits[0], "train_iters=5"},
           "offload.experts \"none\" -> \"host\"", NULL);
    resume((const char *[MAX_SET]){"experts=none", "device.memory_limit=0", "train_iters=6"},
           "offload.experts \"host\" -> \"none\"", NULL);
    resume((const char *[MAX_SET]){"experts=host", "slots=3", "kept=0.5", "offload.order=demand",
                                   "offload.optimizer=after", "train_iters=7"},
           "offload.experts \"none\" -> \"host\"", NULL);
}

int main(void)
{
    child_begin();
    if (weft_path_is_memory("/tmp"))
        snprintf(elsewhere, sizeof elsewhere, ", \"offload\": {\"path\": \"%s\"}",
                 getenv("WEFT_BINARY_DIR"));
    EXPECT(child_write("cluster.json", cluster), "files");
    child_make_corpus("corpus", 8000);
    check_device();
    check_most();
    check_host();
    check_kept();
    check_uneven();
    check_metrics();
    check_hidden();
    check_later();
    return child_finish();
}
