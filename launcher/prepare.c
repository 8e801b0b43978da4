/* weft prepare: text to a token dataset. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "core/dataset.h"
#include "core/json.h"
#include "core/text.h"
#include "launcher/arguments.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/verbs.h"

typedef struct prepare_options {
    const char *out, *tokenizer, *vocab_file, *merge_file;
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
} prepare;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, prepare_options *o, weft_arena *arena)
{
    const weft_argument rows[] = {
        {"out", "PREFIX", "where to write", .text = &o->out, .required = true},
        {"tokenizer", "NAME", "bytes: 257 tokens; gpt2: 50,257", .text = &o->tokenizer},
        {"vocab-file", "FILE", "gpt2: encoder.json", .text = &o->vocab_file},
        {"merge-file", "FILE", "gpt2: vocab.bpe", .text = &o->merge_file},
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
    *o = (prepare_options){.tokenizer = "bytes"};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

static weft_status add_document(prepare *p, const char *text, size_t bytes)
{
    if (bytes == 0)
        return WEFT_OK;
    p->tokens.count = 0;
    WEFT_TRY(weft_tokenizer_encode(p->tokenizer, text, bytes, &p->tokens));
    if (p->options->append_eod) {
        int64_t eod = weft_tokenizer_get_info(p->tokenizer)->eod;
        WEFT_TRY(weft_tokens_add(&p->tokens, (int32_t)eod));
    }
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

static bool is_json_object(const char *line, size_t bytes)
{
    cJSON *json = line[strspn(line, " \t")] == '{' ? cJSON_ParseWithLength(line, bytes) : NULL;
    const bool found = cJSON_IsObject(json);
    cJSON_Delete(json);
    return found;
}

/* What is no text would train as one document of nonsense. The line ends with a zero byte. */
static weft_status check_is_text(const char *path, const char *line, size_t bytes, int64_t number)
{
    for (size_t i = 0; number == 1 && i < sizeof compressed / sizeof *compressed; i++)
        if (bytes >= compressed[i].count &&
            memcmp(line, compressed[i].bytes, compressed[i].count) == 0)
            return WEFT_ERROR(WEFT_FILE,
                              "%s: is %s, not text: weft prepare <(%s %s) reads it; --any-bytes "
                              "takes its bytes as they are",
                              path, compressed[i].name, compressed[i].reader, path);
    if (memchr(line, '\0', bytes))
        return WEFT_ERROR(WEFT_FILE,
                          "%s: line %" PRId64 " has a zero byte: not text; --any-bytes takes it as "
                          "it is",
                          path, number);
    if (number == 1 && is_json_object(line, bytes))
        return WEFT_ERROR(WEFT_FILE,
                          "%s: line 1 is a JSON object, not text: jq -r .text %s would print the "
                          "text of its documents; --any-bytes takes the file as it is",
                          path, path);
    return WEFT_OK;
}

/* Documents keep the newline of their last line and lose the blank lines around them. One is in
 * memory at a time. */
static weft_status add_lines(prepare *p, const char *path, FILE *file)
{
    ssize_t bytes;
    int64_t number = 0;
    while ((bytes = getline(&p->line, &p->line_capacity, file)) > 0) {
        number++;
        if (!p->options->any_bytes)
            WEFT_TRY(check_is_text(path, p->line, (size_t)bytes, number));
        if (p->options->split_blank_lines && is_blank(p->line, (size_t)bytes))
            WEFT_TRY(end_document(p));
        else
            WEFT_TRY(add_line(&p->document, p->line, (size_t)bytes));
    }
    if (ferror(file) || !feof(file))
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", path, strerror(errno));
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
    const char *out = p->options->out, *name = weft_tokenizer_kind_name(info->kind);
    if (!p->options->json) {
        if (p->num_empty > 0)
            printf("%s empty\n", weft_count_text((long long)p->num_empty, "file").text);
        printf("documents %" PRId64 ", tokens %" PRId64 " (%.2f bytes each), vocabulary %" PRId64
               " (%s)\n%s %s.bin, %s.idx and %s.json\n",
               p->prepared.documents, p->prepared.tokens,
               (double)p->num_bytes / (double)p->prepared.tokens, info->vocab_size, name,
               p->replaces ? "replaced" : "wrote", out, out, out);
        return WEFT_OK;
    }
    const char *quoted;
    WEFT_TRY(weft_json_quote_utf8(out, arena, &quoted));
    /* The suffix goes inside the quotes. */
    int bytes = (int)strlen(quoted) - 1;
    printf("{\"documents\": %" PRId64 ", \"empty_files\": %" PRId64 ", \"tokens\": %" PRId64
           ", \"text_bytes\": %" PRIu64 ", \"tokenizer\": \"%s\", \"vocab_size\": %" PRId64
           ", \"replaced\": %s, \"files\": [%.*s.bin\", %.*s.idx\", %.*s.json\"]}\n",
           p->prepared.documents, p->num_empty, p->prepared.tokens, p->num_bytes, name,
           info->vocab_size, p->replaces ? "true" : "false", bytes, quoted, bytes, quoted, bytes,
           quoted);
    return WEFT_OK;
}

static weft_status run(const prepare_options *o)
{
    prepare p = {.options = o, .prepared = {.append_eod = o->append_eod}};
    weft_arena arena = {0};
    weft_tokenizer_kind kind;
    WEFT_TRY(weft_tokenizer_kind_parse(o->tokenizer, &kind));
    WEFT_TRY(weft_tokenizer_create(kind, o->vocab_file, o->merge_file, &p.tokenizer));
    int64_t vocab_size = weft_tokenizer_get_info(p.tokenizer)->vocab_size;
    p.hash = XXH64_createState();
    weft_status status = p.hash ? weft_dataset_writer_create(o->out, vocab_size, &p.writer)
                                : WEFT_ERROR(WEFT_MEMORY, "no memory for a hash");
    if (p.hash)
        XXH64_reset(p.hash, 0);
    if (status == WEFT_OK)
        status = write_all(&p, &arena);
    if (status == WEFT_OK)
        status = print_result(&p, &arena);
    weft_dataset_writer_destroy(p.writer);
    XXH64_freeState(p.hash);
    weft_tokenizer_destroy(p.tokenizer);
    weft_tokens_release(&p.tokens);
    free(p.document.text);
    free(p.line);
    weft_arena_release(&arena);
    return status;
}

int weft_verb_prepare(int argc, char **argv)
{
    prepare_options options;
    weft_arena arena = {0};
    int code = parse(argc, argv, &options, &arena);
    if (code < 0)
        code = run(&options) == WEFT_OK ? 0 : weft_verb_fail("prepare");
    weft_arena_release(&arena);
    return code;
}
