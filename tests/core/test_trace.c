#include "core/trace.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

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
    return weft_trace_write_svg(trace, "a < b & \"c\"", 800, out);
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

static void json_parses_and_holds_everything(void **state)
{
    (void)state;
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

static void svg_is_to_scale(void **state)
{
    (void)state;
    weft_trace *trace;
    OK(weft_trace_create(&trace));
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
    assert_true(x[2] + width[2] <= 800 && width[3] > 0.3 && width[3] < 3);
    assert_non_null(strstr(svg, ">rank 0 compute</text>"));
    assert_non_null(strstr(svg, ">rank 0 send</text>"));
    assert_non_null(strstr(svg, ">rank 1 compute</text>"));
    assert_non_null(strstr(svg, ">0 ms</text>"));
    assert_non_null(strstr(svg, ">100</text>"));
    assert_non_null(strstr(svg, ">backward</text>")); /* legend */
    assert_non_null(strstr(svg, ">F0</text>"));       /* fits its box */
    assert_null(strstr(svg, ">&lt;s&gt;</text>"));    /* does not */
    assert_non_null(strstr(svg, ">a &lt; b &amp; &quot;c&quot;</text>"));
    free(svg);
    weft_trace_destroy(trace);
}

static void empty_and_instant_traces_draw(void **state)
{
    (void)state;
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

static void many_categories_and_stages_draw(void **state)
{
    (void)state;
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

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    weft_trace *trace;
    FILE *out = fopen("/dev/full", "w");
    if (!out)
        skip();
    OK(weft_trace_create(&trace));
    add(trace, 0, 0, "F0", "forward", 0, 1, 0, 0);
    FAILS(weft_trace_write_json(trace, out), WEFT_FILE, "could not be written");
    FAILS(write_svg(trace, out), WEFT_FILE, "could not be written");
    fclose(out);
    weft_trace_destroy(trace);
}

enum { NUM_THREADS = 4, NUM_EACH = 2000 };

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

static void threads_may_add(void **state)
{
    (void)state;
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

static void the_clock_runs(void **state)
{
    (void)state;
    double before = weft_now_us();
    struct timespec nap = {.tv_nsec = 2000000};
    nanosleep(&nap, NULL);
    double passed = weft_now_us() - before;
    assert_true(passed >= 1999 && passed < 5e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_parses_and_holds_everything),
        cmocka_unit_test(svg_is_to_scale),
        cmocka_unit_test(empty_and_instant_traces_draw),
        cmocka_unit_test(many_categories_and_stages_draw),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(threads_may_add),
        cmocka_unit_test(the_clock_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
