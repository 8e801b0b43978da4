/* Killed anywhere, resumed: `weft train` is a child that gets SIGKILL (its ranks too) at random
 * moments: while it starts, in steps, in saves. Resumed until done, metrics.jsonl holds every step
 * once, with the bits of an undisturbed run, and at every moment the latest checkpoint is whole. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { STEPS = 60, KILLS = 6 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53, \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.01, "
    "\"hidden_dropout\": 0.1},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 60, "
    "\"lr\": 1e-3},\n"
    "\"checkpoint\": {\"save_interval\": 1}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static uint64_t random_state;

/* xorshift64*: uniform in [0, 1). */
static double uniform(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)(random_state * 2685821657736338717u >> 11) / 9007199254740992.0;
}

static void pause_for(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* What of each metrics line must not depend on time: step to lr. [step - 1]; NULL: none. */
static void read_metrics(const char *run, char *lines[STEPS])
{
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = child_read(path);
    EXPECT(text != NULL, "%s: cannot read", path);
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        int step = 0;
        char *rest = strstr(line, ", \"tokens\"");
        bool good = sscanf(line, "{\"step\": %d, \"loss\"", &step) == 1 && rest && step >= 1 &&
                    step <= STEPS;
        EXPECT(good, "%s: odd line %s", run, line);
        if (!good)
            continue;
        EXPECT(!lines[step - 1], "%s: step %d is there twice", run, step);
        *rest = '\0';
        free(lines[step - 1]);
        lines[step - 1] = strdup(line);
    }
    free(text);
}

static bool has_checkpoint(const char *run)
{
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoints/latest", run);
    return access(path, F_OK) == 0;
}

/* Waits until the run has got to writing metrics, or has ended. */
static void wait_for_progress(child *c, const char *run, long before)
{
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    for (int i = 0; i < 20000 && !child_wait(c, 0); i++) {
        char *text = child_read(path);
        long length = text ? (long)strlen(text) : 0;
        free(text);
        if (length > before)
            return;
    }
}

static void check_checkpoint(const char *run)
{
    child c;
    child_run(&c, (const char *[]){"inspect", run, NULL}, NULL);
    EXPECT(c.exit_code == 0, "%s: after a kill: %s", run, c.err ? c.err : "no start");
    child_release(&c);
}

/* Starts or resumes `run` and kills it; false when it ended by itself. */
static bool run_and_kill(const char *run, const char *mesh, bool in_steps)
{
    const char *args[] = {"train", "c.json", "--out", run, "--mesh", mesh, NULL, NULL};
    char path[64];
    child c;
    if (has_checkpoint(run))
        args[6] = "--resume";
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    EXPECT(child_start(&c, args, NULL), "cannot start weft");
    if (in_steps) { /* resuming first drops what is beyond the checkpoint */
        char *text = child_read(path);
        long before = text ? (long)strlen(text) : 0;
        free(text);
        wait_for_progress(&c, run, before);
        pause_for(0.06 * uniform());
    } else {
        pause_for(0.8 * uniform());
    }
    bool done = child_wait(&c, 0);
    if (done)
        EXPECT(c.exit_code == 0, "%s: exit %d: %s", run, c.exit_code, c.err);
    child_release(&c);
    return !done;
}

static void check(const char *mesh, const char *straight, const char *disturbed)
{
    char *wanted[STEPS] = {NULL}, *got[STEPS] = {NULL};
    child c;
    child_run(&c, (const char *[]){"train", "c.json", "--out", straight, "--mesh", mesh, NULL},
              NULL);
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", mesh, c.exit_code, c.err);
    child_release(&c);
    int kills = 0;
    while (kills < KILLS && run_and_kill(disturbed, mesh, kills % 3 != 1)) {
        kills++;
        if (has_checkpoint(disturbed))
            check_checkpoint(disturbed);
    }
    EXPECT(kills >= 3, "%s: only %d kills before it was done", mesh, kills);
    if (kills == KILLS) {
        const char *args[] = {"train",
                              "c.json",
                              "--out",
                              disturbed,
                              "--mesh",
                              mesh,
                              has_checkpoint(disturbed) ? "--resume" : NULL,
                              NULL};
        child_run(&c, args, NULL);
        EXPECT(c.exit_code == 0, "%s: resumed: exit %d: %s", mesh, c.exit_code, c.err);
        child_release(&c);
    }
    read_metrics(straight, wanted);
    read_metrics(disturbed, got);
    for (int i = 0; i < STEPS; i++) {
        EXPECT(wanted[i] && got[i] && strcmp(wanted[i], got[i]) == 0,
               "%s: step %d:\n%s\nagainst undisturbed\n%s", mesh, i + 1, got[i] ? got[i] : "none",
               wanted[i] ? wanted[i] : "none");
        free(wanted[i]);
        free(got[i]);
    }
    printf("%s: %d kills\n", mesh, kills);
}

int main(void)
{
    char folder[32];
    random_state = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15u | 1;
    EXPECT(child_folder_enter(folder), "no folder");
    EXPECT(child_write("c.json", config), "c.json");
    check("dp=1", "straight-1", "disturbed-1");
    check("tp=2,binding=tp", "straight-2", "disturbed-2");
    if (!expect_failures)
        child_folder_leave(folder);
    else
        fprintf(stderr, "left: %s, random state %llx\n", folder, (unsigned long long)random_state);
    return expect_finish();
}
