/* weft doctor, run as a user runs it, with healthy and with broken libraries. The driver libraries
 * are stand-ins built by this test (fake_cuda.c); their folder is the second argument. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "launcher/verbs/measure/measure.h"

typedef struct answer {
    int code;
    char text[16384];
} answer;

/* Runs this program as `weft doctor ARGUMENTS` with the environment given as "A=b C=d". */
static answer run(const char *environment, const char *arguments)
{
    static char self[4096], command[8192];
    answer made = {.code = -1};
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(command, sizeof command, "env %s '%s' doctor %s 2>&1", environment, self, arguments);
    FILE *lines = popen(command, "r");
    if (lines) {
        made.text[fread(made.text, 1, sizeof made.text - 1, lines)] = '\0';
        int status = pclose(lines);
        made.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    return made;
}

static const cJSON *find(const cJSON *root, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "checks"))
    {
        const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, "name");
        if (cJSON_IsString(found) && !strcmp(found->valuestring, name))
            return item;
    }
    return NULL;
}

static const char *field(const cJSON *root, const char *name, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(find(root, name), key);
    return cJSON_IsString(value) ? value->valuestring : "?";
}

static void expect_state(const cJSON *root, const char *name, const char *state)
{
    EXPECT(!strcmp(field(root, name, "state"), state), "%s is %s (%s)", name,
           field(root, name, "state"), field(root, name, "note"));
}

static void test_this_machine(void)
{
    static const char *const required[] = {"compiler", "CPU",   "hwloc",  "oneDNN", "MPI", "HDF5",
                                           "PCRE2",    "cJSON", "xxHash", "zlib",   "zstd"};
    answer json = run("", "--json");
    cJSON *root = cJSON_Parse(json.text);
    EXPECT(root != NULL, "not JSON: %s", json.text);
    EXPECT(json.code == 0, "exit code %d", json.code);
    EXPECT(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "healthy")), "not healthy");
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        expect_state(root, required[i], "works");
        EXPECT(*field(root, required[i], "version"), "%s has no version", required[i]);
        EXPECT(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(find(root, required[i]), "required")),
               "%s is optional", required[i]);
    }
    expect_state(root, "mpirun", "works");
    cJSON_Delete(root);

    answer table = run("", "");
    EXPECT(table.code == 0, "exit code %d", table.code);
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        EXPECT(strstr(table.text, required[i]) != NULL, "the table lacks %s", required[i]);
    EXPECT(strstr(table.text, "All that Weft needs works.") != NULL, "%s", table.text);
    int lines = 0;
    for (const char *at = table.text; (at = strchr(at, '\n')); at++)
        lines++;
    EXPECT(lines <= 24, "%d lines are more than a screen", lines);
}

/* A folder for files that cannot be made breaks HDF5's test; the rest goes on. */
static void test_broken_requirement(void)
{
    const char *environment = "TMPDIR=/proc/nowhere OMPI_MCA_orte_tmpdir_base=/tmp";
    answer json = run(environment, "--json hdf5 onednn");
    cJSON *root = cJSON_Parse(json.text);
    EXPECT(json.code == 4, "exit code %d", json.code);
    EXPECT(cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(root, "healthy")), "healthy");
    expect_state(root, "HDF5", "broken");
    EXPECT(strstr(field(root, "HDF5", "note"), "/proc/nowhere") != NULL, "%s",
           field(root, "HDF5", "note"));
    expect_state(root, "oneDNN", "works");
    EXPECT(find(root, "MPI") == NULL, "MPI was not asked for");
    cJSON_Delete(root);

    answer table = run(environment, "HDF5 oneDNN");
    EXPECT(table.code == 4 && strstr(table.text, "Something that Weft needs is missing.") &&
               strstr(table.text, "(Weft needs it)"),
           "%d %s", table.code, table.text);
}

/* A PATH without mpirun: absent, and required, as it is named. */
static void test_without_mpirun(void)
{
    answer json = run("PATH=/nowhere", "--json mpirun");
    cJSON *root = cJSON_Parse(json.text);
    EXPECT(json.code == 4, "exit code %d", json.code);
    expect_state(root, "mpirun", "absent");
    cJSON_Delete(root);
    answer table = run("PATH=/nowhere", "mpirun zlib");
    EXPECT(table.code == 4 && strstr(table.text, "(it was asked for)\n") &&
               strstr(table.text, "\nSomething that was asked for is missing.\n"),
           "%d %s", table.code, table.text);
}

/* Of srun's tasks the first of each node speaks for its node, and each line names it. */
static void test_tasks(void)
{
#define TASK                                                                                       \
    "SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_NODEID=1 "                                \
    "'SLURM_STEP_TASKS_PER_NODE=2(x2)' "
    char node[64] = "", line[256];
    gethostname(node, sizeof node - 1);
    answer first = run(TASK "SLURM_LOCALID=0", "zlib zstd");
    snprintf(line, sizeof line, "\n%s: All that was asked for works.\n", node);
    EXPECT(first.code == 0 && strstr(first.text, line), "exit code %d: %s", first.code, first.text);
    for (const char *at = strstr(first.text, "works"); at; at = strstr(at + 1, "works")) {
        const char *start = at;
        while (start > first.text && start[-1] != '\n')
            start--;
        start += strspn(start, " ");
        EXPECT(!strncmp(start, node, strlen(node)), "no node in %s", start);
    }
    answer second = run(TASK "SLURM_LOCALID=1", "zlib zstd");
    EXPECT(second.code == 0 && !*second.text, "exit code %d: %s", second.code, second.text);
    answer bad = run(TASK "SLURM_LOCALID=0 TMPDIR=/proc/nowhere", "hdf5");
    EXPECT(bad.code == 4 && strstr(bad.text, "Something that Weft needs is missing."),
           "exit code %d: %s", bad.code, bad.text);
    bad = run(TASK "SLURM_LOCALID=0", "--path /proc/nowhere");
    snprintf(line, sizeof line, "weft doctor: --path /proc/nowhere on %s: ", node);
    EXPECT(bad.code == 2 && strstr(bad.text, line), "exit code %d: %s", bad.code, bad.text);
    answer json = run(TASK "SLURM_LOCALID=0", "--json zlib");
    cJSON *root = cJSON_Parse(json.text);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(root, "node");
    EXPECT(cJSON_IsString(name) && !strcmp(name->valuestring, node), "%s", json.text);
    cJSON_Delete(root);
}

static void test_cuda(const char *folder)
{
    static const struct {
        const char *mode, *state, *version, *note;
    } rows[] = {
        {"two", "works", "driver 13.0", "2 x Stand-in"},
        {"none", "absent", "driver 13.0", "no device"},
        {"refuse", "broken", "driver 13.0", "cuInit: CUDA_ERROR_STANDIN (999)"},
        {"forget", "broken", "driver 13.0", "other bytes"},
        {"crash", "broken", "", "crashed: Killed"},
        {"exit", "broken", "", "ended the process with exit code 3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char environment[4096];
        snprintf(environment, sizeof environment, "LD_LIBRARY_PATH='%s' FAKE_CUDA=%s", folder,
                 rows[i].mode);
        answer json = run(environment, "--json cuda");
        cJSON *root = cJSON_Parse(json.text);
        EXPECT(json.code == (i == 0 ? 0 : 4), "%s: exit code %d", rows[i].mode, json.code);
        expect_state(root, "CUDA", rows[i].state);
        EXPECT(!strcmp(field(root, "CUDA", "version"), rows[i].version), "%s: version %s",
               rows[i].mode, field(root, "CUDA", "version"));
        EXPECT(strstr(field(root, "CUDA", "note"), rows[i].note) != NULL, "%s: %s", rows[i].mode,
               field(root, "CUDA", "note"));
        cJSON_Delete(root);
    }
}

/* Absent with a reason, or at work; required, as it is named. */
static void test_gpu(void)
{
    answer json = run("", "--json gpu");
    cJSON *root = cJSON_Parse(json.text);
    EXPECT(json.code == (strcmp(field(root, "GPU", "state"), "works") ? 4 : 0), "exit code %d",
           json.code);
#ifdef WEFT_HAS_CUDA
    const char *note = field(root, "GPU", "note");
    bool works = strstr(note, "device.kind: cuda finds ") != NULL;
    expect_state(root, "GPU", works ? "works" : "absent");
    EXPECT(*note, "no reason is given");
#else
    expect_state(root, "GPU", "absent");
    EXPECT(strstr(field(root, "GPU", "note"), "built without CUDA") != NULL, "%s",
           field(root, "GPU", "note"));
#endif
    cJSON_Delete(root);
}

static void forbid_io_uring(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    EXPECT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
           "no seccomp: %s", strerror(errno));
}

/* The folder's own file system counts; what is in the way is told. Last: it stays forbidden. */
static void test_file_io(void)
{
    answer here = run("", "--json 'file i/o'");
    cJSON *root = cJSON_Parse(here.text);
    EXPECT(here.code == 0, "exit code %d", here.code);
    expect_state(root, "file I/O", "works");
    const char *by = field(root, "file I/O", "version"), *note = field(root, "file I/O", "note");
    EXPECT(!strcmp(by, "io_uring") || (!strcmp(by, "threads") && strstr(note, "io_uring")),
           "by %s: %s", by, note);
    EXPECT(strstr(note, "page cache"), "%s", note);
    cJSON_Delete(root);

    answer nowhere = run("", "--json --path /proc/nowhere 'file i/o'");
    EXPECT(nowhere.code == 2 && !strcmp(nowhere.text, "weft doctor: --path /proc/nowhere: there is "
                                                      "no such folder\n"),
           "exit code %d: %s", nowhere.code, nowhere.text);
    nowhere = run("", "--path /proc/cpuinfo zlib");
    EXPECT(nowhere.code == 2 && strstr(nowhere.text, "--path /proc/cpuinfo: Not a directory"),
           "exit code %d: %s", nowhere.code, nowhere.text);
    nowhere = run("", "--json --path /proc 'file i/o'"); /* asked for: required */
    root = cJSON_Parse(nowhere.text);
    EXPECT(nowhere.code == 4, "exit code %d", nowhere.code);
    expect_state(root, "file I/O", "broken");
    EXPECT(strstr(field(root, "file I/O", "note"), "/proc: ") != NULL, "%s",
           field(root, "file I/O", "note"));
    cJSON_Delete(root);

    forbid_io_uring();
    answer forbidden = run("", "--json 'file i/o'");
    root = cJSON_Parse(forbidden.text);
    expect_state(root, "file I/O", "works");
    EXPECT(!strcmp(field(root, "file I/O", "version"), "threads"), "by %s",
           field(root, "file I/O", "version"));
    note = field(root, "file I/O", "note");
    EXPECT(strstr(note, "io_uring: ") &&
               (strstr(note, strerror(EPERM)) || strstr(note, "liburing")),
           "%s", note);
    cJSON_Delete(root);
}

static void test_arguments(void)
{
    answer help = run("", "--help");
    EXPECT(help.code == 0 && strstr(help.text, "usage: weft doctor") != NULL, "%d %s", help.code,
           help.text);
    answer wrong = run("", "--jsn");
    EXPECT(wrong.code == 2 && strstr(wrong.text, "--jsn: unknown option; did you mean --json?"),
           "%d %s", wrong.code, wrong.text);
    wrong = run("", "mpi3");
    EXPECT(wrong.code == 2 && strstr(wrong.text, "mpi3: no such check; did you mean MPI?"), "%d %s",
           wrong.code, wrong.text);
    wrong = run("", "frobnicate");
    EXPECT(wrong.code == 2 && strstr(wrong.text, "no such check; weft doctor lists them"), "%d %s",
           wrong.code, wrong.text);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "doctor"))
        return weft_verb_doctor(argc - 1, argv + 1, NULL);
    test_arguments();
    test_this_machine();
    test_broken_requirement();
    test_without_mpirun();
    test_tasks();
    test_gpu();
    if (argc > 1)
        test_cuda(argv[1]);
    test_file_io();
    return expect_finish();
}
