#include "launcher/process/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"

/* Filters the standard error of mpirun and its ranks: the ranks' lines pass unchanged, mpirun's
 * blocks of text about a job that failed become one line. */

enum { MPIRUN_MAX_BLOCK_BYTES = 4096 };

typedef struct mpirun_words { /* zero but for the verb is the start */
    const char *verb;         /* that started mpirun, for messages */
    const char *run;          /* whose flight records tell where a killed rank was; NULL: none */
    weft_watch_mark verdict;  /* the one that was there before */
    char line[MPIRUN_MAX_BLOCK_BYTES];
    size_t line_bytes;
    char block[MPIRUN_MAX_BLOCK_BYTES]; /* its words come between two lines of dashes */
    bool in_block;
    bool explained; /* a line says why the job ended */
    bool judged;    /* by the ranks' watchdog: what follows is their end */
    int killed_by;  /* the signal that mpirun says killed a rank; 0: none */
    int killed_rank;
    bool muted; /* why is known: leaves out mpirun's words */
} mpirun_words;

typedef mpirun_words listener;

static bool is_ruler(const char *line)
{
    size_t dashes = strspn(line, "-");
    return dashes >= 60 && (line[dashes] == '\n' || line[dashes] == '\0');
}

/* Text as one line: breaks become spaces. */
static void print_flat(const listener *l)
{
    fprintf(stderr, "weft %s: mpirun: ", l->verb);
    bool space = true;
    for (const char *text = l->block; *text; text++) {
        bool blank = *text == '\n' || *text == ' ';
        if (!(blank && space))
            fputc(blank ? ' ' : *text, stderr);
        space = blank;
    }
    fputc('\n', stderr);
}

static void end_block(listener *l)
{
    int rank, number;
    char node[256];
    const char *noticed = strstr(l->block, "process rank ");
    if (l->muted || l->judged) {
        /* whoever ended the job has said so */
    } else if (noticed &&
               sscanf(noticed, "process rank %d with PID %*d on node %255s exited on signal %d",
                      &rank, node, &number) == 3) {
        char place[WEFT_WATCH_PLACE_BYTES] = "";
        const bool knows =
            l->run && weft_watch_find_killed(l->run, &l->verdict, rank, place, sizeof place);
        fprintf(stderr, "weft %s: rank %d on %s was killed by signal %d (%s)%s%s\n", l->verb, rank,
                node, number, strsignal(number), knows ? " " : "", place);
        l->explained = true;
        l->killed_by = number;
        l->killed_rank = rank;
    } else if (!strstr(l->block, "Primary job  terminated normally") &&
               !strstr(l->block, "exited with non-zero status") &&
               !strstr(l->block, "MPI_ABORT was invoked")) {
        print_flat(l);
        l->explained = true;
    }
    l->block[0] = '\0';
}

/* Lines of mpirun about its own words. */
static bool is_chatter(const char *line)
{
    static const char *const parts[] = {"sent help message help-mpi", "orte_base_help_aggregate",
                                        "/show_help.c at line"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (line[0] == '[' && strstr(line, parts[i]))
            return true;
    static const char *const starts[] = {"mpirun: Forwarding signal", "mpirun: killing job",
                                         "mpirun: abort is already", "[warn] Epoll "};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(line, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static void take_line(listener *l, const char *line)
{
    if (is_ruler(line)) {
        if (l->in_block)
            end_block(l);
        l->in_block = !l->in_block;
    } else if (l->in_block) {
        size_t used = strlen(l->block);
        snprintf(l->block + used, sizeof l->block - used, "%s", line);
    } else if (!is_chatter(line)) {
        fputs(line, stderr);
        l->explained = true;
        l->judged = l->judged || strstr(line, "; the job ends (weft inspect --flight ");
    }
}

static void end_line(listener *l)
{
    l->line[l->line_bytes] = '\0';
    if (l->line_bytes > 0)
        take_line(l, l->line);
    l->line_bytes = 0;
}

static void mpirun_words_take(listener *l, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        l->line[l->line_bytes++] = text[i];
        if (text[i] == '\n' || l->line_bytes == sizeof l->line - 1)
            end_line(l);
    }
}

/* Nothing more comes. */
static void mpirun_words_end(listener *l)
{
    end_line(l);
    if (l->block[0])
        end_block(l);
}

/* Where Open MPI keeps the files of a job that this process starts: segments that ranks share in
 * /dev/shm, sockets and notes in $TMPDIR or /tmp. The job has a folder in each and locks it as long
 * as it lives, so that the next start can remove the folders of jobs that were killed. */

#define UNIQUE "XXXXXX" /* mkdtemp's */
enum { MAX_NAMES = 2, MAX_PATH = 128 };

/* One of the job's folders. The session's is no part of the first: /dev/shm is small in containers.
 */
typedef struct place {
    const char *parent;
    const char *names[MAX_NAMES]; /* what names it to Open MPI; a user's own choice stands */
    char path[MAX_PATH];
    int lock; /* -1: none */
} place;

static place places[] = {
    {.parent = "/dev/shm",
     .names = {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_sm_backing_directory"},
     .lock = -1},
    {.parent = "/tmp", .names = {"OMPI_MCA_orte_tmpdir_base"}, .lock = -1},
};
enum { NUM_PLACES = sizeof places / sizeof *places };

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

static void remove_all(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Locks a folder of this user's that nobody else has locked; -1: it is none, or its job lives. */
static int lock_folder(const char *path)
{
    struct stat info, there;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    bool good = fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
                flock(fd, LOCK_EX | LOCK_NB) == 0 && lstat(path, &there) == 0 &&
                there.st_ino == info.st_ino;
    if (good)
        return fd;
    close(fd);
    return -1;
}

static void remove_dead(const char *parent, const char *prefix)
{
    char path[MAX_PATH + 256];
    DIR *folder = opendir(parent);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
            strlen(entry->d_name) != strlen(prefix) + strlen(UNIQUE))
            continue; /* nobody else names a folder so */
        snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        int lock = lock_folder(path);
        if (lock < 0)
            continue;
        remove_all(path);
        close(lock);
    }
    if (folder)
        closedir(folder);
}

static void open_place(place *p)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "weft-job-%u-", (unsigned)geteuid());
    remove_dead(p->parent, prefix);
    /* Another start may take a folder for dead before it is locked. */
    for (int i = 0; i < 10 && p->lock < 0; i++) {
        int length = snprintf(p->path, sizeof p->path, "%s/%s" UNIQUE, p->parent, prefix);
        if (length >= MAX_PATH || !mkdtemp(p->path))
            return;
        p->lock = lock_folder(p->path);
    }
    /* mpirun has the lock too, so that it outlives a launcher that is killed. */
    for (int i = 0; p->lock >= 0 && i < MAX_NAMES && p->names[i]; i++)
        setenv(p->names[i], p->path, 0);
}

static void close_place(place *p)
{
    if (p->lock < 0)
        return;
    for (int i = 0; i < MAX_NAMES && p->names[i]; i++) {
        const char *value = getenv(p->names[i]);
        if (value && strcmp(value, p->path) == 0)
            unsetenv(p->names[i]);
    }
    remove_all(p->path);
    close(p->lock);
    p->lock = -1;
}

/* Of 4 ranks Open MPI's segments and windows take between 32 and 64 MiB. */
static void leave_small_memory(int num_ranks)
{
    const double rank_bytes = 16 << 20;
    struct statvfs info;
    if (getenv(places[0].names[0]) || statvfs(places[0].parent, &info) != 0)
        return;
    const double free_bytes = (double)info.f_bavail * (double)info.f_frsize;
    if (free_bytes >= rank_bytes * num_ranks)
        return;
    weft_log(WEFT_LOG_WARN, "%s has %s free, and %s may share %s: their memory lies under %s",
             places[0].parent, weft_bytes_text(free_bytes).text,
             weft_count_text(num_ranks, "rank").text, weft_bytes_text(rank_bytes * num_ranks).text,
             places[1].parent);
    places[0].parent = places[1].parent;
}

/* Removes what dead jobs of this user left, makes the folders and names them to mpirun in the
 * environment. Where it cannot make one, Open MPI uses its own place. Where /dev/shm has no room
 * for what `num_ranks` share (containers often have little, and Open MPI then hangs), that lies in
 * the other folder, and one line says so. */
static void job_folder_open(int num_ranks)
{
    const char *temporary = getenv("TMPDIR");
    if (temporary && temporary[0] == '/')
        places[1].parent = temporary;
    leave_small_memory(num_ranks);
    for (int i = 0; i < NUM_PLACES; i++)
        open_place(&places[i]);
}

/* Where mpirun cannot keep its session it says so in many lines, none of which names the folder. */
static weft_status check_session(void)
{
    static const char note[4096] = "weft";
    const char *folder = getenv(places[1].names[0]);
    char path[4096];
    if (!folder)
        folder = places[1].parent;
    snprintf(path, sizeof path, "%s/weft-" UNIQUE, folder);
    const int fd = mkstemp(path);
    const bool good = fd >= 0 && write(fd, note, sizeof note) == (ssize_t)sizeof note;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (good || error == ENOENT) /* which Open MPI makes */
        return WEFT_OK;
    return WEFT_ERROR(WEFT_FILE,
                      "%s: cannot write there what mpirun keeps of a job: %s; TMPDIR can name "
                      "another folder",
                      places[1].lock >= 0 ? places[1].parent : folder, strerror(error));
}

/* Removes the folders; call it when mpirun has ended. */
static void job_folder_close(void)
{
    for (int i = 0; i < NUM_PLACES; i++)
        close_place(&places[i]);
}

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
    mpirun_words words;
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
    static const char *const folders[] = {"", WEFT_LIBEXECDIR, WEFT_INSTALL_LIBEXECDIR,
                                          WEFT_BUILD_DIR};
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

/* A rank that is stopped neither steps nor saves: who asks again need not wait for it. */
static void look_for_stopped(job *j, int exit_code)
{
    weft_siblings ranks;
    weft_siblings_look((int)j->pid, &ranks);
    if (ranks.num_stopped == 0)
        return;
    fprintf(stderr, "weft %s: asked to stop again, and rank %d is stopped (SIGSTOP): killed\n",
            j->words.verb, ranks.stopped[0]);
    end_job(j, exit_code);
}

/* Ends a job that was asked to stop, or has lost a rank, and takes too long. Returns the
 * milliseconds until this has to be looked at again; -1: never. */
static int heed_time(job *j)
{
    int stop_ms = -1, loss_ms = -1;
    const bool is_interrupted = weft_stop_num_interrupts() > 1;
    if (!j->exit_code && weft_stop_num_signals() > 1)
        look_for_stopped(j, is_interrupted ? WEFT_STOP_INTERRUPTED : WEFT_STOP_KILLED);
    if (!j->exit_code && is_interrupted)
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
        mpirun_words_take(&j->words, text, (size_t)got);
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
    mpirun_words_end(&j->words);
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
    job_folder_open(world);
    weft_status status = check_session();
    if (status == WEFT_OK)
        status = start(&c, j);
    if (status == WEFT_OK) {
        attend(j, &mask);
        *exit_code = tell(j);
        if (*exit_code == NOT_STARTED)
            status = WEFT_ERROR(WEFT_COMM, "cannot start mpirun for %s: is it on PATH?",
                                weft_count_text(world, "rank").text);
    }
    job_folder_close();
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return status;
}
