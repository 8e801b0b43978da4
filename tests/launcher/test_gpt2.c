/* GPT-2's own vocabulary: ids that tiktoken and the original encoder give. The files are not part
 * of the tree: $WEFT_GPT2_DIR names a folder with encoder.json and vocab.bpe. */
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "launcher/text/tokenizer.h"
#include "tests/core/check.h"

static char folder[512];
static weft_tokenizer *tokenizer;
static weft_encoder *encoder;

typedef struct known {
    const char *text;
    int count;
    int32_t ids[18];
} known;

static const known knowns[] = {
    {"Hello world", 2, {15496, 995}},
    {"The quick brown fox jumps over the lazy dog.",
     10,
     {464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13}},
    {"I've 1024 apples,   don't I?\n\n\tYes.",
     15,
     {40, 1053, 28119, 22514, 11, 220, 220, 836, 470, 314, 30, 628, 197, 5297, 13}},
    {"na\u00efve caf\u00e9 \u2014 \u6771\u4eac \U0001f642",
     10,
     {2616, 38776, 40304, 851, 10545, 251, 109, 12859, 105, 32485}},
    {"def f(x):\n    return x**2\n",
     14,
     {4299, 277, 7, 87, 2599, 198, 220, 220, 220, 1441, 2124, 1174, 17, 198}},
    {"<|endoftext|>", 7, {27, 91, 437, 1659, 5239, 91, 29}},
    {"\u00a0\u2003a\u180eb", 8, {1849, 447, 225, 64, 157, 254, 236, 65}},
};

CASE(known_texts_give_known_ids)
{
    weft_tokens tokens = {0};
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->vocab_size, 50257);
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 50256);
    for (int round = 0; round < 2; round++) { /* the second time from the cache */
        for (size_t k = 0; k < sizeof knowns / sizeof *knowns; k++) {
            tokens.count = 0;
            OK(weft_encoder_encode(encoder, knowns[k].text, strlen(knowns[k].text), &tokens));
            assert_int_equal(tokens.count, knowns[k].count);
            for (int i = 0; i < knowns[k].count; i++)
                assert_int_equal(tokens.ids[i], knowns[k].ids[i]);
        }
    }
    weft_tokens_release(&tokens);
}

/* tiktoken makes 338,025 tokens of the usual tiny-Shakespeare file; the hash is of its ids. */
CASE(a_corpus_gives_the_reference_ids)
{
    char path[600];
    struct stat info;
    snprintf(path, sizeof(path), "%s/../tinyshakespeare.txt", folder);
    if (stat(path, &info) != 0) {
        print_message("no tinyshakespeare.txt above %s: skipped\n", folder);
        skip();
    }
    weft_arena arena = {0};
    weft_tokens tokens = {0};
    char *text, *back;
    size_t bytes, back_bytes;
    OK(weft_read_file(path, &arena, &text, &bytes));
    OK(weft_encoder_encode(encoder, text, bytes, &tokens));
    OK(weft_tokenizer_decode(tokenizer, tokens.ids, tokens.count, &arena, &back, &back_bytes));
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    if (XXH64(text, bytes, 0) == UINT64_C(0xdcfa653f079489f3)) { /* the file it was made from */
        assert_int_equal(tokens.count, 338025);
        assert_true(XXH64(tokens.ids, tokens.count * sizeof(*tokens.ids), 0) ==
                    UINT64_C(0x77e4ee5a75962217));
    }
    weft_tokens_release(&tokens);
    weft_arena_release(&arena);
}

CASE(every_token_stands_for_its_bytes)
{
    weft_arena arena = {0};
    char *text;
    size_t bytes, total = 0;
    static int32_t ids[50257];
    for (int32_t id = 0; id < 50257; id++) {
        ids[id] = id;
        weft_tokenizer_piece(tokenizer, id, &bytes);
        assert_int_equal(bytes == 0, id == 50256);
        total += bytes;
    }
    OK(weft_tokenizer_decode(tokenizer, ids, 50257, &arena, &text, &bytes));
    assert_int_equal(bytes, total);
    weft_arena_release(&arena);
}

int main(void)
{
    const char *given = getenv("WEFT_GPT2_DIR"), *nearby = getenv("WEFT_GPT2_NEARBY");
    if (!given && !nearby) {
        printf("skipped: WEFT_GPT2_DIR does not name a folder with encoder.json and vocab.bpe\n");
        return 77;
    }
    snprintf(folder, sizeof(folder), "%s", given ? given : nearby);
    char vocab[600], merges[600];
    snprintf(vocab, sizeof(vocab), "%s/encoder.json", folder);
    snprintf(merges, sizeof(merges), "%s/vocab.bpe", folder);
    const weft_tokenizer_source source = {"gpt2", vocab, merges, NULL, false};
    if (weft_tokenizer_create(&source, &tokenizer) != WEFT_OK ||
        weft_encoder_create(tokenizer, &encoder) != WEFT_OK) {
        printf("%s\n", weft_error_get()->text);
        return 1;
    }
    int failed = run_cases();
    weft_encoder_destroy(encoder);
    weft_tokenizer_destroy(tokenizer);
    return failed;
}
