/* Several datasets in one run: a blend gives the same samples on every mesh, with every micro-batch
 * and after every start; shares and validation sets stand in metrics.jsonl by their names. */
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* The datasets are so easy, each in its own way, that a sample of another one is another loss. */
static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4,\n"
    "  \"seq_length\": 16},\n"
    "\"train\": {\"global_batch_size\": 8, \"train_iters\": 8, \"lr\": 2e-2,\n"
    "  \"lr_decay_style\": \"constant\", \"eval_interval\": 4, \"eval_iters\": 1},\n"
    "\"data\": {\"blend\": [0.5, \"a\", 0.375, \"more/b\", 0.125, \"c\"], \"split\": \"1\",\n"
    "  \"validation\": [\"c\", \"a\"]},\n"
    "\"checkpoint\": {\"save_interval\": 4},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

enum { STEPS = 8 };

static void write_text(const char *path, const char *of, int count)
{
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < count; i++)
        fputs(of, file);
    EXPECT(file && fclose(file) == 0, "cannot write %s", path);
}

static void make_datasets(void)
{
    write_text("a.txt", "aaaa", 300);
    write_text("b.txt", "0123456789", 120);
    write_text("c.txt", "xyxz", 300);
    EXPECT(system("mkdir -p more") == 0, "no folder");
    CHILD_GOOD("prepare", "a.txt", "--append-eod", "--out", "a");
    CHILD_GOOD("prepare", "b.txt", "--append-eod", "--out", "more/b");
    CHILD_GOOD("prepare", "c.txt", "--append-eod", "--out", "c");
}

/* A line of metrics.jsonl; NULL: none. The caller's. */
static cJSON *read_line(const char *run, int step, bool is_evaluation)
{
    cJSON *lines = child_read_metrics(run), *found = lines->child;
    while (found && !(number_of(found, "step") == step &&
                      has_value(found, "validation_loss") == is_evaluation))
        found = found->next;
    cJSON_DetachItemViaPointer(lines, found);
    EXPECT(found != NULL, "%s: no line of step %d", run, step);
    return found;
}

static double member(const cJSON *line, const char *object, const char *name)
{
    return number_of(cJSON_GetObjectItemCaseSensitive(line, object), name);
}

/* A step of 8 samples is a period of the blend; its loss is the mean of the datasets' own. */
static void check_shares(const char *run)
{
    static const char *const names[] = {"a", "b", "c"};
    static const double shares[] = {0.5, 0.375, 0.125};
    for (int step = 1; step <= STEPS; step++) {
        cJSON *line = read_line(run, step, false);
        double mean = 0;
        for (int i = 0; i < 3; i++) {
            EXPECT(member(line, "data_shares", names[i]) == shares[i], "%s: step %d: %s", run, step,
                   names[i]);
            mean += shares[i] * member(line, "data_losses", names[i]);
        }
        EXPECT(fabs(mean - number_of(line, "loss")) < 1e-5, "%s: step %d: %g and %g", run, step,
               mean, number_of(line, "loss"));
    }
}

static void expect_same(const char *run, const char *other, double bound)
{
    for (int step = 1; step <= STEPS; step++) {
        cJSON *a = read_line(run, step, false), *b = read_line(other, step, false);
        const double x = number_of(a, "loss"), y = number_of(b, "loss");
        EXPECT(fabs(x - y) <= bound * x, "%s and %s: step %d: %.9g and %.9g", run, other, step, x,
               y);
        const double of_a = member(a, "data_losses", "c"), of_b = member(b, "data_losses", "c");
        EXPECT(fabs(of_a - of_b) <= bound * of_a, "%s and %s: step %d: c has %.9g and %.9g", run,
               other, step, of_a, of_b);
    }
}

static void check_meshes(void)
{
    static const struct {
        const char *run, *mesh, *set;
    } rows[] = {{"dp2", "dp=2", "micro_batch_size=1"},
                {"dp2m", "dp=2", "micro_batch_size=4"},
                {"pp2", "pp=2", "micro_batch_size=2"},
                {"tp2", "tp=2", "micro_batch_size=8"},
                {"cp2", "cp=2", "micro_batch_size=4"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHILD_GOOD("train", "run.json", "--out", rows[i].run, "--mesh", rows[i].mesh, "--set",
                   rows[i].set);
        expect_same("one", rows[i].run, 1e-5);
        check_shares(rows[i].run);
    }
}

/* Stopped behind step 4, and gone on with on another mesh, from another folder. */
static void check_resume(void)
{
    CHILD_GOOD("train", "run.json", "--out", "again", "--set", "train_iters=4");
    EXPECT(chdir("more") == 0, "no folder");
    CHILD_GOOD("train", "--out", "../again", "--resume", "--set", "train_iters=8", "--mesh",
               "dp=2");
    EXPECT(chdir("..") == 0, "no folder");
    expect_same("one", "again", 1e-5);
    check_shares("again");
}

/* Labels that bear no loss count in no dataset's mean. */
static void check_masks(void)
{
    CHILD_GOOD("train", "run.json", "--out", "masks", "--set", "eod_mask_loss=true", "--set",
               "train_iters=2");
    CHILD_GOOD("train", "run.json", "--out", "masks2", "--set", "eod_mask_loss=true", "--set",
               "train_iters=2", "--mesh", "dp=2", "--set", "calculate_per_token_loss=true");
    for (int k = 0; k < 2; k++) {
        cJSON *line = read_line(k ? "masks2" : "masks", 1, false);
        const double loss = number_of(line, "loss"), c = member(line, "data_losses", "c");
        /* untrained, every label has about the same */
        EXPECT(number_of(line, "loss_tokens") <= 8 * 16 && fabs(c - loss) < 0.5, "%g and %g", c,
               loss);
    }
}

static void check_validation(void)
{
    cJSON *line = read_line("one", STEPS, true), *before = read_line("one", 4, true);
    const double a = member(line, "validation_losses", "a"),
                 c = member(line, "validation_losses", "c");
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(line, "validation_losses")) == 2, "sets");
    EXPECT(a > 0 && c > a && fabs(number_of(line, "validation_loss") - (a + c) / 2) < 1e-9,
           "a %g, c %g", a, c);
    EXPECT(member(before, "validation_losses", "c") > c, "c learns nothing");
    cJSON *eval = child_json(WORDS("eval", "one", "--json"));
    const cJSON *sets = cJSON_GetObjectItem(eval, "sets");
    EXPECT(cJSON_GetArraySize(sets) == 2 &&
               fabs(number_of(cJSON_GetArrayItem(sets, 0), "loss") - c) < 1e-9 &&
               fabs(number_of(cJSON_GetArrayItem(sets, 1), "loss") - a) < 1e-9,
           "eval's sets are not those of the run");
    eval = child_json(WORDS("eval", "one", "--data", "a", "--split", "all", "--json"));
    EXPECT(cJSON_GetObjectItem(eval, "sets") == NULL, "another dataset has sets");
}

/* Text of the dataset that a sample is said to be of. */
static void check_inspect(void)
{
    static const char *const first[] = {"a", "0", "x"};
    static const char *const names[] = {"a", "b", "c"};
    int counts[3] = {0};
    cJSON *json = child_json(WORDS("inspect", "one", "--sample", "3", "--json")), *sample;
    cJSON_ArrayForEach(sample, cJSON_GetObjectItem(json, "samples"))
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(sample, "dataset"));
        const cJSON *piece = cJSON_GetArrayItem(cJSON_GetObjectItem(sample, "documents"), 0);
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(piece, "text"));
        for (int i = 0; i < 3; i++)
            if (name && text && strcmp(name, names[i]) == 0) {
                counts[i]++;
                EXPECT(strstr(text, first[i]) != NULL, "%s: %s", name, text);
            }
    }
    EXPECT(counts[0] == 4 && counts[1] == 3 && counts[2] == 1, "%d, %d and %d samples", counts[0],
           counts[1], counts[2]);
}

static void check_mistakes(void)
{
    static const struct {
        const char *set, *line;
    } rows[] = {
        {"data.blend=[1,\"a\",2]", "data.blend: wants weights and datasets in turn"},
        {"data.blend=[\"a\",\"b\"]", "data.blend: \"a\" is not a weight: a number above 0, with"},
        {"data.blend=[0,\"a\",1,\"c\"]", "data.blend: \"0\" is not a weight"},
        {"data.blend=[1,\"a\",1,\"more/a\"]", "have one name, a, by which metrics tell them apart"},
        {"data.blend=[1,\"a\",1,\"d\"]", "/d.idx: No such file or directory; weft prepare makes"},
        {"data.blend=[1,\"a\",1,\"c.bin\"]", "/c.bin: a dataset is named without .bin; "},
        {"data.blend=[1e,\"a\",1,\"c\"]", "data.blend"},
        {"data.blends=[1,\"a\"]", ": unknown key; did you mean data.blend?"},
        {"data.data_path=a", "data.blend: stands in place of data.data_path: leave out one"},
        {"data.validation=[\"d\"]", "/d.idx: No such file or directory"},
        {"data.blend=[1,\"a\",1,\"half\"]", "half.bin has no "},
        {"data.validation=[\"short\"]", "data.validation: "},
        {"data.blend=[1,\"a\",1,\"other\"]", "other has another tokenizer than "},
        {"data.validation=[\"other\"]", "other has another tokenizer than "},
    };
    write_text("short.txt", "a", 3);
    write_text("half.bin", "a", 3);
    CHILD_GOOD("prepare", "short.txt", "--out", "short");
    CHILD_GOOD("prepare", "a.txt", "--out", "other");
    EXPECT(system("sed -i 's/\"eod\": 256/\"eod\": 255/' other.json") == 0, "other.json");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHILD_REFUSED(2, rows[i].line, "train", "run.json", "--out", "none", "--set", rows[i].set);
    /* Other weights are another run; the same in other numbers are not. */
    CHILD_REFUSED(2, "(other tokens, weights or another tokenizer): that would be another run",
                  "train", "--out", "one", "--resume", "--set", "train_iters=9", "--set",
                  "blend=[0.5,\"a\",0.25,\"more/b\",0.25,\"c\"]");
    CHILD_GOOD("train", "--out", "again", "--resume", "--set", "train_iters=9", "--set",
               "blend=[4e-05,\"a\",0.3E-4,\"more/b\",1.0e-5,\"c\"]");
    /* More digits than an order can have are rounded. */
    CHILD_GOOD("train", "run.json", "--out", "thirds", "--set", "train_iters=1", "--set",
               "blend=[0.3333333333333333,\"a\",0.6666666666666666,\"c\",1e-12,\"more/b\"]");
}

/* Before the run: each dataset's weight, samples and repeats, and the sets to validate on. */
static void check_dry(void)
{
    static const char *const lines[] = {
        "\n  data        ",         "/a, 0.5 of the blend: ", "/more/b, 0.375 of the blend: ",
        "/c, 0.125 of the blend: ", "\n  validation  ",       " to validate on, each taken "};
    static const char *const names[] = {"/a", "/b", "/c"};
    static const double weights[] = {0.5, 0.375, 0.125};
    child c;
    CHILD_RUN(&c, "train", "run.json", "--out", "dry", "--dry-run");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        EXPECT(c.out && strstr(c.out, lines[i]), "no \"%s\" in\n%s%s", lines[i], c.out, c.err);
    cJSON *json = child_json(WORDS("train", "run.json", "--out", "dry", "--dry-run", "--json"));
    const cJSON *sets = cJSON_GetObjectItem(json, "datasets"),
                *validation = cJSON_GetObjectItem(json, "validation");
    EXPECT(cJSON_GetArraySize(sets) == 3 && cJSON_GetArraySize(validation) == 2, "sets");
    for (int i = 0; i < 3; i++) {
        const cJSON *set = cJSON_GetArrayItem(sets, i);
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(set, "name"));
        const double taken = number_of(set, "samples") * number_of(set, "repeats");
        EXPECT(name && strcmp(name + strlen(name) - 2, names[i]) == 0, "%s", name ? name : "-");
        EXPECT(number_of(set, "weight") == weights[i], "%s: %g", names[i],
               number_of(set, "weight"));
        EXPECT_NEAR(taken, 8 * STEPS * weights[i], 1e-9);
    }
    const cJSON *of_c = cJSON_GetArrayItem(validation, 0);
    EXPECT_NEAR(number_of(of_c, "samples") * number_of(of_c, "repeats"), 8, 1e-9);
}

static void check_waste(void)
{
    child_says(WORDS("train", "run.json", "--out", "waste", "--set", "split=9,1", "--set",
                     "train_iters=1"),
               0, NULL,
               WORDS(" warn data.split 9,1: nothing trains or evaluates on its second part"));
}

int main(void)
{
    child_begin();
    EXPECT(child_write("run.json", config), "no config");
    make_datasets();
    CHILD_GOOD("train", "run.json", "--out", "one");
    check_shares("one");
    check_validation();
    check_inspect();
    check_meshes();
    check_resume();
    check_masks();
    check_mistakes();
    check_waste();
    check_dry();
    return child_finish();
}
