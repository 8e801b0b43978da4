/* A run folder and what may happen to it: another config, another dataset, a second training, a run
 * that is finished, one without its `latest`, one cut off in its metrics. Whatever is refused or
 * has nothing to do leaves the folder's bytes as they were. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { STEPS = 6, ENDLESS = 1000000 };

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12},\n"
    " \"train\": {\"global_batch_size\": 4, \"train_iters\": 6, \"lr\": 2e-3, \"min_lr\": 1e-4, "
    "\"seed\": 3},\n"
    " \"data\": {\"data_path\": \"corpus\"}, \"checkpoint\": {\"save_interval\": 2},\n"
    " \"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* Where no mpirun can be found: what is refused has been refused before any rank starts. */
static const char *const no_mpirun[] = {"PATH=/nonexistent", NULL};

static void run_weft(child *c, int exit_code, const char *const *args)
{
    child_run(c, args, NULL);
    EXPECT(c->exit_code == exit_code, "weft %s %s: exit %d: %s%s", args[0], args[1], c->exit_code,
           c->out, c->err);
}

/* Ends well; says nothing, or one line that ends so. */
static void accept(const char *const *args, const char *wanted)
{
    child c;
    run_weft(&c, 0, args);
    size_t bytes = strlen(wanted), has = c.err ? strlen(c.err) : 0;
    EXPECT(has >= bytes && strcmp(c.err + has - bytes, wanted) == 0 &&
               (bytes ? child_is_line(c.err) : has == 0),
           "weft said\n%snot\n%s", c.err, wanted);
}

static void refuse(const char *const *args, const char *const *environment, int exit_code,
                   const char *wanted)
{
    child c;
    child_run(&c, args, environment);
    EXPECT(c.exit_code == exit_code && c.out && !*c.out && child_is_line(c.err) &&
               strcmp(c.err, wanted) == 0,
           "exit %d: %s%snot\n%s", c.exit_code, c.out, c.err, wanted);
}

/* What must not change, one text behind the other. */
static char *read_folder(const char *run)
{
    static const char *const names[] = {"config.json", "metrics.jsonl", "checkpoints/latest",
                                        "checkpoints/step-6/manifest.json"};
    char path[96], *all = calloc(1, 1);
    for (size_t i = 0; all && i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", run, names[i]);
        char *text = child_read(path);
        size_t used = strlen(all);
        char *larger = realloc(all, used + (text ? strlen(text) : 0) + 1);
        if (larger && text)
            strcpy((all = larger) + used, text);
    }
    return all;
}

static void expect_unchanged(const char *run, char *before, const char *what)
{
    char *now = read_folder(run);
    EXPECT(before && now && *now && strcmp(before, now) == 0, "%s: the folder changed", what);
    free(before);
    free(now);
}

/* The learning rate of a step's line, of which there is one. */
static double lr_of(const char *run, int step)
{
    char path[64], key[32];
    double lr = -1;
    int count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    snprintf(key, sizeof key, "{\"step\": %d,", step);
    char *text = child_read(path);
    for (const char *at = text; at && (at = strstr(at, key)); at++, count++) {
        const char *value = strstr(at, "\"lr\": ");
        lr = value && (at == text || at[-1] == '\n') ? strtod(value + 6, NULL) : -1;
    }
    EXPECT(count == 1, "%s: %d lines of step %d", run, count, step);
    return lr;
}

static void make_files(void)
{
    static const char letters[] = "the quick brown fox jumps over the lazy dog\n";
    char text[2001], name[16];
    for (int other = 0; other < 2; other++) {
        for (size_t i = 0; i < sizeof text - 1; i++)
            text[i] = letters[(i * (size_t)(other ? 3 : 1)) % (sizeof letters - 1)];
        text[sizeof text - 1] = '\0';
        snprintf(name, sizeof name, "%s", other ? "other" : "corpus");
        EXPECT(child_write("text.txt", text), "text.txt");
        accept(WORDS("prepare", "text.txt", "--out", name), "");
    }
    EXPECT(child_write("c.json", config), "c.json");
    EXPECT(system("for part in bin idx json; do cp corpus.$part moved.$part; cp corpus.$part "
                  "copy.$part; done") == 0,
           "no copy");
    memset(text, 'x', sizeof text - 1);
    EXPECT(child_write("text.txt", text) && system("head -c 400 text.txt >> text.txt.more; "
                                                   "cat text.txt >> text.txt.more") == 0,
           "text.txt.more");
    accept(WORDS("prepare", "text.txt.more", "--out", "longer"), "");
}

/* Trained with one learning rate, resumed by a file that has another, and for longer. */
static void check_listed(void)
{
    accept(WORDS("train", "c.json", "--out", "run", "--set", "train.lr=1e-3"), "");
    accept(WORDS("train", "c.json", "--out", "run", "--resume", "--set", "train_iters=8"),
           " rank 0 warn resume: train.train_iters 6 -> 8, train.lr 0.001 -> 0.002; "
           "train.lr_decay_iters stays 6: lr is 0.0001 from there on\n");
    EXPECT(lr_of("run", 6) > 1e-4 && lr_of("run", 6) < 2e-4 && lr_of("run", 7) == 1e-4 &&
               lr_of("run", 8) == 1e-4,
           "the learning rate jumps: %g, %g, %g", lr_of("run", 6), lr_of("run", 7),
           lr_of("run", 8));
    /* Where nothing would be learned any more, only by name. */
    refuse(WORDS("train", "c.json", "--out", "run", "--resume", "--set", "train_iters=10", "--set",
                 "min_lr=0"),
           no_mpirun, 2,
           "weft train: c.json: train.lr_decay_iters: 6, so the learning rate of steps 9 to 10 is "
           "0: give a larger one, a min_lr, or --allow-change train.lr_decay_iters\n");
    EXPECT(system("cp -r run zero") == 0, "no copy");
    accept(WORDS("train", "c.json", "--out", "zero", "--resume", "--set", "train_iters=9", "--set",
                 "min_lr=0", "--allow-change", "train.lr_decay_iters"),
           "train.lr_decay_iters stays 6: lr is 0 from there on\n");
    EXPECT(lr_of("zero", 9) == 0, "trained at %g", lr_of("zero", 9));
    /* By its own config, on another mesh; the decay is stretched where that is asked for. */
    accept(WORDS("train", "--out", "run", "--resume", "--mesh", "dp=2", "--set", "train_iters=10",
                 "--set", "lr_decay_iters=12"),
           " rank 0 warn resume: parallel.data_parallel_size 0 -> 2, train.train_iters 8 -> 10, "
           "train.lr_decay_iters 6 -> 12\n");
    EXPECT(lr_of("run", 9) > 2e-4, "the decay ends at step 12: %g", lr_of("run", 9));
}

static const char *binary(void)
{
    static char path[1024];
    const char *built = getenv("WEFT_BINARY_DIR");
    snprintf(path, sizeof path, "%s/weft", built ? built : ".");
    return path;
}

#define MPIRUN(ranks) "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, binary()

/* What makes another run: before any rank starts, also where ranks would start. */
static void check_refused(void)
{
    static const struct {
        const char *set, *wanted;
    } cases[] = {
        {"seed=9", "weft train: --set seed=9: train.seed 3 -> 9: that would be another run; "
                   "--allow-change train.seed asks for it\n"},
        {"data.split=1,1,0",
         "weft train: --set data.split=1,1,0: data.split \"969,30,1\" -> \"1,1,0\": that would be "
         "another run; --allow-change data asks for it\n"},
        {"model.rotary_base=5",
         "weft train: --set model.rotary_base=5: model.rotary_base 10000 -> 5: that would be "
         "another run; --allow-change model.rotary_base asks for it\n"},
        {"model.swiglu=true",
         "weft train: --set model.swiglu=true: model.swiglu false -> true: that is another model: "
         "start a new run, with another --out\n"},
        {"model.num_attention_heads=4",
         "weft train: --set model.num_attention_heads=4: model.num_attention_heads 2 -> 4, "
         "model.num_query_groups 2 -> 4, model.kv_channels 8 -> 4: that is another model: "
         "start a new run, with another --out\n"},
    };
    char *before = read_folder("run"), cwd[200], wanted[600];
    child c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(WORDS("train", "c.json", "--out", "run", "--resume", "--mesh", "dp=2", "--set",
                     cases[i].set, "--set", "train_iters=20"),
               no_mpirun, 2, cases[i].wanted);
    const char *const *other =
        WORDS("train", "c.json", "--out", "run", "--resume", "--set", "data_path=other", "--set",
              "train_iters=20", "--set", "lr_decay_iters=12");
    run_weft(&c, 2, other);
    EXPECT(child_is_line(c.err) &&
               strstr(c.err, "weft train: --set data_path=other: data.data_xxh64 \"") &&
               strstr(c.err,
                      " (other tokens, weights or another tokenizer): that would be another run; "
                      "--allow-change data asks for it\n"),
           "%s", c.err);
    EXPECT(system("cp -r run grown && grep -q '\"data_path\": \"/.*/corpus\"' grown/config.json") ==
               0,
           "not stored with its whole path");
    run_weft(&c, 0,
             WORDS("train", "c.json", "--out", "grown", "--resume", "--set", "data_path=other",
                   "--set", "train_iters=20", "--set", "lr_decay_iters=20", "--allow-change",
                   "data,train"));
    EXPECT(strstr(c.err, "/other: other data than the run had: the validation part begins"), "%s",
           c.err);
    refuse(WORDS("train", "--out", "run", "--resume", "--allow-change", "model", "--set",
                 "num_layers=2", "--set", "train_iters=20"),
           no_mpirun, 2,
           "weft train: --set num_layers=2: model.num_layers 1 -> 2: that is another model: start "
           "a new run, with another --out\n");
    refuse(WORDS("train", "--out", "run", "--resume-from", ""), no_mpirun, 2,
           "weft train: --resume-from: names no checkpoint; step-400 is one\n");
    refuse(WORDS("train", "--out", "run", "--resume", "--allow-change", "seed"), no_mpirun, 2,
           "weft train: --allow-change seed: not a key of the config such as train.seed, nor a "
           "section such as data\n");
    /* Under a launcher the ranks agree, and one speaks. */
    const char *const *under = WORDS(MPIRUN("2"), "train", "c.json", "--out", "run", "--resume",
                                     "--set", "seed=9", "--set", "train_iters=20");
    child_run_other("/usr/bin/env", &c, under, NULL);
    const char *said = c.err ? strstr(c.err, "--allow-change train.seed asks for it\n") : NULL;
    EXPECT(c.exit_code == 2 && said && !strstr(said + 1, "--allow-change"), "exit %d: %s",
           c.exit_code, c.err);
    expect_unchanged("run", before, "refused");
    /* The same tokens elsewhere are the same dataset. */
    EXPECT(getcwd(cwd, sizeof cwd) != NULL, "no folder");
    snprintf(wanted, sizeof wanted,
             " resume: train.train_iters 10 -> 11, data.data_path \"%s/corpus\" -> \"%s/moved\"\n",
             cwd, cwd);
    accept(WORDS("train", "--out", "run", "--resume", "--set", "data_path=moved", "--set",
                 "train_iters=11"),
           wanted);
    run_weft(&c, 0,
             WORDS("train", "--out", "run", "--resume", "--set", "data_path=other", "--set",
                   "train_iters=12", "--set", "seed=9", "--allow-change", "train.seed,data"));
    snprintf(wanted, sizeof wanted,
             "train.seed 3 -> 9, data.data_path \"%s/moved\" -> \"%s/other\", data.data_xxh64 \"",
             cwd, cwd);
    EXPECT(strstr(c.err, wanted), "%s", c.err);
}

/* In the process, by an mpirun of its own, and under one. */
static void check_finished(void)
{
    static const char said[] = "whole: finished: step 6 of train.train_iters 6 is done\n";
    child c;
    accept(WORDS("train", "c.json", "--out", "whole"), "");
    for (int i = 0; i < 4; i++) {
        const char *const commands[][16] = {
            {"train", "--out", "whole", "--resume"},
            {"train", "c.json", "--out", "whole", "--resume", "--set", "lr=5"},
            {"train", "c.json", "--out", "whole", "--resume", "--mesh", "dp=2", "--set", "seed=9",
             "--allow-change", "train.seed"},
            {MPIRUN("2"), "train", "--out", "whole", "--resume"}};
        char *before = read_folder("whole");
        child_run_other(i == 3 ? "/usr/bin/env" : NULL, &c, commands[i], i == 3 ? NULL : no_mpirun);
        EXPECT(c.exit_code == 0 && c.out && strcmp(c.out, said) == 0 && c.err && !*c.err,
               "exit %d: %s%s", c.exit_code, c.out, c.err);
        expect_unchanged("whole", before, "finished");
    }
    /* The same tokens are the same dataset. */
    CHILD_GOOD("train", "--out", "whole", "--resume", "--set", "data_path=moved");
    /* Nothing is left to do, of the run that it is. */
    CHILD_REFUSED(2, "(other tokens, weights or another tokenizer): that would be another run",
                  "train", "--out", "whole", "--resume", "--set", "data_path=other");
    CHILD_REFUSED(2, "--set data_path=nope: data.data_path: ", "train", "--out", "whole",
                  "--resume", "--set", "data_path=nope");
    refuse(WORDS("train", "c.json", "--out", "whole", "--resume", "--set", "num_layers=3"),
           no_mpirun, 2,
           "weft train: --set num_layers=3: model.num_layers 1 -> 3: that is another model: start "
           "a new run, with another --out\n");
    child_run_other(
        "/usr/bin/env", &c,
        WORDS(MPIRUN("2"), "train", "--out", "whole", "--resume", "--set", "num_layers=3"), NULL);
    EXPECT(c.exit_code == 2 && strstr(c.err, ": that is another model: "), "exit %d: %s",
           c.exit_code, c.err);
}

/* Ranks that do not see the same folder, as on two nodes without a common file system. */
static void check_not_shared(void)
{
    const char *const *commands =
        WORDS(MPIRUN("1"), "train", "c.json", "--out", "whole", "--resume", ":", "-n", "1",
              binary(), "train", "c.json", "--out", "nothing", "--resume");
    child c;
    char *before = read_folder("whole");
    child_run_other("/usr/bin/env", &c, commands, NULL);
    EXPECT(c.exit_code == 6 && c.err &&
               strstr(c.err, "weft train: whole: the newest checkpoint that ranks find there is of "
                             "step 6 for some, for others none: a run needs a file system that all "
                             "of them share\n"),
           "exit %d: %s", c.exit_code, c.err);
    EXPECT(access("nothing", F_OK) != 0, "made a folder");
    expect_unchanged("whole", before, "not shared");
    /* A new run, which nobody could save. */
    child_run_other("/usr/bin/env", &c,
                    WORDS(MPIRUN("1"), "train", "c.json", "--out", "here", ":", "-n", "1", binary(),
                          "train", "c.json", "--out", "there"),
                    NULL);
    EXPECT(c.exit_code == 6 && c.err &&
               strstr(c.err, "weft train: rank 1: there: what rank 0 made there is not seen here: "
                             "a run needs a folder that all nodes share\n"),
           "exit %d: %s", c.exit_code, c.err);
    EXPECT(access("here", F_OK) != 0 && access("there", F_OK) != 0, "made a folder");
}

/* Where nothing could be saved nothing starts. */
static void check_no_room(void)
{
    EXPECT(mkdir("narrow", 0777) == 0 && child_write("narrow/checkpoints", ""), "narrow");
    refuse(WORDS("train", "c.json", "--out", "narrow", "--mesh", "dp=1"), no_mpirun, 6,
           "weft train: narrow/checkpoints: no checkpoint can be saved there: Not a directory\n");
    EXPECT(access("narrow/config.json", F_OK) != 0, "wrote");
    EXPECT(system("rm -r narrow") == 0, "narrow");
}

/* Each node reads a file of its own. */
static void check_other_config(void)
{
    static const struct {
        const char *set, *says; /* NULL: that may be so */
    } cases[] = {
        {"lr=0.004",
         "weft train: rank 1: all ranks need the same config: train.lr is 0.004 here, on "
         "rank 0 0.002\n"},
        {"num_layers=3", "rank 1: all ranks need the same config: model.num_layers is 3 here, on "
                         "rank 0 1\n"},
        {"device.num_threads=1", NULL},
    };
    child c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        child_run_other("/usr/bin/env", &c,
                        WORDS(MPIRUN("1"), "train", "c.json", "--out", "both", ":", "-n", "1",
                              binary(), "train", "c.json", "--out", "both", "--set", cases[i].set),
                        NULL);
        EXPECT(c.exit_code == (cases[i].says ? 2 : 0) && c.err &&
                   (!cases[i].says || strstr(c.err, cases[i].says)),
               "exit %d: %s", c.exit_code, c.err);
        EXPECT((access("both", F_OK) == 0) == !cases[i].says, "a folder");
    }
    EXPECT(system("rm -r both") == 0, "both");
}

/* Two ranks of one job, each with its own path to a dataset, as nodes with copies have. */
static void train_from(child *c, const char *run, const char *both, const char *first,
                       const char *second)
{
    child_run_other("/usr/bin/env", c,
                    WORDS(MPIRUN("1"), "train", "c.json", "--out", run, "--resume", "--set", both,
                          "--set", first, ":", "-n", "1", binary(), "train", "c.json", "--out", run,
                          "--resume", "--set", both, "--set", second),
                    NULL);
}

static void check_equal_copies(void)
{
    child c;
    train_from(&c, "same", "train_iters=2", "data.data_path=corpus", "data.data_path=corpus");
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    train_from(&c, "copied", "train_iters=2", "data.data_path=corpus", "data.data_path=copy");
    char *same = child_losses("same"), *copied = child_losses("copied");
    EXPECT(c.exit_code == 0 && same && copied && strcmp(same, copied) == 0, "exit %d: %s",
           c.exit_code, c.err);
    EXPECT(access("copy.xxh64.json", F_OK) == 0, "the next start reads the copy again");
}

/* Also of a resumed run, and of a set of which rank 0 else reads no token. */
static void check_other_copies(void)
{
    static const char other[] = ": not rank 0's copy: the hash of tokens and tokenizer is ";
    static const struct {
        const char *make, *run, *both, *first, *second, *wanted;
        int exit_code;
    } cases[] = {
        {"printf x | dd of=copy.bin bs=1 seek=400 conv=notrunc 2>/dev/null", "copied",
         "train_iters=4", "data.data_path=corpus", "data.data_path=copy", other, 6},
        {"cp corpus.bin copy.bin; head -c 250 /dev/zero > copy.mask", "copied", "train_iters=4",
         "data.validation=[\"corpus\"]", "data.validation=[\"copy\"]", other, 6},
        {"true", "new", "data.data_path=null", "data.blend=[1, \"corpus\", 2, \"other\"]",
         "data.blend=[1, \"corpus\", 2, \"longer\"]",
         "/longer: not rank 0's copy: 2400 tokens in 1 document on node ", 6},
        {"true", "new", "train_iters=4", "data.validation=[\"corpus\"]",
         "data.validation=[\"corpus\", \"copy\"]",
         ": data.validation: 2 datasets, where rank 0 has 1\n", 2},
    };
    static const char said_by[] = "weft train: rank 1: ";
    child c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT(system(cases[i].make) == 0, "%s", cases[i].make);
        train_from(&c, cases[i].run, cases[i].both, cases[i].first, cases[i].second);
        EXPECT(c.exit_code == cases[i].exit_code && c.err && strstr(c.err, said_by) &&
                   strstr(c.err, cases[i].wanted),
               "exit %d: %s", c.exit_code, c.err);
    }
    EXPECT(access("new", F_OK) != 0, "made a folder");
}

static int lines_of(const char *path)
{
    int count = 0;
    char *text = child_peek(path);
    for (const char *at = text; at && (at = strchr(at, '\n')); at++)
        count++;
    free(text);
    return count;
}

static void wait_for(const char *path)
{
    for (int i = 0; i < 1000 * CHILD_PATIENCE_S && access(path, F_OK) != 0; i++)
        usleep(1000);
}

/* A second training is refused, whoever starts it, and by name; after a SIGKILL the folder is
 * free.
 */
static void check_lock(const char *mesh, const char *other)
{
    const char *const *first = WORDS("train", "c.json", "--out", "busy", "--mesh", mesh, "--set",
                                     "train_iters=1000000", "--set", "save_interval=0");
    const char *second[] = {"train", "c.json", "--out", "busy", "--mesh", other, "--resume", NULL};
    char host[128] = "", wanted[300];
    pid_t ranks[4] = {0};
    child c;
    gethostname(host, sizeof host - 1);
    EXPECT(child_start(&c, first, NULL), "cannot start weft");
    wait_for("busy/metrics.jsonl");
    if (child_ranks(&c, ranks, 4) == 0)
        ranks[0] = c.pid;
    snprintf(wanted, sizeof wanted,
             "weft train: busy: another training is at work there: pid %d on %s; wait for its end, "
             "or give another --out\n",
             (int)ranks[0], host);
    refuse(second, no_mpirun, 2, wanted);
    child_release(&c);
    /* No checkpoint yet: resumed all the same. */
    accept(second, " rank 0 info resume: busy has no checkpoint yet: it starts again at step 0\n");
    EXPECT(lr_of("busy", 1) > 0 && lr_of("busy", STEPS) > 0, "not trained");
    EXPECT(system("rm -r busy") == 0, "busy");
}

/* Without `latest`, or where it leads nowhere, the newest is gone on from. And metrics that
 * lost their last newline lose no line. */
static void check_latest(void)
{
    for (int i = 0; i < 2; i++) {
        char refused[200], warned[200], iters[32];
        child c;
        EXPECT(i ? child_write("whole/checkpoints/latest", "step-99\n")
                 : unlink("whole/checkpoints/latest") == 0,
               "latest");
        EXPECT(system("truncate -s -1 whole/metrics.jsonl") == 0, "metrics.jsonl");
        snprintf(refused, sizeof refused,
                 "weft train: whole: holds checkpoints already (the newest: step-%d); give "
                 "--resume to go on, or another --out\n",
                 STEPS + i);
        refuse(WORDS("train", "c.json", "--out", "whole"), no_mpirun, 2, refused);
        run_weft(&c, 0, WORDS("train", "--out", "whole", "--resume"));
        EXPECT(c.out && strstr(c.out, "whole: finished: step ") && c.err &&
                   strstr(c.err, "whole/checkpoints/latest names no checkpoint: "),
               "%s%s", c.out, c.err);
        snprintf(iters, sizeof iters, "train_iters=%d", STEPS + i + 1);
        run_weft(&c, 0, WORDS("train", "--out", "whole", "--resume", "--set", iters));
        snprintf(warned, sizeof warned,
                 " rank 0 warn whole/checkpoints/latest names no checkpoint: "
                 "whole/checkpoints/step-%d is taken\n",
                 STEPS + i);
        EXPECT(c.err && strstr(c.err, warned), "%s", c.err);
        for (int step = 1; step <= STEPS + i + 1; step++)
            EXPECT(lr_of("whole", step) > 0, "no step %d", step);
    }
}

/* A first save that was killed before it wrote `latest` has left one whole checkpoint: no
 * fault. */
static void check_first_save(void)
{
    char iters[32];
    child c;
    EXPECT(system("cp -r whole first && cd first/checkpoints && rm latest && "
                  "ls -d step-* | sort -V | head -n -1 | xargs rm -r") == 0,
           "no folder");
    snprintf(iters, sizeof iters, "train_iters=%d", STEPS + 3);
    run_weft(&c, 0, WORDS("train", "--out", "first", "--resume", "--set", iters));
    EXPECT(c.err && !strstr(c.err, "names no checkpoint"), "%s", c.err);
    EXPECT(lr_of("first", STEPS + 3) > 0, "not trained");
}

/* Checkpoints that were there and are gone: resumed neither, nor are the metrics replaced. Who
 * starts anew all the same, and has not saved yet, has lost nothing. */
static void check_lost(const char *async)
{
    const char *const *again =
        WORDS("train", "--out", "lost", "--set", "train_iters=8", "--resume");
    const char *const *anew = WORDS("train", "c.json", "--out", "lost", "--set",
                                    "train_iters=1000000", "--set", "save_interval=0");
    child c;
    accept(WORDS("train", "c.json", "--out", "lost", "--set", async), "");
    EXPECT(system("mv lost/checkpoints gone") == 0, "not moved");
    char *before = child_read("lost/metrics.jsonl");
    refuse(again, no_mpirun, 6,
           "weft train: lost/checkpoints: has no checkpoint, but the run has saved step 6: "
           "restore "
           "them to go on, or start anew without --resume or with another --out\n");
    char *after = child_read("lost/metrics.jsonl");
    EXPECT(before && after && strcmp(before, after) == 0, "metrics: %s", after);
    EXPECT(unlink("lost/metrics.jsonl") == 0 && child_start(&c, anew, NULL), "cannot start weft");
    wait_for("lost/metrics.jsonl");
    while (!child_wait(&c, 0.01) && lines_of("lost/metrics.jsonl") < 1)
        ;
    child_kill(&c);
    child_release(&c);
    accept(again, " rank 0 info resume: lost has no checkpoint yet: it starts again at step 0\n");
    EXPECT(system("rm -r lost gone") == 0, "lost");
}

/* Rank 0, stopped; 0: it has ended. */
static pid_t hold(child *c)
{
    char path[64];
    pid_t ranks[4] = {c->pid};
    child_ranks(c, ranks, 4);
    if (child_wait(c, 0) || kill(ranks[0], SIGSTOP) != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)ranks[0]);
    for (bool is_held = false; !is_held && !child_is_gone(ranks[0]);) {
        char *text = child_peek(path);
        is_held = text && strstr(text, ") T ");
        free(text);
    }
    return ranks[0];
}

/* The folder is renamed, or removed, under the run: one line then and one at the end, no path
 * that leads nowhere, exit 6; and no start more.
 */
static void check_moved(const char *mesh, const char *command, int iterations)
{
    char set[32];
    const char *const *args =
        WORDS("train", "c.json", "--out", "moving", "--mesh", mesh, "--set", set, "--set",
              "save_interval=0", "--set", "reliability.max_restarts=3");
    static const char said[] = ": moving is no longer the folder that this run opened: ";
    child c;
    snprintf(set, sizeof set, "train_iters=%d", iterations);
    EXPECT(child_start(&c, args, NULL), "cannot start weft");
    while (lines_of("moving/metrics.jsonl") < 3 && !child_wait(&c, 0.005))
        ;
    const pid_t held = hold(&c);
    if (lines_of("moving/metrics.jsonl") > iterations - 3) { /* this process came too late */
        child_release(&c);
        EXPECT(system("rm -r moving") == 0, "moving");
        check_moved(mesh, command, 4 * iterations);
        return;
    }
    EXPECT(system(command) == 0, "%s", command);
    if (held)
        kill(held, SIGCONT);
    EXPECT(child_wait_for_text(&c, c.err_path, said), "it is not said");
    if (iterations >= ENDLESS)
        kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "goes on");
    const char *at = c.err ? strstr(c.err, said) : NULL;
    EXPECT(c.exit_code == 6 && at && !strstr(at + 1, said) &&
               strstr(at, "weft train: moving was moved or removed amid the run") && c.out &&
               !strstr(at, "it is started again") && !strstr(c.out, "metrics: "),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
    child_release(&c);
    EXPECT(system("rm -rf moving away") == 0, "moving");
}

int main(void)
{
    child_begin();
    make_files();
    refuse(WORDS("train", "--out", "run", "--resume"), no_mpirun, 2,
           "weft train: run/config.json: not there; a run's first start needs a CONFIG\n");
    check_listed();
    check_refused();
    check_finished();
    check_not_shared();
    check_other_config();
    check_no_room();
    check_equal_copies();
    check_other_copies();
    check_lock("dp=1", "dp=2");
    check_lock("dp=2", "dp=1");
    check_latest();
    check_first_save();
    check_moved("dp=1", "mv moving away", ENDLESS);
    check_moved("dp=2", "rm -r moving", ENDLESS);
    check_moved("dp=1", "rm -r moving", 4000);
    check_lost("checkpoint.async_save=false");
    check_lost("checkpoint.async_save=true");
    return child_finish();
}
