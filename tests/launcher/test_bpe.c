#include "launcher/text/tokenizer.h"
#include "tests/core/random.h"
#include "tests/core/temporary.h"
#include "tests/launcher/vocabulary.h"

#define GPT2(vocab, merges)                                                                        \
    (weft_tokenizer_source)                                                                        \
    {                                                                                              \
        .name = "gpt2", .vocab_file = vocab, .merge_file = merges                                  \
    }

static vocabulary trained;

static int create_vocabulary(void **state)
{
    if (temporary_create(state) != 0)
        return -1;
    vocabulary_train(&trained, vocabulary_text);
    vocabulary_write(&trained, temporary_path("vocab.json"), temporary_path("merges.bpe"));
    return 0;
}

static weft_tokenizer *open_trained(void)
{
    weft_tokenizer *tokenizer;
    OK(weft_tokenizer_create(&GPT2(temporary_path("vocab.json"), temporary_path("merges.bpe")),
                             &tokenizer));
    return tokenizer;
}

/* With an encoder of its own. */
static void encode(const weft_tokenizer *tokenizer, const char *text, size_t bytes,
                   weft_tokens *out)
{
    weft_encoder *encoder;
    OK(weft_encoder_create(tokenizer, &encoder));
    OK(weft_encoder_encode(encoder, text, bytes, out));
    weft_encoder_destroy(encoder);
}

static uint64_t random_state = 99;

CASE(merges_join_as_defined)
{
    weft_tokenizer *tokenizer = open_trained();
    const weft_tokenizer_info *info = weft_tokenizer_get_info(tokenizer);
    assert_int_equal(info->vocab_size, VOCABULARY_EOD + 1);
    assert_int_equal(info->eod, VOCABULARY_EOD);
    weft_tokens tokens = {0};
    for (int round = 0; round < 400; round++) {
        char text[600];
        int wanted[600], count = 0, bytes = 1 + (int)next_random(599);
        /* Letters of the training text, so that many merges apply; few spaces make long words. */
        for (int i = 0; i < bytes; i++) {
            char c = "theweavrfpoudngis"[next_random(17)];
            bool may_break = i > 0 && text[i - 1] != ' ' && text[i - 1] != '\n' && i + 1 < bytes;
            uint32_t dice = next_random(round % 2 ? 6 : 120);
            text[i] = may_break && dice < 2 ? " \n"[dice] : c;
        }
        for (int at = 0; at < bytes;) {
            int n = vocabulary_word_bytes(text + at, bytes - at);
            count += vocabulary_encode_word(&trained, text + at, n, wanted + count);
            at += n;
        }
        tokens.count = 0;
        encode(tokenizer, text, (size_t)bytes, &tokens);
        assert_int_equal(tokens.count, count);
        for (int i = 0; i < count; i++)
            assert_int_equal(tokens.ids[i], wanted[i]);
    }
    weft_tokens_release(&tokens);
    weft_tokenizer_destroy(tokenizer);
}

static void expect_pieces(weft_tokenizer *tokenizer, const char *text, const char *wanted)
{
    weft_tokens tokens = {0};
    char got[256] = "";
    size_t used = 0;
    encode(tokenizer, text, strlen(text), &tokens);
    for (size_t i = 0; i < tokens.count; i++) {
        size_t bytes;
        const char *piece = weft_tokenizer_piece(tokenizer, tokens.ids[i], &bytes);
        used += (size_t)snprintf(got + used, sizeof(got) - used, "%s%.*s", i ? "|" : "", (int)bytes,
                                 piece);
    }
    assert_string_equal(got, wanted);
    weft_tokens_release(&tokens);
}

/* A vocabulary whose merges would join across words, if the split let them. */
CASE(words_are_split_first)
{
    /* "\u0120" is how the files write a space. */
    static const char *const merges[] = {"' s", "'s a",      "\u0120 a", "\u0120 \u0120", "a a",
                                         "a 1", "1 1",       "! !",      "a !",           "1 !",
                                         "! '", "'s \u0120", "a \u0120"};
    enum { NUM = sizeof merges / sizeof *merges };
    vocabulary bytes_alone = trained;
    const char *vocab_path = temporary_path("split.json"),
               *merge_path = temporary_path("split.bpe");
    FILE *vocab = fopen(vocab_path, "w"), *file = fopen(merge_path, "w");
    fputs("{", vocab);
    for (int id = 0; id < 256; id++) {
        fputs("\"", vocab);
        vocabulary_put_piece(&bytes_alone, vocab, id, true);
        fprintf(vocab, "\": %d, ", id);
    }
    for (int i = 0; i < NUM; i++) {
        const char *space = strchr(merges[i], ' ');
        fprintf(vocab, "\"%.*s%s\": %d, ", (int)(space - merges[i]), merges[i], space + 1, 256 + i);
        fprintf(file, "%s\n", merges[i]);
    }
    fprintf(vocab, "\"<|endoftext|>\": %d}", 256 + NUM);
    fclose(vocab);
    fclose(file);
    weft_tokenizer *tokenizer;
    OK(weft_tokenizer_create(&GPT2(vocab_path, merge_path), &tokenizer));
    expect_pieces(tokenizer, "a's", "a|'s");
    expect_pieces(tokenizer, "'sa", "'s|a");
    expect_pieces(tokenizer, "a a", "a| a");
    expect_pieces(tokenizer, "a   a", "a|  | a");
    expect_pieces(tokenizer, "a   ", "a|  | ");
    expect_pieces(tokenizer, "aaa11", "aa|a|11");
    expect_pieces(tokenizer, "a!!1", "a|!!|1");
    expect_pieces(tokenizer, "!'s", "!'|s");
    expect_pieces(tokenizer, "a\n\na", "a|\n|\n|a");
    /* Unicode's spaces are spaces, and U+180E is none of them. */
    expect_pieces(tokenizer,
                  "a\xe3\x80\x80"
                  " a",
                  "a|\xe3|\x80|\x80| a");
    expect_pieces(tokenizer, "!\xe1\xa0\x8e!", "!|\xe1|\xa0|\x8e|!");
    expect_pieces(tokenizer, "", "");
    weft_tokenizer_destroy(tokenizer);
}

CASE(all_bytes_come_back)
{
    weft_tokenizer *tokenizers[2] = {open_trained(), NULL};
    OK(weft_tokenizer_create(&(weft_tokenizer_source){0}, &tokenizers[1]));
    weft_arena arena = {0};
    weft_tokens tokens = {0};
    for (int k = 0; k < 2; k++) {
        for (int round = 0; round < 300; round++) {
            char text[700], *back;
            size_t bytes = round == 0 ? 256 : next_random(700), back_bytes;
            for (size_t i = 0; i < bytes; i++) {
                /* All bytes in order, noise, then noise with the beginnings of UTF-8. */
                text[i] = round == 0 ? (char)i
                          : round % 2
                              ? (char)next_random(256)
                              : "\xf0\x9f\x99\x82\xe6\x97\xa5\xc3\xed\xa0 th"[next_random(13)];
            }
            tokens.count = 0;
            encode(tokenizers[k], text, bytes, &tokens);
            OK(weft_tokenizer_decode(tokenizers[k], tokens.ids, tokens.count, &arena, &back,
                                     &back_bytes));
            assert_int_equal(back_bytes, bytes);
            assert_memory_equal(back, text, bytes);
            assert_int_equal(back[bytes], 0);
            for (size_t i = 0; i < tokens.count; i++)
                assert_in_range(tokens.ids[i], 0, weft_tokenizer_get_info(tokenizers[k])->eod - 1);
        }
        weft_tokenizer_destroy(tokenizers[k]);
    }
    weft_tokens_release(&tokens);
    weft_arena_release(&arena);
}

CASE(bytes_are_their_own_tokens)
{
    weft_tokenizer *tokenizer;
    weft_tokens tokens = {0};
    size_t bytes;
    OK(weft_tokenizer_create(&(weft_tokenizer_source){0}, &tokenizer));
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->vocab_size, 257);
    assert_int_equal(weft_tokenizer_get_info(tokenizer)->eod, 256);
    encode(tokenizer, "A\xff", 2, &tokens);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[0], 65);
    assert_int_equal(tokens.ids[1], 255);
    static const int32_t silent[] = {256, 257, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; i++) {
        assert_non_null(weft_tokenizer_piece(tokenizer, silent[i], &bytes));
        assert_int_equal(bytes, 0);
    }
    weft_tokens_release(&tokens);
    weft_tokenizer_destroy(tokenizer);
    tokenizer = open_trained();
    assert_non_null(weft_tokenizer_piece(tokenizer, VOCABULARY_EOD, &bytes));
    assert_int_equal(bytes, 0);
    assert_non_null(weft_tokenizer_piece(tokenizer, VOCABULARY_EOD + 1, &bytes));
    assert_int_equal(bytes, 0);
    weft_tokenizer_destroy(tokenizer);
}

/* Words without an end take n log n, and the text's own "<|endoftext|>" is ordinary. */
CASE(long_words_and_forged_ends)
{
    enum { BYTES = 400000 };
    weft_tokenizer *tokenizer = open_trained();
    weft_arena arena = {0};
    weft_tokens tokens = {0};
    char *text = malloc(BYTES), *back;
    size_t bytes;
    for (int i = 0; i < BYTES; i++)
        text[i] = "the"[i % 3];
    encode(tokenizer, text, BYTES, &tokens);
    assert_true(tokens.count < BYTES / 2);
    OK(weft_tokenizer_decode(tokenizer, tokens.ids, tokens.count, &arena, &back, &bytes));
    assert_int_equal(bytes, BYTES);
    assert_memory_equal(back, text, BYTES);
    tokens.count = 0;
    encode(tokenizer, "<|endoftext|>", 13, &tokens);
    assert_true(tokens.count > 1);
    for (size_t i = 0; i < tokens.count; i++)
        assert_int_not_equal(tokens.ids[i], VOCABULARY_EOD);
    free(text);
    weft_tokens_release(&tokens);
    weft_arena_release(&arena);
    weft_tokenizer_destroy(tokenizer);
}

/* More distinct words than the cache remembers. */
CASE(a_full_cache_starts_again)
{
    weft_tokenizer *tokenizer = open_trained();
    weft_encoder *encoder;
    OK(weft_encoder_create(tokenizer, &encoder));
    weft_tokens tokens = {0};
    for (int i = 0; i < 200000; i++) {
        char word[16];
        int wanted[16], bytes = snprintf(word, sizeof(word), "%x", i);
        for (char *c = word; *c; c++) /* digits would be words of their own */
            *c = *c <= '9' ? (char)(*c - '0' + 'p') : *c;
        tokens.count = 0;
        OK(weft_encoder_encode(encoder, word, (size_t)bytes, &tokens));
        assert_int_equal(tokens.count, vocabulary_encode_word(&trained, word, bytes, wanted));
        for (size_t t = 0; t < tokens.count; t++)
            assert_int_equal(tokens.ids[t], wanted[t]);
    }
    weft_tokens_release(&tokens);
    weft_encoder_destroy(encoder);
    weft_tokenizer_destroy(tokenizer);
}

/* Replaces the first `from` in a copy of a file. */
static const char *changed_copy(const char *source, const char *name, const char *from,
                                const char *to)
{
    size_t bytes;
    char *text = (char *)temporary_read(temporary_path(source), &bytes);
    text[bytes] = '\0';
    char *at = strstr(text, from);
    assert_non_null(at);
    FILE *file = fopen(temporary_path(name), "w");
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
    free(text);
    return temporary_path(name);
}

CASE(damaged_vocabularies_are_refused)
{
    static const struct {
        const char *file, *from, *to, *text;
    } cases[] = {
        {"vocab.json", "{", "[", "bad.json:1:"},
        {"vocab.json", "\"<|endoftext|>\"", "\"<|end|>\"", "bad.json: no token <|endoftext|>"},
        {"vocab.json", "\"t\": 116, ", "", "bad.json:"},
        {"vocab.json", "\"t\": 116", "\"t\": 117", "another token has the same id"},
        {"vocab.json", "\"t\": 116", "\"t\": 1e2", "its id is not one of 0 to"},
        {"vocab.json", "\"t\": 116", "\"t\": -1", "its id is not one of 0 to"},
        {"vocab.json", "\"t\": 116", "\"t\": \"116\"", "its id is not one of 0 to"},
        {"vocab.json", "\"t\": 116", "\"t \": 116", "not a string of GPT-2's characters"},
        {"vocab.json", "\"t\": 116", "\"\xe6\x97\xa5\": 116", "not a string of GPT-2's characters"},
        {"vocab.json", "\"t\": 116", "\"\\ud800\": 116", "not a string of GPT-2's characters"},
        {"vocab.json", "\"th\": ", "\"the\": ", "are the same text"},
        {"vocab.json", "\"t\": 116", "\"zqz\": 116", "bad.json: no token for byte 116"},
        {"merges.bpe", "t h\n", "th\n", "bad.bpe:"},
        {"merges.bpe", "t h\n", "t q\n", "a part or the whole is not in the vocabulary"},
        {"merges.bpe", "t h\n", "t h\nt h\n", "merges 0 and 1 are the same"},
        {"merges.bpe", "t h\n", "t h x\n", "expected two symbols of GPT-2's characters"},
        {"merges.bpe", "t h\n", " h\n", "expected two symbols of GPT-2's characters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_tokenizer *tokenizer;
        bool is_vocab = strcmp(cases[i].file, "vocab.json") == 0;
        const char *bad = changed_copy(cases[i].file, is_vocab ? "bad.json" : "bad.bpe",
                                       cases[i].from, cases[i].to);
        FAILS(weft_tokenizer_create(&GPT2(is_vocab ? bad : temporary_path("vocab.json"),
                                          is_vocab ? temporary_path("merges.bpe") : bad),
                                    &tokenizer),
              WEFT_FILE, cases[i].text);
    }
}

CASE(files_are_asked_for_and_checked)
{
    weft_tokenizer *tokenizer;
    const char *vocab = temporary_path("vocab.json"), *merges = temporary_path("merges.bpe");
    FAILS(weft_tokenizer_create(&GPT2(NULL, NULL), &tokenizer), WEFT_CONFIG,
          "wants its vocabulary (encoder.json) and merges (vocab.bpe)");
    FAILS(weft_tokenizer_create(&GPT2(vocab, NULL), &tokenizer), WEFT_CONFIG,
          "wants its merges (vocab.bpe)");
    FAILS(weft_tokenizer_create(&GPT2(NULL, merges), &tokenizer), WEFT_CONFIG,
          "wants its vocabulary (encoder.json)");
    FAILS(weft_tokenizer_create(&(weft_tokenizer_source){.vocab_file = vocab}, &tokenizer),
          WEFT_CONFIG, "has no vocabulary");
    FAILS(weft_tokenizer_create(&GPT2("absent.json", merges), &tokenizer), WEFT_FILE,
          "absent.json: No such file");
    FAILS(weft_tokenizer_create(&GPT2(merges, vocab), &tokenizer), WEFT_FILE,
          "merges.bpe:1:1: not valid JSON");
    FAILS(weft_tokenizer_create(&(weft_tokenizer_source){.name = "byte"}, &tokenizer), WEFT_CONFIG,
          "did you mean bytes?");
    FAILS(weft_tokenizer_create(&(weft_tokenizer_source){.eod = "x"}, &tokenizer), WEFT_CONFIG,
          "--eod-token is for a tokenizer.json alone");
    weft_tokenizer *again, *first = open_trained();
    weft_tokenizer_info info = *weft_tokenizer_get_info(first);
    assert_int_equal(info.vocab_file[0], '/');
    OK(weft_tokenizer_open(&info, &again));
    assert_string_equal(weft_tokenizer_get_info(again)->merge_file_xxh64, info.merge_file_xxh64);
    weft_tokenizer_destroy(again);
    info.merge_file_xxh64 = "0123456789abcdef";
    FAILS(weft_tokenizer_open(&info, &again), WEFT_FILE, "merges.bpe: not the file that");
    info.vocab_file_xxh64 = NULL;
    FAILS(weft_tokenizer_open(&info, &again), WEFT_FILE, "vocab.json: not the file that");
    weft_tokenizer_destroy(first);
    weft_tokenizer_destroy(NULL);
}

AROUND(.set_up = create_vocabulary, .tear_down = temporary_remove)
