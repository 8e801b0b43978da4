/* weft compare: two runs of one config but for a key; folders whose metrics are written by hand;
 * and what is no run. */
#include <sys/stat.h>

#include "tests/json.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 1, "
    "\"seq_length\": 16, \"vocab_size\": 23},\n"
    "\"train\": {\"global_batch_size\": 2, \"train_iters\": 9, \"lr\": 1e-2, \"eval_interval\": 3, "
    "\"eval_iters\": 1},\n"
    "\"data\": {\"mock_data\": true, \"split\": \"9,1,0\"}, \"log\": {\"trace_step\": 0},\n"
    "\"checkpoint\": {\"no_save\": true}, \"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}\n";

static void train(const char *run, const char *set)
{
    CHILD_GOOD("train", "c.json", "--out", run, "--set", set);
}

static cJSON *compare(const char *a, const char *b)
{
    return child_json(WORDS("compare", a, b, "--json"));
}

/* Another learning rate: the first step's loss is of the same weights, and none behind it. */
static void check_trained(void)
{
    cJSON *json = compare("a", "b");
    const cJSON *settings = cJSON_GetObjectItem(json, "settings");
    const cJSON *loss = cJSON_GetObjectItem(json, "loss"), *row = NULL;
    EXPECT(cJSON_GetArraySize(settings) == 1 &&
               strcmp(text_of(settings->child, "key"), "train.lr") == 0 &&
               number_of(settings->child, "a") == 1e-2 && number_of(settings->child, "b") == 2e-2,
           "settings");
    EXPECT(number_of(loss, "common_steps") == 9 && number_of(loss, "first_difference") == 2,
           "losses");
    int count = 0, steps[8] = {0};
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(loss, "rows"))
    {
        steps[count++ % 8] = (int)number_of(row, "step");
        EXPECT((number_of(row, "a") == number_of(row, "b")) == (count == 1), "row %d", count);
    }
    EXPECT(count >= 6 && count <= 7 && steps[0] == 1 && steps[1] == 2 && steps[count - 1] == 9,
           "%d rows", count);
    EXPECT(number_of(cJSON_GetObjectItem(json, "validation_loss"), "common_steps") == 3, "3, 6, 9");
    const cJSON *a = cJSON_GetObjectItem(json, "a");
    EXPECT(strcmp(text_of(a, "run"), "a") == 0 &&
               strcmp(text_of(a, "mesh"), "tp 1, pp 1, dp 1") == 0 && text_of(a, "weft")[0] &&
               number_of(a, "tokens_per_s_median") > 0,
           "a");
    json = compare("a", "a");
    loss = cJSON_GetObjectItem(json, "loss");
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "settings")) == 0 &&
               !has_value(loss, "first_difference"),
           "a run and itself");
}

/* Medians, steps that one lacks, a loss that is not finite, and a line that is being written. */
static void check_written(void)
{
    EXPECT(mkdir("w1", 0777) == 0 && mkdir("w2", 0777) == 0 &&
               child_write("w1/config.json", config) && child_write("w2/config.json", config) &&
               child_write("w1/metrics.jsonl",
                           "{\"step\": 3, \"loss\": 2.5, \"tokens_per_s\": 10}\n"
                           "{\"step\": 4, \"loss\": null, \"tokens_per_s\": 40}\n"
                           "{\"step\": 5, \"loss\": 2.0, \"tokens_per_s\": 20}\n"
                           "{\"step\": 6, \"loss\": 1.0, \"tokens_per_s\": 30}\n") &&
               child_write("w2/metrics.jsonl", "{\"step\": 4, \"loss\": null}\n"
                                               "{\"step\": 5, \"loss\": 2.0}\n"
                                               "{\"step\": 6, \"loss\": 1.5}\n"
                                               "{\"step\": 7, \"lo"),
           "w1, w2");
    cJSON *json = compare("w1", "w2");
    const cJSON *loss = cJSON_GetObjectItem(json, "loss");
    EXPECT(number_of(loss, "common_steps") == 3 && number_of(loss, "first_difference") == 6,
           "steps 4 to 6");
    EXPECT(number_of(cJSON_GetObjectItem(json, "a"), "tokens_per_s_median") == 25 &&
               !has_value(cJSON_GetObjectItem(json, "b"), "tokens_per_s_median"),
           "medians");
}

static void check_text(void)
{
    child_says(WORDS("compare", "a", "b"), 0,
               WORDS("A  a: weft ", "; steps 1 to 9\n", "\n  train.lr  ",
                     "\nloss at 9 steps that both have: first differs at step 2\n",
                     "\nvalidation loss at 3 steps that both have: ", "\n  tokens/s  "),
               NULL);
}

static void expect_refused(const char *a, const char *b, int code, const char *part)
{
    CHILD_REFUSED(code, part, "compare", a, b);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    train("a", "lr=1e-2");
    train("b", "lr=2e-2");
    check_trained();
    check_written();
    check_text();
    expect_refused("a", "none", 6, "none: not a run's folder: none/metrics.jsonl: No such file");
    expect_refused("c.json", "a", 6, "c.json: not a run's folder");
    expect_refused("a", NULL, 2, "takes RUN RUN, and one alone is given");
    EXPECT(remove("w2/config.json") == 0, "w2");
    expect_refused("a", "w2", 2, "w2/config.json: ");
    return child_finish();
}
