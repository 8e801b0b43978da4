#include "core/trace/trace.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/core/check.h"

static const char *const lanes[] = {"compute", "send"};

static void add(weft_trace *trace, int rank, int lane, const char *name, const char *category,
                double start_us, double end_us, int micro_batch, int stage)
{
    weft_slice slice = {.rank = rank,
                        .lane = lane,
                        .start_us = start_us,
                        .end_us = end_us,
                        .micro_batch = micro_batch,
                        .stage = stage};
    snprintf(slice.name, sizeof slice.name, "%s", name);
    snprintf(slice.category, sizeof slice.category, "%s", category);
    OK(weft_trace_add(trace, &slice));
}

typedef weft_status (*writer)(const weft_trace *trace, FILE *out);

static weft_status write_svg(const weft_trace *trace, FILE *out)
{
    return weft_trace_write_svg(trace, "a < b & \"c\"", "two ranks", out);
}

/* What the writer writes, as a text to free. */
static char *written(const weft_trace *trace, writer write)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    OK(write(trace, out));
    fclose(out);
    return text;
}

static const cJSON *event_named(const cJSON *events, const char *phase, const char *name)
{
    const cJSON *event;
    cJSON_ArrayForEach(event, events)
    {
        if (!strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "ph")), phase) &&
            !strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "name")), name))
            return event;
    }
    fail_msg("no event %s", name);
    return NULL;
}

static double number_of(const cJSON *object, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, key));
}

CASE(json_parses_and_holds_everything)
{
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    weft_trace_name_lanes(trace, lanes, 2);
    add(trace, 1, 0, "B\"0\\\n", "backward", 20.5, 41.125, 3, 1);
    add(trace, 0, 0, "F0", "forward", 0, 10, 0, 0);
    add(trace, 0, 7, "odd", "other", 1, 2, -1, -1);
    char *text = written(trace, weft_trace_write_json);
    cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
    assert_non_null(root);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    assert_int_equal(cJSON_GetArraySize(events), 2 + 3 + 3); /* ranks, tracks, slices */

    const cJSON *slice = event_named(events, "X", "B\"0\\\n");
    assert_true(number_of(slice, "ts") == 20.5 && number_of(slice, "dur") == 20.625);
    assert_true(number_of(slice, "pid") == 1 && number_of(slice, "tid") == 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(slice, "cat")), "backward");
    const cJSON *args = cJSON_GetObjectItem(slice, "args");
    assert_true(number_of(args, "micro_batch") == 3 && number_of(args, "stage") == 1);
    args = cJSON_GetObjectItem(event_named(events, "X", "odd"), "args");
    assert_int_equal(cJSON_GetArraySize(args), 0);

    int found = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, events)
    {
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(event, "name")), "thread_name") == 0) {
            const char *name = cJSON_GetStringValue(
                cJSON_GetObjectItem(cJSON_GetObjectItem(event, "args"), "name"));
            assert_string_equal(name, number_of(event, "tid") == 7 ? "lane 7" : "compute");
            found++;
        }
    }
    assert_int_equal(found, 3);
    cJSON_Delete(root);
    free(text);
    weft_trace_destroy(trace);
}

/* Every element is closed in its order, attributes are quoted, no stray markup is in the text. */
static void expect_well_formed(const char *text)
{
    char open[32][16];
    int depth = 0, elements = 0;
    for (const char *c = text; *c; c++) {
        assert_true(*c != '>');
        if (*c == '&')
            assert_true(!strncmp(c, "&lt;", 4) || !strncmp(c, "&gt;", 4) ||
                        !strncmp(c, "&amp;", 5) || !strncmp(c, "&quot;", 6));
        if (*c != '<')
            continue;
        char name[16];
        bool closing = c[1] == '/';
        assert_int_equal(sscanf(c + 1 + closing, "%15[a-z]", name), 1);
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else {
            assert_true(depth < 32 && (depth > 0 || elements == 0));
            strcpy(open[depth++], name);
        }
        elements++;
        for (bool quoted = false; *c != '>' || quoted; c++) {
            assert_true(*c && (c == text || *c != '<' || !quoted));
            quoted ^= *c == '"';
        }
        if (c[-1] == '/')
            depth--;
    }
    assert_int_equal(depth, 0);
    assert_true(elements > 3);
}

/* x and width of the box whose tooltip begins with `title`. */
static void box_of(const char *svg, const char *title, double *x, double *width)
{
    char tag[64];
    snprintf(tag, sizeof tag, "<title>%s", title);
    const char *at = strstr(svg, tag);
    assert_non_null(at);
    at = strstr(at, "<rect ");
    assert_int_equal(sscanf(at, "<rect x=\"%lf\" y=\"%*f\" width=\"%lf\"", x, width), 2);
}

CASE(svg_is_to_scale)
{
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    weft_trace_name_ranks(trace, (const char *const[]){"rank 0: stage 0"}, 1);
    weft_trace_name_lanes(trace, lanes, 2);
    add(trace, 1, 0, "F1", "forward", 5e6 + 30e3, 5e6 + 40e3, 1, 1);
    add(trace, 0, 0, "F0", "forward", 5e6, 5e6 + 10e3, 0, 0);
    add(trace, 0, 0, "B0", "backward", 5e6 + 80e3, 5e6 + 100e3, 0, 0);
    add(trace, 0, 1, "<s>", "send", 5e6 + 10e3, 5e6 + 10.01e3, 0, 0);
    char *svg = written(trace, write_svg);
    expect_well_formed(svg);
    double x[4], width[4];
    box_of(svg, "F0 forward: 0.0 to 10000.0", &x[0], &width[0]);
    box_of(svg, "F1 forward", &x[1], &width[1]);
    box_of(svg, "B0 backward", &x[2], &width[2]);
    box_of(svg, "&lt;s&gt; send", &x[3], &width[3]);
    double unit = (x[2] - x[0]) / 80; /* pixels a millisecond */
    assert_true(fabs(x[1] - x[0] - 30 * unit) < 0.1);
    assert_true(fabs(width[0] - 10 * unit) <= 1.1 && fabs(width[2] - 20 * unit) <= 1.1);
    assert_true(x[2] + width[2] <= 720 && width[3] > 0.3 && width[3] < 3);
    assert_non_null(strstr(svg, ">rank 0: stage 0</text>"));
    assert_non_null(strstr(svg, ">rank 1</text>")); /* without a name of its own */
    assert_non_null(strstr(svg, ">compute</text>"));
    assert_non_null(strstr(svg, ">send</text>"));
    assert_non_null(strstr(svg, ">two ranks</text>"));
    assert_non_null(strstr(svg, ">0 ms</text>"));
    assert_non_null(strstr(svg, ">100</text>"));
    assert_non_null(strstr(svg, ">backward (B)</text>")); /* legend */
    assert_non_null(strstr(svg, ">number: micro-batch, "));
    assert_non_null(strstr(svg, ">F0</text>"));    /* fits its box */
    assert_null(strstr(svg, ">&lt;s&gt;</text>")); /* does not */
    assert_non_null(strstr(svg, ">a &lt; b &amp; &quot;c&quot;</text>"));
    free(svg);
    weft_trace_destroy(trace);
}

/* CIE Lab of a colour "#rrggbb" as seen with all cones, without red and without green ones (Machado
 * et al. 2009, severity 1). */
static void lab_of(const char *colour, int sight, double out[3])
{
    static const double sights[3][3][3] = {
        {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
        {{0.152286, 1.052583, -0.204868},
         {0.114503, 0.786281, 0.099216},
         {-0.003882, -0.048116, 1.051998}},
        {{0.367322, 0.860646, -0.227968},
         {0.280085, 0.672501, 0.047413},
         {-0.011820, 0.042940, 0.968881}},
    };
    static const double xyz[3][3] = {
        {0.4339, 0.3762, 0.1899}, {0.2126, 0.7152, 0.0722}, {0.0178, 0.1095, 0.8730}};
    double linear[3], seen[3], f[3];
    for (int i = 0; i < 3; i++) {
        char digits[3] = {colour[1 + 2 * i], colour[2 + 2 * i], '\0'};
        double value = (double)strtol(digits, NULL, 16) / 255;
        linear[i] = value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
    }
    for (int i = 0; i < 3; i++) {
        const double *row = sights[sight][i];
        double sum = row[0] * linear[0] + row[1] * linear[1] + row[2] * linear[2];
        seen[i] = fmin(fmax(sum, 0), 1);
    }
    for (int i = 0; i < 3; i++) {
        double sum = xyz[i][0] * seen[0] + xyz[i][1] * seen[1] + xyz[i][2] * seen[2];
        f[i] = sum > 0.008856 ? cbrt(sum) : 7.787 * sum + 16.0 / 116;
    }
    out[0] = 116 * f[1] - 16;
    out[1] = 500 * (f[0] - f[1]);
    out[2] = 200 * (f[1] - f[2]);
}

/* Every kind has a colour that no other is near, and stands in the legend once. */
CASE(kinds_are_told_apart)
{
    static const char *const kinds[] = {"forward", "backward", "recompute", "moe",
                                        "gating",  "permute",  "expert",    "step",
                                        "send",    "receive",  "counts",    "dispatch",
                                        "combine", "gather",   "place",     "tensor",
                                        "reduce",  "offload",  "prefetch",  "a kind of one's own"};
    enum { NUM_KINDS = sizeof kinds / sizeof *kinds };
    char fills[NUM_KINDS][8] = {""};
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    for (int i = 0; i < NUM_KINDS; i++) {
        char back[16], kind[16];
        snprintf(kind, sizeof kind, "%s", kinds[i]);
        snprintf(back, sizeof back, "%.10s back", kinds[i]);
        add(trace, 0, i, "x", kind, 0, 10, 0, 0);
        if (i < NUM_KINDS - 1)
            add(trace, 0, i, "x", back, 20, 30, 0, 0);
    }
    char *svg = written(trace, write_svg);
    int seen = 0;
    const char *swatch = "width=\"16\" height=\"16\" rx=\"2\" fill=\"";
    for (const char *at = svg; (at = strstr(at, swatch)) != NULL && seen < NUM_KINDS; seen++) {
        char name[16] = "";
        int kind = 0;
        at += strlen(swatch);
        assert_int_equal(sscanf(strstr(at, "<text "), "%*[^>]>%15[^<]", name), 1);
        name[strcspn(name, "(") - (strchr(name, '(') != NULL)] = '\0';
        while (kind < NUM_KINDS && strncmp(kinds[kind], name, 15) != 0)
            kind++;
        assert_true(kind < NUM_KINDS && fills[kind][0] == '\0');
        snprintf(fills[kind], sizeof fills[kind], "%.7s", at);
    }
    assert_int_equal(seen, NUM_KINDS);
    assert_non_null(strstr(svg, ">striped: backward</text>"));
    for (int i = 0; i < NUM_KINDS; i++)
        for (int j = 0; j < i; j++)
            for (int sight = 0; sight < 3; sight++) {
                double a[3], b[3];
                lab_of(fills[i], sight, a);
                lab_of(fills[j], sight, b);
                double far = sqrt(pow(a[0] - b[0], 2) + pow(a[1] - b[1], 2) + pow(a[2] - b[2], 2));
                if (far < 15)
                    fail_msg("%s %s and %s %s: %.1f apart", kinds[i], fills[i], kinds[j], fills[j],
                             far);
            }
    free(svg);
    weft_trace_destroy(trace);
}

/* Letters, numbers and shades are explained where a name or a box has them; words are not split. */
CASE(legends_explain_names)
{
    static const weft_trace_letters rows[] = {{"", "activation"}, {"g", "gradient"}, {"k", "keys"}};
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    add(trace, 0, 0, "moe", "moe", 0, 10, -1, -1);
    add(trace, 0, 1, "own words", "own", 0, 10, -1, -1);
    char *svg = written(trace, write_svg);
    assert_non_null(strstr(svg, ">moe</text>"));
    assert_non_null(strstr(svg, ">own</text>"));
    assert_null(strstr(svg, "number: "));
    free(svg);
    weft_trace_explain(trace, rows, 3);
    add(trace, 0, 2, "sg3", "send", 0, 10, 3, 0);
    add(trace, 0, 2, "s4", "send", 20, 30, 4, 1);
    svg = written(trace, write_svg);
    assert_non_null(strstr(svg, ">send (s)</text>"));
    assert_non_null(strstr(svg, ">g: gradient; number: micro-batch, "));
    assert_non_null(strstr(svg, "paler: "));
    assert_null(strstr(svg, "k: keys"));
    free(svg);
    weft_trace_destroy(trace);
}

CASE(a_file_says_what_it_is_of)
{
    static const weft_trace_fact facts[] = {{"step", "3"}, {"mesh", "dp \"2\""}};
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    add(trace, 0, 0, "F0", "forward", 7, 8, -1, -1);
    weft_trace_tell(trace, facts, 2);
    char *json = written(trace, weft_trace_write_json);
    cJSON *root = cJSON_ParseWithOpts(json, NULL, 1);
    const cJSON *of = cJSON_GetObjectItem(root, "otherData");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(of, "step")), "3");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(of, "mesh")), "dp \"2\"");
    cJSON_Delete(root);
    free(json);
    weft_trace_destroy(trace);
}

CASE(empty_and_instant_traces_draw)
{
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    for (int round = 0; round < 2; round++) {
        char *svg = written(trace, write_svg), *json = written(trace, weft_trace_write_json);
        expect_well_formed(svg);
        assert_null(strstr(svg, "nan"));
        assert_null(strstr(svg, "inf"));
        cJSON *root = cJSON_ParseWithOpts(json, NULL, 1);
        assert_non_null(root);
        cJSON_Delete(root);
        free(svg);
        free(json);
        add(trace, 0, 0, "F0", "forward", 7, 7, -1, -1);
    }
    weft_trace_clear(trace);
    assert_int_equal(weft_trace_count(trace), 0);
    weft_trace_destroy(trace);
    weft_trace_destroy(NULL);
}

CASE(many_categories_and_stages_draw)
{
    weft_trace *trace;
    OK(weft_trace_create(&trace));
    for (int i = 0; i < 60; i++) {
        char category[16];
        snprintf(category, sizeof category, "kind%d", i);
        add(trace, i % 7, i % 3, "x", category, i, i + 1, i, (i * 5) % 11);
    }
    char *svg = written(trace, write_svg);
    expect_well_formed(svg);
    free(svg);
    weft_trace_destroy(trace);
}

CASE(a_full_disk_is_an_error)
{
    weft_trace *trace;
    FILE *out = fopen("/dev/full", "w");
    if (!out)
        skip();
    OK(weft_trace_create(&trace));
    add(trace, 0, 0, "F0", "forward", 0, 1, 0, 0);
    FAILS(weft_trace_write_json(trace, out), WEFT_FILE, "No space left on device");
    FAILS(write_svg(trace, out), WEFT_FILE, "No space left on device");
    fclose(out);
    weft_trace_destroy(trace);
}

enum { NUM_THREADS = 4, NUM_EACH = 2000 };

/* What was there before stays where the new file could not be written whole. */
CASE(a_file_is_written_whole_or_not_at_all)
{
    char path[] = "trace_whole_XXXXXX", text[8] = "";
    weft_trace *trace;
    struct rlimit before, small;
    OK(weft_trace_create(&trace));
    weft_trace_name_lanes(trace, lanes, 2);
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "before", 6) == 6 && close(fd) == 0);
    for (int i = 0; i < 64; i++)
        add(trace, 0, 0, "F0", "forward", i, i + 1, i, 0);
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(weft_trace_write_file(trace, path, "title", "axes"), WEFT_FILE);
    setrlimit(RLIMIT_FSIZE, &before);
    FILE *file = fopen(path, "r");
    assert_true(file && fgets(text, sizeof text, file) && fclose(file) == 0);
    assert_string_equal(text, "before");
    OK(weft_trace_write_file(trace, path, "title", "axes"));
    OK(weft_trace_write_file(trace, "/dev/null", NULL, NULL));
    unlink(path);
    weft_trace_destroy(trace);
}

static void *add_many(void *arg)
{
    weft_slice slice = {.name = "x", .category = "forward", .micro_batch = -1, .stage = -1};
    for (int i = 0; i < NUM_EACH; i++) {
        slice.start_us = i;
        slice.end_us = i + 1;
        if (weft_trace_add(arg, &slice) != WEFT_OK)
            return NULL;
    }
    return arg;
}

CASE(threads_may_add)
{
    weft_trace *trace;
    pthread_t threads[NUM_THREADS];
    OK(weft_trace_create(&trace));
    for (int i = 0; i < NUM_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, trace), 0);
    for (int i = 0; i < NUM_THREADS; i++) {
        void *done;
        pthread_join(threads[i], &done);
        assert_non_null(done);
    }
    assert_int_equal(weft_trace_count(trace), NUM_THREADS * NUM_EACH);
    double sum = 0;
    for (size_t i = 0; i < weft_trace_count(trace); i++)
        sum += weft_trace_slices(trace)[i].start_us;
    assert_true(sum == (double)NUM_THREADS * NUM_EACH * (NUM_EACH - 1) / 2);
    weft_trace_destroy(trace);
}

CASE(the_clock_runs)
{
    struct timespec nap = {.tv_nsec = 2000000}, begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    double before = weft_now_us();
    nanosleep(&nap, NULL);
    double passed = weft_now_us() - before;
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double most =
        1e6 * (double)(end.tv_sec - begin.tv_sec) + 1e-3 * (double)(end.tv_nsec - begin.tv_nsec);
    assert_true(passed >= 1999 && passed <= most + 1);
}
