/* An import, and runs that train it, after their folders have moved or are gone; datasets of
 * another tokenizer; folders that an export must leave alone. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static char source[600], tokenizers[600];

static void expect_same(const char *a, const char *b)
{
    char command[300];
    snprintf(command, sizeof command, "cmp -s %s %s", a, b);
    EXPECT(system(command) == 0, "%s differs from %s", a, b);
}

#define TRAIN                                                                                      \
    "--set", "data.mock_data=true", "--set", "train.train_iters=1", "--set",                       \
        "train.global_batch_size=2", "--set", "device.peak_flops=1e9"

/* The names and dtypes of the export's tensors, and its files. */
static void expect_form(const char *folder, const char *dtype, int num_files)
{
    char command[400];
    child_says(WORDS("import", folder, "--check", "--json"), 0, WORDS(dtype), NULL);
    snprintf(command, sizeof command, "test $(ls %s/*.safetensors | wc -l) = %d", folder,
             num_files);
    expect_shell("%s", command);
}

/* What a run was imported from is not needed by it, nor by a run that goes on from that. */
static void what_export_needs_goes_with_the_run(void)
{
    CHILD_GOOD("import", source, "--out", "imported");
    expect_shell("mkdir away && mv imported away/llama");
    CHILD_GOOD("train", "away/llama/config.json", "--out", "run", TRAIN);
    CHILD_GOOD("train", "away/llama/config.json", "--out", "next", TRAIN, "--set",
               "checkpoint.load=run", "--set", "train.train_iters=2");
    expect_shell("rm -r away run");
    CHILD_GOOD("export", "next", "--out", "exported");
    expect_form("exported", "\"BF16\"", 5);
    expect_same("exported/config.json", "next/source/config.json");
    expect_shell("rm -r next/source");
    child_says(WORDS("export", "next", "--out", "bare"), 0, NULL,
               WORDS("/run, which is not there: if that was an"));
}

static void a_dataset_has_the_models_tokenizer(void)
{
    char model[1300], path[700], other[700];
    expect_shell(
        "mkdir known && printf 'one two three four five six seven eight nine ten' > text.txt");
    snprintf(model, sizeof model, "cp %s/* known && cp %s/llama2.json known/tokenizer.json", source,
             tokenizers);
    expect_shell("%s", model);
    snprintf(other, sizeof other, "%s/gpt2.json", tokenizers);
    snprintf(path, sizeof path, "%s/llama2.json", tokenizers);
    CHILD_GOOD("import", "known", "--out", "known.run");
    CHILD_GOOD("prepare", "text.txt", "--out", "bytes");
    CHILD_GOOD("prepare", "text.txt", "--out", "same", "--tokenizer", path);
    CHILD_GOOD("prepare", "text.txt", "--out", "another", "--tokenizer", other, "--eod-token",
               "<|endoftext|>");
    static const char *const wrong[] = {"data.data_path=bytes", "data.data_path=another"};
    for (int i = 0; i < 2; i++)
        CHILD_REFUSED(2,
                      "was prepared with another tokenizer than the model's: weft prepare "
                      "--tokenizer ",
                      "train", "known.run/config.json", "--out", "none", "--set", wrong[i]);
    CHILD_REFUSED(2, "is less than the dataset's vocabulary", "train", "known.run/config.json",
                  "--out", "none", "--set", "data.data_path=same");
    EXPECT(access("none", F_OK) != 0, "a run");
}

/* A broken one is refused before anything is written; of one that Weft has not the part is named.
 */
static void a_tokenizer_is_read_on_import(void)
{
    static const struct {
        const char *from, *part;
        int exit_code;
    } rows[] = {
        {"s/.*/{/", "weft import: torn/tokenizer.json:1:2: not valid JSON", 6},
        {"s/\"merges\": *\\[/&[\"a\",\"zqz\"],/", "\"zqz\" is not in the vocabulary", 6},
        {"s/\"merges\": *\\[/&[\"a\",\"is not known\"],/",
         "\"is not known\" is not in the vocabulary", 6},
        {"s/\"BPE\"/\"Unigram\"/", "torn/tokenizer.json: model.type: \"Unigram\" is not known", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        child c[2];
        expect_shell("rm -rf torn && cp -r known torn");
        char command[800];
        snprintf(command, sizeof command,
                 "tr -d '\\n' <%s/llama2.json | sed '%s' "
                 ">torn/tokenizer.json",
                 tokenizers, rows[i].from);
        expect_shell("%s", command);
        CHILD_RUN(&c[0], "import", "torn", "--check");
        CHILD_RUN(&c[1], "import", "torn", "--out", "torn.run");
        for (int k = 0; k < 2; k++) {
            EXPECT(c[k].exit_code == rows[i].exit_code && child_is_line(c[k].err) &&
                       strstr(c[k].err, rows[i].part),
                   "%s: exit %d: %s", rows[i].part, c[k].exit_code, c[k].err);
            child_release(&c[k]);
        }
        expect_shell(rows[i].exit_code ? "! test -e torn.run" : "test -d torn.run");
    }
    expect_shell("printf { >torn.run/source/tokenizer.json");
    CHILD_REFUSED(6, "weft generate: torn.run/source/tokenizer.json:1:2: not valid JSON",
                  "generate", "torn.run", "--prompt", "a");
}

/* A folder beside an export's is the user's, whatever it is called. */
static void only_what_was_made_here_is_removed(void)
{
    CHILD_GOOD("import", source, "--out", "mine");
    expect_shell("mkdir out.partial .out.weft-part && touch out.partial/a .out.weft-part/b");
    CHILD_REFUSED(2, ".out.weft-part: is there, and Weft has not made it", "export", "mine",
                  "--out", "out");
    expect_shell("test -f .out.weft-part/b && touch .out.weft-part/.weft-part");
    CHILD_GOOD("export", "mine", "--out", "out/"); /* as of one that was killed */
    expect_shell("test -f out.partial/a && ! test -e .out.weft-part && ! test -e out/.weft-part");
    expect_shell("! test -e out/b");
}

static void sizes_are_written_as_transformers_does(void)
{
    CHILD_GOOD("export", "mine", "--out", "small", "--dtype", "fp32", "--max-shard-size", "20KB");
    CHILD_GOOD("export", "mine", "--out", "large", "--dtype", "fp32", "--max-shard-size", "5GB");
    expect_shell("test $(ls small/*.safetensors | wc -l) -gt 1");
    expect_shell("test $(ls large/*.safetensors | wc -l) = 1");
    CHILD_GOOD("export", "mine", "--out", "kept", "--dtype", "as-is"); /* its files, too */
    CHILD_GOOD("export", "mine", "--out", "whole", "--max-shard-size", "1GB");
    expect_form("kept", "\"BF16\"", 5);
    expect_form("whole", "\"BF16\"", 1);
    expect_same("whole/config.json", "kept/config.json");
    CHILD_REFUSED(2, "expected an integer of 1 to 1PB, also with ", "export", "mine", "--out",
                  "odd", "--max-shard-size", "5GBs");
    CHILD_REFUSED(2, "0 is out of range: 1 to 1PB\n", "export", "mine", "--out", "odd",
                  "--max-shard-size", "0");
    CHILD_REFUSED(2, "mine: a folder, where a tokenizer.json belongs: mine/tokenizer.json",
                  "prepare", "text.txt", "--out", "none", "--tokenizer", "mine");
    expect_shell("mkdir -p run/source && touch run/source/tokenizer.json");
    CHILD_REFUSED(2, "run/: a folder, where a tokenizer.json belongs: run/source/tokenizer.json",
                  "prepare", "text.txt", "--out", "none", "--tokenizer", "run/");
}

/* transformers drops no tokens. */
static void dropped_tokens_are_warned_of(void)
{
    char mixtral[700];
    snprintf(mixtral, sizeof mixtral, "%s/../mixtral", source);
    CHILD_GOOD("import", mixtral, "--out", "experts");
    child_says(WORDS("export", "experts", "--check"), 0, NULL, WORDS("!warn"));
    CHILD_GOOD("train", "experts/config.json", "--out", "drops", TRAIN, "--set",
               "moe_expert_capacity_factor=1.25");
    child_says(WORDS("export", "drops", "--check"), 0, NULL,
               WORDS(" warn drops/checkpoints/step-1: model.moe_expert_capacity_factor 1.25 drops "
                     "tokens in training and evaluation, and transformers drops none"));
}

int main(void)
{
    const char *checkout = getenv("WEFT_SOURCE_DIR");
    child_begin();
    snprintf(source, sizeof source, "%s/tests/oracle/models/llama_bf16", checkout);
    snprintf(tokenizers, sizeof tokenizers, "%s/tests/oracle/golden/tokenizers", checkout);
    what_export_needs_goes_with_the_run();
    a_dataset_has_the_models_tokenizer();
    a_tokenizer_is_read_on_import();
    only_what_was_made_here_is_removed();
    sizes_are_written_as_transformers_does();
    dropped_tokens_are_warned_of();
    return child_finish();
}
