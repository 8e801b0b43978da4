/* Where a run's time went: by lines written by hand, damaged ones among them, and by runs that are
 * killed, resumed, stopped and inspected. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <weft/status.h>

#include "launcher/training/energy.h"
#include "launcher/training/ledger.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

#define ITERS "train.train_iters=24"
#define NONE "CRASH=0:0:0:0:none"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 24, "
    "\"lr\": 1e-3},\n"
    "\"checkpoint\": {\"save_interval\": 5}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1, \"pace\": 5e7, \"pace_work\": "
    "\"all\"},\n"
    "\"log\": {\"trace_step\": 0, \"level\": \"error\"}}\n";

/* On the clock of a ledger's lines. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static bool near(double x, double y)
{
    return fabs(x - y) < 1e-9;
}

/* Two starts and a third: the first killed in step 4, the second stopped. */
static const char lines[] = "{\"time\": 100, \"did\": \"begin\", \"step\": 0}\n"
                            "{\"time\": 101, \"did\": \"start\", \"step\": 0}\n"
                            "{\"time\": 101.5, \"did\": \"load\", \"step\": 0}\n"
                            "{\"time\": 103.5, \"did\": \"step\", \"step\": 1}\n"
                            "{\"time\": 104, \"did\": \"save\", \"step\": 1}\n"
                            "{\"time\": 106, \"did\": \"step\", \"step\": 2}\n"
                            "{\"time\": 107, \"did\": \"evaluate\", \"step\": 2}\n"
                            "{\"time\": 109, \"did\": \"step\", \"step\": 3}\n"
                            "{\"time\": 110, \"did\": \"st\n" /* cut off */
                            "{\"time\": 120, \"did\": \"begin\", \"step\": 0}\n"
                            "{\"time\": 124, \"did\": \"load\", \"step\": 1}\n"
                            "{\"time\": 1e999, \"did\": \"step\", \"step\": 2}\n"
                            "{\"time\": 125, \"did\": \"else\", \"step\": 2}\n"
                            "[1, 2\n"
                            "{\"time\": 126, \"did\": \"step\", \"step\": 2}\n"
                            "{\"time\": 127, \"did\": \"skip\", \"step\": 2}\n"
                            "{\"time\": 128, \"did\": \"end\", \"step\": 2}\n"
                            "{\"time\": 928, \"did\": \"begin\", \"step\": 0}\n"
                            "{\"time\": 930, \"did\": \"start\", \"step\": 0}\n";

static void check_lines(void)
{
    const double *s;
    weft_ledger_account a = {0};
    EXPECT(child_write("lines.jsonl", lines), "lines.jsonl");
    EXPECT(weft_ledger_read("none.jsonl", &a) == WEFT_OK && weft_ledger_sum(&a) == 0, "none");
    EXPECT(weft_ledger_goodput(&a) == 0, "goodput of nothing");
    EXPECT(weft_ledger_read("lines.jsonl", &a) == WEFT_OK, "%s", "cannot read");
    s = a.seconds;
    EXPECT(near(s[WEFT_LEDGER_PRODUCTIVE], 4), "productive %g", s[WEFT_LEDGER_PRODUCTIVE]);
    EXPECT(near(s[WEFT_LEDGER_LOST], 6), "lost %g", s[WEFT_LEDGER_LOST]);
    EXPECT(near(s[WEFT_LEDGER_SAVING], 1.5), "saving %g", s[WEFT_LEDGER_SAVING]);
    EXPECT(near(s[WEFT_LEDGER_LOADING], 4.5), "loading %g", s[WEFT_LEDGER_LOADING]);
    EXPECT(near(s[WEFT_LEDGER_STARTING], 3), "starting %g", s[WEFT_LEDGER_STARTING]);
    EXPECT(near(s[WEFT_LEDGER_WAITING], 11), "waiting %g", s[WEFT_LEDGER_WAITING]);
    EXPECT(near(weft_ledger_sum(&a), 30), "%g in all", weft_ledger_sum(&a));
    EXPECT(near(weft_ledger_goodput(&a), 4. / 30), "goodput %g", weft_ledger_goodput(&a));
    EXPECT(a.num_starts == 3 && a.num_lost == 3 && a.num_damaged == 4, "%d starts, %d lost, %d",
           (int)a.num_starts, (int)a.num_lost, (int)a.num_damaged);
    weft_ledger_account_release(&a);
}

/* Numbers that no clock and no meter shows: a share stays one, and nothing sums up to infinity. */
static void check_impossible(void)
{
    static const char damaged[] =
        "{\"time\": 0.1, \"did\": \"begin\", \"step\": 0}\n"
        "{\"time\": 0.2, \"did\": \"step\", \"step\": 1}\n"
        "{\"time\": 0.4, \"did\": \"step\", \"step\": 2}\n"
        "{\"time\": 0.7, \"did\": \"step\", \"step\": 3, \"joules\": 1e308, \"tokens\": 1e308}\n"
        "{\"time\": 0.7, \"did\": \"step\", \"step\": 4, \"joules\": 1e308, \"tokens\": 1e308}\n"
        "{\"time\": 1e300, \"did\": \"step\", \"step\": 5}\n"
        "{\"time\": -1e300, \"did\": \"save\", \"step\": 5}\n"
        "{\"time\": 179547269000, \"did\": \"load\", \"step\": 0}\n";
    weft_ledger_account a = {0};
    EXPECT(child_write("impossible.jsonl", damaged), "impossible.jsonl");
    EXPECT_OK(weft_ledger_read("impossible.jsonl", &a));
    EXPECT(a.num_damaged == 2 && a.joules == 0 && a.tokens == 0, "%d damaged, %g J, %g tokens",
           (int)a.num_damaged, a.joules, a.tokens);
    EXPECT(a.seconds[WEFT_LEDGER_PRODUCTIVE] >= 0 && weft_ledger_goodput(&a) >= 0, "productive %g",
           a.seconds[WEFT_LEDGER_PRODUCTIVE]);
    EXPECT(isfinite(weft_ledger_sum(&a)), "%g s", weft_ledger_sum(&a));
    weft_ledger_account_release(&a);
}

/* Two packages, one of which begins again from 0; what is not a package's stays out. */
static void check_energy(void)
{
    static const char make[] =
        "mkdir -p cap/intel-rapl:0 cap/intel-rapl:1 cap/intel-rapl:2 cap/intel-rapl:0:0 && cd cap "
        "&& "
        "for i in 0 1 2 0:0; do echo 9000000 > intel-rapl:$i/energy_uj; "
        "echo 10000000 > intel-rapl:$i/max_energy_range_uj; echo package-0 > intel-rapl:$i/name; "
        "done; echo psys > intel-rapl:2/name";
    weft_comm *self;
    weft_energy energy;
    weft_joules joules;
    weft_device *device = NULL;
    EXPECT_OK(weft_device_create_cpu(1, 0, &device));
    EXPECT(system(make) == 0, "no folder");
    EXPECT_OK(weft_comm_create_self(&self));
    setenv("WEFT_POWERCAP", "nowhere", 1);
    EXPECT_OK(weft_energy_create(&energy, device, self));
    EXPECT_OK(weft_energy_take(&energy, self, &joules));
    EXPECT(joules.processors == -1 && joules.gpus == -1, "%g J from nowhere", joules.processors);
    setenv("WEFT_POWERCAP", "cap", 1);
    EXPECT_OK(weft_energy_create(&energy, device, self));
    EXPECT_OK(weft_energy_take(&energy, self, &joules));
    EXPECT(joules.processors == 0, "%g J at once", joules.processors);
    EXPECT(system("echo 9500000 > cap/intel-rapl:0/energy_uj; "
                  "echo 2000000 > cap/intel-rapl:1/energy_uj; "
                  "echo 9800000 > cap/intel-rapl:2/energy_uj; "
                  "echo 9800000 > cap/intel-rapl:0:0/energy_uj") == 0,
           "cannot write");
    EXPECT_OK(weft_energy_take(&energy, self, &joules));
    EXPECT_NEAR(joules.processors, 0.5 + 3, 1e-9);
    EXPECT(joules.gpus == -1, "%g J of GPUs that are not there", joules.gpus);
    EXPECT(system("rm cap/intel-rapl:1/energy_uj") == 0, "no rm");
    EXPECT_OK(weft_energy_create(&energy, device, self));
    EXPECT_OK(weft_energy_take(&energy, self, &joules));
    EXPECT(joules.processors == -1, "%g J of half of the packages", joules.processors);
    weft_energy_release(&energy);
    unsetenv("WEFT_POWERCAP");
    weft_comm_destroy(self);
    weft_device_destroy(device);
}

/* By a stand-in for the library, which reads the file that FAKE_NVML names. */
static void check_gpu(const char *library)
{
    weft_nvml nvml;
    double joules = 0;
    setenv("WEFT_NVML", "./nowhere.so", 1);
    EXPECT(!weft_nvml_open("0000:41:00.0", &nvml) && !nvml.library, "a library from nowhere");
    setenv("WEFT_NVML", library, 1);
    setenv("FAKE_NVML", "mj", 1);
    EXPECT(child_write("mj", "7500\n"), "mj");
    EXPECT(!weft_nvml_open("0000:42:00.0", &nvml) && !nvml.library, "another GPU's");
    EXPECT(weft_nvml_open("0000:41:00.0", &nvml), "no counter");
    EXPECT(weft_nvml_joules(&nvml, &joules), "no joules");
    EXPECT_NEAR(joules, 7.5, 1e-12);
    EXPECT(child_write("mj", "5000000000000\n"), "mj"); /* more than 32 bits */
    EXPECT(weft_nvml_joules(&nvml, &joules), "no joules");
    EXPECT_NEAR(joules, 5e9, 1e-3);
    EXPECT(unlink("mj") == 0 && !weft_nvml_joules(&nvml, &joules), "joules of nothing");
    weft_nvml_close(&nvml);
    EXPECT(!weft_nvml_open("0000:41:00.0", &nvml) && !nvml.library, "a GPU that counts nothing");
    EXPECT(!weft_nvml_joules(&nvml, &joules), "joules of what is closed");
    unsetenv("WEFT_NVML");
}

/* Steps 1 and 2, the second of them twice: three steps' joules for two steps' tokens. */
static void check_joules(void)
{
    static const weft_ledger_entry entries[] = {
        {.did = WEFT_DID_BEGIN, .time_s = 100, .step = 0, .joules = 0, .tokens = 0},
        {.did = WEFT_DID_STEP, .time_s = 101, .step = 1, .joules = 5, .tokens = 10},
        {.did = WEFT_DID_STEP, .time_s = 102, .step = 2, .joules = 6, .tokens = 10},
        {.did = WEFT_DID_LOAD, .time_s = 103, .step = 1, .joules = 0, .tokens = 0},
        {.did = WEFT_DID_STEP, .time_s = 104, .step = 2, .joules = 7, .tokens = 10}};
    char path[] = "run-joules", *text;
    weft_ledger_account a = {0};
    weft_ledger ledger;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        EXPECT_OK(weft_ledger_add(&a, &entries[i]));
    EXPECT(near(a.joules, 18) && near(a.tokens, 20), "%g J, %g tokens", a.joules, a.tokens);
    weft_ledger_account_release(&a);
    EXPECT(system("mkdir run-joules") == 0, "no folder");
    EXPECT_OK(weft_ledger_open(&ledger, path));
    EXPECT_OK(weft_ledger_write(&ledger, WEFT_DID_BEGIN, 0, 0));
    EXPECT_OK(weft_ledger_write_step(&ledger, WEFT_DID_STEP, 1, 1e6, &(weft_joules){2.5, 40}, 10));
    EXPECT_OK(weft_ledger_write_step(&ledger, WEFT_DID_STEP, 2, 2e6, &(weft_joules){-1, -1}, 10));
    EXPECT_OK(weft_ledger_write_step(&ledger, WEFT_DID_STEP, 3, 3e6, &(weft_joules){0, -1},
                                     10)); /* too short */
    EXPECT_OK(weft_ledger_write_step(&ledger, WEFT_DID_STEP, 4, 4e6, &(weft_joules){-1, 7}, 10));
    weft_ledger_close(&ledger);
    text = child_read("run-joules/ledger.jsonl");
    EXPECT(
        text &&
            strstr(text, "\"step\": 1, \"joules\": 42.5, \"tokens\": 10, \"gpu_joules\": 40}\n") &&
            strstr(text, "\"step\": 2}\n"),
        "%s", text);
    EXPECT_OK(weft_ledger_read("run-joules/ledger.jsonl", &a));
    EXPECT(near(a.joules, 49.5) && near(a.gpu_joules, 47) && near(a.tokens, 30) &&
               a.num_damaged == 0,
           "%g J, of GPUs %g, %g tokens", a.joules, a.gpu_joules, a.tokens);
    weft_ledger_account_release(&a);
}

/* `crash`: CRASH of the program. */
static bool start(child *c, const char *mesh, const char *iters, const char *crash)
{
    const char *args[] = {"train", "c.json",   "--out", "run", "--mesh",
                          mesh,    "--resume", "--set", iters, NULL};
    bool good = child_start(c, args, WORDS(crash));
    EXPECT(good, "cannot start weft");
    return good;
}

/* Of the last line of metrics.jsonl that has its newline; NaN: none. */
static double last_metric(const char *key)
{
    double value = NAN;
    char *text = child_peek("run/metrics.jsonl");
    char *end = text ? strrchr(text, '\n') : NULL;
    if (end) {
        *end = '\0';
        const char *line = strrchr(text, '\n');
        cJSON *json = cJSON_Parse(line ? line + 1 : text);
        const cJSON *item = cJSON_GetObjectItem(json, key);
        value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        cJSON_Delete(json);
    }
    free(text);
    return value;
}

static void wait_for_step(child *c, int step)
{
    struct timespec pause = {.tv_nsec = 500000};
    while (!child_wait(c, 0) && !(last_metric("step") >= step))
        nanosleep(&pause, NULL);
}

/* What metrics say that the steps above `step` took. */
static double steps_above(int step)
{
    double seconds = 0;
    cJSON *metrics = child_read_metrics("run");
    for (const cJSON *line = metrics->child; line; line = line->next)
        if (has_value(line, "step_ms") && number_of(line, "step") > step)
            seconds += number_of(line, "step_ms") / 1e3;
    return seconds;
}

/* What lines of ledger.jsonl say: the times of the first and the last, and what the first start's
 * steps above `step` took, each since the line before. */
typedef struct recorded {
    double first, last, lost_s;
} recorded;

static recorded read_ledger(int step)
{
    recorded r = {0};
    int starts = 0;
    char *text = child_read("run/ledger.jsonl");
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        const cJSON *json = child_parse(line);
        if (!json)
            continue; /* the one cut off */
        const char *did = cJSON_GetStringValue(cJSON_GetObjectItem(json, "did"));
        const double time = number_of(json, "time");
        starts += did && strcmp(did, "begin") == 0;
        if (starts == 1 && did && strcmp(did, "step") == 0 && number_of(json, "step") > step)
            r.lost_s += time - r.last;
        r.first = r.first > 0 ? r.first : time;
        r.last = time;
    }
    return r;
}

static cJSON *inspect(void)
{
    return child_json(WORDS("inspect", "run", "--json"));
}

static double item(const cJSON *json, const char *key)
{
    return number_of(cJSON_GetObjectItem(json, "ledger"), key);
}

/* The first start is killed in step 14; each fifth is saved. */
static void check_killed(const char *mesh)
{
    child c;
    const double began = now();
    EXPECT(system("rm -rf run crashed") == 0, "no rm");
    if (!start(&c, mesh, ITERS, "CRASH=0:14:1:0:crashed"))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == 128 + SIGKILL, "exit %d: %s",
           c.exit_code, c.err);
    child_release(&c);
    EXPECT(last_metric("step") == 13, "killed after step %g", last_metric("step"));
    const double least_s = steps_above(10);
    EXPECT(system("grep -q '\"did\": \"begin\".*\"weft\": \"[0-9].*\"mesh\": \"tp 1, ' "
                  "run/ledger.jsonl") == 0,
           "no version and mesh");
    EXPECT(system("printf '{\"time\": 17' >> run/ledger.jsonl") == 0, "no line cut off");
    if (!start(&c, mesh, ITERS, NONE))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == 0 && c.err && !*c.err, "exit %d: %s",
           c.exit_code, c.err);
    child_release(&c);
    const double ended = now();
    const recorded r = read_ledger(10);
    cJSON *json = inspect();
    const double sum = item(json, "productive_s") + item(json, "lost_s") + item(json, "saving_s") +
                       item(json, "loading_s") + item(json, "starting_s") + item(json, "waiting_s");
    EXPECT(cJSON_GetObjectItem(json, "step") && cJSON_GetObjectItem(json, "datasets"),
           "the checkpoint is not there");
    EXPECT(item(json, "starts") == 2 && item(json, "damaged_lines") == 1, "%g starts, %g damaged",
           item(json, "starts"), item(json, "damaged_lines"));
    EXPECT(item(json, "lost_steps") == 3, "%g steps lost", item(json, "lost_steps"));
    /* Between steps a busy machine may do other work, which is lost as well. */
    EXPECT(item(json, "lost_s") > 0.75 * least_s && fabs(item(json, "lost_s") - r.lost_s) < 1e-6,
           "%g s lost, not %g, of which steps took %g", item(json, "lost_s"), r.lost_s, least_s);
    EXPECT(fabs(sum - item(json, "all_s")) < 1e-6, "%g, not %g", item(json, "all_s"), sum);
    EXPECT(fabs(sum - (r.last - r.first)) < 1e-6 && began < r.first && r.last < ended,
           "%g s in all, from %.6f to %.6f, not from %.6f to %.6f", sum, r.first, r.last, began,
           ended);
    EXPECT(fabs(item(json, "goodput") - item(json, "productive_s") / sum) < 1e-9, "goodput %g",
           item(json, "goodput"));
    EXPECT(fabs(last_metric("productive_s") - item(json, "productive_s")) < 1e-3 &&
               last_metric("goodput") > 0 && last_metric("goodput") < 1,
           "metrics: productive %g, goodput %g", last_metric("productive_s"),
           last_metric("goodput"));
    EXPECT(item(json, "saving_s") > 0 && item(json, "loading_s") > 0 &&
               item(json, "starting_s") > 0 && item(json, "waiting_s") > 0,
           "a part is missing");
    EXPECT(system("for i in run/checkpoints/step-*/manifest.json; do echo >$i; done") == 0,
           "no sh");
    child_says(WORDS("inspect", "run"), 6, WORDS("goodput"), NULL);
    CHILD_RUN(&c, "inspect", "run", "--json");
    EXPECT(c.exit_code == 6 && !c.out[0] && child_is_line(c.err),
           "a damaged checkpoint, --json: exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    EXPECT(system("rm -r run/checkpoints/*") == 0, "no rm");
    child_says(WORDS("inspect", "run"), 6, WORDS("goodput"),
               WORDS("has no checkpoint, but the run has saved step "));
    CHILD_REFUSED(6, "run/config.json: a file: ", "inspect", "run/config.json");
}

/* A run that has no checkpoint yet, and one that was asked to stop: nobody waits for it. */
static void check_stopped(void)
{
    char iters[32];
    child c;
    EXPECT(system("rm -rf run") == 0, "no rm");
    if (!start(&c, "dp=1", "checkpoint.save_interval=0", NONE))
        return;
    wait_for_step(&c, 1);
    child_kill(&c);
    child_release(&c);
    CHILD_RUN(&c, "inspect", "run");
    EXPECT(c.exit_code == 0 && c.out && strncmp(c.out, "time of 1 start\n", 16) == 0 &&
               strstr(c.out, "  goodput "),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    EXPECT(system("rm -rf run") == 0, "no rm");
    if (!start(&c, "dp=1", "train.train_iters=1000000", NONE))
        return;
    wait_for_step(&c, 2);
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == WEFT_EXIT_STOPPED, "exit %d",
           c.exit_code);
    child_release(&c);
    sleep(1);
    snprintf(iters, sizeof iters, "train.train_iters=%.0f", last_metric("step") + 2);
    if (!start(&c, "dp=1", iters, NONE))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    child_release(&c);
    cJSON *json = inspect();
    EXPECT(item(json, "starts") == 2 && item(json, "waiting_s") == 0 &&
               item(json, "lost_steps") == 0,
           "%g starts, %g s waited, %g lost", item(json, "starts"), item(json, "waiting_s"),
           item(json, "lost_steps"));
}

int main(int argc, char **argv)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    check_lines();
    check_impossible();
    check_energy();
    EXPECT(argc == 3, "usage: ledger FAKE_NVML WEFT-THAT-CRASHES");
    if (argc == 3) {
        check_gpu(argv[1]);
        child_program = argv[2];
    }
    check_joules();
    check_killed("dp=1");
    check_killed("dp=2");
    check_stopped();
    return child_finish();
}
