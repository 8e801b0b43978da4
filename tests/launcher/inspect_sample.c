/* weft inspect RUN --sample N shows what step N read: the tokens that the trainer itself has in its
 * micro-batches, the documents that they are of, and their text; with a batch that is another since
 * a resume, by a config that is no longer the run's last. */
#include <stdlib.h>
#include <unistd.h>

#include "launcher/training/trainer.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

enum { SEQ = 24, BATCH = 2, MICRO = 2, STEPS = 4, LATER = 6, STEP_TOKENS = SEQ * BATCH * MICRO };

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 1, "
    "\"seq_length\": 24, \"position_embedding_type\": \"rope\"},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 4, \"train_iters\": 4, \"lr\": "
    "1e-3, \"lr_decay_style\": \"constant\"},\n"
    "\"data\": {\"data_path\": \"corpus\", \"split\": \"9,1,0\"}, \"log\": {\"trace_step\": 0},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}\n";

static char text[4000]; /* of the dataset, each of its bytes a token */

/* Documents of 1 to 97 bytes, one on each line. */
static void write_text(void)
{
    size_t at = 0;
    for (int d = 0; at + 200 < sizeof text; d++) {
        const int bytes = (d * 37) % 97 + 1;
        for (int i = 0; i < bytes; i++)
            text[at++] = (char)('a' + (d + i * i) % 26);
        text[at++] = '\n';
        text[at++] = '\n';
    }
    EXPECT(child_write("corpus.txt", text), "corpus.txt");
}

/* What the trainer itself has in the micro-batches of the first steps: [step][sample][SEQ]. */
static void read_as_trained(int32_t out[STEPS][STEP_TOKENS])
{
    weft_arena arena = {0};
    weft_comm *world;
    weft_config loaded;
    weft_trainer trainer;
    weft_step_result result;
    weft_config_source source = {.file = "config.json"};
    EXPECT_OK(weft_comm_create_self(&world));
    EXPECT_OK(weft_config_load(&source, &arena, &loaded));
    EXPECT_OK(weft_trainer_create(&trainer, &loaded, &source, world, &arena));
    EXPECT_OK(weft_trainer_start(&trainer, NULL));
    for (int step = 0; step < STEPS && expect_failures == 0; step++) {
        EXPECT_OK(weft_trainer_step(&trainer, &result));
        for (int m = 0; m < MICRO; m++)
            for (int s = 0; s < SEQ; s++)
                for (int b = 0; b < BATCH; b++)
                    out[step][(m * BATCH + b) * SEQ + s] =
                        trainer.input.batches.tokens[(m * SEQ + s) * BATCH + b];
    }
    weft_trainer_release(&trainer);
    weft_comm_destroy(world);
    weft_arena_release(&arena);
}

static cJSON *inspect_json(const char *run, int step)
{
    char number[16];
    snprintf(number, sizeof number, "%d", step);
    cJSON *json = child_json(WORDS("inspect", run, "--sample", number, "--json"));
    EXPECT(number_of(json, "step") == step, "not step %d", step);
    return json;
}

/* The tokens of a sample's documents, one behind the other, and their text; how many. */
static int join_pieces(const cJSON *sample, int32_t tokens[SEQ], char joined[SEQ + 1])
{
    const cJSON *piece, *token;
    int count = 0;
    joined[0] = '\0';
    cJSON_ArrayForEach(piece, cJSON_GetObjectItem(sample, "documents"))
    {
        strncat(joined, text_of(piece, "text"), SEQ - strlen(joined));
        EXPECT(cJSON_GetObjectItem(sample, "documents")->child == piece ||
                   number_of(piece, "position") == 0,
               "a document inside a sample begins with its first token");
        cJSON_ArrayForEach(token, cJSON_GetObjectItem(piece, "tokens"))
        {
            if (count < SEQ)
                tokens[count] = token->valueint;
            count++;
        }
    }
    return count;
}

static void check_step(int step, const int32_t *wanted)
{
    cJSON *json = inspect_json("run", step);
    const cJSON *samples = cJSON_GetObjectItem(json, "samples"), *sample;
    int number = 0;
    EXPECT(cJSON_GetArraySize(samples) == BATCH * MICRO, "step %d", step);
    cJSON_ArrayForEach(sample, samples)
    {
        int32_t tokens[SEQ];
        char joined[SEQ + 1];
        EXPECT(join_pieces(sample, tokens, joined) == SEQ &&
                   memcmp(tokens, wanted + number * SEQ, sizeof tokens) == 0,
               "step %d, sample %d: not the tokens that were trained", step, number);
        for (int i = 0; i < SEQ && expect_failures == 0; i++)
            EXPECT(joined[i] == (char)tokens[i], "step %d, sample %d: %s", step, number, joined);
        EXPECT(number_of(sample, "micro_batch") == number / BATCH &&
                   number_of(sample, "sample") == (step - 1) * BATCH * MICRO + number,
               "step %d, sample %d", step, number);
        number++;
    }
    EXPECT(number_of(json, "passed_over_tokens") == 0, "step %d", step);
}

/* The place that is printed is the document's own, and the text is escaped and shortened. */
static void check_plain(void)
{
    child c;
    CHILD_REFUSED(6, "run/flight: no flight records there; ranks write them when", "inspect", "run",
                  "--flight");
    CHILD_RUN(&c, "inspect", "run", "--sample", "2");
    EXPECT(c.exit_code == 0 && strstr(c.out, "step 2: loss ") &&
               strstr(c.out, "\nmicro-batch 1\n  sample 6: tokens "),
           "%s%s", c.out, c.err);
    const char *at = strstr(c.out, "    document ");
    int document = -1, from = -1, to = -1, of = -1;
    char shown[40] = "";
    EXPECT(at && sscanf(at, " document %d, tokens %d to %d of %d: \"%39[a-z]", &document, &from,
                        &to, &of, shown) == 5,
           "%s", c.out);
    /* the blank lines between documents are no part of them */
    const char *line = text;
    for (int d = 0; d < document; d++)
        line = strstr(line, "\n\n") + 2;
    EXPECT(of == (document * 37) % 97 + 2 && strncmp(line + from, shown, strlen(shown)) == 0,
           "document %d from %d of %d is %s", document, from, of, shown);
}

static void check_long(void)
{
    CHILD_GOOD("train", "config.json", "--out", "long", "--set", "seq_length=400", "--set",
               "train_iters=1", "--set", "data_path=one");
    child_says(WORDS("inspect", "long", "--sample", "1"), 0, WORDS("\" and 240 bytes more\n"),
               NULL);
    child_says(WORDS("inspect", "long", "--sample", "1", "--full"), 0, WORDS("! more\n"), NULL);
}

/* A start sets the last fault's records aside, and none but the last. */
static void check_flight(void)
{
    static const char *const names[] = {"run/flight/rank-1.json", "run/flight/rank-0.json"};
    static const char *const iters[] = {"train_iters=8", "train_iters=10", "train_iters=11"};
    char record[128];
    child c;
    EXPECT(system("mkdir -p run/flight") == 0, "flight");
    for (int i = 0; i < 3; i++) {
        snprintf(record, sizeof record,
                 "{\"rank\": %d, \"groups\": [], \"operations\": [], \"in_flight\": []}", i == 0);
        EXPECT(i == 2 || child_write(names[i], record), "record");
        CHILD_RUN(&c, "inspect", "run", "--flight");
        EXPECT(c.exit_code == 0 && !strstr(c.out, "of the fault before") == (i < 2), "%s%s", c.out,
               c.err);
        CHILD_GOOD("train", "config.json", "--out", "run", "--resume", "--set", iters[i]);
        CHILD_RUN(&c, "inspect", "run", "--flight");
        EXPECT(c.exit_code == 0 &&
                   strstr(c.out, "of the fault before the last start (run/flight/last):\n") &&
                   !strstr(c.out, "\n     0 ") == (i == 0) &&
                   !strstr(c.out, "\n     1 ") == (i > 0),
               "%s%s", c.out, c.err);
    }
    EXPECT(access("run/flight/rank-0.json", F_OK) != 0, "a record where none was written");
}

static void expect_refused(const char *run, const char *step, int code, const char *part)
{
    CHILD_REFUSED(code, part, "inspect", run, "--sample", step);
}

int main(void)
{
    static int32_t trained[STEPS][STEP_TOKENS];
    child_begin();
    write_text();
    EXPECT(child_write("config.json", config), "config.json");
    CHILD_GOOD("prepare", "corpus.txt", "--split-blank-lines", "--out", "corpus");
    CHILD_GOOD("prepare", "corpus.txt", "--out", "one");
    read_as_trained(trained);
    CHILD_GOOD("train", "config.json", "--out", "run");
    CHILD_GOOD("train", "--out", "run", "--resume", "--set", "train_iters=6", "--set",
               "global_batch_size=2");
    for (int step = 1; step <= STEPS; step++) /* by the checkpoint's config, not the last one's */
        check_step(step, trained[step - 1]);
    cJSON *json = inspect_json("run", LATER);
    EXPECT(cJSON_GetArraySize(cJSON_GetObjectItem(json, "samples")) == BATCH &&
               number_of(json, "first_token_of_order") == STEPS * STEP_TOKENS + STEP_TOKENS / 2,
           "step %d: behind a smaller batch", LATER);
    check_plain();
    check_long();
    expect_refused("run", "7", 2, "run: has no step 7: its metrics are of steps 1 to 6");
    check_flight();
    expect_refused("corpus", "1", 6, "corpus: not a run's folder: ");
    CHILD_GOOD("train", "config.json", "--out", "mock", "--set", "mock_data=true", "--set",
               "data_path=null", "--set", "vocab_size=50");
    expect_refused("mock", "1", 2, "step 1 read mock data: random tokens, no text");
    text[0] = text[0] == 'z' ? 'a' : 'z';
    EXPECT(child_write("corpus.txt", text), "corpus.txt");
    CHILD_GOOD("prepare", "corpus.txt", "--split-blank-lines", "--out", "corpus");
    expect_refused("run", "1", 6, "corpus: has changed since step 1: its data_xxh64 is ");
    return child_finish();
}
