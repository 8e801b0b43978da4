/* The watchdog: a rank that is stopped, or leaves a call out, is named in one line, soon behind its
 * limit; every rank that can writes its flight record; the job ends with the code
 * of WEFT_HUNG. A debugger's stop and a slow save are no alarm. Limits that are too low say so.
 *   test_watchdog WEFT-WITH-FAULTS */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/status.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_RANKS = 8, LATE_S = 100 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 1000000},\n"
    "\"data\": {\"mock_data\": true},\n"
    "\"reliability\": {\"exchange_limit_s\": 8, \"step_limit_s\": 600, "
    "\"limit_factor\": 1},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* One fault, or what looks like one. */
typedef struct fault {
    void (*check)(const struct fault *f);
    const char *run, *mesh;
    int num_ranks, rank; /* `rank` is at fault */
    int number;          /* the signal that it gets */
    const char *call;    /* what it does in a call: FAULT of the program; NULL: nothing */
    const char *says;    /* a part of the line about it */
} fault;

static off_t metrics_bytes(const char *run)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    return stat(path, &info) == 0 ? info.st_size : 0;
}

/* `set`, `other`: NULL: nothing. */
static bool start(child *c, const fault *f, const char *set, const char *other)
{
    char environment[64], mark[64];
    /* Memory that ranks share finds what differs at once; here is what messages find. */
    const char *windows =
        f->call && !strstr(f->run, "window") ? "WEFT_SHARED_WINDOWS=0" : "WEFT_SHARED_WINDOWS=1";
    /* What mpirun leaves the others of a killed rank for their records. */
    const char *grace =
        f->number ? "OMPI_MCA_odls_base_sigkill_timeout=8" : "OMPI_MCA_odls_base_sigkill_timeout=1";
    const char *const *args = WORDS("train", "c.json", "--out", f->run, "--mesh", f->mesh,
                                    set ? "--set" : NULL, set, other ? "--set" : NULL, other);
    snprintf(environment, sizeof environment, "FAULT=%s", f->call ? f->call : "none:none:0:0:0");
    snprintf(mark, sizeof mark, "FAULT_MARK=%s.mark", f->run);
    EXPECT(child_start(c, args, WORDS(environment, mark, windows, grace)), "%s: no start", f->run);
    return c->pid != 0;
}

/* Waits until it makes steps; false: not so many ranks do. */
static bool find_ranks(child *c, const fault *f, pid_t ranks[MAX_RANKS])
{
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", f->run);
    const bool good =
        child_wait_for_text(c, path, "\n") && child_ranks(c, ranks, MAX_RANKS) == f->num_ranks;
    EXPECT(good, "%s: no %d ranks: exit %d: %s", f->run, f->num_ranks, c->exit_code, c->err);
    return good;
}

static bool has_record(const char *run, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s/flight/%s", run, name);
    return access(path, R_OK) == 0;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* When the verdict was written; 0: never. */
static double verdict_s(const char *run)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "%s/flight/verdict.json", run);
    return stat(path, &info) == 0
               ? (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec
               : 0;
}

/* The limit that the line names, which grows with what steps take. */
static double limit_of(const char *line)
{
    const char *limit = line ? strstr(line, ", limit ") : NULL;
    return limit ? strtod(limit + 8, NULL) : 0;
}

/* One line that names the rank, the code, a verdict, within the limit and LATE_S where it is
 * `stopped` now, which is long before the next limit, and the records of `num_records` ranks at
 * least. How soon mpirun ends the job is its own affair. */
static void check_named(const fault *f, child *c, bool stopped, int num_records)
{
    int count = 0;
    char who[32], name[32];
    const double start_s = now_s();
    EXPECT(child_wait(c, CHILD_PATIENCE_S), "%s: still there", f->run);
    EXPECT(c->exit_code == weft_status_exit_code(WEFT_HUNG), "%s: exit %d: %s", f->run,
           c->exit_code, c->err);
    snprintf(who, sizeof who, "rank %d (", f->rank);
    EXPECT(c->err && child_is_line(c->err) && strstr(c->err, who) && strstr(c->err, f->says),
           "%s: said %s", f->run, c->err);
    const double at_s = verdict_s(f->run), took_s = at_s - start_s;
    EXPECT(at_s > 0, "%s: no verdict", f->run);
    EXPECT(!stopped || took_s <= limit_of(c->err) + LATE_S, "%s: after %.2f s: %s", f->run, took_s,
           c->err);
    for (int i = 0; i < MAX_RANKS; i++) {
        snprintf(name, sizeof name, "rank-%d.json", i);
        count += has_record(f->run, name);
    }
    EXPECT(count >= num_records, "%s: %d flight records", f->run, count);
    child_release(c);
}

static void stop_rank(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, f, NULL, NULL))
        return;
    if (find_ranks(&c, f, ranks))
        kill(ranks[f->rank], SIGSTOP);
    check_named(f, &c, true, f->num_ranks - 1);
}

/* One that is stopped before ranks know of each other. */
static void stop_start(const fault *f)
{
    child c;
    if (!start(&c, f, "reliability.setup_limit_s=8", NULL))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == weft_status_exit_code(WEFT_HUNG) &&
               child_is_line(c.err) && strstr(c.err, "rank 1 (") && strstr(c.err, f->says) &&
               strstr(c.err, "limit 8 s (reliability.setup_limit_s)"),
           "%s: exit %d: %s", f->run, c.exit_code, c.err);
    child_release(&c);
}

/* One that is killed is named in the last line, with the signal and with where others waited for
 * it; all others write their flight records. */
static void kill_rank(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    char who[32], how[64], name[32];
    if (!start(&c, f, "exchange_limit_s=60", NULL))
        return;
    if (find_ranks(&c, f, ranks))
        kill(ranks[f->rank], f->number);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "%s: still there", f->run);
    snprintf(who, sizeof who, "weft train: rank %d on ", f->rank);
    snprintf(how, sizeof how, " was killed by signal %d (%s) in step ", f->number,
             strsignal(f->number));
    const char *last = strstr(c.err, "weft train: ");
    EXPECT(c.exit_code == 128 + f->number && last && strstr(last, who) == last &&
               strstr(last, how) && strstr(last, " waited for it in ") &&
               strstr(last, " of group ") && child_is_line(last),
           "%s: exit %d: %s", f->run, c.exit_code, c.err);
    for (int i = 0; i < f->num_ranks; i++) {
        snprintf(name, sizeof name, "rank-%d.json", i);
        EXPECT(has_record(f->run, name) == (i != f->rank), "%s: %s", f->run, name);
    }
    child_release(&c);
}

/* And the records that are left. */
static void stop_and_inspect(const fault *f)
{
    stop_rank(f);
    const char *run = f->run;
    const int rank = f->rank;
    child c;
    char path[64];
    child_says(WORDS("inspect", "--flight", run), 0, WORDS("is missing", "recv", "behind:"), NULL);
    child_says(WORDS("inspect", "--flight", "--json", run), 0, WORDS("\"in_flight\": [\n"), NULL);
    /* Whom the end of the job woke writes, too. */
    char late[96];
    snprintf(path, sizeof path, "%s/flight/rank-%d.json", run, rank);
    snprintf(late, sizeof late,
             "{\"rank\": %d, \"groups\": [], \"operations\": [], \"in_flight\": []}", rank);
    EXPECT(child_write(path, late), "%s", path);
    child_says(WORDS("inspect", "--flight", run), 0, WORDS("; the verdict names it"), NULL);
    snprintf(path, sizeof path, "%s/flight/rank-%d.json", run, rank == 0);
    EXPECT(truncate(path, 99) == 0, "%s", path);
    CHILD_RUN(&c, "inspect", "--flight", run);
    snprintf(late, sizeof late, "no whole record of rank %d\n", rank == 0);
    EXPECT(c.exit_code == 6 && child_is_line(c.err) && strstr(c.err, path) &&
               strstr(c.out, "is missing") && strstr(c.out, "; the verdict names it") &&
               strstr(c.out, late),
           "inspect a damaged record: exit %d: %s%s", c.exit_code, c.out, c.err);
    snprintf(path, sizeof path, "%s/flight/verdict.json", run);
    EXPECT(child_write(path, "what?"), "%s", path);
    child_says(WORDS("inspect", "--flight", run), 6, WORDS("behind:"),
               WORDS("the first of 2 damaged files"));
}

/* Makes further steps, and none of it is an alarm. */
static void check_goes_on(const fault *f, child *c)
{
    const off_t bytes = metrics_bytes(f->run);
    for (int i = 0;
         i < 1000 * CHILD_PATIENCE_S && metrics_bytes(f->run) == bytes && !child_wait(c, 0); i++)
        child_pause(0.001);
    EXPECT(metrics_bytes(f->run) > bytes, "%s: no more steps: %s", f->run, c->err);
    kill(c->pid, SIGTERM);
    EXPECT(child_wait(c, CHILD_PATIENCE_S) && c->exit_code == WEFT_EXIT_STOPPED &&
               strcmp(c->err, CHILD_ASKED "\n") == 0,
           "%s: exit %d: %s", f->run, c->exit_code, c->err);
    child_release(c);
}

/* A debugger stops one rank for less than the limits, which are far. */
static void stop_one(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, f, "exchange_limit_s=20", NULL))
        return;
    if (find_ranks(&c, f, ranks)) {
        kill(ranks[f->rank], SIGSTOP);
        child_pause(5);
        kill(ranks[f->rank], SIGCONT);
        child_pause(0.5);
    }
    check_goes_on(f, &c);
}

/* And all ranks for more. */
static void stop_all(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, f, "step_limit_s=10", NULL))
        return;
    if (find_ranks(&c, f, ranks)) {
        for (int i = 0; i < f->num_ranks; i++)
            kill(ranks[i], SIGSTOP);
        child_pause(12);
        for (int i = 0; i < f->num_ranks; i++)
            kill(ranks[i], SIGCONT);
    }
    check_goes_on(f, &c);
}

/* For longer than an exchange may take. */
static void save_slowly(const fault *f)
{
    child c;
    if (!start(&c, f, "train.train_iters=3", NULL))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == 0 && c.err[0] == '\0',
           "%s: exit %d: %s", f->run, c.exit_code, c.err);
    child_release(&c);
}

/* A rank that dies in a save is not waited for as long as a save may take, and is named in a
 * warning as soon as in a step. */
static void stop_in_save(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    char mark[64];
    if (!start(&c, f, "train.train_iters=3", "step_limit_s=20"))
        return;
    snprintf(mark, sizeof mark, "%s.mark", f->run);
    if (find_ranks(&c, f, ranks) && child_wait_for_text(&c, mark, ""))
        kill(ranks[f->rank], SIGSTOP);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "%s: still there", f->run);
    static const char silent[] = " is silent for ";
    const char *end = c.err ? strchr(c.err, '\n') : NULL,
               *silence = end ? strstr(c.err, silent) : NULL;
    EXPECT(
        end && strstr(c.err, " warn rank 1 (") && silence && silence < end &&
            strtod(silence + strlen(silent), NULL) >= 8 &&
            strstr(c.err, "; rank 0 is in save (step 3); after 20 s (reliability.step_limit_s) ") &&
            child_is_line(end + 1) && strstr(end + 1, f->says),
        "%s: said %s", f->run, c.err);
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_HUNG), "%s: exit %d", f->run, c.exit_code);
    child_release(&c);
}

/* The file system hangs too: said all the same. */
static void hang_with_files(const fault *f)
{
    child c;
    pid_t ranks[MAX_RANKS];
    if (!start(&c, f, NULL, NULL))
        return;
    if (find_ranks(&c, f, ranks))
        kill(ranks[f->rank], SIGSTOP);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == weft_status_exit_code(WEFT_HUNG) &&
               child_is_line(c.err) && strstr(c.err, "rank 2 (") && strstr(c.err, f->says),
           "%s: exit %d: %s", f->run, c.exit_code, c.err);
    child_release(&c);
}

/* Calls that ranks do not make alike. */
static void leave_out(const fault *f)
{
    child c;
    if (start(&c, f, NULL, NULL))
        check_named(f, &c, false, 4);
}

/* Found where the step ends, before anything waits. */
static void mismatch(const fault *f)
{
    child c;
    if (!start(&c, f, "parallel.ddp_bucket_size=256", NULL))
        return;
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == weft_status_exit_code(WEFT_COMM) &&
               strstr(c.err, f->says) && strstr(c.err, "group"),
           "%s: exit %d: %s", f->run, c.exit_code, c.err);
    EXPECT(strstr(c.err, "step 5"), "%s: %s", f->run, c.err);
    EXPECT(!strstr(f->run, "window") || child_is_line(c.err), "%s: %s", f->run, c.err);
    child_release(&c);
}

/* An emulated accelerator's steps take more than a second on any machine. */
static void run_paced(child *c, const char *run, const char *limit, const char *pace)
{
    static const char paced[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
        "\"seq_length\": 12, \"vocab_size\": 53},\n"
        "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 4},\n"
        "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true},\n"
        "\"device\": {\"pace_work\": \"all\"}, \"log\": {\"trace_step\": 0}}\n";
    char path[64];
    snprintf(path, sizeof path, "%s.json", run);
    EXPECT(child_write(path, paced), "%s", path);
    CHILD_RUN(c, "train", path, "--out", run, "--mesh", "dp=2", "--set", limit, "--set", pace);
}

static void first_limit_too_low(const fault *f)
{
    child c;
    run_paced(&c, f->run, "first_step_limit_s=1", "device.pace=1e6");
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_HUNG) && child_is_line(c.err) &&
               strstr(c.err, "all get on") && strstr(c.err, "raise reliability.first_step_limit_s"),
           "low first step: exit %d: %s", c.exit_code, c.err);
}

static void limit_too_low(const fault *f)
{
    child c;
    run_paced(&c, f->run, "step_limit_s=1", "device.pace=1.6e6");
    const char *told = strstr(c.err, "reliability.step_limit_s: 1 s is below what it takes");
    /* On a busy machine another line says that it falls behind the pace. */
    EXPECT(c.exit_code == 0 && told && !strstr(told + 1, "reliability."), "low step: exit %d: %s",
           c.exit_code, c.err);
}

/* The longest first. */
static const fault faults[] = {
    {stop_one, "debugged", "tp=2,pp=2", 4, 2, 0, NULL, NULL},
    {stop_all, "debugged-all", "tp=2,pp=2", 4, 0, 0, NULL, NULL},
    {save_slowly, "slow", "dp=2", 2, 1, 0, "slow:save:1:3:14", NULL},
    {stop_in_save, "dead-save", "dp=2", 2, 1, 0, "slow:save:1:3:600",
     "limit 20 s (reliability.step_limit_s); rank 0 waits"},
    {leave_out, "message", "tp=2,pp=2", 4, 1, 0, "skip:send:1:5:1", "group pp"},
    {leave_out, "last", "dp=4", 4, 2, 0, "skip:all_gather:2:5:0", "has left out all_gather "},
    {hang_with_files, "hung-files", "dp=4", 4, 2, 0, "hang:verdict:0:0:0", "hung-files hangs, too"},
    {limit_too_low, "lower", NULL, 2, 0, 0, NULL, NULL},
    {stop_and_inspect, "stopped", "tp=2,pp=2", 4, 3, 0, NULL, "is missing: no answer"},
    {stop_rank, "stopped-first", "dp=4", 4, 0, 0, NULL, "is missing: no answer"},
    {stop_start, "early", "dp=2", 2, 1, 0, "stop:start:1:0:0", " is missing: "},
    {first_limit_too_low, "low", NULL, 2, 0, 0, NULL, NULL},
    {kill_rank, "killed", "tp=2,pp=2", 4, 2, SIGKILL, NULL, NULL},
    {kill_rank, "killed-first", "dp=4", 4, 0, SIGKILL, NULL, NULL},
    {kill_rank, "faulted", "pp=2", 2, 1, SIGSEGV, NULL, NULL},
    {mismatch, "type-window", "dp=4", 4, 1, 0, "type:reduce_scatter:1:5:0", "rank 1"},
    {mismatch, "identical-window", "dp=4", 4, 1, 0, "skip:reduce_scatter:1:5:1", "rank 1"},
    {mismatch, "type", "dp=4", 4, 1, 0, "type:reduce_scatter:1:5:0", "rank 1"},
    {mismatch, "identical", "dp=4", 4, 1, 0, "skip:reduce_scatter:1:5:1", "rank 1"},
    {mismatch, "send", "tp=2,pp=2", 4, 1, 0, "twice:send:1:5:1", "rank 1 has sent"},
};

static void part(int i)
{
    faults[i].check(&faults[i]);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        child_program = argv[1];
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    child_side_by_side(part, sizeof faults / sizeof *faults, 3);
    return child_finish();
}
