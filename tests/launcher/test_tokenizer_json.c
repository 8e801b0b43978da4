/* tokenizer.json of nine families and their odder parts, against what Hugging Face's library makes
 * of thousands of lines (tests/oracle/make_tokenizers.py), and what is not known, refused by name.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/json.h"
#include "launcher/text/tokenizer.h"
#include "tests/core/random.h"
#include "tests/core/temporary.h"

static const char *golden_path(const char *name)
{
    static char path[600];
    const char *source = getenv("WEFT_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/oracle/golden/tokenizers/%s", source ? source : ".",
             name);
    return path;
}

static uint64_t fnv(const void *data, size_t bytes)
{
    uint64_t value = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        value = (value ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return value;
}

typedef struct subject {
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
} subject;

static subject open_file(const char *path)
{
    subject s;
    const weft_tokenizer_source source = {.name = path};
    OK(weft_tokenizer_create(&source, &s.tokenizer));
    OK(weft_encoder_create(s.tokenizer, &s.encoder));
    return s;
}

static subject open_golden(const char *family)
{
    char name[64];
    snprintf(name, sizeof name, "%s.json", family);
    return open_file(golden_path(name));
}

static void close_subject(subject *s)
{
    weft_encoder_destroy(s->encoder);
    weft_tokenizer_destroy(s->tokenizer);
}

/* Whether a line's ids and the text they are decoded to have these hashes; prints what differs. */
static bool is_as_known(const subject *s, const char *line, const char *ids_hash,
                        const char *text_hash)
{
    weft_arena arena = {0};
    weft_tokens tokens = {0};
    char hash[24], *text;
    size_t bytes;
    OK(weft_encoder_encode(s->encoder, line, strlen(line), &tokens));
    snprintf(hash, sizeof hash, "%016" PRIx64, fnv(tokens.ids, 4 * tokens.count));
    bool is_same = strcmp(hash, ids_hash) == 0;
    OK(weft_tokenizer_decode(s->tokenizer, tokens.ids, tokens.count, &arena, &text, &bytes));
    if (is_same && strcmp(text_hash, "-") != 0) {
        snprintf(hash, sizeof hash, "%016" PRIx64, fnv(text, bytes));
        is_same = strcmp(hash, text_hash) == 0;
    }
    if (!is_same) {
        const char *quoted;
        OK(weft_json_quote(line, &arena, &quoted));
        print_message("%s:", quoted);
        for (size_t i = 0; i < tokens.count; i++)
            print_message(" %d", tokens.ids[i]);
        print_message(" \"%s\"\n", text);
    }
    weft_tokens_release(&tokens);
    weft_arena_release(&arena);
    return is_same;
}

static void check_family(const char *family)
{
    weft_arena arena = {0};
    char *lines, *ids, name[64];
    weft_json_span root, value;
    weft_json_fault fault;
    int num_lines = 0, num_bad = 0;
    subject s = open_golden(family);
    OK(weft_file_read_text(golden_path("lines.json"), &arena, &lines, NULL));
    snprintf(name, sizeof name, "%s.txt", family);
    OK(weft_file_read_text(golden_path(name), &arena, &ids, NULL));
    assert_true(weft_json_check(lines, &root, &fault));
    const char *at = ids, *line;
    for (const char *cursor = NULL; weft_json_next(root, &cursor, NULL, &value); num_lines++) {
        char ids_hash[24], text_hash[24];
        OK(weft_json_string(value, &arena, &line));
        assert_int_equal(sscanf(at, "%16s %16s", ids_hash, text_hash), 2);
        num_bad += !is_as_known(&s, line, ids_hash, text_hash);
        at = strchr(at, '\n') + 1;
    }
    if (num_bad > 0)
        fail_msg("%s: %d of %d lines differ", family, num_bad, num_lines);
    assert_true(num_lines >= 2000);
    close_subject(&s);
    weft_arena_release(&arena);
}

static const char *const families[] = {"gpt2",  "llama3",  "qwen2",  "o200k",  "deepseek", "llama2",
                                       "gemma", "mistral", "parts1", "parts2", "parts3"};
enum { NUM_FAMILIES = sizeof families / sizeof *families };

CASE(ids_are_the_librarys)
{
    for (int i = 0; i < NUM_FAMILIES; i++)
        check_family(families[i]);
}

/* --- any bytes ----------------------------------------------------------------------------- */

static uint64_t random_state = 5;

/* Where nothing normalizes text, what is encoded comes back: broken UTF-8, too. Surrogates and
 * lengths that UTF-8 does not allow are bytes. */
CASE(broken_utf8_comes_back)
{
    static const char *const known[] = {"gpt2",   "llama3", "o200k",  "deepseek",
                                        "llama2", "gemma",  "mistral"};
    static const char *const parts[] = {"the ", "\xff",     "\xc3",     "\xed\xa0\x80", "\xf5", " ",
                                        "weft", "\xe4\xb8", "\xc0\xaf", "\xf0\x9f\x99", "\n"};
    weft_arena arena = {0};
    weft_tokens tokens = {0};
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        subject s = open_golden(known[k]);
        for (int round = 0; round < 300; round++) {
            char text[256] = "", *back;
            size_t bytes;
            for (uint32_t n = 1 + next_random(14); n > 0; n--)
                strcat(text, parts[next_random(sizeof parts / sizeof *parts)]);
            tokens.count = 0;
            OK(weft_encoder_encode(s.encoder, text, strlen(text), &tokens));
            OK(weft_tokenizer_decode(s.tokenizer, tokens.ids, tokens.count, &arena, &back, &bytes));
            /* Llama's decoder takes a space from the front that its encoder puts there, unless
             * broken bytes stand there. */
            const bool is_stripped = text[0] == ' ' && bytes + 1 == strlen(text);
            assert_string_equal(back, text + is_stripped);
        }
        close_subject(&s);
    }
    weft_tokens_release(&tokens);
    weft_arena_release(&arena);
}

/* A prompt has what stands in front of a document, not what stands behind. */
CASE(a_prompt_goes_on)
{
    subject s = open_golden("parts2"); /* 0, text, 0 */
    weft_tokens whole = {0}, prompt = {0};
    OK(weft_encoder_encode(s.encoder, "weft", 4, &whole));
    OK(weft_encoder_prompt(s.encoder, "weft", 4, &prompt));
    assert_int_equal(whole.count, prompt.count + 1);
    assert_memory_equal(whole.ids, prompt.ids, prompt.count * sizeof *prompt.ids);
    assert_int_equal(whole.ids[0], 0);
    assert_int_equal(whole.ids[whole.count - 1], 0);
    close_subject(&s);
    const weft_tokenizer_source bare = {.name = golden_path("parts2.json"),
                                        .no_special_tokens = true};
    OK(weft_tokenizer_create(&bare, &s.tokenizer));
    OK(weft_encoder_create(s.tokenizer, &s.encoder));
    prompt.count = 0;
    OK(weft_encoder_encode(s.encoder, "weft", 4, &prompt));
    assert_int_equal(whole.count, prompt.count + 2);
    assert_memory_equal(whole.ids + 1, prompt.ids, prompt.count * sizeof *prompt.ids);
    close_subject(&s);
    weft_tokens_release(&whole);
    weft_tokens_release(&prompt);
}

/* --- threads ------------------------------------------------------------------------------- */

typedef struct work {
    pthread_t thread;
    const weft_tokenizer *tokenizer;
    const char *text;
    uint64_t hash;
} work;

static void *encode_text(void *argument)
{
    work *w = argument;
    weft_encoder *encoder;
    weft_tokens tokens = {0};
    bool ok = weft_encoder_create(w->tokenizer, &encoder) == WEFT_OK;
    for (int round = 0; ok && round < 3; round++) {
        tokens.count = 0;
        ok = weft_encoder_encode(encoder, w->text, strlen(w->text), &tokens) == WEFT_OK;
    }
    w->hash = ok ? fnv(tokens.ids, 4 * tokens.count) : 0;
    weft_encoder_destroy(encoder);
    weft_tokens_release(&tokens);
    return NULL;
}

CASE(threads_share_a_tokenizer)
{
    enum { NUM = 4 };
    work works[NUM];
    weft_arena arena = {0};
    char *text;
    OK(weft_file_read_text(golden_path("lines.json"), &arena, &text, NULL));
    subject s = open_golden("qwen2");
    for (int i = 0; i < NUM; i++) {
        works[i] = (work){.tokenizer = s.tokenizer, .text = text};
        assert_int_equal(pthread_create(&works[i].thread, NULL, encode_text, &works[i]), 0);
    }
    for (int i = 0; i < NUM; i++) {
        assert_int_equal(pthread_join(works[i].thread, NULL), 0);
        assert_true(works[i].hash != 0 && works[i].hash == works[0].hash);
    }
    close_subject(&s);
    weft_arena_release(&arena);
}

/* --- refusals ------------------------------------------------------------------------------ */

/* Writes a family's file with the first `from` replaced as bad.json; its path. */
static const char *changed_copy(const char *family, const char *from, const char *to)
{
    char name[64];
    size_t bytes;
    const char *path = temporary_path("bad.json");
    snprintf(name, sizeof name, "%s.json", family);
    char *text = (char *)temporary_read(golden_path(name), &bytes);
    text = realloc(text, bytes + 1);
    text[bytes] = '\0';
    char *at = strstr(text, from);
    if (!at)
        fail_msg("%s has no %s", family, from);
    FILE *file = fopen(path, "w");
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    free(text);
    return path;
}

CASE(what_is_not_known_is_refused_by_name)
{
    static const struct {
        const char *family, *from, *to, *error;
    } cases[] = {
        {"gpt2", "{", "[", "bad.json:"},
        {"gpt2", "{", "{\"extra\": 1,", "bad.json: \"extra\" is not known"},
        {"gpt2", "\"1.0\"", "\"2.0\"",
         "bad.json: version: \"2.0\" is not known; expected one of 1.0"},
        {"gpt2", "\"truncation\":null", "\"truncation\":{}",
         "truncation: cutting texts short is not"},
        {"gpt2", "\"padding\":null", "\"padding\":{}", "padding: padding texts is not known"},
        {"gpt2", "\"padding\":null", "\"truncation\":null", "\"truncation\" stands twice"},
        {"gpt2", "\"BPE\"", "\"Unigram\"",
         "model.type: \"Unigram\" is not known; expected one of BPE"},
        {"gpt2", "\"dropout\":null", "\"dropout\":0.1", "model.dropout: is not known; null"},
        {"gpt2", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"@\"",
         "model.end_of_word_suffix: is not known"},
        {"gpt2", "\"unk_token\":null", "\"unk_token\":\"<u>\"", "\"<u>\" is not in the vocabulary"},
        {"gpt2", "\"merges\":[", "\"merges\":[\"a\",", "model.merges[0]: expected two tokens with"},
        {"gpt2", "\"merges\":[", "\"merges\":[[\"a\"],", "model.merges[0]: expected two tokens"},
        {"gpt2", "\"merges\":[", "\"merges\":[[\"a\",\"is not known\"],",
         "merges[0]: \"is not known\" is not in the vocab"},
        {"gpt2", "\"merges\":[", "\"merges\":[\"a zqz\",",
         "merges[0]: \"zqz\" is not in the vocab"},
        {"gpt2", "\"\u0100\":", "\"\u0100\u0100\":",
         "model.vocab: no token for byte 0, which ByteLevel needs"},
        {"gpt2", "\"!\":1", "\"!\":2", "model.vocab.\\\": another token has the id 2 too"},
        {"gpt2", "\"!\":1", "\"!\":-1", "model.vocab.!: expected a whole number from 0 to"},
        {"gpt2", "\"!\":1", "\"!\":1e3", "model.vocab.!: expected a whole number from 0 to"},
        {"gpt2", "\"ignore_merges\":false", "\"ignore_merges\":0",
         "model.ignore_merges: expected true or false, not a number"},
        {"gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
         "normalizer.type: \"Lowercase\" is not known; expected one of Sequence|NFC"},
        {"gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\", \"a\": 1}",
         "normalizer: \"a\" is not known"},
        {"gpt2", "\"content\":\"<|endoftext|>\"", "\"content\":\"\"",
         "added_tokens[0].content: is empty"},
        {"gpt2", "\"id\":0", "\"id\":7", "added_tokens[0].id: the vocabulary has another"},
        {"gpt2", "\"id\":0", "\"id\":4194304",
         "added_tokens[0].id: expected a whole number from 0"},
        {"llama3", "\"Isolated\"", "\"Alone\"",
         "pre_tokenizer.pretokenizers[0].behavior: \"Alone\" is not known; expected one of "
         "Isolated|"},
        {"llama3", "\"Regex\":\"", "\"Regex\":\"\\\\h|",
         "pretokenizers[0].pattern.Regex: the pattern's \"\\h\" is not known"},
        {"llama3", "{1,3}", "{1,3}+", "the pattern's \"{1,3}+\" is not known"},
        {"llama3", "(?i:", "(?x:", "the pattern's \"(?x:\" is not known"},
        {"llama3", "'re|", "'ss|", "the pattern's \"ss\" has ligatures where case is ignored"},
        {"llama3", "[^\\\\r", "[[^\\\\r", "nests classes, which is not known"},
        {"llama3", "\\\\s+(?!", "\\\\s*(?!", "the pattern may match no character"},
        {"llama3", "\"add_prefix_space\":false", "\"add_prefix_space\":true",
         "pretokenizers[1]: changes words behind a step that splits"},
        {"llama3", "\"id\":\"A\"", "\"id\":\"B\"",
         "Sequence.id: \"B\" is not known; expected one of A"},
        {"llama3", "\"id\":\"<|begin_of_text|>\"", "\"id\":\"<x>\"",
         "single[0].SpecialToken.id: is not among special_tokens"},
        {"llama3", "\"decoder\":{", "\"decoder\":null,\"x\":{", "\"x\" is not known"},
        {"llama2", "\"<0x41>\":", "\"<0x4a>\":", "no token <0x41>, which byte_fallback needs"},
        {"llama2", "\"byte_fallback\":true", "\"byte_fallback\":false,\"a\":0",
         "\"a\" is not known"},
        {"llama2", "\"unk_token\":\"<unk>\"", "\"unk_token\":3",
         "unk_token: expected a string, not a"},
        {"llama2", "\"type\":\"ByteFallback\"", "\"type\":\"CTC\"",
         "decoder.decoders[1].type: \"CTC\" is not known"},
        {"llama2", "\"type\":\"Fuse\"", "\"type\":\"ByteFallback\"",
         "decoder.decoders[3]: expected one Strip of a character, behind Fuse"},
        {"parts3", "\"unk_token\":\"<unk>\"", "\"unk_token\":null",
         "model.unk_token: missing, and so are byte_fallback and ByteLevel"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_tokenizer *tokenizer;
        const weft_tokenizer_source source = {
            .name = changed_copy(cases[i].family, cases[i].from, cases[i].to)};
        FAILS(weft_tokenizer_create(&source, &tokenizer), WEFT_FILE, cases[i].error);
        const char *text = weft_error_get()->text;
        if (weft_tokenizer_is_unknown(WEFT_FILE) !=
            (!strstr(text, "not in the vocab") &&
             (strstr(text, "not known") || strstr(text, "the pattern"))))
            fail_msg("%s", text);
    }
}

CASE(the_end_of_a_document_is_found)
{
    weft_tokenizer *tokenizer;
    const char *config = temporary_path("tokenizer_config.json");
    weft_tokenizer_source source = {.name = changed_copy("qwen2", "{", "{")};
    OK(weft_tokenizer_create(&source, &tokenizer)); /* by its name */
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 1100);
    weft_tokenizer_destroy(tokenizer);
    temporary_write(config, "{\"eos_token\": \"<|im_end|>\"}", 27);
    OK(weft_tokenizer_create(&source, &tokenizer));
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 1102);
    weft_tokenizer_destroy(tokenizer);
    temporary_write(config, "{\"a\": 1, \"eos_token\": {\"content\": \"<|im_start|>\"}}", 50);
    OK(weft_tokenizer_create(&source, &tokenizer));
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 1101);
    weft_tokenizer_destroy(tokenizer);
    source.eod = "<tool_call>";
    OK(weft_tokenizer_create(&source, &tokenizer));
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 1103);
    weft_tokenizer_destroy(tokenizer);
    source.eod = "<x>";
    FAILS(weft_tokenizer_create(&source, &tokenizer), WEFT_CONFIG,
          "bad.json: has no token <x>, which --eod-token names");
    source.eod = NULL;
    temporary_write(config, "{\"eos_token\": \"<x>\"}", 20);
    FAILS(weft_tokenizer_create(&source, &tokenizer), WEFT_CONFIG,
          "has no token <x>, which tokenizer_config.json's eos_token names");
    assert_int_equal(unlink(config), 0);
    changed_copy("qwen2", "<|im_end|>", "</s>");
    FAILS(weft_tokenizer_create(&source, &tokenizer), WEFT_CONFIG,
          "more than one token is called as one that ends a document is: --eod-token");
    changed_copy("qwen2", "<|endoftext|>", "<|x|>");
    FAILS(weft_tokenizer_create(&source, &tokenizer), WEFT_CONFIG, "no token is called as one");
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
