/* Damaged, foreign and unfitting checkpoints are refused by name; a save that cannot write leaves
 * the last one as it was. One process, no MPI. Saves that are killed, between any two of their
 * calls: test_checkpoint_folder.c and test_checkpoint_async.c. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint_tiny.h"

/* --- what is there ------------------------------------------------------------------------- */

static void test_texts(const char *dir)
{
    tiny t;
    weft_arena arena = {0};
    const char *folder, *text;
    weft_checkpoint_info info;
    char path[300];
    if (tiny_create(&t, PLAIN)) {
        EXPECT_ERROR(weft_checkpoint_resolve(dir, &arena, &folder), WEFT_FILE,
                     "no checkpoint there");
        snprintf(path, sizeof path, "%s/deep/checkpoints", dir);
        EXPECT_OK(save_step(&t, path, 7));
        snprintf(path, sizeof path, "%s/deep", dir);
        EXPECT_OK(weft_checkpoint_resolve(path, &arena, &folder));
        EXPECT(strstr(folder, "deep/checkpoints/step-7"), "%s", folder);
        EXPECT_OK(weft_checkpoint_resolve(folder, &arena, &text));
        EXPECT(!strcmp(folder, text), "%s is not itself", folder);
        EXPECT_OK(weft_checkpoint_read_info(folder, &info));
        EXPECT(info.step == 7 && info.consumed_tokens == 28 && info.seed == UINT64_MAX - 1,
               "other numbers");
        EXPECT(info.bad_steps == 14 && info.skipped_batches == 3 &&
                   info.loss_mean.mean == 2.0 / 3 && info.loss_mean.count == 7,
               "%lld bad steps, mean %g", (long long)info.bad_steps, info.loss_mean.mean);
        const weft_loss_scale *scale = &info.loss_scale;
        EXPECT(scale->scale == 1.0 / 3 && scale->good_steps == 7 && scale->overflows_left == 1 &&
                   scale->skipped_steps == 1,
               "another loss scale: %g", scale->scale);
        EXPECT_OK(weft_checkpoint_read_config(folder, &arena, &text));
        EXPECT(!strcmp(text, "{\"model\": {}}"), "%s", text);
        EXPECT_OK(weft_checkpoint_read_tokenizer(folder, &arena, &text));
        EXPECT(text && !strcmp(text, "{\"kind\": \"bytes\"}"), "%s", text);

        snprintf(path, sizeof path, "%s/deep/checkpoints/latest", dir);
        FILE *latest = fopen(path, "w");
        fputs("step-8\n", latest);
        fclose(latest);
        snprintf(path, sizeof path, "%s/deep", dir);
        EXPECT_ERROR(weft_checkpoint_resolve(path, &arena, &folder), WEFT_FILE, "names step-8");
        snprintf(path, sizeof path, "%s/deep/checkpoints/latest", dir);
        latest = fopen(path, "w");
        fputs("../../etc\n", latest);
        fclose(latest);
        snprintf(path, sizeof path, "%s/deep", dir);
        EXPECT_ERROR(weft_checkpoint_resolve(path, &arena, &folder), WEFT_FILE,
                     "should say \"step-N\"");
    }
    weft_arena_release(&arena);
    tiny_release(&t);
}

static void test_inspect(const char *folder)
{
    weft_arena arena = {0};
    weft_checkpoint_contents c = {.num_shards = 0};
    EXPECT_OK(weft_checkpoint_inspect(folder, &arena, &c));
    EXPECT(c.info.step == 1 && c.num_parameters == 38 && c.has_optimizer && c.num_shards > 0,
           "step %lld, %llu parameters", (long long)c.info.step,
           (unsigned long long)c.num_parameters);
    bool found = false;
    for (int i = 0; i < c.datasets.count; i++) {
        const weft_stored *s = &c.datasets.items[i];
        found = found || (strcmp(s->name, "model/alpha") == 0 && s->num_dims == 2 &&
                          s->dims[0] == 5 && s->dims[1] == 7);
    }
    EXPECT(found, "no model/alpha of 5 x 7 among %d", c.datasets.count);
    weft_arena_release(&arena);
}

/* --- refusals ------------------------------------------------------------------------------ */

static const char *const files[] = {"model.h5", "shards.json", "config.json", "tokenizer.json",
                                    "manifest.json"};
enum { NUM_FILES = 5 };

static void test_one_file(tiny *t, const char *folder, const char *name)
{
    char path[300];
    size_t count;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *good = read_bytes(path, &count), *bad = malloc(count + 1);
    bool is_manifest = !strcmp(name, "manifest.json");

    const size_t lengths[] = {0, 1, count / 2, count - 1};
    for (int i = 0; i < 4; i++) {
        write_bytes(path, good, lengths[i]);
        EXPECT_ERROR(load(t, folder), WEFT_FILE, name);
        EXPECT_ERROR(weft_checkpoint_verify(folder), WEFT_FILE, name);
    }
    memset(bad, 'x', count); /* a foreign file of the same size */
    write_bytes(path, bad, count);
    EXPECT_ERROR(load(t, folder), WEFT_FILE, name);
    unlink(path);
    EXPECT_ERROR(load(t, folder), WEFT_FILE, name);
    for (int i = 0; i < 150; i++) {
        size_t at = (size_t)(weft_rng_uniform(5, (uint64_t)count, (uint64_t)i) * (float)count);
        memcpy(bad, good, count);
        bad[at] ^= (char)(1 << i % 8);
        write_bytes(path, bad, count);
        weft_checkpoint_info info;
        weft_status status = load(t, folder);
        EXPECT(status == WEFT_FILE && strstr(weft_error_get()->text, name),
               "%s byte %zu: status %d, \"%s\"", name, at, status, weft_error_get()->text);
        weft_error_clear();
        if (is_manifest)
            EXPECT_ERROR(weft_checkpoint_read_info(folder, &info), WEFT_FILE, name);
    }
    write_bytes(path, good, count);
    EXPECT_OK(load(t, folder));
    free(good);
    free(bad);
}

static void test_damage(const char *folder)
{
    tiny t;
    if (tiny_create(&t, PLAIN)) {
        for (int i = 0; i < NUM_FILES; i++)
            test_one_file(&t, folder, files[i]);
        EXPECT(visit_state(&t, 1, false) == 0, "the state differs in the end");
    }
    tiny_release(&t);
}

static void test_unfitting(const char *folder)
{
    static const struct {
        variant v;
        const char *text;
    } cases[] = {{EXTRA, "lacks model/gamma, which the model has"},
                 {LACKING, "has model/beta, which the model lacks"},
                 {OTHER_SHAPE, "model/alpha has shape [5, 7], the model wants [6, 7]"}};
    for (int i = 0; i < 3; i++) {
        tiny t;
        if (tiny_create(&t, cases[i].v)) {
            EXPECT_ERROR(weft_checkpoint_load_weights(folder, t.parameters, t.lane), WEFT_FILE,
                         cases[i].text);
            EXPECT_ERROR(load(&t, folder), WEFT_FILE, "model.h5: ");
        }
        tiny_release(&t);
    }
}

/* --- saves that fail ----------------------------------------------------------------------- */

/* The last good checkpoint is there, and nothing else is. */
static void check_untouched(tiny *t, const char *dir, int64_t step)
{
    weft_arena arena = {0};
    const char *folder = "";
    visit_state(t, step + 100, true);
    EXPECT_OK(weft_checkpoint_resolve(dir, &arena, &folder));
    EXPECT_OK(load(t, folder));
    EXPECT(visit_state(t, step, false) == 0, "%s is not step %lld", folder, (long long)step);
    EXPECT(count_entries(dir) == 2, "%d entries in %s", count_entries(dir), dir);
    weft_arena_release(&arena);
}

/* A limit on the size of files stands for a disk that is full. */
static void test_no_space(const char *dir)
{
    tiny t;
    struct rlimit limit, old;
    if (tiny_create(&t, LARGE)) {
        EXPECT_OK(save_step(&t, dir, 1));
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &old);
        limit = old;
        const rlim_t limits[] = {0, 100, 4096, 1000000, 5000000};
        for (int i = 0; i < 5; i++) {
            limit.rlim_cur = limits[i];
            setrlimit(RLIMIT_FSIZE, &limit);
            weft_status status = save_step(&t, dir, 2);
            setrlimit(RLIMIT_FSIZE, &old);
            EXPECT_ERROR(status, WEFT_FILE, ".step-2.saving/");
            check_untouched(&t, dir, 1);
        }
        EXPECT_OK(save_step(&t, dir, 2));
    }
    tiny_release(&t);
}

static void test_not_a_folder(const char *dir)
{
    tiny t;
    char path[300];
    snprintf(path, sizeof path, "%s/file", dir);
    write_bytes(path, "x", 1);
    if (tiny_create(&t, PLAIN)) {
        EXPECT_ERROR(save_step(&t, path, 1), WEFT_FILE, "/file");
        snprintf(path, sizeof path, "%s/file/below", dir);
        EXPECT_ERROR(save_step(&t, path, 1), WEFT_FILE, "/file");
    }
    tiny_release(&t);
}

int main(void)
{
    char root[] = "test_checkpoint_faults_XXXXXX", dir[64], folder[128];
    tiny t;
    if (!mkdtemp(root))
        return 1;
    snprintf(dir, sizeof dir, "%s/space", root);
    test_no_space(dir);
    test_not_a_folder(root);
    test_texts(root);
    snprintf(dir, sizeof dir, "%s/damage", root);
    if (tiny_create(&t, PLAIN))
        EXPECT_OK(save_step(&t, dir, 1));
    tiny_release(&t);
    snprintf(folder, sizeof folder, "%s/step-1", dir);
    test_inspect(folder);
    test_unfitting(folder);
    test_damage(folder);
    remove_tree(root);
    return expect_finish();
}
