/* Killed anywhere, resumed: `weft train` is a child that is killed whole (mpirun and ranks too) at
 * random moments, or loses one rank in a step or in a save, or is asked to stop. Resumed until
 * done, metrics.jsonl holds every step once, with the bits of an undisturbed run, and at every
 * moment the latest checkpoint is whole. So it is with experts that train in host memory.
 *   test_killed [all]     all of these; else one rank, two ranks, and two drawn of them */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <weft/status.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { STEPS = 100, MAX_SET = 4, LIMIT_S = 240 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53, \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.01, "
    "\"hidden_dropout\": 0.1},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 100, "
    "\"lr\": 1e-3},\n"
    "\"checkpoint\": {\"save_interval\": 2}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* One run that is disturbed, and the mesh it has. */
typedef struct run {
    const char *name, *mesh;
    int ranks;
    const char *set[MAX_SET]; /* up to the first NULL */
} run;

static uint64_t random_state;

/* xorshift64*: uniform in [0, 1). */
static double uniform(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)(random_state * 2685821657736338717u >> 11) / 9007199254740992.0;
}

/* What of each metrics line must not depend on time: step to lr. [step - 1]; NULL: none. Returns
 * the last step. */
static int read_metrics(const run *r, char *lines[STEPS])
{
    int last = 0;
    char *text = child_read_in(r->name, "metrics.jsonl");
    EXPECT(text != NULL, "%s: no metrics", r->name);
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        int step = 0;
        char *rest = strstr(line, ", \"tokens\"");
        bool good = sscanf(line, "{\"step\": %d, \"loss\"", &step) == 1 && rest && step >= 1 &&
                    step <= STEPS;
        EXPECT(good, "%s: odd line %s", r->name, line);
        if (!good)
            continue;
        EXPECT(step == last + 1, "%s: step %d after step %d", r->name, step, last);
        *rest = '\0';
        free(lines[step - 1]);
        lines[step - 1] = strdup(line);
        last = step;
    }
    return last;
}

static bool has_checkpoint(const run *r)
{
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoints/latest", r->name);
    return access(path, F_OK) == 0;
}

/* A save is in progress, or was when the run was killed. */
static bool has_half_checkpoint(const run *r)
{
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoints", r->name);
    DIR *folder = opendir(path);
    bool found = false;
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = strncmp(entry->d_name, ".step-", 6) == 0;
    if (folder)
        closedir(folder);
    return found;
}

static bool start(const run *r, child *c)
{
    const char *args[8 + 2 * MAX_SET] = {"train",  "c.json", "--out",   r->name,
                                         "--mesh", r->mesh,  "--resume"};
    child_add_sets(args, r->set, MAX_SET);
    bool good = child_start(c, args, NULL);
    EXPECT(good, "cannot start weft");
    return good;
}

static size_t metrics_length(const run *r)
{
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", r->name);
    char *text = child_peek(path);
    size_t length = text ? strlen(text) : 0;
    free(text);
    return length;
}

/* Waits until the run has written metrics beyond `before`; false: it has ended. */
static bool wait_for_steps(child *c, const run *r, size_t before)
{
    for (int i = 0; i < 60000 && !child_wait(c, 0); i++) {
        if (metrics_length(r) > before)
            return true;
        child_pause(0.0005);
    }
    return false;
}

static void check_checkpoint(const run *r)
{
    if (!has_checkpoint(r))
        return;
    CHILD_GOOD("inspect", r->name);
}

/* Where Open MPI has the files of a job, by the name that it knows the folder by; false: no mpirun
 * has started it. */
static bool find_job_folder(const child *c, const char *name, char out[64])
{
    char path[64];
    pid_t rank;
    if (child_ranks(c, &rank, 1) < 1)
        return false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)rank);
    FILE *file = fopen(path, "r");
    char *entry = NULL;
    size_t capacity = 0;
    bool found = false;
    while (file && !found && getdelim(&entry, &capacity, 0, file) > 0) {
        found = strncmp(entry, name, strlen(name)) == 0;
        if (found)
            snprintf(out, 64, "%s", entry + strlen(name) + 1);
    }
    free(entry);
    if (file)
        fclose(file);
    return found;
}

/* A job that is killed leaves its folders; the next start removes them, and one that ends leaves
 * none. */
static void check_job_folders(const run *r)
{
    static const char *const names[] = {"OMPI_MCA_btl_vader_backing_directory",
                                        "OMPI_MCA_orte_tmpdir_base"};
    char folders[2][2][64] = {{""}};
    for (int i = 0; i < 2; i++) {
        child c;
        size_t before = metrics_length(r);
        if (!start(r, &c))
            return;
        bool running = wait_for_steps(&c, r, before);
        for (int k = 0; k < 2; k++) {
            EXPECT(running && find_job_folder(&c, names[k], folders[i][k]) &&
                       access(folders[i][k], F_OK) == 0,
                   "%s: no job's folder", r->name);
            EXPECT(i == 0 || access(folders[0][k], F_OK) != 0, "%s is still there", folders[0][k]);
        }
        if (i == 1) {
            kill(c.pid, SIGTERM);
            EXPECT(child_wait(&c, LIMIT_S), "%s: goes on after a signal", r->name);
            for (int k = 0; k < 2; k++)
                EXPECT(access(folders[1][k], F_OK) != 0, "%s is still there", folders[1][k]);
        }
        child_release(&c);
    }
}

/* Kills the whole tree while it starts or in its steps and saves. */
static void kill_whole(const run *r, bool in_steps)
{
    child c;
    size_t before = metrics_length(r);
    if (!start(r, &c))
        return;
    if (in_steps && wait_for_steps(&c, r, before))
        child_pause(0.06 * uniform());
    else if (!in_steps)
        child_pause(0.5 * uniform());
    if (child_wait(&c, 0))
        EXPECT(c.exit_code == 0, "%s: exit %d: %s", r->name, c.exit_code, c.err);
    child_release(&c);
    check_checkpoint(r);
}

/* Stops rank 0, which makes the folder and publishes it, until that is in a save. What an earlier
 * kill left is gone when that step is saved again. */
static void stop_in_save(const run *r, pid_t rank)
{
    for (int i = 0; i < 2000 && has_half_checkpoint(r); i++)
        child_pause(0.0005);
    for (int i = 0; i < 2000; i++) {
        kill(rank, SIGSTOP);
        if (has_half_checkpoint(r))
            return;
        kill(rank, SIGCONT);
        child_pause(0.003 * uniform());
    }
    EXPECT(false, "%s: no save found", r->name);
}

/* Kills one rank: rank 0 in a save, or the last one in a step. The job must end by itself and say
 * why in one line. */
static void kill_rank(const run *r, bool in_save)
{
    child c;
    char wanted[64];
    pid_t ranks[8];
    size_t before = metrics_length(r);
    if (!start(r, &c))
        return;
    bool running = wait_for_steps(&c, r, before);
    int rank = in_save ? 0 : r->ranks - 1;
    int count = running ? child_ranks(&c, ranks, 8) : 0;
    EXPECT(count == r->ranks, "%s: %d ranks; exit %d", r->name, count, c.exit_code);
    running = count == r->ranks;
    if (running && in_save)
        stop_in_save(r, ranks[0]);
    if (running)
        kill(ranks[rank], SIGKILL);
    EXPECT(child_wait(&c, LIMIT_S), "%s: still there, and rank %d was killed", r->name, rank);
    snprintf(wanted, sizeof wanted, "weft train: rank %d on ", rank);
    bool good = c.err && c.exit_code == 128 + SIGKILL && child_is_line(c.err) &&
                strncmp(c.err, wanted, strlen(wanted)) == 0 &&
                strstr(c.err, " was killed by signal 9 (Killed) in ");
    EXPECT(good, "%s: rank %d killed: exit %d, %s", r->name, rank, c.exit_code, c.err);
    EXPECT(!in_save || has_half_checkpoint(r), "%s: the save was finished", r->name);
    child_release(&c);
    check_checkpoint(r);
}

/* Asks for a stop: saves what it has done and ends well. */
static void stop(const run *r, int number)
{
    child c;
    char wanted[64], *lines[STEPS] = {NULL};
    size_t before = metrics_length(r);
    if (!start(r, &c))
        return;
    if (wait_for_steps(&c, r, before))
        kill(c.pid, number);
    EXPECT(child_wait(&c, LIMIT_S), "%s: goes on after signal %d", r->name, number);
    int last = read_metrics(r, lines);
    char *latest = child_read_in(r->name, "checkpoints/latest");
    snprintf(wanted, sizeof wanted, "step-%d\n", last);
    EXPECT(latest && strcmp(latest, wanted) == 0, "%s: latest is %s", r->name, latest);
    snprintf(wanted, sizeof wanted, "stopped as asked after step %d\n", last);
    EXPECT(c.exit_code == (last == STEPS ? 0 : WEFT_EXIT_STOPPED) && c.err &&
               (last == STEPS ||
                (strstr(c.err, CHILD_ASKED) && !strstr(c.err, " error ") && strstr(c.out, wanted))),
           "%s: signal %d: exit %d, %s%s", r->name, number, c.exit_code, c.out, c.err);
    for (int i = 0; i < STEPS; i++)
        free(lines[i]);
    child_release(&c);
}

/* Reports the first step that differs. */
static void compare(const run *straight, const run *disturbed)
{
    char *wanted[STEPS] = {NULL}, *got[STEPS] = {NULL};
    bool same = true;
    read_metrics(straight, wanted);
    read_metrics(disturbed, got);
    for (int i = 0; i < STEPS; i++) {
        bool differs = !wanted[i] || !got[i] || strcmp(wanted[i], got[i]) != 0;
        EXPECT(!same || !differs, "%s: step %d:\n%s\nagainst undisturbed\n%s", disturbed->mesh,
               i + 1, got[i] ? got[i] : "none", wanted[i] ? wanted[i] : "none");
        same = same && !differs;
        free(wanted[i]);
        free(got[i]);
    }
}

static void run_to_end(const run *r)
{
    child c;
    if (!start(r, &c))
        return;
    EXPECT(child_wait(&c, LIMIT_S), "%s: does not end", r->name);
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", r->name, c.exit_code, c.err);
    child_release(&c);
}

#define REPLICAS "dp=2,ep=1,binding=dp"
#define DEALT_OUT "dp=2,ep=2,binding=dp"

/* Experts, or all else, that the host steps, replicas of them or dealt out, killed while steps are
 * under way. */
static const struct {
    const char *mesh, *degree, *set, *more, *name;
} hosted[] = {
    {REPLICAS, "offload.experts=host", "offload.kept=0.5", NULL, "deferred"},
    {REPLICAS, "offload.experts=host", "train.clip_grad=0", NULL, "at once"},
    {DEALT_OUT, "offload.experts=host", "train.clip_grad=0", "offload.placement=balanced",
     "dealt out"},
    {REPLICAS, "offload.experts=file", "offload.kept=0.5", NULL, "in a file, deferred"},
    {REPLICAS, "offload.experts=file", "train.clip_grad=0", NULL, "in a file, at once"},
    {REPLICAS, "offload.optimizer_state=host", "train.precision=bf16", NULL,
     "the optimizer's state"},
};
enum { NUM_HOSTED = sizeof hosted / sizeof *hosted };

static void check_hosted(int at)
{
    char names[2][32];
    run runs[2];
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "%s, %s", i ? "disturbed" : "straight",
                 hosted[at].name);
        runs[i] = (run){names[i],
                        hosted[at].mesh,
                        2,
                        {hosted[at].degree, hosted[at].set, "log.level=warn", hosted[at].more}};
    }
    run_to_end(&runs[0]);
    for (int i = 0; i < 3; i++)
        kill_whole(&runs[1], i != 1);
    kill_rank(&runs[1], false);
    stop(&runs[1], SIGTERM);
    run_to_end(&runs[1]);
    compare(&runs[0], &runs[1]);
}

/* One rank. */
static void check_alone(void)
{
    static const run runs[] = {{"straight-1", "dp=1", 1, {NULL}},
                               {"disturbed-1", "dp=1", 1, {NULL}}};
    run_to_end(&runs[0]);
    for (int i = 0; i < 4; i++)
        kill_whole(&runs[1], i % 3 != 1);
    stop(&runs[1], SIGTERM);
    run_to_end(&runs[1]);
    compare(&runs[0], &runs[1]);
}

static void check_pair(void)
{
    static const run runs[] = {{"straight-2", "tp=2,binding=tp", 2, {NULL}},
                               {"disturbed-2", "tp=2,binding=tp", 2, {NULL}}};
    run_to_end(&runs[0]);
    kill_whole(&runs[1], false);
    check_job_folders(&runs[1]);
    kill_rank(&runs[1], false);
    kill_rank(&runs[1], true);
    stop(&runs[1], SIGUSR1);
    run_to_end(&runs[1]);
    compare(&runs[0], &runs[1]);
}

static uint64_t seed;
static bool all;

/* The longest first; each draws its own moments. */
static void part(int i)
{
    const int first = (int)(seed % NUM_HOSTED), at = i - 2;
    random_state = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u | 1;
    if (i == 0)
        check_pair();
    else if (i == 1)
        check_alone();
    else
        check_hosted((first + at * (all ? 1 : NUM_HOSTED / 2)) % NUM_HOSTED);
}

int main(int argc, char **argv)
{
    char folder[32];
    all = argc > 1 && strcmp(argv[1], "all") == 0;
    seed = (uint64_t)time(NULL);
    EXPECT(child_folder_enter(folder), "no folder");
    EXPECT(child_write("c.json", config), "c.json");
    child_side_by_side(part, 2 + (all ? NUM_HOSTED : 2), 4);
    if (!expect_failures)
        child_folder_leave(folder);
    else
        fprintf(stderr, "left: %s, seed %llu\n", folder, (unsigned long long)seed);
    return expect_finish();
}
