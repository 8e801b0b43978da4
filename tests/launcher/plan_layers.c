/* weft plan all-to-all and moe-layer: their figures against each other and against the equations,
 * the same from the program that links the pure set alone, and what they refuse. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* Both programs must say the same. The caller deletes it. */
static cJSON *ask(const char *alone, int code, const char *const *args)
{
    child whole, pure;
    child_run(&whole, args, NULL);
    child_program = alone;
    child_run(&pure, args, NULL);
    child_program = NULL;
    EXPECT(whole.exit_code == code && pure.exit_code == code, "exit %d and %d: %s", whole.exit_code,
           pure.exit_code, whole.err);
    EXPECT(strcmp(whole.out, pure.out) == 0, "weft-plan says something else than weft plan");
    cJSON *json = child_parse(whole.out);
    EXPECT(json, "no JSON: %s", whole.out);
    return json ? json : cJSON_CreateObject();
}

/* --- all-to-all ------------------------------------------------------------------------------ */

static const char paper[] =
    "{\"name\": \"two nodes\", \"num_nodes\": 2, \"ranks_per_node\": 8, "
    "\"device\": {\"memory_bandwidth\": 2e12, \"efficiency\": {\"memory\": [[8e6, 0.5]]}}, "
    "\"inside\": {\"bandwidth\": 2e11, \"efficiency\": [[1e6, 0.5], [8e6, 0.8]]}, "
    "\"between\": {\"cards\": 8, \"bandwidth\": 2.5e10, "
    "\"efficiency\": [[1e5, 0.4], [1e6, 0.5], [4e6, 0.8]]}}";

/* By hand: 4 MB at 20 GB/s; 1 MB at 16.7 GB/s, 6 MB at 160 GB/s and no copy; with one, of one
 * chunk: two would have 1 MB, below I_minimal. */
static void check_paper(const char *alone)
{
    cJSON *json =
        ask(alone, 0,
            WORDS("plan", "all-to-all", "--bytes", "8000000", "--tp", "4", "--ep", "2", "--cluster",
                  "paper.json", "--paper", "--minimal", "2000000", "--json"));
    EXPECT_NEAR(number_of(json, "baseline_s"), 200e-6, 1e-12);
    EXPECT_NEAR(number_of(json, "o1_s"), 97.5e-6, 1e-12);
    EXPECT_NEAR(number_of(json, "o2_s"), 105.5e-6, 1e-12);
    EXPECT_NEAR(number_of(json, "o3_s"), 105.5e-6, 1e-12);
    EXPECT(number_of(json, "o2_chunks") == 1 && number_of(json, "o3_chunks") == 1, "chunks");
    EXPECT(strcmp(text_of(json, "choice"), "o1") == 0, "chose %s", text_of(json, "choice"));
    EXPECT_NEAR(number_of(cJSON_GetObjectItem(json, "paper"), "r1"), 2.0 / 3, 1e-9);
    json = ask(alone, 0,
               WORDS("plan", "all-to-all", "--bytes", "64k", "--tp", "4", "--ep", "2", "--cluster",
                     "paper.json", "--paper", "--json"));
    EXPECT(cJSON_IsNull(cJSON_GetObjectItem(json, "o2_s")) && number_of(json, "o2_chunks") == 0,
           "a chunk below I_minimal");
    EXPECT(strcmp(text_of(json, "choice"), "o1") == 0, "chose %s", text_of(json, "choice"));
}

static void check_forms(const char *alone)
{
    static const char *const forms[] = {"baseline", "o1", "o2", "o3", "direct"};
    static const char *const sizes[] = {"64k", "4MiB", "256MiB"};
    char key[32];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cJSON *json = ask(alone, 0,
                          WORDS("plan", "all-to-all", "--bytes", sizes[i], "--tp", "8", "--ep", "4",
                                "--cluster", "cluster.json", "--json"));
        double least = INFINITY, chosen = NAN;
        for (size_t f = 0; f < 5; f++) {
            snprintf(key, sizeof key, "%s_s", forms[f]);
            const double s = number_of(json, key);
            EXPECT(s > 0, "%s takes %g s", forms[f], s);
            least = fmin(least, s);
            if (strcmp(text_of(json, "choice"), forms[f]) == 0)
                chosen = s;
        }
        EXPECT(chosen == least, "%s: chose %s", sizes[i], text_of(json, "choice"));
        EXPECT(number_of(json, "o3_s") <= number_of(json, "o2_s") &&
                   number_of(json, "direct_s") <= number_of(json, "o3_s"),
               "%s: a form that does less takes longer", sizes[i]);
        EXPECT(number_of(json, "o2_chunks") >= 1 && number_of(json, "o3_chunks") >= 1, "chunks");
    }
    child_says(WORDS("plan", "all-to-all", "--bytes", "64MiB", "--tp", "8", "--ep", "2",
                     "--cluster", "cluster.json"),
               0, WORDS("choice: ", "  baseline  "), NULL);
}

static void refuse_exchange(const char *bytes, const char *tp, const char *ep, const char *cluster,
                            const char *part)
{
    CHILD_REFUSED(2, part, "plan", "all-to-all", "--bytes", bytes, "--tp", tp, "--ep", ep,
                  "--cluster", cluster);
}

static void check_exchange_refusals(void)
{
    refuse_exchange("0", "8", "2", "cluster.json", "--bytes 0: 0 is out of range: 1 to 16GiB");
    refuse_exchange("-4", "8", "2", "cluster.json", "--bytes -4: -4 is out of range: 1 to 16GiB");
    refuse_exchange("4XB", "8", "2", "cluster.json",
                    "--bytes 4XB: expected an integer of 1 to 16GiB, also with k, M, ");
    refuse_exchange("4MiB", "0", "2", "cluster.json", "--tp 0: 0 is out of range: 1 to 1000000");
    refuse_exchange("4MiB", "16", "2", "cluster.json", "--tp 16: it must stay inside a node");
    refuse_exchange("4MiB", "3", "3", "cluster.json",
                    "nodes of 8 devices cut tensor-parallel groups");
    refuse_exchange("4MiB", "8", "4096", "cluster.json", "has 1024 devices");
    refuse_exchange("4MiB", "8", "2", "none.json", "--cluster none.json: No such file");
    refuse_exchange("4MiB", "8", "2", "empty.json", "device.memory_bandwidth is not known");
    refuse_exchange("4MiB", "4", "2", "paper.json", "latency_us is not known");
    CHILD_REFUSED(2, "--bytes I is missing", "plan", "all-to-all", "--tp", "8", "--ep", "2",
                  "--cluster", "cluster.json");
    CHILD_REFUSED(2, "between.bandwidth", "plan", "all-to-all", "--bytes", "4MiB", "--tp", "8",
                  "--ep", "2", "--cluster", "empty.json", "--paper");
}

/* --- moe-layer ------------------------------------------------------------------------------- */

static const cJSON *candidate(const cJSON *json, int n, const char *reuse)
{
    const cJSON *c = cJSON_GetObjectItem(json, "candidates");
    for (c = c ? c->child : NULL; c; c = c->next)
        if (number_of(c, "n") == n && strcmp(text_of(c, "reuse"), reuse) == 0)
            return c;
    EXPECT(false, "no candidate n %d, %s", n, reuse);
    return json;
}

static cJSON *layer(const char *alone, int code, const char *tokens, const char *ep,
                    const char *cluster)
{
    return ask(alone, code,
               WORDS("plan", "moe-layer", "--tokens", tokens, "--hidden", "4096", "--ffn", "14336",
                     "--experts", "8", "--topk", "2", "--ep", ep, "--precision", "bf16", "--swiglu",
                     "--cluster", cluster, "--json"));
}

/* The choice is the fastest that fits, but for ties of 1 %; reuse takes less of the device. */
static void check_layer(const char *alone)
{
    cJSON *json = layer(alone, 0, "8192", "8", "cluster.json");
    const cJSON *choice = cJSON_GetObjectItem(json, "choice");
    const cJSON *chosen = candidate(json, (int)number_of(choice, "n"), text_of(choice, "reuse"));
    int count = 0;
    for (const cJSON *c = cJSON_GetObjectItem(json, "candidates")->child; c; c = c->next) {
        EXPECT(number_of(c, "time_s") > 0 && number_of(c, "memory_bytes") > 0, "n %g",
               number_of(c, "n"));
        EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(c, "feasible")), "n %g: %s", number_of(c, "n"),
               text_of(c, "reason"));
        EXPECT(number_of(chosen, "time_s") <= 1.01 * number_of(c, "time_s"), "n %g, %s is faster",
               number_of(c, "n"), text_of(c, "reuse"));
        count++;
    }
    EXPECT(count == 6 * 5, "%d candidates", count);
    const double whole = number_of(candidate(json, 4, "none"), "memory_bytes");
    for (int s = 1; s <= 4; s++) {
        const char name[] = {'s', (char)('0' + s), '\0'};
        const cJSON *c = candidate(json, 4, name);
        EXPECT(number_of(c, "memory_bytes") < whole, "%s saves nothing", name);
        EXPECT((number_of(c, "host_memory_bytes") >
                number_of(candidate(json, 4, "s4"), "host_memory_bytes")) == (s < 4),
               "%s: %g bytes on the host", name, number_of(c, "host_memory_bytes"));
    }
    /* 3 matrices of 4096 x 14336 and the router's 8 rows, 2 + 4 + 2 + 8 bytes each */
    EXPECT_NEAR(number_of(json, "parameter_bytes"), 16.0 * (3 * 4096.0 * 14336 + 8 * 4096.0), 1e6);
    child_says(WORDS("plan", "moe-layer", "--tokens", "8192", "--hidden", "4096", "--ffn", "14336",
                     "--experts", "8", "--topk", "2", "--ep", "8", "--cluster", "cluster.json"),
               0, WORDS("choice: n ", "\n  ->  "), NULL);
}

/* On a device that not all fit on, those that do not say why; the fastest of the others is chosen.
 * On one that none fits on: exit 3 and the smallest. */
static void check_memory(const char *alone, const char *sheet)
{
    cJSON *json = layer(alone, 0, "8192", "8", "cluster.json");
    const double most = number_of(candidate(json, 1, "none"), "memory_bytes"),
                 least = number_of(candidate(json, 8, "s4"), "memory_bytes");
    for (int none_fits = 0; none_fits < 2; none_fits++) {
        cJSON *small = child_parse(strchr(sheet, '{'));
        cJSON *device = cJSON_GetObjectItem(small, "device");
        cJSON_DeleteItemFromObject(device, "reserved_bytes");
        cJSON_DeleteItemFromObject(device, "memory_bytes");
        cJSON_AddNumberToObject(device, "memory_bytes",
                                floor(none_fits ? 0.9 * least : (most + least) / 2));
        cJSON_DeleteItemFromObject(cJSON_GetObjectItem(small, "sources"), "device.reserved_bytes");
        char *text = cJSON_Print(small);
        EXPECT(child_write("small.json", text), "cannot write");
        free(text);
        json = layer(alone, none_fits ? 3 : 0, "8192", "8", "small.json");
        const cJSON *whole = candidate(json, 1, "none"), *cut = candidate(json, 8, "s4");
        EXPECT(!cJSON_IsTrue(cJSON_GetObjectItem(whole, "feasible")) &&
                   strstr(text_of(whole, "reason"), " more than the "),
               "n 1 fits");
        EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(cut, "feasible")) == !none_fits, "n 8, s4");
        EXPECT(cJSON_IsNull(cJSON_GetObjectItem(json, "choice")) == none_fits, "a choice");
    }
    CHILD_REFUSED(3, "no candidate fits; the smallest, n ", "plan", "moe-layer", "--tokens", "8192",
                  "--hidden", "4096", "--ffn", "14336", "--experts", "8", "--topk", "2", "--ep",
                  "8", "--precision", "bf16", "--swiglu", "--cluster", "small.json");
}

static double fastest(const cJSON *json, const char *reuse)
{
    double best = INFINITY;
    const cJSON *c = cJSON_GetObjectItem(json, "candidates");
    for (c = c ? c->child : NULL; c; c = c->next)
        if (strcmp(text_of(c, "reuse"), reuse) == 0)
            best = fmin(best, number_of(c, "time_s"));
    return best;
}

/* Recomputation takes FLOPs by the tokens' width, copies do not: of narrow tokens s4 is faster than
 * s2, of wide ones or slow products s2 is. */
static void check_strategies(const char *alone)
{
    static const struct {
        const char *hidden, *ffn, *precision;
        bool copies_win;
    } layers[] = {{"2048", "8192", "fp16", false},
                  {"16384", "4096", "fp16", true},
                  {"4096", "16384", "fp32", true}};
    char path[4096];
    snprintf(path, sizeof path, "%s/examples/clusters/a100-40gb.json", getenv("WEFT_SOURCE_DIR"));
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        cJSON *json =
            ask(alone, 0,
                WORDS("plan", "moe-layer", "--tokens", "4096", "--hidden", layers[i].hidden,
                      "--ffn", layers[i].ffn, "--experts", "8", "--topk", "1", "--ep", "8",
                      "--precision", layers[i].precision, "--cluster", path, "--json"));
        EXPECT((fastest(json, "s2") < fastest(json, "s4")) == layers[i].copies_win &&
                   (fastest(json, "s1") < fastest(json, "s3")) == layers[i].copies_win,
               "%s x %s, %s: %g, %g, %g, %g s", layers[i].hidden, layers[i].ffn,
               layers[i].precision, fastest(json, "s1"), fastest(json, "s2"), fastest(json, "s3"),
               fastest(json, "s4"));
    }
}

static void check_alone_and_few(const char *alone)
{
    cJSON *json = layer(alone, 0, "8192", "1", "cluster.json");
    EXPECT(number_of(cJSON_GetObjectItem(json, "choice"), "n") == 1, "cut where nothing travels");
    EXPECT(strstr(text_of(candidate(json, 2, "none"), "reason"), "no rows travel"), "n 2");
    json = layer(alone, 0, "4", "8", "cluster.json");
    EXPECT(strstr(text_of(candidate(json, 8, "none"), "reason"), "4 tokens cannot be cut into 8"),
           "n 8");
}

/* Measured curves alone, of those operations that a choice needs. */
static void check_curves(const char *alone)
{
    static const char curves[] =
        "{\"name\": \"curves\", \"num_nodes\": 4, \"ranks_per_node\": 2, \"costs\": {"
        "\"all_to_all\": {\"peak\": 1e9, \"latency_us\": 20}, "
        "\"all_to_all_inside\": {\"peak\": 1e10, \"latency_us\": 2}, "
        "\"copy\": {\"peak\": 1e10, \"latency_us\": 1}, "
        "\"to_host\": {\"peak\": 5e9, \"latency_us\": 1}, "
        "\"to_device\": {\"peak\": 5e9, \"latency_us\": 1}, "
        "\"gemm_bf16\": {\"peak\": 1e13, \"latency_us\": 1}}}";
    EXPECT(child_write("curves.json", curves), "cannot write");
    cJSON *json = layer(alone, 0, "8192", "8", "curves.json");
    EXPECT(strcmp(text_of(json, "priced_by"), "curves") == 0, "%s", text_of(json, "priced_by"));
    EXPECT(number_of(cJSON_GetObjectItem(json, "choice"), "n") > 1, "slow links hide nothing");
    EXPECT(number_of(candidate(json, 2, "s4"), "time_s") > 0, "n 2, s4");
}

static void refuse_layer(const char *tokens, const char *experts, const char *topk, const char *ep,
                         const char *cluster, const char *part)
{
    CHILD_REFUSED(2, part, "plan", "moe-layer", "--tokens", tokens, "--hidden", "1024", "--ffn",
                  "4096", "--experts", experts, "--topk", topk, "--ep", ep, "--cluster", cluster);
}

static void check_layer_refusals(void)
{
    refuse_layer("0", "8", "2", "4", "cluster.json",
                 "--tokens 0: 0 is out of range: 1 to 1000000000");
    refuse_layer("64", "6", "2", "4", "cluster.json",
                 "--experts 6: 4 ranks cannot hold as many each; 4 or 8 would do");
    refuse_layer("64", "6", "2", "8", "cluster.json",
                 "--experts 6: 8 ranks cannot hold as many each; 8 would do");
    refuse_layer("64", "4", "8", "4", "cluster.json", "--topk 8: there are only 4 experts");
    refuse_layer("64", "8", "2", "8", "paper.json", "is not known");
    refuse_layer("64", "8", "2", "8", "empty.json", "is not known");
    refuse_layer("64", "1024", "2", "1024", "paper.json", "the cluster two nodes has 16 devices");
    refuse_layer("64", "8", "2", "4", "none.json", "--cluster none.json: No such file");
    CHILD_REFUSED(2, "--hidden M is missing", "plan", "moe-layer", "--tokens", "64");
}

int main(void)
{
    char alone[1024];
    snprintf(alone, sizeof alone, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    child_begin();
    const char *sheet = child_cluster("h100", "cluster.json");
    EXPECT(child_write("paper.json", paper) &&
               child_write("empty.json", "{\"name\": \"empty\", \"num_nodes\": 4, "
                                         "\"ranks_per_node\": 8}"),
           "cannot write clusters");
    check_paper(alone);
    check_forms(alone);
    check_exchange_refusals();
    check_layer(alone);
    check_memory(alone, sheet);
    check_alone_and_few(alone);
    check_strategies(alone);
    check_curves(alone);
    check_layer_refusals();
    return child_finish();
}
