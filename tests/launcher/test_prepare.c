/* weft prepare, as a process: files, what it prints, exit codes. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cjson/cJSON.h>
#include <zlib.h>
#include <zstd.h>

#include "core/dataset/dataset.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/verbs/train/train.h"
#include "tests/core/temporary.h"
#include "tests/launcher/child.h"
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
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen(temporary_path("stdout"), "w", stdout) ||
            !freopen(temporary_path("stderr"), "w", stderr))
            _exit(99);
        int code = weft_verb_prepare(argc, argv, NULL);
        fflush(NULL);
        _exit(code);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
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

CASE(each_file_is_a_document)
{
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
CASE(what_is_known_is_kept)
{
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

CASE(blank_lines_divide)
{
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

CASE(the_description_leads_to_the_tokenizer)
{
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

CASE(mistakes_are_one_line)
{
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
    expect_refusal(RUN(text_path, "--out", out_path, "--jsonl", "t", "--any-bytes"), 2,
                   "--any-bytes and --jsonl: one of them");
    expect_refusal(RUN(text_path, "--out", out_path, "--jsonl", ""), 2,
                   "--jsonl wants the key of the text");
}

/* A model's folder has its config beside its tokenizer. */
CASE(a_config_is_no_tokenizer)
{
    static const char *const configs[] = {"{\"architectures\": [\"LlamaForCausalLM\"]}",
                                          "{\"model\": {\"num_layers\": 2}}", "{\"train\": {}}"};
    static const char says[] = "config.json: a model's config, where a tokenizer.json belongs: ";
    char config[256], beside[256], line[512];
    snprintf(config, sizeof config, "%s", temporary_path("config.json"));
    snprintf(beside, sizeof beside, "%s", temporary_path("tokenizer.json"));
    for (int i = 0; i < 3; i++) {
        temporary_write(config, configs[i], strlen(configs[i]));
        snprintf(line, sizeof line, "%sthere is no %s\n", says, beside);
        expect_refusal(RUN(text_path, "--out", out_path, "--tokenizer", config), 2, line);
    }
    temporary_write(beside, "{}", 2);
    snprintf(line, sizeof line, "%s%s\n", says, beside);
    expect_refusal(RUN(text_path, "--out", out_path, "--tokenizer", config), 2, line);
    assert_int_equal(unlink(beside), 0);
    assert_int_equal(unlink(config), 0);
}

/* By content, whatever the file's name; --any-bytes insists. */
CASE(what_is_no_text_is_refused)
{
    static const struct {
        const char *bytes;
        size_t count; /* 0: a C string */
        const char *line;
    } cases[] = {
        {"BZh9....", 8, "is bzip2, not text: weft prepare <(bzcat "},
        {"\xfd"
         "7zXZ...",
         8, "is xz, not text: weft prepare <(xzcat "},
        {"\x1f\x8b\x08\x00", 4, "cut short: its gzip data end too soon"},
        {"\x1f\x8b\x09\x00", 4, "damaged gzip data before byte 4: unknown compression method"},
        {"\x28\xb5\x2f\xfd\x04\x40", 6, "cut short: its zstd data end too soon"},
        {"a line\nan\0other\n", 16, "line 2 has a zero byte: not text"},
        {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n", 32,
         "holds JSON objects, not text: --jsonl text reads the text of its lines; "},
        {" {}", 3, "holds JSON objects, not text: --jsonl KEY reads"},
        {"\xef\xbb\xbf{\"id\": 1, \"body\": \"x\"}\n", 0,
         "JSON objects, not text: --jsonl body reads"},
        {"\n \n\n{\"a\": {\"b\": \"c\"}, \"d e\": \"f\"}\n", 0, "--jsonl 'd e' reads"},
        {"{\n  \"title\":\n    \"one\",\n  \"text\": \"two\"\n}\n", 0, "--jsonl text reads"},
        {"[\n  {\"n\": [1, \"}\"], \"s\": \"x\"},\n  {}\n]\n", 0,
         "holds a JSON array, not text: jq -c '.[]' would print lines for --jsonl; "},
        {"[{\"n\": 1}]", 0, "holds a JSON array, not text: jq -c '.[]' would print"},
        {"[\"one\", \"two\"]", 0, "not text: jq -r '.[]' would print its texts; "},
        {"[[1, 2],\n [3]]\n", 0, "holds a JSON array, not text"},
        {"{\"it's\": \"x\"}", 0, "holds JSON objects, not text: --jsonl KEY reads"},
    };
    const char *path = temporary_path("odd.txt");
    char odd[256];
    snprintf(odd, sizeof odd, "%s", path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temporary_write(odd, cases[i].bytes,
                        cases[i].count ? cases[i].count : strlen(cases[i].bytes));
        expect_refusal(RUN(text_path, odd, "--out", out_path), 6, cases[i].line);
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

static bool has_parts(void)
{
    char command[400];
    snprintf(command, sizeof(command), "ls %s | grep -c part >/dev/null", temporary_folder);
    return system(command) == 0;
}

/* A refusal leaves the files of the time before as they are, and none of its own. */
CASE(a_failure_keeps_the_old_dataset)
{
    temporary_write(temporary_path("empty.txt"), "\n \n", 3);
    assert_int_equal(RUN(more_path, "--out", out_path), 0);
    expect_refusal(RUN(text_path, temporary_path("absent"), "--out", out_path), 6, "absent");
    expect_refusal(RUN(temporary_path("empty.txt"), "--split-blank-lines", "--out", out_path), 2,
                   "no text in 1 file given");
    expect_refusal(RUN(temporary_folder, "--out", out_path), 2, "is in a folder that is read");
    expect_refusal(RUN(more_path, "--out", "./"), 2, "--out ./: a folder; the files' name");
    expect_tokens("\n\nfour \xff\n\nfive", 1);
    assert_int_equal(access(temporary_path("out.json"), R_OK), 0);
    assert_false(has_parts());
}

/* A process that waits for its text, and has begun to write. */
static pid_t start_waiting(const char *pipe)
{
    char part[300];
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char *argv[] = {"prepare", (char *)pipe, "--out", out_path, NULL};
        _exit(weft_verb_prepare(4, argv, NULL));
    }
    snprintf(part, sizeof part, "%s.bin.weft-part", out_path);
    while (access(part, F_OK) != 0 || !child_catches(pid, SIGTERM))
        child_pause(0.001);
    return pid;
}

/* What is asked to end removes its files, what is killed leaves them to the next, and nobody takes
 * those of one that writes. */
CASE(half_a_dataset_does_not_stay)
{
    char pipe[256];
    int status;
    snprintf(pipe, sizeof(pipe), "%s", temporary_path("waits"));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    pid_t pid = start_waiting(pipe);
    expect_refusal(RUN(text_path, "--out", out_path), 2, "another process writes this dataset");
    assert_true(has_parts());
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_false(has_parts());
    pid = start_waiting(pipe);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    assert_true(has_parts());
    assert_int_equal(RUN(text_path, "--out", out_path), 0);
    assert_false(has_parts());
}

/* The steps by which files get and lose their names, and which of them the process dies at. */
static int num_steps, last_step = -1;
static void count_step(void)
{
    if (num_steps++ == last_step)
        raise(SIGKILL);
}

int rename(const char *from, const char *to)
{
    count_step();
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int unlink(const char *path)
{
    count_step();
    return unlinkat(AT_FDCWD, path, 0);
}

/* Killed at any of them, a dataset that replaces another is the old or the new one, with its own
 * description, or refused. */
CASE(killed_between_files)
{
    static const char old[] = "old", new[] = "the new one";
    char description[300], copy[256], before[256];
    int seen[3] = {0}, status;
    char *words[] = {"prepare", copy, "--out", out_path, "--append-eod", NULL};
    snprintf(description, sizeof description, "%s.json", out_path);
    snprintf(copy, sizeof copy, "%s", temporary_path("new"));
    temporary_write(copy, new, strlen(new));
    snprintf(before, sizeof before, "%s", temporary_path("before"));
    temporary_write(before, old, strlen(old));
    for (int step = 0;; step++) {
        weft_arena arena = {0};
        weft_tokenizer_info info;
        weft_prepared prepared;
        weft_dataset *dataset = NULL;
        assert_int_equal(RUN(before, "--out", out_path), 0);
        fflush(NULL);
        const pid_t pid = fork();
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stdout))
                _exit(99);
            num_steps = 0;
            last_step = step;
            _exit(weft_verb_prepare(5, words, NULL));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        const bool is_there = weft_dataset_open(out_path, &dataset) == WEFT_OK;
        if (is_there) {
            OK(weft_prepared_read(description, &arena, &info, &prepared));
            const uint64_t tokens = weft_dataset_num_tokens(dataset);
            assert_int_equal(prepared.tokens, tokens);
            assert_int_equal(prepared.append_eod, tokens != strlen(old));
            seen[tokens != strlen(old)]++;
        } else {
            assert_non_null(strstr(weft_error_get()->text, "half a dataset"));
            seen[2]++;
        }
        weft_dataset_close(dataset);
        weft_arena_release(&arena);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
    }
    assert_true(seen[0] > 0 && seen[1] > 0 && seen[2] > 2);
}

CASE(a_pipe_is_a_text)
{
    char pipe[256];
    snprintf(pipe, sizeof(pipe), "%s", temporary_path("pipe"));
    assert_int_equal(mkfifo(pipe, 0600), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(pipe, O_WRONLY);
        _exit(write(fd, "piped", 5) == 5 ? 0 : 1);
    }
    assert_int_equal(RUN(pipe, "--out", out_path), 0);
    waitpid(pid, NULL, 0);
    expect_tokens("piped", 1);
}

/* The path of a pipe that a shell made says nothing to its user, and jq cannot read it again. */
CASE(an_open_file_is_called_a_pipe)
{
    static const char json[] = "{\"text\": \"one\"}\n", bzip2[] = "BZh9";
    int fds[2];
    char path[32];
    for (int i = 0; i < 2; i++) {
        const char *bytes = i ? bzip2 : json;
        assert_int_equal(pipe(fds), 0);
        assert_true(write(fds[1], bytes, strlen(bytes)) > 0);
        close(fds[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", fds[0]);
        expect_refusal(RUN(path, "--out", out_path), 6,
                       i ? "prepare: a pipe: is bzip2, not text: bzcat makes it text; "
                         : "prepare: a pipe: holds JSON objects, not text: --jsonl text reads");
        close(fds[0]);
    }
    temporary_write(temporary_path("in.json"), json, strlen(json));
    assert_non_null(freopen(temporary_path("in.json"), "r", stdin));
    expect_refusal(RUN("/dev/stdin", "--out", out_path), 6, "prepare: standard input: holds JSON");
}

/* The second half of what is looked at: a first string may be longer. */
CASE(a_long_first_string_is_json)
{
    enum { BYTES = 200000 };
    static char text[BYTES];
    char path[256];
    snprintf(path, sizeof path, "%s", temporary_path("long.json"));
    memset(text, 'x', sizeof text);
    memcpy(text, "[\"", 2);
    temporary_write(path, text, sizeof text);
    expect_refusal(RUN(path, "--out", out_path), 6,
                   "holds a JSON array, not text: jq -r '.[]' would");
    memcpy(text, "{\"t\":\"", 6);
    temporary_write(path, text, sizeof text);
    expect_refusal(RUN(path, "--out", out_path), 6,
                   "holds JSON objects, not text: --jsonl t reads");
}

/* --- JSON lines ----------------------------------------------------------------------------- */

CASE(each_line_is_a_document)
{
    static const char lines[] =
        "\xef\xbb\xbf{\"text\": \"one\\n\", \"n\": [1, {\"text\": \"no\"}]}\n"
        "\n  \r\n"
        "{\"id\": 2, \"text\": \"\"}\r\n"
        "{\"text\": \"no\", \"text\": \"\\u0074wo \\ud83d\\ude00\"}\n"
        "{\"text\": \"three|\"}";
    char path[256];
    snprintf(path, sizeof path, "%s", temporary_path("lines.jsonl"));
    temporary_write(path, lines, sizeof lines - 1);
    assert_int_equal(RUN(path, "--jsonl", "text", "--out", out_path, "--json"), 0);
    expect_tokens("one\n|two \xf0\x9f\x98\x80|three||", 3);
    assert_non_null(strstr(printed, "\"empty_documents\": 1,"));
    assert_int_equal(RUN(path, "--jsonl", "text", "--out", out_path), 0);
    assert_non_null(strstr(printed, "1 document empty\n"));
    weft_arena arena = {0};
    weft_tokenizer_info info;
    weft_prepared prepared;
    OK(weft_prepared_find(out_path, &arena, &info, &prepared));
    assert_true(prepared.append_eod);
    weft_arena_release(&arena);
}

CASE(a_path_of_keys_leads_to_the_text)
{
    static const char lines[] =
        "{\"a\": {\"b\": {\"c\": \"one\"}}}\n{\"a\": 1, \"a.b\": {\"c\": \"no\"}, "
        "\"a.b.c\": \"two\"}\n";
    char path[256];
    snprintf(path, sizeof path, "%s", temporary_path("deep.jsonl"));
    temporary_write(path, lines, sizeof lines - 1);
    assert_int_equal(RUN(path, "--jsonl", "a.b.c", "--out", out_path), 0);
    expect_tokens("one|two|", 2);
}

/* What Python's json.loads takes and UTF-8 cannot hold. */
CASE(an_odd_string_is_no_bad_line)
{
    static const char lines[] = "{\"text\": \"fine\"}\n"
                                "{\"text\": \"a\\ud800b\\udc00\\ud83d\\ude00\"}\n"
                                "{\"text\": \"zero \\u0000.\"}\n{\"text\": \"\\udfff\"}\n";
    static const char wanted[] = "fine|a\xef\xbf\xbd"
                                 "b\xef\xbf\xbd\xf0\x9f\x98\x80|zero \0.|\xef\xbf\xbd|";
    char path[256];
    weft_dataset *dataset;
    int32_t tokens[sizeof wanted - 1];
    snprintf(path, sizeof path, "%s", temporary_path("odd.jsonl"));
    temporary_write(path, lines, sizeof lines - 1);
    assert_int_equal(RUN(path, "--jsonl", "text", "--out", out_path), 0);
    assert_non_null(strstr(printed, "2 lines with half of a surrogate pair, now U+FFFD; the first "
                                    "is "));
    assert_non_null(strstr(printed, "odd.jsonl: line 2\n"));
    OK(weft_dataset_open(out_path, &dataset));
    assert_int_equal(weft_dataset_num_tokens(dataset), sizeof wanted - 1);
    OK(weft_dataset_read(dataset, 0, sizeof wanted - 1, tokens));
    for (size_t i = 0; i < sizeof wanted - 1; i++)
        assert_int_equal(tokens[i], wanted[i] == '|' ? 256 : (unsigned char)wanted[i]);
    weft_dataset_close(dataset);
}

CASE(a_bad_line_is_named)
{
    static const struct {
        const char *line, *fault;
    } cases[] = {
        {"{\"text\": 3}", "\"text\" is a number, not a string"},
        {"{\"text\": null}", "\"text\" is null, not a string"},
        {"{\"txt\": \"x\", \"id\": 1}",
         "no key \"text\"; its keys are \"txt\", \"id\"; did you mean txt?"},
        {"{}", "no key \"text\": an empty object"},
        {"{\"text\": \"x\"", "column 1: this '{' is never closed"},
        {"{\"text\": \"x\"} x", "column 15: text after the end"},
        {"{\"text\": \"x", "column 10: the string is never closed"},
        {"[{\"text\": \"x\"}]", "an array, not an object: jq -c '.[]' would print one a line"},
        {"plain text", "column 1: expected a value"},
    };
    char path[256], text[256], wanted[320];
    snprintf(path, sizeof path, "%s", temporary_path("bad.jsonl"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int bytes =
            snprintf(text, sizeof text, "{\"text\": \"fine\"}\n\n%s\n", cases[i].line);
        temporary_write(path, text, (size_t)bytes);
        snprintf(wanted, sizeof wanted, "bad.jsonl: line 3: %s\n", cases[i].fault);
        expect_refusal(RUN(path, "--jsonl", "text", "--out", out_path), 6, wanted);
    }
    temporary_write(path, "{\"text\": \"a\0b\"}", 16);
    expect_refusal(RUN(path, "--jsonl", "text", "--out", out_path), 6,
                   "line 1: column 12: a zero byte");
    temporary_write(path, "{\"a\": {\"b\": [1]}}", 17);
    expect_refusal(RUN(path, "--jsonl", "a.b.c", "--out", out_path), 6,
                   "line 1: a.b is an array, not an object");
}

/* --- many threads --------------------------------------------------------------------------- */

/* Words by a little generator, documents of very different lengths, some longer than a block. */
static void write_corpus(const char *path, uint32_t seed, int num_documents)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < num_documents; i++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t words = (seed >> 16) % (i % 97 == 0 ? 200000 : 300);
        fprintf(file, "{\"id\": %d, \"text\": \"", i);
        for (; words > 0; words--) {
            seed = seed * 1664525 + 1013904223;
            fprintf(file, "%s%x", words % 9 ? " " : "\\n", seed >> 20);
        }
        fputs("\"}\n", file);
    }
    fclose(file);
}

static void expect_same_file(const char *a, const char *b, const char *suffix)
{
    char paths[2][300];
    size_t bytes[2];
    snprintf(paths[0], sizeof paths[0], "%s.%s", a, suffix);
    snprintf(paths[1], sizeof paths[1], "%s.%s", b, suffix);
    unsigned char *first = temporary_read(paths[0], &bytes[0]);
    unsigned char *second = temporary_read(paths[1], &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(first, second, bytes[0]);
    free(first);
    free(second);
}

/* Appends a gzip member or a zstd frame that holds the file. */
static void append_packed(const char *path, bool is_gzip, const char *from)
{
    size_t bytes, packed_bytes = 0;
    unsigned char *data = temporary_read(from, &bytes);
    if (is_gzip) {
        gzFile file = gzopen(path, "ab");
        assert_int_equal(gzwrite(file, data, (unsigned)bytes), bytes);
        assert_int_equal(gzclose(file), Z_OK);
    } else {
        unsigned char *packed = malloc(ZSTD_compressBound(bytes));
        FILE *file = fopen(path, "ab");
        packed_bytes = ZSTD_compress(packed, ZSTD_compressBound(bytes), data, bytes, 3);
        assert_int_equal(fwrite(packed, 1, packed_bytes, file), packed_bytes);
        fclose(file);
        free(packed);
    }
    free(data);
}

/* Plain, gzip and zstd, in several members and frames, named one by one or by their folder: the
 * tokens are the same, for any number of threads. */
CASE(threads_and_forms_change_nothing)
{
    static const char *const threads[] = {"1", "2", "7"};
    char folder[256], a[300], b[300], c[300], one[256], other[256];
    snprintf(folder, sizeof folder, "%s", temporary_path("corpus"));
    snprintf(one, sizeof one, "%s", temporary_path("one"));
    snprintf(other, sizeof other, "%s", temporary_path("other"));
    snprintf(a, sizeof a, "%s/a.jsonl", folder);
    snprintf(b, sizeof b, "%s/b/x.jsonl", folder);
    snprintf(c, sizeof c, "%s/b.jsonl", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(mkdir(temporary_path("corpus/b"), 0700), 0);
    write_corpus(a, 1, 200);
    write_corpus(b, 2, 50);
    write_corpus(c, 3, 100);
    temporary_write(temporary_path("corpus/.hidden"), "x", 1);
    assert_int_equal(RUN(a, b, c, "--jsonl", "text", "--threads", "1", "--out", one), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(RUN(folder, "--jsonl", "text", "--threads", threads[i], "--out", other),
                         0);
        expect_same_file(one, other, "bin");
        expect_same_file(one, other, "idx");
        expect_same_file(one, other, "json");
    }
    for (int is_gzip = 0; is_gzip < 2; is_gzip++) {
        char packed[256];
        snprintf(packed, sizeof packed, "%s", temporary_path(is_gzip ? "packed.1" : "packed.2"));
        append_packed(packed, is_gzip, a);
        append_packed(packed, is_gzip, b);
        assert_int_equal(RUN(packed, c, "--jsonl", "text", "--out", other), 0);
        expect_same_file(one, other, "bin");
        size_t bytes;
        unsigned char *data = temporary_read(packed, &bytes);
        for (size_t cut = bytes - 1; cut > bytes / 2; cut -= bytes / 5) {
            temporary_write(packed, data, cut);
            assert_int_equal(RUN(packed, "--jsonl", "text", "--out", other), 6);
        }
        free(data);
    }
}

/* Encoders cache words: each thread has its own, and what it met before changes no token. */
CASE(threads_share_no_words)
{
    static const char *const threads[] = {"1", "6"};
    static vocabulary trained;
    char path[256], words[256], merges[256], out[2][256];
    vocabulary_train(&trained, vocabulary_text);
    snprintf(words, sizeof words, "%s", temporary_path("e.json"));
    snprintf(merges, sizeof merges, "%s", temporary_path("m.bpe"));
    vocabulary_write(&trained, words, merges);
    snprintf(path, sizeof path, "%s", temporary_path("words.jsonl"));
    write_corpus(path, 6, 150);
    for (int i = 0; i < 2; i++) {
        snprintf(out[i], sizeof out[i], "%s", temporary_path(i ? "many" : "single"));
        assert_int_equal(RUN(path, "--jsonl", "text", "--tokenizer", "gpt2", "--vocab-file", words,
                             "--merge-file", merges, "--threads", threads[i], "--out", out[i]),
                         0);
    }
    expect_same_file(out[0], out[1], "bin");
    expect_same_file(out[0], out[1], "idx");
}

/* The first in the order of the files, whoever finds another one earlier. */
CASE(the_first_bad_line_is_told)
{
    char path[256], bad[256], message[MAX_OUTPUT] = "";
    snprintf(path, sizeof path, "%s", temporary_path("good.jsonl"));
    snprintf(bad, sizeof bad, "%s", temporary_path("late.jsonl"));
    write_corpus(path, 4, 300);
    write_corpus(bad, 5, 300);
    FILE *file = fopen(bad, "a");
    fputs("{\"text\": 1}\n", file);
    fclose(file);
    for (int i = 0; i < 6; i++) {
        expect_refusal(RUN(path, bad, bad, temporary_path("text.txt"), "--jsonl", "text", "--out",
                           out_path, "--threads", i % 2 ? "5" : "1"),
                       6, "late.jsonl: line 301: \"text\" is a number");
        if (i > 0)
            assert_string_equal(complained, message);
        snprintf(message, sizeof message, "%s", complained);
    }
    char parts[400];
    snprintf(parts, sizeof parts, "ls %s | grep -c part >/dev/null", temporary_folder);
    assert_int_not_equal(system(parts), 0);
}

CASE(folders_are_read_in_order)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s", temporary_path("f"));
    assert_int_equal(mkdir(folder, 0700), 0);
    expect_refusal(RUN(folder, "--out", out_path), 6, "f: a folder without files");
    assert_int_equal(mkdir(temporary_path("f/b"), 0700), 0);
    temporary_write(temporary_path("f/c.txt"), "4", 1);
    temporary_write(temporary_path("f/b/z"), "2", 1);
    temporary_write(temporary_path("f/b.txt"), "3", 1);
    temporary_write(temporary_path("f/a"), "1", 1);
    temporary_write(temporary_path("f/.b"), "0", 1);
    assert_int_equal(symlink("../text.txt", temporary_path("f/d")), 0);
    assert_int_equal(RUN(folder, "--append-eod", "--out", out_path), 0);
    expect_tokens("1|2|3|4|one\ntwo\n\n \t\nthree\n|", 5);
    assert_int_equal(symlink("b", temporary_path("f/e")), 0);
    expect_refusal(RUN(folder, "--out", out_path), 6, "f/e: a link to a folder; ");
}

/* --- llm.c's token files --------------------------------------------------------------------- */

static void write_shard(const char *path, int32_t magic, int32_t version, int32_t says,
                        const int32_t *tokens, size_t count)
{
    int32_t header[256] = {magic, version, says};
    FILE *file = fopen(path, "wb");
    fwrite(header, sizeof header, 1, file);
    for (size_t i = 0; i < count; i++)
        fwrite(&tokens[i], magic == 20240520 ? 2 : 4, 1, file);
    fclose(file);
}

CASE(token_files_are_cut_into_documents)
{
    static const int32_t tokens[] = {256, 'o', 'n', 'e', 256, 't', 'w', 'o'}, odd[] = {300, 1};
    char a[256], b[256];
    snprintf(a, sizeof a, "%s", temporary_path("a.bin"));
    snprintf(b, sizeof b, "%s", temporary_path("b.bin"));
    write_shard(a, 20240520, 1, 6, tokens, 6);
    write_shard(b, 20240801, 7, 2, tokens + 6, 2);
    assert_int_equal(RUN(a, b, text_path, "--out", out_path), 0);
    expect_tokens("one|two|one\ntwo\n\n \t\nthree\n", 3);
    assert_int_equal(RUN(a, b, "--out", out_path), 0);
    assert_non_null(strstr(printed, "documents 2, tokens 8, vocabulary 257 (bytes)\n"));
    expect_tokens("one|two|", 2);
    write_shard(a, 20240520, 1, 7, tokens, 6);
    expect_refusal(RUN(a, "--out", out_path), 6,
                   "a.bin: a token file of llm.c whose header says 7");
    write_shard(a, 20240520, 1, 2, odd, 2);
    expect_refusal(RUN(a, "--out", out_path), 6, "a.bin: token 300 is outside the tokenizer's 257");
}

CASE(help_is_printed)
{
    assert_int_equal(RUN("--help"), 0);
    assert_non_null(strstr(printed, "usage: weft prepare TEXT... --out PREFIX"));
    assert_non_null(strstr(printed, "--split-blank-lines"));
    assert_string_equal(complained, "");
}

AROUND(.set_up = create_texts, .tear_down = temporary_remove)
