/* weft bench all-to-all on 4 ranks, two taken for a node: what it writes is whole and fits
 * together. That the data of every form are right is the bench's own check, without which it fails.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "comm/comm.h"
#include "launcher/verbs/measure/measure.h"
#include "schedule/exchange/exchange.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

enum { ROUNDS = 3 };

static double median_of(const cJSON *object, const char *key)
{
    return number_of(cJSON_GetObjectItemCaseSensitive(object, key), "median");
}

/* Of the rounds as they are listed. */
static double middle_of(const cJSON *rounds)
{
    double v[ROUNDS], least = INFINITY, most = -INFINITY, sum = 0;
    EXPECT(cJSON_GetArraySize(rounds) == ROUNDS, "%d rounds", cJSON_GetArraySize(rounds));
    for (int i = 0; i < ROUNDS && i < cJSON_GetArraySize(rounds); i++) {
        v[i] = cJSON_GetArrayItem(rounds, i)->valuedouble;
        least = fmin(least, v[i]);
        most = fmax(most, v[i]);
        sum += v[i];
    }
    return sum - least - most;
}

/* How often the form in so many chunks is among the results; a chunked one: 0 for any number. */
static int count(const cJSON *results, const char *form, int chunks, double *out_us)
{
    int num = 0;
    const cJSON *way;
    cJSON_ArrayForEach(way, results)
    {
        if (strcmp(text_of(way, "form"), form) != 0 ||
            (chunks > 0 && number_of(way, "chunks") != chunks))
            continue;
        num++;
        *out_us = median_of(way, "us");
    }
    return num;
}

static void check_way(const cJSON *way)
{
    const char *form = text_of(way, "form");
    double us = median_of(way, "us");
    double middle = middle_of(cJSON_GetObjectItemCaseSensitive(way, "rounds_us"));
    EXPECT(us > 0, "%s: %g us", form, us);
    EXPECT_NEAR(middle, us, 1e-6 * fabs(us));
    if (strcmp(form, "bare") == 0) {
        EXPECT_NEAR(median_of(way, "times_bare"), 1, 1e-12);
        return;
    }
    EXPECT(number_of(way, "predicted_us") > 0, "%s", form);
    EXPECT_NEAR(number_of(way, "error"), number_of(way, "predicted_us") / us - 1, 1e-9);
    EXPECT(median_of(way, "times_o1_paper") > 0, "%s", form);
    if (strcmp(form, "baseline") == 0)
        EXPECT_NEAR(median_of(way, "times_baseline"), 1, 1e-12);
}

static void check_size(const cJSON *size, double bytes, bool uneven)
{
    const cJSON *results = cJSON_GetObjectItemCaseSensitive(size, "results");
    const cJSON *choice = cJSON_GetObjectItemCaseSensitive(size, "choice");
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(size, "best");
    const cJSON *way;
    double us = 0, chosen_us = 0, best_us = 0, unused;
    EXPECT(number_of(size, "bytes") == bytes, "%g", number_of(size, "bytes"));
    /* Two outer ranks get a third and two thirds: a half is what travels in the even case. */
    EXPECT_NEAR(number_of(size, "model_bytes"), uneven ? bytes * 4 / 3 : bytes, 4);
    EXPECT(count(results, "bare", 0, &us) == 1, "the bare all-to-all");
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++) {
        const char *text = weft_exchange_text(form);
        EXPECT(count(results, text, 1, &unused) == 1, "%s in one chunk", text);
        EXPECT(form < WEFT_EXCHANGE_O2 || count(results, text, 3, &unused) == 1, "%s in 3", text);
    }
    EXPECT(count(results, text_of(choice, "form"), (int)number_of(choice, "chunks"), &chosen_us) ==
               1,
           "the chosen one");
    EXPECT(count(results, text_of(best, "form"), (int)number_of(best, "chunks"), &best_us) == 1,
           "the best one");
    EXPECT_NEAR(number_of(choice, "behind_best"), chosen_us / best_us - 1, 1e-9);
    cJSON_ArrayForEach(way, results)
    {
        check_way(way);
        EXPECT(strcmp(text_of(way, "form"), "bare") == 0 || median_of(way, "us") >= best_us,
               "%s is faster than the best", text_of(way, "form"));
    }
}

static void check_json(const char *path, bool uneven)
{
    char *text = child_read(path);
    cJSON *json = text ? cJSON_ParseWithOpts(text, NULL, 1) : NULL;
    EXPECT(json, "%s does not parse", path);
    const cJSON *sizes = cJSON_GetObjectItemCaseSensitive(json, "sizes");
    const cJSON *cluster = cJSON_GetObjectItemCaseSensitive(json, "cluster");
    EXPECT(number_of(json, "nodes") == 2 && number_of(json, "ranks_per_node") == 2, "groups");
    EXPECT(number_of(cluster, "num_nodes") == 2, "the cluster's nodes");
    EXPECT(cJSON_GetArraySize(sizes) == 2, "%d sizes", cJSON_GetArraySize(sizes));
    check_size(cJSON_GetArrayItem(sizes, 0), 48 << 10, uneven);
    check_size(cJSON_GetArrayItem(sizes, 1), 131072 + 7, uneven);
    cJSON_Delete(json);
}

int main(int argc, char **argv)
{
    int rank = 0, size, local_rank, local_size;
    char json[64], rounds[16];
    bool uneven = argc > 1 && strcmp(argv[1], "uneven") == 0;
    snprintf(json, sizeof json, "test_bench_%ld.json", (long)getpid());
    snprintf(rounds, sizeof rounds, "%d", ROUNDS);
    char *args[] = {"all-to-all", "--inside", "2",        "--sizes", "48k,131079",
                    "--chunks",   "1,3",      "--rounds", rounds,    "--json",
                    "--seconds",  "1",        "--uneven", NULL};
    int num = (int)(sizeof args / sizeof *args) - (uneven ? 1 : 2);
    weft_comm_launched(&rank, &size, &local_rank, &local_size);
    EXPECT(freopen(json, "w", stdout) != NULL, "%s", json);
    int code = weft_bench_all_to_all(num, args, NULL);
    EXPECT(code == 0, "exit code %d", code);
    fflush(stdout);
    if (rank == 0 && code == 0)
        check_json(json, uneven);
    unlink(json);
    return expect_finish();
}
