/* weft plan --against: planned beside measured, what it refuses of other steps, and what it says of
 * damaged files of the run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "schedule/kinds.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

#define MODEL(seq, more)                                                                           \
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "            \
    "\"seq_length\": " #seq ", \"vocab_size\": 64" more "}, "
#define TRAIN(batch, iters, more)                                                                  \
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": " #batch                          \
    ", \"train_iters\": " #iters more "}, "
/* Uploads take most of the step: 8 ms each. */
#define SLOW_LINK "\"device\": {\"pace\": 1e12, \"pace_work\": \"all\", \"pace_link\": 4e6}, "
#define END                                                                                        \
    "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true}, "                       \
    "\"log\": {\"trace_step\": 4}}"

static const char tiny[] =
    MODEL(16, "") "\"parallel\": {\"pipeline_model_parallel_size\": 2}, " TRAIN(4, 4, "") END;

static const char routed[] = MODEL(16, ", \"num_experts\": 4") TRAIN(4, 4, "") END;

static const char offloaded[] = MODEL(64, ", \"num_experts\": 8")
    TRAIN(8, 6, ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [\"moe\"]")
        END;

static const char tiered[] = MODEL(64, ", \"num_experts\": 4")
    TRAIN(1, 6, "") "\"offload\": {\"experts\": \"host\"}, " SLOW_LINK END;

/* Steps on the host, behind a slow link. */
static const char stepped[] = MODEL(64, "")
    TRAIN(2, 6, "") "\"parallel\": {\"ddp_bucket_size\": "
                    "4096}, \"offload\": {\"optimizer_state\": \"host\"}, " SLOW_LINK END;

static const char recomputed[] =
    MODEL(64, ", \"num_experts\": 4, \"moe_shared_expert_intermediate_size\": 32")
        TRAIN(4, 6, ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"moe\"]")
            END;

/* Staging is what a run takes for itself and no model asks for: measuring its peak, saving. */
static void check_row(const cJSON *row, bool is_exact)
{
    const cJSON *error = cJSON_GetObjectItem(row, "error"),
                *name = cJSON_GetObjectItem(row, "name");
    if (name && strcmp(cJSON_GetStringValue(name), "staging") == 0) {
        EXPECT(cJSON_IsNull(error) && cJSON_IsNull(cJSON_GetObjectItem(row, "planned")),
               "staging is planned");
        return;
    }
    const double planned = number_of(row, "planned"), measured = number_of(row, "measured");
    EXPECT(planned >= 0 && measured >= 0, "planned %g, measured %g", planned, measured);
    if (measured > 0)
        EXPECT_NEAR(number_of(row, "error"), planned / measured - 1, 1e-12);
    else
        EXPECT(cJSON_IsNull(error), "an error without a measurement");
    if (is_exact)
        EXPECT(planned == measured, "%s of stage %g: planned %g, used %g",
               cJSON_GetStringValue(name), number_of(row, "stage"), planned, measured);
}

static const cJSON *against_of(const cJSON *json, const char *key)
{
    return cJSON_GetObjectItem(cJSON_GetObjectItem(json, "against"), key);
}

static const cJSON *row_of(const cJSON *rows, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(row, "name")),
                                             name) == 0) return row;
    EXPECT(false, "no row %s", name);
    return NULL;
}

/* A launcher says how many ranks there are, and the config leaves dp open. */
static const char wide[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 64}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 4, "
    "\"lr_decay_style\": \"constant\"}, "
    "\"data\": {\"mock_data\": true}, \"log\": {\"trace_step\": 4}}";

static cJSON *lay_beside(const char *run, const char *config, const char *mesh)
{
    const char *args[] = {"plan",      config, "--cluster", "cluster.json", "--json",
                          "--against", run,    "--mesh",    mesh,           NULL};
    if (!mesh)
        args[7] = NULL;
    return child_json(args);
}

/* Laid beside its own plan, as if it had run so, a step's time went where it was planned to go; but
 * for what ranks of a sum wait for each other, which a plan does not know. */
static void check_times_of_plan(void)
{
    static const char *const names[] = {"compute", "pipeline"};
    CHILD_GOOD("plan", "tiny.json", "--cluster", "cluster.json", "--trace", "run/trace.json");
    cJSON *json = lay_beside("run", "tiny.json", NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *row = row_of(against_of(json, "time_s"), names[i]);
        const double planned = number_of(row, "planned");
        EXPECT(planned > 0, "no time in %s is planned", names[i]);
        EXPECT_NEAR(number_of(row, "measured") / planned, 1, 0.01);
    }
    const cJSON *data = row_of(against_of(json, "time_s"), "data");
    EXPECT(number_of(data, "measured") > 0 &&
               number_of(data, "measured") < 1.01 * number_of(data, "planned"),
           "the tied embedding's sum");
    EXPECT(child_write("run/trace.json",
                       "{\"traceEvents\": [{\"ph\": \"X\", \"pid\": 1, \"tid\": 0, \"ts\": 1, "
                       "\"dur\": 1, \"name\": \"F0\", \"cat\": \"forward\"}]}\n"),
           "trace");
    CHILD_REFUSED(2, "rank 1's timeline has ", "plan", "tiny.json", "--cluster", "cluster.json",
                  "--against", "run");
}

/* Rows travel, so ranks wait for them; and one rank has more than its share. Each purpose is
 * planned at the loads of the rank that took most for it, which is not the same one for all. */
static void check_experts(const char *config, const char *mesh, const char *run,
                          double least_pinned)
{
    const char *const args[] = {"train", config, "--out", run, "--mesh", mesh, NULL};
    child_good(args);
    cJSON *json = lay_beside(run, config, mesh);
    double sum = 0, pinned = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, against_of(json, "time_s")) sum += number_of(row, "measured");
    EXPECT(number_of(row_of(against_of(json, "time_s"), "expert"), "measured") > 0,
           "no rank waited for rows");
    EXPECT_NEAR(number_of(row_of(against_of(json, "time_s"), "expert"), "planned"),
                number_of(cJSON_GetObjectItem(json, "time"), "expert"), 1e-12);
    EXPECT(sum > 0 && number_of(cJSON_GetObjectItem(json, "against"), "rank_load") > 1,
           "routing is balanced");
    cJSON_ArrayForEach(row, against_of(json, "memory_bytes"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(row, "name"));
        pinned += strcmp(name, "pinned host") == 0 ? number_of(row, "measured") : 0;
        if (strcmp(name, "staging") != 0 && number_of(row, "measured") > 0)
            EXPECT(fabs(number_of(row, "error")) <= 0.01, "%s %s: %s: planned %g, used %g", config,
                   mesh, name, number_of(row, "planned"), number_of(row, "measured"));
    }
    EXPECT(pinned >= least_pinned, "%s: %g bytes are pinned", config, pinned);
}

/* What travels beside products in chunks is tensor-parallel, where no product hides it. */
static void check_chunks(void)
{
    CHILD_GOOD("train", "tiny.json", "--out", "chunks", "--mesh", "tp=2,sp=1", "--set",
               "parallel.tp_comm_overlap=true");
    cJSON *json = child_json((const char *[]){
        "plan", "tiny.json", "--cluster", "cluster.json", "--json", "--against", "chunks", "--mesh",
        "tp=2,sp=1", "--set", "parallel.tp_comm_overlap=true", NULL});
    const cJSON *times = against_of(json, "time_s"), *row;
    const double tensor = number_of(row_of(times, "tensor"), "measured");
    cJSON_ArrayForEach(row, times)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(row, "name"));
        EXPECT(strcmp(name, "expert") != 0 || number_of(row, "measured") == 0, "rows of experts");
    }
    EXPECT(tensor > 0, "no rank waited for another");
    cJSON_Delete(json);
}

/* A traced step that waited a second longer for what the host steps beside the next one: in
 * timeline and metrics of the run. */
static void lengthen_steps(const char *run)
{
    enum { TRACED = 4 };
    const double second_us = 1e6;
    double end_us = 0; /* the step's */
    char path[64], *lines = calloc(1, 1 << 16);
    cJSON *event, *last = NULL;
    snprintf(path, sizeof path, "%s/trace.json", run);
    cJSON *trace = child_read_json(path);
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(trace, "traceEvents"))
    {
        const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(event, "cat"));
        if (!kind)
            continue;
        end_us = fmax(end_us, number_of(event, "ts") + number_of(event, "dur"));
        if (strcmp(kind, "step") == 0 && number_of(event, "tid") == WEFT_LANE_HOST &&
            (!last || number_of(event, "ts") > number_of(last, "ts")))
            last = event;
    }
    EXPECT(last, "no step in %s", path);
    cJSON_SetNumberValue(cJSON_GetObjectItem(last, "dur"),
                         end_us + second_us - number_of(last, "ts"));
    char *longer = cJSON_PrintUnformatted(trace);
    EXPECT(longer && child_write(path, longer), "%s", path);
    cJSON_free(longer);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    cJSON *metrics = child_read_metrics(run), *line;
    cJSON_ArrayForEach(line, metrics)
    {
        if (number_of(line, "step") == TRACED)
            cJSON_SetNumberValue(cJSON_GetObjectItem(line, "step_ms"),
                                 number_of(line, "step_ms") + second_us / 1e3);
        char *printed = cJSON_PrintUnformatted(line);
        strcat(strcat(lines, printed), "\n");
        cJSON_free(printed);
    }
    EXPECT(child_write(path, lines), "%s", path);
    free(lines);
}

static double sum_of(const cJSON *json, const char *rows)
{
    double sum = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, against_of(json, rows)) sum += number_of(row, "measured");
    return sum;
}

/* Where computing takes longer than planned, as under a sanitizer, it hides more of what is beside
 * it. */
static double hidden_by(const cJSON *compute)
{
    return fmax(number_of(compute, "measured") - number_of(compute, "planned"), 0);
}

/* Experts in host memory: what their computation waits for uploads has the paced link's time, and
 * what the host steps beside the next step is not of this one's. */
static void check_tier(void)
{
    static const char *const args[] = {"train", "tiered.json", "--out", "tiered", NULL};
    child_good(args);
    cJSON *json = lay_beside("tiered", "tiered.json", "tp=1");
    const cJSON *upload = row_of(against_of(json, "time_s"), "upload"),
                *compute = row_of(against_of(json, "time_s"), "compute"), *row;
    const double planned = number_of(upload, "planned"), measured = number_of(upload, "measured"),
                 step = number_of(row_of(against_of(json, "phases_s"), "idle"), "measured");
    const double hides = hidden_by(compute);
    double times = 0, phases = 0;
    cJSON_ArrayForEach(row, against_of(json, "time_s")) times += number_of(row, "measured");
    cJSON_ArrayForEach(row, against_of(json, "phases_s")) phases += number_of(row, "measured");
    EXPECT(planned > 0.05 && measured >= 0 && measured + hides > 0.7 * planned && measured < times,
           "uploads: planned %g s, measured %g of a step of %g", planned, measured, times);
    EXPECT(step >= 0 && fabs(times - phases) < 0.01 * phases, "times %g s, phases %g", times,
           phases);
    cJSON_ArrayForEach(row, against_of(json, "memory_bytes")) check_row(row, true);
    lengthen_steps("tiered");
    json = lay_beside("tiered", "tiered.json", "tp=1");
    EXPECT(fabs(sum_of(json, "time_s") - times) < 0.01 * times &&
               fabs(sum_of(json, "phases_s") - times) < 0.01 * times,
           "beside longer steps of the host: times %g s and phases %g, not %g",
           sum_of(json, "time_s"), sum_of(json, "phases_s"), times);
}

/* Gradients that go down, steps of the host and weights that come up are the optimizer's time. */
static void check_stepped(void)
{
    const char *const *args =
        WORDS("train", "stepped.json", "--out", "stepped", "--mesh", "dp=2,zero=1");
    child_good(args);
    cJSON *json = lay_beside("stepped", "stepped.json", "dp=2,zero=1");
    const cJSON *optimizer = row_of(against_of(json, "time_s"), "optimizer"),
                *compute = row_of(against_of(json, "time_s"), "compute"), *row;
    const double planned = number_of(optimizer, "planned"),
                 measured = number_of(optimizer, "measured");
    double times = 0;
    cJSON_ArrayForEach(row, against_of(json, "time_s")) times += number_of(row, "measured");
    EXPECT(planned > 0.01 && measured + hidden_by(compute) > 0.7 * planned && measured < times,
           "optimizer: planned %g s, measured %g of a step of %g", planned, measured, times);
    cJSON_ArrayForEach(row, against_of(json, "memory_bytes")) check_row(row, true);
}

/* What a pass shares out is reduced for a second more, and all behind it waits: that is data, not
 * bubble. */
static void check_tail(void)
{
    const char *const *args =
        WORDS("train", "tiny.json", "--out", "shared", "--mesh", "dp=2,zero=2");
    const double second_us = 1e6;
    child_good(args);
    cJSON *trace = child_read_json("shared/trace.json"), *event;
    const cJSON *events = cJSON_GetObjectItem(trace, "traceEvents");
    for (int rank = 0; rank < 2; rank++) {
        cJSON *last = NULL;
        double end = 0;
        cJSON_ArrayForEach(event, events)
        {
            const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(event, "cat"));
            if (!kind || strcmp(kind, "reduce back") != 0 || number_of(event, "pid") != rank ||
                number_of(event, "ts") + number_of(event, "dur") <= end)
                continue;
            last = event;
            end = number_of(event, "ts") + number_of(event, "dur");
        }
        EXPECT(last, "rank %d shares nothing out", rank);
        cJSON_ArrayForEach(event, events) if (cJSON_GetObjectItem(event, "ts") &&
                                              number_of(event, "pid") == rank &&
                                              number_of(event, "ts") >= end)
            cJSON_SetNumberValue(cJSON_GetObjectItem(event, "ts"),
                                 number_of(event, "ts") + second_us);
        if (last)
            cJSON_SetNumberValue(cJSON_GetObjectItem(last, "dur"),
                                 number_of(last, "dur") + second_us);
    }
    char *longer = cJSON_PrintUnformatted(trace);
    EXPECT(longer && child_write("shared/trace.json", longer), "trace");
    cJSON *json = lay_beside("shared", "tiny.json", "dp=2,zero=2");
    EXPECT(number_of(row_of(against_of(json, "time_s"), "data"), "measured") > 0.99,
           "the last reductions are no data");
    cJSON_free(longer);
}

/* Each is damage, not a mistake in a config. */
static void check_damaged(void)
{
#define USED(unit, ranks) "{\"unit\": \"" unit "\", \"ranks\": [" ranks "]}"
#define RANK(rank, stage, bytes)                                                                   \
    "{\"rank\": " rank ", \"stage\": " stage ", \"used\": {\"weights\": " bytes "}}"
#define EVENT(ts, dur)                                                                             \
    "{\"traceEvents\": [{\"ph\": \"M\"}, {\"ph\": \"X\", \"pid\": 1, \"tid\": 0, \"ts\": " ts      \
    ", \"dur\": " dur ", \"name\": \"F0\", \"cat\": \"forward\"}]}\n"
#define STEPS(ms) "{\"step\": 1, \"step_ms\": 1}\n{\"step\": 2" ms "}\n"
    static const struct damage {
        const char *file, *text, *wanted;
    } damages[] = {
        {"run/config.json", "{\"model\": {\"num_la", "run/config.json:1:"},
        {"run/config.json", "", "run/config.json"},
        {"run/config.json", NULL, "run/config.json: No such file"},
        {"run/memory.json", "{\"ranks\": [", "run/memory.json: damaged: no JSON"},
        {"run/memory.json", "{}", "run/memory.json: damaged: no ranks"},
        {"run/memory.json", USED("MiB", RANK("0", "0", "1")), "run/memory.json: damaged: its unit"},
        {"run/memory.json", USED("bytes", "{}, {}"), "run/memory.json: damaged: a rank without"},
        {"run/memory.json", USED("bytes", RANK("0", "0", "1") "," RANK("0", "0", "1")),
         "run/memory.json: damaged: rank 0 stands there twice"},
        {"run/memory.json", USED("bytes", RANK("0", "0", "1") "," RANK("1", "7", "1")),
         "run/memory.json: damaged: the stage of rank 1 is not 1"},
        {"run/memory.json", USED("bytes", RANK("0", "0", "-1") "," RANK("1", "1", "1")),
         "run/memory.json: damaged: weights of rank 0 is no volume"},
        {"run/trace.json", "{\"traceEvents\": [", "run/trace.json: damaged: no JSON"},
        {"run/trace.json", "{}", "run/trace.json: damaged: no traceEvents"},
        {"run/trace.json", EVENT("-1", "1"), "run/trace.json: damaged: event 2: ts is no time"},
        {"run/trace.json", EVENT("1", "-1"), "run/trace.json: damaged: event 2: dur is no time"},
        {"run/trace.json", EVENT("1", "1e16"), "run/trace.json: damaged: event 2: dur is no time"},
        {"run/metrics.jsonl", "", "run/metrics.jsonl: damaged: no steps"},
        {"run/metrics.jsonl", "{\"step\": 1, \"step_ms\": 1}\n{\"st\n{\"step\": 3}\n",
         "run/metrics.jsonl:2: damaged: no JSON"},
        {"run/metrics.jsonl", STEPS(""), "run/metrics.jsonl:2: damaged: step_ms is no time"},
        {"run/metrics.jsonl", STEPS(", \"step_ms\": -1"), "run/metrics.jsonl:2: damaged: step_ms"},
        {"run/metrics.jsonl", STEPS(", \"step_ms\": \"1\""),
         "run/metrics.jsonl:2: damaged: step_ms"},
        {"run/metrics.jsonl", STEPS(", \"step_ms\": 1e308"),
         "run/metrics.jsonl:2: damaged: step_ms"},
        {"run/metrics.jsonl", "{\"step\": 2, \"step_ms\": 1}\n{\"step\": 2, \"step_ms\": 1}\n",
         "run/metrics.jsonl:2: damaged: its step is not behind"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        char *whole = child_read(damages[i].file);
        EXPECT(whole && (damages[i].text ? child_write(damages[i].file, damages[i].text)
                                         : remove(damages[i].file) == 0),
               "%s", damages[i].file);
        CHILD_REFUSED(6, damages[i].wanted, "plan", "tiny.json", "--cluster", "cluster.json",
                      "--against", "run");
        EXPECT(whole && child_write(damages[i].file, whole), "%s", damages[i].file);
    }
}

/* Whatever a step's programs or footprint follow from is named; what leaves them as they are is not
 * asked for. */
static void check_other_steps(void)
{
    static const struct {
        const char *set, *wanted; /* wanted NULL: the same step */
    } rows[] = {
        {"model.num_layers=4", "its step is another: model.num_layers 2 -> 4"},
        {"train.global_batch_size=8", "train.global_batch_size 4 -> 8"},
        {"train.recompute_granularity=full", "train.recompute_granularity \"none\" -> \"full\""},
        {"train.recompute_granularity=selective", "train.recompute_granularity"},
        {"train.parameter_rules=[\"*norm* frozen\"]", "train.parameter_rules [] -> "},
        {"train.clip_grad=0", "train.clip_grad 1 -> 0"},
        {"train.split_master=false", "train.split_master true -> false"},
        {"train.calculate_per_token_loss=true", "train.calculate_per_token_loss"},
        {"data.reset_attention_mask=true", "data.reset_attention_mask false -> true"},
        {"parallel.data_parallel_sharding_strategy=no_shard", "data_parallel_sharding_strategy"},
        {"parallel.hierarchical_context_parallel_sizes=[2,1]", "hierarchical_context_parallel"},
        {"device.cuda_graphs=false", "device.cuda_graphs"},
        {"train.clip_grad=0.5", NULL},
        {"train.lr=0.1", NULL},
        {"log.trace_step=2", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const *args = WORDS("plan", "tiny.json", "--cluster", "cluster.json",
                                        "--against", "run", "--set", rows[i].set);
        child c;
        child_run(&c, args, NULL);
        EXPECT(rows[i].wanted ? c.exit_code == 2 && child_is_line(c.err) &&
                                    strstr(c.err, "--against run: its step is another: ") &&
                                    strstr(c.err, rows[i].wanted)
                              : c.exit_code == 0,
               "%s: exit %d: %s", rows[i].set, c.exit_code, c.err);
    }
}

/* What a run's folder says of its mesh is the same to all verbs. */
static void check_left_open(void)
{
    static const char *const configs[] = {"wide.json", "open/config.json"};
    char path[1024];
    child c;
    snprintf(path, sizeof path, "%s/weft", getenv("WEFT_BINARY_DIR"));
    child_run_other("/usr/bin/env", &c,
                    WORDS("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", path,
                          "train", "wide.json", "--out", "open"),
                    NULL);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    for (int i = 0; i < 2; i++)
        cJSON_Delete(lay_beside("open", configs[i], NULL));
    cJSON *json = child_json(WORDS("expand", "open", "--cluster", "cluster.json", "--max-nodes",
                                   "1", "--set", "train.global_batch_size=8", "--json"));
    EXPECT(number_of(cJSON_GetObjectItem(json, "steps")->child, "dp") == 2, "today's dp");
    EXPECT(system("cp -r open fixed && sed -i 's/\"data_parallel_size\": 0/"
                  "\"data_parallel_size\": 2/' fixed/config.json") == 0,
           "fixed");
    json = child_json(WORDS("compare", "open", "fixed", "--json"));
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "settings")) == 0, "settings differ");
    CHILD_GOOD("train", "--out", "open", "--resume", "--set", "train_iters=6"); /* on one rank */
    json = child_json(WORDS("compare", "open", "fixed", "--json"));
    EXPECT(strcmp(text_of(cJSON_GetObjectItem(json, "a"), "mesh"), "tp 1, pp 1, dp 1") == 0 &&
               cJSON_GetArraySize(cJSON_GetObjectItem(json, "settings")) > 0,
           "a resumed run's mesh");
    /* Its timeline is of the first start, and says so. */
    CHILD_RUN(&c, "plan", "open/config.json", "--cluster", "cluster.json", "--against", "open");
    EXPECT(c.exit_code == 0 && strstr(c.err, "open/trace.json: of start 1, whose mesh was another "
                                             "(tp 1, pp 1, dp 2): left out"),
           "exit %d: %s", c.exit_code, c.err);
    CHILD_GOOD("train", "--out", "open", "--resume", "--set", "train_iters=8", "--set",
               "log.trace_step=8");
    char *trace = child_read("open/trace.json"), *svg = child_read("open/trace.svg");
    EXPECT(trace && strstr(trace, "\"otherData\":{\"step\":\"8\",\"mesh\":\"tp 1, pp 1, dp 1\","
                                  "\"start\":\"3\"}"),
           "%s", trace ? trace : "no trace");
    EXPECT(svg && strstr(svg, ", start 3"), "no start in the picture");
}

/* No claim of times: the sheet is of GPUs. */
static void check_against(void)
{
    static const char *const train[] = {"train", "tiny.json", "--out", "run", NULL};
    const char *const *text =
        WORDS("plan", "tiny.json", "--cluster", "cluster.json", "--against", "run");
    static const char *const phases[] = {"forward", "backward", "step", "idle"};
    child c;
    cJSON *json;
    child_good(train);
    child_run(&c, text, NULL);
    EXPECT(c.exit_code == 0 &&
               strstr(c.out, "\nrun: 2 steps after its warm-up, half of them between ") &&
               strstr(c.out, " measured (the median of these), error ") &&
               strstr(c.out, "\n  step 4, whose timeline was kept: ") &&
               strstr(c.out, "weights, stage 1"),
           "exit %d: %s%s", c.exit_code, c.err, c.out);
    EXPECT(strstr(c.out, " planned, ") && strstr(c.out, "optimizer's step") &&
               strstr(c.out, "staging, stage 0"),
           "%s", c.out);
    EXPECT(child_is_line(c.err) &&
               strstr(c.err, "--against run: it ran on CPUs, and the cluster DGX H100 is of GPUs"),
           "%s", c.err);
    CHILD_RUN(&c, "plan", "tiny.json", "--cluster", "cluster.json", "--json", "--against", "run");
    json = child_parse(c.out);
    const cJSON *against = cJSON_GetObjectItem(json, "against"), *row;
    check_row(cJSON_GetObjectItem(against, "step_time_s"), false);
    EXPECT(number_of(against, "num_steps") == 2 && number_of(against, "spread") >= 0, "steps");
    double traced_s = 0; /* like with like: what the rows of one step sum to is that step's */
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(against, "time_s")) traced_s +=
        number_of(row, "measured");
    EXPECT(number_of(against, "traced_step") == 4 &&
               fabs(traced_s / number_of(against, "traced_step_time_s") - 1) < 1e-6,
           "%.9g s in the rows of %s", traced_s, c.out);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        bool found = false;
        cJSON_ArrayForEach(row, cJSON_GetObjectItem(against, "phases_s"))
        {
            found |=
                strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(row, "name")), phases[i]) == 0 &&
                number_of(row, "measured") > 0;
        }
        EXPECT(found, "no phase %s in %s", phases[i], c.out);
    }
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(against, "phases_s")) check_row(row, false);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(against, "memory_bytes")) check_row(row, true);
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(against, "memory_bytes")) > 8, "no bytes");
    check_other_steps();
    CHILD_REFUSED(2, "its mesh is another", "plan", "tiny.json", "--cluster", "cluster.json",
                  "--against", "run", "--mesh", "pp=2,dp=2");
    CHILD_REFUSED(2, "--against nowhere: No such file or directory", "plan", "tiny.json",
                  "--cluster", "cluster.json", "--against", "nowhere");
    CHILD_REFUSED(2, "given by --set and by --mesh pp=2", "plan", "tiny.json", "--cluster",
                  "cluster.json", "--mesh", "pp=2", "--set", "tensor_model_parallel_size=2");
    char *used = child_read("run/memory.json");
    EXPECT(child_write("run/memory.json",
                       "{\"unit\": \"bytes\", \"ranks\": [{\"rank\": 0, \"stage\": 0, \"used\": "
                       "{\"weights\": 4096}}, {\"rank\": 1, \"stage\": 1, \"used\": {}}]}"),
           "memory");
    CHILD_REFUSED(2, "--against run: its model is another: the weights of stage 0 take 4096 bytes",
                  "plan", "tiny.json", "--cluster", "cluster.json", "--against", "run");
    EXPECT(used && child_write("run/memory.json", used), "memory");
    check_damaged();
    check_times_of_plan();
    check_chunks();
    check_left_open();
    check_tail();
    check_experts("routed.json", "dp=2,ep=2,binding=dp", "routed", 0);
    check_experts("forced.json", "dp=2,ep=2,binding=dp", "forced", 0);
    check_experts("recomputed.json", "dp=2,ep=2,binding=dp", "recomputed", 0);
    check_tier();
    check_stepped();
    check_experts("offloaded.json", "dp=4,ep=4,binding=dp", "offloaded", 65536);
    EXPECT(child_write("run/metrics.jsonl", "{\"step\": 1, \"step_ms\": 1}\n"), "metrics");
    CHILD_REFUSED(2, "--against run: 1 step; the first 2 are warm-up", "plan", "tiny.json",
                  "--cluster", "cluster.json", "--against", "run");
}

int main(void)
{
    child_begin();
    child_cluster("h100", "cluster.json");
    EXPECT(child_write("tiny.json", tiny) && child_write("routed.json", routed) &&
               child_write("wide.json", wide) && child_write("offloaded.json", offloaded) &&
               child_write("tiered.json", tiered) && child_write("recomputed.json", recomputed) &&
               child_write("stepped.json", stepped),
           "cannot write configs");
    char *unforced = child_read("routed.json"), forced[1024];
    const char *const rest = unforced ? strstr(unforced, "\"num_experts\"") : NULL;
    EXPECT(rest, "routed.json has no experts");
    if (rest)
        snprintf(forced, sizeof forced, "%.*s\"moe_router_forced_load\": 1.5, %s",
                 (int)(rest - unforced), unforced, rest);
    EXPECT(rest && child_write("forced.json", forced), "forced.json");
    check_against();
    return child_finish();
}
