/* Jobs of weft launch that end, or do not: launchers that wait for what is dead, steps that end by
 * themselves or are stopped, and an mpirun job that trains. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/jobs.h"

enum { MAX_PIDS = 64 };

/* A start that no launcher ends, or that looks so. */
typedef struct hung {
    const char *kind, *restarts;
    const char *does; /* the fake launcher's first start; later ones end well */
    int wanted;
    const char *says; /* NULL: that nothing is killed */
} hung;

#define NOTICES                                                                                    \
    "echo 'mpirun noticed that process rank 0 with PID 7 on node a exited on signal 9 (Killed).' " \
    ">&2\necho more >&2\n"
#define JUDGES                                                                                     \
    "echo '0000000001 steps' >\"$run/.alive\"\nmkdir -p \"$run/flight\"\n"                         \
    "echo '{\"by_rank\": 0, \"missing\": [1], \"nodes\": [\"b\"], \"text\": \"\"}' "               \
    ">\"$run/flight/verdict.json\"\n"

static const hung hungs[] = {
    {"mpirun", "0", NOTICES "exec sleep 1000", 137,
     "\nmore\nweft: mpirun did not end within 20 s of that: killed\n"},
    {"mpirun", "0",
     "mkdir -p \"$run/flight\"\necho '{\"missing\": [2, 0], \"nodes\": [\"a\", \"a\"], "
     "\"place\": \"in step 7; rank 1 waited\", \"text\": \"\"}' >\"$run/flight/verdict.json\"\n"
     "ruler=$(printf %074d 0 | tr 0 -)\n"
     "{ echo $ruler; echo \"Primary job  terminated normally, but 1\"; echo other; echo $ruler\n"
     "echo word; echo $ruler\n" NOTICES
     "{ echo $ruler; echo '; the job ends (weft inspect --flight '\n"
     "echo $ruler; echo c; echo $ruler; } >&2; } >&2\nexit 137",
     137,
     "word\n; the job ends (weft inspect --flight \nweft: rank 0 on a was killed by signal 9 "
     "(Killed) in step 7; rank 1 waited: the "
     "job ended with exit code 137; it is not started again (reliability.max_restarts is 0)\n"},
    {"mpirun", "1", "echo '0000000001 steps' >\"$run/.alive\"\n" NOTICES "exec sleep 1000", 0,
     "the job ended with exit code 137 after step 0: it is started again"},
    {"mpirun", "0",
     "exec 8>\"$run/.alive\"\nflock 8\necho '0000000001 steps' >&8\nsleep 5\n"
     "exec 8>&-\nexec sleep 1000",
     137, "weft: rank 0 is dead, and mpirun did not end: killed\n"},
    /* The ranks of daemons that have detached themselves are no children of mpirun; and one whose
     * beat stands still, but that has its lock. */
    {"mpirun", "0",
     "exec 9<> <(:)\n"
     "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do\n"
     "  printf '%010d steps\\n' $i >\"$run/.alive\"\n  read -t 2 <&9\ndone\nexit 0",
     0, NULL},
    {"mpirun", "0",
     "exec 8>\"$run/.alive\" 9<> <(:)\nflock 8\necho '0000000001 steps' >&8\n"
     "read -t 25 <&9\nexit 0",
     0, NULL},
    {"mpirun", "0", JUDGES "exec sleep 1000", 9,
     "weft: mpirun did not end within 10 s of the verdict: killed\n"},
    {"mpirun", "1", "echo 'An ORTE daemon has unexpectedly failed after launch' >&2\nexit 1", 0,
     "the job ended with exit code 5 after step 0: it is started again"},
    /* By the system, where memory is out. */
    {"mpirun", "0", "kill -KILL $$", 137,
     "weft: mpirun was killed by signal 9: the job ended with exit code 137; it is not started "
     "again (reliability.max_restarts is 0)\n"},
    {"mpirun", "1", "echo '0000000001 steps' >\"$run/.alive\"\nkill -KILL $$", 0,
     "weft: mpirun was killed by signal 9: the job ended with exit code 137 after step 0: it is "
     "started again in 0 s (1 of 1"},
    {"slurm", "0", JUDGES "exec sleep 1000", 9,
     "weft: no end of the step on b: the job is queued "},
};

enum { NUM_HUNGS = sizeof hungs / sizeof *hungs };

static void start_hung(int i, child *c)
{
    const hung *h = &hungs[i];
    const bool by_slurm = strcmp(h->kind, "slurm") == 0;
    char setting[64], out[16], script[32];
    const char *const *env =
        WORDS(job_path, "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=list", "TMPDIR=/tmp");
    snprintf(setting, sizeof setting, "reliability.max_restarts=%s", h->restarts);
    snprintf(out, sizeof out, "hung-%d", i);
    snprintf(script, sizeof script, "%s/job.%s", out, by_slurm ? "sbatch" : "sh");
    job_expect_code(WORDS("launch", h->kind, "tiny.json", "--out", out, "--set", setting, "--set",
                          "reliability.restart_delay_s=0"),
                    0, NULL);
    job_expect_bash(script);
    job_start(c, script, env);
}

static void make_hanging(void)
{
    char text[4000];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   JOB_FIND_RUN "if [ -e \"$run/hung\" ]; then\n"
                                                "    echo '1 end' >\"$run/.alive\"\n"
                                                "    exit 0\nfi\n"
                                                "touch \"$run/hung\"\ncase $run in\n");
    for (int i = 0; i < NUM_HUNGS; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "*/hung-%d)\n%s\n;;\n", i,
                                 hungs[i].does);
    snprintf(text + used, sizeof text - used, "esac");
    job_make_fake("mpirun", text);
    job_make_fake("srun", text);
    job_make_fake("scontrol", "if [ \"$2\" = hostnames ]; then echo a; echo b; fi");
    job_make_fake("squeue", "echo 7.0; echo 7.batch");
    job_make_fake("scancel", "exit 0");
}

/* A launcher that waits for what is dead is ended; one whose ranks live is not. All at once. */
static void check_hung(void)
{
    child children[NUM_HUNGS];
    make_hanging();
    for (int i = 0; i < NUM_HUNGS; i++)
        start_hung(i, &children[i]);
    for (int i = 0; i < NUM_HUNGS; i++) {
        const hung *h = &hungs[i];
        child *c = &children[i];
        if (!child_wait(c, CHILD_PATIENCE_S)) {
            EXPECT(false, "hung-%d goes on", i);
            child_kill(c);
        }
        EXPECT(c->exit_code == h->wanted &&
                   (h->says ? strstr(c->err, h->says) != NULL : !strstr(c->err, "killed")),
               "hung-%d: exit %d: %s", i, c->exit_code, c->err);
        EXPECT(!strstr(c->err, "Primary job"), "hung-%d: %s", i, c->err);
        child_release(c);
    }
    const char *text = job_said();
    EXPECT(strstr(text, "\nscancel\n--signal=KILL\n7.0\n") && !strstr(text, "7.batch") &&
               strstr(text, "\nupdate\nJobId=7\nReqNodeList=a\n") &&
               strstr(text, "\nrequeue\n7\n") && strstr(text, "\nExcNodeList=b\n"),
           "%s", text);
}

/* A step of a batch job that ends by itself, or at a signal that the script gets. */
typedef struct step {
    const char *code;
    int signal;
    const char *does; /* the fake srun */
    int wanted;
    bool requeued;
} step;

#define ENDS "exit $FAKE_CODE"
#define WAITS                                                                                      \
    "trap 'kill $sleeper; exit $FAKE_CODE' USR1\nsleep 1000 & sleeper=$!\n"                        \
    "touch ready\nwait $sleeper\nexit 1"

static const step steps[] = {
    {"0", 0, JOB_FIND_RUN "echo '1 end' >\"$run/.alive\"; " ENDS, 0, false},
    {"0", 0, ENDS, 0, false}, /* of a program that is no run */
    /* srun gave up while it launched. */
    {"0", 0, JOB_FIND_RUN "touch \"$run/ledger.jsonl\"; " ENDS, 0, true},
    {"0", 0, JOB_FIND_RUN "echo '1 start' >\"$run/.alive\"; " ENDS, 0, true},
    {"2", 0, ENDS, 2, false},
    {"75", 0, ENDS, 0, true},
    {"137", 0, JOB_FIND_RUN "echo '1 steps' >\"$run/.alive\"; " ENDS, 137, false},
    {"75", SIGUSR1, WAITS, 0, true},
    {"137", SIGUSR1, WAITS, 0, true}, /* srun killed who was still ending */
    {"6", SIGUSR1, WAITS, 6, false},  /* it could not save */
    {"76", SIGUSR1, WAITS, 0, true},  /* it still waited for its place */
    {"75", SIGTERM, WAITS, 75, false},
    {"75", SIGINT, WAITS, 75, false},
    {"137", SIGINT, WAITS, 137, false}, /* nothing is saved */
    {"137", SIGINT,
     JOB_FIND_RUN "mkdir \"$run/checkpoints\"; touch \"$run/checkpoints/latest\"\n" WAITS, 75,
     false},
};
enum { NUM_STEPS = sizeof steps / sizeof *steps };

static void check_step(const step *s)
{
    char script[256], fake_code[32];
    child c;
    snprintf(script, sizeof script, "%s/job.sbatch", job_odd);
    snprintf(fake_code, sizeof fake_code, "FAKE_CODE=%s", s->code);
    job_make_fake("srun", s->does);
    job_launch("slurm", job_odd, WORDS("--set", "train.lr=1e-3"), 0, NULL);
    job_start(&c, script, WORDS(job_path, fake_code, "SLURM_JOB_ID=123"));
    if (s->signal) {
        EXPECT(child_wait_for_text(&c, "ready", ""), "the step did not start");
        kill(c.pid, s->signal);
    }
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "the batch script goes on after signal %d", s->signal);
    const char *text = job_said();
    EXPECT(c.exit_code == s->wanted, "a step of code %s: exit %d, not %d: %s", s->code, c.exit_code,
           s->wanted, c.err);
    EXPECT((strstr(text, "\nrequeue\n123\n") != NULL) == s->requeued, "code %s, signal %d: %s",
           s->code, s->signal, text);
    if (!s->signal)
        job_expect_words(text, "srun");
    child_release(&c);
}

static const char *const training[] = {"OMPI_MCA_btl_vader_single_copy_mechanism=none", NULL};

/* The script as a user starts it. */
static void check_training(void)
{
    child c;
    job_launch("mpirun", "real run", WORDS("--set", "lr_decay_style=constant"), 0, NULL);
    EXPECT(job_run_other(&c, "/bin/bash", WORDS("real run/job.sh"), training) == 0, "%s", c.err);
    child_release(&c);
    EXPECT(job_count_lines("real run/metrics.jsonl") == 3, "%d steps",
           job_count_lines("real run/metrics.jsonl"));
    EXPECT(access("real run/checkpoints/step-3", F_OK) == 0, "no checkpoint");
    /* SIGTERM leaves the ranks the time to save. */
    job_launch(
        "mpirun", "real run",
        WORDS("--force", "--set", "train.train_iters=100000", "--set", "lr_decay_style=constant"),
        0, NULL);
    job_start(&c, "real run/job.sh", training);
    EXPECT(child_wait_for_text(&c, "real run/metrics.jsonl", "{\"step\": 10,"), "it did not go on");
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "not stopped");
    EXPECT(c.exit_code == 75, "a stopped job ends with %d: %s", c.exit_code, c.err);
    char *latest = child_read("real run/checkpoints/latest");
    EXPECT(latest && strncmp(latest, "step-3\n", 7) != 0 && strcmp(latest, "step-3") != 0,
           "nothing was saved after %s: %s", latest ? latest : "?", c.err);
    child_release(&c);
}

static void start_long(child *c)
{
    job_launch("mpirun", "long", WORDS("--set", "train.train_iters=1000000"), 0, NULL);
    job_start(c, "long/job.sh", training);
}

/* A stop as soon as the script heeds it, and so long later: mostly before there are ranks. */
static void check_early_stop(double seconds)
{
    child c;
    start_long(&c);
    while (!child_catches(c.pid, SIGTERM) && !child_wait(&c, 0))
        child_pause(0.001);
    child_pause(seconds);
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "not stopped %g s after the start", seconds);
    EXPECT(c.exit_code == 75, "stopped %g s after the start: exit %d: %s", seconds, c.exit_code,
           c.err);
    child_release(&c);
}

static void check_stop_at_once(void)
{
    check_early_stop(0);
}

static void check_stop_soon(void)
{
    check_early_stop(0.25);
}

/* With a script that is killed its ranks end. */
static void check_killed(void)
{
    child c;
    pid_t pids[MAX_PIDS];
    start_long(&c);
    EXPECT(child_wait_for_text(&c, "long/metrics.jsonl", "{\"step\": 10,"), "no steps");
    const int count = child_descendants(&c, pids, MAX_PIDS);
    int num_gone = 0;
    kill(c.pid, SIGKILL);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == 128 + SIGKILL, "exit %d: %s",
           c.exit_code, c.err);
    for (int tries = 0; tries < 100 * CHILD_PATIENCE_S && num_gone < count; tries++) {
        child_pause(0.01);
        while (num_gone < count && child_is_gone(pids[num_gone]))
            num_gone++;
    }
    EXPECT(count > 2 && num_gone == count, "of %d processes %d are left", count, count - num_gone);
    child_release(&c);
}

/* The longest first. */
static void (*const parts[])(void) = {check_hung, check_training, check_killed, check_stop_at_once,
                                      check_stop_soon};
enum { NUM_PARTS = sizeof parts / sizeof *parts };

static void part(int i)
{
    job_enter();
    if (i < NUM_PARTS)
        parts[i]();
    else
        check_step(&steps[i - NUM_PARTS]);
    job_leave();
}

int main(void)
{
    child_side_by_side(part, NUM_PARTS + NUM_STEPS, 4);
    return expect_finish();
}
