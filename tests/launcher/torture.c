/* Tortures training, as OpenZFS's ztest does a file system: trains small models, saves, resumes,
 * changes mesh, tiers and ways of saving at random, is killed at random moments, and has its newest
 * checkpoint damaged. After every start of it: nothing lost beyond the last save that was reported,
 * losses and datasets on the line of a single rank that nothing disturbed, and with its bits where
 * nothing but kills was between; nothing left behind. docs/faults.md tells more.
 *
 *   test_torture [--kills N] [--minutes M] [--seed S] [--line L] [--lines N] [--steps N] [--keep
 * DIR] test_torture finds       whether it finds each kind of violation test_torture train ... the
 * weft command on data that carry their step */
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/weft.h>

#include "core/clock.h"
#include "tests/launcher/torture.h"

/* --- data ------------------------------------------------------------------------------------- */

/* Each step has a share of its own of tokens that are easy to foresee, each sample tokens of its
 * own: steps that read others' samples have quite other losses. */
static weft_status fill(const weft_sample *sample)
{
    uint64_t index = sample->index + (getenv("TORTURE_SHIFT") ? TORTURE_BATCH : 0);
    torture_chance of_step = torture_chance_of(sample->seed, 1, (int)(index / TORTURE_BATCH));
    torture_chance of_sample = torture_chance_of(sample->seed, 2, (int)index);
    double easy = torture_uniform(&of_step);
    int32_t last = 0;
    for (size_t i = 0; i <= sample->seq_length; i++) {
        int32_t token = torture_uniform(&of_sample) < easy
                            ? (last + 1) % (int32_t)sample->vocab_size
                            : torture_below(&of_sample, (int)sample->vocab_size);
        if (i < sample->seq_length)
            sample->tokens[i] = token;
        if (i > 0)
            sample->labels[i - 1] = token;
        last = token;
    }
    return WEFT_OK;
}

/* --- where it is ------------------------------------------------------------------------------ */

static struct {
    uint64_t seed;
    int line, life, steps;
    long kills, lines;
    double minutes, until_us;
    int first_line;
    const char *keep;
    char folder[128], words[512]; /* words: of the life */
    const struct fault *fault;    /* to be planted; NULL: none */
    bool is_planted, is_found;
} at;

/* What `finds` plants, shell's words in the folder of checkpoints, where NEW and OLD are the steps
 * of the newest two; and what must be said of it. */
typedef struct fault {
    const char *name, *command, *wanted;
    bool after_end; /* of a life that ended by itself */
} fault;
static const fault faults[] = {
    {"a stale file", "cp step-$OLD/model.h5 step-$NEW/model.h5", " differs by ", false},
    {"a torn tensor",
     "tail -c 64 step-$OLD/model.h5 | dd of=step-$NEW/model.h5 bs=1 conv=notrunc status=none "
     "seek=$(($(stat -c %s step-$NEW/model.h5) - 64))",
     " differs by ", false},
    {"a checkpoint that is lost", "echo step-$OLD >latest; rm -r step-$NEW", ", latest is ", true},
    {"another position", "sed -i 's/\"consumed_tokens\": [0-9]*/&0/' step-$NEW/manifest.json",
     "its manifest says", false},
    {"what is left behind", "mkdir .step-9.saving", " was left behind", true},
    {"a line that is lost", "sed -i 2d ../metrics.jsonl", "metrics.jsonl after step ", false},
    {"others' samples", "", " on a single rank ", false},
};
enum { NUM_FAULTS = sizeof faults / sizeof *faults };

void torture_violation(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    torture_count.violations++;
    if (at.fault) {
        at.is_found = at.is_found || (at.is_planted && strstr(text, at.fault->wanted));
        return;
    }
    printf("VIOLATION: line %d life %d: %s\n  %s\n  again: scripts/torture --seed %llu --line %d "
           "--lines 1 --steps %d\n",
           at.line, at.life, text, at.words, (unsigned long long)at.seed, at.line, at.steps);
    fflush(stdout);
}

static double seconds_since(double us)
{
    return (weft_now_us() - us) / 1e6;
}

static void check_no_entries(const char *name, const char *when)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", at.folder, name);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            torture_violation("%s/%s was left %s", path, entry->d_name, when);
    if (folder)
        closedir(folder);
}

/* --- lines ------------------------------------------------------------------------------------ */

static bool write_config(const char *text)
{
    return child_write("c.json", text);
}

static void keep(const char *run, const child *c)
{
    char command[512], name[64];
    snprintf(name, sizeof name, "line-%d-life-%d", at.line, at.life);
    snprintf(command, sizeof command,
             "mkdir -p %s && rm -rf %s/%s && cp -r %s %s/%s && cp c.json %s/%s/", at.keep, at.keep,
             name, run, at.keep, name, at.keep, name);
    if (system(command) != 0)
        perror("keep");
    snprintf(command, sizeof command, "%s/%s/said", at.keep, name);
    child_write(command, c->out ? c->out : "");
    snprintf(command, sizeof command, "%s/%s/warned", at.keep, name);
    child_write(command, c->err ? c->err : "");
}

static bool make_reference(int variant, const char *folder)
{
    static bool made[TORTURE_VARIANTS];
    char text[2048];
    child c;
    if (made[variant])
        return true;
    torture_reference_config(variant, at.steps, text);
    if (!write_config(text) ||
        !child_start(&c, (const char *[]){"train", "c.json", "--out", folder, NULL}, NULL))
        return false;
    if (!child_wait(&c, 300))
        child_kill(&c);
    made[variant] = c.exit_code == 0;
    if (!made[variant])
        printf("the run without kills failed: %d: %s\n", c.exit_code, c.err);
    child_release(&c);
    return made[variant];
}

static volatile sig_atomic_t is_stopped;

static void stop(int number)
{
    is_stopped = number;
}

static bool is_over(void)
{
    return is_stopped || (at.kills && torture_count.kills >= at.kills) ||
           (at.until_us > 0 && weft_now_us() > at.until_us) ||
           (at.lines && torture_count.lines >= at.lines);
}

/* The folder "control" with the checkpoint from which a life starts. */
static bool prepare_control(const torture_state *state, int start)
{
    char command[512];
    snprintf(command, sizeof command,
             "rm -rf control; mkdir -p control/checkpoints; [ %d = 0 ] || { cp -r "
             "%s/checkpoints/step-%d control/checkpoints/ && cp %s/metrics.jsonl control/ && echo "
             "step-%d >control/checkpoints/latest; }",
             start, state->run, start, state->run, start);
    return system(command) == 0;
}

/* Computes the life's steps up to `latest` again, undisturbed: the same bits. */
static void control(torture_state *state, const torture_life *life, int start)
{
    char text[sizeof life->config], *rest;
    static const char key[] = "\"train_iters\": ";
    const char *iters = strstr(life->config, key);
    child c;
    if (state->latest <= start || !iters)
        return;
    strtol(iters + strlen(key), &rest, 10);
    snprintf(text, sizeof text, "%.*s%s%d%s", (int)(iters - life->config), life->config, key,
             state->latest, rest);
    if (!write_config(text) ||
        !child_start(&c,
                     (const char *[]){"train", "c.json", "--out", "control", "--mesh", life->mesh,
                                      "--resume", NULL},
                     NULL))
        return;
    torture_wait_for_end(&c, "the start of a control");
    if (c.exit_code != 0)
        torture_violation("a control ended with %d: %s", c.exit_code, c.err);
    else
        torture_judge_control(state, "control", start, state->latest);
    torture_count.controls++;
    child_release(&c);
    torture_check_processes("after a control's end");
}

/* In the folder of a life that has left two checkpoints, the newest of its own. */
static void plant(const torture_state *state, int start, int exit_code)
{
    char command[768], latest[160];
    int newest = 0, before;
    char *text = child_read_in(state->run, "checkpoints/latest");
    if (text)
        sscanf(text, "step-%d", &newest);
    for (before = newest - 1; before > 0; before--) {
        snprintf(latest, sizeof latest, "%s/checkpoints/step-%d/manifest.json", state->run, before);
        if (access(latest, F_OK) == 0)
            break;
    }
    if (newest <= start || before < 1 || newest < 10 ||
        (at.fault->after_end && exit_code != 0 && exit_code != 75))
        return;
    snprintf(command, sizeof command, "cd %s/checkpoints; NEW=%d; OLD=%d; %s", state->run, newest,
             before, at.fault->command);
    at.is_planted = system(command) == 0;
}

/* A process that has not come to its first line yet dies of SIGTERM as any other. */
static bool is_expected(const torture_outcome *o, const child *c, bool is_done)
{
    bool stopped = o->end == TORTURE_STOP;
    bool said_nothing = c->out && !*c->out && c->err && !*c->err;
    return c->exit_code == 0 ? is_done
                             : (c->exit_code == 75 && stopped) ||
                                   (c->exit_code == 128 + SIGTERM && stopped && said_nothing) ||
                                   (c->exit_code == 137 && o->was_killed);
}

/* One life, from its draw to its judgement. False: the line is done. */
static bool live_once(torture_state *state, torture_life *life, bool is_first)
{
    char damage[128] = "nothing", folder[160];
    torture_chance chance = torture_chance_of(at.seed, at.line, at.life);
    torture_life before = *life;
    bool damages = torture_below(&chance, 6) == 0;
    torture_chance of_damage = torture_chance_of(at.seed, at.line, -1 - at.life);
    if (damages && !torture_damage(state, &of_damage, damage))
        strcpy(damage, "nothing");
    int fallback = 1;
    for (int s = 1; s <= state->steps; s++)
        fallback += state->saved[s].is_damaged;
    snprintf(folder, sizeof folder, "%s/f", at.folder);
    torture_draw(&chance, state->variant, state->steps, is_first ? NULL : &before, fallback, folder,
                 life);
    int start = torture_expected_start(state), latest = state->latest;
    const torture_blow *b = &life->blows[0];
    bool controls = torture_below(&chance, state->variant < TORTURE_ROUGH ? 4 : 2) == 0 &&
                    !at.fault && prepare_control(state, start);
    snprintf(
        at.words, sizeof at.words,
        "%s, start %d, saves every %d%s%s, keep %d, restarts %d, %d blows: %s at %s; damaged: %s",
        life->same, start, life->save_interval, life->async ? " async" : "",
        life->skips ? " skip" : "", life->keep_latest_k, life->max_restarts, life->num_blows,
        torture_end_name(b->end), torture_moment_name(b->moment), damage);
    child c;
    if (!write_config(life->config) ||
        !child_start(&c,
                     (const char *[]){"train", "c.json", "--out", state->run, "--mesh", life->mesh,
                                      "--resume", NULL},
                     NULL)) {
        torture_violation("no start");
        return false;
    }
    torture_count.lives++;
    long violations = torture_count.violations;
    torture_outcome out = torture_live(&c, life, state->run);
    int exit_code = c.exit_code;
    torture_check_processes("after its end");
    check_no_entries("f", "of experts' files");
    if (at.fault && !at.is_planted)
        plant(state, start, exit_code);
    torture_judge(state, life, start, exit_code, out.lost_writer, c.out, c.err);
    bool is_done = state->last == state->steps && exit_code == 0;
    if (!is_expected(&out, &c, is_done))
        torture_violation("exit code %d after %s: %s", exit_code, torture_end_name(out.end), c.err);
    bool was_done = c.out && strstr(c.out, ": finished: step ");
    bool has_mpirun = life->world > 1 || life->max_restarts; /* which removes what dead jobs left */
    if (has_mpirun && ((exit_code == 0 && !was_done) || exit_code == 75)) {
        torture_check_job_folders();
        check_no_entries("t", "of temporary files");
    }
    if (controls && torture_count.violations == violations)
        control(state, life, start);
    if (getenv("TORTURE_VERBOSE"))
        printf("line %d life %d: %s -> exit %d, last %d, latest %d -> %d\n%s", at.line, at.life,
               at.words, exit_code, state->last, latest, state->latest, c.err ? c.err : "");
    if (at.keep && torture_count.violations > violations)
        keep(state->run, &c);
    child_release(&c);
    return !is_done && torture_count.violations == violations;
}

static void live_line(torture_state *state)
{
    char run[32], reference[32], command[64];
    torture_chance chance = torture_chance_of(at.seed, at.line, 0);
    torture_life life = {0};
    memset(state, 0, sizeof *state);
    state->variant = torture_below(&chance, TORTURE_VARIANTS);
    state->steps = at.steps;
    snprintf(run, sizeof run, "r%d", at.line);
    snprintf(reference, sizeof reference, "reference-%d", state->variant);
    state->run = run;
    state->reference = reference;
    state->line[0] = (uint64_t)state->variant + 1;
    const char *shift = getenv("TORTURE_SHIFT");
    unsetenv("TORTURE_SHIFT");
    bool has_reference = make_reference(state->variant, reference);
    if (shift)
        setenv("TORTURE_SHIFT", "1", 1);
    if (!has_reference || !torture_reference_read(state)) {
        torture_violation("the run without kills is not whole");
        exit(1);
    }
    bool goes_on = true;
    for (at.life = 1; goes_on && !is_over(); at.life++)
        goes_on = live_once(state, &life, at.life == 1);
    torture_count.lines++;
    snprintf(command, sizeof command, "rm -rf %s", run);
    if (system(command) != 0)
        perror(run);
}

/* --- the report ------------------------------------------------------------------------------- */

static void report(double begin_us)
{
    const torture_counts *n = &torture_count;
    const torture_times *t = &torture_time;
    printf("seed %llu: %ld kills in %.1f min: %ld lives of %ld lines, %ld stops, %ld restarts in "
           "the job\n",
           (unsigned long long)at.seed, n->kills, seconds_since(begin_us) / 60, n->lives, n->lines,
           n->stops, n->restarts);
    printf("  hit:");
    for (int i = 0; i < TORTURE_ENDS; i++)
        printf(" %s %ld%s", torture_end_name((torture_end)i), n->by_end[i],
               i + 1 < TORTURE_ENDS ? "," : ";");
    printf(" at:");
    for (int i = 0; i < TORTURE_MOMENTS; i++)
        printf(" %s %ld%s", torture_moment_name((torture_moment)i), n->by_moment[i],
               i + 1 < TORTURE_MOMENTS ? "," : "\n");
    printf("  %ld steps, %ld of them again; %ld saves; %ld fell back\n", n->steps, n->steps_again,
           n->saves, n->falls);
    printf("  %ld checkpoints compared, %ld of them to the bit; %ld losses, %ld to the bit; %ld "
           "lives done again undisturbed\n",
           n->compared_checkpoints, n->same_checkpoints, n->compared_losses, n->same_losses,
           n->controls);
    printf("  largest difference of a loss %.2g (allowed 1e-5); of a block %.2g of what is "
           "allowed\n",
           n->worst_loss, n->worst_share);
    printf("  median from start to first step %.0f ms (%d), from a kill to the next step with "
           "restarts %.0f ms (%d)\n",
           torture_median(t->first_ms, t->num_first), t->num_first,
           torture_median(t->again_ms, t->num_again), t->num_again);
    printf("  %ld violations\n", n->violations);
    fflush(stdout);
}

/* Each kind of violation is planted once, and must be found. */
static int find_all(torture_state *state)
{
    for (int i = 0; i < NUM_FAULTS; i++) {
        at.fault = &faults[i];
        at.is_planted = at.is_found = false;
        for (int tries = 0; tries < 20 && !at.is_planted; tries++) {
            torture_count.violations = 0;
            if (!*faults[i].command) {
                at.is_planted = true;
                setenv("TORTURE_SHIFT", "1", 1);
            }
            live_line(state);
            at.line++;
            unsetenv("TORTURE_SHIFT");
        }
        printf("%s: %s\n", faults[i].name, at.is_found ? "found" : "not found");
        fflush(stdout);
        if (!at.is_found)
            return 1;
    }
    return 0;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 >= argc)
            return false;
        double value = atof(argv[i + 1]);
        if (strcmp(argv[i], "--kills") == 0)
            at.kills = (long)value;
        else if (strcmp(argv[i], "--minutes") == 0)
            at.minutes = value;
        else if (strcmp(argv[i], "--seed") == 0)
            at.seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--line") == 0)
            at.first_line = (int)value;
        else if (strcmp(argv[i], "--lines") == 0)
            at.lines = (long)value;
        else if (strcmp(argv[i], "--steps") == 0)
            at.steps = (int)value;
        else if (strcmp(argv[i], "--keep") == 0)
            at.keep = argv[i + 1];
        else
            return false;
    }
    return at.steps >= 2 && at.steps <= TORTURE_MAX_STEPS;
}

static int torture(int argc, char **argv)
{
    static torture_state state;
    static char program[1024];
    char temporary[160], path[1024] = "";
    double begin_us = weft_now_us();
    at.seed = (uint64_t)time(NULL);
    at.first_line = 1;
    at.steps = 160;
    bool finds = argc == 2 && strcmp(argv[1], "finds") == 0;
    if (!finds && !parse(argc, argv)) {
        fprintf(stderr,
                "usage: torture [--kills N] [--minutes M] [--seed S] [--line L] "
                "[--lines N] [--steps 2..%d] [--keep DIR]\n",
                TORTURE_MAX_STEPS);
        return 2;
    }
    if (!finds && !at.kills && at.minutes <= 0 && !at.lines)
        at.kills = 100;
    at.until_us = at.minutes > 0 ? begin_us + 60e6 * at.minutes : 0;
    if (at.keep && !(at.keep = realpath(at.keep, path))) {
        perror("--keep");
        return 2;
    }
    snprintf(at.folder, sizeof at.folder, "/tmp/weft-torture-XXXXXX");
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0 || !mkdtemp(at.folder) || chdir(at.folder) != 0 || mkdir("t", 0700) != 0 ||
        mkdir("f", 0700) != 0) {
        perror(at.folder);
        return 1;
    }
    child_program = program;
    snprintf(temporary, sizeof temporary, "%s/t", at.folder);
    setenv("TMPDIR", temporary, 1);
    signal(SIGTERM, stop); /* ends after the life, with the counts */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    printf("seed %llu, in %s\n", (unsigned long long)at.seed, at.folder);
    fflush(stdout);
    at.line = at.first_line;
    if (finds) {
        at.steps = 40;
        at.seed = 1;
        int code = find_all(&state);
        child_folder_leave(at.folder);
        return code;
    }
    for (; !is_over(); at.line++) {
        live_line(&state);
        if (!at.lines || at.lines > 1)
            printf("line %d is done: %ld kills, %ld violations, %.1f min\n", at.line,
                   torture_count.kills, torture_count.violations, seconds_since(begin_us) / 60);
        fflush(stdout);
    }
    report(begin_us);
    child_folder_leave(at.folder);
    return torture_count.violations ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc == 1 || strncmp(argv[1], "--", 2) == 0 || strcmp(argv[1], "finds") == 0)
        return torture(argc, argv);
    weft_application application = WEFT_ARGS(weft_application, .sample = fill);
    return weft_application_main(argc, argv, &application);
}
