/* A life of a tortured run: its processes, the moments at which it is hit, and the blows. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/launcher/torture.h"

enum { MAX_PROCESSES = 128, LIMIT_S = CHILD_PATIENCE_S };

torture_times torture_time;

/* Open MPI's of the last job that did a step; empty: none. */
static char job_folders[2][128];

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double torture_median(const double *values, int count)
{
    static double sorted[TORTURE_MAX_TIMES];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count ? sorted[count / 2] : 0;
}

static void pause_ms(double ms)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ms / 1e3),
                                 .tv_nsec = (long)((ms - 1e3 * (double)(long)(ms / 1e3)) * 1e6)},
              NULL);
}

static double seconds_since(double us)
{
    return (weft_now_us() - us) / 1e6;
}

/* --- processes -------------------------------------------------------------------------------- */

enum { MAX_RANKS = 8 };

/* Of a job, `weft train` left out. They are hit by pidfds: a number may have become another's. */
typedef struct processes {
    int num_ranks, num_writers, num_all;
    pid_t first_rank;
    int mpirun, ranks[MAX_RANKS], writers[MAX_RANKS]; /* in all[]; mpirun -1: none */
    int all[MAX_PROCESSES];                           /* pidfds; -1: gone */
} processes;

static void release_processes(processes *p)
{
    for (int i = 0; i < p->num_all; i++)
        if (p->all[i] >= 0)
            close(p->all[i]);
    memset(p, 0, sizeof *p);
}

static bool program_of(pid_t pid, char out[512])
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t length = readlink(path, out, 511);
    out[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static pid_t parent_of(pid_t pid)
{
    char path[64];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    char *text = child_peek(path), *after = text ? strrchr(text, ')') : NULL;
    if (after)
        sscanf(after + 1, " %*c %d", &parent);
    free(text);
    return parent;
}

static bool is_writer(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    char *name = child_peek(path);
    bool is = name && strcmp(name, "weft writer\n") == 0;
    free(name);
    return is;
}

/* A rank is a process of the program whose parent is mpirun; without one it is `weft train` itself.
 */
static void find_processes(const child *c, processes *out)
{
    pid_t pids[MAX_PROCESSES], mpirun = 0;
    char own[512], other[512];
    memset(out, 0, sizeof *out);
    out->mpirun = -1;
    if (!program_of(c->pid, own))
        return;
    out->num_all = child_descendants(c, pids, MAX_PROCESSES);
    for (int i = 0; i < out->num_all; i++) {
        out->all[i] = (int)syscall(SYS_pidfd_open, pids[i], 0);
        bool known = program_of(pids[i], other);
        if (known && !mpirun && (strstr(other, "orterun") || strstr(other, "mpirun"))) {
            mpirun = pids[i];
            out->mpirun = i;
        } else if (known && strcmp(own, other) == 0) {
            if (mpirun && parent_of(pids[i]) == mpirun && out->num_ranks < MAX_RANKS) {
                out->first_rank = out->num_ranks ? out->first_rank : pids[i];
                out->ranks[out->num_ranks++] = i;
            } else if (is_writer(pids[i]) && out->num_writers < MAX_RANKS) {
                out->writers[out->num_writers++] = i;
            }
        }
    }
}

/* Where Open MPI has the job's files, by a rank's environment. */
static void note_job_folders(const processes *p)
{
    static const char *const names[] = {"OMPI_MCA_btl_vader_backing_directory=",
                                        "OMPI_MCA_orte_tmpdir_base="};
    char path[64], *entry = NULL;
    size_t capacity = 0;
    if (!p->first_rank)
        return;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)p->first_rank);
    FILE *file = fopen(path, "r");
    while (file && getdelim(&entry, &capacity, 0, file) > 0)
        for (int i = 0; i < 2; i++)
            if (strncmp(entry, names[i], strlen(names[i])) == 0)
                snprintf(job_folders[i], sizeof job_folders[i], "%s", entry + strlen(names[i]));
    free(entry);
    if (file)
        fclose(file);
}

static void check_folders(char jobs[2][128], const char *when)
{
    for (int i = 0; i < 2; i++)
        if (jobs[i][0] && access(jobs[i], F_OK) == 0)
            torture_violation("%s is still there %s", jobs[i], when);
}

void torture_check_job_folders(void)
{
    check_folders(job_folders, "after its end");
    job_folders[0][0] = job_folders[1][0] = '\0';
}

/* As a subreaper this process has all that a life left. */
void torture_check_processes(const char *when)
{
    child self = {.pid = getpid()};
    pid_t all[MAX_PROCESSES];
    double begin_us = weft_now_us();
    int count;
    do {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        count = child_descendants(&self, all, MAX_PROCESSES);
        if (count)
            pause_ms(2);
    } while (count && seconds_since(begin_us) < LIMIT_S);
    if (count == 0)
        return;
    torture_violation("%d processes are still there %d s %s, such as %d", count, LIMIT_S, when,
                      (int)all[0]);
    for (int i = 0; i < count; i++)
        kill(all[i], SIGKILL);
}

/* --- moments ---------------------------------------------------------------------------------- */

static long size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (long)info.st_size : 0;
}

/* Until the run has added a line to its metrics, which a start first cuts. False: it has ended. */
static bool wait_for_step(child *c, const char *run)
{
    char path[160];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    double begin_us = weft_now_us();
    for (long least = size_of(path); !child_wait(c, 0);) {
        long now = size_of(path);
        if (now > least)
            return true;
        least = now;
        pause_ms(0.5);
        if (seconds_since(begin_us) > LIMIT_S) {
            torture_violation("no step within %d s", LIMIT_S);
            child_kill(c);
        }
    }
    return false;
}

/* Until so many entries of the folder of checkpoints, and of what is being saved there, have been
 * made, written, renamed or removed. */
static void wait_for_files(child *c, const char *run, int count, double begin_us)
{
    enum { EVENTS = IN_CREATE | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE };
    char path[512], bytes[4096] __attribute__((aligned(8)));
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof path, "%s/checkpoints", run);
    while (watch >= 0 && inotify_add_watch(watch, path, EVENTS) < 0 && !child_wait(c, 0) &&
           seconds_since(begin_us) < 5)
        pause_ms(0.2);
    while (count > 0 && watch >= 0 && seconds_since(begin_us) < 5 && !child_wait(c, 0)) {
        struct pollfd ready = {.fd = watch, .events = POLLIN};
        ssize_t got = poll(&ready, 1, 20) > 0 ? read(watch, bytes, sizeof bytes) : 0;
        for (ssize_t i = 0; i < got && count > 0; count--) {
            const struct inotify_event *event = (const struct inotify_event *)(bytes + i);
            if (event->mask & IN_CREATE && event->len && strncmp(event->name, ".step-", 6) == 0) {
                snprintf(path, sizeof path, "%s/checkpoints/%s", run, event->name);
                inotify_add_watch(watch, path, EVENTS);
            }
            i += (ssize_t)(sizeof *event + event->len);
        }
    }
    if (watch >= 0)
        close(watch);
}

/* Finds whom to hit, and waits for the moment. False: the life has ended before. */
static bool wait_for_moment(child *c, const char *run, const torture_blow *b, processes *out)
{
    const torture_times *t = &torture_time;
    char latest[160];
    memset(out, 0, sizeof *out);
    if (b->moment == TORTURE_AT_START)
        pause_ms(b->share * (t->num_first ? 1.2 * torture_median(t->first_ms, t->num_first) : 800));
    else if (!wait_for_step(c, run))
        return false;
    if (child_wait(c, 0))
        return false;
    find_processes(c, out);
    double begin_us = weft_now_us();
    snprintf(latest, sizeof latest, "%s/checkpoints/latest", run);
    uint64_t had = torture_mark(latest);
    if (b->moment == TORTURE_IN_STEPS)
        pause_ms(500 * b->share * b->share);
    if (b->moment == TORTURE_IN_SAVE)
        wait_for_files(c, run, 1 + (int)(40 * b->share), begin_us);
    while (b->moment == TORTURE_PUBLISHED && !child_wait(c, 0) && torture_mark(latest) == had &&
           seconds_since(begin_us) < 5)
        pause_ms(0.1);
    if (b->moment == TORTURE_PUBLISHED)
        pause_ms(3 * b->share * b->share);
    if (!child_wait(c, 0))
        return true;
    release_processes(out);
    return false;
}

/* --- blows ------------------------------------------------------------------------------------ */

static void kill_one(const processes *p, int process)
{
    if (syscall(SYS_pidfd_send_signal, p->all[process], SIGKILL, NULL, 0) == 0)
        torture_count.kills++;
}

static void kill_all(child *c, const processes *p)
{
    torture_count.kills++;
    for (int i = p->num_all - 1; i >= 0; i--)
        syscall(SYS_pidfd_send_signal, p->all[i], SIGKILL, NULL, 0);
    child_kill(c);
}

/* What is not there to be hit is hit as a whole. */
static torture_end strike(child *c, const torture_blow *b, const processes *p)
{
    torture_end end = b->end;
    if ((end == TORTURE_MPIRUN && p->mpirun < 0) || (end == TORTURE_WRITER && !p->num_writers) ||
        ((end == TORTURE_RANK || end == TORTURE_TWO_RANKS) && !p->num_ranks))
        end = TORTURE_WHOLE;
    if (end == TORTURE_TWO_RANKS && p->num_ranks < 2)
        end = TORTURE_RANK;
    torture_count.by_end[end]++;
    torture_count.by_moment[b->moment]++;
    switch (end) {
    case TORTURE_WHOLE:
        kill_all(c, p);
        break;
    case TORTURE_LAUNCHER:
        torture_count.kills += kill(c->pid, SIGKILL) == 0;
        break;
    case TORTURE_MPIRUN:
        kill_one(p, p->mpirun);
        break;
    case TORTURE_RANK:
        kill_one(p, p->ranks[b->rank % p->num_ranks]);
        break;
    case TORTURE_TWO_RANKS:
        kill_one(p, p->ranks[b->rank % p->num_ranks]);
        if (b->after > 0)
            pause_ms(b->after);
        kill_one(p, p->ranks[(b->rank + 1) % p->num_ranks]);
        break;
    case TORTURE_WRITER:
        kill_one(p, p->writers[b->rank % p->num_writers]);
        break;
    default:
        torture_count.stops++;
        kill(c->pid, SIGTERM);
    }
    return end;
}

void torture_wait_for_end(child *c, const char *what)
{
    if (child_wait(c, LIMIT_S))
        return;
    torture_violation("still there %d s after %s", LIMIT_S, what);
    child_kill(c);
}

/* The first step of a start has come: what dead jobs left is gone. */
static void note_first_step(const child *c, double begin_us)
{
    processes p;
    char before[2][128];
    if (torture_time.num_first < TORTURE_MAX_TIMES)
        torture_time.first_ms[torture_time.num_first++] = 1e3 * seconds_since(begin_us);
    memcpy(before, job_folders, sizeof before);
    find_processes(c, &p);
    note_job_folders(&p);
    release_processes(&p);
    for (int k = 0; k < 2; k++)
        if (strcmp(before[k], job_folders[k]) == 0)
            before[k][0] = '\0';
    check_folders(before, "after the next start");
}

/* The job starts its ranks again: until they have done a step. */
static void come_back(child *c, const char *run)
{
    double hit_us = weft_now_us();
    torture_count.restarts++;
    if (wait_for_step(c, run) && torture_time.num_again < TORTURE_MAX_TIMES)
        torture_time.again_ms[torture_time.num_again++] = 1e3 * seconds_since(hit_us);
}

/* Blow by blow until it has ended. After the last one a job that comes back is ended whole. */
torture_outcome torture_live(child *c, const torture_life *life, const char *run)
{
    static const torture_blow whole = {TORTURE_WHOLE, TORTURE_IN_STEPS, 0.5, 0, 0};
    torture_outcome out = {TORTURE_ENDS, false, false};
    double begin_us = weft_now_us();
    for (int i = 0; !child_wait(c, 0); i++) {
        const torture_blow *b = i < life->num_blows ? &life->blows[i] : &whole;
        if (b->moment != TORTURE_AT_START && i == 0) {
            if (!wait_for_step(c, run))
                break;
            note_first_step(c, begin_us);
        }
        processes p;
        if (!wait_for_moment(c, run, b, &p))
            break;
        torture_end end = strike(c, b, &p);
        release_processes(&p);
        if (end == TORTURE_WRITER) {
            out.lost_writer = true;
            continue;
        }
        out.end = end;
        out.was_killed = out.was_killed || end != TORTURE_STOP;
        bool comes_back = life->max_restarts && end != TORTURE_WHOLE && end != TORTURE_STOP &&
                          end != TORTURE_LAUNCHER;
        if (!comes_back)
            torture_wait_for_end(c, torture_end_name(end));
        else if (i + 1 >= life->num_blows || life->blows[i + 1].moment != TORTURE_AT_START)
            come_back(c, run); /* else hit again while it starts */
    }
    return out;
}
