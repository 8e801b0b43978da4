/* weft plan --html: the page is whole, refers to nothing outside itself, escapes what it is given,
 * stays below 2 MB for the largest steps, and shows every table that it gets. With `sample FILE` it
 * writes the page of all tables, for the test that opens it in a browser. */
#include "launcher/page/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char dense[] =
    "{\"model\": {\"num_layers\": 64, \"hidden_size\": 4096, \"ffn_hidden_size\": 14336, "
    "\"num_attention_heads\": 32, \"num_query_groups\": 8, \"seq_length\": 4096, "
    "\"vocab_size\": 128256, \"swiglu\": true}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 256, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}}";

/* --- what a page may be ---------------------------------------------------------------------- */

static bool is_void(const char *name, size_t bytes)
{
    static const char *const names[] = {"meta", "br", "!doctype"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == bytes && strncmp(names[i], name, bytes) == 0)
            return true;
    return false;
}

/* The end of a tag: behind its '>', which no quoted value hides. NULL: it has none. */
static const char *tag_end(const char *at)
{
    char quote = '\0';
    for (; *at; at++) {
        if (quote && *at == quote)
            quote = '\0';
        else if (!quote && (*at == '"' || *at == '\''))
            quote = *at;
        else if (!quote && *at == '>')
            return at + 1;
        else if (!quote && *at == '<')
            return NULL;
    }
    return NULL;
}

/* Every tag is closed, in order; ampersands begin entities. */
static void check_tags(const char *html)
{
    enum { DEPTH = 64 };
    char open[DEPTH][16];
    int depth = 0;
    for (const char *at = html; *at;) {
        if (*at == '&')
            EXPECT(strncmp(at, "&lt;", 4) == 0 || strncmp(at, "&gt;", 4) == 0 ||
                       strncmp(at, "&amp;", 5) == 0 || strncmp(at, "&quot;", 6) == 0,
                   "a bare ampersand: %.30s", at);
        if (*at != '<') {
            at++;
            continue;
        }
        const bool closes = at[1] == '/';
        const char *name = at + 1 + closes, *end = tag_end(at + 1);
        const size_t bytes = strcspn(name, " />\n");
        EXPECT(end && bytes > 0 && bytes < 16, "a broken tag: %.40s", at);
        if (!end || bytes >= 16)
            return;
        at = end;
        if (closes) {
            EXPECT(depth > 0 && strlen(open[depth - 1]) == bytes &&
                       strncmp(open[depth - 1], name, bytes) == 0,
                   "</%.*s> in <%s>", (int)bytes, name, depth > 0 ? open[depth - 1] : "");
            depth -= depth > 0;
        } else if (!is_void(name, bytes) && end[-2] != '/') {
            EXPECT(depth < DEPTH, "too deep");
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)bytes, name);
            const bool is_raw = strncmp(name, "script", 6) == 0 || strncmp(name, "style", 5) == 0;
            if (is_raw)
                at = strstr(end, *name == 's' && name[1] == 'c' ? "</script>" : "</style>");
        }
    }
    EXPECT(depth == 0, "<%s> stays open", depth > 0 ? open[depth - 1] : "");
}

/* Each colour of a timeline is among its keys; each mark of a chart is named below it. */
static void check_legends(const char *html)
{
    static const char *const marks[][2] = {{"class=\"dot\"", ">A dot is "},
                                           {"class=\"limit\"", "Dashed: the memory "},
                                           {"class=\"ideal\"", "Dashed: as many tokens "}};
    for (const char *at = html; (at = strstr(at, "<rect class=\"k")) != NULL; at++) {
        char key[40];
        snprintf(key, sizeof key, "<i class=\"k%d\"></i>", atoi(at + strlen("<rect class=\"k")));
        EXPECT(strstr(html, key) && strstr(at, "<title>"), "no key %s", key);
    }
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        EXPECT(!strstr(html, marks[i][0]) || strstr(html, marks[i][1]), "no \"%s\"", marks[i][1]);
}

static char *read_page(const char *path)
{
    static const char *const outside[] = {
        "http://", "https://", "url(", " src=", " href=", "@import", "fetch(", "import("};
    char *html = child_read(path);
    EXPECT(html, "no page %s", path);
    if (!html)
        return strcpy(calloc(1, 1), "");
    check_tags(html);
    EXPECT(strlen(html) <= WEFT_PAGE_MAX_BYTES, "%zu bytes", strlen(html));
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        EXPECT(!strstr(html, outside[i]), "the page has %s", outside[i]);
    check_legends(html);
    return html;
}

static void expect_in(const char *html, const char *part)
{
    EXPECT(strstr(html, part), "the page lacks %s", part);
}

static int count_in(const char *html, const char *part)
{
    int count = 0;
    for (const char *at = html; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* --- of plans -------------------------------------------------------------------------------- */

static char *plan_page(const char *config, const char *cluster, const char *mesh, const char *set,
                       int code)
{
    child c;
    CHILD_RUN(&c, "plan", config, "--cluster", cluster, "--mesh", mesh, "--html", "page.html",
              "--set", set ? set : "train.train_iters=1");
    EXPECT(c.exit_code == code, "exit %d: %s", c.exit_code, c.err);
    char *html = read_page("page.html");
    remove("page.html");
    return html;
}

static void check_plan(void)
{
    char *html = plan_page("dense.json", "cluster.json", "tp=8,pp=8,dp=2,sp=1", NULL, 0);
    expect_in(html, "It fits.");
    expect_in(html, "(tp 8, pp 8, dp 2, sequence parallel, schedule 1f1b)");
    expect_in(html, " tokens/s</strong>");
    expect_in(html, "<span>stage 7</span>");
    expect_in(html, "<div>stage 7: ");
    expect_in(html, "F0 forward");
    expect_in(html, "NVIDIA H100 data sheet");
    expect_in(html, "\u00b115 %");
    expect_in(html, "With every number at either end of its spread a step takes ");
    expect_in(html, "<td>a checkpoint</td>");
    EXPECT(!strstr(html, "nan"), "an unknown number");
    EXPECT(count_in(html, "<rect ") > 8 * 128 * 2, "%d boxes", count_in(html, "<rect "));
    EXPECT(!strstr(html, "tasks, mostly"), "a small step is merged");
    free(html);
    html = plan_page("dense.json", "cluster.json", "pp=8", "device.memory_limit=20000000000", 3);
    expect_in(html, "It does not fit.");
    expect_in(html, "more than the 18.6 GiB there are");
    free(html);
}

/* The config's name is the writer's. */
static void check_escapes(void)
{
    EXPECT(child_write("a<b>&\"c.json", dense), "cannot write");
    char *html = plan_page("a<b>&\"c.json", "cluster.json", "tp=8,pp=2", NULL, 0);
    expect_in(html, "<h1>a&lt;b&gt;&amp;&quot;c.json</h1>");
    free(html);
}

/* 16,384 devices, 64 stages, a thousand micro-batches: merged; more than are drawn: said. */
static void check_large(const char *sheet)
{
    cJSON *json = child_parse(strchr(sheet, '{'));
    cJSON_SetNumberValue(cJSON_GetObjectItem(json, "num_nodes"), 2048);
    char *text = cJSON_Print(json);
    EXPECT(child_write("large.json", text), "cannot write");
    free(text);
    char *html = plan_page("dense.json", "large.json", "tp=8,pp=64,dp=32,sp=1",
                           "train.global_batch_size=32000", 0);
    expect_in(html, " of 64 stages are drawn");
    expect_in(html, "tasks are drawn as ");
    expect_in(html, "tasks, mostly ");
    EXPECT(count_in(html, "<rect ") > 6000, "%d boxes", count_in(html, "<rect "));
    free(html);
}

static char *search_page(const char *nodes, int code)
{
    child c;
    CHILD_RUN(&c, "plan", "dense.json", "--cluster", "cluster.json", "--search", "--nodes", nodes,
              "--mesh", "tp=8,sp=1", "--html", "page.html", "--set",
              code ? "device.memory_limit=1000000000" : "train.global_batch_size=64");
    EXPECT(c.exit_code == code, "exit %d: %s", c.exit_code, c.err);
    char *html = read_page("page.html");
    remove("page.html");
    return html;
}

/* The best plan with its step, all plans ranked, and more nodes. */
static void check_search(void)
{
    char *html = search_page("2,4", 0);
    expect_in(html, "It fits.");
    expect_in(html, "On 32 devices");
    expect_in(html, "Meshes, fastest first");
    expect_in(html, "<th>most of it</th>");
    expect_in(html, "<td class=\"n\" data-name=\"devices\">16</td>"); /* devices of two nodes */
    expect_in(html, "More nodes");
    expect_in(html, "<rect ");
    free(html);
    html = search_page("1", 3);
    expect_in(html, "No mesh fits.");
    expect_in(html, "<th class=\"n\">does not fit by</th>");
    free(html);
}

static void check_refusals(void)
{
    CHILD_REFUSED(6, "none/page.html", "plan", "dense.json", "--cluster", "cluster.json", "--mesh",
                  "tp=8,pp=2", "--html", "none/page.html");
    /* Before a search, not behind it. */
    CHILD_REFUSED(6, "none/best.json", "plan", "dense.json", "--cluster", "cluster.json",
                  "--search", "--emit", "none/best.json");
}

/* --- of tables ------------------------------------------------------------------------------- */

/* Plans of so many devices a second and so many bytes, on nodes of 8 devices. */
static weft_search_result result_of(int nodes, weft_found *plans, int num_plans)
{
    static const weft_cluster cluster = {.num_nodes = 64, .ranks_per_node = 8};
    return (weft_search_result){.num_devices = 8 * nodes,
                                .world = 8 * nodes,
                                .cluster = &cluster,
                                .plans = plans,
                                .num_plans = num_plans};
}

static weft_found found_of(const char *mesh, double rate, double bytes)
{
    return (weft_found){.mesh = mesh,
                        .step_us = 1e12 / rate,
                        .tokens_per_s = rate,
                        .model_flops_utilization = NAN,
                        .memory_bytes = (uint64_t)bytes,
                        .costs = {NAN, NAN, NAN}};
}

static weft_what_if_plan gains(double gain, const char *mesh)
{
    return (weft_what_if_plan){
        .known = true, .fits = true, .mesh = mesh, .gain = gain, .billion_tokens_cost = NAN};
}

static weft_status write_sample(const char *path)
{
    static weft_found plans[2], scaled[3];
    static weft_missed miss = {
        .mesh = "tp 2, dp 64 <&>", .short_by_bytes = 29001515827, .remedy = "zero 3"};
    static weft_expand_step steps[3];
    static const weft_cluster cluster = {.num_nodes = 64, .ranks_per_node = 8};
    plans[0] = found_of("tp 8, pp 4, dp 4", 873813, 61e9);
    plans[1] = found_of("tp 4, pp 8, dp 4", 748983, 44e9);
    for (int i = 0; i < 3; i++)
        scaled[i] = found_of("tp 8, pp 2, dp 4", 255750 << i, 61e9);
    weft_search_result search = result_of(16, plans, 2);
    search.misses = &miss;
    search.num_misses = 1;
    const weft_search_result scales[] = {result_of(8, &scaled[0], 1), result_of(16, &scaled[1], 1),
                                         result_of(32, NULL, 0), result_of(64, &scaled[2], 1)};
    const weft_what_if what_if = {
        .num_rows = 3,
        .rows = {
            {.name = "between_x2",
             .help = "links between nodes x2",
             .num_nodes = 8,
             .same = gains(0.08, "tp 8"),
             .best = gains(0.11, "tp 8, pp 4, dp 4")},
            {.name = "memory_x2",
             .help = "memory x2",
             .num_nodes = 8,
             .same = gains(0, "tp 8"),
             .best = gains(0.3, "dp 16")},
            {.name = "balanced_experts", .help = "balanced experts", .without = "no experts"}}};
    for (int i = 0; i < 3; i++)
        steps[i] = (weft_expand_step){.cluster = &cluster,
                                      .kind = i < 2 ? WEFT_EXPAND_DATA : WEFT_EXPAND_VERTICAL,
                                      .num_nodes = i < 2 ? 8 + 8 * i : 128,
                                      .nodes_added = i < 2 ? 8 * i : 112,
                                      .fits = true,
                                      .step_us = 1e6,
                                      .costs = {NAN, NAN, NAN}};
    steps[2].fewer = (weft_expand_miss){.reason = "cp has <16> ranks", .num_nodes = 64};
    const weft_expand expand = {.num_steps = 3, .steps = steps};
    const weft_expand_request request = {.cluster = &cluster, .to = &cluster};
    const weft_page page = {.title = "sample <script>alert(1)</script> & \"tables\"",
                            .search = &search,
                            .scaling = scales,
                            .num_scales = 4,
                            .what_if = &what_if,
                            .expand = &expand,
                            .request = &request};
    return weft_page_write(&page, path);
}

static void check_tables(void)
{
    EXPECT_OK(write_sample("sample.html"));
    char *html = read_page("sample.html");
    expect_in(html,
              "<h1>sample &lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;tables&quot;</h1>");
    expect_in(html, "<td class=\"n\" data-name=\"tokens/s\">873,813</td>");
    expect_in(html, "<td data-name=\"mesh\">tp 2, dp 64 &lt;&amp;&gt;; b 0, zero 0");
    expect_in(html, "<tr class=\"bad\"><td class=\"n\" data-name=\"does not fit by\">27 GiB</td>");
    expect_in(html, "<td data-name=\"its mesh\">no experts</td>");
    expect_in(html, "text-anchor=\"middle\">20</text>"); /* a tick of the nodes */
    expect_in(html, ">255,750</text>");                  /* a dot's label */
    expect_in(html, "class=\"next\"");                   /* a runner-up */
    expect_in(html, "data-name=\"would fit with\">zero 3</td>");
    expect_in(html, "cp has &lt;16&gt; ranks");
    expect_in(html, "<td data-name=\"mesh\">nothing fits</td>");
    expect_in(html, "+11.0 %");
    expect_in(html, "<td data-name=\"kind\">vertical</td>");
    expect_in(html, "<td class=\"n\" data-name=\"added\">112</td>"); /* nodes added */
    expect_in(html, "<span>today, 0 tokens</span>");
    EXPECT(!strstr(html, "nan") && !strstr(html, "inf\""), "an unknown number");
    EXPECT(count_in(html, "<circle ") == 2 + 3, "%d dots", count_in(html, "<circle "));
    EXPECT(count_in(html, "<section ") == 4 && count_in(html, "</section>") == 4, "sections");
    EXPECT(count_in(html, "<script") == 1, "a script that a title brought");
    free(html);
    EXPECT_OK(weft_page_write(&(weft_page){.title = "nothing"}, "empty.html"));
    html = read_page("empty.html");
    EXPECT(count_in(html, "<section ") == 0, "sections of nothing");
    free(html);
}

/* As many plans as a search may list. */
static void check_many(void)
{
    enum { COUNT = 2000 };
    weft_found *plans = calloc(COUNT, sizeof *plans);
    for (int i = 0; i < COUNT; i++)
        plans[i] = found_of("tp 8, pp 4, dp 4, cp 2, ep 16, binding dp, zero 3", 1e6 / (1 + i),
                            1e9 * (1 + i % 90));
    const weft_search_result search = result_of(16, plans, COUNT);
    EXPECT_OK(weft_page_write(&(weft_page){.title = "many", .search = &search}, "many.html"));
    char *html = read_page("many.html");
    expect_in(html, "The first 400 of 2000.");
    free(html);
    free(plans);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "sample") == 0)
        return write_sample(argv[2]) == WEFT_OK ? 0 : 1;
    child_begin();
    const char *sheet = child_cluster("h100", "cluster.json");
    EXPECT(child_write("dense.json", dense), "cannot write");
    check_tables();
    check_many();
    check_plan();
    check_escapes();
    check_search();
    check_refusals();
    check_large(sheet);
    return child_finish();
}
