#include "launcher/verbs/train/prepare.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Whether a file that is taken for text holds JSON: by its first bytes, behind a byte order mark
 * and blank lines. Text may begin with a bracket, too ("[Scene 1]", "{{ template }}", "[1] Knuth"):
 * JSON is an object whose first key is a string with a colon behind it, or an array of objects, of
 * strings or of several numbers. */

/* So many bytes of a file are enough. */
enum { JSON_START_BYTES = 1 << 16 };

typedef struct json_start {
    bool is_array, has_objects; /* an object, or an array of some */
    /* A key of the first object whose value is a string: "text", else the first; as it stands in
     * the file, without quotes. Empty: none that a shell's line could name. */
    char key[64];
} json_start;

typedef struct cursor {
    const char *at, *end;
} cursor;

/* The next byte; 0 where there is none. */
static char peek(const cursor *c)
{
    return c->at < c->end ? *c->at : '\0';
}

static void skip(cursor *c, const char *set)
{
    while (c->at < c->end && *c->at && strchr(set, *c->at))
        c->at++;
}

static const char white[] = " \t\r\n\f\v";

/* Skips a character and white space. */
static bool take(cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    skip(c, white);
    return true;
}

/* A string on one line, and the white space behind it; its bytes without quotes. */
static bool take_string(cursor *c, const char **out, size_t *bytes)
{
    if (peek(c) != '"')
        return false;
    *out = ++c->at;
    while (c->at < c->end && *c->at != '"' && *c->at != '\n')
        c->at += *c->at == '\\' && c->at + 1 < c->end ? 2 : 1;
    if (peek(c) != '"')
        return false;
    *bytes = (size_t)(c->at - *out);
    return take(c, '"');
}

static bool begins_value(const cursor *c)
{
    return peek(c) && strchr("\"{[-0123456789", peek(c));
}

/* Nothing more on this line, but for the rest of an array. */
static bool ends_line(const cursor *c)
{
    cursor rest = *c;
    skip(&rest, " \t\r");
    if (take(&rest, ','))
        return begins_value(&rest);
    return !peek(&rest) || strchr("\n]", peek(&rest));
}

/* --- keys ---------------------------------------------------------------------------------- */

/* Behind a value; false where the bytes end before. */
static bool skip_value(cursor *c)
{
    const char *text;
    size_t bytes;
    int depth = 0;
    while (c->at < c->end) {
        const char byte = *c->at;
        if (byte == '"') {
            if (!take_string(c, &text, &bytes))
                return false;
            continue;
        }
        if (depth == 0 && (byte == ',' || byte == '}'))
            return true;
        depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
        c->at++;
    }
    return false;
}

static bool can_be_named(const char *key, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)key[i] < ' ' || key[i] == '\'' || key[i] == 0x7f)
            return false;
    return bytes > 0 && bytes < sizeof((json_start *)0)->key;
}

/* c: behind an object's bracket. */
static void find_key(cursor c, json_start *out)
{
    const char *key;
    size_t bytes;
    while (take_string(&c, &key, &bytes) && take(&c, ':')) {
        const bool is_text = bytes == 4 && memcmp(key, "text", 4) == 0;
        if (peek(&c) == '"' && can_be_named(key, bytes) && (is_text || !out->key[0])) {
            memcpy(out->key, key, bytes);
            out->key[bytes] = '\0';
        }
        if (!skip_value(&c) || !take(&c, ','))
            return;
    }
}

/* --- objects and arrays -------------------------------------------------------------------- */

static bool is_object(cursor c, json_start *out)
{
    const char *key;
    size_t bytes;
    if (!take(&c, '{'))
        return false;
    const cursor inside = c;
    if (peek(&c) == '}') {
        c.at++;
        return out->has_objects = ends_line(&c);
    }
    if (!take_string(&c, &key, &bytes) || peek(&c) != ':')
        return false;
    out->has_objects = true;
    find_key(inside, out);
    return true;
}

/* c: behind an array's bracket: "one", "two" or "one"]. */
static bool has_strings(cursor c)
{
    const char *text;
    size_t bytes;
    const bool is_long = c.end - c.at > JSON_START_BYTES / 2;
    if (!take_string(&c, &text, &bytes))
        return is_long && c.at == c.end; /* no line of prose */
    if (take(&c, ','))
        return c.at == c.end || begins_value(&c);
    return peek(&c) == ']' && (c.at++, ends_line(&c));
}

/* c: behind an array's bracket: 1, 2] or an end of the bytes before that bracket. */
static bool has_numbers(cursor c)
{
    const char *start = c.at;
    skip(&c, "-+.,0123456789eE \t\r\n");
    if (!memchr(start, ',', (size_t)(c.at - start)))
        return false;
    return c.at == c.end || (peek(&c) == ']' && (c.at++, ends_line(&c)));
}

/* False: text, for all that is known. `out` is filled where it is true. */
static bool json_start_find(const char *bytes, size_t num_bytes, json_start *out)
{
    static const char mark[] = "\xef\xbb\xbf";
    cursor c = {bytes, bytes + num_bytes};
    json_start found = {0};
    if (num_bytes >= 3 && memcmp(bytes, mark, 3) == 0)
        c.at += 3;
    skip(&c, white);
    while (take(&c, '['))
        found.is_array = true;
    if (!is_object(c, &found) && !(found.is_array && (has_strings(c) || has_numbers(c))))
        return false;
    *out = found;
    return true;
}

/* --- text ---------------------------------------------------------------------------------- */

typedef struct reader {
    weft_prepare_source *source;
    weft_prepare_ring *ring;
    const char *path; /* of the file that is read */
    weft_input *input;
    uint64_t num_before; /* bytes of the files before it */
    bool has_tokens;     /* a document of token files is begun: the next one may go on with it */
    char head[JSON_START_BYTES]; /* of the file */
    size_t head_bytes;
} reader;

static uint64_t num_read(const reader *r)
{
    return r->num_before + (r->input ? weft_input_num_read(r->input) : 0);
}

static weft_status end_document(reader *r, weft_document_kind kind, int64_t line)
{
    return weft_prepare_end(r->ring, kind, r->path, line, num_read(r));
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!strchr(" \t\r\n\f\v", line[i]) || line[i] == '\0')
            return false;
    }
    return true;
}

/* What is no text would train as one document of nonsense. */
static weft_status check_line(const char *path, const char *line, size_t bytes, int64_t number)
{
    return memchr(line, '\0', bytes)
               ? WEFT_ERROR(WEFT_FILE,
                            "%s: line %" PRId64 " has a zero byte: not text; --any-bytes takes it "
                            "as it is",
                            weft_input_name(path), number)
               : WEFT_OK;
}

/* head: what the file begins with. */
static weft_status check_is_no_json(const char *path, const char *head, size_t bytes)
{
    json_start json;
    const char *name = weft_input_name(path);
    if (!json_start_find(head, bytes, &json))
        return WEFT_OK;
    const char *what = json.is_array ? "a JSON array" : "JSON objects";
    const char *quote = strpbrk(json.key, " \"\\$`*?[]{}()<>|&;#~!") ? "'" : "";
    if (json.is_array)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: holds %s, not text: %s; --any-bytes takes the file as it is", name,
                          what,
                          json.has_objects ? "jq -c '.[]' would print lines for --jsonl"
                                           : "jq -r '.[]' would print its texts");
    return WEFT_ERROR(WEFT_FILE,
                      "%s: holds %s, not text: --jsonl %s%s%s reads the text of its lines; "
                      "--any-bytes takes the file as it is",
                      name, what, quote, json.key[0] ? json.key : "KEY", quote);
}

/* Collects what a file begins with, and looks at it once: when that is enough, or at its end. */
static weft_status look_at_head(reader *r, const char *line, size_t bytes)
{
    const size_t room = sizeof r->head - r->head_bytes, part = bytes < room ? bytes : room;
    if (r->source->options->any_bytes || room == 0 || (r->head_bytes == 0 && is_blank(line, bytes)))
        return WEFT_OK;
    if (part > 0)
        memcpy(r->head + r->head_bytes, line, part);
    r->head_bytes += part;
    return part == room || bytes == 0 ? check_is_no_json(r->path, r->head, r->head_bytes) : WEFT_OK;
}

/* Documents keep the newline of their last line and lose the blank lines around them. */
static weft_status add_text_line(reader *r, const char *line, size_t bytes, int64_t number)
{
    if (!r->source->options->any_bytes)
        WEFT_TRY(check_line(r->path, line, bytes, number));
    WEFT_TRY(look_at_head(r, line, bytes));
    return r->source->options->split_blank_lines && is_blank(line, bytes)
               ? end_document(r, WEFT_DOCUMENT_TEXT, number)
               : weft_prepare_add(r->ring, line, bytes);
}

static weft_status add_json_line(reader *r, const char *line, size_t bytes, int64_t number)
{
    static const char mark[] = "\xef\xbb\xbf";
    const size_t skipped = number == 1 && bytes >= 3 && memcmp(line, mark, 3) == 0 ? 3 : 0;
    if (is_blank(line + skipped, bytes - skipped))
        return WEFT_OK;
    bytes -= line[bytes - 1] == '\n';
    WEFT_TRY(weft_prepare_add(r->ring, line + skipped, bytes - skipped));
    WEFT_TRY(weft_prepare_add(r->ring, "", 1));
    return end_document(r, WEFT_DOCUMENT_JSON, number);
}

static weft_status add_lines(reader *r)
{
    const bool is_jsonl = r->source->options->jsonl != NULL;
    const char *line;
    size_t bytes;
    int64_t number = 0;
    r->head_bytes = 0;
    for (;;) {
        WEFT_TRY(weft_input_line(r->input, &line, &bytes));
        if (bytes == 0)
            break;
        number++;
        WEFT_TRY(is_jsonl ? add_json_line(r, line, bytes, number)
                          : add_text_line(r, line, bytes, number));
    }
    r->source->num_empty += number == 0;
    if (is_jsonl)
        return WEFT_OK;
    WEFT_TRY(look_at_head(r, NULL, 0));
    return end_document(r, WEFT_DOCUMENT_TEXT, number);
}

/* --- llm.c's token files ------------------------------------------------------------------- */

/* github.com/karpathy/llm.c, dev/data/data_common.py: 256 numbers of 32 bits (magic, version,
 * number of tokens), then the tokens. Its documents begin with the end-of-document token, and go on
 * in the next file. */
static const struct {
    int32_t magic, version;
    size_t token_bytes;
} token_files[] = {{20240520, 1, 2}, {20240801, 7, 4}};

enum { TOKEN_HEADER_BYTES = 1024 };

/* The bytes of a token; 0: no token file. */
static weft_status find_token_file(reader *r, size_t *token_bytes)
{
    const char *head;
    int32_t header[2];
    size_t bytes;
    *token_bytes = 0;
    WEFT_TRY(weft_input_peek(r->input, sizeof header, &head, &bytes));
    if (bytes < sizeof header)
        return WEFT_OK;
    memcpy(header, head, sizeof header);
    for (size_t i = 0; i < sizeof token_files / sizeof *token_files; i++)
        if (header[0] == token_files[i].magic && header[1] == token_files[i].version)
            *token_bytes = token_files[i].token_bytes;
    return WEFT_OK;
}

static weft_status end_tokens(reader *r)
{
    if (!r->has_tokens)
        return WEFT_OK;
    r->has_tokens = false;
    return end_document(r, WEFT_DOCUMENT_TOKENS, 0);
}

static weft_status add_token(reader *r, uint32_t token)
{
    if (token == (uint32_t)r->source->eod)
        return end_tokens(r);
    if (token > INT32_MAX)
        return WEFT_ERROR(WEFT_FILE, "%s: token %" PRIu32 " is outside every vocabulary",
                          weft_input_name(r->path), token);
    r->has_tokens = true;
    return weft_prepare_add(r->ring, &(int32_t){(int32_t)token}, sizeof(int32_t));
}

static weft_status add_tokens(reader *r, size_t token_bytes)
{
    enum { PART_TOKENS = 1 << 14 };
    const char *at;
    size_t bytes;
    int32_t num_tokens = 0;
    WEFT_TRY(weft_input_bytes(r->input, TOKEN_HEADER_BYTES, &at, &bytes));
    if (bytes == TOKEN_HEADER_BYTES)
        memcpy(&num_tokens, at + 2 * sizeof num_tokens, sizeof num_tokens);
    int64_t left = num_tokens;
    while (left > 0) {
        const size_t part = left < PART_TOKENS ? (size_t)left : PART_TOKENS;
        WEFT_TRY(weft_input_bytes(r->input, part * token_bytes, &at, &bytes));
        for (size_t i = 0; i < bytes / token_bytes; i++) {
            uint32_t token = 0; /* little-endian, as all hosts are */
            memcpy(&token, at + i * token_bytes, token_bytes);
            WEFT_TRY(add_token(r, token));
        }
        left -= (int64_t)(bytes / token_bytes);
        if (bytes < part * token_bytes)
            break;
    }
    WEFT_TRY(weft_input_peek(r->input, 1, &at, &bytes));
    if (num_tokens < 1 || left > 0 || bytes > 0)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: a token file of llm.c whose header says %" PRId32
                          " tokens, which are not what it has",
                          weft_input_name(r->path), num_tokens);
    return WEFT_OK;
}

/* --- all ----------------------------------------------------------------------------------- */

static weft_status add_content(reader *r)
{
    size_t token_bytes = 0;
    if (!r->source->options->any_bytes)
        WEFT_TRY(find_token_file(r, &token_bytes));
    if (token_bytes > 0)
        return add_tokens(r, token_bytes);
    WEFT_TRY(end_tokens(r));
    return add_lines(r);
}

static weft_status read_files(reader *r)
{
    const weft_input_list *files = &r->source->files;
    for (size_t i = 0; i < files->count; i++) {
        r->path = files->paths[i];
        WEFT_TRY(weft_input_open(r->path, r->source->options->any_bytes, &r->input));
        weft_status status = add_content(r);
        r->num_before = num_read(r);
        weft_input_close(r->input);
        r->input = NULL;
        WEFT_TRY(status);
    }
    return end_tokens(r);
}

weft_status weft_prepare_read(weft_prepare_source *source, weft_prepare_ring *ring)
{
    reader *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to read files");
    r->source = source;
    r->ring = ring;
    weft_status status = read_files(r);
    free(r);
    return status;
}
