/* A tokenizer's files. The first byte says which: 'f' encoder.json, vocab.bpe and a text to encode;
 * 'm' the same of merges alone, a vocabulary that fits them made here; 'j' a tokenizer.json and a
 * text; 'c' a tokenizer.json, the tokenizer_config.json beside it and --eod-token ("": none); 'p'
 * the description that weft prepare writes. Parts end with a NUL. What is encoded by the first two
 * comes back when it is decoded; by the third it has ids of the vocabulary. */
#include "launcher/text/rules.h"
#include "launcher/text/tokenizer.h"
#include "launcher/text/tokenizer_json.h"
#include "tests/fuzz/fuzz.h"

static void encode(const weft_rules *rules, bool comes_back, const char *text, size_t bytes)
{
    weft_tokens tokens = {0};
    weft_rules_worker *worker;
    size_t at = 0;
    FUZZ_OK(weft_rules_worker_create(&worker));
    FUZZ_OK(weft_rules_encode(rules, worker, (weft_bytes){text, bytes}, &tokens));
    for (size_t i = 0; i < tokens.count; i++) {
        FUZZ_CHECK(tokens.ids[i] >= 0 && (uint32_t)tokens.ids[i] < rules->tables.num_tokens,
                   "token %zu is %d", i, tokens.ids[i]);
        const weft_bytes piece = rules->pieces[tokens.ids[i]];
        FUZZ_CHECK(!comes_back || (piece.bytes <= bytes - at &&
                                   memcmp(piece.text, text + at, piece.bytes) == 0),
                   "token %zu is not byte %zu", i, at);
        at += piece.bytes;
    }
    FUZZ_CHECK(!comes_back || at == bytes, "%zu of %zu bytes", at, bytes);
    weft_tokens_release(&tokens);
    weft_rules_worker_destroy(worker);
}

static void load(const char *vocab, const char *merges, const char *text, size_t bytes)
{
    weft_arena arena = {0};
    weft_rules rules;
    uint32_t eod;
    const weft_status status =
        weft_gpt2_read("v.json", vocab, "m.bpe", merges, &arena, &rules, &eod);
    if (status == WEFT_OK) {
        FUZZ_CHECK(rules.tables.num_tokens > eod, "eod %u", eod);
        encode(&rules, true, text, bytes);
        encode(&rules, true, vocab, strlen(vocab) < 4096 ? strlen(vocab) : 4096);
    } else {
        fuzz_refused(status);
    }
    weft_rules_release(&rules);
    weft_arena_release(&arena);
}

static void load_json(const char *json, const char *text, size_t bytes)
{
    weft_arena arena = {0};
    weft_rules rules;
    const weft_status status = weft_tokenizer_json_read("t.json", json, &arena, &rules);
    if (status == WEFT_OK) {
        encode(&rules, false, text, bytes);
        encode(&rules, false, json, strlen(json) < 4096 ? strlen(json) : 4096);
    } else {
        fuzz_refused(status);
    }
    weft_rules_release(&rules);
    weft_arena_release(&arena);
}

/* GPT-2's names of bytes: those that can be printed are themselves, the others follow 255. */
static void put_byte(FILE *out, int byte)
{
    int code = byte, others = 0;
    for (int b = 0; b <= byte; b++) {
        const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        others += !plain;
        if (b == byte && !plain)
            code = 255 + others;
    }
    if (code == '"' || code == '\\')
        fprintf(out, "\\%c", code);
    else if (code < 128)
        fputc(code, out);
    else
        fprintf(out, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 63));
}

/* All bytes, the end, and for each line "a b" a token "ab". */
static char *vocabulary_of(const char *merges)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    int id = 0;
    FUZZ_CHECK(out, "no memory");
    fputc('{', out);
    for (; id < 256; id++) {
        fputc('"', out);
        put_byte(out, id);
        fprintf(out, "\": %d, ", id);
    }
    for (const char *line = merges; *line;) {
        const size_t length = strcspn(line, "\n"), space = strcspn(line, " \n");
        if (space < length && !memchr(line, '"', length) && !memchr(line, '\\', length))
            fprintf(out, "\"%.*s%.*s\": %d, ", (int)space, line, (int)(length - space - 1),
                    line + space + 1, id++);
        line += length + (line[length] == '\n');
    }
    fprintf(out, "\"<|endoftext|>\": %d}", id);
    fclose(out);
    return text;
}

/* The end of a document is one of the tokenizer's tokens. */
static void find_end(const fuzz_parts *parts)
{
    weft_tokenizer *tokenizer;
    const weft_tokenizer_source source = {.name = fuzz_path("t.json"),
                                          .eod = parts->bytes[2] > 0 ? parts->at[2] : NULL};
    fuzz_write(source.name, parts->at[0], parts->bytes[0]);
    fuzz_write(fuzz_path("tokenizer_config.json"), parts->at[1], parts->bytes[1]);
    const weft_status status = weft_tokenizer_create(&source, &tokenizer);
    if (status != WEFT_OK) {
        fuzz_refused(status);
        return;
    }
    const weft_tokenizer_info *info = weft_tokenizer_get_info(tokenizer);
    FUZZ_CHECK(info->eod >= 0 && info->eod < info->vocab_size, "eod %lld of %lld",
               (long long)info->eod, (long long)info->vocab_size);
    weft_tokenizer_destroy(tokenizer);
}

static void read_description(const char *text, size_t bytes)
{
    weft_arena arena = {0};
    weft_tokenizer_info info = {0};
    weft_prepared prepared = {0};
    weft_tokenizer *tokenizer;
    fuzz_write(fuzz_path("p.json"), text, bytes);
    weft_status status = weft_prepared_read(fuzz_path("p.json"), &arena, &info, &prepared);
    if (status == WEFT_OK) {
        status = weft_tokenizer_open(&info, &tokenizer);
        if (status == WEFT_OK)
            weft_tokenizer_destroy(tokenizer);
    }
    if (status != WEFT_OK)
        fuzz_refused(status);
    weft_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    if (size == 0)
        return 0;
    const bool has_three = data[0] == 'f' || data[0] == 'c';
    fuzz_cut(data + 1, size - 1, data[0] == 'p' ? 1 : has_three ? 3 : 2, &parts);
    if (data[0] == 'p') {
        read_description(parts.at[0], parts.bytes[0]);
    } else if (data[0] == 'c') {
        find_end(&parts);
    } else if (data[0] == 'j') {
        load_json(parts.at[0], parts.at[1], parts.bytes[1]);
    } else if (data[0] == 'm') {
        char *vocab = vocabulary_of(parts.at[0]);
        load(vocab, parts.at[0], parts.at[1], parts.bytes[1]);
        free(vocab);
    } else {
        load(parts.at[0], parts.at[1], parts.at[2], parts.bytes[2]);
    }
    fuzz_release(&parts);
    return 0;
}
