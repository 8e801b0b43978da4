/* weft prepare: text to a token dataset. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/dataset/dataset.h"
#include "core/json.h"
#include "core/text.h"
#include "launcher/arguments/arguments.h"
#include "launcher/report/report.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/verbs/train/train.h"

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

typedef struct prepare_options {
    const char *out;
    weft_tokenizer_source tokenizer;
    bool append_eod, split_blank_lines, any_bytes, json;
    weft_string_list texts;
} prepare_options;

typedef struct document {
    char *text;
    size_t bytes, capacity;
} document;

/* What the work needs from its first document to its last. */
typedef struct prepare {
    const prepare_options *options;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    const char *tokenizer_file; /* the copy beside the dataset; NULL: none */
    weft_dataset_writer *writer;
    char *line; /* getline's */
    size_t line_capacity;
    document document;
    weft_tokens tokens; /* of one document */
    weft_prepared prepared;
    int64_t num_empty;   /* files */
    bool replaces;       /* a dataset that is there */
    weft_known known;    /* of the tokens so far, */
    XXH64_state_t *hash; /* and their hash */
    uint64_t num_bytes;
    char head[JSON_START_BYTES]; /* of the file that is read */
    size_t head_bytes;
} prepare;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, prepare_options *o, weft_arena *arena)
{
    const weft_argument rows[] = {
        {"out", "PREFIX", "where to write", .text = &o->out, .required = true},
        {"tokenizer", "NAME", "bytes: 257 tokens; gpt2: 50,257; or the path of a tokenizer.json",
         .text = &o->tokenizer.name},
        {"vocab-file", "FILE", "gpt2: encoder.json", .text = &o->tokenizer.vocab_file},
        {"merge-file", "FILE", "gpt2: vocab.bpe", .text = &o->tokenizer.merge_file},
        {"eod-token", "TEXT", "tokenizer.json: the end-of-document token, where it is another",
         .text = &o->tokenizer.eod},
        {"no-special-tokens", NULL, "tokenizer.json: nothing around documents",
         .flag = &o->tokenizer.no_special_tokens},
        {"append-eod", NULL, "end each document with the end-of-document token",
         .flag = &o->append_eod},
        {"split-blank-lines", NULL, "a document ends at a blank line; else each file is one",
         .flag = &o->split_blank_lines},
        {"any-bytes", NULL, "take files as text whatever they hold", .flag = &o->any_bytes},
        {"json", NULL, "one JSON object on standard output", .flag = &o->json},
    };
    const weft_arguments verb = {
        .verb = "prepare",
        .operands = "TEXT...",
        .given = &o->texts,
        .about = "Turns text files into a token dataset: PREFIX.bin and PREFIX.idx (Megatron's "
                 "indexed format) and\nPREFIX.json (the tokenizer, for training and generating).\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    *o = (prepare_options){.tokenizer = {.name = "bytes"}};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

static weft_status add_document(prepare *p, const char *text, size_t bytes)
{
    if (bytes == 0)
        return WEFT_OK;
    p->tokens.count = 0;
    WEFT_TRY(weft_encoder_encode(p->encoder, text, bytes, &p->tokens));
    const int32_t eod = (int32_t)weft_tokenizer_get_info(p->tokenizer)->eod;
    const size_t count = p->tokens.count; /* a tokenizer.json may put the token there itself */
    if (p->options->append_eod && (count == 0 || p->tokens.ids[count - 1] != eod))
        WEFT_TRY(weft_tokens_add(&p->tokens, eod));
    WEFT_TRY(weft_dataset_writer_add(p->writer, p->tokens.ids, p->tokens.count));
    XXH64_update(p->hash, p->tokens.ids, p->tokens.count * sizeof *p->tokens.ids);
    for (size_t i = 0; i < p->tokens.count; i++)
        p->known.max_token =
            p->tokens.ids[i] > p->known.max_token ? p->tokens.ids[i] : p->known.max_token;
    p->prepared.documents++;
    p->prepared.tokens += (int64_t)p->tokens.count;
    p->num_bytes += bytes;
    return WEFT_OK;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!strchr(" \t\r\n\f\v", line[i]) || line[i] == '\0')
            return false;
    }
    return true;
}

static weft_status add_line(document *d, const char *line, size_t bytes)
{
    if (d->bytes + bytes > d->capacity) {
        size_t capacity = 2 * d->capacity > d->bytes + bytes ? 2 * d->capacity : d->bytes + bytes;
        char *larger = realloc(d->text, capacity);
        if (!larger)
            return WEFT_ERROR(WEFT_MEMORY, "no memory for a document of %zu bytes", capacity);
        d->text = larger;
        d->capacity = capacity;
    }
    memcpy(d->text + d->bytes, line, bytes);
    d->bytes += bytes;
    return WEFT_OK;
}

static weft_status end_document(prepare *p)
{
    size_t bytes = p->document.bytes;
    p->document.bytes = 0;
    return add_document(p, p->document.text, bytes);
}

/* Compressed files, by what they begin with. */
static const struct {
    const char *bytes;
    size_t count;
    const char *name, *reader;
} compressed[] = {{"\x1f\x8b", 2, "gzip", "zcat"},
                  {"\x28\xb5\x2f\xfd", 4, "zstd", "zstdcat"},
                  {"\xfd"
                   "7zXZ",
                   5, "xz", "xzcat"},
                  {"BZh", 3, "bzip2", "bzcat"}};

/* What messages call a file: a pipe's path says nothing. */
static const char *name_of(const char *path)
{
    static const char *const inputs[] = {"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (strcmp(path, inputs[i]) == 0)
            return "standard input";
    const bool is_open =
        strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/self/fd/", 14) == 0;
    return is_open ? "a pipe" : path;
}

static weft_status refuse_compressed(const char *path, const char *format, const char *reader)
{
    const char *name = name_of(path);
    return name == path
               ? WEFT_ERROR(WEFT_FILE,
                            "%s: is %s, not text: weft prepare <(%s %s) reads it; --any-bytes "
                            "takes its bytes as they are",
                            name, format, reader, path)
               : WEFT_ERROR(WEFT_FILE,
                            "%s: is %s, not text: %s makes it text; --any-bytes takes its bytes as "
                            "they are",
                            name, format, reader);
}

/* What is no text would train as one document of nonsense. The line ends with a zero byte. */
static weft_status check_line(const char *path, const char *line, size_t bytes, int64_t number)
{
    for (size_t i = 0; number == 1 && i < sizeof compressed / sizeof *compressed; i++)
        if (bytes >= compressed[i].count &&
            memcmp(line, compressed[i].bytes, compressed[i].count) == 0)
            return refuse_compressed(path, compressed[i].name, compressed[i].reader);
    if (memchr(line, '\0', bytes))
        return WEFT_ERROR(WEFT_FILE,
                          "%s: line %" PRId64 " has a zero byte: not text; --any-bytes takes it as "
                          "it is",
                          name_of(path), number);
    return WEFT_OK;
}

/* jq's filter for the texts; "": nobody knows which. */
static void name_filter(const json_start *json, char out[96])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    const char *each = json->is_array ? ".[]" : "";
    const bool is_plain = json->key[strspn(json->key, plain)] == '\0' && json->key[0] > '9';
    out[0] = '\0';
    if (!json->has_objects)
        snprintf(out, 96, "'%s'", each);
    else if (json->key[0] && is_plain && !json->is_array)
        snprintf(out, 96, ".%s", json->key);
    else if (json->key[0])
        snprintf(out, 96, is_plain ? "'%s.%s'" : "'%s.\"%s\"'", each, json->key);
}

/* head: what the file begins with. */
static weft_status check_is_no_json(const char *path, const char *head, size_t bytes)
{
    json_start json;
    char filter[96];
    const char *name = name_of(path);
    if (!json_start_find(head, bytes, &json))
        return WEFT_OK;
    const char *what = json.is_array ? "a JSON array" : "JSON objects";
    name_filter(&json, filter);
    if (!filter[0])
        return WEFT_ERROR(WEFT_FILE,
                          "%s: holds %s, not text: jq would print the text of its documents; "
                          "--any-bytes takes the file as it is",
                          name, what);
    return WEFT_ERROR(WEFT_FILE,
                      "%s: holds %s, not text: jq -r %s%s%s would print the text of its documents; "
                      "--any-bytes takes the file as it is",
                      name, what, filter, name == path ? " " : "", name == path ? path : "");
}

/* Collects what a file begins with, and looks at it once: when that is enough, or at its end. */
static weft_status look_at_head(prepare *p, const char *path, const char *line, size_t bytes)
{
    const size_t room = sizeof p->head - p->head_bytes, part = bytes < room ? bytes : room;
    if (p->options->any_bytes || room == 0 || (p->head_bytes == 0 && is_blank(line, bytes)))
        return WEFT_OK;
    if (part > 0)
        memcpy(p->head + p->head_bytes, line, part);
    p->head_bytes += part;
    return part == room || bytes == 0 ? check_is_no_json(path, p->head, p->head_bytes) : WEFT_OK;
}

/* Documents keep the newline of their last line and lose the blank lines around them. One is in
 * memory at a time. */
static weft_status add_lines(prepare *p, const char *path, FILE *file)
{
    ssize_t bytes;
    int64_t number = 0;
    p->head_bytes = 0;
    while ((bytes = getline(&p->line, &p->line_capacity, file)) > 0) {
        number++;
        if (!p->options->any_bytes)
            WEFT_TRY(check_line(path, p->line, (size_t)bytes, number));
        WEFT_TRY(look_at_head(p, path, p->line, (size_t)bytes));
        if (p->options->split_blank_lines && is_blank(p->line, (size_t)bytes))
            WEFT_TRY(end_document(p));
        else
            WEFT_TRY(add_line(&p->document, p->line, (size_t)bytes));
    }
    if (ferror(file) || !feof(file))
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", name_of(path), strerror(errno));
    WEFT_TRY(look_at_head(p, path, NULL, 0));
    p->num_empty += number == 0;
    return end_document(p);
}

/* A file, or a pipe such as a decompressor's output. */
static weft_status add_file(prepare *p, const char *path)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_status status = add_lines(p, path, file);
    fclose(file);
    return status;
}

/* PREFIX.json, under a temporary name first. */
static weft_status write_description(const prepare *p, const char *path, weft_arena *arena)
{
    weft_tokenizer_info info = *weft_tokenizer_get_info(p->tokenizer);
    weft_prepared prepared = p->prepared;
    weft_option_section sections[2];
    const char *temporary;
    weft_prepared_sections(&info, &prepared, sections);
    WEFT_TRY(weft_arena_printf(arena, &temporary, "%s.%ld.part", path, (long)getpid()));
    FILE *file = fopen(temporary, "we");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    weft_status status = weft_options_write(sections, 2, file);
    bool synced = status == WEFT_OK && fsync(fileno(file)) == 0;
    if ((fclose(file) != 0 || !synced || rename(temporary, path) != 0) && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    if (status != WEFT_OK)
        unlink(temporary);
    return status;
}

static weft_status write_all(prepare *p, weft_arena *arena)
{
    const prepare_options *o = p->options;
    const char *description, *index, *tokenizer;
    WEFT_TRY(weft_arena_printf(arena, &description, "%s.json", o->out));
    WEFT_TRY(weft_arena_printf(arena, &index, "%s.idx", o->out));
    for (size_t i = 0; i < o->texts.count; i++)
        WEFT_TRY(add_file(p, o->texts.values[i]));
    if (p->prepared.tokens == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no text in %s given", o->texts.values[0],
                          weft_count_text((long long)o->texts.count, "file").text);
    p->replaces = access(index, F_OK) == 0;
    /* No dataset without a description, or an older one's, is ever to be seen. */
    if (unlink(description) != 0 && errno != ENOENT)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot be replaced: %s", description, strerror(errno));
    WEFT_TRY(weft_tokenizer_keep(p->tokenizer, o->out, &p->tokenizer_file));
    WEFT_TRY(weft_dataset_writer_finish(p->writer));
    WEFT_TRY(write_description(p, description, arena));
    WEFT_TRY(weft_tokenizer_identity(weft_tokenizer_get_info(p->tokenizer), arena, &tokenizer));
    XXH64_update(p->hash, tokenizer, strlen(tokenizer));
    p->known.xxh64 = XXH64_digest(p->hash);
    if (weft_known_keep(o->out, tokenizer, &p->known) != WEFT_OK)
        weft_error_clear(); /* then the first start reads the dataset */
    return WEFT_OK;
}

static weft_status print_result(const prepare *p, weft_arena *arena)
{
    const weft_tokenizer_info *info = weft_tokenizer_get_info(p->tokenizer);
    const char *out = p->options->out, *name = weft_tokenizer_kind_name(info->kind), *files[4];
    const size_t num_files = p->tokenizer_file ? 4 : 3;
    static const char *const suffixes[] = {"bin", "idx", "json"};
    weft_report r;
    for (int i = 0; i < 3; i++)
        WEFT_TRY(weft_arena_printf(arena, &files[i], "%s.%s", out, suffixes[i]));
    files[3] = p->tokenizer_file;
    weft_report_begin(&r, p->options->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    if (p->num_empty > 0)
        weft_report_line(&r, "%s empty", weft_count_text((long long)p->num_empty, "file").text);
    weft_report_line(&r,
                     "documents %" PRId64 ", tokens %" PRId64 " (%.2f bytes each), vocabulary "
                     "%" PRId64 " (%s)",
                     p->prepared.documents, p->prepared.tokens,
                     (double)p->num_bytes / (double)p->prepared.tokens, info->vocab_size, name);
    weft_report_line(&r, "%s %s, %s%s%s and %s", p->replaces ? "replaced" : "wrote", files[0],
                     files[1], p->tokenizer_file ? ", " : "",
                     p->tokenizer_file ? p->tokenizer_file : "", files[2]);
    weft_report_value(&r, "documents", p->prepared.documents);
    weft_report_value(&r, "empty_files", p->num_empty);
    weft_report_value(&r, "tokens", p->prepared.tokens);
    weft_report_value(&r, "text_bytes", p->num_bytes);
    weft_report_text(&r, "tokenizer", NULL, name);
    weft_report_value(&r, "vocab_size", info->vocab_size);
    weft_report_bool(&r, "replaced", p->replaces);
    weft_report_texts(&r, "files", files, num_files);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status run(const prepare_options *o)
{
    static prepare p; /* large */
    p = (prepare){.options = o, .prepared = {.append_eod = o->append_eod}};
    weft_arena arena = {0};
    WEFT_TRY(weft_tokenizer_create(&o->tokenizer, &p.tokenizer));
    int64_t vocab_size = weft_tokenizer_get_info(p.tokenizer)->vocab_size;
    p.hash = XXH64_createState();
    weft_status status = p.hash ? weft_dataset_writer_create(o->out, vocab_size, &p.writer)
                                : WEFT_ERROR(WEFT_MEMORY, "no memory for a hash");
    if (status == WEFT_OK)
        status = weft_encoder_create(p.tokenizer, &p.encoder);
    if (p.hash)
        XXH64_reset(p.hash, 0);
    if (status == WEFT_OK)
        status = write_all(&p, &arena);
    if (status == WEFT_OK)
        status = print_result(&p, &arena);
    weft_dataset_writer_destroy(p.writer);
    XXH64_freeState(p.hash);
    weft_encoder_destroy(p.encoder);
    weft_tokenizer_destroy(p.tokenizer);
    weft_tokens_release(&p.tokens);
    free(p.document.text);
    free(p.line);
    weft_arena_release(&arena);
    return status;
}

int weft_verb_prepare(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    prepare_options options;
    weft_arena arena = {0};
    int code = parse(argc, argv, &options, &arena);
    if (code < 0)
        code = run(&options) == WEFT_OK ? 0 : weft_verb_fail("prepare");
    weft_arena_release(&arena);
    return code;
}
