/* weft launch at real sites: what their launchers want beside the job, which no value can break,
 * and jobs of Kubernetes by the schema of MPIJob. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/jobs.h"

/* launch KIND tiny.json --out OUT and further words; its exit code, and its last line on stderr. */
static void expect_launch(const char *kind, const char *out, const char *const *words, int code,
                          const char *part)
{
    const char *args[32] = {"launch", kind, "tiny.json", "--out", out, "--force"};
    for (int i = 0; words[i]; i++)
        args[6 + i] = words[i];
    job_expect_code(args, code, part);
}

/* --- hosts --------------------------------------------------------------------------------- */

/* Two names and two nodes. */
static void expect_hosts(const char *option, const char *value, const char *hostfile)
{
    expect_launch("mpirun", "hosts", WORDS(option, value), 0, NULL);
    char *text = child_read("hosts/hostfile");
    EXPECT(text && strcmp(text, hostfile) == 0, "%s %s: %s", option, value, text);
}

static void check_hosts(void)
{
    expect_hosts("--hosts", "node[09-10]", "node09 slots=1\nnode10 slots=1\n");
    expect_hosts("--hosts", "r[1,3]n[5].site.example",
                 "r1n5.site.example slots=1\n"
                 "r3n5.site.example slots=1\n");
    expect_hosts("--hosts", "n[8-8],10.0.0.1", "n8 slots=1\n10.0.0.1 slots=1\n");
    static const char *const files[] = {
        "# Open MPI\na slots=1 max_slots=8\n\nb slots=1 # the other\n", "a:1\nb:1\n",
        "a slots=1\r\nb\tslots=1", "[1-1]\n", "a[1"};
    for (size_t i = 0; i < 3; i++) {
        EXPECT(child_write("names", files[i]), "names");
        expect_hosts("--hostfile", "names", "a slots=1\nb slots=1\n");
    }
    static const struct {
        const char *hosts, *says;
    } rows[] = {{"a,A", "A is there twice"},
                {"n[1-2],n2", "n2 is there twice"},
                {"n[2-1]", "expected numbers as in node[01-16,20]"},
                {"n[]", "expected numbers"},
                {"n[1", "is no name of a host"},
                {"n[1-200000]", "more than 100000 hosts"},
                {"a,,b", "\"\" is no name of a host"},
                {"fe80::1", "Open MPI takes no IPv6 address as one"},
                {"a b", "is no name of a host"},
                {"a\nb slots=9", "is no name of a host"},
                {"n[01-001]", "expected numbers as in node[01-16,20]"},
                {"-x,b", "is no name of a host"},
                {"a,b,c", "which do not fill 3 nodes equally"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_launch("mpirun", "hosts", WORDS("--hosts", rows[i].hosts), 2, rows[i].says);
    EXPECT(child_write("names", "a slots=4\nb slots=4\nb slots=4\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2, "b is there twice");
    EXPECT(child_write("names", "a slots=4\nb np=4\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2,
                  "names:2: \"np=4\": expected NAME, NAME slots=N or NAME:N");
    EXPECT(child_write("names", "a slots=4\nb slots=4294967297\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2,
                  "names:2: \"slots=4294967297\": expected NAME");
    EXPECT(child_write("names", "a:4294967297\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2, "N of 1 to 65536");
    static const char *const twice[] = {"n1:8 slots=4\n", "n1 slots=8 slots=9\n"};
    for (size_t i = 0; i < 2; i++) {
        EXPECT(child_write("names", twice[i]), "names");
        expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2,
                      "NAME:N, N of 1 to 65536, once");
    }
    EXPECT(child_write("names", "a\nb\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names", "--nodes", "1"), 2,
                  "--hostfile: names 2, where the job has 1 node");
    expect_launch("slurm", "hosts", WORDS("--hostfile", "names"), 2, "--hostfile: of mpirun jobs");
    expect_launch(
        "slurm", "hosts", WORDS("--hostfile", "nowhere"), 2,
        "--hostfile: of mpirun jobs; this one is for slurm: Slurm finds the nodes itself");
    EXPECT(child_write("names", "# none\n"), "names");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names"), 2, "names: names no host");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "nowhere"), 6, "nowhere");
    expect_launch("mpirun", "hosts", WORDS("--hostfile", "names", "--hosts", "a"), 2,
                  "one of them");
    expect_launch("slurm", "hosts", WORDS("--hosts", "a"), 2, "--hosts: of mpirun jobs");
}

/* Slots say how many ranks a node has, where the config leaves that open; unequal ones are told. */
static void check_slots(void)
{
    child c;
    EXPECT(child_write("names", "a slots=4\nb slots=6\n"), "names");
    CHILD_GOOD("launch", "mpirun", "tiny.json", "--out", "slots", "--hostfile", "names");
    job_expect_text("slots/hostfile", "a slots=4\nb slots=4\n");
    const char *const *args =
        WORDS("launch", "mpirun", "tiny.json", "--out", "slots2", "--hostfile", "names");
    EXPECT(job_run(&c, args, NULL) == 0 &&
               strstr(c.out, "\nhostfile: nodes have 4 to 6 slots; the job uses 4 of each\n"),
           "%s%s", c.out, c.err);
    expect_launch(
        "mpirun", "slots",
        WORDS("--hostfile", "names", "--mesh", "tp=2,dp=5", "--set", "train.global_batch_size=5"),
        2, "a node has 4 slots, and the job 5 ranks on each node");
}

/* The published nodes, two of 128 of another kind. */
static void check_kinds(void)
{
    char path[1200];
    child c;
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    char *text = child_read(path);
    cJSON *json = text ? cJSON_Parse(strchr(text, '{')) : NULL;
    EXPECT(json, "%s", path);
    cJSON_AddItemToObject(json, "groups",
                          cJSON_Parse("[{\"num_nodes\": 126}, {\"num_nodes\": 2, \"device\": "
                                      "{\"name\": \"H800\"}}]"));
    char *kinds = cJSON_Print(json);
    EXPECT(child_write("kinds.json", kinds), "kinds.json");
    for (int nodes = 126; nodes <= 128; nodes += 2) {
        char batch[64];
        snprintf(batch, sizeof batch, "train.global_batch_size=%d", nodes * 4);
        const char *const *args =
            WORDS("launch", "slurm", "tiny.json", "--out", "kinds", "--force", "--cluster",
                  "kinds.json", "--nodes", nodes == 126 ? "126" : "128", "--set", batch);
        EXPECT(job_run(&c, args, NULL) == 0, "%s", c.err);
        EXPECT(!strstr(c.out, "\nnodes differ: 126 nodes of H100 SXM5 80 GB, 2 nodes of H800; the "
                              "plan is of this order: Slurm ") == (nodes == 126),
               "%s", c.out);
    }
    free(kinds);
    cJSON_Delete(json);
}

/* What advice a job and a run give there, and that they train. */
static void check_lustre(const char *fake)
{
    char preload[1200];
    child c;
    const char *const env[] = {preload, NULL};
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", fake);
    job_run(&c, WORDS("launch", "slurm", "tiny.json", "--out", "striped"), env);
    EXPECT(strstr(c.out, "\nlustre: lfs setstripe -c 8 -S 4M RUN, before the first save"), "%s",
           c.out);
    const char *const *train = WORDS("train", "tiny.json", "--out", "striped", "--set",
                                     "parallel.tensor_model_parallel_size=1", "--resume");
    for (int start = 0; start < 2; start++) {
        child_run(&c, train, env);
        EXPECT(c.exit_code == 0 &&
                   (strstr(c.err, "lie on a Lustre: lfs setstripe -c 8 -S 4M striped,") != NULL) ==
                       (start == 0),
               "start %d: %s", start, c.err);
    }
}

/* --- before the program -------------------------------------------------------------------- */

static const char *const site[] = {
    "--setup",       "site.sh", "--env",       "QUOTES=a\"b'c\n#SBATCH --evil $(touch oops)",
    "--env",         "PASSED",  "--interface", "ib0",
    "--rank-output", NULL};

/* What a fake launcher has in its environment, and which names it is told to pass on. */
static void check_environment(const char *kind, const char *script, const char *fake)
{
    child c;
    job_make_fake(fake,
                  "for name in SITE QUOTES PASSED NCCL_SOCKET_IFNAME FI_TCP_IFACE "
                  "OMPI_MCA_btl_tcp_if_include; do echo \"$name=${!name}.\"; done >variables");
    EXPECT(child_write("site.sh", "module() { echo \"$@\" >>modules; }\nmodule load mpi\n"
                                  "export SITE=\"two words\"\n"),
           "site.sh");
    unlink("modules");
    expect_launch(kind, "site", site, 0, NULL);
    job_expect_bash(script);
    job_expect_no_text(script, "\n#SBATCH --evil");
    const char *const env[] = {job_path,         "PASSED=yes",
                               "UCX_TLS=rc",     "OMP_PROC_BIND=close",
                               "SLURM_JOB_ID=1", "SLURM_CPUS_PER_TASK=3",
                               "OTHER=1",        NULL};
    EXPECT(job_run_other(&c, "/bin/bash", WORDS(script), env) == 0, "%s: %s", script, c.err);
    job_expect_text("modules", "load mpi\n");
    job_expect_text("variables", "SITE=two words.\n"
                                 "QUOTES=a\"b'c\n#SBATCH --evil $(touch oops).\n"
                                 "PASSED=yes.\nNCCL_SOCKET_IFNAME==ib0.\nFI_TCP_IFACE=ib0.\n"
                                 "OMPI_MCA_btl_tcp_if_include=ib0.\n");
    EXPECT(access("oops", F_OK) != 0, "%s: a value was run as a command", kind);
}

/* What the lines say of their own end, and what else of them lasts. */
static void check_setup(void)
{
    static const struct {
        const char *lines, *says;
    } rows[] = {
        {"true\nfalse\n", "site.sh:2: its last command failed with 1: the job is not started\n"},
        {"true\nreturn 4\n", "site.sh:2: its last command failed with 4"},
        {"true\n\nexit 0\ntrue\n", "site.sh:3: it exits with 0, where its last line should be"},
        {"set -e\nf() {\n    false\n}\nf\ntrue\n", "site.sh:3: it exits with 1"},
        {"set -u\necho $nothing\n", "site.sh:2: it exits with 1"},
        {"exec true\n", "site.sh: exec or a signal ended it (0) before its last line: the job is "
                        "not started\n"},
        {"trap true EXIT\nexec sh -c 'exit 7'\n", "site.sh: exec or a signal ended it (7)"},
        {"trap true EXIT\nexit 3\n", "site.sh: exec or a signal ended it (3)"},
        {"kill -KILL $BASHPID\n", "site.sh: exec or a signal ended it (137)"},
        {"PATH=/nowhere\n", "site.sh: its PATH has no "}};
    static const char *const kinds[] = {"mpirun", "slurm"};
    static const char *const scripts[] = {"site/job.sh", "site/job.sbatch"};
    const char *const env[] = {job_path, "SLURM_JOB_ID=1", "HAD=1", NULL};
    child c;
    for (int k = 0; k < 2; k++) {
        EXPECT(child_write("site.sh", "true\n"), "site.sh");
        expect_launch(kinds[k], "site", WORDS("--setup", "site.sh"), 0, NULL);
        job_said();
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            EXPECT(child_write("site.sh", rows[i].lines), "site.sh");
            EXPECT(job_run_other(&c, "/bin/bash", WORDS(scripts[k]), env) == 2 &&
                       strstr(c.err, rows[i].says),
                   "%s: exit %d: %s", rows[i].lines, c.exit_code, c.err);
        }
        EXPECT(child_write("site.sh", "if\n"), "site.sh");
        EXPECT(job_run_other(&c, "/bin/bash", WORDS(scripts[k]), env) == 2 &&
                   strstr(c.err, "site.sh: line 2: syntax error") &&
                   strstr(c.err, "site.sh: bash cannot read it: the job is not started\n"),
               "exit %d: %s", c.exit_code, c.err);
        const char *text = job_said();
        EXPECT(!*text, "%s: started: %s", kinds[k], text);
        EXPECT(child_write("site.sh", "set -eu -o pipefail\nshopt -s nullglob\ncd /\nIFS=,\n"
                                      "trap 'echo trapped >&2' EXIT USR1 ERR\nset -- a b\n"
                                      "tell() { false; }\nexport LASTS=1\njob=none asked=TERM\n"
                                      "readonly run code step\nexport name=n\nset -o noclobber\n"
                                      "export -f tell\nulimit -Sn 99\numask 027\nunset HAD\n"
                                      "sleep 9 >/dev/null 2>&1 &\n"),
               "site.sh");
        job_make_fake(
            k ? "srun" : "mpirun",
            "echo \"$PWD $LASTS $name ${HAD-no} $(ulimit -Sn) $(umask) $(tell; echo $?)\" "
            ">variables; exit 7");
        EXPECT(job_run_other(&c, "/bin/bash", WORDS(scripts[k]), env) == 7 && !*c.err,
               "exit %d: %s", c.exit_code, c.err);
        char line[128];
        snprintf(line, sizeof line, "%s 1 n no 99 0027 1\n", job_folder);
        job_expect_text("variables", line);
    }
    EXPECT(child_write("site.sh", "true\nfor x in 1; do\n"), "site.sh");
    expect_launch("kubernetes", "site", WORDS("--image", "i", "--setup", "site.sh"), 2,
                  "--setup: bash cannot read it: ");
    expect_launch("mpirun", "site", WORDS("--setup", "site.sh"), 2,
                  "site.sh: line 3: syntax error: unexpected end of file");
}

/* Variables by names that the job's script has too: each start gets them as they are. */
static void check_names(void)
{
    static const char *const kinds[] = {"mpirun", "slurm"}, *const fakes[] = {"mpirun", "srun"},
                             *const scripts[] = {"alike/job.sh", "alike/job.sbatch"};
    const char *const env[] = {job_path, "SLURM_JOB_ID=1", "step=s", "last=l", NULL};
    child c;
    for (int k = 0; k < 2; k++) {
        job_make_fake(fakes[k], "if [ \"$*\" = \"${*/ true}\" ]; then\n"
                                "echo \"$run $code $step $last $delay $LD_PRELOAD\" >>variables\n"
                                "exit 5\nfi");
        expect_launch(kinds[k], "alike",
                      WORDS("--env", "run=r", "--env", "code=7", "--env", "step", "--env",
                            "delay=d", "--env", "LD_PRELOAD=libc.so.6", "--set",
                            "reliability.max_restarts=2", "--set", "reliability.restart_delay_s=0"),
                      0, NULL);
        unlink("variables");
        EXPECT(job_run_other(&c, "/bin/bash", WORDS(scripts[k]), env) == 5, "exit %d: %s",
               c.exit_code, c.err);
        job_expect_text("variables", "r 7 s l d libc.so.6\nr 7 s l d libc.so.6\n"
                                     "r 7 s l d libc.so.6\n");
        const char *text = job_said();
        EXPECT(k == 1 || (job_has_word(text, "run") && !job_has_word(text, "last")), "%s", text);
    }
}

static void check_site(void)
{
    check_environment("slurm", "site/job.sbatch", "srun");
    const char *text = job_said();
    EXPECT(job_has_word(text, "--cpus-per-task=3") && job_has_word(text, "--export=ALL") &&
               strstr(text, "/site/ranks/rank-%t.out\n"),
           "%s", text);
    EXPECT(access("site/ranks", F_OK) == 0, "no folder of ranks' words");
    check_environment("mpirun", "site/job.sh", "mpirun");
    text = job_said();
    static const char *const passed[] = {"SITE",          "QUOTES", "PASSED",           "UCX_TLS",
                                         "OMP_PROC_BIND", "PATH",   "--output-filename"};
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        EXPECT(job_has_word(text, passed[i]), "no %s in %s", passed[i], text);
    EXPECT(!job_has_word(text, "OTHER") && !job_has_word(text, "OMPI_MCA_btl_tcp_if_include"), "%s",
           text);
    expect_launch("mpirun", "site", WORDS("--setup", "nowhere"), 2,
                  "launch: --setup nowhere: No such file or directory");
    expect_launch("mpirun", "site", WORDS("--setup", "/dev/null"), 2,
                  "--setup /dev/null: not a file");
    expect_launch("mpirun", "site", WORDS("--env", "1X=2"), 2, "no name of a variable");
    expect_launch("mpirun", "site", WORDS("--env", "X;touch oops=2"), 2, "no name of a variable");
    expect_launch("mpirun", "site", WORDS("--env", "PATH=/x"), 2, "a file for --setup can export");
    expect_launch("slurm", "site", WORDS("--env", "SLURM_JOB_ID=1"), 2, "Slurm sets it");
    expect_launch("mpirun", "site", WORDS("--env", "PATH", "--env", "A=1", "--env", "A=1"), 0,
                  NULL);
    expect_launch("mpirun", "site", WORDS("--env", "A=1", "--env", "AB=2", "--env", "A=2"), 2,
                  "--env A=2: given twice, with \"A=1\"");
    expect_launch("mpirun", "site", WORDS("--interface", "a b"), 2, "no name of a network");
    expect_launch("mpirun", "site", WORDS("--interface", "-x"), 2, "no name of a network");
    expect_launch("slurm", "a:b", WORDS("--rank-output"), 2,
                  "--rank-output: launchers take no file");
}

/* --- Slurm --------------------------------------------------------------------------------- */

static void check_slurm(void)
{
    static const struct {
        const char *option, *value, *says;
    } rows[] = {{"--sbatch", "-N4", "--nodes says it"},
                {"--sbatch", "--nodes=4", "--nodes says it"},
                {"--sbatch", "--sig=B:TERM@9", "train.stop_timeout_s says it"},
                {"--sbatch", "--array=0-3", "each of its jobs would train in the same folder"},
                {"--sbatch", "-a 0-3", "each of its jobs"},
                {"--sbatch", "-p gpu -a 1-3", "one option each"},
                {"--sbatch", "--no-requeue", "the job goes on by it"},
                {"--sbatch", "constraint=h100", "expected an option of sbatch"},
                {"--sbatch", "--comment=a\n#SBATCH --hold", "expected an option of sbatch"},
                {"--account", "a b", "no name that Slurm gives one"},
                {"--partition", "p\n#SBATCH --hold", "no name that Slurm"},
                {"--account", "-x", "no name that Slurm gives one"},
                {"--qos", "", "no name that Slurm"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_launch("slurm", "refused", WORDS(rows[i].option, rows[i].value), 2, rows[i].says);
    EXPECT(access("refused", F_OK) != 0, "a folder of a job that was refused");
    expect_launch("slurm", "s",
                  WORDS("--account", "team", "--partition", "gpu,long", "--qos", "high", "--time",
                        "2-0", "--sbatch", "--constraint=h100&ib", "--sbatch=--nodelist=n[1-2]",
                        "--sbatch", "-C x", "--sbatch=--gres=gpu:h100:2", "--set",
                        "device.kind=cuda"),
                  0, NULL);
    static const char *const lines[] = {
        "\n#SBATCH --account=team\n#SBATCH --partition=gpu,long\n#SBATCH --qos=high\n"
        "#SBATCH --time=2-0\n",
        "\n#SBATCH --constraint=h100&ib\n#SBATCH --nodelist=n[1-2]\n#SBATCH -C x\n"
        "#SBATCH --gres=gpu:h100:2\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        job_expect_text("s/job.sbatch", lines[i]);
    job_expect_no_text("s/job.sbatch", "--gpus-per-node");
    expect_launch("mpirun", "s", WORDS("--sbatch", "--hold"), 2, "--sbatch: of slurm jobs");
    expect_launch("mpirun", "s", WORDS("--qos", "a"), 2,
                  "--qos: of slurm jobs; this one is for mpirun: leave it out");
}

/* A second job in a folder leaves the first one's sign of life there; what nobody holds goes. */
static void check_second(void)
{
    static const char *const jobs[] = {"s/job.sbatch", "site/job.sh"};
    static const char *const alive[] = {"s/.alive", "site/.alive"};
    const char *const env[] = {job_path, "SLURM_JOB_ID=1", NULL};
    child c;
    EXPECT(child_write("site.sh", ""), "site.sh");
    for (int i = 0; i < 2; i++) {
        EXPECT(child_write(alive[i], "0000000001 steps\n"), "%s", alive[i]);
        job_run_other(&c, "/usr/bin/flock", WORDS(alive[i], "bash", jobs[i]), env);
        EXPECT(access(alive[i], F_OK) == 0, "%s is gone: %s", alive[i], c.err);
        job_run_other(&c, "/bin/bash", WORDS(jobs[i]), env);
        EXPECT(access(alive[i], F_OK) != 0, "%s is left: %s", alive[i], c.err);
    }
}

/* What is not here would end the job with 127; what an image brings nobody knows. */
static void check_program(void)
{
    EXPECT(child_write("plain", "text\n") && chmod("plain", 0644) == 0, "plain");
    static const char *const none[] = {"./plain", "/nowhere/weft", "./", "/", "wefft"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_launch("mpirun", "refused", WORDS("--program", none[i]), 2,
                      i < 4 ? ": no program that can be started here" : "wefft: not on PATH");
    expect_launch("slurm", "refused", WORDS("--program", "/nowhere/weft"), 2, "--program");
    EXPECT(access("refused", F_OK) != 0, "a folder of a job that was refused");
    expect_launch("slurm", "refused", WORDS("--program", "-x"), 2, "no program's name");
    expect_launch("slurm", "s", WORDS("--program", "wefft"), 0, NULL);
    expect_launch("slurm", "s", WORDS("--program", "/nowhere/weft", "--apptainer", "i"), 0, NULL);
}

/* --- nothing written ----------------------------------------------------------------------- */

static void check_dry_run(void)
{
    static const char *const kinds[] = {"mpirun", "slurm", "kubernetes"};
    for (size_t i = 0; i < 3; i++) {
        child dry, wet;
        const char *args[] = {"launch",  kinds[i], "tiny.json", "--out", "dry",
                              "--image", "i",      "--dry-run", NULL};
        if (i < 2)
            args[5] = args[7], args[6] = NULL;
        EXPECT(job_run(&dry, args, NULL) == 0, "%s", dry.err);
        EXPECT(access("dry", F_OK) != 0, "%s: it wrote", kinds[i]);
        args[i < 2 ? 5 : 7] = "--force";
        args[4] = "wet";
        EXPECT(job_run(&wet, args, NULL) == 0, "%s", wet.err);
        static const char *const files[] = {"job.sh", "job.sbatch", "job.yaml"};
        char path[64];
        snprintf(path, sizeof path, "wet/%s", files[i]);
        char *text = child_read(path);
        for (char *at = text; at && (at = strstr(at, "wet")); at++)
            memcpy(at, "dry", 3);
        const char *at = text ? strstr(dry.out, text) : NULL;
        EXPECT(at && (i == 0 || at == dry.out), "%s: other text: %s", kinds[i], dry.out);
        EXPECT(strstr(dry.out, " (not written)\n# start: "), "%s", dry.out);
    }
    expect_launch("slurm", "dry", WORDS("--dry-run", "--run"), 2, "one of them");
    expect_launch("slurm", "tiny.json", WORDS("--dry-run"), 6, "tiny.json: not a folder");
    expect_launch("slurm", "nowhere/dry", WORDS("--dry-run"), 6,
                  "nowhere/dry: cannot make the folder: No such file or directory");
    EXPECT(mkdir("closed", 0555) == 0, "closed");
    if (access("closed", W_OK) != 0) /* root may */
        expect_launch("slurm", "closed", WORDS("--dry-run"), 6, "closed: cannot write");
}

/* --- MPIJob -------------------------------------------------------------------------------- */

/* Of the schema's words for what a field holds. */
static bool is_kind(const cJSON *value, const char *kind)
{
    if (strcmp(kind, "amount") == 0)
        return cJSON_IsString(value) || cJSON_IsNumber(value);
    if (strcmp(kind, "integer") == 0)
        return cJSON_IsNumber(value) && value->valuedouble == (double)value->valueint;
    return strcmp(kind, "string") == 0    ? cJSON_IsString(value)
           : strcmp(kind, "boolean") == 0 ? cJSON_IsBool(value)
                                          : cJSON_IsObject(value);
}

/* Its row in a schema, where "name!" has to be there and "*" stands for all. */
static const cJSON *find_row(const cJSON *schema, const char *name)
{
    for (const cJSON *row = schema->child; row; row = row->next) {
        const size_t length = strcspn(row->string, "!");
        if (strcmp(row->string, "*") == 0 ||
            (strlen(name) == length && strncmp(name, row->string, length) == 0))
            return row;
    }
    return NULL;
}

static int count_faults(const cJSON *value, const cJSON *schema, const char *name)
{
    int faults = 0;
    bool fits = cJSON_IsString(schema)  ? is_kind(value, schema->valuestring)
                : cJSON_IsArray(schema) ? cJSON_IsArray(value)
                                        : cJSON_IsObject(value);
    if (!fits || cJSON_IsString(schema)) {
        if (!fits)
            printf("%s: not as the schema has it\n", name);
        return !fits;
    }
    if (cJSON_IsArray(schema)) {
        for (const cJSON *item = value->child; item; item = item->next)
            faults += count_faults(item, schema->child, name);
        return faults;
    }
    for (const cJSON *field = value->child; field; field = field->next) {
        const cJSON *row = find_row(schema, field->string);
        if (row)
            faults += count_faults(field, row, field->string);
        else
            printf("%s.%s: unknown\n", name, field->string);
        faults += !row;
    }
    for (const cJSON *row = schema->child; row; row = row->next) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(row->string, "!"), row->string);
        if (strchr(row->string, '!') && !cJSON_GetObjectItemCaseSensitive(value, key)) {
            printf("%s.%s: missing\n", name, key);
            faults++;
        }
    }
    return faults;
}

/* Of the MPIJob in a file; -1: there is no parser. */
static int count_job_faults(const char *path)
{
    char file[1200];
    snprintf(file, sizeof file, "%s/tests/launcher/mpijob.json", getenv("WEFT_SOURCE_DIR"));
    char *text = child_read(file);
    cJSON *known = text ? cJSON_Parse(text) : NULL, *read = job_read_yaml(path);
    EXPECT(known, "%s: no schema", file);
    cJSON *job = read ? cJSON_DetachItemFromArray(read, 1) : NULL;
    int faults = -1;
    if (job) {
        cJSON_DeleteItemFromObjectCaseSensitive(job, "metadata");
        faults = count_faults(job, cJSON_GetObjectItemCaseSensitive(known, "schema"), "job");
    }
    cJSON_Delete(known);
    cJSON_Delete(read);
    cJSON_Delete(job);
    return faults;
}

/* The check itself finds what is wrong. */
static void expect_faults(const char *path, const char *was, const char *is)
{
    char *text = child_read(path), *at = text ? strstr(text, was) : NULL;
    FILE *file = fopen("faulty.yaml", "w");
    EXPECT(at && file, "%s: no %s", path, was);
    if (at && file)
        fprintf(file, "%.*s%s%s", (int)(at - text), text, is, at + strlen(was));
    EXPECT(!file || fclose(file) == 0, "faulty.yaml");
    EXPECT(count_job_faults("faulty.yaml") != 0, "%s passed", is);
}

/* Names and amounts of all forms. */
static void check_amounts(void)
{
    static const char *const images[] = {
        "localhost:5000/weft", "weft@sha256:0123456789abcdef0123456789abcdef",
        "reg-1.example/team/a_b__c.d--e:V1.0_x-y@sha512+b64:0123456789abcdef0123456789ABCDEF",
        "Host/weft"};
    static const char *const amounts[] = {"memory=512Gi",
                                          "memory=1.5e12",
                                          "memory=.5T",
                                          "memory=64000000000",
                                          "cpu=1500m",
                                          "cpu=1.",
                                          "cpu=0.5",
                                          "ephemeral-storage=10G",
                                          "hugepages-2Mi=2Gi",
                                          "nvidia.com/gpu=0",
                                          "nvidia.com/mig-1g.10gb=2"};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        expect_launch("kubernetes", "k", WORDS("--image", images[i]), 0, NULL);
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        expect_launch("kubernetes", "k", WORDS("--image", "i", "--resource", amounts[i]), 0, NULL);
    expect_launch("kubernetes", "k",
                  WORDS("--image", "i", "--user", "0", "--claim", "runs.team", "--pod",
                        "hostNetwork=true", "--pod", "priority=-5", "--pod", "hostname=\"1\""),
                  0, NULL);
    EXPECT(count_job_faults("k/job.yaml") <= 0, "a job that the schema refuses");
    static const char *const lines[] = {
        "\n          securityContext:\n            runAsUser: 0\n", "--allow-run-as-root",
        "\n          hostNetwork: true\n          priority: -5\n          hostname: \"1\"\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        job_expect_text("k/job.yaml", lines[i]);
    job_expect_no_text("k/job.yaml", "sshAuthMountPath");
}

/* The fields that --pod takes are the schema's, and of its kinds, but for the job's own. */
static void check_fields(void)
{
    static const char *const values[][2] = {
        {"object", "{}"}, {"string", "x"}, {"boolean", "true"}, {"integer", "1"}};
    char file[1200], pod[128];
    snprintf(file, sizeof file, "%s/tests/launcher/mpijob.json", getenv("WEFT_SOURCE_DIR"));
    char *text = child_read(file);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    const cJSON *at = cJSON_GetObjectItem(json, "schema");
    static const char *const path[] = {"spec", "mpiReplicaSpecs!", "*", "template", "spec"};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++)
        at = cJSON_GetObjectItemCaseSensitive(at, path[i]);
    EXPECT(at, "%s", file);
    for (const cJSON *f = at ? at->child : NULL; f; f = f->next) {
        const char *value = cJSON_IsArray(f) ? "[]" : "{}";
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            if (cJSON_IsString(f) && strcmp(f->valuestring, values[i][0]) == 0)
                value = values[i][1];
        snprintf(pod, sizeof pod, "%.*s=%s", (int)strcspn(f->string, "!"), f->string, value);
        if (strcmp(pod, "dnsPolicy=x") == 0 || strcmp(pod, "preemptionPolicy=x") == 0)
            continue; /* of few words */
        const bool own = strncmp(pod, "containers=", 11) == 0 || strncmp(pod, "volumes=", 8) == 0 ||
                         strncmp(pod, "restartPolicy=", 14) == 0 ||
                         strncmp(pod, "terminationGrace", 16) == 0;
        expect_launch("kubernetes", "fields", WORDS("--image", "i", "--dry-run", "--pod", pod),
                      own ? 2 : 0, own ? "the job has it" : NULL);
    }
    cJSON_Delete(json);
}

static void check_pods(void)
{
    expect_launch("kubernetes", "yes",
                  WORDS("--image", "i", "--nodes", "2", "--namespace", "team-a", "--queue", "gpus",
                        "--resource", "memory=512Gi", "--resource=rdma/hca=1", "--pod",
                        "nodeSelector={\"gpu\": \"h100\"}", "--pod",
                        "tolerations=[{\"key\": \"gpu\", \"operator\": \"Exists\", \"effect\": "
                        "\"\"}]",
                        "--pod", "runtimeClassName=\"nvidia.2\"", "--pod",
                        "imagePullSecrets=[{\"name\": \"registry\"}]", "--pod",
                        "schedulerName=high: \"#\nx: y", "--user", "1000"),
                  0, NULL);
    EXPECT(count_job_faults("yes/job.yaml") <= 0, "a job that the schema refuses");
    static const char *const lines[] = {
        ("\n  name: \"yes\"\n  namespace: \"team-a\"\n  labels:\n    kueue.x-k8s.io/queue-name: "
         "\"gpus\"\n"),
        "\n    schedulingPolicy:\n      queue: \"gpus\"\n",
        "\n                memory: \"512Gi\"\n                rdma/hca: \"1\"\n",
        "\n          nodeSelector: {\"gpu\":\"h100\"}\n",
        "\n          schedulerName: \"high: \\\"#\\nx: y\"\n",
        "\n            runAsUser: 1000\n",
        "\n  sshAuthMountPath: /etc/weft-keys\n",
        "podAntiAffinity"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        job_expect_text("yes/job.yaml", lines[i]);
    job_expect_no_text("yes/job.yaml", "--allow-run-as-root");
    /* Root's job, and one with GPUs. */
    expect_launch("kubernetes", "k",
                  WORDS("--image", "i", "--set", "device.kind=cuda", "--claim", "c", "--pod",
                        "affinity={\"nodeAffinity\": {\"preferred\": [{\"operator\": \"Gt\", "
                        "\"values\": [\"8\"]}]}}",
                        "--set", "device.num_threads=2"),
                  0, NULL);
    EXPECT(count_job_faults("k/job.yaml") <= 0, "a job that the schema refuses");
    job_expect_text("k/job.yaml", "--allow-run-as-root");
    job_expect_no_text("k/job.yaml", "podAntiAffinity");
    job_expect_text("k/job.yaml", "\n          affinity: {\"nodeAffinity\":");
    expect_faults("k/job.yaml", "  slotsPerWorker: ", "  slotsPerWorkers: ");
    expect_faults("k/job.yaml", "      replicas: 1\n", "      replicas: all\n");
    static const struct {
        const char *option, *value, *says;
    } rows[] = {
        {"--pod", "containers=[]", "the job has it"},
        {"--pod", "a-b=1", "pods have no such field"},
        {"--pod", "nodeSelektor={}", "no such field; did you mean nodeSelector?"},
        {"--pod", "a", "expected such as"},
        {"--pod", "tolerations=none", "expected a JSON array"},
        {"--pod", "nodeSelector=[]", "expected a JSON object"},
        {"--pod", "nodeSelector={\"gpu\": \"h100\"", "damaged JSON at its character 15"},
        {"--pod", "nodeSelector={\"gpu\": h100}", "damaged JSON at its character 9: \"h100}\""},
        {"--pod", "tolerations=[{}] x", "damaged JSON"},
        {"--pod", "hostNetwork=yes", "expected true or false"},
        {"--pod", "priority=1.5", "expected a whole number"},
        {"--pod", "schedulerName=1", "expected a text"},
        {"--pod", "nodeSelector={\"a\": \"x\", \"gpu.x/n\": 8}",
         "--pod nodeSelector.gpu.x/n: 8; expected a text in JSON's quotes of at most 63 letters"},
        {"--pod", "nodeSelector={\"gpu\": \"a b\"}", "--pod nodeSelector.gpu: \"a b\"; expected"},
        {"--pod", "nodeSelector={\"-gpu\": \"a\"}",
         "--pod nodeSelector.-gpu: \"a\"; expected a key"},
        {"--pod", "tolerations=[{\"key\": \"g p\"}]", "tolerations[0].key: \"g p\"; expected"},
        {"--pod", "tolerations=[{\"value\": \"a b\"}]", "tolerations[0].value: \"a b\"; expected"},
        {"--pod", "nodeName=Node 1", "--pod nodeName: \"Node 1\"; expected a name of"},
        {"--pod", "topologySpreadConstraints=[{\"topologyKey\": \"a b\"}]",
         "--pod topologySpreadConstraints[0].topologyKey: \"a b\"; expected"},
        {"--pod", "topologySpreadConstraints=[{\"labelSelector\": {\"matchLabels\": {\"a\": 1}}}]",
         "--pod topologySpreadConstraints[0].labelSelector.matchLabels.a: 1; expected a text"},
        {"--pod", "priorityClassName=High",
         "--pod priorityClassName: \"High\"; expected a name of"},
        {"--pod", "serviceAccountName=\"a_b\"", "--pod serviceAccountName: \"a_b\"; expected"},
        {"--pod", "runtimeClassName=-a", "--pod runtimeClassName: \"-a\"; expected"},
        {"--pod", "hostname=a.b", "--pod hostname: \"a.b\"; expected"},
        {"--pod", "dnsPolicy=Clusterfirst",
         "--pod dnsPolicy: \"Clusterfirst\"; expected ClusterFirst"},
        {"--pod", "imagePullSecrets=[\"registry\"]",
         "--pod imagePullSecrets[0]: \"registry\"; expected an object"},
        {"--pod", "imagePullSecrets=[{\"name\": 1}]",
         "--pod imagePullSecrets[0].name: 1; expected"},
        {"--pod", "tolerations=[{}, {\"operator\": \"exists\"}]",
         "--pod tolerations[1].operator: \"exists\"; expected Exists or Equal"},
        {"--pod", "tolerations=[{\"effect\": \"NoRun\"}]",
         "--pod tolerations[0].effect: \"NoRun\"; expected NoSchedule, PreferNoSchedule or "
         "NoExecute"},
        {"--pod", "tolerations=[{\"key\": true}]",
         "--pod tolerations[0].key: true; expected a text"},
        {"--pod",
         "affinity={\"nodeAffinity\": {\"requiredDuringSchedulingIgnoredDuringExecution\": "
         "{\"nodeSelectorTerms\": [{\"matchExpressions\": [{\"key\": \"a\", \"operator\": "
         "\"Is\"}]}]}}}",
         "nodeSelectorTerms[0].matchExpressions[0].operator: \"Is\"; expected In, NotIn, Exists, "
         "DoesNotExist, Gt or Lt"},
        {"--pod",
         "affinity={\"podAffinity\": {\"x\": [{\"labelSelector\": {\"matchExpressions\": "
         "[{\"operator\": \"Gt\"}]}}]}}",
         "--pod affinity.podAffinity.x[0].labelSelector.matchExpressions[0].operator: \"Gt\"; "
         "expected In, NotIn, Exists or DoesNotExist"},
        {"--pod", "affinity={\"nodeAffinity\": {\"values\": [\"8\", 8]}}",
         "--pod affinity.nodeAffinity.values[1]: 8; expected a text"},
        {"--resource", "memory", "expected such as --resource memory=512Gi"},
        {"--resource", "memory=1\n  evil: 2", "no amount"},
        {"--resource", "memory=abc", "no amount"},
        {"--resource", "memory=512GB", "512G (10^9) or 512Gi (2^30)"},
        {"--resource", "memory=512 Gi", "no amount"},
        {"--resource", "memory=-1Gi", "no amount"},
        {"--resource", "memory=512", "512 bytes are no memory"},
        {"--resource", "memory=512m", "0.512 bytes are no memory"},
        {"--resource", "cpu=1,5", "no amount"},
        {"--resource", "rdma/hca=1.5", "expected a whole number"},
        {"--resource", "rdma/hca=1Gi", "expected a whole number"},
        {"--resource", "gpu=1", "no resource is named so"},
        {"--resource", "nvidia.com/=1", "no resource is named so"},
        {"--resource", "NVIDIA.com/gpu=1", "no resource is named so"},
        {"--namespace", "a\nb", "no name that Kubernetes takes"},
        {"--namespace", "Team", "no name that Kubernetes takes; expected 1 to 63 of a-z"},
        {"--namespace", "a.b", "no name that Kubernetes takes"},
        {"--namespace", "a-", "no name that Kubernetes takes"},
        {"--queue", "a b", "no name that Kubernetes takes"},
        {"--queue", "", "no name that Kubernetes takes"},
        {"--claim", "My_Runs", "no name that Kubernetes takes"},
        {"--claim", "a..b", "no name that Kubernetes takes"},
        {"--env", "X=\xff", "not UTF-8"},
        {"--pod", "nodeName=\xff", "not UTF-8"},
        {"--user", "-1", "-1 is out of range: 0 to 2147483647"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_launch("kubernetes", "none", WORDS("--image", "i", rows[i].option, rows[i].value), 2,
                      rows[i].says);
    static const char *const images[] = {
        "",     "i:", ":1",   "/i",          "a//b", "i:t:u", "i@sha256:12",
        "Weft", "-i", "i:-t", "host:port/i", "a/b/", "a/B"};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        expect_launch("kubernetes", "none", WORDS("--image", images[i]), 2,
                      "no name that Kubernetes takes; expected such as registry");
    expect_launch("kubernetes", "none",
                  WORDS("--image", "i", "--resource", "cpu=1", "--resource", "cpu=2"), 2,
                  "given twice");
    expect_launch("slurm", "none", WORDS("--user", "0"), 2, "--user: of kubernetes jobs");
    EXPECT(access("none", F_OK) != 0, "a folder of a job that was refused");
}

int main(int argc, char **argv)
{
    job_enter();
    EXPECT(argc == 2, "needs the stand-in for Lustre");
    check_lustre(argv[1]);
    check_hosts();
    check_slots();
    check_kinds();
    check_site();
    check_setup();
    check_names();
    check_program();
    check_slurm();
    check_second();
    check_dry_run();
    check_pods();
    check_amounts();
    check_fields();
    job_leave();
    return expect_finish();
}
