/* weft generate on the families' models of tests/oracle/models: the likeliest tokens are the same
 * with a cache of keys and values and without, on one rank and over meshes. What cannot be is
 * refused by name. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "launcher/models/models.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

/* Of a window of 16. */
#define PROMPT "bBc"
enum { NUM_TOKENS = 13, MAX_WORDS = 20, NUM_DAILY = 6 };

static const char dense[] = "tp=2,pp=2", grouped[] = "tp=2", shared[] = "tp=2,dp=2,ep=4,etp=1",
                  staged[] = "pp=2,dp=2,ep=2";

static const struct {
    const char *name, *mesh;
} models[] = {
    {"llama", dense},      {"mixtral", staged},  {"gpt_oss", shared}, {"deepseek_v3", shared},
    {"gemma3", dense},     {"olmo3", dense}, /* the daily ones */
    {"gpt2", dense},       {"llama3", grouped},  {"qwen2", dense},    {"qwen3", grouped},
    {"qwen3_moe", shared}, {"mistral", dense},   {"olmo2", dense},    {"gemma2", dense},
    {"glm4_moe", staged},  {"moonlight", dense},
};

/* A token a letter, and one that ends a text, since the models have 53. */
static void write_tokenizer(const char *run)
{
    char path[96], text[2048];
    static const char head[] =
        "{\"version\": \"1.0\", \"decoder\": {\"type\": \"Fuse\"}, \"added_tokens\": [{\"id\": 52, "
        "\"content\": \"</s>\", \"special\": true}], \"model\": {\"type\": \"BPE\", "
        "\"unk_token\": \"</s>\", \"merges\": [], \"vocab\": {\"</s>\": 52";
    size_t used = (size_t)snprintf(text, sizeof text, "%s", head);
    for (int i = 0; i < 52; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ", \"%c\": %d",
                                 i < 26 ? 'a' + i : 'A' + i - 26, i);
    snprintf(text + used, sizeof text - used, "}}}");
    snprintf(path, sizeof path, "%s/source/tokenizer.json", run);
    EXPECT(child_write(path, text), "%s", path);
}

/* The tokens, as JSON has them; freed by the caller. */
static char *continue_text(const char *run, const char *prompt, const char *const *more)
{
    const char *words[MAX_WORDS] = {"generate",      run, "--prompt", prompt, "--num-tokens", "13",
                                    "--temperature", "0", "--json"};
    const int shown = (int)strlen(prompt);
    for (int i = 0; more[i]; i++)
        words[9 + i] = more[i];
    cJSON *json = child_json(words);
    cJSON *tokens = cJSON_DetachItemFromObject(json, "tokens");
    const int count = cJSON_GetArraySize(tokens); /* fewer where the text ends itself */
    EXPECT(count > shown && count <= shown + NUM_TOKENS, "%s: %d tokens", run, count);
    char *text = tokens ? cJSON_PrintUnformatted(tokens) : NULL;
    return text;
}

static char *generate(const char *run, const char *const *more)
{
    return continue_text(run, PROMPT, more);
}

/* A prompt of more than two passes. */
static void check_long(const char *run, const char *mesh, const char *window)
{
    char prompt[151] = {0};
    for (int i = 0; i < 150; i++)
        prompt[i] = (char)('a' + i * i % 26);
    char *whole = continue_text(run, prompt, WORDS("--no-cache", "--set", window)),
         *cached = continue_text(run, prompt, WORDS("--set", window)),
         *meshed = continue_text(run, prompt, WORDS("--set", window, "--mesh", mesh));
    EXPECT(whole && cached && strcmp(whole, cached) == 0, "%s: %s, without a cache %s", run, cached,
           whole);
    EXPECT(whole && meshed && strcmp(whole, meshed) == 0, "%s: %s, without a cache %s", run, meshed,
           whole);
    free(whole);
    free(cached);
    free(meshed);
}

static void check_model(const char *name, const char *mesh)
{
    char source[512], run[64];
    weft_arena arena = {0};
    weft_card card;
    snprintf(source, sizeof source, "%s/tests/oracle/models/%s", getenv("WEFT_SOURCE_DIR"), name);
    snprintf(run, sizeof run, "%s.run", name);
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source, .out = run}, &arena, &card));
    weft_arena_release(&arena);
    write_tokenizer(run);
    char *whole = generate(run, WORDS("--no-cache"));
    char *texts[] = {generate(run, WORDS("--seed", "1")), generate(run, WORDS("--mesh", mesh))};
    for (int i = 0; i < 2; i++) {
        EXPECT(whole && texts[i] && strcmp(whole, texts[i]) == 0, "%s%s%s: %s, without a cache %s",
               name, i ? " on " : "", i ? mesh : "", texts[i], whole);
        free(texts[i]);
    }
    free(whole);
}

/* The depths of multi-token prediction are training's: a cache needs nothing of them. */
static void check_further(void)
{
    EXPECT(
        child_write("text.txt", "The mesh tiles the ranks, and the ranks run the programs.\n") &&
            child_write("mtp.json",
                        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"seq_length\": 8, "
                        "\"num_attention_heads\": 2, \"position_embedding_type\": \"rope\", "
                        "\"mtp_num_layers\": 2}, \"train\": {\"train_iters\": 2, "
                        "\"global_batch_size\": 2}, \"data\": {\"data_path\": \"corpus\", "
                        "\"split\": \"1,0,0\"}}"),
        "mtp.json");
    CHILD_GOOD("prepare", "text.txt", "--out", "corpus");
    CHILD_GOOD("train", "mtp.json", "--out", "mtp.run");
    char *whole = generate("mtp.run", WORDS("--no-cache")),
         *cached = generate("mtp.run", WORDS(NULL));
    EXPECT(whole && cached && strcmp(whole, cached) == 0, "%s, %s", whole, cached);
    free(whole);
    free(cached);
}

/* `generating all`: every family. */
int main(int argc, char **argv)
{
    (void)argv;
    const size_t num_models = argc > 1 ? sizeof models / sizeof *models : NUM_DAILY;
    child_begin();
    for (size_t i = 0; i < num_models; i++)
        check_model(models[i].name, models[i].mesh);
    char *whole = generate("mixtral.run", WORDS("--no-cache", "--mesh", shared)),
         *cached = generate("mixtral.run", WORDS("--mesh", "tp=2,ep=2"));
    EXPECT(whole && cached && strcmp(whole, cached) == 0, "%s, %s", whole, cached);
    free(whole);
    free(cached);
    check_further();
    check_long("llama.run", dense, "model.seq_length=170");
    check_long("mixtral.run", shared, "model.seq_length=170");
    /* A text that outgrows the window. */
    CHILD_GOOD("generate", "llama.run", "--prompt", PROMPT, "--num-tokens", "40");
    CHILD_REFUSED(2, "context_parallel_size: 2, but weft generate", "generate", "llama.run",
                  "--prompt", PROMPT, "--mesh", "cp=2");
    CHILD_REFUSED(2, "offload.experts: weft generate has experts beyond device memory on one rank",
                  "generate", "mixtral.run", "--prompt", PROMPT, "--mesh", "ep=2,dp=2", "--set",
                  "offload.experts=host");
    return child_finish();
}
