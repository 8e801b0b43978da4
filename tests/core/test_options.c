#include <stdlib.h>
#include <unistd.h>

#include "core/json.h"
#include "core/quantity.h"
#include "tests/core/check.h"
#include "tests/core/options_sample.h"

/* The whole line that each mistake gives. */
typedef struct mistake {
    const char *text, *line;
} mistake;

static const mistake mistakes_in_files[] = {
    {"", "run.json:1:1: not valid JSON: the text is empty"},
    {"// nothing\n", "run.json:2:1: not valid JSON: the text is empty"},
    {"{\"model\": {\n  \"num_layers\": 2,\n}}",
     "run.json:2:18: not valid JSON: nothing follows this comma"},
    {"{\"model\": {\"num_layers\": 01}}",
     "run.json:1:26: not valid JSON: a number cannot start with 0"},
    {"{\"model\": {\"num_layers\": 1.}}",
     "run.json:1:26: not valid JSON: a number wants digits after the point"},
    {"{\"model\": {\"num_layers\": 2e}}",
     "run.json:1:26: not valid JSON: a number wants digits after the exponent sign"},
    {"{\"model\": {\"num_layers\": 0x10}}", "run.json:1:26: not valid JSON: not a number"},
    {"{\"model\": {\"num_layers\": -}}", "run.json:1:26: not valid JSON: a number wants digits"},
    {"{\"model\": {\"swiglu\": True}}", "run.json:1:22: not valid JSON: expected a value"},
    {"{\"train\": {\"lr\": NaN}}", "run.json:1:18: not valid JSON: expected a value"},
    {"{\"train\": {\"name\": 'x'}}",
     "run.json:1:20: not valid JSON: strings stand in double quotes"},
    {"{model: {}}", "run.json:1:2: not valid JSON: expected a key in double quotes"},
    {"{\"model\" {}}", "run.json:1:10: not valid JSON: expected ':' after the key"},
    {"{\"model\": {} \"train\": {}}", "run.json:1:14: not valid JSON: expected ',' or '}'"},
    {"{\"model\": {\"layer_freq\": [1 2]}}", "run.json:1:29: not valid JSON: expected ',' or ']'"},
    {"{\"model\": {\"num_layers\": 2}", "run.json:1:1: not valid JSON: this '{' is never closed"},
    {"{\"model\": {}} {}", "run.json:1:15: not valid JSON: text after the end"},
    {"{\"train\": {\"name\": \"a\nb\"}}",
     "run.json:1:20: not valid JSON: the string is never closed"},
    {"{\"train\": {\"name\": \"a\tb\"}}",
     "run.json:1:22: not valid JSON: raw control character in a string"},
    {"{\"train\": {\"name\": \"\\x41\"}}",
     "run.json:1:21: not valid JSON: unknown escape in a string"},
    {"{\"train\": {\"name\": \"\\u00g1\"}}",
     "run.json:1:21: not valid JSON: \\u wants four hexadecimal digits"},
    {"{\"train\": {\"name\": \"a\\u0000b\"}}",
     "run.json:1:22: not valid JSON: \\u0000 cannot stand in a string"},
    {"{\"train\": {\"name\": \"\\ud800\"}}",
     "run.json:1:20: train.name: a \\u escape is half of a surrogate pair"},
    {"{} /* open", "run.json:1:4: not valid JSON: the comment is never closed"},
    {"[1]", "run.json:1:1: expected an object of sections, got an array"},
    {"{\"modle\": {}}", "run.json:1:2: modle: unknown section; did you mean model?"},
    {"{\"optimizer\": {}}",
     "run.json:1:2: optimizer: unknown section; the sections are model, train; for one of a "
     "program's own use that program"},
    {"{\"num_layers\": 4}",
     "run.json:1:2: num_layers: unknown section; num_layers belongs to section model"},
    {"{\"model\": 3}", "run.json:1:11: model: expected an object, got a number"},
    {"{\"model\": {}, \"model\": {}}",
     "run.json:1:15: model: given twice; first at line 1, column 2"},
    {"{\"model\": {\n  \"num_layer\": 3}}",
     "run.json:2:3: model.num_layer: unknown key; did you mean model.num_layers?"},
    {"{\"train\": {\"num_layers\": 3}}",
     "run.json:1:12: train.num_layers: num_layers belongs to section model"},
    {"{\"model\": {\"Num_Layers\": 3}}",
     "run.json:1:12: model.Num_Layers: unknown key; did you mean model.num_layers?"},
    {"{\"model\": {\"wieght_decay\": 3}}",
     "run.json:1:12: model.wieght_decay: unknown key; did you mean train.weight_decay?"},
    {"{\"model\": {\"bananas\": 3}}", "run.json:1:12: model.bananas: unknown key"},
    {"{\"train\": {\"lr\": 1,\n /* c */ \"lr\": 1}}",
     "run.json:2:10: train.lr: given twice; first at line 1, column 12"},
    {"{\"model\": {\"num_layers\": \"x\"}}", "run.json:1:26: model.num_layers: expected an integer "
                                             "of 1 to 1000 layers, got a string \"x\""},
    {"{\"model\": {\"num_layers\": 1.5}}",
     "run.json:1:26: model.num_layers: expected an integer of 1 to 1000 layers, got 1.5"},
    {"{\"model\": {\"num_layers\": true}}",
     "run.json:1:26: model.num_layers: expected an integer of 1 to 1000 layers, got true"},
    {"{\"model\": {\"num_layers\": null}}",
     "run.json:1:26: model.num_layers: expected a value (its default is not null), got null"},
    {"{\"model\": {\"num_layers\": 0}}",
     "run.json:1:26: model.num_layers: 0 is out of range: 1 to 1000 layers"},
    {"{\"model\": {\"num_layers\": 1e17}}",
     "run.json:1:26: model.num_layers: 1e17 is out of range: 1 to 1000 layers"},
    {"{\"model\": {\"num_layers\": 99999999999999999999}}",
     "run.json:1:26: model.num_layers: 99999999999999999999 is out of range: 1 to 1000 layers"},
    {"{\"train\": {\"num_steps\": -1}}",
     "run.json:1:25: train.num_steps: -1 is out of range: at least 0 steps"},
    {"{\"train\": {\"seed\": 9223372036854775808}}",
     "run.json:1:20: train.seed: expected an integer of 64 bits, got 9223372036854775808"},
    {"{\"train\": {\"seed\": 1e300}}", "run.json:1:20: train.seed: expected an integer, got 1e300"},
    {"{\"train\": {\"lr\": 1e999}}",
     "run.json:1:18: train.lr: expected a number that a double can hold, got 1e999"},
    {"{\"train\": {\"lr\": \"0.1\"}}",
     "run.json:1:18: train.lr: expected a number of 0 to 10, got a string \"0.1\""},
    {"{\"train\": {\"lr\": 11}}", "run.json:1:18: train.lr: 11 is out of range: 0 to 10"},
    {"{\"model\": {\"swiglu\": 1}}", "run.json:1:22: model.swiglu: expected true or false, got 1"},
    {"{\"model\": {\"num_layers\": \"8\"}}", "run.json:1:26: model.num_layers: expected an integer "
                                             "of 1 to 1000 layers, got a string \"8\""},
    {"{\"train\": {\"seed\": \"9007199254740992\"}}",
     "run.json:1:20: train.seed: expected an integer, got a string \"9007199254740992\""},
    {"{\"train\": {\"name\": 5}}", "run.json:1:20: train.name: expected a string, got 5"},
    {"{\"model\": {\"position\": \"ropes\"}}", "run.json:1:24: model.position: expected learned, "
                                               "rope or none, got \"ropes\"; did you mean rope?"},
    {"{\"model\": {\"position\": 1}}",
     "run.json:1:24: model.position: expected learned, rope or none, got 1"},
    {"{\"model\": {\"layer_freq\": [1, \"a\"]}}",
     "run.json:1:30: model.layer_freq: expected an integer or an array of integers of 0 to 64, "
     "got a string \"a\""},
    {"{\"model\": {\"layer_freq\": [1, 65]}}",
     "run.json:1:30: model.layer_freq: 65 is out of range: 0 to 64"},
    {"{\"train\": {\"blend\": 3}}",
     "run.json:1:21: train.blend: expected a string or an array of strings and numbers, got 3"},
    {"{\"train\": {\"blend\": [\"a\", {}]}}",
     "run.json:1:27: train.blend: expected strings and numbers, got an object"},
    /* Columns count characters, not bytes, and a byte order mark is neither. */
    {"\xef\xbb\xbf{\"train\": {\"name\": \"\xc3\xa9\", \"lr\": \"a\"}}",
     "run.json:1:31: train.lr: expected a number of 0 to 10, got a string \"a\""},
};

static const mistake mistakes_in_overrides[] = {
    {"num_layer=8", "--set num_layer=8: unknown key; did you mean model.num_layers?"},
    {"model.num_layer=8", "--set model.num_layer=8: unknown key; did you mean model.num_layers?"},
    {"train.num_layers=8", "--set train.num_layers=8: num_layers belongs to section model"},
    {"modell.num_layers=8", "--set modell.num_layers=8: unknown section; did you mean model?"},
    {"num_layers", "--set num_layers: expected key=value"},
    {"=3", "--set =3: expected key=value"},
    {"num_layers=", "--set num_layers=: expected an integer of 1 to 1000 layers, got \"\""},
    {"num_layers=two",
     "--set num_layers=two: expected an integer of 1 to 1000 layers, got \"two\""},
    {"num_layers=0", "--set num_layers=0: 0 is out of range: 1 to 1000 layers"},
    {"swiglu=yes", "--set swiglu=yes: expected true or false, got \"yes\""},
    {"position=rop",
     "--set position=rop: expected learned, rope or none, got \"rop\"; did you mean rope?"},
    {"num_steps=-2k",
     "--set num_steps=-2k: expected an integer of at least 0 steps, also with k, M, B or "
     "T (powers of 1000), got \"-2k\""},
    {"num_steps=.5k",
     "--set num_steps=.5k: expected an integer of at least 0 steps, also with k, M, B or "
     "T (powers of 1000), got \".5k\""},
    {"num_steps=20Q",
     "--set num_steps=20Q: expected an integer of at least 0 steps, also with k, M, B or "
     "T (powers of 1000), got \"20Q\""},
    {"num_steps=1.5", "--set num_steps=1.5: expected an integer of at least 0 steps, got 1.5"},
    {"num_steps=0.0001k",
     "--set num_steps=0.0001k: expected an integer of at least 0 steps, got \"0.0001k\""},
    {"seed=20k", "--set seed=20k: expected an integer, got \"20k\""},
    {"lr=0x10", "--set lr=0x10: expected a number of 0 to 10, got \"0x10\""},
    {"lr=\x1b[2J\n", "--set lr=?[2J?: expected a number of 0 to 10, got \"\\u001b[2J\\n\""},
};

/* One value of JSON, by the file or by --set. */
static weft_status parse_value(bool is_set, const char *section, const char *key, const char *value,
                               weft_arena *arena, char *fault, size_t bytes)
{
    sample target;
    char text[128], place[160];
    snprintf(text, sizeof text, is_set ? "%s.%s=%s" : "{\"%s\": {\"%s\": %s}}", section, key,
             value);
    const weft_status status = is_set ? sample_parse(&target, arena, "{}", text)
                                      : sample_parse(&target, arena, text, NULL);
    const char *line = status == WEFT_OK ? "" : weft_error_get()->text;
    snprintf(place, sizeof place, is_set ? "--set %s: " : "%s.%s: ", is_set ? text : section, key);
    const char *at = strstr(line, place);
    assert_true(status == WEFT_OK || (status == WEFT_CONFIG && at));
    snprintf(fault, bytes, "%s", at ? at + strlen(place) : "");
    weft_error_clear();
    return status;
}

/* What is JSON means the same in the file and behind --set; what is none is a string there. */
CASE(overrides_take_and_refuse_what_the_file_does)
{
    static const char *const keys[][2] = {{"model", "num_layers"}, {"model", "num_query_groups"},
                                          {"model", "swiglu"},     {"model", "layer_freq"},
                                          {"train", "lr"},         {"train", "seed"},
                                          {"train", "num_steps"}},
                             *const texts[][2] = {{"model", "position"}, {"model", "kind"},
                                                  {"train", "name"},     {"train", "data_path"},
                                                  {"train", "tags"},     {"train", "blend"}},
                             *const values[] = {"5",        "\"5\"",
                                                "1",        "\"1\"",
                                                "0",        "true",
                                                "\"true\"", "\"\"",
                                                "\"+5\"",   "\".5\"",
                                                "2.5",      "\"2.5\"",
                                                "[]",       "[1]",
                                                "[\"1\"]",  "{}",
                                                "-1",       "\"2k\"",
                                                "null",     "\"rope\"",
                                                "1e2",      "\"9007199254740993\""};
    const size_t num_keys = sizeof keys / sizeof *keys, num_texts = sizeof texts / sizeof *texts;
    weft_arena arena = {0};
    for (size_t i = 0; i < num_keys + num_texts; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            const bool is_text = i >= num_keys;
            const char *const *key = is_text ? texts[i - num_keys] : keys[i];
            char of_file[256], of_set[256];
            if (is_text && values[v][0] != '"')
                continue;
            const weft_status file =
                parse_value(false, key[0], key[1], values[v], &arena, of_file, sizeof of_file);
            if (parse_value(true, key[0], key[1], values[v], &arena, of_set, sizeof of_set) !=
                    file ||
                strcmp(of_file, of_set) != 0)
                fail_msg("%s %s: in the file \"%s\", by --set \"%s\"", key[1], values[v], of_file,
                         of_set);
        }
    weft_arena_release(&arena);
}

static void expect_line(const mistake *m, weft_status status)
{
    assert_int_equal(status, WEFT_CONFIG);
    assert_int_equal(weft_status_exit_code(status), 2);
    assert_string_equal(weft_error_get()->text, m->line);
    weft_error_clear();
}

CASE(mistakes_give_one_clear_line)
{
    weft_arena arena = {0};
    sample target;
    for (size_t i = 0; i < sizeof mistakes_in_files / sizeof *mistakes_in_files; i++) {
        const mistake *m = &mistakes_in_files[i];
        expect_line(m, sample_parse(&target, &arena, m->text, NULL));
    }
    for (size_t i = 0; i < sizeof mistakes_in_overrides / sizeof *mistakes_in_overrides; i++) {
        const mistake *m = &mistakes_in_overrides[i];
        expect_line(m, sample_parse(&target, &arena, "{}", m->text));
    }
    weft_arena_release(&arena);
}

/* A row of each kind of value on the command line, and what is said of a wrong one: all of it
 * follows from the row. */
CASE(words_are_read_by_their_rows)
{
    static const char *const names[] = {"all", "some"};
    const weft_key steps = {.key = "steps",
                            .type = WEFT_OPTION_INT,
                            .initial = "8",
                            .min = 1,
                            .max = 1000,
                            .unit = "steps",
                            .help = "how many"},
                   size = {.key = "size",
                           .type = WEFT_OPTION_INT,
                           .initial = "0",
                           .min = 256,
                           .max = 68719476736.0,
                           .unit = "bytes"},
                   rate = {.key = "rate", .type = WEFT_OPTION_DOUBLE, .initial = "1"},
                   form = {.key = "form",
                           .type = WEFT_OPTION_CHOICE,
                           .initial = "",
                           .names = names,
                           .num_names = 2},
                   flag = {.key = "flag", .type = WEFT_OPTION_BOOL, .initial = "false"},
                   name = {.key = "name", .type = WEFT_OPTION_STRING};
    static const char suffixes[] = "k, M, G, T, P or KiB, MiB, GiB, TiB, PiB (powers of 1024), "
                                   "kB, MB, GB, TB, PB (of 1000)";
    char size_text[300];
    snprintf(size_text, sizeof size_text,
             "--x 4XB: expected an integer of 256 to 64GiB, also with %s, got \"4XB\"", suffixes);
    const struct {
        const weft_key *row;
        const char *text, *fault; /* NULL: it is `value` */
        double value;
    } cases[] = {
        {&steps, "7", NULL, 7},
        {&steps, "+7", NULL, 7},
        {&steps, "1e2", NULL, 100},
        {&steps, "1k", NULL, 1000},
        {&steps, "0", "--x 0: 0 is out of range: 1 to 1000 steps", 0},
        {&steps, " 7", "--x  7: expected an integer of 1 to 1000 steps, got \" 7\"", 0},
        {&steps, "x", "--x x: expected an integer of 1 to 1000 steps, got \"x\"", 0},
        {&steps, "null", "--x null: expected a value (its default is not null), got null", 0},
        {&size, "64k", NULL, 65536},
        {&size, "1", "--x 1: 1 is out of range: 256 to 64GiB", 0},
        {&size, "4XB", size_text, 0},
        {&rate, ".5", NULL, 0.5},
        {&rate, "-2e3", NULL, -2000},
        {&rate, "nan", "--x nan: expected a number, got \"nan\"", 0},
        {&rate, "1e999", "--x 1e999: expected a number that a double can hold, got 1e999", 0},
        {&form, "some", NULL, 1},
        {&form, "sone", "--x sone: expected all or some, got \"sone\"; did you mean some?", 0},
        {&flag, "1", NULL, 1},
        {&flag, "false", NULL, 0},
        {&flag, "2", "--x 2: expected true or false, got 2", 0},
    };
    weft_arena arena = {0};
    const char *words, *text;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        union {
            int64_t whole;
            double number;
            int index;
            bool is_on;
        } field = {.whole = -1};
        OK(weft_arena_printf(&arena, &words, "--x %s", cases[i].text));
        const weft_status status =
            weft_option_read(cases[i].row, words, cases[i].text, &field, &arena);
        if (cases[i].fault) {
            expect_line(&(mistake){NULL, cases[i].fault}, status);
            assert_int_equal(field.whole, -1);
            continue;
        }
        OK(status);
        const weft_option_type type = cases[i].row->type;
        assert_true(cases[i].value == (type == WEFT_OPTION_INT      ? (double)field.whole
                                       : type == WEFT_OPTION_DOUBLE ? field.number
                                       : type == WEFT_OPTION_CHOICE ? field.index
                                                                    : field.is_on));
    }
    OK(weft_option_read(&name, "--x", "\"a b\"", &text, &arena)); /* as it is */
    assert_string_equal(text, "\"a b\"");
    weft_arena_release(&arena);
}

/* A key with bounds is one row: it is read, refused, near to a slip, explained and written by it.
 */
CASE(a_new_key_is_one_row)
{
    static const struct {
        const char *slip, *line;
    } slips[] = {
        {"new.depth=0", "--set new.depth=0: 0 is out of range: 1 to 64 layers"},
        {"new.depth=x", "--set new.depth=x: expected an integer of 1 to 64 layers, got \"x\""},
        {"new.dept=1", "--set new.dept=1: unknown key; did you mean new.depth?"}};
    int64_t depth;
    const weft_key row = {.key = "depth",
                          .type = WEFT_OPTION_INT,
                          .initial = "8",
                          .min = 1,
                          .max = 64,
                          .unit = "layers",
                          .help = "how deep"};
    const weft_option_section section = {"new", &row, 1, &depth, "of the test"};
    weft_arena arena = {0};
    char *text;
    size_t bytes;
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++)
        expect_line(&(mistake){NULL, slips[i].line},
                    weft_options_parse(&section, 1, NULL, NULL, &slips[i].slip, 1, &arena));
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    weft_options_help(&section, 1, false, out);
    weft_options_help(&section, 1, true, out);
    OK(weft_options_schema(&section, 1, NULL, out));
    OK(weft_options_parse(&section, 1, "f", "{\"new\": {\"depth\": 9}}", NULL, 0, &arena));
    OK(weft_options_write(&section, 1, out));
    assert_int_equal(fclose(out), 0);
    static const char *const parts[] = {"new.depth = 8 (integer, 1 to 64 layers)",
                                        "how deep",
                                        "| `depth` | `8` | integer, 1 to 64 layers | how deep |",
                                        "\"minimum\": 1",
                                        "\"maximum\": 64",
                                        "\"depth\": 9"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i]))
            fail_msg("%s: not in %s", parts[i], text);
    free(text);
    weft_arena_release(&arena);
}

CASE(an_override_in_two_sections_is_ambiguous)
{
    int64_t a, b;
    weft_key row = {.key = "seed", .type = WEFT_OPTION_INT, .initial = "1", .help = "seed"};
    weft_option_section sections[2] = {{"train", &row, 1, &a, NULL}, {"data", &row, 1, &b, NULL}};
    const char *bare = "seed=7", *full = "data.seed=7";
    weft_arena arena = {0};
    FAILS(weft_options_parse(sections, 2, NULL, NULL, &bare, 1, &arena), WEFT_CONFIG,
          "--set seed=7: seed stands in sections train and data: say which");
    OK(weft_options_parse(sections, 2, NULL, NULL, &full, 1, &arena));
    assert_int_equal(a, 1);
    assert_int_equal(b, 7);
    weft_arena_release(&arena);
}

/* One pass over a list of megabytes: where an entry stands in the text was once counted for each,
 * in minutes; the alarm ends the test then. */
CASE(a_long_list_is_read_once)
{
    enum { ENTRIES = 400000, EACH = 4 };
    static const char head[] = "{\"train\": {\"tags\": [", tail[] = "\"x\"]}}";
    char *text = malloc(sizeof head + (size_t)ENTRIES * EACH + sizeof tail);
    assert_non_null(text);
    char *at = stpcpy(text, head);
    for (int i = 0; i < ENTRIES; i++)
        at = stpcpy(at, "\"x\",");
    strcpy(at, tail);
    weft_arena arena = {0};
    sample s;
    alarm(300);
    OK(sample_parse(&s, &arena, text, NULL));
    alarm(0);
    assert_int_equal(s.train.tags.count, ENTRIES + 1);
    weft_arena_release(&arena);
    free(text);
}

CASE(values_arrive)
{
    static const char text[] =
        "{ // layers\n  \"model\": {\"num_layers\": 3, /* \" */ \"swiglu\": true,\n    "
        "\"position\": \"none\", \"layer_freq\": [0, 1, 64],\n    \"num_query_groups\": 2.0e1, "
        "\"kind\": \"sparse\"},\n  \"train\": {\"lr\": 2.5e-4, \"seed\": -9223372036854775808,\n   "
        " \"data_path\": \"a//b\\\\\\u00e9\\ud83d\\ude42\",\n    \"blend\": [0.30, \"x\", 7, "
        "\"y\"], \"tags\": \"one\",\n    \"num_steps\": \"900719925474099301\"}\n}\n";
    weft_arena arena = {0};
    sample s;
    OK(sample_parse(&s, &arena, text, NULL));
    assert_int_equal(s.model.num_layers, 3);
    assert_int_equal(s.model.num_query_groups, 20);
    assert_true(s.model.swiglu);
    assert_int_equal(s.model.position, 2);
    assert_int_equal(s.model.kind, 1);
    assert_true(s.model.layer_freq.is_array);
    assert_int_equal(s.model.layer_freq.count, 3);
    assert_int_equal(s.model.layer_freq.values[2], 64);
    assert_true(s.train.lr == 2.5e-4);
    assert_true(s.train.weight_decay == 0.01);
    assert_true(s.train.seed == INT64_MIN);
    assert_string_equal(s.train.data_path, "a//b\\\xc3\xa9\xf0\x9f\x99\x82");
    assert_string_equal(s.train.name, "run");
    assert_int_equal(s.train.blend.count, 4);
    assert_string_equal(s.train.blend.values[0], "0.30");
    assert_string_equal(s.train.blend.values[3], "y");
    assert_int_equal(s.train.tags.count, 1);
    assert_true(s.train.num_steps == INT64_C(900719925474099301));
    weft_arena_release(&arena);
}

CASE(defaults_and_nulls)
{
    weft_arena arena = {0};
    sample s;
    memset(&s, 0xff, sizeof(s));
    OK(sample_parse(&s, &arena, NULL, NULL));
    assert_int_equal(s.model.num_layers, 8);
    assert_int_equal(s.model.num_query_groups, 0);
    assert_int_equal(s.model.position, 1);
    assert_int_equal(s.model.kind, -1);
    assert_false(s.model.layer_freq.is_array);
    assert_int_equal(s.model.layer_freq.values[0], 1);
    assert_null(s.train.data_path);
    assert_int_equal(s.train.tags.count, 0);
    assert_int_equal(s.train.blend.count, 0);
    OK(sample_parse(&s, &arena, "{\"train\": {\"data_path\": null, \"blend\": null}}", NULL));
    assert_null(s.train.data_path);
    weft_arena_release(&arena);
}

CASE(overrides_come_last)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 3}, \"train\": {\"data_path\": \"a\"}}";
    weft_arena arena = {0};
    sample s;
    weft_option_section sections[2];
    sample_sections(&s, sections);
    const char *overrides[] = {"num_layers=4",       "model.num_layers=5", "train.lr=0.5",
                               "data_path=123",      "position=learned",   "layer_freq=[2,3]",
                               "tags=969,30,1",      "name=a \"b\" \\c",   "swiglu=true",
                               "blend=[0.5, \"p\"]", "seed=0777"};
    OK(weft_options_parse(sections, 2, "run.json", text, overrides,
                          sizeof overrides / sizeof *overrides, &arena));
    assert_int_equal(s.model.num_layers, 5);
    assert_true(s.train.lr == 0.5);
    assert_string_equal(s.train.data_path, "123");
    assert_int_equal(s.model.position, 0);
    assert_int_equal(s.model.layer_freq.count, 2);
    assert_int_equal(s.train.tags.count, 1);
    assert_string_equal(s.train.tags.values[0], "969,30,1");
    assert_string_equal(s.train.name, "a \"b\" \\c");
    assert_true(s.model.swiglu);
    assert_string_equal(s.train.blend.values[0], "0.5");
    assert_int_equal(s.train.seed, 777);
    OK(sample_parse(&s, &arena, text, "data_path=null"));
    assert_null(s.train.data_path);
    weft_arena_release(&arena);
}

CASE(what_is_written_reads_back)
{
    static const char *const texts[] = {
        "{}",
        "{\"model\": {\"num_layers\": 7, \"layer_freq\": [], \"kind\": \"dense\"}}",
        ("{\"train\": {\"lr\": 0.1, \"weight_decay\": 3.0000000000000004e-310, \"seed\": "
         "9223372036854775807, \"name\": \"\\\"\\n\\u0001\xc3\xa9\"}}"),
        "{\"train\": {\"lr\": 0.30000000000000004, \"tags\": [\"1\", 2, \"x\"], \"blend\": \"b\"}}",
    };
    weft_arena arena = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sample first, second;
        OK(sample_parse(&first, &arena, texts[i], NULL));
        char *text = sample_written(&first);
        OK(sample_parse(&second, &arena, text, NULL));
        char *again = sample_written(&second);
        assert_string_equal(text, again);
        assert_true(first.train.lr == second.train.lr);
        assert_true(first.train.weight_decay == second.train.weight_decay);
        assert_true(first.train.seed == second.train.seed);
        assert_string_equal(first.train.name, second.train.name);
        assert_int_equal(first.train.tags.count, second.train.tags.count);
        assert_int_equal(first.model.layer_freq.is_array, second.model.layer_freq.is_array);
        free(text);
        free(again);
    }
    weft_arena_release(&arena);
}

CASE(places_are_found)
{
    static const char text[] = "// top\n{\"train\": {\"seed\": 1},\n  \"model\": {\n    "
                               "\"swiglu\": true, \"num_layers\": 3}}";
    int line = 0, column = 0;
    assert_true(weft_options_locate(text, "model.num_layers", &line, &column));
    assert_int_equal(line, 4);
    assert_int_equal(column, 21);
    assert_true(weft_options_locate(text, "model", &line, &column));
    assert_int_equal(line, 3);
    assert_int_equal(column, 3);
    assert_false(weft_options_locate(text, "model.seed", &line, &column));
    assert_false(weft_options_locate(text, "train.seed.x", &line, &column));
    assert_false(weft_options_locate(text, "", &line, &column));
    assert_false(weft_options_locate("{\"model\"", "model", &line, &column));
}

static weft_status note_difference(void *context, const char *section, const weft_key *row,
                                   const char *before, const char *after)
{
    char *list = context;
    size_t used = strlen(list);
    snprintf(list + used, 512 - used, "%s.%s %s -> %s\n", section, row->key, before, after);
    return WEFT_OK;
}

CASE(differences_are_visited)
{
    static const char *const sets[] = {"lr=0.5",       "layer_freq=[1, 0]", "position=none",
                                       "tags=[\"a\"]", "data_path=x",       "swiglu=false"};
    char list[512] = "";
    sample s[2];
    weft_option_section sections[2][2];
    weft_arena arena = {0};
    for (size_t i = 0; i < 2; i++) {
        sample_sections(&s[i], sections[i]);
        assert_int_equal(
            weft_options_parse(sections[i], 2, "run.json", NULL, sets, i ? 6 : 0, &arena), WEFT_OK);
    }
    assert_int_equal(weft_options_compare(sections[0], sections[1], 2, note_difference, list),
                     WEFT_OK);
    assert_string_equal(list, "model.position \"rope\" -> \"none\"\n"
                              "model.layer_freq 1 -> [1, 0]\n"
                              "train.lr 0.001 -> 0.5\n"
                              "train.data_path null -> \"x\"\n"
                              "train.tags [] -> [\"a\"]\n");
    weft_arena_release(&arena);
}

CASE(help_names_every_option)
{
    sample s;
    weft_option_section sections[2];
    sample_sections(&s, sections);
    for (int markdown = 0; markdown < 2; markdown++) {
        char *text = NULL;
        size_t bytes;
        FILE *file = open_memstream(&text, &bytes);
        weft_options_help(sections, 2, markdown, file);
        fclose(file);
        for (size_t i = 0; i < 2; i++) {
            for (size_t j = 0; j < sections[i].num_rows; j++) {
                assert_non_null(strstr(text, sections[i].rows[j].key));
                assert_non_null(strstr(text, sections[i].rows[j].help));
            }
        }
        assert_non_null(strstr(text, "1 to 1000"));
        assert_non_null(strstr(text, markdown ? "learned, rope, none" : "learned|rope|none"));
        free(text);
    }
}

CASE(nearest_names)
{
    static const char *const names[] = {"lr", "tp", "num_layers", "num_experts", "hidden_size"};
    assert_string_equal(weft_nearest_name("num-layers", names, 5), "num_layers");
    assert_string_equal(weft_nearest_name("num_laeyrs", names, 5), "num_layers");
    assert_string_equal(weft_nearest_name("HiddenSize", names, 5), "hidden_size");
    assert_string_equal(weft_nearest_name("numexpert", names, 5), "num_experts");
    assert_string_equal(weft_nearest_name("l", names, 5), "lr");
    assert_null(weft_nearest_name("zz", names, 5));
    assert_null(weft_nearest_name("", names, 5));
    assert_null(weft_nearest_name("optimizer_state", names, 5));
    assert_null(weft_nearest_name("lr", names, 0));
}

CASE(running_out_of_memory_is_reported)
{
    static const char text[] = "{\"train\": {\"name\": \"abc\", \"blend\": [1, \"b\"]}}";
    for (int n = 1; n < 200; n++) {
        weft_arena arena = {0};
        sample s;
        weft_alloc_fail_after(n);
        weft_status status = sample_parse(&s, &arena, text, "tags=[\"x\", \"y\"]");
        weft_alloc_fail_after(0);
        weft_arena_release(&arena);
        if (status == WEFT_OK)
            return;
        assert_int_equal(status, WEFT_MEMORY);
    }
    fail_msg("parsing never succeeded");
}

CASE(suffixes_are_read)
{
    static const struct {
        const char *unit, *text;
        double wanted; /* 0: refused */
    } cases[] = {
        {"bytes", "8GiB", 8589934592},
        {"bytes", "16 GB", 16e9},
        {"bytes", "8gib", 8589934592},
        {"bytes", "16 gb", 16e9},
        {"bytes", "8gB", 8e9},
        {"bytes", "8GIB", 0},
        {"bytes", "64k", 65536},
        {"bytes", "1.5m", 1572864},
        {"bytes", "1PiB", 1125899906842624},
        {"bytes", "1e3GiB", 1073741824000},
        {"bytes", "2.kB", 2000},
        {"bytes", "1.2.3GiB", 0},
        {"bytes", "-1GiB", 0},
        {"bytes", ".5GiB", 0},
        {"bytes", "infGiB", 0},
        {"bytes", "4Gib", 0},
        {"bytes", "4B", 0},
        {"bytes", "8GiBs", 0},
        {"bytes/s", "25GB", 25e9},
        {"tokens", "128k", 131072},
        {"tokens", "1M", 1048576},
        {"tokens", "20B", 0},
        {"samples", "1000M", 1e9},
        {"samples", "2t", 2e12},
        {"tokens", "2TB", 0},
        {"steps", "512k", 512000},
        {"FLOP/s", "989T", 989e12},
        {"s", "30m", 1800},
        {"s", "4h", 14400},
        {"s", "1.5 d", 129600},
        {"s", "4H", 0},
        {"s", "4k", 0},
        {NULL, "4k", 0},
        {"steps", "0x10k", 0},
        {"steps", "-4k", 0},
        {"steps", "", 0},
        {"steps", "1e400k", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        double value;
        const bool good =
            weft_quantity_read(weft_quantity_of(cases[i].unit), text, strlen(text), &value);
        if (good != (cases[i].wanted > 0) || (good && value != cases[i].wanted))
            fail_msg("%s of %s: %d, %.17g", text, cases[i].unit, good, good ? value : 0);
    }
}

CASE(suffixes_stand_in_files_and_overrides)
{
    sample s;
    weft_arena arena = {0};
    weft_option_section sections[2];
    const char *over = "num_layers=0.5k";
    sample_sections(&s, sections);
    OK(weft_options_parse(sections, 2, "run.json", "{\"train\": {\"num_steps\": \"20 B\"}}", &over,
                          1, &arena));
    assert_int_equal(s.train.num_steps, 20000000000);
    assert_int_equal(s.model.num_layers, 500);
    weft_arena_release(&arena);
}

CASE(any_bytes_are_quoted_as_utf8)
{
    static const struct {
        const char *bytes;
        size_t num;
        const char *wanted;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\0\x1f\x7f\"\\\n", 7, "\"a\\u0000\\u001f\\u007f\\\"\\\\\\n\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\""},
        /* Unicode 15, table 3-8: a maximal beginning of a character is one U+FFFD. */
        {"\xf1\x80\x80\xe1\x80\xc2"
         "b\x80",
         8,
         "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
         "b\xef\xbf\xbd\""},
        /* Overlong, a surrogate half, beyond U+10FFFF, and cut off at the end. */
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf4\x90", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\""},
    };
    weft_arena arena = {0};
    const char *quoted;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OK(weft_json_quote_bytes(cases[i].bytes, cases[i].num, &arena, &quoted));
        assert_string_equal(quoted, cases[i].wanted);
    }
    weft_arena_release(&arena);
}

CASE(test_reason)
{
    static const struct {
        const char *reasons, *holds;
    } rows[] = {
        {NULL, NULL},
        {"model.num_layers is 8", "model.num_layers is 8"},
        {"model.num_layers is 9; model.position is not none", "model.position is not none"},
        {"model.num_layers is 8 and train.seed 1", NULL},
        {"model.num_layers is 8 and train.seed 1234", "model.num_layers is 8 and train.seed 1234"},
        {"train.num_steps, seed are 10", NULL},
        {"train.name is given and train.tags is []", "train.name is given and train.tags is []"},
        {"train.name is not given", NULL},
        {"train.lr is below 0.1", "train.lr is below 0.1"},
        {"train.lr is low (train.lr is below 1e-4); train.lr is odd (train.lr is not 0)",
         "train.lr is odd"},
        {"is low (is at most 1e-3 and model.position is rope)", "is low"},
        {"is high (is not 0 and is not at most 1e-3)", NULL},
    };
    sample s;
    weft_option_section sections[2];
    weft_arena arena = {0};
    const char *why;
    sample_sections(&s, sections);
    assert_int_equal(weft_options_parse(sections, 2, "f", NULL, NULL, 0, &arena), WEFT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(
            weft_options_reason(sections, 2, "train.lr", rows[i].reasons, &arena, &why), WEFT_OK);
        if (!why != !rows[i].holds || (why && strcmp(why, rows[i].holds) != 0))
            fail_msg("%s: %s", rows[i].reasons, why ? why : "none holds");
    }
    assert_int_equal(weft_options_reason(sections, 2, "", "model.layers is 1", &arena, &why),
                     WEFT_INTERNAL);
    weft_arena_release(&arena);
}
