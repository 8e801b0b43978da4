/* Where a resumed run goes on in its data: at the token behind the last one it has seen, with
 * samples of the same length, longer ones, another batch, and from a checkpoint that counts
 * samples. Tokens of the dataset are their own places in it. */
#include <stdlib.h>
#include <string.h>

#include "launcher/training/trainer.h"
#include "parallel/checkpoint/internal.h"
#include "tests/expect.h"

enum { NUM_TOKENS = 2561, STEP_TOKENS = 64, STEPS = 5, MAX_TOKENS = STEPS * STEP_TOKENS };

static char folder[64];

typedef struct run_case {
    int seq, batch, block;
} run_case;

static const char *config_text(const run_case *c, char *out, size_t capacity)
{
    snprintf(out, capacity,
             "{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 1, "
             "\"seq_length\": %d, \"vocab_size\": %d, \"position_embedding_type\": \"rope\"}, "
             "\"train\": {\"global_batch_size\": %d, \"train_iters\": 100, \"seed\": 3, \"lr\": "
             "1e-3}, \"data\": {\"data_path\": \"%s/corpus\", \"split\": \"9,1,0\", "
             "\"shuffle_block_tokens\": %d}, \"log\": {\"trace_step\": 0}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}",
             c->seq, NUM_TOKENS, c->batch, folder, c->block);
    return out;
}

/* Goes on from `from` (NULL: afresh), saves as folder/to (NULL: no) and returns how many tokens it
 * has seen, in the order of the samples. */
static int train(const run_case *c, int steps, const char *from, const char *to, int32_t *seen)
{
    char text[1024], path[128];
    weft_arena arena = {0};
    weft_comm *world;
    weft_config config;
    weft_trainer trainer;
    weft_step_result result;
    weft_config_source source = {.file = "test", .text = config_text(c, text, sizeof text)};
    int count = 0;
    EXPECT_OK(weft_comm_create_self(&world));
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_trainer_create(&trainer, &config, &source, world, &arena));
    EXPECT_OK(weft_trainer_start(&trainer, from));
    for (int i = 0; i < steps && expect_failures == 0; i++) {
        EXPECT_OK(weft_trainer_step(&trainer, &result));
        memcpy(seen + count, trainer.input.batches.tokens,
               (size_t)(c->seq * c->batch) * sizeof *seen);
        count += c->seq * c->batch;
    }
    snprintf(path, sizeof path, "%s/%s", folder, to ? to : "");
    if (to && expect_failures == 0)
        EXPECT_OK(weft_trainer_save(&trainer, path));
    weft_trainer_release(&trainer);
    weft_comm_destroy(world);
    weft_arena_release(&arena);
    return count;
}

static void expect_tokens(const char *what, const int32_t *seen, const int32_t *wanted, int count)
{
    for (int i = 0; i < count; i++)
        if (seen[i] != wanted[i]) {
            EXPECT(false, "%s: token %d is %d, not %d", what, i, seen[i], wanted[i]);
            return;
        }
}

static void write_dataset(void)
{
    char path[128];
    int32_t tokens[NUM_TOKENS];
    weft_dataset_writer *writer;
    snprintf(path, sizeof path, "%s/corpus", folder);
    for (int i = 0; i < NUM_TOKENS; i++)
        tokens[i] = i;
    EXPECT_OK(weft_dataset_writer_create(path, NUM_TOKENS, &writer));
    EXPECT_OK(weft_dataset_writer_add(writer, tokens, NUM_TOKENS));
    EXPECT_OK(weft_dataset_writer_finish(writer));
    EXPECT_OK(weft_dataset_writer_commit(writer));
    weft_dataset_writer_destroy(writer);
}

/* The manifest as it was before positions were counted in tokens. */
static void count_in_samples(const char *checkpoint, int seq)
{
    char path[160], end[WEFT_MANIFEST_END_BYTES];
    snprintf(path, sizeof path, "%s/manifest.json", checkpoint);
    FILE *file = fopen(path, "r");
    static char text[1 << 16], old[1 << 16];
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    if (file)
        fclose(file);
    char *tokens = strstr(text, "\"consumed_tokens\": "),
         *behind = tokens ? strchr(tokens, ',') : NULL;
    char *version = strstr(text, "\"version\": 2"), *hash = strstr(text, ",\n  \"xxh64\": \"");
    for (char *next = hash; next && (next = strstr(next + 1, ",\n  \"xxh64\": \"")) != NULL;)
        hash = next;
    EXPECT(tokens && behind && version && hash, "%s: %s", path, text);
    if (!tokens || !behind || !version || !hash)
        return;
    version[strlen("\"version\": ")] = '1';
    const long count = strtol(tokens + strlen("\"consumed_tokens\": "), NULL, 10);
    *hash = *tokens = '\0';
    int length =
        snprintf(old, sizeof old, "%s\"consumed_samples\": %ld%s", text, count / seq, behind);
    weft_manifest_print_end(old, (size_t)length, end);
    file = fopen(path, "w");
    EXPECT(file && fprintf(file, "%s%s", old, end) > 0 && fclose(file) == 0, "%s", path);
}

/* Blocks give samples of any length one order of tokens. */
static void check_blocks(const int32_t *straight)
{
    static const run_case rows[] = {{8, 8, 64}, {8, 4, 64}, {16, 4, 64}, {32, 2, 64}, {64, 1, 64}};
    int32_t seen[MAX_TOKENS];
    char from[128];
    snprintf(from, sizeof from, "%s/blocks/step-3", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64];
        snprintf(name, sizeof name, "blocks: %d x %d", rows[i].batch, rows[i].seq);
        const int count = train(&rows[i], 2, from, NULL, seen);
        expect_tokens(name, seen, straight + 3 * STEP_TOKENS, count);
    }
}

/* Without them each length has an order of its own, in which the count is the same. */
static void check_own_orders(void)
{
    const run_case before = {8, 8, 0}, same = {8, 4, 0}, longer = {16, 4, 0};
    int32_t straight[MAX_TOKENS], other[MAX_TOKENS], seen[MAX_TOKENS];
    char from[128];
    snprintf(from, sizeof from, "%s/own/step-3", folder);
    train(&before, 3, NULL, "own", seen);
    train(&before, STEPS, NULL, NULL, straight);
    train(&longer, STEPS, NULL, NULL, other);
    int count = train(&same, 2, from, NULL, seen);
    expect_tokens("half the batch", seen, straight + 3 * STEP_TOKENS, count);
    count = train(&longer, 2, from, NULL, seen);
    expect_tokens("twice the length", seen, other + 3 * STEP_TOKENS, count);
    count_in_samples(from, 8);
    count = train(&before, 2, from, NULL, seen);
    expect_tokens("a checkpoint that counts samples", seen, straight + 3 * STEP_TOKENS, count);
    count = train(&longer, 2, from, NULL, seen);
    expect_tokens("the same, twice the length", seen, other + 3 * STEP_TOKENS, count);
}

/* A length that the position is no multiple of: the sample that holds the next token comes. */
static void check_inside(const int32_t *straight)
{
    const run_case odd = {8, 3, 64}, longer = {32, 2, 64};
    int32_t seen[MAX_TOKENS];
    char from[128];
    train(&odd, 1, NULL, "odd", seen);
    expect_tokens("three samples", seen, straight, 24);
    snprintf(from, sizeof from, "%s/odd/step-1", folder);
    const int count = train(&longer, 1, from, NULL, seen);
    expect_tokens("the sample that holds token 24", seen, straight, count);
}

int main(void)
{
    const run_case blocks = {8, 8, 64};
    int32_t straight[MAX_TOKENS], seen[MAX_TOKENS];
    snprintf(folder, sizeof folder, "/tmp/weft-position-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL, "%s", folder);
    write_dataset();
    train(&blocks, STEPS, NULL, NULL, straight);
    for (int i = 1; i < STEPS; i++) /* shuffled, and in blocks */
        EXPECT(straight[i * STEP_TOKENS] % STEP_TOKENS == 0 &&
                   straight[i * STEP_TOKENS + STEP_TOKENS - 1] ==
                       straight[i * STEP_TOKENS] + STEP_TOKENS - 1,
               "step %d has no block", i + 1);
    EXPECT(straight[STEP_TOKENS] != straight[0] + STEP_TOKENS, "in order");
    train(&blocks, 3, NULL, "blocks", seen);
    check_blocks(straight);
    check_own_orders();
    check_inside(straight);
    expect_shell("rm -rf %s", folder);
    return expect_finish();
}
