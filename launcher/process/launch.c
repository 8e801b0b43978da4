#include "launcher/process/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/text.h"
#include "core/trace/trace.h"
#include "launcher/process/job_folder.h"
#include "launcher/process/mpirun_words.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"

enum {
    MAX_ARGS = 256,
    NOT_STARTED = 127,
    PIECE_BYTES = 4096, /* a pipe that is ready takes so much without blocking */
    SIGNALLED = 128,    /* and the signal: an exit code */
    END_S = 20,         /* mpirun needs 1 to 2 for a job that lost a rank; some it never ends */
    LOOK_MS = 1000,     /* between looks for ranks */
    MOST_A_CORE = 64,   /* ranks that are started here */
};

typedef struct job {
    pid_t pid; /* of mpirun; 0: it has ended */
    int status;
    int out, err; /* -1: closed */
    char piece[PIECE_BYTES];
    size_t first, last; /* of `piece`: on its way to standard output */
    weft_mpirun_words words;
    double asked_us, lost_us; /* to stop; a rank. 0: not yet */
    bool had_ranks;
    double bare_us; /* since when mpirun has had ranks, and has none; 0: not so */
    int exit_code;  /* of a job that this process ends; 0: it does not */
} job;

/* --- starting mpirun ----------------------------------------------------------------------- */

typedef struct command {
    char *args[MAX_ARGS];
    char self[4096], ranks[16], preload[8192], own_preload[8192];
} command;

static const char *const fixed_options[] = {
    /* More ranks than cores are fine here: waiting ranks yield. */
    "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
    /* Without CMA, in containers, Open MPI's single-copy path fails loudly; copying twice works. */
    "--mca", "btl_vader_single_copy_mechanism", "none",
    /* This machine alone, also inside a batch system's allocation of several. */
    "--mca", "plm", "isolated", "--mca", "ras", "^slurm,gridengine,loadleveler,alps,tm,lsf",
    "--mca", "pml", "ob1", "--mca", "btl", "self,vader", "--mca", "oob_tcp_if_include", "lo"};

/* launcher/process/preload/loopback.c, beside this program or where it was built or installed. */
static bool find_preload(command *c)
{
    static const char *const folders[] = {"", WEFT_LIBDIR, WEFT_INSTALL_LIBDIR, WEFT_BUILD_DIR};
    const char *slash = strrchr(c->self, '/');
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int beside = i < 2 && slash ? (int)(slash - c->self) : 0;
        snprintf(c->preload, sizeof c->preload, "%.*s%s/libweft_loopback.so", beside, c->self,
                 folders[i]);
        if (access(c->preload, R_OK) == 0)
            return true;
    }
    return false;
}

static weft_status make_command(int world, int argc, char **argv, command *c)
{
    const char *preload = getenv("LD_PRELOAD");
    ssize_t length = readlink("/proc/self/exe", c->self, sizeof c->self - 1);
    if (length <= 0)
        return WEFT_ERROR(WEFT_COMM, "cannot find this program's own path");
    c->self[length] = '\0';
    snprintf(c->ranks, sizeof c->ranks, "%d", world);
    const size_t num_fixed = sizeof fixed_options / sizeof *fixed_options;
    if ((size_t)argc + num_fixed + 16 > MAX_ARGS)
        return WEFT_ERROR(WEFT_CONFIG, "too many arguments: %d", argc);
    int count = 0;
    c->args[count++] = "mpirun";
    if (geteuid() == 0)
        c->args[count++] = "--allow-run-as-root";
    c->args[count++] = "-n";
    c->args[count++] = c->ranks;
    for (size_t i = 0; i < num_fixed; i++)
        c->args[count++] = (char *)(uintptr_t)fixed_options[i];
    /* The ranks get LD_PRELOAD as it is here. */
    c->args[count++] = "env";
    if (preload) {
        snprintf(c->own_preload, sizeof c->own_preload, "LD_PRELOAD=%s", preload);
        c->args[count++] = c->own_preload;
    } else {
        c->args[count++] = "-u";
        c->args[count++] = "LD_PRELOAD";
    }
    c->args[count++] = c->self;
    for (int i = 1; i < argc; i++)
        c->args[count++] = argv[i];
    c->args[count] = NULL;
    if (!find_preload(c)) {
        fprintf(stderr, "weft %s: %s is missing: mpirun listens on all interfaces\n", argv[1],
                c->preload);
        snprintf(c->preload, sizeof c->preload, "%s", preload ? preload : "");
    }
    return WEFT_OK;
}

/* In the child. mpirun ends with this process, even where that is killed, and then its ranks do. */
static void become_mpirun(command *c, pid_t parent, int out, int err)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(NOT_STARTED);
    setpgid(0, 0);
    char tty[32] = "";
    if (isatty(STDOUT_FILENO)) /* under a name that holds where /dev/pts is another */
        snprintf(tty, sizeof tty, "/proc/%d/fd/%d", (int)parent, STDOUT_FILENO);
    setenv("WEFT_TTY", tty, 1);
    struct timespec now;
    char started[32];
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(started, sizeof started, "%lld.%06ld", (long long)now.tv_sec, now.tv_nsec / 1000);
    setenv("WEFT_STARTED", started, 1); /* for the ledger */
    setenv("LD_PRELOAD", c->preload, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(err, STDERR_FILENO) < 0)
        _exit(NOT_STARTED);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(c->args[0], c->args);
    _exit(NOT_STARTED);
}

static weft_status start(command *c, job *j)
{
    int out[2], err[2];
    pid_t self = getpid();
    if (pipe2(out, O_CLOEXEC) != 0)
        return WEFT_ERROR(WEFT_COMM, "cannot start mpirun: %s", strerror(errno));
    if (pipe2(err, O_CLOEXEC) != 0) {
        weft_status status = WEFT_ERROR(WEFT_COMM, "cannot start mpirun: %s", strerror(errno));
        close(out[0]);
        close(out[1]);
        return status;
    }
    j->pid = fork();
    if (j->pid == 0)
        become_mpirun(c, self, out[1], err[1]);
    int error = errno;
    if (j->pid > 0)
        setpgid(j->pid, j->pid); /* whoever of the two comes first */
    close(out[1]);
    close(err[1]);
    j->out = out[0];
    j->err = err[0];
    if (j->pid > 0)
        return WEFT_OK;
    close(out[0]);
    close(err[0]);
    return WEFT_ERROR(WEFT_COMM, "cannot start mpirun: %s", strerror(error));
}

/* --- while it runs ------------------------------------------------------------------------- */

/* Its ranks end with mpirun, also stopped ones. */
static void end_job(job *j, int exit_code)
{
    j->exit_code = exit_code;
    j->words.muted = true;
    kill(-j->pid, SIGKILL);
}

/* Milliseconds until `seconds` have passed since *since_us, which is now where it is 0; at most 0:
 * they have. */
static int time_left(double *since_us, int seconds)
{
    const double now = weft_now_us();
    if (*since_us == 0)
        *since_us = now;
    const double left_ms = 1e3 * seconds - (now - *since_us) / 1e3;
    return left_ms <= 0 ? 0 : left_ms < 1e6 ? (int)left_ms + 1 : 1000000;
}

/* Of mpirun's processes, those that live. */
static int num_children(pid_t pid)
{
    char path[64], text[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        int child;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", (int)pid, task->d_name);
        FILE *children = task->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (children && fscanf(children, "%d", &child) == 1) {
            snprintf(path, sizeof path, "/proc/%d/stat", child);
            FILE *stat = fopen(path, "re");
            const bool is_there = stat && fgets(text, sizeof text, stat);
            const char *state = is_there ? strrchr(text, ')') : NULL;
            count += state && state[1] && state[2] != 'Z' && state[2] != 'X';
            if (stat)
                fclose(stat);
        }
        if (children)
            fclose(children);
    }
    if (tasks)
        closedir(tasks);
    return count;
}

/* Some mpirun goes on without ranks, where they fail as they start. One that cannot write what they
 * said has to. */
static void look_for_ranks(job *j)
{
    const bool has_ranks = num_children(j->pid) > 0;
    j->had_ranks = j->had_ranks || has_ranks;
    if (has_ranks || !j->had_ranks || j->last > 0) {
        j->bare_us = 0;
    } else if (time_left(&j->bare_us, END_S) == 0) {
        fprintf(stderr, "weft %s: no rank is left, and mpirun did not end within %d s: killed\n",
                j->words.verb, END_S);
        end_job(j, weft_status_exit_code(WEFT_COMM));
    }
}

/* Ends a job that was asked to stop, or has lost a rank, and takes too long. Returns the
 * milliseconds until this has to be looked at again; -1: never. */
static int heed_time(job *j)
{
    int stop_ms = -1, loss_ms = -1;
    if (!j->exit_code && weft_stop_num_interrupts() > 1)
        end_job(j, WEFT_STOP_INTERRUPTED);
    if (!j->exit_code && weft_stop_asked() && weft_stop_timeout() > 0 &&
        (stop_ms = time_left(&j->asked_us, weft_stop_timeout())) == 0) {
        fprintf(stderr, "weft train: not stopped within %d s (train.stop_timeout_s): killed\n",
                weft_stop_timeout());
        end_job(j, WEFT_STOP_KILLED);
    }
    if (!j->exit_code && j->words.killed_by && (loss_ms = time_left(&j->lost_us, END_S)) == 0) {
        fprintf(stderr, "weft %s: mpirun did not end within %d s of the end of rank %d: killed\n",
                j->words.verb, END_S, j->words.killed_rank);
        end_job(j, SIGNALLED + j->words.killed_by);
    }
    if (!j->exit_code)
        look_for_ranks(j);
    if (j->exit_code)
        return -1;
    const int ms = stop_ms < 0 || (loss_ms >= 0 && loss_ms < stop_ms) ? loss_ms : stop_ms;
    return ms < 0 || ms > LOOK_MS ? LOOK_MS : ms;
}

static void read_out(job *j)
{
    ssize_t got = read(j->out, j->piece, sizeof j->piece);
    if (got > 0) {
        j->last = (size_t)got;
    } else if (got == 0) {
        close(j->out);
        j->out = -1;
    }
}

static void read_err(job *j)
{
    char text[PIECE_BYTES];
    ssize_t got = read(j->err, text, sizeof text);
    if (got > 0) {
        weft_mpirun_words_take(&j->words, text, (size_t)got);
    } else if (got == 0) {
        close(j->err);
        j->err = -1;
    }
}

static void write_out(job *j)
{
    j->first += weft_output_pass_on(j->piece + j->first, j->last - j->first);
    if (j->first == j->last)
        j->first = j->last = 0;
}

/* One wait for whatever comes next, in which alone signals are let through. False: nothing came. */
static bool wait_for_more(job *j, const sigset_t *mask)
{
    bool has_piece = j->last > 0;
    struct pollfd fds[] = {{.fd = j->err, .events = POLLIN},
                           {.fd = has_piece ? -1 : j->out, .events = POLLIN},
                           {.fd = has_piece ? STDOUT_FILENO : -1, .events = POLLOUT}};
    int ms = j->pid ? heed_time(j) : has_piece ? -1 : 0;
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    int ready = ppoll(fds, sizeof fds / sizeof *fds, ms < 0 ? NULL : &time, mask);
    if (ready > 0 && fds[0].revents)
        read_err(j);
    if (ready > 0 && fds[1].revents)
        read_out(j);
    if (ready > 0 && fds[2].revents)
        write_out(j);
    return ready > 0 || has_piece;
}

/* Until mpirun has ended and all that it has written is read: it may leave somebody behind who
 * keeps the pipes open. */
static void attend(job *j, const sigset_t *mask)
{
    bool more = true;
    while (j->pid || (more && (j->out >= 0 || j->err >= 0 || j->last > 0))) {
        more = wait_for_more(j, mask);
        if (j->pid && waitpid(j->pid, &j->status, WNOHANG) == j->pid) {
            j->pid = 0;
            more = true;
        } else if (!j->pid && j->last > 0 && weft_stop_num_interrupts() > 1) {
            break;
        }
    }
    weft_mpirun_words_end(&j->words);
    if (j->out >= 0)
        close(j->out);
    if (j->err >= 0)
        close(j->err);
}

static void child_ended(int number)
{
    (void)number; /* the wait ends */
}

static int tell(const job *j)
{
    if (j->exit_code)
        return j->exit_code;
    if (weft_stop_is_saved()) /* mpirun ends with 1 where it was told to end itself */
        return WEFT_EXIT_STOPPED;
    bool killed = WIFSIGNALED(j->status);
    int code = killed ? SIGNALLED + WTERMSIG(j->status) : WEXITSTATUS(j->status);
    if (killed)
        fprintf(stderr, "weft %s: mpirun was killed by signal %d (%s)\n", j->words.verb,
                WTERMSIG(j->status), strsignal(WTERMSIG(j->status)));
    else if (code != 0 && code != WEFT_EXIT_STOPPED && code != NOT_STARTED && !j->words.explained)
        fprintf(stderr, "weft %s: mpirun ended with exit code %d\n", j->words.verb, code);
    return code;
}

static job latest;

int weft_launch_killed_rank(void)
{
    return latest.words.killed_by ? latest.words.killed_rank : -1;
}

/* Ranks that cannot open their sockets and segments wait for each other for ever. */
static weft_status raise_open_files(int world)
{
    const rlim_t needed = 64 + 8 * (rlim_t)world;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return WEFT_OK;
    limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    if (limit.rlim_cur >= needed && setrlimit(RLIMIT_NOFILE, &limit) == 0)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG, "%s take up to %llu open files each, and ulimit -n allows %llu",
                      weft_count_text(world, "rank").text, (unsigned long long)needed,
                      (unsigned long long)limit.rlim_max);
}

weft_status weft_launch_mpirun(int world, int argc, char **argv, const char *run, int *exit_code)
{
    static command c;
    job *j = &latest;
    struct sigaction action = {.sa_handler = child_ended};
    sigset_t all, mask;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > 0 && world > MOST_A_CORE * cores)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%d ranks on this machine of %s: at most %d a core are started here "
                          "(weft launch writes a job for more nodes)",
                          world, weft_count_text(cores, "core").text, MOST_A_CORE);
    WEFT_TRY(raise_open_files(world));
    WEFT_TRY(weft_stop_share());
    WEFT_TRY(make_command(world, argc, argv, &c));
    sigaction(SIGCHLD, &action, NULL);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &mask);
    sigdelset(&mask, SIGCHLD);
    *j = (job){.words = {.verb = argv[1], .run = run}};
    if (run)
        j->words.verdict = weft_watch_mark_verdict(run);
    weft_job_folder_open(world);
    weft_status status = start(&c, j);
    if (status == WEFT_OK) {
        attend(j, &mask);
        *exit_code = tell(j);
        if (*exit_code == NOT_STARTED)
            status = WEFT_ERROR(WEFT_COMM, "cannot start mpirun for %s: is it on PATH?",
                                weft_count_text(world, "rank").text);
    }
    weft_job_folder_close();
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return status;
}
