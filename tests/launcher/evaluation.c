/* The validation loss: in metrics.jsonl and on standard output as the training found it, and by
 * weft eval from a checkpoint, to the bit on the same mesh, on another within rounding, in less
 * memory, and without a trace in the run's folder. */
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4,\n"
    "  \"seq_length\": 48, \"vocab_size\": 53, \"num_experts\": 16, \"hidden_dropout\": 0.1},\n"
    "\"train\": {\"micro_batch_size\": 8, \"global_batch_size\": 16, \"train_iters\": 4,\n"
    "  \"lr\": 1e-2, \"lr_decay_style\": \"constant\", \"eval_interval\": 2, \"eval_iters\": 2},\n"
    "\"data\": {\"mock_data\": true, \"split\": \"9,1,0\"}, \"checkpoint\": {\"save_interval\": "
    "2},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static const char four[] =
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 2,\n"
    "  \"seq_length\": 16, \"num_experts\": 2},\n"
    "\"train\": {\"global_batch_size\": 2, \"train_iters\": 1, \"eval_iters\": 1},\n"
    "\"data\": {\"data_path\": \"corpus\", \"split\": \"1\"},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

enum { TOKENS = 2 * 16 * 48 };

/* The losses that lines of evaluations hold, after steps 2, 4, ...: how many there are. */
static int read_evaluations(const char *text, double out[4])
{
    int count = 0;
    for (const char *line = text; line && *line && count < 4; line += strcspn(line, "\n") + 1) {
        cJSON *json = cJSON_ParseWithLength(line, strcspn(line, "\n"));
        double loss = has_value(json, "validation_loss") ? number_of(json, "validation_loss") : NAN;
        if (isfinite(loss)) {
            EXPECT(number_of(json, "step") == 2 * (count + 1) &&
                       number_of(json, "validation_tokens") == TOKENS &&
                       cJSON_GetArraySize(json) == 3,
                   "%.100s", line);
            out[count++] = loss;
        }
        cJSON_Delete(json);
    }
    return count;
}

static double worst_peak(const char *text)
{
    double most = 0;
    for (const char *at = text; at && (at = strstr(at, "\"device_bytes_peak\": ")) != NULL; at++)
        most = fmax(most, atof(strchr(at, ':') + 1));
    return most;
}

/* Trains, and gives the losses of both evaluations and the most memory that a rank took. */
static void train(const char *run, const char *mesh, const char *precision, double out[4],
                  double *out_bytes)
{
    child c;
    CHILD_RUN(&c, "train", "c.json", "--out", run, "--mesh", mesh, "--set", precision, "--json");
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", run, c.exit_code, c.err);
    char *text = child_read_in(run, "metrics.jsonl");
    EXPECT(text && c.out && strcmp(text, c.out) == 0, "%s: stdout is not metrics.jsonl", run);
    EXPECT(read_evaluations(text, out) == 2, "%s: not two evaluations:\n%s", run, text);
    EXPECT(out[0] != out[1], "the loss stands still");
    *out_bytes = worst_peak(text);
}

/* --json's loss, with up to four more arguments. */
static double evaluate(const char *checkpoint, const char *const more[5], int step,
                       const char *split, double tokens)
{
    const char *args[8] = {"eval", checkpoint, "--json"};
    for (int i = 0; i < 4 && more[i]; i++)
        args[3 + i] = more[i];
    cJSON *json = child_json(args);
    const cJSON *name = cJSON_GetObjectItem(json, "split");
    double loss = number_of(json, "loss");
    EXPECT(number_of(json, "step") == step && number_of(json, "tokens") == tokens &&
               cJSON_IsString(name) && strcmp(name->valuestring, split) == 0 &&
               fabs(number_of(json, "perplexity") / exp(loss) - 1) < 1e-12,
           "eval %s: %g of step %g", checkpoint, loss, number_of(json, "step"));
    return loss;
}

static char *list(const char *run)
{
    expect_shell("ls -lR --time-style=full-iso %s > listing", run);
    return child_read("listing");
}

static void check_alone(void)
{
    static const char *const none[5] = {NULL};
    double losses[4], bytes;
    char limit[64];
    train("alone", "dp=1", "precision=fp32", losses, &bytes);
    char *before = list("alone");
    EXPECT(evaluate("alone", none, 4, "validation", TOKENS) == losses[1], "not the run's loss");
    EXPECT(evaluate("alone/checkpoints/step-2", none, 2, "validation", TOKENS) == losses[0],
           "not the run's loss after step 2");
    double other =
        evaluate("alone", (const char *[5]){"--mesh", "tp=2,binding=tp"}, 4, "validation", TOKENS);
    EXPECT(fabs(other / losses[1] - 1) < 1e-5, "%.9g on another mesh, not %.9g", other, losses[1]);
    other = evaluate("alone", (const char *[5]){"--split", "all", "--iters", "1"}, 4, "all",
                     TOKENS / 2);
    EXPECT(fabs(other / losses[1] - 1) < 0.5 && other != losses[1], "%.9g of all", other);
    /* Weights without gradients, masters and moments. */
    snprintf(limit, sizeof limit, "device.memory_limit=%.0f", bytes * 0.9);
    EXPECT(evaluate("alone", (const char *[5]){"--set", limit}, 4, "validation", TOKENS) ==
               losses[1],
           "not the run's loss in less memory");
    char *after = list("alone");
    EXPECT(before && after && strcmp(before, after) == 0, "before:\n%s\nafter:\n%s", before, after);
}

/* A last step that the interval does not divide is evaluated, too, and a run that goes on from it
 * does not evaluate it again. */
static void check_last(void)
{
    static const char *const iters[] = {"train_iters=3", "train_iters=5"};
    static const char wanted[] = "2 3 4 5 ";
    char found[16] = "";
    for (int i = 0; i < 2; i++) {
        CHILD_GOOD("train", "c.json", "--out", "odd", "--resume", "--set", iters[i]);
    }
    char *text = child_read("odd/metrics.jsonl");
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n"))
        if (strstr(line, "validation_loss"))
            snprintf(found + strlen(found), sizeof found - strlen(found), "%d ",
                     atoi(line + strlen("{\"step\": ")));
    EXPECT(strcmp(found, wanted) == 0, "evaluated behind steps %s", found);
}

static void check_mesh(const char *run, const char *mesh, const char *precision)
{
    static const char *const none[5] = {NULL};
    double losses[4], bytes;
    train(run, mesh, precision, losses, &bytes);
    double loss = evaluate(run, none, 4, "validation", TOKENS);
    EXPECT(loss == losses[1], "%s: %.17g, not %.17g", mesh, loss, losses[1]);
}

/* Documents of tokens 0 to 3, most of which are as long as a sample: of micro-batches of one sample
 * few have a label without a loss, some have many. The loss is that of all labels that bear one,
 * however samples lie in micro-batches and on ranks. */
static void check_masked(void)
{
    static const char masked[] =
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2,\n"
        "  \"seq_length\": 4, \"vocab_size\": 3},\n"
        "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 30,\n"
        "  \"lr\": 3e-2, \"eval_interval\": 30, \"eval_iters\": 3},\n"
        "\"data\": {\"mock_data\": true, \"split\": \"9,1\", \"eod_mask_loss\": true,\n"
        "  \"eod_token\": 0},\n"
        "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";
    static const char *const ways[][2] = {{"train.micro_batch_size=4", "dp=1"},
                                          {"train.micro_batch_size=8", "dp=1"},
                                          {"train.micro_batch_size=2", "dp=2"},
                                          {"train.micro_batch_size=1", "cp=2"},
                                          {"train.micro_batch_size=1", "pp=1,vp=1,tp=2"}};
    EXPECT(child_write("masked.json", masked), "masked.json");
    CHILD_GOOD("train", "masked.json", "--out", "masked");
    double tokens = NAN, wanted = NAN;
    for (size_t i = 0; i <= sizeof ways / sizeof *ways; i++) {
        cJSON *json =
            child_json(WORDS("eval", "masked", "--json", i ? "--set" : NULL,
                             i ? ways[i - 1][0] : NULL, "--mesh", i ? ways[i - 1][1] : NULL));
        const double loss = number_of(json, "loss"), count = number_of(json, "tokens");
        if (i == 0) {
            tokens = count;
            wanted = loss;
            EXPECT(tokens > 0 && tokens < 3 * 8 * 4, "masked: %g labels bear a loss", tokens);
        }
        EXPECT(count == tokens && fabs(loss / wanted - 1) < 1e-5,
               "%s, %s: %.9g over %g labels, not %.9g over %g", i ? ways[i - 1][0] : "as trained",
               i ? ways[i - 1][1] : "", loss, count, wanted, tokens);
    }
}

/* Lines of evaluations go the way of the lines of steps. */
static void check_resume(void)
{
    double losses[4];
    char *text = child_read("alone/metrics.jsonl");
    size_t bytes = strlen(text ? text : "") + 128;
    char *longer = malloc(bytes);
    EXPECT(longer != NULL, "no memory");
    snprintf(longer, bytes, "%s{\"step\": 6, \"validation_loss\": 1, \"validation_tokens\": 1}\n",
             text);
    EXPECT(child_write("alone/metrics.jsonl", longer), "alone/metrics.jsonl");
    free(longer);
    child_says(
        WORDS("train", "alone/config.json", "--out", "alone", "--resume", "--set", "train_iters=6"),
        0, WORDS("\nstep 6  validation loss "), NULL);
    text = child_read("alone/metrics.jsonl");
    EXPECT(read_evaluations(text, losses) == 3 && losses[2] > 1, "not 3 evaluations:\n%s", text);
}

/* No batches are no evaluation, which wants no part of the data. */
static void check_none(void)
{
    CHILD_GOOD("train", "c.json", "--out", "none", "--set", "eval_iters=0", "--set", "data.split=1",
               "--set", "train_iters=2");
    char *text = child_read("none/metrics.jsonl");
    EXPECT(text && !strstr(text, "validation_loss"), "%s", text);
    CHILD_REFUSED(2, "--iters is missing: the run's train.eval_iters is 0", "eval", "none",
                  "--split", "train");
    CHILD_GOOD("eval", "none", "--split", "train", "--iters", "1");
}

/* What a run's schedule asks for is training's alone: its model is read on any mesh. */
static void check_schedules(void)
{
    static const struct {
        const char *run, *mesh, *set, *evaluated, *generated; /* on these meshes; NULL: not */
    } rows[] = {
        {"pairs", "dp=2,binding=dp,ep=2", "parallel.overlap_moe_expert_parallel_comm=true", "dp=1",
         "dp=1"},
        {"interleaved", "pp=2,vp=2,schedule=interleaved", "train.seed=1234", "tp=2", NULL},
        {"zbv", "pp=2,schedule=zbv", "train.seed=1234", NULL, "pp=4"},
        {"order", "pp=2", "parallel.pipeline_schedule_file=order.csv", "pp=4", NULL},
    };
    double wanted = NAN;
    EXPECT(child_write("order.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n") &&
               child_write("text.txt", "The mesh tiles the ranks, and the ranks run the programs, "
                                       "of which a step's last task is the update of weights.\n"),
           "files");
    CHILD_GOOD("prepare", "text.txt", "--out", "corpus");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHILD_GOOD("train", "four.json", "--out", rows[i].run, "--mesh", rows[i].mesh, "--set",
                   rows[i].set);
        if (rows[i].generated)
            CHILD_GOOD("generate", rows[i].run, "--prompt", "The", "--num-tokens", "2", "--mesh",
                       rows[i].generated);
        if (!rows[i].evaluated)
            continue;
        cJSON *json = child_json(
            WORDS("eval", rows[i].run, "--split", "train", "--mesh", rows[i].evaluated, "--json"));
        const double loss = number_of(json, "loss");
        wanted = i == 0 ? loss : wanted; /* all train the same */
        EXPECT(fabs(loss / wanted - 1) < 1e-5, "%s: %.9g, not %.9g", rows[i].run, loss, wanted);
    }
}

static void check_wrong(void)
{
    static const struct {
        const char *args[5];
        int exit_code;
        const char *part;
    } cases[] = {
        {{"nowhere"}, 6, "nowhere: no checkpoint there"},
        {{"alone", "--split", "tset"}, 2, "--split tset: "},
        {{"alone", "--split", "test"}, 2, "--split test: data.split 9,1,0 leaves nothing for it"},
        {{"alone", "--data", "absent"},
         2,
         "weft eval: --data absent: data.data_path: absent.idx: No such file"},
        {{"alone", "--data", "absent", "--split", "test"},
         2,
         "weft eval: --data absent: data.data_path: absent.idx: No such file"},
        {{"alone", "--iters", "-1"}, 2, "--iters -1: "},
        {{"alone", "--mesh", "tp=3"}, 2, "--mesh tp=3: parallel.tensor_model_parallel_size: "},
        {{"alone", "--set", "train.eval_itres=1"}, 2, "did you mean train.eval_iters?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *args[7] = {"eval"};
        child c;
        for (int k = 0; k < 5 && cases[i].args[k]; k++)
            args[1 + k] = cases[i].args[k];
        child_run(&c, args, NULL);
        child_drop_folder(c.err);
        EXPECT(c.exit_code == cases[i].exit_code && child_is_line(c.err) &&
                   strncmp(c.err, "weft eval: ", 11) == 0 && strstr(c.err, cases[i].part) &&
                   c.out && !*c.out,
               "%s: exit %d: %s", cases[i].part, c.exit_code, c.err);
    }
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config) && child_write("four.json", four), "configs");
    check_alone();
    check_wrong();
    check_none();
    check_resume();
    check_last();
    check_masked();
    check_schedules();
    check_mesh("replicas", "dp=2,binding=dp,ep=2,zero=3", "precision=bf16");
    check_mesh("stages", "tp=2,pp=2,binding=tp", "precision=fp32");
    return child_finish();
}
