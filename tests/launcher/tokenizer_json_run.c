/* A tokenizer.json goes with what was made by it: prepare copies it beside the dataset, training
 * into checkpoints, and generate needs neither the file nor the dataset. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"ffn_hidden_size\": 32,\n"
    "  \"num_attention_heads\": 2, \"seq_length\": 8},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 1, \"train_iters\": 1},\n"
    "\"data\": {\"data_path\": \"corpus\", \"split\": \"1,0,0\"},\n"
    "\"device\": {\"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

/* What it prints has these parts. */
static void says(const char *const *args, const char *const *parts)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", args[0], c.exit_code, c.err);
    for (; c.exit_code == 0 && *parts; parts++)
        EXPECT(strstr(c.out, *parts), "%s: \"%s\" lacks \"%s\"", args[0], c.out, *parts);
}

static void copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    EXPECT(in && out, "%s", from);
    for (int c; in && out && (c = fgetc(in)) != EOF;)
        fputc(c, out);
    if (in)
        fclose(in);
    if (out)
        fclose(out);
}

int main(void)
{
    char golden[600];
    snprintf(golden, sizeof golden, "%s/tests/oracle/golden/tokenizers/llama2.json",
             getenv("WEFT_SOURCE_DIR"));
    child_begin();
    EXPECT(child_write("text.txt", "the weaver threw the weft through the warp\n\nagain\n") &&
               child_write("c.json", config),
           "files");
    copy_file(golden, "llama.json");
    says(WORDS("prepare", "text.txt", "--out", "corpus", "--tokenizer", "llama.json",
               "--split-blank-lines", "--append-eod"),
         WORDS("documents 2", "vocabulary 1400 (tokenizer.json)", "corpus.tokenizer.json"));
    unlink("llama.json");
    says(WORDS("inspect", "corpus"), WORDS("documents   2"));
    CHILD_GOOD("train", "c.json", "--out", "run");
    says(WORDS("inspect", "run", "--sample", "1", "--full"), WORDS("\"again\""));
    rename("corpus.tokenizer.json", "kept.json");
    CHILD_REFUSED(6, "corpus.tokenizer.json: No such file", "train", "c.json", "--out", "run2");
    child_write("corpus.tokenizer.json", "{}");
    CHILD_REFUSED(6, "corpus.tokenizer.json: ", "train", "c.json", "--out", "run2");
    unlink("corpus.tokenizer.json");
    unlink("corpus.json");
    /* The prompt begins as documents do, with <s>, which is token 1. */
    says(WORDS("generate", "run", "--prompt", "the weft", "--num-tokens", "3", "--json"),
         WORDS("\"text\": \"the weft", "\"tokens\": [1, "));
    /* An export has it, under a class that reads the file as it is. */
    CHILD_GOOD("export", "run", "--out", "out");
    char *given = child_read("kept.json"), *has = child_read("out/tokenizer.json"),
         *model = child_read("out/config.json"), *class = child_read("out/tokenizer_config.json");
    EXPECT(given && has && strcmp(given, has) == 0, "another tokenizer.json");
    EXPECT(class && strstr(class, "\"PreTrainedTokenizerFast\""), "%s", class);
    EXPECT(model && strstr(model, "\"eos_token_id\": 2,"), "%s", model);
    return child_finish();
}
