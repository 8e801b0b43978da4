/* Asynchronous saves have the bytes of those that training waits for, of the state at their
 * beginning, through a ring of any size. Each call of the writer that touches files fails in turn,
 * or the writer dies before it, or its rank with it: the last checkpoint stays what it was, and the
 * next save works. One process, no MPI. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "checkpoint_tiny.h"
#include "parallel/checkpoint/checkpoint.h"

/* --- faults in the writer ------------------------------------------------------------------ */

typedef enum fault { FAILS, DIES, BOTH_DIE, NUM_FAULTS } fault;

static pid_t rank_pid; /* the process that is not the writer */
/* Of the writer's calls, before the fault; negative: none. Behind it how often pages were to be
 * forgotten. Both processes see it. */
static int *calls_left;
static fault the_fault;

static bool fails(void)
{
    if (!calls_left || *calls_left < 0 || getpid() == rank_pid || (*calls_left)-- > 0)
        return false;
    if (the_fault == BOTH_DIE)
        kill(rank_pid, SIGKILL);
    if (the_fault != FAILS)
        raise(SIGKILL);
    errno = EIO;
    return true;
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    const bool counts = strcmp(path, "/dev/null") != 0; /* of the writer's start */
    return counts && fails() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    return fails() ? -1 : syscall(SYS_pwrite64, fd, data, bytes, at);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    return fails() ? -1 : syscall(SYS_pread64, fd, data, bytes, at);
}

int fsync(int fd)
{
    return fails() ? -1 : (int)syscall(SYS_fsync, fd);
}

/* Of the writer, after its fsync: what it reads back comes from the disk. */
int posix_fadvise(int fd, off_t at, off_t bytes, int advice)
{
    if (calls_left && getpid() != rank_pid && advice == POSIX_FADV_DONTNEED && bytes == 0 &&
        at == 0)
        calls_left[1]++;
    return (int)syscall(SYS_fadvise64, fd, at, bytes, advice);
}

int rename(const char *from, const char *to)
{
    return fails() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char *name, int flags)
{
    return fails() ? -1 : (int)syscall(SYS_unlinkat, folder, name, flags);
}

/* --- saves --------------------------------------------------------------------------------- */

static weft_status begin(weft_checkpoint_writer *w, tiny *t, const char *dir, int64_t step)
{
    const weft_checkpoint_info info = info_of_step(step);
    weft_checkpoint_keep keep = {.latest_k = 2};
    visit_state(t, step, true);
    weft_status status = weft_checkpoint_begin(w, dir, &info, &keep, t->parameters, t->optimizer,
                                               "{\"model\": {}}", "{\"kind\": \"bytes\"}");
    visit_state(t, step + 50, true); /* training goes on */
    return status;
}

static weft_status save(weft_checkpoint_writer *w, tiny *t, const char *dir, int64_t step)
{
    bool published;
    WEFT_TRY(begin(w, t, dir, step));
    WEFT_TRY(weft_checkpoint_finish(w, &published));
    EXPECT(published, "neither an error nor published");
    return WEFT_OK;
}

/* The folder's checkpoint is this step's, and whole. */
static void expect_step(tiny *t, const char *dir, int64_t least, int64_t most)
{
    weft_arena arena = {0};
    weft_checkpoint_info info = {0};
    const char *folder;
    EXPECT_OK(weft_checkpoint_resolve(dir, &arena, &folder));
    EXPECT_OK(weft_checkpoint_read_info(folder, &info));
    EXPECT(info.step >= least && info.step <= most, "the latest is step %lld",
           (long long)info.step);
    EXPECT_OK(load(t, folder));
    EXPECT(visit_state(t, info.step, false) == 0, "%s is not what was saved", folder);
    weft_arena_release(&arena);
}

static void shell(const char *command, const char *dir)
{
    setenv("D", dir, 1);
    EXPECT(system(command) == 0, "%s in %s", command, dir);
}

/* --- equal bytes, any ring ----------------------------------------------------------------- */

static void test_bytes(const char *dir, variant v, size_t staging, size_t least)
{
    weft_checkpoint_writer *w = NULL;
    tiny t;
    char path[128];
    calls_left[1] = 0;
    EXPECT_OK(weft_checkpoint_writer_create(&w));
    if (tiny_create(&t, v)) {
        EXPECT_OK(weft_checkpoint_writer_reserve(w, t.parameters, t.optimizer, staging));
        EXPECT(weft_checkpoint_writer_bytes(w) >= least &&
                   (staging == 0 || weft_checkpoint_writer_bytes(w) <= staging),
               "a ring of %zu bytes", weft_checkpoint_writer_bytes(w));
        for (int64_t step = 1; step <= 4; step++) {
            snprintf(path, sizeof path, "%s/sync", dir);
            EXPECT_OK(save_step(&t, path, step));
            snprintf(path, sizeof path, "%s/async", dir);
            EXPECT_OK(save(w, &t, path, step));
            weft_writer_report report = weft_checkpoint_writer_report(w);
            EXPECT(report.step == step && report.bytes >= 38 * 12 && report.stalled_us > 0 &&
                       report.written_us > 0 && report.verified_us > 0,
                   "odd report: %zu bytes", report.bytes);
            EXPECT((report.waited_us > 0) == (staging > 0), "waited %g us", report.waited_us);
            EXPECT(calls_left[1] == step, "read back from memory");
        }
        expect_step(&t, path, 4, 4);
        shell("cd $D && diff -r sync/step-3 async/step-3 && diff -r sync/step-4 async/step-4 && "
              "diff sync/latest async/latest && test \"$(ls -A async | tr '\\n' ' ')\" = "
              "'latest step-3 step-4 '",
              dir);
    }
    tiny_release(&t);
    weft_checkpoint_writer_destroy(w);
    shell("rm -rf $D", dir);
}

static void test_too_small(void)
{
    weft_checkpoint_writer *w = NULL;
    tiny t;
    EXPECT_OK(weft_checkpoint_writer_create(&w));
    if (tiny_create(&t, LARGE)) {
        EXPECT_ERROR(weft_checkpoint_writer_reserve(w, t.parameters, t.optimizer, 1000000),
                     WEFT_CONFIG,
                     "checkpoint.staging_bytes: 1000000 is less than the largest piece takes");
    }
    tiny_release(&t);
    weft_checkpoint_writer_destroy(w);
}

/* A state that is not finite is never published, and is an error of its own. */
static void test_not_finite(const char *dir)
{
    weft_checkpoint_writer *w = NULL;
    bool published;
    tiny t;
    EXPECT_OK(weft_checkpoint_writer_create(&w));
    if (tiny_create(&t, PLAIN)) {
        EXPECT_OK(weft_checkpoint_writer_reserve(w, t.parameters, t.optimizer, 0));
        EXPECT_OK(save(w, &t, dir, 1));
        visit_state(&t, 2, true);
        weft_optimizer_piece(t.optimizer, 0).data[1][0] = NAN;
        weft_checkpoint_info info = {.step = 2};
        EXPECT_OK(weft_checkpoint_begin(w, dir, &info, &(weft_checkpoint_keep){0}, t.parameters,
                                        t.optimizer, "{}", NULL));
        EXPECT_ERROR(weft_checkpoint_finish(w, &published), WEFT_DIVERGED,
                     "step 2: optimizer/exp_avg/");
        EXPECT_OK(weft_checkpoint_finish(w, &published)); /* until it is dropped */
        EXPECT(!published && !weft_checkpoint_writer_is_busy(w), "published");
        expect_step(&t, dir, 1, 1);
        EXPECT(count_entries(dir) == 2, "%d entries are left", count_entries(dir));
    }
    tiny_release(&t);
    weft_checkpoint_writer_destroy(w);
}

/* A writer that is killed before it has its ring: the first save is given up, others go on. */
static void test_killed_at_start(const char *dir)
{
    weft_checkpoint_writer *w = NULL;
    siginfo_t info;
    int writer = 0;
    tiny t;
    EXPECT_OK(weft_checkpoint_writer_create(&w));
    FILE *file = fopen("/proc/thread-self/children", "r");
    EXPECT(file && fscanf(file, "%d", &writer) == 1, "no writer");
    if (file)
        fclose(file);
    if (writer > 0 && tiny_create(&t, PLAIN)) {
        kill(writer, SIGKILL);
        EXPECT(waitid(P_PID, (id_t)writer, &info, WEXITED | WNOWAIT) == 0, "it lives");
        EXPECT_OK(weft_checkpoint_writer_reserve(w, t.parameters, t.optimizer, 0));
        EXPECT_ERROR(save(w, &t, dir, 1), WEFT_FILE, "killed by signal 9 (Killed)");
        EXPECT(weft_checkpoint_writer_is_off(w), "it is used again");
        EXPECT_OK(save_step(&t, dir, 2));
        expect_step(&t, dir, 2, 2);
        tiny_release(&t);
    }
    weft_checkpoint_writer_destroy(w);
    shell("rm -rf $D", dir);
}

/* --- every call ---------------------------------------------------------------------------- */

/* In a process of its own: 77 where the save never came to the call. */
static int save_under_fault(const char *dir, int calls, fault f)
{
    weft_checkpoint_writer *w = NULL;
    bool published;
    tiny t;
    rank_pid = getpid();
    *calls_left = calls;
    the_fault = f;
    if (weft_checkpoint_writer_create(&w) != WEFT_OK || !tiny_create(&t, PLAIN))
        return 1;
    EXPECT_OK(weft_checkpoint_writer_reserve(w, t.parameters, t.optimizer, 0));
    weft_status status = save(w, &t, dir, 2);
    const bool failed = status != WEFT_OK;
    const bool came_to_it = *calls_left < 0;
    if (f == FAILS && failed)
        EXPECT(status == WEFT_FILE && strstr(weft_error_get()->text, dir), "%s",
               weft_error_get()->text);
    if (f == DIES)
        EXPECT(failed == weft_checkpoint_writer_is_off(w) &&
                   (!failed || strstr(weft_error_get()->text, "killed by signal 9 (Killed)")),
               "%s", weft_error_get()->text);
    weft_error_clear();
    EXPECT_OK(weft_checkpoint_finish(w, &published));
    *calls_left = -1;
    expect_step(&t, dir, 1, 2);
    /* The next one works, by the ranks themselves where the writer is lost. */
    if (weft_checkpoint_writer_is_off(w))
        EXPECT_OK(save_step(&t, dir, 3));
    else
        EXPECT_OK(save(w, &t, dir, 3));
    expect_step(&t, dir, 3, 3);
    tiny_release(&t);
    weft_checkpoint_writer_destroy(w);
    return expect_failures ? 1 : came_to_it ? 0 : 77;
}

static void test_every_call(const char *root, fault f)
{
    static const char *const names[] = {"fails", "dies", "both die"};
    char good[128], dir[128];
    int status = 0, calls = 0;
    bool done = false;
    tiny t;
    snprintf(good, sizeof good, "%s/good", root);
    snprintf(dir, sizeof dir, "%s/faulty", root);
    if (tiny_create(&t, PLAIN))
        EXPECT_OK(save_step(&t, good, 1));
    for (; !done && calls < 400; calls++) {
        shell("rm -rf $D; cp -r \"$(dirname $D)/good\" $D", dir);
        pid_t child = fork();
        if (child == 0)
            _exit(save_under_fault(dir, calls, f));
        EXPECT(waitpid(child, &status, 0) == child, "no child");
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        EXPECT((f == BOTH_DIE && killed) ||
                   (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77)),
               "call %d %s: status %x", calls, names[f], status);
        done = WIFEXITED(status) && WEXITSTATUS(status) == 77;
        expect_step(&t, dir, killed ? 1 : 3, killed ? 2 : 3);
        if (expect_failures)
            break;
    }
    EXPECT(calls > 30 && calls < 400, "%d calls", calls);
    fprintf(stderr, "%d calls: each %s\n", calls - 1, names[f]);
    tiny_release(&t);
    shell("rm -rf $D", good);
}

int main(void)
{
    char root[] = "test_checkpoint_async_XXXXXX", dir[64];
    rank_pid = getpid();
    calls_left = mmap(NULL, 2 * sizeof *calls_left, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (calls_left == MAP_FAILED)
        return 1;
    *calls_left = -1;
    if (!mkdtemp(root))
        return 1;
    for (int f = 0; f < NUM_FAULTS; f++)
        test_every_call(root, (fault)f);
    snprintf(dir, sizeof dir, "%s/bytes", root);
    test_bytes(dir, PLAIN, 0, 1);
    test_bytes(dir, LARGE, 0, 6000000);
    test_bytes(dir, LARGE, 2200000, 2000000);
    test_bytes(dir, LARGE, 4000000, 3900000);
    test_too_small();
    snprintf(dir, sizeof dir, "%s/finite", root);
    test_not_finite(dir);
    snprintf(dir, sizeof dir, "%s/start", root);
    test_killed_at_start(dir);
    remove_tree(root);
    return expect_finish();
}
