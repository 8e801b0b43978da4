/* weft prepare, as a process: files, what it prints, exit codes. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "core/dataset/dataset.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/verbs/train/train.h"
#include "tests/core/check.h"
#include "tests/core/temporary.h"
#include "tests/launcher/vocabulary.h"

enum { MAX_ARGUMENTS = 16, MAX_OUTPUT = 8192 };

static char printed[MAX_OUTPUT], complained[MAX_OUTPUT];

static void read_output(const char *name, char out[MAX_OUTPUT])
{
    size_t bytes;
    unsigned char *data = temporary_read(temporary_path(name), &bytes);
    assert_in_range(bytes, 0, MAX_OUTPUT - 1);
    memcpy(out, data, bytes);
    out[bytes] = '\0';
    free(data);
}

/* Runs the verb in a process of its own; returns its exit code. */
static int run(const char *const *arguments)
{
    char *argv[MAX_ARGUMENTS + 1] = {"prepare"};
    int argc = 1;
    for (; arguments[argc - 1]; argc++)
        argv[argc] = strdup(arguments[argc - 1]);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen(temporary_path("stdout"), "w", stdout) ||
            !freopen(temporary_path("stderr"), "w", stderr))
            _exit(99);
        int code = weft_verb_prepare(argc, argv, NULL);
        fflush(NULL);
        _exit(code);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    for (int i = 1; i < argc; i++)
        free(argv[i]);
    read_output("stdout", printed);
    read_output("stderr", complained);
    return WEXITSTATUS(status);
}

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static char text_path[256], more_path[256], out_path[256];

static int create_texts(void **state)
{
    static const char text[] = "one\ntwo\n\n \t\nthree\n", more[] = "\n\nfour \xff\n\nfive";
    if (temporary_create(state) != 0)
        return -1;
    snprintf(text_path, sizeof(text_path), "%s", temporary_path("text.txt"));
    snprintf(more_path, sizeof(more_path), "%s", temporary_path("more.txt"));
    snprintf(out_path, sizeof(out_path), "%s", temporary_path("out"));
    temporary_write(text_path, text, sizeof(text) - 1);
    temporary_write(more_path, more, sizeof(more) - 1);
    return 0;
}

/* The dataset's tokens as text, with the end of a document as '|'. */
static void expect_tokens(const char *wanted, uint64_t documents)
{
    weft_dataset *dataset;
    char got[256];
    int32_t tokens[256];
    OK(weft_dataset_open(out_path, &dataset));
    assert_int_equal(weft_dataset_num_documents(dataset), documents);
    size_t count = (size_t)weft_dataset_num_tokens(dataset);
    assert_in_range(count, 1, 255);
    OK(weft_dataset_read(dataset, 0, count, tokens));
    for (size_t i = 0; i < count; i++)
        got[i] = tokens[i] == 256 ? '|' : (char)tokens[i];
    got[count] = '\0';
    assert_string_equal(got, wanted);
    weft_dataset_close(dataset);
}

static void each_file_is_a_document(void **state)
{
    (void)state;
    assert_int_equal(RUN(text_path, more_path, "--out", out_path), 0);
    assert_string_equal(complained, "");
    assert_non_null(strstr(printed, "documents 2, tokens 32 (1.00 bytes each), vocabulary 257 "
                                    "(bytes)\n"));
    assert_non_null(strstr(printed, "out.bin"));
    expect_tokens("one\ntwo\n\n \t\nthree\n\n\nfour \xff\n\nfive", 2);
    assert_int_equal(RUN(text_path, "--append-eod", more_path, "--out", out_path), 0);
    expect_tokens("one\ntwo\n\n \t\nthree\n|\n\nfour \xff\n\nfive|", 2);
}

static const char identity[] = "bytes 257 256  "; /* weft_tokenizer_identity */

/* What a start would know of the dataset without reading it. */
static bool recalls(const char *prefix, const char *of, weft_known *out)
{
    weft_dataset *dataset;
    OK(weft_dataset_open(prefix, &dataset));
    const bool found = weft_known_recall(dataset, NULL, of, out);
    weft_dataset_close(dataset);
    return found;
}

static weft_known look(const char *prefix, bool keeps)
{
    weft_dataset *dataset;
    weft_known known;
    bool kept = false;
    OK(weft_dataset_open(prefix, &dataset));
    if (keeps)
        OK(weft_known_look(dataset, NULL, identity, &known, &kept));
    else
        OK(weft_known_read(dataset, identity, &known));
    assert_int_equal(kept, keeps);
    weft_dataset_close(dataset);
    return known;
}

/* Kept by who reads a dataset or has written it, and believed of these very files alone. */
static void what_is_known_is_kept(void **state)
{
    (void)state;
    char file[320];
    weft_known known, read, other;
    struct stat info;
    assert_int_equal(RUN(text_path, more_path, "--append-eod", "--out", out_path), 0);
    assert_true(recalls(out_path, identity, &known));
    assert_false(recalls(out_path, "gpt2", &other));
    read = look(out_path, false);
    assert_int_equal(known.max_token, 256);
    assert_int_equal(known.max_token, read.max_token);
    assert_true(known.xxh64 == read.xxh64);

    /* Other tokens, of the same number, in the same file, with the time that it had; a clock's tick
     * later. */
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    snprintf(file, sizeof file, "%s.bin", out_path);
    assert_int_equal(stat(file, &info), 0);
    FILE *tokens = fopen(file, "r+b");
    fputc(55, tokens);
    fclose(tokens);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, file, times, 0), 0);
    assert_false(recalls(out_path, identity, &other));
    read = look(out_path, true);
    assert_true(known.xxh64 != read.xxh64);
    assert_true(recalls(out_path, identity, &other));
    assert_true(other.xxh64 == read.xxh64);

    /* Each byte of what is kept counts, and so does its end. */
    snprintf(file, sizeof file, "%s" WEFT_KNOWN_SUFFIX, out_path);
    char text[1024], changed[1024];
    FILE *in = fopen(file, "r");
    const size_t bytes = fread(text, 1, sizeof text, in);
    fclose(in);
    for (size_t i = 0; i <= bytes; i++) {
        memcpy(changed, text, bytes);
        if (i < bytes)
            changed[i] ^= 1;
        temporary_write(file, (const unsigned char *)changed, i < bytes ? bytes : bytes - 1);
        assert_false(recalls(out_path, identity, &other));
    }
    temporary_write(file, (const unsigned char *)text, bytes);
    assert_true(recalls(out_path, identity, &other));
}

static void blank_lines_divide(void **state)
{
    (void)state;
    assert_int_equal(RUN(text_path, more_path, "--split-blank-lines", "--append-eod", "--json",
                         "--out", out_path),
                     0);
    expect_tokens("one\ntwo\n|three\n|four \xff\n|five|", 4);
    cJSON *json = cJSON_Parse(printed);
    assert_non_null(json);
    assert_int_equal(cJSON_GetObjectItem(json, "documents")->valueint, 4);
    assert_int_equal(cJSON_GetObjectItem(json, "tokens")->valueint, 29);
    assert_int_equal(cJSON_GetObjectItem(json, "text_bytes")->valueint, 25);
    assert_int_equal(cJSON_GetObjectItem(json, "vocab_size")->valueint, 257);
    assert_string_equal(cJSON_GetObjectItem(json, "tokenizer")->valuestring, "bytes");
    cJSON *files = cJSON_GetObjectItem(json, "files"), *file;
    assert_int_equal(cJSON_GetArraySize(files), 3);
    cJSON_ArrayForEach(file, files) assert_int_equal(access(file->valuestring, R_OK), 0);
    cJSON_Delete(json);
}

static void the_description_leads_to_the_tokenizer(void **state)
{
    (void)state;
    static vocabulary trained;
    vocabulary_train(&trained, vocabulary_text);
    assert_int_equal(mkdir(temporary_path("v"), 0700), 0);
    vocabulary_write(&trained, temporary_path("v/e.json"), temporary_path("v/m.bpe"));
    assert_int_equal(RUN(text_path, "--tokenizer", "gpt2", "--vocab-file",
                         temporary_path("v/e.json"), "--merge-file", temporary_path("v/m.bpe"),
                         "--out", temporary_path("v/d")),
                     0);
    weft_arena arena = {0};
    weft_tokenizer_info info;
    weft_prepared prepared;
    weft_tokenizer *tokenizer;
    OK(weft_prepared_read(temporary_path("v/d.json"), &arena, &info, &prepared));
    assert_int_equal(prepared.documents, 1);
    assert_false(prepared.append_eod);
    assert_int_equal(info.vocab_size, VOCABULARY_EOD + 1);
    weft_dataset *dataset;
    OK(weft_dataset_open(temporary_path("v/d"), &dataset));
    assert_int_equal(weft_dataset_num_tokens(dataset), prepared.tokens);
    int32_t tokens[64];
    char *text;
    size_t bytes;
    OK(weft_dataset_read(dataset, 0, (size_t)prepared.tokens, tokens));
    OK(weft_tokenizer_open(&info, &tokenizer));
    OK(weft_tokenizer_decode(tokenizer, tokens, (size_t)prepared.tokens, &arena, &text, &bytes));
    assert_string_equal(text, "one\ntwo\n\n \t\nthree\n");
    weft_tokenizer_destroy(tokenizer);
    weft_dataset_close(dataset);
    /* A dataset may move, with its vocabulary beside it... */
    assert_int_equal(rename(temporary_path("v"), temporary_path("w")), 0);
    OK(weft_prepared_read(temporary_path("w/d.json"), &arena, &info, &prepared));
    OK(weft_tokenizer_open(&info, &tokenizer));
    weft_tokenizer_destroy(tokenizer);
    /* ...but the vocabulary may not change. */
    FILE *file = fopen(temporary_path("w/m.bpe"), "a");
    fputs("\n", file);
    fclose(file);
    FAILS(weft_tokenizer_open(&info, &tokenizer), WEFT_FILE, "m.bpe: not the file that");
    temporary_write(temporary_path("w/d.json"), "{\"tokenizer\": {\"nam\": 1}}", 26);
    FAILS(weft_prepared_read(temporary_path("w/d.json"), &arena, &info, &prepared), WEFT_CONFIG,
          "d.json:1:16: tokenizer.nam: unknown key; did you mean tokenizer.name?");
    weft_arena_release(&arena);
}

static void expect_refusal(int code, int wanted, const char *line)
{
    assert_int_equal(code, wanted);
    assert_string_equal(printed, "");
    if (strncmp(complained, "weft prepare: ", 14) != 0 || !strstr(complained, line) ||
        strchr(complained, '\n') != complained + strlen(complained) - 1)
        fail_msg("\"%s\" is not the one line with \"%s\"", complained, line);
}

static void mistakes_are_one_line(void **state)
{
    (void)state;
    expect_refusal(RUN(NULL), 2, "--out PREFIX is missing");
    expect_refusal(RUN("--out", out_path), 2, "TEXT... is missing; see weft prepare --help");
    expect_refusal(RUN(text_path), 2, "--out PREFIX is missing");
    expect_refusal(RUN(text_path, "--out"), 2, "--out: its value PREFIX is missing");
    expect_refusal(RUN(text_path, "--outt", out_path), 2,
                   "--outt: unknown option; did you mean --out?");
    expect_refusal(RUN(text_path, "-x"), 2, "-x: unknown option");
    expect_refusal(RUN(text_path, "--out", out_path, "--tokenizer", "gpt"), 2,
                   "unknown tokenizer \"gpt\"; expected bytes, gpt2 or the path of a "
                   "tokenizer.json; did you mean gpt2?");
    expect_refusal(RUN(text_path, "--out", out_path, "--tokenizer", "gpt2"), 2,
                   "wants its vocabulary (encoder.json) and merges (vocab.bpe)");
    expect_refusal(RUN(text_path, "--out", out_path, "--vocab-file", text_path), 2,
                   "has no vocabulary");
    expect_refusal(RUN(text_path, "--out", temporary_path("no/such/out")), 6,
                   "no/such/out.bin: cannot write: No such file or directory\n");
    expect_refusal(RUN(temporary_path("absent"), "--out", out_path), 6, "absent: No such file");
    expect_refusal(RUN(temporary_folder, "--out", out_path), 6, "Is a directory");
}

/* By content, whatever the file's name; --any-bytes insists. */
static void what_is_no_text_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t count; /* 0: a C string */
        const char *line;
    } cases[] = {
        {"\x1f\x8b\x08\x00", 4, "is gzip, not text: weft prepare <(zcat "},
        {"\x28\xb5\x2f\xfd....", 8, "is zstd, not text: weft prepare <(zstdcat "},
        {"a line\nan\0other\n", 16, "line 2 has a zero byte: not text"},
        {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n", 32,
         "holds JSON objects, not text: jq -r .text "},
        {" {}", 3, "holds JSON objects, not text: jq would print"},
        {"\xef\xbb\xbf{\"id\": 1, \"body\": \"x\"}\n", 0, "JSON objects, not text: jq -r .body "},
        {"\n \n\n{\"a\": {\"b\": \"c\"}, \"d e\": \"f\"}\n", 0, "jq -r '.\"d e\"' "},
        {"{\n  \"title\":\n    \"one\",\n  \"text\": \"two\"\n}\n", 0, "jq -r .text "},
        {"[\n  {\"n\": [1, \"}\"], \"s\": \"x\"},\n  {}\n]\n", 0,
         "holds a JSON array, not text: jq -r '.[].s' "},
        {"[{\"n\": 1}]", 0, "holds a JSON array, not text: jq would print"},
        {"[\"one\", \"two\"]", 0, "holds a JSON array, not text: jq -r '.[]' "},
        {"[[1, 2],\n [3]]\n", 0, "holds a JSON array, not text"},
        {"{\"it's\": \"x\"}", 0, "holds JSON objects, not text: jq would print"},
    };
    const char *path = temporary_path("odd.txt");
    char odd[256];
    snprintf(odd, sizeof odd, "%s", path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temporary_write(odd, cases[i].bytes,
                        cases[i].count ? cases[i].count : strlen(cases[i].bytes));
        expect_refusal(RUN(text_path, odd, "--out", out_path), 6, cases[i].line);
        assert_non_null(strstr(complained, "--any-bytes"));
        assert_int_equal(RUN(odd, "--any-bytes", "--out", out_path), 0);
    }
    static const char *const texts[] = {"{one, as prose has it}\n",
                                        "[Scene 1]\nA street.\n",
                                        "{{ template }}\n",
                                        "{ \"quoted\" }\n",
                                        "[1] Knuth, 1968\n",
                                        "[1, 2] show it\n",
                                        "[1]\n",
                                        "[\"Hello,\" she said]\n",
                                        "[\"Hello\"] he said\n",
                                        "[[Category:Plays]]\n",
                                        "[ ] to do\n",
                                        "{} is the empty set\n",
                                        "A line.\n{\"text\": \"an example\"}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        temporary_write(odd, texts[i], strlen(texts[i]));
        assert_int_equal(RUN(odd, "--out", out_path), 0);
    }
    temporary_write(odd, "", 0);
    assert_int_equal(RUN(odd, text_path, odd, "--out", out_path), 0);
    assert_non_null(strstr(printed, "2 files empty\n"));
    assert_int_equal(RUN(odd, text_path, odd, "--out", out_path, "--json"), 0);
    assert_non_null(strstr(printed, "\"empty_files\": 2,"));
}

/* A refusal leaves the files of the time before as they are, and none of its own. */
static void a_failure_keeps_the_old_dataset(void **state)
{
    (void)state;
    temporary_write(temporary_path("empty.txt"), "\n \n", 3);
    assert_int_equal(RUN(more_path, "--out", out_path), 0);
    expect_refusal(RUN(text_path, temporary_path("absent"), "--out", out_path), 6, "absent");
    expect_refusal(RUN(temporary_path("empty.txt"), "--split-blank-lines", "--out", out_path), 2,
                   "no text in 1 file given");
    expect_tokens("\n\nfour \xff\n\nfive", 1);
    assert_int_equal(access(temporary_path("out.json"), R_OK), 0);
    char command[400];
    snprintf(command, sizeof(command), "ls %s | grep -c part >/dev/null", temporary_folder);
    assert_int_not_equal(system(command), 0);
}

static void a_pipe_is_a_text(void **state)
{
    (void)state;
    char pipe[256];
    snprintf(pipe, sizeof(pipe), "%s", temporary_path("pipe"));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(pipe, O_WRONLY);
        _exit(write(fd, "piped", 5) == 5 ? 0 : 1);
    }
    assert_int_equal(RUN(pipe, "--out", out_path), 0);
    waitpid(child, NULL, 0);
    expect_tokens("piped", 1);
}

/* The path of a pipe that a shell made says nothing to its user, and jq cannot read it again. */
static void an_open_file_is_called_a_pipe(void **state)
{
    (void)state;
    static const char json[] = "{\"text\": \"one\"}\n", gzip[] = "\x1f\x8b\x08";
    int fds[2];
    char path[32];
    for (int i = 0; i < 2; i++) {
        const char *bytes = i ? gzip : json;
        assert_int_equal(pipe(fds), 0);
        assert_true(write(fds[1], bytes, strlen(bytes)) > 0);
        close(fds[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
        expect_refusal(RUN(path, "--out", out_path), 6,
                       i ? "prepare: a pipe: is gzip, not text: zcat makes it text; "
                         : "prepare: a pipe: holds JSON objects, not text: jq -r .text would");
        close(fds[0]);
    }
    temporary_write(temporary_path("in.json"), json, strlen(json));
    assert_non_null(freopen(temporary_path("in.json"), "r", stdin));
    expect_refusal(RUN("/dev/stdin", "--out", out_path), 6, "prepare: standard input: holds JSON");
}

/* The second half of what is looked at: a first string may be longer. */
static void a_long_first_string_is_json(void **state)
{
    (void)state;
    enum { BYTES = 200000 };
    static char text[BYTES];
    char path[256];
    snprintf(path, sizeof path, "%s", temporary_path("long.json"));
    memset(text, 'x', sizeof text);
    memcpy(text, "[\"", 2);
    temporary_write(path, text, sizeof text);
    expect_refusal(RUN(path, "--out", out_path), 6, "holds a JSON array, not text: jq -r '.[]' ");
    memcpy(text, "{\"t\":\"", 6);
    temporary_write(path, text, sizeof text);
    expect_refusal(RUN(path, "--out", out_path), 6, "holds JSON objects, not text: jq -r .t ");
}

static void help_is_printed(void **state)
{
    (void)state;
    assert_int_equal(RUN("--help"), 0);
    assert_non_null(strstr(printed, "usage: weft prepare TEXT... --out PREFIX"));
    assert_non_null(strstr(printed, "--split-blank-lines"));
    assert_string_equal(complained, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_file_is_a_document),
        cmocka_unit_test(what_is_known_is_kept),
        cmocka_unit_test(blank_lines_divide),
        cmocka_unit_test(the_description_leads_to_the_tokenizer),
        cmocka_unit_test(mistakes_are_one_line),
        cmocka_unit_test(what_is_no_text_is_refused),
        cmocka_unit_test(a_failure_keeps_the_old_dataset),
        cmocka_unit_test(a_pipe_is_a_text),
        cmocka_unit_test(an_open_file_is_called_a_pipe),
        cmocka_unit_test(a_long_first_string_is_json),
        cmocka_unit_test(help_is_printed),
    };
    return cmocka_run_group_tests(tests, create_texts, temporary_remove);
}
