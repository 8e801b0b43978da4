/* The folder of a checkpoint: what lies in a save's way, links and files of other kinds among it; a
 * kill between any two renames; equal bytes of equal states; states that are not finite. One
 * process, no MPI. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <hdf5.h>

#include "checkpoint_tiny.h"
#include "parallel/checkpoint/internal.h"

/* --- renames ------------------------------------------------------------------------------- */

static int renames_left = -1; /* before the process is killed; negative: never */
static bool cannot_exchange;  /* as on file systems of networks */

static void count_rename(void)
{
    if (renames_left == 0)
        raise(SIGKILL);
    renames_left--;
}

int rename(const char *from, const char *to)
{
    count_rename();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (cannot_exchange && flags) {
        errno = EINVAL;
        return -1;
    }
    count_rename();
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

/* Step 1 is saved again, in the state of step 2, by a process that is killed before its n-th
 * rename; true: it came to its end. */
static bool replace_killed(const char *dir, int n)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        tiny t;
        if (!tiny_create(&t, PLAIN))
            _exit(1);
        visit_state(&t, 2, true);
        renames_left = n;
        _exit(save_state(&t, dir, 1) == WEFT_OK ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0) == child, "no child");
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %x", status);
    return !killed;
}

static void test_replaced(const char *dir)
{
    for (int n = 0, ended = 0; !ended && n < 20; n++) {
        tiny t;
        weft_arena arena = {0};
        const char *folder = "";
        if (tiny_create(&t, PLAIN)) {
            EXPECT_OK(save_step(&t, dir, 1));
            ended = replace_killed(dir, n);
            EXPECT(!ended || n >= 3, "ended after %d renames", n);
            visit_state(&t, 3, true);
            int64_t *steps = NULL;
            size_t count = 0;
            EXPECT_OK(weft_checkpoint_list(dir, &arena, &steps, &count));
            EXPECT(count == 1 && steps[0] == 1, "%zu checkpoints", count);
            EXPECT_OK(weft_checkpoint_resolve(dir, &arena, &folder));
            EXPECT_OK(load(&t, folder));
            bool is_old = visit_state(&t, 1, false) == 0, is_new = visit_state(&t, 2, false) == 0;
            EXPECT(ended ? is_new : is_old || is_new, "killed before rename %d: %s is neither", n,
                   folder);
            /* The next one cleans up. */
            EXPECT_OK(save_step(&t, dir, 1));
            EXPECT(count_entries(dir) == 2, "%d entries in %s", count_entries(dir), dir);
        }
        tiny_release(&t);
        weft_arena_release(&arena);
    }
}

/* --- of a newer Weft ------------------------------------------------------------------------- */

static void test_newer(const char *root)
{
    char dir[200], manifest[240];
    size_t count;
    tiny t;
    snprintf(dir, sizeof dir, "%s/newer", root);
    snprintf(manifest, sizeof manifest, "%s/step-1/manifest.json", dir);
    if (tiny_create(&t, PLAIN)) {
        EXPECT_OK(save_step(&t, dir, 1));
        char *text = read_bytes(manifest, &count);
        text[count] = '\0';
        char *version = strstr(text, "\"version\": 2");
        EXPECT(version, "%s", text);
        if (version)
            version[strlen("\"version\": ")] = '3';
        write_bytes(manifest, text, count);
        EXPECT_ERROR(save_step(&t, dir, 1), WEFT_FILE, "not replaced: ");
        EXPECT(count_entries(dir) == 2, "%d entries in %s", count_entries(dir), dir);
        size_t now;
        char *again = read_bytes(manifest, &now);
        EXPECT(now == count && memcmp(text, again, count) == 0, "%s is another", manifest);
        free(text);
        free(again);
    }
    tiny_release(&t);
}

/* --- links in model.h5 ----------------------------------------------------------------------- */

typedef enum odd { HARD, EXTERNAL, EXTERNAL_GROUP, SOFT, VIRTUAL, OTHER_FILE, NUM_ODD } odd;

/* A file whose dataset model/alpha is reached so, or has its elements so; `pipe` is a FIFO. */
static uint64_t make_odd(const char *path, odd kind, const char *pipe)
{
    const hsize_t dims[] = {4};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, dims, NULL);
    hid_t group = kind == EXTERNAL_GROUP
                      ? H5I_INVALID_HID
                      : H5Gcreate2(file, "model", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const char *name = kind == SOFT ? "other" : "model/alpha";
    H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
    if (kind == VIRTUAL)
        H5Pset_virtual(create, space, pipe, "model/alpha", space);
    if (kind == OTHER_FILE)
        H5Pset_external(create, pipe, 0, 16);
    if (kind == EXTERNAL)
        H5Lcreate_external(pipe, "/model/alpha", file, name, H5P_DEFAULT, H5P_DEFAULT);
    else if (kind == EXTERNAL_GROUP)
        H5Lcreate_external(pipe, "/model", file, "model", H5P_DEFAULT, H5P_DEFAULT);
    hid_t dataset =
        kind == EXTERNAL || kind == EXTERNAL_GROUP
            ? H5I_INVALID_HID
            : H5Dcreate2(file, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    if (kind == SOFT)
        H5Lcreate_soft("/other", file, "model/alpha", H5P_DEFAULT, H5P_DEFAULT);
    const uint64_t offset = dataset >= 0 && kind <= SOFT ? H5Dget_offset(dataset) : 4096;
    if (dataset >= 0)
        H5Dclose(dataset);
    if (group >= 0)
        H5Gclose(group);
    H5Sclose(space);
    H5Pclose(create);
    H5Fclose(file);
    return offset;
}

/* HDF5 would open the pipe and wait; the alarm ends the test then. */
static void test_odd_hdf5(const char *root)
{
    static const char *const parts[NUM_ODD] = {NULL,
                                               "model/alpha: a link, which is not followed",
                                               "model: a link, which is not followed",
                                               "model/alpha: a link, which is not followed",
                                               "its elements are not one piece of this file",
                                               "its elements are not one piece of this file"};
    char path[200], pipe[200];
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    snprintf(path, sizeof path, "%s/odd.h5", root);
    snprintf(pipe, sizeof pipe, "%s/pipe", root);
    EXPECT(mkfifo(pipe, 0600) == 0, "%s", pipe);
    alarm(300);
    for (odd kind = HARD; kind < NUM_ODD; kind++) {
        weft_stored stored = {.name = "model/alpha", .num_dims = 1, .dims = {4}};
        weft_stored_list list = {&stored, 1};
        weft_tensor_file *file = NULL;
        stored.offset = make_odd(path, kind, pipe);
        if (kind == HARD)
            EXPECT_OK(weft_tensor_file_open(path, &list, &file));
        else
            EXPECT_ERROR(weft_tensor_file_open(path, &list, &file), WEFT_FILE, parts[kind]);
        EXPECT_OK(weft_tensor_file_close(file));
    }
    alarm(0);
}

/* --- what lies in the way ------------------------------------------------------------------ */

static void test_links(const char *root)
{
    static const char *const names[] = {".step-1.saving", "step-1", "step-1.replaced",
                                        ".latest.saving", "latest"};
    char dir[200], precious[200], file[220], link[240], folder[240], real[4096], to[4160];
    tiny t;
    snprintf(dir, sizeof dir, "%s/links", root);
    snprintf(precious, sizeof precious, "%s/precious", root);
    snprintf(file, sizeof file, "%s/file", precious);
    EXPECT(mkdir(dir, 0700) == 0 && mkdir(precious, 0700) == 0 && realpath(precious, real),
           "no folders");
    write_bytes(file, "mine", 4);
    for (int i = 0; i < 5; i++) {
        snprintf(link, sizeof link, "%s/%s", dir, names[i]);
        snprintf(to, sizeof to, "%s%s", real, i < 3 ? "" : "/file");
        EXPECT(symlink(to, link) == 0, "%s", link);
    }
    for (int round = 0; round < 2 && tiny_create(&t, PLAIN); round++) {
        EXPECT_OK(save_step(&t, dir, 1));
        EXPECT(count_entries(dir) == 2, "%d entries in %s", count_entries(dir), dir);
        EXPECT(count_entries(precious) == 1, "%d entries in %s", count_entries(precious), precious);
        size_t count;
        char *text = read_bytes(file, &count);
        EXPECT(count == 4 && memcmp(text, "mine", 4) == 0, "%s: %zu bytes", file, count);
        free(text);
        snprintf(folder, sizeof folder, "%s/step-1", dir);
        EXPECT_OK(load(&t, folder));
        tiny_release(&t);
        /* Again with a folder in the way of each name. */
        for (int i = 0; i < 3; i += 2) {
            snprintf(link, sizeof link, "%s/%s", dir, names[i]);
            EXPECT(mkdir(link, 0700) == 0, "%s", link);
        }
    }
}

static void refuse(tiny *t, const char *dir, const char *folder, const char *text)
{
    weft_arena arena = {0};
    const char *found = folder;
    weft_status status = weft_checkpoint_resolve(dir, &arena, &found);
    if (status == WEFT_OK)
        status = load(t, found);
    EXPECT_ERROR(status, WEFT_FILE, text);
    weft_arena_release(&arena);
}

/* A file of each other kind in the place of `name`, of which none is waited for or read whole. */
static void test_other_kinds(tiny *t, const char *dir, const char *folder, const char *name)
{
    char path[300], text[300];
    size_t count;
    snprintf(path, sizeof path, "%s/%s", name[0] == 'l' ? dir : folder, name);
    char *good = read_bytes(path, &count);
    snprintf(text, sizeof text, "%s: not a regular file", name);
    for (int kind = 0; kind < 3; kind++) {
        unlink(path);
        int failed = kind == 0   ? mkfifo(path, 0600)
                     : kind == 1 ? symlink("/dev/zero", path)
                                 : mkdir(path, 0700);
        EXPECT(failed == 0, "%s", path);
        refuse(t, dir, folder, text);
        EXPECT(remove(path) == 0, "%s", path);
    }
    write_bytes(path, "{", 1);
    EXPECT(truncate(path, (off_t)1 << 40) == 0, "%s", path); /* a hole: takes no room */
    bool is_first = name[0] == 'l' || strcmp(name, "manifest.json") == 0; /* others: its size */
    snprintf(text, sizeof text, "%s: %s", name, is_first ? "larger than 256 MiB" : "1099511627776");
    refuse(t, dir, folder, text);
    write_bytes(path, good, count);
    free(good);
}

static const char *const files[] = {"model.h5",       "shards.json",   "config.json",
                                    "tokenizer.json", "manifest.json", "latest"};

static void test_kinds(const char *dir)
{
    tiny t;
    char folder[200];
    snprintf(folder, sizeof folder, "%s/step-1", dir);
    if (tiny_create(&t, PLAIN)) {
        EXPECT_OK(save_step(&t, dir, 1));
        for (int i = 0; i < 6; i++)
            test_other_kinds(&t, dir, folder, files[i]);
        EXPECT_OK(load(&t, folder));
    }
    tiny_release(&t);
}

/* --- what is in it ------------------------------------------------------------------------- */

static void test_equal_bytes(const char *root)
{
    tiny t;
    char dir[200], path[300];
    struct timespec moment = {0, 10000000};
    for (int i = 0; i < 2; i++) { /* of two seconds, which is what HDF5 counts */
        time_t now = time(NULL);
        while (i == 1 && time(NULL) == now)
            nanosleep(&moment, NULL);
        snprintf(dir, sizeof dir, "%s/equal-%d", root, i);
        if (tiny_create(&t, PLAIN))
            EXPECT_OK(save_step(&t, dir, 1));
        tiny_release(&t);
    }
    for (int i = 0; i < 5; i++) {
        char *bytes[2];
        size_t counts[2];
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/equal-%d/step-1/%s", root, k, files[i]);
            bytes[k] = read_bytes(path, &counts[k]);
        }
        EXPECT(counts[0] == counts[1] && memcmp(bytes[0], bytes[1], counts[0]) == 0,
               "%s differs between two saves of one state", files[i]);
        free(bytes[0]);
        free(bytes[1]);
    }
}

static void test_not_finite(const char *dir)
{
    static const char *const texts[WEFT_NUM_STATES] = {
        "step 2: model/alpha [0:5, 0:7] is not finite: not saved", "optimizer/exp_avg/alpha [",
        "optimizer/exp_avg_sq/alpha ["};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    tiny t;
    if (tiny_create(&t, PLAIN)) {
        EXPECT_OK(save_step(&t, dir, 1));
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            visit_state(&t, 2, true);
            for (int i = 0; i < weft_optimizer_num_pieces(t.optimizer); i++) {
                weft_state_piece piece = weft_optimizer_piece(t.optimizer, i);
                if (strcmp(piece.placed->parameter.name, "alpha") == 0)
                    piece.data[kind][piece.count - 1] = values[kind];
            }
            EXPECT_ERROR(save_state(&t, dir, 2), WEFT_DIVERGED, texts[kind]);
            EXPECT(count_entries(dir) == 2, "%d entries in %s", count_entries(dir), dir);
        }
        EXPECT_OK(save_step(&t, dir, 2));
    }
    tiny_release(&t);
}

static void test_odd_name(const char *root)
{
    char dir[200], folder[240];
    tiny t;
    snprintf(dir, sizeof dir, "%s/a \"b\" \\ \n \xff\xc3\xa9", root);
    snprintf(folder, sizeof folder, "%s/step-1", dir);
    if (tiny_create(&t, PLAIN)) {
        EXPECT_OK(save_step(&t, dir, 1));
        EXPECT_OK(weft_checkpoint_verify(folder));
    }
    tiny_release(&t);
}

int main(void)
{
    char root[] = "test_checkpoint_folder_XXXXXX", dir[64];
    if (!mkdtemp(root))
        return 1;
    for (int i = 0; i < 2; i++) {
        cannot_exchange = i == 1;
        snprintf(dir, sizeof dir, "%s/replaced-%d", root, i);
        test_replaced(dir);
        snprintf(dir, sizeof dir, "%s/ways-%d", root, i);
        EXPECT(mkdir(dir, 0700) == 0, "%s", dir);
        test_links(dir);
    }
    snprintf(dir, sizeof dir, "%s/kinds", root);
    test_kinds(dir);
    test_equal_bytes(root);
    snprintf(dir, sizeof dir, "%s/finite", root);
    test_not_finite(dir);
    test_odd_name(root);
    test_newer(root);
    test_odd_hdf5(root);
    remove_tree(root);
    return expect_finish();
}
