/* weft prepare: text to a token dataset. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/dataset.h"
#include "core/file.h"
#include "core/json.h"
#include "launcher/tokenizer.h"
#include "launcher/verbs.h"

typedef struct prepare_options {
    const char *out, *tokenizer, *vocab_file, *merge_file;
    bool append_eod, split_blank_lines, json;
    char **texts;
    int num_texts;
} prepare_options;

/* What the work needs from its first document to its last. */
typedef struct prepare {
    const prepare_options *options;
    weft_tokenizer *tokenizer;
    weft_dataset_writer *writer;
    weft_tokens tokens; /* of one document */
    weft_prepared prepared;
    uint64_t num_bytes;
} prepare;

static void print_help(FILE *out)
{
    fputs("usage: weft prepare TEXT... --out PREFIX [options]\n"
          "Turns text files into a token dataset: PREFIX.bin and PREFIX.idx (Megatron's indexed\n"
          "format) and PREFIX.json (the tokenizer, for training and generating).\n\n"
          "  --out PREFIX          where to write\n"
          "  --tokenizer NAME      bytes (default; 257 tokens) or gpt2 (50,257)\n"
          "  --vocab-file FILE     gpt2: encoder.json\n"
          "  --merge-file FILE     gpt2: vocab.bpe\n"
          "  --append-eod          end each document with the end-of-document token\n"
          "  --split-blank-lines   a document ends at a blank line; else each file is one\n"
          "  --json                print the result as JSON\n"
          "  --help                print this\n",
          out);
}

enum {
    OPTION_OUT = 256,
    OPTION_TOKENIZER,
    OPTION_VOCAB,
    OPTION_MERGES,
    OPTION_EOD,
    OPTION_BLANK,
    OPTION_JSON,
    OPTION_HELP
};

static const struct option long_options[] = {
    {"out", required_argument, NULL, OPTION_OUT},
    {"tokenizer", required_argument, NULL, OPTION_TOKENIZER},
    {"vocab-file", required_argument, NULL, OPTION_VOCAB},
    {"merge-file", required_argument, NULL, OPTION_MERGES},
    {"append-eod", no_argument, NULL, OPTION_EOD},
    {"split-blank-lines", no_argument, NULL, OPTION_BLANK},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, OPTION_HELP},
    {0},
};

/* getopt_long refused `argument`. */
static weft_status bad_option(int refusal, const char *argument)
{
    const char *names[sizeof long_options / sizeof *long_options];
    size_t count = 0;
    for (; long_options[count].name; count++)
        names[count] = long_options[count].name;
    if (refusal == ':')
        return WEFT_ERROR(WEFT_CONFIG, "%s wants a value", argument);
    const char *near = weft_nearest_name(argument + strspn(argument, "-"), names, count);
    return WEFT_ERROR(WEFT_CONFIG, "unknown option %s%s%s%s", argument,
                      near ? "; did you mean --" : "", near ? near : "", near ? "?" : "");
}

static weft_status parse_options(int argc, char **argv, prepare_options *o, bool *help)
{
    *o = (prepare_options){.tokenizer = "bytes"};
    *help = false;
    optind = 0; /* starts getopt again, whoever used it before */
    for (;;) {
        int choice = getopt_long(argc, argv, ":", long_options, NULL);
        if (choice == -1)
            break;
        switch (choice) {
        case OPTION_OUT:
            o->out = optarg;
            break;
        case OPTION_TOKENIZER:
            o->tokenizer = optarg;
            break;
        case OPTION_VOCAB:
            o->vocab_file = optarg;
            break;
        case OPTION_MERGES:
            o->merge_file = optarg;
            break;
        case OPTION_EOD:
            o->append_eod = true;
            break;
        case OPTION_BLANK:
            o->split_blank_lines = true;
            break;
        case OPTION_JSON:
            o->json = true;
            break;
        case OPTION_HELP:
            *help = true;
            return WEFT_OK;
        default:
            return bad_option(choice, argv[optind - 1]);
        }
    }
    o->texts = argv + optind;
    o->num_texts = argc - optind;
    if (o->num_texts == 0)
        return WEFT_ERROR(WEFT_CONFIG, "no text files given; see weft prepare --help");
    if (!o->out)
        return WEFT_ERROR(WEFT_CONFIG, "--out PREFIX is missing");
    return WEFT_OK;
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

/* Documents keep the newline of their last line and lose the blank lines around them. */
static weft_status add_text(prepare *p, const char *text, size_t bytes)
{
    if (!p->options->split_blank_lines)
        return add_document(p, text, bytes);
    size_t first = 0;
    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t next = newline ? (size_t)(newline - text) + 1 : bytes;
        if (is_blank(text + at, next - at)) {
            WEFT_TRY(add_document(p, text + first, at - first));
            first = next;
        }
        at = next;
    }
    return add_document(p, text + first, bytes - first);
}

static weft_status add_file(prepare *p, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    if (S_ISREG(info.st_mode)) {
        weft_file_map map;
        WEFT_TRY(weft_file_map_open(path, &map));
        weft_status status = add_text(p, (const char *)map.data, map.bytes);
        weft_file_map_close(&map);
        return status;
    }
    /* A pipe, such as a decompressor's output. */
    weft_arena arena = {0};
    char *text;
    size_t bytes;
    weft_status status = weft_read_file(path, &arena, &text, &bytes);
    if (status == WEFT_OK)
        status = add_text(p, text, bytes);
    weft_arena_release(&arena);
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
        return WEFT_ERROR(WEFT_FILE, "%s: %s", temporary, strerror(errno));
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
    const char *description;
    WEFT_TRY(weft_arena_printf(arena, &description, "%s.json", o->out));
    for (int i = 0; i < o->num_texts; i++)
        WEFT_TRY(add_file(p, o->texts[i]));
    if (p->prepared.tokens == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no text in the %d files given", o->texts[0],
                          o->num_texts);
    /* No dataset without a description, or an older one's, is ever to be seen. */
    if (unlink(description) != 0 && errno != ENOENT)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot be replaced: %s", description, strerror(errno));
    WEFT_TRY(weft_dataset_writer_finish(p->writer));
    WEFT_TRY(write_description(p, description, arena));
    return WEFT_OK;
}

static weft_status print_result(const prepare *p, weft_arena *arena)
{
    const weft_tokenizer_info *info = weft_tokenizer_get_info(p->tokenizer);
    const char *out = p->options->out, *name = weft_tokenizer_kind_name(info->kind);
    if (!p->options->json) {
        printf("documents %" PRId64 ", tokens %" PRId64 " (%.2f bytes each), vocabulary %" PRId64
               " (%s)\nwrote %s.bin, %s.idx and %s.json\n",
               p->prepared.documents, p->prepared.tokens,
               (double)p->num_bytes / (double)p->prepared.tokens, info->vocab_size, name, out, out,
               out);
        return WEFT_OK;
    }
    const char *quoted;
    WEFT_TRY(weft_json_quote(out, arena, &quoted));
    /* The suffix goes inside the quotes. */
    int bytes = (int)strlen(quoted) - 1;
    printf("{\"documents\": %" PRId64 ", \"tokens\": %" PRId64 ", \"text_bytes\": %" PRIu64
           ", \"tokenizer\": \"%s\", \"vocab_size\": %" PRId64
           ", \"files\": [%.*s.bin\", %.*s.idx\", %.*s.json\"]}\n",
           p->prepared.documents, p->prepared.tokens, p->num_bytes, name, info->vocab_size, bytes,
           quoted, bytes, quoted, bytes, quoted);
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
    weft_status status = weft_dataset_writer_create(o->out, vocab_size, &p.writer);
    if (status == WEFT_OK)
        status = write_all(&p, &arena);
    if (status == WEFT_OK)
        status = print_result(&p, &arena);
    weft_dataset_writer_destroy(p.writer);
    weft_tokenizer_destroy(p.tokenizer);
    weft_tokens_release(&p.tokens);
    weft_arena_release(&arena);
    return status;
}

int weft_verb_prepare(int argc, char **argv)
{
    prepare_options options;
    bool help;
    weft_status status = parse_options(argc, argv, &options, &help);
    if (status == WEFT_OK && help) {
        print_help(stdout);
        return 0;
    }
    if (status == WEFT_OK)
        status = run(&options);
    return status == WEFT_OK ? 0 : weft_verb_fail("prepare");
}
