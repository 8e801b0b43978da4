/* What weft prepare reads. The first byte says which: 'j' a key and a line of JSON, apart by a NUL;
 * 'm' a key and a line with messages, for --chat chatml, 'l' for llama3; 'f' a file, plain, gzip or
 * zstd by its first bytes. What is taken from a line cJSON takes, too; of messages each token says
 * whether it bears a loss; the lines of a plain file are its bytes. */
#include <cjson/cJSON.h>

#include "launcher/text/chat.h"
#include "launcher/text/input.h"
#include "launcher/text/json_lines.h"
#include "tests/fuzz/fuzz.h"

/* Of members of one name cJSON gives the first, the reader the last. */
static const cJSON *last_member(const cJSON *object, const char *key)
{
    const cJSON *found = NULL, *member;
    cJSON_ArrayForEach(member, object) if (member->string && strcmp(member->string, key) == 0)
        found = member;
    return found;
}

static void read_line(const char *key, const char *line, size_t bytes)
{
    weft_arena arena = {0};
    weft_json_characters text;
    const weft_status status = weft_json_line_text(line, bytes, key, &arena, &text);
    if (status != WEFT_OK)
        fuzz_refused(status);
    /* comments, which Weft's own JSON may have, and keys with escapes: cJSON sees others */
    if (status == WEFT_OK && !strpbrk(line, "/\\") && !strchr(key, '.')) {
        cJSON *json = cJSON_Parse(line);
        const cJSON *wanted = last_member(json, key);
        FUZZ_CHECK(cJSON_IsString(wanted) && strcmp(wanted->valuestring, text.bytes) == 0, "\"%s\"",
                   text.bytes);
        cJSON_Delete(json);
    }
    weft_arena_release(&arena);
}

/* Bytes that have tokens of their own, and both forms' marks. */
static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 8, \"content\": \"<|im_start|>\", \"special\": true},"
    "{\"id\": 9, \"content\": \"<|im_end|>\", \"special\": true},"
    "{\"id\": 10, \"content\": \"<|begin_of_text|>\", \"special\": true},"
    "{\"id\": 11, \"content\": \"<|start_header_id|>\", \"special\": true},"
    "{\"id\": 12, \"content\": \"<|end_header_id|>\", \"special\": true},"
    "{\"id\": 13, \"content\": \"<|eot_id|>\", \"special\": true},"
    "{\"id\": 14, \"content\": \"</s>\", \"special\": true}],"
    "\"decoder\": {\"type\": \"Fuse\"}, "
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"a\": 1, \"s\": 2,"
    "\"as\": 3, \"\\n\": 4, \"\\n\\n\": 5, \"\\na\": 6, \" \": 7},"
    "\"merges\": [[\"a\", \"s\"], [\"\\n\", \"\\n\"], [\"\\n\", \"a\"]]}}";

static void encode_chat(const char *form, const char *key, const char *line, size_t bytes)
{
    weft_arena arena = {0};
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    weft_chat chat;
    weft_tokens tokens = {0}, bears = {0};
    size_t num_halves = 0;
    const weft_tokenizer_source source = {.name = fuzz_path("t.json")};
    fuzz_write(source.name, tokenizer_text, sizeof tokenizer_text - 1);
    FUZZ_OK(weft_tokenizer_create(&source, &tokenizer));
    FUZZ_OK(weft_encoder_create(tokenizer, &encoder));
    FUZZ_OK(weft_chat_open(form, tokenizer, &chat));
    const weft_status status =
        weft_chat_encode(&chat, encoder, line, bytes, key, &arena, &tokens, &bears, &num_halves);
    if (status != WEFT_OK)
        fuzz_refused(status);
    else
        FUZZ_CHECK(tokens.count == bears.count, "%zu tokens, %zu that may bear a loss",
                   tokens.count, bears.count);
    for (size_t i = 0; status == WEFT_OK && i < bears.count; i++)
        FUZZ_CHECK(bears.ids[i] == 0 || bears.ids[i] == 1, "token %zu: %d", i, bears.ids[i]);
    weft_tokens_release(&tokens);
    weft_tokens_release(&bears);
    weft_encoder_destroy(encoder);
    weft_tokenizer_destroy(tokenizer);
    weft_arena_release(&arena);
}

static void read_file(const uint8_t *data, size_t size)
{
    weft_input *input;
    const char *path = fuzz_path("in"), *line;
    size_t bytes, at = 0;
    fuzz_write(path, data, size);
    weft_status status = weft_input_open(path, false, &input);
    if (status != WEFT_OK) {
        fuzz_refused(status);
        return;
    }
    const bool is_packed = size >= 2 && (data[0] == 0x1f || data[0] == 0x28);
    while ((status = weft_input_line(input, &line, &bytes)) == WEFT_OK && bytes > 0 &&
           at < (1u << 24)) {
        const char *newline = memchr(line, '\n', bytes);
        FUZZ_CHECK(!newline || newline == line + bytes - 1, "a newline inside a line");
        FUZZ_CHECK(is_packed || (at + bytes <= size && memcmp(line, data + at, bytes) == 0),
                   "line at byte %zu", at);
        at += bytes;
    }
    FUZZ_CHECK(status != WEFT_OK || is_packed || at == size, "%zu of %zu bytes", at, size);
    if (status != WEFT_OK)
        fuzz_refused(status);
    weft_input_close(input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    if (size == 0)
        return 0;
    if (data[0] == 'f') {
        read_file(data + 1, size - 1);
        return 0;
    }
    fuzz_cut(data + 1, size - 1, 2, &parts);
    if (data[0] == 'm' || data[0] == 'l')
        encode_chat(data[0] == 'm' ? "chatml" : "llama3", parts.at[0], parts.at[1], parts.bytes[1]);
    else
        read_line(parts.at[0], parts.at[1], parts.bytes[1]);
    fuzz_release(&parts);
    return 0;
}
