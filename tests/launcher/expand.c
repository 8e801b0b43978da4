/* weft expand: the ladder obeys MoNTA's conditions and prices as weft plan does; what cannot be is
 * one line; an emitted ladder trains on where it was, in losses and in tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "launcher/training/trainer.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* 8 experts, each over a node; 1,024 x 4,096 tokens a step. */
static const char large[] =
    "{\"model\": {\"num_layers\": 32, \"hidden_size\": 4096, \"ffn_hidden_size\": 14336, "
    "\"num_attention_heads\": 32, \"num_query_groups\": 8, \"seq_length\": 4096, "
    "\"vocab_size\": 32000, \"swiglu\": true, \"normalization\": \"RMSNorm\", "
    "\"disable_bias_linear\": true, \"position_embedding_type\": \"rope\", "
    "\"num_experts\": 8, \"moe_router_topk\": 2}, "
    "\"parallel\": {\"tensor_model_parallel_size\": 8, \"expert_model_parallel_size\": 8, "
    "\"expert_tensor_parallel_size\": 8, \"expert_binding\": \"dp\", \"sequence_parallel\": true, "
    "\"data_parallel_size\": 8}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 1024, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}}";

static const char tiny[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 67, \"position_embedding_type\": \"rope\"}, "
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 6, \"lr\": 1e-3, \"seed\": 5, "
    "\"lr_decay_style\": \"constant\"}, "
    "\"data\": {\"mock_data\": true}, "
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}";

static const cJSON *step_of(const cJSON *json, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(json, "steps"), i);
}

/* args end with NULL; *out_json is the caller's. */
static int expand(const char *const *args, cJSON **out_json)
{
    const char *all[CHILD_MAX_ARGS] = {"expand", "--json"};
    int n = 2;
    child c;
    for (; *args && n < CHILD_MAX_ARGS - 1; args++)
        all[n++] = *args;
    child_run(&c, all, NULL);
    *out_json = child_parse(c.out);
    const int code = c.exit_code;
    EXPECT(code == 0 ? !*c.err : child_is_line(c.err), "exit %d: \"%s\"", code, c.err);
    return code;
}

static void replace(const char *from, const char *path, const char *what, const char *with)
{
    char *text = child_read(from), *at = text ? strstr(text, what) : NULL;
    EXPECT(at, "%s has no %s", from, what);
    FILE *out = at ? fopen(path, "w") : NULL;
    if (out) {
        fprintf(out, "%.*s%s%s", (int)(at - text), text, with, at + strlen(what));
        fclose(out);
    }
}

/* --- what the rows say --------------------------------------------------------------------- */

static void check_row(const cJSON *step, const cJSON *before)
{
    const double cp = number_of(step, "cp"), ep = number_of(step, "ep"),
                 nodes = number_of(step, "num_nodes");
    const char *kind = text_of(step, "kind"), *wanted = cp == 1   ? "data"
                                                        : cp < ep ? "horizontal"
                                                                  : "vertical";
    const cJSON *after = cJSON_GetObjectItem(step, "after"),
                *was = cJSON_GetObjectItem(step, "before");
    EXPECT(strcmp(kind, wanted) == 0, "cp %g, ep %g: %s", cp, ep, kind);
    EXPECT(cp == 1 || strstr(text_of(step, "mesh"), wanted), "%s: %s", wanted,
           text_of(step, "mesh"));
    EXPECT(nodes >= (cp < ep && cp > 1 ? ep * cp : fmax(ep, cp)), "cp %g on %g nodes", cp, nodes);
    EXPECT(number_of(step, "num_devices") == 8 * nodes, "devices");
    EXPECT(number_of(step, "tokens") == 1024.0 * 4096, "tokens");
    EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(step, "fits")), "%s does not fit", kind);
    EXPECT(number_of(after, "memory_bytes") <= number_of(after, "memory_limit_bytes"), "memory");
    EXPECT(cJSON_IsNull(cJSON_GetObjectItem(step, "lr_advised")), "lr with the same tokens");
    if (!before)
        return;
    EXPECT(number_of(step, "nodes_added") == nodes - number_of(before, "num_nodes"), "added");
    EXPECT(number_of(was, "tokens_per_s") ==
               number_of(cJSON_GetObjectItem(before, "after"), "tokens_per_s"),
           "before is not the row above");
    if (cp > number_of(before, "cp")) {
        const cJSON *fewer = cJSON_GetObjectItem(step, "why_not_fewer");
        EXPECT(strstr(text_of(fewer, "reason"), "more memory than there is") &&
                   number_of(fewer, "short_by_bytes") > 0,
               "cp %g: why not fewer: %s", cp, text_of(fewer, "reason"));
    }
}

/* A row with fewer tokens a second than the one above says why. */
static void check_slower(const cJSON *step)
{
    const cJSON *why = cJSON_GetObjectItem(step, "slower_for"),
                *fewer = cJSON_GetObjectItem(step, "why_not_fewer");
    const double now = number_of(cJSON_GetObjectItem(step, "after"), "tokens_per_s"),
                 was = number_of(cJSON_GetObjectItem(step, "before"), "tokens_per_s");
    EXPECT(cJSON_IsString(why) == (now < was), "%g tokens/s after %g: %s", now, was,
           cJSON_IsString(why) ? why->valuestring : "-");
    if (cJSON_IsString(why))
        EXPECT(strcmp(why->valuestring, cJSON_IsNull(fewer) ? "attention" : "memory") == 0,
               "%g tokens/s after %g: %s", now, was, why->valuestring);
}

/* The price of a row is that of the plan with its mesh. */
static void check_price(const cJSON *step)
{
    const bool across = strcmp(text_of(step, "kind"), "horizontal") == 0;
    char mesh[160], seq[48], batch[64];
    snprintf(mesh, sizeof mesh, "tp=8,cp=%g,dp=%g,ep=8,etp=8,binding=dp,sp=1,order=%s",
             number_of(step, "cp"), number_of(step, "dp"),
             across ? "tp-ep-dp-cp-pp" : "tp-cp-ep-dp-pp");
    snprintf(seq, sizeof seq, "model.seq_length=%.0f", number_of(step, "context"));
    snprintf(batch, sizeof batch, "train.global_batch_size=%.0f",
             number_of(step, "global_batch_size"));
    cJSON *json = child_json(WORDS("plan", "large.json", "--cluster", "h100.json", "--mesh", mesh,
                                   "--set", seq, "--set", batch, "--json"));
    const double planned = number_of(json, "step_time_s"),
                 row = number_of(cJSON_GetObjectItem(step, "after"), "step_time_s");
    EXPECT(fabs(row / planned - 1) < 1e-9, "%s: %.12g s in the ladder, %.12g planned", mesh, row,
           planned);
}

static void check_contexts(void)
{
    cJSON *json;
    int kinds[3] = {0}, last = 0;
    EXPECT(expand(WORDS("large.json", "--cluster", "h100.json", "--context", "1048576", "--html",
                        "ladder.html"),
                  &json) == 0,
           "no ladder to 1M");
    char *page = child_read("ladder.html");
    EXPECT(page && strstr(page, "today, 4096 tokens") && strstr(page, "1048576 tokens") &&
               strstr(page, "horizontal") && strstr(page, "vertical"),
           "the page has no ladder");
    const int num = cJSON_GetArraySize(cJSON_GetObjectItem(json, "steps"));
    EXPECT(num == 9, "%d rows of doublings", num);
    for (int i = 0; i < num; i++) {
        const cJSON *step = step_of(json, i);
        const char *kind = text_of(step, "kind");
        const int rank = strcmp(kind, "data") == 0 ? 0 : strcmp(kind, "horizontal") == 0 ? 1 : 2;
        EXPECT(number_of(step, "context") == 4096 << i, "row %d", i);
        EXPECT(rank >= last, "%s after a later kind", kind);
        last = rank;
        kinds[rank]++;
        check_row(step, i > 0 ? step_of(json, i - 1) : NULL);
        check_price(step);
        check_slower(step);
    }
    EXPECT(kinds[0] > 0 && kinds[1] > 1 && kinds[2] > 1, "%d data, %d horizontal, %d vertical",
           kinds[0], kinds[1], kinds[2]);
    EXPECT(strstr(text_of(json, "positions"), "rotary_base"), "nothing of rotary positions");
    EXPECT(number_of(json, "checkpoint_bytes") > 12 * 40e9, "checkpoint");
}

/* Two groups of 16 nodes on a switch each; then 4, which not even the experts have room on. */
static void check_switch(void)
{
    cJSON *json;
    bool refused = false;
    replace("h100.json", "switch16.json", "\"between\": {",
            "\"between\": {\"levels\": [{\"nodes\": 16, \"oversubscription\": 1}, {\"nodes\": 128, "
            "\"oversubscription\": 2}], ");
    replace("switch16.json", "switch4.json", "{\"nodes\": 16,", "{\"nodes\": 4,");
    EXPECT(expand(WORDS("large.json", "--cluster", "switch16.json", "--context", "262144"),
                  &json) == 0,
           "no ladder");
    for (const cJSON *s = cJSON_GetObjectItem(json, "steps")->child; s; s = s->next) {
        const cJSON *no = cJSON_GetObjectItem(s, "refused");
        const char *why = has_value(no, "reason") ? text_of(no, "reason") : "";
        EXPECT(number_of(s, "cp") != 4, "horizontal beyond the switch");
        refused |=
            strstr(why, "horizontal, ep 8 x cp 4 takes 32 nodes on one switch, which reaches "
                        "16") != NULL;
    }
    EXPECT(refused, "no refusal of the switch");
    EXPECT(expand(WORDS("large.json", "--cluster", "switch4.json", "--context", "1048576"),
                  &json) != 0,
           "a switch of 4 nodes");
    EXPECT(strstr(text_of(json, "stopped"), "nodes on one switch, which reaches 4") ||
               strstr(text_of(json, "stopped"), "more memory"),
           "%s", text_of(json, "stopped"));
    EXPECT(expand(WORDS("large.json", "--cluster", "switch16.json", "--context", "524288,1048576"),
                  &json) == 3,
           "vertical beyond the switch");
    EXPECT(strstr(text_of(json, "stopped"),
                  "vertical, ep 8 along cp 32 takes 32 nodes on one switch, which reaches 16"),
           "%s", text_of(json, "stopped"));
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "steps")) == 2, "the ladder below it");
}

static void check_batches(void)
{
    cJSON *json;
    EXPECT(expand(WORDS("large.json", "--cluster", "h100.json", "--context", "1048576", "--set",
                        "train.global_batch_size=128"),
                  &json) == 0,
           "no ladder");
    const cJSON *last = step_of(json, 8);
    EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(last, "micro_batches_run_out")), "half a sample");
    const double batch = number_of(last, "global_batch_size"), dp = number_of(last, "dp"),
                 ratio = number_of(last, "tokens") / (128 * 4096.0);
    EXPECT(batch == dp && ratio == batch * 2, "a batch of %g, dp %g", batch, dp);
    EXPECT_NEAR(number_of(last, "lr_advised"), 3e-4 * sqrt(ratio), 1e-12);
    EXPECT(expand(WORDS("large.json", "--cluster", "h100.json", "--context", "8192", "--batch",
                        "samples"),
                  &json) == 0,
           "no ladder");
    last = step_of(json, 1);
    EXPECT(number_of(last, "global_batch_size") == 1024, "samples");
    EXPECT_NEAR(number_of(last, "lr_advised"), 3e-4 * sqrt(2), 1e-12);
}

/* More nodes: more replicas, up to the micro-batches that there are; storage has a speed there. */
static void check_nodes(void)
{
    cJSON *json;
    replace("h100.json", "priced.json", "\"node\": {",
            "\"node\": {\"price_per_hour\": 90, \"currency\": \"EUR\", ");
    replace("priced.json", "stored.json", "\"host\": {",
            "\"storage\": {\"write\": 1e9, \"read\": 2e9}, \"host\": {");
    EXPECT(expand(WORDS("large.json", "--cluster", "h100.json", "--to", "stored.json",
                        "--max-nodes", "48"),
                  &json) == 0,
           "no ladder");
    static const int nodes[] = {8, 8, 16, 32, 48};
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "steps")) == 5, "rows");
    for (int i = 0; i < 5; i++) {
        const cJSON *step = step_of(json, i), *checkpoint = cJSON_GetObjectItem(step, "checkpoint");
        EXPECT(number_of(step, "num_nodes") == nodes[i] && number_of(step, "dp") == nodes[i],
               "row %d: %g nodes", i, number_of(step, "num_nodes"));
        EXPECT(i < 2 || cJSON_IsNumber(cJSON_GetObjectItem(checkpoint, "write_s")), "write_s");
        const cJSON *after = cJSON_GetObjectItem(step, "after"),
                    *cost = cJSON_GetObjectItem(after, "cost");
        EXPECT(i > 0 || cJSON_IsNull(cJSON_GetObjectItem(cost, "hour")), "a price from nowhere");
        if (i > 0) {
            const double rate = number_of(after, "tokens_per_s");
            EXPECT(number_of(cost, "hour") == 90 * nodes[i], "row %d: an hour", i);
            EXPECT_NEAR(number_of(cost, "billion_tokens") * rate * 3600 / (90e9 * nodes[i]), 1,
                        1e-9);
        }
        if (i > 0)
            EXPECT_NEAR(number_of(checkpoint, "read_s") * nodes[i] * 2e9 /
                            number_of(json, "checkpoint_bytes"),
                        1, 1e-6);
    }
    EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(step_of(json, 4), "micro_batches_run_out")),
           "1,024 samples on 48 replicas");
}

/* Devices of a node that are free come before another node. */
static void check_free_devices(void)
{
    static const struct {
        const char *mesh;
        int num_rows, dp[8], nodes[8];
    } cases[] = {{"tp=1", 5, {1, 2, 4, 8, 16}, {1, 1, 1, 1, 2}},
                 {"tp=2,dp=3", 3, {3, 4, 8}, {1, 1, 2}},
                 {"tp=8,dp=1", 2, {1, 2}, {1, 2}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json;
        const int code =
            expand(WORDS("tiny.json", "--cluster", "h100.json", "--max-nodes", "2", "--mesh",
                         cases[i].mesh, "--set", "model.num_attention_heads=8", "--set",
                         "model.vocab_size=64", "--set", "train.global_batch_size=48"),
                   &json);
        EXPECT(code == 0, "%s: no ladder", cases[i].mesh);
        EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "steps")) == cases[i].num_rows,
               "%s: rows", cases[i].mesh);
        for (int k = 0; k < cases[i].num_rows; k++)
            EXPECT(number_of(step_of(json, k), "dp") == cases[i].dp[k] &&
                       number_of(step_of(json, k), "num_nodes") == cases[i].nodes[k],
                   "%s: row %d: dp %g on %g nodes", cases[i].mesh, k,
                   number_of(step_of(json, k), "dp"), number_of(step_of(json, k), "num_nodes"));
    }
}

static void check_refusals(void)
{
    static const struct {
        const char *args[10];
        int code;
        const char *says;
    } rows[] = {
        {{"large.json", "--cluster", "h100.json", "--context", "2048"}, 2, "not above"},
        {{"large.json", "--cluster", "h100.json", "--context", "8192,8192"}, 2, "not above 8192"},
        {{"large.json", "--cluster", "h100.json", "--max-nodes", "8"}, 2, "on all 8 nodes already"},
        {{"large.json", "--cluster", "h100.json", "--max-nodes", "1000"}, 2, "has 128"},
        {{"large.json", "--cluster", "h100.json", "--max-nodes", "4"}, 2, "takes 8 nodes"},
        {{"nowhere", "--cluster", "h100.json"}, 2, "nowhere"},
        {{"large.json", "--cluster", "h100.json", "--context", "8192", "--set",
          "position_embedding_type=learned_absolute"},
         2,
         "learned positions cannot grow: the model has 4096"},
        {{"large.json", "--cluster", "h100.json", "--context", "1048576", "--set",
          "device.memory_limit=12000000000"},
         3,
         "nothing fits on at most 128 nodes"},
        {{"large.json", "--cluster", "h100.json", "--context", "8193"}, 2, "no mesh is legal"},
        {{"large.json", "--cluster", "h100.json", "--context", "8193"},
         2,
         "seq_length 8193 does not divide by"},
        {{"large.json", "--cluster", "h100.json", "--html", "./h100.json"},
         2,
         "the same file as --cluster"},
        {{"large.json", "--cluster", "h100.json", "--html", "large.json"},
         2,
         "the same file as CONFIG"},
        {{"large.json", "--cluster", "h100.json", "--force"}, 2, "--force: needs --emit"},
        {{"large.json", "--cluster", "h100.json", "--to", "nope.json"},
         2,
         "--to nope.json: No such"},
        {{"large.json", "--cluster", "h100.json", "--context", "8k,x"}, 2, "--context x: expected"},
        {{"tiny.json", "--cluster", "small.json", "--max-nodes", "2", "--emit", "f", "--html",
          "f/step-1.json"},
         2,
         "--emit f: would replace --html"},
        {{"tiny.json", "--cluster", "small.json", "--max-nodes", "2", "--emit", ".", "--html",
          "step-1.json"},
         2,
         "--emit .: would replace --html"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *args[12] = {"expand"};
        for (int k = 0; k < 10 && rows[i].args[k]; k++)
            args[k + 1] = rows[i].args[k];
        child_refused(args, rows[i].code, rows[i].says);
    }
}

/* 2.13 samples have today's tokens: 2 are nearer than 3. 8k is a length. */
static void check_nearest(void)
{
    cJSON *json;
    EXPECT(expand(WORDS("tiny.json", "--cluster", "small.json", "--context", "30"), &json) == 0,
           "no ladder");
    EXPECT(number_of(step_of(json, 1), "global_batch_size") == 2, "a batch of %g",
           number_of(step_of(json, 1), "global_batch_size"));
    EXPECT(number_of(step_of(json, 1), "lr_advised") > 0, "no advice");
    EXPECT(expand(WORDS("large.json", "--cluster", "h100.json", "--context", "8k"), &json) == 0,
           "no ladder");
    EXPECT(number_of(step_of(json, 1), "context") == 8192, "8k is %g tokens",
           number_of(step_of(json, 1), "context"));
}

/* The program that runs nothing says the same. */
static void check_alone(const char *alone)
{
    char *texts[2];
    for (int i = 0; i < 2; i++) {
        child c;
        child_program = i == 0 ? NULL : alone;
        CHILD_RUN(&c, "expand", "large.json", "--cluster", "h100.json", "--context",
                  "131072,524288");
        EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
        texts[i] = c.out;
    }
    child_program = NULL;
    EXPECT(strcmp(texts[0], texts[1]) == 0, "weft-plan says\n%s\nand weft\n%s", texts[1], texts[0]);
}

/* --- emitted ladders train ----------------------------------------------------------------- */

static void run_script(const char *script)
{
    char command[700];
    snprintf(command, sizeof command,
             "WEFT='%s/weft' sh %s >out.txt 2>&1 || { cat out.txt >&2; exit 1; }",
             getenv("WEFT_BINARY_DIR"), script);
    EXPECT(system(command) == 0, "%s", script);
}

static double loss_at(const char *run, int step)
{
    double loss = NAN;
    cJSON *lines = child_read_metrics(run);
    for (const cJSON *line = lines->child; line; line = line->next)
        if (number_of(line, "step") == step)
            loss = number_of(line, "loss");
    return loss;
}

/* The mesh alone grows: the run is the same. */
static void check_emitted_nodes(void)
{
    CHILD_GOOD("expand", "tiny.json", "--cluster", "small.json", "--max-nodes", "2", "--emit",
               "it's nodes");
    CHILD_GOOD("train", "tiny.json", "--out", "straight");
    char *script = child_read("it's nodes/step-0.sh");
    EXPECT(script && strstr(script, " on 1 node: ") &&
               strstr(script, "Planned on GPUs, and device.kind is cpu"),
           "%s", script ? script : "no script");
    run_script("\"it's nodes/step-0.sh\" --set train.train_iters=3");
    /* From anywhere. */
    EXPECT(mkdir("elsewhere", 0777) == 0, "no folder");
    char command[1200];
    snprintf(command, sizeof command,
             "cd elsewhere && WEFT='%s/weft' sh \"../it's nodes/step-1.sh\" >out.txt 2>&1",
             getenv("WEFT_BINARY_DIR"));
    EXPECT(system(command) == 0, "from another folder");
    for (int step = 1; step <= 6; step++) {
        const double a = loss_at("straight", step), b = loss_at("it's nodes/run", step);
        EXPECT(fabs(b / a - 1) <= 1e-5, "step %d: %.9g, straight %.9g", step, b, a);
    }
}

/* One step of a config from a checkpoint; the tokens that it has read. */
static void read_step(const char *file, const char *checkpoint, int32_t out[64])
{
    weft_arena arena = {0};
    weft_comm *world;
    weft_config config;
    weft_trainer trainer;
    weft_step_result result;
    const weft_config_source source = {.file = file};
    EXPECT_OK(weft_comm_create_self(&world));
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_trainer_create(&trainer, &config, &source, world, &arena));
    EXPECT_OK(weft_trainer_start(&trainer, checkpoint));
    EXPECT_OK(weft_trainer_step(&trainer, &result));
    EXPECT(trainer.input.batches.num * (int)trainer.input.batches.tokens_each == 64,
           "not 64 tokens");
    memcpy(out, trainer.input.batches.tokens, 64 * sizeof *out);
    weft_trainer_release(&trainer);
    weft_comm_destroy(world);
    weft_arena_release(&arena);
}

static void check_emitted_context(void)
{
    int32_t shorter[64], longer[64];
    CHILD_GOOD("expand", "tiny.json", "--cluster", "small.json", "--context", "32,64", "--emit",
               "context");
    run_script("context/step-0.sh --set train.train_iters=3");
    read_step("context/step-0.json", "context/run/checkpoints/step-3", shorter);
    for (int i = 1; i <= 2; i++) {
        const char *file = i == 1 ? "context/step-1.json" : "context/step-2.json";
        read_step(file, "context/run/checkpoints/step-3", longer);
        EXPECT(memcmp(shorter, longer, sizeof shorter) == 0, "%s goes on elsewhere", file);
    }
    run_script("context/step-1.sh --set train.train_iters=4");
    run_script("context/step-2.sh");
    cJSON *json = child_json(WORDS("inspect", "context/run", "--json"));
    EXPECT(number_of(json, "consumed_tokens") == 6 * 64 && number_of(json, "step") == 6, "step %g",
           number_of(json, "step"));
    EXPECT(isfinite(loss_at("context/run", 6)), "no sixth loss");
}

/* From a run that has begun: today's is what it is. */
static void check_emitted_run(void)
{
    CHILD_GOOD("expand", "straight", "--cluster", "small.json", "--context", "32", "--set",
               "train.train_iters=8", "--set", "train.lr_decay_iters=8", "--emit", "on");
    EXPECT(!child_read("on/step-0.json"), "a config of what has run");
    run_script("on/step-1.sh");
    char *said = child_read("out.txt");
    EXPECT(said &&
               strstr(said, "; samples get another order: some tokens of this epoch come again"),
           "silent about the order: %s", said);
    EXPECT(isfinite(loss_at("straight", 8)), "no eighth loss");
}

/* A ladder does not mix with another's files, nor replaces what it is made of. */
static void check_folders(void)
{
    const char *args[] = {"expand", "tiny.json", "--cluster", "small.json", "--max-nodes",
                          "2",      "--emit",    "mixed",     NULL,         NULL};
    const char *const *of_itself = WORDS("expand", "mixed/step-1.json", "--cluster", "small.json",
                                         "--emit", "./mixed", "--force");
    CHILD_GOOD("expand", "tiny.json", "--cluster", "small.json", "--max-nodes", "8", "--emit",
               "mixed");
    char *text = child_read("mixed/step-3.json");
    EXPECT(text, "no step 3");
    child_refused(args, 2, "--force");
    child_refused(of_itself, 2, "would replace CONFIG");
    args[8] = "--force";
    child_good(args);
    text = child_read("mixed/step-1.sh");
    EXPECT(text, "no step 1");
    EXPECT(!child_read("mixed/step-2.json") && !child_read("mixed/step-3.sh"),
           "another ladder's steps");
}

int main(void)
{
    char alone[1024];
    snprintf(alone, sizeof alone, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    child_begin();
    child_cluster("h100", "h100.json");
    EXPECT(child_write("large.json", large) && child_write("tiny.json", tiny),
           "cannot write configs");
    replace("h100.json", "small.json", "\"ranks_per_node\": 8", "\"ranks_per_node\": 1");
    check_contexts();
    check_switch();
    check_batches();
    check_nodes();
    check_free_devices();
    check_refusals();
    check_nearest();
    check_alone(alone);
    check_emitted_nodes();
    check_emitted_context();
    check_emitted_run();
    check_folders();
    return child_finish();
}
