/* tokenizer.json of nine families and their odder parts, against what Hugging Face's library makes
 * of thousands of lines (tests/oracle/make_tokenizers.py), and what is not known, refused by name.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/json.h"
#include "launcher/text/tokenizer.h"
#include "tests/core/check.h"
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

static void ids_are_the_librarys(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_FAMILIES; i++)
        check_family(families[i]);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        check_family(argv[1]);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_the_librarys),
    };
    return cmocka_run_group_tests(tests, temporary_create, temporary_remove);
}
