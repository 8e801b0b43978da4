/* weft train --dry-run: it writes nothing, says what the run then takes and starts from, and
 * refuses what the run refuses, with the same line and exit code. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"num_experts\": 2},\n"
    " \"train\": {\"global_batch_size\": 4, \"train_iters\": 4, \"lr\": 2e-3},\n"
    " \"data\": {\"data_path\": \"corpus\"}, \"checkpoint\": {\"save_interval\": 2},\n"
    " \"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* All files, their sizes and times. */
static char *list_folder(void)
{
    char path[] = "/tmp/weft-dry-run-XXXXXX", command[128];
    int fd = mkstemp(path);
    if (fd < 0)
        return NULL;
    close(fd);
    snprintf(command, sizeof command, "find . -mindepth 1 -printf '%%p %%s %%T@\\n' | sort >%s",
             path);
    char *text = system(command) == 0 ? child_read(path) : NULL;
    unlink(path);
    return text;
}

/* Runs it dry; nothing changes. */
static void run_dry(child *c, const char *const *args)
{
    char *before = list_folder();
    child_run(c, args, NULL);
    char *after = list_folder();
    EXPECT(before && after && strcmp(before, after) == 0, "%s %s wrote: before\n%safter\n%s",
           args[0], args[1], before, after);
}

static void accept(const char *part, const char *const *args)
{
    child c;
    run_dry(&c, args);
    EXPECT(c.exit_code == 0 && c.err && !*c.err, "exit %d: %s", c.exit_code, c.err);
    EXPECT(c.out && strstr(c.out, part), "no \"%s\" in\n%s", part, c.out);
}

/* Dry, with the word at the end, as without it. */
static void refuse(int exit_code, const char *const *args)
{
    const char *dry[CHILD_MAX_ARGS];
    size_t count = 0;
    child c, d;
    for (; args[count]; count++)
        dry[count] = args[count];
    dry[count] = "--dry-run";
    dry[count + 1] = NULL;
    run_dry(&d, dry);
    child_run(&c, args, NULL);
    EXPECT(d.exit_code == exit_code && child_is_line(d.err), "exit %d: %s", d.exit_code, d.err);
    EXPECT(c.exit_code == exit_code && strcmp(c.err, d.err) == 0, "exit %d: %snot as dry: %s",
           c.exit_code, c.err, d.err);
}

/* The most that memory.json has planned for a rank. */
static double planned_bytes(const char *path)
{
    cJSON *json = child_read_json(path);
    const cJSON *rank;
    double most = 0;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(json, "ranks")) most =
        fmax(most, number_of(cJSON_GetObjectItem(rank, "planned"), "device in all"));
    return most;
}

/* What a dry run says of memory is what the run then plans with. */
static void check_run(const char *mesh, const char *run, const char *memory)
{
    child c;
    run_dry(&c, WORDS("train", "c.json", "--out", run, "--mesh", mesh, "--dry-run", "--json"));
    cJSON *json = child_parse(c.out);
    EXPECT(c.exit_code == 0 && json && number_of(json, "steps") == 4, "exit %d: %s%s", c.exit_code,
           c.out, c.err);
    CHILD_RUN(&c, "train", "c.json", "--out", run, "--mesh", mesh);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    EXPECT(number_of(json, "device_bytes") == planned_bytes(memory), "%.0f bytes, and planned %.0f",
           number_of(json, "device_bytes"), planned_bytes(memory));
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config) &&
               child_write("text.txt", "the quick brown fox jumps over the lazy dog, and again and "
                                       "again, until the samples of five steps are full of words "
                                       "that nobody reads, which takes some more of them than one "
                                       "would think, as these lines show: they go on and on\n"),
           "no files");
    CHILD_GOOD("prepare", "text.txt", "--out", "corpus");
    accept("  start   step 0\n", WORDS("train", "c.json", "--out", "run", "--dry-run"));
    accept("  saves   run/checkpoints/step-N every 2 steps and at the end\n",
           WORDS("train", "c.json", "--out", "run", "--mesh", "tp=2,pp=2", "--dry-run"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "train_itres=2"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "data_path=none"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "vocab_size=12"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--mesh", "tp=3"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "num_threads=99999"));
    refuse(3, WORDS("train", "c.json", "--out", "run", "--mesh", "pp=2", "--set",
                    "memory_limit=20kB"));
    refuse(3, WORDS("train", "c.json", "--out", "run", "--mesh", "pp=2", "--set",
                    "memory_limit=20kB", "--set", "pipeline_schedule=auto"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "prometheus_file=weft.txt"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "prometheus_file=a/.prom"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "prometheus_file=a\nb.prom"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--set", "async_save=true", "--set",
                    "staging_bytes=8191"));
    refuse(2, WORDS("train", "c.json", "--out", "run", "--mesh", "pp=2,dp=2,ep=2,binding=dp",
                    "--set", "async_save=true", "--set", "staging_bytes=100"));
    accept("  saves   run/checkpoints/",
           WORDS("train", "c.json", "--out", "run", "--dry-run", "--set", "async_save=true",
                 "--set", "staging_bytes=1M"));
    EXPECT(chmod("c.json", 0755) == 0, "c.json"); /* of a folder that would be a permission */
    refuse(6, WORDS("train", "c.json", "--out", "run", "--set", "tensorboard_dir=c.json"));
    accept("  start   step 0\n", WORDS("train", "c.json", "--out", "run", "--dry-run", "--set",
                                       "tensorboard_dir=run/events"));
    refuse(6, WORDS("train", "c.json", "--out", "run", "--set", "tensorboard_dir=none/events"));
    refuse(6, WORDS("train", "c.json", "--out", "run", "--set", "tensorboard_dir=corpus.bin/e"));
    refuse(6, WORDS("train", "c.json", "--out", "c.json"));
    refuse(6, WORDS("train", "c.json", "--out", "none/run"));
    check_run("dp=1", "run", "run/memory.json");
    check_run("pp=2,dp=2,ep=2,binding=dp", "four", "four/memory.json");
    refuse(2, WORDS("train", "c.json", "--out", "run")); /* has checkpoints */
    accept("  changes ",
           WORDS("train", "--out", "run", "--resume-from", "2", "--dry-run", "--set", "lr=1e-3"));
    accept("  start   from run/checkpoints/step-2\n",
           WORDS("train", "--out", "run", "--resume-from", "2", "--dry-run"));
    accept("finished", WORDS("train", "--out", "run", "--resume", "--dry-run"));
    return child_finish();
}
