/* examples/own_task.c, run as a user would: the same losses and metric on every mesh, keys of its
 * own with help and errors; and what train.parameter_rules promise, there and of a tied
 * embedding. */
#include <math.h>
#include <string.h>

#include "launcher/training/progress.h"
#include "tests/examples/run.h"

static char bin[256]; /* the folder of the programs */

#define MODEL                                                                                      \
    "\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "             \
    "\"seq_length\": 16, \"vocab_size\": 16}"
static const char own_task[] =
    "{" MODEL ",\n"
    " \"train\": {\"train_iters\": 4, \"global_batch_size\": 8, \"lr\": 1e-2, "
    "\"lr_decay_style\": \"constant\",\n"
    "  \"weight_decay\": 0.3},\n"
    " \"device\": {\"peak_flops\": 1e12, \"num_threads\": 1},\n"
    " \"task\": {\"modulus\": 5}}\n";
static const char gpt[] =
    "{" MODEL ",\n"
    " \"train\": {\"train_iters\": 3, \"global_batch_size\": 4, \"lr\": 1e-2, \"precision\": "
    "\"bf16\"},\n"
    " \"device\": {\"peak_flops\": 1e12, \"num_threads\": 1}, \"data\": {\"mock_data\": true}}\n";

static void write_file(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    EXPECT(out && fputs(text, out) >= 0 && fclose(out) == 0, "%s", path);
}

static char *read_file(const char *path, size_t *bytes)
{
    static char buffer[1 << 21];
    FILE *in = fopen(path, "rb");
    *bytes = in ? fread(buffer, 1, sizeof buffer - 1, in) : 0;
    buffer[*bytes] = '\0';
    if (in)
        fclose(in);
    EXPECT(*bytes > 0, "%s: cannot read", path);
    return buffer;
}

/* The key's value in step `step` of the run. */
static double metric(const char *folder, int step, const char *key)
{
    char path[128], wanted[64];
    size_t bytes;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    const char *at = read_file(path, &bytes);
    for (int line = 1; at && line < step; line++) {
        at = strchr(at, '\n');
        at += at != NULL;
    }
    snprintf(wanted, sizeof wanted, "\"%s\": ", key);
    at = at ? strstr(at, wanted) : NULL;
    EXPECT(at, "%s: step %d has no %s", folder, step, key);
    return at ? strtod(at + strlen(wanted), NULL) : NAN;
}

/* The fp32 weights of a parameter of 16 x 32 or fewer elements in the latest checkpoint. */
static void read_weights(const char *folder, int step, const char *name, size_t count, float *out)
{
    char path[128], wanted[128];
    size_t bytes;
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/manifest.json", folder, step);
    const char *at = read_file(path, &bytes);
    snprintf(wanted, sizeof wanted, "{\"name\": \"model/%s\", \"offset\": ", name);
    at = strstr(at, wanted);
    EXPECT(at, "%s holds no %s", folder, name);
    size_t offset = at ? strtoul(at + strlen(wanted), NULL, 10) : 0;
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/model.h5", folder, step);
    const char *data = read_file(path, &bytes);
    EXPECT(offset + count * sizeof *out <= bytes, "%s ends early", path);
    memcpy(out, data + offset, count * sizeof *out);
}

static void train(const char *program, const char *config, const char *folder, const char *more)
{
    int code = run("%s/%s train %s.json --out %s %s", bin, program, config, folder, more);
    EXPECT(code == 0, "%s %s: exit code %d: %s", program, more, code, run_output);
}

#define FROZEN "--set 'parameter_rules=[\"embedding.* frozen\"]' "

static void check_meshes(void)
{
    static const char *const meshes[] = {"tp=2,sp=1,pp=2,zero=0", "dp=2,tp=2,zero=3"};
    static const char *const names[] = {"embedding.word_embeddings.weight",
                                        "embedding.position_embeddings.weight",
                                        "decoder.value_head.weight"};
    float fresh[512], one[512], other[512];
    train("example_own_task", "task", "fresh", "--set train_iters=0");
    train("example_own_task", "task", "one", FROZEN);
    EXPECT(strstr(run_output, "M of them frozen)"), "%s", run_output);
    for (int m = 0; m < 2; m++) {
        const char *folder = m ? "mesh-1" : "mesh-0";
        char more[160];
        snprintf(more, sizeof more, FROZEN "--mesh %s --set recompute_granularity=%s", meshes[m],
                 m ? "full" : "selective");
        train("example_own_task", "task", folder, more);
        for (int step = 1; step <= 4; step++) {
            static const char *const keys[] = {"loss", "mean_abs_error", "large_errors",
                                               "grad_norm"};
            for (int k = 0; k < 4; k++) {
                double wanted = metric("one", step, keys[k]), got = metric(folder, step, keys[k]);
                EXPECT(fabs(got - wanted) <= 1e-5 * fabs(wanted), "%s: step %d: %s %.9g, not %.9g",
                       meshes[m], step, keys[k], got, wanted);
            }
        }
        for (int n = 0; n < 3; n++) {
            size_t count = n < 2 ? 512 : 32;
            read_weights("fresh", 0, names[n], count, fresh);
            read_weights("one", 4, names[n], count, one);
            read_weights(folder, 4, names[n], count, other);
            bool same = memcmp(fresh, one, count * sizeof *one) == 0 &&
                        memcmp(fresh, other, count * sizeof *other) == 0;
            EXPECT(same == (n < 2), "%s: %s %s", meshes[m], names[n],
                   same ? "did not train" : "is frozen and moved");
        }
    }
    EXPECT(metric("one", 1, "large_errors") > 0, "nothing to sum");
    EXPECT(metric("one", 4, "loss") < metric("one", 1, "loss"), "the task does not train");
}

/* Every key that Weft writes is refused as the name of a metric; the program's own is not. */
static void check_keys(void)
{
    size_t bytes;
    int own = 0;
    for (const char *at = read_file("one/metrics.jsonl", &bytes); at && *at != '\n';) {
        weft_metric_list list = {.count = 1};
        at = strchr(at, '"') + 1;
        snprintf(list.rows[0].name, sizeof list.rows[0].name, "%.*s", (int)strcspn(at, "\""), at);
        at += strcspn(at, ",\n");
        bool is_own = strcmp(list.rows[0].name, "mean_abs_error") == 0 ||
                      strcmp(list.rows[0].name, "large_errors") == 0;
        EXPECT((weft_progress_check_metrics(&list) == WEFT_OK) == is_own, "metric %s",
               list.rows[0].name);
        own += is_own;
    }
    EXPECT(own == 2, "%d keys are the program's", own);
}

/* The squares of the parts' norms add up to that of all. */
static void check_norm(void)
{
    train("example_own_task", "task", "all", "--set train_iters=1");
    train("example_own_task", "task", "rest",
          "--set train_iters=1 --set 'parameter_rules=[\"decoder.* frozen\"]'");
    double all = metric("all", 1, "grad_norm"), some = metric("one", 1, "grad_norm"),
           rest = metric("rest", 1, "grad_norm");
    EXPECT(some > 0 && rest > 0 && fabs(all * all - some * some - rest * rest) < 1e-5 * all * all,
           "norms %.9g, %.9g and %.9g", all, some, rest);
}

/* Both copies of a tied embedding, with masters, tensor-parallel and sharded over a pipeline. */
static void check_tied(void)
{
    float fresh[512], trained[512];
    train("weft", "gpt", "gpt-fresh", "--set train_iters=0");
    train("weft", "gpt", "gpt", "--set 'parameter_rules=embedding.word* frozen' --mesh tp=2,pp=2");
    read_weights("gpt-fresh", 0, "embedding.word_embeddings.weight", 512, fresh);
    read_weights("gpt", 3, "embedding.word_embeddings.weight", 512, trained);
    EXPECT(memcmp(fresh, trained, sizeof fresh) == 0, "the tied embedding is frozen and moved");
    read_weights("gpt-fresh", 0, "embedding.position_embeddings.weight", 512, fresh);
    read_weights("gpt", 3, "embedding.position_embeddings.weight", 512, trained);
    EXPECT(memcmp(fresh, trained, sizeof fresh) != 0, "the positions did not train");
}

static void expect_refused(const char *more, const char *text)
{
    int code = run("%s/example_own_task train task.json --out refused %s", bin, more);
    EXPECT(code == 2 && strstr(run_output, text), "%s: exit code %d: %s", more, code, run_output);
    EXPECT(access("refused", F_OK) != 0, "%s: a run was made", more);
}

static void check_refusals(void)
{
    expect_refused("--set 'parameter_rules=embeding.* frozen' --mesh tp=2",
                   "train.parameter_rules: \"embeding.*\" matches no parameter; did you mean "
                   "embedding");
    expect_refused("--set 'parameter_rules=[\"value_head.* frozen\"]'",
                   "\"value_head.*\" matches no parameter; did you mean decoder.value_head");
    expect_refused("--set 'parameter_rules=[\"* frozen\"]' --mesh tp=2",
                   "train.parameter_rules: all parameters are frozen");
    expect_refused("--set 'parameter_rules=[\"decoder.* frozen\", \"*.biased frozen\"]'",
                   "\"*.biased\" matches no parameter");
    expect_refused("--set task.modulos=3", "did you mean task.modulus?");
    expect_refused("--set modulus=1", "--set modulus=1: 1 is out of range: 2 to 1000");
    expect_refused("--set precision=bf16", "--set precision=bf16: layer 3 (value head): "
                                           "train.precision: the value head computes in fp32");
    expect_refused("--set model.vocab_size=0", "the program's own data needs one");
    EXPECT(run("%s/example_own_task train --help", bin) == 0, "--help");
    EXPECT(run("%s/example_own_task train --help | grep -A1 task.modulus", bin) == 0 &&
               strstr(run_output, "what the labels count to"),
           "%s", run_output);
    EXPECT(run("%s/example_own_task config --explain task.modulus", bin) == 0 &&
               strstr(run_output, "docs/own.md\n") && !strstr(run_output, "docs/config.md"),
           "%s", run_output);
    EXPECT(run("grep -A3 '\"task\"' one/config.json") == 0 && strstr(run_output, "\"modulus\": 5"),
           "%s", run_output);
    /* a resumed run compares them; evaluation reads them and the program's data */
    EXPECT(run("%s/example_own_task train --out one --resume --set train_iters=5 --set modulus=6",
               bin) == 0 &&
               strstr(run_output, "task.modulus 5 -> 6"),
           "%s", run_output);
    EXPECT(run("%s/example_own_task eval one --mesh tp=2", bin) == 0 &&
               strstr(run_output, "validation loss"),
           "%s", run_output);
}

int main(void)
{
    char folder[32];
    const char *root = getenv("WEFT_BINARY_DIR");
    EXPECT(root, "no WEFT_BINARY_DIR");
    snprintf(bin, sizeof bin, "%s", root ? root : ".");
    run_enter(folder);
    write_file("task.json", own_task);
    write_file("gpt.json", gpt);
    check_meshes();
    check_keys();
    check_norm();
    check_tied();
    check_refusals();
    run_leave(folder);
    return expect_finish();
}
