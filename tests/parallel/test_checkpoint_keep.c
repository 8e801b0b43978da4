/* Which checkpoints a prune leaves: the latest ones, those of multiples, those that `latest` does
 * not reach. Killed before any of its renames and removals it leaves nothing half there, and the
 * next one ends its work. One process, no MPI. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "checkpoint_tiny.h"

enum { LAST = 10 };

static int calls_left = -1; /* before the process is killed; negative: never */

static void count_call(void)
{
    if (calls_left == 0)
        raise(SIGKILL);
    calls_left--;
}

int rename(const char *from, const char *to)
{
    count_call();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char *name, int flags)
{
    count_call();
    return (int)syscall(SYS_unlinkat, folder, name, flags);
}

int rmdir(const char *path)
{
    count_call();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* A shell's words about the folder $D. */
static void shell(const char *command, const char *dir)
{
    setenv("D", dir, 1);
    EXPECT(system(command) == 0, "%s", command);
}

/* "4 8 9 10 " */
static void list(const char *dir, char out[128])
{
    weft_arena arena = {0};
    int64_t *steps;
    size_t count = 0, used = 0;
    out[0] = '\0';
    EXPECT_OK(weft_checkpoint_list(dir, &arena, &steps, &count));
    for (size_t i = 0; i < count && used < 100; i++)
        used += (size_t)snprintf(out + used, 128 - used, "%lld ", (long long)steps[i]);
    weft_arena_release(&arena);
}

static void expect_steps(const char *dir, const char *wanted)
{
    char got[128];
    list(dir, got);
    EXPECT(strcmp(got, wanted) == 0, "%s has steps %s, not %s", dir, got, wanted);
}

static void prune(const char *dir, int64_t latest_k, int64_t interval, int wanted)
{
    int removed = -1;
    EXPECT_OK(weft_checkpoint_prune(
        dir, &(weft_checkpoint_keep){.latest_k = latest_k, .retain_interval = interval}, &removed));
    EXPECT(removed == wanted, "%d removed, not %d", removed, wanted);
}

static void test_rules(const char *dir)
{
    prune(dir, -1, 0, 0);
    prune(dir, 0, 3, 0);
    expect_steps(dir, "1 2 3 4 5 6 7 8 9 10 ");
    shell("echo step-8 >$D/latest", dir); /* 9 and 10 are abandoned: neither counted nor removed */
    prune(dir, 4, 0, 4);
    expect_steps(dir, "5 6 7 8 9 10 ");
    prune(dir, 1, 3, 2);
    expect_steps(dir, "6 8 9 10 ");
    prune(dir, 1, 1, 0);
    shell("echo step-10 >$D/latest; mkdir $D/.step-3.going; echo >$D/.step-3.going/x", dir);
    shell("cp -r $D/step-9 $D/.step-11.saving", dir); /* killed, too */
    shell("mv $D/step-8 $D/step-8.replaced", dir);    /* by a save that was killed */
    prune(dir, 1, 0, 3);
    expect_steps(dir, "10 ");
    EXPECT(count_entries(dir) == 2, "%d entries are left", count_entries(dir));
    shell("echo nonsense >$D/latest", dir);
    int removed = -1;
    EXPECT_ERROR(weft_checkpoint_prune(dir, &(weft_checkpoint_keep){.latest_k = 1}, &removed),
                 WEFT_FILE, "latest: should say \"step-N\"");
    EXPECT(removed == 0, "%d removed", removed);
    expect_steps(dir, "10 ");
}

/* What is there is whole, the newest among it. */
static void check_whole(const char *dir, int calls)
{
    weft_arena arena = {0};
    int64_t *steps;
    size_t count = 0;
    EXPECT_OK(weft_checkpoint_list(dir, &arena, &steps, &count));
    EXPECT(count >= 4 && steps[count - 1] == LAST, "killed before call %d: %zu left", calls, count);
    for (size_t i = 0; i < count; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/step-%lld", dir, (long long)steps[i]);
        EXPECT_OK(weft_checkpoint_verify(path));
    }
    weft_arena_release(&arena);
}

static void test_killed(const char *all, const char *dir)
{
    int status, calls = 0, removed;
    bool killed = true;
    for (; killed && calls < 500; calls++) {
        shell("rm -rf keep.tmp; cp -r $D keep.tmp", all);
        shell("rm -rf $D; mv keep.tmp $D", dir);
        pid_t child = fork();
        if (child == 0) {
            calls_left = calls;
            _exit(weft_checkpoint_prune(
                      dir, &(weft_checkpoint_keep){.latest_k = 2, .retain_interval = 4},
                      &removed) != WEFT_OK);
        }
        EXPECT(waitpid(child, &status, 0) == child, "no child");
        killed = WIFSIGNALED(status);
        EXPECT(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %x", status);
        check_whole(dir, calls);
        EXPECT_OK(weft_checkpoint_prune(
            dir, &(weft_checkpoint_keep){.latest_k = 2, .retain_interval = 4}, &removed));
        expect_steps(dir, "4 8 9 10 ");
        EXPECT(count_entries(dir) == 5, "%d entries are left", count_entries(dir));
    }
    EXPECT(calls > 30 && !killed, "only %d calls", calls);
}

int main(void)
{
    char root[] = "test_checkpoint_keep_XXXXXX", all[64], dir[64];
    tiny t;
    if (!mkdtemp(root))
        return 1;
    snprintf(all, sizeof all, "%s/all", root);
    snprintf(dir, sizeof dir, "%s/some", root);
    if (tiny_create(&t, PLAIN))
        for (int64_t step = 1; step <= LAST; step++)
            EXPECT_OK(save_step(&t, all, step));
    tiny_release(&t);
    test_killed(all, dir);
    test_rules(all);
    remove_tree(root);
    return expect_finish();
}
