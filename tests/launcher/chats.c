/* weft prepare --chat against what transformers makes of the same chats (tests/oracle/make_chats.py):
 * each id, and which of them assistants say; and what trains on that. */
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
            EXPECT(is[k] == ids[k] && mask[k] == bears[k], "%s: chat %zu: token %zu: %d %d for %d %d",
                   form, i, k, is[k], mask[k], ids[k], bears[k]);
    }
    EXPECT(weft_dataset_num_documents(dataset) == 200 && !*at, "%s: not all chats", form);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
    free(text);
}

static void chats_are_as_transformers_has_them(void)
{
    static const char *const forms[] = {"chatml", "llama3"};
    char chats[700], tokenizer[700];
    snprintf(chats, sizeof chats, "%s/chats.jsonl", golden);
    for (int i = 0; i < 2; i++) {
        snprintf(tokenizer, sizeof tokenizer, "%s/%s.json", golden, forms[i]);
        CHILD_GOOD("prepare", chats, "--out", forms[i], "--chat", forms[i], "--tokenizer", tokenizer,
                   "--threads", i ? "3" : "1");
        compare(forms[i]);
    }
    snprintf(tokenizer, sizeof tokenizer, "%s/chatml.json", golden);
    CHILD_REFUSED(2, "--chat llama3: the tokenizer has no token <|begin_of_text|>: it is of another",
                  "prepare", chats, "--out", "none", "--chat", "llama3", "--tokenizer", tokenizer);
    CHILD_REFUSED(2, "--chat gemma: Weft writes chatml and llama3", "prepare", chats, "--out", "none",
                  "--chat", "gemma", "--tokenizer", tokenizer);
    CHILD_REFUSED(2, "--chat chatml: <|im_end|> ends a message, so no document", "prepare", chats,
                  "--out", "none", "--chat", "chatml", "--tokenizer", tokenizer, "--eod-token",
                  "<|im_end|>");
    CHILD_REFUSED(2, "--chat wants the chat model's tokenizer.json", "prepare", chats, "--out", "none",
                  "--chat", "chatml");
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
        "\"seq_length\": 64},\n\"train\": {\"global_batch_size\": 4, \"train_iters\": 2, \"lr_decay_style\": \"constant\"},\n"
        "\"data\": {\"data_path\": \"chatml\", \"split\": \"1\"}, "
        "\"device\": {\"peak_flops\": 1e9}}\n";
    EXPECT(child_write("c.json", config), "c.json");
    CHILD_GOOD("train", "c.json", "--out", "run");
    char *metrics = child_read("run/metrics.jsonl"),
         *at = metrics ? strstr(metrics, "\"loss_tokens\": ") : NULL;
    const double count = at ? atof(at + strlen("\"loss_tokens\": ")) : 0;
    EXPECT(count > 0 && count < 4 * 64, "%g labels bear a loss", count);
    free(metrics);
    EXPECT(rename("chatml.mask", "away") == 0, "no mask");
    CHILD_REFUSED(2, "that would be another run", "train", "--out", "run", "--resume", "--set",
                  "train_iters=3");
    EXPECT(system("head -c 100 away > chatml.mask") == 0, "head");
    CHILD_REFUSED(6, "chatml.mask: 100 bytes; a bit of each of ", "train", "c.json", "--out", "cut");
    CHILD_GOOD("prepare", "c.json", "--any-bytes", "--out", "chatml");
    EXPECT(access("chatml.mask", F_OK) != 0, "the mask of another dataset");
}

int main(void)
{
    char folder[32];
    if (!child_folder_enter(folder))
        return 1;
    snprintf(golden, sizeof golden, "%s/tests/oracle/golden/chats", getenv("WEFT_SOURCE_DIR"));
    chats_are_as_transformers_has_them();
    a_bad_chat_is_named();
    answers_are_trained();
    return child_finish(folder);
}
