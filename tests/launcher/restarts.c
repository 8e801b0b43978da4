/* Ranks that `weft train` starts again after a fault: the run ends with the bits of one that
 * nothing disturbed, also where faults follow each other; a crash in one step each time, too many,
 * a bad config or a stop end it. test_restarts WEFT-THAT-CRASHES */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/status.h>

#include "core/clock.h"
#include "launcher/training/start.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53, \"hidden_dropout\": 0.1},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 8, "
    "\"lr\": 1e-3},\n"
    "\"checkpoint\": {\"save_interval\": 2}, \"data\": {\"mock_data\": true},\n"
    "\"reliability\": {\"max_restarts\": 3, \"restart_delay_s\": 0.1},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* `more`: further arguments, up to the first NULL. */
static bool start(child *c, const char *run, const char *mesh, const char *crash,
                  const char *const *more)
{
    char environment[128];
    const char *args[CHILD_MAX_ARGS] = {"train", "c.json", "--out", run, "--mesh", mesh};
    for (int i = 0; more && more[i]; i++)
        args[6 + i] = more[i];
    snprintf(environment, sizeof environment, "CRASH=%s", crash ? crash : "0:0:0:0:none");
    bool good = child_start(c, args, WORDS(environment));
    EXPECT(good, "%s: no start", run);
    return good;
}

static void run_until_end(child *c, const char *run, const char *mesh, const char *crash,
                          const char *const *more)
{
    if (start(c, run, mesh, crash, more))
        EXPECT(child_wait(c, CHILD_PATIENCE_S), "%s: still there", run);
}

static int count(const char *text, const char *part)
{
    int found = 0;
    for (const char *at = text; at && (at = strstr(at, part)); at += strlen(part))
        found++;
    return found;
}

/* The last checkpoint of both runs has the same bytes in every tensor. */
static void compare_checkpoints(const char *a, const char *b)
{
    char command[256];
    snprintf(command, sizeof command,
             "test -e %s/checkpoints/step-8 && for f in %s/checkpoints/step-8/*.h5; do "
             "cmp \"$f\" %s/checkpoints/step-8/\"${f##*/}\" || exit 1; done",
             b, a, b);
    EXPECT(system(command) == 0, "%s and %s end with different checkpoints", a, b);
}

static void check_same(const char *a, const char *b)
{
    child_expect_losses(b, a);
    compare_checkpoints(a, b);
}

/* A rank is killed in step 4, the newest checkpoint is of step 2. */
static void goes_on(const char *whole, const char *mesh, int rank, const char *const *more)
{
    child c;
    char run[32], crash[64], wanted[64];
    snprintf(run, sizeof run, "%s-crashed", whole);
    snprintf(crash, sizeof crash, "%d:4:1:0:count-%s", rank, whole);
    run_until_end(&c, whole, mesh, NULL, more);
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", whole, c.exit_code, c.err);
    run_until_end(&c, run, mesh, crash, more);
    snprintf(wanted, sizeof wanted, "rank %d on ", rank);
    EXPECT(c.exit_code == 0 && c.err && strstr(c.err, wanted) &&
               strstr(c.err, "weft train: the job ended with exit code 137 after step 3: it is "
                             "started again in 0.1 s (1 of 3, reliability.max_restarts)\n"),
           "%s: exit %d: %s", run, c.exit_code, c.err);
    /* Asynchronous saves may not have published it yet. */
    EXPECT(c.out && (more || strstr(c.out, "checkpoints/step-2 (step 2)")), "%s: %s", run, c.out);
    check_same(whole, run);
}

/* The next fault comes amid the start, more often than a step may fail alike. */
static void start_fails(void)
{
    child c;
    run_until_end(
        &c, "starts", "tp=2", "0:0:4:0:count-starts",
        WORDS("--set", "reliability.max_restarts=4", "--set", "reliability.restart_delay_s=0"));
    EXPECT(c.exit_code == 0 && count(c.err, "started again in ") == 4, "starts: exit %d: %s",
           c.exit_code, c.err);
}

/* The next fault comes before the first new step, four times alike, then no more. */
static void step_fails(void)
{
    child c;
    run_until_end(
        &c, "loop", "tp=2", "1:4:9:0:count-loop",
        WORDS("--set", "checkpoint.save_interval=1", "--set", "reliability.max_restarts=8"));
    EXPECT(c.exit_code == 137 && count(c.err, "started again in ") == 3 &&
               strstr(c.err, "after step 3, 4 times in a row and alike: it is not started again\n"),
           "loop: exit %d: %s", c.exit_code, c.err);
}

/* By the code that a rank ends with. */
static void ends_with(int code, bool restarts)
{
    child c;
    char run[16], crash[64];
    snprintf(run, sizeof run, "code%d", code);
    snprintf(crash, sizeof crash, "1:4:1:%d:count-%s", code, run);
    run_until_end(&c, run, "tp=2", crash, NULL);
    EXPECT(c.exit_code == (restarts ? 0 : code) && count(c.err, "started again in ") == restarts,
           "%s: exit %d: %s", run, c.exit_code, c.err);
}

static void codes(void)
{
    static const int faults[] = {4, 5, 6, 9, 10, 128 + SIGSEGV, 128 + SIGKILL},
                     ends[] = {0, 1, 2, 3, 7, 8, 75, 128 + SIGHUP, 128 + SIGINT, 128 + SIGTERM};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        EXPECT(weft_restarts_is_fault(faults[i]), "code %d", faults[i]);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        EXPECT(!weft_restarts_is_fault(ends[i]), "code %d", ends[i]);
    ends_with(9, true); /* ranks that make no more progress */
    ends_with(3, false);
}

/* Starts one that would train for long, and waits until it has saved; its ranks' pids. */
static bool start_long(child *c, const char *config_name, const char *run, const char *mesh,
                       int num_ranks, pid_t *ranks)
{
    char latest[64];
    snprintf(latest, sizeof latest, "%s/checkpoints/latest", run);
    const bool good = child_start(c,
                                  WORDS("train", config_name, "--out", run, "--mesh", mesh, "--set",
                                        "train.train_iters=1000000"),
                                  WORDS("CRASH=0:0:0:0:none")) &&
                      child_wait_for_text(c, latest, "") &&
                      child_ranks(c, ranks, num_ranks) == num_ranks;
    EXPECT(good, "%s: exit %d: %s", run, c->exit_code, c->err);
    return good;
}

/* What the next start would meet again. */
static void bad_config(void)
{
    child c;
    pid_t ranks[2];
    EXPECT(child_write("bad.json", config), "no config");
    if (start_long(&c, "bad.json", "bad", "tp=2", 2, ranks)) {
        EXPECT(child_write("bad.json", "{\"model\": {\"num_layer\": 2}}\n"), "no config");
        kill(ranks[1], SIGKILL);
        EXPECT(child_wait(&c, CHILD_PATIENCE_S), "bad: still there");
        EXPECT(c.exit_code == 2 && count(c.err, "started again in ") == 1 &&
                   count(c.err, "did you mean model.num_layers?") == 1,
               "bad: exit %d: %s", c.exit_code, c.err);
    }
    child_release(&c);
}

/* While it waits to start again. */
static void stopped(void)
{
    child c;
    if (!start(&c, "wait", "tp=2", "1:4:1:0:count-wait",
               WORDS("--set", "reliability.restart_delay_s=500")))
        return;
    EXPECT(child_wait_for_text(&c, c.err_path, "it is started again in 500 s"), "wait: goes on");
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "wait: goes on");
    EXPECT(c.exit_code == WEFT_EXIT_STOPPED && c.err &&
               strstr(c.err, "asked to stop: it is not started again"),
           "wait: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

/* One that began at an older checkpoint goes on from that, until it has saved. */
static void from_older(void)
{
    child c[2];
    run_until_end(&c[0], "older", "tp=2", NULL, NULL);
    EXPECT(c[0].exit_code == 0, "older: exit %d: %s", c[0].exit_code, c[0].err);
    child_release(&c[0]);
    EXPECT(system("cp -r older older-saves") == 0, "no copy");
    start(&c[0], "older", "tp=2", "1:4:1:0:count-older", WORDS("--resume-from", "step-2"));
    start(&c[1], "older-saves", "tp=2", "1:6:1:0:count-older-saves", WORDS("--resume-from=step-2"));
    for (int i = 0; i < 2; i++) {
        EXPECT(child_wait(&c[i], CHILD_PATIENCE_S), "older %d: still there", i);
        const char *wanted = i == 0 ? "step-2 (step 2)" : "step-4 (step 4)";
        EXPECT(c[i].exit_code == 0 && c[i].out && count(c[i].out, wanted) == (i == 0 ? 2 : 1) &&
                   count(c[i].out, "starting from ") == 2,
               "older %d: exit %d: %s%s", i, c[i].exit_code, c[i].out, c[i].err);
        child_release(&c[i]);
    }
}

/* From the kill to the next step: 10 s are promised beside loading; here are 30 for slow machines.
 * Then it is asked to stop, while it runs. */
static void is_quick(void)
{
    child c;
    pid_t ranks[4], now[4];
    char path[] = "quick/metrics.jsonl";
    if (!start_long(&c, "c.json", "quick", "tp=2,dp=2", 4, ranks)) {
        child_release(&c);
        return;
    }
    double begin_us = weft_now_us();
    kill(ranks[2], SIGKILL);
    while (weft_now_us() - begin_us < 1e6 * CHILD_PATIENCE_S &&
           (child_ranks(&c, now, 4) != 4 || now[0] == ranks[0]))
        child_pause(0.01);
    /* The new ranks cut the file to their checkpoint, and then add lines. */
    char *before = child_read(path), *text = NULL;
    bool again = false;
    for (size_t least = before ? strlen(before) : 0;
         !again && weft_now_us() - begin_us < 1e6 * CHILD_PATIENCE_S;) {
        text = child_peek(path);
        again = text && strlen(text) > least;
        least = text && strlen(text) < least ? strlen(text) : least;
        free(text);
        child_pause(0.005);
    }
    printf("from kill to the next step: %.2f s\n", (weft_now_us() - begin_us) / 1e6);
    EXPECT(again, "quick: no step");
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "quick: goes on");
    EXPECT(c.exit_code == WEFT_EXIT_STOPPED && count(c.err, "started again in ") == 1 &&
               strstr(c.err, CHILD_ASKED "\n"),
           "quick: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

/* While a job's script waits to start it again. */
static void job_stopped(void)
{
    char folder[4096], path[8192];
    child c;
    EXPECT(mkdir("job-fakes", 0755) == 0 &&
               child_write("job-fakes/mpirun", "#!/bin/bash\nmkdir -p job/checkpoints\n"
                                               "echo '0000000001 steps' >job/.alive\n"
                                               "echo step-2 >job/checkpoints/latest\nexit 5\n") &&
               chmod("job-fakes/mpirun", 0755) == 0 && getcwd(folder, sizeof folder),
           "job-fakes/mpirun");
    snprintf(path, sizeof path, "PATH=%s/job-fakes:%s", folder, getenv("PATH"));
    CHILD_GOOD("launch", "mpirun", "c.json", "--out", "job", "--nodes", "1", "--mesh", "tp=2",
               "--set", "reliability.restart_delay_s=500", "--set", "reliability.max_restarts=1");
    child_program = "/bin/bash";
    EXPECT(child_start(&c, WORDS("job/job.sh"), WORDS(path)), "no bash");
    EXPECT(child_wait_for_text(&c, c.err_path, "started again in 500 s"), "job: goes on");
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == WEFT_EXIT_STOPPED &&
               strstr(c.err, "weft: asked to stop: it is not started again\n"),
           "job: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

/* mpirun says that it lost a rank, or has none left, and never ends: it is killed, and the ranks
 * start again. */
static void mpirun_hangs(const char *run, const char *does, const char *said, int code)
{
    char folder[4096], path[8192], fakes[32], fake[64], script[1024], again[128];
    child c;
    snprintf(script, sizeof script,
             "#!/bin/bash\nPATH=${PATH#*:}\n[ -e %s.hung ] && exec mpirun \"$@\"\ntouch %s.hung\n"
             "%s\nexec sleep 1000\n",
             run, run, does);
    snprintf(again, sizeof again,
             "the job ended with exit code %d after step 0: it is started again", code);
    snprintf(fakes, sizeof fakes, "%s-fakes", run);
    snprintf(fake, sizeof fake, "%s/mpirun", fakes);
    EXPECT(mkdir(fakes, 0755) == 0 && child_write(fake, script) && chmod(fake, 0755) == 0 &&
               getcwd(folder, sizeof folder),
           "%s", fake);
    snprintf(path, sizeof path, "PATH=%s/%s:%s", folder, fakes, getenv("PATH"));
    const double begin_us = weft_now_us();
    EXPECT(child_start(&c, WORDS("train", "c.json", "--out", run, "--mesh", "tp=2"),
                       WORDS(path, "CRASH=0:0:0:0:none")),
           "no start");
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "still there");
    EXPECT(c.exit_code == 0 && strstr(c.err, said) && strstr(c.err, again), "%s: exit %d: %s", run,
           c.exit_code, c.err);
    EXPECT(weft_now_us() - begin_us > 19e6, "it is killed at once");
    child_release(&c);
}

/* More than a machine is to start: a typo would bury it. */
static void too_many(void)
{
    char mesh[32], batch[64], said[64];
    const long world = 64 * sysconf(_SC_NPROCESSORS_ONLN) + 1;
    child c;
    snprintf(mesh, sizeof mesh, "dp=%ld", world);
    snprintf(batch, sizeof batch, "train.global_batch_size=%ld", world);
    snprintf(said, sizeof said, "weft train: %ld ranks on this machine of ", world);
    run_until_end(&c, "many", mesh, NULL, WORDS("--set", batch));
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, said) == c.err, "exit %d: %s",
           c.exit_code, c.err);
}

/* The fault's records are those that the next start has set aside. */
static void inspect_fault(const char *run)
{
    child_says(WORDS("inspect", run, "--flight"), 0,
               WORDS("of the fault before the last start (", "no whole record of rank 2\n"), NULL);
}

static void goes_on_four(void)
{
    goes_on("four", "tp=2,dp=2", 2, NULL);
    inspect_fault("four-crashed");
}

static void goes_on_alone(void)
{
    goes_on("alone", "tp=1", 0, NULL);
}

static void goes_on_zero(void)
{
    goes_on("zero", "pp=2", 0, WORDS("--set", "checkpoint.async_save=true"));
}

static void mpirun_hangs_lost(void)
{
    mpirun_hangs("lost",
                 "dashes=$(printf '%074d' 0 | tr 0 -)\necho \"$dashes\" >&2\n"
                 "echo 'mpirun noticed that process rank 2 with PID 7 on node vm exited on signal "
                 "9 (Killed).' >&2\necho \"$dashes\" >&2",
                 "weft train: mpirun did not end within 20 s of the end of rank 2: killed", 137);
}

static void mpirun_hangs_bare(void)
{
    mpirun_hangs("bare", "sleep 2",
                 "weft train: no rank is left, and mpirun did not end within 20 s: killed", 5);
}

/* The longest first. */
static void (*const parts[])(void) = {
    mpirun_hangs_lost, mpirun_hangs_bare, goes_on_four, goes_on_alone, goes_on_zero,
    step_fails,        start_fails,       codes,        from_older,    is_quick,
    bad_config,        stopped,           job_stopped,  too_many};

static void part(int i)
{
    parts[i]();
}

int main(int argc, char **argv)
{
    child_begin();
    if (argc < 2 || !child_write("c.json", config))
        return 1;
    child_program = argv[1];
    child_side_by_side(part, sizeof parts / sizeof *parts, 4);
    return child_finish();
}
