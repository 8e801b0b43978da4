/* Asked to stop, by whatever and however early, a run saves what it has done and ends with its own
 * exit code; a job that cannot stop is killed; and no rank outlives who started it. What cannot be
 * written to standard output, and what all ranks find wrong, is said once. On one machine nothing
 * listens beyond the loopback. */
#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/status.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_RANKS = 16 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 1000000},\n"
    "\"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static bool has_steps(const char *run)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    return stat(path, &info) == 0 && info.st_size > 0;
}

static void wait_for_steps(child *c, const char *run)
{
    for (int i = 0; i < 1000 * CHILD_PATIENCE_S && !has_steps(run) && !child_wait(c, 0); i++)
        child_pause(0.001);
}

static bool start(child *c, const char *run, const char *mesh, const char *set, bool until_steps)
{
    const char *args[] = {"train", "c.json", "--out", run, "--mesh", mesh, "--set", set, NULL};
    EXPECT(child_start(c, args, NULL), "%s: no start", run);
    if (until_steps)
        wait_for_steps(c, run);
    EXPECT(!until_steps || c->pid, "%s: ended: exit %d: %s", run, c->exit_code, c->err);
    return c->pid != 0;
}

static void check_end(const char *what, child *c, int exit_code, const char *err)
{
    EXPECT(child_wait(c, CHILD_PATIENCE_S), "%s: still there", what);
    EXPECT(c->exit_code == exit_code, "%s: exit %d in place of %d: %s", what, c->exit_code,
           exit_code, c->err);
    EXPECT(c->err && strcmp(c->err, err) == 0, "%s: said %s", what, c->err);
    child_release(c);
}

static void check_saved(const char *run, bool saved)
{
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoints/latest", run);
    EXPECT((access(path, F_OK) == 0) == saved, "%s: saved: %d", run, !saved);
}

/* `times` signals, as soon as the process catches them, or once it trains. */
static void stop(const char *run, const char *mesh, int number, int times, bool early)
{
    child c;
    if (!start(&c, run, mesh, "train.seed=1", !early))
        return;
    for (int i = 0; i < 1000 * CHILD_PATIENCE_S && !child_catches(c.pid, number); i++)
        child_pause(0.001);
    for (int i = 0; i < times && !child_wait(&c, 0); i++) {
        kill(c.pid, number);
        child_pause(times > 1 ? 0.002 : 0);
    }
    check_end(run, &c, WEFT_EXIT_STOPPED,
              number == SIGINT ? CHILD_ASKED CHILD_AGAIN "\n" : CHILD_ASKED "\n");
    check_saved(run, true);
}

static pid_t starter_of(pid_t rank)
{
    char path[64];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)rank);
    char *text = child_read(path), *after = text ? strrchr(text, ')') : NULL;
    if (after)
        sscanf(after, ") %*c %d", &parent);
    return parent;
}

/* Processes, but for zombies, with this word among their arguments. */
static int count_processes(const char *word)
{
    int count = 0;
    DIR *all = opendir("/proc");
    for (const struct dirent *entry; all && (entry = readdir(all));) {
        char path[300], line[4096] = "";
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = fopen(path, "r");
        size_t bytes = file ? fread(line, 1, sizeof line - 1, file) : 0;
        if (file)
            fclose(file);
        for (size_t at = 0; at < bytes; at += strlen(line + at) + 1)
            if (strcmp(line + at, word) == 0) {
                count++;
                break;
            }
    }
    if (all)
        closedir(all);
    return count;
}

static void expect_gone(const char *run)
{
    for (int i = 0; i < 200 * CHILD_PATIENCE_S && count_processes(run) > 0; i++)
        child_pause(0.005);
    EXPECT(count_processes(run) == 0, "%s: %d processes are left", run, count_processes(run));
}

/* --- jobs that do not stop, or lose who started them ---------------------------------------- */

static void kill_stopped(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "frozen", "dp=2", "train.stop_timeout_s=1", true))
        return;
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == 2, "%d ranks", count);
    for (int i = 0; i < count; i++)
        kill(ranks[i], SIGSTOP);
    EXPECT(count && getpgid(starter_of(ranks[0])) != getpgid(c.pid), "mpirun is in our group");
    kill(c.pid, SIGTERM);
    check_end("frozen", &c, 128 + SIGKILL,
              CHILD_ASKED "\nweft train: not stopped within 1 s (train.stop_timeout_s): killed\n");
    expect_gone("frozen");
}

/* A first signal, which must be answered before a second: one that is pending takes in the next. */
static void ask_first(child *c, int number)
{
    kill(c->pid, number);
    EXPECT(child_wait_for_text(c, c->err_path, CHILD_ASKED), "no answer to signal %d: %s", number,
           c->err);
    EXPECT(!child_wait(c, 0.3), "ended with a rank that is stopped: %s", c->err);
}

static void interrupt_twice(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "impatient", "dp=2", "train.seed=1", true))
        return;
    if (child_ranks(&c, ranks, MAX_RANKS) == 2)
        kill(ranks[1], SIGSTOP);
    ask_first(&c, SIGINT);
    kill(c.pid, SIGINT);
    check_end("impatient", &c, 128 + SIGINT,
              CHILD_ASKED CHILD_AGAIN
              "\nweft train: asked to stop again, and rank 1 is stopped (SIGSTOP): killed\n");
    expect_gone("impatient");
}

/* Whatever the second signal is. The checkpoint before stands. */
static void ask_twice(const char *run, int second)
{
    child c;
    pid_t ranks[MAX_RANKS];
    char latest[64];
    if (!start(&c, run, "dp=2", "checkpoint.save_interval=1", true))
        return;
    snprintf(latest, sizeof latest, "%s/checkpoints/latest", run);
    EXPECT(child_wait_for_text(&c, latest, "step-"), "%s: %s", run, c.err);
    if (child_ranks(&c, ranks, MAX_RANKS) == 2)
        kill(ranks[1], SIGSTOP);
    ask_first(&c, SIGTERM);
    kill(c.pid, second);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "%s: still there", run);
    check_end(run, &c, 128 + SIGKILL,
              CHILD_ASKED
              "\nweft train: asked to stop again, and rank 1 is stopped (SIGSTOP): killed\n");
    expect_gone(run);
    CHILD_GOOD("inspect", run);
}

/* What a process has computed so far, in clock ticks. */
static long ticks_of(pid_t pid)
{
    char path[64];
    long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *text = child_peek(path), *after = text ? strrchr(text, ')') : NULL;
    if (after)
        sscanf(after, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system);
    free(text);
    return user + system;
}

/* Until all ranks have computed for longer than what lies between a step and its evaluation. */
static void wait_for_evaluation(child *c)
{
    pid_t ranks[MAX_RANKS] = {c->pid};
    long begun[MAX_RANKS], least = 0;
    const int found = child_ranks(c, ranks, MAX_RANKS), count = found ? found : 1;
    for (int i = 0; i < count; i++)
        begun[i] = ticks_of(ranks[i]);
    for (int tries = 0; tries < 100 * CHILD_PATIENCE_S && least < 20 && !child_wait(c, 0.01);
         tries++) {
        least = LONG_MAX;
        for (int i = 0; i < count; i++) {
            const long passed = ticks_of(ranks[i]) - begun[i];
            least = passed < least ? passed : least;
        }
    }
}

/* Amid an evaluation that would take hours, behind the first step. */
static void stop_amid_evaluation(const char *run, const char *mesh, const char *interval,
                                 const char *iters, int number)
{
    child c;
    const char *const split = "data.split=9,1,0";
    const char *const *args =
        WORDS("train", "c.json", "--out", run, "--mesh", mesh, "--set", interval, "--set", split,
              "--set", "train.eval_iters=100000000", "--set", "log.level=error", "--set", iters);
    EXPECT(child_start(&c, args, NULL), "%s: no start", run);
    wait_for_steps(&c, run);
    wait_for_evaluation(&c);
    kill(c.pid, number);
    check_end(run, &c, WEFT_EXIT_STOPPED,
              number == SIGINT ? CHILD_ASKED_AMID_EVALUATION CHILD_AGAIN "\n"
                               : CHILD_ASKED_AMID_EVALUATION "\n");
    check_saved(run, true);
}

static void run_well(const char *const *args, const char *out)
{
    child_says(args, 0, WORDS(out), NULL);
}

/* The evaluation behind the last step, of which the interval is no part, is owed, too: the run is
 * not finished before it. */
static void stop_last_evaluation(const char *run, const char *mesh)
{
    const char *again[] = {"train", "--out", run, "--resume", "--set", "train.eval_iters=1", NULL};
    stop_amid_evaluation(run, mesh, "train.eval_interval=7", "train.train_iters=1", SIGTERM);
    run_well(again, "step 1  validation loss ");
    run_well(again, ": finished: step 1 of train.train_iters 1 is done\n");
}

/* The run saves and ends behind the batch. The run that goes on owes that evaluation. */
static void stop_evaluation(const char *run, const char *mesh)
{
    const char *const *again = WORDS("train", "--out", run, "--resume", "--set",
                                     "train.eval_iters=1", "--set", "train.train_iters=2");
    stop_amid_evaluation(run, mesh, "train.eval_interval=1", "train.train_iters=1000000", SIGINT);
    run_well(again, "");
    char *text = child_read_in(run, "metrics.jsonl");
    const char *owed = text ? strstr(text, "{\"step\": 1, \"validation_loss\"") : NULL;
    const char *next = text ? strstr(text, "{\"step\": 2, \"loss\"") : NULL;
    EXPECT(owed && next && owed < next, "%s: no evaluation of step 1 before step 2:\n%s", run,
           text);
}

/* Amid the evaluation of a step that is due to be saved: the step is not lost. */
static void kill_evaluation(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    const char *const *args =
        WORDS("train", "c.json", "--out", "long", "--mesh", "dp=2", "--set",
              "train.eval_interval=1", "--set", "data.split=9,1,0", "--set",
              "train.eval_iters=100000000", "--set", "checkpoint.save_interval=1");
    EXPECT(child_start(&c, args, NULL), "no start");
    child_wait_for_text(&c, "long/checkpoints/latest", "step-1");
    EXPECT(c.pid && child_ranks(&c, ranks, MAX_RANKS) == 2, "exit %d: %s", c.exit_code, c.err);
    kill(ranks[1], SIGKILL);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code != 0, "exit %d", c.exit_code);
    child_release(&c);
    check_saved("long", true);
}

static void lose_mpirun(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "headless", "dp=2", "train.seed=1", true))
        return;
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == 2, "%d ranks", count);
    if (count > 0)
        kill(starter_of(ranks[0]), SIGKILL);
    check_end("headless", &c, 128 + SIGKILL,
              "weft train: mpirun was killed by signal 9 (Killed)\n");
    expect_gone("headless");
}

/* Open MPI gives ranks a second: enough here, if the machine is not too busy. */
static void end_mpirun(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "ended", "dp=2", "train.seed=1", true))
        return;
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == 2, "%d ranks", count);
    if (count > 0)
        kill(starter_of(ranks[0]), SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "ended: still there");
    const bool saved = access("ended/checkpoints/latest", F_OK) == 0;
    EXPECT(c.exit_code == WEFT_EXIT_STOPPED ? saved && c.err && !*c.err : c.exit_code == 1,
           "ended: saved %d, exit %d: %s", saved, c.exit_code, c.err);
    child_release(&c);
    expect_gone("ended");
}

/* Anywhere in the start of eight ranks. */
static void lose_starter(void)
{
    static const double after_s[] = {0.06, 0.25, 0.4};
    for (size_t i = 0; i < sizeof after_s / sizeof *after_s; i++) {
        child c;
        if (!start(&c, "orphans", "dp=8", "train.seed=1", false))
            return;
        child_pause(after_s[i]);
        kill(c.pid, SIGKILL);
        EXPECT(child_wait(&c, CHILD_PATIENCE_S), "cannot be killed");
        child_release(&c);
        expect_gone("orphans");
    }
}

/* --- who listens ---------------------------------------------------------------------------- */

static bool owns(pid_t pid, unsigned long inode)
{
    char path[300], wanted[64], target[64];
    bool found = false;
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *all = opendir(path);
    for (const struct dirent *entry; all && !found && (entry = readdir(all));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    if (all)
        closedir(all);
    return found;
}

/* Sockets of these processes that listen in one of /proc/net's tables; each on `loopback`. */
static int check_listening(const char *table, const char *loopback, const pid_t *pids, int num_pids)
{
    int count = 0;
    char *text = child_read(table);
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        char address[33];
        unsigned state;
        unsigned long inode;
        if (sscanf(line, " %*d: %32[0-9A-F]:%*x %*[0-9A-F]:%*x %x %*s %*s %*s %*d %*d %lu", address,
                   &state, &inode) != 3 ||
            state != 10)
            continue;
        for (int i = 0; i < num_pids; i++)
            if (owns(pids[i], inode)) {
                EXPECT(strcmp(address, loopback) == 0, "process %d of %d listens on %s", i,
                       num_pids, address);
                count++;
            }
    }
    return count;
}

static void check_private(void)
{
    child c;
    pid_t pids[MAX_RANKS];
    if (!start(&c, "private", "dp=2", "train.seed=1", true))
        return;
    int count = child_ranks(&c, pids, MAX_RANKS - 1);
    EXPECT(count == 2, "%d ranks", count);
    if (count > 0)
        pids[count++] = starter_of(pids[0]);
    int listening = check_listening("/proc/net/tcp", "0100007F", pids, count);
    listening += check_listening("/proc/net/tcp6", "00000000000000000000000001000000", pids, count);
    EXPECT(listening > 0, "mpirun does not listen: is this the right table?");
    kill(c.pid, SIGTERM);
    check_end("private", &c, WEFT_EXIT_STOPPED, CHILD_ASKED "\n");
}

/* --- standard output, and errors that all ranks have ---------------------------------------- */

static void run_shell(const char *what, const char *command, int exit_code, const char *err)
{
    child c;
    child_program = "/bin/sh";
    bool good = child_start(&c, WORDS("-c", command), NULL);
    child_program = NULL;
    EXPECT(good, "%s: no start", what);
    if (good)
        check_end(what, &c, exit_code, err);
}

static void check_output(void)
{
    static const char full[] = "weft: cannot write standard output: No space left on device; "
                               "training goes on\n";
    run_shell("full, 1 rank",
              "$WEFT_BINARY_DIR/weft train c.json --out full-1 --set train.train_iters=3 "
              ">/dev/full",
              6, full);
    run_shell("full, 2 ranks",
              "$WEFT_BINARY_DIR/weft train c.json --out full-2 --mesh dp=2 --json "
              "--set train.train_iters=3 >/dev/full",
              6, full);
    check_saved("full-2", true);
    run_shell("reader gone, 1 rank",
              "{ $WEFT_BINARY_DIR/weft train c.json --out gone-1 --json; echo $? >code; } | "
              "head -n 1 >/dev/null; exit $(cat code)",
              WEFT_EXIT_STOPPED, "");
    run_shell("reader gone, 2 ranks",
              "{ $WEFT_BINARY_DIR/weft train c.json --out gone-2 --mesh dp=2 "
              "--set log.log_interval=1; echo $? >code; } | head -n 1 >/dev/null; exit $(cat code)",
              WEFT_EXIT_STOPPED, "");
    check_saved("gone-2", true);
    run_shell("another verb", "$WEFT_BINARY_DIR/weft --help >/dev/full", 6,
              "weft: cannot write standard output: No space left on device\n");
    run_shell("a verb that looks itself",
              "$WEFT_BINARY_DIR/weft schedule c.json --program >/dev/full", 6,
              "weft schedule: cannot write a program: No space left on device\n");
}

/* Under the user's own mpirun, where one rank is stopped and the other knows that it waits. */
static void stop_under_mpirun(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    child_program = "/usr/bin/env";
    const char *binary = getenv("WEFT_BINARY_DIR");
    char path[1024];
    snprintf(path, sizeof path, "%s/weft", binary ? binary : ".");
    const char *const *args =
        WORDS("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", path, "train",
              "c.json", "--out", "theirs", "--set", "train.stop_timeout_s=1");
    bool good = child_start(&c, args, NULL);
    if (good)
        wait_for_steps(&c, "theirs");
    child_program = NULL;
    EXPECT(good && c.pid, "mpirun: exit %d: %s", c.exit_code, c.err);
    if (!good || !c.pid)
        return;
    int count = child_descendants(&c, ranks, MAX_RANKS);
    EXPECT(count >= 2, "%d ranks", count);
    if (count >= 2)
        kill(ranks[0], SIGSTOP);
    kill(c.pid, SIGUSR1);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "goes on with a rank that is stopped");
    EXPECT(c.exit_code == 128 + SIGKILL && c.err && strstr(c.err, "weft train: not stopped within"),
           "exit %d: %s", c.exit_code, c.err);
    child_release(&c);
    expect_gone("theirs");
}

/* A save that fails at the end fails on all ranks; one says so. */
static void fail_together(void)
{
    child c;
    if (mkdir("blocked", 0700) != 0 || !child_write("blocked/checkpoints", "no folder")) {
        EXPECT(false, "blocked");
        return;
    }
    CHILD_RUN(&c, "train", "c.json", "--out", "blocked", "--mesh", "dp=4", "--set",
              "train.train_iters=2");
    EXPECT(c.exit_code == 6 && child_is_line(c.err) &&
               strncmp(c.err, "weft train: rank 0: ", 20) == 0 &&
               strstr(c.err, "blocked/checkpoints"),
           "exit %d: %s", c.exit_code, c.err);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    stop("alone-int", "dp=1", SIGINT, 1, false);
    stop("alone-hup", "dp=1", SIGHUP, 1, false);
    stop("alone-usr1", "dp=1", SIGUSR1, 200, true);
    stop("pair-int", "dp=2", SIGINT, 1, false);
    stop("pair-hup", "dp=2", SIGHUP, 1, true);
    stop("pair-term", "dp=2", SIGTERM, 1, true);
    stop("pair-usr1", "dp=2", SIGUSR1, 200, true);
    stop_evaluation("evaluates", "dp=1");
    stop_evaluation("evaluates-pair", "dp=2");
    stop_last_evaluation("evaluates-last", "dp=1");
    stop_last_evaluation("evaluates-last-pair", "dp=2");
    kill_stopped();
    interrupt_twice();
    ask_twice("twice-term", SIGTERM);
    ask_twice("term-int", SIGINT);
    lose_mpirun();
    end_mpirun();
    lose_starter();
    check_private();
    stop_under_mpirun();
    kill_evaluation();
    check_output();
    fail_together();
    return child_finish();
}
