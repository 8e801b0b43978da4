/* weft bench experts: every form is trained, planned and compared; what has no room is told; wrong
 * words get one line. */
#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

enum { MAX_ARGS = 24, ROUNDS = 2 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"ffn_hidden_size\": 64,\n"
    "  \"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 50, \"num_experts\": 8,\n"
    "  \"moe_router_topk\": 2},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 4, \"train_iters\": 8},\n"
    "\"data\": {\"mock_data\": true}, \"offload\": {\"cached\": 0},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}\n";

static const char cluster[] =
    "{\"name\": \"c\", \"num_nodes\": 1, \"ranks_per_node\": 4, \"device\": {\"name\": \"d\", "
    "\"peak\": {\"fp32\": 1e12}, \"memory_bandwidth\": 1e11, \"launch_us\": 1}, "
    "\"host\": {\"link_bandwidth\": 1e10, \"memory_bandwidth\": 1e10}, "
    "\"inside\": {\"bandwidth\": 1e10, \"latency_us\": 1}}";

static child bench(const char *const more[])
{
    const char *args[MAX_ARGS] = {"bench", "experts", "config.json", "--rounds", "2"};
    int count = 5;
    child c;
    for (int i = 0; more[i]; i++)
        args[count++] = more[i];
    child_run(&c, args, NULL);
    return c;
}

static cJSON *measure(const char *const more[])
{
    child c = bench(more);
    cJSON *json = child_parse(c.out);
    EXPECT(c.exit_code == 0 && json, "exit %d: %s%s", c.exit_code, c.err, c.out);
    EXPECT(strstr(c.err, "weft bench: round 1 of 2: ") &&
               strstr(c.err, "weft bench: round 2 of 2: ") && strstr(c.err, " ms a step\n"),
           "no line a round: %s", c.err);
    return json;
}

static const cJSON *find(const cJSON *json, const char *form)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "forms"))
    {
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "form")), form) == 0)
            return row;
    }
    EXPECT(false, "%s is missing", form);
    return NULL;
}

static void check_row(const cJSON *json, const char *form, bool is_planned)
{
    const cJSON *row = find(json, form), *busy = cJSON_GetObjectItemCaseSensitive(row, "busy_ms");
    const bool away = strcmp(form, "resident") != 0;
    const double hidden = away ? number_of(row, "optimizer_hidden_share") : NAN;
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(row, "step_ms")) == ROUNDS,
           "%s: rounds", form);
    EXPECT(number_of(row, "low_ms") > 0 &&
               number_of(row, "low_ms") <= number_of(row, "median_ms") &&
               number_of(row, "median_ms") <= number_of(row, "high_ms"),
           "%s: %g ms", form, number_of(row, "median_ms"));
    EXPECT(number_of(row, "of_resident") > 0, "%s: of resident", form);
    EXPECT((number_of(row, "uploaded_bytes") > 0) == away, "%s: uploads", form);
    EXPECT(away ? hidden >= 0 && hidden <= 1 : !has_value(row, "optimizer_hidden_share"),
           "%s: hidden %g", form, hidden);
    EXPECT(away ? number_of(row, "wait_ms") >= 0 : !has_value(row, "wait_ms"), "%s: waits", form);
    EXPECT(is_planned ? number_of(row, "planned_ms") > 0 : !has_value(row, "planned_ms"),
           "%s: planned", form);
    if (is_planned && away)
        EXPECT(number_of(busy, "up") > 0 && number_of(busy, "host") > 0 &&
                   number_of(row, "over_busiest") > 0,
               "%s: no lanes", form);
}

static void check_forms(void)
{
    static const char *const all[] = {"resident",     "expert",       "demand",     "layer",
                                      "expert-after", "demand-after", "layer-after"};
    cJSON *json = measure(WORDS("--json", "--cluster", "cluster.json"));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_row(json, all[i], true);
    json = measure(WORDS("--json", "--degree", "file", "--forms", "expert-after,resident", "--mesh",
                         "dp=2,ep=2,binding=dp"));
    check_row(json, "resident", false);
    check_row(json, "expert-after", false);
    const cJSON *row = find(json, "expert-after");
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "forms")) == 2,
           "more forms than asked for");
    EXPECT(number_of(row, "read_bytes") > 0 && number_of(row, "written_bytes") > 0, "no file");
}

/* The device has room for slots alone. */
static void check_room(void)
{
    static const char limit[] = "device.memory_limit=900000";
    cJSON *json = measure(WORDS("--json", "--forms", "resident,expert", "--set", limit));
    EXPECT(cJSON_IsFalse(cJSON_GetObjectItem(find(json, "resident"), "fits")) &&
               cJSON_IsTrue(cJSON_GetObjectItem(find(json, "expert"), "fits")) &&
               number_of(find(json, "expert"), "median_ms") > 0,
           "what fits");
    child c = bench(WORDS("--forms", "resident,expert", "--set", limit));
    EXPECT(c.exit_code == 0 && strstr(c.out, "optimizer hidden") && strstr(c.out, "has no room"),
           "exit %d: %s%s", c.exit_code, c.err, c.out);
}

static void refuse(const char *const more[], const char *wanted)
{
    child c = bench(more);
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, wanted),
           "exit %d, not \"%s\": %s", c.exit_code, wanted, c.err);
}

static void check_refused(void)
{
    refuse(WORDS("--forms", "exper"), "did you mean expert?");
    refuse(WORDS("--degree", "disk"), "--degree disk");
    refuse(WORDS("--steps", "0"), "--steps 0");
    refuse(WORDS("--cluster", "none.json"), "none.json");
    refuse(WORDS("--set", "model.num_experts=0", "--set", "model.moe_router_topk=1"),
           "model.num_experts is 0");
    refuse(WORDS("--set", "offload.kept=2"), "offload.kept");
    refuse(WORDS("--set", "parallel.moe_num_partitions=2"), "moe_num_partitions");
}

int main(void)
{
    child_begin();
    EXPECT(child_write("config.json", config) && child_write("cluster.json", cluster), "files");
    check_forms();
    check_room();
    check_refused();
    return child_finish();
}
