#include "tests/launcher/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"

const char job_config[] =
    "// blanks at the start, a tab\t, \"quotes\" and $(money) in a comment\n"
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 64},\n \"parallel\": {\"tensor_model_parallel_size\": 2},"
    "\n \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 3, "
    "\"lr_decay_style\": \"constant\"},\n"
    "\n \"data\": {\"mock_data\": true}}\n";

const char job_odd[] = "a run's \"$(touch oops)\" `touch oops` $HOME \\ *";

char job_folder[32], job_path[128];

int job_run(child *c, const char *const *args, const char *const *environment)
{
    child_run(c, args, environment);
    EXPECT(c->exit_code == 0 || child_is_line(c->err), "exit %d: \"%s\"", c->exit_code, c->err);
    return c->exit_code;
}

void job_expect_code(const char *const *args, int code, const char *part)
{
    child c;
    const int got = job_run(&c, args, NULL);
    EXPECT(got == code, "%s %s: exit %d, not %d: %s%s", args[1], args[2], got, code, c.out, c.err);
    EXPECT(!part || strstr(c.err, part), "no \"%s\" in: %s", part, c.err);
}

void job_launch(const char *kind, const char *out, const char *const *words, int code,
                const char *part)
{
    const char *args[CHILD_MAX_ARGS] = {"launch", kind, "tiny.json", "--out", out};
    for (int i = 0; words[i]; i++)
        args[5 + i] = words[i];
    job_expect_code(args, code, part);
}

int job_run_other(child *c, const char *program, const char *const *args,
                  const char *const *environment)
{
    child_run_other(program, c, args, environment);
    return c->exit_code;
}

void job_expect_text(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && strstr(text, part), "%s: no \"%s\" in:\n%s", path, part,
           text ? text : "nothing");
}

void job_expect_no_text(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && !strstr(text, part), "%s: \"%s\" in:\n%s", path, part, text ? text : "nothing");
}

void job_expect_bash(const char *path)
{
    child c;
    const char *const args[] = {"-n", path, NULL};
    const int code = job_run_other(&c, "/bin/bash", args, NULL);
    EXPECT(code == 0, "bash -n %s: %s", path, c.err);
}

cJSON *job_read_yaml(const char *path)
{
    child c;
    const char *const *args =
        WORDS("python3", "-c",
              "import sys, json\ntry:\n  import yaml\nexcept ImportError:\n  sys.exit(77)\n"
              "print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))",
              path);
    const int code = job_run_other(&c, "/usr/bin/env", args, NULL);
    const bool is_missing = code == 127 || code == 77 || code == 126;
    cJSON *json = is_missing ? NULL : cJSON_Parse(c.out);
    if (is_missing)
        printf("no YAML parser here\n");
    else
        EXPECT(code == 0 && json, "%s: no YAML: %s", path, c.err);
    return json;
}

int job_count_lines(const char *path)
{
    char *text = child_read(path);
    int count = 0;
    for (const char *c = text; c && *c; c++)
        count += *c == '\n';
    return count;
}

void job_make_fake(const char *name, const char *script)
{
    char path[128], text[4096];
    snprintf(path, sizeof path, "fakes/%s", name);
    snprintf(text, sizeof text, "#!/bin/bash\nprintf '%%s\\n' %s \"$@\" >>'%s/said'\n%s\n", name,
             job_folder, script);
    EXPECT(child_write(path, text) && chmod(path, 0755) == 0, "%s", path);
}

const char *job_said(void)
{
    char *text = child_read("said");
    unlink("said");
    return text ? text : "";
}

bool job_has_word(const char *text, const char *word)
{
    char line[1024];
    snprintf(line, sizeof line, "\n%s\n", word);
    return strstr(text, line) != NULL;
}

void job_expect_words(const char *text, const char *name)
{
    char binary[1200], config[128], run_path[256];
    snprintf(binary, sizeof binary, "%s/weft", getenv("WEFT_BINARY_DIR"));
    snprintf(config, sizeof config, "%s/tiny.json", job_folder);
    snprintf(run_path, sizeof run_path, "%s/%s", job_folder, job_odd);
    const char *words[] = {binary,   "train",    config,  "--out",
                           run_path, "--resume", "--set", "train.lr=1e-3"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        EXPECT(job_has_word(text, words[i]), "%s did not get \"%s\" but:\n%s", name, words[i],
               text);
    EXPECT(access("oops", F_OK) != 0, "%s: a path was run as a command", name);
}

void job_start(child *c, const char *script, const char *const *environment)
{
    child_program = "/bin/bash";
    EXPECT(child_start(c, WORDS(script), environment), "no bash");
    child_program = NULL;
}

void job_enter(void)
{
    EXPECT(child_folder_enter(job_folder), "%s", job_folder);
    EXPECT(child_write("tiny.json", job_config), "tiny.json");
    mkdir("fakes", 0755);
    job_make_fake("mpirun", "exit 0");
    job_make_fake("sbatch", "exit 0");
    job_make_fake("kubectl", "exit 0");
    job_make_fake("scontrol", "exit 0");
    job_make_fake("srun", "exit ${FAKE_CODE:-0}");
    snprintf(job_path, sizeof job_path, "PATH=%s/fakes:/usr/bin:/bin", job_folder);
}

void job_leave(void)
{
    child_folder_leave(job_folder);
}
