/* What weft prepare reads. The first byte says which: 'j' a key and a line of JSON, apart by a NUL;
 * 'f' a file, plain, gzip or zstd by its first bytes. What is taken from a line cJSON takes, too;
 * the lines of a plain file are its bytes. */
#include <cjson/cJSON.h>

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
    read_line(parts.at[0], parts.at[1], parts.bytes[1]);
    fuzz_release(&parts);
    return 0;
}
