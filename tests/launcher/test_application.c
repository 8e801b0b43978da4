/* What a program hands in: its struct's size, a section of the config of its own, and the errors
 * that name either. */
#include <string.h>

#include <weft/kernels.h>

#include "launcher/planning/config.h"
#include "launcher/training/progress.h"
#include "tests/core/check.h"

typedef struct task_options {
    double weight;
    int64_t rounds;
    const char *name;
} task_options;

static const weft_option_row task_rows[] = {
    {"weight", WEFT_OPTION_DOUBLE, offsetof(task_options, weight), "0.5", 0, 10, NULL, NULL,
     "what the task's loss is multiplied by"},
    {"rounds", WEFT_OPTION_INT, offsetof(task_options, rounds), "3", 1, 9, NULL, "rounds",
     "how often"},
    {"name", WEFT_OPTION_STRING, offsetof(task_options, name), NULL, 0, 0, NULL, NULL, "of it"},
};

static const weft_application task = {.struct_bytes = sizeof(weft_application),
                                      .section = "task",
                                      .section_help = "the task",
                                      .rows = task_rows,
                                      .num_rows = 3,
                                      .options_bytes = sizeof(task_options)};

static void expect_refused(weft_application app, const char *text)
{
    weft_application out;
    assert_int_not_equal(weft_application_take(&app, &out), WEFT_OK);
    if (!strstr(weft_error_get()->text, text))
        fail_msg("\"%s\" does not say \"%s\"", weft_error_get()->text, text);
}

CASE(test_sizes)
{
    /* an older program knows less: what follows its struct is not read */
    unsigned char older[sizeof task];
    weft_application out;
    memset(older, 0xff, sizeof older);
    memcpy(older, &task, offsetof(weft_application, section));
    memcpy(older, &(size_t){offsetof(weft_application, section)}, sizeof(size_t));
    assert_int_equal(weft_application_take((const weft_application *)(void *)older, &out), WEFT_OK);
    assert_null(out.section);
    assert_int_equal(out.struct_bytes, sizeof out);

    weft_application app = task;
    app.struct_bytes = 0;
    expect_refused(app, "weft_application: struct_bytes is 0; set it to sizeof(weft_application)");
    app.struct_bytes = sizeof app + 8;
    expect_refused(app, "compiled with other headers");
    app.struct_bytes = 3;
    expect_refused(app, "compiled with other headers");
    assert_int_equal(weft_application_take(NULL, &out), WEFT_INTERNAL);
}

static void expect_status(weft_status status, weft_status wanted, const char *text)
{
    assert_int_equal(status, wanted);
    if (!strstr(weft_error_get()->text, text))
        fail_msg("\"%s\" does not say \"%s\"", weft_error_get()->text, text);
}

CASE(test_kernel_sizes)
{
    weft_device *device;
    weft_lane *lane;
    float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1}, c[4] = {0};
    assert_int_equal(weft_device_create_cpu(1, 0, &device), WEFT_OK);
    assert_int_equal(weft_lane_create(device, 0, "sizes", &lane), WEFT_OK);
    weft_gemm_args args = WEFT_ARGS(weft_gemm_args, .m = 2, .n = 2, .k = 2, .a = a, .b = b, .c = c);
    /* of an older program: what lies behind its struct is no epilogue */
    args.struct_bytes = offsetof(weft_gemm_args, epilogue);
    memset((char *)&args + args.struct_bytes, 0xff, sizeof args - args.struct_bytes);
    assert_int_equal(weft_gemm(lane, &args), WEFT_OK);
    assert_int_equal(weft_lane_sync(lane), WEFT_OK);
    assert_memory_equal(c, a, sizeof c);
    args.struct_bytes = 0;
    expect_status(weft_gemm(lane, &args), WEFT_INTERNAL, "weft_gemm_args: struct_bytes is 0");
    args.struct_bytes = 1 << 20;
    expect_status(weft_gemm(lane, &args), WEFT_INTERNAL, "compiled with other headers");
    weft_lane_destroy(lane);
    weft_device_destroy(device);
}

static weft_status fill(const weft_sample *sample)
{
    for (size_t i = 0; i < sample->seq_length; i++) {
        sample->tokens[i] = (int32_t)(sample->index + i + 10 * (uint64_t)sample->use);
        sample->labels[i] = -(int32_t)i;
    }
    if (sample->index == 5)
        return WEFT_ERROR(WEFT_FILE, "nothing to fill it from");
    return WEFT_OK;
}

CASE(test_own_data)
{
    weft_dataset *dataset;
    weft_split splits[3];
    int32_t tokens[4], labels[4];
    assert_int_equal(weft_dataset_open_own(fill, NULL, 32, &dataset), WEFT_OK);
    assert_int_equal(weft_dataset_split(dataset, 4, 0, (double[3]){9, 1, 0}, splits), WEFT_OK);
    /* in order, though the run shuffles files */
    assert_int_equal(weft_split_read(&splits[1], 5, true, 7, tokens, labels), WEFT_OK);
    assert_true(tokens[0] == 17 && tokens[3] == 20 && labels[3] == -3);
    expect_status(weft_split_read(&splits[0], 5, true, 30, tokens, labels), WEFT_CONFIG,
                  "token 32 at 2 of training sample 30 is outside a vocabulary of 32");
    expect_status(weft_split_read(&splits[2], 5, true, 0, tokens, labels), WEFT_CONFIG,
                  "no samples");
    expect_status(weft_split_read(&splits[1], 5, true, 5, tokens, labels), WEFT_FILE,
                  "own data: validation sample 5: nothing to fill it from");
    weft_dataset_set_labels(dataset, true); /* as under Weft's head */
    expect_status(weft_split_read(&splits[1], 5, true, 7, tokens, labels), WEFT_CONFIG,
                  "label -1 at 1 of validation sample 7 is outside a vocabulary of 32");
    weft_dataset_close(dataset);
}

CASE(test_metric_keys)
{
    weft_metric_list list = {.count = 1, .rows = {{"accuracy", WEFT_METRIC_MEAN, 0}}};
    assert_int_equal(weft_progress_check_metrics(&list), WEFT_OK);
    strcpy(list.rows[0].name, "grad_norm");
    expect_status(weft_progress_check_metrics(&list), WEFT_CONFIG,
                  "metric grad_norm: Weft writes that key itself");
}

CASE(test_sections)
{
    weft_application app = task;
    app.section = "train";
    expect_refused(app, "section train is Weft's own");
    app = task;
    app.options_bytes = sizeof(double);
    expect_refused(app, "task.rounds lies outside the 8 bytes");
    weft_option_row twice[] = {task_rows[0], task_rows[0]};
    app = task;
    app.rows = twice;
    app.num_rows = 2;
    expect_refused(app, "two rows are named task.weight");
    app.num_rows = WEFT_MAX_OWN_ROWS + 1;
    expect_refused(app, "section task has 257 rows; at most 256");
}

static weft_status load(const char *text, const char *set, weft_arena *arena, weft_config *out)
{
    weft_config_source source = {.file = "task.json",
                                 .text = text,
                                 .set = &set,
                                 .num_set = set ? 1 : 0,
                                 .application = &task};
    return weft_config_load(&source, arena, out);
}

#define MOCK "\"data\": {\"mock_data\": true}, \"model\": {\"vocab_size\": 64}"

static void expect_bad(const char *text, const char *set, const char *message)
{
    weft_arena arena = {0};
    weft_config config;
    assert_int_equal(load(text, set, &arena, &config), WEFT_CONFIG);
    if (!strstr(weft_error_get()->text, message))
        fail_msg("\"%s\" does not say \"%s\"", weft_error_get()->text, message);
    weft_arena_release(&arena);
}

CASE(test_config)
{
    weft_arena arena = {0};
    weft_config config, other, again;
    assert_int_equal(load("{" MOCK ", \"task\": {\"name\": \"x\"}}", "weight=2", &arena, &config),
                     WEFT_OK);
    const task_options *own = config.own;
    assert_true(own->weight == 2 && own->rounds == 3 && strcmp(own->name, "x") == 0);
    /* each config has its own struct, and its text gives the same values */
    assert_int_equal(load("{" MOCK "}", NULL, &arena, &other), WEFT_OK);
    assert_true(own->weight == 2 && ((const task_options *)other.own)->weight == 0.5);
    const char *text;
    assert_int_equal(weft_config_text(&config, &arena, &text), WEFT_OK);
    assert_int_equal(load(text, NULL, &arena, &again), WEFT_OK);
    assert_true(((const task_options *)again.own)->weight == 2);
    weft_arena_release(&arena);

    expect_bad("{" MOCK ",\n\"task\": {\"wieght\": 1}}", NULL,
               "task.json:2:10: task.wieght: unknown key; did you mean task.weight?");
    expect_bad("{" MOCK ",\n\"task\": {\"rounds\": 10}}", NULL, "task.json:2:20: task.rounds:");
    expect_bad("{" MOCK ",\n\"tsak\": {}}", NULL, "did you mean task?");
    expect_bad("{" MOCK "}", "task.rounds=0", "--set task.rounds=0");
}
