/* The command as a user meets it: prepare a text, train on 4 ranks, look at what came out, let it
 * write, go on with other meshes. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"
#include "tests/launcher/svg.h"

enum { STEPS = 12, MAX_STEPS = 16 };

static const char config[] =
    "{ // comments are fine\n"
    "  \"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4,\n"
    "            \"seq_length\": 16, \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.01},\n"
    "  \"train\": {\"global_batch_size\": 8, \"train_iters\": 12, \"lr\": 1e-2, "
    "\"lr_decay_style\": \"constant\"},\n"
    "  \"data\": {\"data_path\": \"corpus\"}, \"checkpoint\": {\"save_interval\": 6},\n"
    "  \"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}\n"
    "}\n";

/* Runs weft, which must end well and be silent on stderr; the caller releases it. */
static void run_weft(child *c, const char *const *args)
{
    child_run(c, args, NULL);
    EXPECT(c->exit_code == 0 && c->err && !*c->err, "weft %s: exit %d: %s", args[0], c->exit_code,
           c->err);
    EXPECT(c->out && *c->out && c->out[strlen(c->out) - 1] == '\n', "weft %s: no last newline: %s",
           args[0], c->out);
}

/* The same on a mesh where tokens travel: how, is told once. */
static void run_weft_travelling(child *c, const char *const *args)
{
    child_run(c, args, NULL);
    EXPECT(c->exit_code == 0 && child_is_line(c->err) &&
               strstr(c->err, " rank 0 info MoE layers: "),
           "weft %s: exit %d: %s", args[0], c->exit_code, c->err);
}

static void expect_part(const child *c, const char *part)
{
    EXPECT(c->out && strstr(c->out, part), "no \"%s\" in\n%s", part, c->out);
}

/* How MoE layers ran: with every step where tokens travel, and why with the run's first one. */
static int check_moe_fields(const cJSON *json, const char *line, bool travels, bool first)
{
    static const char *const keys[] = {"moe_num_partitions", "moe_memory_reuse", "moe_all_to_all",
                                       "moe_choice"};
    int expected = !travels ? 0 : first ? 4 : 3;
    for (int i = 0; i < 4; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, keys[i]);
        EXPECT((value != NULL) == (i < expected), "%s: %s", keys[i], line);
        if (value && i == 0)
            EXPECT(number_of(json, keys[0]) >= 1, "%s", line);
        else if (value)
            EXPECT(cJSON_IsString(value) && value->valuestring[0], "%s: %s", keys[i], line);
    }
    return expected;
}

/* One line of metrics: every field, and what they have to do with each other. moe_step: the first
 * step of a run in which tokens travel; 0: they do not. */
static double check_metrics_line(const char *line, int step, int moe_step)
{
    static const char *const keys[] = {"step",
                                       "loss",
                                       "aux_loss",
                                       "grad_norm",
                                       "lr",
                                       "tokens",
                                       "consumed_tokens",
                                       "tokens_per_s",
                                       "step_ms",
                                       "model_flops_utilization",
                                       "device_bytes_peak",
                                       "expert_load_max_over_mean",
                                       "rank_load_max_over_mean",
                                       "dropped_tokens",
                                       "productive_s",
                                       "lost_s",
                                       "saving_s",
                                       "loading_s",
                                       "starting_s",
                                       "waiting_s",
                                       "goodput"};
    const int num_keys = sizeof keys / sizeof *keys;
    cJSON *json = child_parse(line);
    int num_moe = check_moe_fields(json, line, moe_step > 0 && step >= moe_step, step == moe_step);
    int num_peak = cJSON_GetObjectItem(json, "peak_flops") ? 3 : 0; /* where it is a new one */
    int num_energy = cJSON_GetObjectItem(json, "energy_j") ? 1 : 0; /* where it is counted */
    int num_ranks = cJSON_IsArray(cJSON_GetObjectItem(json, "compute_ms")) ? 4 : 0; /* several */
    int num = num_keys + num_moe + num_peak + num_energy + num_ranks;
    EXPECT(cJSON_GetArraySize(json) == num, "not %d fields: %s", num, line);
    EXPECT(step != 1 || (num_peak == 3 && number_of(json, "peak_flops") >= 1e9 &&
                         number_of(json, "model_flops_per_token") > 1e3),
           "no peak: %s", line);
    for (int i = 0; i < num_keys; i++)
        EXPECT(isfinite(number_of(json, keys[i])), "%s: %s", keys[i], line);
    double loss = number_of(json, "loss"), load = number_of(json, "expert_load_max_over_mean");
    double rate = number_of(json, "tokens") / number_of(json, "step_ms") * 1e3;
    EXPECT(number_of(json, "step") == step, "not step %d: %s", step, line);
    EXPECT(number_of(json, "tokens") == 8 * 16, "tokens: %s", line);
    EXPECT(number_of(json, "consumed_tokens") == 8 * 16 * step, "%s", line);
    EXPECT(number_of(json, "lr") == 1e-2, "lr: %s", line);
    EXPECT(number_of(json, "aux_loss") > 0 && number_of(json, "grad_norm") > 0, "%s", line);
    EXPECT(fabs(number_of(json, "tokens_per_s") / rate - 1) < 1e-9, "tokens_per_s: %s", line);
    EXPECT(number_of(json, "model_flops_utilization") > 0, "%s", line);
    EXPECT(load >= 1 && load <= 4, "expert load %g: %s", load, line);
    EXPECT(number_of(json, "dropped_tokens") == 0, "dropless: %s", line);
    EXPECT(number_of(json, "device_bytes_peak") > 1e4, "%s", line);
    return loss;
}

/* Returns the number of lines, and the losses. */
static int check_metrics(char *text, int moe_step, double losses[MAX_STEPS])
{
    int count = 0;
    EXPECT(text != NULL, "no metrics");
    for (char *line = text ? strtok(text, "\n") : NULL; line && count < MAX_STEPS;
         line = strtok(NULL, "\n"), count++)
        losses[count] = check_metrics_line(line, count + 1, moe_step);
    return count;
}

static int check_metrics_file(const char *path, int moe_step, double losses[MAX_STEPS])
{
    char *text = child_read(path);
    int count = check_metrics(text, moe_step, losses);
    return count;
}

static void check_timeline(void)
{
    int slices[4] = {0};
    char *svg = child_read("run/trace.svg");
    cJSON *json = child_read_json("run/trace.json"),
          *events = cJSON_GetObjectItem(json, "traceEvents"), *event;
    cJSON_ArrayForEach(event, events)
    {
        double rank = number_of(event, "pid");
        const cJSON *kind = cJSON_GetObjectItem(event, "ph");
        if (cJSON_IsString(kind) && strcmp(kind->valuestring, "X") == 0 && rank >= 0 && rank < 4) {
            EXPECT(number_of(event, "dur") >= 0, "a slice without a length");
            slices[(int)rank]++;
        }
    }
    /* 8 micro-batches: a forward and a backward each, sends and receives, reduce and step. */
    for (int rank = 0; rank < 4; rank++)
        EXPECT(slices[rank] >= 8 * 4, "rank %d: %d slices", rank, slices[rank]);
    EXPECT(svg && strncmp(svg, "<svg", 4) == 0 && strstr(svg, "</svg>"), "trace.svg is no SVG");
    EXPECT(svg && !svg_unexplained(svg), "no legend for %.60s", svg ? svg_unexplained(svg) : "");
    const char *title = svg ? strstr(svg, ">Step ") : NULL;
    EXPECT(title && strstr(title, "s, bubble ") && strstr(title, " %</text>"), "no title");
    EXPECT(svg && strstr(svg, ">rank 3: stage 1, tp 1"), "no place of rank 3");
}

/* Every rank's bytes by purpose: what the model takes is more on no rank than its device held, and
 * gradients are as many elements as the weights. */
static void check_memory(void)
{
    cJSON *json = child_read_json("run/memory.json"), *ranks = cJSON_GetObjectItem(json, "ranks");
    EXPECT(cJSON_GetArraySize(ranks) == 4, "memory.json has %d ranks", cJSON_GetArraySize(ranks));
    for (int i = 0; i < cJSON_GetArraySize(ranks); i++) {
        const cJSON *rank = cJSON_GetArrayItem(ranks, i), *used = cJSON_GetObjectItem(rank, "used");
        const cJSON *planned = cJSON_GetObjectItem(rank, "planned");
        double sum = number_of(used, "other") + number_of(used, "spare"); /* the norm */
        EXPECT(number_of(rank, "rank") == i && number_of(rank, "stage") == i / 2, "rank %d", i);
        static const char *const on_device[] = {"weights",     "gradients", "optimizer",
                                                "activations", "scratch",   "messages"};
        for (size_t k = 0; k < sizeof on_device / sizeof *on_device; k++) {
            EXPECT(number_of(used, on_device[k]) > 0, "rank %d: no %s", i, on_device[k]);
            /* Routing that is not balanced takes more activations and scratch. */
            bool exact = strcmp(on_device[k], "activations") && strcmp(on_device[k], "scratch");
            double plan = number_of(planned, on_device[k]), use = number_of(used, on_device[k]);
            EXPECT(exact ? plan == use : plan > 0 && plan <= use,
                   "rank %d: %s: %g planned, %g used", i, on_device[k], plan, use);
            sum += number_of(used, on_device[k]);
        }
        EXPECT(sum == number_of(used, "device in all"), "rank %d: %g bytes of %g", i, sum,
               number_of(used, "device in all"));
        EXPECT(number_of(used, "gradients") == number_of(used, "weights"), "not fp32's gradients");
        EXPECT(number_of(used, "pinned host") > 0, "rank %d has no tokens", i);
        EXPECT(number_of(used, "staging") > 0, "rank %d saved without staging", i);
    }
}

static void check_prepare(void)
{
    static const char sentence[] = "the quick brown fox jumps over the lazy dog\n";
    char text[4401];
    child c;
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = sentence[i % (sizeof sentence - 1)];
    text[sizeof text - 1] = '\0';
    EXPECT(child_write("text.txt", text), "text.txt");
    run_weft(&c, WORDS("prepare", "text.txt", "--out", "corpus"));
    expect_part(&c, "documents 1, tokens 4400 ");
    run_weft(&c, WORDS("inspect", "corpus"));
    expect_part(&c, "  tokens      4400\n");
}

static void check_train(double losses[MAX_STEPS])
{
    child c;
    run_weft(&c, WORDS("train", "c.json", "--out", "run", "--mesh", "tp=2,pp=2,binding=tp"));
    expect_part(&c,
                " parameters, 4 ranks: tp 2, pp 2, dp 1, ep 2 (binding tp); 1f1b; fp32; 8 micro-");
    expect_part(&c, "\nstep 1/12  loss 5.");
    expect_part(&c, "\nstep 10/12  loss ");
    expect_part(&c, "\nstep 12/12  loss ");
    expect_part(&c, "\ncheckpoint: run/checkpoints/step-6\n");
    expect_part(&c, "\ncheckpoint: run/checkpoints/step-12\n");
    expect_part(&c, "\nmetrics: run/metrics.jsonl\ntimeline: run/trace.json, run/trace.svg\n");
    EXPECT(!strchr(c.out, '\r') && !strchr(c.out, '\033'), "control characters without terminal");
    EXPECT(!strstr(c.out, "\nstep 2/12"), "a line a step, log_interval is 10");
    int count = check_metrics_file("run/metrics.jsonl", 0, losses);
    EXPECT(count == STEPS, "%d lines of metrics", count);
    EXPECT(losses[STEPS - 1] < losses[0] - 0.5, "loss %g to %g: nothing learned", losses[0],
           losses[STEPS - 1]);
    check_timeline();
    check_memory();
}

static void check_inspect(void)
{
    child c;
    run_weft(&c, WORDS("inspect", "run"));
    expect_part(&c,
                "checkpoint run/checkpoints/step-12\nstep 12, 1536 tokens consumed, seed 1234\n");
    expect_part(&c, "every hash is right");
    expect_part(&c, "decoder.layers.3.mlp.experts.linear_fc1.weight                   [4, 64, 16]");
    cJSON *json = child_json(WORDS("inspect", "run/checkpoints/step-6", "--json"));
    EXPECT(number_of(json, "step") == 6 && number_of(json, "consumed_tokens") == 48 * 16, "step %g",
           number_of(json, "step"));
}

static void check_generate(void)
{
    /* The prompt's last byte begins a character that never ends. */
    const char *args[] = {
        "generate", "run", "--prompt", "the quick\xe2", "--num-tokens", "20", "--json",
        "--seed",   "5",   NULL};
    const char *texts[3] = {NULL};
    for (int i = 0; i < 3; i++) {
        args[8] = i < 2 ? "5" : "6";
        cJSON *json = child_json(args);
        const cJSON *tokens = cJSON_GetObjectItem(json, "tokens");
        EXPECT(cJSON_GetArraySize(tokens) == 30 && cJSON_GetArrayItem(tokens, 9)->valueint == 0xe2,
               "other tokens");
        texts[i] = text_of(json, "text");
        EXPECT(strncmp(texts[i], "the quick\xef\xbf\xbd", 12) == 0, "does not go on: %s", texts[i]);
    }
    EXPECT(strcmp(texts[0], texts[1]) == 0, "seed 5 gives %s and %s", texts[0], texts[1]);
    EXPECT(strcmp(texts[0], texts[2]) != 0, "seeds 5 and 6 give the same");
}

/* Tokens come as they are made: a text that nobody waits for to its end is not lost. */
static void check_generate_stopped(void)
{
    struct stat info = {0};
    child c;
    EXPECT(child_start(
               &c, WORDS("generate", "run", "--prompt", "the quick", "--num-tokens", "1000000000"),
               NULL),
           "no start");
    for (int i = 0; i < 30000 && info.st_size < 20 && !child_wait(&c, 0); i++) {
        child_pause(0.001);
        if (stat(c.out_path, &info) != 0)
            info.st_size = 0; /* the child has not opened it yet */
    }
    EXPECT(info.st_size >= 20, "%lld bytes came", (long long)info.st_size);
    child_kill(&c);
    EXPECT(c.out && strncmp(c.out, "the quick", 9) == 0 && strlen(c.out) >= 20, "%s", c.out);
    child_release(&c);
}

/* On another mesh, by the resolved config that the run left. */
static void check_resume(void)
{
    double losses[MAX_STEPS];
    child c;
    CHILD_REFUSED(2,
                  "weft train: run: holds checkpoints already (the newest: step-12); give --resume "
                  "to go on, or another --out\n",
                  "train", "c.json", "--out", "run");
    CHILD_RUN(&c, "train", "--out", "run", "--resume", "--mesh", "dp=2,ep=2,binding=dp", "--set",
              "train_iters=14");
    EXPECT(c.exit_code == 0 && strstr(c.err, " rank 0 info MoE layers: ") &&
               strstr(c.err, " rank 0 warn resume: parallel.tensor_model_parallel_size 2 -> 1, ") &&
               strstr(c.err, ", train.train_iters 12 -> 14\n"),
           "exit %d: %s", c.exit_code, c.err);
    expect_part(&c, "2 ranks: tp 1, pp 1, dp 2, ep 2 (binding dp)");
    expect_part(&c, "\nstarting from run/checkpoints/step-12 (step 12)\nstep 13/14  loss ");
    EXPECT(!strstr(c.out, "timeline:"), "no step was traced:\n%s", c.out);
    int count = check_metrics_file("run/metrics.jsonl", 13, losses);
    EXPECT(count == 14, "%d lines of metrics", count);
}

/* One rank, from the start: the same losses, and metrics on stdout. */
static void check_json(const double losses[MAX_STEPS])
{
    double alone[MAX_STEPS];
    child c;
    run_weft(&c, WORDS("train", "c.json", "--out", "alone", "--json", "--set",
                       "checkpoint.no_save=true"));
    char *text = child_read("alone/metrics.jsonl");
    EXPECT(text && strcmp(text, c.out) == 0, "stdout is not metrics.jsonl");
    int count = check_metrics(text, 0, alone);
    EXPECT(count == STEPS, "%d lines of metrics", count);
    for (int i = 0; i < count && i < STEPS; i++)
        EXPECT(fabs(alone[i] / losses[i] - 1) < 1e-5, "step %d: %.9g on 4 ranks, %.9g on one",
               i + 1, losses[i], alone[i]);
    EXPECT(access("alone/checkpoints", F_OK) != 0, "checkpoints in spite of no_save");
}

/* The parts of an MoE layer whose tokens travel, in the timeline of every rank. */
static void check_expert_timeline(void)
{
    static const char *const parts[] = {
        "moe",          "gating",      "counts",        "permute",
        "dispatch",     "expert",      "combine",       "tensor",
        "moe back",     "gating back", "dispatch back", "expert back",
        "combine back", "tensor back", "attention",     "attention back",
        "layer",        "layer back",  "norm"};
    enum {
        NUM_PARTS = sizeof parts / sizeof *parts,
        LAYERS = 2,
        MICRO_BATCHES = 4,
        PARTITIONS = 2
    };
    int found[4][NUM_PARTS] = {{0}};
    cJSON *json = child_read_json("expert/trace.json"), *event;
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(json, "traceEvents"))
    {
        double rank = number_of(event, "pid");
        const cJSON *category = cJSON_GetObjectItem(event, "cat");
        for (int i = 0; i < NUM_PARTS && cJSON_IsString(category) && rank >= 0 && rank < 4; i++)
            found[(int)rank][i] += strcmp(category->valuestring, parts[i]) == 0;
    }
    for (int rank = 0; rank < 4; rank++)
        for (int i = 0; i < NUM_PARTS; i++) {
            bool by_partition = strncmp(parts[i], "dispatch", 8) == 0 ||
                                strncmp(parts[i], "combine", 7) == 0 ||
                                strncmp(parts[i], "expert", 6) == 0;
            bool is_layer = strncmp(parts[i], "layer", 5) == 0; /* embedding and head, too */
            int layers = (LAYERS + (is_layer ? 2 : 0)) * MICRO_BATCHES;
            int expected =
                strcmp(parts[i], "norm") == 0 ? 1 : layers * (by_partition ? PARTITIONS : 1);
            bool several = strncmp(parts[i], "tensor", 6) == 0 || strcmp(parts[i], "permute") == 0;
            EXPECT(several ? found[rank][i] > expected : found[rank][i] == expected,
                   "rank %d: %d slices of %s, not %d", rank, found[rank][i], parts[i], expected);
        }
}

static int count_process(const cJSON *events, int rank)
{
    int count = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, events) count += number_of(event, "pid") == rank;
    return count;
}

/* Chosen ranks alone stand in the timeline, which goes with their number. */
static void check_chosen_timeline(void)
{
    child c;
    run_weft_travelling(&c, WORDS("train", "c.json", "--out", "chosen", "--mesh",
                                  "tp=2,dp=2,ep=2,binding=dp", "--set", "train_iters=1", "--set",
                                  "num_layers=1", "--set", "log.trace_step=1", "--set",
                                  "log.trace_ranks=[3, 1]", "--set", "checkpoint.no_save=true"));
    char *svg = child_read("chosen/trace.svg");
    cJSON *json = child_read_json("chosen/trace.json"),
          *events = cJSON_GetObjectItem(json, "traceEvents");
    for (int rank = 0; rank < 4; rank++)
        EXPECT((count_process(events, rank) > 0) == (rank == 1 || rank == 3), "rank %d", rank);
    EXPECT(svg && strstr(svg, ">2 of 4 ranks: tp 2"), "no number of ranks");
}

/* Tensor-sharded experts between the nodes, in two partitions: metrics and timeline say so. */
static void check_expert_parallel(void)
{
    double losses[MAX_STEPS];
    child c;
    run_weft_travelling(&c, WORDS("train", "c.json", "--out", "expert", "--mesh",
                                  "tp=2,dp=2,ep=2,etp=2,binding=dp", "--set", "train_iters=3",
                                  "--set", "num_layers=2", "--set", "moe_num_partitions=2", "--set",
                                  "moe_all_to_all=direct", "--set", "log.trace_step=2", "--set",
                                  "checkpoint.no_save=true"));
    char *text = child_read("expert/metrics.jsonl");
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        EXPECT(strstr(line, "\"moe_num_partitions\": 2, \"moe_memory_reuse\": \"none\", "
                            "\"moe_all_to_all\": \"direct\""),
               "%s", line);
    EXPECT(check_metrics_file("expert/metrics.jsonl", 1, losses) == 3, "not 3 lines of metrics");
    check_expert_timeline();
}

static void check_help(void)
{
    static const char *const verbs[] = {"train",   "prepare", "eval",  "generate",
                                        "inspect", "compare", "doctor"};
    char usage[64];
    child c;
    run_weft(&c, WORDS("--help"));
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        snprintf(usage, sizeof usage, "\n  %s ", verbs[i]);
        expect_part(&c, usage);
    }
    child_run(&c, (const char *[]){NULL}, NULL);
    EXPECT(c.exit_code == 2 && c.out && !*c.out && strncmp(c.err, "usage: ", 7) == 0,
           "without a verb: exit %d: %s", c.exit_code, c.err);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        run_weft(&c, WORDS(verbs[i], "--help"));
        snprintf(usage, sizeof usage, "usage: weft %s", verbs[i]);
        EXPECT(strncmp(c.out, usage, strlen(usage)) == 0, "%s --help: %s", verbs[i], c.out);
        expect_part(&c, "--json");
        for (const char *line = c.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
            EXPECT(end - line <= 110, "%s --help: a line of %d", verbs[i], (int)(end - line));
    }
    run_weft(&c, WORDS("train", "--help"));
    expect_part(&c, "  model.num_layers = 12 (integer, 1 to ");
    expect_part(&c, "  parallel.expert_binding = \"dp\" (tp|dp)\n");
    expect_part(&c, "  checkpoint.save_interval = 0 (integer, ");
}

/* Of /dev/shm as containers have it, and of open files. */
static void check_little_room(void)
{
    static const char *const train =
        "\"$WEFT_BINARY_DIR\"/weft train c.json --set train_iters=1 --set "
        "eval_interval=0 --mesh tp=2,dp=2,ep=2,binding=dp";
    char command[600];
    if (system("unshare -m mount -t tmpfs tmpfs /dev/shm 2>/dev/null") == 0) {
        snprintf(
            command, sizeof command,
            "unshare -m sh -c 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec %s --out little' "
            ">/dev/null 2>err",
            train);
        int code = system(command);
        char *err = child_read("err");
        EXPECT(code == 0 &&
                   strstr(err, "/dev/shm has 8 MiB free, and 4 ranks may share 64 MiB: their "
                               "memory lies under "),
               "little memory: exit %d: %s", code, err);
    } else {
        printf("little memory: skipped: no mounts of its own\n");
    }
    snprintf(command, sizeof command, "sh -c 'ulimit -n 24; exec %s --out few' 2>err", train);
    int code = system(command);
    char *err = child_read("err");
    EXPECT(WEXITSTATUS(code) == 2 && child_is_line(err) &&
               strstr(err, "4 ranks take up to 96 open files each, and ulimit -n allows 24"),
           "few files: exit %d: %s", WEXITSTATUS(code), err);
}

/* Rank 0 comes late to what is wrong in all; the rank that found it first waits for its word. */
static void check_late_word(void)
{
    char command[4096];
    snprintf(
        command, sizeof command,
        "mpirun --oversubscribe --allow-run-as-root --bind-to none -n 1 sh -c 'sleep 1; exec "
        "\"$0\" \"$@\"' %s/weft train c.json --out late --set lrr=1 : -n 1 %s/weft train c.json "
        "--out late --set lrr=1 2>err",
        getenv("WEFT_BINARY_DIR"), getenv("WEFT_BINARY_DIR"));
    const int code = system(command);
    char *err = child_read("err");
    EXPECT(WEXITSTATUS(code) == 2 && err && strstr(err, "weft train: --set lrr=1: "),
           "late: exit %d: %s", WEXITSTATUS(code), err);
}

int main(void)
{
    double losses[MAX_STEPS] = {0};
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    check_late_word();
    check_help();
    check_prepare();
    check_train(losses);
    check_inspect();
    check_generate();
    check_generate_stopped();
    check_resume();
    check_json(losses);
    check_expert_parallel();
    check_chosen_timeline();
    check_little_room();
    return child_finish();
}
