/* Runs that save beside training: checkpoints have the bytes, and steps the numbers, of runs that
 * wait for their saves, on several meshes, precisions and tiers, through rings of any size. What a
 * ring cannot be is refused; a save that comes too early waits or is skipped and counted; a run
 * that loses a writer or is asked to stop goes on with the same numbers. One whose writer hangs
 * names it and saves on. Killed whole at any moment: torture.c. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <weft/status.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_SET = 5 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 301, \"num_experts\": 4},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 12, "
    "\"lr\": 1e-3},\n"
    "\"checkpoint\": {\"save_interval\": 3}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0, "
    "\"level\": \"warn\"}}\n";

static bool start(child *c, const char *run, const char *mesh, const char *const *set)
{
    const char *args[8 + 2 * MAX_SET] = {"train",  "c.json", "--out",   run,
                                         "--mesh", mesh,     "--resume"};
    child_add_sets(args, set, MAX_SET);
    bool good = child_start(c, args, NULL);
    EXPECT(good, "cannot start weft");
    return good;
}

static void run_weft(child *c, const char *run, const char *mesh, const char *const *set)
{
    if (start(c, run, mesh, set))
        EXPECT(child_wait(c, CHILD_PATIENCE_S), "%s: does not end", run);
}

/* Of the runs "waits" and "async": the same numbers, and bytes in all files that do not hold the
 * config. */
static void expect_equal(const char *what)
{
    static const char compare[] =
        "for f in waits/checkpoints/step-*; do for n in model.h5 shards.json; do "
        "cmp $f/$n async${f#waits}/$n || exit 1; done; done; "
        "test $(ls -A waits/checkpoints | wc -l) = $(ls -A async/checkpoints | wc -l)";
    child_expect_losses("async", "waits");
    EXPECT(system(compare) == 0, "%s: other bytes", what);
}

static void check_equal(const char *mesh, const char *set, const char *staging)
{
    child c;
    expect_shell("rm -rf waits async");
    run_weft(&c, "waits", mesh, (const char *[MAX_SET]){set});
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", mesh, c.exit_code, c.err);
    run_weft(&c, "async", mesh,
             (const char *[MAX_SET]){set, "checkpoint.async_save=true", staging});
    EXPECT(c.exit_code == 0 && c.err && !*c.err, "%s %s: exit %d: %s", mesh, set, c.exit_code,
           c.err);
    EXPECT(c.out && strstr(c.out, "checkpoint: async/checkpoints/step-3\n") &&
               strstr(c.out, "checkpoint: async/checkpoints/step-9\n") &&
               strstr(c.out, "checkpoint: async/checkpoints/step-12\n"),
           "%s", c.out);
    expect_equal(set);
}

static void check_refused(void)
{
    static const char *const sets[] = {"checkpoint.staging_bytes=1000",
                                       "checkpoint.staging_bytes=1000000000000000"};
    static const char text[] =
        "checkpoint.staging_bytes: 1000 is less than the largest piece takes, which is ";
    child c;
    expect_shell("rm -rf async");
    for (int i = 0; i < 2; i++) {
        run_weft(&c, "async", i ? "dp=2" : "dp=1",
                 (const char *[MAX_SET]){"checkpoint.async_save=true", sets[0]});
        EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, text), "exit %d: %s",
               c.exit_code, c.err);
        EXPECT(access("async", F_OK) != 0, "a folder was made");
    }
    /* No other node has room for copies, nor is there who makes them. */
    for (int i = 0; i < 3; i++) {
        run_weft(&c, "async", i == 1 ? "dp=2" : "dp=1",
                 (const char *[MAX_SET]){"checkpoint.peer_copies=1",
                                         i < 2 ? "checkpoint.async_save=true" : NULL});
        EXPECT(c.exit_code == 2 && child_is_line(c.err) &&
                   strstr(c.err, i < 2 ? "checkpoint.peer_copies: 1: the ranks are on 1 node\n"
                                       : "checkpoint.peer_copies: 1 needs "
                                         "checkpoint.async_save\n"),
               "exit %d: %s", c.exit_code, c.err);
        EXPECT(access("async", F_OK) != 0, "a folder was made");
    }
    /* More than a save takes is not taken. */
    run_weft(&c, "async", "dp=1", (const char *[MAX_SET]){"checkpoint.async_save=true", sets[1]});
    EXPECT(c.exit_code == 0 && c.err && !*c.err, "exit %d: %s", c.exit_code, c.err);
}

/* Each step is saved, and waits for the save before. */
static void check_busy(void)
{
    child c;
    expect_shell("rm -rf async waits");
    run_weft(&c, "waits", "dp=1", (const char *[MAX_SET]){"save_interval=1"});
    run_weft(&c, "async", "dp=1",
             (const char *[MAX_SET]){"save_interval=1", "checkpoint.async_save=true"});
    EXPECT(c.exit_code == 0 && c.err && !*c.err, "exit %d: %s", c.exit_code, c.err);
    expect_equal("one after the other");
}

/* --- what goes wrong ----------------------------------------------------------------------- */

/* Of one that runs alone: 0. */
static int rank_of(pid_t pid)
{
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    char path[64], text[32768];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *file = fopen(path, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1)
        if (strncmp(text + at, name, sizeof name - 1) == 0)
            return atoi(text + at + sizeof name - 1);
    return 0;
}

/* Sends a signal to the last of the run's writers; its rank, or -1: there is none. */
static int signal_writer(const child *c, int number)
{
    pid_t all[64];
    const int count = child_descendants(c, all, 64);
    for (int i = count; i-- > 0;) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/comm", (int)all[i]);
        char *name = child_peek(path);
        const bool found = name && strcmp(name, "weft writer\n") == 0;
        free(name);
        if (found)
            return kill(all[i], number) == 0 ? rank_of(all[i]) : -1;
    }
    return -1;
}

static void wait_for_step(child *c)
{
    child_wait_for_text(c, "async/checkpoints/latest", "");
}

/* A run goes on without one of its writers, and says so once. */
static void check_lost(const char *mesh)
{
    const char *set[MAX_SET] = {"train_iters=300", "save_interval=2"};
    child c;
    expect_shell("rm -rf waits async");
    run_weft(&c, "waits", mesh, set);
    child_release(&c);
    set[2] = "checkpoint.async_save=true";
    if (!start(&c, "async", mesh, set))
        return;
    wait_for_step(&c);
    EXPECT(signal_writer(&c, SIGKILL) >= 0, "%s: no writer", mesh);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "%s: does not end", mesh);
    EXPECT(c.exit_code == 0 && child_is_line(c.err) &&
               strstr(c.err, "the process that writes checkpoints has ended, killed by signal 9 "
                             "(Killed); from now on training waits for its saves\n"),
           "%s: exit %d: %s", mesh, c.exit_code, c.err);
    child_release(&c);
    child_expect_losses("async", "waits");
    expect_shell("cmp waits/checkpoints/step-300/model.h5 async/checkpoints/step-300/model.h5");
}

/* The step that `latest` names; -1: none. */
static int latest_step(void)
{
    char *text = child_read("async/checkpoints/latest");
    const char *digits = text ? strpbrk(text, "0123456789") : NULL;
    const int step = digits ? atoi(digits) : -1;
    return step;
}

/* The last step that metrics have; -1: none. */
static int trained_step(void)
{
    char text[8192];
    FILE *file = fopen("async/metrics.jsonl", "r");
    if (!file)
        return -1;
    if (fseek(file, -(long)sizeof text + 1, SEEK_END) != 0)
        rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    int step = -1;
    for (const char *at = text; (at = strstr(at, "\"step\":")); at++)
        step = atoi(at + strlen("\"step\":"));
    return step;
}

/* While a writer stands still, steps are not saved, and the first of them says so; the last step
 * is, once it goes on. */
static void check_skipped(void)
{
    static const char said[] = ": not saved: the save of step ",
                      end[] = " is still under way; 1 save skipped so far\n";
    const char *set[MAX_SET] = {"train_iters=100000000", "save_interval=1",
                                "checkpoint.async_save=true", "async_when_busy=skip"};
    child c;
    int step = 0, under_way = 0;
    expect_shell("rm -rf async");
    if (!start(&c, "async", "dp=2", set))
        return;
    wait_for_step(&c);
    EXPECT(signal_writer(&c, SIGSTOP) >= 0, "no writer");
    EXPECT(child_wait_for_text(&c, c.err_path, end), "nothing is skipped: %s", c.err);
    EXPECT(signal_writer(&c, SIGCONT) >= 0, "no writer");
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == WEFT_EXIT_STOPPED, "exit %d: %.2000s",
           c.exit_code, c.err);
    const char *at = c.err ? strstr(c.err, said) : NULL, *line = at;
    while (line > c.err && strncmp(line, "step ", 5) != 0)
        line--;
    EXPECT(at && sscanf(line, "step %d: not saved: the save of step %d", &step, &under_way) == 2 &&
               under_way > 0 && under_way < step && strstr(at, end),
           "%.2000s", c.err);
    EXPECT(trained_step() > step && latest_step() == trained_step(), "saved step %d of %d",
           latest_step(), trained_step());
    child_release(&c);
}

/* Waits until training is 45 steps, so two saves, beyond the last that was published, and for 3 s:
 * one is under way that cannot end. */
static void wait_for_no_save(child *c)
{
    int step = -1;
    for (int i = 0; (i < 300 || trained_step() < step + 45) && !child_wait(c, 0); i++) {
        const int now = latest_step();
        i = now == step ? i : 0;
        step = now;
        child_pause(0.01);
    }
}

/* Waits until two more saves are published: of one, all writers may have done their part before. */
static bool wait_for_saves(child *c)
{
    int step = latest_step(), num = 0;
    for (int i = 0; i < 1000 * CHILD_PATIENCE_S && num < 2 && !child_wait(c, 0); i++) {
        const int now = latest_step();
        num += now > step;
        step = now > step ? now : step;
        child_pause(0.001);
    }
    return num == 2;
}

/* A writer that stands still is named once, within the limit of a save, also where training would
 * go on without its saves for good or ranks wait for it; later saves are made. */
static void check_hung(const char *mesh, const char *when_busy)
{
    const char *set[MAX_SET] = {"train_iters=100000000", "save_interval=20", "save_limit_s=5",
                                "checkpoint.async_save=true", when_busy};
    static const char silent[] = ") has made no progress for ";
    char who[64], node[256] = "";
    child c;
    expect_shell("rm -rf async");
    gethostname(node, sizeof node - 1);
    if (!start(&c, "async", mesh, set))
        return;
    wait_for_step(&c);
    const int rank = signal_writer(&c, SIGSTOP);
    EXPECT(rank >= 0, "%s: no writer", mesh);
    snprintf(who, sizeof who, "the writer of rank %d (%.32s", rank, node);
    EXPECT(wait_for_saves(&c), "%s %s: no more saves: %.2000s", mesh, when_busy,
           c.err ? c.err : "");
    if (c.pid)
        kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == WEFT_EXIT_STOPPED,
           "%s %s: exit %d: %.2000s", mesh, when_busy, c.exit_code, c.err);
    const char *told = c.err ? strstr(c.err, who) : NULL;
    const char *silence = told ? strstr(told, silent) : NULL;
    EXPECT(silence && strtod(silence + strlen(silent), NULL) >= 5, "%s %s: %.2000s", mesh,
           when_busy, c.err);
    EXPECT(told && !strstr(told + sizeof who, "the writer of"), "%s %s: %.2000s", mesh, when_busy,
           c.err);
    const char *second = told ? strchr(told, '\n') : NULL;
    EXPECT(strstr(when_busy, "skip") || (second && strcmp(second, "\n" CHILD_ASKED "\n") == 0),
           "%s: %s", mesh, c.err);
    child_release(&c);
}

/* A writer that is stopped, under limits as shipped, in a save (which has begun by then) or maybe
 * between two: whoever asks the run to stop waits for seconds, and loses no step. */
static void check_stopped(const char *mesh, bool in_save)
{
    const char *set[MAX_SET] = {"train_iters=100000000", "save_interval=20",
                                "checkpoint.async_save=true", "async_when_busy=skip"};
    child c;
    expect_shell("rm -rf async");
    if (!start(&c, "async", mesh, set))
        return;
    wait_for_step(&c);
    EXPECT(signal_writer(&c, SIGSTOP) >= 0, "%s: no writer", mesh);
    if (in_save)
        wait_for_no_save(&c);
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S) && c.exit_code == WEFT_EXIT_STOPPED,
           "%s: exit %d: %.2000s", mesh, c.exit_code, c.err);
    EXPECT(!in_save || (c.err && strstr(c.err, ") has been stopped by a signal for 1")),
           "%s: %.2000s", mesh, c.err);
    child_release(&c);
}

/* A folder that cannot be removed lies in the way of one save. */
static void check_failing(void)
{
    child c;
    expect_shell("rm -rf async; mkdir -p async/checkpoints/.step-3.saving/deep");
    run_weft(&c, "async", "dp=2", (const char *[MAX_SET]){"checkpoint.async_save=true"});
    EXPECT(c.exit_code == 0 && child_is_line(c.err) &&
               strstr(c.err, " warn step 3: not saved, the next save tries again: async/"),
           "exit %d: %s", c.exit_code, c.err);
    expect_shell("test -e async/checkpoints/step-6 && test ! -e async/checkpoints/step-3");
}

int main(int argc, char **argv)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    if (argc > 1 && strcmp(argv[1], "faults") == 0) {
        check_failing();
        check_lost("dp=1");
        check_lost("dp=2");
        check_hung("dp=2", "async_when_busy=skip");
        check_hung("dp=2", "async_when_busy=wait");
    } else {
        check_equal("dp=1", "seed=5", NULL);
        check_equal("tp=2,pp=2,binding=tp", "precision=bf16", NULL);
        check_equal("dp=2,ep=2,binding=dp", "train.clip_grad=0", "checkpoint.staging_bytes=200000");
        check_equal("dp=2,ep=1,binding=dp", "offload.experts=host", NULL);
        check_equal("dp=2,ep=2,binding=dp", "offload.experts=file",
                    "checkpoint.staging_bytes=200000");
        check_equal("dp=2,ep=1,binding=dp", "offload.optimizer_state=host", NULL);
        check_refused();
        check_busy();
        check_skipped();
        check_stopped("dp=2", false);
        check_stopped("dp=2", true);
    }
    return child_finish();
}
