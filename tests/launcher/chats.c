/* weft prepare --chat against what transformers makes of the same chats
 * (tests/oracle/make_chats.py): each id, and which of them assistants say; and what trains on that.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/dataset/dataset.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_TOKENS = 1024 };

static char golden[600];

static size_t read_numbers(char **at, int32_t *out)
{
    size_t count = 0;
    while (**at && **at != '\n') {
        EXPECT(count < MAX_TOKENS, "a long line");
        out[count++] = (int32_t)strtol(*at, at, 10);
        *at += **at == ' ';
    }
    *at += **at == '\n';
    return count;
}

/* Documents are as the golden lines; each ends with the end-of-document token, without a loss. */
static void compare(const char *form)
{
    char path[700];
    weft_dataset *dataset;
    weft_arena arena = {0};
    uint64_t *documents = NULL;
    int32_t ids[MAX_TOKENS], bears[MAX_TOKENS], is[MAX_TOKENS];
    uint8_t mask[MAX_TOKENS];
    snprintf(path, sizeof path, "%s/%s.txt", golden, form);
    char *text = child_read(path), *at = text;
    EXPECT_OK(weft_dataset_open(form, &dataset));
    EXPECT(weft_dataset_has_mask(dataset), "no mask");
    EXPECT_OK(weft_dataset_read_documents(dataset, &arena, &documents));
    for (size_t i = 0; i < weft_dataset_num_documents(dataset); i++) {
        const size_t count = read_numbers(&at, ids), bits = read_numbers(&at, bears);
        const size_t has = documents[i + 1] - documents[i];
        EXPECT(count == bits && has == count + 1, "%s: chat %zu: %zu tokens for %zu", form, i, has,
               count + 1);
        if (has != count + 1)
            break;
        EXPECT_OK(weft_dataset_read(dataset, documents[i], has, is));
        EXPECT_OK(weft_dataset_read_mask(dataset, documents[i], has, mask));
        EXPECT(mask[count] == 0, "%s: chat %zu: a loss on its end", form, i);
        for (size_t k = 0; k < count; k++)
            EXPECT(is[k] == ids[k] && mask[k] == bears[k],
                   "%s: chat %zu: token %zu: %d %d for %d %d", form, i, k, is[k], mask[k], ids[k],
                   bears[k]);
    }
    EXPECT(weft_dataset_num_documents(dataset) == 200 && !*at, "%s: not all chats", form);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
}

static void chats_are_as_transformers_has_them(void)
{
    static const char *const forms[] = {"chatml", "llama3"};
    char chats[700], tokenizer[700];
    snprintf(chats, sizeof chats, "%s/chats.jsonl", golden);
    for (int i = 0; i < 2; i++) {
        snprintf(tokenizer, sizeof tokenizer, "%s/%s.json", golden, forms[i]);
        CHILD_GOOD("prepare", chats, "--out", forms[i], "--chat", forms[i], "--tokenizer",
                   tokenizer, "--threads", i ? "3" : "1");
        compare(forms[i]);
    }
    snprintf(tokenizer, sizeof tokenizer, "%s/chatml.json", golden);
    CHILD_REFUSED(2,
                  "--chat llama3: the tokenizer has no token <|begin_of_text|>: it is of another",
                  "prepare", chats, "--out", "none", "--chat", "llama3", "--tokenizer", tokenizer);
    CHILD_REFUSED(2, "--chat gemma: Weft writes chatml and llama3", "prepare", chats, "--out",
                  "none", "--chat", "gemma", "--tokenizer", tokenizer);
    CHILD_REFUSED(2, "--chat chatml: <|im_end|> ends a message, so no document", "prepare", chats,
                  "--out", "none", "--chat", "chatml", "--tokenizer", tokenizer, "--eod-token",
                  "<|im_end|>");
    CHILD_REFUSED(2, "--chat wants the chat model's tokenizer.json", "prepare", chats, "--out",
                  "none", "--chat", "chatml");
}

static void a_bad_chat_is_named(void)
{
    static const char *const cases[][2] = {
        {"{\"messages\": 3}", "\"messages\" is a number, not an array of messages"},
        {"{\"messages\": [3]}", "message 0 is a number, not an object"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
         "\"content\": null}]}",
         "message 1: \"content\" is null, not a string"},
        {"{\"messages\": [{\"content\": \"a\"}]}", "message 0: \"role\" is missing, not a string"},
        {"{\"text\": \"a\"}", "no key \"messages\"; its keys are \"text\""}};
    char tokenizer[700], wanted[200];
    snprintf(tokenizer, sizeof tokenizer, "%s/chatml.json", golden);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT(child_write("bad.jsonl", cases[i][0]), "bad.jsonl");
        snprintf(wanted, sizeof wanted, "bad.jsonl: line 1: %s", cases[i][1]);
        CHILD_REFUSED(6, wanted, "prepare", "bad.jsonl", "--out", "none", "--chat", "chatml",
                      "--tokenizer", tokenizer);
    }
}

/* A dataset that takes the place of one with a mask has none, and is another. */
static void answers_are_trained(void)
{
    static const char config[] =
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
        "\"seq_length\": 64},\n\"train\": {\"global_batch_size\": 4, \"train_iters\": 2, "
        "\"lr_decay_style\": \"constant\"},\n"
        "\"data\": {\"data_path\": \"chatml\", \"split\": \"1\"}, "
        "\"device\": {\"peak_flops\": 1e9}}\n";
    EXPECT(child_write("c.json", config), "c.json");
    CHILD_GOOD("train", "c.json", "--out", "run");
    char *metrics = child_read("run/metrics.jsonl"),
         *at = metrics ? strstr(metrics, "\"loss_tokens\": ") : NULL;
    const double count = at ? atof(at + strlen("\"loss_tokens\": ")) : 0;
    EXPECT(count > 0 && count < 4 * 64, "%g labels bear a loss", count);
    EXPECT(rename("chatml.mask", "away") == 0, "no mask");
    CHILD_REFUSED(2, "that would be another run", "train", "--out", "run", "--resume", "--set",
                  "train_iters=3");
    EXPECT(system("head -c 100 away > chatml.mask") == 0, "head");
    CHILD_REFUSED(6, "chatml.mask: 100 bytes; a bit of each of ", "train", "c.json", "--out",
                  "cut");
    CHILD_GOOD("prepare", "c.json", "--any-bytes", "--out", "chatml");
    EXPECT(access("chatml.mask", F_OK) != 0, "the mask of another dataset");
}

enum { LENGTH = 32, DOCUMENTS = 12 };

/* The documents of the lines, each in a sequence of its own. */
static void write_alone(void)
{
    weft_dataset_writer *writer;
    int32_t row[LENGTH], bears[LENGTH];
    EXPECT_OK(weft_dataset_writer_create("alone", 257, &writer));
    EXPECT_OK(weft_dataset_writer_mask(writer));
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = 0; i < LENGTH; i++) {
            row[i] = i <= d ? 'a' + (d * d + 3 * i) % 26 : 256;
            bears[i] = i > 0 && i <= d + 1;
        }
        EXPECT_OK(weft_dataset_writer_add_masked(writer, row, bears, LENGTH));
    }
    EXPECT_OK(weft_dataset_writer_add_masked(writer, row + LENGTH - 1, bears + LENGTH - 1, 1));
    EXPECT_OK(weft_dataset_writer_finish(writer));
    EXPECT_OK(weft_dataset_writer_commit(writer));
    weft_dataset_writer_destroy(writer);
}

static double evaluate(const char *data, const char *iters)
{
    child c;
    CHILD_RUN(&c, "eval", "base", "--data", data, "--split", "all", "--iters", iters, "--json");
    const char *at = c.out ? strstr(c.out, "\"loss\": ") : NULL;
    const double loss = at ? atof(at + strlen("\"loss\": ")) : 0;
    EXPECT(c.exit_code == 0 && loss > 1, "exit %d: %s", c.exit_code, c.err);
    return loss;
}

/* Packed, they have the losses that they have alone. */
static void documents_are_packed(void)
{
    static const char config[] =
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
        "\"seq_length\": 32,\n \"init_method_std\": 0.3, \"vocab_size\": 257},\n"
        "\"train\": {\"global_batch_size\": 1, \"train_iters\": 1},\n"
        "\"data\": {\"data_path\": \"together\", \"split\": \"1\", \"eod_token\": 256,\n"
        " \"reset_attention_mask\": true, \"reset_position_ids\": true}, "
        "\"device\": {\"peak_flops\": 1e9}}\n";
    FILE *file = fopen("lines.jsonl", "w");
    for (int d = 0; file && d < DOCUMENTS; d++) {
        fputs("{\"text\": \"", file);
        for (int i = 0; i <= d; i++)
            putc('a' + (d * d + 3 * i) % 26, file);
        fputs("\"}\n", file);
    }
    EXPECT(file && fclose(file) == 0 && child_write("p.json", config), "files");
    write_alone();
    child_says(
        WORDS("prepare", "lines.jsonl", "--jsonl", "text", "--pack", "32", "--out", "together"), 0,
        WORDS("packed into 3 sequences of 32 tokens, 6.19 % of them pads; 0 documents cut"), NULL);
    CHILD_GOOD("train", "p.json", "--out", "base");
    const double together = evaluate("together", "3"), alone = evaluate("alone", "12");
    EXPECT(fabs(together - alone) < 1e-6, "%.9g, alone %.9g", together, alone);
    CHILD_REFUSED(2, "together is packed for 32", "train", "p.json", "--out", "none", "--set",
                  "seq_length=16");
}

int main(void)
{
    child_begin();
    snprintf(golden, sizeof golden, "%s/tests/oracle/golden/chats", getenv("WEFT_SOURCE_DIR"));
    chats_are_as_transformers_has_them();
    a_bad_chat_is_named();
    answers_are_trained();
    documents_are_packed();
    return child_finish();
}
