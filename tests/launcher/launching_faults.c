/* Jobs of weft launch whose ranks fail: the scripts start them again, on the nodes that are left or
 * to spare, as often as they may. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/jobs.h"

/* A fake mpirun whose first start loses a rank, on the last of its nodes, in step 4, and whose
 * later ones end with the code in FAKE_CODE, a step on. A node that the file "dead" has answers no
 * probe once there was a start, one in "absent" never does, by ssh's words, and one in "slow" not
 * the first, without words. */
static void make_failing_mpirun(void)
{
    job_make_fake(
        "mpirun", JOB_FIND_RUN
        "while [ $# -gt 0 ]; do\n"
        "  if [ \"$1\" = --host ]; then\n"
        "    slow=slow$(cat steps 2>/dev/null)\n"
        "    if grep -qsxF \"$2\" $slow; then rm $slow; exit 1; fi\n"
        "    if grep -qsxF \"$2\" absent || { [ -e steps ] && grep -qsxF \"$2\" dead; }; then\n"
        "      line=$(printf '%70s' | tr ' ' -)\n"
        "      printf 'Warning: a word\\nssh: connect to host %s port 22: Connection "
        "refused\\r\\n%s\\nORTE was "
        "unable\\n%s\\n' \"$2\" \"$line\" \"$line\" >&2\n"
        "      exit 1\n"
        "    fi\n"
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
    bool is_trained; /* before */
} fault;

static void write_names(const char *path, const char *names)
{
    EXPECT(!names || child_write(path, names), "%s", path);
}

/* What a job of two nodes, or of one where one is named, does about a fault. */
static void check_fault(const fault *f)
{
    const char *const *args =
        WORDS("launch", "mpirun", "tiny.json", "--out", f->out, "--mesh", "dp=2,tp=1", "--nodes",
              strchr(f->hosts, ',') ? "2" : "1", "--hosts", f->hosts, "--set",
              "reliability.max_restarts=6", "--set", "reliability.restart_delay_s=0", "--spares",
              f->spares);
    char script[64], metrics[64], fake_code[32];
    child c;
    make_failing_mpirun();
    job_expect_code(args, 0, NULL);
    snprintf(script, sizeof script, "%s/job.sh", f->out);
    snprintf(fake_code, sizeof fake_code, "FAKE_CODE=%s", f->code);
    const char *const env[] = {job_path, fake_code, NULL};
    job_expect_bash(script);
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", f->out);
    write_names(metrics, f->is_trained ? "{\"step\": 2, \"loss\": 1}\n" : NULL);
    write_names("dead", f->dead);
    write_names("absent", f->absent);
    write_names("slow", f->slow); /* at one look each before the first start and the next */
    write_names("slow5", f->slow);
    const int got = job_run_other(&c, "/bin/bash", WORDS(script), env);
    EXPECT(got == f->wanted && strstr(c.err, f->says), "%s: exit %d: %s", f->out, got, c.err);
    char *text = child_read("starts");
    EXPECT(strcmp(text ? text : "", f->starts) == 0, "%s started on:\n%s", f->out, text);
}

#define A "a slots=1\n"
#define B "b.x slots=1\n"
#define C "c slots=1\n"
static const fault faults[] = {
    {"spared", "a,b.x,c", "1", NULL, NULL, NULL, "0", 0, A B "\n" A C "\n",
     "weft: node b.x is left out: a rank on it failed\n", false},
    {"same", "a,b.x", "0", NULL, NULL, "b.x\n", "0", 0, A B "\n" A B "\n",
     "weft: rank 1 on b was killed by signal 9 (Killed): the job ended with exit code 137 "
     "after step 3: it is started again in 0 s (1 of 6, reliability.max_restarts)\n",
     false},
    {"fewer", "a,b.x", "0", "b.x\n", NULL, NULL, "0", 0, A B "\n" A "\n",
     "weft: goes on with 1 of 2 nodes: dp 2 -> 1, the global batch stays\n", false},
    {"none", "a,b.x", "0", "b.x\na\n", NULL, NULL, "0", 137, A B "\n",
     "weft: no mesh fits the nodes that are left: none\n", false},
    {"never", "a,b.x", "0", NULL, "b.x\na\n", NULL, "0", 5, "",
     "weft: no mesh fits the nodes that are left: none\n", true},
    /* Before anything is trained a run does not begin on fewer. */
    {"unreached", "a,b.x", "0", NULL, "b.x\n", NULL, "0", 5, "",
     "weft: node b.x cannot be reached, and no spare takes its place: ssh: connect to host b.x "
     "port 22: Connection refused\nweft: a run does not begin without all of its nodes, which ",
     false},
    {"lonely", "b.x", "0", NULL, "b.x\n", NULL, "0", 5, "",
     "weft: node b.x cannot be reached, and no spare takes its place: ssh: ", false},
    {"resumed", "a,b.x", "0", NULL, "b.x\n", NULL, "0", 0, A "\n" A "\n",
     "weft: node b.x is left out: it does not answer: ssh: connect to host b.x port 22: "
     "Connection refused\n",
     true},
    /* A node, and then the spare in its place, that never answered. */
    {"unheard", "a,b.x,c,d", "2", NULL, "b.x\nc\n", NULL, "0", 0,
     A "d slots=1\n\n" A "d slots=1\n\n",
     "weft: node c is left out: it does not answer: ssh: connect to host c port 22: ", false},
    {"short", "a,b.x,c", "1", NULL, "b.x\nc\n", NULL, "0", 5, "",
     "weft: node c cannot be reached, and no spare takes its place: ssh: ", false},
    {"config", "a,b.x", "0", NULL, NULL, NULL, "2", 2, A B "\n" A B "\n",
     "started again in 0 s (1 of 6", false},
    {"loop", "a,b.x", "0", NULL, NULL, NULL, "137", 137,
     A B "\n" A B "\n" A B "\n" A B "\n" A B "\n",
     "after step 5, 4 times in a row and alike: it is not started again\n", false},
};

/* Of a batch script whose steps a signal ends. */
typedef struct ending {
    const char *restarts, *does;
    int wanted, starts;
    const char *says;
    bool requeued;
} ending;

/* srun waits for a place without end. */
#define WAITS "[[ \" $* \" == *' --immediate=120 '* ]] && exit \"$SLURM_EXIT_ERROR\"; exit 3"
#define REQUEUED(n)                                                                                \
    "weft: srun cannot start the ranks after step 0: the job is queued again (" n " of 5)\n"

static const ending endings[] = {
    /* Before the first step, whatever max_restarts says. */
    {"0", "exit 139", 139, 6, "(5 of 5)\n", false},
    {"0", "[ $ends -lt 3 ] && exit 139; echo '1 end' >\"$run/.alive\"; exit 0", 0, 3,
     "weft: the start ended with exit code 139 before its first step: it is tried again in 0 s (2 "
     "of "
     "5)\n",
     false},
    {"0",
     "[ $ends -lt 3 ] && echo '1 start' >\"$run/.alive\" && exit 1; echo '1 end' >\"$run/.alive\"",
     0, 3,
     "weft: the start ended with exit code 1 before its first step: it is tried again in 0 s (2 of "
     "5)\n",
     false},
    {"8", "exit 1", 1, 1, "", false},
    {"8", "echo '0000000001 steps' >\"$run/.alive\"; exit 137", 137, 4,
     "after step 0, 4 times in a row and alike", false},
    {"0", "echo '0000000001 steps' >\"$run/.alive\"; exit 139", 139, 1, "", false},
    /* The folder is another now. */
    {"8", "rm -rf \"$run\"; mkdir -p \"$run/checkpoints/step-4\"; exit 6", 6, 1, "", false},
    {"8", "rm -rf \"$run\"; exit 6", 6, 1, "", false},
    {"2", "touch \"$run/ledger.jsonl\"; exit 6", 6, 3, "(2 of 2, reliability.max_restarts)\n",
     false},
    /* No place for a start that is not the first; and a node that does not answer. */
    {"0", WAITS, 3, 1, "", false},
    {"0", "[ $ends -eq 1 ] && exit 139; " WAITS, 0, 2, REQUEUED("1"), true},
    {"0", "exit 233", 0, 1, REQUEUED("1"), true},
    {"0", "printf '123 0\\n123 10\\n12 0\\n123 0\\n' >\"$run/.requeued\"; exit 233", 0, 1,
     REQUEUED("3"), true},
    {"9", "yes '123 0' | head -n 5 >\"$run/.requeued\"; exit 233", 5, 1,
     "weft: srun cannot start the ranks after step 0, and the job was queued again 5 times\n",
     false},
};

static void check_ending(const ending *e)
{
    const char *const env[] = {job_path, "SLURM_JOB_ID=123", NULL};
    char setting[64], text[1024];
    child c;
    int found = 0;
    snprintf(setting, sizeof setting, "reliability.max_restarts=%s", e->restarts);
    snprintf(text, sizeof text, JOB_FIND_RUN "echo x >>ends; ends=$(wc -l <ends)\n%s", e->does);
    job_make_fake("srun", text);
    job_make_fake("squeue", "echo 123.0; echo 123.batch");
    job_make_fake("scancel", "exit 0");
    job_launch("slurm", "again", WORDS("--set", setting, "--set", "reliability.restart_delay_s=0"),
               0, NULL);
    job_expect_bash("again/job.sbatch");
    const int code = job_run_other(&c, "/bin/bash", WORDS("again/job.sbatch"), env);
    EXPECT(code == e->wanted && strstr(c.err, e->says), "exit %d: %s", code, c.err);
    const char *words = job_said();
    for (const char *at = words; (at = strstr(at, "srun\n")); at++)
        found++;
    EXPECT(found == e->starts && (strstr(words, "\nrequeue\n123\n") != NULL) == e->requeued,
           "%d starts: %s", found, words);
    /* What a killed srun leaves behind is ended before the next. */
    EXPECT((strstr(words, "\nscancel\n--signal=KILL\n123.0\nsrun\n") != NULL) == (found > 1) &&
               !strstr(words, "123.batch"),
           "%s", words);
}

enum {
    NUM_ENDINGS = sizeof endings / sizeof *endings,
    NUM_FAULTS = sizeof faults / sizeof *faults
};

static void part(int i)
{
    job_enter();
    if (i < NUM_ENDINGS)
        check_ending(&endings[i]);
    else
        check_fault(&faults[i - NUM_ENDINGS]);
    job_leave();
}

int main(void)
{
    child_side_by_side(part, NUM_ENDINGS + NUM_FAULTS, 4);
    return expect_finish();
}
