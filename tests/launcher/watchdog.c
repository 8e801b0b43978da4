/* The watchdog: a rank that is stopped, or leaves a call out, is named in one line, within its
 * limit and two seconds; every rank that can writes its flight record; the job ends with the code
 * of WEFT_HUNG. A debugger's stop and a slow save are no alarm. Limits that are too low say so.
 *   test_watchdog WEFT-WITH-FAULTS */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/status.h>

#include "core/clock.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_RANKS = 8, LIMIT_S = 3 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 1000000},\n"
    "\"data\": {\"mock_data\": true},\n"
    "\"reliability\": {\"exchange_limit_s\": 3, \"step_limit_s\": 8},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static off_t metrics_bytes(const char *run)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    return stat(path, &info) == 0 ? info.st_size : 0;
}

static bool start(child *c, const char *run, const char *mesh, const char *fault, const char *set)
{
    char environment[64];
    /* Memory that ranks share finds what differs at once; here is what messages find. */
    const char *windows =
        fault && !strstr(run, "window") ? "WEFT_SHARED_WINDOWS=0" : "WEFT_SHARED_WINDOWS=1";
    const char *args[] = {"train", "c.json", "--out", run, "--mesh", mesh, "--set", set, NULL};
    snprintf(environment, sizeof environment, "FAULT=%s", fault ? fault : "none:none:0:0:0");
    EXPECT(child_start(c, args, (const char *[]){environment, windows, NULL}), "%s: no start", run);
    return c->pid != 0;
}

static void wait_for_steps(child *c, const char *run)
{
    for (int i = 0; i < 20000 && metrics_bytes(run) == 0 && !child_wait(c, 0); i++)
        pause_ms(1);
    EXPECT(c->pid, "%s: ended: exit %d: %s", run, c->exit_code, c->err);
}

static bool has_record(const char *run, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s/flight/%s", run, name);
    return access(path, R_OK) == 0;
}

/* One line with both texts, the code, a verdict and the records of `num_records` ranks at least. */
static void check_named(const char *run, child *c, double seconds, const char *who,
                        const char *what, int num_records)
{
    int count = 0;
    double start_us = weft_now_us();
    EXPECT(child_wait(c, 40), "%s: still there", run);
    double took_s = (weft_now_us() - start_us) / 1e6;
    EXPECT(c->exit_code == weft_status_exit_code(WEFT_HUNG), "%s: exit %d: %s", run, c->exit_code,
           c->err);
    EXPECT(c->err && child_is_line(c->err) && strstr(c->err, who) && strstr(c->err, what),
           "%s: said %s", run, c->err);
    /* A machine with other work is later; scripts/faults measures on a quiet one. */
    EXPECT(took_s <= seconds + 5, "%s: %.2f s", run, took_s);
    for (int i = 0; i < MAX_RANKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "rank-%d.json", i);
        count += has_record(run, name);
    }
    EXPECT(count >= num_records, "%s: %d flight records", run, count);
    EXPECT(has_record(run, "verdict.json"), "%s: no verdict", run);
    child_release(c);
}

/* What ends the job beyond the line: records are written, mpirun takes the ranks down. */
enum { DOWN_S = 1 };

static void stop_rank(const char *run, const char *mesh, int num_ranks, int rank)
{
    child c;
    pid_t ranks[MAX_RANKS];
    char who[32];
    if (!start(&c, run, mesh, NULL, "train.seed=1"))
        return;
    wait_for_steps(&c, run);
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == num_ranks, "%s: %d ranks", run, count);
    if (count == num_ranks)
        kill(ranks[rank], SIGSTOP);
    snprintf(who, sizeof who, "rank %d (", rank);
    check_named(run, &c, LIMIT_S + 2 + DOWN_S, who, "is missing: no answer", num_ranks - 1);
}

/* One that is stopped before ranks know of each other. */
static void stop_start(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    int count = 0;
    if (!start(&c, "early", "dp=2", NULL, "reliability.setup_limit_s=3"))
        return;
    for (int i = 0; i < 4000 && (count = child_ranks(&c, ranks, MAX_RANKS)) < 2; i++)
        pause_ms(1);
    EXPECT(count == 2, "early: %d ranks", count);
    if (count == 2)
        kill(ranks[1], SIGSTOP);
    EXPECT(child_wait(&c, 40) && c.exit_code == weft_status_exit_code(WEFT_HUNG) &&
               child_is_line(c.err) && strstr(c.err, "rank 1 (") &&
               strstr(c.err, " is missing: ") &&
               strstr(c.err, "limit 3 s (reliability.setup_limit_s)"),
           "early: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

/* One that is killed is named in the last line, with the signal and with where others waited for
 * it; all others write their flight records. */
static void kill_rank(const char *run, const char *mesh, int num_ranks, int rank, int number)
{
    child c;
    pid_t ranks[MAX_RANKS];
    char who[32], how[64], name[32];
    if (!start(&c, run, mesh, NULL, "train.seed=1"))
        return;
    wait_for_steps(&c, run);
    const int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == num_ranks, "%s: %d ranks", run, count);
    if (count == num_ranks)
        kill(ranks[rank], number);
    EXPECT(child_wait(&c, 40), "%s: still there", run);
    snprintf(who, sizeof who, "weft train: rank %d on ", rank);
    snprintf(how, sizeof how, " was killed by signal %d (%s) in step ", number, strsignal(number));
    const char *last = strstr(c.err, "weft train: ");
    EXPECT(c.exit_code == 128 + number && last && strstr(last, who) == last && strstr(last, how) &&
               strstr(last, " waited for it in ") && strstr(last, " of group ") &&
               child_is_line(last),
           "%s: exit %d: %s", run, c.exit_code, c.err);
    for (int i = 0; i < num_ranks; i++) {
        snprintf(name, sizeof name, "rank-%d.json", i);
        EXPECT(has_record(run, name) == (i != rank), "%s: %s", run, name);
    }
    child_release(&c);
}

/* The records of a run whose rank `rank` was stopped. */
static void inspect(const char *run, int rank)
{
    child c;
    char path[64];
    child_run(&c, (const char *[]){"inspect", "--flight", run, NULL}, NULL);
    EXPECT(c.exit_code == 0 && strstr(c.out, "is missing") && strstr(c.out, "recv") &&
               strstr(c.out, "behind:"),
           "inspect: exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    child_run(&c, (const char *[]){"inspect", "--flight", "--json", run, NULL}, NULL);
    EXPECT(c.exit_code == 0 && child_is_line(c.out) && strstr(c.out, "\"in_flight\":[{"),
           "inspect --json: exit %d: %s", c.exit_code, c.out);
    child_release(&c);
    /* Whom the end of the job woke writes, too. */
    char late[96];
    snprintf(path, sizeof path, "%s/flight/rank-%d.json", run, rank);
    snprintf(late, sizeof late,
             "{\"rank\": %d, \"groups\": [], \"operations\": [], \"in_flight\": []}", rank);
    EXPECT(child_write(path, late), "%s", path);
    child_run(&c, (const char *[]){"inspect", "--flight", run, NULL}, NULL);
    EXPECT(c.exit_code == 0 && strstr(c.out, "; the verdict names it"),
           "inspect a late record: exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    snprintf(path, sizeof path, "%s/flight/rank-%d.json", run, rank == 0);
    EXPECT(truncate(path, 99) == 0, "%s", path);
    child_run(&c, (const char *[]){"inspect", "--flight", run, NULL}, NULL);
    snprintf(late, sizeof late, "no whole record of rank %d\n", rank == 0);
    EXPECT(c.exit_code == 6 && child_is_line(c.err) && strstr(c.err, path) &&
               strstr(c.out, "is missing") && strstr(c.out, "; the verdict names it") &&
               strstr(c.out, late),
           "inspect a damaged record: exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    snprintf(path, sizeof path, "%s/flight/verdict.json", run);
    EXPECT(child_write(path, "what?"), "%s", path);
    child_run(&c, (const char *[]){"inspect", "--flight", run, NULL}, NULL);
    EXPECT(c.exit_code == 6 && child_is_line(c.err) &&
               strstr(c.err, "the first of 2 damaged files") && strstr(c.out, "behind:"),
           "inspect a damaged verdict: exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
}

/* A debugger stops one rank for less than the limit, and all ranks for more. */
static void stop_and_go_on(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "debugged", "tp=2,pp=2", NULL, "reliability.exchange_limit_s=7"))
        return;
    wait_for_steps(&c, "debugged");
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == 4, "%d ranks", count);
    kill(ranks[2], SIGSTOP);
    pause_ms(5000);
    kill(ranks[2], SIGCONT);
    pause_ms(500);
    for (int i = 0; i < count; i++)
        kill(ranks[i], SIGSTOP);
    pause_ms(9000);
    for (int i = 0; i < count; i++)
        kill(ranks[i], SIGCONT);
    off_t bytes = metrics_bytes("debugged");
    for (int i = 0; i < 5000 && metrics_bytes("debugged") == bytes; i++)
        pause_ms(1);
    EXPECT(metrics_bytes("debugged") > bytes && !child_wait(&c, 0), "no more steps: %s", c.err);
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, 30) && c.exit_code == WEFT_EXIT_STOPPED &&
               strcmp(c.err, CHILD_ASKED "\n") == 0,
           "exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

static void save_slowly(void)
{
    child c;
    if (!start(&c, "slow", "dp=2", "slow:save:1:3:8", "train.train_iters=3"))
        return;
    EXPECT(child_wait(&c, 60) && c.exit_code == 0 && c.err[0] == '\0', "slow save: exit %d: %s",
           c.exit_code, c.err);
    child_release(&c);
}

/* A rank that dies in a save is not waited for as long as a save may take. */
static void stop_in_save(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "dead-save", "dp=2", "slow:save:1:3:600", "train.train_iters=3"))
        return;
    wait_for_steps(&c, "dead-save");
    int count = child_ranks(&c, ranks, MAX_RANKS);
    EXPECT(count == 2, "%d ranks", count);
    pause_ms(1000); /* three steps of milliseconds */
    if (count == 2)
        kill(ranks[1], SIGSTOP);
    check_named("dead-save", &c, 8 + 2 + DOWN_S, "rank 1 (",
                "limit 8 s (reliability.step_limit_s); rank 0 waits", 1);
}

/* The file system hangs too: said all the same. */
static void hang_with_files(void)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, "hung-files", "dp=4", "hang:verdict:0:0:0", "train.seed=1"))
        return;
    wait_for_steps(&c, "hung-files");
    if (child_ranks(&c, ranks, MAX_RANKS) == 4)
        kill(ranks[2], SIGSTOP);
    EXPECT(child_wait(&c, 30) && c.exit_code == weft_status_exit_code(WEFT_HUNG) &&
               child_is_line(c.err) && strstr(c.err, "rank 2 (") &&
               strstr(c.err, "hung-files hangs, too"),
           "hung files: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
}

/* Calls that ranks do not make alike. */
static void leave_out(const char *run, const char *mesh, const char *fault, const char *who,
                      const char *what)
{
    child c;
    if (start(&c, run, mesh, fault, "train.seed=1"))
        check_named(run, &c, 30, who, what, 4);
}

/* Found where the step ends, before anything waits. */
static void mismatch(const char *run, const char *mesh, const char *fault, const char *what)
{
    child c;
    if (!start(&c, run, mesh, fault, "parallel.ddp_bucket_size=256"))
        return;
    EXPECT(child_wait(&c, 30) && c.exit_code == weft_status_exit_code(WEFT_COMM) &&
               strstr(c.err, what) && strstr(c.err, "group"),
           "%s: exit %d: %s", run, c.exit_code, c.err);
    EXPECT(strstr(c.err, "step 5"), "%s: %s", run, c.err);
    EXPECT(!strstr(run, "window") || child_is_line(c.err), "%s: %s", run, c.err);
    child_release(&c);
}

static void limits_too_low(void)
{
    child c;
    static const char paced[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
        "\"seq_length\": 12, \"vocab_size\": 53},\n"
        "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 5},\n"
        "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true},\n"
        "\"device\": {\"pace\": 1e6, \"pace_work\": \"all\"}, \"log\": {\"trace_step\": 0}}\n";
    EXPECT(child_write("paced.json", paced), "paced.json");
    child_run(&c,
              (const char *[]){"train", "paced.json", "--out", "low", "--mesh", "dp=2", "--set",
                               "first_step_limit_s=1", NULL},
              NULL);
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_HUNG) && child_is_line(c.err) &&
               strstr(c.err, "all get on") && strstr(c.err, "raise reliability.first_step_limit_s"),
           "low first step: exit %d: %s", c.exit_code, c.err);
    child_release(&c);
    child_run(&c,
              (const char *[]){"train", "paced.json", "--out", "lower", "--mesh", "dp=2", "--set",
                               "step_limit_s=1", NULL},
              NULL);
    const char *told = strstr(c.err, "reliability.step_limit_s: 1 s is below what it takes");
    /* On a busy machine another line says that it falls behind the pace. */
    EXPECT(c.exit_code == 0 && told && !strstr(told + 1, "reliability."), "low step: exit %d: %s",
           c.exit_code, c.err);
    child_release(&c);
}

int main(int argc, char **argv)
{
    char folder[32];
    if (argc > 1)
        child_program = argv[1];
    EXPECT(child_folder_enter(folder), "no folder");
    EXPECT(child_write("c.json", config), "c.json");
    stop_rank("stopped", "tp=2,pp=2", 4, 3);
    inspect("stopped", 3);
    stop_rank("stopped-first", "dp=4", 4, 0);
    kill_rank("killed", "tp=2,pp=2", 4, 2, SIGKILL);
    kill_rank("killed-first", "dp=4", 4, 0, SIGKILL);
    kill_rank("faulted", "pp=2", 2, 1, SIGSEGV);
    stop_start();
    stop_and_go_on();
    save_slowly();
    stop_in_save();
    hang_with_files();
    limits_too_low();
    leave_out("last", "dp=4", "skip:all_gather:2:5:0", "rank 2 (", "has left out all_gather ");
    leave_out("message", "tp=2,pp=2", "skip:send:1:5:1", "rank 1 (", "group pp");
    mismatch("type-window", "dp=4", "type:reduce_scatter:1:5:0", "rank 1");
    mismatch("identical-window", "dp=4", "skip:reduce_scatter:1:5:1", "rank 1");
    mismatch("type", "dp=4", "type:reduce_scatter:1:5:0", "rank 1");
    mismatch("identical", "dp=4", "skip:reduce_scatter:1:5:1", "rank 1");
    mismatch("send", "tp=2,pp=2", "twice:send:1:5:1", "rank 1 has sent");
    if (!expect_failures)
        child_folder_leave(folder);
    return expect_finish();
}
