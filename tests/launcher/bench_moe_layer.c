/* weft bench moe-layer on 4 ranks: every form is measured, predicted and compared, and the memory
 * falls by what the strategies promise. ARGS memory: the latter. */
#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "launcher/verbs/measure/measure.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"
#include "tests/launcher/svg.h"

static const cJSON *find_form(const cJSON *cases, const char *form)
{
    const cJSON *one;
    cJSON_ArrayForEach(one, cases)
    {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "form"));
        if (text && strcmp(text, form) == 0)
            return one;
    }
    return NULL;
}

static double median_of(const cJSON *one)
{
    const cJSON *spread = cJSON_GetObjectItemCaseSensitive(one, "us");
    EXPECT(cJSON_GetArraySize(spread) == 3, "%d numbers", cJSON_GetArraySize(spread));
    double v[3] = {0};
    for (int i = 0; i < 3 && i < cJSON_GetArraySize(spread); i++)
        v[i] = cJSON_GetArrayItem(spread, i)->valuedouble;
    EXPECT(0 < v[0] && v[0] <= v[1] && v[1] <= v[2], "%g %g %g", v[0], v[1], v[2]);
    return v[1];
}

static void check_times(const cJSON *json)
{
    static const char *const forms[] = {"synchronous", "by peers", "n 1, none", "n 1, s3",
                                        "n 2, none",   "n 2, s3",  "n 4, none", "n 4, s3"};
    const cJSON *points = cJSON_GetObjectItemCaseSensitive(json, "points");
    EXPECT(cJSON_GetArraySize(points) == 1, "%d points", cJSON_GetArraySize(points));
    const cJSON *point = cJSON_GetArrayItem(points, 0);
    const cJSON *cases = cJSON_GetObjectItemCaseSensitive(point, "cases");
    EXPECT(cJSON_GetArraySize(cases) == 9, "%d cases", cJSON_GetArraySize(cases));
    double best = INFINITY;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const cJSON *one = find_form(cases, forms[i]);
        EXPECT(one != NULL, "%s is missing", forms[i]);
        if (!one)
            continue;
        double us = median_of(one);
        if (strncmp(forms[i], "n ", 2) == 0)
            best = fmin(best, us);
        if (strcmp(forms[i], "by peers") != 0)
            EXPECT(number_of(one, "predicted_us") > 0, "%s", forms[i]);
    }
    EXPECT_NEAR(number_of(point, "best_us"), best, 1e-9);
    EXPECT(number_of(point, "model_choice_us") >= best, "the model's choice is measured");
    EXPECT(number_of(point, "profile_choice_us") >= best, "the profile's choice is measured");
    EXPECT(number_of(point, "profile_trials") >= 2, "%g trials",
           number_of(point, "profile_trials"));
}

/* With two experts a rank rows are put in order, so that more is saved than the equations count. */
static void check_memory(const cJSON *json)
{
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(json, "memory"), *row;
    int count = 0;
    cJSON_ArrayForEach(row, rows)
    {
        double fall = number_of(row, "synchronous_bytes") - number_of(row, "bytes");
        EXPECT(fall >= 0.98 * number_of(row, "allowed_bytes"), "n %g: %g of %g bytes",
               number_of(row, "num_partitions"), fall, number_of(row, "allowed_bytes"));
        count++;
    }
    EXPECT(count == 3 * 4 * 2, "%d rows", count);
}

static int run_bench(bool memory)
{
    char *timed[] = {"moe-layer", "--tokens",     "64",      "--hidden",  "32",      "--ffn",
                     "64",        "--partitions", "1,2,4",   "--reuse",   "none,s3", "--rounds",
                     "2",         "--json",       "--trace", "trace.svg", NULL};
    char *measured[] = {"moe-layer",    "--memory", "--grid", "256:64:256,128:32:64",
                        "--partitions", "2,4,8",    "--json", NULL};
    return memory ? weft_bench_moe_layer(sizeof measured / sizeof *measured - 1, measured, NULL)
                  : weft_bench_moe_layer(sizeof timed / sizeof *timed - 1, timed, NULL);
}

int main(int argc, char **argv)
{
    bool memory = argc > 1 && strcmp(argv[1], "memory") == 0;
    int rank = 0, size, local_rank, local_size;
    weft_comm_launched(&rank, &size, &local_rank, &local_size);
    child_begin();
    EXPECT(freopen("out.json", "w", stdout) != NULL, "out.json");
    EXPECT(run_bench(memory) == 0, "exit code");
    fflush(stdout);
    if (rank == 0) {
        char *text = child_read("out.json");
        cJSON *json = child_parse(text);
        EXPECT(json != NULL, "no JSON");
        if (json && memory)
            check_memory(json);
        else if (json)
            check_times(json);
        char *trace = memory ? NULL : child_read("trace.svg");
        EXPECT(memory || (trace && !svg_unexplained(trace)), "no legend of the timeline");
    }
    return child_finish();
}
