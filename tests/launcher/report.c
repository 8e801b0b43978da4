/* The three writers of reports, and that what verbs say as JSON all looks alike. */
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "launcher/report/report.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

/* --- the writers ----------------------------------------------------------------------------- */

static void check_units(void)
{
    static const struct {
        weft_unit unit;
        double value;
        const char *wanted;
    } cases[] = {
        {WEFT_UNIT_NONE, 1.23456, "1.235"},
        {WEFT_UNIT_NONE, NAN, "-"},
        {WEFT_UNIT_NONE, -INFINITY, "-"},
        {WEFT_UNIT_FIXED, 12.345, "12.35"},
        {WEFT_UNIT_FIXED, INFINITY, "-"},
        {WEFT_UNIT_COUNT, 0, "0"},
        {WEFT_UNIT_COUNT, 999, "999"},
        {WEFT_UNIT_COUNT, -1234567, "-1,234,567"},
        {WEFT_UNIT_COUNT, 1000.4, "1,000"},
        {WEFT_UNIT_COUNT, 12.345, "12.35"},
        {WEFT_UNIT_COUNT, 1e300, "1e+300"},
        {WEFT_UNIT_BYTES, 1536, "1.5 KiB"},
        {WEFT_UNIT_BYTES, NAN, "-"},
        {WEFT_UNIT_SECONDS, 0, "0 us"},
        {WEFT_UNIT_SECONDS, 1.25e-5, "12.5 us"},
        {WEFT_UNIT_SECONDS, 0.0456, "45.6 ms"},
        {WEFT_UNIT_SECONDS, 299, "299 s"},
        {WEFT_UNIT_SECONDS, 1200, "20 min"},
        {WEFT_UNIT_SECONDS, 21060, "5.85 h"},
        {WEFT_UNIT_SECONDS, 864000, "10 days"},
        {WEFT_UNIT_SHARE, 0.4123, "41.2 %"},
        {WEFT_UNIT_CHANGE, 0.032, "+3.2 %"},
        {WEFT_UNIT_CHANGE, -0.5, "-50.0 %"},
        {WEFT_UNIT_SHARE, NAN, "-"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const weft_counted text = weft_unit_text(cases[i].unit, cases[i].value);
        EXPECT(strcmp(text.text, cases[i].wanted) == 0, "%zu: %s, not %s", i, text.text,
               cases[i].wanted);
    }
}

static void check_digits(void)
{
    static const struct {
        double value;
        const char *wanted;
    } cases[] = {{0, "0"},           {-3, "-3"},
                 {1e14, "1e+14"},    {82678120448, "82678120448"},
                 {0.1, "0.1"},       {NAN, "null"},
                 {INFINITY, "null"}, {1e-9, "1e-09"},
                 {1e6, "1000000"},   {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const weft_json_digits digits = weft_json_digits_of(cases[i].value);
        EXPECT(strcmp(digits.text, cases[i].wanted) == 0, "%zu: %s", i, digits.text);
        EXPECT(!isfinite(cases[i].value) || strtod(digits.text, NULL) == cases[i].value,
               "%zu: reads back as another", i);
    }
}

/* What nobody should have to think of: no text, quotes, control characters, bytes that are no
 * UTF-8, numbers that are none, a record that lacks a cell, tables of nothing. */
static void fill(weft_report *r)
{
    weft_report_line(r, "a <line> of %d", 2);
    weft_report_line(r, "%s", "");
    weft_report_text(r, "text", NULL,
                     "q\"\\\n\x01\xff"
                     "e");
    weft_report_text(r, "none", NULL, NULL);
    weft_report_bool(r, "flag", true);
    weft_report_numbers(r, "numbers", (const double[]){1, 0.5, NAN}, 3);
    weft_report_texts(r, "texts", WORDS("a"), 2);
    weft_report_raw(r, "raw", "[{}]");
    weft_report_open(r, WEFT_REPORT_TABLE, "empty");
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_OBJECT, "nothing");
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_TABLE, "rows");
    for (int i = 0; i < 2; i++) {
        weft_report_record(r);
        weft_report_text(r, "name", "na<me", i ? "b" : NULL);
        weft_report_row(r, "bytes", "µ", WEFT_UNIT_BYTES, i ? 1536 : INFINITY);
        weft_report_open(r, WEFT_REPORT_OBJECT, "inner");
        if (i == 1)
            weft_report_row(r, "share", "share", WEFT_UNIT_SHARE, 0.5);
        weft_report_close(r);
        weft_report_open(r, WEFT_REPORT_GROUP, "only");
        weft_report_record(r);
        weft_report_value(r, "x", i);
        weft_report_close(r);
    }
    weft_report_bad(r);
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    weft_report_record(r);
    weft_report_cell(r, "people", "%s", "alone");
    weft_report_value(r, "json", 1);
    weft_report_close(r);
    weft_report_open(r, WEFT_REPORT_FACTS, NULL);
    weft_report_row(r, "fact", "a fact", WEFT_UNIT_COUNT, 1234);
    weft_report_close(r);
}

static char *written(weft_report_form form, weft_status status)
{
    char *text = NULL;
    size_t bytes = 0;
    weft_report r;
    FILE *out = open_memstream(&text, &bytes);
    weft_report_begin(&r, form);
    fill(&r);
    EXPECT(weft_report_end(&r, status, out) == status, "another status");
    fclose(out);
    return text;
}

static void check_writers(void)
{
    static const char *const wanted[] = {
        [WEFT_REPORT_TEXT] = "a <line> of 2\n\n"
                             "  na<me        µ   share\n"
                             "               -\n"
                             "  b      1.5 KiB  50.0 %\n"
                             "  people\n"
                             "  alone\n"
                             "  a fact  1,234\n",
        [WEFT_REPORT_JSON] = "{\n"
                             "  \"text\": \"q\\\"\\\\\\n\\u0001\xef\xbf\xbd"
                             "e\",\n"
                             "  \"none\": null,\n"
                             "  \"flag\": true,\n"
                             "  \"numbers\": [1, 0.5, null],\n"
                             "  \"texts\": [\"a\", null],\n"
                             "  \"raw\": [{}],\n"
                             "  \"empty\": [],\n"
                             "  \"nothing\": {},\n"
                             "  \"rows\": [\n"
                             "    {\n"
                             "      \"name\": null,\n"
                             "      \"bytes\": null,\n"
                             "      \"inner\": {},\n"
                             "      \"only\": [\n"
                             "        {\n"
                             "          \"x\": 0\n"
                             "        }\n"
                             "      ]\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"b\",\n"
                             "      \"bytes\": 1536,\n"
                             "      \"inner\": {\n"
                             "        \"share\": 0.5\n"
                             "      },\n"
                             "      \"only\": [\n"
                             "        {\n"
                             "          \"x\": 1\n"
                             "        }\n"
                             "      ]\n"
                             "    }\n"
                             "  ],\n"
                             "  \"fact\": 1234\n"
                             "}\n",
        [WEFT_REPORT_HTML] = "<p class=\"soft\">a &lt;line&gt; of 2</p>\n"
                             "<div class=\"scroll\"><table class=\"named\">\n"
                             "<tr class=\"heads\"><th>na&lt;me</th><th class=\"n\">µ</th><th "
                             "class=\"n\">share</th></tr>\n"
                             "<tr><td data-name=\"na&lt;me\"></td><td class=\"n\" "
                             "data-name=\"µ\">-</td><td class=\"n\" "
                             "data-name=\"share\"></td></tr>\n"
                             "<tr class=\"bad\"><td data-name=\"na&lt;me\">b</td><td class=\"n\" "
                             "data-name=\"µ\">1.5 "
                             "KiB</td><td class=\"n\" data-name=\"share\">50.0 %</td>"
                             "</tr>\n</table></div>\n"
                             "<div class=\"scroll\"><table class=\"named\">\n"
                             "<tr class=\"heads\"><th>people</th></tr>\n<tr><td "
                             "data-name=\"people\">alone</td></tr>\n</table></div>\n"
                             "<div class=\"scroll\"><table>\n"
                             "<tr><td>a fact</td><td class=\"n\">1,234</td></tr>\n</table></div>\n",
    };
    for (int form = 0; form < 3; form++) {
        char *text = written((weft_report_form)form, WEFT_OK);
        EXPECT(strcmp(text, wanted[form]) == 0, "form %d: %s", form, text);
        free(text);
        text = written((weft_report_form)form, WEFT_CONFIG);
        EXPECT(!*text, "form %d: an error, and %s", form, text);
        free(text);
    }
}

/* What has no room on a line goes on on the next, and a nested array does not break it. */
static void check_flat(void)
{
    char *text = NULL;
    size_t bytes = 0;
    weft_json_out json = {.file = open_memstream(&text, &bytes)};
    weft_json_open(&json, NULL, '{');
    weft_json_open_flat(&json, "pairs", '[');
    for (int i = 0; i < 100; i++)
        weft_json_numbers(&json, NULL, (const double[]){i, 1e9}, 2);
    weft_json_close(&json);
    weft_json_close(&json);
    fclose(json.file);
    const char *line = text;
    for (const char *end; *line && (end = strchr(line, '\n')); line = end + 1)
        EXPECT(end - line <= 100, "a line of %td", end - line);
    cJSON *read = child_parse(text);
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(read, "pairs")) == 100, "%s", text);
    free(text);
}

/* --- the verbs ------------------------------------------------------------------------------- */

static void check_keys(const cJSON *json, const char *what)
{
    const cJSON *item, *other;
    cJSON_ArrayForEach(item, json)
    {
        for (other = item->next; other && item->string; other = other->next)
            EXPECT(strcmp(other->string, item->string) != 0, "%s: %s twice", what, item->string);
        check_keys(item, what);
    }
}

/* An object, a member a line from two spaces on, strictly JSON, each key once. */
static void check_json(const char *text, const char *what)
{
    weft_json_span root;
    weft_json_fault fault;
    EXPECT(weft_json_check(text, &root, &fault), "%s: %s: %s", what, fault.reason, text);
    EXPECT(strncmp(text, "{\n  \"", 5) == 0, "%s begins %.40s", what, text);
    const char *last = strrchr(text, '}');
    EXPECT(last && strcmp(last, "}\n") == 0, "%s ends otherwise", what);
    EXPECT(!strchr(text, '\t') && !strstr(text, "nan") && !strstr(text, " \n"), "%s: %s", what,
           text);
    cJSON *json = child_parse(text);
    check_keys(json, what);
}

enum { MAX_WORDS = 24 };

static void check_verbs(void)
{
    static const char *const lines[][MAX_WORDS] = {
        {"plan", "moe.json", "--cluster", "cluster.json", "--mesh", "dp=8,ep=8,binding=dp"},
        {"plan", "moe.json", "--cluster", "cluster.json", "--mesh", "dp=8", "--what-if"},
        {"plan", "moe.json", "--cluster", "cluster.json", "--search", "--nodes", "1,2"},
        {"plan", "all-to-all", "--bytes", "1MiB", "--tp", "2", "--ep", "4", "--cluster",
         "cluster.json"},
        {"plan", "moe-layer", "--tokens", "64", "--hidden", "64", "--ffn", "64", "--experts", "8",
         "--topk", "2", "--ep", "8", "--cluster", "cluster.json"},
        {"expand", "moe.json", "--cluster", "cluster.json", "--mesh", "dp=8", "--context", "256"},
        {"schedule", "moe.json", "--mesh", "pp=2"},
        {"prepare", "text.txt", "--out", "corpus"},
        {"inspect", "corpus"},
        {"train", "moe.json", "--out", "run", "--set", "data.data_path=corpus", "--set",
         "data.mock_data=false"},
        {"eval", "run", "--split", "all", "--iters", "1"},
        {"inspect", "run"},
        {"inspect", "run", "--sample", "1"},
        {"compare", "run", "run"},
        {"launch", "mpirun", "moe.json", "--out", "job"},
        {"calibrate", "--out", "own.json", "--quick", "--only", "copy"},
        {"doctor", "cJSON", "compiler"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *args[MAX_WORDS + 2] = {NULL};
        int count = 0;
        for (; lines[i][count]; count++)
            args[count] = lines[i][count];
        args[count] = "--json";
        child c;
        child_run(&c, args, NULL);
        EXPECT(c.exit_code == 0, "%s %s: exit %d: %s", args[0], args[1], c.exit_code, c.err);
        if (strcmp(args[0], "train") != 0) /* a line a step */
            check_json(c.out, args[0]);
    }
}

int main(void)
{
    static const char moe[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"ffn_hidden_size\": 128, "
        "\"num_attention_heads\": 2, \"seq_length\": 64, \"max_position_embeddings\": 256, "
        "\"vocab_size\": 264, \"num_experts\": 8, \"moe_router_topk\": 2}, \"train\": "
        "{\"micro_batch_size\": 1, \"global_batch_size\": 32, \"train_iters\": 1}, \"data\": "
        "{\"mock_data\": true}}";
    char text[8192];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    check_units();
    check_digits();
    check_writers();
    check_flat();
    child_begin();
    child_cluster("h100", "cluster.json");
    EXPECT(child_write("moe.json", moe) && child_write("text.txt", text), "files");
    check_verbs();
    return child_finish();
}
