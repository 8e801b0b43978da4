/* A run whose newest checkpoint is damaged goes on from the one before, with one line, and has the
 * bits of a run that was resumed from there by name: whatever of it is damaged, on one rank and on
 * two. A checkpoint that is named never falls back, nor does a run more often than
 * checkpoint.fallback. The damaged one stays until its step is saved again. And how many
 * checkpoints a run keeps. */
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 6, \"lr\": 1e-3, "
    "\"lr_decay_style\": \"constant\"},\n"
    "\"checkpoint\": {\"save_interval\": 2}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static void run_weft(child *c, const char *const *args, int exit_code)
{
    child_run(c, args, NULL);
    EXPECT(c->exit_code == exit_code, "weft %s: exit %d: %s%s", args[0], c->exit_code, c->out,
           c->err);
}

/* What is done to checkpoints/step-N of the folder "run", a shell's words after "cd" into it. */
typedef struct damage {
    const char *name, *command;
} damage;

/* Elements lie at the end of model.h5, and the manifest's own hash at its end. */
static const damage damages[] = {
    {"a flipped element", "printf '\\125' | dd of=model.h5 bs=1 conv=notrunc status=none "
                          "seek=$(($(stat -c %s model.h5) - 6))"},
    {"a cut file", "truncate -s -100 model.h5"},
    {"no file", "rm model.h5"},
    {"an empty manifest", ": >manifest.json"},
    {"a flipped manifest", "sed -i 's/\"step\": /\"step\":  /' manifest.json"},
    {"other shards", "sed -i 's/0/1/' shards.json"},
    {"no config", "rm config.json"},
};
enum { NUM_DAMAGES = sizeof damages / sizeof *damages };

static void do_damage(const damage *d, int step)
{
    char command[512];
    snprintf(command, sizeof command, "cd run/checkpoints/step-%d && { %s; }", step, d->command);
    expect_shell("%s", command);
}

static void check_falls(const damage *d, const char *mesh)
{
    static const char taken[] = " rank 0 warn resume: run/checkpoints/step-4 is taken: "
                                "run/checkpoints/step-6 is damaged: ";
    child c;
    expect_shell("rm -rf run; cp -r trained run");
    do_damage(d, 6);
    run_weft(&c,
             WORDS("train", "c.json", "--out", "run", "--resume", "--mesh", mesh, "--set",
                   "train_iters=7", "--set", "save_interval=0"),
             0);
    EXPECT(c.err && strstr(c.err, taken), "%s, %s: %s", d->name, mesh, c.err);
    const char *said = c.err ? strstr(c.err, " is damaged") : NULL;
    EXPECT(said && !strstr(said + 1, " is damaged"), "%s, %s: said twice: %s", d->name, mesh,
           c.err);
    expect_shell("grep -qx step-7 run/checkpoints/latest");
    EXPECT(access("run/checkpoints/step-6", F_OK) == 0, "%s: the damaged one is gone", d->name);
    child_expect_losses("run", "wanted");
}

static void check_every_damage(const char *mesh)
{
    expect_shell("rm -rf wanted; cp -r trained wanted");
    CHILD_GOOD("train", "c.json", "--out", "wanted", "--resume-from", "step-4", "--mesh", mesh,
               "--set", "train_iters=7");
    for (int i = 0; i < NUM_DAMAGES; i++)
        check_falls(&damages[i], mesh);
}

/* One that is named is refused, and so is the newest where falling back is off. */
static void check_refused(const damage *d)
{
    const char *const commands[][12] = {
        {"train", "c.json", "--out", "run", "--resume-from", "step-6", "--set", "train_iters=9"},
        {"train", "c.json", "--out", "run", "--resume", "--set", "train_iters=9", "--set",
         "checkpoint.fallback=0"},
        {"train", "c.json", "--out", "run", "--resume", "--mesh", "dp=2", "--set", "train_iters=9",
         "--set", "checkpoint.fallback=0"}};
    expect_shell("rm -rf run; cp -r trained run");
    do_damage(d, 6);
    for (int i = 0; i < 3; i++)
        child_refused(commands[i], 6,
                      "; step-4 is whole: go on from it with --resume-from step-4\n");
}

static const char *const two_are_damaged[] = {
    "warn resume: run/checkpoints/step-2 is taken: run/checkpoints/step-6 is damaged, and 1 more "
    "checkpoint: ",
    NULL};

/* Two in a row are more than one, whichever way each of them is found. */
static void check_count(int newest, int before)
{
    const char *args[] = {"train",
                          "c.json",
                          "--out",
                          "run",
                          "--resume",
                          "--set",
                          "train_iters=7",
                          "--set",
                          "checkpoint.fallback=1",
                          NULL};
    expect_shell("rm -rf run; cp -r trained run");
    do_damage(&damages[newest], 6);
    do_damage(&damages[before], 4);
    child_says(args, 6, NULL,
               WORDS("run/checkpoints/step-6/",
                     "; step-2 is whole: go on from it with --resume-from step-2\n"));
    args[8] = "checkpoint.fallback=2";
    child_says(args, 0, NULL, two_are_damaged);
    do_damage(&damages[newest], 2);
    expect_shell("rm -r run/checkpoints/step-7; echo step-6 >run/checkpoints/latest");
    do_damage(&damages[before], 6);
    do_damage(&damages[before], 4);
    args[8] = "checkpoint.fallback=9";
    child_refused(args, 6, "; no other checkpoint there is whole\n");
}

/* Nobody watches a run that is to start again by itself: it passes over as many as it must. */
static void check_unwatched(void)
{
    const char *args[] = {"train",
                          "c.json",
                          "--out",
                          "run",
                          "--resume",
                          "--set",
                          "train_iters=7",
                          "--set",
                          "reliability.max_restarts=1",
                          "--set",
                          "checkpoint.fallback=1",
                          NULL};
    child c;
    expect_shell("rm -rf run; cp -r trained run");
    do_damage(&damages[0], 6);
    do_damage(&damages[3], 4);
    args[10] = "checkpoint.fallback=0";
    run_weft(&c, args, 6);
    args[10] = "checkpoint.fallback=1";
    child_says(args, 0, NULL, two_are_damaged);
}

/* What a newer Weft has saved is no damage: nothing is taken in its place, and nothing replaces
 * it. */
static void check_newer(void)
{
    static const char *const starts[][9] = {
        {"train", "c.json", "--out", "run", "--resume", "--set", "train_iters=7"},
        {"train", "c.json", "--out", "run", "--resume-from", "step-4", "--set", "train_iters=7"},
        {"inspect", "run"},
        {"generate", "run", "--prompt", "a", "--num-tokens", "1"}};
    static const char said[] = "run/checkpoints/step-6/manifest.json: format version 30: a newer "
                               "Weft wrote it; this one reads versions up to ";
    expect_shell("rm -rf run; cp -r trained run; sed -i 's/\"version\": [0-9]*/\"version\": 30/' "
                 "run/checkpoints/step-6/manifest.json; cp -r run/checkpoints/step-6 newer");
    for (int i = 0; i < 4; i++)
        child_refused(starts[i], 2, said);
    /* Nor is it taken where the newest is damaged. */
    expect_shell("rm -rf run; cp -r trained run; cp newer/manifest.json run/checkpoints/step-4/");
    do_damage(&damages[0], 6);
    child_refused(starts[0], 2, "step-4/manifest.json: format version 30: ");
    expect_shell("diff -r newer/manifest.json run/checkpoints/step-4/manifest.json");
}

/* What only reads a checkpoint takes no other, but names the newest that is whole. */
static void check_readers(void)
{
    static const char *const readers[][7] = {
        {"eval", "run", "--iters", "1", "--split", "train"},
        {"eval", "run/checkpoints", "--iters", "1", "--split", "train"},
        {"eval", "run", "--mesh", "dp=2", "--split", "train"},
        {"generate", "run", "--prompt", "a", "--num-tokens", "1"}};
    static const int done[] = {1, 2, 3, 6}; /* of damages: to what all of them read */
    static const char whole[] = "; run/checkpoints/step-2 is whole: give that\n";
    for (size_t d = 0; d < sizeof done / sizeof *done; d++) {
        expect_shell("rm -rf run; cp -r trained run");
        do_damage(&damages[done[d]], 6);
        do_damage(&damages[1], 4);
        for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
            child_refused(readers[i], 6, whole);
    }
    expect_shell("rm run/checkpoints/step-6/manifest.json");
    child_says(readers[0], 6, NULL, WORDS("names step-6, which has no manifest.json", whole));
    do_damage(&damages[1], 2);
    child_says(readers[0], 6, NULL, WORDS("!is whole"));
}

/* A run keeps the latest checkpoints and those of multiples; none at all is refused. */
static void check_keep(void)
{
    const char *args[] = {"train", "c.json",
                          "--out", "kept",
                          "--set", "save_interval=1",
                          "--set", "keep_latest_k=2",
                          "--set", "save_retain_interval=3",
                          NULL};
    child c;
    run_weft(&c, args, 0);
    EXPECT(c.err && !*c.err, "%s", c.err);
    expect_shell(
        "cd kept/checkpoints && test \"$(ls -A | tr '\\n' ' ')\" = 'latest step-3 step-5 step-6 '");
    args[7] = "keep_latest_k=0";
    args[3] = "none";
    child_refused(args, 2,
                  "checkpoint.keep_latest_k: 0 would keep no checkpoint: 1 keeps the newest, "
                  "-1 all");
    EXPECT(access("none", F_OK) != 0, "a folder was made");
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    CHILD_GOOD("train", "c.json", "--out", "trained");
    check_every_damage("dp=1");
    check_every_damage("dp=2");
    check_refused(&damages[0]);
    check_refused(&damages[3]);
    check_count(0, 3);
    check_count(3, 0);
    check_count(0, 0);
    check_unwatched();
    check_newer();
    check_readers();
    check_keep();
    return child_finish();
}
