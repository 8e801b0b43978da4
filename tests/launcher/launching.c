/* weft launch: what its job files say, that launchers get every path and argument as it is, that a
 * stopped Slurm job queues itself again, and that an mpirun job trains. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char tiny[] =
    "// blanks at the start, a tab\t, \"quotes\" and $(money) in a comment\n"
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 16, \"vocab_size\": 64},\n \"parallel\": {\"tensor_model_parallel_size\": 2},"
    "\n \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 3, "
    "\"lr_decay_style\": \"constant\"},\n"
    "\n \"data\": {\"mock_data\": true}}\n";

/* A run that quoting has to get right. */
static const char odd[] = "a run's \"$(touch oops)\" `touch oops` $HOME \\ *";

static char folder[32], path_of_fakes[128];

/* Exit code; the caller releases c. */
static int run(child *c, const char *const *args, const char *const *environment)
{
    child_run(c, args, environment);
    EXPECT(c->exit_code == 0 || child_is_line(c->err), "exit %d: \"%s\"", c->exit_code, c->err);
    return c->exit_code;
}

static void expect_code(const char *const *args, int code, const char *part)
{
    child c;
    const int got = run(&c, args, NULL);
    EXPECT(got == code, "%s %s: exit %d, not %d: %s%s", args[1], args[2], got, code, c.out, c.err);
    EXPECT(!part || strstr(c.err, part), "no \"%s\" in: %s", part, c.err);
    child_release(&c);
}

/* Runs another program. */
static int other(child *c, const char *program, const char *const *args,
                 const char *const *environment)
{
    child_program = program;
    child_run(c, args, environment);
    child_program = NULL;
    return c->exit_code;
}

static void expect_text(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && strstr(text, part), "%s: no \"%s\" in:\n%s", path, part,
           text ? text : "nothing");
    free(text);
}

static void expect_no_text(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && !strstr(text, part), "%s: \"%s\" in:\n%s", path, part, text ? text : "nothing");
    free(text);
}

static void expect_bash(const char *path)
{
    child c;
    const char *const args[] = {"-n", path, NULL};
    const int code = other(&c, "/bin/bash", args, NULL);
    EXPECT(code == 0, "bash -n %s: %s", path, c.err);
    child_release(&c);
}

static int count_lines(const char *path)
{
    char *text = child_read(path);
    int count = 0;
    for (const char *c = text; c && *c; c++)
        count += *c == '\n';
    free(text);
    return count;
}

/* A program that notes its name and arguments, a line each, and does what the script says. */
static void make_fake(const char *name, const char *script)
{
    char path[128], text[4096];
    snprintf(path, sizeof path, "fakes/%s", name);
    snprintf(text, sizeof text, "#!/bin/bash\nprintf '%%s\\n' %s \"$@\" >>'%s/said'\n%s\n", name,
             folder, script);
    EXPECT(child_write(path, text) && chmod(path, 0755) == 0, "%s", path);
}

static void make_fakes(void)
{
    mkdir("fakes", 0755);
    make_fake("mpirun", "exit 0");
    make_fake("sbatch", "exit 0");
    make_fake("kubectl", "exit 0");
    make_fake("scontrol", "exit 0");
    make_fake("srun", "exit ${FAKE_CODE:-0}");
    snprintf(path_of_fakes, sizeof path_of_fakes, "PATH=%s/fakes:/usr/bin:/bin", folder);
}

/* What the fakes noted since the last time; the caller's. */
static char *said(void)
{
    char *text = child_read("said");
    unlink("said");
    return text ? text : calloc(1, 1);
}

/* Whether the fakes got this word, as it is. */
static bool has_word(const char *text, const char *word)
{
    char line[1024];
    snprintf(line, sizeof line, "\n%s\n", word);
    return strstr(text, line) != NULL;
}

static void expect_training_words(const char *text, const char *name)
{
    char binary[1200], config[128], run_path[256];
    snprintf(binary, sizeof binary, "%s/weft", getenv("WEFT_BINARY_DIR"));
    snprintf(config, sizeof config, "%s/tiny.json", folder);
    snprintf(run_path, sizeof run_path, "%s/%s", folder, odd);
    const char *words[] = {binary,   "train",    config,  "--out",
                           run_path, "--resume", "--set", "train.lr=1e-3"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        EXPECT(has_word(text, words[i]), "%s did not get \"%s\" but:\n%s", name, words[i], text);
    EXPECT(access("oops", F_OK) != 0, "%s: a path was run as a command", name);
}

/* What it says starts the job, as a shell reads it. */
static void check_start_line(const char *const *args)
{
    const char *const env[] = {path_of_fakes, NULL};
    child c, shell;
    EXPECT(run(&c, args, NULL) == 0, "%s", c.err);
    const char *line = strstr(c.out, "\nstart: ");
    EXPECT(line, "no start in %s", c.out);
    if (line) {
        char *command = strndup(line + 8, strcspn(line + 8, "\n"));
        EXPECT(other(&shell, "/bin/bash", (const char *const[]){"-c", command, NULL}, env) == 0,
               "%s: %s", command, shell.err);
        child_release(&shell);
        free(command);
    }
    child_release(&c);
}

static void check_mpirun(void)
{
    const char *const env[] = {path_of_fakes, NULL};
    child c;
    char script[256], hosts[256];
    snprintf(script, sizeof script, "%s/job.sh", odd);
    snprintf(hosts, sizeof hosts, "%s/hostfile", odd);
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", odd, "--set",
                                      "train.lr=1e-3", NULL},
                0, NULL);
    expect_bash(script);
    expect_text(hosts, "localhost slots=2\n");
    EXPECT(other(&c, "/bin/bash", (const char *const[]){script, NULL}, env) == 0, "%s", c.err);
    child_release(&c);
    char *text = said();
    expect_training_words(text, "mpirun");
    EXPECT(has_word(text, "ppr:2:node") && has_word(text, "-n") && has_word(text, "2"), "%s", text);
    free(text);
    /* The same once more is this very job; another is not. */
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", odd, "--set",
                                      "train.lr=1e-3", NULL},
                0, NULL);
    check_start_line((const char *const[]){"launch", "mpirun", "tiny.json", "--out", odd, "--set",
                                           "train.lr=1e-3", NULL});
    text = said();
    expect_training_words(text, "mpirun");
    free(text);
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", odd, NULL}, 2,
                "--force");
    expect_text(script, "train.lr=1e-3");
    expect_code(
        (const char *const[]){"launch", "mpirun", "tiny.json", "--out", odd, "--force", NULL}, 0,
        NULL);
    expect_no_text(script, "train.lr=1e-3");
    /* Two nodes, by names or not. */
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two", "--nodes",
                                      "2", "--hosts", "n-1.x,n2", NULL},
                0, NULL);
    expect_text("two/hostfile", "n-1.x slots=1\nn2 slots=1\n");
    expect_text("two/job.sh", "ppr:1:node");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-b", "--nodes",
                                      "2", "--run", NULL},
                2, "--hosts");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-c", "--nodes",
                                      "2", "--hosts", "a", NULL},
                2, "names 1");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-c", "--nodes",
                                      "2", "--hosts", "a,-x", NULL},
                2, "no name");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-c", "--nodes",
                                      "2", "--hosts", "n1,N1", NULL},
                2, "N1 is there twice");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-c", "--nodes",
                                      "2", "--hosts", "n1,n11", NULL},
                0, NULL);
    /* What leaves dp open has one rank; with dp it goes. */
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-d", "--nodes",
                                      "2", "--mesh", "tp=1", NULL},
                2, "1 rank, which does not fill 2 nodes equally; --cluster FILE says");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "two-d", "--nodes",
                                      "2", "--mesh", "dp=2", "--hosts", "n1,n2", NULL},
                0, NULL);
}

/* What the fakes of this file begin with: where the ranks of this start leave their beats, and the
 * files of its run. */
#define FIND_RUN                                                                                   \
    "args=(\"$@\")\n"                                                                              \
    "while [ $# -gt 0 ]; do\n"                                                                     \
    "  if [ \"$1\" = --out ]; then run=$2; break; fi\n  shift\ndone\nset -- \"${args[@]}\"\n"

/* A fake mpirun whose first start loses a rank, on the last of its nodes, in step 4, and whose
 * later ones end with the code in FAKE_CODE, a step on. A node that the file "dead" has answers no
 * probe once there was a start, one in "absent" never does, and one in "slow" not the first. */
static void make_failing_mpirun(void)
{
    make_fake(
        "mpirun", FIND_RUN
        "while [ $# -gt 0 ]; do\n"
        "  if [ \"$1\" = --host ]; then\n"
        "    slow=slow$(cat steps 2>/dev/null)\n"
        "    if grep -qsxF \"$2\" $slow; then rm $slow; exit 1; fi\n"
        "    if grep -qsxF \"$2\" absent || { [ -e steps ] && grep -qsxF \"$2\" dead; }; then exit "
        "1; fi\n"
        "    exit 0\n"
        "  fi\n"
        "  if [ \"$1\" = --hostfile ]; then hosts=$2; fi\n"
        "  shift\ndone\n"
        "cat \"$hosts\" >>starts; echo >>starts\n"
        "step=$(cat steps 2>/dev/null || echo 3)\n"
        "echo '0000000001 steps' >\"$run/.alive\"\n"
        "echo \"{\\\"step\\\": $step, \\\"loss\\\": 1}\" >\"$run/metrics.jsonl\"\n"
        "if [ ! -e steps ]; then\n"
        "  echo 5 >steps; node=$(tail -n 1 \"$hosts\"); node=${node%% *}\n"
        "  echo \"mpirun noticed that process rank 1 with PID 7 on node ${node%%.*} exited on "
        "signal 9 (Killed).\" >&2\n"
        "  exit 137\nfi\n"
        "exit \"${FAKE_CODE:-0}\"");
}

typedef struct fault {
    const char *out, *hosts, *spares;
    const char *dead, *absent, *slow; /* NULL: none */
    const char *code;                 /* of later starts */
    int wanted;
    const char *starts, *says;
} fault;

static void write_names(const char *path, const char *names)
{
    unlink(path);
    EXPECT(!names || child_write(path, names), "%s", path);
}

/* What a job of two nodes does about a fault. */
static void check_fault(const fault *f)
{
    const char *args[] = {"launch",
                          "mpirun",
                          "tiny.json",
                          "--out",
                          f->out,
                          "--mesh",
                          "dp=2,tp=1",
                          "--nodes",
                          "2",
                          "--hosts",
                          f->hosts,
                          "--set",
                          "reliability.max_restarts=6",
                          "--set",
                          "reliability.restart_delay_s=0",
                          "--spares",
                          f->spares,
                          NULL};
    char script[64], fake_code[32];
    child c;
    expect_code(args, 0, NULL);
    snprintf(script, sizeof script, "%s/job.sh", f->out);
    snprintf(fake_code, sizeof fake_code, "FAKE_CODE=%s", f->code);
    const char *const env[] = {path_of_fakes, fake_code, NULL};
    expect_bash(script);
    unlink("starts");
    unlink("steps");
    write_names("dead", f->dead);
    write_names("absent", f->absent);
    write_names("slow", f->slow); /* at one look each before the first start and the next */
    write_names("slow5", f->slow);
    const int got = other(&c, "/bin/bash", (const char *const[]){script, NULL}, env);
    EXPECT(got == f->wanted && strstr(c.err, f->says), "%s: exit %d: %s", f->out, got, c.err);
    child_release(&c);
    char *text = child_read("starts");
    EXPECT(strcmp(text ? text : "", f->starts) == 0, "%s started on:\n%s", f->out, text);
    free(text);
    free(said());
}

static void check_restarts(void)
{
#define A "a slots=1\n"
#define B "b.x slots=1\n"
#define C "c slots=1\n"
    static const fault faults[] = {
        {"spared", "a,b.x,c", "1", NULL, NULL, NULL, "0", 0, A B "\n" A C "\n",
         "weft: node b.x is left out: a rank on it failed\n"},
        {"same", "a,b.x", "0", NULL, NULL, "b.x\n", "0", 0, A B "\n" A B "\n",
         "weft: rank 1 on b was killed by signal 9 (Killed): the job ended with exit code 137 "
         "after "
         "step 3: it is started again in 0 s "
         "(1 of 6, reliability.max_restarts)\n"},
        {"fewer", "a,b.x", "0", "b.x\n", NULL, NULL, "0", 0, A B "\n" A "\n",
         "weft: goes on with 1 of 2 nodes: dp 2 -> 1, the global batch stays\n"},
        {"none", "a,b.x", "0", "b.x\na\n", NULL, NULL, "0", 137, A B "\n",
         "weft: no mesh fits the nodes that are left: none\n"},
        {"never", "a,b.x", "0", NULL, "b.x\na\n", NULL, "0", 5, "",
         "weft: no mesh fits the nodes that are left: none\n"},
        /* A node, and then the spare in its place, that never answered. */
        {"unheard", "a,b.x,c,d", "2", NULL, "b.x\nc\n", NULL, "0", 0,
         A "d slots=1\n\n" A "d slots=1\n\n", "weft: node c is left out: it does not answer\n"},
        {"config", "a,b.x", "0", NULL, NULL, NULL, "2", 2, A B "\n" A B "\n",
         "started again in 0 s (1 of 6"},
        {"loop", "a,b.x", "0", NULL, NULL, NULL, "137", 137,
         A B "\n" A B "\n" A B "\n" A B "\n" A B "\n",
         "after step 5, 4 times in a row and alike: it is not started again\n"},
    };
    make_failing_mpirun();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        check_fault(&faults[i]);
    make_fake("mpirun", "exit 0");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "few", "--nodes",
                                      "2", "--hosts", "a,b", "--spares", "1", "--set",
                                      "reliability.max_restarts=1", NULL},
                2, "names 2, where the job has 2 nodes and 1 to spare");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "few", "--nodes",
                                      "2", "--hosts", "a,b,c", "--spares", "1", NULL},
                2, "reliability.max_restarts");
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "few", "--spares",
                                      "1", NULL},
                2, "--hosts has to name them");
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "few", "--spares",
                                      "1", NULL},
                2, "--spares: of mpirun jobs");
}

/* A start that no launcher ends, or that looks so. */
typedef struct hung {
    const char *kind, *restarts;
    const char *does; /* the fake launcher's first start; later ones end well */
    int wanted;
    const char *says; /* NULL: that nothing is killed */
} hung;

#define NOTICES                                                                                    \
    "echo 'mpirun noticed that process rank 0 with PID 7 on node a exited on signal 9 (Killed).' " \
    ">&2\necho more >&2\n"
#define JUDGES                                                                                     \
    "echo '0000000001 steps' >\"$run/.alive\"\nmkdir -p \"$run/flight\"\n"                         \
    "echo '{\"by_rank\": 0, \"missing\": [1], \"nodes\": [\"b\"], \"text\": \"\"}' "               \
    ">\"$run/flight/verdict.json\"\n"

static const hung hungs[] = {
    {"mpirun", "0", NOTICES "exec sleep 1000", 137,
     "\nmore\nweft: mpirun did not end within 20 s of that: killed\n"},
    {"mpirun", "0",
     "mkdir -p \"$run/flight\"\necho '{\"missing\": [2, 0], \"nodes\": [\"a\", \"a\"], "
     "\"place\": \"in step 7; rank 1 waited\", \"text\": \"\"}' >\"$run/flight/verdict.json\"\n"
     "ruler=$(printf %074d 0 | tr 0 -)\n"
     "{ echo $ruler; echo \"Primary job  terminated normally, but 1\"; echo other; echo $ruler\n"
     "echo word; echo $ruler\n" NOTICES
     "{ echo $ruler; echo '; the job ends (weft inspect --flight '\n"
     "echo $ruler; echo c; echo $ruler; } >&2; } >&2\nexit 137",
     137,
     "word\n; the job ends (weft inspect --flight \nweft: rank 0 on a was killed by signal 9 "
     "(Killed) in step 7; rank 1 waited: the "
     "job ended with exit code 137\n"},
    {"mpirun", "1", "echo '0000000001 steps' >\"$run/.alive\"\n" NOTICES "exec sleep 1000", 0,
     "the job ended with exit code 137 after step 0: it is started again"},
    {"mpirun", "0",
     "exec 8>\"$run/.alive\"\nflock 8\necho '0000000001 steps' >&8\nsleep 3\n"
     "exec 8>&-\nexec sleep 1000",
     137, "weft: rank 0 is dead, and mpirun did not end: killed\n"},
    /* The ranks of daemons that have detached themselves are no children of mpirun; and one whose
     * beat stands still, but that has its lock. */
    {"mpirun", "0",
     "exec 9<> <(:)\n"
     "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do\n"
     "  printf '%010d steps\\n' $i >\"$run/.alive\"\n  read -t 2 <&9\ndone\nexit 0",
     0, NULL},
    {"mpirun", "0",
     "exec 8>\"$run/.alive\" 9<> <(:)\nflock 8\necho '0000000001 steps' >&8\n"
     "read -t 25 <&9\nexit 0",
     0, NULL},
    {"mpirun", "0", JUDGES "exec sleep 1000", 9,
     "weft: mpirun did not end within 10 s of the verdict: killed\n"},
    {"mpirun", "1", "echo 'An ORTE daemon has unexpectedly failed after launch' >&2\nexit 1", 0,
     "the job ended with exit code 5 after step 0: it is started again"},
    {"slurm", "0", JUDGES "exec sleep 1000", 9,
     "weft: no end of the step on b: the job is queued "},
};
enum { NUM_HUNGS = sizeof hungs / sizeof *hungs };

static void start_hung(int i, child *c)
{
    const hung *h = &hungs[i];
    const bool by_slurm = strcmp(h->kind, "slurm") == 0;
    char setting[64], out[16], script[32];
    const char *const env[] = {path_of_fakes, "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=list",
                               "TMPDIR=/tmp", NULL};
    snprintf(setting, sizeof setting, "reliability.max_restarts=%s", h->restarts);
    snprintf(out, sizeof out, "hung-%d", i);
    snprintf(script, sizeof script, "%s/job.%s", out, by_slurm ? "sbatch" : "sh");
    expect_code((const char *const[]){"launch", h->kind, "tiny.json", "--out", out, "--set",
                                      setting, "--set", "reliability.restart_delay_s=0", NULL},
                0, NULL);
    expect_bash(script);
    child_program = "/bin/bash";
    EXPECT(child_start(c, (const char *const[]){script, NULL}, env), "no bash");
    child_program = NULL;
}

static void make_hanging(void)
{
    char text[4000];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   FIND_RUN "if [ -e \"$run/hung\" ]; then exit 0; fi\n"
                                            "touch \"$run/hung\"\ncase $run in\n");
    for (int i = 0; i < NUM_HUNGS; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "*/hung-%d)\n%s\n;;\n", i,
                                 hungs[i].does);
    snprintf(text + used, sizeof text - used, "esac");
    make_fake("mpirun", text);
    make_fake("srun", text);
    make_fake("scontrol", "if [ \"$2\" = hostnames ]; then echo a; echo b; fi");
    make_fake("squeue", "echo 7.0; echo 7.batch");
    make_fake("scancel", "exit 0");
}

/* A launcher that waits for what is dead is ended; one whose ranks live is not. All at once. */
static void check_hung(void)
{
    child children[NUM_HUNGS];
    make_hanging();
    for (int i = 0; i < NUM_HUNGS; i++)
        start_hung(i, &children[i]);
    for (int i = 0; i < NUM_HUNGS; i++) {
        const hung *h = &hungs[i];
        child *c = &children[i];
        if (!child_wait(c, 120)) {
            EXPECT(false, "hung-%d goes on", i);
            child_kill(c);
        }
        EXPECT(c->exit_code == h->wanted &&
                   (h->says ? strstr(c->err, h->says) != NULL : !strstr(c->err, "killed")),
               "hung-%d: exit %d: %s", i, c->exit_code, c->err);
        EXPECT(!strstr(c->err, "Primary job"), "hung-%d: %s", i, c->err);
        child_release(c);
    }
    char *text = said();
    EXPECT(strstr(text, "\nscancel\n--signal=KILL\n7.0\n") && !strstr(text, "7.batch") &&
               strstr(text, "\nupdate\nJobId=7\nReqNodeList=a\n") &&
               strstr(text, "\nrequeue\n7\n") && strstr(text, "\nExcNodeList=b\n"),
           "%s", text);
    free(text);
    make_fake("mpirun", "exit 0");
    make_fake("scontrol", "exit 0");
}

/* The batch script with steps that a signal ends: `starts` of them. */
static void check_slurm_ends(const char *restarts, const char *does, int wanted, int starts,
                             const char *says)
{
    const char *const env[] = {path_of_fakes, "SLURM_JOB_ID=123", NULL};
    char setting[64], text[1024];
    child c;
    int found = 0;
    snprintf(setting, sizeof setting, "reliability.max_restarts=%s", restarts);
    snprintf(text, sizeof text, FIND_RUN "echo x >>ends; ends=$(wc -l <ends)\n%s", does);
    unlink("ends");
    make_fake("srun", text);
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "again", "--force",
                                      "--set", setting, "--set", "reliability.restart_delay_s=0",
                                      NULL},
                0, NULL);
    expect_bash("again/job.sbatch");
    const int code = other(&c, "/bin/bash", (const char *const[]){"again/job.sbatch", NULL}, env);
    EXPECT(code == wanted && strstr(c.err, says), "exit %d: %s", code, c.err);
    child_release(&c);
    char *words = said();
    for (const char *at = words; (at = strstr(at, "srun\n")); at++)
        found++;
    EXPECT(found == starts && !strstr(words, "requeue"), "%d starts: %s", found, words);
    free(words);
    make_fake("srun", "exit 0");
}

static void check_slurm_restarts(void)
{
    check_slurm_ends("8", "echo '0000000001 steps' >\"$run/.alive\"; exit 137", 137, 4,
                     "after step 0, 4 times in a row and alike");
    check_slurm_ends("0", "echo '0000000001 steps' >\"$run/.alive\"; exit 139", 139, 1, "");
    /* Before the first step, whatever max_restarts says. */
    check_slurm_ends("0", "[ $ends -lt 3 ] && exit 139; exit 0", 0, 3,
                     "weft: the start ended with exit code 139 before its first step: it is tried "
                     "again in 0 s (2 of 5)\n");
    check_slurm_ends("0", "exit 139", 139, 6, "(5 of 5)\n");
}

/* What leaves no time to train would be queued for ever. */
static void check_times(void)
{
    static const struct {
        const char *time, *says; /* NULL: it is taken */
    } rows[] = {
        {"8 h", "HH:MM:SS"},          {"00:00:00", "too short"},  {"00:06:00", "too short"},
        {"00:06:01", NULL},           {"99:59:59", NULL},         {"1-00:00:00", NULL},
        {"0-00:02:00", "too short"},  {"1-24:00:00", "HH:MM:SS"}, {"25:61:00", "HH:MM:SS"},
        {"08:00:60", "HH:MM:SS"},     {"08:00", "HH:MM:SS"},      {"08:00:00:00", "HH:MM:SS"},
        {"1-2-00:00:00", "HH:MM:SS"}, {"-1:00:00", "HH:MM:SS"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "times",
                                          "--force", "--time", rows[i].time, NULL},
                    rows[i].says ? 2 : 0, rows[i].says);
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "times", "--force",
                                      "--time", "00:10:00", "--set", "train.stop_timeout_s=600",
                                      NULL},
                2, "600 s before its end");
}

static void check_slurm_text(void)
{
    char script[256];
    snprintf(script, sizeof script, "%s/job.sbatch", odd);
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", odd, "--nodes", "2",
                                      "--set", "train.lr=1e-3", "--set", "train.stop_timeout_s=90",
                                      "--set", "device.num_threads=3", "--time", "08:00:00", NULL},
                0, NULL);
    expect_bash(script);
    static const char *const lines[] = {
        "\n#SBATCH --nodes=2\n",
        "\n#SBATCH --ntasks-per-node=1\n",
        "\n#SBATCH --cpus-per-task=3\n",
        "\n#SBATCH --time=08:00:00\n",
        "\n#SBATCH --signal=B:USR1@90\n",
        "\n#SBATCH --requeue\n",
        "\n#SBATCH --open-mode=append\n",
        "scancel --batch --signal=INT",
        "\nexport SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}\n",
        "srun --mpi=pmix ",
        "\n#SBATCH --job-name=a-run-s-touch-oops-touch-oops-home\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_text(script, lines[i]);
    expect_no_text(script, "gpus-per-node");
    expect_code(
        (const char *const[]){"launch", "slurm", "tiny.json", "--out", "s", "--image", "x", NULL},
        2, "kubernetes");
}

static bool wait_for_file(const char *path)
{
    for (int i = 0; i < 1000 && access(path, F_OK) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return access(path, F_OK) == 0;
}

/* The batch script with a step that ends by itself, or at a signal that the script gets. */
static void check_step(const char *code, int to_send, const char *step, int wanted, bool requeued)
{
    char script[256], fake_code[32];
    child c;
    snprintf(script, sizeof script, "%s/job.sbatch", odd);
    snprintf(fake_code, sizeof fake_code, "FAKE_CODE=%s", code);
    const char *const env[] = {path_of_fakes, fake_code, "SLURM_JOB_ID=123", NULL};
    make_fake("srun", step);
    unlink("ready");
    child_program = "/bin/bash";
    EXPECT(child_start(&c, (const char *const[]){script, NULL}, env), "no bash");
    child_program = NULL;
    if (to_send) {
        EXPECT(wait_for_file("ready"), "the step did not start");
        kill(c.pid, to_send);
    }
    if (!child_wait(&c, 30)) {
        EXPECT(false, "the batch script goes on after signal %d", to_send);
        child_kill(&c);
    }
    char *text = said();
    EXPECT(c.exit_code == wanted, "a step of code %s: exit %d, not %d: %s", code, c.exit_code,
           wanted, c.err);
    EXPECT((strstr(text, "\nrequeue\n123\n") != NULL) == requeued, "code %s, signal %d: %s", code,
           to_send, text);
    if (!to_send)
        expect_training_words(text, "srun");
    free(text);
    child_release(&c);
}

static void check_slurm_runs(void)
{
    static const char waits[] =
        "trap 'kill $sleeper; exit $FAKE_CODE' USR1\nsleep 30 & sleeper=$!\n"
        "touch ready\nwait $sleeper\nexit 1";
    check_step("0", 0, "exit $FAKE_CODE", 0, false);
    check_step("2", 0, "exit $FAKE_CODE", 2, false);
    check_step("75", 0, "exit $FAKE_CODE", 0, true);
    check_step("137", 0, FIND_RUN "echo '1 steps' >\"$run/.alive\"; exit $FAKE_CODE", 137, false);
    check_step("75", SIGUSR1, waits, 0, true);
    check_step("137", SIGUSR1, waits, 0, true); /* srun killed who was still ending */
    check_step("6", SIGUSR1, waits, 6, false);  /* it could not save */
    check_step("75", SIGTERM, waits, 75, false);
    check_step("75", SIGINT, waits, 75, false);
    make_fake("srun", "exit 0");
}

/* A field of a parsed document: "spec.slotsPerWorker", numbers are places in arrays. */
static const cJSON *field(const cJSON *json, const char *path)
{
    while (json && *path) {
        char key[128];
        const size_t bytes = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)bytes, path);
        json = cJSON_IsArray(json) ? cJSON_GetArrayItem(json, atoi(key))
                                   : cJSON_GetObjectItemCaseSensitive(json, key);
        path += bytes + (path[bytes] == '/');
    }
    return json;
}

static void expect_field(const cJSON *json, const char *path, const char *text, double number)
{
    const cJSON *f = field(json, path);
    if (text)
        EXPECT(f && cJSON_IsString(f) && strcmp(f->valuestring, text) == 0,
               "%s: \"%s\", not \"%s\"", path, f && f->valuestring ? f->valuestring : "?", text);
    else
        EXPECT(f && cJSON_IsNumber(f) && f->valuedouble == number, "%s: not %g", path, number);
}

static bool has_item(const cJSON *array, const char *text)
{
    for (const cJSON *i = array ? array->child : NULL; i; i = i->next)
        if (i->valuestring && strcmp(i->valuestring, text) == 0)
            return true;
    return false;
}

static void expect_bash_text(const cJSON *text)
{
    EXPECT(text && cJSON_IsString(text) && child_write("script", text->valuestring), "no script");
    expect_bash("script");
}

/* By a parser, where python3 has one. */
/* The launcher's container is started again after any failure: what it would meet again it does not
 * try. */
static void check_pod(const cJSON *script)
{
    static const struct {
        const char *code;
        int starts;
    } rows[] = {{"2", 1}, {"8", 1}, {"5", 2}};
    EXPECT(script && child_write("pod.sh", script->valuestring), "no script");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64], ended[64], command[64];
        int starts = 0;
        snprintf(name, sizeof name, "HOSTNAME=test%d-%s", (int)getpid(), rows[i].code);
        snprintf(ended, sizeof ended, "/dev/shm/weft-ended-%s", strchr(name, '=') + 1);
        snprintf(command, sizeof command, "echo x >>pod-%s; exit %s", rows[i].code, rows[i].code);
        for (int k = 0; k < 2; k++) {
            child c;
            const int code =
                other(&c, "/bin/bash", (const char *const[]){"pod.sh", "sh", "-c", command, NULL},
                      (const char *const[]){name, NULL});
            EXPECT(code == atoi(rows[i].code), "code %s: exit %d: %s", rows[i].code, code, c.err);
            child_release(&c);
        }
        snprintf(command, sizeof command, "pod-%s", rows[i].code);
        starts = count_lines(command);
        EXPECT(starts == rows[i].starts, "code %s: %d starts", rows[i].code, starts);
        unlink(ended);
    }
}

static void check_yaml(const char *path)
{
    child c;
    const char *const args[] = {
        "python3", "-c",
        "import sys, json\ntry:\n  import yaml\nexcept ImportError:\n  sys.exit(77)\n"
        "print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))",
        path, NULL};
    const int code = other(&c, "/usr/bin/env", args, NULL);
    if (code == 127 || code == 77 || code == 126) {
        printf("no YAML parser here\n");
        child_release(&c);
        return;
    }
    cJSON *json = cJSON_Parse(c.out);
    EXPECT(code == 0 && json, "%s: no YAML: %s", path, c.err);
    expect_field(json, "0/kind", "ConfigMap", 0);
    expect_field(json, "0/data/config.json", tiny, 0);
    expect_bash_text(field(json, "0/data/job.sh"));
    check_pod(field(json, "0/data/job.sh"));
    expect_field(json, "1/spec/launcherCreationPolicy", "WaitForWorkersReady", 0);
    expect_field(json, "1/spec/runPolicy/ttlSecondsAfterFinished", NULL, 600);
    expect_field(json, "1/apiVersion", "kubeflow.org/v2beta1", 0);
    expect_field(json, "1/kind", "MPIJob", 0);
    expect_field(json, "1/spec/slotsPerWorker", NULL, 1);
    expect_field(json, "1/spec/mpiReplicaSpecs/Launcher/replicas", NULL, 1);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/replicas", NULL, 2);
    char run_path[256], escaped[512];
    snprintf(run_path, sizeof run_path, "%s/%s", folder, odd);
    size_t used = 0;
    for (const char *p = run_path; *p; p++) {
        escaped[used++] = *p;
        if (*p == '$')
            escaped[used++] = '$';
    }
    escaped[used] = '\0';
    const cJSON *launcher =
        field(json, "1/spec/mpiReplicaSpecs/Launcher/template/spec/containers/0");
    const cJSON *command = field(launcher, "command");
    EXPECT(has_item(command, escaped), "no %s in the command", escaped);
    EXPECT(has_item(command, "weft") && has_item(command, "--resume") && has_item(command, "2"),
           "the launcher's command");
    expect_field(launcher, "volumeMounts/2/mountPath", run_path, 0);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/template/spec/containers/0/image",
                 "registry.example/weft:1", 0);
    expect_field(json, "1/spec/mpiReplicaSpecs/Worker/template/spec/volumes/2/hostPath/path",
                 run_path, 0);
    cJSON_Delete(json);
    child_release(&c);
}

static void check_kubernetes(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/job.yaml", odd);
    expect_code((const char *const[]){"launch", "kubernetes", "tiny.json", "--out", odd, NULL}, 2,
                "--image");
    expect_code((const char *const[]){"launch", "kubernetes", "tiny.json", "--out", odd, "--image",
                                      "registry.example/weft:1", "--nodes", "2", NULL},
                0, NULL);
    static const char *const lines[] = {
        "\napiVersion: kubeflow.org/v2beta1\nkind: MPIJob\n",
        "\n  slotsPerWorker: 1\n",
        "\n    Launcher:\n      replicas: 1\n      restartPolicy: OnFailure\n",
        "\n    Worker:\n      replicas: 2\n",
        "            image: \"registry.example/weft:1\"\n",
        "\n  config.json: |2+\n    // blanks",
        "            - \"--resume\"\n",
        "              mountPath: /dev/shm\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_text(path, lines[i]);
    expect_no_text(path, "nvidia.com/gpu");
    check_yaml(path);
    expect_code((const char *const[]){"launch", "kubernetes", "tiny.json", "--out", "k", "--image",
                                      "i", "--claim", "runs", "--set", "device.kind=cuda", "--set",
                                      "data.mock_data=false", "--set", "data.data_path=some/data",
                                      NULL},
                0, NULL);
    expect_text("k/job.yaml", "                nvidia.com/gpu: 2\n");
    expect_text("k/job.yaml", "claimName: \"runs\"\n");
    expect_text("k/job.yaml", "/some\"\n              readOnly: true\n");
    EXPECT(mkdir("a:b", 0755) == 0, "a:b");
    expect_code((const char *const[]){"launch", "kubernetes", "tiny.json", "--out", "a:b",
                                      "--image", "i", NULL},
                2, "colon");
    expect_code((const char *const[]){"launch", "kubernetes", "tiny.json", "--out", "k2", "--image",
                                      "i j", NULL},
                2, "no name of an image");
}

static void check_start(void)
{
    static const struct {
        const char *kind, *words;
    } kinds[] = {{"slurm", "sbatch\n"}, {"kubernetes", "kubectl\napply\n-f\n"}};
    const char *const with[] = {path_of_fakes, NULL}, *const without[] = {"PATH=/nowhere", NULL};
    child c;
    for (size_t i = 0; i < 2; i++) {
        const char *args[] = {"launch", kinds[i].kind,        "tiny.json", "--out", "started",
                              "--run",  i ? "--image" : NULL, "img",       NULL};
        EXPECT(run(&c, args, without) == 5 && strstr(c.err, "not on PATH"), "%s", c.err);
        child_release(&c);
        EXPECT(run(&c, args, with) == 0, "%s", c.err);
        char *text = said();
        EXPECT(strncmp(text, kinds[i].words, strlen(kinds[i].words)) == 0 &&
                   strstr(text, "/started/job."),
               "%s", text);
        free(text);
        child_release(&c);
    }
    const char *args[] = {"launch", "mpirun", "tiny.json", "--out", "started", "--run", NULL};
    EXPECT(run(&c, args, without) == 5 && strstr(c.err, "not on PATH"), "%s", c.err);
    child_release(&c);
    EXPECT(run(&c, args, with) == 0, "%s", c.err);
    char *text = said();
    EXPECT(strncmp(text, "mpirun\n", 7) == 0 && has_word(text, "--resume"), "%s", text);
    free(text);
    child_release(&c);
}

static void check_cluster(void)
{
    char cluster[1200], program[1200];
    snprintf(cluster, sizeof cluster, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    snprintf(program, sizeof program, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "c", "--cluster",
                                      cluster, "--nodes", "2", "--set",
                                      "train.global_batch_size=16", NULL},
                0, NULL);
    expect_text("c/job.sbatch", "\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
                                "#SBATCH --gpus-per-node=8\n#SBATCH --exclusive\n");
    expect_text("c/job.sbatch", "device.kind=cuda");
    /* As many nodes as the mesh needs; a mesh that fills none of them evenly. */
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "c2", "--cluster",
                                      cluster, "--mesh", "tp=2,dp=12", "--set",
                                      "train.global_batch_size=24", NULL},
                0, NULL);
    expect_text("c2/job.sbatch", "\n#SBATCH --nodes=3\n");
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "c3", "--cluster",
                                      cluster, "--mesh", "tp=2,dp=6", "--set",
                                      "train.global_batch_size=24", NULL},
                2, "do not fill");
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "c4", "--cluster",
                                      cluster, "--mesh", "tp=2,dp=10", "--set",
                                      "train.global_batch_size=20", NULL},
                2, "do not fill");
    /* What does not fit is not written. */
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "big", "--cluster",
                                      cluster, "--set", "model.hidden_size=65536", "--set",
                                      "model.num_attention_heads=512", "--set",
                                      "model.num_layers=96", NULL},
                3, NULL);
    EXPECT(access("big", F_OK) != 0, "a folder of a job that does not fit");
    /* The program that runs nothing writes the same job, of another program. */
    child_program = program;
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "p", "--cluster",
                                      cluster, "--nodes", "2", "--set",
                                      "train.global_batch_size=16", "--json", NULL},
                0, NULL);
    child_program = NULL;
    expect_text("p/job.sbatch", "    weft train ");
}

static void check_mistakes(void)
{
    expect_code((const char *const[]){"launch", "slrum", "tiny.json", "--out", "m", NULL}, 2,
                "did you mean slurm");
    expect_code((const char *const[]){"launch", "slurm", "--out", "m", NULL}, 2, "CONFIG");
    expect_code((const char *const[]){"launch", "slurm", "none.json", "--out", "m", NULL}, 2,
                "none.json");
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "tiny.json", NULL},
                6, "not a folder");
    expect_code(
        (const char *const[]){"launch", "slurm", "tiny.json", "--out", "m", "--nodes", "3", NULL},
        2, "do not fill");
    expect_code((const char *const[]){"launch", "slurm", "tiny.json", "--out", "m", "--set",
                                      "train.lrr=1", NULL},
                2, "train.lr");
    EXPECT(access("m", F_OK) != 0, "a folder of a job that was refused");
}

/* The script as a user starts it. */
static void check_training(void)
{
    const char *const env[] = {"OMPI_MCA_btl_vader_single_copy_mechanism=none", NULL};
    child c;
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "real run", "--set",
                                      "lr_decay_style=constant", NULL},
                0, NULL);
    EXPECT(other(&c, "/bin/bash", (const char *const[]){"real run/job.sh", NULL}, env) == 0, "%s",
           c.err);
    child_release(&c);
    EXPECT(count_lines("real run/metrics.jsonl") == 3, "%d steps",
           count_lines("real run/metrics.jsonl"));
    EXPECT(access("real run/checkpoints/step-3", F_OK) == 0, "no checkpoint");
    /* SIGTERM leaves the ranks the time to save. */
    expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "real run",
                                      "--force", "--set", "train.train_iters=100000", "--set",
                                      "lr_decay_style=constant", NULL},
                0, NULL);
    child_program = "/bin/bash";
    EXPECT(child_start(&c, (const char *const[]){"real run/job.sh", NULL}, env), "no bash");
    child_program = NULL;
    for (int i = 0; i < 1000 && count_lines("real run/metrics.jsonl") < 10; i++)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    EXPECT(count_lines("real run/metrics.jsonl") >= 10, "it did not go on");
    kill(c.pid, SIGTERM);
    if (!child_wait(&c, 60)) {
        EXPECT(false, "not stopped");
        child_kill(&c);
    }
    EXPECT(c.exit_code == 75, "a stopped job ends with %d", c.exit_code);
    char *latest = child_read("real run/checkpoints/latest");
    EXPECT(latest && strncmp(latest, "step-3\n", 7) != 0 && strcmp(latest, "step-3") != 0,
           "nothing was saved after %s: %s", latest ? latest : "?", c.err);
    free(latest);
    child_release(&c);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* A stop that comes before there are ranks; and a script that is killed, with whom they end. */
static void check_early_and_killed(void)
{
    static const char *const env[] = {"OMPI_MCA_btl_vader_single_copy_mechanism=none", NULL};
    static const long after_ms[] = {30, 250, 0};
    for (int i = 0; i < 3; i++) {
        child c;
        expect_code((const char *const[]){"launch", "mpirun", "tiny.json", "--out", "early",
                                          "--force", "--set", "train.train_iters=1000000", NULL},
                    0, NULL);
        child_program = "/bin/bash";
        EXPECT(child_start(&c, (const char *const[]){"early/job.sh", NULL}, env), "no bash");
        child_program = NULL;
        const int before = count_lines("early/metrics.jsonl");
        for (int k = 0;
             after_ms[i] == 0 && k < 1000 && count_lines("early/metrics.jsonl") < before + 10; k++)
            pause_ms(20);
        pause_ms(after_ms[i]);
        kill(c.pid, after_ms[i] ? SIGTERM : SIGKILL);
        if (!child_wait(&c, 60)) {
            EXPECT(false, "not stopped %ld ms after the start", after_ms[i]);
            child_kill(&c);
        }
        EXPECT(c.exit_code == (after_ms[i] ? 75 : 128 + SIGKILL), "exit %d: %s", c.exit_code,
               c.err);
        child_release(&c);
    }
    int steps = -1;
    for (int k = 0; k < 30 && steps != count_lines("early/metrics.jsonl"); k++) {
        steps = count_lines("early/metrics.jsonl");
        pause_ms(1000);
    }
    EXPECT(steps > 0 && steps == count_lines("early/metrics.jsonl"), "its ranks train on");
}

/* A path's newline begins no line of the script, where Slurm might read it as an order. */
static void check_newline(void)
{
    static const char run[] = "line\n#SBATCH --evil";
    child c;
    char path[64];
    child_run(&c, (const char *[]){"launch", "slurm", "tiny.json", "--out", run, NULL}, NULL);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    child_release(&c);
    snprintf(path, sizeof path, "%s/job.sbatch", run);
    expect_no_text(path, "\n#SBATCH --evil");
    expect_bash(path);
    free(said());
    const int code =
        other(&c, "/bin/bash", (const char *[]){path, NULL}, (const char *[]){path_of_fakes, NULL});
    char *got = said();
    EXPECT(code == 0 && strstr(got, "line\n#SBATCH --evil\n--resume\n"), "exit %d: %s: %s", code,
           got, c.err);
    free(got);
    child_release(&c);
}

int main(void)
{
    if (!child_folder_enter(folder)) {
        perror(folder);
        return 1;
    }
    EXPECT(child_write("tiny.json", tiny), "tiny.json");
    make_fakes();
    check_mistakes();
    check_mpirun();
    check_slurm_text();
    check_restarts();
    check_hung();
    check_slurm_restarts();
    check_times();
    check_slurm_runs();
    check_newline();
    check_kubernetes();
    check_start();
    check_cluster();
    check_training();
    check_early_and_killed();
    child_folder_leave(folder);
    return expect_finish();
}
